"""Indexing by arrays of integers: gathers read windows of an array, scatters write them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from math import prod
from typing import Any, ClassVar, NamedTuple

import numpy as np
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo

from functx.core.avals import ShapedArray
from functx.core.dtypes import is_inexact, is_integer, kind
from functx.core.errors import ArgumentError, DTypeError, ShapeError
from functx.core.primitive import LinearInput, Primitive
from functx.core.samples import f32, i32, sample
from functx.core.tracing import trace
from functx.ops.families import check_same_dtype
from functx.ops.operands import literal, match, without

Dims = tuple[int, ...]


class GatherDimensionNumbers(NamedTuple):
    """Which dimensions of a gather do what, by the names that JAX and StableHLO give them."""

    offset_dims: Dims
    collapsed_slice_dims: Dims
    start_index_map: Dims
    operand_batching_dims: Dims = ()
    start_indices_batching_dims: Dims = ()


class ScatterDimensionNumbers(NamedTuple):
    """Which dimensions of a scatter do what: those of the gather that reads what it writes."""

    update_window_dims: Dims
    inserted_window_dims: Dims
    scatter_dims_to_operand_dims: Dims
    operand_batching_dims: Dims = ()
    scatter_indices_batching_dims: Dims = ()


class Indexed(Primitive, abstract=True):
    """What gathers and scatters share: windows of an operand, and where they begin.

    The last dimension of the indices holds vectors, one a window; their component k counts
    along dimension `start_index_map[k]` of the operand, and windows begin at 0 along the
    others. The windows lie in the result of a gather, and in the updates of a scatter:
    there, `offset_dims` run inside a window, and the other dimensions are those of the
    indices. Along `collapsed_slice_dims` a window has length 1, and leaves the dimension
    out; so it does along `operand_batching_dims`, each of which runs together with the
    dimension of the indices in the same place of `start_indices_batching_dims`.

    Windows that do not lie inside the operand are moved inside with the mode "clip"; they
    are read as `fill_value` with "fill", and not written with "drop"; with
    "promise_in_bounds" there must be none.
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
    def numbers(self) -> GatherDimensionNumbers:
        return GatherDimensionNumbers(
            self.offset_dims,
            self.collapsed_slice_dims,
            self.start_index_map,
            self.operand_batching_dims,
            self.start_indices_batching_dims,
        )

    def changed(self, **fields: Any) -> Any:
        """This primitive with some of its fields replaced."""
        return type(self)(**{name: getattr(self, name) for name in self.fields} | fields)

    def absent(self) -> Dims:
        """The dimensions of the operand that windows leave out."""
        return self.collapsed_slice_dims + self.operand_batching_dims

    def with_window_dim(self, dim: int, ndim: int) -> tuple[GatherDimensionNumbers, int]:
        """The numbers for an operand with one dimension more, whole in every window.

        `dim` is its place in the operand, now of `ndim` dimensions. Its place among the
        windows' dimensions follows.
        """
        offset, collapsed, index_map, batching, indices_batching = self.numbers
        collapsed, index_map, batching = [_insert(d, dim) for d in (collapsed, index_map, batching)]
        k = without(range(ndim), collapsed + batching).index(dim)
        at = offset[k] if k < len(offset) else offset[-1] + 1 if offset else 0
        offset = _insert(offset, at)
        offset = (*offset[:k], at, *offset[k:])
        return GatherDimensionNumbers(offset, collapsed, index_map, batching, indices_batching), at

    def with_batch_dim(self, dim: int | None) -> GatherDimensionNumbers:
        """The numbers for indices with one dimension more, the first.

        It is also the first of what holds the windows. `dim` is the dimension of the
        operand that runs together with it, None if there is none.
        """
        offset, collapsed, index_map, batching, indices_batching = self.numbers
        offset, indices_batching = _insert(offset, 0), _insert(indices_batching, 0)
        if dim is not None:
            collapsed, index_map, batching = [
                _insert(d, dim) for d in (collapsed, index_map, batching)
            ]
            at = sum([d < dim for d in batching])
            batching = (*batching[:at], dim, *batching[at:])
            indices_batching = (*indices_batching[:at], 0, *indices_batching[at:])
        return GatherDimensionNumbers(offset, collapsed, index_map, batching, indices_batching)

    def window_dims(self, ndim: int) -> Dims:
        """The dimensions of the operand that windows keep, in order."""
        return without(range(ndim), self.absent())

    def check(self, x: ShapedArray, indices: ShapedArray, sizes: Dims, rank: int) -> None:
        """Raise unless the numbers fit the operands, windows of `sizes`, and a result of `rank`."""

        def require(holds: bool, what: str) -> None:
            if not holds:
                raise ShapeError(f"{self.name}: {what}; got {x!r} at {indices!r} with {self!r}")

        offset, collapsed, index_map, batching, indices_batching = self.numbers
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
            len(offset) == x.ndim - len(self.absent()) and all(0 <= d < rank for d in offset),
            "offset_dims must give a place to every dimension that windows keep",
        )

    def limits(self, x: ShapedArray, sizes: Dims, dtype: Any) -> np.ndarray[Any, Any]:
        """The last place where a window can begin, along each indexed dimension."""
        largest = np.iinfo(dtype).max
        return np.array([min(x.shape[d] - sizes[d], largest) for d in self.start_index_map], dtype)

    def clamped(self, ctx: Any, indices: Any, sizes: Dims) -> Any:
        """The indices with every window moved inside the operand."""
        x, aval = ctx.avals_in[:2]
        limits = self.limits(x, sizes, aval.dtype)
        element = ctx.type(aval).element_type
        limit = stablehlo.constant(
            ir.DenseElementsAttr.get(limits.data, type=element, shape=limits.shape)
        )
        limit = stablehlo.broadcast_in_dim(ctx.type(aval), limit, ctx.i64s([aval.ndim - 1]))
        return stablehlo.clamp(ctx.constant(0, aval), indices, limit)


