"""Gathers, scatters, sorting and searching."""

# ruff: noqa: N802 - functions are named as the classes whose meaning they are

from __future__ import annotations

from math import prod

import numpy as np

from functx.testing.reference.meanings import REFERENCE_RULES, reference_rule
from functx.testing.reference.reductions import highest, lowest


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
def SearchSorted(x, values, side, method, batched):
    lead = x.shape[:-1] if batched else ()
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
