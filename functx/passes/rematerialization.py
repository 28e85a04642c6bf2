"""Rematerialization: splits of programs that save few residuals, and recompute the others.

A plan says which residuals are saved; a memory budget tries plans until one fits.
"""

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
    """The plan to save the residuals that are cheapest under `config`.

    A program without segments of its own is split into this many `segments`, if any, of which each
    is recomputed as a whole.
    """

    config: MinCutConfig
    segments: int = 0


MIN_CUT_PLAN = MemoryPlan(MinCutConfig(materialized=False, far_apart=False))


@contextmanager
def use_memory_plan(plan: object) -> Iterator[None]:
    """Derivatives inside the `with` block follow `plan`."""
    token = trace_options.set(trace_options.get()._replace(memory=plan))
    try:
        yield
    finally:
        trace_options.reset(token)


class MinCutSplitResult(NamedTuple):
    """The programs of a split, and whether the backward ones recompute forward equations."""

    programs: Any
    recomputes: bool


class MinCutSplit(Rewrite[MinCutSplitResult]):
    """The rewrite to the programs of `split`, with the residuals that a minimum cut selects.

    As for `split`, the forward program returns the outputs, then the residuals, which the backward
    programs take last. The inputs at the indices `free_to_save` are saved at no cost. The first
    `consts` inputs are the same in every run of the program: values that depend on them alone are
    saved once.
    """

    split: Any
    plan: MemoryPlan
    free_to_save: Indices = ()
    consts: int = 0

    def __call__(self, program: Program) -> MinCutSplitResult:
        programs = self.split(program)
        values, *backward_programs = programs
        count = len(program.outputs)
        joint = join_split(values, count, backward_programs)
        inputs = joint.program.inputs
        invariant = (
            loop_invariant_variables(joint.program, {*inputs[: self.consts]})
            if self.consts
            else set()
        )
        free = frozenset([*invariant, *[inputs[i] for i in self.free_to_save]])
        partition = min_cut_partition(joint._replace(free_to_save=free), self.plan.config)
        saved = partition.forward.outputs[count:]
        if residual_bytes(saved, free) >= residual_bytes(values.outputs[count:], free):
            return MinCutSplitResult(programs, False)
        ct_counts = [
            len(backward.inputs) - (len(values.outputs) - count) for backward in backward_programs
        ]
        limited = [
            partition.forward,
            *distribute_backward(partition.backward, backward_programs, ct_counts),
        ]
        return MinCutSplitResult(
            type(programs)(*limited) if hasattr(programs, "_fields") else tuple(limited), True
        )


def residual_bytes(saved: Sequence[Atom], free: Collection[Atom]) -> int:
    """The bytes of the `saved` variables that are not `free`."""
    return sum([bytes_of(a.aval) for a in {*saved} if type(a) is Var and a not in free])


def distribute_backward(
    backward: Program, backward_programs: Sequence[Program], ct_counts: Sequence[int]
) -> list[Program]:
    """The joint `backward` program as programs with the inputs and outputs of `backward_programs`.

    Each takes `ct_counts` cotangents before the residuals.
    """
    residuals = backward.inputs[sum(ct_counts) :]
    programs, start, end = [], 0, 0
    for original, count in zip(backward_programs, ct_counts, strict=True):
        inputs = [*backward.inputs[start : start + count], *residuals]
        outputs = backward.outputs[end : end + len(original.outputs)]
        part = with_io(backward, inputs, outputs)
        programs.append(
            replace_program_fields(part, name=original.name, in_names=original.in_names)
        )
        start, end = start + count, end + len(original.outputs)
    return programs


class RematerializedSplit(Rewrite[Any]):
    """The rewrite to the programs of a minimum-cut split."""

    min_cut_split: MinCutSplit

    def __call__(self, program: Program) -> Any:
        return cached_rewrite(self.min_cut_split, program).programs


def limit_residuals(split: Any, free: Indices = (), consts: int = 0) -> Any:
    """`split` under the current memory plan: with a minimum cut, or as it is for "off"."""
    plan = memory_plan()
    if plan == "off":
        return split
    return RematerializedSplit(
        MinCutSplit(split, plan if type(plan) is MemoryPlan else MIN_CUT_PLAN, free, consts)
    )


def recomputes_forward(split: object, program: Program) -> bool:
    """Whether backward programs of `split`, from `limit_residuals`, recompute."""
    return (
        type(split) is RematerializedSplit
        and cached_rewrite(split.min_cut_split, program).recomputes
    )


# XLA pads arrays and leaves gaps between them, which the estimate leaves out.
_MARGIN = 1.2
_RECOMPUTE_PRICES = (*[2.0**-n for n in range(-1, 8)], 0.0)


def candidate_plans(equations: int) -> Iterator[Any]:
    """Plans for a program of that many equations, from no recomputation to whole segments."""
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
    """The first plan whose temporaries fit in `budget`, and `rewrite(program)` under it.

    If none fits, it is the plan that needs least, and a MemoryBudgetWarning says how much.
    """
    best: tuple[Any, Program] | None = None
    least = plain = 0
    for plan in candidate_plans(len(program.equations)):
        with use_memory_plan(plan):
            rewritten = cached_rewrite(rewrite, program)
        need = cached_rewrite(temporary_bytes, rewritten)
        plain = plain or need
        if best is None or need < least:
            best, least = (plan, rewritten), need
        if fits_budget(need, budget, plain):
            return plan, rewritten
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
    """Warns at the user's line."""
    location = user_source()
    source = None if location is None else user_line(location)
    where = ("functx", 0) if source is None else (source[0].co_filename, line_number(source))
    warnings.warn_explicit(warning, MemoryBudgetWarning, *where)


def fits_budget(need: int, budget: MemoryBudget, plain: int) -> bool:
    """Whether `need` bytes of temporaries fit in `budget`.

    `plain` is the need without recomputation, of which a budget may be a fraction.
    """
    if budget.fraction is not None:
        return need <= budget.bytes_for(plain)
    return need * _MARGIN <= budget.bytes
