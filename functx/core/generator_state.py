"""The state of a generator of random numbers: a hidden operand of programs that draw from it."""

from __future__ import annotations

import secrets
import threading
from typing import Final, TypeAlias, final

import numpy as np

from functx.core.captured_state import CapturedState
from functx.core.errors import ImplicitDrawError
from functx.core.types import ShapedArray
from functx.core.typing import NumPyArray, Value

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


class GeneratorState(CapturedState):
    """The state of one generator, of four words."""

    __slots__ = ("_words",)

    aval = STATE_AVAL
    description = "the state of a generator"
    is_writable_under_vmap = True

    def __init__(self, seed: int):
        self._words: StateWords = pack_state(seed, 0)

    def load(self) -> StateWords:
        return self._words

    def replace(self, value: StateWords) -> None:
        # An array that is bound to devices comes to the host, since the next program may run on others.
        if getattr(value, "committed", True):
            value = np.asarray(value)
        assert value.dtype == STATE_AVAL.dtype, value
        self._words = value

    def jax_trace_error(self) -> ImplicitDrawError:
        return ImplicitDrawError(
            "a function that JAX traces must not draw from a generator, whose state JAX would keep "
            "as it is in the first call; got a draw under a transform of JAX",
            fix="Use functx.jit and the other transforms of functx in place of JAX's, or draw with "
            "a key: functx.random.uniform(key, shape).",
        )

    def write_error(self, owner: str) -> ImplicitDrawError:
        return implicit_draw_error(owner, self)


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


def implicit_draw_error(owner: str, state: object = None) -> ImplicitDrawError:
    """The error for a draw from `state` in a function whose caller, which `owner` names, returns no states."""
    error = ImplicitDrawError(
        f"{owner}: the function must not draw from a generator, since it returns no state; got a draw",
        fix="Draw outside of the function and pass the numbers to it, or draw with a key: "
        "functx.random.uniform(key, shape).",
    )
    error.state = state
    return error


def fresh_seed() -> int:
    """A seed of 64 bits from the operating system."""
    return secrets.randbits(64)


DEFAULT_STATE: Final = ThreadState()
"""The state of the default generator of each thread."""
