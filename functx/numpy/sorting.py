"""Arrays put in order, and ordered arrays searched."""

from __future__ import annotations

from typing import Any

import numpy as np
from ml_dtypes import finfo

from functx.core.dtypes import complex_dtype
from functx.core.errors import ArgumentError, ShapeError, ValueRangeError
from functx.core.tracing import Tracer, aval_of
from functx.numpy import choices, operators, whole_numbers
from functx.numpy.creation import INT
from functx.numpy.joining import concatenate, gather_along, unstack
from functx.numpy.promotion import broadcast_to, promote, promote_inexact
from functx.numpy.shapes import ensure_array, ravel
from functx.ops import searching, shaping
from functx.ops.arithmetic import sub
from functx.ops.conversion import convert_element_type
from functx.ops.operands import canonical_axis
from functx.ops.selection import select
from functx.ops.slicing import slice as slice_
from functx.ops.sorting import Sort
from functx.ops.sorting import sort as sorted_along

__all__ = [
    "argpartition",
    "argsort",
    "digitize",
    "interp",
    "lexsort",
    "partition",
    "searchsorted",
    "sort",
    "sort_complex",
]


def _sort_operand(name: str, a: Any, axis: int | None, kind: Any, order: Any) -> tuple[Any, int]:
    """The array to put in order, and the axis."""
    if order is not None:
        raise ArgumentError(
            f"{name}: order must be None, for want of arrays with fields; got {order!r}"
        )
    if kind not in (None, "quicksort", "mergesort", "heapsort", "stable"):
        raise ValueRangeError(f"{name}: kind must be one of NumPy's; got {kind!r}")
    a = ensure_array(a)
    if axis is None:
        return ravel(a), 0
    return a, canonical_axis(axis, aval_of(a).ndim, f"{name}: axis")


def sort(
    a: Any,
    axis: int | None = -1,
    *,
    kind: str | None = None,
    order: None = None,
    stable: bool = True,
    descending: bool = False,
) -> Any:
    """The elements of `a` in ascending order along `axis`, nan last; flattened where it is None.

    The order is stable whatever `kind` and `stable` say.
    """
    a, along = _sort_operand("sort", a, axis, kind, order)
    result = sorted_along(a, along)
    return shaping.rev(result, (along,)) if descending else result


def argsort(
    a: Any,
    axis: int | None = -1,
    *,
    kind: str | None = None,
    order: None = None,
    stable: bool = True,
    descending: bool = False,
    dtype: Any = None,
) -> Any:
    """Where the elements of `a` in ascending order along `axis` are, nan last.

    Elements that tie keep their order, in descending order too.
    """
    a, along = _sort_operand("argsort", a, axis, kind, order)
    if descending:
        a = shaping.rev(a, (along,))
    places = Sort(along, 1, True, True)(a)[-1]
    if descending:
        places = sub(aval_of(a).shape[along] - 1, shaping.rev(places, (along,)))
    return convert_element_type(places, INT if dtype is None else dtype)


def lexsort(keys: Any, axis: int = -1) -> Any:
    """Where the elements in order of the last of `keys` are, ties decided by those before it."""
    arrays = keys if isinstance(keys, (list, tuple)) else unstack(keys)
    if not arrays:
        raise ValueRangeError("lexsort: there must be at least one key; got none")
    arrays = [ensure_array(key) for key in arrays]
    avals = [aval_of(key) for key in arrays]
    if any(aval.shape != avals[0].shape for aval in avals):
        raise ShapeError("lexsort: keys must have one shape; got " + " and ".join(map(repr, avals)))
    if not avals[0].ndim:
        return convert_element_type(ensure_array(0), INT)
    along = canonical_axis(axis, avals[0].ndim, "lexsort: axis")
    places = Sort(along, len(arrays), True, True)(*arrays[::-1])[-1]
    return convert_element_type(places, INT)


def sort_complex(a: Any) -> Any:
    """The elements of `a` as complex numbers, in order of real, then of imaginary parts."""
    a = ensure_array(a)
    return sort(convert_element_type(a, complex_dtype(aval_of(a).dtype)))


def partition(a: Any, kth: Any, axis: int | None = -1) -> Any:
    """`a` with the element at `kth` along `axis` where it would be in order.

    Smaller ones lie before it and larger ones after it: here, all are in order.
    """
    a, along = _sort_operand("partition", a, axis, None, None)
    _check_kth("partition", kth, aval_of(a).shape[along])
    return sorted_along(a, along)


def argpartition(a: Any, kth: Any, axis: int | None = -1) -> Any:
    """Where the elements are that `partition` puts in their places."""
    a, along = _sort_operand("argpartition", a, axis, None, None)
    _check_kth("argpartition", kth, aval_of(a).shape[along])
    return argsort(a, along, dtype=np.int32)


def _check_kth(name: str, kth: Any, n: int) -> None:
    for k in kth if isinstance(kth, (tuple, list)) else (kth,):
        canonical_axis(k, n, f"{name}: kth")


_METHODS = ("scan", "scan_unrolled", "sort", "compare_all")


