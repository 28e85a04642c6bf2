"""Loops that write into a buffer: their reads made to come before their writes.

XLA updates a buffer in place only where nothing else reads it afterwards, and it fuses a read
into each of its uses, so that what is read once for two results is read at two times. A part
that is read from a carry which the body also writes to is therefore fixed by an operation that
is not fused, and the write is made to depend on that.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from functx.core.avals import ShapedArray
from functx.core.interpret import bind_equation, interpret
from functx.core.program import Equation, Program, Var
from functx.core.records import Rewrite
from functx.core.tracing import Tracer, trace_closed
from functx.ops.arithmetic import add
from functx.ops.conversion import convert_element_type
from functx.ops.gathering import Gather
from functx.ops.scattering import Scatter
from functx.ops.shaping import reshape
from functx.ops.slicing import (
    DynamicSlice,
    DynamicUpdateSlice,
    ReadBeforeWrite,
    Slice,
    slice,
)

_READ_PRIMITIVES = DynamicSlice, Gather, Slice
_WRITE_PRIMITIVES = DynamicUpdateSlice, Scatter


def _is_cheap_to_materialize(part: ShapedArray, whole: ShapedArray) -> bool:
    """Whether to fix a part costs less than to copy the whole in each step."""
    return whole.size > 64 and whole.size >= 16 * part.size


class OrderReadsBeforeWrites(Rewrite[Program]):
    """The rewrite of a loop body whose `count` carries are its inputs from `first` on."""

    first: int
    count: int

    def __call__(self, program: Program) -> Program:
        carries = program.inputs[self.first : self.first + self.count]
        writer, reads = find_writes_and_reads(program, carries)
        if not reads:
            return program
        dependent = {write: equations_feeding(program, write) for write in writer.values()}
        zeros: dict[Var, list[Tracer]] = {}

        def step(eqn: Equation, *args: Tracer) -> Sequence[Tracer]:
            if eqn in reads:
                source = eqn.inputs[0]
                read, zero = ReadBeforeWrite()(*bind_equation(eqn, *args))
                if eqn not in dependent[writer[source]]:  # type: ignore[index]
                    zeros.setdefault(source, []).append(zero)  # type: ignore[arg-type]
                return [read]
            writes = isinstance(eqn.primitive, _WRITE_PRIMITIVES)
            waits = zeros.get(eqn.inputs[0], []) if writes else []  # type: ignore[arg-type]
            if waits:
                at = 1 if isinstance(eqn.primitive, Scatter) else 2
                args = (*args[:at], with_data_dependence(args[at], waits), *args[at + 1 :])
            return bind_equation(eqn, *args)

        def body(*args: Tracer) -> list[Tracer]:
            return interpret(program, args, step, constant=lambda c: c)

        return trace_closed(body, program.in_avals, name=program.name, in_names=program.in_names)


def with_data_dependence(index: Tracer, zeros: Sequence[Tracer]) -> Tracer:
    """`index`, which is known only after all of `zeros`."""
    for zero in zeros:
        first = reshape(slice(reshape(zero, (zero.size,)), [0], [1]), ())
        nothing = convert_element_type(first, np.dtype("int32"))
        index = add(index, convert_element_type(nothing, index.dtype, index.weak_type))
    return index


def find_writes_and_reads(
    program: Program, carries: Sequence[Var]
) -> tuple[dict[Var, Equation], set[Equation]]:
    """For each value of a carried buffer the equation that writes to it, and reads to be fixed."""
    versions = {*carries}
    writer: dict[Var, Equation] = {}
    found: list[Equation] = []
    uses: dict[Var, list[Equation]] = {}
    for eqn in program.equations:
        for atom in eqn.inputs:
            if type(atom) is Var:
                uses.setdefault(atom, []).append(eqn)
        source = eqn.inputs[0] if eqn.inputs else None
        if source not in versions or type(source) is not Var:
            continue
        if isinstance(eqn.primitive, _WRITE_PRIMITIVES):
            writer[source] = eqn
            versions.add(eqn.outputs[0])
        elif isinstance(eqn.primitive, _READ_PRIMITIVES) and _is_cheap_to_materialize(
            eqn.outputs[0].aval, source.aval
        ):
            found.append(eqn)
    reads = set()
    for eqn in found:
        write = writer.get(eqn.inputs[0])  # type: ignore[arg-type]
        if write is None or program.equations.index(write) < program.equations.index(eqn):
            continue
        if not is_used_only_by(program, eqn.outputs[0], write, uses):
            reads.add(eqn)
    return writer, reads


def is_used_only_by(
    program: Program, var: Var, write: Equation, uses: dict[Var, list[Equation]]
) -> bool:
    """Whether `var` is used for the part that `write` writes and for nothing else."""
    while True:
        users = uses.get(var, [])
        if len(users) != 1 or var in program.outputs:
            return False
        (eqn,) = users
        if eqn is write:
            return True
        if len(eqn.outputs) != 1:
            return False
        (var,) = eqn.outputs


def equations_feeding(program: Program, write: Equation) -> set[Equation]:
    """The equations that the operands of `write`, other than the buffer, are computed by."""
    needed = {a for a in write.inputs[1:] if type(a) is Var}
    found: set[Equation] = set()
    position = program.equations.index(write)
    for eqn in reversed(program.equations[:position]):
        if not needed.isdisjoint(eqn.outputs):
            found.add(eqn)
            needed.update(a for a in eqn.inputs if type(a) is Var)
    return found
