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
from functx.numpy.mutation import check_mask, exactly_into
from functx.numpy.promotion import apart
from functx.ops import arithmetic
from functx.ops import reductions as ops
from functx.ops.arithmetic import mul, sub
from functx.ops.comparison import ne
from functx.ops.conversion import convert_element_type
from functx.ops.operands import canonical_axes, canonical_axis, literal
from functx.ops.parameters import flag
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


def with_axes_kept(out: Any, shape: Shape, axes: Shape, keepdims: bool) -> Any:
    """`out`, with the axes that `shape` lost as unit dimensions if `keepdims`."""
    if not (keepdims if type(keepdims) is bool else flag("keepdims", keepdims)):
        return out
    return reshape(out, tuple([1 if d in axes else n for d, n in enumerate(shape)]))


def raveled(x: Any) -> Any:
    x = asarray(x)
    return reshape(x, (aval_of(x).size,))


def masked(x: Any, where: Any, fill: Any) -> Any:
    """`x`, with `fill` where the mask does not hold."""
    if where is None or where is True:
        return x
    check_mask("a reduction", where)
    return choices.where(where, x, literal(fill, aval_of(x).dtype))


def _short(dtype: DType) -> bool:
    return is_inexact(dtype) and dtype.itemsize < 4


def wide_dtype(dtype: DType) -> DType:
    """The dtype to add up in: halves lose digits that single precision keeps."""
    return np.dtype("float32") if _short(dtype) else dtype


def summed_dtype(dtype: DType) -> DType:
    """The dtype of a sum: booleans and narrow integers as the default integer."""
    if kind(dtype) in "bi":
        default = canonical_dtype("int64")
    elif kind(dtype) == "u":
        default = canonical_dtype("uint64")
    else:
        return dtype
    return default if dtype.itemsize < default.itemsize else dtype


def _accumulated(
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
        result = (
            summed_dtype(aval.dtype) if promote_integers or aval.dtype == np.bool_ else aval.dtype
        )
    else:
        result = canonical_dtype(dtype)
    working = canonical_dtype("int64") if kind(result) == "b" else wide_dtype(result)
    if kind(result) == "b":
        x = convert_element_type(x, result)
    x = masked(convert_element_type(x, working), where, neutral)
    total = reduce(x, axes)
    if initial is not None:
        total = combine(total, convert_element_type(asarray(initial), working))
    total = convert_element_type(with_axes_kept(total, aval.shape, axes, keepdims), result)
    return exactly_into(name, apart(total, a), out)


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
    return _accumulated(
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
    return _accumulated(
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
        x = masked(x, where, start(part_dtype(aval.dtype)))
    best = reduce(x, axes)
    if initial is not None:
        at_least = asarray(initial, aval.dtype if type(initial) is int else None)
        best = combine(best, convert_element_type(at_least, aval.dtype))
    best = convert_element_type(with_axes_kept(best, aval.shape, axes, keepdims), aval.dtype)
    return exactly_into(name, apart(best, a), out)


def part_dtype(dtype: DType) -> DType:
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
    return _logical("any", a, axis, out, keepdims, where, ops.reduce_or, False)


def all(
    a: Any, axis: Any = None, out: Any = None, keepdims: bool = False, *, where: Any = None
) -> Any:
    """Whether every element along `axis`, an int, several or None for all, is not zero."""
    return _logical("all", a, axis, out, keepdims, where, ops.reduce_and, True)


def _logical(
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
    found = reduce(masked(holds, where, neutral), axes)
    return exactly_into(name, apart(with_axes_kept(found, aval.shape, axes, keepdims), x), out)


def argmax(a: Any, axis: Any = None, out: Any = None, keepdims: bool = False) -> Any:
    """The position of the first largest element along `axis`, or of the first nan."""
    return _position("argmax", a, axis, out, keepdims, ops.argmax)


def argmin(a: Any, axis: Any = None, out: Any = None, keepdims: bool = False) -> Any:
    """The position of the first smallest element along `axis`, or of the first nan."""
    return _position("argmin", a, axis, out, keepdims, ops.argmin)


def _position(
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
    return exactly_into(name, with_axes_kept(found, aval.shape, axes, keepdims), out)


def ptp(a: Any, axis: Any = None, out: Any = None, keepdims: bool = False) -> Any:
    """The largest less the smallest element along `axis`."""
    spread = sub(max(a, axis, keepdims=keepdims), min(a, axis, keepdims=keepdims))
    return exactly_into("ptp", spread, out)


def count_nonzero(a: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """The number of elements along `axis` that are not zero."""
    x = asarray(a)
    return sum(x if aval_of(x).dtype == np.bool_ else ne(x, 0), axis, keepdims=keepdims)
