"""The types that rules, transforms and functions of arrays are annotated with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, SupportsIndex, TypeAlias

import jax
import numpy as np

if TYPE_CHECKING:
    from types import EllipsisType

    from jax.extend.mlir import ir

    from functx.core.program import Literal
    from functx.core.types import ShapedArray

PyTree: TypeAlias = Any
"""A pytree of arrays, numbers and static values: arguments and results of a user's function."""
Function: TypeAlias = Callable[..., Any]
"""A function of the user, with any parameters and results."""
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
Values: TypeAlias = Sequence[Value]
Tangents: TypeAlias = Sequence[Tangent]
Cotangents: TypeAlias = Sequence[Cotangent]
Dims: TypeAlias = Sequence[Dim]
Flags: TypeAlias = Sequence[bool]
"""One boolean for each operand, output or equation."""
Avals: TypeAlias = "Sequence[ShapedArray]"
ArrayLike: TypeAlias = "jax.Array | np.ndarray[Any, Any] | np.generic | complex | Literal"
"""An array, a number, or a literal of a program, as an argument of functions of arrays."""
Number: TypeAlias = "float | Value"
"""A real number, or an array of them."""
ArrayOrList: TypeAlias = "ArrayLike | Sequence[Any]"
"""An array, a number, or nested lists and tuples of them, as an argument of functions of NumPy's."""
Keys: TypeAlias = jax.Array
"""An array of typed keys, in annotations of functions that JAX applies to them, too."""
PyTreeOrKeys: TypeAlias = Any
"""As `PyTree`, for functions that do the same to each leaf, and to the words of typed keys."""
Index: TypeAlias = "ArrayOrList | slice | EllipsisType | None"
"""The index of elements of an array, as in NumPy: one item, or a tuple of them."""
Out: TypeAlias = jax.Array | np.ndarray[Any, Any] | tuple[Any, ...] | None
"""The array that a result is written to, or a tuple of them; None for a new array."""
Axes: TypeAlias = SupportsIndex | Sequence[SupportsIndex] | None
"""One axis, several axes, or None for all."""
ShapeLike: TypeAlias = SupportsIndex | Sequence[SupportsIndex]
"""A shape as users give it: a sequence of lengths, or one length."""
DTypeLike: TypeAlias = jax.typing.DTypeLike | None
"""A dtype as users give it: one of NumPy's, its name, or an object with a `dtype`; None for a default."""
NumPyArray: TypeAlias = np.ndarray[Any, Any]
"""An array of NumPy, of any shape and dtype."""
IRValue: TypeAlias = "ir.Value[Any]"
"""A value of MLIR, as in `lower` rules."""
IRValues: TypeAlias = Sequence[IRValue]
