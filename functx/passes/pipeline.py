"""The ordered list of passes between a traced program and StableHLO."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from enum import StrEnum
from functools import lru_cache
from typing import NamedTuple

from functx.core.config import config
from functx.core.context import ContextValue
from functx.core.functionalization import Functionalize
from functx.core.program import Program
from functx.core.rewriting import cached_rewrite
from functx.passes.formula_replacement import stabilize_formulas
from functx.passes.in_place_update_safety import FixOverlappingUpdates, OrderReadsBeforeWrites
from functx.passes.outlining import DeduplicateCalls, Outline
from functx.passes.simplify import Simplify
from functx.transforms.decompose import apply_user_decompositions

ProgramRewrite = Callable[[Program], Program]


class Stage(StrEnum):
    """The moment at which a pass runs."""

    TRACE = "after the trace"
    REWRITE = "before a transform, and before an executable is looked up"
    TRANSFORM = "before a transform"
    LOOKUP = "before an executable is looked up"
    LOWERING = "before its equations are emitted"
    EMISSION = "while its equations are emitted"


class Target(NamedTuple):
    """The conditions that passes depend on.

    `outline` and `simplify` are modes of `functx.config`. `allows_noinline` says that calls may be
    kept from XLA's inliner; `is_function` that the program becomes a function of the module, which
    XLA may inline anywhere; `is_transformed` that a transform follows.
    """

    platforms: tuple[str, ...]
    outline: str = "auto"
    simplify: str = "auto"
    allows_noinline: bool = False
    is_function: bool = False
    is_transformed: bool = False

    @property
    def is_cpu(self) -> bool:
        return self.platforms == ("cpu",)


class Pass(NamedTuple):
    """A pass: `rewrite(target)` runs at its stage where `when(target)` holds.

    `runs_in` names the code that runs a pass in place of `run_passes` and the emitter, since it needs
    more than the program; `rewrite` is then its effect on a program alone, or None.

    A pass that `is_required` makes a program valid for the next stage, or keeps XLA on CPUs
    from overwriting memory that it has yet to read. Without the others programs compute the same.
    """

    name: str
    purpose: str
    stage: Stage
    rewrite: Callable[[Target], ProgramRewrite | None] = lambda target: None
    when: Callable[[Target], bool] = lambda target: True
    is_required: bool = False
    runs_in: str | None = None


def functionalized(program: Program) -> Program:
    """`program` without writes, with the new values of the inputs that it writes to."""
    return cached_rewrite(Functionalize(), program).program if program.writes else program


PASSES = (
    Pass(
        "functionalize",
        "writes to arrays become new values",
        Stage.TRACE,
        lambda target: functionalized,
        is_required=True,
        runs_in="functx.transforms.aliasing.functionalize_trace",
    ),
    Pass(
        "stabilize_formulas",
        "formulas that overflow or cancel become stable ones",
        Stage.REWRITE,
        lambda target: stabilize_formulas,
    ),
    Pass(
        "lift_literals",
        "outside `jit`, literals that differ between programs become inputs",
        Stage.LOOKUP,
        runs_in="functx.lowering.execution.ParametrizedExecutable",
    ),
    Pass(
        "outline_before_transforms",
        "repeats become calls and loops, so that each is transformed once",
        Stage.TRANSFORM,
        lambda target: Outline(
            target.outline,
            before_transforms=True,
            # Calls can be inlined again where they do not pay; loops cannot.
            loops=target.outline == "always" or target.is_cpu,
        ),
        when=lambda target: target.is_transformed,
    ),
    Pass(
        "apply_user_decompositions",
        "operations are replaced by the decompositions that users registered",
        Stage.LOOKUP,
        lambda target: apply_user_decompositions,
        is_required=True,
    ),
    Pass(
        "fix_overlapping_updates",
        "updates computed from the array that they change are computed first",
        Stage.LOWERING,
        lambda target: FixOverlappingUpdates(inline=target.is_function),
        when=lambda target: target.is_cpu,
        is_required=True,
    ),
    Pass(
        "simplify",
        "fewer and cheaper equations, sums of products in the cheapest order",
        Stage.LOWERING,
        lambda target: Simplify(target.simplify),
    ),
    Pass(
        "outline",
        "repeats become calls and loops, so that each is compiled once",
        Stage.LOWERING,
        lambda target: Outline(target.outline),
        when=lambda target: target.allows_noinline,
    ),
    Pass(
        "dedup_call_arguments",
        "calls take and return each value once",
        Stage.LOWERING,
        lambda target: DeduplicateCalls(),
        is_required=True,
    ),
    Pass(
        "order_reads_before_writes",
        "each step of a loop reads its buffers before it writes to them",
        Stage.LOWERING,
        lambda target: OrderReadsBeforeWrites(),
        when=lambda target: target.is_cpu,
        is_required=True,
    ),
    Pass(
        "reuse_operations",
        "equal equations are emitted as copies of one StableHLO operation",
        Stage.EMISSION,
        runs_in="functx.lowering.stablehlo_emitter.FunctionEmitter.emit_equation",
    ),
)
"""All passes between a trace and XLA, in the order in which they run."""

_SELECTABLE = [each for each in PASSES if each.stage in (Stage.LOWERING, Stage.EMISSION)]
REQUIRED_PASSES = tuple([each.name for each in _SELECTABLE if each.is_required])
OPTIONAL_PASSES = tuple([each.name for each in _SELECTABLE if not each.is_required])
ALL_PASSES = REQUIRED_PASSES + OPTIONAL_PASSES
"""The names of the passes that `select_passes` chooses from."""


class PassSelection(NamedTuple):
    """The names of the lowering passes to run, and whether they also apply where that does not pay."""

    names: frozenset[str] = frozenset(ALL_PASSES)
    always: bool = False


selected_passes: ContextVar[PassSelection] = ContextVar("passes", default=PassSelection())  # noqa: B039 - a tuple
"""The passes that programs lowered in this context go through."""


def select_passes(*names: str, always: bool = False) -> ContextValue[PassSelection]:
    """Lower programs inside the block by the passes of these names alone.

    With `always`, a pass also applies where `functx.config` forbids it or the program is small.
    """
    return ContextValue(selected_passes, PassSelection(frozenset(names), always))


def lowering_target(platforms: Sequence[str], num_devices: int | None, outline: str) -> Target:
    """The target of a module for these devices, in the mode `outline` of `functx.config`."""
    platforms, always = tuple(platforms), selected_passes.get().always
    # Calls pay on one CPU; across devices they would separate what the devices exchange.
    noinline = outline == "always" or (platforms == ("cpu",) and num_devices == 1)
    mode = "always" if always else outline
    return Target(
        platforms, mode if noinline else "never", "always" if always else config.simplify, noinline
    )


@lru_cache(maxsize=256)
def rewrites_for(
    stage: Stage, target: Target, names: frozenset[str] | None = None
) -> tuple[ProgramRewrite, ...]:
    """The rewrites of a stage for `target`, in order; of the passes called `names` alone, if given."""
    rewrites = [
        each.rewrite(target)
        for each in PASSES
        if each.stage is stage and (names is None or each.name in names) and each.when(target)
    ]
    return tuple([rewrite for rewrite in rewrites if rewrite is not None])


def run_passes(stage: Stage, target: Target, program: Program) -> Program:
    """`program` after the passes of a stage."""
    for rewrite in rewrites_for(stage, target):
        program = cached_rewrite(rewrite, program)
    return program


def diagram() -> str:
    """The list as text: a block for each stage that passes run at, in order."""
    width = max([len(each.name) for each in PASSES])
    lines = ["function", "  │ trace"]
    stage = None
    for each in PASSES:
        if each.stage is not stage:
            stage = each.stage
            lines += ["  ▼", f"Program, {stage}"]
        lines.append(f"  │ {each.name:{width}}  {each.purpose}")
    return "\n".join([*lines, "  ▼", "StableHLO", "  │ XLA", "  ▼", "executable"]) + "\n"
