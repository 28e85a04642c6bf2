"""Elements put around an array."""

from __future__ import annotations

from typing import Any

import numpy as np

from functx.core.errors import ArgumentError, ShapeError, ValueRangeError
from functx.core.tracing import aval_of
from functx.numpy import promotion
from functx.numpy.joining import (
    concatenate_or_empty,
    gather_along,
    index_runs,
    slice_along,
    slice_run,
)
from functx.numpy.promotion import operand, returns_new_array
from functx.numpy.shapes import ensure_array, is_sequence, static_integer
from functx.ops import joining
from functx.ops.conversion import convert_element_type
from functx.ops.operands import PYTHON_SCALARS, canonical_axis
from functx.ops.shaping import broadcast_in_dim

__all__ = [
    "pad",
]


@returns_new_array
def pad(array: Any, pad_width: Any, mode: str = "constant", **kwargs: Any) -> Any:
    """`array` with `pad_width` more elements before and after along each axis.

    The widths are one number, one pair, a pair for each axis, or a dict of them by axis.
    Modes: "constant" (`constant_values`, laid out like the widths, 0 by default), "edge" (the
    outermost element), "reflect" and "symmetric" (mirrored without and with the outermost
    element), "wrap" (from the other end), "empty" (any value), and "maximum", "minimum" and
    "mean" (of the `stat_length` outermost elements).
    """
    array = ensure_array(array)
    aval = aval_of(array)
    allowed = _PAD_OPTIONS.get(mode) if isinstance(mode, str) else None
    if allowed is None:
        raise ValueRangeError(f"pad: mode must be one of {', '.join(_PAD_OPTIONS)}; got {mode!r}")
    if not kwargs.keys() <= allowed:
        raise ArgumentError(
            f"pad: the mode {mode!r} takes the options {allowed}; got {set(kwargs)}"
        )
    if isinstance(pad_width, dict):
        by_axis = {canonical_axis(d, aval.ndim, "pad: axis"): w for d, w in pad_width.items()}
        pad_width = [by_axis.get(d, 0) for d in range(aval.ndim)]
    widths = [
        (static_integer(low, "pad: widths"), static_integer(high, "pad: widths"))
        for low, high in _pairs_per_axis(pad_width, aval.ndim, "widths")
    ]
    if any(n < 0 for pair in widths for n in pair):
        raise ValueRangeError(f"pad: widths must not be negative; got {pad_width}")
    if mode in ("constant", "empty"):
        return _pad_constant(array, widths, kwargs.get("constant_values", 0))
    lengths = _pairs_per_axis(kwargs.get("stat_length"), aval.ndim, "lengths")
    for axis, (low, high) in enumerate(widths):
        if (low or high) and not aval.shape[axis]:
            raise ShapeError(
                f"pad: an axis without elements must be padded by a constant; got axis {axis} "
                f"of {aval!r} with mode {mode!r}"
            )
        if mode in _STATISTICS:
            array = _pad_by_statistic(mode, array, axis, (low, high), lengths[axis])
        else:
            array = _pad_by_elements(mode, array, axis, low, high)
    return array


_STATISTICS = ("maximum", "minimum", "mean")
_PAD_OPTIONS: dict[str, set[str]] = {
    "constant": {"constant_values"},
    "empty": set(),
    "edge": set(),
    "reflect": set(),
    "symmetric": set(),
    "wrap": set(),
    **{name: {"stat_length"} for name in _STATISTICS},
}


def _pairs_per_axis(value: Any, ndim: int, what: str) -> list[tuple[Any, Any]]:
    """A pair for each axis, from one value, one pair, or one of either for each axis."""
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


def _pad_constant(array: Any, widths: list[tuple[int, int]], values: Any) -> Any:
    if not is_sequence(values):
        whole = tuple([(low, high, 0) for low, high in widths])
        return joining.pad(array, _fill_value(values, array), whole)
    for axis, pair in enumerate(_pairs_per_axis(values, len(widths), "constant_values")):
        for side, value in enumerate(pair):
            config = [(0, 0, 0)] * len(widths)
            width = widths[axis][side]
            config[axis] = (0, width, 0) if side else (width, 0, 0)
            array = joining.pad(array, _fill_value(value, array), tuple(config))
    return array


def _fill_value(value: Any, like: Any) -> Any:
    if type(value) in PYTHON_SCALARS:
        value = np.asarray(value).astype(aval_of(like).dtype).item()
        return promotion.number_literal_like(value, like)
    return convert_element_type(operand(value), aval_of(like).dtype)


def _pad_by_elements(mode: str, x: Any, axis: int, low: int, high: int) -> Any:
    """`x` between `low` and `high` elements of its own, those that NumPy chooses by `mode`."""
    n = aval_of(x).shape[axis]
    indices = np.pad(np.arange(n), (low, high), mode=mode)  # type: ignore[call-overload]
    outside = index_runs(indices[:low].tolist()), index_runs(indices[low + n :].tolist())
    if len(outside[0]) + len(outside[1]) > 8:
        return gather_along(x, indices.astype(np.int32), axis)
    before, after = ([slice_run(x, run, axis) for run in runs] for runs in outside)
    return concatenate_or_empty([*before, x, *after], x, axis)


def _pad_by_statistic(
    mode: str, x: Any, axis: int, widths: tuple[int, int], counts: tuple[Any, Any]
) -> Any:
    """`x` between copies of a statistic of its first, and of its last elements."""
    before, after = [
        _edge_statistic(mode, x, axis, width, count, end)
        for width, count, end in zip(widths, counts, (False, True), strict=True)
    ]
    return concatenate_or_empty([*before, x, *after], x, axis)


def _edge_statistic(mode: str, x: Any, axis: int, width: int, count: Any, end: bool) -> list[Any]:
    """What stands before (after, at the `end`) `x`: a statistic of its outermost elements."""
    from functx.numpy import averages, reductions, whole_numbers

    if not width:
        return []
    shape = aval_of(x).shape
    n = shape[axis]
    count = n if count is None else min(static_integer(count, "pad: stat_length"), n)
    if count < 1:
        raise ValueRangeError(f"pad: stat_length must be positive; got {count}")
    outermost = slice_along(x, n - count, n, axis) if end else slice_along(x, 0, count, axis)
    functions: dict[str, Any] = {
        "maximum": reductions.max,
        "minimum": reductions.min,
        "mean": averages.mean,
    }
    value = functions[mode](outermost, axis=axis, keepdims=True)
    dtype = aval_of(x).dtype
    if aval_of(value).dtype != dtype:
        whole = value if dtype.kind == "b" else whole_numbers.round(value)
        value = convert_element_type(whole, dtype)
    shape = (*shape[:axis], width, *shape[axis + 1 :])
    return [broadcast_in_dim(value, shape, tuple(range(len(shape))))]
