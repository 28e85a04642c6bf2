"""Repeats in a sequence of tokens, in time linear in its length but for a logarithm.

Windows of 1, 2, 4, ... tokens are numbered such that equal windows have equal numbers. Where the
distance from each window to the one before it that equals it stays the same, the sequence repeats
itself at that distance.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from functx import ops
from functx.core.decompositions import fallback_decomposition
from functx.core.primitive import Primitive
from functx.core.program import (
    Atom,
    Effect,
    Equation,
    Literal,
    Program,
    Var,
    scalar_literal,
    subprograms,
)
from functx.core.rewriting import cached_rewrite
from functx.transforms.call_primitive import Call


class PeriodicRepeat(NamedTuple):
    """`length` tokens from `start` on, each equal to the one `period` before it if that is among them."""

    start: int
    length: int
    period: int

    @property
    def size(self) -> int:
        """How many tokens a search through it has to look at."""
        return self.length

    def unclaimed(self, taken: Any) -> list[PeriodicRepeat]:
        """The parts of it, of two periods at least, that lie where nothing is `taken`."""
        start, length, period = self
        used = np.flatnonzero(taken[start : start + length])
        edges = [-1, *used.tolist(), length]
        return [
            PeriodicRepeat(start + a + 1, b - a - 1, period)
            for a, b in pairwise(edges)
            if b - a - 1 >= 2 * period
        ]


class ScatteredRepeat(NamedTuple):
    """`length` tokens that are the same from each of `starts` on, which lie at least so far apart."""

    starts: tuple[int, ...]
    length: int

    @property
    def size(self) -> int:
        """How many tokens a search through it has to look at."""
        return self.length * len(self.starts)

    def unclaimed(self, taken: Any) -> list[ScatteredRepeat]:
        """What is left of it where nothing is `taken`, if that is still a repeat."""
        length = self.length
        left = tuple([at for at in self.starts if not taken[at : at + length].any()])
        return [ScatteredRepeat(left, length)] if len(left) > 1 else []


Repeat = PeriodicRepeat | ScatteredRepeat


def find_repeats(tokens: Sequence[int], weights: Any, least: int) -> list[Repeat]:
    """The repeats among `tokens` that save at least `least` of their `weights`, in order of merit.

    Those with a period come first, since they may become loops; then what saves most.
    """
    total = np.concatenate([[0], np.cumsum(weights)])
    found: dict[Repeat, int] = {}
    alike: dict[Any, set[int]] = {}
    for width, numbers, distance in doubling_windows(tokens):
        firsts = np.concatenate([[0], np.flatnonzero(np.diff(distance)) + 1])
        lengths = np.append(firsts[1:], len(distance)) - firsts + width - 1
        apart = distance[firsts]
        saved = total[firsts + lengths] - total[firsts]
        for at in np.flatnonzero((apart > 0) & (saved > 0)):
            first, length, period = int(firsts[at]), int(lengths[at]), int(apart[at])
            if length >= period:
                if saved[at] >= least:
                    found[PeriodicRepeat(first - period, length + period, period)] = int(saved[at])
            elif width <= length < 2 * width:
                ends = int(numbers[first]), int(numbers[first + length - width])
                alike.setdefault((*ends, length), set()).update((first - period, first))
    for (*_, length), places in alike.items():
        starts = non_overlapping(length, sorted(places))
        gain = int(total[starts[0] + length] - total[starts[0]]) * (len(starts) - 1)
        if gain >= least:
            found[ScatteredRepeat(starts, length)] = gain
    return sorted(found, key=lambda each: (type(each) is ScatteredRepeat, -found[each], each[-1]))


def non_overlapping(length: int, places: Sequence[int]) -> tuple[int, ...]:
    """Those of the ascending `places` that lie so far behind the one before."""
    kept = [places[0]]
    for place in places:
        if place >= kept[-1] + length:
            kept.append(place)
    return tuple(kept)


def doubling_windows(tokens: Sequence[int]) -> Iterator[tuple[int, Any, Any]]:
    """For widths of 1, 2, 4, ...: that, the numbers of the windows, how far before each its equal is.

    The distance is 0 for a window without an equal before it.
    """
    numbers = np.unique(np.asarray(tokens, np.int64), return_inverse=True)[1].astype(np.int64)
    width = 1
    while len(numbers) > 1:
        order = np.argsort(numbers, kind="stable")
        later, earlier = order[1:], order[:-1]
        same = numbers[later] == numbers[earlier]
        if not same.any():
            return
        distance = np.zeros(len(numbers), np.int64)
        distance[later[same]] = later[same] - earlier[same]
        yield width, numbers, distance
        if len(numbers) <= width:
            return
        pairs = numbers[:-width] * (len(numbers) + 1) + numbers[width:]
        numbers = np.unique(pairs, return_inverse=True)[1].astype(np.int64)
        width *= 2


# What XLA merges into its uses, nearly for nothing.
_FREE_OPS = ops.Iota, ops.Reshape, ops.Slice
# What is emitted as others is not opened up just to be counted.
_COMPOSITE_WEIGHT = 8
_PINNED_EFFECTS = frozenset({Effect.WRITE, Effect.PROGRESS})


def tokenize(equations: Sequence[Equation]) -> tuple[list[int], list[int]]:
    """A token for each equation, and how many operations it becomes."""
    numbers: dict[Any, int] = {}
    weights: list[int] = []
    tokens = []
    for i, eqn in enumerate(equations):
        primitive = eqn.primitive
        avals = tuple([atom.aval for atom in eqn.inputs])
        key: Any = primitive, avals
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
    """Whether the slice can begin where an operand says."""
    return primitive.strides is None or set(primitive.strides) <= {1}


def operation_count(primitive: Primitive) -> int:
    """About how many operations an equation becomes when it is lowered."""
    if isinstance(primitive, _FREE_OPS) or (type(primitive) is Call and primitive.noinline):
        return 0
    if fallback_decomposition(type(primitive), ("lower",)) is not None:
        return _COMPOSITE_WEIGHT
    return 1 + sum([cached_rewrite(program_operation_count, sub) for sub in subprograms(primitive)])


def program_operation_count(program: Program) -> int:
    """About how many operations a program becomes."""
    return sum([operation_count(e.primitive) for e in program])


ResultIndex = tuple[int, int]
_INDEX_DTYPE = np.dtype("int32")


class EquationDataflow:
    """Where the variables of a list of equations are computed, and where last used."""

    def __init__(self, equations: Sequence[Equation], outputs: Sequence[Atom]):
        self.equations = equations
        self.producers: dict[Any, ResultIndex] = {}
        self.last_use: dict[Any, int] = {}
        last, makers = self.last_use, self.producers
        for i, eqn in enumerate(equations):
            for atom in eqn.inputs:
                last[atom] = i
            for n, v in enumerate(eqn.outputs):
                makers[v] = i, n
        last.update(dict.fromkeys(outputs, len(equations)))

    def is_internal(self, atom: Any, ends: Sequence[int]) -> bool:
        """Whether `atom` is computed and used only inside of what was replaced.

        `ends` says of each equation that was where what stands in its place ends, else 0.
        """
        place = self.producers.get(atom)
        return place is not None and self.last_use.get(atom, -1) < ends[place[0]]

    def starts(self, repeat: PeriodicRepeat) -> list[int]:
        """Where to cut what has a period: where the least goes from one part to the next."""
        first, length, period = repeat
        count, phases = divmod(length, period)
        across = self.bytes_crossing(first, first + length, period)
        best = min(range(phases + 1), key=lambda phase: across[phase])
        if count > 3:
            # Of many parts one may be given up for a better cut.
            other = min(range(period), key=lambda phase: across[phase])
            best = best if across[best] <= 1.5 * across[other] else other
        return list(range(first + best, first + length - period + 1, period))

    def bytes_crossing(self, first: int, stop: int, period: int) -> list[int]:
        """For each phase, the bytes that go from parts which begin there to the next ones."""
        reach: dict[Any, tuple[int, int]] = {}
        made = self.producers.get
        for i, eqn in enumerate(self.equations[first:stop], first):
            earliest = max(first, i - period)
            for atom in eqn.inputs:
                maker = made(atom)
                if maker is not None and maker[0] >= earliest:
                    reach[atom] = maker[0], i
        change = [0] * (stop - first + 1)
        for v, (begin, i) in reach.items():
            aval = v.aval
            size = 64 + aval.size * aval.dtype.itemsize
            change[begin + 1 - first] += size
            change[i + 1 - first] -= size
        found = [0] * period
        now = 0
        for i, more in enumerate(change[:-1]):
            now += more
            found[i % period] += now
        return found

    def internal_operands(self, start: int, length: int) -> tuple[int, ...]:
        """What the operands of a part are: numbers of its own results, or -1 from outside it."""
        made = self.producers.get
        places = [made(a) for e in self.equations[start : start + length] for a in e.inputs]
        return tuple(
            [-1 if at is None or at[0] < start else (at[0] - start << 16) + at[1] for at in places]
        )

    def live_out_results(self, start: int, length: int) -> tuple[ResultIndex, ...]:
        """The results of a part that what follows it uses, or the program returns."""
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
        """The parts that begin at `starts`, those that are alike together."""
        alike: dict[Any, list[int]] = {}
        for start in starts:
            alike.setdefault(self.internal_operands(start, length), []).append(start)
        found = []
        for members in alike.values():
            by_results: dict[Any, list[int]] = {}
            for start in members:
                by_results.setdefault(self.live_out_results(start, length), []).append(start)
            most = max(by_results, key=lambda results: len(by_results[results]))
            # One that gives less than most of them is like those, with results that go unused.
            for results, group in list(by_results.items()):
                if len(group) == 1 and results != most and {*results} <= {*most}:
                    by_results[most] += by_results.pop(results)
            for results, group in by_results.items():
                if len(group) > 1:
                    found.append(RepeatGroup(self, sorted(group), length, results))
        return found


@dataclass
class RepeatGroup:
    """Parts of a list of equations that one program can stand for."""

    flow: EquationDataflow
    starts: list[int]
    length: int
    live_outs: tuple[ResultIndex, ...]

    def program(self) -> tuple[Program, list[list[Atom]]]:
        """That program, and for each of its inputs what stands for it in each of the parts."""
        flow, starts = self.flow, self.starts
        inputs: dict[tuple[Any, ...], Var] = {}
        own: dict[Any, Var] = {}
        equations = []

        def operand(atoms: tuple[Any, ...]) -> Atom:
            if type(atoms[0]) is Literal and atoms.count(atoms[0]) == len(atoms):
                return atoms[0]
            found = inputs.get(atoms)
            if found is None:
                found = inputs[atoms] = Var(atoms[0].aval)
            return found

        for i in range(self.length):
            alike = [flow.equations[start + i] for start in starts]
            first = alike[0]
            args: list[Atom] = []
            for n, atom in enumerate(first.inputs):
                inner = own.get(atom)
                args.append(
                    operand(tuple([e.inputs[n] for e in alike])) if inner is None else inner
                )
            primitive = first.primitive
            if any([eqn.primitive is not primitive for eqn in alike]):
                primitive = ops.DynamicSlice(first.outputs[0].aval.shape)
                places = zip(*[eqn.primitive.start for eqn in alike], strict=True)  # type: ignore[attr-defined]
                args += [operand(tuple([index_literal(at) for at in each])) for each in places]
            outputs = [Var(v.aval) for v in first.outputs]
            own.update(zip(first.outputs, outputs, strict=True))
            equations.append(Equation(primitive, args, outputs, first.source))
        begin = flow.equations[starts[0] : starts[0] + self.length]
        outputs = [own[begin[i].outputs[n]] for i, n in self.live_outs]
        program = Program("block", list(inputs.values()), equations, outputs)
        return program, [list(atoms) for atoms in inputs]

    def without_ends(self, first: int, last: int) -> RepeatGroup:
        """The group without so many of its first and last parts."""
        starts = self.starts[first : len(self.starts) - last]
        return RepeatGroup(self.flow, starts, self.length, self.live_outs)

    def outputs(self, start: int) -> list[Var]:
        """The variables of what the part that begins at `start` gives."""
        return [self.flow.equations[start + i].outputs[n] for i, n in self.live_outs]


def index_literal(at: int) -> Literal:
    """A literal that says where a slice begins."""
    return scalar_literal(at, _INDEX_DTYPE, False, repr(at))
