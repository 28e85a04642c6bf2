"""Batching in chunks: a loop over parts of a batch, or of the vectors of a standard basis."""

from __future__ import annotations

from typing import TypeGuard

import numpy as np

from functx import ops
from functx.core.effects import Effect
from functx.core.errors import ValueRangeError
from functx.core.masks import select_where, select_where_not
from functx.core.named_axes import AxisNames
from functx.core.program import Program
from functx.core.rewriting import apply, cached_rewrite
from functx.core.tracer import aval_of
from functx.core.tracing import trace_closed
from functx.core.typing import Avals, Value, Values
from functx.ops.operands import literal
from functx.transforms.batching import Batch, BatchedOutputError, BatchWithInferredOutDims, add_axis
from functx.transforms.control.scan import Scan
from functx.transforms.dce import with_io
from functx.transforms.replayed_draws import has_replays


def check_chunk_size(label: str, chunk_size: object) -> None:
    """Raise ValueRangeError unless `chunk_size` is None or a positive int."""
    if chunk_size is not None and (type(chunk_size) is not int or chunk_size < 1):
        raise ValueRangeError(
            f"{label}: chunk_size must be a positive int or None; got {chunk_size!r}",
            fix="Pass None to take all at once.",
        )


def needs_chunking(chunk: int | None, size: int) -> TypeGuard[int]:
    """Whether a batch of `size` elements is computed in chunks of `chunk` elements."""
    return chunk is not None and (chunk < size or chunk == 1)


class ChunkedBatch(Batch):
    """As `Batch`, in chunks of `chunk` elements; a chunk of 1 runs the program itself.

    A program with collectives over the batch, or with draws that differ, needs all elements, and is
    not chunked.
    """

    chunk: int

    def emit(self, program: Program, *args: Value) -> list[Value]:
        if Effect.CHECK in program.effects:
            from functx.transforms.checkify import Checkify, user_checks

            # Only the failures of all chunks have indices along the whole axis.
            checked = cached_rewrite(Checkify(user_checks), program)
            state_dims = (0,) * sum(map(len, checked.slots))
            chunked = self.replace(out_dims=(*state_dims, *self.out_dims))
            return checked.check_again(chunked.emit(checked.program, *args))
        if self.names.name in program.named_axes:
            return super().emit(program, *args)
        if program.draws:
            if self.names.randomness != "same" or has_replays(program):
                return super().emit(program, *args)
            # Refuses a batched parameter of a draw, which a loop over the elements would accept.
            cached_rewrite(
                BatchWithInferredOutDims(self.size, self.in_dims, names=self.names), program
            )
        mapped = [d is not None for d in self.in_dims]
        batched = [d is not None for d in self.out_dims]
        element = with_io(
            program,
            [*select_where_not(program.inputs, mapped), *select_where(program.inputs, mapped)],
            select_where(program.outputs, batched),
        )
        dims = [d for d in self.in_dims if d is not None]
        rows = [
            ops.moveaxis(x, d, 0) for x, d in zip(select_where(args, mapped), dims, strict=True)
        ]
        consts = select_where_not(args, mapped)
        whole = self.size - self.size % self.chunk
        parts = []
        if whole or self.chunk == 1:
            parts.append(self.scan_chunks(element, consts, rows, whole))
        if whole < self.size or not parts:
            remaining = [ops.slice_in_dim(x, whole, self.size) for x in rows]
            batch = batch_leading_axis(element, len(consts), self.size - whole, self.names)
            parts.append(apply(batch, element, [*consts, *remaining]))
        batches = iter([ops.concatenate(ys, 0) for ys in zip(*parts, strict=True)])
        unbatched = iter(self.unbatched_outputs(program, args))
        return [
            next(unbatched) if d is None else ops.moveaxis(next(batches), 0, d)
            for d in self.out_dims
        ]

    def scan_chunks(
        self, element: Program, consts: Values, rows: Values, count: int
    ) -> list[Value]:
        """The outputs for the first `count` elements, a multiple of the chunk, by a scan."""
        steps = count // self.chunk
        rows = [ops.slice_in_dim(x, 0, count) for x in rows]
        if self.chunk == 1:
            return Scan(element, len(consts), 0, steps)(*consts, *rows)
        batch = batch_leading_axis(element, len(consts), self.chunk, self.names)
        chunks = [ops.reshape(x, (steps, self.chunk, *x.shape[1:])) for x in rows]
        outs = Scan(cached_rewrite(batch, element), len(consts), 0, steps)(*consts, *chunks)
        return [ops.reshape(y, (count, *y.shape[2:])) for y in outs]

    def unbatched_outputs(self, program: Program, args: Values) -> list[Value]:
        """The outputs without a batch dimension; BatchedOutputError if one depends on it."""
        if None not in self.out_dims:
            return []
        rewrite = BatchWithInferredOutDims(self.size, self.in_dims, names=self.names)
        batched, dims = cached_rewrite(rewrite, program)
        shared = [i for i, d in enumerate(self.out_dims) if d is None]
        for i in shared:
            if dims[i] is not None:
                raise BatchedOutputError(i)
        outputs = [batched.outputs[i] for i in shared]
        return apply(None, with_io(batched, batched.inputs, outputs), args)


