"""`profile`: the measured time of each line of the user, beside what the machine could do at best."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any, NamedTuple

from functx.core.config import check_choice, format_bytes
from functx.core.context import ContextValue
from functx.core.errors import ArgumentError
from functx.core.program import Atom, Program, Var, subprograms
from functx.core.source_info import Source, scope_of
from functx.core.typing import Function, PyTree
from functx.lowering.functx_call import jit_program
from functx.lowering.stablehlo_emitter import location_name
from functx.passes.costs import Cost
from functx.passes.memory_planning import MemoryTimeline
from functx.tools.cost import CostTable, cost_cells, line_label
from functx.tools.evaluation import trace_call
from functx.tools.flame_graph import FlameGraphEntry, render_flame_graph
from functx.tools.machine import Machine, least_time, machine
from functx.tools.markup import Markup, PictureResult, element, join
from functx.tools.markup import table as html_table
from functx.tools.user_lines import UNKNOWN, UserLine, all_equations, line_of
from functx.tools.xla_profile import HloModule, profile_instructions
from functx.transforms.argument_names import check_callable, function_name, wrap_transform

METHODS = "auto", "xla", "lines"


class LineProfile(NamedTuple):
    """A line of the user: the seconds that it took, its cost, and the bytes in memory at it.

    `bytes_in_memory` is an estimate: the most bytes of temporaries and results while one of its
    equations runs.
    """

    line: UserLine
    seconds: float
    cost: Cost = Cost()
    bytes_in_memory: int = 0


class MeasuredStack(NamedTuple):
    """The seconds of equations with the same line and the same lines around them, outermost first."""

    path: tuple[str, ...]
    line: UserLine
    seconds: float


@dataclass(frozen=True)
class Profile(PictureResult):
    """The time of a function, by the lines of the user; printed, a table with the slowest first.

    `seconds` is the time of one call of the compiled function. `method` tells how the lines were
    measured: "xla" is XLA's profile of that function; "lines" means that the equations of a line that
    follow each other were compiled and run alone, with their operands in memory. `temporary_bytes`
    is XLA's own count for the whole function, None where it has none.
    """

    function: str
    method: str
    seconds: float
    stacks: tuple[MeasuredStack, ...]
    costs: CostTable
    temporary_bytes: int | None
    machine: Machine

    @cached_property
    def lines(self) -> list[LineProfile]:
        """The lines, the slowest first; those of the forward and the backward computation apart."""
        seconds: defaultdict[UserLine, float] = defaultdict(float)
        for stack in self.stacks:
            seconds[stack.line] += stack.seconds
        memory = bytes_by_line(self.costs.program)
        costs = self.costs.lines
        return [
            LineProfile(line, time, costs.get(line, Cost()), memory.get(line, 0))
            for line, time in sorted(seconds.items(), key=lambda item: -item[1])
        ]

    def title(self) -> str:
        how = {
            "xla": "by XLA's profile of the whole function",
            "lines": "each line run alone, with its operands in memory",
        }
        return (
            f"profile of {self.function}: {format_seconds(self.seconds)} a call; {how[self.method]}"
        )

    def rows(self) -> list[tuple[str, ...]]:
        """The cells of the table."""
        measured = max(sum([each.seconds for each in self.lines]), 1e-12)
        rows: list[tuple[str, ...]] = []
        for each in self.lines:
            flops, special, moved = cost_cells(each.cost)
            least = self.machine.least_seconds(each.cost)
            reached = min(least / each.seconds, 1.0) if each.seconds else 0.0
            limit = f"{100 * reached:.0f}% {self.machine.limit(each.cost)}" if least else ""
            share = f"{100 * each.seconds / measured:.0f}%"
            time, kept = format_seconds(each.seconds), format_bytes(each.bytes_in_memory)
            rows.append((time, share, flops, special, moved, limit, kept, profile_label(each.line)))
        return rows

    def __str__(self) -> str:
        rows = [_HEADS, *self.rows()]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)][:-1]
        lines = [
            "  ".join([f"{cell:>{w}}" for cell, w in zip(cells, widths, strict=True)] + [line])
            for *cells, line in rows
        ]
        return "\n".join([self.title(), self.footer(), *lines])

    __repr__ = __str__

    def footer(self) -> str:
        """The machine, and the memory of the whole function."""
        kept = (
            ""
            if self.temporary_bytes is None
            else f"; {format_bytes(self.temporary_bytes)} of temporaries, by XLA"
        )
        return f"at best {self.machine}{kept}"

    def svg(self) -> str:
        """The flame graph: lines as wide as the time that they took, above those that called them."""
        return self.flame_graph()

    def flame_graph(self) -> str:
        """The time of lines and of the lines around them, as a picture in SVG."""
        root = FlameGraphEntry(self.function)
        for stack in self.stacks:
            root.add([*stack.path, short_label(stack.line)], stack.seconds)
        return render_flame_graph(root, format_seconds)

    def content(self) -> Markup:
        cells = [(*row[:-1], element("code", row[-1])) for row in self.rows()]
        table = html_table(_HEADS, cells, "rrrrrrr")
        return join([element("p", self.footer()), Markup(self.flame_graph()), table])


_HEADS = "time", "share", "flops", "special", "bytes", "of the best", "in memory", "line"


def format_seconds(seconds: float) -> str:
    """`1.23 ms`: a time with three digits."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"


