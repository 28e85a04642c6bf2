"""The table of NumPy meanings: for each primitive of functx, a function of NumPy arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

REFERENCE_RULES: dict[str, Callable[..., Any]] = {}
"""By class name: `REFERENCE_RULES[name](*operands, **parameters)` gives the output, or a list of them."""
EXACT_DTYPE_RULES: set[str] = set()
"""The names of primitives evaluated in the dtypes of the program; the others get wide operands."""
SUBPROGRAM_RULES: set[str] = set()
"""The names of primitives with sub-programs; they get `run(program, args)` as first argument."""


def reference_rule(function: Any) -> Any:
    """Register the meaning of the class that the function is named after."""
    REFERENCE_RULES[function.__name__] = function
    return function


def exact_dtype_rule(function: Any) -> Any:
    """Register a meaning that needs the operands in their own dtype."""
    EXACT_DTYPE_RULES.add(function.__name__)
    return reference_rule(function)


def subprogram_rule(function: Any) -> Any:
    """Register a meaning that runs the programs of the primitive."""
    SUBPROGRAM_RULES.add(function.__name__)
    return reference_rule(function)
