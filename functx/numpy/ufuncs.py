"""Elementwise functions: makers of ufuncs, exponentials, trigonometry, extrema and selection."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from inspect import Parameter, Signature, unwrap
from typing import Any, Protocol, TypeVar, overload

import numpy as np
from ml_dtypes import iinfo

from functx import ops
from functx.core.binding import bind
from functx.core.errors import ArgumentError, DTypeError, ValueRangeError
from functx.core.host_kernels import evaluate_binary_on_host
from functx.core.primitive import Primitive
from functx.core.program import Literal
from functx.core.tracer import Tracer, aval_of, current_builder
from functx.core.types import DType, is_complex, is_floating, is_inexact
from functx.core.typing import ArrayOrList, Out, Value
from functx.numpy.array_creation import asarray
from functx.numpy.mutation import write_out
from functx.numpy.promotion import (
    bind_binary,
    broadcast,
    copy_array,
    number_literal,
    operand,
    promote,
    promote_inexact,
)
from functx.numpy.shapes import in_order
from functx.ops import arithmetic, conversion, logic, special, transcendental
from functx.ops.operands import PYTHON_SCALARS, literal

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
    "clip",
    "cos",
    "cosh",
    "deg2rad",
    "degrees",
    "exp",
    "exp2",
    "expm1",
    "fmax",
    "fmin",
    "heaviside",
    "hypot",
    "log",
    "log1p",
    "log2",
    "log10",
    "logaddexp",
    "logaddexp2",
    "maximum",
    "minimum",
    "piecewise",
    "rad2deg",
    "radians",
    "select",
    "sin",
    "sinc",
    "sinh",
    "sqrt",
    "tan",
    "tanh",
    "where",
]


F = TypeVar("F", bound=Callable[..., Any])
T_co = TypeVar("T_co", covariant=True)


class UnaryUfunc(Protocol[T_co]):
    """The type of a ufunc of one argument."""

    def __call__(
        self, x: ArrayOrList, /, out: Out = None, *, where: ArrayOrList = True
    ) -> T_co: ...


class BinaryUfunc(Protocol[T_co]):
    """The type of a ufunc of two arguments."""

    def __call__(
        self, x: ArrayOrList, y: ArrayOrList, /, out: Out = None, *, where: ArrayOrList = True
    ) -> T_co: ...


@overload
def make_ufunc(compute: Callable[[ArrayOrList], T_co]) -> UnaryUfunc[T_co]: ...
@overload
def make_ufunc(compute: Callable[[ArrayOrList, ArrayOrList], T_co]) -> BinaryUfunc[T_co]: ...
def make_ufunc(compute: Callable[..., Any]) -> Callable[..., Any]:
    """`compute`, of one argument or two, with the arguments `out` and `where` of NumPy's ufuncs."""
    name = compute.__name__

    def unary(x: ArrayOrList, /, out: Out = None, *, where: ArrayOrList = True) -> Value:
        if out is None and where is True:
            return compute(x)
        return write_out(name, compute(x), out, where)

    def binary(
        x: ArrayOrList, y: ArrayOrList, /, out: Out = None, *, where: ArrayOrList = True
    ) -> Value:
        if out is None and where is True:
            return compute(x, y)
        return write_out(name, compute(x, y), out, where)

    function = unary if unwrap(compute).__code__.co_argcount == 1 else binary
    return with_name_and_doc(function, name, compute.__doc__ or "", compute)


def with_name_and_doc(
    function: F, name: str, doc: str, compute: Callable[..., Any] | None = None
) -> F:
    """The ufunc `function` with the name, docstring and signature that users see.

    The operands are those of `compute`, by default of `function`.
    """
    function.__name__ = function.__qualname__ = name
    function.__module__ = "functx.numpy"  # where pickle finds it
    function.__doc__ = doc
    # Functions with custom rules treat all positional arguments as operands: `out` is a keyword.
    named = unwrap(compute or function)
    operands = named.__code__.co_varnames[: named.__code__.co_posonlyargcount]
    positional = [
        Parameter(x, Parameter.POSITIONAL_ONLY, annotation=named.__annotations__[x])
        for x in operands
    ]
    function.__signature__ = Signature([*positional, *_KEYWORDS])  # type: ignore[attr-defined]
    return function


_KEYWORDS = (
    Parameter("out", Parameter.KEYWORD_ONLY, default=None),
    Parameter("where", Parameter.KEYWORD_ONLY, default=True),
)


