"""Gathers of windows at index vectors, the base class of gathers and scatters, and embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo

from functx import ops
from functx.core.errors import ArgumentError, DTypeError, ShapeError
from functx.core.index_sets import DependentOperand, IndexSets, Sets
from functx.core.primitive import Primitive, operand_aval
from functx.core.primitive_families import HasNewStrides, ReadsPart
from functx.core.samples import EXACT, f32, i32, sample
from functx.core.strides import MemoryOrder, Strides, strides_in_order
from functx.core.tracer import aval_of
from functx.core.types import DType, ShapedArray, is_inexact, is_integer, kind
from functx.core.typing import ArrayLike, Cotangents, Dim, IRValue, Mask, NumPyArray, Tangent, Value
from functx.ops.arithmetic import BOOL
from functx.ops.families import TransposedByVJP
from functx.ops.operands import Dims, literal, shift_dims, tuple_delete

if TYPE_CHECKING:
    from functx.lowering.stablehlo_emitter import LoweringContext


class GatherDimensionNumbers(NamedTuple):
    """The dimension numbers of a gather, by the names of JAX and StableHLO."""

    offset_dims: Dims
    collapsed_slice_dims: Dims
    start_index_map: Dims
    operand_batching_dims: Dims = ()
    start_indices_batching_dims: Dims = ()


class ScatterDimensionNumbers(NamedTuple):
    """The dimension numbers of a scatter, those of the gather that reads the windows it writes."""

    update_window_dims: Dims
    inserted_window_dims: Dims
    scatter_dims_to_operand_dims: Dims
    operand_batching_dims: Dims = ()
    scatter_indices_batching_dims: Dims = ()


class GatherScatterMode(Enum):
    """The treatment of windows that do not lie inside the operand; see `gather` and `scatter`."""

    CLIP = 0
    FILL_OR_DROP = 1
    PROMISE_IN_BOUNDS = 2


class GatherScatter(Primitive, abstract=True):
    """Base class of gathers and scatters: windows of an operand that begin at index vectors.

    The last dimension of the indices holds the index vectors, one for each window. Component k is the
    start along dimension `start_index_map[k]` of the operand; windows begin at 0 along the others. The
    result of a gather, and the updates of a scatter, hold the windows: `offset_dims` are the
    dimensions inside a window, the other dimensions are those of the indices. A window has length 1
    along `collapsed_slice_dims` and `operand_batching_dims` and omits these dimensions. Each of
    `operand_batching_dims` is paired with a dimension of the indices in `start_indices_batching_dims`.

    The mode "clip" moves windows inside the operand. Windows outside are read as `fill_value` with
    "fill" and not written with "drop"; with "promise_in_bounds" there must be none.
    """

    offset_dims: Dims = ()
    collapsed_slice_dims: Dims = ()
    start_index_map: Dims = ()
    operand_batching_dims: Dims = ()
    start_indices_batching_dims: Dims = ()
    indices_are_sorted: bool = False
    unique_indices: bool = False
    mode: str = "clip"

    @property
    def dimension_numbers(self) -> GatherDimensionNumbers:
        return GatherDimensionNumbers(
            self.offset_dims,
            self.collapsed_slice_dims,
            self.start_index_map,
            self.operand_batching_dims,
            self.start_indices_batching_dims,
        )

    def dropped_window_dims(self) -> Dims:
        """The dimensions of the operand that windows omit."""
        return self.collapsed_slice_dims + self.operand_batching_dims

    def with_window_dim(self, dim: int, ndim: int) -> tuple[GatherDimensionNumbers, int]:
        """The dimension numbers with a further operand dimension `dim`, whole in every window.

        The operand has `ndim` dimensions with it. Its position among the windows' dimensions is
        the second result.
        """
        offset, collapsed, index_map, batching, indices_batching = self.dimension_numbers
        collapsed, index_map, batching = [
            shift_dims(d, dim) for d in (collapsed, index_map, batching)
        ]
        k = tuple_delete(range(ndim), collapsed + batching).index(dim)
        target = offset[k] if k < len(offset) else offset[-1] + 1 if offset else 0
        offset = shift_dims(offset, target)
        offset = (*offset[:k], target, *offset[k:])
        return GatherDimensionNumbers(
            offset, collapsed, index_map, batching, indices_batching
        ), target

    def with_batch_dim(self, dim: int | None) -> GatherDimensionNumbers:
        """The dimension numbers with a further first dimension of the indices and of the windows.

        `dim` is the dimension of the operand that is paired with it, None if there is none.
        """
        offset, collapsed, index_map, batching, indices_batching = self.dimension_numbers
        offset, indices_batching = shift_dims(offset, 0), shift_dims(indices_batching, 0)
        if dim is not None:
            collapsed, index_map, batching = [
                shift_dims(d, dim) for d in (collapsed, index_map, batching)
            ]
            position = sum([d < dim for d in batching])
            batching = (*batching[:position], dim, *batching[position:])
            indices_batching = (*indices_batching[:position], 0, *indices_batching[position:])
        return GatherDimensionNumbers(offset, collapsed, index_map, batching, indices_batching)

    def window_positions(self, shape: Dims, sizes: Dims, indices: NumPyArray) -> NumPyArray:
        """The positions in an operand of `shape` of the elements of all windows, in row-major order.

        The result has the shape of a gather of windows of `sizes`, with -1 for what is not read.
        """
        batch_shape = indices.shape[:-1]
        strides = np.cumprod([1, *shape[:0:-1]])[::-1]
        first = np.zeros(batch_shape, np.int64)
        inside = np.ones(batch_shape, bool)
        for k, d in enumerate(self.start_index_map):
            start = indices[..., k].astype(np.int64)
            moved = np.clip(start, 0, shape[d] - sizes[d])
            inside = inside & (start == moved)
            first = first + moved * strides[d]
        for d, k in zip(self.operand_batching_dims, self.start_indices_batching_dims, strict=True):
            number = np.arange(batch_shape[k]) * strides[d]
            first = first + np.expand_dims(number, tuple(range(1, len(batch_shape) - k)))
        kept = self.window_dims(len(shape))
        within = np.zeros((), np.int64)
        for d in kept:
            within = within[..., None] + np.arange(sizes[d]) * strides[d]
        positions = np.expand_dims(first, tuple(range(-len(kept), 0))) + within
        if self.mode in ("fill", "drop"):
            positions = np.where(np.expand_dims(inside, tuple(range(-len(kept), 0))), positions, -1)
        return np.moveaxis(positions, range(len(batch_shape), positions.ndim), self.offset_dims)

    def window_dims(self, ndim: int) -> Dims:
        """The dimensions of the operand that windows keep, in order."""
        return tuple_delete(range(ndim), self.dropped_window_dims())

    def check(self, x: ShapedArray, indices: ShapedArray, sizes: Dims, rank: int) -> None:
        """Raise unless the dimension numbers fit the operands, windows of `sizes` and a result of `rank`."""

        def require(holds: bool, what: str) -> None:
            if not holds:
                raise ShapeError(f"{self.name}: {what}; got {x!r} at {indices!r} with {self!r}")

        offset, collapsed, index_map, batching, indices_batching = self.dimension_numbers
        if not is_integer(indices.dtype):
            raise DTypeError(f"{self.name}: indices must be integers; got {indices!r}")
        require(indices.ndim > 0, "indices must have a last dimension that holds index vectors")
        require(
            indices.shape[-1] == len(index_map),
            "index vectors must have a component for each dimension in start_index_map",
        )
        within = all(0 <= d < x.ndim for d in (*collapsed, *index_map, *batching))
        require(within, "dimension numbers must be dimensions of the operand")
        require(
            _increasing(collapsed) and _increasing(batching) and _increasing(offset),
            "offset, collapsed and batching dimensions must be in increasing order",
        )
        require(
            len({*collapsed, *batching}) == len(collapsed) + len(batching)
            and len({*index_map, *batching}) == len(index_map) + len(batching),
            "a dimension must be indexed once, and a batching dimension nothing else",
        )
        require(
            len(batching) == len(indices_batching)
            and all(0 <= d < indices.ndim - 1 for d in indices_batching)
            and [x.shape[d] for d in batching] == [indices.shape[d] for d in indices_batching],
            "batching dimensions must come in pairs of one size",
        )
        require(
            len(sizes) == x.ndim and all(0 <= n <= m for n, m in zip(sizes, x.shape, strict=True)),
            f"windows of {sizes} must fit inside the operand",
        )
        require(all(sizes[d] == 1 for d in collapsed), "collapsed dimensions must have length 1")
        require(
            all(sizes[d] <= 1 for d in batching),
            "batching dimensions must have length 1 in windows",
        )
        require(
            len(offset) == x.ndim - len(self.dropped_window_dims())
            and all(0 <= d < rank for d in offset),
            "offset_dims must give a place to every dimension that windows keep",
        )

    def start_limits(self, x: Value | ShapedArray, sizes: Dims, dtype: DType) -> NumPyArray:
        """The largest start of a window inside the operand, for each indexed dimension."""
        largest = np.iinfo(dtype).max
        return np.array([min(x.shape[d] - sizes[d], largest) for d in self.start_index_map], dtype)

    def clamp_indices(self, ctx: LoweringContext, indices: IRValue, sizes: Dims) -> IRValue:
        """The indices with every window moved inside the operand."""
        x, aval = ctx.avals_in[:2]
        limits = self.start_limits(x, sizes, aval.dtype)
        element = ctx.type(aval).element_type
        limit = stablehlo.constant(
            ir.DenseElementsAttr.get(limits.data, type=element, shape=limits.shape)
        )
        limit = stablehlo.broadcast_in_dim(ctx.type(aval), limit, ctx.i64_array([aval.ndim - 1]))
        return stablehlo.clamp(ctx.constant(0, aval), indices, limit)


def canonical_index_mode(mode: object, outside: str) -> str:
    """The name of `mode`, a name or JAX's enumeration; "fill", "drop" and None give `outside`."""
    if mode is None:
        return outside
    name = str(getattr(mode, "name", mode)).lower()
    if name in ("fill", "drop", "fill_or_drop"):
        return outside
    if name not in ("clip", "promise_in_bounds"):
        raise ArgumentError(
            f'mode must be "clip", "fill", "drop" or "promise_in_bounds"; got {mode!r}'
        )
    return name


