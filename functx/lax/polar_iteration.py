"""The polar decomposition by Halley's iteration with dynamic weights."""

from __future__ import annotations

from math import sqrt
from typing import Any

import numpy as np

from functx import ops
from functx.core.errors import ShapeError
from functx.core.tracer import aval_of
from functx.core.typing import ArrayLike, Value
from functx.numpy import reductions, shapes
from functx.ops.least_squares import Qr
from functx.ops.operands import cast_like, literal
from functx.transforms.control.loops import while_loop


def qdwh(
    x: ArrayLike,
    *,
    is_hermitian: bool = False,
    max_iterations: int | None = None,
    eps: float | None = None,
    dynamic_shape: tuple[int, int] | None = None,
) -> tuple[Value, Value, Value, Value]:
    """The u, h with x == u @ h, orthonormal columns and a positive semidefinite matrix, by iteration.

    `x` has no more columns than rows. Steps end when they change u by less than (4 eps)^(1/3) of its
    norm, or after `max_iterations`, by default 10. The results are u, h, the number of steps, and
    whether they converged. Only the leading block of `dynamic_shape` of `x` is used. Derivatives are
    those of the polar decomposition.

    As Nakatsukasa, Bai and Gygi (2010), "Optimizing Halley's iteration for computing the matrix polar
    decomposition".
    """
    x = shapes.ensure_array(x)
    aval = aval_of(x)
    if aval.ndim != 2 or aval.shape[0] < aval.shape[1]:
        raise ShapeError(f"qdwh: x must be a matrix with no more columns than rows; got {aval!r}")
    if dynamic_shape is not None:
        rows, columns = [ops.broadcasted_iota(np.int32, aval.shape, axis) for axis in (0, 1)]
        inside = ops.bitwise_and(ops.lt(rows, dynamic_shape[0]), ops.lt(columns, dynamic_shape[1]))
        x = ops.select(inside, x, literal(0, aval.dtype))
    limit = 10 if max_iterations is None else max_iterations
    unit = float(np.finfo(aval.dtype).eps) if eps is None else eps
    fixed = ops.stop_gradient(x)
    u, steps, converged = _iterate(fixed, limit, unit)
    left, _, right = ops.Svd()(x)
    # The derivative is that of the factor by singular vectors, a product that is recognized as a
    # function of the matrix.
    u = ops.WithValue()(ops.matmul(left, right), u)
    return u, ops.hermitian_part(ops.matmul_highest(ops.adjoint(u), x)), steps, converged


def _iterate(x: Value, limit: int, eps: float) -> tuple[Value, Value, Value]:
    sizes = ops.abs(x)
    bounds = [reductions.max(reductions.sum(sizes, axis=k), initial=0) for k in (0, 1)]
    bound = ops.sqrt(ops.mul(*bounds))
    scale = ops.select(ops.eq(bound, 0), literal(1, bound.dtype), bound)
    u = ops.div(x, cast_like(scale, x))
    weights = halley_weights(float(np.finfo(x.dtype).eps), min(limit, 8))
    before = u
    for a, b, c in weights:
        before, u = u, halley_step(u, a, b, c)
    tolerance = (4 * eps) ** (1 / 3)

    def change(u: Value, before: Value) -> Value:
        return ops.le(_norm(ops.sub(u, before)), ops.mul(_norm(u), tolerance))

    def unfinished(carry: tuple[Any, ...]) -> Value:
        k, u, before = carry
        return ops.bitwise_and(ops.lt(k, limit), ops.bitwise_not(change(u, before)))

    def step(carry: tuple[Any, ...]) -> tuple[Any, ...]:
        k, u, _ = carry
        return ops.add(k, 1), halley_step(u, 3.0, 1.0, 3.0), u

    start = ops.convert_element_type(len(weights), np.int32)
    k, u, before = while_loop(unfinished, step, (start, u, before))
    gram = ops.matmul_highest(ops.adjoint(u), u)
    refined = ops.sub(ops.mul(u, 1.5), ops.mul(ops.matmul_highest(u, gram), 0.5))
    return refined, k, change(u, before)


def _norm(x: Value) -> Value:
    return ops.sqrt(reductions.sum(ops.square(ops.abs(x))))


def halley_weights(low: float, limit: int) -> list[tuple[float, float, float]]:
    """The weights a, b, c of the steps until singular values from `low` to 1 are 1 up to rounding."""
    weights: list[tuple[float, float, float]] = []
    while len(weights) < limit and 1 - low > 1e-15:
        square = low * low
        root = (4 * (1 - square) / square**2) ** (1 / 3)
        outer = sqrt(1 + root)
        a = outer + sqrt(8 - 4 * root + 8 * (2 - square) / (square * outer)) / 2
        b = (a - 1) ** 2 / 4
        c = a + b - 1
        weights.append((a, b, c))
        low = min(low * (a + b * square) / (1 + c * square), 1.0)
    return weights


def halley_step(u: Value, a: float, b: float, c: float) -> Value:
    """u (a + b u^H u) (1 + c u^H u)^-1, by QR factors, or by Cholesky factors where c is small."""
    product, n = ops.matmul_highest, u.shape[-1]
    unit = cast_like(
        ops.convert_element_type(ops.position_mask((n, n), ops.eq), ops.real_if_complex(u).dtype), u
    )
    if c > 100:
        q, _ = Qr()(ops.concatenate([ops.mul(u, sqrt(c)), unit], 0))
        top = ops.slice_in_dim(q, 0, u.shape[0], axis=0)
        lower = ops.slice_in_dim(q, u.shape[0], None, axis=0)
        turned = ops.mul(product(top, ops.adjoint(lower)), (a - b / c) / sqrt(c))
    else:
        factor = ops.Cholesky()(ops.add(unit, ops.mul(product(ops.adjoint(u), u), c)))
        solved = ops.TriangularSolve()(factor, ops.adjoint(u))
        solved = ops.TriangularSolve(transposed=True, conjugated=True)(factor, solved)
        turned = ops.mul(ops.adjoint(solved), a - b / c)
    return ops.add(ops.mul(u, b / c), turned)
