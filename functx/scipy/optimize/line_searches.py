"""Methods of minimization that search along a direction."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from functx import ops
from functx.core.typing import Value
from functx.numpy import abs, concatenate, eye, linalg, maximum, minimum, outer, sqrt, where, zeros
from functx.scipy.optimize.iteration import (
    DescentMethod,
    DescentStep,
    Iteration,
    Objective,
    Point,
    dot,
    epsilon,
)
from functx.transforms.control.loops import while_loop
from functx.transforms.control.rows import scan

# The decrease and the curvature that a step must have, as fractions of the slope at the start.
DECREASE, CURVATURE = 1e-4, 0.9


class SearchState(NamedTuple):
    """The trial length, the interval of lengths, its points, and the number of evaluations."""

    length: Value
    low: Value
    high: Value
    best: Point
    trial: Point
    is_accepted: Value
    evaluations: Value


def search(
    objective: Objective, start: Point, direction: Value, length: Value | float, most: int
) -> SearchState:
    """The search along `direction`, projected to the bounds, for a step of Wolfe's weak conditions.

    The interval of lengths is halved, or cut where a parabola is least. `best` is the accepted point, or
    else that of the greatest length that decreases the function enough, or the start. Where rounding hides
    the decrease, slopes decide: W. W. Hager, H. Zhang, "A new conjugate gradient method with guaranteed
    descent and an efficient line search" (2005).
    """
    slope = dot(start.gradient, direction)
    rounding = 10.0 * epsilon(start.x) * abs(start.value)

    def is_open(state: SearchState) -> Value:
        is_wide = state.low < (1.0 - epsilon(start.x)) * state.high
        return ~state.is_accepted & (state.evaluations < most) & is_wide

    def step(state: SearchState) -> SearchState:
        length = state.length
        target = start.x + length * direction
        trial = objective.evaluate(objective.project(target))
        moved = trial.x - start.x
        # On the projected path only the elements that are not held by a bound move on.
        trial_slope = dot(trial.gradient, objective.free_part(direction, target))
        is_lower = trial.value <= start.value + DECREASE * dot(start.gradient, moved)
        is_level = abs(trial.value - start.value) <= rounding
        is_lower = is_lower | (is_level & (trial_slope <= (2 * DECREASE - 1) * slope))
        is_lower = (
            is_lower
            & ops.is_finite(trial.value)
            & ops.is_finite(dot(trial.gradient, trial.gradient))
        )
        is_flat = trial_slope >= CURVATURE * slope
        low = where(is_lower, length, state.low)
        high = where(is_lower, state.high, length)
        best = Point(*[where(is_lower, t, b) for t, b in zip(trial, state.best, strict=True)])
        least = least_of_parabola(
            low, high, dot(best.gradient, direction), trial.value - best.value
        )
        width = high - low
        inside = (least > low + 0.1 * width) & (least < high - 0.1 * width)
        between = where(inside & ~is_lower, least, low + 0.5 * width)
        next_length = where(ops.is_finite(high), between, 4.0 * length)
        return SearchState(
            next_length, low, high, best, trial, is_lower & is_flat, state.evaluations + 1
        )

    zero = slope * 0.0
    first = SearchState(
        zero + length,
        zero,
        zero + float("inf"),
        start,
        start,
        ops.full((), False),
        ops.full((), 0, "int32"),
    )
    return while_loop(is_open, step, first)  # type: ignore[no-any-return]


def least_of_parabola(low: Value, high: Value, slope: Value, rise: Value) -> Value:
    """The place of the least value of a parabola with `slope` at `low`, which rises by `rise` to `high`."""
    width = high - low
    curvature = 2.0 * (rise - slope * width)
    return low - slope * width**2 / curvature


def is_stuck(start: Point, found: SearchState) -> Value:
    """Whether no step decreases the function, or rounding leaves nothing of it."""
    return (found.low == 0.0) | (found.best.x == start.x).all()


def first_length(steps: Value, point: Point) -> Value:
    """1, and in the first iteration, whose direction is the gradient, a length for a step of at most 1."""
    size = linalg.norm(point.gradient)
    return where(steps == 0, minimum(1.0, 1.0 / where(size > 0.0, size, 1.0)), 1.0)


@dataclass(frozen=True)
class BFGS(DescentMethod):
    """Quasi-Newton steps with an estimate of the inverse of the Hessian.

    J. Nocedal, S. J. Wright, "Numerical optimization" (2006), algorithm 6.1.
    """

    line_search_maxiter: int = 30

    def start(self, objective: Objective, point: Point) -> Value:
        return eye(point.x.size, dtype=point.x.dtype)

    def step(self, objective: Objective, state: Iteration) -> DescentStep:
        point, inverse = state.point, state.memory
        direction = -dot(inverse, point.gradient)
        length = first_length(state.steps, point)
        found = search(objective, point, direction, length, self.line_search_maxiter)
        s, y = found.best.x - point.x, found.best.gradient - point.gradient
        product, squared = dot(s, y), dot(y, y)
        is_curved = product > epsilon(s) * sqrt(dot(s, s) * squared)
        product = where(is_curved, product, 1.0)
        scaled = where(
            state.steps == 0, inverse * (product / where(squared > 0.0, squared, 1.0)), inverse
        )
        image = dot(scaled, y)
        cross = outer(image, s)
        update = outer(s, s) * ((product + dot(y, image)) / product) - cross - cross.T
        inverse = where(is_curved, scaled + update / product, inverse)
        return DescentStep(found.best, inverse, found.evaluations, is_stuck(point, found))


class History(NamedTuple):
    """The last steps and the changes of the gradient, one row each, the newest last; zero if unused."""

    steps: Value
    changes: Value


@dataclass(frozen=True)
class LimitedMemoryBFGS(DescentMethod):
    """Quasi-Newton steps from the last steps, projected to the bounds.

    J. Nocedal, "Updating quasi-Newton matrices with limited storage" (1980); D. P. Bertsekas, "Projected
    Newton methods for optimization problems with simple constraints" (1982).
    """

    maxcor: int = 10
    ftol: float = 2.220446049250313e-09
    maxls: int = 30

    def start(self, objective: Objective, point: Point) -> History:
        empty = zeros((self.maxcor, point.x.size), point.x.dtype)
        return History(empty, empty)

    def step(self, objective: Objective, state: Iteration) -> DescentStep:
        point = state.point
        g = point.gradient
        held = self.held_elements(objective, point)
        free = 1.0 if held is None else where(held, 0.0, ops.constant_like(g, 1.0))
        direction = -free * _inverse_product(state.memory, free, free * g)
        if held is not None:
            direction = where(held, -g, direction)
        # Rounding can turn the direction.
        direction = where(dot(direction, g) < 0.0, direction, -g)
        length = first_length(state.steps, point)
        found = search(objective, point, direction, length, self.maxls)
        s, y = found.best.x - point.x, found.best.gradient - g
        is_curved = dot(s, y) > epsilon(s) * sqrt(dot(s, s) * dot(y, y))
        rows = [
            where(is_curved, concatenate([old[1:], new[None]]), old)
            for old, new in zip(state.memory, (s, y), strict=True)
        ]
        scale = maximum(maximum(abs(point.value), abs(found.best.value)), 1.0)
        stuck = is_stuck(point, found)
        is_small = ~stuck & (point.value - found.best.value <= self.ftol * scale)
        return DescentStep(found.best, History(*rows), found.evaluations, stuck, is_small)

    def held_elements(self, objective: Objective, point: Point) -> Value | None:
        """The elements at, or very near, a bound that a step against the gradient leaves."""
        if objective.bounds is None:
            return None
        lower, upper = objective.bounds
        x, g = point.x, point.gradient
        near = minimum(1e-3, linalg.norm(objective.projected_gradient(point)))
        near = minimum(near, 0.25 * (upper - lower))
        return ((x <= lower + near) & (g > 0.0)) | ((x >= upper - near) & (g < 0.0))


def _inverse_product(history: History, free: Value | float, g: Value) -> Value:
    """The estimate of the inverse Hessian of the `free` elements, times `g`, by two loops."""
    s, y = history.steps * free, history.changes * free
    products = (s * y).sum(1)
    squared = (y * y).sum(1)
    is_used = products > epsilon(g) * sqrt((s * s).sum(1) * squared)
    weights = where(is_used, 1.0 / where(is_used, products, 1.0), 0.0)

    def down(q: Value, row: tuple[Value, ...]) -> tuple[Value, Value]:
        s, y, weight = row
        part = weight * dot(s, q)
        return q - part * y, part

    def up(r: Value, row: tuple[Value, ...]) -> tuple[Value, None]:
        s, y, weight, part = row
        return r + (part - weight * dot(y, r)) * s, None

    q, parts = scan(down, g, (s, y, weights), reverse=True)
    newest_ratio = where(
        is_used[-1], products[-1] / where(squared[-1] > 0.0, squared[-1], 1.0), 1.0
    )
    out: Value = scan(up, q * newest_ratio, (s, y, weights, parts))[0]
    return out


@dataclass(frozen=True)
class NewtonCG(DescentMethod):
    """Newton's steps, found by conjugate gradients up to the first direction of negative curvature.

    J. Nocedal, S. J. Wright, "Numerical optimization" (2006), algorithm 7.1.
    """

    line_search_maxiter: int = 30

    def start(self, objective: Objective, point: Point) -> None:
        return None

    def step(self, objective: Objective, state: Iteration) -> DescentStep:
        point = state.point
        direction = _newton_direction(objective, point)
        found = search(objective, point, direction, 1.0, self.line_search_maxiter)
        return DescentStep(found.best, None, found.evaluations, is_stuck(point, found))


def _newton_direction(objective: Objective, point: Point) -> Value:
    g = point.gradient
    size = linalg.norm(g)
    tolerance = minimum(0.5, sqrt(size)) * size

    def is_open(state: tuple[Value, ...]) -> Value:
        _, r, _, is_bent, k = state
        return ~is_bent & (linalg.norm(r) > tolerance) & (k < 20 * g.size)

    def step(state: tuple[Value, ...]) -> tuple[Value, ...]:
        z, r, d, _, k = state
        image = objective.hessian_product(point.x, d)
        curvature, squared = dot(d, image), dot(r, r)
        is_bent = curvature <= 3.0 * epsilon(g) * dot(d, d)
        alpha = squared / where(is_bent, 1.0, curvature)
        new_r = r + alpha * image
        new_d = dot(new_r, new_r) / squared * d - new_r
        new_z = where(is_bent, where(k == 0, d, z), z + alpha * d)
        return new_z, new_r, new_d, is_bent, k + 1

    start = ops.zeros_like(g), g, -g, ops.full((), False), ops.full((), 0, "int32")
    out: Value = while_loop(is_open, step, start)[0]
    return out
