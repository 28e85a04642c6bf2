"""The edge to JAX's typed keys, which functx takes as the words that they hold."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import jax
import numpy as np

from functx.core.avals import ShapedArray
from functx.core.errors import DTypeError
from functx.core.tracing import PRNGKeyTracer, Tracer, backend
from functx.core.tree import PRNGKeyNode

DEFAULT_PRNG = "threefry2x32"
KEY_DATA_DTYPE = np.dtype("uint32")


class PRNGKeyType(NamedTuple):
    """The type of typed keys: their generator, and the words that one key holds.

    In a program a key is the array of its words.
    """

    generator: Any
    key_shape: tuple[int, ...]

    def wrap(self, words: Any) -> Any:
        """JAX's keys that hold `words`."""
        return jax.random.wrap_key_data(words, impl=self.generator)


@lru_cache(maxsize=64)
def prng_key_type(dtype: Any) -> PRNGKeyType | None:
    """The type of keys that `dtype` is; None for the dtypes of numbers."""
    if isinstance(dtype, np.dtype) or not jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key):  # type: ignore[attr-defined]
        return None
    generators: list[Any] = []

    def words(key: Any) -> Any:
        generators.append(jax.random.key_impl(key))
        return jax.random.key_data(key)

    shape = jax.eval_shape(words, jax.ShapeDtypeStruct((), dtype)).shape
    return PRNGKeyType(generators[0], shape)


def raw_key_data(key: Any) -> Any:
    """The words of JAX's typed keys, an array or the type of one; anything else as it is."""
    if type(key) is PRNGKeyTracer:
        return key.key_data
    dtype = getattr(key, "dtype", None)
    if dtype is None or prng_key_type(dtype) is None:
        return key
    if not isinstance(key, jax.Array):
        return jax.eval_shape(raw_key_data, jax.ShapeDtypeStruct(key.shape, dtype))
    return jax.random.key_data(key)


def threefry_key_data(key: Any) -> Any:
    """As `raw_key_data`; DTypeError for keys of another generator than Threefry."""
    kind = prng_key_type(key.dtype) if isinstance(key, jax.Array) else None
    if kind is not None and str(kind.generator) != DEFAULT_PRNG:
        raise DTypeError(
            f"a key must be of JAX's default generator, {DEFAULT_PRNG}; got one of {kind.generator}",
            fix="Make keys with functx.random.key, or draw with jax.random.",
        )
    return raw_key_data(key)


def typed_key_array(words: Any, dtype: Any) -> Any:
    """JAX's typed keys of `dtype` that hold `words`, or the type of one; what is no array as it is."""
    kind = prng_key_type(dtype)
    assert kind is not None
    if type(words) is Tracer:
        return PRNGKeyTracer(
            words, jax.core.ShapedArray(words.shape[: -len(kind.key_shape)], dtype)
        )
    if type(words) is ShapedArray:
        return jax.ShapeDtypeStruct(words.shape[: -len(kind.key_shape)], dtype)
    if not isinstance(words, (jax.Array, np.ndarray)) or words.dtype != KEY_DATA_DTYPE:
        return words
    return kind.wrap(words)


backend.raw_key_data = PRNGKeyNode.key_data = raw_key_data
PRNGKeyNode.typed_key_array = typed_key_array
