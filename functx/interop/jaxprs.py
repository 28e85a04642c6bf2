"""Reading jaxprs: the types of their variables, their numbers, and what makes two of them equal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import jax
import numpy as np
from jax.core import ShapedArray as JaxShapedArray
from jax.extend.core import ClosedJaxpr, DebugInfo, Jaxpr, Literal

from functx.core import tree
from functx.core.errors import DTypeError, TreeError
from functx.core.named_axes import bound_axes
from functx.core.program import scalar_literal
from functx.core.tracer import PRNGKeyTracer, Tracer, current_builder
from functx.core.types import SHORT_NAMES, ShapedArray
from functx.lowering.jax_bridge import KEY_DATA_DTYPE, jax_aval, prng_key_type

Shape = tuple[int, ...]


def aval_from_jax(aval: Any) -> ShapedArray:
    """The type that arrays of one of JAX's avals have in a program; words stand for keys.

    Raises DTypeError for one that functx does not have.
    """
    found = aval_from_jax_or_none(aval)
    if found is None:
        raise DTypeError(f"from_jax: arrays must have a dtype that functx has; got {aval}")
    return found


def aval_from_jax_or_none(aval: Any) -> ShapedArray | None:
    """As `aval_from_jax`, None for a type that functx does not have."""
    if not isinstance(aval, JaxShapedArray):
        return None
    dtype = aval.dtype
    if isinstance(dtype, np.dtype):
        known = dtype in SHORT_NAMES
        return ShapedArray(tuple(aval.shape), dtype, bool(aval.weak_type)) if known else None
    kind = prng_key_type(dtype)
    return None if kind is None else ShapedArray((*aval.shape, *kind.key_shape), KEY_DATA_DTYPE)


def int_tuple(numbers: Sequence[Any]) -> Shape:
    """Numbers among the parameters of an equation, some of which may be NumPy's."""
    return tuple([int(n) for n in numbers])


def constant_array(x: Any) -> Any:
    """A constant of a jaxpr as an array that a program may capture."""
    if type(x) is PRNGKeyTracer:
        return x.key_data
    if isinstance(x, (jax.Array, np.ndarray)):
        return jax.random.key_data(x) if prng_key_type(x.dtype) is not None else x
    return np.asarray(x)


def literal_value(literal: Any) -> Any:
    """A literal of a jaxpr as a value of the program being traced."""
    aval = literal.aval
    if aval.shape or not isinstance(aval.dtype, np.dtype):
        return constant_array(literal.val)
    value = np.asarray(literal.val).item()
    builder = current_builder.require()
    number = scalar_literal(value, aval.dtype, bool(aval.weak_type), repr(value))
    return Tracer(number, builder)


def jaxpr_of(fun: Callable[..., Any], avals: Sequence[Any]) -> ClosedJaxpr:
    """The jaxpr of a JAX function of arrays of `avals`, which are functx's or JAX's.

    Traced values that `fun` closes over are among its constants.
    """
    axes = [(axis.name, axis.size) for axis in bound_axes()]
    return jax.make_jaxpr(fun, axis_env=axes or None)(*jax_avals(avals))


def jax_avals(avals: Sequence[Any]) -> list[Any]:
    """Avals of functx or of JAX as JAX's."""
    return [jax_aval(a) if type(a) is ShapedArray else a for a in avals]


def closed_jaxpr(
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    eqns: Sequence[Any] = (),
    effects: Any = frozenset(),
    consts: Sequence[tuple[Any, Any]] = (),
) -> ClosedJaxpr:
    """A closed jaxpr of these parts; `consts` are pairs of variables and values."""
    info = DebugInfo("jax_call", "jax_call", ("",) * len(inputs), ("",) * len(outputs))
    variables, values = [v for v, _ in consts], [x for _, x in consts]
    return ClosedJaxpr(Jaxpr(variables, inputs, outputs, eqns, effects, info), values)


def count_equations(jaxpr: Any) -> int:
    """The number of equations, those inside of equations included."""
    return sum([1 + sum([count_equations(j) for j in jaxprs_in(eqn)]) for eqn in jaxpr.eqns])


def jaxprs_in(eqn: Any) -> list[Any]:
    """The jaxprs among the parameters of an equation of a jaxpr."""
    found = []
    for value in eqn.params.values():
        for part in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(part, (ClosedJaxpr, Jaxpr)):
                found.append(part.jaxpr if isinstance(part, ClosedJaxpr) else part)
    return found


def jaxpr_key(jaxpr: Any) -> tuple[Any, ...]:
    """What two jaxprs share when they compute the same: their variables numbered in order."""
    numbers: dict[Any, int] = {}

    def atom(a: Any) -> Any:
        if isinstance(a, Literal):
            return param_key(a.val), a.aval
        return numbers.setdefault(a, len(numbers))

    form: list[Any] = [(atom(v), v.aval) for v in (*jaxpr.constvars, *jaxpr.invars)]
    for eqn in jaxpr.eqns:
        form.append((eqn.primitive, tuple([atom(a) for a in eqn.invars]), params_key(eqn.params)))
        form.append(tuple([(atom(v), v.aval) for v in eqn.outvars]))
    return (*form, tuple([atom(a) for a in jaxpr.outvars]))


def params_key(params: dict[str, Any]) -> tuple[Any, ...]:
    """The parameters of an equation as a key."""
    return tuple([(name, param_key(params[name])) for name in sorted(params)])


def param_key(value: Any) -> Any:
    """A parameter of an equation as a key: by value where it cannot change, else the same object."""
    if isinstance(value, ClosedJaxpr):
        return jaxpr_key(value.jaxpr), tuple([param_key(c) for c in value.consts])
    if isinstance(value, Jaxpr):
        return jaxpr_key(value)
    if isinstance(value, (tuple, list)):
        return type(value), tuple([param_key(part) for part in value])
    if isinstance(value, dict):
        return params_key(value)
    if isinstance(value, (float, complex)):
        # By text, since nan is unequal to itself and -0.0 equals 0.0.
        return type(value), repr(value)
    if isinstance(value, (np.ndarray, np.generic)):
        return str(value.dtype), value.shape, value.tobytes()
    try:
        hash(value)
    except TypeError:
        return IdentityKey(value)
    return type(value), value


class IdentityKey:
    """A value as a key: equal to itself alone, and alive as long as the key is."""

    def __init__(self, value: Any):
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, IdentityKey) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


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
