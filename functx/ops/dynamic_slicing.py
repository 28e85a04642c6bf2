"""Slices of arrays at indices that may be traced: reading and updating them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, SupportsInt

import numpy as np
from jax.extend.mlir.dialects import stablehlo

from functx import ops
from functx.core.errors import DTypeError, IndexingError, ShapeError
from functx.core.index_sets import DependentOperand, IndexSets, Sets
from functx.core.primitive import LinearInput, Primitive, operand_aval
from functx.core.primitive_families import ReadsPart, UpdatesInPlace, View
from functx.core.program import Atom, Literal
from functx.core.samples import EXACT, f32, i32, sample
from functx.core.tracer import aval_of
from functx.core.types import Shape, ShapedArray, canonical_dtype, is_integer, kind
from functx.core.typing import ArrayLike, Cotangents, Dim, IRValue, Mask, NumPyArray, Tangent, Value
from functx.ops.families import MovesElements, TransposedByVJP
from functx.ops.operands import (
    RewriteContext,
    Simplified,
    canonical_axis,
    canonical_shape,
    literal,
    promote_scalars,
    tuple_delete,
)

if TYPE_CHECKING:
    from functx.lowering.stablehlo_emitter import LoweringContext


class DynamicSlice(TransposedByVJP, ReadsPart, View):
    """The part of `x` of shape `sizes` that begins at scalar indices, the other operands.

    Start indices are clamped so that the part fits.
    """

    sizes: Shape
    size_fields = ("sizes",)
    rounding = EXACT
    samples = (
        sample(f32[4, 5], i32[()], i32[()], sizes=(2, 3), values={1: 1, 2: 2}),
        sample(f32[4], i32[()], sizes=(3,), values={1: 7}),
        sample(f32[4], i32[()], sizes=(3,), values={1: -2}),
    )

    @classmethod
    def from_jax_params(cls, slice_sizes: Shape) -> DynamicSlice:
        return cls(tuple(map(int, slice_sizes)))

    def index_sets(self, sets: IndexSets, *operands: DependentOperand) -> Sets:
        x, *indices = operands
        part, unknown = known_part(x.aval.shape, self.sizes, indices)
        numbers = sets.spread(x.sets, unknown)
        return None if numbers is None else numbers[part][tuple(map(slice, self.sizes))]

    def abstract_eval(self, x: ShapedArray, *indices: ShapedArray) -> ShapedArray:
        check_start_indices(self, x, indices)
        check_slice_sizes(self, self.sizes, x)
        return x.update(shape=self.sizes)

    def vjp(
        self, ct: Value, out: Value, args: Sequence[Value], active: Sequence[bool]
    ) -> Cotangents:
        x, *indices = args
        into = DynamicUpdateSlice()(ops.zeros_like(x), ct, *indices)
        return (into, *[None] * len(indices))

    def tangent_mask(self, masks: Sequence[Mask], args: Sequence[Value]) -> Mask:
        mask, (_, *indices) = masks[0], args
        return mask if mask is None or not mask.shape else self(mask, *indices)

    def cotangent_masks(self, mask: Mask, args: Sequence[Value]) -> Sequence[Mask]:
        x, *indices = args
        if is_small_part(self.abstract_eval(*map(operand_aval, args)), x):
            return [None] * len(args)
        mask = ops.instantiate_mask(mask, self.sizes)
        return self.transpose(mask, LinearInput(operand_aval(x).update(dtype=mask.dtype)), *indices)

    def add_to_cotangent(self, total: Value, ct: Value, args: Sequence[Value]) -> Value:
        _, *indices = args
        return DynamicUpdateSlice()(total, ops.add(self(total, *indices), ct), *indices)

    def scatter_into_base(
        self, part: Value, index: Value | int, x: Value, *indices: Value
    ) -> Value:
        return DynamicUpdateSlice()(x, part, *indices)

    def view_strides(self, x: ShapedArray, strides: tuple[int, ...]) -> tuple[int, ...] | None:
        return strides

    def view_offset(self, x: ShapedArray, strides: tuple[int, ...], index: int) -> int | None:
        return None

    def batch(self, args: Sequence[Value], dims: Sequence[Any]) -> tuple[Value, Dim]:
        (x, *indices), (dim, *index_dims) = args, dims
        if all(d is None for d in index_dims):
            sizes = ops.tuple_insert(self.sizes, dim, x.shape[dim])
            return DynamicSlice(sizes)(x, *ops.tuple_insert(indices, dim, zero_index(indices))), dim
        return batched_gather(x, dim, self.sizes, indices, index_dims), 0

    def simplify(self, context: RewriteContext, x: Atom, *indices: Atom) -> Simplified:
        values = [i.value for i in indices if type(i) is Literal]
        if len(values) < len(indices):
            return None
        start = clamp_starts(values, x.aval.shape, self.sizes)
        limit = tuple([a + size for a, size in zip(start, self.sizes, strict=True)])
        return ops.Slice(start, limit), [x]

    def lower(self, ctx: LoweringContext, x: IRValue, *indices: IRValue) -> IRValue:
        starts = promote_index_dtypes(ctx, indices, ctx.avals_in[1:])
        return stablehlo.dynamic_slice(x, starts, ctx.i64_array(self.sizes))


def clamp_starts(starts: Iterable[SupportsInt], shape: Shape, sizes: Shape) -> tuple[int, ...]:
    """The start of a part of `sizes`, moved such that the part lies in an array of `shape`."""
    clamped = zip(starts, shape, sizes, strict=True)
    return tuple([min(max(int(start), 0), n - size) for start, n, size in clamped])


def known_part(
    shape: Shape, sizes: Shape, indices: Sequence[DependentOperand]
) -> tuple[tuple[slice, ...], list[int]]:
    """The slices of an array of `shape` that hold its part of `sizes`, and the dimensions of unknown start.

    Along these, a slice is the whole dimension.
    """
    slices, unknown = [], []
    for d, (n, size, index) in enumerate(zip(shape, sizes, indices, strict=True)):
        start = 0 if n == size else index.value()
        if start is None:
            unknown.append(d)
            slices.append(slice(None))
        else:
            (first,) = clamp_starts((start,), (n,), (size,))
            slices.append(slice(first, first + size))
    return tuple(slices), unknown


class DynamicUpdateSlice(TransposedByVJP, UpdatesInPlace):
    """`x` with the part that begins at scalar indices, the other operands, replaced by `update`.

    Start indices are clamped so that the update fits.
    """

    has_finite_derivative = True
    rounding = EXACT
    samples = (
        sample(f32[4, 5], f32[2, 3], i32[()], i32[()], values={2: 1, 3: 2}),
        sample(f32[4], f32[3], i32[()], values={2: 7}),
        sample(f32[4], f32[3], i32[()], values={2: -2}),
    )

    def index_sets(self, sets: IndexSets, *operands: DependentOperand) -> Sets:
        x, update, *indices = operands
        if x.sets is None and update.sets is None:
            return None
        part, unknown = known_part(x.aval.shape, update.aval.shape, indices)
        numbers = np.zeros(x.aval.shape, np.int32) if x.sets is None else x.sets.copy()
        written = sets.union_along(update.sets, unknown, keepdims=True)
        kept = numbers[part] if unknown else None
        united = sets.union(kept, written)
        numbers[part] = 0 if united is None else united
        return numbers

    def abstract_eval(
        self, x: ShapedArray, update: ShapedArray, *indices: ShapedArray
    ) -> ShapedArray:
        check_start_indices(self, x, indices)
        if x.dtype != update.dtype:
            raise DTypeError(
                f"dynamic_update_slice: operands must have one dtype; got {x!r} and {update!r}",
                fix="Convert with astype.",
            )
        check_slice_sizes(self, update.shape, x)
        return x.update(weak_type=x.weak_type and update.weak_type)

    def vjp(
        self, ct: Value, out: Value | None, args: Sequence[Value], active: Sequence[bool]
    ) -> Cotangents:
        _, update, *indices = args
        update_ct = DynamicSlice(update.shape)(ct, *indices) if active[1] else None
        zeros = ops.zeros_like(update)
        if update_ct is not None and is_small_part(update, ct):
            update_ct, zeros = ReadBeforeWrite()(update_ct)
        operand_ct = self(ct, zeros, *indices) if active[0] else None
        return (operand_ct, update_ct, *[None] * len(indices))

    def tangent_mask(self, masks: Sequence[Mask | bool], args: Sequence[Value]) -> Mask:
        x, update, *indices = args
        if masks[0] is not False and (masks[0] is None or is_small_part(update, x)):
            return None
        operand_mask, update_mask = (
            ops.instantiate_mask(masks[0], x.shape),
            ops.instantiate_mask(masks[1], update.shape),
        )
        return self(operand_mask, update_mask, *indices)

    def cotangent_masks(self, mask: Mask, args: Sequence[Value]) -> Sequence[Mask]:
        x, update, *indices = args
        if is_small_part(update, x):
            return [None] * len(args)
        operand_mask = self(
            ops.instantiate_mask(mask, x.shape), ops.full(update.shape, False), *indices
        )
        update_mask = (
            None
            if mask is None
            else DynamicSlice(update.shape)(ops.instantiate_mask(mask, x.shape), *indices)
        )
        return [operand_mask, update_mask, *[None] * len(indices)]

    def batch(self, args: Sequence[Value], dims: Sequence[Any]) -> tuple[Value, Dim]:
        (x, update, *indices), (dim, update_dim, *index_dims) = args, dims
        size = next(a.shape[d] for a, d in zip(args, dims, strict=True) if d is not None)
        if all(d is None for d in index_dims):
            target = dim if dim is not None else update_dim
            x, update = (
                ops.batch_dim_at(x, dim, target, size),
                ops.batch_dim_at(update, update_dim, target, size),
            )
            return self(x, update, *ops.tuple_insert(indices, target, zero_index(indices))), target
        x, update = ops.batch_dim_at(x, dim, 0, size), ops.batch_dim_at(update, update_dim, 0, size)
        return batched_scatter(x, update, indices, index_dims), 0

    def masked_update(
        self, mask: Value, changed: Sequence[bool], borrow_active: bool, args: Sequence[Value]
    ) -> Sequence[Value]:
        x, update, *indices = args
        current = DynamicSlice(update.shape)(x, *indices)
        return [self(x, ops.select(mask, update, current), *indices)]

    def lower(
        self, ctx: LoweringContext, x: IRValue, update: IRValue, *indices: IRValue
    ) -> IRValue:
        starts = promote_index_dtypes(ctx, indices, ctx.avals_in[2:])
        return stablehlo.dynamic_update_slice(x, update, starts)


class ReadBeforeWrite(TransposedByVJP, MovesElements):
    """`x`, read from a larger array, and zeros to write over it, ordered after the read.

    XLA may read a part again for each use. If the array has been updated by then, XLA copies the whole
    array for that. On CPUs a value that goes through a call is not computed again.
    """

    multiple_results = True
    no_cse = True
    samples = (sample(f32[3]), sample(f32[()]))

    def abstract_eval(self, x: ShapedArray) -> Sequence[ShapedArray]:
        return [x, x]

    def jvp(
        self, primals: Sequence[Value], tangents: Sequence[Tangent]
    ) -> tuple[Sequence[Value], Sequence[Tangent]]:
        tangent, _ = self(*tangents)
        return self(*primals), [tangent, None]

    def vjp(
        self, cts: Cotangents, outs: Sequence[Value], args: Sequence[Value], active: Sequence[bool]
    ) -> Cotangents:
        return (cts[0],)

    def batch(
        self, args: Sequence[Value], dims: Sequence[Dim]
    ) -> tuple[Sequence[Value], Sequence[Dim]]:
        return self(*args), [dims[0], dims[0]]

    def numpy(self, x: NumPyArray) -> list[NumPyArray]:
        return [x, np.zeros_like(x)]

    def lower(self, ctx: LoweringContext, x: IRValue) -> Sequence[IRValue]:
        (aval,) = ctx.avals_in
        zeros = ctx.constant(0, aval)
        if tuple(ctx.platforms) != ("cpu",) or not aval.size:
            return [x, zeros]
        return ctx.pin_order(x, zeros, aval)


def is_small_part(part: Value | ShapedArray, whole: Value) -> bool:
    """Whether a pass over `whole` costs much more than one over `part`."""
    return whole.size > 1024 and whole.size >= 16 * part.size  # type: ignore[no-any-return]


def check_start_indices(
    primitive: Primitive, x: ShapedArray, indices: Sequence[ShapedArray]
) -> None:
    """Raise IndexingError unless there is one integer scalar for each dimension of `x`."""
    scalars = all(not i.shape and is_integer(i.dtype) for i in indices)
    if len(indices) != x.ndim or not scalars:
        raise IndexingError(
            f"{primitive.name}: there must be one integer scalar index a dimension; "
            f"got {', '.join(map(repr, indices)) or 'none'} for {x!r}"
        )


def check_slice_sizes(primitive: Primitive, sizes: Shape, x: ShapedArray) -> None:
    """Raise ShapeError unless a part of shape `sizes` fits into `x`."""
    if len(sizes) != x.ndim or not all(0 <= m <= n for m, n in zip(sizes, x.shape, strict=True)):
        raise ShapeError(
            f"{primitive.name}: the part must fit into the operand; got shape {sizes} for {x!r}"
        )


def zero_index(indices: Sequence[Value]) -> Literal:
    """Zero of the dtype of the indices."""
    return literal(0, indices[0].dtype if indices else np.dtype("int32"))


def promote_index_dtypes(
    ctx: LoweringContext, values: Sequence[IRValue], avals: Sequence[ShapedArray]
) -> list[IRValue]:
    """The index values in one dtype that can hold every length: XLA clamps in that dtype."""
    if len({aval.dtype for aval in avals}) <= 1 and all(a.dtype.itemsize >= 4 for a in avals):
        return list(values)
    int64 = ShapedArray((), np.dtype("int64"))
    return [ctx.convert(value, aval, int64) for value, aval in zip(values, avals, strict=True)]


def stack_index_vectors(indices: Sequence[Value], dims: Sequence[int | None]) -> Value:
    """Scalar indices, some of them batched, as one index vector for each batch element."""
    size = next(i.shape[0] for i, d in zip(indices, dims, strict=True) if d is not None)
    dtype = indices[0].dtype
    if any(i.dtype != dtype for i in indices):
        dtype = canonical_dtype(np.int64)
    columns = [
        ops.reshape(ops.batch_dim_at(ops.convert_element_type(i, dtype), d, 0, size), (size, 1))
        for i, d in zip(indices, dims, strict=True)
    ]
    return ops.concatenate(columns, 1)


def batched_gather(
    x: Value,
    dim: int | None,
    sizes: Shape,
    indices: Sequence[Value],
    index_dims: Sequence[int | None],
) -> Value:
    """The parts of `x` of shape `sizes` at batched indices, with the batch dimension first."""
    rank, is_batched = len(sizes), dim is not None
    if dim is not None:
        x = ops.moveaxis(x, dim, 0)
        sizes = (min(1, x.shape[0]), *sizes)
    numbers = ops.GatherDimensionNumbers(
        offset_dims=tuple(range(1, rank + 1)),
        collapsed_slice_dims=(),
        start_index_map=tuple(range(is_batched, rank + is_batched)),
        operand_batching_dims=(0,) * is_batched,
        start_indices_batching_dims=(0,) * is_batched,
    )
    return ops.gather(x, stack_index_vectors(indices, index_dims), numbers, sizes, mode="clip")


def batched_scatter(
    x: Value, update: Value, indices: Sequence[Value], index_dims: Sequence[int | None]
) -> Value:
    """The batch `x` with each element of the batch `update` at its own indices."""
    rank = x.ndim - 1
    numbers = ops.ScatterDimensionNumbers(
        update_window_dims=tuple(range(1, rank + 1)),
        inserted_window_dims=(),
        scatter_dims_to_operand_dims=tuple(range(1, rank + 1)),
        operand_batching_dims=(0,),
        scatter_indices_batching_dims=(0,),
    )
    vectors = stack_index_vectors(indices, index_dims)
    return ops.scatter(x, vectors, update, numbers, unique_indices=True, mode="clip")


def dynamic_slice(
    operand: ArrayLike,
    start_indices: ArrayLike | Sequence[ArrayLike],
    slice_sizes: Sequence[int],
    *,
    allow_negative_indices: bool | Sequence[bool] = True,
) -> Value:
    """The part of `operand` of shape `slice_sizes` that begins at `start_indices`.

    These are scalars, traced or not, or one vector. A negative one counts from the end if
    `allow_negative_indices`. They are clamped so that the part fits.
    """
    sizes = canonical_shape(slice_sizes, "dynamic_slice: slice_sizes")
    starts = normalize_start_indices(operand, start_indices, allow_negative_indices)
    return DynamicSlice(sizes)(operand, *starts)


def dynamic_update_slice(
    operand: ArrayLike,
    update: ArrayLike,
    start_indices: ArrayLike | Sequence[ArrayLike],
    *,
    allow_negative_indices: bool | Sequence[bool] = True,
) -> Value:
    """`operand` with the part that begins at `start_indices` replaced by `update`.

    The indices are those of `dynamic_slice`.
    """
    starts = normalize_start_indices(operand, start_indices, allow_negative_indices)
    return DynamicUpdateSlice()(*promote_scalars(operand, update), *starts)


def dynamic_slice_in_dim(
    operand: ArrayLike,
    start_index: ArrayLike,
    slice_size: int,
    axis: int = 0,
    *,
    allow_negative_indices: bool = True,
) -> Value:
    """The part of `operand`, `slice_size` long, that begins at `start_index` along `axis`."""
    sizes = list(aval_of(operand).shape)
    axis = canonical_axis(axis, len(sizes), "dynamic_slice_in_dim: axis")
    starts: list[ArrayLike] = [0] * len(sizes)
    starts[axis], sizes[axis] = _scalar_index(start_index), slice_size
    return dynamic_slice(operand, starts, sizes, allow_negative_indices=allow_negative_indices)


def dynamic_index_in_dim(
    operand: ArrayLike,
    index: ArrayLike,
    axis: int = 0,
    keepdims: bool = True,
    *,
    allow_negative_indices: bool = True,
) -> Value:
    """The part of `operand` at the traced `index` along `axis`, which stays if `keepdims`."""
    part = dynamic_slice_in_dim(
        operand, index, 1, axis, allow_negative_indices=allow_negative_indices
    )
    shape = aval_of(part).shape
    axis = canonical_axis(axis, len(shape))
    return part if keepdims else ops.reshape(part, tuple_delete(shape, (axis,)))


def dynamic_update_slice_in_dim(
    operand: ArrayLike,
    update: ArrayLike,
    start_index: ArrayLike,
    axis: int,
    *,
    allow_negative_indices: bool = True,
) -> Value:
    """`operand` with the part that begins at `start_index` along `axis` replaced by `update`."""
    ndim = aval_of(operand).ndim
    axis = canonical_axis(axis, ndim, "dynamic_update_slice_in_dim: axis")
    starts: list[ArrayLike] = [0] * ndim
    starts[axis] = _scalar_index(start_index)
    return dynamic_update_slice(
        operand, update, starts, allow_negative_indices=allow_negative_indices
    )


def dynamic_update_index_in_dim(
    operand: ArrayLike,
    update: ArrayLike,
    index: ArrayLike,
    axis: int,
    *,
    allow_negative_indices: bool = True,
) -> Value:
    """`operand` with the part at `index` along `axis` replaced by `update`, which may lack the axis."""
    ndim = aval_of(operand).ndim
    axis = canonical_axis(axis, ndim, "dynamic_update_index_in_dim: axis")
    _, update = promote_scalars(operand, update)
    if aval_of(update).ndim != ndim:
        update = ops.expand_dims(update, axis)
    return dynamic_update_slice_in_dim(
        operand, update, index, axis, allow_negative_indices=allow_negative_indices
    )


def _scalar_index(index: ArrayLike) -> ArrayLike:
    return index if isinstance(index, int) else ops.reshape(index, ())


def normalize_start_indices(
    x: ArrayLike,
    indices: Sequence[ArrayLike] | ArrayLike,
    allow_negative: bool | Sequence[bool] = True,
) -> list[ArrayLike]:
    """The start `indices` of a part of `x` as scalars, with negative ones normalized.

    `indices` are scalars or one vector. Raises IndexingError unless there is one for each dimension.
    """
    if not isinstance(indices, Sequence) and aval_of(indices).ndim != 1:
        raise IndexingError(
            f"the start indices must be a sequence or a vector; got {aval_of(indices)!r} for shape "
            f"{list(aval_of(x).shape)}",
            fix="Write (i,) for an array of one dimension.",
        )
    if isinstance(indices, np.ndarray):
        indices = list(indices.tolist())
    elif not isinstance(indices, Sequence):
        parts = ops.split(indices, (1,) * aval_of(indices).shape[0])
        indices = [ops.reshape(part, ()) for part in parts]
    shape = aval_of(x).shape
    if len(indices) != len(shape):
        raise IndexingError(
            f"there must be one index a dimension; got {len(indices)} for shape {list(shape)}"
        )
    if isinstance(allow_negative, bool):
        allow_negative = (allow_negative,) * len(shape)
    return [
        normalize_start_index(i, n) if on else i
        for i, n, on in zip(indices, shape, allow_negative, strict=True)
    ]


def normalize_start_index(i: ArrayLike, n: int) -> Any:
    """The index `i` along a dimension of length `n`; a negative one counts from the end."""
    if isinstance(i, int | np.integer):
        return int(i) + n if i < 0 else i
    if kind(aval_of(i).dtype) != "i":
        return i
    i = widen_index(i, n)
    return ops.select(ops.lt(i, 0), ops.add(i, n), i)


def widen_index(i: ArrayLike, n: int) -> Any:
    """The integers `i` in a dtype that can hold `n`; a Python int or NumPy array stays one."""
    if type(i) is int:
        return i
    dtype = aval_of(i).dtype
    if dtype.itemsize >= 4 or np.iinfo(dtype).max >= n:
        return i
    return (
        i.astype(np.int32) if isinstance(i, np.ndarray) else ops.convert_element_type(i, np.int32)
    )
