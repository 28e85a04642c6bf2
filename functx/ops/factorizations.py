"""Matrices as products: Cholesky factors, eigenvectors, singular vectors."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from functx.core.dtypes import real_dtype
from functx.core.samples import f32, sample
from functx.ops.arithmetic import abs, add, div, mul, neg, sub
from functx.ops.comparison import eq, gt, le
from functx.ops.linear_systems import TriangularSolve
from functx.ops.matrices import (
    MatrixFunction,
    adjoint,
    cast_like,
    conjugate,
    diagonal_matrix,
    diagonal_of,
    far_from_singular,
    hermitian_part,
    matmul,
    matrix_transpose,
    places_where,
    positive_definite,
    real_part,
    scaled_columns,
    widened,
)
from functx.ops.operands import literal
from functx.ops.reductions import reduce_max
from functx.ops.selection import select
from functx.ops.shaping import broadcast_in_dim


class Cholesky(MatrixFunction):
    """The lower triangular l with l @ l.H the Hermitian part of `x`; nan if there is none."""

    samples = (
        sample(f32[3, 3], values={0: positive_definite((3, 3))}),
        sample(f32[2, 2, 2], values={0: positive_definite((2, 2, 2))}),
    )

    def abstract_eval(self, x):
        self.check(x)
        return x

    def jvp(self, primals, tangents):
        out = self(*primals)
        # l^-1 dx l^-H = l^-1 dl + (l^-1 dl)^H, and l^-1 dl is lower triangular.
        left = TriangularSolve()(out, hermitian_part(tangents[0]))
        both = matrix_transpose(TriangularSolve(conjugated=True)(out, matrix_transpose(left)))
        zero = literal(0, out.dtype)
        diagonal = select(places_where(both.shape, eq), mul(both, literal(0.5, out.dtype)), zero)
        lower = add(select(places_where(both.shape, gt), both, zero), diagonal)
        return out, matmul(out, lower)

    def lower(self, ctx, x):
        return ctx.via_jax(lambda x: lax.linalg.cholesky(x, symmetrize_input=True), x)


class Eigh(MatrixFunction):
    """The eigenvalues, ascending, and eigenvectors, as columns, of the Hermitian part of `x`.

    Where eigenvalues are equal, the eigenvectors do not turn into each other.
    """

    multiple_results = True
    samples = (
        sample(f32[3, 3], values={0: positive_definite((3, 3))}, dtypes=("f64", "f32")),
        sample(f32[2, 2, 2], values={0: positive_definite((2, 2, 2))}, dtypes=("f64", "f32")),
    )

    def abstract_eval(self, x):
        self.check(x)
        return [x.update(shape=x.shape[:-1], dtype=real_dtype(x.dtype)), x]

    def jvp(self, primals, tangents):
        w, v = outs = self(*primals)
        turned = matmul(adjoint(v), matmul(hermitian_part(tangents[0]), v))
        dv = matmul(v, mul(cast_like(_inverse_gaps(w, w), v), turned))
        return outs, [real_part(diagonal_of(turned)), dv]

    def vjp(self, cts, outs, args, active):
        (dw, dv), (w, v) = cts, outs
        total = None if dw is None else diagonal_matrix(cast_like(dw, v))
        if dv is not None:
            term = mul(cast_like(_inverse_gaps(w, w), v), matmul(matrix_transpose(v), dv))
            total = term if total is None else add(total, term)
        return (hermitian_part(matmul(conjugate(v), matmul(total, matrix_transpose(v)))),)

    def lower(self, ctx, x):
        def eigh(x: Any) -> Any:
            v, w = lax.linalg.eigh(x, symmetrize_input=True)
            return w, v

        return ctx.via_jax(eigh, x)


class Svd(MatrixFunction):
    """The u, s, vh with `x` == (u * s) @ vh: orthonormal columns, singular values, rows.

    The singular values descend, as many as the smaller dimension. Where they are equal,
    singular vectors do not turn into each other.
    """

    square = False
    multiple_results = True
    samples = (
        sample(f32[3, 3], values={0: far_from_singular((3, 3))}, dtypes=("f64", "f32")),
        sample(f32[4, 2], values={0: far_from_singular((4, 2))}, dtypes=("f64", "f32")),
        sample(f32[2, 2, 3], values={0: far_from_singular((2, 2, 3))}, dtypes=("f64", "f32")),
    )

    def abstract_eval(self, x):
        self.check(x)
        *batch, m, n = x.shape
        k = min(m, n)
        s = x.update(shape=(*batch, k), dtype=real_dtype(x.dtype))
        return [x.update(shape=(*batch, m, k)), s, x.update(shape=(*batch, k, n))]

    def jvp(self, primals, tangents):
        (x,), (dx,) = primals, tangents
        u, s, vh = outs = self(x)
        v = adjoint(vh)
        # With du = u p, dv = v q: u^H dx v = p s + ds - s q, p and q antihermitian.
        dp = matmul(adjoint(u), matmul(dx, v))
        half = literal(0.5, x.dtype)
        even, odd = mul(add(dp, adjoint(dp)), half), mul(sub(dp, adjoint(dp)), half)
        turn = mul(cast_like(_inverse_gaps(s, s), u), even)
        apart = mul(cast_like(_inverse_gaps(s, neg(s)), u), odd)
        du = matmul(u, add(turn, apart))
        dv = matmul(v, sub(turn, apart))
        *_, m, n = x.shape
        inverse = cast_like(_inverse(s, s), u)
        if m > n:
            rest = scaled_columns(matmul(dx, v), inverse)
            du = add(du, sub(rest, matmul(u, matmul(adjoint(u), rest))))
        if n > m:
            rest = scaled_columns(matmul(adjoint(dx), u), inverse)
            dv = add(dv, sub(rest, matmul(v, matmul(vh, rest))))
        return outs, [du, real_part(diagonal_of(even)), adjoint(dv)]

    def lower(self, ctx, x):
        return ctx.via_jax(lambda x: tuple(jnp.linalg.svd(x, full_matrices=False)), x)


def _inverse(x: Any, scale: Any) -> Any:
    """1 / x, and 0 where `x` is nothing beside the largest of `scale` along its last axis."""
    largest = reduce_max(abs(scale), (scale.ndim - 1,))
    small = mul(largest, literal(8.0 * float(np.finfo(x.dtype).eps), x.dtype))
    small = broadcast_in_dim(small, x.shape, tuple(range(largest.ndim)))
    nothing = le(abs(x), small)
    return select(
        nothing,
        literal(0, x.dtype),
        div(literal(1, x.dtype), select(nothing, literal(1, x.dtype), x)),
    )


def _inverse_gaps(x: Any, y: Any) -> Any:
    """1 / (x_j - y_i) in row i and column j; 0 where the two are as good as equal."""
    shape = (*x.shape, x.shape[-1])
    return _inverse(sub(widened(x, shape, drop=2), widened(y, shape, drop=1)), x)


def cholesky(x: Any) -> Any:
    """The lower triangular l with l @ l.H the Hermitian part of `x`.

    It is nan where that is not positive definite.
    """
    return Cholesky()(x)


def eigh(x: Any) -> tuple[Any, Any]:
    """The eigenvalues, ascending, and eigenvectors, as columns, of the Hermitian part of `x`."""
    values, vectors = Eigh()(x)
    return values, vectors


def svd(x: Any) -> tuple[Any, Any, Any]:
    """The u, s, vh with `x` == (u * s) @ vh, with as many columns of u as the smaller dimension.

    The singular values s descend.
    """
    u, s, vh = Svd()(x)
    return u, s, vh
