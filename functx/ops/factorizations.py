"""Cholesky, eigenvalue and singular value decompositions, and their undefined derivatives.

An undefined derivative is nan, unless the tangent that it multiplies is 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from math import nan
from typing import TYPE_CHECKING, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.mlir.dialects import stablehlo

from functx import ops
from functx.core.masks import mask_of
from functx.core.primitive import LinearInput
from functx.core.samples import bool_, f32, sample
from functx.core.tracer import aval_of
from functx.core.types import DType, ShapedArray, is_complex, real_dtype
from functx.core.typing import ArrayLike, Cotangents, IRValue, Mask, NumPyArray, Tangent, Value
from functx.ops.families import (
    Elementwise,
    apply_mask,
    check_same_dtype,
    elementwise_shape,
)
from functx.ops.linear_algebra import (
    MatrixFunction,
    positive_definite,
    well_conditioned,
)
from functx.ops.operands import cast_like, literal

if TYPE_CHECKING:
    from functx.lowering.stablehlo_emitter import LoweringContext


class UndefinedDerivative(Elementwise):
    """`x` with nan where `pred` holds and `x` is not 0.

    A cotangent is nan wherever `pred` holds. That it is 0 does not show that the output has no
    influence: a factor in the chain rule may be 0 at this point alone.
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

    def abstract_eval(self, pred: ShapedArray, x: ShapedArray) -> ShapedArray:
        check_same_dtype(self, (x,))
        return x.update(shape=elementwise_shape(self, (pred, x)))

    def jvp(self, primals: Sequence[Value], tangents: Sequence[Tangent]) -> tuple[Value, Tangent]:
        pred, x = primals
        return self(pred, x), self(pred, tangents[1])

    def vjp(
        self, ct: Value, out: Value, args: Sequence[Value], active: Sequence[bool]
    ) -> Cotangents:
        pred, x = args
        return self.transpose(ct, pred, LinearInput(aval_of(x)))

    def transpose(self, ct: Value, pred: Value, x: Value | LinearInput) -> Cotangents:
        return [None, ops.select(pred, literal(nan, ct.dtype), ct)]

    def numpy(self, pred: NumPyArray, x: NumPyArray) -> ArrayLike:
        return np.where(pred & (x != 0), np.nan, x)

    def lower(self, ctx: LoweringContext, pred: IRValue, x: IRValue) -> IRValue:
        aval = ctx.avals_in[1]
        nonzero = ctx.compare(x, ctx.constant(0, aval), "NE", aval)
        return stablehlo.select(stablehlo.and_(pred, nonzero), ctx.constant(nan, aval), x)


class MaskedReciprocal(NamedTuple):
    """1 / x, and 0 where x is 0 up to rounding errors, which the mask `undefined` marks."""

    factors: Value
    undefined: Value

    @staticmethod
    def from_values(x: Value, scale: Value) -> MaskedReciprocal:
        """The reciprocals of `x`, where values below the rounding error of max(|scale|) are treated as 0."""
        largest = ops.reduce_max(ops.abs(scale), (scale.ndim - 1,))
        least = ops.mul(largest, max(8.0, scale.shape[-1]) * float(np.finfo(x.dtype).eps))
        is_small = ops.le(
            ops.abs(x), ops.broadcast_in_dim(least, x.shape, tuple(range(largest.ndim)))
        )
        inverse = ops.div(literal(1, x.dtype), ops.select(is_small, literal(1, x.dtype), x))
        return MaskedReciprocal(ops.select(is_small, literal(0, x.dtype), inverse), is_small)

    @staticmethod
    def from_gaps(x: Value, y: Value) -> MaskedReciprocal:
        """The reciprocals of x_j - y_i, in row i and column j."""
        shape = (*x.shape, x.shape[-1])
        return MaskedReciprocal.from_values(
            ops.sub(broadcast_columns(x, shape), broadcast_rows(y, shape)), x
        )

    @property
    def off_diagonal(self) -> MaskedReciprocal:
        """These matrices with a diagonal that is 0 and defined, because nothing varies along it."""
        elsewhere = ops.bitwise_not(ops.position_mask(self.factors.shape, ops.eq))
        return MaskedReciprocal(self.factors, ops.bitwise_and(self.undefined, elsewhere))

    def broadcast_by(
        self, broadcast: Callable[..., Value], shape: tuple[int, ...]
    ) -> MaskedReciprocal:
        """These broadcast to matrices of `shape` by `broadcast_rows` or `broadcast_columns`."""
        return MaskedReciprocal(broadcast(self.factors, shape), broadcast(self.undefined, shape))

    def multiply_tangent(self, t: Value) -> Value:
        """The products with a tangent; nan where a nonzero tangent meets an undefined factor."""
        return ops.mul(cast_like(self.factors, t), UndefinedDerivative()(self.undefined, t))

    def multiply_cotangent(self, ct: Value, mask: Mask = None) -> Value:
        """The products with a cotangent; nan where the factor is undefined and `mask` holds."""
        products = ops.mul(cast_like(self.factors, ct), ct)
        undefined = self.undefined if mask is None else ops.bitwise_and(mask, self.undefined)
        return ops.select(undefined, literal(nan, ct.dtype), products)


