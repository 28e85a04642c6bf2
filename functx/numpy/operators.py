"""Elementwise arithmetic, comparisons, logical and bitwise functions, and tests for equality."""

from __future__ import annotations

import numpy as np

from functx import ops
from functx.core.binding import bind
from functx.core.errors import DTypeError, ShapeError, ValueRangeError
from functx.core.primitive import Primitive
from functx.core.tracer import aval_of
from functx.core.types import is_complex, is_inexact
from functx.core.typing import ArrayLike, ArrayOrList, Keys, Out, Value
from functx.numpy.array_creation import asarray
from functx.numpy.eager_programs import as_one_program
from functx.numpy.floating_point import isfinite, isnan, real_and_imag
from functx.numpy.mutation import write_out
from functx.numpy.promotion import (
    bind_binary,
    broadcast,
    copy_array,
    copy_if_same_memory,
    operand,
    promote,
    promote_inexact,
    promote_real,
    returns_new_array,
)
from functx.numpy.ufuncs import (
    BinaryUfunc,
    as_boolean,
    binary_ufunc,
    broadcast_inexact,
    inexact_binary_ufunc,
    make_ufunc,
    promote_numeric,
    unary_ufunc,
    with_name_and_doc,
)
from functx.ops import arithmetic, logic, powers, transcendental
from functx.ops.operands import literal

__all__ = [
    "abs",
    "absolute",
    "add",
    "allclose",
    "array_equal",
    "array_equiv",
    "bitwise_and",
    "bitwise_count",
    "bitwise_invert",
    "bitwise_left_shift",
    "bitwise_not",
    "bitwise_or",
    "bitwise_right_shift",
    "bitwise_xor",
    "divide",
    "equal",
    "fabs",
    "float_power",
    "greater",
    "greater_equal",
    "invert",
    "isclose",
    "left_shift",
    "less",
    "less_equal",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "multiply",
    "negative",
    "not_equal",
    "positive",
    "pow",
    "power",
    "reciprocal",
    "right_shift",
    "sign",
    "square",
    "subtract",
    "true_divide",
]


def _comparison_ufunc(name: str, primitive: Primitive, doc: str) -> BinaryUfunc[Value]:
    def function(
        x: ArrayOrList | Keys,
        y: ArrayOrList | Keys,
        /,
        out: Out = None,
        *,
        where: ArrayOrList = True,
    ) -> Value:
        if out is not None or where is not True:
            return write_out(name, function(x, y), out, where)
        try:
            return bind_binary(primitive, x, y)
        except (ValueRangeError, DTypeError):
            return _compare_general(primitive, x, y)

    return with_name_and_doc(function, name, doc)


def _compare_general(primitive: Primitive, x: ArrayOrList, y: ArrayOrList) -> Value:
    """The comparison of integers with a Python int out of their range, or of complex numbers."""
    if type(y) is int:
        x, y = _out_of_range_operands(x, y)
    elif type(x) is int:
        y, x = _out_of_range_operands(y, x)
    x, y = broadcast(*promote(x, y))
    if not is_complex(aval_of(x).dtype):
        return bind(primitive, (x, y))
    re, im = zip(real_and_imag(x), real_and_imag(y), strict=True)
    return logic.select(ops.eq(*re), bind(primitive, im), bind(primitive, re))


def _out_of_range_operands(x: ArrayOrList, number: int) -> tuple[ArrayLike, ArrayLike]:
    """Operands that compare as the integers `x` with a `number` out of the range of their dtype."""
    x = operand(x)
    if aval_of(x).dtype.kind not in "iu":
        return x, number
    above = int(number > 0)
    return ops.constant_like(x, 1 - above), above


def _logical_ufunc(name: str, primitive: Primitive, doc: str) -> BinaryUfunc[Value]:
    def function(
        x: ArrayOrList, y: ArrayOrList, /, out: Out = None, *, where: ArrayOrList = True
    ) -> Value:
        if out is not None or where is not True:
            return write_out(name, function(x, y), out, where)
        return bind(primitive, broadcast(as_boolean(x), as_boolean(y)))

    return with_name_and_doc(function, name, doc)


