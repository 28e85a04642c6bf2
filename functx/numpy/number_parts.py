"""What numbers consist of: signs, exponents, real and imaginary parts; what is finite."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from ml_dtypes import finfo

from functx.core.dtypes import is_complex, is_floating, is_inexact, kind
from functx.core.errors import DTypeError
from functx.core.tracing import Tracer, aval_of
from functx.numpy.choices import where
from functx.numpy.creation import asarray
from functx.numpy.elementary import rad2deg
from functx.numpy.mutation import assign_array
from functx.numpy.promotion import (
    broadcast,
    broadcast_to,
    copy_array,
    number_literal_like,
    operand,
    promote_inexact,
    returns_new_array,
)
from functx.numpy.ufuncs import (
    broadcast_inexact,
    inexact_binary_ufunc,
    map_real_and_imag,
    ufunc,
    zero_literal,
)
from functx.ops import arithmetic, logical, rounding, selection
from functx.ops import complexes as parts
from functx.ops import trigonometric as angles
from functx.ops.arithmetic import div, mul, neg, sub
from functx.ops.comparison import eq, lt, ne
from functx.ops.conversion import bitcast_convert_type, convert_element_type
from functx.ops.logical import bitwise_and as both
from functx.ops.logical import bitwise_or as either
from functx.ops.operands import literal
from functx.ops.shaping import full

__all__ = [
    "angle",
    "conj",
    "conjugate",
    "copysign",
    "frexp",
    "imag",
    "iscomplex",
    "isfinite",
    "isinf",
    "isnan",
    "isneginf",
    "isposinf",
    "isreal",
    "ldexp",
    "nan_to_num",
    "nextafter",
    "real",
    "signbit",
]


def real_and_imag(x: Any) -> tuple[Any, Any]:
    return parts.real(x), parts.imag(x)


nextafter = inexact_binary_ufunc(
    "nextafter", arithmetic.NextAfter(), "The number of its dtype that follows x on the way to y."
)


def _float_predicate(
    x: Any, test: Callable[[Any], Any], otherwise: bool, join: Any = either
) -> Any:
    """`test` of floating point `x`, of the parts of complex `x` joined; of others `otherwise`."""
    x = operand(x)
    aval = aval_of(x)
    if is_complex(aval.dtype):
        return join(*[test(part) for part in real_and_imag(x)])
    return test(x) if is_floating(aval.dtype) else full(aval.shape, otherwise)


@ufunc
def isfinite(x: Any, /) -> Any:
    """Whether each element is neither infinite nor nan."""
    return _float_predicate(x, rounding.is_finite, True, both)


@ufunc
def isnan(x: Any, /) -> Any:
    """Whether each element is nan."""
    return _float_predicate(x, lambda x: ne(x, x), False)


@ufunc
def isinf(x: Any, /) -> Any:
    """Whether each element is infinite."""
    return _float_predicate(
        x, lambda x: eq(arithmetic.abs(x), literal(math.inf, aval_of(x).dtype)), False
    )


@ufunc
def isposinf(x: Any, /) -> Any:
    """Whether each element is infinity."""
    return _float_predicate(_check_real("isposinf", x), lambda x: eq(x, math.inf), False)


@ufunc
def isneginf(x: Any, /) -> Any:
    """Whether each element is -infinity."""
    return _float_predicate(_check_real("isneginf", x), lambda x: eq(x, -math.inf), False)


def _check_real(name: str, x: Any) -> Any:
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
        return copy_array(x) if copy else x
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

    found = map_real_and_imag(replaced, x)
    in_place = not copy and (type(given) is Tracer or isinstance(given, np.ndarray))
    return assign_array(given, found, "nan_to_num(copy=False)") if in_place else found


@ufunc
def signbit(x: Any, /) -> Any:
    """Whether the sign bit is set, as it is for -0.0."""
    x = operand(x)
    aval = aval_of(x)
    if is_floating(aval.dtype):
        return lt(_bits(x, "int"), 0)
    return full(aval.shape, False) if aval.dtype.kind in "bu" else lt(x, zero_literal(x))


def _bits(x: Any, sign: str) -> Any:
    return bitcast_convert_type(x, f"{sign}{8 * aval_of(x).dtype.itemsize}")


@ufunc
def copysign(x: Any, y: Any, /) -> Any:
    """The magnitude of x with the sign of y."""
    x, y = broadcast_inexact(x, y)
    return selection.select(ne(signbit(x), signbit(y)), neg(x), x)


@ufunc
def ldexp(x: Any, n: Any, /) -> Any:
    """x * 2**n for integers n, exact unless the result is out of range."""
    (x,), n = promote_inexact(x), operand(n)
    if kind(aval_of(n).dtype) not in "biu":
        raise DTypeError(f"ldexp: the exponent must be integers; got {aval_of(n)!r}")
    x, n = broadcast(x, convert_element_type(n, np.int32))
    return _scale_by_power_of_two(x, n)


def _scale_by_power_of_two(x: Any, n: Any) -> Any:
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


@ufunc
def frexp(x: Any, /) -> Any:
    """The pair of m with 0.5 <= |m| < 1 and the integer n that make x = m * 2**n."""
    (x,) = promote_inexact(x)
    dtype = aval_of(x).dtype
    if not is_floating(dtype):
        raise DTypeError(f"frexp: the array must be real; got {aval_of(x)!r}")
    limits = finfo(dtype)
    ordinary = both(rounding.is_finite(x), ne(x, zero_literal(x)))
    tiny = lt(arithmetic.abs(x), float(limits.smallest_normal))
    extra = limits.nmant + 2
    scaled = selection.select(tiny, mul(x, 2.0**extra), x)
    field = logical.shift_right_logical(_bits(scaled, "uint"), limits.nmant)
    biased = convert_element_type(logical.bitwise_and(field, 2**limits.nexp - 1), np.int32)
    exponent = sub(biased, limits.maxexp - 2)
    exponent = sub(exponent, selection.select(tiny, np.int32(extra), np.int32(0)))
    exponent = selection.select(ordinary, exponent, np.int32(0))
    return _scale_by_power_of_two(x, neg(exponent)), exponent


@ufunc
def real(x: Any, /) -> Any:
    """The real part."""
    x = operand(x) if isinstance(x, np.ndarray) else asarray(x)
    return parts.real(x) if is_complex(aval_of(x).dtype) else x


@ufunc
def imag(x: Any, /) -> Any:
    """The imaginary part, 0 for real `x`."""
    x = operand(x)
    if is_complex(aval_of(x).dtype):
        return parts.imag(x)
    # Read-only, as in NumPy.
    return broadcast_to(full((), zero_literal(x)), aval_of(x).shape)


@ufunc
@returns_new_array
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
        found = selection.select(
            signbit(z), number_literal_like(math.pi, z), number_literal_like(0.0, z)
        )
        found = selection.select(ne(z, z), z, found)
    return rad2deg(found) if deg else found


@ufunc
def iscomplex(x: Any, /) -> Any:
    """Whether each element has an imaginary part that is not 0."""
    x = operand(x)
    aval = aval_of(x)
    return ne(parts.imag(x), 0) if is_complex(aval.dtype) else full(aval.shape, False)


@ufunc
def isreal(x: Any, /) -> Any:
    """Whether each element has an imaginary part of 0."""
    return logical.bitwise_not(iscomplex(x))
