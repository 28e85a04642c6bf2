"""The NumPy meaning of programs and primitives, independent of how they are lowered.

`interpret(program, *args)` runs a program; `apply(primitive, args)` one primitive.
`MEANING` is the table behind them, by class name.
"""

from functx.testing.reference import (  # noqa: F401 - they fill the table
    control,
    elementwise,
    linear_algebra,
    nn,
    reductions,
)
from functx.testing.reference.interpreter import (
    REFERENCE_RULES,
    apply_primitive,
    interpret_in_numpy,
    narrow_array,
    widen_array,
)

__all__ = [
    "REFERENCE_RULES",
    "apply_primitive",
    "interpret_in_numpy",
    "narrow_array",
    "widen_array",
]
