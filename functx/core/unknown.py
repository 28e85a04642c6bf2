"""Numbers that are not known yet while a program is rewritten, because they will be inputs."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from functx.core.program import Literal


class Guard(NamedTuple):
    """What a rewrite was told of the number at a place: it holds for numbers that answer alike."""

    position: int
    predicate: Callable[[Any, Any], Any]
    operand: Any
    expected: bool

    def holds(self, numbers: Sequence[Any]) -> bool:
        """Whether the number at that place among `numbers` would have answered so."""
        return bool(self.predicate(numbers[self.position], self.operand)) == self.expected


class SymbolicScalar:
    """The value of a literal that will be an input: whoever compares it is told, and noted.

    It becomes no Python number: what would compute with it raises TypeError.
    """

    __slots__ = ("guards", "position", "program_id", "value")

    def __init__(self, number: Any, place: int, lift: int, answers: list[Guard]):
        self.value, self.position, self.guards = number, place, answers
        # Tells it from one of another program, which may be looked for in the same tables.
        self.program_id = lift

    def guard(self, question: Callable[[Any, Any], Any], other: Any = None) -> bool:
        if type(other) is SymbolicScalar:
            raise TypeError("two unknown numbers cannot be compared")
        answer = bool(question(self.value, other))
        self.guards.append(Guard(self.position, question, other, answer))
        return answer

    def __eq__(self, other: object) -> bool:
        return self is other or self.guard(operator.eq, other)

    def __lt__(self, other: Any) -> bool:
        return self.guard(operator.lt, other)

    def __le__(self, other: Any) -> bool:
        return self.guard(operator.le, other)

    def __gt__(self, other: Any) -> bool:
        return self.guard(operator.gt, other)

    def __ge__(self, other: Any) -> bool:
        return self.guard(operator.ge, other)

    def __bool__(self) -> bool:
        return self.guard(operator.ne, 0)

    def __hash__(self) -> int:
        return id(self)

    def __repr__(self) -> str:
        return f"number {self.position} of {self.program_id}"


def is_concrete_literal(atom: Any) -> bool:
    """Whether `atom` is a number written in a program, and known."""
    return type(atom) is Literal and type(atom.value) is not SymbolicScalar


def is_finite(value: Any) -> bool:
    """Whether `value`, a number that may be unknown, is finite."""
    return value.guard(_finite) if type(value) is SymbolicScalar else bool(np.isfinite(value))


def _finite(number: Any, _: None) -> Any:
    return np.isfinite(number)
