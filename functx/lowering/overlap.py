"""Parts that are computed from the array they are written into.

XLA on CPUs writes such a part in place while it still computes it from what is there, if the
array has another shape before or after: it moves the reshape behind the array, and then does not
see that both are the same memory. What is written is therefore fixed first, or a large part put
into a new array instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from functx.core.interpret import bind_equation, interpret
from functx.core.program import Equation, Literal, Program, Var
from functx.core.records import Rewrite
from functx.core.tracing import Tracer, trace_closed
from functx.ops.conversion import BitcastConvertType
from functx.ops.families import Elementwise
from functx.ops.joining import pad
from functx.ops.selection import select
from functx.ops.shaping import BroadcastInDim, PermuteDims, Reshape, full
from functx.ops.slicing import (
    DynamicSlice,
    DynamicUpdateSlice,
    ReadBeforeWrite,
    Slice,
    zero_scalar_like,
)

_RESHAPING_PRIMITIVES = Reshape, PermuteDims, BroadcastInDim, BitcastConvertType
_MAX_PART_RATIO = 8


class FixOverlappingUpdates(Rewrite[Program]):
    """The rewrite to a program that fixes such parts before it writes them.

    With `inline`, what is around the program may reshape its inputs and outputs, too.
    """

    inline: bool = False

    def __call__(self, program: Program) -> Program:
        writes = [e for e in program.equations if type(e.primitive) is DynamicUpdateSlice]
        writes = [e for e in writes if e.inputs[1].aval.size > 1]
        if not writes:
            return program
        flow = _DefUse(program)
        overlapping = {
            eqn
            for eqn in writes
            if flow.reads_target(eqn) and flow.may_be_reshaped(eqn, self.inline)
        }
        if not overlapping:
            return program

        def step(eqn: Equation, *args: Tracer) -> Sequence[Tracer]:
            return (
                [_update_without_overlap(*args)]
                if eqn in overlapping
                else bind_equation(eqn, *args)
            )

        def body(*args: Tracer) -> list[Tracer]:
            return interpret(program, args, step)

        return trace_closed(body, program.in_avals, name=program.name, in_names=program.in_names)


def _update_without_overlap(x: Tracer, part: Tracer, *places: Tracer) -> Any:
    """`x` with `part` at `places`, which is computed before any of it is written."""
    starts = [at.atom.value for at in places if type(at.atom) is Literal]
    if len(starts) < x.ndim or part.size * _MAX_PART_RATIO < x.size:
        part, _ = ReadBeforeWrite()(part)
        return DynamicUpdateSlice()(x, part, *places)
    sizes = list(zip(x.shape, part.shape, strict=True))
    starts = [min(max(int(at), 0), n - m) for at, (n, m) in zip(starts, sizes, strict=True)]
    config = [(at, n - at - m, 0) for at, (n, m) in zip(starts, sizes, strict=True)]
    replaced = pad(full(part.shape, True), False, config)
    return select(replaced, pad(part, zero_scalar_like(part), config), x)


class _DefUse:
    """Where the values of a program come from, and where they go."""

    def __init__(self, program: Program):
        self.outputs = {*program.outputs}
        self.producers = {v: eqn for eqn in program.equations for v in eqn.outputs}
        self.users: dict[Any, list[Equation]] = {}
        for eqn in program.equations:
            for atom in {*eqn.inputs}:
                self.users.setdefault(atom, []).append(eqn)

    def reshaped_sources(self, x: Any) -> list[Any]:
        """`x`, and what it is under another shape."""
        found = [x]
        while (eqn := self.producers.get(x)) and isinstance(eqn.primitive, _RESHAPING_PRIMITIVES):
            x = eqn.inputs[0]
            found.append(x)
        return found

    def reads_target(self, write: Equation) -> bool:
        """Whether what is written comes of the array that it is written into."""
        shapes = self.reshaped_sources(write.inputs[0])
        pending: list[Any] = [write.inputs[1]]
        seen: set[Any] = set()
        while pending:
            atom = pending.pop()
            if atom in shapes:
                return True
            if type(atom) is not Var or atom in seen:
                continue
            seen.add(atom)
            maker = self.producers.get(atom)
            if maker is not None and type(maker.primitive) is not ReadBeforeWrite:
                pending += maker.inputs
        return False

    def may_be_reshaped(self, write: Equation, inline: bool) -> bool:
        """Whether the array may have another shape before the write, or after it."""
        before = self.reshaped_sources(write.inputs[0])
        if len(before) > 1 or (inline and before[0] not in self.producers):
            return True
        pending: list[Any] = [write.outputs[0]]
        seen: set[Any] = set()
        while pending:
            atom = pending.pop()
            if atom in seen:
                continue
            seen.add(atom)
            if inline and atom in self.outputs:
                return True
            for user in self.users.get(atom, ()):
                primitive = user.primitive
                if isinstance(primitive, (Slice, DynamicSlice)):
                    continue
                moved_along = isinstance(primitive, Elementwise) or (
                    type(primitive) is DynamicUpdateSlice and user.inputs[0] is atom
                )
                if not moved_along:
                    return True
                pending += user.outputs
        return False
