"""Jaxprs as data: their types and literals as functx's, and cache keys of jaxprs and functions."""

from __future__ import annotations

import dis
from collections.abc import Hashable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, SupportsIndex, TypeAlias

import jax
import numpy as np
from jax.core import ShapedArray as JaxShapedArray
from jax.extend.core import ClosedJaxpr, DebugInfo, Jaxpr, Literal

from functx.core import tree
from functx.core.caches import IdentityKey
from functx.core.errors import CapturedWriteError, DTypeError, TreeError
from functx.core.named_axes import bound_axes
from functx.core.program import scalar_literal
from functx.core.tracer import PRNGKeyTracer, Tracer, current_builder, is_device_array
from functx.core.types import SHORT_NAMES, ShapedArray
from functx.core.typing import ArrayLike, Avals, Function, Value
from functx.lowering.jax_bridge import KEY_DATA_DTYPE, JaxAval, jax_aval, prng_key_type

Shape = tuple[int, ...]
JaxprLike: TypeAlias = Any
"""A `jax.extend.core.Jaxpr` or `ClosedJaxpr`, whose variables have types with a shape and dtype."""
JaxprAtom: TypeAlias = Any
"""A variable or literal of a jaxpr, `jax.extend.core.Var` or `Literal`."""
JaxprEqn: TypeAlias = Any
"""A `jax.extend.core.JaxprEqn`."""


def aval_from_jax(aval: JaxAval) -> ShapedArray:
    """functx's aval for an aval of JAX; that of the words for typed keys.

    Raises DTypeError for a dtype that functx does not have, CapturedWriteError for a reference.
    """
    found = aval_from_jax_or_none(aval)
    if found is not None:
        return found
    if isinstance(aval, jax.ref.AbstractRef):
        raise reference_error(aval)
    raise DTypeError(f"from_jax: arrays must have a dtype that functx has; got {aval}")


def reference_error(aval: jax.ref.AbstractRef) -> CapturedWriteError:
    """The error for an operation on a reference of JAX that programs cannot make."""
    return CapturedWriteError(
        f"a traced function must not write to a Ref of JAX, nor read a part of one; got one of {aval}",
        fix="Make it with functx.new_ref. A function under jax.jit may make and use references of JAX.",
    )


def aval_from_jax_or_none(aval: JaxAval) -> ShapedArray | None:
    """As `aval_from_jax`, but None for a type that functx does not have."""
    if not isinstance(aval, JaxShapedArray):
        return None
    dtype = aval.dtype
    if isinstance(dtype, np.dtype):
        known = dtype in SHORT_NAMES
        return ShapedArray(tuple(aval.shape), dtype, bool(aval.weak_type)) if known else None
    kind = prng_key_type(dtype)
    return None if kind is None else ShapedArray((*aval.shape, *kind.key_shape), KEY_DATA_DTYPE)


def int_tuple(numbers: Sequence[SupportsIndex]) -> Shape:
    """Numbers among the parameters of an equation, some of them NumPy's, as Python ints."""
    return tuple([int(n) for n in numbers])


def constant_array(x: Value) -> Value:
    """A constant of a jaxpr as an array that a program may capture."""
    if type(x) is PRNGKeyTracer:
        return x.key_data
    if isinstance(x, jax.Ref):
        raise reference_error(jax.typeof(x))
    if isinstance(x, (jax.Array, np.ndarray)):
        return jax.random.key_data(x) if prng_key_type(x.dtype) is not None else x
    return np.asarray(x)


def literal_value(literal: JaxprAtom) -> ArrayLike:
    """A literal of a jaxpr as a value of the program being traced."""
    aval = literal.aval
    if aval.shape or not isinstance(aval.dtype, np.dtype):
        return constant_array(literal.val)
    value = np.asarray(literal.val).item()
    builder = current_builder.require()
    number = scalar_literal(value, aval.dtype, bool(aval.weak_type), repr(value))
    return Tracer(number, builder)


