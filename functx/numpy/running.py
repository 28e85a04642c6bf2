"""Sums and products of each element along an axis and all before it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from functx.core.errors import AxisError
from functx.core.tracing import aval_of
from functx.numpy.creation import asarray
from functx.numpy.mutation import write_out_exact
from functx.numpy.promotion import broadcast_to
from functx.numpy.reductions import sum_dtype
from functx.ops import cumulative
from functx.ops.conversion import convert_element_type
from functx.ops.joining import concatenate
from functx.ops.operands import canonical_axis
from functx.ops.shaping import reshape

__all__ = [
    "cumprod",
    "cumsum",
    "cumulative_prod",
    "cumulative_sum",
]


def cumsum(a: Any, axis: Any = None, dtype: Any = None, out: Any = None) -> Any:
    """The sum along `axis` of each element and all before it; of all in order for None."""
    return _cumulative_reduction("cumsum", cumulative.cumsum, a, axis, dtype, out)


def cumprod(a: Any, axis: Any = None, dtype: Any = None, out: Any = None) -> Any:
    """The product along `axis` of each element and all before it; of all in order for None."""
    return _cumulative_reduction("cumprod", cumulative.cumprod, a, axis, dtype, out)


def _cumulative_reduction(
    name: str, scan: Callable[..., Any], a: Any, axis: Any, dtype: Any, out: Any
) -> Any:
    x = asarray(a)
    aval = aval_of(x)
    if axis is None:
        x, axis = reshape(x, (aval.size,)), 0
    if dtype is not None:
        x = convert_element_type(x, dtype)
    if aval_of(x).dtype == np.bool_:
        x = convert_element_type(x, "int64")
    total = scan(convert_element_type(x, aval_of(x).dtype), canonical_axis(axis, aval_of(x).ndim))
    if dtype is not None:
        total = convert_element_type(total, dtype)
    return write_out_exact(name, total, out)


def cumulative_sum(
    x: Any, /, *, axis: Any = None, dtype: Any = None, include_initial: bool = False
) -> Any:
    """The sum along `axis` of each element and all before it, with 0 first if asked.

    Narrow integers are added in the default integer type.
    """
    return _with_initial(cumsum, 0, x, axis, dtype, include_initial)


def cumulative_prod(
    x: Any, /, *, axis: Any = None, dtype: Any = None, include_initial: bool = False
) -> Any:
    """The product along `axis` of each element and all before it, with 1 first if asked."""
    return _with_initial(cumprod, 1, x, axis, dtype, include_initial)


def _with_initial(
    scan: Callable[..., Any], first: int, x: Any, axis: Any, dtype: Any, include_initial: bool
) -> Any:
    x = asarray(x)
    aval = aval_of(x)
    if axis is None:
        if aval.ndim != 1:
            raise AxisError(
                f"cumulative_{'prod' if first else 'sum'}: axis must be given for an array of "
                f"{aval.ndim} dimensions"
            )
        axis = 0
    axis = canonical_axis(axis, aval.ndim)
    out = scan(x, axis, sum_dtype(aval.dtype) if dtype is None else dtype)
    if not include_initial:
        return out
    shape = tuple([1 if d == axis else n for d, n in enumerate(aval.shape)])
    start = broadcast_to(asarray(first, aval_of(out).dtype), shape)
    return concatenate([start, out], axis)
