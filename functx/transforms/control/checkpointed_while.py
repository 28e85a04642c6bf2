"""Reverse mode of loops of unknown length: some states are saved, the others recomputed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from functx import ops
from functx.core.program import Program, Var, subprograms
from functx.core.records import Rewrite
from functx.core.rewriting import apply, cached_rewrite
from functx.core.tracing import trace_closed
from functx.core.types import ShapedArray
from functx.ops.operands import cast_like_input, literal, upcast_aval, upcast_half
from functx.transforms.control import checkpoint_schedule
from functx.transforms.control.bounded_while import (
    STEP_AVAL,
    CounterPositive,
    WhileSplit,
    WithUnusedInputs,
    backward_from_stacks,
    read_rows,
    run_with_stacks,
    stacked_avals,
    write_rows,
)
from functx.transforms.control.checkpoint_schedule import (
    BINOMIAL_DTYPE,
    STEP_DTYPE,
    OnlineSchedule,
    RevolveSchedule,
)
from functx.transforms.control.cond import Cond
from functx.transforms.dce import RemoveEffects, used_inputs, with_io
from functx.transforms.operand_masks import select_where

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

    Those carries are the state. `advance` takes the consts of the condition, the consts of the
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

    loop: Any
    split: WhileSplit

    def __call__(self, program: Program) -> RecomputationPlan:
        values = cached_rewrite(RemoveEffects(), self.split.known)
        consts, count = self.loop.body_consts, len(program.outputs)
        lead, carry = values.inputs[:consts], values.inputs[consts:]
        rows = values.outputs[count:]
        state = tuple(used_inputs(with_io(values, values.inputs, rows))[consts:])
        steps = self.block_length(values, state)
        if steps > 1:
            by_condition = used_inputs(self.loop.condition)[self.loop.condition_consts :]
            state = tuple([a or b for a, b in zip(state, by_condition, strict=True)])
        while True:
            ahead = with_io(values, values.inputs, select_where(values.outputs[:count], state))
            needed = used_inputs(ahead)[consts:]
            grown = tuple([a or b for a, b in zip(state, needed, strict=True)])
            if grown == state:
                break
            state = grown
        inputs = [*lead, *select_where(carry, state)]
        ahead = with_io(ahead, inputs, ahead.outputs)
        values = with_io(values, inputs, [*ahead.outputs, *rows])
        if steps == 1:
            shared = self.loop.condition.inputs[: self.loop.condition_consts]
            ahead = with_io(ahead, [*[Var(v.aval) for v in shared], *inputs], ahead.outputs)
            return RecomputationPlan(
                1, state, ahead, self.backward(values, len(ahead.outputs), None)
            )
        part = self.block_loop(state, ahead, steps)
        pull = self.backward(values, len(ahead.outputs), part)
        return RecomputationPlan(steps, state, cached_rewrite(StepBlock(part), ahead), pull)

    def block_loop(self, state: tuple[bool, ...], ahead: Program, steps: int) -> Any:
        """The loop that runs a block of `steps` steps on the state alone."""
        shared = self.loop.condition_consts
        inputs = select_where(self.loop.condition.inputs[shared:], state)
        inputs = [*self.loop.condition.inputs[:shared], *inputs]
        condition = with_io(self.loop.condition, inputs, self.loop.condition.outputs)
        return self.loop.with_program(
            condition, ahead, shared, self.loop.body_consts
        ).with_max_steps(steps)

    def block_length(self, values: Program, state: tuple[bool, ...]) -> int:
        """The number of steps in a block, whose residuals take no more memory than the slots.

        The schedule is then updated once a block. Blocks of bodies with nested loops have one step,
        for these work enough in each step.
        """
        loop = self.loop
        if loop.condition.effects or any(subprograms(eqn.primitive) for eqn in values):
            return 1
        carry = values.in_avals[loop.body_consts :]
        slots, rows = (
            _total_bytes(select_where(carry, state)),
            _total_bytes(values.out_avals[len(carry) :]),
        )
        return max(min(loop.checkpoints * slots // max(rows, 1), loop.checkpoints), 1)

    def backward(self, values: Program, count: int, part: Any) -> Program:
        """The backward program of one step, or of the block that `block_loop` runs."""
        halves, shared = self.split, self.loop.condition.in_avals[: self.loop.condition_consts]
        needs = len(halves.invariant.outputs) + len(values.outputs) - count
        cts = halves.unknown.in_avals[: len(halves.unknown.inputs) - needs]
        m, n = len(cts) + len(shared), len(cts) + len(shared) + self.loop.body_consts

        def body(*args: Any) -> list[Any]:
            given, consts = args[: len(cts)], args[m:n]
            fixed = apply(None, halves.invariant, consts)
            if part is None:
                rows = apply(None, values, args[m:])[count:]
                return apply(None, halves.unknown, [*given, *fixed, *rows])
            _, known = run_with_stacks(
                part, values, args[len(cts) : m], consts, args[n:], limited=True
            )
            return backward_from_stacks(part, halves.unknown, given, fixed, known)

        return trace_closed(body, [*cts, *shared, *values.in_avals], name=halves.unknown.name)


class StepBlock(Rewrite[Program]):
    """Rewrites the body of `loop` to the steps that the loop runs, at most `max_steps`."""

    loop: Any

    def __call__(self, program: Program) -> Program:
        m, n = self.loop.condition_consts, self.loop.condition_consts + self.loop.body_consts

        def body(*args: Any) -> list[Any]:
            return run_with_stacks(self.loop, program, args[:m], args[m:n], args[n:], limited=True)[
                0
            ]

        avals = [*self.loop.condition.in_avals[:m], *program.in_avals]
        return trace_closed(body, avals, name=program.name)


def _total_bytes(avals: Sequence[ShapedArray]) -> int:
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

        def body(*args: Any) -> list[Any]:
            step, *rest = args[count:]
            slot, filling = checkpoint_schedule.assign_slot(
                OnlineSchedule(*rest[:ONLINE_FIELDS]), step
            )
            now = select_where(args[self.consts : count], self.state_mask)
            kept = write_rows(rest[ONLINE_FIELDS:], now, slot)
            return [*apply(None, program, args[:count]), ops.add(step, 1), *filling, *kept]

        more = [STEP_AVAL, *online_schedule_avals(self.slots), *stacked_avals(state, self.slots)]
        return trace_closed(body, [*program.in_avals, *more], name=program.name)


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

    def __call__(self, ahead: Program) -> Program:
        pull, sums = self.backward, len(self.backward.outputs) - self.count
        consts = ahead.in_avals[: self.consts]
        state = ahead.in_avals[self.consts :]
        found = [*map(upcast_aval, pull.out_avals[:sums]), *pull.in_avals[: self.count]]
        lead = [STEP_AVAL, *revolve_schedule_avals(self.slots)]
        # Ends of the groups: of the operands of a branch (a, b, c), and of the carry (d).
        a, b, c = len(lead), len(lead) + len(state), len(lead) + len(state) + len(found)
        d = b + len(state)

        def advance(todo: Any, *args: Any) -> list[Any]:
            slot, schedule = checkpoint_schedule.advance_state(
                RevolveSchedule(*args[:REVOLVE_FIELDS]), todo
            )
            state_values, found, consts = (
                args[REVOLVE_FIELDS : b - 1],
                args[b - 1 : c - 1],
                args[c - 1 :],
            )
            return [
                slot,
                slot,
                todo,
                *schedule,
                *apply(None, ahead, [*consts, *state_values]),
                *found,
            ]

        def reverse_step(todo: Any, *args: Any) -> list[Any]:
            state_values, found, consts = (
                args[REVOLVE_FIELDS : b - 1],
                args[b - 1 : c - 1],
                args[c - 1 :],
            )
            pulled = apply(None, pull, [*found[sums:], *consts, *state_values])
            added = [
                ops.add(state_values, upcast_half(ct))
                for state_values, ct in zip(found[:sums], pulled, strict=False)
            ]
            todo = ops.sub(todo, 1)
            vacant, slot, schedule = checkpoint_schedule.restart_from_checkpoint(
                RevolveSchedule(*args[:REVOLVE_FIELDS]), todo
            )
            return [vacant, slot, todo, *schedule, *state_values, *added, *pulled[sums:]]

        operands = [*lead, *state, *found, *consts]
        branches = tuple(
            [trace_closed(f, operands, name=f.__name__) for f in (advance, reverse_step)]
        )

        def body(*args: Any) -> list[Any]:
            consts, args = args[: self.consts], args[self.consts :]
            at_target = ops.eq(RevolveSchedule(*args[1:a]).step, ops.sub(args[0], 1))
            index = ops.convert_element_type(at_target, STEP_DTYPE)
            target_slot, source_slot, *outs = Cond(branches)(index, *args[:b], *args[d:], *consts)
            # Read after the write, so that the slots are updated in place.
            slots = write_rows(args[b:d], outs[a:b], target_slot)
            return [*outs[:a], *read_rows(slots, source_slot), *slots, *outs[b:]]

        carry = [*lead, *state, *stacked_avals(state, self.slots), *found]
        return trace_closed(body, [*consts, *carry], name=pull.name)


def run_with_checkpoints(
    loop: Any,
    halves: WhileSplit,
    shared: Sequence[Any],
    consts: Sequence[Any],
    carry: Sequence[Any],
) -> tuple[list[Any], list[Any]]:
    """The outputs of `loop`; the number of blocks, and the saved states with their steps."""
    reversal = cached_rewrite(PlanRecomputation(loop, halves), loop.body)
    program = loop.body
    if reversal.block_steps > 1:
        part = loop.with_max_steps(reversal.block_steps)
        program, consts = cached_rewrite(StepBlock(part), program), [*shared, *consts]
    slots = loop.checkpoints + 1
    body = cached_rewrite(SaveCheckpoints(len(consts), reversal.state_mask, slots), program)
    more = body.in_avals[len(program.inputs) :]
    condition = cached_rewrite(WithUnusedInputs(tuple(more)), loop.condition)
    kept = [ops.zeros_like(a) for a in more[1 + ONLINE_FIELDS :]]
    start = [literal(0, STEP_DTYPE), *checkpoint_schedule.empty_schedule(slots), *kept]
    found = loop.with_program(condition, body, len(shared), len(consts))(
        *shared, *consts, *carry, *start
    )
    outs, (blocks, places, *rest) = found[: len(carry)], found[len(carry) :]
    return outs, [blocks, places, *rest[ONLINE_FIELDS - 1 :]]


def backward_from_checkpoints(
    loop: Any, halves: WhileSplit, cts: Sequence[Any], consts: Sequence[Any], known: Sequence[Any]
) -> list[Any]:
    """The sums over the steps of cotangents of consts, then the cotangents of the initial carry.

    `consts` are those of the condition, then those of the body.
    """
    blocks, places, *slots = known
    _, _, ahead, pull = cached_rewrite(PlanRecomputation(loop, halves), loop.body)
    slot, walk = checkpoint_schedule.start_backward(places)
    body = cached_rewrite(
        CheckpointedBackwardBody(len(consts), pull, len(cts), loop.checkpoints + 1), ahead
    )
    condition = cached_rewrite(CounterPositive(len(consts)), body)
    sums = [ops.zeros_like(upcast_aval(a)) for a in pull.out_avals[: len(pull.outputs) - len(cts)]]
    start = [blocks, *walk, *read_rows(slots, slot), *slots, *sums, *cts]
    found: list[Any] = loop.with_program(condition, body, 0, len(consts))(*consts, *start)
    found = found[len(found) - len(pull.outputs) :]
    return [cast_like_input(x, a) for x, a in zip(found, pull.out_avals, strict=True)]


def while_forward(
    loop: Any,
    halves: WhileSplit,
    shared: Sequence[Any],
    consts: Sequence[Any],
    carry: Sequence[Any],
) -> tuple[list[Any], list[Any]]:
    """The outputs of `loop`, and the residuals that `while_backward` takes."""
    if _uses_checkpoints(loop, halves):
        return run_with_checkpoints(loop, halves, shared, consts, carry)
    return run_with_stacks(loop, halves.known, shared, consts, carry)


def while_backward(
    loop: Any,
    halves: WhileSplit,
    cts: Sequence[Any],
    shared: Sequence[Any],
    consts: Sequence[Any],
    known: Sequence[Any],
) -> list[Any]:
    """The sums over the steps of cotangents of consts, then the cotangents of the initial carry."""
    if _uses_checkpoints(loop, halves):
        return backward_from_checkpoints(loop, halves, cts, [*shared, *consts], known)
    return backward_from_stacks(
        loop, halves.unknown, cts, apply(None, halves.invariant, consts), known
    )


def _uses_checkpoints(loop: Any, halves: WhileSplit) -> bool:
    """Whether states are saved rather than residuals: there are residuals, and no `max_steps`."""
    return loop.max_steps is None and len(halves.known.outputs) > len(loop.body.outputs)
