"""Cumulative sums and products, differences, gradients and integrals along an axis."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from functx import ops
from functx.core.errors import ArgumentError, AxisError, DTypeError, ShapeError, ValueRangeError
from functx.core.tracer import aval_of
from functx.core.typing import ArrayLike, ArrayOrList, Axes, DTypeLike, Out, Value
from functx.numpy import floating_point, operators, ufuncs
from functx.numpy.array_creation import asarray
from functx.numpy.eager_programs import as_one_program
from functx.numpy.mutation import write_out_exact
from functx.numpy.promotion import broadcast_to, operand, promote, promote_inexact
from functx.numpy.reductions import sum, sum_dtype
from functx.numpy.shapes import reshape
from functx.ops import arithmetic, cumulative
from functx.ops.operands import canonical_axes, canonical_axis

__all__ = [
    "cumprod",
    "cumsum",
    "cumulative_prod",
    "cumulative_sum",
    "diff",
    "ediff1d",
    "gradient",
    "trapezoid",
    "unwrap",
]


def cumsum(
    a: ArrayOrList, axis: int | None = None, dtype: DTypeLike = None, out: Out = None
) -> Value:
    """The cumulative sum along `axis`; of the flattened array if it is None."""
    return _cumulative_reduction("cumsum", cumulative.cumsum, a, axis, dtype, out)


def cumprod(
    a: ArrayOrList, axis: int | None = None, dtype: DTypeLike = None, out: Out = None
) -> Value:
    """The cumulative product along `axis`; of the flattened array if it is None."""
    return _cumulative_reduction("cumprod", cumulative.cumprod, a, axis, dtype, out)


def _cumulative_reduction(
    name: str,
    scan: Callable[..., Value],
    a: ArrayOrList,
    axis: int | None,
    dtype: DTypeLike,
    out: Out,
) -> Value:
    x = asarray(a)
    aval = aval_of(x)
    if axis is None:
        x, axis = ops.reshape(x, (aval.size,)), 0
    if dtype is not None:
        x = ops.convert_element_type(x, dtype)
    if aval_of(x).dtype == np.bool_:
        x = ops.convert_element_type(x, "int64")
    total = scan(
        ops.convert_element_type(x, aval_of(x).dtype), canonical_axis(axis, aval_of(x).ndim)
    )
    if dtype is not None:
        total = ops.convert_element_type(total, dtype)
    return write_out_exact(name, total, out)


def cumulative_sum(
    x: ArrayOrList,
    /,
    *,
    axis: int | None = None,
    dtype: DTypeLike = None,
    include_initial: bool = False,
) -> Value:
    """The cumulative sum along `axis`, with 0 in front if `include_initial`.

    Narrow integers are added in the default integer type.
    """
    return _with_initial(cumsum, 0, x, axis, dtype, include_initial)


def cumulative_prod(
    x: ArrayOrList,
    /,
    *,
    axis: int | None = None,
    dtype: DTypeLike = None,
    include_initial: bool = False,
) -> Value:
    """The cumulative product along `axis`, with 1 in front if `include_initial`."""
    return _with_initial(cumprod, 1, x, axis, dtype, include_initial)


def _with_initial(
    scan: Callable[..., Value],
    first: int,
    x: ArrayOrList,
    axis: int | None,
    dtype: DTypeLike,
    include_initial: bool,
) -> Value:
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
    out = scan(x, axis, sum_dtype(aval.dtype) if dtype is None else dtype)
    if not include_initial:
        return out
    shape = tuple([1 if d == axis else n for d, n in enumerate(aval.shape)])
    start = broadcast_to(asarray(first, aval_of(out).dtype), shape)
    return ops.concatenate([start, out], axis)


def diff(
    a: ArrayOrList,
    n: int = 1,
    axis: int = -1,
    prepend: ArrayOrList | None = None,
    append: ArrayOrList | None = None,
) -> Value:
    """The differences of neighbours along `axis`, taken `n` times."""
    x = asarray(a)
    if aval_of(x).ndim == 0:
        raise ShapeError(f"diff: the array must have a dimension; got {aval_of(x)!r}")
    if n < 0:
        raise ValueRangeError(f"diff: n must not be negative; got {n}")
    axis = canonical_axis(axis, aval_of(x).ndim)
    return _differences(x, n, axis, prepend, append) if n else x


@as_one_program
def _differences(
    x: Value, n: int, axis: int, prepend: ArrayOrList | None, append: ArrayOrList | None
) -> Value:
    """The differences of neighbours along `axis`, taken `n` times, at least once."""
    parts = [_diff_boundary(part, x, axis) for part in (prepend, append)]
    operands = [part for part in (parts[0], x, parts[1]) if part is not None]
    if len(operands) > 1:
        x = ops.concatenate(promote(*operands), axis)
    difference = ops.ne if aval_of(x).dtype == np.bool_ else ops.sub
    # More differences of an array without elements are that array.
    for _ in range(min(n, aval_of(x).shape[axis] + 1)):
        length = aval_of(x).shape[axis]
        last = max(length - 1, 0)
        later = ops.slice_in_dim(x, min(1, length), length, 1, axis)
        x = difference(later, ops.slice_in_dim(x, 0, last, 1, axis))
    return x


def _diff_boundary(part: ArrayOrList | None, x: Value, axis: int) -> Value | None:
    """The array that `diff` joins to `x`; a number stands for a slice of length 1."""
    if part is None:
        return None
    part = asarray(part)
    if aval_of(part).ndim:
        return part
    shape = tuple([1 if d == axis else n for d, n in enumerate(aval_of(x).shape)])
    return broadcast_to(part, shape)


@as_one_program
def ediff1d(
    ary: ArrayOrList, to_end: ArrayOrList | None = None, to_begin: ArrayOrList | None = None
) -> Value:
    """The differences of consecutive elements, with `to_begin` in front and `to_end` behind."""
    x = asarray(ary)
    if aval_of(x).dtype == bool:
        raise DTypeError("ediff1d: booleans have no differences", fix="Convert with astype(int).")
    x = ops.reshape(x, (aval_of(x).size,))
    before, after = [
        []
        if end is None
        else [ops.convert_element_type(reshape(asarray(end), -1), aval_of(x).dtype)]
        for end in (to_begin, to_end)
    ]
    parts = [*before, diff(x), *after]
    return parts[0] if len(parts) == 1 else ops.concatenate(parts, 0)


@as_one_program
def trapezoid(
    y: ArrayOrList, x: ArrayOrList | None = None, dx: ArrayOrList = 1.0, axis: int = -1
) -> Value:
    """The integral of `y` along `axis` by the trapezoidal rule, at the points `x` or in steps of `dx`."""
    if x is None:
        (y,) = promote_inexact(y)
        y = asarray(y)
    else:
        y, x = promote_inexact(y, x)
        y, x = asarray(y), asarray(x)
        rank = aval_of(y).ndim
        y_axis = canonical_axis(axis, rank)
        if aval_of(x).ndim == 1:
            dx = diff(x)
            dx = ops.reshape(dx, tuple([dx.size if d == y_axis else 1 for d in range(rank)]))
        else:
            dx = diff(x, axis=axis)
    axis = canonical_axis(axis, aval_of(y).ndim)
    n = aval_of(y).shape[axis]
    heights = arithmetic.add(
        ops.slice_in_dim(y, min(1, n), n, 1, axis),
        ops.slice_in_dim(y, 0, max(n - 1, 0), 1, axis),
    )
    areas = operators.multiply(ops.mul(heights, 0.5), dx)
    return sum(areas, axis - aval_of(y).ndim)


@as_one_program
def gradient(
    f: ArrayOrList, *varargs: ArrayOrList, axis: Axes = None, edge_order: int = 1
) -> Value | list[Value]:
    """The derivatives of `f` along `axis` by central differences, one-sided at the ends.

    `varargs` gives the distances or the coordinates of the points, for all axes or for each.
    Several axes give a list.
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
    slopes = [_gradient_along(x, h, d) for h, d in zip(spacings, axes, strict=True)]
    return slopes[0] if len(slopes) == 1 else slopes


