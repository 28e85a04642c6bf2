"""Calls that get and give each value once.

XLA on CPUs lets a result take the memory of an operand that is read for the last time, and does not
see where two operands, or two results, of a call that it does not inline are one value: it writes
over what it has yet to read.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from functx.core.editing import replace_program_fields
from functx.core.primitive import Primitive
from functx.core.program import Atom, Equation, Literal, Program
from functx.core.records import Rewrite
from functx.core.rewriting import cached_rewrite
from functx.transforms.call import Call
from functx.transforms.simplify.walk import simplify_equations


class DeduplicateCalls(Rewrite[Program]):
    """The rewrite to a program whose calls kept apart get and give no value twice."""

    def __call__(self, program: Program) -> Program:
        if program.writes or not any([is_noinline(e.primitive) for e in program.equations]):
            return program
        program = simplify_equations(program)
        same: dict[Any, Atom] = {}
        equations = []
        for eqn in program.equations:
            if any([atom in same for atom in eqn.inputs]):
                eqn = eqn.replace(inputs=[same.get(a, a) for a in eqn.inputs])
            if is_noinline(eqn.primitive):
                equations += deduplicate_call(eqn, same)
            else:
                equations.append(eqn)
        outputs = [same.get(a, a) for a in program.outputs]
        return replace_program_fields(program, equations=equations, outputs=outputs)


def is_noinline(primitive: Primitive) -> bool:
    """Whether XLA does not inline the operation."""
    return isinstance(primitive, Call) and primitive.noinline


def deduplicate_call(eqn: Equation, same: dict[Any, Atom]) -> list[Equation]:
    """The equation for what a call has to give; `same` learns what the rest of it is."""
    primitive: Any = eqn.primitive
    first: dict[Atom, int] = {}
    places = tuple([first.setdefault(atom, i) for i, atom in enumerate(eqn.inputs)])
    program, results = cached_rewrite(DeduplicateProgram(places), primitive.program)
    for v, result in zip(eqn.outputs, results, strict=True):
        if type(result) is int:
            same[v] = eqn.inputs[result]
        elif type(result) is Literal:
            same[v] = result
        elif eqn.outputs[result.position] is not v:
            same[v] = eqn.outputs[result.position]
    outputs = [v for v in eqn.outputs if v not in same]
    if not outputs and not primitive.effects:
        return []
    inputs = [atom for i, atom in enumerate(eqn.inputs) if places[i] == i]
    return [eqn.replace(primitive=primitive.with_program(program), inputs=inputs, outputs=outputs)]


class OutputOf(NamedTuple):
    """The output at a position of what was called, the first of those that are equal."""

    position: int


class DeduplicatedProgram(NamedTuple):
    """A program that gives each value once, and what each output of the one before it is.

    That is an `OutputOf`, the number of an input, or a literal.
    """

    program: Program
    results: list[Any]


class DeduplicateProgram(Rewrite[DeduplicatedProgram]):
    """The rewrite to a program that is given once what it had at several places, as a `DeduplicatedProgram`.

    `places` holds for each input the first with the same value.
    """

    first_positions: tuple[int, ...]

    def __call__(self, program: Program) -> DeduplicatedProgram:
        program = cached_rewrite(DeduplicateCalls(), program)
        inputs = program.inputs
        names: dict[Any, Atom] = {
            v: inputs[at] for v, at in zip(inputs, self.first_positions, strict=True)
        }
        equations = [
            eqn.replace(inputs=[names.get(a, a) for a in eqn.inputs]) for eqn in program.equations
        ]
        outputs = [names.get(a, a) for a in program.outputs]
        given: dict[Any, Any] = {v: i for i, v in enumerate(inputs) if self.first_positions[i] == i}
        inner = simplify_equations(Program(program.name, [*given], equations, outputs))
        results: list[Any] = []
        made: list[Atom] = []
        for i, atom in enumerate(inner.outputs):
            if type(atom) is Literal:
                results.append(atom)
                continue
            if atom not in given:
                given[atom] = OutputOf(i)
                made.append(atom)
            results.append(given[atom])
        return DeduplicatedProgram(replace_program_fields(inner, outputs=made), results)