def broadcast_rows(x: ArrayLike, shape: tuple[int, ...]) -> Value:
    """Matrices of `shape` whose row i is filled with element i of `x`."""
    return ops.insert_matrix_dim(x, shape, drop=1)


def broadcast_columns(x: ArrayLike, shape: tuple[int, ...]) -> Value:
    """Matrices of `shape` whose column i is filled with element i of `x`."""
    return ops.insert_matrix_dim(x, shape, drop=2)


def vector_mask(mask: Mask, shape: tuple[int, ...], drop: int) -> Mask:
    """The mask of columns (`drop` 2) or rows (`drop` 1) with an element where `mask` holds.

    None stands for all.
    """
    return (
        None
        if mask is None
        else ops.reduce_or(ops.instantiate_mask(mask, shape), (len(shape) - drop,))
    )


def vector_pair_mask(mask: Mask) -> Mask:
    """The mask of pairs (i, j) where `mask` holds for i or j; None stands for all."""
    if mask is None:
        return None
    shape = (*mask.shape, mask.shape[-1])
    return ops.bitwise_or(broadcast_rows(mask, shape), broadcast_columns(mask, shape))


class Cholesky(MatrixFunction):
    """The lower triangular l with l @ l.H the Hermitian part of `x`; nan if that is not positive definite."""

    samples = (
        sample(f32[3, 3], values={0: positive_definite((3, 3))}),
        sample(f32[2, 2, 2], values={0: positive_definite((2, 2, 2))}),
    )

    def abstract_eval(self, x: ShapedArray) -> ShapedArray:
        self.check(x)
        return x

    def jvp(self, primals: Sequence[Value], tangents: Sequence[Value]) -> tuple[Value, Tangent]:
        out = self(*primals)
        # l^-1 dx l^-H = l^-1 dl + (l^-1 dl)^H, and l^-1 dl is lower triangular.
        left = ops.TriangularSolve()(out, ops.hermitian_part(tangents[0]))
        product = ops.matrix_transpose(
            ops.TriangularSolve(conjugated=True)(out, ops.matrix_transpose(left))
        )
        zero = literal(0, out.dtype)
        diagonal = ops.select(
            ops.position_mask(product.shape, ops.eq),
            ops.mul(product, literal(0.5, out.dtype)),
            zero,
        )
        lower = ops.add(
            ops.select(ops.position_mask(product.shape, ops.gt), product, zero), diagonal
        )
        return out, ops.matmul_highest(out, lower)

    def lower(self, ctx: LoweringContext, x: IRValue) -> IRValue:
        return ctx.via_jax(lambda x: lax.linalg.cholesky(x, symmetrize_input=True), x)


