"""Counts of captures, compilations, hits and misses of captured walks."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Lock


class Counts:
    """The counts of one compiler, or of all.

    `captures` counts new structures of walks, and structures whose sizes have become dynamic; `compiles`
    counts the programs, one for each set of sizes, that were cut into stages or given to a compiler
    function. A captured walk is a hit if its program was there, else a miss. `stages` counts the parts
    that programs were cut into by the default alone.
    """

    fields = "captures", "compiles", "hits", "misses", "stages"

    def __init__(self) -> None:
        Counts.clear(self)

    def clear(self) -> None:
        """Sets all counts to zero."""
        self.captures = self.compiles = self.hits = self.misses = self.stages = 0

    def as_dict(self) -> dict[str, int]:
        """The counts by name."""
        return {name: getattr(self, name) for name in self.fields}

    def __repr__(self) -> str:
        return ", ".join([f"{name} {count}" for name, count in self.as_dict().items()])


class Counters(Counts):
    """The counts of all compilers together; by the name of a compiler, those of one.

    The name is that of the compiler function, "default" without one.
    """

    def __init__(self) -> None:
        super().__init__()
        self._by_name: dict[str, Counts] = {}

    def add(self, name: str, **counts: int) -> None:
        """Adds to the counts of a compiler."""
        with _lock:
            own = self._by_name.get(name)
            if own is None:
                own = self._by_name[name] = Counts()
            for field, count in counts.items():
                setattr(self, field, getattr(self, field) + count)
                setattr(own, field, getattr(own, field) + count)

    def clear(self) -> None:
        """Sets all counts to zero, and forgets the compilers."""
        super().clear()
        self._by_name.clear()

    def __getitem__(self, name: str) -> Counts:
        return self._by_name[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def __len__(self) -> int:
        return len(self._by_name)

    def __bool__(self) -> bool:
        return True

    def keys(self) -> Iterator[str]:
        """The names of the compilers."""
        return iter(self)


_lock = Lock()
counters = Counters()
"""The counts of this process."""
