"""Joint programs: the outputs of a function and, from cotangents of them, its gradients."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from functx.core.program import Atom, Equation, Program, Var, dce_equations
from functx.core.program_editing import replace_program_fields
from functx.transforms.dce import dependents_of


class JointProgram(NamedTuple):
    """A program that computes outputs from primals, and gradients from these and tangents.

    Of its inputs the first `primals` are primals, and the others tangents, as the cotangents of
    outputs are called here. The first `outputs` of its outputs are those of the function. Of its
    variables, those in `free` cost nothing to save, since they are kept anyway; those in
    `recompute` are not saved, but computed again.
    """

    program: Program
    primals: int
    outputs: int
    free_to_save: frozenset[Any] = frozenset()
    recompute: frozenset[Any] = frozenset()

    @property
    def tangents(self) -> list[Var]:
        """The inputs that only the backward computation gets."""
        return self.program.inputs[self.primals :]


class JointDataflow:
    """Which equations of a joint program come before the backward computation, and who uses what."""

    def __init__(self, joint: JointProgram):
        self.joint, program = joint, joint.program
        self.outputs = program.outputs[: joint.outputs]
        self.gradients = program.outputs[joint.outputs :]
        self.tangent_dependent = dependents_of(joint.tangents, program.equations)
        self.tangent_free = [
            e for e in program.equations if self.tangent_dependent.isdisjoint(e.inputs)
        ]
        self.producers = {v: eqn for eqn in self.tangent_free for v in eqn.outputs}

    @cached_property
    def required_forward(self) -> set[Any]:
        """The variables that equations for the outputs of the function make, or its primals."""
        made = [v for eqn in backward_slice(self.outputs, self.tangent_free) for v in eqn.outputs]
        return {*self.joint.program.inputs[: self.joint.primals], *made}

    @cached_property
    def backward(self) -> list[Equation]:
        """The equations that need tangents."""
        return [
            e
            for e in self.joint.program.equations
            if not self.tangent_dependent.isdisjoint(e.inputs)
        ]

    @cached_property
    def backward_inputs(self) -> dict[Any, None]:
        """The variables that the backward computation is given, by saving or by doing again."""
        read = [a for eqn in self.backward for a in eqn.inputs]
        return dict.fromkeys(
            [
                a
                for a in (*read, *self.gradients)
                if type(a) is Var and a not in self.tangent_dependent
            ]
        )

    @cached_property
    def recompute_candidates(self) -> list[Equation]:
        """The equations that what the backward computation is given needs."""
        return backward_slice(self.backward_inputs, self.tangent_free)

    @cached_property
    def users(self) -> dict[Any, list[Equation]]:
        """The equations that use each variable."""
        users: dict[Any, list[Equation]] = {}
        for eqn in self.joint.program.equations:
            for atom in dict.fromkeys(eqn.inputs):
                if type(atom) is Var:
                    users.setdefault(atom, []).append(eqn)
        return users


def backward_slice(outputs: Iterable[Any], equations: Sequence[Equation]) -> list[Equation]:
    """The equations that `outputs` need, each as it is."""
    needed: set[Any] = {*outputs}
    kept = []
    for eqn in reversed(equations):
        if not needed.isdisjoint(eqn.outputs):
            kept.append(eqn)
            needed.update(eqn.inputs)
    kept.reverse()
    return kept


def join_split(values: Program, count: int, rests: Sequence[Program]) -> JointProgram:
    """A split as one program: `values`, whose first `count` outputs are those of the function.

    Each of `rests` takes cotangents, then what else `values` gives. Equations that compute the
    same in the same way are one.
    """
    residuals = values.outputs[count:]
    inputs, equations, outputs = list(values.inputs), list(values.equations), values.outputs[:count]
    for rest in rests:
        lead = len(rest.inputs) - len(residuals)
        inputs += rest.inputs[:lead]
        given: dict[Any, Atom] = dict(zip(rest.inputs[lead:], residuals, strict=True))
        equations += [e.replace(inputs=[given.get(a, a) for a in e.inputs]) for e in rest]
        outputs = [*outputs, *[given.get(a, a) for a in rest.outputs]]
    whole = eliminate_common_subexpressions(
        Program(values.name, inputs, equations, outputs, in_names=values.in_names)
    )
    return JointProgram(whole, len(values.inputs), count)


def eliminate_common_subexpressions(program: Program) -> Program:
    """`program` with one equation in place of several that compute the same of the same."""
    same: dict[Any, Atom] = {}
    first: dict[Any, Equation] = {}
    equations = []
    for eqn in program.equations:
        inputs = [same.get(a, a) for a in eqn.inputs]
        key = eqn.primitive, *inputs
        known = None if eqn.primitive.effects else first.setdefault(key, eqn)
        if known is None or known is eqn:
            equations.append(eqn.replace(inputs=inputs))
        else:
            same.update(zip(eqn.outputs, known.outputs, strict=True))
    outputs = [same.get(a, a) for a in program.outputs]
    equations = dce_equations(equations, outputs)
    return Program(program.name, program.inputs, equations, outputs, in_names=program.in_names)


def inline_checkpoints(joint: JointProgram) -> JointProgram:
    """`joint` with the equations of checkpoints in their place, and what those do again marked.

    What a region is given stays unmarked, so that between two regions their boundary is saved.
    """
    if all(eqn.primitive.name != "checkpoint" for eqn in joint.program):
        return joint
    regions = CheckpointInliner()
    for eqn in joint.program:
        regions.add(eqn, again=False)
    outputs = [regions.read(a) for a in joint.program.outputs]
    program = replace_program_fields(
        joint.program, equations=dce_equations(regions.equations, outputs), outputs=outputs
    )
    return joint._replace(
        program=program, recompute=frozenset(regions.again - regions.region_inputs)
    )


class CheckpointInliner:
    """The equations of a program with checkpoints, each that is done again once, and marked."""

    def __init__(self) -> None:
        self.equations: list[Equation] = []
        self.first: dict[Any, Equation] = {}
        self.aliases: dict[Any, Atom] = {}
        self.again: set[Any] = set()
        self.region_inputs: set[Any] = set()

    def read(self, atom: Any) -> Atom:
        """What stands for `atom`."""
        return self.aliases.get(atom, atom)

    def add(self, eqn: Equation, again: bool) -> None:
        """Take `eqn`, which repeats an earlier one if `again`, among the equations."""
        inputs = [self.read(a) for a in eqn.inputs]
        if eqn.primitive.name == "checkpoint":
            self.inline_checkpoint(eqn, inputs)
            return
        key = eqn.primitive, *inputs
        known = None if eqn.primitive.effects else self.first.get(key)
        if known is not None:
            self.aliases.update(zip(eqn.outputs, known.outputs, strict=True))
            self.again.update(known.outputs if again else ())
            return
        self.equations.append(eqn.replace(inputs=inputs))
        self.first[key] = self.equations[-1]

    def inline_checkpoint(self, eqn: Equation, inputs: list[Atom]) -> None:
        """Take the equations of a checkpoint in its place."""
        region: Any = eqn.primitive
        if region.differentiated:
            self.region_inputs.update(inputs)
        program: Program = region.program
        own: dict[Any, Atom] = dict(zip(program.inputs, inputs, strict=True))
        for inner in program:
            outputs = [Var(v.aval) for v in inner.outputs]
            copy = inner.replace(inputs=[own.get(a, a) for a in inner.inputs], outputs=outputs)
            own.update(zip(inner.outputs, outputs, strict=True))
            self.add(copy, region.differentiated)
        results = [self.read(own.get(a, a)) for a in program.outputs]
        self.aliases.update(zip(eqn.outputs, results, strict=True))
