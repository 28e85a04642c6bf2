"""Backward rules of `Function`s that are part of the program of a walk, in place of a call of Python."""

from __future__ import annotations

import dis
from collections.abc import Hashable, Iterator
from functools import lru_cache, partial
from types import CodeType, FunctionType
from typing import Any, NamedTuple

from functx.autograd.function_calls import FunctionNode
from functx.autograd.function_context import FunctionContext, state_of
from functx.autograd.function_methods import backward_rule
from functx.autograd.methods import static_key
from functx.autograd.nodes import SavedValue
from functx.autograd.recorded import Recorded
from functx.autograd.variable import Variable, make_variable
from functx.core.source_info import unwrap_function
from functx.interop.jaxprs import (
    IMMUTABLE_PACKAGES,
    MutableStateError,
    function_fingerprint,
    package_of,
    values_read,
)


class Size(NamedTuple):
    """An int among the attributes of a context, which may be a size."""

    value: int


class RuleState(NamedTuple):
    """The values that a backward rule reads, and the key of all else that it may depend on."""

    key: Hashable
    values: list[Any]


def rule_state(node: FunctionNode) -> RuleState | None:
    """The state of the rule of a node; None if it must be called in each walk.

    That is a rule that refers to objects that can change, such as lists or instances of classes, and one
    of a class with `is_opaque`.
    """
    saved = node.context.__dict__["_functx_saved"]
    rule: Any = backward_rule(node.function)
    if saved is None or rule is None or node.function.is_opaque:
        return None
    rule = unwrap_function(rule)
    if type(rule) is not FunctionType or package_of(rule) == "functx":
        return None
    values = [x for x in saved if not is_plain(x)]
    attributes = attributes_of(node.context)
    values += [x.read() for x in attributes.values() if isinstance(x, Variable)]
    try:
        key: Hashable = (
            node.function,
            function_fingerprint(rule, _PACKAGES),
            tuple([static_key(x) if is_plain(x) else None for x in saved]),
            tuple([(name, attribute_key(x)) for name, x in attributes.items()]),
            state_of(node.context).materialize,
            node.context.needs_input_grad,
            tuple(node.in_avals),
            tuple(node.is_array),
            tuple(node.differentiable),
        )
        hash(key)
    except (MutableStateError, TypeError):
        return None
    return RuleState(key, values)


def is_plain(x: object) -> bool:
    """Whether a saved value is no array."""
    return not isinstance(x, SavedValue) and not hasattr(x, "hooks")


def attributes_of(context: FunctionContext) -> dict[str, Any]:
    """The attributes that the user has set."""
    return {k: v for k, v in context.__dict__.items() if not k.startswith("_functx_")}


def attribute_key(x: Any) -> Hashable:
    """The key of an attribute of a context; TypeError for one that can change."""
    if isinstance(x, Variable):
        return Variable
    if type(x) is int:
        return Size(x)
    if isinstance(x, tuple):
        return (type(x), *[attribute_key(part) for part in x])
    return static_key(x)


def traced_context(node: FunctionNode, values: Iterator[Recorded]) -> FunctionContext:
    """A context like that of the node, with these values in place of those of its `RuleState`."""
    context = FunctionContext(node.function.__name__, node.context.needs_input_grad)  # type: ignore[arg-type]
    context.__dict__.update(node.context.__dict__)
    context.__dict__["_functx_saved"] = tuple(
        [
            x if is_plain(x) else make_variable(next(values), None)
            for x in node.context.__dict__["_functx_saved"]
        ]
    )
    for name, x in attributes_of(node.context).items():
        if isinstance(x, Variable):
            context.__dict__[name] = make_variable(next(values), None)
    return context


_PACKAGES = IMMUTABLE_PACKAGES | {"functx"}
_EFFECT_OPERATIONS = (
    *("STORE_GLOBAL", "STORE_ATTR", "STORE_DEREF", "DELETE_GLOBAL", "DELETE_ATTR"),
    *("IMPORT_NAME", "IMPORT_FROM"),
)
_EFFECT_NAMES = frozenset(
    ["print", "input", "open", "exec", "eval", "random", "time", "globals", "next"]
)


def has_effects(fun: Any) -> bool:
    """Whether a function, or one that it calls, may do more than compute its result.

    It prints, draws numbers, imports, or sets attributes or variables outside.
    """
    return any([code_has_effects(each.__code__) for each in functions_read(fun, [])])


def functions_read(value: object, known: list[FunctionType]) -> list[FunctionType]:
    """`value`, if it is a function of the user, and the functions that it reads, at any depth."""
    if isinstance(value, partial):
        for part in (value.func, *value.args, *value.keywords.values()):
            functions_read(part, known)
    elif type(value) is FunctionType and package_of(value) not in _PACKAGES and value not in known:
        known.append(value)
        for part in values_read(value):
            functions_read(part, known)
    return known


@lru_cache(maxsize=1024)
def code_has_effects(code: CodeType) -> bool:
    """Whether code, or that of a function in it, may do more than compute its result."""
    if not _EFFECT_NAMES.isdisjoint(code.co_names):
        return True
    for op in dis.get_instructions(code):
        is_local = op.opname == "STORE_DEREF" and op.argval in code.co_cellvars
        if op.opname in _EFFECT_OPERATIONS and not is_local:
            return True
    return any([isinstance(x, CodeType) and code_has_effects(x) for x in code.co_consts])
