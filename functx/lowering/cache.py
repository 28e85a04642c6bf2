"""Bounded caches that can be counted and cleared together."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, ClassVar, NamedTuple
from weakref import WeakSet

from functx.core.registrations import forgotten_with_rules


class CacheInfo(NamedTuple):
    """How often a cache was asked for what it had, for what it had not, and how much it holds."""

    hits: int
    misses: int
    size: int


class Cache:
    """The most recently added `limit` entries, by key."""

    all: ClassVar[WeakSet[Cache]] = WeakSet()
    """Those in use; the cache of a function that is gone is gone with it."""

    def __init__(self, name: str, limit: int):
        self.name, self.limit = name, limit
        self.entries: OrderedDict[Any, Any] = OrderedDict()
        self.hits = self.misses = 0
        Cache.all.add(self)

    def get(self, key: Any) -> Any:
        found = self.entries.get(key)
        if found is None:
            self.misses += 1
        else:
            self.hits += 1
        return found

    def put(self, key: Any, value: Any) -> None:
        self.entries[key] = value
        while len(self.entries) > self.limit:
            self.entries.popitem(last=False)

    def clear(self) -> None:
        self.entries.clear()
        self.hits = self.misses = 0


def cache_info() -> dict[str, CacheInfo]:
    """For each cache of functx, by name: hits, misses and size."""
    return {c.name: CacheInfo(c.hits, c.misses, len(c.entries)) for c in Cache.all}


@forgotten_with_rules
def clear_caches() -> None:
    """Forget every compiled program; the next calls compile again."""
    for cache in Cache.all:
        cache.clear()
