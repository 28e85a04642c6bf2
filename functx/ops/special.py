"""Special functions: error functions, and the gamma function's logarithm and derivatives."""

from __future__ import annotations

import math
from typing import Any

from jax.extend.mlir.dialects import chlo

from functx.core.avals import ShapedArray
from functx.core.dtypes import is_integer
from functx.core.errors import MissingRuleError
from functx.core.samples import f32, i32, sample
from functx.ops.arithmetic import add, div, mul, neg, square, sub
from functx.ops.comparison import lt
from functx.ops.exponential import exp
from functx.ops.families import Binary, Inexact, check_same_dtype, elementwise_shape
from functx.ops.operands import match
from functx.ops.selection import select
from functx.ops.trigonometric import sin


class Erf(Inexact):
    """The error function, 2 / sqrt(pi) times the integral of exp(-t**2) from 0 to x."""

    accepts = "f"
    samples = (sample(f32[3, 4]),)

    def derivative(self, out, x):
        return mul(exp(neg(square(x))), 2.0 / math.sqrt(math.pi))

    def lower(self, ctx, x):
        return chlo.erf(x)


class Erfc(Inexact):
    """1 - erf(x), accurate for large x."""

    accepts = "f"
    samples = (sample(f32[3, 4]),)

    def derivative(self, out, x):
        return mul(exp(neg(square(x))), -2.0 / math.sqrt(math.pi))

    def lower(self, ctx, x):
        return chlo.erfc(x)


class ErfInv(Inexact):
    """The inverse of erf, on [-1, 1]."""

    accepts = "f"
    samples = (sample(f32[3, 4], domain=(-0.8, 0.8)),)

    def derivative(self, out, x):
        return mul(exp(square(out)), math.sqrt(math.pi) / 2.0)

    def lower(self, ctx, x):
        return chlo.erf_inv(x)


class Lgamma(Inexact):
    """log(|gamma(x)|)."""

    accepts = "f"
    samples = sample(f32[3, 4], domain=(0.5, 4.0)), sample(f32[3], domain=(-0.8, -0.2))

    def derivative(self, out, x):
        return digamma(x)

    def lower(self, ctx, x):
        return chlo.lgamma(x)


class Digamma(Inexact):
    """The derivative of log(gamma(x))."""

    accepts = "f"
    samples = sample(f32[3, 4], domain=(0.5, 4.0)), sample(f32[3], domain=(-20.8, -20.2))

    def derivative(self, out, x):
        # digamma'(x) = (pi / sin(pi x))**2 - digamma'(1 - x), needed where x is negative.
        negative = lt(x, 0)
        slope = polygamma(1, select(negative, sub(1, x), x))
        sine = sin(mul(select(negative, x, 0.5), math.pi))
        return select(negative, sub(square(div(math.pi, sine)), slope), slope)

    def lower(self, ctx, x):
        return chlo.digamma(x)


class Polygamma(Binary):
    """Derivative number m of digamma(x); the order m is an integer or has the dtype of x."""

    accepts = "f"
    samples = (
        sample(i32[3, 4], f32[3, 4], domain={0: (1, 3), 1: (0.5, 4.0)}),
        sample(i32[()], f32[3], domain={0: (1, 3), 1: (0.5, 4.0)}),
    )

    def abstract_eval(self, m, x):
        check_same_dtype(self, (x,) if is_integer(m.dtype) else (x, m))
        return ShapedArray(elementwise_shape(self, (m, x)), x.dtype, x.weak_type and m.weak_type)

    def partial(self, i, t, out, m, x):
        if i == 0:
            raise MissingRuleError("polygamma: the order must not be differentiated")
        return mul(t, polygamma(add(m, 1), x))

    def lower(self, ctx, m, x):
        source, target = ctx.avals_in
        if source.dtype != target.dtype:
            m = ctx.convert(m, source, target)
        return chlo.polygamma(m, x)


def erf(x: Any) -> Any:
    """The error function, elementwise."""
    return Erf()(x)


def erfc(x: Any) -> Any:
    """1 - erf(x), elementwise, accurate for large x."""
    return Erfc()(x)


def erf_inv(x: Any) -> Any:
    """The inverse of erf, elementwise, for x in [-1, 1]."""
    return ErfInv()(x)


def lgamma(x: Any) -> Any:
    """log(|gamma(x)|), elementwise."""
    return Lgamma()(x)


def digamma(x: Any) -> Any:
    """The derivative of log(gamma(x)), elementwise."""
    return Digamma()(x)


def polygamma(m: Any, x: Any) -> Any:
    """Derivative number m of digamma(x), elementwise; m is an integer or has the dtype of x.

    Raises MissingRuleError when m is differentiated.
    """
    return Polygamma()(*match(m, x))
