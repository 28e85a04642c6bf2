"""Two hazards of updates in place by XLA on CPUs, and the passes that avoid them.

XLA writes a slice of an array in place while it still computes the slice from the same memory, if
the array is reshaped before or after the update: it moves the reshape behind the update, and then
does not see that both are the same array. So the slice is computed first, or a large slice is
selected into a new array. Likewise a step of a loop may write to a carried buffer before it has
read it, or copy the buffer. So the read is computed first, and the write made to depend on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import is_
from typing import Any

import numpy as np

from functx import ops
from functx.core.program import Atom, Equation, Literal, Program, Var
from functx.core.program_editing import replace_program_fields
from functx.core.rewriting import Rewrite, bind_equation, cached_rewrite
from functx.core.tracer import Tracer
from functx.core.tracing import map_equations
from functx.core.types import ShapedArray
from functx.core.typing import Value, Values
from functx.ops.dynamic_slicing import clamp_starts
from functx.ops.families import Elementwise
from functx.passes.loop_reads import retypes
from functx.passes.memory_planning import backward_slice
from functx.transforms.control.scan import Scan
from functx.transforms.control.while_loop import While

_RESHAPING_PRIMITIVES = ops.Reshape, ops.PermuteDims, ops.BroadcastInDim, ops.BitcastConvertType
_MAX_COPY_RATIO = 8
"""An array at most so much larger than the slice is made anew instead of updated."""


class FixOverlappingUpdates(Rewrite[Program]):
    """Rewrites a program such that a slice computed from the array it updates is computed first.

    With `inline`, code around the program may reshape its inputs and outputs, too.
    """

    inline: bool = False

    def __call__(self, program: Program) -> Program:
        writes = [e for e in program.equations if type(e.primitive) is ops.DynamicUpdateSlice]
        writes = [e for e in writes if e.inputs[1].aval.size > 1]
        if not writes:
            return program
        overlapping = {
            eqn
            for eqn in writes
            if reads_target(program, eqn) and may_be_reshaped(program, eqn, self.inline)
        }
        if not overlapping:
            return program

        def step(eqn: Equation, *args: Tracer) -> Values:
            return (
                [_update_without_overlap(*args)]
                if eqn in overlapping
                else bind_equation(eqn, *args)
            )

        return map_equations(program, step)


def _update_without_overlap(x: Tracer, update: Tracer, *indices: Tracer) -> Value:
    """`x` with `update` at `indices`, all of which is computed before any of it is written."""
    starts = [index.atom.value for index in indices if type(index.atom) is Literal]
    if len(starts) < x.ndim or update.size * _MAX_COPY_RATIO < x.size:
        update, _ = ops.ReadBeforeWrite()(update)
        return ops.DynamicUpdateSlice()(x, update, *indices)
    places = zip(clamp_starts(starts, x.shape, update.shape), x.shape, update.shape, strict=True)
    config = [(start, n - start - m, 0) for start, n, m in places]
    mask = ops.pad(ops.full(update.shape, True), False, config)
    return ops.select(mask, ops.pad(update, ops.zero_scalar_like(update), config), x)


def reshaped_sources(program: Program, x: Atom) -> list[Atom]:
    """`x`, and the variables with the same elements in another shape that it is made of."""
    sources = [x]
    while (eqn := program.def_use.producers.get(x)) and isinstance(
        eqn.primitive, _RESHAPING_PRIMITIVES
    ):
        x = eqn.inputs[0]
        sources.append(x)
    return sources


def reads_target(program: Program, write: Equation) -> bool:
    """Whether the update of `write` is computed from the array that it is written into."""
    sources = reshaped_sources(program, write.inputs[0])
    pending: list[Any] = [write.inputs[1]]
    visited: set[Atom] = set()
    while pending:
        atom = pending.pop()
        if atom in sources:
            return True
        if type(atom) is not Var or atom in visited:
            continue
        visited.add(atom)
        producer = program.def_use.producers.get(atom)
        if producer is not None and type(producer.primitive) is not ops.ReadBeforeWrite:
            pending += producer.inputs
    return False


def may_be_reshaped(program: Program, write: Equation, inline: bool) -> bool:
    """Whether the array that `write` updates may be reshaped before it or after it."""
    flow, outputs = program.def_use, {*program.outputs}
    sources = reshaped_sources(program, write.inputs[0])
    if len(sources) > 1 or (inline and sources[0] not in flow.producers):
        return True
    pending: list[Any] = [write.outputs[0]]
    visited: set[Atom] = set()
    while pending:
        atom = pending.pop()
        if atom in visited:
            continue
        visited.add(atom)
        if inline and atom in outputs:
            return True
        for user in flow.users.get(atom, ()):
            primitive = user.primitive
            if isinstance(primitive, (ops.Slice, ops.DynamicSlice)):
                continue
            keeps_shape = isinstance(primitive, Elementwise) or (
                type(primitive) is ops.DynamicUpdateSlice and user.inputs[0] is atom
            )
            if not keeps_shape:
                return True
            pending += user.outputs
    return False


_READ_PRIMITIVES = ops.DynamicSlice, ops.Gather, ops.Slice
_WRITE_PRIMITIVES = ops.DynamicUpdateSlice, ops.Scatter


def _is_cheap_to_materialize(slice_aval: ShapedArray, array: ShapedArray) -> bool:
    """Whether it costs less to compute the slice first than to copy the whole array in each step."""
    return array.size > 64 and array.size >= 16 * slice_aval.size


class OrderReadsBeforeWrites(Rewrite[Program]):
    """Rewrites the loops of a program such that a step reads a carried buffer before it writes to it."""

    def __call__(self, program: Program) -> Program:
        equations = [order_loop(eqn) for eqn in program.equations]
        if all(map(is_, equations, program.equations)):
            return program
        return replace_program_fields(program, equations=equations)


def order_loop(eqn: Equation) -> Equation:
    """The equation of a loop with a rewritten body; any other equation as it is."""
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
    """Rewrites a loop body such that it reads the `count` carries from input `first` on before it writes."""

    first: int
    count: int

    def __call__(self, program: Program) -> Program:
        carries = program.inputs[self.first : self.first + self.count]
        version_of, writer, reads = find_writes_and_reads(program, carries)
        if not reads:
            return program
        dependent = {write: equations_feeding(program, write) for write in writer.values()}
        zeros: dict[Var, list[Tracer]] = {}

        def step(eqn: Equation, *args: Value) -> Sequence[Tracer]:
            if eqn in reads:
                version = version_of[eqn.inputs[0]]
                read, zero = ops.ReadBeforeWrite()(*bind_equation(eqn, *args))
                if eqn not in dependent[writer[version]]:
                    zeros.setdefault(version, []).append(zero)
                return [read]
            dependences: list[Tracer] = []
            if isinstance(eqn.primitive, _WRITE_PRIMITIVES) and eqn.inputs[0] in version_of:
                dependences = zeros.get(version_of[eqn.inputs[0]], [])
            if dependences:
                i = 1 if isinstance(eqn.primitive, ops.Scatter) else 2
                args = (*args[:i], with_data_dependence(args[i], dependences), *args[i + 1 :])
            return bind_equation(eqn, *args)

        return map_equations(program, step)


def with_data_dependence(index: Value, zeros: Sequence[Tracer]) -> Value:
    """`index` plus zeros, which XLA computes only after all of `zeros`."""
    for zero in zeros:
        scalar = ops.reshape(ops.slice(ops.reshape(zero, (zero.size,)), [0], [1]), ())
        scalar = ops.convert_element_type(scalar, np.dtype("int32"))
        index = ops.add(index, ops.convert_element_type(scalar, index.dtype, index.weak_type))
    return index


def find_writes_and_reads(
    program: Program, carries: Sequence[Var]
) -> tuple[dict[Atom, Var], dict[Var, Equation], set[Equation]]:
    """The versions of carried buffers, the equation that writes to each, the reads to compute before it.

    A version is its first variable; it may have others of the same elements.
    """
    version_of: dict[Atom, Var] = {v: v for v in carries}
    writer: dict[Var, Equation] = {}
    candidates: list[Equation] = []
    for eqn in program.equations:
        version = version_of.get(eqn.inputs[0]) if eqn.inputs else None
        if version is None:
            continue
        source = eqn.inputs[0]
        if isinstance(eqn.primitive, _WRITE_PRIMITIVES):
            writer[version] = eqn
            version_of[eqn.outputs[0]] = eqn.outputs[0]
        elif retypes(eqn):
            version_of[eqn.outputs[0]] = version
        elif isinstance(eqn.primitive, _READ_PRIMITIVES) and _is_cheap_to_materialize(
            eqn.outputs[0].aval, source.aval
        ):
            candidates.append(eqn)
    reads = set()
    for eqn in candidates:
        write = writer.get(version_of[eqn.inputs[0]])
        if write is None or program.equations.index(write) < program.equations.index(eqn):
            continue
        if not is_used_only_by(program, eqn.outputs[0], write):
            reads.add(eqn)
    return version_of, writer, reads


def is_used_only_by(program: Program, var: Var, write: Equation) -> bool:
    """Whether `var` is used for the update that `write` writes and for nothing else."""
    while True:
        users = program.def_use.users.get(var, [])
        if len(users) != 1 or users[0].inputs.count(var) != 1 or var in program.outputs:
            return False
        (eqn,) = users
        if eqn is write:
            return True
        if len(eqn.outputs) != 1:
            return False
        (var,) = eqn.outputs


def equations_feeding(program: Program, write: Equation) -> set[Equation]:
    """The equations that compute the operands of `write` other than the buffer."""
    position = program.equations.index(write)
    return {*backward_slice(write.inputs[1:], program.equations[:position])}
