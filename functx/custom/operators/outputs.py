"""The outputs of operators: their types by the abstract rule, and the checks of gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from typing import NamedTuple

import jax
import numpy as np

from functx.core import tree
from functx.core.context import ContextValue
from functx.core.errors import (
    DynamicShapeError,
    MissingKernelError,
    OperatorRuleError,
    ValueRangeError,
    type_name,
)
from functx.core.tracer import aval_of
from functx.core.tracing import eval_context
from functx.core.types import SHORT_NAMES, ShapedArray, canonical_dtype, is_inexact
from functx.core.typing import Avals, Cotangent, Dim, Flags, PyTree, Value, Values
from functx.custom.operators.arguments import OperatorPrimitive
from functx.custom.operators.registry import ABSTRACT_RULE, Registration, get_rule
from functx.custom.operators.schema import Argument, Return, Schema
from functx.custom.rule_results import cast_to_aval, describe_type
from functx.custom.rule_tracing import is_array


class OutputTypes(NamedTuple):
    """The types of the results, flat, and for each result the length of its list, or None.

    `padded` has, for each type, the axes along which a result may be shorter.
    """

    avals: tuple[ShapedArray, ...]
    lengths: tuple[Dim, ...]
    padded: tuple[tuple[int, ...], ...] = ()

    def unflatten(
        self, schema: Schema, leaves: Sequence[PyTree], aliased: dict[str, PyTree] | None = None
    ) -> PyTree:
        """The result of a call, made of `leaves` and of the arguments in `aliased`, by alias."""
        new = iter(self.group_lists(leaves))
        values = [aliased[r.alias] if aliased and r.alias else next(new) for r in schema.returns]
        if schema.returns_single:
            return values[0]
        return tuple(values) if values else None

    def structure(self, schema: Schema) -> tree.TreeDef:
        """The structure of the result of a call, a pytree."""
        return tree.structure(self.unflatten(schema, [0] * len(self.avals)))

    def group_lists(self, leaves: Sequence[PyTree]) -> list[PyTree]:
        """One value for each result: a leaf, or a list of leaves."""
        remaining: Iterator[PyTree] = iter(leaves)
        return [
            next(remaining) if length is None else [next(remaining) for _ in range(length)]
            for length in self.lengths
        ]

    def per_leaf(self, per_result: Flags) -> list[bool]:
        """One flag for each leaf, from one for each result."""
        return [
            on
            for on, length in zip(per_result, self.lengths, strict=True)
            for _ in range(1 if length is None else length)
        ]


def pair_with_returns(
    rule: Registration, schema: Schema, out: PyTree
) -> list[tuple[Return, PyTree]]:
    """The results `out` of `rule`, each with its `Return` in the schema.

    Raises OperatorRuleError for another number of results.
    """
    if schema.returns_single:
        return [(schema.returns[0], out)]
    if not schema.returns:
        if out is not None:
            raise rule.error(f"return None; got {describe_type(out)}")
        return []
    if not isinstance(out, (tuple, list)) or len(out) != len(schema.returns):
        raise rule.error(f"return a tuple of {len(schema.returns)}; got {describe_type(out)}")
    return list(zip(schema.returns, out, strict=True))


def flatten_outputs(
    rule: Registration,
    schema: Schema,
    out: PyTree,
    convert: Callable[[Return, PyTree, str], PyTree],
) -> tuple[list[PyTree], tuple[int | None, ...]]:
    """`convert(result, value, label)` of each value in the result `out`, and the lengths of lists.

    Raises OperatorRuleError for a result that must be a list and is none.
    """
    leaves: list[PyTree] = []
    lengths: list[int | None] = []
    for i, (result, value) in enumerate(pair_with_returns(rule, schema, out)):
        label = "the result" if schema.returns_single else f"result {i}"
        if result.alias:
            convert(result, value, label)
        elif not result.type.is_list:
            leaves.append(convert(result, value, label))
            lengths.append(None)
        elif not isinstance(value, (list, tuple)):
            raise rule.error(f"give a list for {label}; got {type_name(value)}")
        else:
            leaves += [convert(result, x, f"{label}[{k}]") for k, x in enumerate(value)]
            lengths.append(len(value))
    return leaves, tuple(lengths)


def stated_aval(rule: Registration, result: Return, x: Value, label: str) -> ShapedArray | None:
    """The type that an abstract rule states by `x`, a struct or a number; None for an argument."""
    if result.alias:
        return None
    if isinstance(x, (bool, int, float, complex)) and not result.type.is_array:
        return ShapedArray((), canonical_dtype(type(x)))
    dtype = canonical_dtype(x.dtype) if hasattr(x, "shape") and hasattr(x, "dtype") else None
    if dtype not in SHORT_NAMES:
        raise rule.error(
            f"give something with a shape and a dtype for {label}; got {type_name(x)}",
            fix="Return jax.ShapeDtypeStruct(shape, dtype).",
        )
    shape = tuple(x.shape)
    if not all(isinstance(n, (int, np.integer)) and n >= 0 for n in shape):
        raise rule.error(f"give a shape of lengths for {label}; got {shape}")
    return ShapedArray(tuple(map(int, shape)), dtype)


class DynamicSize(int):
    """The maximal length of a result along an axis; shorter results are padded to it."""


class AbstractContext:
    """The context of a running abstract rule, which makes lengths that depend on values."""

    def __init__(self, qualname: str, rule: Registration):
        self.qualname, self.rule = qualname, rule

    def new_dynamic_size(self, *, min: int = 0, max: int | None = None) -> DynamicSize:
        """A length that is known only when the operator runs, between `min` and `max`.

        In a program the result has the length `max` and is padded with zeros; return the true
        length too if it is needed. Raises DynamicShapeError without a `max`, ValueRangeError for
        bounds that are not integers with 0 <= min <= max.
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

    Raises DynamicShapeError if none is running.
    """
    context = _current_context.get()
    if context is None:
        raise DynamicShapeError(
            "get_ctx: dynamic sizes must be made in an abstract rule; got a call outside of one",
            fix="Call it in a function that is registered with def_abstract.",
        )
    return context


def infer_output_types(call: OperatorPrimitive, avals: Avals) -> OutputTypes:
    """The types of the results of `call` on operands of `avals`, by the abstract rule.

    An operator that returns nothing needs no rule.
    """
    operator = call.operator
    rule = get_rule(operator, ABSTRACT_RULE)
    if rule is None and not operator.schema.returns:
        return OutputTypes((), ())
    if rule is None:
        raise MissingKernelError(
            f"{operator.qualname}: an operator must have an abstract rule to be part of a program; "
            "got none",
            fix=f"Give it one, which returns the types of results: {operator.__name__}.def_abstract("
            "lambda ...: jax.ShapeDtypeStruct(shape, dtype)); for code of JAX it may return "
            "jax.eval_shape(function, ...).",
        )
    args, kwargs = call.call_arguments([jax.ShapeDtypeStruct(a.shape, a.dtype) for a in avals])
    with ContextValue(_current_context, AbstractContext(operator.qualname, rule)), eval_context():
        out = rule(*args, **kwargs)
    padded: list[tuple[int, ...]] = []

    def convert(result: Return, x: Value, label: str) -> ShapedArray | None:
        aval = stated_aval(rule, result, x, label)
        if aval is not None:
            shape = getattr(x, "shape", ())
            padded.append(tuple([i for i, n in enumerate(shape) if isinstance(n, DynamicSize)]))
        return aval

    leaves, lengths = flatten_outputs(rule, operator.schema, out, convert)
    return OutputTypes(tuple(leaves), lengths, tuple(padded) if any(padded) else ())


Gradients = list[Cotangent]
"""A cotangent for each operand; None for zero."""


class GradientChecker:
    """The checks of the gradients that a backward `rule` returned, for operands `args`."""

    def __init__(self, call: OperatorPrimitive, rule: Registration, args: Values):
        self.call, self.error = call, rule.error
        self.schema, self.values = call.operator.schema, call.unflatten(args)

    def from_dict(self, grads: PyTree) -> Gradients:
        """The cotangents in the dictionary `grads`, which must have a key for each array."""
        if not isinstance(grads, dict):
            raise self.error(
                f"return a dictionary of gradients by name; got {describe_type(grads)}"
            )
        expected = {a.name for a in self.schema.arrays}
        if grads.keys() != expected:
            raise self.error(
                f"return a dictionary with the keys {_name_set_text(expected)}; got {_name_set_text(grads)}",
                fix="There is a key for each argument that is an array, an optional array or a list "
                "of arrays, and none for non-array types.",
            )
        gradients: Gradients = []
        for argument, value in zip(self.schema.arguments, self.values, strict=True):
            if argument.type.is_array:
                gradients += self.check_argument(argument, value, grads[argument.name])
        return gradients

    def from_tuple(self, grads: PyTree) -> Gradients:
        """The cotangents in the tuple `grads`, one for each argument that was passed, or for all."""
        grads = grads if isinstance(grads, (tuple, list)) else (grads,)
        num_passed, count = self.call.num_passed(), len(self.schema.positional)
        if len(grads) not in (num_passed, count):
            expected = f"{num_passed}" if num_passed == count else f"{num_passed} or {count}"
            raise self.error(
                f"return {expected} gradients, one for each argument; got {len(grads)}"
            )
        all_grads = [*grads, *[None] * (count - len(grads))]
        gradients: Gradients = []
        for argument, value, g in zip(self.schema.positional, self.values, all_grads):  # noqa: B905
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

    def check_list(self, argument: Argument, value: list[PyTree], g: PyTree) -> Gradients:
        """The cotangents of a list; its gradient `g` has the structure of the list, or is None."""
        if g is None:
            return [None for x in value if x is not None]
        expected = tree.structure([0] * len(value))
        structure = tree.structure(g, is_leaf=lambda x: x is None)
        if structure != expected and not (isinstance(g, tuple) and len(g) == len(value)):
            raise self.error(
                f"give gradients of the structure of `{argument.name}`, {expected}; got {structure}"
            )
        return self.check_argument(argument, value, list(g))

    def check_argument(self, argument: Argument, value: PyTree, g: PyTree) -> Gradients:
        """The cotangents of one argument: of each array that it is or holds."""
        name = argument.name
        if not argument.type.is_list:
            return self.check_gradient(name, value, g)
        if not isinstance(g, (list, tuple)):
            raise self.error(f"give a list or tuple of gradients for `{name}`; got {type_name(g)}")
        if len(g) != len(value):
            raise self.error(
                f"give {len(value)} gradients for `{name}`, one for each element; got {len(g)}"
            )
        pairs = enumerate(zip(value, g, strict=True))
        return [ct for i, (x, gi) in pairs for ct in self.check_gradient(f"{name}[{i}]", x, gi)]

    def check_gradient(self, name: str, x: Value, g: PyTree) -> Gradients:
        """The cotangent `g` of the operand `x`, of its shape and dtype; nothing if `x` is None."""
        if g is not None and not is_array(g):
            raise self.error(f"give an array or None for `{name}`; got {describe_type(g)}")
        if x is None:
            if g is not None:
                raise self.error(f"give None for `{name}`, which was None; got {type_name(g)}")
            return []
        if g is None:
            return [None]
        aval = aval_of(x)

        def mismatch(actual: ShapedArray | None) -> OperatorRuleError:
            if actual is None:
                return self.error(f"give an array or None for `{name}`; got {type_name(g)}")
            return self.error(
                f"give a gradient of the shape and dtype of `{name}`, {aval!r}; got {actual!r}"
            )

        g = cast_to_aval(g, aval, mismatch)
        return [g if is_inexact(aval.dtype) else None]


def _name_set_text(names: Iterable[str]) -> str:
    return "{" + ", ".join(sorted(map(repr, names))) + "}"
