"""Outlining: runs of equations that a program repeats, each kind one program that it calls."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any, NamedTuple

import numpy as np

from functx import ops
from functx.core.primitive import Primitive
from functx.core.program import Atom, Equation, Literal, Program
from functx.core.program_editing import replace_program_fields
from functx.core.records import Record, Rewrite
from functx.core.rewriting import cached_rewrite
from functx.passes.loop_rerolling import (
    StaticSlice,
    accumulates_cotangent,
    coalesce_rows,
    consecutive_runs,
    reroll,
    static_slice_of,
)
from functx.passes.repeat_detection import (
    EquationDataflow,
    PeriodicRepeat,
    Repeat,
    RepeatGroup,
    find_repeats,
    tokenize,
)
from functx.passes.simplify import simplify_equations
from functx.transforms.call_primitive import Call


class OutlineThresholds(Record):
    """From when on repeats pay: `part` operations in a program, `steps` of a loop, `saved` in all."""

    min_operations: int
    min_steps: int
    min_saved: int


OUTLINE_THRESHOLDS = {
    "auto": OutlineThresholds(min_operations=24, min_steps=8, min_saved=160),
    "always": OutlineThresholds(min_operations=3, min_steps=3, min_saved=3),
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
    before_transforms: bool = False
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
        self.equations_before, self.outputs, self.thresholds, self.rewrite = (
            equations,
            outputs,
            worth,
            rewrite,
        )
        self.known_slices: dict[Any, StaticSlice] = {}
        # For each start of what is replaced: its length, and what stands there in its place.
        self.replacements: dict[int, tuple[int, list[Equation]]] = {}
        self.replaced_until = [0] * len(equations)

    def equations(self, names: Iterator[int]) -> list[Equation] | None:
        """The equations with the repeats replaced; None where there are none worth it."""
        tokens, weights = tokenize(self.equations_before)
        if sum(weights) < self.thresholds.min_saved:
            return None
        found = find_repeats(tokens, weights, self.thresholds.min_saved)
        if not found:
            return None
        self.total = np.concatenate([[0], np.cumsum(weights)])
        self.flow = EquationDataflow(self.equations_before, self.outputs)
        # A loop looks up what earlier ones stacked, so they are made in their order.
        for group, step in sorted(self.select_groups(found), key=lambda pair: pair[0].starts[0]):
            self.replace(group, step, names)
        if not self.replacements:
            return None
        self.coalesce_concatenations()
        result: list[Equation] = []
        at = 0
        while at < len(self.equations_before):
            length, instead = self.replacements.get(at, (1, [self.equations_before[at]]))
            result += instead
            at += length
        return drop_unused_equations(result, self.outputs)

    def select_groups(self, found: list[Repeat]) -> list[tuple[RepeatGroup, bool]]:
        """Groups of parts to be replaced, apart from each other; whether each may be a loop."""
        taken = np.zeros(len(self.equations_before), bool)
        chosen = []
        # Repeats overlap; those that save most come first, and the others are soon used up.
        effort = _SEARCH_BUDGET * len(self.equations_before)
        for repeat in found:
            effort -= repeat.size
            if effort < 0:
                break
            for free in repeat.unclaimed(taken):
                for group in self.isomorphic_groups(free):
                    if (
                        self.operations_in(group) * (len(group.starts) - 1)
                        >= self.thresholds.min_saved
                    ):
                        chosen.append((group, type(free) is PeriodicRepeat))
                        for start in group.starts:
                            taken[start : start + group.length] = True
        return chosen

    def isomorphic_groups(self, repeat: Repeat) -> list[RepeatGroup]:
        """The groups of parts that are alike in what repeats itself."""
        if isinstance(repeat, PeriodicRepeat):
            return self.flow.isomorphic_groups(self.flow.starts(repeat), repeat.period)
        groups = self.flow.isomorphic_groups(repeat.starts, repeat.length)
        return [
            group for group in groups if self.operations_in(group) >= self.thresholds.min_operations
        ]

    def operations_in(self, group: RepeatGroup) -> int:
        """How many operations one part of a group becomes."""
        start = group.starts[0]
        return int(self.total[start + group.length] - self.total[start])

    def replace(self, group: RepeatGroup, periodic: bool, names: Iterator[int]) -> None:
        """Put loops or calls in the place of the parts in `group`, where they pay."""
        runs = consecutive_runs(group)
        if periodic:
            runs = [run for run in runs if not self.reroll(run, names)]
        several = -(-self.thresholds.min_operations // self.operations_in(group))
        if several == 1:
            left = [start for run in runs for start in run.starts]
            self.outline_group(RepeatGroup(group.flow, left, group.length, group.live_outs), names)
            return
        # Short parts are called several at a time.
        for run in runs:
            starts = run.starts[: len(run.starts) // several * several : several]
            for wider in self.flow.isomorphic_groups(starts, several * group.length):
                self.outline_group(wider, names)

    def reroll(self, run: RepeatGroup, names: Iterator[int]) -> bool:
        """Whether a loop could be put in the place of the parts in `run`."""
        # What comes first and last is often given in another way than what lies between.
        for run in (run.without_ends(first, last) for first in (0, 1) for last in (0, 1)):
            if len(run.starts) < self.thresholds.min_steps:
                return False
            loop = reroll(run, names, self.rewrite, self.known_slices, self.replaced_until)
            if loop is None:
                continue
            if loop and self.rewrite.loops:
                self.replacements.update({start: (run.length, []) for start in run.starts})
                self.replacements[run.starts[0]] = run.length, loop
                begin, stop = run.starts[0], run.starts[-1] + run.length
                self.replaced_until[begin:stop] = [stop] * (stop - begin)
            return True
        return False

    def coalesce_concatenations(self) -> None:
        """Join rows of the stacks that loops made at once, where they are joined."""
        for i, eqn in enumerate(self.equations_before):
            if (
                type(eqn.primitive) is ops.Concatenate
                and not self.replaced_until[i]
                and i not in self.replacements
            ):
                made = coalesce_rows(eqn, self.visible_slice)
                if made is not None:
                    self.replacements[i] = 1, made

    def visible_slice(self, atom: Atom) -> StaticSlice | None:
        """The part that `atom` shows of an array which is there after what was replaced."""
        part = static_slice_of(atom, self.flow, self.known_slices)
        return (
            None if part is None or self.flow.is_internal(part.array, self.replaced_until) else part
        )

    def outline_group(self, group: RepeatGroup, names: Iterator[int]) -> None:
        """Put calls of one program in the place of the parts in `group`."""
        count = len(group.starts)
        if count < 2 or self.operations_in(group) * (count - 1) < self.thresholds.min_saved:
            return
        block, operands = group.program()
        if self.rewrite.before_transforms and better_inlined(block):
            return
        block.name = f"block_{next(names)}"
        call = Call(self.rewrite(block), True)
        for i, start in enumerate(group.starts):
            args = [atoms[i] for atoms in operands]
            eqn = Equation(call, args, group.outputs(start), self.equations_before[start].source)
            self.replacements[start] = group.length, [eqn]
            stop = start + group.length
            self.replaced_until[start:stop] = [stop] * group.length


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


class DeduplicateCalls(Rewrite[Program]):
    """The rewrite to a program whose calls kept apart get and give no value twice."""

    def __call__(self, program: Program) -> Program:
        if program.writes or not any([is_noinline(e.primitive) for e in program.equations]):
            return program
        program = simplify_equations(program)
        same: dict[Any, Atom] = {}
        equations = []
        for eqn in program.equations:
            if any([atom in same for atom in eqn.inputs]):
                eqn = eqn.replace(inputs=[same.get(a, a) for a in eqn.inputs])
            if is_noinline(eqn.primitive):
                equations += deduplicate_call(eqn, same)
            else:
                equations.append(eqn)
        outputs = [same.get(a, a) for a in program.outputs]
        return replace_program_fields(program, equations=equations, outputs=outputs)


def is_noinline(primitive: Primitive) -> bool:
    """Whether XLA does not inline the operation."""
    return isinstance(primitive, Call) and primitive.noinline


def deduplicate_call(eqn: Equation, same: dict[Any, Atom]) -> list[Equation]:
    """The equation for what a call has to give; `same` learns what the rest of it is."""
    primitive: Any = eqn.primitive
    first: dict[Atom, int] = {}
    places = tuple([first.setdefault(atom, i) for i, atom in enumerate(eqn.inputs)])
    program, results = cached_rewrite(DeduplicateProgram(places), primitive.program)
    for v, result in zip(eqn.outputs, results, strict=True):
        if type(result) is int:
            same[v] = eqn.inputs[result]
        elif type(result) is Literal:
            same[v] = result
        elif eqn.outputs[result.position] is not v:
            same[v] = eqn.outputs[result.position]
    outputs = [v for v in eqn.outputs if v not in same]
    if not outputs and not primitive.effects:
        return []
    inputs = [atom for i, atom in enumerate(eqn.inputs) if places[i] == i]
    return [eqn.replace(primitive=primitive.with_program(program), inputs=inputs, outputs=outputs)]


class OutputOf(NamedTuple):
    """The output at a position of what was called, the first of those that are equal."""

    position: int


class DeduplicatedProgram(NamedTuple):
    """A program that gives each value once, and what each output of the one before it is.

    That is an `OutputOf`, the number of an input, or a literal.
    """

    program: Program
    results: list[Any]


class DeduplicateProgram(Rewrite[DeduplicatedProgram]):
    """The rewrite to a program that is given once what it had at several places, as a `DeduplicatedProgram`.

    `places` holds for each input the first with the same value.
    """

    first_positions: tuple[int, ...]

    def __call__(self, program: Program) -> DeduplicatedProgram:
        program = cached_rewrite(DeduplicateCalls(), program)
        inputs = program.inputs
        names: dict[Any, Atom] = {
            v: inputs[at] for v, at in zip(inputs, self.first_positions, strict=True)
        }
        equations = [
            eqn.replace(inputs=[names.get(a, a) for a in eqn.inputs]) for eqn in program.equations
        ]
        outputs = [names.get(a, a) for a in program.outputs]
        given: dict[Any, Any] = {v: i for i, v in enumerate(inputs) if self.first_positions[i] == i}
        inner = simplify_equations(Program(program.name, [*given], equations, outputs))
        results: list[Any] = []
        made: list[Atom] = []
        for i, atom in enumerate(inner.outputs):
            if type(atom) is Literal:
                results.append(atom)
                continue
            if atom not in given:
                given[atom] = OutputOf(i)
                made.append(atom)
            results.append(given[atom])
        return DeduplicatedProgram(replace_program_fields(inner, outputs=made), results)
