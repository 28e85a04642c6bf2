"""Reductions, running reductions, windows, spreads."""

from __future__ import annotations

from math import prod

import numpy as np
import scipy.special

from functx.testing.reference.interpreter import REFERENCE_RULES, reference_rule

# ruff: noqa: N802 - functions are named as the classes whose meaning they are


def reduction(function):
    return lambda x, axes: function(x, axis=tuple(axes))


def typed_reduction(function):
    return lambda x, axes: function(x, axis=tuple(axes), dtype=x.dtype)


REFERENCE_RULES |= {
    "ReduceSum": typed_reduction(np.sum),
    "LogSumExp": lambda x, axes: scipy.special.logsumexp(x, axes),
    "Softmax": lambda x, axes: scipy.special.softmax(x, axes) if x.size else x,
    "ReduceProd": typed_reduction(np.prod),
    "ReduceAnd": reduction(np.bitwise_and.reduce),
    "ReduceOr": reduction(np.bitwise_or.reduce),
    "ReduceXor": reduction(np.bitwise_xor.reduce),
}


@reference_rule
def LogSoftmax(x, axes):
    if not x.size:
        return x
    # Of an infinite logit nothing is known, of the others beside it neither.
    unknown = (x == np.inf).any(axes, keepdims=True)
    return np.where(unknown, np.nan, scipy.special.log_softmax(x, axes))


def lowest(dtype):
    if dtype.kind in "fc":
        return -highest(dtype)
    return False if dtype.kind == "b" else np.iinfo(dtype).min


def highest(dtype):
    if dtype.kind in "fc":
        return complex(np.inf, np.inf) if dtype.kind == "c" else np.inf
    return True if dtype.kind == "b" else np.iinfo(dtype).max


@reference_rule
def LogSumExpDerivative(x, axes):
    if not x.size:
        return x
    top = x.max(axes, keepdims=True)
    powers = np.exp(np.where(x == top, 0.0, x - top)) * (top > -np.inf)
    return powers / np.maximum(powers.sum(axes, keepdims=True), 1.0)


@reference_rule
def ReduceMax(x, axes):
    return np.max(x, axis=tuple(axes), initial=lowest(x.dtype))


@reference_rule
def ReduceMin(x, axes):
    return np.min(x, axis=tuple(axes), initial=highest(x.dtype))


@reference_rule
def ArgMax(x, axis, index_dtype):
    return np.argmax(x, axis).astype(index_dtype)


@reference_rule
def ArgMin(x, axis, index_dtype):
    return np.argmin(x, axis).astype(index_dtype)


def cumulative(function):
    def along(x, axis, reverse):
        x = np.flip(x, axis) if reverse else x
        out = function(x, axis)
        return np.flip(out, axis) if reverse else out

    return along


REFERENCE_RULES |= {
    "CumSum": cumulative(lambda x, axis: np.cumsum(x, axis, dtype=x.dtype)),
    "CumProd": cumulative(lambda x, axis: np.cumprod(x, axis, dtype=x.dtype)),
    "CumMax": cumulative(np.maximum.accumulate),
    "CumMin": cumulative(np.minimum.accumulate),
    "CumLogSumExp": cumulative(np.logaddexp.accumulate),
}


@reference_rule
def LinearRecurrence(factor, x, axis, reverse):
    factor, x = [np.moveaxis(a, axis, 0)[:: -1 if reverse else 1] for a in (factor, x)]
    out = np.array(x)
    for i in range(1, len(x)):
        carried = factor[i] * out[i - 1]
        out[i] += np.where(factor[i], carried, 0) if factor.dtype == bool else carried
    return np.moveaxis(out[:: -1 if reverse else 1], 0, axis)


