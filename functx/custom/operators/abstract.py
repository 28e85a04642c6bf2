"""The abstract rule of an operator: the types of its results from those of its arguments."""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NoReturn

import jax

from functx.core.avals import ShapedArray
from functx.core.errors import (
    DynamicShapeError,
    MissingKernelError,
    ValueRangeError,
    type_name,
)
from functx.core.tracing import eval_context
from functx.custom.operators.registry import Registration, get_rule
from functx.custom.operators.results import OutputTypes, aval_of_struct, flatten_outputs

if TYPE_CHECKING:
    from functx.custom.operators.equations import OperatorPrimitive

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
