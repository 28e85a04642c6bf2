"""Inverses of distribution functions: those of gamma, beta and Student's t variates."""

from __future__ import annotations

import math
from collections.abc import Callable

from ml_dtypes import finfo

from functx import ops
from functx.core.samples import Rounding, f32, sample
from functx.core.typing import Tangent, Value
from functx.lax.gamma_ratios import lgamma_of_one_plus, log_gamma_ratio
from functx.lax.incomplete_beta import (
    BETA_SAMPLE,
    BetaDensity,
    IncompleteBeta,
    are_proper,
    incomplete_betas,
    powers_by_beta,
)
from functx.lax.incomplete_gamma import (
    GammaDensity,
    RandomGammaGrad,
    incomplete_gammas,
    power_times_exponential,
)
from functx.lax.parametric_functions import KernelFunction, ParametricFunction, iterate, widen
from functx.ops.operands import cast_like

Tails = Callable[[Value], tuple[Value, Value, Value, Value]]


class InverseIncompleteGamma(KernelFunction):
    """The x at which the lower incomplete gamma function of a and x is p, or the upper one.

    Derivatives follow from those of the function, by implicit differentiation.
    """

    is_upper: bool = False
    rounding = Rounding(ulps=1024.0)
    samples = (
        sample(f32[3], f32[3], values={0: [0.4, 2.5, 30.0], 1: [0.3, 0.8, 0.1]}, dtypes=("f64",)),
    )

    def kernel(self, *args: Value) -> Value:
        a, given = args
        inside = (a > 0.0) & (a < math.inf) & (given > 0.0) & (given < 1.0)
        a, p = ops.select(inside, a, 1.0), ops.select(inside, given, 0.5)
        lower, log_lower, log_upper = _tails(p, self.is_upper)
        # Where x is tiny, the function is x**a / gamma(a + 1).
        small = (log_lower + lgamma_of_one_plus(a)) / a
        is_small = small < math.log(float(finfo(a.dtype).eps))
        # By the cube root of Wilson and Hilferty; the bound is that of Laurent and Massart.
        root = 1.0 - 1.0 / (9.0 * a) + ops.ndtri(lower) / (3.0 * ops.sqrt(a))
        guess = ops.log(a) + 3.0 * ops.log(ops.max(root, 0.01))
        high = ops.log(a + ops.sqrt(-2.0 * a * log_upper) - log_upper) + 0.1
        low = ops.select(is_small, high - 1.0, ops.min(small, high - 0.1) - 0.1)

        def tails(t: Value) -> tuple[Value, Value, Value, Value]:
            x = ops.exp(t)
            return *incomplete_gammas(a, x), power_times_exponential(a, x) * a, a - x

        t = _solve(tails, (low, guess, high), lower, log_lower, log_upper)
        x = ops.exp(ops.select(is_small, small, t))
        at_zero, at_one = (math.inf, 0.0) if self.is_upper else (0.0, math.inf)
        ends = ops.select(
            given == 0.0, at_zero, ops.select(given == 1.0, at_one, ops.constant_like(x, math.nan))
        )
        return ops.select(
            inside, x, ops.select((args[0] > 0.0) & (args[0] < math.inf), ends, math.nan)
        )

    def partial(self, i: int, t: Value, out: Value, a: Value, p: Value) -> Tangent:
        if i == 0:
            # At the ends x does not vary with a.
            is_end = _is_end(p)
            slope = RandomGammaGrad()(a, ops.select(is_end, 1.0, out))
            return t * ops.select(is_end, 0.0, slope)
        density = cast_like(GammaDensity()(*widen([a, out])), t)
        return t / (-density if self.is_upper else density)


class InverseIncompleteBeta(KernelFunction):
    """The x at which the incomplete beta function of a, b and x is p, or its complement.

    Derivatives follow from those of the function, by implicit differentiation.
    """

    is_upper: bool = False
    rounding = Rounding(ulps=1024.0)
    samples = (BETA_SAMPLE,)

    def kernel(self, *args: Value) -> Value:
        a, b, given = args
        proper = are_proper(a, b)
        inside = proper & (given > 0.0) & (given < 1.0)
        a, b = ops.select(inside, a, 1.0), ops.select(inside, b, 1.0)
        t = beta_quantile_logit(a, b, *_tails(ops.select(inside, given, 0.5), self.is_upper))
        at_zero, at_one = (1.0, 0.0) if self.is_upper else (0.0, 1.0)
        ends = ops.select(
            given == 0.0, at_zero, ops.select(given == 1.0, at_one, ops.constant_like(t, math.nan))
        )
        return ops.select(inside, ops.logistic(t), ops.select(proper, ends, math.nan))

    def partial(self, i: int, t: Value, out: Value, a: Value, b: Value, p: Value) -> Tangent:
        density = cast_like(BetaDensity()(*widen([a, b, out])), t)
        if i == 2:
            return t / (-density if self.is_upper else density)
        change = IncompleteBeta(orders=(1 - i, i))(a, b, out)
        # At the ends, where x does not vary with the parameters.
        is_end = ops.eq(change, 0.0) | ops.eq(out, 0.0) | ops.eq(out, 1.0)
        ratio = ops.select(is_end, 0.0, change / ops.select(is_end, 1.0, density))
        return ops.neg(t * ratio)


