"""Numbers of a program as inputs of it, so that another number is no other program."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from functx.core.avals import ShapedArray
from functx.core.program import Equation, Literal, Program, ProgramKey, Var, subprograms
from functx.core.unknown import Answer, Unknown
from functx.ops.conversion import ConvertElementType
from functx.ops.shaping import Reshape
from functx.ops.slicing import Slice


def form_of(program: Program) -> ProgramKey:
    """What programs share that differ in their numbers alone."""
    return ProgramKey(_form(program))


def _form(program: Program) -> tuple[Any, ...]:
    number: dict[Any, Any] = {v: i for i, v in enumerate(program.inputs)}
    count = len(number)
    form: list[Any] = [count, *program.in_avals]
    append = form.append
    for eqn in program.equations:
        primitive = eqn.primitive
        if primitive.hoist is None:
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
        return _form(value)
    return tuple(map(_parameter_form, value)) if type(value) is tuple else value


def literals_of(program: Program) -> list[Literal]:
    """The literals of `program` and of the programs in it, in the order of the equations."""
    found: list[Literal] = []
    for eqn in program.equations:
        if eqn.primitive.hoist is not None:
            for sub in subprograms(eqn.primitive):
                found += literals_of(sub)
        found += [a for a in eqn.inputs if type(a) is Literal]
    found += [a for a in program.outputs if type(a) is Literal]
    return found


class Hoisted:
    """Programs whose equations take the literals of the programs in them as operands."""

    def __init__(self, wanted: Callable[[Literal], bool]):
        self.wanted = wanted
        self.bodies: dict[int, tuple[Program, Program, list[Literal]]] = {}

    def equations(
        self, program: Program, mark: Callable[[Literal], Any] = lambda a: a
    ) -> list[Equation]:
        """Those of `program`, its wanted literals and those from inside as `mark` has them."""
        return [self.equation(eqn, mark) for eqn in program.equations]

    def equation(self, eqn: Equation, mark: Callable[[Literal], Any]) -> Equation:
        primitive, extras = eqn.primitive, []
        programs = [] if primitive.hoist is None else subprograms(primitive)
        for i, sub in enumerate(programs):
            programs[i], literals = self.body(sub)
            extras.append([mark(a) for a in literals])
        inputs = [mark(a) if self.takes(a) else a for a in eqn.inputs]  # type: ignore[arg-type]
        if any(extras):
            primitive, inputs = primitive.hoist(programs, extras, inputs)  # type: ignore[misc]
        return eqn.replace(primitive=primitive, inputs=inputs)

    def takes(self, atom: Any) -> bool:
        return type(atom) is Literal and self.wanted(atom)

    def body(self, program: Program) -> tuple[Program, list[Literal]]:
        """`program` with further inputs in front, for its literals, and these."""
        known = self.bodies.get(id(program))
        if known is None:
            literals: list[Literal] = []
            inputs: list[Var] = []

            def read(a: Literal) -> Var:
                literals.append(a)
                inputs.append(Var(a.aval))
                return inputs[-1]

            equations = self.equations(program, read)
            outputs = [read(a) if self.takes(a) else a for a in program.outputs]  # type: ignore[arg-type]
            changed = Program(program.name, [*inputs, *program.inputs], equations, outputs)
            known = self.bodies[id(program)] = program, changed, literals
        return known[1], known[2]


class WithInputs(NamedTuple):
    """A program with numbers as its last inputs, and what making it asked about them."""

    program: Program
    answers: Sequence[Answer]


def with_literals_as_inputs(
    rewrite: Callable[[Program], Program], program: Program
) -> WithInputs | None:
    """`rewrite(program)` with what `packed(literals_of(program))` gives as further inputs.

    None where it cannot be, since a number has to be known to rewrite.
    """
    answers: list[Answer] = []
    numbers: list[Literal] = []

    def number(literal: Literal) -> Literal:
        numbers.append(literal)
        return Literal(Unknown(literal.value, len(numbers) - 1, answers), literal.aval)

    # A rewrite knows how many inputs its program has, so literals become inputs after it.
    equations = Hoisted(lambda a: True).equations(program, number)
    outputs = [number(a) if type(a) is Literal else a for a in program.outputs]
    try:
        result = rewrite(Program(program.name, program.inputs, equations, outputs))
    except TypeError:
        return None

    parts = _Parts([a.aval for a in numbers])
    equations = Hoisted(_is_unknown).equations(result, parts.part)
    outputs = [parts.part(a) if _is_unknown(a) else a for a in result.outputs]  # type: ignore[arg-type]
    inputs = [*result.inputs, *parts.arrays.values()]
    final = Program(result.name, inputs, [*parts.equations, *equations], outputs)
    # Rules that hold programs which nothing can be hoisted out of.
    if any([_is_unknown(a) for each in final.walk() for eqn in each for a in eqn.inputs]):
        return None
    return WithInputs(final, tuple(dict.fromkeys(answers)))


def _is_unknown(atom: Any) -> bool:
    return type(atom) is Literal and type(atom.value) is Unknown


class _Parts:
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
            row = self.new(Slice((at,), (at + 1,)), self.arrays[aval], ShapedArray((1,), kind))
            scalar = self.new(Reshape(()), row, ShapedArray((), kind))
            self.variables.append(self.typed(scalar, aval))

    def new(self, primitive: Any, x: Var, aval: ShapedArray) -> Var:
        out = Var(aval)
        self.equations.append(Equation(primitive, [x], [out], None))
        return out

    def typed(self, x: Var, aval: ShapedArray) -> Var:
        if x.aval is aval:
            return x
        return self.new(ConvertElementType(aval.dtype, aval.weak_type), x, aval)

    def part(self, literal: Literal) -> Var:
        """The variable for an unknown number."""
        return self.typed(self.variables[literal.value.place], literal.aval)


def packed(literals: Sequence[Literal]) -> list[Any]:
    """One array of numbers for each type among `literals`."""
    groups: dict[ShapedArray, list[Any]] = {}
    for literal in literals:
        groups.setdefault(literal.aval, []).append(literal.value)
    return [np.array(numbers, aval.dtype) for aval, numbers in groups.items()]