class Gather(Indexed):
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
        window = without(self.slice_sizes, self.absent())
        rank = len(window) + indices.ndim - 1
        self.check(x, indices, self.slice_sizes, rank)
        sizes = {True: iter(window), False: iter(indices.shape)}
        return x.update(shape=tuple([next(sizes[d in self.offset_dims]) for d in range(rank)]))

    def jvp(self, primals, tangents):
        (x, indices), (dx, _) = primals, tangents
        return self(x, indices), None if dx is None else self.changed(fill_value=0)(dx, indices)

    def transpose(self, ct, x, indices):
        return self.accumulate(zeros_like(x.aval), ct, (x, indices)), None

    def vjp(self, ct, out, args, active):
        return self.transpose(ct, *args)

    def accumulate(self, total, ct, args):
        mode = "drop" if self.mode == "fill" else self.mode
        add = ScatterAdd(*self.numbers, self.indices_are_sorted, self.unique_indices, mode)
        return add(total, args[1], ct)

    def batch(self, args, dims):
        (x, indices), (dx, di) = args, dims
        sizes = self.slice_sizes
        if di is None:
            numbers, at = self.with_window_dim(dx, x.ndim)
            sizes = (*sizes[:dx], x.shape[dx], *sizes[dx:])
            return self.changed(**numbers._asdict(), slice_sizes=sizes)(x, indices), at
        numbers = self.with_batch_dim(dx)
        if dx is not None:
            sizes = (*sizes[:dx], min(1, x.shape[dx]), *sizes[dx:])
        gather = self.changed(
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
            ctx.i64s(self.slice_sizes),
            indices_are_sorted=self.indices_are_sorted,
        )
        if self.mode != "fill":
            return out
        (aval,) = ctx.avals_out
        lead = without(range(aval.ndim), self.offset_dims)
        inside = stablehlo.broadcast_in_dim(
            ctx.type(aval.update(dtype=BOOL)), self.inside(ctx, indices), ctx.i64s(lead)
        )
        fill = default_fill(aval.dtype) if self.fill_value is None else self.fill_value
        return stablehlo.select(inside, out, ctx.constant(fill, aval))

    def inside(self, ctx: Any, indices: Any) -> Any:
        """Whether each window lies inside the operand."""
        aval = ctx.avals_in[1]
        clamped = self.clamped(ctx, indices, self.slice_sizes)
        fits = ctx.compare(clamped, indices, "EQ", aval)
        scalar = ShapedArray((), BOOL)
        op = stablehlo.ReduceOp(
            [ctx.type(ShapedArray(aval.shape[:-1], BOOL))],
            [fits],
            [ctx.constant(True, scalar)],
            ctx.i64s([aval.ndim - 1]),
        )
        block = op.regions[0].blocks.append(ctx.type(scalar), ctx.type(scalar))
        with ir.InsertionPoint(block):
            stablehlo.return_([stablehlo.and_(*block.arguments)])
        return op.results[0]


