"""What is made with rules that can be registered is forgotten when one is; scopes undo them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


class registrations:  # noqa: N801 - a count, raised by `rules_changed`
    """How often rules changed; what a program remembers holds only for the count of that time."""

    count = 0


def rules_changed() -> None:
    """Forget whatever was made with the rules that held so far.

    To be called after each registration of a rule that may have been used before. What users
    hold themselves stays as it is: programs, pullbacks, and what `jax.jit` compiled for them.
    """
    registrations.count += 1
    for forget in _forgetters:
        forget()


def forgotten_with_rules(forget: Callable[[], Any]) -> Callable[[], Any]:
    """Let `forget()`, which empties a cache, be called whenever rules have changed."""
    _forgetters.append(forget)
    return forget


def rule_table() -> dict[Any, Any]:
    """An empty table for rules; what happens to it within `scoped` is undone."""
    table: dict[Any, Any] = {}
    _tables.append(table)
    return table


@contextmanager
def scoped() -> Iterator[None]:
    """A scope for registrations: those made within it, and removals, are undone at its end.

    >>> import functx
    >>> with functx.decomp.scoped():
    ...     functx.decomp.remove("softmax")
    """
    before = [(table, dict(table)) for table in _tables]
    try:
        yield
    finally:
        changed = [(table, old) for table, old in before if table != old]
        for table, old in changed:
            for key in table.keys() - old.keys():
                del table[key]
            table.update(old)
        if changed:
            rules_changed()


_forgetters: list[Callable[[], Any]] = []
_tables: list[dict[Any, Any]] = []
