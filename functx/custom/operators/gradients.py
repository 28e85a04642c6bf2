"""What a backward rule returns, checked argument by argument."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from functx.core import tree
from functx.core.avals import ShapedArray
from functx.core.dtypes import is_inexact, kind
from functx.core.errors import ArgumentError, OperatorRuleError, type_name
from functx.core.tracing import aval_of
from functx.custom.operators.registry import Registration
from functx.custom.operators.results import operator_rule_error
from functx.custom.operators.schema import Argument
from functx.custom.operators.traced import is_array
from functx.custom.results import describe_type
from functx.ops.conversion import ConvertElementType

if TYPE_CHECKING:
    from functx.custom.operators.equations import OperatorPrimitive

Gradients = list[Any]
"""A cotangent for each operand; None for zero."""


class GradientChecker:
    """The check of what `rule` of the operator of `call` returned for operands `args`."""

    def __init__(self, call: OperatorPrimitive, rule: Registration, args: Sequence[Any]):
        self.call, self.rule, self.args = call, rule, args
        self.arguments = call.operator.arguments
        self.values = self.arguments.unflatten(call, args)

    def error(self, problem: str, fix: str = "") -> OperatorRuleError:
        return operator_rule_error(self.call.operator.qualname, self.rule, problem, fix)

    def from_dict(self, found: Any) -> Gradients:
        """The cotangents that a dictionary gives, which must have a key for each array."""
        if not isinstance(found, dict):
            raise self.error(
                f"return a dictionary of gradients by name; got {describe_type(found)}"
            )
        expected = {a.name for a in self.arguments.schema.arrays}
        if found.keys() != expected:
            raise self.error(
                f"return a dictionary with the keys {_name_set_text(expected)}; got {_name_set_text(found)}",
                fix="There is a key for each argument that is an array, an optional array or a list "
                "of arrays, and none for non-array types.",
            )
        gradients: Gradients = []
        for argument, value in zip(self.arguments.schema.arguments, self.values, strict=True):
            if argument.type.is_array:
                gradients += self.check_argument(argument, value, found[argument.name])
        return gradients

    def from_tuple(self, found: Any, passed: int) -> Gradients:
        """The cotangents that a tuple gives, one for each argument that was passed, or for all."""
        grads = found if isinstance(found, (tuple, list)) else (found,)
        count = self.arguments.positional
        if len(grads) not in (passed, count):
            wanted = f"{passed}" if passed == count else f"{passed} or {count}"
            raise self.error(f"return {wanted} gradients, one an argument; got {len(grads)}")
        padded = [*grads, *[None] * (count - len(grads))]
        gradients: Gradients = []
        for argument, value, g in zip(self.arguments.schema.positional, self.values, padded):  # noqa: B905
            if not argument.type.is_array:
                if g is not None:
                    raise self.error(
                        f"give None for `{argument.name}`, which is no array; got {type_name(g)}"
                    )
            elif isinstance(value, list):
                gradients += self.check_list(argument, value, g)
            else:
                gradients += self.check_argument(argument, value, g)
        return gradients

    def check_list(self, argument: Argument, value: list[Any], g: Any) -> Gradients:
        """The cotangents of a list, whose gradient has the structure of the list, or is None."""
        if g is None:
            return [None for x in value if x is not None]
        wanted, given = (
            tree.structure([0] * len(value)),
            tree.structure(g, is_leaf=lambda x: x is None),
        )
        if isinstance(g, tuple) and len(g) == len(value):
            given = wanted
        if given != wanted:
            raise self.error(
                f"give gradients of the structure of `{argument.name}`, {wanted}; got {given}"
            )
        return self.check_argument(argument, value, list(g))

    def check_argument(self, argument: Argument, value: Any, g: Any) -> Gradients:
        """The cotangents of one argument: of each array that it is or holds."""
        name = argument.name
        if not argument.type.is_list:
            if g is not None and not is_array(g):
                raise self.error(f"give an array or None for `{name}`; got {describe_type(g)}")
            if value is None:
                if g is not None:
                    raise self.error(f"give None for `{name}`, which was None; got {type_name(g)}")
                return []
            return [self.check_gradient(name, value, g)]
        if not isinstance(g, (list, tuple)):
            raise self.error(f"give a list or tuple of gradients for `{name}`; got {type_name(g)}")
        if len(g) != len(value):
            raise self.error(
                f"give {len(value)} gradients for `{name}`, one an element; got {len(g)}"
            )
        gradients: Gradients = []
        for i, (x, each) in enumerate(zip(value, g, strict=True)):
            if each is not None and not is_array(each):
                raise self.error(
                    f"give an array or None for `{name}[{i}]`; got {describe_type(each)}"
                )
            if x is not None:
                gradients.append(self.check_gradient(f"{name}[{i}]", x, each))
            elif each is not None:
                raise self.error(
                    f"give None for `{name}[{i}]`, which was None; got {type_name(each)}"
                )
        return gradients

    def check_gradient(self, name: str, x: Any, g: Any) -> Any:
        """`g` as the cotangent of the operand `x`, whose shape and dtype it must have."""
        aval: ShapedArray = aval_of(x)
        if g is None:
            return None
        try:
            given = aval_of(g)
        except ArgumentError:
            raise self.error(f"give an array or None for `{name}`; got {type_name(g)}") from None
        weak = given.weak_type or aval.weak_type
        fits = weak and _KIND_ORDER.index(kind(given.dtype)) <= _KIND_ORDER.index(kind(aval.dtype))
        if given.shape != aval.shape or (given.dtype != aval.dtype and not fits):
            raise self.error(
                f"give a gradient of the shape and dtype of `{name}`, {aval!r}; got {given!r}"
            )
        if not is_inexact(aval.dtype):
            return None
        return g if given is aval else ConvertElementType(aval.dtype, aval.weak_type)(g)


_KIND_ORDER = "buifc"


def _name_set_text(names: Any) -> str:
    return "{" + ", ".join(sorted(map(repr, names))) + "}"
