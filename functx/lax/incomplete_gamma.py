"""Incomplete gamma functions, with all derivatives in both operands."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache, reduce
from typing import Any

from ml_dtypes import finfo

from functx import ops
from functx.core.samples import Rounding, f32, sample
from functx.core.typing import ArrayLike, Tangent, Value
from functx.lax.gamma_ratios import (
    STIRLING_MIN,
    falling_product,
    lgamma_of_one_plus,
    log_remainder,
    power_at_zero,
    scaled_log_remainder,
    stirling_remainder,
)
from functx.lax.parametric_functions import (
    ParametricFunction,
    continued_fraction,
    sum_series,
)
from functx.lax.polynomial import polynomial
from functx.ops.families import Binary
from functx.ops.operands import cast_like, promote_scalars, upcast_half


class IncompleteGamma(ParametricFunction):
    """The regularized incomplete gamma function of a and x: the lower, or with `is_upper` the upper one.

    P(a, x) is the integral of t**(a - 1) exp(-t) / gamma(a) over t from 0 to x, and Q = 1 - P.
    """

    is_upper: bool = False
    rounding = Rounding(ulps=256.0)
    samples = (
        sample(
            f32[4],
            f32[4],
            values={0: [0.3, 2.5, 25.0, 30.0], 1: [0.7, 4.0, 26.0, 20.0]},
            dtypes=("f64",),
        ),
        sample(
            f32[3],
            f32[3],
            values={0: [1.0, 2.0, 3.0], 1: [0.0, 0.0, math.inf]},
            gradients={0: [0.0, 0.0, 0.0], 1: [-1.0, 0.0, 0.0]},
            dtypes=("f64",),
            is_upper=True,
        ),
    )

    def value(self, *args: Value) -> Value:
        a, x = args
        inside = (a > 0.0) & (x > 0.0) & (a < math.inf) & (x < math.inf)
        pair = incomplete_gammas(ops.select(inside, a, 1.0), ops.select(inside, x, 1.0))
        inner = pair[1] if self.is_upper else pair[0]
        return ops.select(inside, inner, self.at_ends(a, x))

    def at_ends(self, a: Value, x: Value) -> Value:
        """The limits where an operand is 0 or infinite, nan where there is none."""
        zero, one = ops.zeros_like(x), ops.constant_like(x, 1.0)
        below = (a > 0.0) & ((x == 0.0) | ((a == math.inf) & (x < math.inf)))
        above = ((a == 0.0) & (x > 0.0)) | ((x == math.inf) & (a < math.inf))
        valid = (a >= 0.0) & (x >= 0.0)
        low, high = (one, zero) if self.is_upper else (zero, one)
        ends = ops.select(below, low, ops.select(above, high, math.nan))
        return ops.select(valid, ends, math.nan)

    def slope(self, i: int, *args: Value) -> Value | None:
        if i == 0:
            return None
        density = GammaDensity()(*args)
        return -density if self.is_upper else density


class GammaDensity(ParametricFunction):
    """The density of gamma variates, x**(a - 1) exp(-x) / gamma(a), whose power may be differentiated n times.

    With n = `power_order`, it is (a - 1) ... (a - n) x**(a - 1 - n) exp(-x) / gamma(a).
    """

    power_order: int = 0
    rounding = Rounding(ulps=256.0)
    samples = (sample(f32[2], f32[2], values={0: [0.3, 25.0], 1: [0.7, 26.0]}, dtypes=("f64",)),)

    def value(self, *args: Value) -> Value:
        a, x = args
        inside = (a > 0.0) & (x > 0.0) & (a < math.inf) & (x < math.inf)
        safe_a, safe_x = ops.select(inside, a, 1.0), ops.select(inside, x, 1.0)
        # x**a exp(-x) / gamma(a + 1), times (a - k) / x for k = 0 ... n. While a - k >= 1 this is the same with
        # a - k - 1, which does not underflow as x**a does for small x. Large a lose digits by it, and gain none.
        shape, factors = safe_a, []
        for k in range(self.power_order + 1):
            lowers = (safe_a - k >= 1.0) & (safe_a < 1e6)
            shape = ops.select(lowers, shape - 1.0, shape)
            factors.append(ops.select(lowers, 1.0, (safe_a - k) / safe_x))
        inner = reduce(ops.mul, [power_times_exponential(shape, safe_x), *factors])
        factor = falling_product(a, self.power_order)
        at_zero = power_at_zero(a - (self.power_order + 1), factor, ops.constant_like(x, 1.0))
        is_end = (x == 0.0) & (a > 0.0) & (a < math.inf)
        ends = ops.select(is_end, at_zero, ops.zeros_like(x))
        valid = (a >= 0.0) & (x >= 0.0)
        return ops.select(inside, inner, ops.select(valid, ends, math.nan))

    def slope(self, i: int, *args: Value) -> Value | None:
        if i == 0:
            return None
        lowered = GammaDensity(power_order=self.power_order + 1)
        return lowered(*args) - GammaDensity(power_order=self.power_order)(*args)


class RandomGammaGrad(Binary):
    """The derivative in a of a draw x of the gamma distribution with shape a.

    It is that of the quantile at a fixed probability, by implicit differentiation; 0 at x = 0. See
    Figurnov, Mohamed and Mnih (2018), "Implicit reparameterization gradients".
    """

    accepts = "f"
    rounding = Rounding(ulps=256.0)
    samples = (
        sample(
            f32[2],
            f32[2],
            values={0: [0.3, 2.5], 1: [0.7, 4.0]},
            dtypes=("f64",),
            tolerance=(16.0, "the definition of the third derivative loses digits"),
        ),
    )

    def partial(self, i: int, t: Value, out: Value, a: Value, x: Value) -> Tangent:
        # out = -P_a / p, where p is the density and log(x) - digamma(a) its logarithmic slope in a.
        slope = ops.log(x) - ops.digamma(a)
        if i == 0:
            curvature = IncompleteGamma(orders=(2,))(a, x) / GammaDensity()(a, x)
            return t * (-curvature - out * slope)
        return t * (-slope - out * ((a - 1.0) / x - 1.0))

    def decompose(self, a: Value, x: Value) -> Value:
        wide_a, wide_x = upcast_half(a), upcast_half(x)
        positive = wide_x > 0.0
        inside = ops.select(positive, wide_x, 1.0)
        change = IncompleteGamma(orders=(1,))(wide_a, inside)
        ratio = -change / GammaDensity()(wide_a, inside)
        ends = ops.select(wide_x == 0.0, 0.0, ops.constant_like(ratio, math.nan))
        ends = ops.select(wide_x == math.inf, math.inf, ends)
        inside_range = positive & (wide_x < math.inf)
        return cast_like(ops.select(inside_range, ratio, ends), a)


def power_times_exponential(a: Value, x: Value) -> Value:
    """x**a exp(-x) / gamma(a + 1) for finite x > 0."""
    large = a >= STIRLING_MIN
    # The square of x**(a/2) exp(-x/2), whose factors are in the range of the dtype.
    small_a, limit = ops.select(large, 1.0, a), -2.0 * math.log(float(finfo(x.dtype).tiny))
    bounded = ops.min(x, limit)
    root = ops.pow(bounded, 0.5 * small_a) * ops.exp(-0.5 * bounded)
    direct = root * (root * ops.exp(-lgamma_of_one_plus(small_a)))
    # By Stirling's formula, with x**a exp(a - x) / a**a = exp(a (log(1 + u) - u)).
    large_a = ops.select(large, a, STIRLING_MIN)
    exponent = large_a * log_remainder((x - large_a) / large_a, x / large_a) - stirling_remainder(
        large_a
    )
    by_stirling = ops.exp(exponent) / ops.sqrt(large_a * (2.0 * math.pi))
    return ops.select(large, by_stirling, direct)


def incomplete_gammas(a: Value, x: Value) -> tuple[Value, Value]:
    """P(a, x) and Q(a, x) for finite positive operands, each with its digits where it is small.

    Up to 1.1 or a, a power series; above, the continued fraction of Legendre; where a > 20 and x is
    within 0.3 a of a, the uniform expansion of Temme (1979), "The asymptotic expansion of the
    incomplete gamma functions".
    """
    eps = float(finfo(x.dtype).eps)
    uniform = (a > 20.0) & (ops.abs(x - a) < 0.3 * a)
    below = ~uniform & ((x <= 1.1) | (x <= a))
    above = ~uniform & ~below
    front = power_times_exponential(a, x)

    series_a, series_x = ops.select(below, a, 1.0), ops.select(below, x, 0.5)
    one = ops.constant_like(x, 1.0)
    lower = front * (1.0 + sum_series(lambda k: series_x / (series_a + k), one, eps * 0.25))
    fraction_a, fraction_x = ops.select(above, a, 1.0), ops.select(above, x, 40.0)

    def coefficients(k: Value) -> tuple[Value, Value, Value]:
        factor = fraction_a - k
        size = k * ops.max(ops.abs(factor), 0.5)
        return k * factor, size, fraction_x - fraction_a + (2.0 * k + 1.0)

    fraction = continued_fraction(coefficients, fraction_x - fraction_a + 1.0, x.dtype)
    upper = front * a / fraction
    upper = ops.select(below, _upper_of_small_operands(below, a, x, lower, eps), upper)
    middle = _by_uniform_expansion(
        ops.select(uniform, a, 30.0), ops.select(uniform, x, 30.0), x.dtype.itemsize > 4
    )
    p = ops.select(uniform, middle[0], ops.select(below, lower, 1.0 - upper))
    q = ops.select(uniform, middle[1], upper)
    return p, q


def _upper_of_small_operands(below: Value, a: Value, x: Value, lower: Value, eps: float) -> Value:
    """Q(a, x) where P is a power series, `lower`: 1 - P, or without cancellation where P is near 1."""
    log_x = ops.log(x)
    near_one = below & (x <= 1.1) & (a < ops.select(x < 0.5, -0.4 / ops.min(log_x, -0.5), 1.1 * x))
    a, x = ops.select(near_one, a, 0.5), ops.select(near_one, x, 0.5)
    exponent = a * ops.log(x) - lgamma_of_one_plus(a)

    # x**a / gamma(a + 1) times the sum of a (-x)**k / ((a + k) k!)
    def ratio(k: Value) -> Value:
        return -x * (a + (k - 1.0)) / (k * (a + k))

    first = -x * a / (a + 1.0)
    total = first + sum_series(lambda k: ratio(k + 1.0), first, eps * 0.25)
    return ops.select(near_one, -ops.expm1(exponent) - ops.exp(exponent) * total, 1.0 - lower)


def _by_uniform_expansion(a: Value, x: Value, is_double: bool) -> tuple[Value, Value]:
    u = (x - a) / a
    eta = u * ops.sqrt(-2.0 * scaled_log_remainder(u))
    inverse = 1.0 / a
    rows = _uniform_coefficients(*(14, 18) if is_double else (5, 9))
    total: Any = 0.0
    for row in reversed(rows):
        total = total * inverse + polynomial(eta, row)
    rest = total * ops.exp(a * scaled_log_remainder(u) * u * u) / ops.sqrt(a * (2.0 * math.pi))
    scaled = eta * ops.sqrt(a * 0.5)
    return 0.5 * ops.erfc(-scaled) - rest, 0.5 * ops.erfc(scaled) + rest


@lru_cache(maxsize=4)
def _uniform_coefficients(orders: int, terms: int) -> list[list[float]]:
    """The numbers d[k][n] of section 8.12 of the Digital Library of Mathematical Functions."""
    size = terms + 2 * orders + 2
    # lambda - 1 is the sum of alpha[n] eta**n.
    alpha = [Fraction(0), Fraction(1)]
    for n in range(2, size + 2):
        products = sum([k * alpha[k] * alpha[n - k + 1] for k in range(2, n)], Fraction(0))
        alpha.append((alpha[n - 1] - products) / (n + 1))
    first = [Fraction(-1, 3), *[(n + 2) * alpha[n + 2] for n in range(1, size)]]
    # The coefficients of the gamma function by those of its logarithm, from Bernoulli numbers.
    stirling = [Fraction(1)]
    logs = {1: (1, 12), 3: (-1, 360), 5: (1, 1260), 7: (-1, 1680), 9: (1, 1188)}
    logs |= {11: (-691, 360360), 13: (1, 156)}
    for k in range(1, orders + 1):
        terms_of_k = [j * Fraction(*logs[j]) * stirling[k - j] for j in logs if j <= k]
        stirling.append(sum(terms_of_k, Fraction(0)) / k)
    rows = [first]
    for k in range(1, orders):
        last = rows[-1]
        sign = (-1) ** k * stirling[k]
        rows.append([sign * first[n] + (n + 2) * last[n + 2] for n in range(len(last) - 2)])
    return [[float(d) for d in row[:terms]] for row in rows]


def igamma(a: ArrayLike, x: ArrayLike) -> Value:
    """The regularized lower incomplete gamma function P(a, x), elementwise."""
    return IncompleteGamma()(*promote_scalars(a, x))


def igammac(a: ArrayLike, x: ArrayLike) -> Value:
    """The regularized upper incomplete gamma function 1 - P(a, x), elementwise."""
    return IncompleteGamma(is_upper=True)(*promote_scalars(a, x))


def igamma_grad_a(a: ArrayLike, x: ArrayLike) -> Value:
    """The derivative of `igamma` in a, elementwise."""
    return IncompleteGamma(orders=(1,))(*promote_scalars(a, x))


def random_gamma_grad(a: ArrayLike, x: ArrayLike) -> Value:
    """The derivative in a of a draw x of the gamma distribution with shape a, elementwise."""
    return RandomGammaGrad()(*promote_scalars(a, x))
