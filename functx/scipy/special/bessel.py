"""Bessel functions of real order, differentiable in the argument."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

from ml_dtypes import finfo

from functx import ops
from functx.core.errors import ArgumentError
from functx.core.samples import Rounding, f32, i32, sample
from functx.core.tracer import aval_of
from functx.core.types import is_complex
from functx.core.typing import ArrayLike, Value
from functx.lax.gamma_ratios import (
    EULER_GAMMA,
    lgamma_of_one_plus,
    sine_of_pi,
    zeta_minus_one,
)
from functx.lax.parametric_functions import (
    FunctionOfOrder,
    State,
    continued_fraction,
    iterate,
    sum_series,
)
from functx.lax.polynomial import polynomial
from functx.numpy.joining import stack
from functx.numpy.promotion import as_inexact
from functx.numpy.ufuncs import broadcast_inexact

__all__ = ["bessel_jn", "iv", "ive", "j0", "j1", "jn", "jv", "kv", "kve", "y0", "y1", "yn", "yv"]

_LIMIT = 20000.0
"""The largest argument outside the asymptotic expansion, and the largest order."""


class BesselFunction(FunctionOfOrder, abstract=True):
    """A Bessel function of the order v, the first operand, and of a real argument.

    By the methods of Temme and Steed, with recurrences in the order, and by Hankel's expansion where
    the argument is larger than 25 and half the square of the order.
    """

    rounding = Rounding(ulps=4096.0, is_absolute=True)
    samples = (sample(i32[3], f32[3], values={0: [0, 2, 1], 1: [1.3, 0.4, 30.0]}, dtypes=("f64",)),)


class Jv(BesselFunction):
    """The Bessel function of the first kind J of real order."""

    def kernel(self, *args: Value) -> Value:
        return _oscillating(*args)[0]

    def derivative(self, out: Value, v: Value, x: Value) -> Value:
        return 0.5 * (Jv()(v - 1.0, x) - Jv()(v + 1.0, x))


class Yv(BesselFunction):
    """The Bessel function of the second kind Y of real order, of a positive argument."""

    def kernel(self, *args: Value) -> Value:
        return _oscillating(*args)[1]

    def derivative(self, out: Value, v: Value, x: Value) -> Value:
        return 0.5 * (Yv()(v - 1.0, x) - Yv()(v + 1.0, x))


class Ive(BesselFunction):
    """exp(-|x|) times the modified Bessel function of the first kind I of real order."""

    def kernel(self, *args: Value) -> Value:
        return _modified(*args)[0]

    def derivative(self, out: Value, v: Value, x: Value) -> Value:
        return 0.5 * (Ive()(v - 1.0, x) + Ive()(v + 1.0, x)) - ops.sign(x) * out


class Kve(BesselFunction):
    """exp(x) times the modified Bessel function of the second kind K of real order."""

    def kernel(self, *args: Value) -> Value:
        return _modified(*args)[1]

    def derivative(self, out: Value, v: Value, x: Value) -> Value:
        return out - 0.5 * (Kve()(v - 1.0, x) + Kve()(v + 1.0, x))


class _Order(NamedTuple):
    """An order v = mu + steps with |mu| <= 1/2, or a smaller mu for the oscillating functions."""

    v: Value
    mu: Value
    steps: Value


def _reflect(v: Value, first: Value, second: Value, modified: bool) -> tuple[Value, Value]:
    """The functions of a negative order `v`, from those of order -v."""
    # sin and cos of pi v, exact at multiples of 1/2
    size = -v
    part = ops.rem(size, 2.0)
    sine, cosine = sine_of_pi(part), sine_of_pi(part + 0.5)
    negative = v < 0.0
    finite = ops.select(sine == 0.0, 0.0, second)
    if modified:
        # I_-v = I_v + 2 / pi sin(pi v) K_v, K_-v = K_v
        return ops.select(negative, first + (2.0 / math.pi) * sine * finite, first), second
    first_again = ops.select(cosine == 0.0, 0.0, first)
    second_again = ops.select(cosine == 0.0, 0.0, second)
    # J_-v = cos(pi v) J_v - sin(pi v) Y_v, Y_-v = sin(pi v) J_v + cos(pi v) Y_v
    j = cosine * first_again - sine * finite
    y = sine * first + cosine * second_again
    return ops.select(negative, j, first), ops.select(negative, y, second)


@lru_cache(maxsize=1)
def _reciprocal_gamma_coefficients() -> tuple[float, ...]:
    """The coefficients of z**k in 1 / gamma(1 + z)."""
    logs = [0.0, EULER_GAMMA]
    logs += [-((-1.0) ** k) * (1.0 + zeta_minus_one(k)) / k for k in range(2, 26)]
    found = [1.0]
    for n in range(1, 26):
        found.append(math.fsum([k * logs[k] * found[n - k] for k in range(1, n + 1)]) / n)
    return tuple(found)


def _temme(mu: Value) -> tuple[Value, Value, Value, Value]:
    """Gamma_1 and Gamma_2 of Temme (1975), and 1 / gamma(1 + mu) and 1 / gamma(1 - mu)."""
    coefficients, square = _reciprocal_gamma_coefficients(), mu * mu
    even, odd = polynomial(square, coefficients[::2]), polynomial(square, coefficients[1::2])
    return -odd, even, even + mu * odd, even - mu * odd


def _hyperbolic(x: Value) -> tuple[Value, Value]:
    """cosh(x) and sinh(x) / x."""
    near = ops.abs(x) < 0.5
    z = ops.select(near, x, 0.1)
    terms = [1.0 / math.factorial(2 * k + 1) for k in range(9)]
    far = ops.select(near, 1.0, x)
    return ops.cosh(x), ops.select(near, polynomial(z * z, terms), ops.sinh(far) / far)


def _temme_series(mu: Value, x: Value, sign: float) -> tuple[Value, Value]:
    """The sums for the orders mu and mu + 1 of Y, or for `sign` = 1 of K, for x < 2."""
    eps = float(finfo(x.dtype).eps)
    gamma1, gamma2, gamma_plus, gamma_minus = _temme(mu)
    log = ops.log(2.0 / x)
    cosh, sinh = _hyperbolic(mu * log)
    power = ops.exp(mu * log)
    angle = mu * math.pi
    ratio = ops.select(angle == 0.0, 1.0, angle) / ops.select(angle == 0.0, 1.0, ops.sin(angle))
    scale = 0.5 if sign > 0.0 else 1.0 / math.pi
    f = 2.0 * scale * ratio * (gamma1 * cosh + gamma2 * sinh * log)
    p, q = scale * power / gamma_plus, scale / (power * gamma_minus)
    half = 0.5 * angle
    # pi**2 mu / 2 times (sin(h) / h)**2, with h = pi mu / 2, divided by the sign of the recurrence
    safe = ops.select(half == 0.0, 1.0, half)
    r = math.pi * half * ops.square(ops.select(half == 0.0, 1.0, ops.sin(safe) / safe))
    r = ops.zeros_like(x) if sign > 0.0 else r
    square = x * x * (0.25 * sign)
    first = (f + r * q, p, f, p, q, ops.constant_like(x, 1.0))

    def step(k: Value, state: State) -> tuple[State, Value]:
        total, other, f, p, q, c = state
        f = (k * f + p + q) / (k * k - mu * mu)
        c, p, q = c * square / k, p / (k - mu), q / (k + mu)
        change = c * (f + r * q)
        total, other = total + change, other + c * p - k * c * (f + r * q if sign < 0.0 else f)
        return (total, other, f, p, q, c), ops.abs(change) > eps * (1.0 + ops.abs(total))

    total, other = iterate(step, first, x.dtype)[:2]
    return (total, other * (2.0 / x)) if sign > 0.0 else (-total, -other * (2.0 / x))


def _power_series(v: Value, x: Value, sign: float) -> Value:
    """J of order v, or for `sign` = 1 I, for x < 2."""
    square = x * x * (0.25 * sign)
    eps = float(finfo(x.dtype).eps)
    one = ops.constant_like(x, 1.0)
    total = 1.0 + sum_series(lambda k: square / (k * (v + k)), one, 0.25 * eps)
    return ops.exp(v * ops.log(0.5 * x) - lgamma_of_one_plus(v)) * total


def _logarithmic_slope(v: Value, x: Value, sign: float) -> tuple[Value, Value]:
    """J' / J of order v and the sign of J, or for `sign` = 1 I' / I, by the first continued fraction."""
    info = finfo(x.dtype)
    eps, tiny = float(info.eps), float(info.tiny) * 1e4

    def nonzero(z: Value) -> Value:
        return ops.select(ops.abs(z) < tiny, tiny, z)

    def step(k: Value, state: State) -> tuple[State, Value]:
        total, c, d, is_negative = state
        b = 2.0 * (v + k) / x
        d = 1.0 / nonzero(b + sign * d)
        c = nonzero(b + sign / c)
        factor = c * d
        is_negative = ops.select(d < 0.0, -is_negative, is_negative)
        return (total * factor, c, d, is_negative), ops.abs(factor - 1.0) > 4.0 * eps

    start = nonzero(v / x)
    one = ops.constant_like(x, 1.0)
    state = (start, start, ops.zeros_like(x), one)
    total, _, _, sign_of_j = iterate(step, state, x.dtype, limit=60000, extra=2.0)
    return total, sign_of_j


def _downward(order: _Order, x: Value, slope: Value, sign: float) -> tuple[Value, Value]:
    """The logarithmic slope at the order mu, and the ratio of the functions of orders v and mu.

    Both are of the first kind; the recurrence is scaled where it would overflow.
    """
    large = math.sqrt(float(finfo(x.dtype).max)) * 1e-4
    one = ops.constant_like(x, 1.0)

    def step(k: Value, state: State) -> tuple[State, Value]:
        value, derivative, ratio = state
        factor = (order.v - (k - 1.0)) / x
        lower = factor * value + derivative
        below = (factor - 1.0 / x) * lower + sign * value
        active = k <= order.steps
        value, derivative = ops.select(active, lower, value), ops.select(active, below, derivative)
        big = ops.abs(value) > large
        shrink = ops.select(big, 1.0 / large, one)
        return (value * shrink, derivative * shrink, ratio * shrink), k < order.steps

    value, derivative, ratio = iterate(step, (one, slope, one), x.dtype, limit=30000, extra=1.0)
    safe = ops.select(value == 0.0, float(finfo(x.dtype).tiny), value)
    return derivative / safe, ratio / safe


def _upward(order: _Order, x: Value, value: Value, next_value: Value, sign: float) -> Value:
    """The function of the second kind of order v, from those of the orders mu and mu + 1."""

    def step(k: Value, state: State) -> tuple[State, Value]:
        value, other = state
        found = (order.mu + k) * (2.0 / x) * other + sign * value
        found = ops.select(ops.abs(other) == math.inf, other, found)
        active = k <= order.steps
        return (ops.select(active, other, value), ops.select(active, found, other)), k < order.steps

    return iterate(step, (value, next_value), x.dtype, limit=30000, extra=1.0)[0]


def _oscillating(v: Value, x: Value) -> tuple[Value, Value]:
    """J and Y of real order `v`."""
    order, size, valid, near, far = _regions(v, x)
    found = _steed(ops.select(near, order, 0.0), ops.select(near, size, 2.0))
    asymptotic = _hankel(ops.select(far, order, 0.0), ops.select(far, size, 30.0))
    values = [ops.select(near, a, b) for a, b in zip(found, asymptotic, strict=True)]
    one, zero = ops.constant_like(x, 1.0), ops.zeros_like(x)
    ends = ops.select(order == 0.0, one, zero), ops.constant_like(x, -math.inf)
    is_end = valid & ((size == 0.0) | (size == math.inf))
    ends = ops.select(size == math.inf, 0.0, ends[0]), ops.select(size == math.inf, 0.0, ends[1])
    known = valid & (near | far)
    first, second = [
        ops.select(known, a, ops.select(is_end, b, math.nan))
        for a, b in zip(values, ends, strict=True)
    ]
    return _at_sign(v, x, *_reflect(v, first, second, False))


def _regions(v: Value, x: Value) -> tuple[Value, Value, Value, Value, Value]:
    """|v|, |x|, and three masks: of numbers, of points for recurrences and of those for asymptotic series."""
    size, order = ops.abs(x), ops.abs(v)
    valid = (order < math.inf) & (size == size)
    far = (size >= 25.0) & (size >= 0.5 * order * order) & (size < math.inf)
    near = valid & ~far & (size > 0.0) & (size <= _LIMIT) & (order <= _LIMIT)
    return order, size, valid, near, far


def _at_sign(v: Value, x: Value, first: Value, second: Value) -> tuple[Value, Value]:
    """Functions of both kinds at `x`, given those at |x|.

    J_n(-x) = (-1)**n J_n(x), and so for I; other functions of negative arguments are complex.
    """
    whole = v == ops.floor(v)
    is_odd = ops.abs(ops.rem(v, 2.0)) == 1.0
    mirrored = ops.select(whole, ops.select(is_odd, -first, first), math.nan)
    return ops.select(x < 0.0, mirrored, first), ops.select(x < 0.0, math.nan, second)


def _steed(v: Value, x: Value) -> tuple[Value, Value]:
    small = x < 2.0
    steps = ops.floor(ops.max(ops.select(small, v + 0.5, v - x + 1.5), 0.0))
    order = _Order(v, v - steps, steps)
    slope, sign_of_j = _logarithmic_slope(v, x, -1.0)
    f, ratio = _downward(order, x, slope, -1.0)
    mu = order.mu
    y, next_y = _temme_series(ops.select(small, mu, 0.0), ops.select(small, x, 1.0), -1.0)
    j = _power_series(ops.select(small, v, 0.0), ops.select(small, x, 1.0), -1.0)
    wronskian = (2.0 / math.pi) / x
    # p + i q of Steed, with which J' = p J - q Y and Y' = q J + p Y
    z, order_z = ops.select(small, 3.0, x), ops.select(small, 0.0, mu)
    one = ops.constant_like(x, 1.0)

    def coefficients(k: Value) -> tuple[Value, Value, Value]:
        a = ops.square(k + 0.5) - order_z * order_z
        return ops.complex(a, ops.zeros_like(a)), ops.abs(a), 2.0 * ops.complex(z, (k + 1.0) * one)

    start = 0.25 - order_z * order_z
    fraction = continued_fraction(coefficients, 2.0 * ops.complex(z, one), x.dtype)
    quotient = ops.complex(start, ops.zeros_like(start)) / fraction
    p, q = -0.5 / z - ops.imag(quotient) / z, 1.0 + ops.real(quotient) / z
    gamma = (p - f) / q
    safe_gamma = ops.select(gamma == 0.0, float(finfo(x.dtype).tiny), gamma)
    j_large = ops.sqrt(wronskian / ((p - f) * gamma + q))
    # J of order v is positive times the sign of the fraction, and `ratio` of it at the order mu.
    j_large = ops.select(ratio * sign_of_j < 0.0, -j_large, j_large)
    y_large = j_large * gamma
    slope_of_y = j_large * safe_gamma * (p + q / safe_gamma)
    next_large = mu / z * y_large - slope_of_y
    y, next_y = ops.select(small, y, y_large), ops.select(small, next_y, next_large)
    return ops.select(small, j, j_large * ratio), _upward(order, x, y, next_y, -1.0)


def _hankel_sums(v: Value, x: Value, sign: float) -> tuple[Value, Value]:
    """The sums over even and odd k of Hankel's expansion, of terms with alternating signs within each."""
    square, inverse = 4.0 * v * v, 0.125 / x
    term = ops.constant_like(x, 1.0)
    sums = [term, ops.zeros_like(x)]
    size = term
    for k in range(1, 32):
        grown = term * (square - (2 * k - 1) ** 2) * inverse * (1.0 / k)
        # Up to the smallest term.
        kept = ops.abs(grown) <= ops.abs(size)
        term = ops.select(kept, grown, 0.0)
        size = term
        alternate = -1.0 if sign < 0.0 and k // 2 % 2 else 1.0
        sums[k % 2] = sums[k % 2] + alternate * term
    return sums[0], sums[1]


