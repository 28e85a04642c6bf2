"""Products made of others: outer, Kronecker and cross products, powers, chains; and traces."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from operator import index
from typing import Any

from functx.core.errors import ArgumentError, ShapeError, ValueRangeError
from functx.core.tracing import aval_of
from functx.numpy.contraction import matmul, promote_operands
from functx.numpy.mutation import accept_out
from functx.numpy.promotion import broadcast, operand, promote
from functx.numpy.reductions import sum_dtype
from functx.numpy.subscripts import einsum, static_diagonal
from functx.ops.arithmetic import mul, sub
from functx.ops.conversion import convert_element_type
from functx.ops.joining import concatenate, pad
from functx.ops.operands import canonical_axes, canonical_axis, literal
from functx.ops.reductions import reduce_sum
from functx.ops.shaping import broadcast_in_dim, moveaxis, reshape
from functx.ops.slicing import slice as slice_

__all__ = [
    "cross",
    "kron",
    "outer",
    "trace",
]


@partial(accept_out, place=2)
def outer(a: Any, b: Any) -> Any:
    """The products of every element of `a` with every one of `b`, as a matrix."""
    a, b = (reshape(x, (aval_of(x).size,)) for x in promote(a, b))
    shape = aval_of(a).size, aval_of(b).size
    return mul(broadcast_in_dim(a, shape, (0,)), broadcast_in_dim(b, shape, (1,)))


def kron(a: Any, b: Any) -> Any:
    """The Kronecker product: each element of `a` times all of `b`, as blocks of one array."""
    a, b = promote_operands(a, b)
    x, y = aval_of(a).shape, aval_of(b).shape
    rank = max(len(x), len(y))
    x, y = (1,) * (rank - len(x)) + x, (1,) * (rank - len(y)) + y
    shape = tuple([n for pair in zip(x, y, strict=True) for n in pair])
    a = broadcast_in_dim(reshape(a, x), shape, tuple(range(0, 2 * rank, 2)))
    b = broadcast_in_dim(reshape(b, y), shape, tuple(range(1, 2 * rank, 2)))
    return reshape(mul(a, b), tuple([n * m for n, m in zip(x, y, strict=True)]))


def cross(
    a: Any, b: Any, axisa: int = -1, axisb: int = -1, axisc: int = -1, axis: int | None = None
) -> Any:
    """The cross product of vectors of two or three components, which lie along `axis`.

    `axisa`, `axisb` and `axisc` place them in each operand and in the result. Of two vectors
    of two components only the third component of the product is given.
    """
    if axis is not None:
        axisa = axisb = axisc = axis
    a, b = promote_operands(a, b)
    given = aval_of(a), aval_of(b)
    a, b = (
        moveaxis(x, canonical_axis(k, aval_of(x).ndim, f"cross: {name}"), aval_of(x).ndim - 1)
        for x, k, name in ((a, axisa, "axisa"), (b, axisb, "axisb"))
    )
    sizes = aval_of(a).shape[-1], aval_of(b).shape[-1]
    if not set(sizes) <= {2, 3}:
        raise ShapeError(
            f"cross: vectors must have 2 or 3 components; got {given[0]!r} and {given[1]!r}"
        )
    if sizes == (2, 2):
        first, second = (_components(x) for x in (a, b))
        left = mul(*broadcast(first[0], second[1]))
        return sub(left, mul(*broadcast(first[1], second[0])))
    a, b = broadcast(
        *[_pad_to_three(x) if n == 2 else x for x, n in zip((a, b), sizes, strict=True)]
    )
    # With the components rotated: c[i + 2] = a[i] b[i + 1] - a[i + 1] b[i]
    out = _rotate_components(sub(mul(a, _rotate_components(b)), mul(_rotate_components(a), b)))
    ndim = aval_of(out).ndim
    return moveaxis(out, ndim - 1, canonical_axis(axisc, ndim, "cross: axisc"))


def _slice_last_axis(x: Any, start: int, stop: int) -> Any:
    lead = aval_of(x).shape[:-1]
    return slice_(x, (*(0 for _ in lead), start), (*lead, stop))


def _components(x: Any) -> list[Any]:
    shape = aval_of(x).shape
    return [reshape(_slice_last_axis(x, i, i + 1), shape[:-1]) for i in range(shape[-1])]


def _rotate_components(x: Any) -> Any:
    return concatenate([_slice_last_axis(x, 1, 3), _slice_last_axis(x, 0, 1)], aval_of(x).ndim - 1)


def _pad_to_three(x: Any) -> Any:
    """Vectors of two components with a third that is zero."""
    aval = aval_of(x)
    return pad(x, literal(0, aval.dtype), (*((0, 0, 0) for _ in aval.shape[:-1]), (0, 1, 0)))


@partial(accept_out, place=5)
def trace(a: Any, offset: int = 0, axis1: int = 0, axis2: int = 1, dtype: Any = None) -> Any:
    """The sum along a diagonal of two dimensions, which leave the shape.

    Booleans and narrow integers are summed in the default integer type.
    """
    a = operand(a)
    aval = aval_of(a)
    if aval.ndim < 2:
        raise ShapeError(f"trace: the operand must have at least two dimensions; got {aval!r}")
    axes = canonical_axes((axis1, axis2), aval.ndim, "trace: axis1 and axis2")
    if dtype is None:
        dtype = sum_dtype(aval.dtype)
    on_diagonal = convert_element_type(static_diagonal(a, index(offset), *axes), dtype)
    return reduce_sum(on_diagonal, aval.ndim - 2)


def matrix_power(a: Any, n: int) -> Any:
    """The square matrices `a` multiplied by themselves, `n` factors, which is not negative."""
    a = operand(a)
    aval = aval_of(a)
    if aval.ndim < 2 or aval.shape[-1] != aval.shape[-2]:
        raise ShapeError(f"matrix_power: the operand must be square matrices; got {aval!r}")
    try:
        n = index(n)
    except TypeError:
        raise ArgumentError(f"matrix_power: n must be an integer; got {n!r}") from None
    if n == 0:
        from functx.numpy.matrices import eye

        unit = eye(aval.shape[-1], dtype=aval.dtype)
        return broadcast_in_dim(unit, aval.shape, (aval.ndim - 2, aval.ndim - 1))
    if n < 0:
        raise ValueRangeError(
            f"matrix_power: n must not be negative; got {n}", fix="Invert the matrices first."
        )
    result = None
    while n:
        if n & 1:
            result = a if result is None else matmul(result, a)
        n >>= 1
        if n:
            a = matmul(a, a)
    return result


@accept_out
def multi_dot(arrays: Sequence[Any], *, precision: Any = None) -> Any:
    """The product of a chain of matrices, in the order that takes the fewest operations.

    The first and the last may be vectors.
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
    out = [0, len(arrays)]
    if ndims[0] == 1:
        terms[0], out = (1,), out[1:]
    if ndims[-1] == 1:
        terms[-1], out = (len(arrays) - 1,), out[:-1]
    interleaved = [item for pair in zip(arrays, terms, strict=True) for item in pair]
    return einsum(*interleaved, out, optimize="optimal", precision=precision)