def default_fill_value(dtype: DType) -> complex:
    """The value read outside an array: nan, True, the least signed or largest unsigned integer."""
    if is_inexact(dtype):
        return np.nan
    if kind(dtype) == "b":
        return True
    limits = np.iinfo(dtype)
    return limits.max if kind(dtype) == "u" else limits.min


def _increasing(dims: Dims) -> bool:
    return all(a < b for a, b in pairwise(dims))


class Gather(TransposedByVJP, GatherScatter, ReadsPart, HasNewStrides):
    """Windows of `slice_sizes` of the operand, one for each index vector.

    In memory they lie in row-major order ("C"), or as NumPy has them after x[indices] ("K"): one after
    another, each in the memory order of the operand.
    """

    slice_sizes: Dims = ()
    fill_value: complex | None = None
    order: str = "C"
    size_fields = ("slice_sizes",)
    rounding = EXACT
    samples = (
        sample(
            f32[5, 3],
            i32[4, 1],
            values={1: [[3], [0], [3], [-2]]},
            offset_dims=(1,),
            collapsed_slice_dims=(0,),
            start_index_map=(0,),
            slice_sizes=(1, 3),
        ),
        sample(
            f32[4, 5, 3],
            i32[2, 2, 2],
            values={1: [[[1, 3], [0, 0]], [[7, 1], [2, -1]]]},
            offset_dims=(1, 2),
            collapsed_slice_dims=(0,),
            start_index_map=(2, 0),
            slice_sizes=(1, 5, 2),
            mode="fill",
            fill_value=7.0,
        ),
        sample(
            f32[2, 5, 3],
            i32[3, 2, 1],
            values={1: [[[1], [3]], [[0], [0]], [[4], [2]]]},
            collapsed_slice_dims=(1,),
            start_index_map=(1,),
            operand_batching_dims=(0, 2),
            start_indices_batching_dims=(1, 0),
            slice_sizes=(1, 1, 1),
            mode="promise_in_bounds",
        ),
    )

    @property
    def memory_order(self) -> MemoryOrder:  # type: ignore[override]
        return MemoryOrder.REARRANGED if self.order == "K" else MemoryOrder.ROW_MAJOR

    def new_strides(
        self, avals: Sequence[ShapedArray], strides: Sequence[Strides], shape: tuple[int, ...]
    ) -> Strides:
        dropped, rank = self.dropped_window_dims(), len(shape)
        within = iter([n for d, n in enumerate(strides[0]) if d not in dropped])
        # Larger than any stride within a window, and larger the earlier the dimension is.
        between = 1 + max([abs(n) * m for n, m in zip(strides[0], avals[0].shape, strict=True)])
        along = [next(within) if d in self.offset_dims else between + rank - d for d in range(rank)]
        return strides_in_order(shape, [along])

    def index_sets(self, sets: IndexSets, *operands: DependentOperand) -> Sets:
        (aval, numbers, _), (index_aval, _, value) = operands
        indices = value()
        if indices is None:
            # Any window of the unions along the indexed dimensions.
            numbers = sets.spread(numbers, self.start_index_map)
            indices = np.zeros(index_aval.shape, np.int32)
        if numbers is None:
            return None
        positions = self.window_positions(aval.shape, self.slice_sizes, indices)
        return np.append(numbers.ravel(), np.int32(0))[positions]

    def abstract_eval(self, x: ShapedArray, indices: ShapedArray) -> ShapedArray:
        window = tuple_delete(self.slice_sizes, self.dropped_window_dims())
        rank = len(window) + indices.ndim - 1
        self.check(x, indices, self.slice_sizes, rank)
        sizes = {True: iter(window), False: iter(indices.shape)}
        return x.update(shape=tuple([next(sizes[d in self.offset_dims]) for d in range(rank)]))

    def jvp(self, primals: Sequence[Value], tangents: Sequence[Tangent]) -> tuple[Value, Tangent]:
        (x, indices), (dx, _) = primals, tangents
        return self(x, indices), None if dx is None else self.replace(fill_value=0)(dx, indices)

    def vjp(
        self, ct: Value, out: Value, args: Sequence[Value], active: Sequence[bool]
    ) -> Cotangents:
        return self.add_to_cotangent(ops.zeros_like(args[0]), ct, args), None

    def tangent_mask(self, masks: Sequence[Mask], args: Sequence[Value]) -> Mask:
        (mask, _) = masks
        if mask is None or not mask.shape:
            return mask
        return self.replace(fill_value=False)(mask, args[1])

    def cotangent_masks(self, mask: Mask, args: Sequence[Value]) -> Sequence[Mask]:
        x, indices = args
        out = self.abstract_eval(operand_aval(x), aval_of(indices))
        if ops.is_small_part(out, x):
            return [None, None]
        read = ops.convert_element_type(ops.instantiate_mask(mask, out.shape), "int32")
        total = self.add_to_cotangent(ops.full(x.shape, literal(0, read.dtype)), read, args)
        return [ops.ne(total, 0), None]

    def add_to_cotangent(self, total: Value, ct: Value, args: Sequence[Value]) -> Value:
        mode = "drop" if self.mode == "fill" else self.mode
        add = ops.ScatterAdd(
            *self.dimension_numbers, self.indices_are_sorted, self.unique_indices, mode
        )
        return add(total, args[1], ct)

    def batch(self, args: Sequence[Value], dims: Sequence[Any]) -> tuple[Value, Dim]:
        (x, indices), (dx, di) = args, dims
        sizes = self.slice_sizes
        if di is None:
            numbers, position = self.with_window_dim(dx, x.ndim)
            sizes = (*sizes[:dx], x.shape[dx], *sizes[dx:])
            return self.replace(**numbers._asdict(), slice_sizes=sizes)(x, indices), position
        numbers = self.with_batch_dim(dx)
        if dx is not None:
            sizes = (*sizes[:dx], min(1, x.shape[dx]), *sizes[dx:])
        gather = self.replace(
            **numbers._asdict(),
            slice_sizes=sizes,
            indices_are_sorted=False,
            unique_indices=self.unique_indices and dx is not None,
        )
        return gather(x, ops.moveaxis(indices, di, 0)), 0

    def lower(self, ctx: LoweringContext, x: IRValue, indices: IRValue) -> IRValue:
        numbers = stablehlo.GatherDimensionNumbers.get(
            offset_dims=self.offset_dims,
            collapsed_slice_dims=self.collapsed_slice_dims,
            operand_batching_dims=self.operand_batching_dims,
            start_indices_batching_dims=self.start_indices_batching_dims,
            start_index_map=self.start_index_map,
            index_vector_dim=ctx.avals_in[1].ndim - 1,
        )
        out = stablehlo.gather(
            x,
            indices,
            numbers,
            ctx.i64_array(self.slice_sizes),
            indices_are_sorted=self.indices_are_sorted,
        )
        if self.mode != "fill":
            return out
        (aval,) = ctx.avals_out
        lead = tuple_delete(range(aval.ndim), self.offset_dims)
        inside = stablehlo.broadcast_in_dim(
            ctx.type(aval.update(dtype=BOOL)),
            self.in_bounds_mask(ctx, indices),
            ctx.i64_array(lead),
        )
        fill = default_fill_value(aval.dtype) if self.fill_value is None else self.fill_value
        return stablehlo.select(inside, out, ctx.constant(fill, aval))

    def in_bounds_mask(self, ctx: LoweringContext, indices: IRValue) -> IRValue:
        """Whether each window lies inside the operand."""
        aval = ctx.avals_in[1]
        clamped = self.clamp_indices(ctx, indices, self.slice_sizes)
        fits = ctx.compare(clamped, indices, "EQ", aval)
        scalar = ShapedArray((), BOOL)
        op = stablehlo.ReduceOp(
            [ctx.type(ShapedArray(aval.shape[:-1], BOOL))],
            [fits],
            [ctx.constant(True, scalar)],
            ctx.i64_array([aval.ndim - 1]),
        )
        block = op.regions[0].blocks.append(ctx.type(scalar), ctx.type(scalar))
        with ir.InsertionPoint(block):
            stablehlo.return_([stablehlo.and_(*block.arguments)])
        return op.results[0]


