"""Concretization: values of traced arrays for Python, and guards on numbers that become inputs."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, final

import numpy as np

from functx.core.backend import backend
from functx.core.builder import Builder
from functx.core.captured_state import CapturedState
from functx.core.errors import ConcretizationError, DifferentiatedValueError, describe_input
from functx.core.functionalization import functionalized_atom
from functx.core.program import Atom, Equation, Literal, Var
from functx.core.tracer import Tracer, check_not_escaped, current_builder, with_parents
from functx.core.tracing import eval_context
from functx.core.types import is_inexact
from functx.core.typing import ArrayLike, NumPyArray


class Guard(NamedTuple):
    """A comparison of a symbolic scalar, and its result in one rewrite.

    The result of the rewrite is valid for all numbers for which the guard holds.
    """

    position: int
    predicate: Callable[[Any, Any], Any]
    operand: object
    expected: bool

    def holds(self, numbers: Sequence[complex]) -> bool:
        """Whether the comparison has the same result for the number at `position` in `numbers`."""
        return bool(self.predicate(numbers[self.position], self.operand)) == self.expected


@final
class SymbolicScalar:
    """The value of a literal that becomes an input of a program; each comparison adds a guard.

    It cannot be converted to a Python number: arithmetic with it raises TypeError.
    """

    __slots__ = ("guards", "position", "program_id", "value")

    def __init__(self, value: complex, position: int, program_id: int, guards: list[Guard]):
        self.value, self.position, self.guards = value, position, guards
        # Distinguishes it from scalars of other programs in the same tables.
        self.program_id = program_id

    def guard(self, predicate: Callable[[Any, Any], Any], operand: object = None) -> bool:
        """The result of `predicate(value, operand)`, added to the guards."""
        if type(operand) is SymbolicScalar:
            raise TypeError("two unknown numbers cannot be compared")
        result = bool(predicate(self.value, operand))
        self.guards.append(Guard(self.position, predicate, operand, result))
        return result

    def __eq__(self, other: object) -> bool:
        return self is other or self.guard(operator.eq, other)

    def __lt__(self, other: object) -> bool:
        return self.guard(operator.lt, other)

    def __le__(self, other: object) -> bool:
        return self.guard(operator.le, other)

    def __gt__(self, other: object) -> bool:
        return self.guard(operator.gt, other)

    def __ge__(self, other: object) -> bool:
        return self.guard(operator.ge, other)

    def __bool__(self) -> bool:
        return self.guard(operator.ne, 0)

    def __hash__(self) -> int:
        return id(self)

    def __repr__(self) -> str:
        return f"number {self.position} of {self.program_id}"


def is_concrete_literal(atom: object) -> bool:
    """Whether `atom` is a literal with a known value."""
    return type(atom) is Literal and type(atom.value) is not SymbolicScalar


def is_finite(value: complex | SymbolicScalar) -> bool:
    """Whether `value`, a number or a symbolic scalar, is finite."""
    return value.guard(_finite) if type(value) is SymbolicScalar else bool(np.isfinite(value))


def _finite(number: complex, _: None) -> np.bool:
    return np.isfinite(number)


def concretize(tracer: Tracer, operation: str) -> NumPyArray:
    """The value of `tracer` as a NumPy array; evaluates only the equations that it needs.

    Raises ConcretizationError, which begins with `operation`, if it depends on an unknown input.
    """
    check_not_escaped(tracer, current_builder.innermost())
    builder, atom = functionalized_atom(tracer.builder, tracer.atom)
    missing = evaluate_needed(builder, atom)
    if missing is not None:
        raise concretization_error(tracer, missing, operation)
    value = backend.concrete_or_none(_known_value(builder, atom))
    if value is None:
        raise ConcretizationError(
            f"{operation} needs the value of an array; got {tracer.atom.aval!r}, which has none while JAX "
            "traces the call",
            fix="Choose between values with functx.numpy.where or functx.lax.cond, or make the "
            "argument static in the transform of JAX.",
        )
    return np.asarray(value)


def explored_outcome(tracer: Tracer) -> bool | None:
    """The outcome that an exploring trace takes for a boolean; None if it is known, or none explores."""
    builder = current_builder.innermost()
    if builder is None or builder.explored_path is None or not explores(tracer):
        return None
    outcome: bool = builder.explored_path.decide(tracer)
    return outcome


def explores(tracer: Tracer) -> bool:
    """Whether the innermost trace explores, and the value depends on an argument of a traced function."""
    builder = current_builder.innermost()
    if builder is None or builder.explored_path is None:
        return False
    return builder.explored_path.unknown_values.has(
        *functionalized_atom(builder, builder.atom(tracer))
    )


class UnknownValues:
    """The values of a program that depend on the argument of a function that is being traced.

    They are found as equations are appended to its builder.
    """

    def __init__(self) -> None:
        self.found: dict[Atom, bool] = {}
        self.followed = 0

    def has(self, builder: Builder, atom: Atom) -> bool:
        """Whether `atom` is one of them."""
        for eqn in builder.equations[self.followed :]:
            unknown = any([self._has_input(builder, a) for a in eqn.inputs])
            self.found.update(dict.fromkeys(eqn.outputs, unknown))
        self.followed = len(builder.equations)
        return self._has_input(builder, atom)

    def _has_input(self, builder: Builder, atom: Atom) -> bool:
        if type(atom) is Literal:
            return False
        found = self.found.get(atom)
        if found is None:
            source = builder.captured_value(atom)
            found = source is None
            if type(source) is Tracer:
                found = type(self)().has(*functionalized_atom(source.builder, source.atom))
            self.found[atom] = found
        return found


def is_being_differentiated(tracer: Tracer) -> bool:
    """Whether this value depends smoothly on an input that an active transform differentiates."""
    if not is_inexact(tracer.dtype):
        return False
    builder, atom = functionalized_atom(tracer.builder, tracer.atom)
    reached = {*builder.inputs_of(atom, lambda primitive: primitive.differentiable)}
    if reached & builder.differentiated:
        return True
    outer = [x for v, x in builder.captures.values() if v in reached]
    outer += [builder.values[v] for v in reached if v in builder.values]
    return any(type(x) is Tracer and is_being_differentiated(x) for x in outer)


def check_not_differentiated(tracer: Tracer, operation: str) -> None:
    """Raise DifferentiatedValueError if `tracer` is being differentiated."""
    check_not_escaped(tracer, current_builder.get())
    if is_being_differentiated(tracer):
        raise DifferentiatedValueError(
            f"{operation} needs a plain number; got {tracer.atom.aval!r}, which {tracer.builder.owner} "
            "differentiates, and whose derivative would be lost",
            fix="Use the array itself, with functx.numpy in place of math, or stop_gradient(x) first "
            "if no derivative is wanted.",
        )


def evaluate_needed(builder: Builder, atom: Atom) -> Tracer | None:
    """Evaluate the equations that `atom` needs; returns a needed input without a value, if any."""
    values = builder.values
    needed: set[Var] = set()
    pending = [atom]
    positions: set[int] = set()
    while pending:
        a = pending.pop()
        if isinstance(a, Literal) or a in needed:
            continue
        if a in values and not isinstance(values[a], Tracer):
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
    """Evaluate an input or captured value; returns the traced input without a value, if any."""
    source = builder.values.get(var)
    if source is None:
        source = next((x for v, x in builder.captures.values() if v is var), None)
    if source is None:
        return Tracer(var, builder)
    if isinstance(source, CapturedState):
        if builder.kind not in _RUN_AT_ONCE:
            return Tracer(var, builder)
        source = _state_around(builder, source)
    if type(source) is Tracer:
        outer, atom = functionalized_atom(source.builder, source.atom)
        missing = evaluate_needed(outer, atom)
        if missing is not None:
            return missing
        source = _known_value(outer, atom)
    elif isinstance(source, CapturedState):
        with eval_context():
            source = source.read()
    elif isinstance(source, Tracer):
        source = source.compute()  # type: ignore[attr-defined]
    builder.values[var] = source
    return None


_RUN_AT_ONCE = frozenset(
    [
        *(
            "grad",
            "value_and_grad",
            "jvp",
            "vjp",
            "linearize",
            "hessian",
            "hvp",
            "jacfwd",
            "jacrev",
        ),
        *("checkpoint", "functionalize", "decompose"),
    ]
)
"""The transforms that run a program once, right after the trace, with the states that generators have."""


def _state_around(builder: Builder, state: CapturedState) -> Tracer | CapturedState:
    """The traced state of a generator in the innermost trace around `builder` that has one, or itself."""
    for outer in with_parents(builder):
        if outer is not builder and outer.is_open and id(state) in outer.captures:
            return outer.tracer(state)
        if outer.kind not in _RUN_AT_ONCE:
            return outer.tracer(state)
    return state


def _known_value(builder: Builder, atom: Atom) -> ArrayLike:
    if isinstance(atom, Literal):
        return np.asarray(atom.value, atom.aval.dtype)[()]
    return builder.values[atom]


def _evaluate_equation(eqn: Equation, args: list[Any]) -> list[Any]:
    with eval_context():
        return eqn.primitive.as_list(backend.evaluate_eagerly(eqn.primitive, args))


def concretization_error(tracer: Tracer, missing: Tracer, operation: str) -> ConcretizationError:
    """The error for an operation that needs the value of `tracer`, which depends on the input `missing`."""
    owner = missing.builder
    return ConcretizationError(
        f"{operation} needs the value of an array; got {tracer.atom.aval!r}, which has none "
        f"while {owner.owner} is traced",
        f"it depends on {describe_input(owner, missing)}",
        fix="Choose between values with functx.numpy.where or functx.lax.cond; for an argument "
        "that is not an array, use static_argnums; or leave this part outside "
        f"{owner.kind}.",
    )
