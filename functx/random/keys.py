"""Random keys: arrays of two 32-bit words, made from a seed, by splitting or by folding in."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from functx import ops
from functx.core.backend import backend
from functx.core.errors import ArgumentError, DTypeError, ShapeError, ValueRangeError, type_name
from functx.core.tracer import Tracer, as_ndarray, aval_of, current_builder
from functx.core.types import (
    DType,
    ShapedArray,
    canonical_dtype,
    is_integer,
    random_seed_offset,
    x64_enabled,
)
from functx.core.typing import ArrayLike, ShapeLike, Value
from functx.lowering.jax_bridge import threefry_key_data
from functx.numpy.promotion import number_literal
from functx.ops.operands import canonical_shape, literal
from functx.ops.philox import UINT32
from functx.ops.threefry import random_fold_in, random_seed, random_split

__all__ = [
    "PRNGKey",
    "clone",
    "fold_in",
    "key",
    "key_data",
    "key_dtype",
    "key_impl",
    "split",
    "wrap_key_data",
]

PRNG_IMPL = "threefry2x32"


def key(seed: ArrayLike, *, impl: object = None, dtype: object = None) -> Value:
    """The key of an integer `seed`: a uint32 array of shape (2,).

    It has the key data of `jax.random.key(seed)`, also where `jax_random_seed_offset` is set.
    """
    _check_impl("key", impl if dtype is None else dtype)
    if isinstance(seed, int):
        return _key_from_int(seed)
    aval = aval_of(seed)
    if aval.ndim or not is_integer(aval.dtype):
        raise DTypeError(
            f"key: the seed must be one integer; got {aval!r}", fix="Use vmap for many keys."
        )
    if offset := random_seed_offset():
        seed = ops.add(seed, wrapping_literal(offset, aval.dtype))
    return random_seed(seed)


def PRNGKey(seed: ArrayLike, *, impl: object = None) -> Value:  # noqa: N802 - the name that JAX gives it
    """The key of an integer `seed`; the same as `key(seed)`."""
    return key(seed, impl=impl)


def _key_from_int(seed: int) -> Value:
    if not -(2**63) <= seed < 2**63:
        raise ValueRangeError(f"key: a seed must fit 64 bits with a sign; got {seed}")
    seed += random_seed_offset()
    if current_builder.get() is not None:
        return random_seed(wrapping_literal(seed, canonical_dtype(np.int64)))
    high = seed >> 32 if x64_enabled() else 0
    return as_ndarray(np.array([high & 0xFFFFFFFF, seed & 0xFFFFFFFF], UINT32))


def wrapping_literal(value: int, dtype: DType) -> Value:
    """The literal of the integer of `dtype` whose bits are the lowest of `value`."""
    return number_literal(int(np.array([value % 2**64], np.uint64).astype(dtype)[0]), dtype)


def split(key: ArrayLike, num: ShapeLike = 2) -> Value:
    """An array of `num` new keys from `key`; `num` is an int or a shape.

    They are typed keys if `key` is one.
    """
    return _like_key(key, random_split(check_single_key("split", key), canonical_shape(num, "num")))


def _like_key(key: Any, key_data: Value) -> Value:
    """Keys with this data, typed keys of JAX if `key` is one."""
    if backend.raw_key_data(key) is key:
        return key_data
    return backend.typed_key_array(key_data, key.dtype)


def fold_in(key: ArrayLike, data: ArrayLike) -> Value:
    """A new key from `key` and the lowest 32 bits of the integer `data`.

    It is a typed key if `key` is one.
    """
    original, key = key, check_single_key("fold_in", key)
    if isinstance(data, int):
        if not 0 <= data < 2**32:
            raise ValueRangeError(f"fold_in: the number must fit 32 bits; got {data}")
        return _like_key(original, random_fold_in(key, literal(data, UINT32)))
    aval = aval_of(data)
    if aval.ndim or not is_integer(aval.dtype):
        raise DTypeError(
            f"fold_in: data must be one integer; got {aval!r}", fix="Use vmap for many keys."
        )
    return _like_key(original, random_fold_in(key, ops.convert_element_type(data, UINT32)))


def key_data(keys: ArrayLike) -> Value:
    """The data of `keys`, uint32 of shape (..., 2); keys of functx are returned unchanged."""
    keys = threefry_key_data(keys)
    aval = _key_aval("key_data", keys)
    if aval.shape[-1:] != (2,):
        raise ShapeError(f"key_data: keys must have the shape (..., 2); got {aval!r}")
    return keys  # type: ignore[return-value]


def wrap_key_data(key_bits_array: ArrayLike, *, impl: object = None, dtype: object = None) -> Value:
    """The keys with this data, uint32 of shape (..., 2): the array itself."""
    _check_impl("wrap_key_data", impl if dtype is None else dtype)
    return key_data(key_bits_array)


def key_impl(keys: ArrayLike) -> str:
    """The name of the generator of `keys`, which is `threefry2x32`."""
    key_data(keys)
    return PRNG_IMPL


def key_dtype(impl_spec: object = None) -> Any:
    """The dtype of JAX's typed keys, which functx takes beside its own; `impl_spec` names the generator."""
    _check_impl("key_dtype", impl_spec)
    return jax.random.key_dtype(PRNG_IMPL)


def clone(key: ArrayLike) -> Value:
    """The same key, for deliberate reuse; a typed key if `key` is one."""
    return _like_key(key, key_data(key))


def check_single_key(name: str, key: ArrayLike) -> Value:
    """The data of `key`, which must be a single key; `name` is the function in the message."""
    if type(key) is not Tracer:
        key = threefry_key_data(key)
    aval = _key_aval(name, key)
    if aval.shape != (2,):
        raise ShapeError(
            f"{name}: the key must be one key, u32[2]; got {aval!r}",
            fix="Use vmap to draw with an array of keys.",
        )
    return key  # type: ignore[return-value]


def _key_aval(name: str, key: ArrayLike) -> ShapedArray:
    try:
        aval = aval_of(key)
    except ArgumentError:
        aval = None
    if aval is None or aval.dtype != UINT32:
        from functx.random import generator

        without_key = (
            f"; functx.random.generator.{name} takes none" if hasattr(generator, name) else ""
        )
        raise DTypeError(
            f"{name}: a key must be an array of uint32; got {type_name(key)}",
            fix=f"Make keys with functx.random.key(seed), split and fold_in{without_key}.",
        )
    return aval


def _check_impl(name: str, impl: object) -> None:
    default = str(jax.config.jax_default_prng_impl)  # type: ignore[attr-defined]
    if (default if impl is None else impl) != PRNG_IMPL:
        got = f"{default!r} from jax_default_prng_impl" if impl is None else repr(impl)
        raise ValueRangeError(
            f"{name}: the generator must be {PRNG_IMPL!r}; got {got}",
            fix=f"Pass impl={PRNG_IMPL!r}, or draw with jax.random.",
        )
