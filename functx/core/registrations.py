"""What is made with rules that can be registered is forgotten when one is; scopes undo them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


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
