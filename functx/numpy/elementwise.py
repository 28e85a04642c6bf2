"""NumPy's elementwise functions: each output element from the input elements beside it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import wraps
from inspect import signature
from typing import Any

import numpy as np
from ml_dtypes import finfo, iinfo

from functx.core.dtypes import is_complex, is_floating, is_inexact, kind
from functx.core.errors import ArgumentError, DTypeError, ShapeError, ValueRangeError
from functx.core.primitive import Primitive
from functx.core.program import Literal
from functx.core.tracing import Tracer, aval_of, bind
from functx.numpy.creation import asarray
from functx.numpy.mutation import assign, into
from functx.numpy.promotion import (
    binary,
    broadcast,
    copied,
    never_aliased,
    number_like,
    operand,
    promote,
    promote_inexact,
)
from functx.ops import arithmetic, comparison, logical, numerics, rounding, selection
from functx.ops import complexes as parts
from functx.ops import exponential as exponentials
from functx.ops import trigonometric as angles
from functx.ops.arithmetic import BOOL, div, mul, neg, rem, sub
from functx.ops.comparison import eq, gt, lt, ne
from functx.ops.conversion import bitcast_convert_type, convert_element_type
from functx.ops.logical import bitwise_and as both
from functx.ops.logical import bitwise_or as either
from functx.ops.operands import PYTHON_SCALARS, literal
from functx.ops.selection import Select
from functx.ops.shaping import full, full_like, zeros_like

__all__ = [
    "abs",
    "absolute",
    "acos",
    "acosh",
    "add",
    "allclose",
    "angle",
    "arccos",
    "arccosh",
    "arcsin",
    "arcsinh",
    "arctan",
    "arctan2",
    "arctanh",
    "around",
    "array_equal",
    "array_equiv",
    "asin",
    "asinh",
    "atan",
    "atan2",
    "atanh",
    "bitwise_and",
    "bitwise_count",
    "bitwise_invert",
    "bitwise_left_shift",
    "bitwise_not",
    "bitwise_or",
    "bitwise_right_shift",
    "bitwise_xor",
    "cbrt",
    "ceil",
    "clip",
    "conj",
    "conjugate",
    "copysign",
    "cos",
    "cosh",
    "deg2rad",
    "degrees",
    "divide",
    "divmod",
    "equal",
    "exp",
    "exp2",
    "expm1",
    "fabs",
    "fix",
    "float_power",
    "floor",
    "floor_divide",
    "fmax",
    "fmin",
    "fmod",
    "frexp",
    "gcd",
    "greater",
    "greater_equal",
    "heaviside",
    "hypot",
    "imag",
    "invert",
    "isclose",
    "iscomplex",
    "isfinite",
    "isinf",
    "isnan",
    "isneginf",
    "isposinf",
    "isreal",
    "lcm",
    "ldexp",
    "left_shift",
    "less",
    "less_equal",
    "log",
    "log1p",
    "log2",
    "log10",
    "logaddexp",
    "logaddexp2",
    "logical_and",
    "logical_not",
    "logical_or",
    "logical_xor",
    "maximum",
    "minimum",
    "mod",
    "modf",
    "multiply",
    "nan_to_num",
    "negative",
    "nextafter",
    "not_equal",
    "piecewise",
    "positive",
    "pow",
    "power",
    "rad2deg",
    "radians",
    "real",
    "reciprocal",
    "remainder",
    "right_shift",
    "rint",
    "round",
    "select",
    "sign",
    "signbit",
    "sin",
    "sinc",
    "sinh",
    "sqrt",
    "square",
    "subtract",
    "tan",
    "tanh",
    "true_divide",
    "trunc",
    "where",
]

# Making functions of primitives.


def _ufunc(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` with the arguments `out` and `where` of NumPy's."""
    count = function.__code__.co_argcount

    @wraps(function)
    def call(*args: Any, out: Any = None, where: Any = True) -> Any:
        if len(args) == count + 1 and out is None:
            *args, out = args  # type: ignore[assignment]
        result = function(*args)
        if out is not None or where is not True:
            return into(function.__name__, result, out, where)
        return result

    return call


def _named(function: Callable[..., Any], name: str, doc: str) -> Callable[..., Any]:
    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    # Functions with rules of their own take all that can be given by position for operands.
    known = signature(function)
    parameters = [
        p.replace(kind=p.KEYWORD_ONLY) if p.name == "out" else p for p in known.parameters.values()
    ]
    function.__signature__ = known.replace(parameters=parameters)  # type: ignore[attr-defined]
    return function


def _unary(name: str, primitive: Primitive, doc: str) -> Callable[..., Any]:
    def function(x: Any, /, out: Any = None, *, where: Any = True) -> Any:
        if out is not None or where is not True:
            return into(name, function(x), out, where)
        return bind(primitive, (operand(x),))

    return _named(function, name, doc)


