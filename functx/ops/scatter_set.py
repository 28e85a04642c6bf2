"""The scatter that replaces: of several updates to one place the last stays."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from functx.core.dtypes import is_inexact
from functx.core.primitive import LinearInput
from functx.core.samples import f32, i32, sample
from functx.core.tracing import trace_closed
from functx.ops.families import combine_masks
from functx.ops.indexing import Dims
from functx.ops.operands import literal, tuple_delete
from functx.ops.scatter_reductions import ScatterMax
from functx.ops.scattering import Scatter, ScatterAdd, bind_scatter


class ScatterSet(Scatter):
    """The operand with the updates in place of what it held; the last one to a place stays."""

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

    def jvp(self, primals, tangents):
        (x, indices, updates), (dx, _, du) = primals, tangents
        dx = zeros_like(x) if dx is None else dx
        du = zeros_like(updates) if du is None else du
        return self(*primals), self(dx, indices, du)

    def transpose(self, ct, x, indices, updates):
        return (
            self.operand_cotangent(ct, indices, zeros_like(updates))
            if type(x) is LinearInput
            else None,
            None,
            self.update_cotangent(ct, indices, updates) if type(updates) is LinearInput else None,
        )

    def vjp(self, ct, out, args, active):
        _, indices, updates = args
        written = self.update_cotangent(ct, indices, updates) if active[2] else None
        zeros = zeros_like(updates)
        if written is not None and is_small_part(updates, ct):
            written, zeros = ReadBeforeWrite()(written)
        return self.operand_cotangent(ct, indices, zeros) if active[0] else None, None, written

    def cotangent_masks(self, live, args):
        x, indices, updates = args
        kept = None
        if not is_small_part(updates, x):
            kept = self.operand_cotangent(
                instantiate_mask(live, x.shape), indices, full(updates.shape, False)
            )
        shows = (
            None
            if self.has_unique_indices(x, indices)
            else self.last_write_mask(x, indices, updates)
        )
        return [kept, None, combine_masks(self.update_mask(live, *args), shows)]

    def operand_cotangent(self, ct: Any, indices: Any, zeros: Any) -> Any:
        """`ct` where the operand shows, zero where an update was written."""
        return self(ct, indices, zeros)

    def update_cotangent(self, ct: Any, indices: Any, updates: Any) -> Any:
        """`ct` at each update that shows, zero for those dropped or written over."""
        written = self.gather_written(ct, indices, updates)
        if self.has_unique_indices(ct, indices):
            return written
        return select(self.last_write_mask(ct, indices, updates), written, 0)

    def last_write_mask(self, x: Any, indices: Any, updates: Any) -> Any:
        """Whether each element of the updates is the last that is written to its place.

        Found by writing the number of each window, largest last. Of dimensions whole in
        every window only one place need be looked at.
        """
        window = dict(zip(self.window_dims(x.ndim), self.offset_dims, strict=True))
        whole = [d for d in window if d not in self.start_index_map]
        dims, update_dims = [
            tuple_delete(range(n), out)
            for n, out in ((x.ndim, whole), (updates.ndim, [window[d] for d in whole]))
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
        numbers = broadcast_in_dim(reshape(iota(np.int32, prod(lead)), lead), shape, places)
        nothing = full(tuple([x.shape[d] for d in dims]), literal(-1, numbers.dtype))
        written = highest(nothing, indices, numbers)
        shows = eq(highest.gather_written(written, indices, numbers, -1), numbers)
        return broadcast_in_dim(shows, updates.shape, update_dims)

    def combine(self, x, update):
        return update

    def lower(self, ctx, x, indices, updates):
        # Only on CPUs does XLA write one update after the other.
        if tuple(ctx.platforms) == ("cpu",) or self.has_unique_indices(*ctx.avals_in[:2]):
            return super().lower(ctx, x, indices, updates)
        program = trace_closed(self.order_independent, ctx.avals_in, name=self.name)
        return ctx.module.emit(program, [x, indices, updates])[0]

    def order_independent(self, x: Any, indices: Any, updates: Any) -> list[Any]:
        """The last updates alone added to zeros, which any order of writing gives."""
        shows = self.last_write_mask(x, indices, updates)
        # The float that changes nothing when added, not even the sign of zero.
        zero = literal(-0.0 if is_inexact(x.dtype) else 0, x.dtype)
        cleared = self.replace(unique_indices=True)(x, indices, full(updates.shape, zero))
        return [self.with_class(ScatterAdd)(cleared, indices, select(shows, updates, zero))]


def scatter(
    operand: Any,
    scatter_indices: Any,
    updates: Any,
    dimension_numbers: Any,
    *,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    mode: Any = None,
) -> Any:
    """`operand` with a window at each vector in `scatter_indices` replaced by an update.

    `dimension_numbers` are `ScatterDimensionNumbers`, or JAX's of that name. Of several
    updates of one element the last stays. Windows that do not lie inside the operand are
    left out with the mode "drop" (the default) and moved inside with "clip";
    "promise_in_bounds" says that there are none.
    """
    return bind_scatter(
        ScatterSet, operand, scatter_indices, updates, dimension_numbers,
        indices_are_sorted, unique_indices, mode,
    )  # fmt: skip


from functx.ops.comparison import eq
from functx.ops.creation import iota
from functx.ops.selection import select
from functx.ops.shaping import broadcast_in_dim, full, instantiate_mask, reshape, zeros_like
from functx.ops.slicing import ReadBeforeWrite, is_small_part
