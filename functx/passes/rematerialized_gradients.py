"""Programs cut into sections: runs of equations as calls, so that each is computed again alone."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from functools import partial
from itertools import accumulate, pairwise
from typing import Any

from functx import ops
from functx.core.config import MemoryBudget, memory_plan
from functx.core.program import Equation, Program, Var
from functx.core.program_editing import apply_program, replace_program_fields
from functx.core.records import Rewrite
from functx.core.rewriting import cached_rewrite
from functx.core.tracer import current_builder
from functx.core.tracing import trace_closed
from functx.core.types import is_inexact
from functx.passes.joint_programs import join_split
from functx.passes.memory_cost_model import bytes_of
from functx.passes.rematerialization import (
    MemoryPlan,
    limit_residuals,
    plan_within_budget,
    recomputes_forward,
    use_memory_plan,
)
from functx.transforms.call_primitive import Call, RematerializedCall
from functx.transforms.partial_evaluation_policy import policy
from functx.transforms.reverse_mode import SplitVJP, ValueAndGrad
from functx.transforms.symbolic_zeros import DropZeroInputs


class SplitIntoSegments(Rewrite[Program]):
    """The rewrite to calls of about `count` sections that compute about as many bytes each.

    They are cut where few bytes cross. A program with effects is left as it is.
    """

    count: int

    def __call__(self, program: Program) -> Program:
        if program.effects or len(program.equations) < 2 * self.count:
            return program
        cuts = [0, *self.cut_positions(program), len(program.equations)]
        last = {atom: i for i, eqn in enumerate(program) for atom in eqn.inputs}
        last.update(dict.fromkeys(program.outputs, len(program.equations)))
        equations = [
            segment_call(program, start, end, last) for start, end in pairwise(cuts) if end > start
        ]
        return replace_program_fields(program, equations=equations)

    def cut_positions(self, program: Program) -> list[int]:
        """Where sections begin, the first aside."""
        made = list(accumulate([sum([bytes_of(v.aval) for v in e.outputs]) for e in program]))
        crossing = crossing_bytes(program)
        step = made[-1] / self.count
        cuts: list[int] = []
        for n in range(1, self.count):
            first = bisect_left(made, (n - 1 / 3) * step) + 1
            stop = bisect_right(made, (n + 1 / 3) * step) + 1
            near = range(max(first, cuts[-1] + 1 if cuts else 1), min(stop, len(made)))
            if near:
                cuts.append(min(near, key=crossing.__getitem__))
        return cuts


def crossing_bytes(program: Program) -> list[int]:
    """For each position, the bytes of what is made before it and used at it or later."""
    changes = [0] * (len(program.equations) + 2)
    position = {v: i for i, eqn in enumerate(program) for v in eqn.outputs}
    last = dict(position)
    for i, eqn in enumerate(program):
        last.update({a: i for a in eqn.inputs if type(a) is Var and a in position})
    for v, i in position.items():
        changes[i + 1] += bytes_of(v.aval)
        changes[last[v] + 1] -= bytes_of(v.aval)
    return list(accumulate(changes))


def segment_call(program: Program, start: int, end: int, last: dict[Any, int]) -> Equation:
    """A call in place of the equations of `program` from `start` to before `end`.

    `last` says where what is used is used last.
    """
    inside = program.equations[start:end]
    made = {v for eqn in inside for v in eqn.outputs}
    read = dict.fromkeys([a for eqn in inside for a in eqn.inputs if type(a) is Var])
    inputs = [v for v in read if v not in made]
    outputs = [v for eqn in inside for v in eqn.outputs if last.get(v, -1) >= end]
    call = Call(Program("section", inputs, inside, outputs), True)
    return Equation(call, list(inputs), outputs, inside[-1].source)


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
        split = limit_residuals(SplitVJP(self.active), tuple(range(len(program.inputs))))
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
        split = limit_residuals(SplitVJP(self.active), tuple(range(len(args))))
        values, backward = cached_rewrite(split, program)
        found = current_builder.require().inline(values, args)
        count = len(program.outputs)
        first = [i == 0 for i, a in enumerate(program.out_avals) if is_inexact(a.dtype)]
        pull = cached_rewrite(DropZeroInputs(tuple(first)), backward)
        given = [ops.constant_like(found[0], 1), *found[count:]]
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


policy.limit_residuals = limit_residuals
policy.recomputes_forward = recomputes_forward
policy.vjp_split = vjp_split
policy.gradient_rewrite = gradient_rewrite
