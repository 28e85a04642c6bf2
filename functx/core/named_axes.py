"""Named axes: the axes bound around a trace, and the axis that a batching rule maps over."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from contextvars import ContextVar
from typing import NamedTuple

from functx.core.backend import backend
from functx.core.context import ContextValue
from functx.core.errors import ArgumentError, UnboundAxisError, type_name

RANDOMNESS_MODES = {
    "error": "refuses draws",
    "same": "draws once for all elements",
    "different": "draws for each element",
}
"""The modes of `vmap(randomness=)`, and the meaning of each."""


class Axis(NamedTuple):
    """A mapped axis: its name, None if it has none, and its size.

    `mesh_axes` are the axes of a device mesh that it is sharded over. If `tracks_varying`, it is
    itself an axis of a mesh, and traces track which values are the same on all its devices.
    `randomness` says what its elements draw from a generator: "error", "same" or "different"; None
    batches a draw as a function of the state that it takes.
    """

    name: Hashable
    size: int
    mesh_axes: tuple[Hashable, ...] = ()
    tracks_varying: bool = False
    randomness: str | None = None


class AxisNames(NamedTuple):
    """An axis without its size."""

    name: Hashable = None
    mesh_axes: tuple[Hashable, ...] = ()
    randomness: str | None = None

    def with_size(self, size: int) -> Axis:
        """The axis with the size `size`."""
        return Axis(self.name, size, self.mesh_axes, randomness=self.randomness)


_axis_env: ContextVar[tuple[Axis, ...]] = ContextVar("bound_axes", default=())
_batched_axis: ContextVar[Axis | None] = ContextVar("batched_axis", default=None)


def bound_axes() -> tuple[Axis, ...]:
    """The named axes around the current trace, the innermost last."""
    return _axis_env.get()


def tracked_mesh_axes() -> tuple[tuple[Hashable, int], ...]:
    """The names and sizes of the mesh axes around the current trace that track varying values."""
    axes = _axis_env.get()
    if not axes and not backend.axis_names():
        return ()
    bound = {axis.name: axis for axis in axes}
    tracked = [(axis.name, axis.size) for axis in bound.values() if axis.tracks_varying]
    of_jax = [(n, backend.axis_size(n) or 1) for n in backend.axis_names() if n not in bound]
    return (*tracked, *of_jax)


def bind_named_axes(axes: Sequence[Axis]) -> ContextValue[tuple[Axis, ...]]:
    """A context in which `axes` are the only named axes."""
    return ContextValue(_axis_env, tuple(axes))


def batched_axis() -> Axis | None:
    """The axis that the current batching rule maps over; None outside batching rules."""
    return _batched_axis.get()


def batched_axis_names() -> AxisNames:
    """The names of the axis that the current batching rule maps over."""
    axis = _batched_axis.get()
    return AxisNames() if axis is None else AxisNames(axis.name, axis.mesh_axes, axis.randomness)


def set_batched_axis(axis: Axis | None) -> ContextValue[Axis | None]:
    """A context in which batching rules map over `axis`."""
    return ContextValue(_batched_axis, axis)


def canonical_axis_names(axis_name: Hashable | Sequence[Hashable]) -> tuple[Hashable, ...]:
    """The names in `axis_name`, which is one name or a sequence of names."""
    return tuple(axis_name) if isinstance(axis_name, (tuple, list)) else (axis_name,)


def named_axis_size(name: Hashable, op: str) -> int:
    """The size of the named axis `name` around the current trace.

    Raises UnboundAxisError if it is not bound, and ArgumentError if `name` cannot be a name.
    """
    check_axis_name(name, op)
    for axis in reversed(_axis_env.get()):
        if axis.name == name:
            return axis.size
    size = backend.axis_size(name)
    if size is not None:
        return size
    names = [axis.name for axis in _axis_env.get()] + list(backend.axis_names())
    bound = ", ".join(map(repr, dict.fromkeys(names))) or "none"
    raise UnboundAxisError(
        f"{op}: the axis must be bound around the call; got {name!r}, where the bound names are: "
        f"{bound}",
        fix=f"Map the function that calls it: functx.vmap(f, axis_name={name!r}), or "
        f"functx.shard_map over a mesh with the axis {name!r}.",
    )


def check_axis_name(name: object, label: str) -> None:
    """Raise ArgumentError, which begins with `label`, unless `name` can name an axis."""
    try:
        hash(name)
    except TypeError:
        pass
    else:
        if name is not None and not isinstance(name, (tuple, int)):
            return
    raise ArgumentError(
        f"{label}: the name of an axis must be a string, or hashable and no number, tuple or None; "
        f"got {type_name(name)} {name!r}"
    )
