"""Static slices of arrays, and concatenations of rows of one array as one slice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NamedTuple

from functx import ops
from functx.core.primitive import Primitive
from functx.core.program import Atom, Equation, Var
from functx.passes.costs import bytes_of
from functx.passes.repeat_detection import EquationDataflow, has_unit_strides

Shape = tuple[int, ...]


class StaticSlice(NamedTuple):
    """The slice of `array` of shape `sizes` from `start` on; a variable may hold it reshaped."""

    array: Atom
    start: Shape
    sizes: Shape


def static_slice_of(
    atom: Atom, flow: EquationDataflow, known_slices: dict[Atom, StaticSlice]
) -> StaticSlice | None:
    """The slice that `atom` is, by `known_slices` or the equations that compute it; else None."""
    while type(atom) is Var:
        if atom in known_slices:
            return known_slices[atom]
        position = flow.producers.get(atom)
        if position is None:
            return None
        eqn = flow.equations[position[0]]
        primitive = eqn.primitive
        if type(primitive) is ops.Slice and has_unit_strides(primitive):
            return StaticSlice(eqn.inputs[0], primitive.start, eqn.outputs[0].aval.shape)
        if type(primitive) is ops.Split:
            offset = sum(primitive.sizes[: position[1]])
            start = [0] * atom.aval.ndim
            start[primitive.axis] = offset
            return StaticSlice(eqn.inputs[0], tuple(start), atom.aval.shape)
        if type(primitive) is not ops.Reshape:
            return None
        atom = eqn.inputs[0]
    return None


_MAX_HOISTED_BYTES = 1 << 10
"""The largest slice that is computed early so that the steps of a loop look alike."""


def hoist_small_slices(
    equations: Sequence[Equation],
) -> tuple[list[Equation], dict[Atom, Atom]]:
    """`equations` with each small slice computed once, right after its array; merged variables.

    The first step of an unrolled loop to read an element slices it, and later steps share the
    slice. Without the slices between them, the steps are equal runs of equations.
    """
    substitutions: dict[Atom, Atom] = {}
    value_of: dict[tuple[Primitive, Atom], Var] = {}
    slices: set[Atom] = set()
    following: dict[Atom, list[Equation]] = {}
    others = []
    for eqn in equations:
        eqn = eqn.with_substitutes(substitutions)
        primitive = eqn.primitive
        is_small_slice = (
            type(primitive) is ops.Slice
            and has_unit_strides(primitive)
            and bytes_of(eqn.outputs[0].aval) <= _MAX_HOISTED_BYTES
        )
        if not is_small_slice and not (type(primitive) is ops.Reshape and eqn.inputs[0] in slices):
            others.append(eqn)
            continue
        (array,), (v,) = eqn.inputs, eqn.outputs
        first = value_of.setdefault((primitive, array), v)
        if first is v:
            slices.add(v)
            following.setdefault(array, []).append(eqn)
        else:
            substitutions[v] = first
    computed = {v for eqn in others for v in eqn.outputs}
    hoisted: list[Equation] = []

    def emit_slices_of(array: Atom) -> None:
        for eqn in following.get(array, ()):
            hoisted.append(eqn)
            emit_slices_of(eqn.outputs[0])

    for array in [*following]:
        if array not in computed and array not in slices:
            emit_slices_of(array)
    for eqn in others:
        hoisted.append(eqn)
        for v in eqn.outputs:
            emit_slices_of(v)
    return hoisted, substitutions


# From this length on, one slice of all rows is cheaper than one slice for each.
_MIN_RUN_LENGTH = 4


class RowRun(NamedTuple):
    """`length` rows of `array` from `first` on, at a constant `stride` that may be negative."""

    array: Atom
    first: int
    stride: int
    length: int


def coalesce_rows(
    eqn: Equation, slice_of: Callable[[Atom], StaticSlice | None]
) -> list[Equation] | None:
    """Equations for the concatenation `eqn`, with runs of rows as one slice; None without runs.

    `slice_of` gives the slice of an existing array that an operand is.
    """
    pieces = row_runs(eqn.inputs, slice_of)
    if all([type(piece) is not RowRun for piece in pieces]):
        return None
    axis, equations = eqn.primitive.axis, []  # type: ignore[attr-defined]
    operands: list[Any] = []
    position = 0
    for piece in pieces:
        if type(piece) is RowRun:
            run_equations = emit_row_run(piece, eqn.inputs[position].aval.shape, axis)
            equations += run_equations
            operands.append(run_equations[-1].outputs[0])
            position += piece.length
        else:
            operands.append(piece)
            position += 1
    equations.append(eqn.replace(primitive=ops.Concatenate(axis), inputs=operands))
    return equations


def row_runs(
    operands: Sequence[Atom], slice_of: Callable[[Atom], StaticSlice | None]
) -> list[Atom | RowRun]:
    """The operands, with a `RowRun` in place of consecutive rows of one array."""
    rows = [row_number(slice_of(atom)) for atom in operands]
    items: list[Any] = []
    position = 0
    while position < len(rows):
        run = longest_run(rows, position)
        if run is None or run.length < _MIN_RUN_LENGTH:
            items.append(operands[position])
            position += 1
        else:
            items.append(run)
            position += run.length
    return items


def row_number(piece: StaticSlice | None) -> tuple[Atom, int] | None:
    """The array and position of the row that `piece` is; None for other slices."""
    if piece is None:
        return None
    array, start, sizes = piece
    if not start or sizes != (1, *array.aval.shape[1:]):
        return None
    return array, start[0]


def longest_run(rows: Sequence[tuple[Atom, int] | None], position: int) -> RowRun | None:
    """The longest run of rows that begins at `position`; None if there is none."""
    row = rows[position]
    if row is None:
        return None
    array, first = row
    following = rows[position + 1] if position + 1 < len(rows) else None
    if following is None or following[0] is not array or following[1] == first:
        return None
    stride = following[1] - first
    count = 1
    while position + count < len(rows) and rows[position + count] == (
        array,
        first + stride * count,
    ):
        count += 1
    return RowRun(array, first, stride, count)


def emit_row_run(run: RowRun, shape: tuple[int, ...], axis: int) -> list[Equation]:
    """Equations for the rows of a run, each reshaped to `shape`, concatenated along `axis`."""
    equations: list[Equation] = []

    def append(primitive: Primitive) -> None:
        equations.append(
            Equation.of(primitive, [equations[-1].outputs[0] if equations else run.array])
        )

    shape_of_array = run.array.aval.shape
    ends = run.first, run.first + run.stride * (run.length - 1)
    trailing, step = shape_of_array[1:], abs(run.stride)
    strides = (step, *[1] * len(trailing)) if step > 1 else None
    append(ops.Slice((min(ends), *[0] * len(trailing)), (max(ends) + 1, *trailing), strides))
    if run.stride < 0:
        append(ops.Rev((0,)))
    append(ops.Reshape((run.length, *shape)))
    if prod(shape[:axis]) != 1:
        append(ops.PermuteDims((*range(1, axis + 1), 0, *range(axis + 1, len(shape) + 1))))
    append(ops.Reshape((*shape[:axis], run.length * shape[axis], *shape[axis + 1 :])))
    return equations
