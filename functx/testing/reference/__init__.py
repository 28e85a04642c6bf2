"""The reference: NumPy definitions of programs and primitives, independent of the lowering.

`interpret_in_numpy(program, *args)` runs a program, `apply_primitive(primitive, args)` one
primitive. `numpy_definition(primitive)` is its definition: `numpy` of its class, or the function of
these modules that has the name of the class.
"""

from functx.testing.reference.interpreter import (
    apply_primitive,
    interpret_in_numpy,
    narrow_array,
    numpy_definition,
    widen_array,
)

__all__ = [
    "apply_primitive",
    "interpret_in_numpy",
    "narrow_array",
    "numpy_definition",
    "widen_array",
]
