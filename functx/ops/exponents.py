"""Exponents of floating-point numbers, and exact multiplication by powers of two."""

from __future__ import annotations

import numpy as np
from ml_dtypes import finfo

from functx import ops
from functx.core.tracer import aval_of
from functx.core.types import DType, is_complex
from functx.core.typing import Value


def exponent_of(x: Value) -> Value:
    """The integers n with 2**(n - 1) <= |x| < 2**n, of real `x`; 0 for zeros, infinities and nan."""
    dtype = aval_of(x).dtype
    limits, word = finfo(dtype), f"uint{8 * dtype.itemsize}"
    is_finite_nonzero = ops.bitwise_and(ops.is_finite(x), ops.ne(x, 0.0))
    is_subnormal = ops.lt(ops.abs(x), float(limits.smallest_normal))
    shift = limits.nmant + 2
    scaled = ops.select(is_subnormal, ops.mul(x, 2.0**shift), x)
    bits = ops.shift_right_logical(ops.bitcast_convert_type(scaled, word), limits.nmant)
    biased = ops.convert_element_type(ops.bitwise_and(bits, 2**limits.nexp - 1), np.int32)
    exponent = ops.sub(biased, limits.maxexp - 2)
    exponent = ops.sub(exponent, ops.select(is_subnormal, np.int32(shift), np.int32(0)))
    return ops.select(is_finite_nonzero, exponent, np.int32(0))


def scale_by_power_of_two(x: Value, n: Value) -> Value:
    """`x` times 2**n for integers `n` of its shape, exact unless the result is out of range."""
    # In three steps, since 2**n itself may be out of range where x * 2**n is not.
    dtype = aval_of(x).dtype
    limit = finfo(dtype).maxexp - 1
    n = ops.clamp(-3 * (limit - 1), n, 3 * (limit - 1))
    third = ops.div(n, 3)
    for step in (third, third, ops.sub(n, ops.mul(third, 2))):
        x = ops.mul(x, power_of_two(step, dtype))
    return x


def power_of_two(n: Value, dtype: DType) -> Value:
    """2**n for integers n in the range of the exponent, composed from its bits."""
    if is_complex(dtype):
        real = power_of_two(n, np.dtype(f"float{4 * dtype.itemsize}"))
        return ops.convert_element_type(real, dtype)
    limits, word = finfo(dtype), f"int{8 * dtype.itemsize}"
    exponent = ops.convert_element_type(ops.add(n, limits.maxexp - 1), word)
    return ops.bitcast_convert_type(ops.shift_left(exponent, limits.nmant), dtype)
