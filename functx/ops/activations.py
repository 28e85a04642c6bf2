"""Activation functions, computed without overflow."""

from __future__ import annotations

import math

import numpy as np
from ml_dtypes import finfo

from functx import ops
from functx.core.samples import Rounding, Sample, f32, i32, sample
from functx.core.typing import ArrayLike, Mask, NumPyArray, Tangent, Value
from functx.ops.families import RealFunction, Unary, unary_function
from functx.ops.operands import literal

GELU_CUBIC = 0.044715
GELU_SCALE = math.sqrt(2 / math.pi)


class Relu(Unary):
    """The larger of x and 0; the derivative at 0 is 0."""

    has_finite_derivative = True
    accepts = "biuf"
    samples = (
        sample(f32[3, 4]),
        sample(f32[3], values={0: [-1.0, 0.0, 2.0]}, gradients={0: [0.0, 0.0, 1.0]}),
        sample(i32[3]),
    )

    def partial(self, i: int, t: Value, out: Value, *args: Value) -> Tangent:
        # The output is zero where the operand is at most zero; it is needed anyway, as a residual.
        return ops.select(ops.le(out, literal(0, out.dtype)), literal(0, t.dtype), t)

    def nonzero_derivative_mask(self, i: int, *args: Value) -> Mask:
        return ops.bitwise_not(ops.le(args[0], literal(0, args[0].dtype)))

    def preserves_zero(self, i: int, *args: Value) -> bool:
        return True

    def numpy(self, x: NumPyArray) -> ArrayLike:
        return np.where(x <= 0, 0, x)

    def decompose(self, x: Value) -> Value:
        # A comparison rather than a maximum: nan stays nan, and a tie with 0 takes the 0.
        zero = literal(0, x.dtype)
        return ops.select(ops.le(x, zero), zero, x)


class Softplus(RealFunction):
    """log(1 + exp(x)), without overflow."""

    has_finite_derivative = True
    samples = (
        sample(f32[3, 4]),
        sample(f32[3], values={0: [0.0, 100.0, -100.0]}, gradients={0: [0.5, 1.0, 0.0]}),
    )

    def derivative(self, out: Value, x: Value) -> Value:
        return ops.logistic(x)

    def numpy(self, x: NumPyArray) -> ArrayLike:
        return np.logaddexp(x, 0)

    def decompose(self, x: Value) -> Value:
        return ops.add(ops.max(x, 0), ops.log1p(ops.exp(ops.neg(ops.abs(x)))))


class LogSigmoid(RealFunction):
    """-log(1 + exp(-x)), without overflow."""

    has_finite_derivative = True
    samples = (
        sample(f32[3, 4]),
        sample(f32[3], values={0: [0.0, 1000.0, -1000.0]}, gradients={0: [0.5, 0.0, 1.0]}),
    )

    def derivative(self, out: Value, x: Value) -> Value:
        return ops.logistic(ops.neg(x))

    def numpy(self, x: NumPyArray) -> ArrayLike:
        return -np.logaddexp(0.0, -x)

    def decompose(self, x: Value) -> Value:
        return ops.sub(ops.min(x, 0), ops.log1p(ops.exp(ops.neg(ops.abs(x)))))


class LogCosh(RealFunction):
    """log(cosh(x)), without overflow, and without cancellation near 0."""

    has_finite_derivative = True
    rounding = Rounding(is_absolute=True)
    samples = (
        sample(f32[3, 4]),
        sample(f32[3], values={0: [0.0, 1000.0, -1000.0]}, gradients={0: [0.0, 1.0, -1.0]}),
    )

    def derivative(self, out: Value, x: Value) -> Value:
        return ops.tanh(x)

    def numpy(self, x: NumPyArray) -> ArrayLike:
        return np.abs(x) + np.log1p(0.5 * np.expm1(-2.0 * np.abs(x)))

    def decompose(self, x: Value) -> Value:
        # Far from 0 the sum of exponentials is 2 exp(|x|) (1 + (exp(-2 |x|) - 1) / 2), and near 0
        # cosh(x)**-2 is 1 - tanh(x)**2.
        size = ops.abs(x)
        near = ops.lt(size, 1.0)
        tail = ops.mul(ops.expm1(ops.mul(size, -2.0)), 0.5)
        logarithm = ops.log1p(ops.select(near, ops.neg(ops.square(ops.tanh(x))), tail))
        return ops.select(near, ops.mul(logarithm, -0.5), ops.add(size, logarithm))


