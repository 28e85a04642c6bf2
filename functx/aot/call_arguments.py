"""The arrays of a call as inputs of a program: each array once, and views of written memory by their base."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np

from functx import ops
from functx.aot.meta import ReplayableView
from functx.autograd.variable import Variable
from functx.core.caches import IdentityKey
from functx.core.errors import ArgumentError
from functx.core.program import Literal
from functx.core.strides import Strides, is_row_major, row_major_strides
from functx.core.typing import NumPyArray
from functx.ops.dynamic_slicing import clamp_starts
from functx.transforms.aliasing import overlap


class InputSource(NamedTuple):
    """The origin of an input of a program: leaf number `leaf`, or the Variable that it is a view of."""

    leaf: int
    is_owner: bool = False


class LeafSource(NamedTuple):
    """The origin of a leaf: `views` of input number `number`, taken one after the other."""

    number: int
    views: tuple[ReplayableView, ...] = ()


class ArgumentPlan(NamedTuple):
    """The inputs of a program from the leaves of a call, and the leaves from the inputs."""

    inputs: tuple[InputSource, ...]
    leaves: tuple[LeafSource, ...]

    @property
    def is_identity(self) -> bool:
        """Whether each leaf is an input of its own."""
        return len(self.inputs) == len(self.leaves) and not any([x.is_owner for x in self.inputs])

    def inputs_of(self, leaves: Sequence[Any]) -> list[Any]:
        """The inputs of a call with these leaves."""
        return [leaves[i].owner if is_owner else leaves[i] for i, is_owner in self.inputs]

    def leaves_of(self, inputs: Sequence[Any]) -> list[Any]:
        """The leaves, from the inputs, which may be traced."""
        leaves = []
        for number, views in self.leaves:
            x = inputs[number]
            for view in views:
                x = view(x)
            leaves.append(x)
        return leaves


def plan_of(same: Sequence[int]) -> ArgumentPlan:
    """The plan for leaves of which number `i` is the same array as number `same[i]`, the first one."""
    firsts = [i for i, first in enumerate(same) if i == first]
    number = {leaf: k for k, leaf in enumerate(firsts)}
    return ArgumentPlan(
        tuple([InputSource(i) for i in firsts]), tuple([LeafSource(number[i]) for i in same])
    )


def first_occurrences(arrays: Sequence[Any]) -> tuple[int, ...]:
    """For each array the position of the first one that is the same object."""
    first: dict[int, int] = {}
    return tuple([first.setdefault(id(x), i) for i, x in enumerate(arrays)])


def sharing_key(leaves: Sequence[Any]) -> Hashable:
    """A key of how Variables among the leaves lie in memory that they share; None if none is shared.

    The same object twice does not count.
    """
    groups = shared_groups(leaves)
    if not groups:
        return None
    return tuple(
        [
            (
                i,
                number,
                leaves[i].edge is None,
                leaves[i].owner.aval_,
                *map(view_key, _views(leaves[i])),
            )
            for number, group in enumerate(groups)
            for i in group
        ]
    )


def variable_strides(arrays: Sequence[Any]) -> tuple[Strides | None, ...]:
    """The strides of Variables, None for row-major order; empty if all are in row-major order."""
    found = tuple(
        [
            strides
            if isinstance(x, Variable)
            and (strides := x._strides) is not None
            and not is_row_major(x.shape, strides)
            else None
            for x in arrays
        ]
    )
    return found if any(found) else ()


def view_key(step: ReplayableView) -> Hashable:
    """A key that equal views share."""
    operands = [a.value if type(a) is Literal else IdentityKey(a) for a in step.operands]
    return step.view, step.output, *operands


def shared_groups(leaves: Sequence[Any]) -> list[list[int]]:
    """The positions of the different Variables in each memory that several of them share."""
    positions = [i for i, x in enumerate(leaves) if isinstance(x, Variable)]
    memories = [id(leaves[i].memory) for i in positions]
    if len({*memories}) == len(memories):
        return []
    by_memory: dict[int, dict[int, int]] = {}
    for i, memory in zip(positions, memories, strict=True):
        by_memory.setdefault(memory, {}).setdefault(id(leaves[i]), i)
    return [[*group.values()] for group in by_memory.values() if len(group) > 1]


def merge_shared(
    plan: ArgumentPlan, leaves: Sequence[Any], written: Collection[int]
) -> ArgumentPlan:
    """The plan with one input for all Variables that lie in memory that an input in `written` overlaps.

    It is the Variable that they are views of. Views that do not overlap stay inputs of their own.
    """
    for group in shared_groups(leaves):
        numbers = {i: plan.leaves[i].number for i in group}
        if not any([numbers[i] in written for i in group]) or not _overlap_any(leaves, group):
            continue
        plan = _merge_group(plan, leaves, group)
    return plan


def _merge_group(plan: ArgumentPlan, leaves: Sequence[Any], group: Sequence[int]) -> ArgumentPlan:
    """The plan in which the leaves of a group are views of one input."""
    owners = {id(leaves[i].owner): i for i in reversed(group)}
    with_history = [i for i in owners.values() if leaves[i].owner.edge is not None]
    if len(with_history) > 1:
        raise _sharing_error(leaves, group)
    base = with_history[0] if with_history else group[0]
    owner = leaves[base].owner
    merged = {plan.leaves[i].number for i in group}
    kept = [k for k in range(len(plan.inputs)) if k not in merged]
    number = {k: n for n, k in enumerate(kept)}
    base_leaf = next((i for i in group if leaves[i] is owner), None)
    source = InputSource(base, True) if base_leaf is None else InputSource(base_leaf)
    sources: list[LeafSource] = []
    for x, before in zip(leaves, plan.leaves, strict=True):
        if before.number in number:
            sources.append(before._replace(number=number[before.number]))
            continue
        views = _views(x)
        if any([type(a) is not Literal for step in views for a in step.operands]):
            raise _sharing_error(leaves, group)
        if x.owner is not owner:
            views = [_DETACHED_ALIAS, *views]
        elif x.edge is None and owner.edge is not None:
            views = [*views, _UNDER_NO_GRAD]
        sources.append(LeafSource(len(kept), tuple(views)))
    return ArgumentPlan((*[plan.inputs[k] for k in kept], source), tuple(sources))


_DETACHED_ALIAS = ReplayableView(ops.Detach(True, writable=True), (), 0)
_UNDER_NO_GRAD = ReplayableView(ops.Detach(True), (), 0)


def _sharing_error(leaves: Sequence[Any], group: Sequence[int]) -> ArgumentError:
    return ArgumentError(
        "aot_function: Variables that share memory and are written to must be views of one Variable, "
        "at places that are known; got " + " and ".join([leaves[i].describe() for i in group]),
        fix="Take the views inside the function, or pass copies.",
    )


def _views(x: Variable) -> list[ReplayableView]:
    """The views that lead from the owner of `x` to it."""
    views: list[ReplayableView] = []
    while (view := x._view) is not None and view.primitive is not None:
        views.append(ReplayableView(view.primitive, view.others, view.output))
        x = view.base
    return views[::-1]


def _overlap_any(leaves: Sequence[Any], group: Sequence[int]) -> bool:
    """Whether two Variables of a group, which share memory, have an element in common."""
    whole = np.empty(max(sum([_bytes(leaves[i].owner) for i in group]), 1), np.uint8)
    arrays = [_placeholder(leaves[i], whole) for i in group]
    if any([x is None for x in arrays]):
        return True
    pairs = [(x, y) for k, x in enumerate(arrays) for y in arrays[:k]]
    return any([overlap(x, y) for x, y in pairs])  # type: ignore[arg-type]


def _bytes(x: Variable) -> int:
    return int(x.size * x.dtype.itemsize)


def _placeholder(x: Variable, whole: NumPyArray) -> NumPyArray | None:
    """An array that lies in `whole` as `x` does in its memory; None if values determine its place."""
    chain = [x]
    while (view := chain[-1]._view) is not None and view.primitive is not None:
        chain.append(view.base)
    offset, strides = 0, row_major_strides(chain[-1].shape)
    for base, out in zip(chain[:0:-1], chain[-2::-1], strict=True):
        taken: Any = out._view
        if isinstance(taken.primitive, ops.DynamicSlice):
            starts = [a.value for a in taken.others if type(a) is Literal]
            if len(starts) < base.ndim:
                return None
            place = clamp_starts(starts, base.shape, out.shape)
            step: int | None = sum([a * n for a, n in zip(place, strides, strict=True)])
        else:
            step = taken.primitive.view_offset(base.aval_, strides, taken.output)
        found = taken.primitive.view_strides(base.aval_, strides)
        if step is None or found is None:
            return None
        offset, strides = offset + step * out.dtype.itemsize, found
    first: NumPyArray = np.ndarray((), x.dtype, whole.data, offset)
    steps = tuple([n * x.dtype.itemsize for n in strides])
    return np.lib.stride_tricks.as_strided(first, x.shape, steps)
