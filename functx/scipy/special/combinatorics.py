"""Binomial coefficients, powers, Bernoulli numbers, and spherical harmonics."""

from __future__ import annotations

import math

from functx import ops
from functx.core.errors import ArgumentError
from functx.core.samples import Rounding, f32, i32, sample
from functx.core.tracer import aval_of
from functx.core.types import is_complex
from functx.core.typing import ArrayLike, Tangent, Value
from functx.lax.gamma_ratios import (
    LOG_TWO_PI,
    STIRLING_MIN,
    bernoulli_numbers,
    log_gamma_ratio,
    series_of_lgamma,
    sine_of_pi,
    stirling_remainder,
)
from functx.lax.parametric_functions import FunctionOfOrder, KernelFunction, State, iterate
from functx.numpy.array_creation import array
from functx.numpy.promotion import as_inexact
from functx.numpy.ufuncs import broadcast_inexact
from functx.scipy.special.elementary import gammasgn

__all__ = ["bernoulli", "boxcox", "boxcox1p", "comb", "loggamma", "poch", "sph_harm_y"]


def boxcox(x: ArrayLike, lmbda: ArrayLike) -> Value:
    """The Box-Cox transform (x**lmbda - 1) / lmbda, log(x) for lmbda = 0.

    >>> import functx
    >>> float(functx.scipy.special.boxcox(3.0, 1.0))
    2.0
    """
    x, lmbda = broadcast_inexact(x, lmbda)
    return _power_difference(x, ops.log(x), lmbda)


def boxcox1p(x: ArrayLike, lmbda: ArrayLike) -> Value:
    """The Box-Cox transform of 1 + x, with all digits near x = 0.

    >>> import functx
    >>> float(functx.scipy.special.boxcox1p(3.0, 1.0))
    3.0
    """
    x, lmbda = broadcast_inexact(x, lmbda)
    return _power_difference(ops.add(x, 1.0), ops.log1p(x), lmbda)


def _power_difference(base: Value, log: Value, power: Value) -> Value:
    """(base**power - 1) / power by `log`, that of the base; smooth at power = 0."""
    exponent = ops.mul(power, log)
    near = ops.bitwise_or(ops.lt(ops.abs(exponent), 0.1), ops.eq(power, 0.0))
    finite = ops.lt(ops.abs(log), math.inf)
    small = ops.select(ops.bitwise_and(near, finite), exponent, 0.0)
    series = ops.constant_like(small, 1.0)
    for k in reversed(range(2, 14)):
        series = ops.add(ops.mul(ops.div(small, k), series), 1.0)
    divisor = ops.select(near, 1.0, power)
    out = ops.select(near, ops.mul(log, series), ops.div(ops.expm1(exponent), divisor))
    # Where the logarithm is infinite, its derivatives are, and those of the power need not be.
    by_power = ops.bitwise_not(ops.bitwise_or(finite, ops.eq(power, 0.0)))
    return ops.select(by_power, ops.div(ops.sub(ops.pow(base, power), 1.0), divisor), out)


def poch(z: ArrayLike, m: ArrayLike) -> Value:
    """The Pochhammer symbol, the rising factorial gamma(z + m) / gamma(z).

    >>> import functx
    >>> round(float(functx.scipy.special.poch(3.0, 2.0)), 4)
    12.0
    """
    z, m = broadcast_inexact(z, m)
    total = ops.add(z, m)
    poles = [ops.bitwise_and(ops.le(x, 0.0), ops.eq(x, ops.floor(x))) for x in (z, total)]
    # (-1)**m gamma(1 - z) / gamma(1 - z - m) where both gamma functions are infinite.
    both = ops.bitwise_and(*poles)
    low = ops.select(both, ops.sub(1.0, total), z)
    high = ops.select(both, ops.sub(1.0, z), total)
    value = ops.exp(ops.sub(ops.lgamma(high), ops.lgamma(low)))
    # With all digits for large positive operands.
    positive = ops.bitwise_and(ops.gt(low, 0.0), ops.gt(high, low))
    start, step = ops.select(positive, low, 1.0), ops.select(positive, ops.sub(high, low), 1.0)
    value = ops.select(positive, ops.exp(LogGammaRatio()(step, start)), value)
    is_odd = ops.eq(ops.abs(ops.rem(m, 2.0)), 1.0)
    sign = ops.select(is_odd, -1.0, ops.constant_like(value, 1.0))
    direct = ops.mul(gammasgn(total), gammasgn(z))
    sign = ops.select(both, sign, ops.select(positive, 1.0, direct))
    infinite = ops.bitwise_and(poles[1], ops.bitwise_not(poles[0]))
    value = ops.select(infinite, math.inf, ops.mul(sign, value))
    # 0 where only gamma(z) is infinite, with derivatives, by 1 / gamma(z) = gamma(1 - z) sin(pi z) / pi.
    is_zero = ops.bitwise_and(poles[0], ops.bitwise_not(poles[1]))
    z, total = ops.select(is_zero, z, 0.0), ops.select(is_zero, total, 1.0)
    size = ops.mul(
        gammasgn(total), ops.exp(ops.add(ops.lgamma(total), ops.lgamma(ops.sub(1.0, z))))
    )
    product = ops.mul(size, ops.mul(sine_of_pi(ops.neg(z)), -1.0 / math.pi))
    return ops.select(is_zero, product, value)