class Scatter(Indexed, abstract=True):
    """The operand with a window at each index vector combined with one of the updates."""

    mode: str = "drop"
    accepts: ClassVar[str] = "biufc"

    def abstract_eval(self, x, indices, updates):
        check_same_dtype(self, (x, updates))
        lead = without(updates.shape, self.offset_dims)
        if lead != indices.shape[:-1]:
            raise ShapeError(
                f"{self.name}: updates must have the dimensions of the indices, beside those "
                f"inside windows; got {updates!r} at {indices!r} with {self!r}"
            )
        if len(self.offset_dims) + len(self.absent()) != x.ndim:
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

    def gather(self, x: Any, indices: Any, updates: Any, fill_value: Any = 0) -> Any:
        """What `x` holds in the places where `updates` are written, `fill_value` outside."""
        read = Gather(
            *self.numbers,
            self.indices_are_sorted,
            self.unique_indices,
            "fill" if self.mode == "drop" else self.mode,
            self.slice_sizes(x, updates),
            fill_value if self.mode == "drop" else None,
        )
        return read(x, indices)

    def of(self, scatter: type[Scatter]) -> Scatter:
        """The scatter of another class to the same places."""
        flags = self.indices_are_sorted, self.unique_indices, self.mode
        return scatter(*self.numbers, *flags)

    def writes_once(self, x: Any, indices: Any) -> bool:
        """Whether it is known that no place is written twice."""
        places = without(indices.shape[:-1], self.start_indices_batching_dims)
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
            updates = broadcast_in_dim(updates, shape, without(range(len(shape)), (at,)))
        else:
            updates = moveaxis(updates, du, at)
        batched = self.changed(
            **numbers._asdict(), indices_are_sorted=self.indices_are_sorted and di is None
        )
        return batched(x, indices, updates), dx

    def combine(self, x: Any, update: Any) -> Any:
        """The StableHLO value of an element, given its value so far and an update."""
        raise NotImplementedError

    def lower(self, ctx, x, indices, updates):
        x_aval, i_aval, u_aval = ctx.avals_in
        if self.mode == "clip":
            indices = self.clamped(ctx, indices, self.slice_sizes(x_aval, u_aval))
        numbers = stablehlo.ScatterDimensionNumbers.get(
            update_window_dims=self.offset_dims,
            inserted_window_dims=self.collapsed_slice_dims,
            input_batching_dims=self.operand_batching_dims,
            scatter_indices_batching_dims=self.start_indices_batching_dims,
            scattered_dims_to_operand_dims=self.start_index_map,
            index_vector_dim=i_aval.ndim - 1,
        )
        op = stablehlo.ScatterOp(
            ctx.out_types,
            [x],
            indices,
            [updates],
            numbers,
            indices_are_sorted=self.indices_are_sorted,
            unique_indices=self.unique_indices,
        )
        element = ctx.type(ShapedArray((), x_aval.dtype))
        block = op.regions[0].blocks.append(element, element)
        with ir.InsertionPoint(block):
            stablehlo.return_([self.combine(*block.arguments)])
        return op.results[0]


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
            self.gather(ct, indices, updates) if type(updates) is LinearInput else None,
        )

    def vjp(self, ct, out, args, active):
        _, indices, updates = args
        return ct, None, self.gather(ct, indices, updates) if active[2] else None

    def combine(self, x, update):
        return stablehlo.add(x, update)

    def lower(self, ctx, x, indices, updates):
        # GPUs add no 128 bits at once; JAX adds real and imaginary parts there.
        if ctx.avals_in[0].dtype != np.complex128 or tuple(ctx.platforms) == ("cpu",):
            return super().lower(ctx, x, indices, updates)
        from jax import lax

        numbers = lax.ScatterDimensionNumbers(*self.numbers)
        flags = {
            name: getattr(self, name) for name in ("indices_are_sorted", "unique_indices", "mode")
        }
        return ctx.via_jax(
            partial(lax.scatter_add, dimension_numbers=numbers, **flags), x, indices, updates
        )


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
            self.kept(ct, indices, zeros_like(updates.aval)) if type(x) is LinearInput else None,
            None,
            self.written(ct, indices, updates) if type(updates) is LinearInput else None,
        )

    def vjp(self, ct, out, args, active):
        _, indices, updates = args
        written = self.written(ct, indices, updates) if active[2] else None
        zeros = zeros_like(updates.aval)
        if written is not None and cheaper_than_copy(updates, ct):
            written, zeros = ReadBeforeWrite()(written)
        return self.kept(ct, indices, zeros) if active[0] else None, None, written

    def kept(self, ct: Any, indices: Any, zeros: Any) -> Any:
        """`ct` where the operand shows, zero where an update was written."""
        return self(ct, indices, zeros)

    def written(self, ct: Any, indices: Any, updates: Any) -> Any:
        """`ct` at each update that shows, zero for those dropped or written over."""
        written = self.gather(ct, indices, updates)
        if self.writes_once(ct, indices):
            return written
        return select(self.last(ct, indices, updates), written, 0)

    def last(self, x: Any, indices: Any, updates: Any) -> Any:
        """Whether each element of the updates is the last that is written to its place.

        Found by writing the number of each window, largest last. Of dimensions whole in
        every window only one place need be looked at.
        """
        window = dict(zip(self.window_dims(x.ndim), self.offset_dims, strict=True))
        whole = [d for d in window if d not in self.start_index_map]
        dims, update_dims = [
            without(range(n), out)
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
        places = renumber(without(range(updates.ndim), self.offset_dims), update_dims)
        numbers = broadcast_in_dim(reshape(iota(np.int32, prod(lead)), lead), shape, places)
        nothing = full(tuple([x.shape[d] for d in dims]), literal(-1, numbers.dtype))
        written = highest(nothing, indices, numbers)
        shows = eq(highest.gather(written, indices, numbers, -1), numbers)
        return broadcast_in_dim(shows, updates.shape, update_dims)

    def combine(self, x, update):
        return update

    def lower(self, ctx, x, indices, updates):
        # Only on CPUs does XLA write one update after the other.
        if tuple(ctx.platforms) == ("cpu",) or self.writes_once(*ctx.avals_in[:2]):
            return super().lower(ctx, x, indices, updates)
        program, _ = trace(self.in_order, ctx.avals_in, name=self.name)
        return ctx.module.emit(program, [x, indices, updates])[0]

    def in_order(self, x: Any, indices: Any, updates: Any) -> list[Any]:
        """The last updates alone added to zeros, which any order of writing gives."""
        shows = self.last(x, indices, updates)
        # The float that changes nothing when added, not even the sign of zero.
        zero = literal(-0.0 if is_inexact(x.dtype) else 0, x.dtype)
        cleared = self.changed(unique_indices=True)(x, indices, full(updates.shape, zero))
        return [self.of(ScatterAdd)(cleared, indices, select(shows, updates, zero))]


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
            others = self.gather(x, indices, updates)
            if not self.writes_once(x, indices):
                others = mul(others, self.product_of_others(x, indices, updates))
            base = zeros_like(x) if out_t is None else out_t
            out_t = self.of(ScatterAdd)(base, indices, mul(du, others))
        return self(*primals), out_t

    def transpose(self, ct, x, indices, updates):
        return self(ct, indices, updates), None, None

    def product_of_others(self, x: Any, indices: Any, updates: Any) -> Any:
        """For each element of the updates, the product of the others written to its place.

        Made of products alone, since a quotient would fail at zeros.
        """
        shape = updates.shape
        places = self.gather(reshape(iota(np.int32, x.size), x.shape), indices, updates, -1)
        places, updates = reshape(places, (updates.size,)), reshape(updates, (updates.size,))
        order = argsort(places)
        runs, values = take(places, order), take(updates, order)
        before = _products_before(values, runs)
        after = rev(_products_before(rev(values, (0,)), rev(runs, (0,))), (0,))
        products = take(mul(before, after), argsort(order))
        # Those that are dropped form a run too, whose product may overflow.
        return reshape(select(lt(places, 0), 1, products), shape)

    def combine(self, x, update):
        return stablehlo.multiply(x, update)


class ScatterExtremum(Scatter, abstract=True):
    """The operand and the updates for each place, of which the most extreme stays."""

    accepts = "biuf"

    def yields(self, out: Any, x: Any) -> Any:
        """Whether the operand or update `x` is not the one that stayed."""
        raise NotImplementedError

    def jvp(self, primals, tangents):
        (x, indices, updates), (dx, _, du) = primals, tangents
        out = self(*primals)
        # Those that tie share evenly: the tangent is the mean over them.
        of_updates = self.of(ScatterAdd)
        x_lost = self.yields(out, x)
        updates_lost = self.yields(self.gather(out, indices, updates), updates)
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

    def yields(self, out, x):
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

    def yields(self, out, x):
        return gt(out, x)

    def combine(self, x, update):
        return stablehlo.maximum(x, update)


def _products_before(updates: Any, places: Any) -> Any:
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


def take(x: Any, places: Any) -> Any:
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
    mode = "clip" if mode is None else canonical_mode(mode, "fill")
    return Gather(
        *numbers, indices_are_sorted, unique_indices, mode, tuple(slice_sizes), fill_value
    )(operand, start_indices)


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
    return _scatter(
        ScatterSet, operand, scatter_indices, updates, dimension_numbers,
        indices_are_sorted, unique_indices, mode,
    )  # fmt: skip


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
    return _scatter(
        ScatterAdd, operand, scatter_indices, updates, dimension_numbers,
        indices_are_sorted, unique_indices, mode,
    )  # fmt: skip


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
    return _scatter(
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
    return _scatter(
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
    return _scatter(
        ScatterMax, operand, scatter_indices, updates, dimension_numbers,
        indices_are_sorted, unique_indices, mode,
    )  # fmt: skip


def _scatter(
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
    primitive = cls(*dims, indices_are_sorted, unique_indices, canonical_mode(mode, "drop"))
    operand, updates = match(operand, updates)
    return primitive(operand, indices, updates)


def canonical_mode(mode: Any, outside: str) -> str:
    """`mode`, by name or as JAX's enumeration; "fill", "drop" and None mean `outside`."""
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


def default_fill(dtype: Any) -> Any:
    """What reading outside an array gives: nan, the least signed or largest unsigned integer."""
    if is_inexact(dtype):
        return np.nan
    if kind(dtype) == "b":
        return True
    limits = np.iinfo(dtype)
    return limits.max if kind(dtype) == "u" else limits.min


def _insert(dims: Dims, dim: int) -> Dims:
    """`dims` after a new dimension has come in at `dim`."""
    return tuple([d + (d >= dim) for d in dims])


def _increasing(dims: Dims) -> bool:
    return all(a < b for a, b in pairwise(dims))


BOOL = np.dtype("bool")


from functx.ops.arithmetic import div, mul
from functx.ops.comparison import eq, gt, lt
from functx.ops.creation import iota
from functx.ops.joining import pad
from functx.ops.selection import select
from functx.ops.shaping import broadcast_in_dim, full, moveaxis, reshape, rev, zeros_like
from functx.ops.slicing import ReadBeforeWrite, cheaper_than_copy
from functx.ops.sorting import argsort
