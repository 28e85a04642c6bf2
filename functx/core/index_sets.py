"""Index sets: which elements of the inputs each element of a variable depends on, as numbers in arrays.

Equal sets have one number, so an operation that only moves elements moves the numbers, and two arrays
of sets are equal if their numbers are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import NamedTuple

import numpy as np

from functx.core.types import ShapedArray
from functx.core.typing import NumPyArray

Sets = NumPyArray | None
"""An array with the number of a set for each element; None if all sets are empty."""


LARGE_SET = 64
"""The members, on average, of sets that may be replaced by a larger one where they are too many."""


class DependentOperand(NamedTuple):
    """An operand of an equation: its type, the sets of its elements, and its value where that is known.

    `value()` is the array, or None. Only integers and booleans that follow from the program alone are
    known.
    """

    aval: ShapedArray
    sets: Sets = None
    value: Callable[[], NumPyArray | None] = lambda: None

    def row(self, i: int) -> DependentOperand:
        """Row `i` of an array."""
        whole, sets = self.value, None if self.sets is None else self.sets[i]

        def value() -> NumPyArray | None:
            x = whole()
            return None if x is None else x[i]

        return DependentOperand(self.aval.update(shape=self.aval.shape[1:]), sets, value)


def stack_rows(rows: Sequence[DependentOperand]) -> DependentOperand:
    """The array of `rows`, of which there is at least one; its value is not known."""
    aval = rows[0].aval
    stacked = aval.update(shape=(len(rows), *aval.shape))
    if all([x.sets is None for x in rows]):
        return DependentOperand(stacked)
    empty = np.zeros(aval.shape, np.int32)
    return DependentOperand(stacked, np.stack([empty if x.sets is None else x.sets for x in rows]))


class IndexSets:
    """The sets of indices below `size` that arrays refer to by number.

    Number 0 is the empty set, and number i + 1 the set of i alone. Sets are told apart by sums of 64
    random bits for each member. All unions together read at most `work` members; beyond that, and where
    one union of large sets would read more than `limit`, one set takes the place of several: their union.
    """

    def __init__(self, size: int, limit: int = 2**22, work: int = 2**26):
        self.size, self.limit, self.work = size, limit, work
        self.starts = np.maximum(np.arange(-1, size + 1), 0)
        self.members: NumPyArray = np.arange(size, dtype=np.int32)
        self.numbers: dict[int, int] = dict(
            zip(_random_bits(self.members).tolist(), range(1, size + 1), strict=True)
        )
        self.pending: list[NumPyArray] = []

    def union(self, *operands: Sets) -> Sets:
        """The elementwise unions of arrays of sets, which broadcast."""
        arrays = [x for x in operands if x is not None]
        if len(arrays) < 2:
            return arrays[0] if arrays else None
        arrays = list(np.broadcast_arrays(*arrays))
        if all(np.array_equal(arrays[0], x) for x in arrays[1:]):
            return arrays[0]
        rows = np.stack([x.ravel() for x in arrays], axis=1)
        return self.union_rows(rows).reshape(arrays[0].shape)

    def union_along(self, x: Sets, axes: Sequence[int], keepdims: bool = False) -> Sets:
        """The unions of the sets along `axes`, which leave the shape unless `keepdims`."""
        if x is None or not axes:
            return x
        axes = [axis % x.ndim for axis in axes]
        kept = [axis for axis in range(x.ndim) if axis not in axes]
        rows = np.transpose(x, [*kept, *axes]).reshape(
            prod([x.shape[axis] for axis in kept]), prod([x.shape[axis] for axis in axes])
        )
        shape = [1 if axis in axes else n for axis, n in enumerate(x.shape)]
        if not keepdims:
            shape = [x.shape[axis] for axis in kept]
        return self.union_rows(rows).reshape(shape)

    def spread(self, x: Sets, axes: Sequence[int]) -> Sets:
        """The sets of an array of the same shape whose elements depend on all of `x` along `axes`."""
        if x is None or not axes:
            return x
        return np.broadcast_to(self.union_along(x, axes, keepdims=True), x.shape)  # type: ignore[arg-type]

    def union_before(self, x: Sets, axis: int, reverse: bool = False) -> Sets:
        """The union of each set and all before it along `axis`; if `reverse`, all after it."""
        if x is None:
            return None
        x = np.moveaxis(np.flip(x, axis) if reverse else x, axis, 0)
        step = 1
        while step < len(x):
            x = np.concatenate([x[:step], self.union(x[step:], x[:-step])])  # type: ignore[list-item]
            step *= 2
        x = np.moveaxis(x, 0, axis)
        return np.flip(x, axis) if reverse else x

    def union_of_all(self, operands: Sequence[DependentOperand], shape: Sequence[int] = ()) -> Sets:
        """An array of `shape` whose elements depend on all elements of all operands."""
        used = [np.unique(x.sets) for x in operands if x.sets is not None]
        if not used:
            return None
        return np.full(shape, self.union_rows(np.concatenate(used)[None, :])[0])

    def union_at(self, x: Sets, positions: NumPyArray, added: Sets) -> Sets:
        """The sets of `x`, of which that at `positions[i]`, in row-major order, is united with `added[i]`.

        Positions below 0 are ignored.
        """
        if added is None:
            return x
        assert x is not None
        inside = positions.ravel() >= 0
        where, sets = positions.ravel()[inside], added.ravel()[inside]
        order = np.argsort(where, kind="stable")
        where, sets = where[order], sets[order]
        while (where[1:] == where[:-1]).any():
            # Neighbours with one position are united in pairs.
            is_first = (np.arange(len(where)) - np.searchsorted(where, where)) % 2 == 0
            partners = np.where(np.append(where[1:], -1) == where, np.append(sets[1:], 0), 0)
            sets = np.asarray(self.union(sets[is_first], partners[is_first]))
            where = where[is_first]
        out = x.flatten()
        out[where] = self.union(out[where], sets)
        return out.reshape(x.shape)

    def union_rows(self, rows: NumPyArray) -> NumPyArray:
        """The union of the sets in each row of a matrix."""
        if rows.shape[1] == 0:
            return np.zeros(len(rows), np.int32)
        rows = np.sort(rows, axis=1)
        rows[:, 1:][rows[:, 1:] == rows[:, :-1]] = 0
        out = rows.max(axis=1)
        several = np.flatnonzero((rows != 0).sum(axis=1) > 1)
        if several.size:
            distinct = rows[several]
            keys = np.where(distinct == 0, np.uint64(0), _random_bits(distinct)).sum(axis=1)
            _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
            out[several] = self._merge(distinct[first])[inverse]
        return out

    def _merge(self, rows: NumPyArray) -> NumPyArray:
        """`union_rows` for rows of distinct sets, at least two in each, where 0 stands for none."""
        owners, columns = np.nonzero(rows)
        sets = rows[owners, columns]
        total = int(self.lengths(sets).sum())
        if total > min(self.limit, self.work) and total > LARGE_SET * len(rows):
            everything = np.unique(self.members_of(np.unique(sets)))
            whole = self._intern(everything, np.array([0, len(everything)]))
            return np.broadcast_to(whole, len(rows))
        self.work = max(self.work - total, 0)
        keys = np.repeat(owners, self.lengths(sets)) * self.size + self.members_of(sets)
        # `np.unique` of NumPy 2.3 takes three times as long.
        keys.sort()
        is_first = np.append(True, keys[1:] != keys[:-1])
        owners, members = np.divmod(keys[is_first], self.size)
        return self._intern(members, np.searchsorted(owners, np.arange(len(rows) + 1)))

    def lengths(self, sets: NumPyArray) -> NumPyArray:
        """The number of members of each set."""
        lengths: NumPyArray = self.starts[sets + 1] - self.starts[sets]
        return lengths

    def members_of(self, sets: NumPyArray) -> NumPyArray:
        """The members of a vector of sets, one set after the other, each in increasing order."""
        if self.pending:
            self.members = np.concatenate([self.members, *self.pending])
            self.pending.clear()
        lengths = self.lengths(sets)
        offsets = self.starts[sets] - (np.cumsum(lengths) - lengths)
        found: NumPyArray = self.members[np.repeat(offsets, lengths) + np.arange(lengths.sum())]
        return found

    def _intern(self, members: NumPyArray, bounds: NumPyArray) -> NumPyArray:
        """The numbers of the sets `members[bounds[i] : bounds[i + 1]]`, none of which is empty."""
        known, new = self.numbers, []
        count = len(self.starts) - 1
        numbers = []
        for i, key in enumerate(np.add.reduceat(_random_bits(members), bounds[:-1]).tolist()):
            number = known.setdefault(key, count)
            if number == count:
                new.append(i)
                count += 1
            numbers.append(number)
        if new:
            lengths = np.diff(bounds)
            is_new = np.zeros(len(lengths), bool)
            is_new[new] = True
            self.pending.append(members[np.repeat(is_new, lengths)].astype(np.int32))
            self.starts = np.append(self.starts, self.starts[-1] + np.cumsum(lengths[new]))
        return np.array(numbers, np.int32)


def _random_bits(x: NumPyArray) -> NumPyArray:
    """64 bits for each integer (the finalizer of SplitMix64: Steele, Lea and Flood 2014)."""
    z = (x.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
