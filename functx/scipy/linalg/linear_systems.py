"""Linear systems with SciPy's names, by factors; see `decompositions`."""

from __future__ import annotations

from collections.abc import Callable

from functx import numpy as fnp
from functx import ops
from functx.core.errors import ShapeError, ValueRangeError
from functx.core.tracer import aval_of
from functx.core.types import is_complex
from functx.core.typing import ArrayOrList, Value
from functx.lax import linalg as lax_linalg
from functx.numpy import linalg as numpy_linalg
from functx.numpy.householder import hermitian_from_triangle
from functx.numpy.promotion import as_inexact, broadcast_shapes, operand, promote_inexact
from functx.ops.linear_systems import CholeskySolve
from functx.scipy.linalg.decompositions import cholesky, square_matrices

__all__ = [
    "cho_factor",
    "cho_solve",
    "det",
    "inv",
    "lu_factor",
    "lu_solve",
    "solve",
    "solve_triangular",
]


def cho_factor(
    a: ArrayOrList, lower: bool = False, overwrite_a: bool = False, check_finite: bool = True
) -> tuple[Value, bool]:
    """The triangular factor of `cholesky`, and `lower`: the argument of `cho_solve`."""
    return cholesky(a, lower), lower


def cho_solve(
    c_and_lower: tuple[ArrayOrList, bool],
    b: ArrayOrList,
    overwrite_b: bool = False,
    check_finite: bool = True,
) -> Value:
    """The x with a @ x == b, given the result of `cho_factor(a)`."""
    factor, lower = c_and_lower

    def solve(c: Value, b: Value) -> Value:
        first, second = [
            ops.TriangularSolve(bool(lower), transposed, transposed and is_complex(c.dtype))
            for transposed in (not lower, bool(lower))
        ]
        return second(c, first(c, b))

    return _solve_right_sides("cho_solve", solve, factor, b)


def _solve_right_sides(
    name: str, solve: Callable[..., Value], a: ArrayOrList, b: ArrayOrList, *others: Value
) -> Value:
    """The result of `solve(a, *others, b)` with batches broadcast; `b` may hold vectors.

    `b` holds vectors if it has one dimension, or one less than `a` and the length of its rows.
    """
    a, b = promote_inexact(square_matrices(name, a), b)
    shape, right = aval_of(a).shape, aval_of(b).shape
    vectors = len(right) == 1 or (len(shape) == len(right) + 1 and shape[-1] == right[-1])
    if (right[-1:] if vectors else right[-2:-1]) != shape[-1:]:
        raise ShapeError(
            f"{name}: b must have as many rows as the matrices; got {aval_of(a)!r} and {aval_of(b)!r}"
        )
    if vectors:
        b, right = ops.expand_dims(b, (len(right),)), (*right, 1)
    batch = broadcast_shapes(shape[:-2], right[:-2])
    a = fnp.broadcast_to(a, (*batch, *shape[-2:]))
    b = fnp.broadcast_to(b, (*batch, *right[-2:]))
    others = tuple([fnp.broadcast_to(x, (*batch, aval_of(x).shape[-1])) for x in others])
    x = solve(a, *others, b)
    return ops.squeeze(x, (x.ndim - 1,)) if vectors else x


def det(a: ArrayOrList, overwrite_a: bool = False, check_finite: bool = True) -> Value:
    """The determinant of square matrices; its derivative is right for singular ones too."""
    return numpy_linalg.det(a)


def inv(a: ArrayOrList, overwrite_a: bool = False, check_finite: bool = True) -> Value:
    """The inverse of square matrices."""
    return numpy_linalg.inv(a)


def lu_factor(
    a: ArrayOrList, overwrite_a: bool = False, check_finite: bool = True
) -> tuple[Value, Value]:
    """The LU factors of matrices, in one matrix, and the pivots: the argument of `lu_solve`."""
    factors, pivots, _ = lax_linalg.lu(as_inexact(a))
    return factors, pivots


def lu_solve(
    lu_and_piv: tuple[ArrayOrList, ArrayOrList],
    b: ArrayOrList,
    trans: int = 0,
    overwrite_b: bool = False,
    check_finite: bool = True,
) -> Value:
    """The x with a @ x == b, given the result of `lu_factor(a)`.

    With `trans` 1, a is transposed, and with 2 it is its adjoint.
    """
    if trans not in (0, 1, 2):
        raise ValueRangeError(f"lu_solve: trans must be 0, 1 or 2; got {trans!r}")
    factors, pivots = lu_and_piv
    n = aval_of(operand(factors)).shape[-1]
    permutation = lax_linalg.lu_pivots_to_permutation(operand(pivots), n)

    def solve(factors: Value, permutation: Value, b: Value) -> Value:
        conjugated = trans == 2 and is_complex(factors.dtype)
        unit = ops.TriangularSolve(True, trans > 0, conjugated, True)
        upper = ops.TriangularSolve(False, trans > 0, conjugated)
        if not trans:
            return upper(factors, unit(factors, ops.permute_rows(b, permutation)))
        inverse = fnp.argsort(permutation, axis=-1)
        return ops.permute_rows(unit(factors, upper(factors, b)), inverse)

    return _solve_right_sides("lu_solve", solve, factors, b, permutation)


def solve(
    a: ArrayOrList,
    b: ArrayOrList,
    lower: bool = False,
    overwrite_a: bool = False,
    overwrite_b: bool = False,
    debug: bool = False,
    check_finite: bool = True,
    assume_a: str = "gen",
) -> Value:
    """The x with a @ x == b, for square matrices `a`.

    With `assume_a="pos"`, the upper (or `lower`) triangle of `a` stands for a positive definite matrix.
    Derivatives use the same factors.
    """
    if assume_a not in ("gen", "sym", "her", "pos"):
        raise ValueRangeError(
            f"solve: assume_a must be 'gen', 'sym', 'her' or 'pos'; got {assume_a!r}"
        )

    def solve_positive(a: Value, b: Value) -> Value:
        a = hermitian_from_triangle(a, lower)
        return CholeskySolve()(a, ops.Cholesky()(ops.stop_gradient(a)), b)

    return _solve_right_sides("solve", solve_positive if assume_a == "pos" else ops.solve, a, b)


def solve_triangular(
    a: ArrayOrList,
    b: ArrayOrList,
    trans: int | str = 0,
    lower: bool = False,
    unit_diagonal: bool = False,
    overwrite_b: bool = False,
    debug: object = None,
    check_finite: bool = True,
) -> Value:
    """The x with a @ x == b, where only the upper, or with `lower` the lower, triangle of `a` is used.

    With `trans` 1 or "T", a is transposed, and with 2 or "C" it is its adjoint. With `unit_diagonal`,
    its diagonal is taken as ones.
    """
    names = {0: 0, "N": 0, 1: 1, "T": 1, 2: 2, "C": 2}
    if trans not in names:
        raise ValueRangeError(
            f"solve_triangular: trans must be 0, 1, 2, 'N', 'T' or 'C'; got {trans!r}"
        )

    def solve(a: Value, b: Value) -> Value:
        conjugated = names[trans] == 2 and is_complex(a.dtype)
        return ops.TriangularSolve(bool(lower), names[trans] > 0, conjugated, bool(unit_diagonal))(
            a, b
        )

    return _solve_right_sides("solve_triangular", solve, a, b)
