"""The rewrite to a simpler program that means the same."""

from __future__ import annotations

from dataclasses import dataclass

from functx.core.program import Program
from functx.transforms.simplify.contract import Contract


@dataclass(frozen=True)
class Simplify:
    """The rewrite to a program in which sums of products are made in the cheapest order."""

    mode: str = "auto"

    def __call__(self, program: Program) -> Program:
        if self.mode == "never" or program.writes:
            return program
        return Contract(self.mode)(program)
