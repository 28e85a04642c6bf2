"""Runs of equations that do the same: which are alike in their data flow, and what they share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from functx.core.program import Atom, Equation, Literal, Program, Var, scalar_literal
from functx.ops.slicing import DynamicSlice
from functx.transforms.outlining.periods import PeriodicRepeat

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
                primitive = DynamicSlice(first.outputs[0].aval.shape)
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
