"""Hypergeometric functions of real operands, with derivatives in the argument and in the parameters."""

from __future__ import annotations

import math

from ml_dtypes import finfo

from functx import ops
from functx.core.samples import Rounding, f32, sample
from functx.core.typing import ArrayLike, Value
from functx.lax.parametric_functions import ParametricFunction, sum_series
from functx.numpy.ufuncs import broadcast_inexact

__all__ = ["hyp1f1", "hyp2f1"]


class Hyp1F1(ParametricFunction):
    """The confluent hypergeometric function 1F1(a; b; x), Kummer's M."""

    rounding = Rounding(ulps=512.0, is_absolute=True)
    samples = (
        sample(
            f32[2],
            f32[2],
            f32[2],
            values={0: [0.7, 2.0], 1: [1.5, 0.8], 2: [-1.2, 2.0]},
            dtypes=("f64",),
        ),
    )

    def value(self, *args: Value) -> Value:
        a, b, x = args
        valid = (ops.abs(a) < math.inf) & (ops.abs(x) < math.inf)
        valid = valid & ((b > 0.0) | (b != ops.floor(b))) & (ops.abs(b) < math.inf)
        a, b, x = [ops.select(valid, operand, 1.0) for operand in args]
        # M(a, b, x) = exp(x) M(b - a, b, -x), with terms of one sign for negative x and b > a.
        is_polynomial = (a <= 0.0) & (a == ops.floor(a))
        flipped = (x < 0.0) & ~is_polynomial
        first, z = ops.select(flipped, b - a, a), ops.select(flipped, -x, x)
        # exp(x) = root**2: one root scales the terms, the other their sum, so that neither leaves the range.
        root = ops.exp(0.5 * ops.select(flipped, x, 0.0))
        series = root + sum_series(
            lambda k: z / ((b + k - 1.0) * k),
            root,
            float(finfo(z.dtype).eps) * 0.25,
            lambda k: first + k - 1.0,
            may_cancel=True,
        )
        valid = valid & (root >= float(finfo(z.dtype).tiny))
        return ops.select(valid, series * root, math.nan)

    def slope(self, i: int, *args: Value) -> Value | None:
        a, b, x = args
        return a / b * Hyp1F1()(a + 1.0, b + 1.0, x) if i == 2 else None


class Hyp2F1(ParametricFunction):
    """Gauss's hypergeometric function 2F1(a, b; c; x) for x <= 1."""

    rounding = Rounding(ulps=1024.0, is_absolute=True)
    samples = (
        sample(
            f32[2],
            f32[2],
            f32[2],
            f32[2],
            values={0: [0.7, 2.0], 1: [1.5, 0.8], 2: [2.2, 1.3], 3: [-1.2, 0.6]},
            dtypes=("f64",),
        ),
    )

    def value(self, *args: Value) -> Value:
        a, b, c, x = args
        valid = (ops.abs(a) < math.inf) & (ops.abs(b) < math.inf) & (ops.abs(c) < math.inf)
        valid = valid & ((c > 0.0) | (c != ops.floor(c))) & (x > -math.inf)
        is_polynomial = ((a <= 0.0) & (a == ops.floor(a))) | ((b <= 0.0) & (b == ops.floor(b)))
        inside = valid & ((x < 1.0) | (is_polynomial & (x < math.inf)))
        a, b, c = [ops.select(inside, operand, 1.0) for operand in (a, b, c)]
        x = ops.select(inside, x, 0.5)
        # By Pfaff, (1 - x)**-a F(a, c - b; c; x / (x - 1)) for negative x, with the larger one for a.
        flipped = (x < 0.0) & ~(is_polynomial & (x > -1.0))
        swapped = flipped & (a < b)
        a, b = ops.select(swapped, b, a), ops.select(swapped, a, b)
        second, z = ops.select(flipped, c - b, b), ops.select(flipped, x / (x - 1.0), x)
        value = _series(a, second, c, z)
        value = value * ops.select(flipped, ops.pow(1.0 - ops.min(x, 0.0), -a), 1.0)
        return ops.select(
            inside, value, ops.select(valid & (args[3] == 1.0), self.at_one(*args), math.nan)
        )

    def at_one(self, a: Value, b: Value, c: Value, x: Value) -> Value:
        """Gauss's sum at x = 1, infinite unless c > a + b."""
        finite = c - a - b > 0.0
        c = ops.select(finite, c, a + b + 1.0)
        signs = [_sign_of_gamma(v) for v in (c, c - a - b, c - a, c - b)]
        logs = [ops.lgamma(v) for v in (c, c - a - b, c - a, c - b)]
        value = ops.exp(logs[0] + logs[1] - logs[2] - logs[3])
        return ops.select(finite, value * (signs[0] * signs[1] * signs[2] * signs[3]), math.inf)

    def slope(self, i: int, *args: Value) -> Value | None:
        a, b, c, x = args
        return a * b / c * Hyp2F1()(a + 1.0, b + 1.0, c + 1.0, x) if i == 3 else None


def _sign_of_gamma(x: Value) -> Value:
    is_odd = ops.abs(ops.rem(ops.floor(x), 2.0)) == 1.0
    return ops.select((x < 0.0) & is_odd, -1.0, ops.constant_like(x, 1.0))


def _series(a: Value, b: Value, c: Value, z: Value) -> Value:
    # By Euler, (1 - z)**(c - a - b) F(c - a, c - b; c; z), whose terms decrease faster if c < a + b,
    # but cancel each other where c - a or c - b is far below 0.
    cancels = ops.min(c - a, c - b) < ops.min(ops.min(a, b), 0.0) - 1.0
    flipped = (c < a + b) & (z > 0.5) & (z < 1.0) & ~cancels
    first, second = ops.select(flipped, c - a, a), ops.select(flipped, c - b, b)
    series = 1.0 + sum_series(
        lambda k: z / ((c + k - 1.0) * k),
        ops.constant_like(z, 1.0),
        float(finfo(z.dtype).eps) * 0.25,
        lambda k: (first + k - 1.0) * (second + k - 1.0),
        may_cancel=True,
    )
    base = ops.select(flipped, 1.0 - z, 1.0)
    # The series has not ended after so many terms.
    value = ops.select(ops.abs(z) < _LARGEST, series, math.nan)
    return ops.select(flipped, ops.pow(base, c - a - b), 1.0) * value


_LARGEST = 0.998


def hyp1f1(a: ArrayLike, b: ArrayLike, x: ArrayLike) -> Value:
    """The confluent hypergeometric function 1F1(a; b; x), differentiable in all operands.

    By its power series, that of exp(x) 1F1(b - a; b; -x) for negative x. All terms have one sign for
    0 < a < b; digits are lost where they have not, and the result is nan where fewer than three are left,
    and for x below -174 (-1416 in 64 bits).

    >>> import functx
    >>> round(float(functx.scipy.special.hyp1f1(1.0, 2.0, 1.0)), 4)
    1.7183
    """
    return Hyp1F1()(*broadcast_inexact(a, b, x))


def hyp2f1(a: ArrayLike, b: ArrayLike, c: ArrayLike, x: ArrayLike) -> Value:
    """Gauss's hypergeometric function 2F1(a, b; c; x), differentiable in all operands.

    By power series, for x < 0.998, for x = 1, and for negative x down to -499; nan elsewhere, and where
    terms of both signs leave fewer than three digits.

    >>> import functx
    >>> round(float(functx.scipy.special.hyp2f1(1.0, 1.0, 2.0, 0.5)), 4)
    1.3863
    """
    return Hyp2F1()(*broadcast_inexact(a, b, c, x))
