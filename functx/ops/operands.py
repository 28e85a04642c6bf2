"""Operands: Python scalars given the dtype of the array beside them, axes made canonical."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from operator import index
from typing import Any

import numpy as np
from ml_dtypes import iinfo

from functx.core.arrays import as_ndarray
from functx.core.axes import batched_axis
from functx.core.dtypes import DType, is_complex, is_inexact, kind
from functx.core.errors import (
    ArgumentError,
    AxisError,
    ConcretizationError,
    DTypeError,
    ValueRangeError,
    short_repr,
)
from functx.core.program import Literal, scalar_literal
from functx.core.tracing import aval_of, current_builder
from functx.core.unknown import is_finite

PYTHON_SCALARS = frozenset({bool, int, float, complex})


def identity_result(x: Any) -> Any:
    """`x`, of which an operation changes nothing; outside a trace, a NumPy array as an `ndarray`."""
    return as_ndarray(x) if type(x) is np.ndarray and current_builder.get() is None else x


def literal(value: Any, dtype: DType) -> Literal:
    """The scalar `value` as a literal of exactly `dtype`, which an integer must fit."""
    if type(value) is float and dtype.kind == "f":
        return scalar_literal(value, dtype, False, repr(value))
    if is_complex(dtype):
        value = complex(value)
    elif is_inexact(dtype):
        if isinstance(value, complex):
            raise DTypeError(f"a complex number must not become {dtype}; got {value}")
        value = float(value)
    elif dtype == np.bool_:
        value = bool(value)
    else:
        whole = isinstance(value, int) or (
            not isinstance(value, complex) and float(value).is_integer()
        )
        if not whole:
            raise DTypeError(
                f"a number must fit the dtype {dtype} of the array beside it; got {value!r}",
                fix="Convert the array with astype, or use functx.numpy, which promotes.",
            )
        value = int(value)
        low, high = _integer_bounds(dtype)
        if not low <= value <= high:
            raise ValueRangeError(
                f"a Python int must fit the dtype that it gets; got {value} for {dtype}",
                fix="Convert the array with astype, or give a wider dtype.",
            )
    return scalar_literal(value, dtype, False, repr(value))


def minus_one(dtype: DType) -> Literal:
    """-1 in `dtype`; of unsigned integers the highest, with which 1 adds up to 0."""
    return literal(_integer_bounds(dtype)[1] if kind(dtype) == "u" else -1, dtype)


@lru_cache(maxsize=64)
def _integer_bounds(dtype: DType) -> tuple[int, int]:
    return int(iinfo(dtype).min), int(iinfo(dtype).max)


def is_finite_literal(x: Any, but_zero: bool = False) -> bool:
    """Whether `x`, an operand of a rule, is a number written in the program, and finite.

    With `but_zero`, not if it is 0.
    """
    atom = getattr(x, "atom", x)
    if type(atom) is not Literal or (but_zero and not atom.value):
        return False
    return is_finite(atom.value)


def promote_scalars(*args: Any) -> tuple[Any, ...]:
    """`args` with Python scalars made literals of the dtype of the first array among them."""
    scalars = [type(x) in PYTHON_SCALARS for x in args]
    if True not in scalars or False not in scalars:
        return args
    x = args[scalars.index(False)]
    dtype = aval_of(x).dtype
    return tuple(literal(y, dtype) if type(y) in PYTHON_SCALARS else y for y in args)


def canonical_axis(axis: Any, ndim: int, name: str = "axis") -> int:
    """`axis` in `0 <= axis < ndim`, counted from the end when negative."""
    try:
        number = index(axis)
    except TypeError:
        raise ArgumentError(f"{name} must be an integer; got {short_repr(axis)}") from None
    if not -ndim <= number < ndim:
        raise AxisError(
            f"{name} must be in [{-ndim}, {ndim}) for an array of {ndim} dimensions; got {axis}"
        )
    return number % ndim


def is_sequence_of_ints(integers: Any) -> bool:
    """Whether `integers` are a sequence of them, or an array, rather than one."""
    return isinstance(integers, Sequence) or getattr(integers, "ndim", 0) > 0


def canonical_axes(axes: Any, ndim: int, name: str = "axis") -> tuple[int, ...]:
    """`axes`, an int, several, or None for all, as distinct non-negative ints in order given."""
    if axes is None:
        return tuple(range(ndim))
    if not isinstance(axes, (tuple, list)):
        axes = tuple(axes) if is_sequence_of_ints(axes) else (axes,)
    canonical = tuple(canonical_axis(axis, ndim, name) for axis in axes)
    if len(set(canonical)) != len(canonical):
        raise AxisError(f"{name} must name each axis once; got {tuple(axes)}")
    return canonical


def canonical_axis_sequence(axes: Any, ndim: int, name: str) -> tuple[int, ...]:
    """`axes`, a sequence of ints, as `canonical_axes` makes them; an int or None is none."""
    try:
        given = tuple(axes)
    except TypeError:
        raise ArgumentError(f"{name} must be a sequence of integers; got {axes!r}") from None
    return canonical_axes(given, ndim, name)


def check_axes(op: str, axes: Any, ndim: int) -> None:
    """Raise AxisError unless `axes`, one or several, are distinct and count from the start."""
    several = (axes,) if isinstance(axes, int) else axes
    if len(set(several)) != len(several) or not all(0 <= axis < ndim for axis in several):
        raise AxisError(f"{op}: each axis must be in [0, {ndim}), and named once; got {axes}")


def canonical_shape(shape: Any, name: str = "shape") -> tuple[int, ...]:
    """`shape`, an int or a sequence, as a tuple of non-negative ints."""
    try:
        dims = tuple([index(n) for n in (shape if is_sequence_of_ints(shape) else (shape,))])
    except ConcretizationError as error:
        raise ArgumentError(
            f"{name} must be made of integers known while tracing; got {short_repr(shape)}",
            *error.details,
            fix="Make the argument static (static_argnums, a closure).",
        ) from None
    except TypeError:
        raise ArgumentError(
            f"{name} must be made of integers known while tracing; got {short_repr(shape)}",
            fix="Pass a tuple of ints, or one int.",
        ) from None
    if any(n < 0 for n in dims):
        raise ArgumentError(f"{name} must not be negative; got {dims}")
    if any(n >= 2**63 for n in dims):
        raise ArgumentError(f"{name} must be less than 2**63; got {dims}")
    return dims


def tuple_delete(items: Sequence[int], left_out: Sequence[int]) -> tuple[int, ...]:
    """The items at positions not in `left_out`."""
    return tuple(n for i, n in enumerate(items) if i not in left_out)


def batch_size(args: Sequence[Any], dims: Sequence[int | None]) -> int:
    """The length of the batch that operands have along `dims`, or of the one at work."""
    for x, d in zip(args, dims, strict=True):
        if d is not None:
            return x.shape[d]  # type: ignore[no-any-return]
    axis = batched_axis()
    assert axis is not None, "nothing is batched"
    return axis.size
