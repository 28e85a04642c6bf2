"""Named axes: those that a function is traced within, and the one that is being batched."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

from functx.core.backend import backend
from functx.core.errors import ArgumentError, UnboundAxisError, type_name


class Axis(NamedTuple):
    """An axis that has a name, None for one without, and its length.

    It may lie over the axes `mesh_axes` of a device mesh. With `counted`, it is one of a mesh
    itself, and account is kept of what is the same in all of its places.
    """

    name: Hashable
    size: int
    mesh_axes: tuple[Hashable, ...] = ()
    tracks_varying: bool = False


class AxisNames(NamedTuple):
    """The names of an axis, apart from its length."""

    name: Hashable = None
    mesh_axes: tuple[Hashable, ...] = ()

    def with_size(self, size: int) -> Axis:
        """The axis of that length."""
        return Axis(self.name, size, self.mesh_axes)


_axis_env: ContextVar[tuple[Axis, ...]] = ContextVar("bound_axes", default=())
_batched_axis: ContextVar[Axis | None] = ContextVar("batched_axis", default=None)


def bound_axes() -> tuple[Axis, ...]:
    """The named axes around what is being traced, the innermost last."""
    return _axis_env.get()


def tracked_mesh_axes() -> tuple[tuple[Hashable, int], ...]:
    """The mesh axes around this trace, with their lengths.

    Without axes for which replication of values is not tracked.
    """
    own = {axis.name: axis for axis in _axis_env.get()}
    found = [(axis.name, axis.size) for axis in own.values() if axis.tracks_varying]
    return (
        *found,
        *[(n, backend.axis_size(n) or 1) for n in backend.axis_names() if n not in own],
    )


@contextmanager
def bind_named_axes(axes: Sequence[Axis]) -> Iterator[None]:
    """Trace within `axes`, and no others."""
    token = _axis_env.set(tuple(axes))
    try:
        yield
    finally:
        _axis_env.reset(token)


def batched_axis() -> Axis | None:
    """The axis that the rule at work batches over; None where no rule is."""
    return _batched_axis.get()


def batched_axis_names() -> AxisNames:
    """The names of the axis that the current batching rule maps over."""
    axis = _batched_axis.get()
    return AxisNames() if axis is None else AxisNames(axis.name, axis.mesh_axes)


@contextmanager
def set_batched_axis(axis: Axis | None) -> Iterator[None]:
    """Let the rules at work batch over `axis`."""
    token = _batched_axis.set(axis)
    try:
        yield
    finally:
        _batched_axis.reset(token)


def canonical_axis_names(axis_name: Any) -> tuple[Hashable, ...]:
    """The names that `axis_name` gives, one or a sequence of them."""
    return tuple(axis_name) if isinstance(axis_name, (tuple, list)) else (axis_name,)


def named_axis_size(name: Any, op: str) -> int:
    """The length of the axis `name` around what is being traced.

    Raises UnboundAxisError where there is none, and ArgumentError for what cannot be a name.
    """
    check_axis_name(name, op)
    for axis in reversed(_axis_env.get()):
        if axis.name == name:
            return axis.size
    found = backend.axis_size(name)
    if found is not None:
        return found
    names = [axis.name for axis in _axis_env.get()] + list(backend.axis_names())
    given = ", ".join(map(repr, dict.fromkeys(names))) or "none"
    raise UnboundAxisError(
        f"{op}: the axis must be bound around the call; got {name!r}, where the bound names are: "
        f"{given}",
        fix=f"Map the function that calls it: functx.vmap(f, axis_name={name!r}), or "
        f"functx.shard_map over a mesh with the axis {name!r}.",
    )


def check_axis_name(name: Any, what: str) -> None:
    """Raise ArgumentError unless `name` can name an axis."""
    try:
        hash(name)
    except TypeError:
        pass
    else:
        if name is not None and not isinstance(name, (tuple, int)):
            return
    raise ArgumentError(
        f"{what}: the name of an axis must be a string, or hashable and no number, tuple or None; "
        f"got {type_name(name)} {name!r}"
    )
