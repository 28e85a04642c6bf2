"""Zeros that a rule can tell from values: tangents and cotangents that nothing flows through."""

from __future__ import annotations

import dis
from collections.abc import Callable, Sequence
from functools import partial
from types import CodeType
from typing import Any, NamedTuple

import numpy as np

from functx import ops
from functx.core import tree
from functx.core.errors import ArgumentError, RuleError, type_name
from functx.core.records import Record
from functx.core.source_info import Source, unwrap_function
from functx.core.tracing import aval_of
from functx.core.types import HasAval, ShapedArray, float0, is_inexact, kind
from functx.ops.operands import PYTHON_SCALARS, literal
from functx.transforms.operand_masks import inexact_mask, is_float0, scatter_where, tangent_avals
from functx.transforms.tracing_api import function_name, key_path_strings


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
        return ops.zeros_like(leaf) if is_inexact(aval.dtype) else np.zeros(aval.shape, float0)

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


class RuleResult(Record):
    """Something that `rule`, a rule of `owner`, returns: how it is checked and reported."""

    owner: str
    rule: Callable[..., Any]
    part: str = "the output"

    def __str__(self) -> str:
        return f"{self.owner}: {self.part} of its rule `{function_name(self.rule)}`"

    def for_part(self, part: str) -> RuleResult:
        """Another part of what the rule returns."""
        return RuleResult(self.owner, self.rule, part)

    def error(self, problem: str, *details: str, fix: str = "") -> RuleError:
        """The error for a result that breaks the rule `problem`."""
        return RuleError(f"{self} {problem}", *details, fix=fix, source=rule_source(self.rule))

    def check_pair(self, out: Any, parts: str) -> tuple[Any, Any]:
        """`out`, which must be a pair."""
        if not isinstance(out, (tuple, list)) or len(out) != 2:
            raise self.error(f"must be a pair {parts}; got {describe_type(out)}")
        return out[0], out[1]

    def leaves(self, out: Any, structure: Any, avals: Sequence[ShapedArray]) -> list[Any]:
        """The leaves of an output, which must be like the function's."""
        leaves, given = tree.flatten_with_key_data(out)
        if given != structure:
            raise self.error(
                f"must have the structure of the function's output; "
                f"got {tree.describe_difference(structure, given)}",
                *tree.full_structures(structure, given),
            )
        return [
            self.cast_leaf(x, aval, partial(_leaf_location, structure, avals, i))
            for i, (x, aval) in enumerate(zip(leaves, avals, strict=True))
        ]

    def check_tangents(
        self,
        tangent: Any,
        structure: Any,
        avals: Sequence[ShapedArray],
        like: str,
        any_width: bool = False,
    ) -> list[Any]:
        """The leaves of a tangent or cotangent at the inexact leaves of `structure`.

        None, for a part or for all, stands for zero, and so do symbolic zeros. With `any_width`,
        a leaf of another dtype is converted, if that is of no greater kind.
        """
        leaves = tree.flatten_with_nones(structure, tangent)
        if isinstance(leaves, tree.StructureDifference):
            raise self.error(
                f"must have the structure of {like}; got {leaves}",
                *tree.full_structures(structure, tree.structure(tangent)),
            )
        found = []
        own = tangent_avals(structure, avals)
        for i, (x, aval) in enumerate(zip(leaves, own, strict=True)):
            place = partial(_leaf_location, structure, avals, i)
            if not is_inexact(aval.dtype):
                # An integer's is nothing, or counts for nothing.
                if not is_symbolic_zero(x, aval.shape) and getattr(x, "shape", ()) != aval.shape:
                    raise self.mismatch_error(
                        type_name(x), f"None or float0{list(aval.shape)}", place
                    )
            elif is_symbolic_zero(x, aval.shape):
                found.append(ops.zeros_like(aval))
            else:
                found.append(self.cast_leaf(x, aval, place, any_width))
        return found

    def cast_leaf(
        self, x: Any, aval: ShapedArray, place: Callable[[], str], any_width: bool = False
    ) -> Any:
        """`x`, the leaf of a result at `place`, with exactly the type `aval`."""
        try:
            given = aval_of(x)
        except ArgumentError:
            raise self.error(f"must be made of arrays; got {type_name(x)}{place()}") from None
        if given is aval:
            return x
        # A number, given or stood for, takes the dtype of the other, if that is of no lesser kind.
        weak = given.weak_type or aval.weak_type or any_width
        fits = weak and _DTYPE_KIND_ORDER.index(kind(given.dtype)) <= _DTYPE_KIND_ORDER.index(
            kind(aval.dtype)
        )
        if given.shape != aval.shape or (given.dtype != aval.dtype and not fits):
            raise self.mismatch_error(repr(given), repr(aval), place)
        if type(x) in PYTHON_SCALARS and not aval.weak_type:
            return literal(x, aval.dtype)
        return ops.ConvertElementType(aval.dtype, aval.weak_type)(x)

    def mismatch_error(self, given: str, expected: str, place: Callable[[], str]) -> RuleError:
        return self.error(
            "must have the shapes and dtypes of what it stands for; "
            f"got {given} where {expected} is expected{place()}"
        )


_DTYPE_KIND_ORDER = "buifc"


def describe_type(out: Any) -> str:
    """What a rule returned, as messages show it: its type, and its length if it is a sequence."""
    return type_name(out) + (f" of {len(out)}" if isinstance(out, (tuple, list)) else "")


def _leaf_location(structure: Any, avals: Sequence[ShapedArray], i: int) -> str:
    """Where leaf `i` of a structure is, as messages say it."""
    text = key_path_strings(structure, avals)[i]
    return f", at {text}" if text else ""


def rule_source(rule: Any) -> Source | None:
    """The line on which the function `rule` returns, or begins if it returns in several places."""
    code = _code_of(rule)
    if code is None:
        return None
    returns = [i.offset for i in dis.get_instructions(code) if i.opname in _RETURN_OPCODES]
    return code, returns[0] if len(returns) == 1 else 0


_RETURN_OPCODES = ("RETURN_VALUE", "RETURN_CONST")


def _code_of(rule: Any) -> CodeType | None:
    rule = unwrap_function(rule, "func", "__func__")
    if not isinstance(getattr(rule, "__code__", None), CodeType):
        rule = getattr(type(rule), "__call__", None)  # noqa: B004
    code = getattr(rule, "__code__", None)
    return code if isinstance(code, CodeType) else None
