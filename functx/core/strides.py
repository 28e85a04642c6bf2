"""Strides of arrays, and the memory order that NumPy gives to results."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from functools import lru_cache
from itertools import pairwise

import numpy as np

from functx.core.typing import NumPyArray

Strides = tuple[int, ...]
"""The distance in elements between neighbours along each dimension."""


def row_major_strides(shape: Sequence[int]) -> Strides:
    """The strides of an array of `shape` in row-major order."""
    return _row_major_strides(tuple(shape))


@lru_cache(4096)
def _row_major_strides(shape: tuple[int, ...]) -> Strides:
    strides, step = [], 1
    for n in reversed(shape):
        strides.append(step)
        step *= max(n, 1)
    return tuple(reversed(strides))


def is_row_major(shape: Sequence[int], strides: Strides) -> bool:
    """Whether the elements of an array are contiguous in row-major order."""
    if 0 in shape:
        return True
    steps = zip(shape, strides, row_major_strides(shape), strict=True)
    return all(n == 1 or step == row_major for n, step, row_major in steps)


def differ_by_unit_dims(shape: Sequence[int], new: Sequence[int]) -> bool:
    """Whether two shapes differ only by dimensions of length 1; such a reshape is always a view."""
    return [n for n in shape if n != 1] == [n for n in new if n != 1]


def reshape_strides(shape: Sequence[int], strides: Strides, new: Sequence[int]) -> Strides | None:
    """The strides of an array of `shape` and `strides` reshaped to `new`; None if it must be copied.

    Dimensions of length 1 are ignored. All others are matched in groups of the same size; the old
    dimensions of a group must be contiguous with each other.
    """
    if 0 in shape:
        return row_major_strides(new)
    old = [(n, step) for n, step in zip(shape, strides, strict=True) if n != 1]
    new_strides: list[int] = []
    i = j = 0
    while i < len(old):
        rows, columns, before, after = i + 1, j + 1, old[i][0], new[j]
        while before != after:
            if before < after:
                before, rows = before * old[rows][0], rows + 1
            else:
                after, columns = after * new[columns], columns + 1
        group = old[i:rows]
        if any(s != n * t for (_, s), (n, t) in pairwise(group)):
            return None
        new_strides += [group[-1][1] * n for n in row_major_strides(new[j:columns])]
        i, j = rows, columns
    return (*new_strides, *[1] * (len(new) - len(new_strides)))


class MemoryOrder(Enum):
    """The order of the axes of results in memory, from the longest stride to the shortest, in NumPy.

    Results of a view have the strides that `view_strides` states, others memory of their own.
    """

    ROW_MAJOR = "row-major"
    """Results have memory in row-major order; those of a view are in it if the operand is."""
    OPERANDS = "operands"
    """Results have memory in the order of the operands, row-major if these are."""
    COPIED = "copied"
    """As OPERANDS, and axes along which an operand has stride 0 keep their place among the others."""
    REARRANGED = "rearranged"
    """Results may be out of row-major order though all operands are in it."""
    REPEATED = "repeated"
    """Results are views with strides of 0."""
    BY_LAYOUT = "by layout"
    """Results are views for some layouts of the operand, and copies in row-major order for others."""


def strides_in_order(
    shape: tuple[int, ...], operands: Sequence[Sequence[int | None]], copied: bool = False
) -> Strides:
    """The strides of an array that NumPy allocates in the memory order of `operands`.

    `operands` has the strides of each operand along the dimensions of the array, None where it decides
    nothing. An axis goes outside of another if it has the longer stride in all operands that have both;
    those of stride 0 decide nothing unless `copied`, which also places undecided axes from first to last.
    """
    if 0 in shape:
        return row_major_strides(shape)
    along = [[step and abs(step) for step in each] for each in operands]
    if not copied:
        along = [[step or None for step in each] for each in along]

    def goes_outside(d: int, other: int) -> bool | None:
        steps = [(s[d], s[other]) for s in along if None not in (s[d], s[other])]
        return all([a > b for a, b in steps]) if steps else None  # type: ignore[operator]

    # From the outermost axis to the innermost if `copied`, else the other way.
    axes: list[int] = []
    dims = [d for d, n in enumerate(shape) if n != 1]
    for d in dims if copied else reversed(dims):
        place = len(axes)
        for i in reversed(range(len(axes))):
            swaps = goes_outside(d, axes[i]) if copied else goes_outside(axes[i], d)
            if swaps:
                place = i
            elif swaps is not None:
                break
        axes.insert(place, d)
    outwards = axes[::-1] if copied else axes
    if outwards == dims[::-1]:
        return row_major_strides(shape)
    strides, step = [1] * len(shape), 1
    for d in outwards:
        strides[d], step = step, step * shape[d]
    return tuple(strides)


def in_memory_order(x: NumPyArray, strides: Strides | None) -> NumPyArray:
    """A NumPy array in row-major order as one of the same class with `strides`, in elements.

    It is the array itself if they are row-major, or None.
    """
    if strides is None or is_row_major(x.shape, strides):
        return x
    axes = sorted(range(x.ndim), key=lambda d: -abs(strides[d]))
    return np.ndarray.copy(x.transpose(axes)).transpose(np.argsort(axes))
