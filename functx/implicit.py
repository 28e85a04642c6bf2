"""Solutions of equations, over any solver, with derivatives by the implicit function theorem.

M. Blondel et al., "Efficient and modular implicit differentiation" (2022). The decorators have the
form of JAXopt's `implicit_diff.custom_root`.
"""

from __future__ import annotations

import math
from functools import partial

import jax
import numpy as np

from functx import ops
from functx.core import tree
from functx.core.argument_errors import explain_errors as _explain_errors
from functx.core.errors import ConcretizationError, ShapeError
from functx.core.tracer import aval_of
from functx.core.types import kind
from functx.core.typing import Function, PyTree
from functx.ops.callbacks import pure_callback
from functx.scipy.optimize.implicit_systems import LinearOptions, implicit_solution
from functx.transforms.argument_names import check_callable, function_name, wrap_transform
from functx.transforms.grad import grad

__all__ = ["argmin", "fixed_point", "on_host", "root"]


def root(
    f: Function,
    solver: Function | None = None,
    *,
    has_aux: bool = False,
    linear_solver: str | Function = "auto",
    symmetric: bool = False,
    residual_tol: float | None = None,
) -> Function:
    """`solver` with the derivatives of the root `x` of `f(x, *args) == 0`, not of its steps.

    `solver(x0, *args)` returns `x`, or with `has_aux` a pair of `x` and values without derivatives. It
    may be any function: loops of `lax`, loops of Python by `functx.explore`, a library written in JAX, or
    code on the host by `on_host`. `x` is a pytree, and `f(x, *args)` one of the same structure, shapes
    and dtypes. Derivatives, of any order and in both modes, are taken in `args`, keyword arguments, and
    all that `f` closes over; the derivative in `x0` is zero. Without `solver`, a decorator of solvers is
    returned.

    A derivative solves a linear system with the derivative of `f` in `x`. `linear_solver` is "lu", by a
    matrix that is factored once for derivatives of every order; "cg", "gmres" or "bicgstab", without
    a matrix; "auto", "lu" up to 512 unknowns and an iteration for more; or a function that is called
    as `linear_solver(g, y)` and returns the pytree `v` with `g(v) == y`. `symmetric` promises that the
    derivative of `f` in `x` is, so that "auto" takes "cg".

    Derivatives are nan where the matrix is singular, where an iteration did not converge, and, with
    `residual_tol`, where an element of `f(x, *args)` is greater than it, since `x` is then no root.
    Without `residual_tol` they presume that the solver converged; an iteration does not notice that a
    singular system has several solutions.

    >>> import functx
    >>> @functx.implicit.root(lambda x, a: x**2 - a)
    ... def newton(x, a):
    ...     return functx.lax.fori_loop(0, 20, lambda _, x: (x + a / x) / 2, x)
    >>> [float(f(1.0, 4.0)) for f in (newton, functx.grad(newton, 1))]
    [2.0, 0.25]
    """
    options = LinearOptions(linear_solver, symmetric, residual_tol)
    return _solution("root", f, f, solver, options, has_aux)


def fixed_point(
    f: Function,
    solver: Function | None = None,
    *,
    has_aux: bool = False,
    linear_solver: str | Function = "auto",
    symmetric: bool = False,
    residual_tol: float | None = None,
) -> Function:
    """`solver` with the derivatives of the `x` with `f(x, *args) == x`, not of its steps.

    All else is as for `root`. The linear systems have the derivative of `x - f(x)`, and `residual_tol`
    is compared with its elements.

    >>> import functx
    >>> def iterate(x, a):
    ...     return functx.lax.fori_loop(0, 99, lambda _, x: functx.numpy.cos(a * x), x)
    >>> point = functx.implicit.fixed_point(lambda x, a: functx.numpy.cos(a * x), iterate)
    >>> round(float(point(1.0, 1.0)), 4), round(float(functx.grad(point, 1)(1.0, 1.0)), 4)
    (0.7391, -0.2975)
    """

    def step(x: PyTree, *args: PyTree, **kwargs: PyTree) -> PyTree:
        following = f(x, *args, **kwargs)
        tree.check_same_structure(
            tree.structure(x), tree.structure(following), "fixed_point: what f returns", "x"
        )
        for own, new in zip(tree.leaves(x), tree.leaves(following), strict=True):
            if aval_of(own).shape != aval_of(new).shape:
                raise ShapeError(
                    f"fixed_point({function_name(f)}): f must return the shape of x; got "
                    f"{aval_of(new)!r} for x of {aval_of(own)!r}",
                    fix="Return the next x, which has the shape of x.",
                )
        return tree.map(ops.sub, x, following)

    options = LinearOptions(linear_solver, symmetric, residual_tol)
    return _solution("fixed_point", f, step, solver, options, has_aux)


