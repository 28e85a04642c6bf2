"""Norms of operations as linear maps, from the sizes of the entries of their matrices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from functx import ops
from functx.bounds.boxes import Interval, Pair
from functx.bounds.interval import INFINITY, interval
from functx.bounds.monotonicity import signs
from functx.core.primitive import Primitive
from functx.core.types import is_inexact
from functx.core.typing import Function, Value
from functx.numpy import concatenate, linalg, ravel, stack
from functx.ops.convolution import Convolution
from functx.ops.operands import upcast_half
from functx.transforms.jacobian import jacrev
from functx.transforms.jvp import vjp


class Varying(NamedTuple):
    """The bounds of a value, and its Lipschitz constant as a function of all arguments."""

    lower: Value
    upper: Value
    constant: Value | float

    @property
    def bounds(self) -> Pair:
        """The bounds alone."""
        return self.lower, self.upper

    @property
    def varies(self) -> bool:
        """Whether the value is a float that is not known exactly."""
        return self.lower is not self.upper and is_inexact(self.lower.dtype)


def affine_norm(
    primitive: Primitive, operands: Sequence[Varying], x: Varying, order: float
) -> Value:
    """The norm, of the order 2 or inf, of an affine `primitive` as a function of the operand `x`."""

    def sizes(v: Value) -> list[Value]:
        return primitive.as_list(primitive(*[v if y is x else size_of(y) for y in operands]))

    zeros = ops.zeros_like(x.lower)
    # The entries of the matrix have one sign, so that the sizes of its sums are sums of sizes.
    outs, pull = vjp(sizes, zeros)
    ones = sizes(ops.add(zeros, 1.0))
    row_sum = largest(*[ops.sub(a, b) for a, b in zip(ones, outs, strict=True)])
    if order != 2:
        return row_sum
    # The Euclidean norm is at most the mean of the other two: I. Schur (1911).
    bound = ops.sqrt(row_sum * largest(*pull([ops.full_like(v, 1.0) for v in outs])))
    if isinstance(primitive, ops.DotGeneral):
        side = 1 - [y is x for y in operands].index(True)
        factor = upcast_half(matricize(primitive, operands[side].lower, side))
        bound = ops.min(upcast_half(bound), largest(ops.svd(factor)[1]))
    return bound


def matrix_norm(matrix: Value, order: float) -> Value:
    """The operator norm of a matrix of elements that are at least zero."""
    row_sum = largest(ops.reduce_sum(matrix, (1,)))
    if order != 2 or matrix.size == 0:
        return row_sum
    is_finite, matrix = ops.is_finite(row_sum), upcast_half(matrix)
    matrix = ops.select(is_finite, matrix, ops.zeros_like(matrix))
    return ops.select(is_finite, linalg.norm(matrix, 2), INFINITY)


def jacobian_sizes(fun: Function, operands: Sequence[Varying]) -> list[Value]:
    """For each operand that varies, the greatest sizes of the entries of the Jacobian, as a matrix."""
    # Integers and booleans, such as the index of a branch, may be uncertain without a derivative.
    uncertain = [x for x in operands if x.lower is not x.upper]

    def of_uncertain(*values: Value) -> Value:
        given = iter(values)
        outs = fun(*[x.lower if x.lower is x.upper else next(given) for x in operands])
        return concatenate([ravel(v) for v in outs if is_inexact(v.dtype)])

    jacobian = jacrev(of_uncertain, tuple([i for i, x in enumerate(uncertain) if x.varies]))
    bounds = interval(jacobian)(*[Interval(*x.bounds) for x in uncertain])
    sizes = [ops.max(ops.abs(b.lower), ops.abs(b.upper)) for b in bounds]
    return [ops.reshape(x, (x.shape[0], math.prod(x.shape[1:]))) for x in sizes]


def size_of(x: Varying) -> Value:
    """The sizes of a factor that is known exactly, and zero for another operand that varies."""
    if not is_inexact(x.lower.dtype):
        return x.lower
    return ops.zeros_like(x.lower) if x.varies else ops.abs(x.lower)


def has_known_signs(primitive: Primitive) -> bool:
    """Whether the matrix of an affine operation has entries of one sign if its factors do."""
    products = (ops.DotGeneral, Convolution, ops.Mul, ops.Div, ops.Select)
    return isinstance(primitive, products) or signs(primitive, 1) is not None


def largest(*arrays: Value) -> Value:
    """The size of the largest element, 0 without elements."""
    values = [ops.reduce_max(ops.abs(x), tuple(range(x.ndim))) for x in arrays if x.size]
    return stack(values).max() if values else ops.full((), 0.0)


def total(terms: Sequence[Value]) -> Value:
    """The sum of `terms`."""
    return sum(terms[1:], terms[0])


def matricize(primitive: ops.DotGeneral, factor: Value, side: int) -> Value:
    """The matrices, one for each batch index, that a product with `factor` multiplies by."""
    contracting, batch = primitive.contracting_dims[side], primitive.batch_dims[side]
    free = [i for i in range(factor.ndim) if i not in (*contracting, *batch)]
    shape = [math.prod([factor.shape[i] for i in dims]) for dims in (batch, contracting, free)]
    return ops.reshape(ops.permute_dims(factor, (*batch, *contracting, *free)), tuple(shape))
