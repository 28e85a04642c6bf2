"""Backward rules of `Function`s that are part of the program of a walk, in place of a call of Python."""

from __future__ import annotations

import dis
from collections.abc import Hashable, Iterator
from functools import lru_cache, partial
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple
from weakref import ref

import numpy as np

from functx.autograd.function_calls import FunctionNode
from functx.autograd.function_context import FunctionContext, state_of
from functx.autograd.function_methods import backward_rule
from functx.autograd.gradients import is_written
from functx.autograd.methods import static_key
from functx.autograd.nodes import SavedValue
from functx.autograd.recorded import Recorded
from functx.autograd.variable import Variable, make_variable
from functx.core.source_info import unwrap_function
from functx.core.types import ShapedArray
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

    Such a rule refers to objects that can change, as lists or instances of classes, is of a class with
    `is_opaque`, or has attributes without a key.
    """
    saved = node.saved
    rule = backward_rule(node.function)
    if saved is None or rule is None or node.function.is_opaque:
        return None
    rule = unwrap_function(rule)
    if type(rule) is not FunctionType or package_of(rule) == "functx":
        return None
    values: list[Any] = saved_by_function(node)
    attributes = attributes_of(node.context)
    values += [x.read() for x in attributes.values() if isinstance(x, Variable)]
    try:
        key: Hashable = (
            ref(node.function),
            function_fingerprint(rule, _PACKAGES),
            tuple([SavedValue if type(x) is SavedValue else static_key(x) for x in saved]),
            tuple([(name, attribute_key(x)) for name, x in attributes.items()]),
            tuple(map(aval_of_saved, values)),
            state_of(node.context).materialize,
            node.context.needs_input_grad,
            tuple(node.in_avals),
            tuple(node.out_avals),
            tuple(node.is_array),
            tuple(node.differentiable),
        )
        hash(key)
    except (MutableStateError, TypeError):
        return None
    return RuleState(key, values)


def saved_by_function(node: FunctionNode) -> list[SavedValue]:
    """The arrays that the context of a node has saved, apart from those that hooks have packed."""
    return [x for x in node.saved or () if type(x) is SavedValue]


def aval_of_saved(x: Any) -> ShapedArray:
    """The type of a value of a walk, or of one that a node saved."""
    if isinstance(x, Variable):
        return x.aval_
    return x.recorded.aval if type(x) is SavedValue else x.aval  # type: ignore[no-any-return]


def attributes_of(context: FunctionContext) -> dict[str, Any]:
    """The attributes that the user has set."""
    return {k: v for k, v in context.__dict__.items() if not k.startswith("_functx_")}


def attribute_key(x: object) -> Hashable:
    """The key of an attribute of a context; TypeError for one that can change."""
    if isinstance(x, Variable):
        return Variable
    return plain_key(x)


def plain_key(x: object) -> Hashable:
    """The key of an attribute, or of a part of one, that is no array."""
    if type(x) is int:
        return Size(x)
    if type(x) is tuple:
        return (tuple, *map(plain_key, x))
    if isinstance(x, type) and package_of(x) not in _PACKAGES:
        raise TypeError
    return static_key(x)


class TracedContext:
    """A context like that of a node, with traced values in place of those of its `RuleState`."""

    def __init__(self, node: FunctionNode, values: Iterator[Recorded]):
        before = node.context.__dict__
        self.context = FunctionContext(node.function.__name__, before["_functx_needs"])
        self.variables: dict[int, Variable] = {}

        def copy_of(x: object) -> Variable:
            # One array that is saved twice is one object.
            if type(x) is SavedValue and x.variable is not None:
                original = x.variable()
                x = x.variable if original is None else original
            return self.variables.setdefault(id(x), make_variable(next(values), None))

        attributes = self.context.__dict__
        attributes.update(before)
        attributes["_functx_saved"] = tuple(
            [copy_of(x) if type(x) is SavedValue else x for x in before["_functx_saved"]]
        )
        for name, x in attributes_of(node.context).items():
            if isinstance(x, Variable):
                attributes[name] = copy_of(x)
        self.names = set(attributes)

    @property
    def was_changed(self) -> bool:
        """Whether the rule has written to arrays, or set attributes."""
        return set(self.context.__dict__) != self.names or any(
            map(is_written, self.variables.values())
        )


_PACKAGES = IMMUTABLE_PACKAGES | {"functx"}
_EFFECT_OPERATIONS = (
    *("STORE_GLOBAL", "STORE_ATTR", "STORE_DEREF", "DELETE_GLOBAL", "DELETE_ATTR"),
    *("IMPORT_NAME", "IMPORT_FROM"),
)
_EFFECT_NAMES = frozenset(
    [
        *("print", "input", "open", "exec", "eval", "random", "time", "globals", "next"),
        *("setattr", "delattr", "breakpoint", "queue_callback", "register_hook", "backward"),
        *("in_compiled_autograd_region", "requires_grad", "is_leaf", "grad_fn", "grad"),
        *("_version", "output_nr", "retains_grad", "is_inference"),
    ]
)
"""Names of what acts, or of state that traced values do not have."""


def has_effects(fun: object) -> bool:
    """Whether a function, or one that it calls, may do more than compute its result from its arguments.

    It prints, draws numbers, imports, or sets attributes or variables outside.
    """
    return any(
        [
            code_has_effects(each.__code__) or any(map(draws_numbers, values_read(each)))
            for each in functions_read(fun, [])
        ]
    )


def draws_numbers(x: object) -> bool:
    """Whether an object is one of `numpy.random`."""
    if isinstance(getattr(x, "__self__", None), np.random.RandomState):
        return True
    name = x.__name__ if isinstance(x, ModuleType) else getattr(x, "__module__", None)
    return str(name).startswith("numpy.random")


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