def argmin(
    f: Function,
    solver: Function | None = None,
    *,
    has_aux: bool = False,
    linear_solver: str | Function = "auto",
    residual_tol: float | None = None,
) -> Function:
    """`solver` with the derivatives of a minimum `x` of `f(x, *args)`, not of its steps.

    `f` returns a scalar. All else is as for `root` of the gradient of `f` in `x`; the linear systems have
    its Hessian, which is symmetric. Stationary points that are no minima have these derivatives too.

    >>> import functx
    >>> def descend(x, a):
    ...     return functx.lax.fori_loop(0, 200, lambda _, x: x - 0.1 * functx.grad(cost)(x, a), x)
    >>> def cost(x, a):
    ...     return (x - a) ** 2 + 0.5 * x**2
    >>> lowest = functx.implicit.argmin(cost, descend)
    >>> round(float(lowest(0.0, 3.0)), 4), round(float(functx.grad(lowest, 1)(0.0, 3.0)), 4)
    (2.0, 0.6667)
    """
    check_callable(f, "argmin")
    options = LinearOptions(linear_solver, True, residual_tol)
    return _solution("argmin", f, grad(f), solver, options, has_aux)


def _solution(
    kind: str,
    f: Function,
    residual: Function,
    solver: Function | None,
    options: LinearOptions,
    has_aux: bool,
) -> Function:
    """`solver` as a function with the derivatives of the root of `residual`."""
    check_callable(f, kind)
    options.check(kind)
    if solver is None:
        return lambda solver: _solution(kind, f, residual, solver, options, has_aux)
    check_callable(solver, kind)
    solve = solver

    def wrapper(x0: PyTree, *args: PyTree, **kwargs: PyTree) -> PyTree:
        def residual_of_args(x: PyTree) -> PyTree:
            return residual(x, *args, **kwargs)

        def solve_from(_: Function, x: PyTree) -> PyTree:
            try:
                return solve(x, *args, **kwargs)
            except ConcretizationError as error:
                if type(error) is not ConcretizationError:
                    raise
                error.fix = (
                    "The solver is traced, also outside of jit: decorate it with functx.explore, loop with "
                    "functx.lax.while_loop, or run it with values by functx.implicit.on_host."
                )
                raise

        residual_of_args.__name__ = function_name(f)
        return implicit_solution(kind, residual_of_args, x0, solve_from, options, has_aux)

    return wrap_transform(wrapper, solver, kind)


def on_host(solver: Function) -> Function:
    """`solver(x0, *args)` as a function to trace: NumPy arrays go in and out when the program runs.

    It returns a pytree like `x0`. Under `vmap` it is called for each batch element. Alone it has no
    derivatives; `root`, `fixed_point` and `argmin` give it those of the solution.

    >>> import functx, numpy
    >>> def bisect(x, a):
    ...     return numpy.sqrt(a)
    >>> square_root = functx.implicit.root(lambda x, a: x * x - a, functx.implicit.on_host(bisect))
    >>> float(functx.grad(square_root, 1)(1.0, 4.0))
    0.25
    """
    check_callable(solver, "on_host")

    def wrapper(x0: PyTree, *args: PyTree, **kwargs: PyTree) -> PyTree:
        like = tree.map(lambda v: jax.ShapeDtypeStruct(np.shape(v), aval_of(v).dtype), x0)
        solve = partial(_call_on_host, solver, like)
        solve.__name__ = function_name(solver)  # type: ignore[attr-defined]
        return pure_callback(solve, like, x0, *args, vmap_method="sequential", **kwargs)

    return wrap_transform(wrapper, solver, "on_host")


_RANK_OF_KIND = {"b": 0, "i": 1, "u": 1, "f": 2, "c": 3}
"""For the kinds of dtypes, their order: numbers of a kind have no part that those of a later one lack."""


def _call_on_host(solver: Function, like: PyTree, *args: PyTree, **kwargs: PyTree) -> PyTree:
    """The result of `solver` in the dtypes of `like`."""
    found = solver(*args, **kwargs)

    def in_dtype(x: PyTree, result: jax.ShapeDtypeStruct) -> PyTree:
        value = np.asarray(x)
        ranks = [_RANK_OF_KIND.get(kind(dtype), math.inf) for dtype in (value.dtype, result.dtype)]
        # `pure_callback` says what is wrong with a text, or a number that would lose a part.
        return value.astype(result.dtype) if ranks[0] <= ranks[1] else x

    return tree.map(in_dtype, found, like)


_explain_errors(__name__)