def unary_ufunc(name: str, primitive: Primitive, doc: str) -> UnaryUfunc[Value]:
    """The function of one argument that binds `primitive`."""

    def function(x: ArrayOrList, /, out: Out = None, *, where: ArrayOrList = True) -> Value:
        if out is not None or where is not True:
            return write_out(name, function(x), out, where)
        return bind(primitive, (operand(x),))

    return with_name_and_doc(function, name, doc)


def inexact_ufunc(name: str, primitive: Primitive, doc: str) -> UnaryUfunc[Value]:
    """The function of one argument, promoted to an inexact dtype, that binds `primitive`."""

    def function(x: ArrayOrList, /, out: Out = None, *, where: ArrayOrList = True) -> Value:
        if out is not None or where is not True:
            return write_out(name, function(x), out, where)
        if isinstance(x, Tracer) and aval_of(x).dtype.kind in "fc":
            return bind(primitive, (x,))
        return bind(primitive, promote_inexact(x))

    return with_name_and_doc(function, name, doc)


def binary_ufunc(name: str, primitive: Primitive, doc: str) -> BinaryUfunc[Value]:
    """The function of two arguments, promoted to one dtype, that binds `primitive`."""

    def function(
        x: ArrayOrList, y: ArrayOrList, /, out: Out = None, *, where: ArrayOrList = True
    ) -> Value:
        if out is not None or where is not True:
            return write_out(name, function(x, y), out, where)
        return bind_binary(primitive, x, y)

    return with_name_and_doc(function, name, doc)


def inexact_binary_ufunc(name: str, primitive: Primitive, doc: str) -> BinaryUfunc[Value]:
    """The function of two arguments, promoted to an inexact dtype, that binds `primitive`."""

    def function(
        x: ArrayOrList, y: ArrayOrList, /, out: Out = None, *, where: ArrayOrList = True
    ) -> Value:
        if out is not None or where is not True:
            return write_out(name, function(x, y), out, where)
        if type(x) is Tracer and x.atom.aval.dtype.kind in "fc":
            return bind_binary(primitive, x, y)
        if current_builder.get() is None:
            out = evaluate_binary_on_host(primitive, x, y)
            if out is not None:
                return out
        return bind(primitive, broadcast(*promote_inexact(x, y)))

    return with_name_and_doc(function, name, doc)


def map_real_and_imag(function: Callable[..., Value], x: Value) -> Value:
    """`function` applied to `x`, or to the real and the imaginary part of complex `x`."""
    if is_complex(aval_of(x).dtype):
        return conversion.complex(function(conversion.real(x)), function(conversion.imag(x)))
    return function(x)


def as_boolean(x: ArrayOrList) -> Value:
    """Whether each element of `x` is not zero."""
    x = operand(x)
    dtype = aval_of(x).dtype
    return x if dtype == ops.BOOL else ops.ne(x, literal(0, dtype))


def promote_numeric(*args: ArrayOrList) -> tuple[Value, ...]:
    """`args` promoted and broadcast, booleans as int32."""
    operands = promote(*args)
    if aval_of(operands[0]).dtype == ops.BOOL:
        operands = tuple([_as_integer(x) for x in operands])
    return broadcast(*operands)


def _as_integer(x: Value | Literal) -> Value:
    dtype = np.dtype(np.int32)
    if type(x) is Literal:
        return number_literal(x.value, dtype)
    return ops.convert_element_type(x, dtype)


def broadcast_inexact(*xs: ArrayOrList) -> tuple[Value, ...]:
    """The arrays `xs` promoted to one inexact dtype and broadcast."""
    return broadcast(*promote_inexact(*xs))


def zero_literal(x: Value) -> Literal:
    """The literal 0 in the dtype of `x`."""
    return literal(0, aval_of(x).dtype)


exp = inexact_ufunc("exp", transcendental.Exp(), "e to the power x.")
exp2 = inexact_ufunc("exp2", transcendental.Exp2(), "2 to the power x.")
expm1 = inexact_ufunc("expm1", transcendental.Expm1(), "exp(x) - 1, precise near 0.")
log = inexact_ufunc("log", transcendental.Log(), "The natural logarithm.")
log1p = inexact_ufunc("log1p", transcendental.Log1p(), "log(1 + x), precise near 0.")
logaddexp = inexact_binary_ufunc(
    "logaddexp", special.Logaddexp(), "log(exp(x) + exp(y)), without overflow."
)
sqrt = inexact_ufunc("sqrt", transcendental.Sqrt(), "The square root; infinitely steep at 0.")
cbrt = inexact_ufunc("cbrt", transcendental.Cbrt(), "The cube root, negative for negative x.")


@make_ufunc
def log2(x: ArrayOrList, /) -> Value:
    """The logarithm to base 2."""
    return map_real_and_imag(lambda part: ops.div(part, math.log(2)), log(x))


