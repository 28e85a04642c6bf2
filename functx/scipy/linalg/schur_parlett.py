"""Functions of general matrices that a function of numbers gives, by blocks of their Schur forms."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial, reduce
from math import factorial, nan
from typing import Any

import numpy as np

from functx import ops
from functx.core.errors import DTypeError
from functx.core.program import Program
from functx.core.rewriting import Rewrite, cached_rewrite
from functx.core.samples import c128, sample
from functx.core.tracer import aval_of, current_builder
from functx.core.tracing import trace
from functx.core.types import ShapedArray, is_complex
from functx.core.typing import Tangent, Value, Values
from functx.lax.schur import (
    Schur,
    fill_columns,
    row_numbers,
    shift_diagonal,
    solve_in_rows,
    take_column,
    take_row,
)
from functx.ops.operands import cast_like, literal
from functx.passes.simplify import simplify_equations
from functx.scipy.linalg.analytic_functions import (
    JORDAN_BLOCK,
    SAMPLE_MATRIX,
    AnalyticFunction,
    FrechetDerivative,
    scale_matrices,
)
from functx.transforms.batching import Batch
from functx.transforms.control.loops import while_loop
from functx.transforms.forward_mode import jvp_program
from functx.transforms.spectral_functions import elementwise_derivative

TAYLOR_ORDERS = 7, 12
"""The least and the largest number of derivatives that are used for close eigenvalues."""
LONG_PROGRAM = 250
"""The number of equations above which no more than the least number of derivatives are used."""


def _example(parameters: int = 0) -> Program:
    def body(w: Value, *scale: Value) -> list[Value]:
        return [ops.sin(ops.mul(w, *scale) if scale else w)]

    return trace(body, [c128[()], c128[()]][: 1 + parameters], name="example")[0]


class WithDerivatives(Rewrite[Program]):
    """The rewrite of a function of a number to the program of its value and its derivatives.

    There are at least `least` of them, and up to `most` while the program stays short.
    """

    least: int
    most: int

    def __call__(self, program: Program) -> Program:
        for order in range(self.most):
            if order >= self.least and len(program.equations) > LONG_PROGRAM:
                break
            # Without simplification each derivative would have three times the equations of the last.
            program = simplify_equations(
                trace(partial(next_derivative, program), program.in_avals)[0]
            )
        return program


def next_derivative(program: Program, *args: Value) -> list[Value]:
    """The outputs of `program`, and the derivative of the last one in the first argument."""
    tangents = [ops.constant_like(args[0], 1), *[None] * (len(args) - 1)]
    found = jvp_program(program, args, tangents)
    t = found[-1][1]
    return [*[out for out, _, _ in found], ops.zeros_like(args[0]) if t is None else t]


class Funm(AnalyticFunction):
    """The function of complex matrices that `program` computes for a number, and for parameters of it.

    The eigenvalues in the Schur form are ordered in clusters of close ones; the blocks of the clusters
    are Taylor polynomials, and the other elements follow from f(t) t = t f(t): Davies and Higham (2003),
    "A Schur-Parlett algorithm for computing matrix functions". The result is nan where the polynomial
    of a cluster is not accurate, as for one with more eigenvalues of one Jordan block than derivatives.
    """

    program: Program
    samples = (
        sample(c128[2, 2], program=_example(), values={0: SAMPLE_MATRIX}, dtypes=("c128",)),
        sample(
            c128[2, 2], c128[()], program=_example(1), values={0: JORDAN_BLOCK}, dtypes=("c128",)
        ),
    )

    def abstract_eval(self, a: ShapedArray, *parameters: ShapedArray) -> ShapedArray:
        self.check(a)
        expected = self.program.in_avals
        if not is_complex(a.dtype) or any(x.dtype != a.dtype for x in expected[:1]):
            raise DTypeError(
                f"{self.name}: the matrices must have the complex dtype of the function, "
                f"{expected[0].dtype}; got {a!r}"
            )
        return a

    def slope(self, place: int) -> Funm:
        """The function whose values are the derivatives in parameter `place`."""
        return Funm(elementwise_derivative(self.program, place + 1))

    def jvp(self, primals: Sequence[Value], tangents: Sequence[Tangent]) -> tuple[Value, Tangent]:
        (a, *others), (da, *dothers) = primals, tangents
        terms = [] if da is None else [FrechetDerivative(self)(a, da, *others)]
        for k, t in enumerate(dothers):
            if t is not None:
                terms.append(scale_matrices(self.slope(k)(a, *others), cast_like(t, a)))
        return self(*primals), reduce(ops.add, terms)

    def evaluate(self, program: Program, w: Value, parameters: Values) -> list[Value]:
        """The outputs of `program` at the elements of `w`."""
        wide = [ops.broadcast_leading(p, w.shape) for p in parameters]
        for size in reversed(w.shape):
            out_dims = (0,) * len(program.outputs)
            program = cached_rewrite(Batch(size, (0,) * (1 + len(wide)), out_dims), program)
        return list(current_builder.require().inline(program, [w, *wide]))

    def decompose(self, a: Value, *parameters: Value) -> Value:
        if not a.shape[-1]:
            return a
        t, z = Schur()(a)
        clusters = cluster_numbers(t)
        t, z, clusters = order_clusters(t, z, clusters)
        same = ops.eq(
            ops.broadcast_rows(clusters, t.shape), ops.broadcast_columns(clusters, t.shape)
        )
        w = ops.extract_diagonal(t)
        centers = cluster_means(w, same)
        program = cached_rewrite(WithDerivatives(*TAYLOR_ORDERS), self.program)
        values = self.evaluate(program, centers, parameters)
        (exact,) = self.evaluate(self.program, w, parameters)
        values[0] = ops.select(is_alone(same), exact, values[0])
        blocks = taylor_blocks(t, same, centers, values)
        found = fill_between_clusters(t, same, blocks)
        return ops.matmul_highest(z, ops.matmul_highest(found, ops.adjoint(z)))


def cluster_numbers(t: Value) -> Value:
    """The least index of an eigenvalue, on the diagonal of `t`, that chains of close ones lead to."""
    w, last = ops.extract_diagonal(t), t.ndim - 1
    sizes = [ops.reduce_max(ops.abs(w), (last - 1,)), ops.reduce_max(ops.abs(t), (last - 1, last))]
    # Of the length on which the function varies, these are all that is known.
    length = ops.max(sizes[0], ops.min(sizes[1], literal(1, sizes[1].dtype)))
    scale = ops.mul(length, min(0.1, 0.2 / t.shape[-1]))
    gaps = ops.abs(ops.sub(ops.broadcast_rows(w, t.shape), ops.broadcast_columns(w, t.shape)))
    close = ops.le(gaps, ops.broadcast_in_dim(scale, t.shape, tuple(range(last - 1))))
    linked = ops.convert_element_type(close, scale.dtype)
    for _ in range(max(t.shape[-1] - 1, 1).bit_length()):
        linked = ops.min(ops.matmul_highest(linked, linked), literal(1, scale.dtype))
    columns = ops.broadcasted_iota(np.int32, t.shape, last)
    far = literal(t.shape[-1], np.dtype("int32"))
    return ops.reduce_min(ops.select(ops.gt(linked, 0.5), columns, far), (last,))


def next_one(x: Value) -> Value:
    """The element after each along the last axis, 0 after the last."""
    return ops.pad(x, literal(0, x.dtype), [*[(0, 0, 0)] * (x.ndim - 1), (-1, 1, 0)])


def previous_one(x: Value) -> Value:
    """The element before each along the last axis, 0 before the first."""
    return ops.pad(x, literal(0, x.dtype), [*[(0, 0, 0)] * (x.ndim - 1), (1, -1, 0)])


def exchanging_rotations(t: Value, first: Value, second: Value) -> Value:
    """The rotations that exchange the eigenvalues of the triangles `t` at `first` with those at `second`."""
    w = ops.extract_diagonal(t)
    rows, columns = row_numbers(t), ops.broadcasted_iota(np.int32, t.shape, t.ndim - 1)
    is_above = ops.eq(columns, ops.add(rows, 1))
    one, zero = literal(1, t.dtype), literal(0, t.dtype)
    upper = ops.reduce_sum(ops.select(is_above, t, zero), (t.ndim - 1,))
    x, y = upper, ops.sub(next_one(w), w)
    length = ops.sqrt(ops.add(ops.square(ops.abs(x)), ops.square(ops.abs(y))))
    length = cast_like(ops.select(first, length, ops.constant_like(length, 1)), t)
    c, s = [ops.select(first, ops.div(v, length), v0) for v, v0 in ((x, one), (y, zero))]
    diagonal = ops.select(second, previous_one(ops.conj(c)), c)
    turn = ops.construct_diagonal(diagonal)
    above = ops.broadcast_rows(ops.neg(ops.conj(s)), t.shape)
    below = ops.broadcast_columns(s, t.shape)
    turn = ops.select(is_above, above, turn)
    return ops.select(ops.eq(rows, ops.add(columns, 1)), below, turn)


def order_clusters(t: Value, z: Value, clusters: Value) -> tuple[Value, Value, Value]:
    """The Schur form with the eigenvalues in the order of their clusters.

    Neighbours that stand in the wrong order are exchanged by rotations, alternately those at even and
    at odd places.
    """
    last, n = clusters.ndim - 1, clusters.shape[-1]
    places = ops.broadcasted_iota(np.int32, clusters.shape, last)

    def wrong(clusters: Value) -> Value:
        is_wrong = ops.gt(clusters, next_one(clusters))
        return ops.bitwise_and(is_wrong, ops.lt(places, n - 1))

    def unfinished(carry: tuple[Any, ...]) -> Value:
        return ops.reduce_or(wrong(carry[3]), tuple(range(last + 1)))

    def exchange(carry: tuple[Any, ...]) -> tuple[Any, ...]:
        k, t, z, clusters = carry
        parity = ops.eq(ops.rem(ops.add(places, k), literal(2, np.dtype("int32"))), 0)
        first = ops.bitwise_and(wrong(clusters), parity)
        second = previous_one(first)
        turn = exchanging_rotations(t, first, second)
        t = ops.matmul_highest(ops.adjoint(turn), ops.matmul_highest(t, turn))
        t = ops.select(ops.position_mask(t.shape, ops.le), t, literal(0, t.dtype))
        z = ops.matmul_highest(z, turn)
        clusters = ops.select(
            first, next_one(clusters), ops.select(second, previous_one(clusters), clusters)
        )
        return ops.add(k, 1), t, z, clusters

    _, t, z, clusters = while_loop(unfinished, exchange, (np.int32(0), t, z, clusters))
    return t, z, clusters


def cluster_means(w: Value, same: Value) -> Value:
    """The mean of the eigenvalues in the cluster of each; `same` marks pairs in one cluster."""
    members = cast_like(ops.convert_element_type(same, ops.real(w).dtype), w)
    last = same.ndim - 1
    sums = ops.reduce_sum(ops.mul(members, ops.broadcast_columns(w, same.shape)), (last,))
    return ops.div(sums, ops.reduce_sum(members, (last,)))


def is_alone(same: Value) -> Value:
    """Whether the cluster of each eigenvalue holds no other."""
    last = same.ndim - 1
    return ops.eq(ops.reduce_sum(ops.convert_element_type(same, np.int32), (last,)), 1)


def taylor_blocks(t: Value, same: Value, centers: Value, values: Values) -> Value:
    """The function of the blocks of `t` in one cluster, by its derivatives at `centers`; 0 elsewhere."""
    zero, last = literal(0, t.dtype), t.ndim - 1
    offsets = ops.select(same, ops.sub(t, ops.construct_diagonal(centers)), zero)
    alone = ops.bitwise_and(
        ops.position_mask(t.shape, ops.eq), ops.broadcast_rows(is_alone(same), t.shape)
    )
    offsets = ops.select(alone, zero, offsets)
    total, power = ops.construct_diagonal(values[0]), offsets
    for k, value in enumerate(values[1:], 1):
        weights = ops.broadcast_rows(ops.mul(value, 1 / factorial(k)), t.shape)
        # A derivative that no element needs may be infinite.
        used = ops.ne(power, zero)
        term = ops.select(used, ops.mul(weights, power), zero)
        total = ops.add(total, term)
        power = ops.matmul_highest(power, offsets)
    # The last term bounds what is left out.
    bound = ops.mul(
        ops.reduce_max(ops.abs(total), (last - 1, last)), float(np.finfo(t.dtype).eps) ** 0.35
    )
    fails = ops.bitwise_not(ops.le(ops.reduce_max(ops.abs(term), (last - 1, last)), bound))
    fails = ops.broadcast_in_dim(fails, t.shape, tuple(range(last - 1)))
    return ops.select(fails, literal(nan, t.dtype), total)


def fill_between_clusters(t: Value, same: Value, blocks: Value) -> Value:
    """The function of `t`, given its blocks in one cluster, from f(t) t = t f(t), column by column."""
    zero = literal(0, t.dtype)

    def column(j: Value, found: Value) -> Value:
        t_j, known, inside = [take_column(x, j) for x in (t, blocks, same)]
        rows = row_numbers(t_j)
        before = ops.select(ops.lt(rows, j), t_j, zero)
        right = ops.sub(ops.matmul_highest(found, before), ops.matmul_highest(t, known))
        shifted = shift_diagonal(t, ops.neg(take_row(t_j, j)))
        others = ops.bitwise_and(ops.lt(rows, j), ops.bitwise_not(inside))
        return ops.select(inside, known, solve_in_rows(shifted, right, others))

    return fill_columns(column, ops.zeros_like(aval_of(t)))
