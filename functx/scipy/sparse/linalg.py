"""Iterative solvers of linear systems, with the names and signatures of `jax.scipy.sparse.linalg`.

The matrix may be a function, and the unknowns a pytree. Derivatives are further solves.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from ml_dtypes import finfo

from functx import ops
from functx.core import tree
from functx.core.argument_errors import explain_errors as _explain_errors
from functx.core.errors import ArgumentError, ShapeError, ValueRangeError
from functx.core.missing_names import suggest_alternatives as _suggest_alternatives
from functx.core.tracer import aval_of
from functx.core.typing import ArrayLike, Function, Number, PyTree, Value, Values
from functx.custom.custom_linear_solve import custom_linear_solve
from functx.custom.custom_root import custom_root
from functx.flatten_util import ravel_pytree
from functx.numpy import asarray, conj, maximum, zeros
from functx.numpy.promotion import as_inexact, operand
from functx.numpy.tensor_contractions import matmul, vdot
from functx.ops.operands import as_int
from functx.transforms.control.loops import fori_loop, while_loop
from functx.transforms.linear_transpose import linear_transpose

__all__ = ["bicgstab", "cg", "gmres"]

Matvec = Callable[[Value], Value]


def cg(
    A: PyTree,  # noqa: N803 - JAX's names
    b: PyTree,
    x0: PyTree = None,
    *,
    tol: Number = 1e-5,
    atol: Number = 0.0,
    maxiter: int | None = None,
    M: PyTree = None,  # noqa: N803
) -> tuple[PyTree, None]:
    """The `x` with `A x = b`, by conjugate gradients, and None.

    `A` is a Hermitian positive definite matrix or such a linear function of pytrees like `b`. `x0` is a
    guess, zero by default, and the preconditioner `M`, near the inverse of `A`, is as `A`. The iteration
    ends when the norm of `b - A x` is at most `max(tol * norm(b), atol)`, or after `maxiter` steps, by
    default ten for each unknown. Derivatives, of any order and in both modes, are those of the solution in
    `b` and in all that `A` depends on, as accurate as the solves.

    Raises ShapeError and TreeError for operands that do not fit.

    >>> import numpy
    >>> from functx import grad
    >>> from functx.scipy.sparse.linalg import cg
    >>> solve = lambda s: cg(lambda x: s * x, numpy.ones(2))[0].sum()
    >>> float(solve(2.0)), float(grad(solve)(2.0))
    (1.0, -0.5)
    """
    return _solve("cg", _conjugate_gradients, A, b, x0, tol, atol, maxiter, M, hermitian=True)


def bicgstab(
    A: PyTree,  # noqa: N803
    b: PyTree,
    x0: PyTree = None,
    *,
    tol: Number = 1e-5,
    atol: Number = 0.0,
    maxiter: int | None = None,
    M: PyTree = None,  # noqa: N803
) -> tuple[PyTree, None]:
    """The `x` with `A x = b`, by stabilized biconjugate gradients, and None.

    `A` is any regular matrix or linear function; the arguments are those of `cg`.

    H. A. van der Vorst, "Bi-CGSTAB: a fast and smoothly converging variant of Bi-CG" (1992).
    """
    return _solve("bicgstab", _stabilized_gradients, A, b, x0, tol, atol, maxiter, M)


def gmres(
    A: PyTree,  # noqa: N803
    b: PyTree,
    x0: PyTree = None,
    *,
    tol: Number = 1e-5,
    atol: Number = 0.0,
    restart: int = 20,
    maxiter: int | None = None,
    M: PyTree = None,  # noqa: N803
    solve_method: str = "batched",
) -> tuple[PyTree, None]:
    """The `x` with `A x = b`, by generalized minimal residuals, and None.

    `A` is any regular matrix or linear function. A Krylov space grows to `restart` dimensions, then the
    method restarts, at most `maxiter` times; the other arguments are those of `cg`. Both of JAX's names of a
    `solve_method`, "batched" and "incremental", find the least residual of each whole space.

    Y. Saad, M. H. Schultz, "GMRES: a generalized minimal residual algorithm" (1986), with the
    preconditioner on the right.
    """
    if solve_method not in ("batched", "incremental"):
        raise ValueRangeError(
            f'gmres: solve_method must be "batched" or "incremental"; got {solve_method!r}'
        )
    restart = as_int("gmres: restart", restart)
    if restart < 1:
        raise ValueRangeError(f"gmres: restart must be positive; got {restart}")
    solver = partial(_minimal_residuals, restart=restart)
    return _solve("gmres", solver, A, b, x0, tol, atol, maxiter, M)


class LinearProblem(NamedTuple):
    """A system of vectors: its right-hand side, a preconditioner, and the limits of the iteration."""

    apply: Matvec
    rhs: Value
    precondition: Matvec
    threshold: Value
    max_steps: Value | int

    def residual(self, x: Value) -> Value:
        """`rhs - A x`."""
        return self.rhs - self.apply(x)

    def iterate(self, step: Function, start: tuple[ArrayLike, ...]) -> Value:
        """The last solution of an iteration on solutions, residuals, other values, and counts of steps."""

        def is_open(state: Values) -> Value:
            is_inexact = ops.gt(_squared_norm(state[1]), self.threshold)
            return ops.bitwise_and(is_inexact, ops.lt(state[-1], self.max_steps))

        out: Values = while_loop(is_open, step, start)
        return out[0]


def _solve(
    name: str,
    solver: Callable[[LinearProblem, Value], Value],
    a: PyTree,
    b: PyTree,
    x0: PyTree,
    tol: Number,
    atol: Number,
    maxiter: int | None,
    preconditioner: PyTree,
    hermitian: bool = False,
) -> tuple[PyTree, None]:
    """The solution by `solver`, which is given a problem of vectors and a guess."""
    b = tree.map(lambda v: as_inexact(asarray(v)), b)
    matvec = _linear_function(name, "A", a)
    precondition = (
        (lambda v: v) if preconditioner is None else _linear_function(name, "M", preconditioner)
    )
    if maxiter is None:
        maxiter = 10 * sum([aval_of(v).size for v in tree.leaves(b)])

    def solve(
        apply: Function, rhs: PyTree, guess: PyTree = None, transposed: bool = False
    ) -> PyTree:
        vector, unravel = ravel_pytree(rhs)
        inverse = precondition
        if transposed and preconditioner is not None:
            inverse = lambda v: linear_transpose(precondition, v)(v)[0]  # noqa: E731
        squared = _squared_norm(vector)
        threshold = maximum(squared * tol**2, atol**2).astype(squared.dtype)

        def of_vectors(fun: Function) -> Matvec:
            return lambda v: ops.convert_element_type(
                ravel_pytree(fun(unravel(v)))[0], vector.dtype
            )

        problem = LinearProblem(of_vectors(apply), vector, of_vectors(inverse), threshold, maxiter)
        start = ops.zeros_like(vector) if guess is None else ravel_pytree(guess)[0]
        return unravel(solver(problem, ops.convert_element_type(start, vector.dtype)))

    if x0 is None:
        symmetric = hermitian and not any([v.dtype.kind == "c" for v in tree.leaves(b)])
        x = custom_linear_solve(
            matvec, b, solve, partial(solve, transposed=True), symmetric=symmetric
        )
        return x, None
    tree.check_same_structure(tree.structure(b), tree.structure(x0), f"{name}: x0", "b")
    x0 = tree.map(lambda v, like: _guess(name, v, like), x0, b)

    # The guess is one of the solution, not of its derivatives.
    def residual(x: PyTree) -> PyTree:
        return tree.map(ops.sub, matvec(x), b)

    return custom_root(residual, x0, lambda _, guess: solve(matvec, b, guess), solve), None


def _guess(name: str, x: ArrayLike, like: Value) -> Value:
    if aval_of(operand(x)).shape != aval_of(like).shape:
        raise ShapeError(
            f"{name}: x0 must have the shapes of b; got {aval_of(x)!r} for {aval_of(like)!r}"
        )
    return ops.convert_element_type(operand(x), aval_of(like).dtype)


def _linear_function(name: str, role: str, a: PyTree) -> Function:
    """The function that multiplies with the matrix `a`, if that is no function already."""
    if callable(a):
        return a  # type: ignore[no-any-return]
    shape = getattr(a, "shape", None)
    if isinstance(a, list):
        a = operand(a)
        shape = aval_of(a).shape
    if shape is None or not hasattr(a, "__matmul__"):
        raise ArgumentError(
            f"{name}: {role} must be a matrix or a function; got {type(a).__name__}"
        )
    if len(shape) != 2 or shape[0] != shape[1]:
        raise ShapeError(f"{name}: {role} must be a square matrix; got the shape {tuple(shape)}")
    return partial(_multiply, a)


def _multiply(a: Value, x: Value) -> Value:
    if hasattr(a, "dtype") and hasattr(a, "ndim"):
        return matmul(a, x, precision="highest")
    return a @ x  # type: ignore[no-any-return]


def _dot(x: Value, y: Value) -> Value:
    return vdot(x, y, precision="highest")


def _squared_norm(x: Value) -> Value:
    return ops.real(_dot(x, x)) if x.dtype.kind == "c" else _dot(x, x)


def _conjugate_gradients(problem: LinearProblem, x: Value) -> Value:
    """M. R. Hestenes, E. Stiefel, "Methods of conjugate gradients for solving linear systems" (1952)."""

    def step(state: tuple[Value, ...]) -> tuple[Value, ...]:
        x, r, p, gamma, k = state
        image = problem.apply(p)
        alpha = gamma / _dot(p, image)
        x, r = x + alpha * p, r - alpha * image
        z = problem.precondition(r)
        new_gamma = _dot(r, z)
        return x, r, z + new_gamma / gamma * p, new_gamma, k + 1

    r = problem.residual(x)
    z = problem.precondition(r)
    return problem.iterate(step, (x, r, z, _dot(r, z), 0))


def _stabilized_gradients(problem: LinearProblem, x: Value) -> Value:
    """Two steps of one dimension each: a biconjugate one, and one that minimizes the residual."""

    def step(state: tuple[Value, ...]) -> tuple[Value, ...]:
        x, r, p, rho, k = state
        direction = problem.precondition(p)
        image = problem.apply(direction)
        alpha = rho / _dot(shadow, image)
        s = r - alpha * image
        correction = problem.precondition(s)
        t = problem.apply(correction)
        squared = _squared_norm(t)
        # Without a residual after the first half the second one is nothing.
        omega = ops.select(
            ops.eq(squared, 0.0), 0.0, _dot(t, s) / ops.select(ops.eq(squared, 0.0), 1.0, squared)
        )
        new_x, new_r = x + alpha * direction + omega * correction, s - omega * t
        new_rho = _dot(shadow, new_r)
        p = new_r + new_rho / rho * (alpha / omega) * (p - omega * image)
        return new_x, new_r, p, new_rho, k + 1

    # A breakdown makes nans, which end the iteration.
    r = shadow = problem.residual(x)
    return problem.iterate(step, (x, r, r, _dot(r, r), 0))


def _minimal_residuals(problem: LinearProblem, x: Value, restart: int) -> Value:
    """The iteration over Krylov spaces of `restart` dimensions."""
    restart = min(restart, x.size)

    def step(state: tuple[Value, ...]) -> tuple[Value, ...]:
        x, r, k = state
        norm = ops.sqrt(_squared_norm(r))
        basis, hessenberg = _arnoldi(problem, r / norm, restart)
        weights = _least_squares(hessenberg, norm)
        x = x + problem.precondition(matmul(weights, basis[:-1], precision="highest"))
        return x, problem.residual(x), k + 1

    return problem.iterate(step, (x, problem.residual(x), 0))


def _arnoldi(problem: LinearProblem, start: Value, count: int) -> tuple[Value, Value]:
    """Orthonormal rows that span the Krylov space of `start`, and the matrix of the map between them.

    The rows after the first that the space does not need are zero.
    """
    n = start.size
    epsilon = _epsilon(start)

    def step(k: Value, state: tuple[Value, Value]) -> tuple[Value, Value]:
        basis, columns = state
        image = problem.apply(problem.precondition(basis[k]))
        size = ops.sqrt(_squared_norm(image))
        column = ops.zeros_like(columns[0])
        rest = image
        # Twice is enough: W. Kahan, in B. Parlett, "The symmetric eigenvalue problem" (1980).
        for _ in range(2):
            parts = matmul(conj(basis), rest, precision="highest")
            rest = rest - matmul(parts, basis, precision="highest")
            column = column + parts
        norm = ops.sqrt(_squared_norm(rest))
        is_new = ops.gt(norm, epsilon * size)
        row = ops.select(is_new, rest / ops.select(is_new, norm, 1.0), ops.zeros_like(rest))
        length = ops.select(is_new, norm, 0.0).astype(column.dtype)
        basis = basis.at[k + 1].set(row)
        return basis, columns.at[k].set(column.at[k + 1].set(length))

    basis = zeros((count + 1, n), start.dtype).at[0].set(start)
    columns = zeros((count, count + 1), start.dtype)
    basis, columns = fori_loop(0, count, step, (basis, columns))
    return basis, ops.permute_dims(columns, (1, 0))


def _least_squares(a: Value, norm: Value) -> Value:
    """The shortest x for which `a x` is nearest to the first unit vector times `norm`."""
    u, values, vh = ops.svd(a)
    is_nonzero = ops.gt(values, ops.mul(values[0], _epsilon(values)))
    factors = ops.select(is_nonzero, norm / ops.select(is_nonzero, values, 1.0), 0.0)
    return matmul(conj(u[0]) * factors, conj(vh), precision="highest")


def _epsilon(x: Value) -> float:
    """The rounding error of sums of a few terms of the dtype of `x`, relative to them."""
    return 16.0 * float(finfo(x.dtype).eps)


_suggest_alternatives("jax.scipy.sparse.linalg", __name__)
_explain_errors(__name__)
