"""Values that recordings compute, and the operands of recorded operations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from threading import Lock, get_ident
from time import sleep
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np

from functx.core.captured_state import CapturedState
from functx.core.errors import CallbackWriteError
from functx.core.program import Literal
from functx.core.tracer import aval_of, literal_of, variables
from functx.core.types import ShapedArray
from functx.core.typing import ArrayLike
from functx.lowering.jax_bridge import is_in_callback

if TYPE_CHECKING:
    from functx.autograd.recording import Recording
    from functx.autograd.step_trace import StepTrace
    from functx.autograd.variable import Variable


class Recorded:
    """An array that a recording will compute, or has computed.

    It is value `number` of `recording`, which is None once `value` is known. `is_private` says whether
    nothing else refers to the array `value`, whose memory a recording may then reuse; `captured` is the last
    recording that captured it, and its number there. Both are set with `value`.
    """

    __slots__ = (
        "__weakref__",
        "aval",
        "captured",
        "is_private",
        "number",
        "recording",
        "value",
    )
    value: Any
    is_private: bool
    captured: tuple[Recording | None, int]

    def __init__(self, aval: ShapedArray, recording: Recording | Failure | None, number: int):
        self.aval = aval
        self.recording = recording
        self.number = number

    def compute(self) -> Any:
        """The value, for a caller that may keep it.

        Runs the recording if it is not known, and raises the error of one that failed.
        """
        value = self.look()
        self.share()
        return value

    def share(self) -> None:
        """Lets others refer to the value: no recording may reuse its memory."""
        with ownership:
            self.is_private = False
            if (recording := self.captured[0]) is not None:
                recording.reusable.pop(id(self.value), None)

    def look(self) -> Any:
        """As `compute`, for a caller that does not keep the value, and refers to this object meanwhile."""
        recording = self.recording
        if recording is not None:
            recording.run()
            if type(self.recording) is Failure:
                self.recording.run()
        return self.value


NOT_CAPTURED: tuple[None, int] = None, 0


class Failure:
    """In place of the recording of a value that could not be computed; to run it raises the error."""

    __slots__ = ("error",)

    def __init__(self, error: Exception):
        self.error = error

    def run(self) -> None:
        """Raises the error."""
        # The traceback would grow with each read.
        raise self.error.with_traceback(None)


class step_traces:  # noqa: N801 - a switch, as `variables` is
    """How many steps under `jit` are traced now, in all threads, and the function that gives this thread's.

    Only then do Variables look for it.
    """

    count = 0
    of_thread: Callable[[], StepTrace | None]


def capture_in_step(x: Variable) -> None:
    """Lets the step that this thread traces, if any, know a Variable that it reads or changes."""
    trace = step_traces.of_thread()
    if trace is not None and x._recorded.recording is not trace:
        trace.capture_variable(x)


class RunningStep:
    """The step under `jit` that is traced or runs, one at a time, and the gradients that others add to.

    `thread` is the thread of the step, and `holds(id(x))` says whether it has the Variable `x`. `adding`
    holds, for each leaf that a walk outside the step adds to now, its `id` and that of its gradient.
    Neither side needs a lock: each announces itself, then looks for the other.
    """

    def __init__(self) -> None:
        self.thread: int | None = None
        self.holds: Callable[[int], bool] = bool
        self.adding: list[Sequence[int]] = []

    def begin(self, holds: Callable[[int], bool]) -> None:
        """Begins a step of this thread, once no other thread adds to its gradients."""
        self.holds, self.thread = holds, get_ident()
        self.await_others(holds)

    def await_others(self, holds: Callable[[int], bool]) -> None:
        """Waits until no other thread adds to a gradient that the step holds."""
        while self.adding and any(map(holds, chain.from_iterable([*self.adding]))):
            sleep(_PAUSE)

    def end(self) -> None:
        """Ends the step."""
        self.thread, self.holds = None, bool

    def begin_adding(self, numbers: Sequence[int]) -> bool:
        """Begins to add to gradients, after a step of another thread that has one; False inside a step.

        Raises CallbackWriteError in a callback, for which the step may wait.
        """
        self.adding.append(numbers)
        if self.thread is None:
            return True
        in_callback = is_in_callback()
        if not in_callback and self.thread == get_ident():
            self.end_adding(numbers)
            return False
        while self.thread is not None and any(map(self.holds, numbers)):
            self.end_adding(numbers)
            if in_callback:
                raise callback_write_error("got a walk that adds to a gradient of the step")
            sleep(_PAUSE)
            self.adding.append(numbers)
        return True

    def end_adding(self, numbers: Sequence[int]) -> None:
        """Ends what `begin_adding` has begun."""
        self.adding.remove(numbers)


def callback_write_error(given: str) -> CallbackWriteError:
    return CallbackWriteError(
        f"a callback must not write to a Variable of the step under jit that runs; {given}",
        fix="Return the value from the callback, and add it in the step.",
    )


_PAUSE = 0.0005
"""The seconds between two looks of a thread that waits."""
running_step = RunningStep()

ownership = Lock()
"""Guards which values are private, and which of them a recording may reuse."""


def constant(x: ArrayLike) -> Recorded:
    """An array from outside, which others may refer to."""
    variables.exist = True
    if step_traces.count and (trace := step_traces.of_thread()) is not None:
        return trace.constant(x)
    recorded = Recorded(aval_of(x), None, 0)
    recorded.value, recorded.is_private, recorded.captured = x, False, NOT_CAPTURED
    return recorded


Operand = Recorded | Literal


def operand_of(x: Any) -> Operand:
    """An array, a number or the current value of a state, as an operand."""
    if isinstance(x, CapturedState):
        x = x.read()
    literal = literal_of(x)
    if literal is not None:
        return literal
    # The user may write to a NumPy array before the recording runs.
    return constant(jnp.array(x) if isinstance(x, np.ndarray) else x)
