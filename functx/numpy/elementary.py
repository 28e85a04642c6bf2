"""Exponentials, logarithms, roots and angles."""

from __future__ import annotations

import math
from typing import Any

from functx.numpy.promotion import bind_binary, promote_inexact
from functx.numpy.ufuncs import (
    broadcast_inexact,
    inexact_binary_ufunc,
    inexact_ufunc,
    map_real_and_imag,
    ufunc,
)
from functx.ops import arithmetic, numerics
from functx.ops import exponential as exponentials
from functx.ops import trigonometric as angles
from functx.ops.arithmetic import div, mul

__all__ = [
    "acos",
    "acosh",
    "arccos",
    "arccosh",
    "arcsin",
    "arcsinh",
    "arctan",
    "arctan2",
    "arctanh",
    "asin",
    "asinh",
    "atan",
    "atan2",
    "atanh",
    "cbrt",
    "cos",
    "cosh",
    "deg2rad",
    "degrees",
    "exp",
    "exp2",
    "expm1",
    "hypot",
    "log",
    "log1p",
    "log2",
    "log10",
    "logaddexp",
    "logaddexp2",
    "rad2deg",
    "radians",
    "sin",
    "sinc",
    "sinh",
    "sqrt",
    "tan",
    "tanh",
]

exp = inexact_ufunc("exp", exponentials.Exp(), "e to the power x.")
exp2 = inexact_ufunc("exp2", exponentials.Exp2(), "2 to the power x.")
expm1 = inexact_ufunc("expm1", exponentials.Expm1(), "exp(x) - 1, precise near 0.")
log = inexact_ufunc("log", exponentials.Log(), "The natural logarithm.")
log1p = inexact_ufunc("log1p", exponentials.Log1p(), "log(1 + x), precise near 0.")
logaddexp = inexact_binary_ufunc(
    "logaddexp", numerics.Logaddexp(), "log(exp(x) + exp(y)), without overflow."
)
sqrt = inexact_ufunc("sqrt", exponentials.Sqrt(), "The square root; infinitely steep at 0.")
cbrt = inexact_ufunc("cbrt", exponentials.Cbrt(), "The cube root, negative for negative x.")


@ufunc
def log2(x: Any, /) -> Any:
    """The logarithm to base 2."""
    return map_real_and_imag(lambda part: div(part, math.log(2)), log(x))


@ufunc
def log10(x: Any, /) -> Any:
    """The logarithm to base 10."""
    return map_real_and_imag(lambda part: div(part, math.log(10)), log(x))


@ufunc
def logaddexp2(x: Any, y: Any, /) -> Any:
    """log2(2**x + 2**y), without overflow."""
    x, y = broadcast_inexact(x, y)
    scaled = mul(x, math.log(2)), mul(y, math.log(2))
    return div(numerics.logaddexp(*scaled), math.log(2))


sin = inexact_ufunc("sin", angles.Sin(), "The sine of x.")
cos = inexact_ufunc("cos", angles.Cos(), "The cosine of x.")
tan = inexact_ufunc("tan", angles.Tan(), "The tangent of x.")
arcsin = inexact_ufunc("arcsin", angles.Asin(), "The inverse sine, in [-pi/2, pi/2].")
arccos = inexact_ufunc("arccos", angles.Acos(), "The inverse cosine, in [0, pi].")
arctan = inexact_ufunc("arctan", angles.Atan(), "The inverse tangent, in (-pi/2, pi/2).")
arctan2 = inexact_binary_ufunc(
    "arctan2",
    angles.Atan2(),
    "The angle of the point (y, x), given as arctan2(y, x), in (-pi, pi].",
)
hypot = inexact_binary_ufunc("hypot", numerics.Hypot(), "sqrt(x**2 + y**2), without overflow.")
sinh = inexact_ufunc("sinh", angles.Sinh(), "The hyperbolic sine of x.")
cosh = inexact_ufunc("cosh", angles.Cosh(), "The hyperbolic cosine of x.")
tanh = inexact_ufunc("tanh", angles.Tanh(), "The hyperbolic tangent of x.")
arcsinh = inexact_ufunc("arcsinh", angles.Asinh(), "The inverse hyperbolic sine.")
arccosh = inexact_ufunc("arccosh", angles.Acosh(), "The inverse hyperbolic cosine, for x >= 1.")
arctanh = inexact_ufunc("arctanh", angles.Atanh(), "The inverse hyperbolic tangent, for |x| <= 1.")
sinc = inexact_ufunc("sinc", numerics.Sinc(), "sin(pi x) / (pi x), and 1 at 0.")


@ufunc
def deg2rad(x: Any, /) -> Any:
    """x degrees in radians."""
    (x,) = promote_inexact(x)
    return bind_binary(arithmetic.Mul(), x, math.pi / 180)


@ufunc
def rad2deg(x: Any, /) -> Any:
    """x radians in degrees."""
    (x,) = promote_inexact(x)
    return bind_binary(arithmetic.Mul(), x, 180 / math.pi)


radians, degrees = deg2rad, rad2deg
# The names of the array API standard.
acos, acosh, asin, asinh = arccos, arccosh, arcsin, arcsinh
atan, atan2, atanh = arctan, arctan2, arctanh
