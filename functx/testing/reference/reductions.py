"""NumPy definitions of reductions, cumulative operations, windows, gathers, scatters and sorting."""

from __future__ import annotations

from math import prod

import numpy as np
import scipy.special

# ruff: noqa: N802 - a definition has the name of the primitive class


def reduction(function):
    """The rule that reduces by a NumPy function."""
    return lambda x, axes: function(x, axis=tuple(axes))


def typed_reduction(function):
    """The rule that reduces by a NumPy function in the dtype of the operand."""
    return lambda x, axes: function(x, axis=tuple(axes), dtype=x.dtype)


def LogSumExp(x, axes):
    return scipy.special.logsumexp(x, axes)


def Softmax(x, axes):
    return scipy.special.softmax(x, axes) if x.size else x


def LogSoftmax(x, axes):
    if not x.size:
        return x
    # An infinite logit makes all results undefined.
    undefined = (x == np.inf).any(axes, keepdims=True)
    return np.where(undefined, np.nan, scipy.special.log_softmax(x, axes))


def lowest(dtype):
    """The identity of a maximum in `dtype`."""
    if dtype.kind in "fc":
        return -highest(dtype)
    return False if dtype.kind == "b" else np.iinfo(dtype).min


def highest(dtype):
    """The identity of a minimum in `dtype`."""
    if dtype.kind in "fc":
        return complex(np.inf, np.inf) if dtype.kind == "c" else np.inf
    return True if dtype.kind == "b" else np.iinfo(dtype).max


def LogSumExpDerivative(x, axes):
    if not x.size:
        return x
    top = x.max(axes, keepdims=True)
    powers = np.exp(np.where(x == top, 0.0, x - top)) * (top > -np.inf)
    return powers / np.maximum(powers.sum(axes, keepdims=True), 1.0)


def ReduceMax(x, axes):
    return np.max(x, axis=tuple(axes), initial=lowest(x.dtype))


def ReduceMin(x, axes):
    return np.min(x, axis=tuple(axes), initial=highest(x.dtype))


def cumulative(function):
    """The rule that accumulates by `function(x, axis)`, from the end with `reverse`."""

    def accumulate(x, axis, reverse):
        x = np.flip(x, axis) if reverse else x
        out = function(x, axis)
        return np.flip(out, axis) if reverse else out

    return accumulate


CumSum = cumulative(lambda x, axis: np.cumsum(x, axis, dtype=x.dtype))
CumProd = cumulative(lambda x, axis: np.cumprod(x, axis, dtype=x.dtype))
CumMax = cumulative(np.maximum.accumulate)
CumMin = cumulative(np.minimum.accumulate)
CumLogSumExp = cumulative(np.logaddexp.accumulate)


def LinearRecurrence(factor, x, axis, reverse):
    factor, x = [np.moveaxis(a, axis, 0)[:: -1 if reverse else 1] for a in (factor, x)]
    out = np.array(x)
    for i in range(1, len(x)):
        carry = factor[i] * out[i - 1]
        out[i] += np.where(factor[i], carry, 0) if factor.dtype == bool else carry
    return np.moveaxis(out[:: -1 if reverse else 1], 0, axis)


