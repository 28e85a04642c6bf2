"""Numbers of a program as inputs of it, so that another number is no other program."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, NamedTuple

import numpy as np

from functx import ops
from functx.core.concretization import Guard, SymbolicScalar
from functx.core.program import Equation, Literal, Program, ProgramKey, Var, subprograms
from functx.core.types import ShapedArray

IndexSet = frozenset[int]


def literal_free_key(program: Program) -> ProgramKey:
    """What programs share that differ in their numbers alone."""
    return ProgramKey(_literal_free_form(program))


def _literal_free_form(program: Program) -> tuple[Any, ...]:
    number: dict[Any, Any] = {v: i for i, v in enumerate(program.inputs)}
    count = len(number)
    form: list[Any] = [count, *program.in_avals]
    append = form.append
    for eqn in program.equations:
        primitive = eqn.primitive
        if primitive.hoist_constants is None:
            append(primitive)
        else:
            append(type(primitive))
            form += [_parameter_form(getattr(primitive, f)) for f in primitive.fields]
        for atom in eqn.inputs:
            append(number[atom] if type(atom) is Var else atom.aval)
        for v in eqn.outputs:
            number[v] = count
            count += 1
    append(None)
    for atom in program.outputs:
        append(number[atom] if type(atom) is Var else atom.aval)
    return tuple(form)


def _parameter_form(value: Any) -> Any:
    if type(value) is Program:
        return _literal_free_form(value)
    return tuple(map(_parameter_form, value)) if type(value) is tuple else value


def collect_literals(program: Program) -> list[Literal]:
    """The literals of `program` and of the programs in it, in the order of the equations."""
    found: list[Literal] = []
    for eqn in program.equations:
        if eqn.primitive.hoist_constants is not None:
            for sub in subprograms(eqn.primitive):
                found += collect_literals(sub)
        found += [a for a in eqn.inputs if type(a) is Literal]
    found += [a for a in program.outputs if type(a) is Literal]
    return found


class LiteralHoister:
    """Programs whose equations take some literals of the programs in them as operands."""

    def __init__(self) -> None:
        self.bodies: dict[Any, tuple[Program, Program, list[Literal]]] = {}

    def program(
        self, program: Program, places: IndexSet, mark: Callable[[Literal], Any]
    ) -> tuple[list[Equation], list[Any]]:
        """The equations and outputs of `program`, the literals at `places` as `mark` has them.

        The places are those of `collect_literals`; literals from inside become operands.
        """
        at = 0

        def read(atom: Any) -> Any:
            nonlocal at
            if type(atom) is not Literal:
                return atom
            at += 1
            return mark(atom) if at - 1 in places else atom

        equations = []
        for eqn in program.equations:
            primitive, extras = eqn.primitive, []
            programs = [] if primitive.hoist_constants is None else subprograms(primitive)
            for i, sub in enumerate(programs):
                end = at + len(collect_literals(sub))
                inside = frozenset([k - at for k in range(at, end) if k in places])
                programs[i], literals = self.hoist_body(sub, inside)
                extras.append([mark(a) for a in literals])
                at = end
            inputs = [read(a) for a in eqn.inputs]
            if any(extras):
                primitive, inputs = primitive.hoist_constants(programs, extras, inputs)  # type: ignore[misc]
            equations.append(eqn.replace(primitive=primitive, inputs=inputs))
        return equations, [read(a) for a in program.outputs]

    def hoist_body(self, program: Program, places: IndexSet) -> tuple[Program, list[Literal]]:
        """`program` with further inputs in front, for its literals at `places`, and these."""
        if not places:
            return program, []
        known = self.bodies.get((id(program), places))
        if known is None:
            literals: list[Literal] = []
            inputs: list[Var] = []

            def read(a: Literal) -> Var:
                literals.append(a)
                inputs.append(Var(a.aval))
                return inputs[-1]

            equations, outputs = self.program(program, places, read)
            changed = Program(program.name, [*inputs, *program.inputs], equations, outputs)
            known = self.bodies[id(program), places] = program, changed, literals
        return known[1], known[2]


class LiftedProgram(NamedTuple):
    """A program with numbers as its last inputs, and what making it asked about them."""

    program: Program
    guards: Sequence[Guard]


def lift_literals(
    rewrite: Callable[[Program], Program], program: Program, places: Sequence[int]
) -> LiftedProgram | None:
    """`rewrite(program)` with the numbers at `places` in `collect_literals(program)` as further inputs.

    They come as `pack_literals` gives them. None where it cannot be, since a number has to be known.
    """
    answers: list[Guard] = []
    numbers: list[Literal] = []
    lift = next(_lift_ids)

    def number(literal: Literal) -> Literal:
        numbers.append(literal)
        unknown = SymbolicScalar(literal.value, len(numbers) - 1, lift, answers)
        return Literal(unknown, literal.aval)

    # A rewrite knows how many inputs its program has, so literals become inputs after it.
    equations, outputs = LiteralHoister().program(program, frozenset(places), number)
    try:
        result = rewrite(Program(program.name, program.inputs, equations, outputs))
    except TypeError:
        return None

    parts = _PackedScalars([a.aval for a in numbers])
    left = frozenset([i for i, a in enumerate(collect_literals(result)) if _is_symbolic(a)])
    equations, outputs = LiteralHoister().program(result, left, parts.scalar_of)
    inputs = [*result.inputs, *parts.arrays.values()]
    final = Program(result.name, inputs, [*parts.equations, *equations], outputs)
    # Rules that hold programs which nothing can be hoisted out of.
    if any([_is_symbolic(a) for each in final.walk() for eqn in each for a in eqn.inputs]):
        return None
    return LiftedProgram(final, tuple(dict.fromkeys(answers)))


_lift_ids = count()


def _is_symbolic(atom: Any) -> bool:
    return type(atom) is Literal and type(atom.value) is SymbolicScalar


class _PackedScalars:
    """Scalars of types `avals`, as variables: parts of one array for each type."""

    def __init__(self, avals: Sequence[ShapedArray]):
        counts = Counter(avals)
        self.arrays = {a: Var(ShapedArray((n,), a.dtype)) for a, n in counts.items()}
        self.equations: list[Equation] = []
        self.variables: list[Var] = []
        before: Counter[ShapedArray] = Counter()
        for aval in avals:
            at, kind = before[aval], aval.dtype
            before[aval] += 1
            row = self.append(
                ops.Slice((at,), (at + 1,)), self.arrays[aval], ShapedArray((1,), kind)
            )
            scalar = self.append(ops.Reshape(()), row, ShapedArray((), kind))
            self.variables.append(self.convert(scalar, aval))

    def append(self, primitive: Any, x: Var, aval: ShapedArray) -> Var:
        out = Var(aval)
        self.equations.append(Equation(primitive, [x], [out], None))
        return out

    def convert(self, x: Var, aval: ShapedArray) -> Var:
        if x.aval is aval:
            return x
        return self.append(ops.ConvertElementType(aval.dtype, aval.weak_type), x, aval)

    def scalar_of(self, literal: Literal) -> Var:
        """The variable for an unknown number."""
        return self.convert(self.variables[literal.value.position], literal.aval)


def pack_literals(literals: Sequence[Literal]) -> list[Any]:
    """One array of numbers for each type among `literals`."""
    groups: dict[ShapedArray, list[Any]] = {}
    for literal in literals:
        groups.setdefault(literal.aval, []).append(literal.value)
    return [np.array(numbers, aval.dtype) for aval, numbers in groups.items()]
