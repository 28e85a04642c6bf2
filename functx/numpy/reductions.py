"""Sums, extrema, averages and their like along axes, with and without the elements that are nan."""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from functx.core.concrete import concrete
from functx.core.dtypes import (
    DType,
    canonical_dtype,
    inexact_dtype,
    is_complex,
    is_floating,
    is_inexact,
    kind,
)
from functx.core.errors import (
    ArgumentError,
    AxisError,
    DTypeError,
    ShapeError,
    ValueRangeError,
)
from functx.core.tracing import Tracer, aval_of, bind
from functx.numpy import elementwise
from functx.numpy.creation import asarray
from functx.numpy.promotion import broadcast, broadcast_to, promote, promote_inexact
from functx.ops import arithmetic, cumulative
from functx.ops import reductions as ops
from functx.ops.arithmetic import Div, div, mul, sub
from functx.ops.comparison import eq, ne
from functx.ops.complexes import conj, real
from functx.ops.conversion import convert_element_type
from functx.ops.numerics import root_of_squares
from functx.ops.operands import canonical_axes, canonical_axis, literal
from functx.ops.reductions import ReduceSum
from functx.ops.selection import select
from functx.ops.shaping import (
    broadcast_in_dim,
    concatenate,
    expand_dims,
    moveaxis,
    permute_dims,
    reshape,
)
from functx.ops.slicing import slice_in_dim
from functx.ops.sorting import sort, take_along_axis

Axes = tuple[int, ...]


# What reductions share.


def _no_out(name: str, out: Any) -> None:
    if out is not None:
        raise ArgumentError(
            f"{name}: out= must be left out, since arrays are not written to",
            fix="Use what is returned.",
        )


def _kept(out: Any, shape: Axes, axes: Axes, keepdims: bool) -> Any:
    """`out`, with the axes that `shape` lost as unit dimensions if `keepdims`."""
    if not keepdims:
        return out
    return reshape(out, tuple([1 if d in axes else n for d, n in enumerate(shape)]))


def _masked(x: Any, where: Any, fill: Any) -> Any:
    """`x`, with `fill` where the mask does not hold."""
    if where is None or where is True:
        return x
    return elementwise.where(where, x, literal(fill, aval_of(x).dtype))


def _short(dtype: DType) -> bool:
    return is_inexact(dtype) and dtype.itemsize < 4


def _wide(dtype: DType) -> DType:
    """The dtype to add up in: halves lose digits that single precision keeps."""
    return np.dtype("float32") if _short(dtype) else dtype


def _summed(dtype: DType) -> DType:
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
    _no_out(name, out)
    x = asarray(a)
    aval = aval_of(x)
    axes = canonical_axes(axis, aval.ndim)
    if dtype is None:
        result = _summed(aval.dtype) if promote_integers or aval.dtype == np.bool_ else aval.dtype
    else:
        result = canonical_dtype(dtype)
    working = canonical_dtype("int64") if kind(result) == "b" else _wide(result)
    x = _masked(convert_element_type(x, working), where, neutral)
    total = reduce(x, axes)
    if initial is not None:
        total = combine(total, convert_element_type(asarray(initial), working))
    return convert_element_type(_kept(total, aval.shape, axes, keepdims), result)


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
        and a.aval.dtype.kind == "f"
        and a.aval.dtype.itemsize > 2
        and dtype is out is initial is where is None
        and not keepdims
        and not a.aval.weak_type
        and a.aval.ndim
    ):
        return bind(ReduceSum(canonical_axes(axis, a.aval.ndim)), (a,)) if axis != () else a
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
    _no_out(name, out)
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
        x = _masked(x, where, start(_part(aval.dtype)))
    best = reduce(x, axes)
    if initial is not None:
        best = combine(best, convert_element_type(asarray(initial), aval.dtype))
    return convert_element_type(_kept(best, aval.shape, axes, keepdims), aval.dtype)


def _part(dtype: DType) -> DType:
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
    _no_out(name, out)
    x = asarray(a)
    aval = aval_of(x)
    axes = canonical_axes(axis, aval.ndim)
    holds = x if aval.dtype == np.bool_ else ne(x, 0)
    return _kept(reduce(_masked(holds, where, neutral), axes), aval.shape, axes, keepdims)


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
    _no_out(name, out)
    x = asarray(a)
    aval = aval_of(x)
    if axis is None:
        x, axes = reshape(x, (aval.size,)), tuple(range(aval.ndim))
        found = find(x, 0, canonical_dtype("int64"))
    else:
        axes = (canonical_axis(axis, aval.ndim),)
        found = find(x, axes[0], canonical_dtype("int64"))
    return _kept(found, aval.shape, axes, keepdims)


def ptp(a: Any, axis: Any = None, out: Any = None, keepdims: bool = False) -> Any:
    """The largest less the smallest element along `axis`."""
    return sub(max(a, axis, out, keepdims), min(a, axis, out, keepdims))


