"""Exponential, sine and cosine integrals."""

from __future__ import annotations

import math

from ml_dtypes import finfo

from functx import ops
from functx.core.samples import Rounding, f32, i32, sample
from functx.core.typing import ArrayLike, Tangent, Value
from functx.lax.gamma_ratios import EULER_GAMMA
from functx.lax.parametric_functions import (
    FunctionOfOrder,
    KernelFunction,
    continued_fraction,
    iterate,
)
from functx.numpy.promotion import as_inexact
from functx.numpy.ufuncs import broadcast_inexact

__all__ = ["exp1", "expi", "expn", "sici"]

_ROUNDING = Rounding(ulps=256.0, is_absolute=True)


class Expn(FunctionOfOrder):
    """The integral of exp(-x t) / t**n over t from 1 to infinity, for an integer n >= 0 and x >= 0."""

    rounding = _ROUNDING
    samples = (sample(i32[3], f32[3], values={0: [1, 2, 0], 1: [0.6, 3.0, 2.0]}, dtypes=("f64",)),)

    def kernel(self, *args: Value) -> Value:
        n, x = args
        inside = (n >= 1.0) & (x > 0.0) & (x < math.inf) & (n == ops.floor(n))
        order = ops.select(inside, n, 1.0)
        above = inside & (x > 1.0)
        value = ops.select(
            above,
            _expn_fraction(order, ops.select(above, x, 2.0)),
            _expn_series(order, ops.select(inside & ~above, x, 0.5)),
        )
        at_zero = ops.select(n > 1.0, 1.0 / ops.select(n > 1.0, n - 1.0, 1.0), math.inf)
        ends = ops.select(x == 0.0, at_zero, ops.select(x > 0.0, ops.exp(-x) / x, math.nan))
        ends = ops.select((x == math.inf), 0.0, ends)
        valid = (n >= 0.0) & (n == ops.floor(n)) & (x >= 0.0)
        return ops.select(inside, value, ops.select(valid, ends, math.nan))

    def derivative(self, out: Value, n: Value, x: Value) -> Value:
        lower = Expn()(ops.max(n - 1.0, 0.0), x)
        return -ops.select(n >= 1.0, lower, ops.exp(-x) * (x + 1.0) / (x * x))


def _expn_fraction(n: Value, x: Value) -> Value:
    def coefficients(k: Value) -> tuple[Value, Value, Value]:
        size = k * (n + k - 1.0)
        return -size, size, x + n + 2.0 * k

    return ops.exp(-x) / continued_fraction(coefficients, x + n, x.dtype)


def _expn_series(n: Value, x: Value) -> Value:
    eps = float(finfo(x.dtype).eps)
    log_term = ops.digamma(n) - ops.log(x)

    # The sum of (-x)**k / k! times 1 / (n - 1 - k), or times the logarithmic term for k = n - 1.
    def part(k: Value, power: Value) -> Value:
        gap = n - 1.0 - k
        return power * ops.select(gap == 0.0, log_term, 1.0 / ops.select(gap == 0.0, 1.0, gap))

    def step(k: Value, state: tuple[Value, ...]) -> tuple[tuple[Value, ...], Value]:
        total, power = state
        power = power * (-x / k)
        return (total + part(k, power), power), (ops.abs(power) > 0.1 * eps) | (k <= 2.0)

    one = ops.constant_like(x, 1.0)
    return iterate(step, (part(ops.zeros_like(x), one), one), x.dtype)[0]


class Expi(KernelFunction):
    """The principal value of the integral of exp(t) / t over t from minus infinity to x."""

    rounding = _ROUNDING
    samples = (sample(f32[4], values={0: [-3.0, -0.4, 2.0, 50.0]}, dtypes=("f64",)),)

    def kernel(self, *args: Value) -> Value:
        (x,) = args
        size = ops.abs(x)
        small = (size > 0.0) & (size < 40.0)
        z = ops.select(small & (x > 0.0), size, 1.0)
        eps = float(finfo(x.dtype).eps)

        def step(k: Value, state: tuple[Value, ...]) -> tuple[tuple[Value, ...], Value]:
            total, power = state
            power = power * (z / k)
            return (total + power / k, power), power > eps * total

        series = iterate(step, (ops.zeros_like(z), ops.constant_like(z, 1.0)), x.dtype)[0]
        near = EULER_GAMMA + ops.log(z) + series
        large = ops.select(size >= 40.0, size, 40.0)
        inverse, total = 1.0 / large, ops.constant_like(x, 1.0)
        for k in reversed(range(1, 38)):
            total = 1.0 + total * (inverse * k)
        half = ops.exp(0.5 * large)
        far = half * (half * total / large)
        positive = ops.select(small, near, far)
        negative = -Expn().kernel(ops.constant_like(x, 1.0), ops.select(x < 0.0, -x, 1.0))
        value = ops.select(x < 0.0, negative, ops.select(x == 0.0, -math.inf, positive))
        return ops.select(x == math.inf, math.inf, ops.select(x == x, value, math.nan))

    def partial(self, i: int, t: Value, out: Value, x: Value) -> Tangent:
        return t * (ops.exp(x) / x)


