"""Rows of one array that are joined again: parts of it, under another shape."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NamedTuple

from functx.core.program import Atom, Equation
from functx.ops.joining import Concatenate
from functx.ops.shaping import PermuteDims, Reshape, Rev
from functx.ops.slicing import Slice
from functx.transforms.outlining.rows import StaticSlice

# From so many rows on, to cut them and to join them costs more than to move all of them at once.
_MIN_RUN_LENGTH = 4


class RowRun(NamedTuple):
    """`length` rows of `whole` from `first` on, each `step` after the one before, or before it."""

    array: Atom
    first: int
    stride: int
    length: int


def coalesce_rows(
    eqn: Equation, shown: Callable[[Atom], StaticSlice | None]
) -> list[Equation] | None:
    """Equations that join what the concatenation `eqn` does, rows at once; None for no rows.

    `shown` tells which part of an array that exists an operand is.
    """
    pieces = row_runs(eqn.inputs, shown)
    if all([type(piece) is not RowRun for piece in pieces]):
        return None
    axis, made, operands = eqn.primitive.axis, [], []  # type: ignore[attr-defined]
    at = 0
    for piece in pieces:
        if type(piece) is RowRun:
            found = emit_row_run(piece, eqn.inputs[at].aval.shape, axis)
            made += found
            operands.append(found[-1].outputs[0])
            at += piece.length
        else:
            operands.append(piece)
            at += 1
    made.append(eqn.replace(primitive=Concatenate(axis), inputs=operands))
    return made


def row_runs(operands: Sequence[Atom], shown: Callable[[Atom], StaticSlice | None]) -> list[Any]:
    """The operands, with a `RowRun` in the place of rows that follow one another."""
    rows = [row_number(shown(atom)) for atom in operands]
    found: list[Any] = []
    at = 0
    while at < len(rows):
        run = longest_run(rows, at)
        if run is None or run.length < _MIN_RUN_LENGTH:
            found.append(operands[at])
            at += 1
        else:
            found.append(run)
            at += run.length
    return found


def row_number(part: StaticSlice | None) -> tuple[Atom, int] | None:
    """The array of which `part` is one row, and which one; None for other parts."""
    if part is None:
        return None
    whole, start, sizes = part
    if not start or sizes != (1, *whole.aval.shape[1:]):
        return None
    return whole, start[0]


def longest_run(rows: Sequence[tuple[Atom, int] | None], at: int) -> RowRun | None:
    """The longest run that begins with the row `at`; None where there is none."""
    here = rows[at]
    if here is None:
        return None
    whole, first = here
    following = rows[at + 1] if at + 1 < len(rows) else None
    if following is None or following[0] is not whole or following[1] == first:
        return None
    step = following[1] - first
    count = 1
    while at + count < len(rows) and rows[at + count] == (whole, first + step * count):
        count += 1
    return RowRun(whole, first, step, count)


def emit_row_run(run: RowRun, shape: tuple[int, ...], axis: int) -> list[Equation]:
    """Equations for the rows of a run, each under `shape`, joined along `axis`."""
    made: list[Equation] = []

    def then(primitive: Any) -> None:
        made.append(Equation.of(primitive, [made[-1].outputs[0] if made else run.array]))

    whole = run.array.aval.shape
    ends = run.first, run.first + run.stride * (run.length - 1)
    rest, gap = whole[1:], abs(run.stride)
    strides = (gap, *[1] * len(rest)) if gap > 1 else None
    then(Slice((min(ends), *[0] * len(rest)), (max(ends) + 1, *rest), strides))
    if run.stride < 0:
        then(Rev((0,)))
    then(Reshape((run.length, *shape)))
    if prod(shape[:axis]) != 1:
        then(PermuteDims((*range(1, axis + 1), 0, *range(axis + 1, len(shape) + 1))))
    then(Reshape((*shape[:axis], run.length * shape[axis], *shape[axis + 1 :])))
    return made
