"""Shapes: broadcasting, filling, reshaping, permuting and reversing; constant arrays."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING

import numpy as np
from jax.extend.mlir.dialects import stablehlo
from jax.interpreters import mlir

from functx import ops
from functx.core.errors import AxisError, DTypeError, ShapeError
from functx.core.primitive import LinearInput, operand_aval
from functx.core.primitive_families import View
from functx.core.program import Atom
from functx.core.samples import f32, i32, sample
from functx.core.strides import MemoryOrder, reshape_strides
from functx.core.tracer import Tracer, abstractify, aval_of, current_builder
from functx.core.types import DType, Shape, ShapedArray, canonical_dtype, kind
from functx.core.typing import (
    ArrayLike,
    Axes,
    Cotangents,
    Dim,
    DTypeLike,
    IRValue,
    Mask,
    NumPyArray,
    ShapeLike,
    Value,
)
from functx.ops.families import Constant, Linear, MovesElements
from functx.ops.operands import (
    PYTHON_SCALARS,
    RewriteContext,
    Simplified,
    batch_size,
    canonical_axes,
    canonical_axis,
    canonical_axis_sequence,
    canonical_shape,
    check_axes,
    identity_result,
    is_sequence_of_ints,
    literal,
    tuple_delete,
)

if TYPE_CHECKING:
    from functx.lowering.stablehlo_emitter import LoweringContext


class BroadcastInDim(MovesElements, Linear, View):
    """`x` repeated to `shape`; dimension i of `x` becomes dimension `dims[i]`."""

    shape: tuple[int, ...]
    dims: tuple[int, ...]
    size_fields = ("shape",)
    memory_order = MemoryOrder.REPEATED
    samples = (
        sample(f32[3], shape=(2, 3), dims=(1,)),
        sample(f32[1, 3], shape=(2, 3, 4), dims=(0, 1)),
        sample(f32[()], shape=(2, 3), dims=()),
    )

    def abstract_eval(self, x: ShapedArray) -> ShapedArray:
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

    def transpose(self, ct: Value, x: Value) -> Cotangents:
        return (reshape(ops.reduce_sum(ct, self.broadcast_dims(x)), x.shape),)

    def broadcast_dims(self, x: Value | ShapedArray) -> tuple[int, ...]:
        """The dimensions of the result along which `x` is repeated."""
        repeated = [d for d in range(len(self.shape)) if d not in self.dims]
        stretched = [d for n, d in zip(x.shape, self.dims, strict=True) if n == 1 != self.shape[d]]
        return tuple(sorted(repeated + stretched))

    def tangent_mask(self, masks: Sequence[Mask], args: Sequence[Value]) -> Mask:
        (mask,) = masks
        return mask if mask is None or not mask.shape else self(mask)

    def cotangent_masks(self, mask: Mask, args: Sequence[Value]) -> Sequence[Mask]:
        if mask is None or not mask.shape:
            return [mask]
        (x,) = args
        return [reshape(ops.reduce_or(mask, self.broadcast_dims(x)), x.shape)]

    def batch(self, args: Sequence[Value], dims: Sequence[int]) -> tuple[Value, Dim]:
        (x,), (dim,) = args, dims
        x = moveaxis(x, dim, 0)
        shape = (x.shape[0], *self.shape)
        return broadcast_in_dim(x, shape, (0, *(d + 1 for d in self.dims))), 0

    def scatter_into_base(self, part: Value, index: Value | int, x: Value) -> Value:
        return reshape(part, x.shape)

    def is_read_only_view(self, x: ShapedArray) -> bool:
        return x.size != prod(self.shape)

    def view_strides(self, x: ShapedArray, strides: tuple[int, ...]) -> tuple[int, ...] | None:
        added, kept = self.broadcast_dims(x), dict(zip(self.dims, strides, strict=True))
        return tuple([0 if d in added else kept[d] for d in range(len(self.shape))])

    def simplify(self, context: RewriteContext, x: Atom) -> Simplified:
        if x.aval.shape == self.shape:
            return x
        if x.aval.ndim == 0:
            return Full(self.shape), [x]
        if inner := context.defining_equation(x, Full):
            return Full(self.shape), inner.inputs
        if inner := context.defining_equation(x, BroadcastInDim):
            dims = tuple([self.dims[d] for d in inner.primitive.dims])
            return BroadcastInDim(self.shape, dims), inner.inputs
        if inner := context.defining_equation(x, Reshape):
            (source,) = inner.inputs
            lengths = [(n, d) for n, d in zip(x.aval.shape, self.dims, strict=True) if n != 1]
            if source.aval.shape == tuple([n for n, _ in lengths]):
                return BroadcastInDim(self.shape, tuple([d for _, d in lengths])), [source]
        return None

    def lower(self, ctx: LoweringContext, x: IRValue) -> IRValue:
        return stablehlo.broadcast_in_dim(ctx.out_types[0], x, ctx.i64_array(self.dims))


class Full(MovesElements, Linear):
    """An array of `shape` filled with the scalar operand."""

    shape: tuple[int, ...]
    size_fields = ("shape",)
    samples = (sample(f32[()], shape=(2, 3)), sample(f32[()], shape=(0,)))

    def abstract_eval(self, x: ShapedArray) -> ShapedArray:
        if x.ndim:
            raise ShapeError(f"full: the fill value must be a scalar; got {x!r}")
        return x.update(shape=self.shape)

    def transpose(self, ct: Value, x: Value) -> Cotangents:
        return (ops.reduce_sum(ct, tuple(range(ct.ndim))),)

    def tangent_mask(self, masks: Sequence[Mask], args: Sequence[Value]) -> Mask:
        return masks[0]

    def cotangent_masks(self, mask: Mask, args: Sequence[Value]) -> Sequence[Mask]:
        return [mask if mask is None else ops.reduce_or(mask)]

    def batch(self, args: Sequence[Value], dims: Sequence[Dim]) -> tuple[Value, Dim]:
        (x,) = args
        return broadcast_in_dim(x, (x.shape[0], *self.shape), (0,)), 0

    def simplify(self, context: RewriteContext, x: Atom) -> Simplified:
        return None if self.shape else x

    def numpy(self, x: NumPyArray) -> ArrayLike:
        return np.full(self.shape, x)

    def lower(self, ctx: LoweringContext, x: IRValue) -> IRValue:
        return stablehlo.broadcast_in_dim(ctx.out_types[0], x, ctx.i64_array(()))


class Reshape(MovesElements, Linear, View):
    """The elements of `x`, in row-major order, as an array of `shape`."""

    shape: tuple[int, ...]
    size_fields = ("shape",)
    is_element_mapping = True
    samples = sample(f32[2, 6], shape=(3, 4)), sample(f32[1], shape=())

    def abstract_eval(self, x: ShapedArray) -> ShapedArray:
        if prod(self.shape) != x.size or min(self.shape, default=0) < 0:
            raise ShapeError(
                f"reshape: the number of elements must stay; got {x!r} for shape {self.shape}"
            )
        return x.update(shape=self.shape)

    def transpose(self, ct: Value, x: Value) -> Cotangents:
        return (reshape(ct, x.shape),)

    def batch(self, args: Sequence[Value], dims: Sequence[int]) -> tuple[Value, Dim]:
        (x,), (dim,) = args, dims
        x = moveaxis(x, dim, 0)
        return reshape(x, (x.shape[0], *self.shape)), 0

    memory_order = MemoryOrder.BY_LAYOUT

    def scatter_into_base(self, part: Value, index: Value | int, x: Value) -> Value:
        return reshape(part, x.shape)

    def view_strides(self, x: ShapedArray, strides: tuple[int, ...]) -> tuple[int, ...] | None:
        # A scalar result shares no memory with an array.
        return reshape_strides(x.shape, strides, self.shape) if self.shape or not x.shape else None

    def simplify(self, context: RewriteContext, x: Atom) -> Simplified:
        if x.aval.shape == self.shape:
            return x
        if inner := context.defining_equation(x, Reshape):
            return self, inner.inputs
        if inner := context.defining_equation(x, Full):
            return Full(self.shape), inner.inputs
        return None

    def numpy(self, x: NumPyArray) -> ArrayLike:
        return x.reshape(self.shape)

    def lower(self, ctx: LoweringContext, x: IRValue) -> IRValue:
        return stablehlo.reshape(ctx.out_types[0], x)


class PermuteDims(MovesElements, Linear, View):
    """`x` with dimension `axes[i]` of it as dimension i of the result."""

    axes: tuple[int, ...]
    memory_order = MemoryOrder.REARRANGED
    is_element_mapping = True
    samples = sample(f32[2, 3, 4], axes=(2, 0, 1)), sample(f32[2, 3], axes=(0, 1))

    def abstract_eval(self, x: ShapedArray) -> ShapedArray:
        if sorted(self.axes) != list(range(x.ndim)):
            raise ShapeError(
                f"permute_dims: axes must be a permutation of all axes; got {self.axes} for {x!r}"
            )
        return x.update(shape=tuple([x.shape[a] for a in self.axes]))

    def transpose(self, ct: Value, x: Value) -> Cotangents:
        return (permute_dims(ct, tuple(int(i) for i in np.argsort(self.axes))),)

    def batch(self, args: Sequence[Value], dims: Sequence[int]) -> tuple[Value, Dim]:
        (x,), (dim,) = args, dims
        element_dims = tuple_delete(range(x.ndim), (dim,))
        return permute_dims(x, (dim, *(element_dims[a] for a in self.axes))), 0

    def scatter_into_base(self, part: Value, index: Value | int, x: Value) -> Value:
        return permute_dims(part, tuple(int(i) for i in np.argsort(self.axes)))

    def view_strides(self, x: ShapedArray, strides: tuple[int, ...]) -> tuple[int, ...] | None:
        return tuple([strides[a] for a in self.axes])

    def simplify(self, context: RewriteContext, x: Atom) -> Simplified:
        if self.axes == tuple(range(len(self.axes))):
            return x
        if inner := context.defining_equation(x, PermuteDims):
            axes = inner.primitive.axes
            return PermuteDims(tuple([axes[a] for a in self.axes])), inner.inputs
        if inner := context.defining_equation(x, Full):
            return Full(tuple([x.aval.shape[a] for a in self.axes])), inner.inputs
        if context.has_one_use(x) and (inner := context.defining_equation(x, ops.DotGeneral)):
            return inner.primitive.transposed_product(self.axes, *inner.inputs)
        return None

    def numpy(self, x: NumPyArray) -> ArrayLike:
        return x.transpose(self.axes)

    def lower(self, ctx: LoweringContext, x: IRValue) -> IRValue:
        return stablehlo.transpose(x, ctx.i64_array(self.axes))


class Rev(MovesElements, Linear, View):
    """`x` with its elements in reverse order along `axes`."""

    axes: tuple[int, ...]
    is_element_mapping = True
    samples = sample(f32[2, 3], axes=(1,)), sample(f32[2, 3, 4], axes=(0, 2))

    def abstract_eval(self, x: ShapedArray) -> ShapedArray:
        check_axes(self.name, self.axes, x.ndim)
        return x

    def transpose(self, ct: Value, x: Value) -> Cotangents:
        return (self(ct),)

    def batch(self, args: Sequence[Value], dims: Sequence[int]) -> tuple[Value, Dim]:
        (x,), (dim,) = args, dims
        return Rev(tuple([a + (a >= dim) for a in self.axes]))(x), dim

    def scatter_into_base(self, part: Value, index: Value | int, x: Value) -> Value:
        return self(part)

    def view_strides(self, x: ShapedArray, strides: tuple[int, ...]) -> tuple[int, ...] | None:
        return tuple([-n if a in self.axes else n for a, n in enumerate(strides)])

    def view_offset(self, x: ShapedArray, strides: tuple[int, ...], index: int) -> int | None:
        return sum([max(x.shape[a] - 1, 0) * strides[a] for a in self.axes])

    def simplify(self, context: RewriteContext, x: Atom) -> Simplified:
        if all([x.aval.shape[a] == 1 for a in self.axes]):
            return x
        inner = context.defining_equation(x, Rev)
        return inner.inputs[0] if inner is not None and inner.primitive is self else None

    def numpy(self, x: NumPyArray) -> ArrayLike:
        return np.flip(x, self.axes)

    def lower(self, ctx: LoweringContext, x: IRValue) -> IRValue:
        return stablehlo.reverse(x, ctx.i64_array(self.axes))


class Iota(Constant):
    """An array of `shape` whose elements are their index along `dimension`."""

    dtype: DType
    shape: tuple[int, ...]
    dimension: int = 0
    size_fields = ("shape",)
    samples = sample(dtype="int32", shape=(3, 4), dimension=1), sample(dtype="float32", shape=(0,))

    def abstract_eval(self) -> ShapedArray:
        dtype = canonical_dtype(self.dtype)
        if kind(dtype) == "b":
            raise DTypeError("iota: the dtype must be a number's; got bool")
        if not 0 <= self.dimension < len(self.shape):
            raise AxisError(
                f"iota: dimension must be one of the shape {self.shape}; got {self.dimension}"
            )
        return ShapedArray(self.shape, dtype)

    def numpy(self) -> ArrayLike:
        return np.indices(self.shape)[self.dimension].astype(self.dtype)

    def lower(self, ctx: LoweringContext) -> IRValue:
        return stablehlo.iota(ctx.out_types[0], self.dimension)


class DenseConstant(Constant):
    """The array of type `aval` with the bytes `data`, in row-major order."""

    aval: ShapedArray
    data: bytes
    samples = (
        sample(aval=f32[2, 2], data=np.arange(4, dtype=np.float32).tobytes()),
        sample(aval=i32[3], data=np.arange(3, dtype=np.int32).tobytes()),
    )

    def abstract_eval(self) -> ShapedArray:
        return self.aval

    def array(self) -> NumPyArray:
        """The value."""
        return np.frombuffer(self.data, self.aval.dtype).reshape(self.aval.shape)

    def lower(self, ctx: LoweringContext) -> IRValue:
        return mlir.ir_constant(self.array())


def broadcast_in_dim(
    operand: ArrayLike, shape: ShapeLike, broadcast_dimensions: Sequence[int]
) -> Value:
    """`operand` repeated to `shape`; its dimension i becomes `broadcast_dimensions[i]`."""
    shape = canonical_shape(shape, "broadcast_in_dim: shape")
    dims = tuple(broadcast_dimensions)
    if aval_of(operand).shape == shape and dims == tuple(range(len(shape))):
        return identity_result(operand)
    return BroadcastInDim(shape, dims)(operand)


def broadcast(operand: ArrayLike, sizes: Sequence[int]) -> Value:
    """`operand` repeated along new leading dimensions of lengths `sizes`."""
    shape = canonical_shape(sizes, "broadcast: sizes") + aval_of(operand).shape
    lead = len(shape) - aval_of(operand).ndim
    return broadcast_in_dim(operand, shape, tuple(range(lead, len(shape))))


def broadcast_to_rank(x: ArrayLike, rank: int) -> Value:
    """`x` with leading dimensions of length 1, so that it has `rank` dimensions.

    Raises ShapeError if it has more.
    """
    shape = aval_of(x).shape
    if len(shape) > rank:
        raise ShapeError(
            f"broadcast_to_rank: the operand must have at most {rank} dimensions; got {aval_of(x)!r}"
        )
    return reshape(x, (1,) * (rank - len(shape)) + shape)


def full(shape: ShapeLike, fill_value: ArrayLike, dtype: DTypeLike = None) -> Value:
    """An array of `shape` filled with the scalar `fill_value`, converted to `dtype` if that is given."""
    value = fill_value if dtype is None else _fill_scalar(fill_value, dtype)
    return Full(canonical_shape(shape, "full: shape"))(value)


def full_like(
    x: ArrayLike, fill_value: ArrayLike, dtype: DTypeLike = None, shape: ShapeLike | None = None
) -> Value:
    """An array filled with the scalar `fill_value`, by default of the shape and dtype of `x`.

    It is weakly typed if `x` is and no `dtype` is given.
    """
    aval = abstractify(x)
    value = _fill_scalar(fill_value, aval.dtype if dtype is None else dtype)
    if dtype is None and aval.weak_type:
        value = ops.convert_element_type(value, aval.dtype, weak=True)
    return Full(aval.shape if shape is None else canonical_shape(shape))(value)


def _fill_scalar(value: ArrayLike, dtype: DTypeLike) -> ArrayLike:
    if type(value) in PYTHON_SCALARS:
        return literal(np.asarray(value).astype(dtype).item(), np.dtype(dtype))
    return ops.convert_element_type(value, dtype)


def empty(shape: ShapeLike, dtype: DTypeLike) -> Value:
    """An array of `shape` and `dtype` whose elements are unspecified: zeros."""
    return full(shape, 0, dtype)


def constant_like(x: ArrayLike | ShapedArray | LinearInput, value: complex) -> Value:
    """An array of the shape and dtype of `x`, a value or an aval, filled with the number `value`.

    It is not weakly typed.
    """
    aval = x if type(x) is ShapedArray else operand_aval(x)
    fill = literal(value, aval.dtype)
    builder = current_builder.get()
    if not aval.shape and builder is not None:
        return Tracer(fill, builder)
    return Full(aval.shape)(fill)


def zeros_like(x: ArrayLike | ShapedArray | LinearInput) -> Value:
    """Zeros of the shape and dtype of `x`, a value or an aval."""
    return constant_like(x, 0)


def instantiate_mask(mask: Mask | bool, shape: tuple[int, ...]) -> Value:
    """The mask `mask` as an array of `shape`; None stands for true, False for false."""
    if mask is None or isinstance(mask, bool):
        return full(shape, mask is not False)
    return mask if mask.shape == shape else full(shape, mask)


def reshape(
    operand: ArrayLike, new_sizes: ShapeLike, dimensions: Sequence[int] | None = None
) -> Value:
    """The elements of `operand` in row-major order as an array of shape `new_sizes`.

    `dimensions` permutes the dimensions of `operand` first.
    """
    shape = canonical_shape(new_sizes, "reshape: new_sizes")
    if dimensions is not None:
        operand = transpose(operand, dimensions)
    return identity_result(operand) if aval_of(operand).shape == shape else Reshape(shape)(operand)


def collapse(operand: ArrayLike, start_dimension: int, stop_dimension: int | None = None) -> Value:
    """`operand` with the dimensions from `start_dimension` to before `stop_dimension` as one.

    Raises AxisError if there is none.
    """
    shape = aval_of(operand).shape
    start, stop, _ = slice(start_dimension, stop_dimension).indices(len(shape))
    if start >= stop:
        raise AxisError(
            "collapse: there must be a dimension from start_dimension to stop_dimension; "
            f"got {start_dimension} and {stop_dimension} for {aval_of(operand)!r}"
        )
    return reshape(operand, (*shape[:start], prod(shape[start:stop]), *shape[stop:]))


def permute_dims(x: ArrayLike, axes: tuple[int, ...]) -> Value:
    """`x` with dimension `axes[i]` of it as dimension i of the result."""
    return identity_result(x) if axes == tuple(range(len(axes))) else PermuteDims(axes)(x)


def transpose(operand: ArrayLike, permutation: Sequence[int]) -> Value:
    """`operand` with dimension `permutation[i]` of it as dimension i of the result.

    Negative dimensions count from the end. Raises AxisError for what is no permutation.
    """
    ndim = aval_of(operand).ndim
    axes = canonical_axis_sequence(permutation, ndim, "transpose: permutation")
    if len(axes) != ndim:
        raise AxisError(
            f"transpose: permutation must name every dimension; got {axes} for {aval_of(operand)!r}"
        )
    return permute_dims(operand, axes)


def moveaxis(x: Value, source: int, destination: int) -> Value:
    """`x` with the axis `source` moved to `destination`, the others in their order."""
    if source == destination:
        return x
    axes = [a for a in range(aval_of(x).ndim) if a != source]
    axes.insert(destination, source)
    return PermuteDims(tuple(axes))(x)


def expand_dims(array: ArrayLike, dimensions: int | Sequence[int]) -> Value:
    """`array` with dimensions of length 1 inserted, which are at `dimensions` of the result."""
    shape = aval_of(array).shape
    rank = len(shape) + (len(dimensions) if is_sequence_of_ints(dimensions) else 1)
    axes = canonical_axes(dimensions, rank)
    lengths = iter(shape)
    return reshape(array, tuple(1 if i in axes else next(lengths) for i in range(rank)))


def squeeze(array: ArrayLike, dimensions: Axes = None) -> Value:
    """`array` without its dimensions `dimensions` of length 1, by default without any of length 1."""
    shape = aval_of(array).shape
    if dimensions is None:
        return reshape(array, tuple([n for n in shape if n != 1]))
    axes = canonical_axes(dimensions, len(shape))
    if any(shape[a] != 1 for a in axes):
        raise ShapeError(f"squeeze: the axes must have length 1; got {axes} of shape {shape}")
    return reshape(array, tuple_delete(shape, axes))


def rev(operand: ArrayLike, dimensions: Sequence[int]) -> Value:
    """`operand` with its elements in reverse order along `dimensions`."""
    axes = canonical_axis_sequence(dimensions, aval_of(operand).ndim, "rev: dimensions")
    return Rev(axes)(operand) if axes else identity_result(operand)


def batch_dim_at(x: Value, dim: int | None, target: int, size: int) -> Value:
    """`x` with its batch dimension `dim` moved to `target`; if None, one of length `size` is added."""
    if dim is not None:
        return moveaxis(x, dim, target)
    shape = (*x.shape[:target], size, *x.shape[target:])
    return broadcast_in_dim(x, shape, tuple([d + (d >= target) for d in range(x.ndim)]))


def broadcast_leading(x: Value, shape: Shape) -> Value:
    """`x`, whose dimensions are the first ones of `shape`, repeated along the others."""
    return broadcast_in_dim(x, shape, tuple(range(x.ndim)))


def batch_dims_at(
    args: Sequence[Value], dims: Sequence[Dim], target: int = 0, *, add_missing: bool = True
) -> list[Value]:
    """The operands of a batching rule with their batch dimensions `dims` moved to `target`.

    One without a batch dimension gets one, unless `add_missing` is False.
    """
    size = batch_size(args, dims)
    return [
        batch_dim_at(x, d, target, size) if add_missing or d is not None else x
        for x, d in zip(args, dims, strict=True)
    ]


def iota(dtype: DTypeLike, size: int) -> Value:
    """The numbers 0, 1, ..., size - 1 in `dtype`."""
    return Iota(canonical_dtype(dtype), canonical_shape(size, "iota: size"), 0)()


def broadcasted_iota(dtype: DTypeLike, shape: Sequence[int], dimension: int) -> Value:
    """An array of `shape` whose elements are their index along `dimension`, in `dtype`."""
    shape = canonical_shape(shape)
    return Iota(canonical_dtype(dtype), shape, canonical_axis(dimension, len(shape)))()


def embed_constant(x: Value) -> Value:
    """The concrete array `x` embedded in the program, for values that cannot be operands."""
    aval = aval_of(x)
    return DenseConstant(aval, np.ascontiguousarray(np.asarray(x, aval.dtype)).tobytes())()
