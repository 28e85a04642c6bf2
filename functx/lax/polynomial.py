"""Polynomials with constant coefficients, whose derivatives are polynomials."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from functx import ops
from functx.core.samples import Rounding, c64, f32, sample
from functx.core.typing import ArrayLike, NumPyArray, Tangent, Value
from functx.ops.families import Inexact
from functx.ops.operands import literal


class Polynomial(Inexact):
    """The sum of `coefficients[n]` x**n, by Horner's scheme.

    The derivative is the polynomial with the coefficients n `coefficients[n]`, in fewer operations than
    the derivatives of the steps of the scheme.
    """

    coefficients: tuple[float, ...]
    has_finite_derivative = True
    rounding = Rounding(ulps=16.0)
    samples = (
        sample(f32[3, 4], coefficients=(0.5, -1.0, 0.25, 2.0)),
        sample(f32[3], coefficients=(1.5,)),
        sample(c64[3], coefficients=(0.0, -1.0, 0.25)),
    )

    def partial(self, i: int, t: Value, out: Value, x: Value) -> Tangent:
        slope = [n * c for n, c in enumerate(self.coefficients)][1:]
        return ops.mul(t, polynomial(x, slope)) if slope else None

    def numpy(self, x: NumPyArray) -> ArrayLike:
        total = np.full_like(x, self.coefficients[-1])
        for c in reversed(self.coefficients[:-1]):
            total = total * x + np.asarray(c, x.dtype)
        return total

    def decompose(self, x: Value) -> Value:
        *others, last = [literal(c, x.dtype) for c in self.coefficients]
        total = ops.full_like(x, last)
        for c in reversed(others):
            total = ops.add(ops.mul(total, x), c)
        return total


def polynomial(x: Value, coefficients: Sequence[float]) -> Value:
    """The sum of `coefficients[n]` x**n, of the shape and dtype of `x`, real or complex."""
    return Polynomial(tuple(coefficients))(x)
