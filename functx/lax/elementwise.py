"""Elementwise operations by JAX's names: operands of one dtype, and of one shape or scalars.

Nothing is promoted: only Python numbers take the dtype of the array beside them.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

from functx.core.errors import ArgumentError, ValueRangeError
from functx.core.tracing import aval_of
from functx.ops import arithmetic, complexes, conversion, rounding, selection
from functx.ops.arithmetic import (
    abs,
    add,
    div,
    max,
    min,
    mul,
    neg,
    pow,
    reciprocal,
    rem,
    sign,
    square,
    sub,
)
from functx.ops.comparison import eq, ge, gt, le, lt, ne
from functx.ops.complexes import conj, imag, real
from functx.ops.exponential import cbrt, exp, exp2, expm1, log, log1p, logistic, rsqrt, sqrt
from functx.ops.logical import (
    bitwise_and,
    bitwise_not,
    bitwise_or,
    bitwise_xor,
    clz,
    population_count,
    shift_left,
    shift_right_arithmetic,
    shift_right_logical,
)
from functx.ops.rounding import ceil, floor, is_finite
from functx.ops.selection import select_n
from functx.ops.special import digamma, erf, erf_inv, erfc, lgamma, polygamma
from functx.ops.trigonometric import (
    acos,
    acosh,
    asin,
    asinh,
    atan,
    atan2,
    atanh,
    cos,
    cosh,
    sin,
    sinh,
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
    return rounding.round(x, to_even=name == "TO_NEAREST_EVEN")


def clamp(min: Any, x: Any, max: Any) -> Any:
    """`x` with what lies below `min` or above `max` moved there; nan where any of them is."""
    return selection.clamp(min, x, max)


def select(pred: Any, on_true: Any, on_false: Any) -> Any:
    """`on_true` where the boolean `pred` holds, else `on_false`."""
    return selection.select(pred, on_true, on_false)


def complex(x: Any, y: Any) -> Any:
    """The complex numbers with the real parts `x` and the imaginary parts `y`."""
    return complexes.complex(x, y)


def integer_pow(x: Any, y: int) -> Any:
    """`x` to the power of the Python integer `y`, elementwise."""
    if not isinstance(y, int):
        raise ArgumentError(f"integer_pow: the exponent must be a Python int; got {y!r}")
    return arithmetic.integer_pow(x, y)


def nextafter(x1: Any, x2: Any) -> Any:
    """The number of the dtype that follows `x1` on the way to `x2`, elementwise."""
    return arithmetic.nextafter(x1, x2)


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