def _samples_with_slope(at_zero: float) -> tuple[Sample, ...]:
    """Samples of a function with this slope at 0, and 0 and 1 far below and far above."""
    values, slopes = [-math.inf, 0.0, 1000.0, math.inf], [0.0, at_zero, 1.0, 1.0]
    return sample(f32[3, 4]), sample(f32[4], values={0: values}, gradients={0: slopes})


def clamp_magnitude(x: Value, bound: float) -> Value:
    """`x` between `-bound` and `bound`, or the largest number of its dtype if that is less."""
    bound = min(bound, float(finfo(x.dtype).max))
    return ops.clamp(-bound, x, bound)


class Silu(RealFunction):
    """x / (1 + exp(-x))."""

    has_finite_derivative = True
    samples = _samples_with_slope(0.5)

    def derivative(self, out: Value, x: Value) -> Value:
        # s (1 + x (1 - s)) for the sigmoid s
        s = ops.logistic(x)
        return ops.mul(s, ops.add(ops.mul(clamp_magnitude(x, 1000.0), ops.sub(1.0, s)), 1.0))

    def decompose(self, x: Value) -> Value:
        return ops.mul(x, ops.logistic(x))


class Mish(RealFunction):
    """x tanh(log(1 + exp(x)))."""

    has_finite_derivative = True
    samples = _samples_with_slope(0.6)

    def derivative(self, out: Value, x: Value) -> Value:
        # t + x s (1 - t^2) for the sigmoid s and t = tanh(log(1 + exp(x)))
        t = ops.tanh(softplus(x))
        x = clamp_magnitude(x, 1000.0)
        return ops.add(t, ops.mul(ops.mul(x, ops.logistic(x)), ops.sub(1.0, ops.mul(t, t))))

    def numpy(self, x: NumPyArray) -> ArrayLike:
        return x * np.tanh(np.logaddexp(0.0, x))

    def decompose(self, x: Value) -> Value:
        return ops.mul(x, ops.tanh(softplus(x)))


class Gelu(RealFunction):
    """x times the normal distribution function at x, or its tanh approximation if `approximate`."""

    has_finite_derivative = True
    approximate: bool
    samples = (
        sample(f32[3, 4], approximate=True),
        sample(f32[3, 4], approximate=False),
        *[
            sample(
                f32[5],
                approximate=approximate,
                values={0: [-math.inf, -1e30, 0.0, 1e30, math.inf]},
                gradients={0: [0.0, 0.0, 0.5, 1.0, 1.0]},
                dtypes=("f64", "f32", "bf16"),
            )
            for approximate in (True, False)
        ],
    )

    def derivative(self, out: Value, x: Value) -> Value:
        # d(x F(x)) = F(x) + x F'(x), which is 0 or 1 beyond 100, where powers may overflow.
        x = clamp_magnitude(x, 100.0)
        if not self.approximate:
            density = ops.mul(ops.exp(ops.mul(ops.mul(x, x), -0.5)), 1 / math.sqrt(2 * math.pi))
            return ops.add(self.normal_cdf(x), ops.mul(x, density))
        cdf = self.normal_cdf(x)
        slope = ops.mul(ops.add(ops.mul(ops.mul(x, x), 3 * GELU_CUBIC), 1.0), 2 * GELU_SCALE)
        return ops.add(cdf, ops.mul(x, ops.mul(ops.mul(cdf, ops.sub(1.0, cdf)), slope)))

    def decompose(self, x: Value) -> Value:
        return ops.mul(x, self.normal_cdf(x))

    def normal_cdf(self, x: Value) -> Value:
        if self.approximate:
            # (1 + tanh(u)) / 2 is logistic(2 u), which keeps its digits for very negative u.
            return ops.logistic(self.sigmoid_argument(x))
        return ops.mul(ops.erfc(ops.mul(x, -math.sqrt(0.5))), 0.5)

    def sigmoid_argument(self, x: Value) -> Value:
        # 2 sqrt(2 / pi) (x + 0.044715 x^3)
        return ops.mul(ops.add(x, ops.mul(ops.mul(ops.mul(x, x), x), GELU_CUBIC)), 2 * GELU_SCALE)


def gelu(x: ArrayLike, approximate: bool = True) -> Value:
    """x times the normal distribution function at x, or its tanh approximation if `approximate`."""
    return Gelu(approximate)(x)


relu = unary_function(Relu)
softplus = unary_function(Softplus)
log_sigmoid = unary_function(LogSigmoid)
log_cosh = unary_function(LogCosh)
silu = unary_function(Silu)
mish = unary_function(Mish)
