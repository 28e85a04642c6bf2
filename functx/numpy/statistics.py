"""Order statistics, counts and correlations."""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from functx.core.avals import Shape
from functx.core.concrete import concrete
from functx.core.dtypes import (
    DType,
    canonical_dtype,
    inexact_dtype,
    is_complex,
    is_floating,
    kind,
)
from functx.core.errors import (
    DTypeError,
    ShapeError,
    ValueRangeError,
)
from functx.core.tracing import Tracer, aval_of
from functx.numpy import elementwise
from functx.numpy.contraction import tensordot
from functx.numpy.creation import asarray, diagonal, linspace
from functx.numpy.differences import diff
from functx.numpy.indexing import At
from functx.numpy.manipulation import take_static
from functx.numpy.mutation import exactly_into
from functx.numpy.promotion import broadcast_to, promote, promote_inexact
from functx.numpy.reductions import max, min, part_dtype, raveled, sum, summed_dtype
from functx.numpy.sorting import searchsorted
from functx.ops import arithmetic
from functx.ops import reductions as ops
from functx.ops.arithmetic import div, mul, sub
from functx.ops.comparison import eq, ne
from functx.ops.complexes import conj
from functx.ops.conversion import convert_element_type
from functx.ops.operands import canonical_axes
from functx.ops.selection import select
from functx.ops.shaping import (
    broadcast_in_dim,
    concatenate,
    expand_dims,
    moveaxis,
    permute_dims,
    reshape,
)
from functx.ops.slicing import slice_in_dim
from functx.ops.sorting import sort, take_along_axis

