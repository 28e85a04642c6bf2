"""Counts, covariances, quantiles, convolutions and correlations."""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable

import numpy as np

from functx import ops
from functx.core.concretization import concretize
from functx.core.errors import DTypeError, ShapeError, ValueRangeError
from functx.core.tracer import Tracer, aval_of
from functx.core.types import (
    DType,
    Shape,
    ShapedArray,
    canonical_dtype,
    is_complex,
    is_floating,
    is_inexact,
    kind,
    real_dtype,
)
from functx.core.typing import ArrayLike, ArrayOrList, Axes, DTypeLike, NumPyArray, Out, Value
from functx.numpy import floating_point, operators, ufuncs
from functx.numpy.array_creation import asarray
from functx.numpy.eager_programs import as_one_program
from functx.numpy.indexing import At
from functx.numpy.joining import gather_static
from functx.numpy.matrices import diagonal
from functx.numpy.mutation import write_out_exact
from functx.numpy.promotion import broadcast_to, promote, promote_inexact
from functx.numpy.reductions import any, sum, sum_dtype
from functx.numpy.shapes import in_order
from functx.numpy.tensor_contractions import tensordot
from functx.numpy.ufuncs import map_real_and_imag
from functx.ops import arithmetic
from functx.ops.contraction import PrecisionLike
from functx.ops.convolution import ConvLayouts, Convolution
from functx.ops.operands import as_int, canonical_axes

__all__ = [
    "bincount",
    "convolve",
    "corrcoef",
    "correlate",
    "cov",
    "median",
    "nanmedian",
    "nanpercentile",
    "nanquantile",
    "percentile",
    "quantile",
]


def bincount(
    x: ArrayOrList,
    weights: ArrayOrList | None = None,
    minlength: int = 0,
    *,
    length: int | None = None,
) -> Value:
    """The number of occurrences of each integer from 0 on in `x`, or the sum of its weights.

    `length` fixes the number of counts; without it the values of `x` must be known. Integers
    beyond the counts are ignored, and negative ones count as 0.
    """
    values = asarray(x)
    aval = aval_of(values)
    if kind(aval.dtype) not in "biu" or aval.ndim != 1:
        raise DTypeError(f"bincount: the array must be a vector of integers; got {aval!r}")
    if aval.dtype.itemsize < 4:
        values = ops.convert_element_type(values, np.int32)
    if length is None:
        concrete = (
            concretize(values, "bincount without length=") if type(values) is Tracer else values
        )
        length = builtins.max(
            as_int("minlength", minlength), int(np.max(concrete)) + 1 if aval.size else 0
        )
    amounts = asarray(1 if weights is None else weights)
    amounts = ops.convert_element_type(
        amounts,
        canonical_dtype("int64") if weights is None else sum_dtype(aval_of(amounts).dtype),
    )
    return scatter_counts(values, broadcast_to(amounts, aval.shape), length)


def scatter_counts(indices: Value, amounts: Value, length: int) -> Value:
    """The sums of the `amounts` with each of `length` indices; negative indices count as 0."""
    zero = broadcast_to(asarray(0, aval_of(amounts).dtype), (length,))
    return At(zero)[ufuncs.maximum(indices, 0)].add(amounts, mode="drop")


