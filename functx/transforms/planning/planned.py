"""Splits of programs in two halves, between which what passes is planned."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from functx.core.config import memory_plan, trace_options
from functx.core.editing import replace_program_fields
from functx.core.program import Atom, Program, Var
from functx.core.records import Record, Rewrite
from functx.core.rewriting import cached_rewrite
from functx.transforms.control.loop_split import loop_invariant_variables
from functx.transforms.parts import with_io
from functx.transforms.planning.bans import MinCutConfig
from functx.transforms.planning.costs import bytes_of
from functx.transforms.planning.joint import join_split
from functx.transforms.planning.partition import min_cut_partition

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


def with_rematerialization(split: Any, free: Indices = (), consts: int = 0) -> Any:
    """`split`, planned as derivatives are now; `split` itself where they keep all that they need."""
    plan = memory_plan()
    if plan == "off":
        return split
    return RematerializedSplit(
        MinCutSplit(split, plan if type(plan) is MemoryPlan else MIN_CUT_PLAN, free, consts)
    )


def recomputes_forward(split: Any, program: Program) -> bool:
    """Whether the second half of `program` does, when `split`, of `with_rematerialization`, splits it."""
    return (
        type(split) is RematerializedSplit
        and cached_rewrite(split.min_cut_split, program).recomputes
    )
