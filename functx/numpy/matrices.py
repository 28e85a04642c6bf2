"""Matrices: identity, triangles, diagonals, Kronecker, outer and cross products."""

from __future__ import annotations

from collections.abc import Callable
from operator import index

import numpy as np

from functx import ops
from functx.core.errors import ShapeError
from functx.core.tracer import as_ndarray, aval_of, current_builder
from functx.core.types import canonical_dtype, kind
from functx.core.typing import ArrayLike, ArrayOrList, DTypeLike, Out, Value
from functx.numpy.array_creation import FLOAT, INT, arange, asarray, sample_count, zeros
from functx.numpy.devices import on_device
from functx.numpy.eager_programs import as_one_program
from functx.numpy.mutation import accept_out
from functx.numpy.promotion import broadcast, operand, promote
from functx.numpy.reductions import sum_dtype
from functx.numpy.shapes import ensure_array
from functx.numpy.tensor_contractions import static_diagonal
from functx.ops.operands import canonical_axes, canonical_axis, canonical_shape, literal
from functx.ops.views import AsStrided

__all__ = [
    "cross",
    "diag",
    "diagflat",
    "diagonal",
    "eye",
    "identity",
    "kron",
    "outer",
    "trace",
    "tri",
    "tril",
    "triu",
    "vander",
]


def eye(
    N: int,  # noqa: N803 - NumPy's names
    M: int | None = None,  # noqa: N803
    k: int = 0,
    dtype: DTypeLike = None,
    *,
    device: object = None,
) -> Value:
    """A matrix of `N` rows and `M` columns, by default `N`, with ones on diagonal `k`."""
    rows, columns = _matrix_shape("eye", N, M)
    dtype = canonical_dtype(FLOAT if dtype is None else dtype)
    if current_builder.get() is None:
        return on_device(as_ndarray(np.eye(rows, columns, k, dtype=dtype)), device)
    ones = ops.convert_element_type(_compare_indices(ops.eq, (rows, columns), k), dtype)
    return on_device(ones, device)


def identity(n: int, dtype: DTypeLike = None) -> Value:
    """The square matrix of `n` rows with ones on its diagonal."""
    return eye(n, dtype=dtype)


def tri(N: int, M: int | None = None, k: int = 0, dtype: DTypeLike = None) -> Value:  # noqa: N803
    """A matrix with ones on diagonal `k` and below it."""
    rows, columns = _matrix_shape("tri", N, M)
    dtype = canonical_dtype(FLOAT if dtype is None else dtype)
    if current_builder.get() is None:
        return as_ndarray(np.tri(rows, columns, k, dtype=dtype))
    return ops.convert_element_type(_compare_indices(ops.ge, (rows, columns), k), dtype)


def _matrix_shape(name: str, rows: int, columns: int | None) -> tuple[int, int]:
    rows, columns = canonical_shape((rows, rows if columns is None else columns), f"{name}: shape")
    return rows, columns


def _compare_indices(compare: Callable[..., Value], shape: tuple[int, ...], k: ArrayLike) -> Value:
    """`compare(row + k, column)` for the row and column indices of the last two dimensions."""
    row = ops.broadcasted_iota(np.int32, shape, len(shape) - 2)
    column = ops.broadcasted_iota(np.int32, shape, len(shape) - 1)
    return compare(row if type(k) is int and k == 0 else ops.add(row, k), column)


@as_one_program
def tril(m: ArrayOrList, k: int = 0) -> Value:
    """`m` with zeros above diagonal `k` of its last two dimensions."""
    return _triangle("tril", m, k, lower=True)


@as_one_program
def triu(m: ArrayOrList, k: int = 0) -> Value:
    """`m` with zeros below diagonal `k` of its last two dimensions."""
    return _triangle("triu", m, k, lower=False)


def _triangle(name: str, m: ArrayOrList, k: int, lower: bool) -> Value:
    m = asarray(m)
    aval = aval_of(m)
    if aval.ndim < 2:
        raise ShapeError(f"{name}: the array must have at least two dimensions; got {aval!r}")
    inside = _compare_indices(ops.ge, aval.shape[-2:], k if lower else k - 1)
    inside = ops.broadcast_in_dim(inside, aval.shape, (aval.ndim - 2, aval.ndim - 1))
    zero = literal(0, aval.dtype)
    return ops.select(inside, m, zero) if lower else ops.select(inside, zero, m)


