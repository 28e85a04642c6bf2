"""QR factors and pseudo-inverses of batches of matrices."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING

import numpy as np
from jax import lax

from functx import ops
from functx.core.errors import DTypeError, ShapeError
from functx.core.samples import Rounding, c64, f32, sample
from functx.core.types import ShapedArray, is_complex, real_dtype
from functx.core.typing import ArrayLike, IRValue, NumPyArray, Tangent, Value
from functx.ops.factorizations import leading_block, pad_with_nan
from functx.ops.linear_algebra import MatrixFunction, well_conditioned
from functx.ops.linear_systems import permute_rows
from functx.ops.operands import cast_like, literal

if TYPE_CHECKING:
    from functx.lowering.stablehlo_emitter import LoweringContext


class Qr(MatrixFunction):
    """The q, r with `x` == q @ r, orthonormal columns and an upper triangular matrix.

    There are as many columns as the smaller dimension; with `full_matrices`, q is square and r has
    the shape of `x`. With `pivoting` a third result holds the order of the columns of `x` that are
    factored, in which the diagonal of r decreases. The derivatives of the further columns of a full
    q are nan, since any rotation of them is as good.
    """

    full_matrices: bool = False
    pivoting: bool = False
    square = False
    multiple_results = True
    samples = (
        sample(f32[3, 2], values={0: well_conditioned((3, 2))}, dtypes=("f64", "f32")),
        sample(
            c64[2, 3],
            values={0: [[1.0, 2.0j, 0.5], [1.0 - 1.0j, 0.3 + 1.0j, 2.0]]},
            dtypes=("c128", "c64"),
        ),
        sample(
            f32[2, 3, 3],
            full_matrices=True,
            pivoting=True,
            values={0: well_conditioned((2, 3, 3))},
            dtypes=("f64", "f32"),
        ),
    )

    def abstract_eval(self, x: ShapedArray) -> Sequence[ShapedArray]:
        self.check(x)
        *batch, m, n = x.shape
        k = m if self.full_matrices else min(m, n)
        factors = [x.update(shape=(*batch, m, k)), x.update(shape=(*batch, k, n))]
        return [*factors, ShapedArray((*batch, n), np.dtype("int32"))][: 2 + self.pivoting]

    def jvp(
        self, primals: Sequence[Value], tangents: Sequence[Value]
    ) -> tuple[Sequence[Value], Sequence[Tangent]]:
        (dx,) = tangents
        outs = self(*primals)
        whole_q, whole_r, *order = outs
        if order:
            dx = ops.matrix_transpose(permute_rows(ops.matrix_transpose(dx), order[0]))
        *batch, m, n = dx.shape
        k = min(m, n)
        q, r = [
            leading_block(x, (*batch, *shape))
            for x, shape in ((whole_q, (m, k)), (whole_r, (k, n)))
        ]
        square = leading_block(r, (*batch, k, k))
        # With dq = q p + (a part orthogonal to q): q^H dx r^-1 = p + dr r^-1, p antihermitian.
        scaled = ops.matrix_transpose(
            ops.TriangularSolve(lower_triangle=False, transposed=True)(
                square, ops.matrix_transpose(leading_block(dx, (*batch, m, k)))
            )
        )
        inner = ops.matmul_highest(ops.adjoint(q), scaled)
        zero = literal(0, inner.dtype)
        below = ops.select(ops.position_mask(inner.shape, ops.gt), inner, zero)
        rotation = ops.sub(below, ops.adjoint(below))
        if is_complex(inner.dtype):
            # The diagonal of r is real.
            phases = ops.sub(inner, cast_like(ops.real(inner), inner))
            rotation = ops.select(ops.position_mask(inner.shape, ops.eq), phases, rotation)
        dq = ops.add(ops.matmul_highest(q, ops.sub(rotation, inner)), scaled)
        dr = ops.sub(ops.matmul_highest(ops.adjoint(q), dx), ops.matmul_highest(rotation, r))
        dr = ops.select(ops.position_mask(dr.shape, ops.le), dr, zero)
        dr = ops.pad(
            dr, zero, [(0, 0, 0)] * (dr.ndim - 2) + [(0, whole_r.shape[-2] - k, 0), (0, 0, 0)]
        )
        return outs, [pad_with_nan(dq, whole_q.shape), dr, None][: 2 + self.pivoting]

    def lower(self, ctx: LoweringContext, x: IRValue) -> Sequence[IRValue]:
        def qr(x: Value) -> tuple[Value, ...]:
            outs = lax.linalg.qr(x, pivoting=self.pivoting, full_matrices=self.full_matrices)
            return tuple(outs)

        return ctx.via_jax(qr, x)


class Pinv(MatrixFunction):
    """The pseudo-inverse of matrices; singular values up to `rtol` times the largest count as 0.

    The operands are matrices and a real `rtol` for each. The matrices are taken to be Hermitian if
    `hermitian`. Derivatives are those at constant rank.
    """

    hermitian: bool = False
    square = False
    rounding = Rounding(is_normwise=True)
    samples = (
        sample(
            f32[3, 2],
            f32[()],
            values={0: well_conditioned((3, 2)), 1: 1e-3},
            dtypes=("f64", "f32"),
        ),
        sample(
            c64[2, 3],
            f32[()],
            values={0: well_conditioned((2, 3)), 1: 1e-3},
            dtypes=("c128", "c64"),
        ),
        sample(
            f32[2, 2],
            f32[()],
            hermitian=True,
            values={0: [[2.0, 1.0], [1.0, -1.0]], 1: 1e-3},
            dtypes=("f64", "f32"),
        ),
    )

    def abstract_eval(self, x: ShapedArray, rtol: ShapedArray) -> ShapedArray:
        self.check(x)
        *batch, m, n = x.shape
        if self.hermitian and m != n:
            raise ShapeError(f"{self.name}: Hermitian matrices must be square; got {x!r}")
        if rtol.dtype != real_dtype(x.dtype):
            raise DTypeError(
                f"{self.name}: rtol must be of {real_dtype(x.dtype)}, the real dtype of the matrices; "
                f"got {rtol!r}"
            )
        if rtol.shape != tuple(batch):
            raise ShapeError(
                f"{self.name}: there must be one rtol for each matrix; got {rtol!r} and {x!r}"
            )
        return x.update(shape=(*batch, n, m))

    def jvp(self, primals: Sequence[Value], tangents: Sequence[Tangent]) -> tuple[Value, Tangent]:
        # Golub and Pereyra (1973), "The differentiation of pseudo-inverses and nonlinear least
        # squares problems whose variables separate".
        a, dx = primals[0], tangents[0]
        out = self(*primals)
        if dx is None:
            return out, None
        if self.hermitian:
            a, dx = ops.hermitian_part(a), ops.hermitian_part(dx)
        mul, wide = ops.matmul_highest, ops.adjoint(out)
        columns = mul(out, mul(wide, ops.adjoint(dx)))
        rows = mul(mul(ops.adjoint(dx), wide), out)
        terms = [
            ops.neg(mul(mul(out, dx), out)),
            ops.sub(columns, mul(mul(columns, a), out)),
            ops.sub(rows, mul(out, mul(a, rows))),
        ]
        return out, reduce(ops.add, terms)

    def numpy(self, x: NumPyArray, rtol: NumPyArray) -> ArrayLike:
        if self.hermitian:
            x = (x + np.swapaxes(x, -1, -2).conj()) / 2
        return np.linalg.pinv(x, rcond=rtol, hermitian=self.hermitian)

    def decompose(self, x: Value, rtol: Value) -> Value:
        if 0 in x.shape:
            return ops.zeros_like(ops.matrix_transpose(x))
        if self.hermitian:
            s, u = ops.Eigh()(x)
            vh = ops.adjoint(u)
        else:
            u, s, vh = ops.Svd()(x)
        sizes, last = ops.abs(s), s.ndim - 1
        least = ops.mul(rtol, ops.reduce_max(sizes, (last,)))
        is_zero = ops.le(sizes, ops.broadcast_in_dim(least, s.shape, tuple(range(last))))
        inverses = ops.div(1.0, ops.select(is_zero, literal(1, s.dtype), s))
        inverses = cast_like(ops.select(is_zero, literal(0, s.dtype), inverses), u)
        return ops.matmul_highest(ops.scale_columns(ops.adjoint(vh), inverses), ops.adjoint(u))
