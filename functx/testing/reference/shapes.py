"""Shapes, parts of arrays, and copies."""

# ruff: noqa: N802 - functions are named as the classes whose meaning they are

from __future__ import annotations

import numpy as np

from functx.testing.reference.meanings import exact_dtype_rule, reference_rule


@reference_rule
def BroadcastInDim(x, shape, dims):
    unit = [1] * len(shape)
    for n, d in zip(x.shape, dims, strict=True):
        unit[d] = n
    return np.broadcast_to(x.reshape(unit), shape)


@reference_rule
def Full(x, shape):
    return np.full(shape, x)


@reference_rule
def Reshape(x, shape):
    return x.reshape(shape)


@reference_rule
def PermuteDims(x, axes):
    return x.transpose(axes)


@reference_rule
def Concatenate(*parts, axis):
    return np.concatenate(parts, axis)


@reference_rule
def Split(x, sizes, axis):
    return np.split(x, np.cumsum(sizes)[:-1], axis)


@reference_rule
def Pad(x, fill, config):
    dilated = [n + max(0, n - 1) * inner for n, (_, _, inner) in zip(x.shape, config, strict=True)]
    spread = np.full(dilated, fill)
    spread[tuple([slice(None, None, inner + 1) for _, _, inner in config])] = x
    wide = np.pad(
        spread,
        [(max(low, 0), max(high, 0)) for low, high, _ in config],
        constant_values=fill,
    )
    cut = [
        slice(-min(low, 0), n + min(high, 0))
        for n, (low, high, _) in zip(wide.shape, config, strict=True)
    ]
    return wide[tuple(cut)]


@reference_rule
def Rev(x, axes):
    return np.flip(x, axes)


@reference_rule
def Iota(dtype, shape, dimension):
    return np.indices(shape, np.int64)[dimension].astype(dtype)


@reference_rule
def Copy(x):
    return x


@reference_rule
def ReadBeforeWrite(x):
    return x, np.zeros_like(x)


@reference_rule
def Parts(x):
    return np.stack([x.real, x.imag], -1)


@reference_rule
def OfParts(x):
    return np.ascontiguousarray(x).view(np.result_type(x.dtype, np.complex64))[..., 0]


@reference_rule
def Strided(x, shape, start, steps, writable):
    if 0 in shape:
        return np.zeros(shape, x.dtype)
    strides = [sum(k * n for k, n in zip(step, x.strides, strict=True)) for step in steps]
    first = x[tuple([slice(at, None) for at in start])]
    return np.lib.stride_tricks.as_strided(first, shape, strides)


@reference_rule
def Slice(x, start, limit, strides):
    strides = strides or (1,) * x.ndim
    return x[tuple(map(slice, start, limit, strides))]


def clamped_slice(x, sizes, indices):
    starts = [
        min(max(int(i), 0), n - size) for i, n, size in zip(indices, x.shape, sizes, strict=True)
    ]
    return tuple([slice(i, i + size) for i, size in zip(starts, sizes, strict=True)])


@reference_rule
def DynamicSlice(x, *indices, sizes):
    return x[clamped_slice(x, sizes, indices)]


@reference_rule
def DynamicUpdateSlice(x, update, *indices):
    out = x.copy()
    out[clamped_slice(x, update.shape, indices)] = update
    return out


@reference_rule
def Name(x, label):
    return x


@exact_dtype_rule
def Dense(aval, data):
    return np.frombuffer(data, aval.dtype).reshape(aval.shape)


@reference_rule
def StandIn(live, x, *, along):
    return x


@reference_rule
def AnyLane(live):
    return live
