"""Reductions: sums, products, extrema, truth values, averages and variances along axes."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache, wraps
from inspect import unwrap
from typing import Any, Concatenate, ParamSpec, Protocol, cast

import numpy as np

from functx import ops
from functx.core.argument_errors import explain
from functx.core.binding import bind
from functx.core.errors import ArgumentError, DTypeError, ShapeError, ValueRangeError, short_repr
from functx.core.tracer import Tracer, aval_of
from functx.core.types import (
    DType,
    Shape,
    ShapedArray,
    accumulation_dtype,
    canonical_dtype,
    inexact_dtype,
    is_complex,
    kind,
    real_dtype,
)
from functx.core.typing import ArrayLike, ArrayOrList, Axes, DTypeLike, Out, Value
from functx.numpy import operators, ufuncs
from functx.numpy.array_creation import asarray
from functx.numpy.eager_programs import as_one_program
from functx.numpy.mutation import check_mask, write_out_exact
from functx.numpy.promotion import (
    broadcast,
    broadcast_to,
    copy_if_same_memory,
    number_literal,
    promote_inexact,
)
from functx.ops import arithmetic, powers
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


P = ParamSpec("P")


class ReductionFunction(Protocol[P]):
    """The type of a reduction: `a`, `axis`, and the further parameters of the decorated function."""

    __name__: str

    def __call__(
        self, a: ArrayOrList, axis: Axes = None, *args: P.args, **options: P.kwargs
    ) -> Value: ...


def reduction(
    *,
    single_axis: bool = False,
    eager_program: bool = False,
    of_floats: Callable[[Tracer, Shape], Value] | None = None,
) -> Callable[[Callable[Concatenate[Value, Shape, P], Value]], ReductionFunction[P]]:
    """Makes a reduction with NumPy's arguments of the function that computes it.

    The decorated function is called with an array `a` and a tuple `axis` of distinct,
    non-negative ints, and returns the result without these axes. The reduction takes any array-like
    `a`, and an int, a sequence of ints or None as `axis`; it restores the reduced axes with
    length 1 if `keepdims`, writes the result to `out`, and copies a result that shares memory
    with `a`.

    With `single_axis`, `axis` must be an int or None. With `eager_program`, it runs as one
    program outside a trace. `of_floats` is a shortcut: it computes
    the result for a traced float32 or float64 array and no other arguments than `axis` and `keepdims`.
    """

    def decorate(function: Callable[Concatenate[Value, Shape, P], Value]) -> ReductionFunction[P]:
        name, code = function.__name__, unwrap(function).__code__
        # The signature that users see.
        function.__defaults__ = (None, *(function.__defaults__ or ()))
        function.__annotations__.update(a="ArrayOrList", axis="Axes")
        parameters = code.co_varnames[2 : code.co_argcount]
        out_position, keepdims_position = parameters.index("out"), parameters.index("keepdims")

        @wraps(function)
        def call(a: ArrayOrList, axis: Axes = None, *args: Any, **options: Any) -> Value:
            try:
                if type(a) is Tracer:
                    x: Value = a
                    aval = a.atom.aval
                    if of_floats is not None and _is_of_floats(aval, axis, args, options):
                        reduced = canonical_axes(axis, aval.ndim)
                        result = of_floats(a, reduced)
                        return restore_reduced_axes(result, aval.shape, reduced, **options)
                else:
                    x = asarray(a)
                    aval = aval_of(x)
                if single_axis and axis is not None:
                    axes: Shape = (canonical_axis(axis, aval.ndim),)
                else:
                    axes = canonical_axes(axis, aval.ndim)
                result = function(x, axes, *args, **options)
                out = None
                if args or options:
                    out = args[out_position] if len(args) > out_position else options.get("out")
                    if len(args) > keepdims_position or "keepdims" in options:
                        keepdims = options.get("keepdims", *args[keepdims_position:][:1])
                        result = restore_reduced_axes(result, aval.shape, axes, keepdims)
                if type(a) is not Tracer or type(result) is not Tracer or result.atom is a.atom:
                    result = copy_if_same_memory(result, a)
                return result if out is None else write_out_exact(name, result, out)
            except Exception as error:
                explain(error, function, (a, axis, *args), options)
                raise

        call.explains_errors = True  # type: ignore[attr-defined]
        return cast(ReductionFunction[P], as_one_program(call) if eager_program else call)

    return decorate


def _is_of_floats(
    aval: ShapedArray, axis: Axes, args: tuple[Any, ...], options: dict[str, Any]
) -> bool:
    return (
        not args
        and options.keys() <= {"keepdims"}
        and aval.dtype.kind == "f"
        and aval.dtype.itemsize > 2
        and not aval.weak_type
        and bool(aval.shape)
        and axis != ()
    )


def restore_reduced_axes(out: Value, shape: Shape, axes: Shape, keepdims: bool = False) -> Value:
    """`out` with the reduced axes of `shape` restored as dimensions of length 1 if `keepdims`."""
    if not (keepdims if type(keepdims) is bool else as_bool("keepdims", keepdims)):
        return out
    return ops.reshape(out, tuple([1 if d in axes else n for d, n in enumerate(shape)]))


def fill_masked(x: Value, where: ArrayOrList | None, fill: complex) -> Value:
    """`x` with `fill` where the mask `where` is False; None and True mask nothing."""
    if where is None or where is True:
        return x
    check_mask("a reduction", where)
    return ufuncs.where(where, x, literal(fill, aval_of(x).dtype))


def sum_dtype(dtype: DType) -> DType:
    """The dtype of a sum: booleans and narrow integers as the default integer."""
    if kind(dtype) in "bi":
        default = canonical_dtype("int64")
    elif kind(dtype) == "u":
        default = canonical_dtype("uint64")
    else:
        return dtype
    return default if dtype.itemsize < default.itemsize else dtype


def _initial_value(initial: ArrayOrList, dtype: DType | None = None) -> Value:
    value = asarray(initial, dtype)
    if aval_of(value).ndim:
        raise ShapeError(f"a reduction: initial must be a scalar; got {aval_of(value)!r}")
    return value


@reduction(of_floats=lambda x, axes: bind(ops.ReduceSum(axes), (x,)))
def sum(
    a: Value,
    axis: Shape,
    dtype: DTypeLike = None,
    out: Out = None,
    keepdims: bool = False,
    initial: ArrayOrList | None = None,
    where: ArrayOrList | None = None,
    promote_integers: bool = True,
) -> Value:
    """The sum along `axis`, an int, several or None for all, plus `initial`.

    Booleans and narrow integers are added in the default integer type. With a mask `where`,
    only the elements where it is True count.
    """
    return _sum_or_prod(
        ops.reduce_sum, arithmetic.add, 0, a, axis, dtype, initial, where, promote_integers
    )


@reduction()
def prod(
    a: Value,
    axis: Shape,
    dtype: DTypeLike = None,
    out: Out = None,
    keepdims: bool = False,
    initial: ArrayOrList | None = None,
    where: ArrayOrList | None = None,
    promote_integers: bool = True,
) -> Value:
    """The product along `axis`, an int, several or None for all, times `initial`."""
    return _sum_or_prod(
        ops.reduce_prod, ops.mul, 1, a, axis, dtype, initial, where, promote_integers
    )


def _sum_or_prod(
    reduce: Callable[..., Value],
    combine: Callable[..., Value],
    neutral: int,
    x: Value,
    axes: Shape,
    dtype: DTypeLike,
    initial: ArrayOrList | None,
    where: ArrayOrList | None,
    promote_integers: bool,
) -> Value:
    result = aval_of(x).dtype
    if dtype is not None:
        result = canonical_dtype(dtype)
    elif promote_integers or result == np.bool_:
        result = sum_dtype(result)
    working = accumulation_dtype(result)
    if kind(result) == "b":
        x, working = ops.convert_element_type(x, result), canonical_dtype("int64")
    total = reduce(fill_masked(ops.convert_element_type(x, working), where, neutral), axes)
    if initial is not None:
        total = combine(total, ops.convert_element_type(_initial_value(initial), working))
    return ops.convert_element_type(total, result)


@reduction()
def max(
    a: Value,
    axis: Shape,
    out: Out = None,
    keepdims: bool = False,
    initial: ArrayOrList | None = None,
    where: ArrayOrList | None = None,
) -> Value:
    """The largest element along `axis`, an int, several or None for all; nan if there is one.

    At least `initial`, where it is given; elements that tie share the derivative.
    """
    return _extremum("max", ops.reduce_max, arithmetic.max, ops.lowest, a, axis, initial, where)


@reduction()
def min(
    a: Value,
    axis: Shape,
    out: Out = None,
    keepdims: bool = False,
    initial: ArrayOrList | None = None,
    where: ArrayOrList | None = None,
) -> Value:
    """The smallest element along `axis`, an int, several or None for all; nan if there is one.

    At most `initial`, where it is given; elements that tie share the derivative.
    """
    return _extremum("min", ops.reduce_min, arithmetic.min, ops.highest, a, axis, initial, where)


amax, amin = max, min


def _extremum(
    name: str,
    reduce: Callable[..., Value],
    combine: Callable[..., Value],
    start: Callable[[DType], complex],
    x: Value,
    axes: Shape,
    initial: ArrayOrList | None,
    where: ArrayOrList | None,
) -> Value:
    aval = aval_of(x)
    if initial is None:
        if where is not None:
            raise ArgumentError(f"{name}: with where=, initial= must be given; got none")
        if 0 in [aval.shape[d] for d in axes]:
            raise ValueRangeError(
                f"{name}: there must be an element to choose, or initial=; got {aval!r}"
            )
    if where is not None:
        x = fill_masked(x, where, start(real_dtype(aval.dtype)))
    extremum = reduce(x, axes)
    if initial is not None:
        bound = _initial_value(initial, aval.dtype if type(initial) is int else None)
        extremum = combine(extremum, ops.convert_element_type(bound, aval.dtype))
    return ops.convert_element_type(extremum, aval.dtype)


@reduction()
def any(
    a: Value,
    axis: Shape,
    out: Out = None,
    keepdims: bool = False,
    *,
    where: ArrayOrList | None = None,
) -> Value:
    """Whether an element along `axis`, an int, several or None for all, is not zero."""
    return ops.reduce_or(fill_masked(ufuncs.as_boolean(a), where, False), axis)


@reduction()
def all(
    a: Value,
    axis: Shape,
    out: Out = None,
    keepdims: bool = False,
    *,
    where: ArrayOrList | None = None,
) -> Value:
    """Whether every element along `axis`, an int, several or None for all, is not zero."""
    return ops.reduce_and(fill_masked(ufuncs.as_boolean(a), where, True), axis)


@reduction(single_axis=True)
def argmax(a: Value, axis: Shape, out: Out = None, keepdims: bool = False) -> Value:
    """The position of the first largest element along `axis`, or of the first nan."""
    return arg_extremum(ops.argmax, a, axis)


@reduction(single_axis=True)
def argmin(a: Value, axis: Shape, out: Out = None, keepdims: bool = False) -> Value:
    """The position of the first smallest element along `axis`, or of the first nan."""
    return arg_extremum(ops.argmin, a, axis)


def arg_extremum(find: Callable[..., Value], x: Value, axes: Shape) -> Value:
    """The index that `find` returns along one axis, or along all axes in row-major order."""
    if len(axes) != 1:
        x, axes = ops.reshape(x, (aval_of(x).size,)), (0,)
    return find(x, axes[0], canonical_dtype("int64"))


@reduction(eager_program=True)
def ptp(a: Value, axis: Shape, out: Out = None, keepdims: bool = False) -> Value:
    """The largest less the smallest element along `axis`."""
    return ops.sub(max(a, axis), min(a, axis))


def count_nonzero(a: ArrayOrList, axis: Axes = None, keepdims: bool = False) -> Value:
    """The number of elements along `axis` that are not zero."""
    return sum(ufuncs.as_boolean(asarray(a)), axis, keepdims=keepdims)


def _in_mean_dtype(x: Value, dtype: DTypeLike) -> tuple[Value, DType]:
    """`x` in the dtype to average in, and the dtype of the average."""
    result = inexact_dtype(aval_of(x).dtype) if dtype is None else canonical_dtype(dtype)
    return ops.convert_element_type(x, accumulation_dtype(inexact_dtype(result))), result


def _element_count(
    aval: ShapedArray, axes: Shape, where: ArrayOrList | None, dtype: DType
) -> Value:
    """The number of elements along `axes`, or of those where the mask `where` is True."""
    if where is None or where is True:
        return _static_element_count(aval.shape, axes, dtype)
    mask = broadcast_to(ufuncs.as_boolean(where), aval.shape)
    return ops.reduce_sum(ops.convert_element_type(mask, real_dtype(dtype)), axes)


@lru_cache(maxsize=1024)
def _static_element_count(shape: Shape, axes: Shape, dtype: DType) -> Value:
    return number_literal(math.prod([shape[d] for d in axes]), dtype)


def _mean_of_floats(x: Tracer, axes: Shape) -> Value:
    aval = x.atom.aval
    count = _static_element_count(aval.shape, axes, aval.dtype)
    return bind(ops.Div(), (bind(ops.ReduceSum(axes), (x,)), count))


@reduction(eager_program=True, of_floats=_mean_of_floats)
def mean(
    a: Value,
    axis: Shape,
    dtype: DTypeLike = None,
    out: Out = None,
    keepdims: bool = False,
    *,
    where: ArrayOrList | None = None,
) -> Value:
    """The average along `axis`, an int, several or None for all; nan of no elements.

    With a mask `where`, only the elements where it is True count.
    """
    x, result = _in_mean_dtype(a, dtype)
    return ops.convert_element_type(_mean(x, axis, where), result)


def _mean(x: Value, axes: Shape, where: ArrayOrList | None) -> Value:
    aval = aval_of(x)
    count = _element_count(aval, axes, where, aval.dtype)
    if is_complex(aval.dtype):
        count = ops.convert_element_type(count, aval.dtype)
    return ops.div(ops.reduce_sum(fill_masked(x, where, 0), axes), count)


@reduction()
def var(
    a: Value,
    axis: Shape,
    dtype: DTypeLike = None,
    out: Out = None,
    ddof: ArrayLike = 0,
    keepdims: bool = False,
    *,
    where: ArrayOrList | None = None,
    mean: ArrayOrList | None = None,
    correction: ArrayLike | None = None,
) -> Value:
    """The average squared distance from the mean along `axis`, an int, several or None for all.

    The sum of squares is divided by the number of elements less `ddof`, or `correction`.
    """
    ddof = resolve_ddof("var", ddof, correction)
    if where is mean is None and type(ddof) in (int, float):
        return _unmasked_variance(Variance, a, axis, dtype, ddof)
    return _masked_variance("var", lambda x: x, a, axis, dtype, ddof, where, mean)


@reduction()
def std(
    a: Value,
    axis: Shape,
    dtype: DTypeLike = None,
    out: Out = None,
    ddof: ArrayLike = 0,
    keepdims: bool = False,
    *,
    where: ArrayOrList | None = None,
    mean: ArrayOrList | None = None,
    correction: ArrayLike | None = None,
) -> Value:
    """The square root of `var`; of equal elements its derivative is 0."""
    ddof = resolve_ddof("std", ddof, correction)
    if where is mean is None and type(ddof) in (int, float):
        return _unmasked_variance(StandardDeviation, a, axis, dtype, ddof)
    return _masked_variance("std", ops.safe_sqrt, a, axis, dtype, ddof, where, mean)


def resolve_ddof(name: str, ddof: ArrayLike, correction: ArrayLike | None) -> ArrayLike:
    """The number subtracted from the number of elements, given as `ddof` or as `correction`."""
    if correction is None:
        return ddof
    if type(ddof) is not int or ddof != 0:
        raise ArgumentError(
            f"{name}: ddof and correction are one thing, of which one must be given; got "
            f"ddof={short_repr(ddof)} and correction={short_repr(correction)}"
        )
    return correction


def _unmasked_variance(
    primitive: type[Variance], x: Value, axes: Shape, dtype: DTypeLike, ddof: Any
) -> Value:
    """The variance or standard deviation of all elements about their own mean, as one equation."""
    name = "var" if primitive is Variance else "std"
    _check_keeps_imaginary_parts(name, x, dtype)
    working = inexact_dtype(aval_of(x).dtype)
    result = real_dtype(working)
    if dtype is not None:
        result = canonical_dtype(dtype)
        if inexact_dtype(result) != working:
            working = accumulation_dtype(inexact_dtype(result))
    x = ops.convert_element_type(x, working)
    return ops.convert_element_type(primitive(axes, float(ddof))(x), result)


def _check_keeps_imaginary_parts(name: str, x: Value, dtype: DTypeLike) -> None:
    if (
        is_complex(aval_of(x).dtype)
        and dtype is not None
        and not is_complex(canonical_dtype(dtype))
    ):
        raise DTypeError(
            f"{name}: of complex elements dtype must be complex or None; got {dtype!r} for {aval_of(x)!r}",
            fix=f"Leave dtype out: {name} of complex elements is real.",
        )


def _masked_variance(
    name: str,
    finish: Callable[[Value], Value],
    x: Value,
    axes: Shape,
    dtype: DTypeLike,
    ddof: ArrayLike,
    where: ArrayOrList | None,
    mean: ArrayOrList | None,
) -> Value:
    _check_keeps_imaginary_parts(name, x, dtype)
    x, result = _in_mean_dtype(x, dtype)
    aval = aval_of(x)
    if mean is None:
        remaining = tuple([d for d in range(aval.ndim) if d not in axes])

        def mean_along(x: Value) -> Value:
            return ops.broadcast_in_dim(_mean(x, axes, where), aval.shape, remaining)

        # The mean is rounded: equal elements may differ from it. The second pass corrects it.
        mean = mean_along(x)
        mean = ops.add(mean, mean_along(ops.sub(x, mean)))
    else:
        mean = broadcast(x, ops.convert_element_type(asarray(mean), aval.dtype))[1]
    squares = _squared_magnitude(ops.sub(x, mean))
    count = _element_count(aval, axes, where, aval_of(squares).dtype)
    if type(ddof) not in (int, float) or ddof != 0:
        # With at most `ddof` elements: 0 / 0 = nan for a single one, infinity for more.
        count = ufuncs.maximum(operators.subtract(count, ddof), 0)
    variance = ops.div(ops.reduce_sum(fill_masked(squares, where, 0), axes), count)
    return ops.convert_element_type(
        finish(variance), real_dtype(result) if dtype is None else result
    )


def _squared_magnitude(x: Value) -> Value:
    if is_complex(aval_of(x).dtype):
        return ops.real(ops.mul(x, ops.conj(x)))
    return powers.square(x)


@as_one_program
def average(
    a: ArrayOrList,
    axis: Axes = None,
    weights: ArrayOrList | None = None,
    returned: bool = False,
    keepdims: bool = False,
) -> Value | tuple[Value, Value]:
    """The average along `axis` with `weights`, which may be a vector for one axis.

    With `returned` the pair of the average and the sum of the weights.
    """
    x, _ = _in_mean_dtype(asarray(a), None)
    aval = aval_of(x)
    axes = canonical_axes(axis, aval.ndim)
    if weights is None:
        result = mean(a, axis, keepdims=keepdims)
        count = _element_count(aval, axes, None, aval_of(result).dtype)
        total = broadcast_to(asarray(count), aval_of(result).shape)
        return (result, total) if returned else result
    weights = asarray(weights)
    given = aval_of(weights)
    if given.shape != aval.shape:
        if given.ndim != len(axes) or given.shape != tuple([aval.shape[d] for d in axes]):
            raise ShapeError(
                "average: weights must have the shape of the array, or of its axis; got "
                f"{given!r} for {aval!r} with axis {axis}"
            )
        order = sorted(range(len(axes)), key=axes.__getitem__)
        weights = ops.permute_dims(weights, tuple(order))
        weights = ops.broadcast_in_dim(weights, aval.shape, tuple(sorted(axes)))
    x, weights = promote_inexact(a, weights)
    total = sum(weights, axis, keepdims=keepdims)
    result = ops.div(sum(ops.mul(asarray(x), weights), axis, keepdims=keepdims), total)
    return (result, total) if returned else result
