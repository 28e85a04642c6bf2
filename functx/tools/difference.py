"""`diff`: the equations in which two programs differ, with the same names for the same values."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cached_property
from itertools import groupby
from typing import NamedTuple

from functx.core.checking import check_program_argument
from functx.core.printing import (
    UniqueNames,
    atom_text,
    identifier,
    primitive_text,
    variable_names,
)
from functx.core.program import Atom, Equation, Program, Var, subprograms
from functx.tools.markup import HtmlResult, Markup, element, join

CONTEXT = 3
"""The number of equal lines that are shown around lines that differ."""


class DiffRow(NamedTuple):
    """A line of one program or of both; None where a program has no such line.

    `depth` counts the programs around it.
    """

    old: str | None
    new: str | None
    depth: int = 0

    @property
    def is_equal(self) -> bool:
        """Whether both programs have the line."""
        return self.old == self.new


@dataclass(frozen=True)
class ProgramDiff(HtmlResult):
    """The difference of two programs, line by line; false if they are equal.

    Values that both compute have the names that they have in `old`.
    """

    old: Program
    new: Program

    @cached_property
    def rows(self) -> list[DiffRow]:
        """All lines of both programs, in order."""
        return list(_program_rows(self.old, self.new, 0))

    def __bool__(self) -> bool:
        return self.old != self.new

    def title(self) -> str:
        return f"{self.old.name}: {len(self.old)} and {len(self.new)} equations"

    def __str__(self) -> str:
        lines = []
        for row in shown_rows(self.rows):
            if isinstance(row, int):
                lines.append(f"  ... {_equal_lines(row)}")
                continue
            indent = "    " * row.depth
            if row.is_equal:
                lines.append(f"  {indent}{row.old}")
            else:
                lines += [f"- {indent}{row.old}"] if row.old is not None else []
                lines += [f"+ {indent}{row.new}"] if row.new is not None else []
        return "\n".join(lines)

    __repr__ = __str__

    def content(self) -> Markup:
        """The two programs side by side."""
        cells = [_cells(row) for row in shown_rows(self.rows)]
        return element("div", element("div", cells, class_="sides"), class_="code")


def diff(old: Program, new: Program) -> ProgramDiff:
    """The difference of two programs, as a text and as two columns of HTML.

    Equations match if they compute the same, then if the same operation makes a value of the same
    type. Values of matching equations have the same name on both sides. A program inside a matching
    equation is compared in its turn.

    Raises ArgumentError for what is no program.

    >>> import functx
    >>> program = functx.make_ir(lambda x: functx.numpy.sin(x) * 1.0 + 2.0)(3.0)
    >>> functx.tools.diff(program, functx.tools.simplified(program))
      program lambda(x: ~f32[]):
        a: ~f32[] = sin x
    -   b: ~f32[] = mul a 1.0:~f32
    -   c: ~f32[] = add b 2.0:~f32
    +   c: ~f32[] = add a 2.0:~f32
        return c
    """
    check_program_argument("diff", old)
    check_program_argument("diff", new)
    return ProgramDiff(old, new)


def match_equations(old: Program, new: Program) -> list[tuple[int, int]]:
    """The positions of matching equations, in order."""
    table: dict[Hashable, int] = {}
    exact = value_numbers(old, table), value_numbers(new, table)
    loose = [
        [(e.primitive.name, *[v.aval for v in e.outputs]) for e in program]
        for program in (old, new)
    ]
    matches: list[tuple[int, int]] = []
    start = 0, 0
    for i, j, size in _matching_blocks(*exact):
        gap = loose[0][start[0] : i], loose[1][start[1] : j]
        for k, m, run in _matching_blocks(*gap):
            matches += [(start[0] + k + n, start[1] + m + n) for n in range(run)]
        matches += [(i + n, j + n) for n in range(size)]
        start = i + size, j + size
    return matches


def _matching_blocks(a: Sequence[Hashable], b: Sequence[Hashable]) -> list[tuple[int, int, int]]:
    """The runs of equal elements in two sequences, as (start in `a`, start in `b`, length)."""
    # The ends that are equal are found at once; matching is quadratic if elements repeat.
    shorter = min(len(a), len(b))
    start = next((i for i in range(shorter) if a[i] != b[i]), shorter)
    rest = shorter - start
    end = next((i for i in range(rest) if a[-1 - i] != b[-1 - i]), rest)
    middles = a[start : len(a) - end], b[start : len(b) - end]
    blocks = SequenceMatcher(None, *middles, False).get_matching_blocks()
    found = [(i + start, j + start, n) for i, j, n in blocks]
    return [(0, 0, start), *found, (len(a) - end, len(b) - end, end)]


def value_numbers(program: Program, table: dict[Hashable, int]) -> list[int]:
    """A number for each equation, equal for those that compute the same from the inputs.

    `table` holds the numbers of all programs that are compared.
    """
    known: dict[Atom, Hashable] = {v: ("input", i) for i, v in enumerate(program.inputs)}
    numbers = []
    for eqn in program:
        key = (eqn.primitive, *[known[a] if type(a) is Var else a for a in eqn.inputs])
        number = table.setdefault(key, len(table))
        known.update((v, (number, i)) for i, v in enumerate(eqn.outputs))
        numbers.append(number)
    return numbers


def common_names(
    old: Program, new: Program, matches: Sequence[tuple[int, int]]
) -> tuple[dict[Var, str], dict[Var, str]]:
    """The names of the variables of both programs; those of matching equations are the same."""
    left, own = variable_names(old), variable_names(new)
    right = dict(zip(new.inputs, [left[v] for v in old.inputs], strict=False))
    for i, j in matches:
        pairs = zip(new.equations[j].outputs, old.equations[i].outputs, strict=False)
        right.update((v, left[w]) for v, w in pairs if "_" not in (left[w], own[v]))
    names = UniqueNames()
    for name in left.values():
        names.unique(name)
    for v, name in own.items():
        if v not in right:
            right[v] = name if name == "_" else names.unique(name)
    return left, right


def _program_rows(old: Program, new: Program, depth: int) -> Iterator[DiffRow]:
    """The lines of two programs, and of the programs inside of them that differ."""
    matches = match_equations(old, new)
    left, right = common_names(old, new, matches)
    yield DiffRow(_header(old, left), _header(new, right), depth)
    start = 0, 0
    for i, j in [*matches, (len(old), len(new))]:
        yield from [DiffRow(_line(e, left), None, depth) for e in old.equations[start[0] : i]]
        yield from [DiffRow(None, _line(e, right), depth) for e in new.equations[start[1] : j]]
        if i < len(old):
            before, after = old.equations[i], new.equations[j]
            yield DiffRow(_line(before, left), _line(after, right), depth)
            pairs = zip(subprograms(before.primitive), subprograms(after.primitive), strict=False)
            for pair in pairs:
                if pair[0] != pair[1]:
                    yield from _program_rows(*pair, depth + 1)
        start = i + 1, j + 1
    yield DiffRow(_return(old, left), _return(new, right), depth)


def _header(program: Program, names: dict[Var, str]) -> str:
    inputs = ", ".join([f"{names[v]}: {v.aval!r}" for v in program.inputs])
    return f"program {identifier(program.name)}({inputs}):"


def _line(eqn: Equation, names: dict[Var, str]) -> str:
    outputs = ", ".join([f"{names[v]}: {v.aval!r}" for v in eqn.outputs]) or "()"
    operands = [atom_text(a, names) for a in eqn.inputs]
    return "  " + " ".join([outputs, "=", primitive_text(eqn.primitive), *operands])


def _return(program: Program, names: dict[Var, str]) -> str:
    return f"  return {', '.join([atom_text(a, names) for a in program.outputs])}".rstrip()


def shown_rows(rows: Sequence[DiffRow]) -> Iterator[DiffRow | int]:
    """The rows that differ with a few around them; a number stands for as many equal ones.

    The first row, which names the program, is always shown.
    """
    runs = [(equal, list(run)) for equal, run in groupby(rows, lambda row: row.is_equal)]
    for position, (equal, run) in enumerate(runs):
        head = CONTEXT if position else 1
        tail = CONTEXT if position < len(runs) - 1 else 1
        if not equal or len(run) <= head + tail + 1:
            yield from run
        else:
            yield from run[:head]
            yield len(run) - head - tail
            yield from run[-tail:]


def _equal_lines(count: int) -> str:
    return f"{count} equal lines"


def _cells(row: DiffRow | int) -> Markup:
    """The two cells of a row."""
    if isinstance(row, int):
        note = element("div", element("span", _equal_lines(row), class_="note"), class_="row")
        return join([note, note])
    indent = "    " * row.depth
    sides = [(row.old, "old"), (row.new, "new")]
    return join(
        [
            element(
                "div",
                "" if text is None else indent + text,
                class_="row" if row.is_equal or text is None else f"row {kind}",
            )
            for text, kind in sides
        ]
    )