def searchsorted(
    a: Any, v: Any, side: str = "left", sorter: Any = None, *, method: str = "scan"
) -> Any:
    """Where in the ordered vector `a` each element of `v` can be put in, keeping the order.

    Before elements equal to it with the side "left", after them with "right". `sorter` holds
    the places of the elements of `a` in order where `a` is not. `method` is how to search:
    "scan" and "scan_unrolled" halve, "sort" puts all in order, "compare_all" compares all.
    """
    if side not in ("left", "right"):
        raise ValueRangeError(f'searchsorted: side must be "left" or "right"; got {side!r}')
    if method not in _METHODS:
        raise ValueRangeError(f"searchsorted: method must be one of {_METHODS}; got {method!r}")
    a, v = (ensure_array(x) for x in promote(a, v))
    if sorter is not None:
        a = take_from_vector(a, ensure_array(sorter))
    return searching.searchsorted(a, v, side, method)


def digitize(x: Any, bins: Any, right: bool = False, *, method: str | None = None) -> Any:
    """Which of the `bins`, in ascending or descending order, each element of `x` falls in.

    An element on the edge of a bin is in the one above, or in the one below with `right`.
    """
    x, bins = ensure_array(x), ensure_array(bins)
    aval = aval_of(bins)
    if aval.ndim != 1:
        raise ShapeError(f"digitize: bins must be a vector; got {aval!r}")
    n, side, how = aval.size, "left" if right else "right", method or "scan"
    if n < 2:
        return searchsorted(bins, x, side, method=how)
    if type(bins) is not Tracer:
        ascending: Any = bool(bins[-1] >= bins[0])
        if ascending:
            return searchsorted(bins, x, side, method=how)
    descending = sub(n, searchsorted(shaping.rev(bins, (0,)), x, side, method=how))
    if type(bins) is not Tracer:
        return descending
    ascending = operators.greater_equal(take_from_vector(bins, n - 1), take_from_vector(bins, 0))
    return select(ascending, searchsorted(bins, x, side, method=how), descending)


def take_from_vector(x: Any, places: Any) -> Any:
    """The elements of the vector `x` at `places`, an integer or any array of them."""
    if isinstance(places, int):
        return shaping.reshape(slice_(x, (places,), (places + 1,)), ())
    return shaping.reshape(gather_along(x, ravel(places), 0), aval_of(places).shape)


def interp(
    x: Any, xp: Any, fp: Any, left: Any = None, right: Any = None, period: Any = None
) -> Any:
    """The values at `x` of the line through the points `xp`, ascending, and `fp`.

    Outside the points the values are `left` and `right`, those of the outermost points by
    default, or extrapolated where these are "extrapolate". With `period`, `x` and `xp` are
    taken around a circle of that length.
    """
    x, xp = promote_inexact(x, xp)
    (fp,) = promote_inexact(fp)
    if aval_of(xp).ndim != 1 or aval_of(xp).shape != aval_of(fp).shape or not aval_of(xp).size:
        raise ShapeError(
            f"interp: xp and fp must be vectors of one length; got {aval_of(xp)!r} and {aval_of(fp)!r}"
        )
    if period is not None:
        x, xp, fp = _periodic_points(x, xp, fp, period)
        left = right = "extrapolate"
    n = aval_of(xp).size
    if n == 1:
        line = broadcast_to(fp, aval_of(x).shape or (1,))
        line = shaping.reshape(line, aval_of(x).shape)
    else:
        above = choices.clip(searchsorted(xp, x, "right"), 1, n - 1)
        below = sub(above, 1)
        start, value = take_from_vector(xp, below), take_from_vector(fp, below)
        width = operators.subtract(take_from_vector(xp, above), start)
        # Points that coincide have no line between them, and 0 / 0 would spoil derivatives.
        least = float(np.spacing(finfo(aval_of(width).dtype).eps))
        same = operators.less_equal(operators.absolute(width), least)
        part = operators.divide(operators.subtract(x, start), choices.where(same, 1, width))
        rise = operators.multiply(part, operators.subtract(take_from_vector(fp, above), value))
        line = choices.where(same, value, operators.add(value, rise))
    if not _extrapolates("left", left):
        line = choices.where(
            operators.less(x, take_from_vector(xp, 0)),
            take_from_vector(fp, 0) if left is None else left,
            line,
        )
    if not _extrapolates("right", right):
        last = take_from_vector(fp, n - 1) if right is None else right
        line = choices.where(operators.greater(x, take_from_vector(xp, n - 1)), last, line)
    return line


def _extrapolates(name: str, outside: Any) -> bool:
    if not isinstance(outside, str):
        return False
    if outside != "extrapolate":
        raise ValueRangeError(f'interp: {name} must be a number or "extrapolate"; got {outside!r}')
    return True


def _periodic_points(x: Any, xp: Any, fp: Any, period: Any) -> tuple[Any, Any, Any]:
    """The points in order within one period, with one more on either side."""
    if type(period) is not Tracer and not np.all(np.asarray(period) != 0):
        raise ValueRangeError(f"interp: period must not be zero; got {period}")
    period = operators.absolute(period)
    x, xp = whole_numbers.remainder(x, period), whole_numbers.remainder(xp, period)
    n = aval_of(xp).size
    xp, places = Sort(0, 1, True, True)(xp)
    fp = take_from_vector(fp, places)

    def ends(v: Any, shift: Any) -> list[Any]:
        first, last = take_from_vector(v, 0), take_from_vector(v, n - 1)
        if shift is not None:
            first, last = operators.add(first, shift), operators.subtract(last, shift)
        return [shaping.reshape(last, (1,)), v, shaping.reshape(first, (1,))]

    return x, concatenate(ends(xp, period)), concatenate(ends(fp, None))
