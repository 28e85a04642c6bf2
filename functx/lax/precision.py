"""How exactly products are computed, as JAX names it."""

from __future__ import annotations

from enum import Enum
from typing import Any

from functx.core.errors import ValueRangeError


class Precision(Enum):
    """How many passes a matrix unit makes over float32 operands: the more, the more exact."""

    DEFAULT = 0
    HIGH = 1
    HIGHEST = 2


_PRECISION_NAMES = {
    "default": "DEFAULT",
    "fastest": "DEFAULT",
    "bfloat16": "DEFAULT",
    "high": "HIGH",
    "tensorfloat32": "HIGH",
    "bfloat16_3x": "HIGH",
    "highest": "HIGHEST",
    "float32": "HIGHEST",
}


def canonical_precision(precision: Any) -> tuple[str, str] | None:
    """`precision`, one for both operands or a pair, as `DotGeneral` takes it.

    Each is None, a member of `Precision` (JAX's are taken too), or its name.
    """
    if precision is None:
        return None
    if isinstance(precision, (tuple, list)) and len(precision) == 2:
        left, right = (_precision_name(p) for p in precision)
        return left, right
    return _precision_name(precision), _precision_name(precision)


def _precision_name(precision: Any) -> str:
    if precision is None:
        return "DEFAULT"
    name = getattr(precision, "name", precision)
    found = _PRECISION_NAMES.get(name.lower()) if isinstance(name, str) else None
    if found is None:
        raise ValueRangeError(
            "precision must be None, 'default', 'high' or 'highest', a member of "
            f"functx.lax.Precision, or a pair of those; got {precision!r}"
        )
    return found
