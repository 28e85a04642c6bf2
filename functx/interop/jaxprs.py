"""Reading jaxprs: the types of their variables, their numbers, and what makes two of them equal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.core import ShapedArray as JaxShapedArray
from jax.extend.core import ClosedJaxpr, DebugInfo, Jaxpr, Literal

from functx.core.avals import ShapedArray
from functx.core.axes import bound_axes
from functx.core.dtypes import SHORT_NAMES
from functx.core.errors import DTypeError
from functx.core.program import scalar_literal
from functx.core.tracing import PRNGKeyTracer, Tracer, current_builder
from functx.lowering.arrays import jax_aval
from functx.lowering.keys import KEY_DATA_DTYPE, prng_key_type

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
