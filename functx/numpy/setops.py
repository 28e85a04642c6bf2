"""Set functions: distinct elements, unions, intersections, differences, membership.

A set is represented by a sorted vector and a mask of the elements that belong to it.
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import numpy as np
from ml_dtypes import iinfo

from functx import ops
from functx.core.errors import ValueRangeError
from functx.core.masks import select_where
from functx.core.tracer import aval_of
from functx.core.types import (
    DType,
    Shape,
    canonical_dtype,
    is_complex,
    is_inexact,
    is_integer,
    real_dtype,
)
from functx.core.typing import ArrayLike, ArrayOrList, Mask, NumPyArray, Value
from functx.numpy import ufuncs
from functx.numpy.array_creation import INT
from functx.numpy.joining import concatenate, gather_along, unstack
from functx.numpy.promotion import promote
from functx.numpy.shapes import ensure_array, in_order, ravel
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
    """The sorted elements of a vector, the mask of first occurrences, and the sorting permutation."""

    values: Value
    is_first: Value
    permutation: Value | NumPyArray


def _sort_unique(rows: Value, equal_nan: bool = True) -> SortedUnique:
    """The rows of `rows` along its first axis in lexicographic order."""
    shape = aval_of(rows).shape
    n = shape[0]
    if not n:
        return SortedUnique(rows, shapes.full((0,), literal(True, BOOL)), np.zeros(0, np.int32))
    columns = [rows] if len(shape) == 1 else _sort_keys(rows)
    if is_complex(aval_of(rows).dtype):
        # Numbers with nan in either part come last, and count as equal.
        columns = [ops.select(ops.ne(c, c), literal(_NAN, aval_of(c).dtype), c) for c in columns]
    *columns, permutation = ops.Sort(0, len(columns), True, True)(*columns)
    is_vector_of_reals = len(shape) == 1 and not is_complex(aval_of(rows).dtype)
    values = columns[0] if is_vector_of_reals else gather_along(rows, permutation, 0)
    differs: Any = None
    for column in columns:
        before, after = ops.slice(column, (0,), (n - 1,)), ops.slice(column, (1,), (n,))
        changed = ops.ne(before, after)
        if equal_nan and is_inexact(aval_of(column).dtype):
            both_nan = ops.bitwise_and(ops.ne(before, before), ops.ne(after, after))
            changed = ops.bitwise_and(changed, ops.bitwise_not(both_nan))
        differs = changed if differs is None else ops.bitwise_or(differs, changed)
    start = shapes.full((1,), literal(True, BOOL))
    return SortedUnique(values, concatenation.concatenate([start, differs], 0), permutation)


def _sort_keys(rows: Value) -> list[Value]:
    shape = aval_of(rows).shape
    width = aval_of(rows).size // shape[0]
    return list(unstack(shapes.permute_dims(shapes.reshape(rows, (shape[0], width)), (1, 0))))


def unique(
    ar: ArrayOrList,
    return_index: bool = False,
    return_inverse: bool = False,
    return_counts: bool = False,
    axis: int | None = None,
    *,
    equal_nan: bool = True,
    size: int | None = None,
    fill_value: ArrayLike | None = None,
    sorted: bool = True,
) -> Value | tuple[Value, ...]:
    """The distinct elements of `ar` in order, or its distinct parts along `axis`.

    On request, in a tuple, also the index of the first occurrence of each, the index of each
    element of `ar` among the distinct ones, and the number of occurrences of each. `size` fixes
    the number of distinct elements; extra ones are `fill_value`, by default the least element.
    Without `size`, `ar` must be known while tracing.
    """
    ar = ensure_array(ar)
    shape = aval_of(ar).shape
    if axis is None:
        rows, along, inverse_shape = ravel(ar), 0, shape
    else:
        along = canonical_axis(axis, len(shape), "unique: axis")
        rows = shapes.moveaxis(ar, along, 0)
        inverse_shape = (shape[along],)
    aval = aval_of(rows)
    if not aval.size:
        requested = return_index, return_inverse, return_counts
        return _unique_of_empty(rows, along, inverse_shape, size, fill_value, requested)
    values, first, permutation = _sort_unique(rows, equal_nan)
    starts, bounds, valid = _first_indices(first, size)
    distinct = gather_along(values, starts, 0)
    if valid is not None and fill_value is not None:
        distinct = take_or_fill(values, starts, valid, fill_value)
    results = [shapes.moveaxis(distinct, 0, along)]
    if return_index:
        results.append(ops.convert_element_type(take_from_vector(permutation, starts), INT))
    if return_inverse:
        results.append(shapes.reshape(_inverse(first, permutation), inverse_shape))
    if return_counts:
        results.append(_segment_lengths(bounds, aval.shape[0], size))
    return results[0] if len(results) == 1 else tuple(results)


def _first_indices(
    first: Value, size: int | None
) -> tuple[Value | NumPyArray, Value | NumPyArray, Mask]:
    """The starts of distinct elements, the bounds between them, and the mask of valid starts."""
    if size is None:
        starts = np.flatnonzero(concrete_mask(first, "unique")).astype(np.int32)
        return starts, np.append(starts, aval_of(first).size), None
    count = static_size(size)
    bounds, valid = true_indices(first, count + 1)
    begins, valid = ops.slice(bounds, (0,), (count,)), ops.slice(valid, (0,), (count,))
    # Extra starts repeat the first.
    return ops.select(valid, begins, literal(0, aval_of(begins).dtype)), bounds, valid


def _segment_lengths(bounds: ArrayLike, n: int, size: int | None) -> Value:
    """The number of elements of `n` between each bound and the next."""
    if size is None:
        return ensure_array(np.diff(np.asarray(bounds)).astype(canonical_dtype(INT)))
    count = aval_of(bounds).size - 1
    bounds = ufuncs.minimum(bounds, n)
    after = ops.slice(bounds, (1,), (count + 1,))
    return ops.sub(after, ops.slice(bounds, (0,), (count,)))


def _unique_of_empty(
    rows: Value,
    along: int,
    inverse_shape: Shape,
    size: int | None,
    fill_value: ArrayLike | None,
    requested: tuple[bool, ...],
) -> Value | tuple[Value, ...]:
    """The results of `unique` for an array without elements."""
    aval = aval_of(rows)
    integer = canonical_dtype(INT)
    found = min(1, aval.shape[0])
    count = found if size is None else static_size(size)
    if not found and count and fill_value is None:
        raise ValueRangeError(
            f"unique: `size` must be 0 for an array without elements; got {count}",
            fix="Pass `fill_value`, which the extra elements take.",
        )
    fill = (
        literal(0, aval.dtype)
        if fill_value is None
        else ops.convert_element_type(fill_value, aval.dtype)
    )
    zeros = shapes.full((count,), literal(0, integer))
    optional = [
        zeros,
        shapes.full(inverse_shape, literal(0, integer)),
        ensure_array(np.where(np.arange(count) < found, aval.shape[0], 0).astype(integer)),
    ]
    results = [shapes.moveaxis(shapes.full((count, *aval.shape[1:]), fill), 0, along)]
    results += select_where(optional, requested)
    return results[0] if len(results) == 1 else tuple(results)


def _inverse(first: Value, permutation: Value | NumPyArray) -> Value:
    """The index of each element of the vector among the distinct ones."""
    rank = ops.sub(ops.cumsum(ops.convert_element_type(first, INT), 0), 1)
    inverse_permutation = ops.Sort(0, 1, True, True)(permutation)[-1]
    return take_from_vector(rank, inverse_permutation)


class UniqueAllResult(NamedTuple):
    """The result of `unique_all`."""

    values: Value
    indices: Value
    inverse_indices: Value
    counts: Value


class UniqueCountsResult(NamedTuple):
    """The result of `unique_counts`."""

    values: Value
    counts: Value


class UniqueInverseResult(NamedTuple):
    """The result of `unique_inverse`."""

    values: Value
    inverse_indices: Value


def unique_all(
    x: ArrayOrList, /, *, size: int | None = None, fill_value: ArrayLike | None = None
) -> UniqueAllResult:
    """The distinct elements, the indices of first occurrences, the inverse, and the counts."""
    results = unique(x, True, True, True, equal_nan=False, size=size, fill_value=fill_value)
    return UniqueAllResult(*results)


def unique_counts(
    x: ArrayOrList, /, *, size: int | None = None, fill_value: ArrayLike | None = None
) -> UniqueCountsResult:
    """The distinct elements, and the number of occurrences of each."""
    results = unique(x, return_counts=True, equal_nan=False, size=size, fill_value=fill_value)
    return UniqueCountsResult(*results)


def unique_inverse(
    x: ArrayOrList, /, *, size: int | None = None, fill_value: ArrayLike | None = None
) -> UniqueInverseResult:
    """The distinct elements, and the index of each element of `x` among them."""
    results = unique(x, return_inverse=True, equal_nan=False, size=size, fill_value=fill_value)
    return UniqueInverseResult(*results)


def unique_values(
    x: ArrayOrList, /, *, size: int | None = None, fill_value: ArrayLike | None = None
) -> Value:
    """The distinct elements."""
    return cast(Value, unique(x, equal_nan=False, size=size, fill_value=fill_value))


def union1d(
    ar1: ArrayOrList,
    ar2: ArrayOrList,
    *,
    size: int | None = None,
    fill_value: ArrayLike | None = None,
) -> Value:
    """The distinct elements of two arrays together, in order; `size` as for `unique`."""
    together = concatenate([ravel(ar1), ravel(ar2)])
    return cast(Value, unique(together, size=size, fill_value=fill_value))


def isin(
    element: ArrayOrList,
    test_elements: ArrayOrList,
    assume_unique: bool = False,
    invert: bool = False,
    *,
    method: str = "auto",
) -> Value:
    """Whether each element of `element` is in `test_elements`; with `invert`, whether it is not."""
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
        is_member = ops.reduce_or(pairs, (len(shape),))
    else:
        ordered = ops.sort(tests, 0)
        search_method = "sort" if method == "sort" else "scan"
        is_member = ops.eq(
            take_from_vector(ordered, sorting.searchsorted(ordered, x, "left", search_method)), x
        )
    return in_order(ops.bitwise_not(is_member) if invert else is_member, "C")


def _promote_exactly(x: Value, y: Value) -> tuple[Value, ...]:
    """Two arrays in one dtype, with nan for integers that a floating dtype cannot represent."""
    dtype = aval_of(promote(x, y)[0]).dtype
    operands = [
        _exact_or_nan(a, dtype) if is_inexact(dtype) and is_integer(aval_of(a).dtype) else a
        for a in (x, y)
    ]
    return promote(*operands)


def _exact_or_nan(x: Value, dtype: DType) -> Value:
    """Integers in an inexact dtype, with nan for those that it cannot represent."""
    integer_dtype, float_dtype = aval_of(x).dtype, real_dtype(dtype)
    converted = ops.convert_element_type(x, float_dtype)
    # The largest integer may be rounded up and saturate back to itself: exclude what is above it.
    in_range = ops.lt(converted, literal(float(iinfo(integer_dtype).max) + 1, float_dtype))
    exact = ops.bitwise_and(in_range, ops.eq(ops.convert_element_type(converted, integer_dtype), x))
    return ops.select(exact, converted, literal(float("nan"), float_dtype))


def _select_members(
    name: str, a: SortedUnique, selected: Value, size: int | None, fill_value: ArrayLike | None
) -> tuple[Value, ArrayLike, Value | None]:
    """The members of a set under the mask `selected`, their indices, and the mask of valid ones."""
    mask = ops.bitwise_and(a.is_first, selected)
    if size is None:
        members = np.flatnonzero(concrete_mask(mask, name)).astype(np.int32)
        return gather_along(a.values, members, 0), members, None
    indices, valid = true_indices(mask, static_size(size))
    if fill_value is None:
        fill_value = take_from_vector(a.values, 0) if aval_of(a.values).size else 0
    return take_or_fill(a.values, indices, valid, fill_value), indices, valid


def _ravel_pair(ar1: ArrayOrList, ar2: ArrayOrList) -> tuple[Value, ...]:
    return tuple([ravel(x) for x in promote(ar1, ar2)])


def setdiff1d(
    ar1: ArrayOrList,
    ar2: ArrayOrList,
    assume_unique: bool = False,
    *,
    size: int | None = None,
    fill_value: ArrayLike | None = None,
) -> Value:
    """The distinct elements of `ar1` that are not in `ar2`, in order.

    `size` fixes the number of results; extra ones are `fill_value`, by default 0. Without it
    the arrays must be known while tracing. With `assume_unique` the order is that of `ar1`.
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
    ar1: ArrayOrList,
    ar2: ArrayOrList,
    assume_unique: bool = False,
    return_indices: bool = False,
    *,
    size: int | None = None,
    fill_value: ArrayLike | None = None,
) -> Value | tuple[Value, ...]:
    """The distinct elements that are in both arrays, in order.

    With `return_indices`, also the indices of their first occurrences in each array. `size`
    fixes the number of results; extra ones are `fill_value`, by default the least common
    element, with the lengths of the arrays as indices. Without it the arrays must be known
    while tracing.
    """
    x, y = _ravel_pair(ar1, ar2)
    n, m = aval_of(x).size, aval_of(y).size
    if assume_unique and n + m and not return_indices and size is None:
        joined = _sort_unique(concatenate([x, y]), equal_nan=False)
        # After sorting, an element of both arrays is next to its equal.
        end = shapes.full((1,), literal(True, BOOL))
        last = concatenation.concatenate([ops.slice(joined.is_first, (1,), (n + m,)), end], 0)
        common = joined._replace(is_first=ops.bitwise_not(last))
        return _select_members("intersect1d", common, common.is_first, size, fill_value)[0]
    a, b = _sort_unique(x), _sort_unique(y)
    is_common = ops.bitwise_and(isin(a.values, y), a.is_first)
    if fill_value is None and size:
        fill_value = shapes.reshape(take_or_fill(a.values, *true_indices(is_common, 1), 0), ())
    values, indices, valid = _select_members("intersect1d", a, is_common, size, fill_value)
    if not return_indices:
        return values
    if not (n and m):
        shape, dtype = aval_of(values).shape, canonical_dtype(INT)
        return values, *[shapes.full(shape, literal(k, dtype)) for k in (n, m)]
    first = ops.convert_element_type(take_from_vector(a.permutation, indices), INT)
    positions = sorting.searchsorted(b.values, gather_along(a.values, indices, 0))
    second = ops.convert_element_type(take_from_vector(b.permutation, positions), INT)
    if valid is not None:
        dtype = canonical_dtype(INT)
        first = ops.select(valid, first, literal(n, dtype))
        second = ops.select(valid, second, literal(m, dtype))
    return values, first, second


