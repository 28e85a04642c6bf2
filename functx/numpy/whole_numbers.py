"""What makes whole numbers: division with a remainder, common divisors, rounding."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from ml_dtypes import iinfo

from functx.core.dtypes import is_inexact, kind
from functx.core.primitive import Primitive
from functx.core.program import Literal
from functx.core.tracing import aval_of, bind
from functx.numpy.creation import asarray
from functx.numpy.mutation import write_out
from functx.numpy.number_parts import copysign
from functx.numpy.promotion import (
    copy_array,
    number_literal_like,
    operand,
    promote,
    promote_inexact,
    returns_new_array,
)
from functx.numpy.ufuncs import (
    map_real_and_imag,
    promote_numeric,
    ufunc,
    with_name_and_doc,
    zero_literal,
)
from functx.ops import arithmetic, logical, numerics, rounding, selection
from functx.ops.arithmetic import BOOL, div, mul, rem, sub
from functx.ops.comparison import eq, gt, lt, ne
from functx.ops.conversion import convert_element_type
from functx.ops.logical import bitwise_and as both
from functx.ops.logical import bitwise_or as either
from functx.ops.shaping import zeros_like

__all__ = [
    "around",
    "ceil",
    "divmod",
    "fix",
    "floor",
    "floor_divide",
    "fmod",
    "gcd",
    "lcm",
    "mod",
    "modf",
    "remainder",
    "rint",
    "round",
    "trunc",
]


def _rounding_ufunc(name: str, primitive: Primitive, doc: str) -> Callable[..., Any]:
    """A function of floating point numbers to whole ones, which leaves integers as they are."""

    def function(x: Any, /, out: Any = None, *, where: Any = True) -> Any:
        if out is not None or where is not True:
            return write_out(name, function(x), out, where)
        x = operand(x)
        return copy_array(asarray(x)) if kind(aval_of(x).dtype) in "biu" else bind(primitive, (x,))

    return with_name_and_doc(function, name, doc)


@ufunc
def floor_divide(x: Any, y: Any, /) -> Any:
    """x / y rounded down; of integers, 0 where y is 0."""
    x, y = promote_numeric(x, y)
    dtype = aval_of(x).dtype
    if is_inexact(dtype):
        return _float_divmod(x, y)[0]
    safe = _nonzero_divisor(y)
    quotient = div(x, safe)
    if dtype.kind == "i":
        off = _needs_floor_correction(rem(x, safe), safe)
        quotient = sub(quotient, convert_element_type(off, dtype, aval_of(x).weak_type))
    if safe is y:
        return quotient
    return selection.select(eq(y, 0), number_literal_like(0, quotient), quotient)


@ufunc
def remainder(x: Any, y: Any, /) -> Any:
    """x - y * floor_divide(x, y), which has the sign of y; of integers, 0 where y is 0."""
    x, y = promote_numeric(x, y)
    if is_inexact(aval_of(x).dtype):
        return _floor_remainder(rem(x, y), y)
    safe = _nonzero_divisor(y)
    return _floor_remainder(rem(x, safe), safe)


mod = remainder


@ufunc
def fmod(x: Any, y: Any, /) -> Any:
    """The remainder of x / y rounded towards zero, with the sign of x; of integers, 0 where y is 0."""
    x, y = promote_numeric(x, y)
    return rem(x, y if is_inexact(aval_of(x).dtype) else _nonzero_divisor(y))


@ufunc
def divmod(x: Any, y: Any, /) -> Any:
    """The pair of `floor_divide(x, y)` and `remainder(x, y)`."""
    x, y = promote_numeric(x, y)
    if is_inexact(aval_of(x).dtype):
        return _float_divmod(x, y)
    return floor_divide(x, y), remainder(x, y)


def _nonzero_divisor(y: Any) -> Any:
    """The integers `y` with 1 in place of 0: by those the division of any machine is defined."""
    if type(y) is Literal and y.value != 0:
        return y
    return selection.select(eq(y, 0), number_literal_like(1, y), y)


def _needs_floor_correction(r: Any, y: Any) -> Any:
    """Where rounding x / y towards zero, with the remainder r, rounded it up."""
    if type(y) is Literal and y.value > 0:
        return lt(r, 0)
    if is_inexact(aval_of(r).dtype):
        return both(ne(r, 0), ne(lt(r, 0), lt(y, 0)))
    return both(ne(r, 0), lt(logical.bitwise_xor(r, y), 0))


def _floor_remainder(r: Any, y: Any) -> Any:
    """The remainder `r` of truncated division, moved to the side of zero that `y` is on."""
    return (
        r
        if aval_of(r).dtype.kind == "u"
        else _correct_remainder(r, y, _needs_floor_correction(r, y))
    )


def _correct_remainder(r: Any, y: Any, off: Any) -> Any:
    moved = selection.select(off, arithmetic.add(r, y), r)
    return numerics.copy_zero_sign(moved, y) if is_inexact(aval_of(r).dtype) else moved


def _float_divmod(x: Any, y: Any) -> tuple[Any, Any]:
    # (x - r) / y is within rounding of a whole number, where x / y may be rounded across one.
    r = rem(x, y)
    off = _needs_floor_correction(r, y)
    quotient = rounding.round(div(sub(x, r), y), to_even=True)
    quotient = selection.select(off, sub(quotient, number_literal_like(1.0, x)), quotient)
    # A zero has the sign of x / y, and what rounding leaves at y = 0 is x / y itself.
    plain = div(x, y)
    quotient = selection.select(eq(quotient, 0), rounding.floor(plain), quotient)
    return selection.select(eq(y, 0), plain, quotient), _correct_remainder(r, y, off)


@ufunc
def gcd(x: Any, y: Any, /) -> Any:
    """The greatest common divisor of |x| and |y|."""
    return numerics.gcd(*promote_numeric(x, y))


@ufunc
def lcm(x: Any, y: Any, /) -> Any:
    """The least common multiple of |x| and |y|."""
    x, y = promote_numeric(x, y)
    divisor = numerics.gcd(x, y)
    safe = _nonzero_divisor(divisor)
    return mul(arithmetic.abs(x), div(arithmetic.abs(y), safe))


floor = _rounding_ufunc("floor", rounding.Floor(), "The largest whole number not above x.")
ceil = _rounding_ufunc("ceil", rounding.Ceil(), "The smallest whole number not below x.")


@ufunc
@returns_new_array
def trunc(x: Any, /) -> Any:
    """The whole part of `x`: rounded towards zero."""
    x = operand(x)
    if kind(aval_of(x).dtype) in "biu":
        return asarray(x)
    return selection.select(lt(x, zero_literal(x)), rounding.ceil(x), rounding.floor(x))


fix = trunc


@ufunc
def rint(x: Any, /) -> Any:
    """The nearest whole number, halves to the even one, as floating point."""
    return map_real_and_imag(lambda x: rounding.round(x, to_even=True), *promote_inexact(x))


def round(a: Any, decimals: int = 0, out: Any = None) -> Any:
    """`a` to so many decimals, halves to the even digit; negative `decimals` count tens."""
    a = asarray(a)
    dtype = aval_of(a).dtype
    if kind(dtype) in "biu":
        whole = decimals >= 0 or dtype == BOOL
        rounded = copy_array(a) if whole else _round_integers(a, 10 ** (-decimals))
        return write_out("round", rounded, out)
    if decimals == 0:
        return write_out("round", rint(a), out)
    scale = float(10 ** abs(decimals))
    apply, undo = (mul, div) if decimals > 0 else (div, mul)

    def to_decimals(x: Any) -> Any:
        scaled = apply(*promote(x, scale))
        rounded = undo(*promote(rint(scaled), scale))
        # A number too large to be scaled is whole.
        return selection.select(rounding.is_finite(scaled), rounded, rint(x))

    return write_out("round", map_real_and_imag(to_decimals, a), out)


around = round


def _round_integers(x: Any, unit: int) -> Any:
    """The multiple of `unit` nearest to `x`, halves to the even one."""
    dtype = aval_of(x).dtype
    if unit > iinfo(dtype).max:
        return zeros_like(x)
    quotient, r = floor_divide(x, unit), remainder(x, unit)
    rest = sub(unit, r)
    odd = ne(rem(quotient, 2), 0)
    up = either(gt(r, rest), both(eq(r, rest), odd))
    return mul(arithmetic.add(quotient, convert_element_type(up, dtype)), unit)


@ufunc
def modf(x: Any, /) -> Any:
    """The pair of the fractional and the whole part of `x`, both with its sign."""
    (x,) = promote_inexact(x)
    whole = trunc(x)
    infinite = eq(arithmetic.abs(x), math.inf)
    return selection.select(infinite, copysign(0.0, x), sub(x, whole)), whole
