"""Shapes: broadcasting, reshaping, permuting, joining, padding, slicing, making."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from jax.extend.mlir.dialects import stablehlo

from functx.core.avals import ShapedArray
from functx.core.errors import ShapeError
from functx.core.samples import f32, sample
from functx.core.tracing import aval_of
from functx.ops.families import Linear
from functx.ops.operands import canonical_axes, literal, without


class BroadcastInDim(Linear):
    """`x` repeated to `shape`; dimension i of `x` becomes dimension `dims[i]`."""

    shape: tuple[int, ...]
    dims: tuple[int, ...]
    samples = (
        sample(f32[3], shape=(2, 3), dims=(1,)),
        sample(f32[1, 3], shape=(2, 3, 4), dims=(0, 1)),
        sample(f32[()], shape=(2, 3), dims=()),
    )

    def abstract_eval(self, x):
        fits = len(self.dims) == x.ndim and all(
            n in (1, self.shape[d]) for n, d in zip(x.shape, self.dims)
        )
        if not fits or list(self.dims) != sorted(set(self.dims)):
            raise ShapeError(
                "broadcast_in_dim: each dimension of the operand must be 1 or that of the result, "
                f"in order; got {x!r} for shape {self.shape} with dims {self.dims}"
            )
        return x.update(shape=self.shape)

    def transpose(self, ct, x):
        repeated = [d for d in range(len(self.shape)) if d not in self.dims]
        stretched = [d for n, d in zip(x.shape, self.dims) if n == 1 != self.shape[d]]
        return (reshape(reduce_sum(ct, tuple(sorted(repeated + stretched))), x.shape),)

    def batch(self, args, dims):
        (x,), (dim,) = args, dims
        x = moveaxis(x, dim, 0)
        shape = (x.shape[0], *self.shape)
        return broadcast_in_dim(x, shape, (0, *(d + 1 for d in self.dims))), 0

    def lower(self, ctx, x):
        return stablehlo.broadcast_in_dim(ctx.out_types[0], x, ctx.i64s(self.dims))


class Full(Linear):
    """An array of `shape` with the scalar operand everywhere."""

    shape: tuple[int, ...]
    samples = (sample(f32[()], shape=(2, 3)), sample(f32[()], shape=(0,)))

    def abstract_eval(self, x):
        if x.ndim:
            raise ShapeError(f"full: the fill value must be a scalar; got {x!r}")
        return x.update(shape=self.shape)

    def transpose(self, ct, x):
        return (reduce_sum(ct, tuple(range(ct.ndim))),)

    def batch(self, args, dims):
        (x,) = args
        return broadcast_in_dim(x, (x.shape[0], *self.shape), (0,)), 0

    def lower(self, ctx, x):
        return stablehlo.broadcast_in_dim(ctx.out_types[0], x, ctx.i64s(()))


class Reshape(Linear):
    """The elements of `x`, in row-major order, as an array of `shape`."""

    shape: tuple[int, ...]
    samples = sample(f32[2, 6], shape=(3, 4)), sample(f32[1], shape=())

    def abstract_eval(self, x):
        if prod(self.shape) != x.size:
            raise ShapeError(
                f"reshape: the number of elements must stay; got {x!r} for shape {self.shape}"
            )
        return x.update(shape=self.shape)

    def transpose(self, ct, x):
        return (reshape(ct, x.shape),)

    def batch(self, args, dims):
        (x,), (dim,) = args, dims
        x = moveaxis(x, dim, 0)
        return reshape(x, (x.shape[0], *self.shape)), 0

    def lower(self, ctx, x):
        return stablehlo.reshape(ctx.out_types[0], x)


class PermuteDims(Linear):
    """`x` with dimension `axes[i]` of it as dimension i of the result."""

    axes: tuple[int, ...]
    samples = sample(f32[2, 3, 4], axes=(2, 0, 1)), sample(f32[2, 3], axes=(0, 1))

    def abstract_eval(self, x):
        if sorted(self.axes) != list(range(x.ndim)):
            raise ShapeError(
                f"permute_dims: axes must be a permutation of all axes; got {self.axes} for {x!r}"
            )
        return x.update(shape=tuple([x.shape[a] for a in self.axes]))

    def transpose(self, ct, x):
        return (permute_dims(ct, tuple(int(i) for i in np.argsort(self.axes))),)

    def batch(self, args, dims):
        (x,), (dim,) = args, dims
        lane = without(range(x.ndim), (dim,))
        return permute_dims(x, (dim, *(lane[a] for a in self.axes))), 0

    def lower(self, ctx, x):
        return stablehlo.transpose(x, ctx.i64s(self.axes))


def broadcast_in_dim(x: Any, shape: tuple[int, ...], dims: tuple[int, ...]) -> Any:
    """`x` repeated to `shape`; dimension i of `x` becomes dimension `dims[i]`."""
    if aval_of(x).shape == shape and len(dims) == len(shape):
        return x
    return BroadcastInDim(shape, dims)(x)


def full(shape: tuple[int, ...], fill_value: Any) -> Any:
    """An array of `shape` with the scalar `fill_value` everywhere."""
    return Full(shape)(fill_value)


def full_like(x: Any, value: Any) -> Any:
    """An array of the shape and dtype of `x` with the number `value` everywhere."""
    aval = x if type(x) is ShapedArray else aval_of(x)
    return Full(aval.shape)(literal(value, aval.dtype))


def zeros_like(x: Any) -> Any:
    """Zeros of the shape and dtype of `x`."""
    return full_like(x, 0)


def reshape(x: Any, shape: tuple[int, ...]) -> Any:
    """The elements of `x`, in row-major order, as an array of `shape`."""
    return x if aval_of(x).shape == shape else Reshape(shape)(x)


def permute_dims(x: Any, axes: tuple[int, ...]) -> Any:
    """`x` with dimension `axes[i]` of it as dimension i of the result."""
    return x if axes == tuple(range(len(axes))) else PermuteDims(axes)(x)


def moveaxis(x: Any, source: int, destination: int) -> Any:
    """`x` with the axis `source` at `destination` and the others in their order."""
    if source == destination:
        return x
    axes = [a for a in range(aval_of(x).ndim) if a != source]
    axes.insert(destination, source)
    return PermuteDims(tuple(axes))(x)


def expand_dims(x: Any, axes: Any) -> Any:
    """`x` with unit dimensions inserted, at `axes` of the result."""
    shape = aval_of(x).shape
    rank = len(shape) + (len(axes) if isinstance(axes, tuple) else 1)
    axes = canonical_axes(axes, rank)
    rest = iter(shape)
    return reshape(x, tuple(1 if i in axes else next(rest) for i in range(rank)))


from functx.ops.reductions import reduce_sum  # noqa: E402 - the transpose of broadcasting
