"""NumPy definitions of reductions, cumulative operations, windows, gathers, scatters and sorting."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

import numpy as np
import scipy.special

from functx import ops
from functx.core.types import DType, Shape
from functx.core.typing import Function
from functx.testing.reference.interpreter import Array, Definition, takes_primitive
from functx.transforms.control.reduce import ReduceWindow

Window = ops.WindowReduction | ReduceWindow

# ruff: noqa: N802 - a definition has the name of the primitive class


def reduction(function: Function) -> Definition:
    """The rule that reduces by a NumPy function."""
    return lambda x, axes: function(x, axis=tuple(axes))


def typed_reduction(function: Function) -> Definition:
    """The rule that reduces by a NumPy function in the dtype of the operand."""
    return lambda x, axes: function(x, axis=tuple(axes), dtype=x.dtype)


def LogSumExp(x: Array, axes: Shape) -> Array:
    return scipy.special.logsumexp(x, axes)


def Softmax(x: Array, axes: Shape) -> Array:
    return scipy.special.softmax(x, axes) if x.size else x


def LogSoftmax(x: Array, axes: Shape) -> Array:
    if not x.size:
        return x
    # An infinite logit makes all results undefined.
    undefined = (x == np.inf).any(axes, keepdims=True)
    return np.where(undefined, np.nan, scipy.special.log_softmax(x, axes))


def lowest(dtype: DType) -> complex:
    """The identity of a maximum in `dtype`."""
    if dtype.kind in "fc":
        return -highest(dtype)
    return False if dtype.kind == "b" else np.iinfo(dtype).min


def highest(dtype: DType) -> complex:
    """The identity of a minimum in `dtype`."""
    if dtype.kind in "fc":
        return complex(np.inf, np.inf) if dtype.kind == "c" else np.inf
    return True if dtype.kind == "b" else np.iinfo(dtype).max


def LogSumExpDerivative(x: Array, axes: Shape) -> Array:
    if not x.size:
        return x
    top = x.max(axes, keepdims=True)
    powers = np.exp(np.where(x == top, 0.0, x - top)) * (top > -np.inf)
    return powers / np.maximum(powers.sum(axes, keepdims=True), 1.0)


def ReduceMax(x: Array, axes: Shape, keeps_nan: bool) -> Array:
    return np.max(x, axis=tuple(axes), initial=lowest(x.dtype))


def ReduceMin(x: Array, axes: Shape, keeps_nan: bool) -> Array:
    return np.min(x, axis=tuple(axes), initial=highest(x.dtype))


def cumulative(function: Function) -> Definition:
    """The rule that accumulates by `function(x, axis)`, from the end with `reverse`."""

    def accumulate(x: Array, axis: int, reverse: bool) -> Array:
        x = np.flip(x, axis) if reverse else x
        out = function(x, axis)
        return np.flip(out, axis) if reverse else out

    return accumulate


CumSum = cumulative(lambda x, axis: np.cumsum(x, axis, dtype=x.dtype))
CumProd = cumulative(lambda x, axis: np.cumprod(x, axis, dtype=x.dtype))
CumMax = cumulative(np.maximum.accumulate)
CumMin = cumulative(np.minimum.accumulate)
CumLogSumExp = cumulative(np.logaddexp.accumulate)


def LinearRecurrence(factor: Array, x: Array, axis: int, reverse: bool) -> Array:
    factor, x = [np.moveaxis(a, axis, 0)[:: -1 if reverse else 1] for a in (factor, x)]
    out = np.array(x)
    for i in range(1, len(x)):
        carry = factor[i] * out[i - 1]
        out[i] += np.where(factor[i], carry, 0) if factor.dtype == bool else carry
    return np.moveaxis(out[:: -1 if reverse else 1], 0, axis)


def sliding_windows(x: Array, window: Window, fill: complex | Array) -> Array:
    """The elements of each window, along a new last axis."""
    sizes, strides, ndim = window.sizes, window.strides, len(window.sizes)
    base_dilation, window_dilation = window.base_dilation, window.window_dilation
    dilated_shape = [
        (n - 1) * step + 1 if n else 0 for n, step in zip(x.shape, base_dilation, strict=True)
    ]
    padded = np.full(dilated_shape, fill, x.dtype)
    padded[tuple(slice(None, None, step) for step in base_dilation)] = x
    cropped = [
        slice(max(-low, 0), n - max(-high, 0))
        for n, (low, high) in zip(dilated_shape, window.padding, strict=True)
    ]
    padded = np.pad(
        padded[tuple(cropped)],
        [(max(low, 0), max(high, 0)) for low, high in window.padding],
        constant_values=fill,
    )
    extents = [(k - 1) * step + 1 for k, step in zip(sizes, window_dilation, strict=True)]
    if any(n < k for n, k in zip(padded.shape, extents, strict=True)):
        counts = [
            max((n - k) // s + 1, 0) for n, k, s in zip(padded.shape, extents, strides, strict=True)
        ]
        return np.zeros((*counts, int(np.prod(sizes))), x.dtype)
    windows = np.lib.stride_tricks.sliding_window_view(padded, extents)
    windows = windows[tuple(slice(None, None, s) for s in strides)]
    windows = windows[(*[np.s_[:]] * ndim, *[np.s_[::step] for step in window_dilation])]
    return windows.reshape(*windows.shape[:ndim], -1)


ReduceWindowSum = takes_primitive(
    lambda window, x: sliding_windows(x, window, 0).sum(-1, dtype=x.dtype)
)
ReduceWindowMax = takes_primitive(
    lambda window, x: sliding_windows(x, window, lowest(x.dtype)).max(-1)
)
ReduceWindowMin = takes_primitive(
    lambda window, x: sliding_windows(x, window, highest(x.dtype)).min(-1)
)


def window_arg_extremum(extremum: Function, worst_of: Function) -> Definition:
    """The definition by the flat index, within each batch element, of the first extremum of each window."""

    def index_of_extremum(window: ops.WindowArgExtremum, x: Array) -> Array:
        shape, worst = x.shape[window.batch_ndim :], worst_of(x.dtype)
        count = int(np.prod(shape))
        indices = np.broadcast_to(np.arange(count).reshape(shape), x.shape)
        values = sliding_windows(x, window, worst)
        indices = sliding_windows(indices, window, count)
        best = extremum(np.where(indices == count, worst, values), -1)[..., None]
        is_best = (values == best) | (np.isnan(values) & np.isnan(best))
        return np.where(is_best, indices, count).min(-1)

    return takes_primitive(index_of_extremum)


ReduceWindowArgmax = window_arg_extremum(np.max, lowest)
ReduceWindowArgmin = window_arg_extremum(np.min, highest)


def Variance(x: Array, axes: Shape, ddof: float = 0.0) -> Array:
    return np.var(x - x.mean(axes, keepdims=True), axes, ddof=ddof)


def StandardDeviation(x: Array, axes: Shape, ddof: float = 0.0) -> Array:
    return np.std(x - x.mean(axes, keepdims=True), axes, ddof=ddof)


def VectorNorm(x: Array, axes: Shape, ord: float) -> Array:
    magnitudes = np.abs(x)
    if np.isinf(ord):
        return (np.max if ord > 0 else np.min)(magnitudes, axes)
    return (magnitudes**ord).sum(axes) ** (1 / ord)


def index_windows(
    op: ops.GatherScatter, x: Array, indices: Array, sizes: Sequence[int]
) -> Iterator[tuple[Shape, tuple[slice, ...], bool]]:
    """For each index vector: its position, the slices of its window in `x`, and whether it is in bounds.

    A window out of bounds is moved into bounds.
    """
    for position in np.ndindex(indices.shape[:-1]):
        starts = [0] * x.ndim
        for i, d in zip(indices[position], op.start_index_map, strict=True):
            starts[d] = int(i)
        pairs = op.operand_batching_dims, op.start_indices_batching_dims
        for d, k in zip(*pairs, strict=True):
            starts[d] = position[k]
        clamped = [min(max(i, 0), n - m) for i, n, m in zip(starts, x.shape, sizes, strict=True)]
        slices = tuple([slice(i, i + m) for i, m in zip(clamped, sizes, strict=True)])
        yield position, slices, clamped == starts


def window_index(position: Shape, offset_dims: Shape, rank: int) -> tuple[slice | int, ...]:
    """The index, in the array of all windows, of the window of the index vector at `position`."""
    batch = iter(position)
    return tuple([slice(None) if d in offset_dims else next(batch) for d in range(rank)])


@takes_primitive
def Gather(op: ops.Gather, x: Array, indices: Array) -> Array:
    offset, slice_sizes = op.offset_dims, op.slice_sizes
    dropped = op.collapsed_slice_dims + op.operand_batching_dims
    rank = indices.ndim - 1 + len(offset)
    batch_sizes = iter(indices.shape)
    window_sizes = iter([n for d, n in enumerate(slice_sizes) if d not in dropped])
    shape = [next(window_sizes) if d in offset else next(batch_sizes) for d in range(rank)]
    out = np.zeros(shape, x.dtype)
    fill = default_fill(x.dtype) if op.fill_value is None else op.fill_value
    for position, slices, in_bounds in index_windows(op, x, indices, slice_sizes):
        window = x[slices].squeeze(dropped) if in_bounds or op.mode != "fill" else fill
        out[window_index(position, offset, rank)] = window
    return out


def default_fill(dtype: DType) -> complex:
    """The value of a gathered element out of bounds."""
    if dtype.kind in "fc":
        return np.nan
    return True if dtype.kind == "b" else lowest(dtype) if dtype.kind == "i" else highest(dtype)


def scatter_rule(combine: Function) -> Definition:
    """The rule of a scatter with `combine(old, update)`."""

    def scatter(op: ops.GatherScatter, x: Array, indices: Array, updates: Array) -> Array:
        offset = op.offset_dims
        dropped = op.collapsed_slice_dims + op.operand_batching_dims
        window_sizes = iter([updates.shape[d] for d in offset])
        sizes = [1 if d in dropped else next(window_sizes) for d in range(x.ndim)]
        out = x.copy()
        for position, slices, in_bounds in index_windows(op, x, indices, sizes):
            if in_bounds or op.mode == "clip":
                update = updates[window_index(position, offset, updates.ndim)]
                out[slices] = combine(out[slices], np.expand_dims(update, dropped))
        return out

    return takes_primitive(scatter)


ScatterAdd = scatter_rule(np.add)
ScatterMul = scatter_rule(np.multiply)
ScatterMin = scatter_rule(np.minimum)
ScatterMax = scatter_rule(np.maximum)
ScatterSet = scatter_rule(lambda old, new: new)


def Sort(
    *operands: Array, axis: int, num_keys: int, stable: bool, permutation: bool
) -> list[Array]:
    keys = [_orderable(x) for x in operands[:num_keys]]
    order = np.lexsort(keys[::-1], axis=axis)
    outs = [np.take_along_axis(x, order, axis) for x in operands]
    return [*outs, order] if permutation else outs


def _orderable(x: Array) -> Array:
    """`x` in a dtype that `np.lexsort` orders."""
    return x.astype(np.int8) if x.dtype == bool else x


def TopK(x: Array, k: int) -> list[Array]:
    # The reversed ascending order of the reversed row: nans first, then descending, 0 before -0.
    flipped = x[..., ::-1]
    ascending = np.lexsort((~np.signbit(flipped), flipped), axis=-1)
    order = x.shape[-1] - 1 - ascending[..., ::-1][..., :k]
    return [np.take_along_axis(x, order, -1), order]


def SearchSorted(x: Array, values: Array, side: Any, method: str, batch_ndim: int) -> Array:
    batch_shape = x.shape[:-1] if batch_ndim else ()
    rows = x.reshape(prod(batch_shape), x.shape[-1])
    queries = values.reshape(prod(batch_shape), prod(values.shape[len(batch_shape) :]))
    indices = [np.searchsorted(row, query, side) for row, query in zip(rows, queries, strict=True)]
    return np.array(indices, np.int64).reshape(values.shape)


def EmbeddingBackward(ct: Array, indices: Array, rows: int, padding: int) -> Array:
    out = np.zeros((rows, ct.shape[-1]), ct.dtype)
    np.add.at(out, indices, np.where((indices != padding)[..., None], ct, 0))
    return out
