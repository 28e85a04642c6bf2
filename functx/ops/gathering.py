"""Gathers: windows of an array read at the positions that indices hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo

from functx.core.avals import ShapedArray
from functx.core.samples import f32, i32, sample
from functx.core.tracing import aval_of
from functx.ops.indexing import (
    Dims,
    GatherDimensionNumbers,
    GatherScatter,
    canonical_index_mode,
    default_fill_value,
)
from functx.ops.operands import literal, tuple_delete


class Gather(GatherScatter):
    """Windows of `slice_sizes` of the operand, one for each index vector."""

    slice_sizes: Dims = ()
    fill_value: Any = None
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

    def abstract_eval(self, x, indices):
        window = tuple_delete(self.slice_sizes, self.dropped_window_dims())
        rank = len(window) + indices.ndim - 1
        self.check(x, indices, self.slice_sizes, rank)
        sizes = {True: iter(window), False: iter(indices.shape)}
        return x.update(shape=tuple([next(sizes[d in self.offset_dims]) for d in range(rank)]))

    def jvp(self, primals, tangents):
        (x, indices), (dx, _) = primals, tangents
        return self(x, indices), None if dx is None else self.replace(fill_value=0)(dx, indices)

    def transpose(self, ct, x, indices):
        return self.add_to_cotangent(zeros_like(x), ct, (x, indices)), None

    def vjp(self, ct, out, args, active):
        return self.transpose(ct, *args)

    def tangent_mask(self, lives, args):
        (live, _) = lives
        if live is None or not live.shape:
            return live
        return self.replace(fill_value=False)(live, args[1])

    def cotangent_masks(self, live, args):
        x, indices = args
        out = self.abstract_eval(aval_of(x), aval_of(indices))
        if is_small_part(out, x):
            return [None, None]
        read = convert_element_type(instantiate_mask(live, out.shape), "int32")
        total = self.add_to_cotangent(full(x.shape, literal(0, read.dtype)), read, args)
        return [ne(total, 0), None]

    def add_to_cotangent(self, total, ct, args):
        mode = "drop" if self.mode == "fill" else self.mode
        add = ScatterAdd(
            *self.dimension_numbers, self.indices_are_sorted, self.unique_indices, mode
        )
        return add(total, args[1], ct)

    def batch(self, args, dims):
        (x, indices), (dx, di) = args, dims
        sizes = self.slice_sizes
        if di is None:
            numbers, at = self.with_window_dim(dx, x.ndim)
            sizes = (*sizes[:dx], x.shape[dx], *sizes[dx:])
            return self.replace(**numbers._asdict(), slice_sizes=sizes)(x, indices), at
        numbers = self.with_batch_dim(dx)
        if dx is not None:
            sizes = (*sizes[:dx], min(1, x.shape[dx]), *sizes[dx:])
        gather = self.replace(
            **numbers._asdict(),
            slice_sizes=sizes,
            indices_are_sorted=False,
            unique_indices=self.unique_indices and dx is not None,
        )
        return gather(x, moveaxis(indices, di, 0)), 0

    def lower(self, ctx, x, indices):
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

    def in_bounds_mask(self, ctx: Any, indices: Any) -> Any:
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


def take_distinct(x: Any, places: Any) -> Any:
    """The elements of the vector `x` at `places`, all of which are in it, each once."""
    one_each = Gather(
        collapsed_slice_dims=(0,),
        start_index_map=(0,),
        slice_sizes=(1,),
        unique_indices=True,
        mode="promise_in_bounds",
    )
    return one_each(x, reshape(places, (*places.shape, 1)))


def gather(
    operand: Any,
    start_indices: Any,
    dimension_numbers: Any,
    slice_sizes: Sequence[int],
    *,
    unique_indices: bool = False,
    indices_are_sorted: bool = False,
    mode: Any = None,
    fill_value: Any = None,
) -> Any:
    """Windows of `slice_sizes` of `operand`, one for each vector in `start_indices`.

    `dimension_numbers` are `GatherDimensionNumbers`, or JAX's of that name. `mode` says
    what becomes of windows that do not lie inside the operand: with "clip" they are moved
    inside (the default); with "fill" they are read as `fill_value` (None: nan, or the least
    integer); "promise_in_bounds" says that there are none.
    """
    numbers = GatherDimensionNumbers(
        *[tuple(getattr(dimension_numbers, field)) for field in GatherDimensionNumbers._fields]
    )
    mode = "clip" if mode is None else canonical_index_mode(mode, "fill")
    return Gather(
        *numbers, indices_are_sorted, unique_indices, mode, tuple(slice_sizes), fill_value
    )(operand, start_indices)


BOOL = np.dtype("bool")


from functx.ops.comparison import ne
from functx.ops.conversion import convert_element_type
from functx.ops.scattering import ScatterAdd
from functx.ops.shaping import full, instantiate_mask, moveaxis, reshape, zeros_like
from functx.ops.slicing import is_small_part