def sliding_windows(x, sizes, strides, padding, base_dilation, window_dilation, fill):
    """The elements in each window, on one last axis."""
    ndim = len(sizes)
    spread = [
        (n - 1) * hole + 1 if n else 0 for n, hole in zip(x.shape, base_dilation, strict=True)
    ]
    wide = np.full(spread, fill, x.dtype)
    wide[tuple(slice(None, None, hole) for hole in base_dilation)] = x
    cut = [
        slice(max(-low, 0), n - max(-high, 0))
        for n, (low, high) in zip(spread, padding, strict=True)
    ]
    wide = np.pad(
        wide[tuple(cut)],
        [(max(low, 0), max(high, 0)) for low, high in padding],
        constant_values=fill,
    )
    reach = [(k - 1) * step + 1 for k, step in zip(sizes, window_dilation, strict=True)]
    if any(n < k for n, k in zip(wide.shape, reach, strict=True)):
        counts = [
            max((n - k) // s + 1, 0) for n, k, s in zip(wide.shape, reach, strides, strict=True)
        ]
        return np.zeros((*counts, int(np.prod(sizes))), x.dtype)
    found = np.lib.stride_tricks.sliding_window_view(wide, reach)
    found = found[tuple(slice(None, None, s) for s in strides)]
    found = found[(Ellipsis, *[slice(None, None, step) for step in window_dilation])]
    return found.reshape(*found.shape[:ndim], -1)


@reference_rule
def ReduceWindowSum(x, **window):
    return sliding_windows(x, **window, fill=0).sum(-1, dtype=x.dtype)


@reference_rule
def ReduceWindowMax(x, **window):
    return sliding_windows(x, **window, fill=lowest(x.dtype)).max(-1)


@reference_rule
def ReduceWindowMin(x, **window):
    return sliding_windows(x, **window, fill=highest(x.dtype)).min(-1)


def window_places(x, lanes, choose, worst, **window):
    count = int(np.prod(x.shape[lanes:]))
    places = np.broadcast_to(np.arange(count).reshape(x.shape[lanes:]), x.shape)
    found = sliding_windows(x, **window, fill=worst)
    places = sliding_windows(places, **window, fill=count)
    best = choose(np.where(places == count, worst, found), -1)[..., None]
    chosen = (found == best) | (np.isnan(found) & np.isnan(best))
    return np.where(chosen, places, count).min(-1)


@reference_rule
def ReduceWindowArgmax(x, lanes, **window):
    return window_places(x, lanes, np.max, lowest(x.dtype), **window)


@reference_rule
def ReduceWindowArgmin(x, lanes, **window):
    return window_places(x, lanes, np.min, highest(x.dtype), **window)


@reference_rule
def Variance(x, axes, ddof=0.0):
    return np.var(x - x.mean(axes, keepdims=True), axes, ddof=ddof)


@reference_rule
def StandardDeviation(x, axes, ddof=0.0):
    return np.std(x - x.mean(axes, keepdims=True), axes, ddof=ddof)


@reference_rule
def VectorNorm(x, axes, ord):
    size = np.abs(x)
    if np.isinf(ord):
        return (np.max if ord > 0 else np.min)(size, axes)
    return (size**ord).sum(axes) ** (1 / ord)


# ruff: noqa: N802 - functions are named as the classes whose meaning they are


def index_windows(x, indices, sizes, params):
    """For each index vector: its place, where its window lies in `x`, and whether inside.

    A window that does not lie inside is moved there.
    """
    for place in np.ndindex(indices.shape[:-1]):
        starts = [0] * x.ndim
        for i, d in zip(indices[place], params["start_index_map"], strict=True):
            starts[d] = int(i)
        pairs = params["operand_batching_dims"], params["start_indices_batching_dims"]
        for d, k in zip(*pairs, strict=True):
            starts[d] = place[k]
        clipped = [min(max(i, 0), n - m) for i, n, m in zip(starts, x.shape, sizes, strict=True)]
        where = tuple([slice(i, i + m) for i, m in zip(clipped, sizes, strict=True)])
        yield place, where, clipped == starts


def window_index(place, offset_dims, rank):
    """The window of an index vector at `place` among all windows."""
    lead = iter(place)
    return tuple([slice(None) if d in offset_dims else next(lead) for d in range(rank)])


@reference_rule
def Gather(x, indices, slice_sizes, fill_value, mode, **params):
    offset = params["offset_dims"]
    absent = params["collapsed_slice_dims"] + params["operand_batching_dims"]
    rank = indices.ndim - 1 + len(offset)
    lead = iter(indices.shape)
    kept = iter([n for d, n in enumerate(slice_sizes) if d not in absent])
    out = np.zeros([next(kept) if d in offset else next(lead) for d in range(rank)], x.dtype)
    fill = default_fill(x.dtype) if fill_value is None else fill_value
    for place, where, inside in index_windows(x, indices, slice_sizes, params):
        window = x[where].squeeze(absent) if inside or mode != "fill" else fill
        out[window_index(place, offset, rank)] = window
    return out


def default_fill(dtype):
    if dtype.kind in "fc":
        return np.nan
    return True if dtype.kind == "b" else lowest(dtype) if dtype.kind == "i" else highest(dtype)


def scatter_rule(combine):
    def scattered(x, indices, updates, mode, **params):
        offset = params["offset_dims"]
        absent = params["collapsed_slice_dims"] + params["operand_batching_dims"]
        kept = iter([updates.shape[d] for d in offset])
        sizes = [1 if d in absent else next(kept) for d in range(x.ndim)]
        out = x.copy()
        for place, where, inside in index_windows(x, indices, sizes, params):
            if inside or mode == "clip":
                update = updates[window_index(place, offset, updates.ndim)]
                out[where] = combine(out[where], np.expand_dims(update, absent))
        return out

    return scattered


REFERENCE_RULES |= {
    "ScatterAdd": scatter_rule(np.add),
    "ScatterMul": scatter_rule(np.multiply),
    "ScatterMin": scatter_rule(np.minimum),
    "ScatterMax": scatter_rule(np.maximum),
    "ScatterSet": scatter_rule(lambda old, new: new),
}


@reference_rule
def Sort(*operands, axis, num_keys, stable, permutation):
    keys = [_orderable(x) for x in operands[:num_keys]]
    order = np.lexsort(keys[::-1], axis=axis)
    outs = [np.take_along_axis(x, order, axis) for x in operands]
    return [*outs, order] if permutation else outs


def _orderable(x):
    """Numbers in the order of `x`, which need not have one in NumPy."""
    return x.astype(np.int8) if x.dtype == bool else x


@reference_rule
def TopK(x, k):
    # From the end of the rising order of the row read backwards: nans first, then falling, 0 before -0.
    back = x[..., ::-1]
    rising = np.lexsort((~np.signbit(back), back), axis=-1)
    order = x.shape[-1] - 1 - rising[..., ::-1][..., :k]
    return [np.take_along_axis(x, order, -1), order]


@reference_rule
def SearchSorted(x, values, side, method, batch_ndim):
    lead = x.shape[:-1] if batch_ndim else ()
    rows = x.reshape(prod(lead), x.shape[-1])
    sought = values.reshape(prod(lead), prod(values.shape[len(lead) :]))
    found = [np.searchsorted(row, v, side) for row, v in zip(rows, sought, strict=True)]
    return np.array(found, np.int64).reshape(values.shape)


@reference_rule
def Embedding(indices, weight, padding):
    return weight[indices]


@reference_rule
def EmbeddingBackward(ct, indices, rows, padding):
    out = np.zeros((rows, ct.shape[-1]), ct.dtype)
    np.add.at(out, indices, np.where((indices != padding)[..., None], ct, 0))
    return out