def setxor1d(
    ar1: ArrayOrList,
    ar2: ArrayOrList,
    assume_unique: bool = False,
    *,
    size: int | None = None,
    fill_value: ArrayLike | None = None,
) -> Value:
    """The distinct elements that are in only one of two arrays, in order; `size` as for `unique`."""
    x, y = _ravel_pair(ar1, ar2)
    joined = concatenate([x, y])
    if not aval_of(joined).size:
        return (
            joined
            if size is None
            else take_or_fill(joined, *true_indices(joined, static_size(size)), fill_value or 0)
        )
    if assume_unique:
        a = _sort_unique(joined, equal_nan=False)
        n = aval_of(joined).size
        # An element alone differs from the one after it too.
        end = shapes.full((1,), literal(True, BOOL))
        last = concatenation.concatenate([ops.slice(a.is_first, (1,), (n,)), end], 0)
        return _select_members("setxor1d", a, last, size, fill_value)[0]
    left, right = _sort_unique(x), _sort_unique(y)
    is_exclusive = concatenation.concatenate(
        [
            ops.bitwise_and(left.is_first, isin(left.values, y, invert=True)),
            ops.bitwise_and(right.is_first, isin(right.values, x, invert=True)),
        ],
        0,
    )
    a = _sort_unique(concatenation.concatenate([left.values, right.values], 0))
    selected = take_from_vector(is_exclusive, a.permutation)
    a = a._replace(is_first=selected)
    return _select_members("setxor1d", a, selected, size, fill_value)[0]
