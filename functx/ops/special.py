"""Special functions: error, gamma and Bessel functions, and functions that avoid overflow or cancellation."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.mlir.dialects import chlo
from jax.scipy import special as jax_special
from ml_dtypes import finfo

from functx import ops
from functx.core.errors import MissingRuleError
from functx.core.samples import Rounding, c64, f32, i32, sample
from functx.core.types import ShapedArray, is_complex, is_integer
from functx.core.typing import ArrayLike, Function, IRValue, NumPyArray, Tangent, Value
from functx.ops.arithmetic import replace_zero_by_one
from functx.ops.families import (
    Binary,
    Bitwise,
    Inexact,
    RealFunction,
    binary_function,
    check_same_dtype,
    elementwise_shape,
    lower_to,
    unary_function,
)
from functx.ops.operands import cast_like, literal, promote_scalars, upcast_half

if TYPE_CHECKING:
    from functx.lowering.stablehlo_emitter import LoweringContext


class Erf(RealFunction):
    """The error function, 2 / sqrt(pi) times the integral of exp(-t**2) from 0 to x."""

    has_finite_derivative = True
    rounding = Rounding(ulps=16.0)
    samples = (sample(f32[3, 4]),)

    def derivative(self, out: Value, x: Value) -> Value:
        return ops.mul(ops.exp(ops.neg(ops.square(x))), 2.0 / math.sqrt(math.pi))

    lower = lower_to(chlo.erf)


class Erfc(RealFunction):
    """1 - erf(x), accurate for large x."""

    rounding = Rounding(ulps=16.0)
    samples = (sample(f32[3, 4]),)

    def derivative(self, out: Value, x: Value) -> Value:
        return ops.mul(ops.exp(ops.neg(ops.square(x))), -2.0 / math.sqrt(math.pi))

    lower = lower_to(chlo.erfc)


class ErfInv(RealFunction):
    """The inverse of erf, on [-1, 1]."""

    rounding = Rounding(ulps=64.0)
    samples = (sample(f32[3, 4], domain=(-0.8, 0.8)),)

    def derivative(self, out: Value, x: Value) -> Value:
        return ops.mul(ops.exp(ops.square(out)), math.sqrt(math.pi) / 2.0)

    lower = lower_to(chlo.erf_inv)


class Ndtri(RealFunction):
    """The inverse of the normal distribution function, on [0, 1]."""

    rounding = Rounding(ulps=64.0)
    samples = (
        sample(f32[3, 4], domain=(0.1, 0.9)),
        sample(
            f32[2],
            values={0: [0.5, 1e-6]},
            gradients={0: [math.sqrt(2.0 * math.pi), 202088.27]},
            dtypes=("f64",),
        ),
    )

    def derivative(self, out: Value, x: Value) -> Value:
        return ops.mul(ops.exp(ops.mul(ops.square(out), 0.5)), math.sqrt(2.0 * math.pi))

    def lower(self, ctx: LoweringContext, x: IRValue) -> IRValue:
        return lower_at_least_in_single(ctx, jax_special.ndtri, x)


class Spence(RealFunction):
    """The integral of log(t) / (1 - t) from 1 to x, the dilogarithm of 1 - x."""

    rounding = Rounding(ulps=64.0)
    samples = (
        sample(f32[3, 4], domain=(0.1, 4.0)),
        sample(f32[2], values={0: [0.0, 1.0]}, gradients={0: [-math.inf, -1.0]}),
    )

    def derivative(self, out: Value, x: Value) -> Value:
        # With u = x - 1, -log(1 + u) / u is minus the integral of 1 / (1 + t u) for t from 0 to 1.
        u = ops.sub(x, 1.0)
        is_near_one = ops.lt(ops.abs(u), 0.5)
        near, far = ops.select(is_near_one, u, 0.0), ops.select(is_near_one, 1.0, u)
        nodes, weights = [x.tolist() for x in np.polynomial.legendre.leggauss(12)]
        terms = [
            ops.div(weight / 2, ops.add(ops.mul(near, (1 + node) / 2), 1.0))
            for node, weight in zip(nodes, weights, strict=True)
        ]
        log = ops.log(ops.select(is_near_one, 1.0, x))
        return ops.neg(ops.select(is_near_one, reduce(ops.add, terms), ops.div(log, far)))

    def lower(self, ctx: LoweringContext, x: IRValue) -> IRValue:
        return lower_at_least_in_single(ctx, jax_special.spence, x)


class Lgamma(RealFunction):
    """log(|gamma(x)|)."""

    rounding = Rounding(ulps=64.0)
    samples = sample(f32[3, 4], domain=(0.5, 4.0)), sample(f32[3], domain=(-0.8, -0.2))

    def derivative(self, out: Value, x: Value) -> Value:
        return digamma(x)

    lower = lower_to(chlo.lgamma)


class Digamma(RealFunction):
    """The derivative of log(gamma(x))."""

    rounding = Rounding(ulps=64.0)
    samples = sample(f32[3, 4], domain=(0.5, 4.0)), sample(f32[3], domain=(-20.8, -20.2))

    def derivative(self, out: Value, x: Value) -> Value:
        # digamma'(x) = (pi / sin(pi x))**2 - digamma'(1 - x), needed where x is negative.
        negative = ops.lt(x, 0)
        slope = polygamma(1, ops.select(negative, ops.sub(1, x), x))
        sine = ops.sin(ops.mul(ops.select(negative, x, 0.5), math.pi))
        return ops.select(negative, ops.sub(ops.square(ops.div(math.pi, sine)), slope), slope)

    lower = lower_to(chlo.digamma)


class Polygamma(Binary):
    """The m-th derivative of digamma(x); the order m is an integer or has the dtype of x."""

    widens_one_byte_floats = True
    accepts = "f"
    rounding = Rounding(ulps=64.0)
    samples = (
        sample(i32[3, 4], f32[3, 4], domain={0: (1, 3), 1: (0.5, 4.0)}),
        sample(i32[()], f32[3], domain={0: (1, 3), 1: (0.5, 4.0)}),
    )

    def abstract_eval(self, m: ShapedArray, x: ShapedArray) -> ShapedArray:
        check_same_dtype(self, (x,) if is_integer(m.dtype) else (x, m))
        return ShapedArray(elementwise_shape(self, (m, x)), x.dtype, x.weak_type and m.weak_type)

    def partial(self, i: int, t: Value, out: Value, m: Value, x: Value) -> Tangent:
        if i == 0:
            raise MissingRuleError("polygamma: the order must not be differentiated")
        return ops.mul(t, polygamma(ops.add(m, 1), x))

    def lower(self, ctx: LoweringContext, m: IRValue, x: IRValue) -> IRValue:
        source, target = ctx.avals_in
        if source.dtype != target.dtype:
            m = ctx.convert(m, source, target)
        return chlo.polygamma(m, x)


class Xlogy(Binary):
    """x log(y), and 0 where x is 0 unless y is nan.

    The derivative in y is 0 where both are 0.
    """

    widens_one_byte_floats = True
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

    def partial(self, i: int, t: Value, out: Value, x: Value, y: Value) -> Tangent:
        # x / y, and 0 where both are 0, the limit along every line towards y = 0.
        return ops.mul(t, ops.log(y) if i == 0 else ops.div(x, infinity_where_both_zero(x, y)))

    def decompose(self, x: Value, y: Value) -> Value:
        is_zero = ops.bitwise_and(ops.eq(x, 0.0), ops.eq(y, y))
        return ops.select(is_zero, 0.0, ops.mul(x, ops.log(ops.select(is_zero, 1.0, y))))


class Xlog1py(Binary):
    """x log(1 + y), and 0 where x is 0 unless y is nan.

    The derivative in y is 0 where x is 0 and y is -1.
    """

    widens_one_byte_floats = True
    accepts = "f"
    name = "xlog1py"
    rounding = Rounding(ulps=130.0)
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

    def partial(self, i: int, t: Value, out: Value, x: Value, y: Value) -> Tangent:
        return ops.mul(
            t, ops.log1p(y) if i == 0 else ops.div(x, infinity_where_both_zero(x, ops.add(y, 1.0)))
        )

    def decompose(self, x: Value, y: Value) -> Value:
        is_zero = ops.bitwise_and(ops.eq(x, 0.0), ops.eq(y, y))
        return ops.select(is_zero, 0.0, ops.mul(x, ops.log1p(ops.select(is_zero, 0.0, y))))


class BesselI0(RealFunction):
    """The modified Bessel function of the first kind of order 0."""

    name = "bessel_i0"
    rounding = Rounding(ulps=16.0)
    samples = (
        sample(f32[3, 4]),
        sample(f32[2], values={0: [0.0, 1e-20]}, gradients={0: [0.0, 5e-21]}, dtypes=("f64",)),
    )

    def derivative(self, out: Value, x: Value) -> Value:
        return bessel_i1(x)

    def decompose(self, x: Value) -> Value:
        return undo_exponential_scaling(bessel_i0e, x, ops.abs(x))


class BesselI1(RealFunction):
    """The modified Bessel function of the first kind of order 1."""

    name = "bessel_i1"
    rounding = Rounding(ulps=16.0)
    samples = (
        sample(f32[3, 4]),
        sample(f32[2], values={0: [0.0, 1e-38]}, gradients={0: [0.5, 0.5]}),
    )

    def derivative(self, out: Value, x: Value) -> Value:
        # i0 - i1 / x, which is infinite where both overflow
        return ops.mul(bessel_i0(x), ops.sub(1.0, bessel_ratio(x)))

    def decompose(self, x: Value) -> Value:
        return undo_exponential_scaling(bessel_i1e, x, x)


class BesselI0e(RealFunction):
    """exp(-|x|) times the modified Bessel function of the first kind of order 0."""

    name = "bessel_i0e"
    rounding = Rounding(ulps=16.0)
    samples = (
        sample(f32[3, 4], nonzero=(0,)),
        sample(f32[1], values={0: [0.0]}, gradients={0: [0.0]}),
    )

    def derivative(self, out: Value, x: Value) -> Value:
        return ops.neg(ops.mul(ops.sign(x), bessel_difference(ops.abs(x))))

    def lower(self, ctx: LoweringContext, x: IRValue) -> IRValue:
        return ctx.via_jax(lax.bessel_i0e, x)


class BesselI1e(RealFunction):
    """exp(-|x|) times the modified Bessel function of the first kind of order 1."""

    name = "bessel_i1e"
    rounding = Rounding(ulps=16.0)
    samples = (
        sample(f32[3, 4], nonzero=(0,)),
        sample(f32[2], values={0: [0.0, 1e-38]}, gradients={0: [0.5, 0.5]}),
    )

    def derivative(self, out: Value, x: Value) -> Value:
        return ops.sub(bessel_difference(ops.abs(x)), ops.mul(bessel_ratio(x), bessel_i0e(x)))

    def lower(self, ctx: LoweringContext, x: IRValue) -> IRValue:
        return ctx.via_jax(lax.bessel_i1e, x)


def lower_at_least_in_single(ctx: LoweringContext, function: Function, x: IRValue) -> IRValue:
    """The JAX function `function` of `x`, computed in single precision for half floats."""

    def upcast(x: Value) -> Value:
        return function(x.astype("float32")).astype(x.dtype)

    return ctx.via_jax(upcast if ctx.avals_in[0].dtype.itemsize < 4 else function, x)


def undo_exponential_scaling(
    function: Callable[[Value], Value], x: Value, at_infinity: ArrayLike
) -> Value:
    """exp(|x|) times `function` of x, without overflow before the product overflows."""
    upcast = upcast_half(x)
    half = ops.exp(ops.mul(ops.abs(upcast), 0.5))
    out = ops.mul(ops.mul(function(upcast), half), half)
    return ops.select(ops.eq(ops.abs(x), math.inf), at_infinity, cast_like(out, x))


def bessel_ratio(x: Value) -> Value:
    """i1(x) / (x i0(x)), which is 1/2 at 0 and 0 at infinity."""
    is_near_zero = ops.lt(ops.abs(x), math.sqrt(finfo(x.dtype).eps))
    i0e = bessel_i0e(x)
    denominator = ops.mul(ops.select(is_near_zero, 1.0, x), ops.select(ops.eq(i0e, 0.0), 1.0, i0e))
    return ops.select(
        is_near_zero,
        ops.sub(0.5, ops.mul(ops.square(x), 1 / 16)),
        ops.div(bessel_i1e(x), denominator),
    )


def bessel_difference(x: Value) -> Value:
    """i0e(x) - i1e(x) for x >= 0, without cancellation for large x."""
    start, count = (100.0, 9) if x.dtype.itemsize > 4 else (30.0, 5)
    is_large = ops.gt(x, start)
    large = ops.select(is_large, x, start)
    total = ops.zeros_like(large)
    for k in reversed(range(1, count)):
        total = ops.div(
            ops.add(
                total, bessel_asymptotic_coefficient(0, k) - bessel_asymptotic_coefficient(1, k)
            ),
            large,
        )
    series = ops.div(total, ops.mul(ops.sqrt(large), math.sqrt(2.0 * math.pi)))
    return ops.select(is_large, series, ops.sub(bessel_i0e(x), bessel_i1e(x)))


def bessel_asymptotic_coefficient(order: int, k: int) -> float:
    """The coefficient of x**-k in sqrt(2 pi x) exp(-x) I(x) for large x, I of order `order`."""
    odds = [(2 * j - 1) ** 2 - 4 * order**2 for j in range(1, k + 1)]
    return math.prod(odds) / (math.factorial(k) * 8.0**k)


def infinity_where_both_zero(x: ArrayLike, y: ArrayLike) -> Value:
    """The divisor `y` of `x`, with infinity where both are 0."""
    return ops.select(ops.bitwise_and(ops.eq(x, 0.0), ops.eq(y, 0.0)), math.inf, y)


class Hypot(Binary):
    """sqrt(x**2 + y**2) without overflow; its derivative at the origin is 0."""

    widens_one_byte_floats = True
    accepts = "f"
    numpy = np.hypot
    samples = (
        sample(f32[3, 4], f32[3, 4], nonzero=(0, 1)),
        sample(f32[()], f32[3], nonzero=(0,)),
        sample(
            f32[3],
            f32[3],
            values={0: [0.0, 3.0, 0.0], 1: [0.0, 4.0, -2.0]},
            gradients={0: [0.0, 0.6, 0.0], 1: [0.0, 0.8, -1.0]},
        ),
    )

    def partial(self, i: int, t: Value, out: Value, x: Value, y: Value) -> Tangent:
        # 0 / inf at the origin, so that all higher derivatives are 0 too.
        return ops.mul(t, ops.div((x, y)[i], ops.select(ops.eq(out, 0.0), math.inf, out)))

    def decompose(self, x: Value, y: Value) -> Value:
        x, y = ops.abs(x), ops.abs(y)
        larger = ops.max(x, y)
        ratio = ops.div(ops.min(x, y), replace_zero_by_one(larger))
        out = ops.mul(larger, ops.sqrt(ops.add(ops.mul(ratio, ratio), 1.0)))
        infinite = ops.bitwise_or(ops.eq(x, math.inf), ops.eq(y, math.inf))
        return ops.select(infinite, math.inf, out)


class Logaddexp(Binary):
    """log(exp(x) + exp(y)) without overflow; the imaginary part lies in [-pi, pi].

    Operands that tie share the derivative.
    """

    widens_one_byte_floats = True
    has_finite_derivative = True
    accepts = "fc"
    samples = (
        sample(f32[3, 4], f32[3, 4]),
        sample(f32[()], f32[3]),
        sample(c64[3], c64[3], domain={0: (-1.0, 1.0), 1: (-1.0, 1.0)}),
        sample(
            f32[3],
            f32[3],
            values={0: [1.0, -math.inf, -math.inf], 1: [1.0, -math.inf, 0.0]},
            gradients={0: [0.5, 0.5, 0.0], 1: [0.5, 0.5, 1.0]},
        ),
    )

    def partial(self, i: int, t: Value, out: Value, x: Value, y: Value) -> Tangent:
        # The weights of softmax, from the exponential that the value needs.
        swap, ratio = self.compare(x, y)
        weight = ops.div(1.0, ops.add(ratio, 1.0))
        is_less = swap if i == 0 else ops.bitwise_not(swap)
        return ops.mul(t, ops.select(is_less, ops.mul(ratio, weight), weight))

    def compare(self, x: Value, y: Value) -> tuple[Value, Value]:
        """Whether y is the larger one, and the exponential of the smaller over that of the larger."""
        gap = ops.sub(x, y)
        # Between two infinities of one sign the gap is nan, and the operands tie.
        is_same_infinity = ops.bitwise_and(ops.eq(x, y), ops.ne(gap, gap))
        gap = ops.select(is_same_infinity, 0.0, gap)
        swap = ops.lt(ops.real(gap), 0.0) if is_complex(x.dtype) else ops.lt(gap, 0.0)
        return swap, ops.exp(ops.select(swap, gap, ops.neg(gap)))

    def decompose(self, x: Value, y: Value) -> Value:
        swap, ratio = self.compare(x, y)
        out = ops.add(ops.select(swap, y, x), ops.log1p(ratio))
        if not is_complex(x.dtype):
            return out
        turns = ops.round(ops.div(ops.imag(out), 2.0 * math.pi), ops.RoundingMethod.TO_NEAREST_EVEN)
        return ops.complex(ops.real(out), ops.sub(ops.imag(out), ops.mul(turns, 2.0 * math.pi)))


class CopyZeroSign(Binary):
    """x, whose zeros get the sign of y; its derivative is that of x."""

    has_finite_derivative = True
    accepts = "f"
    samples = (
        sample(f32[3, 4], f32[3, 4]),
        sample(f32[()], f32[3]),
        sample(
            f32[3],
            f32[3],
            values={0: [0.0, -0.0, 3.0], 1: [-1.0, 2.0, -2.0]},
            gradients={0: [1.0, 1.0, 1.0], 1: [0.0, 0.0, 0.0]},
        ),
    )

    def partial(self, i: int, t: Value, out: Value, x: Value, y: Value) -> Tangent:
        return t if i == 0 else ops.zeros_like(t)

    def preserves_zero(self, i: int, x: Value, y: Value) -> bool:
        return True

    def numpy(self, x: NumPyArray, y: NumPyArray) -> ArrayLike:
        return np.where(x == 0, np.copysign(0.0, y), x)

    def decompose(self, x: Value, y: Value) -> Value:
        zeros = [literal(zero, x.dtype) for zero in (-0.0, 0.0)]
        return ops.select(ops.eq(x, 0.0), ops.select(ops.lt(y, 0.0), *zeros), x)


class Sinc(Inexact):
    """The derivative of order `order` of sin(pi x) / (pi x), which is 1 at 0."""

    order: int = 0
    rounding = Rounding(ulps=64.0, is_absolute=True)
    samples = (
        sample(f32[3, 4], tolerance=(4.0, "the recurrence cancels a digit near 0")),
        sample(f32[3], order=2, tolerance=(64.0, "the recurrence cancels two digits near 0")),
        sample(c64[3], tolerance=(16.0, "the recurrence cancels a digit near 0")),
        sample(f32[3], values={0: [0.0, 1.0, 2.0]}, gradients={0: [0.0, -1.0, 0.5]}),
        sample(f32[1], order=1, values={0: [0.0]}, gradients={0: [-(math.pi**2) / 3]}),
    )

    def derivative(self, out: Value, x: Value) -> Value:
        return Sinc(self.order + 1)(x)

    def decompose(self, x: Value) -> Value:
        if x.dtype.itemsize < 4:
            return ops.convert_element_type(self(ops.convert_element_type(x, "float32")), x.dtype)
        z = ops.mul(x, math.pi)
        value = ops.mul(self.away_from_zero(z), math.pi**self.order)
        if self.order == 0:
            return ops.select(ops.eq(x, 0.0), 1.0, value)
        is_near_zero = ops.lt(ops.abs(z), self.order + 1.0)
        return ops.select(is_near_zero, ops.mul(self.near_zero(z), math.pi**self.order), value)

    def away_from_zero(self, z: Value) -> Value:
        # s(z) = sin(z) / z, and s^(k) z + k s^(k-1) = sin^(k)
        safe = replace_zero_by_one(z)
        value = ops.div(ops.sin(z), safe)
        for k in range(1, self.order + 1):
            slope = (ops.sin, ops.cos)[k % 2](z)
            slope = ops.neg(slope) if k % 4 in (2, 3) else slope
            value = ops.div(ops.sub(slope, ops.mul(value, float(k))), safe)
        return value

    def near_zero(self, z: Value) -> Value:
        # The sum over even n of (-1)^(n/2) z^(n-k) / ((n-k)! (n+1))
        k = self.order
        first = k + k % 2
        square = ops.mul(z, z)
        total: Any = None
        for n in reversed(range(first, first + 3 * k + 27, 2)):
            term = (-1.0) ** (n // 2) / (math.factorial(n - k) * (n + 1))
            total = term if total is None else ops.add(ops.mul(total, square), term)
        return ops.mul(total, z) if k % 2 else total


class Gcd(Bitwise):
    """The largest integer that divides x and y, 0 for zeros."""

    accepts = "iu"
    numpy = np.gcd
    samples = sample(i32[3, 4], i32[3, 4], domain=(-12.0, 12.0)), sample(i32[()], i32[3])

    def lower(self, ctx: LoweringContext, x: IRValue, y: IRValue) -> IRValue:
        return ctx.via_jax(_gcd_of_magnitudes, x, y)


def _gcd_of_magnitudes(x: Value, y: Value) -> Value:
    """The divisor computed in unsigned integers: JAX's loop does not end for the lowest signed one."""
    dtype = x.dtype
    magnitudes = [jnp.abs(a).astype(f"uint{jnp.iinfo(dtype).bits}") for a in (x, y)]
    return jnp.gcd(*magnitudes).astype(dtype)


erf = unary_function(Erf)
erfc = unary_function(Erfc)
erf_inv = unary_function(ErfInv)
ndtri = unary_function(Ndtri)
spence = unary_function(Spence)
lgamma = unary_function(Lgamma)
digamma = unary_function(Digamma)
bessel_i0 = unary_function(BesselI0)
bessel_i1 = unary_function(BesselI1)
bessel_i0e = unary_function(BesselI0e)
bessel_i1e = unary_function(BesselI1e)
xlogy = binary_function(Xlogy)
xlog1py = binary_function(Xlog1py)
hypot = binary_function(Hypot)
logaddexp = binary_function(Logaddexp)
copy_zero_sign = binary_function(CopyZeroSign)
gcd = binary_function(Gcd)


def polygamma(m: ArrayLike, x: ArrayLike) -> Value:
    """The m-th derivative of digamma(x), elementwise; m is an integer or has the dtype of x.

    Raises MissingRuleError if m is differentiated.
    """
    return Polygamma()(*promote_scalars(m, x))


def sinc(x: ArrayLike) -> Value:
    """sin(pi x) / (pi x), elementwise; it and all its derivatives are smooth at 0."""
    return Sinc()(x)
