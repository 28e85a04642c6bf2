"""Rematerialization: splits of programs that save few residuals, and recompute the others.

A plan says which residuals are saved; a memory budget tries plans until one fits. Gradients under a
plan recompute the segments of a program one by one. The end of the file sets the hooks by which
derivatives follow the plan.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

from functx import ops
from functx.core.backend import Programs, Split, backend
from functx.core.config import MemoryBudget, TraceOptions, format_bytes, memory_plan, trace_options
from functx.core.context import ContextValue
from functx.core.errors import MemoryBudgetWarning
from functx.core.program import Atom, Equation, Program, Var
from functx.core.program_calls import apply_program
from functx.core.program_editing import replace_program_fields
from functx.core.rewriting import Record, Rewrite, cached_rewrite
from functx.core.source_info import warn_at_user_line
from functx.core.tracer import current_builder
from functx.core.types import is_inexact
from functx.core.typing import Value
from functx.passes.costs import bytes_of
from functx.passes.memory_planning import join_split, temporary_bytes
from functx.passes.min_cut import min_cut_partition
from functx.passes.partition import Partition
from functx.passes.recompute_heuristics import MinCutConfig
from functx.transforms.call_primitive import Call, RematerializedCall
from functx.transforms.dce import loop_invariant_variables, with_io
from functx.transforms.reverse_mode import SplitVJP, ValueAndGrad
from functx.transforms.symbolic_zeros import DropZeroInputs

Indices = tuple[int, ...]


class MemoryPlan(Record):
    """The plan to save the residuals that are cheapest under `config`.

    A program without segments of its own is split into this many `segments`, if any, of which each
    is recomputed as a whole.
    """

    config: MinCutConfig
    segments: int = 0


MIN_CUT_PLAN = MemoryPlan(MinCutConfig(materialized=False, far_apart=False))


def use_memory_plan(plan: object) -> ContextValue[TraceOptions]:
    """Derivatives inside the `with` block follow `plan`."""
    return ContextValue(trace_options, trace_options.get()._replace(memory=plan))


class MinCutSplitResult(NamedTuple):
    """The programs of a split, and whether the backward ones recompute forward equations."""

    programs: tuple[Program, ...]
    recomputes: bool


class MinCutSplit(Rewrite[MinCutSplitResult]):
    """The rewrite to the programs of `split`, with the residuals that a minimum cut selects.

    As for `split`, the forward program returns the outputs, then the residuals, which the backward
    programs take last. The inputs at the indices `free_to_save` are saved at no cost. The first
    `consts` inputs are the same in every run of the program: values that depend on them alone are
    saved once.
    """

    split: Split[Any]
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
        free_to_save = frozenset([*invariant, *[inputs[i] for i in self.free_to_save]])
        partition = min_cut_partition(joint._replace(free_to_save=free_to_save), self.plan.config)
        saved = partition.saved
        before = values.outputs[count:]
        if residual_bytes(saved, free_to_save) >= residual_bytes(before, free_to_save):
            return MinCutSplitResult(programs, False)
        ct_counts = [
            len(backward.inputs) - (len(values.outputs) - count) for backward in backward_programs
        ]
        limited = [
            partition.forward,
            *distribute_backward(partition, backward_programs, ct_counts),
        ]
        return MinCutSplitResult(tuple(limited), True)


def residual_bytes(saved: Sequence[Atom], free_to_save: Collection[Atom]) -> int:
    """The bytes of the `saved` variables that are not `free_to_save`."""
    return sum([bytes_of(a.aval) for a in {*saved} if type(a) is Var and a not in free_to_save])


def distribute_backward(
    partition: Partition, backward_programs: Sequence[Program], ct_counts: Sequence[int]
) -> list[Program]:
    """The backward program of a partition as programs with the inputs and outputs of `backward_programs`.

    Each takes `ct_counts` cotangents before the residuals.
    """
    backward, cts, residuals = partition.backward, partition.tangents, partition.saved_inputs
    programs, start, end = [], 0, 0
    for original, count in zip(backward_programs, ct_counts, strict=True):
        inputs = [*cts[start : start + count], *residuals]
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


def limit_residuals(
    split: Split[Programs], free_to_save: Indices = (), consts: int = 0
) -> Split[Programs]:
    """`split` under the current memory plan: with a minimum cut, or as it is for "off"."""
    plan = memory_plan()
    if plan == "off":
        return split
    return RematerializedSplit(
        MinCutSplit(split, plan if type(plan) is MemoryPlan else MIN_CUT_PLAN, free_to_save, consts)
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
        ),
        MemoryBudgetWarning,
    )
    return best


def fits_budget(need: int, budget: MemoryBudget, plain: int) -> bool:
    """Whether `need` bytes of temporaries fit in `budget`.

    `plain` is the need without recomputation, of which a budget may be a fraction.
    """
    if budget.fraction is not None:
        return need <= budget.bytes_for(plain)
    return need * _MARGIN <= budget.bytes


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


backend.limit_residuals = limit_residuals
backend.recomputes_forward = recomputes_forward
backend.vjp_split = vjp_split
backend.gradient_rewrite = gradient_rewrite
