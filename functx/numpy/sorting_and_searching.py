"""Arrays put in order, and ordered arrays searched."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from ml_dtypes import finfo

from functx import ops
from functx.core.concretization import concretize
from functx.core.errors import (
    ArgumentError,
    ConcretizationError,
    ShapeError,
    ValueRangeError,
    short_repr,
)
from functx.core.tracer import Tracer, aval_of
from functx.core.types import canonical_dtype, complex_dtype
from functx.numpy import floating_point, operators, ufuncs
from functx.numpy.array_creation import INT
from functx.numpy.indexing import getitem
from functx.numpy.joining import concatenate, gather_along, stack, unstack
from functx.numpy.mutation import accept_out
from functx.numpy.promotion import broadcast_to, promote, promote_inexact
from functx.numpy.shapes import ensure_array, ravel
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
    result = ops.sort(a, along)
    return shapes.rev(result, (along,)) if descending else result


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
        a = shapes.rev(a, (along,))
    places = ops.Sort(along, 1, True, True)(a)[-1]
    if descending:
        places = ops.sub(aval_of(a).shape[along] - 1, shapes.rev(places, (along,)))
    return ops.convert_element_type(places, INT if dtype is None else dtype)


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
        return ops.convert_element_type(ensure_array(0), INT)
    along = canonical_axis(axis, avals[0].ndim, "lexsort: axis")
    places = ops.Sort(along, len(arrays), True, True)(*arrays[::-1])[-1]
    return ops.convert_element_type(places, INT)


def sort_complex(a: Any) -> Any:
    """The elements of `a` as complex numbers, in order of real, then of imaginary parts."""
    a = ensure_array(a)
    return sort(ops.convert_element_type(a, complex_dtype(aval_of(a).dtype)))


def partition(a: Any, kth: Any, axis: int | None = -1) -> Any:
    """`a` with the element at `kth` along `axis` where it would be in order.

    Smaller ones lie before it and larger ones after it: here, all are in order.
    """
    a, along = _sort_operand("partition", a, axis, None, None)
    _check_kth("partition", kth, aval_of(a).shape[along])
    return ops.sort(a, along)


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
    return sorting.searchsorted(a, v, side, method)


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
    descending = ops.sub(n, searchsorted(shapes.rev(bins, (0,)), x, side, method=how))
    if type(bins) is not Tracer:
        return descending
    ascending = operators.greater_equal(take_from_vector(bins, n - 1), take_from_vector(bins, 0))
    return ops.select(ascending, searchsorted(bins, x, side, method=how), descending)


def take_from_vector(x: Any, places: Any) -> Any:
    """The elements of the vector `x` at `places`, an integer or any array of them."""
    if isinstance(places, int):
        return shapes.reshape(ops.slice(x, (places,), (places + 1,)), ())
    return shapes.reshape(gather_along(x, ravel(places), 0), aval_of(places).shape)


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
        line = shapes.reshape(line, aval_of(x).shape)
    else:
        above = ufuncs.clip(searchsorted(xp, x, "right"), 1, n - 1)
        below = ops.sub(above, 1)
        start, value = take_from_vector(xp, below), take_from_vector(fp, below)
        width = operators.subtract(take_from_vector(xp, above), start)
        # Points that coincide have no line between them, and 0 / 0 would spoil derivatives.
        least = float(np.spacing(finfo(aval_of(width).dtype).eps))
        same = operators.less_equal(operators.absolute(width), least)
        part = operators.divide(operators.subtract(x, start), ufuncs.where(same, 1, width))
        rise = operators.multiply(part, operators.subtract(take_from_vector(fp, above), value))
        line = ufuncs.where(same, value, operators.add(value, rise))
    if not _extrapolates("left", left):
        line = ufuncs.where(
            operators.less(x, take_from_vector(xp, 0)),
            take_from_vector(fp, 0) if left is None else left,
            line,
        )
    if not _extrapolates("right", right):
        last = take_from_vector(fp, n - 1) if right is None else right
        line = ufuncs.where(operators.greater(x, take_from_vector(xp, n - 1)), last, line)
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
    x, xp = floating_point.remainder(x, period), floating_point.remainder(xp, period)
    n = aval_of(xp).size
    xp, places = ops.Sort(0, 1, True, True)(xp)
    fp = take_from_vector(fp, places)

    def ends(v: Any, shift: Any) -> list[Any]:
        first, last = take_from_vector(v, 0), take_from_vector(v, n - 1)
        if shift is not None:
            first, last = operators.add(first, shift), operators.subtract(last, shift)
        return [shapes.reshape(last, (1,)), v, shapes.reshape(first, (1,))]

    return x, concatenate(ends(xp, period)), concatenate(ends(fp, None))


def concrete_mask(mask: Any, name: str, fix: str = "") -> np.ndarray[Any, Any]:
    """The value of `mask`, which decides how many results there are; `fix` is the cure without `size`."""
    if type(mask) is not Tracer:
        return np.asarray(mask)
    try:
        return concretize(mask, name if fix else f"{name} without `size`")  # type: ignore[no-any-return]
    except ConcretizationError as error:
        error.fix = fix or (
            f"Give {name} the number of results, `size`, and `fill_value` for those left over."
        )
        raise


def static_size(size: Any) -> int:
    return canonical_shape((size,), "size")[0]


def _nonzero_mask(a: Any) -> Any:
    dtype = aval_of(a).dtype
    return a if dtype == np.bool_ else ops.ne(a, literal(0, dtype))


def true_indices(mask: Any, size: int) -> tuple[Any, Any]:
    """Where the first `size` of a vector's true elements are, and which of them there are.

    Those left over lie beyond the end.
    """
    n = aval_of(mask).size
    if not n:
        nothing = shapes.full((size,), literal(0, canonical_dtype(INT)))
        return nothing, shapes.full((size,), literal(False, np.dtype(bool)))
    counts = ops.cumsum(ops.convert_element_type(mask, INT), 0)
    # The k-th true element is the first with k of them up to there.
    wanted = ops.add(ops.iota(INT, size), 1)
    places = ops.convert_element_type(sorting.searchsorted(counts, wanted), INT)
    return places, ops.lt(places, n)


def nonzero(a: Any, *, size: int | None = None, fill_value: Any = None) -> tuple[Any, ...]:
    """Where the elements of `a` are not zero: an array of indices for each dimension.

    With `size` there are so many, those left over `fill_value` (0; a tuple gives each
    dimension its own). Without it the elements must be known while tracing.
    """
    return nonzero_indices("nonzero", a, size, fill_value)


def nonzero_indices(name: str, a: Any, size: int | None, fill_value: Any) -> tuple[Any, ...]:
    """The indices of the nonzero elements; errors name the function `name`."""
    a = ensure_array(a)
    shape = aval_of(a).shape
    if not shape:
        raise ShapeError(
            f"{name}: the array must have a dimension; got {aval_of(a)!r}",
            fix="Give it one with atleast_1d.",
        )
    if size is None:
        found = np.nonzero(concrete_mask(_nonzero_mask(a), name))
        return tuple([ensure_array(places.astype(canonical_dtype(INT))) for places in found])
    places, there = true_indices(ravel(_nonzero_mask(a)), static_size(size))
    fills = fill_value if isinstance(fill_value, tuple) else (fill_value,) * len(shape)
    if len(fills) != len(shape):
        raise ShapeError(
            f"{name}: fill_value must be one, or one a dimension; got {fill_value} for {aval_of(a)!r}"
        )
    results = []
    for n, fill in zip(reversed(shape), reversed(fills), strict=True):
        index = ops.rem(places, max(n, 1)) if len(shape) > 1 else places
        places = floating_point.floor_divide(places, max(n, 1)) if len(shape) > 1 else places
        fill = 0 if fill is None else fill
        fill = ops.convert_element_type(ensure_array(fill), INT)
        results.append(ops.select(there, index, shapes.full((), fill)))
    return tuple(results[::-1])


_TRIM_FIX = "Leave it outside of what is traced, or mask with functx.numpy.where."


def trim_zeros(filt: Any, trim: str = "fb", axis: Any = None) -> Any:
    """`filt` without the zeros at its front ("f" in `trim`) and at its back ("b"), as a view.

    Along `axis`, one or several, or along all. The elements must be known while tracing, since they decide the shape.
    """
    filt = ensure_array(filt)
    shape = aval_of(filt).shape
    sides = trim.lower() if isinstance(trim, str) else None
    if sides is None or not set(sides) <= {*"fb"}:
        raise ValueRangeError(
            f'trim_zeros: trim must be made of "f" and "b"; got {short_repr(trim)}'
        )
    places = np.argwhere(concrete_mask(_nonzero_mask(filt), "trim_zeros", _TRIM_FIX))
    kept = [slice(None)] * len(shape)
    for d in canonical_axes(axis, len(shape), "trim_zeros: axis"):
        along = places[:, d].tolist()
        start = min(along, default=shape[d]) if "f" in sides else None
        kept[d] = slice(start, max(along, default=-1) + 1 if "b" in sides else None)
    return getitem(filt, tuple(kept))


def flatnonzero(a: Any, *, size: int | None = None, fill_value: Any = None) -> Any:
    """Where in the flattened array the elements are not zero; `size` as for `nonzero`."""
    return nonzero_indices("flatnonzero", ravel(a), size, fill_value)[0]


def argwhere(a: Any, *, size: int | None = None, fill_value: Any = None) -> Any:
    """Where the elements of `a` are not zero, a row of indices for each; `size` as for `nonzero`."""
    a = ensure_array(a)
    if not aval_of(a).ndim:
        count = flatnonzero(a, size=size, fill_value=fill_value)
        return shapes.full((aval_of(count).size, 0), literal(0, canonical_dtype(INT)))
    return stack(nonzero_indices("argwhere", a, size, fill_value), axis=1)


@partial(accept_out, out_position=3)
def compress(
    condition: Any, a: Any, axis: int | None = None, *, size: int | None = None, fill_value: Any = 0
) -> Any:
    """The parts of `a` along `axis` where the vector `condition` holds.

    `a` is flattened where `axis` is None. `size` as for `nonzero`.
    """
    condition, a = ensure_array(condition), ensure_array(a)
    if aval_of(condition).ndim != 1:
        raise ShapeError(f"compress: the condition must be a vector; got {aval_of(condition)!r}")
    if axis is None:
        a, axis = ravel(a), 0
    aval = aval_of(a)
    axis = canonical_axis(axis, aval.ndim, "compress: axis")
    n = aval.shape[axis]
    mask = _nonzero_mask(condition)
    if size is None:
        known = np.flatnonzero(concrete_mask(mask, "compress"))
        if known.size and known[-1] >= n:
            raise ValueRangeError(
                f"compress: the condition must not hold beyond the axis; got index {known[-1]} for {aval!r}"
            )
        return gather_along(a, known.astype(np.int32), axis)
    if aval_of(mask).size > n:
        mask = ops.slice(mask, (0,), (n,))
    places, there = true_indices(mask, static_size(size))
    return take_or_fill(a, places, there, fill_value, axis)


def take_or_fill(a: Any, places: Any, there: Any, fill_value: Any, axis: int = 0) -> Any:
    """The parts of `a` at `places`, `fill_value` in place of those that are not `there`."""
    if not aval_of(a).shape[axis]:
        # There is nothing to take, but for what is not there.
        shape = list(aval_of(a).shape)
        shape[axis] = 1
        a = shapes.full(tuple(shape), literal(0, aval_of(a).dtype))
    taken = gather_along(a, places, axis)
    aval = aval_of(taken)
    fill = ops.convert_element_type(ensure_array(fill_value), aval.dtype)
    there = shapes.broadcast_in_dim(there, aval.shape, (axis,))
    return ops.select(there, taken, broadcast_to(fill, aval.shape))


def extract(condition: Any, arr: Any, *, size: int | None = None, fill_value: Any = 0) -> Any:
    """The elements of `arr` where `condition` holds, as a vector; `size` as for `nonzero`."""
    return compress(ravel(condition), ravel(arr), size=size, fill_value=fill_value)
