"""Linear systems of tridiagonal matrices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from jax import lax

from functx import ops
from functx.core.errors import ShapeError
from functx.core.samples import f32, sample
from functx.core.types import ShapedArray
from functx.core.typing import ArrayLike, Cotangents, IRValue, NumPyArray, Tangent, Value
from functx.ops.linear_algebra import LinearSystem, insert_matrix_dim
from functx.ops.operands import literal

if TYPE_CHECKING:
    from functx.lowering.stablehlo_emitter import LoweringContext


class TridiagonalSolve(LinearSystem):
    """The x with t @ x == b for tridiagonal matrices t, given by their three diagonals.

    The operands are the diagonals, of one length, and b. Element i of the lower diagonal is t[i, i-1],
    and its first element is not read; element i of the upper one is t[i, i+1]. With
    `perturb_singular`, pivots near 0 are moved away from it.
    """

    perturb_singular: bool = False
    linear: ClassVar[tuple[int, ...]] = (3,)
    samples = (
        sample(f32[3], f32[3], f32[3], f32[3, 2], domain={1: (3.0, 5.0)}),
        sample(
            f32[2, 2], f32[2, 2], f32[2, 2], f32[2, 2, 1], domain={1: (3.0, 5.0)}, dtypes=("f32",)
        ),
    )

    def abstract_eval(
        self, lower: ShapedArray, diagonal: ShapedArray, upper: ShapedArray, b: ShapedArray
    ) -> ShapedArray:
        self.check(b, lower, diagonal, upper)
        if not lower.shape == diagonal.shape == upper.shape == b.shape[:-1]:
            raise ShapeError(
                f"{self.name}: the diagonals must have one length, and b as many rows; got "
                f"{lower!r}, {diagonal!r}, {upper!r} and {b!r}"
            )
        return b

    square = False

    def jvp(self, primals: Sequence[Value], tangents: Sequence[Tangent]) -> tuple[Value, Tangent]:
        *diagonals, _ = primals
        x, db = self(*primals), tangents[3]
        for step, t in zip((1, 0, -1), tangents[:3], strict=True):
            if t is not None:
                term = ops.mul(insert_matrix_dim(t, x.shape, drop=1), shift_rows(x, step))
                db = ops.neg(term) if db is None else ops.sub(db, term)
        return x, self(*diagonals, db)

    def transpose(self, ct: Value, *args: Value) -> Cotangents:
        lower, diagonal, upper, _ = args
        swapped = [
            ops.squeeze(shift_rows(ops.expand_dims(x, (x.ndim,)), step), (x.ndim,))
            for x, step in ((upper, 1), (lower, -1))
        ]
        return None, None, None, self(swapped[0], diagonal, swapped[1], ct)

    def numpy(
        self, lower: NumPyArray, diagonal: NumPyArray, upper: NumPyArray, b: NumPyArray
    ) -> ArrayLike:
        n = diagonal.shape[-1]
        below, on, above = [np.eye(n, k=k) for k in (-1, 0, 1)]
        matrix = below * lower[..., None] + on * diagonal[..., None] + above * upper[..., None]
        return np.linalg.solve(matrix, b)

    def lower(
        self, ctx: LoweringContext, lower: IRValue, diagonal: IRValue, upper: IRValue, b: IRValue
    ) -> IRValue:
        def solve(*args: Value) -> Value:
            return lax.linalg.tridiagonal_solve(*args, perturb_singular=self.perturb_singular)

        return ctx.via_jax(solve, lower, diagonal, upper, b)


def shift_rows(x: Value, step: int) -> Value:
    """`x` with its rows moved down by `step`, and zeros in place of those that move in."""
    config = [(0, 0, 0)] * (x.ndim - 2) + [(step, -step, 0), (0, 0, 0)]
    return ops.pad(x, literal(0, x.dtype), config) if step else x
