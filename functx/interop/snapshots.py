"""Keys of the state that a function reads: while the key is equal, a trace of it stays valid."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import jax
import numpy as np

from functx.core import tree
from functx.core.errors import TreeError
from functx.core.tracing import PRNGKeyTracer, Tracer
from functx.interop.jaxprs import IdentityKey, param_key

IMMUTABLE_PACKAGES = frozenset(
    {"builtins", "collections", "functools", "itertools", "jax", "math", "numpy", "operator"}
)
"""Packages whose contents do not change while a program runs."""

IMMUTABLE_TYPES = (type(None), bool, int, str, bytes, np.dtype)


class MutableStateError(Exception):
    """A function reads something that may change without a trace."""


def function_fingerprint(value: Any) -> Any:
    """A key of `value`, for a function with all values that it reads.

    Raises Changeable for objects that can change in place: containers, NumPy arrays, objects of
    the user's classes.
    """
    return _value_fingerprint(value, [])


_LEAF = tree.structure(0)


class FunctionKeys:
    """Cache keys of functions and the values they read: equal for functions that do the same.

    Numbers and NumPy arrays are compared by value, pytrees by their leaves, functions by their
    code and the values that it reads, other objects by identity. `traced` lists the traced values
    of functx among them.
    """

    def __init__(self) -> None:
        self.visit_numbers: dict[int, int] = {}
        self.kept: list[Any] = []
        self.tracers: list[Tracer] = []

    def key_of(self, value: Any) -> Any:
        """The key of `value`."""
        if isinstance(value, (Tracer, PRNGKeyTracer)):
            self.tracers.append(value if type(value) is Tracer else value.key_data)
            return IdentityKey(value)
        if isinstance(value, IMMUTABLE_TYPES):
            return type(value), value
        if id(value) in self.visit_numbers:
            return "again", self.visit_numbers[id(value)]
        self.visit_numbers[id(value)] = len(self.visit_numbers)
        self.kept.append(value)
        if isinstance(value, partial):
            return partial, self.key_of((value.func, value.args, *value.keywords.items()))
        if isinstance(value, MethodType):
            return self.key_of(value.__func__), self.key_of(value.__self__)
        if type(value) is FunctionType and package_of(value) not in IMMUTABLE_PACKAGES:
            return self.key_of_function(value)
        try:
            leaves, structure = tree.flatten(value)
            hash(structure)
        except (TreeError, TypeError):
            return IdentityKey(value)
        if structure == _LEAF:
            return param_key(value)
        return structure, tuple([self.key_of(x) for x in leaves])

    def key_of_function(self, fun: FunctionType) -> Any:
        read = [*(fun.__defaults__ or ()), *(fun.__kwdefaults__ or {}).values()]
        with suppress(MutableStateError):
            read += _closure_values(fun)
        # The modules of an installed package stay as they are.
        if "site-packages" not in fun.__code__.co_filename:
            names = [name for name in _global_names(fun.__code__) if name in fun.__globals__]
            read += [fun.__globals__[name] for name in names]
        return fun.__code__, tuple([self.key_of(part) for part in read])


def _value_fingerprint(value: Any, around: list[Any]) -> Any:
    if isinstance(value, IMMUTABLE_TYPES):
        return type(value), value
    if isinstance(value, (float, complex, np.generic)):
        return type(value), repr(value)
    if isinstance(value, tuple) and type(value) is tuple:
        return tuple([_value_fingerprint(part, around) for part in value])
    if isinstance(value, jax.Array) and not isinstance(value, jax.core.Tracer):
        return IdentityKey(value)
    if isinstance(value, partial):
        parts = (value.func, value.args, *value.keywords.items())
        return partial, _value_fingerprint(parts, around)
    if (callable(value) or isinstance(value, ModuleType)) and package_of(
        value
    ) in IMMUTABLE_PACKAGES:
        return IdentityKey(value)
    if type(value) is FunctionType:
        if any(value is f for f in around):
            return "itself", around.index(value)
        return _function_fingerprint(value, [*around, value])
    raise MutableStateError


def _function_fingerprint(fun: FunctionType, around: list[Any]) -> Any:
    code = fun.__code__
    parts: list[Any] = [code]
    defaults = (*(fun.__defaults__ or ()), *(fun.__kwdefaults__ or {}).values())
    for value in (*defaults, *_closure_values(fun)):
        parts.append(_value_fingerprint(value, around))
    for name in _global_names(code):
        if name in fun.__globals__:
            parts.append((name, _value_fingerprint(fun.__globals__[name], around)))
    return tuple(parts)


def _closure_values(fun: FunctionType) -> Iterator[Any]:
    for cell in fun.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:
            raise MutableStateError from None


def _global_names(code: CodeType) -> Iterator[str]:
    """The names that may be global ones, in the code and in functions inside it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _global_names(constant)


def package_of(value: Any) -> str:
    """The package that a function, class or module belongs to, or the class of an object does."""
    name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
    return str(name or "").split(".")[0]
