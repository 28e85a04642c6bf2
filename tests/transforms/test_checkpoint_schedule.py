"""The slots of a loop of unknown length: the states they hold, and the cost to reverse it."""

from math import comb

import numpy as np
import pytest

import functx
from functx.transforms.control import checkpoint_schedule


class Runs:
    """A loop run forwards and then back, with the numbers of the steps as states."""

    def __init__(self, steps, checkpoints):
        slots = checkpoints + 1
        self.held = {}
        self.times = np.zeros(steps, int)
        schedule = checkpoint_schedule.OnlineSchedule(*empty_schedule(slots))
        for step in range(steps):
            slot, schedule = assign_slot(schedule, np.int32(step))
            self.hold(slot, step, slots)
            self.times[step] += 1
        self.kept_steps = np.asarray(schedule.kept_steps)
        if not steps:
            return
        slot, schedule = start_backward(schedule.kept_steps)
        self.arrive(slot, schedule)
        for todo in range(steps, 0, -1):
            while int(schedule.step) != todo - 1:
                self.times[int(schedule.step)] += 1
                slot, schedule = advance_state(schedule, np.int32(todo))
                self.hold(slot, int(schedule.step), slots)
            vacant, slot, schedule = restart(schedule, np.int32(todo - 1))
            self.hold(vacant, None, slots)
            if todo > 1:
                self.arrive(slot, schedule)

    def hold(self, slot, step, slots):
        assert 0 <= int(slot) < slots
        self.held[int(slot)] = step

    def arrive(self, slot, schedule):
        assert self.held[int(slot)] == int(schedule.step)


empty_schedule = functx.jit(checkpoint_schedule.empty_schedule, static_argnums=0)
assign_slot = functx.jit(
    lambda schedule, step: checkpoint_schedule.assign_slot(
        checkpoint_schedule.OnlineSchedule(*schedule), step
    )
)
start_backward = functx.jit(checkpoint_schedule.start_backward)
restart = functx.jit(
    lambda schedule, todo: checkpoint_schedule.restart_from_checkpoint(
        checkpoint_schedule.RevolveSchedule(*schedule), todo
    )
)
advance_state = functx.jit(
    lambda schedule, todo: checkpoint_schedule.advance_state(
        checkpoint_schedule.RevolveSchedule(*schedule), todo
    )
)


def fewest(steps, checkpoints):
    """How often steps run at the least, back included, when their number is known beforehand.

    This is Griewank's (1992) r n - C(s + r, r - 1), with the last step, which need not run.
    """
    times = most(steps, checkpoints)
    return times * steps - comb(checkpoints + times, times - 1) + 1 if times else steps


def most(steps, checkpoints):
    """How often a step runs at the most: the least r for which C(s + r, r) steps are enough."""
    return next(r for r in range(steps + 1) if comb(checkpoints + r, r) >= steps)


@pytest.mark.parametrize(
    ("steps", "checkpoints"),
    [(0, 3), (1, 1), (1, 4), (2, 1), (9, 1), (6, 2), (15, 4), (16, 5), (66, 10), (40, 64)],
)
def test_no_schedule_is_better_for_up_to_two_runs_of_a_step(steps, checkpoints):
    assert checkpoints == 1 or most(steps, checkpoints) <= 2
    assert Runs(steps, checkpoints).times.sum() == fewest(steps, checkpoints)


@pytest.mark.parametrize(("steps", "checkpoints"), [(36, 2), (50, 3), (30, 4), (40, 5), (100, 10)])
def test_no_step_runs_more_often_than_the_best_schedule_has_to(steps, checkpoints):
    runs = Runs(steps, checkpoints)
    assert runs.times.max() <= most(steps, checkpoints)
    assert runs.times.sum() <= 1.3 * fewest(steps, checkpoints)