def _inexact(name: str, primitive: Primitive, doc: str) -> Callable[..., Any]:
    """A function of one argument, of which integers become floating point."""

    def function(x: Any, /, out: Any = None, *, where: Any = True) -> Any:
        if out is not None or where is not True:
            return into(name, function(x), out, where)
        if type(x) is Tracer and x.aval.dtype.kind in "fc":
            return bind(primitive, (x,))
        return bind(primitive, promote_inexact(x))

    return _named(function, name, doc)


def _binary(name: str, primitive: Primitive, doc: str) -> Callable[..., Any]:
    def function(x: Any, y: Any, /, out: Any = None, *, where: Any = True) -> Any:
        if out is not None or where is not True:
            return into(name, function(x, y), out, where)
        return binary(primitive, x, y)

    return _named(function, name, doc)


def _binary_inexact(name: str, primitive: Primitive, doc: str) -> Callable[..., Any]:
    def function(x: Any, y: Any, /, out: Any = None, *, where: Any = True) -> Any:
        if out is not None or where is not True:
            return into(name, function(x, y), out, where)
        if type(x) is Tracer and x.aval.dtype.kind in "fc":
            return binary(primitive, x, y)
        return bind(primitive, broadcast(*promote_inexact(x, y)))

    return _named(function, name, doc)


def _comparison(name: str, primitive: Primitive, doc: str) -> Callable[..., Any]:
    def function(x: Any, y: Any, /, out: Any = None, *, where: Any = True) -> Any:
        if out is not None or where is not True:
            return into(name, function(x, y), out, where)
        try:
            return binary(primitive, x, y)
        except (ValueRangeError, DTypeError):
            return _compared(primitive, x, y)

    return _named(function, name, doc)


def _compared(primitive: Primitive, x: Any, y: Any) -> Any:
    """The comparison of integers with a Python int beyond them, or of complex numbers."""
    if type(y) is int:
        x, y = _beyond(x, y)
    elif type(x) is int:
        y, x = _beyond(y, x)
    x, y = broadcast(*promote(x, y))
    if not is_complex(aval_of(x).dtype):
        return bind(primitive, (x, y))
    re, im = zip(_parts(x), _parts(y), strict=True)
    return selection.select(eq(*re), bind(primitive, im), bind(primitive, re))


def _beyond(x: Any, number: int) -> tuple[Any, Any]:
    """Two operands that compare as all integers `x` do with a `number` beyond their dtype."""
    x = operand(x)
    if aval_of(x).dtype.kind not in "iu":
        return x, number
    above = int(number > 0)
    return full_like(x, 1 - above), above


def _parts(x: Any) -> tuple[Any, Any]:
    return parts.real(x), parts.imag(x)


def boolean(x: Any) -> Any:
    """Whether each element is not zero."""
    x = operand(x)
    dtype = aval_of(x).dtype
    return x if dtype == BOOL else ne(x, literal(0, dtype))


def _logical(name: str, primitive: Primitive, doc: str) -> Callable[..., Any]:
    def function(x: Any, y: Any, /, out: Any = None, *, where: Any = True) -> Any:
        if out is not None or where is not True:
            return into(name, function(x, y), out, where)
        return bind(primitive, broadcast(boolean(x), boolean(y)))

    return _named(function, name, doc)


def _rounding(name: str, primitive: Primitive, doc: str) -> Callable[..., Any]:
    """A function of floating point numbers to whole ones, which leaves integers as they are."""

    def function(x: Any, /, out: Any = None, *, where: Any = True) -> Any:
        if out is not None or where is not True:
            return into(name, function(x), out, where)
        x = operand(x)
        return copied(asarray(x)) if kind(aval_of(x).dtype) in "biu" else bind(primitive, (x,))

    return _named(function, name, doc)


def _numeric(*args: Any) -> tuple[Any, ...]:
    """`args` promoted and broadcast, booleans as integers."""
    args = promote(*args)
    if aval_of(args[0]).dtype == BOOL:
        args = tuple([_integer(x) for x in args])
    return broadcast(*args)


def _integer(x: Any) -> Any:
    dtype = np.dtype(np.int32)
    return literal(x.value, dtype) if type(x) is Literal else convert_element_type(x, dtype)


def _pair(x: Any, y: Any) -> tuple[Any, ...]:
    return broadcast(*promote_inexact(x, y))


# Arithmetic.

