"""Values on demand: what Python's `if`, `while`, `int` and `range` may ask of a traced array."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from functx.core.dtypes import is_inexact
from functx.core.errors import ConcretizationError, DifferentiatedValueError, describe_input
from functx.core.program import Atom, Equation, Literal, Var
from functx.core.storage import functionalized_atom
from functx.core.tracing import (
    Builder,
    Tracer,
    backend,
    check_not_escaped,
    current_builder,
    eval_context,
)


def concretize(tracer: Tracer, asked: str) -> Any:
    """The value of `tracer` as a NumPy array, found by evaluating just what it needs.

    Raises ConcretizationError, saying that `asked` needs a value, where there is none.
    """
    check_not_escaped(tracer, current_builder.innermost())
    builder, atom = functionalized_atom(tracer.builder, tracer.atom)
    missing = evaluate_needed(builder, atom)
    if missing is not None:
        raise concretization_error(tracer, missing, asked)
    value = backend.concrete_or_none(_known_value(builder, atom))
    if value is None:
        raise ConcretizationError(
            f"{asked} needs the value of an array; got {tracer.atom.aval!r}, which has none while JAX "
            "traces the call",
            fix="Choose between values with functx.numpy.where or functx.lax.cond, or make the "
            "argument static in the transform of JAX.",
        )
    return np.asarray(value)


def is_being_differentiated(tracer: Tracer) -> bool:
    """Whether a derivative is being taken along a path through this value."""
    if not is_inexact(tracer.dtype):
        return False
    builder, atom = functionalized_atom(tracer.builder, tracer.atom)
    reached = set(differentiable_inputs(builder, atom))
    if reached & builder.differentiated:
        return True
    outer = [x for v, x in builder.captures.values() if v in reached]
    outer += [builder.values[v] for v in reached if v in builder.values]
    return any(type(x) is Tracer and is_being_differentiated(x) for x in outer)


def check_not_differentiated(tracer: Tracer, asked: str, instead: str = "") -> None:
    check_not_escaped(tracer, current_builder.get())
    if is_being_differentiated(tracer):
        raise DifferentiatedValueError(
            f"{asked} needs a plain number; got {tracer.atom.aval!r}, which {tracer.builder.owner} "
            "differentiates, and whose derivative would be lost",
            fix=instead
            or "Use the array itself, with functx.numpy in place of math, or stop_gradient(x) first "
            "if no derivative is wanted.",
        )


def evaluate_needed(builder: Builder, atom: Atom) -> Tracer | None:
    """Evaluate what `atom` needs; the traced input without a value, if one stands in the way."""
    values = builder.values
    needed: set[Var] = set()
    pending = [atom]
    positions: set[int] = set()
    while pending:
        a = pending.pop()
        if isinstance(a, Literal) or a in needed:
            continue
        if a in values and type(values[a]) is not Tracer:
            continue
        needed.add(a)
        position = builder.producer(a)
        if position is not None:
            positions.add(position)
            pending += builder.equations[position].inputs
        elif (missing := _evaluate_input(builder, a)) is not None:
            return missing
    for position in sorted(positions):
        eqn = builder.equations[position]
        outs = _evaluate_equation(eqn, [_known_value(builder, a) for a in eqn.inputs])
        values.update(zip(eqn.outputs, outs, strict=True))
    return None


def _evaluate_input(builder: Builder, var: Var) -> Tracer | None:
    """Find the value of an input or captured value; what has none, if that is so."""
    source = builder.values.get(var)
    if source is None:
        source = next((x for v, x in builder.captures.values() if v is var), None)
    if source is None:
        return Tracer(var, builder)
    if type(source) is Tracer:
        outer, atom = functionalized_atom(source.builder, source.atom)
        missing = evaluate_needed(outer, atom)
        if missing is not None:
            return missing
        source = _known_value(outer, atom)
    builder.values[var] = source
    return None


def _known_value(builder: Builder, atom: Atom) -> Any:
    if isinstance(atom, Literal):
        return np.asarray(atom.value, atom.aval.dtype)[()]
    return builder.values[atom]


def _evaluate_equation(eqn: Equation, args: list[Any]) -> list[Any]:
    with eval_context():
        outs = backend.evaluate_eagerly(eqn.primitive, args)
    return outs if eqn.primitive.multiple_results else [outs]


def differentiable_inputs(builder: Builder, atom: Atom) -> Iterable[Var]:
    """The inputs and captured values that `atom` varies smoothly with."""
    seen: set[Var] = set()
    pending = [atom]
    while pending:
        a = pending.pop()
        if type(a) is Var and a not in seen:
            seen.add(a)
            position = builder.producer(a)
            if position is None:
                yield a
            elif builder.equations[position].primitive.differentiable:
                pending += builder.equations[position].inputs


def concretization_error(tracer: Tracer, missing: Tracer, asked: str) -> ConcretizationError:
    owner = missing.builder
    return ConcretizationError(
        f"{asked} needs the value of an array; got {tracer.atom.aval!r}, which has none "
        f"while {owner.owner} is traced",
        f"it depends on {describe_input(owner, missing)}",
        fix="Choose between values with functx.numpy.where or functx.lax.cond; for an argument "
        "that is not an array, use static_argnums; or leave this part outside "
        f"{owner.kind}.",
    )
