"""Histograms in one, two and more dimensions."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from functx import ops
from functx.core.errors import ShapeError
from functx.core.tracer import aval_of
from functx.core.types import inexact_dtype
from functx.core.typing import ArrayLike, ArrayOrList, Value
from functx.numpy import floating_point, operators, ufuncs
from functx.numpy.array_creation import INT, asarray, linspace
from functx.numpy.cumulative import diff
from functx.numpy.eager_programs import as_one_program
from functx.numpy.joining import stack
from functx.numpy.promotion import broadcast_to, promote_inexact
from functx.numpy.reductions import max, min, sum
from functx.numpy.shapes import ravel, reshape
from functx.numpy.sorting_and_searching import searchsorted
from functx.numpy.statistics import scatter_counts

__all__ = ["histogram", "histogram2d", "histogram_bin_edges", "histogramdd"]


def histogram_bin_edges(
    a: ArrayOrList,
    bins: ArrayOrList = 10,
    range: tuple[ArrayLike, ArrayLike] | None = None,
    weights: ArrayOrList | None = None,
) -> Value:
    """The edges of `bins`, which is a number of equal bins in the interval `range`, or the edges."""
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


@as_one_program
def histogram(
    a: ArrayOrList,
    bins: ArrayOrList = 10,
    range: tuple[ArrayLike, ArrayLike] | None = None,
    density: bool | None = None,
    weights: ArrayOrList | None = None,
) -> tuple[Value, Value]:
    """The pair of the number of elements in each of `bins`, or the sum of their weights, and the edges.

    With `density`, the integral of the histogram is 1. The last bin includes its upper edge. The numbers
    are nan where the interval, by default from the smallest to the largest element, is not finite.
    """
    (x,) = promote_inexact(a)
    x = reshape(x, -1)
    edges = histogram_bin_edges(x, bins, range)
    edges = ops.convert_element_type(edges, aval_of(x).dtype)
    amounts = asarray(1, aval_of(x).dtype) if weights is None else reshape(asarray(weights), -1)
    amounts = ops.convert_element_type(amounts, inexact_dtype(aval_of(amounts).dtype))
    counts = _counts([x], [edges], amounts)
    if isinstance(bins, (int, np.integer)):
        is_finite = floating_point.isfinite(operators.subtract(edges[-1], edges[0]))
        counts = ufuncs.where(is_finite, counts, math.nan)
    if density:
        counts = ops.div(counts, operators.multiply(diff(edges), sum(counts)))
    return counts, edges


def _counts(columns: Sequence[Value], edges: Sequence[Value], amounts: Value) -> Value:
    """The sums of the `amounts` of points in each bin; a point has a coordinate in each of `columns`."""
    sizes = [len(each) - 1 for each in edges]
    total = math.prod(sizes)
    position: Value | np.int32 = np.int32(0)
    in_range: Value | bool = True
    for x, bounds, n in zip(columns, edges, sizes, strict=True):
        found = ops.sub(
            ops.convert_element_type(searchsorted(bounds, x, side="right"), np.int32), 1
        )
        found = ufuncs.where(operators.equal(x, bounds[-1]), n - 1, found)
        position = operators.add(operators.multiply(position, n), found)
        in_bounds = operators.logical_and(
            operators.greater_equal(x, bounds[0]), operators.less_equal(x, bounds[-1])
        )
        in_range = operators.logical_and(in_range, in_bounds)
    amounts = broadcast_to(amounts, aval_of(columns[0]).shape)
    return reshape(
        scatter_counts(ufuncs.where(in_range, position, total), amounts, total), tuple(sizes)
    )


@as_one_program
def histogram2d(
    x: ArrayOrList,
    y: ArrayOrList,
    bins: ArrayOrList = 10,
    range: Sequence[Sequence[ArrayLike] | None] | None = None,
    weights: ArrayOrList | None = None,
    density: bool | None = None,
) -> tuple[Value, Value, Value]:
    """The histogram of points in the plane, and the edges of its bins along each axis.

    `bins` is the number of bins or their edges, one for both axes or a pair.
    """
    x, y = promote_inexact(asarray(x), asarray(y))
    if x.ndim != 1 or x.shape != y.shape:
        raise ShapeError(
            f"histogram2d: x and y must be vectors of one length; got {aval_of(x)!r} and {aval_of(y)!r}"
        )
    is_pair = isinstance(bins, (list, tuple)) and len(bins) == 2
    if not is_pair and np.ndim(bins) == 1:  # type: ignore[arg-type]
        bins = [bins, bins]  # type: ignore[list-item]
    counts, (x_edges, y_edges) = histogramdd(stack([x, y], 1), bins, range, weights, density)
    return counts, x_edges, y_edges


@as_one_program
def histogramdd(
    sample: ArrayOrList,
    bins: ArrayOrList = 10,
    range: Sequence[Sequence[ArrayLike] | None] | None = None,
    weights: ArrayOrList | None = None,
    density: bool | None = None,
) -> tuple[Value, list[Value]]:
    """The histogram of the points in the rows of `sample`, and a list of the edges along each axis.

    A list or tuple has an item for each axis, with the coordinates of all points.
    `bins` and `range` are those of `histogram`, one number of bins for all axes or a sequence with an
    item for each of them.

    >>> import functx.numpy as np
    >>> np.histogramdd(np.array([[0.0, 0.0], [1.0, 1.0], [1.0, 1.0]]), 2)[0]
    array([[1, 0],
           [0, 2]], dtype=int32)
    """
    (points,) = promote_inexact(asarray(sample))
    if isinstance(sample, (list, tuple)) and aval_of(points).ndim == 2:
        points = ops.permute_dims(points, (1, 0))
    points = reshape(points, (-1, 1)) if aval_of(points).ndim < 2 else points
    if points.ndim != 2:
        raise ShapeError(f"histogramdd: a point must be a row; got {aval_of(points)!r}")
    count = points.shape[1]
    each: Sequence[ArrayOrList] = (
        [bins] * count if isinstance(bins, (int, np.integer)) else list(bins)  # type: ignore[arg-type]
    )
    ranges = [None] * count if range is None else list(range)
    if len(each) != count or len(ranges) != count:
        raise ShapeError(
            f"histogramdd: bins and range must have an item for each of {count} axes; got {len(each)} and "
            f"{len(ranges)}"
        )
    columns = [points[:, d] for d in np.arange(count).tolist()]
    edges = []
    for x, item, interval in zip(columns, each, ranges, strict=True):
        item = int(np.asarray(item)) if isinstance(item, np.ndarray) and not item.ndim else item
        bounds = histogram_bin_edges(x, item, interval)  # type: ignore[arg-type]
        edges.append(ops.convert_element_type(bounds, points.dtype))
    amounts = asarray(1, INT) if weights is None else ravel(asarray(weights))
    counts = _counts(columns, edges, amounts)
    if density:
        counts = operators.divide(counts, sum(counts))
        for d, bounds in enumerate(edges):
            shape = [-1 if k == d else 1 for k in np.arange(count).tolist()]
            counts = operators.divide(counts, reshape(diff(bounds), tuple(shape)))
    return counts, edges
