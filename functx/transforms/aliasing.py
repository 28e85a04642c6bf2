"""Arguments that share memory: one array to a function that writes to either of them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import numpy as np

from functx import ops
from functx.core.errors import ArgumentError, type_name
from functx.core.functionalization import MemoryLocation, Strides, memory_location, storage_base
from functx.core.program import Var
from functx.core.tracing import Tracer
from functx.ops.operands import literal
from functx.ops.views import AsStrided

OffsetAndStrides = tuple[int, Strides]
"""Where an array begins in a block of memory, and its strides, in elements."""


class SharedBuffer(NamedTuple):
    """A block of `size` elements of memory, and the places in it of the arguments numbered."""

    size: int
    members: tuple[tuple[int, OffsetAndStrides], ...]

    def rebase_members(self, args: list[Any], last: Sequence[int]) -> list[Any]:
        """`args` with the members as views of one array.

        Where they overlap, it holds what the last of them holds: those numbered in `last`.
        """
        members = sorted(self.members, key=lambda member: member[0] in last)
        first = args[members[0][0]]
        whole = ops.full((self.size,), literal(0, first.dtype))
        views = {
            i: AsStrided(args[i].shape, (start,), tuple([(step,) for step in steps]))
            for i, (start, steps) in members
        }
        for i, view in views.items():
            whole = view.scatter_into_base(args[i], 0, whole)
        return [views[i](whole) if i in views else x for i, x in enumerate(args)]


def written_shared_buffers(
    args: Sequence[Any], written: Collection[int]
) -> tuple[SharedBuffer, ...]:
    """The blocks that several of `args` lie in, of which one is `written` to.

    Raises ArgumentError for arguments that overlap there in elements of several dtypes, and for
    traced ones where that is not known.
    """
    found = tuple([b for b in shared_buffers(args) if any(i in written for i, _ in b.members)])
    for i, _ in [member for block in found for member in block.members]:
        x = args[i]
        if type(x) is Tracer and memory_location(x.builder, x.atom).byte_offset is None:
            raise ArgumentError(
                "arguments that share memory and are written to must lie in it at places that are "
                f"known while tracing; got {x.atom.aval!r}, a part of an array from a traced place on",
                fix="Pass a copy of it.",
            )
    return found


def shared_buffers(args: Sequence[Any]) -> list[SharedBuffer]:
    """The blocks that several arrays among `args` lie in, each overlapping another."""
    arrays = {i: x for i, x in enumerate(args) if isinstance(x, np.ndarray) and x.size}
    arrays |= _placeholder_arrays(args)
    groups: list[list[int]] = []
    for i, x in arrays.items():
        touching = [g for g in groups if any(_overlaps(x, arrays[j]) for j in g)]
        groups = [g for g in groups if g not in touching]
        groups.append([*[j for g in touching for j in g], i])
    return [_shared_buffer({i: arrays[i] for i in group}) for group in groups if len(group) > 1]


def _placeholder_arrays(args: Sequence[Any]) -> dict[int, np.ndarray[Any, Any]]:
    """For traced arguments that may share memory, arrays that lie in memory as they do."""
    roots: dict[Any, list[tuple[int, Tracer, MemoryLocation]]] = {}
    for i, x in enumerate(args):
        if type(x) is Tracer and type(x.atom) is Var and x.size:
            memory = memory_location(x.builder, x.atom)
            roots.setdefault(memory.base, []).append((i, x, memory))
    found: dict[int, np.ndarray[Any, Any]] = {}
    for root, members in roots.items():
        if len(members) < 2:
            continue
        whole = np.empty(root.aval.size, root.aval.dtype)
        for i, x, memory in members:
            if memory.byte_offset is None:
                found[i] = whole
                continue
            size = x.dtype.itemsize
            first = np.ndarray((), x.dtype, whole.data, memory.byte_offset)
            steps = tuple([n * size for n in memory.strides])
            found[i] = np.lib.stride_tricks.as_strided(first, x.shape, steps)
    return found


def _overlaps(x: np.ndarray[Any, Any], y: np.ndarray[Any, Any]) -> bool:
    if not np.may_share_memory(x, y):
        return False
    try:
        return np.shares_memory(x, y, max_work=100_000)  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True


def _shared_buffer(arrays: dict[int, np.ndarray[Any, Any]]) -> SharedBuffer:
    bounds = [np.lib.array_utils.byte_bounds(x) for x in arrays.values()]
    low, high = min([b[0] for b in bounds]), max([b[1] for b in bounds])
    first = next(iter(arrays.values()))
    size = first.itemsize
    begins = {i: x.__array_interface__["data"][0] - low for i, x in arrays.items()}
    if any(
        x.dtype != first.dtype or begins[i] % size or any(s % size for s in x.strides)
        for i, x in arrays.items()
    ):
        raise ArgumentError(
            "arguments that share memory and are written to must have one dtype; got "
            + " and ".join(map(type_name, arrays.values())),
            fix="Pass a copy of all but one.",
        )
    places = [
        (i, (begins[i] // size, tuple([s // size for s in x.strides]))) for i, x in arrays.items()
    ]
    return SharedBuffer((high - low) // size, tuple(places))


def check_captures_not_aliased(
    args: Sequence[Any], captured: Sequence[Any], written: Collection[int]
) -> None:
    """Raise if one of `args` is written to that shares memory with an array from around."""
    values = [*args, *captured]
    for block in written_shared_buffers(values, written):
        members = [i for i, _ in block.members]
        if max(members) >= len(args):
            raise ArgumentError(
                "a function that is transformed must not write to an argument that shares memory "
                "with an array around the function; got "
                + " and ".join([type_name(values[i]) for i in members]),
                fix="Pass that as an argument too, or a copy of one of them.",
            )


def find_aliased_pair(
    args: Sequence[Any], written: Collection[int]
) -> tuple[Tracer, Tracer] | None:
    """Two traced arguments that are views of one array, if one of them is written to."""
    roots: dict[Any, int] = {}
    for i, x in enumerate(args):
        if type(x) is not Tracer or type(x.atom) is not Var:
            continue
        root = storage_base(x).atom
        j = roots.setdefault(root, i)
        if j != i and (i in written or j in written):
            return args[j], x
    return None
