"""Schedules that say which states of a loop of unknown length are saved in few slots.

Forward, the number of steps is unknown. Each state takes a vacant slot, at level 1. When no
slot is vacant, the newest state gives its slot to the next one, which gets a higher level,
and the slots of lower levels before it become vacant: their states can be recomputed from
those that remain (Wang, Moin and Iaccarino 2009). For up to C(s + 2, 2) steps and s saved
states, this is the online schedule that Stumm and Walther (2010) prove optimal.

Backward, the number of steps between a saved state and the required one is known, and the
states between them are saved where the binomial schedule of Griewank (1992) has them. No
step runs more than r times if there are at most C(s + r, r) steps.

One more slot holds the current state, so there are s + 1. All arithmetic is on traced values.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from functx import ops
from functx.core.program import Literal
from functx.core.typing import Value
from functx.ops.operands import literal

STEP_DTYPE, BINOMIAL_DTYPE = np.dtype("int32"), np.dtype("float32")
Scalar = Value | Literal
NO_STEP = -1
VACANT_LEVEL = 0
FIRST_STATE_LEVEL = 1 << 30


class OnlineSchedule(NamedTuple):
    """The slots during the forward loop: the step whose state each one holds, and its level.

    `last_slot` is the slot that was filled last, `last_level` its level.
    """

    kept_steps: Value
    levels: Value
    last_slot: Scalar
    last_level: Scalar


def empty_schedule(slots: int) -> OnlineSchedule:
    """A schedule of vacant slots."""
    return OnlineSchedule(
        ops.full((slots,), literal(NO_STEP, STEP_DTYPE)),
        ops.full((slots,), literal(VACANT_LEVEL, STEP_DTYPE)),
        literal(0, STEP_DTYPE),
        literal(VACANT_LEVEL, STEP_DTYPE),
    )


def assign_slot(schedule: OnlineSchedule, step: Value) -> tuple[Value, OnlineSchedule]:
    """The slot for the state before `step`, and the next schedule. Steps come in their order."""
    kept_steps, levels, last_slot, last_level = schedule
    lowest = ops.reduce_min(levels)
    vacant = ops.eq(lowest, VACANT_LEVEL)
    slot = ops.select(vacant, first_true(ops.eq(levels, lowest)), last_slot)
    level = ops.select(vacant, 1, ops.add(last_level, 1))
    level = ops.select(ops.eq(step, 0), FIRST_STATE_LEVEL, level)
    is_slot = ops.eq(ops.iota(STEP_DTYPE, kept_steps.shape[0]), slot)
    is_dropped = ops.le(levels, ops.select(vacant, VACANT_LEVEL, last_level))
    levels = ops.select(is_slot, level, ops.select(is_dropped, VACANT_LEVEL, levels))
    return slot, OnlineSchedule(ops.select(is_slot, step, kept_steps), levels, slot, level)


class RevolveSchedule(NamedTuple):
    """The backward pass: the step of the current state, and the steps whose states are saved.

    The first `num_kept` of `kept_steps` are the steps of the saved states, in order; `slot_order`
    holds their slots, then the vacant ones. The current state belongs to `step`, which is
    `distance` steps after the last saved state. With the vacant slots, `shorter_reach` steps
    after a saved state can be reversed if each runs at most `repeats - 1` times, and `reach`
    steps after the next saved state if each runs at most `repeats` times.
    """

    slot_order: Value
    kept_steps: Value
    num_kept: Value
    step: Value
    distance: Scalar
    repeats: Scalar
    shorter_reach: Scalar
    reach: Value


def start_backward(kept_steps: Value) -> tuple[Value, RevolveSchedule]:
    """The slot of the last state saved by a forward loop, and the schedule that begins there."""
    last = np.iinfo(STEP_DTYPE).max
    steps = ops.select(ops.lt(kept_steps, 0), last, kept_steps)
    kept_steps, slot_order = ops.sort([steps, ops.iota(STEP_DTYPE, kept_steps.shape[0])])
    num_kept = ops.reduce_sum(ops.convert_element_type(ops.lt(kept_steps, last), STEP_DTYPE))
    return _at_last_checkpoint(slot_order, kept_steps, num_kept)


def restart_from_checkpoint(
    schedule: RevolveSchedule, todo: Value
) -> tuple[Value, Value, RevolveSchedule]:
    """A vacant slot, the slot of the last saved state, and the schedule that restarts from it.

    Step `todo` has just been reversed; `todo - 1` is next.
    """
    is_reversed = ops.ge(element_at(schedule.kept_steps, ops.sub(schedule.num_kept, 1)), todo)
    num_kept = ops.sub(schedule.num_kept, ops.convert_element_type(is_reversed, STEP_DTYPE))
    return element_at(schedule.slot_order, num_kept), *_at_last_checkpoint(
        schedule.slot_order, schedule.kept_steps, num_kept
    )


def advance_state(schedule: RevolveSchedule, todo: Value) -> tuple[Value, RevolveSchedule]:
    """The slot for the state after one more step, and the next schedule.

    The state is saved in that slot if the binomial schedule for step `todo - 1` has it.
    """
    slot_order, kept_steps, num_kept, step, distance, repeats, shorter_reach, reach = schedule
    step = ops.add(step, 1)
    num_vacant = ops.sub(slot_order.shape[0] - 1, num_kept)
    distance = ops.add(distance, 1)
    # shorter_reach = C(num_vacant + repeats, repeats - 1), reach = C(num_vacant + repeats, repeats).
    longer = ops.gt(_as_binomial(distance), shorter_reach)
    upper, lower = _as_binomial(ops.add(ops.add(num_vacant, repeats), 1)), _as_binomial(repeats)
    longer_reach = ops.div(ops.mul(shorter_reach, upper), lower)
    shorter_reach = ops.select(longer, longer_reach, shorter_reach)
    longer_reach = ops.div(ops.mul(reach, upper), ops.add(lower, 1.0))
    reach = ops.select(longer, longer_reach, reach)
    repeats = ops.add(repeats, ops.convert_element_type(longer, STEP_DTYPE))
    steps_left = ops.sub(todo, step)
    save = ops.bitwise_and(
        ops.bitwise_and(ops.gt(num_vacant, 0), ops.gt(steps_left, 1)),
        ops.le(_as_binomial(steps_left), reach),
    )
    num_kept_after = ops.add(num_kept, ops.convert_element_type(save, STEP_DTYPE))
    kept_steps = ops.DynamicUpdateSlice()(kept_steps, ops.reshape(step, (1,)), num_kept)
    return element_at(slot_order, num_kept), RevolveSchedule(
        slot_order,
        kept_steps,
        num_kept_after,
        step,
        ops.select(save, 0, distance),
        ops.select(save, 1, repeats),
        ops.select(save, 1.0, shorter_reach),
        ops.select(save, _as_binomial(num_vacant), reach),
    )


def element_at(x: Value, i: Value) -> Value:
    """`x[i]`, with `i` clamped to the range."""
    return ops.reshape(ops.DynamicSlice((1,))(x, i), ())


def first_true(mask: Value) -> Value:
    """The position of the first true element of `mask`, its size if there is none."""
    (size,) = mask.shape
    return ops.reduce_min(ops.select(mask, ops.iota(STEP_DTYPE, size), size))


def _at_last_checkpoint(
    slot_order: Value, kept_steps: Value, num_kept: Value
) -> tuple[Value, RevolveSchedule]:
    """The slot of the last saved state, and the schedule whose current state it is."""
    last = ops.sub(num_kept, 1)
    zero, one = literal(0, STEP_DTYPE), literal(1, STEP_DTYPE)
    # With n vacant slots: C(n + 1, 0) = 1 and C(n + 1, 1) = n + 1.
    reach = _as_binomial(ops.sub(slot_order.shape[0], num_kept))
    step = element_at(kept_steps, last)
    return element_at(slot_order, last), RevolveSchedule(
        slot_order, kept_steps, num_kept, step, zero, one, literal(1.0, BINOMIAL_DTYPE), reach
    )


def _as_binomial(x: Scalar) -> Value:
    # In floats: binomials are only compared, and overflow an int32.
    return ops.convert_element_type(x, BINOMIAL_DTYPE)