def jaxpr_of(fun: Function, avals: Avals) -> ClosedJaxpr:
    """The jaxpr of a JAX function of arrays of `avals`, which are functx's or JAX's.

    Tracers in the closure of `fun` are among its constants.
    """
    axes = [(axis.name, axis.size) for axis in bound_axes()]
    return jax.make_jaxpr(fun, axis_env=axes or None)(*jax_avals(avals))


def jax_avals(avals: Avals) -> list[JaxAval]:
    """Avals of functx or of JAX, as avals of JAX."""
    return [jax_aval(a) if type(a) is ShapedArray else a for a in avals]


def closed_jaxpr(
    inputs: Sequence[JaxprAtom],
    outputs: Sequence[JaxprAtom],
    eqns: Sequence[JaxprAtom] = (),
    effects: Any = frozenset(),
) -> ClosedJaxpr:
    """The closed jaxpr of these parts, without constants."""
    info = DebugInfo("jax_call", "jax_call", ("",) * len(inputs), ("",) * len(outputs))
    return ClosedJaxpr(Jaxpr([], inputs, outputs, eqns, effects, info), [])


def count_equations(jaxpr: JaxprLike) -> int:
    """The number of equations, including those of inner jaxprs."""
    return sum([1 + sum([count_equations(j) for j in jaxprs_in(eqn)]) for eqn in jaxpr.eqns])


def jaxprs_in(eqn: JaxprEqn) -> list[JaxprLike]:
    """The jaxprs among the parameters of an equation of a jaxpr."""
    found = []
    for value in eqn.params.values():
        for part in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(part, (ClosedJaxpr, Jaxpr)):
                found.append(part.jaxpr if isinstance(part, ClosedJaxpr) else part)
    return found


def jaxpr_key(jaxpr: JaxprLike) -> tuple[Hashable, ...]:
    """The cache key of a jaxpr, equal for jaxprs that differ only in the identity of their variables."""
    numbers: dict[JaxprAtom, int] = {}

    def atom(a: JaxprAtom) -> Hashable:
        if isinstance(a, Literal):
            return param_key(a.val), a.aval
        return numbers.setdefault(a, len(numbers))

    form: list[Hashable] = [(atom(v), v.aval) for v in (*jaxpr.constvars, *jaxpr.invars)]
    for eqn in jaxpr.eqns:
        form.append((eqn.primitive, tuple([atom(a) for a in eqn.invars]), params_key(eqn.params)))
        form.append(tuple([(atom(v), v.aval) for v in eqn.outvars]))
    return (*form, tuple([atom(a) for a in jaxpr.outvars]))


def params_key(params: dict[str, Any]) -> tuple[Hashable, ...]:
    """The cache key of the parameters of an equation."""
    return tuple([(name, param_key(params[name])) for name in sorted(params)])


def param_key(value: object) -> Hashable:
    """The cache key of a parameter: its value if that cannot change, else its identity."""
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


IMMUTABLE_PACKAGES = frozenset(
    {"builtins", "collections", "functools", "itertools", "jax", "math", "numpy", "operator"}
)
"""Packages whose contents do not change while a program runs."""

IMMUTABLE_TYPES = (type(None), bool, int, str, bytes, np.dtype)


class MutableStateError(Exception):
    """A function reads something that may change without a trace."""


def function_fingerprint(value: object, packages: frozenset[str] = IMMUTABLE_PACKAGES) -> Hashable:
    """The cache key of `value`; that of a function includes all values that it reads.

    Functions and modules of `packages` do not change. Raises MutableStateError for objects that can
    change in place: containers, NumPy arrays, instances of users' classes.
    """
    return _value_fingerprint(value, packages, [])


_LEAF = tree.structure(0)


