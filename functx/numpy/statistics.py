"""Counts of values and of bins, covariances and correlations."""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from functx import ops
from functx.core.concretization import concretize
from functx.core.errors import DTypeError, ShapeError, ValueRangeError
from functx.core.tracer import Tracer, aval_of
from functx.core.types import (
    DType,
    Shape,
    canonical_dtype,
    inexact_dtype,
    is_complex,
    is_floating,
    kind,
    real_dtype,
)
from functx.numpy import floating_point, operators, ufuncs
from functx.numpy.array_creation import asarray, linspace
from functx.numpy.cumulative import diff
from functx.numpy.indexing import At
from functx.numpy.joining import gather_static
from functx.numpy.matrices import diagonal
from functx.numpy.mutation import write_out_exact
from functx.numpy.promotion import broadcast_to, promote, promote_inexact
from functx.numpy.reductions import max, min, sum, sum_dtype
from functx.numpy.shapes import reshape
from functx.numpy.sorting_and_searching import searchsorted
from functx.numpy.tensor_contractions import tensordot
from functx.numpy.ufuncs import map_real_and_imag
from functx.ops import arithmetic
from functx.ops.convolution import ConvLayouts, Convolution
from functx.ops.operands import canonical_axes

__all__ = [
    "bincount",
    "convolve",
    "corrcoef",
    "correlate",
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


def bincount(x: Any, weights: Any = None, minlength: int = 0, *, length: int | None = None) -> Any:
    """How often each integer from 0 up occurs in `x`, or the sum of the weights of each.

    `length` fixes the number of counts, which otherwise needs the values of `x`; what lies
    beyond is left out, and negative integers count as 0.
    """
    places = asarray(x)
    aval = aval_of(places)
    if kind(aval.dtype) not in "biu" or aval.ndim != 1:
        raise DTypeError(f"bincount: the array must be a vector of integers; got {aval!r}")
    if aval.dtype.itemsize < 4:
        places = ops.convert_element_type(places, np.int32)
    if length is None:
        known = concretize(places, "bincount without length=") if type(places) is Tracer else places
        length = builtins.max(minlength, int(np.max(known)) + 1 if aval.size else 0)
    counted = asarray(1 if weights is None else weights)
    counted = ops.convert_element_type(
        counted,
        canonical_dtype("int64") if weights is None else sum_dtype(aval_of(counted).dtype),
    )
    return _scatter_counts(places, broadcast_to(counted, aval.shape), length)


def _scatter_counts(places: Any, amounts: Any, length: int) -> Any:
    zero = broadcast_to(asarray(0, aval_of(amounts).dtype), (length,))
    return At(zero)[ufuncs.maximum(places, 0)].add(amounts, mode="drop")


def histogram_bin_edges(a: Any, bins: Any = 10, range: Any = None, weights: Any = None) -> Any:
    """The edges of `bins`, a number of equal ones between the bounds `range`, or the edges."""
    if not isinstance(bins, (int, np.integer)):
        return asarray(bins)
    (x,) = promote_inexact(a)
    x = reshape(x, -1)
    if range is None:
        range = (min(x), max(x)) if aval_of(x).size else (0.0, 1.0)
    low, high = promote_inexact(*range)
    same = operators.equal(low, high)
    half = ufuncs.where(same, 0.5, 0.0)
    edges = linspace(operators.subtract(low, half), operators.add(high, half), int(bins) + 1)
    return ops.convert_element_type(edges, aval_of(x).dtype)


def histogram(
    a: Any, bins: Any = 10, range: Any = None, density: Any = None, weights: Any = None
) -> tuple[Any, Any]:
    """How many elements lie in each of `bins`, or the sum of their weights; and the edges.

    With `density`, as shares for each unit of width. The last bin holds its upper edge too.
    """
    (x,) = promote_inexact(a)
    x = reshape(x, -1)
    edges = histogram_bin_edges(x, bins, range)
    edges = ops.convert_element_type(edges, aval_of(x).dtype)
    n = aval_of(edges).shape[0] - 1
    first, last = ops.slice_in_dim(edges, 0, 1), ops.slice_in_dim(edges, n, n + 1)
    place = ops.sub(ops.convert_element_type(searchsorted(edges, x, side="right"), np.int32), 1)
    place = ufuncs.where(operators.equal(x, last), n - 1, place)
    inside = operators.logical_and(operators.greater_equal(x, first), operators.less_equal(x, last))
    amounts = asarray(1, aval_of(x).dtype) if weights is None else reshape(asarray(weights), -1)
    amounts = ops.convert_element_type(amounts, inexact_dtype(aval_of(amounts).dtype))
    amounts = broadcast_to(amounts, aval_of(x).shape)
    counts = _scatter_counts(ufuncs.where(inside, place, n), amounts, n)
    if density:
        counts = ops.div(counts, operators.multiply(diff(edges), sum(counts)))
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
    x = _observation_rows("cov", m, rowvar)
    if y is not None:
        x, other = promote(x, _observation_rows("cov", y, rowvar))
        x = ops.concatenate([x, other], 0)
    (x,) = promote_inexact(x)
    dtype = aval_of(x).dtype
    n = aval_of(x).shape[1]
    freedom = (0 if bias else 1) if ddof is None else ddof
    weights, total, less = None, float(n), float(freedom)
    if fweights is not None or aweights is not None:
        weights, total, less = _observation_weights(fweights, aweights, freedom, real_dtype(dtype))
        weights = ops.convert_element_type(weights, dtype)
        centre = ops.div(
            ops.reduce_sum(operators.multiply(x, weights), (1,)),
            ops.convert_element_type(total, dtype),
        )
    else:
        centre = ops.div(ops.reduce_sum(x, (1,)), total)
    x = ops.sub(x, ops.broadcast_in_dim(centre, aval_of(x).shape, (0,)))
    weighted = x if weights is None else operators.multiply(x, weights)
    conjugate = ops.conj(x) if is_complex(dtype) else x
    products = tensordot(weighted, conjugate, axes=((1,), (1,)))
    if weights is None:
        rest: Any = builtins.max(total - less, 0.0)
    else:
        rest = ufuncs.maximum(ops.sub(total, less), 0.0)
    found = operators.divide(products, rest)
    shape = aval_of(found).shape
    return ops.reshape(found, tuple([k for k in shape if k != 1]) if 1 in shape else shape)


def _observation_rows(name: str, m: Any, rowvar: bool) -> Any:
    x = asarray(m)
    aval = aval_of(x)
    if aval.ndim > 2:
        raise ShapeError(f"{name}: arrays must have at most two dimensions; got {aval!r}")
    if aval.ndim < 2:
        return ops.reshape(x, (1, aval.size))
    return x if rowvar or aval.shape[0] == 1 else ops.permute_dims(x, (1, 0))


def _observation_weights(fweights: Any, aweights: Any, ddof: int, dtype: DType) -> Any:
    """The weights of the observations, their sum, and what to take from it for `ddof`."""
    frequency = None if fweights is None else ops.convert_element_type(asarray(fweights), dtype)
    weight = frequency
    if aweights is not None:
        own = ops.convert_element_type(asarray(aweights), dtype)
        weight = own if frequency is None else ops.mul(frequency, own)
    total = ops.reduce_sum(weight)
    if aweights is None:
        return weight, total, float(ddof)
    return weight, total, ops.div(ops.mul(ops.reduce_sum(ops.mul(weight, own)), float(ddof)), total)


def corrcoef(x: Any, y: Any = None, rowvar: bool = True) -> Any:
    """The correlation coefficients of variables, one a row of `x` and of `y`."""
    c = cov(x, y, rowvar)
    aval = aval_of(c)
    if aval.ndim == 0:
        return ops.div(c, c)
    deviation = ufuncs.sqrt(floating_point.real(diagonal(c)))
    scale = [ops.broadcast_in_dim(deviation, aval.shape, (d,)) for d in (0, 1)]
    for one in scale:
        c = operators.divide(c, one)
    clipped = map_real_and_imag(lambda part: ufuncs.clip(part, -1.0, 1.0), c)
    return clipped


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
    largest = ops.slice_in_dim(ordered, n - 1, n, 1, -1)
    found = ufuncs.where(ops.ne(largest, largest), math.nan, found)
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
    x = ops.permute_dims(x, (*rest, *axes))
    length = math.prod(aval.shape[d] for d in axes)
    x = ops.reshape(x, (*[aval.shape[d] for d in rest], length))
    return ops.sort(x, -1), aval.shape, axes


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
    shares = ops.reshape(ops.convert_element_type(q, dtype), (aval_of(q).size,))
    last: Any = float(n - 1)
    if nans:
        valid = ops.convert_element_type(ops.eq(ordered, ordered), dtype)
        last = ops.sub(ops.reduce_sum(valid, (aval.ndim - 1,)), 1.0)
        last = ops.expand_dims(ufuncs.maximum(last, 0.0), -1)
    places = operators.multiply(last, shares)
    places = broadcast_to(places, (*aval.shape[:-1], aval_of(shares).shape[0]))
    low = ufuncs.clip(floating_point.floor(places), 0.0, last)
    high = ufuncs.clip(floating_point.ceil(places), 0.0, last)
    at = [
        ops.take_along_axis(ordered, ops.convert_element_type(i, np.int32), aval.ndim - 1)
        for i in (low, high)
    ]
    share = ops.sub(places, low)
    if method == "nearest":
        nearest = floating_point.rint(places)
        return q, ops.select(ops.eq(nearest, low), *at)
    return q, _INTERPOLATIONS[method](*at, ops.convert_element_type(share, aval.dtype))


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
        return arithmetic.add(ops.mul(low, 1.0 - share), ops.mul(high, share))
    rest = ops.sub(1.0, share)
    weighed = arithmetic.add(operators.multiply(low, rest), operators.multiply(high, share))
    return ufuncs.where(ops.eq(share, 0.0), low, weighed)


_INTERPOLATIONS: dict[str, Callable[..., Any]] = {
    "linear": _linear_interpolation,
    "lower": lambda low, high, share: low,
    "higher": lambda low, high, share: high,
    "midpoint": lambda low, high, share: ops.mul(arithmetic.add(low, high), 0.5),
    "nearest": lambda low, high, share: low,
}


def _restore_dims(
    found: Any, q_shape: Shape, shape: Shape, axes: Shape, keepdims: bool, a: Any
) -> Any:
    """Results along the last axis, with the dimensions of `q` in front instead."""
    found = ops.moveaxis(found, aval_of(found).ndim - 1, 0)
    rest = tuple([1 if d in axes else n for d, n in enumerate(shape) if keepdims or d not in axes])
    found = ops.reshape(found, (*q_shape, *rest))
    return ops.convert_element_type(found, aval_of(found).dtype)


def convolve(
    a: Any, v: Any, mode: str = "full", *, precision: Any = None, preferred_element_type: Any = None
) -> Any:
    """The sums of products of `a` with `v` flipped, at each place where they meet.

    "full" has all places, "same" the middle ones, as many as the longer has elements, "valid"
    those where the shorter lies within the longer.

    Raises ShapeError unless both are one-dimensional and not empty.
    """
    a, v = _vector_operands("convolve", a, v)
    if aval_of(a).shape < aval_of(v).shape:
        a, v = v, a
    return _convolve_vectors(
        "convolve", a, ops.rev(v, (0,)), mode, precision, preferred_element_type
    )


def correlate(
    a: Any,
    v: Any,
    mode: str = "valid",
    *,
    precision: Any = None,
    preferred_element_type: Any = None,
) -> Any:
    """The sums of products of `a` with the conjugate of `v`, at each place where they meet.

    `mode` is as in `convolve`; exchanging `a` and `v` gives the conjugates in reverse order.

    Raises ShapeError unless both are one-dimensional and not empty.
    """
    a, v = _vector_operands("correlate", a, v)
    v = ops.conj(v) if is_complex(aval_of(v).dtype) else v
    if aval_of(a).shape < aval_of(v).shape:
        found = _convolve_vectors("correlate", v, a, mode, precision, preferred_element_type)
        return ops.rev(found, (0,))
    return _convolve_vectors("correlate", a, v, mode, precision, preferred_element_type)


def _vector_operands(name: str, a: Any, v: Any) -> tuple[Any, ...]:
    a, v = promote(a, v)
    if not aval_of(a).ndim == aval_of(v).ndim == 1 or not (aval_of(a).size and aval_of(v).size):
        raise ShapeError(
            f"{name}: both must be one-dimensional and not empty; "
            f"got {aval_of(a)!r} and {aval_of(v)!r}"
        )
    return a, v


def _convolve_vectors(name: str, a: Any, v: Any, mode: str, precision: Any, wide: Any) -> Any:
    """The sums of products of `v` with the windows of `a`, which is no shorter."""
    n = aval_of(v).size
    paddings = {"full": (n - 1, n - 1), "same": (n // 2, n - n // 2 - 1), "valid": (0, 0)}
    if not isinstance(mode, str) or mode not in paddings:
        raise ValueRangeError(f'{name}: mode must be "full", "same" or "valid"; got {mode!r}')
    layout = (0, 1, 2)
    slide = Convolution(
        ops.Window((n,), (1,), (paddings[mode],), (1,), (1,)),
        ConvLayouts(layout, layout, layout),
        precision=ops.canonical_precision(precision),
        preferred_element_type=None if wide is None else canonical_dtype(wide),
    )
    out = slide(ops.reshape(a, (1, 1, aval_of(a).size)), ops.reshape(v, (1, 1, n)))
    return ops.reshape(out, aval_of(out).shape[2:])
