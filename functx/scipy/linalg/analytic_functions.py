"""Functions of square matrices, and their derivatives, which are blocks of the function of a larger one.

The derivative of f at a along e is the upper right block of f([[a, e], [0, a]]): Najfeld and Havel
(1995), "Derivatives of the matrix exponential and their computation"; Mathias (1996), "A chain rule
for matrix functions and applications". It exists wherever the larger function does, also where
eigenvalues are equal and where there are not enough eigenvectors, and so do derivatives of any order.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from math import factorial, nan
from typing import Any

import numpy as np

from functx import ops
from functx.core.primitive import Primitive
from functx.core.samples import Rounding, c64, f32, f64, sample
from functx.core.tracer import aval_of
from functx.core.types import ShapedArray
from functx.core.typing import Cotangents, Tangent, Value
from functx.lax.schur import (
    Schur,
    SolveSylvester,
    fill_columns,
    row_numbers,
    shift_diagonal,
    solve_in_rows,
    take_column,
    take_row,
)
from functx.ops.linear_algebra import MatrixFunction
from functx.ops.linear_systems import solve
from functx.ops.operands import cast_like, literal
from functx.transforms.control.loops import while_loop

SAMPLE_MATRIX = np.array([[1.0, 0.5], [-0.3, 2.0]])
JORDAN_BLOCK = np.array([[2.0, 1.0], [0.0, 2.0]])


class AnalyticFunction(MatrixFunction, abstract=True):
    """A function f of square matrices with f(s a s^-1) = s f(a) s^-1; the result has their type.

    The operands after the first are parameters of f, one for each matrix.
    """

    rounding = Rounding(is_normwise=True)

    def abstract_eval(self, a: ShapedArray) -> ShapedArray:
        self.check(a)
        return a

    def for_derivative(self) -> AnalyticFunction:
        """The function to evaluate for the derivative, of matrices that are twice as large."""
        return self

    def jvp(self, primals: Sequence[Value], tangents: Sequence[Tangent]) -> tuple[Value, Tangent]:
        (a,), (da,) = primals, tangents
        return self(a), FrechetDerivative(self.for_derivative())(a, da)


class FrechetDerivative(MatrixFunction):
    """The derivative of the analytic function `function` at a along e; the operands are a, e, parameters."""

    function: Primitive
    rounding = Rounding(is_normwise=True)

    def abstract_eval(self, a: ShapedArray, e: ShapedArray, *others: ShapedArray) -> ShapedArray:
        self.check(a, e)
        ops.check_right_hand_side(self, a, e)
        return self.function.abstract_eval(a, *others)  # type: ignore[return-value]

    def jvp(self, primals: Sequence[Value], tangents: Sequence[Tangent]) -> tuple[Value, Tangent]:
        (a, e, *others), (da, de, *dothers) = primals, tangents
        terms = [] if de is None else [self(a, de, *others)]
        if da is not None:
            wide = self(upper_block_matrix(a, e), upper_block_matrix(da), *others)
            terms.append(upper_right_block(wide))
        for k, t in enumerate(dothers):
            if t is not None:
                slope = self.function.slope(k)  # type: ignore[attr-defined]
                terms.append(scale_matrices(FrechetDerivative(slope)(a, e, *others), t))
        return self(*primals), reduce(ops.add, terms)

    def transpose(self, ct: Value, a: Value, e: Value, *others: Value) -> Cotangents:
        # tr(ct^T f'(a)[e]) = tr(f'(a^T)[ct]^T e)
        return [None, self(ops.matrix_transpose(a), ct, *others), *[None] * len(others)]

    def decompose(self, a: Value, e: Value, *others: Value) -> Value:
        return upper_right_block(self.function(upper_block_matrix(a, e), *others))


def upper_block_matrix(a: Value, e: Value | None = None) -> Value:
    """The matrices [[a, e], [0, a]]; 0 stands for `e` if it is None."""
    n, zero = a.ndim, ops.zeros_like(aval_of(a))
    above = ops.concatenate([a, zero if e is None else e], n - 1)
    return ops.concatenate([above, ops.concatenate([zero, a], n - 1)], n - 2)


def upper_right_block(x: Value) -> Value:
    """The upper right one of four blocks of matrices."""
    k = x.shape[-1] // 2
    rows = ops.slice_in_dim(x, 0, k, axis=x.ndim - 2)
    return ops.slice_in_dim(rows, k, None, axis=x.ndim - 1)


def scale_matrices(x: Value, scale: Value) -> Value:
    """The matrices `x`, each times an element of `scale`."""
    return ops.mul(x, ops.broadcast_in_dim(scale, x.shape, tuple(range(x.ndim - 2))))


PADE_ORDERS = {"float64": (13, 5.371920351148152), "float32": (7, 3.925724783138660)}
"""The order of the approximant, and the largest norm for it, by the real dtype."""


class Expm(AnalyticFunction):
    """The exponential of matrices, by scaling and squaring; nan if it needs more squarings.

    Higham (2005), "The scaling and squaring method for the matrix exponential revisited". With
    `upper_triangular`, the matrices must be so.
    """

    upper_triangular: bool = False
    max_squarings: int = 16
    samples = (
        sample(f32[2, 2], values={0: SAMPLE_MATRIX}, dtypes=("f64", "f32")),
        sample(f32[2, 2], values={0: 9 * JORDAN_BLOCK - 20}, dtypes=("f64",)),
    )

    def for_derivative(self) -> AnalyticFunction:
        return Expm(False, self.max_squarings)

    def decompose(self, a: Value) -> Value:
        size = ops.abs(a)
        real = size.dtype
        order, largest = PADE_ORDERS[str(real)]
        last = a.ndim - 1
        if not a.shape[-1]:
            return a
        norm = ops.reduce_max(ops.reduce_sum(size, (last - 1,)), (last - 1,))
        ratio = ops.mul(ops.log(ops.div(norm, largest)), float(1 / np.log(2)))
        count = ops.max(ops.ceil(ratio), literal(0, real))
        fails = ops.bitwise_not(ops.le(ops.floor(ratio), float(self.max_squarings)))
        count = ops.select(fails, literal(0, real), count)
        scaled = scale_matrices(a, cast_like(ops.exp2(ops.neg(count)), a))
        p, q = pade_approximant(scaled, order)
        out = (
            ops.TriangularSolve(lower_triangle=False)(q, p)
            if self.upper_triangular
            else solve(q, p)
        )

        def is_unfinished(carry: tuple[Any, Any]) -> Value:
            k, _ = carry
            return ops.lt(k, ops.reduce_max(count, tuple(range(count.ndim))))

        def square(carry: tuple[Any, Any]) -> tuple[Any, Any]:
            k, x = carry
            left = ops.broadcast_in_dim(ops.lt(k, count), x.shape, tuple(range(count.ndim)))
            return ops.add(k, 1.0), ops.select(left, ops.matmul_highest(x, x), x)

        _, out = while_loop(
            is_unfinished, square, (ops.zeros_like(aval_of(norm).update(shape=())), out)
        )
        fails = ops.broadcast_in_dim(fails, out.shape, tuple(range(count.ndim)))
        return ops.select(fails, literal(nan, out.dtype), out)


def pade_approximant(a: Value, order: int) -> tuple[Value, Value]:
    """The numerator and the denominator of the diagonal approximant of odd `order` of the exponential."""
    weights = [
        factorial(2 * order - k)
        * factorial(order)
        / (factorial(2 * order) * factorial(k) * factorial(order - k))
        for k in range(order + 1)
    ]
    square = ops.matmul_highest(a, a)
    powers: list[Any] = [None, square]
    for _ in range(2, min(order // 2, 3) + 1):
        powers.append(ops.matmul_highest(powers[-1], square))
    even, odd = [polynomial_of_square(powers, weights[parity::2], a) for parity in (0, 1)]
    odd = ops.matmul_highest(a, odd)
    return ops.add(even, odd), ops.sub(even, odd)


def polynomial_of_square(powers: Sequence[Any], weights: Sequence[float], like: Value) -> Value:
    """The polynomial with `weights`, lowest first, in the matrix of which `powers` are powers."""
    width = len(powers) - 1
    total = None
    blocks = [weights[:1], *[weights[k : k + width] for k in range(1, len(weights), width)]]
    for block in reversed(blocks[1:]):
        terms = [ops.mul(power, float(w)) for power, w in zip(powers[1:], block, strict=False)]
        part = reduce(ops.add, terms)
        total = part if total is None else ops.add(part, ops.matmul_highest(powers[-1], total))
    constant = literal(weights[0], like.dtype)
    on = ops.position_mask(like.shape, ops.eq)
    unit = ops.select(on, constant, ops.zeros_like(aval_of(like)))
    return unit if total is None else ops.add(unit, total)


class Sqrtm(AnalyticFunction):
    """The principal square root of complex matrices, by their Schur form.

    Björck and Hammarling (1983), "A Schur method for the square root of a matrix".
    """

    samples = (sample(c64[2, 2], values={0: SAMPLE_MATRIX}, dtypes=("c128", "c64")),)

    def jvp(self, primals: Sequence[Value], tangents: Sequence[Tangent]) -> tuple[Value, Tangent]:
        # x dx + dx x = da
        out = self(*primals)
        return out, SolveSylvester()(out, out, tangents[0])

    def decompose(self, a: Value) -> Value:
        t, z = Schur()(a)
        root = sqrt_of_triangular(t)
        return ops.matmul_highest(z, ops.matmul_highest(root, ops.adjoint(z)))


def sqrt_of_triangular(t: Value) -> Value:
    """The principal square root of upper triangular matrices, column by column.

    It is nan where a column would have to be divided by 0 though it is not 0.
    """

    def column(j: Value, so_far: Value) -> Value:
        t_j = take_column(t, j)
        on, above = [relation(row_numbers(t_j), j) for relation in (ops.eq, ops.lt)]
        root = ops.sqrt(take_row(t_j, j))
        shifted = shift_diagonal(so_far, root)
        divisors = ops.extract_diagonal(shifted)
        is_zero = ops.eq(divisors, literal(0, t.dtype))
        shifted = ops.select(
            ops.bitwise_and(
                ops.position_mask(t.shape, ops.eq), ops.broadcast_rows(is_zero, t.shape)
            ),
            literal(1, t.dtype),
            shifted,
        )
        found = solve_in_rows(shifted, t_j, above)
        found = ops.UndefinedDerivative()(ops.expand_dims(is_zero, (is_zero.ndim,)), found)
        wide = ops.broadcast_in_dim(root, found.shape, tuple(range(found.ndim)))
        return ops.select(on, wide, found)

    return fill_columns(column, ops.zeros_like(aval_of(t)))


LOGM_NODES = 16
LOGM_RADIUS = 0.25


class Logm(AnalyticFunction):
    """The principal logarithm of complex matrices, by square roots of their Schur form.

    Al-Mohy and Higham (2012), "Improved inverse scaling and squaring algorithms for the matrix
    logarithm"; the approximant is Gauss-Legendre quadrature of the integral of x (1 + s x)^-1.
    """

    samples = (sample(c64[2, 2], values={0: SAMPLE_MATRIX}, dtypes=("c128",)),)

    def decompose(self, a: Value) -> Value:
        t, z = Schur()(a)
        on, last = ops.position_mask(t.shape, ops.eq), t.ndim - 1
        unit = ops.select(on, literal(1, t.dtype), ops.zeros_like(aval_of(t)))

        def norm(x: Value) -> Value:
            return ops.reduce_max(
                ops.reduce_sum(ops.abs(ops.sub(x, unit)), (last - 1,)), (last - 1,)
            )

        def is_far(carry: tuple[Any, Any, Any]) -> Value:
            k, x, _ = carry
            far = ops.gt(norm(x), LOGM_RADIUS)
            far = ops.reduce_or(far, tuple(range(far.ndim)))
            return ops.bitwise_and(ops.lt(k, 60), far)

        def root(carry: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
            k, x, counts = carry
            far = ops.gt(norm(x), LOGM_RADIUS)
            wide = ops.broadcast_leading(far, x.shape)
            counts = ops.select(far, ops.add(counts, 1.0), counts)
            return ops.add(k, 1), ops.select(wide, sqrt_of_triangular(x), x), counts

        counts = ops.zeros_like(aval_of(ops.real(t)).update(shape=t.shape[:-2]))
        _, root_of_t, counts = while_loop(is_far, root, (0, t, counts))
        x = ops.sub(root_of_t, unit)
        nodes, weights = np.polynomial.legendre.leggauss(LOGM_NODES)
        total = ops.zeros_like(aval_of(t))
        solve_triangular = ops.TriangularSolve(lower_triangle=False)
        for node, weight in zip((nodes + 1) / 2, weights / 2, strict=True):
            matrix = ops.add(unit, ops.mul(x, float(node)))
            total = ops.add(total, ops.mul(solve_triangular(matrix, x), float(weight)))
        scale = cast_like(ops.exp2(counts), total)
        total = scale_matrices(total, scale)
        exact = ops.construct_diagonal(ops.log(ops.extract_diagonal(t)))
        total = ops.select(on, exact, total)
        return ops.matmul_highest(z, ops.matmul_highest(total, ops.adjoint(z)))


FrechetDerivative.samples = (
    sample(
        f64[2, 2],
        f64[2, 2],
        function=Expm(),
        values={0: JORDAN_BLOCK},
        dtypes=("f64",),
    ),
)
