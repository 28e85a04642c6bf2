"""Sparse Jacobians: a product for each color of the pattern, from which its elements are read."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

import numpy as np

from functx import ops
from functx.core.backend import backend
from functx.core.masks import select_where, split_list
from functx.core.named_axes import AxisNames
from functx.core.program import Program
from functx.core.rewriting import Record, Rewrite, apply
from functx.core.samples import f32
from functx.core.tracer import aval_of
from functx.core.tracing import trace_closed
from functx.core.types import ShapedArray, is_inexact, promote_types
from functx.core.typing import Avals, NumPyArray, Value, Values
from functx.transforms.batching import Batch
from functx.transforms.chunked_batching import ChunkedBatch, needs_chunking
from functx.transforms.forward_mode import Linearize
from functx.transforms.sparsity_pattern import SparsityPattern, count_colors


class Products(Record):
    """The products that give a sparse matrix: of it with vectors, or in reverse of vectors with it.

    The columns of `pattern`, in reverse its rows, have `colors`. Product k is with the sum of the unit
    vectors of color k. If the matrix is symmetric, an element may be read from that of its transpose.
    """

    pattern: SparsityPattern
    kind: str
    """One of "forward", "reverse" and "symmetric"."""

    @property
    def colors(self) -> NumPyArray:
        """The color of each column, in reverse of each row."""
        pattern = self.pattern
        if self.kind == "symmetric":
            return pattern.symmetric_colors
        return pattern.row_colors if self.kind == "reverse" else pattern.column_colors

    @property
    def count(self) -> int:
        """The number of products."""
        return count_colors(self.colors)

    def places(self) -> NumPyArray:
        """For each place of the pattern, the number of a product and the position in it."""
        pattern, colors = self.pattern, self.colors
        rows, columns = pattern.rows, pattern.columns
        if self.kind == "reverse":
            return np.stack([colors[rows], columns], axis=1)
        places = np.stack([colors[columns], rows], axis=1)
        if self.kind == "forward":
            return places
        transposed = np.stack([colors[rows], columns], axis=1)
        size = pattern.shape[0]
        numbers, others = places @ [size, 1], transposed @ [size, 1]
        counts = np.bincount(numbers, minlength=self.count * size)
        assert (np.minimum(counts[numbers], counts[others]) == 1).all()
        return np.where((counts[numbers] == 1)[:, None], places, transposed)


def choose_products(
    pattern: SparsityPattern, symmetric: bool, allowed: Sequence[str] = ("forward", "reverse")
) -> Products:
    """The fewest products of the `allowed` kinds, of which the first costs least."""
    kinds = ["symmetric"] if symmetric and pattern.is_symmetric else allowed
    return min([Products(pattern, kind) for kind in kinds], key=lambda products: products.count)


class SparseJacobian(Rewrite[Program]):
    """The rewrite to the outputs, then Jacobians of the first `outputs` by the active inputs.

    Each of these is the vector of the elements in its block of the pattern or, if `dense`, an array with
    the shapes of the output and of the input. `chunk` is the number of products at a time, None for all.
    """

    active: tuple[bool, ...]
    outputs: int
    products: Products
    dense: bool
    chunk: int | None = None

    def __call__(self, program: Program) -> Program:
        reverse = self.products.kind == "reverse"
        split = backend.vjp_split(self.active) if reverse else Linearize(self.active)
        values, linear = split(program)
        avals = select_where(program.in_avals, self.active)

        def body(*args: Value) -> list[Value]:
            outs, residuals = split_list(apply(None, values, args), [len(program.outputs)])
            inexact = [aval_of(x) for x in outs if is_inexact(x.dtype)]
            differentiated = inexact[: self.outputs]
            seeds = self.seeds(differentiated if reverse else avals)
            unused = [ops.zeros_like(a) for a in inexact[self.outputs :]] if reverse else []
            products = self.run(linear, seeds, [*unused, *residuals])
            results = products if reverse else products[: self.outputs]
            return [*outs, *self.blocks(results, differentiated, avals)]

        return trace_closed(
            body, program.in_avals, name=f"sparse_{program.name}", in_names=program.in_names
        )

    def seeds(self, avals: Avals) -> list[Value]:
        """For each type, a batch of one array a product, with ones at the elements of its color."""
        count, seeds = self.products.count, []
        for aval, span in zip(avals, spans(avals), strict=True):
            own = self.color_vector(span)
            batched = ops.broadcast_in_dim(own, (count, aval.size), (1,))
            ones = ops.eq(batched, ops.broadcasted_iota("int32", (count, aval.size), 0))
            ones = ops.convert_element_type(ones, aval.dtype, aval.weak_type)
            seeds.append(ops.reshape(ones, (count, *aval.shape)))
        return seeds

    def color_vector(self, span: slice) -> Value:
        """The colors at the positions `span`; computed, not stored, where they repeat as those of bands do."""
        colors, count = self.products.colors, self.products.count
        size = span.stop - span.start
        if np.array_equal(colors[span], np.arange(span.start, span.stop) % max(count, 1)):
            numbers = ops.add(ops.broadcasted_iota("int32", (size,), 0), span.start)
            return ops.rem(numbers, max(count, 1))
        return dense_constant(colors[span].astype(np.int32))

    def run(self, linear: Program, seeds: Values, others: Values) -> list[Value]:
        """The outputs of `linear` for all products, along a first axis."""
        count, chunk = self.products.count, self.chunk
        if not count:
            return [ops.zeros_like(a.update(shape=(0, *a.shape))) for a in linear.out_avals]
        in_dims = (0,) * len(seeds) + (None,) * len(others)
        out_dims = (0,) * len(linear.outputs)
        batch = Batch(count, in_dims, out_dims, names=AxisNames())
        if needs_chunking(chunk, count):
            batch = ChunkedBatch(count, in_dims, out_dims, chunk, names=AxisNames())
        return apply(batch, linear, [*seeds, *others])

    def blocks(self, products: Values, outs: Avals, ins: Avals) -> list[Value]:
        """The Jacobian of each output by each input, from the products."""
        reverse = self.products.kind == "reverse"
        places, pattern = self.products.places().astype(np.int32), self.products.pattern
        # A dtype that holds the elements of all products exactly.
        wide = promote_types(tuple([(x.dtype, False) for x in products])) if products else None
        dtype = None if wide is None else wide[0]
        parts = [
            ops.convert_element_type(ops.reshape(x, (self.products.count, a.size)), dtype)
            for x, a in zip(products, ins if reverse else outs, strict=True)
        ]
        matrix = ops.concatenate(parts, 1) if parts else ops.zeros_like(f32[0, 0])
        blocks, positions = [], iter(pattern.blocks(limits(outs), limits(ins)))
        for out, rows in zip(outs, spans(outs), strict=True):
            for arg, columns in zip(ins, spans(ins), strict=True):
                inside, aval = next(positions), arg if reverse else out
                if self.dense and not len(inside):
                    blocks.append(ops.zeros_like(aval.update(shape=out.shape + arg.shape)))
                    continue
                block = read_elements(matrix, places[inside])
                block = ops.convert_element_type(block, aval.dtype)
                if self.dense:
                    own = pattern.rows[inside] - rows.start, pattern.columns[inside] - columns.start
                    zeros = ops.zeros_like(aval_of(block).update(shape=(out.size, arg.size)))
                    block = write_elements(zeros, np.stack(own, axis=1), block)
                    block = ops.reshape(block, out.shape + arg.shape)
                blocks.append(block)
        return blocks


def read_elements(x: Value, places: NumPyArray) -> Value:
    """The elements of a matrix at `places`, rows of two indices."""
    gather = ops.Gather(
        collapsed_slice_dims=(0, 1),
        start_index_map=(0, 1),
        mode="promise_in_bounds",
        slice_sizes=(1, 1),
    )
    return (
        gather(x, dense_constant(places))
        if len(places)
        else ops.zeros_like(aval_of(x).update(shape=(0,)))
    )


def write_elements(x: Value, places: NumPyArray, values: Value) -> Value:
    """The matrix `x` with `values` at `places`, distinct rows of two indices in increasing order."""
    if not len(places):
        return x
    scatter = ops.ScatterSet(
        collapsed_slice_dims=(0, 1),
        start_index_map=(0, 1),
        indices_are_sorted=True,
        unique_indices=True,
        mode="promise_in_bounds",
    )
    return scatter(x, dense_constant(places.astype(np.int32)), values)


def dense_constant(x: NumPyArray) -> Value:
    """The array `x` as a constant of a program."""
    return ops.DenseConstant(ShapedArray(x.shape, x.dtype), np.ascontiguousarray(x).tobytes())()


def limits(avals: Avals) -> tuple[int, ...]:
    """The number of elements before each array among all, and of all."""
    return (0, *accumulate([a.size for a in avals]))


def spans(avals: Avals) -> list[slice]:
    """The positions of the elements of each array among those of all."""
    return [slice(a, b) for a, b in pairwise(limits(avals))]
