"""Exponentials, logarithms, roots and what is made of them."""

from __future__ import annotations

from typing import Any

from jax.extend.mlir.dialects import stablehlo

from functx.core.samples import f32, sample
from functx.ops.arithmetic import div, mul, neg, sub
from functx.ops.families import Inexact


class Exp(Inexact):
    """e to the power x."""

    samples = (sample(f32[3, 4]),)

    def derivative(self, out, x):
        return out

    def lower(self, ctx, x):
        return stablehlo.exponential(x)


class Log(Inexact):
    """The natural logarithm."""

    samples = (sample(f32[3, 4], domain=(0.5, 2.0)),)

    def partial(self, i, t, out, x):
        return div(t, x)

    def lower(self, ctx, x):
        return stablehlo.log(x)


class Tanh(Inexact):
    """The hyperbolic tangent."""

    samples = (sample(f32[3, 4]),)

    def derivative(self, out, x):
        return sub(1.0, mul(out, out))

    def lower(self, ctx, x):
        return stablehlo.tanh(x)


def exp(x: Any) -> Any:
    """e to the power x, elementwise."""
    return Exp()(x)


def log(x: Any) -> Any:
    """The natural logarithm, elementwise."""
    return Log()(x)


def tanh(x: Any) -> Any:
    """The hyperbolic tangent, elementwise."""
    return Tanh()(x)
