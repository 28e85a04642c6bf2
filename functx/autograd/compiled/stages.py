"""Stages: the parts of a captured walk between two calls of Python, each one operation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from functx import ops
from functx.autograd.compiled.calls import WalkCall
from functx.autograd.compiled.primitives import AddToGrad, PythonCall
from functx.autograd.recorded_operations import Operation, operation_of
from functx.core.program import Atom, Equation, Literal, Program, Var, dce_equations

Slot = int | Literal
"""The number of a value of a run, or a constant."""


class StageStep(NamedTuple):
    """Equations without calls of Python, as one operation; `last` are the slots that no later step reads."""

    operation: Operation
    operands: Sequence[Slot]
    last: Sequence[int]


class CallStep(NamedTuple):
    """A call of Python. `pending` and `wanted` are those of the call, in slots."""

    number: int
    operands: Sequence[Slot]
    last: Sequence[int]
    pending: Sequence[tuple[int, Any, Sequence[Slot]]] = ()
    wanted: Sequence[tuple[int, Any, Sequence[Slot]]] = ()


class Accumulations(NamedTuple):
    """Calls that add to `.grad` of leaves: their numbers, and the slots that each one reads."""

    numbers: Sequence[int]
    operands: Sequence[Sequence[Slot]]
    last: Sequence[int]


class Stages(NamedTuple):
    """The steps of a walk. A run is a list of values: the inputs, then the results of each step."""

    steps: Sequence[StageStep | CallStep | Accumulations]
    outputs: Sequence[Slot]
    calls_users: bool

    @property
    def compiled(self) -> int:
        """The number of steps that are compiled."""
        return sum([type(step) is StageStep for step in self.steps])


def cut_into_stages(program: Program, calls: Sequence[WalkCall] = ()) -> Stages:
    """The stages of a captured walk, or of a program that a compiler function made of one."""
    cutter = _Cutter(calls)
    parts = split_at_calls(program)
    last_use: dict[Var, int] = dict.fromkeys(variables_in(program.outputs), len(parts))
    reads: list[list[Var]] = []
    for i, part in reversed([*enumerate(parts)]):
        if part.call is None:
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
    return Stages(cutter.steps, cutter.slots_of(program.outputs), calls_users)


class _Part:
    """The equations of a step: ones to compile, accumulations, or one that calls Python."""

    def __init__(
        self,
        equations: Sequence[Equation] = (),
        accumulations: Sequence[Equation] = (),
        call: Equation | None = None,
    ):
        self.equations = list(equations)
        self.accumulations, self.call = list(accumulations), call
        self.outputs: list[Var] = []

    @property
    def made(self) -> list[Var]:
        """The variables that the equations define."""
        return [v for eqn in self.equations for v in eqn.outputs]


class _Cutter:
    """Makes the steps of parts, whose variables get the numbers of values of a run."""

    def __init__(self, calls: Sequence[WalkCall]):
        self.calls = calls
        self.slots: dict[Var, int] = {}
        self.steps: list[StageStep | CallStep | Accumulations] = []

    def add_step(self, part: _Part, read: Sequence[Var], last: Sequence[Var]) -> None:
        """Adds the step of a part that reads the variables `read`, of which `last` are not read again."""
        last_slots = [self.slots[v] for v in last]
        if part.accumulations:
            operands = [self.slots_of(eqn.inputs) for eqn in part.accumulations]
            numbers = [number_of(eqn) for eqn in part.accumulations]
            self.steps.append(Accumulations(numbers, operands, last_slots))
            return
        if part.call is not None:
            self.steps.append(self.call_step(part.call, last_slots))
            self.add_slots(part.call.outputs)
            return
        before = [v for v in read if v in self.slots]
        stage = Program("CompiledAutograd", before, part.equations, part.outputs)
        self.steps.append(
            StageStep(operation_of(stage), [self.slots[v] for v in before], last_slots)
        )
        self.add_slots(part.outputs)

    def atoms_read(self, part: _Part) -> list[Atom]:
        """The atoms from outside that a step needs, also if the walk goes on without the program."""
        if part.call is None:
            made = set(part.made)
            equations = [*part.equations, *part.accumulations]
            return [a for eqn in equations for a in eqn.inputs if a not in made]
        atoms = list(part.call.inputs)
        call = self.call_of(part.call)
        if call is not None:
            for _, _, more in (*call.pending, *call.wanted):
                atoms += more
        return atoms

    def call_of(self, eqn: Equation) -> WalkCall | None:
        """The call of an equation, if it is known."""
        number = number_of(eqn)
        return self.calls[number] if number < len(self.calls) else None

    def call_step(self, eqn: Equation, last: Sequence[int]) -> CallStep:
        call = self.call_of(eqn)
        pending, wanted = ((), ()) if call is None else (call.pending, call.wanted)
        return CallStep(
            number_of(eqn),
            self.slots_of(eqn.inputs),
            last,
            [(i, layout, self.slots_of(atoms)) for i, layout, atoms in pending],
            [(i, layout, self.slots_of(atoms)) for i, layout, atoms in wanted],
        )

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
            parts.append(_Part(accumulations=accumulations))
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
            parts.append(_Part(call=eqn))
        else:
            part.append(eqn)
    end_part()
    return parts
