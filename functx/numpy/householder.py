"""Reductions of matrices by Householder reflectors, and products of reflectors.

A reflector is 1 - tau v v^H. Its vector v is 0 above some row and 1 in it, and the rest is stored below
the diagonals of the reduced matrix, as LAPACK does.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jax import lax

from functx import ops
from functx.core.samples import Rounding, f32, sample
from functx.core.tracer import aval_of
from functx.core.types import ShapedArray, is_complex, real_dtype
from functx.core.typing import IRValue, Value
from functx.ops.linear_algebra import MatrixFunction
from functx.ops.operands import cast_like, literal
from functx.transforms.control.loops import fori_loop
from functx.transforms.decompose import builtin_decomposition

if TYPE_CHECKING:
    from functx.lowering.stablehlo_emitter import LoweringContext

_SQUARE = np.array([[1.0, 2.0, 0.5], [-1.5, -1.0, 1.0], [-0.5, 0.2, 3.0]])


class HouseholderReduction(MatrixFunction, abstract=True):
    """A matrix reduced by reflectors column by column, packed with them, and their factors tau.

    The elements further than `offset` below the diagonal become 0, and hold the reflectors. Rows are
    reflected, and if `two_sided` columns as well, which gives a similar matrix.
    """

    offset: ClassVar[int]
    two_sided: ClassVar[bool]
    lapack_platforms: ClassVar[frozenset[str]] = frozenset({"cpu"})
    """The platforms where a library reduces; on others the decomposition runs."""
    multiple_results = True
    rounding = Rounding(is_normwise=True)

    def abstract_eval(self, x: ShapedArray) -> Sequence[ShapedArray]:
        self.check(x)
        *batch, m, n = x.shape
        return [x, x.update(shape=(*batch, max(min(m, n) - self.offset, 0)))]

    def decompose(self, x: Value) -> Sequence[Value]:
        steps = max(min(x.shape[-2:]) - self.offset, 0)
        taus = ops.zeros_like(aval_of(x).update(shape=(*x.shape[:-2], steps)))
        if not steps:
            return [x, taus]
        packed, _, taus = fori_loop(0, steps, self.reduce_column, (x, x, taus))
        return [packed, taus]

    def reduce_column(self, k: Value, carry: tuple[Value, ...]) -> tuple[Value, ...]:
        """One step: the packed matrix, the matrix with zeros in place of the reflectors, the taus."""
        packed, a, taus = carry
        rows, columns = [
            ops.broadcasted_iota(np.int32, a.shape, axis) for axis in (a.ndim - 2, a.ndim - 1)
        ]
        k = ops.convert_element_type(k, np.int32)
        first, zero = ops.add(k, self.offset), literal(0, a.dtype)
        here = ops.eq(columns, k)
        column = ops.reduce_sum(ops.select(here, a, zero), (a.ndim - 1,))
        v, tau, beta = reflector(column, first)
        wide = ops.insert_matrix_dim(v, (*v.shape, 1), drop=1)
        scale = ops.broadcast_leading(tau, wide.shape)
        turned = sub_outer(a, ops.mul(ops.conj_if_complex(scale), wide), wide, from_left=True)
        if self.two_sided:
            turned = sub_outer(turned, wide, ops.mul(ops.conj_if_complex(scale), wide), False)
        exact = ops.insert_matrix_dim(beta, a.shape, drop=1)
        below = ops.bitwise_and(here, ops.gt(rows, first))
        on = ops.bitwise_and(here, ops.eq(rows, first))
        a = ops.select(on, exact, ops.select(below, zero, turned))
        done = ops.bitwise_and(ops.lt(columns, k), ops.gt(rows, ops.add(columns, self.offset)))
        packed = ops.select(
            done, packed, ops.select(below, ops.insert_matrix_dim(v, a.shape, drop=1), a)
        )
        at = ops.eq(ops.broadcasted_iota(np.int32, taus.shape, taus.ndim - 1), k)
        taus = ops.select(at, ops.insert_matrix_dim(tau, taus.shape, 1), taus)
        return packed, a, taus

    def reduce_by_library(self, x: Value) -> tuple[Any, Any]:
        """The packed matrix and the factors of a JAX array."""
        raise NotImplementedError

    def lower(self, ctx: LoweringContext, x: IRValue) -> Sequence[IRValue]:
        if self.lapack_platforms.issuperset(ctx.platforms):
            return ctx.via_jax(self.reduce_by_library, x)
        return ctx.call(builtin_decomposition(self, tuple(ctx.avals_in)), [x])


def reflector(x: Value, first: Value) -> tuple[Value, Value, Value]:
    """The v, tau of the reflector that makes `x` 0 below row `first`, and x reflected, a vector.

    Only the element of the reflected vector at `first` is its own; it is real.
    """
    rows, last = ops.broadcasted_iota(np.int32, x.shape, x.ndim - 1), x.ndim - 1
    zero, real = literal(0, x.dtype), real_dtype(x.dtype)
    tail = ops.select(ops.gt(rows, first), x, zero)
    alpha = ops.reduce_sum(ops.select(ops.eq(rows, first), x, zero), (last,))
    parts = [ops.real_if_complex(y) for y in (alpha, tail)]
    squares = [ops.square(parts[0]), ops.reduce_sum(ops.square(parts[1]), (last,))]
    is_trivial = ops.eq(squares[1], literal(0, real))
    if is_complex(x.dtype):
        imaginary = ops.square(ops.imag(alpha))
        squares += [imaginary, ops.reduce_sum(ops.square(ops.imag(tail)), (last,))]
        for square in squares[2:]:
            is_trivial = ops.bitwise_and(is_trivial, ops.eq(square, literal(0, real)))
    length = ops.sqrt(ops.select(is_trivial, literal(1, real), reduce(ops.add, squares)))
    beta = ops.select(ops.lt(parts[0], literal(0, real)), length, ops.neg(length))
    wide_beta = cast_like(beta, x)
    tau = ops.select(is_trivial, zero, ops.div(ops.sub(wide_beta, alpha), wide_beta))
    apart = ops.select(is_trivial, literal(1, x.dtype), ops.sub(alpha, wide_beta))
    scaled = ops.div(tail, ops.broadcast_in_dim(apart, x.shape, tuple(range(last))))
    v = ops.select(ops.eq(rows, first), literal(1, x.dtype), scaled)
    reflected = ops.select(is_trivial, alpha, wide_beta)
    return v, tau, ops.broadcast_in_dim(reflected, x.shape, tuple(range(last)))


def sub_outer(a: Value, u: Value, v: Value, from_left: bool) -> Value:
    """a - u v^H a, or without `from_left` a - a u v^H, for columns u and v."""
    product, adjoint = ops.matmul_highest, ops.adjoint(v)
    if from_left:
        return ops.sub(a, product(u, product(adjoint, a)))
    return ops.sub(a, product(product(a, u), adjoint))


class Geqrf(HouseholderReduction):
    """The triangular factor of matrices, packed with the reflectors whose product is the other one."""

    square = False
    offset, two_sided = 0, False
    samples = (sample(f32[3, 2], values={0: _SQUARE[:, :2]}, dtypes=("f64", "f32")),)

    lapack_platforms = frozenset({"cpu", "cuda", "rocm", "tpu"})

    def reduce_by_library(self, x: Value) -> tuple[Any, Any]:
        packed, taus = jnp.linalg.qr(x, mode="raw")
        return packed.mT, taus


class Hessenberg(HouseholderReduction):
    """A similar matrix with zeros below the subdiagonal, packed with the reflectors, and their factors."""

    offset, two_sided = 1, True
    samples = (sample(f32[3, 3], values={0: _SQUARE}, dtypes=("f64",)),)

    def reduce_by_library(self, x: Value) -> tuple[Any, Any]:
        packed, taus = lax.linalg.hessenberg(x)
        return packed, taus


class Tridiagonal(HouseholderReduction):
    """A similar tridiagonal matrix of a Hermitian one, packed with the reflectors, and their factors.

    Only the lower triangle is read and changed.
    """

    offset, two_sided = 1, True
    samples = (sample(f32[3, 3], values={0: _SQUARE}, dtypes=("f64",)),)

    def decompose(self, x: Value) -> Sequence[Value]:
        below = ops.position_mask(x.shape, ops.ge)
        packed, taus = super().decompose(hermitian_from_triangle(x))
        return [ops.select(below, packed, x), taus]

    lapack_platforms = frozenset({"cpu", "cuda", "rocm"})

    def reduce_by_library(self, x: Value) -> tuple[Any, Any]:
        packed, _, _, taus = lax.linalg.tridiagonal(x, lower=True)
        return packed, taus


def hermitian_from_triangle(a: Value, lower: bool = True) -> Value:
    """The Hermitian matrix whose lower, or upper, triangle is that of `a`."""
    strict = ops.position_mask(a.shape, ops.gt if lower else ops.lt)
    on = ops.position_mask(a.shape, ops.eq)
    diagonal = cast_like(ops.real_if_complex(a), a)
    return ops.select(strict, a, ops.select(on, diagonal, ops.adjoint(a)))


def compact_reflectors(a: Value, taus: Value) -> tuple[Value, Value]:
    """The v, t such that the product of the reflectors packed in `a` is 1 - v t v^H.

    As Puglisi (1992), "Modification of the Householder method based on the compact WY representation":
    the inverse of t is triu(v^H v, 1) + diag(1 / tau).
    """
    k = taus.shape[-1]
    v = ops.slice_in_dim(a, 0, k, axis=a.ndim - 1)
    one, zero = literal(1, a.dtype), literal(0, a.dtype)
    v = ops.select(ops.position_mask(v.shape, ops.gt), v, zero)
    v = ops.select(ops.position_mask(v.shape, ops.eq), one, v)
    gram = ops.matmul_highest(ops.adjoint(v), v)
    scaled = ops.mul(ops.insert_matrix_dim(taus, gram.shape, drop=1), gram)
    solve = ops.TriangularSolve(lower_triangle=False, unit_diagonal=True)
    return v, solve(scaled, ops.construct_diagonal(taus))


def householder_product(a: Value, taus: Value) -> Value:
    """The product of the reflectors packed in `a`: as many columns as `a` has."""
    v, t = compact_reflectors(a, taus)
    *batch, m, n = a.shape
    top = ops.slice_in_dim(v, 0, min(m, n), axis=a.ndim - 2)
    product = ops.matmul_highest(v, ops.matmul_highest(t, ops.adjoint(top)))
    product = ops.pad(
        product, literal(0, a.dtype), [(0, 0, 0)] * (a.ndim - 1) + [(0, n - min(m, n), 0)]
    )
    on = ops.position_mask(a.shape, ops.eq)
    return ops.sub(ops.select(on, literal(1, a.dtype), ops.zeros_like(a)), product)


def multiply_by_reflectors(a: Value, taus: Value, c: Value, left: bool, transpose: bool) -> Value:
    """q @ c, or c @ q without `left`, for the product q of the reflectors packed in `a`.

    With `transpose`, q is replaced by its adjoint.
    """
    v, t = compact_reflectors(a, taus)
    t = ops.adjoint(t) if transpose else t
    product = ops.matmul_highest
    if left:
        return ops.sub(c, product(v, product(t, product(ops.adjoint(v), c))))
    return ops.sub(c, product(product(product(c, v), t), ops.adjoint(v)))