add = _binary("add", arithmetic.Add(), "x + y; of booleans, whether either holds.")
subtract = _binary("subtract", arithmetic.Sub(), "x - y, which booleans do not have.")
multiply = _binary("multiply", arithmetic.Mul(), "x * y; of booleans, whether both hold.")
divide = _binary_inexact("divide", arithmetic.Div(), "x / y; integers become floating point.")
true_divide = divide
negative = _unary("negative", arithmetic.Neg(), "-x, which booleans do not have.")
sign = _unary("sign", arithmetic.Sign(), "-1, 0 or 1; for complex x, x / |x|, and 0 at 0.")
fabs = _inexact("fabs", arithmetic.Abs(), "The magnitude of x, as floating point.")
arctan2 = _binary_inexact(
    "arctan2",
    angles.Atan2(),
    "The angle of the point (y, x), given as arctan2(y, x), in (-pi, pi].",
)
nextafter = _binary_inexact(
    "nextafter", arithmetic.NextAfter(), "The number of its dtype that follows x on the way to y."
)
maximum = _binary("maximum", arithmetic.Max(), "The larger of x and y; nan where either is nan.")
minimum = _binary("minimum", arithmetic.Min(), "The smaller of x and y; nan where either is nan.")
hypot = _binary_inexact("hypot", numerics.Hypot(), "sqrt(x**2 + y**2), without overflow.")
logaddexp = _binary_inexact(
    "logaddexp", numerics.Logaddexp(), "log(exp(x) + exp(y)), without overflow."
)


@never_aliased
@_ufunc
def positive(x: Any, /) -> Any:
    """`x` itself, as an array."""
    return asarray(x)


@_ufunc
def absolute(x: Any, /) -> Any:
    """The magnitude of `x`, real for complex `x`; its derivative at 0 is 0."""
    x = operand(x)
    return copied(asarray(x)) if aval_of(x).dtype == BOOL else arithmetic.abs(x)


abs = absolute


@_ufunc
def square(x: Any, /) -> Any:
    """x * x."""
    return arithmetic.square(*_numeric(x))


@_ufunc
def reciprocal(x: Any, /) -> Any:
    """1 / x; integers become floating point."""
    return arithmetic.reciprocal(*promote_inexact(x))


@_ufunc
def floor_divide(x: Any, y: Any, /) -> Any:
    """x / y rounded down; of integers, 0 where y is 0."""
    x, y = _numeric(x, y)
    dtype = aval_of(x).dtype
    if is_inexact(dtype):
        return _float_divmod(x, y)[0]
    safe = _divisor(y)
    quotient = div(x, safe)
    if dtype.kind == "i":
        off = _rounded_up(rem(x, safe), safe)
        quotient = sub(quotient, convert_element_type(off, dtype, aval_of(x).weak_type))
    if safe is y:
        return quotient
    return selection.select(eq(y, 0), number_like(0, quotient), quotient)


@_ufunc
def remainder(x: Any, y: Any, /) -> Any:
    """x - y * floor_divide(x, y), which has the sign of y; of integers, 0 where y is 0."""
    x, y = _numeric(x, y)
    if is_inexact(aval_of(x).dtype):
        return _signed_as(rem(x, y), y)
    safe = _divisor(y)
    return _signed_as(rem(x, safe), safe)


mod = remainder


@_ufunc
def fmod(x: Any, y: Any, /) -> Any:
    """The remainder of x / y rounded towards zero, with the sign of x; of integers, 0 where y is 0."""
    x, y = _numeric(x, y)
    return rem(x, y if is_inexact(aval_of(x).dtype) else _divisor(y))


@_ufunc
def divmod(x: Any, y: Any, /) -> Any:
    """The pair of `floor_divide(x, y)` and `remainder(x, y)`."""
    x, y = _numeric(x, y)
    if is_inexact(aval_of(x).dtype):
        return _float_divmod(x, y)
    return floor_divide(x, y), remainder(x, y)


def _divisor(y: Any) -> Any:
    """The integers `y` with 1 in place of 0: by those the division of any machine is defined."""
    if type(y) is Literal and y.value != 0:
        return y
    return selection.select(eq(y, 0), number_like(1, y), y)


def _rounded_up(r: Any, y: Any) -> Any:
    """Where rounding x / y towards zero, with the remainder r, rounded it up."""
    if type(y) is Literal and y.value > 0:
        return lt(r, 0)
    if is_inexact(aval_of(r).dtype):
        return both(ne(r, 0), ne(lt(r, 0), lt(y, 0)))
    return both(ne(r, 0), lt(logical.bitwise_xor(r, y), 0))


def _signed_as(r: Any, y: Any) -> Any:
    """The remainder `r` of truncated division, moved to the side of zero that `y` is on."""
    if aval_of(r).dtype.kind == "u":
        return r
    return selection.select(_rounded_up(r, y), arithmetic.add(r, y), r)


def _float_divmod(x: Any, y: Any) -> tuple[Any, Any]:
    # (x - r) / y is within rounding of a whole number, where x / y may be rounded across one.
    r = rem(x, y)
    off = _rounded_up(r, y)
    quotient = rounding.round(div(sub(x, r), y), to_even=True)
    quotient = selection.select(off, sub(quotient, number_like(1.0, x)), quotient)
    quotient = selection.select(eq(y, 0), div(x, y), quotient)
    return quotient, selection.select(off, arithmetic.add(r, y), r)


