"""Sorting, searching in sorted arrays, interpolation, and indices of nonzero elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import SupportsIndex

import numpy as np
from ml_dtypes import finfo

from functx import ops
from functx.core.concretization import concretize
from functx.core.errors import (
    ArgumentError,
    ConcretizationError,
    DTypeError,
    ShapeError,
    ValueRangeError,
    short_repr,
)
from functx.core.tracer import Tracer, aval_of
from functx.core.types import canonical_dtype, complex_dtype, is_complex
from functx.core.typing import ArrayLike, ArrayOrList, Axes, DTypeLike, NumPyArray, Out, Value
from functx.core.wrappers import is_wrapper
from functx.numpy import floating_point, operators, ufuncs
from functx.numpy.array_creation import INT
from functx.numpy.eager_programs import as_one_program
from functx.numpy.indexing import getitem
from functx.numpy.joining import concatenate, gather_along, stack, unstack
from functx.numpy.mutation import accept_out
from functx.numpy.promotion import broadcast_to, promote, promote_inexact
from functx.numpy.shapes import array_and_axis, ensure_array, ravel
from functx.ops import shapes, sorting
from functx.ops.operands import canonical_axes, canonical_axis, canonical_shape, literal

__all__ = [
    "argpartition",
    "argsort",
    "argwhere",
    "compress",
    "digitize",
    "extract",
    "flatnonzero",
    "interp",
    "lexsort",
    "nonzero",
    "partition",
    "searchsorted",
    "sort",
    "sort_complex",
    "trim_zeros",
]


def _sort_operand(
    name: str, a: ArrayOrList, axis: int | None, kind: object, order: object
) -> tuple[Value, int]:
    """The array to sort, and the axis."""
    if order is not None:
        raise ArgumentError(
            f"{name}: order must be None, for want of arrays with fields; got {order!r}"
        )
    if kind not in (None, "quicksort", "mergesort", "heapsort", "stable"):
        raise ValueRangeError(f"{name}: kind must be one of NumPy's; got {kind!r}")
    return array_and_axis(name, a, axis)


def sort(
    a: ArrayOrList,
    axis: int | None = -1,
    *,
    kind: str | None = None,
    order: None = None,
    stable: bool = True,
    descending: bool = False,
) -> Value:
    """`a` sorted along `axis` in ascending order, nan last; flattened first if `axis` is None.

    The sort is always stable, whatever `kind` and `stable` say.
    """
    a, along = _sort_operand("sort", a, axis, kind, order)
    result = ops.sort(a, along)
    return shapes.rev(result, (along,)) if descending else result


def argsort(
    a: ArrayOrList,
    axis: int | None = -1,
    *,
    kind: str | None = None,
    order: None = None,
    stable: bool = True,
    descending: bool = False,
    dtype: DTypeLike = None,
) -> Value:
    """The indices that sort `a` along `axis` in ascending order, nan last.

    Equal elements keep their order, in descending order too.
    """
    a, along = _sort_operand("argsort", a, axis, kind, order)
    if descending:
        a = shapes.rev(a, (along,))
    indices = ops.Sort(along, 1, True, True)(a)[-1]
    if descending:
        indices = ops.sub(aval_of(a).shape[along] - 1, shapes.rev(indices, (along,)))
    return ops.convert_element_type(indices, INT if dtype is None else dtype)


def lexsort(keys: ArrayOrList, axis: int = -1) -> Value:
    """The indices that sort by the last of `keys`, and equal elements by the keys before it."""
    arrays = keys if isinstance(keys, (list, tuple)) else unstack(keys)
    if not arrays:
        raise ValueRangeError("lexsort: there must be at least one key; got none")
    arrays = [ensure_array(key) for key in arrays]
    avals = [aval_of(key) for key in arrays]
    if any(aval.shape != avals[0].shape for aval in avals):
        raise ShapeError("lexsort: keys must have one shape; got " + " and ".join(map(repr, avals)))
    if not avals[0].ndim:
        return ops.convert_element_type(ensure_array(0), INT)
    along = canonical_axis(axis, avals[0].ndim, "lexsort: axis")
    indices = ops.Sort(along, len(arrays), True, True)(*arrays[::-1])[-1]
    return ops.convert_element_type(indices, INT)


@as_one_program
def sort_complex(a: ArrayOrList) -> Value:
    """The elements of `a` as complex numbers, in order of real, then of imaginary parts."""
    a = ensure_array(a)
    return sort(ops.convert_element_type(a, complex_dtype(aval_of(a).dtype)))


def partition(a: ArrayOrList, kth: int | Sequence[int], axis: int | None = -1) -> Value:
    """`a` with the element at `kth` along `axis` at its position in sorted order.

    Smaller elements come before it and larger ones after it; here the result is sorted.
    """
    a, along = _sort_operand("partition", a, axis, None, None)
    _check_kth("partition", kth, aval_of(a).shape[along])
    return ops.sort(a, along)


def argpartition(a: ArrayOrList, kth: int | Sequence[int], axis: int | None = -1) -> Value:
    """The indices of the elements of `a` in the order of `partition`."""
    a, along = _sort_operand("argpartition", a, axis, None, None)
    _check_kth("argpartition", kth, aval_of(a).shape[along])
    return argsort(a, along, dtype=np.int32)


def _check_kth(name: str, kth: int | Sequence[int], n: int) -> None:
    for k in kth if isinstance(kth, (tuple, list)) else (kth,):
        canonical_axis(k, n, f"{name}: kth")


_METHODS = ("scan", "scan_unrolled", "sort", "compare_all")


def searchsorted(
    a: ArrayOrList,
    v: ArrayOrList,
    side: str = "left",
    sorter: ArrayOrList | None = None,
    *,
    method: str = "scan",
) -> Value:
    """The positions in the sorted vector `a` at which to insert the elements of `v`.

    A position is before equal elements with the side "left", after them with "right". `sorter`
    holds the indices that sort `a` if it is not sorted. The methods "scan" and "scan_unrolled"
    are binary searches, "sort" sorts both arrays, and "compare_all" compares all pairs.
    """
    if side not in ("left", "right"):
        raise ValueRangeError(f'searchsorted: side must be "left" or "right"; got {side!r}')
    if method not in _METHODS:
        raise ValueRangeError(f"searchsorted: method must be one of {_METHODS}; got {method!r}")
    a, v = (ensure_array(x) for x in promote(a, v))
    if sorter is not None:
        a = take_from_vector(a, ensure_array(sorter))
    return sorting.searchsorted(a, v, side, method)


@as_one_program
def digitize(
    x: ArrayOrList, bins: ArrayOrList, right: bool = False, *, method: str | None = None
) -> Value:
    """The number of the bin of each element of `x`; `bins` are sorted edges in either direction.

    An element on an edge is in the bin above it, or in the bin below it with `right`.
    """
    x, bins = ensure_array(x), ensure_array(bins)
    aval = aval_of(bins)
    if aval.ndim != 1:
        raise ShapeError(f"digitize: bins must be a vector; got {aval!r}")
    n, side, search_method = aval.size, "left" if right else "right", method or "scan"
    if n < 2:
        return searchsorted(bins, x, side, method=search_method)
    if type(bins) is not Tracer and not is_wrapper(bins):
        ascending: Value | bool = bool(bins[-1] >= bins[0])
        if ascending:
            return searchsorted(bins, x, side, method=search_method)
    descending = ops.sub(n, searchsorted(shapes.rev(bins, (0,)), x, side, method=search_method))
    if type(bins) is not Tracer and not is_wrapper(bins):
        return descending
    ascending = operators.greater_equal(take_from_vector(bins, n - 1), take_from_vector(bins, 0))
    return ops.select(ascending, searchsorted(bins, x, side, method=search_method), descending)


def take_from_vector(x: ArrayLike, indices: ArrayLike) -> Value:
    """The elements of the vector `x` at `indices`, an int or an array of integers."""
    if isinstance(indices, int):
        return shapes.reshape(ops.slice(x, (indices,), (indices + 1,)), ())
    return shapes.reshape(gather_along(x, ravel(indices), 0), aval_of(indices).shape)


@as_one_program
def interp(
    x: ArrayOrList,
    xp: ArrayOrList,
    fp: ArrayOrList,
    left: ArrayLike | str | None = None,
    right: ArrayLike | str | None = None,
    period: ArrayLike | None = None,
) -> Value:
    """The piecewise linear interpolation at `x` of the points `xp`, ascending, with values `fp`.

    Outside the points the values are `left` and `right`, by default the values of the outermost
    points; "extrapolate" extends the outermost lines. With `period`, `x` and `xp` are taken
    modulo the period.
    """
    x, xp = promote_inexact(x, xp)
    (fp,) = promote_inexact(fp)
    if is_complex(aval_of(x).dtype):
        raise DTypeError(f"interp: x and xp must be real; got {aval_of(x)!r} and {aval_of(xp)!r}")
    if aval_of(xp).ndim != 1 or aval_of(xp).shape != aval_of(fp).shape or not aval_of(xp).size:
        raise ShapeError(
            f"interp: xp and fp must be vectors of one length; got {aval_of(xp)!r} and {aval_of(fp)!r}"
        )
    if period is not None:
        x, xp, fp = _periodic_points(x, xp, fp, period)
        left = right = "extrapolate"
    n = aval_of(xp).size
    if n == 1:
        values = broadcast_to(fp, aval_of(x).shape or (1,))
        values = shapes.reshape(values, aval_of(x).shape)
    else:
        above = ufuncs.clip(searchsorted(xp, x, "right"), 1, n - 1)
        below = ops.sub(above, 1)
        left_point, left_value = take_from_vector(xp, below), take_from_vector(fp, below)
        width = operators.subtract(take_from_vector(xp, above), left_point)
        # Between points that coincide, 0 / 0 would make derivatives nan.
        tolerance = float(np.spacing(finfo(aval_of(width).dtype).eps))
        coincide = operators.less_equal(operators.absolute(width), tolerance)
        fraction = operators.divide(
            operators.subtract(x, left_point), ufuncs.where(coincide, 1, width)
        )
        rise = operators.multiply(
            fraction, operators.subtract(take_from_vector(fp, above), left_value)
        )
        values = ufuncs.where(coincide, left_value, operators.add(left_value, rise))
    if not _extrapolates("left", left):
        values = ufuncs.where(
            operators.less(x, take_from_vector(xp, 0)),
            take_from_vector(fp, 0) if left is None else left,
            values,
        )
    if not _extrapolates("right", right):
        last = take_from_vector(fp, n - 1) if right is None else right
        values = ufuncs.where(operators.greater(x, take_from_vector(xp, n - 1)), last, values)
    return values


def _extrapolates(name: str, value: object) -> bool:
    if not isinstance(value, str):
        return False
    if value != "extrapolate":
        raise ValueRangeError(f'interp: {name} must be a number or "extrapolate"; got {value!r}')
    return True


def _periodic_points(
    x: Value, xp: Value, fp: Value, period: ArrayLike
) -> tuple[Value, Value, Value]:
    """The points sorted within one period, with one more point on either side."""
    if aval_of(period).ndim:
        raise ShapeError(f"interp: period must be a number; got {aval_of(period)!r}")
    if type(period) is not Tracer and not np.all(np.asarray(period) != 0):
        raise ValueRangeError(f"interp: period must not be zero; got {period}")
    period = operators.absolute(period)
    x, xp = floating_point.remainder(x, period), floating_point.remainder(xp, period)
    n = aval_of(xp).size
    xp, permutation = ops.Sort(0, 1, True, True)(xp)
    fp = take_from_vector(fp, permutation)

    def ends(v: Value, shift: ArrayLike | None) -> list[Value]:
        first, last = take_from_vector(v, 0), take_from_vector(v, n - 1)
        if shift is not None:
            first, last = operators.add(first, shift), operators.subtract(last, shift)
        return [shapes.reshape(last, (1,)), v, shapes.reshape(first, (1,))]

    return x, concatenate(ends(xp, period)), concatenate(ends(fp, None))


def concrete_mask(mask: Value, name: str, fix: str = "") -> NumPyArray:
    """The value of `mask`, which decides the number of results; `fix` overrides the advice."""
    if type(mask) is not Tracer:
        return np.asarray(mask)
    try:
        return concretize(mask, name if fix else f"{name} without `size`")  # type: ignore[no-any-return]
    except ConcretizationError as error:
        error.fix = fix or (
            f"Give {name} the number of results, `size`, and `fill_value` for the extra ones."
        )
        raise


def static_size(size: SupportsIndex) -> int:
    return canonical_shape((size,), "size")[0]


def true_indices(mask: Value, size: int) -> tuple[Value, Value]:
    """The indices of the first `size` true elements of a vector, and the mask of valid ones.

    Extra indices are out of bounds.
    """
    n = aval_of(mask).size
    if not n:
        zeros = shapes.full((size,), literal(0, canonical_dtype(INT)))
        return zeros, shapes.full((size,), literal(False, np.dtype(bool)))
    counts = ops.cumsum(ops.convert_element_type(mask, INT), 0)
    # The k-th true element is the first one with a cumulative count of k.
    ranks = ops.add(ops.iota(INT, size), 1)
    indices = ops.convert_element_type(sorting.searchsorted(counts, ranks), INT)
    return indices, ops.lt(indices, n)


def nonzero(
    a: ArrayOrList, *, size: int | None = None, fill_value: ArrayOrList | None = None
) -> tuple[Value, ...]:
    """The indices of the nonzero elements of `a`: an array for each dimension.

    `size` fixes the number of indices; extra ones are `fill_value` (by default 0; a tuple has
    one for each dimension). Without `size` the elements must be known while tracing.
    """
    return nonzero_indices("nonzero", a, size, fill_value)


def nonzero_indices(
    name: str, a: ArrayOrList, size: int | None, fill_value: ArrayOrList | None
) -> tuple[Value, ...]:
    """The indices of the nonzero elements; errors name the function `name`."""
    a = ensure_array(a)
    shape = aval_of(a).shape
    if not shape:
        raise ShapeError(
            f"{name}: the array must have a dimension; got {aval_of(a)!r}",
            fix="Give it one with atleast_1d.",
        )
    if size is None:
        indices = np.nonzero(concrete_mask(ufuncs.as_boolean(a), name))
        return tuple(
            [ensure_array(positions.astype(canonical_dtype(INT))) for positions in indices]
        )
    positions, valid = true_indices(ravel(ufuncs.as_boolean(a)), static_size(size))
    fills = fill_value if isinstance(fill_value, tuple) else (fill_value,) * len(shape)
    if len(fills) != len(shape):
        raise ShapeError(
            f"{name}: fill_value must be one, or one a dimension; got {fill_value} for {aval_of(a)!r}"
        )
    results = []
    for n, fill in zip(reversed(shape), reversed(fills), strict=True):
        index = ops.rem(positions, max(n, 1)) if len(shape) > 1 else positions
        positions = (
            floating_point.floor_divide(positions, max(n, 1)) if len(shape) > 1 else positions
        )
        fill = 0 if fill is None else fill
        fill = ops.convert_element_type(ensure_array(fill), INT)
        results.append(ops.select(valid, index, shapes.full((), fill)))
    return tuple(results[::-1])


_TRIM_FIX = "Leave it outside of what is traced, or mask with functx.numpy.where."


def trim_zeros(filt: ArrayOrList, trim: str = "fb", axis: Axes = None) -> Value:
    """A view of `filt` without leading zeros ("f" in `trim`) and trailing zeros ("b").

    Along `axis`, one or several, or along all axes. The elements must be known while tracing,
    since they decide the shape.
    """
    filt = ensure_array(filt)
    shape = aval_of(filt).shape
    sides = trim.lower() if isinstance(trim, str) else None
    if sides is None or not set(sides) <= {*"fb"}:
        raise ValueRangeError(
            f'trim_zeros: trim must be made of "f" and "b"; got {short_repr(trim)}'
        )
    indices = np.argwhere(concrete_mask(ufuncs.as_boolean(filt), "trim_zeros", _TRIM_FIX))
    bounds = [slice(None)] * len(shape)
    for d in canonical_axes(axis, len(shape), "trim_zeros: axis"):
        positions = indices[:, d].tolist()
        start = min(positions, default=shape[d]) if "f" in sides else None
        bounds[d] = slice(start, max(positions, default=-1) + 1 if "b" in sides else None)
    return getitem(filt, tuple(bounds))


def flatnonzero(
    a: ArrayOrList, *, size: int | None = None, fill_value: ArrayLike | None = None
) -> Value:
    """The indices of the nonzero elements of the flattened array; `size` as for `nonzero`."""
    return nonzero_indices("flatnonzero", ravel(a), size, fill_value)[0]


def argwhere(
    a: ArrayOrList, *, size: int | None = None, fill_value: ArrayLike | None = None
) -> Value:
    """The indices of the nonzero elements of `a`, one row for each; `size` as for `nonzero`."""
    a = ensure_array(a)
    if not aval_of(a).ndim:
        count = flatnonzero(a, size=size, fill_value=fill_value)
        return shapes.full((aval_of(count).size, 0), literal(0, canonical_dtype(INT)))
    return stack(nonzero_indices("argwhere", a, size, fill_value), axis=1)


@accept_out
def compress(
    condition: ArrayOrList,
    a: ArrayOrList,
    axis: int | None = None,
    out: Out = None,
    *,
    size: int | None = None,
    fill_value: ArrayLike = 0,
) -> Value:
    """The slices of `a` along `axis` where the vector `condition` is True.

    `a` is flattened if `axis` is None. `size` as for `nonzero`.
    """
    condition = ensure_array(condition)
    if aval_of(condition).ndim != 1:
        raise ShapeError(f"compress: the condition must be a vector; got {aval_of(condition)!r}")
    a, axis = array_and_axis("compress", a, axis)
    aval = aval_of(a)
    n = aval.shape[axis]
    mask = ufuncs.as_boolean(condition)
    if size is None:
        indices = np.flatnonzero(concrete_mask(mask, "compress"))
        if indices.size and indices[-1] >= n:
            raise ValueRangeError(
                f"compress: the condition must not hold beyond the axis; got index {indices[-1]} for {aval!r}"
            )
        return gather_along(a, indices.astype(np.int32), axis)
    if aval_of(mask).size > n:
        mask = ops.slice(mask, (0,), (n,))
    return take_or_fill(a, *true_indices(mask, static_size(size)), fill_value, axis)


def take_or_fill(
    a: Value, indices: ArrayLike, valid: Value, fill_value: ArrayLike, axis: int = 0
) -> Value:
    """The slices of `a` at `indices`, with `fill_value` for those that are not `valid`."""
    if not aval_of(a).shape[axis]:
        # The gather needs an element, also if all slices are filled.
        shape = list(aval_of(a).shape)
        shape[axis] = 1
        a = shapes.full(tuple(shape), literal(0, aval_of(a).dtype))
    taken = gather_along(a, indices, axis)
    aval = aval_of(taken)
    fill = ops.convert_element_type(ensure_array(fill_value), aval.dtype)
    valid = shapes.broadcast_in_dim(valid, aval.shape, (axis,))
    return ops.select(valid, taken, broadcast_to(fill, aval.shape))


def extract(
    condition: ArrayOrList, arr: ArrayOrList, *, size: int | None = None, fill_value: ArrayLike = 0
) -> Value:
    """The elements of `arr` where `condition` is True, as a vector; `size` as for `nonzero`."""
    return compress(ravel(condition), ravel(arr), size=size, fill_value=fill_value)