class LogGammaRatio(KernelFunction):
    """log(gamma(a + b) / gamma(b)) for a >= 0 and b > 0, else nan."""

    rounding = Rounding(ulps=128.0, is_absolute=True)
    samples = (
        sample(f32[3], f32[3], values={0: [0.7, 2.0, 1e-3], 1: [0.4, 30.0, 3.0]}, dtypes=("f64",)),
    )

    def kernel(self, *args: Value) -> Value:
        a, b = args
        return ops.select((a >= 0.0) & (b > 0.0), log_gamma_ratio(a, b), math.nan)

    def partial(self, i: int, t: Value, out: Value, a: Value, b: Value) -> Tangent:
        slope = ops.digamma(a + b)
        return t * (slope if i == 0 else slope - ops.digamma(b))


def comb(N: ArrayLike, k: ArrayLike, *, repetition: bool = False) -> Value:  # noqa: N803
    """The number of combinations of k of N things, 0 for k > N and negative operands.

    With `repetition`, things may be taken several times. It is differentiable, as
    gamma(N + 1) / (gamma(k + 1) gamma(N - k + 1)).

    >>> import functx
    >>> float(functx.scipy.special.comb(5, 2))
    10.0
    """
    total, k = broadcast_inexact(N, k)
    if repetition:
        total = ops.sub(ops.add(total, k), 1.0)
    rest = ops.sub(total, k)
    empty = ops.bitwise_and(ops.eq(k, 0.0), ops.eq(rest, -1.0)) if repetition else None
    valid = ops.bitwise_and(ops.ge(k, 0.0), ops.ge(rest, 0.0))
    k, rest = ops.select(valid, k, 1.0), ops.select(valid, rest, 1.0)
    swapped = ops.gt(k, rest)
    few, many = ops.select(swapped, rest, k), ops.select(swapped, k, rest)
    ratio = LogGammaRatio()(few, ops.add(many, 1.0))
    value = ops.exp(ops.sub(ratio, ops.lgamma(ops.add(few, 1.0))))
    # Of whole numbers it is one.
    whole = ops.bitwise_and(ops.eq(k, ops.floor(k)), ops.eq(rest, ops.floor(rest)))
    whole = ops.bitwise_and(
        whole, ops.lt(value, 2.0**22 if aval_of(value).dtype.itemsize < 8 else 2.0**50)
    )
    gap = ops.sub(ops.floor(ops.add(value, 0.5)), value)
    value = ops.add(value, ops.stop_gradient(ops.select(whole, gap, 0.0)))
    value = ops.select(valid, value, 0.0)
    return value if empty is None else ops.select(empty, 1.0, value)


def bernoulli(n: int) -> Value:
    """The Bernoulli numbers B_0 = 1, B_1 = -1/2, ... B_n.

    Raises ArgumentError for a negative n.

    >>> import functx
    >>> functx.scipy.special.bernoulli(4)[2:]
    array([ 0.16666667,  0.        , -0.03333334], dtype=float32)
    """
    if not isinstance(n, int) or n < 0:
        raise ArgumentError(f"bernoulli: n must be an integer that is not negative; got {n!r}")
    return array(list(bernoulli_numbers(n)))


def loggamma(x: ArrayLike) -> Value:
    """The principal branch of the logarithm of the gamma function; nan for negative real x.

    >>> import functx
    >>> round(float(functx.scipy.special.loggamma(5.0)), 4)
    3.1781
    """
    x = as_inexact(x)
    if not is_complex(aval_of(x).dtype):
        return ops.select(ops.lt(x, 0.0), math.nan, ops.lgamma(x))
    # log(gamma(z)) + log(gamma(1 - z)) = log(pi / sin(pi z)), by a continuous logarithm of the sine.
    real, imag = ops.real(x), ops.imag(x)
    mirrored = ops.lt(real, 0.0)
    below = ops.lt(imag, 0.0)
    upper = ops.select(below, ops.conj(x), x)
    turned = ops.mul(upper, 1j * math.pi)
    inside = ops.select(mirrored, turned, 1j)
    log_sine = ops.sub(ops.log1p(ops.neg(ops.exp(ops.mul(inside, 2.0)))), inside)
    log_sine = ops.add(log_sine, 0.5j * math.pi - math.log(2.0))
    value = _loggamma_right(ops.select(mirrored, ops.sub(1.0, upper), upper))
    value = ops.select(mirrored, ops.sub(ops.sub(math.log(math.pi), log_sine), value), value)
    return ops.select(below, ops.conj(value), value)


