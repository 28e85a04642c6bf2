"""Joint programs cut in two: a forward program, and a backward one with what the first saves."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from functx.core.errors import ProgramError
from functx.core.printing import variable_names
from functx.core.program import Equation, Program, Var, dce_equations
from functx.transforms.planning.bans import MinCutConfig
from functx.transforms.planning.joint import JointDataflow, JointProgram
from functx.transforms.planning.saving import values_to_save


class Partition(NamedTuple):
    """A joint program in two.

    `forward` takes the primals, and gives the outputs, then what is saved; `backward` takes
    the tangents, then what is saved, and gives the gradients.
    """

    forward: Program
    backward: Program


def default_partition(joint: JointProgram) -> Partition:
    """The partition that computes nothing again: all is saved that the outputs need anyway.

    What the backward program uses of it, that is; sizes are part of a program, and not saved.
    """
    flow = JointDataflow(joint)
    needed: dict[Any, None] = {}
    for eqn in required_backward_equations(flow):
        needed.update(dict.fromkeys(eqn.inputs))
    needed.update(dict.fromkeys(flow.gradients))
    return partition_at(
        joint, [v for v in variables_in_order(joint) if v in needed and v in flow.required_forward]
    )


def required_backward_equations(flow: JointDataflow) -> list[Equation]:
    """The equations that are none of the forward computation's."""
    pure = [eqn for eqn in flow.tangent_free if not eqn.primitive.effects]
    return [*[e for e in pure if flow.required_forward.isdisjoint(e.outputs)], *flow.backward]


def min_cut_partition(joint: JointProgram, config: MinCutConfig) -> Partition:
    """The partition that keeps the cheapest values, and computes again what follows from them.

    Without gradients there is nothing to choose, and it is the default one.
    """
    flow = JointDataflow(joint)
    if not flow.gradients or not flow.backward:
        return default_partition(joint)
    return partition_at(joint, values_to_save(joint, config))


def variables_in_order(joint: JointProgram) -> Iterable[Var]:
    """The variables of a joint program in the order in which they are defined."""
    yield from joint.program.inputs[: joint.primals]
    for eqn in joint.program.equations:
        yield from eqn.outputs


def partition_at(joint: JointProgram, saved: Sequence[Var]) -> Partition:
    """The partition in which `saved` is what is kept, as far as the backward program uses it.

    Raises ProgramError, which names the variable, where the gradients need what can be neither
    computed from these nor is among them.
    """
    program, flow = joint.program, JointDataflow(joint)
    equations = BackwardExtraction(joint, saved).equations(flow.gradients)
    read = {*flow.gradients, *[a for eqn in equations for a in eqn.inputs]}
    saved = [v for v in saved if v in read]
    outputs = [*flow.outputs, *saved]
    late = {*flow.backward}
    early = [eqn for eqn in program.equations if eqn not in late]
    forward = Program(
        program.name,
        program.inputs[: joint.primals],
        dce_equations(early, outputs),
        outputs,
        in_names=program.in_names,
    )
    return Partition(
        forward, build_backward_program(f"pullback_{program.name}", joint, saved, equations)
    )


class BackwardExtraction:
    """The equations of a backward program, each done again just before it is first needed."""

    def __init__(self, joint: JointProgram, saved: Iterable[Var]):
        self.joint = joint
        self.saved: set[Any] = {*saved}
        self.available = self.saved | {*joint.tangents}
        self.producers = {v: eqn for eqn in joint.program.equations for v in eqn.outputs}

    def equations(self, gradients: Iterable[Any]) -> list[Equation]:
        """What computes `gradients`: what needs tangents in its own order, the rest as late as it can."""
        flow = JointDataflow(self.joint)
        done: dict[Equation, None] = {}
        for eqn in live_backward_equations(flow, gradients):
            self.add(eqn.inputs, done)
            done[eqn] = None
        self.add(gradients, done)
        return list(done)

    def add(self, atoms: Iterable[Any], done: dict[Equation, None]) -> None:
        """Add to `done` what makes `atoms` of what is given."""
        pending = [a for a in atoms if type(a) is Var and a not in self.available]
        while pending:
            v = pending[-1]
            eqn = self.producers.get(v)
            if eqn is None or eqn.primitive.effects:
                raise self.error(v)
            if eqn not in done:
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
        maker = "an input" if eqn is None else eqn.primitive.name
        names = variable_names(program)
        return ProgramError(
            f"partition: the backward program must be computable from what is saved; got "
            f"`{names[v]}`: {v.aval!r}, made by {maker}, which is neither",
            f"saved: {', '.join([names[a] for a in names if a in self.saved]) or 'nothing'}",
            source=None if eqn is None else eqn.source,
        )


def live_backward_equations(flow: JointDataflow, gradients: Iterable[Any]) -> list[Equation]:
    """The equations with tangents that `gradients` need, and those with effects."""
    return dce_equations(flow.backward, [a for a in gradients if type(a) is Var])


def build_backward_program(
    name: str, joint: JointProgram, saved: Sequence[Var], equations: Sequence[Equation]
) -> Program:
    """The backward program, with variables of its own for what the forward one has too."""
    own: dict[Any, Any] = {v: Var(v.aval) for v in (*joint.tangents, *saved)}
    copies = []
    for eqn in equations:
        inputs = [own.get(a, a) for a in eqn.inputs]
        outputs = [own.setdefault(v, Var(v.aval)) for v in eqn.outputs]
        copies.append(eqn.replace(inputs=inputs, outputs=outputs))
    outputs = [own.get(a, a) for a in joint.program.outputs[joint.outputs :]]
    inputs = [own[v] for v in (*joint.tangents, *saved)]
    return Program(name, inputs, dce_equations(copies, outputs), outputs)
