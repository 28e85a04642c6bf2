"""The incomplete beta function, with all derivatives in its three operands."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce

from ml_dtypes import finfo

from functx import ops
from functx.core.samples import Rounding, f32, sample
from functx.core.typing import ArrayLike, Value
from functx.lax.gamma_ratios import (
    STIRLING_MIN,
    falling_product,
    lgamma_of_one_plus,
    log_gamma_ratio,
    log_remainder,
    power_at_zero,
    stirling_remainder,
)
from functx.lax.parametric_functions import ParametricFunction, continued_fraction, sum_series
from functx.ops.operands import promote_scalars

BETA_SAMPLE = sample(
    f32[2],
    f32[2],
    f32[2],
    values={0: [0.5, 3.0], 1: [2.0, 1.5], 2: [0.3, 0.8]},
    dtypes=("f64",),
)
"""Parameters of beta distributions, and numbers between 0 and 1."""


class IncompleteBeta(ParametricFunction):
    """The regularized incomplete beta function of a, b and x, or with `is_upper` 1 minus it.

    It is the integral of t**(a - 1) (1 - t)**(b - 1) / beta(a, b) over t from 0 to x.
    """

    is_upper: bool = False
    rounding = Rounding(ulps=512.0)
    samples = (
        sample(
            f32[3],
            f32[3],
            f32[3],
            values={0: [0.5, 3.0, 20.0], 1: [2.0, 1.5, 30.0], 2: [0.2, 0.9, 0.4]},
            dtypes=("f64",),
        ),
    )

    def value(self, *args: Value) -> Value:
        a, b, x = args
        inside = _is_inside(a, b, x)
        a, b, x = [ops.select(inside, operand, 0.5) for operand in args]
        pair = incomplete_betas(a, b, x)
        return ops.select(inside, pair[1] if self.is_upper else pair[0], self.at_ends(*args))

    def at_ends(self, a: Value, b: Value, x: Value) -> Value:
        """The values where x is 0 or 1 or a parameter is 0 or infinite, nan where there is no limit."""
        zero, one = ops.zeros_like(x), ops.constant_like(x, 1.0)
        low, high = (one, zero) if self.is_upper else (zero, one)
        # All of the distribution is at 0, or at 1.
        at_zero = ((a == 0.0) & (b > 0.0)) | ((a < math.inf) & (b == math.inf))
        at_one = ((b == 0.0) & (a > 0.0)) | ((b < math.inf) & (a == math.inf))
        # At the point that holds the whole distribution, SciPy's convention.
        is_high = (at_zero & (x > 0.0)) | (at_one & (x == 1.0))
        value = ops.select(at_zero | at_one, ops.select(is_high, high, low), math.nan)
        proper = are_proper(a, b)
        value = ops.select((x == 0.0) & (proper | at_one), low, value)
        value = ops.select((x == 1.0) & (proper | at_zero), high, value)
        valid = (a >= 0.0) & (b >= 0.0) & (x >= 0.0) & (x <= 1.0)
        return ops.select(valid, value, math.nan)

    def slope(self, i: int, *args: Value) -> Value | None:
        if i < 2:
            return None
        density = BetaDensity()(*args)
        return -density if self.is_upper else density


class BetaDensity(ParametricFunction):
    """The density of beta variates, x**(a - 1) (1 - x)**(b - 1) / beta(a, b), its powers differentiated.

    With m, n = `power_orders`, the powers are those of their derivatives in x of orders m and n, with the
    sign of the second left out: (a - 1) ... (a - m) x**(a - 1 - m) (b - 1) ... (b - n) (1 - x)**(b - 1 - n).
    """

    power_orders: tuple[int, int] = (0, 0)
    rounding = Rounding(ulps=256.0)
    samples = (BETA_SAMPLE,)

    def value(self, *args: Value) -> Value:
        a, b, x = args
        m, n = self.power_orders
        inside = _is_inside(a, b, x)
        safe_a, safe_b, safe_x = [ops.select(inside, operand, 0.5) for operand in args]
        is_direct = ops.min(safe_a, safe_b) < STIRLING_MIN
        p, factors = _lowered_power(safe_a, safe_x, m, is_direct)
        q, others = _lowered_power(safe_b, 1.0 - safe_x, n, is_direct)
        inner = powers_by_beta(safe_a, safe_b, safe_x, (p, q), (*factors, *others))
        at_end = ops.select(x == 0.0, _at_zero(a, m, b, n), _at_zero(b, n, a, m))
        proper = are_proper(a, b)
        is_end = ((x == 0.0) | (x == 1.0)) & proper
        valid = (a >= 0.0) & (b >= 0.0) & (x >= 0.0) & (x <= 1.0)
        ends = ops.select(is_end, at_end, ops.zeros_like(x))
        return ops.select(inside, inner, ops.select(valid, ends, math.nan))

    def slope(self, i: int, *args: Value) -> Value | None:
        if i < 2:
            return None
        m, n = self.power_orders
        first, second = [BetaDensity(power_orders=p)(*args) for p in ((m + 1, n), (m, n + 1))]
        return first - second


def _lowered_power(a: Value, x: Value, n: int, may_lower: Value) -> tuple[Value, list[Value]]:
    """The p and factors with which x**p is (a - 1) ... (a - n) x**(a - 1 - n); p = a unless `may_lower`.

    For small x, x**a underflows, but x**p only if the product does.
    """
    exponent, factors = a, []
    for k in range(n + 1):
        lowers = (a - k >= 1.0) & may_lower
        exponent = ops.select(lowers, exponent - 1.0, exponent)
        factor = a - k if k else ops.constant_like(x, 1.0)
        factors.append(ops.select(lowers, factor, factor / x))
    return exponent, factors


def _at_zero(a: Value, m: int, b: Value, n: int) -> Value:
    """The density at x = 0 with m derivatives of the power of x, and n of that of 1 - x.

    0 where it is infinite and n > 0: a derivative is a sum that has an infinite term with n = 0, too, which
    grows faster.
    """
    factor = falling_product(b, n)
    # 1 / beta(m + 1, b) = b ... (b + m) / m!
    if_constant = factor * b
    for k in range(1, m + 1):
        if_constant = if_constant * (b + k)
    exponent = a - (m + 1)
    value = power_at_zero(exponent, factor * falling_product(a, m), if_constant)
    return ops.select(exponent < 0.0, ops.zeros_like(value), value) if n else value


def _is_inside(a: Value, b: Value, x: Value) -> Value:
    return are_proper(a, b) & (x > 0.0) & (x < 1.0)


def are_proper(a: Value, b: Value) -> Value:
    """Whether there is a beta distribution with the parameters a and b: both are positive and finite."""
    return (a > 0.0) & (b > 0.0) & (a < math.inf) & (b < math.inf)


def powers_by_beta(
    a: Value,
    b: Value,
    x: Value,
    exponents: tuple[Value, Value] | None = None,
    factors: Sequence[Value] = (),
) -> Value:
    """x**p (1 - x)**q / beta(a, b) for 0 < x < 1 and finite positive parameters, times `factors`.

    `exponents` are p and q, which must be a and b, as they are by default, where both are at least
    `STIRLING_MIN`. The powers may underflow where the product does not.
    """
    p, q = exponents or (a, b)
    large = ops.min(a, b) >= STIRLING_MIN
    # By Stirling's formula, relative to the maximum at a / (a + b).
    large_a, large_b = ops.select(large, a, STIRLING_MIN), ops.select(large, b, STIRLING_MIN)
    offset = large_b * x - large_a * (1.0 - x)
    total = large_a + large_b
    exponent = large_a * log_remainder(offset / large_a, x * (total / large_a))
    above = log_remainder(-offset / large_b, (1.0 - x) * (total / large_b))
    exponent = exponent + large_b * above
    rest = stirling_remainder(total)
    rest = rest - stirling_remainder(large_a) - stirling_remainder(large_b)
    scale = large_a * (large_b / total) / (2.0 * math.pi)
    small, other = ops.select(large, 1.0, ops.min(a, b)), ops.max(a, b)
    powers = p * ops.log(x) + q * ops.log1p(-x)
    direct = log_gamma_ratio(small, other) - lgamma_of_one_plus(small) + powers
    root = ops.exp(0.5 * ops.select(large, exponent + rest, direct))
    return reduce(ops.mul, [root, *factors, root, ops.select(large, ops.sqrt(scale), small)])


def incomplete_betas(a: Value, b: Value, x: Value) -> tuple[Value, Value]:
    """The function and 1 minus it for 0 < x < 1, each with its digits where it is small.

    By the methods of DiDonato and Morris (1992), "Algorithm 708": the power series where a parameter
    is at most 1 and the other one times x is small, else the continued fraction on the side of the
    mean where it converges quickly, in O(sqrt(max(a, b))) steps.
    """
    one_is_small, both_are_small = ops.min(a, b) <= 1.0, ops.max(a, b) <= 1.0
    swapped = ops.select(both_are_small, x > 0.5, b < a)
    p, q, z = ops.select(swapped, b, a), ops.select(swapped, a, b), ops.select(swapped, 1.0 - x, x)
    by_series = both_are_small | (one_is_small & (q * z <= 1.1) & (z <= 0.6))
    lower, upper = _by_power_series(*[ops.select(by_series, v, 0.5) for v in (p, q, z)])

    is_tail = ops.select(one_is_small, ~swapped, b * x > a * (1.0 - x))
    p, q = ops.select(is_tail, b, a), ops.select(is_tail, a, b)
    operands = [p, q, ops.select(is_tail, 1.0 - x, x), ops.select(is_tail, x, 1.0 - x)]
    tail = powers_by_beta(a, b, x) / _fraction(
        *[ops.select(by_series, 0.5 if i > 1 else 2.0, v) for i, v in enumerate(operands)]
    )
    swapped = ops.select(by_series, swapped, is_tail)
    lower, upper = ops.select(by_series, lower, tail), ops.select(by_series, upper, 1.0 - tail)
    return ops.select(swapped, upper, lower), ops.select(swapped, lower, upper)


def _by_power_series(a: Value, b: Value, x: Value) -> tuple[Value, Value]:
    # x**a / (a beta(a, b)) times 1 + a sum_k (1 - b)_k x**k / (k! (a + k)) for k > 0
    def ratio(k: Value) -> Value:
        return x / k * (ops.select(k == 1.0, 1.0, a + k - 1.0) / (a + k))

    eps = float(finfo(x.dtype).eps)
    total = sum_series(ratio, ops.constant_like(x, 1.0), eps * 0.25, lambda k: k - b)
    log = log_gamma_ratio(a, b) - lgamma_of_one_plus(a) + a * ops.log(x) + ops.log1p(a * total)
    return ops.exp(log), -ops.expm1(log)


def _fraction(a: Value, b: Value, x: Value, y: Value) -> Value:
    """The continued fraction for x + y = 1, by which x**a y**b / beta(a, b) is divided."""
    margin = a * y - b * x

    def constant(n: Value) -> Value:
        shift = (a + n) / (a + 2.0 * n + 1.0) * (margin + 1.0 + n * (1.0 + y))
        return n + n * (b - n) * x / (a + 2.0 * n - 1.0) + shift

    def coefficients(n: Value) -> tuple[Value, Value, Value]:
        before = a + 2.0 * n - 1.0
        scale = (n * x / before) * ((a + n - 1.0) / before) * (a + b + n - 1.0) * x
        return scale * (b - n), scale * ops.max(ops.abs(b - n), 0.5), constant(n)

    return continued_fraction(coefficients, a / (a + 1.0) * (margin + 1.0), x.dtype)


def betainc(a: ArrayLike, b: ArrayLike, x: ArrayLike) -> Value:
    """The regularized incomplete beta function of a, b and x, elementwise."""
    return IncompleteBeta()(*promote_scalars(a, b, x))