@never_aliased
@_ufunc
def power(x: Any, y: Any, /) -> Any:
    """x to the power y; a Python number as the exponent makes a short program.

    Integers have no negative powers: a Python int raises ValueRangeError, and elements of an
    integer array give 0 where the true result is a fraction.
    """
    if type(y) is int or (type(y) is float and y in _SHORT_POWERS):
        found = _static_power(operand(x), y)
        if found is not None:
            return found
    return arithmetic.pow(*_numeric(x, y))


_SHORT_POWERS = (0.5, *(float(n) for n in range(-8, 9)))


def _static_power(x: Any, y: float) -> Any:
    """`x` to a power known while tracing; None where only the general way gives its dtype."""
    dtype = aval_of(x).dtype
    if type(y) is float:
        if not is_inexact(dtype):
            return None
        if y == 0.5:
            return exponentials.sqrt(x)
    elif not is_inexact(dtype):
        if y < 0:
            raise ValueRangeError(
                f"power: integers must not be raised to negative powers; got {aval_of(x)!r} to {y}",
                fix="Convert the base with astype(float), or write a float as the exponent.",
            )
        (x,) = _numeric(x)
    return arithmetic.square(x) if y == 2 else arithmetic.integer_pow(x, int(y))


@_ufunc
def float_power(x: Any, y: Any, /) -> Any:
    """x to the power y, in floating point."""
    return power(*promote_inexact(x, y))


@_ufunc
def heaviside(x: Any, h: Any, /) -> Any:
    """0 where x < 0, 1 where x > 0, h where x is 0."""
    x, h = _pair(x, h)
    flat = convert_element_type(gt(x, 0), aval_of(x).dtype)
    return selection.select(eq(x, 0), h, selection.select(ne(x, x), x, flat))


@_ufunc
def fmax(x: Any, y: Any, /) -> Any:
    """The larger of x and y, or the one that is not nan."""
    return _ignoring_nan(arithmetic.max, x, y)


@_ufunc
def fmin(x: Any, y: Any, /) -> Any:
    """The smaller of x and y, or the one that is not nan."""
    return _ignoring_nan(arithmetic.min, x, y)


def _ignoring_nan(extremum: Callable[..., Any], x: Any, y: Any) -> Any:
    x, y = broadcast(*promote(x, y))
    out = extremum(x, y)
    if not is_inexact(aval_of(x).dtype):
        return out
    return selection.select(ne(x, x), y, selection.select(ne(y, y), x, out))


@never_aliased
def clip(
    a: Any,
    min: Any = None,
    max: Any = None,
    *,
    a_min: Any = None,
    a_max: Any = None,
    out: Any = None,
) -> Any:
    """min(max(a, low), high), with either bound left out; nan where `a` or a bound is.

    Where the bounds cross, the upper one holds. The derivative is 0 where `a` ties with one.
    """
    low, high = (a_min if min is None else min), (a_max if max is None else max)
    if low is None and high is None:
        return into("clip", asarray(a), out)
    given = [x for x in (a, low, high) if x is not None]
    a, *bounds = broadcast(*promote(*given))
    dtype = aval_of(a).dtype
    if is_complex(dtype):
        raise DTypeError(f"clip: the array must not be complex; got {aval_of(a)!r}")
    if low is None:
        bounds.insert(0, literal(_extremes(dtype)[0], dtype))
    elif high is None:
        bounds.append(literal(_extremes(dtype)[1], dtype))
    return into("clip", selection.clamp(bounds[0], a, bounds[1]), out)


def _extremes(dtype: Any) -> tuple[Any, Any]:
    """The lowest and the highest value of a dtype."""
    if is_floating(dtype):
        return -math.inf, math.inf
    return (False, True) if dtype == BOOL else (iinfo(dtype).min, iinfo(dtype).max)


@_ufunc
def gcd(x: Any, y: Any, /) -> Any:
    """The greatest common divisor of |x| and |y|."""
    return numerics.gcd(*_numeric(x, y))


@_ufunc
def lcm(x: Any, y: Any, /) -> Any:
    """The least common multiple of |x| and |y|."""
    x, y = _numeric(x, y)
    divisor = numerics.gcd(x, y)
    safe = _divisor(divisor)
    return mul(arithmetic.abs(x), div(arithmetic.abs(y), safe))


# Exponentials, logarithms, roots.

exp = _inexact("exp", exponentials.Exp(), "e to the power x.")
exp2 = _inexact("exp2", exponentials.Exp2(), "2 to the power x.")
expm1 = _inexact("expm1", exponentials.Expm1(), "exp(x) - 1, precise near 0.")
log = _inexact("log", exponentials.Log(), "The natural logarithm.")
log1p = _inexact("log1p", exponentials.Log1p(), "log(1 + x), precise near 0.")
sqrt = _inexact("sqrt", exponentials.Sqrt(), "The square root; infinitely steep at 0.")
cbrt = _inexact("cbrt", exponentials.Cbrt(), "The cube root, negative for negative x.")