def _tails(p: Value, is_upper: bool) -> tuple[Value, Value, Value]:
    """A probability, its logarithm, and that of the rest, where `p` is the probability or the rest."""
    log, log_of_rest = ops.log(p), ops.log1p(-p)
    return (1.0 - p, log_of_rest, log) if is_upper else (p, log, log_of_rest)


def _is_end(p: Value) -> Value:
    return ops.eq(p, 0.0) | ops.eq(p, 1.0)


def _solve(
    tails: Tails,
    bracket: tuple[Value, Value, Value],
    lower: Value,
    log_lower: Value,
    log_upper: Value,
) -> Value:
    """The t at which the logarithm of the smaller tail is the given one, by Halley's method.

    `tails(t)` gives both tails, the density of t, and the slope of its logarithm. `bracket` is a
    lower bound of t, a first guess, and an upper bound; a step that would leave the bounds, which
    each step narrows, halves the interval between them.
    """
    low, start, high = bracket
    info = finfo(start.dtype)
    eps, tiny = float(info.eps), float(info.tiny)
    by_lower = lower <= 0.5
    target = ops.select(by_lower, log_lower, log_upper)

    def step(k: Value, state: tuple[Value, ...]) -> tuple[tuple[Value, ...], Value]:
        t, low, high = state
        below, above, density, bend = tails(t)
        tail = ops.max(ops.select(by_lower, below, above), tiny)
        slope = ops.max(density, tiny) / tail
        slope = ops.select(by_lower, slope, -slope)
        gap = target - ops.log(tail)
        is_left = ops.select(by_lower, gap > 0.0, gap < 0.0)
        low, high = ops.select(is_left, t, low), ops.select(is_left, high, t)
        newton = gap / slope
        change = newton / ops.max(ops.min(1.0 + 0.5 * newton * (bend - slope), 2.0), 0.5)
        found = t + change
        within = (found >= low) & (found <= high)
        found = ops.select(within, found, 0.5 * (low + high))
        size = ops.max(ops.abs(t), 1.0) * 8.0 + ops.max(ops.abs(target), 1.0) * 4.0 / ops.abs(slope)
        return (found, low, high), (gap != 0.0) & (ops.abs(found - t) > eps * size)

    start = ops.select((start > low) & (start < high), start, 0.5 * (low + high))
    return iterate(step, (start, low, high), start.dtype, limit=120, extra=1.0)[0]


def beta_quantile_logit(
    a: Value, b: Value, lower: Value, log_lower: Value, log_upper: Value
) -> Value:
    """log(x / (1 - x)) of the quantile x of a beta variate, also where x rounds to 0 or 1."""
    limit = math.log(float(finfo(a.dtype).eps))
    # Where x is tiny, the function is x**a / (a beta(a, b)); likewise for 1 - x.
    small = (log_lower + lgamma_of_one_plus(a) - log_gamma_ratio(a, b)) / a
    large = (log_upper + lgamma_of_one_plus(b) - log_gamma_ratio(b, a)) / b
    is_small, is_large = small + ops.log1p(b) < limit, large + ops.log1p(a) < limit

    def variance(a: Value) -> Value:
        return 1.0 / a + 1.0 / (a * a * (1.0 + a))

    start = ops.log(a / b) + ops.ndtri(lower) * ops.sqrt(variance(a) + variance(b))
    low, high = limit - ops.log1p(b) - 4.0, ops.log1p(a) + (4.0 - limit)

    def tails(t: Value) -> tuple[Value, Value, Value, Value]:
        x = ops.logistic(t)
        inner = ops.min(
            ops.max(x, float(finfo(x.dtype).tiny)), 1.0 - 0.5 * float(finfo(x.dtype).eps)
        )
        density = powers_by_beta(a, b, inner)
        return *incomplete_betas(a, b, inner), density, a * ops.logistic(-t) - b * x

    t = _solve(tails, (low, start, high), lower, log_lower, log_upper)
    return ops.select(is_small, small, ops.select(is_large, -large, t))