@as_one_program
def cov(
    m: ArrayOrList,
    y: ArrayOrList | None = None,
    rowvar: bool = True,
    bias: bool = False,
    ddof: int | None = None,
    fweights: ArrayOrList | None = None,
    aweights: ArrayOrList | None = None,
    dtype: DTypeLike = None,
) -> Value:
    """The covariance matrix of the variables, the rows of `m` and `y`, or the columns without `rowvar`.

    With `dtype`, it is computed in that dtype.
    """
    x = _observation_rows("cov", m, rowvar)
    if y is not None:
        y = asarray(y)
        # NumPy takes `y` of one row for a variable in any case.
        is_row = rowvar or aval_of(y).shape[:1] == (1,)
        x, other = promote(x, _observation_rows("cov", y, is_row))
        if aval_of(x).shape[1] != aval_of(other).shape[1]:
            raise ShapeError(
                f"cov: m and y must have as many observations; got {aval_of(x)!r} and {aval_of(other)!r}"
            )
        x = ops.concatenate([x, other], 0)
    if dtype is not None and not is_inexact(canonical_dtype(dtype)):
        raise DTypeError(f"cov: dtype must be a floating-point or complex dtype; got {dtype!r}")
    (x,) = promote_inexact(x if dtype is None else ops.convert_element_type(x, dtype))
    dtype = aval_of(x).dtype
    n = aval_of(x).shape[1]
    correction = (0 if bias else 1) if ddof is None else ddof
    if fweights is None and aweights is None:
        weights = None
        mean = ops.div(ops.reduce_sum(x, (1,)), float(n))
        divisor: ArrayLike = builtins.max(float(n) - float(correction), 0.0)
    else:
        weights, total, removed = _observation_weights(
            fweights, aweights, correction, real_dtype(dtype)
        )
        weights = ops.convert_element_type(weights, dtype)
        sums = ops.reduce_sum(operators.multiply(x, weights), (1,))
        mean = ops.div(sums, ops.convert_element_type(total, dtype))
    x = ops.sub(x, ops.broadcast_in_dim(mean, aval_of(x).shape, (0,)))
    weighted = x if weights is None else operators.multiply(x, weights)
    conjugate = ops.conj(x) if is_complex(dtype) else x
    products = tensordot(weighted, conjugate, axes=((1,), (1,)))
    if weights is not None:
        divisor = ufuncs.maximum(ops.sub(total, removed), 0.0)
    covariance = operators.divide(products, divisor)
    shape = aval_of(covariance).shape
    return ops.reshape(covariance, tuple([k for k in shape if k != 1]) if 1 in shape else shape)


def _observation_rows(name: str, m: ArrayOrList, rowvar: bool) -> Value:
    x = asarray(m)
    aval = aval_of(x)
    if aval.ndim > 2:
        raise ShapeError(f"{name}: arrays must have at most two dimensions; got {aval!r}")
    if aval.ndim < 2:
        return ops.reshape(x, (1, aval.size))
    return x if rowvar else ops.permute_dims(x, (1, 0))


def _observation_weights(
    fweights: ArrayOrList | None, aweights: ArrayOrList | None, ddof: int, dtype: DType
) -> tuple[Value, Value, ArrayLike]:
    """The weights of the observations, their sum, and its correction for `ddof`."""
    frequency, reliability = [
        None if w is None else ops.convert_element_type(asarray(w), dtype)
        for w in (fweights, aweights)
    ]
    if reliability is None:
        assert frequency is not None, "there are weights"
        return frequency, ops.reduce_sum(frequency), float(ddof)
    weight = reliability if frequency is None else ops.mul(frequency, reliability)
    total = ops.reduce_sum(weight)
    squares = ops.mul(ops.reduce_sum(ops.mul(weight, reliability)), float(ddof))
    return weight, total, ops.div(squares, total)


@as_one_program
def corrcoef(
    x: ArrayOrList,
    y: ArrayOrList | None = None,
    rowvar: bool = True,
    dtype: DTypeLike = None,
) -> Value:
    """The correlation coefficients of the variables, the rows of `x` and `y`, or the columns without `rowvar`."""
    c = cov(x, y, rowvar, dtype=dtype)
    aval = aval_of(c)
    if aval.ndim == 0:
        return ops.div(c, c)
    deviation = ufuncs.sqrt(floating_point.real(diagonal(c)))
    scale = [ops.broadcast_in_dim(deviation, aval.shape, (d,)) for d in (0, 1)]
    for factor in scale:
        c = operators.divide(c, factor)
    return map_real_and_imag(lambda part: ufuncs.clip(part, -1.0, 1.0), c)


@as_one_program
def median(
    a: ArrayOrList,
    axis: Axes = None,
    out: Out = None,
    overwrite_input: bool = False,
    keepdims: bool = False,
) -> Value:
    """The median along `axis`: the middle element, or the average of the two middle ones."""
    return quantile(a, 0.5, axis, out, method="midpoint", keepdims=keepdims)


