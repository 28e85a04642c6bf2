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
    """A node in the tree of recordings: the calls of `parent`, then one more call, or those of a plan.

    A loop makes the same calls in each step, so that its recordings share their prefixes. `children` are the
    prefixes with a call more. The key of a child has the numbers of the operands: results are
    numbered from 0, captured values from -1 downwards, literals from FIRST_LITERAL. No types are in it,
    since the calls before determine them.

    `entries` are the operation of the last call and the numbers of its operands, `new` the numbers and types of
    its results that may be read. The counts, sizes and bytes are those of all calls. `split` is known
    where the key of the prefix begins with a function or a primitive.
    """

    __slots__ = (
        "bytes",
        "captured_count",
        "children",
        "count",
        "entries",
        "epoch",
        "last_has_effects",
        "literal_count",
        "new",
        "parent",
        "size",
        "split",
        "wide",
    )
    total: ClassVar[int] = 0
    """The number of prefixes in the tree."""
    current_epoch: ClassVar[int] = 0
    """How often the tree was forgotten; a prefix of another `epoch` is not in it."""

    def __init__(self, parent: Prefix | None = None):
        self.parent, self.epoch = parent, Prefix.current_epoch
        self.children: dict[Hashable, Prefix] = {}
        self.split: OperationSplit = None  # type: ignore[assignment]
        self.entries: Sequence[Any] = ()
        self.new: Sequence[tuple[int, ShapedArray]] = ()
        self.last_has_effects = False
        if parent is None:
            self.captured_count = self.literal_count = self.count = self.size = self.bytes = 0
            self.wide = False
        else:
            self.epoch, self.captured_count = parent.epoch, parent.captured_count
            self.literal_count, self.count, self.size = (
                parent.literal_count,
                parent.count,
                parent.size,
            )
            self.bytes, self.wide = parent.bytes, parent.wide

    def child_with_call(self, operation: Operation, operands: Sequence[Hashable]) -> Prefix:
        """The prefix with a call of an operation more, whose operands have keys as in `new_child`."""
        key = (operation, *operands)
        found = self.children.get(key)
        return found or self.keep_child(key, self.new_child(operation, operands))

    def new_child(self, operation: Operation, operands: Sequence[Any]) -> Prefix:
        """A new prefix with a call more.

        The key of an operand is its number; of a value that is captured for the call, its type; of a
        literal, a tuple with its type.
        """
        longer = Prefix(self)
        longer.entries = [operation, *longer.number_operands(operands)]
        longer.new = [(self.count + i, aval) for i, aval in enumerate(operation.new_avals)]
        longer.count += len(longer.new)
        longer.size += operation.size
        longer.bytes += operation.bytes
        longer.wide = self.wide or operation.wide
        longer.last_has_effects = operation.effects
        return longer

    def child_with_calls(self, calls: PlannedCalls, operands: Sequence[Hashable]) -> Prefix:
        """The prefix with the calls of a plan more, whose operands have keys as in `new_child`."""
        key = (calls.arrange, *operands)
        found = self.children.get(key)
        if found is None:
            found, first = Prefix(self), self.count
            numbers = found.number_operands(operands)
            results = range(first, first + calls.new_count)
            found.entries = calls.arrange([*results, *calls.constants, *reversed(numbers)])
            found.new = [(first + i, aval) for i, aval in calls.wanted]
            found.count += calls.new_count
            found.size += calls.size
            found.bytes += calls.bytes
            found.wide = self.wide or calls.wide
            found = self.keep_child(key, found)
        return found

    def child_with_captured(self, types: Sequence[ShapedArray]) -> Prefix:
        """The prefix with captured values more, which no call has yet."""
        key = (None, *types)
        found = self.children.get(key)
        if found is None:
            found = Prefix(self)
            found.number_operands(types)
            found = self.keep_child(key, found)
        return found

    def number_operands(self, operands: Sequence[Any]) -> list[int]:
        """Numbers the operands of the last call by their keys; counts those that are new."""
        numbers = []
        for x in operands:
            kind = type(x)
            if kind is int:
                numbers.append(x)
            elif kind is not tuple:
                self.captured_count += 1
                self.bytes += bytes_of(x)
                numbers.append(-self.captured_count)
            else:
                numbers.append(FIRST_LITERAL + self.literal_count)
                self.literal_count += 1
        return numbers

    def keep_child(self, key: Hashable, longer: Prefix) -> Prefix:
        """Notes a prefix that is one call longer, or finds that which another thread has noted.

        If there are too many, all are forgotten.
        """
        if self.epoch != Prefix.current_epoch:
            return longer
        Prefix.total += 1
        if Prefix.total > _LIMIT:
            forget_prefixes()
            return longer
        return self.children.setdefault(key, longer)

    def calls(self, literals: Sequence[Literal]) -> list[Any]:
        """Each operation, then its operands: numbers, and literals."""
        prefixes, prefix = [], self
        while prefix.parent is not None:
            prefixes.append(prefix)
            prefix = prefix.parent
        return [
            literals[x - FIRST_LITERAL] if type(x) is int and x >= FIRST_LITERAL else x
            for each in reversed(prefixes)
            for x in each.entries
        ]


EMPTY_PREFIX = Prefix()
"""The prefix of a recording without calls."""
_LIMIT = 2**16
"""The largest number of prefixes in the tree."""


@clear_on_rule_change
def forget_prefixes() -> None:
    """Forgets which calls follow which."""
    pending = [EMPTY_PREFIX]
    while pending:
        following = pending.pop().children
        pending += following.values()
        # Without cycles, they are freed with the last recording that is here.
        following.clear()
    Prefix.total, Prefix.current_epoch = 0, Prefix.current_epoch + 1
    EMPTY_PREFIX.epoch = Prefix.current_epoch