def _hankel(v: Value, x: Value) -> tuple[Value, Value]:
    p, q = _hankel_sums(v, x, -1.0)
    # The angle x - (v / 2 + 1 / 4) pi, by sums of angles.
    turn = ops.rem(0.5 * v + 0.25, 2.0)
    sine_turn, cosine_turn = sine_of_pi(turn), sine_of_pi(turn + 0.5)
    sine, cosine = ops.sin(x), ops.cos(x)
    s, c = sine * cosine_turn - cosine * sine_turn, cosine * cosine_turn + sine * sine_turn
    scale = ops.sqrt((2.0 / math.pi) / x)
    return scale * (p * c - q * s), scale * (p * s + q * c)


def _modified(v: Value, x: Value) -> tuple[Value, Value]:
    """exp(-|x|) I and exp(x) K of real order `v`."""
    order, size, valid, near, far = _regions(v, x)
    found = _steed_modified(ops.select(near, order, 0.0), ops.select(near, size, 2.0))
    far_x = ops.select(far, size, 30.0)
    even, odd = _hankel_sums(ops.select(far, order, 0.0), far_x, 1.0)
    asymptotic = (
        (even - odd) / ops.sqrt(far_x * (2.0 * math.pi)),
        (even + odd) * ops.sqrt((0.5 * math.pi) / far_x),
    )
    one, zero = ops.constant_like(x, 1.0), ops.zeros_like(x)
    infinite = size == math.inf
    ends = (
        ops.select(infinite, 0.0, ops.select(order == 0.0, one, zero)),
        ops.select(infinite, zero, math.inf),
    )
    is_end = valid & ((size == 0.0) | infinite)
    first, second = [
        ops.select(near, a, ops.select(far & valid, b, ops.select(is_end, c, math.nan)))
        for a, b, c in zip(found, asymptotic, ends, strict=True)
    ]
    # In the reflection, K is scaled as I is.
    scaled = ops.select(second == math.inf, math.inf, second * ops.exp(-2.0 * size))
    first, _ = _reflect(v, first, scaled, True)
    return _at_sign(v, x, first, second)


