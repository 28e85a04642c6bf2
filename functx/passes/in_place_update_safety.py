"""Parts that are computed from the array they are written into.

XLA on CPUs writes such a part in place while it still computes it from what is there, if the
array has another shape before or after: it moves the reshape behind the array, and then does not
see that both are the same memory. What is written is therefore fixed first, or a large part put
into a new array instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import is_
from typing import Any

import numpy as np

from functx import ops
from functx.core.program import Equation, Literal, Program, Var
from functx.core.program_editing import replace_program_fields
from functx.core.records import Rewrite
from functx.core.rewriting import bind_equation, cached_rewrite, interpret
from functx.core.tracer import Tracer
from functx.core.tracing import trace_closed
from functx.core.types import ShapedArray
from functx.ops.families import Elementwise
from functx.transforms.control.scan import Scan
from functx.transforms.control.while_loop import While

_RESHAPING_PRIMITIVES = ops.Reshape, ops.PermuteDims, ops.BroadcastInDim, ops.BitcastConvertType
_MAX_PART_RATIO = 8


class FixOverlappingUpdates(Rewrite[Program]):
    """The rewrite to a program that fixes such parts before it writes them.

    With `inline`, what is around the program may reshape its inputs and outputs, too.
    """

    inline: bool = False

    def __call__(self, program: Program) -> Program:
        writes = [e for e in program.equations if type(e.primitive) is ops.DynamicUpdateSlice]
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
        part, _ = ops.ReadBeforeWrite()(part)
        return ops.DynamicUpdateSlice()(x, part, *places)
    sizes = list(zip(x.shape, part.shape, strict=True))
    starts = [min(max(int(at), 0), n - m) for at, (n, m) in zip(starts, sizes, strict=True)]
    config = [(at, n - at - m, 0) for at, (n, m) in zip(starts, sizes, strict=True)]
    replaced = ops.pad(ops.full(part.shape, True), False, config)
    return ops.select(replaced, ops.pad(part, ops.zero_scalar_like(part), config), x)


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
            if maker is not None and type(maker.primitive) is not ops.ReadBeforeWrite:
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
                if isinstance(primitive, (ops.Slice, ops.DynamicSlice)):
                    continue
                moved_along = isinstance(primitive, Elementwise) or (
                    type(primitive) is ops.DynamicUpdateSlice and user.inputs[0] is atom
                )
                if not moved_along:
                    return True
                pending += user.outputs
        return False


_READ_PRIMITIVES = ops.DynamicSlice, ops.Gather, ops.Slice
_WRITE_PRIMITIVES = ops.DynamicUpdateSlice, ops.Scatter


def _is_cheap_to_materialize(part: ShapedArray, whole: ShapedArray) -> bool:
    """Whether to fix a part costs less than to copy the whole in each step."""
    return whole.size > 64 and whole.size >= 16 * part.size


class OrderReadsBeforeWrites(Rewrite[Program]):
    """Rewrites the loops of a program, so that a step reads a carried buffer before it writes to it."""

    def __call__(self, program: Program) -> Program:
        equations = [order_loop(eqn) for eqn in program.equations]
        if all(map(is_, equations, program.equations)):
            return program
        return replace_program_fields(program, equations=equations)


def order_loop(eqn: Equation) -> Equation:
    """The equation of a loop with the rewritten body; any other equation as it is."""
    loop = eqn.primitive
    if type(loop) is Scan:
        body = cached_rewrite(OrderLoopBody(loop.consts, loop.carries), loop.program)
        if body is not loop.program:
            return eqn.replace(primitive=loop.with_program(body, loop.consts, loop.carries))
    elif type(loop) is While:
        consts = loop.condition_consts, loop.body_consts
        body = cached_rewrite(OrderLoopBody(consts[1], len(loop.body.outputs)), loop.body)
        if body is not loop.body:
            return eqn.replace(primitive=loop.with_program(loop.condition, body, *consts))
    return eqn


class OrderLoopBody(Rewrite[Program]):
    """Rewrites a loop body, whose `count` carries are its inputs from `first` on, in the same way."""

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
                read, zero = ops.ReadBeforeWrite()(*bind_equation(eqn, *args))
                if eqn not in dependent[writer[source]]:  # type: ignore[index]
                    zeros.setdefault(source, []).append(zero)  # type: ignore[arg-type]
                return [read]
            writes = isinstance(eqn.primitive, _WRITE_PRIMITIVES)
            waits = zeros.get(eqn.inputs[0], []) if writes else []  # type: ignore[arg-type]
            if waits:
                at = 1 if isinstance(eqn.primitive, ops.Scatter) else 2
                args = (*args[:at], with_data_dependence(args[at], waits), *args[at + 1 :])
            return bind_equation(eqn, *args)

        def body(*args: Tracer) -> list[Tracer]:
            return interpret(program, args, step, constant=lambda c: c)

        return trace_closed(body, program.in_avals, name=program.name, in_names=program.in_names)


def with_data_dependence(index: Tracer, zeros: Sequence[Tracer]) -> Tracer:
    """`index`, which is known only after all of `zeros`."""
    for zero in zeros:
        first = ops.reshape(ops.slice(ops.reshape(zero, (zero.size,)), [0], [1]), ())
        nothing = ops.convert_element_type(first, np.dtype("int32"))
        index = ops.add(index, ops.convert_element_type(nothing, index.dtype, index.weak_type))
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
