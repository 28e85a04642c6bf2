"""Translations of JAX primitives on arrays: conversions, shapes, slices, reductions, linear algebra, keys."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
from jax import lax

from functx import ops
from functx.core.tracer import aval_of
from functx.core.typing import Value
from functx.interop.jaxprs import JaxprAtom, JaxprEqn, int_tuple
from functx.interop.translation import Translated, broadcast_unit_dims, register_translation
from functx.lowering.jax_bridge import prng_key_type
from functx.ops import indexing, scattering
from functx.ops.operands import literal
from functx.ops.threefry import RandomFoldIn, RandomSeed, random_bits, random_split


@register_translation("add_any")
def translate_add_any(eqn: JaxprEqn, x: Value, y: Value) -> Translated:
    return ops.add(x, y)


@register_translation("conj")
def translate_conj(eqn: JaxprEqn, x: Value) -> Translated:
    # JAX's primitive also takes real arrays, and returns complex ones.
    return ops.conj(ops.convert_element_type(x, eqn.outvars[0].aval.dtype))


@register_translation("select_n")
def translate_select_n(eqn: JaxprEqn, which: Value, *cases: Value) -> Translated:
    return ops.select_n(*broadcast_unit_dims(eqn, (which, *cases)))


@register_translation("convert_element_type")
def translate_convert_element_type(eqn: JaxprEqn, x: Value) -> Translated:
    return ops.convert_element_type(x, eqn.params["new_dtype"], bool(eqn.params["weak_type"]))


@register_translation("copy", "copy_p", "random_clone", keys=True)
def translate_identity(eqn: JaxprEqn, *xs: Value) -> Translated:
    return list(xs)


@register_translation("device_put", keys=True)
def translate_device_put(eqn: JaxprEqn, *xs: Value) -> Translated:
    keeps_device = all([device is None for device in eqn.params["devices"]])
    return list(xs) if keeps_device else NotImplemented


@register_translation("dce_sink", keys=True)
def translate_dce_sink(eqn: JaxprEqn, *xs: Value) -> Translated:
    return []


Shape = tuple[int, ...]


def key_words_shape(eqn: JaxprEqn) -> Shape:
    """The shape of the words of one key, if the first operand holds typed keys, else ()."""
    kind = prng_key_type(eqn.invars[0].aval.dtype)
    return () if kind is None else kind.key_shape


def dims_with_key_words(eqn: JaxprEqn, dims: Sequence[int]) -> Shape:
    """Dimension numbers of a result that holds keys, followed by those of their words."""
    rank = len(eqn.outvars[0].aval.shape)
    return (*int_tuple(dims), *range(rank, rank + len(key_words_shape(eqn))))


@register_translation("broadcast_in_dim", keys=True)
def translate_broadcast_in_dim(eqn: JaxprEqn, x: Value, *dynamic: Value) -> Translated:
    if dynamic:
        return NotImplemented
    shape = (*int_tuple(eqn.params["shape"]), *key_words_shape(eqn))
    dims = dims_with_key_words(eqn, eqn.params["broadcast_dimensions"])
    if not aval_of(x).shape:
        return ops.full(shape, x) if shape else x
    return ops.broadcast_in_dim(x, shape, dims)


@register_translation("reshape", "squeeze", keys=True)
def translate_reshape(eqn: JaxprEqn, x: Value, *dynamic: Value) -> Translated:
    order = eqn.params.get("dimensions") if eqn.primitive.name == "reshape" else None
    if dynamic or (order is not None and key_words_shape(eqn)):
        return NotImplemented
    if order is not None:
        x = ops.permute_dims(x, int_tuple(order))
    return ops.reshape(x, (*eqn.outvars[0].aval.shape, *key_words_shape(eqn)))


@register_translation("transpose", keys=True)
def translate_transpose(eqn: JaxprEqn, x: Value) -> Translated:
    return ops.permute_dims(x, dims_with_key_words(eqn, eqn.params["permutation"]))


@register_translation("rev", keys=True)
def translate_rev(eqn: JaxprEqn, x: Value) -> Translated:
    axes = int_tuple(eqn.params["dimensions"])
    return ops.Rev(axes)(x) if axes else x


@register_translation("concatenate", keys=True)
def translate_concatenate(eqn: JaxprEqn, *xs: Value) -> Translated:
    return ops.Concatenate(int(eqn.params["dimension"]))(*xs)


@register_translation("stack", keys=True)
def translate_stack(eqn: JaxprEqn, *xs: Value) -> Translated:
    axis = int(eqn.params["axis"])
    shape = aval_of(xs[0]).shape
    rows = [ops.reshape(x, (*shape[:axis], 1, *shape[axis:])) for x in xs]
    return ops.Concatenate(axis)(*rows)


@register_translation("unstack", keys=True)
def translate_unstack(eqn: JaxprEqn, x: Value) -> Translated:
    axis, shape = int(eqn.params["axis"]), aval_of(x).shape
    row = (*shape[:axis], *shape[axis + 1 :])
    return [ops.reshape(part, row) for part in ops.Split((1,) * shape[axis], axis)(x)]


@register_translation("split", keys=True)
def translate_split(eqn: JaxprEqn, x: Value) -> Translated:
    return ops.Split(int_tuple(eqn.params["sizes"]), int(eqn.params["axis"]))(x)


@register_translation("slice", keys=True)
def translate_slice(eqn: JaxprEqn, x: Value) -> Translated:
    words = key_words_shape(eqn)
    start, limit, strides = [
        eqn.params[name] for name in ("start_indices", "limit_indices", "strides")
    ]
    if strides is not None:
        strides = (*int_tuple(strides), *[1] * len(words))
        strides = None if all(n == 1 for n in strides) else strides
    return ops.Slice((*int_tuple(start), *[0] * len(words)), (*int_tuple(limit), *words), strides)(
        x
    )


@register_translation("pad")
def translate_pad(eqn: JaxprEqn, x: Value, value: Value) -> Translated:
    amounts = eqn.params["padding_config"]
    config = tuple([(int(low), int(high), int(inner)) for low, high, inner in amounts])
    return ops.Pad(config)(x, value) if any(map(any, config)) else x


@register_translation("iota")
def translate_iota(eqn: JaxprEqn, *dynamic: Value) -> Translated:
    if dynamic:
        return NotImplemented
    params = eqn.params
    return ops.Iota(
        np.dtype(params["dtype"]), int_tuple(params["shape"]), int(params["dimension"])
    )()


@register_translation("gather")
def translate_gather(eqn: JaxprEqn, x: Value, indices: Value) -> Translated:
    params = eqn.params
    mode = _out_of_bounds_mode(params["mode"], "fill")
    if mode is None:
        return NotImplemented
    return indexing.gather(
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
    "scatter": scattering.scatter,
    "scatter-add": scattering.scatter_add,
    "scatter_mul": scattering.scatter_mul,
    "scatter-mul": scattering.scatter_mul,
    "scatter_min": scattering.scatter_min,
    "scatter-min": scattering.scatter_min,
    "scatter_max": scattering.scatter_max,
    "scatter-max": scattering.scatter_max,
}


@register_translation(*_SCATTERS)
def translate_scatter(eqn: JaxprEqn, x: Value, indices: Value, updates: Value) -> Translated:
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


def _out_of_bounds_mode(mode: object, outside: str) -> str | None:
    """functx's name of a JAX mode for indices; `outside` is its name for FILL_OR_DROP."""
    return {"CLIP": "clip", "FILL_OR_DROP": outside, "PROMISE_IN_BOUNDS": "promise_in_bounds"}.get(
        getattr(mode, "name", str(mode))
    )


