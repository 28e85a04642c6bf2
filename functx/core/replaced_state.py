"""The parameters and buffers that a functional call puts in place of those of its modules."""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any, TypeAlias
from weakref import ref

from functx.core.context import ContextValue

Place: TypeAlias = tuple[int, str]
"""The serial number of a module, and the name of one of its parameters or buffers."""


class ReplacedState:
    """Values that stand in for the parameters and buffers of modules, in one context.

    `values` are by the serial number of the module, then by attribute; `outer` has the others.
    `tied` are groups of places that were given one value, as the module ties them. A state that `is_whole` has
    all values that the states around it have. `written` collects the places at which a module put another value.
    """

    __slots__ = ("is_whole", "outer", "tied", "token", "values", "written")

    def __init__(
        self,
        values: dict[int, dict[str, Any]],
        outer: ReplacedState | StateWatch | None = None,
        tied: Sequence[Sequence[Place]] = (),
        is_whole: bool = False,
    ):
        self.values, self.outer, self.tied, self.is_whole = values, outer, tied, is_whole
        self.written: set[Place] = set()

    def write(self, serial: int, name: str, value: object) -> None:
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
    by StateRead. `owner` stands for the function that is traced. `modes` are weak references to the modules
    whose mode it read, by serial number.
    """

    __slots__ = ("is_open", "modes", "outer", "owner", "token", "was_read")

    def __init__(self, owner: object):
        self.owner, self.outer = owner, replaced_state()
        self.was_read, self.is_open = False, True
        self.modes: dict[int, ref[Any]] = {}

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


def state_of_call(
    state: ReplacedState | StateWatch | None,
) -> ContextValue[ReplacedState | StateWatch | None]:
    """A context with the replaced state of an earlier call, for a later computation of it."""
    return ContextValue(_replaced_state, state)


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
            if state.is_whole:
                return None
        elif type(state) is StateWatch and state.is_open:
            state.was_read, watch = True, state
        state = state.outer
    return None


class ReplacedValues:
    """All values that stand in for others in one context, for a program that reads some of them.

    `values` are as those of `ReplacedState`; `tied` maps places to another one with the same value.
    """

    __slots__ = ("tied", "values")

    def __init__(self, values: dict[int, dict[str, Any]], groups: Sequence[Sequence[Place]]):
        self.values, self.tied = values, {}
        for first, *others in groups:
            x = values[first[0]][first[1]]
            same = [place for place in others if values[place[0]][place[1]] is x]
            self.tied.update(dict.fromkeys(same, first))

    def value(self, place: Place) -> object:
        """The value at a place."""
        return self.values[place[0]][place[1]]


def replaced_values() -> ReplacedValues | None:
    """The values of this context; None if no state is replaced.

    Raises StateRead if the state is around another program, which is traced for every state.
    """
    state, watch = replaced_state(), None
    values: dict[int, dict[str, Any]] | None = None
    groups: list[Sequence[Place]] = []
    while state is not None:
        if type(state) is ReplacedState:
            if watch is not None:
                raise StateRead(watch)
            if values is None and (state.outer is None or state.is_whole):
                return ReplacedValues(state.values, state.tied)
            values = values or {}
            groups += state.tied
            for serial, of_module in state.values.items():
                values[serial] = {**of_module, **values.get(serial, {})}
            if state.is_whole:
                break
        elif type(state) is StateWatch and state.is_open:
            state.was_read, watch = True, state
        state = state.outer
    return None if values is None else ReplacedValues(values, groups)


def note_mode(serial: int, module: object) -> None:
    """Records in the open traces of this context that they depend on the mode of a module."""
    state = replaced_state()
    while state is not None:
        if type(state) is StateWatch and state.is_open:
            state.modes[serial] = ref(module)
        state = state.outer


class ModulesRead(dict[int, "ref[Any]"]):
    """The modules whose mode, training or evaluation, the programs of a function depend on, by serial number."""

    def joined(self, watch: StateWatch) -> ModulesRead:
        """These modules and those that a trace read, without any that no longer exist."""
        known = {**self, **watch.modes}
        return ModulesRead({serial: x for serial, x in known.items() if x() is not None})

    def key(self) -> tuple[bool | None, ...]:
        """Their modes now, for the key of a program."""
        modules = [x() for x in self.values()]
        return tuple([None if x is None else x.training for x in modules])
