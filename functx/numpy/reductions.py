"""Sums, products, extrema, truth and positions along axes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from functx.core.avals import Shape
from functx.core.dtypes import DType, canonical_dtype, is_complex, is_inexact, kind
from functx.core.errors import ArgumentError, ValueRangeError
from functx.core.tracing import Tracer, aval_of, bind
from functx.numpy import choices
from functx.numpy.creation import asarray
from functx.numpy.mutation import check_mask, write_out_exact
from functx.numpy.promotion import copy_if_same_memory
from functx.ops import arithmetic
from functx.ops import reductions as ops
from functx.ops.arithmetic import mul, sub
from functx.ops.comparison import ne
from functx.ops.conversion import convert_element_type
from functx.ops.operands import canonical_axes, canonical_axis, literal
from functx.ops.parameters import as_bool
from functx.ops.reductions import ReduceSum
from functx.ops.shaping import reshape

__all__ = [
    "all",
    "amax",
    "amin",
    "any",
    "argmax",
    "argmin",
    "count_nonzero",
    "max",
    "min",
    "prod",
    "ptp",
    "sum",
]


def restore_reduced_axes(out: Any, shape: Shape, axes: Shape, keepdims: bool) -> Any:
    """`out`, with the axes that `shape` lost as unit dimensions if `keepdims`."""
    if not (keepdims if type(keepdims) is bool else as_bool("keepdims", keepdims)):
        return out
    return reshape(out, tuple([1 if d in axes else n for d, n in enumerate(shape)]))


def ravel_array(x: Any) -> Any:
    x = asarray(x)
    return reshape(x, (aval_of(x).size,))


def fill_masked(x: Any, where: Any, fill: Any) -> Any:
    """`x`, with `fill` where the mask does not hold."""
    if where is None or where is True:
        return x
    check_mask("a reduction", where)
    return choices.where(where, x, literal(fill, aval_of(x).dtype))


def _is_half_precision(dtype: DType) -> bool:
    return is_inexact(dtype) and dtype.itemsize < 4


def accumulation_dtype(dtype: DType) -> DType:
    """The dtype to add up in: halves lose digits that single precision keeps."""
    return np.dtype("float32") if _is_half_precision(dtype) else dtype


def sum_dtype(dtype: DType) -> DType:
    """The dtype of a sum: booleans and narrow integers as the default integer."""
    if kind(dtype) in "bi":
        default = canonical_dtype("int64")
    elif kind(dtype) == "u":
        default = canonical_dtype("uint64")
    else:
        return dtype
    return default if dtype.itemsize < default.itemsize else dtype


def _sum_or_prod(
    name: str,
    a: Any,
    axis: Any,
    dtype: Any,
    out: Any,
    keepdims: bool,
    initial: Any,
    where: Any,
    reduce: Callable[..., Any],
    combine: Callable[..., Any],
    neutral: int,
    promote_integers: bool = True,
) -> Any:
    x = asarray(a)
    aval = aval_of(x)
    axes = canonical_axes(axis, aval.ndim)
    if dtype is None:
        result = sum_dtype(aval.dtype) if promote_integers or aval.dtype == np.bool_ else aval.dtype
    else:
        result = canonical_dtype(dtype)
    working = canonical_dtype("int64") if kind(result) == "b" else accumulation_dtype(result)
    if kind(result) == "b":
        x = convert_element_type(x, result)
    x = fill_masked(convert_element_type(x, working), where, neutral)
    total = reduce(x, axes)
    if initial is not None:
        total = combine(total, convert_element_type(asarray(initial), working))
    total = convert_element_type(restore_reduced_axes(total, aval.shape, axes, keepdims), result)
    return write_out_exact(name, copy_if_same_memory(total, a), out)


def sum(
    a: Any,
    axis: Any = None,
    dtype: Any = None,
    out: Any = None,
    keepdims: bool = False,
    initial: Any = None,
    where: Any = None,
    promote_integers: bool = True,
) -> Any:
    """The sum along `axis`, an int, several or None for all, plus `initial`.

    Booleans and narrow integers are added in the default integer type. With a mask `where`,
    only the elements where it holds count.
    """
    if (
        type(a) is Tracer
        and a.atom.aval.dtype.kind == "f"
        and a.atom.aval.dtype.itemsize > 2
        and dtype is out is initial is where is None
        and not keepdims
        and not a.atom.aval.weak_type
        and a.atom.aval.ndim
        and axis != ()
    ):
        return bind(ReduceSum(canonical_axes(axis, a.atom.aval.ndim)), (a,))
    return _sum_or_prod(
        "sum", a, axis, dtype, out, keepdims, initial, where,
        ops.reduce_sum, arithmetic.add, 0, promote_integers,
    )  # fmt: skip


def prod(
    a: Any,
    axis: Any = None,
    dtype: Any = None,
    out: Any = None,
    keepdims: bool = False,
    initial: Any = None,
    where: Any = None,
    promote_integers: bool = True,
) -> Any:
    """The product along `axis`, an int, several or None for all, times `initial`."""
    return _sum_or_prod(
        "prod", a, axis, dtype, out, keepdims, initial, where,
        ops.reduce_prod, mul, 1, promote_integers,
    )  # fmt: skip


def _extremum(
    name: str,
    a: Any,
    axis: Any,
    out: Any,
    keepdims: bool,
    initial: Any,
    where: Any,
    reduce: Callable[..., Any],
    combine: Callable[..., Any],
    start: Callable[[DType], Any],
) -> Any:
    x = asarray(a)
    aval = aval_of(x)
    axes = canonical_axes(axis, aval.ndim)
    if initial is None:
        if where is not None:
            raise ArgumentError(f"{name}: with where=, initial= must be given; got none")
        if 0 in [aval.shape[d] for d in axes]:
            raise ValueRangeError(
                f"{name}: there must be an element to choose, or initial=; got {aval!r}"
            )
    if where is not None:
        x = fill_masked(x, where, start(real_part_dtype(aval.dtype)))
    best = reduce(x, axes)
    if initial is not None:
        at_least = asarray(initial, aval.dtype if type(initial) is int else None)
        best = combine(best, convert_element_type(at_least, aval.dtype))
    best = convert_element_type(restore_reduced_axes(best, aval.shape, axes, keepdims), aval.dtype)
    return write_out_exact(name, copy_if_same_memory(best, a), out)


def real_part_dtype(dtype: DType) -> DType:
    return np.dtype(f"float{4 * dtype.itemsize}") if is_complex(dtype) else dtype


def max(
    a: Any,
    axis: Any = None,
    out: Any = None,
    keepdims: bool = False,
    initial: Any = None,
    where: Any = None,
) -> Any:
    """The largest element along `axis`, an int, several or None for all; nan if there is one.

    At least `initial`, where it is given; elements that tie share the derivative.
    """
    return _extremum(
        "max", a, axis, out, keepdims, initial, where, ops.reduce_max, arithmetic.max, ops.lowest
    )


def min(
    a: Any,
    axis: Any = None,
    out: Any = None,
    keepdims: bool = False,
    initial: Any = None,
    where: Any = None,
) -> Any:
    """The smallest element along `axis`, an int, several or None for all; nan if there is one.

    At most `initial`, where it is given; elements that tie share the derivative.
    """
    return _extremum(
        "min", a, axis, out, keepdims, initial, where, ops.reduce_min, arithmetic.min, ops.highest
    )


amax, amin = max, min


def any(
    a: Any, axis: Any = None, out: Any = None, keepdims: bool = False, *, where: Any = None
) -> Any:
    """Whether an element along `axis`, an int, several or None for all, is not zero."""
    return _logical_reduction("any", a, axis, out, keepdims, where, ops.reduce_or, False)


def all(
    a: Any, axis: Any = None, out: Any = None, keepdims: bool = False, *, where: Any = None
) -> Any:
    """Whether every element along `axis`, an int, several or None for all, is not zero."""
    return _logical_reduction("all", a, axis, out, keepdims, where, ops.reduce_and, True)


def _logical_reduction(
    name: str,
    a: Any,
    axis: Any,
    out: Any,
    keepdims: bool,
    where: Any,
    reduce: Callable[..., Any],
    neutral: bool,
) -> Any:
    x = asarray(a)
    aval = aval_of(x)
    axes = canonical_axes(axis, aval.ndim)
    holds = x if aval.dtype == np.bool_ else ne(x, 0)
    found = reduce(fill_masked(holds, where, neutral), axes)
    return write_out_exact(
        name, copy_if_same_memory(restore_reduced_axes(found, aval.shape, axes, keepdims), x), out
    )


def argmax(a: Any, axis: Any = None, out: Any = None, keepdims: bool = False) -> Any:
    """The position of the first largest element along `axis`, or of the first nan."""
    return _arg_extremum("argmax", a, axis, out, keepdims, ops.argmax)


def argmin(a: Any, axis: Any = None, out: Any = None, keepdims: bool = False) -> Any:
    """The position of the first smallest element along `axis`, or of the first nan."""
    return _arg_extremum("argmin", a, axis, out, keepdims, ops.argmin)


def _arg_extremum(
    name: str, a: Any, axis: Any, out: Any, keepdims: bool, find: Callable[..., Any]
) -> Any:
    """Where along one axis, or in row-major order of them all, `find` says."""
    x = asarray(a)
    aval = aval_of(x)
    if axis is None:
        x, axes = reshape(x, (aval.size,)), tuple(range(aval.ndim))
        found = find(x, 0, canonical_dtype("int64"))
    else:
        axes = (canonical_axis(axis, aval.ndim),)
        found = find(x, axes[0], canonical_dtype("int64"))
    return write_out_exact(name, restore_reduced_axes(found, aval.shape, axes, keepdims), out)


def ptp(a: Any, axis: Any = None, out: Any = None, keepdims: bool = False) -> Any:
    """The largest less the smallest element along `axis`."""
    spread = sub(max(a, axis, keepdims=keepdims), min(a, axis, keepdims=keepdims))
    return write_out_exact("ptp", spread, out)


def count_nonzero(a: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """The number of elements along `axis` that are not zero."""
    x = asarray(a)
    return sum(x if aval_of(x).dtype == np.bool_ else ne(x, 0), axis, keepdims=keepdims)
