"""Where conditions hold, and the parts of arrays that lie there.

Without `size` the shape of the result depends on values, which must be known.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from functx.core.concrete import concretize
from functx.core.dtypes import canonical_dtype
from functx.core.errors import ConcretizationError, ShapeError, ValueRangeError, short_repr
from functx.core.tracing import Tracer, aval_of
from functx.numpy import whole_numbers
from functx.numpy.creation import INT
from functx.numpy.indexing import getitem
from functx.numpy.joining import gather_along, stack
from functx.numpy.mutation import accept_out
from functx.numpy.promotion import broadcast_to
from functx.numpy.shapes import ensure_array, ravel
from functx.ops import searching, shaping
from functx.ops.arithmetic import add, rem
from functx.ops.comparison import lt, ne
from functx.ops.conversion import convert_element_type
from functx.ops.creation import iota
from functx.ops.cumulative import cumsum
from functx.ops.operands import canonical_axes, canonical_axis, canonical_shape, literal
from functx.ops.selection import select
from functx.ops.slicing import slice as slice_

__all__ = [
    "argwhere",
    "compress",
    "extract",
    "flatnonzero",
    "nonzero",
    "trim_zeros",
]


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
    return a if dtype == np.bool_ else ne(a, literal(0, dtype))


def true_indices(mask: Any, size: int) -> tuple[Any, Any]:
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
        index = rem(places, max(n, 1)) if len(shape) > 1 else places
        places = whole_numbers.floor_divide(places, max(n, 1)) if len(shape) > 1 else places
        fill = 0 if fill is None else fill
        fill = convert_element_type(ensure_array(fill), INT)
        results.append(select(there, index, shaping.full((), fill)))
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
        return shaping.full((aval_of(count).size, 0), literal(0, canonical_dtype(INT)))
    return stack(nonzero_indices("argwhere", a, size, fill_value), axis=1)


@partial(accept_out, place=3)
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
        mask = slice_(mask, (0,), (n,))
    places, there = true_indices(mask, static_size(size))
    return take_or_fill(a, places, there, fill_value, axis)


def take_or_fill(a: Any, places: Any, there: Any, fill_value: Any, axis: int = 0) -> Any:
    """The parts of `a` at `places`, `fill_value` in place of those that are not `there`."""
    if not aval_of(a).shape[axis]:
        # There is nothing to take, but for what is not there.
        shape = list(aval_of(a).shape)
        shape[axis] = 1
        a = shaping.full(tuple(shape), literal(0, aval_of(a).dtype))
    taken = gather_along(a, places, axis)
    aval = aval_of(taken)
    fill = convert_element_type(ensure_array(fill_value), aval.dtype)
    there = shaping.broadcast_in_dim(there, aval.shape, (axis,))
    return select(there, taken, broadcast_to(fill, aval.shape))


def extract(condition: Any, arr: Any, *, size: int | None = None, fill_value: Any = 0) -> Any:
    """The elements of `arr` where `condition` holds, as a vector; `size` as for `nonzero`."""
    return compress(ravel(condition), ravel(arr), size=size, fill_value=fill_value)
