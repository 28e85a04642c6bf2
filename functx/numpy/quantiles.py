"""Medians, percentiles and quantiles: what stands at a share of the elements in order."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from functx.core.avals import Shape
from functx.core.dtypes import is_floating
from functx.core.errors import DTypeError, ValueRangeError
from functx.core.tracing import aval_of
from functx.numpy import choices, operators, whole_numbers
from functx.numpy.creation import asarray
from functx.numpy.joining import gather_static
from functx.numpy.mutation import write_out_exact
from functx.numpy.promotion import broadcast_to, promote_inexact
from functx.ops import arithmetic
from functx.ops import reductions as ops
from functx.ops.arithmetic import mul, sub
from functx.ops.comparison import eq, ne
from functx.ops.conversion import convert_element_type
from functx.ops.operands import canonical_axes
from functx.ops.selection import select
from functx.ops.shaping import expand_dims, moveaxis, permute_dims, reshape
from functx.ops.slicing import slice_in_dim
from functx.ops.sorting import sort, take_along_axis

__all__ = [
    "median",
    "nanmedian",
    "nanpercentile",
    "nanquantile",
    "percentile",
    "quantile",
]


def median(
    a: Any, axis: Any = None, out: Any = None, overwrite_input: bool = False, keepdims: bool = False
) -> Any:
    """The middle element along `axis` in order of size, or the average of the two middle ones."""
    return quantile(a, 0.5, axis, out, method="midpoint", keepdims=keepdims)


def nanmedian(
    a: Any, axis: Any = None, out: Any = None, overwrite_input: bool = False, keepdims: bool = False
) -> Any:
    """The median along `axis` of the elements that are not nan."""
    return nanquantile(a, 0.5, axis, out, method="midpoint", keepdims=keepdims)


def percentile(
    a: Any,
    q: Any,
    axis: Any = None,
    out: Any = None,
    overwrite_input: bool = False,
    method: str = "linear",
    keepdims: bool = False,
) -> Any:
    """`quantile` for `q` out of a hundred."""
    return quantile(a, _percent_to_fraction(q), axis, out, method=method, keepdims=keepdims)


def nanpercentile(
    a: Any,
    q: Any,
    axis: Any = None,
    out: Any = None,
    overwrite_input: bool = False,
    method: str = "linear",
    keepdims: bool = False,
) -> Any:
    """`nanquantile` for `q` out of a hundred."""
    return nanquantile(a, _percent_to_fraction(q), axis, out, method=method, keepdims=keepdims)


def _percent_to_fraction(q: Any) -> Any:
    if isinstance(q, (int, float, np.ndarray, np.generic)):
        return np.true_divide(q, 100)
    return operators.divide(asarray(q), 100)


def quantile(
    a: Any,
    q: Any,
    axis: Any = None,
    out: Any = None,
    overwrite_input: bool = False,
    method: str = "linear",
    keepdims: bool = False,
) -> Any:
    """The element that a share `q` of all elements along `axis` lies below.

    `method` says what to make of the two elements beside the exact place: `linear`,
    `lower`, `higher`, `midpoint` or `nearest`. Several `q` make the first dimensions of the
    result. nan where there is a nan.
    """
    ordered, shape, axes = _sort_reduced_axes("quantile", a, axis)
    n = aval_of(ordered).shape[-1]
    if n == 0:
        raise ValueRangeError(f"quantile: there must be elements; got an array of shape {shape}")
    q, found = _quantile_values(ordered, q, n, method, nans=False)
    largest = slice_in_dim(ordered, n - 1, n, 1, -1)
    found = choices.where(ne(largest, largest), math.nan, found)
    return write_out_exact(
        "quantile", _restore_dims(found, aval_of(q).shape, shape, axes, keepdims, a), out
    )


def nanquantile(
    a: Any,
    q: Any,
    axis: Any = None,
    out: Any = None,
    overwrite_input: bool = False,
    method: str = "linear",
    keepdims: bool = False,
) -> Any:
    """`quantile` of the elements that are not nan; nan where all are."""
    ordered, shape, axes = _sort_reduced_axes("nanquantile", a, axis)
    q, found = _quantile_values(ordered, q, 0, method, nans=True)
    return write_out_exact(
        "nanquantile", _restore_dims(found, aval_of(q).shape, shape, axes, keepdims, a), out
    )


def _sort_reduced_axes(name: str, a: Any, axis: Any) -> tuple[Any, Shape, Shape]:
    """The elements along `axis` sorted along one last axis, nan last; shape and axes before."""
    (x,) = promote_inexact(a)
    x = asarray(x)
    aval = aval_of(x)
    if not is_floating(aval.dtype):
        raise DTypeError(f"{name}: the array must be real; got {aval!r}")
    axes = canonical_axes(axis, aval.ndim)
    rest = tuple([d for d in range(aval.ndim) if d not in axes])
    x = permute_dims(x, (*rest, *axes))
    length = math.prod(aval.shape[d] for d in axes)
    x = reshape(x, (*[aval.shape[d] for d in rest], length))
    return sort(x, -1), aval.shape, axes


def _quantile_values(ordered: Any, q: Any, n: int, method: str, nans: bool) -> tuple[Any, Any]:
    """`q` as an array, and the elements at those shares along the last axis."""
    if method not in _INTERPOLATIONS:
        raise ValueRangeError(
            f"quantile: method must be one of {list(_INTERPOLATIONS)}; got {method!r}"
        )
    aval = aval_of(ordered)
    known = not isinstance(q, (list, tuple)) or all(isinstance(x, (int, float)) for x in q)
    if known and isinstance(q, (int, float, np.ndarray, np.generic, list, tuple)):
        q = np.asarray(q, np.float64)
        if not np.all((q >= 0) & (q <= 1)):
            raise ValueRangeError(f"quantile: q must lie between 0 and 1; got {q}")
        if not nans:
            return q, _static_quantile_values(ordered, q.ravel() * (n - 1), method)
    q = asarray(q)
    dtype = np.dtype("float64") if aval.dtype == np.float64 else np.dtype("float32")
    shares = reshape(convert_element_type(q, dtype), (aval_of(q).size,))
    last: Any = float(n - 1)
    if nans:
        valid = convert_element_type(eq(ordered, ordered), dtype)
        last = sub(ops.reduce_sum(valid, (aval.ndim - 1,)), 1.0)
        last = expand_dims(choices.maximum(last, 0.0), -1)
    places = operators.multiply(last, shares)
    places = broadcast_to(places, (*aval.shape[:-1], aval_of(shares).shape[0]))
    low = choices.clip(whole_numbers.floor(places), 0.0, last)
    high = choices.clip(whole_numbers.ceil(places), 0.0, last)
    at = [
        take_along_axis(ordered, convert_element_type(i, np.int32), aval.ndim - 1)
        for i in (low, high)
    ]
    share = sub(places, low)
    if method == "nearest":
        nearest = whole_numbers.rint(places)
        return q, select(eq(nearest, low), *at)
    return q, _INTERPOLATIONS[method](*at, convert_element_type(share, aval.dtype))


def _static_quantile_values(ordered: Any, places: Any, method: str) -> Any:
    """The elements at `places` known while tracing, by slices."""
    low, high = np.floor(places).astype(int), np.ceil(places).astype(int)
    if method == "nearest":
        low = high = np.rint(places).astype(int)
    last = aval_of(ordered).ndim - 1
    below = gather_static(ordered, low, last)
    if np.array_equal(low, high) or method == "lower":
        return below
    share = (places - low).astype(aval_of(ordered).dtype)
    return _INTERPOLATIONS[method](
        below,
        gather_static(ordered, high, last),
        float(share[0]) if share.size == 1 else asarray(share),
    )


def _linear_interpolation(low: Any, high: Any, share: Any) -> Any:
    # Weighing both keeps low = -inf and high = inf apart, where low + share (high - low) is nan.
    if type(share) is float:
        return arithmetic.add(mul(low, 1.0 - share), mul(high, share))
    rest = sub(1.0, share)
    weighed = arithmetic.add(operators.multiply(low, rest), operators.multiply(high, share))
    return choices.where(eq(share, 0.0), low, weighed)


_INTERPOLATIONS: dict[str, Callable[..., Any]] = {
    "linear": _linear_interpolation,
    "lower": lambda low, high, share: low,
    "higher": lambda low, high, share: high,
    "midpoint": lambda low, high, share: mul(arithmetic.add(low, high), 0.5),
    "nearest": lambda low, high, share: low,
}


def _restore_dims(
    found: Any, q_shape: Shape, shape: Shape, axes: Shape, keepdims: bool, a: Any
) -> Any:
    """Results along the last axis, with the dimensions of `q` in front instead."""
    found = moveaxis(found, aval_of(found).ndim - 1, 0)
    rest = tuple([1 if d in axes else n for d, n in enumerate(shape) if keepdims or d not in axes])
    found = reshape(found, (*q_shape, *rest))
    return convert_element_type(found, aval_of(found).dtype)
