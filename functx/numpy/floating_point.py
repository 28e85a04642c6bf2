"""Elementwise functions of the parts of numbers, tests for nan and infinity, rounding, division."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from ml_dtypes import finfo, iinfo

from functx import ops
from functx.core.binding import bind
from functx.core.errors import DTypeError
from functx.core.primitive import Primitive
from functx.core.program import Literal
from functx.core.tracer import Tracer, aval_of
from functx.core.types import is_complex, is_floating, is_inexact, kind
from functx.core.typing import ArrayLike, ArrayOrList, Out, Value
from functx.numpy.array_creation import asarray
from functx.numpy.mutation import assign_array, write_out
from functx.numpy.promotion import (
    broadcast,
    broadcast_to,
    copy_array,
    number_literal_like,
    operand,
    promote,
    promote_inexact,
    returns_new_array,
)
from functx.numpy.ufuncs import (
    UnaryUfunc,
    broadcast_inexact,
    inexact_binary_ufunc,
    make_ufunc,
    map_real_and_imag,
    promote_numeric,
    rad2deg,
    where,
    with_name_and_doc,
    zero_literal,
)
from functx.ops import arithmetic, conversion, logic, special, transcendental
from functx.ops.exponents import exponent_of, mantissa_of, scale_by_power_of_two
from functx.ops.operands import as_int, literal

__all__ = [
    "angle",
    "around",
    "ceil",
    "conj",
    "conjugate",
    "copysign",
    "divmod",
    "fix",
    "floor",
    "floor_divide",
    "fmod",
    "frexp",
    "gcd",
    "imag",
    "iscomplex",
    "isfinite",
    "isinf",
    "isnan",
    "isneginf",
    "isposinf",
    "isreal",
    "lcm",
    "ldexp",
    "mod",
    "modf",
    "nan_to_num",
    "nextafter",
    "real",
    "remainder",
    "rint",
    "round",
    "signbit",
    "trunc",
]


def real_and_imag(x: Value) -> tuple[Value, Value]:
    return conversion.real(x), conversion.imag(x)


nextafter = inexact_binary_ufunc(
    "nextafter", arithmetic.NextAfter(), "The number of its dtype that follows x on the way to y."
)


def _float_predicate(
    x: ArrayOrList,
    test: Callable[[Value], Value],
    otherwise: bool,
    join: Callable[..., Value] = ops.bitwise_or,
) -> Value:
    """`test(x)` of floating-point `x`; `join` of both parts of complex `x`; else `otherwise`."""
    x = operand(x)
    aval = aval_of(x)
    if is_complex(aval.dtype):
        return join(*[test(part) for part in real_and_imag(x)])
    return test(x) if is_floating(aval.dtype) else ops.full(aval.shape, otherwise)


@make_ufunc
def isfinite(x: ArrayOrList, /) -> Value:
    """Whether each element is neither infinite nor nan."""
    return _float_predicate(x, conversion.is_finite, True, ops.bitwise_and)


@make_ufunc
def isnan(x: ArrayOrList, /) -> Value:
    """Whether each element is nan."""
    return _float_predicate(x, lambda x: ops.ne(x, x), False)


@make_ufunc
def isinf(x: ArrayOrList, /) -> Value:
    """Whether each element is infinite."""
    return _float_predicate(
        x, lambda x: ops.eq(arithmetic.abs(x), literal(math.inf, aval_of(x).dtype)), False
    )


@make_ufunc
def isposinf(x: ArrayOrList, /) -> Value:
    """Whether each element is infinity."""
    return _float_predicate(_check_real("isposinf", x), lambda x: ops.eq(x, math.inf), False)


@make_ufunc
def isneginf(x: ArrayOrList, /) -> Value:
    """Whether each element is -infinity."""
    return _float_predicate(_check_real("isneginf", x), lambda x: ops.eq(x, -math.inf), False)


def _check_real(name: str, x: ArrayOrList) -> ArrayLike:
    x = operand(x)
    if is_complex(aval_of(x).dtype):
        raise DTypeError(f"{name}: the array must not be complex; got {aval_of(x)!r}")
    return x


def nan_to_num(
    x: ArrayOrList,
    copy: bool = True,
    nan: ArrayLike = 0.0,
    posinf: ArrayLike | None = None,
    neginf: ArrayLike | None = None,
) -> Value:
    """`x` with nan replaced by `nan`, and infinities by `posinf` and `neginf`.

    By default infinities become the largest finite numbers. Without `copy`, the result is written
    to `x`, if it is a traced or a NumPy array.
    """
    given, x = x, asarray(x)
    dtype = aval_of(x).dtype
    if not is_inexact(dtype):
        return copy_array(x) if copy else x
    limits = finfo(dtype)
    posinf = float(limits.max) if posinf is None else posinf
    neginf = float(limits.min) if neginf is None else neginf

    def replaced(x: Value) -> Value:
        for condition, number in (
            (ops.ne(x, x), nan),
            (ops.eq(x, math.inf), posinf),
            (ops.eq(x, -math.inf), neginf),
        ):
            x = where(condition, number, x)
        return x

    result = map_real_and_imag(replaced, x)
    in_place = not copy and isinstance(given, (Tracer, np.ndarray))
    return assign_array(given, result, "nan_to_num(copy=False)") if in_place else result


@make_ufunc
def signbit(x: ArrayOrList, /) -> Value:
    """Whether the sign bit is set, as it is for -0.0."""
    x = operand(x)
    aval = aval_of(x)
    if is_floating(aval.dtype):
        return ops.lt(ops.bitcast_convert_type(x, f"int{8 * aval.dtype.itemsize}"), 0)
    return ops.full(aval.shape, False) if aval.dtype.kind in "bu" else ops.lt(x, zero_literal(x))


@make_ufunc
def copysign(x: ArrayOrList, y: ArrayOrList, /) -> Value:
    """The magnitude of x with the sign of y."""
    x, y = broadcast_inexact(x, y)
    return logic.select(ops.ne(signbit(x), signbit(y)), ops.neg(x), x)


@make_ufunc
def ldexp(x: ArrayOrList, n: ArrayOrList, /) -> Value:
    """x * 2**n for integers n, exact unless the result is out of range."""
    (x,), n = promote_inexact(x), operand(n)
    if kind(aval_of(n).dtype) not in "biu":
        raise DTypeError(f"ldexp: the exponent must be integers; got {aval_of(n)!r}")
    dtype = aval_of(n).dtype
    if dtype.itemsize >= 4:
        # Beyond the exponents of all types, and in the range of int32.
        n = ops.clamp(0 if dtype.kind == "u" else -4096, n, 4096)
    x, n = broadcast(x, ops.convert_element_type(n, np.int32))
    return scale_by_power_of_two(x, n)


@make_ufunc
def frexp(x: ArrayOrList, /) -> tuple[Value, Value]:
    """The pair of m with 0.5 <= |m| < 1 and the integer n that make x = m * 2**n, also of subnormal x."""
    (x,) = promote_inexact(x)
    dtype = aval_of(x).dtype
    if not is_floating(dtype):
        raise DTypeError(f"frexp: the array must be real; got {aval_of(x)!r}")
    exponent = exponent_of(x)
    return mantissa_of(x, exponent), exponent


@make_ufunc
def real(x: ArrayOrList, /) -> Value:
    """The real part."""
    x = operand(x) if isinstance(x, np.ndarray) else asarray(x)
    return conversion.real(x) if is_complex(aval_of(x).dtype) else x


@make_ufunc
def imag(x: ArrayOrList, /) -> Value:
    """The imaginary part, 0 for real `x`."""
    x = operand(x)
    if is_complex(aval_of(x).dtype):
        return conversion.imag(x)
    # Read-only, as in NumPy.
    return broadcast_to(ops.full((), zero_literal(x)), aval_of(x).shape)


@make_ufunc
@returns_new_array
def conjugate(x: ArrayOrList, /) -> Value:
    """The complex conjugate."""
    x = asarray(x)
    return conversion.conj(x) if is_complex(aval_of(x).dtype) else x


conj = conjugate


def angle(z: ArrayOrList, deg: bool = False) -> Value:
    """The angle of `z` in the complex plane, in (-pi, pi], or in degrees."""
    (z,) = promote_inexact(z)
    if is_complex(aval_of(z).dtype):
        result = transcendental.atan2(conversion.imag(z), conversion.real(z))
    else:
        result = logic.select(
            signbit(z), number_literal_like(math.pi, z), number_literal_like(0.0, z)
        )
        result = logic.select(ops.ne(z, z), z, result)
    return rad2deg(result) if deg else result


@make_ufunc
def iscomplex(x: ArrayOrList, /) -> Value:
    """Whether each element has an imaginary part that is not 0."""
    x = operand(x)
    aval = aval_of(x)
    return ops.ne(conversion.imag(x), 0) if is_complex(aval.dtype) else ops.full(aval.shape, False)


@make_ufunc
def isreal(x: ArrayOrList, /) -> Value:
    """Whether each element has an imaginary part of 0."""
    return logic.bitwise_not(iscomplex(x))


def _rounding_ufunc(name: str, primitive: Primitive, doc: str) -> UnaryUfunc[Value]:
    """A rounding function, which copies integers unchanged."""

    def function(x: ArrayOrList, /, out: Out = None, *, where: ArrayOrList = True) -> Value:
        if out is not None or where is not True:
            return write_out(name, function(x), out, where)
        x = operand(x)
        return copy_array(asarray(x)) if kind(aval_of(x).dtype) in "biu" else bind(primitive, (x,))

    return with_name_and_doc(function, name, doc)


@make_ufunc
def floor_divide(x: ArrayOrList, y: ArrayOrList, /) -> Value:
    """x / y rounded down; of integers, 0 where y is 0."""
    x, y = promote_numeric(x, y)
    dtype = aval_of(x).dtype
    if is_inexact(dtype):
        return _float_divmod(x, y)[0]
    safe = _nonzero_divisor(y)
    quotient = ops.div(x, safe)
    if dtype.kind == "i":
        correction = _needs_floor_correction(ops.rem(x, safe), safe)
        quotient = ops.sub(
            quotient, ops.convert_element_type(correction, dtype, aval_of(x).weak_type)
        )
    if safe is y:
        return quotient
    return logic.select(ops.eq(y, 0), number_literal_like(0, quotient), quotient)


@make_ufunc
def remainder(x: ArrayOrList, y: ArrayOrList, /) -> Value:
    """x - y * floor_divide(x, y), which has the sign of y; of integers, 0 where y is 0."""
    x, y = promote_numeric(x, y)
    if is_inexact(aval_of(x).dtype):
        return _floor_remainder(ops.rem(x, y), y)
    safe = _nonzero_divisor(y)
    return _floor_remainder(ops.rem(x, safe), safe)


mod = remainder


@make_ufunc
def fmod(x: ArrayOrList, y: ArrayOrList, /) -> Value:
    """The remainder of x / y rounded towards zero, with the sign of x; of integers, 0 where y is 0."""
    x, y = promote_numeric(x, y)
    return ops.rem(x, y if is_inexact(aval_of(x).dtype) else _nonzero_divisor(y))


@make_ufunc
def divmod(x: ArrayOrList, y: ArrayOrList, /) -> tuple[Value, Value]:
    """The pair of `floor_divide(x, y)` and `remainder(x, y)`."""
    x, y = promote_numeric(x, y)
    if is_inexact(aval_of(x).dtype):
        return _float_divmod(x, y)
    return floor_divide(x, y), remainder(x, y)


def _nonzero_divisor(y: Value | Literal) -> Value | Literal:
    """The integers `y` with 1 in place of 0, since division by 0 is undefined."""
    if type(y) is Literal and y.value != 0:
        return y
    return logic.select(ops.eq(y, 0), number_literal_like(1, y), y)


def _needs_floor_correction(r: Value, y: Value | Literal) -> Value:
    """Whether truncation rounded x / y up, given the remainder `r`."""
    if type(y) is Literal and y.value > 0:
        return ops.lt(r, 0)
    if is_inexact(aval_of(r).dtype):
        return ops.bitwise_and(ops.ne(r, 0), ops.ne(ops.lt(r, 0), ops.lt(y, 0)))
    return ops.bitwise_and(ops.ne(r, 0), ops.lt(logic.bitwise_xor(r, y), 0))


def _floor_remainder(r: Value, y: Value | Literal) -> Value:
    """The remainder of floor division, from the remainder `r` of truncated division by `y`."""
    return (
        r
        if aval_of(r).dtype.kind == "u"
        else _correct_remainder(r, y, _needs_floor_correction(r, y))
    )


def _correct_remainder(r: Value, y: Value | Literal, correction: Value) -> Value:
    corrected = logic.select(correction, arithmetic.add(r, y), r)
    return special.copy_zero_sign(corrected, y) if is_inexact(aval_of(r).dtype) else corrected


def _float_divmod(x: Value, y: Value) -> tuple[Value, Value]:
    # (x - r) / y is an integer up to rounding; x / y may be rounded to the next integer.
    r = ops.rem(x, y)
    correction = _needs_floor_correction(r, y)
    quotient = ops.Round(to_even=True)(ops.div(ops.sub(x, r), y))
    quotient = logic.select(correction, ops.sub(quotient, number_literal_like(1.0, x)), quotient)
    # A zero has the sign of x / y, and at y = 0 the quotient is x / y.
    ratio = ops.div(x, y)
    quotient = logic.select(ops.eq(quotient, 0), conversion.floor(ratio), quotient)
    # A rounded quotient has no derivative, so that x / y must have none either.
    quotient = logic.select(ops.eq(y, 0), ops.stop_gradient(ratio), quotient)
    return quotient, _correct_remainder(r, y, correction)


@make_ufunc
def gcd(x: ArrayOrList, y: ArrayOrList, /) -> Value:
    """The greatest common divisor of |x| and |y|."""
    return special.gcd(*promote_numeric(x, y))


@make_ufunc
def lcm(x: ArrayOrList, y: ArrayOrList, /) -> Value:
    """The least common multiple of |x| and |y|."""
    x, y = promote_numeric(x, y)
    divisor = special.gcd(x, y)
    safe = _nonzero_divisor(divisor)
    return ops.mul(arithmetic.abs(x), ops.div(arithmetic.abs(y), safe))


floor = _rounding_ufunc("floor", conversion.Floor(), "The largest whole number not above x.")
ceil = _rounding_ufunc("ceil", conversion.Ceil(), "The smallest whole number not below x.")


@make_ufunc
@returns_new_array
def trunc(x: ArrayOrList, /) -> Value:
    """`x` rounded towards zero."""
    x = operand(x)
    if kind(aval_of(x).dtype) in "biu":
        return asarray(x)
    return logic.select(ops.lt(x, zero_literal(x)), conversion.ceil(x), conversion.floor(x))


fix = trunc


@make_ufunc
def rint(x: ArrayOrList, /) -> Value:
    """The nearest whole number, halves to the even one, as floating point."""
    return map_real_and_imag(ops.Round(to_even=True), *promote_inexact(x))


def round(a: ArrayOrList, decimals: int = 0, out: Out = None) -> Value:
    """`a` rounded to `decimals` digits behind the point, halves to the even digit.

    Negative `decimals` round to tens, hundreds and so on.
    """
    a, decimals = asarray(a), max(min(as_int("decimals", decimals), 308), -308)
    dtype = aval_of(a).dtype
    if kind(dtype) in "biu":
        is_exact = decimals >= 0 or dtype == ops.BOOL
        rounded = copy_array(a) if is_exact else _round_integers(a, 10 ** (-decimals))
        return write_out("round", rounded, out)
    if decimals == 0:
        return write_out("round", rint(a), out)
    scale = float(10 ** abs(decimals))
    apply, undo = (ops.mul, ops.div) if decimals > 0 else (ops.div, ops.mul)

    def to_decimals(x: Value) -> Value:
        scaled = apply(*promote(x, scale))
        rounded = undo(*promote(rint(scaled), scale))
        # A number too large to be scaled has no further digits.
        return logic.select(conversion.is_finite(scaled), rounded, x)

    return write_out("round", map_real_and_imag(to_decimals, a), out)


around = round


def _round_integers(x: Value, unit: int) -> Value:
    """The multiple of `unit` nearest to `x`, halves to the even multiple."""
    dtype = aval_of(x).dtype
    if unit > iinfo(dtype).max:
        return ops.zeros_like(x)
    quotient, r = floor_divide(x, unit), remainder(x, unit)
    complement = ops.sub(unit, r)
    is_odd = ops.ne(ops.rem(quotient, 2), 0)
    round_up = ops.bitwise_or(ops.gt(r, complement), ops.bitwise_and(ops.eq(r, complement), is_odd))
    return ops.mul(arithmetic.add(quotient, ops.convert_element_type(round_up, dtype)), unit)


@make_ufunc
def modf(x: ArrayOrList, /) -> tuple[Value, Value]:
    """The pair of the fractional and the integral part of `x`, both with the sign of `x`."""
    (x,) = promote_inexact(x)
    integral = trunc(x)
    infinite = ops.eq(arithmetic.abs(x), math.inf)
    return logic.select(infinite, copysign(0.0, x), ops.sub(x, integral)), integral
