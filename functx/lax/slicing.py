"""Parts of arrays, at static and at traced places, by JAX's names."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from operator import index as integer
from typing import Any

import numpy as np

from functx import ops
from functx.core.errors import IndexingError
from functx.core.tracing import aval_of
from functx.ops import slicing
from functx.ops.indexing import GatherDimensionNumbers, ScatterDimensionNumbers, gather
from functx.ops.operands import canonical_axis, canonical_shape, promote_scalars
from functx.ops.scattering import scatter, scatter_add, scatter_max, scatter_min, scatter_mul

__all__ = [
    "GatherDimensionNumbers",
    "GatherScatterMode",
    "ScatterDimensionNumbers",
    "dynamic_index_in_dim",
    "dynamic_slice",
    "dynamic_slice_in_dim",
    "dynamic_update_index_in_dim",
    "dynamic_update_slice",
    "dynamic_update_slice_in_dim",
    "gather",
    "index_in_dim",
    "scatter",
    "scatter_add",
    "scatter_max",
    "scatter_min",
    "scatter_mul",
    "scatter_sub",
    "slice",
    "slice_in_dim",
]


class GatherScatterMode(Enum):
    """What becomes of windows that do not lie inside the operand; see `gather` and `scatter`."""

    CLIP = 0
    FILL_OR_DROP = 1
    PROMISE_IN_BOUNDS = 2


def scatter_sub(
    operand: Any,
    scatter_indices: Any,
    updates: Any,
    dimension_numbers: Any,
    *,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    mode: Any = None,
) -> Any:
    """`operand` with updates subtracted from the windows at `scatter_indices`; see `scatter`."""
    _, updates = promote_scalars(operand, updates)
    return scatter_add(
        operand,
        scatter_indices,
        ops.neg(updates),
        dimension_numbers,
        indices_are_sorted=indices_are_sorted,
        unique_indices=unique_indices,
        mode=mode,
    )


def slice(
    operand: Any,
    start_indices: Sequence[int],
    limit_indices: Sequence[int],
    strides: Sequence[int] | None = None,
) -> Any:
    """The elements of `operand` from `start_indices` to before `limit_indices`, by `strides`."""
    starts, limits = tuple(map(integer, start_indices)), tuple(map(integer, limit_indices))
    steps = None if strides is None else tuple(map(integer, strides))
    return slicing.slice(operand, starts, limits, steps)


def slice_in_dim(
    operand: Any,
    start_index: int | None,
    limit_index: int | None,
    stride: int = 1,
    axis: int = 0,
) -> Any:
    """The elements of `operand` from one index to before another along `axis`, by `stride`.

    None stands for the beginning and the end; negative indices count from the end.
    """
    return slicing.slice_in_dim(operand, start_index, limit_index, stride, axis)


def index_in_dim(operand: Any, index: int, axis: int = 0, keepdims: bool = True) -> Any:
    """The part of `operand` at a static `index` along `axis`, which stays with `keepdims`."""
    shape = aval_of(operand).shape
    axis = canonical_axis(axis, len(shape), "index_in_dim: axis")
    n, place = shape[axis], integer(index)
    if not -n <= place < n:
        raise IndexingError(
            f"index_in_dim: the index must be in [{-n}, {n}); got {index} for axis {axis} of "
            f"{aval_of(operand)!r}"
        )
    place %= n
    part = slicing.slice_in_dim(operand, place, place + 1, 1, axis)
    return part if keepdims else ops.reshape(part, (*shape[:axis], *shape[axis + 1 :]))


def dynamic_slice(
    operand: Any,
    start_indices: Any,
    slice_sizes: Sequence[int],
    *,
    allow_negative_indices: bool | Sequence[bool] = True,
) -> Any:
    """The part of `operand` of shape `slice_sizes` that begins at `start_indices`.

    These are scalars, traced or not, or one vector. A negative one counts from the end
    where that is allowed. A part that would run over an end is moved until it fits.
    """
    sizes = canonical_shape(slice_sizes, "dynamic_slice: slice_sizes")
    starts = _start_indices(operand, start_indices, allow_negative_indices)
    return ops.DynamicSlice(sizes)(operand, *starts)


def dynamic_update_slice(
    operand: Any,
    update: Any,
    start_indices: Any,
    *,
    allow_negative_indices: bool | Sequence[bool] = True,
) -> Any:
    """`operand` with `update` in place of the part that begins at `start_indices`.

    The indices are those of `dynamic_slice`.
    """
    starts = _start_indices(operand, start_indices, allow_negative_indices)
    return ops.DynamicUpdateSlice()(*promote_scalars(operand, update), *starts)


def _start_indices(operand: Any, indices: Any, from_the_end: bool | Sequence[bool]) -> list[Any]:
    """Where a part begins, as one scalar a dimension, none counted from the end."""
    if isinstance(indices, np.ndarray):
        indices = indices.tolist()
    elif not isinstance(indices, (tuple, list)):
        parts = ops.split(indices, (1,) * aval_of(indices).shape[0])
        indices = [ops.reshape(part, ()) for part in parts]
    if from_the_end is True:
        return slicing.normalize_start_indices(operand, indices)
    ndim = aval_of(operand).ndim
    if len(indices) != ndim:
        raise IndexingError(
            f"there must be one index a dimension; got {len(indices)} for {aval_of(operand)!r}"
        )
    allowed = (False,) * ndim if from_the_end is False else from_the_end
    shape = aval_of(operand).shape
    return [
        slicing.normalize_start_index(i, n) if on else i
        for i, n, on in zip(indices, shape, allowed, strict=True)
    ]


def dynamic_slice_in_dim(
    operand: Any,
    start_index: Any,
    slice_size: int,
    axis: int = 0,
    *,
    allow_negative_indices: bool = True,
) -> Any:
    """The part of `operand`, `slice_size` long, that begins at `start_index` along `axis`."""
    sizes = list(aval_of(operand).shape)
    axis = canonical_axis(axis, len(sizes), "dynamic_slice_in_dim: axis")
    starts: list[Any] = [0] * len(sizes)
    starts[axis], sizes[axis] = _scalar_index(start_index), slice_size
    return dynamic_slice(operand, starts, sizes, allow_negative_indices=allow_negative_indices)


def dynamic_index_in_dim(
    operand: Any,
    index: Any,
    axis: int = 0,
    keepdims: bool = True,
    *,
    allow_negative_indices: bool = True,
) -> Any:
    """The part of `operand` at a traced `index` along `axis`, which stays with `keepdims`."""
    part = dynamic_slice_in_dim(
        operand, index, 1, axis, allow_negative_indices=allow_negative_indices
    )
    shape = aval_of(part).shape
    axis = canonical_axis(axis, len(shape))
    return part if keepdims else ops.reshape(part, (*shape[:axis], *shape[axis + 1 :]))


def dynamic_update_slice_in_dim(
    operand: Any,
    update: Any,
    start_index: Any,
    axis: int,
    *,
    allow_negative_indices: bool = True,
) -> Any:
    """`operand` with `update` in place of the part that begins at `start_index` along `axis`."""
    ndim = aval_of(operand).ndim
    starts: list[Any] = [0] * ndim
    starts[canonical_axis(axis, ndim, "dynamic_update_slice_in_dim: axis")] = _scalar_index(
        start_index
    )
    return dynamic_update_slice(
        operand, update, starts, allow_negative_indices=allow_negative_indices
    )


def dynamic_update_index_in_dim(
    operand: Any,
    update: Any,
    index: Any,
    axis: int,
    *,
    allow_negative_indices: bool = True,
) -> Any:
    """`operand` with `update` in place of the part at `index` along `axis`.

    `update` may lack that axis.
    """
    ndim = aval_of(operand).ndim
    axis = canonical_axis(axis, ndim, "dynamic_update_index_in_dim: axis")
    _, update = promote_scalars(operand, update)
    if aval_of(update).ndim != ndim:
        update = ops.expand_dims(update, axis)
    return dynamic_update_slice_in_dim(
        operand, update, index, axis, allow_negative_indices=allow_negative_indices
    )


def _scalar_index(index: Any) -> Any:
    return index if isinstance(index, int) else ops.reshape(index, ())