def sliding_windows(x, sizes, strides, padding, base_dilation, window_dilation, fill):
    """The elements of each window, along a new last axis."""
    ndim = len(sizes)
    dilated_shape = [
        (n - 1) * step + 1 if n else 0 for n, step in zip(x.shape, base_dilation, strict=True)
    ]
    padded = np.full(dilated_shape, fill, x.dtype)
    padded[tuple(slice(None, None, step) for step in base_dilation)] = x
    cropped = [
        slice(max(-low, 0), n - max(-high, 0))
        for n, (low, high) in zip(dilated_shape, padding, strict=True)
    ]
    padded = np.pad(
        padded[tuple(cropped)],
        [(max(low, 0), max(high, 0)) for low, high in padding],
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
    windows = windows[(Ellipsis, *[slice(None, None, step) for step in window_dilation])]
    return windows.reshape(*windows.shape[:ndim], -1)


def ReduceWindowSum(x, **window):
    return sliding_windows(x, **window, fill=0).sum(-1, dtype=x.dtype)


def ReduceWindowMax(x, **window):
    return sliding_windows(x, **window, fill=lowest(x.dtype)).max(-1)


def ReduceWindowMin(x, **window):
    return sliding_windows(x, **window, fill=highest(x.dtype)).min(-1)


def window_arg_extremum(x, batch_ndim, extremum, worst, **window):
    """The flat index, within each batch element, of the first extremum of each window."""
    count = int(np.prod(x.shape[batch_ndim:]))
    indices = np.broadcast_to(np.arange(count).reshape(x.shape[batch_ndim:]), x.shape)
    values = sliding_windows(x, **window, fill=worst)
    indices = sliding_windows(indices, **window, fill=count)
    best = extremum(np.where(indices == count, worst, values), -1)[..., None]
    is_best = (values == best) | (np.isnan(values) & np.isnan(best))
    return np.where(is_best, indices, count).min(-1)


def ReduceWindowArgmax(x, batch_ndim, **window):
    return window_arg_extremum(x, batch_ndim, np.max, lowest(x.dtype), **window)


def ReduceWindowArgmin(x, batch_ndim, **window):
    return window_arg_extremum(x, batch_ndim, np.min, highest(x.dtype), **window)


def Variance(x, axes, ddof=0.0):
    return np.var(x - x.mean(axes, keepdims=True), axes, ddof=ddof)


def StandardDeviation(x, axes, ddof=0.0):
    return np.std(x - x.mean(axes, keepdims=True), axes, ddof=ddof)


def VectorNorm(x, axes, ord):
    magnitudes = np.abs(x)
    if np.isinf(ord):
        return (np.max if ord > 0 else np.min)(magnitudes, axes)
    return (magnitudes**ord).sum(axes) ** (1 / ord)


def index_windows(x, indices, sizes, params):
    """For each index vector: its position, the slices of its window in `x`, and whether it is in bounds.

    A window out of bounds is moved into bounds.
    """
    for position in np.ndindex(indices.shape[:-1]):
        starts = [0] * x.ndim
        for i, d in zip(indices[position], params["start_index_map"], strict=True):
            starts[d] = int(i)
        pairs = params["operand_batching_dims"], params["start_indices_batching_dims"]
        for d, k in zip(*pairs, strict=True):
            starts[d] = position[k]
        clamped = [min(max(i, 0), n - m) for i, n, m in zip(starts, x.shape, sizes, strict=True)]
        slices = tuple([slice(i, i + m) for i, m in zip(clamped, sizes, strict=True)])
        yield position, slices, clamped == starts


def window_index(position, offset_dims, rank):
    """The index, in the array of all windows, of the window of the index vector at `position`."""
    batch = iter(position)
    return tuple([slice(None) if d in offset_dims else next(batch) for d in range(rank)])


def Gather(x, indices, slice_sizes, fill_value, mode, **params):
    offset = params["offset_dims"]
    dropped = params["collapsed_slice_dims"] + params["operand_batching_dims"]
    rank = indices.ndim - 1 + len(offset)
    batch_sizes = iter(indices.shape)
    window_sizes = iter([n for d, n in enumerate(slice_sizes) if d not in dropped])
    shape = [next(window_sizes) if d in offset else next(batch_sizes) for d in range(rank)]
    out = np.zeros(shape, x.dtype)
    fill = default_fill(x.dtype) if fill_value is None else fill_value
    for position, slices, in_bounds in index_windows(x, indices, slice_sizes, params):
        window = x[slices].squeeze(dropped) if in_bounds or mode != "fill" else fill
        out[window_index(position, offset, rank)] = window
    return out


def default_fill(dtype):
    """The value of a gathered element out of bounds."""
    if dtype.kind in "fc":
        return np.nan
    return True if dtype.kind == "b" else lowest(dtype) if dtype.kind == "i" else highest(dtype)


def scatter_rule(combine):
    """The rule of a scatter with `combine(old, update)`."""

    def scatter(x, indices, updates, mode, **params):
        offset = params["offset_dims"]
        dropped = params["collapsed_slice_dims"] + params["operand_batching_dims"]
        window_sizes = iter([updates.shape[d] for d in offset])
        sizes = [1 if d in dropped else next(window_sizes) for d in range(x.ndim)]
        out = x.copy()
        for position, slices, in_bounds in index_windows(x, indices, sizes, params):
            if in_bounds or mode == "clip":
                update = updates[window_index(position, offset, updates.ndim)]
                out[slices] = combine(out[slices], np.expand_dims(update, dropped))
        return out

    return scatter


ScatterAdd = scatter_rule(np.add)
ScatterMul = scatter_rule(np.multiply)
ScatterMin = scatter_rule(np.minimum)
ScatterMax = scatter_rule(np.maximum)
ScatterSet = scatter_rule(lambda old, new: new)


def Sort(*operands, axis, num_keys, stable, permutation):
    keys = [_orderable(x) for x in operands[:num_keys]]
    order = np.lexsort(keys[::-1], axis=axis)
    outs = [np.take_along_axis(x, order, axis) for x in operands]
    return [*outs, order] if permutation else outs


def _orderable(x):
    """`x` in a dtype that `np.lexsort` orders."""
    return x.astype(np.int8) if x.dtype == bool else x


def TopK(x, k):
    # The reversed ascending order of the reversed row: nans first, then descending, 0 before -0.
    flipped = x[..., ::-1]
    ascending = np.lexsort((~np.signbit(flipped), flipped), axis=-1)
    order = x.shape[-1] - 1 - ascending[..., ::-1][..., :k]
    return [np.take_along_axis(x, order, -1), order]


def SearchSorted(x, values, side, method, batch_ndim):
    batch_shape = x.shape[:-1] if batch_ndim else ()
    rows = x.reshape(prod(batch_shape), x.shape[-1])
    queries = values.reshape(prod(batch_shape), prod(values.shape[len(batch_shape) :]))
    indices = [np.searchsorted(row, query, side) for row, query in zip(rows, queries, strict=True)]
    return np.array(indices, np.int64).reshape(values.shape)


def EmbeddingBackward(ct, indices, rows, padding):
    out = np.zeros((rows, ct.shape[-1]), ct.dtype)
    np.add.at(out, indices, np.where((indices != padding)[..., None], ct, 0))
    return out
