"""Translations of what moves elements: shapes, slices, gathers and scatters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from functx.core.tracing import aval_of
from functx.interop.jaxprs import int_tuple
from functx.interop.translation import register_translation
from functx.lowering.keys import prng_key_type
from functx.ops import gathering, scatter_reductions, scatter_set, scattering
from functx.ops.creation import Iota
from functx.ops.joining import Concatenate, Pad, Split
from functx.ops.shaping import Rev, broadcast_in_dim, full, permute_dims, reshape
from functx.ops.slicing import DynamicSlice, DynamicUpdateSlice, Slice

Shape = tuple[int, ...]


def key_words_shape(eqn: Any) -> Shape:
    """The shape of what one element of the first operand is: a key's words, or a number."""
    kind = prng_key_type(eqn.invars[0].aval.dtype)
    return () if kind is None else kind.key_shape


def dims_with_key_words(eqn: Any, dims: Sequence[int]) -> Shape:
    """Dimension numbers of a result of keys, and those of their words behind them."""
    rank = len(eqn.outvars[0].aval.shape)
    return (*int_tuple(dims), *range(rank, rank + len(key_words_shape(eqn))))


@register_translation("broadcast_in_dim", keys=True)
def translate_broadcast_in_dim(eqn: Any, x: Any, *dynamic: Any) -> Any:
    if dynamic:
        return NotImplemented
    shape = (*int_tuple(eqn.params["shape"]), *key_words_shape(eqn))
    dims = dims_with_key_words(eqn, eqn.params["broadcast_dimensions"])
    if not aval_of(x).shape:
        return full(shape, x) if shape else x
    return broadcast_in_dim(x, shape, dims)


@register_translation("reshape", "squeeze", keys=True)
def translate_reshape(eqn: Any, x: Any, *dynamic: Any) -> Any:
    order = eqn.params.get("dimensions") if eqn.primitive.name == "reshape" else None
    if dynamic or (order is not None and key_words_shape(eqn)):
        return NotImplemented
    if order is not None:
        x = permute_dims(x, int_tuple(order))
    return reshape(x, (*eqn.outvars[0].aval.shape, *key_words_shape(eqn)))


@register_translation("transpose", keys=True)
def translate_transpose(eqn: Any, x: Any) -> Any:
    return permute_dims(x, dims_with_key_words(eqn, eqn.params["permutation"]))


@register_translation("rev", keys=True)
def translate_rev(eqn: Any, x: Any) -> Any:
    axes = int_tuple(eqn.params["dimensions"])
    return Rev(axes)(x) if axes else x


@register_translation("concatenate", keys=True)
def translate_concatenate(eqn: Any, *xs: Any) -> Any:
    return Concatenate(int(eqn.params["dimension"]))(*xs)


@register_translation("stack", keys=True)
def translate_stack(eqn: Any, *xs: Any) -> Any:
    axis = int(eqn.params["axis"])
    shape = aval_of(xs[0]).shape
    rows = [reshape(x, (*shape[:axis], 1, *shape[axis:])) for x in xs]
    return Concatenate(axis)(*rows)


@register_translation("unstack", keys=True)
def translate_unstack(eqn: Any, x: Any) -> Any:
    axis, shape = int(eqn.params["axis"]), aval_of(x).shape
    row = (*shape[:axis], *shape[axis + 1 :])
    return [reshape(part, row) for part in Split((1,) * shape[axis], axis)(x)]


@register_translation("split", keys=True)
def translate_split(eqn: Any, x: Any) -> Any:
    return Split(int_tuple(eqn.params["sizes"]), int(eqn.params["axis"]))(x)


@register_translation("slice", keys=True)
def translate_slice(eqn: Any, x: Any) -> Any:
    words = key_words_shape(eqn)
    start, limit, strides = [
        eqn.params[name] for name in ("start_indices", "limit_indices", "strides")
    ]
    if strides is not None:
        strides = (*int_tuple(strides), *[1] * len(words))
        strides = None if all(n == 1 for n in strides) else strides
    return Slice((*int_tuple(start), *[0] * len(words)), (*int_tuple(limit), *words), strides)(x)


@register_translation("pad")
def translate_pad(eqn: Any, x: Any, value: Any) -> Any:
    amounts = eqn.params["padding_config"]
    config = tuple([(int(low), int(high), int(inner)) for low, high, inner in amounts])
    return Pad(config)(x, value) if any(map(any, config)) else x


@register_translation("iota")
def translate_iota(eqn: Any, *dynamic: Any) -> Any:
    if dynamic:
        return NotImplemented
    params = eqn.params
    return Iota(np.dtype(params["dtype"]), int_tuple(params["shape"]), int(params["dimension"]))()


@register_translation("dynamic_slice")
def translate_dynamic_slice(eqn: Any, x: Any, *indices: Any) -> Any:
    return DynamicSlice(int_tuple(eqn.params["slice_sizes"]))(x, *indices)


@register_translation("dynamic_update_slice")
def translate_dynamic_update_slice(eqn: Any, x: Any, update: Any, *indices: Any) -> Any:
    return DynamicUpdateSlice()(x, update, *indices)


@register_translation("gather")
def translate_gather(eqn: Any, x: Any, indices: Any) -> Any:
    params = eqn.params
    mode = _out_of_bounds_mode(params["mode"], "fill")
    if mode is None:
        return NotImplemented
    return gathering.gather(
        x,
        indices,
        params["dimension_numbers"],
        int_tuple(params["slice_sizes"]),
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


@register_translation(*_SCATTERS)
def translate_scatter(eqn: Any, x: Any, indices: Any, updates: Any) -> Any:
    params = eqn.params
    mode = _out_of_bounds_mode(params["mode"], "drop")
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


def _out_of_bounds_mode(mode: Any, outside: str) -> str | None:
    """The name of one of JAX's modes; `outside` is what windows outside are."""
    return {"CLIP": "clip", "FILL_OR_DROP": outside, "PROMISE_IN_BOUNDS": "promise_in_bounds"}.get(
        getattr(mode, "name", str(mode))
    )
