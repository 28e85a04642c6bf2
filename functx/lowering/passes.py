"""The passes between a program and StableHLO, by name, so that each can be left out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

NEEDED = ("parts_first", "reads_first", "distinct")
"""Passes that keep XLA on CPUs from writing over memory that it has yet to read."""
OPTIONAL = ("simplify", "outline", "templates")
"""Passes that save work: programs compute the same without them."""
PASSES = NEEDED + OPTIONAL


class Passes(NamedTuple):
    """The names of the passes to run, and whether they also apply where that does not pay."""

    names: frozenset[str] = frozenset(PASSES)
    always: bool = False


chosen: ContextVar[Passes] = ContextVar("passes", default=Passes())  # noqa: B039 - a tuple
"""The passes that programs lowered in this context go through."""


@contextmanager
def only(*names: str, always: bool = False) -> Iterator[None]:
    """Lower programs inside the block by the passes of these names alone.

    With `always`, a pass also applies where `functx.config` forbids it or the program is small.
    """
    token = chosen.set(Passes(frozenset(names), always))
    try:
        yield
    finally:
        chosen.reset(token)
