"""The rewrite to a simpler program that means the same."""

from __future__ import annotations

from functx.core.primitive import Primitive
from functx.core.program import Program
from functx.core.records import Rewrite
from functx.core.rewriting import rewritten
from functx.ops.contraction import DotGeneral
from functx.ops.shaping import PermuteDims
from functx.transforms.simplify.contract import Contract
from functx.transforms.simplify.loops import LOOPS
from functx.transforms.simplify.walk import walked


class Simplify(Rewrite[Program]):
    """The rewrite to a program without what is unused, done twice, or simpler in another way.

    Sums of products are made in the cheapest order. With `deep`, the same happens to the programs
    in its equations; what is lowered is rewritten program by program.
    """

    mode: str = "auto"
    deep: bool = False

    def __call__(self, program: Program) -> Program:
        if self.mode == "never" or program.writes:
            return program
        nested = (lambda inner: rewritten(self, inner)) if self.deep else None
        simpler = walked(program, nested) if self.mode == "always" or pays(program) else program
        contracted = Contract(self.mode)(simpler)
        return simpler if contracted is simpler else walked(contracted, nested)


def pays(program: Program) -> bool:
    """Whether a walk makes what is compiled quicker, where XLA would not do the same."""
    primitives = {type(eqn.primitive) for eqn in program.equations}
    if not primitives.isdisjoint(LOOPS):
        return True
    return (
        PermuteDims in primitives
        and DotGeneral in primitives
        and any([_is_outer(eqn.primitive) for eqn in program.equations])
    )


def _is_outer(primitive: Primitive) -> bool:
    return type(primitive) is DotGeneral and not primitive.contract[0]
