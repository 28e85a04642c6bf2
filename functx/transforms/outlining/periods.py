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


class Repeat(NamedTuple):
    """What stands from `start` on for `length` tokens, and did so `distance` tokens before.

    With a length of at least the distance, it goes on with that period from the first of both.
    """

    start: int
    length: int
    distance: int

    def free(self, taken: Any) -> list[Repeat]:
        """The parts of it, repeats themselves, that lie where nothing is `taken`."""
        start, length, distance = self
        first = start - distance
        if length < distance:
            clear = not taken[first : first + length].any() and not taken[start:][:length].any()
            return [self] if clear else []
        used = np.flatnonzero(taken[first : start + length])
        edges = [-1, *used.tolist(), distance + length]
        return [
            Repeat(first + a + 1 + distance, b - a - 1 - distance, distance)
            for a, b in pairwise(edges)
            if b - a - 1 >= 2 * distance
        ]


def repeats(tokens: Sequence[int], weights: Any, least: int) -> list[Repeat]:
    """The repeats among `tokens` that save at least `least` of their `weights`, most first."""
    total = np.concatenate([[0], np.cumsum(weights)])
    found: dict[Repeat, int] = {}
    for width, distance in distances(tokens):
        starts = np.concatenate([[0], np.flatnonzero(np.diff(distance)) + 1])
        stops = np.append(starts[1:], len(distance))
        apart = distance[starts]
        lengths = stops - starts + width - 1
        saved = total[starts + lengths] - total[starts]
        for at in np.flatnonzero((apart > 0) & (saved >= least)):
            repeat = Repeat(int(starts[at]), int(lengths[at]), int(apart[at]))
            if repeat.length < repeat.distance or width >= min(repeat.distance, 4):
                found[repeat] = int(saved[at])
    return sorted(found, key=lambda repeat: (-found[repeat], repeat))


def distances(tokens: Sequence[int]) -> Iterator[tuple[int, Any]]:
    """For widths of 1, 2, 4, ...: how far before each window of tokens its equal is, or 0."""
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
        yield width, distance
        if len(numbers) <= width:
            return
        pairs = numbers[:-width] * (len(numbers) + 1) + numbers[width:]
        numbers = np.unique(pairs, return_inverse=True)[1].astype(np.int64)
        width *= 2
