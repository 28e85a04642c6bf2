"""What an index asks of each axis: the first half of indexing, known while tracing."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index as integer
from typing import Any, NamedTuple

import numpy as np

from functx.core.arrays import as_numpy_array
from functx.core.avals import Shape
from functx.core.concrete import concretize
from functx.core.dtypes import kind
from functx.core.errors import ConcretizationError, IndexingError, type_name
from functx.core.tracing import Tracer, aval_of
from functx.numpy.promotion import operand
from functx.ops.slicing import normalize_start_index


class SliceIndex(NamedTuple):
    """`size` elements along an axis, every `step`-th from `start` on, backwards if it is negative.

    `start` is the least of their positions in any case.
    """

    axis: int
    start: int
    size: int
    step: int


class ScalarIndex(NamedTuple):
    """One element along an axis, which leaves the shape; `at` is an int or a traced integer."""

    axis: int
    position: Any


class ArrayIndex(NamedTuple):
    """Elements along an axis, at the places that the array `at` holds.

    Without an axis (from a boolean scalar) it only lends its shape to the others.
    """

    axis: int | None
    position: Any


class IndexingOptions(NamedTuple):
    """What is said of an index beside it: how to treat what is out of bounds, and promises.

    With `outside` None, known indices must be in bounds, and others are clipped when read
    and dropped when written.
    """

    out_of_bounds: str | None = None
    indices_are_sorted: bool = False
    unique_indices: bool = False
    fill_value: Any = None
    wrap_negative: bool = True


def parse_index_item(item: Any) -> Any:
    """One item of an index as an int, a slice, None, Ellipsis, or an array, checked."""
    if type(item) is int or type(item) is slice or item is None or item is Ellipsis:
        return item
    if type(item) is not Tracer:
        item = _index_array(item)
    of = kind(item.dtype) if isinstance(item, Tracer | np.ndarray) or hasattr(item, "aval") else "O"
    if of == "b":
        return concrete_index_mask(item)
    if of not in "iu":
        raise IndexingError(
            "x[...]: an index must be made of integers, slices, integer or boolean arrays, "
            f"None and Ellipsis; got {type_name(item)}",
            fix="Convert an array of whole numbers with .astype(int)." if of in "fc" else "",
        )
    return int(item) if isinstance(item, np.ndarray) and not item.ndim else item


def _index_array(item: Any) -> Any:
    """An item of an index as an array, of NumPy where its value is known."""
    if isinstance(item, (list, tuple)):
        if any(type(one) is Tracer for one in item):
            return operand(item)
        array = np.asarray(item)
        return array if array.size else array.astype(np.int32)
    if hasattr(item, "aval") or isinstance(item, np.ndarray):
        return as_numpy_array(item)
    boolean = isinstance(item, bool | np.bool_)
    return np.asarray(integer(item) if hasattr(item, "__index__") and not boolean else item)


def concrete_index_mask(mask: Any) -> Any:
    """A boolean mask as a NumPy array."""
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


def parse_index(shape: Shape, items: Sequence[Any], mode: IndexingOptions) -> list[Any]:
    """What `items` ask of each axis of an array of `shape`: an entry an axis, None for new ones.

    Ellipsis stands among them where it is given, even if it selects no axis.
    """
    used = sum([_axes_used(item) for item in items])
    ellipses = sum([item is Ellipsis for item in items])
    if used > len(shape) or ellipses > 1:
        raise IndexingError(
            f"x[...]: an array of {len(shape)} dimensions takes at most {len(shape)} indices and "
            f"one Ellipsis; got {used} and {ellipses}"
        )
    found: list[Any] = []
    axis = 0
    for item in items if ellipses else (*items, _IMPLICIT_ELLIPSIS):
        if item is None:
            found.append(None)
        elif item is Ellipsis or item is _IMPLICIT_ELLIPSIS:
            if item is Ellipsis:
                found.append(Ellipsis)
            for _ in range(len(shape) - used):
                found.append(SliceIndex(axis, 0, shape[axis], 1))
                axis += 1
        elif type(item) is slice:
            found.append(_slice_index(item, axis, shape[axis]))
            axis += 1
        elif type(item) is int or (not aval_of(item).shape and aval_of(item).dtype != bool):
            found.append(ScalarIndex(axis, normalize_index(item, axis, shape[axis], mode)))
            axis += 1
        elif aval_of(item).dtype == bool:
            found += _mask_indices(item, axis, shape)
            axis += item.ndim
        else:
            found.append(ArrayIndex(axis, normalize_index(item, axis, shape[axis], mode)))
            axis += 1
    return found


_IMPLICIT_ELLIPSIS = object()
"""All axes behind the items of an index that has no Ellipsis."""


def _axes_used(item: Any) -> int:
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
        raise
    except (TypeError, ValueError):
        raise IndexingError(
            f"x[...]: a slice must have integer bounds and a step that is not 0; got {item}"
        ) from None
    count = len(range(start, stop, step))
    if count < 2:
        return SliceIndex(axis, start if count else 0, count, 1)
    return SliceIndex(axis, start if step > 0 else start + (count - 1) * step, count, step)


def _mask_indices(mask: np.ndarray[Any, Any], axis: int, shape: Shape) -> list[ArrayIndex]:
    if not mask.ndim:
        return [ArrayIndex(None, np.zeros(int(mask), np.int32))]
    if mask.shape != shape[axis : axis + mask.ndim]:
        raise IndexingError(
            f"x[mask]: a mask must have the shape of the axes that it stands for; got "
            f"{mask.shape} for axes {axis} to {axis + mask.ndim - 1} of an array of shape {shape}"
        )
    places = mask.nonzero()
    return [ArrayIndex(axis + i, place.astype(np.int32)) for i, place in enumerate(places)]


def normalize_index(at: Any, axis: int, size: int, mode: IndexingOptions) -> Any:
    """`at` counted from the start of an axis of `size`; known integers are checked."""
    if is_static_index(at):
        return _normalize_static_index(at, axis, size, mode)
    return normalize_start_index(at, size) if mode.wrap_negative else at


def _normalize_static_index(at: Any, axis: int, size: int, mode: IndexingOptions) -> Any:
    numbers = np.asarray([at] if type(at) is int else at)
    if numbers.dtype != np.int64:
        numbers = numbers.astype(np.int64)
    outside = (numbers < -size) | (numbers >= size)
    if mode.out_of_bounds in (None, "promise_in_bounds") and outside.any():
        raise IndexingError(
            f"x[...]: an index must be in [{-size}, {size}) for axis {axis} of size {size}; "
            f"got {numbers[outside].flat[0]}",
            fix='To read or write outside an array on purpose, use x.at[...] with mode="fill", '
            '"drop" or "clip".',
        )
    if mode.wrap_negative:
        numbers = np.where(numbers < 0, numbers + size, numbers)
    if mode.out_of_bounds == "clip":
        numbers = np.clip(numbers, 0, size - 1)
    return int(numbers[0]) if type(at) is int else numbers.astype(index_dtype((size,)))


def index_dtype(shape: Shape) -> Any:
    return np.int32 if all(n < 2**31 for n in shape) else np.int64


def is_static_index(indices: Any) -> bool:
    return type(indices) is int or isinstance(indices, np.ndarray)
