"""Keys of the splits of nodes: equal for operations of equal structure, and apart from sizes."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

from functx.autograd.compiled.traced_rules import Size
from functx.autograd.nodes import OperationSplit
from functx.core.caches import clear_on_rule_change
from functx.core.primitive import Primitive
from functx.core.program import Program, Var
from functx.core.types import ShapedArray


class SplitKey:
    """The interned key of a split: splits with equal programs have the same object."""

    __slots__ = ("_separated", "has_captures", "name", "program")

    def __init__(self, split: OperationSplit):
        self.name = split.name
        self.program = split.program
        self.has_captures = any([pullback.captured for pullback in split.pullbacks or ()])
        self._separated: tuple[Hashable, tuple[int, ...]] | None = None

    @property
    def sizeless(self) -> Hashable:
        """The operation without its sizes."""
        return self._separate()[0]

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes in the operation, in order."""
        return self._separate()[1]

    def _separate(self) -> tuple[Hashable, tuple[int, ...]]:
        if self._separated is None:
            sizes: list[int] = []
            sizeless = (self.name, separate_sizes(self.program, sizes))
            self._separated = sizeless, tuple(sizes)
        return self._separated


_interned: dict[Hashable, SplitKey] = {}
_MOST_KEYS = 8192
clear_on_rule_change(_interned.clear)


def split_key(split: OperationSplit) -> SplitKey:
    """The key of a split whose rules do not raise."""
    key: SplitKey | None = split.memo.get(SplitKey)
    if key is None:
        assert split.pullbacks is not None
        content = (
            split.name,
            split.program,
            split.values.structure,
            *[pullback.structure for pullback in split.pullbacks],
            split.active,
            split.saved_outputs,
            split.zeros,
        )
        if len(_interned) >= _MOST_KEYS:
            _interned.clear()
        key = split.memo[SplitKey] = _interned.setdefault(content, SplitKey(split))
    return key


class Structure:
    """The key of a walk with its sizes apart.

    `sizeless` has a part for the roots, then one for each node; `sizes` are all sizes, in order, of
    which those of part i begin at `key_offsets[i]`. `length` is the number of entries of the key.
    """

    def __init__(
        self, parts: list[Hashable], sizes: list[int], key_offsets: list[int], length: int
    ):
        self.sizeless, self.sizes = tuple(parts), tuple(sizes)
        self.key_offsets, self.length = key_offsets, length

    def first_difference(self, others: Sequence[Structure]) -> int:
        """The position of the first node that ends a prefix of no other structure; -1 for the roots."""
        common = 0
        for other in others:
            pairs = zip(self.sizeless, other.sizeless, strict=False)
            count = next((i for i, (a, b) in enumerate(pairs) if a != b), len(other.sizeless))
            common = max(common, count)
        return min(common, len(self.sizeless) - 1) - 1

    def changes_from(self, other: Structure) -> list[SizeChange]:
        """Each size that differs from that of another walk that is equal without sizes."""
        changes = []
        for i, (old, new) in enumerate(zip(other.sizes, self.sizes, strict=True)):
            if old != new:
                part = bisect_right(self.key_offsets, i) - 1
                changes.append(SizeChange(part - 1, i - self.key_offsets[part], old, new))
        return changes


class SizeChange(NamedTuple):
    """Size number `number` of the node at `position`, which was `old` and is `new`."""

    position: int
    number: int
    old: int
    new: int


def structure_of(
    key: tuple[Sequence[Hashable], Sequence[int]],
    key_offsets: Sequence[int],
    value_offsets: Sequence[int],
) -> Structure:
    """The structure of a walk, from its key, whose parts for node i begin at `key_offsets[i]` and `value_offsets[i]`."""
    entries, canonical = key
    parts: list[Hashable] = []
    sizes: list[int] = []
    starts: list[int] = []
    ranges = zip(
        [0, *key_offsets],
        [*key_offsets, len(entries)],
        [0, *value_offsets],
        [*value_offsets, len(canonical)],
        strict=True,
    )
    for first, last, first_value, last_value in ranges:
        starts.append(len(sizes))
        part = [without_sizes(x, sizes) for x in entries[first:last]]
        parts.append((*part, tuple(canonical[first_value:last_value])))
    return Structure(parts, sizes, starts, len(entries))


def without_sizes(x: object, sizes: list[int]) -> Hashable:
    """An entry of the key of a walk without sizes, which are added to `sizes`."""
    if type(x) is SplitKey:
        sizes += x.sizes
        return x.sizeless
    if type(x) is ShapedArray:
        return type_without_sizes(x, sizes)
    if type(x) is Size:
        sizes.append(x.value)
        return Size
    if type(x) is tuple:
        return tuple([without_sizes(part, sizes) for part in x])
    return x  # type: ignore[no-any-return]


def separate_sizes(program: Program, sizes: list[int]) -> Hashable:
    """A program without sizes, which are added to `sizes`."""
    number = {v: i for i, v in enumerate(program.inputs)}
    parts: list[Hashable] = [type_without_sizes(v.aval, sizes) for v in program.inputs]
    for eqn in program.equations:
        parts.append(type(eqn.primitive))
        for field in eqn.primitive.fields:
            parts.append(_field_without_sizes(eqn.primitive, field, sizes))
        for atom in eqn.inputs:
            parts.append(number[atom] if type(atom) is Var else _literal_without_value(atom))
        for v in eqn.outputs:
            number[v] = len(number)
            parts.append(type_without_sizes(v.aval, sizes))
    parts.append(
        tuple([number[a] if type(a) is Var else _literal_without_value(a) for a in program.outputs])
    )
    return tuple(parts)


def type_without_sizes(aval: ShapedArray, sizes: list[int]) -> Hashable:
    """A type with the number of dimensions in place of the shape, which is added to `sizes`."""
    sizes += aval.shape
    return aval.dtype, aval.weak_type, len(aval.shape)


def _literal_without_value(atom: Any) -> Hashable:
    # A number may be computed from a size, as 1/n in a mean.
    return atom.aval  # type: ignore[no-any-return]


def _field_without_sizes(primitive: Primitive, field: str, sizes: list[int]) -> Hashable:
    value = getattr(primitive, field)
    if field in primitive.size_fields:
        return numbers_without_values(value, sizes)
    return _without_programs(value, sizes)


def _without_programs(value: object, sizes: list[int]) -> Hashable:
    if type(value) is Program:
        return separate_sizes(value, sizes)
    if type(value) is tuple:
        return tuple([_without_programs(part, sizes) for part in value])
    return value  # type: ignore[no-any-return]


def numbers_without_values(value: object, sizes: list[int]) -> Hashable:
    """A parameter with `int` in place of each int, which is added to `sizes`."""
    if type(value) is int:
        sizes.append(value)
        return int
    if type(value) is tuple:
        return tuple([numbers_without_values(part, sizes) for part in value])
    return value  # type: ignore[no-any-return]
