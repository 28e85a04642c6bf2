"""The slots of a loop of unknown length: which states they hold, and what running it back costs."""

from math import comb

import numpy as np
import pytest

import functx
from functx.transforms.control import schedule


class Runs:
    """A loop run forwards and then back, with the numbers of the steps as states."""

    def __init__(self, steps, checkpoints):
        slots = checkpoints + 1
        self.held = {}
        self.times = np.zeros(steps, int)
        filling = schedule.Filling(*start(slots))
        for step in range(steps):
            slot, filling = filled(filling, np.int32(step))
            self.hold(slot, step, slots)
            self.times[step] += 1
        self.places = np.asarray(filling.places)
        if not steps:
            return
        slot, walk = begun(filling.places)
        self.arrive(slot, walk)
        for todo in range(steps, 0, -1):
            while int(walk.at) != todo - 1:
                self.times[int(walk.at)] += 1
                slot, walk = walked(walk, np.int32(todo))
                self.hold(slot, int(walk.at), slots)
            vacant, slot, walk = resumed(walk, np.int32(todo - 1))
            self.hold(vacant, None, slots)
            if todo > 1:
                self.arrive(slot, walk)

    def hold(self, slot, step, slots):
        assert 0 <= int(slot) < slots
        self.held[int(slot)] = step

    def arrive(self, slot, walk):
        assert self.held[int(slot)] == int(walk.at)


start = functx.jit(schedule.empty, static_argnums=0)
filled = functx.jit(lambda filling, step: schedule.filled(schedule.Filling(*filling), step))
begun = functx.jit(schedule.begun)
resumed = functx.jit(lambda walk, todo: schedule.resumed(schedule.Walk(*walk), todo))
walked = functx.jit(lambda walk, todo: schedule.walked(schedule.Walk(*walk), todo))
