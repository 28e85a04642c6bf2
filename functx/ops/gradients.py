"""Identities in value that say what derivatives do."""

from __future__ import annotations

from typing import Any

from functx.core import tree
from functx.core.errors import ArgumentError, type_name
from functx.core.primitive import Primitive
from functx.core.samples import f32, i32, sample
from functx.ops.families import Linear


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


class CheckpointName(Linear):
    """`x`, known as `label` to the policies of checkpoints."""

    label: str
    samples = sample(f32[3], label="x"), sample(i32[3], label="x")

    def abstract_eval(self, x):
        return x

    def jvp(self, primals, tangents):
        return self(*primals), tangents[0]

    def transpose(self, ct, x):
        return (ct,)

    def batch(self, args, dims):
        return self(*args), dims[0]

    def lower(self, ctx, x):
        return x


def stop_gradient(x: Any) -> Any:
    """`x` itself, an array or a pytree of arrays, through which no derivative goes."""
    return tree.map(StopGradient(), x)


def checkpoint_name(x: Any, name: str) -> Any:
    """`x` itself, an array or a pytree of arrays, with a name that policies may go by.

    See `functx.checkpoint_policies.save_only_these_names`.

    >>> import functx
    >>> float(functx.checkpoint_name(2.0, "two"))
    2.0
    """
    if not isinstance(name, str):
        raise ArgumentError(f"checkpoint_name: the name must be a string; got {type_name(name)}")
    return tree.map(CheckpointName(name), x)
