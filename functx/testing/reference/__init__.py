"""The NumPy meaning of programs and primitives, independent of how they are lowered.

`interpret(program, *args)` runs a program; `apply(primitive, args)` one primitive.
`MEANING` is the table behind them, by class name.
"""

from functx.testing.reference import (  # noqa: F401 - they fill the table
    collectives,
    contractions,
    control,
    elementwise,
    indexing,
    losses,
    matrices,
    normalizations,
    random_bits,
    reductions,
    shapes,
)
from functx.testing.reference.interpreter import (
    apply_primitive,
    interpret_in_numpy,
    narrow_array,
    widen_array,
)
from functx.testing.reference.meanings import REFERENCE_RULES

__all__ = [
    "REFERENCE_RULES",
    "apply_primitive",
    "interpret_in_numpy",
    "narrow_array",
    "widen_array",
]
