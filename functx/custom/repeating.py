"""Derivatives that take nothing but the operands, and compute from them what they need again."""

from __future__ import annotations

from typing import Any

from functx.core.program import Program
from functx.core.records import Rewrite
from functx.core.rewriting import rewritten
from functx.core.tracing import trace_closed
from functx.transforms.call import TransposeIn
from functx.transforms.effects import WithoutEffects
from functx.transforms.expand import expand
from functx.transforms.forward_mode import PushForward
from functx.transforms.marks import chosen, spread
from functx.transforms.norms import expand_to_differentiate
from functx.transforms.parts import rewired
from functx.transforms.reverse_mode import backward_sweep, forward_sweep


def quiet(program: Program) -> Program:
    """`program` for a second run of what it computes."""
    return rewritten(WithoutEffects(), program)  # type: ignore[no-any-return]


class Push(Rewrite[Program]):
    """The rewrite to the tangents of the inexact outputs.

    Takes the operands, then tangents of those that are marked `varying`.
    """

    varying: tuple[bool, ...]

    def __call__(self, program: Program) -> Program:
        pushed = PushForward(self.varying)(quiet(program))
        return rewired(pushed, pushed.inputs, pushed.outputs[len(program.outputs) :])


class Pull(Rewrite[Program]):
    """The rewrite to the cotangents of the active operands.

    Takes the cotangents of the outputs that are marked `given`, then the operands.
    """

    active: tuple[bool, ...]
    given: tuple[bool, ...]

    def __call__(self, program: Program) -> Program:
        program = expand_to_differentiate(quiet(program), "vjp", "jvp", "transpose")

        def body(*xs: Any) -> list[Any]:
            count = sum(self.given)
            _, tape = forward_sweep(program, xs[count:], self.active)
            return backward_sweep(program, tape, spread(xs[:count], self.given), self.active)

        avals = [*chosen(program.out_avals, self.given), *program.in_avals]
        return trace_closed(body, avals, name=f"pullback_{program.name}")


class PullLinear(Rewrite[Program]):
    """The rewrite to the cotangents of the operands that the program is `linear` in.

    Takes the cotangents of the inexact outputs, then the other operands.
    """

    linear: tuple[bool, ...]

    def __call__(self, program: Program) -> Program:
        return TransposeIn(self.linear)(expand(quiet(program), "transpose"))
