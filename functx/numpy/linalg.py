"""Linear algebra with NumPy's names and signatures.

Matrices are the last two dimensions of an array; the dimensions before them are batch dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from operator import index
from typing import Any, NamedTuple

import numpy as np

from functx import ops
from functx.core.argument_errors import explain_errors as _explain_errors
from functx.core.errors import ArgumentError, ShapeError, ValueRangeError
from functx.core.missing_names import suggest_alternatives as _suggest_alternatives
from functx.core.tracer import aval_of
from functx.core.types import real_dtype
from functx.core.typing import ArrayLike, ArrayOrList, DTypeLike, Out, Value
from functx.numpy import floating_point, matrices, operators, reductions, shapes, ufuncs
from functx.numpy.einstein_summation import einsum
from functx.numpy.householder import Geqrf, hermitian_from_triangle
from functx.numpy.indexing import take_along_axis
from functx.numpy.matrices import eye
from functx.numpy.matrix_norms import (
    cond,
    matrix_norm,
    matrix_rank,
    norm,
    singular_values,
    vector_norm,
)
from functx.numpy.mutation import accept_out
from functx.numpy.promotion import as_inexact, broadcast_shapes, operand, promote, promote_inexact
from functx.numpy.shapes import matrix_transpose
from functx.numpy.sorting_and_searching import argsort
from functx.numpy.tensor_contractions import matmul, tensordot, vecdot
from functx.ops import determinants, factorizations, linear_systems
from functx.ops.contraction import PrecisionLike
from functx.ops.eigenvectors import Eig
from functx.ops.least_squares import Pinv, Qr
from functx.ops.operands import canonical_axis, cast_like, literal

__all__ = [
    "cholesky",
    "cond",
    "cross",
    "det",
    "diagonal",
    "eig",
    "eigh",
    "eigvals",
    "eigvalsh",
    "inv",
    "lstsq",
    "matmul",
    "matrix_norm",
    "matrix_power",
    "matrix_rank",
    "matrix_transpose",
    "multi_dot",
    "norm",
    "outer",
    "pinv",
    "qr",
    "slogdet",
    "solve",
    "svd",
    "svdvals",
    "tensordot",
    "tensorinv",
    "tensorsolve",
    "trace",
    "vecdot",
    "vector_norm",
]


class EigResult(NamedTuple):
    """Eigenvalues, in no particular order, and the eigenvectors as columns."""

    eigenvalues: Value
    eigenvectors: Value


class EighResult(NamedTuple):
    """Eigenvalues in ascending order, and the eigenvectors as columns."""

    eigenvalues: Value
    eigenvectors: Value


class SVDResult(NamedTuple):
    """Orthonormal columns, singular values in descending order, orthonormal rows."""

    U: Value
    S: Value
    Vh: Value


class QRResult(NamedTuple):
    """Orthonormal columns, and an upper triangular matrix."""

    Q: Value
    R: Value


class SlogdetResult(NamedTuple):
    """The sign of a determinant, and the logarithm of its absolute value."""

    sign: Value
    logabsdet: Value


def solve(a: ArrayOrList, b: ArrayOrList) -> Value:
    """The x with a @ x == b, for square matrices `a`.

    `b` is one vector if it has one dimension, else matrices. Batches are broadcast.
    """
    a, b = promote_inexact(a, b)
    shape, right = aval_of(a).shape, aval_of(b).shape
    vector = len(right) == 1
    rows = right[:1] if vector else right[-2:-1]
    if len(shape) < 2 or shape[-1] != shape[-2] or rows != shape[-1:]:
        raise ShapeError(
            "solve: a must hold square matrices, and b as many rows; "
            f"got {aval_of(a)!r} and {aval_of(b)!r}"
        )
    if vector:
        b, right = ops.expand_dims(b, 1), (*right, 1)
    if shape[:-2] != right[:-2]:
        batch = broadcast_shapes(shape[:-2], right[:-2])
        a = shapes.broadcast_to(a, (*batch, *shape[-2:]))
        b = shapes.broadcast_to(b, (*batch, *right[-2:]))
    x = linear_systems.solve(a, b)
    return ops.squeeze(x, (aval_of(x).ndim - 1,)) if vector else x


def inv(a: ArrayOrList) -> Value:
    """The inverse of square matrices.

    >>> import functx.numpy as np
    >>> np.linalg.inv(np.array([[2.0, 0.0], [0.0, 4.0]])).tolist()
    [[0.5, 0.0], [0.0, 0.25]]
    """
    a = as_inexact(a)
    aval = aval_of(a)
    if aval.ndim < 2 or aval.shape[-1] != aval.shape[-2]:
        raise ShapeError(f"inv: a must hold square matrices; got {aval!r}")
    ones = shapes.broadcast_to(eye(aval.shape[-1], dtype=aval.dtype), aval.shape)
    return linear_systems.solve(a, ones)


def det(a: ArrayOrList) -> Value:
    """The determinant of square matrices.

    Its derivative is the matrix of cofactors, also for singular matrices; they are computed after rows and
    columns are scaled by powers of two. From the third derivative on, matrices of 4 and more rows whose rank is
    at most n - 2 give nan.

    >>> import functx, functx.numpy as np
    >>> functx.numpy.round(functx.grad(np.linalg.det)(np.array([[1.0, 2.0], [2.0, 4.0]])), 3).tolist()
    [[4.0, -2.0], [-2.0, 1.0]]
    """
    return determinants.det(as_inexact(a))


def slogdet(a: ArrayOrList, *, method: str | None = None) -> SlogdetResult:
    """The sign of the determinant of square matrices, and the logarithm of its absolute value.

    They come from LU factors, also with the `method` "qr".
    """
    if method not in (None, "lu", "qr"):
        raise ValueRangeError(f"slogdet: method must be 'lu' or 'qr'; got {method!r}")
    return SlogdetResult(*linear_systems.slogdet(as_inexact(a)))


def cholesky(a: ArrayOrList, *, upper: bool = False, symmetrize_input: bool = True) -> Value:
    """The lower triangular l with l @ l.H == a, or with `upper` its adjoint.

    Only the Hermitian part of `a` is used, or without `symmetrize_input` its lower triangle. If it is
    not positive definite, the result is nan.
    """
    a = as_inexact(a)
    if not symmetrize_input:
        a = hermitian_from_triangle(_square("cholesky", a))
    factor = factorizations.cholesky(a)
    return floating_point.conj(shapes.swapaxes(factor, -1, -2)) if upper else factor


def _square(name: str, a: Value) -> Value:
    """`a`, if it holds square matrices; raises ShapeError otherwise."""
    shape = aval_of(a).shape
    if len(shape) < 2 or shape[-1] != shape[-2]:
        raise ShapeError(f"{name}: the operand must hold square matrices; got {aval_of(a)!r}")
    return a


def eig(a: ArrayOrList) -> EigResult:
    """The eigenvalues and eigenvectors of square matrices.

    Both are complex, for real matrices too. The eigenvectors are columns of length 1 whose component
    with the largest absolute value is real. Their derivatives are nan where eigenvalues are equal.

    >>> import functx.numpy as np
    >>> np.linalg.eig(np.array([[2.0, 1.0], [0.0, 3.0]])).eigenvalues.tolist()
    [(2+0j), (3+0j)]
    """
    w, v = Eig(right=True)(as_inexact(a))
    return EigResult(w, v)


def eigvals(a: ArrayOrList) -> Value:
    """The eigenvalues of square matrices, which are complex, for real matrices too; see `eig`."""
    (w,) = Eig()(as_inexact(a))
    return w


def eigh(
    a: ArrayOrList,
    UPLO: str | None = None,  # noqa: N803 - NumPy's name
    symmetrize_input: bool = True,
) -> EighResult:
    """The eigenvalues, ascending, and eigenvectors of Hermitian matrices.

    The Hermitian part of `a` is used, or without `symmetrize_input` the triangle `UPLO`, "L" or "U".
    Derivatives of the eigenvectors of equal eigenvalues are nan; derivatives of functions of the
    matrix, such as `(v * f(w)) @ v.T`, are correct.
    """
    if UPLO not in (None, "L", "U"):
        raise ValueRangeError(f"eigh: UPLO must be 'L' or 'U'; got {UPLO!r}")
    a = as_inexact(a)
    if not symmetrize_input:
        a = hermitian_from_triangle(_square("eigh", a), UPLO != "U")
    return EighResult(*factorizations.eigh(a))


def eigvalsh(
    a: ArrayOrList,
    UPLO: str | None = "L",  # noqa: N803
    *,
    symmetrize_input: bool = True,
) -> Value:
    """The eigenvalues, ascending, of Hermitian matrices; see `eigh`."""
    return eigh(a, UPLO, symmetrize_input)[0]


def svd(
    a: ArrayOrList,
    full_matrices: bool = True,
    compute_uv: bool = True,
    hermitian: bool = False,
    subset_by_index: tuple[int, int] | None = None,
) -> SVDResult | Value:
    """The u, s, vh with a == (u * s) @ vh, or with `compute_uv=False` the singular values s.

    Singular values are in descending order. Without `full_matrices`, u has as many columns and
    vh as many rows as there are singular values; with it they are square. The derivatives of
    columns and rows without a singular value are nan. With `hermitian`, the matrices are taken to be
    Hermitian. `subset_by_index=(start, end)` selects those singular values and their vectors.
    """
    a = as_inexact(a)
    shape = aval_of(a).shape
    if hermitian:
        factors = _svd_of_hermitian(_square("svd", a))
    else:
        square = shape[-2:-1] == shape[-1:]
        factors = factorizations.svd(a, full=bool(full_matrices and compute_uv and not square))
    if subset_by_index is not None:
        start, end = subset_by_index
        count = min(shape[-2:])
        if not 0 <= start <= end <= count:
            raise ValueRangeError(
                f"svd: subset_by_index must lie within the {count} singular values; got "
                f"{subset_by_index}"
            )
        if full_matrices and shape[-1] != shape[-2] and (start, end) != (0, count):
            raise ValueRangeError("svd: a subset of singular values needs full_matrices=False")
        u, s, vh = factors
        factors = u[..., start:end], s[..., start:end], vh[..., start:end, :]
    return SVDResult(*factors) if compute_uv else factors[1]


def _svd_of_hermitian(a: Value) -> tuple[Value, Value, Value]:
    w, v = factorizations.eigh(a)
    order = argsort(operators.abs(w), axis=-1, descending=True)
    w = take_along_axis(w, order, axis=-1)
    u = take_along_axis(v, order[..., None, :], axis=-1)
    # A sign of 0 would leave the rows of a singular matrix without length.
    signs = ufuncs.where(operators.less(w, 0), -1, 1)
    return u, operators.abs(w), ops.adjoint(ops.scale_columns(u, cast_like(signs, u)))


def svdvals(x: ArrayOrList, /) -> Value:
    """The singular values of matrices, in descending order."""
    return singular_values(as_inexact(x))


def qr(a: ArrayOrList, mode: str = "reduced") -> QRResult | Value:
    """The q, r with a == q @ r, orthonormal columns and an upper triangular matrix.

    With the mode "reduced" there are as many columns as the smaller dimension, with "complete" q is
    square. "r" gives r alone. "raw" gives the transpose of LAPACK's packed matrix and the factors of
    its reflectors. Derivatives exist for matrices of full rank, wide ones too; those of the further
    columns of a complete q are nan.

    >>> import functx.numpy as np
    >>> q, r = np.linalg.qr(np.array([[3.0, 1.0], [4.0, 2.0]]))
    >>> print(np.round(r, 2))
    [[-5.  -2.2]
     [ 0.   0.4]]
    """
    a = as_inexact(a)
    if mode == "raw":
        packed, taus = Geqrf()(a)
        return QRResult(shapes.swapaxes(packed, -1, -2), taus)
    if mode not in ("reduced", "full", "complete", "r"):
        raise ValueRangeError(f"qr: mode must be 'reduced', 'complete', 'r' or 'raw'; got {mode!r}")
    q, r = Qr(mode == "complete")(a)
    return r if mode == "r" else QRResult(q, r)


def pinv(
    a: ArrayOrList,
    rtol: ArrayLike | None = None,
    hermitian: bool = False,
    *,
    rcond: ArrayLike | None = None,
) -> Value:
    """The pseudo-inverse of matrices, by singular values.

    Singular values up to `rtol` (or `rcond`) times the largest count as zeros; `rtol` is by default 10
    times the larger dimension times the unit of rounding. With `hermitian`, the matrices are taken to be
    Hermitian. The derivatives are those at constant rank, of any order and at equal singular values.

    >>> import functx.numpy as np
    >>> np.round(np.linalg.pinv(np.array([[1.0], [1.0]])), 3).tolist()
    [[0.5, 0.5]]
    """
    if rtol is not None and rcond is not None:
        raise ValueRangeError("pinv: at most one of rtol and rcond can be given; got both")
    a = as_inexact(a)
    aval = aval_of(a)
    rtol = rcond if rtol is None else rtol
    if rtol is None:
        rtol = 10.0 * max(aval.shape[-2:]) * float(np.finfo(aval.dtype).eps)
    real = real_dtype(aval.dtype)
    return Pinv(hermitian)(a, shapes.broadcast_to(shapes.astype(rtol, real), aval.shape[:-2]))


def lstsq(
    a: ArrayOrList, b: ArrayOrList, rcond: ArrayLike | None = None, *, numpy_resid: bool = False
) -> tuple[Value, Value, Value, Value]:
    """The least-squares solution x of a @ x == b, the sums of squared residuals, the rank, singular values.

    `b` is a vector, or a matrix of several. Singular values up to `rcond` times the largest count as
    zeros, and x is the solution of least length. By default `rcond` is the larger dimension times the
    unit of rounding, which a negative one stands for too, without the dimension. With `numpy_resid`,
    there are no residuals for matrices without full column rank, as in NumPy; the rank is then needed
    while tracing. The derivatives are those at constant rank.

    >>> import functx.numpy as np
    >>> x, *_ = np.linalg.lstsq(np.array([[1.0], [1.0]]), np.array([1.0, 3.0]))
    >>> np.round(x, 3).tolist()
    [2.0]
    """
    a, b = promote_inexact(a, b)
    left, right = aval_of(a), aval_of(b)
    if left.ndim != 2 or right.ndim not in (1, 2) or left.shape[0] != right.shape[0]:
        raise ShapeError(
            "lstsq: a must be a matrix, and b a vector or matrix with as many rows; got "
            f"{left!r} and {right!r}"
        )
    (m, n), eps = left.shape, float(np.finfo(left.dtype).eps)
    if rcond is None:
        rcond = eps * max(m, n)
    rcond = shapes.astype(rcond, real_dtype(left.dtype))
    rcond = ops.select(ops.lt(rcond, 0), literal(eps, aval_of(rcond).dtype), rcond)
    s = singular_values(a)
    rank = reductions.sum(s > rcond * reductions.max(s, initial=0))
    columns = b if right.ndim == 2 else ops.expand_dims(b, 1)
    x = ops.matmul_highest(pinv(a, rcond), columns)
    if numpy_resid and (m <= n or int(rank) < n):
        residuals = ops.zeros_like(left.update(shape=(0,), dtype=real_dtype(left.dtype)))
    else:
        apart = ops.sub(columns, ops.matmul_highest(a, x))
        residuals = reductions.sum(ops.square(ops.abs(apart)), axis=0)
    return x if right.ndim == 2 else ops.squeeze(x, (1,)), residuals, rank, s


def matrix_power(a: ArrayOrList, n: int) -> Value:
    """The power `n` of square matrices, for an integer `n`; that of the inverse if `n` is negative."""
    a = operand(a)
    aval = aval_of(a)
    if aval.ndim < 2 or aval.shape[-1] != aval.shape[-2]:
        raise ShapeError(f"matrix_power: the operand must be square matrices; got {aval!r}")
    try:
        n = index(n)
    except TypeError:
        raise ArgumentError(f"matrix_power: n must be an integer; got {n!r}") from None
    if n == 0:
        unit = eye(aval.shape[-1], dtype=aval.dtype)
        return ops.broadcast_in_dim(unit, aval.shape, (aval.ndim - 2, aval.ndim - 1))
    if n < 0:
        a, n = inv(a), -n
    result: Any = None
    while n:
        if n & 1:
            result = a if result is None else matmul(result, a)
        n >>= 1
        if n:
            a = matmul(a, a)
    return result


def tensorinv(a: ArrayOrList, ind: int = 2) -> Value:
    """The inverse of the map of tensors that multiplies by `a` and sums over its last axes.

    The result of `tensordot(tensorinv(a), b, ind)` solves `tensordot(a, x, ...) == b`, where `b` has the
    first `ind` axes of `a`.
    """
    a = operand(a)
    shape, count = aval_of(a).shape, index(ind)
    rows, columns = shape[:count], shape[count:]
    if count <= 0 or prod(rows) != prod(columns):
        raise ShapeError(
            "tensorinv: ind must be positive, and the first ind axes as large together as the others; "
            f"got ind={count} and {aval_of(a)!r}"
        )
    inverse = inv(shapes.reshape(a, (prod(rows), prod(columns))))
    return shapes.reshape(inverse, (*columns, *rows))


def tensorsolve(a: ArrayOrList, b: ArrayOrList, axes: Sequence[int] | None = None) -> Value:
    """The tensor x with `tensordot(a, x, x.ndim) == b`; `axes` of `a` are moved to its end first."""
    a, b = operand(a), operand(b)
    if axes is not None:
        a = shapes.moveaxis(a, tuple(axes), tuple(range(-len(axes), 0)))
    shape, right = aval_of(a).shape, aval_of(b).shape
    columns = shape[len(right) :]
    if shape[: len(right)] != right or prod(columns) != prod(right):
        raise ShapeError(
            "tensorsolve: a must have the axes of b first, and others as large together; got "
            f"{aval_of(a)!r} and {aval_of(b)!r}"
        )
    matrix = shapes.reshape(a, (prod(right), prod(columns)))
    return shapes.reshape(solve(matrix, shapes.reshape(b, (-1,))), columns)


def cross(x1: ArrayOrList, x2: ArrayOrList, /, *, axis: int = -1) -> Value:
    """The cross product of vectors of three components along `axis`."""
    for x in (x1, x2):
        shape = aval_of(operand(x)).shape
        if shape[canonical_axis(axis, len(shape))] != 3:
            raise ShapeError(f"cross: vectors must have 3 components; got {aval_of(operand(x))!r}")
    return matrices.cross(x1, x2, axis=axis)


def outer(x1: ArrayOrList, x2: ArrayOrList, /) -> Value:
    """The products of the elements of two vectors, in a matrix."""
    for x in (x1, x2):
        if aval_of(operand(x)).ndim != 1:
            raise ShapeError(f"outer: operands must be vectors; got {aval_of(operand(x))!r}")
    return matrices.outer(x1, x2)


def diagonal(x: ArrayOrList, /, *, offset: int = 0) -> Value:
    """The diagonals of matrices, `offset` columns above the main one."""
    return matrices.diagonal(x, offset, -2, -1)


def trace(x: ArrayOrList, /, *, offset: int = 0, dtype: DTypeLike = None) -> Value:
    """The sums along the diagonals of matrices, `offset` columns above the main one."""
    return matrices.trace(x, offset, -2, -1, dtype)


@accept_out
def multi_dot(
    arrays: Sequence[ArrayOrList], *, precision: PrecisionLike = None, out: Out = None
) -> Value:
    """The product of several matrices, in the order with the fewest operations.

    The first and the last operand may be vectors.
    """
    arrays = promote(*arrays)
    if len(arrays) < 2:
        raise ValueRangeError(f"multi_dot: there must be at least two arrays; got {len(arrays)}")
    ndims = [aval_of(x).ndim for x in arrays]
    if any(n != 2 for n in ndims[1:-1]) or not {ndims[0], ndims[-1]} <= {1, 2}:
        raise ShapeError(
            "multi_dot: all operands must be matrices, but the first and last may be vectors; "
            "got " + " and ".join(repr(aval_of(x)) for x in arrays)
        )
    terms: list[tuple[int, ...]] = [(i, i + 1) for i in range(len(arrays))]
    result = [0, len(arrays)]
    if ndims[0] == 1:
        terms[0], result = (1,), result[1:]
    if ndims[-1] == 1:
        terms[-1], result = (len(arrays) - 1,), result[:-1]
    interleaved = [item for pair in zip(arrays, terms, strict=True) for item in pair]
    return einsum(*interleaved, result, optimize="optimal", precision=precision)


_suggest_alternatives("jax.numpy.linalg", __name__)
_explain_errors(__name__)
