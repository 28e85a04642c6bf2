"""Gradients of whole programs, between whose halves what passes is planned."""

from __future__ import annotations

from functools import partial
from typing import Any

from functx.core.budgets import Budget
from functx.core.config import memory_plan
from functx.core.dtypes import is_inexact
from functx.core.editing import applied, like
from functx.core.program import Equation, Program
from functx.core.records import Rewrite
from functx.core.rewriting import rewritten
from functx.core.tracing import current_builder, trace_closed
from functx.ops.shaping import full_like
from functx.transforms.call import Call, Rerun
from functx.transforms.planning.budget import fitting_plan
from functx.transforms.planning.joint import joined
from functx.transforms.planning.planned import Plan, asking_for, computes_again, planned
from functx.transforms.planning.sections import Sections
from functx.transforms.reverse_mode import SplitVJP, ValueAndGrad
from functx.transforms.zeros import WithZeros

# So many equations of a backward program are computed together at least.
_STEP = 12


def gradient_rewrite(active: tuple[bool, ...], with_value: bool) -> Any:
    """The rewrite to the outputs and gradients, planned if derivatives are."""
    if memory_plan() == "off":
        return ValueAndGrad(active, with_value)
    return PlannedGradient(active, with_value)


def split_in_two(active: tuple[bool, ...]) -> Any:
    """The split into a program and one that pulls back, planned if derivatives are."""
    return SplitVJP(active) if memory_plan() == "off" else PlannedHalves(active)


def in_sections(program: Program) -> Program:
    """`program` in the sections of the plan that holds, or as it is."""
    plan = memory_plan()
    count = plan.sections if type(plan) is Plan else 0
    return rewritten(Sections(count), program) if count else program  # type: ignore[no-any-return]


def step_by_step(backward: Program) -> Program:
    """`backward` in sections, so that what is computed again waits for the cotangents it is for.

    A compiler would do it all at first, since it needs none. Calls wait by themselves.
    """
    count = sum([not isinstance(eqn.primitive, Call) for eqn in backward]) // _STEP
    return rewritten(Sections(count), backward) if count > 1 else backward  # type: ignore[no-any-return]


class PlannedHalves(Rewrite[tuple[Program, Program]]):
    """As `SplitVJP`; the second program is one call where it computes again."""

    active: tuple[bool, ...]

    def __call__(self, program: Program) -> tuple[Program, Program]:
        budget = memory_plan()
        if type(budget) is Budget:
            plan, _ = fitting_plan(budget, Whole(self.active), program)
            with asking_for(plan):
                return rewritten(split_in_two(self.active), program)  # type: ignore[no-any-return]
        program = in_sections(program)
        split = planned(SplitVJP(self.active), tuple(range(len(program.inputs))))
        values, backward = rewritten(split, program)
        if not computes_again(split, program):
            return values, backward
        call = Equation.of(Rerun(step_by_step(backward), True), backward.inputs)
        return values, like(backward, equations=[call], outputs=call.outputs)


class Whole(Rewrite[Program]):
    """The rewrite to both halves as one program, which takes the cotangents last."""

    active: tuple[bool, ...]

    def __call__(self, program: Program) -> Program:
        values, backward = rewritten(split_in_two(self.active), program)
        return joined(values, len(program.outputs), [backward]).program


class PlannedGradient(Rewrite[Program]):
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
        if type(budget) is Budget:
            rewrite = OfPlan(self.active, self.with_value)
            return applied(fitting_plan(budget, rewrite, program)[1], args)
        program = in_sections(program)
        split = planned(SplitVJP(self.active), tuple(range(len(args))))
        values, backward = rewritten(split, program)
        found = current_builder.here().inline(values, args)
        count = len(program.outputs)
        first = [i == 0 for i, a in enumerate(program.out_avals) if is_inexact(a.dtype)]
        pull = rewritten(WithZeros(tuple(first)), backward)
        given = [full_like(found[0], 1), *found[count:]]
        again = computes_again(split, program)
        grads = Rerun(step_by_step(pull), True)(*given) if again else applied(pull, given)
        return [*found[0 if self.with_value else 1 : count], *grads]


class OfPlan(Rewrite[Program]):
    """The rewrite to outputs and gradients by the plan that holds when it is applied."""

    active: tuple[bool, ...]
    with_value: bool

    def __call__(self, program: Program) -> Program:
        return gradient_rewrite(self.active, self.with_value)(program)  # type: ignore[no-any-return]
