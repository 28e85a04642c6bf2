"""Random numbers: each distribution is one composite, made of random bits and elementwise ops.

The numbers are those that `jax.random` draws with the same key, shape and dtype.
"""

from __future__ import annotations

import builtins
import math
from typing import Any, ClassVar

import ml_dtypes
import numpy as np

from functx.core.avals import Shape, ShapedArray
from functx.core.dtypes import DType, is_complex, real_dtype
from functx.core.errors import ShapeError
from functx.core.primitive import Primitive
from functx.core.samples import Sample, f32, i32, sample, u32
from functx.core.tracing import aval_of
from functx.ops.arithmetic import BOOL, abs, add, div, max, mul, neg, nextafter, rem, sign, sub
from functx.ops.comparison import lt
from functx.ops.complexes import complex
from functx.ops.conversion import bitcast_convert_type, convert_element_type
from functx.ops.exponential import log, log1p
from functx.ops.families import check_same_dtype
from functx.ops.logical import bitwise_or, shift_right_logical
from functx.ops.operands import literal
from functx.ops.random_bits import UINT32, check_key, random_bits, random_fold_in
from functx.ops.selection import clamp, select
from functx.ops.shaping import full, moveaxis, squeeze
from functx.ops.slicing import slice_in_dim
from functx.ops.sorting import sort
from functx.ops.special import erf, erf_inv
from functx.ops.trigonometric import tan

F32 = np.dtype("float32")


class StandardDistribution(Primitive, abstract=True):
    """Numbers of `dtype`, one drawn at each index of `shape` for each key of a batch."""

    shape: Shape
    dtype: DType
    differentiable = False
    samples: ClassVar[tuple[Sample, ...]] = (
        sample(u32[2], shape=(3, 4), dtype=F32),
        sample(u32[3, 2], shape=(2,), dtype=F32),
        sample(u32[2], shape=(0,), dtype=F32),
    )

    def abstract_eval(self, key):
        check_key(self, key)
        return ShapedArray((*key.shape[:-1], *self.shape), self.dtype)

    def batch(self, args, dims):
        return self(moveaxis(args[0], dims[0], 0)), 0


class ParametricDistribution(Primitive, abstract=True):
    """Values drawn at each index of `shape` for each key of a batch, with parameters.

    Those are operands of one dtype: scalars, or arrays of the shape of the result. The
    result has that dtype too.
    """

    shape: Shape
    accepts: ClassVar[str] = "f"

    def abstract_eval(self, key, *parameters):
        check_key(self, key)
        check_same_dtype(self, parameters)
        shape = (*key.shape[:-1], *self.shape)
        for parameter in parameters:
            if parameter.shape not in ((), shape):
                raise ShapeError(
                    f"{self.name}: parameters must be scalars or have the shape {shape} of the "
                    f"result; got {parameter!r}"
                )
        return ShapedArray(shape, self.out_dtype(parameters[0].dtype))

    def out_dtype(self, dtype: DType) -> DType:
        """The dtype of the result, given that of the parameters."""
        return dtype


class RandomUniform(StandardDistribution):
    """Floating point numbers in [0, 1), evenly spaced and equally likely."""

    def decompose(self, key):
        info = ml_dtypes.finfo(self.dtype)
        unsigned = np.dtype(f"uint{info.bits}")
        # Random bits for the mantissa of numbers in [1, 2). A short mantissa needs a byte.
        drawn = np.dtype("uint8") if info.nmant < 8 else unsigned
        words = convert_element_type(random_bits(key, self.shape, drawn), unsigned)
        mantissa = shift_right_logical(words, drawn.itemsize * 8 - info.nmant)
        one = int(np.ones((), self.dtype).view(unsigned))
        return sub(bitcast_convert_type(bitwise_or(mantissa, one), self.dtype), 1.0)


