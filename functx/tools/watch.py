"""`watch`: the values of all equations of a function, by the lines of the user."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np

from functx.core.backend import backend
from functx.core.errors import ArgumentError, type_name
from functx.core.printing import variable_names
from functx.core.program import Atom, Equation, Program, Var
from functx.core.tracing import eval_context
from functx.core.types import is_complex, is_inexact
from functx.core.typing import Function, NumPyArray, PyTree
from functx.custom.custom_function import CustomDerivativeCall
from functx.tools.cost import line_label
from functx.tools.evaluation import run_control_flow, trace_call
from functx.tools.markup import HtmlResult, Markup, element
from functx.tools.markup import table as html_table
from functx.tools.user_lines import UserLine, line_of
from functx.transforms.argument_names import check_callable, function_name, wrap_transform


@dataclass
class WatchedValue:
    """A value of an equation: its type, and the elements that it had in all its runs.

    The range and the mean are those of finite elements, and of absolute values if these are complex.
    `depth` counts the programs around the equation.
    """

    name: str
    type: str
    operation: str
    line: UserLine
    depth: int = 0
    runs: int = 0
    minimum: float = np.inf
    maximum: float = -np.inf
    total: float = 0.0
    finite: int = 0
    nans: int = 0
    infinities: int = 0
    last: NumPyArray | None = None

    @property
    def mean(self) -> float:
        """The mean of the finite elements; nan without any."""
        return self.total / self.finite if self.finite else np.nan

    def add(self, x: NumPyArray) -> None:
        """Count the elements of `x`, the value of one more run."""
        self.runs += 1
        self.last = x
        numbers = np.abs(x) if is_complex(x.dtype) else x
        wide = np.asarray(numbers).astype(np.float64, copy=False)
        if is_inexact(x.dtype):
            nans = np.isnan(wide)
            finite = np.isfinite(wide)
            self.nans += int(nans.sum())
            self.infinities += int((~finite & ~nans).sum())
            wide = wide[finite]
        if wide.size:
            self.minimum = min(self.minimum, float(wide.min()))
            self.maximum = max(self.maximum, float(wide.max()))
            self.total += float(wide.sum())
            self.finite += wide.size

    def cells(self) -> tuple[str, ...]:
        """The name, type, operation, range, mean, and what is not finite, as texts."""
        span = f"{self.minimum:.4g} to {self.maximum:.4g}" if self.finite else "empty"
        if self.finite and self.minimum == self.maximum:
            span = f"{self.minimum:.4g}"
        faults = [
            f"{count} {name}"
            for count, name in ((self.nans, "nan"), (self.infinities, "inf"))
            if count
        ]
        if faults and not self.finite:
            span = "-"
        name = "  " * self.depth + self.name
        times = f"{self.runs} x" if self.depth else ""
        mean = f"{self.mean:.4g}" if self.finite else ""
        return name, self.type, self.operation, times, span, mean, ", ".join(faults)


@dataclass(frozen=True)
class WatchTable(HtmlResult):
    """The values of the equations of a function, in their order; printed, by the user's lines."""

    function: str
    values: tuple[WatchedValue, ...]

    def __getitem__(self, name: str) -> WatchedValue:
        """The last value of this name."""
        found = [value for value in self.values if value.name == name]
        if not found:
            raise ArgumentError(
                f"watch: a name must be one of {sorted({v.name for v in self.values})}; got {name!r}"
            )
        return found[-1]

    def __iter__(self) -> Iterator[WatchedValue]:
        """The values in their order."""
        return iter(self.values)

    def __len__(self) -> int:
        return len(self.values)

    def title(self) -> str:
        faults = sum([bool(value.nans or value.infinities) for value in self.values])
        return f"values of {self.function}: {len(self.values)}" + (
            f", of which {faults} are not finite" if faults else ""
        )

    def by_line(self) -> Iterator[tuple[UserLine, list[WatchedValue]]]:
        """The values in their order, those of one line that follow each other together."""
        for line, values in groupby(self.values, lambda value: value.line):
            yield line, list(values)

    def __str__(self) -> str:
        rows = [value.cells() for value in self.values]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [self.title()]
        for line, values in self.by_line():
            lines.append(line_label(line))
            for value in values:
                cells = zip(value.cells(), widths, strict=True)
                lines.append(("  " + "  ".join([f"{c:{w}}" for c, w in cells])).rstrip())
        return "\n".join(lines)

    __repr__ = __str__

    def content(self) -> Markup:
        """A table of the values under each line of the user."""
        heads = ["value", "type", "operation", "runs", "range", "mean", ""]
        rows: list[Sequence[object]] = []
        for line, values in self.by_line():
            rows.append([element("code", line_label(line))])
            for value in values:
                name, *cells, faults = value.cells()
                mark = element("span", faults, class_="old") if faults else None
                indent = element("code", "\u00a0\u00a0" * (value.depth + 1) + name.strip())
                rows.append([indent, *cells, mark])
        return html_table(heads, rows, "lllrrrl")


