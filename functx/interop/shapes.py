"""Translations of what moves elements: shapes, slices, gathers and scatters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from functx.core.tracing import aval_of
from functx.interop.jaxprs import ints
from functx.interop.translation import translates
from functx.lowering.keys import key_type
from functx.ops import gathering, scatter_reductions, scatter_set, scattering
from functx.ops.creation import Iota
from functx.ops.joining import Concatenate, Pad, Split
from functx.ops.shaping import Rev, broadcast_in_dim, full, permute_dims, reshape
from functx.ops.slicing import DynamicSlice, DynamicUpdateSlice, Slice

Shape = tuple[int, ...]


def words_of(eqn: Any) -> Shape:
    """The shape of what one element of the first operand is: a key's words, or a number."""
    kind = key_type(eqn.invars[0].aval.dtype)
    return () if kind is None else kind.words


def with_words(eqn: Any, dims: Sequence[int]) -> Shape:
    """Dimension numbers of a result of keys, and those of their words behind them."""
    rank = len(eqn.outvars[0].aval.shape)
    return (*ints(dims), *range(rank, rank + len(words_of(eqn))))


@translates("broadcast_in_dim", keys=True)
def broadcast(eqn: Any, x: Any, *dynamic: Any) -> Any:
    if dynamic:
        return NotImplemented
    shape = (*ints(eqn.params["shape"]), *words_of(eqn))
    dims = with_words(eqn, eqn.params["broadcast_dimensions"])
    if not aval_of(x).shape:
        return full(shape, x) if shape else x
    return broadcast_in_dim(x, shape, dims)


@translates("reshape", "squeeze", keys=True)
def reshaped(eqn: Any, x: Any, *dynamic: Any) -> Any:
    order = eqn.params.get("dimensions") if eqn.primitive.name == "reshape" else None
    if dynamic or (order is not None and words_of(eqn)):
        return NotImplemented
    if order is not None:
        x = permute_dims(x, ints(order))
    return reshape(x, (*eqn.outvars[0].aval.shape, *words_of(eqn)))


@translates("transpose", keys=True)
def permuted(eqn: Any, x: Any) -> Any:
    return permute_dims(x, with_words(eqn, eqn.params["permutation"]))


@translates("rev", keys=True)
def reversed(eqn: Any, x: Any) -> Any:
    axes = ints(eqn.params["dimensions"])
    return Rev(axes)(x) if axes else x


@translates("concatenate", keys=True)
def concatenated(eqn: Any, *xs: Any) -> Any:
    return Concatenate(int(eqn.params["dimension"]))(*xs)


@translates("stack", keys=True)
def stacked(eqn: Any, *xs: Any) -> Any:
    axis = int(eqn.params["axis"])
    shape = aval_of(xs[0]).shape
    rows = [reshape(x, (*shape[:axis], 1, *shape[axis:])) for x in xs]
    return Concatenate(axis)(*rows)


@translates("unstack", keys=True)
def unstacked(eqn: Any, x: Any) -> Any:
    axis, shape = int(eqn.params["axis"]), aval_of(x).shape
    row = (*shape[:axis], *shape[axis + 1 :])
    return [reshape(part, row) for part in Split((1,) * shape[axis], axis)(x)]


@translates("split", keys=True)
def split(eqn: Any, x: Any) -> Any:
    return Split(ints(eqn.params["sizes"]), int(eqn.params["axis"]))(x)


@translates("slice", keys=True)
def sliced(eqn: Any, x: Any) -> Any:
    words = words_of(eqn)
    start, limit, strides = [
        eqn.params[name] for name in ("start_indices", "limit_indices", "strides")
    ]
    if strides is not None:
        strides = (*ints(strides), *[1] * len(words))
        strides = None if all(n == 1 for n in strides) else strides
    return Slice((*ints(start), *[0] * len(words)), (*ints(limit), *words), strides)(x)


@translates("pad")
def padded(eqn: Any, x: Any, value: Any) -> Any:
    amounts = eqn.params["padding_config"]
    config = tuple([(int(low), int(high), int(inner)) for low, high, inner in amounts])
    return Pad(config)(x, value) if any(map(any, config)) else x


@translates("iota")
def iota(eqn: Any, *dynamic: Any) -> Any:
    if dynamic:
        return NotImplemented
    params = eqn.params
    return Iota(np.dtype(params["dtype"]), ints(params["shape"]), int(params["dimension"]))()


@translates("dynamic_slice")
def dynamic_slice(eqn: Any, x: Any, *indices: Any) -> Any:
    return DynamicSlice(ints(eqn.params["slice_sizes"]))(x, *indices)


@translates("dynamic_update_slice")
def dynamic_update_slice(eqn: Any, x: Any, update: Any, *indices: Any) -> Any:
    return DynamicUpdateSlice()(x, update, *indices)


@translates("gather")
def gather(eqn: Any, x: Any, indices: Any) -> Any:
    params = eqn.params
    mode = _mode(params["mode"], "fill")
    if mode is None:
        return NotImplemented
    return gathering.gather(
        x,
        indices,
        params["dimension_numbers"],
        ints(params["slice_sizes"]),
        unique_indices=params["unique_indices"],
        indices_are_sorted=params["indices_are_sorted"],
        mode=mode,
        fill_value=params["fill_value"] if mode == "fill" else None,
    )


_SCATTERS = {
    "scatter": scatter_set.scatter,
    "scatter-add": scattering.scatter_add,
    "scatter_mul": scatter_reductions.scatter_mul,
    "scatter-mul": scatter_reductions.scatter_mul,
    "scatter_min": scatter_reductions.scatter_min,
    "scatter-min": scatter_reductions.scatter_min,
    "scatter_max": scatter_reductions.scatter_max,
    "scatter-max": scatter_reductions.scatter_max,
}


@translates(*_SCATTERS)
def scatter(eqn: Any, x: Any, indices: Any, updates: Any) -> Any:
    params = eqn.params
    mode = _mode(params["mode"], "drop")
    applies = eqn.primitive.name == "scatter" and params["update_jaxpr"] is not None
    if mode is None or applies:
        return NotImplemented
    return _SCATTERS[eqn.primitive.name](
        x,
        indices,
        updates,
        params["dimension_numbers"],
        indices_are_sorted=params["indices_are_sorted"],
        unique_indices=params["unique_indices"],
        mode=mode,
    )


def _mode(mode: Any, outside: str) -> str | None:
    """The name of one of JAX's modes; `outside` is what windows outside are."""
    return {"CLIP": "clip", "FILL_OR_DROP": outside, "PROMISE_IN_BOUNDS": "promise_in_bounds"}.get(
        getattr(mode, "name", str(mode))
    )