class RandomUniformBetween(ParametricDistribution):
    """Floating point numbers in [low, high)."""

    samples = (
        sample(u32[2], f32[()], f32[()], shape=(3, 4)),
        sample(u32[2], f32[3], f32[()], shape=(3,)),
        sample(u32[3, 2], f32[()], f32[()], shape=(2,)),
    )

    def decompose(self, key, low, high):
        unit = random_uniform(key, self.shape, low.dtype)
        return max(low, add(mul(unit, sub(high, low)), low))


class RandomNormal(StandardDistribution):
    """Real or complex numbers with the standard normal distribution."""

    def decompose(self, key):
        if is_complex(self.dtype):
            real = real_dtype(self.dtype)
            parts = [RandomNormal(self.shape, real)(subkey(key, i)) for i in (0, 1)]
            return div(complex(*parts), math.sqrt(2.0))
        # sqrt(2) erf_inv(u) for u in (-1, 1)
        lowest = np.nextafter(np.array(-1.0, self.dtype), np.array(0.0, self.dtype))
        unit = random_uniform(key, self.shape, self.dtype, float(lowest), 1.0)
        return mul(erf_inv(unit), math.sqrt(2.0))


class RandomTruncatedNormal(ParametricDistribution):
    """Numbers with the standard normal distribution, given that they lie in (low, high)."""

    samples = (
        sample(u32[2], f32[()], f32[()], shape=(3, 4), values={1: -1.0, 2: 1.5}),
        sample(u32[2], f32[2], f32[()], shape=(2,), values={1: [-2.0, 0.0], 2: 1.0}),
    )

    def decompose(self, key, low, high):
        root = math.sqrt(2.0)
        bounds = [erf(div(x, root)) for x in (low, high)]
        drawn = mul(erf_inv(random_uniform(key, self.shape, low.dtype, *bounds)), root)
        # Rounding must not reach the bounds; how they move does not move the numbers.
        inside = [nextafter(low, math.inf), nextafter(high, -math.inf)]
        return clamp(inside[0], drawn, inside[1])


class RandomExponential(StandardDistribution):
    """Numbers with the density exp(-x) for x >= 0."""

    def decompose(self, key):
        return neg(log1p(neg(random_uniform(key, self.shape, self.dtype))))


class RandomLaplace(StandardDistribution):
    """Numbers with the density exp(-|x|) / 2."""

    def decompose(self, key):
        lowest = -1.0 + float(ml_dtypes.finfo(self.dtype).epsneg)
        unit = random_uniform(key, self.shape, self.dtype, lowest, 1.0)
        return mul(sign(unit), log1p(neg(abs(unit))))


class RandomLogistic(StandardDistribution):
    """Numbers whose distribution function is the logistic sigmoid."""

    def decompose(self, key):
        unit = random_uniform(key, self.shape, self.dtype, _smallest_normal(self.dtype), 1.0)
        return sub(log(unit), log1p(neg(unit)))


class RandomCauchy(StandardDistribution):
    """Numbers with the density 1 / (pi (1 + x^2))."""

    def decompose(self, key):
        smallest = float(ml_dtypes.finfo(self.dtype).eps)
        unit = random_uniform(key, self.shape, self.dtype, smallest, 1.0)
        return tan(mul(sub(unit, 0.5), math.pi))


class RandomGumbel(StandardDistribution):
    """Numbers with the distribution function exp(-exp(-x)).

    With `fine`, each takes two draws, so that rare large numbers are as fine as small ones.
    """

    fine: bool = False
    samples = *StandardDistribution.samples, sample(u32[2], shape=(3,), dtype=F32, fine=True)

    def decompose(self, key):
        if not self.fine:
            unit = random_uniform(key, self.shape, self.dtype, _smallest_normal(self.dtype), 1.0)
            return neg(log(neg(log(unit))))
        high, low = uniform_pair(key, self.shape, self.dtype)
        step = 2.0 ** -ml_dtypes.finfo(self.dtype).nmant
        detailed = add(add(high, mul(low, step)), _smallest_normal(self.dtype))
        x = select(lt(high, 0.5), detailed, high)
        return neg(log(neg(log1p(neg(x)))))


