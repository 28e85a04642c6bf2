"""The passes between a program and StableHLO, by name, so that each can be left out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

NEEDED = ("parts_first", "reads_first", "distinct")
"""Passes without which XLA on CPUs writes over what it has yet to read."""
OPTIONAL = ("simplify", "outline", "templates")
"""Passes that save work: programs compute the same without them."""
PASSES = NEEDED + OPTIONAL


class Passes(NamedTuple):
    """The names of the passes to go through, and whether they do all that they can, pay or not."""

    names: frozenset[str] = frozenset(PASSES)
    always: bool = False


chosen: ContextVar[Passes] = ContextVar("passes", default=Passes())  # noqa: B039 - a tuple
"""The passes that programs lowered in this context go through."""


@contextmanager
def only(*names: str, always: bool = False) -> Iterator[None]:
    """Programs lowered inside the block go through the passes of these names alone.

    With `always`, they change what they can, also where `functx.config` or a small program would
    have them leave it.
    """
    token = chosen.set(Passes(frozenset(names), always))
    try:
        yield
    finally:
        chosen.reset(token)
