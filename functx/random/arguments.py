"""Arguments of samplers: keys, shapes, dtypes, and parameters that broadcast to a shape."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeAlias

from functx import ops
from functx.core.errors import DTypeError, ShapeError
from functx.core.tracer import aval_of
from functx.core.types import DType, Shape, canonical_dtype, is_complex, is_floating, is_integer
from functx.core.typing import ArrayLike, DTypeLike, Function, ShapeLike, Value
from functx.lowering.jit import jit
from functx.numpy.promotion import (
    broadcast_shapes,
    broadcast_to,
    is_broadcastable,
    number_literal,
    operand,
)
from functx.ops.operands import PYTHON_SCALARS, canonical_shape
from functx.ops.parallel import place_result
from functx.random.keys import check_single_key

P = ParamSpec("P")

# The arguments of a sampler are those of users; the function below `@sampler` gets checked ones.
KeyLike: TypeAlias = Any
"""One key; checked, its data, two words."""
ParameterLike: TypeAlias = Any
"""A number or an array; checked, a traced scalar or an array of the shape of the draws."""
DrawShapeLike: TypeAlias = Any
"""An int, several, or None for the shape of the parameters; checked, a tuple."""


def check_draw(
    name: str, key: ArrayLike, shape: ShapeLike, dtype: DTypeLike
) -> tuple[Value, Shape, DType]:
    """The key's data, the shape and the floating-point dtype of the numbers of sampler `name`."""
    return check_single_key(name, key), canonical_shape(shape), check_dtype(name, dtype)


def check_dtype(name: str, dtype: DTypeLike, is_integral: bool = False) -> DType:
    """The dtype of numbers that must be floats, or integers if `is_integral`; by default the widest."""
    dtype = canonical_dtype((int if is_integral else float) if dtype is None else dtype)
    if not (is_integer if is_integral else is_floating)(dtype):
        required = "an integer" if is_integral else "a float"
        raise DTypeError(f"{name}: dtype must be {required} type; got {dtype}")
    return dtype


def result_shape(name: str, shape: ShapeLike | None, *parameters: Value) -> Shape:
    """`shape`, to which the parameters must broadcast; by default the shape that they have together."""
    shapes = [aval_of(x).shape for x in parameters]
    if shape is None:
        return broadcast_shapes(*shapes)
    shape = canonical_shape(shape)
    for parameter, given in zip(parameters, shapes, strict=True):
        if not is_broadcastable(given, shape):
            raise ShapeError(
                f"{name}: parameters must broadcast to the shape {shape}; got {aval_of(parameter)!r}"
            )
    return shape


def as_parameter(name: str, x: ArrayLike, shape: Shape, dtype: DType) -> Value:
    """A parameter of a distribution in `dtype`, a scalar or broadcast to `shape`."""
    if type(x) in PYTHON_SCALARS:
        return number_literal(x, dtype)
    x = operand(x)
    if is_complex(aval_of(x).dtype):
        raise DTypeError(f"{name}: parameters must be real; got {aval_of(x)!r}")
    return broadcast_parameter(name, ops.convert_element_type(x, dtype), shape)


def broadcast_parameter(name: str, x: Value, shape: Shape) -> Value:
    """A parameter of a distribution that is a scalar or has `shape`."""
    if aval_of(x).shape in ((), shape):
        return x
    result_shape(name, shape, x)
    return broadcast_to(x, shape)


def sampler(fun: Callable[P, Value]) -> Callable[P, Value]:
    """The sampler of floats whose numbers `fun` computes; see `make_sampler`.

    It converts the parameters to the dtype and broadcasts them to the shape unless they are scalars.
    """
    return make_sampler(fun, is_integral=False)


def integer_sampler(fun: Callable[P, Value]) -> Callable[P, Value]:
    """The sampler of integers whose numbers `fun` computes; see `make_sampler`.

    It passes the parameters as they are.
    """
    return make_sampler(fun, is_integral=True)


def make_sampler(fun: Callable[P, Value], is_integral: bool) -> Callable[P, Value]:
    """The sampler whose numbers `fun` computes, with the signature of `fun`.

    `fun` takes a key, the parameters, `shape` and `dtype`. The sampler checks them: it passes the data
    of one key, the shape that the parameters have together if `shape` is None, and the dtype, that of
    floats or of integers. A call is one compiled program, in a trace one equation with the name of `fun`.
    """
    name, signature = fun.__name__, inspect.signature(fun)
    body: Function = fun

    def draw(key: Value, *parameters: Value, shape: Shape, dtype: DType) -> Value:
        if not is_integral:
            parameters = tuple([as_parameter(name, x, shape, dtype) for x in parameters])
        return body(key, *parameters, shape, dtype)

    draw.__name__ = draw.__qualname__ = name
    compiled = jit(draw, static_argnames=("shape", "dtype"))

    @wraps(fun)
    def sample(*args: P.args, **kwargs: P.kwargs) -> Value:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        key, *given, shape, dtype, out_sharding = bound.arguments.values()
        key, parameters = check_single_key(name, key), [operand(x) for x in given]
        shape = result_shape(name, shape, *parameters)
        dtype = check_dtype(name, dtype, is_integral)
        return place_result(compiled(key, *parameters, shape=shape, dtype=dtype), out_sharding)

    return sample
