"""The primitives that draw from the state of a generator, one for each standard distribution.

Each takes a fixed number of words for an element, so that two draws after one another are one draw.
Numbers of a dtype of 16 bits are computed in float32.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import ml_dtypes
import numpy as np

from functx import ops
from functx.core.errors import DTypeError
from functx.core.samples import Rounding, Sample, f32, i32, sample, u32
from functx.core.tracer import aval_of
from functx.core.types import DType, ShapedArray, is_complex, kind, real_dtype
from functx.core.typing import Value
from functx.ops.operands import literal
from functx.ops.philox import Draw, PhiloxBits
from functx.ops.random import F32

F64 = np.dtype("float64")
I32 = np.dtype("int32")


class StandardDraw(Draw, abstract=True):
    """Numbers of `dtype` with a standard distribution."""

    dtype: DType = F32
    samples: ClassVar[Sequence[Sample]] = (
        sample(u32[4], shape=(3, 3), dtype=F32),
        sample(u32[2, 4], shape=(2,), dtype=F32),
        sample(u32[4], shape=(0,), dtype=F32),
    )

    def out_dtype(self, *parameters: ShapedArray) -> DType:
        return self.dtype


class DrawUniform(StandardDraw):
    """Floating-point numbers in [0, 1), evenly spaced and equally likely."""

    label = "rand"

    def decompose(self, state: Value) -> tuple[Value, Value]:
        bits = ml_dtypes.finfo(self.dtype).nmant + 1
        if bits > 32:
            return uniform(self, state, self.dtype)
        words, state = words_of(self, state)
        return _scaled(ops.shift_right_logical(words, 32 - bits), bits, self.dtype), state


class DrawNormal(StandardDraw):
    """Real or complex numbers with the standard normal distribution."""

    label = "randn"
    rounding = Rounding()
    samples = (*StandardDraw.samples, sample(u32[4], shape=(3,), dtype=np.dtype("complex64")))

    def decompose(self, state: Value) -> tuple[Value, Value]:
        if is_complex(self.dtype):
            both, state = DrawNormal((*self.shape, 2), self.replays, real_dtype(self.dtype))(state)
            parts = [_last(both, i) for i in (0, 1)]
            return ops.div(ops.complex(*parts), math.sqrt(2.0)), state
        unit, state = symmetric_uniform(self, state, compute_dtype(self.dtype))
        out = ops.mul(ops.erf_inv(unit), math.sqrt(2.0))
        return ops.convert_element_type(out, self.dtype), state


class DrawExponential(StandardDraw):
    """Numbers with the density exp(-x) for x >= 0."""

    label = "exponential"
    rounding = Rounding()

    def decompose(self, state: Value) -> tuple[Value, Value]:
        unit, state = uniform(self, state, compute_dtype(self.dtype))
        out = ops.neg(ops.log1p(ops.neg(unit)))
        return ops.convert_element_type(out, self.dtype), state


class DrawCauchy(StandardDraw):
    """Numbers with the density 1 / (pi (1 + x^2))."""

    label = "cauchy"
    rounding = Rounding()

    def decompose(self, state: Value) -> tuple[Value, Value]:
        unit, state = symmetric_uniform(self, state, compute_dtype(self.dtype))
        out = ops.tan(ops.mul(unit, math.pi / 2))
        return ops.convert_element_type(out, self.dtype), state


class DrawBernoulli(Draw):
    """Booleans that are true with probability `p`."""

    label = "bernoulli"
    samples = (
        sample(u32[4], f32[()], shape=(3, 3), values={1: 0.4}),
        sample(u32[2, 4], f32[2, 3], shape=(3,), domain=(0.0, 1.0)),
    )

    def out_dtype(self, *parameters: ShapedArray) -> DType:
        check_probability_dtype(self, parameters[0])
        return ops.BOOL

    def decompose(self, state: Value, p: Value) -> tuple[Value, Value]:
        dtype = compute_dtype(p.dtype)
        unit, state = uniform(self, state, dtype)
        return ops.lt(unit, ops.convert_element_type(p, dtype)), state


class DrawGeometric(Draw):
    """The number of trials up to the first success, each of which has the probability `p`, as floats."""

    label = "geometric"
    rounding = Rounding()
    samples = (
        sample(u32[4], f32[()], shape=(3, 3), values={1: 0.4}),
        sample(u32[2, 4], f32[2, 3], shape=(3,), domain=(0.1, 1.0)),
    )

    def out_dtype(self, *parameters: ShapedArray) -> DType:
        return check_probability_dtype(self, parameters[0])

    def decompose(self, state: Value, p: Value) -> tuple[Value, Value]:
        dtype = compute_dtype(p.dtype)
        unit, state = uniform(self, state, dtype)
        # log(1 - u) / log(1 - p)
        failure = ops.log1p(ops.neg(ops.convert_element_type(p, dtype)))
        trials = ops.ceil(ops.div(ops.log1p(ops.neg(unit)), failure))
        return ops.convert_element_type(ops.max(trials, 1.0), p.dtype), state


class DrawIntegers(Draw):
    """Integers from `low`, each of the next `count` equally likely, but for a bias below 2^-32 of that.

    `count` has the bits of an unsigned number; 0 stands for all numbers of the dtype.
    """

    label = "randint"
    accepts: ClassVar[str] = "iu"
    samples = (
        sample(u32[4], i32[()], i32[()], shape=(3, 3), values={2: 7}),
        sample(u32[2, 4], u32[()], u32[()], shape=(2,), values={2: 9}),
    )

    def out_dtype(self, *parameters: ShapedArray) -> DType:
        low, count = parameters
        if kind(low.dtype) not in self.accepts or low.dtype != count.dtype:
            raise DTypeError(
                f"{self.name}: the parameters must be integers of one dtype; got {low!r} and {count!r}"
            )
        return low.dtype

    def decompose(self, state: Value, low: Value, count: Value) -> tuple[Value, Value]:
        own_bits, bits = low.dtype.itemsize * 8, 64 if low.dtype.itemsize > 4 else 32
        words_each, unsigned = bits // 16, np.dtype(f"uint{bits}")
        words, state = words_of(self, state, words_each)
        parts = [ops.convert_element_type(_last(words, i), unsigned) for i in range(words_each)]
        if bits == 64:
            parts = [ops.bitwise_or(ops.shift_left(parts[i], 32), parts[i + 1]) for i in (0, 2)]
        high, rest = parts
        count = ops.convert_element_type(count, np.dtype(f"uint{own_bits}"))
        count = ops.convert_element_type(count, unsigned)
        if count.ndim < high.ndim:
            count = ops.broadcast_in_dim(count, high.shape, ())
        is_whole = ops.eq(count, literal(0, unsigned))
        if own_bits < bits:
            count = ops.select(is_whole, literal(2**own_bits, unsigned), count)
        # The words are the fraction f of a number below 1; the integer is the whole part of f * count.
        low_product = ops.mul(high, count)
        total = ops.add(low_product, high_product(rest, count))
        carry = ops.convert_element_type(ops.lt(total, low_product), unsigned)
        whole = ops.add(high_product(high, count), carry)
        if own_bits == bits:
            whole = ops.select(is_whole, high, whole)
        return ops.add(ops.convert_element_type(whole, low.dtype), low), state


def high_product(x: Value, y: Value) -> Value:
    """The high half of the products of two arrays of unsigned integers, by products of halves."""
    half = x.dtype.itemsize * 4
    mask = literal(2**half - 1, x.dtype)
    (x_low, x_high), (y_low, y_high) = [
        (ops.bitwise_and(z, mask), ops.shift_right_logical(z, half)) for z in (x, y)
    ]
    middle = ops.mul(x_low, y_high), ops.mul(x_high, y_low)
    carry = ops.shift_right_logical(ops.mul(x_low, y_low), half)
    for z in middle:
        carry = ops.add(carry, ops.bitwise_and(z, mask))
    total = ops.add(ops.mul(x_high, y_high), ops.shift_right_logical(carry, half))
    for z in middle:
        total = ops.add(total, ops.shift_right_logical(z, half))
    return total


class DrawPermutation(Draw):
    """The integers below `shape[0]` in random order, each order equally likely."""

    label = "randperm"
    samples = (
        sample(u32[4], shape=(5,)),
        sample(u32[2, 4], shape=(3,)),
        sample(u32[4], shape=(0,)),
    )

    def out_dtype(self, *parameters: ShapedArray) -> DType:
        return I32

    def decompose(self, state: Value) -> tuple[Value, Value]:
        # Two words for each integer decide its place; that both tie with another's is unlikely.
        words, state = words_of(self, state, 2)
        keys = [_last(words, i) for i in (0, 1)]
        axis = keys[0].ndim - 1
        integers = ops.broadcasted_iota(I32, keys[0].shape, axis)
        return ops.sort((*keys, integers), axis, num_keys=2)[2], state


def check_probability_dtype(draw: Draw, p: ShapedArray) -> DType:
    """The dtype of a probability; DTypeError unless it is a floating-point one."""
    if kind(p.dtype) != "f":
        raise DTypeError(f"{draw.name}: a probability must be a floating-point number; got {p!r}")
    return p.dtype


def compute_dtype(dtype: DType) -> DType:
    """The dtype in which numbers of a floating-point `dtype` are computed."""
    return F64 if dtype == F64 else F32


def words_of(draw: Draw, state: Value, each: int = 1) -> tuple[Value, Value]:
    """The words of a draw, `each` for an element along a new last dimension if these are several."""
    shape = (*draw.shape, each) if each > 1 else draw.shape
    words, state = PhiloxBits(shape, draw.replays)(state)
    return words, state


def uniform(draw: Draw, state: Value, dtype: DType) -> tuple[Value, Value]:
    """Numbers in [0, 1) of float32 or float64, with a full mantissa, and the new state."""
    if dtype == F32:
        out, state = DrawUniform(draw.shape, draw.replays, dtype)(state)
        return out, state
    words, state = words_of(draw, state, 2)
    high = _scaled(ops.shift_right_logical(_last(words, 0), 5), 27, F64)
    low = _scaled(ops.shift_right_logical(_last(words, 1), 6), 53, F64)
    return ops.add(high, low), state


def symmetric_uniform(draw: Draw, state: Value, dtype: DType) -> tuple[Value, Value]:
    """Numbers in (-1, 1), without its bounds and symmetric around zero, and the new state."""
    unit, state = uniform(draw, state, dtype)
    bits = ml_dtypes.finfo(dtype).nmant + 1
    # Exact, since all numbers are odd multiples of 2^-bits.
    return ops.add(ops.sub(ops.mul(unit, 2.0), 1.0), 2.0**-bits), state


def _scaled(words: Value, bits: int, dtype: DType) -> Value:
    """Words below 2^31, as numbers of `dtype` times 2^-bits."""
    signed = ops.convert_element_type(words, I32)
    return ops.mul(ops.convert_element_type(signed, dtype), 2.0**-bits)


def _last(x: Value, i: int) -> Value:
    """The elements at position `i` of the last dimension."""
    axis = aval_of(x).ndim - 1
    return ops.squeeze(ops.slice_in_dim(x, i, i + 1, axis=axis), (axis,))