class Eigh(MatrixFunction):
    """The eigenvalues, ascending, and eigenvectors, as columns, of the Hermitian part of `x`.

    Where eigenvalues are equal, derivatives of their eigenvectors are nan, except along directions
    that do not mix them. Functions such as v f(w) v.H have derivatives there, which
    `functx.passes.spectral_recognition` computes.
    """

    multiple_results = True
    samples = (
        sample(f32[3, 3], values={0: positive_definite((3, 3))}, dtypes=("f64", "f32")),
        sample(f32[2, 2, 2], values={0: positive_definite((2, 2, 2))}, dtypes=("f64", "f32")),
    )

    def abstract_eval(self, x: ShapedArray) -> Sequence[ShapedArray]:
        self.check(x)
        return [x.update(shape=x.shape[:-1], dtype=real_dtype(x.dtype)), x]

    def jvp(
        self, primals: Sequence[Value], tangents: Sequence[Value]
    ) -> tuple[Sequence[Value], Sequence[Tangent]]:
        w, v = outs = self(*primals)
        rotation = ops.matmul_highest(
            ops.adjoint(v), ops.matmul_highest(ops.hermitian_part(tangents[0]), v)
        )
        dv = ops.matmul_highest(
            v, MaskedReciprocal.from_gaps(w, w).off_diagonal.multiply_tangent(rotation)
        )
        return outs, [ops.real_if_complex(ops.extract_diagonal(rotation)), dv]

    def vjp(
        self, cts: Cotangents, outs: Sequence[Value], args: Sequence[Value], active: Sequence[bool]
    ) -> Cotangents:
        (dw, dv), (w, v) = cts, outs
        terms = []
        if dw is not None:
            thin = masked_vectors(mask_of(dw), v, broadcast_columns)
            scaled = ops.scale_columns(ops.conj_if_complex(thin), cast_like(dw, v))
            terms.append(ops.matmul_highest(scaled, ops.matrix_transpose(thin)))
        if dv is not None:
            pairs = vector_pair_mask(vector_mask(mask_of(dv), v.shape, drop=2))
            gaps = MaskedReciprocal.from_gaps(w, w).off_diagonal
            rotation = gaps.multiply_cotangent(
                ops.matmul_highest(ops.matrix_transpose(v), dv), pairs
            )
            terms.append(
                ops.matmul_highest(
                    ops.conj_if_complex(v), ops.matmul_highest(rotation, ops.matrix_transpose(v))
                )
            )
        return [ops.hermitian_part(reduce(ops.add, terms))]

    def lower(self, ctx: LoweringContext, x: IRValue) -> Sequence[IRValue]:
        def eigh(x: Value) -> tuple[Value, Value]:
            v, w = lax.linalg.eigh(x, symmetrize_input=True)
            return w, v

        return ctx.via_jax(eigh, x)