def _steed_modified(v: Value, x: Value) -> tuple[Value, Value]:
    small = x < 2.0
    steps = ops.floor(v + 0.5)
    order = _Order(v, v - steps, steps)
    mu = order.mu
    slope, _ = _logarithmic_slope(v, x, 1.0)
    f, ratio = _downward(order, x, slope, 1.0)
    series_x = ops.select(small, x, 1.0)
    k_small, next_small = _temme_series(ops.select(small, mu, 0.0), series_x, 1.0)
    scale = ops.exp(series_x)
    k_large, next_large = _second_fraction(ops.select(small, 0.0, mu), ops.select(small, 3.0, x))
    k = ops.select(small, k_small * scale, k_large)
    next_k = ops.select(small, next_small * scale, next_large)
    i_small = _power_series(ops.select(small, v, 0.0), series_x, 1.0) / scale
    # The Wronskian gives I from K and its derivative.
    i_large = ratio / (x * (f * k - mu / x * k + next_k))
    return ops.select(small, i_small, i_large), _upward(order, x, k, next_k, 1.0)


def _second_fraction(mu: Value, x: Value) -> tuple[Value, Value]:
    """exp(x) K of the orders mu and mu + 1 for x >= 2, by Temme's method for Steed's fraction."""
    eps = float(finfo(x.dtype).eps)
    start = 0.25 - mu * mu
    b = 2.0 * (1.0 + x)
    d = 1.0 / b
    zero, one = ops.zeros_like(x), ops.constant_like(x, 1.0)
    first = (one + start * d, start, -start, start, zero, one, b, d, d, d)

    def step(k: Value, state: State) -> tuple[State, Value]:
        total, q, a, c, low, high, b, d, h, change = state
        a = a - 2.0 * k
        c = -a * c / (k + 1.0)
        new = (low - b * high) / a
        q = q + c * new
        b = b + 2.0
        d = 1.0 / (b + a * d)
        change = (b * d - 1.0) * change
        total = total + q * change
        state = total, q, a, c, high, new, b, d, h + change, change
        return state, ops.abs(q * change) > eps * ops.abs(total)

    final = iterate(step, first, x.dtype)
    total, h = final[0], start * final[8]
    k = ops.sqrt((0.5 * math.pi) / x) / total
    return k, k * (mu + x + 0.5 - h) / x


