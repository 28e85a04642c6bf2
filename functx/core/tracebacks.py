"""Tracebacks without the frames of functx and JAX: `config.traceback_filtering`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from types import FrameType, TracebackType
from typing import Any, ParamSpec, TypeVar

from functx.core.source_info import FUNCTX_OR_JAX, file_owner, ipython_shell

TRACEBACK_FILTERING_MODES = "auto", "off", "tracebackhide", "remove_frames", "quiet_remove_frames"


class traceback_filter:  # noqa: N801 - a switch, set through `functx.config`
    """The mode of traceback filtering, one of `TRACEBACK_FILTERING_MODES`; "auto" means "quiet_remove_frames"."""

    mode = "auto"


class UnfilteredTraceback(Exception):
    """The cause of an error whose traceback was filtered, with the whole traceback."""


Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def api_boundary(fun: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Wrap the public function `fun` so that tracebacks of its errors show user frames alone."""
    boundary = wraps(fun)(unnamed_api_boundary(fun))
    boundary.filters_traceback = True  # type: ignore[attr-defined]
    boundary.unfiltered = fun  # type: ignore[attr-defined]
    return boundary


def unnamed_api_boundary(fun: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """As `api_boundary`, for a function that gets its name, docstring and signature afterwards."""

    def outermost(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        try:
            return fun(*args, **kwargs)
        except Exception as error:
            explain_and_filter(error)
            raise

    return outermost


def explain_and_filter(error: Exception) -> None:
    """Raise an error of functx if that of Python says nothing of the cause; filter the traceback of others.

    For an `except` clause that ends with a bare `raise`, which adds no frame.
    """
    from functx.core.argument_errors import explain_call

    explain_call(error)
    filter_traceback(error)


def filter_traceback(error: BaseException) -> None:
    """Remove the frames of functx and JAX from the tracebacks of `error` and its causes.

    For an `except` clause that ends with a bare `raise`, which adds no frame.
    """
    mode = traceback_filter.mode
    if mode == "off":
        return
    if mode == "tracebackhide":
        for each in _exception_chain(error):
            for trail in _traceback_entries(each.__traceback__):
                if _is_hidden(trail.tb_frame):
                    _hide(trail.tb_frame)
        return
    if mode == "remove_frames" and not isinstance(error.__cause__, UnfilteredTraceback):
        _chain_unfiltered_traceback(error)
    for each in _exception_chain(error):
        if isinstance(each, UnfilteredTraceback):
            break
        _remove_jax_note(each)
        whole = _traceback_entries(each.__traceback__)
        if whole and _is_hidden(whole[-1].tb_frame):
            _note_hidden_frames(each)
        kept: TracebackType | None = None
        for trail in reversed(whole):
            if not _is_hidden(trail.tb_frame):
                kept = TracebackType(kept, trail.tb_frame, trail.tb_lasti, trail.tb_lineno)
        each.__traceback__ = kept


def hide_callers(frame: FrameType | None) -> None:
    """Let notebooks and pytest skip the frames of functx from `frame` outwards, up to the user's."""
    if traceback_filter.mode == "off":
        return
    while frame is not None and _is_hidden(frame):
        _hide(frame)
        frame = frame.f_back


def filtering_excepthook(hook: Callable[..., Any]) -> Callable[..., Any]:
    """`hook` with a filter for errors of functx that are raised outside all transforms."""
    from functx.core.errors import FunctxError

    def excepthook(
        kind: type[BaseException], error: BaseException, trail: TracebackType | None
    ) -> object:
        if isinstance(error, FunctxError):
            error.__traceback__ = trail
            filter_traceback(error)
            trail = error.__traceback__
        return hook(kind, error, trail)

    return excepthook


def install_excepthook() -> None:
    """Filter the tracebacks of uncaught errors of functx in terminals and notebooks."""
    from functx.core.errors import FunctxError

    sys.excepthook = filtering_excepthook(sys.excepthook)
    shell = ipython_shell()
    if shell is not None and not shell.custom_exceptions:
        shell.set_custom_exc((FunctxError,), _show_in_notebook)


def _show_in_notebook(
    shell: Any,
    kind: type[BaseException],
    error: BaseException,
    trail: TracebackType | None,
    tb_offset: int | None = None,
) -> None:
    error.__traceback__ = trail
    filter_traceback(error)
    shell.showtraceback((kind, error, error.__traceback__), tb_offset=tb_offset)


def _is_hidden(frame: FrameType) -> bool:
    return file_owner[frame.f_code.co_filename] is FUNCTX_OR_JAX


def _hide(frame: FrameType) -> None:
    # The locals of a module are its globals.
    if frame.f_code.co_name != "<module>":
        frame.f_locals["__tracebackhide__"] = True


def _traceback_entries(trail: TracebackType | None) -> list[TracebackType]:
    """The entries of a traceback, the innermost last."""
    entries = []
    while trail is not None:
        entries.append(trail)
        trail = trail.tb_next
    return entries


def _exception_chain(error: BaseException) -> list[BaseException]:
    """An error with its causes and contexts, at any depth."""
    found: dict[int, BaseException] = {}
    pending: list[BaseException | None] = [error]
    while pending:
        each = pending.pop()
        if each is not None and id(each) not in found:
            found[id(each)] = each
            pending += [each.__context__, each.__cause__]
    return list(found.values())


_NOTE = (
    "It was raised inside functx or JAX, whose frames are left out; "
    'functx.config.traceback_filtering = "off" shows them.'
)


def _note_hidden_frames(error: BaseException) -> None:
    """Add a note on how to see the hidden frames, unless functx raised the error on purpose."""
    from functx.core.errors import FunctxError

    if not isinstance(error, FunctxError) and _NOTE not in getattr(error, "__notes__", ()):
        error.add_note(_NOTE)


def _remove_jax_note(error: BaseException) -> None:
    """Remove JAX's note about its hidden frames, since JAX's option has no effect here."""
    notes = getattr(error, "__notes__", None)
    if notes:
        notes[:] = [note for note in notes if "JAX has removed its internal frames" not in note]


def _chain_unfiltered_traceback(error: BaseException) -> None:
    """Insert an `UnfilteredTraceback` with the whole traceback between `error` and its cause."""
    whole = UnfilteredTraceback("the whole traceback follows, with the frames of functx and JAX")
    whole.__traceback__ = error.__traceback__
    whole.__cause__, whole.__context__ = error.__cause__, error.__context__
    whole.__suppress_context__ = error.__suppress_context__
    error.__cause__ = whole
