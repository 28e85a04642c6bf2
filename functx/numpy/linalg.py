"""Linear algebra with NumPy's names and signatures.

Matrices are the last two dimensions of an array; the dimensions before them are batch dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from operator import index
from typing import Any, NamedTuple

import numpy as np

from functx import ops
from functx.core.errors import ArgumentError, ShapeError, ValueRangeError
from functx.core.missing_names import suggest_alternatives as _suggest_alternatives
from functx.core.pytorch_names import explain_arguments
from functx.core.tracer import aval_of
from functx.core.types import real_dtype
from functx.core.typing import ArrayLike, ArrayOrList, Axes, Out, Value
from functx.numpy import floating_point, operators, reductions, shapes
from functx.numpy.matrices import eye
from functx.numpy.mutation import accept_out
from functx.numpy.promotion import as_inexact, broadcast_shapes, operand, promote, promote_inexact
from functx.numpy.tensor_contractions import einsum, matmul
from functx.ops import factorizations, linear_algebra, statistics
from functx.ops.contraction import PrecisionLike
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

    eigenvalues: Value
    eigenvectors: Value


class SVDResult(NamedTuple):
    """Orthonormal columns, singular values in descending order, orthonormal rows."""

    U: Value
    S: Value
    Vh: Value


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
    return linear_algebra.solve(a, ones)


def det(a: ArrayOrList) -> Value:
    """The determinant of square matrices.

    Its derivative is the matrix of cofactors, for singular matrices too.

    >>> import functx, functx.numpy as np
    >>> functx.numpy.round(functx.grad(np.linalg.det)(np.array([[1.0, 2.0], [2.0, 4.0]])), 3).tolist()
    [[4.0, -2.0], [-2.0, 1.0]]
    """
    return linear_algebra.det(as_inexact(a))


def slogdet(a: ArrayOrList) -> SlogdetResult:
    """The sign of the determinant of square matrices, and the logarithm of its absolute value."""
    return SlogdetResult(*linear_algebra.slogdet(as_inexact(a)))


def cholesky(a: ArrayOrList, *, upper: bool = False) -> Value:
    """The lower triangular l with l @ l.H == a, or with `upper` its adjoint.

    Only the Hermitian part of `a` is used. If it is not positive definite, the result is nan.
    """
    factor = factorizations.cholesky(as_inexact(a))
    return floating_point.conj(shapes.swapaxes(factor, -1, -2)) if upper else factor


def eigh(a: ArrayOrList, UPLO: str | None = None) -> EighResult:  # noqa: N803 - NumPy's name
    """The eigenvalues, ascending, and eigenvectors of Hermitian matrices.

    The Hermitian part of `a` is used, whatever `UPLO` says. Derivatives of the eigenvectors of
    equal eigenvalues are nan; derivatives of functions of the matrix, such as
    `(v * f(w)) @ v.T`, are correct.
    """
    _check_triangle(UPLO)
    return EighResult(*factorizations.eigh(as_inexact(a)))


def eigvalsh(a: ArrayOrList, UPLO: str | None = None) -> Value:  # noqa: N803
    """The eigenvalues, ascending, of Hermitian matrices; see `eigh`."""
    _check_triangle(UPLO)
    return factorizations.eigh(as_inexact(a))[0]


def _check_triangle(name: str | None) -> None:
    if name not in (None, "L", "U"):
        raise ValueRangeError(f"eigh: UPLO must be 'L' or 'U'; got {name!r}")


def svd(a: ArrayOrList, full_matrices: bool = True, compute_uv: bool = True) -> SVDResult | Value:
    """The u, s, vh with a == (u * s) @ vh, or with `compute_uv=False` the singular values s.

    Singular values are in descending order. Without `full_matrices`, u has as many columns and
    vh as many rows as there are singular values; with it they are square. The derivatives of
    columns and rows without a singular value are nan.
    """
    a = as_inexact(a)
    shape = aval_of(a).shape
    square = shape[-2:-1] == shape[-1:]
    factors = factorizations.svd(a, full=bool(full_matrices and compute_uv and not square))
    return SVDResult(*factors) if compute_uv else factors[1]


def svdvals(a: ArrayOrList) -> Value:
    """The singular values of matrices, in descending order."""
    return factorizations.svd(as_inexact(a))[1]


@explain_arguments
def norm(
    x: ArrayOrList, ord: ArrayLike | str | None = None, axis: Axes = None, keepdims: bool = False
) -> Value:
    """The norm of the vectors along an axis, or of the matrices along two.

    With `ord=None` it is the root of the sum of squares, of all elements if `axis` is None. For
    vectors `ord` is a number, `inf` or `-inf`; for matrices "fro", "nuc", 1, -1, 2, -2, `inf` or
    `-inf`. The derivative of the root at zero is zero, the subgradient of least norm.

    Raises ValueRangeError for other orders.

    >>> import functx, functx.numpy as np
    >>> functx.grad(np.linalg.norm)(np.array([3.0, 4.0])).tolist() == [0.6000000238418579, 0.800000011920929]
    True
    """
    x = as_inexact(x)
    ndim = aval_of(x).ndim
    all_axes = axis is None and (ord is None or ndim < 3)
    axes = canonical_axes(axis, ndim) if not (all_axes and ord is None) else tuple(range(ndim))
    if ord is None or (len(axes) == 2 and ord == "fro"):
        out = statistics.vector_norm(x, 2.0, axes)
    elif len(axes) == 1:
        out = _vector_norm(x, ord, axes)
    elif len(axes) == 2:
        out = _matrix_norm(x, ord, axes)
    else:
        raise ValueRangeError(f"norm: axis must name one or two axes; got {axes} with ord={ord!r}")
    return ops.expand_dims(out, axes) if keepdims and axes else out


def vector_norm(
    x: ArrayOrList, /, *, axis: Axes = None, keepdims: bool = False, ord: ArrayLike = 2
) -> Value:
    """The norm, by default the root of the sum of squares, of the vectors along `axis`, one or several.

    Without `axis` all elements are one vector. `ord` is a number, `inf` or `-inf`.
    """
    x = as_inexact(x)
    axes = canonical_axes(axis, aval_of(x).ndim)
    out = _vector_norm(x, ord, axes)
    return ops.expand_dims(out, axes) if keepdims and axes else out


def _vector_norm(x: Value, ord: Any, axes: tuple[int, ...]) -> Value:
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


def _matrix_norm(x: Value, ord: Any, axes: tuple[int, ...]) -> Value:
    rows, columns = axes
    if ord in (2, -2, "nuc"):
        values = svdvals(shapes.moveaxis(x, axes, (-2, -1)))
        # The derivative of the absolute value at 0 is 0.
        reduction: Any = {2: reductions.max, -2: reductions.min, "nuc": reductions.sum}[ord]
        return reduction(operators.abs(values), axis=-1)
    if ord not in (1, -1, inf, -inf):
        raise ValueRangeError(
            f"norm: ord of a matrix must be 'fro', 'nuc', 1, -1, 2, -2, inf or -inf; got {ord!r}"
        )
    summed, remaining = (rows, columns) if ord in (1, -1) else (columns, rows)
    sums = reductions.sum(operators.abs(x), axis=summed)
    return (reductions.max if ord > 0 else reductions.min)(
        sums, axis=remaining - (remaining > summed)
    )


def matrix_power(a: ArrayOrList, n: int) -> Value:
    """The power `n` of square matrices, for an integer `n` that is not negative."""
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
        raise ValueRangeError(
            f"matrix_power: n must not be negative; got {n}", fix="Invert the matrices first."
        )
    result: Any = None
    while n:
        if n & 1:
            result = a if result is None else matmul(result, a)
        n >>= 1
        if n:
            a = matmul(a, a)
    return result


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
