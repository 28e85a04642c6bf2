"""Schur decompositions, and the Sylvester equations of their derivatives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from jax import lax

from functx import ops
from functx.core.samples import Rounding, f32, sample
from functx.core.tracer import aval_of
from functx.core.types import ShapedArray, is_complex
from functx.core.typing import IRValue, Tangent, Value
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

    `t` is upper triangular. The columns follow one another; equal eigenvalues give nan unless `c` is 0
    there.
    """
    n, rows = t.shape[-1], ops.broadcasted_iota(np.int32, t.shape, t.ndim - 2)
    columns = ops.broadcasted_iota(np.int32, t.shape, t.ndim - 1)
    zero, one = literal(0, t.dtype), literal(1, t.dtype)
    on = ops.eq(rows, columns)
    solve = ops.TriangularSolve(lower_triangle=False)

    def step(j: Value, p: Value) -> Value:
        j = ops.convert_element_type(j, np.int32)
        here = ops.eq(columns, j)
        pick = [ops.reduce_sum(ops.select(here, x, zero), (t.ndim - 1,)) for x in (c, t)]
        # (t_jj - t) p_j = c_j - p t_j, in the rows below j.
        right = ops.sub(
            ops.insert_matrix_dim(pick[0], (*pick[0].shape, 1), drop=1),
            ops.matmul_highest(p, ops.insert_matrix_dim(pick[1], (*pick[1].shape, 1), drop=1)),
        )
        value = ops.reduce_sum(
            ops.select(ops.bitwise_and(here, on), t, zero), (t.ndim - 2, t.ndim - 1)
        )
        shifts = ops.broadcast_in_dim(value, t.shape, tuple(range(value.ndim)))
        matrix = ops.sub(ops.select(on, shifts, zero), t)
        used = ops.bitwise_and(ops.gt(rows, j), ops.gt(columns, j))
        matrix = ops.select(used, matrix, ops.select(on, one, zero))
        below = ops.slice_in_dim(ops.gt(rows, j), 0, 1, axis=t.ndim - 1)
        found = solve(matrix, ops.select(below, right, ops.zeros_like(right)))
        wide = ops.broadcast_in_dim(found, t.shape, tuple(range(t.ndim)))
        return ops.select(here, wide, p)

    return fori_loop(0, n, step, ops.zeros_like(aval_of(c))) if n else c