@register_translation("dot_general")
def translate_dot_general(eqn: JaxprEqn, x: Value, y: Value) -> Translated:
    params = eqn.params
    precision = params["precision"]
    if isinstance(precision, lax.Precision):
        precision = precision, precision
    if precision is not None and not isinstance(precision, tuple):
        return NotImplemented
    if precision is not None:
        precision = tuple([p.name for p in precision])
    contract, batched = [
        tuple([int_tuple(dims) for dims in pair]) for pair in params["dimension_numbers"]
    ]
    wide = params["preferred_element_type"]
    wide = None if wide is None or np.dtype(wide) == aval_of(x).dtype else np.dtype(wide)
    return ops.DotGeneral(contract, batched, precision, wide)(x, y)  # type: ignore[arg-type]


@register_translation("top_k")
def translate_top_k(eqn: JaxprEqn, x: Value) -> Translated:
    last = eqn.params.get("axis", -1) in (-1, aval_of(x).ndim - 1)
    return ops.TopK(int(eqn.params["k"]))(x) if last else NotImplemented


@register_translation("fft")
def translate_fft(eqn: JaxprEqn, x: Value) -> Translated:
    kind, lengths = eqn.params["fft_type"], int_tuple(eqn.params["fft_lengths"])
    if not lengths or 0 in aval_of(x).shape[-len(lengths) :] or 0 in lengths:
        return NotImplemented
    if kind == lax.FftType.IRFFT:
        return ops.InverseRealFft(lengths)(x)
    if kind == lax.FftType.RFFT:
        return ops.RealFft(len(lengths))(x)
    return ops.Fft(len(lengths), kind == lax.FftType.IFFT)(x)


