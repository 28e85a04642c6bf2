"""`cost`: the flops and bytes of a function, by the lines of the user and by operations."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from functx.core.config import format_bytes
from functx.core.program import Equation, Program, Var
from functx.core.typing import Function, PyTree
from functx.passes.costs import Cost, bytes_of, own_cost, steps_of
from functx.passes.memory_planning import MemoryTimeline
from functx.tools.markup import HtmlResult, Markup, element, table
from functx.tools.user_lines import UserLine, line_of
from functx.transforms.argument_names import check_callable, wrap_transform
from functx.transforms.make_ir import functionalize, make_ir


class CostedEquation(NamedTuple):
    """An equation without sub-programs, the cost of all its runs, and the equations around it."""

    equation: Equation
    cost: Cost
    outer: tuple[Equation, ...] = ()


def costed_equations(
    program: Program, times: int = 1, outer: tuple[Equation, ...] = ()
) -> Iterator[CostedEquation]:
    """The equations that `program` and the programs inside run, each with the cost of all its runs.

    Bytes are those between memory and the operation if a compiler fuses elementwise operations with
    their readers.
    """
    timeline = MemoryTimeline(program)

    def moved(v: object) -> int:
        is_fused = v in timeline.position and not (v in timeline.outputs or timeline.in_memory(v))
        return 0 if type(v) is not Var or is_fused else bytes_of(v.aval)

    for eqn in program:
        steps = steps_of(eqn.primitive)
        for step in steps:
            for each in costed_equations(step.program, times * step.times, (*outer, eqn)):
                is_lower_bound = step.is_lower_bound or each.cost.is_lower_bound
                yield each._replace(cost=each.cost + Cost(is_lower_bound=is_lower_bound))
        if not steps:
            count = sum(map(moved, [*dict.fromkeys(eqn.inputs), *eqn.outputs]))
            yield CostedEquation(eqn, (own_cost(eqn) + Cost(bytes=count)) * times, outer)


@dataclass(frozen=True)
class CostTable(HtmlResult):
    """The cost of `program`: in total, by the lines of the user, and by operations.

    Printed, it is a table of the lines with most work first.
    """

    program: Program

    @cached_property
    def equations(self) -> list[CostedEquation]:
        """The equations that the program runs, with their costs."""
        return list(costed_equations(self.program))

    @cached_property
    def total(self) -> Cost:
        """The cost of the whole program."""
        return sum([each.cost for each in self.equations], Cost())

    @cached_property
    def lines(self) -> dict[UserLine, Cost]:
        """The cost of each line of the user, of the forward and the backward computation apart."""
        return self._grouped(lambda eqn: line_of(eqn.source))

    @cached_property
    def operations(self) -> dict[str, Cost]:
        """The cost of the equations of each primitive, by its name."""
        return self._grouped(lambda eqn: eqn.primitive.name)

    def _grouped(self, key: Callable[[Equation], Any]) -> dict[Any, Cost]:
        found: dict[Any, Cost] = {}
        for each in self.equations:
            group = key(each.equation)
            found[group] = found.get(group, Cost()) + each.cost
        return dict(sorted(found.items(), key=lambda item: -_weight(item[1])))

    def title(self) -> str:
        return f"cost of {self.program.name}"

    def rows(self) -> list[tuple[str, ...]]:
        """The cells of the table."""
        total = (*cost_cells(self.total), "in total")
        return [total, *[(*cost_cells(c), line_label(line)) for line, c in self.lines.items()]]

    def __str__(self) -> str:
        heads = f"{self.title()}\n{'flops':>10} {'special':>10} {'bytes':>10}"
        rows = [f"{a:>10} {b:>10} {c:>10}  {line}" for a, b, c, line in self.rows()]
        return "\n".join([heads, *rows])

    __repr__ = __str__

    def content(self) -> Markup:
        cells = [(*row[:3], element("code", row[3])) for row in self.rows()]
        return table(["flops", "special functions", "bytes", "line"], cells, "rrr")


def _weight(cost: Cost) -> int:
    return cost.flops + 10 * cost.transcendentals + cost.bytes


def line_label(line: UserLine) -> str:
    """The place and the text of a line, and whether its derivative is meant."""
    return f"{line} (backward)" if line.is_backward else str(line)


def cost_cells(cost: Cost) -> tuple[str, str, str]:
    """The texts of flops, transcendentals and bytes; `>` marks a lower bound."""
    mark = ">" if cost.is_lower_bound else ""
    return (
        mark + format_count(cost.flops),
        mark + format_count(cost.transcendentals),
        mark + format_bytes(cost.bytes),
    )


def format_count(count: float) -> str:
    """`12.3 M`: a number with three digits and a decimal prefix."""
    for prefix in ("", "k", "M", "G", "T", "P"):
        if count < 999.5 or prefix == "P":
            break
        count /= 1000
    return f"{count:.3g} {prefix}".rstrip() if prefix or count % 1 else f"{count:.0f}"


def cost(fun: Function) -> Callable[..., CostTable]:
    """The function that counts the flops and bytes of `fun(*args)`, by the lines of the user.

    The function is traced, not run; arguments may have a shape and a dtype alone. Steps of loops
    count as often as they run; a `while` loop, whose steps are not known, counts as one step, and its
    cost is marked as a lower bound. `functx.jit(fun).lower(*args).cost_analysis()` has XLA's count.

    Raises ArgumentError for what is no function, and whatever `fun` raises.

    >>> import functx, numpy
    >>> table = functx.tools.cost(lambda x, w: functx.numpy.tanh(x @ w))(
    ...     numpy.ones((8, 4), "float32"), numpy.ones((4, 4), "float32")
    ... )
    >>> table.total.flops, table.total.transcendentals, table.operations["dot_general"].bytes
    (256, 32, 320)
    """
    check_callable(fun, "cost")

    def wrapper(*args: PyTree, **kwargs: PyTree) -> CostTable:
        return CostTable(make_ir(functionalize(fun))(*args, **kwargs))

    return wrap_transform(wrapper, fun, "cost")
