"""Functions that keep digits, range or derivatives where their plain formula would lose them."""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp

from functx.core.dtypes import is_complex
from functx.core.samples import c64, f32, i32, sample
from functx.ops.arithmetic import abs, add, div, max, min, mul, neg, sub
from functx.ops.comparison import eq, lt
from functx.ops.complexes import complex, imag, real
from functx.ops.conversion import convert_element_type
from functx.ops.exponential import exp, log1p, logistic, sqrt
from functx.ops.families import Binary, Bitwise, Inexact
from functx.ops.logical import bitwise_and, bitwise_or
from functx.ops.operands import literal, promote_scalars
from functx.ops.rounding import round
from functx.ops.selection import select
from functx.ops.shaping import zeros_like
from functx.ops.trigonometric import cos, sin


class Hypot(Binary):
    """sqrt(x**2 + y**2) without overflow; its derivative at the origin is 0."""

    accepts = "f"
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

    def partial(self, i, t, out, x, y):
        # At the origin 0 / inf, of which all derivatives are 0 too.
        return mul(t, div((x, y)[i], select(eq(out, 0.0), math.inf, out)))

    def decompose(self, x, y):
        x, y = abs(x), abs(y)
        larger = max(x, y)
        ratio = div(min(x, y), _replace_zero_by_one(larger))
        out = mul(larger, sqrt(add(mul(ratio, ratio), 1.0)))
        infinite = bitwise_or(eq(x, math.inf), eq(y, math.inf))
        return select(infinite, math.inf, out)


class Logaddexp(Binary):
    """log(exp(x) + exp(y)) without overflow; the imaginary part lies from -pi to pi."""

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

    def partial(self, i, t, out, x, y):
        # The weights are those of softmax, and 1/2 where both are the same infinity.
        gap = sub(x, y) if i == 0 else sub(y, x)
        alike = bitwise_and(eq(x, y), eq(abs(x), math.inf))
        return mul(t, logistic(select(alike, 0.0, gap)))

    def decompose(self, x, y):
        gap = sub(x, y)
        swap = lt(real(gap), 0.0) if is_complex(x.dtype) else lt(gap, 0.0)
        out = add(select(swap, y, x), log1p(exp(select(swap, gap, neg(gap)))))
        # Between two infinities of one sign the gap is nan.
        out = select(eq(x, y), add(x, math.log(2.0)), out)
        if not is_complex(x.dtype):
            return out
        turns = round(div(imag(out), 2.0 * math.pi), to_even=True)
        return complex(real(out), sub(imag(out), mul(turns, 2.0 * math.pi)))


class CopyZeroSign(Binary):
    """x, whose zeros get the sign of y; it varies as x does."""

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

    def partial(self, i, t, out, x, y):
        return t if i == 0 else zeros_like(t)

    def preserves_zero(self, i, x, y):
        return True

    def decompose(self, x, y):
        zeros = [literal(zero, x.dtype) for zero in (-0.0, 0.0)]
        return select(eq(x, 0.0), select(lt(y, 0.0), *zeros), x)


class Sinc(Inexact):
    """The derivative of that order of sin(pi x) / (pi x), which at 0 is 1."""

    order: int = 0
    samples = (
        sample(f32[3, 4], tolerance=(4.0, "the recurrence cancels a digit near 0")),
        sample(f32[3], order=2, tolerance=(64.0, "the recurrence cancels two digits near 0")),
        sample(c64[3], tolerance=(16.0, "the recurrence cancels a digit near 0")),
        sample(f32[3], values={0: [0.0, 1.0, 2.0]}, gradients={0: [0.0, -1.0, 0.5]}),
        sample(f32[1], order=1, values={0: [0.0]}, gradients={0: [-(math.pi**2) / 3]}),
    )

    def derivative(self, out, x):
        return Sinc(self.order + 1)(x)

    def decompose(self, x):
        if x.dtype.itemsize < 4:
            return convert_element_type(self(convert_element_type(x, "float32")), x.dtype)
        z = mul(x, math.pi)
        value = mul(self.away_from_zero(z), math.pi**self.order)
        if self.order == 0:
            return select(eq(x, 0.0), 1.0, value)
        near = lt(abs(z), self.order + 1.0)
        return select(near, mul(self.near_zero(z), math.pi**self.order), value)

    def away_from_zero(self, z: Any) -> Any:
        # s(z) = sin(z) / z, and s^(k) z + k s^(k-1) = sin^(k)
        safe = _replace_zero_by_one(z)
        value = div(sin(z), safe)
        for k in range(1, self.order + 1):
            slope = (sin, cos)[k % 2](z)
            slope = neg(slope) if k % 4 in (2, 3) else slope
            value = div(sub(slope, mul(value, float(k))), safe)
        return value

    def near_zero(self, z: Any) -> Any:
        # The sum over even n of (-1)^(n/2) z^(n-k) / ((n-k)! (n+1))
        k = self.order
        first = k + k % 2
        square = mul(z, z)
        total = None
        for n in reversed(range(first, first + 3 * k + 27, 2)):
            term = (-1.0) ** (n // 2) / (math.factorial(n - k) * (n + 1))
            total = term if total is None else add(mul(total, square), term)
        return mul(total, z) if k % 2 else total


class Gcd(Bitwise):
    """The largest integer that divides x and y, 0 for zeros."""

    accepts = "iu"
    samples = sample(i32[3, 4], i32[3, 4], domain=(-12.0, 12.0)), sample(i32[()], i32[3])

    def lower(self, ctx, x, y):
        return ctx.via_jax(_gcd_of_magnitudes, x, y)


def _gcd_of_magnitudes(x: Any, y: Any) -> Any:
    """The divisor in unsigned numbers: with the lowest signed one, JAX's loop has no end."""
    dtype = x.dtype
    magnitudes = [jnp.abs(a).astype(f"uint{jnp.iinfo(dtype).bits}") for a in (x, y)]
    return jnp.gcd(*magnitudes).astype(dtype)


def _replace_zero_by_one(x: Any) -> Any:
    """`x` with 1 in place of 0."""
    return select(eq(x, 0.0), 1.0, x)


def hypot(x: Any, y: Any) -> Any:
    """sqrt(x**2 + y**2) without overflow, elementwise; its derivative at the origin is 0."""
    return Hypot()(*promote_scalars(x, y))


def logaddexp(x: Any, y: Any) -> Any:
    """log(exp(x) + exp(y)) without overflow, elementwise; ties share the derivative."""
    return Logaddexp()(*promote_scalars(x, y))


def copy_zero_sign(x: Any, y: Any) -> Any:
    """`x`, whose zeros get the sign of `y`, elementwise; it varies as `x` does."""
    return CopyZeroSign()(*promote_scalars(x, y))


def sinc(x: Any) -> Any:
    """sin(pi x) / (pi x), elementwise, which with all its derivatives is smooth at 0."""
    return Sinc()(x)


def gcd(x: Any, y: Any) -> Any:
    """The largest integer that divides x and y, elementwise; 0 for zeros."""
    return Gcd()(*promote_scalars(x, y))
