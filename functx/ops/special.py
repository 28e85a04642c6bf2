"""Special functions: error functions, and the gamma function's logarithm and derivatives."""

from __future__ import annotations

import math
from typing import Any

from jax import lax
from jax.extend.mlir.dialects import chlo
from jax.scipy import special as jax_special
from ml_dtypes import finfo

from functx.core.avals import ShapedArray
from functx.core.dtypes import is_integer
from functx.core.errors import MissingRuleError
from functx.core.samples import f32, i32, sample
from functx.ops.arithmetic import abs, add, div, mul, neg, sign, square, sub
from functx.ops.comparison import eq, gt, lt
from functx.ops.exponential import exp, log, log1p, sqrt
from functx.ops.families import Binary, Inexact, check_same_dtype, elementwise_shape
from functx.ops.half_floats import cast_like_input, upcast_half
from functx.ops.logical import bitwise_and
from functx.ops.operands import promote_scalars
from functx.ops.selection import select
from functx.ops.shaping import zeros_like
from functx.ops.trigonometric import sin


class Erf(Inexact):
    """The error function, 2 / sqrt(pi) times the integral of exp(-t**2) from 0 to x."""

    has_finite_derivative = True
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
        return mul(t, log(y) if i == 0 else div(x, infinity_where_both_zero(x, y)))

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
        return mul(t, log1p(y) if i == 0 else div(x, infinity_where_both_zero(x, add(y, 1.0))))

    def decompose(self, x, y):
        nothing = bitwise_and(eq(x, 0.0), eq(y, y))
        return select(nothing, 0.0, mul(x, log1p(select(nothing, 0.0, y))))


class BesselI0(Inexact):
    """The modified Bessel function of the first kind of order 0."""

    accepts = "f"
    name = "bessel_i0"
    samples = (
        sample(f32[3, 4]),
        sample(f32[2], values={0: [0.0, 1e-20]}, gradients={0: [0.0, 5e-21]}, dtypes=("f64",)),
    )

    def derivative(self, out, x):
        return bessel_i1(x)

    def decompose(self, x):
        return undo_exponential_scaling(bessel_i0e, x, abs(x))


class BesselI1(Inexact):
    """The modified Bessel function of the first kind of order 1."""

    accepts = "f"
    name = "bessel_i1"
    samples = (
        sample(f32[3, 4]),
        sample(f32[2], values={0: [0.0, 1e-38]}, gradients={0: [0.5, 0.5]}),
    )

    def derivative(self, out, x):
        # i0 - i1 / x, which where both overflow is infinite
        return mul(bessel_i0(x), sub(1.0, bessel_ratio(x)))

    def decompose(self, x):
        return undo_exponential_scaling(bessel_i1e, x, x)


class BesselI0e(Inexact):
    """exp(-|x|) times the modified Bessel function of the first kind of order 0."""

    accepts = "f"
    name = "bessel_i0e"
    samples = (
        sample(f32[3, 4], nonzero=(0,)),
        sample(f32[1], values={0: [0.0]}, gradients={0: [0.0]}),
    )

    def derivative(self, out, x):
        return neg(mul(sign(x), bessel_difference(abs(x))))

    def lower(self, ctx, x):
        return ctx.via_jax(lax.bessel_i0e, x)


class BesselI1e(Inexact):
    """exp(-|x|) times the modified Bessel function of the first kind of order 1."""

    accepts = "f"
    name = "bessel_i1e"
    samples = (
        sample(f32[3, 4], nonzero=(0,)),
        sample(f32[2], values={0: [0.0, 1e-38]}, gradients={0: [0.5, 0.5]}),
    )

    def derivative(self, out, x):
        return sub(bessel_difference(abs(x)), mul(bessel_ratio(x), bessel_i0e(x)))

    def lower(self, ctx, x):
        return ctx.via_jax(lax.bessel_i1e, x)


def undo_exponential_scaling(function: Any, x: Any, at_infinity: Any) -> Any:
    """exp(|x|) times `function` of x, which overflows where the product does."""
    wide = upcast_half(x)
    half = exp(mul(abs(wide), 0.5))
    out = mul(mul(function(wide), half), half)
    return select(eq(abs(x), math.inf), at_infinity, cast_like_input(out, x))


def bessel_ratio(x: Any) -> Any:
    """i1(x) / (x i0(x)), which is 1/2 at 0 and 0 at infinity."""
    near = lt(abs(x), math.sqrt(finfo(x.dtype).eps))
    i0e = bessel_i0e(x)
    below = mul(select(near, 1.0, x), select(eq(i0e, 0.0), 1.0, i0e))
    return select(near, sub(0.5, mul(square(x), 1 / 16)), div(bessel_i1e(x), below))


def bessel_difference(x: Any) -> Any:
    """i0e(x) - i1e(x) for x not below 0, also where both are large beside it."""
    start, count = (100.0, 9) if x.dtype.itemsize > 4 else (30.0, 5)
    far = gt(x, start)
    large = select(far, x, start)
    total = zeros_like(large)
    for k in reversed(range(1, count)):
        total = div(
            add(total, bessel_asymptotic_coefficient(0, k) - bessel_asymptotic_coefficient(1, k)),
            large,
        )
    series = div(total, mul(sqrt(large), math.sqrt(2.0 * math.pi)))
    return select(far, series, sub(bessel_i0e(x), bessel_i1e(x)))


def bessel_asymptotic_coefficient(order: int, k: int) -> float:
    """The factor of x**-k in sqrt(2 pi x) exp(-x) I(x) for large x, I of that order."""
    odds = [(2 * j - 1) ** 2 - 4 * order**2 for j in range(1, k + 1)]
    return math.prod(odds) / (math.factorial(k) * 8.0**k)


def infinity_where_both_zero(x: Any, y: Any) -> Any:
    """`y` to divide x by, infinite where both are 0."""
    return select(bitwise_and(eq(x, 0.0), eq(y, 0.0)), math.inf, y)


def xlogy(x: Any, y: Any) -> Any:
    """x log(y), elementwise, and 0 where x is 0 unless y is nan.

    The derivative in `y` is 0 where both are 0.
    """
    return Xlogy()(*promote_scalars(x, y))


def xlog1py(x: Any, y: Any) -> Any:
    """x log(1 + y), elementwise, and 0 where x is 0 unless y is nan.

    The derivative in `y` is 0 where x is 0 and y is -1.
    """
    return Xlog1py()(*promote_scalars(x, y))


def bessel_i0(x: Any) -> Any:
    """The modified Bessel function I of order 0, elementwise."""
    return BesselI0()(x)


def bessel_i1(x: Any) -> Any:
    """The modified Bessel function I of order 1, elementwise."""
    return BesselI1()(x)


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
    return Polygamma()(*promote_scalars(m, x))
