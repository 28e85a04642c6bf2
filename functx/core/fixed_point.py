"""Fixed points of functions, for analyses of the carries of loops."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

State = TypeVar("State")
Result = TypeVar("Result")


def fixed_point(
    start: State, step: Callable[[State], tuple[State, Result]]
) -> tuple[State, Result]:
    """The `(state, result)` for which `step(state) == (state, result)`, iterated from `start`.

    `step` returns the next state, and a result of which the last is returned.
    """
    state = start
    while True:
        following, result = step(state)
        if following == state:
            return state, result
        state = following