@_ufunc
def log2(x: Any, /) -> Any:
    """The logarithm to base 2."""
    return div(log(x), math.log(2))


@_ufunc
def log10(x: Any, /) -> Any:
    """The logarithm to base 10."""
    return div(log(x), math.log(10))


@_ufunc
def logaddexp2(x: Any, y: Any, /) -> Any:
    """log2(2**x + 2**y), without overflow."""
    x, y = _pair(x, y)
    scaled = mul(x, math.log(2)), mul(y, math.log(2))
    return div(numerics.logaddexp(*scaled), math.log(2))


# Angles.

sin = _inexact("sin", angles.Sin(), "The sine of x.")
cos = _inexact("cos", angles.Cos(), "The cosine of x.")
tan = _inexact("tan", angles.Tan(), "The tangent of x.")
arcsin = _inexact("arcsin", angles.Asin(), "The inverse sine, in [-pi/2, pi/2].")
arccos = _inexact("arccos", angles.Acos(), "The inverse cosine, in [0, pi].")
arctan = _inexact("arctan", angles.Atan(), "The inverse tangent, in (-pi/2, pi/2).")
sinh = _inexact("sinh", angles.Sinh(), "The hyperbolic sine of x.")
cosh = _inexact("cosh", angles.Cosh(), "The hyperbolic cosine of x.")
tanh = _inexact("tanh", angles.Tanh(), "The hyperbolic tangent of x.")
arcsinh = _inexact("arcsinh", angles.Asinh(), "The inverse hyperbolic sine.")
arccosh = _inexact("arccosh", angles.Acosh(), "The inverse hyperbolic cosine, for x >= 1.")
arctanh = _inexact("arctanh", angles.Atanh(), "The inverse hyperbolic tangent, for |x| <= 1.")
sinc = _inexact("sinc", numerics.Sinc(), "sin(pi x) / (pi x), and 1 at 0.")


@_ufunc
def deg2rad(x: Any, /) -> Any:
    """x degrees in radians."""
    (x,) = promote_inexact(x)
    return binary(arithmetic.Mul(), x, math.pi / 180)


@_ufunc
def rad2deg(x: Any, /) -> Any:
    """x radians in degrees."""
    (x,) = promote_inexact(x)
    return binary(arithmetic.Mul(), x, 180 / math.pi)


radians, degrees = deg2rad, rad2deg

# Rounding.

floor = _rounding("floor", rounding.Floor(), "The largest whole number not above x.")
ceil = _rounding("ceil", rounding.Ceil(), "The smallest whole number not below x.")


@never_aliased
@_ufunc
def trunc(x: Any, /) -> Any:
    """The whole part of `x`: rounded towards zero."""
    x = operand(x)
    if kind(aval_of(x).dtype) in "biu":
        return asarray(x)
    return selection.select(lt(x, _zero(x)), rounding.ceil(x), rounding.floor(x))


fix = trunc


@_ufunc
def rint(x: Any, /) -> Any:
    """The nearest whole number, halves to the even one, as floating point."""
    return on_parts(lambda x: rounding.round(x, to_even=True), *promote_inexact(x))


def round(a: Any, decimals: int = 0, out: Any = None) -> Any:
    """`a` to so many decimals, halves to the even digit; negative `decimals` count tens."""
    a = asarray(a)
    dtype = aval_of(a).dtype
    if kind(dtype) in "biu":
        whole = decimals >= 0 or dtype == BOOL
        rounded = copied(a) if whole else _round_integers(a, 10 ** (-decimals))
        return into("round", rounded, out)
    if decimals == 0:
        return into("round", rint(a), out)
    scale = float(10 ** (decimals if decimals > 0 else -decimals))
    apply, undo = (mul, div) if decimals > 0 else (div, mul)
    return into("round", undo(*promote(rint(apply(*promote(a, scale))), scale)), out)


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


def on_parts(function: Callable[..., Any], x: Any) -> Any:
    """`function` of `x`, or of its real and its imaginary part."""
    if is_complex(aval_of(x).dtype):
        return parts.complex(function(parts.real(x)), function(parts.imag(x)))
    return function(x)


def _zero(x: Any) -> Any:
    """The literal 0 that goes with `x`, which may be a Python number."""
    return literal(0, aval_of(x).dtype)


@_ufunc
def modf(x: Any, /) -> Any:
    """The pair of the fractional and the whole part of `x`, both with its sign."""
    (x,) = promote_inexact(x)
    whole = trunc(x)
    infinite = eq(arithmetic.abs(x), math.inf)
    return selection.select(infinite, copysign(0.0, x), sub(x, whole)), whole


# Comparisons and logic.

