"""LU factors, the systems that they solve, and logarithms of determinants.

A system is solved in two equations, the factors and their use, so that derivatives of every order, and
all systems with one matrix, share the factors.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, ClassVar

import jax.numpy as jnp
import numpy as np
from jax import lax

from functx import ops
from functx.core.errors import DTypeError, ShapeError
from functx.core.samples import f32, i32, sample
from functx.core.tracer import aval_of
from functx.core.types import ShapedArray, is_complex, real_dtype
from functx.core.typing import ArrayLike, Cotangents, IRValue, NumPyArray, Tangent, Value
from functx.ops.linear_algebra import (
    LinearSystem,
    MatrixFunction,
    check_right_hand_side,
    conj_if_complex,
    extract_diagonal,
    matmul_highest,
    matrix_transpose,
    position_mask,
    real_if_complex,
    well_conditioned,
)
from functx.ops.operands import literal

if TYPE_CHECKING:
    from functx.lowering.stablehlo_emitter import LoweringContext

_MATRIX = np.array([[1.0, 2.0, 0.5], [3.0, -1.0, 1.0], [-1.0, 1.0, 2.0]])
_FACTORS = np.array([[3.0, -1.0, 1.0], [1 / 3, 7 / 3, 1 / 6], [-1 / 3, 2 / 7, 16 / 7]])
_PIVOTS, _PERMUTATION = [1, 1, 2], [1, 0, 2]


class Lu(MatrixFunction):
    """The LU factors of matrices with rows permuted by partial pivoting, the pivots, the permutation.

    x[permutation] == l @ u, where the unit lower triangular l and the upper triangular u are the two
    triangles of one matrix. Step i exchanges row i with row `pivots[i]`.
    """

    square = False
    multiple_results = True
    samples = (
        sample(f32[3, 3], values={0: _MATRIX}, dtypes=("f64", "f32")),
        sample(f32[2, 4, 2], values={0: well_conditioned((2, 4, 2))}, dtypes=("f64", "f32")),
        sample(f32[2, 3], values={0: well_conditioned((2, 3))}, dtypes=("f64", "f32")),
    )

    def abstract_eval(self, x: ShapedArray) -> Sequence[ShapedArray]:
        self.check(x)
        *batch, m, n = x.shape
        rows = ShapedArray((*batch, m), np.dtype("int32"))
        return [x, rows.update(shape=(*batch, min(m, n))), rows]

    def jvp(
        self, primals: Sequence[Value], tangents: Sequence[Value]
    ) -> tuple[Sequence[Value], Sequence[Tangent]]:
        # de Hoog, Anderssen and Lukas (2011), "Differentiation of matrix functionals using
        # triangular factorization": l^-1 dx u^-1 = l^-1 dl + du u^-1.
        lu, pivots, permutation = outs = self(*primals)
        *batch, m, n = lu.shape
        k, zero = min(m, n), literal(0, lu.dtype)
        lower = ops.slice_in_dim(lu, 0, k, axis=lu.ndim - 1)
        lower = ops.pad(lower, zero, [(0, 0, 0)] * (lu.ndim - 1) + [(0, m - k, 0)])
        upper = ops.slice_in_dim(lu, 0, k, axis=lu.ndim - 2)
        upper = ops.pad(upper, zero, [(0, 0, 0)] * len(batch) + [(0, n - k, 0), (0, 0, 0)])
        if n > k:
            rows = ops.broadcasted_iota(np.int32, upper.shape, upper.ndim - 2)
            unit = ops.bitwise_and(ops.ge(rows, k), position_mask(upper.shape, ops.eq))
            upper = ops.select(unit, literal(1, lu.dtype), upper)
        left = ops.TriangularSolve(unit_diagonal=True)(
            lower, permute_rows(tangents[0], permutation)
        )
        both = matrix_transpose(
            ops.TriangularSolve(lower_triangle=False, transposed=True)(
                upper, matrix_transpose(left)
            )
        )
        below = position_mask(both.shape, ops.gt)
        strict = ops.slice_in_dim(ops.select(below, both, zero), 0, k, axis=lu.ndim - 1)
        strict = ops.pad(strict, zero, [(0, 0, 0)] * (lu.ndim - 1) + [(0, m - k, 0)])
        unit_lower = ops.select(
            position_mask(lower.shape, ops.gt),
            lower,
            ops.select(position_mask(lower.shape, ops.eq), literal(1, lu.dtype), zero),
        )
        upper = ops.select(position_mask(upper.shape, ops.le), upper, zero)
        dl = ops.slice_in_dim(matmul_highest(unit_lower, strict), 0, k, axis=lu.ndim - 1)
        dl = ops.pad(dl, zero, [(0, 0, 0)] * (lu.ndim - 1) + [(0, n - k, 0)])
        du = matmul_highest(ops.select(below, zero, both), upper)
        return outs, [ops.add(dl, du), None, None]

    def lower(self, ctx: LoweringContext, x: IRValue) -> Sequence[IRValue]:
        return ctx.via_jax(lax.linalg.lu, x)


def permute_rows(x: Value, permutation: Value) -> Value:
    """The rows of matrices in the order of `permutation`, a batch of vectors."""
    if 0 in x.shape:
        return x
    n = x.ndim - 2
    gather = ops.Gather(
        offset_dims=(n + 1,),
        collapsed_slice_dims=(n,),
        start_index_map=(n,),
        operand_batching_dims=tuple(range(n)),
        start_indices_batching_dims=tuple(range(n)),
        slice_sizes=(*[1] * (n + 1), x.shape[-1]),
        unique_indices=True,
        mode="promise_in_bounds",
    )
    return gather(x, ops.expand_dims(permutation, (permutation.ndim,)))


class FactoredSolve(LinearSystem, abstract=True):
    """The x with a @ x == b, by factors of `a`.

    The operands are a, its factors, and b. The factors serve the computation alone: derivatives are
    those of the solution as a function of a and b.
    """

    def for_transpose(self, factors: Sequence[Value]) -> tuple[LinearSystem, Sequence[Value]]:
        """The operation for the transpose of a, and its factors."""
        raise NotImplementedError

    def matrix(self, a: Value) -> Value:
        """The matrix that the solve applies the inverse of."""
        return a

    def solve_transposed(self, ct: Value, a: Value, *factors: Value) -> Value:
        solve, of_transpose = self.for_transpose(factors)
        x: Value = solve(a, *of_transpose, ct)
        return x

    def jvp(self, primals: Sequence[Value], tangents: Sequence[Tangent]) -> tuple[Value, Tangent]:
        *known, _ = primals
        x, da, db = self(*primals), tangents[0], tangents[-1]
        if da is not None:
            # a dx = db - da x
            term = matmul_highest(self.matrix(da), x)
            db = ops.neg(term) if db is None else ops.sub(db, term)
        return x, None if db is None else self(*known, db)

    def vjp(
        self, ct: Value, out: Value, args: Sequence[Value], active: Sequence[bool]
    ) -> Cotangents:
        *known, _ = args
        b_ct = self.solve_transposed(ct, *known)
        a_ct = (
            self.matrix(ops.neg(matmul_highest(b_ct, matrix_transpose(out)))) if active[0] else None
        )
        return [a_ct, *[None] * (len(known) - 1), b_ct]

    def transpose(self, ct: Value, *args: Value) -> Cotangents:
        *known, _ = args
        return [*[None] * len(known), self.solve_transposed(ct, *known)]


class LuSolve(FactoredSolve):
    """The x with a @ x == b, by the LU factors of `a`; with `transposed`, `a` is transposed.

    The operands are a, its factors, its permutation, and b.
    """

    transposed: bool = False
    linear: ClassVar[tuple[int, ...]] = (3,)
    samples = (
        sample(
            f32[3, 3],
            f32[3, 3],
            i32[3],
            f32[3, 2],
            values={0: _MATRIX, 1: _FACTORS, 2: _PERMUTATION},
        ),
        sample(
            f32[1, 3, 3],
            f32[1, 3, 3],
            i32[1, 3],
            f32[1, 3, 1],
            transposed=True,
            values={0: _MATRIX, 1: _FACTORS, 2: _PERMUTATION},
            dtypes=("f64", "f32"),
        ),
    )

    def abstract_eval(
        self, a: ShapedArray, lu: ShapedArray, permutation: ShapedArray, b: ShapedArray
    ) -> ShapedArray:
        check_factors(self, a, lu, permutation)
        self.check(a, b)
        check_right_hand_side(self, a, b)
        return b

    def for_transpose(self, factors: Sequence[Value]) -> tuple[LinearSystem, Sequence[Value]]:
        return LuSolve(not self.transposed), factors

    def matrix(self, a: Value) -> Value:
        return matrix_transpose(a) if self.transposed else a

    def numpy(
        self, a: NumPyArray, lu: NumPyArray, permutation: NumPyArray, b: NumPyArray
    ) -> ArrayLike:
        return np.linalg.solve(np.swapaxes(a, -1, -2) if self.transposed else a, b)

    def lower(
        self, ctx: LoweringContext, a: IRValue, lu: IRValue, permutation: IRValue, b: IRValue
    ) -> IRValue:
        solve = _solve_transposed_by_factors if self.transposed else _solve_by_factors
        return ctx.via_jax(solve, a, lu, permutation, b)


class CholeskySolve(FactoredSolve):
    """The x with a @ x == b, by the Cholesky factor of the Hermitian `a`; with `conjugated`, of its conjugate.

    The operands are a, its lower triangular factor, and b.
    """

    conjugated: bool = False
    linear: ClassVar[tuple[int, ...]] = (2,)
    samples = (
        sample(
            f32[2, 2],
            f32[2, 2],
            f32[2, 1],
            values={0: [[4.0, 2.0], [2.0, 2.0]], 1: [[2.0, 0.0], [1.0, 1.0]]},
        ),
    )

    def abstract_eval(self, a: ShapedArray, factor: ShapedArray, b: ShapedArray) -> ShapedArray:
        self.check(a, factor, b)
        check_right_hand_side(self, a, factor)
        check_right_hand_side(self, a, b)
        return b

    def for_transpose(self, factors: Sequence[Value]) -> tuple[LinearSystem, Sequence[Value]]:
        return CholeskySolve(not self.conjugated and is_complex(factors[0].dtype)), factors

    def matrix(self, a: Value) -> Value:
        return matrix_transpose(a) if self.conjugated else a

    def numpy(self, a: NumPyArray, factor: NumPyArray, b: NumPyArray) -> ArrayLike:
        return np.linalg.solve(np.swapaxes(a, -1, -2) if self.conjugated else a, b)

    def decompose(self, a: Value, factor: Value, b: Value) -> Value:
        factor = conj_if_complex(factor) if self.conjugated else factor
        first = ops.TriangularSolve()(factor, b)
        second = ops.TriangularSolve(transposed=True, conjugated=is_complex(factor.dtype))
        return second(factor, first)


def _solve_by_factors(a: Value, lu: Value, permutation: Value, b: Value) -> Value:
    x = jnp.take_along_axis(b, permutation[..., None], axis=-2)
    x = lax.linalg.triangular_solve(lu, x, left_side=True, lower=True, unit_diagonal=True)
    return lax.linalg.triangular_solve(lu, x, left_side=True, lower=False)


def _solve_transposed_by_factors(a: Value, lu: Value, permutation: Value, b: Value) -> Value:
    x = lax.linalg.triangular_solve(lu, b, left_side=True, lower=False, transpose_a=True)
    x = lax.linalg.triangular_solve(
        lu, x, left_side=True, lower=True, unit_diagonal=True, transpose_a=True
    )
    return _permute_rows_back(permutation, x)


@partial(jnp.vectorize, signature="(n),(n,k)->(n,k)")
def _permute_rows_back(permutation: Value, x: Value) -> Value:
    """The matrix whose rows in the order `permutation` are those of `x`."""
    # A sort of the permutation takes more time than the triangular solves. XLA scatters once for all
    # solves with the same factors, and reads rows while it computes with them.
    inverse = (
        jnp.zeros_like(permutation)
        .at[permutation]
        .set(jnp.arange(permutation.size, dtype=permutation.dtype), unique_indices=True)
    )
    return x.at[inverse].get(mode="promise_in_bounds", unique_indices=True)


def check_factors(
    primitive: MatrixFunction, a: ShapedArray, lu: ShapedArray, permutation: ShapedArray
) -> None:
    """Raise unless `lu` and `permutation` have the types that `Lu` gives for `a`."""
    primitive.check(a, lu)
    if lu.shape != a.shape or permutation.shape != a.shape[:-1]:
        raise ShapeError(
            f"{primitive.name}: the factors must have the shape of the matrix, and the permutation an "
            f"element for each row; got {a!r}, {lu!r} and {permutation!r}"
        )
    if permutation.dtype.kind not in "iu":
        raise DTypeError(
            f"{primitive.name}: the permutation must be of integers; got {permutation!r}"
        )


class Slogdet(MatrixFunction):
    """The sign of the determinant, and the logarithm of its absolute value, by LU factors.

    The operands are matrices, and their factors, permutation and pivots. The derivatives are those of
    functions of the matrices, as for `LuSolve`.
    """

    multiple_results = True
    samples = (
        sample(
            f32[3, 3],
            f32[3, 3],
            i32[3],
            i32[3],
            values={0: _MATRIX, 1: _FACTORS, 2: _PERMUTATION, 3: _PIVOTS},
        ),
    )

    def abstract_eval(
        self, x: ShapedArray, lu: ShapedArray, permutation: ShapedArray, pivots: ShapedArray
    ) -> Sequence[ShapedArray]:
        check_factors(self, x, lu, permutation)
        out = x.update(shape=x.shape[:-2])
        return [out, out.update(dtype=real_dtype(x.dtype))]

    def jvp(
        self, primals: Sequence[Value], tangents: Sequence[Tangent]
    ) -> tuple[Sequence[Value], Sequence[Tangent]]:
        dx = tangents[0]
        sign, log_abs_det = outs = self(*primals)
        if dx is None:
            return outs, [None, None]
        trace = _sum_last_dim(extract_diagonal(LuSolve()(*primals[:3], dx)))
        sign_tangent = None
        if is_complex(dx.dtype):
            # The imaginary part of the trace rotates the sign.
            sign_tangent = ops.mul(
                sign, ops.complex(ops.constant_like(log_abs_det, 0), ops.imag(trace))
            )
        return outs, [sign_tangent, real_if_complex(trace)]

    def numpy(
        self, x: NumPyArray, lu: NumPyArray, permutation: NumPyArray, pivots: NumPyArray
    ) -> Sequence[NumPyArray]:
        return np.linalg.slogdet(x)

    def decompose(self, x: Value, lu: Value, permutation: Value, pivots: Value) -> Sequence[Value]:
        diagonal = extract_diagonal(lu)
        last = diagonal.ndim - 1
        steps = ops.broadcasted_iota(pivots.dtype, pivots.shape, last)
        swaps = ops.select(
            ops.ne(pivots, steps), literal(-1, diagonal.dtype), literal(1, diagonal.dtype)
        )
        sign = ops.reduce_prod(ops.mul(swaps, ops.sign(diagonal)), (last,))
        return [sign, _sum_last_dim(ops.log(ops.abs(diagonal)))]


def _sum_last_dim(x: Value) -> Value:
    return ops.reduce_sum(x, (x.ndim - 1,))


def lu_factors(a: ArrayLike) -> tuple[Value, Value, Value]:
    """The LU factors, pivots and permutation of `a`, for use beside `a`, which has the derivative."""
    lu, pivots, permutation = Lu()(ops.stop_gradient(a))
    return lu, pivots, permutation


def solve(a: ArrayLike, b: ArrayLike) -> Value:
    """The x with a @ x == b for square matrices `a` and matrices `b` with as many rows."""
    if aval_of(a).shape[-2:-1] != aval_of(a).shape[-1:]:
        raise ShapeError(f"solve: the operand must hold square matrices; got {aval_of(a)!r}")
    lu, _, permutation = lu_factors(a)
    return LuSolve()(a, lu, permutation, b)


def slogdet(x: ArrayLike) -> tuple[Value, Value]:
    """The sign of the determinant, and the logarithm of its absolute value."""
    if aval_of(x).shape[-2:-1] != aval_of(x).shape[-1:]:
        raise ShapeError(f"slogdet: the operand must hold square matrices; got {aval_of(x)!r}")
    lu, pivots, permutation = lu_factors(x)
    sign, log_abs_det = Slogdet()(x, lu, permutation, pivots)
    return sign, log_abs_det
