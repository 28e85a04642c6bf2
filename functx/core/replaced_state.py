"""The parameters and buffers that a functional call puts in place of those of its modules."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any


class ReplacedState:
    """Values that stand in for the parameters and buffers of modules, in one context.

    `values` are by the serial number of the module, then by attribute; `outer` is the state that was
    replaced around it. `written` collects the places at which a module put another value.
    """

    __slots__ = ("outer", "token", "values", "written")

    def __init__(self, values: dict[int, dict[str, Any]]):
        self.values, self.outer = values, replaced_state()
        self.written: set[tuple[int, str]] = set()

    def write(self, serial: int, name: str, value: Any) -> None:
        """Puts another value in the place of one that was given; nothing if it is the same array."""
        if self.values[serial][name] is not value:
            self.values[serial][name] = value
            self.written.add((serial, name))

    def __enter__(self) -> ReplacedState:
        self.token = _replaced_state.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        _replaced_state.reset(self.token)


_replaced_state: ContextVar[ReplacedState | None] = ContextVar("replaced_state", default=None)
replaced_state = _replaced_state.get
"""`replaced_state()`: the innermost state that is replaced in this context; None if there is none."""


@contextmanager
def state_of_call(state: ReplacedState | None) -> Iterator[None]:
    """A context with the replaced state of an earlier call, for what is computed again or later."""
    token = _replaced_state.set(state)
    try:
        yield
    finally:
        _replaced_state.reset(token)


def state_with(serial: int, name: str) -> ReplacedState | None:
    """The innermost replaced state that has a value for an attribute of a module."""
    state = replaced_state()
    while state is not None:
        values = state.values.get(serial)
        if values is not None and name in values:
            return state
        state = state.outer
    return None
