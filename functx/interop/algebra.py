"""Translations of what combines elements: reductions, products, sorting, linear algebra."""

from __future__ import annotations

from typing import Any

import numpy as np
from jax import lax

from functx.core.tracing import aval_of
from functx.interop.jaxprs import int_tuple
from functx.interop.translation import register_translation
from functx.ops.arithmetic import add
from functx.ops.comparison import ge, gt
from functx.ops.complexes import conj
from functx.ops.contraction import DotGeneral
from functx.ops.creation import broadcasted_iota
from functx.ops.cumulative import CumLogSumExp, CumMax, CumMin, CumProd, CumSum
from functx.ops.factorizations import Cholesky, Eigh, Svd
from functx.ops.fourier import Fft
from functx.ops.linear_systems import TriangularSolve
from functx.ops.operands import literal
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
from functx.ops.selection import select
from functx.ops.shaping import permute_dims
from functx.ops.sorting import Sort, TopK
from functx.ops.windows import ReduceWindowMax, ReduceWindowMin, ReduceWindowSum

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
