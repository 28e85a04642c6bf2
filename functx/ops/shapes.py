"""Shapes: broadcasting, filling, reshaping, permuting, reversing."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
from jax.extend.mlir.dialects import stablehlo
from jax.interpreters import mlir

from functx import ops
from functx.core.errors import AxisError, DTypeError, ShapeError
from functx.core.functionalization import reshape_strides
from functx.core.primitive import LinearInput
from functx.core.samples import f32, i32, sample
from functx.core.tracing import Tracer, aval_of, current_builder
from functx.core.types import ShapedArray, canonical_dtype, kind
from functx.ops.families import Constant, Linear
from functx.ops.operands import (
    canonical_axes,
    canonical_axis,
    check_axes,
    identity_result,
    literal,
    tuple_delete,
)


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
            0 <= d < len(self.shape) and n in (1, self.shape[d])
            for n, d in zip(x.shape, self.dims, strict=True)
        )
        if not fits or list(self.dims) != sorted(set(self.dims)):
            raise ShapeError(
                "broadcast_in_dim: each dimension of the operand must be 1 or that of the result, "
                f"in order; got {x!r} for shape {self.shape} with dims {self.dims}"
            )
        return x.update(shape=self.shape)

    def transpose(self, ct, x):
        return (reshape(ops.reduce_sum(ct, self.broadcast_dims(x)), x.shape),)

    def broadcast_dims(self, x: Any) -> tuple[int, ...]:
        """The dimensions of the result along which `x` is repeated."""
        repeated = [d for d in range(len(self.shape)) if d not in self.dims]
        stretched = [d for n, d in zip(x.shape, self.dims, strict=True) if n == 1 != self.shape[d]]
        return tuple(sorted(repeated + stretched))

    def tangent_mask(self, lives, args):
        (live,) = lives
        return live if live is None or not live.shape else self(live)

    def cotangent_masks(self, live, args):
        if live is None or not live.shape:
            return [live]
        (x,) = args
        return [reshape(ops.reduce_or(live, self.broadcast_dims(x)), x.shape)]

    def batch(self, args, dims):
        (x,), (dim,) = args, dims
        x = moveaxis(x, dim, 0)
        shape = (x.shape[0], *self.shape)
        return broadcast_in_dim(x, shape, (0, *(d + 1 for d in self.dims))), 0

    view = True

    def scatter_into_base(self, part, index, x):
        return reshape(part, x.shape)

    def is_read_only_view(self, x):
        return x.size != prod(self.shape)

    def view_strides(self, x, strides):
        added, kept = self.broadcast_dims(x), dict(zip(self.dims, strides, strict=True))
        return tuple([0 if d in added else kept[d] for d in range(len(self.shape))])

    def simplify(self, facts, x):
        if x.aval.shape == self.shape:
            return x
        if x.aval.ndim == 0:
            return Full(self.shape), [x]
        if inner := facts.defining_equation(x, Full):
            return Full(self.shape), inner.inputs
        if inner := facts.defining_equation(x, BroadcastInDim):
            dims = tuple([self.dims[d] for d in inner.primitive.dims])
            return BroadcastInDim(self.shape, dims), inner.inputs
        if inner := facts.defining_equation(x, Reshape):
            (given,) = inner.inputs
            lengths = [(n, d) for n, d in zip(x.aval.shape, self.dims, strict=True) if n != 1]
            if given.aval.shape == tuple([n for n, _ in lengths]):
                return BroadcastInDim(self.shape, tuple([d for _, d in lengths])), [given]
        return None

    def lower(self, ctx, x):
        return stablehlo.broadcast_in_dim(ctx.out_types[0], x, ctx.i64_array(self.dims))


class Full(Linear):
    """An array of `shape` with the scalar operand everywhere."""

    shape: tuple[int, ...]
    samples = (sample(f32[()], shape=(2, 3)), sample(f32[()], shape=(0,)))

    def abstract_eval(self, x):
        if x.ndim:
            raise ShapeError(f"full: the fill value must be a scalar; got {x!r}")
        return x.update(shape=self.shape)

    def transpose(self, ct, x):
        return (ops.reduce_sum(ct, tuple(range(ct.ndim))),)

    def tangent_mask(self, lives, args):
        return lives[0]

    def cotangent_masks(self, live, args):
        return [live if live is None else ops.reduce_or(live)]

    def batch(self, args, dims):
        (x,) = args
        return broadcast_in_dim(x, (x.shape[0], *self.shape), (0,)), 0

    def simplify(self, facts, x):
        return None if self.shape else x

    def lower(self, ctx, x):
        return stablehlo.broadcast_in_dim(ctx.out_types[0], x, ctx.i64_array(()))


class Reshape(Linear):
    """The elements of `x`, in row-major order, as an array of `shape`."""

    shape: tuple[int, ...]
    is_element_mapping = True
    samples = sample(f32[2, 6], shape=(3, 4)), sample(f32[1], shape=())

    def abstract_eval(self, x):
        if prod(self.shape) != x.size or min(self.shape, default=0) < 0:
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

    view = layout_dependent = True

    def scatter_into_base(self, part, index, x):
        return reshape(part, x.shape)

    def view_strides(self, x, strides):
        # An index of integers alone gives a scalar, which shares no memory.
        return reshape_strides(x.shape, strides, self.shape) if self.shape or not x.shape else None

    def simplify(self, facts, x):
        if x.aval.shape == self.shape:
            return x
        if inner := facts.defining_equation(x, Reshape):
            return self, inner.inputs
        if inner := facts.defining_equation(x, Full):
            return Full(self.shape), inner.inputs
        return None

    def lower(self, ctx, x):
        return stablehlo.reshape(ctx.out_types[0], x)


class PermuteDims(Linear):
    """`x` with dimension `axes[i]` of it as dimension i of the result."""

    axes: tuple[int, ...]
    is_element_mapping = True
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
        lane = tuple_delete(range(x.ndim), (dim,))
        return permute_dims(x, (dim, *(lane[a] for a in self.axes))), 0

    view = True

    def scatter_into_base(self, part, index, x):
        return self.transpose(part, x)[0]

    def view_strides(self, x, strides):
        return tuple([strides[a] for a in self.axes])

    def simplify(self, facts, x):
        if self.axes == tuple(range(len(self.axes))):
            return x
        if inner := facts.defining_equation(x, PermuteDims):
            axes = inner.primitive.axes
            return PermuteDims(tuple([axes[a] for a in self.axes])), inner.inputs
        if inner := facts.defining_equation(x, Full):
            return Full(tuple([x.aval.shape[a] for a in self.axes])), inner.inputs
        if facts.has_one_use(x) and (inner := facts.defining_equation(x, ops.DotGeneral)):
            return inner.primitive.transposed_product(self.axes, *inner.inputs)
        return None

    def lower(self, ctx, x):
        return stablehlo.transpose(x, ctx.i64_array(self.axes))


class Rev(Linear):
    """`x` with its elements in reverse order along `axes`."""

    axes: tuple[int, ...]
    is_element_mapping = True
    samples = sample(f32[2, 3], axes=(1,)), sample(f32[2, 3, 4], axes=(0, 2))

    def abstract_eval(self, x):
        check_axes(self.name, self.axes, x.ndim)
        return x

    def transpose(self, ct, x):
        return (self(ct),)

    def batch(self, args, dims):
        (x,), (dim,) = args, dims
        return Rev(tuple([a + (a >= dim) for a in self.axes]))(x), dim

    view = True

    def scatter_into_base(self, part, index, x):
        return self(part)

    def view_strides(self, x, strides):
        return tuple([-n if a in self.axes else n for a, n in enumerate(strides)])

    def view_offset(self, x, strides, index):
        return sum([max(x.shape[a] - 1, 0) * strides[a] for a in self.axes])

    def simplify(self, facts, x):
        if all([x.aval.shape[a] == 1 for a in self.axes]):
            return x
        inner = facts.defining_equation(x, Rev)
        return inner.inputs[0] if inner is not None and inner.primitive is self else None

    def lower(self, ctx, x):
        return stablehlo.reverse(x, ctx.i64_array(self.axes))


def broadcast_in_dim(x: Any, shape: tuple[int, ...], dims: tuple[int, ...]) -> Any:
    """`x` repeated to `shape`; dimension i of `x` becomes dimension `dims[i]`."""
    if aval_of(x).shape == shape and len(dims) == len(shape):
        return identity_result(x)
    return BroadcastInDim(shape, dims)(x)


def full(shape: tuple[int, ...], fill_value: Any) -> Any:
    """An array of `shape` with the scalar `fill_value` everywhere."""
    return Full(shape)(fill_value)


def full_like(x: Any, value: Any) -> Any:
    """An array of the shape and dtype of `x` with the number `value` everywhere."""
    aval = x if type(x) is ShapedArray else x.aval if type(x) is LinearInput else aval_of(x)
    fill = literal(value, aval.dtype)
    builder = current_builder.get()
    if not aval.shape and builder is not None:
        return Tracer(fill, builder)
    return Full(aval.shape)(fill)


def zeros_like(x: Any) -> Any:
    """Zeros of the shape and dtype of `x`."""
    return full_like(x, 0)


def instantiate_mask(live: Any, shape: tuple[int, ...]) -> Any:
    """The mask `live` as an array of `shape`; None stands for true, a scalar for an array."""
    if live is None or live is False:
        return full(shape, live is None)
    return live if live.shape == shape else full(shape, live)


def reshape(x: Any, shape: tuple[int, ...]) -> Any:
    """The elements of `x`, in row-major order, as an array of `shape`."""
    return identity_result(x) if aval_of(x).shape == shape else Reshape(shape)(x)


def permute_dims(x: Any, axes: tuple[int, ...]) -> Any:
    """`x` with dimension `axes[i]` of it as dimension i of the result."""
    return identity_result(x) if axes == tuple(range(len(axes))) else PermuteDims(axes)(x)


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


def squeeze(x: Any, axes: Any = None) -> Any:
    """`x` without its unit dimensions `axes`, or without any when no axes are given."""
    shape = aval_of(x).shape
    if axes is None:
        return reshape(x, tuple([n for n in shape if n != 1]))
    axes = canonical_axes(axes, len(shape))
    if any(shape[a] != 1 for a in axes):
        raise ShapeError(f"squeeze: the axes must have length 1; got {axes} of shape {shape}")
    return reshape(x, tuple_delete(shape, axes))


def rev(x: Any, axes: Sequence[int]) -> Any:
    """`x` with its elements in reverse order along `axes`."""
    axes = canonical_axes(tuple(axes), aval_of(x).ndim)
    return Rev(axes)(x) if axes else identity_result(x)


def batch_dim_at(x: Any, dim: int | None, wanted: int, size: int) -> Any:
    """`x` with its batch dimension moved to `wanted`, or made there if `x` has none."""
    if dim is not None:
        return moveaxis(x, dim, wanted)
    shape = (*x.shape[:wanted], size, *x.shape[wanted:])
    return broadcast_in_dim(x, shape, tuple([d + (d >= wanted) for d in range(x.ndim)]))


class Iota(Constant):
    """An array of `shape` that holds at each place its index along `dimension`."""

    dtype: Any
    shape: tuple[int, ...]
    dimension: int = 0
    samples = sample(dtype="int32", shape=(3, 4), dimension=1), sample(dtype="float32", shape=(0,))

    def abstract_eval(self):
        dtype = canonical_dtype(self.dtype)
        if kind(dtype) == "b":
            raise DTypeError("iota: the dtype must be a number's; got bool")
        if not 0 <= self.dimension < len(self.shape):
            raise AxisError(
                f"iota: dimension must be one of the shape {self.shape}; got {self.dimension}"
            )
        return ShapedArray(self.shape, dtype)

    def lower(self, ctx):
        return stablehlo.iota(ctx.out_types[0], self.dimension)


def iota(dtype: Any, size: int) -> Any:
    """The numbers 0, 1, ..., size - 1 in `dtype`."""
    return Iota(canonical_dtype(dtype), (size,), 0)()


def broadcasted_iota(dtype: Any, shape: tuple[int, ...], dimension: int) -> Any:
    """An array of `shape` that holds at each place its index along `dimension`."""
    return Iota(canonical_dtype(dtype), tuple(shape), canonical_axis(dimension, len(shape)))()


class DenseConstant(Constant):
    """The array of type `aval` whose elements have the bytes `data`, row by row."""

    aval: ShapedArray
    data: bytes
    samples = (
        sample(aval=f32[2, 2], data=np.arange(4, dtype=np.float32).tobytes()),
        sample(aval=i32[3], data=np.arange(3, dtype=np.int32).tobytes()),
    )

    def abstract_eval(self):
        return self.aval

    def array(self) -> np.ndarray[Any, Any]:
        """The value."""
        return np.frombuffer(self.data, self.aval.dtype).reshape(self.aval.shape)

    def lower(self, ctx):
        return mlir.ir_constant(self.array())


def embed_constant(x: Any) -> Any:
    """The concrete array `x` as part of the program, for values that cannot be operands."""
    aval = aval_of(x)
    return DenseConstant(aval, np.ascontiguousarray(np.asarray(x, aval.dtype)).tobytes())()
