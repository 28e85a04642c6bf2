"""Bits of arrays: booleans packed in bytes, and the distance of neighbouring floats."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np

from functx import ops
from functx.core.errors import DTypeError, ValueRangeError
from functx.core.tracer import aval_of
from functx.core.types import kind
from functx.core.typing import ArrayOrList, Value
from functx.numpy import floating_point, operators, ufuncs
from functx.numpy.array_creation import asarray
from functx.numpy.eager_programs import as_one_program
from functx.numpy.promotion import promote_real
from functx.numpy.rearranging import pad
from functx.numpy.shapes import moveaxis, ravel, reshape
from functx.numpy.ufuncs import make_ufunc
from functx.ops.operands import as_int, canonical_axis

__all__ = ["packbits", "spacing", "unpackbits"]


def _shifts(name: str, bitorder: str) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    """The position of each of eight bits in a byte."""
    if bitorder not in ("big", "little"):
        raise ValueRangeError(f"{name}: bitorder must be 'big' or 'little'; got {bitorder!r}")
    shifts = np.arange(8, dtype=np.uint8)
    return shifts if bitorder == "little" else shifts[::-1]


@as_one_program
def packbits(a: ArrayOrList, axis: int | None = None, bitorder: str = "big") -> Value:
    """Eight booleans along `axis` in each byte; of the flattened array if it is None.

    An integer counts as whether it is not 0, and missing bits of the last byte are 0.

    >>> import functx.numpy as np
    >>> np.packbits(np.array([True, False, True]))
    array([160], dtype=uint8)
    """
    shifts, a = _shifts("packbits", bitorder), asarray(a)
    if kind(a.dtype) not in "biu":
        raise DTypeError(f"packbits: the array must be boolean or integer; got {aval_of(a)!r}")
    rows, axis = _rows("packbits", a, axis)
    bits = ops.convert_element_type(ufuncs.as_boolean(rows), np.uint8)
    count = -(-bits.shape[-1] // 8)
    bits = pad(bits, [(0, 0)] * (bits.ndim - 1) + [(0, 8 * count - bits.shape[-1])])
    bits = operators.left_shift(reshape(bits, (*bits.shape[:-1], count, 8)), shifts)
    return moveaxis(ops.reduce_sum(bits, (bits.ndim - 1,)), -1, axis)


@as_one_program
def unpackbits(
    a: ArrayOrList, axis: int | None = None, count: int | None = None, bitorder: str = "big"
) -> Value:
    """The bits of bytes along `axis`, as 0 and 1 in uint8; of the flattened array if it is None.

    `count` is how many to return, filled up with 0, or if negative how many to leave out at the end.
    """
    shifts, a = _shifts("unpackbits", bitorder), asarray(a)
    if a.dtype != np.uint8:
        raise DTypeError(f"unpackbits: the array must be uint8; got {aval_of(a)!r}")
    rows, axis = _rows("unpackbits", a, axis)
    bits = operators.bitwise_and(operators.right_shift(rows[..., None], shifts), np.uint8(1))
    length = 8 * rows.shape[-1]
    bits = reshape(bits, (*rows.shape[:-1], length))
    if count is not None:
        wanted = as_int("unpackbits: count", count)
        wanted = wanted if wanted >= 0 else max(length + wanted, 0)
        bits = pad(bits[..., :wanted], [(0, 0)] * (bits.ndim - 1) + [(0, max(wanted - length, 0))])
    return moveaxis(bits, -1, axis)


def _rows(name: str, a: Value, axis: int | None) -> tuple[Value, int]:
    """`a` with `axis` as its last one, and the axis; flattened if it is None."""
    if axis is None:
        return ravel(a), 0
    axis = canonical_axis(axis, a.ndim, f"{name}: axis")
    return moveaxis(a, axis, -1), axis


@make_ufunc
def spacing(x: ArrayOrList, /) -> Value:
    """The distance of `x` to the next number of its dtype, with the sign of `x`; nan for infinity.

    The next number is further from 0 but for float16, whose distances are those to the number above, as
    in NumPy.
    """
    (x,) = promote_real("spacing", x)
    dtype = aval_of(x).dtype
    info, is_half = ml_dtypes.finfo(dtype), dtype == np.float16
    unsigned = np.dtype(f"uint{8 * dtype.itemsize}")
    bits = ops.bitcast_convert_type(x, unsigned)
    sign = unsigned.type(1 << (8 * dtype.itemsize - 1))
    magnitude = operators.bitwise_and(bits, operators.subtract(sign, 1))
    if is_half:
        magnitude = ufuncs.where(
            operators.greater(bits, sign), operators.subtract(magnitude, 1), magnitude
        )
    # The last bit of a number counts as much as the power of two whose exponent is less by `nmant`. It
    # is made of bits, since XLA computes with subnormal numbers as with 0.
    exponent = operators.right_shift(magnitude, info.nmant)
    normal = operators.left_shift(operators.subtract(exponent, info.nmant), info.nmant)
    position = operators.subtract(ufuncs.maximum(exponent, 1), 1)
    subnormal = operators.left_shift(unsigned.type(1), position)
    step = ufuncs.where(operators.greater(exponent, info.nmant), normal, subnormal)
    if not is_half:
        step = ufuncs.where(operators.greater(bits, sign), operators.bitwise_or(step, sign), step)
    step = ops.bitcast_convert_type(step, dtype)
    largest = operators.equal(x if is_half else operators.absolute(x), info.max)
    step = ufuncs.where(largest, floating_point.copysign(math.inf, x), step)
    return ufuncs.where(floating_point.isfinite(x), step, math.nan)
