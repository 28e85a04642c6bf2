"""Operators made of others: the body that gives all their rules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from functx.core.avals import ShapedArray
from functx.core.editing import replace_program_fields
from functx.core.errors import ImmutableArrayError, type_name
from functx.core.program import Program
from functx.core.rewriting import cached_rewrite
from functx.core.storage import Functionalize, FunctionalizedProgram, storage_base
from functx.core.tracing import Tracer, trace
from functx.custom.operators.kernels import NUMBERS, check_writable, read_only
from functx.custom.operators.registry import Registration
from functx.custom.operators.results import OutputTypes, flatten_outputs, operator_rule_error
from functx.custom.operators.schema import Return

if TYPE_CHECKING:
    from functx.custom.operators.equations import OperatorPrimitive
    from functx.custom.operators.operator import Operator


class CompositeBody:
    """The body of an operator, in functx's own operations."""

    def __init__(self, operator: Operator, rule: Registration):
        self.operator, self.rule = operator, rule

    def run_eagerly(self, call: OperatorPrimitive, operands: Sequence[Any]) -> Any:
        """The result of a call on concrete operands, to which the body writes itself."""
        operator = self.operator
        check_writable(call, operands)
        written = operator.arguments.written(call)
        given = [
            read_only(x) if isinstance(x, np.ndarray) and i not in written else x
            for i, x in enumerate(operands)
        ]
        try:
            leaves, lengths = self.leaves(call, given)
        except ValueError as error:
            if "read-only" in str(error):
                raise self.undeclared_write_error() from error
            raise
        # Each is copied: the body may return one array twice, or one from outside.
        leaves = [x.copy() if isinstance(x, np.ndarray) else x for x in leaves]
        aliased = operator.aliased_arguments(call, operands)
        return OutputTypes((), lengths).unflatten(operator.schema, leaves, aliased)

    def leaves(
        self, call: OperatorPrimitive, given: Sequence[Any]
    ) -> tuple[list[Any], tuple[int | None, ...]]:
        """What the body gives for operands, flat, and the lengths of lists."""
        args, kwargs = self.operator.arguments.call_arguments(call, given)
        out = self.rule(*args, **kwargs)

        def leaf(result: Return, x: Any, place: str) -> Any:
            if result.alias:
                own = (self.operator.aliased_arguments(call, given) or {})[result.alias]
                if x is not own:
                    raise self.rule_error(
                        f"return what it writes to for {place}; got another array"
                    )
                return x
            if not isinstance(x, (Tracer, np.ndarray, jax.Array, *NUMBERS)):
                raise self.rule_error(f"give an array for {place}; got {type_name(x)}")
            if any(_is_alias(x, y) for y in given):
                raise self.rule_error(
                    f"return arrays of its own; {place} is an argument, or a view of one",
                    "Return a copy: x.copy().",
                )
            return x

        return flatten_outputs(self.operator.qualname, self.rule, self.operator.schema, out, leaf)

    def rule_error(self, problem: str, fix: str = "") -> Exception:
        return operator_rule_error(self.operator.qualname, self.rule, problem, fix)

    def undeclared_write_error(self, name: str = "") -> ImmutableArrayError:
        """The error that the body writes to what `mutates_args` does not name."""
        return ImmutableArrayError(
            f"{self.operator.qualname}: its decomposition, given at {self.rule.location}, must write to "
            f"what mutates_args names alone; it writes to {name or 'another argument'}",
            fix="Name the argument in mutates_args, or write to a copy.",
            source=self.rule.error_source,
        )

    def body(self, call: OperatorPrimitive, avals: Sequence[ShapedArray]) -> TracedBody:
        """The program of the body on operands of `avals`, without its writes.

        Raises ImmutableArrayError if it writes to an operand that is not named.
        """
        lengths: tuple[int | None, ...] = ()

        def results(*xs: Any) -> list[Any]:
            nonlocal lengths
            leaves, lengths = self.leaves(call, xs)
            return leaves

        name = self.operator.__name__
        program, captured = trace(results, avals, name=name, kind="custom_op")
        pure = (
            cached_rewrite(Functionalize(), program)
            if program.writes
            else FunctionalizedProgram(program, (), False)
        )
        places = self.operator.arguments.written(call)
        names = self.operator.arguments.operand_names(call)
        for i in pure.written:
            if i not in places:
                raise self.undeclared_write_error(f"`{names[i]}`" if i < len(names) else "")
        count = len(program.outputs)
        new = dict(zip(pure.written, pure.program.outputs[count:], strict=True))
        inputs = pure.program.inputs
        outputs = [*pure.program.outputs[:count], *[new.get(i, inputs[i]) for i in places]]
        return TracedBody(replace_program_fields(pure.program, outputs=outputs), captured, lengths)


class TracedBody(NamedTuple):
    """What an operation is made of: a program, what it captured, and the lengths of lists."""

    program: Program
    captured: Sequence[Any]
    lengths: tuple[int | None, ...]


def _is_alias(x: Any, y: Any) -> bool:
    """Whether a result is an operand, or a view of it."""
    if type(x) is Tracer and type(y) is Tracer:
        return storage_base(x).atom is storage_base(y).atom
    if isinstance(x, np.ndarray) and isinstance(y, np.ndarray):
        return bool(np.may_share_memory(x, y))
    return x is y and not isinstance(x, NUMBERS)