__all__ = [
    "bincount",
    "corrcoef",
    "cov",
    "histogram",
    "histogram_bin_edges",
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
    return quantile(a, _hundredths(q), axis, out, method=method, keepdims=keepdims)


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
    return nanquantile(a, _hundredths(q), axis, out, method=method, keepdims=keepdims)


def _hundredths(q: Any) -> Any:
    if isinstance(q, (int, float, np.ndarray, np.generic)):
        return np.true_divide(q, 100)
    return elementwise.divide(asarray(q), 100)


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
    ordered, shape, axes = _in_order("quantile", a, axis)
    n = aval_of(ordered).shape[-1]
    if n == 0:
        raise ValueRangeError(f"quantile: there must be elements; got an array of shape {shape}")
    q, found = _at_shares(ordered, q, n, method, nans=False)
    largest = slice_in_dim(ordered, n - 1, n, 1, -1)
    found = elementwise.where(ne(largest, largest), math.nan, found)
    return exactly_into(
        "quantile", _laid_out(found, aval_of(q).shape, shape, axes, keepdims, a), out
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
    ordered, shape, axes = _in_order("nanquantile", a, axis)
    q, found = _at_shares(ordered, q, 0, method, nans=True)
    return exactly_into(
        "nanquantile", _laid_out(found, aval_of(q).shape, shape, axes, keepdims, a), out
    )


def _in_order(name: str, a: Any, axis: Any) -> tuple[Any, Shape, Shape]:
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


def _at_shares(ordered: Any, q: Any, n: int, method: str, nans: bool) -> tuple[Any, Any]:
    """`q` as an array, and the elements at those shares along the last axis."""
    if method not in _BETWEEN:
        raise ValueRangeError(f"quantile: method must be one of {list(_BETWEEN)}; got {method!r}")
    aval = aval_of(ordered)
    known = not isinstance(q, (list, tuple)) or builtins.all(isinstance(x, (int, float)) for x in q)
    if known and isinstance(q, (int, float, np.ndarray, np.generic, list, tuple)):
        q = np.asarray(q, np.float64)
        if not np.all((q >= 0) & (q <= 1)):
            raise ValueRangeError(f"quantile: q must lie between 0 and 1; got {q}")
        if not nans:
            return q, _at_places(ordered, q.ravel() * (n - 1), method)
    q = asarray(q)
    dtype = np.dtype("float64") if aval.dtype == np.float64 else np.dtype("float32")
    shares = reshape(convert_element_type(q, dtype), (aval_of(q).size,))
    last: Any = float(n - 1)
    if nans:
        valid = convert_element_type(eq(ordered, ordered), dtype)
        last = sub(ops.reduce_sum(valid, (aval.ndim - 1,)), 1.0)
        last = expand_dims(elementwise.maximum(last, 0.0), -1)
    places = elementwise.multiply(last, shares)
    places = broadcast_to(places, (*aval.shape[:-1], aval_of(shares).shape[0]))
    low = elementwise.clip(elementwise.floor(places), 0.0, last)
    high = elementwise.clip(elementwise.ceil(places), 0.0, last)
    at = [
        take_along_axis(ordered, convert_element_type(i, np.int32), aval.ndim - 1)
        for i in (low, high)
    ]
    share = sub(places, low)
    if method == "nearest":
        nearest = elementwise.rint(places)
        return q, select(eq(nearest, low), *at)
    return q, _BETWEEN[method](*at, convert_element_type(share, aval.dtype))


def _at_places(ordered: Any, places: Any, method: str) -> Any:
    """The elements at `places` known while tracing, by slices."""
    low, high = np.floor(places).astype(int), np.ceil(places).astype(int)
    if method == "nearest":
        low = high = np.rint(places).astype(int)
    last = aval_of(ordered).ndim - 1
    below = take_static(ordered, low, last)
    if np.array_equal(low, high) or method == "lower":
        return below
    share = (places - low).astype(aval_of(ordered).dtype)
    return _BETWEEN[method](
        below,
        take_static(ordered, high, last),
        float(share[0]) if share.size == 1 else asarray(share),
    )


def _interpolated(low: Any, high: Any, share: Any) -> Any:
    # Weighing both keeps low = -inf and high = inf apart, where low + share (high - low) is nan.
    if type(share) is float:
        return arithmetic.add(mul(low, 1.0 - share), mul(high, share))
    rest = sub(1.0, share)
    weighed = arithmetic.add(elementwise.multiply(low, rest), elementwise.multiply(high, share))
    return elementwise.where(eq(share, 0.0), low, weighed)


_BETWEEN: dict[str, Callable[..., Any]] = {
    "linear": _interpolated,
    "lower": lambda low, high, share: low,
    "higher": lambda low, high, share: high,
    "midpoint": lambda low, high, share: mul(arithmetic.add(low, high), 0.5),
    "nearest": lambda low, high, share: low,
}


def _laid_out(found: Any, q_shape: Shape, shape: Shape, axes: Shape, keepdims: bool, a: Any) -> Any:
    """Results along the last axis, with the dimensions of `q` in front instead."""
    found = moveaxis(found, aval_of(found).ndim - 1, 0)
    rest = tuple([1 if d in axes else n for d, n in enumerate(shape) if keepdims or d not in axes])
    found = reshape(found, (*q_shape, *rest))
    return convert_element_type(found, aval_of(found).dtype)


def bincount(x: Any, weights: Any = None, minlength: int = 0, *, length: int | None = None) -> Any:
    """How often each integer from 0 up occurs in `x`, or the sum of the weights of each.

    `length` fixes the number of counts, which otherwise needs the values of `x`; what lies
    beyond is left out, and negative integers count as 0.
    """
    places = asarray(x)
    aval = aval_of(places)
    if kind(aval.dtype) not in "biu" or aval.ndim != 1:
        raise DTypeError(f"bincount: the array must be a vector of integers; got {aval!r}")
    if length is None:
        known = concrete(places, "bincount without length=") if type(places) is Tracer else places
        length = builtins.max(minlength, int(np.max(np.asarray(known), initial=-1)) + 1)
    counted = asarray(1 if weights is None else weights)
    counted = convert_element_type(
        counted,
        canonical_dtype("int64") if weights is None else summed_dtype(aval_of(counted).dtype),
    )
    return _tally(places, broadcast_to(counted, aval.shape), length)


def _tally(places: Any, amounts: Any, length: int) -> Any:
    zero = broadcast_to(asarray(0, aval_of(amounts).dtype), (length,))
    return At(zero)[elementwise.maximum(places, 0)].add(amounts, mode="drop")


def histogram_bin_edges(a: Any, bins: Any = 10, range: Any = None, weights: Any = None) -> Any:
    """The edges of `bins`, a number of equal ones between the bounds `range`, or the edges."""
    if not isinstance(bins, (int, np.integer)):
        return asarray(bins)
    (x,) = promote_inexact(a)
    x = raveled(x)
    if range is None:
        range = (min(x), max(x)) if aval_of(x).size else (0.0, 1.0)
    low, high = promote_inexact(*range)
    same = elementwise.equal(low, high)
    half = elementwise.where(same, 0.5, 0.0)
    edges = linspace(elementwise.subtract(low, half), elementwise.add(high, half), int(bins) + 1)
    return convert_element_type(edges, aval_of(x).dtype)


def histogram(
    a: Any, bins: Any = 10, range: Any = None, density: Any = None, weights: Any = None
) -> tuple[Any, Any]:
    """How many elements lie in each of `bins`, or the sum of their weights; and the edges.

    With `density`, as shares for each unit of width. The last bin holds its upper edge too.
    """
    (x,) = promote_inexact(a)
    x = raveled(x)
    edges = histogram_bin_edges(x, bins, range)
    edges = convert_element_type(edges, aval_of(x).dtype)
    n = aval_of(edges).shape[0] - 1
    first, last = slice_in_dim(edges, 0, 1), slice_in_dim(edges, n, n + 1)
    place = sub(convert_element_type(searchsorted(edges, x, side="right"), np.int32), 1)
    place = elementwise.where(elementwise.equal(x, last), n - 1, place)
    inside = elementwise.logical_and(
        elementwise.greater_equal(x, first), elementwise.less_equal(x, last)
    )
    amounts = asarray(1, aval_of(x).dtype) if weights is None else asarray(weights)
    amounts = convert_element_type(amounts, inexact_dtype(aval_of(amounts).dtype))
    amounts = broadcast_to(amounts, aval_of(x).shape)
    counts = _tally(elementwise.where(inside, place, n), amounts, n)
    if density:
        counts = div(counts, elementwise.multiply(diff(edges), sum(counts)))
    return counts, edges


def cov(
    m: Any,
    y: Any = None,
    rowvar: bool = True,
    bias: bool = False,
    ddof: int | None = None,
    fweights: Any = None,
    aweights: Any = None,
) -> Any:
    """The covariances of variables, one a row of `m` and of `y`, or a column if not `rowvar`."""
    x = _variables("cov", m, rowvar)
    if y is not None:
        x, other = promote(x, _variables("cov", y, rowvar))
        x = concatenate([x, other], 0)
    (x,) = promote_inexact(x)
    dtype = aval_of(x).dtype
    n = aval_of(x).shape[1]
    freedom = (0 if bias else 1) if ddof is None else ddof
    weights, total, less = None, float(n), float(freedom)
    if fweights is not None or aweights is not None:
        weights, total, less = _observation_weights(fweights, aweights, freedom, part_dtype(dtype))
        weights = convert_element_type(weights, dtype)
        centre = div(
            ops.reduce_sum(elementwise.multiply(x, weights), (1,)),
            convert_element_type(total, dtype),
        )
    else:
        centre = div(ops.reduce_sum(x, (1,)), total)
    x = sub(x, broadcast_in_dim(centre, aval_of(x).shape, (0,)))
    weighted = x if weights is None else elementwise.multiply(x, weights)
    conjugate = conj(x) if is_complex(dtype) else x
    products = tensordot(weighted, conjugate, axes=((1,), (1,)))
    if weights is None:
        rest: Any = builtins.max(total - less, 0.0)
    else:
        rest = elementwise.maximum(sub(total, less), 0.0)
    found = elementwise.divide(products, rest)
    shape = aval_of(found).shape
    return reshape(found, tuple([k for k in shape if k != 1]) if 1 in shape else shape)


def _variables(name: str, m: Any, rowvar: bool) -> Any:
    x = asarray(m)
    aval = aval_of(x)
    if aval.ndim > 2:
        raise ShapeError(f"{name}: arrays must have at most two dimensions; got {aval!r}")
    if aval.ndim < 2:
        return reshape(x, (1, aval.size))
    return x if rowvar or aval.shape[0] == 1 else permute_dims(x, (1, 0))


def _observation_weights(fweights: Any, aweights: Any, ddof: int, dtype: DType) -> Any:
    """The weights of the observations, their sum, and what to take from it for `ddof`."""
    frequency = None if fweights is None else convert_element_type(asarray(fweights), dtype)
    weight = frequency
    if aweights is not None:
        own = convert_element_type(asarray(aweights), dtype)
        weight = own if frequency is None else mul(frequency, own)
    total = ops.reduce_sum(weight)
    if aweights is None:
        return weight, total, float(ddof)
    return weight, total, div(mul(ops.reduce_sum(mul(weight, own)), float(ddof)), total)


def corrcoef(x: Any, y: Any = None, rowvar: bool = True) -> Any:
    """The correlation coefficients of variables, one a row of `x` and of `y`."""
    c = cov(x, y, rowvar)
    aval = aval_of(c)
    if aval.ndim == 0:
        return div(c, c)
    deviation = elementwise.sqrt(elementwise.real(diagonal(c)))
    scale = [broadcast_in_dim(deviation, aval.shape, (d,)) for d in (0, 1)]
    for one in scale:
        c = elementwise.divide(c, one)
    clipped = elementwise.on_parts(lambda part: elementwise.clip(part, -1.0, 1.0), c)
    return clipped
