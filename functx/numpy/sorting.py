"""Arrays put in order, searched, counted, and taken as sets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from functx.core.concrete import concrete
from functx.core.dtypes import canonical_dtype, complex_dtype, is_inexact
from functx.core.errors import (
    ArgumentError,
    ConcretizationError,
    ShapeError,
    ValueRangeError,
)
from functx.core.tracing import Tracer, aval_of
from functx.numpy import choices, operators, whole_numbers
from functx.numpy.indexing import index
from functx.numpy.joining import concatenate, take_along
from functx.numpy.promotion import broadcast_to, promote, promote_inexact
from functx.numpy.shapes import as_array, ravel
from functx.ops import searching, shaping
from functx.ops.arithmetic import add, rem, sub
from functx.ops.comparison import eq, lt, ne
from functx.ops.conversion import convert_element_type
from functx.ops.creation import iota
from functx.ops.cumulative import cumsum
from functx.ops.logical import bitwise_and, bitwise_not, bitwise_or
from functx.ops.operands import canonical_axes, canonical_axis, canonical_shape, literal
from functx.ops.reductions import reduce_or
from functx.ops.selection import select
from functx.ops.slicing import slice as slice_
from functx.ops.sorting import Sort
from functx.ops.sorting import sort as sorted_along

__all__ = [
    "argpartition",
    "argsort",
    "argwhere",
    "compress",
    "digitize",
    "extract",
    "flatnonzero",
    "interp",
    "intersect1d",
    "isin",
    "lexsort",
    "nonzero",
    "partition",
    "searchsorted",
    "setdiff1d",
    "setxor1d",
    "sort",
    "sort_complex",
    "trim_zeros",
    "union1d",
    "unique",
    "unique_all",
    "unique_counts",
    "unique_inverse",
    "unique_values",
]

INT = np.dtype("int64")


def _along(name: str, a: Any, axis: int | None, kind: Any, order: Any) -> tuple[Any, int]:
    """The array to put in order, and the axis."""
    if order is not None:
        raise ArgumentError(
            f"{name}: order must be None, for want of arrays with fields; got {order!r}"
        )
    if kind not in (None, "quicksort", "mergesort", "heapsort", "stable"):
        raise ValueRangeError(f"{name}: kind must be one of NumPy's; got {kind!r}")
    a = as_array(a)
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
    a, along = _along("sort", a, axis, kind, order)
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
    a, along = _along("argsort", a, axis, kind, order)
    if descending:
        a = shaping.rev(a, (along,))
    places = Sort(along, 1, True, True)(a)[-1]
    if descending:
        places = sub(aval_of(a).shape[along] - 1, shaping.rev(places, (along,)))
    return convert_element_type(places, INT if dtype is None else dtype)


def lexsort(keys: Any, axis: int = -1) -> Any:
    """Where the elements in order of the last of `keys` are, ties decided by those before it."""
    arrays = keys if isinstance(keys, (list, tuple)) else _rows(keys)
    if not arrays:
        raise ValueRangeError("lexsort: there must be at least one key; got none")
    arrays = [as_array(key) for key in arrays]
    avals = [aval_of(key) for key in arrays]
    if any(aval.shape != avals[0].shape for aval in avals):
        raise ShapeError("lexsort: keys must have one shape; got " + " and ".join(map(repr, avals)))
    if not avals[0].ndim:
        return convert_element_type(as_array(0), INT)
    along = canonical_axis(axis, avals[0].ndim, "lexsort: axis")
    places = Sort(along, len(arrays), True, True)(*arrays[::-1])[-1]
    return convert_element_type(places, INT)


def _rows(x: Any) -> Sequence[Any]:
    from functx.numpy.joining import unstack

    return unstack(x)


def sort_complex(a: Any) -> Any:
    """The elements of `a` as complex numbers, in order of real, then of imaginary parts."""
    a = as_array(a)
    return sort(convert_element_type(a, complex_dtype(aval_of(a).dtype)))


def partition(a: Any, kth: Any, axis: int | None = -1) -> Any:
    """`a` with the element at `kth` along `axis` where it would be in order.

    Smaller ones lie before it and larger ones after it: here, all are in order.
    """
    a, along = _along("partition", a, axis, None, None)
    _check_kth("partition", kth, aval_of(a).shape[along])
    return sorted_along(a, along)


def argpartition(a: Any, kth: Any, axis: int | None = -1) -> Any:
    """Where the elements are that `partition` puts in their places."""
    a, along = _along("argpartition", a, axis, None, None)
    _check_kth("argpartition", kth, aval_of(a).shape[along])
    return argsort(a, along, dtype=np.int32)


def _check_kth(name: str, kth: Any, n: int) -> None:
    for k in kth if isinstance(kth, (tuple, list)) else (kth,):
        canonical_axis(k, n, f"{name}: kth")


# Searching.

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
    a, v = (as_array(x) for x in promote(a, v))
    if sorter is not None:
        a = _at(a, as_array(sorter))
    return searching.searchsorted(a, v, side, method)


def digitize(x: Any, bins: Any, right: bool = False, *, method: str | None = None) -> Any:
    """Which of the `bins`, in ascending or descending order, each element of `x` falls in.

    An element on the edge of a bin is in the one above, or in the one below with `right`.
    """
    x, bins = as_array(x), as_array(bins)
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
    ascending = operators.greater_equal(_at(bins, n - 1), _at(bins, 0))
    return select(ascending, searchsorted(bins, x, side, method=how), descending)


def _at(x: Any, places: Any) -> Any:
    """The elements of the vector `x` at `places`, an integer or any array of them."""
    if isinstance(places, int):
        return shaping.reshape(slice_(x, (places,), (places + 1,)), ())
    return shaping.reshape(take_along(x, ravel(places), 0), aval_of(places).shape)


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
        x, xp, fp = _around(x, xp, fp, period)
        left = right = "extrapolate"
    n = aval_of(xp).size
    if n == 1:
        line = broadcast_to(fp, aval_of(x).shape or (1,))
        line = shaping.reshape(line, aval_of(x).shape)
    else:
        above = choices.clip(searchsorted(xp, x, "right"), 1, n - 1)
        below = sub(above, 1)
        start, value = _at(xp, below), _at(fp, below)
        width = operators.subtract(_at(xp, above), start)
        # Points that coincide have no line between them, and 0 / 0 would spoil derivatives.
        least = float(np.spacing(np.finfo(np.dtype(aval_of(width).dtype)).eps))
        same = operators.less_equal(operators.absolute(width), least)
        part = operators.divide(operators.subtract(x, start), choices.where(same, 1, width))
        rise = operators.multiply(part, operators.subtract(_at(fp, above), value))
        line = choices.where(same, value, operators.add(value, rise))
    if not _extrapolates("left", left):
        line = choices.where(
            operators.less(x, _at(xp, 0)), _at(fp, 0) if left is None else left, line
        )
    if not _extrapolates("right", right):
        last = _at(fp, n - 1) if right is None else right
        line = choices.where(operators.greater(x, _at(xp, n - 1)), last, line)
    return line


def _extrapolates(name: str, outside: Any) -> bool:
    if not isinstance(outside, str):
        return False
    if outside != "extrapolate":
        raise ValueRangeError(f'interp: {name} must be a number or "extrapolate"; got {outside!r}')
    return True


def _around(x: Any, xp: Any, fp: Any, period: Any) -> tuple[Any, Any, Any]:
    """The points in order within one period, with one more on either side."""
    if type(period) is not Tracer and not np.all(np.asarray(period) != 0):
        raise ValueRangeError(f"interp: period must not be zero; got {period}")
    period = operators.absolute(period)
    x, xp = whole_numbers.remainder(x, period), whole_numbers.remainder(xp, period)
    n = aval_of(xp).size
    xp, places = Sort(0, 1, True, True)(xp)
    fp = _at(fp, places)

    def ends(v: Any, shift: Any) -> list[Any]:
        first, last = _at(v, 0), _at(v, n - 1)
        if shift is not None:
            first, last = operators.add(first, shift), operators.subtract(last, shift)
        return [shaping.reshape(last, (1,)), v, shaping.reshape(first, (1,))]

    return x, concatenate(ends(xp, period)), concatenate(ends(fp, None))


# What holds where. Without `size` the shape of the result depends on values, which must be known.


def _known(mask: Any, name: str) -> np.ndarray[Any, Any]:
    """The value of `mask`, which decides how many results there are."""
    if type(mask) is not Tracer:
        return np.asarray(mask)
    try:
        return concrete(mask, f"{name} without `size`")  # type: ignore[no-any-return]
    except ConcretizationError as error:
        error.fix = (
            f"Give {name} the number of results, `size`, and `fill_value` for those left over."
        )
        raise


def _size(size: Any) -> int:
    return canonical_shape((size,), "size")[0]


def _truth(a: Any) -> Any:
    dtype = aval_of(a).dtype
    return a if dtype == np.bool_ else ne(a, literal(0, dtype))


def _places(mask: Any, size: int) -> tuple[Any, Any]:
    """Where the first `size` of a vector's true elements are, and which of them there are.

    Those left over lie beyond the end.
    """
    n = aval_of(mask).size
    if not n:
        nothing = shaping.full((size,), literal(0, canonical_dtype(INT)))
        return nothing, shaping.full((size,), literal(False, np.dtype(bool)))
    counts = cumsum(convert_element_type(mask, INT), 0)
    # The k-th true element is the first with k of them up to there.
    wanted = add(iota(INT, size), 1)
    places = convert_element_type(searching.searchsorted(counts, wanted), INT)
    return places, lt(places, n)


def nonzero(a: Any, *, size: int | None = None, fill_value: Any = None) -> tuple[Any, ...]:
    """Where the elements of `a` are not zero: an array of indices for each dimension.

    With `size` there are so many, those left over `fill_value` (0; a tuple gives each
    dimension its own). Without it the elements must be known while tracing.
    """
    a = as_array(a)
    shape = aval_of(a).shape
    if not shape:
        raise ShapeError(
            f"nonzero: the array must have a dimension; got {aval_of(a)!r}",
            fix="Give it one with atleast_1d.",
        )
    if size is None:
        found = np.nonzero(_known(_truth(a), "nonzero"))
        return tuple([as_array(places.astype(canonical_dtype(INT))) for places in found])
    places, there = _places(ravel(_truth(a)), _size(size))
    fills = fill_value if isinstance(fill_value, tuple) else (fill_value,) * len(shape)
    if len(fills) != len(shape):
        raise ShapeError(
            f"nonzero: fill_value must be one, or one a dimension; got {fill_value} for {aval_of(a)!r}"
        )
    results = []
    for n, fill in zip(reversed(shape), reversed(fills), strict=True):
        index = rem(places, max(n, 1)) if len(shape) > 1 else places
        places = whole_numbers.floor_divide(places, max(n, 1)) if len(shape) > 1 else places
        fill = 0 if fill is None else fill
        fill = convert_element_type(as_array(fill), INT)
        results.append(select(there, index, shaping.full((), fill)))
    return tuple(results[::-1])


def trim_zeros(filt: Any, trim: str = "fb", axis: Any = None) -> Any:
    """`filt` without the zeros at its front ("f" in `trim`) and at its back ("b"), as a view.

    Along `axis`, one or several, or along all. The elements must be known while tracing, since they decide the shape.
    """
    filt = as_array(filt)
    shape = aval_of(filt).shape
    sides = trim.lower()
    if not set(sides) <= {*"fb"}:
        raise ValueRangeError(f'trim_zeros: trim must be made of "f" and "b"; got {trim!r}')
    places = np.argwhere(_known(_truth(filt), "trim_zeros"))
    kept = [slice(None)] * len(shape)
    for d in canonical_axes(axis, len(shape), "trim_zeros: axis"):
        along = places[:, d].tolist()
        start = min(along, default=shape[d]) if "f" in sides else None
        kept[d] = slice(start, max(along, default=-1) + 1 if "b" in sides else None)
    return index(filt, tuple(kept))


def flatnonzero(a: Any, *, size: int | None = None, fill_value: Any = None) -> Any:
    """Where in the flattened array the elements are not zero; `size` as for `nonzero`."""
    return nonzero(ravel(a), size=size, fill_value=fill_value)[0]


def argwhere(a: Any, *, size: int | None = None, fill_value: Any = None) -> Any:
    """Where the elements of `a` are not zero, a row of indices for each; `size` as for `nonzero`."""
    from functx.numpy.joining import stack

    a = as_array(a)
    if not aval_of(a).ndim:
        count = flatnonzero(a, size=size, fill_value=fill_value)
        return shaping.full((aval_of(count).size, 0), literal(0, canonical_dtype(INT)))
    return stack(nonzero(a, size=size, fill_value=fill_value), axis=1)


def compress(
    condition: Any, a: Any, axis: int | None = None, *, size: int | None = None, fill_value: Any = 0
) -> Any:
    """The parts of `a` along `axis` where the vector `condition` holds.

    `a` is flattened where `axis` is None. `size` as for `nonzero`.
    """
    condition, a = as_array(condition), as_array(a)
    if aval_of(condition).ndim != 1:
        raise ShapeError(f"compress: the condition must be a vector; got {aval_of(condition)!r}")
    if axis is None:
        a, axis = ravel(a), 0
    aval = aval_of(a)
    axis = canonical_axis(axis, aval.ndim, "compress: axis")
    n = aval.shape[axis]
    mask = _truth(condition)
    if size is None:
        known = np.flatnonzero(_known(mask, "compress"))
        if known.size and known[-1] >= n:
            raise ValueRangeError(
                f"compress: the condition must not hold beyond the axis; got index {known[-1]} for {aval!r}"
            )
        return take_along(a, known.astype(np.int32), axis)
    if aval_of(mask).size > n:
        mask = slice_(mask, (0,), (n,))
    places, there = _places(mask, _size(size))
    return _filled(a, places, there, fill_value, axis)


def _filled(a: Any, places: Any, there: Any, fill_value: Any, axis: int = 0) -> Any:
    """The parts of `a` at `places`, `fill_value` in place of those that are not `there`."""
    taken = take_along(a, places, axis)
    aval = aval_of(taken)
    fill = convert_element_type(as_array(fill_value), aval.dtype)
    there = shaping.broadcast_in_dim(there, aval.shape, (axis,))
    return select(there, taken, broadcast_to(fill, aval.shape))


def extract(condition: Any, arr: Any, *, size: int | None = None, fill_value: Any = 0) -> Any:
    """The elements of `arr` where `condition` holds, as a vector; `size` as for `nonzero`."""
    return compress(ravel(condition), ravel(arr), size=size, fill_value=fill_value)


# Sets. A set is a vector in order and a mask of which of its elements to take.


class Distinct(NamedTuple):
    """The elements of a vector in order, which of them are the first of their kind, and whence."""

    values: Any
    first: Any
    places: Any


def _distinct(rows: Any, equal_nan: bool = True) -> Distinct:
    """The rows of `rows`, whose first axis runs over them, in lexicographic order."""
    shape = aval_of(rows).shape
    n = shape[0]
    columns = [rows] if len(shape) == 1 else _columns(rows)
    *columns, places = Sort(0, len(columns), True, True)(*columns)
    values = columns[0] if len(shape) == 1 else take_along(rows, places, 0)
    differs: Any = None
    for column in columns:
        before, after = slice_(column, (0,), (n - 1,)), slice_(column, (1,), (n,))
        changed = ne(before, after)
        if equal_nan and is_inexact(aval_of(column).dtype):
            both_nan = bitwise_and(ne(before, before), ne(after, after))
            changed = bitwise_and(changed, bitwise_not(both_nan))
        differs = changed if differs is None else bitwise_or(differs, changed)
    start = shaping.full((1,), literal(True, np.dtype(bool)))
    return Distinct(values, shaping.concatenate([start, differs], 0), places)


def _columns(rows: Any) -> list[Any]:
    shape = aval_of(rows).shape
    width = aval_of(rows).size // shape[0]
    return list(_rows(shaping.permute_dims(shaping.reshape(rows, (shape[0], width)), (1, 0))))


def unique(
    ar: Any,
    return_index: bool = False,
    return_inverse: bool = False,
    return_counts: bool = False,
    axis: int | None = None,
    *,
    equal_nan: bool = True,
    size: int | None = None,
    fill_value: Any = None,
    sorted: bool = True,
) -> Any:
    """The distinct elements of `ar` in order, or its distinct parts along `axis`.

    With them, where asked for: where each occurs first, the places of the elements of `ar`
    among them, and how often each occurs. With `size` there are so many, those left over
    `fill_value`, the least element by default. Without it `ar` must be known while tracing.
    """
    ar = as_array(ar)
    given = aval_of(ar).shape
    if axis is None:
        rows, along, inverse_shape = ravel(ar), 0, given
    else:
        along = canonical_axis(axis, len(given), "unique: axis")
        rows = shaping.moveaxis(ar, along, 0)
        inverse_shape = (given[along],)
    aval = aval_of(rows)
    n = aval.shape[0]
    if not aval.size:
        return _no_elements(
            rows,
            along,
            inverse_shape,
            size,
            fill_value,
            (return_index, return_inverse, return_counts),
        )
    values, first, places = _distinct(rows, equal_nan)
    if size is None:
        starts: Any = np.flatnonzero(_known(first, "unique")).astype(np.int32)
        found = take_along(values, starts, 0)
    else:
        # One more than wanted, since each is counted up to the next.
        count = _size(size)
        bounds, there = _places(first, count + 1)
        starts, there = slice_(bounds, (0,), (count,)), slice_(there, (0,), (count,))
        # Those left over repeat the first.
        starts = select(there, starts, literal(0, aval_of(starts).dtype))
        found = take_along(values, starts, 0)
        if fill_value is not None:
            found = _filled(values, starts, there, fill_value)
    results = [shaping.moveaxis(found, 0, along)]
    if return_index:
        results.append(convert_element_type(_at(places, starts), INT))
    if return_inverse:
        results.append(shaping.reshape(_inverse(first, places), inverse_shape))
    if return_counts:
        if size is None:
            counts = np.diff(np.append(starts, n)).astype(canonical_dtype(INT))
            results.append(as_array(counts))
        else:
            bounds = choices.minimum(bounds, n)
            after = slice_(bounds, (1,), (count + 1,))
            results.append(sub(after, slice_(bounds, (0,), (count,))))
    return results[0] if len(results) == 1 else tuple(results)


def _no_elements(
    rows: Any, along: int, inverse_shape: Any, size: Any, fill_value: Any, asked: tuple[bool, ...]
) -> Any:
    """What `unique` makes of an array without elements."""
    aval = aval_of(rows)
    integer = canonical_dtype(INT)
    count = min(1, aval.shape[0]) if size is None else _size(size)
    fill = (
        literal(0, aval.dtype)
        if fill_value is None
        else convert_element_type(fill_value, aval.dtype)
    )
    zeros = shaping.full((count,), literal(0, integer))
    wanted = [
        zeros,
        shaping.full(inverse_shape, literal(0, integer)),
        shaping.full((count,), literal(aval.shape[0] if size is None else 0, integer)),
    ]
    results = [shaping.moveaxis(shaping.full((count, *aval.shape[1:]), fill), 0, along)]
    results += [x for x, on in zip(wanted, asked, strict=True) if on]
    return results[0] if len(results) == 1 else tuple(results)


def _inverse(first: Any, places: Any) -> Any:
    """For each element of the vector, its place among the distinct ones."""
    rank = sub(cumsum(convert_element_type(first, INT), 0), 1)
    back = Sort(0, 1, True, True)(places)[-1]
    return _at(rank, back)


class UniqueAllResult(NamedTuple):
    """What `unique_all` gives."""

    values: Any
    indices: Any
    inverse_indices: Any
    counts: Any


class UniqueCountsResult(NamedTuple):
    """What `unique_counts` gives."""

    values: Any
    counts: Any


class UniqueInverseResult(NamedTuple):
    """What `unique_inverse` gives."""

    values: Any
    inverse_indices: Any


def unique_all(x: Any, /, *, size: int | None = None, fill_value: Any = None) -> UniqueAllResult:
    """The distinct elements, where each occurs first, the inverse, and the counts."""
    results = unique(x, True, True, True, equal_nan=False, size=size, fill_value=fill_value)
    return UniqueAllResult(*results)


def unique_counts(
    x: Any, /, *, size: int | None = None, fill_value: Any = None
) -> UniqueCountsResult:
    """The distinct elements, and how often each occurs."""
    results = unique(x, return_counts=True, equal_nan=False, size=size, fill_value=fill_value)
    return UniqueCountsResult(*results)


def unique_inverse(
    x: Any, /, *, size: int | None = None, fill_value: Any = None
) -> UniqueInverseResult:
    """The distinct elements, and the places of the elements of `x` among them."""
    results = unique(x, return_inverse=True, equal_nan=False, size=size, fill_value=fill_value)
    return UniqueInverseResult(*results)


def unique_values(x: Any, /, *, size: int | None = None, fill_value: Any = None) -> Any:
    """The distinct elements."""
    return unique(x, equal_nan=False, size=size, fill_value=fill_value)


def union1d(ar1: Any, ar2: Any, *, size: int | None = None, fill_value: Any = None) -> Any:
    """The distinct elements of two arrays together, in order; `size` as for `unique`."""
    together = concatenate([ravel(ar1), ravel(ar2)])
    return unique(together, size=size, fill_value=fill_value)


def isin(
    element: Any,
    test_elements: Any,
    assume_unique: bool = False,
    invert: bool = False,
    *,
    method: str = "auto",
) -> Any:
    """Whether each of `element` is among `test_elements`; with `invert`, whether it is not."""
    x, tests = (as_array(a) for a in promote(element, test_elements))
    tests = ravel(tests)
    shape, n = aval_of(x).shape, aval_of(tests).size
    if method not in ("auto", "compare_all", "binary_search", "sort"):
        raise ValueRangeError(
            f"isin: method must be auto, compare_all, binary_search or sort; got {method!r}"
        )
    if not n:
        return shaping.full(shape, literal(invert, np.dtype(bool)))
    if method == "compare_all" or (method == "auto" and n <= 32):
        wide = (*shape, n)
        pairs = eq(
            shaping.broadcast_in_dim(x, wide, tuple(range(len(shape)))),
            shaping.broadcast_in_dim(tests, wide, (len(shape),)),
        )
        among = reduce_or(pairs, (len(shape),))
    else:
        ordered = sorted_along(tests, 0)
        how = "sort" if method == "sort" else "scan"
        among = eq(_at(ordered, searching.searchsorted(ordered, x, "left", how)), x)
    return bitwise_not(among) if invert else among


def _chosen(
    name: str, a: Distinct, wanted: Any, size: int | None, fill_value: Any
) -> tuple[Any, Any, Any]:
    """The elements of a set that are `wanted`, their places in it, and which there are."""
    mask = bitwise_and(a.first, wanted)
    if size is None:
        known = np.flatnonzero(_known(mask, name)).astype(np.int32)
        return take_along(a.values, known, 0), known, None
    places, there = _places(mask, _size(size))
    if fill_value is None:
        fill_value = _at(a.values, 0) if aval_of(a.values).size else 0
    return _filled(a.values, places, there, fill_value), places, there


def _two(ar1: Any, ar2: Any) -> tuple[Any, ...]:
    return tuple([ravel(x) for x in promote(ar1, ar2)])


def setdiff1d(
    ar1: Any,
    ar2: Any,
    assume_unique: bool = False,
    *,
    size: int | None = None,
    fill_value: Any = None,
) -> Any:
    """The distinct elements of `ar1` that are not in `ar2`, in order.

    With `size` there are so many, those left over `fill_value`, 0 by default; without it the
    arrays must be known while tracing. With `assume_unique` the order is that of `ar1`.
    """
    x, y = _two(ar1, ar2)
    fill_value = 0 if fill_value is None else fill_value
    if assume_unique:
        return compress(isin(x, y, invert=True), x, size=size, fill_value=fill_value)
    if not aval_of(x).size:
        return x if size is None else _filled(x, *_places(x, _size(size)), fill_value)
    a = _distinct(x)
    return _chosen("setdiff1d", a, isin(a.values, y, invert=True), size, fill_value)[0]


def intersect1d(
    ar1: Any,
    ar2: Any,
    assume_unique: bool = False,
    return_indices: bool = False,
    *,
    size: int | None = None,
    fill_value: Any = None,
) -> Any:
    """The distinct elements that are in both arrays, in order.

    With `return_indices`, also where they occur first in each. With `size` there are so
    many; those left over are `fill_value`, by default the least that is in both, and their
    indices the lengths of the arrays. Without it the arrays must be known while tracing.
    """
    x, y = _two(ar1, ar2)
    n, m = aval_of(x).size, aval_of(y).size
    a, b = _distinct(x), _distinct(y)
    wanted = bitwise_and(isin(a.values, y), a.first)
    if fill_value is None and size:
        least, there = _places(wanted, 1)
        fill_value = shaping.reshape(_filled(a.values, least, there, 0), ())
    found, places, there = _chosen("intersect1d", a, wanted, size, fill_value)
    if not return_indices:
        return found
    first = convert_element_type(_at(a.places, places), INT)
    at = searching.searchsorted(b.values, take_along(a.values, places, 0))
    second = convert_element_type(_at(b.places, at), INT)
    if there is not None:
        dtype = canonical_dtype(INT)
        first = select(there, first, literal(n, dtype))
        second = select(there, second, literal(m, dtype))
    return found, first, second


def setxor1d(
    ar1: Any,
    ar2: Any,
    assume_unique: bool = False,
    *,
    size: int | None = None,
    fill_value: Any = None,
) -> Any:
    """The distinct elements that are in one of two arrays alone, in order; `size` as for `unique`."""
    x, y = _two(ar1, ar2)
    both = concatenate([x, y])
    if not aval_of(both).size:
        return both if size is None else _filled(both, *_places(both, _size(size)), fill_value or 0)
    a = _distinct(both)
    alone = bitwise_and(isin(a.values, x), isin(a.values, y))
    return _chosen("setxor1d", a, bitwise_not(alone), size, fill_value)[0]
