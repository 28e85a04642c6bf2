"""Slices: parts of arrays at positions known while tracing, and at positions that are not."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import Any

import numpy as np
from jax.extend.mlir.dialects import stablehlo

from functx import ops
from functx.core.errors import DTypeError, IndexingError, ShapeError
from functx.core.primitive import LinearInput, Primitive
from functx.core.program import Literal
from functx.core.samples import f32, i32, sample
from functx.core.tracing import aval_of
from functx.core.types import ShapedArray, canonical_dtype, is_integer, kind
from functx.ops.families import Linear
from functx.ops.operands import canonical_axis, identity_result, literal, promote_scalars

Shape = tuple[int, ...]


class Slice(Linear):
    """The elements of `x` from `start` to before `limit`, each `strides[i]`-th in dimension i."""

    start: Shape
    limit: Shape
    strides: Shape | None = None
    samples = (
        sample(f32[4, 5], start=(1, 0), limit=(3, 5)),
        sample(f32[7, 5], start=(1, 0), limit=(6, 5), strides=(2, 3)),
        sample(f32[3], start=(2,), limit=(2,), strides=(2,)),
    )

    def abstract_eval(self, x):
        start, limit, strides = self.start, self.limit, self.strides or (1,) * x.ndim
        if not len(start) == len(limit) == len(strides) == x.ndim:
            raise IndexingError(
                "slice: start, limit and strides must have one entry a dimension; "
                f"got {start}, {limit} and {strides} for {x!r}"
            )
        bounds = list(zip(start, limit, x.shape, strict=True))
        if not all(0 <= a <= b <= n for a, b, n in bounds) or min(strides, default=1) < 1:
            raise IndexingError(
                "slice: 0 <= start <= limit <= length and strides >= 1 must hold; "
                f"got {start}, {limit} and {strides} for {x!r}"
            )
        shape = [(b - a + s - 1) // s for a, b, s in zip(start, limit, strides, strict=True)]
        return x.update(shape=tuple(shape))

    def transpose(self, ct, x):
        strides = self.full_strides
        if ct.size == 0:
            return (ops.zeros_like(x),)
        config = [
            (a, n - a - (m - 1) * s - 1, s - 1)
            for a, s, m, n in zip(self.start, strides, ct.shape, x.shape, strict=True)
        ]
        return (ops.pad(ct, 0, config),)

    @staticmethod
    def accumulate_slices(parts, aval):
        return ops.sum_tiles(
            [part.cotangent_tile(ct, use) for part, ct, use in parts if ct.size], aval
        )

    def cotangent_tile(self, ct: Any, use: Any) -> SliceTile:
        """What is taken, `ct`, in its place, with zeros between."""
        if self.strides:
            ct = ops.pad(ct, 0, [(0, 0, step - 1) for step in self.strides])
        limit = tuple([a + n for a, n in zip(self.start, ct.shape, strict=True)])
        return ops.SliceTile(self.start, limit, ct, use)

    def tangent_mask(self, lives, args):
        (live,) = lives
        return live if live is None or not live.shape else self(live)

    def cotangent_masks(self, live, args):
        (x,) = args
        live = ops.instantiate_mask(live, self.abstract_eval(aval_of(x)).shape)
        return self.transpose(live, LinearInput(aval_of(x).update(dtype=live.dtype)))

    view = True

    def scatter_into_base(self, part, index, x):
        return update_strided_slice(
            x, part, list(zip(self.start, self.limit, self.full_strides, strict=True))
        )

    def view_strides(self, x, strides):
        return tuple([n * step for n, step in zip(strides, self.full_strides, strict=True)])

    def view_offset(self, x, strides, index):
        return sum([n * step for n, step in zip(self.start, strides, strict=True)])

    @property
    def full_strides(self) -> Shape:
        """By how many elements what is taken lies apart along each axis."""
        return self.strides or (1,) * len(self.start)

    def batch(self, args, dims):
        (x,), (dim,) = args, dims
        strides = tuple_insert(self.strides, dim, 1) if self.strides else None
        start, limit = tuple_insert(self.start, dim, 0), tuple_insert(self.limit, dim, x.shape[dim])
        return Slice(start, limit, strides)(x), dim

    def simplify(self, facts, x):
        shape = x.aval.shape
        strides = self.strides or (1,) * len(shape)
        if self.start == (0,) * len(shape) and self.limit == shape and max(strides, default=1) == 1:
            return x
        if inner := facts.defining_equation(x, ops.Full):
            return ops.Full(self.abstract_eval(x.aval).shape), inner.inputs
        if inner := facts.defining_equation(x, Slice):
            return inner.primitive.compose(self), inner.inputs
        if inner := facts.defining_equation(x, ops.Concatenate):
            return self.slice_of_concatenated(inner.primitive.axis, inner.inputs)
        if inner := facts.defining_equation(x, ops.Pad):
            return self.slice_of_padded(inner.primitive.config, inner.inputs[0])
        return None

    def compose(self, then: Slice) -> Slice:
        """This slice of an array, and the slice `then` of that, at once."""
        own, other = self.strides or (1,) * len(self.start), then.strides or (1,) * len(then.start)
        start = tuple([a + s * b for a, s, b in zip(self.start, own, then.start, strict=True)])
        strides = tuple([s * t for s, t in zip(own, other, strict=True)])
        counts = [
            (b - a + t - 1) // t for a, b, t in zip(then.start, then.limit, other, strict=True)
        ]
        limit = tuple(
            [
                a + max((n - 1) * s + 1, 0) if n else a
                for a, n, s in zip(start, counts, strides, strict=True)
            ]
        )
        return Slice(start, limit, None if max(strides, default=1) == 1 else strides)

    def slice_of_concatenated(self, axis: int, parts: Any) -> Any:
        """The slice of the one of joined `parts` in which it lies, if it lies in one."""
        begin = 0
        for part in parts:
            end = begin + part.aval.shape[axis]
            if begin <= self.start[axis] < self.limit[axis] <= end:
                start, limit = list(self.start), list(self.limit)
                start[axis], limit[axis] = start[axis] - begin, limit[axis] - begin
                return Slice(tuple(start), tuple(limit), self.strides), [part]
            begin = end
        return None

    def slice_of_padded(self, config: Any, x: Any) -> Any:
        """The slice of a padded `x` of which no padding is seen, and none cut off, if it is so."""
        lows = [low for low, _, _ in config]
        start = tuple([a - low for a, low in zip(self.start, lows, strict=True)])
        limit = tuple([b - low for b, low in zip(self.limit, lows, strict=True)])
        inside = all(
            [
                inner == 0 and 0 <= a <= b <= n
                for (_, _, inner), a, b, n in zip(config, start, limit, x.aval.shape, strict=True)
            ]
        )
        return (Slice(start, limit, self.strides), [x]) if inside else None

    def lower(self, ctx, x):
        return stablehlo.slice(
            x,
            ctx.i64_array(self.start),
            ctx.i64_array(self.limit),
            ctx.i64_array(self.full_strides),
        )


class DynamicSlice(Primitive):
    """The part of `x` of shape `sizes` that begins at the scalar indices that follow `x`.

    An index that would run over an end is moved until the part fits.
    """

    sizes: Shape
    samples = (
        sample(f32[4, 5], i32[()], i32[()], sizes=(2, 3), values={1: 1, 2: 2}),
        sample(f32[4], i32[()], sizes=(3,), values={1: 7}),
        sample(f32[4], i32[()], sizes=(3,), values={1: -2}),
    )

    def abstract_eval(self, x, *indices):
        check_start_indices(self, x, indices)
        check_slice_sizes(self, self.sizes, x)
        return x.update(shape=self.sizes)

    def jvp(self, primals, tangents):
        x, *indices = primals
        return self(x, *indices), self(tangents[0], *indices)

    def transpose(self, ct, x, *indices):
        into = DynamicUpdateSlice()(ops.zeros_like(x), ct, *indices)
        return (into, *[None] * len(indices))

    def vjp(self, ct, out, args, active):
        return self.transpose(ct, *args)

    def tangent_mask(self, lives, args):
        live, (_, *indices) = lives[0], args
        return live if live is None or not live.shape else self(live, *indices)

    def cotangent_masks(self, live, args):
        x, *indices = args
        if is_small_part(self.abstract_eval(*map(aval_of, args)), x):
            return [None] * len(args)
        live = ops.instantiate_mask(live, self.sizes)
        return self.transpose(live, LinearInput(aval_of(x).update(dtype=live.dtype)), *indices)

    def add_to_cotangent(self, total, ct, args):
        _, *indices = args
        return DynamicUpdateSlice()(total, ops.add(self(total, *indices), ct), *indices)

    view = True

    def scatter_into_base(self, part, index, x, *indices):
        return DynamicUpdateSlice()(x, part, *indices)

    def view_strides(self, x, strides):
        return strides

    def view_offset(self, x, strides, index):
        return None

    def batch(self, args, dims):
        (x, *indices), (dim, *index_dims) = args, dims
        if all(d is None for d in index_dims):
            sizes = tuple_insert(self.sizes, dim, x.shape[dim])
            return DynamicSlice(sizes)(x, *tuple_insert(indices, dim, zero_index(indices))), dim
        return batched_gather(x, dim, self.sizes, indices, index_dims), 0

    def simplify(self, facts, x, *indices):
        if any([type(i) is not Literal for i in indices]):
            return None
        sizes = list(zip(indices, self.sizes, x.aval.shape, strict=True))
        start = tuple([min(max(int(i.value), 0), n - size) for i, size, n in sizes])
        limit = tuple([a + size for a, size in zip(start, self.sizes, strict=True)])
        return Slice(start, limit), [x]

    def lower(self, ctx, x, *indices):
        starts = promote_index_dtypes(ctx, indices, ctx.avals_in[1:])
        return stablehlo.dynamic_slice(x, starts, ctx.i64_array(self.sizes))


class DynamicUpdateSlice(Primitive):
    """`x` with `update` in place of the part that begins at the scalar indices that follow.

    An index that would run over an end is moved until the update fits.
    """

    samples = (
        sample(f32[4, 5], f32[2, 3], i32[()], i32[()], values={2: 1, 3: 2}),
        sample(f32[4], f32[3], i32[()], values={2: 7}),
        sample(f32[4], f32[3], i32[()], values={2: -2}),
    )

    def abstract_eval(self, x, update, *indices):
        check_start_indices(self, x, indices)
        if x.dtype != update.dtype:
            raise DTypeError(
                f"dynamic_update_slice: operands must have one dtype; got {x!r} and {update!r}",
                fix="Convert with astype.",
            )
        check_slice_sizes(self, update.shape, x)
        return x.update(weak_type=x.weak_type and update.weak_type)

    def jvp(self, primals, tangents):
        (x, update, *indices), (dx, dupdate, *_) = primals, tangents
        dx = ops.zeros_like(x) if dx is None else dx
        dupdate = ops.zeros_like(update) if dupdate is None else dupdate
        return self(*primals), self(dx, dupdate, *indices)

    def transpose(self, ct, x, update, *indices):
        linear = [type(x) is LinearInput, type(update) is LinearInput]
        return self.vjp(ct, None, (x, update, *indices), linear)

    def vjp(self, ct, out, args, active):
        _, update, *indices = args
        part = DynamicSlice(update.shape)(ct, *indices) if active[1] else None
        zeros = ops.zeros_like(update)
        if part is not None and is_small_part(update, ct):
            part, zeros = ReadBeforeWrite()(part)
        kept = self(ct, zeros, *indices) if active[0] else None
        return (kept, part, *[None] * len(indices))

    def tangent_mask(self, lives, args):
        x, update, *indices = args
        if lives[0] is not False and (lives[0] is None or is_small_part(update, x)):
            return None
        kept, part = (
            ops.instantiate_mask(lives[0], x.shape),
            ops.instantiate_mask(lives[1], update.shape),
        )
        return self(kept, part, *indices)

    def cotangent_masks(self, live, args):
        x, update, *indices = args
        if is_small_part(update, x):
            return [None] * len(args)
        kept = self(ops.instantiate_mask(live, x.shape), ops.full(update.shape, False), *indices)
        part = (
            None
            if live is None
            else DynamicSlice(update.shape)(ops.instantiate_mask(live, x.shape), *indices)
        )
        return [kept, part, *[None] * len(indices)]

    def batch(self, args, dims):
        (x, update, *indices), (dim, update_dim, *index_dims) = args, dims
        size = next(a.shape[d] for a, d in zip(args, dims, strict=True) if d is not None)
        if all(d is None for d in index_dims):
            at = dim if dim is not None else update_dim
            x, update = (
                ops.batch_dim_at(x, dim, at, size),
                ops.batch_dim_at(update, update_dim, at, size),
            )
            return self(x, update, *tuple_insert(indices, at, zero_index(indices))), at
        x, update = ops.batch_dim_at(x, dim, 0, size), ops.batch_dim_at(update, update_dim, 0, size)
        return batched_scatter(x, update, indices, index_dims), 0

    def lower(self, ctx, x, update, *indices):
        starts = promote_index_dtypes(ctx, indices, ctx.avals_in[2:])
        return stablehlo.dynamic_update_slice(x, update, starts)


class ReadBeforeWrite(Primitive):
    """`x`, read from a larger array, and zeros to write in its place, which are known after it.

    XLA reads a part again for each use that it has, also where the array has another value by
    then, which it copies for that. On CPUs what goes through a call is not computed again.
    """

    multiple_results = True
    no_cse = True
    samples = (sample(f32[3]), sample(f32[()]))

    def abstract_eval(self, x):
        return [x, x]

    def jvp(self, primals, tangents):
        tangent, _ = self(*tangents)
        return self(*primals), [tangent, None]

    def transpose(self, cts, x):
        return (cts[0],)

    def vjp(self, cts, outs, args, active):
        return (cts[0],)

    def batch(self, args, dims):
        return self(*args), [dims[0], dims[0]]

    def lower(self, ctx, x):
        (aval,) = ctx.avals_in
        zeros = ctx.constant(0, aval)
        if tuple(ctx.platforms) != ("cpu",) or not aval.size:
            return [x, zeros]
        return ctx.pin_order(x, zeros, aval)


def is_small_part(part: Any, whole: Any) -> bool:
    """Whether a pass over the whole costs much more than one over the part."""
    return whole.size > 1024 and whole.size >= 16 * part.size  # type: ignore[no-any-return]


def tuple_insert(items: Any, position: int, item: Any) -> tuple[Any, ...]:
    """`items` with `item` at `position`."""
    return (*items[:position], item, *items[position:])


def check_start_indices(
    primitive: Primitive, x: ShapedArray, indices: Sequence[ShapedArray]
) -> None:
    """Raise unless there is one integer scalar a dimension of `x`."""
    scalars = all(not i.shape and is_integer(i.dtype) for i in indices)
    if len(indices) != x.ndim or not scalars:
        raise IndexingError(
            f"{primitive.name}: there must be one integer scalar index a dimension; "
            f"got {', '.join(map(repr, indices)) or 'none'} for {x!r}"
        )


def check_slice_sizes(primitive: Primitive, sizes: Shape, x: ShapedArray) -> None:
    """Raise unless a part of shape `sizes` fits into `x`."""
    if len(sizes) != x.ndim or not all(0 <= m <= n for m, n in zip(sizes, x.shape, strict=True)):
        raise ShapeError(
            f"{primitive.name}: the part must fit into the operand; got shape {sizes} for {x!r}"
        )


def zero_index(indices: Sequence[Any]) -> Any:
    """Zero, of the dtype that the indices have."""
    return literal(0, indices[0].dtype if indices else np.dtype("int32"))


def promote_index_dtypes(
    ctx: Any, values: Sequence[Any], avals: Sequence[ShapedArray]
) -> list[Any]:
    """The index values in one dtype, which holds every length: XLA clamps in that dtype."""
    if len({aval.dtype for aval in avals}) <= 1 and all(a.dtype.itemsize >= 4 for a in avals):
        return list(values)
    wide = ShapedArray((), np.dtype("int64"))
    return [ctx.convert(value, aval, wide) for value, aval in zip(values, avals, strict=True)]


def stack_index_vectors(indices: Sequence[Any], dims: Sequence[int | None]) -> Any:
    """Scalar indices, of which some are batched, as one vector for each of the batch."""
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
    x: Any, dim: int | None, sizes: Shape, indices: Sequence[Any], index_dims: Sequence[int | None]
) -> Any:
    """The parts of `x` of shape `sizes` at batched indices, the batch first."""
    rank, both = len(sizes), dim is not None
    if dim is not None:
        x = ops.moveaxis(x, dim, 0)
        sizes = (min(1, x.shape[0]), *sizes)
    numbers = ops.GatherDimensionNumbers(
        offset_dims=tuple(range(1, rank + 1)),
        collapsed_slice_dims=(),
        start_index_map=tuple(range(both, rank + both)),
        operand_batching_dims=(0,) * both,
        start_indices_batching_dims=(0,) * both,
    )
    return ops.gather(x, stack_index_vectors(indices, index_dims), numbers, sizes, mode="clip")


def batched_scatter(
    x: Any, update: Any, indices: Sequence[Any], index_dims: Sequence[int | None]
) -> Any:
    """The batch `x` with each of the batch `update` at its own batched indices."""
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


Bounds = tuple[int, int, int]


def update_strided_slice(x: Any, part: Any, bounds: Sequence[Bounds]) -> Any:
    """`x` with `part` in place of the elements within (start, limit, stride) along each axis."""
    shape = aval_of(x).shape
    if bounds == [(0, n, 1) for n in shape]:
        return part
    if not aval_of(part).size:
        return x
    if all(stride == 1 for _, _, stride in bounds):
        starts = [literal(start, np.dtype("int32")) for start, _, _ in bounds]
        return DynamicUpdateSlice()(x, part, *starts)
    config = [
        (start, n - start - (m - 1) * stride - 1, stride - 1)
        for (start, _, stride), m, n in zip(bounds, aval_of(part).shape, shape, strict=True)
    ]
    replaced = ops.pad(
        ops.full(aval_of(part).shape, literal(True, np.dtype("bool"))), False, config
    )
    return ops.select(replaced, ops.pad(part, zero_scalar_like(part), config), x)


def zero_scalar_like(x: Any) -> Any:
    """Zero of the dtype of `x`, and weak if that is."""
    aval = aval_of(x)
    return ops.convert_element_type(literal(0, aval.dtype), aval.dtype, aval.weak_type)


def slice(
    x: Any, start: Sequence[int], limit: Sequence[int], strides: Sequence[int] | None = None
) -> Any:
    """The elements of `x` from `start` to before `limit`, each `strides[i]`-th in dimension i."""
    start, limit = tuple(start), tuple(limit)
    if strides is not None:
        strides = tuple(strides)
        if strides == (1,) * len(strides):
            strides = None
    if strides is None and limit == aval_of(x).shape and not any(start):
        return identity_result(x)
    return Slice(start, limit, strides)(x)


def slice_in_dim(
    x: Any, start: int | None, limit: int | None, stride: int = 1, axis: int = 0
) -> Any:
    """The elements of `x` from `start` to before `limit` along `axis`, each `stride`-th.

    None stands for the beginning and the end; negative positions count from the end.
    """
    shape = aval_of(x).shape
    axis = canonical_axis(axis, len(shape))
    n = shape[axis]
    start, limit = 0 if start is None else start, n if limit is None else limit
    starts, limits, strides = [0] * len(shape), list(shape), [1] * len(shape)
    starts[axis] = start + n if start < 0 else start
    limits[axis] = limit + n if limit < 0 else limit
    strides[axis] = stride
    return slice(x, starts, limits, strides)


def dynamic_slice(x: Any, indices: Sequence[Any], sizes: Sequence[int]) -> Any:
    """The part of `x` of shape `sizes` that begins at the scalar `indices`.

    A negative index counts from the end. One whose part would run over an end is moved
    until the part fits.
    """
    indices = normalize_start_indices(x, indices)
    return DynamicSlice(tuple([index(n) for n in sizes]))(x, *indices)


def dynamic_update_slice(x: Any, update: Any, indices: Sequence[Any]) -> Any:
    """`x` with `update` in place of the part that begins at the scalar `indices`.

    A negative index counts from the end. One whose part would run over an end is moved
    until the part fits.
    """
    return DynamicUpdateSlice()(*promote_scalars(x, update), *normalize_start_indices(x, indices))


def normalize_start_indices(x: Any, indices: Sequence[Any]) -> list[Any]:
    """The indices into `x` with those that count from the end made to count from the start."""
    shape = aval_of(x).shape
    if len(indices) != len(shape):
        raise IndexingError(
            f"there must be one index a dimension; got {len(indices)} for shape {list(shape)}"
        )
    return [normalize_start_index(i, n) for i, n in zip(indices, shape, strict=True)]


def normalize_start_index(i: Any, n: int) -> Any:
    """The index `i` along a dimension of length `n`, counted from the start if it was from the end."""
    if isinstance(i, int | np.integer):
        return int(i) + n if i < 0 else i
    if kind(aval_of(i).dtype) != "i":
        return i
    i = widen_index(i, n)
    return ops.select(ops.lt(i, 0), ops.add(i, n), i)


def widen_index(i: Any, n: int) -> Any:
    """The integers `i`, in a dtype that holds `n` as well; known ones stay known."""
    if type(i) is int:
        return i
    dtype = aval_of(i).dtype
    if dtype.itemsize >= 4 or np.iinfo(dtype).max >= n:
        return i
    return (
        i.astype(np.int32) if isinstance(i, np.ndarray) else ops.convert_element_type(i, np.int32)
    )


from functx.ops.concatenation import SliceTile
