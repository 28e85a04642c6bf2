"""Elements repeated, turned around, moved along, put in and left out."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from functx.core.errors import AxisError, ConcretizationError, ShapeError, ValueRangeError
from functx.core.tracing import Tracer, aval_of
from functx.numpy import promotion
from functx.numpy.joining import gather_along, gather_static, slice_along, unstack
from functx.numpy.promotion import copy_array, returns_new_array
from functx.numpy.selection import drop_leading_ones
from functx.numpy.shapes import (
    check_min_rank,
    ensure_array,
    flatten,
    prepend_axes,
    ravel,
    static_integer,
    static_integers,
    swapaxes,
)
from functx.ops import arithmetic, joining, shaping
from functx.ops.arithmetic import add, rem, sub
from functx.ops.comparison import eq, ge, lt
from functx.ops.conversion import convert_element_type
from functx.ops.creation import iota
from functx.ops.operands import (
    canonical_axes,
    canonical_axis,
    canonical_shape,
    literal,
    tuple_delete,
)
from functx.ops.selection import select
from functx.ops.shaping import broadcast_in_dim
from functx.ops.slicing import dynamic_slice, widen_index

__all__ = [
    "delete",
    "flip",
    "fliplr",
    "flipud",
    "insert",
    "repeat",
    "resize",
    "roll",
    "rot90",
    "tile",
]


@returns_new_array
def tile(A: Any, reps: Any) -> Any:  # noqa: N803 - NumPy's name
    """`A` repeated `reps` times along each axis, the last count for the last axis."""
    a = ensure_array(A)
    counts = canonical_shape(reps, "tile: reps")
    shape = aval_of(a).shape
    rank = max(len(counts), len(shape))
    counts = (1,) * (rank - len(counts)) + counts
    shape = (1,) * (rank - len(shape)) + shape
    if all(n == 1 for n in counts):
        return copy_array(shaping.reshape(a, shape))
    wide = tuple([n for pair in zip(counts, shape, strict=True) for n in pair])
    kept = tuple(range(2 * (rank - aval_of(a).ndim) + 1, 2 * rank, 2))
    whole = tuple([n * m for n, m in zip(counts, shape, strict=True)])
    return copy_array(shaping.reshape(broadcast_in_dim(a, wide, kept), whole))


@returns_new_array
def repeat(
    a: Any, repeats: Any, axis: int | None = None, *, total_repeat_length: int | None = None
) -> Any:
    """Each element of `a` along `axis` repeated, `repeats` times or each its own count.

    `a` is flattened where `axis` is None. The counts must be known while tracing, or
    `total_repeat_length` give their sum: the result is cut to it, or filled up to it with
    the last element.
    """
    a = ensure_array(a)
    if axis is None:
        a, axis = ravel(a), 0
    elif not aval_of(a).ndim:
        a = ravel(a)
    shape = aval_of(a).shape
    axis = canonical_axis(axis, len(shape), "repeat: axis")
    n = shape[axis]
    if total_repeat_length is not None and type(repeats) is Tracer:
        return _repeat_to(
            a, repeats, axis, static_integer(total_repeat_length, "total_repeat_length")
        )
    if type(repeats) is int and repeats >= 0 and total_repeat_length is None:
        return copy_array(_repeat_each(a, repeats, axis))
    try:
        counts = static_integers(repeats, "repeat")
    except ConcretizationError as error:
        error.fix = "Give repeat the sum of the counts, total_repeat_length, or make them static."
        raise
    if counts.ndim > 1 or counts.size not in (1, n) or (counts < 0).any():
        raise ValueRangeError(
            "repeat: the counts must be one number, or one for each element, none negative; "
            f"got {counts.tolist()} for axis {axis} of {aval_of(a)!r}"
        )
    if counts.size == 1 and total_repeat_length is None:
        return _repeat_each(a, counts.item(), axis)
    indices = np.repeat(np.arange(n), np.broadcast_to(counts, (n,)))
    if total_repeat_length is not None:
        length = static_integer(total_repeat_length, "total_repeat_length")
        indices = np.concatenate([indices, np.full(length, max(n - 1, 0))])[:length]
    return gather_static(a, indices, axis)


def _repeat_each(a: Any, count: int, axis: int) -> Any:
    if count == 1:
        return a
    shape = aval_of(a).shape
    wide = (*shape[: axis + 1], count, *shape[axis + 1 :])
    repeated = broadcast_in_dim(a, wide, tuple_delete(range(len(wide)), (axis + 1,)))
    return shaping.reshape(repeated, (*shape[:axis], shape[axis] * count, *shape[axis + 1 :]))


def _repeat_to(a: Any, repeats: Any, axis: int, length: int) -> Any:
    from functx.numpy.sorting import searchsorted
    from functx.ops.cumulative import cumsum

    n = aval_of(a).shape[axis]
    counts = promotion.broadcast_to(widen_index(repeats, np.iinfo(np.int32).max), (n,))
    # Place i of the result holds the element whose span of counts i falls in.
    places = iota(aval_of(counts).dtype, length)
    return gather_along(a, searchsorted(cumsum(counts, 0), places, side="right"), axis)


def flip(m: Any, axis: Any = None) -> Any:
    """`m` with the order along `axis` reversed: one axis, several, or all."""
    m = ensure_array(m)
    axes = canonical_axes(axis, aval_of(m).ndim, "flip: axis")
    return shaping.rev(m, axes) if axes else m


def fliplr(m: Any) -> Any:
    """`m` with the order along its second axis reversed."""
    return flip(check_min_rank("fliplr", m, 2), 1)


def flipud(m: Any) -> Any:
    """`m` with the order along its first axis reversed."""
    return flip(check_min_rank("flipud", m, 1), 0)


def rot90(m: Any, k: int = 1, axes: Any = (0, 1)) -> Any:
    """`m` turned by `k` right angles in the plane of two axes, from the first to the second."""
    m = check_min_rank("rot90", m, 2)
    pair = canonical_axes(axes, aval_of(m).ndim, "rot90: axes")
    if len(pair) != 2:
        raise AxisError(f"rot90: axes must be two; got {axes}")
    turns = static_integer(k, "rot90: k") % 4
    if turns == 0:
        return m
    if turns == 2:
        return flip(m, pair)
    if turns == 1:
        return swapaxes(flip(m, pair[1]), *pair)
    return flip(swapaxes(m, *pair), pair[1])


@returns_new_array
def roll(a: Any, shift: Any, axis: Any = None) -> Any:
    """`a` with its elements moved `shift` places along `axis`, those at the end to the front.

    Several axes take a shift each, or share one. Without an axis the elements are moved in
    the order of the flattened array.
    """
    a = ensure_array(a)
    aval = aval_of(a)
    if axis is None:
        return copy_array(shaping.reshape(_roll_along(ravel(a), shift, 0), aval.shape))
    axes = axis if isinstance(axis, (tuple, list)) else (axis,)
    if type(shift) is Tracer:
        shifts: Sequence[Any] = unstack(shift) if shift.atom.aval.ndim else (shift,)
    else:
        shifts = shift if isinstance(shift, (tuple, list)) else np.ravel(shift).tolist()
    if len(axes) != len(shifts):
        if 1 not in (len(axes), len(shifts)):
            raise AxisError(f"roll: shifts and axes must pair; got {shift} and {axis}")
        axes, shifts = tuple(axes) * len(shifts), tuple(shifts) * len(axes)
    for one, by in zip(axes, shifts, strict=True):
        a = _roll_along(a, by, canonical_axis(one, aval.ndim, "roll: axis"))
    return a


def _roll_along(a: Any, shift: Any, axis: int) -> Any:
    n = aval_of(a).shape[axis]
    if type(shift) is Tracer:
        if not n:
            return a
        shift = widen_index(shaping.reshape(shift, ()), 2 * n)
        start = sub(n, rem(add(rem(shift, n), n), n))
        starts = [start if d == axis else 0 for d in range(aval_of(a).ndim)]
        return dynamic_slice(joining.concatenate([a, a], axis), starts, aval_of(a).shape)
    by = shift if type(shift) is int else static_integers(shift, "roll: the shift").item()
    by %= max(n, 1)
    if by == 0:
        return a
    return joining.concatenate(
        [slice_along(a, n - by, n, axis), slice_along(a, 0, n - by, axis)], axis
    )


def _static_positions(name: str, obj: Any, n: int) -> np.ndarray[Any, Any]:
    """`obj`, an int, a slice, integers or a mask, as integers, negative ones counted from `n`."""
    if isinstance(obj, slice):
        return np.arange(n)[obj]
    given = static_integers(obj, f"{name}: the indices")
    if given.dtype == np.bool_:
        if given.shape != (n,):
            raise ShapeError(
                f"{name}: a mask must have the length of the axis, {n}; got {given.shape}"
            )
        return np.flatnonzero(given)
    limit = n + 1 if name == "insert" else n
    if (given < -n).any() or (given >= limit).any():
        raise ValueRangeError(f"{name}: indices must be in [{-n}, {limit}); got {given.tolist()}")
    return np.where(given < 0, given + n, given)


def delete(
    arr: Any, obj: Any, axis: int | None = None, *, assume_unique_indices: bool = False
) -> Any:
    """`arr` without its elements at `obj` along `axis`; flattened first where it is None.

    `obj` is an int, a slice, integers or a mask. A traced one must be a single integer, or
    distinct integers, which `assume_unique_indices` warrants.
    """
    arr = ensure_array(arr)
    if axis is None:
        arr, axis = ravel(arr), 0
    axis = canonical_axis(axis, aval_of(arr).ndim, "delete: axis")
    n = aval_of(arr).shape[axis]
    traced = type(obj) is Tracer and obj.atom.aval.dtype.kind in "iu"
    if traced and (not obj.atom.aval.ndim or assume_unique_indices):
        return gather_along(arr, _remaining_indices(ravel(obj), n), axis)
    return gather_static(arr, np.delete(np.arange(n), _static_positions("delete", obj, n)), axis)


def _remaining_indices(left_out: Any, n: int) -> Any:
    """The integers below `n` that are not among distinct traced ones."""
    from functx.numpy.sorting import sort

    aval = aval_of(left_out)
    wrapped = rem(add(left_out, n), n)
    places = iota(aval.dtype, n - aval.size)
    # Each one left out moves on by one the places from where it stood.
    for gone in unstack(sort(wrapped)):
        places = add(places, convert_element_type(ge(places, gone), aval.dtype))
    return places


def insert(arr: Any, obj: Any, values: Any, axis: int | None = None) -> Any:
    """`arr` with `values` put in before the positions `obj` along `axis`.

    `obj` is an int, a slice, integers or a mask, which is known while tracing. `arr` is
    flattened first where `axis` is None. A traced integer out of bounds counts as the nearest.
    """
    arr, values = ensure_array(arr), ensure_array(values)
    if axis is None:
        arr, axis = ravel(arr), 0
    aval = aval_of(arr)
    axis = canonical_axis(axis, aval.ndim, "insert: axis")
    n = aval.shape[axis]
    traced = type(obj) is Tracer and obj.aval.dtype.kind in "iu"
    places = _traced_positions(obj, n) if traced else _static_positions("insert", obj, n)
    values = (
        convert_element_type(values, aval.dtype) if aval_of(values).dtype != aval.dtype else values
    )
    shape = list(aval.shape)
    if places.size == 1:
        if aval_of(values).ndim < aval.ndim:
            values = prepend_axes(values, aval.ndim)
        if places.ndim == 0:
            values = shaping.moveaxis(values, 0, axis)
        shape[axis] = aval_of(values).shape[axis]
        places = promotion.broadcast_to(places.reshape(()), (shape[axis],))
    else:
        shape[axis] = places.size
    values = promotion.broadcast_to(drop_leading_ones(values, aval.ndim), tuple(shape))
    if traced:
        sources = _insertion_sources(places, n)
        return gather_along(joining.concatenate([arr, values], axis), sources, axis)
    places = np.array(places)
    order = np.argsort(places, kind="stable")
    places[order] += np.arange(len(places))
    sources = np.empty(n + len(places), np.int64)
    own = np.ones(len(sources), bool)
    own[places] = False
    sources[own] = np.arange(n)
    sources[places] = n + np.arange(len(places))
    return gather_static(joining.concatenate([arr, values], axis), sources, axis)


def _traced_positions(obj: Any, n: int) -> Any:
    """Traced integers as `_static_positions` has known ones, moved into bounds."""
    places = convert_element_type(obj, np.int32)
    places = select(lt(places, 0), add(places, n), places)
    return arithmetic.max(arithmetic.min(places, n), 0)


def _insertion_sources(places: Any, n: int) -> Any:
    """Where each element comes from when as many as `places` follow `n`, and go before those."""
    from functx.numpy.sorting import argsort, searchsorted, take_from_vector

    count = aval_of(places).size
    size = n + count
    order = argsort(places, stable=True)
    inserted = add(take_from_vector(places, order), np.arange(count, dtype=np.int32))
    target = np.arange(size, dtype=np.int32)
    before = convert_element_type(searchsorted(inserted, target), np.int32)
    nearest = arithmetic.min(before, count - 1)
    is_new = eq(take_from_vector(inserted, nearest), target)
    new = add(convert_element_type(take_from_vector(order, nearest), np.int32), n)
    return select(is_new, new, sub(target, before))


def resize(a: Any, new_shape: Any) -> Any:
    """The elements of `a`, over and over again, as an array of `new_shape`."""
    flat = flatten(a)
    shape = canonical_shape(new_shape, "resize: new_shape")
    own, size = aval_of(flat).size, prod(shape)
    if not own:
        return shaping.full(shape, literal(0, aval_of(flat).dtype))
    times = -(-size // own)
    if times > 1:
        flat = joining.concatenate([flat] * times, 0)
    return shaping.reshape(slice_along(flat, 0, size, 0), shape)
