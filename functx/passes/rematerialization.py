"""Splits of programs in two halves, between which what passes is planned."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from functx.core.config import MemoryBudget, format_bytes, memory_plan, trace_options
from functx.core.errors import MemoryBudgetWarning
from functx.core.program import Atom, Program, Var
from functx.core.program_editing import replace_program_fields
from functx.core.records import Record, Rewrite
from functx.core.rewriting import cached_rewrite
from functx.core.source_info import line_number, user_line, user_source
from functx.passes.joint_programs import join_split
from functx.passes.memory_cost_model import bytes_of, temporary_bytes
from functx.passes.min_cut import MinCutConfig, min_cut_partition
from functx.transforms.dce import loop_invariant_variables, with_io

Indices = tuple[int, ...]


class MemoryPlan(Record):
    """What derivatives keep: the values that are cheapest under `config`.

    What has no blocks of its own is cut into so many `sections`, of which each is computed again
    as a whole, if there are any.
    """

    config: MinCutConfig
    segments: int = 0


MIN_CUT_PLAN = MemoryPlan(MinCutConfig(materialized=False, far_apart=False))


@contextmanager
def use_memory_plan(plan: Any) -> Iterator[None]:
    """Let derivatives keep what `plan` says, for the length of a `with` block."""
    token = trace_options.set(trace_options.get()._replace(memory=plan))
    try:
        yield
    finally:
        trace_options.reset(token)


class MinCutSplitResult(NamedTuple):
    """Halves of a program, and whether the later ones compute again what the first computes."""

    programs: Any
    recomputes: bool


class MinCutSplit(Rewrite[MinCutSplitResult]):
    """The rewrite to the halves that `split` makes of a program, with the cheapest between them.

    They have the form that `split` gives them: the first returns the outputs, then what is kept,
    which the others take last. Of the inputs those at `free` are kept anyway; the first `consts`
    are the same in all runs of the program, and what depends on them alone is kept once for all.
    """

    split: Any
    plan: MemoryPlan
    free_to_save: Indices = ()
    consts: int = 0

    def __call__(self, program: Program) -> MinCutSplitResult:
        halves = self.split(program)
        values, *rests = halves
        count = len(program.outputs)
        joint = join_split(values, count, rests)
        inputs = joint.program.inputs
        fixed = (
            loop_invariant_variables(joint.program, {*inputs[: self.consts]})
            if self.consts
            else set()
        )
        kept_anyway = frozenset([*fixed, *[inputs[i] for i in self.free_to_save]])
        parts = min_cut_partition(joint._replace(free_to_save=kept_anyway), self.plan.config)
        saved = parts.forward.outputs[count:]
        if residual_bytes(saved, kept_anyway) >= residual_bytes(
            values.outputs[count:], kept_anyway
        ):
            return MinCutSplitResult(halves, False)
        lead = [len(rest.inputs) - (len(values.outputs) - count) for rest in rests]
        made = [parts.forward, *distribute_backward(parts.backward, rests, lead)]
        return MinCutSplitResult(
            type(halves)(*made) if hasattr(halves, "_fields") else tuple(made), True
        )


def residual_bytes(saved: Sequence[Atom], free: Collection[Atom]) -> int:
    """What it takes to keep `saved`."""
    return sum([bytes_of(a.aval) for a in {*saved} if type(a) is Var and a not in free])


def distribute_backward(
    backward: Program, rests: Sequence[Program], lead: Sequence[int]
) -> list[Program]:
    """`backward` as programs like `rests`, which have so many inputs before what is kept."""
    kept = backward.inputs[sum(lead) :]
    made, start, end = [], 0, 0
    for rest, count in zip(rests, lead, strict=True):
        inputs = [*backward.inputs[start : start + count], *kept]
        outputs = backward.outputs[end : end + len(rest.outputs)]
        part = with_io(backward, inputs, outputs)
        made.append(replace_program_fields(part, name=rest.name, in_names=rest.in_names))
        start, end = start + count, end + len(rest.outputs)
    return made


class RematerializedSplit(Rewrite[Any]):
    """The rewrite to the halves of a division."""

    min_cut_split: MinCutSplit

    def __call__(self, program: Program) -> Any:
        return cached_rewrite(self.min_cut_split, program).programs


def limit_residuals(split: Any, free: Indices = (), consts: int = 0) -> Any:
    """`split`, planned as derivatives are now; `split` itself where they keep all that they need."""
    plan = memory_plan()
    if plan == "off":
        return split
    return RematerializedSplit(
        MinCutSplit(split, plan if type(plan) is MemoryPlan else MIN_CUT_PLAN, free, consts)
    )


def recomputes_forward(split: Any, program: Program) -> bool:
    """Whether the second half of `program` does, when `split`, of `limit_residuals`, splits it."""
    return (
        type(split) is RematerializedSplit
        and cached_rewrite(split.min_cut_split, program).recomputes
    )


# The estimate does not know how XLA pads arrays and leaves gaps between them.
_MARGIN = 1.2
_RECOMPUTE_PRICES = (*[2.0**-n for n in range(-1, 8)], 0.0)


def candidate_plans(equations: int) -> Iterator[Any]:
    """Plans from nothing computed again to whole sections, for a program of so many equations."""
    yield "off"
    yield MIN_CUT_PLAN
    for price in _RECOMPUTE_PRICES:
        yield MemoryPlan(MinCutConfig(aggressive=True, price=price))
    count = 2
    while count <= equations // 4:
        yield MemoryPlan(MinCutConfig(aggressive=True, price=0.0), count)
        count *= 2


def plan_within_budget(
    budget: MemoryBudget, rewrite: Callable[[Program], Program], program: Program
) -> tuple[Any, Program]:
    """The first plan, and `rewrite(program)` under it, whose temporaries fit in `budget`.

    Where none does, MemoryBudgetWarning says what the least is, and the one that takes it is given.
    """
    best: tuple[Any, Program] | None = None
    least = plain = 0
    for plan in candidate_plans(len(program.equations)):
        with use_memory_plan(plan):
            made = cached_rewrite(rewrite, program)
        need = cached_rewrite(temporary_bytes, made)
        plain = plain or need
        if best is None or need < least:
            best, least = (plan, made), need
        if fits_budget(need, budget, plain):
            return plan, made
    assert best is not None
    limit = budget.bytes_for(plain)
    warn_at_user_line(
        MemoryBudgetWarning(
            f"memory: the derivative of {program.name} must be given at least "
            f"{format_bytes(least * _MARGIN)} for temporaries; got {format_bytes(limit)}",
            f"It takes the least; with nothing computed again it is {format_bytes(plain * _MARGIN)}.",
            fix="Raise the budget, or differentiate smaller batches.",
        )
    )
    return best


def warn_at_user_line(warning: MemoryBudgetWarning) -> None:
    """Warn at the user's line."""
    asked = user_source()
    source = None if asked is None else user_line(asked)
    where = ("functx", 0) if source is None else (source[0].co_filename, line_number(source))
    warnings.warn_explicit(warning, MemoryBudgetWarning, *where)


def fits_budget(need: int, budget: MemoryBudget, plain: int) -> bool:
    """Whether a derivative that needs so much, where it plainly takes `plain`, fits in `budget`."""
    if budget.fraction is not None:
        return need <= budget.bytes_for(plain)
    return need * _MARGIN <= budget.bytes
