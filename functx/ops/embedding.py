"""Rows of a table by their numbers, and the sum of what comes back to each row."""

from __future__ import annotations

from typing import Any

from functx.core.avals import ShapedArray
from functx.core.dtypes import is_integer
from functx.core.errors import DTypeError, ShapeError
from functx.core.primitive import Primitive
from functx.core.samples import f32, i32, sample
from functx.ops.comparison import eq
from functx.ops.gathering import Gather
from functx.ops.gradients import stop_gradient
from functx.ops.operands import literal
from functx.ops.selection import select
from functx.ops.shaping import broadcast_in_dim, full, reshape


class Embedding(Primitive):
    """The row of `weight` for each of `indices`; nan for a row that there is not.

    No derivative goes to the row `padding`, if there is one: it counts as a constant.
    """

    padding: int | None = None
    samples = (
        sample(i32[2, 2], f32[4, 3], values={0: [[1, 3], [3, 0]]}),
        sample(
            i32[3],
            f32[3, 2],
            padding=2,
            values={0: [1, 2, 1]},
            gradients={1: [[0.0, 0.0], [2.0, 2.0], [0.0, 0.0]]},
        ),
    )

    def abstract_eval(self, indices, weight):
        check_integer_indices(self.name, indices)
        if weight.ndim != 2:
            raise ShapeError(
                f"{self.name}: the weight must be a matrix, a row for each index; got {weight!r}"
            )
        return weight.update(shape=(*indices.shape, weight.shape[1]))

    def decompose(self, indices, weight):
        rows = self.gather_rows(indices, weight)
        if self.padding is None:
            return rows
        return select(self.is_padding(indices, rows.shape), stop_gradient(rows), rows)

    def jvp(self, primals, tangents):
        (indices, weight), (_, t) = primals, tangents
        if t is not None:
            t = self.zero_padding_rows(indices, self.gather_rows(indices, t))
        return self(indices, weight), t

    def vjp(self, ct, out, args, active):
        indices, weight = args
        return None, EmbeddingBackward(weight.shape[0], self.padding)(ct, indices)

    def gather_rows(self, indices: Any, weight: Any) -> Any:
        if not weight.shape[0]:
            return full((*indices.shape, weight.shape[1]), literal(float("nan"), weight.dtype))
        gather = row_gather(indices, weight)
        return gather(weight, reshape(indices, (*indices.shape, 1)))

    def is_padding(self, indices: Any, shape: tuple[int, ...]) -> Any:
        there = eq(indices, literal(self.padding, indices.dtype))
        return broadcast_in_dim(there, shape, tuple(range(indices.ndim)))

    def zero_padding_rows(self, indices: Any, rows: Any) -> Any:
        """`rows`, and 0 in those of the padding."""
        if self.padding is None:
            return rows
        return select(self.is_padding(indices, rows.shape), 0.0, rows)


class EmbeddingBackward(Primitive):
    """The sum of the rows of a cotangent for each of so many numbers, at `indices` beside it."""

    rows: int
    padding: int | None = None
    samples = (sample(f32[2, 2, 3], i32[2, 2], rows=4, padding=0, values={1: [[1, 3], [3, 0]]}),)

    def abstract_eval(self, ct, indices):
        check_integer_indices(self.name, indices)
        if ct.shape[:-1] != indices.shape or not ct.ndim:
            raise ShapeError(
                f"{self.name}: the cotangent must have a row for each index; got {ct!r} for "
                f"{indices!r}"
            )
        return ct.update(shape=(self.rows, ct.shape[-1]))

    def decompose(self, ct, indices):
        ct = Embedding(self.padding).zero_padding_rows(indices, ct)
        zeros = full((self.rows, ct.shape[-1]), literal(0, ct.dtype))
        if not self.rows:
            return zeros
        places = reshape(indices, (*indices.shape, 1))
        return row_gather(indices, zeros).add_to_cotangent(zeros, ct, (zeros, places))

    def jvp(self, primals, tangents):
        return self(*primals), self(tangents[0], primals[1])

    def vjp(self, ct, out, args, active):
        embedding = Embedding(self.padding)
        indices = args[1]
        return embedding.zero_padding_rows(indices, embedding.gather_rows(indices, ct)), None

    def transpose(self, ct, given, indices):
        return self.vjp(ct, None, (given, indices), (True, False))


def row_gather(indices: Any, weight: Any) -> Gather:
    """The gather of a whole row of `weight` for each of `indices`."""
    return Gather(
        offset_dims=(indices.ndim,),
        collapsed_slice_dims=(0,),
        start_index_map=(0,),
        slice_sizes=(1, weight.shape[1]),
        mode="fill",
    )


def check_integer_indices(name: str, indices: ShapedArray) -> None:
    if not is_integer(indices.dtype):
        raise DTypeError(
            f"{name}: indices must be integers; got {indices!r}", fix="Convert with astype(int)."
        )
