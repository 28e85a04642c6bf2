"""Gradients of whole programs, between whose halves what passes is planned."""

from __future__ import annotations

from functools import partial
from typing import Any

from functx.core.budgets import MemoryBudget
from functx.core.config import memory_plan
from functx.core.dtypes import is_inexact
from functx.core.editing import apply_program, replace_program_fields
from functx.core.program import Equation, Program
from functx.core.records import Rewrite
from functx.core.rewriting import cached_rewrite
from functx.core.tracing import current_builder, trace_closed
from functx.ops.shaping import full_like
from functx.transforms.call import Call, RematerializedCall
from functx.transforms.planning.budget import plan_within_budget
from functx.transforms.planning.joint import join_split
from functx.transforms.planning.planned import (
    MemoryPlan,
    recomputes_forward,
    use_memory_plan,
    with_rematerialization,
)
from functx.transforms.planning.sections import SplitIntoSegments
from functx.transforms.reverse_mode import SplitVJP, ValueAndGrad
from functx.transforms.zeros import DropZeroInputs

# So many equations of a backward program are computed together at least.
_MIN_SEGMENT_EQUATIONS = 12


def gradient_rewrite(active: tuple[bool, ...], with_value: bool) -> Any:
    """The rewrite to the outputs and gradients, planned if derivatives are."""
    if memory_plan() == "off":
        return ValueAndGrad(active, with_value)
    return RematerializedGradient(active, with_value)


def vjp_split(active: tuple[bool, ...]) -> Any:
    """The split into a program and one that pulls back, planned if derivatives are."""
    return SplitVJP(active) if memory_plan() == "off" else RematerializedVJPSplit(active)


def split_into_segments(program: Program) -> Program:
    """`program` in the sections of the plan that holds, or as it is."""
    plan = memory_plan()
    count = plan.segments if type(plan) is MemoryPlan else 0
    return cached_rewrite(SplitIntoSegments(count), program) if count else program  # type: ignore[no-any-return]


def segment_backward(backward: Program) -> Program:
    """`backward` in sections, so that what is computed again waits for the cotangents it is for.

    A compiler would do it all at first, since it needs none. Calls wait by themselves.
    """
    count = sum([not isinstance(eqn.primitive, Call) for eqn in backward]) // _MIN_SEGMENT_EQUATIONS
    return cached_rewrite(SplitIntoSegments(count), backward) if count > 1 else backward  # type: ignore[no-any-return]


class RematerializedVJPSplit(Rewrite[tuple[Program, Program]]):
    """As `SplitVJP`; the second program is one call where it computes again."""

    active: tuple[bool, ...]

    def __call__(self, program: Program) -> tuple[Program, Program]:
        budget = memory_plan()
        if type(budget) is MemoryBudget:
            plan, _ = plan_within_budget(budget, JointVJP(self.active), program)
            with use_memory_plan(plan):
                return cached_rewrite(vjp_split(self.active), program)  # type: ignore[no-any-return]
        program = split_into_segments(program)
        split = with_rematerialization(SplitVJP(self.active), tuple(range(len(program.inputs))))
        values, backward = cached_rewrite(split, program)
        if not recomputes_forward(split, program):
            return values, backward
        call = Equation.of(RematerializedCall(segment_backward(backward), True), backward.inputs)
        return values, replace_program_fields(backward, equations=[call], outputs=call.outputs)


class JointVJP(Rewrite[Program]):
    """The rewrite to both halves as one program, which takes the cotangents last."""

    active: tuple[bool, ...]

    def __call__(self, program: Program) -> Program:
        values, backward = cached_rewrite(vjp_split(self.active), program)
        return join_split(values, len(program.outputs), [backward]).program


class RematerializedGradient(Rewrite[Program]):
    """As `ValueAndGrad`: the forward computation, then a call that pulls back and computes again."""

    active: tuple[bool, ...]
    with_value: bool

    def __call__(self, program: Program) -> Program:
        name = f"grad_{program.name}"
        body = partial(self.emit, program)
        return trace_closed(body, program.in_avals, name=name, in_names=program.in_names)

    def emit(self, program: Program, *args: Any) -> list[Any]:
        """The outputs of the rewritten program on `args`, appended to the trace that is on."""
        budget = memory_plan()
        if type(budget) is MemoryBudget:
            rewrite = GradientUnderPlan(self.active, self.with_value)
            return apply_program(plan_within_budget(budget, rewrite, program)[1], args)
        program = split_into_segments(program)
        split = with_rematerialization(SplitVJP(self.active), tuple(range(len(args))))
        values, backward = cached_rewrite(split, program)
        found = current_builder.require().inline(values, args)
        count = len(program.outputs)
        first = [i == 0 for i, a in enumerate(program.out_avals) if is_inexact(a.dtype)]
        pull = cached_rewrite(DropZeroInputs(tuple(first)), backward)
        given = [full_like(found[0], 1), *found[count:]]
        again = recomputes_forward(split, program)
        grads = (
            RematerializedCall(segment_backward(pull), True)(*given)
            if again
            else apply_program(pull, given)
        )
        return [*found[0 if self.with_value else 1 : count], *grads]


class GradientUnderPlan(Rewrite[Program]):
    """The rewrite to outputs and gradients by the plan that holds when it is applied."""

    active: tuple[bool, ...]
    with_value: bool

    def __call__(self, program: Program) -> Program:
        return gradient_rewrite(self.active, self.with_value)(program)  # type: ignore[no-any-return]
