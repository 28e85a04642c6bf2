"""Derivatives that do not exist: nan, unless the tangent that they multiply is 0."""

from __future__ import annotations

from functools import reduce
from math import nan
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.mlir.dialects import stablehlo

from functx import ops
from functx.core.primitive import LinearInput
from functx.core.samples import bool_, f32, sample
from functx.core.tracer import aval_of
from functx.core.types import ShapedArray, is_complex, real_dtype
from functx.ops.families import (
    Elementwise,
    apply_mask,
    check_same_dtype,
    combine_masks,
    elementwise_shape,
)
from functx.ops.linear_algebra import (
    MatrixFunction,
    positive_definite,
    well_conditioned,
)
from functx.ops.operands import literal


class UndefinedDerivative(Elementwise):
    """`x`, but nan where `which` holds and `x` is not 0.

    A cotangent is nan wherever `which` holds: its being 0 does not show that the output has
    no influence, since the factor that it came through may be 0 at this point alone.
    """

    linear = (1,)
    accepts = "fc"
    samples = (
        sample(bool_[3], f32[3], values={0: [False, False, False]}),
        sample(
            bool_[3],
            f32[3],
            values={0: [True, True, False], 1: [0.0, 1.0, 2.0]},
            gradients={1: [nan, nan, 1.0]},
        ),
    )

    def abstract_eval(self, which, x):
        check_same_dtype(self, (x,))
        return x.update(shape=elementwise_shape(self, (which, x)))

    def jvp(self, primals, tangents):
        which, x = primals
        return self(which, x), self(which, tangents[1])

    def vjp(self, ct, out, args, active):
        which, x = args
        return self.transpose(ct, which, LinearInput(aval_of(x)))

    def transpose(self, ct, which, x):
        return [None, ops.select(which, literal(nan, ct.dtype), ct)]

    def lower(self, ctx, which, x):
        aval = ctx.avals_in[1]
        nonzero = ctx.compare(x, ctx.constant(0, aval), "NE", aval)
        return stablehlo.select(stablehlo.and_(which, nonzero), ctx.constant(nan, aval), x)


class MaskedReciprocal(NamedTuple):
    """1 / x, or 0 where x is zero up to rounding errors; `undefined` is the mask of those places."""

    factors: Any
    undefined: Any

    @staticmethod
    def from_values(x: Any, scale: Any) -> MaskedReciprocal:
        """The inverses of `x`, which counts as 0 within rounding error of the largest of `scale`."""
        largest = ops.reduce_max(ops.abs(scale), (scale.ndim - 1,))
        least = ops.mul(largest, max(8.0, scale.shape[-1]) * float(np.finfo(x.dtype).eps))
        small = ops.le(ops.abs(x), ops.broadcast_in_dim(least, x.shape, tuple(range(largest.ndim))))
        inverse = ops.div(literal(1, x.dtype), ops.select(small, literal(1, x.dtype), x))
        return MaskedReciprocal(ops.select(small, literal(0, x.dtype), inverse), small)

    @staticmethod
    def from_gaps(x: Any, y: Any) -> MaskedReciprocal:
        """The inverses of x_j - y_i, in row i and column j."""
        shape = (*x.shape, x.shape[-1])
        return MaskedReciprocal.from_values(
            ops.sub(broadcast_columns(x, shape), broadcast_rows(y, shape)), x
        )

    @property
    def off_diagonal(self) -> MaskedReciprocal:
        """These, of square matrices, with a diagonal that is 0 because nothing varies along it."""
        elsewhere = ops.bitwise_not(ops.position_mask(self.factors.shape, ops.eq))
        return MaskedReciprocal(self.factors, ops.bitwise_and(self.undefined, elsewhere))

    def broadcast_by(self, lay: Any, shape: tuple[int, ...]) -> MaskedReciprocal:
        """These repeated to matrices of `shape` by `lay`, which is `broadcast_rows` or `broadcast_columns`."""
        return MaskedReciprocal(lay(self.factors, shape), lay(self.undefined, shape))

    def multiply_tangent(self, t: Any) -> Any:
        """The products with a tangent; nan where one that is not 0 meets an undefined factor."""
        return ops.mul(ops.cast_like(self.factors, t), UndefinedDerivative()(self.undefined, t))

    def multiply_cotangent(self, ct: Any, live: Any = None) -> Any:
        """The products with a cotangent; nan where the factor is undefined and the mask `live` is True."""
        found = ops.mul(ops.cast_like(self.factors, ct), ct)
        return ops.select(combine_masks(live, self.undefined), literal(nan, ct.dtype), found)