class SineIntegral(KernelFunction):
    """The integral of sin(t) / t over t from 0 to x."""

    rounding = _ROUNDING
    samples = (sample(f32[3], values={0: [-0.7, 1.5, 9.0]}, dtypes=("f64",)),)

    def kernel(self, *args: Value) -> Value:
        (x,) = args
        size = ops.abs(x)
        value = ops.select(size <= _SWITCH, _near_zero(x)[0], _far(size)[0])
        value = ops.select(x == math.inf, 0.5 * math.pi, ops.select(x == x, value, math.nan))
        return ops.select(
            (x < 0.0) & (size > _SWITCH), -ops.select(size == math.inf, 0.5 * math.pi, value), value
        )

    def partial(self, i: int, t: Value, out: Value, x: Value) -> Tangent:
        return t * ops.sinc(x * (1.0 / math.pi))


class CosineIntegral(KernelFunction):
    """The cosine integral of |x|: log|x|, Euler's constant, and the integral of (cos(t) - 1) / t.

    It is nan at -inf, as in SciPy.
    """

    rounding = _ROUNDING
    samples = (sample(f32[3], values={0: [0.7, 1.5, 9.0]}, dtypes=("f64",)),)

    def kernel(self, *args: Value) -> Value:
        (x,) = args
        size = ops.abs(x)
        near = EULER_GAMMA + ops.log(size) + _near_zero(size)[1]
        value = ops.select(size <= _SWITCH, near, _far(size)[1])
        return ops.select(x == math.inf, 0.0, ops.select(x > -math.inf, value, math.nan))

    def partial(self, i: int, t: Value, out: Value, x: Value) -> Tangent:
        return t * (ops.cos(x) / x)


_SWITCH = 3.0
"""The size above which sine and cosine integrals are a continued fraction."""


def _near_zero(x: Value) -> tuple[Value, Value]:
    """The integrals of sin(t) / t and (cos(t) - 1) / t over t from 0 to x, by their power series."""
    x = ops.select(ops.abs(x) <= _SWITCH, x, 1.0)
    square = x * x
    sine, cosine = ops.zeros_like(x), ops.zeros_like(x)
    for k in reversed(range(14)):
        sine = 1.0 / (2 * k + 1) - sine * square / ((2 * k + 2) * (2 * k + 3))
        if k:
            cosine = 1.0 / (2 * k) - cosine * square / ((2 * k + 1) * (2 * k + 2))
    return x * sine, -0.5 * square * cosine


def _far(x: Value) -> tuple[Value, Value]:
    """Si(x) and Ci(x) for large x, from the exponential integral of i x."""
    x = ops.select((x > _SWITCH) & (x < math.inf), x, 10.0)
    zero, one = ops.zeros_like(x), ops.constant_like(x, 1.0)

    def coefficients(k: Value) -> tuple[Value, Value, Value]:
        return ops.complex(-k * k * one, zero), k * k * one, ops.complex(1.0 + 2.0 * k * one, x)

    fraction = continued_fraction(coefficients, ops.complex(one, x), x.dtype)
    value = ops.complex(ops.cos(x), -ops.sin(x)) / fraction
    return 0.5 * math.pi + ops.imag(value), -ops.real(value)


def exp1(x: ArrayLike) -> Value:
    """The exponential integral: that of exp(-t) / t over t from x to infinity; nan for negative x.

    >>> import functx
    >>> round(float(functx.scipy.special.exp1(1.0)), 4)
    0.2194
    """
    x = as_inexact(x)
    return Expn()(ops.constant_like(x, 1.0), x)


def expi(x: ArrayLike) -> Value:
    """The principal value of the integral of exp(t) / t over t from minus infinity to x.

    >>> import functx
    >>> round(float(functx.scipy.special.expi(1.0)), 4)
    1.8951
    """
    return Expi()(as_inexact(x))


def expn(n: ArrayLike, x: ArrayLike) -> Value:
    """The integral of exp(-x t) / t**n over t from 1 to infinity, for integers n >= 0 and x >= 0.

    It has no derivative in n.

    >>> import functx
    >>> round(float(functx.scipy.special.expn(2, 1.0)), 4)
    0.1485
    """
    return Expn()(*broadcast_inexact(ops.stop_gradient(n), x))


def sici(x: ArrayLike) -> tuple[Value, Value]:
    """The sine and the cosine integral; the latter is that of |x|.

    >>> import functx
    >>> [round(float(y), 4) for y in functx.scipy.special.sici(1.0)]
    [0.9461, 0.3374]
    """
    x = as_inexact(x)
    return SineIntegral()(x), CosineIntegral()(x)
