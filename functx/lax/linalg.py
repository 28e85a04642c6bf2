"""Linear algebra with the names and signatures of `jax.lax.linalg`.

Matrices are the last two dimensions of an array; the dimensions before them are batch dimensions.
Operands must be float or complex arrays of one dtype.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any

import numpy as np
from jax.lax.linalg import EighImplementation, EigImplementation, SvdAlgorithm

from functx import ops
from functx.core.argument_errors import explain_errors as _explain_errors
from functx.core.errors import ArgumentError, ShapeError, ValueRangeError
from functx.core.missing_names import suggest_alternatives as _suggest_alternatives
from functx.core.tracer import aval_of
from functx.core.typing import ArrayLike, Value
from functx.lax.polar_iteration import qdwh
from functx.lax.schur import Schur
from functx.numpy import householder, matrices, shapes
from functx.numpy.householder import hermitian_from_triangle
from functx.numpy.linalg import svd as _svd
from functx.ops import factorizations
from functx.ops.eigenvectors import Eig
from functx.ops.least_squares import Qr
from functx.ops.linear_systems import Lu
from functx.ops.operands import literal
from functx.ops.tridiagonal_systems import TridiagonalSolve
from functx.transforms.control.loops import fori_loop

__all__ = [
    "EigImplementation",
    "EighImplementation",
    "SvdAlgorithm",
    "cholesky",
    "cholesky_update",
    "eig",
    "eigh",
    "hessenberg",
    "householder_product",
    "lu",
    "lu_pivots_to_permutation",
    "ormqr",
    "qdwh",
    "qr",
    "schur",
    "svd",
    "symmetric_product",
    "triangular_solve",
    "tridiagonal",
    "tridiagonal_solve",
]


def cholesky(x: ArrayLike, *, symmetrize_input: bool = True) -> Value:
    """The lower triangular l with l @ l.H the Hermitian part of `x`; nan if that is not positive definite.

    Without `symmetrize_input`, the lower triangle of `x` stands for the whole matrix.
    """
    x = _matrices("cholesky", x, square=True)
    return factorizations.cholesky(x if symmetrize_input else hermitian_from_triangle(x))


def cholesky_update(r_matrix: ArrayLike, w_vector: ArrayLike) -> Value:
    """The upper triangular factor of r.T @ r + w w.T, for an upper triangular r and a vector w.

    It takes a number of operations quadratic in the length, by one rotation for each row.
    """
    r = _matrices("cholesky_update", r_matrix, square=True)
    w, n = shapes.ensure_array(w_vector), r.shape[-1]
    if r.ndim != 2 or aval_of(w).shape != (n,):
        raise ShapeError(
            "cholesky_update: there must be a matrix and a vector of as many elements; got "
            f"{aval_of(r)!r} and {aval_of(w)!r}"
        )

    def rotate(k: Value, carry: tuple[Value, Value]) -> tuple[Value, Value]:
        r, w = carry
        row = r[k]
        x, y = row[k], w[k]
        is_zero = ops.eq(y, literal(0, y.dtype))
        squares = ops.add(ops.mul(x, x), ops.mul(y, y))
        length = ops.sqrt(ops.select(is_zero, literal(1, y.dtype), squares))
        c = ops.select(is_zero, literal(1, y.dtype), ops.div(x, length))
        s = ops.select(is_zero, literal(0, y.dtype), ops.div(y, length))
        turned = ops.add(ops.mul(c, row), ops.mul(s, w))
        return ops.dynamic_update_index_in_dim(r, turned, k, 0), ops.sub(
            ops.mul(c, w), ops.mul(s, row)
        )

    return fori_loop(0, n, rotate, (r, w))[0]


def eig(
    x: ArrayLike,
    *,
    compute_left_eigenvectors: bool = True,
    compute_right_eigenvectors: bool = True,
    enable_eigvec_derivs: bool = False,
    implementation: EigImplementation | None = None,
    use_magma: bool | None = None,
) -> list[Value]:
    """The eigenvalues of matrices, and their left and right eigenvectors if these are wanted.

    All are complex. Eigenvectors are columns of length 1, with a component of largest absolute value
    that is real; they have derivatives with and without `enable_eigvec_derivs`, where eigenvalues are
    distinct. XLA chooses the implementation.
    """
    _check_choice("eig", implementation, EigImplementation)
    return [*Eig(bool(compute_left_eigenvectors), bool(compute_right_eigenvectors))(x)]


def eigh(
    x: ArrayLike,
    *,
    lower: bool = True,
    symmetrize_input: bool = True,
    sort_eigenvalues: bool = True,
    subset_by_index: tuple[int, int] | None = None,
    implementation: EighImplementation | None = None,
) -> tuple[Value, Value]:
    """The eigenvectors, as columns, and eigenvalues of the Hermitian part of `x`.

    Without `symmetrize_input`, the lower triangle of `x`, or the upper one without `lower`, stands for
    the whole matrix. The eigenvalues ascend. `subset_by_index=(start, end)` selects some of
    them. XLA chooses the implementation.
    """
    _check_choice("eigh", implementation, EighImplementation)
    x = _matrices("eigh", x, square=True)
    w, v = factorizations.eigh(x if symmetrize_input else hermitian_from_triangle(x, lower))
    if subset_by_index is not None:
        start, end = subset_by_index
        if not 0 <= start <= end <= w.shape[-1]:
            raise ValueRangeError(
                f"eigh: subset_by_index must lie within the {w.shape[-1]} eigenvalues; got "
                f"{subset_by_index}"
            )
        w, v = w[..., start:end], v[..., start:end]
    return v, w


def hessenberg(a: ArrayLike) -> tuple[Value, Value]:
    """The Hessenberg form of matrices, with reflectors below its subdiagonal, and their factors."""
    packed, taus = householder.Hessenberg()(a)
    return packed, taus


def householder_product(a: ArrayLike, taus: ArrayLike) -> Value:
    """The product of reflectors that are stored below the diagonal of `a`: as many columns as `a` has."""
    return householder.householder_product(
        _matrices("householder_product", a), shapes.ensure_array(taus)
    )


def lu(x: ArrayLike) -> tuple[Value, Value, Value]:
    """The LU factors of `x` in one matrix, the pivots, and the permutation of the rows.

    x[permutation] is the product of a unit lower triangular and an upper triangular matrix. In step
    i, row i was exchanged with row `pivots[i]`.

    >>> import functx, functx.numpy as np
    >>> factors, pivots, permutation = functx.lax.linalg.lu(np.array([[1.0, 2.0], [4.0, 2.0]]))
    >>> factors.tolist(), permutation.tolist()
    ([[4.0, 2.0], [0.25, 1.5]], [1, 0])
    """
    factors, pivots, permutation = Lu()(x)
    return factors, pivots, permutation


def lu_pivots_to_permutation(pivots: ArrayLike, permutation_size: int) -> Value:
    """The permutation of `permutation_size` rows that exchanges row i with row `pivots[i]`, in order."""
    pivots = shapes.ensure_array(pivots)
    *batch, count = pivots.shape
    if permutation_size < count:
        raise ValueRangeError(
            f"lu_pivots_to_permutation: there must be a row for each of {count} pivots; got "
            f"permutation_size={permutation_size}"
        )
    shape = (*batch, permutation_size)
    rows = ops.broadcasted_iota(np.int32, shape, len(batch))

    def exchange(i: Value, permutation: Value) -> Value:
        i = ops.convert_element_type(i, np.int32)
        pivot = ops.dynamic_index_in_dim(pivots, i, len(batch), keepdims=True)
        here = ops.eq(rows, i)
        there = ops.eq(rows, shapes.broadcast_to(ops.convert_element_type(pivot, np.int32), shape))
        first, second = [
            shapes.broadcast_to(
                ops.expand_dims(
                    ops.reduce_sum(
                        ops.select(mask, permutation, literal(0, permutation.dtype)), len(batch)
                    ),
                    (len(batch),),
                ),
                shape,
            )
            for mask in (here, there)
        ]
        return ops.select(there, first, ops.select(here, second, permutation))

    return fori_loop(0, count, exchange, rows) if count and permutation_size else rows


def ormqr(
    a: ArrayLike, taus: ArrayLike, c: ArrayLike, *, left: bool = True, transpose: bool = False
) -> Value:
    """q @ c, or c @ q without `left`, for the product q of reflectors stored below the diagonal of `a`.

    With `transpose`, q is replaced by its adjoint. q is square.
    """
    a, c = _matrices("ormqr", a), _matrices("ormqr", c)
    m = a.shape[-2]
    if c.shape[-2 if left else -1] != m:
        raise ShapeError(
            f"ormqr: c must have {m} {'rows' if left else 'columns'}, the size of q; got {aval_of(c)!r}"
        )
    return householder.multiply_by_reflectors(a, shapes.ensure_array(taus), c, left, transpose)


def qr(
    x: ArrayLike,
    *,
    pivoting: bool = False,
    full_matrices: bool = True,
    use_magma: bool | None = None,
) -> tuple[Value, ...]:
    """The q, r with x == q @ r, orthonormal columns and an upper triangular matrix.

    With `full_matrices` q is square. With `pivoting`, a third result p holds the columns in the order
    in which they are factored: x[:, p] == q @ r.
    """
    return tuple(Qr(bool(full_matrices), bool(pivoting))(x))


def schur(
    x: ArrayLike,
    *,
    compute_schur_vectors: bool = True,
    sort_eig_vals: bool = False,
    select_callable: Callable[..., Any] | None = None,
) -> tuple[Value, ...]:
    """The t, z with x == z @ t @ z.H, an upper triangular and a unitary matrix.

    For real matrices with complex eigenvalues, t has blocks of two rows on its diagonal. Without
    `compute_schur_vectors` there is only t. The last two arguments must keep their defaults.
    """
    if sort_eig_vals or select_callable is not None:
        raise ArgumentError(
            "schur: the eigenvalues are not sorted; got sort_eig_vals or a selection"
        )
    return tuple(Schur()(x))[: 1 + bool(compute_schur_vectors)]


def svd(
    x: ArrayLike,
    *,
    full_matrices: bool = True,
    compute_uv: bool = True,
    subset_by_index: tuple[int, int] | None = None,
    algorithm: SvdAlgorithm | None = None,
) -> Value | tuple[Value, Value, Value]:
    """The u, s, vh with x == (u * s) @ vh, or without `compute_uv` the singular values s.

    See `functx.numpy.linalg.svd`. XLA chooses the algorithm.
    """
    _check_choice("svd", algorithm, SvdAlgorithm)
    found = _svd(x, full_matrices, compute_uv, subset_by_index=subset_by_index)
    return tuple(found) if compute_uv else found  # type: ignore[return-value]


def symmetric_product(
    a_matrix: ArrayLike,
    c_matrix: ArrayLike,
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
    symmetrize_output: bool = False,
) -> Value:
    """alpha a @ a.T + beta c, for symmetric matrices c.

    With `symmetrize_output`, the lower triangle is copied to the upper one, which c may have changed.
    """
    a = _matrices("symmetric_product", a_matrix)
    c = _matrices("symmetric_product", c_matrix, square=True)
    product = ops.mul(ops.matmul_highest(a, ops.matrix_transpose(a)), alpha)
    total = ops.add(product, ops.mul(c, beta))
    if not symmetrize_output:
        return total
    return ops.select(ops.position_mask(c.shape, ops.ge), total, ops.matrix_transpose(total))


def triangular_solve(
    a: ArrayLike,
    b: ArrayLike,
    *,
    left_side: bool = False,
    lower: bool = False,
    transpose_a: bool = False,
    conjugate_a: bool = False,
    unit_diagonal: bool = False,
) -> Value:
    """The x with x @ a == b, or a @ x == b with `left_side`, for triangular matrices `a`.

    Only the upper, or with `lower` the lower, triangle of `a` is used, with ones on its diagonal if
    `unit_diagonal`. `a` is transposed and conjugated as `transpose_a` and `conjugate_a` say. `b` may
    hold vectors in place of matrices.
    """
    a = _matrices("triangular_solve", a, square=True)
    b = shapes.ensure_array(b)
    is_vector = b.ndim == a.ndim - 1
    if is_vector:
        if b.shape != a.shape[:-1]:
            raise ShapeError(
                "triangular_solve: b must have as many rows as the matrix, and its batch; got "
                f"{aval_of(a)!r} and {aval_of(b)!r}"
            )
        b = ops.expand_dims(b, (b.ndim if left_side else b.ndim - 1,))
    transposed = bool(transpose_a) == bool(left_side)
    solve = ops.TriangularSolve(
        bool(lower), transposed, bool(conjugate_a) and a.dtype.kind == "c", bool(unit_diagonal)
    )
    x = solve(a, b) if left_side else ops.matrix_transpose(solve(a, ops.matrix_transpose(b)))
    return ops.squeeze(x, (x.ndim - 1 if left_side else x.ndim - 2,)) if is_vector else x


def tridiagonal(a: ArrayLike, *, lower: bool = True) -> tuple[Value, Value, Value, Value]:
    """The tridiagonal form of Hermitian matrices, with its reflectors, and its parts.

    Only the lower triangle of `a`, or the upper one without `lower`, is used. The results are that
    triangle reduced, with the reflectors in it; the diagonal; the diagonal beside it; and the factors
    of the reflectors.
    """
    a = _matrices("tridiagonal", a, square=True)
    last = a.ndim - 1
    packed, taus = householder.Tridiagonal()(a if lower else ops.rev(a, (last - 1, last)))
    if not lower:
        packed, taus = ops.rev(packed, (last - 1, last)), ops.rev(taus, (last - 1,))
    diagonal, beside = [
        ops.real_if_complex(matrices.diagonal(packed, k, -2, -1)) for k in (0, -1 if lower else 1)
    ]
    return packed, diagonal, beside, taus


def tridiagonal_solve(
    dl: ArrayLike, d: ArrayLike, du: ArrayLike, b: ArrayLike, *, perturb_singular: bool = False
) -> Value:
    """The x with t @ x == b for the tridiagonal matrices t with lower diagonal `dl`, `d` and `du`.

    All three have the length of `d`; the first element of `dl` and the last of `du` are not used. With
    `perturb_singular`, pivots near 0 are moved away from it, on CPUs and GPUs.
    """
    return TridiagonalSolve(bool(perturb_singular))(dl, d, du, b)


def _matrices(name: str, x: ArrayLike, square: bool = False) -> Value:
    """`x` as an array, if it holds matrices; raises ShapeError otherwise."""
    x = shapes.ensure_array(x)
    aval = aval_of(x)
    if aval.ndim < 2 or (square and aval.shape[-1] != aval.shape[-2]):
        kind = "square matrices" if square else "matrices"
        raise ShapeError(f"{name}: the operand must hold {kind}; got {aval!r}")
    return x


def _check_choice(name: str, choice: object, kind: type[Enum]) -> None:
    if choice is not None and not isinstance(choice, kind):
        raise ArgumentError(f"{name}: the choice must be one of {kind.__name__}; got {choice!r}")


_suggest_alternatives("jax.lax.linalg", __name__)
_explain_errors(__name__)