add = binary_ufunc("add", arithmetic.Add(), "x + y; of booleans, whether either is True.")
subtract = binary_ufunc("subtract", arithmetic.Sub(), "x - y, which booleans do not have.")
multiply = binary_ufunc("multiply", arithmetic.Mul(), "x * y; of booleans, whether both are True.")
divide = inexact_binary_ufunc("divide", arithmetic.Div(), "x / y; integers become floating point.")
true_divide = divide
negative = unary_ufunc("negative", arithmetic.Neg(), "-x, which booleans do not have.")
sign = unary_ufunc("sign", arithmetic.Sign(), "-1, 0 or 1; for complex x, x / |x|, and 0 at 0.")


@make_ufunc
def fabs(x: ArrayOrList, /) -> Value:
    """The magnitude of real x, as floating point; DTypeError for complex x."""
    return ops.abs(*promote_real("fabs", x))


@make_ufunc
@returns_new_array
def positive(x: ArrayOrList, /) -> Value:
    """`x` itself, as an array."""
    return asarray(x)


@make_ufunc
def absolute(x: ArrayOrList, /) -> Value:
    """The magnitude of `x`, real for complex `x`; its derivative at 0 is 0."""
    x = operand(x)
    return copy_array(asarray(x)) if aval_of(x).dtype == ops.BOOL else arithmetic.abs(x)


abs = absolute


@make_ufunc
def square(x: ArrayOrList, /) -> Value:
    """x * x."""
    return powers.square(*promote_numeric(x))


@make_ufunc
def reciprocal(x: ArrayOrList, /) -> Value:
    """1 / x; integers become floating point."""
    return powers.reciprocal(*promote_inexact(x))


@make_ufunc
def power(x: ArrayOrList, y: ArrayOrList, /) -> Value:
    """x to the power y; a Python number as `y` gives a shorter program.

    Integers have no negative powers: a Python int raises ValueRangeError, and elements of an
    integer array give 0 where the true result is a fraction.
    """
    if type(y) is int or (type(y) is float and y in _SHORT_POWERS):
        x = operand(x)
        result = _static_power(x, y)
        if result is not None:
            return copy_if_same_memory(result, x)
    return powers.pow(*promote_numeric(x, y))


_SHORT_POWERS = (0.5, *(float(n) for n in range(-8, 9)))


def _static_power(x: ArrayLike, y: float) -> Value | None:
    """`x` to a power known while tracing; None if only the general function gives the right dtype."""
    dtype = aval_of(x).dtype
    if type(y) is float:
        if not is_inexact(dtype):
            return None
        if y == 0.5:
            return transcendental.sqrt(x)
    elif not is_inexact(dtype):
        if y < 0:
            raise ValueRangeError(
                f"power: integers must not be raised to negative powers; got {aval_of(x)!r} to {y}",
                fix="Convert the base with astype(float), or write a float as the exponent.",
            )
        (x,) = promote_numeric(x)
    return powers.square(x) if y == 2 else powers.integer_pow(x, int(y))


@make_ufunc
def float_power(x: ArrayOrList, y: ArrayOrList, /) -> Value:
    """x to the power y, in floating point."""
    return power(*promote_inexact(x, y))


equal = _comparison_ufunc("equal", logic.Eq(), "x == y; False where either is nan.")
not_equal = _comparison_ufunc("not_equal", logic.Ne(), "x != y; True where either is nan.")
less = _comparison_ufunc("less", logic.Lt(), "x < y; complex numbers by their real parts first.")
less_equal = _comparison_ufunc(
    "less_equal", logic.Le(), "x <= y; complex numbers by their real parts first."
)
greater = _comparison_ufunc(
    "greater", logic.Gt(), "x > y; complex numbers by their real parts first."
)
greater_equal = _comparison_ufunc(
    "greater_equal", logic.Ge(), "x >= y; complex numbers by their real parts first."
)
logical_and = _logical_ufunc("logical_and", logic.And(), "Whether both x and y are not zero.")
logical_or = _logical_ufunc("logical_or", logic.Or(), "Whether x or y is not zero.")
logical_xor = _logical_ufunc("logical_xor", logic.Xor(), "Whether just one of x and y is not zero.")
bitwise_and = binary_ufunc("bitwise_and", logic.And(), "x & y, of integers or booleans.")
bitwise_or = binary_ufunc("bitwise_or", logic.Or(), "x | y, of integers or booleans.")
bitwise_xor = binary_ufunc("bitwise_xor", logic.Xor(), "x ^ y, of integers or booleans.")
bitwise_not = unary_ufunc("bitwise_not", logic.Not(), "~x, of integers or booleans.")
invert = bitwise_invert = bitwise_not


