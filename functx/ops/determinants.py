"""Determinants, and their derivatives, the cofactors, also of singular matrices."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING

import jax.numpy as jnp
import numpy as np
from ml_dtypes import finfo

from functx import ops
from functx.core.samples import Rounding, c64, f32, sample
from functx.core.types import ShapedArray
from functx.core.typing import ArrayLike, Cotangents, IRValue, NumPyArray, Tangent, Value
from functx.ops.exponents import exponent_of, scale_by_power_of_two
from functx.ops.linear_algebra import (
    MatrixFunction,
    adjoint,
    conj_if_complex,
    construct_diagonal,
    extract_diagonal,
    insert_matrix_dim,
    matmul_highest,
    matrix_transpose,
    position_mask,
    well_conditioned,
)
from functx.ops.linear_systems import LuSolve, Slogdet, lu_factors
from functx.ops.operands import broadcast_along, cast_like, literal

if TYPE_CHECKING:
    from functx.lowering.stablehlo_emitter import LoweringContext


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
        n = x.shape[-1]
        rank = n - border_width(n)
        if n <= 3:
            return self(x), matrix_transpose(_adjugates(x, dx)[-1][1])
        u, s, vh = ops.Svd()(ops.stop_gradient(x))
        largest = ops.slice_in_dim(s, 0, 1, axis=-1)
        rounding = ops.mul(largest, n * float(finfo(s.dtype).eps))
        is_zero = ops.le(s, ops.broadcast_in_dim(rounding, s.shape, tuple(range(s.ndim))))
        size = ops.select(ops.gt(largest, 0.0), largest, 1.0)
        if not rank:
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
    return ops.expand_dims(
        ops.reduce_sum(extract_diagonal(x), (x.ndim - 2,)), (x.ndim - 2, x.ndim - 1)
    )


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


def border_width(n: int) -> int:
    """The number of n singular values that may be 0 where all derivatives of determinants are right.

    Of small matrices it is all; of others, more would cost time for few matrices.
    """
    return n if n <= 8 else 4


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
    the last `border_width(n)` c = r = 0 and d = 1), the matrix b = [[x / size, c], [r, d]] is regular, and
    det(x / size) = det(b) det(t) with [[p, q], [w, t]] = b^-1, by Jacobi's complementary minors. c, r, d and
    `size`, the largest singular values, are constants, so this holds for derivatives of every order. b is
    the unit matrix unless `is_regular`.
    """
    n, rows, columns = x.shape[-1], x.ndim - 2, x.ndim - 1
    k = border_width(n)
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
    inner = ops.sub(
        construct_diagonal(ops.reduce_sum(traces, (traces.ndim - 1,))),
        ops.mul(p, matrix_transpose(e)),
    )
    outer = matmul_highest(conj_if_complex(u), matmul_highest(inner, conj_if_complex(vh)))
    return ops.mul(ops.broadcast_in_dim(sign, x.shape, tuple(range(x.ndim - 2))), outer)


def _cofactors(x: Value) -> Value:
    u, s, vh = jnp.linalg.svd(x)
    other_products = jnp.where(jnp.eye(s.shape[-1], dtype=bool), 1, s[..., None, :]).prod(-1)
    sign = jnp.linalg.det(u) * jnp.linalg.det(vh)
    return sign[..., None, None] * ((u.conj() * other_products[..., None, :]) @ vh.conj())


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


def det(x: ArrayLike) -> Value:
    """The determinant of square matrices; its derivative is right for singular ones too."""
    return Det()(x)
