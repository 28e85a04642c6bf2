"""Bounded caches, their counts and their invalidation; and the process's garbage collector."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from threading import Lock
from typing import Any, ClassVar, NamedTuple
from weakref import WeakSet


class rule_version:  # noqa: N801 - a count, raised by `invalidate_caches`
    """How often rules have changed; the memo of a program is valid only for the count it was made at."""

    count = 0


def invalidate_caches() -> None:
    """Clear everything that was computed with the current rules.

    Call it after registering or removing a rule that may have been used before. Objects that users
    hold stay unchanged: programs, pullbacks, and functions that `jax.jit` has compiled for them.
    """
    rule_version.count += 1
    for clear in _clear_functions:
        clear()


def clear_on_rule_change(clear: Callable[[], object]) -> Callable[[], object]:
    """Register `clear()`, which empties a cache, to be called whenever rules change; returns it."""
    _clear_functions.append(clear)
    return clear


def scoped_table() -> dict[Any, Any]:
    """An empty table for rules, whose changes within `scoped` are undone at the end of the scope."""
    table: dict[Any, Any] = {}
    _scoped_tables.append(table)
    return table


@contextmanager
def scoped() -> Iterator[None]:
    """A scope at whose end all registrations and removals of rules within it are undone.

    >>> import functx
    >>> with functx.decomp.scoped():
    ...     functx.decomp.remove("softmax")
    """
    before = [(table, dict(table)) for table in _scoped_tables]
    try:
        yield
    finally:
        changed = [(table, old) for table, old in before if table != old]
        for table, old in changed:
            for key in table.keys() - old.keys():
                del table[key]
            table.update(old)
        if changed:
            invalidate_caches()


_clear_functions: list[Callable[[], object]] = []
_scoped_tables: list[dict[Any, Any]] = []


class IdentityKey:
    """A key that equals only a key of the same object, which it keeps alive."""

    __slots__ = ("value",)

    def __init__(self, value: object):
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, IdentityKey) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


class CacheInfo(NamedTuple):
    """The hits and misses of a cache, its number of entries, and the largest such number."""

    hits: int
    misses: int
    size: int
    limit: int


class Cache:
    """A table of up to `limit` entries, which evicts entries that were not used recently."""

    instances: ClassVar[WeakSet[Cache]] = WeakSet()
    """All caches in use."""

    def __init__(self, name: str, limit: int):
        self.name, self.limit = name, limit
        # When young entries fill half of the table, old entries are dropped: a hit updates no order.
        self.young_entries: dict[Hashable, object] = {}
        self.old_entries: dict[Hashable, object] = {}
        self.hits = self.misses = 0
        Cache.instances.add(self)

    def get(self, key: Hashable) -> Any:
        value = self.young_entries.get(key)
        if value is None:
            value = self.old_entries.pop(key, None) if self.old_entries else None
            if value is None:
                self.misses += 1
                return None
            self.put(key, value)
        self.hits += 1
        return value

    def put(self, key: Hashable, value: object) -> None:
        if len(self.young_entries) >= self.limit // 2:
            self.old_entries, self.young_entries = self.young_entries, {}
        self.young_entries[key] = value

    def clear(self) -> None:
        self.young_entries, self.old_entries = {}, {}
        self.hits = self.misses = 0

    def info(self) -> CacheInfo:
        """The counts of this cache."""
        return CacheInfo(
            self.hits, self.misses, len(self.young_entries) + len(self.old_entries), self.limit
        )


class CacheTable(dict[str, CacheInfo]):
    """Caches by name, printed as a table."""

    def __repr__(self) -> str:
        width = max(map(len, self), default=0)
        rows = [f"{'':{width}}{'hits':>10}{'misses':>10}{'size':>10}{'limit':>10}"]
        rows += [f"{n:{width}}" + "".join([f"{x:10}" for x in self[n]]) for n in self]
        return "\n".join(rows)


def cache_info() -> CacheTable:
    """Hits, misses, size and limit of each cache of functx, by name; prints as a table.

    "programs" holds executables of programs that run outside `jit`, "numbers" executables that take
    the numbers of a program as inputs, "operations" executables of single operations, "jit" the
    programs of jitted functions that are called inside a trace, "eager programs" those of functions of
    several operations outside a trace, and "aot functions" the calls that an `aot_function` has compiled.
    "from_jax" holds programs of translated functions of JAX, and "from_jax functions" these functions
    without the pytrees of their arguments. "splits" holds the splits of operations on Variables,
    "recorded operations", "recorded programs" and "recorded methods" the programs that recordings call,
    "recordings" compiled recordings, and "seen recordings" the keys of those that ran once, uncompiled.
    "captured walks" holds compiled walks, and "structures of walks" their forms without sizes; "plans of
    walks" and "plans of captured walks" hold the plans that walks of one structure follow. "primitives"
    and "details" each sum many small tables. JAX counts the executables of jitted functions that are
    called outside a trace.

    >>> import functx
    >>> functx.clear_caches()
    >>> slope = functx.grad(lambda x: x * x)(3.0)
    >>> slope = functx.grad(lambda x: x * x)(4.0)
    >>> functx.cache_info()["programs"][:3]
    (1, 1, 1)
    """
    counts: dict[str, CacheInfo] = {}
    for cache in Cache.instances:
        _add_counts(counts, cache.name, cache.info())
    for name, table in _lru_caches():
        info = table.cache_info()
        _add_counts(
            counts, name, CacheInfo(info.hits, info.misses, info.currsize, info.maxsize or 0)
        )
    return CacheTable(sorted(counts.items()))


def _add_counts(counts: dict[str, CacheInfo], name: str, info: CacheInfo) -> None:
    """Add `info` to the counts of that name, whose limit is the largest of a single cache."""
    before = counts.get(name, CacheInfo(0, 0, 0, 0))
    counts[name] = CacheInfo(
        before.hits + info.hits,
        before.misses + info.misses,
        before.size + info.size,
        max(before.limit, info.limit),
    )


_LruCache = type(lru_cache(repr))


def _lru_caches() -> Iterator[tuple[str, Any]]:
    """The `functools.lru_cache` tables of functions of functx."""
    from functx.core.primitive import Primitive

    for cls in Primitive.registry.loaded():
        if isinstance(cls._interned, _LruCache):
            yield "primitives", cls._interned
    for name, module in list(sys.modules.items()):
        if name.startswith("functx."):
            for value in list(vars(module).values()):
                if isinstance(value, _LruCache) and value.__module__ == name:
                    yield "details", value


def clear_caches() -> None:
    """Clear every compiled program, also of jitted functions; the next calls compile again."""
    invalidate_caches()
    for _, table in _lru_caches():
        table.cache_clear()


@clear_on_rule_change
def _clear_bounded_caches() -> None:
    for cache in Cache.instances:
        cache.clear()


GARBAGE_COLLECTION_MODES = "tune", "leave"


class GarbageCollection:
    """Owner of every setting of the process's garbage collector that functx changes.

    Imports, traces and rewrites make objects by the thousand, most of which stay, and no cycles;
    each collection visits them. In the mode "tune", the collector runs less often while anything is
    traced, and not at all in imports and rewrites. In the mode "leave", nothing is changed.

    Scopes that are nested or run in several threads count as one: the first to begin saves the
    settings of the process, and the last to end restores them, also after an error.
    """

    YOUNG_THRESHOLD = 100_000

    def __init__(self) -> None:
        self.mode = os.environ.get("FUNCTX_GARBAGE_COLLECTION", GARBAGE_COLLECTION_MODES[0])
        self._lock = Lock()
        self._traces = self._pauses = 0
        self._thresholds_before: tuple[int, int, int] | None = None
        self._is_paused = False

    def begin_trace(self) -> None:
        """Raise the number of allocations before a collection; `end_trace` must follow."""
        with self._lock:
            self._traces += 1
            if self._traces == 1 and self.mode == "tune":
                young, *older = before = gc.get_threshold()
                # A threshold of 0 means no collection at all.
                if 0 < young < self.YOUNG_THRESHOLD:
                    self._thresholds_before = before
                    gc.set_threshold(self.YOUNG_THRESHOLD, *older)

    def end_trace(self) -> None:
        """Restore the thresholds when the last trace ends."""
        with self._lock:
            self._traces -= 1
            if not self._traces and self._thresholds_before is not None:
                # Other code may have set thresholds of its own in between.
                if gc.get_threshold()[0] == self.YOUNG_THRESHOLD:
                    gc.set_threshold(*self._thresholds_before)
                self._thresholds_before = None

    @contextmanager
    def paused(self) -> Iterator[None]:
        """A scope without collections."""
        with self._lock:
            self._pauses += 1
            if self._pauses == 1 and self.mode == "tune" and gc.isenabled():
                self._is_paused = True
                gc.disable()
        try:
            yield
        finally:
            with self._lock:
                self._pauses -= 1
                if not self._pauses and self._is_paused:
                    self._is_paused = False
                    gc.enable()

    @contextmanager
    def paused_for_import(self) -> Iterator[None]:
        """A scope without collections, whose objects the next young collections do not visit."""
        with self.paused():
            yield
            if self._is_paused and not gc.get_freeze_count():
                # All objects move to the oldest generation.
                gc.freeze()
                gc.unfreeze()


garbage_collection = GarbageCollection()
