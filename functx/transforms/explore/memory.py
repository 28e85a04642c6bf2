"""Which arrays of a run share memory, and which are written to later."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from functx.core.program import Atom, Var
from functx.transforms.explore.python_state import LeafKey

Slot = tuple[Any, LeafKey]
"""A leaf of the state at a place in the code: the frames of a position, and the key of the leaf."""


class MemoryFlow:
    """Which arrays at one decision are in the memory of which at the next, and which are written to."""

    def __init__(self) -> None:
        self._sources: dict[Slot, set[Slot]] = {}
        self._written: set[Slot] = set()

    def flow(self, source: Sequence[Slot], target: Sequence[Slot]) -> None:
        """Note that slots of two successive decisions have one storage."""
        for slot in target:
            self._sources.setdefault(slot, set()).update(source)

    def write(self, slots: Sequence[Slot]) -> None:
        """Note a write to the storage of slots."""
        self._written.update(slots)

    def mutable_slots(self) -> set[Slot]:
        """The slots whose storage is written to before the function returns."""
        found, pending = set[Slot](), [*self._written]
        while pending:
            slot = pending.pop()
            if slot not in found:
                found.add(slot)
                pending += self._sources.get(slot, ())
        return found


class RunMemory:
    """The memory of the arrays of one run, which notes in `flow` what all runs do.

    `name` gives the atom that stands for a value of this run in all runs.
    """

    def __init__(self, flow: MemoryFlow, name: Callable[[Atom], Any]):
        self._flow, self._name = flow, name
        self._slots: dict[Any, list[Slot]] = {}

    def write(self, storage: object) -> None:
        """Note a write to a storage."""
        self._flow.write(self._slots.get(storage, ()))

    def describe(
        self, frames: object, arrays: dict[LeafKey, Var], aliases: dict[Atom, Any]
    ) -> dict[LeafKey, Any]:
        """The storage of each array, by number, and how it is a view of that."""
        slots: dict[Any, list[Slot]] = {}
        numbers: dict[Any, int] = {}
        found, views = {}, set()
        for key, var in arrays.items():
            alias = aliases.get(var)
            if alias is not None:
                slots.setdefault(alias.storage, []).append((frames, key))
                number = numbers.setdefault(alias.storage, len(numbers))
                found[key] = number, tuple(self._view_steps(alias))
                views.add((alias.storage, alias.key))
        for storage, target in slots.items():
            self._flow.flow(self._slots.get(storage, ()), target)
            # Views that no variable shows must be taken again, as those of a path that merges here are.
            values = storage.cached_views or {}
            storage.cached_views = {k: x for k, x in values.items() if (storage, k) in views}
        self._slots = slots
        return found

    def _view_steps(self, alias: Any) -> Iterator[Any]:
        """The views and operands that lead from a storage to an array, the last one first."""
        while alias.step is not None:
            step = alias.step
            operands = [self._name(x.atom) for x in step.other_operands]
            yield step.view, *[x if type(x) is Var else repr(x) for x in operands], step.output
            alias = alias.parent
