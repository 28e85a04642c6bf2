"""Averages and spreads along axes, and what they count and divide by."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from functx.core.avals import Shape
from functx.core.dtypes import DType, canonical_dtype, inexact_dtype, is_complex
from functx.core.errors import ArgumentError, ShapeError, short_repr
from functx.core.tracing import Tracer, aval_of, bind
from functx.numpy import choices, operators, ufuncs
from functx.numpy.creation import asarray
from functx.numpy.mutation import write_out_exact
from functx.numpy.promotion import broadcast, broadcast_to, promote_inexact
from functx.numpy.reductions import (
    accumulation_dtype,
    fill_masked,
    real_part_dtype,
    restore_reduced_axes,
    sum,
)
from functx.ops import arithmetic
from functx.ops import reductions as ops
from functx.ops.arithmetic import Div, add, div, mul, sub
from functx.ops.complexes import conj, real
from functx.ops.conversion import convert_element_type
from functx.ops.exponential import safe_sqrt
from functx.ops.operands import canonical_axes, literal
from functx.ops.reductions import ReduceSum
from functx.ops.shaping import broadcast_in_dim, permute_dims
from functx.ops.spreads import StandardDeviation, Variance

__all__ = [
    "average",
    "mean",
    "std",
    "var",
]


def _in_mean_dtype(a: Any, dtype: Any) -> tuple[Any, DType]:
    """`a` in the dtype to average in, and the dtype of the average."""
    x = asarray(a)
    result = inexact_dtype(aval_of(x).dtype) if dtype is None else canonical_dtype(dtype)
    return convert_element_type(x, accumulation_dtype(inexact_dtype(result))), result


def _element_count(aval: Any, axes: Shape, where: Any, dtype: DType) -> Any:
    """How many elements there are along `axes`, or hold in the mask `where`."""
    if where is None or where is True:
        return _static_element_count(aval.shape, axes, dtype)
    mask = broadcast_to(ufuncs.as_boolean(where), aval.shape)
    return ops.reduce_sum(convert_element_type(mask, real_part_dtype(dtype)), axes)


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
        total = bind(ReduceSum(axes), (a,))
        return write_out_exact(
            "mean",
            bind(Div(), (total, _element_count(a.atom.aval, axes, None, a.atom.aval.dtype))),
            out,
        )
    x, result = _in_mean_dtype(a, dtype)
    aval = aval_of(x)
    axes = canonical_axes(axis, aval.ndim)
    average = _mean(x, axes, where)
    return write_out_exact(
        "mean",
        convert_element_type(restore_reduced_axes(average, aval.shape, axes, keepdims), result),
        out,
    )


def _mean(x: Any, axes: Shape, where: Any) -> Any:
    aval = aval_of(x)
    count = _element_count(aval, axes, where, aval.dtype)
    if is_complex(aval.dtype):
        count = convert_element_type(count, aval.dtype)
    return div(ops.reduce_sum(fill_masked(x, where, 0), axes), count)


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
    return _masked_variance("std", a, axis, dtype, out, ddof, keepdims, where, mean, safe_sqrt)


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
    x = convert_element_type(x, own)
    axes = canonical_axes(axis, aval_of(x).ndim)
    found = restore_reduced_axes(primitive(axes, float(ddof))(x), aval_of(x).shape, axes, keepdims)
    return write_out_exact(name, convert_element_type(found, result or real_part_dtype(own)), out)


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
            return broadcast_in_dim(_mean(x, axes, where), aval.shape, kept)

        # The mean is rounded, so that even equal elements may lie apart from it.
        mean = mean_along(x)
        mean = add(mean, mean_along(sub(x, mean)))
    else:
        mean = broadcast(x, convert_element_type(asarray(mean), aval.dtype))[1]
    squares = _squared_magnitude(sub(x, mean))
    count = _element_count(aval, axes, where, aval_of(squares).dtype)
    if type(ddof) not in (int, float) or ddof != 0:
        # Too few elements have no variance: 0 / 0 of one, and infinity of more.
        count = choices.maximum(operators.subtract(count, ddof), 0)
    total = div(ops.reduce_sum(fill_masked(squares, where, 0), axes), count)
    if dtype is None:
        result = real_part_dtype(result)
    return write_out_exact(
        name,
        convert_element_type(
            finish(restore_reduced_axes(total, aval.shape, axes, keepdims)), result
        ),
        out,
    )


def _squared_magnitude(x: Any) -> Any:
    """The squared magnitude."""
    return real(mul(x, conj(x))) if is_complex(aval_of(x).dtype) else arithmetic.square(x)


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
        weights = permute_dims(weights, tuple(order))
        weights = broadcast_in_dim(weights, aval.shape, tuple(sorted(axes)))
    x, weights = promote_inexact(a, weights)
    total = sum(weights, axis, keepdims=keepdims)
    found = div(sum(mul(asarray(x), weights), axis, keepdims=keepdims), total)
    return (found, total) if returned else found