def _loggamma_right(z: Value) -> Value:
    """The logarithm of gamma(z) for complex z of real part at least 0."""
    large = ops.ge(ops.abs(z), STIRLING_MIN)
    far = ops.select(large, z, ops.add(z, STIRLING_MIN))
    value = ops.sub(ops.mul(ops.sub(far, 0.5), ops.log(far)), far)
    value = ops.add(value, ops.add(stirling_remainder(far), 0.5 * LOG_TWO_PI))
    product = ops.zeros_like(z)
    for j in range(int(STIRLING_MIN)):
        product = ops.add(product, ops.log(ops.add(ops.select(large, 1.0, z), float(j))))
    value = ops.select(large, value, ops.sub(value, product))
    # Near its zeros 1 and 2.
    for zero in (1.0, 2.0):
        gap = ops.sub(z, zero)
        near = ops.lt(ops.abs(gap), 0.4)
        u = ops.select(near, gap, 0.0)
        series = series_of_lgamma(u)
        if zero == 2.0:
            series = ops.add(series, ops.log1p(u))
        value = ops.select(near, series, value)
    return value


class SphericalLegendre(FunctionOfOrder):
    """The normalized Legendre function of degree n and order m at cos(theta), with the phase (-1)**m.

    The spherical harmonic is its product with exp(i m phi). As SciPy's, it is even in theta.
    """

    rounding = Rounding(ulps=256.0, is_absolute=True)
    num_orders = 2
    samples = (
        sample(
            i32[3],
            i32[3],
            f32[3],
            values={0: [2, 3, 1], 1: [1, -2, 0], 2: [0.4, 1.2, 0.3]},
            dtypes=("f64",),
        ),
    )

    def kernel(self, *args: Value) -> Value:
        n, m, theta = args
        order = ops.abs(m)
        sine, cosine = ops.abs(ops.sin(theta)), ops.cos(theta)

        def step(k: Value, state: State) -> tuple[State, Value]:
            value, before = state
            diagonal = k <= order
            below = ops.select(diagonal, 1.0, k * k - order * order)
            scale = ops.sqrt((4.0 * k * k - 1.0) / below)
            weight = ops.max((k - 1.0) * (k - 1.0) - order * order, 0.0) / (
                4.0 * (k - 1.0) * (k - 1.0) - 1.0
            )
            upward = scale * (cosine * value - ops.sqrt(ops.max(weight, 0.0)) * before)
            along = -ops.sqrt(1.0 + 0.5 / k) * sine * value
            active = k <= n
            found = ops.select(active, ops.select(diagonal, along, upward), value)
            kept = ops.select(active, ops.select(diagonal, 0.0, value), before)
            return (found, kept), k < n

        first = ops.constant_like(theta, 0.5 / math.sqrt(math.pi))
        value = iterate(step, (first, ops.zeros_like(theta)), theta.dtype, extra=1.0)[0]
        is_odd = ops.rem(order, 2.0) == 1.0
        value = ops.select((m < 0.0) & is_odd, -value, value)
        return ops.select(order > n, 0.0, value)

    def derivative(self, out: Value, n: Value, m: Value, theta: Value) -> Value:
        up, down = (n - m) * (n + m + 1.0), (n + m) * (n - m + 1.0)
        above = ops.sqrt(ops.max(up, 0.0)) * SphericalLegendre()(n, m + 1.0, theta)
        below = ops.sqrt(ops.max(down, 0.0)) * SphericalLegendre()(n, m - 1.0, theta)
        return ops.select(ops.sin(theta) < 0.0, -0.5, 0.5) * (above - below)


def sph_harm_y(
    n: ArrayLike,
    m: ArrayLike,
    theta: ArrayLike,
    phi: ArrayLike,
    diff_n: int | None = None,
    n_max: int | None = None,
) -> Value:
    """The spherical harmonic of degree n and order m at the polar angle theta and the azimuth phi.

    `n_max` is accepted for programs written for JAX, and not needed. Raises ArgumentError for a
    `diff_n`: derivatives are those of `functx.grad`.

    >>> import functx
    >>> functx.scipy.special.sph_harm_y(0, 0, 0.3, 0.2).round(4)
    array(0.2821+0.j, dtype=complex64)
    """
    if diff_n is not None:
        raise ArgumentError(
            f"sph_harm_y: diff_n must be None; got {diff_n!r}", fix="Use functx.grad."
        )
    theta, phi = broadcast_inexact(theta, phi)
    degree, order, theta, phi = broadcast_inexact(
        *[
            ops.convert_element_type(ops.stop_gradient(as_inexact(x)), aval_of(theta).dtype)
            for x in (n, m)
        ],
        theta,
        phi,
    )
    value = SphericalLegendre()(degree, order, theta)
    angle = ops.mul(order, phi)
    return ops.complex(ops.mul(value, ops.cos(angle)), ops.mul(value, ops.sin(angle)))
