"""Reverse mode of loops of unknown length: some states are saved, the others recomputed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from functx import ops
from functx.core.masks import select_where, split_list
from functx.core.program import Program, Var, subprograms
from functx.core.rewriting import Rewrite, apply, cached_rewrite
from functx.core.tracing import trace_closed
from functx.core.types import ShapedArray
from functx.core.typing import Avals, Cotangents, Value, Values
from functx.ops.operands import cast_like, literal, upcast_aval
from functx.transforms.control import checkpoint_schedule
from functx.transforms.control.bounded_while import (
    STEP_AVAL,
    CounterPositive,
    WithUnusedInputs,
    add_to_sums,
    backward_from_stacks,
    read_rows,
    run_with_stacks,
    stacked_avals,
    write_rows,
    zero_sums,
)
from functx.transforms.control.checkpoint_schedule import (
    BINOMIAL_DTYPE,
    STEP_DTYPE,
    OnlineSchedule,
    RevolveSchedule,
)
from functx.transforms.control.cond import Cond
from functx.transforms.control.partial_eval import LoopPartialEval
from functx.transforms.dce import RemoveEffects, fixed_point, used_inputs, with_io

if TYPE_CHECKING:
    from functx.transforms.control.while_loop import While

ONLINE_FIELDS = len(OnlineSchedule._fields)
REVOLVE_FIELDS = len(RevolveSchedule._fields)


def online_schedule_avals(slots: int) -> list[ShapedArray]:
    """The types of the fields of an `OnlineSchedule`."""
    many = ShapedArray((slots,), STEP_DTYPE)
    return [many, many, STEP_AVAL, STEP_AVAL]


def revolve_schedule_avals(slots: int) -> list[ShapedArray]:
    """The types of the fields of a `RevolveSchedule`."""
    real = ShapedArray((), BINOMIAL_DTYPE)
    many = ShapedArray((slots,), STEP_DTYPE)
    return [many, many, STEP_AVAL, STEP_AVAL, STEP_AVAL, STEP_AVAL, real, real]


class RecomputationPlan(NamedTuple):
    """How a loop is reversed: in blocks of `block_steps`, from the carries marked in `state_mask`.

    The marked carries are the state. `advance` takes the consts of the condition, the consts of the
    body, and the state, and returns the state one block later. `backward` takes the cotangents
    of the carries that vary, then the operands of `advance`. It returns the sums of the
    cotangents of the consts, then the cotangents of the carries before the block.
    """

    block_steps: int
    state_mask: tuple[bool, ...]
    advance: Program
    backward: Program


class PlanRecomputation(Rewrite[RecomputationPlan]):
    """Plans the reversal of the body of `loop`, whose partial evaluation is `split`.

    Recomputed steps have no effects.
    """

    loop: While
    split: LoopPartialEval

    def __call__(self, program: Program) -> RecomputationPlan:
        known = cached_rewrite(RemoveEffects(), self.split.known)
        num_consts, count = self.loop.body_consts, len(program.outputs)
        body_consts, carry = known.inputs[:num_consts], known.inputs[num_consts:]
        rows = known.outputs[count:]
        state = tuple(used_inputs(with_io(known, known.inputs, rows))[num_consts:])
        block_steps = self.block_length(known, state)
        if block_steps > 1:
            by_condition = used_inputs(self.loop.condition)[self.loop.condition_consts :]
            state = tuple([a or b for a, b in zip(state, by_condition, strict=True)])

        def step(state: tuple[bool, ...]) -> tuple[tuple[bool, ...], Program]:
            advance = with_io(known, known.inputs, select_where(known.outputs[:count], state))
            used = used_inputs(advance)[num_consts:]
            return tuple([a or b for a, b in zip(state, used, strict=True)]), advance

        state, advance = fixed_point(state, step)
        inputs = [*body_consts, *select_where(carry, state)]
        advance = with_io(advance, inputs, advance.outputs)
        known = with_io(known, inputs, [*advance.outputs, *rows])
        if block_steps == 1:
            condition_inputs = self.loop.condition.inputs[: self.loop.condition_consts]
            advance = with_io(
                advance, [*[Var(v.aval) for v in condition_inputs], *inputs], advance.outputs
            )
            return RecomputationPlan(
                1, state, advance, self.backward(known, len(advance.outputs), None)
            )
        block_loop = self.block_loop(state, advance, block_steps)
        backward = self.backward(known, len(advance.outputs), block_loop)
        return RecomputationPlan(
            block_steps, state, cached_rewrite(StepBlock(block_loop), advance), backward
        )

    def block_loop(self, state: tuple[bool, ...], advance: Program, steps: int) -> While:
        """The loop that runs a block of `steps` steps on the state alone."""
        num_condition_consts = self.loop.condition_consts
        inputs = select_where(self.loop.condition.inputs[num_condition_consts:], state)
        inputs = [*self.loop.condition.inputs[:num_condition_consts], *inputs]
        condition = with_io(self.loop.condition, inputs, self.loop.condition.outputs)
        return self.loop.with_program(
            condition, advance, num_condition_consts, self.loop.body_consts
        ).with_max_steps(steps)

    def block_length(self, known: Program, state: tuple[bool, ...]) -> int:
        """The number of steps in a block, whose residuals take no more memory than the slots.

        The schedule is then updated once a block. Blocks of bodies with nested loops have one step,
        for these work enough in each step.
        """
        loop = self.loop
        if loop.condition.effects or any(subprograms(eqn.primitive) for eqn in known):
            return 1
        carry = known.in_avals[loop.body_consts :]
        state_bytes, residual_bytes = (
            _total_bytes(select_where(carry, state)),
            _total_bytes(known.out_avals[len(carry) :]),
        )
        return max(
            min(loop.checkpoints * state_bytes // max(residual_bytes, 1), loop.checkpoints), 1
        )

    def backward(self, known: Program, num_state: int, block_loop: While | None) -> Program:
        """The backward program of one step, or of the block that `block_loop` runs."""
        split, loop = self.split, self.loop
        condition_consts = loop.condition.in_avals[: loop.condition_consts]
        cts = split.unknown.in_avals[: len(split.unknown.inputs) - split.num_residuals]
        m = len(cts) + len(condition_consts)
        n = m + loop.body_consts

        def body(*args: Value) -> list[Value]:
            out_cts, consts = args[: len(cts)], args[m:n]
            invariants = apply(None, split.invariant, consts)
            if block_loop is None:
                rows = apply(None, known, args[m:])[num_state:]
                return apply(None, split.unknown, [*out_cts, *invariants, *rows])
            _, residuals = run_with_stacks(
                block_loop, known, args[len(cts) : m], consts, args[n:], limited=True
            )
            return backward_from_stacks(block_loop, split.unknown, out_cts, invariants, residuals)

        avals = [*cts, *condition_consts, *known.in_avals]
        return trace_closed(body, avals, name=split.unknown.name)


class StepBlock(Rewrite[Program]):
    """Rewrites the body of `loop` to the steps that the loop runs, at most `max_steps`."""

    loop: While

    def __call__(self, program: Program) -> Program:
        m, n = self.loop.condition_consts, self.loop.condition_consts + self.loop.body_consts

        def body(*args: Value) -> list[Value]:
            outs, _ = run_with_stacks(
                self.loop, program, args[:m], args[m:n], args[n:], limited=True
            )
            return outs

        avals = [*self.loop.condition.in_avals[:m], *program.in_avals]
        return trace_closed(body, avals, name=program.name)


def _total_bytes(avals: Avals) -> int:
    """The bytes of arrays of types `avals`."""
    return sum([a.size * a.dtype.itemsize for a in avals])


class SaveCheckpoints(Rewrite[Program]):
    """Rewrites a body to one that saves the carries marked in `state_mask` in `slots`.

    Its carry ends with the number of steps done, the schedule, and the slots.
    """

    consts: int
    state_mask: tuple[bool, ...]
    slots: int

    def __call__(self, program: Program) -> Program:
        count = len(program.inputs)
        state = select_where(program.in_avals[self.consts :], self.state_mask)

        def body(*args: Value) -> list[Value]:
            step, *schedule_and_slots = args[count:]
            slot, schedule = checkpoint_schedule.assign_slot(
                OnlineSchedule(*schedule_and_slots[:ONLINE_FIELDS]), step
            )
            current = select_where(args[self.consts : count], self.state_mask)
            slots = write_rows(schedule_and_slots[ONLINE_FIELDS:], current, slot)
            return [*apply(None, program, args[:count]), ops.add(step, 1), *schedule, *slots]

        added_avals = [
            STEP_AVAL,
            *online_schedule_avals(self.slots),
            *stacked_avals(state, self.slots),
        ]
        return trace_closed(body, [*program.in_avals, *added_avals], name=program.name)


class CheckpointedBackwardBody(Rewrite[Program]):
    """Rewrites `advance`, from one state to the next, to the body of the backward loop.

    Each step either advances the state towards that of the step to reverse next, or reverses
    that step: `backward` takes the cotangents of `count` carries, the consts and the state, and
    returns terms of sums and the cotangents of the carries before. The carry: the number of steps
    to reverse, the schedule, the state, the slots, the sums, the cotangents.
    """

    consts: int
    backward: Program
    count: int
    slots: int

    def __call__(self, advance: Program) -> Program:
        backward, num_sums = self.backward, len(self.backward.outputs) - self.count
        const_avals, state_avals = split_list(advance.in_avals, [self.consts])
        n = len(state_avals)
        sum_avals = list(map(upcast_aval, backward.out_avals[:num_sums]))
        total_avals = [*sum_avals, *backward.in_avals[: self.count]]
        schedule_avals = revolve_schedule_avals(self.slots)

        def advance_one(todo: Value, *operands: Value) -> list[Value]:
            fields, state, totals, consts = split_list(
                operands, [REVOLVE_FIELDS, n, len(total_avals)]
            )
            slot, schedule = checkpoint_schedule.advance_state(RevolveSchedule(*fields), todo)
            return [slot, slot, todo, *schedule, *apply(None, advance, [*consts, *state]), *totals]

        def reverse_one(todo: Value, *operands: Value) -> list[Value]:
            fields, state, sums, cts, consts = split_list(
                operands, [REVOLVE_FIELDS, n, num_sums, self.count]
            )
            results = apply(None, backward, [*cts, *consts, *state])
            new_sums = add_to_sums(sums, results)
            todo = ops.sub(todo, 1)
            vacant, slot, schedule = checkpoint_schedule.restart_from_checkpoint(
                RevolveSchedule(*fields), todo
            )
            return [vacant, slot, todo, *schedule, *state, *new_sums, *results[num_sums:]]

        operands = [STEP_AVAL, *schedule_avals, *state_avals, *total_avals, *const_avals]
        branches = tuple(
            [trace_closed(f, operands, name=f.__name__) for f in (advance_one, reverse_one)]
        )

        def body(*args: Value) -> list[Value]:
            consts, (todo,), fields, state, slots, totals = split_list(
                args, [self.consts, 1, REVOLVE_FIELDS, n, n]
            )
            at_target = ops.eq(RevolveSchedule(*fields).step, ops.sub(todo, 1))
            index = ops.convert_element_type(at_target, STEP_DTYPE)
            operands = [todo, *fields, *state, *totals, *consts]
            written, source, *outs = Cond(branches)(index, *operands)
            head, state, totals = split_list(outs, [1 + REVOLVE_FIELDS, n])
            # Read after the write, so that the slots are updated in place.
            slots = write_rows(slots, state, written)
            return [*head, *read_rows(slots, source), *slots, *totals]

        slot_avals = stacked_avals(state_avals, self.slots)
        avals = [*const_avals, STEP_AVAL, *schedule_avals, *state_avals, *slot_avals, *total_avals]
        return trace_closed(body, avals, name=backward.name)


def run_with_checkpoints(
    loop: While, split: LoopPartialEval, condition_consts: Values, consts: Values, carry: Values
) -> tuple[list[Value], list[Value]]:
    """The outputs of `loop`; the number of blocks, and the saved states with their steps."""
    plan = cached_rewrite(PlanRecomputation(loop, split), loop.body)
    program = loop.body
    if plan.block_steps > 1:
        block_loop = loop.with_max_steps(plan.block_steps)
        program, consts = (
            cached_rewrite(StepBlock(block_loop), program),
            [*condition_consts, *consts],
        )
    slots = loop.checkpoints + 1
    body = cached_rewrite(SaveCheckpoints(len(consts), plan.state_mask, slots), program)
    added_avals = body.in_avals[len(program.inputs) :]
    condition = cached_rewrite(WithUnusedInputs(tuple(added_avals)), loop.condition)
    slot_values = [ops.zeros_like(a) for a in added_avals[1 + ONLINE_FIELDS :]]
    init = [literal(0, STEP_DTYPE), *checkpoint_schedule.empty_schedule(slots), *slot_values]
    results = loop.with_program(condition, body, len(condition_consts), len(consts))(
        *condition_consts, *consts, *carry, *init
    )
    outs, (blocks, kept_steps, *schedule_and_slots) = results[: len(carry)], results[len(carry) :]
    return outs, [blocks, kept_steps, *schedule_and_slots[ONLINE_FIELDS - 1 :]]


def backward_from_checkpoints(
    loop: While, split: LoopPartialEval, cts: Cotangents, consts: Values, residuals: Values
) -> list[Value]:
    """The sums over the steps of cotangents of consts, then the cotangents of the initial carry.

    `consts` are those of the condition, then those of the body.
    """
    blocks, kept_steps, *slots = residuals
    _, _, advance, backward = cached_rewrite(PlanRecomputation(loop, split), loop.body)
    slot, schedule = checkpoint_schedule.start_backward(kept_steps)
    body = cached_rewrite(
        CheckpointedBackwardBody(len(consts), backward, len(cts), loop.checkpoints + 1), advance
    )
    condition = cached_rewrite(CounterPositive(len(consts)), body)
    sums = zero_sums(backward, len(cts))
    init = [blocks, *schedule, *read_rows(slots, slot), *slots, *sums, *cts]
    results: list[Any] = loop.with_program(condition, body, 0, len(consts))(*consts, *init)
    results = results[len(results) - len(backward.outputs) :]
    return [cast_like(x, a) for x, a in zip(results, backward.out_avals, strict=True)]


def while_forward(
    loop: While, split: LoopPartialEval, condition_consts: Values, consts: Values, carry: Values
) -> tuple[list[Value], list[Value]]:
    """The outputs of `loop`, and the residuals that `while_backward` takes."""
    if _uses_checkpoints(loop, split):
        return run_with_checkpoints(loop, split, condition_consts, consts, carry)
    return run_with_stacks(loop, split.known, condition_consts, consts, carry)


def while_backward(
    loop: While,
    split: LoopPartialEval,
    cts: Cotangents,
    condition_consts: Values,
    consts: Values,
    residuals: Values,
) -> list[Value]:
    """The sums over the steps of cotangents of consts, then the cotangents of the initial carry."""
    if _uses_checkpoints(loop, split):
        return backward_from_checkpoints(loop, split, cts, [*condition_consts, *consts], residuals)
    return backward_from_stacks(
        loop, split.unknown, cts, apply(None, split.invariant, consts), residuals
    )


def _uses_checkpoints(loop: While, split: LoopPartialEval) -> bool:
    """Whether states are saved rather than residuals: there are residuals, and no `max_steps`."""
    return loop.max_steps is None and bool(split.residuals)