@make_ufunc
def log10(x: ArrayOrList, /) -> Value:
    """The logarithm to base 10."""
    return map_real_and_imag(lambda part: ops.div(part, math.log(10)), log(x))


@make_ufunc
def logaddexp2(x: ArrayOrList, y: ArrayOrList, /) -> Value:
    """log2(2**x + 2**y), without overflow."""
    x, y = broadcast_inexact(x, y)
    scaled = ops.mul(x, math.log(2)), ops.mul(y, math.log(2))
    return ops.div(special.logaddexp(*scaled), math.log(2))


sin = inexact_ufunc("sin", transcendental.Sin(), "The sine of x.")
cos = inexact_ufunc("cos", transcendental.Cos(), "The cosine of x.")
tan = inexact_ufunc("tan", transcendental.Tan(), "The tangent of x.")
arcsin = inexact_ufunc("arcsin", transcendental.Asin(), "The inverse sine, in [-pi/2, pi/2].")
arccos = inexact_ufunc("arccos", transcendental.Acos(), "The inverse cosine, in [0, pi].")
arctan = inexact_ufunc("arctan", transcendental.Atan(), "The inverse tangent, in (-pi/2, pi/2).")
arctan2 = inexact_binary_ufunc(
    "arctan2",
    transcendental.Atan2(),
    "The angle of the point (y, x), given as arctan2(y, x), in (-pi, pi].",
)
hypot = inexact_binary_ufunc("hypot", special.Hypot(), "sqrt(x**2 + y**2), without overflow.")
sinh = inexact_ufunc("sinh", transcendental.Sinh(), "The hyperbolic sine of x.")
cosh = inexact_ufunc("cosh", transcendental.Cosh(), "The hyperbolic cosine of x.")
tanh = inexact_ufunc("tanh", transcendental.Tanh(), "The hyperbolic tangent of x.")
arcsinh = inexact_ufunc("arcsinh", transcendental.Asinh(), "The inverse hyperbolic sine.")
arccosh = inexact_ufunc(
    "arccosh", transcendental.Acosh(), "The inverse hyperbolic cosine, for x >= 1."
)
arctanh = inexact_ufunc(
    "arctanh", transcendental.Atanh(), "The inverse hyperbolic tangent, for |x| <= 1."
)
sinc = inexact_ufunc("sinc", special.Sinc(), "sin(pi x) / (pi x), and 1 at 0.")


@make_ufunc
def deg2rad(x: ArrayOrList, /) -> Value:
    """x degrees in radians."""
    (x,) = promote_inexact(x)
    return bind_binary(arithmetic.Mul(), x, math.pi / 180)


@make_ufunc
def rad2deg(x: ArrayOrList, /) -> Value:
    """x radians in degrees."""
    (x,) = promote_inexact(x)
    return bind_binary(arithmetic.Mul(), x, 180 / math.pi)


radians, degrees = deg2rad, rad2deg
# The names of the array API standard.
acos, acosh, asin, asinh = arccos, arccosh, arcsin, arcsinh
atan, atan2, atanh = arctan, arctan2, arctanh


maximum = binary_ufunc(
    "maximum", arithmetic.Max(), "The larger of x and y; nan where either is nan."
)
minimum = binary_ufunc(
    "minimum", arithmetic.Min(), "The smaller of x and y; nan where either is nan."
)


@make_ufunc
def heaviside(x: ArrayOrList, h: ArrayOrList, /) -> Value:
    """0 where x < 0, 1 where x > 0, h where x is 0."""
    x, h = broadcast_inexact(x, h)
    step = ops.convert_element_type(ops.gt(x, 0), aval_of(x).dtype)
    return logic.select(ops.eq(x, 0), h, logic.select(ops.ne(x, x), x, step))


@make_ufunc
def fmax(x: ArrayOrList, y: ArrayOrList, /) -> Value:
    """The larger of x and y; if one is nan, the other."""
    return _nan_ignoring_extremum(arithmetic.max, x, y)


@make_ufunc
def fmin(x: ArrayOrList, y: ArrayOrList, /) -> Value:
    """The smaller of x and y; if one is nan, the other."""
    return _nan_ignoring_extremum(arithmetic.min, x, y)


def _nan_ignoring_extremum(extremum: Callable[..., Value], x: ArrayOrList, y: ArrayOrList) -> Value:
    x, y = broadcast(*promote(x, y))
    out = extremum(x, y)
    if not is_inexact(aval_of(x).dtype):
        return out
    return logic.select(ops.ne(x, x), y, logic.select(ops.ne(y, y), x, out))


