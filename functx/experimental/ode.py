"""Ordinary differential equations, with the names and signatures of `jax.experimental.ode`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from ml_dtypes import finfo

from functx import ops
from functx.core import tree
from functx.core.argument_errors import explain_errors as _explain_errors
from functx.core.errors import DTypeError, ShapeError
from functx.core.missing_names import suggest_alternatives as _suggest_alternatives
from functx.core.tracer import aval_of
from functx.core.types import is_inexact
from functx.core.typing import ArrayOrList, Function, Number, PyTree, Value
from functx.custom.checkpoint import checkpoint
from functx.flatten_util import ravel_pytree
from functx.numpy import (
    abs,
    clip,
    concatenate,
    exp2,
    floor,
    linalg,
    log2,
    maximum,
    mean,
    minimum,
    sqrt,
    stack,
    where,
)
from functx.numpy.promotion import as_inexact, operand
from functx.transforms.control.loops import while_loop
from functx.transforms.control.rows import scan
from functx.transforms.vmap import vmap

__all__ = ["odeint"]


# J. R. Dormand, P. J. Prince, "A family of embedded Runge-Kutta formulae" (1980): the nodes and the weights
# of the stages, of which the last row gives the solution, and the weights of its error.
NODES = (1 / 5, 3 / 10, 4 / 5, 8 / 9, 1.0, 1.0)
WEIGHTS = (
    (1 / 5,),
    (3 / 40, 9 / 40),
    (44 / 45, -56 / 15, 32 / 9),
    (19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729),
    (9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656),
    (35 / 384, 0.0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84),
)
ERROR_WEIGHTS = (71 / 57600, 0.0, -71 / 16695, 71 / 1920, -17253 / 339200, 22 / 525, -1 / 40)
# L. F. Shampine, "Some practical Runge-Kutta formulas" (1986): the weights of the middle of a step.
MIDDLE_WEIGHTS = (
    *(6025192743 / 60171106304, 0.0, 51252292925 / 130801643196),
    *(-2691868925 / 90256659456, 187940372067 / 3189068634112),
    *(-1776094331 / 39487288512, 11237099 / 470086768),
)
# Up to comb(18, 2) = 153 steps between two times are repeated at most twice.
CHECKPOINTS = 16


class Solver(NamedTuple):
    """A vector equation, and the tolerances and limits of its steps."""

    slope: Function
    rtol: Number
    atol: Number
    max_steps: Number
    max_length: Number


class Trajectory(NamedTuple):
    """The solution at `time` and its slope, the next step, and the last one as a polynomial."""

    y: Value
    slope: Value
    time: Value
    length: Value
    last_time: Value
    polynomial: Value
    steps: Value


def odeint(
    func: Function,
    y0: PyTree,
    t: ArrayOrList,
    *args: PyTree,
    rtol: Number = 1.4e-8,
    atol: Number = 1.4e-8,
    mxstep: Number = math.inf,
    hmax: Number = math.inf,
) -> PyTree:
    """The solution of dy/dt = `func(y, t, *args)` with `y = y0` at `t[0]`, at all times `t`, which rise or fall.

    `y0` may be a pytree; each leaf of the result has the times as a new first axis. Steps have the error
    `atol + rtol * abs(y)` or less, with an `rtol` of at least 4 rounding errors; they have at most the length
    `hmax`, and between two times the number `mxstep`. Where that does not suffice, or a step vanishes, the
    solution is nan.

    Derivatives in `y0`, `t`, `args` and all that `func` closes over are those of the steps, whose lengths are
    constants: of any order, in both modes. Reverse mode keeps the solution at the times `t`, and repeats the
    steps between two of them from a few checkpoints.

    Raises DTypeError for times that are no floats, ShapeError for times that are no vector.

    >>> import numpy
    >>> from functx import grad
    >>> from functx.experimental.ode import odeint
    >>> def end(rate):
    ...     return odeint(lambda y, t: -rate * y, 1.0, numpy.array([0.0, 1.0]))[-1]
    >>> round(float(end(2.0)), 4), round(float(grad(end)(2.0)), 4)
    (0.1353, -0.1353)
    """
    times = operand(t)
    aval = aval_of(times)
    if not is_inexact(aval.dtype) or aval.dtype.kind == "c":
        raise DTypeError(f"odeint: t must be an array of floats; got {aval!r}")
    if aval.ndim != 1 or not aval.size:
        raise ShapeError(f"odeint: t must be a vector with elements; got {aval!r}")
    y0 = tree.map(lambda x: as_inexact(operand(x)), y0)
    vector, unravel = ravel_pytree(y0)
    # Falling times are rising ones of the reversed equation.
    sign = where(times[-1] < times[0], -1.0, 1.0).astype(aval.dtype)

    def slope(y: Value, time: Value) -> Value:
        state = unravel(y)
        out = func(state, sign * time, *args)
        slopes = ravel_pytree(out)[0]
        is_like_state = tree.structure(out) == tree.structure(state)
        pairs = zip(tree.leaves(out), tree.leaves(state), strict=False)
        if slopes.shape != y.shape or (
            is_like_state and any(aval_of(d).shape != x.shape for d, x in pairs)
        ):
            raise ShapeError(
                "odeint: func must return arrays of the shapes of y0; got "
                f"{tree.map(aval_of, out)!r} for {tree.map(aval_of, state)!r}"
            )
        return sign.astype(y.dtype) * slopes.astype(y.dtype)

    # Below that, rounding would decide which steps are accepted.
    least = 4.0 * float(finfo(vector.dtype).eps)
    solver = Solver(slope, maximum(rtol, least), atol, mxstep, hmax)
    return vmap(unravel)(_solve(solver, vector, sign * times))


def _solve(solver: Solver, y0: Value, times: Value) -> Value:
    """The solution at all `times`, one row each."""
    start = times[0]
    slope = solver.slope(y0, start)
    length = ops.stop_gradient(_first_length(solver, y0, start, slope))
    constant = stack([*[ops.zeros_like(y0)] * 4, y0])
    first = Trajectory(y0, slope, start, length, start, constant, ops.full((), 0, "int32"))

    @checkpoint
    def solve_up_to(state: Trajectory, target: Value) -> tuple[Trajectory, Value]:
        def is_open(state: Trajectory) -> Value:
            moves = state.time + state.length > state.time
            return (state.time < target) & (state.steps < solver.max_steps) & moves

        state = state._replace(steps=first.steps)
        state = while_loop(is_open, lambda s: _step(solver, s), state, checkpoints=CHECKPOINTS)
        width = state.time - state.last_time
        place = (target - state.last_time) / where(width > 0.0, width, 1.0)
        place = where(state.time < target, math.nan, place).astype(y0.dtype)
        value = state.polynomial[0]
        for coefficient in state.polynomial[1:]:
            value = value * place + coefficient
        return state, value

    _, rows = scan(solve_up_to, first, times[1:])
    return concatenate([y0[None], rows])


def _step(solver: Solver, state: Trajectory) -> Trajectory:
    """The next step, or the same state with a shorter step if the error is too large."""
    y, time, length = state.y, state.time, state.length
    h = length.astype(y.dtype)
    slopes = [state.slope]
    for node, weights in zip(NODES, WEIGHTS, strict=True):
        stage = y + h * _weighted_sum(weights, slopes)
        slopes.append(solver.slope(stage, time + node * length))
    error = h * _weighted_sum(ERROR_WEIGHTS, slopes)
    scale = solver.atol + solver.rtol * maximum(abs(y), abs(stage))
    ratio = sqrt(mean((abs(error) / scale) ** 2))
    ratio = ops.stop_gradient(ratio).astype(length.dtype)
    # Up to ten times as long, or down to a fifth, in powers of the fourth root of 2, and no longer than an
    # error tells that is not of rounding alone: a repeated step must be what it was.
    least = where(ratio < 1.0, 1.0, 0.2)
    rounding = 0.4 * float(finfo(y.dtype).eps) / solver.rtol
    factor = clip(0.9 * maximum(maximum(ratio, rounding), 1e-10) ** -0.2, least, 10.0)
    factor = exp2(floor(4.0 * log2(factor)) / 4.0)
    next_length = ops.stop_gradient(minimum(length * factor, solver.max_length))
    middle = y + h * _weighted_sum(MIDDLE_WEIGHTS, slopes)
    polynomial = _interpolate(y, stage, middle, h * slopes[0], h * slopes[-1])
    is_accepted = ratio <= 1.0
    accepted = stage, slopes[-1], time + length, time, polynomial
    kept = y, state.slope, time, state.last_time, state.polynomial
    pairs = zip(accepted, kept, strict=True)
    y, slope, time, last_time, polynomial = [where(is_accepted, a, b) for a, b in pairs]
    next_length = next_length.astype(length.dtype)
    return Trajectory(y, slope, time, next_length, last_time, polynomial, state.steps + 1)


def _weighted_sum(weights: Sequence[float], slopes: Sequence[Value]) -> Value:
    terms = [w * k for w, k in zip(weights, slopes, strict=False) if w]
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total


def _interpolate(y0: Value, y1: Value, middle: Value, d0: Value, d1: Value) -> Value:
    """The coefficients of the polynomial on [0, 1] with these values and end slopes, highest first."""
    return stack([
        2 * (d1 - d0) - 8 * (y0 + y1) + 16 * middle,
        5 * d0 - 3 * d1 + 18 * y0 + 14 * y1 - 32 * middle,
        d1 - 4 * d0 - 11 * y0 - 5 * y1 + 16 * middle,
        d0,
        y0,
    ])  # fmt: skip


def _first_length(solver: Solver, y: Value, time: Value, slope: Value) -> Value:
    """E. Hairer, S. P. Norsett, G. Wanner, "Solving ordinary differential equations I" (1993), II.4."""
    scale = solver.atol + abs(y) * solver.rtol
    size, speed = linalg.norm(y / scale), linalg.norm(slope / scale)
    is_tiny = (size < 1e-5) | (speed < 1e-5)
    guess = where(is_tiny, 1e-6, 0.01 * size / where(is_tiny, 1.0, speed))
    moved = solver.slope(y + guess.astype(y.dtype) * slope, time + guess.astype(time.dtype))
    change = linalg.norm((moved - slope) / scale) / guess
    largest = maximum(speed, change)
    is_constant = largest <= 1e-15
    length = where(
        is_constant,
        maximum(1e-6, guess * 1e-3),
        (0.01 / where(is_constant, 1.0, largest)) ** 0.2,
    )
    return minimum(minimum(100.0 * guess, length), solver.max_length).astype(time.dtype)


_suggest_alternatives("jax.experimental.ode", __name__)
_explain_errors(__name__)