@register_translation("triangular_solve")
def translate_triangular_solve(eqn: JaxprEqn, a: Value, b: Value) -> Translated:
    params = eqn.params
    left = params["left_side"]
    # x op(a) = b is op(a)^T x^T = b^T.
    solve = ops.TriangularSolve(
        params["lower"],
        params["transpose_a"] if left else not params["transpose_a"],
        params["conjugate_a"],
        params["unit_diagonal"],
    )
    return solve(a, b) if left else _matrix_transpose(solve(a, _matrix_transpose(b)))


@register_translation("cholesky")
def translate_cholesky(eqn: JaxprEqn, x: Value) -> Translated:
    return ops.Cholesky()(_symmetrize_lower(x))


@register_translation("eigh")
def translate_eigh(eqn: JaxprEqn, x: Value) -> Translated:
    params = eqn.params
    plain = params["lower"] and params["sort_eigenvalues"] and params["subset_by_index"] is None
    if not plain or params.get("algorithm") is not None:
        return NotImplemented
    values, vectors = ops.Eigh()(_symmetrize_lower(x))
    return [vectors, values]


@register_translation("svd")
def translate_svd(eqn: JaxprEqn, x: Value) -> Translated:
    params, (m, n) = eqn.params, aval_of(x).shape[-2:]
    if params["subset_by_index"] is not None or params.get("algorithm") is not None:
        return NotImplemented
    u, s, vh = ops.Svd(params["compute_uv"] and params["full_matrices"] and m != n)(x)
    return [s, u, vh] if params["compute_uv"] else [s]


def _matrix_transpose(x: Value) -> Value:
    rank = aval_of(x).ndim
    return ops.permute_dims(x, (*range(rank - 2), rank - 1, rank - 2))


def _symmetrize_lower(x: Value) -> Value:
    """The Hermitian matrix with the lower triangle of `x`."""
    aval = aval_of(x)
    rows, columns = [
        ops.broadcasted_iota("int32", aval.shape, d) for d in (aval.ndim - 2, aval.ndim - 1)
    ]
    zero = literal(0, aval.dtype)
    lower, below = (
        ops.select(ops.ge(rows, columns), x, zero),
        ops.select(ops.gt(rows, columns), x, zero),
    )
    upper = _matrix_transpose(below)
    return ops.add(lower, ops.conj(upper) if aval.dtype.kind == "c" else upper)


def is_threefry(variable: JaxprAtom) -> bool:
    """Whether a variable holds keys of the generator that functx implements, Threefry."""
    kind = prng_key_type(variable.aval.dtype)
    return kind is not None and kind.key_shape == (2,) and str(kind.generator) == "threefry2x32"


@register_translation("random_wrap", "random_unwrap", keys=True)
def translate_key_words(eqn: JaxprEqn, x: Value) -> Translated:
    return x


@register_translation("random_seed", keys=True)
def translate_random_seed(eqn: JaxprEqn, seed: Value) -> Translated:
    return RandomSeed()(seed) if is_threefry(eqn.outvars[0]) else NotImplemented


@register_translation("random_split", keys=True)
def translate_random_split(eqn: JaxprEqn, key: Value) -> Translated:
    if not is_threefry(eqn.invars[0]):
        return NotImplemented
    return random_split(key, tuple(eqn.params["shape"]))


@register_translation("random_fold_in", keys=True)
def translate_random_fold_in(eqn: JaxprEqn, key: Hashable, data: Value) -> Translated:
    return RandomFoldIn()(key, data) if is_threefry(eqn.invars[0]) else NotImplemented


@register_translation("random_bits", keys=True)
def translate_random_bits(eqn: JaxprEqn, key: Value) -> Translated:
    if not is_threefry(eqn.invars[0]):
        return NotImplemented
    return random_bits(key, tuple(eqn.params["shape"]), f"uint{eqn.params['bit_width']}")
