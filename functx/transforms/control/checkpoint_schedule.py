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

from functx.ops.arithmetic import add, div, mul, sub
from functx.ops.conversion import convert_element_type
from functx.ops.logic import bitwise_and, eq, ge, gt, le, lt, select
from functx.ops.operands import literal
from functx.ops.reductions import reduce_min, reduce_sum
from functx.ops.shapes import full, iota, reshape
from functx.ops.slicing import DynamicSlice, DynamicUpdateSlice
from functx.ops.sorting import sort

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
        full((slots,), literal(NO_STEP, STEP_DTYPE)),
        full((slots,), literal(VACANT_LEVEL, STEP_DTYPE)),
        literal(0, STEP_DTYPE),
        literal(VACANT_LEVEL, STEP_DTYPE),
    )


def assign_slot(filling: OnlineSchedule, step: Any) -> tuple[Any, OnlineSchedule]:
    """The slot for the state before `step`, the one after the last that was given a slot."""
    places, levels, newest, top = filling
    lowest = reduce_min(levels)
    vacant = eq(lowest, VACANT_LEVEL)
    slot = select(vacant, first_true(eq(levels, lowest)), newest)
    level = select(vacant, 1, add(top, 1))
    level = select(eq(step, 0), FIRST_STATE_LEVEL, level)
    here = eq(iota(STEP_DTYPE, places.shape[0]), slot)
    given_up = le(levels, select(vacant, VACANT_LEVEL, top))
    levels = select(here, level, select(given_up, VACANT_LEVEL, levels))
    return slot, OnlineSchedule(select(here, step, places), levels, slot, level)


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
    known = select(lt(places, 0), last, places)
    places, order = sort([known, iota(STEP_DTYPE, places.shape[0])])
    held = reduce_sum(convert_element_type(lt(places, last), STEP_DTYPE))
    return _at_last_checkpoint(order, places, held)


def restart_from_checkpoint(walk: RevolveSchedule, todo: Any) -> tuple[Any, Any, RevolveSchedule]:
    """The walk to step `todo - 1` from the last state kept when step `todo` has been run back.

    With the slot of that state, and before it one that is vacant.
    """
    pulled = ge(element_at(walk.kept_steps, sub(walk.num_kept, 1)), todo)
    held = sub(walk.num_kept, convert_element_type(pulled, STEP_DTYPE))
    return element_at(walk.slot_order, held), *_at_last_checkpoint(
        walk.slot_order, walk.kept_steps, held
    )


def advance_state(walk: RevolveSchedule, todo: Any) -> tuple[Any, RevolveSchedule]:
    """The slot for the state one step further, and the walk on from there.

    It stays in that slot if it is one to keep on the way to step `todo - 1`.
    """
    order, places, held, at = walk.slot_order, walk.kept_steps, walk.num_kept, add(walk.step, 1)
    free, gone, repeats = sub(order.shape[0] - 1, held), add(walk.distance, 1), walk.repeats
    # near = C(free + repeats, repeats - 1), far = C(free + repeats, repeats).
    longer = gt(_as_binomial(gone), walk.shorter_reach)
    upper, lower = _as_binomial(add(add(free, repeats), 1)), _as_binomial(repeats)
    near = select(longer, div(mul(walk.shorter_reach, upper), lower), walk.shorter_reach)
    far = select(longer, div(mul(walk.reach, upper), add(lower, 1.0)), walk.reach)
    repeats = add(repeats, convert_element_type(longer, STEP_DTYPE))
    left = sub(todo, at)
    keep = bitwise_and(bitwise_and(gt(free, 0), gt(left, 1)), le(_as_binomial(left), far))
    now = add(held, convert_element_type(keep, STEP_DTYPE))
    places = DynamicUpdateSlice()(places, reshape(at, (1,)), held)
    return element_at(order, held), RevolveSchedule(
        order,
        places,
        now,
        at,
        select(keep, 0, gone),
        select(keep, 1, repeats),
        select(keep, 1.0, near),
        select(keep, _as_binomial(free), far),
    )


def element_at(x: Any, i: Any) -> Any:
    """`x[i]`, for the nearest `i` that is in range."""
    return reshape(DynamicSlice((1,))(x, i), ())


def first_true(flags: Any) -> Any:
    """The position of the first flag that is set, their number if none is."""
    (size,) = flags.shape
    return reduce_min(select(flags, iota(STEP_DTYPE, size), size))


def _at_last_checkpoint(order: Any, places: Any, held: Any) -> tuple[Any, RevolveSchedule]:
    last = sub(held, 1)
    zero, one = literal(0, STEP_DTYPE), literal(1, STEP_DTYPE)
    # C(free + 1, 0) = 1 and C(free + 1, 1) = free + 1.
    far = _as_binomial(sub(order.shape[0], held))
    at = element_at(places, last)
    return element_at(order, last), RevolveSchedule(
        order, places, held, at, zero, one, literal(1.0, BINOMIAL_DTYPE), far
    )


def _as_binomial(x: Any) -> Any:
    # In floats, since the binomials are only compared and would overflow an int32.
    return convert_element_type(x, BINOMIAL_DTYPE)
