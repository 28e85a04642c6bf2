"""Matrices by formula, their diagonals and triangles."""

from __future__ import annotations

from collections.abc import Callable
from operator import index
from typing import Any

import numpy as np

from functx.core.arrays import as_ndarray
from functx.core.dtypes import canonical_dtype, kind
from functx.core.errors import ShapeError
from functx.core.tracing import aval_of, current_builder
from functx.numpy.creation import FLOAT, asarray, zeros
from functx.numpy.ranges import arange, sample_count
from functx.ops.arithmetic import add
from functx.ops.comparison import eq, ge
from functx.ops.conversion import convert_element_type
from functx.ops.creation import broadcasted_iota
from functx.ops.joining import pad
from functx.ops.operands import canonical_axes, canonical_shape, literal
from functx.ops.selection import select
from functx.ops.shaping import broadcast_in_dim, expand_dims, reshape
from functx.ops.strided import AsStrided

__all__ = [
    "diag",
    "diagflat",
    "diagonal",
    "eye",
    "identity",
    "tri",
    "tril",
    "triu",
    "vander",
]


def eye(
    N: int,  # noqa: N803 - NumPy's names
    M: int | None = None,  # noqa: N803
    k: int = 0,
    dtype: Any = None,
    *,
    device: Any = None,
) -> Any:
    """A matrix of `N` rows and `M` columns (`N` if left out) with ones on diagonal `k`."""
    rows, columns = _matrix_shape("eye", N, M)
    found = canonical_dtype(FLOAT if dtype is None else dtype)
    if current_builder.get() is None:
        return as_ndarray(np.eye(rows, columns, k, dtype=found))
    return convert_element_type(_compare_indices(eq, (rows, columns), k), found)


def identity(n: int, dtype: Any = None) -> Any:
    """The square matrix of `n` rows with ones on its diagonal."""
    return eye(n, dtype=dtype)


def tri(N: int, M: int | None = None, k: int = 0, dtype: Any = None) -> Any:  # noqa: N803
    """A matrix with ones on diagonal `k` and below it."""
    rows, columns = _matrix_shape("tri", N, M)
    found = canonical_dtype(FLOAT if dtype is None else dtype)
    if current_builder.get() is None:
        return as_ndarray(np.tri(rows, columns, k, dtype=found))
    return convert_element_type(_compare_indices(ge, (rows, columns), k), found)


def _matrix_shape(name: str, rows: Any, columns: Any) -> tuple[int, int]:
    rows, columns = canonical_shape((rows, rows if columns is None else columns), f"{name}: shape")
    return rows, columns


def _compare_indices(compare: Callable[..., Any], shape: tuple[int, ...], k: Any) -> Any:
    """`compare(row + k, column)` at each place of matrices."""
    row = broadcasted_iota(np.int32, shape, len(shape) - 2)
    column = broadcasted_iota(np.int32, shape, len(shape) - 1)
    return compare(row if type(k) is int and k == 0 else add(row, k), column)


def tril(m: Any, k: int = 0) -> Any:
    """`m` with zeros above diagonal `k` of its last two dimensions."""
    return _triangle("tril", m, k, lower=True)


def triu(m: Any, k: int = 0) -> Any:
    """`m` with zeros below diagonal `k` of its last two dimensions."""
    return _triangle("triu", m, k, lower=False)


def _triangle(name: str, m: Any, k: Any, lower: bool) -> Any:
    m = asarray(m)
    aval = aval_of(m)
    if aval.ndim < 2:
        raise ShapeError(f"{name}: the array must have at least two dimensions; got {aval!r}")
    inside = _compare_indices(ge, aval.shape[-2:], k if lower else k - 1)
    inside = broadcast_in_dim(inside, aval.shape, (aval.ndim - 2, aval.ndim - 1))
    zero = literal(0, aval.dtype)
    return select(inside, m, zero) if lower else select(inside, zero, m)


def diagonal(a: Any, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Any:
    """The elements on a diagonal of two dimensions, along a new last one in their place.

    A view that is read-only, as in NumPy.
    """
    a = asarray(a)
    aval = aval_of(a)
    if aval.ndim < 2:
        raise ShapeError(f"diagonal: the array must have at least two dimensions; got {aval!r}")
    rows, columns = canonical_axes((axis1, axis2), aval.ndim, "diagonal: axis1 and axis2")
    n, m, offset = aval.shape[rows], aval.shape[columns], index(offset)
    lead = [d for d in range(aval.ndim) if d not in (rows, columns)]
    count = max(0, min(n + min(offset, 0), m - max(offset, 0)))
    # Without elements it may begin anywhere.
    start = {rows: max(-offset, 0), columns: max(offset, 0)} if count else {}
    steps = [tuple([int(d == along) for d in range(aval.ndim)]) for along in lead]
    steps.append(tuple([int(d in (rows, columns)) for d in range(aval.ndim)]))
    shape = (*[aval.shape[d] for d in lead], count)
    places = tuple([start.get(d, 0) for d in range(aval.ndim)])
    return AsStrided(shape, places, tuple(steps), writable=False)(a)


def diag(v: Any, k: int = 0) -> Any:
    """The matrix with the vector `v` on its diagonal `k`; of a matrix, that diagonal."""
    v = asarray(v)
    aval = aval_of(v)
    if aval.ndim == 2:
        return diagonal(v, k)
    if aval.ndim != 1:
        raise ShapeError(f"diag: the array must have one or two dimensions; got {aval!r}")
    length, k = aval.shape[0], index(k)
    n = length + (k if k >= 0 else -k)
    if length == 0:
        return zeros((n, n), aval.dtype)
    # Row by row, neighbours on a diagonal lie n + 1 apart.
    before = k if k >= 0 else -k * n
    after = n * n - before - length - (length - 1) * n
    flat = pad(v, literal(0, aval.dtype), ((before, after, n),))
    return reshape(flat, (n, n))


def diagflat(v: Any, k: int = 0) -> Any:
    """The matrix with the elements of `v` on its diagonal `k`."""
    v = asarray(v)
    return diag(reshape(v, (aval_of(v).size,)), k)


def vander(x: Any, N: int | None = None, increasing: bool = False) -> Any:  # noqa: N803
    """The matrix whose columns are the powers of `x`, the highest first unless `increasing`."""
    from functx.numpy.operators import power

    x = asarray(x)
    aval = aval_of(x)
    if aval.ndim != 1:
        raise ShapeError(f"vander: the array must have one dimension; got {aval!r}")
    count = aval.shape[0] if N is None else sample_count("vander", N)
    found = aval.dtype if kind(aval.dtype) in "iu" else np.int32
    exponents = arange(count, dtype=found) if increasing else arange(count - 1, -1, -1, found)
    return power(expand_dims(x, 1), exponents)
