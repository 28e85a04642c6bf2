"""Rows of numbers: at even steps, or in even proportions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from functx.core.arrays import as_ndarray
from functx.core.concrete import check_not_differentiated, concretize
from functx.core.dtypes import DType, canonical_dtype, inexact_dtype, is_complex, is_inexact, kind
from functx.core.errors import ArgumentError, ValueRangeError
from functx.core.tracing import Tracer, aval_of, current_builder
from functx.numpy.creation import INT, cast_literal, full
from functx.numpy.promotion import broadcast, broadcast_to, promote_inexact, promoted_dtype
from functx.ops.arithmetic import add, div, mul, sub
from functx.ops.comparison import eq
from functx.ops.conversion import convert_element_type
from functx.ops.creation import broadcasted_iota, iota
from functx.ops.operands import PYTHON_SCALARS, canonical_axis
from functx.ops.parameters import as_int
from functx.ops.selection import select
from functx.ops.shaping import expand_dims, reshape

__all__ = [
    "arange",
    "geomspace",
    "linspace",
    "logspace",
]


def arange(
    start: Any, stop: Any = None, step: Any = None, dtype: Any = None, *, device: Any = None
) -> Any:
    """The numbers from `start` (0 if left out) to before `stop`, `step` apart."""
    start, stop, step = [_static_number(x, "arange") for x in (start, stop, step)]
    if stop is None:
        start, stop = 0 if isinstance(start, (int, np.integer)) else type(start)(0), start
    step = 1 if step is None else step
    found = canonical_dtype(dtype) if dtype is not None else promoted_dtype(start, stop, step)[0]
    if current_builder.get() is None:
        return as_ndarray(np.arange(start, stop, step).astype(found))
    if step == 0:
        raise ValueRangeError("arange: the step must not be 0; got 0")
    count = max(0, math.ceil((stop - start) / step))
    # Short floats cannot count far, and bool cannot count.
    wide = canonical_dtype(INT) if found == np.bool_ else _at_least_single(found)
    numbers = iota(wide, count)
    # NumPy's scalars are cast: of unsigned integers, a negative step counts round.
    if step != 1:
        numbers = mul(numbers, cast_literal(np.asarray(step)[()], wide))
    if start != 0:
        numbers = add(numbers, cast_literal(np.asarray(start)[()], wide))
    return convert_element_type(numbers, found)


def _static_number(x: Any, asked: str) -> Any:
    """The number that `x` is, which must be known while tracing."""
    if x is None or type(x) in PYTHON_SCALARS:
        return x
    if type(x) is Tracer:
        check_not_differentiated(x, asked)
        x = concretize(x, asked)
    value = np.asarray(x)
    if value.ndim:
        raise ArgumentError(f"{asked}: the bounds must be numbers; got {aval_of(x)!r}")
    return value[()]


def _at_least_single(dtype: DType) -> DType:
    return np.dtype("float32") if is_inexact(dtype) and dtype.itemsize < 4 else dtype


def linspace(
    start: Any,
    stop: Any,
    num: int = 50,
    endpoint: bool = True,
    retstep: bool = False,
    dtype: Any = None,
    axis: int = 0,
    *,
    device: Any = None,
) -> Any:
    """`num` numbers evenly from `start` to exactly `stop`, which comes last if `endpoint`.

    With `retstep` a pair, of which the second is the distance between them.
    """
    num = sample_count("linspace", num)
    start, stop = broadcast(*promote_inexact(start, stop))
    shape = max(aval_of(start).shape, aval_of(stop).shape, key=len)
    wide = aval_of(start).dtype
    gaps = num - 1 if endpoint else num
    axis = canonical_axis(axis, len(shape) + 1)
    start, stop = [_with_unit_axis(x, shape, axis) for x in (start, stop)]
    wanted = inexact_dtype(wide) if dtype is None else canonical_dtype(dtype)
    # (1 - t) start + t stop keeps more digits than start + t (stop - start).
    dims = (*shape[:axis], num, *shape[axis:])
    position = broadcasted_iota(_real_dtype(wide), dims, axis)
    t = div(position, float(gaps or 1))
    if is_complex(wide):
        t = convert_element_type(t, wide)
    numbers = add(
        mul(_broadcast_unless_scalar(start, dims, axis), sub(1.0, t)),
        mul(_broadcast_unless_scalar(stop, dims, axis), t),
    )
    if endpoint and num > 1:
        numbers = select(
            eq(position, float(gaps)), _broadcast_unless_scalar(stop, dims, axis), numbers
        )
    if kind(wanted) in "iu":
        from functx.numpy.whole_numbers import floor

        numbers = floor(numbers)
    numbers = convert_element_type(numbers, wanted)
    if not retstep:
        return numbers
    gap = sub(stop, start) if gaps > 0 else full(shape, math.nan, wide)
    step = reshape(div(gap, float(max(gaps, 1))), shape)
    return numbers, convert_element_type(step, inexact_dtype(wanted))


def sample_count(name: str, num: Any) -> int:
    count = as_int(f"{name}: the number of samples", num)
    if count < 0:
        raise ValueRangeError(f"{name}: the number of samples must not be negative; got {count}")
    return count


def _real_dtype(dtype: DType) -> DType:
    return np.dtype(f"float{dtype.itemsize * 4}") if is_complex(dtype) else dtype


def _with_unit_axis(x: Any, shape: tuple[int, ...], axis: int) -> Any:
    """A bound with a unit dimension at `axis`; a scalar stays one."""
    return expand_dims(broadcast_to(x, shape), axis) if shape else x


def _broadcast_unless_scalar(x: Any, dims: tuple[int, ...], axis: int) -> Any:
    return broadcast_to(x, dims) if aval_of(x).shape else x


def logspace(
    start: Any,
    stop: Any,
    num: int = 50,
    endpoint: bool = True,
    base: Any = 10.0,
    dtype: Any = None,
    axis: int = 0,
) -> Any:
    """`base` to the powers of `linspace(start, stop, num)`."""
    from functx.numpy.operators import power

    numbers = power(base, linspace(start, stop, num, endpoint, axis=axis))
    return numbers if dtype is None else convert_element_type(numbers, dtype)


def geomspace(
    start: Any, stop: Any, num: int = 50, endpoint: bool = True, dtype: Any = None, axis: int = 0
) -> Any:
    """`num` numbers from exactly `start` to exactly `stop`, in one ratio to each other."""
    from functx.numpy import elementary, operators

    num = sample_count("geomspace", num)
    start, stop = broadcast(*promote_inexact(start, stop))
    wide = aval_of(start).dtype
    ratio = elementary.log(div(stop, start))
    exponents = linspace(operators.multiply(ratio, 0.0), ratio, num, endpoint, axis=axis)
    shape = max(aval_of(start).shape, aval_of(stop).shape, key=len)
    axis = canonical_axis(axis, len(shape) + 1)
    dims = (*shape[:axis], num, *shape[axis:])
    first, last = [
        _broadcast_unless_scalar(_with_unit_axis(x, shape, axis), dims, axis) for x in (start, stop)
    ]
    numbers = mul(first, elementary.exp(exponents))
    if endpoint and num > 1:
        position = broadcasted_iota(np.int32, dims, axis)
        numbers = select(eq(position, num - 1), last, numbers)
    return convert_element_type(numbers, inexact_dtype(wide) if dtype is None else dtype)
