"""The rounding errors of primitives, for which `functx.testing.verify` allows."""

from __future__ import annotations

from typing import NamedTuple


class Rounding(NamedTuple):
    """The rounding error of one operation, from operands without errors.

    `ulps` is its size in units in the last place of each element of the result. With
    `is_exact_if_representable`, a result that the dtype can represent has none. With
    `is_componentwise`, the two components of a complex result are rounded by themselves; without,
    either may have an error of the size of the modulus: the real part of `rsqrt(-2 + 0j)` is 0 in
    one correct computation and 1e-8 in another. With `is_absolute`, there is also the error of a
    result of size 1, as in the logarithm of a number near 1. With `is_normwise`, there is also the
    error of the largest element.
    """

    ulps: float = 2.0
    is_exact_if_representable: bool = False
    is_componentwise: bool = False
    is_absolute: bool = False
    is_normwise: bool = False


EXACT = Rounding(0.0)
"""No error: the operation selects, moves or negates elements of its operands."""

CORRECTLY_ROUNDED = Rounding(is_exact_if_representable=True)
"""The rounding of the arithmetic of IEEE 754."""
