"""The reference: NumPy definitions of programs and primitives, independent of the lowering.

`interpret_in_numpy(program, *args)` runs a program, `apply_primitive(primitive, args)` one
primitive. `REFERENCE_RULES` is the table of definitions, by class name.
"""

from functx.testing.reference import (  # noqa: F401 - fill the table
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
