"""Arrays joined, split and padded along axes; sums of tiles."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from operator import index
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jax.extend.mlir.dialects import stablehlo

from functx import ops
from functx.core.errors import ShapeError
from functx.core.primitive import operand_aval
from functx.core.primitive_families import HasNewStrides, View
from functx.core.program import Atom
from functx.core.samples import f32, sample
from functx.core.strides import MemoryOrder, Strides, strides_in_order
from functx.core.tracer import aval_of
from functx.core.types import Shape, ShapedArray
from functx.core.typing import ArrayLike, Cotangent, Dim, IRValue, Mask, NumPyArray, Value, Values
from functx.ops.families import Linear, MovesElements, ShiftsAxis, TransposedByVJP
from functx.ops.operands import (
    RewriteContext,
    Simplified,
    canonical_axis,
    canonical_shape,
    check_axes,
    identity_result,
    literal,
    promote_scalars,
    tuple_delete,
)

if TYPE_CHECKING:
    from functx.lowering.stablehlo_emitter import LoweringContext


class Concatenate(ShiftsAxis, TransposedByVJP, MovesElements, Linear, HasNewStrides):
    """The operands concatenated along `axis`."""

    axis: int
    memory_order = MemoryOrder.COPIED
    samples = (
        sample(f32[2, 3], f32[2, 1], axis=1),
        sample(f32[2], f32[0], f32[3], axis=0),
        sample(f32[2, 3], axis=0),
    )

    def new_strides(
        self, avals: Sequence[ShapedArray], strides: Sequence[Strides], shape: tuple[int, ...]
    ) -> Strides:
        pairs = [zip(x.shape, each, strict=True) for x, each in zip(avals, strides, strict=True)]
        along = [[None if n == 1 else step for n, step in pair] for pair in pairs]
        return strides_in_order(shape, along, copied=True)

    def abstract_eval(self, *operands: ShapedArray) -> ShapedArray:
        if not operands:
            raise ShapeError("concatenate: there must be at least one operand; got none")
        first, axis = operands[0], self.axis
        check_axes(self.name, axis, first.ndim)
        other_lengths = tuple_delete(first.shape, (axis,))
        for x in operands:
            if (
                x.ndim != first.ndim
                or tuple_delete(x.shape, (axis,)) != other_lengths
                or x.dtype != first.dtype
            ):
                raise ShapeError(
                    "concatenate: operands must have one dtype, and one shape but for axis "
                    f"{axis}; got {first!r} and {x!r}"
                )
        shape = (
            *first.shape[:axis],
            sum([x.shape[axis] for x in operands]),
            *first.shape[axis + 1 :],
        )
        return ShapedArray(shape, first.dtype, all(x.weak_type for x in operands))

    def tangent_mask(self, masks: Sequence[Mask | bool], args: Values) -> Mask:
        if all([mask is None for mask in masks]):
            return None
        return self(
            *[ops.instantiate_mask(mask, x.shape) for mask, x in zip(masks, args, strict=True)]
        )

    def cotangent_masks(self, mask: Mask, args: Values) -> Sequence[Mask]:
        if mask is None or not mask.shape:
            return [mask] * len(args)
        return self.vjp(mask, None, args, [True] * len(args))

    def vjp(
        self, ct: Value, out: Value | None, args: Values, active: Sequence[bool]
    ) -> list[Cotangent]:
        if len(args) == 1:
            return [ct]
        sizes = tuple([x.shape[self.axis] for x in args])
        if all(active):
            return Split(sizes, self.axis)(ct)  # type: ignore[no-any-return]
        parts: list[Cotangent] = []
        end = 0
        for size, is_active in zip(sizes, active, strict=True):
            start, end = end, end + size
            parts.append(ops.slice_in_dim(ct, start, end, axis=self.axis) if is_active else None)
        return parts

    def simplify(self, context: RewriteContext, *operands: Atom) -> Simplified:
        nonempty = [x for x in operands if x.aval.shape[self.axis]]
        if len(nonempty) == 1:
            return nonempty[0]
        return (self, nonempty) if nonempty and len(nonempty) < len(operands) else None

    def numpy(self, *parts: NumPyArray) -> ArrayLike:
        return np.concatenate(parts, self.axis)

    def lower(self, ctx: LoweringContext, *operands: IRValue) -> IRValue:
        return stablehlo.concatenate(operands, self.axis)


class Split(ShiftsAxis, MovesElements, Linear, View):
    """`x` in consecutive pieces of lengths `sizes` along `axis`."""

    sizes: tuple[int, ...]
    axis: int
    size_fields = ("sizes",)
    multiple_results = True
    samples = sample(f32[2, 5], sizes=(2, 0, 3), axis=1), sample(f32[3], sizes=(3,), axis=0)

    def abstract_eval(self, x: ShapedArray) -> Sequence[ShapedArray]:
        check_axes(self.name, self.axis, x.ndim)
        if sum(self.sizes) != x.shape[self.axis] or min(self.sizes, default=0) < 0:
            raise ShapeError(
                f"split: sizes must sum to the length of axis {self.axis}; "
                f"got {self.sizes} for {x!r}"
            )
        before, after = x.shape[: self.axis], x.shape[self.axis + 1 :]
        return [x.update(shape=(*before, size, *after)) for size in self.sizes]

    def transpose(self, cts: Sequence[Cotangent], x: Value) -> Sequence[Cotangent]:
        before, after = x.shape[: self.axis], x.shape[self.axis + 1 :]
        parts = [
            ops.zeros_like(x.aval.update(shape=(*before, size, *after))) if ct is None else ct
            for ct, size in zip(cts, self.sizes, strict=True)
        ]
        return (concatenate(parts, self.axis),)

    def scatter_into_base(self, part: Value, index: Value | int, x: Value) -> Value:
        if not part.size:
            return x
        start = [0] * x.ndim
        start[self.axis] = sum(self.sizes[:index])
        return ops.update_strided_slice(
            x, part, [(a, a + n, 1) for a, n in zip(start, part.shape, strict=True)]
        )

    def view_strides(self, x: ShapedArray, strides: tuple[int, ...]) -> tuple[int, ...] | None:
        return strides

    def view_offset(self, x: ShapedArray, strides: tuple[int, ...], index: int) -> int | None:
        return sum(self.sizes[:index]) * strides[self.axis]

    def numpy(self, x: NumPyArray) -> Sequence[NumPyArray]:
        return np.split(x, np.cumsum(self.sizes)[:-1], self.axis)

    def lower(self, ctx: LoweringContext, x: IRValue) -> Sequence[IRValue]:
        (aval,) = ctx.avals_in
        start, limit = [0] * aval.ndim, list(aval.shape)
        strides = ctx.i64_array([1] * aval.ndim)
        parts, end = [], 0
        for size in self.sizes:
            start[self.axis], limit[self.axis] = end, end + size
            end += size
            parts.append(stablehlo.slice(x, ctx.i64_array(start), ctx.i64_array(limit), strides))
        return parts


class Pad(TransposedByVJP, MovesElements, Linear):
    """`x` with `config[i] = (low, high, interior)` elements of padding in dimension i.

    `interior` elements go between neighbours; then a negative `low` or `high` removes elements.
    """

    config: tuple[tuple[int, int, int], ...]
    size_fields = ("config",)
    samples = (
        sample(f32[2, 3], f32[()], config=((1, 2, 0), (0, 1, 2))),
        sample(f32[5], f32[()], config=((-1, 2, 1),)),
        sample(f32[5], f32[()], config=((-2, -1, 0),)),
        sample(f32[0], f32[()], config=((1, 2, 1),)),
    )

    def abstract_eval(self, x: ShapedArray, value: ShapedArray) -> ShapedArray:
        if x.dtype != value.dtype or value.ndim:
            raise ShapeError(
                f"pad: the padding value must be a scalar of the operand's dtype; "
                f"got {value!r} for {x!r}"
            )
        if len(self.config) != x.ndim or any(interior < 0 for _, _, interior in self.config):
            raise ShapeError(
                "pad: config must give (low, high, interior) for each dimension, "
                f"interior >= 0; got {self.config} for {x!r}"
            )
        shape = tuple(
            [
                low + high + n + interior * max(n - 1, 0)
                for n, (low, high, interior) in zip(x.shape, self.config, strict=True)
            ]
        )
        if any(n < 0 for n in shape):
            raise ShapeError(f"pad: no length may become negative; got {self.config} for {x!r}")
        return ShapedArray(shape, x.dtype, x.weak_type and value.weak_type)

    def numpy(self, x: NumPyArray, value: NumPyArray) -> ArrayLike:
        dilated = [
            n + max(0, n - 1) * inner for n, (_, _, inner) in zip(x.shape, self.config, strict=True)
        ]
        out = np.full(dilated, value)
        out[tuple([slice(None, None, inner + 1) for _, _, inner in self.config])] = x
        widths = [(max(low, 0), max(high, 0)) for low, high, _ in self.config]
        out = np.pad(out, widths, constant_values=value)
        kept = [
            slice(-min(low, 0), n + min(high, 0))
            for n, (low, high, _) in zip(out.shape, self.config, strict=True)
        ]
        return out[tuple(kept)]

    def vjp(self, ct: Value, out: Value, args: Values, active: Sequence[bool]) -> list[Cotangent]:
        x = args[0]
        return [
            self.unpad(ct, x) if active[0] else None,
            ops.reduce_sum(ops.select(self.padding_mask(x), ct, ops.zeros_like(ct)))
            if active[1]
            else None,
        ]

    def tangent_mask(self, masks: Sequence[Mask | bool], args: Values) -> Mask:
        mask, filled = masks
        if filled is not False:
            return None
        if mask is None and all([max(entry) <= 0 for entry in self.config]):
            return None
        return pad(ops.instantiate_mask(mask, args[0].shape), False, self.config)

    def cotangent_masks(self, mask: Mask, args: Values) -> Sequence[Mask]:
        x, value = args
        if mask is None and all(low >= 0 <= high for low, high, _ in self.config):
            return [None, None]
        out = self.abstract_eval(operand_aval(x), operand_aval(value))
        return [self.unpad(ops.instantiate_mask(mask, out.shape), x), None]

    def unpad(self, ct: Value, x: Value) -> Value:
        """The elements of `ct` at the positions of those of `x`, zero for removed ones."""
        config = tuple([(-low, -high, 0) for low, high, _ in self.config])
        ct = pad(ct, 0, config)
        if not any(interior for _, _, interior in self.config):
            return ct
        strides = tuple([interior + 1 for _, _, interior in self.config])
        return ops.slice(ct, (0,) * ct.ndim, ct.shape, strides)

    def padding_mask(self, x: Value) -> Value:
        """The mask of elements of the result that are padding."""
        return Pad(self.config)(ops.full(x.shape, False), True)

    def batch(self, args: Values, dims: Sequence[Any]) -> tuple[Value, Dim]:
        (x, value), (dim, value_dim) = args, dims
        if value_dim is None:
            return self.with_batch_dim(dim)(x, value), dim
        size = value.shape[0]
        x = ops.batch_dim_at(x, dim, 0, size)
        batched = self.with_batch_dim(0)
        out = batched(x, literal(0, x.dtype))
        return ops.select(
            batched.padding_mask(x), ops.broadcast_in_dim(value, out.shape, (0,)), out
        ), 0

    def with_batch_dim(self, dim: int) -> Pad:
        return Pad((*self.config[:dim], (0, 0, 0), *self.config[dim:]))

    def simplify(self, context: RewriteContext, x: Atom, value: Atom) -> Simplified:
        return x if all([entry == (0, 0, 0) for entry in self.config]) else None

    def lower(self, ctx: LoweringContext, x: IRValue, value: IRValue) -> IRValue:
        low, high, interior = zip(*self.config, strict=True) if self.config else ((), (), ())
        return stablehlo.pad(
            x, value, ctx.i64_array(low), ctx.i64_array(high), ctx.i64_array(interior)
        )


def concatenate(operands: Values, dimension: int) -> Value:
    """The arrays `operands`, all of one dtype, one after another along `dimension`."""
    if not operands:
        raise ShapeError("concatenate: there must be at least one operand; got none")
    axis = canonical_axis(dimension, aval_of(operands[0]).ndim)
    return operands[0] if len(operands) == 1 else Concatenate(axis)(*operands)


def split(operand: ArrayLike, sizes: Sequence[int], axis: int = 0) -> list[Value]:
    """`operand` in consecutive pieces of lengths `sizes` along `axis`."""
    sizes = canonical_shape(sizes, "split: sizes")
    return Split(sizes, canonical_axis(axis, aval_of(operand).ndim))(operand)  # type: ignore[no-any-return]


def pad(
    operand: ArrayLike, padding_value: ArrayLike, padding_config: Sequence[tuple[int, int, int]]
) -> Value:
    """`operand` with `padding_config[i] = (low, high, interior)` elements of padding in dimension i.

    `interior` elements go between neighbours; a negative `low` or `high` removes elements.
    """
    config = tuple([(index(low), index(high), index(inner)) for low, high, inner in padding_config])
    is_identity = not any(amount for amounts in config for amount in amounts)
    if is_identity and len(config) == aval_of(operand).ndim and not aval_of(padding_value).ndim:
        return identity_result(operand)
    return Pad(config)(*promote_scalars(operand, padding_value))


class SliceTile(NamedTuple):
    """The values of the part of an array from `start` to before `limit`.

    Tiles of one `user_location` come from one line of the user's code.
    """

    start: Shape
    limit: Shape
    values: Value
    user_location: object


def sum_tiles(tiles: Sequence[SliceTile], aval: ShapedArray) -> Value:
    """The sum of `tiles` as an array that is zero elsewhere.

    Adjacent tiles are concatenated: adding each in a pass over the whole array would take time
    quadratic in their number. Tiles of one user location are joined first, so that the tiles of the
    steps of an unrolled loop become one array for each line of the step.
    """
    for use in (lambda tile: tile.user_location), (lambda tile: None):
        for axis in reversed(range(aval.ndim)):
            tiles = join_tiles_along(tiles, axis, aval.shape[axis], use)
        tiles = add_coinciding_tiles(tiles)
    if not tiles:
        return ops.zeros_like(aval)
    total, *others = [pad_tile(tile, aval.shape) for tile in tiles]
    for other in others:
        total = ops.add(total, other)
    return total


def join_tiles_along(
    tiles: Sequence[SliceTile], axis: int, length: int, use: Callable[[SliceTile], Any]
) -> list[SliceTile]:
    """`tiles` with those of equal `use` that are adjacent along `axis` joined."""
    groups: dict[object, list[SliceTile]] = {}
    for tile in tiles:
        bounds = tuple_delete(tile.start, (axis,)), tuple_delete(tile.limit, (axis,))
        groups.setdefault((bounds, use(tile)), []).append(tile)
    return [
        concatenate_tiles(row, axis, length)
        for group in groups.values()
        for row in partition_disjoint(group, axis)
    ]


def add_coinciding_tiles(tiles: Sequence[SliceTile]) -> list[SliceTile]:
    """`tiles` with those of equal bounds added up."""
    sums: dict[Any, SliceTile] = {}
    for tile in tiles:
        bounds = tile.start, tile.limit
        if bounds in sums:
            tile = SliceTile(*bounds, ops.add(sums[bounds].values, tile.values), tile.user_location)
        sums[bounds] = tile
    return list(sums.values())


def partition_disjoint(tiles: Sequence[SliceTile], axis: int) -> list[list[SliceTile]]:
    """`tiles` in as few rows as possible, sorted and without overlap along `axis`."""
    rows: list[list[SliceTile]] = []
    ends: list[tuple[int, int]] = []
    for tile in sorted(tiles, key=lambda tile: tile.start[axis]):
        if ends and ends[0][0] <= tile.start[axis]:
            _, row = heappop(ends)
        else:
            row = len(rows)
            rows.append([])
        rows[row].append(tile)
        heappush(ends, (tile.limit[axis], row))
    return rows


def concatenate_tiles(row: Sequence[SliceTile], axis: int, length: int) -> SliceTile:
    """One tile for the tiles of a row; if there are several it spans all of `axis`."""
    if len(row) == 1:
        return row[0]
    first = row[0]
    pieces, end = [], 0
    for tile in [*row, None]:
        start_of_tile = length if tile is None else tile.start[axis]
        if start_of_tile > end:
            shape = list(first.values.shape)
            shape[axis] = start_of_tile - end
            pieces.append(ops.full(tuple(shape), literal(0, first.values.dtype)))
        if tile is not None:
            pieces.append(tile.values)
            end = tile.limit[axis]
    start, limit = list(first.start), list(first.limit)
    start[axis], limit[axis] = 0, length
    return SliceTile(tuple(start), tuple(limit), concatenate(pieces, axis), first.user_location)


def pad_tile(tile: SliceTile, shape: Shape) -> Value:
    """The values of a tile padded with zeros to `shape`."""
    if tile.values.shape == shape:
        return tile.values
    places = zip(tile.start, tile.limit, shape, strict=True)
    return pad(tile.values, 0, [(start, n - limit, 0) for start, limit, n in places])