class FunctionKeys:
    """Cache keys of functions and the values they read: equal for functions that do the same.

    Numbers and NumPy arrays are compared by value, pytrees by their leaves, functions by their
    code and the values that they read, other objects by identity. `tracers` lists the functx
    tracers among them.
    """

    def __init__(self) -> None:
        self.visit_order: dict[int, int] = {}
        self.visited: list[object] = []
        self.tracers: list[Tracer] = []

    def key_of(self, value: object) -> Hashable:
        """The key of `value`."""
        if isinstance(value, (Tracer, PRNGKeyTracer)):
            self.tracers.append(value if type(value) is Tracer else value.key_data)
            return IdentityKey(value)
        if isinstance(value, IMMUTABLE_TYPES):
            return type(value), value
        if id(value) in self.visit_order:
            return "again", self.visit_order[id(value)]
        self.visit_order[id(value)] = len(self.visit_order)
        self.visited.append(value)
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

    def key_of_function(self, fun: FunctionType) -> Hashable:
        read = [*(fun.__defaults__ or ()), *(fun.__kwdefaults__ or {}).values()]
        with suppress(MutableStateError):
            read += _closure_values(fun)
        # The modules of an installed package stay as they are.
        if "site-packages" not in fun.__code__.co_filename:
            names = [name for name in global_names(fun.__code__) if name in fun.__globals__]
            read += [fun.__globals__[name] for name in names]
        return fun.__code__, tuple([self.key_of(part) for part in read])


def _value_fingerprint(
    value: object, packages: frozenset[str], callers: list[FunctionType]
) -> Hashable:
    if isinstance(value, IMMUTABLE_TYPES):
        return type(value), value
    if isinstance(value, (float, complex, np.generic)):
        return type(value), repr(value)
    if isinstance(value, tuple) and type(value) is tuple:
        return tuple([_value_fingerprint(part, packages, callers) for part in value])
    if is_device_array(value):
        return IdentityKey(value)
    if isinstance(value, partial):
        parts = (value.func, value.args, *value.keywords.items())
        return partial, _value_fingerprint(parts, packages, callers)
    if (callable(value) or isinstance(value, ModuleType)) and package_of(value) in packages:
        return IdentityKey(value)
    if type(value) is FunctionType:
        if any([value is f for f in callers]):
            return "recursion", callers.index(value)
        return _function_fingerprint(value, packages, [*callers, value])
    raise MutableStateError


def _function_fingerprint(
    fun: FunctionType, packages: frozenset[str], callers: list[FunctionType]
) -> Hashable:
    parts = [_value_fingerprint(value, packages, callers) for value in values_read(fun)]
    return fun.__code__, _globals_read(fun), *parts


def values_read(fun: FunctionType) -> list[object]:
    """The values that a function reads: defaults, variables of enclosing functions, and globals.

    Raises MutableStateError for a variable that has no value yet.
    """
    defaults = (*(fun.__defaults__ or ()), *(fun.__kwdefaults__ or {}).values())
    read = [fun.__globals__[name] for name in _globals_read(fun)]
    return [*defaults, *_closure_values(fun), *read]


def _globals_read(fun: FunctionType) -> tuple[str, ...]:
    """The names of the global variables that a function reads; others are builtins."""
    return tuple([name for name in global_names(fun.__code__) if name in fun.__globals__])


def _closure_values(fun: FunctionType) -> Iterator[object]:
    for cell in fun.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:
            raise MutableStateError from None


@lru_cache(maxsize=4096)
def global_names(code: CodeType) -> tuple[str, ...]:
    """The global variables that the code and its inner functions read."""
    loads = [op for op in dis.get_instructions(code) if op.opname in ("LOAD_GLOBAL", "LOAD_NAME")]
    inner = [global_names(x) for x in code.co_consts if isinstance(x, CodeType)]
    return tuple(
        dict.fromkeys([*[op.argval for op in loads], *[n for names in inner for n in names]])
    )


def package_of(value: object) -> str:
    """The package of a function, class or module, or of the class of an object."""
    name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
    return str(name or "").split(".")[0]