equal = _comparison("equal", comparison.Eq(), "x == y; False where either is nan.")
not_equal = _comparison("not_equal", comparison.Ne(), "x != y; True where either is nan.")
less = _comparison("less", comparison.Lt(), "x < y; complex numbers by their real parts first.")
less_equal = _comparison(
    "less_equal", comparison.Le(), "x <= y; complex numbers by their real parts first."
)
greater = _comparison(
    "greater", comparison.Gt(), "x > y; complex numbers by their real parts first."
)
greater_equal = _comparison(
    "greater_equal", comparison.Ge(), "x >= y; complex numbers by their real parts first."
)
logical_and = _logical("logical_and", logical.And(), "Whether both x and y are not zero.")
logical_or = _logical("logical_or", logical.Or(), "Whether x or y is not zero.")
logical_xor = _logical("logical_xor", logical.Xor(), "Whether just one of x and y is not zero.")
bitwise_and = _binary("bitwise_and", logical.And(), "x & y, of integers or booleans.")
bitwise_or = _binary("bitwise_or", logical.Or(), "x | y, of integers or booleans.")
bitwise_xor = _binary("bitwise_xor", logical.Xor(), "x ^ y, of integers or booleans.")
bitwise_not = _unary("bitwise_not", logical.Not(), "~x, of integers or booleans.")
invert = bitwise_invert = bitwise_not


@_ufunc
def logical_not(x: Any, /) -> Any:
    """Whether `x` is zero."""
    x = operand(x)
    dtype = aval_of(x).dtype
    return logical.bitwise_not(x) if dtype == BOOL else eq(x, literal(0, dtype))


@_ufunc
def left_shift(x: Any, y: Any, /) -> Any:
    """x << y; 0 once y reaches the number of bits."""
    return logical.shift_left(*_numeric(x, y))


@_ufunc
def right_shift(x: Any, y: Any, /) -> Any:
    """x >> y; the sign of signed integers is kept."""
    x, y = _numeric(x, y)
    unsigned = aval_of(x).dtype.kind == "u"
    return (logical.shift_right_logical if unsigned else logical.shift_right_arithmetic)(x, y)


bitwise_left_shift, bitwise_right_shift = left_shift, right_shift


@_ufunc
def bitwise_count(x: Any, /) -> Any:
    """The number of bits set in the magnitude of the integer `x`, as uint8."""
    (x,) = _numeric(x)
    return convert_element_type(logical.population_count(arithmetic.abs(x)), np.uint8)


# Finite or not.


def _float_test(x: Any, test: Callable[[Any], Any], otherwise: bool, join: Any = either) -> Any:
    """`test` of floating point `x`, of the parts of complex `x` joined; of others `otherwise`."""
    x = operand(x)
    aval = aval_of(x)
    if is_complex(aval.dtype):
        return join(*[test(part) for part in _parts(x)])
    return test(x) if is_floating(aval.dtype) else full(aval.shape, otherwise)


@_ufunc
def isfinite(x: Any, /) -> Any:
    """Whether each element is neither infinite nor nan."""
    return _float_test(x, rounding.is_finite, True, both)


@_ufunc
def isnan(x: Any, /) -> Any:
    """Whether each element is nan."""
    return _float_test(x, lambda x: ne(x, x), False)


@_ufunc
def isinf(x: Any, /) -> Any:
    """Whether each element is infinite."""
    return _float_test(
        x, lambda x: eq(arithmetic.abs(x), literal(math.inf, aval_of(x).dtype)), False
    )


@_ufunc
def isposinf(x: Any, /) -> Any:
    """Whether each element is infinity."""
    return _float_test(_real_only("isposinf", x), lambda x: eq(x, math.inf), False)


@_ufunc
def isneginf(x: Any, /) -> Any:
    """Whether each element is -infinity."""
    return _float_test(_real_only("isneginf", x), lambda x: eq(x, -math.inf), False)


def _real_only(name: str, x: Any) -> Any:
    x = operand(x)
    if is_complex(aval_of(x).dtype):
        raise DTypeError(f"{name}: the array must not be complex; got {aval_of(x)!r}")
    return x


def nan_to_num(
    x: Any, copy: bool = True, nan: Any = 0.0, posinf: Any = None, neginf: Any = None
) -> Any:
    """`x` with numbers in place of nan and of the infinities, by default the largest finite ones.

    Unless `copy`, they are written to `x` itself, if that is a traced array or one of NumPy's.
    """
    given, x = x, asarray(x)
    dtype = aval_of(x).dtype
    if not is_inexact(dtype):
        return copied(x) if copy else x
    limits = finfo(dtype)
    posinf = float(limits.max) if posinf is None else posinf
    neginf = float(limits.min) if neginf is None else neginf

    def replaced(x: Any) -> Any:
        for which, number in (
            (ne(x, x), nan),
            (eq(x, math.inf), posinf),
            (eq(x, -math.inf), neginf),
        ):
            x = where(which, number, x)
        return x

    found = on_parts(replaced, x)
    in_place = not copy and (type(given) is Tracer or isinstance(given, np.ndarray))
    return assign(given, found, "nan_to_num(copy=False)") if in_place else found