def jv(v: ArrayLike, z: ArrayLike) -> Value:
    """The Bessel function of the first kind of real order v, differentiable in z.

    Its absolute error is about 1e-15 times the square root of z, for orders and arguments up to 20,000,
    and for larger arguments than half the square of the order; nan elsewhere, and where it is complex.

    >>> import functx
    >>> round(float(functx.scipy.special.jv(0.5, 1.0)), 4)
    0.6714
    """
    return Jv()(*broadcast_inexact(v, z))


def yv(v: ArrayLike, z: ArrayLike) -> Value:
    """The Bessel function of the second kind of real order v, differentiable in z; as `jv`.

    >>> import functx
    >>> round(float(functx.scipy.special.yv(0.5, 1.0)), 4)
    -0.4311
    """
    return Yv()(*broadcast_inexact(v, z))


def ive(v: ArrayLike, z: ArrayLike) -> Value:
    """exp(-|z|) `iv(v, z)`, which does not overflow.

    >>> import functx
    >>> round(float(functx.scipy.special.ive(0.5, 1.0)), 4)
    0.345
    """
    return Ive()(*broadcast_inexact(v, z))


def kve(v: ArrayLike, z: ArrayLike) -> Value:
    """exp(z) `kv(v, z)`, which does not underflow.

    >>> import functx
    >>> round(float(functx.scipy.special.kve(0.5, 1.0)), 4)
    1.2533
    """
    return Kve()(*broadcast_inexact(v, z))


