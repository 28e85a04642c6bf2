"""Outlining: repeated runs of equations become calls of one program, or loops.

`DeduplicateCalls` then removes repeated operands and results of calls that XLA does not inline.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count, pairwise
from typing import Any, NamedTuple

import numpy as np

from functx import ops
from functx.core.primitive import Primitive
from functx.core.program import Atom, Equation, Literal, Program
from functx.core.program_editing import replace_program_fields, substitute_atoms
from functx.core.rewriting import Record, Rewrite, cached_rewrite
from functx.passes.loop_rerolling import (
    accumulates_cotangent,
    consecutive_runs,
    has_finite_derivatives,
    reroll,
)
from functx.passes.memory_planning import backward_slice
from functx.passes.repeat_detection import (
    EquationDataflow,
    PeriodicRepeat,
    Repeat,
    RepeatGroup,
    find_repeats,
    tokenize,
)
from functx.passes.simplify import simplify_equations
from functx.passes.static_slices import (
    StaticSlice,
    coalesce_rows,
    hoist_small_slices,
    static_slice_of,
)
from functx.transforms.call_primitive import Call


class OutlineThresholds(Record):
    """The least sizes for which a repeat is replaced.

    `min_operations` are the operations in a called program, `min_steps` the steps of a loop,
    `min_saved` the operations saved in all.
    """

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
    """Rewrites repeats that are large enough to calls of one program, or to loops.

    XLA does not inline the calls. A call replaces the equations where they are, a loop where its
    first step is. `before_transforms` leaves out repeats that transforms handle better inlined;
    without `loops`, all repeats become calls.
    """

    mode: str = "auto"
    before_transforms: bool = False
    loops: bool = True

    def __call__(self, program: Program) -> Program:
        thresholds = OUTLINE_THRESHOLDS.get(self.mode)
        # Arrays that share memory with a written one must stay in the same program.
        if thresholds is None or len(program.equations) < MIN_EQUATIONS or program.writes:
            return program
        names = count(1)
        hoisted, substitutions = hoist_small_slices(program.equations)
        equations: Sequence[Equation] = hoisted
        outputs = [substitutions.get(atom, atom) for atom in program.outputs]
        for _ in range(_MAX_ROUNDS):
            outlined = _OutliningRound(equations, outputs, thresholds, self).outlined(names)
            if outlined is None:
                break
            equations = outlined
        if equations is hoisted:
            return program
        return replace_program_fields(program, equations=equations, outputs=outputs)


class _OutliningRound:
    """One search through a list of equations, and the equations that replace the repeats."""

    def __init__(
        self,
        equations: Sequence[Equation],
        outputs: Sequence[Atom],
        thresholds: OutlineThresholds,
        rewrite: Outline,
    ):
        self.equations_before, self.outputs = equations, outputs
        self.thresholds, self.rewrite = thresholds, rewrite
        self.known_slices: dict[Atom, StaticSlice] = {}
        # By the first replaced position: the number of replaced equations, and the new ones.
        self.replacements: dict[int, tuple[int, list[Equation]]] = {}
        self.replaced_until = [0] * len(equations)

    def outlined(self, names: Iterator[int]) -> list[Equation] | None:
        """The equations with the repeats replaced; None if none is large enough."""
        tokens, weights = tokenize(self.equations_before)
        if sum(weights) < self.thresholds.min_saved:
            return None
        repeats = find_repeats(tokens, weights, self.thresholds.min_saved)
        if not repeats:
            return None
        self.total = np.concatenate([[0], np.cumsum(weights)])
        self.flow = EquationDataflow(self.equations_before, self.outputs)
        # In order, since a loop may read results that earlier loops stack.
        for group, step in sorted(self.select_groups(repeats), key=lambda pair: pair[0].starts[0]):
            self.replace(group, step, names)
        if not self.replacements:
            return None
        self.coalesce_concatenations()
        result: list[Equation] = []
        position = 0
        while position < len(self.equations_before):
            length, new = self.replacements.get(position, (1, [self.equations_before[position]]))
            result += new
            position += length
        return backward_slice(self.outputs, result, effects=True)

    def select_groups(self, repeats: list[Repeat]) -> list[tuple[RepeatGroup, bool]]:
        """Disjoint groups of parts to replace; whether each may become a loop."""
        taken = np.zeros(len(self.equations_before), bool)
        selected = []
        # Repeats overlap; those that save most come first, and leave little of the others.
        budget = _SEARCH_BUDGET * len(self.equations_before)
        for repeat in repeats:
            budget -= repeat.size
            if budget < 0:
                break
            for unclaimed in repeat.unclaimed(taken):
                for group in self.isomorphic_groups(unclaimed):
                    if (
                        self.operations_in(group) * (len(group.starts) - 1)
                        >= self.thresholds.min_saved
                    ):
                        selected.append((group, type(unclaimed) is PeriodicRepeat))
                        for start in group.starts:
                            taken[start : start + group.length] = True
        return selected

    def isomorphic_groups(self, repeat: Repeat) -> list[RepeatGroup]:
        """The groups of parts of a repeat with the same dataflow."""
        if isinstance(repeat, PeriodicRepeat):
            return self.flow.isomorphic_groups(self.flow.cut_points(repeat), repeat.period)
        groups = self.flow.isomorphic_groups(repeat.starts, repeat.length)
        return [
            group for group in groups if self.operations_in(group) >= self.thresholds.min_operations
        ]

    def operations_in(self, group: RepeatGroup) -> int:
        """The number of operations in one part of a group."""
        start = group.starts[0]
        return int(self.total[start + group.length] - self.total[start])

    def replace(self, group: RepeatGroup, periodic: bool, names: Iterator[int]) -> None:
        """Replace the parts of `group` by loops or calls where they are large enough."""
        runs = consecutive_runs(group)
        if periodic:
            runs = [run for run in runs if not self.reroll(run, names)]
        parts_per_call = -(-self.thresholds.min_operations // self.operations_in(group))
        if parts_per_call == 1:
            left = [start for run in runs for start in run.starts]
            self.outline_group(RepeatGroup(group.flow, left, group.length, group.live_outs), names)
            return
        # One call runs several short parts.
        for run in runs:
            starts = run.starts[
                : len(run.starts) // parts_per_call * parts_per_call : parts_per_call
            ]
            for wider_group in self.flow.isomorphic_groups(starts, parts_per_call * group.length):
                self.outline_group(wider_group, names)

    def reroll(self, run: RepeatGroup, names: Iterator[int]) -> bool:
        """Replace the parts of `run` by a loop if they fit one; whether they are not to be calls.

        True: they became a loop, perhaps without the first or the last, or they stay as they are,
        because transforms handle them better unrolled. False: they fit no loop, or are too few.
        """
        stays_unrolled = False
        # The first and last part often have operands from elsewhere, or results without influence.
        for run in (run.without_ends(first, last) for first in (0, 1) for last in (0, 1)):
            if len(run.starts) < self.thresholds.min_steps:
                break
            loop = reroll(run, names, self.rewrite, self.known_slices, self.replaced_until)
            if not loop:
                stays_unrolled |= loop is not None
                continue
            if self.rewrite.loops:
                self.replacements.update({start: (run.length, []) for start in run.starts})
                self.replacements[run.starts[0]] = run.length, loop
                begin, stop = run.starts[0], run.starts[-1] + run.length
                self.replaced_until[begin:stop] = [stop] * (stop - begin)
            return True
        return stays_unrolled

    def coalesce_concatenations(self) -> None:
        """Concatenate rows of stacked results of loops as one slice."""
        for i, eqn in enumerate(self.equations_before):
            if (
                type(eqn.primitive) is ops.Concatenate
                and not self.replaced_until[i]
                and i not in self.replacements
            ):
                coalesced = coalesce_rows(eqn, self.visible_slice)
                if coalesced is not None:
                    self.replacements[i] = 1, coalesced

    def visible_slice(self, atom: Atom) -> StaticSlice | None:
        """The slice that `atom` is of an array which still exists after the replacements."""
        piece = static_slice_of(atom, self.flow, self.known_slices)
        if piece is None or self.flow.is_internal(piece.array, self.replaced_until):
            return None
        return piece

    def outline_group(self, group: RepeatGroup, names: Iterator[int]) -> None:
        """Replace the parts of `group` by calls of one program."""
        count = len(group.starts)
        if count < 2 or self.operations_in(group) * (count - 1) < self.thresholds.min_saved:
            return
        block, operands = group.program()
        if self.rewrite.before_transforms and better_inlined(block):
            if not block.effects:
                self.outline_between_reads(group, block, names)
            return
        block.name = f"block_{next(names)}"
        call = Call(self.rewrite(block), True)
        for i, start in enumerate(group.starts):
            args = [atoms[i] for atoms in operands]
            eqn = Equation(call, args, group.outputs(start), self.equations_before[start].source)
            self.replacements[start] = group.length, [eqn]
            stop = start + group.length
            self.replaced_until[start:stop] = [stop] * group.length

    def outline_between_reads(
        self, group: RepeatGroup, block: Program, names: Iterator[int]
    ) -> None:
        """Replace the longest run of equations in `block` without reads of parts of arrays."""
        reads = [i for i, eqn in enumerate(block) if accumulates_cotangent(eqn)]
        ends = [-1, *reads, group.length]
        length, begin = max((b - a - 1, a + 1) for a, b in pairwise(ends))
        starts = [start + begin for start in group.starts]
        for narrower_group in self.flow.isomorphic_groups(starts, length) if length else ():
            if self.operations_in(narrower_group) >= self.thresholds.min_operations:
                self.outline_group(narrower_group, names)


def better_inlined(block: Program) -> bool:
    """Whether transforms handle a block better if its equations are not a call.

    The cotangent of a slice of an input is added in place where the equations are inlined; a call
    would return a cotangent of the whole array. The cotangent of a slice with a start that the
    call would take has no mask, which infinite derivatives need.
    """
    inputs = {*block.inputs}
    reads = [eqn for eqn in block if accumulates_cotangent(eqn)]
    if block.effects or any([eqn.inputs[0] in inputs for eqn in reads]):
        return True
    takes_starts = any([not inputs.isdisjoint(eqn.inputs) for eqn in reads])
    return takes_starts and not has_finite_derivatives(block)


class DeduplicateCalls(Rewrite[Program]):
    """Rewrites calls that XLA does not inline to take and return each value once."""

    def __call__(self, program: Program) -> Program:
        if program.writes or not any([is_noinline(e.primitive) for e in program.equations]):
            return program
        program = simplify_equations(program)
        substitutions: dict[Atom, Atom] = {}
        equations = []
        for eqn in program.equations:
            eqn = eqn.with_substitutes(substitutions)
            if is_noinline(eqn.primitive):
                equations += deduplicate_call(eqn, substitutions)
            else:
                equations.append(eqn)
        outputs = [substitutions.get(a, a) for a in program.outputs]
        return replace_program_fields(program, equations=equations, outputs=outputs)


def is_noinline(primitive: Primitive) -> bool:
    """Whether XLA does not inline the operation."""
    return isinstance(primitive, Call) and primitive.noinline


def deduplicate_call(eqn: Equation, substitutions: dict[Atom, Atom]) -> list[Equation]:
    """The call with distinct operands and results; `substitutions` gets the results it drops."""
    primitive: Any = eqn.primitive
    position_of: dict[Atom, int] = {}
    first_positions = tuple([position_of.setdefault(atom, i) for i, atom in enumerate(eqn.inputs)])
    program, results = cached_rewrite(DeduplicateProgram(first_positions), primitive.program)
    for v, result in zip(eqn.outputs, results, strict=True):
        if type(result) is int:
            substitutions[v] = eqn.inputs[result]
        elif type(result) is Literal:
            substitutions[v] = result
        elif eqn.outputs[result.position] is not v:
            substitutions[v] = eqn.outputs[result.position]
    outputs = [v for v in eqn.outputs if v not in substitutions]
    if not outputs and not primitive.effects:
        return []
    inputs = [atom for i, atom in enumerate(eqn.inputs) if first_positions[i] == i]
    return [eqn.replace(primitive=primitive.with_program(program), inputs=inputs, outputs=outputs)]


class OutputOf(NamedTuple):
    """The position of the first of the equal outputs of a program."""

    position: int


class DeduplicatedProgram(NamedTuple):
    """A program with distinct outputs, and the source of each output of the original program.

    A source is an `OutputOf`, the position of an input, or a literal.
    """

    program: Program
    results: list[Any]


class DeduplicateProgram(Rewrite[DeduplicatedProgram]):
    """Rewrites a program to take each distinct operand once and return each result once.

    `first_positions` has for each input the first position with the same operand.
    """

    first_positions: tuple[int, ...]

    def __call__(self, program: Program) -> DeduplicatedProgram:
        program = cached_rewrite(DeduplicateCalls(), program)
        inputs = program.inputs
        substitutions: dict[Atom, Atom] = {
            v: inputs[first] for v, first in zip(inputs, self.first_positions, strict=True)
        }
        program = substitute_atoms(program, substitutions)
        positions = {v: i for i, v in enumerate(inputs) if self.first_positions[i] == i}
        source_of: dict[Any, int | OutputOf] = {**positions}
        simplified = simplify_equations(
            Program(program.name, [*positions], program.equations, program.outputs)
        )
        results: list[Any] = []
        distinct: list[Atom] = []
        for i, atom in enumerate(simplified.outputs):
            if type(atom) is Literal:
                results.append(atom)
                continue
            if atom not in source_of:
                source_of[atom] = OutputOf(i)
                distinct.append(atom)
            results.append(source_of[atom])
        return DeduplicatedProgram(replace_program_fields(simplified, outputs=distinct), results)
