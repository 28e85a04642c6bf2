"""Solutions of equations with implicit derivatives, and the linear systems that these solve.

By the implicit function theorem, the tangents of an x with f(x) = 0 solve a system with the derivative
of f at x. A dense system is factored once, for derivatives of every order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from ml_dtypes import finfo

from functx import ops
from functx.core import tree
from functx.core.errors import ValueRangeError
from functx.core.types import is_complex
from functx.core.typing import Function, PyTree, Value
from functx.custom.custom_root import implicit_root
from functx.flatten_util import ravel_pytree
from functx.numpy import eye
from functx.numpy.promotion import as_inexact, operand
from functx.ops.linear_systems import LuSolve
from functx.scipy.sparse.linalg import bicgstab, cg, gmres
from functx.transforms.vmap import vmap

LARGEST_DENSE = 512
"""The most unknowns for which "auto" makes a matrix."""

ITERATIONS: dict[str, Function] = {"cg": cg, "gmres": gmres, "bicgstab": bicgstab}


class LinearOptions(NamedTuple):
    """The way to solve the linear systems of derivatives.

    `solver` is "auto", "lu", a name in `ITERATIONS`, or a function of a linear function and a
    right-hand side. `symmetric` says that the linear functions are. Where an element of `f(x)` is
    greater than `residual_tol`, x is no solution and its derivatives are nan.
    """

    solver: str | Function = "auto"
    symmetric: bool = False
    residual_tol: float | None = None

    def check(self, kind: str) -> None:
        """Raise ValueRangeError unless the solver is known."""
        names = ("auto", "lu", *ITERATIONS)
        if not callable(self.solver) and self.solver not in names:
            raise ValueRangeError(
                f"{kind}: linear_solver must be a function or one of {', '.join(names)}; got "
                f"{self.solver!r}"
            )

    def solver_for(self, x: PyTree) -> str | Function:
        """The solver for the unknowns `x`."""
        size = RealVector.of(x).values.size
        if size == 0:
            return lambda g, y: y
        if self.solver != "auto":
            return self.solver
        if size <= LARGEST_DENSE:
            return "lu"
        return "cg" if self.symmetric else "gmres"


def implicit_solution(
    kind: str,
    f: Function,
    guess: PyTree,
    solve: Callable[[Function, PyTree], PyTree],
    options: LinearOptions,
    has_aux: bool = False,
) -> PyTree:
    """The x with `f(x) == 0`, found by `solve(f, guess)`, with derivatives in all that `f` closes over.

    Messages call it `kind`; with `has_aux`, it is a pair of x and the second result of `solve`.
    """
    options.check(kind)

    def factorize(g: Function, x: PyTree) -> PyTree:
        factors = DenseFactors.of(g, x) if options.solver_for(x) == "lu" else None
        return factors, _one_if_solved(f(x), options.residual_tol)

    def solve_tangents(g: Function, y: PyTree, factors: PyTree) -> PyTree:
        dense, is_solved = factors
        if is_solved is not None:
            y = tree.map(lambda v: ops.mul(v, ops.convert_element_type(is_solved, v.dtype)), y)
        solver = options.solver_for(y)
        if dense is not None:
            return DenseFactors(*dense).solve(y)
        return solver(g, y) if callable(solver) else _iterate(ITERATIONS[solver], g, y)

    guess = tree.map(lambda v: as_inexact(operand(v)), guess)
    return implicit_root(kind, f, guess, solve, solve_tangents, has_aux, factorize)


def _one_if_solved(residual: PyTree, tol: float | None) -> Value | None:
    """1 if the elements of `residual` are at most `tol`, else nan; None without `tol`."""
    if tol is None:
        return None
    largest = ops.reduce_max(ops.abs(RealVector.of(residual).values), (0,))
    return ops.select(ops.le(largest, tol), 1.0, float("nan"))


class RealVector(NamedTuple):
    """The real and imaginary parts of the leaves of a pytree in one vector, at least of float32.

    In these, a function that is linear over the real numbers alone has a matrix too.
    """

    values: Value
    restore: Callable[[Value], PyTree]
    """The pytree of such a vector."""

    @staticmethod
    def of(x: PyTree) -> RealVector:
        leaves, structure = tree.flatten(x)
        parts = [(ops.real(v), ops.imag(v)) if is_complex(v.dtype) else v for v in leaves]
        vector, unravel = ravel_pytree(parts)
        dtype = vector.dtype if vector.dtype.itemsize >= 4 else np.dtype("float32")

        def restore(values: Value) -> PyTree:
            found = unravel(ops.convert_element_type(values, vector.dtype))
            joined = [ops.complex(*v) if isinstance(v, tuple) else v for v in found]
            return tree.unflatten(structure, joined)

        return RealVector(ops.convert_element_type(vector, dtype), restore)

    def function(self, g: Function) -> Function:
        """The function `g` of pytrees as a function of vectors."""
        return lambda v: RealVector.of(g(self.restore(v))).values


class DenseFactors(NamedTuple):
    """The LU factors of the matrix of a linear function, whose rows are scaled to the size 1."""

    row_sizes: Value
    matrix: Value
    lu: Value
    permutation: Value

    @staticmethod
    def of(g: Function, x: PyTree) -> DenseFactors:
        """The factors of `g`, a function of pytrees like `x`; nan if its matrix is singular."""
        vector = RealVector.of(x)
        n, dtype = vector.values.size, vector.values.dtype
        # Row j is column j of the matrix, contiguous as LAPACK reads it.
        columns = vmap(vector.function(g))(eye(n, dtype=dtype))
        row_sizes = ops.reduce_max(ops.abs(columns), (0,))
        row_sizes = ops.select(ops.eq(row_sizes, 0.0), 1.0, row_sizes)
        columns = ops.div(columns, ops.broadcast_in_dim(row_sizes, (n, n), (1,)))
        matrix = ops.permute_dims(columns, (1, 0))
        lu, _, permutation = ops.Lu()(matrix)
        pivots = ops.reshape(ops.permute_dims(lu, (1, 0)), (n * n,))[:: n + 1]
        # A pivot that is rounding error next to its column comes from linearly dependent columns.
        rounding = ops.mul(
            ops.reduce_max(ops.abs(columns), (1,)), 4.0 * n * float(finfo(dtype).eps)
        )
        is_singular = ops.reduce_or(ops.le(ops.abs(pivots), rounding), (0,))
        row_sizes = ops.select(is_singular, ops.full_like(row_sizes, float("nan")), row_sizes)
        return DenseFactors(row_sizes, matrix, lu, permutation)

    def solve(self, y: PyTree) -> PyTree:
        """The x that the function maps to `y`."""
        vector = RealVector.of(y)
        rhs = ops.expand_dims(ops.div(vector.values, self.row_sizes), (1,))
        x = LuSolve()(self.matrix, self.lu, self.permutation, rhs)
        return vector.restore(ops.squeeze(x, (1,)))


def _iterate(solver: Function, g: Function, y: PyTree) -> PyTree:
    """The x with `g(x) == y` by an iterative solver; nan if it did not converge."""
    vector = RealVector.of(y)
    matvec, epsilon = vector.function(g), float(finfo(vector.values.dtype).eps)
    x = solver(matvec, vector.values, tol=8.0 * epsilon)[0]
    error, size = [
        ops.reduce_max(ops.abs(v), (0,)) for v in (ops.sub(vector.values, matvec(x)), vector.values)
    ]
    is_solved = ops.le(error, ops.mul(size, epsilon**0.5))
    return vector.restore(ops.select(is_solved, x, ops.full_like(x, float("nan"))))
