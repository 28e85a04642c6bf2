"""The values that rules receive and return: symbolic zeros, and the checks of results."""

from __future__ import annotations

import dis
from collections.abc import Callable
from functools import partial
from inspect import signature
from types import CodeType
from typing import Any, NamedTuple

import numpy as np

from functx import ops
from functx.core import tree
from functx.core.errors import ArgumentError, FunctxError, RuleError, type_name
from functx.core.masks import inexact_mask, is_float0, scatter_where, tangent_avals
from functx.core.rewriting import Record
from functx.core.source_info import Source, unwrap_function
from functx.core.tracer import aval_of
from functx.core.tree import TreeDef
from functx.core.types import HasAval, ShapedArray, float0, is_inexact, kind
from functx.core.typing import Avals, Flags, Function, PyTree, Value, Values
from functx.ops.operands import PYTHON_SCALARS, literal
from functx.transforms.argument_names import function_name, key_path_strings


class SymbolicZero(HasAval):
    """The tangent or cotangent, known to be zero, of a value of type `aval`.

    It has the `shape` of the value and its `dtype`, or `float0` for integers and booleans.
    """

    __slots__ = ("aval",)

    def __init__(self, aval: ShapedArray):
        self.aval = aval

    @staticmethod
    def from_primal_value(x: Value) -> SymbolicZero:
        """The zero tangent of the array or number `x`."""
        return SymbolicZero(aval_of(x))

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.aval.dtype if is_inexact(self.aval.dtype) else float0

    def __repr__(self) -> str:
        return f"SymbolicZero({self.aval!r})"


class CustomVJPPrimal(NamedTuple):
    """An argument of a forward rule with symbolic zeros.

    `perturbed` says whether the derivative in it is needed.
    """

    value: PyTree
    perturbed: bool


def _is_custom_vjp_primal(x: Value) -> bool:
    return isinstance(x, CustomVJPPrimal)


def custom_vjp_primal_tree_values(primals: PyTree) -> PyTree:
    """The pytree `primals` with each `CustomVJPPrimal` replaced by its value.

    >>> import functx
    >>> primal = functx.custom_derivatives.CustomVJPPrimal(2.0, True)
    >>> functx.custom_derivatives.custom_vjp_primal_tree_values({"x": primal})
    {'x': 2.0}
    """
    return tree.map(
        lambda p: p.value if _is_custom_vjp_primal(p) else p, primals, is_leaf=_is_custom_vjp_primal
    )


def zero_from_primal(x: PyTree, symbolic_zeros: bool = False) -> PyTree:
    """The zero tangent of each leaf of the pytree `x`.

    An array of zeros like the leaf, of dtype `float0` for integers and booleans, or with
    `symbolic_zeros` a `SymbolicZero`.

    >>> import functx
    >>> float(functx.custom_derivatives.zero_from_primal(3.0))
    0.0
    >>> functx.custom_derivatives.zero_from_primal(3.0, symbolic_zeros=True)
    SymbolicZero(~f32[])
    """

    def zero(leaf: PyTree) -> PyTree:
        aval = aval_of(leaf)
        if symbolic_zeros:
            return SymbolicZero(aval)
        return ops.zeros_like(leaf) if is_inexact(aval.dtype) else np.zeros(aval.shape, float0)

    return tree.map(zero, x)


def with_symbolic_zeros(
    structure: TreeDef, avals: Avals, values: Values, nonzero: Flags | None
) -> list[Value | None]:
    """The tangents or cotangents of the leaves of a structure, of types `avals`, for a rule.

    `values` are those of the inexact leaves. Without `nonzero`, a mask of `values`, other leaves
    have None. With it, they and the inexact leaves that it does not mark have a `SymbolicZero`.
    """
    if nonzero is None:
        return scatter_where(values, inexact_mask(avals))
    pairs = iter(zip(values, nonzero, strict=False))
    leaves: list[PyTree] = []
    for aval in tangent_avals(structure, avals):
        value, on = next(pairs) if is_inexact(aval.dtype) else (None, False)
        leaves.append(value if on else SymbolicZero(aval))
    return leaves


def is_symbolic_zero(x: Value, shape: tuple[int, ...]) -> bool:
    """Whether `x`, a tangent or cotangent of a value of `shape`, is None, symbolic or `float0`."""
    if x is None:
        return True
    symbolic = isinstance(x, SymbolicZero) or is_float0(x)
    return symbolic and x.shape == shape


