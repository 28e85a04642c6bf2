"""Gradients under a memory plan, and the segments of a program that they recompute one by one.

The end of the file installs this policy in `functx.transforms.partial_evaluation_policy`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable
from itertools import accumulate, pairwise

from functx import ops
from functx.core.config import MemoryBudget, memory_plan
from functx.core.program import Atom, Equation, Program, Var
from functx.core.program_editing import apply_program, replace_program_fields
from functx.core.records import Rewrite
from functx.core.rewriting import cached_rewrite
from functx.core.tracer import current_builder
from functx.core.types import is_inexact
from functx.core.typing import Value
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
from functx.transforms.partial_evaluation_policy import Split, policy
from functx.transforms.reverse_mode import SplitVJP, ValueAndGrad
from functx.transforms.symbolic_zeros import DropZeroInputs


class SplitIntoSegments(Rewrite[Program]):
    """The rewrite to calls of about `count` segments, which compute about as many bytes each.

    The cuts are where few bytes cross. A program with effects is returned as it is.
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
        """The positions at which segments begin, without 0."""
        computed = list(accumulate([sum([bytes_of(v.aval) for v in e.outputs]) for e in program]))
        crossing = crossing_bytes(program)
        step = computed[-1] / self.count
        cuts: list[int] = []
        for n in range(1, self.count):
            first = bisect_left(computed, (n - 1 / 3) * step) + 1
            stop = bisect_right(computed, (n + 1 / 3) * step) + 1
            near = range(max(first, cuts[-1] + 1 if cuts else 1), min(stop, len(computed)))
            if near:
                cuts.append(min(near, key=crossing.__getitem__))
        return cuts


def crossing_bytes(program: Program) -> list[int]:
    """For each position, the bytes of values that are computed before it and used later."""
    changes = [0] * (len(program.equations) + 2)
    position = {v: i for i, eqn in enumerate(program) for v in eqn.outputs}
    last = dict(position)
    for i, eqn in enumerate(program):
        last.update({a: i for a in eqn.inputs if type(a) is Var and a in position})
    for v, i in position.items():
        changes[i + 1] += bytes_of(v.aval)
        changes[last[v] + 1] -= bytes_of(v.aval)
    return list(accumulate(changes))


def segment_call(program: Program, start: int, end: int, last: dict[Atom, int]) -> Equation:
    """A call in place of the equations of `program` from `start` to before `end`.

    `last` gives the position of the last use of each variable.
    """
    equations = program.equations[start:end]
    defined = {v for eqn in equations for v in eqn.outputs}
    used = dict.fromkeys([a for eqn in equations for a in eqn.inputs if type(a) is Var])
    inputs = [v for v in used if v not in defined]
    outputs = [v for eqn in equations for v in eqn.outputs if last.get(v, -1) >= end]
    call = Call(Program("section", inputs, equations, outputs), True)
    return Equation(call, list(inputs), outputs, equations[-1].source)


_MIN_SEGMENT_EQUATIONS = 12
"""The least number of equations in a segment of a backward program."""


def gradient_rewrite(active: tuple[bool, ...], with_value: bool) -> Callable[[Program], Program]:
    """The rewrite to the outputs and gradients under the current memory plan."""
    if memory_plan() == "off":
        return ValueAndGrad(active, with_value)
    return RematerializedGradient(active, with_value)


def vjp_split(active: tuple[bool, ...]) -> Split[tuple[Program, Program]]:
    """The split into a forward and a backward program under the current memory plan."""
    return SplitVJP(active) if memory_plan() == "off" else RematerializedVJPSplit(active)


def split_with_few_residuals(
    active: tuple[bool, ...], program: Program
) -> tuple[Program, Program, bool]:
    """The forward and backward program under the current plan, and whether the latter recomputes."""
    plan = memory_plan()
    if type(plan) is MemoryPlan and plan.segments:
        program = cached_rewrite(SplitIntoSegments(plan.segments), program)
    split = limit_residuals(SplitVJP(active), tuple(range(len(program.inputs))))
    values, backward = cached_rewrite(split, program)
    return values, backward, recomputes_forward(split, program)


def segment_backward(backward: Program) -> Program:
    """`backward` in segments, so that recomputation waits for the cotangents that it serves.

    A compiler would recompute everything first. A call waits for all its operands.
    """
    count = sum([not isinstance(eqn.primitive, Call) for eqn in backward]) // _MIN_SEGMENT_EQUATIONS
    return cached_rewrite(SplitIntoSegments(count), backward) if count > 1 else backward


class RematerializedVJPSplit(Rewrite[tuple[Program, Program]]):
    """As `SplitVJP`; the backward program is one call if it recomputes."""

    active: tuple[bool, ...]

    def __call__(self, program: Program) -> tuple[Program, Program]:
        budget = memory_plan()
        if type(budget) is MemoryBudget:
            plan, _ = plan_within_budget(budget, JointVJP(self.active), program)
            with use_memory_plan(plan):
                return cached_rewrite(vjp_split(self.active), program)
        values, backward, recomputes = split_with_few_residuals(self.active, program)
        if not recomputes:
            return values, backward
        call = Equation.of(RematerializedCall(segment_backward(backward), True), backward.inputs)
        return values, replace_program_fields(backward, equations=[call], outputs=call.outputs)


class JointVJP(Rewrite[Program]):
    """The rewrite to the forward and backward programs as one, with the cotangents last."""

    active: tuple[bool, ...]

    def __call__(self, program: Program) -> Program:
        values, backward = cached_rewrite(vjp_split(self.active), program)
        return join_split(values, len(program.outputs), [backward]).program


class RematerializedGradient(ValueAndGrad):
    """As `ValueAndGrad`, with the backward program as one call if it recomputes."""

    def emit(self, program: Program, *args: Value) -> list[Value]:
        budget = memory_plan()
        if type(budget) is MemoryBudget:
            rewrite = GradientUnderPlan(self.active, self.with_value)
            return apply_program(plan_within_budget(budget, rewrite, program)[1], args)
        values, backward, recomputes = split_with_few_residuals(self.active, program)
        outs = current_builder.require().inline(values, args)
        count = len(program.outputs)
        first = [i == 0 for i, a in enumerate(program.out_avals) if is_inexact(a.dtype)]
        pullback = cached_rewrite(DropZeroInputs(tuple(first)), backward)
        operands = [ops.constant_like(outs[0], 1), *outs[count:]]
        grads = (
            RematerializedCall(segment_backward(pullback), True)(*operands)
            if recomputes
            else apply_program(pullback, operands)
        )
        return [*outs[0 if self.with_value else 1 : count], *grads]


class GradientUnderPlan(Rewrite[Program]):
    """The rewrite to outputs and gradients under the plan at the time of its application."""

    active: tuple[bool, ...]
    with_value: bool

    def __call__(self, program: Program) -> Program:
        return gradient_rewrite(self.active, self.with_value)(program)


policy.limit_residuals = limit_residuals
policy.recomputes_forward = recomputes_forward
policy.vjp_split = vjp_split
policy.gradient_rewrite = gradient_rewrite
