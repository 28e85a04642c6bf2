"""The Hurwitz zeta function, with all derivatives in both operands."""

from __future__ import annotations

import math

from functx import ops
from functx.core.samples import Rounding, f32, sample
from functx.core.typing import ArrayLike, Value
from functx.lax.gamma_ratios import bernoulli_numbers
from functx.lax.parametric_functions import ParametricFunction
from functx.ops.operands import promote_scalars
from functx.transforms.control.loops import while_loop

_SHIFT = 10.0


class Zeta(ParametricFunction):
    """The sum of (q + n)**-x over integers n >= 0, for x > 1.

    For 0 <= x < 1 it is the analytic continuation. A negative q needs an integer x, and as many steps
    as its size.
    """

    rounding = Rounding(ulps=256.0)
    samples = (
        sample(f32[3], f32[3], values={0: [3.0, 4.5, 7.0], 1: [0.3, 2.0, 25.0]}, dtypes=("f64",)),
    )

    def value(self, *args: Value) -> Value:
        x, q = args
        regular = (x != 1.0) & (x >= 0.0) & (x < math.inf) & (ops.abs(q) < math.inf)
        regular = regular & ((q > 0.0) | (x == ops.floor(x)))
        pole = (q <= 0.0) & (q == ops.floor(q)) & (x >= 1.0)
        inside = regular & ~pole
        total = _euler_maclaurin(ops.select(inside, x, 2.0), ops.select(inside, q, 1.0))
        infinite = pole | ((x == 1.0) & (q > 0.0))
        far = (q == math.inf) & (x > 1.0)
        one = ops.select(q == 1.0, 1.0, ops.select(q > 1.0, 0.0, ops.constant_like(q, math.inf)))
        rest = ops.select(infinite, math.inf, ops.select(far, 0.0, ops.constant_like(x, math.nan)))
        rest = ops.select((x == math.inf) & (q > 0.0), one, rest)
        return ops.select(inside, total, rest)

    def slope(self, i: int, *args: Value) -> Value | None:
        x, q = args
        return -x * Zeta()(x + 1.0, q) if i == 1 else None


def _euler_maclaurin(x: Value, q: Value) -> Value:
    # Terms until q is large, then the Euler-Maclaurin formula for the rest.
    def is_small(state: tuple[Value, Value]) -> Value:
        return ops.reduce_or(state[0] < _SHIFT)

    def add_term(state: tuple[Value, Value]) -> tuple[Value, Value]:
        q, total = state
        small = q < _SHIFT
        return ops.select(small, q + 1.0, q), ops.select(small, total + ops.pow(q, -x), total)

    q, total = while_loop(is_small, add_term, (q, ops.zeros_like(q)))
    power = ops.pow(q, -x)
    total = total + power * (q / (x - 1.0) + 0.5)
    # B_2k / (2k)! x (x + 1) ... (x + 2k - 2) q**(1 - x - 2k)
    term = x * power / q
    for k in range(1, 13):
        total = total + term * (bernoulli_numbers(26)[2 * k] / math.factorial(2 * k))
        term = term * ((x + (2.0 * k - 1.0)) * (x + 2.0 * k) / (q * q))
    return total


def zeta(x: ArrayLike, q: ArrayLike) -> Value:
    """The Hurwitz zeta function, the sum of (q + n)**-x over integers n >= 0, elementwise."""
    return Zeta()(*promote_scalars(x, q))
