"""Special functions: error functions, and the gamma function's logarithm and derivatives."""

from __future__ import annotations

import math
from typing import Any

from jax import lax
from jax.extend.mlir.dialects import chlo
from jax.scipy import special as jax_special

from functx.core.avals import ShapedArray
from functx.core.dtypes import is_integer
from functx.core.errors import MissingRuleError
from functx.core.samples import f32, i32, sample
from functx.ops.arithmetic import add, div, mul, neg, sign, square, sub
from functx.ops.comparison import eq, lt
from functx.ops.exponential import exp, log, log1p
from functx.ops.families import Binary, Inexact, check_same_dtype, elementwise_shape
from functx.ops.logical import bitwise_and
from functx.ops.operands import match
from functx.ops.selection import select
from functx.ops.trigonometric import sin


class Erf(Inexact):
    """The error function, 2 / sqrt(pi) times the integral of exp(-t**2) from 0 to x."""

    finite_slopes = True
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


class Ndtri(Inexact):
    """The inverse of the normal distribution function, on [0, 1]."""

    accepts = "f"
    samples = (
        sample(f32[3, 4], domain=(0.1, 0.9)),
        sample(
            f32[2],
            values={0: [0.5, 1e-6]},
            gradients={0: [math.sqrt(2.0 * math.pi), 202088.27]},
            dtypes=("f64",),
        ),
    )

    def derivative(self, out, x):
        return mul(exp(mul(square(out), 0.5)), math.sqrt(2.0 * math.pi))

    def lower(self, ctx, x):
        def ndtri(x: Any) -> Any:
            return jax_special.ndtri(x.astype("float32")).astype(x.dtype)

        wide = ctx.avals_in[0].dtype.itemsize >= 4
        return ctx.via_jax(jax_special.ndtri if wide else ndtri, x)


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


class Xlogy(Binary):
    """x log(y), and 0 where x is 0 unless y is nan."""

    accepts = "f"
    samples = (
        sample(f32[3, 4], f32[3, 4], domain={1: (0.5, 2.0)}),
        sample(f32[()], f32[3], domain={1: (0.5, 2.0)}),
        sample(
            f32[3],
            f32[3],
            values={0: [0.0, 0.0, 2.0], 1: [0.0, 3.0, 1.0]},
            gradients={0: [-math.inf, math.log(3.0), 0.0], 1: [0.0, 0.0, 2.0]},
        ),
    )

    def partial(self, i, t, out, x, y):
        # x / y, which where both are 0 is 0, as along all lines towards y = 0.
        return mul(t, log(y) if i == 0 else div(x, infinite_where_both(x, y)))

    def decompose(self, x, y):
        nothing = bitwise_and(eq(x, 0.0), eq(y, y))
        return select(nothing, 0.0, mul(x, log(select(nothing, 1.0, y))))


class Xlog1py(Binary):
    """x log(1 + y), and 0 where x is 0 unless y is nan."""

    accepts = "f"
    name = "xlog1py"
    samples = (
        sample(f32[3, 4], f32[3, 4], domain={1: (-0.5, 2.0)}),
        sample(f32[()], f32[3], domain={1: (-0.5, 2.0)}),
        sample(
            f32[3],
            f32[3],
            values={0: [0.0, 0.0, 2.0], 1: [-1.0, 2.0, 0.0]},
            gradients={0: [-math.inf, math.log(3.0), 0.0], 1: [0.0, 0.0, 2.0]},
        ),
    )

    def partial(self, i, t, out, x, y):
        return mul(t, log1p(y) if i == 0 else div(x, infinite_where_both(x, add(y, 1.0))))

    def decompose(self, x, y):
        nothing = bitwise_and(eq(x, 0.0), eq(y, y))
        return select(nothing, 0.0, mul(x, log1p(select(nothing, 0.0, y))))


class BesselI0e(Inexact):
    """exp(-|x|) times the modified Bessel function of the first kind of order 0."""

    accepts = "f"
    name = "bessel_i0e"
    samples = (
        sample(f32[3, 4], nonzero=(0,)),
        sample(f32[1], values={0: [0.0]}, gradients={0: [0.0]}),
    )

    def derivative(self, out, x):
        return sub(bessel_i1e(x), mul(sign(x), out))

    def lower(self, ctx, x):
        return ctx.via_jax(lax.bessel_i0e, x)


class BesselI1e(Inexact):
    """exp(-|x|) times the modified Bessel function of the first kind of order 1."""

    accepts = "f"
    name = "bessel_i1e"
    samples = (
        sample(f32[3, 4], nonzero=(0,)),
        sample(f32[1], values={0: [0.0]}, gradients={0: [0.5]}),
    )

    def derivative(self, out, x):
        # i0e(x) - i1e(x) (sign(x) + 1 / x), of which i1e(x) / x is 1/2 at 0
        zero = eq(x, 0.0)
        slope = add(sign(x), div(1.0, select(zero, 1.0, x)))
        return select(zero, 0.5, sub(bessel_i0e(x), mul(out, slope)))

    def lower(self, ctx, x):
        return ctx.via_jax(lax.bessel_i1e, x)


def infinite_where_both(x: Any, y: Any) -> Any:
    """`y` to divide x by, infinite where both are 0."""
    return select(bitwise_and(eq(x, 0.0), eq(y, 0.0)), math.inf, y)


def xlogy(x: Any, y: Any) -> Any:
    """x log(y), elementwise, and 0 where x is 0 unless y is nan.

    The derivative in `y` is 0 where both are 0.
    """
    return Xlogy()(*match(x, y))


def xlog1py(x: Any, y: Any) -> Any:
    """x log(1 + y), elementwise, and 0 where x is 0 unless y is nan.

    The derivative in `y` is 0 where x is 0 and y is -1.
    """
    return Xlog1py()(*match(x, y))


def bessel_i0e(x: Any) -> Any:
    """exp(-|x|) times the modified Bessel function I of order 0, elementwise."""
    return BesselI0e()(x)


def bessel_i1e(x: Any) -> Any:
    """exp(-|x|) times the modified Bessel function I of order 1, elementwise."""
    return BesselI1e()(x)


def erf(x: Any) -> Any:
    """The error function, elementwise."""
    return Erf()(x)


def erfc(x: Any) -> Any:
    """1 - erf(x), elementwise, accurate for large x."""
    return Erfc()(x)


def erf_inv(x: Any) -> Any:
    """The inverse of erf, elementwise, for x in [-1, 1]."""
    return ErfInv()(x)


def ndtri(x: Any) -> Any:
    """The inverse of the normal distribution function, elementwise, for x in [0, 1]."""
    return Ndtri()(x)


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