def diagonal(a: ArrayOrList, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Value:
    """The diagonal of two dimensions, as a new last dimension, which replaces them.

    The result is a read-only view, as in NumPy.
    """
    a = ensure_array(a)
    aval = aval_of(a)
    if aval.ndim < 2:
        raise ShapeError(f"diagonal: the array must have at least two dimensions; got {aval!r}")
    rows, columns = canonical_axes((axis1, axis2), aval.ndim, "diagonal: axis1 and axis2")
    n, m, offset = aval.shape[rows], aval.shape[columns], index(offset)
    batch = [d for d in range(aval.ndim) if d not in (rows, columns)]
    count = max(0, min(n + min(offset, 0), m - max(offset, 0)))
    # An empty diagonal begins at 0, which is in bounds.
    start = {rows: max(-offset, 0), columns: max(offset, 0)} if count else {}
    strides = [tuple([int(d == along) for d in range(aval.ndim)]) for along in batch]
    strides.append(tuple([int(d in (rows, columns)) for d in range(aval.ndim)]))
    shape = (*[aval.shape[d] for d in batch], count)
    starts = tuple([start.get(d, 0) for d in range(aval.ndim)])
    return AsStrided(shape, starts, tuple(strides), writable=False)(a)


def diag(v: ArrayOrList, k: int = 0) -> Value:
    """The matrix with the vector `v` on its diagonal `k`; of a matrix, that diagonal."""
    v = ensure_array(v)
    aval = aval_of(v)
    if aval.ndim == 2:
        return diagonal(v, k)
    if aval.ndim != 1:
        raise ShapeError(f"diag: the array must have one or two dimensions; got {aval!r}")
    length, k = aval.shape[0], index(k)
    n = length + (k if k >= 0 else -k)
    if length == 0:
        return zeros((n, n), aval.dtype)
    # In row-major order, neighbours on a diagonal are n + 1 elements apart.
    before = k if k >= 0 else -k * n
    after = n * n - before - length - (length - 1) * n
    flat = ops.pad(v, literal(0, aval.dtype), ((before, after, n),))
    return ops.reshape(flat, (n, n))


def diagflat(v: ArrayOrList, k: int = 0) -> Value:
    """The matrix with the elements of `v` on its diagonal `k`."""
    v = asarray(v)
    return diag(ops.reshape(v, (aval_of(v).size,)), k)


@as_one_program
def vander(x: ArrayOrList, N: int | None = None, increasing: bool = False) -> Value:  # noqa: N803
    """The matrix whose columns are the powers of `x`, the highest first unless `increasing`."""
    from functx.numpy.operators import power

    x = asarray(x)
    aval = aval_of(x)
    if aval.ndim != 1:
        raise ShapeError(f"vander: the array must have one dimension; got {aval!r}")
    count = aval.shape[0] if N is None else sample_count("vander", N)
    of_integers = {"i": aval.dtype, "u": aval.dtype, "b": INT}
    exponent_dtype = of_integers.get(kind(aval.dtype), np.int32)
    exponents = (
        arange(count, dtype=exponent_dtype)
        if increasing
        else arange(count - 1, -1, -1, exponent_dtype)
    )
    return power(ops.expand_dims(x, 1), exponents)


@accept_out
def outer(a: ArrayOrList, b: ArrayOrList, out: Out = None) -> Value:
    """The matrix of the products of all elements of `a` with all elements of `b`."""
    a, b = (ops.reshape(x, (aval_of(x).size,)) for x in promote(a, b))
    shape = aval_of(a).size, aval_of(b).size
    return ops.mul(ops.broadcast_in_dim(a, shape, (0,)), ops.broadcast_in_dim(b, shape, (1,)))


@as_one_program
def kron(a: ArrayOrList, b: ArrayOrList) -> Value:
    """The Kronecker product: the block for each element of `a` is the element times `b`."""
    a, b = promote(a, b)
    x, y = aval_of(a).shape, aval_of(b).shape
    rank = max(len(x), len(y))
    x, y = (1,) * (rank - len(x)) + x, (1,) * (rank - len(y)) + y
    shape = tuple([n for pair in zip(x, y, strict=True) for n in pair])
    a = ops.broadcast_in_dim(ops.reshape(a, x), shape, tuple(range(0, 2 * rank, 2)))
    b = ops.broadcast_in_dim(ops.reshape(b, y), shape, tuple(range(1, 2 * rank, 2)))
    return ops.reshape(ops.mul(a, b), tuple([n * m for n, m in zip(x, y, strict=True)]))


@as_one_program
def cross(
    a: ArrayOrList,
    b: ArrayOrList,
    axisa: int = -1,
    axisb: int = -1,
    axisc: int = -1,
    axis: int | None = None,
) -> Value:
    """The cross product of vectors of two or three components along `axis`.

    `axisa`, `axisb` and `axisc` are their axes in each operand and in the result. For two
    vectors of two components the result is the third component of the product.
    """
    if axis is not None:
        axisa = axisb = axisc = axis
    a, b = promote(a, b)
    avals = aval_of(a), aval_of(b)
    vectors = [
        ops.moveaxis(x, canonical_axis(k, aval_of(x).ndim, f"cross: {name}"), aval_of(x).ndim - 1)
        for x, k, name in ((a, axisa, "axisa"), (b, axisb, "axisb"))
    ]
    sizes = aval_of(vectors[0]).shape[-1], aval_of(vectors[1]).shape[-1]
    if not set(sizes) <= {2, 3}:
        raise ShapeError(
            f"cross: vectors must have 2 or 3 components; got {avals[0]!r} and {avals[1]!r}"
        )
    if sizes == (2, 2):
        first, second = map(_components, vectors)
        product = ops.mul(*broadcast(first[0], second[1]))
        return ops.sub(product, ops.mul(*broadcast(first[1], second[0])))
    a, b = broadcast(
        *[_pad_to_three(x) if n == 2 else x for x, n in zip(vectors, sizes, strict=True)]
    )
    # With the components rotated: c[i + 2] = a[i] b[i + 1] - a[i + 1] b[i]
    out = _rotate_components(
        ops.sub(ops.mul(a, _rotate_components(b)), ops.mul(_rotate_components(a), b))
    )
    ndim = aval_of(out).ndim
    return ops.moveaxis(out, ndim - 1, canonical_axis(axisc, ndim, "cross: axisc"))


def _slice_last_axis(x: Value, start: int, stop: int) -> Value:
    batch = aval_of(x).shape[:-1]
    return ops.slice(x, (*(0 for _ in batch), start), (*batch, stop))


def _components(x: Value) -> list[Value]:
    shape = aval_of(x).shape
    return [ops.reshape(_slice_last_axis(x, i, i + 1), shape[:-1]) for i in range(shape[-1])]


def _rotate_components(x: Value) -> Value:
    return ops.concatenate(
        [_slice_last_axis(x, 1, 3), _slice_last_axis(x, 0, 1)], aval_of(x).ndim - 1
    )


def _pad_to_three(x: Value) -> Value:
    """Vectors of two components extended by a third component 0."""
    aval = aval_of(x)
    return ops.pad(x, literal(0, aval.dtype), (*((0, 0, 0) for _ in aval.shape[:-1]), (0, 1, 0)))


@accept_out
def trace(
    a: ArrayOrList,
    offset: int = 0,
    axis1: int = 0,
    axis2: int = 1,
    dtype: DTypeLike = None,
    out: Out = None,
) -> Value:
    """The sum along a diagonal of two dimensions, which are removed.

    Booleans and narrow integers are summed in the default integer type.
    """
    a = operand(a)
    aval = aval_of(a)
    if aval.ndim < 2:
        raise ShapeError(f"trace: the operand must have at least two dimensions; got {aval!r}")
    axes = canonical_axes((axis1, axis2), aval.ndim, "trace: axis1 and axis2")
    if dtype is None:
        dtype = sum_dtype(aval.dtype)
    on_diagonal = ops.convert_element_type(static_diagonal(a, index(offset), *axes), dtype)
    return ops.reduce_sum(on_diagonal, aval.ndim - 2)