class RuleResult(Record):
    """The checks, and their errors, of one part of the result of `rule`, a rule of `owner`."""

    owner: str
    rule: Function
    part: str = "the output"

    def __str__(self) -> str:
        return f"{self.owner}: {self.part} of its rule `{function_name(self.rule)}`"

    def for_part(self, part: str) -> RuleResult:
        """The checks of another part of the result."""
        return RuleResult(self.owner, self.rule, part)

    def error(self, problem: str, *details: str, fix: str = "") -> RuleError:
        """The error whose requirement is `problem`, at the line where the rule returns."""
        return RuleError(f"{self} {problem}", *details, fix=fix, source=rule_source(self.rule))

    def call(self, takes: str, *args: object) -> PyTree:
        """The result of the rule; RuleError if it does not take the arguments `takes`."""
        try:
            return self.rule(*args)
        except TypeError as error:
            if isinstance(error, FunctxError):
                raise
            try:
                signature(self.rule).bind(*args)
            except TypeError:
                raise RuleError(
                    f"{self.owner}: its rule `{function_name(self.rule)}` must take {takes}; got a function "
                    f"for which {error}",
                    source=rule_source(self.rule),
                ) from None
            raise

    def check_pair(self, out: PyTree, parts: str) -> tuple[PyTree, PyTree]:
        """`out`, which must be a pair; `parts` names its two parts in the error."""
        if not isinstance(out, (tuple, list)) or len(out) != 2:
            raise self.error(f"must be a pair {parts}; got {describe_type(out)}")
        return out[0], out[1]

    def check_output(self, out: PyTree, structure: TreeDef, avals: Avals) -> list[Value]:
        """The leaves of `out`, which must have the structure and types of the function's output."""
        leaves, out_structure = tree.flatten_with_key_data(out)
        if out_structure != structure:
            raise self.error(
                f"must have the structure of the function's output; "
                f"got {tree.describe_difference(structure, out_structure)}",
                *tree.full_structures(structure, out_structure),
            )
        return [
            self.cast_leaf(x, aval, partial(_leaf_location, structure, avals, i))
            for i, (x, aval) in enumerate(zip(leaves, avals, strict=True))
        ]

    def check_jvp(self, out: PyTree, structure: TreeDef, avals: Avals) -> list[Value]:
        """The leaves of `out`, a pair of the function's output and its tangent."""
        value, tangent = self.check_pair(out, "(output, output tangent)")
        return [
            *self.check_output(value, structure, avals),
            *self.for_part("the output tangent").check_tangents(
                tangent, structure, avals, "the function's output"
            ),
        ]

    def check_tangents(
        self, tangent: PyTree, structure: TreeDef, avals: Avals, like: str, any_width: bool = False
    ) -> list[Value]:
        """The leaves of `tangent`, a tangent or cotangent, at the inexact leaves of `structure`.

        None, for a part or for all, stands for zero, and so do symbolic zeros. With `any_width`,
        a leaf of another dtype is converted, unless its kind is greater.
        """
        leaves = tree.flatten_with_nones(structure, tangent)
        if isinstance(leaves, tree.StructureDifference):
            raise self.error(
                f"must have the structure of {like}; got {leaves}",
                *tree.full_structures(structure, tree.structure(tangent)),
            )
        checked = []
        for i, (x, aval) in enumerate(zip(leaves, tangent_avals(structure, avals), strict=True)):
            location = partial(_leaf_location, structure, avals, i)
            if not is_inexact(aval.dtype):
                # The tangent of an integer is None, or has no influence.
                if not is_symbolic_zero(x, aval.shape) and getattr(x, "shape", ()) != aval.shape:
                    expected = f"None or float0{list(aval.shape)}"
                    raise self.mismatch_error(type_name(x), expected, location)
            elif is_symbolic_zero(x, aval.shape):
                checked.append(ops.zeros_like(aval))
            else:
                checked.append(self.cast_leaf(x, aval, location, any_width))
        return checked

    def cast_leaf(
        self, x: Value, aval: ShapedArray, location: Callable[[], str], any_width: bool = False
    ) -> PyTree:
        """`x`, the leaf of a result at `location`, with exactly the type `aval`."""

        def error(actual: ShapedArray | None) -> RuleError:
            if actual is None:
                return self.error(f"must be made of arrays; got {type_name(x)}{location()}")
            return self.mismatch_error(repr(actual), repr(aval), location)

        return cast_to_aval(x, aval, error, any_width)

    def mismatch_error(self, actual: str, expected: str, location: Callable[[], str]) -> RuleError:
        return self.error(
            "must have the shapes and dtypes of what it stands for; "
            f"got {actual} where {expected} is expected{location()}"
        )


def cast_to_aval(
    x: Value,
    aval: ShapedArray,
    error: Callable[[ShapedArray | None], Exception],
    any_width: bool = False,
) -> PyTree:
    """`x` with exactly the type `aval`.

    Its shape must be that of `aval`. Another dtype is converted, unless its kind is greater, if
    either type is weak or with `any_width`. Raises `error(the type of x)` for other types,
    `error(None)` for what is no array.
    """
    try:
        actual = aval_of(x)
    except ArgumentError:
        raise error(None) from None
    if actual is aval:
        return x
    convertible = (actual.weak_type or aval.weak_type or any_width) and _DTYPE_KINDS.index(
        kind(actual.dtype)
    ) <= _DTYPE_KINDS.index(kind(aval.dtype))
    if actual.shape != aval.shape or (actual.dtype != aval.dtype and not convertible):
        raise error(actual)
    if type(x) in PYTHON_SCALARS and not aval.weak_type:
        return literal(x, aval.dtype)
    return ops.ConvertElementType(aval.dtype, aval.weak_type)(x)


_DTYPE_KINDS = "buifc"


def describe_type(out: object) -> str:
    """The type of `out`, and its length if it is a sequence, for messages."""
    return type_name(out) + (f" of {len(out)}" if isinstance(out, (tuple, list)) else "")


def _leaf_location(structure: TreeDef, avals: Avals, i: int) -> str:
    """The path of leaf `i` of a structure, for messages."""
    text = key_path_strings(structure, avals)[i]
    return f", at {text}" if text else ""


def rule_source(rule: Function) -> Source | None:
    """The line of the only `return` of the function `rule`, else the line where it begins."""
    code = _code_of(rule)
    if code is None:
        return None
    returns = [i.offset for i in dis.get_instructions(code) if i.opname in _RETURN_OPCODES]
    return code, returns[0] if len(returns) == 1 else 0


_RETURN_OPCODES = ("RETURN_VALUE", "RETURN_CONST")


def _code_of(rule: object) -> CodeType | None:
    rule = unwrap_function(rule, "func", "__func__")
    if not isinstance(getattr(rule, "__code__", None), CodeType):
        rule = getattr(type(rule), "__call__", None)  # noqa: B004
    code = getattr(rule, "__code__", None)
    return code if isinstance(code, CodeType) else None