@as_one_program
def nanmedian(
    a: ArrayOrList,
    axis: Axes = None,
    out: Out = None,
    overwrite_input: bool = False,
    keepdims: bool = False,
) -> Value:
    """The median along `axis` of the elements that are not nan."""
    return nanquantile(a, 0.5, axis, out, method="midpoint", keepdims=keepdims)


@as_one_program
def percentile(
    a: ArrayOrList,
    q: ArrayOrList,
    axis: Axes = None,
    out: Out = None,
    overwrite_input: bool = False,
    method: str = "linear",
    keepdims: bool = False,
    *,
    weights: ArrayOrList | None = None,
) -> Value:
    """`quantile` with `q` in percent."""
    fractions = _percent_to_fraction(q)
    return quantile(a, fractions, axis, out, method=method, keepdims=keepdims, weights=weights)


@as_one_program
def nanpercentile(
    a: ArrayOrList,
    q: ArrayOrList,
    axis: Axes = None,
    out: Out = None,
    overwrite_input: bool = False,
    method: str = "linear",
    keepdims: bool = False,
    *,
    weights: ArrayOrList | None = None,
) -> Value:
    """`nanquantile` with `q` in percent."""
    fractions = _percent_to_fraction(q)
    return nanquantile(a, fractions, axis, out, method=method, keepdims=keepdims, weights=weights)


def _percent_to_fraction(q: ArrayOrList) -> ArrayLike:
    if isinstance(q, (int, float, np.ndarray, np.generic)):
        return np.true_divide(q, 100)
    return operators.divide(asarray(q), 100)


@as_one_program
def quantile(
    a: ArrayOrList,
    q: ArrayOrList,
    axis: Axes = None,
    out: Out = None,
    overwrite_input: bool = False,
    method: str = "linear",
    keepdims: bool = False,
    *,
    weights: ArrayOrList | None = None,
) -> Value:
    """The quantiles `q`, between 0 and 1, of the elements along `axis`; nan if there is a nan.

    `method` chooses between the two neighbours of the exact position: `linear`, `lower`,
    `higher`, `midpoint` or `nearest`; or it is `inverted_cdf`, the first element at which the sum of the
    `weights` reaches `q` of the whole. The dimensions of `q` come first in the result.
    """
    if weights is not None or method == "inverted_cdf":
        values = _weighted_quantile("quantile", a, q, axis, method, keepdims, weights, False)
        return write_out_exact("quantile", values, out)
    sorted_elements, shape, axes = _sort_reduced_axes("quantile", a, axis)
    n = aval_of(sorted_elements).shape[-1]
    if n == 0:
        raise ValueRangeError(f"quantile: there must be elements; got an array of shape {shape}")
    q, values = _quantile_values(sorted_elements, q, n, method, nans=False)
    last = ops.slice_in_dim(sorted_elements, n - 1, n, 1, -1)
    values = ufuncs.where(ops.ne(last, last), math.nan, values)
    values = _restore_dims(values, aval_of(q).shape, shape, axes, keepdims)
    return write_out_exact("quantile", in_order(values, "C"), out)


@as_one_program
def nanquantile(
    a: ArrayOrList,
    q: ArrayOrList,
    axis: Axes = None,
    out: Out = None,
    overwrite_input: bool = False,
    method: str = "linear",
    keepdims: bool = False,
    *,
    weights: ArrayOrList | None = None,
) -> Value:
    """`quantile` of the elements that are not nan; nan where there are none."""
    if weights is not None or method == "inverted_cdf":
        values = _weighted_quantile("nanquantile", a, q, axis, method, keepdims, weights, True)
        return write_out_exact("nanquantile", values, out)
    sorted_elements, shape, axes = _sort_reduced_axes("nanquantile", a, axis)
    rows = aval_of(sorted_elements)
    if not rows.shape[-1]:
        sorted_elements = ops.full((*rows.shape[:-1], 1), math.nan, rows.dtype)
    q, values = _quantile_values(sorted_elements, q, 0, method, nans=True)
    return write_out_exact(
        "nanquantile", _restore_dims(values, aval_of(q).shape, shape, axes, keepdims), out
    )


