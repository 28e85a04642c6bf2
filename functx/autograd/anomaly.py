"""Anomaly detection: source lines of a forward operation whose pullback raises or gives nan."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from functx.autograd.modes import ImmediateMode, ModeContext, set_var
from functx.autograd.recorded import step_traces
from functx.core.errors import AnomalyError
from functx.core.source_info import (
    USER_CODE,
    Source,
    file_owner,
    source_line,
    warn_at_user_line,
)
from functx.core.tracer import Tracer
from functx.core.types import is_inexact

if TYPE_CHECKING:
    from functx.autograd.nodes import Node


class Anomalies(NamedTuple):
    """Whether nodes keep source lines, and whether results of pullbacks are searched for nan."""

    enabled: bool
    check_nan: bool


class Origin(NamedTuple):
    """The user's lines that made a node, outermost first, and the node whose pullback made it."""

    lines: tuple[Source, ...]
    parent: Node | None


_anomalies: ContextVar[Anomalies] = ContextVar("anomalies", default=Anomalies(False, True))  # noqa: B039
current_anomalies = _anomalies.get
pulled_back: ContextVar[Node | None] = ContextVar("pulled_back", default=None)
"""The node whose pullback runs in this context, while anomalies are detected."""


def is_anomaly_enabled() -> bool:
    """Whether nodes keep the source lines of their operations."""
    return current_anomalies().enabled


def is_anomaly_check_nan_enabled() -> bool:
    """Whether a nan from a pullback raises while anomalies are detected."""
    return current_anomalies().check_nan


def current_origin() -> Origin:
    """The origin of a new node."""
    return Origin(tuple([*user_lines()][::-1]), pulled_back.get())


def user_lines() -> Iterator[Source]:
    """The lines of the user's code that runs now, innermost first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if file_owner[frame.f_code.co_filename] is USER_CODE:
            yield frame.f_code, frame.f_lasti
        frame = frame.f_back


def pull_back_with_origin(node: Node, pull_back: Callable[[], Any]) -> Any:
    """The gradients that `pull_back` gives for the operands of a node.

    If it raises, or gives nan, a warning first shows the source lines of the forward operation.
    """
    token = pulled_back.set(node)
    try:
        results = pull_back()
        if current_anomalies().check_nan:
            check_not_nan(node, results)
        return results
    except Exception:
        warn_of_origin(node)
        raise
    finally:
        pulled_back.reset(token)


def check_not_nan(node: Node, results: Any) -> None:
    """Raise AnomalyError for a nan among the gradients of the operands; masked ones count as zero.

    Traced gradients, which have no values, pass.
    """
    if step_traces.count and step_traces.of_thread() is not None:
        return
    for i, gradient in enumerate(results):
        if gradient is None:
            continue
        value, mask = [x.compute() if hasattr(x, "compute") else x for x in gradient]
        if isinstance(value, Tracer) or not is_inexact(value.dtype):
            continue
        is_nan = np.isnan(np.asarray(value))
        if mask is not None:
            is_nan &= np.asarray(mask)
        if is_nan.any():
            raise AnomalyError(
                f"backward: the gradient of `{node.label}` must not be nan; got nan in output "
                f"number {i} of its pullback",
                fix="Look at the source lines in the warning; detect_anomaly(check_nan=False) lets "
                "nan pass.",
            )


def warn_of_origin(node: Node) -> None:
    """Warns with the source lines of a node, and of the nodes whose pullbacks made it."""
    parts = [f"backward: the pullback of `{node.label}` failed. " + describe_origin(node.origin)]
    while node.origin is not None and node.origin.parent is not None:
        node = node.origin.parent
        parts.append(
            f"It is part of the pullback of `{node.label}`. " + describe_origin(node.origin)
        )
    warn_at_user_line("\n".join(parts), UserWarning)


def describe_origin(origin: Origin | None) -> str:
    """The source lines of the forward operation, as part of a warning."""
    if origin is None or not origin.lines:
        return (
            "No source line of it is known; compute the forward values under "
            "functx.autograd.detect_anomaly() too."
        )
    lines = "".join([f"\n  at {source_line(line)}" for line in origin.lines])
    return f"Its forward operation was called here, innermost last:{lines}"


def set_anomalies(enabled: bool, check_nan: bool) -> Callable[[], None]:
    """Sets the mode; returns the function that restores the previous one."""
    return set_var(_anomalies, Anomalies(enabled, check_nan))


class detect_anomaly(ModeContext):  # noqa: N801 - PyTorch's name
    """A context that shows the forward operation of a pullback that raises or gives nan.

    Nodes made in it keep the source lines of the user's code. If a pullback raises in a walk in it,
    a UserWarning shows these lines; then the error goes on. With `check_nan`, a nan among the
    gradients of operands raises AnomalyError. For a derivative of a derivative, the lines of the first
    forward operation are shown too. Walks read each gradient, which makes them slow; the constructor
    warns of it.

    >>> import functx.numpy as np
    >>> from functx.autograd import Variable, detect_anomaly
    >>> import warnings
    >>> warnings.simplefilter("ignore")
    >>> x = Variable(0.0, requires_grad=True)
    >>> with detect_anomaly():
    ...     (np.sqrt(x) * 0).backward()
    Traceback (most recent call last):
        ...
    functx.core.errors.AnomalyError: backward: the gradient of `sqrt` must not be nan; ...
    """

    def __init__(self, check_nan: bool = True):
        self.check_nan = bool(check_nan)
        warn_at_user_line(
            "detect_anomaly: walks read each gradient, which is slow; use it for debugging alone",
            UserWarning,
        )

    def enter(self) -> Callable[[], None]:
        return set_anomalies(True, self.check_nan)

    def fresh(self) -> ModeContext:
        return set_detect_anomaly(True, self.check_nan)


class set_detect_anomaly(ImmediateMode):  # noqa: N801 - PyTorch's name
    """Sets at once whether anomalies are detected; as a context, until its end.

    It is `detect_anomaly` without the warning.
    """

    def __init__(self, mode: bool, check_nan: bool = True):
        self.mode, self.check_nan = bool(mode), bool(check_nan)
        super().__init__()

    def switch(self) -> Callable[[], None]:
        return set_anomalies(self.mode, self.check_nan)

    def fresh(self) -> ModeContext:
        return set_detect_anomaly(self.mode, self.check_nan)
