"""Temporary values of context variables."""

from __future__ import annotations

from contextvars import Token
from typing import Any


class ContextValue:
    """A context in which the context variable `variable` has `value`."""

    __slots__ = ("token", "value", "variable")

    def __init__(self, variable: Any, value: Any):
        self.variable, self.value = variable, value

    def __enter__(self) -> None:
        self.token: Token[Any] = self.variable.set(self.value)

    def __exit__(self, *_: object) -> None:
        self.variable.reset(self.token)
