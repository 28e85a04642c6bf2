"""Exponentials, logarithms, roots and what is made of them."""

from __future__ import annotations

import math
from typing import Any

from jax.extend.mlir.dialects import stablehlo

from functx.core.samples import c64, f32, sample
from functx.ops.arithmetic import add, div, integer_pow, mul, neg
from functx.ops.comparison import eq
from functx.ops.families import Inexact
from functx.ops.selection import select


class Exp(Inexact):
    """e to the power x."""

    has_finite_derivative = True
    samples = (sample(f32[3, 4]),)

    def derivative(self, out, x):
        return out

    def lower(self, ctx, x):
        return stablehlo.exponential(x)


class Exp2(Inexact):
    """2 to the power x."""

    samples = sample(f32[3, 4]), sample(c64[3])

    def derivative(self, out, x):
        return mul(out, math.log(2.0))

    def lower(self, ctx, x):
        return stablehlo.exponential(
            stablehlo.multiply(x, ctx.constant(math.log(2.0), ctx.avals_in[0]))
        )


class Expm1(Inexact):
    """exp(x) - 1, accurate near 0."""

    samples = sample(f32[3, 4]), sample(c64[3])

    def derivative(self, out, x):
        # Not out + 1, of which nothing is left for very negative x.
        return exp(x)

    def lower(self, ctx, x):
        return stablehlo.exponential_minus_one(x)


class Log(Inexact):
    """The natural logarithm."""

    samples = (sample(f32[3, 4], domain=(0.5, 2.0)),)

    def partial(self, i, t, out, x):
        return div(t, x)

    def lower(self, ctx, x):
        return stablehlo.log(x)


class Log1p(Inexact):
    """log(1 + x), accurate near 0."""

    samples = sample(f32[3, 4], domain=(-0.5, 2.0)), sample(c64[3], domain=(0.5, 2.0))

    def partial(self, i, t, out, x):
        return div(t, add(x, 1.0))

    def lower(self, ctx, x):
        return stablehlo.log_plus_one(x)


class Sqrt(Inexact):
    """The square root; infinitely steep at 0."""

    samples = (
        sample(f32[3, 4], domain=(0.5, 2.0)),
        sample(c64[3], nonzero=(0,)),
        sample(f32[2], values={0: [0.0, 4.0]}, gradients={0: [math.inf, 0.25]}),
    )

    def partial(self, i, t, out, x):
        return div(t, mul(out, 2.0))

    def lower(self, ctx, x):
        return stablehlo.sqrt(x)


class SafeSqrt(Inexact):
    """The square root of a sum of squares, which is a norm: of 0, its derivative is 0."""

    accepts = "f"
    samples = (
        sample(f32[3, 4], domain=(0.5, 2.0)),
        sample(f32[2], values={0: [0.0, 4.0]}, gradients={0: [0.0, 0.25]}),
    )

    def partial(self, i, t, out, x):
        zero = eq(out, 0)
        return select(zero, 0, div(t, mul(select(zero, 1, out), 2.0)))

    def lower(self, ctx, x):
        return stablehlo.sqrt(x)


class Rsqrt(Inexact):
    """1 / sqrt(x)."""

    samples = sample(f32[3, 4], domain=(0.5, 2.0)), sample(c64[3], nonzero=(0,))

    def derivative(self, out, x):
        return mul(mul(out, -0.5), mul(out, out))

    def lower(self, ctx, x):
        return stablehlo.rsqrt(x)


class Cbrt(Inexact):
    """The real cube root, also of negative x; infinitely steep at 0."""

    accepts = "f"
    samples = (
        sample(f32[3, 4], nonzero=(0,)),
        sample(f32[2], values={0: [0.0, 8.0]}, gradients={0: [math.inf, 1.0 / 12.0]}),
    )

    def derivative(self, out, x):
        return mul(integer_pow(out, -2), 1.0 / 3.0)

    def lower(self, ctx, x):
        return stablehlo.cbrt(x)


class Logistic(Inexact):
    """1 / (1 + exp(-x)), the logistic sigmoid."""

    has_finite_derivative = True
    samples = sample(f32[3, 4]), sample(c64[3])

    def derivative(self, out, x):
        # 1 - out, without the cancellation for large x.
        return mul(out, logistic(neg(x)))

    def lower(self, ctx, x):
        one = ctx.constant(1, ctx.avals_in[0])
        return stablehlo.divide(one, stablehlo.add(one, stablehlo.exponential(stablehlo.negate(x))))


def exp(x: Any) -> Any:
    """e to the power x, elementwise."""
    return Exp()(x)


def exp2(x: Any) -> Any:
    """2 to the power x, elementwise."""
    return Exp2()(x)


def expm1(x: Any) -> Any:
    """exp(x) - 1, elementwise, accurate near 0."""
    return Expm1()(x)


def log(x: Any) -> Any:
    """The natural logarithm, elementwise."""
    return Log()(x)


def log1p(x: Any) -> Any:
    """log(1 + x), elementwise, accurate near 0."""
    return Log1p()(x)


def sqrt(x: Any) -> Any:
    """The square root, elementwise; infinitely steep at 0."""
    return Sqrt()(x)


def safe_sqrt(x: Any) -> Any:
    """The square root of sums of squares, elementwise; its derivative at 0 is 0."""
    return SafeSqrt()(x)


def rsqrt(x: Any) -> Any:
    """1 / sqrt(x), elementwise."""
    return Rsqrt()(x)


def cbrt(x: Any) -> Any:
    """The real cube root, elementwise, also of negative x."""
    return Cbrt()(x)


def logistic(x: Any) -> Any:
    """1 / (1 + exp(-x)), elementwise."""
    return Logistic()(x)