def iv(v: ArrayLike, z: ArrayLike) -> Value:
    """The modified Bessel function of the first kind of real order v, differentiable in z.

    It is for the orders and arguments of `jv`.

    >>> import functx
    >>> round(float(functx.scipy.special.iv(0.5, 1.0)), 4)
    0.9377
    """
    v, z = broadcast_inexact(v, z)
    half = ops.exp(ops.mul(ops.abs(z), 0.5))
    return ops.mul(ops.mul(Ive()(v, z), half), half)


def kv(v: ArrayLike, z: ArrayLike) -> Value:
    """The modified Bessel function of the second kind of real order v, differentiable in z.

    It is for the orders and arguments of `jv`.

    >>> import functx
    >>> round(float(functx.scipy.special.kv(0.5, 1.0)), 4)
    0.4611
    """
    v, z = broadcast_inexact(v, z)
    return ops.mul(Kve()(v, z), ops.exp(ops.neg(z)))


def j0(x: ArrayLike) -> Value:
    """The Bessel function of the first kind of order 0, `jv(0, x)`.

    >>> import functx
    >>> round(float(functx.scipy.special.j0(1.0)), 4)
    0.7652
    """
    return jv(0.0, x)


def j1(x: ArrayLike) -> Value:
    """The Bessel function of the first kind of order 1, `jv(1, x)`.

    >>> import functx
    >>> round(float(functx.scipy.special.j1(1.0)), 4)
    0.4401
    """
    return jv(1.0, x)


