"""Outlining: runs of equations that a program repeats, each kind one program that it calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np

from functx.core.program import Equation, Program
from functx.transforms.call import Call
from functx.transforms.outlining.blocks import Flow, Group
from functx.transforms.outlining.periods import repeats
from functx.transforms.outlining.tokens import tokens_of


@dataclass(frozen=True)
class Worth:
    """From when on repeats are worth a program: `part` operations in one, `saved` in all."""

    part: int
    saved: int


WORTH = {"auto": Worth(part=24, saved=160), "always": Worth(part=3, saved=3)}
_ROUNDS = 4


@dataclass(frozen=True)
class Outline:
    """The rewrite to a program in which repeats worth it are calls of programs.

    These are not inlined by XLA either. A call stands where the equations stood.
    """

    mode: str = "auto"

    def __call__(self, program: Program) -> Program:
        worth = WORTH.get(self.mode)
        if worth is None or len(program.equations) < 4:
            return program
        names = count(1)
        equations: Sequence[Equation] = program.equations
        for _ in range(_ROUNDS):
            shorter = outlined(equations, program, worth, names, self)
            if shorter is None:
                break
            equations = shorter
        if equations is program.equations:
            return program
            return Program(
            program.name, program.inputs, equations, program.outputs, in_names=program.in_names
        )


def outlined(
    equations: Sequence[Equation], program: Program, worth: Worth, names: Any, rewrite: Outline
) -> list[Equation] | None:
    """`equations` with calls for what they repeat; None where nothing is worth it."""
    tokens, weights = tokens_of(equations)
    if sum(weights) < 2 * worth.saved:
        return None
    found = repeats(tokens, weights, worth.saved)
    if not found:
        return None
    flow = Flow(equations, program.outputs)
    total = np.concatenate([[0], np.cumsum(weights)])
    taken = np.zeros(len(equations), bool)
    # For each start of what is replaced: its length, and what stands there in its place.
    calls: dict[int, tuple[int, list[Equation]]] = {}
    for repeat in found:
        for free in repeat.free(taken):
            starts = flow.starts(free)
            length = min(free.length, free.distance)
            size = total[starts[0] + length] - total[starts[0]]
            if size < worth.part:
                continue
            for group in flow.groups(starts, length):
                if size * (len(group.starts) - 1) >= worth.saved:
                    replace(group, f"block_{next(names)}", rewrite, calls)
                    for start in group.starts:
                        taken[start : start + length] = True
    if not calls:
        return None
    result: list[Equation] = []
    at = 0
    while at < len(equations):
        length, instead = calls.get(at, (1, [equations[at]]))
        result += instead
        at += length
    return result


def replace(group: Group, name: str, rewrite: Outline, calls: dict[int, Any]) -> None:
    """Put calls of one program in the place of the parts in `group`."""
    block, operands = group.program(name)
    block = rewrite(block)
    call = Call(block, True)
    for start, atoms in zip(group.starts, zip(*operands, strict=True), strict=True):
        source = group.flow.equations[start].source
        eqn = Equation(call, list(atoms), group.outputs(start), source)
        calls[start] = group.length, [eqn]
