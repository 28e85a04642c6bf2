"""Replaced states as arguments: functions that are traced once and called with many states."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax

from functx.core.replaced_state import (
    Place,
    ReplacedState,
    ReplacedValues,
    replaced_state,
    replaced_values,
    state_with,
)
from functx.core.rewriting import Record
from functx.core.tracer import Tracer, current_builder
from functx.core.typing import Function, PyTree
from functx.transforms.aliasing import is_written_to

KEYWORD = "replaced state"
"""The keyword argument for the values, which no function has."""


@jax.tree_util.register_static
class SameValue(Record):
    """Stands in an argument for the value at another place, which the module ties to this one."""

    place: Place


class StateArguments(NamedTuple):
    """The values that stand in for parameters and buffers at a call.

    `argument` has them by serial number and attribute, each value that is tied once.
    """

    replaced: ReplacedValues
    argument: dict[int, dict[str, Any]]

    @staticmethod
    def current() -> StateArguments | None:
        """The values of this context; None if no state is replaced."""
        replaced = replaced_values()
        if replaced is None:
            return None
        argument = replaced.values
        if replaced.tied:
            argument = {serial: {**of_module} for serial, of_module in argument.items()}
            for (serial, name), first in replaced.tied.items():
                argument[serial][name] = SameValue(first)
        return StateArguments(replaced, argument)

    def take(self, result: PyTree) -> PyTree:
        """The result of a function that takes a state, once the new values are in their places."""
        out, new, written = result
        for place, x in new.items():
            put(place, x)
        for place, x in written.items():
            before = self.replaced.value(place)
            # All others were written to themselves.
            if isinstance(before, jax.Array) and not isinstance(before, Tracer):
                put(place, x)
        return out


def put(place: Place, x: object) -> None:
    """Puts a value in place of the one that the innermost replaced state has."""
    state = state_with(*place)
    assert state is not None, "the place was found in a replaced state"
    state.write(*place, x)


def taking_state(fun: Function) -> Function:
    """A function of the arguments of `fun`, and of the values of a replaced state as `KEYWORD`.

    It returns the result of `fun`, the values that modules put in place of given ones, and those of
    given ones that were written to, by place.
    """

    def call(*args: PyTree, **kwargs: PyTree) -> PyTree:
        values: dict[int, dict[str, Any]] = kwargs.pop(KEYWORD)
        for of_module in values.values():
            for name, x in of_module.items():
                if type(x) is SameValue:
                    of_module[name] = values[x.place[0]][x.place[1]]
        with ReplacedState(values, replaced_state(), is_whole=True) as state:
            out = fun(*args, **kwargs)
        new = {(serial, name): values[serial][name] for serial, name in state.written}
        builder = current_builder.get()
        if builder is None or not builder.writes:
            return out, new, {}
        given = {
            (serial, name): x
            for serial, of_module in values.items()
            for name, x in of_module.items()
            if type(x) is Tracer and (serial, name) not in new
        }
        return out, new, {place: x for place, x in given.items() if is_written_to(x)}

    call.__wrapped__ = fun  # type: ignore[attr-defined]
    call.__name__ = getattr(fun, "__name__", type(fun).__name__)
    return call
