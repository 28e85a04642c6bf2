"""Determinants, their logarithms, and the cofactors that are their derivatives."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from functx.core.dtypes import is_complex, real_dtype
from functx.core.samples import f32, sample
from functx.ops.arithmetic import mul, sub
from functx.ops.comparison import eq
from functx.ops.complexes import complex, imag
from functx.ops.creation import broadcasted_iota
from functx.ops.factorizations import Svd
from functx.ops.linear_systems import Solve
from functx.ops.matrices import (
    MatrixFunction,
    adjoint,
    cast_like,
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
from functx.ops.operands import literal
from functx.ops.reductions import reduce_prod, reduce_sum
from functx.ops.selection import select
from functx.ops.shaping import broadcast_in_dim, full_like


class Det(MatrixFunction):
    """The determinant."""

    samples = (
        sample(f32[3, 3]),
        sample(f32[2, 2, 2]),
        sample(f32[1, 1]),
        sample(f32[2, 2], values={0: [[1.0, 2.0], [2.0, 4.0]]}, gradients={0: [[4, -2], [-2, 1]]}),
        sample(f32[3, 3], values={0: np.ones((3, 3))}, gradients={0: np.zeros((3, 3))}),
    )

    def abstract_eval(self, x):
        self.check(x)
        return x.update(shape=x.shape[:-2])

    def jvp(self, primals, tangents):
        (x,), (dx,) = primals, tangents
        return self(x), reduce_sum(mul(Cofactors()(x), dx), (x.ndim - 2, x.ndim - 1))

    def vjp(self, ct, out, args, active):
        (x,) = args
        wide = broadcast_in_dim(ct, x.shape, tuple(range(x.ndim - 2)))
        return (mul(wide, Cofactors()(x)),)

    def lower(self, ctx, x):
        return ctx.via_jax(jnp.linalg.det, x)


class Cofactors(MatrixFunction):
    """The matrix of cofactors, the derivative of the determinant, singular or not."""

    samples = (
        sample(f32[3, 3], values={0: well_conditioned((3, 3))}),
        sample(f32[2, 2, 2], values={0: well_conditioned((2, 2, 2))}, dtypes=("f64", "f32")),
        sample(f32[2, 2], values={0: np.zeros((2, 2))}, gradients={0: [[1, -1], [-1, 1]]}),
    )

    def abstract_eval(self, x):
        self.check(x)
        return x

    def jvp(self, primals, tangents):
        (x,), (dx,) = primals, tangents
        u, s, vh = Svd()(x)
        sign = mul(Det()(u), Det()(vh))
        e = matmul_highest(adjoint(u), matmul_highest(dx, adjoint(vh)))
        # Of s + e: diagonal sum_k p_ik e_kk, elsewhere -p_ij e_ji, p the products of others.
        p = cast_like(_products_of_others(s), u)
        traces = matmul_highest(
            p, insert_matrix_dim(extract_diagonal(e), (*e.shape[:-1], 1), drop=1)
        )
        inner = sub(construct_diagonal(_sum_last_dim(traces)), mul(p, matrix_transpose(e)))
        outer = matmul_highest(conj_if_complex(u), matmul_highest(inner, conj_if_complex(vh)))
        wide = broadcast_in_dim(sign, x.shape, tuple(range(x.ndim - 2)))
        return self(x), mul(wide, outer)

    def lower(self, ctx, x):
        return ctx.via_jax(_cofactors, x)


def _cofactors(x: Any) -> Any:
    u, s, vh = jnp.linalg.svd(x)
    others = jnp.where(jnp.eye(s.shape[-1], dtype=bool), 1, s[..., None, :]).prod(-1)
    sign = jnp.linalg.det(u) * jnp.linalg.det(vh)
    return sign[..., None, None] * ((u.conj() * others[..., None, :]) @ vh.conj())


class Slogdet(MatrixFunction):
    """The sign of the determinant, and the logarithm of its absolute value."""

    multiple_results = True
    samples = (
        sample(f32[3, 3], values={0: well_conditioned((3, 3))}),
        sample(f32[2, 2, 2], values={0: well_conditioned((2, 2, 2))}),
    )

    def abstract_eval(self, x):
        self.check(x)
        out = x.update(shape=x.shape[:-2])
        return [out, out.update(dtype=real_dtype(x.dtype))]

    def jvp(self, primals, tangents):
        (x,), (dx,) = primals, tangents
        sign, size = self(x)
        part = extract_diagonal(Solve()(x, dx))
        trace = reduce_sum(part, (part.ndim - 1,))
        turn = None
        if is_complex(x.dtype):
            # The sign turns by the imaginary part.
            turn = mul(sign, complex(full_like(size, 0), imag(trace)))
        return [sign, size], [turn, real_if_complex(trace)]

    def lower(self, ctx, x):
        return ctx.via_jax(lambda x: tuple(jnp.linalg.slogdet(x)), x)


def _sum_last_dim(x: Any) -> Any:
    return reduce_sum(x, (x.ndim - 1,))


def _products_of_others(s: Any) -> Any:
    """The product of all s but those at i and at j, in row i and column j; 0 for i = j."""
    shape = (*s.shape[:-1], *s.shape[-1:] * 3)
    n = len(shape)
    i, j, k = [broadcasted_iota(np.int32, shape, axis) for axis in range(n - 3, n)]
    wide = broadcast_in_dim(s, shape, (*range(n - 3), n - 1))
    one = literal(1, s.dtype)
    product = reduce_prod(select(eq(i, k), one, select(eq(j, k), one, wide)), (n - 1,))
    return select(position_mask(product.shape, eq), literal(0, s.dtype), product)


def det(x: Any) -> Any:
    """The determinant, whose derivative is right for singular matrices too."""
    return Det()(x)


def slogdet(x: Any) -> tuple[Any, Any]:
    """The sign of the determinant, and the logarithm of its absolute value."""
    sign, size = Slogdet()(x)
    return sign, size
