"""Systems of linear equations, of triangular and of any square matrices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import lax

from functx.core.avals import ShapedArray
from functx.core.errors import ShapeError
from functx.core.samples import f32, sample
from functx.ops.arithmetic import neg, sub
from functx.ops.comparison import ge, gt, le, lt
from functx.ops.matrices import (
    MatrixFunction,
    conj_if_complex,
    matmul_highest,
    matrix_transpose,
    position_mask,
    positive_definite,
    well_conditioned,
)
from functx.ops.operands import literal
from functx.ops.selection import select


class TriangularSolve(MatrixFunction):
    """The x with a @ x == b, where one triangle of `a` counts, the lower or the upper.

    With `transposed` it is that of the transpose of `a`, with `conjugated` that of the
    conjugate, and with `unit` the diagonal counts as ones.
    """

    lower_triangle: bool = True
    transposed: bool = False
    conjugated: bool = False
    unit_diagonal: bool = False
    samples = (
        sample(f32[3, 3], f32[3, 2], values={0: well_conditioned((3, 3))}),
        sample(
            f32[2, 3, 3],
            f32[2, 3, 1],
            lower_triangle=False,
            values={0: positive_definite((2, 3, 3))},
        ),
        sample(
            f32[3, 3],
            f32[3, 2],
            transposed=True,
            conjugated=True,
            values={0: positive_definite((3, 3))},
        ),
        sample(f32[3, 3], f32[3, 2], unit_diagonal=True, domain=(-1.0, 1.0)),
    )

    def abstract_eval(self, a, b):
        self.check(a, b)
        _check_right_hand_side(self, a, b)
        return b

    def effective_matrix(self, a: Any) -> Any:
        """The matrix that is solved with."""
        relation = ge if self.lower_triangle else le
        mask = position_mask(
            a.shape, _strict_relation(relation) if self.unit_diagonal else relation
        )
        a = select(mask, a, literal(0, a.dtype))
        a = matrix_transpose(a) if self.transposed else a
        return conj_if_complex(a) if self.conjugated else a

    def jvp(self, primals, tangents):
        (a, b), (da, db) = primals, tangents
        x = self(a, b)
        if da is not None:
            term = matmul_highest(self.effective_matrix(da), x)
            db = neg(term) if db is None else sub(db, term)
        return x, self(a, db)

    def transpose(self, ct, a, b):
        return None, self.transposed_solve()(a, ct)

    def transposed_solve(self) -> TriangularSolve:
        return TriangularSolve(
            self.lower_triangle, not self.transposed, self.conjugated, self.unit_diagonal
        )

    def lower(self, ctx, a, b):
        def solve(a: Any, b: Any) -> Any:
            return lax.linalg.triangular_solve(
                a,
                b,
                left_side=True,
                lower=self.lower_triangle,
                transpose_a=self.transposed,
                conjugate_a=self.conjugated,
                unit_diagonal=self.unit_diagonal,
            )

        return ctx.via_jax(solve, a, b)


class Solve(MatrixFunction):
    """The x with a @ x == b; with `transposed`, that of the transpose of `a`."""

    transposed: bool = False
    samples = (
        sample(f32[3, 3], f32[3, 2], values={0: well_conditioned((3, 3))}),
        sample(
            f32[2, 3, 3], f32[2, 3, 1], transposed=True, values={0: well_conditioned((2, 3, 3))}
        ),
    )

    def abstract_eval(self, a, b):
        self.check(a, b)
        _check_right_hand_side(self, a, b)
        return b

    def jvp(self, primals, tangents):
        (a, b), (da, db) = primals, tangents
        x = self(a, b)
        if da is not None:
            # a dx = db - da x
            term = matmul_highest(matrix_transpose(da) if self.transposed else da, x)
            db = neg(term) if db is None else sub(db, term)
        return x, self(a, db)

    def vjp(self, ct, out, args, active):
        pulled = Solve(not self.transposed)(args[0], ct)
        if not active[0]:
            return None, pulled
        term = neg(matmul_highest(pulled, matrix_transpose(out)))
        return matrix_transpose(term) if self.transposed else term, pulled

    def transpose(self, ct, a, b):
        return None, Solve(not self.transposed)(a, ct)

    def lower(self, ctx, a, b):
        def solve(a: Any, b: Any) -> Any:
            return jnp.linalg.solve(jnp.swapaxes(a, -1, -2) if self.transposed else a, b)

        return ctx.via_jax(solve, a, b)


def _check_right_hand_side(primitive: Any, a: ShapedArray, b: ShapedArray) -> None:
    if b.ndim != a.ndim or b.shape[:-1] != a.shape[:-1]:
        raise ShapeError(
            f"{primitive.name}: the right side must have as many rows as the matrix, and its "
            f"batch; got {a!r} and {b!r}"
        )


def _strict_relation(relation: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return gt if relation is ge else lt


def triangular_solve(
    a: Any,
    b: Any,
    lower: bool = True,
    transposed: bool = False,
    conjugated: bool = False,
    unit_diagonal: bool = False,
) -> Any:
    """The x with a @ x == b, where one triangle of `a` counts, the lower or the upper.

    With `transposed` it is that of the transpose of `a`, with `conjugated` that of the
    conjugate, and with `unit_diagonal` the diagonal counts as ones.
    """
    return TriangularSolve(lower, transposed, conjugated, unit_diagonal)(a, b)


def solve(a: Any, b: Any) -> Any:
    """The x with a @ x == b, for square matrices `a`, and matrices `b` of as many rows."""
    return Solve()(a, b)
