"""The edge to JAX's typed keys, which functx takes as the words that they hold."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import jax
import numpy as np

from functx.core.avals import ShapedArray
from functx.core.errors import DTypeError
from functx.core.tracing import TracedKeys, Tracer, execution
from functx.core.tree import Keys

GENERATOR = "threefry2x32"
WORD = np.dtype("uint32")


class KeyType(NamedTuple):
    """The type of typed keys: their generator, and the words that one key holds.

    In a program a key is the array of its words.
    """

    generator: Any
    words: tuple[int, ...]

    def wrap(self, words: Any) -> Any:
        """JAX's keys that hold `words`."""
        return jax.random.wrap_key_data(words, impl=self.generator)


@lru_cache(maxsize=64)
def key_type(dtype: Any) -> KeyType | None:
    """The type of keys that `dtype` is; None for the dtypes of numbers."""
    if isinstance(dtype, np.dtype) or not jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key):  # type: ignore[attr-defined]
        return None
    generators: list[Any] = []

    def words(key: Any) -> Any:
        generators.append(jax.random.key_impl(key))
        return jax.random.key_data(key)

    shape = jax.eval_shape(words, jax.ShapeDtypeStruct((), dtype)).shape
    return KeyType(generators[0], shape)


def key_words(key: Any) -> Any:
    """The words of JAX's typed keys, an array or the type of one; anything else as it is."""
    if type(key) is TracedKeys:
        return key.words
    dtype = getattr(key, "dtype", None)
    if dtype is None or key_type(dtype) is None:
        return key
    if not isinstance(key, jax.Array):
        return jax.eval_shape(key_words, jax.ShapeDtypeStruct(key.shape, dtype))
    return jax.random.key_data(key)


def words_to_draw(key: Any) -> Any:
    """As `key_words`; DTypeError for keys of another generator than Threefry."""
    kind = key_type(key.dtype) if isinstance(key, jax.Array) else None
    if kind is not None and str(kind.generator) != GENERATOR:
        raise DTypeError(
            f"a key must be of JAX's default generator, {GENERATOR}; got one of {kind.generator}",
            fix="Make keys with functx.random.key, or draw with jax.random.",
        )
    return key_words(key)


def typed_keys(words: Any, dtype: Any) -> Any:
    """JAX's typed keys of `dtype` that hold `words`, or the type of one; what is no array as it is."""
    kind = key_type(dtype)
    assert kind is not None
    if type(words) is Tracer:
        return TracedKeys(words, jax.core.ShapedArray(words.shape[: -len(kind.words)], dtype))
    if type(words) is ShapedArray:
        return jax.ShapeDtypeStruct(words.shape[: -len(kind.words)], dtype)
    if not isinstance(words, (jax.Array, np.ndarray)) or words.dtype != WORD:
        return words
    return kind.wrap(words)


execution.key_words = Keys.words = key_words
Keys.typed = typed_keys