class StudentCdf(ParametricFunction):
    """The distribution function of Student's t with `df` degrees of freedom."""

    rounding = Rounding(ulps=512.0)
    samples = (sample(f32[2], f32[2], values={0: [0.7, 8.0], 1: [-0.6, 1.5]}, dtypes=("f64",)),)

    def value(self, *args: Value) -> Value:
        df, t = args
        inside = (df > 0.0) & (df < math.inf) & (ops.abs(t) > 0.0) & (ops.abs(t) < math.inf)
        df, t = ops.select(inside, df, 1.0), ops.select(inside, t, 1.0)
        # Of t**2 / (df + t**2) and df / (df + t**2), the smaller one keeps its digits.
        near = t * t < df
        ratio = ops.select(near, t * t / df, df / t / t)
        x = ratio / (1.0 + ratio)
        half = ops.constant_like(df, 0.5)
        a, b = ops.select(near, half, df * 0.5), ops.select(near, df * 0.5, half)
        below, above = incomplete_betas(a, b, x)
        tail = 0.5 * ops.select(near, above, below)
        value = ops.select(t < 0.0, tail, 1.0 - tail)
        df, t = args
        ends = ops.select(t == 0.0, 0.5, ops.select(t > 0.0, 1.0, ops.zeros_like(t)))
        normal = 0.5 * ops.erfc(t * -math.sqrt(0.5))
        ends = ops.select((df == math.inf) & (t == t), normal, ends)
        return ops.select(inside, value, ops.select((df > 0.0) & (t == t), ends, math.nan))

    def slope(self, i: int, *args: Value) -> Value | None:
        return student_density(*args) if i == 1 else None


def student_density(df: Value, t: Value) -> Value:
    """The density of Student's t."""
    inside = (df > 0.0) & (df < math.inf)
    safe = ops.select(inside, df, 1.0)
    scale = log_gamma_ratio(ops.constant_like(df, 0.5), 0.5 * safe) - 0.5 * ops.log(math.pi * safe)
    value = ops.exp(scale - 0.5 * (safe + 1.0) * ops.log1p(t * t / safe))
    normal = ops.exp(-0.5 * t * t) / math.sqrt(2.0 * math.pi)
    return ops.select(inside, value, ops.select(df == math.inf, normal, math.nan))


class StudentQuantile(KernelFunction):
    """The t at which the distribution function of Student's t with `df` degrees of freedom is p."""

    rounding = Rounding(ulps=1024.0)
    samples = (sample(f32[2], f32[2], values={0: [0.7, 8.0], 1: [0.3, 0.8]}, dtypes=("f64",)),)

    def kernel(self, *args: Value) -> Value:
        df, p = args
        inside = (df > 0.0) & (df < math.inf) & (p > 0.0) & (p < 1.0) & (p != 0.5)
        df, tail = ops.select(inside, df, 1.0), ops.select(inside, ops.min(p, 1.0 - p), 0.25)
        # t**2 / (df + t**2) and its complement are beta variates; the smaller one keeps its digits.
        upper = 1.0 - 2.0 * tail
        near = tail > 0.25
        half, other = ops.constant_like(df, 0.5), 0.5 * df
        a, b = ops.select(near, half, other), ops.select(near, other, half)
        logs = ops.log(2.0 * tail), ops.log(upper)
        lower = ops.select(near, upper, 2.0 * tail)
        log_lower, log_upper = (
            ops.select(near, logs[1], logs[0]),
            ops.select(near, logs[0], logs[1]),
        )
        odds = beta_quantile_logit(a, b, lower, log_lower, log_upper)
        odds = ops.select(near, -odds, odds)
        size = ops.sqrt(df) * ops.exp(-0.5 * odds)
        value = ops.select(p < 0.5, -size, size)
        ends = ops.select(
            p == 0.0, -math.inf, ops.select(p == 1.0, math.inf, ops.constant_like(p, math.nan))
        )
        ends = ops.select(p == 0.5, 0.0, ends)
        ends = ops.select((args[0] == math.inf) & (p >= 0.0) & (p <= 1.0), ops.ndtri(p), ends)
        return ops.select(inside, value, ops.select(args[0] > 0.0, ends, math.nan))

    def partial(self, i: int, t: Value, out: Value, df: Value, p: Value) -> Tangent:
        density = cast_like(student_density(*widen([df, out])), t)
        if i == 1:
            return t / density
        is_end = _is_end(p)
        # At the ends t does not vary with df.
        change = StudentCdf(orders=(1,))(df, ops.select(is_end, 0.0, out))
        return ops.neg(t * (change / ops.select(is_end, 1.0, density)))
