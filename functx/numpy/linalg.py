"""Linear algebra, by NumPy's names and arguments.

Matrices are the last two dimensions; the dimensions before them are those of a batch.
"""

from __future__ import annotations

from math import inf
from typing import Any, NamedTuple

import numpy as np

from functx import ops
from functx.core.errors import ShapeError, ValueRangeError
from functx.core.tracer import aval_of
from functx.core.types import real_dtype
from functx.numpy import floating_point, operators, reductions, shapes
from functx.numpy.matrices import eye, matrix_power, multi_dot
from functx.numpy.promotion import broadcast_shapes, promote_inexact
from functx.ops import factorizations, linear_algebra, statistics
from functx.ops.operands import canonical_axes

__all__ = [
    "cholesky",
    "det",
    "eigh",
    "eigvalsh",
    "inv",
    "matrix_power",
    "multi_dot",
    "norm",
    "slogdet",
    "solve",
    "svd",
    "svdvals",
    "vector_norm",
]


class EighResult(NamedTuple):
    """Eigenvalues in ascending order, and the eigenvectors as columns."""

    eigenvalues: Any
    eigenvectors: Any


class SVDResult(NamedTuple):
    """Orthonormal columns, singular values in descending order, orthonormal rows."""

    U: Any
    S: Any
    Vh: Any


class SlogdetResult(NamedTuple):
    """The sign of a determinant, and the logarithm of its absolute value."""

    sign: Any
    logabsdet: Any


def solve(a: Any, b: Any) -> Any:
    """The x with a @ x == b, for square matrices `a`.

    `b` is one vector if it has one dimension, else matrices. Batches are broadcast.
    """
    a, b = promote_inexact(a, b)
    shape, right = aval_of(a).shape, aval_of(b).shape
    vector = len(right) == 1
    if vector:
        b, right = ops.expand_dims(b, 1), (*right, 1)
    if len(shape) < 2 or len(right) < 2 or shape[-1] != shape[-2] or right[-2] != shape[-1]:
        raise ShapeError(
            "solve: a must hold square matrices, and b as many rows; "
            f"got {aval_of(a)!r} and {aval_of(b)!r}"
        )
    if shape[:-2] != right[:-2]:
        batch = broadcast_shapes(shape[:-2], right[:-2])
        a = shapes.broadcast_to(a, (*batch, *shape[-2:]))
        b = shapes.broadcast_to(b, (*batch, *right[-2:]))
    x = linear_algebra.solve(a, b)
    return ops.squeeze(x, (aval_of(x).ndim - 1,)) if vector else x


def inv(a: Any) -> Any:
    """The inverse of square matrices.

    >>> import functx.numpy as np
    >>> np.linalg.inv(np.array([[2.0, 0.0], [0.0, 4.0]])).tolist()
    [[0.5, 0.0], [0.0, 0.25]]
    """
    (a,) = promote_inexact(a)
    aval = aval_of(a)
    if aval.ndim < 2 or aval.shape[-1] != aval.shape[-2]:
        raise ShapeError(f"inv: a must hold square matrices; got {aval!r}")
    ones = shapes.broadcast_to(eye(aval.shape[-1], dtype=aval.dtype), aval.shape)
    return linear_algebra.solve(a, ones)


def det(a: Any) -> Any:
    """The determinant of square matrices.

    Its derivative is the matrix of cofactors, right for singular matrices too.

    >>> import functx, functx.numpy as np
    >>> functx.numpy.round(functx.grad(np.linalg.det)(np.array([[1.0, 2.0], [2.0, 4.0]])), 3).tolist()
    [[4.0, -2.0], [-2.0, 1.0]]
    """
    return linear_algebra.det(*promote_inexact(a))


def slogdet(a: Any) -> SlogdetResult:
    """The sign of the determinant of square matrices, and the logarithm of its absolute value."""
    return SlogdetResult(*linear_algebra.slogdet(*promote_inexact(a)))


def cholesky(a: Any, *, upper: bool = False) -> Any:
    """The lower triangular l with l @ l.H == a, or with `upper` its adjoint.

    Of `a` the Hermitian part counts. Where it is not positive definite, the result is nan.
    """
    factor = factorizations.cholesky(*promote_inexact(a))
    return floating_point.conj(shapes.swapaxes(factor, -1, -2)) if upper else factor


def eigh(a: Any, UPLO: str | None = None) -> EighResult:  # noqa: N803 - NumPy's name
    """The eigenvalues, ascending, and eigenvectors of Hermitian matrices.

    The Hermitian part of `a` counts, whatever `UPLO` says. Where eigenvalues are equal, the
    derivatives of their eigenvectors are nan; those of functions of the matrix, such as
    `(v * f(w)) @ v.T`, are right.
    """
    _check_triangle(UPLO)
    return EighResult(*factorizations.eigh(*promote_inexact(a)))


