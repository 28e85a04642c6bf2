"""Values, dtypes and tokens: small functions that only JAX has in this form."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from functx import ops
from functx.core.errors import ArgumentError, DTypeError, ShapeError
from functx.core.program_editing import to_tracer
from functx.core.tracer import aval_of, current_builder, type_of
from functx.core.types import DType, canonical_dtype, kind
from functx.core.typing import ArrayLike, DTypeLike, Keys, ShapeLike, Value
from functx.lax.elementwise import broadcasting_unit_dims
from functx.numpy import asarray
from functx.numpy.shapes import broadcast_to
from functx.ops.effect_tokens import TOKEN
from functx.ops.views import returns_new_array


@returns_new_array
def broadcast_like(arr: ArrayLike | Keys, like_arr: ArrayLike) -> Value:
    """`arr` broadcast to the shape of `like_arr`, as NumPy broadcasts.

    >>> import numpy
    >>> from functx import lax
    >>> lax.broadcast_like(numpy.arange(2), numpy.zeros((2, 2))).tolist()
    [[0, 1], [0, 1]]
    """
    return broadcast_to(arr, aval_of(like_arr).shape)


def dtype(x: object) -> DType:
    """The dtype of an array, of a number, or that a type stands for, as it is with the 64-bit switch.

    Raises ArgumentError for None, and DTypeError for a type that is none of numbers.

    >>> from functx import lax
    >>> lax.dtype(1.5), lax.dtype(bool)
    (dtype('float32'), dtype('bool'))
    """
    if x is None:
        raise ArgumentError("dtype: the argument must be an array, a number or a dtype; got None")
    if isinstance(x, (type, str, np.dtype)):
        found = canonical_dtype(x)
        if kind(found) not in "biufc":
            raise DTypeError(f"dtype: the type must be one of numbers; got {found}")
        return found
    return type_of(x).dtype


def empty(shape: ShapeLike, dtype: DTypeLike) -> Value:
    """An array of `shape` and `dtype` whose elements are unspecified: zeros."""
    return ops.empty(shape, canonical_dtype(dtype))


def full(shape: ShapeLike, fill_value: ArrayLike, dtype: DTypeLike = None) -> Value:
    """An array of `shape` filled with the scalar `fill_value`, converted to `dtype` if that is given."""
    return ops.full(shape, fill_value, None if dtype is None else canonical_dtype(dtype))


def full_like(
    x: ArrayLike, fill_value: ArrayLike, dtype: DTypeLike = None, shape: ShapeLike | None = None
) -> Value:
    """An array filled with the scalar `fill_value`, by default of the shape and dtype of `x`.

    It is weakly typed if `x` is and no `dtype` is given.
    """
    return ops.full_like(x, fill_value, None if dtype is None else canonical_dtype(dtype), shape)


def stage(x: ArrayLike, /) -> Value:
    """`x` as a traced value of the program that is being traced; outside, as an array."""
    if current_builder.get() is not None:
        return to_tracer(x)
    return asarray(x) if aval_of(x).shape else ops.full((), x)


def shape_as_value(shape: Sequence[int]) -> Value:
    """The lengths `shape` as an array of integers."""
    wide = any(n >= 2**31 for n in shape)
    return np.asarray(shape, np.int64 if wide else np.int32)  # type: ignore[return-value]


def create_token(_: object = None) -> Value:
    """A token, an empty array on whose value nothing depends; the argument is ignored."""
    return ops.full(TOKEN.shape, False, TOKEN.dtype)


def after_all(*operands: Value) -> Value:
    """A token that is there after all tokens `operands` are.

    Raises ShapeError for what is no token.
    """
    for x in operands:
        if aval_of(x) is not TOKEN:
            raise ShapeError(
                f"after_all: operands must be tokens, of type {TOKEN!r}; got {aval_of(x)!r}",
                fix="Begin with lax.create_token().",
            )
    return ops.optimization_barrier(operands)[0] if operands else create_token()


@broadcasting_unit_dims
def mulhi(x: ArrayLike, y: ArrayLike, /) -> Value:
    """The upper half of the bits of the product of two integers, elementwise.

    >>> import numpy
    >>> from functx import lax
    >>> int(lax.mulhi(numpy.int32(2**30), numpy.int32(12)))
    3
    """
    aval = aval_of(x)
    if aval.dtype.kind not in "iu" or aval_of(y).dtype != aval.dtype:
        raise DTypeError(
            f"mulhi: operands must be integers of one dtype; got {aval!r} and {aval_of(y)!r}"
        )
    # As in longhand multiplication with the halves of the operands as digits, of which the upper ones
    # have the sign (Warren, Hacker's Delight, section 8-2).
    half = ops.full((), aval.dtype.itemsize * 4, aval.dtype)
    low = ops.full((), (1 << (aval.dtype.itemsize * 4)) - 1, aval.dtype)
    shift = ops.shift_right_arithmetic if aval.dtype.kind == "i" else ops.shift_right_logical
    x0, y0 = ops.bitwise_and(x, low), ops.bitwise_and(y, low)
    x1, y1 = shift(x, half), shift(y, half)
    carry = ops.shift_right_logical(ops.mul(x0, y0), half)
    middle = ops.add(ops.mul(x1, y0), carry)
    inner = ops.add(ops.mul(x0, y1), ops.bitwise_and(middle, low))
    return ops.add(ops.add(ops.mul(x1, y1), shift(middle, half)), shift(inner, half))