def _sort_reduced_axes(name: str, a: ArrayOrList, axis: Axes) -> tuple[Value, Shape, Shape]:
    """The elements sorted along `axis` as one last axis, nan last; the original shape; the axes."""
    x, shape, axes = _merge_reduced_axes(name, a, axis)
    return ops.sort(x, -1), shape, axes


def _merge_reduced_axes(name: str, a: ArrayOrList, axis: Axes) -> tuple[Value, Shape, Shape]:
    """The elements along `axis` as one last axis; the original shape; the axes."""
    (x,) = promote_inexact(a)
    x = asarray(x)
    aval = aval_of(x)
    if not is_floating(aval.dtype):
        raise DTypeError(f"{name}: the array must be real; got {aval!r}")
    axes = canonical_axes(axis, aval.ndim)
    remaining = tuple([d for d in range(aval.ndim) if d not in axes])
    x = ops.permute_dims(x, (*remaining, *axes))
    length = math.prod(aval.shape[d] for d in axes)
    x = ops.reshape(x, (*[aval.shape[d] for d in remaining], length))
    return x, aval.shape, axes


def _weighted_quantile(
    name: str,
    a: ArrayOrList,
    q: ArrayOrList,
    axis: Axes,
    method: str,
    keepdims: bool,
    weights: ArrayOrList | None,
    skips_nans: bool,
) -> Value:
    """For each of `q`, the first element at which the sum of the weights reaches `q` of the whole."""
    if method != "inverted_cdf":
        raise ValueRangeError(
            f"{name}: with weights, method must be 'inverted_cdf'; got {method!r}",
        )
    x, shape, axes = _merge_reduced_axes(name, a, axis)
    aval, last = aval_of(x), aval_of(x).ndim - 1
    if not aval.shape[-1]:
        raise ValueRangeError(f"{name}: there must be elements; got an array of shape {shape}")
    w = _weights_of_elements(name, weights, shape, axes, aval)
    is_nan = ops.ne(x, x)
    if skips_nans:
        w = ufuncs.where(is_nan, 0.0, w)
    x, w = ops.sort_key_val(x, w, -1)
    sums = ops.cumsum(w, last)
    total = ops.slice_in_dim(sums, aval.shape[-1] - 1, aval.shape[-1], 1, last)
    # XLA divides by a broadcast number by multiplying with its rounded reciprocal: 49 / 98 < 0.5.
    divisor = ops.optimization_barrier(broadcast_to(total, aval.shape))
    # An element without a weight is not the first that reaches 0.
    cdf = ufuncs.where(ops.eq(sums, 0), -1.0, ops.div(sums, divisor))
    q = asarray(q)
    fractions = ops.reshape(ops.convert_element_type(q, cdf.dtype), (aval_of(q).size, 1))
    before = operators.less(ops.expand_dims(cdf, last), fractions)
    counts = sum(before, axis=-1, dtype=np.int32)
    index = ufuncs.clip(counts, 0, aval.shape[-1] - 1)
    values = ops.take_along_axis(x, index, last)
    undefined = ops.eq(total, 0)
    if not skips_nans:
        undefined = ops.bitwise_or(undefined, any(is_nan, axis=-1, keepdims=True))
    values = ufuncs.where(undefined, math.nan, values)
    return _restore_dims(values, aval_of(q).shape, shape, axes, keepdims)


def _weights_of_elements(
    name: str, weights: ArrayOrList | None, shape: Shape, axes: Shape, rows: ShapedArray
) -> Value:
    """The weights, of the shape of the array or of its reduced axes, with these as one last axis."""
    # A sum of 16-bit floats stops at 2,048 or 256 ones.
    dtype = np.dtype("float64") if rows.dtype == np.float64 else np.dtype("float32")
    if weights is None:
        return ops.full(rows.shape, 1, dtype)
    w = ops.convert_element_type(asarray(weights), dtype)
    if aval_of(w).shape == tuple([shape[d] for d in axes]) != shape:
        order = sorted(range(len(axes)), key=axes.__getitem__)
        w = ops.permute_dims(w, tuple(order))
        w = ops.broadcast_in_dim(w, shape, tuple(sorted(axes)))
    if aval_of(w).shape != shape:
        raise ShapeError(
            f"{name}: weights must have the shape of the array or of its reduced axes; got "
            f"{aval_of(weights if not isinstance(weights, (list, tuple)) else w)!r} for {shape} along {axes}"
        )
    return _merge_reduced_axes(name, w, axes)[0]


