"""Choices between elements: where a condition holds, the larger, what lies in bounds."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from ml_dtypes import iinfo

from functx.core.dtypes import is_complex, is_floating, is_inexact
from functx.core.errors import ArgumentError, DTypeError, ValueRangeError
from functx.core.tracing import Tracer, aval_of, bind
from functx.numpy.creation import asarray
from functx.numpy.mutation import write_out
from functx.numpy.promotion import broadcast, copy_array, operand, promote
from functx.numpy.ufuncs import as_boolean, binary_ufunc, broadcast_inexact, ufunc
from functx.ops import arithmetic, selection
from functx.ops.arithmetic import BOOL
from functx.ops.comparison import eq, gt, ne
from functx.ops.conversion import convert_element_type
from functx.ops.operands import PYTHON_SCALARS, literal
from functx.ops.selection import Select
from functx.ops.shaping import full_like

__all__ = [
    "clip",
    "fmax",
    "fmin",
    "heaviside",
    "maximum",
    "minimum",
    "piecewise",
    "select",
    "where",
]

maximum = binary_ufunc(
    "maximum", arithmetic.Max(), "The larger of x and y; nan where either is nan."
)
minimum = binary_ufunc(
    "minimum", arithmetic.Min(), "The smaller of x and y; nan where either is nan."
)


@ufunc
def heaviside(x: Any, h: Any, /) -> Any:
    """0 where x < 0, 1 where x > 0, h where x is 0."""
    x, h = broadcast_inexact(x, h)
    flat = convert_element_type(gt(x, 0), aval_of(x).dtype)
    return selection.select(eq(x, 0), h, selection.select(ne(x, x), x, flat))


@ufunc
def fmax(x: Any, y: Any, /) -> Any:
    """The larger of x and y, or the one that is not nan."""
    return _nan_ignoring_extremum(arithmetic.max, x, y)


@ufunc
def fmin(x: Any, y: Any, /) -> Any:
    """The smaller of x and y, or the one that is not nan."""
    return _nan_ignoring_extremum(arithmetic.min, x, y)


def _nan_ignoring_extremum(extremum: Callable[..., Any], x: Any, y: Any) -> Any:
    x, y = broadcast(*promote(x, y))
    out = extremum(x, y)
    if not is_inexact(aval_of(x).dtype):
        return out
    return selection.select(ne(x, x), y, selection.select(ne(y, y), x, out))


def clip(
    a: Any,
    min: Any = None,
    max: Any = None,
    out: Any = None,
    *,
    a_min: Any = None,
    a_max: Any = None,
) -> Any:
    """min(max(a, low), high), with either bound left out; nan where `a` or a bound is.

    Where the bounds cross, the upper one holds. The derivative is 0 where `a` ties with one.
    """
    low, high = (a_min if min is None else min), (a_max if max is None else max)
    if low is None and high is None:
        return write_out("clip", copy_array(asarray(a)), out)
    given = [x for x in (a, low, high) if x is not None]
    a, *bounds = broadcast(*promote(*given))
    dtype = aval_of(a).dtype
    if is_complex(dtype):
        raise DTypeError(f"clip: the array must not be complex; got {aval_of(a)!r}")
    if low is None:
        bounds.insert(0, literal(_dtype_bounds(dtype)[0], dtype))
    elif high is None:
        bounds.append(literal(_dtype_bounds(dtype)[1], dtype))
    return write_out("clip", selection.clamp(bounds[0], a, bounds[1]), out)


def _dtype_bounds(dtype: Any) -> tuple[Any, Any]:
    """The lowest and the highest value of a dtype."""
    if is_floating(dtype):
        return -math.inf, math.inf
    return (False, True) if dtype == BOOL else (iinfo(dtype).min, iinfo(dtype).max)


def where(
    condition: Any,
    x: Any = None,
    y: Any = None,
    /,
    *,
    size: int | None = None,
    fill_value: Any = None,
) -> Any:
    """`x` where `condition` is not zero, else `y`; what is not taken has no influence.

    With the condition alone, the positions where it holds, as `nonzero` gives them.
    """
    if x is None or y is None:
        if x is not None or y is not None:
            raise ArgumentError("where: x and y must be given together; got one of them")
        from functx.numpy.conditions import nonzero_indices

        return nonzero_indices("where", condition, size, fill_value)
    if type(condition) is Tracer and condition.atom.aval.dtype == BOOL:
        shape = condition.atom.aval.shape
        if type(x) is Tracer and x.atom.aval.shape == shape:
            if type(y) is Tracer:
                if x.atom.aval is y.atom.aval:
                    return bind(Select(), (condition, y, x))
            elif type(y) is float and x.atom.aval.dtype.kind == "f" and not x.atom.aval.weak_type:
                return bind(Select(), (condition, literal(y, x.atom.aval.dtype), x))
    condition, x, y = broadcast(as_boolean(condition), *promote(x, y))
    return bind(Select(), (condition, y, x))


def select(condlist: Sequence[Any], choicelist: Sequence[Any], default: Any = 0) -> Any:
    """For each element the choice whose condition is the first to hold, or `default`."""
    if len(condlist) != len(choicelist) or not len(condlist):
        raise ValueRangeError(
            "select: there must be as many choices as conditions, at least one; got "
            f"{len(choicelist)} and {len(condlist)}"
        )
    *choices, chosen = promote(*choicelist, default)
    for condition, choice in zip(reversed(condlist), reversed(choices), strict=True):
        chosen = where(condition, choice, chosen)
    return chosen


def piecewise(x: Any, condlist: Any, funclist: Sequence[Any], *args: Any, **kw: Any) -> Any:
    """`funclist[i](x, *args, **kw)` where the condition i is the last to hold.

    Numbers stand for constant functions. One function more than conditions is for the rest,
    which is 0 otherwise. Every function runs on all of `x`, its result chosen from.
    """
    x = operand(x)
    if not isinstance(condlist, (list, tuple)) or (
        not isinstance(condlist[0], (list, tuple))
        and (aval_of(x).ndim > 0 and aval_of(condlist[0]).ndim == 0)
    ):
        condlist = [condlist]
    functions = list(funclist)
    if len(functions) == len(condlist):
        functions.append(0)
    if len(functions) != len(condlist) + 1:
        raise ValueRangeError(
            f"piecewise: there must be {len(condlist)} functions for {len(condlist)} conditions, "
            f"or one more; got {len(funclist)}"
        )
    dtype = aval_of(x).dtype

    def value(function: Any) -> Any:
        out = operand(function(x, *args, **kw) if callable(function) else function)
        same = aval_of(out).dtype == dtype and type(out) not in PYTHON_SCALARS
        return out if same else asarray(out, dtype)

    chosen = broadcast(value(functions[-1]), full_like(x, 0))[0]
    for condition, function in zip(condlist, functions, strict=False):
        chosen = where(condition, value(function), chosen)
    return chosen
