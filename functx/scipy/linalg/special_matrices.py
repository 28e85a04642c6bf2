"""Matrices of a given structure: of vectors, and of their size alone.

Vectors are the last dimension of an array; the dimensions before it are a batch.
"""

from __future__ import annotations

from math import comb
from operator import index

import numpy as np

from functx import numpy as fnp
from functx import ops
from functx.core.errors import ShapeError, ValueRangeError
from functx.core.tracer import aval_of
from functx.core.types import canonical_dtype, kind
from functx.core.typing import ArrayOrList, DTypeLike, NumPyArray, Value
from functx.numpy.promotion import as_inexact, broadcast_shapes, operand, promote
from functx.ops.operands import canonical_shape

__all__ = [
    "block_diag",
    "circulant",
    "companion",
    "convolution_matrix",
    "dft",
    "fiedler",
    "fiedler_companion",
    "hadamard",
    "hankel",
    "helmert",
    "hilbert",
    "invhilbert",
    "invpascal",
    "leslie",
    "pascal",
    "toeplitz",
]


def block_diag(*arrs: ArrayOrList) -> Value:
    """The matrix with the matrices `arrs` along its diagonal; vectors are matrices of one row."""
    if not arrs:
        return fnp.zeros((1, 0))
    blocks = [fnp.atleast_2d(x) for x in promote(*arrs)]
    for x in blocks:
        if aval_of(x).ndim > 2:
            raise ShapeError(f"block_diag: operands must be matrices; got {aval_of(x)!r}")
    widths = [aval_of(x).shape[1] for x in blocks]
    rows = []
    for k, x in enumerate(blocks):
        padding = (sum(widths[:k]), sum(widths[k + 1 :]))
        rows.append(fnp.pad(x, ((0, 0), padding)))
    return fnp.concatenate(rows)


def _vector(name: str, x: ArrayOrList, least: int = 0) -> Value:
    """`x` with at least one dimension, if the last has at least `least` elements."""
    x = operand(x)
    x = x if aval_of(x).ndim else fnp.reshape(x, (1,))
    if aval_of(x).shape[-1] < least:
        raise ShapeError(
            f"{name}: there must be at least {least} elements along the last axis; got {aval_of(x)!r}"
        )
    return x


def _together(*vectors: Value) -> tuple[Value, ...]:
    """The vectors in one dtype, with one batch."""
    vectors = promote(*vectors)
    batch = broadcast_shapes(*[aval_of(x).shape[:-1] for x in vectors])
    return tuple([fnp.broadcast_to(x, (*batch, aval_of(x).shape[-1])) for x in vectors])


def _grid(rows: int, columns: int) -> tuple[NumPyArray, NumPyArray]:
    """The indices of the rows and of the columns of a matrix, to broadcast."""
    return np.arange(rows)[:, None], np.arange(columns)[None, :]


def _arranged(values: Value, positions: NumPyArray) -> Value:
    """The matrix of the elements of vectors at `positions`."""
    if positions.size:
        return values[..., positions]
    return fnp.zeros((*aval_of(values).shape[:-1], *positions.shape), aval_of(values).dtype)


def toeplitz(c: ArrayOrList, r: ArrayOrList | None = None) -> Value:
    """The matrices with constant diagonals, with `c` as first column and `r` as first row.

    Without `r`, it is the conjugate of `c`. The first element of `r` is not used.

    >>> from functx.scipy import linalg
    >>> linalg.toeplitz([1, 2, 3]).tolist()
    [[1, 2, 3], [2, 1, 2], [3, 2, 1]]
    """
    c = _vector("toeplitz", c)
    c, r = _together(c, fnp.conj(c) if r is None else _vector("toeplitz", r))
    rows, columns = aval_of(c).shape[-1], aval_of(r).shape[-1]
    i, j = _grid(rows, columns)
    return _arranged(fnp.concatenate([c[..., ::-1], r[..., 1:]], axis=-1), rows - 1 - i + j)


