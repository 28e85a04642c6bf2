"""Scatters that multiply, or keep the least or the greatest."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from jax.extend.mlir.dialects import stablehlo

from functx.core.samples import f32, i32, sample
from functx.ops.gathering import take_distinct
from functx.ops.operands import literal
from functx.ops.scattering import Scatter, ScatterAdd, bind_scatter


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

    def jvp(self, primals, tangents):
        (x, indices, updates), (dx, _, du) = primals, tangents
        out_t = None if dx is None else self(dx, indices, updates)
        if du is not None:
            # d(x u v) = dx u v + (x v) du + (x u) dv
            others = self.gather_written(x, indices, updates)
            if not self.has_unique_indices(x, indices):
                others = mul(others, self.product_of_others(x, indices, updates))
            base = zeros_like(x) if out_t is None else out_t
            out_t = self.with_class(ScatterAdd)(base, indices, mul(du, others))
        return self(*primals), out_t

    def transpose(self, ct, x, indices, updates):
        return self(ct, indices, updates), None, None

    def product_of_others(self, x: Any, indices: Any, updates: Any) -> Any:
        """For each element of the updates, the product of the others written to its place.

        Made of products alone, since a quotient would fail at zeros.
        """
        shape = updates.shape
        places = self.gather_written(reshape(iota(np.int32, x.size), x.shape), indices, updates, -1)
        places, updates = reshape(places, (updates.size,)), reshape(updates, (updates.size,))
        order = argsort(places)
        runs, values = take_distinct(places, order), take_distinct(updates, order)
        before = _exclusive_segment_products(values, runs)
        after = rev(_exclusive_segment_products(rev(values, (0,)), rev(runs, (0,))), (0,))
        products = take_distinct(mul(before, after), argsort(order))
        # Those that are dropped form a run too, whose product may overflow.
        return reshape(select(lt(places, 0), 1, products), shape)

    accumulation_dtype = ScatterAdd.accumulation_dtype

    def combine(self, x, update):
        return stablehlo.multiply(x, update)


class ScatterExtremum(Scatter, abstract=True):
    """The operand and the updates for each place, of which the most extreme stays."""

    accepts = "biuf"

    def is_not_extremum(self, out: Any, x: Any) -> Any:
        """Whether the operand or update `x` is not the one that stayed."""
        raise NotImplementedError

    def jvp(self, primals, tangents):
        (x, indices, updates), (dx, _, du) = primals, tangents
        out = self(*primals)
        # Those that tie share evenly: the tangent is the mean over them.
        of_updates = self.with_class(ScatterAdd)
        x_lost = self.is_not_extremum(out, x)
        updates_lost = self.is_not_extremum(self.gather_written(out, indices, updates), updates)
        zero, one = literal(0, out.dtype), literal(1, out.dtype)
        count = of_updates(
            select(x_lost, zero, full(x.shape, one)),
            indices,
            select(updates_lost, zero, full(updates.shape, one)),
        )
        total = zeros_like(x) if dx is None else select(x_lost, zero, dx)
        if du is not None:
            total = of_updates(total, indices, select(updates_lost, zero, du))
        return out, div(total, count)


class ScatterMin(ScatterExtremum):
    """The operand with the minimum of it and the updates, each at its index."""

    samples = (
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
            values={0: [1.0, 2.0, 3.0], 1: [[0], [2], [2]], 2: [1.0, 2.0, 2.0]},
            gradients={0: [0.5, 1.0, 0.0], 2: [0.5, 0.5, 0.5]},
            collapsed_slice_dims=(0,),
            start_index_map=(0,),
        ),
    )

    def is_not_extremum(self, out, x):
        return lt(out, x)

    def combine(self, x, update):
        return stablehlo.minimum(x, update)


class ScatterMax(ScatterExtremum):
    """The operand with the maximum of it and the updates, each at its index."""

    samples = (
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
            values={0: [1.0, 2.0, 3.0], 1: [[0], [2], [2]], 2: [1.0, 4.0, 4.0]},
            gradients={0: [0.5, 1.0, 0.0], 2: [0.5, 0.5, 0.5]},
            collapsed_slice_dims=(0,),
            start_index_map=(0,),
        ),
    )

    def is_not_extremum(self, out, x):
        return gt(out, x)

    def combine(self, x, update):
        return stablehlo.maximum(x, update)


def _exclusive_segment_products(updates: Any, places: Any) -> Any:
    """The product of the earlier elements in the run of equal `places` that each is in."""

    def earlier(x: Any, k: int, fill: Any) -> Any:
        return pad(x, fill, [(k, -k, 0)])

    size = updates.shape[0]
    products = select(eq(earlier(places, 1, -2), places), earlier(updates, 1, 1), 1)
    k = 1
    while k < size:
        products = mul(
            products, select(eq(earlier(places, k, -2), places), earlier(products, k, 1), 1)
        )
        k *= 2
    return products


def scatter_mul(
    operand: Any,
    scatter_indices: Any,
    updates: Any,
    dimension_numbers: Any,
    *,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    mode: Any = None,
) -> Any:
    """`operand` with the windows at `scatter_indices` multiplied by updates; see `scatter`."""
    return bind_scatter(
        ScatterMul, operand, scatter_indices, updates, dimension_numbers,
        indices_are_sorted, unique_indices, mode,
    )  # fmt: skip


def scatter_min(
    operand: Any,
    scatter_indices: Any,
    updates: Any,
    dimension_numbers: Any,
    *,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    mode: Any = None,
) -> Any:
    """`operand` with the minimum of windows at `scatter_indices` and updates; see `scatter`."""
    return bind_scatter(
        ScatterMin, operand, scatter_indices, updates, dimension_numbers,
        indices_are_sorted, unique_indices, mode,
    )  # fmt: skip


def scatter_max(
    operand: Any,
    scatter_indices: Any,
    updates: Any,
    dimension_numbers: Any,
    *,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    mode: Any = None,
) -> Any:
    """`operand` with the maximum of windows at `scatter_indices` and updates; see `scatter`."""
    return bind_scatter(
        ScatterMax, operand, scatter_indices, updates, dimension_numbers,
        indices_are_sorted, unique_indices, mode,
    )  # fmt: skip


from functx.ops.arithmetic import div, mul
from functx.ops.comparison import eq, gt, lt
from functx.ops.creation import iota
from functx.ops.joining import pad
from functx.ops.selection import select
from functx.ops.shaping import full, reshape, rev, zeros_like
from functx.ops.sorting import argsort