def take_distinct(x: ArrayLike, indices: Value) -> Value:
    """The elements of the vector `x` at `indices`, which must be distinct and in range."""
    one_each = Gather(
        collapsed_slice_dims=(0,),
        start_index_map=(0,),
        slice_sizes=(1,),
        unique_indices=True,
        mode="promise_in_bounds",
    )
    return one_each(x, ops.reshape(indices, (*indices.shape, 1)))


def gather(
    operand: ArrayLike,
    start_indices: ArrayLike,
    dimension_numbers: object,
    slice_sizes: Sequence[int],
    *,
    unique_indices: bool = False,
    indices_are_sorted: bool = False,
    mode: object = None,
    fill_value: complex | None = None,
) -> Value:
    """Windows of `slice_sizes` of `operand`, one for each vector in `start_indices`.

    `dimension_numbers` are `GatherDimensionNumbers`, or JAX's of that name. Windows that do not lie
    inside the operand are moved inside with the mode "clip" (the default) and read as `fill_value`
    (by default nan, or the least integer) with "fill"; "promise_in_bounds" states that there are none.
    """
    numbers = GatherDimensionNumbers(
        *[tuple(getattr(dimension_numbers, field)) for field in GatherDimensionNumbers._fields]
    )
    mode = "clip" if mode is None else canonical_index_mode(mode, "fill")
    return Gather(
        *numbers, indices_are_sorted, unique_indices, mode, tuple(slice_sizes), fill_value
    )(operand, start_indices)


