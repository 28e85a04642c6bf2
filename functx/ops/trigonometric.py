"""Circular and hyperbolic functions and their inverses."""

from __future__ import annotations

from typing import Any

from jax.extend.mlir.dialects import stablehlo

from functx.core.samples import c64, f32, sample
from functx.ops.arithmetic import add, mul, neg, sub
from functx.ops.families import Inexact


class Sin(Inexact):
    """The sine."""

    samples = sample(f32[3, 4]), sample(c64[3])

    def derivative(self, out, x):
        return cos(x)

    def lower(self, ctx, x):
        return stablehlo.sine(x)


class Cos(Inexact):
    """The cosine."""

    samples = sample(f32[3, 4]), sample(c64[3])

    def partial(self, i, t, out, x):
        return neg(mul(t, sin(x)))

    def lower(self, ctx, x):
        return stablehlo.cosine(x)


class Tanh(Inexact):
    """The hyperbolic tangent."""

    samples = sample(f32[3, 4]), sample(c64[3])

    def derivative(self, out, x):
        return mul(sub(1.0, out), add(1.0, out))

    def lower(self, ctx, x):
        return stablehlo.tanh(x)


def sin(x: Any) -> Any:
    """The sine, elementwise."""
    return Sin()(x)


def cos(x: Any) -> Any:
    """The cosine, elementwise."""
    return Cos()(x)


def tanh(x: Any) -> Any:
    """The hyperbolic tangent, elementwise."""
    return Tanh()(x)
