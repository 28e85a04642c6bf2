"""`outline_repeats`: what a program repeats, as programs and loops of its own, for reading."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from time import perf_counter
from typing import NamedTuple

import jax
from jax.extend.mlir import ir

from functx.core.checking import check_program_argument
from functx.core.config import OUTLINE_MODES, SIMPLIFY_MODES, check_choice, outline_mode
from functx.core.program import Equation, Program
from functx.core.program_editing import map_primitive_programs, replace_program_fields
from functx.core.rewriting import cached_rewrite
from functx.core.typing import Function, PyTree
from functx.lowering.functx_call import jit_program
from functx.passes import formula_replacement
from functx.passes.formula_replacement import stabilize_formulas
from functx.passes.outlining import Outline
from functx.passes.pipeline import PASSES, Pass, Stage, Target, lowering_target, select_passes
from functx.passes.simplify import Simplify
from functx.tools.difference import ProgramDiff, diff
from functx.tools.markup import HtmlResult, Markup, folded, join, table
from functx.tools.user_lines import UserLine, line_of
from functx.transforms.argument_names import check_callable, function_name, wrap_transform
from functx.transforms.call_primitive import Call
from functx.transforms.make_ir import make_ir


def outlined(program: Program, mode: str = "auto") -> Program:
    """`program` as it is lowered: repeats are calls of programs of their own, or loops.

    `mode` is one of those of `functx.config.outline`. A program in which values change is
    returned as it is; see `functx.functionalize`.

    >>> import functx
    >>> def steps(x):
    ...     for _ in range(50):
    ...         x = functx.numpy.sin(x) * 0.5 + x / 3.0
    ...     return x
    >>> program = functx.make_ir(steps)(1.0)
    >>> len(program), len(functx.tools.outlined(program))
    (200, 1)
    """
    check_choice("outlined: mode", mode, OUTLINE_MODES)
    check_program_argument("outlined", program)
    found = Outline(mode)(program)
    return found.map_subprograms(lambda nested: outlined(nested, mode))


def simplified(program: Program, mode: str = "always") -> Program:
    """`program` made simpler: what it computes, in fewer and cheaper equations.

    Formulas that overflow or cancel are replaced by stable ones, as `functx.config.stable_formulas`
    says; `replaced_formulas` lists them. `mode` is one of those of `functx.config.simplify`; what is lowered is by default what "auto"
    gives. A program in which values change is returned as it is; see `functx.functionalize`.

    >>> import functx
    >>> program = functx.make_ir(lambda x: (x * 1 + x * 1, x - 0))(2.0)
    >>> len(program), len(functx.tools.simplified(program))
    (4, 1)
    """
    check_choice("simplified: mode", mode, SIMPLIFY_MODES)
    check_program_argument("simplified", program)
    if mode != "never":
        program = cached_rewrite(stabilize_formulas, program)
    return Simplify(mode, deep=True)(program)


class ReplacedFormula(NamedTuple):
    """A formula that a stable one replaces, and the line of the user that computes it."""

    formula: str
    line: UserLine

    def __str__(self) -> str:
        return f"{self.formula} at {self.line}"


def replaced_formulas(program: Program) -> list[ReplacedFormula]:
    """The formulas of `program` that overflow or cancel, and are replaced by stable ones, by line.

    The formulas of inner programs follow. A formula may be replaced in two steps, each of which is listed.

    >>> import functx, functx.numpy as np
    >>> program = functx.make_ir(lambda x: np.log(np.exp(x)))(2.0)
    >>> [each.formula for each in functx.tools.replaced_formulas(program)]
    ['log(exp(x))']
    """
    check_program_argument("replaced_formulas", program)
    found = formula_replacement.replaced_formulas(program)
    return [ReplacedFormula(text, line_of(source)) for source, text in found]


def passes(fun: Function) -> Callable[..., PassTable]:
    """The function that shows the passes between the trace of `fun(*args)` and XLA, as a table.

    The table has a row for each pass, in order: its name, the number of equations after it, those
    of inner programs included, the seconds that it took, and the program itself. A pass that does
    not apply took None. The last row, `emit`, is the translation to StableHLO, and counts its
    operations. Arguments may be arrays, or have a shape and a dtype; nothing is compiled.

    Raises ArgumentError for what is no function, and whatever `fun` raises.

    >>> import functx
    >>> def steps(x):
    ...     for _ in range(50):
    ...         x = functx.numpy.sin(x) * 0.5 + x / 3.0
    ...     return x
    >>> table = functx.tools.passes(steps)(1.0)
    >>> table["trace"].equations, table["outline"].equations
    (200, 5)
    """
    check_callable(fun, "passes")

    def wrapper(*args: PyTree, **kwargs: PyTree) -> PassTable:
        clock = Stopwatch()
        program = make_ir(fun)(*args, **kwargs)
        rows = [PassRow("trace", count_equations(program), clock.lap(), program)]
        target = lowering_target((jax.default_backend(),), 1, outline_mode())
        for each in PASSES:
            if each.stage is Stage.EMISSION:
                continue
            seconds = None
            if each.when(target) and each.rewrite(target) is not None:
                program = run_deeply(each, target._replace(is_function=True), program)
                seconds = clock.lap()
            rows.append(PassRow(each.name, count_equations(program), seconds, program))
        operations = count_operations(program)
        rows.append(PassRow("emit", operations, clock.lap(), program))
        return PassTable(function_name(fun), tuple(rows))

    return wrap_transform(wrapper, fun, "passes")


class PassRow(NamedTuple):
    """A pass: the size of the program after it, and the seconds that it took if it applies."""

    name: str
    equations: int
    seconds: float | None
    program: Program

    @property
    def time_text(self) -> str:
        """The milliseconds that the pass took, or a dash."""
        return "-" if self.seconds is None else f"{1e3 * self.seconds:.2f} ms"

    def __str__(self) -> str:
        return f"{self.name:28}{self.equations:10}{self.time_text:>14}"


@dataclass(frozen=True)
class PassTable(HtmlResult):
    """The passes that a function goes through; `table[name]` is the row of one of them."""

    function: str
    rows: tuple[PassRow, ...]

    def __getitem__(self, name: str) -> PassRow:
        return next(row for row in self.rows if row.name == name)

    def __str__(self) -> str:
        head = f"{f'passes of {self.function}':28}{'equations':>10}{'time':>14}"
        return "\n".join([head, *map(str, self.rows)])

    __repr__ = __str__

    def title(self) -> str:
        return f"passes of {self.function}"

    def differences(self) -> list[tuple[PassRow, ProgramDiff]]:
        """The passes that changed the program, with the program before and after each."""
        pairs = pairwise(self.rows)
        found = [(after, diff(before.program, after.program)) for before, after in pairs]
        return [(row, difference) for row, difference in found if difference]

    def content(self) -> Markup:
        """The table, and each pass that changed the program with the program before and after it."""
        cells = [(row.name, row.equations, row.time_text) for row in self.rows]
        changes = [
            folded(f"{row.name}: {difference.title()}", difference.content())
            for row, difference in self.differences()
        ]
        return join([table(["pass", "equations", "time"], cells, "lrr"), changes])


class Stopwatch:
    """The seconds since it was made, or since the last lap."""

    def __init__(self) -> None:
        self.start = perf_counter()

    def lap(self) -> float:
        before, self.start = self.start, perf_counter()
        return self.start - before


def count_equations(program: Program) -> int:
    """The number of equations of `program` and of the programs inside, each counted once."""
    return sum([len(each) for each in program.walk()])


def run_deeply(each: Pass, target: Target, program: Program) -> Program:
    """`program` after a pass, which also runs on the programs inside."""
    rewrite = each.rewrite(target)
    assert rewrite is not None
    program = rewrite(program)
    if each.stage is not Stage.LOWERING:
        return program

    def nested(eqn: Equation) -> Equation:
        inner = target._replace(is_function=isinstance(eqn.primitive, Call))
        primitive = map_primitive_programs(eqn.primitive, partial(run_deeply, each, inner))
        return eqn.replace(primitive=primitive)

    return replace_program_fields(program, equations=[nested(eqn) for eqn in program])


def count_operations(program: Program) -> int:
    """The number of StableHLO operations that `program` becomes, in functions and loops too."""
    avals = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in program.in_avals]
    jitted = jit_program(program)
    with select_passes("reuse_operations"):
        module: ir.Module = jitted.lower(*avals).compiler_ir("stablehlo")  # type: ignore[assignment]
    count = 0

    def visit(operation: ir.Operation) -> ir.WalkResult:
        nonlocal count
        count += operation.name.startswith("stablehlo.")
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    return count
