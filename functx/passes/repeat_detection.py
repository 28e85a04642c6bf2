"""Repeats in a list of equations: detection of equal runs of tokens, and of equal dataflow.

Equations become tokens. Windows of 1, 2, 4, ... tokens are numbered so that equal windows have
equal numbers; runs in which the distance from each window to the previous equal one is constant
are repeats. That takes O(n log n) time. `EquationDataflow` then groups the repeated parts by
the dataflow between their equations, and `RepeatGroup` builds one program for a group.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from functx import ops
from functx.core.decompositions import fallback_decomposition
from functx.core.effects import Effect
from functx.core.primitive import Primitive
from functx.core.program import Atom, Equation, Literal, Program, Var, scalar_literal, subprograms
from functx.core.rewriting import cached_rewrite
from functx.core.typing import NumPyArray
from functx.passes.costs import bytes_of
from functx.passes.unmasked_cotangents import variables_with_unmasked_cotangents
from functx.transforms.call_primitive import Call


class PeriodicRepeat(NamedTuple):
    """`length` tokens from `start` on, which repeat after every `period` tokens."""

    start: int
    length: int
    period: int

    @property
    def size(self) -> int:
        """The number of tokens that a search through the repeat visits."""
        return self.length

    def unclaimed(self, taken: NumPyArray) -> list[PeriodicRepeat]:
        """The parts, of at least two periods, in which no position is `taken`."""
        start, length, period = self
        taken_positions = np.flatnonzero(taken[start : start + length])
        edges = [-1, *taken_positions.tolist(), length]
        return [
            PeriodicRepeat(start + a + 1, b - a - 1, period)
            for a, b in pairwise(edges)
            if b - a - 1 >= 2 * period
        ]


class ScatteredRepeat(NamedTuple):
    """`length` tokens that are equal from each of `starts` on, without overlaps."""

    starts: tuple[int, ...]
    length: int

    @property
    def size(self) -> int:
        """The number of tokens that a search through the repeat visits."""
        return self.length * len(self.starts)

    def unclaimed(self, taken: NumPyArray) -> list[ScatteredRepeat]:
        """The repeat without occurrences in which a position is `taken`, if two are left."""
        length = self.length
        free = tuple([start for start in self.starts if not taken[start : start + length].any()])
        return [ScatteredRepeat(free, length)] if len(free) > 1 else []


Repeat = PeriodicRepeat | ScatteredRepeat


def find_repeats(
    tokens: Sequence[int], weights: Sequence[int] | NumPyArray, min_saved: int
) -> list[Repeat]:
    """The repeats among `tokens` that save at least `min_saved` of their `weights`, best first.

    Periodic ones come first, since they may become loops; then those that save most.
    """
    total = np.concatenate([[0], np.cumsum(weights)])
    saved_by: dict[Repeat, int] = {}
    scattered: dict[tuple[int, int, int], set[int]] = {}
    for width, numbers, distance in doubling_windows(tokens):
        firsts = np.concatenate([[0], np.flatnonzero(np.diff(distance)) + 1])
        lengths = np.append(firsts[1:], len(distance)) - firsts + width - 1
        periods = distance[firsts]
        saved = total[firsts + lengths] - total[firsts]
        is_periodic = (periods > 0) & (lengths >= periods) & (saved >= max(min_saved, 1))
        found = zip(
            *[x[is_periodic].tolist() for x in (firsts, lengths, periods, saved)], strict=True
        )
        for first, length, period, weight in found:
            saved_by[PeriodicRepeat(first - period, length + period, period)] = weight
        is_scattered = (
            (lengths < periods) & (width <= lengths) & (lengths < 2 * width) & (saved > 0)
        )
        firsts, lengths, periods = (
            firsts[is_scattered],
            lengths[is_scattered],
            periods[is_scattered],
        )
        ends = numbers[firsts], numbers[firsts + lengths - width]
        for *key, first, period in zip(
            *[x.tolist() for x in (*ends, lengths, firsts, periods)], strict=True
        ):
            scattered.setdefault(tuple(key), set()).update((first - period, first))
    for (*_, length), starts_of_run in scattered.items():
        starts = non_overlapping(length, sorted(starts_of_run))
        saved_in_all = int(total[starts[0] + length] - total[starts[0]]) * (len(starts) - 1)
        if saved_in_all >= min_saved:
            saved_by[ScatteredRepeat(starts, length)] = saved_in_all
    return sorted(
        saved_by,
        key=lambda repeat: (type(repeat) is ScatteredRepeat, -saved_by[repeat], repeat[-1]),
    )


def non_overlapping(length: int, starts: Sequence[int]) -> tuple[int, ...]:
    """The ascending `starts` that are at least `length` behind the previous one kept."""
    separate = [starts[0]]
    for start in starts:
        if start >= separate[-1] + length:
            separate.append(start)
    return tuple(separate)


def doubling_windows(tokens: Sequence[int]) -> Iterator[tuple[int, Any, Any]]:
    """Yields (width, numbers, distance) for windows of 1, 2, 4, ... tokens, as long as any repeat.

    Equal windows have equal `numbers`; `distance` is that to the previous equal window, or 0.
    """
    numbers = np.array(tokens, np.int64)
    width = 1
    while len(numbers) > 1:
        order = np.argsort(numbers, kind="stable")
        later, earlier = order[1:], order[:-1]
        is_equal = numbers[later] == numbers[earlier]
        if not is_equal.any():
            return
        distance = np.zeros(len(numbers), np.int64)
        distance[later[is_equal]] = (later - earlier)[is_equal]
        numbers[order] = np.concatenate([[0], np.cumsum(~is_equal)])
        yield width, numbers, distance
        if len(numbers) <= width:
            return
        numbers = numbers[:-width] * (len(numbers) + 1) + numbers[width:]
        width *= 2


# Operations that XLA fuses into their uses at almost no cost.
_FREE_OPS = ops.Iota, ops.Reshape, ops.Slice
# The weight of composites, which are not decomposed only to be counted.
_COMPOSITE_WEIGHT = 8
_PINNED_EFFECTS = frozenset({Effect.WRITE, Effect.PROGRESS})


def tokenize(equations: Sequence[Equation]) -> tuple[list[int], list[int]]:
    """A token for each equation, and the number of operations that it is lowered to."""
    numbers: dict[Any, int] = {}
    weights: list[int] = []
    tokens = []
    for i, eqn in enumerate(equations):
        primitive = eqn.primitive
        avals = tuple([atom.aval for atom in eqn.inputs])
        key: Hashable = primitive, avals
        if type(primitive) is ops.Slice and has_unit_strides(primitive):
            key = ops.Slice, eqn.outputs[0].aval.shape, avals
        elif primitive.effects and not _PINNED_EFFECTS.isdisjoint(primitive.effects):
            key = i
        token = numbers.get(key)
        if token is None:
            token = numbers[key] = len(weights)
            weights.append(operation_count(primitive))
        tokens.append(token)
    return tokens, [weights[token] for token in tokens]


def has_unit_strides(primitive: ops.Slice) -> bool:
    """Whether a slice can become a `DynamicSlice`."""
    return primitive.strides is None or set(primitive.strides) <= {1}


def operation_count(primitive: Primitive) -> int:
    """An estimate of the number of operations that an equation is lowered to."""
    if isinstance(primitive, _FREE_OPS) or (type(primitive) is Call and primitive.noinline):
        return 0
    if fallback_decomposition(type(primitive), ("lower",)) is not None:
        return _COMPOSITE_WEIGHT
    return 1 + sum([cached_rewrite(program_operation_count, sub) for sub in subprograms(primitive)])


def program_operation_count(program: Program) -> int:
    """An estimate of the number of operations that a program is lowered to."""
    return sum([operation_count(e.primitive) for e in program])


ResultIndex = tuple[int, int]
_INDEX_DTYPE = np.dtype("int32")


class EquationDataflow:
    """The equation that computes each variable of a list of equations, and its last use."""

    def __init__(self, equations: Sequence[Equation], outputs: Sequence[Atom]):
        self.equations, self.outputs = equations, outputs
        self.producers: dict[Atom, ResultIndex] = {}
        self.last_use: dict[Atom, int] = {}
        last, makers = self.last_use, self.producers
        for i, eqn in enumerate(equations):
            for atom in eqn.inputs:
                last[atom] = i
            for n, v in enumerate(eqn.outputs):
                makers[v] = i, n
        last.update(dict.fromkeys(outputs, len(equations)))

    @cached_property
    def unmasked(self) -> set[Atom]:
        """The variables whose cotangents have no masks."""
        return variables_with_unmasked_cotangents(self.equations, self.outputs)

    def is_internal(self, atom: Atom, replaced_until: Sequence[int]) -> bool:
        """Whether `atom` is computed and used only within one replaced part.

        `replaced_until` has for each replaced equation the end of its part, and 0 for the others.
        """
        position = self.producers.get(atom)
        return position is not None and self.last_use.get(atom, -1) < replaced_until[position[0]]

    def cut_points(self, repeat: PeriodicRepeat) -> list[int]:
        """The starts of the parts of a repeat, so that the fewest bytes cross from part to part."""
        first, length, period = repeat
        count, phases = divmod(length, period)
        bytes_at = self.bytes_crossing(first, first + length, period)
        best = min(range(phases + 1), key=lambda phase: bytes_at[phase])
        if count > 3:
            # With many parts, a better cut is worth the loss of one part.
            best_of_full = min(range(period), key=lambda phase: bytes_at[phase])
            best = best if bytes_at[best] <= 1.5 * bytes_at[best_of_full] else best_of_full
        return list(range(first + best, first + length - period + 1, period))

    def bytes_crossing(self, first: int, stop: int, period: int) -> list[int]:
        """For each phase of the period, the bytes that cross between parts which start there."""
        last_read: dict[Atom, tuple[int, int]] = {}
        producer_of = self.producers.get
        for i, eqn in enumerate(self.equations[first:stop], first):
            earliest = max(first, i - period)
            for atom in eqn.inputs:
                position = producer_of(atom)
                if position is not None and position[0] >= earliest:
                    last_read[atom] = position[0], i
        change = [0] * (stop - first + 1)
        for v, (begin, i) in last_read.items():
            size = 64 + bytes_of(v.aval)
            change[begin + 1 - first] += size
            change[i + 1 - first] -= size
        totals = [0] * period
        current = 0
        for i, step in enumerate(change[:-1]):
            current += step
            totals[i % period] += current
        return totals

    def internal_operands(self, start: int, length: int) -> tuple[int, ...]:
        """For each operand of a part, the number of the result of the part that it is, or -1."""
        producer_of = self.producers.get
        positions = [
            producer_of(a) for e in self.equations[start : start + length] for a in e.inputs
        ]
        return tuple(
            [
                -1
                if position is None or position[0] < start
                else (position[0] - start << 16) + position[1]
                for position in positions
            ]
        )

    def live_out_results(self, start: int, length: int) -> tuple[ResultIndex, ...]:
        """The results of a part that later equations or the outputs of the program use."""
        stop = start + length
        last = self.last_use
        return tuple(
            [
                (i - start, n)
                for i in range(start, stop)
                for n, v in enumerate(self.equations[i].outputs)
                if last.get(v, -1) >= stop
            ]
        )

    def isomorphic_groups(self, starts: Sequence[int], length: int) -> list[RepeatGroup]:
        """The parts that begin at `starts`, grouped by their dataflow."""
        by_operands: dict[tuple[int, ...], list[int]] = {}
        for start in starts:
            by_operands.setdefault(self.internal_operands(start, length), []).append(start)
        groups = []
        for members in by_operands.values():
            by_results: dict[tuple[ResultIndex, ...], list[int]] = {}
            for start in members:
                by_results.setdefault(self.live_out_results(start, length), []).append(start)
            largest = max(by_results, key=lambda results: len(by_results[results]))
            # A single part with fewer results joins the largest group; its other results are unused.
            for results, group in list(by_results.items()):
                if len(group) == 1 and results != largest and {*results} <= {*largest}:
                    by_results[largest] += by_results.pop(results)
            for results, group in by_results.items():
                if len(group) > 1:
                    groups.append(RepeatGroup(self, sorted(group), length, results))
        return groups


@dataclass
class RepeatGroup:
    """Parts of a list of equations that one program can replace."""

    flow: EquationDataflow
    starts: list[int]
    length: int
    live_outs: tuple[ResultIndex, ...]

    def program(self) -> tuple[Program, list[list[Atom]]]:
        """That program, and for each of its inputs the operands in each of the parts."""
        flow, starts = self.flow, self.starts
        inputs: dict[tuple[Any, ...], Var] = {}
        inner_vars: dict[Atom, Var] = {}
        equations = []

        def operand(atoms: tuple[Any, ...]) -> Atom:
            if type(atoms[0]) is Literal and atoms.count(atoms[0]) == len(atoms):
                return atoms[0]
            input_var = inputs.get(atoms)
            if input_var is None:
                input_var = inputs[atoms] = Var(atoms[0].aval)
            return input_var

        for i in range(self.length):
            counterparts = [flow.equations[start + i] for start in starts]
            first = counterparts[0]
            args: list[Atom] = []
            for n, atom in enumerate(first.inputs):
                inner_var = inner_vars.get(atom)
                args.append(
                    operand(tuple([e.inputs[n] for e in counterparts]))
                    if inner_var is None
                    else inner_var
                )
            primitive = first.primitive
            if any([eqn.primitive is not primitive for eqn in counterparts]):
                primitive = ops.DynamicSlice(first.outputs[0].aval.shape)
                starts_by_axis = zip(*[eqn.primitive.start for eqn in counterparts], strict=True)  # type: ignore[attr-defined]
                args += [
                    operand(tuple([index_literal(start_index) for start_index in indices]))
                    for indices in starts_by_axis
                ]
            outputs = [Var(v.aval) for v in first.outputs]
            inner_vars.update(zip(first.outputs, outputs, strict=True))
            equations.append(Equation(primitive, args, outputs, first.source))
        begin = flow.equations[starts[0] : starts[0] + self.length]
        outputs = [inner_vars[begin[i].outputs[n]] for i, n in self.live_outs]
        program = Program("block", list(inputs.values()), equations, outputs)
        return program, [list(atoms) for atoms in inputs]

    def without_ends(self, first: int, last: int) -> RepeatGroup:
        """The group without its `first` first and `last` last parts."""
        starts = self.starts[first : len(self.starts) - last]
        return RepeatGroup(self.flow, starts, self.length, self.live_outs)

    def outputs(self, start: int) -> list[Var]:
        """The variables that the part from `start` on computes for later use."""
        return [self.flow.equations[start + i].outputs[n] for i, n in self.live_outs]


def index_literal(start: int) -> Literal:
    """An integer literal for the start of a slice."""
    return scalar_literal(start, _INDEX_DTYPE, False, repr(start))
