"""The edge to JAX's typed keys, which functx takes as the words that they hold."""

from __future__ import annotations

from typing import Any

import jax

from functx.core.errors import DTypeError
from functx.core.tracing import TracedKeys, execution


def key_words(key: Any) -> Any:
    """The words of JAX's typed keys, an array or the type of one; anything else as it is.

    Raises DTypeError for keys of another generator than Threefry.
    """
    if type(key) is TracedKeys:
        return key.words
    dtype = getattr(key, "dtype", None)
    if dtype is None or not jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key):  # type: ignore[attr-defined]
        return key
    if not isinstance(key, jax.Array):
        return jax.eval_shape(key_words, jax.ShapeDtypeStruct(key.shape, dtype))
    generator = jax.random.key_impl(key)
    if generator != "threefry2x32":
        raise DTypeError(
            f"a key must be of JAX's default generator, threefry2x32; got one of {generator}",
            fix="Make keys with functx.random.key.",
        )
    return jax.random.key_data(key)


execution.key_words = key_words
