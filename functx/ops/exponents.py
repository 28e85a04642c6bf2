"""Exponents of floating-point numbers, and exact multiplication by powers of two."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from ml_dtypes import finfo

from functx import ops
from functx.core.tracer import aval_of
from functx.core.types import DType, is_complex
from functx.core.typing import Value


def exponent_of(x: Value) -> Value:
    """The integers n with 2**(n - 1) <= |x| < 2**n, of real `x`; 0 for zeros, infinities and nan."""
    # From the bits, since XLA takes subnormal numbers for 0 in arithmetic.
    parts = _Bits.of(x)
    biased = ops.convert_element_type(parts.biased, np.int32)
    normal = ops.sub(biased, exponent_bias(parts.dtype) - 1)
    least = finfo(parts.dtype).minexp + 1
    exponent = ops.select(parts.is_subnormal, ops.sub(least, parts.shift), normal)
    is_nonzero = ops.ne(ops.bitwise_or(parts.biased, parts.fraction), 0)
    is_finite_nonzero = ops.bitwise_and(ops.is_finite(x), is_nonzero)
    return ops.select(is_finite_nonzero, exponent, np.int32(0))


def mantissa_of(x: Value, exponent: Value) -> Value:
    """The real `x` divided by 2 to the power `exponent_of(x)`."""
    parts = _Bits.of(x)
    half = (exponent_bias(parts.dtype) - 1) << finfo(parts.dtype).nmant
    shifted = ops.shift_left(parts.fraction, ops.convert_element_type(parts.shift, parts.word))
    bits = ops.bitwise_or(ops.bitwise_or(parts.sign, half), ops.bitwise_and(shifted, parts.mask))
    mantissa = ops.bitcast_convert_type(bits, parts.dtype)
    # The mantissa is made of bits, which have no derivative; a 0 computed from x adds that of x.
    zero_from_x = ops.sub(x, ops.stop_gradient(x))
    scaled = scale_by_power_of_two(
        ops.select(parts.is_subnormal, zero_from_x, x), ops.neg(exponent)
    )
    return ops.select(parts.is_subnormal, ops.add(mantissa, scaled), scaled)


class _Bits(NamedTuple):
    """The parts of the bits of floating-point numbers."""

    dtype: DType
    word: DType
    mask: int
    sign: Value
    biased: Value
    fraction: Value

    @classmethod
    def of(cls, x: Value) -> _Bits:
        dtype = aval_of(x).dtype
        word, limits = np.dtype(f"uint{8 * dtype.itemsize}"), finfo(dtype)
        bits = ops.bitcast_convert_type(x, word)
        mask = 2**limits.nmant - 1
        biased = ops.bitwise_and(ops.shift_right_logical(bits, limits.nmant), 2**limits.nexp - 1)
        sign = ops.bitwise_and(bits, 1 << (limits.bits - 1))
        return cls(dtype, word, mask, sign, biased, ops.bitwise_and(bits, mask))

    @property
    def is_subnormal(self) -> Value:
        return ops.bitwise_and(ops.eq(self.biased, 0), ops.ne(self.fraction, 0))

    @property
    def shift(self) -> Value:
        """By how many bits the fraction of a subnormal number must move left to be that of a normal one."""
        zeros = ops.convert_element_type(ops.clz(self.fraction), np.int32)
        return ops.sub(zeros, finfo(self.dtype).nexp)


def exponent_bias(dtype: DType) -> int:
    """The biased exponent of 1."""
    # Not by `maxexp`: dtypes without infinities use the largest exponent for numbers.
    return 1 - int(finfo(dtype).minexp)


def scale_by_power_of_two(x: Value, n: Value) -> Value:
    """`x` times 2**n for integers `n` of its shape, exact unless the result is out of range."""
    # In three steps, since 2**n itself may be out of range where x * 2**n is not.
    dtype = aval_of(x).dtype
    limits = finfo(dtype)
    n = ops.clamp(3 * limits.minexp, n, 3 * (limits.maxexp - 2))
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
    exponent = ops.convert_element_type(ops.add(n, exponent_bias(dtype)), word)
    return ops.bitcast_convert_type(ops.shift_left(exponent, limits.nmant), dtype)