def hankel(c: ArrayOrList, r: ArrayOrList | None = None) -> Value:
    """The matrices with constant antidiagonals, with `c` as first column and `r` as last row.

    Without `r`, it is zero. The first element of `r` is not used.
    """
    c = operand(c)
    r = fnp.zeros_like(c) if r is None else operand(r)
    if not (aval_of(c).ndim and aval_of(r).ndim):
        raise ShapeError(f"hankel: c and r must be vectors; got {aval_of(c)!r} and {aval_of(r)!r}")
    c, r = _together(c, r)
    i, j = _grid(aval_of(c).shape[-1], aval_of(r).shape[-1])
    return _arranged(fnp.concatenate([c, r[..., 1:]], axis=-1), i + j)


def circulant(c: ArrayOrList) -> Value:
    """The matrices whose columns are `c`, moved down by one from each to the next, around the end."""
    c = _vector("circulant", c)
    n = aval_of(c).shape[-1]
    i, j = _grid(n, n)
    return _arranged(c, (i - j) % max(n, 1))


def convolution_matrix(a: ArrayOrList, n: int, mode: str = "full") -> Value:
    """The matrices m with m @ v == numpy.convolve(a, v, mode) for vectors v of `n` elements."""
    n = index(n)
    if n <= 0:
        raise ValueRangeError(f"convolution_matrix: n must be positive; got {n}")
    if mode not in ("full", "valid", "same"):
        raise ValueRangeError(
            f"convolution_matrix: mode must be 'full', 'valid' or 'same'; got {mode!r}"
        )
    a = operand(a)
    if not aval_of(a).ndim or not aval_of(a).shape[-1]:
        raise ShapeError(f"convolution_matrix: a must have elements; got {aval_of(a)!r}")
    m = aval_of(a).shape[-1]
    trimmed = {"full": 0, "same": min(m, n) - 1, "valid": 2 * (min(m, n) - 1)}[mode]
    i, j = _grid(m + n - 1 - trimmed, n)
    lag = i + trimmed // 2 - j
    padded = fnp.concatenate([a, fnp.zeros_like(a[..., :1])], axis=-1)
    return _arranged(padded, np.where((lag >= 0) & (lag < m), lag, m))


def leslie(f: ArrayOrList, s: ArrayOrList) -> Value:
    """The matrices with `f` as first row and `s` below the diagonal: fecundities and survivals."""
    f, s = _vector("leslie", f, 2), _vector("leslie", s)
    if aval_of(s).shape[-1] != aval_of(f).shape[-1] - 1:
        raise ShapeError(
            f"leslie: s must have one element less than f; got {aval_of(f)!r} and {aval_of(s)!r}"
        )
    f, s = _together(f, s)
    below = ops.construct_diagonal(s)
    below = fnp.concatenate([below, fnp.zeros_like(below[..., :1])], axis=-1)
    return fnp.concatenate([f[..., None, :], below], axis=-2)


def companion(a: ArrayOrList) -> Value:
    """The matrices whose eigenvalues are the roots of the polynomials with coefficients `a`."""
    a = _vector("companion", as_inexact(a), 2)
    row = -a[..., 1:] / a[..., :1]
    m = aval_of(row).shape[-1]
    shifts = fnp.eye(m - 1, m, dtype=aval_of(row).dtype)
    shifts = fnp.broadcast_to(shifts, (*aval_of(row).shape[:-1], m - 1, m))
    return fnp.concatenate([row[..., None, :], shifts], axis=-2)


def fiedler(a: ArrayOrList) -> Value:
    """The matrices of the distances of the elements of `a`."""
    a = _vector("fiedler", a)
    return fnp.abs(a[..., None] - a[..., None, :])


def fiedler_companion(a: ArrayOrList) -> Value:
    """The matrices of five diagonals whose eigenvalues are the roots of the polynomials `a`."""
    a = _vector("fiedler_companion", as_inexact(a), 1)
    n = aval_of(a).shape[-1] - 1
    if n == 0:
        return fnp.zeros((*aval_of(a).shape[:-1], 0, 0), aval_of(a).dtype)
    ones = fnp.ones_like(a[..., :1])
    values = fnp.concatenate([-a / a[..., :1], ones, 0 * ones], axis=-1)
    one, zero = n + 1, n + 2
    positions = np.full((n, n), zero)
    positions[0, 0] = 1
    for i in range(n):
        near, far = (1, 2) if i % 2 == 0 else (None, -2)
        if near is not None and i + 1 < n:
            positions[i, i + 1] = i + 2
        if near is not None and i >= 2:
            positions[i, i - 1] = i + 1
        if 0 <= i + far < n and (far > 0 or i >= 3):
            positions[i, i + far] = one
    if n > 1:
        positions[1, 0] = one
    return _arranged(values, positions)