def bytes_by_line(program: Program) -> dict[UserLine, int]:
    """For each line with equations, the most bytes in memory while one of them runs.

    An equation of a program inside counts with the equation around it.
    """
    found: defaultdict[UserLine, int] = defaultdict(int)
    totals = MemoryTimeline(program, results=True).total_bytes
    for eqn, count in zip(program, totals, strict=True):
        inner = [e for p in subprograms(eqn.primitive) for e in all_equations(p)]
        for line in {line_of(e.source) for e in (eqn, *inner)}:
            found[line] = max(found[line], count)
    return found


def profile_label(line: UserLine) -> str:
    """The label of a line; operations without one were made by XLA."""
    return "operations that XLA made" if line == UNKNOWN else line_label(line)


def short_label(line: UserLine) -> str:
    """The number and the text of a line, for an entry inside that of its function."""
    return f"{line.number}: {line.text}" if line.text else profile_label(line)


class LineScopes:
    """Names of scopes for the lines of the user, which XLA keeps in the metadata of a compiled module."""

    def __init__(self) -> None:
        self.places: dict[Place, int] = {}

    def name(self, source: Source | None) -> str:
        """The scope of a source, which tells its line, the function, and the named scopes."""
        if source is None:
            return ""
        number = self.places.setdefault(place_of(source), len(self.places))
        return f"functx-line-{number}"

    def find(self, scopes: Sequence[str]) -> Place:
        """The path and the line of an instruction in these scopes, the outermost first.

        XLA puts the scope of a call that it inlines before those of the instructions inside, so one
        scope may name several lines, and those of the scopes before it again.
        """
        known, numbers = [*self.places], list[int]()
        for scope in scopes:
            own = [int(number) for number in _SCOPE_NUMBER.findall(scope)]
            numbers = own if own[: len(numbers)] == numbers else numbers + own
        places = [known[number] for number in numbers]
        if not places:
            return (), UNKNOWN
        path: list[str] = []
        for i, (names, line) in enumerate(places):
            path += [name for name in names if not (i and name == "backward")]
            path += [short_label(line)] if i < len(places) - 1 else []
        return tuple(path), places[-1][1]


_SCOPE_NUMBER = re.compile(r"functx-line-(\d+)")
Place = tuple[tuple[str, ...], UserLine]
"""A line, and the entries of a flame graph below it, outermost first."""


def place_of(source: Source | None) -> Place:
    """The line of a source, and its named scopes and function."""
    line = line_of(source)
    scopes = scope_of(source).split("/") if scope_of(source) else []
    _, _, function = line.place.rpartition(" in ")
    part = ["backward"] if line.is_backward else []
    return (*part, *scopes, *([function] if source is not None else [])), line


class Measured(NamedTuple):
    """The seconds of a call, of each line, and the bytes of temporaries."""

    seconds: float
    stacks: tuple[MeasuredStack, ...]
    temporary_bytes: int | None


def profile_by_xla(program: Program, args: Sequence[Any], runs: int) -> Measured:
    """The program compiled as a whole, and the time of each line by XLA's profiler."""
    scopes = LineScopes()
    with ContextValue(location_name, scopes.name):
        compiled = jit_program(program, keep_unused=True).lower(*args).compile()
    seconds = least_time(compiled, list(args), runs)
    module = HloModule(compiled.as_text() or "")
    times = profile_instructions(lambda: compiled(*args), module, runs)
    found: defaultdict[Place, float] = defaultdict(float)
    for name, time in times.items():
        for path, share in module.scopes(name).items():
            found[scopes.find(path)] += time * share
    stacks = [MeasuredStack(path, line, time) for (path, line), time in found.items()]
    return Measured(seconds, tuple(stacks), temporary_bytes(compiled))


