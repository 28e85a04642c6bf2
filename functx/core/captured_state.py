"""States that programs read and replace when they run: those of generators, and the arrays of references."""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from functx.core.backend import backend
from functx.core.errors import FunctxError
from functx.core.types import ShapedArray

if TYPE_CHECKING:
    from functx.core.tracer import Tracer


class StateTable(Protocol):
    """The values of states in a trace of a step on Variables, in place of their own values."""

    def read(self, state: CapturedState) -> Any:
        """The value of `state`, a traced one."""

    def store(self, state: CapturedState, value: Any) -> None:
        """Replace the value of `state`."""


state_table: ContextVar[StateTable | None] = ContextVar("state_table", default=None)
"""The table of the step that is traced in this context; None outside of steps."""


class CapturedState:
    """A value that programs take as an input and return as an output.

    A trace captures the object itself. Its value is read when the program runs, and stored after the
    run, so a program does not hold it.
    """

    __slots__ = ()

    description = "a state"
    """The kind of the state in messages, with its article."""
    is_writable_under_vmap = False
    """Whether a function under `vmap` may write to the state; `randomness` chooses the draws of a batch."""

    @property
    def aval(self) -> ShapedArray:
        """The type of the value in programs."""
        raise NotImplementedError

    def load(self) -> Any:
        """The current value."""
        raise NotImplementedError

    def replace(self, value: Any) -> None:
        """Replace the value."""
        raise NotImplementedError

    def jax_trace_error(self) -> FunctxError:
        """The error for a read while JAX traces, which would keep the value of its first call."""
        raise NotImplementedError

    def write_error(self, owner: str) -> FunctxError:
        """The error for a write in a function whose caller, which `owner` names, returns no states."""
        raise NotImplementedError

    def read(self) -> Any:
        """The current value; while a step on Variables is traced, that of the step. An error while JAX traces."""
        table = state_table.get()
        if table is not None:
            return table.read(self)
        if backend.jax_is_tracing():
            raise self.jax_trace_error()
        return self.load()

    def store(self, value: Any) -> None:
        """Replace the value; while a step on Variables is traced, that of the step."""
        table = state_table.get()
        if table is not None:
            table.store(self, value)
        else:
            self.replace(value)


def read_states(args: Sequence[Any]) -> list[Any]:
    """`args` with the value of each state in place of it."""
    return [x.read() if isinstance(x, CapturedState) else x for x in args]


class StateInputs(NamedTuple):
    """The traced arrays that stand for states while a function is traced that takes them as arguments.

    `forward` holds the arrays for the function, or the forward part of a joint function; `backward` those
    for the backward part.
    """

    forward: dict[CapturedState, Tracer]
    backward: dict[CapturedState, Tracer] = {}  # noqa: RUF012 - never changed

    def input_of(self, state: CapturedState, in_backward: bool) -> Tracer | None:
        """The traced array that stands for `state`; None if it is no argument."""
        found = self.backward.get(state) if in_backward else None
        return self.forward.get(state) if found is None else found


state_inputs: ContextVar[StateInputs | None] = ContextVar("state_inputs", default=None)
"""The states that are arguments of the function that is traced in this context."""
