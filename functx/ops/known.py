"""Numbers of classes and of rows: checked where they are known before anything is computed."""

from __future__ import annotations

from typing import Any

import numpy as np

from functx.core.dtypes import is_integer
from functx.core.errors import DTypeError, IndexingError
from functx.core.program import Literal
from functx.core.tracing import Tracer, aval_of, backend


def check_index_range(
    name: str, what: str, numbers: Any, length: int, ignored: int | None = None
) -> None:
    """Raise unless `numbers`, called `what`, are integers from 0 to below `length`, or `ignored`.

    Those that are traced are not looked at. Raises IndexingError, and DTypeError.
    """
    aval = aval_of(numbers)
    if not is_integer(aval.dtype):
        raise DTypeError(
            f"{name}: {what} must be integers; got {aval!r}", fix="Convert with astype(int)."
        )
    values = concrete_value(numbers)
    if values is None or values.size == 0:
        return
    outside = (values < 0) | (values >= length)
    if ignored is not None:
        outside &= values != ignored
    if outside.any():
        place = tuple([int(i) for i in np.unravel_index(np.argmax(outside), values.shape)])
        besides = "" if ignored is None else f" or ignore_index, {ignored}"
        raise IndexingError(
            f"{name}: {what} must be in [0, {length}){besides}; got {int(values[place])} at "
            f"{place} of {aval!r}"
        )


def concrete_value(x: Any) -> np.ndarray[Any, Any] | None:
    """The value of `x` if it is there already; None for what is traced, or would be computed."""
    while type(x) is Tracer:
        builder, atom = x.builder, x.atom
        if isinstance(atom, Literal):
            return np.asarray(atom.value)
        # What is written to does not hold what it came with.
        if builder.writes:
            return None
        found = builder.values.get(atom)
        x = builder.captured_value(atom) if found is None else found
    value = None if x is None else backend.concrete_or_none(x)
    return None if value is None else np.asarray(value)
