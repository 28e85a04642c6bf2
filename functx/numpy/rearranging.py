"""Functions that repeat, reverse, roll, insert, delete and pad elements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np

from functx import ops
from functx.core.errors import (
    ArgumentError,
    AxisError,
    ConcretizationError,
    ShapeError,
    ValueRangeError,
)
from functx.core.tracer import Tracer, aval_of
from functx.core.typing import ArrayOrList, Axes, Keys, NumPyArray, ShapeLike, Value
from functx.numpy import promotion
from functx.numpy.indexer import drop_leading_ones
from functx.numpy.joining import (
    concatenate_or_empty,
    gather_along,
    gather_static,
    index_runs,
    slice_along,
    slice_run,
    unstack,
)
from functx.numpy.promotion import copy_array, operand, returns_new_array
from functx.numpy.shapes import (
    array_and_axis,
    check_min_rank,
    copy,
    ensure_array,
    flatten,
    is_sequence,
    prepend_axes,
    ravel,
    static_integers,
    swapaxes,
)
from functx.ops import arithmetic, concatenation, shapes
from functx.ops.operands import (
    PYTHON_SCALARS,
    as_int,
    canonical_axes,
    canonical_axis,
    canonical_shape,
    literal,
    tuple_delete,
)
from functx.ops.views import returns_view

__all__ = [
    "delete",
    "flip",
    "fliplr",
    "flipud",
    "insert",
    "pad",
    "repeat",
    "resize",
    "roll",
    "rot90",
    "tile",
]


@returns_new_array
def tile(A: ArrayOrList, reps: ShapeLike) -> Value:  # noqa: N803 - NumPy's name
    """`A` repeated `reps` times along each axis, the last count for the last axis."""
    a = ensure_array(A)
    counts = canonical_shape(reps, "tile: reps")
    shape = aval_of(a).shape
    rank = max(len(counts), len(shape))
    counts = (1,) * (rank - len(counts)) + counts
    shape = (1,) * (rank - len(shape)) + shape
    if all(n == 1 for n in counts):
        return copy_array(shapes.reshape(a, shape))
    expanded = tuple([n for pair in zip(counts, shape, strict=True) for n in pair])
    dims = tuple(range(2 * (rank - aval_of(a).ndim) + 1, 2 * rank, 2))
    tiled = tuple([n * m for n, m in zip(counts, shape, strict=True)])
    return copy(shapes.reshape(ops.broadcast_in_dim(a, expanded, dims), tiled), "C")


@returns_new_array
def repeat(
    a: ArrayOrList,
    repeats: ArrayOrList,
    axis: int | None = None,
    *,
    total_repeat_length: int | None = None,
) -> Value:
    """`a` with each element along `axis` repeated `repeats` times, one count or one for each.

    `a` is flattened if `axis` is None. The counts must be known while tracing, unless
    `total_repeat_length` is given: the result is truncated to that length, or filled with the
    last element.
    """
    a = ensure_array(a)
    a, axis = array_and_axis("repeat", a if aval_of(a).ndim else ravel(a), axis)
    shape = aval_of(a).shape
    n = shape[axis]
    if total_repeat_length is not None and type(repeats) is Tracer:
        return _repeat_to(a, repeats, axis, as_int("total_repeat_length", total_repeat_length))
    if type(repeats) is int and repeats >= 0 and total_repeat_length is None:
        return copy(_repeat_each(a, repeats, axis), "C")
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
        length = as_int("total_repeat_length", total_repeat_length)
        indices = np.concatenate([indices, np.full(length, max(n - 1, 0))])[:length]
    return gather_static(a, indices, axis)


def _repeat_each(a: Value, count: int, axis: int) -> Value:
    if count == 1:
        return a
    shape = aval_of(a).shape
    expanded = (*shape[: axis + 1], count, *shape[axis + 1 :])
    repeated = ops.broadcast_in_dim(a, expanded, tuple_delete(range(len(expanded)), (axis + 1,)))
    return shapes.reshape(repeated, (*shape[:axis], shape[axis] * count, *shape[axis + 1 :]))


def _repeat_to(a: Value, repeats: Value, axis: int, length: int) -> Value:
    from functx.numpy.sorting_and_searching import searchsorted

    n = aval_of(a).shape[axis]
    counts = promotion.broadcast_to(ops.widen_index(repeats, np.iinfo(np.int32).max), (n,))
    # Position i of the result holds the first element whose cumulative count exceeds i.
    positions = ops.iota(aval_of(counts).dtype, length)
    return gather_along(a, searchsorted(ops.cumsum(counts, 0), positions, side="right"), axis)


@returns_view
def flip(m: ArrayOrList, axis: Axes = None) -> Value:
    """`m` with the order along `axis` reversed: one axis, several, or all."""
    m = ensure_array(m)
    axes = canonical_axes(axis, aval_of(m).ndim, "flip: axis")
    return shapes.rev(m, axes) if axes else m


def fliplr(m: ArrayOrList | Keys) -> Value:
    """`m` with the order along its second axis reversed."""
    return flip(check_min_rank("fliplr", m, 2), 1)


def flipud(m: ArrayOrList | Keys) -> Value:
    """`m` with the order along its first axis reversed."""
    return flip(check_min_rank("flipud", m, 1), 0)


@returns_view
def rot90(m: ArrayOrList, k: int = 1, axes: tuple[int, int] = (0, 1)) -> Value:
    """`m` rotated by `k` right angles in the plane of two axes, from the first to the second."""
    m = check_min_rank("rot90", m, 2)
    pair = canonical_axes(axes, aval_of(m).ndim, "rot90: axes")
    if len(pair) != 2:
        raise AxisError(f"rot90: axes must be two; got {axes}")
    turns = as_int("rot90: k", k) % 4
    if turns == 0:
        return m
    if turns == 2:
        return flip(m, pair)
    if turns == 1:
        return swapaxes(flip(m, pair[1]), *pair)
    return flip(swapaxes(m, *pair), pair[1])


@returns_new_array
def roll(a: ArrayOrList, shift: ArrayOrList, axis: Axes = None) -> Value:
    """`a` with its elements shifted by `shift` positions along `axis`, cyclically.

    Several axes take one shift each, or share one. With `axis` None the flattened array is
    shifted.
    """
    a = ensure_array(a)
    aval = aval_of(a)
    if axis is None:
        return copy_array(shapes.reshape(_roll_along(ravel(a), shift, 0), aval.shape))
    axes = axis if isinstance(axis, (tuple, list)) else (axis,)
    if type(shift) is Tracer:
        shifts: Sequence[Any] = unstack(shift) if shift.atom.aval.ndim else (shift,)
    else:
        shifts = shift if isinstance(shift, (tuple, list)) else np.asarray(shift).ravel().tolist()
    if len(axes) != len(shifts):
        if 1 not in (len(axes), len(shifts)):
            raise AxisError(f"roll: shifts and axes must pair; got {shift} and {axis}")
        axes, shifts = tuple(axes) * len(shifts), tuple(shifts) * len(axes)
    for axis_i, shift_i in zip(axes, shifts, strict=True):
        a = _roll_along(a, shift_i, canonical_axis(axis_i, aval.ndim, "roll: axis"))
    return a


def _roll_along(a: Value, shift: ArrayOrList, axis: int) -> Value:
    n = aval_of(a).shape[axis]
    if type(shift) is Tracer:
        if not n:
            return a
        steps = ops.widen_index(shapes.reshape(shift, ()), 2 * n)
        start = ops.sub(n, ops.rem(ops.add(ops.rem(steps, n), n), n))
        starts = [start if d == axis else 0 for d in range(aval_of(a).ndim)]
        return ops.dynamic_slice(concatenation.concatenate([a, a], axis), starts, aval_of(a).shape)
    offset = shift if type(shift) is int else static_integers(shift, "roll: the shift").item()
    offset %= max(n, 1)
    if offset == 0:
        return a
    return concatenation.concatenate(
        [slice_along(a, n - offset, n, axis), slice_along(a, 0, n - offset, axis)], axis
    )


def _static_positions(name: str, obj: slice | ArrayOrList, n: int) -> NumPyArray:
    """`obj`, an int, a slice, integers or a mask, as non-negative indices into an axis of length `n`."""
    if isinstance(obj, slice):
        return np.arange(n)[obj]
    positions = static_integers(obj, f"{name}: the indices")
    if positions.dtype == np.bool_:
        if positions.shape != (n,):
            raise ShapeError(
                f"{name}: a mask must have the length of the axis, {n}; got {positions.shape}"
            )
        return np.flatnonzero(positions)
    limit = n + 1 if name == "insert" else n
    if (positions < -n).any() or (positions >= limit).any():
        raise ValueRangeError(
            f"{name}: indices must be in [{-n}, {limit}); got {positions.tolist()}"
        )
    return np.where(positions < 0, positions + n, positions)


def delete(
    arr: ArrayOrList,
    obj: slice | ArrayOrList,
    axis: int | None = None,
    *,
    assume_unique_indices: bool = False,
) -> Value:
    """`arr` without its elements at `obj` along `axis`; flattened first if `axis` is None.

    `obj` is an int, a slice, integers or a mask. A traced `obj` must be a single integer, or
    distinct integers, which `assume_unique_indices` promises.
    """
    arr, axis = array_and_axis("delete", arr, axis)
    n = aval_of(arr).shape[axis]
    if type(obj) is Tracer and obj.dtype.kind in "iu" and (assume_unique_indices or not obj.ndim):
        return gather_along(arr, _remaining_indices(ravel(obj), n), axis)
    return gather_static(arr, np.delete(np.arange(n), _static_positions("delete", obj, n)), axis)


def _remaining_indices(removed: Value, n: int) -> Value:
    """The integers below `n` that are not in `removed`, distinct traced integers."""
    from functx.numpy.sorting_and_searching import sort

    aval = aval_of(removed)
    wrapped = ops.rem(ops.add(removed, n), n)
    positions = ops.iota(aval.dtype, n - aval.size)
    # Each removed index, in ascending order, shifts the indices from there on by one.
    for index in unstack(sort(wrapped)):
        positions = ops.add(
            positions, ops.convert_element_type(ops.ge(positions, index), aval.dtype)
        )
    return positions


def insert(
    arr: ArrayOrList, obj: slice | ArrayOrList, values: ArrayOrList, axis: int | None = None
) -> Value:
    """`arr` with `values` inserted before the positions `obj` along `axis`.

    `obj` is an int, a slice, integers or a mask, known while tracing, or traced integers, which
    are clipped. `arr` is flattened first if `axis` is None.
    """
    (arr, axis), inserted = array_and_axis("insert", arr, axis), ensure_array(values)
    aval = aval_of(arr)
    n = aval.shape[axis]
    traced = type(obj) is Tracer and obj.dtype.kind in "iu"
    positions: Any = (
        _static_positions("insert", obj, n) if not traced else _traced_positions(obj, n)
    )
    if aval_of(inserted).dtype != aval.dtype:
        inserted = ops.convert_element_type(inserted, aval.dtype)
    shape = list(aval.shape)
    if positions.size == 1:
        if aval_of(inserted).ndim < aval.ndim:
            inserted = prepend_axes(inserted, aval.ndim)
        if positions.ndim == 0:
            inserted = shapes.moveaxis(inserted, 0, axis)
        shape[axis] = aval_of(inserted).shape[axis]
        positions = promotion.broadcast_to(positions.reshape(()), (shape[axis],))
    else:
        shape[axis] = positions.size
    inserted = promotion.broadcast_to(drop_leading_ones(inserted, aval.ndim), tuple(shape))
    joined = concatenation.concatenate([arr, inserted], axis)
    if traced:
        return gather_along(joined, _insertion_sources(positions, n), axis)
    positions = np.array(positions)
    order = np.argsort(positions, kind="stable")
    positions[order] += np.arange(len(positions))
    sources = np.empty(n + len(positions), np.int64)
    is_original = np.ones(len(sources), bool)
    is_original[positions] = False
    sources[is_original] = np.arange(n)
    sources[positions] = n + np.arange(len(positions))
    return gather_static(joined, sources, axis)


def _traced_positions(obj: Any, n: int) -> Value:
    """Traced integers as non-negative positions, clipped to [0, n]."""
    positions = ops.convert_element_type(obj, np.int32)
    positions = ops.select(ops.lt(positions, 0), ops.add(positions, n), positions)
    return arithmetic.max(arithmetic.min(positions, n), 0)


def _insertion_sources(positions: Value, n: int) -> Value:
    """The source index of each element after an insertion before `positions`.

    The sources are the `n` elements of the array, followed by the inserted ones.
    """
    from functx.numpy.sorting_and_searching import argsort, searchsorted, take_from_vector

    count = aval_of(positions).size
    size = n + count
    order = argsort(positions, stable=True)
    inserted = ops.add(take_from_vector(positions, order), np.arange(count, dtype=np.int32))
    target = np.arange(size, dtype=np.int32)
    inserted_before = ops.convert_element_type(searchsorted(inserted, target), np.int32)
    nearest = arithmetic.min(inserted_before, count - 1)
    is_new = ops.eq(take_from_vector(inserted, nearest), target)
    new_source = ops.add(ops.convert_element_type(take_from_vector(order, nearest), np.int32), n)
    return ops.select(is_new, new_source, ops.sub(target, inserted_before))


def resize(a: ArrayOrList, new_shape: ShapeLike) -> Value:
    """The elements of `a`, repeated as needed, in `new_shape`."""
    flat = flatten(a)
    shape = canonical_shape(new_shape, "resize: new_shape")
    available, size = aval_of(flat).size, prod(shape)
    if not available:
        return shapes.full(shape, literal(0, aval_of(flat).dtype))
    repetitions = -(-size // available)
    if repetitions > 1:
        flat = concatenation.concatenate([flat] * repetitions, 0)
    return shapes.reshape(slice_along(flat, 0, size, 0), shape)


@returns_new_array
def pad(
    array: ArrayOrList,
    pad_width: ArrayOrList | dict[int, Any],
    mode: str | Callable[..., Any] = "constant",
    **kwargs: ArrayOrList,
) -> Value:
    """`array` with `pad_width` elements added before and after along each axis.

    `pad_width` is one number, one pair, a pair for each axis, or a dict of them by axis.
    Modes: "constant" (`constant_values`, in the forms of `pad_width`, by default 0), "edge" (the
    outermost element), "reflect" and "symmetric" (mirrored without and with the outermost
    element; with `reflect_type="odd"`, twice the outermost element minus these), "wrap" (from the
    other end), "linear_ramp" (towards `end_values`, by default 0), "empty" (any value), and
    "maximum", "minimum", "mean" and "median" (of the `stat_length` outermost elements). A function
    `mode(vector, widths, axis, kwargs)` of each vector with its zeros changes it, or returns another.
    """
    array = ensure_array(array)
    aval = aval_of(array)
    by_function = callable(mode)
    allowed = _PAD_OPTIONS.get(mode) if isinstance(mode, str) else None
    if allowed is None and not by_function:
        raise ValueRangeError(f"pad: mode must be one of {', '.join(_PAD_OPTIONS)}; got {mode!r}")
    if allowed is not None and not kwargs.keys() <= allowed:
        raise ArgumentError(
            f"pad: the mode {mode!r} takes {' or '.join(map(repr, allowed)) or 'no option'}; got "
            f"{', '.join(map(repr, kwargs))}"
        )
    reflect_type = "even" if by_function else kwargs.get("reflect_type", "even")
    if reflect_type not in ("even", "odd"):
        raise ValueRangeError(f"pad: reflect_type must be 'even' or 'odd'; got {reflect_type!r}")
    if isinstance(pad_width, dict):
        by_axis = {
            canonical_axis(d, aval.ndim, "pad: axis"): w if is_sequence(w) else (w, w)
            for d, w in pad_width.items()
        }
        pad_width = [by_axis.get(d, (0, 0)) for d in range(aval.ndim)]
    widths = [
        (as_int("pad: widths", low), as_int("pad: widths", high))
        for low, high in _pairs_per_axis(pad_width, aval.ndim, "widths")
    ]
    if any(n < 0 for pair in widths for n in pair):
        raise ValueRangeError(f"pad: widths must not be negative; got {pad_width}")
    if callable(mode):
        return _pad_by_function(_pad_constant(array, widths, 0), widths, mode, kwargs)
    if mode in ("constant", "empty"):
        return _pad_constant(array, widths, kwargs.get("constant_values", 0))
    lengths = _pairs_per_axis(kwargs.get("stat_length"), aval.ndim, "lengths")
    ends = _pairs_per_axis(kwargs.get("end_values", 0), aval.ndim, "end_values")
    for axis, (low, high) in enumerate(widths):
        if not low and not high:
            continue
        if not aval.shape[axis]:
            raise ShapeError(
                f"pad: an axis without elements must be padded by a constant; got axis {axis} "
                f"of {aval!r} with mode {mode!r}"
            )
        if mode in _STATISTICS:
            array = _pad_by_statistic(mode, array, axis, (low, high), lengths[axis])
        elif mode == "linear_ramp":
            array = _pad_by_ramps(array, axis, (low, high), ends[axis])
        elif reflect_type == "odd":
            array = _pad_by_odd_reflection(mode, array, axis, low, high)
        else:
            array = _pad_by_elements(mode, array, axis, low, high)
    return array


_STATISTICS = ("maximum", "minimum", "mean", "median")
_PAD_OPTIONS: dict[str, set[str]] = {
    "constant": {"constant_values"},
    "empty": set(),
    "edge": set(),
    "reflect": {"reflect_type"},
    "symmetric": {"reflect_type"},
    "wrap": set(),
    "linear_ramp": {"end_values"},
    **{name: {"stat_length"} for name in _STATISTICS},
}


def _pairs_per_axis(value: object, ndim: int, what: str) -> list[tuple[Any, Any]]:
    """A pair for each axis, from one value, one pair, or a value or pair for each axis."""
    if not is_sequence(value):
        return [(value, value)] * ndim
    items = list(value)
    if not any(is_sequence(item) for item in items):
        # NumPy reads two numbers as one pair for all axes.
        if len(items) == 2:
            return [(items[0], items[1])] * ndim
        items = [items]
    if len(items) == 1:
        items *= ndim
    pairs = [tuple(item) if is_sequence(item) else (item,) for item in items]
    if len(pairs) != ndim or any(len(pair) not in (1, 2) for pair in pairs):
        raise ValueRangeError(
            f"pad: {what} must be one number, a pair, or a pair for each of {ndim} axes; "
            f"got {value}"
        )
    return [(pair[0], pair[-1]) for pair in pairs]


def _pad_by_function(
    padded: Value,
    widths: Sequence[tuple[int, int]],
    fill: Callable[..., Any],
    options: dict[str, Any],
) -> Value:
    """`padded` with each vector along each axis changed by `fill(vector, widths, axis, options)`."""
    from functx.numpy.vectorization import apply_along_axis

    for axis, pair in enumerate(widths):

        def changed(vector: Value, pair: tuple[int, int] = pair, axis: int = axis) -> Value:
            vector = copy_array(vector)
            returned = fill(vector, pair, axis, options)
            return vector if returned is None else returned

        padded = apply_along_axis(changed, axis, padded)
    return padded


def _pad_constant(array: Value, widths: list[tuple[int, int]], values: ArrayOrList) -> Value:
    if not is_sequence(values):
        config_all = tuple([(low, high, 0) for low, high in widths])
        return concatenation.pad(array, _fill_value(values, array), config_all)
    for axis, pair in enumerate(_pairs_per_axis(values, len(widths), "constant_values")):
        for side, value in enumerate(pair):
            config = [(0, 0, 0)] * len(widths)
            width = widths[axis][side]
            config[axis] = (0, width, 0) if side else (width, 0, 0)
            array = concatenation.pad(array, _fill_value(value, array), tuple(config))
    return array


def _fill_value(value: ArrayOrList, like: Value) -> Value:
    if type(value) in PYTHON_SCALARS:
        value = np.asarray(value).astype(aval_of(like).dtype).item()
        return promotion.number_literal_like(value, like)
    return ops.convert_element_type(operand(value), aval_of(like).dtype)


def _pad_by_elements(mode: str, x: Value, axis: int, low: int, high: int) -> Value:
    """`x` padded with `low` and `high` of its own elements, chosen by NumPy's `mode`."""
    n = aval_of(x).shape[axis]
    indices = np.pad(np.arange(n), (low, high), mode=mode)  # type: ignore[call-overload]
    outside = index_runs(indices[:low].tolist()), index_runs(indices[low + n :].tolist())
    if len(outside[0]) + len(outside[1]) > 8:
        return gather_along(x, indices.astype(np.int32), axis)
    before, after = ([slice_run(x, run, axis) for run in runs] for runs in outside)
    return concatenate_or_empty([*before, x, *after], x, axis)