class Svd(MatrixFunction):
    """The u, s, vh with `x` == (u * s) @ vh: orthonormal columns, singular values, rows.

    There are as many singular values as the smaller dimension, in descending order. With
    `full_matrices`, u and vh are square. Where singular values are equal or 0, derivatives of their
    vectors are nan, as for `Eigh`; so are those of vectors without a singular value.
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

    def abstract_eval(self, x: ShapedArray) -> Sequence[ShapedArray]:
        self.check(x)
        *batch, m, n = x.shape
        k = min(m, n)
        s = x.update(shape=(*batch, k), dtype=real_dtype(x.dtype))
        left, right = (m, n) if self.full_matrices else (k, k)
        return [x.update(shape=(*batch, m, left)), s, x.update(shape=(*batch, right, n))]

    def jvp(
        self, primals: Sequence[Value], tangents: Sequence[Value]
    ) -> tuple[Sequence[Value], Sequence[Tangent]]:
        (x,), (dx,) = primals, tangents
        outs = self(x)
        u, s, vh = thin_svd(outs)
        v = ops.adjoint(vh)
        # With du = u p, dv = v q: u^H dx v = p s + ds - s q, p and q antihermitian.
        dp = ops.matmul_highest(ops.adjoint(u), ops.matmul_highest(dx, v))
        symmetric = ops.hermitian_part(dp)
        symmetric_rotation = MaskedReciprocal.from_gaps(s, s).off_diagonal.multiply_tangent(
            symmetric
        )
        antisymmetric_rotation = reciprocal_sums(s, x.dtype).multiply_tangent(
            ops.sub(dp, symmetric)
        )
        du = ops.matmul_highest(u, ops.add(symmetric_rotation, antisymmetric_rotation))
        dv = ops.matmul_highest(v, ops.sub(symmetric_rotation, antisymmetric_rotation))
        *_, m, n = x.shape
        if m > n:
            du = ops.add(du, complement_tangent(ops.matmul_highest(dx, v), u, ops.adjoint(u), s))
        if n > m:
            dv = ops.add(dv, complement_tangent(ops.matmul_highest(ops.adjoint(dx), u), v, vh, s))
        du, dvh = pad_with_nan(du, outs[0].shape), pad_with_nan(ops.adjoint(dv), outs[2].shape)
        return outs, [du, ops.real_if_complex(ops.extract_diagonal(symmetric)), dvh]

    def vjp(
        self, cts: Cotangents, outs: Sequence[Value], args: Sequence[Value], active: Sequence[bool]
    ) -> Cotangents:
        (du, ds, dvh), (whole_u, _, whole_vh) = cts, outs
        u, s, vh = thin_svd(outs)
        terms = []
        if ds is not None:
            left, right = (
                masked_vectors(mask_of(ds), u, broadcast_columns),
                masked_vectors(mask_of(ds), vh, broadcast_rows),
            )
            scaled = ops.scale_columns(ops.conj_if_complex(left), cast_like(ds, u))
            terms.append(ops.matmul_highest(scaled, ops.conj_if_complex(right)))
        if du is not None:
            mask = vector_mask_beyond_thin(mask_of(du), whole_u, u, drop=2)
            thin_ct = leading_block(du, u.shape)
            rotation = ops.matmul_highest(ops.matrix_transpose(u), thin_ct)
            terms.append(rotation_cotangent(rotation, rotation, mask, u, s, vh))
            if u.shape[-2] > s.shape[-1]:
                scaled = divide_vectors_cotangent(thin_ct, mask, s, broadcast_columns)
                inside = ops.matmul_highest(ops.matrix_transpose(u), scaled)
                complement = ops.sub(scaled, ops.matmul_highest(ops.conj_if_complex(u), inside))
                terms.append(ops.matmul_highest(complement, ops.conj_if_complex(vh)))
        if dvh is not None:
            mask = vector_mask_beyond_thin(mask_of(dvh), whole_vh, vh, drop=1)
            thin_ct = leading_block(dvh, vh.shape)
            rotation = ops.matmul_highest(thin_ct, ops.matrix_transpose(vh))
            terms.append(rotation_cotangent(ops.neg(rotation), rotation, mask, u, s, vh))
            if vh.shape[-1] > s.shape[-1]:
                scaled = divide_vectors_cotangent(thin_ct, mask, s, broadcast_rows)
                inside = ops.matmul_highest(scaled, ops.matrix_transpose(vh))
                complement = ops.sub(scaled, ops.matmul_highest(inside, ops.conj_if_complex(vh)))
                terms.append(ops.matmul_highest(ops.conj_if_complex(u), complement))
        return [reduce(ops.add, terms)]

    def lower(self, ctx: LoweringContext, x: IRValue) -> Sequence[IRValue]:
        return ctx.via_jax(lambda x: tuple(jnp.linalg.svd(x, full_matrices=self.full_matrices)), x)


def complement_tangent(moved: Value, vectors: Value, adjoint: Value, s: Value) -> Value:
    """The part of the columns `moved / s` that is orthogonal to `vectors`, whose adjoint is given."""
    inside = ops.matmul_highest(adjoint, moved)
    complement = ops.sub(moved, ops.matmul_highest(vectors, inside))
    reciprocal = MaskedReciprocal.from_values(s, s).broadcast_by(broadcast_columns, moved.shape)
    return reciprocal.multiply_tangent(complement)


def divide_vectors_cotangent(
    ct: Value, mask: Mask, s: Value, broadcast: Callable[..., Value]
) -> Value:
    """The cotangent of vectors that are divided by `s`, one number for each, given that of the quotients."""
    reciprocal = MaskedReciprocal.from_values(s, s).broadcast_by(broadcast, ct.shape)
    used = None if mask is None else broadcast(leading_block(mask, s.shape), ct.shape)
    return reciprocal.multiply_cotangent(ct, used)


def thin_svd(outs: Sequence[Value]) -> tuple[Value, Value, Value]:
    """The u, s, vh of a decomposition without the vectors that have no singular value."""
    u, s, vh = outs
    k = s.shape[-1]
    return (
        leading_block(u, (*u.shape[:-1], k)),
        s,
        leading_block(vh, (*vh.shape[:-2], k, vh.shape[-1])),
    )


def vector_mask_beyond_thin(mask: Mask, full: Value, thin: Value, drop: int) -> Mask:
    """`vector_mask` of `full`; not None if `full` has vectors that `thin` has not."""
    if mask is None and full.shape != thin.shape:
        mask = ops.constant_like(ShapedArray((), ops.BOOL), True)
    return vector_mask(mask, full.shape, drop)


def reciprocal_sums(s: Value, dtype: DType) -> MaskedReciprocal:
    """1 / (s_i + s_j); the diagonal is 0 for real matrices, whose vectors have no phases."""
    products = MaskedReciprocal.from_gaps(s, ops.neg(s))
    return products if is_complex(dtype) else products.off_diagonal


def rotation_cotangent(
    symmetric_rotation: Value,
    antisymmetric_rotation: Value,
    mask: Mask,
    u: Value,
    s: Value,
    vh: Value,
) -> Value:
    """The cotangent of a matrix, given those of the symmetric and antisymmetric rotations of its vectors.

    `mask` marks the vectors whose cotangents can be nonzero; None stands for all.
    """
    pairs = vector_pair_mask(None if mask is None else leading_block(mask, s.shape))
    symmetric = MaskedReciprocal.from_gaps(s, s).off_diagonal.multiply_cotangent(
        symmetric_rotation, pairs
    )
    antisymmetric = reciprocal_sums(s, u.dtype).multiply_cotangent(antisymmetric_rotation, pairs)
    total = ops.add(
        ops.hermitian_part(symmetric), ops.sub(antisymmetric, ops.hermitian_part(antisymmetric))
    )
    total = ops.matmul_highest(
        ops.conj_if_complex(u), ops.matmul_highest(total, ops.conj_if_complex(vh))
    )
    k = s.shape[-1]
    if mask is None or mask.shape[-1] == k:
        return total
    has_other_vectors = ops.reduce_or(
        ops.slice_in_dim(mask, k, None, axis=mask.ndim - 1), (mask.ndim - 1,)
    )
    has_other_vectors = ops.broadcast_in_dim(
        has_other_vectors, total.shape, tuple(range(has_other_vectors.ndim))
    )
    return ops.select(has_other_vectors, literal(nan, total.dtype), total)


def masked_vectors(mask: Mask, vectors: Value, broadcast: Callable[..., Value]) -> Value:
    """The `vectors`, rows or columns as in `broadcast`, where `mask` holds; zeros elsewhere.

    A vector whose value has no influence has none either, though its derivative may be nan.
    """
    if mask is None:
        return vectors
    count = vectors.shape[-1 if broadcast is broadcast_columns else -2]
    return apply_mask(
        broadcast(ops.instantiate_mask(mask, (*vectors.shape[:-2], count)), vectors.shape), vectors
    )


def leading_block(x: Value, shape: tuple[int, ...]) -> Value:
    """The leading part of `x` of shape `shape`."""
    return x if x.shape == shape else ops.slice(x, (0,) * len(shape), shape)


def pad_with_nan(x: Value, shape: tuple[int, ...]) -> Value:
    """`x` padded with nan at the end of each dimension to `shape`."""
    if x.shape == shape:
        return x
    config = [(0, n - k, 0) for k, n in zip(x.shape, shape, strict=True)]
    return ops.pad(x, literal(nan, x.dtype), tuple(config))


def cholesky(x: ArrayLike) -> Value:
    """The lower triangular l with l @ l.H the Hermitian part of `x`.

    It is nan where that is not positive definite.
    """
    return Cholesky()(x)


def eigh(x: Value) -> tuple[Value, Value]:
    """The eigenvalues, ascending, and eigenvectors, as columns, of the Hermitian part of `x`."""
    values, vectors = Eigh()(x)
    return values, vectors


def svd(x: Value, full: bool = False) -> tuple[Value, Value, Value]:
    """The u, s, vh with `x` == (u * s) @ vh, with as many columns of u as the smaller dimension.

    The singular values s descend. With `full`, u and vh are square.
    """
    u, s, vh = Svd(full)(x)
    return u, s, vh
