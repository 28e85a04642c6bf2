"""Jaxprs as programs: each equation by the rule for its primitive, else as one `jax_call`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.extend.core import Literal, Var

from functx.core.avals import ShapedArray
from functx.core.editing import apply_program
from functx.core.errors import DTypeError, ShapeError
from functx.core.primitive import Primitive
from functx.core.program import Literal as FunctxLiteral
from functx.core.program import Program
from functx.core.tracing import PRNGKeyTracer, Tracer, aval_of, trace
from functx.interop.jaxprs import (
    aval_from_jax,
    aval_from_jax_or_none,
    constant_array,
    jaxpr_of,
    literal_value,
)
from functx.lowering.cache import Cache
from functx.lowering.keys import prng_key_type
from functx.ops.conversion import ConvertElementType
from functx.ops.shaping import broadcast_in_dim
from functx.transforms.call import Call

Rule = Callable[..., Any]

ELEMENTWISE_PRIMITIVES: dict[str, Primitive] = {}
"""The functx primitives that stand for one of JAX's just so, by its name."""
TRANSLATION_RULES: dict[str, Rule] = {}
"""The other translations: `rule(eqn, *args)` returns the output or a list of outputs.

`NotImplemented` says that the equation is better left to JAX.
"""
KEY_AWARE_PRIMITIVES: set[str] = set()
"""The primitives whose rules know what to do with the words of typed keys."""


def register_translation(*names: str, keys: bool = False) -> Callable[[Rule], Rule]:
    """Make a function the translation of the JAX primitives with these names."""

    def register(rule: Rule) -> Rule:
        TRANSLATION_RULES.update(dict.fromkeys(names, rule))
        if keys:
            KEY_AWARE_PRIMITIVES.update(names)
        return rule

    return register


class TranslatedJaxpr(NamedTuple):
    """The program of a jaxpr, and the arrays that it captured, which are its last inputs."""

    program: Program
    captured: list[Any]

    def __call__(self, args: Sequence[Any]) -> list[Any]:
        """The outputs on `args`, inlined into the program being traced."""
        return apply_program(self.program, [*args, *self.captured])

    def call_with_constants(self, args: Sequence[Any]) -> list[Any]:
        """As a call, with the captured arrays made part of what is compiled."""
        return apply_program(self.program, [*args, *[dense_constant(x) for x in self.captured]])

    def bind_call(self, args: Sequence[Any]) -> list[Any]:
        """The outputs on `args`, as one `call`."""
        return Call(self.program)(*args, *self.captured)  # type: ignore[no-any-return]


_programs = Cache("from_jax", 2048)


def translate_jaxpr(closed: Any, avals: Sequence[ShapedArray], name: str = "") -> TranslatedJaxpr:
    """The program of a closed jaxpr on operands of `avals`, remembered for that very jaxpr."""
    key = closed, tuple(avals), name
    found: TranslatedJaxpr | None = _programs.get(key)
    if found is None:
        jaxpr, consts = closed.jaxpr, closed.consts

        def body(*args: Any) -> list[Any]:
            return inline_jaxpr(jaxpr, [constant_array(c) for c in consts], args)

        name = name or jaxpr.debug_info.func_name or "jax"
        program, captured = trace(body, avals, name=name, kind="from_jax")
        found = TranslatedJaxpr(program, captured)
        # What belongs to a trace of JAX does not outlive it.
        if not any(isinstance(x, jax.core.Tracer) for x in captured):
            _programs.put(key, found)
    return found


def translate_function(
    fun: Callable[..., Any], avals: Sequence[ShapedArray], name: str
) -> TranslatedJaxpr:
    """The program of a JAX function that takes arrays of `avals` and gives a list of them."""
    return translate_jaxpr(jaxpr_of(fun, avals), avals, name)


