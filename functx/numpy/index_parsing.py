"""Indices parsed into entries, one for each axis."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index as integer
from types import EllipsisType
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from functx import ops
from functx.core.checking import pluralize
from functx.core.concretization import concretize
from functx.core.errors import ConcretizationError, IndexingError, SliceBoundError, type_name
from functx.core.tracer import Tracer, as_numpy_array, aval_of
from functx.core.types import Shape, kind
from functx.core.typing import ArrayLike, Index, NumPyArray, Value
from functx.core.wrappers import is_wrapper
from functx.numpy.promotion import operand

Position: TypeAlias = int | np.ndarray[Any, Any] | Value
"""The positions of elements along an axis: an int or a NumPy array if they are known."""


class SliceIndex(NamedTuple):
    """A slice of an axis: `size` elements, `abs(step)` apart, in reverse order if `step` is negative.

    `start` is the least of their positions, whatever the sign of `step`.
    """

    axis: int
    start: int
    size: int
    step: int


class ScalarIndex(NamedTuple):
    """One element of an axis, which is removed; `position` is an int or a traced integer."""

    axis: int
    position: Position


class ArrayIndex(NamedTuple):
    """Elements of an axis at the positions in the array `position`.

    With `axis` None, for a boolean scalar, only the shape of `position` counts.
    """

    axis: int | None
    position: Position


IndexEntry: TypeAlias = SliceIndex | ScalarIndex | ArrayIndex | EllipsisType | None
"""A parsed item of an index; None inserts an axis."""


class IndexingOptions(NamedTuple):
    """The out-of-bounds mode of an index, and promises about it.

    With `out_of_bounds` None, known indices must be in bounds; traced ones are clipped when
    read and dropped when written. `order` is that of the memory of what index arrays read.
    """

    out_of_bounds: str | None = None
    indices_are_sorted: bool = False
    unique_indices: bool = False
    fill_value: complex | None = None
    wrap_negative: bool = True
    order: str = "K"


def parse_index_item(item: Index) -> Position | slice | EllipsisType | None:
    """One item of an index, checked: an int, a slice, None, Ellipsis, or an array."""
    if type(item) is int or type(item) is slice or item is None or item is Ellipsis:
        return item
    array = item if type(item) is Tracer else _index_array(item)
    item_kind = kind(array.dtype)
    if item_kind == "b":
        return concrete_index_mask(array)
    if item_kind not in "iu":
        raise IndexingError(
            "x[...]: an index must be made of integers, slices, integer or boolean arrays, "
            f"None and Ellipsis; got {type_name(item)}",
            fix="Convert an array of whole numbers with .astype(int)." if item_kind in "fc" else "",
        )
    return int(array) if isinstance(array, np.ndarray) and not array.ndim else array


def _index_array(item: Index) -> Value | NumPyArray:
    """An item of an index as an array: a NumPy array if its value is known."""
    if isinstance(item, (list, tuple)):
        if any(type(x) is Tracer or is_wrapper(x) for x in item):
            return operand(item)
        array = np.asarray(item)
        return array if array.size else array.astype(np.int32)
    if hasattr(item, "aval") or isinstance(item, np.ndarray):
        return as_numpy_array(item)
    if is_wrapper(item):
        return item  # type: ignore[return-value]
    boolean = isinstance(item, bool | np.bool_)
    return np.asarray(integer(item) if hasattr(item, "__index__") and not boolean else item)  # type: ignore[arg-type]


def concrete_index_mask(mask: ArrayLike) -> NumPyArray:
    """The value of a boolean mask; raises IndexingError if it is not known."""
    if type(mask) is not Tracer:
        return np.asarray(mask)
    try:
        return concretize(mask, "a boolean mask")
    except ConcretizationError as error:
        raise IndexingError(
            "x[mask]: the mask must have a known value, since the number of elements selected "
            f"is the shape of the result; got {mask.atom.aval!r}",
            *error.details,
            fix="Use functx.numpy.where(mask, x, 0), which keeps the shape, "
            "functx.numpy.nonzero(mask, size=...), or x.at[mask].set(value) to write.",
        ) from None


def parse_index(shape: Shape, items: Sequence[Any], mode: IndexingOptions) -> list[IndexEntry]:
    """The entries of an index into an array of `shape`: one for each axis, None for a new axis.

    Ellipsis is kept as an entry, also if it stands for no axis.
    """
    used = sum([_axes_used(item) for item in items])
    ellipses = sum([item is Ellipsis for item in items])
    if used > len(shape):
        most = f"{len(shape)} {'index' if len(shape) == 1 else 'indices'}"
        raise IndexingError(
            f"x[...]: an array of {pluralize(len(shape), 'dimension')} takes at most {most}; got {used}"
        )
    if ellipses > 1:
        raise IndexingError(f"x[...]: an index takes at most one Ellipsis; got {ellipses}")
    entries: list[IndexEntry] = []
    axis = 0
    for item in items if ellipses else (*items, _IMPLICIT_ELLIPSIS):
        if item is None:
            entries.append(None)
        elif item is Ellipsis or item is _IMPLICIT_ELLIPSIS:
            if item is Ellipsis:
                entries.append(Ellipsis)
            for _ in range(len(shape) - used):
                entries.append(SliceIndex(axis, 0, shape[axis], 1))
                axis += 1
        elif type(item) is slice:
            entries.append(_slice_index(item, axis, shape[axis]))
            axis += 1
        elif type(item) is int or (not aval_of(item).shape and aval_of(item).dtype != bool):
            entries.append(ScalarIndex(axis, normalize_index(item, axis, shape[axis], mode)))
            axis += 1
        elif aval_of(item).dtype == bool:
            entries += _mask_indices(item, axis, shape)
            axis += item.ndim
        else:
            entries.append(ArrayIndex(axis, normalize_index(item, axis, shape[axis], mode)))
            axis += 1
    return entries


_IMPLICIT_ELLIPSIS = object()
"""Stands for the axes behind the items of an index without an Ellipsis."""


def _axes_used(item: object) -> int:
    if item is None or item is Ellipsis:
        return 0
    return item.ndim if isinstance(item, np.ndarray) and item.dtype == bool else 1


def _slice_index(item: slice, axis: int, size: int) -> SliceIndex:
    try:
        start, stop, step = item.indices(size)
    except ConcretizationError as error:
        error.fix = (
            "A slice has a length known while tracing: use functx.lax.dynamic_slice_in_dim, "
            "or x[start + functx.numpy.arange(length)]."
        )
        if type(error) is not ConcretizationError:
            raise
        raise SliceBoundError(
            error.problem, *error.details, fix=error.fix, source=error.source
        ) from None
    except (TypeError, ValueError):
        raise IndexingError(
            f"x[...]: a slice must have integer bounds and a step that is not 0; got {item}"
        ) from None
    count = len(range(start, stop, step))
    if count < 2:
        return SliceIndex(axis, start if count else 0, count, 1)
    return SliceIndex(axis, start if step > 0 else start + (count - 1) * step, count, step)


def _mask_indices(mask: NumPyArray, axis: int, shape: Shape) -> list[ArrayIndex]:
    if not mask.ndim:
        return [ArrayIndex(None, np.zeros(int(mask), np.int32))]
    if mask.shape != shape[axis : axis + mask.ndim]:
        raise IndexingError(
            f"x[mask]: a mask must have the shape of the axes that it indexes; got "
            f"{mask.shape} for axes {axis} to {axis + mask.ndim - 1} of an array of shape {shape}"
        )
    positions = mask.nonzero()
    return [ArrayIndex(axis + i, position.astype(np.int32)) for i, position in enumerate(positions)]


def normalize_index(position: Position, axis: int, size: int, mode: IndexingOptions) -> Position:
    """The index `position` counted from the start of an axis of `size`; known ones are checked."""
    if isinstance(position, int | np.ndarray):
        return _normalize_static_index(position, axis, size, mode)
    return ops.normalize_start_index(position, size) if mode.wrap_negative else position


def _normalize_static_index(
    position: int | np.ndarray[Any, Any], axis: int, size: int, mode: IndexingOptions
) -> int | np.ndarray[Any, Any]:
    positions = np.asarray([position] if type(position) is int else position)
    if positions.dtype != np.int64:
        positions = positions.astype(np.int64)
    outside = positions >= size
    least = -size if mode.wrap_negative else 0
    # Without wrapping, negative indices are out of bounds on purpose, unless this is promised not to be.
    if mode.wrap_negative or mode.out_of_bounds == "promise_in_bounds":
        outside |= positions < least
    if mode.out_of_bounds in (None, "promise_in_bounds") and outside.any():
        raise IndexingError(
            f"x[...]: an index must be in [{least}, {size}) for axis {axis} of size {size}; "
            f"got {positions[outside].flat[0]}",
            fix='To read or write outside an array on purpose, use x.at[...] with mode="fill", '
            '"drop" or "clip".',
        )
    if mode.wrap_negative:
        positions = np.where(positions < 0, positions + size, positions)
    if mode.out_of_bounds == "clip":
        positions = np.clip(positions, 0, size - 1)
    return int(positions[0]) if type(position) is int else positions.astype(index_dtype((size,)))


def index_dtype(shape: Shape) -> type[np.integer[Any]]:
    return np.int32 if all(n < 2**31 for n in shape) else np.int64


def is_static_index(indices: object) -> bool:
    return type(indices) is int or isinstance(indices, np.ndarray)
