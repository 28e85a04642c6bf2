"""Calls a function before chosen instructions of the user's code run, as debuggers do.

Python 3.12 and later tell of instructions by `sys.monitoring`. Before, a run is traced by `sys.settrace`, which
costs time for each call of Python code, so that a run is traced only where it may meet such instructions.
"""

from __future__ import annotations

import atexit
import sys
import threading
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any

from functx.core.errors import IdentityTestError
from functx.core.source_info import FUNCTX_OR_JAX, file_owner

Chosen = Callable[[CodeType], Container[int]]
"""The offsets of the chosen instructions of a function."""
Handler = Callable[[FrameType], None]
"""A function that is called with the frame that is about to run one of them."""


class TracedEvents:
    """Events from `sys.settrace`; a trace function that was there, as that of a debugger, is called too.

    `are_met` becomes True when code runs that has chosen instructions.
    """

    def __init__(self, chosen: Chosen, handle: Handler):
        self._chosen, self._handle = chosen, handle
        self.are_met = False
        self._error: Exception | None = None
        self._outer: Any = None
        self._is_on = False

    @contextmanager
    def watching(self, is_new: bool) -> Iterator[None]:
        """A context of one run, which begins as `watch`; raises an error of the handler that the user's code caught."""
        outer = sys.gettrace()
        owner = getattr(outer, "__self__", None)
        self._outer = owner._outer if isinstance(owner, TracedEvents) else outer
        self._error, self._is_on = None, False
        self.watch(is_new)
        try:
            yield
        finally:
            sys.settrace(outer)
            if self._error is not None:
                raise self._error

    def watch(self, is_new: bool) -> None:
        """Watch from now on if the code that follows `is_new`, or if chosen instructions have been met."""
        on = is_new or self.are_met
        if on is not self._is_on:
            self._is_on = on
            sys.settrace(self._trace_call if on else self._outer)

    def _trace_call(self, frame: FrameType, event: str, arg: object) -> Any:
        """The trace function for a frame that begins; that which was there if it has no chosen instructions."""
        outer = self._outer and self._outer(frame, event, arg)
        is_users = file_owner[frame.f_code.co_filename] is not FUNCTX_OR_JAX
        if not (is_users and self._chosen(frame.f_code)):
            return outer
        self.are_met = frame.f_trace_opcodes = True

        def trace(frame: FrameType, event: str, arg: object) -> Any:
            nonlocal outer
            if event != "opcode":
                outer = outer and outer(frame, event, arg)
            elif frame.f_lasti in self._chosen(frame.f_code):
                self._call_handler(frame)
            return trace

        return trace

    def _call_handler(self, frame: FrameType) -> None:
        try:
            self._handle(frame)
        except Exception as error:
            # Python traces no longer after an error: what follows in the user's code is not seen.
            self._error = error
            raise


class MonitoredEvents:
    """Events from `sys.monitoring`, for which functx is a tool from the first exploration on.

    Each place in the code that is not chosen reports one event at most, so that code runs as fast as before.
    """

    _tool: int | None = None
    _active: tuple[int, MonitoredEvents] | None = None

    def __init__(self, chosen: Chosen, handle: Handler):
        self._chosen, self._handle = chosen, handle

    @contextmanager
    def watching(self, is_new: bool) -> Iterator[None]:
        """A context of one run, in which the handler is called."""
        if MonitoredEvents._tool is None:
            MonitoredEvents._tool = _new_tool(self._start, self._run_instruction)
        before = MonitoredEvents._active
        MonitoredEvents._active = threading.get_ident(), self
        try:
            yield
        finally:
            MonitoredEvents._active = before

    def watch(self, is_new: bool) -> None:
        """Do nothing: each run is watched."""

    def _start(self, code: CodeType, offset: int) -> object:
        if file_owner[code.co_filename] is not FUNCTX_OR_JAX and self._chosen(code):
            monitoring = _monitoring()
            monitoring.set_local_events(self._tool, code, monitoring.events.INSTRUCTION)
        return _monitoring().DISABLE

    def _run_instruction(self, code: CodeType, offset: int) -> object:
        if offset not in self._chosen(code):
            return _monitoring().DISABLE
        thread, events = self._active or (None, self)
        if thread == threading.get_ident():
            events._handle(sys._getframe(1))
        return None


def _new_tool(start: Callable[..., Any], run_instruction: Callable[..., Any]) -> int:
    """The number of a tool of `sys.monitoring`, to which the start of each function is reported."""
    monitoring = _monitoring()
    # By convention 0, 1, 2 and 5 are for debuggers, coverage, profilers and optimizers.
    free = [n for n in (3, 4, 5, 2, 1, 0) if monitoring.get_tool(n) is None]
    if not free:
        in_use = ", ".join([monitoring.get_tool(n) for n in range(6)])
        raise IdentityTestError(
            "explore: one of the six tools of `sys.monitoring` must be free, to tell of comparisons by "
            f"identity; got all in use, by {in_use}",
            fix="Leave a debugger, profiler or coverage tool out.",
        )
    (tool, *_) = free
    monitoring.use_tool_id(tool, "functx.explore")
    monitoring.register_callback(tool, monitoring.events.PY_START, start)
    monitoring.register_callback(tool, monitoring.events.INSTRUCTION, run_instruction)
    monitoring.set_events(tool, monitoring.events.PY_START)
    # The modules that the callbacks need are cleared at the end.
    atexit.register(monitoring.set_events, tool, 0)
    return tool


def _monitoring() -> Any:
    return sys.monitoring  # type: ignore[attr-defined]


InstructionEvents = MonitoredEvents if sys.version_info >= (3, 12) else TracedEvents
