"""Translations of what works element by element: arithmetic, functions, comparisons, choices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax import lax

from functx.core.tracing import aval_of
from functx.interop.jaxprs import int_tuple
from functx.interop.translation import (
    ELEMENTWISE_PRIMITIVES,
    broadcast_unit_dims,
    register_translation,
)
from functx.lowering.jax_bridge import prng_key_type
from functx.ops import indexing, scattering
from functx.ops.arithmetic import (
    Abs,
    Add,
    Div,
    IntegerPow,
    Max,
    Min,
    Mul,
    Neg,
    NextAfter,
    Pow,
    Rem,
    Sign,
    Square,
    Sub,
    add,
)
from functx.ops.autodiff import CheckpointName, StopGradient
from functx.ops.concatenation import Concatenate, Pad, Split
from functx.ops.contraction import DotGeneral, Fft
from functx.ops.conversion import (
    BitcastConvertType,
    Ceil,
    Complex,
    Floor,
    Imag,
    IsFinite,
    Real,
    ReducePrecision,
    Round,
    conj,
    convert_element_type,
)
from functx.ops.cumulative import CumLogSumExp, CumMax, CumMin, CumProd, CumSum
from functx.ops.factorizations import Cholesky, Eigh, Svd
from functx.ops.linear_algebra import TriangularSolve
from functx.ops.logic import (
    And,
    Clamp,
    CountLeadingZeros,
    Eq,
    Ge,
    Gt,
    Le,
    Lt,
    Ne,
    Not,
    Or,
    PopulationCount,
    ShiftLeft,
    ShiftRightArithmetic,
    ShiftRightLogical,
    Xor,
    ge,
    gt,
    select,
    select_n,
)
from functx.ops.operands import literal
from functx.ops.random import RandomBits, RandomFoldIn, RandomSeed, RandomSplit
from functx.ops.reductions import (
    ArgMax,
    ArgMin,
    ReduceAnd,
    ReduceMax,
    ReduceMin,
    ReduceOr,
    ReduceProd,
    ReduceSum,
    ReduceXor,
)
from functx.ops.shapes import (
    Iota,
    Rev,
    broadcast_in_dim,
    broadcasted_iota,
    full,
    permute_dims,
    reshape,
)
from functx.ops.slicing import DynamicSlice, DynamicUpdateSlice, Slice
from functx.ops.sorting import Sort, TopK
from functx.ops.special import Digamma, Erf, Erfc, ErfInv, Lgamma, Polygamma
from functx.ops.transcendental import (
    Acos,
    Acosh,
    Asin,
    Asinh,
    Atan,
    Atan2,
    Atanh,
    Cbrt,
    Cos,
    Cosh,
    Exp,
    Exp2,
    Expm1,
    Log,
    Log1p,
    Logistic,
    Rsqrt,
    Sin,
    Sinh,
    Sqrt,
    Tan,
    Tanh,
)
from functx.ops.windows import ReduceWindowMax, ReduceWindowMin, ReduceWindowSum

ELEMENTWISE_PRIMITIVES.update(
    neg=Neg(),
    add=Add(),
    add_any=Add(),
    sub=Sub(),
    mul=Mul(),
    div=Div(),
    rem=Rem(),
    max=Max(),
    min=Min(),
    pow=Pow(),
    square=Square(),
    sign=Sign(),
    abs=Abs(),
    nextafter=NextAfter(),
    exp=Exp(),
    exp2=Exp2(),
    expm1=Expm1(),
    log=Log(),
    log1p=Log1p(),
    sqrt=Sqrt(),
    rsqrt=Rsqrt(),
    cbrt=Cbrt(),
    logistic=Logistic(),
    sin=Sin(),
    cos=Cos(),
    tan=Tan(),
    asin=Asin(),
    acos=Acos(),
    atan=Atan(),
    atan2=Atan2(),
    sinh=Sinh(),
    cosh=Cosh(),
    tanh=Tanh(),
    asinh=Asinh(),
    acosh=Acosh(),
    atanh=Atanh(),
    erf=Erf(),
    erfc=Erfc(),
    erf_inv=ErfInv(),
    lgamma=Lgamma(),
    digamma=Digamma(),
    polygamma=Polygamma(),
    floor=Floor(),
    ceil=Ceil(),
    is_finite=IsFinite(),
    eq=Eq(),
    ne=Ne(),
    lt=Lt(),
    le=Le(),
    gt=Gt(),
    ge=Ge(),
    real=Real(),
    imag=Imag(),
    complex=Complex(),
    clamp=Clamp(),
    population_count=PopulationCount(),
    clz=CountLeadingZeros(),
    shift_left=ShiftLeft(),
    shift_right_logical=ShiftRightLogical(),
    shift_right_arithmetic=ShiftRightArithmetic(),
    stop_gradient=StopGradient(),
)
ELEMENTWISE_PRIMITIVES.update({"and": And(), "or": Or(), "xor": Xor(), "not": Not()})


@register_translation("integer_pow")
def translate_integer_pow(eqn: Any, x: Any) -> Any:
    return IntegerPow(int(eqn.params["y"]))(x)


@register_translation("round")
def translate_round(eqn: Any, x: Any) -> Any:
    return Round(eqn.params["rounding_method"] == lax.RoundingMethod.TO_NEAREST_EVEN)(x)


@register_translation("conj")
def translate_conj(eqn: Any, x: Any) -> Any:
    # JAX's takes real arrays too, and gives complex ones.
    return conj(convert_element_type(x, eqn.outvars[0].aval.dtype))


@register_translation("select_n")
def translate_select_n(eqn: Any, which: Any, *cases: Any) -> Any:
    return select_n(*broadcast_unit_dims(eqn, (which, *cases)))


@register_translation("convert_element_type")
def translate_convert_element_type(eqn: Any, x: Any) -> Any:
    return convert_element_type(x, eqn.params["new_dtype"], bool(eqn.params["weak_type"]))


@register_translation("bitcast_convert_type")
def translate_bitcast_convert_type(eqn: Any, x: Any) -> Any:
    return BitcastConvertType(eqn.params["new_dtype"])(x)


@register_translation("reduce_precision")
def translate_reduce_precision(eqn: Any, x: Any) -> Any:
    return ReducePrecision(eqn.params["exponent_bits"], eqn.params["mantissa_bits"])(x)


@register_translation("copy", "copy_p", "random_clone", keys=True)
def translate_identity(eqn: Any, *xs: Any) -> Any:
    return list(xs)


@register_translation("name")
def translate_name(eqn: Any, x: Any) -> Any:
    return CheckpointName(eqn.params["name"])(x)


@register_translation("device_put", keys=True)
def translate_device_put(eqn: Any, *xs: Any) -> Any:
    # Without a device to go to, it is where it was.
    stays = all(device is None for device in eqn.params["devices"])
    return list(xs) if stays else NotImplemented


@register_translation("dce_sink", keys=True)
def translate_dce_sink(eqn: Any, *xs: Any) -> Any:
    return []


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


_REDUCTIONS = {
    "reduce_sum": ReduceSum,
    "reduce_prod": ReduceProd,
    "reduce_max": ReduceMax,
    "reduce_min": ReduceMin,
    "reduce_and": ReduceAnd,
    "reduce_or": ReduceOr,
    "reduce_xor": ReduceXor,
}


@register_translation(*_REDUCTIONS)
def translate_reduction(eqn: Any, x: Any) -> Any:
    axes = int_tuple(eqn.params["axes"])
    return _REDUCTIONS[eqn.primitive.name](axes)(x) if axes else x


_WINDOW_REDUCTIONS = {
    "reduce_window_sum": ReduceWindowSum,
    "reduce_window_max": ReduceWindowMax,
    "reduce_window_min": ReduceWindowMin,
}


@register_translation(*_WINDOW_REDUCTIONS)
def translate_reduce_window(eqn: Any, x: Any) -> Any:
    params = eqn.params
    sizes, strides, holes, apart = [
        int_tuple(params[name])
        for name in ("window_dimensions", "window_strides", "base_dilation", "window_dilation")
    ]
    padding = tuple([(int(low), int(high)) for low, high in params["padding"]])
    return _WINDOW_REDUCTIONS[eqn.primitive.name](sizes, strides, padding, holes, apart)(x)


_EXTREMA = {"argmax": ArgMax, "argmin": ArgMin}


@register_translation(*_EXTREMA)
def translate_argminmax(eqn: Any, x: Any) -> Any:
    (axis,) = int_tuple(eqn.params["axes"])
    return _EXTREMA[eqn.primitive.name](axis, np.dtype(eqn.params["index_dtype"]))(x)


_CUMULATIVE = {
    "cumsum": CumSum,
    "cumprod": CumProd,
    "cummax": CumMax,
    "cummin": CumMin,
    "cumlogsumexp": CumLogSumExp,
}


@register_translation(*_CUMULATIVE)
def translate_cumulative(eqn: Any, x: Any) -> Any:
    return _CUMULATIVE[eqn.primitive.name](int(eqn.params["axis"]), bool(eqn.params["reverse"]))(x)


@register_translation("dot_general")
def translate_dot_general(eqn: Any, x: Any, y: Any) -> Any:
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
    return DotGeneral(contract, batched, precision, wide)(x, y)  # type: ignore[arg-type]


@register_translation("sort")
def translate_sort(eqn: Any, *xs: Any) -> Any:
    params = eqn.params
    return Sort(int(params["dimension"]), int(params["num_keys"]), bool(params["is_stable"]))(*xs)


@register_translation("top_k")
def translate_top_k(eqn: Any, x: Any) -> Any:
    last = eqn.params.get("axis", -1) in (-1, aval_of(x).ndim - 1)
    return TopK(int(eqn.params["k"]))(x) if last else NotImplemented


@register_translation("fft")
def translate_fft(eqn: Any, x: Any) -> Any:
    kind, lengths = eqn.params["fft_type"], int_tuple(eqn.params["fft_lengths"])
    whole = aval_of(x).shape[-len(lengths) :] == lengths
    if kind not in (lax.FftType.FFT, lax.FftType.IFFT) or not lengths or not whole:
        return NotImplemented
    return Fft(len(lengths), kind == lax.FftType.IFFT)(x)


@register_translation("triangular_solve")
def translate_triangular_solve(eqn: Any, a: Any, b: Any) -> Any:
    params = eqn.params
    left = params["left_side"]
    # x op(a) = b is op(a)^T x^T = b^T.
    solve = TriangularSolve(
        params["lower"],
        params["transpose_a"] if left else not params["transpose_a"],
        params["conjugate_a"],
        params["unit_diagonal"],
    )
    return solve(a, b) if left else _matrix_transpose(solve(a, _matrix_transpose(b)))


@register_translation("cholesky")
def translate_cholesky(eqn: Any, x: Any) -> Any:
    return Cholesky()(_symmetrize_lower(x))


@register_translation("eigh")
def translate_eigh(eqn: Any, x: Any) -> Any:
    params = eqn.params
    plain = params["lower"] and params["sort_eigenvalues"] and params["subset_by_index"] is None
    if not plain or params.get("algorithm") is not None:
        return NotImplemented
    values, vectors = Eigh()(_symmetrize_lower(x))
    return [vectors, values]


@register_translation("svd")
def translate_svd(eqn: Any, x: Any) -> Any:
    params, (m, n) = eqn.params, aval_of(x).shape[-2:]
    if params["subset_by_index"] is not None or params.get("algorithm") is not None:
        return NotImplemented
    u, s, vh = Svd(params["compute_uv"] and params["full_matrices"] and m != n)(x)
    return [s, u, vh] if params["compute_uv"] else [s]


def _matrix_transpose(x: Any) -> Any:
    rank = aval_of(x).ndim
    return permute_dims(x, (*range(rank - 2), rank - 1, rank - 2))


def _symmetrize_lower(x: Any) -> Any:
    """The Hermitian matrix of which `x` holds the lower triangle, which is all that counts."""
    aval = aval_of(x)
    rows, columns = [
        broadcasted_iota("int32", aval.shape, d) for d in (aval.ndim - 2, aval.ndim - 1)
    ]
    zero = literal(0, aval.dtype)
    lower, below = select(ge(rows, columns), x, zero), select(gt(rows, columns), x, zero)
    upper = _matrix_transpose(below)
    return add(lower, conj(upper) if aval.dtype.kind == "c" else upper)


def is_threefry(variable: Any) -> bool:
    """Whether a key variable is of the generator that functx has, in its usual form."""
    kind = prng_key_type(variable.aval.dtype)
    return (
        kind is not None
        and kind.key_shape == (2,)
        and str(kind.generator) == "threefry2x32"
        and bool(jax.config.jax_threefry_partitionable)  # type: ignore[attr-defined]
    )


@register_translation("random_wrap", "random_unwrap", keys=True)
def translate_key_words(eqn: Any, x: Any) -> Any:
    return x


@register_translation("random_seed", keys=True)
def translate_random_seed(eqn: Any, seed: Any) -> Any:
    return RandomSeed()(seed) if is_threefry(eqn.outvars[0]) else NotImplemented


@register_translation("random_split", keys=True)
def translate_random_split(eqn: Any, key: Any) -> Any:
    if not is_threefry(eqn.invars[0]):
        return NotImplemented
    return RandomSplit(tuple(eqn.params["shape"]))(key)


@register_translation("random_fold_in", keys=True)
def translate_random_fold_in(eqn: Any, key: Any, data: Any) -> Any:
    return RandomFoldIn()(key, data) if is_threefry(eqn.invars[0]) else NotImplemented


@register_translation("random_bits", keys=True)
def translate_random_bits(eqn: Any, key: Any) -> Any:
    if not is_threefry(eqn.invars[0]):
        return NotImplemented
    return RandomBits(tuple(eqn.params["shape"]), np.dtype(f"uint{eqn.params['bit_width']}"))(key)
