"""The iteration that all methods of minimization share."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from ml_dtypes import finfo

from functx import ops
from functx.core.typing import PyTree, Value
from functx.numpy import clip, linalg, maximum, minimum, where
from functx.numpy.tensor_contractions import dot as _dot
from functx.transforms.control.loops import while_loop
from functx.transforms.jvp import jvp

RUNNING, CONVERGED, MANY_STEPS, MANY_EVALUATIONS, STUCK = -1, 0, 1, 2, 3


def dot(x: Value, y: Value) -> Value:
    """The product of two vectors, or of a matrix and a vector, in full precision."""
    return _dot(x, y, precision="highest")


def epsilon(x: Value) -> float:
    """The rounding error of the dtype of `x`."""
    return float(finfo(x.dtype).eps)


class Point(NamedTuple):
    """A vector, and the value and the gradient of the function there."""

    x: Value
    value: Value
    gradient: Value


class Bounds(NamedTuple):
    """The least and the greatest value of each element."""

    lower: Value
    upper: Value


class Objective(NamedTuple):
    """A function with its gradient, and bounds of its argument."""

    value_and_grad: Callable[[Value], tuple[Value, Value]]
    bounds: Bounds | None

    def evaluate(self, x: Value) -> Point:
        """The point `x` with value and gradient."""
        return Point(x, *self.value_and_grad(x))

    def hessian_product(self, x: Value, v: Value) -> Value:
        """The product of the Hessian at `x` with `v`."""
        return jvp(lambda x: self.value_and_grad(x)[1], (x,), (v,))[1]  # type: ignore[no-any-return]

    def project(self, x: Value) -> Value:
        """The nearest vector within the bounds."""
        return x if self.bounds is None else clip(x, *self.bounds)

    def free_part(self, direction: Value, x: Value) -> Value:
        """The elements of `direction` where `x` is within the bounds, else zeros."""
        if self.bounds is None:
            return direction
        return where((x >= self.bounds.lower) & (x <= self.bounds.upper), direction, 0.0)

    def projected_gradient(self, point: Point) -> Value:
        """The gradient, cut where a unit step against it would leave the bounds; zero at a minimum."""
        g = point.gradient
        if self.bounds is None:
            return g
        lower, upper = self.bounds
        return where(g < 0.0, maximum(point.x - upper, g), minimum(point.x - lower, g))


class IterationLimits(NamedTuple):
    """The tolerance of the gradient, and the most iterations and evaluations."""

    gtol: float | Value
    steps: int | Value
    evaluations: int | Value | None


class Iteration(NamedTuple):
    """The state of a minimization; `memory` is what the method keeps."""

    point: Point
    memory: PyTree
    steps: Value
    evaluations: Value
    status: Value


class DescentStep(NamedTuple):
    """A new point, the new memory, the number of evaluations, and how the step ended the iteration."""

    point: Point
    memory: PyTree
    evaluations: Value
    is_stuck: Value
    is_small: Value | bool = False


@dataclass(frozen=True)
class DescentMethod:
    """A method of minimization, whose fields are its options."""

    default_gtol: ClassVar[float] = 1e-5
    norm: Any = math.inf

    @abstractmethod
    def start(self, objective: Objective, point: Point) -> PyTree:
        """The memory of the first step."""

    @abstractmethod
    def step(self, objective: Objective, state: Iteration) -> DescentStep:
        """One iteration."""

    def run(self, objective: Objective, x0: Value, limits: IterationLimits) -> Iteration:
        """The iteration from the guess `x0` to its end."""

        def status_of(
            point: Point, steps: Value, evaluations: Value, step: DescentStep | None
        ) -> Value:
            size = linalg.norm(objective.projected_gradient(point), ord=self.norm)
            status = where(steps >= limits.steps, MANY_STEPS, RUNNING)
            if limits.evaluations is not None:
                status = where(evaluations >= limits.evaluations, MANY_EVALUATIONS, status)
            if step is not None:
                status = where(step.is_stuck, STUCK, status)
                status = where(step.is_small, CONVERGED, status)
            # A nan ends the iteration too.
            status = where(ops.is_finite(size), status, STUCK)
            return where(size <= limits.gtol, CONVERGED, status).astype("int32")

        def advance(state: Iteration) -> Iteration:
            step = self.step(objective, state)
            steps, evaluations = state.steps + 1, state.evaluations + step.evaluations
            status = status_of(step.point, steps, evaluations, step)
            return Iteration(step.point, step.memory, steps, evaluations, status)

        point = objective.evaluate(objective.project(x0))
        zero = ops.full((), 0, "int32")
        first = Iteration(
            point,
            self.start(objective, point),
            zero,
            zero + 1,
            status_of(point, zero, zero + 1, None),
        )
        return while_loop(lambda state: ops.eq(state.status, RUNNING), advance, first)  # type: ignore[no-any-return]
