"""Functions that reshape and broadcast arrays, and move their axes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from math import prod
from typing import Any, TypeGuard

import numpy as np

from functx import ops
from functx.core.binding import bind
from functx.core.concretization import concretize
from functx.core.errors import AxisError, DTypeError, ShapeError, ValueRangeError, type_name
from functx.core.memory_layouts import (
    is_contiguous,
    noncontiguous_strides,
    record_layout_dependence,
    storage_base,
)
from functx.core.program import Literal
from functx.core.tracer import Tracer, aval_of, is_variable
from functx.core.types import Shape, ShapedArray
from functx.core.typing import (
    ArrayOrList,
    Axes,
    DTypeLike,
    Keys,
    NumPyArray,
    ShapeLike,
    Value,
)
from functx.numpy import promotion
from functx.numpy.devices import on_device
from functx.numpy.promotion import copy_array, copy_if_same_memory, operand
from functx.ops import shapes
from functx.ops.operands import (
    PYTHON_SCALARS,
    as_int,
    canonical_axes,
    canonical_axis,
    canonical_shape,
    shape_entries,
    tuple_delete,
)
from functx.ops.views import Copy, element_view, returns_view

__all__ = [
    "astype",
    "atleast_1d",
    "atleast_2d",
    "atleast_3d",
    "broadcast_arrays",
    "broadcast_shapes",
    "broadcast_to",
    "copy",
    "expand_dims",
    "matrix_transpose",
    "moveaxis",
    "permute_dims",
    "ravel",
    "reshape",
    "rollaxis",
    "squeeze",
    "swapaxes",
    "transpose",
]


def ensure_array(x: ArrayOrList) -> Value:
    """`x` as an array; an array keeps its memory and its dtype, 64-bit ones too."""
    if type(x) is Tracer:
        return x
    if type(x) in PYTHON_SCALARS or isinstance(x, (list, tuple, np.generic, Literal)):
        from functx.numpy.array_creation import asarray

        return asarray(x)
    return operand(x)


def static_integers(x: ArrayOrList, requested_by: str) -> NumPyArray:
    """The value of `x`, integers or booleans known while tracing.

    Raises ConcretizationError, which names `requested_by`, if the value is not known, and
    DTypeError for other dtypes.
    """
    value = concretize(x, requested_by) if type(x) is Tracer else np.asarray(getattr(x, "value", x))
    if value.size == 0:
        value = value.astype(np.int64)
    if value.dtype.kind not in "iub":
        raise DTypeError(f"{requested_by} must be integers; got {value.dtype}")
    return value


@returns_view
def reshape(
    a: ArrayOrList, shape: ShapeLike, order: str = "C", *, copy: bool | None = None
) -> Value:
    """The elements of `a` in `shape`, in which one -1 stands for the remaining elements.

    `order` says which index changes fastest in both shapes: the last ("C"), or the first ("F").
    "A" is "F" for an array in column-major order, else "C". With `copy=True` the result is a
    copy; `copy=False` raises ShapeError if it cannot be a view.
    """
    if copy is not None:
        return _copy_or_check_shared(a, reshape(a, shape, order), copy)
    a = ensure_array(a)
    lengths = shape if type(shape) is tuple else shape_entries(shape)
    for n in lengths:
        if type(n) is not int:
            lengths = tuple([as_int("reshape: the shape", n) for n in lengths])
            break
    aval = aval_of(a)
    new = _resolve_shape(aval, lengths)
    if order == "C":
        return a if new == aval.shape else _bind_reshape(a, new)
    if order == "A":
        return reshape(a, lengths, "F" if is_column_major(a) else "C")
    if order != "F":
        raise ValueRangeError(f'reshape: order must be "C", "F" or "A"; got {order!r}')
    return transpose(shapes.reshape(transpose(a), new[::-1]))


def _copy_or_check_shared(a: ArrayOrList, reshaped: Value, copy: bool) -> Value:
    """A copy of `reshaped` if `copy`; else `reshaped`, which must share the memory of `a`."""
    if copy:
        return copy_array(reshaped)
    if type(reshaped) is Tracer:
        shares = type(a) is Tracer and storage_base(reshaped).atom is storage_base(a).atom
    elif is_variable(reshaped):
        shares = is_variable(a) and reshaped.memory is a.memory  # type: ignore[attr-defined, union-attr]
    else:
        shares = not isinstance(a, np.ndarray) or np.may_share_memory(reshaped, a)
    if not shares:
        raise ShapeError(
            "reshape: with copy=False the layout of the array must allow a view in "
            f"the new shape; got {type_name(a)}",
            fix="Pass copy=None, which copies where it must.",
        )
    return reshaped


def is_column_major(a: Value) -> bool:
    """Whether an array is contiguous in column-major order, and not in row-major order."""
    record_layout_dependence(a, writes=True)
    return not is_contiguous(a) and is_contiguous(transpose(a))


def _bind_reshape(a: Value, shape: Shape) -> Value:
    # A result without dimensions is a view of `a` too.
    return bind(ops.Reshape(shape), (a,)) if shape else element_view(a, (0,) * aval_of(a).ndim)


@lru_cache(maxsize=4096)
def _resolve_shape(aval: ShapedArray, shape: Shape) -> Shape:
    """`shape` with -1 replaced by the length that keeps the number of elements."""
    unknown = [i for i, n in enumerate(shape) if n == -1]
    known = prod([n for n in shape if n != -1])
    fits = known > 0 and aval.size % known == 0 if unknown else known == aval.size
    if not fits or len(unknown) > 1 or any(n < -1 for n in shape):
        raise ShapeError(
            "reshape: the number of elements must stay, and one dimension at most be -1; "
            f"got {aval!r} for the shape {shape}",
            fix=f"The new shape must have {aval.size} elements; -1 stands for the remaining length.",
        )
    return tuple([aval.size // known if n == -1 else n for n in shape])


def ravel(a: ArrayOrList, order: str = "C") -> Value:
    """The elements of `a` in one dimension; a view if `a` is contiguous.

    `order` is "C", "F" or "A" as for `reshape`, or "K", the order in memory.
    """
    a = ensure_array(a)
    if order == "F" or (order == "A" and is_column_major(a)):
        return ravel(transpose(a))
    if order == "A":
        return ravel(a)
    if order == "K":
        record_layout_dependence(a, writes=True)
        steps = noncontiguous_strides(a) or ()
        axes = sorted(range(len(steps)), key=lambda d: -abs(steps[d]))
        return ravel(transpose(a, axes) if steps else a)
    flat = reshape(a, (aval_of(a).size,), order)
    # NumPy copies a view that skips elements, even where a view of one dimension exists.
    if not is_contiguous(a):
        return copy_array(flat)
    return flat


def flatten(a: ArrayOrList, order: str = "C") -> Value:
    """A copy of the elements of `a` in one dimension, as the method of arrays returns it."""
    a = ensure_array(a)
    return copy_array(reshape(a, (aval_of(a).size,), order))


def squeeze(a: ArrayOrList, axis: Axes = None) -> Value:
    """`a` without its dimensions of length 1, or without those of them at `axis`."""
    a = ensure_array(a)
    shape = aval_of(a).shape
    if axis is None:
        return reshape(a, tuple([n for n in shape if n != 1]))
    axes = canonical_axes(axis, len(shape), "squeeze: axis")
    if any(shape[d] != 1 for d in axes):
        raise ShapeError(f"squeeze: axes must have length 1; got axis {axis} of {aval_of(a)!r}")
    return reshape(a, tuple_delete(shape, axes))


@returns_view
def expand_dims(a: ArrayOrList, axis: Axes) -> Value:
    """`a` with new dimensions of length 1 at the positions `axis` of the result."""
    a = ensure_array(a)
    axes = axis if isinstance(axis, Sequence) else (axis,)
    axes = tuple([as_int("expand_dims: axis", d) for d in axes])
    return shapes.reshape(a, _expanded(aval_of(a).shape, axes))


@lru_cache(maxsize=4096)
def _expanded(shape: Shape, axes: tuple[int, ...]) -> Shape:
    rank = len(shape) + len(axes)
    inserted = canonical_axes(axes, rank, "expand_dims: axis")
    lengths = iter(shape)
    return tuple([1 if d in inserted else next(lengths) for d in range(rank)])


def atleast_1d(*arys: ArrayOrList | Keys) -> Value | list[Value]:
    """The arrays with at least one dimension; a list of them for several arguments."""
    return _map_arrays(arys, lambda x: ravel(x) if not aval_of(x).ndim else x)


def atleast_2d(*arys: ArrayOrList | Keys) -> Value | list[Value]:
    """The arrays with at least two dimensions, new ones first; a list for several arguments."""
    return _map_arrays(arys, lambda x: prepend_axes(x, 2))


def atleast_3d(*arys: ArrayOrList | Keys) -> Value | list[Value]:
    """The arrays with at least three dimensions: (n,) becomes (1, n, 1), and (n, m), (n, m, 1)."""

    def add_axes(x: Value) -> Value:
        shape = aval_of(x).shape
        if len(shape) >= 3:
            return x
        return shapes.reshape(x, (*shape, 1) if len(shape) == 2 else (1, *(shape or (1,)), 1))

    return _map_arrays(arys, add_axes)


def _map_arrays(
    arrays: tuple[ArrayOrList, ...], function: Callable[[Value], Value]
) -> Value | list[Value]:
    results = [function(ensure_array(x)) for x in arrays]
    return results[0] if len(results) == 1 else results


def prepend_axes(x: Value, rank: int) -> Value:
    """`x` with `rank` dimensions, new ones of length 1 in front."""
    shape = aval_of(x).shape
    return shapes.reshape(x, (1,) * (rank - len(shape)) + shape)


@returns_view
def broadcast_to(array: ArrayOrList, shape: ShapeLike) -> Value:
    """A read-only view of `array` broadcast to `shape`."""
    return promotion.broadcast_to(
        ensure_array(array), canonical_shape(shape, "broadcast_to: shape")
    )


@returns_view
def broadcast_arrays(*args: ArrayOrList | Keys) -> tuple[Value, ...]:
    """The arrays broadcast to their common shape."""
    arrays = [ensure_array(x) for x in args]
    shape = promotion.broadcast_shapes(*[aval_of(x).shape for x in arrays])
    return tuple([promotion.broadcast_to(x, shape) for x in arrays])


def broadcast_shapes(*shapes: ShapeLike) -> Shape:
    """The shape to which arrays of `shapes` broadcast; an int n stands for (n,)."""
    return promotion.broadcast_shapes(
        *[canonical_shape(s, "broadcast_shapes: shapes") for s in shapes]
    )


@returns_view
def transpose(a: ArrayOrList, axes: Axes = None) -> Value:
    """`a` with its axes in the order `axes`, reversed where none is given."""
    a = ensure_array(a)
    ndim = aval_of(a).ndim
    if axes is None:
        return shapes.permute_dims(a, tuple(range(ndim - 1, -1, -1)))
    canonical = canonical_axes(axes, ndim, "transpose: axes")
    if len(canonical) != ndim:
        raise AxisError(f"transpose: axes must name every axis; got {axes} for {aval_of(a)!r}")
    return shapes.permute_dims(a, canonical)


def permute_dims(a: ArrayOrList, /, axes: Axes = None) -> Value:
    """`a` with its axes in the order `axes`, reversed where none is given."""
    return transpose(a, axes)


@returns_view
def matrix_transpose(x: ArrayOrList | Keys, /) -> Value:
    """`x` with its last two axes swapped."""
    x = ensure_array(x)
    ndim = aval_of(x).ndim
    if ndim < 2:
        raise ShapeError(
            f"matrix_transpose: the operand must have at least two dimensions; got {aval_of(x)!r}"
        )
    return shapes.permute_dims(x, (*range(ndim - 2), ndim - 1, ndim - 2))


@returns_view
def swapaxes(a: ArrayOrList, axis1: int, axis2: int) -> Value:
    """`a` with two axes swapped."""
    a = ensure_array(a)
    ndim = aval_of(a).ndim
    axes = list(range(ndim))
    i = canonical_axis(axis1, ndim, "swapaxes: axis1")
    j = canonical_axis(axis2, ndim, "swapaxes: axis2")
    axes[i], axes[j] = j, i
    return shapes.permute_dims(a, tuple(axes))


@returns_view
def moveaxis(a: ArrayOrList, source: Axes, destination: Axes) -> Value:
    """`a` with its axes `source` at the positions `destination`, the other axes in their order."""
    a = ensure_array(a)
    ndim = aval_of(a).ndim
    sources = canonical_axes(source, ndim, "moveaxis: source")
    destinations = canonical_axes(destination, ndim, "moveaxis: destination")
    if len(sources) != len(destinations):
        raise AxisError(
            f"moveaxis: source and destination must have one length; got {source} and {destination}"
        )
    source_of = dict(zip(destinations, sources, strict=True))
    others = iter(tuple_delete(range(ndim), sources))
    return shapes.permute_dims(
        a, tuple([source_of[d] if d in source_of else next(others) for d in range(ndim)])
    )


@returns_view
def rollaxis(a: ArrayOrList, axis: int, start: int = 0) -> Value:
    """`a` with `axis` moved to the position before the axis `start`."""
    a = ensure_array(a)
    ndim = aval_of(a).ndim
    source = canonical_axis(axis, ndim, "rollaxis: axis")
    target = canonical_axis(start, ndim + 1, "rollaxis: start") if start != ndim else ndim
    if start < 0:
        target -= 1
    return shapes.moveaxis(a, source, target - (target > source))


def array_and_axis(name: str, a: ArrayOrList, axis: int | None) -> tuple[Value, int]:
    """The array and the non-negative axis that `a` and `axis` stand for; flattened if it is None."""
    a = ensure_array(a)
    if axis is None:
        return ravel(a), 0
    return a, canonical_axis(axis, aval_of(a).ndim, f"{name}: axis")


def check_min_rank(name: str, x: ArrayOrList, rank: int) -> Value:
    x = ensure_array(x)
    if aval_of(x).ndim < rank:
        raise ShapeError(
            f"{name}: the array must have at least {rank} dimensions; got {aval_of(x)!r}"
        )
    return x


def is_sequence(value: object) -> TypeGuard[Sequence[Any]]:
    return isinstance(value, (list, tuple)) or getattr(value, "ndim", 0) > 0


def copy(a: ArrayOrList, order: str | None = "K") -> Value:
    """A copy of `a`.

    In memory it is in row-major order ("C"), in column-major order ("F"), in the order of `a` ("K"), or
    in column-major order if `a` is ("A"), else in row-major order.
    """
    a = ensure_array(a)
    if order in ("K", None):
        return copy_array(a)
    if order == "F" or (order == "A" and is_column_major(a)):
        return transpose(copy(transpose(a), "C"))
    if order not in ("C", "A"):
        raise ValueRangeError(f'copy: order must be "C", "F", "A" or "K"; got {order!r}')
    return Copy()(a) if isinstance(a, (Tracer, np.ndarray)) else copy_array(a)


def in_order(a: Value, order: str | None) -> Value:
    """`a`, or a copy of it if it must be in row-major ("C") or column-major order ("F") and is not."""
    if order in ("K", "A", None):
        return a
    if order == "F":
        return a if aval_of(a).ndim < 2 else transpose(in_order(transpose(a), "C"))
    return a if is_contiguous(a) else copy(a, order)


def astype(
    x: ArrayOrList, dtype: DTypeLike, /, *, copy: bool = True, device: object = None
) -> Value:
    """`x` in `dtype`: floats truncate to integers, complex numbers give their real parts."""
    out = ops.convert_element_type(ensure_array(x), np.float64 if dtype is None else dtype)
    return on_device(copy_if_same_memory(out, x) if copy else out, device)
