"""The passes between a program and StableHLO, by name, so that each can be left out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

NEEDED = ("parts_first", "reads_first", "distinct")
"""Passes without which XLA on CPUs writes over what it has yet to read."""
OPTIONAL = ("simplify", "outline", "templates")
"""Passes that save work: programs compute the same without them."""
PASSES = NEEDED + OPTIONAL

chosen: ContextVar[frozenset[str]] = ContextVar("passes", default=frozenset(PASSES))
"""The passes that programs lowered in this context go through."""


@contextmanager
def only(*names: str) -> Iterator[None]:
    """Programs lowered inside the block go through the passes of these names alone."""
    token = chosen.set(frozenset(names))
    try:
        yield
    finally:
        chosen.reset(token)
