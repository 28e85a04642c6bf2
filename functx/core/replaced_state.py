"""The parameters and buffers that a functional call puts in place of those of its modules."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any


class ReplacedState:
    """Values that stand in for the parameters and buffers of modules, in one context.

    `values` are by the serial number of the module, then by attribute; what they lack is looked for in `outer`.
    `written` collects the places at which a module put another value.
    """

    __slots__ = ("outer", "token", "values", "written")

    def __init__(
        self, values: dict[int, dict[str, Any]], outer: ReplacedState | StateWatch | None = None
    ):
        self.values, self.outer = values, outer
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


class StateWatch:
    """Notes whether a program that is traced reads parameters or buffers of modules from around it.

    The program is for calls in every state. So a read of a value that a state around it has ends the trace,
    by StateRead. `owner` is the number of the function that is traced.
    """

    __slots__ = ("is_open", "outer", "owner", "token", "was_read")

    def __init__(self, owner: int):
        self.owner, self.outer = owner, replaced_state()
        self.was_read, self.is_open = False, True

    def __enter__(self) -> StateWatch:
        self.token = _replaced_state.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        self.is_open = False
        _replaced_state.reset(self.token)


class StateRead(BaseException):
    """Ends the trace of a program that reads a replaced state, which must be its argument."""

    def __init__(self, watch: StateWatch):
        self.watch = watch


_replaced_state: ContextVar[ReplacedState | StateWatch | None] = ContextVar(
    "replaced_state", default=None
)
replaced_state = _replaced_state.get
"""`replaced_state()`: the innermost state or watch of this context; None if there is none."""


@contextmanager
def state_of_call(state: ReplacedState | StateWatch | None) -> Iterator[None]:
    """A context with the replaced state of an earlier call, for what is computed again or later."""
    token = _replaced_state.set(state)
    try:
        yield
    finally:
        _replaced_state.reset(token)


def state_with(serial: int, name: str) -> ReplacedState | None:
    """The innermost replaced state that has a value for an attribute of a module.

    Raises StateRead if that is around a program that is traced for every state.
    """
    state, watch = replaced_state(), None
    while state is not None:
        if type(state) is ReplacedState:
            values = state.values.get(serial)
            if values is not None and name in values:
                if watch is not None:
                    raise StateRead(watch)
                return state
        elif type(state) is StateWatch and state.is_open:
            state.was_read, watch = True, state
        state = state.outer
    return None


def replaced_values() -> dict[int, dict[str, Any]] | None:
    """All values that stand in for others in this context, for a program that reads some of them.

    None if no state is replaced. Raises StateRead if the state is around another program, which is traced
    for every state.
    """
    state, watch = replaced_state(), None
    values: dict[int, dict[str, Any]] | None = None
    while state is not None:
        if type(state) is ReplacedState:
            if watch is not None:
                raise StateRead(watch)
            if values is None and state.outer is None:
                return state.values
            values = values or {}
            for serial, of_module in state.values.items():
                values[serial] = {**of_module, **values.get(serial, {})}
        elif type(state) is StateWatch and state.is_open:
            state.was_read, watch = True, state
        state = state.outer
    return values
