"""Parts of an array put together, each copied once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from typing import Any, NamedTuple

from functx.core.avals import ShapedArray
from functx.ops.arithmetic import add
from functx.ops.joining import concatenate, pad
from functx.ops.operands import literal, tuple_delete
from functx.ops.shaping import full, zeros_like

Shape = tuple[int, ...]


class SliceTile(NamedTuple):
    """The values of the part of an array from `start` to before `limit`.

    Tiles of the same `use` come from one place in the user's code.
    """

    start: Shape
    limit: Shape
    values: Any
    user_location: Any


def sum_tiles(tiles: Sequence[SliceTile], aval: ShapedArray) -> Any:
    """The sum of `tiles` as an array that is zero elsewhere.

    Those that lie beside one another are joined: to add each in a pass over the whole array
    would take a time that grows with the square of their number. Tiles of one use come first,
    so that what the steps of a loop give becomes one array for each thing that a step does.
    """
    for use in (lambda tile: tile.user_location), (lambda tile: None):
        for axis in reversed(range(aval.ndim)):
            tiles = join_tiles_along(tiles, axis, aval.shape[axis], use)
        tiles = add_coinciding_tiles(tiles)
    if not tiles:
        return zeros_like(aval)
    total, *rest = [pad_tile(tile, aval.shape) for tile in tiles]
    for each in rest:
        total = add(total, each)
    return total


def join_tiles_along(
    tiles: Sequence[SliceTile], axis: int, length: int, use: Callable[[SliceTile], Any]
) -> list[SliceTile]:
    """Tiles for `tiles`, of which those of one use that lie beside one another along `axis` are one."""
    lanes: dict[Any, list[SliceTile]] = {}
    for tile in tiles:
        across = tuple_delete(tile.start, (axis,)), tuple_delete(tile.limit, (axis,))
        lanes.setdefault((across, use(tile)), []).append(tile)
    return [
        concatenate_tiles(row, axis, length)
        for lane in lanes.values()
        for row in partition_disjoint(lane, axis)
    ]


def add_coinciding_tiles(tiles: Sequence[SliceTile]) -> list[SliceTile]:
    """`tiles` with those of the same place added up."""
    found: dict[Any, SliceTile] = {}
    for tile in tiles:
        place = tile.start, tile.limit
        if place in found:
            tile = SliceTile(*place, add(found[place].values, tile.values), tile.user_location)
        found[place] = tile
    return list(found.values())


def partition_disjoint(lane: Sequence[SliceTile], axis: int) -> list[list[SliceTile]]:
    """`lane` in as few rows as can be of tiles that do not overlap along `axis`, in order."""
    rows: list[list[SliceTile]] = []
    ends: list[tuple[int, int]] = []
    for tile in sorted(lane, key=lambda tile: tile.start[axis]):
        if ends and ends[0][0] <= tile.start[axis]:
            _, at = heappop(ends)
        else:
            at = len(rows)
            rows.append([])
        rows[at].append(tile)
        heappush(ends, (tile.limit[axis], at))
    return rows


def concatenate_tiles(row: Sequence[SliceTile], axis: int, length: int) -> SliceTile:
    """One tile for those of a row, which reaches along all of `axis` if they are several."""
    if len(row) == 1:
        return row[0]
    first = row[0]
    pieces, end = [], 0
    for tile in [*row, None]:
        here = length if tile is None else tile.start[axis]
        if here > end:
            shape = list(first.values.shape)
            shape[axis] = here - end
            pieces.append(full(tuple(shape), literal(0, first.values.dtype)))
        if tile is not None:
            pieces.append(tile.values)
            end = tile.limit[axis]
    start, limit = list(first.start), list(first.limit)
    start[axis], limit[axis] = 0, length
    return SliceTile(tuple(start), tuple(limit), concatenate(pieces, axis), first.user_location)


def pad_tile(tile: SliceTile, shape: Shape) -> Any:
    """The values of a tile with zeros around."""
    if tile.values.shape == shape:
        return tile.values
    places = zip(tile.start, tile.limit, shape, strict=True)
    return pad(tile.values, 0, [(start, n - limit, 0) for start, limit, n in places])