def temporary_bytes(compiled: Any) -> int | None:
    """XLA's count of the bytes that a compiled program needs besides arguments and results."""
    analysis = compiled.memory_analysis()
    return None if analysis is None else int(analysis.temp_size_in_bytes)


def profile_by_lines(program: Program, args: Sequence[Any], runs: int) -> Measured:
    """The equations of each line that follow each other, compiled and run alone."""
    program = program.inline()
    whole = jit_program(program, keep_unused=True).lower(*args).compile()
    env: dict[Atom, Any] = dict(zip(program.inputs, args, strict=True))
    stacks = []
    for line, part in split_by_line(program):
        operands = [env[v] for v in part.inputs]
        compiled = jit_program(part, keep_unused=True).lower(*operands).compile()
        time = least_time(compiled, operands, runs)
        env.update(zip(part.outputs, compiled(*operands), strict=True))
        path, _ = place_of(part.equations[0].source)
        stacks.append(MeasuredStack(path, line, time))
    return Measured(least_time(whole, list(args), runs), tuple(stacks), temporary_bytes(whole))


def split_by_line(program: Program) -> Iterator[tuple[UserLine, Program]]:
    """The program as programs of one line each, which take and return the values between them."""
    groups = [(line, list(run)) for line, run in groupby(program, lambda eqn: line_of(eqn.source))]
    needed: set[Atom] = {*program.outputs}
    used_after: list[set[Atom]] = []
    for _, equations in reversed(groups):
        used_after.append(set(needed))
        needed.update([a for eqn in equations for a in eqn.inputs])
    for (line, equations), later in zip(groups, reversed(used_after), strict=True):
        own = {v for eqn in equations for v in eqn.outputs}
        inputs = dict.fromkeys(
            [a for eqn in equations for a in eqn.inputs if type(a) is Var and a not in own]
        )
        outputs = [v for eqn in equations for v in eqn.outputs if v in later]
        yield line, Program(program.name, list(inputs), equations, outputs)


def profile(fun: Function, method: str = "auto", runs: int = 10) -> Callable[..., Profile]:
    """The function that measures `fun(*args)`, by the lines of the user.

    The function is compiled as a whole and run under XLA's profiler, which times each operation of the
    compiled code; a fused operation is divided among the lines that it comes from by their work. Where
    the profiler reports nothing, and with the method "lines", the equations of each line are compiled
    and run alone, with their operands in memory; this has no part in fusion, and counts the
    start of each call. Beside the times are flops and bytes, and how near each line comes to what the
    machine can do at best (`functx.tools.machine`). `flame_graph()` is a picture in SVG.

    Raises ArgumentError for what is no function or for another `method`, and whatever `fun` raises.

    >>> import functx, numpy
    >>> found = functx.tools.profile(lambda x: functx.numpy.sin(x @ x))(numpy.ones((64, 64), "float32"))
    >>> found.seconds > 0, found.method, found.lines[0].cost.flops
    (True, 'xla', 524288)
    """
    check_callable(fun, "profile")
    if not isinstance(method, str):
        raise ArgumentError(
            f"profile: method must be one of {', '.join(METHODS)}; got {method!r:.80}",
            fix="Arguments belong to the function that profile returns: profile(fun)(*args).",
        )
    check_choice("profile: method", method, METHODS)
    if type(runs) is not int or runs < 1:
        raise ArgumentError(f"profile: runs must be a positive int; got {runs!r}")

    def wrapper(*args: PyTree, **kwargs: PyTree) -> Profile:
        traced, operands = trace_call(fun, args, kwargs, "profile")
        program, used = traced.program, method
        if method != "lines":
            used = "xla"
            measured = profile_by_xla(program, operands, runs)
        if method == "lines" or (method == "auto" and not measured.stacks and len(program)):
            used = "lines"
            measured = profile_by_lines(program, operands, runs)
        return Profile(
            function_name(fun),
            used,
            measured.seconds,
            measured.stacks,
            CostTable(program),
            measured.temporary_bytes,
            machine(),
        )

    return wrap_transform(wrapper, fun, "profile")
