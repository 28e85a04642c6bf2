"""Temporary values of context variables."""

from __future__ import annotations

from contextvars import Token
from typing import Any, Generic, Protocol, TypeVar

T = TypeVar("T")
T_contra = TypeVar("T_contra", contravariant=True)


class Settable(Protocol[T_contra]):
    """A context variable, or an object that is set and reset as one."""

    def set(self, value: T_contra, /) -> Token[Any]:
        """Give the variable `value`."""

    def reset(self, token: Token[Any], /) -> None:
        """Give the variable the value that it had before."""


class ContextValue(Generic[T]):
    """A context in which the context variable `variable` has `value`."""

    __slots__ = ("token", "value", "variable")

    def __init__(self, variable: Settable[T], value: T):
        self.variable, self.value = variable, value

    def __enter__(self) -> None:
        self.token: Token[Any] = self.variable.set(self.value)

    def __exit__(self, *_: object) -> None:
        self.variable.reset(self.token)