# Signs and bits.


@_ufunc
def signbit(x: Any, /) -> Any:
    """Whether the sign bit is set, as it is for -0.0."""
    x = operand(x)
    aval = aval_of(x)
    if is_floating(aval.dtype):
        return lt(_bits(x, "int"), 0)
    return full(aval.shape, False) if aval.dtype.kind in "bu" else lt(x, _zero(x))


def _bits(x: Any, sign: str) -> Any:
    return bitcast_convert_type(x, f"{sign}{8 * aval_of(x).dtype.itemsize}")


@_ufunc
def copysign(x: Any, y: Any, /) -> Any:
    """The magnitude of x with the sign of y."""
    x, y = _pair(x, y)
    return selection.select(ne(signbit(x), signbit(y)), neg(x), x)


@_ufunc
def ldexp(x: Any, n: Any, /) -> Any:
    """x * 2**n for integers n, exact unless the result is out of range."""
    (x,), n = promote_inexact(x), operand(n)
    if kind(aval_of(n).dtype) not in "biu":
        raise DTypeError(f"ldexp: the exponent must be integers; got {aval_of(n)!r}")
    x, n = broadcast(x, convert_element_type(n, np.int32))
    return _scaled(x, n)


def _scaled(x: Any, n: Any) -> Any:
    # In three steps, since 2**n itself may be out of range where x * 2**n is not.
    dtype = aval_of(x).dtype
    limit = finfo(dtype).maxexp - 1
    n = selection.clamp(-3 * limit, n, 3 * limit)
    third = div(n, 3)
    for step in (third, third, sub(n, mul(third, 2))):
        x = mul(x, _power_of_two(step, dtype))
    return x


def _power_of_two(n: Any, dtype: Any) -> Any:
    """2**n for integers n between the least and the largest exponent, made of its bits."""
    limits, word = finfo(dtype), f"int{8 * dtype.itemsize}"
    exponent = convert_element_type(arithmetic.add(n, limits.maxexp - 1), word)
    return bitcast_convert_type(logical.shift_left(exponent, limits.nmant), dtype)


@_ufunc
def frexp(x: Any, /) -> Any:
    """The pair of m with 0.5 <= |m| < 1 and the integer n that make x = m * 2**n."""
    (x,) = promote_inexact(x)
    dtype = aval_of(x).dtype
    if not is_floating(dtype):
        raise DTypeError(f"frexp: the array must be real; got {aval_of(x)!r}")
    limits = finfo(dtype)
    ordinary = both(rounding.is_finite(x), ne(x, _zero(x)))
    tiny = lt(arithmetic.abs(x), float(limits.smallest_normal))
    extra = limits.nmant + 2
    scaled = selection.select(tiny, mul(x, 2.0**extra), x)
    field = logical.shift_right_logical(_bits(scaled, "uint"), limits.nmant)
    biased = convert_element_type(logical.bitwise_and(field, 2**limits.nexp - 1), np.int32)
    exponent = sub(biased, limits.maxexp - 2)
    exponent = sub(exponent, selection.select(tiny, np.int32(extra), np.int32(0)))
    exponent = selection.select(ordinary, exponent, np.int32(0))
    return _scaled(x, neg(exponent)), exponent


# Complex numbers.


@_ufunc
def real(x: Any, /) -> Any:
    """The real part."""
    x = asarray(x)
    return parts.real(x) if is_complex(aval_of(x).dtype) else x


@_ufunc
def imag(x: Any, /) -> Any:
    """The imaginary part, 0 for real `x`."""
    x = operand(x)
    return parts.imag(x) if is_complex(aval_of(x).dtype) else zeros_like(x)


@never_aliased
@_ufunc
def conjugate(x: Any, /) -> Any:
    """The complex conjugate."""
    x = asarray(x)
    return parts.conj(x) if is_complex(aval_of(x).dtype) else x


conj = conjugate


def angle(z: Any, deg: bool = False) -> Any:
    """The angle of `z` in the complex plane, in (-pi, pi], or in degrees."""
    (z,) = promote_inexact(z)
    if is_complex(aval_of(z).dtype):
        found = angles.atan2(parts.imag(z), parts.real(z))
    else:
        found = selection.select(signbit(z), number_like(math.pi, z), number_like(0.0, z))
        found = selection.select(ne(z, z), z, found)
    return rad2deg(found) if deg else found


@_ufunc
def iscomplex(x: Any, /) -> Any:
    """Whether each element has an imaginary part that is not 0."""
    x = operand(x)
    aval = aval_of(x)
    return ne(parts.imag(x), 0) if is_complex(aval.dtype) else full(aval.shape, False)


@_ufunc
def isreal(x: Any, /) -> Any:
    """Whether each element has an imaginary part of 0."""
    return logical.bitwise_not(iscomplex(x))


# Choices.


