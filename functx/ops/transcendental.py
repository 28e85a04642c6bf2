"""Exponentials, logarithms, roots, trigonometric and hyperbolic functions."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from jax import lax
from jax.extend.mlir.dialects import chlo, stablehlo

from functx import ops
from functx.core.samples import CORRECTLY_ROUNDED, Rounding, c64, f32, sample
from functx.core.types import is_complex
from functx.core.typing import ArrayLike, IRValue, NumPyArray, Tangent, Value
from functx.ops.families import (
    Binary,
    Inexact,
    RealFunction,
    binary_function,
    lower_to,
    unary_function,
)

if TYPE_CHECKING:
    from functx.lowering.stablehlo_emitter import LoweringContext


class Exp(Inexact):
    """e to the power x."""

    has_finite_derivative = True
    numpy = np.exp
    samples = (sample(f32[3, 4]),)

    def derivative(self, out: Value, x: Value) -> Value:
        return out

    lower = lower_to(stablehlo.exponential)


class Exp2(Inexact):
    """2 to the power x."""

    numpy = np.exp2
    samples = sample(f32[3, 4]), sample(c64[3])

    def derivative(self, out: Value, x: Value) -> Value:
        return ops.mul(out, math.log(2.0))

    def lower(self, ctx: LoweringContext, x: IRValue) -> IRValue:
        return stablehlo.exponential(
            stablehlo.multiply(x, ctx.constant(math.log(2.0), ctx.avals_in[0]))
        )


class Expm1(Inexact):
    """exp(x) - 1, accurate near 0."""

    numpy = np.expm1
    samples = sample(f32[3, 4]), sample(c64[3])

    def derivative(self, out: Value, x: Value) -> Value:
        # Not out + 1, which is 0 for very negative x.
        return exp(x)

    lower = lower_to(stablehlo.exponential_minus_one)


class Log(Inexact):
    """The natural logarithm."""

    numpy = np.log
    samples = (sample(f32[3, 4], domain=(0.5, 2.0)),)

    def partial(self, i: int, t: Value, out: Value, x: Value) -> Tangent:
        return ops.div(t, x)

    lower = lower_to(stablehlo.log)


class Log1p(Inexact):
    """log(1 + x), accurate near 0."""

    numpy = np.log1p
    rounding = Rounding(ulps=4.0)
    samples = sample(f32[3, 4], domain=(-0.5, 2.0)), sample(c64[3], domain=(0.5, 2.0))

    def partial(self, i: int, t: Value, out: Value, x: Value) -> Tangent:
        return ops.div(t, ops.add(x, 1.0))

    def lower(self, ctx: LoweringContext, x: IRValue) -> IRValue:
        if ctx.avals_in[0].dtype == np.float64:
            return ctx.via_jax(_accurate_log1p, x)
        return stablehlo.log_plus_one(x)


def _accurate_log1p(x: Value) -> Value:
    """log(1 + x) as log(1 + x (2 + x)) / 2 near -0.4, where XLA loses two digits in double precision."""
    near = (x > -0.415) & (x < -0.33)
    out = lax.log1p(lax.select(near, x * (2 + x), x))
    return lax.select(near, 0.5 * out, out)


class Sqrt(Inexact):
    """The square root; its derivative at 0 is infinite."""

    numpy = np.sqrt
    rounding = CORRECTLY_ROUNDED
    samples = (
        sample(f32[3, 4], domain=(0.5, 2.0)),
        sample(c64[3], nonzero=(0,)),
        sample(f32[2], values={0: [0.0, 4.0]}, gradients={0: [math.inf, 0.25]}),
    )

    def partial(self, i: int, t: Value, out: Value, x: Value) -> Tangent:
        return ops.div(t, ops.mul(out, 2.0))

    lower = lower_to(stablehlo.sqrt)


class SafeSqrt(RealFunction):
    """The square root of a sum of squares; its derivative at 0 is 0, as that of a norm."""

    numpy = np.sqrt
    samples = (
        sample(f32[3, 4], domain=(0.5, 2.0)),
        sample(f32[2], values={0: [0.0, 4.0]}, gradients={0: [0.0, 0.25]}),
    )

    def partial(self, i: int, t: Value, out: Value, x: Value) -> Tangent:
        zero = ops.eq(out, 0)
        return ops.select(zero, 0, ops.div(t, ops.mul(ops.select(zero, 1, out), 2.0)))

    lower = lower_to(stablehlo.sqrt)


class Rsqrt(Inexact):
    """1 / sqrt(x)."""

    samples = sample(f32[3, 4], domain=(0.5, 2.0)), sample(c64[3], nonzero=(0,))

    def derivative(self, out: Value, x: Value) -> Value:
        return ops.mul(ops.mul(out, -0.5), ops.mul(out, out))

    def numpy(self, x: NumPyArray) -> ArrayLike:
        return 1 / np.sqrt(x)

    lower = lower_to(stablehlo.rsqrt)


class Cbrt(RealFunction):
    """The real cube root, also of negative x; its derivative at 0 is infinite."""

    numpy = np.cbrt
    rounding = Rounding(ulps=16.0)
    samples = (
        sample(f32[3, 4], nonzero=(0,)),
        sample(f32[2], values={0: [0.0, 8.0]}, gradients={0: [math.inf, 1.0 / 12.0]}),
    )

    def derivative(self, out: Value, x: Value) -> Value:
        return ops.mul(ops.integer_pow(out, -2), 1.0 / 3.0)

    lower = lower_to(stablehlo.cbrt)


class Logistic(Inexact):
    """1 / (1 + exp(-x)), the logistic sigmoid."""

    has_finite_derivative = True
    samples = sample(f32[3, 4]), sample(c64[3])

    def derivative(self, out: Value, x: Value) -> Value:
        # 1 - out, without the cancellation for large x.
        return ops.mul(out, logistic(ops.neg(x)))

    def lower(self, ctx: LoweringContext, x: IRValue) -> IRValue:
        one = ctx.constant(1, ctx.avals_in[0])
        return stablehlo.divide(one, stablehlo.add(one, stablehlo.exponential(stablehlo.negate(x))))


class Sin(Inexact):
    """The sine."""

    has_finite_derivative = True
    numpy = np.sin
    samples = sample(f32[3, 4]), sample(c64[3])

    def derivative(self, out: Value, x: Value) -> Value:
        return cos(x)

    def lower(self, ctx: LoweringContext, x: IRValue) -> IRValue:
        if is_complex(ctx.avals_in[0].dtype):
            return ctx.via_jax(lax.sin, x)
        return stablehlo.sine(x)


class Cos(Inexact):
    """The cosine."""

    has_finite_derivative = True
    numpy = np.cos
    samples = sample(f32[3, 4]), sample(c64[3])

    def partial(self, i: int, t: Value, out: Value, x: Value) -> Tangent:
        return ops.neg(ops.mul(t, sin(x)))

    def lower(self, ctx: LoweringContext, x: IRValue) -> IRValue:
        if is_complex(ctx.avals_in[0].dtype):
            return ctx.via_jax(lax.cos, x)
        return stablehlo.cosine(x)


class Tan(Inexact):
    """The tangent."""

    numpy = np.tan
    samples = sample(f32[3, 4], domain=(-1.2, 1.2)), sample(c64[3])

    def derivative(self, out: Value, x: Value) -> Value:
        return ops.add(ops.square(out), 1.0)

    lower = lower_to(stablehlo.tan)


class Asin(Inexact):
    """The angle in [-pi/2, pi/2] whose sine is x."""

    numpy = np.arcsin
    samples = sample(f32[3, 4], domain=(-0.9, 0.9)), sample(c64[3])

    def derivative(self, out: Value, x: Value) -> Value:
        return rsqrt(one_minus_square(x))

    lower = lower_to(chlo.asin)


def one_minus_square(x: Value) -> Value:
    """1 - x**2, without cancellation near -1 and 1, on the side of the branch cut that x is on.

    A complex x beyond 1 with imaginary part 0 is on a cut: the sign of that 0 is its side, which
    1 - x and x + 1 lose.
    """
    if is_complex(x.dtype):
        return ops.neg(ops.mul(ops.sub(x, 1.0), ops.sub(x, -1.0)))
    return ops.mul(ops.sub(1.0, x), ops.add(x, 1.0))


class Acos(Inexact):
    """The angle in [0, pi] whose cosine is x."""

    numpy = np.arccos
    samples = sample(f32[3, 4], domain=(-0.9, 0.9)), sample(c64[3])

    def partial(self, i: int, t: Value, out: Value, x: Value) -> Tangent:
        return ops.neg(ops.mul(t, rsqrt(one_minus_square(x))))

    lower = lower_to(chlo.acos)


class Atan(Inexact):
    """The angle in [-pi/2, pi/2] whose tangent is x."""

    has_finite_derivative = True
    numpy = np.arctan
    samples = sample(f32[3, 4]), sample(c64[3])

    def partial(self, i: int, t: Value, out: Value, x: Value) -> Tangent:
        return ops.div(t, ops.add(ops.square(x), 1.0))

    lower = lower_to(chlo.atan)


class Atan2(Binary):
    """The angle, in [-pi, pi], of the point with ordinate x and abscissa y.

    The derivatives at the origin, which has no angle, are 0.
    """

    widens_one_byte_floats = True
    accepts = "f"
    numpy = np.arctan2
    samples = (
        sample(f32[3, 4], f32[3, 4], nonzero=(0, 1)),
        sample(f32[()], f32[3], nonzero=(0, 1)),
        sample(
            f32[2],
            f32[2],
            values={0: [0.0, 1.0], 1: [0.0, 0.0]},
            gradients={0: [0.0, 0.0], 1: [0.0, -1.0]},
        ),
        sample(
            f32[3],
            f32[3],
            values={0: [-math.inf, 1.0, math.inf], 1: [0.0, math.inf, -math.inf]},
            gradients={0: [0.0, 0.0, 0.0], 1: [0.0, 0.0, 0.0]},
        ),
    )

    def partial(self, i: int, t: Value, out: Value, x: Value, y: Value) -> Tangent:
        # d atan2(x, y) = (y dx - x dy) / (x**2 + y**2); 0 / inf at the origin and at infinity, so that
        # all higher derivatives are 0 too.
        distance = ops.add(ops.square(x), ops.square(y))
        origin = ops.bitwise_and(ops.eq(x, 0), ops.eq(y, 0))
        has_no_slope = ops.bitwise_or(origin, ops.eq(distance, math.inf))
        slope = ops.select(has_no_slope, 0.0, y if i == 0 else ops.neg(x))
        return ops.mul(t, ops.div(slope, ops.select(has_no_slope, math.inf, distance)))

    lower = lower_to(stablehlo.atan2)


class Sinh(Inexact):
    """The hyperbolic sine."""

    numpy = np.sinh
    samples = sample(f32[3, 4]), sample(c64[3])

    def derivative(self, out: Value, x: Value) -> Value:
        return cosh(x)

    def lower(self, ctx: LoweringContext, x: IRValue) -> IRValue:
        if is_complex(ctx.avals_in[0].dtype):
            # sin(b + ia) = sin(b) cosh(a) + i cos(b) sinh(a), the parts of sinh(a + ib) exchanged.
            return ctx.via_jax(lambda x: _exchange_parts(lax.sin(_exchange_parts(x))), x)
        return chlo.sinh(x)


class Cosh(Inexact):
    """The hyperbolic cosine."""

    numpy = np.cosh
    samples = sample(f32[3, 4]), sample(c64[3])

    def derivative(self, out: Value, x: Value) -> Value:
        return sinh(x)

    def lower(self, ctx: LoweringContext, x: IRValue) -> IRValue:
        if is_complex(ctx.avals_in[0].dtype):
            return ctx.via_jax(lambda x: lax.cos(_times_i(x)), x)
        return chlo.cosh(x)


class Tanh(Inexact):
    """The hyperbolic tangent."""

    has_finite_derivative = True
    numpy = np.tanh
    samples = sample(f32[3, 4]), sample(c64[3])

    def derivative(self, out: Value, x: Value) -> Value:
        # 1 - out**2 with less cancellation, and without another exponential, which a fusion would
        # compute again for every element.
        return ops.mul(ops.sub(1.0, out), ops.add(1.0, out))

    lower = lower_to(stablehlo.tanh)


# XLA's hyperbolic sine and cosine of complex numbers lose digits, its trigonometric functions do not.
def _times_i(x: Value) -> Value:
    return lax.complex(-lax.imag(x), lax.real(x))


def _exchange_parts(x: Value) -> Value:
    return lax.complex(lax.imag(x), lax.real(x))


class Asinh(Inexact):
    """The inverse of sinh."""

    numpy = np.arcsinh
    samples = sample(f32[3, 4]), sample(c64[3], domain=(0.2, 2.0))

    def derivative(self, out: Value, x: Value) -> Value:
        # Not + 1.0, which loses the sign of an imaginary part of 0: that is the side of the cut.
        return rsqrt(ops.sub(ops.square(x), -1.0))

    lower = lower_to(chlo.asinh)


class Acosh(Inexact):
    """The inverse of cosh, not negative."""

    numpy = np.arccosh
    samples = sample(f32[3, 4], domain=(1.2, 3.0)), sample(c64[3], domain=(0.2, 2.0))

    def derivative(self, out: Value, x: Value) -> Value:
        # Not one root of the product, whose sign is wrong where the real part is negative; and
        # not + 1.0, which loses the sign of an imaginary part of 0.
        return ops.mul(rsqrt(ops.sub(x, 1.0)), rsqrt(ops.sub(x, -1.0)))

    lower = lower_to(chlo.acosh)


class Atanh(Inexact):
    """The inverse of tanh."""

    numpy = np.arctanh
    rounding = Rounding(ulps=130.0)
    samples = sample(f32[3, 4], domain=(-0.9, 0.9)), sample(c64[3])

    def partial(self, i: int, t: Value, out: Value, x: Value) -> Tangent:
        return ops.div(t, ops.mul(ops.sub(1.0, x), ops.add(1.0, x)))

    lower = lower_to(chlo.atanh)


exp = unary_function(Exp)
exp2 = unary_function(Exp2)
expm1 = unary_function(Expm1)
log = unary_function(Log)
log1p = unary_function(Log1p)
sqrt = unary_function(Sqrt)
safe_sqrt = unary_function(SafeSqrt)
rsqrt = unary_function(Rsqrt)
cbrt = unary_function(Cbrt)
logistic = unary_function(Logistic)
sin = unary_function(Sin)
cos = unary_function(Cos)
tan = unary_function(Tan)
asin = unary_function(Asin)
acos = unary_function(Acos)
atan = unary_function(Atan)
atan2 = binary_function(Atan2)
sinh = unary_function(Sinh)
cosh = unary_function(Cosh)
tanh = unary_function(Tanh)
asinh = unary_function(Asinh)
acosh = unary_function(Acosh)
atanh = unary_function(Atanh)