class Watcher:
    """The evaluation of a program equation by equation, down to `depth` programs inside."""

    def __init__(self, depth: int):
        self.depth = depth
        self.values: dict[Any, WatchedValue] = {}
        self.names: dict[int, dict[Var, str]] = {}  # equal programs have other variables

    def run(self, program: Program, args: Sequence[Any], path: tuple[Any, ...] = ()) -> list[Any]:
        """The outputs of `program` on arrays; `path` tells the equations around it."""
        if id(program) not in self.names:
            self.names[id(program)] = variable_names(program)
        env: dict[Var, NumPyArray] = dict(
            zip(program.inputs, [np.asarray(x) for x in args], strict=True)
        )

        def read(atom: Atom) -> NumPyArray:
            return env[atom] if type(atom) is Var else np.asarray(atom.value, atom.aval.dtype)

        for i, eqn in enumerate(program):
            place = (*path, program, i)
            watched = [
                self.values.setdefault((*place, v), self.new_value(program, eqn, v, len(path) // 2))
                for v in eqn.outputs
            ]
            outs = self.evaluate(eqn, [read(a) for a in eqn.inputs], place)
            for v, value, x in zip(eqn.outputs, watched, outs, strict=True):
                env[v] = np.asarray(x)
                value.add(env[v])
        return [read(a) for a in program.outputs]

    def evaluate(self, eqn: Equation, args: Sequence[Any], place: tuple[Any, ...]) -> Sequence[Any]:
        """The outputs of an equation; its programs are watched too if they are not too deep."""

        def run(program: Program, operands: Sequence[Any]) -> list[Any]:
            return self.run(program, operands, place)

        primitive = eqn.primitive
        if len(place) // 2 <= self.depth:
            if isinstance(primitive, CustomDerivativeCall):
                return run(primitive.primal, args)
            found = run_control_flow(primitive, run, args)
            if found is not None:
                return found  # type: ignore[no-any-return]
        evaluate = backend.evaluate if primitive.effects else backend.evaluate_eagerly
        return primitive.as_list(evaluate(primitive, args))

    def new_value(self, program: Program, eqn: Equation, v: Var, depth: int) -> WatchedValue:
        """The entry of a value that has not been computed."""
        name = self.names[id(program)][v]
        return WatchedValue(name, repr(v.aval), eqn.primitive.name, line_of(eqn.source), depth)


def watch(fun: Function, depth: int = 2) -> Callable[..., WatchTable]:
    """The function that runs `fun(*args)` equation by equation and shows the value of each.

    The table has, by the lines of the user, the type, the range, the mean and the number of nan and
    infinite elements of each value. Calls, branches that are taken and steps of loops are shown down
    to `depth` programs inside; the values of all steps of a loop are counted together. `table[name]` is the
    value of a variable, whose `last` is the array itself. Callbacks and prints happen, once each.

    Raises ArgumentError for what is no function, and whatever `fun` raises.

    >>> import functx, numpy
    >>> def f(x):
    ...     y = functx.numpy.log(x)
    ...     return y * x
    >>> table = functx.tools.watch(f)(numpy.array([0.0, 1.0, 2.0]))
    >>> table["y"].infinities, round(table["y"].maximum, 4), table["y"].last.shape
    (1, 0.6931, (3,))
    """
    check_callable(fun, "watch")
    if type(depth) is not int or depth < 0:
        got = depth if type(depth) is int else type_name(depth)
        raise ArgumentError(f"watch: depth must be a number of programs, at least 0; got {got}")

    def wrapper(*args: PyTree, **kwargs: PyTree) -> WatchTable:
        traced, operands = trace_call(fun, args, kwargs, "watch")
        watcher = Watcher(depth)
        with eval_context(), np.errstate(all="ignore"):
            watcher.run(traced.program, operands)
        return WatchTable(function_name(fun), tuple(watcher.values.values()))

    return wrap_transform(wrapper, fun, "watch")
