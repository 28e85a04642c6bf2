"""Derivatives that take nothing but the operands, and compute from them what they need again."""

from __future__ import annotations

from typing import Any

from functx.core.program import Program
from functx.core.records import Rewrite
from functx.core.rewriting import cached_rewrite
from functx.core.tracing import trace_closed
from functx.transforms.call import TransposeLinearInputs
from functx.transforms.effects import RemoveEffects
from functx.transforms.expand import decompose_missing_rules
from functx.transforms.forward_mode import JVPRewrite
from functx.transforms.marks import scatter_where, select_where
from functx.transforms.norms import canonicalize_for_ad
from functx.transforms.parts import with_io
from functx.transforms.reverse_mode import backward_sweep, forward_sweep


def effect_free_program(program: Program) -> Program:
    """`program` for a second run of what it computes."""
    return cached_rewrite(RemoveEffects(), program)  # type: ignore[no-any-return]


class RecomputingJVP(Rewrite[Program]):
    """The rewrite to the tangents of the inexact outputs.

    Takes the operands, then tangents of those that are marked `varying`.
    """

    varying: tuple[bool, ...]

    def __call__(self, program: Program) -> Program:
        pushed = JVPRewrite(self.varying)(effect_free_program(program))
        return with_io(pushed, pushed.inputs, pushed.outputs[len(program.outputs) :])


class RecomputingVJP(Rewrite[Program]):
    """The rewrite to the cotangents of the active operands.

    Takes the cotangents of the outputs that are marked `given`, then the operands.
    """

    active: tuple[bool, ...]
    has_cotangent: tuple[bool, ...]

    def __call__(self, program: Program) -> Program:
        program = canonicalize_for_ad(effect_free_program(program), "vjp", "jvp", "transpose")

        def body(*xs: Any) -> list[Any]:
            count = sum(self.has_cotangent)
            _, tape = forward_sweep(program, xs[count:], self.active)
            return backward_sweep(
                program, tape, scatter_where(xs[:count], self.has_cotangent), self.active
            )

        avals = [*select_where(program.out_avals, self.has_cotangent), *program.in_avals]
        return trace_closed(body, avals, name=f"pullback_{program.name}")


class RecomputingTranspose(Rewrite[Program]):
    """The rewrite to the cotangents of the operands that the program is `linear` in.

    Takes the cotangents of the inexact outputs, then the other operands.
    """

    linear: tuple[bool, ...]

    def __call__(self, program: Program) -> Program:
        return TransposeLinearInputs(self.linear)(
            decompose_missing_rules(effect_free_program(program), "transpose")
        )