def _steps(x: Value, dtype: DTypeLike) -> Value:
    """The differences of neighbours in a vector, as floats; those of integers do not wrap."""
    found = aval_of(x).dtype
    if found.kind not in "iu":
        return ops.convert_element_type(diff(x), dtype)
    n = aval_of(x).shape[0]
    words = ops.convert_element_type(x, np.dtype(f"u{found.itemsize}"))
    (before, after), (left, right) = [
        (ops.slice_in_dim(y, 0, n - 1), ops.slice_in_dim(y, 1, n)) for y in (x, words)
    ]
    up, down = [
        ops.convert_element_type(ops.sub(*each), dtype) for each in ((right, left), (left, right))
    ]
    return ops.select(ops.ge(after, before), up, ops.neg(down))


def _gradient_along(x: Value, spacing: ArrayOrList, axis: int) -> Value:
    aval = aval_of(x)
    n = aval.shape[axis]
    if n < 2:
        raise ShapeError(f"gradient: an axis must have two elements; got {aval!r}, axis {axis}")

    def section(start: int, stop: int) -> Value:
        return ops.slice_in_dim(x, start, stop, 1, axis)

    first, last = (
        ops.sub(section(1, 2), section(0, 1)),
        ops.sub(section(n - 1, n), section(n - 2, n - 1)),
    )
    before, after = section(0, n - 2), section(2, n)
    spacing = operand(spacing)
    if aval_of(spacing).ndim == 0:
        inner = ops.mul(ops.sub(after, before), 0.5)
        differences = ops.concatenate([first, inner, last] if n > 2 else [first, last], axis)
        return operators.divide(differences, spacing)
    if aval_of(spacing).shape != (n,):
        raise ShapeError(
            f"gradient: there must be {n} coordinates, the length of the axis; got {aval_of(spacing)!r}"
        )
    dims = tuple([-1 if d == axis else 1 for d in range(aval.ndim)])
    h = _steps(asarray(spacing), aval.dtype)
    h = ops.reshape(h, tuple([n - 1 if d == -1 else 1 for d in dims]))
    left, right = (
        ops.slice_in_dim(h, 0, n - 2, 1, axis),
        ops.slice_in_dim(h, 1, n - 1, 1, axis),
    )
    # The parabola through three points: weights -r / (l (l + r)), (r - l) / (l r), l / (r (l + r))
    width = arithmetic.add(left, right)
    slope = operators.subtract(
        operators.multiply(after, ops.div(left, ops.mul(right, width))),
        operators.multiply(before, ops.div(right, ops.mul(left, width))),
    )
    center = operators.multiply(
        section(1, n - 1), ops.div(ops.sub(right, left), ops.mul(left, right))
    )
    boundary = [
        operators.divide(step, ops.slice_in_dim(h, i, i + 1, 1, axis))
        for step, i in ((first, 0), (last, n - 2))
    ]
    between = [arithmetic.add(slope, center)] if n > 2 else []
    return ops.concatenate([boundary[0], *between, boundary[1]], axis)


