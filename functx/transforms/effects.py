"""Effects under rewrites: a computation that is done again does not have its effects again."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from functx.core.editing import map_primitive_programs, replace_program_fields
from functx.core.errors import EffectError
from functx.core.program import Equation, Program, Var, subprograms
from functx.core.records import Rewrite
from functx.core.rewriting import cached_rewrite


def keep_effects_depending_on(program: Program, inputs: Iterable[Var]) -> Program:
    """`program` with those of its effects alone that need nothing but `inputs`.

    What is linear in the others has no effects when it is transposed.
    """
    if not program.effects:
        return program
    known = set(inputs)
    equations = []
    for eqn in program.equations:
        if all(type(a) is not Var or a in known for a in eqn.inputs):
            known.update(eqn.outputs)
        elif eqn.primitive.effects:
            equations += RemoveEffects().without_effects(eqn)
            continue
        equations.append(eqn)
    return replace_program_fields(program, equations=equations)


class RemoveEffects(Rewrite[Program]):
    """The rewrite to the same outputs without the effects, for a second run of the same.

    Raises EffectError for an effect that gives something back, since that may differ then.
    """

    def __call__(self, program: Program) -> Program:
        if not program.effects:
            return program
        return replace_program_fields(
            program, equations=[e for eqn in program.equations for e in self.without_effects(eqn)]
        )

    def without_effects(self, eqn: Equation) -> list[Equation]:
        """The equation without its effects, or none if it is nothing but an effect."""
        if not eqn.primitive.effects:
            return [eqn]
        if subprograms(eqn.primitive):
            primitive = map_primitive_programs(eqn.primitive, self.rewrite_subprogram)
            return [eqn.replace(primitive=primitive)] if eqn.outputs else []
        if eqn.outputs:
            raise EffectError(
                f"{eqn.primitive.name}: an effect with results must not be in what a derivative "
                "computes again; got one in a checkpoint, or in a loop of no known length",
                f"the equation: {eqn.primitive!r}",
                fix="Keep it out of there, or use pure_callback for a function without effects.",
                source=eqn.source,
            )
        return []

    def rewrite_subprogram(self, program: Program) -> Any:
        return cached_rewrite(self, program)
