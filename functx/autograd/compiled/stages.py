"""Stages: the parts of a captured walk between two calls of Python, each one operation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from functx import ops
from functx.autograd.compiled.calls import KnownGradients, WalkCall
from functx.autograd.compiled.primitives import AddToGrad, PythonCall
from functx.autograd.recorded_operations import Operation, operation_of
from functx.core.dead_code import dce_equations
from functx.core.program import Atom, Equation, Literal, Program, Var

Slot = int | Literal
"""The number of a value of a run, or a constant."""


class StageStep(NamedTuple):
    """Equations without calls of Python, as one operation; `last` are the slots that no later step reads."""

    operation: Operation
    operands: Sequence[Slot]
    last: Sequence[int]


class CallStep(NamedTuple):
    """Calls of Python: their numbers, each with the slots that it reads.

    It is one call, whose results are those of the step, or several accumulations, which have none.
    """

    calls: Sequence[tuple[int, Sequence[Slot]]]
    last: Sequence[int]


class Stages(NamedTuple):
    """The steps of a walk. A run is a list of values: the inputs, then the results of each step.

    `snapshots` are the gradients that are known at a call, by its number, with slots as their arrays.
    """

    steps: Sequence[StageStep | CallStep]
    outputs: Sequence[Slot]
    snapshots: dict[int, KnownGradients]
    calls_users: bool

    @property
    def compiled(self) -> int:
        """The number of steps that are compiled."""
        return sum([type(step) is StageStep for step in self.steps])

    def run(
        self,
        values: list[Any],
        apply: Callable[[Operation, list[Any]], Sequence[Any]],
        call: Callable[[list[tuple[int, list[Any]]]], Sequence[Any]],
    ) -> list[Any]:
        """The outputs for the inputs `values`, a list that results are added to, until their last use.

        `apply` gives the outputs of an operation. `call` gives those of a call of Python, by its number, or
        makes several accumulations.
        """
        for step in self.steps:
            outs: Sequence[Any] = ()
            if type(step) is StageStep:
                outs = apply(step.operation, read_slots(step.operands, values))
            else:
                outs = call([(n, read_slots(slots, values)) for n, slots in step.calls])  # type: ignore[union-attr]
            for n in step.last:
                values[n] = None
            values += outs
        return read_slots(self.outputs, values)


def read_slots(slots: Sequence[Slot], values: Sequence[Any]) -> list[Any]:
    """The values of a run at slots."""
    return [values[n] if type(n) is int else n for n in slots]


def cut_into_stages(program: Program, calls: Sequence[WalkCall] = ()) -> Stages:
    """The stages of a captured walk, or of a program that a compiler function made of one."""
    cutter = _Cutter(calls)
    parts = split_at_calls(program)
    last_use: dict[Var, int] = dict.fromkeys(variables_in(program.outputs), len(parts))
    reads: list[list[Var]] = []
    for i, part in reversed([*enumerate(parts)]):
        if not part.calls:
            outputs = part.outputs = [v for v in part.made if v in last_use]
            part.equations = dce_equations(part.equations, outputs)
        read = list(dict.fromkeys(variables_in(cutter.atoms_read(part))))
        reads.append(read)
        for v in read:
            last_use.setdefault(v, i)
    cutter.add_slots(program.inputs)
    for i, (part, read) in enumerate(zip(parts, reversed(reads), strict=True)):
        cutter.add_step(part, read, [v for v in read if last_use[v] == i])
    calls_users = any([call.calls_user for call in calls])
    outputs_read = cutter.slots_of(program.outputs)
    return Stages(cutter.steps, outputs_read, cutter.snapshots, calls_users)


class _Part:
    """The equations of a step: ones to compile, or `calls` of Python."""

    def __init__(self, equations: Sequence[Equation] = (), calls: Sequence[Equation] = ()):
        self.equations, self.calls = list(equations), list(calls)
        self.outputs: list[Var] = [v for eqn in self.calls for v in eqn.outputs]

    @property
    def made(self) -> list[Var]:
        """The variables that the equations define."""
        return [v for eqn in self.equations for v in eqn.outputs]


class _Cutter:
    """Makes the steps of parts, whose variables get the numbers of values of a run."""

    def __init__(self, calls: Sequence[WalkCall]):
        self.calls = calls
        self.slots: dict[Var, int] = {}
        self.steps: list[StageStep | CallStep] = []
        self.snapshots: dict[int, KnownGradients] = {}

    def add_step(self, part: _Part, read: Sequence[Var], last: Sequence[Var]) -> None:
        """Adds the step of a part that reads the variables `read`, of which `last` are not read again."""
        last_slots = [self.slots[v] for v in last]
        if part.calls:
            pairs = [(number_of(eqn), self.slots_of(eqn.inputs)) for eqn in part.calls]
            self.steps.append(CallStep(pairs, last_slots))
            for number, _ in pairs:
                if (known := self.known_at(number)) is not None:
                    self.snapshots[number] = known.replaced(self.slots_of)
        else:
            before = [v for v in read if v in self.slots]
            stage = Program("CompiledAutograd", before, part.equations, part.outputs)
            operands = [self.slots[v] for v in before]
            self.steps.append(StageStep(operation_of(stage), operands, last_slots))
        self.add_slots(part.outputs)

    def atoms_read(self, part: _Part) -> list[Atom]:
        """The atoms from outside that a step needs, also if the walk goes on without the program."""
        made = set(part.made)
        atoms = [a for eqn in (*part.equations, *part.calls) for a in eqn.inputs if a not in made]
        for eqn in part.calls:
            if (known := self.known_at(number_of(eqn))) is not None:
                atoms += known.arrays
        return atoms

    def known_at(self, number: int) -> KnownGradients | None:
        """The gradients that are known at a call of the user's code; None if the call is not known."""
        return self.calls[number].known if number < len(self.calls) else None

    def add_slots(self, variables: Sequence[Var]) -> None:
        """Numbers variables."""
        for v in variables:
            self.slots[v] = len(self.slots)

    def slots_of(self, atoms: Sequence[Atom]) -> list[Slot]:
        """The numbers of variables; literals are themselves."""
        return [self.slots[a] if type(a) is Var else a for a in atoms]  # type: ignore[misc]


def is_call(eqn: Equation) -> bool:
    """Whether an equation calls Python."""
    return isinstance(eqn.primitive, PythonCall)


def number_of(eqn: Equation) -> int:
    """The number of the call that an equation makes."""
    return eqn.primitive.index  # type: ignore[attr-defined, no-any-return]


def variables_in(atoms: Sequence[Atom]) -> list[Var]:
    """The variables among atoms."""
    return [a for a in atoms if type(a) is Var]


def split_at_calls(program: Program) -> list[_Part]:
    """The equations between calls of Python, and the calls.

    An accumulation calls no code of the user, so it waits until the part that it is in has run, which
    computes the sum.
    """
    parts: list[_Part] = []
    part: list[Equation] = []
    accumulations: list[Equation] = []

    def end_part() -> None:
        if part:
            parts.append(_Part(part))
        if accumulations:
            parts.append(_Part(calls=accumulations))
        part.clear()
        accumulations.clear()

    for eqn in program.equations:
        if isinstance(eqn.primitive, AddToGrad):
            if len(eqn.inputs) == 2:
                total = Equation.of(ops.Add(), eqn.inputs, eqn.source)
                part.append(total)
                eqn = eqn.replace(inputs=[*eqn.inputs, *total.outputs])
            accumulations.append(eqn)
        elif is_call(eqn):
            end_part()
            parts.append(_Part(calls=[eqn]))
        else:
            part.append(eqn)
    end_part()
    return parts
