"""Parts of the gamma function that keep their digits where the function itself would lose them."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache

from functx import ops
from functx.core.typing import Value
from functx.lax.polynomial import polynomial

EULER_GAMMA = 0.57721566490153286061
LOG_TWO_PI = math.log(2.0 * math.pi)
STIRLING_MIN = 10.0
"""The smallest argument for which Stirling's series is exact in double precision."""
_STIRLING_COEFFICIENTS = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360, 1 / 156)


@lru_cache(maxsize=8)
def bernoulli_numbers(n: int) -> tuple[float, ...]:
    """The Bernoulli numbers B_0, B_1 = -1/2, ... B_n."""
    numbers = [Fraction(1)]
    for m in range(1, n + 1):
        known = sum([math.comb(m + 1, k) * numbers[k] for k in range(m)], Fraction(0))
        numbers.append(-known / (m + 1))
    return tuple([float(b) for b in numbers])


def zeta_minus_one(k: int) -> float:
    """The sum of n**-k for n from 2, for an integer k > 1."""
    n = 30
    # The Euler-Maclaurin formula after the first terms.
    tail = n ** (1 - k) / (k - 1) + 0.5 * n**-k + k * n ** (-k - 1) / 12
    tail -= k * (k + 1) * (k + 2) * n ** (-k - 3) / 720
    tail += k * (k + 1) * (k + 2) * (k + 3) * (k + 4) * n ** (-k - 5) / 30240
    return math.fsum([*[i**-k for i in range(2, n)], tail])


def sine_of_pi(x: Value) -> Value:
    """sin(pi x) for x >= 0, with all digits near integers."""
    folded = x - 2.0 * ops.floor(0.5 * x + 0.25)
    folded = ops.select(folded > 0.5, 1.0 - folded, folded)
    return ops.sin(folded * math.pi)


def stirling_remainder(z: Value) -> Value:
    """log gamma(z) - ((z - 1/2) log(z) - z + log(2 pi) / 2) for z of at least `STIRLING_MIN`."""
    inverse = 1.0 / z
    return inverse * polynomial(inverse * inverse, _STIRLING_COEFFICIENTS)


_LGAMMA_SERIES = tuple([(-1.0) ** k * zeta_minus_one(k) / k for k in range(2, 30)])


def lgamma_of_one_plus(x: Value) -> Value:
    """log gamma(1 + x) for x > -1/2, with all digits near 0."""
    near = ops.abs(x) < 0.5
    series = series_of_lgamma(ops.select(near, x, 0.0))
    return ops.select(near, series, ops.lgamma(ops.select(near, 1.0, x) + 1.0))


def series_of_lgamma(z: Value) -> Value:
    """log gamma(1 + z) for |z| < 1/2."""
    # z (1 - euler) - log(1 + z) + the sum of (zeta(k) - 1) (-z)**k / k
    return z * (1.0 - EULER_GAMMA) - ops.log1p(z) + z * z * polynomial(z, _LGAMMA_SERIES)


_LOG_SERIES = tuple([1.0 / (2 * n + 3) for n in range(15)])


def scaled_log_remainder(x: Value) -> Value:
    """(log(1 + x) - x) / x**2, which is -1/2 at 0."""
    near = (x > -0.4) & (x < 0.5)
    z = ops.select(near, x, 0.0)
    # With s = 1 / (2 + z), log(1 + z) = 2 artanh(z s).
    s = 1.0 / (2.0 + z)
    ratio = z * s
    series = 2.0 * z * s**3 * polynomial(ratio * ratio, _LOG_SERIES) - s
    far = ops.select(near, 1.0, x)
    return ops.select(near, series, (ops.log1p(far) - far) / far / far)


def log_remainder(x: Value, one_plus_x: Value) -> Value:
    """log(1 + x) - x, from x and 1 + x."""
    near = (x > -0.4) & (x < 0.5)
    z = ops.select(near, x, 0.0)
    far = ops.log(ops.select(near, 1.0, one_plus_x)) - x
    return ops.select(near, scaled_log_remainder(z) * z * z, far)


def log_gamma_ratio(a: Value, b: Value) -> Value:
    """log(gamma(a + b) / gamma(b)) for a, b > 0, with all digits where a is small or b large."""
    large = b >= STIRLING_MIN
    shifted = ops.select(large, b, b + STIRLING_MIN)
    total, ratio = a + shifted, a / shifted
    # The difference of the remainders, that of the first terms without cancellation.
    rest = _stirling_tail(total) - _stirling_tail(shifted) - ratio / (12.0 * total)
    value = (
        a * ops.log(shifted)
        + (a - 0.5) * ops.log1p(ratio)
        + shifted * log_remainder(ratio, total / shifted)
    )
    product = ops.zeros_like(b)
    for j in range(int(STIRLING_MIN)):
        product = product + ops.log1p(a / (b + j))
    return value + rest - ops.select(large, 0.0, product)


def _stirling_tail(z: Value) -> Value:
    """`stirling_remainder` without its first term."""
    inverse = 1.0 / z
    square = inverse * inverse
    return inverse * square * polynomial(square, _STIRLING_COEFFICIENTS[1:])


def falling_product(a: Value, n: int) -> Value:
    """(a - 1) ... (a - n)."""
    product = ops.constant_like(a, 1.0)
    for k in range(1, n + 1):
        product = product * (a - k)
    return product


def power_at_zero(exponent: Value, factor: Value, if_constant: Value) -> Value:
    """factor x**exponent at x = 0, 0 where the factor is; `if_constant` is the value for the exponent 0."""
    vanishes = (exponent > 0.0) | (factor == 0.0)
    value = ops.select(vanishes, ops.zeros_like(factor), factor * math.inf)
    return ops.select(exponent == 0.0, if_constant, value)