def count_nonzero(a: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """The number of elements along `axis` that are not zero."""
    x = asarray(a)
    return sum(x if aval_of(x).dtype == np.bool_ else ne(x, 0), axis, keepdims=keepdims)


# Averages.


def _averaged(a: Any, dtype: Any) -> tuple[Any, DType]:
    """`a` in the dtype to average in, and the dtype of the average."""
    x = asarray(a)
    result = inexact_dtype(aval_of(x).dtype) if dtype is None else canonical_dtype(dtype)
    return convert_element_type(x, _wide(inexact_dtype(result))), result


def _counted(aval: Any, axes: Axes, where: Any, dtype: DType) -> Any:
    """How many elements there are along `axes`, or hold in the mask `where`."""
    if where is None or where is True:
        return literal(math.prod(aval.shape[d] for d in axes), dtype)
    mask = broadcast_to(elementwise._boolean(where), aval.shape)
    return ops.reduce_sum(convert_element_type(mask, _part(dtype)), axes)


def mean(
    a: Any,
    axis: Any = None,
    dtype: Any = None,
    out: Any = None,
    keepdims: bool = False,
    *,
    where: Any = None,
) -> Any:
    """The average along `axis`, an int, several or None for all; nan of no elements.

    With a mask `where`, that of the elements where it holds.
    """
    _no_out("mean", out)
    if (
        type(a) is Tracer
        and a.aval.dtype.kind == "f"
        and a.aval.dtype.itemsize > 2
        and dtype is where is None
        and not keepdims
        and not a.aval.weak_type
        and a.aval.ndim
        and axis != ()
    ):
        axes = canonical_axes(axis, a.aval.ndim)
        total = bind(ReduceSum(axes), (a,))
        return bind(Div(), (total, _counted(a.aval, axes, None, a.aval.dtype)))
    x, result = _averaged(a, dtype)
    aval = aval_of(x)
    axes = canonical_axes(axis, aval.ndim)
    average = _mean(x, axes, where)
    return convert_element_type(_kept(average, aval.shape, axes, keepdims), result)


def _mean(x: Any, axes: Axes, where: Any) -> Any:
    aval = aval_of(x)
    count = _counted(aval, axes, where, aval.dtype)
    if is_complex(aval.dtype):
        count = convert_element_type(count, aval.dtype)
    return div(ops.reduce_sum(_masked(x, where, 0), axes), count)


def var(
    a: Any,
    axis: Any = None,
    dtype: Any = None,
    out: Any = None,
    ddof: Any = 0,
    keepdims: bool = False,
    *,
    where: Any = None,
    mean: Any = None,
    correction: Any = None,
) -> Any:
    """The average squared distance from the mean along `axis`, an int, several or None for all.

    The sum of squares is divided by the number of elements less `ddof`, or `correction`.
    """
    return _spread("var", a, axis, dtype, out, ddof, keepdims, where, mean, correction)


def std(
    a: Any,
    axis: Any = None,
    dtype: Any = None,
    out: Any = None,
    ddof: Any = 0,
    keepdims: bool = False,
    *,
    where: Any = None,
    mean: Any = None,
    correction: Any = None,
) -> Any:
    """The square root of `var`; of equal elements its derivative is 0."""
    return _spread(
        "std", a, axis, dtype, out, ddof, keepdims, where, mean, correction, root_of_squares
    )


def _spread(
    name: str,
    a: Any,
    axis: Any,
    dtype: Any,
    out: Any,
    ddof: Any,
    keepdims: bool,
    where: Any,
    mean: Any,
    correction: Any,
    finish: Callable[[Any], Any] = lambda x: x,
) -> Any:
    _no_out(name, out)
    x, result = _averaged(a, dtype)
    aval = aval_of(x)
    axes = canonical_axes(axis, aval.ndim)
    if mean is None:
        mean = _mean(x, axes, where)
        if len(axes) != aval.ndim:
            kept = tuple([d for d in range(aval.ndim) if d not in axes])
            mean = broadcast_in_dim(mean, aval.shape, kept)
    else:
        mean = broadcast(x, convert_element_type(asarray(mean), aval.dtype))[1]
    squares = _squared(sub(x, mean))
    count = _counted(aval, axes, where, aval_of(squares).dtype)
    ddof = ddof if correction is None else correction
    if type(ddof) not in (int, float) or ddof != 0:
        # Too few elements have no variance: 0 / 0 of one, and infinity of more.
        count = elementwise.maximum(elementwise.subtract(count, ddof), 0)
    total = div(ops.reduce_sum(_masked(squares, where, 0), axes), count)
    if dtype is None:
        result = _part(result)
    return convert_element_type(finish(_kept(total, aval.shape, axes, keepdims)), result)


def _squared(x: Any) -> Any:
    """The squared magnitude."""
    return real(mul(x, conj(x))) if is_complex(aval_of(x).dtype) else arithmetic.square(x)


def average(
    a: Any, axis: Any = None, weights: Any = None, returned: bool = False, keepdims: bool = False
) -> Any:
    """The average along `axis` with `weights`, which may be a vector for one axis.

    With `returned` the pair of the average and the sum of the weights.
    """
    x, _ = _averaged(a, None)
    aval = aval_of(x)
    axes = canonical_axes(axis, aval.ndim)
    if weights is None:
        found = mean(a, axis, keepdims=keepdims)
        count = _counted(aval, axes, None, aval_of(found).dtype)
        total = broadcast_to(asarray(count), aval_of(found).shape)
        return (found, total) if returned else found
    weights = asarray(weights)
    own = aval_of(weights)
    if own.shape != aval.shape:
        if own.ndim != len(axes) or own.shape != tuple([aval.shape[d] for d in axes]):
            raise ShapeError(
                "average: weights must have the shape of the array, or of its axis; got "
                f"{own!r} for {aval!r} with axis {axis}"
            )
        order = sorted(range(len(axes)), key=axes.__getitem__)
        weights = permute_dims(weights, tuple(order))
        weights = broadcast_in_dim(weights, aval.shape, tuple(sorted(axes)))
    x, weights = promote_inexact(a, weights)
    total = sum(weights, axis, keepdims=keepdims)
    found = div(sum(mul(asarray(x), weights), axis, keepdims=keepdims), total)
    return (found, total) if returned else found


# Without the elements that are nan.


def _valid(x: Any) -> Any:
    """Where `x` is not nan; None where it cannot be."""
    if not is_inexact(aval_of(x).dtype):
        return None
    return elementwise.logical_not(elementwise.isnan(x))


def _both(valid: Any, where: Any) -> Any:
    if valid is None or where is None:
        return where if valid is None else valid
    return elementwise.logical_and(valid, where)


def nansum(
    a: Any,
    axis: Any = None,
    dtype: Any = None,
    out: Any = None,
    keepdims: bool = False,
    initial: Any = None,
    where: Any = None,
) -> Any:
    """The sum along `axis` of the elements that are not nan."""
    x = asarray(a)
    return sum(x, axis, dtype, out, keepdims, initial, _both(_valid(x), where))


def nanprod(
    a: Any,
    axis: Any = None,
    dtype: Any = None,
    out: Any = None,
    keepdims: bool = False,
    initial: Any = None,
    where: Any = None,
) -> Any:
    """The product along `axis` of the elements that are not nan."""
    x = asarray(a)
    return prod(x, axis, dtype, out, keepdims, initial, _both(_valid(x), where))


def nanmean(
    a: Any,
    axis: Any = None,
    dtype: Any = None,
    out: Any = None,
    keepdims: bool = False,
    where: Any = None,
) -> Any:
    """The average along `axis` of the elements that are not nan; nan where all are."""
    x = asarray(a)
    return mean(x, axis, dtype, out, keepdims, where=_both(_valid(x), where))


def nanvar(
    a: Any,
    axis: Any = None,
    dtype: Any = None,
    out: Any = None,
    ddof: Any = 0,
    keepdims: bool = False,
    where: Any = None,
    mean: Any = None,
) -> Any:
    """The variance along `axis` of the elements that are not nan."""
    x = asarray(a)
    where = _both(_valid(x), where)
    return var(x, axis, dtype, out, ddof, keepdims, where=where, mean=mean)


def nanstd(
    a: Any,
    axis: Any = None,
    dtype: Any = None,
    out: Any = None,
    ddof: Any = 0,
    keepdims: bool = False,
    where: Any = None,
    mean: Any = None,
) -> Any:
    """The standard deviation along `axis` of the elements that are not nan."""
    x = asarray(a)
    where = _both(_valid(x), where)
    return std(x, axis, dtype, out, ddof, keepdims, where=where, mean=mean)


def nanmax(
    a: Any,
    axis: Any = None,
    out: Any = None,
    keepdims: bool = False,
    initial: Any = None,
    where: Any = None,
) -> Any:
    """The largest element along `axis` that is not nan; nan where all are."""
    return _nan_extremum(max, ops.lowest, a, axis, out, keepdims, initial, where)


def nanmin(
    a: Any,
    axis: Any = None,
    out: Any = None,
    keepdims: bool = False,
    initial: Any = None,
    where: Any = None,
) -> Any:
    """The smallest element along `axis` that is not nan; nan where all are."""
    return _nan_extremum(min, ops.highest, a, axis, out, keepdims, initial, where)


def _nan_extremum(
    reduce: Callable[..., Any],
    start: Callable[[DType], Any],
    a: Any,
    axis: Any,
    out: Any,
    keepdims: bool,
    initial: Any,
    where: Any,
) -> Any:
    x = asarray(a)
    valid = _valid(x)
    if valid is None:
        return reduce(x, axis, out, keepdims, initial, where)
    filled = _masked(x, valid, start(_part(aval_of(x).dtype)))
    best = reduce(filled, axis, out, keepdims, initial, where)
    if initial is not None:
        return best
    return select(any(valid, axis, keepdims=keepdims), best, math.nan)


def nanargmax(a: Any, axis: Any = None, out: Any = None, keepdims: bool = False) -> Any:
    """The position of the first largest element that is not nan; -1 where all are."""
    return _nan_position(argmax, ops.lowest, a, axis, out, keepdims)


def nanargmin(a: Any, axis: Any = None, out: Any = None, keepdims: bool = False) -> Any:
    """The position of the first smallest element that is not nan; -1 where all are."""
    return _nan_position(argmin, ops.highest, a, axis, out, keepdims)


def _nan_position(
    find: Callable[..., Any],
    start: Callable[[DType], Any],
    a: Any,
    axis: Any,
    out: Any,
    keepdims: bool,
) -> Any:
    x = asarray(a)
    valid = _valid(x)
    if valid is None:
        return find(x, axis, out, keepdims)
    found = find(_masked(x, valid, start(aval_of(x).dtype)), axis, out, keepdims)
    return select(any(valid, axis, keepdims=keepdims), found, -1)


def nancumsum(a: Any, axis: Any = None, dtype: Any = None, out: Any = None) -> Any:
    """The sum up to each element along `axis`, nan counting as 0."""
    x = asarray(a)
    return cumsum(_masked(x, _valid(x), 0), axis, dtype, out)


def nancumprod(a: Any, axis: Any = None, dtype: Any = None, out: Any = None) -> Any:
    """The product up to each element along `axis`, nan counting as 1."""
    x = asarray(a)
    return cumprod(_masked(x, _valid(x), 1), axis, dtype, out)


# Up to each element.


def cumsum(a: Any, axis: Any = None, dtype: Any = None, out: Any = None) -> Any:
    """The sum along `axis` of each element and all before it; of all in order for None."""
    return _cumulated("cumsum", cumulative.cumsum, a, axis, dtype, out)


def cumprod(a: Any, axis: Any = None, dtype: Any = None, out: Any = None) -> Any:
    """The product along `axis` of each element and all before it; of all in order for None."""
    return _cumulated("cumprod", cumulative.cumprod, a, axis, dtype, out)


def _cumulated(
    name: str, scan: Callable[..., Any], a: Any, axis: Any, dtype: Any, out: Any
) -> Any:
    _no_out(name, out)
    x = asarray(a)
    aval = aval_of(x)
    if axis is None:
        x, axis = reshape(x, (aval.size,)), 0
    if dtype is not None:
        x = convert_element_type(x, dtype)
    if aval_of(x).dtype == np.bool_:
        x = convert_element_type(x, "int64")
    return scan(convert_element_type(x, aval_of(x).dtype), canonical_axis(axis, aval_of(x).ndim))


def cumulative_sum(
    x: Any, /, *, axis: Any = None, dtype: Any = None, include_initial: bool = False
) -> Any:
    """The sum along `axis` of each element and all before it, with 0 first if asked.

    Narrow integers are added in the default integer type.
    """
    return _cumulative(cumsum, 0, x, axis, dtype, include_initial)


def cumulative_prod(
    x: Any, /, *, axis: Any = None, dtype: Any = None, include_initial: bool = False
) -> Any:
    """The product along `axis` of each element and all before it, with 1 first if asked."""
    return _cumulative(cumprod, 1, x, axis, dtype, include_initial)


def _cumulative(
    scan: Callable[..., Any], first: int, x: Any, axis: Any, dtype: Any, include_initial: bool
) -> Any:
    x = asarray(x)
    aval = aval_of(x)
    if axis is None:
        if aval.ndim != 1:
            raise AxisError(
                f"cumulative_{'prod' if first else 'sum'}: axis must be given for an array of "
                f"{aval.ndim} dimensions"
            )
        axis = 0
    axis = canonical_axis(axis, aval.ndim)
    out = scan(x, axis, _summed(aval.dtype) if dtype is None else dtype)
    if not include_initial:
        return out
    shape = tuple([1 if d == axis else n for d, n in enumerate(aval.shape)])
    start = broadcast_to(asarray(first, aval_of(out).dtype), shape)
    return concatenate([start, out], axis)


# Differences and areas.


def diff(a: Any, n: int = 1, axis: int = -1, prepend: Any = None, append: Any = None) -> Any:
    """The difference of each element along `axis` from the one before it, taken `n` times."""
    x = asarray(a)
    if aval_of(x).ndim == 0:
        raise ShapeError(f"diff: the array must have a dimension; got {aval_of(x)!r}")
    if n < 0:
        raise ValueRangeError(f"diff: n must not be negative; got {n}")
    axis = canonical_axis(axis, aval_of(x).ndim)
    parts = [_edge(part, x, axis) for part in (prepend, append)]
    joined = [part for part in (parts[0], x, parts[1]) if part is not None]
    if len(joined) > 1:
        x = concatenate(promote(*joined), axis)
    apart = ne if aval_of(x).dtype == np.bool_ else sub
    for _ in range(n):
        length = aval_of(x).shape[axis]
        last = builtins.max(length - 1, 0)
        later = slice_in_dim(x, builtins.min(1, length), length, 1, axis)
        x = apart(later, slice_in_dim(x, 0, last, 1, axis))
    return x


def _edge(part: Any, x: Any, axis: int) -> Any:
    """What `diff` is to join to `x`, a number being one element everywhere."""
    if part is None:
        return None
    part = asarray(part)
    if aval_of(part).ndim:
        return part
    shape = tuple([1 if d == axis else n for d, n in enumerate(aval_of(x).shape)])
    return broadcast_to(part, shape)


def ediff1d(ary: Any, to_end: Any = None, to_begin: Any = None) -> Any:
    """The differences of consecutive elements, between `to_begin` and `to_end`."""
    x = asarray(ary)
    x = reshape(x, (aval_of(x).size,))
    parts = [to_begin, diff(x), to_end]
    flat = [
        part if part is parts[1] else convert_element_type(_raveled(part), aval_of(x).dtype)
        for part in parts
        if part is not None
    ]
    return flat[0] if len(flat) == 1 else concatenate(flat, 0)


def _raveled(x: Any) -> Any:
    x = asarray(x)
    return reshape(x, (aval_of(x).size,))


def trapezoid(y: Any, x: Any = None, dx: Any = 1.0, axis: int = -1) -> Any:
    """The area under `y` along `axis` by straight lines between points at `x`, or `dx` apart."""
    if x is None:
        y, dx = promote_inexact(y, dx)
        y = asarray(y)
    else:
        y, x = promote_inexact(y, x)
        y, x = asarray(y), asarray(x)
        vector = aval_of(x).ndim == 1
        dx = diff(x) if vector else moveaxis(diff(x, axis=axis), axis % aval_of(x).ndim, -1)
    axis = canonical_axis(axis, aval_of(y).ndim)
    y = moveaxis(y, axis, aval_of(y).ndim - 1)
    n = aval_of(y).shape[-1]
    heights = arithmetic.add(
        slice_in_dim(y, builtins.min(1, n), n, 1, -1),
        slice_in_dim(y, 0, builtins.max(n - 1, 0), 1, -1),
    )
    return mul(sum(elementwise.multiply(heights, dx), -1), 0.5)


def gradient(f: Any, *varargs: Any, axis: Any = None, edge_order: int = 1) -> Any:
    """The derivative of `f` along each of `axis` by central differences, one-sided at the ends.

    `varargs` gives the distances of the points, or their places, for all axes or each. For
    several axes a list.
    """
    if edge_order not in (1, None):
        raise ValueRangeError(f"gradient: edge_order must be 1; got {edge_order}")
    (x,) = promote_inexact(f)
    x = asarray(x)
    axes = canonical_axes(axis, aval_of(x).ndim)
    if len(varargs) not in (0, 1, len(axes)):
        raise ArgumentError(
            f"gradient: distances must be given for all axes or each; got {len(varargs)} for "
            f"{len(axes)} axes"
        )
    spacings = varargs if len(varargs) == len(axes) else (varargs or (1.0,)) * len(axes)
    slopes = [_slope(x, h, d) for h, d in zip(spacings, axes, strict=True)]
    return slopes[0] if len(slopes) == 1 else slopes


def _slope(x: Any, spacing: Any, axis: int) -> Any:
    aval = aval_of(x)
    n = aval.shape[axis]
    if n < 2:
        raise ShapeError(f"gradient: an axis must have two elements; got {aval!r}, axis {axis}")

    def part(start: int, stop: int) -> Any:
        return slice_in_dim(x, start, stop, 1, axis)

    first, last = sub(part(1, 2), part(0, 1)), sub(part(n - 1, n), part(n - 2, n - 1))
    before, after = part(0, n - 2), part(2, n)
    spacing = asarray(spacing)
    if aval_of(spacing).ndim == 0:
        inner = mul(sub(after, before), 0.5)
        joined = concatenate([first, inner, last] if n > 2 else [first, last], axis)
        return elementwise.divide(joined, spacing)
    if aval_of(spacing).shape != (n,):
        raise ShapeError(
            f"gradient: places must be as many as the axis is long, {n}; got {aval_of(spacing)!r}"
        )
    dims = tuple([-1 if d == axis else 1 for d in range(aval.ndim)])
    h = convert_element_type(diff(spacing), aval.dtype)
    h = reshape(h, tuple([n - 1 if d == -1 else 1 for d in dims]))
    left, right = (
        slice_in_dim(h, 0, n - 2, 1, axis),
        slice_in_dim(h, 1, n - 1, 1, axis),
    )
    # The parabola through three points: weights -r / (l (l + r)), (r - l) / (l r), l / (r (l + r))
    total = arithmetic.add(left, right)
    slope = elementwise.subtract(
        elementwise.multiply(after, div(left, mul(right, total))),
        elementwise.multiply(before, div(right, mul(left, total))),
    )
    middle = elementwise.multiply(part(1, n - 1), div(sub(right, left), mul(left, right)))
    ends = [
        elementwise.divide(step, slice_in_dim(h, i, i + 1, 1, axis))
        for step, i in ((first, 0), (last, n - 2))
    ]
    inner = [arithmetic.add(slope, middle)] if n > 2 else []
    return concatenate([ends[0], *inner, ends[1]], axis)


# Order statistics.


def median(
    a: Any, axis: Any = None, out: Any = None, overwrite_input: bool = False, keepdims: bool = False
) -> Any:
    """The middle element along `axis` in order of size, or the average of the two middle ones."""
    return quantile(a, 0.5, axis, out, method="midpoint", keepdims=keepdims)


def nanmedian(
    a: Any, axis: Any = None, out: Any = None, overwrite_input: bool = False, keepdims: bool = False
) -> Any:
    """The median along `axis` of the elements that are not nan."""
    return nanquantile(a, 0.5, axis, out, method="midpoint", keepdims=keepdims)


def percentile(
    a: Any,
    q: Any,
    axis: Any = None,
    out: Any = None,
    overwrite_input: bool = False,
    method: str = "linear",
    keepdims: bool = False,
) -> Any:
    """`quantile` for `q` out of a hundred."""
    return quantile(a, _hundredths(q), axis, out, method=method, keepdims=keepdims)


def nanpercentile(
    a: Any,
    q: Any,
    axis: Any = None,
    out: Any = None,
    overwrite_input: bool = False,
    method: str = "linear",
    keepdims: bool = False,
) -> Any:
    """`nanquantile` for `q` out of a hundred."""
    return nanquantile(a, _hundredths(q), axis, out, method=method, keepdims=keepdims)


def _hundredths(q: Any) -> Any:
    if isinstance(q, (int, float, np.ndarray, np.generic)):
        return np.true_divide(q, 100)
    return elementwise.divide(asarray(q), 100)


def quantile(
    a: Any,
    q: Any,
    axis: Any = None,
    out: Any = None,
    overwrite_input: bool = False,
    method: str = "linear",
    keepdims: bool = False,
) -> Any:
    """The element that a share `q` of all elements along `axis` lies below.

    `method` says what to make of the two elements beside the exact place: `linear`,
    `lower`, `higher`, `midpoint` or `nearest`. Several `q` make the first dimensions of the
    result. nan where there is a nan.
    """
    _no_out("quantile", out)
    ordered, shape, axes = _in_order("quantile", a, axis)
    n = aval_of(ordered).shape[-1]
    if n == 0:
        raise ValueRangeError(f"quantile: there must be elements; got an array of shape {shape}")
    q, found = _at_shares(ordered, q, n, method, nans=False)
    largest = slice_in_dim(ordered, n - 1, n, 1, -1)
    found = elementwise.where(ne(largest, largest), math.nan, found)
    return _laid_out(found, aval_of(q).shape, shape, axes, keepdims, a)


def nanquantile(
    a: Any,
    q: Any,
    axis: Any = None,
    out: Any = None,
    overwrite_input: bool = False,
    method: str = "linear",
    keepdims: bool = False,
) -> Any:
    """`quantile` of the elements that are not nan; nan where all are."""
    _no_out("nanquantile", out)
    ordered, shape, axes = _in_order("nanquantile", a, axis)
    q, found = _at_shares(ordered, q, 0, method, nans=True)
    return _laid_out(found, aval_of(q).shape, shape, axes, keepdims, a)


def _in_order(name: str, a: Any, axis: Any) -> tuple[Any, Axes, Axes]:
    """The elements along `axis` sorted along one last axis, nan last; shape and axes before."""
    (x,) = promote_inexact(a)
    x = asarray(x)
    aval = aval_of(x)
    if not is_floating(aval.dtype):
        raise DTypeError(f"{name}: the array must be real; got {aval!r}")
    axes = canonical_axes(axis, aval.ndim)
    rest = tuple([d for d in range(aval.ndim) if d not in axes])
    x = permute_dims(x, (*rest, *axes))
    length = math.prod(aval.shape[d] for d in axes)
    x = reshape(x, (*[aval.shape[d] for d in rest], length))
    return sort(x, -1), aval.shape, axes


def _at_shares(ordered: Any, q: Any, n: int, method: str, nans: bool) -> tuple[Any, Any]:
    """`q` as an array, and the elements at those shares along the last axis."""
    if method not in _BETWEEN:
        raise ValueRangeError(f"quantile: method must be one of {list(_BETWEEN)}; got {method!r}")
    aval = aval_of(ordered)
    known = not isinstance(q, (list, tuple)) or builtins.all(isinstance(x, (int, float)) for x in q)
    if known and isinstance(q, (int, float, np.ndarray, np.generic, list, tuple)):
        q = np.asarray(q, np.float64)
        if not np.all((q >= 0) & (q <= 1)):
            raise ValueRangeError(f"quantile: q must lie between 0 and 1; got {q}")
        if not nans:
            return q, _at_places(ordered, q.ravel() * (n - 1), method)
    q = asarray(q)
    dtype = np.dtype("float64") if aval.dtype == np.float64 else np.dtype("float32")
    shares = reshape(convert_element_type(q, dtype), (aval_of(q).size,))
    last: Any = float(n - 1)
    if nans:
        valid = convert_element_type(eq(ordered, ordered), dtype)
        last = sub(ops.reduce_sum(valid, (aval.ndim - 1,)), 1.0)
        last = expand_dims(elementwise.maximum(last, 0.0), -1)
    places = elementwise.multiply(last, shares)
    places = broadcast_to(places, (*aval.shape[:-1], aval_of(shares).shape[0]))
    low = elementwise.clip(elementwise.floor(places), 0.0, last)
    high = elementwise.clip(elementwise.ceil(places), 0.0, last)
    at = [take_along_axis(ordered, convert_element_type(i, np.int32), -1) for i in (low, high)]
    share = sub(places, low)
    if method == "nearest":
        nearest = elementwise.rint(places)
        return q, select(eq(nearest, low), *at)
    return q, _BETWEEN[method](*at, convert_element_type(share, aval.dtype))


def _at_places(ordered: Any, places: Any, method: str) -> Any:
    """The elements at `places` known while tracing, by slices."""
    from functx.numpy.manipulation import take_static

    low, high = np.floor(places).astype(int), np.ceil(places).astype(int)
    if method == "nearest":
        low = high = np.rint(places).astype(int)
    last = aval_of(ordered).ndim - 1
    below = take_static(ordered, low, last)
    if np.array_equal(low, high) or method == "lower":
        return below
    share = (places - low).astype(aval_of(ordered).dtype)
    return _BETWEEN[method](
        below, take_static(ordered, high, last), float(share[0]) if share.size == 1 else asarray(share)
    )


def _interpolated(low: Any, high: Any, share: Any) -> Any:
    # Weighing both keeps low = -inf and high = inf apart, where low + share (high - low) is nan.
    weighed = elementwise.add(
        elementwise.multiply(low, elementwise.subtract(1.0, share)),
        elementwise.multiply(high, share),
    )
    return elementwise.where(elementwise.equal(share, 0.0), low, weighed) if (
        type(share) is not float
    ) else weighed


_BETWEEN: dict[str, Callable[..., Any]] = {
    "linear": _interpolated,
    "lower": lambda low, high, share: low,
    "higher": lambda low, high, share: high,
    "midpoint": lambda low, high, share: mul(arithmetic.add(low, high), 0.5),
    "nearest": lambda low, high, share: low,
}


def _laid_out(found: Any, q_shape: Axes, shape: Axes, axes: Axes, keepdims: bool, a: Any) -> Any:
    """Results along the last axis, with the dimensions of `q` in front instead."""
    found = moveaxis(found, aval_of(found).ndim - 1, 0)
    rest = tuple([1 if d in axes else n for d, n in enumerate(shape) if keepdims or d not in axes])
    found = reshape(found, (*q_shape, *rest))
    return convert_element_type(found, aval_of(found).dtype)


# Counting.


def bincount(x: Any, weights: Any = None, minlength: int = 0, *, length: int | None = None) -> Any:
    """How often each integer from 0 up occurs in `x`, or the sum of the weights of each.

    `length` fixes the number of counts, which otherwise needs the values of `x`; what lies
    beyond is left out, and negative integers count as 0.
    """
    from functx.ops.indexing import scatter_add  # noqa: F401

    places = asarray(x)
    aval = aval_of(places)
    if kind(aval.dtype) not in "biu" or aval.ndim != 1:
        raise DTypeError(f"bincount: the array must be a vector of integers; got {aval!r}")
    if length is None:
        known = concrete(places, "bincount without length=") if type(places) is Tracer else places
        length = builtins.max(minlength, int(np.max(np.asarray(known), initial=-1)) + 1)
    counted = asarray(1 if weights is None else weights)
    counted = convert_element_type(
        counted, canonical_dtype("int64") if weights is None else _summed(aval_of(counted).dtype)
    )
    return _tally(places, broadcast_to(counted, aval.shape), length)


def _tally(places: Any, amounts: Any, length: int) -> Any:
    from functx.numpy.indexing import At

    zero = broadcast_to(asarray(0, aval_of(amounts).dtype), (length,))
    return At(zero)[elementwise.maximum(places, 0)].add(amounts, mode="drop")


def histogram_bin_edges(a: Any, bins: Any = 10, range: Any = None, weights: Any = None) -> Any:
    """The edges of `bins`, a number of equal ones between the bounds `range`, or the edges."""
    from functx.numpy.creation import linspace

    if not isinstance(bins, (int, np.integer)):
        return asarray(bins)
    (x,) = promote_inexact(a)
    x = _raveled(x)
    if range is None:
        range = (min(x), max(x)) if aval_of(x).size else (0.0, 1.0)
    low, high = promote_inexact(*range)
    same = elementwise.equal(low, high)
    half = elementwise.where(same, 0.5, 0.0)
    edges = linspace(
        elementwise.subtract(low, half), elementwise.add(high, half), int(bins) + 1
    )
    return convert_element_type(edges, aval_of(x).dtype)


def histogram(
    a: Any, bins: Any = 10, range: Any = None, density: Any = None, weights: Any = None
) -> tuple[Any, Any]:
    """How many elements lie in each of `bins`, or the sum of their weights; and the edges.

    With `density`, as shares for each unit of width. The last bin holds its upper edge too.
    """
    from functx.numpy.sorting import searchsorted

    (x,) = promote_inexact(a)
    x = _raveled(x)
    edges = histogram_bin_edges(x, bins, range)
    edges = convert_element_type(edges, aval_of(x).dtype)
    n = aval_of(edges).shape[0] - 1
    first, last = slice_in_dim(edges, 0, 1), slice_in_dim(edges, n, n + 1)
    place = sub(convert_element_type(searchsorted(edges, x, side="right"), np.int32), 1)
    place = elementwise.where(elementwise.equal(x, last), n - 1, place)
    inside = elementwise.logical_and(
        elementwise.greater_equal(x, first), elementwise.less_equal(x, last)
    )
    amounts = asarray(1.0 if weights is None else weights)
    amounts = broadcast_to(
        convert_element_type(amounts, inexact_dtype(aval_of(amounts).dtype)), aval_of(x).shape
    )
    counts = _tally(elementwise.where(inside, place, n), amounts, n)
    if density:
        counts = div(counts, elementwise.multiply(diff(edges), sum(counts)))
    return counts, edges


# Correlation.


def cov(
    m: Any,
    y: Any = None,
    rowvar: bool = True,
    bias: bool = False,
    ddof: int | None = None,
    fweights: Any = None,
    aweights: Any = None,
) -> Any:
    """The covariances of variables, one a row of `m` and of `y`, or a column if not `rowvar`."""
    x = _variables("cov", m, rowvar)
    if y is not None:
        x, other = promote(x, _variables("cov", y, rowvar))
        x = concatenate([x, other], 0)
    (x,) = promote_inexact(x)
    dtype = aval_of(x).dtype
    n = aval_of(x).shape[1]
    freedom = (0 if bias else 1) if ddof is None else ddof
    weights, total, less = None, float(n), float(freedom)
    if fweights is not None or aweights is not None:
        weights, total, less = _observation_weights(fweights, aweights, freedom, _part(dtype))
        weights = convert_element_type(weights, dtype)
        centre = div(ops.reduce_sum(elementwise.multiply(x, weights), (1,)), convert_element_type(total, dtype))
    else:
        centre = div(ops.reduce_sum(x, (1,)), total)
    x = sub(x, broadcast_in_dim(centre, aval_of(x).shape, (0,)))
    weighted = x if weights is None else elementwise.multiply(x, weights)
    from functx.numpy.contraction import tensordot

    conjugate = conj(x) if is_complex(dtype) else x
    products = tensordot(weighted, conjugate, axes=((1,), (1,)))
    rest = elementwise.maximum(elementwise.subtract(total, less), 0.0)
    found = elementwise.divide(products, rest)
    shape = aval_of(found).shape
    return reshape(found, tuple([k for k in shape if k != 1]) if 1 in shape else shape)


def _variables(name: str, m: Any, rowvar: bool) -> Any:
    x = asarray(m)
    aval = aval_of(x)
    if aval.ndim > 2:
        raise ShapeError(f"{name}: arrays must have at most two dimensions; got {aval!r}")
    if aval.ndim < 2:
        return reshape(x, (1, aval.size))
    return x if rowvar or aval.shape[0] == 1 else permute_dims(x, (1, 0))


def _observation_weights(fweights: Any, aweights: Any, ddof: int, dtype: DType) -> Any:
    """The weights of the observations, their sum, and what to take from it for `ddof`."""
    frequency = None if fweights is None else convert_element_type(asarray(fweights), dtype)
    weight = frequency
    if aweights is not None:
        own = convert_element_type(asarray(aweights), dtype)
        weight = own if frequency is None else mul(frequency, own)
    total = ops.reduce_sum(weight)
    if aweights is None:
        return weight, total, float(ddof)
    return weight, total, div(mul(ops.reduce_sum(mul(weight, own)), float(ddof)), total)


def corrcoef(x: Any, y: Any = None, rowvar: bool = True) -> Any:
    """The correlation coefficients of variables, one a row of `x` and of `y`."""
    from functx.numpy.creation import diagonal

    c = cov(x, y, rowvar)
    aval = aval_of(c)
    if aval.ndim == 0:
        return div(c, c)
    deviation = elementwise.sqrt(elementwise.real(diagonal(c)))
    scale = [broadcast_in_dim(deviation, aval.shape, (d,)) for d in (0, 1)]
    for one in scale:
        c = elementwise.divide(c, one)
    clipped = elementwise._on_parts(lambda part: elementwise.clip(part, -1.0, 1.0), c)
    return clipped
