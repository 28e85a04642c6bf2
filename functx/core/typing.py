"""The types that rules, transforms and functions of arrays are annotated with."""

from __future__ import annotations

from typing import Any, TypeAlias

import jax
import numpy as np

Value: TypeAlias = jax.Array
"""A value that rules take and return. `Tracer` is a subclass of `jax.Array`."""
Tangent: TypeAlias = Value | None
"""A tangent; None is zero."""
Cotangent: TypeAlias = Value | None
"""A cotangent; None is zero."""
Mask: TypeAlias = Value | None
"""A boolean array that is False where a tangent or cotangent is zero; None if that is not known."""
Dim: TypeAlias = int | None
"""The batch dimension of a value; None for a value that is the same for the whole batch."""
ArrayLike: TypeAlias = jax.Array | np.ndarray[Any, Any] | np.generic | complex
"""An array or a number: what functions of arrays accept."""
