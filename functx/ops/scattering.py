"""Scatters: windows of an array combined with updates; the one that adds."""

from __future__ import annotations

from functools import partial
from math import prod
from typing import Any, ClassVar

import numpy as np
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo

from functx.core.avals import ShapedArray
from functx.core.dtypes import accumulation_dtype
from functx.core.errors import ShapeError
from functx.core.primitive import LinearInput
from functx.core.samples import f32, i32, sample
from functx.ops.comparison import ge, le
from functx.ops.families import check_same_dtype, combine_masks
from functx.ops.indexing import Dims, GatherScatter, ScatterDimensionNumbers, canonical_index_mode
from functx.ops.logical import bitwise_and
from functx.ops.operands import promote_scalars, tuple_delete


class Scatter(GatherScatter, abstract=True):
    """The operand with a window at each index vector combined with one of the updates."""

    mode: str = "drop"
    accepts: ClassVar[str] = "biufc"

    def abstract_eval(self, x, indices, updates):
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

    def slice_sizes(self, x: Any, updates: Any) -> Dims:
        """The lengths of a window along the dimensions of the operand."""
        # Not strict: `check` refuses dimension numbers that do not fit.
        window = dict(zip(self.window_dims(x.ndim), self.offset_dims, strict=False))
        return tuple([updates.shape[window[d]] if d in window else 1 for d in range(x.ndim)])

    def gather_written(self, x: Any, indices: Any, updates: Any, fill_value: Any = 0) -> Any:
        """What `x` holds in the places where `updates` are written, `fill_value` outside."""
        read = Gather(
            *self.dimension_numbers,
            self.indices_are_sorted,
            self.unique_indices,
            "fill" if self.mode == "drop" else self.mode,
            self.slice_sizes(x, updates),
            fill_value if self.mode == "drop" else None,
        )
        return read(x, indices)

    def cotangent_masks(self, live, args):
        return [None, None, self.update_mask(live, *args)]

    def update_mask(self, live: Any, x: Any, indices: Any, updates: Any) -> Any:
        """Which updates go to places that `live` holds for; those dropped go nowhere."""
        if live is not None and live.shape:
            return self.gather_written(live, indices, updates, False)
        return combine_masks(
            live, self.in_bounds_mask(x, indices, updates) if self.mode == "drop" else None
        )

    def in_bounds_mask(self, x: Any, indices: Any, updates: Any) -> Any:
        """Which updates belong to windows that lie inside the operand; None for all."""
        limits = self.start_limits(x, self.slice_sizes(x, updates), indices.dtype)
        there, lead = None, indices.shape[:-1]
        for k, limit in enumerate(limits.tolist()):
            at = reshape(slice_in_dim(indices, k, k + 1, axis=-1), lead)
            there = combine_masks(there, bitwise_and(ge(at, 0), le(at, limit)))
        if there is None:
            return None
        return broadcast_in_dim(
            there, updates.shape, tuple_delete(range(updates.ndim), self.offset_dims)
        )

    def with_class(self, scatter: type[Scatter]) -> Scatter:
        """The scatter of another class to the same places."""
        flags = self.indices_are_sorted, self.unique_indices, self.mode
        return scatter(*self.dimension_numbers, *flags)

    def has_unique_indices(self, x: Any, indices: Any) -> bool:
        """Whether it is known that no place is written twice."""
        places = tuple_delete(indices.shape[:-1], self.start_indices_batching_dims)
        return self.unique_indices or prod(places) <= 1

    def batch(self, args, dims):
        (x, indices, updates), (dx, di, du) = args, dims
        size = next(a.shape[d] for a, d in zip(args, dims, strict=True) if d is not None)
        if dx is None:
            x, dx = broadcast_in_dim(x, (size, *x.shape), tuple(range(1, x.ndim + 1))), 0
        if di is None:
            numbers, at = self.with_window_dim(dx, x.ndim)
        else:
            numbers, at = self.with_batch_dim(dx), 0
            indices = moveaxis(indices, di, 0)
        if du is None:
            shape = (*updates.shape[:at], size, *updates.shape[at:])
            updates = broadcast_in_dim(updates, shape, tuple_delete(range(len(shape)), (at,)))
        else:
            updates = moveaxis(updates, du, at)
        batched = self.replace(
            **numbers._asdict(), indices_are_sorted=self.indices_are_sorted and di is None
        )
        return batched(x, indices, updates), dx

    def accumulation_dtype(self, x: ShapedArray, indices: Any) -> Any:
        """The dtype in which updates are combined with the operand."""
        return x.dtype

    def combine(self, x: Any, update: Any) -> Any:
        """The StableHLO value of an element, given its value so far and an update."""
        raise NotImplementedError

    def lower(self, ctx, x, indices, updates):
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
        wide, u_wide = x_aval.update(dtype=dtype), u_aval.update(dtype=dtype)
        if dtype != x_aval.dtype:
            x, updates = ctx.convert(x, x_aval, wide), ctx.convert(updates, u_aval, u_wide)
        op = stablehlo.ScatterOp(
            [ctx.type(wide)],
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
        return out if dtype == x_aval.dtype else ctx.convert(out, wide, x_aval)


class ScatterAdd(Scatter):
    """The operand with the updates added to it, each at its index."""

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

    def jvp(self, primals, tangents):
        (x, indices, _), (dx, _, du) = primals, tangents
        if du is None:
            return self(*primals), dx
        return self(*primals), self(zeros_like(x) if dx is None else dx, indices, du)

    def transpose(self, ct, x, indices, updates):
        return (
            ct if type(x) is LinearInput else None,
            None,
            self.gather_written(ct, indices, updates) if type(updates) is LinearInput else None,
        )

    def vjp(self, ct, out, args, active):
        _, indices, updates = args
        return ct, None, self.gather_written(ct, indices, updates) if active[2] else None

    def cotangent_masks(self, live, args):
        return [live, None, self.update_mask(live, *args)]

    def accumulation_dtype(self, x, indices):
        return x.dtype if self.has_unique_indices(x, indices) else accumulation_dtype(x.dtype)

    def combine(self, x, update):
        return stablehlo.add(x, update)

    def lower(self, ctx, x, indices, updates):
        # GPUs add no 128 bits at once; JAX adds real and imaginary parts there.
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


def scatter_add(
    operand: Any,
    scatter_indices: Any,
    updates: Any,
    dimension_numbers: Any,
    *,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    mode: Any = None,
) -> Any:
    """`operand` with updates added to the windows at `scatter_indices`; see `scatter`."""
    return bind_scatter(
        ScatterAdd, operand, scatter_indices, updates, dimension_numbers,
        indices_are_sorted, unique_indices, mode,
    )  # fmt: skip


def bind_scatter(
    cls: type[Scatter],
    operand: Any,
    indices: Any,
    updates: Any,
    numbers: Any,
    indices_are_sorted: bool,
    unique_indices: bool,
    mode: Any,
) -> Any:
    dims = ScatterDimensionNumbers(
        *[tuple(getattr(numbers, field)) for field in ScatterDimensionNumbers._fields]
    )
    primitive = cls(*dims, indices_are_sorted, unique_indices, canonical_index_mode(mode, "drop"))
    operand, updates = promote_scalars(operand, updates)
    return primitive(operand, indices, updates)


from functx.ops.gathering import Gather
from functx.ops.shaping import broadcast_in_dim, moveaxis, reshape, zeros_like
from functx.ops.slicing import slice_in_dim
