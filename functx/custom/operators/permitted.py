"""Which rules an operator may have: checked when one is registered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from functx.core.errors import (
    KeywordOnlyArrayError,
    RegistrationError,
    SchemaError,
    type_name,
)
from functx.custom.operators.registry import get_rule
from functx.custom.operators.schema import Schema, is_functional_schema

if TYPE_CHECKING:
    from functx.custom.operators.operator import Operator


def check_not_composite(operator: Operator, kind: str) -> None:
    """Raise RegistrationError for an operator that is made of others."""
    if operator.composite is not None:
        raise RegistrationError(
            f"{operator.qualname}: an operator with a decomposition must not have a {kind}, since "
            "it decomposes instead: its rules are those of what it is made of",
            f"the decomposition was given at {operator.composite.rule.location}",
            fix="Leave the rule out, or define the operator without a decomposition.",
        )


def check_derivative_rule(operator: Operator, kind: str) -> None:
    """Raise unless the derivative of the operator may be given by a rule."""
    check_not_composite(operator, kind)
    check_no_keyword_arrays(operator, kind)
    schema = operator.schema
    problem = ""
    if any(r.alias and not r.alias.endswith("!") for r in schema.returns):
        problem = "return no views of its arguments"
    elif not is_functional_schema(schema) and schema.returns:
        problem = "be functional, and write to no argument"
    elif not schema.returns:
        problem = "return something; it has no returns"
    else:
        for r in schema.returns:
            if r.type.base == "Number":
                problem = f"return arrays, list[Array], ints, floats or bools; one is a {r.type}"
    if problem:
        raise RegistrationError(
            f"{operator.qualname}: an operator with a {kind} must {problem}",
            f"schema {schema}",
        )


def check_backward_pair(operator: Operator, kind: str, formula: str) -> None:
    """Raise unless one of `save_for_backward` and `backward` may be registered."""
    check_derivative_rule(operator, kind)
    found = get_rule(operator, formula)
    if found is not None:
        raise RegistrationError(
            f"{operator.qualname}: an operator must have one derivative rule; got a {kind} beside "
            f"its {formula}, registered at {found.location}"
        )


def check_no_keyword_arrays(operator: Operator, kind: str) -> None:
    """Raise KeywordOnlyArrayError if an array is given by keyword only."""
    for a in operator.schema.arrays:
        if a.keyword_only:
            raise KeywordOnlyArrayError(
                f"{operator.qualname}: a {kind} takes arrays by position; got the keyword-only "
                f"array `{a.name}`, which is not supported",
                f"schema {operator.schema}",
            )


def check_vmap_rule(operator: Operator, kind: str) -> None:
    """Raise unless the operator may have a batching rule."""
    check_not_composite(operator, kind)
    check_no_keyword_arrays(operator, kind)
    if operator.schema.mutated:
        raise RegistrationError(
            f"{operator.qualname}: an operator with a {kind} must write to no argument",
            f"schema {operator.schema}",
            fix="Without the rule it is called for each element in turn.",
        )


def check_device_argument(what: str, schema: Schema, platforms: Sequence[str]) -> None:
    """Raise SchemaError for an operator that makes arrays on a platform that nothing names."""
    if schema.arrays or any(a.type.base == "device" for a in schema.arguments):
        return
    if any(p != "default" for p in platforms):
        raise SchemaError(
            f"{what}: an operator without arrays among its arguments is required to have a `device` "
            f"parameter, to be implemented for {', '.join(platforms)}",
            f"schema {schema}",
            fix="Add `device: jax.Device`, or implement it for all platforms.",
        )


def check_differentiability(operator: Operator, given: Any) -> tuple[bool, ...] | None:
    """`output_differentiability` as a tuple; RegistrationError unless it is a bool a result."""
    if given is None:
        return None
    count = len(operator.schema.returns)
    problem = ""
    if not isinstance(given, (list, tuple)):
        problem = f"got {type_name(given)} {given!r}"
    elif any(not isinstance(on, bool) for on in given):
        problem = f"got {given!r}"
    elif len(given) != count:
        problem = f"got {len(given)} for {count} outputs: {given!r}"
    if problem:
        raise RegistrationError(
            f"{operator.qualname}: output_differentiability must be a list with a bool for each "
            f"output; {problem}"
        )
    return tuple(given)
