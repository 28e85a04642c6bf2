"""Hooks: functions of the user that see, and may replace, gradients during a walk."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any
from weakref import ref

if TYPE_CHECKING:
    from functx.autograd.variable import Variable

_ids = count()


class registrations:  # noqa: N801 - set by `next_registration`
    """The number of the last hook that was registered, by which a walk knows that there may be new ones."""

    last = 0


def dead_reference() -> None:
    """A weak reference to an object that is gone, or was not made yet."""


class Hooks(dict[int, Callable[..., Any]]):
    """A table of hooks, which run in the order of registration."""

    __slots__ = ("__weakref__",)

    def each(self) -> Iterator[Callable[..., Any]]:
        """The hooks; one that is added or removed meanwhile does not run."""
        for key, hook in list(self.items()):
            if key in self:
                yield hook


class NodeHooks:
    """The hooks of a node, and those of its outputs (`values`) by number.

    `retained` are the outputs whose gradient is added to `.grad`.
    """

    __slots__ = ("post", "post_accumulate", "pre", "retained", "values")

    def __init__(self) -> None:
        self.values: dict[int, Hooks] = {}
        self.retained: dict[int, ref[Variable]] = {}
        self.pre = Hooks()
        self.post = Hooks()
        self.post_accumulate = Hooks()

    def is_empty(self) -> bool:
        """Whether no hook is registered: there may have been some."""
        tables = *self.values.values(), self.pre, self.post, self.post_accumulate
        return not (self.retained or any(tables))


class RemovableHandle:
    """The registration of a hook; `remove()`, or the end of a `with` block, ends it.

    It does not keep the hook alive.
    """

    def __init__(self, *registrations: tuple[Hooks, int]):
        self._registrations = [(ref(table), key) for table, key in registrations]

    def remove(self) -> None:
        """End the registration, also during a walk; doing so twice is fine."""
        for reference, key in self._registrations:
            table = reference()
            if table is not None:
                table.pop(key, None)

    def __enter__(self) -> RemovableHandle:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


def joined(handles: Sequence[RemovableHandle]) -> RemovableHandle:
    """One handle that ends several registrations."""
    handle = RemovableHandle()
    handle._registrations = [pair for one in handles for pair in one._registrations]
    return handle


def next_registration() -> int:
    """The number of a hook that is registered now."""
    registrations.last = next(_ids)
    return registrations.last


def register(table: Hooks, hook: Callable[..., Any]) -> RemovableHandle:
    """Adds `hook` to a table."""
    key = next_registration()
    table[key] = hook
    return RemovableHandle((table, key))


def hook_name(hook: Callable[..., Any]) -> str:
    """The name of a hook for messages."""
    name = getattr(hook, "__name__", None)
    return name if isinstance(name, str) else type(hook).__name__
