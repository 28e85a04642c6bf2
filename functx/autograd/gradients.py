"""Gradients during a walk, and their addition to `.grad` of leaves."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from functx import ops
from functx.autograd.modes import current_modes
from functx.autograd.operations import record_outputs
from functx.autograd.recorded import Recorded, running_step
from functx.autograd.recording import current_recording
from functx.autograd.variable import Variable, make_variable
from functx.core.errors import GradientTypeError, type_name
from functx.core.primitive import Primitive
from functx.core.tracer import Tracer

_add = ops.Add()


class Gradient(NamedTuple):
    """The gradient of a value during a walk.

    It is zero where `mask` is false, also if the pullback is infinite there. That of a complex value
    is the conjugate of the gradient that users see, by PyTorch's convention.
    """

    value: Any
    mask: Any = None


make_gradient = partial(tuple.__new__, Gradient)
"""`Gradient(*fields)` in half the time."""


def record(primitive: Primitive, args: Sequence[Any]) -> Recorded:
    """The output of an operation on recorded values."""
    return current_recording().record(primitive, args)[0]


class Total(NamedTuple):
    """The sum of `before`, a value of `.grad`, and of the gradient that is added to it."""

    before: Recorded
    value: Any


def add_to_grad(
    x: Variable, gradient: Variable, create_graph: bool, total: Total | None = None
) -> None:
    """Adds a new Variable to `.grad`: into the same object, but for a differentiable walk.

    `total` is the sum, if it is known. Walks in several threads may do so at the same time, and wait
    for a step under `jit` of another thread that has `x`.
    """
    numbers = (id(x),) if x._grad is None else (id(x), id(x._grad))
    is_outside = running_step.begin_adding(numbers)
    try:
        with x._lock or x.lock:
            before = x.read_grad()
            if before is None:
                if gradient._edge is not None or gradient._dual is not None:
                    edge = gradient._edge if create_graph else None
                    gradient = make_variable(gradient._recorded, edge)
                x._grad = gradient
            elif create_graph:
                x._grad = record_outputs(_add, (before, gradient))[0]
            else:
                if not current_modes().inference:
                    before._check_not_inference("backward", "be added to outside")
                # Gradients of several leaves may be views of one array.
                with before.lock:
                    recorded = before.read()
                    if total is not None and total.before is recorded:
                        value = total.value
                    else:
                        value = record(_add, (recorded, gradient.read()))
                    before.write(make_variable(value, None))
    finally:
        if is_outside:
            running_step.end_adding(numbers)


def array_of_gradient(x: Any, label: str) -> Tracer | Variable:
    """A gradient that a user gave; GradientTypeError if it is no array."""
    if isinstance(x, Tracer):
        return x
    if not isinstance(x, (list, tuple)):
        with suppress(Exception):
            return Variable(x)
    raise GradientTypeError(
        f"{label}: a gradient must be an array or None; got {type_name(x)}",
        fix="Make an array of it with functx.numpy.array.",
    )


def is_written(x: object) -> bool:
    """Whether a Variable was written to since it was made."""
    return isinstance(x, Variable) and x._counter is not None and x._counter.writes > 0
