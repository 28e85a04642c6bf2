"""Methods of minimization whose steps stay within a radius."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

from functx import ops
from functx.core.typing import Value
from functx.numpy import abs, eye, linalg, maximum, minimum, sqrt, where
from functx.scipy.optimize.iteration import (
    DescentMethod,
    DescentStep,
    Iteration,
    Objective,
    Point,
    dot,
    epsilon,
)
from functx.transforms.control.loops import fori_loop, while_loop
from functx.transforms.vmap import vmap


@dataclass(frozen=True)
class TrustRegion(DescentMethod):
    """Steps that minimize a quadratic model within a radius, which follows how well the model predicts.

    J. Nocedal, S. J. Wright, "Numerical optimization" (2006), algorithm 4.1.
    """

    default_gtol: ClassVar[float] = 1e-4
    norm: Any = 2
    initial_trust_radius: float = 1.0
    max_trust_radius: float = 1000.0
    eta: float = 0.15

    @abstractmethod
    def find(self, objective: Objective, point: Point, radius: Value) -> tuple[Value, Value]:
        """A step, and its product with the Hessian."""

    def start(self, objective: Objective, point: Point) -> Value:
        return ops.constant_like(point.value, self.initial_trust_radius)

    def step(self, objective: Objective, state: Iteration) -> DescentStep:
        point, radius = state.point, state.memory
        p, image = self.find(objective, point, radius)
        trial = objective.evaluate(point.x + p)
        predicted = -(dot(point.gradient, p) + 0.5 * dot(p, image))
        rounding = 10.0 * epsilon(p) * abs(point.value)
        # Decreases that rounding hides are taken to be as predicted.
        is_hidden = (predicted <= rounding) & (abs(trial.value - point.value) <= rounding)
        ratio = (point.value - trial.value) / where(predicted > 0.0, predicted, 1.0)
        ratio = where(is_hidden & (predicted > 0.0), 1.0, ratio)
        ratio = where(ops.is_finite(ratio), ratio, -1.0)
        length = linalg.norm(p)
        is_at_radius = length >= 0.99 * radius
        grown = minimum(2.0 * radius, self.max_trust_radius)
        new_radius = where((ratio > 0.75) & is_at_radius, grown, radius)
        new_radius = where(ratio < 0.25, 0.25 * length, new_radius)
        is_better = ratio > self.eta
        kept = Point(*[where(is_better, t, old) for t, old in zip(trial, point, strict=True)])
        smallest = epsilon(p) * maximum(linalg.norm(point.x), epsilon(p))
        is_stuck = ~is_better & (new_radius <= smallest)
        return DescentStep(kept, new_radius, ops.full((), 1, "int32"), is_stuck)


class TruncatedTrustRegion(TrustRegion):
    """Steps by conjugate gradients that end at the radius.

    T. Steihaug, "The conjugate gradient method and trust regions in large scale optimization" (1983).
    """

    def find(self, objective: Objective, point: Point, radius: Value) -> tuple[Value, Value]:
        g = point.gradient
        size = linalg.norm(g)
        tolerance = minimum(0.5, sqrt(size)) * size

        def is_open(state: tuple[Value, ...]) -> Value:
            _, _, r, _, has_ended, k = state
            return ~has_ended & (linalg.norm(r) > tolerance) & (k < 20 * g.size)

        def step(state: tuple[Value, ...]) -> tuple[Value, ...]:
            z, image_of_z, r, d, _, k = state
            image = objective.hessian_product(point.x, d)
            curvature, squared = dot(d, image), dot(r, r)
            is_bent = curvature <= 0.0
            alpha = squared / where(is_bent, 1.0, curvature)
            has_ended = is_bent | (linalg.norm(z + alpha * d) >= radius)
            alpha = where(has_ended, _length_to_radius(z, d, radius), alpha)
            new_r = r + alpha * image
            new_d = dot(new_r, new_r) / squared * d - new_r
            return z + alpha * d, image_of_z + alpha * image, new_r, new_d, has_ended, k + 1

        zero = ops.zeros_like(g)
        start = zero, zero, g, -g, ops.full((), False), ops.full((), 0, "int32")
        z, image, *_ = while_loop(is_open, step, start)
        return z, image


class ExactTrustRegion(TrustRegion):
    """The best steps within the radius, by the eigenvalues of the Hessian.

    J. J. Moré, D. C. Sorensen, "Computing a trust region step" (1983).
    """

    def find(self, objective: Objective, point: Point, radius: Value) -> tuple[Value, Value]:
        g = point.gradient
        basis = eye(g.size, dtype=g.dtype)
        hessian = vmap(lambda v: objective.hessian_product(point.x, v))(basis)
        values, vectors = linalg.eigh(hessian)
        parts = dot(vectors.T, g)
        scale = epsilon(g) * maximum(abs(values[0]), abs(values[-1]))
        least = maximum(0.0, -values[0])

        def coordinates(shift: Value) -> Value:
            shifted = values + shift
            is_zero = abs(shifted) <= scale
            return where(is_zero, 0.0, -parts / where(is_zero, 1.0, shifted))

        def halve(_: Value, interval: tuple[Value, Value]) -> tuple[Value, Value]:
            low, high = interval
            middle = 0.5 * (low + high)
            is_long = linalg.norm(coordinates(middle)) > radius
            return where(is_long, middle, low), where(is_long, high, middle)

        # The step is shorter than the radius for the greater shift.
        top = least + linalg.norm(g) / radius
        low, high = fori_loop(0, 2 * g.dtype.itemsize * 8, halve, (least, top))
        at_least = coordinates(least)
        is_inside = linalg.norm(at_least) <= radius
        step = where(is_inside, at_least, coordinates(high))
        # With an indefinite Hessian the step goes on along the first eigenvector, up to the radius.
        first = where(values == values[0], 1.0, 0.0) * (ops.iota("int32", g.size) == 0)
        rest = sqrt(maximum(radius**2 - dot(step, step), 0.0))
        step = step + where(is_inside & (values[0] < -scale), rest, 0.0) * first
        return dot(vectors, step), dot(vectors, values * step)


def _length_to_radius(z: Value, d: Value, radius: Value) -> Value:
    """The positive t for which z + t d has the norm `radius`."""
    a, b = dot(d, d), dot(z, d)
    c = minimum(dot(z, z) - radius**2, 0.0)
    root = sqrt(b * b - a * c)
    # Without cancellation for either sign of b.
    return where(b > 0.0, -c / (b + root), (root - b) / a)
