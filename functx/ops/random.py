"""Draws from distributions by a key, the shuffles of a key, and dropout."""

from __future__ import annotations

import builtins
import math
from collections.abc import Sequence
from typing import ClassVar

import ml_dtypes
import numpy as np

from functx import ops
from functx.core.errors import ShapeError, ValueRangeError
from functx.core.primitive import Primitive
from functx.core.samples import Rounding, Sample, f32, i32, sample, u32
from functx.core.tracer import aval_of
from functx.core.types import (
    DType,
    Shape,
    ShapedArray,
    canonical_dtype,
    is_complex,
    real_dtype,
    threefry_partitionable,
)
from functx.core.typing import ArrayLike, Cotangent, Value, Values
from functx.ops.families import MapsLastDims, TransposedByVJP, check_same_dtype
from functx.ops.operands import check_parameter_shapes, literal
from functx.ops.philox import UINT32
from functx.ops.threefry import check_key, draw, random_bits, random_fold_in, random_split

F32 = np.dtype("float32")


class StandardDistribution(MapsLastDims, abstract=True):
    """Numbers of `dtype`, one drawn at each index of `shape` for each key of a batch."""

    shape: Shape
    size_fields = ("shape",)
    dtype: DType
    partitionable: bool = True
    differentiable = False
    samples: ClassVar[tuple[Sample, ...]] = (
        sample(u32[2], shape=(3, 4), dtype=F32),
        sample(u32[3, 2], shape=(2,), dtype=F32),
        sample(u32[2], shape=(0,), dtype=F32),
    )

    def abstract_eval(self, key: ShapedArray) -> ShapedArray:
        check_key(self, key)
        return ShapedArray((*key.shape[:-1], *self.shape), self.dtype)


class ParametricDistribution(Primitive, abstract=True):
    """Values drawn at each index of `shape` for each key of a batch, with parameters.

    The parameters are operands of one dtype: scalars, or arrays of the shape of the result. The
    result has the same dtype.
    """

    shape: Shape
    size_fields = ("shape",)
    partitionable: bool = True
    accepts: ClassVar[str] = "f"

    def abstract_eval(self, key: ShapedArray, *parameters: ShapedArray) -> ShapedArray:
        check_key(self, key)
        check_same_dtype(self, parameters)
        shape = (*key.shape[:-1], *self.shape)
        check_parameter_shapes(self.name, parameters, shape)
        return ShapedArray(shape, self.out_dtype(parameters[0].dtype))

    def out_dtype(self, dtype: DType) -> DType:
        """The dtype of the result, given that of the parameters."""
        return dtype


class RandomUniform(StandardDistribution):
    """Floating point numbers in [0, 1), evenly spaced and equally likely."""

    def decompose(self, key: Value) -> Value:
        info = ml_dtypes.finfo(self.dtype)
        unsigned = np.dtype(f"uint{info.bits}")
        # Random bits for the mantissa of numbers in [1, 2). A short mantissa needs a byte.
        drawn = np.dtype("uint8") if info.nmant < 8 else unsigned
        words = ops.convert_element_type(random_bits(key, self.shape, drawn), unsigned)
        mantissa = ops.shift_right_logical(words, drawn.itemsize * 8 - info.nmant)
        one = int(np.ones((), self.dtype).view(unsigned))
        return ops.sub(ops.bitcast_convert_type(ops.bitwise_or(mantissa, one), self.dtype), 1.0)


class RandomUniformBetween(ParametricDistribution):
    """Floating point numbers in [low, high)."""

    rounding = Rounding()
    samples = (
        sample(u32[2], f32[()], f32[()], shape=(3, 4)),
        sample(u32[2], f32[3], f32[()], shape=(3,)),
        sample(u32[3, 2], f32[()], f32[()], shape=(2,)),
    )

    def decompose(self, key: Value, low: Value, high: Value) -> Value:
        unit = random_uniform(key, self.shape, low.dtype)
        return ops.max(low, ops.add(ops.mul(unit, ops.sub(high, low)), low))


