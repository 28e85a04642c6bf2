"""Distinct elements, and arrays taken as sets.

A set is a vector in order and a mask of which of its elements to take.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from ml_dtypes import iinfo

from functx import ops
from functx.core.errors import ValueRangeError
from functx.core.tracer import aval_of
from functx.core.types import canonical_dtype, is_complex, is_inexact, is_integer, real_dtype
from functx.numpy import ufuncs
from functx.numpy.array_creation import INT
from functx.numpy.joining import concatenate, gather_along, unstack
from functx.numpy.promotion import promote
from functx.numpy.shapes import ensure_array, ravel
from functx.numpy.sorting_and_searching import (
    compress,
    concrete_mask,
    static_size,
    take_from_vector,
    take_or_fill,
    true_indices,
)
from functx.ops import concatenation, shapes, sorting
from functx.ops.operands import canonical_axis, literal

__all__ = [
    "intersect1d",
    "isin",
    "setdiff1d",
    "setxor1d",
    "union1d",
    "unique",
    "unique_all",
    "unique_counts",
    "unique_inverse",
    "unique_values",
]


BOOL = np.dtype(bool)
_NAN = complex("nan+nanj")


class SortedUnique(NamedTuple):
    """The elements of a vector in order, which of them are the first of their kind, and whence."""

    values: Any
    is_first: Any
    permutation: Any


def _sort_unique(rows: Any, equal_nan: bool = True) -> SortedUnique:
    """The rows of `rows`, whose first axis runs over them, in lexicographic order."""
    shape = aval_of(rows).shape
    n = shape[0]
    if not n:
        return SortedUnique(rows, shapes.full((0,), literal(True, BOOL)), np.zeros(0, np.int32))
    columns = [rows] if len(shape) == 1 else _sort_keys(rows)
    if is_complex(aval_of(rows).dtype):
        # Numbers with a nan in either part come last, and are one.
        columns = [ops.select(ops.ne(c, c), literal(_NAN, aval_of(c).dtype), c) for c in columns]
    *columns, places = ops.Sort(0, len(columns), True, True)(*columns)
    plain = len(shape) == 1 and not is_complex(aval_of(rows).dtype)
    values = columns[0] if plain else gather_along(rows, places, 0)
    differs: Any = None
    for column in columns:
        before, after = ops.slice(column, (0,), (n - 1,)), ops.slice(column, (1,), (n,))
        changed = ops.ne(before, after)
        if equal_nan and is_inexact(aval_of(column).dtype):
            both_nan = ops.bitwise_and(ops.ne(before, before), ops.ne(after, after))
            changed = ops.bitwise_and(changed, ops.bitwise_not(both_nan))
        differs = changed if differs is None else ops.bitwise_or(differs, changed)
    start = shapes.full((1,), literal(True, BOOL))
    return SortedUnique(values, concatenation.concatenate([start, differs], 0), places)


def _sort_keys(rows: Any) -> list[Any]:
    shape = aval_of(rows).shape
    width = aval_of(rows).size // shape[0]
    return list(unstack(shapes.permute_dims(shapes.reshape(rows, (shape[0], width)), (1, 0))))


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
    ar = ensure_array(ar)
    given = aval_of(ar).shape
    if axis is None:
        rows, along, inverse_shape = ravel(ar), 0, given
    else:
        along = canonical_axis(axis, len(given), "unique: axis")
        rows = shapes.moveaxis(ar, along, 0)
        inverse_shape = (given[along],)
    aval = aval_of(rows)
    if not aval.size:
        asked = return_index, return_inverse, return_counts
        return _unique_of_empty(rows, along, inverse_shape, size, fill_value, asked)
    values, first, places = _sort_unique(rows, equal_nan)
    starts, bounds, there = _first_indices(first, size)
    found = gather_along(values, starts, 0)
    if there is not None and fill_value is not None:
        found = take_or_fill(values, starts, there, fill_value)
    results = [shapes.moveaxis(found, 0, along)]
    if return_index:
        results.append(ops.convert_element_type(take_from_vector(places, starts), INT))
    if return_inverse:
        results.append(shapes.reshape(_inverse(first, places), inverse_shape))
    if return_counts:
        results.append(_segment_lengths(bounds, aval.shape[0], size))
    return results[0] if len(results) == 1 else tuple(results)


def _first_indices(first: Any, size: int | None) -> tuple[Any, Any, Any]:
    """Where distinct elements start, the bounds between them, and which of `size` there are."""
    if size is None:
        starts: Any = np.flatnonzero(concrete_mask(first, "unique")).astype(np.int32)
        return starts, np.append(starts, aval_of(first).size), None
    count = static_size(size)
    bounds, there = true_indices(first, count + 1)
    starts, there = ops.slice(bounds, (0,), (count,)), ops.slice(there, (0,), (count,))
    # Those left over repeat the first.
    return ops.select(there, starts, literal(0, aval_of(starts).dtype)), bounds, there


def _segment_lengths(bounds: Any, n: int, size: int | None) -> Any:
    """How many of `n` elements lie between each bound and the next."""
    if size is None:
        return ensure_array(np.diff(bounds).astype(canonical_dtype(INT)))
    count = aval_of(bounds).size - 1
    bounds = ufuncs.minimum(bounds, n)
    after = ops.slice(bounds, (1,), (count + 1,))
    return ops.sub(after, ops.slice(bounds, (0,), (count,)))


def _unique_of_empty(
    rows: Any, along: int, inverse_shape: Any, size: Any, fill_value: Any, asked: tuple[bool, ...]
) -> Any:
    """What `unique` makes of an array without elements."""
    aval = aval_of(rows)
    integer = canonical_dtype(INT)
    count = min(1, aval.shape[0]) if size is None else static_size(size)
    fill = (
        literal(0, aval.dtype)
        if fill_value is None
        else ops.convert_element_type(fill_value, aval.dtype)
    )
    zeros = shapes.full((count,), literal(0, integer))
    wanted = [
        zeros,
        shapes.full(inverse_shape, literal(0, integer)),
        shapes.full((count,), literal(aval.shape[0] if size is None else 0, integer)),
    ]
    results = [shapes.moveaxis(shapes.full((count, *aval.shape[1:]), fill), 0, along)]
    results += [x for x, on in zip(wanted, asked, strict=True) if on]
    return results[0] if len(results) == 1 else tuple(results)


def _inverse(first: Any, places: Any) -> Any:
    """For each element of the vector, its place among the distinct ones."""
    rank = ops.sub(ops.cumsum(ops.convert_element_type(first, INT), 0), 1)
    back = ops.Sort(0, 1, True, True)(places)[-1]
    return take_from_vector(rank, back)


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
    x, tests = _promote_exactly(ensure_array(element), ensure_array(test_elements))
    tests = ravel(tests)
    shape, n = aval_of(x).shape, aval_of(tests).size
    if method not in ("auto", "compare_all", "binary_search", "sort"):
        raise ValueRangeError(
            f"isin: method must be auto, compare_all, binary_search or sort; got {method!r}"
        )
    if not n:
        return shapes.full(shape, literal(invert, np.dtype(bool)))
    if method == "compare_all" or (method == "auto" and n <= 32):
        wide = (*shape, n)
        pairs = ops.eq(
            shapes.broadcast_in_dim(x, wide, tuple(range(len(shape)))),
            shapes.broadcast_in_dim(tests, wide, (len(shape),)),
        )
        among = ops.reduce_or(pairs, (len(shape),))
    else:
        ordered = ops.sort(tests, 0)
        how = "sort" if method == "sort" else "scan"
        among = ops.eq(take_from_vector(ordered, sorting.searchsorted(ordered, x, "left", how)), x)
    return ops.bitwise_not(among) if invert else among


def _promote_exactly(x: Any, y: Any) -> tuple[Any, ...]:
    """Two arrays in one dtype, integers that a floating dtype does not hold as nan."""
    dtype = aval_of(promote(x, y)[0]).dtype
    given = [
        _exact_or_nan(a, dtype) if is_inexact(dtype) and is_integer(aval_of(a).dtype) else a
        for a in (x, y)
    ]
    return promote(*given)


def _exact_or_nan(x: Any, dtype: Any) -> Any:
    """Integers in an inexact dtype, those that it does not hold exactly as nan."""
    own, real = aval_of(x).dtype, real_dtype(dtype)
    found = ops.convert_element_type(x, real)
    # The largest integer may be rounded to the number after it, and be the same back again.
    inside = ops.lt(found, literal(float(iinfo(own).max) + 1, real))
    exact = ops.bitwise_and(inside, ops.eq(ops.convert_element_type(found, own), x))
    return ops.select(exact, found, literal(float("nan"), real))


def _select_members(
    name: str, a: SortedUnique, wanted: Any, size: int | None, fill_value: Any
) -> tuple[Any, Any, Any]:
    """The elements of a set that are `wanted`, their places in it, and which there are."""
    mask = ops.bitwise_and(a.is_first, wanted)
    if size is None:
        known = np.flatnonzero(concrete_mask(mask, name)).astype(np.int32)
        return gather_along(a.values, known, 0), known, None
    places, there = true_indices(mask, static_size(size))
    if fill_value is None:
        fill_value = take_from_vector(a.values, 0) if aval_of(a.values).size else 0
    return take_or_fill(a.values, places, there, fill_value), places, there


def _ravel_pair(ar1: Any, ar2: Any) -> tuple[Any, ...]:
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
    x, y = ravel(ar1), ravel(ar2)
    fill_value = 0 if fill_value is None else fill_value
    if assume_unique:
        return compress(isin(x, y, invert=True), x, size=size, fill_value=fill_value)
    if not aval_of(x).size:
        return (
            x if size is None else take_or_fill(x, *true_indices(x, static_size(size)), fill_value)
        )
    a = _sort_unique(x)
    return _select_members("setdiff1d", a, isin(a.values, y, invert=True), size, fill_value)[0]


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
    x, y = _ravel_pair(ar1, ar2)
    n, m = aval_of(x).size, aval_of(y).size
    if assume_unique and n + m and not return_indices and size is None:
        both = _sort_unique(concatenate([x, y]), equal_nan=False)
        # After sorting, an element of both arrays is next to its equal.
        end = shapes.full((1,), literal(True, BOOL))
        last = concatenation.concatenate([ops.slice(both.is_first, (1,), (n + m,)), end], 0)
        among = both._replace(is_first=ops.bitwise_not(last))
        return _select_members("intersect1d", among, among.is_first, size, fill_value)[0]
    a, b = _sort_unique(x), _sort_unique(y)
    wanted = ops.bitwise_and(isin(a.values, y), a.is_first)
    if fill_value is None and size:
        least, there = true_indices(wanted, 1)
        fill_value = shapes.reshape(take_or_fill(a.values, least, there, 0), ())
    found, places, there = _select_members("intersect1d", a, wanted, size, fill_value)
    if not return_indices:
        return found
    if not (n and m):
        shape, dtype = aval_of(found).shape, canonical_dtype(INT)
        return found, *[shapes.full(shape, literal(k, dtype)) for k in (n, m)]
    first = ops.convert_element_type(take_from_vector(a.permutation, places), INT)
    at = sorting.searchsorted(b.values, gather_along(a.values, places, 0))
    second = ops.convert_element_type(take_from_vector(b.permutation, at), INT)
    if there is not None:
        dtype = canonical_dtype(INT)
        first = ops.select(there, first, literal(n, dtype))
        second = ops.select(there, second, literal(m, dtype))
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
    x, y = _ravel_pair(ar1, ar2)
    both = concatenate([x, y])
    if not aval_of(both).size:
        return (
            both
            if size is None
            else take_or_fill(both, *true_indices(both, static_size(size)), fill_value or 0)
        )
    if assume_unique:
        a = _sort_unique(both, equal_nan=False)
        n = aval_of(both).size
        # An element alone differs from the one after it too.
        end = shapes.full((1,), literal(True, BOOL))
        last = concatenation.concatenate([ops.slice(a.is_first, (1,), (n,)), end], 0)
        return _select_members("setxor1d", a, last, size, fill_value)[0]
    left, right = _sort_unique(x), _sort_unique(y)
    alone = concatenation.concatenate(
        [
            ops.bitwise_and(left.is_first, isin(left.values, y, invert=True)),
            ops.bitwise_and(right.is_first, isin(right.values, x, invert=True)),
        ],
        0,
    )
    a = _sort_unique(concatenation.concatenate([left.values, right.values], 0))
    wanted = take_from_vector(alone, a.permutation)
    a = a._replace(is_first=wanted)
    return _select_members("setxor1d", a, wanted, size, fill_value)[0]
