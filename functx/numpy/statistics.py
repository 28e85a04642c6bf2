"""Counts of values and of bins, covariances and correlations."""

from __future__ import annotations

import builtins
from typing import Any

import numpy as np

from functx.core.concrete import concretize
from functx.core.dtypes import DType, canonical_dtype, inexact_dtype, is_complex, kind
from functx.core.errors import DTypeError, ShapeError
from functx.core.tracing import Tracer, aval_of
from functx.numpy import choices, elementary, number_parts, operators
from functx.numpy.contraction import tensordot
from functx.numpy.creation import asarray
from functx.numpy.differences import diff
from functx.numpy.indexing import At
from functx.numpy.matrices import diagonal
from functx.numpy.promotion import broadcast_to, promote, promote_inexact
from functx.numpy.ranges import linspace
from functx.numpy.reductions import max, min, ravel_array, real_part_dtype, sum, sum_dtype
from functx.numpy.sorting import searchsorted
from functx.numpy.ufuncs import map_real_and_imag
from functx.ops import reductions as ops
from functx.ops.arithmetic import div, mul, sub
from functx.ops.complexes import conj
from functx.ops.conversion import convert_element_type
from functx.ops.joining import concatenate
from functx.ops.shaping import broadcast_in_dim, permute_dims, reshape
from functx.ops.slicing import slice_in_dim

__all__ = [
    "bincount",
    "corrcoef",
    "cov",
    "histogram",
    "histogram_bin_edges",
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
        places = convert_element_type(places, np.int32)
    if length is None:
        known = concretize(places, "bincount without length=") if type(places) is Tracer else places
        length = builtins.max(minlength, int(np.max(known)) + 1 if aval.size else 0)
    counted = asarray(1 if weights is None else weights)
    counted = convert_element_type(
        counted,
        canonical_dtype("int64") if weights is None else sum_dtype(aval_of(counted).dtype),
    )
    return _scatter_counts(places, broadcast_to(counted, aval.shape), length)


def _scatter_counts(places: Any, amounts: Any, length: int) -> Any:
    zero = broadcast_to(asarray(0, aval_of(amounts).dtype), (length,))
    return At(zero)[choices.maximum(places, 0)].add(amounts, mode="drop")


def histogram_bin_edges(a: Any, bins: Any = 10, range: Any = None, weights: Any = None) -> Any:
    """The edges of `bins`, a number of equal ones between the bounds `range`, or the edges."""
    if not isinstance(bins, (int, np.integer)):
        return asarray(bins)
    (x,) = promote_inexact(a)
    x = ravel_array(x)
    if range is None:
        range = (min(x), max(x)) if aval_of(x).size else (0.0, 1.0)
    low, high = promote_inexact(*range)
    same = operators.equal(low, high)
    half = choices.where(same, 0.5, 0.0)
    edges = linspace(operators.subtract(low, half), operators.add(high, half), int(bins) + 1)
    return convert_element_type(edges, aval_of(x).dtype)


def histogram(
    a: Any, bins: Any = 10, range: Any = None, density: Any = None, weights: Any = None
) -> tuple[Any, Any]:
    """How many elements lie in each of `bins`, or the sum of their weights; and the edges.

    With `density`, as shares for each unit of width. The last bin holds its upper edge too.
    """
    (x,) = promote_inexact(a)
    x = ravel_array(x)
    edges = histogram_bin_edges(x, bins, range)
    edges = convert_element_type(edges, aval_of(x).dtype)
    n = aval_of(edges).shape[0] - 1
    first, last = slice_in_dim(edges, 0, 1), slice_in_dim(edges, n, n + 1)
    place = sub(convert_element_type(searchsorted(edges, x, side="right"), np.int32), 1)
    place = choices.where(operators.equal(x, last), n - 1, place)
    inside = operators.logical_and(operators.greater_equal(x, first), operators.less_equal(x, last))
    amounts = asarray(1, aval_of(x).dtype) if weights is None else ravel_array(asarray(weights))
    amounts = convert_element_type(amounts, inexact_dtype(aval_of(amounts).dtype))
    amounts = broadcast_to(amounts, aval_of(x).shape)
    counts = _scatter_counts(choices.where(inside, place, n), amounts, n)
    if density:
        counts = div(counts, operators.multiply(diff(edges), sum(counts)))
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
        x = concatenate([x, other], 0)
    (x,) = promote_inexact(x)
    dtype = aval_of(x).dtype
    n = aval_of(x).shape[1]
    freedom = (0 if bias else 1) if ddof is None else ddof
    weights, total, less = None, float(n), float(freedom)
    if fweights is not None or aweights is not None:
        weights, total, less = _observation_weights(
            fweights, aweights, freedom, real_part_dtype(dtype)
        )
        weights = convert_element_type(weights, dtype)
        centre = div(
            ops.reduce_sum(operators.multiply(x, weights), (1,)),
            convert_element_type(total, dtype),
        )
    else:
        centre = div(ops.reduce_sum(x, (1,)), total)
    x = sub(x, broadcast_in_dim(centre, aval_of(x).shape, (0,)))
    weighted = x if weights is None else operators.multiply(x, weights)
    conjugate = conj(x) if is_complex(dtype) else x
    products = tensordot(weighted, conjugate, axes=((1,), (1,)))
    if weights is None:
        rest: Any = builtins.max(total - less, 0.0)
    else:
        rest = choices.maximum(sub(total, less), 0.0)
    found = operators.divide(products, rest)
    shape = aval_of(found).shape
    return reshape(found, tuple([k for k in shape if k != 1]) if 1 in shape else shape)


def _observation_rows(name: str, m: Any, rowvar: bool) -> Any:
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
    deviation = elementary.sqrt(number_parts.real(diagonal(c)))
    scale = [broadcast_in_dim(deviation, aval.shape, (d,)) for d in (0, 1)]
    for one in scale:
        c = operators.divide(c, one)
    clipped = map_real_and_imag(lambda part: choices.clip(part, -1.0, 1.0), c)
    return clipped
