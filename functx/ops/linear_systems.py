"""LU factors, and the systems and determinants that they solve.

A system is solved in two equations, the factors and their use, so that derivatives of every order, and
all systems with one matrix, share the factors.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial, reduce
from typing import TYPE_CHECKING, ClassVar

import jax.numpy as jnp
import numpy as np
from jax import lax
from ml_dtypes import finfo

from functx import ops
from functx.core.errors import DTypeError, ShapeError
from functx.core.samples import Rounding, c64, f32, i32, sample
from functx.core.tracer import aval_of
from functx.core.types import ShapedArray, is_complex, real_dtype
from functx.core.typing import ArrayLike, Cotangents, IRValue, NumPyArray, Tangent, Value
from functx.ops.exponents import exponent_of, scale_by_power_of_two
from functx.ops.linear_algebra import (
    LinearSystem,
    MatrixFunction,
    adjoint,
    check_right_hand_side,
    conj_if_complex,
    construct_diagonal,
    extract_diagonal,
    insert_matrix_dim,
    matmul_highest,
    matrix_transpose,
    position_mask,
    real_if_complex,
    well_conditioned,
)
from functx.ops.operands import broadcast_along, cast_like, literal

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
    # A sort of the permutation takes more time than the triangular solves.
    return jnp.zeros_like(x).at[permutation].set(x, unique_indices=True)


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


class Det(MatrixFunction):
    """The determinant."""

    samples = (
        sample(f32[3, 3]),
        sample(f32[2, 2, 2]),
        sample(f32[1, 1]),
        sample(f32[2, 2], values={0: [[1.0, 2.0], [2.0, 4.0]]}, gradients={0: [[4, -2], [-2, 1]]}),
        sample(f32[3, 3], values={0: np.ones((3, 3))}, gradients={0: np.zeros((3, 3))}),
    )

    def abstract_eval(self, x: ShapedArray) -> ShapedArray:
        self.check(x)
        return x.update(shape=x.shape[:-2])

    def jvp(self, primals: Sequence[Value], tangents: Sequence[Value]) -> tuple[Value, Tangent]:
        (x,), (dx,) = primals, tangents
        return self(x), ops.reduce_sum(ops.mul(Cofactors()(x), dx), (x.ndim - 2, x.ndim - 1))

    def vjp(
        self, ct: Value, out: Value, args: Sequence[Value], active: Sequence[bool]
    ) -> Cotangents:
        (x,) = args
        broadcast = ops.broadcast_in_dim(ct, x.shape, tuple(range(x.ndim - 2)))
        return (ops.mul(broadcast, Cofactors()(x)),)

    def numpy(self, x: NumPyArray) -> ArrayLike:
        return np.linalg.det(x)

    def lower(self, ctx: LoweringContext, x: IRValue) -> IRValue:
        return ctx.via_jax(jnp.linalg.det, x)


class Cofactors(MatrixFunction):
    """The matrix of cofactors, the derivative of the determinant, singular or not."""

    rounding = Rounding(is_normwise=True)
    samples = (sample(f32[3, 3], values={0: well_conditioned((3, 3))}), sample(c64[1, 2, 2]))

    def abstract_eval(self, x: ShapedArray) -> ShapedArray:
        self.check(x)
        return x

    def decompose(self, x: Value) -> Value:
        """The cofactors of the matrix with rows, then columns, scaled to magnitudes of 1/2 to 1.

        The factors are exact powers of two, and constants of all derivatives.
        """
        plain = ops.stop_gradient(x)
        rows = self.exponents(plain, x.ndim - 1)
        columns = self.exponents(scale_by_power_of_two(plain, ops.neg(rows)), x.ndim - 2)
        scaling = ops.add(rows, columns)
        total = ops.add(_of_determinant(rows, x.ndim - 2), _of_determinant(columns, x.ndim - 1))
        cofactors = BalancedCofactors()(scale_by_power_of_two(x, ops.neg(scaling)))
        return scale_by_power_of_two(cofactors, ops.sub(total, scaling))

    def exponents(self, x: Value, axis: int) -> Value:
        """The exponents of the largest magnitudes along `axis`, in the shape of `x`."""
        largest = ops.reduce_max(ops.abs(x), (axis,))
        return broadcast_along(exponent_of(largest), x, (axis,))


def _of_determinant(exponents: Value, axis: int) -> Value:
    """The sum along `axis` of exponents of rows or columns, in their shape."""
    return broadcast_along(ops.reduce_sum(exponents, (axis,)), exponents, (axis,))


class BalancedCofactors(MatrixFunction):
    """The matrix of cofactors of a matrix whose rows and columns have magnitudes near 1.

    The error is relative to the largest cofactor.
    """

    rounding = Rounding(is_normwise=True)
    samples = (
        sample(f32[3, 3], values={0: well_conditioned((3, 3))}),
        sample(f32[2, 2, 2], values={0: well_conditioned((2, 2, 2))}, dtypes=("f64", "f32")),
        sample(f32[2, 2], values={0: np.zeros((2, 2))}, gradients={0: [[1, -1], [-1, 1]]}),
    )

    def abstract_eval(self, x: ShapedArray) -> ShapedArray:
        self.check(x)
        return x

    def jvp(self, primals: Sequence[Value], tangents: Sequence[Value]) -> tuple[Value, Tangent]:
        (x,), (dx,) = primals, tangents
        n, rank = x.shape[-1], x.shape[-1] - BORDER_WIDTH
        if n <= 3:
            return self(x), matrix_transpose(_adjugates(x, dx)[-1][1])
        u, s, vh = ops.Svd()(ops.stop_gradient(x))
        largest = ops.slice_in_dim(s, 0, 1, axis=-1)
        rounding = ops.mul(largest, n * float(finfo(s.dtype).eps))
        is_zero = ops.le(s, ops.broadcast_in_dim(rounding, s.shape, tuple(range(s.ndim))))
        size = ops.select(ops.gt(largest, 0.0), largest, 1.0)
        if rank <= 0:
            return self(x), _tangent_by_border(x, dx, u, vh, size, is_zero)
        # Where a formula is not taken, it gets a matrix for which it has no nan.
        has_rank = insert_matrix_dim(
            ops.bitwise_not(ops.slice_in_dim(is_zero, rank - 1, rank, axis=-1)),
            (*s.shape[:-1], 1, 1),
            drop=2,
        )
        has_rank = ops.broadcast_in_dim(has_rank, x.shape, tuple(range(x.ndim)))
        distinct = construct_diagonal(ops.broadcasted_iota(x.dtype, s.shape, s.ndim - 1))
        singular = _tangent_by_singular_values(ops.select(has_rank, distinct, x), dx)
        bordered = _tangent_by_border(x, dx, u, vh, size, is_zero, has_rank)
        return self(x), ops.select(has_rank, bordered, singular)

    def lower(self, ctx: LoweringContext, x: IRValue) -> IRValue:
        return ctx.via_jax(_cofactors, x)


def _trace(x: Value) -> Value:
    """The traces of matrices, as matrices of one element."""
    return ops.expand_dims(_sum_last_dim(extract_diagonal(x)), (x.ndim - 2, x.ndim - 1))


def _scaled(x: Value, factor: Value) -> Value:
    """Matrices times a number each, given as matrices of one element."""
    return ops.mul(x, ops.broadcast_in_dim(factor, x.shape, tuple(range(x.ndim))))


def _unit_matrices(x: Value, n: int) -> Value:
    """Unit matrices of `n` rows, in the dtype of `x` and as many."""
    return construct_diagonal(ops.full((*x.shape[:-2], n), literal(1, x.dtype)))


def _adjugates(x: Value, dx: Value) -> list[tuple[Value, Value]]:
    """Candidates for the adjugate of `x`, with their tangents; the last one is the adjugate.

    The adjugate is the transpose of the cofactors. If `x` is 0 outside of a block of k rows and columns,
    the one at k - 1 holds the adjugate of the block. All are polynomials, by the method of Faddeev and
    LeVerrier: a <- tr(x a) / k - x a for k = 1 ... n - 1, from the unit matrix. Digits are lost for many rows.
    """
    n = x.shape[-1]
    unit = _unit_matrices(x, n)
    found, products = [(unit, ops.zeros_like(x))], (x, dx)
    for k in range(1, n):
        a, da = [ops.sub(_scaled(unit, ops.div(_trace(y), k)), y) for y in products]
        found.append((a, da))
        products = matmul_highest(x, a), ops.add(matmul_highest(dx, a), matmul_highest(x, da))
    return found


def _adjugate_of_block(x: Value, dx: Value, is_inside: Value) -> tuple[Value, Value]:
    """The adjugate of the last rows and columns, those where `is_inside`, and its tangent.

    The other elements of `x` are 0, and those of the results have no meaning.
    """
    n = x.shape[-1]
    candidates = _adjugates(x, dx)
    adjugate, change = candidates[0]
    for k in range(2, n + 1):
        inside = ops.slice_in_dim(is_inside, n - k, n - k + 1, axis=-1)
        inside = insert_matrix_dim(inside, (*x.shape[:-2], 1, 1), drop=2)
        inside = ops.broadcast_in_dim(inside, x.shape, tuple(range(x.ndim)))
        adjugate = ops.select(inside, candidates[k - 1][0], adjugate)
        change = ops.select(inside, candidates[k - 1][1], change)
    return adjugate, change


BORDER_WIDTH = 4
"""The number of singular values that may be 0 where all derivatives of determinants are right."""


def _tangent_by_border(
    x: Value,
    dx: Value,
    u: Value,
    vh: Value,
    size: Value,
    is_zero: Value,
    is_regular: Value | None = None,
) -> Value:
    """The tangent of the cofactors of matrices of which the last singular values may be zero.

    With singular vectors c and r of the last one and of those where `is_zero`, and d = 0 (for the others of
    the last `BORDER_WIDTH` c = r = 0 and d = 1), the matrix b = [[x / size, c], [r, d]] is regular, and
    det(x / size) = det(b) det(t) with [[p, q], [w, t]] = b^-1, by Jacobi's complementary minors. c, r, d and
    `size`, the largest singular values, are constants, so this holds for derivatives of every order. b is
    the unit matrix unless `is_regular`.
    """
    n, rows, columns = x.shape[-1], x.ndim - 2, x.ndim - 1
    k = min(n, BORDER_WIDTH)
    size = cast_like(insert_matrix_dim(size, (*x.shape[:-2], 1, 1), drop=2), x)
    x = ops.div(x, ops.broadcast_in_dim(size, x.shape, tuple(range(x.ndim))))
    last = ops.slice_in_dim(is_zero, n - k, n, axis=columns - 1)
    last = ops.bitwise_or(last, ops.eq(ops.broadcasted_iota("i4", last.shape, rows), k - 1))
    diagonal = construct_diagonal(cast_like(last, x))
    column = matmul_highest(ops.slice_in_dim(u, n - k, n, axis=columns), diagonal)
    row = matmul_highest(diagonal, ops.slice_in_dim(vh, n - k, n, axis=rows))
    corner = ops.sub(_unit_matrices(diagonal, k), diagonal)
    halves = ops.concatenate([x, row], rows), ops.concatenate([column, corner], rows)
    b, unit = ops.concatenate(halves, columns), _unit_matrices(x, n + k)
    if is_regular is not None:
        regular = ops.slice_in_dim(
            ops.slice_in_dim(is_regular, 0, 1, axis=rows), 0, 1, axis=columns
        )
        b = ops.select(ops.broadcast_in_dim(regular, b.shape, tuple(range(b.ndim))), b, unit)
    lu, pivots, permutation = lu_factors(b)
    upper, lower = ops.split(LuSolve()(b, lu, permutation, unit), [n, k], rows)
    (p, q), (w, t) = [ops.split(half, [n, k], columns) for half in (upper, lower)]
    sign, log_size = Slogdet()(b, lu, permutation, pivots)
    determinant = ops.mul(sign, cast_like(ops.exp(log_size), sign))
    # dp = -p dx p, dq = -p dx q, dw = -w dx p, dt = -w dx q, and d det(b) = det(b) tr(p dx).
    p_dx, w_dx = matmul_highest(p, dx), matmul_highest(w, dx)
    # Where d is 1, b and t are parts of unit matrices: only the block of t where d is 0 counts.
    t, dt = ops.sub(t, corner), ops.neg(matmul_highest(w_dx, q))
    adjugate, change = _adjugate_of_block(t, dt, last)
    size_of_block = _trace(diagonal)
    det_t = ops.div(_trace(matmul_highest(t, adjugate)), size_of_block)
    inner = matmul_highest(q, matmul_highest(adjugate, w))
    outer = ops.sub(_scaled(p, det_t), inner)
    terms = [
        _scaled(outer, _trace(p_dx)),
        ops.neg(matmul_highest(p_dx, outer)),
        _scaled(p, _trace(matmul_highest(adjugate, dt))),
        ops.neg(matmul_highest(q, matmul_highest(change, w))),
        matmul_highest(inner, matmul_highest(dx, p)),
    ]
    total = reduce(ops.add, terms)
    factor = ops.mul(ops.expand_dims(determinant, (rows, columns)), ops.integer_pow(size, n - 2))
    return matrix_transpose(_scaled(total, factor))


def _tangent_by_singular_values(x: Value, dx: Value) -> Value:
    """The tangent of the cofactors of any matrices; its own derivatives need distinct singular values."""
    u, s, vh = ops.Svd()(x)
    sign = ops.mul(Det()(u), Det()(vh))
    e = matmul_highest(adjoint(u), matmul_highest(dx, adjoint(vh)))
    # Of s + e: diagonal sum_k p_ik e_kk, elsewhere -p_ij e_ji, p the products of others.
    p = cast_like(_products_of_others(s), u)
    traces = matmul_highest(p, insert_matrix_dim(extract_diagonal(e), (*e.shape[:-1], 1), drop=1))
    inner = ops.sub(construct_diagonal(_sum_last_dim(traces)), ops.mul(p, matrix_transpose(e)))
    outer = matmul_highest(conj_if_complex(u), matmul_highest(inner, conj_if_complex(vh)))
    return ops.mul(ops.broadcast_in_dim(sign, x.shape, tuple(range(x.ndim - 2))), outer)


def _cofactors(x: Value) -> Value:
    u, s, vh = jnp.linalg.svd(x)
    other_products = jnp.where(jnp.eye(s.shape[-1], dtype=bool), 1, s[..., None, :]).prod(-1)
    sign = jnp.linalg.det(u) * jnp.linalg.det(vh)
    return sign[..., None, None] * ((u.conj() * other_products[..., None, :]) @ vh.conj())


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


def _products_of_others(s: Value) -> Value:
    """The product of all elements of s except those at i and j, in row i and column j; 0 for i = j."""
    shape = (*s.shape[:-1], *s.shape[-1:] * 3)
    n = len(shape)
    i, j, k = [ops.broadcasted_iota(np.int32, shape, axis) for axis in range(n - 3, n)]
    broadcast = ops.broadcast_in_dim(s, shape, (*range(n - 3), n - 1))
    one = literal(1, s.dtype)
    product = ops.reduce_prod(
        ops.select(ops.eq(i, k), one, ops.select(ops.eq(j, k), one, broadcast)), (n - 1,)
    )
    return ops.select(position_mask(product.shape, ops.eq), literal(0, s.dtype), product)


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


def det(x: ArrayLike) -> Value:
    """The determinant of square matrices; its derivative is right for singular ones too."""
    return Det()(x)


def slogdet(x: ArrayLike) -> tuple[Value, Value]:
    """The sign of the determinant, and the logarithm of its absolute value."""
    if aval_of(x).shape[-2:-1] != aval_of(x).shape[-1:]:
        raise ShapeError(f"slogdet: the operand must hold square matrices; got {aval_of(x)!r}")
    lu, pivots, permutation = lu_factors(x)
    sign, log_abs_det = Slogdet()(x, lu, permutation, pivots)
    return sign, log_abs_det
