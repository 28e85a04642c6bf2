"""What an operation does besides computing its outputs."""

from __future__ import annotations

from enum import Enum


class Effect(Enum):
    """An effect that no rewrite may drop, repeat or, where it is ordered, move past another."""

    CALLBACK = "callback"
    """Python code runs, in no order that is promised."""
    ORDERED = "ordered"
    """Python code runs after that of every earlier ordered equation, and before the later ones'."""
    PROGRESS = "progress"
    """Python code shows how far a loop is: once for all lanes of a batch, and of no account else."""

    WRITE = "write"
    """An operand takes another value, which all that share its memory see from then on."""

    def __repr__(self) -> str:
        return self.value


Effects = frozenset[Effect]
NO_EFFECTS: Effects = frozenset()
BATCHED_EFFECTS: Effects = frozenset([Effect.CALLBACK, Effect.ORDERED])
"""Those that take place for each lane of a batch, and only in those that come by."""
