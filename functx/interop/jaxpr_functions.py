"""Jaxprs as functions of arrays, which `jax_call` calls; those of one operation have a text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Var, jaxpr_as_fun, primitives
from jax.extend.core import Primitive as JaxPrimitive

from functx.core.effects import NO_EFFECTS, Effect, Effects
from functx.core.masks import inexact_mask, select_where
from functx.core.types import DTYPES_BY_SHORT_NAME, SHORT_NAMES
from functx.core.typing import PyTree, Value
from functx.interop.jaxprs import JaxprEqn, aval_from_jax, closed_jaxpr, jaxpr_key
from functx.lowering.jax_bridge import JaxAval, prng_key_type


class JaxprFunction:
    """A closed jaxpr as a function of arrays; two are equal when their jaxprs are.

    It takes and returns the words of typed keys.
    """

    def __init__(self, jaxpr: ClosedJaxpr):
        self.jaxpr = jaxpr
        self.in_avals = [aval_from_jax(a) for a in jaxpr.in_avals]
        self.out_avals = [aval_from_jax(a) for a in jaxpr.out_avals]
        self.in_keys = [prng_key_type(a.dtype) for a in jaxpr.in_avals]
        self.out_keys = [prng_key_type(a.dtype) for a in jaxpr.out_avals]
        self.key = jaxpr_key(jaxpr.jaxpr), tuple([id(c) for c in jaxpr.consts])
        self.hash = hash(self.key)

    @staticmethod
    def of_equation(eqn: JaxprEqn) -> JaxprFunction:
        """One equation as a function of all its operands."""
        eqn = eqn.replace(
            invars=[Var(a.aval) for a in eqn.invars], outvars=[Var(a.aval) for a in eqn.outvars]
        )
        return JaxprFunction(closed_jaxpr(eqn.invars, eqn.outvars, [eqn], eqn.effects))

    @property
    def effects(self) -> Effects:
        return frozenset({Effect.CALLBACK}) if self.jaxpr.effects else NO_EFFECTS

    def __call__(self, *args: Value) -> list[Value]:
        given = [x if k is None else k.wrap(x) for x, k in zip(args, self.in_keys, strict=True)]
        outs = jaxpr_as_fun(self.jaxpr)(*given)
        return [
            x if k is None else jax.random.key_data(x)
            for x, k in zip(outs, self.out_keys, strict=True)
        ]

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, JaxprFunction) and self.hash == other.hash and self.key == other.key
        )

    def __hash__(self) -> int:
        return self.hash

    def __repr__(self) -> str:
        names = [eqn.primitive.name for eqn in self.jaxpr.jaxpr.eqns]
        return " ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")

    def differentiable_outputs(self, outs: Sequence[PyTree]) -> list[PyTree]:
        return select_where(outs, inexact_mask(self.out_avals))


class JaxOperation(JaxprFunction):
    """An operation of JAX with plain parameters as a function of its operands, which has a text.

    `operands` are a dtype, or the generator of typed keys, a shape and a weak type each; `params` pairs of
    a name and a value, in which tuples, enums and records of JAX begin with their kind. Raises ValueError
    unless JAX has the operation, and takes these.
    """

    _fields = ("primitive", "operands", "params")

    def __init__(
        self,
        primitive: str,
        operands: tuple[tuple[str, tuple[int, ...], bool], ...],
        params: tuple[tuple[str, Any], ...],
    ):
        known = jax_primitives().get(primitive)
        if known is None:
            raise ValueError(f"JAX has no operation {primitive!r}")
        given = {name: param_of_plain(value) for name, value in params}

        def operation(*args: object) -> PyTree:
            return known.bind(*args, **given)

        jaxpr = jax.make_jaxpr(operation)(*[_operand_struct(*each) for each in operands])
        function = JaxprFunction.of_equation(jaxpr.eqns[-1])
        super().__init__(function.jaxpr)
        self.primitive, self.operands, self.params = primitive, operands, params

    def __iter__(self) -> Iterator[Any]:
        return iter((self.primitive, self.operands, self.params))

    @staticmethod
    def of_function(function: JaxprFunction) -> JaxOperation | None:
        """The operation that `function` is; None if it is more than one, or has other parameters."""
        jaxpr = function.jaxpr.jaxpr
        if len(jaxpr.eqns) != 1 or function.jaxpr.consts:
            return None
        (eqn,) = jaxpr.eqns
        if jaxpr.invars != eqn.invars or jaxpr.outvars != eqn.outvars:
            return None
        try:
            operands = tuple([_plain_operand(v.aval) for v in eqn.invars])
            params = tuple([(name, plain_param(x)) for name, x in sorted(eqn.params.items())])
            made = JaxOperation(eqn.primitive.name, operands, params)
        except (TypeError, ValueError):
            return None
        return made if made == function else None


@cache
def jax_primitives() -> dict[str, JaxPrimitive]:
    """The operations of JAX by name."""
    found = [x for x in vars(primitives).values() if isinstance(x, JaxPrimitive)]
    return {primitive.name: primitive for primitive in found}


_JAX_ENUMS = {
    cls.__name__: cls
    for cls in (
        *(jax.lax.AccuracyMode, jax.lax.FftType, jax.lax.GatherScatterMode),
        *(jax.lax.Precision, jax.lax.RandomAlgorithm, jax.lax.RoundingMethod),
    )
}
_JAX_RECORDS: dict[str, Any] = {
    cls.__name__: cls
    for cls in (
        *(jax.lax.ConvDimensionNumbers, jax.lax.GatherDimensionNumbers),
        jax.lax.ScatterDimensionNumbers,
    )
}


def plain_param(value: Any) -> Any:
    """A parameter of an operation of JAX as numbers, strings, dtypes and tuples; TypeError if it is more."""
    kind = type(value)
    if value is None or kind in (bool, int, float, complex, str):
        return value
    if isinstance(value, np.dtype) and value in SHORT_NAMES:
        return value
    if _JAX_ENUMS.get(kind.__name__) is kind:
        return ("enum", kind.__name__, value.name)
    if kind is tuple:
        return ("tuple", *[plain_param(x) for x in value])
    if _JAX_RECORDS.get(kind.__name__) is kind:
        parts = value if isinstance(value, tuple) else vars(value).values()
        return ("record", kind.__name__, *[plain_param(x) for x in parts])
    raise TypeError(f"no plain parameter: {value!r}")


def param_of_plain(value: object) -> Any:
    """The parameter of its plain form."""
    if not isinstance(value, tuple):
        return value
    kind, *parts = value
    if kind == "enum":
        return _JAX_ENUMS[parts[0]][parts[1]]
    if kind == "record":
        return _JAX_RECORDS[parts[0]](*[param_of_plain(x) for x in parts[1:]])
    if kind != "tuple":
        raise ValueError(f"no parameter: {value!r}")
    return tuple([param_of_plain(x) for x in parts])


def _plain_operand(aval: JaxAval) -> tuple[str, tuple[int, ...], bool]:
    """The dtype or the generator of keys, the shape and the weak type of an operand."""
    keys = prng_key_type(aval.dtype)
    if keys is not None:
        return f"key {keys.generator}", tuple(aval.shape), False
    return SHORT_NAMES[aval.dtype], tuple(aval.shape), bool(aval.weak_type)


def _operand_struct(dtype: str, shape: tuple[int, ...], weak: bool) -> jax.ShapeDtypeStruct:
    """The type of an operand in JAX."""
    if dtype.startswith("key "):
        key_dtype = jax.random.key(0, impl=dtype.removeprefix("key ")).dtype
        return jax.ShapeDtypeStruct(shape, key_dtype)
    return jax.ShapeDtypeStruct(shape, DTYPES_BY_SHORT_NAME[dtype], weak_type=weak)
