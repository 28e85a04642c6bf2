"""Prefixes: the calls that recordings begin with, shared by all recordings that begin alike."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from functx.core.caches import clear_on_rule_change
from functx.core.program import Literal
from functx.core.types import ShapedArray
from functx.passes.costs import bytes_of

if TYPE_CHECKING:
    from functx.autograd.nodes import OperationSplit
    from functx.autograd.recorded_operations import Operation
    from functx.autograd.recording import PlannedCalls

FIRST_LITERAL = 2**40
"""The number of the first literal operand of a recording."""


class Prefix:
    """The first calls of recordings: those of the prefix `before`, and one more, or several of a plan.

    A loop makes the same calls in each of its steps. So the prefixes of all recordings form a tree:
    `next` holds those that are one call longer. Its key has the numbers of the operands, which tell their
    types: results are numbered from 0, captured values from -1 downwards, literals from FIRST_LITERAL.
    `entries` are the operation and these numbers, `new` the numbers and types of the results that may be
    read. The counts are those of all calls. `split` is that of an operation whose key has its function.
    """

    __slots__ = (
        "before",
        "bytes",
        "captured",
        "count",
        "entries",
        "generation",
        "has_effects",
        "literals",
        "new",
        "next",
        "size",
        "split",
        "wide",
    )
    made: ClassVar[int] = 0
    """How many there are in the tree."""
    forgotten: ClassVar[int] = 0
    """How often the tree was forgotten; a prefix of another `generation` is not in it."""

    def __init__(self, before: Prefix | None = None):
        self.before, self.generation = before, Prefix.forgotten
        self.next: dict[Hashable, Prefix] = {}
        self.split: OperationSplit | None = None
        self.entries: Sequence[Any] = ()
        self.new: Sequence[tuple[int, ShapedArray]] = ()
        self.has_effects = False
        if before is None:
            self.captured = self.literals = self.count = self.size = self.bytes = 0
            self.wide = False
        else:
            self.generation, self.captured = before.generation, before.captured
            self.literals, self.count, self.size = before.literals, before.count, before.size
            self.bytes, self.wide = before.bytes, before.wide

    def after_call(self, operation: Operation, operands: Sequence[Hashable]) -> Prefix:
        """The prefix with a call of an operation more, whose operands are given as in `with_call`."""
        key = (operation, *operands)
        found = self.next.get(key)
        return found or self.keep(key, self.with_call(operation, operands))

    def with_call(self, operation: Operation, operands: Sequence[Any]) -> Prefix:
        """A new prefix with a call more.

        An operand is its number, or the type of a value that is captured for the call, or a tuple with the
        type of a literal.
        """
        longer = Prefix(self)
        longer.entries = [operation, *longer.numbers_of(operands)]
        longer.new = [(self.count + i, aval) for i, aval in enumerate(operation.new_avals)]
        longer.count += len(longer.new)
        longer.size += operation.size
        longer.bytes += operation.bytes
        longer.wide = self.wide or operation.wide
        longer.has_effects = operation.effects
        return longer

    def after_calls(self, calls: PlannedCalls, operands: Sequence[Hashable]) -> Prefix:
        """The prefix with several calls more; literals among the operands are given as they are."""
        key = (calls.arrange, *operands)
        found = self.next.get(key)
        if found is None:
            found, first = Prefix(self), self.count
            numbers = found.numbers_of(operands)
            results = range(first, first + calls.new_count)
            found.entries = calls.arrange([*results, *calls.constants, *reversed(numbers)])
            found.new = [(first + i, aval) for i, aval in calls.wanted]
            found.count += calls.new_count
            found.size += calls.size
            found.bytes += calls.bytes
            found.wide = self.wide or calls.wide
            found = self.keep(key, found)
        return found

    def after_capturing(self, types: Sequence[ShapedArray]) -> Prefix:
        """The prefix with captured values more, which no call has yet."""
        key = (None, *types)
        found = self.next.get(key)
        if found is None:
            found = Prefix(self)
            found.numbers_of(types)
            found = self.keep(key, found)
        return found

    def numbers_of(self, operands: Sequence[Any]) -> list[int | Literal]:
        """The numbers of the operands of its last call, of which it counts those that are new."""
        numbers: list[int | Literal] = []
        for x in operands:
            kind = type(x)
            if kind is int or kind is Literal:
                numbers.append(x)
            elif kind is not tuple:
                self.captured += 1
                self.bytes += bytes_of(x)
                numbers.append(-self.captured)
            else:
                numbers.append(FIRST_LITERAL + self.literals)
                self.literals += 1
        return numbers

    def keep(self, key: Hashable, longer: Prefix) -> Prefix:
        """Notes a prefix that is one call longer, or finds that which another thread has noted.

        If there are too many, all are forgotten.
        """
        if self.generation != Prefix.forgotten:
            return longer
        Prefix.made += 1
        if Prefix.made > _LIMIT:
            forget_prefixes()
            return longer
        return self.next.setdefault(key, longer)

    def calls(self, literals: Sequence[Literal]) -> list[Any]:
        """Each operation, then its operands: numbers, and literals."""
        prefixes, prefix = [], self
        while prefix.before is not None:
            prefixes.append(prefix)
            prefix = prefix.before
        return [
            literals[x - FIRST_LITERAL] if type(x) is int and x >= FIRST_LITERAL else x
            for each in reversed(prefixes)
            for x in each.entries
        ]


EMPTY_PREFIX = Prefix()
"""That of a recording without calls."""
_LIMIT = 2**16


@clear_on_rule_change
def forget_prefixes() -> None:
    """Forgets which calls follow which."""
    pending = [EMPTY_PREFIX]
    while pending:
        following = pending.pop().next
        pending += following.values()
        # Without cycles, they are freed with the last recording that is here.
        following.clear()
    Prefix.made, Prefix.forgotten = 0, Prefix.forgotten + 1
    EMPTY_PREFIX.generation = Prefix.forgotten
