"""Parts that are computed from the array they are written into, under another shape.

XLA on CPUs writes such a part in place while it still computes it from what is there: it does not
see that a reshaped array is the same memory. The part is therefore fixed before it is written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from functx.core.interpret import forward, interpret
from functx.core.program import Equation, Program, Var
from functx.core.tracing import Tracer, trace
from functx.ops.conversion import BitcastConvertType
from functx.ops.shaping import BroadcastInDim, PermuteDims, Reshape
from functx.ops.slicing import DynamicUpdateSlice, ReadBeforeWrite

_SAME_MEMORY = Reshape, PermuteDims, BroadcastInDim, BitcastConvertType


@dataclass(frozen=True)
class PartsFirst:
    """The rewrite to a program that fixes such parts before it writes them.

    With `inputs`, those of the program may be reshaped arrays, too.
    """

    inputs: bool = False

    def __call__(self, program: Program) -> Program:
        writes = [e for e in program.equations if type(e.primitive) is DynamicUpdateSlice]
        if not writes:
            return program
        producers = {v: eqn for eqn in program.equations for v in eqn.outputs}
        overlapping = {eqn for eqn in writes if self.overlaps(eqn, producers)}
        if not overlapping:
            return program

        def step(eqn: Equation, *args: Tracer) -> Sequence[Tracer]:
            if eqn not in overlapping:
                return forward(eqn, *args)
            x, part, *places = args
            part, _ = ReadBeforeWrite()(part)
            return forward(eqn, x, part, *places)

        def body(*args: Tracer) -> list[Tracer]:
            return interpret(program, args, step, constant=lambda c: c)

        return trace(body, program.in_avals, name=program.name, in_names=program.in_names)[0]

    def overlaps(self, write: Equation, producers: dict[Var, Equation]) -> bool:
        """Whether what is written comes of the array under another shape."""
        x, part = write.inputs[:2]
        same = {x}
        while (eqn := producers.get(x)) and isinstance(eqn.primitive, _SAME_MEMORY):  # type: ignore[arg-type]
            x = eqn.inputs[0]
            same.add(x)
        if len(same) == 1 and not (self.inputs and x not in producers):
            return False
        pending, seen = [part], set()
        while pending:
            atom = pending.pop()
            if atom in same:
                return True
            if type(atom) is not Var or atom in seen:
                continue
            seen.add(atom)
            maker = producers.get(atom)
            if maker is not None and type(maker.primitive) is not ReadBeforeWrite:
                pending += maker.inputs
        return False
