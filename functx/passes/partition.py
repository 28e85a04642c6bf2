"""`Partition`: a joint program as a forward and a backward program, for given values to save."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from functx.core.dead_code import dce_equations
from functx.core.effects import Effect
from functx.core.errors import ProgramError
from functx.core.masks import inexact_mask
from functx.core.printing import variable_names
from functx.core.program import Atom, Equation, Program, Var
from functx.core.rewriting import T
from functx.ops.views import Copy
from functx.passes.memory_planning import JointDataflow, JointProgram, values_read, write_targets
from functx.transforms.dce import MUST_STAY


@dataclass(frozen=True)
class Partition:
    """A forward and a backward program, and the groups of their inputs and outputs.

    `forward` takes the primals, of which it supplies the captured values itself, and returns the new
    values of `num_mutated` inputs, the results of the function, `num_bases` extra results and the
    saved values. `backward` takes the saved values, then
    the tangents, and returns the gradients; `gradients` has an entry for each primal, the number of
    its gradient, or None. With effect tokens, those of `forward` are its first inputs and outputs,
    those of `backward` its last ones. As a sequence it is the pair of the programs.
    """

    forward: Program
    backward: Program
    num_mutated: int = 0
    num_bases: int = 0
    num_saved: int = 0
    gradients: tuple[int | None, ...] = ()
    num_forward_tokens: int = 0
    num_backward_tokens: int = 0

    def __iter__(self) -> Iterator[Program]:
        return iter((self.forward, self.backward))

    def __getitem__(self, index: int) -> Program:
        return (self.forward, self.backward)[index]

    def __len__(self) -> int:
        return 2

    def gradients_of_primals(self, gradients: Sequence[T]) -> list[T | None]:
        """The gradient in each primal, None without one, of the results of the backward program."""
        return [None if number is None else gradients[number] for number in self.gradients]

    @property
    def mutated(self) -> list[Atom]:
        """The new values of inputs that the forward program returns."""
        start = self.num_forward_tokens
        return self.forward.outputs[start : start + self.num_mutated]

    @property
    def outputs(self) -> list[Atom]:
        """The results of the function that the forward program returns."""
        end = len(self.forward.outputs) - self.num_saved - self.num_bases
        return self.forward.outputs[self.num_forward_tokens + self.num_mutated : end]

    @property
    def bases(self) -> list[Atom]:
        """The bases of aliased results that the forward program returns."""
        end = len(self.forward.outputs) - self.num_saved
        return self.forward.outputs[end - self.num_bases : end]

    @property
    def saved(self) -> list[Atom]:
        """The values that the forward program returns for the backward program."""
        return self.forward.outputs[len(self.forward.outputs) - self.num_saved :]

    @property
    def saved_inputs(self) -> list[Var]:
        """The inputs of the backward program for the saved values."""
        return self.backward.inputs[: self.num_saved]

    @property
    def tangents(self) -> list[Var]:
        """The inputs of the backward program for the cotangents of the results."""
        inputs = self.backward.inputs
        return inputs[self.num_saved : len(inputs) - self.num_backward_tokens]


def default_partition(joint: JointProgram) -> Partition:
    """The partition that recomputes only constants: it saves the forward values that the gradients use.

    Sizes are part of a program, and not saved.
    """
    flow = JointDataflow(joint)
    used: dict[Atom, None] = {}
    for eqn in required_backward_equations(flow):
        used.update(dict.fromkeys(eqn.inputs))
    used.update(dict.fromkeys(flow.gradients))
    saved = flow.required_forward - flow.recomputed_constants
    return partition_at(joint, [v for v in variables_in_order(joint) if v in used and v in saved])


def required_backward_equations(flow: JointDataflow) -> list[Equation]:
    """The equations that the forward program does not need."""
    pure = [eqn for eqn in flow.tangent_free if not eqn.primitive.effects]
    return [*[e for e in pure if flow.required_forward.isdisjoint(e.outputs)], *flow.backward]


def variables_in_order(joint: JointProgram) -> Iterable[Var]:
    """The variables of a joint program in the order of their definitions."""
    yield from joint.program.inputs[: joint.num_primals]
    for eqn in joint.program.equations:
        yield from eqn.outputs


def partition_at(joint: JointProgram, saved: Sequence[Var]) -> Partition:
    """The partition that saves those of `saved` that the backward program uses.

    Raises ProgramError, which names the variable, if the gradients need a value that is neither
    saved nor can be computed from saved ones.
    """
    program, flow = joint.program, JointDataflow(joint)
    equations = BackwardExtraction(joint, saved).equations(flow.gradients)
    used = {*flow.gradients, *[a for eqn in equations for a in values_read(eqn)]}
    saved = [v for v in saved if v in used]
    backward_equations = {*flow.backward}
    forward_equations = [eqn for eqn in program.equations if eqn not in backward_equations]
    targets = write_targets(equations)
    # Of an input that is written to, the value from before is saved.
    written = {*targets, *write_targets(forward_equations)}
    copies = {v: Equation.of(Copy(), [v]) for v in saved if v in written}
    returned = [copies[v].outputs[0] if v in copies else v for v in saved]
    outputs = [*flow.outputs, *returned, *targets]
    forward = Program(
        program.name,
        program.inputs[: joint.num_primals],
        dce_equations([*copies.values(), *forward_equations], outputs),
        outputs,
        in_names=program.in_names,
        captured=joint.captured,
    )
    name = f"pullback_{program.name}"
    backward = build_backward_program(name, joint, saved, targets, equations)
    gradients = joint.gradients
    if gradients is None:
        gradients = all_inexact_gradients(joint)
    return Partition(
        forward, backward, joint.num_mutated, joint.num_bases, len(saved) + len(targets), gradients
    )


def all_inexact_gradients(joint: JointProgram) -> tuple[int | None, ...]:
    """The number of the gradient of each primal, if all inexact primals have one and no others."""
    primals = inexact_mask(joint.program.in_avals[: joint.num_primals])
    if sum(primals) != len(joint.program.outputs) - joint.num_outputs:
        return ()
    numbers = count()
    return tuple([next(numbers) if on else None for on in primals])


class BackwardExtraction:
    """The equations of a backward program, each recomputed just before its first use."""

    def __init__(self, joint: JointProgram, saved: Iterable[Var]):
        self.joint = joint
        self.saved: set[Atom] = {*saved}
        self.available = self.saved | {*joint.tangents}
        self.producers = joint.program.def_use.producers

    def equations(self, gradients: Iterable[Atom]) -> list[Equation]:
        """The equations that compute `gradients` from tangents and saved values."""
        flow = JointDataflow(self.joint)
        done: dict[Equation, None] = {}
        for eqn in live_backward_equations(flow, gradients):
            self.add(values_read(eqn), done)
            done[eqn] = None
        self.add(gradients, done)
        return list(done)

    def add(self, atoms: Iterable[Atom], done: dict[Equation, None]) -> None:
        """Adds to `done` the equations that compute `atoms` from available variables."""
        pending = [a for a in atoms if type(a) is Var and a not in self.available]
        while pending:
            v = pending[-1]
            eqn = self.producers.get(v)
            if eqn not in done:
                if eqn is None or eqn.primitive.effects or eqn.part in MUST_STAY:
                    raise self.error(v)
                missing = [
                    a
                    for a in eqn.inputs
                    if type(a) is Var
                    and a not in self.available
                    and self.producers.get(a) not in done
                ]
                if missing:
                    pending += missing
                    continue
                done[eqn] = None
            pending.pop()

    def error(self, v: Var) -> ProgramError:
        program = self.joint.program
        eqn = self.producers.get(v)
        producer = "an input" if eqn is None else eqn.primitive.name
        names = variable_names(program)
        return ProgramError(
            f"partition: the backward program must be computable from what is saved; got "
            f"`{names[v]}`: {v.aval!r}, made by {producer}, which is neither",
            f"saved: {', '.join([names[a] for a in names if a in self.saved]) or 'nothing'}",
            source=None if eqn is None else eqn.source,
        )


def live_backward_equations(flow: JointDataflow, gradients: Iterable[Atom]) -> list[Equation]:
    """The equations with tangents that `gradients` need, and those with effects."""
    return dce_equations(flow.backward, [a for a in gradients if type(a) is Var])


def build_backward_program(
    name: str,
    joint: JointProgram,
    saved: Sequence[Var],
    targets: Sequence[Var],
    equations: Sequence[Equation],
) -> Program:
    """The backward program of saved values, `targets` of its writes and tangents, with own variables."""
    copy_of: dict[Atom, Any] = {v: Var(v.aval) for v in (*saved, *joint.tangents)}
    target_of = {v: Var(v.aval) for v in targets}
    copies = []
    for eqn in equations:
        inputs = [copy_of.get(a, a) for a in eqn.inputs]
        if Effect.WRITE in eqn.primitive.effects:
            inputs[0] = target_of[eqn.inputs[0]]  # type: ignore[index]
        outputs = [copy_of.setdefault(v, Var(v.aval)) for v in eqn.outputs]
        copies.append(eqn.replace(inputs=inputs, outputs=outputs))
    outputs = [copy_of.get(a, a) for a in joint.program.outputs[joint.num_outputs :]]
    inputs = [
        *[copy_of[v] for v in saved],
        *target_of.values(),
        *[copy_of[v] for v in joint.tangents],
    ]
    originals = [*saved, *targets, *joint.tangents]

    def names() -> list[str]:
        known = variable_names(joint.program)
        return [known[v] for v in originals]

    return Program(name, inputs, dce_equations(copies, outputs), outputs, in_names=names)
