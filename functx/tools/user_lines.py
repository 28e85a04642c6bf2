"""The lines of the user's code from which the equations of a program come."""

from __future__ import annotations

import linecache
from collections.abc import Iterable
from types import CodeType
from typing import NamedTuple

from functx.core.program import Equation, Program
from functx.core.source_info import (
    BackwardSource,
    Source,
    describe_source,
    line_number,
    line_text,
    user_line,
)


class UserLine(NamedTuple):
    """A line of a file of the user, with its place as messages show it, and its text.

    `is_backward` tells the equations of a backward computation that come from it.
    """

    file: str
    number: int
    place: str
    text: str
    is_backward: bool = False

    def __str__(self) -> str:
        return f"{self.place}: {self.text}" if self.text else self.place

    @property
    def anchor(self) -> tuple[str, int]:
        """The file and the number, which are the same for the forward and the backward computation."""
        return self.file, self.number


UNKNOWN = UserLine("", 0, "unknown line", "")


def line_of(source: Source | None) -> UserLine:
    """The line of the user for a source; `UNKNOWN` without one."""
    if source is None:
        return UNKNOWN
    user = user_line(source)
    return UserLine(
        user[0].co_filename,
        line_number(user),
        describe_source(user),
        line_text(user),
        isinstance(source, BackwardSource),
    )


class SourceFunction(NamedTuple):
    """The text of a function of the user, line by line, from the line `first` of its file.

    `place` is where messages say that it is.
    """

    place: str
    file: str
    first: int
    lines: tuple[str, ...]


def source_functions(equations: Iterable[Equation]) -> list[SourceFunction]:
    """The texts of the functions that `equations` come from, in the order of their first equations.

    A function inside another is part of its text. Functions without a text are left out.
    """
    codes = dict.fromkeys([user_line(e.source)[0] for e in equations if e.source is not None])
    found = [f for f in map(_source_function, codes) if f is not None]
    return [
        f
        for i, f in enumerate(found)
        if not any(_contains(g, f, k < i) for k, g in enumerate(found) if k != i)
    ]


def _source_function(code: CodeType) -> SourceFunction | None:
    lines = linecache.getlines(code.co_filename)
    first = code.co_firstlineno
    if not 0 < first <= len(lines):
        return None
    block = lines[first - 1 : last_line(code)]
    place = describe_source((code, 0))
    return SourceFunction(place, code.co_filename, first, tuple([s.rstrip("\n") for s in block]))


def last_line(code: CodeType) -> int:
    """The last line of a code object and of those of the functions inside."""
    ends = [end for _, end, _, _ in code.co_positions() if end is not None]
    inner = [last_line(const) for const in code.co_consts if isinstance(const, CodeType)]
    return max([code.co_firstlineno, *ends, *inner])


def _contains(outer: SourceFunction, inner: SourceFunction, comes_first: bool) -> bool:
    """Whether `outer` shows the lines of `inner`; of two with the same lines, the first does."""
    ends = [f.first + len(f.lines) for f in (outer, inner)]
    spans = outer.file == inner.file and outer.first <= inner.first and ends[1] <= ends[0]
    return spans and (comes_first or (outer.first, ends[0]) != (inner.first, ends[1]))


def all_equations(program: Program) -> list[Equation]:
    """The equations of `program` and of the programs inside."""
    return [eqn for each in program.walk() for eqn in each]
