"""Factorizations with SciPy's names.

Matrices are the last two dimensions of an array; the dimensions before them are batch dimensions. The
arguments `overwrite_a`, `check_finite` and the like have no effect.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from functx import numpy as fnp
from functx import ops
from functx.core.errors import DTypeError, ShapeError, ValueRangeError
from functx.core.tracer import aval_of
from functx.core.types import complex_dtype, is_complex
from functx.core.typing import ArrayLike, ArrayOrList, PyTree, Value
from functx.lax import linalg as lax_linalg
from functx.numpy import householder
from functx.numpy import linalg as numpy_linalg
from functx.numpy.householder import Geqrf, hermitian_from_triangle
from functx.numpy.promotion import as_inexact, broadcast_shapes, promote_inexact
from functx.transforms.control.loops import fori_loop
from functx.transforms.vmap import vmap

__all__ = [
    "cholesky",
    "eigh",
    "eigh_tridiagonal",
    "hessenberg",
    "lu",
    "polar",
    "qr",
    "qr_multiply",
    "rsf2csf",
    "schur",
    "svd",
]


def square_matrices(name: str, a: ArrayOrList) -> Value:
    """`a` in a float or complex dtype, if it holds square matrices; raises ShapeError otherwise."""
    a = as_inexact(a)
    shape = aval_of(a).shape
    if len(shape) < 2 or shape[-1] != shape[-2]:
        raise ShapeError(f"{name}: the operand must hold square matrices; got {aval_of(a)!r}")
    return a


def over_batches(function: Callable[..., Any], *arrays: Value) -> PyTree:
    """The results of a function of matrices on each matrix of a batch, of as many dimensions as any."""
    batch = broadcast_shapes(*[aval_of(x).shape[:-2] for x in arrays])
    arrays = tuple([fnp.broadcast_to(x, (*batch, *aval_of(x).shape[-2:])) for x in arrays])
    for _ in batch:
        function = vmap(function)
    return function(*arrays)


def cholesky(
    a: ArrayOrList, lower: bool = False, overwrite_a: bool = False, check_finite: bool = True
) -> Value:
    """The upper triangular u with u.H @ u == a, or with `lower` the lower triangular l with l @ l.H == a.

    Only that triangle of `a` is used.
    """
    a = square_matrices("cholesky", a)
    factor = ops.Cholesky()(hermitian_from_triangle(a, lower))
    return factor if lower else ops.adjoint(factor)


def eigh(
    a: ArrayOrList,
    b: ArrayOrList | None = None,
    lower: bool = True,
    eigvals_only: bool = False,
    overwrite_a: bool = False,
    overwrite_b: bool = False,
    turbo: bool = True,
    eigvals: None = None,
    type: int = 1,
    check_finite: bool = True,
) -> Value | tuple[Value, Value]:
    """The eigenvalues, ascending, and eigenvectors v of Hermitian matrices.

    The Hermitian parts of `a` and of the positive definite `b` are used. The eigenvalues w are those of
    a v = w b v, or with `type` 2 of a b v = w v, or with 3 of b a v = w v. The eigenvectors have length 1
    in the norm of `b`, or with `type` 3 of its inverse. `eigvals` must be None.
    """
    if type not in (1, 2, 3) or eigvals is not None:
        raise ValueRangeError(
            f"eigh: type must be 1, 2 or 3, and eigvals None; got {type!r} and {eigvals!r}",
            fix="Slice the results to select eigenvalues.",
        )
    a = square_matrices("eigh", a)
    if b is None:
        w, v = ops.eigh(a)
        return w if eigvals_only else (w, v)
    a, b = promote_inexact(a, square_matrices("eigh", b))
    factor, a = ops.Cholesky()(b), ops.hermitian_part(a)
    transposed = ops.TriangularSolve(transposed=True, conjugated=is_complex(a.dtype))
    if type == 1:
        left = ops.TriangularSolve()(factor, a)
        inner = ops.adjoint(ops.TriangularSolve()(factor, ops.adjoint(left)))
    else:
        inner = ops.matmul_highest(ops.adjoint(factor), ops.matmul_highest(a, factor))
    w, v = ops.eigh(inner)
    if eigvals_only:
        return w
    return w, transposed(factor, v) if type < 3 else ops.matmul_highest(factor, v)


def eigh_tridiagonal(
    d: ArrayLike,
    e: ArrayLike,
    *,
    eigvals_only: bool = False,
    select: str = "a",
    select_range: tuple[int, int] | None = None,
    tol: float | None = None,
    key: Value | None = None,
) -> Value | tuple[Value, Value]:
    """The eigenvalues, ascending, and eigenvectors of the Hermitian matrix of diagonals `d` and `e`.

    `e` is the diagonal above the main one `d`. With `select="i"` they are those from the first to the
    last index in `select_range`. The dense matrix is decomposed: `tol` and `key` have no effect.
    """
    d, e = as_inexact(d), as_inexact(e)
    if aval_of(d).dtype != aval_of(e).dtype:
        raise DTypeError(
            f"eigh_tridiagonal: d and e must be of one dtype; got {aval_of(d)!r} and {aval_of(e)!r}"
        )
    n = aval_of(d).shape[0] if aval_of(d).ndim == 1 else -1
    if aval_of(e).shape != (max(n - 1, 0),):
        raise ShapeError(
            "eigh_tridiagonal: e must be a vector of one element less than d; got "
            f"{aval_of(d)!r} and {aval_of(e)!r}"
        )
    if select not in ("a", "i") or (select == "i" and select_range is None):
        raise ValueRangeError(
            "eigh_tridiagonal: select must be 'a', or 'i' with a select_range; got "
            f"{select!r} and {select_range!r}",
            fix="Select eigenvalues by their values with a mask.",
        )
    matrix = fnp.diag(d) + fnp.diag(fnp.conj(e), -1)
    w, v = ops.eigh(hermitian_from_triangle(matrix))
    if select == "i":
        first, last = select_range  # type: ignore[misc]
        if not 0 <= first <= last < n:
            raise ValueRangeError(
                f"eigh_tridiagonal: select_range must lie within {n} indices; got {select_range}"
            )
        w, v = w[first : last + 1], v[:, first : last + 1]
    return w if eigvals_only else (w, v)


def hessenberg(
    a: ArrayOrList, *, calc_q: bool = False, overwrite_a: bool = False, check_finite: bool = True
) -> Value | tuple[Value, Value]:
    """The h with a == q @ h @ q.H and zeros below its first subdiagonal; with `calc_q` also the unitary q."""
    a = square_matrices("hessenberg", a)
    if not aval_of(a).shape[-1]:
        return (a, a) if calc_q else a
    packed, taus = householder.Hessenberg()(a)
    h = fnp.triu(packed, -1)
    if not calc_q:
        return h
    inner = householder.householder_product(packed[..., 1:, :-1], taus)
    row = fnp.zeros_like(a[..., :1, :])
    corner = ops.position_mask(aval_of(row).shape, ops.eq)
    row = fnp.where(corner, fnp.ones_like(row), row)
    column = fnp.zeros_like(a[..., 1:, :1])
    return h, fnp.concatenate([row, fnp.concatenate([column, inner], axis=-1)], axis=-2)


def lu(
    a: ArrayOrList, permute_l: bool = False, overwrite_a: bool = False, check_finite: bool = True
) -> tuple[Value, ...]:
    """The p, l, u with a == p @ l @ u, or with `permute_l` p @ l and u.

    p is a permutation matrix, l unit lower triangular, u upper triangular.
    """
    factors, _, permutation = lax_linalg.lu(as_inexact(a))
    m, n = factors.shape[-2:]
    k = min(m, n)
    columns = fnp.arange(m, dtype=np.int32)[:, None]
    p = fnp.astype(permutation[..., None, :] == columns, ops.real_if_complex(factors).dtype)
    lower = fnp.tril(factors[..., :k], -1)
    lower = lower + fnp.eye(m, k, dtype=factors.dtype)
    upper = fnp.triu(factors[..., :k, :])
    if permute_l:
        return ops.permute_rows(lower, fnp.argsort(permutation, axis=-1)), upper
    return p, lower, upper


def polar(
    a: ArrayOrList,
    side: str = "right",
    *,
    method: str = "qdwh",
    eps: float | None = None,
    max_iterations: int | None = None,
) -> tuple[Value, Value]:
    """The u, p with a == u @ p, or a == p @ u with the `side` "left".

    u has orthonormal columns or rows, and p is positive semidefinite. The `method` is an iteration,
    "qdwh", or a singular value decomposition, "svd". Derivatives exist also at equal singular values.
    """
    if side not in ("right", "left") or method not in ("qdwh", "svd"):
        raise ValueRangeError(
            "polar: side must be 'right' or 'left', and method 'qdwh' or 'svd'; got "
            f"{side!r} and {method!r}"
        )
    a = as_inexact(a)
    if aval_of(a).ndim < 2:
        raise ShapeError(f"polar: a must hold matrices; got {aval_of(a)!r}")
    m, n = aval_of(a).shape[-2:]
    if method == "svd":
        left, _, right = ops.svd(a)
        u = ops.matmul(left, right) if left.ndim == 2 else fnp.matmul(left, right)
    else:

        def iterate(x: Value) -> Value:
            return lax_linalg.qdwh(x, eps=eps, max_iterations=max_iterations)[0]

        u = over_batches(iterate, a if m >= n else ops.adjoint(a))
        u = u if m >= n else ops.adjoint(u)
    pair = (ops.adjoint(u), a) if side == "right" else (a, ops.adjoint(u))
    return u, ops.hermitian_part(ops.matmul_highest(*pair))


def qr(
    a: ArrayOrList,
    overwrite_a: bool = False,
    lwork: object = None,
    mode: str = "full",
    pivoting: bool = False,
    check_finite: bool = True,
) -> tuple[Value, ...]:
    """The q, r with a == q @ r, orthonormal columns and an upper triangular matrix.

    With the mode "full" q is square, with "economic" it has as many columns as the smaller dimension;
    "r" gives r alone. With `pivoting`, a further result p holds the columns in the order in which they
    are factored: a[:, p] == q @ r.
    """
    if mode not in ("full", "r", "economic"):
        raise ValueRangeError(f"qr: mode must be 'full', 'r' or 'economic'; got {mode!r}")
    outs = lax_linalg.qr(as_inexact(a), pivoting=pivoting, full_matrices=mode != "economic")
    return outs[1:] if mode == "r" else outs


def qr_multiply(
    a: ArrayOrList,
    c: ArrayOrList,
    mode: str = "right",
    pivoting: bool = False,
    conjugate: bool = False,
    overwrite_a: bool = False,
    overwrite_c: bool = False,
) -> tuple[Value, ...]:
    """c @ q, or with the mode "left" q @ c, and r, for the q, r of `qr(a, mode="economic")`.

    With `conjugate`, q is replaced by its conjugate. With `pivoting` the order of columns follows. `c`
    may be a vector.
    """
    if mode not in ("left", "right"):
        raise ValueRangeError(f"qr_multiply: mode must be 'right' or 'left'; got {mode!r}")
    a, c = promote_inexact(a, c)
    left, is_vector = mode == "left", aval_of(c).ndim == 1
    if is_vector:
        c = ops.expand_dims(c, (1,) if left else (0,))
    m, n = aval_of(a).shape[-2:]
    k, shape = min(m, n), aval_of(c).shape
    if shape[-2 if left else -1] != (k if left else m):
        raise ShapeError(
            f"qr_multiply: c must have {f'{k} rows' if left else f'{m} columns'} for this a; got "
            f"{aval_of(c)!r} and {aval_of(a)!r}"
        )
    batch = broadcast_shapes(aval_of(a).shape[:-2], shape[:-2])
    a = fnp.broadcast_to(a, (*batch, m, n))
    c = fnp.broadcast_to(c, (*batch, *shape[-2:]))
    order: tuple[Value, ...] = ()
    if pivoting:
        *_, permutation = lax_linalg.qr(a, pivoting=True, full_matrices=False)
        order = (permutation,)
        a = ops.matrix_transpose(ops.permute_rows(ops.matrix_transpose(a), permutation))
    packed, taus = Geqrf()(a)
    if left and m > k:
        c = fnp.pad(c, [(0, 0)] * (aval_of(c).ndim - 2) + [(0, m - k), (0, 0)])
    c = fnp.conj(c) if conjugate else c
    product = householder.multiply_by_reflectors(packed, taus, c, left, False)
    product = fnp.conj(product) if conjugate else product
    product = product if left else product[..., :k]
    product = fnp.ravel(product) if is_vector else product
    return (product, fnp.triu(packed[..., :k, :]), *order)


def rsf2csf(
    T: ArrayOrList,  # noqa: N803 - SciPy's names
    Z: ArrayOrList,  # noqa: N803
    check_finite: bool = True,
) -> tuple[Value, Value]:
    """The complex Schur form with the same product as the real one, `T` and `Z`."""
    t, z = square_matrices("rsf2csf", T), square_matrices("rsf2csf", Z)
    if aval_of(t).shape[-1] != aval_of(z).shape[-1]:
        raise ShapeError(
            f"rsf2csf: T and Z must have one size; got {aval_of(t)!r} and {aval_of(z)!r}"
        )
    t, z = promote_inexact(t, z)
    dtype = complex_dtype(aval_of(t).dtype)
    t, z = fnp.astype(t, dtype), fnp.astype(z, dtype)
    n = aval_of(t).shape[-1]
    eps = float(np.finfo(dtype).eps)

    def annihilate(i: Value, carry: tuple[Value, Value]) -> tuple[Value, Value]:
        t, z = carry
        m = n - i
        below, first, second = t[m, m - 1], t[m - 1, m - 1], t[m, m]
        is_zero = fnp.abs(below) <= eps * (fnp.abs(first) + fnp.abs(second))
        # An eigenvalue of the block of two rows, less its last element.
        half = (first - second) / 2
        root = fnp.sqrt(half * half + t[m - 1, m] * below)
        mu = half + root
        length = fnp.sqrt(fnp.abs(mu) ** 2 + fnp.abs(below) ** 2)
        length = fnp.where(is_zero, 1, length)
        c = fnp.where(is_zero, 1, mu / length)
        s = fnp.where(is_zero, 0, below / length)
        turn = fnp.reshape(fnp.stack([fnp.conj(c), s, -s, c]), (2, 2))
        back = ops.adjoint(turn)
        rows = ops.dynamic_slice_in_dim(t, m - 1, 2, 0)
        t = ops.dynamic_update_slice_in_dim(t, ops.matmul_highest(turn, rows), m - 1, 0)
        columns = ops.dynamic_slice_in_dim(t, m - 1, 2, 1)
        t = ops.dynamic_update_slice_in_dim(t, ops.matmul_highest(columns, back), m - 1, 1)
        columns = ops.dynamic_slice_in_dim(z, m - 1, 2, 1)
        z = ops.dynamic_update_slice_in_dim(z, ops.matmul_highest(columns, back), m - 1, 1)
        return t, z

    def complete(t: Value, z: Value) -> tuple[Value, Value]:
        t, z = fori_loop(1, n, annihilate, (t, z)) if n > 1 else (t, z)
        return fnp.triu(t), z

    return over_batches(complete, t, z)


def schur(a: ArrayOrList, output: str = "real") -> tuple[Value, Value]:
    """The t, z with a == z @ t @ z.H, an upper triangular and a unitary matrix.

    With the `output` "real", the results for real matrices are real, and t has blocks of two rows on
    its diagonal for complex eigenvalues; these have no derivatives.
    """
    if output not in ("real", "complex"):
        raise ValueRangeError(f"schur: output must be 'real' or 'complex'; got {output!r}")
    a = square_matrices("schur", a)
    if output == "complex":
        a = fnp.astype(a, complex_dtype(aval_of(a).dtype))
    t, z = lax_linalg.schur(a)
    return t, z


def svd(
    a: ArrayOrList,
    full_matrices: bool = True,
    compute_uv: bool = True,
    overwrite_a: bool = False,
    check_finite: bool = True,
    lapack_driver: str = "gesdd",
) -> Value | tuple[Value, Value, Value]:
    """The u, s, vh with a == (u * s) @ vh, or without `compute_uv` the singular values s.

    See `functx.numpy.linalg.svd`. `lapack_driver` has no effect.
    """
    found = numpy_linalg.svd(a, full_matrices, compute_uv)
    return tuple(found) if compute_uv else found  # type: ignore[return-value]
