"""Sums, extrema, averages and their like along axes, with and without the elements that are nan."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from functx.core.avals import Shape
from functx.core.dtypes import (
    DType,
    canonical_dtype,
    inexact_dtype,
    is_complex,
    is_inexact,
    kind,
)
from functx.core.errors import (
    ArgumentError,
    AxisError,
    ShapeError,
    ValueRangeError,
)
from functx.core.tracing import Tracer, aval_of, bind
from functx.numpy import elementwise
from functx.numpy.creation import asarray
from functx.numpy.mutation import exactly_into
from functx.numpy.promotion import apart, broadcast, broadcast_to, promote_inexact
from functx.ops import arithmetic, cumulative
from functx.ops import reductions as ops
from functx.ops.arithmetic import Div, div, mul, sub
from functx.ops.comparison import ne
from functx.ops.complexes import conj, real
from functx.ops.conversion import convert_element_type
from functx.ops.numerics import root_of_squares
from functx.ops.operands import canonical_axes, canonical_axis, literal
from functx.ops.reductions import ReduceSum
from functx.ops.shaping import (
    broadcast_in_dim,
    concatenate,
    permute_dims,
    reshape,
)

__all__ = [
    "all",
    "amax",
    "amin",
    "any",
    "argmax",
    "argmin",
    "average",
    "count_nonzero",
    "cumprod",
    "cumsum",
    "cumulative_prod",
    "cumulative_sum",
    "max",
    "mean",
    "min",
    "prod",
    "ptp",
    "std",
    "sum",
    "var",
]


# What reductions share.


def _kept(out: Any, shape: Shape, axes: Shape, keepdims: bool) -> Any:
    """`out`, with the axes that `shape` lost as unit dimensions if `keepdims`."""
    if not keepdims:
        return out
    return reshape(out, tuple([1 if d in axes else n for d, n in enumerate(shape)]))


def raveled(x: Any) -> Any:
    x = asarray(x)
    return reshape(x, (aval_of(x).size,))


def masked(x: Any, where: Any, fill: Any) -> Any:
    """`x`, with `fill` where the mask does not hold."""
    if where is None or where is True:
        return x
    return elementwise.where(where, x, literal(fill, aval_of(x).dtype))


def _short(dtype: DType) -> bool:
    return is_inexact(dtype) and dtype.itemsize < 4


def _wide(dtype: DType) -> DType:
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
    working = canonical_dtype("int64") if kind(result) == "b" else _wide(result)
    x = masked(convert_element_type(x, working), where, neutral)
    total = reduce(x, axes)
    if initial is not None:
        total = combine(total, convert_element_type(asarray(initial), working))
    total = convert_element_type(_kept(total, aval.shape, axes, keepdims), result)
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
        and a.aval.dtype.kind == "f"
        and a.aval.dtype.itemsize > 2
        and dtype is out is initial is where is None
        and not keepdims
        and not a.aval.weak_type
        and a.aval.ndim
        and axis != ()
    ):
        return bind(ReduceSum(canonical_axes(axis, a.aval.ndim)), (a,))
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
        best = combine(best, convert_element_type(asarray(initial), aval.dtype))
    best = convert_element_type(_kept(best, aval.shape, axes, keepdims), aval.dtype)
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
    return exactly_into(
        name, _kept(reduce(masked(holds, where, neutral), axes), aval.shape, axes, keepdims), out
    )


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
    return exactly_into(name, _kept(found, aval.shape, axes, keepdims), out)


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


def _counted(aval: Any, axes: Shape, where: Any, dtype: DType) -> Any:
    """How many elements there are along `axes`, or hold in the mask `where`."""
    if where is None or where is True:
        return literal(math.prod(aval.shape[d] for d in axes), dtype)
    mask = broadcast_to(elementwise.boolean(where), aval.shape)
    return ops.reduce_sum(convert_element_type(mask, part_dtype(dtype)), axes)


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
        return exactly_into(
            "mean", bind(Div(), (total, _counted(a.aval, axes, None, a.aval.dtype))), out
        )
    x, result = _averaged(a, dtype)
    aval = aval_of(x)
    axes = canonical_axes(axis, aval.ndim)
    average = _mean(x, axes, where)
    return exactly_into(
        "mean", convert_element_type(_kept(average, aval.shape, axes, keepdims), result), out
    )


def _mean(x: Any, axes: Shape, where: Any) -> Any:
    aval = aval_of(x)
    count = _counted(aval, axes, where, aval.dtype)
    if is_complex(aval.dtype):
        count = convert_element_type(count, aval.dtype)
    return div(ops.reduce_sum(masked(x, where, 0), axes), count)


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
    total = div(ops.reduce_sum(masked(squares, where, 0), axes), count)
    if dtype is None:
        result = part_dtype(result)
    return exactly_into(
        name, convert_element_type(finish(_kept(total, aval.shape, axes, keepdims)), result), out
    )


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


# Up to each element.


def cumsum(a: Any, axis: Any = None, dtype: Any = None, out: Any = None) -> Any:
    """The sum along `axis` of each element and all before it; of all in order for None."""
    return _cumulated("cumsum", cumulative.cumsum, a, axis, dtype, out)


def cumprod(a: Any, axis: Any = None, dtype: Any = None, out: Any = None) -> Any:
    """The product along `axis` of each element and all before it; of all in order for None."""
    return _cumulated("cumprod", cumulative.cumprod, a, axis, dtype, out)


def _cumulated(name: str, scan: Callable[..., Any], a: Any, axis: Any, dtype: Any, out: Any) -> Any:
    x = asarray(a)
    aval = aval_of(x)
    if axis is None:
        x, axis = reshape(x, (aval.size,)), 0
    if dtype is not None:
        x = convert_element_type(x, dtype)
    if aval_of(x).dtype == np.bool_:
        x = convert_element_type(x, "int64")
    return exactly_into(
        name,
        scan(convert_element_type(x, aval_of(x).dtype), canonical_axis(axis, aval_of(x).ndim)),
        out,
    )


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
    out = scan(x, axis, summed_dtype(aval.dtype) if dtype is None else dtype)
    if not include_initial:
        return out
    shape = tuple([1 if d == axis else n for d, n in enumerate(aval.shape)])
    start = broadcast_to(asarray(first, aval_of(out).dtype), shape)
    return concatenate([start, out], axis)
