"""Scatters: windows of an array replaced by updates or combined with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo

from functx import ops
from functx.core.errors import ShapeError
from functx.core.index_sets import DependentOperand, IndexSets, Sets
from functx.core.primitive_families import UpdatesInPlace
from functx.core.program import Literal
from functx.core.samples import EXACT, Rounding, Sample, f32, i32, sample
from functx.core.tracing import trace_closed
from functx.core.types import DType, ShapedArray, accumulation_dtype, is_inexact, kind
from functx.core.typing import (
    ArrayLike,
    Cotangents,
    Dim,
    IRValue,
    Mask,
    NumPyArray,
    Tangent,
    Value,
    Values,
)
from functx.ops.families import TransposedByVJP, check_same_dtype, combine_masks
from functx.ops.indexing import (
    GatherScatter,
    ScatterDimensionNumbers,
)
from functx.ops.operands import Dims, concrete_value, literal, promote_scalars, tuple_delete

if TYPE_CHECKING:
    from functx.lowering.stablehlo_emitter import LoweringContext


class Scatter(GatherScatter, UpdatesInPlace, abstract=True):
    """The operand with the window at each index vector combined with an update."""

    mode: str = "drop"
    accepts: ClassVar[str] = "biufc"

    def index_sets(self, sets: IndexSets, *operands: DependentOperand) -> Sets:
        x, indices, updates = operands
        return self.unite(sets, x.aval, x.sets, indices.value(), updates)

    def unite(
        self,
        sets: IndexSets,
        x: ShapedArray,
        numbers: Sets,
        indices: NumPyArray | None,
        updates: DependentOperand,
    ) -> Sets:
        """The sets of the operand, united with those of the updates; without `indices` with all."""
        if updates.sets is None:
            return numbers
        if indices is None:
            return sets.union(numbers, sets.union_of_all([updates]))
        positions = self.window_positions(x.shape, self.slice_sizes(x, updates.aval), indices)
        numbers = np.zeros(x.shape, np.int32) if numbers is None else numbers
        return sets.union_at(numbers, positions, updates.sets)

    def abstract_eval(
        self, x: ShapedArray, indices: ShapedArray, updates: ShapedArray
    ) -> ShapedArray:
        check_same_dtype(self, (x, updates))
        lead = tuple_delete(updates.shape, self.offset_dims)
        if lead != indices.shape[:-1]:
            raise ShapeError(
                f"{self.name}: updates must have the dimensions of the indices, beside those "
                f"inside windows; got {updates!r} at {indices!r} with {self!r}"
            )
        if len(self.offset_dims) + len(self.dropped_window_dims()) != x.ndim:
            raise ShapeError(
                f"{self.name}: offset_dims must give a place to every dimension that windows "
                f"keep; got {x!r} with {self!r}"
            )
        self.check(x, indices, self.slice_sizes(x, updates), updates.ndim)
        return x.update(weak_type=x.weak_type and updates.weak_type)

    def slice_sizes(self, x: Value | ShapedArray, updates: Value | ShapedArray) -> Dims:
        """The lengths of a window along the dimensions of the operand."""
        # Not strict: `check` refuses dimension numbers that do not fit.
        window = dict(zip(self.window_dims(x.ndim), self.offset_dims, strict=False))
        return tuple([updates.shape[window[d]] if d in window else 1 for d in range(x.ndim)])

    def gather_written(
        self, x: Value, indices: Value, updates: Value, fill_value: complex = 0
    ) -> Value:
        """The elements of `x` that `updates` are written to, `fill_value` outside."""
        read = ops.Gather(
            *self.dimension_numbers,
            self.indices_are_sorted,
            self.unique_indices,
            "fill" if self.mode == "drop" else self.mode,
            self.slice_sizes(x, updates),
            fill_value if self.mode == "drop" else None,
        )
        return read(x, indices)

    def masked_update(
        self, mask: Value, changed: Sequence[bool], borrow_active: bool, args: Values
    ) -> Values:
        x, indices, updates = args
        return [self(x, indices, ops.select(mask, updates, self.neutral_updates(*args)))]

    def neutral_updates(self, x: Value, indices: Value, updates: Value) -> Value | Literal:
        """Updates that change no element of `x`."""
        return self.gather_written(x, indices, updates)

    def cotangent_masks(self, mask: Mask, args: Values) -> Sequence[Mask]:
        return [None, None, self.update_mask(mask, *args)]

    def update_mask(self, mask: Mask, x: Value, indices: Value, updates: Value) -> Mask:
        """The mask of updates that are written where `mask` holds; dropped updates are false."""
        if mask is not None and mask.shape:
            return self.gather_written(mask, indices, updates, False)
        return combine_masks(
            mask, self.in_bounds_mask(x, indices, updates) if self.mode == "drop" else None
        )

    def in_bounds_mask(self, x: Value, indices: Value, updates: Value) -> Mask:
        """The mask of updates whose windows lie inside the operand; None stands for all."""
        limits = self.start_limits(x, self.slice_sizes(x, updates), indices.dtype)
        known = concrete_value(indices)
        if known is not None and np.all((known >= 0) & (known <= limits)):
            return None
        in_bounds, lead = None, indices.shape[:-1]
        for k, limit in enumerate(limits.tolist()):
            start = ops.reshape(ops.slice_in_dim(indices, k, k + 1, axis=-1), lead)
            in_bounds = combine_masks(
                in_bounds, ops.bitwise_and(ops.ge(start, 0), ops.le(start, limit))
            )
        if in_bounds is None:
            return None
        return ops.broadcast_in_dim(
            in_bounds, updates.shape, tuple_delete(range(updates.ndim), self.offset_dims)
        )

    def with_class(self, scatter: type[Scatter]) -> Scatter:
        """The scatter of class `scatter` with the same parameters."""
        flags = self.indices_are_sorted, self.unique_indices, self.mode
        return scatter(*self.dimension_numbers, *flags)

    def has_unique_indices(self, x: Value | ShapedArray, indices: Value | ShapedArray) -> bool:
        """Whether no element is known to be written twice."""
        places = tuple_delete(indices.shape[:-1], self.start_indices_batching_dims)
        return self.unique_indices or prod(places) <= 1

    def batch(self, args: Values, dims: Sequence[Dim]) -> tuple[Value, Dim]:
        (x, indices, updates), (dx, di, du) = args, dims
        size = next(a.shape[d] for a, d in zip(args, dims, strict=True) if d is not None)
        if dx is None:
            x, dx = ops.broadcast_in_dim(x, (size, *x.shape), tuple(range(1, x.ndim + 1))), 0
        if di is None:
            numbers, update_dim = self.with_window_dim(dx, x.ndim)
        else:
            numbers, update_dim = self.with_batch_dim(dx), 0
            indices = ops.moveaxis(indices, di, 0)
        if du is None:
            shape = (*updates.shape[:update_dim], size, *updates.shape[update_dim:])
            updates = ops.broadcast_in_dim(
                updates, shape, tuple_delete(range(len(shape)), (update_dim,))
            )
        else:
            updates = ops.moveaxis(updates, du, update_dim)
        batched = self.replace(
            **numbers._asdict(), indices_are_sorted=self.indices_are_sorted and di is None
        )
        return batched(x, indices, updates), dx

    def accumulation_dtype(self, x: ShapedArray, indices: ShapedArray) -> DType:
        """The dtype in which updates are combined with the operand."""
        return x.dtype

    def combine(self, x: IRValue, update: IRValue) -> IRValue:
        """The StableHLO value of an element combined with an update."""
        raise NotImplementedError

    def lower(
        self, ctx: LoweringContext, x: IRValue, indices: IRValue, updates: IRValue
    ) -> IRValue:
        x_aval, i_aval, u_aval = ctx.avals_in
        if self.mode == "clip":
            indices = self.clamp_indices(ctx, indices, self.slice_sizes(x_aval, u_aval))
        if i_aval.dtype.itemsize < 4:
            # XLA compares with lengths in the dtype of the indices.
            indices = ctx.convert(indices, i_aval, i_aval.update(dtype=np.dtype("int32")))
        numbers = stablehlo.ScatterDimensionNumbers.get(
            update_window_dims=self.offset_dims,
            inserted_window_dims=self.collapsed_slice_dims,
            input_batching_dims=self.operand_batching_dims,
            scatter_indices_batching_dims=self.start_indices_batching_dims,
            scattered_dims_to_operand_dims=self.start_index_map,
            index_vector_dim=i_aval.ndim - 1,
        )
        dtype = self.accumulation_dtype(x_aval, i_aval)
        x_wide, u_wide = x_aval.update(dtype=dtype), u_aval.update(dtype=dtype)
        if dtype != x_aval.dtype:
            x, updates = ctx.convert(x, x_aval, x_wide), ctx.convert(updates, u_aval, u_wide)
        op = stablehlo.ScatterOp(
            [ctx.type(x_wide)],
            [x],
            indices,
            [updates],
            numbers,
            indices_are_sorted=self.indices_are_sorted,
            unique_indices=self.unique_indices,
        )
        element = ctx.type(ShapedArray((), dtype))
        block = op.regions[0].blocks.append(element, element)
        with ir.InsertionPoint(block):
            stablehlo.return_([self.combine(*block.arguments)])
        (out,) = op.results
        return out if dtype == x_aval.dtype else ctx.convert(out, x_wide, x_aval)


class ScatterAdd(TransposedByVJP, Scatter):
    """The operand with the updates added to it, each at its index."""

    rounding = Rounding(is_componentwise=True)
    samples = (
        sample(
            f32[5, 3],
            i32[4, 1],
            f32[4, 3],
            values={1: [[3], [0], [3], [9]]},
            offset_dims=(1,),
            collapsed_slice_dims=(0,),
            start_index_map=(0,),
        ),
    )

    def jvp(self, primals: Values, tangents: Sequence[Tangent]) -> tuple[Value, Tangent]:
        (x, indices, _), (dx, _, du) = primals, tangents
        if du is None:
            return self(*primals), dx
        return self(*primals), self(ops.zeros_like(x) if dx is None else dx, indices, du)

    def vjp(self, ct: Value, out: Value, args: Values, active: Sequence[bool]) -> Cotangents:
        _, indices, updates = args
        written = self.gather_written(ct, indices, updates) if active[2] else None
        return ct if active[0] else None, None, written

    def cotangent_masks(self, mask: Mask, args: Values) -> Sequence[Mask]:
        return [mask, None, self.update_mask(mask, *args)]

    def neutral_updates(self, x: Value, indices: Value, updates: Value) -> Value | Literal:
        # Adding -0.0 changes no number, not even the sign of zero.
        neutral = {"f": -0.0, "c": complex(-0.0, -0.0)}
        return literal(neutral.get(kind(x.dtype), 0), x.dtype)

    def accumulation_dtype(self, x: ShapedArray, indices: ShapedArray) -> DType:
        return x.dtype if self.has_unique_indices(x, indices) else accumulation_dtype(x.dtype)

    def combine(self, x: IRValue, update: IRValue) -> IRValue:
        return stablehlo.add(x, update)

    def lower(
        self, ctx: LoweringContext, x: IRValue, indices: IRValue, updates: IRValue
    ) -> IRValue:
        # GPUs have no atomic addition of 128 bits; JAX adds real and imaginary parts there.
        if ctx.avals_in[0].dtype != np.complex128 or tuple(ctx.platforms) == ("cpu",):
            return super().lower(ctx, x, indices, updates)
        from jax import lax

        numbers = lax.ScatterDimensionNumbers(*self.dimension_numbers)
        flags = {
            name: getattr(self, name) for name in ("indices_are_sorted", "unique_indices", "mode")
        }
        return ctx.via_jax(
            partial(lax.scatter_add, dimension_numbers=numbers, **flags), x, indices, updates
        )


class ScatterMul(Scatter):
    """The operand multiplied by the updates, each at its index."""

    linear: ClassVar[tuple[int, ...]] = (0,)
    samples = (
        sample(
            f32[5, 3],
            i32[4, 1],
            f32[4, 3],
            values={1: [[3], [0], [3], [9]]},
            offset_dims=(1,),
            collapsed_slice_dims=(0,),
            start_index_map=(0,),
        ),
        sample(
            f32[5],
            i32[6, 1],
            f32[6],
            values={1: [[3], [0], [3], [2], [2], [2]], 2: [0.0, 2.0, 3.0, 0.0, 0.0, 2.0]},
            collapsed_slice_dims=(0,),
            start_index_map=(0,),
        ),
        sample(
            f32[5],
            i32[2, 1],
            f32[2],
            values={1: [[3], [0]]},
            collapsed_slice_dims=(0,),
            start_index_map=(0,),
            unique_indices=True,
        ),
    )

    def jvp(self, primals: Values, tangents: Sequence[Tangent]) -> tuple[Value, Tangent]:
        (x, indices, updates), (dx, _, du) = primals, tangents
        out_t = None if dx is None else self(dx, indices, updates)
        if du is not None:
            # d(x u v) = dx u v + (x v) du + (x u) dv
            others = self.gather_written(x, indices, updates)
            if not self.has_unique_indices(x, indices):
                others = ops.mul(others, self.product_of_others(x, indices, updates))
            base = ops.zeros_like(x) if out_t is None else out_t
            out_t = self.with_class(ScatterAdd)(base, indices, ops.mul(du, others))
        return self(*primals), out_t

    def transpose(self, ct: Value, x: Value, indices: Value, updates: Value) -> Cotangents:
        return self(ct, indices, updates), None, None

    def neutral_updates(self, x: Value, indices: Value, updates: Value) -> Value | Literal:
        return literal(1, x.dtype)

    def product_of_others(self, x: Value, indices: Value, updates: Value) -> Value:
        """For each element of the updates, the product of the other updates of its target.

        It is computed without division, which would fail for zeros.
        """
        shape = updates.shape
        targets = self.gather_written(
            ops.reshape(ops.iota(np.int32, x.size), x.shape), indices, updates, -1
        )
        targets, updates = (
            ops.reshape(targets, (updates.size,)),
            ops.reshape(updates, (updates.size,)),
        )
        order = ops.argsort(targets)
        runs, values = ops.take_distinct(targets, order), ops.take_distinct(updates, order)
        before = _exclusive_segment_products(values, runs)
        after = ops.rev(
            _exclusive_segment_products(ops.rev(values, (0,)), ops.rev(runs, (0,))), (0,)
        )
        products = ops.take_distinct(ops.mul(before, after), ops.argsort(order))
        # Dropped updates form a run too, whose product may overflow.
        return ops.reshape(ops.select(ops.lt(targets, 0), 1, products), shape)

    accumulation_dtype = ScatterAdd.accumulation_dtype

    def combine(self, x: IRValue, update: IRValue) -> IRValue:
        return stablehlo.multiply(x, update)


class ScatterExtremum(Scatter, abstract=True):
    """The operand with the extremum of it and the updates, each at its index."""

    rounding = EXACT
    accepts = "biuf"

    def is_not_extremum(self, out: Value, x: Value) -> Value:
        """The mask of elements of the operand or the updates `x` that are not the extremum."""
        raise NotImplementedError

    def jvp(self, primals: Values, tangents: Sequence[Tangent]) -> tuple[Value, Tangent]:
        (x, indices, updates), (dx, _, du) = primals, tangents
        out = self(*primals)
        # Elements that tie share the derivative: the tangent is the mean over them.
        add_updates = self.with_class(ScatterAdd)
        x_is_not_extremum = self.is_not_extremum(out, x)
        updates_are_not_extremum = self.is_not_extremum(
            self.gather_written(out, indices, updates), updates
        )
        zero, one = literal(0, out.dtype), literal(1, out.dtype)
        count = add_updates(
            ops.select(x_is_not_extremum, zero, ops.full(x.shape, one)),
            indices,
            ops.select(updates_are_not_extremum, zero, ops.full(updates.shape, one)),
        )
        total = ops.zeros_like(x) if dx is None else ops.select(x_is_not_extremum, zero, dx)
        if du is not None:
            total = add_updates(total, indices, ops.select(updates_are_not_extremum, zero, du))
        return out, ops.div(total, count)


def _extremum_samples(tied_updates: list[float]) -> tuple[Sample, Sample]:
    """Samples with distinct elements, and with `tied_updates`, which share their cotangent."""
    return (
        sample(
            f32[5, 3],
            i32[4, 1],
            f32[4, 3],
            distinct=True,
            values={1: [[3], [0], [3], [9]]},
            offset_dims=(1,),
            collapsed_slice_dims=(0,),
            start_index_map=(0,),
        ),
        sample(
            f32[3],
            i32[3, 1],
            f32[3],
            values={0: [1.0, 2.0, 3.0], 1: [[0], [2], [2]], 2: tied_updates},
            gradients={0: [0.5, 1.0, 0.0], 2: [0.5, 0.5, 0.5]},
            collapsed_slice_dims=(0,),
            start_index_map=(0,),
        ),
    )


class ScatterMin(ScatterExtremum):
    """The operand with the minimum of it and the updates, each at its index."""

    samples = _extremum_samples([1.0, 2.0, 2.0])

    def is_not_extremum(self, out: Value, x: Value) -> Value:
        return ops.lt(out, x)

    def combine(self, x: IRValue, update: IRValue) -> IRValue:
        return stablehlo.minimum(x, update)


class ScatterMax(ScatterExtremum):
    """The operand with the maximum of it and the updates, each at its index."""

    samples = _extremum_samples([1.0, 4.0, 4.0])

    def is_not_extremum(self, out: Value, x: Value) -> Value:
        return ops.gt(out, x)

    def combine(self, x: IRValue, update: IRValue) -> IRValue:
        return stablehlo.maximum(x, update)


def _exclusive_segment_products(updates: Value, targets: Value) -> Value:
    """The product of the earlier elements in the run of equal `targets` that each belongs to."""

    def earlier(x: Value, k: int, fill: complex) -> Value:
        return ops.pad(x, fill, [(k, -k, 0)])

    size = updates.shape[0]
    products = ops.select(ops.eq(earlier(targets, 1, -2), targets), earlier(updates, 1, 1), 1)
    k = 1
    while k < size:
        products = ops.mul(
            products,
            ops.select(ops.eq(earlier(targets, k, -2), targets), earlier(products, k, 1), 1),
        )
        k *= 2
    return products


class ScatterSet(TransposedByVJP, Scatter):
    """The operand with elements replaced by the updates; the last update of an element stays."""

    rounding = EXACT
    samples = (
        sample(
            f32[5, 3],
            i32[5, 1],
            f32[5, 3],
            values={1: [[3], [0], [3], [9], [0]]},
            offset_dims=(1,),
            collapsed_slice_dims=(0,),
            start_index_map=(0,),
        ),
        sample(
            f32[2, 6, 4],
            i32[3, 2, 2],
            f32[3, 2, 3],
            values={1: [[[0, 1], [2, 2]], [[2, 1], [2, 0]], [[9, 0], [1, 1]]]},
            offset_dims=(2,),
            collapsed_slice_dims=(2,),
            start_index_map=(1, 2),
            operand_batching_dims=(0,),
            start_indices_batching_dims=(1,),
            mode="clip",
        ),
        sample(
            f32[5, 3],
            i32[3, 1],
            f32[3, 3],
            values={1: [[3], [0], [4]]},
            offset_dims=(1,),
            collapsed_slice_dims=(0,),
            start_index_map=(0,),
            unique_indices=True,
        ),
    )

    def index_sets(self, sets: IndexSets, *operands: DependentOperand) -> Sets:
        x, indices, updates = operands
        known, numbers = indices.value(), x.sets
        if known is not None and numbers is not None:
            positions = self.window_positions(
                x.aval.shape, self.slice_sizes(x.aval, updates.aval), known
            )
            numbers = numbers.flatten()
            numbers[positions[positions >= 0]] = 0
            numbers = numbers.reshape(x.aval.shape)
        return self.unite(sets, x.aval, numbers, known, updates)

    def vjp(self, ct: Value, out: Value, args: Values, active: Sequence[bool]) -> Cotangents:
        _, indices, updates = args
        written = self.update_cotangent(ct, indices, updates) if active[2] else None
        zeros = ops.zeros_like(updates)
        if written is not None and ops.is_small_part(updates, ct):
            written, zeros = ops.ReadBeforeWrite()(written)
        return self.operand_cotangent(ct, indices, zeros) if active[0] else None, None, written

    def cotangent_masks(self, mask: Mask, args: Values) -> Sequence[Mask]:
        x, indices, updates = args
        operand_mask = None
        if not ops.is_small_part(updates, x):
            operand_mask = self.operand_cotangent(
                ops.instantiate_mask(mask, x.shape), indices, ops.full(updates.shape, False)
            )
        is_last = (
            None
            if self.has_unique_indices(x, indices)
            else self.last_write_mask(x, indices, updates)
        )
        return [operand_mask, None, combine_masks(self.update_mask(mask, *args), is_last)]

    def operand_cotangent(self, ct: Value, indices: Value, zeros: Value) -> Value:
        """`ct` where the operand is kept, zero where an update is written."""
        return self(ct, indices, zeros)

    def update_cotangent(self, ct: Value, indices: Value, updates: Value) -> Value:
        """`ct` at each update, zero for updates that are dropped or overwritten."""
        written = self.gather_written(ct, indices, updates)
        if self.has_unique_indices(ct, indices):
            return written
        return ops.select(self.last_write_mask(ct, indices, updates), written, 0)

    def last_write_mask(self, x: Value, indices: Value, updates: Value) -> Value:
        """The mask of elements of the updates that are the last written to their target.

        It is found by writing the number of each window with `ScatterMax`. Dimensions that are whole
        in every window are left out.
        """
        window = dict(zip(self.window_dims(x.ndim), self.offset_dims, strict=True))
        whole_dims = [d for d in window if d not in self.start_index_map]
        dims, update_dims = [
            tuple_delete(range(n), out)
            for n, out in ((x.ndim, whole_dims), (updates.ndim, [window[d] for d in whole_dims]))
        ]

        def renumber(named: Dims, among: Dims) -> Dims:
            return tuple([among.index(d) for d in named])

        highest = ScatterMax(
            renumber(tuple([window[d] for d in window if d in dims]), update_dims),
            renumber(self.collapsed_slice_dims, dims),
            renumber(self.start_index_map, dims),
            renumber(self.operand_batching_dims, dims),
            self.start_indices_batching_dims,
            self.indices_are_sorted,
            mode=self.mode,
        )
        lead = indices.shape[:-1]
        shape = tuple([updates.shape[d] for d in update_dims])
        places = renumber(tuple_delete(range(updates.ndim), self.offset_dims), update_dims)
        numbers = ops.broadcast_in_dim(
            ops.reshape(ops.iota(np.int32, prod(lead)), lead), shape, places
        )
        none_written = ops.full(tuple([x.shape[d] for d in dims]), literal(-1, numbers.dtype))
        written = highest(none_written, indices, numbers)
        is_last = ops.eq(highest.gather_written(written, indices, numbers, -1), numbers)
        return ops.broadcast_in_dim(is_last, updates.shape, update_dims)

    def combine(self, x: IRValue, update: IRValue) -> IRValue:
        return update

    def lower(
        self, ctx: LoweringContext, x: IRValue, indices: IRValue, updates: IRValue
    ) -> IRValue:
        # Only on CPUs XLA writes updates in order.
        if tuple(ctx.platforms) == ("cpu",) or self.has_unique_indices(*ctx.avals_in[:2]):
            return super().lower(ctx, x, indices, updates)
        program = trace_closed(self.order_independent, ctx.avals_in, name=self.name)
        return ctx.module.emit(program, [x, indices, updates])[0]

    def order_independent(self, x: Value, indices: Value, updates: Value) -> list[Any]:
        """The last updates of each element added to zeros, in any order."""
        is_last = self.last_write_mask(x, indices, updates)
        # -0.0 is the neutral element of addition, also for the sign of zero.
        zero = literal(-0.0 if is_inexact(x.dtype) else 0, x.dtype)
        cleared = self.replace(unique_indices=True)(x, indices, ops.full(updates.shape, zero))
        return [self.with_class(ScatterAdd)(cleared, indices, ops.select(is_last, updates, zero))]


def _scatter_function(cls: type[Scatter], doc: str) -> Callable[..., Any]:
    """The public function that binds the scatter class `cls`."""

    def function(
        operand: Value,
        scatter_indices: Value,
        updates: Value,
        dimension_numbers: ScatterDimensionNumbers,
        *,
        indices_are_sorted: bool = False,
        unique_indices: bool = False,
        mode: object = None,
    ) -> Value:
        numbers = ops.ScatterDimensionNumbers(
            *[tuple(getattr(dimension_numbers, f)) for f in ops.ScatterDimensionNumbers._fields]
        )
        mode = ops.canonical_index_mode(mode, "drop")
        operand, updates = promote_scalars(operand, updates)
        return cls(*numbers, indices_are_sorted, unique_indices, mode)(
            operand, scatter_indices, updates
        )

    function.__name__ = function.__qualname__ = "scatter" if cls is ScatterSet else cls.name
    function.__doc__ = doc
    return function


scatter = _scatter_function(
    ScatterSet,
    """`operand` with the window at each vector in `scatter_indices` replaced by an update.

    `dimension_numbers` are `ScatterDimensionNumbers`, or JAX's of that name. Of several
    updates of one element the last stays. Windows that do not lie inside the operand are
    not written with the mode "drop" (the default) and moved inside with "clip";
    "promise_in_bounds" states that there are none.
    """,
)
scatter_add = _scatter_function(
    ScatterAdd,
    """`operand` with updates added to the windows at `scatter_indices`; see `scatter`.""",
)
scatter_mul = _scatter_function(
    ScatterMul,
    """`operand` with the windows at `scatter_indices` multiplied by updates; see `scatter`.""",
)
scatter_min = _scatter_function(
    ScatterMin,
    """`operand` with the minimum of windows at `scatter_indices` and updates; see `scatter`.""",
)
scatter_max = _scatter_function(
    ScatterMax,
    """`operand` with the maximum of windows at `scatter_indices` and updates; see `scatter`.""",
)


def scatter_sub(
    operand: ArrayLike,
    scatter_indices: ArrayLike,
    updates: Value,
    dimension_numbers: ScatterDimensionNumbers,
    *,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    mode: object = None,
) -> Value:
    """`operand` with updates subtracted from the windows at `scatter_indices`; see `scatter`."""
    _, updates = promote_scalars(operand, updates)
    return scatter_add(
        operand, scatter_indices, ops.neg(updates), dimension_numbers,
        indices_are_sorted=indices_are_sorted, unique_indices=unique_indices, mode=mode,
    )  # fmt: skip
