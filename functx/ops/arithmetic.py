"""Elementwise arithmetic: sums, products, powers, extrema."""

from __future__ import annotations

from typing import Any

import numpy as np
from jax.extend.mlir.dialects import stablehlo

from functx.core.dtypes import is_complex
from functx.ops.families import Binary, Unary
from functx.ops.operands import match
from functx.core.samples import f32, sample

BOOL = np.dtype("bool")


class Neg(Unary):
    """-x."""

    accepts = "iufc"
    linear = (0,)
    samples = (sample(f32[3, 4]),)

    def partial(self, i, t, out, x):
        return neg(t)

    def lower(self, ctx, x):
        return stablehlo.negate(x)


class Add(Binary):
    """x + y."""

    accepts = "biufc"
    linear = (0, 1)
    samples = sample(f32[3, 4], f32[3, 4]), sample(f32[3], f32[()])

    def partial(self, i, t, out, x, y):
        return t

    def lower(self, ctx, x, y):
        return stablehlo.add(x, y)


class Sub(Binary):
    """x - y."""

    accepts = "iufc"
    linear = (0, 1)
    samples = sample(f32[3, 4], f32[3, 4]), sample(f32[()], f32[3])

    def partial(self, i, t, out, x, y):
        return t if i == 0 else neg(t)

    def lower(self, ctx, x, y):
        return stablehlo.subtract(x, y)


class Mul(Binary):
    """x * y."""

    linear = (0, 1)
    samples = sample(f32[3, 4], f32[3, 4]), sample(f32[3], f32[()])

    def partial(self, i, t, out, x, y):
        return mul(t, y if i == 0 else x)

    def lower(self, ctx, x, y):
        return stablehlo.multiply(x, y)


class Div(Binary):
    """x / y; between integers, the quotient rounded towards zero."""

    accepts = "iufc"
    linear = (0,)
    samples = sample(f32[3, 4], f32[3, 4], nonzero=(1,)), sample(f32[()], f32[3], nonzero=(1,))

    def partial(self, i, t, out, x, y):
        # d(x / y) = dx / y - out * dy / y
        return div(t, y) if i == 0 else neg(div(mul(t, out), y))

    def lower(self, ctx, x, y):
        return stablehlo.divide(x, y)


def neg(x: Any) -> Any:
    """-x, elementwise."""
    return Neg()(x)


def add(x: Any, y: Any) -> Any:
    """x + y, elementwise."""
    return Add()(*match(x, y))


def sub(x: Any, y: Any) -> Any:
    """x - y, elementwise."""
    return Sub()(*match(x, y))


def mul(x: Any, y: Any) -> Any:
    """x * y, elementwise."""
    return Mul()(*match(x, y))


def div(x: Any, y: Any) -> Any:
    """x / y, elementwise; between integers, the quotient rounded towards zero."""
    return Div()(*match(x, y))
