"""Arrays made, reshaped, permuted and joined, by JAX's names."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from functx import ops
from functx.core import tree
from functx.core.errors import AxisError, ShapeError
from functx.core.tracing import aval_of
from functx.ops import autodiff, concatenation, shapes
from functx.ops.operands import (
    PYTHON_SCALARS,
    canonical_axis_sequence,
    canonical_shape,
    literal,
)
from functx.ops.shapes import broadcasted_iota, iota

__all__ = [
    "broadcast",
    "broadcast_in_dim",
    "broadcast_shapes",
    "broadcast_to_rank",
    "broadcasted_iota",
    "collapse",
    "concatenate",
    "empty",
    "expand_dims",
    "full",
    "full_like",
    "iota",
    "pad",
    "reshape",
    "rev",
    "split",
    "squeeze",
    "stack",
    "stop_gradient",
    "tile",
    "transpose",
    "unstack",
]


def broadcast(operand: Any, sizes: Sequence[int]) -> Any:
    """`operand` repeated along new leading dimensions of the given sizes."""
    shape = canonical_shape(sizes, "broadcast: sizes") + aval_of(operand).shape
    lead = len(shape) - aval_of(operand).ndim
    return shapes.broadcast_in_dim(operand, shape, tuple(range(lead, len(shape))))


def broadcast_in_dim(operand: Any, shape: Any, broadcast_dimensions: Sequence[int]) -> Any:
    """`operand` repeated to `shape`; its dimension i becomes `broadcast_dimensions[i]`."""
    shape = canonical_shape(shape, "broadcast_in_dim: shape")
    return shapes.broadcast_in_dim(operand, shape, tuple(broadcast_dimensions))


def broadcast_shapes(*shapes: Any) -> tuple[int, ...]:
    """The shape that arrays of `shapes` broadcast to, by NumPy's rule."""
    from functx.numpy.shapes import broadcast_shapes

    return broadcast_shapes(*shapes)


def broadcast_to_rank(x: Any, rank: int) -> Any:
    """`x` with leading dimensions of length 1, so that it has `rank` in all."""
    shape = aval_of(x).shape
    if len(shape) > rank:
        raise ShapeError(
            f"broadcast_to_rank: the operand must have at most {rank} dimensions; got {aval_of(x)!r}"
        )
    return shapes.reshape(x, (1,) * (rank - len(shape)) + shape)


def reshape(operand: Any, new_sizes: Any, dimensions: Sequence[int] | None = None) -> Any:
    """The elements of `operand` as an array of `new_sizes`.

    They are taken with the dimensions in the order `dimensions`, the last running fastest.
    """
    if dimensions is not None:
        operand = transpose(operand, dimensions)
    return shapes.reshape(operand, canonical_shape(new_sizes, "reshape: new_sizes"))


def transpose(operand: Any, permutation: Any) -> Any:
    """`operand` with its dimension `permutation[i]` as dimension i."""
    ndim = aval_of(operand).ndim
    axes = canonical_axis_sequence(permutation, ndim, "transpose: permutation")
    if len(axes) != ndim:
        raise AxisError(
            f"transpose: permutation must name every dimension; got {axes} for {aval_of(operand)!r}"
        )
    return shapes.permute_dims(operand, axes)


def squeeze(array: Any, dimensions: Sequence[int]) -> Any:
    """`array` without the given dimensions, which have length 1."""
    return shapes.squeeze(array, tuple(dimensions))


def expand_dims(array: Any, dimensions: Sequence[int]) -> Any:
    """`array` with dimensions of length 1 inserted, which are at `dimensions` of the result."""
    return shapes.expand_dims(array, tuple(dimensions))


def collapse(operand: Any, start_dimension: int, stop_dimension: int | None = None) -> Any:
    """`operand` with the dimensions from the first to before the second made one."""
    shape = aval_of(operand).shape
    start, stop, _ = slice(start_dimension, stop_dimension).indices(len(shape))
    if start >= stop:
        raise AxisError(
            "collapse: there must be a dimension from start_dimension to stop_dimension; "
            f"got {start_dimension} and {stop_dimension} for {aval_of(operand)!r}"
        )
    return shapes.reshape(operand, (*shape[:start], prod(shape[start:stop]), *shape[stop:]))


def concatenate(operands: Any, dimension: int) -> Any:
    """The arrays `operands`, all of one dtype, one after another along `dimension`."""
    return concatenation.concatenate(operands, dimension)


def stack(operands: Sequence[Any], axis: int = 0) -> Any:
    """The arrays `operands`, all of one shape, joined along a new axis."""
    from functx.numpy.joining import stack

    return stack(operands, axis)


def unstack(x: Any, axis: int = 0) -> tuple[Any, ...]:
    """The arrays that lie along `axis` of `x`, each without it."""
    from functx.numpy.joining import unstack

    return unstack(x, axis=axis)


def split(operand: Any, sizes: Sequence[int], axis: int = 0) -> list[Any]:
    """`operand` in pieces of the given sizes along `axis`."""
    return concatenation.split(operand, canonical_shape(sizes, "split: sizes"), axis)


def tile(operand: Any, reps: Sequence[int]) -> Any:
    """`operand` repeated `reps` times along each dimension."""
    from functx.numpy.rearranging import tile

    return tile(operand, reps)


def pad(operand: Any, padding_value: Any, padding_config: Sequence[tuple[int, int, int]]) -> Any:
    """`operand` with `(low, high, interior)` elements of padding in each dimension.

    `interior` elements go between neighbours; a negative `low` or `high` cuts elements off.
    """
    return concatenation.pad(operand, padding_value, padding_config)


def rev(operand: Any, dimensions: Sequence[int]) -> Any:
    """`operand` with the order along `dimensions` reversed."""
    ndim = aval_of(operand).ndim
    return shapes.rev(operand, canonical_axis_sequence(dimensions, ndim, "rev: dimensions"))


def full(shape: Any, fill_value: Any, dtype: Any = None) -> Any:
    """An array of `shape` with the scalar `fill_value` everywhere."""
    return shapes.full(canonical_shape(shape, "full: shape"), _fill_scalar(fill_value, dtype))


def full_like(x: Any, fill_value: Any, dtype: Any = None, shape: Any = None) -> Any:
    """An array like `x`, but for what is given, with the scalar `fill_value` everywhere."""
    aval = aval_of(x)
    value = _fill_scalar(fill_value, aval.dtype if dtype is None else dtype)
    if dtype is None and aval.weak_type:
        value = ops.convert_element_type(value, aval.dtype, weak=True)
    return shapes.full(aval.shape if shape is None else canonical_shape(shape), value)


def _fill_scalar(value: Any, dtype: Any) -> Any:
    if dtype is None:
        return value
    if type(value) in PYTHON_SCALARS:
        return literal(np.asarray(value).astype(dtype).item(), np.dtype(dtype))
    return ops.convert_element_type(value, dtype)


def empty(shape: Any, dtype: Any) -> Any:
    """An array of `shape` and `dtype` whose elements are up to us: zeros."""
    return full(shape, 0, dtype)


def stop_gradient(x: Any) -> Any:
    """`x`, an array or a tree of them, through which no derivative goes."""
    return tree.map(autodiff.stop_gradient, x)
