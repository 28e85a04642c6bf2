"""What is made with rules that can be registered is forgotten when one is; scopes undo them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple
from weakref import WeakSet


class rule_version:  # noqa: N801 - a count, raised by `invalidate_caches`
    """How often rules changed; what a program remembers holds only for the count of that time."""

    count = 0


def invalidate_caches() -> None:
    """Forget whatever was made with the rules that held so far.

    To be called after each registration of a rule that may have been used before. What users
    hold themselves stays as it is: programs, pullbacks, and what `jax.jit` compiled for them.
    """
    rule_version.count += 1
    for forget in _clear_functions:
        forget()


def clear_on_rule_change(forget: Callable[[], Any]) -> Callable[[], Any]:
    """Let `forget()`, which empties a cache, be called whenever rules have changed."""
    _clear_functions.append(forget)
    return forget


def scoped_table() -> dict[Any, Any]:
    """An empty table for rules; what happens to it within `scoped` is undone."""
    table: dict[Any, Any] = {}
    _scoped_tables.append(table)
    return table


@contextmanager
def scoped() -> Iterator[None]:
    """A scope for registrations: those made within it, and removals, are undone at its end.

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


_clear_functions: list[Callable[[], Any]] = []
_scoped_tables: list[dict[Any, Any]] = []


class IdentityKey:
    """A key that equals only a key of the same object, which it keeps alive."""

    __slots__ = ("value",)

    def __init__(self, value: Any):
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, IdentityKey) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


class CacheInfo(NamedTuple):
    """How often a cache was asked for what it had, for what it had not, how much it holds and may."""

    hits: int
    misses: int
    size: int
    limit: int


class Cache:
    """Up to `limit` entries by key, of which those that are no longer asked for go first."""

    instances: ClassVar[WeakSet[Cache]] = WeakSet()
    """Those in use; the cache of a function that is gone is gone with it."""

    def __init__(self, name: str, limit: int):
        self.name, self.limit = name, limit
        # When the recent ones fill half of it, the others go: a hit need not keep an order.
        self.young_entries: dict[Any, Any] = {}
        self.old_entries: dict[Any, Any] = {}
        self.hits = self.misses = 0
        Cache.instances.add(self)

    def get(self, key: Any) -> Any:
        found = self.young_entries.get(key)
        if found is None:
            found = self.old_entries.pop(key, None) if self.old_entries else None
            if found is None:
                self.misses += 1
                return None
            self.put(key, found)
        self.hits += 1
        return found

    def put(self, key: Any, value: Any) -> None:
        if len(self.young_entries) >= self.limit // 2:
            self.old_entries, self.young_entries = self.young_entries, {}
        self.young_entries[key] = value

    def clear(self) -> None:
        self.young_entries, self.old_entries = {}, {}
        self.hits = self.misses = 0

    def info(self) -> CacheInfo:
        """What it was asked for, and what it holds."""
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
    """For each cache of functx, by name: hits, misses, size and limit; it prints as a table.

    "programs" holds what was compiled for programs that ran outside `jit`, "numbers" the same with
    the numbers in them as inputs, "operations" what was compiled for single operations,
    and "jit" the programs of jitted functions that were called inside a trace; what a jitted
    function compiled when it was called from outside is JAX's to count. "from_jax" holds
    translated functions of JAX. "primitives" and "details" are many small tables in one row each.

    >>> import functx
    >>> functx.clear_caches()
    >>> slope = functx.grad(lambda x: x * x)(3.0)
    >>> slope = functx.grad(lambda x: x * x)(4.0)
    >>> functx.cache_info()["programs"][:3]
    (1, 1, 1)
    """
    found: dict[str, CacheInfo] = {}
    for cache in Cache.instances:
        _add_counts(found, cache.name, cache.info())
    for name, table in _lru_caches():
        info = table.cache_info()
        _add_counts(
            found, name, CacheInfo(info.hits, info.misses, info.currsize, info.maxsize or 0)
        )
    return CacheTable(sorted(found.items()))


def _add_counts(found: dict[str, CacheInfo], name: str, info: CacheInfo) -> None:
    """Add `info` to what was found by that name; its limit is that of a single one."""
    before = found.get(name, CacheInfo(0, 0, 0, 0))
    found[name] = CacheInfo(
        before.hits + info.hits,
        before.misses + info.misses,
        before.size + info.size,
        max(before.limit, info.limit),
    )


_LruCache = type(lru_cache(repr))


def _lru_caches() -> Iterator[tuple[str, Any]]:
    """The tables that `functools.lru_cache` keeps for functions of functx."""
    from functx.core.primitive import Primitive

    for cls in Primitive.registry.loaded():
        if isinstance(cls._interned, _LruCache):  # type: ignore[attr-defined]
            yield "primitives", cls._interned  # type: ignore[attr-defined]
    for name, module in list(sys.modules.items()):
        if name.startswith("functx."):
            for value in list(vars(module).values()):
                if isinstance(value, _LruCache) and value.__module__ == name:
                    yield "details", value


def clear_caches() -> None:
    """Forget every compiled program; the next calls compile again.

    What was compiled for jitted functions is forgotten too.
    """
    invalidate_caches()
    for _, table in _lru_caches():
        table.cache_clear()


@clear_on_rule_change
def _clear_bounded_caches() -> None:
    for cache in Cache.instances:
        cache.clear()