def broadcast_rows(x: Any, shape: tuple[int, ...]) -> Any:
    """Matrices of `shape` with the elements of `x` each along a whole row."""
    return ops.insert_matrix_dim(x, shape, drop=1)


def broadcast_columns(x: Any, shape: tuple[int, ...]) -> Any:
    """Matrices of `shape` with the elements of `x` each along a whole column."""
    return ops.insert_matrix_dim(x, shape, drop=2)


def vector_mask(live: Any, shape: tuple[int, ...], drop: int) -> Any:
    """Which columns (`drop` 2) or rows (`drop` 1) of matrices have an element where `live` holds.

    None where that is anywhere.
    """
    return (
        None
        if live is None
        else ops.reduce_or(ops.instantiate_mask(live, shape), (len(shape) - drop,))
    )


def vector_pair_mask(live: Any) -> Any:
    """Where the vector of the row or that of the column is among the `live`; None for anywhere."""
    if live is None:
        return None
    shape = (*live.shape, live.shape[-1])
    return ops.bitwise_or(broadcast_rows(live, shape), broadcast_columns(live, shape))


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
        left = ops.TriangularSolve()(out, ops.hermitian_part(tangents[0]))
        both = ops.matrix_transpose(
            ops.TriangularSolve(conjugated=True)(out, ops.matrix_transpose(left))
        )
        zero = literal(0, out.dtype)
        diagonal = ops.select(
            ops.position_mask(both.shape, ops.eq), ops.mul(both, literal(0.5, out.dtype)), zero
        )
        lower = ops.add(ops.select(ops.position_mask(both.shape, ops.gt), both, zero), diagonal)
        return out, ops.matmul_highest(out, lower)

    def lower(self, ctx, x):
        return ctx.via_jax(lambda x: lax.linalg.cholesky(x, symmetrize_input=True), x)