def batch_leading_axis(element: Program, consts: int, size: int, names: AxisNames) -> Batch:
    """The rewrite to batches of `size` along axis 0 of the outputs and of all inputs but consts."""
    in_dims = (None,) * consts + (0,) * (len(element.inputs) - consts)
    return Batch(size, in_dims, (0,) * len(element.outputs), names=names)


def standard_basis(
    avals: Avals, first: Value | int | None = None, count: int | None = None
) -> list[Value]:
    """The standard basis of the product space of `avals`: for each, a batch of components.

    With `first` and `count`, `count` vectors from number `first` on, and zeros beyond the last.
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
    program: Program, avals: Avals, residuals: Values, chunk: int, axis_last: bool = False
) -> list[Value]:
    """The outputs of `program` for each vector of the standard basis of `avals`, along a new axis.

    The axis is the first or, with `axis_last`, the last. The vectors are the first inputs,
    `residuals` the others. All chunks have one size, at most `chunk`: the last overlaps the one
    before it.
    """
    total = sum(a.size for a in avals)
    steps = -(-total // chunk)
    each = -(-total // steps)
    outs = program.out_avals
    axes = [a.ndim if axis_last else 0 for a in outs]
    origin = literal(0, np.dtype("int32"))

    def step(*args: Value) -> list[Value]:
        consts, results, i = args[: len(residuals)], args[len(residuals) : -1], args[-1]
        first = ops.min(ops.mul(i, each), total - each)
        vectors = standard_basis(avals, first, each)
        if each == 1:
            outputs = apply(
                None, program, [*[ops.reshape(x, x.shape[1:]) for x in vectors], *consts]
            )
            columns = [ops.expand_dims(y, axis) for y, axis in zip(outputs, axes, strict=True)]
        else:
            in_dims = (0,) * len(avals) + (None,) * len(consts)
            batch = Batch(each, in_dims, tuple(axes), names=AxisNames())
            columns = apply(batch, program, [*vectors, *consts])
        return [
            ops.DynamicUpdateSlice()(x, y, *[first if d == axis else origin for d in range(x.ndim)])
            for x, y, axis in zip(results, columns, axes, strict=True)
        ]

    # A carry that is updated in place needs no transposition of stacked rows.
    empty = [ops.zeros_like(add_axis(a, axis, total)) for a, axis in zip(outs, axes, strict=True)]
    numbers = ops.broadcasted_iota("int32", (steps,), 0)
    inputs = [v.aval for v in program.inputs[len(avals) :]]
    inputs += [*[aval_of(x) for x in empty], aval_of(numbers).update(shape=())]
    body = trace_closed(step, inputs, name=program.name)
    loop = Scan(body, len(residuals), len(empty), steps)
    return loop(*residuals, *empty, numbers)
