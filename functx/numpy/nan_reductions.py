"""Reductions that ignore elements that are nan."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps
from inspect import unwrap
from typing import Any

import numpy as np

from functx import ops
from functx.core.tracer import aval_of
from functx.core.types import DType, Shape, is_inexact, real_dtype
from functx.core.typing import ArrayOrList, DTypeLike, Out, Value
from functx.numpy import floating_point, operators, ufuncs
from functx.numpy.array_creation import asarray
from functx.numpy.cumulative import cumprod, cumsum
from functx.numpy.reductions import (
    P,
    ReductionFunction,
    any,
    arg_extremum,
    fill_masked,
    max,
    mean,
    min,
    prod,
    reduction,
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


def _not_nan(x: Value, where: ArrayOrList | None = None) -> ArrayOrList | None:
    """The mask `where` without the elements of `x` that are nan; None masks nothing."""
    if not is_inexact(aval_of(x).dtype):
        return where
    valid = operators.logical_not(floating_point.isnan(x))
    return valid if where is None else operators.logical_and(valid, where)


def _ignoring_nan(reduce: ReductionFunction[P], doc: str) -> ReductionFunction[P]:
    """The reduction that computes `reduce` of the elements that are not nan."""
    function = unwrap(reduce)
    name, code = f"nan{function.__name__}", function.__code__
    parameters = code.co_varnames[2 : code.co_argcount + code.co_kwonlyargcount]

    @wraps(function)
    def reduce_valid(a: Value, axis: Shape, *args: object, **options: Any) -> Value:
        options.update(zip(parameters, args, strict=False))
        if "correction" in options:
            options["ddof"] = resolve_ddof(name, options.get("ddof", 0), options.pop("correction"))
        valid = _not_nan(a, options.get("where"))
        result = function(a, axis, **options | {"where": valid})
        ddof = options.get("ddof", 0)
        if type(ddof) in (int, float) and ddof <= 0:
            return result
        # Where `ddof` elements or fewer remain, `var` has infinity as well as nan.
        count = sum(ops.full(aval_of(a).shape, 1, np.int32), axis, where=valid)
        return ufuncs.where(operators.less_equal(count, ddof), math.nan, result)

    reduce_valid.__name__ = reduce_valid.__qualname__ = name
    reduce_valid.__module__, reduce_valid.__doc__ = __name__, doc
    return reduction(eager_program=True)(reduce_valid)  # type: ignore[arg-type]


nansum = _ignoring_nan(sum, "The sum along `axis` of the elements that are not nan.")
nanprod = _ignoring_nan(prod, "The product along `axis` of the elements that are not nan.")
nanmean = _ignoring_nan(
    mean, "The average along `axis` of the elements that are not nan; nan where all are."
)
nanvar = _ignoring_nan(
    var, "The variance along `axis` of the elements that are not nan; arguments as for `var`."
)
nanstd = _ignoring_nan(
    std,
    "The standard deviation along `axis` of the elements that are not nan; arguments as for `std`.",
)


@reduction(eager_program=True)
def nanmax(
    a: Value,
    axis: Shape,
    out: Out = None,
    keepdims: bool = False,
    initial: ArrayOrList | None = None,
    where: ArrayOrList | None = None,
) -> Value:
    """The largest element along `axis` that is not nan; nan where all are."""
    return _nan_extremum(max, ops.lowest, a, axis, initial, where)


@reduction(eager_program=True)
def nanmin(
    a: Value,
    axis: Shape,
    out: Out = None,
    keepdims: bool = False,
    initial: ArrayOrList | None = None,
    where: ArrayOrList | None = None,
) -> Value:
    """The smallest element along `axis` that is not nan; nan where all are."""
    return _nan_extremum(min, ops.highest, a, axis, initial, where)


def _nan_extremum(
    reduce: Callable[..., Value],
    start: Callable[[DType], complex],
    x: Value,
    axes: Shape,
    initial: ArrayOrList | None,
    where: ArrayOrList | None,
) -> Value:
    valid = _not_nan(x)
    if valid is not None:
        x = fill_masked(x, valid, start(real_dtype(aval_of(x).dtype)))
    extremum = reduce(x, axes, initial=initial, where=where)
    if valid is None or initial is not None:
        return extremum
    return ops.select(any(valid, axes), extremum, math.nan)


@reduction(single_axis=True, eager_program=True)
def nanargmax(a: Value, axis: Shape, out: Out = None, keepdims: bool = False) -> Value:
    """The position of the first largest element that is not nan; -1 where all are."""
    return _nan_arg_extremum(ops.argmax, ops.lowest, a, axis)


@reduction(single_axis=True, eager_program=True)
def nanargmin(a: Value, axis: Shape, out: Out = None, keepdims: bool = False) -> Value:
    """The position of the first smallest element that is not nan; -1 where all are."""
    return _nan_arg_extremum(ops.argmin, ops.highest, a, axis)


def _nan_arg_extremum(
    find: Callable[..., Value], start: Callable[[DType], complex], x: Value, axes: Shape
) -> Value:
    valid = _not_nan(x)
    if valid is None:
        return arg_extremum(find, x, axes)
    index = arg_extremum(find, fill_masked(x, valid, start(aval_of(x).dtype)), axes)
    return ops.select(any(valid, axes), index, -1)


def nancumsum(
    a: ArrayOrList, axis: int | None = None, dtype: DTypeLike = None, out: Out = None
) -> Value:
    """The sum up to each element along `axis`, nan counting as 0."""
    x = asarray(a)
    return cumsum(fill_masked(x, _not_nan(x), 0), axis, dtype, out)


def nancumprod(
    a: ArrayOrList, axis: int | None = None, dtype: DTypeLike = None, out: Out = None
) -> Value:
    """The product up to each element along `axis`, nan counting as 1."""
    x = asarray(a)
    return cumprod(fill_masked(x, _not_nan(x), 1), axis, dtype, out)