class Eigh(MatrixFunction):
    """The eigenvalues, ascending, and eigenvectors, as columns, of the Hermitian part of `x`.

    Where eigenvalues are equal, derivatives of their eigenvectors are nan, but along directions
    that do not mix them. Functions such as v f(w) v.H have derivatives there all the same, and
    `functx.passes.spectral` gives them.
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
        turned = ops.matmul_highest(
            ops.adjoint(v), ops.matmul_highest(ops.hermitian_part(tangents[0]), v)
        )
        dv = ops.matmul_highest(
            v, MaskedReciprocal.from_gaps(w, w).off_diagonal.multiply_tangent(turned)
        )
        return outs, [ops.real_if_complex(ops.extract_diagonal(turned)), dv]

    def vjp(self, cts, outs, args, active):
        return self.vjp_masked(cts, [None, None], outs, args, active)[0]

    def vjp_masked(self, cts, lives, outs, args, active):
        (dw, dv), (w, v) = cts, outs
        terms = []
        if dw is not None:
            own = masked_vectors(lives[0], v, broadcast_columns)
            scaled = ops.scale_columns(ops.conj_if_complex(own), ops.cast_like(dw, v))
            terms.append(ops.matmul_highest(scaled, ops.matrix_transpose(own)))
        if dv is not None:
            pairs = vector_pair_mask(vector_mask(lives[1], v.shape, drop=2))
            gaps = MaskedReciprocal.from_gaps(w, w).off_diagonal
            turned = gaps.multiply_cotangent(ops.matmul_highest(ops.matrix_transpose(v), dv), pairs)
            terms.append(
                ops.matmul_highest(
                    ops.conj_if_complex(v), ops.matmul_highest(turned, ops.matrix_transpose(v))
                )
            )
        return [ops.hermitian_part(reduce(ops.add, terms))], [None]

    def lower(self, ctx, x):
        def eigh(x: Any) -> Any:
            v, w = lax.linalg.eigh(x, symmetrize_input=True)
            return w, v

        return ctx.via_jax(eigh, x)


class Svd(MatrixFunction):
    """The u, s, vh with `x` == (u * s) @ vh: orthonormal columns, singular values, rows.

    The singular values descend, as many as the smaller dimension; with `full`, u and vh are
    square. Where singular values are equal or 0, derivatives of their vectors are nan, as
    those of eigenvectors are (`Eigh`); so are those of vectors without a singular value.
    """

    full_matrices: bool = False
    square = False
    multiple_results = True
    samples = (
        sample(f32[3, 3], values={0: well_conditioned((3, 3))}, dtypes=("f64", "f32")),
        sample(f32[4, 2], values={0: well_conditioned((4, 2))}, dtypes=("f64", "f32")),
        sample(f32[2, 2, 3], values={0: well_conditioned((2, 2, 3))}, dtypes=("f64", "f32")),
        sample(
            f32[2, 2],
            full_matrices=True,
            values={0: well_conditioned((2, 2))},
            dtypes=("f64", "f32"),
        ),
    )

    def abstract_eval(self, x):
        self.check(x)
        *batch, m, n = x.shape
        k = min(m, n)
        s = x.update(shape=(*batch, k), dtype=real_dtype(x.dtype))
        left, right = (m, n) if self.full_matrices else (k, k)
        return [x.update(shape=(*batch, m, left)), s, x.update(shape=(*batch, right, n))]

    def jvp(self, primals, tangents):
        (x,), (dx,) = primals, tangents
        outs = self(x)
        u, s, vh = thin_svd(outs)
        v = ops.adjoint(vh)
        # With du = u p, dv = v q: u^H dx v = p s + ds - s q, p and q antihermitian.
        dp = ops.matmul_highest(ops.adjoint(u), ops.matmul_highest(dx, v))
        even = ops.hermitian_part(dp)
        together = MaskedReciprocal.from_gaps(s, s).off_diagonal.multiply_tangent(even)
        apart = reciprocal_sums(s, x.dtype).multiply_tangent(ops.sub(dp, even))
        du = ops.matmul_highest(u, ops.add(together, apart))
        dv = ops.matmul_highest(v, ops.sub(together, apart))
        *_, m, n = x.shape
        if m > n:
            rest = ops.matmul_highest(dx, v)
            rest = ops.sub(rest, ops.matmul_highest(u, ops.matmul_highest(ops.adjoint(u), rest)))
            du = ops.add(
                du,
                MaskedReciprocal.from_values(s, s)
                .broadcast_by(broadcast_columns, rest.shape)
                .multiply_tangent(rest),
            )
        if n > m:
            rest = ops.matmul_highest(ops.adjoint(dx), u)
            rest = ops.sub(rest, ops.matmul_highest(v, ops.matmul_highest(vh, rest)))
            dv = ops.add(
                dv,
                MaskedReciprocal.from_values(s, s)
                .broadcast_by(broadcast_columns, rest.shape)
                .multiply_tangent(rest),
            )
        tangents = zip((du, ops.adjoint(dv)), (outs[0], outs[2]), strict=True)
        du, dvh = [pad_with_nan(t, out.shape) for t, out in tangents]
        return outs, [du, ops.real_if_complex(ops.extract_diagonal(even)), dvh]

    def vjp(self, cts, outs, args, active):
        return self.vjp_masked(cts, [None, None, None], outs, args, active)[0]

    def vjp_masked(self, cts, lives, outs, args, active):
        (du, ds, dvh), (whole_u, _, whole_vh) = cts, outs
        u, s, vh = thin_svd(outs)
        terms = []
        if ds is not None:
            left, right = (
                masked_vectors(lives[1], u, broadcast_columns),
                masked_vectors(lives[1], vh, broadcast_rows),
            )
            scaled = ops.scale_columns(ops.conj_if_complex(left), ops.cast_like(ds, u))
            terms.append(ops.matmul_highest(scaled, ops.conj_if_complex(right)))
        if du is not None:
            live = vector_mask_beyond_thin(lives[0], whole_u, u, drop=2)
            given = leading_block(du, u.shape)
            turn = ops.matmul_highest(ops.matrix_transpose(u), given)
            terms.append(rotation_cotangent(turn, turn, live, u, s, vh))
            if u.shape[-2] > s.shape[-1]:
                inverse = MaskedReciprocal.from_values(s, s).broadcast_by(
                    broadcast_columns, u.shape
                )
                there = (
                    None
                    if live is None
                    else broadcast_columns(leading_block(live, s.shape), u.shape)
                )
                rest = inverse.multiply_cotangent(given, there)
                rest = ops.sub(
                    rest,
                    ops.matmul_highest(
                        ops.conj_if_complex(u), ops.matmul_highest(ops.matrix_transpose(u), rest)
                    ),
                )
                terms.append(ops.matmul_highest(rest, ops.conj_if_complex(vh)))
        if dvh is not None:
            live = vector_mask_beyond_thin(lives[2], whole_vh, vh, drop=1)
            given = leading_block(dvh, vh.shape)
            turn = ops.matmul_highest(given, ops.matrix_transpose(vh))
            terms.append(rotation_cotangent(ops.neg(turn), turn, live, u, s, vh))
            if vh.shape[-1] > s.shape[-1]:
                inverse = MaskedReciprocal.from_values(s, s).broadcast_by(broadcast_rows, vh.shape)
                there = (
                    None if live is None else broadcast_rows(leading_block(live, s.shape), vh.shape)
                )
                rest = inverse.multiply_cotangent(given, there)
                rest = ops.sub(
                    rest,
                    ops.matmul_highest(
                        ops.matmul_highest(rest, ops.matrix_transpose(vh)), ops.conj_if_complex(vh)
                    ),
                )
                terms.append(ops.matmul_highest(ops.conj_if_complex(u), rest))
        return [reduce(ops.add, terms)], [None]

    def lower(self, ctx, x):
        return ctx.via_jax(lambda x: tuple(jnp.linalg.svd(x, full_matrices=self.full_matrices)), x)


def thin_svd(outs: Any) -> tuple[Any, Any, Any]:
    """The u, s, vh of a decomposition, without the vectors that have no singular value."""
    u, s, vh = outs
    k = s.shape[-1]
    return (
        leading_block(u, (*u.shape[:-1], k)),
        s,
        leading_block(vh, (*vh.shape[:-2], k, vh.shape[-1])),
    )


def vector_mask_beyond_thin(live: Any, whole: Any, own: Any, drop: int) -> Any:
    """As `vector_mask` of `whole`; never None where that has vectors beside `own`."""
    if live is None and whole.shape != own.shape:
        live = ops.constant_like(ShapedArray((), ops.BOOL), True)
    return vector_mask(live, whole.shape, drop)


def reciprocal_sums(s: Any, dtype: Any) -> MaskedReciprocal:
    """1 / (s_i + s_j); the diagonal counts for complex matrices alone, whose vectors have phases."""
    found = MaskedReciprocal.from_gaps(s, ops.neg(s))
    return found if is_complex(dtype) else found.off_diagonal


def rotation_cotangent(together: Any, apart: Any, live: Any, u: Any, s: Any, vh: Any) -> Any:
    """The cotangent of a matrix, given those of the turns of its vectors together and apart.

    `live` are the vectors whose cotangents can be other than zero, None for any.
    """
    pairs = vector_pair_mask(None if live is None else leading_block(live, s.shape))
    even = MaskedReciprocal.from_gaps(s, s).off_diagonal.multiply_cotangent(together, pairs)
    odd = reciprocal_sums(s, u.dtype).multiply_cotangent(apart, pairs)
    total = ops.add(ops.hermitian_part(even), ops.sub(odd, ops.hermitian_part(odd)))
    total = ops.matmul_highest(
        ops.conj_if_complex(u), ops.matmul_highest(total, ops.conj_if_complex(vh))
    )
    k = s.shape[-1]
    if live is None or live.shape[-1] == k:
        return total
    beyond = ops.reduce_or(ops.slice_in_dim(live, k, None, axis=live.ndim - 1), (live.ndim - 1,))
    beyond = ops.broadcast_in_dim(beyond, total.shape, tuple(range(beyond.ndim)))
    return ops.select(beyond, literal(nan, total.dtype), total)


def masked_vectors(live: Any, vectors: Any, lay: Any) -> Any:
    """The `vectors`, in rows or columns as `lay` says, of the `live` values; else zeros.

    What a value without influence is multiplied by has none either, though it may vary by nan.
    """
    if live is None:
        return vectors
    count = vectors.shape[-1 if lay is broadcast_columns else -2]
    return apply_mask(
        lay(ops.instantiate_mask(live, (*vectors.shape[:-2], count)), vectors.shape), vectors
    )


def leading_block(x: Any, shape: tuple[int, ...]) -> Any:
    """The first elements of `x` along each dimension, as many as `shape` has."""
    return x if x.shape == shape else ops.slice(x, (0,) * len(shape), shape)


def pad_with_nan(x: Any, shape: tuple[int, ...]) -> Any:
    """`x` with nan behind its elements up to `shape`."""
    if x.shape == shape:
        return x
    config = [(0, n - k, 0) for k, n in zip(x.shape, shape, strict=True)]
    return ops.pad(x, literal(nan, x.dtype), tuple(config))


def cholesky(x: Any) -> Any:
    """The lower triangular l with l @ l.H the Hermitian part of `x`.

    It is nan where that is not positive definite.
    """
    return Cholesky()(x)


def eigh(x: Any) -> tuple[Any, Any]:
    """The eigenvalues, ascending, and eigenvectors, as columns, of the Hermitian part of `x`."""
    values, vectors = Eigh()(x)
    return values, vectors


def svd(x: Any, full: bool = False) -> tuple[Any, Any, Any]:
    """The u, s, vh with `x` == (u * s) @ vh, with as many columns of u as the smaller dimension.

    The singular values s descend. With `full`, u and vh are square.
    """
    u, s, vh = Svd(full)(x)
    return u, s, vh
