"""Quantiles of distributions whose distribution function is an incomplete gamma or beta function."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from ml_dtypes import finfo

from functx import ops
from functx.core.samples import Rounding, f32, sample
from functx.core.tracer import aval_of
from functx.core.tracing import trace_closed
from functx.core.typing import Tangent, Value
from functx.lax.incomplete_beta import incomplete_betas, powers_by_beta
from functx.lax.incomplete_gamma import incomplete_gammas, power_times_exponential
from functx.lax.values import broadcast_like
from functx.numpy.operators import abs
from functx.numpy.ufuncs import exp, expm1, log, minimum, where
from functx.ops.families import Elementwise
from functx.ops.operands import cast_like_input, upcast_half
from functx.scipy.special import betaln, gammaln
from functx.scipy.stats.distribution import DISTRIBUTIONS
from functx.transforms.call_primitive import Call
from functx.transforms.control.loops import while_loop
from functx.transforms.jvp import jvp


class Quantile(Elementwise):
    """The inverse of the distribution function of a distribution, or with `is_upper` of 1 minus it.

    The first operand is the probability, and the others are the shapes of the distribution, which
    has its formula in `KERNELS`. Derivatives are those of the implicit function: with
    the density f and the distribution function F, dz = (dp - dF) / f(z).
    """

    distribution: str
    is_upper: bool = False
    accepts = "f"
    rounding = Rounding(ulps=4096.0)
    samples = (
        sample(
            f32[2],
            f32[2],
            values={0: [0.2, 0.7], 1: [2.5, 4.0]},
            distribution="gamma",
            dtypes=("f64",),
            tolerance=(1e3, "the definition of a derivative in a shape is a numerical integral"),
        ),
        sample(
            f32[2],
            f32[2],
            values={0: [0.2, 0.7], 1: [2.5, 4.0]},
            distribution="t",
            is_upper=True,
            dtypes=("f64",),
            tolerance=(1e3, "the definition of a derivative in a shape is a numerical integral"),
        ),
    )

    def partial(self, i: int, t: Value, out: Value, *args: Value) -> Tangent:
        distribution: Any = DISTRIBUTIONS[self.distribution]
        z, *shapes = [broadcast_like(x, out) for x in (out, *args[1:])]
        slope = 1 / exp(distribution.logpdf(z, *shapes))
        if i == 0:
            return t * (-slope if self.is_upper else slope)

        def change(z: Value, *shapes: Value) -> list[Value]:
            def probability(shape: Value) -> Value:
                return distribution.cdf(z, *shapes[: i - 1], shape, *shapes[i:])

            return [jvp(probability, (shapes[i - 1],), (ops.constant_like(z, 1.0),))[1]]

        operands = z, *shapes
        program = trace_closed(change, [aval_of(x) for x in operands], name="probability_change")
        factor = -Call(program)(*operands)[0] * slope
        low, high = distribution.support(*shapes)
        return t * where((z == low) | (z == high), 0.0, factor)

    def decompose(self, q: Value, *shapes: Value) -> Value:
        like = next((x for x in (q, *shapes) if x.shape), q)
        wide = [upcast_half(broadcast_like(x, like)) for x in (q, *shapes)]

        def body(q: Value, *shapes: Value) -> list[Value]:
            distribution: Any = DISTRIBUTIONS[self.distribution]
            inside = (q > 0) & (q < 1) & distribution.is_valid(*shapes)
            p, *safe = [
                where(inside, x, y)
                for x, y in zip((q, *shapes), (0.25, *[1.0] * len(shapes)), strict=True)
            ]
            pair = (1 - p, p) if self.is_upper else (p, 1 - p)
            low, high = distribution.support(*shapes)
            at_zero, at_one = (high, low) if self.is_upper else (low, high)
            ends = where(q == 0, at_zero, where(q == 1, at_one, math.nan))
            return [where(inside, KERNELS[self.distribution](*pair, *safe), ends)]

        program = trace_closed(body, [aval_of(x) for x in wide], name=self.name)
        return cast_like_input(Call(program, noinline=True)(*wide)[0], q)


def find_root(
    function: Callable[[Value], tuple[Value, Value]], start: Value, low: Value, high: Value
) -> Value:
    """The root between `low` and `high` of an increasing function, by Newton's method.

    `function` returns values and slopes. Where a step leaves the interval that is known to hold the
    root, the interval is halved.
    """
    eps = float(finfo(start.dtype).eps)

    def step(state: Any) -> Any:
        count, x, low, high, _ = state
        value, slope = function(x)
        low, high = where(value < 0, x, low), where(value > 0, x, high)
        newton = x - value / slope
        is_inside = (newton > low) & (newton < high)
        settled = where(is_inside, newton, (low + high) / 2)
        following = where(abs(value) <= 2 * eps, x, settled)
        return count + 1, following, low, high, abs(following - x) > 2 * eps * (abs(x) + eps)

    def unsettled(state: Any) -> Value:
        count, *_, changes = state
        return (count < 200) & changes.any()

    state: Any = (0, start, low, high, start == start)
    return while_loop(unsettled, step, state)[1]


def gamma_quantile(p: Value, q: Value, a: Value) -> Value:
    """The x with P(a, x) = p and Q(a, x) = q, for p + q = 1."""
    tiny = float(finfo(p.dtype).tiny)
    is_lower = p <= q
    # A power series holds for small x, where log(P) is linear in log(x); log(Q) is so in x, for large x.
    is_linear = ~is_lower & (incomplete_gammas(a, where(a == a, 1.0, a))[1] > q)

    def function(v: Value) -> tuple[Value, Value]:
        x = where(is_linear, v, exp(minimum(v, -math.log(tiny))))
        x = where(x > tiny, x, tiny)
        lower, upper = incomplete_gammas(a, x)
        density = power_times_exponential(a, x) * a * where(is_linear, 1 / x, 1.0)
        value = where(is_lower, log(lower) - log(p), log(q) - log(upper))
        return value, density / where(is_lower, lower, upper)

    series = (log(p) + gammaln(a + 1)) / a
    spread = (a + 1) ** 0.5
    mean = where(is_linear, a + spread, log(a + spread))
    largest = a + 40 * spread - 2 * log(q) + 50
    low = where(is_linear, 0.0, minimum(series, log(a)) - 1)
    high = where(is_linear, largest, log(largest))
    start = where(is_lower, minimum(series + 1e-3, log(a)), minimum(mean, high))
    root = find_root(function, start, low, high)
    return where(is_linear, root, exp(root))


def beta_quantile(p: Value, q: Value, a: Value, b: Value) -> tuple[Value, Value]:
    """The x with I(a, b, x) = p and 1 - I = q, for p + q = 1, and 1 - x."""
    tiny = float(finfo(p.dtype).tiny)
    half = 0.0 * p + 0.5
    is_upper = incomplete_betas(a, b, half)[0] < p
    # Of x and 1 - x the smaller one is found, whose logarithm is nearly linear in that of I.
    a, b = where(is_upper, b, a), where(is_upper, a, b)
    p, q = where(is_upper, q, p), where(is_upper, p, q)
    is_small = p <= q

    def function(v: Value) -> tuple[Value, Value]:
        x = exp(v)
        x = where(x > tiny, x, tiny)
        lower, upper = incomplete_betas(a, b, x)
        value = where(is_small, log(lower) - log(p), log(q) - log(upper))
        return value, powers_by_beta(a, b, x) / (1 - x) / where(is_small, lower, upper)

    high = log(half) + 1e-3
    start = minimum((log(p) + log(a) + betaln(a, b)) / a, log(half))
    root = find_root(function, start, start - 50 / a - 1, high)
    small, large = exp(root), -expm1(root)
    return where(is_upper, large, small), where(is_upper, small, large)


def student_quantile(p: Value, q: Value, df: Value) -> Value:
    """The t with the distribution function p = 1 - q, for `df` degrees of freedom."""
    is_median = p == q
    tail = where(is_median, 0.25, minimum(p, q))
    between = where(is_median, 0.5, abs(p - q))
    x, y = beta_quantile(2 * tail, between, df / 2, 0.0 * df + 0.5)
    size = where(is_median, 0.0, (df * (y / x)) ** 0.5)
    return where(p < q, -size, size)


KERNELS: dict[str, Callable[..., Value]] = {
    "beta": lambda p, q, a, b: beta_quantile(p, q, a, b)[0],
    "gamma": gamma_quantile,
    "t": student_quantile,
}
"""By distribution, the function of p, 1 - p and the shapes that computes the quantile."""
