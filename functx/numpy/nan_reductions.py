"""Reductions that leave out the elements that are nan."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from functx import ops
from functx.core.tracing import aval_of
from functx.core.types import (
    DType,
    is_inexact,
)
from functx.numpy import floating_point, operators
from functx.numpy.array_creation import asarray
from functx.numpy.cumulative import cumprod, cumsum
from functx.numpy.reductions import (
    any,
    argmax,
    argmin,
    fill_masked,
    max,
    mean,
    min,
    prod,
    real_part_dtype,
    resolve_ddof,
    std,
    sum,
    var,
)

__all__ = [
    "nanargmax",
    "nanargmin",
    "nancumprod",
    "nancumsum",
    "nanmax",
    "nanmean",
    "nanmin",
    "nanprod",
    "nanstd",
    "nansum",
    "nanvar",
]


def _not_nan(x: Any) -> Any:
    """Where `x` is not nan; None where it cannot be."""
    if not is_inexact(aval_of(x).dtype):
        return None
    return operators.logical_not(floating_point.isnan(x))


def _combine_masks(valid: Any, where: Any) -> Any:
    if valid is None or where is None:
        return where if valid is None else valid
    return operators.logical_and(valid, where)


def nansum(
    a: Any,
    axis: Any = None,
    dtype: Any = None,
    out: Any = None,
    keepdims: bool = False,
    initial: Any = None,
    where: Any = None,
) -> Any:
    """The sum along `axis` of the elements that are not nan."""
    x = asarray(a)
    return sum(x, axis, dtype, out, keepdims, initial, _combine_masks(_not_nan(x), where))


def nanprod(
    a: Any,
    axis: Any = None,
    dtype: Any = None,
    out: Any = None,
    keepdims: bool = False,
    initial: Any = None,
    where: Any = None,
) -> Any:
    """The product along `axis` of the elements that are not nan."""
    x = asarray(a)
    return prod(x, axis, dtype, out, keepdims, initial, _combine_masks(_not_nan(x), where))


def nanmean(
    a: Any,
    axis: Any = None,
    dtype: Any = None,
    out: Any = None,
    keepdims: bool = False,
    where: Any = None,
) -> Any:
    """The average along `axis` of the elements that are not nan; nan where all are."""
    x = asarray(a)
    return mean(x, axis, dtype, out, keepdims, where=_combine_masks(_not_nan(x), where))


def nanvar(
    a: Any,
    axis: Any = None,
    dtype: Any = None,
    out: Any = None,
    ddof: Any = 0,
    keepdims: bool = False,
    where: Any = None,
    mean: Any = None,
    correction: Any = None,
) -> Any:
    """The variance along `axis` of the elements that are not nan; arguments as for `var`."""
    x = asarray(a)
    ddof = resolve_ddof("nanvar", ddof, correction)
    where = _combine_masks(_not_nan(x), where)
    return var(x, axis, dtype, out, ddof, keepdims, where=where, mean=mean)


def nanstd(
    a: Any,
    axis: Any = None,
    dtype: Any = None,
    out: Any = None,
    ddof: Any = 0,
    keepdims: bool = False,
    where: Any = None,
    mean: Any = None,
    correction: Any = None,
) -> Any:
    """The standard deviation along `axis` of the elements that are not nan; arguments as for `std`."""
    x = asarray(a)
    ddof = resolve_ddof("nanstd", ddof, correction)
    where = _combine_masks(_not_nan(x), where)
    return std(x, axis, dtype, out, ddof, keepdims, where=where, mean=mean)


def nanmax(
    a: Any,
    axis: Any = None,
    out: Any = None,
    keepdims: bool = False,
    initial: Any = None,
    where: Any = None,
) -> Any:
    """The largest element along `axis` that is not nan; nan where all are."""
    return _nan_extremum(max, ops.lowest, a, axis, out, keepdims, initial, where)


def nanmin(
    a: Any,
    axis: Any = None,
    out: Any = None,
    keepdims: bool = False,
    initial: Any = None,
    where: Any = None,
) -> Any:
    """The smallest element along `axis` that is not nan; nan where all are."""
    return _nan_extremum(min, ops.highest, a, axis, out, keepdims, initial, where)


def _nan_extremum(
    reduce: Callable[..., Any],
    start: Callable[[DType], Any],
    a: Any,
    axis: Any,
    out: Any,
    keepdims: bool,
    initial: Any,
    where: Any,
) -> Any:
    x = asarray(a)
    valid = _not_nan(x)
    if valid is None:
        return reduce(x, axis, out, keepdims, initial, where)
    filled = fill_masked(x, valid, start(real_part_dtype(aval_of(x).dtype)))
    best = reduce(filled, axis, out, keepdims, initial, where)
    if initial is not None:
        return best
    return ops.select(any(valid, axis, keepdims=keepdims), best, math.nan)


def nanargmax(a: Any, axis: Any = None, out: Any = None, keepdims: bool = False) -> Any:
    """The position of the first largest element that is not nan; -1 where all are."""
    return _nan_position(argmax, ops.lowest, a, axis, out, keepdims)


def nanargmin(a: Any, axis: Any = None, out: Any = None, keepdims: bool = False) -> Any:
    """The position of the first smallest element that is not nan; -1 where all are."""
    return _nan_position(argmin, ops.highest, a, axis, out, keepdims)


def _nan_position(
    find: Callable[..., Any],
    start: Callable[[DType], Any],
    a: Any,
    axis: Any,
    out: Any,
    keepdims: bool,
) -> Any:
    x = asarray(a)
    valid = _not_nan(x)
    if valid is None:
        return find(x, axis, out, keepdims)
    found = find(fill_masked(x, valid, start(aval_of(x).dtype)), axis, out, keepdims)
    return ops.select(any(valid, axis, keepdims=keepdims), found, -1)


def nancumsum(a: Any, axis: Any = None, dtype: Any = None, out: Any = None) -> Any:
    """The sum up to each element along `axis`, nan counting as 0."""
    x = asarray(a)
    return cumsum(fill_masked(x, _not_nan(x), 0), axis, dtype, out)


def nancumprod(a: Any, axis: Any = None, dtype: Any = None, out: Any = None) -> Any:
    """The product up to each element along `axis`, nan counting as 1."""
    x = asarray(a)
    return cumprod(fill_masked(x, _not_nan(x), 1), axis, dtype, out)
