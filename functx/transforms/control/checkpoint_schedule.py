"""Which states of a loop of unknown length lie in few slots, before and while it is run back.

Forwards, the states of all steps pass by once and nobody knows which is the last. Each takes
a slot, at level 1. When no slot is vacant, the newest state gives its slot to the next one,
which stands a level higher, and the slots of lower levels before it become vacant: what they
held can be computed from what is left (Wang, Moin and Iaccarino 2009). For up to C(s + 2, 2)
steps and s states kept, this is the online schedule that Stumm and Walther (2010) prove best.

Backwards, the number of steps between a kept state and the one needed is known, and the
states between them are kept where the binomial schedule of Griewank (1992) has them. No step
runs more than r times where there are up to C(s + r, r).

One slot is for the state at hand, so there are s + 1. All is arithmetic on traced values.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from functx import ops
from functx.ops.operands import literal

STEP_DTYPE, BINOMIAL_DTYPE = np.dtype("int32"), np.dtype("float32")
NO_STEP = -1
VACANT_LEVEL = 0
FIRST_STATE_LEVEL = 1 << 30


class OnlineSchedule(NamedTuple):
    """The slots while the loop runs: the step whose state each holds, and its level.

    `newest` is the slot that was filled last, `top` its level.
    """

    kept_steps: Any
    levels: Any
    last_slot: Any
    last_level: Any


def empty_schedule(slots: int) -> OnlineSchedule:
    """Vacant slots."""
    return OnlineSchedule(
        ops.full((slots,), literal(NO_STEP, STEP_DTYPE)),
        ops.full((slots,), literal(VACANT_LEVEL, STEP_DTYPE)),
        literal(0, STEP_DTYPE),
        literal(VACANT_LEVEL, STEP_DTYPE),
    )


def assign_slot(filling: OnlineSchedule, step: Any) -> tuple[Any, OnlineSchedule]:
    """The slot for the state before `step`, the one after the last that was given a slot."""
    places, levels, newest, top = filling
    lowest = ops.reduce_min(levels)
    vacant = ops.eq(lowest, VACANT_LEVEL)
    slot = ops.select(vacant, first_true(ops.eq(levels, lowest)), newest)
    level = ops.select(vacant, 1, ops.add(top, 1))
    level = ops.select(ops.eq(step, 0), FIRST_STATE_LEVEL, level)
    here = ops.eq(ops.iota(STEP_DTYPE, places.shape[0]), slot)
    given_up = ops.le(levels, ops.select(vacant, VACANT_LEVEL, top))
    levels = ops.select(here, level, ops.select(given_up, VACANT_LEVEL, levels))
    return slot, OnlineSchedule(ops.select(here, step, places), levels, slot, level)


class RevolveSchedule(NamedTuple):
    """The way back: the step `at` whose state is at hand, and where others are kept.

    The first `held` of `places` are the steps whose states are kept, in order; the slots of
    these, and then the vacant ones, are in `order`. The state at hand is `gone` steps from
    the last one that is kept. With the slots behind it, `near` steps from a kept state can be
    run back when none of them runs more than `repeats - 1` times, and `far` steps from the
    next state kept when they run `repeats` times.
    """

    slot_order: Any
    kept_steps: Any
    num_kept: Any
    step: Any
    distance: Any
    repeats: Any
    shorter_reach: Any
    reach: Any


def start_backward(places: Any) -> tuple[Any, RevolveSchedule]:
    """The slot of the last of the states that are kept at `places`, and the walk from there."""
    last = np.iinfo(STEP_DTYPE).max
    known = ops.select(ops.lt(places, 0), last, places)
    places, order = ops.sort([known, ops.iota(STEP_DTYPE, places.shape[0])])
    held = ops.reduce_sum(ops.convert_element_type(ops.lt(places, last), STEP_DTYPE))
    return _at_last_checkpoint(order, places, held)


def restart_from_checkpoint(walk: RevolveSchedule, todo: Any) -> tuple[Any, Any, RevolveSchedule]:
    """The walk to step `todo - 1` from the last state kept when step `todo` has been run back.

    With the slot of that state, and before it one that is vacant.
    """
    pulled = ops.ge(element_at(walk.kept_steps, ops.sub(walk.num_kept, 1)), todo)
    held = ops.sub(walk.num_kept, ops.convert_element_type(pulled, STEP_DTYPE))
    return element_at(walk.slot_order, held), *_at_last_checkpoint(
        walk.slot_order, walk.kept_steps, held
    )


def advance_state(walk: RevolveSchedule, todo: Any) -> tuple[Any, RevolveSchedule]:
    """The slot for the state one step further, and the walk on from there.

    It stays in that slot if it is one to keep on the way to step `todo - 1`.
    """
    order, places, held, at = walk.slot_order, walk.kept_steps, walk.num_kept, ops.add(walk.step, 1)
    free, gone, repeats = ops.sub(order.shape[0] - 1, held), ops.add(walk.distance, 1), walk.repeats
    # near = C(free + repeats, repeats - 1), far = C(free + repeats, repeats).
    longer = ops.gt(_as_binomial(gone), walk.shorter_reach)
    upper, lower = _as_binomial(ops.add(ops.add(free, repeats), 1)), _as_binomial(repeats)
    near = ops.select(
        longer, ops.div(ops.mul(walk.shorter_reach, upper), lower), walk.shorter_reach
    )
    far = ops.select(longer, ops.div(ops.mul(walk.reach, upper), ops.add(lower, 1.0)), walk.reach)
    repeats = ops.add(repeats, ops.convert_element_type(longer, STEP_DTYPE))
    left = ops.sub(todo, at)
    keep = ops.bitwise_and(
        ops.bitwise_and(ops.gt(free, 0), ops.gt(left, 1)), ops.le(_as_binomial(left), far)
    )
    now = ops.add(held, ops.convert_element_type(keep, STEP_DTYPE))
    places = ops.DynamicUpdateSlice()(places, ops.reshape(at, (1,)), held)
    return element_at(order, held), RevolveSchedule(
        order,
        places,
        now,
        at,
        ops.select(keep, 0, gone),
        ops.select(keep, 1, repeats),
        ops.select(keep, 1.0, near),
        ops.select(keep, _as_binomial(free), far),
    )


def element_at(x: Any, i: Any) -> Any:
    """`x[i]`, for the nearest `i` that is in range."""
    return ops.reshape(ops.DynamicSlice((1,))(x, i), ())


def first_true(flags: Any) -> Any:
    """The position of the first flag that is set, their number if none is."""
    (size,) = flags.shape
    return ops.reduce_min(ops.select(flags, ops.iota(STEP_DTYPE, size), size))


def _at_last_checkpoint(order: Any, places: Any, held: Any) -> tuple[Any, RevolveSchedule]:
    last = ops.sub(held, 1)
    zero, one = literal(0, STEP_DTYPE), literal(1, STEP_DTYPE)
    # C(free + 1, 0) = 1 and C(free + 1, 1) = free + 1.
    far = _as_binomial(ops.sub(order.shape[0], held))
    at = element_at(places, last)
    return element_at(order, last), RevolveSchedule(
        order, places, held, at, zero, one, literal(1.0, BINOMIAL_DTYPE), far
    )


def _as_binomial(x: Any) -> Any:
    # In floats, since the binomials are only compared and would overflow an int32.
    return ops.convert_element_type(x, BINOMIAL_DTYPE)