def _pad_by_odd_reflection(mode: str, x: Value, axis: int, low: int, high: int) -> Value:
    """`x` padded with its elements turned by half a turn about the outermost ones, as often as needed."""
    from functx.numpy import operators

    n = aval_of(x).shape[axis]
    period = n - 1 if mode == "reflect" else n
    if not period:
        return _pad_by_elements("edge", x, axis, low, high)
    while low or high:
        n, before, after = aval_of(x).shape[axis], min(low, period), min(high, period)
        mirrored = _pad_by_elements(mode, x, axis, before, after)
        first, last = slice_along(x, 0, 1, axis), slice_along(x, n - 1, n, axis)
        sides = (
            (first, slice_along(mirrored, 0, before, axis)),
            (last, slice_along(mirrored, before + n, before + n + after, axis)),
        )
        left, right = [operators.subtract(operators.multiply(end, 2), part) for end, part in sides]
        x = concatenate_or_empty([left, x, right], x, axis)
        low, high = low - before, high - after
    return x


def _pad_by_ramps(
    x: Value, axis: int, widths: tuple[int, int], ends: tuple[ArrayOrList, ArrayOrList]
) -> Value:
    """`x` padded with evenly spaced numbers from the `ends` to its first and to its last elements."""
    from functx.numpy import array_creation

    def ramp(place: int, width: int, end: ArrayOrList) -> Value:
        edge = ops.squeeze(slice_along(x, place, place + 1, axis), (axis,))
        dtype = aval_of(x).dtype
        return array_creation.linspace(end, edge, width, False, dtype=dtype, axis=axis)  # type: ignore[no-any-return]

    last = aval_of(x).shape[axis] - 1
    before, after = ramp(0, widths[0], ends[0]), ramp(last, widths[1], ends[1])
    return concatenate_or_empty([before, x, flip(after, axis)], x, axis)


