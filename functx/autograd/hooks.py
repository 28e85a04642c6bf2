"""Hooks: functions of the user that see, and may replace, gradients during a walk."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any
from weakref import ref

Hooks = dict[int, Callable[..., Any]]
_ids = count()


class NodeHooks:
    """The hooks of a node: by the number of the output for values, and those of the node itself.

    `retained` are the values whose gradient is kept.
    """

    __slots__ = ("accumulated", "post", "pre", "retained", "values")

    def __init__(self) -> None:
        self.values: dict[int, Hooks] = {}
        self.retained: dict[int, ref[Any]] = {}
        self.pre: Hooks = {}
        self.post: Hooks = {}
        self.accumulated: Hooks = {}


class RemovableHandle:
    """The registration of a hook, which `remove()` ends; also a context that ends it."""

    def __init__(self, *tables: tuple[Hooks, int]):
        self._tables = tables

    def remove(self) -> None:
        """End the registration; doing so twice is fine."""
        for table, key in self._tables:
            table.pop(key, None)

    def __enter__(self) -> RemovableHandle:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


def register(table: Hooks, hook: Callable[..., Any]) -> RemovableHandle:
    """Add `hook` to a table of hooks, which run in the order of registration."""
    key = next(_ids)
    table[key] = hook
    return RemovableHandle((table, key))
