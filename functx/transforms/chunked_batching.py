"""Chunks: the lanes of a map, and the vectors of a basis, taken a few at a time by a loop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeGuard

import numpy as np

from functx import ops
from functx.core.errors import ValueRangeError
from functx.core.named_axes import AxisNames
from functx.core.program import Program
from functx.core.rewriting import apply, cached_rewrite
from functx.core.tracer import aval_of
from functx.core.tracing import trace_closed
from functx.core.types import ShapedArray
from functx.ops.operands import literal
from functx.transforms.control.scan import Scan
from functx.transforms.dce import with_io
from functx.transforms.operand_masks import select_where, select_where_not
from functx.transforms.vmap import Batch, BatchedOutputError, BatchWithInferredOutDims, add_axis


def check_chunk_size(what: str, chunk_size: Any) -> None:
    """Raise ValueRangeError unless `chunk_size` is None or a positive int."""
    if chunk_size is not None and (type(chunk_size) is not int or chunk_size < 1):
        raise ValueRangeError(
            f"{what}: chunk_size must be a positive int or None; got {chunk_size!r}",
            fix="Pass None to take all at once.",
        )


def needs_chunking(chunk: int | None, size: int) -> TypeGuard[int]:
    """Whether `size` of something are to be taken `chunk` at a time."""
    return chunk is not None and (chunk < size or chunk == 1)


class ChunkedBatch(Batch):
    """As `Batch`, for `chunk` lanes at a time; with a chunk of 1 the program runs as it is.

    What works across the axis needs all lanes at once, and gets them.
    """

    chunk: int

    def emit(self, program: Program, *args: Any) -> list[Any]:
        if self.names.name in program.named_axes:
            return super().emit(program, *args)
        mapped = [d is not None for d in self.in_dims]
        laid_out = [d is not None for d in self.out_dims]
        lane = with_io(
            program,
            [*select_where_not(program.inputs, mapped), *select_where(program.inputs, mapped)],
            select_where(program.outputs, laid_out),
        )
        dims = select_where(self.in_dims, mapped)
        rows = [
            ops.moveaxis(x, d, 0) for x, d in zip(select_where(args, mapped), dims, strict=True)
        ]
        consts = select_where_not(args, mapped)
        whole = self.size - self.size % self.chunk
        parts = []
        if whole or self.chunk == 1:
            parts.append(self.scan_chunks(lane, consts, rows, whole))
        if whole < self.size or not parts:
            rest = [ops.slice_in_dim(x, whole, self.size) for x in rows]
            batch = batch_leading_axis(lane, len(consts), self.size - whole)
            parts.append(apply(batch, lane, [*consts, *rest]))
        found = iter([ops.concatenate(ys, 0) for ys in zip(*parts, strict=True)])
        fixed = iter(self.unbatched_outputs(program, args))
        return [
            next(fixed) if d is None else ops.moveaxis(next(found), 0, d) for d in self.out_dims
        ]

    def scan_chunks(
        self, lane: Program, consts: Sequence[Any], rows: Sequence[Any], count: int
    ) -> list[Any]:
        """The outputs of `lane` on the first `count` of `rows`, a multiple of the chunk."""
        steps = count // self.chunk
        rows = [ops.slice_in_dim(x, 0, count) for x in rows]
        if self.chunk == 1:
            return Scan(lane, len(consts), 0, steps)(*consts, *rows)  # type: ignore[no-any-return]
        batch = batch_leading_axis(lane, len(consts), self.chunk)
        chunks = [ops.reshape(x, (steps, self.chunk, *x.shape[1:])) for x in rows]
        outs = Scan(cached_rewrite(batch, lane), len(consts), 0, steps)(*consts, *chunks)
        return [ops.reshape(y, (count, *y.shape[2:])) for y in outs]

    def unbatched_outputs(self, program: Program, args: Sequence[Any]) -> list[Any]:
        """The outputs that have no batch dimension; BatchedOutputError for one that must have."""
        if None not in self.out_dims:
            return []
        batched, dims = cached_rewrite(BatchWithInferredOutDims(self.size, self.in_dims), program)
        shared = [i for i, d in enumerate(self.out_dims) if d is None]
        for i in shared:
            if dims[i] is not None:
                raise BatchedOutputError(i)
        outputs = [batched.outputs[i] for i in shared]
        return apply(None, with_io(batched, batched.inputs, outputs), args)


def batch_leading_axis(lane: Program, consts: int, size: int) -> Batch:
    """The rewrite to batches of `size`, which the inputs after the consts and the outputs have."""
    in_dims = (None,) * consts + (0,) * (len(lane.inputs) - consts)
    return Batch(size, in_dims, (0,) * len(lane.outputs))


def standard_basis(
    avals: Sequence[ShapedArray], first: Any = None, count: int | None = None
) -> list[Any]:
    """The unit vectors of the product of the spaces of `avals`: for each, a batch of its parts.

    With `first` and `count`, that many of them from the number `first` on, zeros after the last.
    """
    total = sum(a.size for a in avals)
    count = total if count is None else count
    parts = []
    start = 0
    for aval in avals:
        rows = ops.broadcasted_iota("int32", (count, aval.size), 0)
        columns = ops.broadcasted_iota("int32", (count, aval.size), 1)
        rows = rows if first is None else ops.add(rows, first)
        columns = ops.add(columns, start) if start else columns
        ones = ops.convert_element_type(ops.eq(rows, columns), aval.dtype, aval.weak_type)
        parts.append(ops.reshape(ones, (count, *aval.shape)))
        start += aval.size
    return parts


def map_over_basis(
    program: Program,
    avals: Sequence[ShapedArray],
    rest: Sequence[Any],
    chunk: int,
    axis_last: bool = False,
) -> list[Any]:
    """What `program` makes of each unit vector of `avals`, along a new axis, first or last.

    The vectors are its first inputs, `rest` the others. They are taken `chunk` at a time, or
    fewer, so that all chunks have one size; the last one overlaps with the one before it.
    """
    total = sum(a.size for a in avals)
    steps = -(-total // chunk)
    each = -(-total // steps)
    outs = program.out_avals
    axes = [a.ndim if axis_last else 0 for a in outs]
    origin = literal(0, np.dtype("int32"))

    def step(*args: Any) -> list[Any]:
        consts, found, i = args[: len(rest)], args[len(rest) : -1], args[-1]
        first = ops.min(ops.mul(i, each), total - each)
        vectors = standard_basis(avals, first, each)
        if each == 1:
            lane = apply(None, program, [*[ops.reshape(x, x.shape[1:]) for x in vectors], *consts])
            columns = [ops.expand_dims(y, axis) for y, axis in zip(lane, axes, strict=True)]
        else:
            in_dims = (0,) * len(avals) + (None,) * len(consts)
            batch = Batch(each, in_dims, tuple(axes), names=AxisNames())
            columns = apply(batch, program, [*vectors, *consts])
        return [
            ops.DynamicUpdateSlice()(x, y, *[first if d == axis else origin for d in range(x.ndim)])
            for x, y, axis in zip(found, columns, axes, strict=True)
        ]

    # The result is a carry, written into in place, and not stacked and then laid out anew.
    empty = [ops.zeros_like(add_axis(a, axis, total)) for a, axis in zip(outs, axes, strict=True)]
    numbers = ops.broadcasted_iota("int32", (steps,), 0)
    inputs = [v.aval for v in program.inputs[len(avals) :]]
    inputs += [*[aval_of(x) for x in empty], aval_of(numbers).update(shape=())]
    body = trace_closed(step, inputs, name=program.name)
    loop = Scan(body, len(rest), len(empty), steps)
    return loop(*rest, *empty, numbers)  # type: ignore[no-any-return]