class RandomBernoulli(ParametricDistribution):
    """Booleans that are true with probability `p`, one at each index of `shape`.

    With `fine`, each takes two draws, so that small probabilities are met more closely.
    """

    fine: bool = False
    differentiable = False
    samples = (
        sample(u32[2], f32[()], shape=(3, 4), domain=(0.0, 1.0)),
        sample(u32[2], f32[3], shape=(3,), fine=True, domain=(0.0, 1.0)),
    )

    def out_dtype(self, dtype):
        return BOOL

    def decompose(self, key, p):
        if not self.fine:
            return lt(random_uniform(key, self.shape, p.dtype), p)
        first, second = uniform_pair(key, self.shape, p.dtype)
        step = 2.0 ** -ml_dtypes.finfo(p.dtype).nmant
        return lt(mul(second, step), sub(p, first))


class RandomIntegers(ParametricDistribution):
    """Integers from `low`, each of the next `count` equally likely.

    `count` has the bits of an unsigned number; 0 stands for all numbers of the dtype.
    """

    accepts = "iu"
    differentiable = False
    samples = (
        sample(u32[2], i32[()], i32[()], shape=(3, 4), values={2: 7}),
        sample(u32[3, 2], u32[()], u32[()], shape=(2,), values={2: 9}),
    )

    def decompose(self, key, low, count):
        bits = low.dtype.itemsize * 8
        unsigned = np.dtype(f"uint{bits}")
        count = convert_element_type(count, unsigned)
        high_bits, low_bits = [random_bits(subkey(key, i), self.shape, unsigned) for i in (0, 1)]
        # (high * 2^bits + low) mod count, where 2^bits mod count is a square of remainders.
        root = rem(literal(2 ** (bits // 2), unsigned), count)
        offset = add(mul(rem(high_bits, count), rem(mul(root, root), count)), rem(low_bits, count))
        return add(convert_element_type(rem(offset, count), low.dtype), low)


class RandomShuffle(Primitive):
    """`x` with its elements along `axis` in random order, each vector in an order of its own."""

    axis: int
    samples = sample(u32[2], f32[5], axis=0), sample(u32[2], f32[3, 4], axis=1)

    def abstract_eval(self, key, x):
        check_key(self, key)
        return x

    def decompose(self, key, x):
        # Elements sorted by random words that may tie: enough rounds make a lasting tie unlikely.
        rounds = math.ceil(3 * math.log(builtins.max(1, x.size)) / math.log(2**32 - 1))
        for _ in range(rounds):
            key, words_key = subkey(key, 0), subkey(key, 1)
            _, x = sort((random_bits(words_key, x.shape), x), self.axis)
        return x


def subkey(key: Any, i: int) -> Any:
    """The key (for each of a batch) that `split` gives at position `i`."""
    lanes = aval_of(key).shape[:-1]
    position = literal(i, UINT32)
    return random_fold_in(key, full(lanes, position) if lanes else position)


def uniform_pair(key: Any, shape: Shape, dtype: DType) -> list[Any]:
    """Two independent arrays of `shape` of uniform numbers in [0, 1)."""
    lanes = aval_of(key).ndim - 1
    both = random_uniform(key, (2, *shape), dtype)
    halves = [slice_in_dim(both, i, i + 1, axis=lanes) for i in (0, 1)]
    return [squeeze(half, (lanes,)) for half in halves]


def _smallest_normal(dtype: DType) -> float:
    return float(ml_dtypes.finfo(dtype).tiny)


def random_uniform(key: Any, shape: Shape, dtype: DType, low: Any = 0.0, high: Any = 1.0) -> Any:
    """Floating point numbers in [low, high)."""
    if type(low) is float and type(high) is float:
        if (low, high) == (0.0, 1.0):
            return RandomUniform(shape, dtype)(key)
        low, high = literal(low, dtype), literal(high, dtype)
    return RandomUniformBetween(shape)(key, low, high)
