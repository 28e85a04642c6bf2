"""Switches: `functx.config`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from functx.core.errors import ArgumentError
from functx.core.tracing import checking


class Config:
    """Switches that hold for the whole process.

    `check_programs`: whether every program made is checked for scope and types.
    The 64-bit switch is JAX's own: `jax.config.update("jax_enable_x64", True)`.
    """

    @property
    def check_programs(self) -> bool:
        return checking.enabled

    @check_programs.setter
    def check_programs(self, on: bool) -> None:
        checking.enabled = bool(on)

    def update(self, name: str, value: Any) -> None:
        """Set a switch by name; raises ArgumentError for a name that is none."""
        if name.startswith("_") or not isinstance(getattr(type(self), name, None), property):
            raise ArgumentError(f"config: there is no switch {name!r}; there is check_programs")
        setattr(self, name, value)

    @contextmanager
    def set(self, **switches: Any) -> Iterator[None]:
        """Switches for the length of a `with` block."""
        before = {name: getattr(self, name) for name in switches}
        try:
            for name, value in switches.items():
                self.update(name, value)
            yield
        finally:
            for name, value in before.items():
                setattr(self, name, value)


config = Config()
