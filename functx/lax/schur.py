"""Schur decompositions, and the Sylvester equations of their derivatives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import nan
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from jax import lax

from functx import ops
from functx.core.errors import ShapeError
from functx.core.samples import Rounding, f32, sample
from functx.core.tracer import aval_of
from functx.core.types import ShapedArray, complex_dtype, is_complex
from functx.core.typing import Cotangents, IRValue, Tangent, Value
from functx.ops.linear_algebra import MatrixFunction
from functx.ops.operands import literal
from functx.transforms.control.loops import fori_loop

if TYPE_CHECKING:
    from functx.lowering.stablehlo_emitter import LoweringContext

_MATRIX = np.array([[1.0, 2.0, 0.5], [0.5, -1.0, 1.0], [-0.5, 0.2, 3.0]])


class Schur(MatrixFunction):
    """The t, z with `x` == z @ t @ z.H, an upper triangular and a unitary matrix.

    For real matrices with complex eigenvalues, t has blocks of two rows on its diagonal instead, and
    then the derivatives are nan; they are also nan where eigenvalues are equal. Columns of a complex z
    keep their phases along a derivative, which results must not depend on.
    """

    multiple_results = True
    rounding = Rounding(is_normwise=True)
    samples = (sample(f32[3, 3], values={0: _MATRIX}, dtypes=("f64", "f32")),)

    def abstract_eval(self, x: ShapedArray) -> Sequence[ShapedArray]:
        self.check(x)
        return [x, x]

    def jvp(
        self, primals: Sequence[Value], tangents: Sequence[Value]
    ) -> tuple[Sequence[Value], Sequence[Tangent]]:
        t, z = outs = self(*primals)
        # With dz = z p, p antihermitian: z^H dx z = dt + p t - t p, whose lower triangle gives that of p.
        inner = ops.matmul_highest(ops.adjoint(z), ops.matmul_highest(tangents[0], z))
        zero = literal(0, t.dtype)
        below = ops.position_mask(t.shape, ops.gt)
        if not is_complex(t.dtype):
            blocks = ops.bitwise_and(below, ops.ne(t, zero))
            is_blocked = ops.reduce_or(blocks, (t.ndim - 2, t.ndim - 1))
            is_blocked = ops.broadcast_in_dim(is_blocked, t.shape, tuple(range(t.ndim - 2)))
            inner = ops.UndefinedDerivative()(is_blocked, inner)
        lower = solve_lower_sylvester(t, inner)
        rotation = ops.sub(lower, ops.adjoint(lower))
        mul = ops.matmul_highest
        dt = ops.add(inner, ops.sub(mul(t, rotation), mul(rotation, t)))
        return outs, [ops.select(below, zero, dt), mul(z, rotation)]

    def lower(self, ctx: LoweringContext, x: IRValue) -> Sequence[IRValue]:
        return ctx.via_jax(lambda x: tuple(lax.linalg.schur(x)), x)


def solve_lower_sylvester(t: Value, c: Value) -> Value:
    """The strictly lower triangular p with the same strict lower triangle of p t - t p as of `c`.

    `t` is upper triangular. Equal eigenvalues give nan unless `c` is 0 there.
    """

    def column(j: Value, p: Value) -> Value:
        t_j = take_column(t, j)
        # (t_jj - t) p_j = c_j - p t_j, in the rows below j.
        right = ops.sub(take_column(c, j), ops.matmul_highest(p, t_j))
        shifted = ops.sub(shift_diagonal(ops.zeros_like(t), take_row(t_j, j)), t)
        return solve_in_rows(shifted, right, ops.gt(row_numbers(right), j))

    return fill_columns(column, ops.zeros_like(aval_of(c)))


def solve_upper_sylvester(r: Value, s: Value, f: Value) -> Value:
    """The y with r @ y + y @ s == f for upper triangular `r` and `s`."""

    def column(j: Value, y: Value) -> Value:
        s_j = take_column(s, j)
        right = ops.sub(take_column(f, j), ops.matmul_highest(y, s_j))
        solve = ops.TriangularSolve(lower_triangle=False)
        return solve(shift_diagonal(r, take_row(s_j, j)), right)

    return fill_columns(column, ops.zeros_like(aval_of(f)))


def fill_columns(column: Callable[[Value, Value], Value], start: Value) -> Value:
    """`start` with its columns replaced one after the other by `column(j, so far)`."""

    def step(j: Value, so_far: Value) -> Value:
        j = ops.convert_element_type(j, np.int32)
        return ops.dynamic_update_slice_in_dim(so_far, column(j, so_far), j, start.ndim - 1)

    n = start.shape[-1]
    return fori_loop(0, n, step, start) if start.size else start


def take_column(x: Value, j: Value) -> Value:
    """Column `j` of matrices, as matrices of one column."""
    return ops.dynamic_slice_in_dim(x, j, 1, x.ndim - 1)


def take_row(x: Value, i: Value) -> Value:
    """Row `i` of matrices, as matrices of one row."""
    return ops.dynamic_slice_in_dim(x, i, 1, x.ndim - 2)


def row_numbers(x: Value) -> Value:
    """The number of the row of each element of matrices."""
    return ops.broadcasted_iota(np.int32, x.shape, x.ndim - 2)


def shift_diagonal(x: Value, shift: Value) -> Value:
    """`x` plus `shift`, matrices of one element, on the diagonal."""
    wide = ops.broadcast_in_dim(
        ops.squeeze(shift, (x.ndim - 2, x.ndim - 1)), x.shape, tuple(range(x.ndim - 2))
    )
    return ops.select(ops.position_mask(x.shape, ops.eq), ops.add(x, wide), x)


def solve_in_rows(matrix: Value, right: Value, used: Value) -> Value:
    """The x with matrix @ x == right in the rows, of one column, that `used` marks, and 0 elsewhere.

    Only the block of these rows and columns of the upper triangular `matrix` is used.
    """
    zero, one = literal(0, matrix.dtype), literal(1, matrix.dtype)
    vector = ops.squeeze(used, (used.ndim - 1,))
    block = ops.bitwise_and(
        ops.broadcast_rows(vector, matrix.shape), ops.broadcast_columns(vector, matrix.shape)
    )
    unit = ops.select(ops.position_mask(matrix.shape, ops.eq), one, ops.zeros_like(matrix))
    solve = ops.TriangularSolve(lower_triangle=False)
    return solve(ops.select(block, matrix, unit), ops.select(used, right, zero))


class SolveSylvester(MatrixFunction):
    """The x with a @ x + x @ b == c; nan if a sum of eigenvalues of a and b is smaller than `tol`."""

    tol: float = 0.0
    rounding = Rounding(is_normwise=True)
    samples = (
        sample(
            f32[2, 2],
            f32[3, 3],
            f32[2, 3],
            values={0: [[3.0, 2.0], [-1.0, 2.0]], 1: _MATRIX + 2 * np.eye(3)},
            dtypes=("f64", "f32"),
        ),
    )
    linear: ClassVar[tuple[int, ...]] = (2,)

    def abstract_eval(self, a: ShapedArray, b: ShapedArray, c: ShapedArray) -> ShapedArray:
        self.check(a, b, c)
        if c.shape[:-1] != a.shape[:-1] or c.shape[-1:] != b.shape[-1:] or a.ndim != b.ndim:
            raise ShapeError(
                f"{self.name}: c must have the rows of a and the columns of b, which are square; got "
                f"{a!r}, {b!r} and {c!r}"
            )
        return c

    def jvp(self, primals: Sequence[Value], tangents: Sequence[Tangent]) -> tuple[Value, Tangent]:
        (a, b, _), (da, db, dc) = primals, tangents
        x = self(*primals)
        for term in (
            None if da is None else ops.matmul_highest(da, x),
            None if db is None else ops.matmul_highest(x, db),
        ):
            if term is not None:
                dc = ops.neg(term) if dc is None else ops.sub(dc, term)
        return x, self(a, b, dc)

    def transpose(self, ct: Value, a: Value, b: Value, c: Value) -> Cotangents:
        return None, None, self(ops.matrix_transpose(a), ops.matrix_transpose(b), ct)

    def decompose(self, a: Value, b: Value, c: Value) -> Value:
        is_real, dtype = not is_complex(c.dtype), complex_dtype(c.dtype)
        (r, u), (s, v) = [Schur()(ops.convert_element_type(x, dtype)) for x in (a, b)]
        c = ops.convert_element_type(c, dtype)
        product, rows = ops.matmul_highest, len(c.shape) - 2
        y = solve_upper_sylvester(r, s, product(ops.adjoint(u), product(c, v)))
        x = product(u, product(y, ops.adjoint(v)))
        x = ops.real(x) if is_real else x
        if not self.tol:
            return x
        sums = ops.add(
            ops.broadcast_rows(ops.extract_diagonal(r), c.shape),
            ops.broadcast_columns(ops.extract_diagonal(s), c.shape),
        )
        is_singular = ops.reduce_or(ops.lt(ops.abs(sums), self.tol), (rows, rows + 1))
        wide = ops.broadcast_in_dim(is_singular, x.shape, tuple(range(rows)))
        return ops.select(wide, literal(nan, x.dtype), x)
