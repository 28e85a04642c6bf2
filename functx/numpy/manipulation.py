"""Arrays rearranged: reshaped, permuted, joined, cut, repeated, padded."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from math import prod
from operator import index
from typing import Any

import numpy as np

from functx.core.avals import Shape, ShapedArray
from functx.core.concrete import concrete
from functx.core.dtypes import canonical_dtype
from functx.core.errors import ArgumentError, AxisError, DTypeError, ShapeError, ValueRangeError
from functx.core.program import Literal
from functx.core.storage import lies_in_a_row
from functx.core.tracing import Tracer, aval_of, bind
from functx.numpy import promotion
from functx.numpy.mutation import with_out
from functx.numpy.promotion import apart, copied, never_aliased, operand, promote
from functx.ops import shaping
from functx.ops.arithmetic import add, rem, sub
from functx.ops.comparison import ge
from functx.ops.conversion import convert_element_type
from functx.ops.creation import iota
from functx.ops.indexing import Gather
from functx.ops.operands import (
    PYTHON_SCALARS,
    canonical_axes,
    canonical_axis,
    canonical_shape,
    literal,
    without,
)
from functx.ops.shaping import Reshape, broadcast_in_dim
from functx.ops.slicing import dynamic_slice, slice_in_dim
from functx.ops.strided import element

__all__ = [
    "append",
    "array_split",
    "astype",
    "atleast_1d",
    "atleast_2d",
    "atleast_3d",
    "block",
    "broadcast_arrays",
    "broadcast_shapes",
    "broadcast_to",
    "column_stack",
    "concat",
    "concatenate",
    "copy",
    "delete",
    "dsplit",
    "dstack",
    "expand_dims",
    "flip",
    "fliplr",
    "flipud",
    "hsplit",
    "hstack",
    "insert",
    "ix_",
    "matrix_transpose",
    "moveaxis",
    "pad",
    "permute_dims",
    "ravel",
    "ravel_multi_index",
    "repeat",
    "reshape",
    "resize",
    "roll",
    "rollaxis",
    "rot90",
    "split",
    "squeeze",
    "stack",
    "swapaxes",
    "tile",
    "transpose",
    "unravel_index",
    "unstack",
    "vsplit",
    "vstack",
]


def as_array(x: Any) -> Any:
    """`x` as something with a shape: lists, tuples and numbers made arrays."""
    if type(x) is Tracer:
        return x
    if type(x) in PYTHON_SCALARS or isinstance(x, (list, tuple, np.generic, Literal)):
        from functx.numpy.creation import asarray

        return asarray(x)
    return operand(x)


def static_integers(x: Any, asked: str) -> np.ndarray[Any, Any]:
    """The value of `x`, which must be integers or booleans known while tracing.

    Raises ConcretizationError, saying that `asked` needs a value, where there is none.
    """
    value = concrete(x, asked) if type(x) is Tracer else np.asarray(getattr(x, "value", x))
    if value.size == 0:
        value = value.astype(np.int64)
    if value.dtype.kind not in "iub":
        raise DTypeError(f"{asked} must be integers; got {value.dtype}")
    return value


def _fixed(value: Any, name: str) -> int:
    try:
        return index(value)
    except TypeError:
        raise ArgumentError(f"{name} must be an integer; got {value!r}") from None


# Shapes.


def reshape(a: Any, shape: Any, order: str = "C", *, copy: bool | None = None) -> Any:
    """The elements of `a` as an array of `shape`; a -1 in it stands for what is left.

    `order` says which index runs fastest in both shapes, the last ("C") or the first ("F").
    `copy` is there for NumPy's sake: results never share memory.
    """
    a = as_array(a)
    if type(shape) is not tuple:
        shape = (shape,) if type(shape) is int or not _is_sequence(shape) else tuple(shape)
    for n in shape:
        if type(n) is not int:
            shape = tuple([_fixed(n, "reshape: the shape") for n in shape])
            break
    aval = aval_of(a)
    new = _completed(aval, shape)
    if order == "C":
        return a if new == aval.shape else _reshaped(a, new)
    if order != "F":
        raise ValueRangeError(f'reshape: order must be "C" or "F"; got {order!r}')
    return transpose(shaping.reshape(transpose(a), new[::-1]))


def _reshaped(a: Any, shape: Shape) -> Any:
    # Without dimensions it still is an array, which shares memory with `a`.
    return bind(Reshape(shape), (a,)) if shape else element(a, (0,) * aval_of(a).ndim)


@lru_cache(maxsize=4096)
def _completed(aval: ShapedArray, shape: Shape) -> Shape:
    """`shape` with its -1 replaced."""
    unknown = [i for i, n in enumerate(shape) if n == -1]
    known = prod([n for n in shape if n != -1])
    fits = known > 0 and aval.size % known == 0 if unknown else known == aval.size
    if not fits or len(unknown) > 1 or any(n < -1 for n in shape):
        raise ShapeError(
            "reshape: the number of elements must stay, and one dimension at most be -1; "
            f"got {aval!r} for the shape {shape}"
        )
    return tuple([aval.size // known if n == -1 else n for n in shape])


def ravel(a: Any, order: str = "C") -> Any:
    """The elements of `a` in one dimension; a view if they lie side by side in memory."""
    a = as_array(a)
    if order == "F":
        return ravel(transpose(a))
    flat = reshape(a, (aval_of(a).size,), order)
    # A view that skips elements could be reshaped, and still NumPy copies it.
    if type(a) is Tracer and not lies_in_a_row(a):
        return copied(flat)
    return flat


def flatten(a: Any, order: str = "C") -> Any:
    """The elements of `a` in one dimension, copied; the method of arrays."""
    a = as_array(a)
    return copied(reshape(a, (aval_of(a).size,), order))


def squeeze(a: Any, axis: Any = None) -> Any:
    """`a` without its dimensions of length 1, or without those at `axis`."""
    a = as_array(a)
    shape = aval_of(a).shape
    if axis is None:
        return reshape(a, tuple([n for n in shape if n != 1]))
    axes = canonical_axes(axis, len(shape), "squeeze: axis")
    if any(shape[d] != 1 for d in axes):
        raise ShapeError(f"squeeze: axes must have length 1; got axis {axis} of {aval_of(a)!r}")
    return reshape(a, without(shape, axes))


def expand_dims(a: Any, axis: Any) -> Any:
    """`a` with dimensions of length 1 inserted, which are at `axis` of the result."""
    a = as_array(a)
    axes = axis if isinstance(axis, (tuple, list)) else (axis,)
    axes = tuple([_fixed(d, "expand_dims: axis") for d in axes])
    return shaping.reshape(a, _expanded(aval_of(a).shape, axes))


@lru_cache(maxsize=4096)
def _expanded(shape: Shape, axes: tuple[int, ...]) -> Shape:
    rank = len(shape) + len(axes)
    new = canonical_axes(axes, rank, "expand_dims: axis")
    rest = iter(shape)
    return tuple([1 if d in new else next(rest) for d in range(rank)])


def atleast_1d(*arys: Any) -> Any:
    """The arrays, scalars with one dimension; a list where several are given."""
    return _each(arys, lambda x: ravel(x) if not aval_of(x).ndim else x)


def atleast_2d(*arys: Any) -> Any:
    """The arrays with at least two dimensions, new ones first; a list where several are given."""
    return _each(arys, lambda x: _leading(x, 2))


def atleast_3d(*arys: Any) -> Any:
    """The arrays with at least three dimensions: n becomes 1 x n x 1, and n x m, n x m x 1."""

    def deep(x: Any) -> Any:
        shape = aval_of(x).shape
        if len(shape) >= 3:
            return x
        return shaping.reshape(x, (*shape, 1) if len(shape) == 2 else (1, *(shape or (1,)), 1))

    return _each(arys, deep)


def _each(arrays: tuple[Any, ...], function: Any) -> Any:
    results = [function(as_array(x)) for x in arrays]
    return results[0] if len(results) == 1 else results


def _leading(x: Any, rank: int) -> Any:
    """`x` with unit dimensions in front, up to `rank`."""
    shape = aval_of(x).shape
    return shaping.reshape(x, (1,) * (rank - len(shape)) + shape)


def broadcast_to(array: Any, shape: Any) -> Any:
    """`array` repeated along new leading dimensions and those of length 1."""
    return promotion.broadcast_to(as_array(array), canonical_shape(shape, "broadcast_to: shape"))


def broadcast_arrays(*args: Any) -> list[Any]:
    """The arrays, each repeated to the shape that all broadcast to."""
    arrays = [as_array(x) for x in args]
    if not arrays:
        return []
    shape = promotion.broadcast_shapes(*[aval_of(x).shape for x in arrays])
    return [promotion.broadcast_to(x, shape) for x in arrays]


def broadcast_shapes(*shapes: Any) -> Shape:
    """The shape that arrays of `shapes` broadcast to; an int stands for one dimension."""
    return promotion.broadcast_shapes(
        *[canonical_shape(s, "broadcast_shapes: shapes") for s in shapes]
    )


# Axes.


def transpose(a: Any, axes: Any = None) -> Any:
    """`a` with its axes in the order `axes`, reversed where none is given."""
    a = as_array(a)
    ndim = aval_of(a).ndim
    if axes is None:
        return shaping.permute_dims(a, tuple(range(ndim - 1, -1, -1)))
    canonical = canonical_axes(axes, ndim, "transpose: axes")
    if len(canonical) != ndim:
        raise AxisError(f"transpose: axes must name every axis; got {axes} for {aval_of(a)!r}")
    return shaping.permute_dims(a, canonical)


def permute_dims(a: Any, /, axes: Any) -> Any:
    """`a` with its axes in the order `axes`."""
    return transpose(a, axes)


def matrix_transpose(x: Any, /) -> Any:
    """`x` with its last two axes swapped."""
    x = as_array(x)
    ndim = aval_of(x).ndim
    if ndim < 2:
        raise ShapeError(
            f"matrix_transpose: the operand must have at least two dimensions; got {aval_of(x)!r}"
        )
    return shaping.permute_dims(x, (*range(ndim - 2), ndim - 1, ndim - 2))


def swapaxes(a: Any, axis1: int, axis2: int) -> Any:
    """`a` with two axes swapped."""
    a = as_array(a)
    ndim = aval_of(a).ndim
    axes = list(range(ndim))
    i = canonical_axis(axis1, ndim, "swapaxes: axis1")
    j = canonical_axis(axis2, ndim, "swapaxes: axis2")
    axes[i], axes[j] = j, i
    return shaping.permute_dims(a, tuple(axes))


def moveaxis(a: Any, source: Any, destination: Any) -> Any:
    """`a` with the axes `source` at `destination`, and the others in their order."""
    a = as_array(a)
    ndim = aval_of(a).ndim
    sources = canonical_axes(source, ndim, "moveaxis: source")
    places = canonical_axes(destination, ndim, "moveaxis: destination")
    if len(sources) != len(places):
        raise AxisError(
            f"moveaxis: source and destination must have one length; got {source} and {destination}"
        )
    moved = dict(zip(places, sources, strict=True))
    rest = iter(without(range(ndim), sources))
    return shaping.permute_dims(
        a, tuple([moved[d] if d in moved else next(rest) for d in range(ndim)])
    )


def rollaxis(a: Any, axis: int, start: int = 0) -> Any:
    """`a` with `axis` moved back until it lies before the axis now at `start`."""
    a = as_array(a)
    ndim = aval_of(a).ndim
    source = canonical_axis(axis, ndim, "rollaxis: axis")
    place = canonical_axis(start, ndim + 1, "rollaxis: start") if start != ndim else ndim
    if start < 0:
        place -= 1
    return shaping.moveaxis(a, source, place - (place > source))


# Joining and cutting.


def _promoted(name: str, arrays: Any, dtype: Any) -> tuple[Any, ...]:
    """The arrays in one dtype, as quickly as may be where they have one."""
    if not arrays:
        raise ValueRangeError(f"{name}: there must be at least one array; got none")
    if not alike(arrays):
        arrays = promote(*arrays)
    if dtype is not None:
        dtype = canonical_dtype(dtype)
        arrays = [convert_element_type(x, dtype) for x in arrays]
    return tuple(arrays)


def alike(arrays: Sequence[Any]) -> bool:
    """Whether all are traced arrays of one dtype, none weak."""
    first = arrays[0]
    if type(first) is not Tracer:
        return False
    dtype = first.aval.dtype
    for x in arrays:
        if type(x) is not Tracer or x.aval.dtype != dtype or x.aval.weak_type:
            return False
    return True


def _arrays(arrays: Any) -> Sequence[Any]:
    """The arrays of a sequence, or those along the first axis of an array."""
    return arrays if isinstance(arrays, (list, tuple)) else unstack(arrays)


@with_out
def concatenate(arrays: Any, axis: int | None = 0, dtype: Any = None) -> Any:
    """The arrays joined along `axis`, in one dtype; flattened first where it is None."""
    arrays = _promoted("concatenate", _arrays(arrays), dtype)
    if axis is None:
        arrays, axis = tuple([ravel(x) for x in arrays]), 0
    ndim = aval_of(arrays[0]).ndim
    if not ndim:
        raise ShapeError(
            f"concatenate: arrays must have at least one dimension; got {aval_of(arrays[0])!r}",
            fix="Use stack to make a dimension of scalars.",
        )
    joined = shaping.concatenate(arrays, canonical_axis(axis, ndim, "concatenate: axis"))
    return copied(joined) if len(arrays) == 1 else joined


@with_out
def concat(arrays: Any, /, *, axis: int | None = 0) -> Any:
    """The arrays joined along `axis`, in one dtype; flattened first where it is None."""
    return concatenate(arrays, axis)


@with_out
def stack(arrays: Any, axis: int = 0, *, dtype: Any = None) -> Any:
    """The arrays, all of one shape, joined along a new axis, which is `axis` of the result."""
    arrays = _promoted("stack", _arrays(arrays), dtype)
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
        return copied(shaping.concatenate([shaping.reshape(x, (1,)) for x in arrays], 0))
    if n == 1:
        return shaping.expand_dims(copied(arrays[0]), axis)
    if axis < len(shape):
        # The joined axis counts the arrays, and then along each: two axes of the result.
        joined = shaping.concatenate(arrays, axis)
        return bind(Reshape((*shape[:axis], n, *shape[axis:])), (joined,))
    joined = bind(Reshape((n, *shape)), (shaping.concatenate(arrays, 0),))
    return shaping.moveaxis(joined, 0, axis)


def vstack(tup: Any, dtype: Any = None) -> Any:
    """The arrays joined along the first axis, vectors as rows."""
    return concatenate([atleast_2d(x) for x in _promoted("vstack", _arrays(tup), dtype)])


def hstack(tup: Any, dtype: Any = None) -> Any:
    """The arrays joined along the second axis, vectors and scalars along the first."""
    arrays = [atleast_1d(x) for x in _promoted("hstack", _arrays(tup), dtype)]
    return concatenate(arrays, 0 if aval_of(arrays[0]).ndim == 1 else 1)


def dstack(tup: Any, dtype: Any = None) -> Any:
    """The arrays joined along the third axis, which those of fewer dimensions are given."""
    return concatenate([atleast_3d(x) for x in _promoted("dstack", _arrays(tup), dtype)], 2)


def column_stack(tup: Any) -> Any:
    """The arrays joined along the second axis, vectors as columns."""
    arrays = [as_array(x) for x in _promoted("column_stack", _arrays(tup), None)]
    columns = [x if aval_of(x).ndim > 1 else expand_dims(ravel(x), 1) for x in arrays]
    return concatenate(columns, 1)


def append(arr: Any, values: Any, axis: int | None = None) -> Any:
    """`values` joined to the end of `arr` along `axis`; both flattened where it is None."""
    return concatenate(promote(arr, values), axis)


def block(arrays: Any) -> Any:
    """An array put together from nested lists of blocks, the innermost along the last axis."""
    depth = _depth(arrays)
    leaves = [as_array(x) for x in promote(*_leaves(arrays))]
    rank = max([depth, *[aval_of(x).ndim for x in leaves]])
    rest = iter(leaves)

    def join(part: Any, axis: int) -> Any:
        if not isinstance(part, list):
            return _leading(next(rest), rank)
        return concatenate([join(x, axis + 1) for x in part], axis)

    return join(arrays, rank - depth) if depth else copied(leaves[0])


def _depth(nested: Any) -> int:
    if not isinstance(nested, list):
        return 0
    depths = {_depth(x) for x in nested}
    if len(depths) != 1:
        raise ShapeError(f"block: lists must be nested to one depth; got {sorted(depths)}")
    return depths.pop() + 1


def _leaves(nested: Any) -> list[Any]:
    if not isinstance(nested, list):
        return [nested]
    return [leaf for x in nested for leaf in _leaves(x)]


def cut(x: Any, start: int, stop: int, axis: int) -> Any:
    """`x[start:stop]` along `axis`."""
    if start == 0 and stop == aval_of(x).shape[axis]:
        return x
    return slice_in_dim(x, start, stop, 1, axis)


def _parts(name: str, ary: Any, sections: Any, axis: int, even: bool) -> list[Any]:
    ary = as_array(ary)
    aval = aval_of(ary)
    axis = canonical_axis(axis, aval.ndim, f"{name}: axis")
    n = aval.shape[axis]
    given = static_integers(sections, f"{name}: the sections")
    if given.ndim == 0:
        count = int(given)
        if count < 1 or (even and n % count):
            raise ValueRangeError(
                f"{name}: the axis must divide into that many equal sections; got {count} "
                f"sections for axis {axis} of {aval!r}",
                fix="Use array_split for sections of nearly equal length." if count > 0 else "",
            )
        short, longer = divmod(n, count)
        return _split(ary, [short + (i < longer) for i in range(count)], axis)
    spans = [slice(*pair).indices(n)[:2] for pair in pairwise([0, *given.tolist(), n])]
    sizes = [max(stop - start, 0) for start, stop in spans]
    if sum(sizes) == n:
        return _split(ary, sizes, axis)
    # Indices that go down again give sections that overlap.
    return [cut(ary, start, max(start, stop), axis) for start, stop in spans]


def _split(x: Any, sizes: Sequence[int], axis: int) -> list[Any]:
    return list(shaping.split(x, sizes, axis)) if len(sizes) > 1 else [x]


def split(ary: Any, indices_or_sections: Any, axis: int = 0) -> list[Any]:
    """`ary` cut along `axis` into so many equal sections, or before each of the indices."""
    return _parts("split", ary, indices_or_sections, axis, even=True)


def array_split(ary: Any, indices_or_sections: Any, axis: int = 0) -> list[Any]:
    """`ary` cut along `axis` as by `split`; the first sections may be longer by one."""
    return _parts("array_split", ary, indices_or_sections, axis, even=False)


def hsplit(ary: Any, indices_or_sections: Any) -> list[Any]:
    """`ary` cut along its second axis, a vector along its only one."""
    ary = as_array(ary)
    axis = 0 if aval_of(ary).ndim == 1 else 1
    return _parts("hsplit", ary, indices_or_sections, axis, even=True)


def vsplit(ary: Any, indices_or_sections: Any) -> list[Any]:
    """`ary`, of at least two dimensions, cut along its first axis."""
    return _parts("vsplit", _of_rank("vsplit", ary, 2), indices_or_sections, 0, even=True)


def dsplit(ary: Any, indices_or_sections: Any) -> list[Any]:
    """`ary`, of at least three dimensions, cut along its third axis."""
    return _parts("dsplit", _of_rank("dsplit", ary, 3), indices_or_sections, 2, even=True)


def _of_rank(name: str, x: Any, rank: int) -> Any:
    x = as_array(x)
    if aval_of(x).ndim < rank:
        raise ShapeError(
            f"{name}: the array must have at least {rank} dimensions; got {aval_of(x)!r}"
        )
    return x


def unstack(x: Any, /, *, axis: int = 0) -> tuple[Any, ...]:
    """The arrays that lie along `axis`, each without it."""
    x = as_array(x)
    shape = aval_of(x).shape
    axis = canonical_axis(axis, len(shape), "unstack: axis")
    rest = without(shape, (axis,))
    parts = _split(x, (1,) * shape[axis], axis) if shape[axis] else []
    return tuple([shaping.reshape(part, rest) for part in parts])


# Repeating and turning.


@never_aliased
def tile(A: Any, reps: Any) -> Any:  # noqa: N803 - NumPy's name
    """`A` repeated `reps` times along each axis, the last count for the last axis."""
    a = as_array(A)
    counts = canonical_shape(reps, "tile: reps")
    shape = aval_of(a).shape
    rank = max(len(counts), len(shape))
    counts = (1,) * (rank - len(counts)) + counts
    shape = (1,) * (rank - len(shape)) + shape
    if all(n == 1 for n in counts):
        return copied(shaping.reshape(a, shape))
    wide = tuple([n for pair in zip(counts, shape, strict=True) for n in pair])
    kept = tuple(range(2 * (rank - aval_of(a).ndim) + 1, 2 * rank, 2))
    whole = tuple([n * m for n, m in zip(counts, shape, strict=True)])
    return copied(shaping.reshape(broadcast_in_dim(a, wide, kept), whole))


@never_aliased
def repeat(
    a: Any, repeats: Any, axis: int | None = None, *, total_repeat_length: int | None = None
) -> Any:
    """Each element of `a` along `axis` repeated, `repeats` times or each its own count.

    `a` is flattened where `axis` is None. The counts must be known while tracing, or
    `total_repeat_length` give their sum: the result is cut to it, or filled up to it with
    the last element.
    """
    a = as_array(a)
    if axis is None:
        a, axis = ravel(a), 0
    shape = aval_of(a).shape
    axis = canonical_axis(axis, len(shape), "repeat: axis")
    n = shape[axis]
    if total_repeat_length is not None and type(repeats) is Tracer:
        return _repeat_to(a, repeats, axis, _fixed(total_repeat_length, "total_repeat_length"))
    if type(repeats) is int and repeats >= 0 and total_repeat_length is None:
        return copied(_repeat_each(a, repeats, axis))
    counts = static_integers(repeats, "repeat: the counts")
    if counts.ndim > 1 or counts.size not in (1, n) or (counts < 0).any():
        raise ValueRangeError(
            "repeat: the counts must be one number, or one for each element, none negative; "
            f"got {counts.tolist()} for axis {axis} of {aval_of(a)!r}"
        )
    if counts.size == 1 and total_repeat_length is None:
        return _repeat_each(a, counts.item(), axis)
    indices = np.repeat(np.arange(n), np.broadcast_to(counts, (n,)))
    if total_repeat_length is not None:
        length = _fixed(total_repeat_length, "total_repeat_length")
        indices = np.concatenate([indices, np.full(length, max(n - 1, 0))])[:length]
    return take_static(a, indices, axis)


def _repeat_each(a: Any, count: int, axis: int) -> Any:
    if count == 1:
        return a
    shape = aval_of(a).shape
    wide = (*shape[: axis + 1], count, *shape[axis + 1 :])
    repeated = broadcast_in_dim(a, wide, without(range(len(wide)), (axis + 1,)))
    return shaping.reshape(repeated, (*shape[:axis], shape[axis] * count, *shape[axis + 1 :]))


def _repeat_to(a: Any, repeats: Any, axis: int, length: int) -> Any:
    from functx.numpy.sorting import searchsorted
    from functx.ops.cumulative import cumsum

    n = aval_of(a).shape[axis]
    counts = promotion.broadcast_to(repeats, (n,))
    # Place i of the result holds the element whose span of counts i falls in.
    places = iota(aval_of(counts).dtype, length)
    return take_along(a, searchsorted(cumsum(counts, 0), places, side="right"), axis)


def take_along(x: Any, indices: Any, axis: int) -> Any:
    """The parts of `x` at a vector of integers along `axis`, those outside moved inside."""
    aval, count = aval_of(x), aval_of(indices).shape[0]
    sizes = tuple([1 if d == axis else n for d, n in enumerate(aval.shape)])
    gather = Gather(
        offset_dims=without(range(aval.ndim), (axis,)),
        collapsed_slice_dims=(axis,),
        start_index_map=(axis,),
        slice_sizes=sizes,
    )
    return bind(gather, (x, shaping.reshape(indices, (count, 1))))


def take_static(x: Any, indices: Any, axis: int) -> Any:
    """The parts of `x` at given integers along `axis`, by slices where those are few."""
    runs = _runs(np.asarray(indices).tolist())
    if len(runs) > 8:
        return take_along(x, np.asarray(indices, np.int32), axis)
    return apart(_joined([_run(x, run, axis) for run in runs], x, axis), x)


def _joined(parts: list[Any], x: Any, axis: int) -> Any:
    if not parts:
        return cut(x, 0, 0, axis)
    return parts[0] if len(parts) == 1 else shaping.concatenate(parts, axis)


def _runs(indices: list[int]) -> list[tuple[int, int, int]]:
    """The integers as `(first, step, count)` with steps of 1, -1 and 0."""
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


def _run(x: Any, run: tuple[int, int, int], axis: int) -> Any:
    first, step, count = run
    if step == 1:
        return cut(x, first, first + count, axis)
    if step == -1:
        return shaping.rev(cut(x, first - count + 1, first + 1, axis), (axis,))
    shape = aval_of(x).shape
    shape = (*shape[:axis], count, *shape[axis + 1 :])
    return broadcast_in_dim(cut(x, first, first + 1, axis), shape, tuple(range(len(shape))))


def flip(m: Any, axis: Any = None) -> Any:
    """`m` with the order along `axis` reversed: one axis, several, or all."""
    m = as_array(m)
    axes = canonical_axes(axis, aval_of(m).ndim, "flip: axis")
    return shaping.rev(m, axes) if axes else m


def fliplr(m: Any) -> Any:
    """`m` with the order along its second axis reversed."""
    return flip(_of_rank("fliplr", m, 2), 1)


def flipud(m: Any) -> Any:
    """`m` with the order along its first axis reversed."""
    return flip(_of_rank("flipud", m, 1), 0)


def rot90(m: Any, k: int = 1, axes: Any = (0, 1)) -> Any:
    """`m` turned by `k` right angles in the plane of two axes, from the first to the second."""
    m = _of_rank("rot90", m, 2)
    pair = canonical_axes(axes, aval_of(m).ndim, "rot90: axes")
    if len(pair) != 2:
        raise AxisError(f"rot90: axes must be two; got {axes}")
    turns = _fixed(k, "rot90: k") % 4
    if turns == 0:
        return m
    if turns == 2:
        return flip(m, pair)
    if turns == 1:
        return swapaxes(flip(m, pair[1]), *pair)
    return flip(swapaxes(m, *pair), pair[1])


@never_aliased
def roll(a: Any, shift: Any, axis: Any = None) -> Any:
    """`a` with its elements moved `shift` places along `axis`, those at the end to the front.

    Several axes take a shift each, or share one. Without an axis the elements are moved in
    the order of the flattened array.
    """
    a = as_array(a)
    aval = aval_of(a)
    if axis is None:
        return copied(shaping.reshape(_rolled(ravel(a), shift, 0), aval.shape))
    axes = axis if isinstance(axis, (tuple, list)) else (axis,)
    if type(shift) is Tracer:
        shifts: Sequence[Any] = unstack(shift) if shift.aval.ndim else (shift,)
    else:
        shifts = shift if isinstance(shift, (tuple, list)) else np.ravel(shift).tolist()
    if len(axes) != len(shifts):
        if 1 not in (len(axes), len(shifts)):
            raise AxisError(f"roll: shifts and axes must pair; got {shift} and {axis}")
        axes, shifts = tuple(axes) * len(shifts), tuple(shifts) * len(axes)
    for one, by in zip(axes, shifts, strict=True):
        a = _rolled(a, by, canonical_axis(one, aval.ndim, "roll: axis"))
    return a


def _rolled(a: Any, shift: Any, axis: int) -> Any:
    n = aval_of(a).shape[axis]
    if type(shift) is Tracer:
        if not n:
            return a
        shift = shaping.reshape(shift, ())
        start = sub(n, rem(add(rem(shift, n), n), n))
        starts = [start if d == axis else 0 for d in range(aval_of(a).ndim)]
        return dynamic_slice(shaping.concatenate([a, a], axis), starts, aval_of(a).shape)
    by = shift if type(shift) is int else static_integers(shift, "roll: the shift").item()
    by %= max(n, 1)
    if by == 0:
        return a
    return shaping.concatenate([cut(a, n - by, n, axis), cut(a, 0, n - by, axis)], axis)


# Padding, and elements put in or left out.


@never_aliased
def pad(array: Any, pad_width: Any, mode: str = "constant", **kwargs: Any) -> Any:
    """`array` with `pad_width` more elements before and after along each axis.

    The widths are one number, one pair, a pair for each axis, or a dict of them by axis.
    Modes: "constant" (`constant_values`, laid out like the widths, 0 by default), "edge" (the
    outermost element), "reflect" and "symmetric" (mirrored without and with the outermost
    element), "wrap" (from the other end), "empty" (any value), and "maximum", "minimum" and
    "mean" (of the `stat_length` outermost elements).
    """
    array = as_array(array)
    aval = aval_of(array)
    allowed = _PAD_OPTIONS.get(mode) if isinstance(mode, str) else None
    if allowed is None:
        raise ValueRangeError(f"pad: mode must be one of {', '.join(_PAD_OPTIONS)}; got {mode!r}")
    if not kwargs.keys() <= allowed:
        raise ArgumentError(
            f"pad: the mode {mode!r} takes the options {allowed}; got {set(kwargs)}"
        )
    if isinstance(pad_width, dict):
        by_axis = {canonical_axis(d, aval.ndim, "pad: axis"): w for d, w in pad_width.items()}
        pad_width = [by_axis.get(d, 0) for d in range(aval.ndim)]
    widths = [
        (_fixed(low, "pad: widths"), _fixed(high, "pad: widths"))
        for low, high in _pairs(pad_width, aval.ndim, "widths")
    ]
    if any(n < 0 for pair in widths for n in pair):
        raise ValueRangeError(f"pad: widths must not be negative; got {pad_width}")
    if mode in ("constant", "empty"):
        return _pad_constant(array, widths, kwargs.get("constant_values", 0))
    lengths = _pairs(kwargs.get("stat_length"), aval.ndim, "lengths")
    for axis, (low, high) in enumerate(widths):
        if (low or high) and not aval.shape[axis]:
            raise ShapeError(
                f"pad: an axis without elements must be padded by a constant; got axis {axis} "
                f"of {aval!r} with mode {mode!r}"
            )
        if mode in _STATISTICS:
            sides = [
                _statistic(mode, array, axis, width, count, end)
                for width, count, end in zip((low, high), lengths[axis], (False, True), strict=True)
            ]
            parts = [*sides[0], array, *sides[1]]
        else:
            n = aval.shape[axis]
            indices = np.pad(np.arange(n), (low, high), mode=mode)  # type: ignore[call-overload]
            outside = _runs(indices[:low].tolist()), _runs(indices[low + n :].tolist())
            if len(outside[0]) + len(outside[1]) > 8:
                array = take_along(array, indices.astype(np.int32), axis)
                continue
            before, after = ([_run(array, run, axis) for run in runs] for runs in outside)
            parts = [*before, array, *after]
        array = _joined(parts, array, axis)
    return array


_STATISTICS = ("maximum", "minimum", "mean")
_PAD_OPTIONS: dict[str, set[str]] = {
    "constant": {"constant_values"},
    "empty": set(),
    "edge": set(),
    "reflect": set(),
    "symmetric": set(),
    "wrap": set(),
    **{name: {"stat_length"} for name in _STATISTICS},
}


def _pairs(value: Any, ndim: int, what: str) -> list[tuple[Any, Any]]:
    """A pair for each axis, from one value, one pair, or one of either for each axis."""
    if not _is_sequence(value):
        return [(value, value)] * ndim
    items = list(value)
    if not any(_is_sequence(item) for item in items):
        # NumPy reads two numbers as one pair for all axes.
        if len(items) == 2:
            return [(items[0], items[1])] * ndim
        items = [items]
    if len(items) == 1:
        items *= ndim
    pairs = [tuple(item) if _is_sequence(item) else (item,) for item in items]
    if len(pairs) != ndim or any(len(pair) not in (1, 2) for pair in pairs):
        raise ValueRangeError(
            f"pad: {what} must be one number, a pair, or a pair for each of {ndim} axes; "
            f"got {value}"
        )
    return [(pair[0], pair[-1]) for pair in pairs]


def _is_sequence(value: Any) -> bool:
    return isinstance(value, (list, tuple)) or getattr(value, "ndim", 0) > 0


def _pad_constant(array: Any, widths: list[tuple[int, int]], values: Any) -> Any:
    if not _is_sequence(values):
        whole = tuple([(low, high, 0) for low, high in widths])
        return shaping.pad(array, _fill(values, array), whole)
    for axis, pair in enumerate(_pairs(values, len(widths), "constant_values")):
        for side, value in enumerate(pair):
            config = [(0, 0, 0)] * len(widths)
            width = widths[axis][side]
            config[axis] = (0, width, 0) if side else (width, 0, 0)
            array = shaping.pad(array, _fill(value, array), tuple(config))
    return array


def _fill(value: Any, like: Any) -> Any:
    if type(value) in PYTHON_SCALARS:
        value = np.asarray(value).astype(aval_of(like).dtype).item()
        return promotion.number_like(value, like)
    return convert_element_type(operand(value), aval_of(like).dtype)


def _statistic(mode: str, x: Any, axis: int, width: int, count: Any, end: bool) -> list[Any]:
    """What stands before (after, at the `end`) `x`: a statistic of its outermost elements."""
    from functx.numpy import averages, reductions, whole_numbers

    if not width:
        return []
    shape = aval_of(x).shape
    n = shape[axis]
    count = n if count is None else min(_fixed(count, "pad: stat_length"), n)
    if count < 1:
        raise ValueRangeError(f"pad: stat_length must be positive; got {count}")
    outermost = cut(x, n - count, n, axis) if end else cut(x, 0, count, axis)
    functions: dict[str, Any] = {
        "maximum": reductions.max,
        "minimum": reductions.min,
        "mean": averages.mean,
    }
    value = functions[mode](outermost, axis=axis, keepdims=True)
    dtype = aval_of(x).dtype
    if aval_of(value).dtype != dtype:
        value = convert_element_type(whole_numbers.round(value), dtype)
    shape = (*shape[:axis], width, *shape[axis + 1 :])
    return [broadcast_in_dim(value, shape, tuple(range(len(shape))))]


def _positions(name: str, obj: Any, n: int) -> np.ndarray[Any, Any]:
    """`obj`, an int, a slice, integers or a mask, as integers, negative ones counted from `n`."""
    if isinstance(obj, slice):
        return np.arange(n)[obj]
    given = static_integers(obj, f"{name}: the indices")
    if given.dtype == np.bool_:
        if given.shape != (n,):
            raise ShapeError(
                f"{name}: a mask must have the length of the axis, {n}; got {given.shape}"
            )
        return np.flatnonzero(given)
    limit = n + 1 if name == "insert" else n
    if (given < -n).any() or (given >= limit).any():
        raise ValueRangeError(f"{name}: indices must be in [{-n}, {limit}); got {given.tolist()}")
    return np.where(given < 0, given + n, given)


def delete(
    arr: Any, obj: Any, axis: int | None = None, *, assume_unique_indices: bool = False
) -> Any:
    """`arr` without its elements at `obj` along `axis`; flattened first where it is None.

    `obj` is an int, a slice, integers or a mask. A traced one must be a single integer, or
    distinct integers, which `assume_unique_indices` warrants.
    """
    arr = as_array(arr)
    if axis is None:
        arr, axis = ravel(arr), 0
    axis = canonical_axis(axis, aval_of(arr).ndim, "delete: axis")
    n = aval_of(arr).shape[axis]
    traced = type(obj) is Tracer and obj.aval.dtype.kind in "iu"
    if traced and (not obj.aval.ndim or assume_unique_indices):
        return take_along(arr, _kept(ravel(obj), n), axis)
    return take_static(arr, np.delete(np.arange(n), _positions("delete", obj, n)), axis)


def _kept(left_out: Any, n: int) -> Any:
    """The integers below `n` that are not among distinct traced ones."""
    from functx.numpy.sorting import sort

    aval = aval_of(left_out)
    wrapped = rem(add(left_out, n), n)
    places = iota(aval.dtype, n - aval.size)
    # Each one left out moves on by one the places from where it stood.
    for gone in unstack(sort(wrapped)):
        places = add(places, convert_element_type(ge(places, gone), aval.dtype))
    return places


def insert(arr: Any, obj: Any, values: Any, axis: int | None = None) -> Any:
    """`arr` with `values` put in before the positions `obj` along `axis`.

    `obj` is an int, a slice, integers or a mask, known while tracing. `arr` is flattened
    first where `axis` is None.
    """
    arr, values = as_array(arr), as_array(values)
    if axis is None:
        arr, axis = ravel(arr), 0
    aval = aval_of(arr)
    axis = canonical_axis(axis, aval.ndim, "insert: axis")
    n = aval.shape[axis]
    places = _positions("insert", obj, n)
    values = (
        convert_element_type(values, aval.dtype) if aval_of(values).dtype != aval.dtype else values
    )
    shape = list(aval.shape)
    if places.size == 1:
        if aval_of(values).ndim < aval.ndim:
            values = _leading(values, aval.ndim)
        if places.ndim == 0:
            values = shaping.moveaxis(values, 0, axis)
        shape[axis] = aval_of(values).shape[axis]
        places = np.full(shape[axis], places.reshape(()))
    else:
        shape[axis] = places.size
    values = promotion.broadcast_to(values, tuple(shape))
    order = np.argsort(places, kind="stable")
    places[order] += np.arange(len(places))
    sources = np.empty(n + len(places), np.int64)
    own = np.ones(len(sources), bool)
    own[places] = False
    sources[own] = np.arange(n)
    sources[places] = n + np.arange(len(places))
    return take_static(shaping.concatenate([arr, values], axis), sources, axis)


def resize(a: Any, new_shape: Any) -> Any:
    """The elements of `a`, over and over again, as an array of `new_shape`."""
    flat = flatten(a)
    shape = canonical_shape(new_shape, "resize: new_shape")
    own, size = aval_of(flat).size, prod(shape)
    if not own:
        return shaping.full(shape, literal(0, aval_of(flat).dtype))
    times = -(-size // own)
    if times > 1:
        flat = shaping.concatenate([flat] * times, 0)
    return shaping.reshape(cut(flat, 0, size, 0), shape)


def copy(a: Any, order: str | None = None) -> Any:
    """`a` as an array of its own."""
    return copied(as_array(a))


def astype(x: Any, dtype: Any, /, *, copy: bool = True, device: Any = None) -> Any:
    """`x` in `dtype`: floats to integers towards zero, complex numbers to their real parts."""
    out = convert_element_type(as_array(x), np.float64 if dtype is None else dtype)
    return apart(out, x) if copy else out


# Positions in several dimensions.


def ix_(*args: Any) -> tuple[Any, ...]:
    """Vectors shaped to index by all their combinations; masks stand for where they hold."""
    arrays = [as_array(x) for x in args]
    for x in arrays:
        if aval_of(x).ndim != 1:
            raise ShapeError(f"ix_: operands must have one dimension; got {aval_of(x)!r}")
    arrays = [
        np.flatnonzero(static_integers(x, "ix_: a mask")) if aval_of(x).dtype == np.bool_ else x
        for x in arrays
    ]
    rank = len(arrays)
    return tuple(
        [
            shaping.reshape(x, tuple([aval_of(x).size if d == i else 1 for d in range(rank)]))
            for i, x in enumerate(arrays)
        ]
    )


def unravel_index(indices: Any, shape: Any) -> tuple[Any, ...]:
    """The indices in each dimension of the elements at `indices` of the flattened array.

    Negative ones count from the end; those outside are moved inside.
    """
    from functx.numpy import choices, operators, whole_numbers

    indices = as_array(indices)
    if aval_of(indices).dtype.kind not in "iu":
        raise DTypeError(f"unravel_index: indices must be integers; got {aval_of(indices)!r}")
    sizes = canonical_shape(shape, "unravel_index: shape")
    total = prod(sizes)
    if aval_of(indices).dtype.kind == "i":
        indices = choices.where(operators.less(indices, 0), indices + total, indices)
    left = choices.clip(indices, 0, max(total - 1, 0))
    results = []
    for n in reversed(sizes):
        results.append(whole_numbers.remainder(left, n))
        left = whole_numbers.floor_divide(left, n)
    return tuple(results[::-1])


def ravel_multi_index(
    multi_index: Sequence[Any], dims: Any, mode: Any = "raise", order: str = "C"
) -> Any:
    """The index in the flattened array of the element at `multi_index`, one index a dimension.

    Indices outside are moved inside with the mode "clip", counted around with "wrap"; with
    "raise" they must be known while tracing. A tuple gives each dimension its own mode.
    """
    from functx.numpy import choices, operators, whole_numbers

    sizes = canonical_shape(dims, "ravel_multi_index: dims")
    arrays = promote(*multi_index)
    modes = mode if isinstance(mode, tuple) else (mode,) * len(sizes)
    if len(arrays) != len(sizes) or len(modes) != len(sizes):
        raise ShapeError(
            f"ravel_multi_index: there must be one index a dimension; got {len(arrays)} for {sizes}"
        )
    if order not in ("C", "F"):
        raise ValueRangeError(f'ravel_multi_index: order must be "C" or "F"; got {order!r}')
    total, stride = None, 1
    steps = list(zip(arrays, sizes, modes, strict=True))
    for x, n, how in reversed(steps) if order == "C" else steps:
        if how == "raise":
            value = static_integers(x, 'ravel_multi_index with the mode "raise"')
            if ((value < 0) | (value >= n)).any():
                raise ValueRangeError(
                    f"ravel_multi_index: indices must be in [0, {n}); got {value}"
                )
        elif how == "clip":
            x = choices.clip(x, 0, n - 1)
        elif how == "wrap":
            x = whole_numbers.remainder(x, n)
        else:
            raise ValueRangeError(
                f'ravel_multi_index: mode must be "raise", "clip" or "wrap"; got {how!r}'
            )
        term = operators.multiply(x, stride)
        total = term if total is None else operators.add(total, term)
        stride *= n
    return total
