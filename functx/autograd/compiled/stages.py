"""The default compiler: a captured walk is cut at its calls of Python into stages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from functx import ops
from functx.autograd.compiled.calls import WalkCall
from functx.autograd.compiled.primitives import AddToGrad, PythonCall
from functx.autograd.recorded_operations import Operation, operation_of
from functx.core.program import Atom, Equation, Literal, Program, Var, dce_equations

Pullbacks = dict[Var, tuple[int, str]]
"""The number of a pullback in its walk, and its name, for each variable of its equations."""
Slot = int | Literal
"""The number of a value of a run, or a constant."""


class Stage(NamedTuple):
    """Equations without calls of Python, as one operation; `last` are the slots that it reads last."""

    operation: Operation
    operands: Sequence[Slot]
    last: Sequence[int]


class CallStep(NamedTuple):
    """The call of Python of this number; `pending` and `captured` are those of the call, in slots."""

    number: int
    operands: Sequence[Slot]
    last: Sequence[int]
    pending: Sequence[tuple[int, Any, Sequence[Slot]]] = ()
    captured: Sequence[tuple[int, Any, Sequence[Slot]]] = ()


class Stages(NamedTuple):
    """The steps of a walk: they append their results to the values of a run, which begin with the inputs."""

    steps: Sequence[Stage | CallStep]
    outputs: Sequence[Slot]
    calls_users: bool

    @property
    def compiled(self) -> int:
        """The number of steps that are compiled."""
        return sum([type(step) is Stage for step in self.steps])


def cut_into_stages(
    program: Program, calls: Sequence[WalkCall] = (), pullbacks: Pullbacks | None = None
) -> Stages:
    """The stages of a captured walk, or of a program that a compiler function made of one.

    With `pullbacks`, each of them is a stage of its own.
    """
    cutter = _Cutter(calls)
    parts = split_at_calls(program, pullbacks or {})
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
    """Equations, or one that calls Python, in a step."""

    def __init__(self, name: str, equations: list[Equation], call: Equation | None = None):
        self.name, self.equations, self.call = name, equations, call
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
        self.steps: list[Stage | CallStep] = []

    def add_step(self, part: _Part, read: Sequence[Var], last: Sequence[Var]) -> None:
        """Adds the step of a part that reads the variables `read`, of which `last` are not read again."""
        last_slots = [self.slots[v] for v in last]
        if part.call is not None:
            self.steps.append(self.call_step(part.call, last_slots))
            self.add_slots(part.call.outputs)
            return
        before = [v for v in read if v in self.slots]
        stage = Program(part.name, before, part.equations, part.outputs)
        self.steps.append(Stage(operation_of(stage), [self.slots[v] for v in before], last_slots))
        self.add_slots(part.outputs)

    def atoms_read(self, part: _Part) -> list[Atom]:
        """The atoms from outside that a step needs, also if the walk goes on without the program."""
        if part.call is None:
            made = set(part.made)
            return [a for eqn in part.equations for a in eqn.inputs if a not in made]
        atoms = list(part.call.inputs)
        call = self.call_of(part.call)
        if call is not None:
            for _, _, more in (*call.pending, *call.captured):
                atoms += more
        return atoms

    def call_of(self, eqn: Equation) -> WalkCall | None:
        """The call of an equation, if it is known."""
        index = eqn.primitive.index  # type: ignore[attr-defined]
        return self.calls[index] if index < len(self.calls) else None

    def call_step(self, eqn: Equation, last: Sequence[int]) -> CallStep:
        call = self.call_of(eqn)
        pending, captured = ((), ()) if call is None else (call.pending, call.captured)
        return CallStep(
            eqn.primitive.index,  # type: ignore[attr-defined]
            self.slots_of(eqn.inputs),
            last,
            [(i, layout, self.slots_of(atoms)) for i, layout, atoms in pending],
            [(i, layout, self.slots_of(atoms)) for i, layout, atoms in captured],
        )

    def add_slots(self, variables: Sequence[Var]) -> None:
        """Numbers variables."""
        for v in variables:
            self.slots[v] = len(self.slots)

    def slots_of(self, atoms: Sequence[Atom]) -> list[Slot]:
        """The numbers of variables; literals are themselves."""
        return [self.slots[a] if type(a) is Var else a for a in atoms]  # type: ignore[misc]


def variables_in(atoms: Sequence[Atom]) -> list[Var]:
    """The variables among atoms."""
    return [a for a in atoms if type(a) is Var]


def split_at_calls(program: Program, pullbacks: Pullbacks) -> list[_Part]:
    """The equations between calls of Python, and the calls; also cut between `pullbacks`.

    An accumulation is none of the user's code, so it happens at the end of the part that it is in,
    which computes the sum.
    """
    parts: list[_Part] = []
    part: list[Equation] = []
    accumulations: list[_Part] = []
    current = 0, program.name

    def end_part() -> None:
        if part:
            parts.append(_Part(current[1], list(part)))
        parts.extend(accumulations)
        part.clear()
        accumulations.clear()

    for eqn in program.equations:
        if isinstance(eqn.primitive, AddToGrad):
            if len(eqn.inputs) == 2:
                part.append(Equation(ops.Add(), list(eqn.inputs), list(eqn.outputs), eqn.source))
                eqn = eqn.replace(inputs=[*eqn.inputs, *eqn.outputs], outputs=[])
            accumulations.append(_Part("", [], eqn))
            continue
        pullback = pullbacks.get(eqn.outputs[0], current) if eqn.outputs else current
        if isinstance(eqn.primitive, PythonCall) or pullback != current:
            end_part()
            current = pullback
        if isinstance(eqn.primitive, PythonCall):
            parts.append(_Part("", [], eqn))
        else:
            part.append(eqn)
    end_part()
    return parts
