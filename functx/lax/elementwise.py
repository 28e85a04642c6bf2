"""Elementwise operations by JAX's names: operands of one dtype, and of one rank or scalars.

Nothing is promoted: only Python numbers take the dtype of the array beside them. Dimensions of size
1 are broadcast.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from functools import wraps
from typing import Any

from functx import ops
from functx.core.errors import ArgumentError, ShapeError, ValueRangeError
from functx.core.tracing import aval_of
from functx.core.types import is_complex
from functx.ops import (
    arithmetic,
    conversion,
    logic,
    special,
    transcendental,
)
from functx.ops.arithmetic import abs, neg, reciprocal, sign, square
from functx.ops.conversion import ceil, floor, imag, is_finite, real
from functx.ops.logic import bitwise_not, clz, population_count, select_n
from functx.ops.special import digamma, erf, erf_inv, erfc, lgamma
from functx.ops.transcendental import (
    acos,
    acosh,
    asin,
    asinh,
    atan,
    atanh,
    cbrt,
    cos,
    cosh,
    exp,
    exp2,
    expm1,
    log,
    log1p,
    logistic,
    rsqrt,
    sin,
    sinh,
    sqrt,
    tan,
    tanh,
)

__all__ = [
    "RoundingMethod",
    "abs",
    "acos",
    "acosh",
    "add",
    "asin",
    "asinh",
    "atan",
    "atan2",
    "atanh",
    "bitcast_convert_type",
    "bitwise_and",
    "bitwise_not",
    "bitwise_or",
    "bitwise_xor",
    "cbrt",
    "ceil",
    "clamp",
    "clz",
    "complex",
    "conj",
    "convert_element_type",
    "cos",
    "cosh",
    "digamma",
    "div",
    "eq",
    "erf",
    "erf_inv",
    "erfc",
    "exp",
    "exp2",
    "expm1",
    "floor",
    "ge",
    "gt",
    "imag",
    "integer_pow",
    "is_finite",
    "le",
    "lgamma",
    "log",
    "log1p",
    "logistic",
    "lt",
    "max",
    "min",
    "mul",
    "ne",
    "neg",
    "nextafter",
    "polygamma",
    "population_count",
    "pow",
    "real",
    "reciprocal",
    "reduce_precision",
    "rem",
    "round",
    "rsqrt",
    "select",
    "select_n",
    "shift_left",
    "shift_right_arithmetic",
    "shift_right_logical",
    "sign",
    "sin",
    "sinh",
    "sqrt",
    "square",
    "sub",
    "tan",
    "tanh",
]


def with_unit_dim_broadcasting(operation: Callable[..., Any]) -> Callable[..., Any]:
    """`operation`, for operands of one rank, whose dimensions of size 1 are broadcast."""

    @wraps(operation)
    def broadcasted(*args: Any) -> Any:
        try:
            return operation(*args)
        except ShapeError:
            shapes = [aval_of(x).shape for x in args]
            shape = _broadcast_same_rank([s for s in shapes if s])
            if shape is None:
                raise
        dims = tuple(range(len(shape)))
        wide = [
            ops.broadcast_in_dim(x, shape, dims) if s not in ((), shape) else x
            for x, s in zip(args, shapes, strict=True)
        ]
        return operation(*wide)

    return broadcasted


def _broadcast_same_rank(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...] | None:
    """The shape that shapes of one rank broadcast to, None if there is none."""
    if len({len(shape) for shape in shapes}) != 1:
        return None
    sizes = [set(column) - {1} for column in zip(*shapes, strict=True)]
    if any(len(size) > 1 for size in sizes):
        return None
    return tuple([size.pop() if size else 1 for size in sizes])


add = with_unit_dim_broadcasting(arithmetic.add)
sub = with_unit_dim_broadcasting(arithmetic.sub)
mul = with_unit_dim_broadcasting(arithmetic.mul)
div = with_unit_dim_broadcasting(arithmetic.div)
rem = with_unit_dim_broadcasting(arithmetic.rem)
max = with_unit_dim_broadcasting(arithmetic.max)
min = with_unit_dim_broadcasting(arithmetic.min)
pow = with_unit_dim_broadcasting(arithmetic.pow)
atan2 = with_unit_dim_broadcasting(transcendental.atan2)
polygamma = with_unit_dim_broadcasting(special.polygamma)
eq = with_unit_dim_broadcasting(logic.eq)
ne = with_unit_dim_broadcasting(logic.ne)
lt = with_unit_dim_broadcasting(logic.lt)
le = with_unit_dim_broadcasting(logic.le)
gt = with_unit_dim_broadcasting(logic.gt)
ge = with_unit_dim_broadcasting(logic.ge)
bitwise_and = with_unit_dim_broadcasting(logic.bitwise_and)
bitwise_or = with_unit_dim_broadcasting(logic.bitwise_or)
bitwise_xor = with_unit_dim_broadcasting(logic.bitwise_xor)
shift_left = with_unit_dim_broadcasting(logic.shift_left)
shift_right_arithmetic = with_unit_dim_broadcasting(logic.shift_right_arithmetic)
shift_right_logical = with_unit_dim_broadcasting(logic.shift_right_logical)


@with_unit_dim_broadcasting
def complex(x: Any, y: Any) -> Any:
    """The complex numbers with the real parts `x` and the imaginary parts `y`."""
    return conversion.complex(x, y)


@with_unit_dim_broadcasting
def nextafter(x1: Any, x2: Any) -> Any:
    """The number of the dtype that follows `x1` on the way to `x2`, elementwise."""
    return arithmetic.nextafter(x1, x2)


def conj(x: Any) -> Any:
    """The complex conjugate of `x`, elementwise, a complex number also where `x` is real."""
    if is_complex(aval_of(x).dtype):
        return conversion.conj(x)
    return conversion.complex(x, 0.0)


class RoundingMethod(Enum):
    """Where `round` takes numbers that lie half way between two integers."""

    AWAY_FROM_ZERO = 0
    TO_NEAREST_EVEN = 1


def round(x: Any, rounding_method: Any = RoundingMethod.AWAY_FROM_ZERO) -> Any:
    """The nearest integer, elementwise, as a float; `rounding_method` decides between two."""
    name = getattr(rounding_method, "name", rounding_method)
    if name not in RoundingMethod.__members__:
        raise ValueRangeError(
            f"round: rounding_method must be a RoundingMethod; got {rounding_method!r}"
        )
    return conversion.round(x, to_even=name == "TO_NEAREST_EVEN")


def clamp(min: Any, x: Any, max: Any) -> Any:
    """`x` with what lies below `min` or above `max` moved there; nan where any of them is."""
    return logic.clamp(min, x, max)


def select(pred: Any, on_true: Any, on_false: Any) -> Any:
    """`on_true` where the boolean `pred` holds, else `on_false`."""
    return logic.select(pred, on_true, on_false)


def integer_pow(x: Any, y: int) -> Any:
    """`x` to the power of the Python integer `y`, elementwise."""
    if not isinstance(y, int):
        raise ArgumentError(f"integer_pow: the exponent must be a Python int; got {y!r}")
    return arithmetic.integer_pow(x, y)


def convert_element_type(operand: Any, new_dtype: Any) -> Any:
    """`operand` in `new_dtype`: floats to integers towards zero, numbers to bool by `x != 0`."""
    # None stands for the dtype that the operand has, which is then no longer weak.
    dtype = aval_of(operand).dtype if new_dtype is None else new_dtype
    return conversion.convert_element_type(operand, dtype)


def bitcast_convert_type(operand: Any, new_dtype: Any) -> Any:
    """The bits of `operand` read as `new_dtype`.

    A narrower dtype adds a last dimension, and a wider one takes it away.
    """
    return conversion.bitcast_convert_type(operand, new_dtype)


def reduce_precision(operand: Any, exponent_bits: int, mantissa_bits: int) -> Any:
    """`operand` rounded to a float of that many bits, in the dtype it has."""
    return conversion.reduce_precision(operand, exponent_bits, mantissa_bits)