def clip(
    a: ArrayOrList,
    min: ArrayOrList | None = None,
    max: ArrayOrList | None = None,
    out: Out = None,
    *,
    a_min: ArrayOrList | None = None,
    a_max: ArrayOrList | None = None,
) -> Value:
    """min(max(a, min), max), where either bound may be None; nan where `a` or a bound is nan.

    If the bounds cross, the result is the upper one. The derivative is 0 where `a` equals a bound.
    """
    low, high = (a_min if min is None else min), (a_max if max is None else max)
    if low is None and high is None:
        return write_out("clip", copy_array(asarray(a)), out)
    operands = [x for x in (a, low, high) if x is not None]
    a, *bounds = broadcast(*promote(*operands))
    dtype = aval_of(a).dtype
    if is_complex(dtype):
        raise DTypeError(f"clip: the array must not be complex; got {aval_of(a)!r}")
    if low is None:
        bounds.insert(0, number_literal(_dtype_bounds(dtype)[0], dtype))
    elif high is None:
        bounds.append(number_literal(_dtype_bounds(dtype)[1], dtype))
    return write_out("clip", logic.clamp(bounds[0], a, bounds[1]), out)


def _dtype_bounds(dtype: DType) -> tuple[complex, complex]:
    """The least and the largest value of a dtype."""
    if is_floating(dtype):
        return -math.inf, math.inf
    return (False, True) if dtype == ops.BOOL else (iinfo(dtype).min, iinfo(dtype).max)


@overload
def where(
    condition: ArrayOrList, /, *, size: int | None = None, fill_value: ArrayOrList | None = None
) -> tuple[Value, ...]: ...
@overload
def where(
    condition: ArrayOrList,
    x: ArrayOrList,
    y: ArrayOrList,
    /,
    *,
    size: int | None = None,
    fill_value: ArrayOrList | None = None,
) -> Value: ...
def where(
    condition: ArrayOrList,
    x: ArrayOrList | None = None,
    y: ArrayOrList | None = None,
    /,
    *,
    size: int | None = None,
    fill_value: ArrayOrList | None = None,
) -> Value | tuple[Value, ...]:
    """`x` where `condition` is not zero, else `y`; elements not taken do not affect derivatives.

    With the condition alone, the indices of its nonzero elements, as `nonzero` returns them.
    """
    if x is None or y is None:
        if x is not None or y is not None:
            raise ArgumentError("where: x and y must be given together; got one of them")
        from functx.numpy.sorting_and_searching import nonzero_indices

        return nonzero_indices("where", condition, size, fill_value)
    if type(condition) is Tracer and condition.atom.aval.dtype == ops.BOOL:
        shape = condition.atom.aval.shape
        if type(x) is Tracer and x.atom.aval.shape == shape:
            if type(y) is Tracer:
                if x.atom.aval is y.atom.aval:
                    return bind(ops.Select(), (condition, y, x))
            elif type(y) is float and x.atom.aval.dtype.kind == "f" and not x.atom.aval.weak_type:
                return bind(ops.Select(), (condition, literal(y, x.atom.aval.dtype), x))
    condition, x, y = broadcast(as_boolean(condition), *promote(x, y), check_ranks=False)
    return bind(ops.Select(), (condition, y, x))


def select(
    condlist: Sequence[ArrayOrList], choicelist: Sequence[ArrayOrList], default: ArrayOrList = 0
) -> Value:
    """For each element the choice whose condition is the first that is True, or `default`."""
    if len(condlist) != len(choicelist) or not len(condlist):
        raise ValueRangeError(
            "select: there must be as many choices as conditions, at least one; got "
            f"{len(choicelist)} and {len(condlist)}"
        )
    *choices, result = promote(*choicelist, default)
    for condition, choice in zip(reversed(condlist), reversed(choices), strict=True):
        result = where(condition, choice, result)
    return in_order(result, "C")


def piecewise(
    x: ArrayOrList, condlist: ArrayOrList, funclist: Sequence[Any], *args: object, **kw: object
) -> Value:
    """`funclist[i](x, *args, **kw)` where the condition i is the last that is True.

    Numbers stand for constant functions. One more function than conditions gives the remaining
    elements, which are 0 by default. Every function is applied to all of `x`.
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

    def value(function: Callable[..., ArrayOrList] | ArrayOrList) -> Value:
        out = operand(function(x, *args, **kw) if callable(function) else function)
        has_dtype = aval_of(out).dtype == dtype and type(out) not in PYTHON_SCALARS
        return out if has_dtype else asarray(out, dtype)

    result = broadcast(value(functions[-1]), ops.constant_like(x, 0))[0]
    for condition, function in zip(condlist, functions, strict=False):
        result = where(condition, value(function), result)
    return result
