"""Zeros that a rule can tell from values: tangents and cotangents that nothing flows through."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from functx.core import tree
from functx.core.avals import HasAval, ShapedArray
from functx.core.dtypes import float0, is_inexact
from functx.core.tracing import aval_of
from functx.ops.shaping import zeros_like
from functx.transforms.marks import inexact_mask, is_float0, scatter_where, tangent_avals


class SymbolicZero(HasAval):
    """The tangent or cotangent of a value of type `aval`, known to be zero.

    It has the `shape` of the value and its `dtype`, or `float0` for integers and booleans.
    """

    __slots__ = ("aval",)

    def __init__(self, aval: ShapedArray):
        self.aval = aval

    @staticmethod
    def from_primal_value(x: Any) -> SymbolicZero:
        """The zero tangent of the array or number `x`."""
        return SymbolicZero(aval_of(x))

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.aval.dtype if is_inexact(self.aval.dtype) else float0

    def __repr__(self) -> str:
        return f"SymbolicZero({self.aval!r})"


class CustomVJPPrimal(NamedTuple):
    """An argument as a forward rule with symbolic zeros gets it.

    `perturbed` says whether a derivative in it is asked for.
    """

    value: Any
    perturbed: bool


def _is_custom_vjp_primal(x: Any) -> bool:
    return isinstance(x, CustomVJPPrimal)


def custom_vjp_primal_tree_values(primals: Any) -> Any:
    """A pytree with the values of the `CustomVJPPrimal`s in the pytree `primals`.

    >>> import functx
    >>> primal = functx.custom_derivatives.CustomVJPPrimal(2.0, True)
    >>> functx.custom_derivatives.custom_vjp_primal_tree_values({"x": primal})
    {'x': 2.0}
    """
    return tree.map(
        lambda p: p.value if _is_custom_vjp_primal(p) else p, primals, is_leaf=_is_custom_vjp_primal
    )


def zero_from_primal(x: Any, symbolic_zeros: bool = False) -> Any:
    """The zero tangent of each leaf of the pytree `x`.

    An array of zeros like the leaf, of dtype `float0` for integers and booleans, or with
    `symbolic_zeros` a `SymbolicZero`.

    >>> import functx
    >>> float(functx.custom_derivatives.zero_from_primal(3.0))
    0.0
    >>> functx.custom_derivatives.zero_from_primal(3.0, symbolic_zeros=True)
    SymbolicZero(~f32[])
    """

    def zero(leaf: Any) -> Any:
        aval = aval_of(leaf)
        if symbolic_zeros:
            return SymbolicZero(aval)
        return zeros_like(leaf) if is_inexact(aval.dtype) else np.zeros(aval.shape, float0)

    return tree.map(zero, x)


def with_symbolic_zeros(
    structure: Any,
    avals: Sequence[ShapedArray],
    values: Sequence[Any],
    flow: Sequence[bool] | None,
) -> list[Any]:
    """A tangent or cotangent for each leaf of a structure, of types `avals`, as a rule gets it.

    `values` are those of the inexact ones; the others get None. With `flow`, the inexact ones
    that it does not mark and the others get a `SymbolicZero`.
    """
    if flow is None:
        return scatter_where(values, inexact_mask(avals))
    pairs = iter(zip(values, flow, strict=False))
    found: list[Any] = []
    for aval in tangent_avals(structure, avals):
        value, on = next(pairs) if is_inexact(aval.dtype) else (None, False)
        found.append(value if on else SymbolicZero(aval))
    return found


def is_symbolic_zero(x: Any, shape: tuple[int, ...]) -> bool:
    """Whether `x`, given as the tangent or cotangent of a value of `shape`, says it is zero."""
    if x is None:
        return True
    symbolic = isinstance(x, SymbolicZero) or is_float0(x)
    return symbolic and x.shape == shape
