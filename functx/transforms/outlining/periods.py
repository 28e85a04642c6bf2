"""Repeats in a sequence of tokens, in time linear in its length but for a logarithm.

Windows of 1, 2, 4, ... tokens are numbered such that equal windows have equal numbers. Where the
distance from each window to the one before it that equals it stays the same, the sequence repeats
itself at that distance.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np


class PeriodicRepeat(NamedTuple):
    """`length` tokens from `start` on, each equal to the one `period` before it if that is among them."""

    start: int
    length: int
    period: int

    @property
    def size(self) -> int:
        """How many tokens a search through it has to look at."""
        return self.length

    def unclaimed(self, taken: Any) -> list[PeriodicRepeat]:
        """The parts of it, of two periods at least, that lie where nothing is `taken`."""
        start, length, period = self
        used = np.flatnonzero(taken[start : start + length])
        edges = [-1, *used.tolist(), length]
        return [
            PeriodicRepeat(start + a + 1, b - a - 1, period)
            for a, b in pairwise(edges)
            if b - a - 1 >= 2 * period
        ]


class ScatteredRepeat(NamedTuple):
    """`length` tokens that are the same from each of `starts` on, which lie at least so far apart."""

    starts: tuple[int, ...]
    length: int

    @property
    def size(self) -> int:
        """How many tokens a search through it has to look at."""
        return self.length * len(self.starts)

    def unclaimed(self, taken: Any) -> list[ScatteredRepeat]:
        """What is left of it where nothing is `taken`, if that is still a repeat."""
        length = self.length
        left = tuple([at for at in self.starts if not taken[at : at + length].any()])
        return [ScatteredRepeat(left, length)] if len(left) > 1 else []


Repeat = PeriodicRepeat | ScatteredRepeat


def find_repeats(tokens: Sequence[int], weights: Any, least: int) -> list[Repeat]:
    """The repeats among `tokens` that save at least `least` of their `weights`, in order of merit.

    Those with a period come first, since they may become loops; then what saves most.
    """
    total = np.concatenate([[0], np.cumsum(weights)])
    found: dict[Repeat, int] = {}
    alike: dict[Any, set[int]] = {}
    for width, numbers, distance in doubling_windows(tokens):
        firsts = np.concatenate([[0], np.flatnonzero(np.diff(distance)) + 1])
        lengths = np.append(firsts[1:], len(distance)) - firsts + width - 1
        apart = distance[firsts]
        saved = total[firsts + lengths] - total[firsts]
        for at in np.flatnonzero((apart > 0) & (saved > 0)):
            first, length, period = int(firsts[at]), int(lengths[at]), int(apart[at])
            if length >= period:
                if saved[at] >= least:
                    found[PeriodicRepeat(first - period, length + period, period)] = int(saved[at])
            elif width <= length < 2 * width:
                ends = int(numbers[first]), int(numbers[first + length - width])
                alike.setdefault((*ends, length), set()).update((first - period, first))
    for (*_, length), places in alike.items():
        starts = non_overlapping(length, sorted(places))
        gain = int(total[starts[0] + length] - total[starts[0]]) * (len(starts) - 1)
        if gain >= least:
            found[ScatteredRepeat(starts, length)] = gain
    return sorted(found, key=lambda each: (type(each) is ScatteredRepeat, -found[each], each[-1]))


def non_overlapping(length: int, places: Sequence[int]) -> tuple[int, ...]:
    """Those of the ascending `places` that lie so far behind the one before."""
    kept = [places[0]]
    for place in places:
        if place >= kept[-1] + length:
            kept.append(place)
    return tuple(kept)


def doubling_windows(tokens: Sequence[int]) -> Iterator[tuple[int, Any, Any]]:
    """For widths of 1, 2, 4, ...: that, the numbers of the windows, how far before each its equal is.

    The distance is 0 for a window without an equal before it.
    """
    numbers = np.unique(np.asarray(tokens, np.int64), return_inverse=True)[1].astype(np.int64)
    width = 1
    while len(numbers) > 1:
        order = np.argsort(numbers, kind="stable")
        later, earlier = order[1:], order[:-1]
        same = numbers[later] == numbers[earlier]
        if not same.any():
            return
        distance = np.zeros(len(numbers), np.int64)
        distance[later[same]] = later[same] - earlier[same]
        yield width, numbers, distance
        if len(numbers) <= width:
            return
        pairs = numbers[:-width] * (len(numbers) + 1) + numbers[width:]
        numbers = np.unique(pairs, return_inverse=True)[1].astype(np.int64)
        width *= 2