def where(
    condition: Any,
    x: Any = None,
    y: Any = None,
    /,
    *,
    size: int | None = None,
    fill_value: Any = None,
) -> Any:
    """`x` where `condition` is not zero, else `y`; what is not taken has no influence.

    With the condition alone, the positions where it holds, as `nonzero` gives them.
    """
    if x is None or y is None:
        if x is not None or y is not None:
            raise ArgumentError("where: x and y must be given together; got one of them")
        from functx.numpy.sorting import nonzero

        return nonzero(condition, size=size, fill_value=fill_value)
    if type(condition) is Tracer and condition.aval.dtype == BOOL:
        shape = condition.aval.shape
        if type(x) is Tracer and x.aval.shape == shape:
            if type(y) is Tracer:
                if x.aval is y.aval:
                    return bind(Select(), (condition, y, x))
            elif type(y) is float and x.aval.dtype.kind == "f" and not x.aval.weak_type:
                return bind(Select(), (condition, literal(y, x.aval.dtype), x))
    condition, x, y = broadcast(boolean(condition), *promote(x, y))
    return bind(Select(), (condition, y, x))


def select(condlist: Sequence[Any], choicelist: Sequence[Any], default: Any = 0) -> Any:
    """For each element the choice whose condition is the first to hold, or `default`."""
    if len(condlist) != len(choicelist) or not len(condlist):
        raise ValueRangeError(
            "select: there must be as many choices as conditions, at least one; got "
            f"{len(choicelist)} and {len(condlist)}"
        )
    *choices, chosen = promote(*choicelist, default)
    for condition, choice in zip(reversed(condlist), reversed(choices), strict=True):
        chosen = where(condition, choice, chosen)
    return chosen


def piecewise(x: Any, condlist: Any, funclist: Sequence[Any], *args: Any, **kw: Any) -> Any:
    """`funclist[i](x, *args, **kw)` where the condition i is the last to hold.

    Numbers stand for constant functions. One function more than conditions is for the rest,
    which is 0 otherwise. Every function runs on all of `x`, its result chosen from.
    """
    x = operand(x)
    if not isinstance(condlist, (list, tuple)) or (
        not isinstance(condlist[0], (list, tuple))
        and (aval_of(x).ndim > 0 and aval_of(condlist[0]).ndim == 0)
    ):
        condlist = [condlist]
    functions = list(funclist)
    if len(functions) == len(condlist):
        functions.append(0)
    if len(functions) != len(condlist) + 1:
        raise ValueRangeError(
            f"piecewise: there must be {len(condlist)} functions for {len(condlist)} conditions, "
            f"or one more; got {len(funclist)}"
        )
    dtype = aval_of(x).dtype

    def value(function: Any) -> Any:
        out = operand(function(x, *args, **kw) if callable(function) else function)
        same = aval_of(out).dtype == dtype and type(out) not in PYTHON_SCALARS
        return out if same else asarray(out, dtype)

    chosen = broadcast(value(functions[-1]), full_like(x, 0))[0]
    for condition, function in zip(condlist, functions, strict=False):
        chosen = where(condition, value(function), chosen)
    return chosen


# Closeness.


def isclose(a: Any, b: Any, rtol: Any = 1e-05, atol: Any = 1e-08, equal_nan: bool = False) -> Any:
    """Whether |a - b| <= atol + rtol * |b|, infinities being close to themselves."""
    a, b = _pair(a, b)
    gap, size = absolute(sub(a, b)), absolute(b)
    near = both(less_equal(gap, add(atol, multiply(rtol, size))), isfinite(b))
    near = either(near, eq(a, b))
    return either(near, both(isnan(a), isnan(b))) if equal_nan else near


def allclose(a: Any, b: Any, rtol: Any = 1e-05, atol: Any = 1e-08, equal_nan: bool = False) -> Any:
    """Whether `isclose` holds of all elements."""
    from functx.numpy.reductions import all

    return all(isclose(a, b, rtol, atol, equal_nan))


def array_equal(a1: Any, a2: Any, equal_nan: bool = False) -> Any:
    """Whether two arrays have one shape and equal elements."""
    a1, a2 = operand(a1), operand(a2)
    if aval_of(a1).shape != aval_of(a2).shape:
        return full((), False)
    return _all_equal(a1, a2, equal_nan)


def array_equiv(a1: Any, a2: Any) -> Any:
    """Whether two arrays have equal elements once they are broadcast together."""
    try:
        return _all_equal(operand(a1), operand(a2), False)
    except ShapeError:
        return full((), False)


def _all_equal(a: Any, b: Any, equal_nan: bool) -> Any:
    from functx.numpy.reductions import all

    same = equal(a, b)
    return all(either(same, both(isnan(a), isnan(b))) if equal_nan else same)


# The names of the array API standard.

acos, acosh, asin, asinh = arccos, arccosh, arcsin, arcsinh
atan, atan2, atanh, pow = arctan, arctan2, arctanh, power
