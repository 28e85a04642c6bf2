"""Replaced states as arguments: functions that are traced once and called with many states."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import numpy as np

from functx.core import tree
from functx.core.replaced_state import ReplacedState, replaced_state, state_with
from functx.core.tracer import Tracer, current_builder, is_variable
from functx.core.typing import Function, PyTree
from functx.transforms.aliasing import is_written_to

_KEYWORD = "replaced state"


class StateArguments(NamedTuple):
    """The values that stand in for parameters and buffers at a call, by serial number and attribute.

    They are arguments of the program of a function that reads them, by a keyword that no function has.
    """

    values: dict[tuple[int, str], Any]

    @staticmethod
    def current() -> StateArguments | None:
        """Those of this context; None if no state is replaced."""
        states, state = [], replaced_state()
        if state is None:
            return None
        while state is not None:
            states.append(state)
            state = state.outer
        values = {
            (serial, name): x
            for state in reversed(states)
            for serial, of_module in state.values.items()
            for name, x in of_module.items()
        }
        return StateArguments(values)

    def add_to(self, fun: Function, keywords: dict[str, PyTree]) -> tuple[Function, Any]:
        """A function that takes the values too, and its keyword arguments.

        It returns the result of `fun`, the values that modules put in place of given ones, and those of
        given ones that were written to, by place.
        """

        def call(*args: PyTree, **kwargs: PyTree) -> PyTree:
            values: dict[tuple[int, str], Any] = kwargs.pop(_KEYWORD)
            by_module: dict[int, dict[str, Any]] = {}
            for (serial, name), x in values.items():
                by_module.setdefault(serial, {})[name] = x
            with ReplacedState(by_module) as state:
                out = fun(*args, **kwargs)
            new = {(serial, name): by_module[serial][name] for serial, name in state.written}
            builder = current_builder.get()
            if builder is None or not builder.writes:
                return out, new, {}
            traced = {k: x for k, x in values.items() if type(x) is Tracer and k not in new}
            return out, new, {k: x for k, x in traced.items() if is_written_to(x)}

        call.__wrapped__ = fun  # type: ignore[attr-defined]
        call.__name__ = getattr(fun, "__name__", type(fun).__name__)
        return call, {**keywords, _KEYWORD: self.values}

    def take(self, result: PyTree) -> PyTree:
        """The result of the function itself, once the new values are in their places."""
        out, new, written = result
        if current_builder.get() is None:
            # As of a call outside of a functional call.
            out = tree.map(lambda x: jax.numpy.asarray(x) if isinstance(x, np.ndarray) else x, out)
        for place, x in new.items():
            put(place, x)
        for place, x in written.items():
            # Others were written to themselves.
            if isinstance(self.values[place], jax.Array) and not is_written_through(
                self.values[place]
            ):
                put(place, x)
        return out


def is_written_through(x: Any) -> bool:
    """Whether a write to an argument of a jitted function reached `x`, an array that can be written to."""
    return isinstance(x, Tracer) or is_variable(x)


def put(place: tuple[int, str], x: Any) -> None:
    """Puts a value in place of the one that the innermost replaced state has."""
    state = state_with(*place)
    assert state is not None, "the place was found in a replaced state"
    state.write(*place, x)
