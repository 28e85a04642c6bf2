"""Sums, products, extrema, truth and positions along axes."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from functx import ops
from functx.core.errors import ArgumentError, ShapeError, ValueRangeError, short_repr
from functx.core.tracing import Tracer, aval_of, bind
from functx.core.types import (
    DType,
    Shape,
    canonical_dtype,
    inexact_dtype,
    is_complex,
    is_inexact,
    kind,
)
from functx.numpy import operators, ufuncs
from functx.numpy.array_creation import asarray
from functx.numpy.mutation import check_mask, write_out_exact
from functx.numpy.promotion import broadcast, broadcast_to, copy_if_same_memory, promote_inexact
from functx.ops import arithmetic
from functx.ops.operands import as_bool, canonical_axes, canonical_axis, literal
from functx.ops.statistics import StandardDeviation, Variance

__all__ = [
    "all",
    "amax",
    "amin",
    "any",
    "argmax",
    "argmin",
    "average",
    "count_nonzero",
    "max",
    "mean",
    "min",
    "prod",
    "ptp",
    "std",
    "sum",
    "var",
]


def restore_reduced_axes(out: Any, shape: Shape, axes: Shape, keepdims: bool) -> Any:
    """`out`, with the axes that `shape` lost as unit dimensions if `keepdims`."""
    if not (keepdims if type(keepdims) is bool else as_bool("keepdims", keepdims)):
        return out
    return ops.reshape(out, tuple([1 if d in axes else n for d, n in enumerate(shape)]))


def ravel_array(x: Any) -> Any:
    x = asarray(x)
    return ops.reshape(x, (aval_of(x).size,))


def fill_masked(x: Any, where: Any, fill: Any) -> Any:
    """`x`, with `fill` where the mask does not hold."""
    if where is None or where is True:
        return x
    check_mask("a reduction", where)
    return ufuncs.where(where, x, literal(fill, aval_of(x).dtype))


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
        x = ops.convert_element_type(x, result)
    x = fill_masked(ops.convert_element_type(x, working), where, neutral)
    total = reduce(x, axes)
    if initial is not None:
        total = combine(total, ops.convert_element_type(asarray(initial), working))
    total = ops.convert_element_type(
        restore_reduced_axes(total, aval.shape, axes, keepdims), result
    )
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
        return bind(ops.ReduceSum(canonical_axes(axis, a.atom.aval.ndim)), (a,))
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
        ops.reduce_prod, ops.mul, 1, promote_integers,
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
        best = combine(best, ops.convert_element_type(at_least, aval.dtype))
    best = ops.convert_element_type(
        restore_reduced_axes(best, aval.shape, axes, keepdims), aval.dtype
    )
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
    holds = x if aval.dtype == np.bool_ else ops.ne(x, 0)
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
        x, axes = ops.reshape(x, (aval.size,)), tuple(range(aval.ndim))
        found = find(x, 0, canonical_dtype("int64"))
    else:
        axes = (canonical_axis(axis, aval.ndim),)
        found = find(x, axes[0], canonical_dtype("int64"))
    return write_out_exact(name, restore_reduced_axes(found, aval.shape, axes, keepdims), out)


def ptp(a: Any, axis: Any = None, out: Any = None, keepdims: bool = False) -> Any:
    """The largest less the smallest element along `axis`."""
    spread = ops.sub(max(a, axis, keepdims=keepdims), min(a, axis, keepdims=keepdims))
    return write_out_exact("ptp", spread, out)


def count_nonzero(a: Any, axis: Any = None, keepdims: bool = False) -> Any:
    """The number of elements along `axis` that are not zero."""
    x = asarray(a)
    return sum(x if aval_of(x).dtype == np.bool_ else ops.ne(x, 0), axis, keepdims=keepdims)


def _in_mean_dtype(a: Any, dtype: Any) -> tuple[Any, DType]:
    """`a` in the dtype to average in, and the dtype of the average."""
    x = asarray(a)
    result = inexact_dtype(aval_of(x).dtype) if dtype is None else canonical_dtype(dtype)
    return ops.convert_element_type(x, accumulation_dtype(inexact_dtype(result))), result


def _element_count(aval: Any, axes: Shape, where: Any, dtype: DType) -> Any:
    """How many elements there are along `axes`, or hold in the mask `where`."""
    if where is None or where is True:
        return _static_element_count(aval.shape, axes, dtype)
    mask = broadcast_to(ufuncs.as_boolean(where), aval.shape)
    return ops.reduce_sum(ops.convert_element_type(mask, real_part_dtype(dtype)), axes)


@lru_cache(maxsize=1024)
def _static_element_count(shape: Shape, axes: Shape, dtype: DType) -> Any:
    return literal(math.prod([shape[d] for d in axes]), dtype)


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
        and a.atom.aval.dtype.kind == "f"
        and a.atom.aval.dtype.itemsize > 2
        and dtype is where is None
        and not keepdims
        and not a.atom.aval.weak_type
        and a.atom.aval.ndim
        and axis != ()
    ):
        axes = canonical_axes(axis, a.atom.aval.ndim)
        total = bind(ops.ReduceSum(axes), (a,))
        return write_out_exact(
            "mean",
            bind(ops.Div(), (total, _element_count(a.atom.aval, axes, None, a.atom.aval.dtype))),
            out,
        )
    x, result = _in_mean_dtype(a, dtype)
    aval = aval_of(x)
    axes = canonical_axes(axis, aval.ndim)
    average = _mean(x, axes, where)
    return write_out_exact(
        "mean",
        ops.convert_element_type(restore_reduced_axes(average, aval.shape, axes, keepdims), result),
        out,
    )


def _mean(x: Any, axes: Shape, where: Any) -> Any:
    aval = aval_of(x)
    count = _element_count(aval, axes, where, aval.dtype)
    if is_complex(aval.dtype):
        count = ops.convert_element_type(count, aval.dtype)
    return ops.div(ops.reduce_sum(fill_masked(x, where, 0), axes), count)


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
    ddof = resolve_ddof("var", ddof, correction)
    if where is mean is None and type(ddof) in (int, float):
        return _unmasked_variance("var", a, axis, dtype, out, ddof, keepdims, Variance)
    return _masked_variance("var", a, axis, dtype, out, ddof, keepdims, where, mean)


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
    ddof = resolve_ddof("std", ddof, correction)
    if where is mean is None and type(ddof) in (int, float):
        return _unmasked_variance("std", a, axis, dtype, out, ddof, keepdims, StandardDeviation)
    return _masked_variance("std", a, axis, dtype, out, ddof, keepdims, where, mean, ops.safe_sqrt)


def resolve_ddof(name: str, ddof: Any, correction: Any) -> Any:
    """The correction to the number of elements, given as `ddof` or as `correction`."""
    if correction is None:
        return ddof
    if type(ddof) is not int or ddof != 0:
        raise ArgumentError(
            f"{name}: ddof and correction are one thing, of which one must be given; got "
            f"ddof={short_repr(ddof)} and correction={short_repr(correction)}"
        )
    return correction


def _unmasked_variance(
    name: str,
    a: Any,
    axis: Any,
    dtype: Any,
    out: Any,
    ddof: float,
    keepdims: bool,
    primitive: type[Variance],
) -> Any:
    """A spread of all elements about their own mean, as one equation."""
    x, result = asarray(a), canonical_dtype(dtype) if dtype is not None else None
    own = inexact_dtype(aval_of(x).dtype)
    if result is not None and inexact_dtype(result) != own:
        own = accumulation_dtype(inexact_dtype(result))
    x = ops.convert_element_type(x, own)
    axes = canonical_axes(axis, aval_of(x).ndim)
    found = restore_reduced_axes(primitive(axes, float(ddof))(x), aval_of(x).shape, axes, keepdims)
    return write_out_exact(
        name, ops.convert_element_type(found, result or real_part_dtype(own)), out
    )


def _masked_variance(
    name: str,
    a: Any,
    axis: Any,
    dtype: Any,
    out: Any,
    ddof: Any,
    keepdims: bool,
    where: Any,
    mean: Any,
    finish: Callable[[Any], Any] = lambda x: x,
) -> Any:
    x, result = _in_mean_dtype(a, dtype)
    aval = aval_of(x)
    axes = canonical_axes(axis, aval.ndim)
    if mean is None:
        kept = tuple([d for d in range(aval.ndim) if d not in axes])

        def mean_along(x: Any) -> Any:
            return ops.broadcast_in_dim(_mean(x, axes, where), aval.shape, kept)

        # The mean is rounded, so that even equal elements may lie apart from it.
        mean = mean_along(x)
        mean = ops.add(mean, mean_along(ops.sub(x, mean)))
    else:
        mean = broadcast(x, ops.convert_element_type(asarray(mean), aval.dtype))[1]
    squares = _squared_magnitude(ops.sub(x, mean))
    count = _element_count(aval, axes, where, aval_of(squares).dtype)
    if type(ddof) not in (int, float) or ddof != 0:
        # Too few elements have no variance: 0 / 0 of one, and infinity of more.
        count = ufuncs.maximum(operators.subtract(count, ddof), 0)
    total = ops.div(ops.reduce_sum(fill_masked(squares, where, 0), axes), count)
    if dtype is None:
        result = real_part_dtype(result)
    return write_out_exact(
        name,
        ops.convert_element_type(
            finish(restore_reduced_axes(total, aval.shape, axes, keepdims)), result
        ),
        out,
    )


def _squared_magnitude(x: Any) -> Any:
    """The squared magnitude."""
    return (
        ops.real(ops.mul(x, ops.conj(x))) if is_complex(aval_of(x).dtype) else arithmetic.square(x)
    )


def average(
    a: Any, axis: Any = None, weights: Any = None, returned: bool = False, keepdims: bool = False
) -> Any:
    """The average along `axis` with `weights`, which may be a vector for one axis.

    With `returned` the pair of the average and the sum of the weights.
    """
    x, _ = _in_mean_dtype(a, None)
    aval = aval_of(x)
    axes = canonical_axes(axis, aval.ndim)
    if weights is None:
        found = mean(a, axis, keepdims=keepdims)
        count = _element_count(aval, axes, None, aval_of(found).dtype)
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
        weights = ops.permute_dims(weights, tuple(order))
        weights = ops.broadcast_in_dim(weights, aval.shape, tuple(sorted(axes)))
    x, weights = promote_inexact(a, weights)
    total = sum(weights, axis, keepdims=keepdims)
    found = ops.div(sum(ops.mul(asarray(x), weights), axis, keepdims=keepdims), total)
    return (found, total) if returned else found
