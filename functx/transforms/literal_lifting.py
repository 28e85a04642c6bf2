"""Literal lifting: literals of a program become inputs, so one executable serves all values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from itertools import count
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from functx import ops
from functx.core.concretization import Guard, SymbolicScalar
from functx.core.primitive import Primitive
from functx.core.primitive_families import HasPrograms
from functx.core.program import (
    Atom,
    Equation,
    Literal,
    Program,
    ProgramKey,
    Var,
    canonical_form,
    subprograms,
)
from functx.core.types import ShapedArray
from functx.core.typing import Avals, NumPyArray

IndexSet = frozenset[int]


def literal_free_key(program: Program) -> ProgramKey:
    """The key of a program without the values of its literals."""
    return ProgramKey(_literal_free_form(program))


def _literal_free_form(program: Program) -> tuple[object, ...]:
    return canonical_form(program, attrgetter("aval"), _primitive_form)


def _primitive_form(primitive: Primitive) -> Hashable:
    if not isinstance(primitive, HasPrograms):
        return primitive
    parameters = [getattr(primitive, field) for field in primitive.fields]
    return type(primitive), *map(_parameter_form, parameters)


def _parameter_form(value: Hashable) -> Hashable:
    if type(value) is Program:
        return _literal_free_form(value)
    return tuple(map(_parameter_form, value)) if type(value) is tuple else value


def collect_literals(program: Program) -> list[Literal]:
    """The literals of `program` and of its sub-programs, in the order of the equations."""
    literals: list[Literal] = []
    for eqn in program.equations:
        if isinstance(eqn.primitive, HasPrograms):
            for sub in subprograms(eqn.primitive):
                literals += collect_literals(sub)
        literals += [a for a in eqn.inputs if type(a) is Literal]
    literals += [a for a in program.outputs if type(a) is Literal]
    return literals


class LiteralHoister:
    """Hoists literals of sub-programs to operands of the equations that run them."""

    def __init__(self) -> None:
        self.bodies: dict[tuple[int, IndexSet], tuple[Program, Program, list[Literal]]] = {}

    def hoist(
        self, program: Program, indices: IndexSet, replace: Callable[[Literal], Any]
    ) -> tuple[list[Equation], list[Any]]:
        """The equations and outputs of `program` with `replace(literal)` for literals at `indices`.

        The indices are those of `collect_literals`; literals of sub-programs become operands.
        """
        at = 0

        def read(atom: Atom) -> Atom:
            nonlocal at
            if type(atom) is not Literal:
                return atom
            at += 1
            return replace(atom) if at - 1 in indices else atom

        equations = []
        for eqn in program.equations:
            primitive, extras = eqn.primitive, []
            programs = subprograms(primitive) if isinstance(primitive, HasPrograms) else []
            for i, sub in enumerate(programs):
                end = at + len(collect_literals(sub))
                inside = frozenset([k - at for k in range(at, end) if k in indices])
                programs[i], literals = self.hoist_body(sub, inside)
                extras.append([replace(a) for a in literals])
                at = end
            inputs = [read(a) for a in eqn.inputs]
            if any(extras):
                primitive, inputs = primitive.hoist_constants(programs, extras, inputs)  # type: ignore[attr-defined]
            equations.append(eqn.replace(primitive=primitive, inputs=inputs))
        return equations, [read(a) for a in program.outputs]

    def hoist_body(self, program: Program, indices: IndexSet) -> tuple[Program, list[Literal]]:
        """`program` with leading inputs for its literals at `indices`, and these literals."""
        if not indices:
            return program, []
        hoisted = self.bodies.get((id(program), indices))
        if hoisted is None:
            literals: list[Literal] = []
            inputs: list[Var] = []

            def read(a: Literal) -> Var:
                literals.append(a)
                inputs.append(Var(a.aval))
                return inputs[-1]

            equations, outputs = self.hoist(program, indices, read)
            changed = Program(program.name, [*inputs, *program.inputs], equations, outputs)
            hoisted = self.bodies[id(program), indices] = program, changed, literals
        return hoisted[1], hoisted[2]


class LiftedProgram(NamedTuple):
    """A program with literals as its last inputs, and the guards on their values."""

    program: Program
    guards: Sequence[Guard]


def lift_literals(
    rewrite: Callable[[Program], Program], program: Program, indices: Sequence[int]
) -> LiftedProgram | None:
    """`rewrite(program)` with its literals at `indices` of `collect_literals` as further inputs.

    These are packed as by `pack_literals`. Returns None if the rewrite needs the value of one.
    """
    guards: list[Guard] = []
    numbers: list[Literal] = []
    lift = next(_lift_ids)

    def number(literal: Literal) -> Literal:
        numbers.append(literal)
        unknown = SymbolicScalar(literal.value, len(numbers) - 1, lift, guards)
        return Literal(unknown, literal.aval)

    # A rewrite depends on the number of inputs, so literals become inputs after it.
    equations, outputs = LiteralHoister().hoist(program, frozenset(indices), number)
    try:
        result = rewrite(Program(program.name, program.inputs, equations, outputs))
    except TypeError:
        return None

    scalars = _PackedScalars([a.aval for a in numbers])
    remaining = frozenset([i for i, a in enumerate(collect_literals(result)) if _is_symbolic(a)])
    equations, outputs = LiteralHoister().hoist(result, remaining, scalars.scalar_of)
    inputs = [*result.inputs, *scalars.arrays.values()]
    final = Program(result.name, inputs, [*scalars.equations, *equations], outputs)
    # Literals in sub-programs of primitives that are not a `HasPrograms`.
    if any([_is_symbolic(a) for each in final.walk() for eqn in each for a in eqn.inputs]):
        return None
    return LiftedProgram(final, tuple(dict.fromkeys(guards)))


_lift_ids = count()


def _is_symbolic(atom: Atom) -> bool:
    return type(atom) is Literal and type(atom.value) is SymbolicScalar


class _PackedScalars:
    """Variables for scalars of types `avals`, which are elements of one array for each type."""

    def __init__(self, avals: Avals):
        counts = Counter(avals)
        self.arrays = {a: Var(ShapedArray((n,), a.dtype)) for a, n in counts.items()}
        self.equations: list[Equation] = []
        self.variables: list[Var] = []
        counted: Counter[ShapedArray] = Counter()
        for aval in avals:
            index, dtype = counted[aval], aval.dtype
            counted[aval] += 1
            row = self.append(
                ops.Slice((index,), (index + 1,)), self.arrays[aval], ShapedArray((1,), dtype)
            )
            scalar = self.append(ops.Reshape(()), row, ShapedArray((), dtype))
            self.variables.append(self.convert(scalar, aval))

    def append(self, primitive: Primitive, x: Var, aval: ShapedArray) -> Var:
        out = Var(aval)
        self.equations.append(Equation(primitive, [x], [out], None))
        return out

    def convert(self, x: Var, aval: ShapedArray) -> Var:
        if x.aval is aval:
            return x
        return self.append(ops.ConvertElementType(aval.dtype, aval.weak_type), x, aval)

    def scalar_of(self, literal: Literal) -> Var:
        """The variable for a symbolic literal."""
        return self.convert(self.variables[literal.value.position], literal.aval)


def pack_literals(literals: Sequence[Literal]) -> list[NumPyArray]:
    """One array of values for each type among `literals`."""
    groups: dict[ShapedArray, list[Any]] = {}
    for literal in literals:
        groups.setdefault(literal.aval, []).append(literal.value)
    return [np.array(numbers, aval.dtype) for aval, numbers in groups.items()]