def _quantile_values(
    sorted_elements: Value, q: ArrayOrList, n: int, method: str, nans: bool
) -> tuple[ArrayLike, Value]:
    """`q` as an array, and the quantiles along the last axis."""
    if method not in _INTERPOLATIONS:
        raise ValueRangeError(
            f"quantile: method must be one of {list(_INTERPOLATIONS)}; got {method!r}"
        )
    aval = aval_of(sorted_elements)
    is_concrete = not isinstance(q, (list, tuple)) or builtins.all(
        isinstance(x, (int, float)) for x in q
    )
    if is_concrete and isinstance(q, (int, float, np.ndarray, np.generic, list, tuple)):
        q = np.asarray(q, np.float64)
        if not np.all((q >= 0) & (q <= 1)):
            raise ValueRangeError(f"quantile: q must be between 0 and 1; got {q}")
        if not nans:
            return q, _static_quantile_values(sorted_elements, q.ravel() * (n - 1), method)
    q = asarray(q)
    dtype = np.dtype("float64") if aval.dtype == np.float64 else np.dtype("float32")
    fractions = ops.reshape(ops.convert_element_type(q, dtype), (aval_of(q).size,))
    last: ArrayLike = float(n - 1)
    if nans:
        valid = ops.convert_element_type(ops.eq(sorted_elements, sorted_elements), dtype)
        last = ops.sub(ops.reduce_sum(valid, (aval.ndim - 1,)), 1.0)
        last = ops.expand_dims(ufuncs.maximum(last, 0.0), -1)
    positions = operators.multiply(last, fractions)
    positions = broadcast_to(positions, (*aval.shape[:-1], aval_of(fractions).shape[0]))
    low = ufuncs.clip(floating_point.floor(positions), 0.0, last)
    high = ufuncs.clip(floating_point.ceil(positions), 0.0, last)
    neighbours = [
        ops.take_along_axis(sorted_elements, ops.convert_element_type(i, np.int32), aval.ndim - 1)
        for i in (low, high)
    ]
    weight = ops.sub(positions, low)
    if method == "nearest":
        nearest = floating_point.rint(positions)
        return q, ops.select(ops.eq(nearest, low), *neighbours)
    return q, _INTERPOLATIONS[method](*neighbours, ops.convert_element_type(weight, aval.dtype))


def _static_quantile_values(sorted_elements: Value, positions: NumPyArray, method: str) -> Value:
    """The quantiles at `positions` known while tracing, by slices."""
    low, high = np.floor(positions).astype(int), np.ceil(positions).astype(int)
    if method == "nearest":
        low = high = np.rint(positions).astype(int)
    last = aval_of(sorted_elements).ndim - 1
    low_values = gather_static(sorted_elements, low, last)
    if np.array_equal(low, high) or method == "lower":
        return low_values
    weight = (positions - low).astype(aval_of(sorted_elements).dtype)
    return _INTERPOLATIONS[method](
        low_values,
        gather_static(sorted_elements, high, last),
        float(weight[0]) if weight.size == 1 else asarray(weight),
    )


def _linear_interpolation(low: Value, high: Value, weight: ArrayLike) -> Value:
    # low + weight (high - low) would be nan for low = -inf and high = inf.
    if type(weight) is float:
        return arithmetic.add(ops.mul(low, 1.0 - weight), ops.mul(high, weight))
    low_weight = ops.sub(1.0, weight)
    interpolated = arithmetic.add(
        operators.multiply(low, low_weight), operators.multiply(high, weight)
    )
    return ufuncs.where(ops.eq(weight, 0.0), low, interpolated)


