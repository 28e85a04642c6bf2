"""Joint programs: the outputs of a function and, from their cotangents, its gradients."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from functx.core.program import Atom, Equation, Program, Var
from functx.transforms.dce import (
    UniqueEquations,
    dependents_of,
    eliminate_common_subexpressions,
)


class JointProgram(NamedTuple):
    """A program that computes outputs from primals, and gradients from primals and tangents.

    The first `primals` inputs are the primals; the others are the tangents, which here means the
    cotangents of outputs. The first `outputs` outputs are those of the function. Variables in
    `free_to_save` cost nothing to save. Variables in `recompute` are recomputed, not saved.
    """

    program: Program
    primals: int
    outputs: int
    free_to_save: frozenset[Any] = frozenset()
    recompute: frozenset[Any] = frozenset()

    @property
    def tangents(self) -> list[Var]:
        """The inputs that only the backward computation takes."""
        return self.program.inputs[self.primals :]


class JointDataflow:
    """The forward and backward equations of a joint program, and the users of variables."""

    def __init__(self, joint: JointProgram):
        self.joint, program = joint, joint.program
        self.outputs = program.outputs[: joint.outputs]
        self.gradients = program.outputs[joint.outputs :]
        self.tangent_dependent = dependents_of(joint.tangents, program.equations)
        self.tangent_free = [
            e for e in program.equations if self.tangent_dependent.isdisjoint(e.inputs)
        ]
        self.producers, self.users = program.def_use.producers, program.def_use.users

    @cached_property
    def required_forward(self) -> set[Atom]:
        """The primals, and the outputs of the equations that the function's outputs need."""
        computed = [
            v for eqn in backward_slice(self.outputs, self.tangent_free) for v in eqn.outputs
        ]
        return {*self.joint.program.inputs[: self.joint.primals], *computed}

    @cached_property
    def backward(self) -> list[Equation]:
        """The equations that depend on tangents."""
        return [
            e
            for e in self.joint.program.equations
            if not self.tangent_dependent.isdisjoint(e.inputs)
        ]

    @cached_property
    def backward_inputs(self) -> dict[Var, None]:
        """The variables independent of tangents that the backward computation uses."""
        operands = [a for eqn in self.backward for a in eqn.inputs]
        return dict.fromkeys(
            [
                a
                for a in (*operands, *self.gradients)
                if type(a) is Var and a not in self.tangent_dependent
            ]
        )

    @cached_property
    def recompute_candidates(self) -> list[Equation]:
        """The equations that `backward_inputs` need."""
        return backward_slice(self.backward_inputs, self.tangent_free)


def backward_slice(
    outputs: Iterable[Atom], equations: Sequence[Equation], effects: bool = False
) -> list[Equation]:
    """The equations that `outputs` need, as the same objects; with `effects`, also those with any."""
    needed: set[Atom] = {*outputs}
    selected = []
    for eqn in reversed(equations):
        if not needed.isdisjoint(eqn.outputs) or (effects and eqn.primitive.effects):
            selected.append(eqn)
            needed.update(eqn.inputs)
    selected.reverse()
    return selected


def join_split(values: Program, count: int, backward_programs: Sequence[Program]) -> JointProgram:
    """The programs of a split as one joint program.

    The first `count` outputs of the forward program `values` are those of the function, the others
    residuals. Each backward program takes cotangents, then the residuals. Common subexpressions
    are eliminated.
    """
    residuals = values.outputs[count:]
    inputs, equations, outputs = list(values.inputs), list(values.equations), values.outputs[:count]
    for backward in backward_programs:
        lead = len(backward.inputs) - len(residuals)
        inputs += backward.inputs[:lead]
        residual_of: dict[Atom, Atom] = dict(zip(backward.inputs[lead:], residuals, strict=True))
        equations += [e.replace(inputs=[residual_of.get(a, a) for a in e.inputs]) for e in backward]
        outputs = [*outputs, *[residual_of.get(a, a) for a in backward.outputs]]
    joint = Program(values.name, inputs, equations, outputs, in_names=values.in_names)
    return JointProgram(eliminate_common_subexpressions(joint), len(values.inputs), count)


def inline_checkpoints(joint: JointProgram) -> JointProgram:
    """`joint` with checkpoints inlined, and the variables that they recompute marked.

    Inputs of a region stay unmarked, so that values between two regions are saved.
    """
    if all(eqn.primitive.name != "checkpoint" for eqn in joint.program):
        return joint
    inliner = CheckpointInliner()
    for eqn in joint.program:
        inliner.inline(eqn, recomputes=False)
    recompute = frozenset(inliner.recomputed - inliner.region_inputs)
    return joint._replace(program=inliner.finish(joint.program), recompute=recompute)


class CheckpointInliner(UniqueEquations):
    """Unique equations in which checkpoints are inlined, with marks of what they recompute."""

    def __init__(self) -> None:
        super().__init__()
        self.recomputed: set[Atom] = set()
        self.region_inputs: set[Atom] = set()

    def inline(self, eqn: Equation, recomputes: bool) -> None:
        """Adds `eqn`, which is in a region that recomputes or not; a checkpoint is inlined."""
        if eqn.primitive.name == "checkpoint":
            self.inline_checkpoint(eqn, [self.read(a) for a in eqn.inputs])
            return
        merged = self.add(self.on_substitutes(eqn))
        if recomputes:
            self.recomputed.update(merged)

    def inline_checkpoint(self, eqn: Equation, inputs: list[Atom]) -> None:
        region: Any = eqn.primitive
        if region.differentiated:
            self.region_inputs.update(inputs)
        program: Program = region.program
        copies: dict[Atom, Atom] = dict(zip(program.inputs, inputs, strict=True))
        for inner in program:
            outputs = [Var(v.aval) for v in inner.outputs]
            copy = inner.replace(inputs=[copies.get(a, a) for a in inner.inputs], outputs=outputs)
            copies.update(zip(inner.outputs, outputs, strict=True))
            self.inline(copy, region.differentiated)
        self.substitute(eqn.outputs, [self.read(copies.get(a, a)) for a in program.outputs])
