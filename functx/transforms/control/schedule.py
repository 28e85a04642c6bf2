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
from functx.ops.comparison import eq, ge, gt, le, lt
from functx.ops.conversion import convert_element_type
from functx.ops.creation import iota
from functx.ops.logical import bitwise_and
from functx.ops.operands import literal
from functx.ops.reductions import reduce_min, reduce_sum
from functx.ops.selection import select
from functx.ops.shaping import full, reshape
from functx.ops.slicing import DynamicSlice, DynamicUpdateSlice
from functx.ops.sorting import sort

INT, REAL = np.dtype("int32"), np.dtype("float32")
NOWHERE = -1
VACANT = 0
BEGINNING = 1 << 30


class Filling(NamedTuple):
    """The slots while the loop runs: the step whose state each holds, and its level.

    `newest` is the slot that was filled last, `top` its level.
    """

    places: Any
    levels: Any
    newest: Any
    top: Any


def empty(slots: int) -> Filling:
    """Vacant slots."""
    return Filling(
        full((slots,), literal(NOWHERE, INT)),
        full((slots,), literal(VACANT, INT)),
        literal(0, INT),
        literal(VACANT, INT),
    )


def filled(filling: Filling, step: Any) -> tuple[Any, Filling]:
    """The slot for the state before `step`, the one after the last that was given a slot."""
    places, levels, newest, top = filling
    lowest = reduce_min(levels)
    vacant = eq(lowest, VACANT)
    slot = select(vacant, first(eq(levels, lowest)), newest)
    level = select(vacant, 1, add(top, 1))
    level = select(eq(step, 0), BEGINNING, level)
    here = eq(iota(INT, places.shape[0]), slot)
    given_up = le(levels, select(vacant, VACANT, top))
    levels = select(here, level, select(given_up, VACANT, levels))
    return slot, Filling(select(here, step, places), levels, slot, level)


class Walk(NamedTuple):
    """The way back: the step `at` whose state is at hand, and where others are kept.

    The first `held` of `places` are the steps whose states are kept, in order; the slots of
    these, and then the vacant ones, are in `order`. The state at hand is `gone` steps from
    the last one that is kept. With the slots behind it, `near` steps from a kept state can be
    run back when none of them runs more than `repeats - 1` times, and `far` steps from the
    next state kept when they run `repeats` times.
    """

    order: Any
    places: Any
    held: Any
    at: Any
    gone: Any
    repeats: Any
    near: Any
    far: Any


def begun(places: Any) -> tuple[Any, Walk]:
    """The slot of the last of the states that are kept at `places`, and the walk from there."""
    last = np.iinfo(INT).max
    known = select(lt(places, 0), last, places)
    places, order = sort([known, iota(INT, places.shape[0])])
    held = reduce_sum(convert_element_type(lt(places, last), INT))
    return _from_last_kept(order, places, held)


def resumed(walk: Walk, todo: Any) -> tuple[Any, Any, Walk]:
    """The walk to step `todo - 1` from the last state kept when step `todo` has been run back.

    With the slot of that state, and before it one that is vacant.
    """
    pulled = ge(element(walk.places, sub(walk.held, 1)), todo)
    held = sub(walk.held, convert_element_type(pulled, INT))
    return element(walk.order, held), *_from_last_kept(walk.order, walk.places, held)


def walked(walk: Walk, todo: Any) -> tuple[Any, Walk]:
    """The slot for the state one step further, and the walk on from there.

    It stays in that slot if it is one to keep on the way to step `todo - 1`.
    """
    order, places, held, at = walk.order, walk.places, walk.held, add(walk.at, 1)
    free, gone, repeats = sub(order.shape[0] - 1, held), add(walk.gone, 1), walk.repeats
    # near = C(free + repeats, repeats - 1), far = C(free + repeats, repeats).
    longer = gt(_real(gone), walk.near)
    upper, lower = _real(add(add(free, repeats), 1)), _real(repeats)
    near = select(longer, div(mul(walk.near, upper), lower), walk.near)
    far = select(longer, div(mul(walk.far, upper), add(lower, 1.0)), walk.far)
    repeats = add(repeats, convert_element_type(longer, INT))
    left = sub(todo, at)
    keep = bitwise_and(bitwise_and(gt(free, 0), gt(left, 1)), le(_real(left), far))
    now = add(held, convert_element_type(keep, INT))
    places = DynamicUpdateSlice()(places, reshape(at, (1,)), held)
    return element(order, held), Walk(
        order,
        places,
        now,
        at,
        select(keep, 0, gone),
        select(keep, 1, repeats),
        select(keep, 1.0, near),
        select(keep, _real(free), far),
    )


def element(x: Any, i: Any) -> Any:
    """`x[i]`, for the nearest `i` that is in range."""
    return reshape(DynamicSlice((1,))(x, i), ())


def first(flags: Any) -> Any:
    """The position of the first flag that is set, their number if none is."""
    (size,) = flags.shape
    return reduce_min(select(flags, iota(INT, size), size))


def _from_last_kept(order: Any, places: Any, held: Any) -> tuple[Any, Walk]:
    last = sub(held, 1)
    zero, one = literal(0, INT), literal(1, INT)
    # C(free + 1, 0) = 1 and C(free + 1, 1) = free + 1.
    far = _real(sub(order.shape[0], held))
    at = element(places, last)
    return element(order, last), Walk(order, places, held, at, zero, one, literal(1.0, REAL), far)


def _real(x: Any) -> Any:
    # In floats, since the binomials are only compared and would overflow an int32.
    return convert_element_type(x, REAL)
