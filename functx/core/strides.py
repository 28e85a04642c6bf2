"""How arrays lie in memory, as NumPy sees it: which reshapes are views and which are copies."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

Strides = tuple[int, ...]
"""For each dimension, by how many elements its neighbours lie apart."""


def row_major_strides(shape: Sequence[int]) -> Strides:
    """The strides of an array of `shape` in row-major order."""
    strides, step = [], 1
    for n in reversed(shape):
        strides.append(step)
        step *= max(n, 1)
    return tuple(reversed(strides))


def is_row_major(shape: Sequence[int], strides: Strides) -> bool:
    """Whether the elements of an array lie side by side in row-major order."""
    if 0 in shape:
        return True
    steps = zip(shape, strides, row_major_strides(shape), strict=True)
    return all(n == 1 or step == wanted for n, step, wanted in steps)


def differ_by_unit_dims(shape: Sequence[int], new: Sequence[int]) -> bool:
    """Whether two shapes differ by dimensions of length 1 alone, which any strides allow for."""
    return [n for n in shape if n != 1] == [n for n in new if n != 1]


def reshape_strides(shape: Sequence[int], strides: Strides, new: Sequence[int]) -> Strides | None:
    """The strides of an array of `shape` and `strides` reshaped to `new`; None if it must be copied.

    Dimensions of length 1 do not matter. The others are matched in groups of one product; within
    a group of several old dimensions, each must lie in the next as in one run.
    """
    if 0 in shape:
        return row_major_strides(new)
    old = [(n, step) for n, step in zip(shape, strides, strict=True) if n != 1]
    found: list[int] = []
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
        found += [group[-1][1] * n for n in row_major_strides(new[j:columns])]
        i, j = rows, columns
    return (*found, *[1] * (len(new) - len(found)))