class Embedding(Primitive):
    """The row of `weight` at each of `indices`; nan for an index out of range.

    The row `padding`, if there is one, is a constant without derivative.
    """

    padding: int | None = None
    rounding = EXACT
    samples = (
        sample(i32[2, 2], f32[4, 3], values={0: [[1, 3], [3, 0]]}),
        sample(
            i32[3],
            f32[3, 2],
            padding=2,
            values={0: [1, 2, 1]},
            gradients={1: [[0.0, 0.0], [2.0, 2.0], [0.0, 0.0]]},
        ),
    )

    def abstract_eval(self, indices: ShapedArray, weight: ShapedArray) -> ShapedArray:
        check_integer_indices(self.name, indices)
        if weight.ndim != 2:
            raise ShapeError(
                f"{self.name}: the weight must be a matrix, a row for each index; got {weight!r}"
            )
        return weight.update(shape=(*indices.shape, weight.shape[1]))

    def numpy(self, indices: NumPyArray, weight: NumPyArray) -> ArrayLike:
        return weight[indices]

    def decompose(self, indices: Value, weight: Value) -> Value:
        rows = self.gather_rows(indices, weight)
        if self.padding is None:
            return rows
        return ops.select(self.is_padding(indices, rows.shape), ops.stop_gradient(rows), rows)

    def jvp(self, primals: Sequence[Value], tangents: Sequence[Tangent]) -> tuple[Value, Tangent]:
        (indices, weight), (_, t) = primals, tangents
        if t is not None:
            t = self.zero_padding_rows(indices, self.gather_rows(indices, t))
        return self(indices, weight), t

    def vjp(
        self, ct: Value, out: Value, args: Sequence[Value], active: Sequence[bool]
    ) -> Cotangents:
        indices, weight = args
        return None, EmbeddingBackward(weight.shape[0], self.padding)(ct, indices)

    def gather_rows(self, indices: Value, weight: Value) -> Value:
        if not weight.shape[0]:
            return ops.full((*indices.shape, weight.shape[1]), literal(float("nan"), weight.dtype))
        gather = row_gather(indices, weight)
        return gather(weight, ops.reshape(indices, (*indices.shape, 1)))

    def is_padding(self, indices: Value, shape: tuple[int, ...]) -> Value:
        assert self.padding is not None
        is_padding_row = ops.eq(indices, literal(self.padding, indices.dtype))
        return ops.broadcast_in_dim(is_padding_row, shape, tuple(range(indices.ndim)))

    def zero_padding_rows(self, indices: Value, rows: Value) -> Value:
        """`rows` with 0 in those of the padding index."""
        if self.padding is None:
            return rows
        return ops.select(self.is_padding(indices, rows.shape), 0.0, rows)