def eigvalsh(a: Any, UPLO: str | None = None) -> Any:  # noqa: N803
    """The eigenvalues, ascending, of Hermitian matrices; see `eigh`."""
    _check_triangle(UPLO)
    return factorizations.eigh(*promote_inexact(a))[0]


def _check_triangle(name: Any) -> None:
    if name not in (None, "L", "U"):
        raise ValueRangeError(f"eigh: UPLO must be 'L' or 'U'; got {name!r}")


def svd(a: Any, full_matrices: bool = True, compute_uv: bool = True) -> Any:
    """The u, s, vh with a == (u * s) @ vh, or with `compute_uv=False` the singular values s.

    These descend. Without `full_matrices`, u has as many columns and vh as many rows as
    there are singular values; with it they are square. Columns and rows that belong to no
    singular value have no derivative: it is nan.
    """
    (a,) = promote_inexact(a)
    shape = aval_of(a).shape
    square = shape[-2:-1] == shape[-1:]
    found = factorizations.svd(a, full=bool(full_matrices and compute_uv and not square))
    return SVDResult(*found) if compute_uv else found[1]


def svdvals(a: Any) -> Any:
    """The singular values of matrices, in descending order."""
    return factorizations.svd(*promote_inexact(a))[1]


def norm(x: Any, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Any:
    """The norm of the vectors along an axis, or of the matrices along two.

    Without `ord` the root of the sum of squares, over everything without `axis`. For
    vectors `ord` is a number, `inf` or `-inf`; for matrices "fro", "nuc", 1, -1, 2, -2, `inf` or `-inf`.
    The derivative of the root at zero is zero, the least of its subgradients.

    Raises ValueRangeError for an order that the vectors or matrices do not have.

    >>> import functx, functx.numpy as np
    >>> functx.grad(np.linalg.norm)(np.array([3.0, 4.0])).tolist() == [0.6000000238418579, 0.800000011920929]
    True
    """
    (x,) = promote_inexact(x)
    ndim = aval_of(x).ndim
    whole = axis is None and (ord is None or ndim < 3)
    axes = canonical_axes(axis, ndim) if not (whole and ord is None) else tuple(range(ndim))
    if ord is None or (len(axes) == 2 and ord == "fro"):
        out = statistics.vector_norm(x, 2.0, axes)
    elif len(axes) == 1:
        out = _vector_norm(x, ord, axes)
    elif len(axes) == 2:
        out = _matrix_norm(x, ord, axes)
    else:
        raise ValueRangeError(f"norm: axis must name one or two axes; got {axes} with ord={ord!r}")
    return ops.expand_dims(out, axes) if keepdims and axes else out


def vector_norm(x: Any, /, *, axis: Any = None, keepdims: bool = False, ord: Any = 2) -> Any:
    """The norm, by default the root of the sum of squares, of the vectors along `axis`, one or several.

    Without `axis` all elements are one vector. `ord` is a number, `inf` or `-inf`.
    """
    (x,) = promote_inexact(x)
    axes = canonical_axes(axis, aval_of(x).ndim)
    out = _vector_norm(x, ord, axes)
    return ops.expand_dims(out, axes) if keepdims and axes else out


def _vector_norm(x: Any, ord: Any, axes: tuple[int, ...]) -> Any:
    if isinstance(ord, str):
        raise ValueRangeError(f"norm: ord of a vector must be a number; got {ord!r}")
    aval = aval_of(x)
    if not isinstance(ord, (int, float, np.number)):
        return reductions.sum(operators.abs(x) ** ord, axis=axes) ** (1.0 / ord)
    if ord == 0:
        return reductions.sum(ops.ne(x, 0), axis=axes, dtype=real_dtype(aval.dtype))
    if ord in (inf, -inf) and 0 in [aval.shape[d] for d in axes]:
        raise ValueRangeError(f"norm: with ord={ord} there must be elements; got {aval!r}")
    return statistics.vector_norm(x, float(ord), axes)


def _matrix_norm(x: Any, ord: Any, axes: tuple[int, ...]) -> Any:
    rows, columns = axes
    if ord in (2, -2, "nuc"):
        values = svdvals(shapes.moveaxis(x, axes, (-2, -1)))
        # Of the absolute values, the derivative of a zero is 0.
        combined: Any = {2: reductions.max, -2: reductions.min, "nuc": reductions.sum}[ord]
        return combined(operators.abs(values), axis=-1)
    if ord not in (1, -1, inf, -inf):
        raise ValueRangeError(
            f"norm: ord of a matrix must be 'fro', 'nuc', 1, -1, 2, -2, inf or -inf; got {ord!r}"
        )
    summed, chosen = (rows, columns) if ord in (1, -1) else (columns, rows)
    sums = reductions.sum(operators.abs(x), axis=summed)
    return (reductions.max if ord > 0 else reductions.min)(sums, axis=chosen - (chosen > summed))
