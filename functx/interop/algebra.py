"""Translations of what combines elements: reductions, products, sorting, linear algebra."""

from __future__ import annotations

from typing import Any

import numpy as np
from jax import lax

from functx.core.tracing import aval_of
from functx.interop.jaxprs import ints
from functx.interop.translation import translates
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


@translates(*_REDUCTIONS)
def reduction(eqn: Any, x: Any) -> Any:
    axes = ints(eqn.params["axes"])
    return _REDUCTIONS[eqn.primitive.name](axes)(x) if axes else x


_WINDOWED = {
    "reduce_window_sum": ReduceWindowSum,
    "reduce_window_max": ReduceWindowMax,
    "reduce_window_min": ReduceWindowMin,
}


@translates(*_WINDOWED)
def windows(eqn: Any, x: Any) -> Any:
    params = eqn.params
    sizes, strides, holes, apart = [
        ints(params[name])
        for name in ("window_dimensions", "window_strides", "base_dilation", "window_dilation")
    ]
    padding = tuple([(int(low), int(high)) for low, high in params["padding"]])
    return _WINDOWED[eqn.primitive.name](sizes, strides, padding, holes, apart)(x)


_EXTREMA = {"argmax": ArgMax, "argmin": ArgMin}


@translates(*_EXTREMA)
def place_of_extremum(eqn: Any, x: Any) -> Any:
    (axis,) = ints(eqn.params["axes"])
    return _EXTREMA[eqn.primitive.name](axis, np.dtype(eqn.params["index_dtype"]))(x)


_CUMULATIVE = {
    "cumsum": CumSum,
    "cumprod": CumProd,
    "cummax": CumMax,
    "cummin": CumMin,
    "cumlogsumexp": CumLogSumExp,
}


@translates(*_CUMULATIVE)
def cumulative(eqn: Any, x: Any) -> Any:
    return _CUMULATIVE[eqn.primitive.name](int(eqn.params["axis"]), bool(eqn.params["reverse"]))(x)


@translates("dot_general")
def dot_general(eqn: Any, x: Any, y: Any) -> Any:
    params = eqn.params
    precision = params["precision"]
    if isinstance(precision, lax.Precision):
        precision = precision, precision
    if precision is not None and not isinstance(precision, tuple):
        return NotImplemented
    if precision is not None:
        precision = tuple([p.name for p in precision])
    contract, batched = [
        tuple([ints(dims) for dims in pair]) for pair in params["dimension_numbers"]
    ]
    wide = params["preferred_element_type"]
    wide = None if wide is None or np.dtype(wide) == aval_of(x).dtype else np.dtype(wide)
    return DotGeneral(contract, batched, precision, wide)(x, y)  # type: ignore[arg-type]


@translates("sort")
def sort(eqn: Any, *xs: Any) -> Any:
    params = eqn.params
    return Sort(int(params["dimension"]), int(params["num_keys"]), bool(params["is_stable"]))(*xs)


@translates("top_k")
def top_k(eqn: Any, x: Any) -> Any:
    last = eqn.params.get("axis", -1) in (-1, aval_of(x).ndim - 1)
    return TopK(int(eqn.params["k"]))(x) if last else NotImplemented


@translates("fft")
def fft(eqn: Any, x: Any) -> Any:
    kind, lengths = eqn.params["fft_type"], ints(eqn.params["fft_lengths"])
    whole = aval_of(x).shape[-len(lengths) :] == lengths
    if kind not in (lax.FftType.FFT, lax.FftType.IFFT) or not lengths or not whole:
        return NotImplemented
    return Fft(len(lengths), kind == lax.FftType.IFFT)(x)


@translates("triangular_solve")
def triangular_solve(eqn: Any, a: Any, b: Any) -> Any:
    params = eqn.params
    left = params["left_side"]
    # x op(a) = b is op(a)^T x^T = b^T.
    solve = TriangularSolve(
        params["lower"],
        params["transpose_a"] if left else not params["transpose_a"],
        params["conjugate_a"],
        params["unit_diagonal"],
    )
    return solve(a, b) if left else _swapped(solve(a, _swapped(b)))


@translates("cholesky")
def cholesky(eqn: Any, x: Any) -> Any:
    return Cholesky()(_hermitian(x))


@translates("eigh")
def eigh(eqn: Any, x: Any) -> Any:
    params = eqn.params
    plain = params["lower"] and params["sort_eigenvalues"] and params["subset_by_index"] is None
    if not plain or params.get("algorithm") is not None:
        return NotImplemented
    values, vectors = Eigh()(_hermitian(x))
    return [vectors, values]


@translates("svd")
def svd(eqn: Any, x: Any) -> Any:
    params, (m, n) = eqn.params, aval_of(x).shape[-2:]
    if params["subset_by_index"] is not None or params.get("algorithm") is not None:
        return NotImplemented
    u, s, vh = Svd(params["compute_uv"] and params["full_matrices"] and m != n)(x)
    return [s, u, vh] if params["compute_uv"] else [s]


def _swapped(x: Any) -> Any:
    rank = aval_of(x).ndim
    return permute_dims(x, (*range(rank - 2), rank - 1, rank - 2))


def _hermitian(x: Any) -> Any:
    """The Hermitian matrix of which `x` holds the lower triangle, which is all that counts."""
    aval = aval_of(x)
    rows, columns = [
        broadcasted_iota("int32", aval.shape, d) for d in (aval.ndim - 2, aval.ndim - 1)
    ]
    zero = literal(0, aval.dtype)
    lower, below = select(ge(rows, columns), x, zero), select(gt(rows, columns), x, zero)
    upper = _swapped(below)
    return add(lower, conj(upper) if aval.dtype.kind == "c" else upper)
