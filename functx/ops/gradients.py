"""Identities in value that say what derivatives do."""

from __future__ import annotations

from typing import Any

from functx.core import tree
from functx.core.primitive import Primitive
from functx.core.samples import f32, i32, sample


class StopGradient(Primitive):
    """`x`, as a value that does not vary."""

    differentiable = False
    samples = sample(f32[3], gradients={0: [0.0, 0.0, 0.0]}), sample(i32[3])

    def abstract_eval(self, x):
        return x

    def batch(self, args, dims):
        return self(*args), dims[0]

    def lower(self, ctx, x):
        return x


def stop_gradient(x: Any) -> Any:
    """`x` itself, an array or a pytree of arrays, through which no derivative goes."""
    return tree.map(StopGradient(), x)
