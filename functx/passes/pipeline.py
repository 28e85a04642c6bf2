"""The passes between a program and StableHLO, by name, so that each can be left out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

REQUIRED_PASSES = ("parts_first", "reads_first", "distinct")
"""Passes that keep XLA on CPUs from writing over memory that it has yet to read."""
OPTIONAL_PASSES = ("simplify", "outline", "templates")
"""Passes that save work: programs compute the same without them."""
ALL_PASSES = REQUIRED_PASSES + OPTIONAL_PASSES


class PassSelection(NamedTuple):
    """The names of the passes to run, and whether they also apply where that does not pay."""

    names: frozenset[str] = frozenset(ALL_PASSES)
    always: bool = False


selected_passes: ContextVar[PassSelection] = ContextVar("passes", default=PassSelection())  # noqa: B039 - a tuple
"""The passes that programs lowered in this context go through."""


@contextmanager
def select_passes(*names: str, always: bool = False) -> Iterator[None]:
    """Lower programs inside the block by the passes of these names alone.

    With `always`, a pass also applies where `functx.config` forbids it or the program is small.
    """
    token = selected_passes.set(PassSelection(frozenset(names), always))
    try:
        yield
    finally:
        selected_passes.reset(token)
