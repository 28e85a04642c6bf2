"""Minimization of functions of vectors, with the names and signatures of `jax.scipy.optimize`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, NamedTuple

from functx import ops
from functx.core import tree
from functx.core.argument_errors import explain_errors as _explain_errors
from functx.core.errors import ArgumentError, ShapeError, ValueRangeError, type_name
from functx.core.missing_names import suggest_alternatives as _suggest_alternatives
from functx.core.tracer import aval_of
from functx.core.types import is_complex
from functx.core.typing import ArrayLike, ArrayOrList, Function, PyTree, Value
from functx.numpy import asarray, atleast_1d, broadcast_to, concatenate
from functx.numpy.promotion import as_inexact, operand
from functx.scipy.optimize.implicit_systems import LinearOptions, implicit_solution
from functx.scipy.optimize.iteration import (
    Bounds,
    DescentMethod,
    Iteration,
    IterationLimits,
    Objective,
)
from functx.scipy.optimize.line_searches import BFGS, LimitedMemoryBFGS, NewtonCG
from functx.scipy.optimize.trust_regions import ExactTrustRegion, TruncatedTrustRegion
from functx.transforms.grad import value_and_grad

__all__ = ["OptimizeResults", "minimize"]


class OptimizeResults(NamedTuple):
    """The result of `minimize`.

    `x` is the minimum, and `fun` and `jac` are the value and the gradient there. `status` is 0 if the
    gradient met the tolerance, 1 or 2 after the greatest number of iterations or evaluations, and 3 if no
    step led further. `hess_inv` is an estimate of the inverse of the Hessian, or None. `nfev`, `njev` and
    `nit` count evaluations of the function, of its gradient, and iterations.
    """

    x: Value
    success: Value
    status: Value
    fun: Value
    jac: Value
    hess_inv: Value | None
    nfev: Value
    njev: Value
    nit: Value


_METHODS: dict[str, DescentMethod] = {
    "bfgs": BFGS(),
    "l-bfgs-b": LimitedMemoryBFGS(),
    "l-bfgs-experimental-do-not-rely-on-this": LimitedMemoryBFGS(),
    "newton-cg": NewtonCG(),
    "trust-ncg": TruncatedTrustRegion(),
    "trust-exact": ExactTrustRegion(),
}


def minimize(
    fun: Function,
    x0: ArrayOrList,
    args: tuple[PyTree, ...] = (),
    *,
    method: str,
    tol: float | None = None,
    bounds: Sequence[tuple[Any, Any]] | tuple[ArrayLike, ArrayLike] | None = None,
    options: Mapping[str, Any] | None = None,
) -> OptimizeResults:
    """A local minimum of `fun(x, *args)`, a scalar function of the vector `x`, from the guess `x0`.

    `method` is one of these, in any case:

    - "BFGS": quasi-Newton steps with a dense matrix. Options: `norm`, the order of the norm of the
      gradient, and `line_search_maxiter`.
    - "L-BFGS-B", and JAX's "l-bfgs-experimental-do-not-rely-on-this": the same from the last `maxcor`
      steps. Options: `ftol`, a relative decrease of `fun` that is little enough to end, and `maxls`. With
      `bounds`, for each element of `x` a pair, in which None stands for none, `x` stays within them.
    - "Newton-CG": Newton's steps, each found by conjugate gradients. Option: `line_search_maxiter`.
    - "trust-ncg" and "trust-exact": Newton's steps within a radius, by conjugate gradients, or by the
      eigenvalues of the Hessian. Options: `initial_trust_radius`, `max_trust_radius` and `eta`.

    All have the options `gtol`, the tolerance of the gradient, by default `tol`, `maxiter` and `maxfun`.
    Minima within bounds have no gradient in the free elements. Elements may be complex: `jac` is then the
    direction of steepest ascent, and `hess_inv` and `bounds` are of the real, then the imaginary parts.

    By the implicit function theorem, `x` and `fun` have derivatives, of any order and in both modes, in
    `args`, in `bounds` and in all that `fun` closes over, where the Hessian is regular; that in `x0` is
    zero. They are those of the minimum, so they presume success. `functx.implicit` gives them to other solvers.

    Raises ValueRangeError for another method, and ArgumentError for options that it has not.

    >>> import numpy
    >>> from functx import grad
    >>> from functx.scipy.optimize import minimize
    >>> def minimum(a):
    ...     return minimize(lambda x: ((x - a) ** 2).sum(), numpy.zeros(2), method="BFGS").x[0]
    >>> round(float(minimum(3.0)), 4), round(float(grad(minimum)(3.0)), 4)
    (3.0, 1.0)
    """
    name = method.lower() if isinstance(method, str) else method
    if name not in _METHODS:
        raise ValueRangeError(
            f"minimize: method must be one of {', '.join(_METHODS)}; got {method!r}"
        )
    if not isinstance(args, tuple):
        raise ArgumentError(
            f"minimize: args given to fun must be a tuple; got {args!r}", fix="Write (args,)."
        )
    x0 = _as_vector(x0)
    if is_complex(x0.dtype):
        return _minimize_parts(
            fun, x0, args, method=method, tol=tol, bounds=bounds, options=options
        )
    chosen = _METHODS[name]
    limits, chosen = _read_options(method, chosen, tol, options, x0.size)
    box = _read_bounds(bounds, x0)
    if box is not None and not isinstance(chosen, LimitedMemoryBFGS):
        raise ArgumentError(f"minimize: only L-BFGS-B takes bounds; got the method {method!r}")

    def value(x: Value) -> Value:
        return _as_scalar(fun(x, *args))

    objective = Objective(value_and_grad(value), box)

    def residual(x: Value) -> Value:
        return objective.projected_gradient(objective.evaluate(x))

    def solve(_: Function, guess: Value) -> tuple[Value, Iteration]:
        found = chosen.run(objective, guess, limits)
        return found.point.x, found

    linear = LinearOptions(symmetric=box is None)
    x, found = implicit_solution("minimize", residual, x0, solve, linear, has_aux=True)
    point = objective.evaluate(x)
    return OptimizeResults(
        x=x,
        success=ops.eq(found.status, 0),
        status=found.status,
        fun=point.value,
        jac=point.gradient,
        hess_inv=found.memory if isinstance(chosen, BFGS) else None,
        nfev=found.evaluations,
        njev=found.evaluations,
        nit=found.steps,
    )


def _as_vector(x0: ArrayOrList) -> Value:
    """The initial guess as an inexact vector."""
    if tree.structure(x0) != tree.structure(0) and not isinstance(x0, (list, tuple)):
        raise ArgumentError(
            f"minimize: x0 must be a vector; got {type_name(x0)}",
            fix="functx.flatten_util.ravel_pytree(x0) gives a vector, and the function back to the pytree.",
        )
    vector = as_inexact(atleast_1d(operand(x0)))
    if vector.ndim != 1:
        raise ShapeError(f"minimize: x0 must be a vector; got {aval_of(vector)!r}")
    return vector


def _as_scalar(found: PyTree) -> Value:
    """The result of the function to minimize, which must be a scalar."""
    if tree.structure(found) != tree.structure(0) or aval_of(found).shape:
        raise ShapeError(
            f"minimize: fun must return a scalar; got {tree.map(aval_of, found)!r}",
            fix="Return one number, such as the sum of squares of a vector.",
        )
    return found  # type: ignore[no-any-return]


def _minimize_parts(
    fun: Function, x0: Value, args: tuple[PyTree, ...], **options: Any
) -> OptimizeResults:
    """The minimum over the real and then the imaginary parts of complex elements."""
    n = x0.size

    def join(parts: Value) -> Value:
        return ops.complex(parts[:n], parts[n:])

    found = minimize(
        lambda parts, *args: fun(join(parts), *args),
        concatenate([ops.real(x0), ops.imag(x0)]), args, **options,
    )  # fmt: skip
    return found._replace(x=join(found.x), jac=join(found.jac))


def _read_options(
    name: str,
    method: DescentMethod,
    tol: float | None,
    options: Mapping[str, Any] | None,
    size: int,
) -> tuple[IterationLimits, DescentMethod]:
    """The limits of the iteration, and `method` with its own options."""
    given = dict(options or {})
    limits = {field: given.pop(field, None) for field in ("maxiter", "maxfun", "maxgrad", "gtol")}
    known = {field.name for field in fields(method)}
    if not given.keys() <= known:
        raise ArgumentError(
            f"minimize: the options of {name} are maxiter, maxfun, gtol"
            + "".join([f", {field}" for field in sorted(known)])
            + f"; got {', '.join(sorted({*given} - known))}"
        )
    gtol = limits["gtol"] if limits["gtol"] is not None else tol
    calls = [limits[field] for field in ("maxfun", "maxgrad") if limits[field] is not None]
    return IterationLimits(
        method.default_gtol if gtol is None else gtol,
        200 * size if limits["maxiter"] is None else limits["maxiter"],
        min(calls) if calls else None,
    ), replace(method, **given)


def _read_bounds(bounds: Any, x0: Value) -> Bounds | None:
    if bounds is None:
        return None
    if hasattr(bounds, "lb") and hasattr(bounds, "ub"):
        bounds = [
            *zip(broadcast_to(bounds.lb, x0.shape), broadcast_to(bounds.ub, x0.shape), strict=True)
        ]
    pairs = [*bounds]
    if len(pairs) != x0.size or any(len(pair) != 2 for pair in pairs):
        raise ArgumentError(
            f"minimize: bounds must be a pair for each of the {x0.size} elements of x0; got {bounds!r}"
        )
    infinity = float("inf")
    lower = [-infinity if low is None else low for low, _ in pairs]
    upper = [infinity if high is None else high for _, high in pairs]
    return Bounds(asarray(lower, x0.dtype), asarray(upper, x0.dtype))


_suggest_alternatives("jax.scipy.optimize", __name__)
_explain_errors(__name__)