def _pad_by_statistic(
    mode: str, x: Value, axis: int, widths: tuple[int, int], counts: tuple[Any, Any]
) -> Value:
    """`x` padded with a statistic of its first and of its last elements."""
    before, after = [
        _edge_statistic(mode, x, axis, width, count, end)
        for width, count, end in zip(widths, counts, (False, True), strict=True)
    ]
    return concatenate_or_empty([*before, x, *after], x, axis)


def _edge_statistic(
    mode: str, x: Value, axis: int, width: int, count: int | None, end: bool
) -> list[Value]:
    """The padding before `x`, or after it at the `end`: a statistic of its outermost elements."""
    from functx.numpy import floating_point, reductions, statistics

    if not width:
        return []
    shape = aval_of(x).shape
    n = shape[axis]
    count = n if count is None else min(as_int("pad: stat_length", count), n)
    if count < 1:
        raise ValueRangeError(f"pad: stat_length must be positive; got {count}")
    outermost = slice_along(x, n - count, n, axis) if end else slice_along(x, 0, count, axis)
    functions: dict[str, Any] = {
        "maximum": reductions.max,
        "minimum": reductions.min,
        "mean": reductions.mean,
        "median": statistics.median,
    }
    value = functions[mode](outermost, axis=axis, keepdims=True)
    dtype = aval_of(x).dtype
    if aval_of(value).dtype != dtype:
        rounded = value if dtype.kind == "b" else floating_point.round(value)
        value = ops.convert_element_type(rounded, dtype)
    shape = (*shape[:axis], width, *shape[axis + 1 :])
    return [ops.broadcast_in_dim(value, shape, tuple(range(len(shape))))]
