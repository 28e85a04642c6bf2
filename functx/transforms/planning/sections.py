"""Programs cut into sections: runs of equations as calls, so that each is computed again alone."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import accumulate, pairwise
from typing import Any

from functx.core.editing import replace_program_fields
from functx.core.program import Equation, Program, Var
from functx.core.records import Rewrite
from functx.transforms.call import Call
from functx.transforms.planning.costs import bytes_of


class SplitIntoSegments(Rewrite[Program]):
    """The rewrite to calls of about `count` sections that compute about as many bytes each.

    They are cut where few bytes cross. A program with effects is left as it is.
    """

    count: int

    def __call__(self, program: Program) -> Program:
        if program.effects or len(program.equations) < 2 * self.count:
            return program
        cuts = [0, *self.cut_positions(program), len(program.equations)]
        last = {atom: i for i, eqn in enumerate(program) for atom in eqn.inputs}
        last.update(dict.fromkeys(program.outputs, len(program.equations)))
        equations = [
            segment_call(program, start, end, last) for start, end in pairwise(cuts) if end > start
        ]
        return replace_program_fields(program, equations=equations)

    def cut_positions(self, program: Program) -> list[int]:
        """Where sections begin, the first aside."""
        made = list(accumulate([sum([bytes_of(v.aval) for v in e.outputs]) for e in program]))
        crossing = crossing_bytes(program)
        step = made[-1] / self.count
        cuts: list[int] = []
        for n in range(1, self.count):
            first = bisect_left(made, (n - 1 / 3) * step) + 1
            stop = bisect_right(made, (n + 1 / 3) * step) + 1
            near = range(max(first, cuts[-1] + 1 if cuts else 1), min(stop, len(made)))
            if near:
                cuts.append(min(near, key=crossing.__getitem__))
        return cuts


def crossing_bytes(program: Program) -> list[int]:
    """For each position, the bytes of what is made before it and used at it or later."""
    changes = [0] * (len(program.equations) + 2)
    position = {v: i for i, eqn in enumerate(program) for v in eqn.outputs}
    last = dict(position)
    for i, eqn in enumerate(program):
        last.update({a: i for a in eqn.inputs if type(a) is Var and a in position})
    for v, i in position.items():
        changes[i + 1] += bytes_of(v.aval)
        changes[last[v] + 1] -= bytes_of(v.aval)
    return list(accumulate(changes))


def segment_call(program: Program, start: int, end: int, last: dict[Any, int]) -> Equation:
    """A call in place of the equations of `program` from `start` to before `end`.

    `last` says where what is used is used last.
    """
    inside = program.equations[start:end]
    made = {v for eqn in inside for v in eqn.outputs}
    read = dict.fromkeys([a for eqn in inside for a in eqn.inputs if type(a) is Var])
    inputs = [v for v in read if v not in made]
    outputs = [v for eqn in inside for v in eqn.outputs if last.get(v, -1) >= end]
    call = Call(Program("section", inputs, inside, outputs), True)
    return Equation(call, list(inputs), outputs, inside[-1].source)
