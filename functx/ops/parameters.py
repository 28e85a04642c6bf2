"""Parameters: numbers and flags that users pass, known before a program runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from numbers import Integral
from operator import index
from typing import Any

import numpy as np

from functx.core.errors import ArgumentError, ConcretizationError, short_repr
from functx.core.tracing import Tracer


def as_float(what: str, value: Any) -> float:
    """The Python float that `value`, called `what`, stands for; ArgumentError if none."""
    return float(_convert_static(float, "a number", what, value))


def as_int(what: str, value: Any) -> int:
    """The Python int that `value`, called `what`, stands for; ArgumentError if none."""
    return int(_convert_static(index, "an integer", what, value))


def as_bool(what: str, value: Any) -> bool:
    """The bool that `value`, called `what`, stands for; ArgumentError if none."""
    if value is None or isinstance(value, Integral | np.bool_):
        return bool(value)
    array = isinstance(value, Tracer | np.ndarray) or hasattr(value, "__array__")
    return bool(_convert_static(bool if array else _raise_type_error, "True or False", what, value))


def as_ints(what: str, values: Any, count: int) -> tuple[int, ...]:
    """So many Python ints; ArgumentError for what is no sequence of so many."""
    try:
        given: Sequence[Any] = tuple(values)
    except TypeError:
        given = ()
    if len(given) != count or isinstance(values, str | bytes | dict | set):
        raise ArgumentError(
            f"{what} must be {count} integers, one a dimension; got {short_repr(values)}"
        )
    return tuple([as_int(what, value) for value in given])


def _convert_static(make: Callable[[Any], Any], kind: str, what: str, value: Any) -> Any:
    try:
        return make(value if not isinstance(value, str | bytes) else None)
    except ConcretizationError as error:
        details = error.details
    except (TypeError, ValueError, OverflowError):
        details = []
    raise ArgumentError(
        f"{what} must be {kind}, known while tracing; got {short_repr(value)}",
        *details,
        fix="Make the argument static (static_argnums, a closure)." if details else "",
    )


def _raise_type_error(value: Any) -> Any:
    raise TypeError