def y0(x: ArrayLike) -> Value:
    """The Bessel function of the second kind of order 0, `yv(0, x)`.

    >>> import functx
    >>> round(float(functx.scipy.special.y0(1.0)), 4)
    0.0883
    """
    return yv(0.0, x)


def y1(x: ArrayLike) -> Value:
    """The Bessel function of the second kind of order 1, `yv(1, x)`.

    >>> import functx
    >>> round(float(functx.scipy.special.y1(1.0)), 4)
    -0.7812
    """
    return yv(1.0, x)


def jn(n: ArrayLike, x: ArrayLike) -> Value:
    """The Bessel function of the first kind of integer order n, `jv(n, x)`.

    >>> import functx
    >>> round(float(functx.scipy.special.jn(2, 1.0)), 4)
    0.1149
    """
    return jv(n, x)


def yn(n: ArrayLike, x: ArrayLike) -> Value:
    """The Bessel function of the second kind of integer order n, `yv(n, x)`.

    >>> import functx
    >>> round(float(functx.scipy.special.yn(2, 1.0)), 4)
    -1.6507
    """
    return yv(n, x)


def bessel_jn(z: ArrayLike, *, v: int, n_iter: int = 50) -> Value:
    """The Bessel functions of the first kind of the orders 0, 1, ... v, along a new first axis.

    `n_iter` is accepted for programs written for JAX, and not needed. Raises ArgumentError for a
    complex argument, and for a `v` that is not a Python integer of at least 0.

    >>> import functx
    >>> functx.scipy.special.bessel_jn(1.0, v=1).round(4)
    array([0.7652, 0.4401], dtype=float32)
    """
    z = as_inexact(z)
    if is_complex(aval_of(z).dtype):
        raise ArgumentError(f"bessel_jn: z must be real; got {aval_of(z)!r}")
    if not isinstance(v, int) or v < 0:
        raise ArgumentError(f"bessel_jn: v must be an integer that is not negative; got {v!r}")
    return stack([Jv()(ops.constant_like(z, float(n)), z) for n in range(v + 1)])
