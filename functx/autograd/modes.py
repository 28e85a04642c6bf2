"""Modes: whether operations get nodes, per thread and context."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_grad_enabled: ContextVar[bool] = ContextVar("grad_enabled", default=True)
is_grad_enabled = _grad_enabled.get


@contextmanager
def grad_mode(enabled: bool) -> Iterator[None]:
    """A context in which operations get nodes, or not."""
    token = _grad_enabled.set(enabled)
    try:
        yield
    finally:
        _grad_enabled.reset(token)


def no_grad(): return grad_mode(False)