class RandomNormal(StandardDistribution):
    """Real or complex numbers with the standard normal distribution."""

    def decompose(self, key: Value) -> Value:
        if is_complex(self.dtype):
            real = real_dtype(self.dtype)
            parts = [draw(RandomNormal(self.shape, real), subkey(key, i)) for i in (0, 1)]
            return ops.div(ops.complex(*parts), math.sqrt(2.0))
        # sqrt(2) erf_inv(u) for u in (-1, 1)
        lowest = np.nextafter(np.array(-1.0, self.dtype), np.array(0.0, self.dtype))
        unit = random_uniform(key, self.shape, self.dtype, float(lowest), 1.0)
        return ops.mul(ops.erf_inv(unit), math.sqrt(2.0))


class RandomTruncatedNormal(ParametricDistribution):
    """Numbers with the standard normal distribution truncated to (low, high)."""

    rounding = Rounding()
    samples = (
        sample(u32[2], f32[()], f32[()], shape=(3, 4), values={1: -1.0, 2: 1.5}),
        sample(u32[2], f32[2], f32[()], shape=(2,), values={1: [-2.0, 0.0], 2: 1.0}),
    )

    def decompose(self, key: Value, low: Value, high: Value) -> Value:
        root = math.sqrt(2.0)
        bounds = [ops.erf(ops.div(x, root)) for x in (low, high)]
        drawn = ops.mul(ops.erf_inv(random_uniform(key, self.shape, low.dtype, *bounds)), root)
        # Rounding must not reach the bounds; how they move does not move the numbers.
        inside = [ops.nextafter(low, math.inf), ops.nextafter(high, -math.inf)]
        return ops.clamp(inside[0], drawn, inside[1])


class RandomExponential(StandardDistribution):
    """Numbers with the density exp(-x) for x >= 0."""

    def decompose(self, key: Value) -> Value:
        return ops.neg(ops.log1p(ops.neg(random_uniform(key, self.shape, self.dtype))))


class RandomLaplace(StandardDistribution):
    """Numbers with the density exp(-|x|) / 2."""

    def decompose(self, key: Value) -> Value:
        lowest = -1.0 + float(ml_dtypes.finfo(self.dtype).epsneg)
        unit = random_uniform(key, self.shape, self.dtype, lowest, 1.0)
        return ops.mul(ops.sign(unit), ops.log1p(ops.neg(ops.abs(unit))))


class RandomLogistic(StandardDistribution):
    """Numbers whose distribution function is the logistic sigmoid."""

    def decompose(self, key: Value) -> Value:
        unit = random_uniform(key, self.shape, self.dtype, _smallest_normal(self.dtype), 1.0)
        return ops.sub(ops.log(unit), ops.log1p(ops.neg(unit)))


class RandomCauchy(StandardDistribution):
    """Numbers with the density 1 / (pi (1 + x^2))."""

    def decompose(self, key: Value) -> Value:
        smallest = float(ml_dtypes.finfo(self.dtype).eps)
        unit = random_uniform(key, self.shape, self.dtype, smallest, 1.0)
        return ops.tan(ops.mul(ops.sub(unit, 0.5), math.pi))


class RandomGumbel(StandardDistribution):
    """Numbers with the distribution function exp(-exp(-x)).

    In the modes "high" and "highest" each takes two draws, so that rare large numbers are as fine as small
    ones. "highest" is that of 64 random bits, for single precision alone; else it is "high".
    """

    mode: str = "low"
    samples = (
        *StandardDistribution.samples,
        sample(u32[2], shape=(3,), dtype=F32, mode="high"),
        sample(u32[2], shape=(3,), dtype=F32, mode="highest"),
    )

    def decompose(self, key: Value) -> Value:
        if self.mode == "low":
            unit = random_uniform(key, self.shape, self.dtype, _smallest_normal(self.dtype), 1.0)
            return ops.neg(ops.log(ops.neg(ops.log(unit))))
        if self.mode == "highest" and self.dtype == F32:
            return self.of_64_bits(key)
        high, low = uniform_pair(key, self.shape, self.dtype)
        step = 2.0 ** -ml_dtypes.finfo(self.dtype).nmant
        detailed = ops.add(ops.add(high, ops.mul(low, step)), _smallest_normal(self.dtype))
        x = ops.select(ops.lt(high, 0.5), detailed, high)
        return ops.neg(ops.log(ops.neg(ops.log1p(ops.neg(x)))))

    def of_64_bits(self, key: Value) -> Value:
        """The numbers for uniform u of 64 bits; from u = 1/2 on they are computed from 1 - u."""
        high, low = halves(random_bits(key, (2, *self.shape)), aval_of(key).ndim - 1)
        is_small = ops.lt(high, literal(2**31, UINT32))
        carry = ops.convert_element_type(ops.eq(low, literal(0, UINT32)), UINT32)
        complement = ops.add(ops.bitwise_not(high), carry), ops.neg(low)
        words = [ops.select(is_small, x, y) for x, y in zip((high, low), complement, strict=True)]
        x = float_of_fraction(*words)
        log = ops.select(is_small, ops.log1p(ops.neg(x)), ops.log(x))
        return ops.neg(ops.log(ops.neg(log)))