_INTERPOLATIONS: dict[str, Callable[..., Value]] = {
    "linear": _linear_interpolation,
    "lower": lambda low, high, weight: low,
    "higher": lambda low, high, weight: high,
    "midpoint": lambda low, high, weight: ops.mul(arithmetic.add(low, high), 0.5),
    "nearest": lambda low, high, weight: low,
}


def _restore_dims(
    values: Value, q_shape: Shape, shape: Shape, axes: Shape, keepdims: bool
) -> Value:
    """The results with the dimensions of `q` first, and reduced axes restored if `keepdims`."""
    values = ops.moveaxis(values, aval_of(values).ndim - 1, 0)
    remaining = tuple(
        [1 if d in axes else n for d, n in enumerate(shape) if keepdims or d not in axes]
    )
    values = ops.reshape(values, (*q_shape, *remaining))
    return ops.convert_element_type(values, aval_of(values).dtype)


@as_one_program
def convolve(
    a: ArrayOrList,
    v: ArrayOrList,
    mode: str = "full",
    *,
    precision: PrecisionLike = None,
    preferred_element_type: DTypeLike = None,
) -> Value:
    """The convolution of two vectors.

    The mode "full" returns all positions where the vectors overlap, "same" the middle ones, as
    many as the longer vector has elements, and "valid" those where they overlap completely.

    Raises ShapeError unless both are one-dimensional and not empty.
    """
    a, v = _vector_operands("convolve", a, v)
    if aval_of(a).shape < aval_of(v).shape:
        a, v = v, a
    return _convolve_vectors(
        "convolve", a, ops.rev(v, (0,)), mode, precision, preferred_element_type
    )


@as_one_program
def correlate(
    a: ArrayOrList,
    v: ArrayOrList,
    mode: str = "valid",
    *,
    precision: PrecisionLike = None,
    preferred_element_type: DTypeLike = None,
) -> Value:
    """The cross-correlation of two vectors: sums of products of `a` and the conjugate of `v`.

    `mode` is as in `convolve`. Swapping `a` and `v` gives the conjugates in reverse order.

    Raises ShapeError unless both are one-dimensional and not empty.
    """
    a, v = _vector_operands("correlate", a, v)
    v = ops.conj(v) if is_complex(aval_of(v).dtype) else v
    if aval_of(a).shape < aval_of(v).shape:
        result = _convolve_vectors("correlate", v, a, mode, precision, preferred_element_type)
        return ops.rev(result, (0,))
    return _convolve_vectors("correlate", a, v, mode, precision, preferred_element_type)


def _vector_operands(name: str, a: ArrayOrList, v: ArrayOrList) -> tuple[Value, ...]:
    a, v = promote(a, v)
    if not aval_of(a).ndim == aval_of(v).ndim == 1 or not (aval_of(a).size and aval_of(v).size):
        raise ShapeError(
            f"{name}: both must be one-dimensional and not empty; "
            f"got {aval_of(a)!r} and {aval_of(v)!r}"
        )
    return a, v


def _convolve_vectors(
    name: str, a: Value, v: Value, mode: str, precision: PrecisionLike, preferred: DTypeLike
) -> Value:
    """The sums of products of `v` with the windows of `a`, which is at least as long."""
    n = aval_of(v).size
    paddings = {"full": (n - 1, n - 1), "same": (n // 2, n - n // 2 - 1), "valid": (0, 0)}
    if not isinstance(mode, str) or mode not in paddings:
        raise ValueRangeError(f'{name}: mode must be "full", "same" or "valid"; got {mode!r}')
    layout = (0, 1, 2)
    convolution = Convolution(
        ops.Window((n,), (1,), (paddings[mode],), (1,), (1,)),
        ConvLayouts(layout, layout, layout),
        precision=ops.canonical_precision(precision),
        preferred_element_type=None if preferred is None else canonical_dtype(preferred),
    )
    boolean = aval_of(a).dtype == np.bool_
    if boolean:
        a, v = (ops.convert_element_type(x, np.int32) for x in (a, v))
    out = convolution(ops.reshape(a, (1, 1, aval_of(a).size)), ops.reshape(v, (1, 1, n)))
    out = ops.reshape(out, aval_of(out).shape[2:])
    return ops.ne(out, 0) if boolean and preferred is None else out