class EmbeddingBackward(TransposedByVJP):
    """For each of `rows` indices, the sum of the rows of a cotangent whose entry of `indices` is it."""

    rows: int
    padding: int | None = None
    size_fields = ("rows",)
    samples = (sample(f32[2, 2, 3], i32[2, 2], rows=4, padding=0, values={1: [[1, 3], [3, 0]]}),)

    def abstract_eval(self, ct: ShapedArray, indices: ShapedArray) -> ShapedArray:
        check_integer_indices(self.name, indices)
        if ct.shape[:-1] != indices.shape or not ct.ndim:
            raise ShapeError(
                f"{self.name}: the cotangent must have a row for each index; got {ct!r} for "
                f"{indices!r}"
            )
        return ct.update(shape=(self.rows, ct.shape[-1]))

    def decompose(self, ct: Value, indices: Value) -> Value:
        ct = Embedding(self.padding).zero_padding_rows(indices, ct)
        zeros = ops.full((self.rows, ct.shape[-1]), literal(0, ct.dtype))
        if not self.rows:
            return zeros
        index_vectors = ops.reshape(indices, (*indices.shape, 1))
        return row_gather(indices, zeros).add_to_cotangent(zeros, ct, (zeros, index_vectors))

    def vjp(
        self, ct: Value, out: Value | None, args: Sequence[Value], active: Sequence[bool]
    ) -> Cotangents:
        embedding = Embedding(self.padding)
        indices = args[1]
        return embedding.zero_padding_rows(indices, embedding.gather_rows(indices, ct)), None


def row_gather(indices: Value, weight: Value) -> Gather:
    """The gather of a row of `weight` for each of `indices`."""
    return Gather(
        offset_dims=(indices.ndim,),
        collapsed_slice_dims=(0,),
        start_index_map=(0,),
        slice_sizes=(1, weight.shape[1]),
        mode="fill",
    )


def check_integer_indices(name: str, indices: ShapedArray) -> None:
    if not is_integer(indices.dtype):
        raise DTypeError(
            f"{name}: indices must be integers; got {indices!r}", fix="Convert with astype(int)."
        )