class RandomBernoulli(ParametricDistribution):
    """Booleans that are true with probability `p`, one at each index of `shape`.

    With `fine`, each takes two draws, so that small probabilities are more exact.
    """

    fine: bool = False
    differentiable = False
    samples = (
        sample(u32[2], f32[()], shape=(3, 4), domain=(0.0, 1.0)),
        sample(u32[2], f32[3], shape=(3,), fine=True, domain=(0.0, 1.0)),
    )

    def out_dtype(self, dtype: DType) -> DType:
        return ops.BOOL

    def decompose(self, key: Value, p: Value) -> Value:
        if not self.fine:
            return ops.lt(random_uniform(key, self.shape, p.dtype), p)
        first, second = uniform_pair(key, self.shape, p.dtype)
        step = 2.0 ** -ml_dtypes.finfo(p.dtype).nmant
        return ops.lt(ops.mul(second, step), ops.sub(p, first))


class RandomIntegers(ParametricDistribution):
    """Integers from `low`, each of the next `count` equally likely.

    `count` has the bits of an unsigned number; 0 stands for all numbers of the dtype.
    """

    accepts: ClassVar[str] = "iu"
    differentiable = False
    samples = (
        sample(u32[2], i32[()], i32[()], shape=(3, 4), values={2: 7}),
        sample(u32[3, 2], u32[()], u32[()], shape=(2,), values={2: 9}),
    )

    def decompose(self, key: Value, low: Value, count: Value) -> Value:
        bits = low.dtype.itemsize * 8
        unsigned = np.dtype(f"uint{bits}")
        count = ops.convert_element_type(count, unsigned)
        high_bits, low_bits = [random_bits(subkey(key, i), self.shape, unsigned) for i in (0, 1)]
        # (high * 2^bits + low) mod count, where 2^bits mod count is a square of remainders.
        root = ops.rem(literal(2 ** (bits // 2), unsigned), count)
        offset = ops.add(
            ops.mul(ops.rem(high_bits, count), ops.rem(ops.mul(root, root), count)),
            ops.rem(low_bits, count),
        )
        return ops.add(ops.convert_element_type(ops.rem(offset, count), low.dtype), low)


class RandomShuffle(Primitive):
    """`x` with its elements along `axis` in random order, independent for each vector."""

    axis: int
    partitionable: bool = True
    samples = sample(u32[2], f32[5], axis=0), sample(u32[2], f32[3, 4], axis=1)

    def abstract_eval(self, key: ShapedArray, x: ShapedArray) -> ShapedArray:
        check_key(self, key)
        return x

    def decompose(self, key: Value, x: Value) -> Value:
        # Elements are sorted by random words that may tie: with enough rounds a tie in all is unlikely.
        rounds = math.ceil(3 * math.log(builtins.max(1, x.size)) / math.log(2**32 - 1))
        for _ in range(rounds):
            key, words_key = subkey(key, 0), subkey(key, 1)
            _, x = ops.sort((random_bits(words_key, x.shape), x), self.axis)
        return x


def subkey(key: Value, i: int, num: int = 2) -> Value:
    """The key at position `i` of the result of `split` into `num` keys, for each key of a batch."""
    batch_shape = aval_of(key).shape[:-1]
    if not threefry_partitionable():
        axis = len(batch_shape)
        return ops.squeeze(
            ops.slice_in_dim(random_split(key, (num,)), i, i + 1, axis=axis), (axis,)
        )
    position = literal(i, UINT32)
    return random_fold_in(key, ops.full(batch_shape, position) if batch_shape else position)


def uniform_pair(key: Value, shape: Shape, dtype: DType) -> list[Value]:
    """Two independent arrays of `shape` of uniform numbers in [0, 1)."""
    batch_ndim = aval_of(key).ndim - 1
    return halves(random_uniform(key, (2, *shape), dtype), batch_ndim)


def halves(x: Value, axis: int) -> list[Value]:
    """The two slices of `x` along `axis`, which has the length 2."""
    return [ops.squeeze(ops.slice_in_dim(x, i, i + 1, axis=axis), (axis,)) for i in (0, 1)]


def float_of_fraction(high: Value, low: Value) -> Value:
    """The binary fraction of the 64 bits of two words in single precision, rounded down; for 0, 2^-65."""
    in_low = ops.eq(high, literal(0, UINT32))
    zeros = ops.select(in_low, ops.clz(low), ops.clz(high))
    next_bits = ops.shift_right_logical(low, ops.sub(literal(32, UINT32), zeros))
    shifted = ops.bitwise_or(ops.shift_left(high, zeros), next_bits)
    mantissa = ops.select(in_low, ops.shift_left(low, zeros), shifted)
    mantissa = ops.bitwise_and(ops.shift_right_logical(mantissa, 8), literal(2**23 - 1, UINT32))
    zeros = ops.select(in_low, ops.add(zeros, literal(32, UINT32)), zeros)
    exponent = ops.shift_left(ops.sub(literal(126, UINT32), zeros), 23)
    return ops.bitcast_convert_type(ops.bitwise_or(exponent, mantissa), F32)


def _smallest_normal(dtype: DType) -> float:
    return float(ml_dtypes.finfo(dtype).tiny)


def random_uniform(
    key: ArrayLike, shape: Shape, dtype: DType, low: ArrayLike = 0.0, high: ArrayLike = 1.0
) -> Value:
    """Floating point numbers in [low, high)."""
    if type(low) is float and type(high) is float:
        if (low, high) == (0.0, 1.0):
            return draw(RandomUniform(shape, dtype), key)
        low, high = literal(low, dtype), literal(high, dtype)
    return draw(RandomUniformBetween(shape), key, low, high)


class Dropout(TransposedByVJP):
    """`x / (1 - rate)` with probability 1 - rate, independently for each element, else 0.

    It is linear in `x`. A derivative draws the same mask again from the key, without residuals.
    """

    rate: float
    partitionable: bool = True
    accepts: ClassVar[str] = "f"
    samples = (
        sample(f32[3, 4], u32[2], rate=0.4),
        sample(f32[3], u32[2], rate=1.0),
    )

    def abstract_eval(self, x: ShapedArray, key: ShapedArray) -> ShapedArray:
        if not 0 <= self.rate <= 1:
            raise ValueRangeError(
                f"{self.name}: rate must be a probability, from 0 to 1; got {self.rate}"
            )
        check_same_dtype(self, (x,))
        check_key(self, key)
        if key.ndim != 1:
            raise ShapeError(
                f"{self.name}: the key must be one key, u32[2]; got {key!r}",
                fix="Use vmap to draw with an array of keys.",
            )
        return x

    def decompose(self, x: Value, key: Value) -> Value:
        if self.rate == 1:
            return ops.zeros_like(x)
        kept = draw(RandomBernoulli(x.shape), key, literal(1.0 - self.rate, canonical_dtype(float)))
        return ops.select(kept, ops.div(x, 1.0 - self.rate), 0.0)

    def vjp(
        self, ct: Value, out: Value, args: Values, active: Sequence[bool]
    ) -> Sequence[Cotangent]:
        return self(ct, args[1]), None
