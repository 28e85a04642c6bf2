"""Branches split in two for a derivative, to halves of common types."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from functx.core.program import Program, Var
from functx.core.records import Rewrite
from functx.core.rewriting import apply, cached_rewrite
from functx.core.tracing import trace_closed
from functx.ops.shaping import zeros_like
from functx.transforms.parts import with_io


class BranchSplit(NamedTuple):
    """Branches split in two: their values, and the rest, which needs something of the values.

    What it needs are the operands at the positions `passed`, and what `values` returns
    behind its outputs.
    """

    known: tuple[Program, ...]
    unknown: tuple[Program, ...]
    forwarded: tuple[int, ...]

    def residuals(self, operands: Sequence[Any], saved: Sequence[Any]) -> list[Any]:
        """The last operands of `rest`."""
        return [*[operands[i] for i in self.forwarded], *saved]


class PartialEvalBranches(Rewrite[BranchSplit]):
    """The rewrite of all of `branches`, each split by `rewrite`, to halves of common types.

    Of what the branches save, values of one type share an output: only one branch runs.
    The others fill it with zeros.
    """

    rewrite: Any
    branches: tuple[Program, ...]

    def __call__(self, _: Program) -> BranchSplit:
        halves = [cached_rewrite(self.rewrite, branch) for branch in self.branches]
        count = len(self.branches[0].outputs)
        passed: list[int] = []
        slots: list[Any] = []
        # For each branch: where each value that it saves comes from.
        sources: list[list[tuple[bool, int]]] = []
        for values, _rest in halves:
            places: list[tuple[bool, int]] = []
            taken: set[int] = set()
            for atom in values.outputs[count:]:
                if atom in values.inputs:
                    position = values.inputs.index(atom)
                    if position not in passed:
                        passed.append(position)
                    places.append((True, passed.index(position)))
                    continue
                aval = atom.aval.update(weak_type=False)
                free = [i for i, a in enumerate(slots) if a is aval and i not in taken]
                if not free:
                    slots.append(aval)
                    free = [len(slots) - 1]
                taken.add(free[0])
                places.append((False, free[0]))
            sources.append(places)
        operands = self.branches[0].in_avals
        known = [*[operands[i] for i in passed], *slots]
        values_of, rest_of = [], []
        for (values, rest), places in zip(halves, sources, strict=True):
            values_of.append(_with_residual_slots(values, count, places, slots))
            at = [i if is_passed else len(passed) + i for is_passed, i in places]
            inputs = [Var(aval) for aval in known]
            lead = len(rest.inputs) - len(at)
            for i, v in zip(at, rest.inputs[lead:], strict=True):
                inputs[i] = v
            rest_of.append(with_io(rest, [*rest.inputs[:lead], *inputs], rest.outputs))
        return BranchSplit(tuple(values_of), tuple(rest_of), tuple(passed))


def _with_residual_slots(
    values: Program, count: int, places: Sequence[tuple[bool, int]], slots: Sequence[Any]
) -> Program:
    """`values` with what it returns behind its first `count` outputs put into `slots`."""

    def body(*args: Any) -> list[Any]:
        outs = apply(None, values, args)
        saved = {
            i: x for (is_passed, i), x in zip(places, outs[count:], strict=True) if not is_passed
        }
        filled = [saved[i] if i in saved else zeros_like(aval) for i, aval in enumerate(slots)]
        return [*outs[:count], *filled]

    return trace_closed(body, values.in_avals, name=values.name)
