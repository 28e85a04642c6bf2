"""Marks of what is to be computed again: regions that users put under a checkpoint, opened up."""

from __future__ import annotations

from typing import Any

from functx.core.editing import replace_program_fields
from functx.core.program import Atom, Equation, Program, Var, dce_equations
from functx.transforms.planning.joint import JointProgram


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
        if region.again:
            self.region_inputs.update(inputs)
        program: Program = region.program
        own: dict[Any, Atom] = dict(zip(program.inputs, inputs, strict=True))
        for inner in program:
            outputs = [Var(v.aval) for v in inner.outputs]
            copy = inner.replace(inputs=[own.get(a, a) for a in inner.inputs], outputs=outputs)
            own.update(zip(inner.outputs, outputs, strict=True))
            self.add(copy, region.again)
        results = [self.read(own.get(a, a)) for a in program.outputs]
        self.aliases.update(zip(eqn.outputs, results, strict=True))
