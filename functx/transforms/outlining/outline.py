"""Outlining: runs of equations that a program repeats, each kind one program that it calls."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

import numpy as np

from functx.core.editing import replace_program_fields
from functx.core.program import Atom, Equation, Program
from functx.core.records import Record, Rewrite
from functx.ops.joining import Concatenate
from functx.transforms.call import Call
from functx.transforms.outlining.blocks import EquationDataflow, RepeatGroup
from functx.transforms.outlining.joins import coalesce_rows
from functx.transforms.outlining.periods import PeriodicRepeat, Repeat, find_repeats
from functx.transforms.outlining.rolling import accumulates_cotangent, consecutive_runs, reroll
from functx.transforms.outlining.rows import StaticSlice, static_slice_of
from functx.transforms.outlining.tokens import tokenize


class OutlineThresholds(Record):
    """From when on repeats pay: `part` operations in a program, `steps` of a loop, `saved` in all."""

    part: int
    steps: int
    saved: int


OUTLINE_THRESHOLDS = {
    "auto": OutlineThresholds(part=24, steps=8, saved=160),
    "always": OutlineThresholds(part=3, steps=3, saved=3),
}
_MAX_ROUNDS = 4
MIN_EQUATIONS = 4
_SEARCH_BUDGET = 64


class Outline(Rewrite[Program]):
    """The rewrite to a program in which repeats worth it are calls of programs, or loops.

    What is called is not inlined by XLA either. A call stands where the equations stood, a loop
    where the first of its steps did. The one that comes `first`, before transforms, makes none
    of what is better transformed in the open; without `loops`, it makes calls alone.
    """

    mode: str = "auto"
    first: bool = False
    loops: bool = True

    def __call__(self, program: Program) -> Program:
        worth = OUTLINE_THRESHOLDS.get(self.mode)
        # What shares memory with what is written to must stay in sight of it.
        if worth is None or len(program.equations) < MIN_EQUATIONS or program.writes:
            return program
        names = count(1)
        equations: Sequence[Equation] = program.equations
        for _ in range(_MAX_ROUNDS):
            shorter = _OutliningRound(equations, program.outputs, worth, self).equations(names)
            if shorter is None:
                break
            equations = shorter
        return (
            program
            if equations is program.equations
            else replace_program_fields(program, equations=equations)
        )


class _OutliningRound:
    """One search through a list of equations, and what it puts in place of the repeats found."""

    def __init__(
        self,
        equations: Sequence[Equation],
        outputs: Sequence[Atom],
        worth: OutlineThresholds,
        rewrite: Outline,
    ):
        self.old, self.outputs, self.worth, self.rewrite = equations, outputs, worth, rewrite
        self.known: dict[Any, StaticSlice] = {}
        # For each start of what is replaced: its length, and what stands there in its place.
        self.instead: dict[int, tuple[int, list[Equation]]] = {}
        self.ends = [0] * len(equations)

    def equations(self, names: Iterator[int]) -> list[Equation] | None:
        """The equations with the repeats replaced; None where there are none worth it."""
        tokens, weights = tokenize(self.old)
        if sum(weights) < self.worth.saved:
            return None
        found = find_repeats(tokens, weights, self.worth.saved)
        if not found:
            return None
        self.total = np.concatenate([[0], np.cumsum(weights)])
        self.flow = EquationDataflow(self.old, self.outputs)
        # A loop looks up what earlier ones stacked, so they are made in their order.
        for group, step in sorted(self.chosen(found), key=lambda pair: pair[0].starts[0]):
            self.replace(group, step, names)
        if not self.instead:
            return None
        self.join_rows()
        result: list[Equation] = []
        at = 0
        while at < len(self.old):
            length, instead = self.instead.get(at, (1, [self.old[at]]))
            result += instead
            at += length
        return drop_unused_equations(result, self.outputs)

    def chosen(self, found: list[Repeat]) -> list[tuple[RepeatGroup, bool]]:
        """Groups of parts to be replaced, apart from each other; whether each may be a loop."""
        taken = np.zeros(len(self.old), bool)
        chosen = []
        # Repeats overlap; those that save most come first, and the others are soon used up.
        effort = _SEARCH_BUDGET * len(self.old)
        for repeat in found:
            effort -= repeat.size
            if effort < 0:
                break
            for free in repeat.free(taken):
                for group in self.groups(free):
                    if self.weight(group) * (len(group.starts) - 1) >= self.worth.saved:
                        chosen.append((group, type(free) is PeriodicRepeat))
                        for start in group.starts:
                            taken[start : start + group.length] = True
        return chosen

    def groups(self, repeat: Repeat) -> list[RepeatGroup]:
        """The groups of parts that are alike in what repeats itself."""
        if isinstance(repeat, PeriodicRepeat):
            return self.flow.groups(self.flow.starts(repeat), repeat.period)
        groups = self.flow.groups(repeat.starts, repeat.length)
        return [group for group in groups if self.weight(group) >= self.worth.part]

    def weight(self, group: RepeatGroup) -> int:
        """How many operations one part of a group becomes."""
        start = group.starts[0]
        return int(self.total[start + group.length] - self.total[start])

    def replace(self, group: RepeatGroup, periodic: bool, names: Iterator[int]) -> None:
        """Put loops or calls in the place of the parts in `group`, where they pay."""
        runs = consecutive_runs(group)
        if periodic:
            runs = [run for run in runs if not self.roll(run, names)]
        several = -(-self.worth.part // self.weight(group))
        if several == 1:
            left = [start for run in runs for start in run.starts]
            self.call(RepeatGroup(group.flow, left, group.length, group.results), names)
            return
        # Short parts are called several at a time.
        for run in runs:
            starts = run.starts[: len(run.starts) // several * several : several]
            for wider in self.flow.groups(starts, several * group.length):
                self.call(wider, names)

    def roll(self, run: RepeatGroup, names: Iterator[int]) -> bool:
        """Whether a loop could be put in the place of the parts in `run`."""
        # What comes first and last is often given in another way than what lies between.
        for run in (run.without(first, last) for first in (0, 1) for last in (0, 1)):
            if len(run.starts) < self.worth.steps:
                return False
            loop = reroll(run, names, self.rewrite, self.known, self.ends)
            if loop is None:
                continue
            if loop and self.rewrite.loops:
                self.instead.update({start: (run.length, []) for start in run.starts})
                self.instead[run.starts[0]] = run.length, loop
                begin, stop = run.starts[0], run.starts[-1] + run.length
                self.ends[begin:stop] = [stop] * (stop - begin)
            return True
        return False

    def join_rows(self) -> None:
        """Join rows of the stacks that loops made at once, where they are joined."""
        for i, eqn in enumerate(self.old):
            if type(eqn.primitive) is Concatenate and not self.ends[i] and i not in self.instead:
                made = coalesce_rows(eqn, self.shown)
                if made is not None:
                    self.instead[i] = 1, made

    def shown(self, atom: Atom) -> StaticSlice | None:
        """The part that `atom` shows of an array which is there after what was replaced."""
        part = static_slice_of(atom, self.flow, self.known)
        return None if part is None or self.flow.hidden(part.whole, self.ends) else part

    def call(self, group: RepeatGroup, names: Iterator[int]) -> None:
        """Put calls of one program in the place of the parts in `group`."""
        count = len(group.starts)
        if count < 2 or self.weight(group) * (count - 1) < self.worth.saved:
            return
        block, operands = group.program()
        if self.rewrite.first and better_inlined(block):
            return
        block.name = f"block_{next(names)}"
        call = Call(self.rewrite(block), True)
        for i, start in enumerate(group.starts):
            args = [atoms[i] for atoms in operands]
            eqn = Equation(call, args, group.outputs(start), self.old[start].source)
            self.instead[start] = group.length, [eqn]
            stop = start + group.length
            self.ends[start:stop] = [stop] * group.length


def better_inlined(block: Program) -> bool:
    """Whether a block is better transformed where it stands.

    What it looks up in arrays from outside gets a cotangent that is added in its place there,
    and in a call would be one of the whole array.
    """
    given = {*block.inputs}
    looked_up = [eqn for eqn in block if accumulates_cotangent(eqn)]
    return bool(block.effects) or any([eqn.inputs[0] in given for eqn in looked_up])


def drop_unused_equations(equations: list[Equation], outputs: Sequence[Atom]) -> list[Equation]:
    """The equations without those that nothing needs, each as it is."""
    needed: set[Any] = {*outputs}
    kept = []
    for eqn in reversed(equations):
        if eqn.primitive.effects or not needed.isdisjoint(eqn.outputs):
            kept.append(eqn)
            needed.update(eqn.inputs)
    kept.reverse()
    return kept
