"""The state of a generator of random numbers: a hidden operand of programs that draw from it."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeAlias, final

import numpy as np

from functx.core.backend import backend
from functx.core.errors import ImplicitDrawError
from functx.core.types import ShapedArray
from functx.core.typing import NumPyArray, Value

if TYPE_CHECKING:
    from functx.core.tracer import Tracer

STATE_AVAL: Final = ShapedArray((4,), np.dtype("uint32"))
"""The type of a state in programs: the low and the high word of the seed, then those of the offset."""


def pack_state(seed: int, offset: int) -> NumPyArray:
    """A state as the four words that programs take."""
    return np.array([seed & _WORD, seed >> 32, offset & _WORD, offset >> 32], np.uint32)


def unpack_state(words: StateWords) -> NumPyArray:
    """The seed and the offset in a state of four words, as two uint64."""
    low_seed, high_seed, low_offset, high_offset = map(int, np.asarray(words))
    return np.array([high_seed << 32 | low_seed, high_offset << 32 | low_offset], np.uint64)


_WORD = 0xFFFFFFFF


StateWords: TypeAlias = Value | NumPyArray
"""The four words of a state: two of the seed, then two of the offset."""


class StateTable(Protocol):
    """The states of generators in a trace of a step on Variables, in place of their own values."""

    def read(self, state: GeneratorState) -> StateWords:
        """The words of `state`, a traced value."""

    def store(self, state: GeneratorState, words: StateWords) -> None:
        """Replace the words of `state`."""


state_table: ContextVar[StateTable | None] = ContextVar("state_table", default=None)
"""The table of the step that is traced in this context; None outside of steps."""


class GeneratorState:
    """The state of one generator, which programs take as an input and return as an output.

    A trace captures the object itself. Its value is read when the program runs, and stored after the
    run, so a program holds no seed and no offset.
    """

    __slots__ = ("_words",)

    def __init__(self, seed: int):
        self._words: StateWords = pack_state(seed, 0)

    def read(self) -> StateWords:
        """The four words; ImplicitDrawError while JAX traces, which would keep those of its first call."""
        table = state_table.get()
        if table is not None:
            return table.read(self)
        if backend.jax_is_tracing():
            raise ImplicitDrawError(
                "a function that JAX traces must not draw from a generator, whose state JAX would keep "
                "as it is in the first call; got a draw under a transform of JAX",
                fix="Use functx.jit and the other transforms of functx in place of JAX's, or draw with "
                "a key: functx.random.uniform(key, shape).",
            )
        return self._words

    def store(self, words: StateWords) -> None:
        """Replace the four words.

        An array that is bound to devices comes to the host, since the next program may run on others.
        """
        table = state_table.get()
        if table is not None:
            table.store(self, words)
            return
        if getattr(words, "committed", True):
            words = np.asarray(words)
        assert words.dtype == STATE_AVAL.dtype, words
        self._words = words


@final
class ThreadState(GeneratorState):
    """The state of the default generator, of which each thread has its own value.

    It begins with a seed of the operating system.
    """

    __slots__ = ("_local",)

    def __init__(self) -> None:
        self._local = threading.local()

    def __reduce__(self) -> str:
        # Copies are the default generator of the thread or process that has them.
        return "DEFAULT_STATE"

    @property
    def _words(self) -> StateWords:  # type: ignore[override]
        words = getattr(self._local, "words", None)
        if words is None:
            words = self._local.words = pack_state(fresh_seed(), 0)
        return words

    @_words.setter
    def _words(self, words: StateWords) -> None:
        self._local.words = words


def read_states(args: Sequence[Any]) -> list[Any]:
    """`args` with the words of each state of a generator in place of it."""
    return [x.read() if isinstance(x, GeneratorState) else x for x in args]


def implicit_draw_error(owner: str, state: object = None) -> ImplicitDrawError:
    """The error for a draw from `state` in a function whose caller, which `owner` names, returns no states."""
    error = ImplicitDrawError(
        f"{owner}: the function must not draw from a generator, since it returns no state; got a draw",
        fix="Draw outside of the function and pass the numbers to it, or draw with a key: "
        "functx.random.uniform(key, shape).",
    )
    error.state = state
    return error


class StateInputs(NamedTuple):
    """The traced arrays that stand for states while a function is traced that takes them as arguments.

    `forward` holds the arrays for the function, or the forward part of a joint function; `backward` those
    for the backward part.
    """

    forward: dict[GeneratorState, Tracer]
    backward: dict[GeneratorState, Tracer] = {}  # noqa: RUF012 - never changed

    def input_of(self, state: GeneratorState, in_backward: bool) -> Tracer | None:
        """The traced array that stands for `state`; None if it is no argument."""
        found = self.backward.get(state) if in_backward else None
        return self.forward.get(state) if found is None else found


state_inputs: ContextVar[StateInputs | None] = ContextVar("state_inputs", default=None)
"""The states that are arguments of the function that is traced in this context."""


def fresh_seed() -> int:
    """A seed of 64 bits from the operating system."""
    return secrets.randbits(64)


DEFAULT_STATE: Final = ThreadState()
"""The state of the default generator of each thread."""