@as_one_program
def unwrap(
    p: ArrayOrList,
    discont: ArrayLike | None = None,
    axis: int = -1,
    period: ArrayLike = 2 * math.pi,
) -> Value:
    """`p` with multiples of `period` added so that neighbours along `axis` are near each other.

    A step of at most `discont`, which is at least and by default half of the period, stays as it is.

    >>> import functx.numpy as np
    >>> np.unwrap(np.array([0, 3, 6, 1, 2]), period=4)
    array([ 0, -1, -2, -3, -2], dtype=int32)
    """
    p, length = promote(asarray(p), period)
    if not p.ndim:
        raise ShapeError(f"unwrap: the array must have a dimension; got {aval_of(p)!r}")
    axis = canonical_axis(axis, p.ndim)
    step = diff(p, axis=axis)
    if p.dtype.kind in "iu":
        half, odd = floating_point.divmod(length, 2)
    else:
        half, odd = operators.divide(length, 2), asarray(0)
    lowest = operators.negative(half)
    wrapped = floating_point.remainder(operators.subtract(step, lowest), length)
    wrapped = operators.add(wrapped, lowest)
    # Half a period up and half a period down are the same step.
    is_upward = operators.logical_and(operators.equal(wrapped, lowest), operators.greater(step, 0))
    wrapped = ufuncs.where(operators.logical_and(operators.equal(odd, 0), is_upward), half, wrapped)
    keeps = operators.less(operators.absolute(step), half if discont is None else discont)
    change = ufuncs.where(keeps, 0, operators.subtract(wrapped, step))
    first = ops.slice_in_dim(p, 0, min(1, p.shape[axis]), 1, axis)
    rest = ops.slice_in_dim(p, min(1, p.shape[axis]), p.shape[axis], 1, axis)
    moved = operators.add(rest, cumsum(change, axis, dtype=p.dtype))
    return ops.concatenate([first, moved], axis)
