"""Reductions over axes, which leave the shape."""

from __future__ import annotations

from typing import Any

from jax.extend.mlir.dialects import stablehlo

from functx.core.samples import f32, sample
from functx.core.tracing import aval_of
from functx.ops.families import Linear
from functx.ops.operands import canonical_axes, without


class ReduceSum(Linear):
    """Sum over `axes`; the summed axes leave the shape."""

    axes: tuple[int, ...]
    samples = sample(f32[3, 4], axes=(0,)), sample(f32[2, 3, 4], axes=(0, 2))

    def abstract_eval(self, x):
        canonical_axes(self.axes, x.ndim)
        return x.update(shape=without(x.shape, self.axes))

    def transpose(self, ct, x):
        return (broadcast_in_dim(ct, x.shape, without(range(x.ndim), self.axes)),)

    def batch(self, args, dims):
        (x,), (dim,) = args, dims
        axes, out_dim = batched_axes(self.axes, dim)
        return ReduceSum(axes)(x), out_dim

    def lower(self, ctx, x):
        return ctx.reduce(stablehlo.AddOp, x, self.axes, 0)


def batched_axes(axes: tuple[int, ...], dim: int) -> tuple[tuple[int, ...], int]:
    """The axes of a reduction beside the batch dimension, and where that ends up."""
    axes = tuple([a + (a >= dim) for a in axes])
    return axes, dim - sum([a < dim for a in axes])


def reduce_sum(x: Any, axes: Any = None) -> Any:
    """Sum the elements of `x` over `axes`, or over all axes when none are given."""
    axes = canonical_axes(axes, aval_of(x).ndim)
    return ReduceSum(axes)(x) if axes else x


from functx.ops.shaping import broadcast_in_dim  # noqa: E402 - the transpose of a sum
