"""Statistics of samples: the most frequent value, ranks, and the standard error of the mean."""

from __future__ import annotations

import math
from typing import NamedTuple

import functx.numpy as np
from functx import ops
from functx.core.errors import ValueRangeError
from functx.core.types import canonical_dtype, is_inexact
from functx.core.typing import ArrayLike, Value
from functx.numpy.indexing import take_along_axis
from functx.numpy.promotion import promote_inexact
from functx.ops.operands import canonical_axis

NAN_POLICIES = ("propagate", "omit", "raise")
RANK_METHODS = ("average", "min", "max", "dense", "ordinal")


class ModeResult(NamedTuple):
    """The most frequent values, and how often they occur."""

    mode: Value
    count: Value  # type: ignore[assignment]


class Runs(NamedTuple):
    """Sorted values along the last axis, the positions that sort them, and the runs of equal values.

    For each value, the positions of the first and the last of its run, and the number of its run from
    1 on. All nan are equal.
    """

    values: Value
    order: Value
    first: Value
    last: Value
    number: Value


def runs_of_equal_values(x: Value) -> Runs:
    """The runs of equal values along the last axis of `x`, sorted."""
    order = np.argsort(x, axis=-1)
    values = take_along_axis(x, order, axis=-1)
    left, right = values[..., :-1], values[..., 1:]
    differs = left != right
    if is_inexact(x.dtype):
        differs = differs & ~(np.isnan(left) & np.isnan(right))
    edge = np.full((*x.shape[:-1], 1), True)
    starts, ends = (
        np.concatenate([edge, differs], axis=-1),
        np.concatenate([differs, edge], axis=-1),
    )
    n, axis = x.shape[-1], x.ndim - 1
    positions = np.arange(n)
    first = ops.cummax(np.where(starts, positions, 0), axis)
    last = ops.cummin(np.where(ends, positions, n), axis, reverse=True)
    return Runs(values, order, first, last, ops.cumsum(starts.astype(positions.dtype), axis))


def mode(
    a: ArrayLike, axis: int | None = 0, nan_policy: str = "propagate", keepdims: bool = False
) -> ModeResult:
    """The most frequent value along `axis`, or of all for None, the smallest of several; and its count.

    With the `nan_policy` "propagate", nan is a value like others, with "omit" it does not count, and
    "raise" raises ValueRangeError for it. Without elements, the value is nan.

    >>> import numpy
    >>> from functx.scipy.stats import mode
    >>> [x.tolist() for x in mode(numpy.array([3, 1, 3, 2, 1]))]
    [1, 2]
    """
    x = np.asarray(a)
    x = x if x.ndim else x[None]
    given_rank = x.ndim
    x = _last_axis(x, axis)
    _check_nan_policy("mode", x, nan_policy)
    if x.shape[-1]:
        runs = runs_of_equal_values(x)
        counts = runs.last - runs.first + 1
        if nan_policy == "omit" and is_inexact(x.dtype):
            counts = np.where(np.isnan(runs.values), 0, counts)
        values = take_along_axis(runs.values, np.argmax(counts, axis=-1, keepdims=True), axis=-1)
        out, count = values[..., 0], np.max(counts, axis=-1)
        if nan_policy == "omit" and is_inexact(x.dtype):
            out = np.where(count == 0, math.nan, out)
    else:
        out, count = np.full(x.shape[:-1], math.nan), np.zeros(x.shape[:-1])
    if keepdims:
        axes = tuple(range(given_rank)) if axis is None else canonical_axis(axis, given_rank)
        out, count = np.expand_dims(out, axes), np.expand_dims(count, axes)
    return ModeResult(out, count)


def rankdata(
    a: ArrayLike, method: str = "average", *, axis: int | None = None, nan_policy: str = "propagate"
) -> Value:
    """The ranks of values among those along `axis`, or of all in one vector for None, from 1 on.

    Equal values get the "average", "min" or "max" of their ranks, by `method`; with "dense" the next
    value has the next rank, and with "ordinal" the first has the lower rank. With the `nan_policy`
    "propagate", a nan makes all ranks nan, with "omit" its own alone, and "raise" raises
    ValueRangeError for it.

    >>> import numpy
    >>> from functx.scipy.stats import rankdata
    >>> rankdata(numpy.array([0.0, 2.0, 3.0, 2.0])).tolist()
    [1.0, 2.5, 4.0, 2.5]
    """
    if method not in RANK_METHODS:
        raise ValueRangeError(f"rankdata: method must be one of {RANK_METHODS}; got {method!r}")
    x = np.asarray(a)
    _check_nan_policy("rankdata", x, nan_policy)
    x = np.ravel(x) if axis is None else _last_axis(x, axis)
    runs = runs_of_equal_values(x)
    ranks = {
        "average": (runs.first + runs.last) / 2 + 1,
        "min": runs.first + 1,
        "max": runs.last + 1,
        "dense": runs.number,
        "ordinal": np.arange(x.shape[-1]) + 0 * runs.first + 1,
    }[method].astype(canonical_dtype(float))
    ranks = take_along_axis(ranks, np.argsort(runs.order, axis=-1), axis=-1)
    if is_inexact(x.dtype):
        is_nan = np.isnan(x)
        is_unranked = np.any(is_nan, axis=-1, keepdims=True) if nan_policy != "omit" else is_nan
        ranks = np.where(is_unranked, math.nan, ranks)
    return ranks if axis is None else np.moveaxis(ranks, -1, axis)


def sem(
    a: ArrayLike,
    axis: int | None = 0,
    ddof: int = 1,
    nan_policy: str = "propagate",
    *,
    keepdims: bool = False,
) -> Value:
    """The standard error of the mean along `axis`, or of all values for None.

    The variance is divided by the number of values minus `ddof`. The `nan_policy` "omit" leaves nan
    out, and "raise" raises ValueRangeError for it.

    >>> import numpy
    >>> from functx.scipy.stats import sem
    >>> round(float(sem(numpy.array([1.0, 2.0, 3.0, 4.0]))), 4)
    0.6455
    """
    (x,) = promote_inexact(a)
    x = np.asarray(x)
    _check_nan_policy("sem", x, nan_policy)
    if nan_policy == "omit":
        count = np.sum(~np.isnan(x), axis=axis, keepdims=keepdims)
        return np.nanstd(x, axis, ddof=ddof, keepdims=keepdims) / np.sqrt(count.astype(x.dtype))
    size = x.size if axis is None else x.shape[canonical_axis(axis, x.ndim)]
    return np.std(x, axis, ddof=ddof, keepdims=keepdims) / math.sqrt(size)


def _last_axis(x: Value, axis: int | None) -> Value:
    """`x` with `axis` moved to the end, or flattened for None; a number has one axis."""
    return np.ravel(x) if axis is None or not x.ndim else np.moveaxis(x, axis, -1)


def _check_nan_policy(name: str, x: Value, policy: str) -> None:
    if policy not in NAN_POLICIES:
        raise ValueRangeError(f"{name}: nan_policy must be one of {NAN_POLICIES}; got {policy!r}")
    if policy == "raise" and is_inexact(x.dtype) and bool(np.any(np.isnan(x))):
        raise ValueRangeError(f"{name}: a must hold no nan for nan_policy='raise'; got {x}")
