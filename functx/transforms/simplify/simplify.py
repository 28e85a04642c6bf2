"""The rewrite to a simpler program that means the same."""

from __future__ import annotations

from functx.core.primitive import Primitive
from functx.core.program import Program
from functx.core.records import Rewrite
from functx.core.rewriting import cached_rewrite
from functx.ops.contraction import DotGeneral
from functx.ops.shaping import PermuteDims
from functx.transforms.simplify.contract import ReassociateContractions
from functx.transforms.simplify.loops import HOISTING_RULES
from functx.transforms.simplify.walk import simplify_equations


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
        nested = (lambda inner: cached_rewrite(self, inner)) if self.deep else None
        simpler = (
            simplify_equations(program, nested)
            if self.mode == "always" or is_profitable(program)
            else program
        )
        contracted = ReassociateContractions(self.mode)(simpler)
        return simpler if contracted is simpler else simplify_equations(contracted, nested)


def is_profitable(program: Program) -> bool:
    """Whether a walk makes what is compiled quicker, where XLA would not do the same."""
    primitives = {type(eqn.primitive) for eqn in program.equations}
    if not primitives.isdisjoint(HOISTING_RULES):
        return True
    return (
        PermuteDims in primitives
        and DotGeneral in primitives
        and any([_is_outer_product(eqn.primitive) for eqn in program.equations])
    )


def _is_outer_product(primitive: Primitive) -> bool:
    return type(primitive) is DotGeneral and not primitive.contracting_dims[0]
