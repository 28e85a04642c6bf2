"""The table of NumPy meanings: for each primitive of functx, a function of NumPy arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

MEANING: dict[str, Callable[..., Any]] = {}
"""By class name: `MEANING[name](*operands, **parameters)` gives the output, or a list of them."""
EXACT: set[str] = set()
"""The names of primitives evaluated in the dtypes of the program; the others get wide operands."""
CONTROL: set[str] = set()
"""The names of primitives with sub-programs; they get `run(program, args)` as first argument."""


def meaning(function: Any) -> Any:
    """Register the meaning of the class that the function is named after."""
    MEANING[function.__name__] = function
    return function


def exact(function: Any) -> Any:
    """Register a meaning that needs the operands in their own dtype."""
    EXACT.add(function.__name__)
    return meaning(function)


def control(function: Any) -> Any:
    """Register a meaning that runs the programs of the primitive."""
    CONTROL.add(function.__name__)
    return meaning(function)
