"""What an operator gives: the types that its abstract rule states, and pytrees of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import jax
import numpy as np

from functx import ops
from functx.core import tree
from functx.core.errors import (
    ArgumentError,
    DynamicShapeError,
    MissingKernelError,
    OperatorRuleError,
    ValueRangeError,
    type_name,
)
from functx.core.tracing import aval_of, eval_context
from functx.core.types import SHORT_NAMES, ShapedArray, canonical_dtype, is_inexact, kind
from functx.custom.operators.registry import Registration, get_rule
from functx.custom.operators.schema import Argument, Return, Schema
from functx.custom.rule_results import describe_type
from functx.custom.rule_tracing import is_array

if TYPE_CHECKING:
    from functx.custom.operators.primitives import OperatorPrimitive
    from functx.custom.operators.registry import Registration


class OutputTypes(NamedTuple):
    """The types of the results, flat, and for each result the length of its list, or None.

    `padded` has, for each type, the axes along which a result may be shorter.
    """

    avals: tuple[ShapedArray, ...]
    lengths: tuple[int | None, ...]
    padded: tuple[tuple[int, ...], ...] = ()

    def unflatten(
        self, schema: Schema, leaves: Sequence[Any], aliased: dict[str, Any] | None = None
    ) -> Any:
        """The result of a call, made of `leaves` and, by their aliases, of arguments."""
        made = iter(self.group_lists(leaves))
        values = [aliased[r.alias] if aliased and r.alias else next(made) for r in schema.returns]
        if schema.returns_single:
            return values[0]
        return tuple(values) if values else None

    def group_lists(self, leaves: Sequence[Any]) -> list[Any]:
        """One value a result: a leaf, or a list of leaves."""
        rest: Iterator[Any] = iter(leaves)
        return [
            next(rest) if length is None else [next(rest) for _ in range(length)]
            for length in self.lengths
        ]

    def per_leaf(self, per_result: Sequence[bool]) -> list[bool]:
        """A mark for each leaf, given one for each result."""
        return [
            on
            for on, length in zip(per_result, self.lengths, strict=True)
            for _ in range(1 if length is None else length)
        ]


def pair_with_returns(
    qualname: str, rule: Registration, schema: Schema, out: Any
) -> list[tuple[Return, Any]]:
    """Each result that `rule` returned, with what the schema says of it.

    Raises OperatorRuleError unless there are as many as there must be.
    """
    if schema.returns_single:
        return [(schema.returns[0], out)]
    if not schema.returns:
        if out is not None:
            raise operator_rule_error(qualname, rule, f"return None; got {describe_type(out)}")
        return []
    if not isinstance(out, (tuple, list)) or len(out) != len(schema.returns):
        raise operator_rule_error(
            qualname, rule, f"return a tuple of {len(schema.returns)}; got {describe_type(out)}"
        )
    return list(zip(schema.returns, out, strict=True))


def flatten_outputs(
    qualname: str,
    rule: Registration,
    schema: Schema,
    out: Any,
    leaf: Callable[[Return, Any, str], Any],
) -> tuple[list[Any], tuple[int | None, ...]]:
    """`leaf(result, value, place)` of each value that `rule` returned, and the lengths of lists.

    Raises OperatorRuleError where a list is expected, or an array.
    """
    leaves: list[Any] = []
    lengths: list[int | None] = []
    for i, (result, value) in enumerate(pair_with_returns(qualname, rule, schema, out)):
        place = "the result" if schema.returns_single else f"result {i}"
        if result.alias:
            leaf(result, value, place)
        elif not result.type.is_list:
            leaves.append(leaf(result, value, place))
            lengths.append(None)
        elif not isinstance(value, (list, tuple)):
            raise operator_rule_error(
                qualname, rule, f"give a list for {place}; got {type_name(value)}"
            )
        else:
            leaves += [leaf(result, x, f"{place}[{k}]") for k, x in enumerate(value)]
            lengths.append(len(value))
    return leaves, tuple(lengths)


def operator_rule_error(
    qualname: str, rule: Registration, problem: str, fix: str = ""
) -> OperatorRuleError:
    """The error that a rule of an operator must do something else."""
    return OperatorRuleError(
        f"{qualname}: its {rule.kind}, registered at {rule.location}, must {problem}",
        fix=fix,
        source=rule.error_source,
    )


def aval_of_struct(qualname: str, rule: Registration, result: Return, x: Any, place: str) -> Any:
    """The type that an abstract rule states by `x`: a struct, or a number for one of its kind."""
    if result.alias:
        return None
    if isinstance(x, (bool, int, float, complex)) and not result.type.is_array:
        return ShapedArray((), canonical_dtype(type(x)))
    dtype = canonical_dtype(x.dtype) if hasattr(x, "shape") and hasattr(x, "dtype") else None
    if dtype not in SHORT_NAMES:
        raise operator_rule_error(
            qualname,
            rule,
            f"give something with a shape and a dtype for {place}; got {type_name(x)}",
            fix="Return jax.ShapeDtypeStruct(shape, dtype).",
        )
    shape = tuple(x.shape)
    if not all(isinstance(n, (int, np.integer)) and n >= 0 for n in shape):
        raise operator_rule_error(
            qualname, rule, f"give a shape of lengths for {place}; got {shape}"
        )
    return ShapedArray(tuple(map(int, shape)), dtype)


ABSTRACT_RULE = "abstract rule"


class DynamicSize(int):
    """A length that results have at most, and are padded to."""


class AbstractContext:
    """What an abstract rule may ask for while it runs: lengths that depend on values."""

    def __init__(self, qualname: str, rule: Registration):
        self.qualname, self.rule = qualname, rule

    def new_dynamic_size(self, *, min: Any = 0, max: Any = None) -> DynamicSize:
        """A length that is known only when the operator runs, between `min` and `max`.

        A program has results of length `max`, which are filled up with zeros; return the true
        length too if it is needed. Raises DynamicShapeError where there is no `max`,
        ValueRangeError for bounds that are none.
        """
        for name, bound in (("min", min), ("max", max)):
            if bound is not None and (not isinstance(bound, int) or isinstance(bound, bool)):
                raise ValueRangeError(
                    f"{self.qualname}: `{name}` of a dynamic size must be an int that is known "
                    f"now; got {type_name(bound)}"
                )
        if min < 0:
            raise ValueRangeError(
                f"{self.qualname}: `min` of a dynamic size must be at least 0; got {min}"
            )
        if max is not None and max < min:
            raise ValueRangeError(
                f"{self.qualname}: `max` of a dynamic size must be at least `min`; "
                f"got {max} and {min}"
            )
        if max is None:
            raise DynamicShapeError(
                f"{self.qualname}: in a program the shape of a result must not depend on values; "
                f"its abstract rule, registered at {self.rule.location}, asks for a dynamic size",
                fix="Call it outside of jit and of transforms, or give new_dynamic_size a `max`.",
            )
        return DynamicSize(max)


_current_context: ContextVar[AbstractContext | None] = ContextVar("abstract_context", default=None)


def get_ctx() -> AbstractContext:
    """The context of the abstract rule that is running, for `new_dynamic_size`.

    Raises DynamicShapeError outside of one.
    """
    found = _current_context.get()
    if found is None:
        raise DynamicShapeError(
            "get_ctx: sizes that depend on values can be asked for in an abstract rule alone; "
            "got a call outside of one, where values have their sizes",
            fix="Call it in a function that is registered with def_abstract.",
        )
    return found


def infer_output_types(call: OperatorPrimitive, avals: Sequence[ShapedArray]) -> OutputTypes:
    """The types that `call` has on operands of `avals`, as its abstract rule says.

    What returns nothing needs no rule.
    """
    operator = call.operator
    rule = get_rule(operator, ABSTRACT_RULE)
    if rule is None:
        if operator.schema.returns:
            raise_missing_abstract_rule(call)
        return OutputTypes((), ())
    structs = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in avals]
    args, kwargs = operator.arguments.call_arguments(call, structs)
    token = _current_context.set(AbstractContext(operator.qualname, rule))
    try:
        with eval_context():
            out = rule(*args, **kwargs)
    finally:
        _current_context.reset(token)
    padded: list[tuple[int, ...]] = []

    def stated(result: Any, x: Any, place: str) -> Any:
        aval = aval_of_struct(operator.qualname, rule, result, x, place)
        if aval is not None:
            shape = getattr(x, "shape", ())
            padded.append(tuple([i for i, n in enumerate(shape) if isinstance(n, DynamicSize)]))
        return aval

    leaves, lengths = flatten_outputs(operator.qualname, rule, operator.schema, out, stated)
    return OutputTypes(tuple(leaves), lengths, tuple(padded) if any(padded) else ())


def raise_missing_abstract_rule(call: OperatorPrimitive) -> NoReturn:
    """Raise MissingKernelError for an operator without an abstract rule."""
    operator = call.operator
    raise MissingKernelError(
        f"{operator.qualname}: an operator must have an abstract rule to be part of a program; "
        "got none",
        fix=f"Give it one, which returns the types of results: {operator.__name__}.def_abstract("
        "lambda ...: jax.ShapeDtypeStruct(shape, dtype)); for code of JAX it may return "
        "jax.eval_shape(function, ...).",
    )


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
        return g if given is aval else ops.ConvertElementType(aval.dtype, aval.weak_type)(g)


_KIND_ORDER = "buifc"


def _name_set_text(names: Any) -> str:
    return "{" + ", ".join(sorted(map(repr, names))) + "}"