def _float_matrix(elements: object, dtype: DTypeLike = float) -> Value:
    return fnp.asarray(np.asarray(elements, dtype=canonical_dtype(np.dtype(dtype))))


def hilbert(n: int) -> Value:
    """The matrix with the elements 1 / (i + j + 1)."""
    i, j = _grid(n, n)
    return _float_matrix(1.0 / (i + j + 1))


def invhilbert(n: int) -> Value:
    """The inverse of `hilbert(n)`, whose elements are integers."""
    (n,) = canonical_shape(n, "invhilbert: n")
    elements = [
        [
            (-1) ** (i + j)
            * (i + j + 1)
            * comb(n + i, n - j - 1)
            * comb(n + j, n - i - 1)
            * comb(i + j, i) ** 2
            for j in range(n)
        ]
        for i in range(n)
    ]
    return _float_matrix(np.reshape(np.array(elements, dtype=float), (n, n)))


def pascal(n: int, kind: str | None = None) -> Value:
    """The matrix of binomial coefficients, as a symmetric, or "lower" or "upper" triangular one."""
    return _float_matrix(_pascal("pascal", n, kind, signed=False), np.float32)


def invpascal(n: int, kind: str | None = None) -> Value:
    """The inverse of `pascal(n, kind)`."""
    return _float_matrix(_pascal("invpascal", n, kind, signed=True))


def _pascal(name: str, n: int, kind: str | None, signed: bool) -> NumPyArray:
    if kind not in (None, "symmetric", "lower", "upper"):
        raise ValueRangeError(f"{name}: kind must be 'symmetric', 'lower' or 'upper'; got {kind!r}")
    (n,) = canonical_shape(n, f"{name}: n")
    elements = [[comb(i, j) * (-1) ** (signed * (i + j)) for j in range(n)] for i in range(n)]
    lower = np.reshape(np.array(elements, dtype=object), (n, n))
    if kind == "lower":
        return lower
    return lower.T if kind == "upper" else lower.T @ lower if signed else lower @ lower.T


def helmert(n: int, full: bool = False) -> Value:
    """The rows of an orthogonal matrix that are orthogonal to the ones; with `full` the first one too."""
    if n < 1:
        raise ValueRangeError(f"helmert: n must be positive; got {n}")
    i, j = _grid(n, n)
    scale = np.sqrt(np.maximum(i * (i + 1.0), 1))
    rows = np.where(j < i, 1 / scale, np.where(j == i, -i / scale, 0))
    rows[0] = 1 / np.sqrt(n)
    return _float_matrix(rows if full else rows[1:])


def hadamard(n: int, dtype: DTypeLike = int) -> Value:
    """The matrix of `n` orthogonal rows of elements 1 and -1, for powers of two."""
    n = index(n)
    if n < 1 or n & (n - 1):
        raise ValueRangeError(f"hadamard: n must be a power of 2; got {n}")
    h = np.ones((1, 1), int)
    while len(h) < n:
        h = np.block([[h, h], [h, -h]])
    return _float_matrix(h, dtype)


def dft(n: int, scale: str | None = None, *, dtype: DTypeLike | None = None) -> Value:
    """The matrix of the discrete Fourier transform, over the root of `n` or `n` as `scale` says.

    `scale` is None, "sqrtn" or "n".
    """
    if scale not in (None, "sqrtn", "n"):
        raise ValueRangeError(f"dft: scale must be None, 'sqrtn' or 'n'; got {scale!r}")
    dtype = canonical_dtype(np.dtype(complex if dtype is None else dtype))
    if kind(dtype) != "c":
        raise ValueRangeError(f"dft: dtype must be complex; got {dtype}")
    i, j = _grid(n, n)
    divisor = {None: 1.0, "sqrtn": np.sqrt(n), "n": n}[scale]
    return _float_matrix(np.exp(-2j * np.pi * (i * j % max(n, 1)) / max(n, 1)) / divisor, dtype)