@make_ufunc
def logical_not(x: ArrayOrList, /) -> Value:
    """Whether `x` is zero."""
    x = operand(x)
    dtype = aval_of(x).dtype
    return logic.bitwise_not(x) if dtype == ops.BOOL else ops.eq(x, literal(0, dtype))


@make_ufunc
def left_shift(x: ArrayOrList, y: ArrayOrList, /) -> Value:
    """x << y; 0 once y reaches the number of bits."""
    return logic.shift_left(*promote_numeric(x, y))


@make_ufunc
def right_shift(x: ArrayOrList, y: ArrayOrList, /) -> Value:
    """x >> y; the sign of signed integers is kept."""
    x, y = promote_numeric(x, y)
    unsigned = aval_of(x).dtype.kind == "u"
    return (logic.shift_right_logical if unsigned else logic.shift_right_arithmetic)(x, y)


bitwise_left_shift, bitwise_right_shift = left_shift, right_shift


@make_ufunc
def bitwise_count(x: ArrayOrList, /) -> Value:
    """The number of bits set in the magnitude of the integer `x`, as uint8."""
    (x,) = promote_numeric(x)
    return ops.convert_element_type(logic.population_count(arithmetic.abs(x)), np.uint8)


@as_one_program
def isclose(
    a: ArrayOrList,
    b: ArrayOrList,
    rtol: ArrayLike = 1e-05,
    atol: ArrayLike = 1e-08,
    equal_nan: bool = False,
) -> Value:
    """Whether |a - b| <= atol + rtol * |b|; equal infinities are close."""
    a, b = broadcast_inexact(a, b)
    difference, magnitude = absolute(ops.sub(a, b)), absolute(b)
    is_close = ops.bitwise_and(
        less_equal(difference, add(atol, multiply(rtol, magnitude))), isfinite(b)
    )
    is_close = ops.bitwise_or(is_close, ops.eq(a, b))
    return ops.bitwise_or(is_close, ops.bitwise_and(isnan(a), isnan(b))) if equal_nan else is_close


@as_one_program
def allclose(
    a: ArrayOrList,
    b: ArrayOrList,
    rtol: ArrayLike = 1e-05,
    atol: ArrayLike = 1e-08,
    equal_nan: bool = False,
) -> Value:
    """Whether `isclose` is True for all elements."""
    from functx.numpy.reductions import all

    return all(isclose(a, b, rtol, atol, equal_nan))


def array_equal(a1: ArrayOrList, a2: ArrayOrList, equal_nan: bool = False) -> Value:
    """Whether two arrays have the same shape and equal elements."""
    a1, a2 = operand(a1), operand(a2)
    if aval_of(a1).shape != aval_of(a2).shape:
        return ops.full((), False)
    return _all_equal(a1, a2, equal_nan)


def array_equiv(a1: ArrayOrList | Keys, a2: ArrayOrList | Keys) -> Value:
    """Whether two arrays broadcast together and then have equal elements."""
    try:
        return _all_equal(operand(a1), operand(a2), False)
    except ShapeError:
        return ops.full((), False)


def _all_equal(a: ArrayLike, b: ArrayLike, equal_nan: bool) -> Value:
    from functx.numpy.reductions import all

    same = equal(a, b)
    return all(ops.bitwise_or(same, ops.bitwise_and(isnan(a), isnan(b))) if equal_nan else same)


pow = power