def inline_jaxpr(jaxpr: Any, consts: Sequence[Any], args: Sequence[Any]) -> list[Any]:
    """The outputs of an open jaxpr, its equations appended to the program being traced."""
    if not has_functx_types(jaxpr):
        # JAX makes tangents of integers, a type that functx has not, where nothing needs them.
        jaxpr = jaxpr.replace(eqns=live_equations(jaxpr))
        if not has_functx_types(jaxpr):
            return bind_jaxpr(jaxpr, [*consts, *args])
    env: dict[Any, Any] = dict(zip(jaxpr.constvars, consts, strict=True))
    env.update(zip(jaxpr.invars, args, strict=True))

    def read(atom: Any) -> Any:
        return literal_value(atom) if isinstance(atom, Literal) else env[atom]

    for eqn in jaxpr.eqns:
        outs = translate_equation(eqn, [read(a) for a in eqn.invars])
        env.update(zip(eqn.outvars, outs, strict=True))
    return [read(a) for a in jaxpr.outvars]


def has_functx_types(jaxpr: Any) -> bool:
    """Whether every value in a jaxpr has a type that functx has; references have none."""
    return all(aval_from_jax_or_none(v.aval) is not None for eqn in jaxpr.eqns for v in eqn.outvars)


def live_equations(jaxpr: Any) -> list[Any]:
    """The equations of a jaxpr that have effects, or outputs that are needed."""
    needed = {a for a in jaxpr.outvars if isinstance(a, Var)}
    kept = []
    for eqn in reversed(jaxpr.eqns):
        if eqn.effects or not needed.isdisjoint(eqn.outvars):
            kept.append(eqn)
            needed.update([a for a in eqn.invars if isinstance(a, Var)])
    return kept[::-1]


def translate_equation(eqn: Any, args: Sequence[Any]) -> Sequence[Any]:
    """The outputs of one equation of a jaxpr, bound in the program being traced."""
    name = eqn.primitive.name
    atoms = [*eqn.invars, *eqn.outvars]
    if name in KEY_AWARE_PRIMITIVES or all(isinstance(a.aval.dtype, np.dtype) for a in atoms):
        out = _apply_rule(name, eqn, args)
        if out is not NotImplemented:
            outs = out if isinstance(out, (list, tuple)) else [out]
            if _matches_types(outs, eqn.outvars):
                return outs
    return bind_jax_equation(eqn, args)


def _apply_rule(name: str, eqn: Any, args: Sequence[Any]) -> Any:
    try:
        primitive = ELEMENTWISE_PRIMITIVES.get(name)
        if primitive is not None:
            # Parameters of these are requests: for an accuracy, for another dtype.
            plain = all(value is None for value in eqn.params.values())
            return primitive(*broadcast_unit_dims(eqn, args)) if plain else NotImplemented
        rule = TRANSLATION_RULES.get(name)
        return NotImplemented if rule is None else rule(eqn, *args)
    except (DTypeError, ShapeError):
        # A dtype, say, that JAX's primitive takes and ours does not.
        return NotImplemented


def broadcast_unit_dims(eqn: Any, args: Sequence[Any]) -> Sequence[Any]:
    """Operands of an elementwise equation, of which JAX repeats those with unit dimensions."""
    shape = eqn.outvars[0].aval.shape
    if all(x.shape in ((), shape) for x in args):
        return args
    dims = tuple(range(len(shape)))
    return [broadcast_in_dim(x, shape, dims) if x.shape else x for x in args]


def _matches_types(outs: Sequence[Any], variables: Sequence[Any]) -> bool:
    for x, v in zip(outs, variables, strict=True):
        aval, wanted = aval_of(x), aval_from_jax(v.aval)
        if aval.shape != wanted.shape or aval.dtype != wanted.dtype:
            return False
    return True


def with_jax_type(x: Any, jax_aval: Any) -> Any:
    """`x` as typed keys where JAX has such, or with a dtype that is weak where JAX's is, and only there."""
    if prng_key_type(jax_aval.dtype) is not None:
        return PRNGKeyTracer(x, jax_aval)
    weak = aval_from_jax(jax_aval).weak_type
    if x.weak_type == weak:
        return x
    if type(x.atom) is FunctxLiteral:
        aval = ShapedArray((), x.dtype, weak)
        return Tracer(FunctxLiteral(x.atom.value, aval), x.builder)
    return ConvertElementType(x.dtype, weak)(x)


from functx.interop.jax_call import bind_jax_equation, bind_jaxpr, dense_constant
