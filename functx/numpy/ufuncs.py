"""How an elementwise function is made: of a primitive, or of a function of operands."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import signature, unwrap
from typing import Any

import numpy as np

from functx.core.arrays import evaluate_binary_on_host
from functx.core.dtypes import is_complex
from functx.core.primitive import Primitive
from functx.core.program import Literal
from functx.core.tracing import Tracer, aval_of, bind, current_builder
from functx.numpy.mutation import write_out
from functx.numpy.promotion import bind_binary, broadcast, operand, promote, promote_inexact
from functx.ops import complexes
from functx.ops.arithmetic import BOOL
from functx.ops.comparison import ne
from functx.ops.conversion import convert_element_type
from functx.ops.operands import literal


def ufunc(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` with the arguments `out` and `where` of NumPy's."""
    count = unwrap(function).__code__.co_argcount

    @wraps(function)
    def call(*args: Any, out: Any = None, where: Any = True) -> Any:
        if len(args) == count + 1 and out is None:
            *args, out = args  # type: ignore[assignment]
        result = function(*args)
        if out is not None or where is not True:
            return write_out(function.__name__, result, out, where)
        return result

    return call


def with_name_and_doc(function: Callable[..., Any], name: str, doc: str) -> Callable[..., Any]:
    """`function` as users see it: with a name, a docstring, and `out` by keyword."""
    function.__name__ = function.__qualname__ = name
    function.__module__ = "functx.numpy"  # where pickle finds it
    function.__doc__ = doc
    # Functions with rules of their own take all that can be given by position for operands.
    known = signature(function)
    parameters = [
        p.replace(kind=p.KEYWORD_ONLY) if p.name == "out" else p for p in known.parameters.values()
    ]
    function.__signature__ = known.replace(parameters=parameters)  # type: ignore[attr-defined]
    return function


def unary_ufunc(name: str, primitive: Primitive, doc: str) -> Callable[..., Any]:
    """A function of one argument."""

    def function(x: Any, /, out: Any = None, *, where: Any = True) -> Any:
        if out is not None or where is not True:
            return write_out(name, function(x), out, where)
        return bind(primitive, (operand(x),))

    return with_name_and_doc(function, name, doc)


def inexact_ufunc(name: str, primitive: Primitive, doc: str) -> Callable[..., Any]:
    """A function of one argument, of which integers become floating point."""

    def function(x: Any, /, out: Any = None, *, where: Any = True) -> Any:
        if out is not None or where is not True:
            return write_out(name, function(x), out, where)
        if type(x) is Tracer and x.atom.aval.dtype.kind in "fc":
            return bind(primitive, (x,))
        return bind(primitive, promote_inexact(x))

    return with_name_and_doc(function, name, doc)


def binary_ufunc(name: str, primitive: Primitive, doc: str) -> Callable[..., Any]:
    """A function of two arguments, in the dtype that both are promoted to."""

    def function(x: Any, y: Any, /, out: Any = None, *, where: Any = True) -> Any:
        if out is not None or where is not True:
            return write_out(name, function(x, y), out, where)
        return bind_binary(primitive, x, y)

    return with_name_and_doc(function, name, doc)


def inexact_binary_ufunc(name: str, primitive: Primitive, doc: str) -> Callable[..., Any]:
    """A function of two arguments, of which integers become floating point."""

    def function(x: Any, y: Any, /, out: Any = None, *, where: Any = True) -> Any:
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


def map_real_and_imag(function: Callable[..., Any], x: Any) -> Any:
    """`function` of `x`, or of its real and its imaginary part."""
    if is_complex(aval_of(x).dtype):
        return complexes.complex(function(complexes.real(x)), function(complexes.imag(x)))
    return function(x)


def as_boolean(x: Any) -> Any:
    """Whether each element is not zero."""
    x = operand(x)
    dtype = aval_of(x).dtype
    return x if dtype == BOOL else ne(x, literal(0, dtype))


def promote_numeric(*args: Any) -> tuple[Any, ...]:
    """`args` promoted and broadcast, booleans as integers."""
    args = promote(*args)
    if aval_of(args[0]).dtype == BOOL:
        args = tuple([_as_integer(x) for x in args])
    return broadcast(*args)


def _as_integer(x: Any) -> Any:
    dtype = np.dtype(np.int32)
    return literal(x.value, dtype) if type(x) is Literal else convert_element_type(x, dtype)


def broadcast_inexact(x: Any, y: Any) -> tuple[Any, ...]:
    """`x` and `y` promoted to floating point and broadcast."""
    return broadcast(*promote_inexact(x, y))


def zero_literal(x: Any) -> Any:
    """The literal 0 that goes with `x`, which may be a Python number."""
    return literal(0, aval_of(x).dtype)
