"""The memory of traced arrays: strides, the base of a view, and which inputs determine layouts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from functx.core.primitive import Primitive
from functx.core.primitive_families import CopiesOperand, HasNewStrides, View
from functx.core.program import Atom, Equation, Var
from functx.core.strides import (
    MemoryOrder,
    Strides,
    is_row_major,
    row_major_strides,
    strides_in_order,
)
from functx.core.tracer import Tracer, current_builder, is_variable, with_parents
from functx.core.types import ShapedArray
from functx.core.typing import ArrayLike

if TYPE_CHECKING:
    from functx.core.builder import Builder


def result_strides(
    primitive: Primitive,
    avals: Sequence[ShapedArray],
    strides: Sequence[Strides],
    shape: tuple[int, ...],
) -> Strides:
    """The strides of outputs of `shape`, in memory of their own, for operands with `strides`."""
    order = primitive.memory_order
    if order is MemoryOrder.ROW_MAJOR or isinstance(primitive, View):
        return row_major_strides(shape)
    if order is not MemoryOrder.REARRANGED and (
        len(shape) < 2
        or all([s == row_major_strides(x.shape) for x, s in zip(avals, strides, strict=True)])
    ):
        return row_major_strides(shape)
    if isinstance(primitive, HasNewStrides):
        return primitive.new_strides(avals, strides, shape)
    return strides_in_order(shape, [each for each in strides if each], order is MemoryOrder.COPIED)


class MemoryLocation(NamedTuple):
    """The memory of a traced array: that of `base`, from the byte `byte_offset`, with `strides`.

    `byte_offset` is None if a traced value determines it.
    """

    base: Atom
    byte_offset: int | None
    strides: Strides


def memory_location(builder: Builder, atom: Atom) -> MemoryLocation:
    """The memory of a traced array; cached in `builder.memory`."""
    pending = [(builder, atom)]
    while pending:
        owner, each = pending[-1]
        if each not in owner.memory:
            eqn = owner.defining_equation(each)
            sources = _layout_sources(owner, each, eqn)
            missing = [(b, a) for b, a in sources if a not in b.memory]
            if missing:
                pending += missing
                continue
            found = [b.memory[a] for b, a in sources]
            owner.memory[each] = _location_from(owner, each, eqn, found)
        pending.pop()
    return builder.memory[atom]  # type: ignore[no-any-return]


def _layout_sources(
    builder: Builder, atom: Atom, eqn: Equation | None, *, exact: bool = False
) -> Sequence[tuple[Builder, Atom]]:
    """The arrays whose memory determines that of `atom`, the output of `eqn`, which is None for inputs.

    Unless `exact`, results that surely lie in row-major order have none.
    """
    if eqn is None:
        outer = builder.captured_value(atom)
        return [(outer.builder, outer.atom)] if type(outer) is Tracer else ()
    if isinstance(eqn.primitive, View):
        return [(builder, eqn.inputs[0])] if type(eqn.inputs[0]) is Var else ()
    if eqn.primitive.memory_order is MemoryOrder.ROW_MAJOR or atom.aval.ndim < 2:
        return ()
    return (
        [(builder, a) for a in eqn.inputs] if exact or not builder.has_row_major_results() else ()
    )


def _location_from(
    builder: Builder, atom: Atom, eqn: Equation | None, sources: Sequence[MemoryLocation]
) -> MemoryLocation:
    """The memory of `atom`, the output of `eqn`, for that of its `_layout_sources`."""
    if eqn is None:
        if sources:
            return sources[0]
        captured = builder.captured_value(atom)
        strides = builder.layouts.get(atom) or (
            noncontiguous_strides(captured) if isinstance(captured, np.ndarray) else None
        )
        return MemoryLocation(atom, 0, strides or row_major_strides(atom.aval.shape))
    if isinstance(eqn.primitive, View) and sources:
        return view_location(sources[0], eqn, eqn.outputs.index(atom))  # type: ignore[arg-type]
    if len(sources) < len(eqn.inputs):
        return MemoryLocation(atom, 0, row_major_strides(atom.aval.shape))
    avals = [a.aval for a in eqn.inputs]
    strides_of_operands = [memory.strides for memory in sources]
    return MemoryLocation(
        atom, 0, result_strides(eqn.primitive, avals, strides_of_operands, atom.aval.shape)
    )


def layout_owners(*arrays: Tracer) -> set[Builder]:
    """The builders with inputs whose layout determines that of one of `arrays`."""
    owners: set[Builder] = set()
    pending = [(x.builder, x.atom) for x in arrays]
    seen = {*pending}
    while pending:
        builder, atom = pending.pop()
        eqn = builder.defining_equation(atom)
        sources = [
            (b, a) for b, a in _layout_sources(builder, atom, eqn, exact=True) if type(a) is Var
        ]
        if eqn is None and not sources:
            owners.add(builder)
        pending += [(b, a) for b, a in sources if a.aval.shape and (b, a) not in seen]
        seen.update(sources)
    return owners


def view_location(memory: MemoryLocation, eqn: Equation, index: int) -> MemoryLocation:
    """The memory of output `index` of the view `eqn`, whose first operand has the memory `memory`."""
    x, out, view = eqn.inputs[0], eqn.outputs[index], eqn.primitive
    assert isinstance(view, View)
    strides = view.view_strides(x.aval, memory.strides)
    if strides is None:
        return MemoryLocation(out, 0, row_major_strides(out.aval.shape))
    step = view.view_offset(x.aval, memory.strides, index)
    if memory.byte_offset is None or step is None:
        return MemoryLocation(memory.base, None, strides)
    return MemoryLocation(memory.base, memory.byte_offset + step * out.aval.dtype.itemsize, strides)


def strides_of(builder: Builder, atom: Atom) -> Strides:
    """The strides of a traced array."""
    return memory_location(builder, atom).strides


def is_contiguous(x: ArrayLike) -> bool:
    """Whether an array is contiguous in row-major order."""
    if is_variable(x):
        return is_row_major(x.shape, x.strides_())  # type: ignore[union-attr]
    if type(x) is not Tracer:
        return not isinstance(x, np.ndarray) or x.flags.c_contiguous
    record_layout_dependence(x)
    return is_row_major(x.shape, strides_of(x.builder, x.atom))


def record_layout_dependence(x: ArrayLike, writes: bool = False) -> None:
    """Record that the trace depends on the memory layout of `x`, if that depends on an input.

    The layout matters only if the program has writes; `writes` says that it has.
    """
    if type(x) is Tracer:
        builders = {*with_parents(x.builder)}
        if (current := current_builder.innermost()) is not None:
            builders.update(with_parents(current))
        for builder in builders:
            builder.layout_reads.append(x)
        if writes:
            mark_layout_owners(x)


def mark_layout_owners(*arrays: Tracer) -> None:
    """Record that programs whose inputs determine layouts of `arrays` depend on them, as writes do."""
    for builder in layout_owners(*arrays):
        builder.writes = True


def depends_on_layouts(builder: Builder) -> bool:
    """Whether a program with writes depends on the memory layout of its inputs."""
    return builder.writes and builder in layout_owners(*builder.layout_reads)


def noncontiguous_strides(x: ArrayLike) -> Strides | None:
    """The strides of an array in elements; None for row-major order."""
    if type(x) is Tracer:
        strides = strides_of(x.builder, x.atom)
        return None if is_row_major(x.shape, strides) else strides
    if not isinstance(x, np.ndarray) or x.flags.c_contiguous:
        return None
    return tuple([step // x.itemsize for step in x.strides])


def storage_base(x: Tracer) -> Tracer:
    """The traced array that owns the memory of `x`: `x` itself, or the base of the view."""
    while True:
        position = x.builder.producer(x.atom)
        if position is None:
            outer = x.builder.captured_value(x.atom)
            if type(outer) is not Tracer:
                return x
            x = outer
            continue
        base = view_base(x.builder, x.builder.equations[position])
        if base is None:
            return x
        x = Tracer(base, x.builder)


def is_computed(x: Tracer) -> bool:
    """Whether a traced array is computed in its program: neither an input nor a view."""
    if type(x.atom) is not Var:
        return True
    position = x.builder.producer(x.atom)
    return position is not None and not isinstance(x.builder.equations[position].primitive, View)


def view_base(builder: Builder, eqn: Equation) -> Atom | None:
    """The base that the outputs of an equation are views of; None if they have memory of their own."""
    view = eqn.primitive
    if not isinstance(view, View) or type(base := eqn.inputs[0]) is not Var:
        return None
    copied = view.view_strides(base.aval, strides_of(builder, base)) is None
    return None if copied else base


def elide_copies(
    equations: Sequence[Equation], outputs: Sequence[Atom]
) -> tuple[list[Equation], list[Atom]]:
    """The equations and outputs without copies, which a program without writes does not need."""
    originals: dict[Atom, Atom] = {}
    remaining = []
    for eqn in equations:
        if isinstance(eqn.primitive, CopiesOperand):
            originals[eqn.outputs[0]] = originals.get(eqn.inputs[0], eqn.inputs[0])
        else:
            remaining.append(eqn.with_substitutes(originals))
    return remaining, [originals.get(a, a) for a in outputs]
