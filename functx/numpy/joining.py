"""Functions that concatenate, stack and split arrays, and gather along an axis."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from functx import ops
from functx.core.binding import bind
from functx.core.errors import ShapeError, ValueRangeError
from functx.core.memory_layouts import is_contiguous
from functx.core.tracer import aval_of
from functx.core.types import canonical_dtype
from functx.core.typing import ArrayLike, ArrayOrList, DTypeLike, Keys, Out, Value
from functx.numpy.mutation import accept_out
from functx.numpy.promotion import copy_array, copy_if_shared, promote
from functx.numpy.shapes import (
    atleast_1d,
    atleast_2d,
    atleast_3d,
    check_min_rank,
    ensure_array,
    expand_dims,
    in_order,
    prepend_axes,
    ravel,
    static_integers,
)
from functx.ops import concatenation, shapes
from functx.ops.operands import canonical_axis, literal, tuple_delete
from functx.ops.views import returns_view

__all__ = [
    "append",
    "array_split",
    "block",
    "column_stack",
    "concat",
    "concatenate",
    "dsplit",
    "dstack",
    "hsplit",
    "hstack",
    "split",
    "stack",
    "unstack",
    "vsplit",
    "vstack",
]


def _promote_arrays(
    name: str, arrays: Sequence[ArrayOrList], dtype: DTypeLike
) -> tuple[Value, ...]:
    """The arrays in their common dtype, or in `dtype`."""
    if not arrays:
        raise ValueRangeError(f"{name}: there must be at least one array; got none")
    promoted = promote(*arrays)
    if dtype is None:
        return promoted
    return tuple([ops.convert_element_type(x, canonical_dtype(dtype)) for x in promoted])


def _array_sequence(arrays: ArrayOrList) -> Sequence[ArrayOrList]:
    """The arrays of a sequence, or the slices of an array along its first axis."""
    return arrays if isinstance(arrays, (list, tuple)) else unstack(arrays)


@accept_out
def concatenate(
    arrays: ArrayOrList, axis: int | None = 0, dtype: DTypeLike = None, *, out: Out = None
) -> Value:
    """The arrays joined along `axis`, in one dtype; flattened first where it is None."""
    arrays = _promote_arrays("concatenate", _array_sequence(arrays), dtype)
    if axis is None:
        arrays, axis = tuple([ravel(x) for x in arrays]), 0
    ndim = aval_of(arrays[0]).ndim
    if not ndim:
        raise ShapeError(
            f"concatenate: arrays must have at least one dimension; got {aval_of(arrays[0])!r}",
            fix="Give the arrays as one list, concatenate([x, y]); stack makes a dimension of scalars.",
        )
    joined = concatenation.concatenate(arrays, canonical_axis(axis, ndim, "concatenate: axis"))
    return copy_array(joined) if len(arrays) == 1 else joined


@accept_out
def concat(arrays: ArrayOrList, /, *, axis: int | None = 0, out: Out = None) -> Value:
    """The arrays joined along `axis`, in one dtype; flattened first where it is None."""
    return concatenate(arrays, axis)


@accept_out
def stack(arrays: ArrayOrList, axis: int = 0, out: Out = None, dtype: DTypeLike = None) -> Value:
    """The arrays, all of one shape, joined along a new axis `axis` of the result."""
    arrays = _promote_arrays("stack", _array_sequence(arrays), dtype)
    shape = aval_of(arrays[0]).shape
    for x in arrays:
        if aval_of(x).shape != shape:
            raise ShapeError(
                "stack: arrays must have one shape; got "
                + " and ".join([repr(aval_of(x)) for x in arrays])
            )
    axis = canonical_axis(axis, len(shape) + 1, "stack: axis")
    n = len(arrays)
    if not shape:
        return copy_array(concatenation.concatenate([shapes.reshape(x, (1,)) for x in arrays], 0))
    if n == 1:
        return shapes.expand_dims(copy_array(arrays[0]), axis)
    if not all(map(is_contiguous, arrays)):
        return concatenation.concatenate([shapes.expand_dims(x, axis) for x in arrays], axis)
    if axis < len(shape):
        # The joined axis counts the arrays first, then the elements of each: it becomes two axes.
        joined = concatenation.concatenate(arrays, axis)
        return bind(ops.Reshape((*shape[:axis], n, *shape[axis:])), (joined,))
    joined = bind(ops.Reshape((n, *shape)), (concatenation.concatenate(arrays, 0),))
    return in_order(shapes.moveaxis(joined, 0, axis), "C")


def vstack(tup: ArrayOrList, dtype: DTypeLike = None) -> Value:
    """The arrays joined along the first axis, vectors as rows."""
    return concatenate(
        [atleast_2d(x) for x in _promote_arrays("vstack", _array_sequence(tup), dtype)]
    )


def hstack(tup: ArrayOrList, dtype: DTypeLike = None) -> Value:
    """The arrays joined along the second axis, vectors and scalars along the first."""
    arrays = [atleast_1d(x) for x in _promote_arrays("hstack", _array_sequence(tup), dtype)]
    return concatenate(arrays, 0 if aval_of(arrays[0]).ndim == 1 else 1)


def dstack(tup: ArrayOrList, dtype: DTypeLike = None) -> Value:
    """The arrays joined along the third axis, added to those of fewer dimensions."""
    return concatenate(
        [atleast_3d(x) for x in _promote_arrays("dstack", _array_sequence(tup), dtype)], 2
    )


def column_stack(tup: ArrayOrList | Keys) -> Value:
    """The arrays joined along the second axis, vectors as columns."""
    arrays = [ensure_array(x) for x in _promote_arrays("column_stack", _array_sequence(tup), None)]
    columns = [x if aval_of(x).ndim > 1 else expand_dims(ravel(x), 1) for x in arrays]
    return concatenate(columns, 1)


def append(arr: ArrayOrList, values: ArrayOrList, axis: int | None = None) -> Value:
    """`values` joined to the end of `arr` along `axis`; both flattened where it is None."""
    return concatenate(promote(arr, values), axis)


def block(arrays: ArrayOrList | Keys) -> Value:
    """The array assembled from nested lists of blocks, the innermost lists along the last axis."""
    depth = _depth(arrays)
    leaves = [ensure_array(x) for x in promote(*_leaves(arrays))]
    rank = max([depth, *[aval_of(x).ndim for x in leaves]])
    remaining = iter(leaves)

    def join(nested: ArrayOrList, axis: int) -> Value:
        if not isinstance(nested, list):
            return prepend_axes(next(remaining), rank)
        return concatenate([join(x, axis + 1) for x in nested], axis)

    return join(arrays, rank - depth) if depth else copy_array(leaves[0])


def _depth(nested: object) -> int:
    if not isinstance(nested, list):
        return 0
    depths = {_depth(x) for x in nested}
    if len(depths) != 1:
        raise ShapeError(f"block: lists must be nested to one depth; got {sorted(depths)}")
    return depths.pop() + 1


def _leaves(nested: ArrayOrList) -> list[ArrayOrList]:
    if not isinstance(nested, list):
        return [nested]
    return [leaf for x in nested for leaf in _leaves(x)]


def slice_along(x: Value, start: int, stop: int, axis: int) -> Value:
    """`x[start:stop]` along `axis`."""
    if start == 0 and stop == aval_of(x).shape[axis]:
        return x
    return ops.slice_in_dim(x, start, stop, 1, axis)


def _split_sections(
    name: str, ary: ArrayOrList, sections: ArrayOrList, axis: int, even: bool
) -> list[Value]:
    ary = ensure_array(ary)
    aval = aval_of(ary)
    axis = canonical_axis(axis, aval.ndim, f"{name}: axis")
    n = aval.shape[axis]
    positions = static_integers(sections, f"{name}: the sections")
    if positions.ndim == 0:
        count = int(positions)
        if count < 1 or (even and n % count):
            raise ValueRangeError(
                f"{name}: the axis must divide into that many equal sections; got {count} "
                f"sections for axis {axis} of {aval!r}",
                fix="Use array_split for sections of nearly equal length." if count > 0 else "",
            )
        length, longer = divmod(n, count)
        return _split(ary, [length + (i < longer) for i in range(count)], axis)
    bounds = [slice(*pair).indices(n)[:2] for pair in pairwise([0, *positions.tolist(), n])]
    sizes = [max(stop - start, 0) for start, stop in bounds]
    if sum(sizes) == n:
        return _split(ary, sizes, axis)
    # Indices that are not sorted give sections that overlap.
    return [slice_along(ary, start, max(start, stop), axis) for start, stop in bounds]


def _split(x: Value, sizes: Sequence[int], axis: int) -> list[Value]:
    return list(concatenation.split(x, sizes, axis)) if len(sizes) > 1 else [x]


@returns_view
def split(ary: ArrayOrList, indices_or_sections: ArrayOrList, axis: int = 0) -> list[Value]:
    """`ary` split along `axis` into equal sections, or before each of the indices."""
    return _split_sections("split", ary, indices_or_sections, axis, even=True)


@returns_view
def array_split(ary: ArrayOrList, indices_or_sections: ArrayOrList, axis: int = 0) -> list[Value]:
    """`ary` split along `axis` as by `split`; the first sections may be longer by one element."""
    return _split_sections("array_split", ary, indices_or_sections, axis, even=False)


@returns_view
def hsplit(ary: ArrayOrList | Keys, indices_or_sections: ArrayOrList) -> list[Value]:
    """`ary` split along its second axis, a vector along its only axis."""
    ary = ensure_array(ary)
    axis = 0 if aval_of(ary).ndim == 1 else 1
    return _split_sections("hsplit", ary, indices_or_sections, axis, even=True)


@returns_view
def vsplit(ary: ArrayOrList | Keys, indices_or_sections: ArrayOrList) -> list[Value]:
    """`ary`, of at least two dimensions, split along its first axis."""
    return _split_sections(
        "vsplit", check_min_rank("vsplit", ary, 2), indices_or_sections, 0, even=True
    )


@returns_view
def dsplit(ary: ArrayOrList | Keys, indices_or_sections: ArrayOrList) -> list[Value]:
    """`ary`, of at least three dimensions, split along its third axis."""
    return _split_sections(
        "dsplit", check_min_rank("dsplit", ary, 3), indices_or_sections, 2, even=True
    )


def unstack(x: ArrayOrList, /, *, axis: int = 0) -> tuple[Value, ...]:
    """The slices of `x` along `axis`, each without that axis."""
    x = ensure_array(x)
    shape = aval_of(x).shape
    axis = canonical_axis(axis, len(shape), "unstack: axis")
    slice_shape = tuple_delete(shape, (axis,))
    parts = _split(x, (1,) * shape[axis], axis) if shape[axis] else []
    return tuple([shapes.reshape(part, slice_shape) for part in parts])


def gather_along(x: ArrayLike, indices: ArrayLike, axis: int) -> Value:
    """The slices of `x` at a vector of integers along `axis`; indices are clipped."""
    aval, count = aval_of(x), aval_of(indices).shape[0]
    if not count:
        return shapes.full((*aval.shape[:axis], 0, *aval.shape[axis + 1 :]), literal(0, aval.dtype))
    sizes = tuple([1 if d == axis else n for d, n in enumerate(aval.shape)])
    gather = ops.Gather(
        offset_dims=tuple_delete(range(aval.ndim), (axis,)),
        collapsed_slice_dims=(axis,),
        start_index_map=(axis,),
        slice_sizes=sizes,
    )
    return bind(gather, (x, shapes.reshape(indices, (count, 1))))


def gather_static(x: Value, indices: ArrayOrList, axis: int) -> Value:
    """The slices of `x` at known integers along `axis`, by a few strided slices or a gather."""
    runs = index_runs(np.asarray(indices).tolist())
    if len(runs) > 8:
        return gather_along(x, np.asarray(indices, np.int32), axis)
    return copy_if_shared(
        concatenate_or_empty([slice_run(x, run, axis) for run in runs], x, axis), x
    )


def concatenate_or_empty(parts: list[Value], x: Value, axis: int) -> Value:
    if not parts:
        return slice_along(x, 0, 0, axis)
    return parts[0] if len(parts) == 1 else concatenation.concatenate(parts, axis)


def index_runs(indices: list[int]) -> list[tuple[int, int, int]]:
    """The integers as runs `(first, step, count)` with steps of 1, -1 and 0."""
    runs: list[tuple[int, int, int]] = []
    for i in indices:
        if runs:
            first, step, count = runs[-1]
            if count == 1 and abs(i - first) <= 1:
                runs[-1] = first, i - first, 2
                continue
            if count > 1 and i == first + step * count:
                runs[-1] = first, step, count + 1
                continue
        runs.append((i, 1, 1))
    return runs


def slice_run(x: Value, run: tuple[int, int, int], axis: int) -> Value:
    first, step, count = run
    if step == 1:
        return slice_along(x, first, first + count, axis)
    if step == -1:
        return shapes.rev(slice_along(x, first - count + 1, first + 1, axis), (axis,))
    shape = aval_of(x).shape
    shape = (*shape[:axis], count, *shape[axis + 1 :])
    return ops.broadcast_in_dim(
        slice_along(x, first, first + 1, axis), shape, tuple(range(len(shape)))
    )
