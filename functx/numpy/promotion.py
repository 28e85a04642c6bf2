"""Operands as NumPy takes them: lists made arrays, dtypes promoted, shapes broadcast."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from functx import ops
from functx.core.errors import DTypeError, ShapeError
from functx.core.ndarray import as_ndarray, as_numpy_array, evaluate_binary_on_host
from functx.core.primitive import Primitive
from functx.core.program import Literal, scalar_literal
from functx.core.tracer import Tracer, aval_of, current_builder
from functx.core.tracing import bind
from functx.core.types import Shape, inexact_dtype, is_inexact, promote_types
from functx.ops.operands import PYTHON_SCALARS, literal
from functx.ops.views import copy_array as copy_array
from functx.ops.views import copy_if_shared as copy_if_shared
from functx.ops.views import returns_new_array as returns_new_array


def operand(x: Any) -> Any:
    """`x`, or the array that a list, a tuple or an object with `__array__` stands for."""
    if isinstance(x, (list, tuple)):
        from functx.numpy.array_creation import asarray

        return asarray(x)
    if type(x) is np.ndarray and current_builder.get() is None:
        return as_ndarray(x)
    return x


def copy_if_same_memory(out: Any, x: Any) -> Any:
    """`out`, copied if it is `x` or in the list `x`, or the memory of such an array of NumPy's."""
    for y in x if type(x) in _LISTS else (x,):
        if out is y or (type(out) is Tracer is type(y) and out.atom is y.atom):
            return copy_array(out)
        arrays = isinstance(out, np.ndarray) and isinstance(y, np.ndarray)
        if (
            arrays
            and out.base is not None
            and np.may_share_memory(as_numpy_array(out), as_numpy_array(y))
        ):
            return copy_array(out)
    return out


_LISTS = (list, tuple)


def bind_binary(primitive: Primitive, x: Any, y: Any) -> Any:
    """`primitive(x, y)` with operands promoted and broadcast."""
    # Equal types, and a number that takes the dtype of the array beside it, are most of all.
    if type(x) is Tracer:
        aval = x.atom.aval
        if type(y) is Tracer:
            other = y.atom.aval
            if aval is other:
                return bind(primitive, (x, y))
            if aval.dtype == other.dtype:
                a, b = _broadcasts(aval.shape, other.shape)
                return bind(primitive, (x if a is None else a(x), y if b is None else b(y)))
        elif type(y) in _SCALARS_TAKING_KIND.get(aval.dtype.kind, ()) and not aval.weak_type:
            return bind(primitive, (x, number_literal(y, aval.dtype)))
    elif type(y) is Tracer:
        aval = y.atom.aval
        if type(x) in _SCALARS_TAKING_KIND.get(aval.dtype.kind, ()) and not aval.weak_type:
            return bind(primitive, (number_literal(x, aval.dtype), y))
    elif current_builder.get() is None:
        out = evaluate_binary_on_host(primitive, x, y)
        if out is not None:
            return out
    return bind(primitive, broadcast(*promote(x, y)))


_NUMBERS = *PYTHON_SCALARS, Literal
_SCALARS_TAKING_KIND: dict[str, tuple[type, ...]] = {"f": (float, int), "i": (int,), "u": (int,)}


def promote(*args: Any) -> tuple[Any, ...]:
    """`args` in the one dtype that JAX's promotion gives them."""
    args = tuple([operand(x) for x in args])
    return args if _common_dtype(args) is not None else _convert_all(args, *promoted_dtype(*args))


def promote_inexact(*args: Any) -> tuple[Any, ...]:
    """`args` in one dtype, the default float type where they are all exact."""
    args = tuple([operand(x) for x in args])
    common = _common_dtype(args)
    if common is not None and is_inexact(common):
        return args
    dtype, weak = promoted_dtype(*args)
    return _convert_all(args, inexact_dtype(dtype), weak)


def _common_dtype(args: tuple[Any, ...]) -> Any:
    """The dtype that `args` have, if they are arrays of one."""
    dtype = None
    for x in args:
        if type(x) in _NUMBERS:
            return None
        own = aval_of(x).dtype
        if dtype is not None and own != dtype:
            return None
        dtype = own
    return dtype


def promoted_dtype(*args: Any) -> tuple[Any, bool]:
    """The dtype that operands promote to, and whether it is weak."""
    avals = tuple([aval_of(x) for x in args])
    found = promote_types(tuple([(a.dtype, a.weak_type) for a in avals]))
    if found is None:
        raise DTypeError(
            "operands must have dtypes that promote to one; got " + " and ".join(map(repr, avals)),
            fix="Convert one of them with astype.",
        )
    return found


def number_literal_like(value: Any, x: Any) -> Literal:
    """The Python number `value` with the dtype of `x`, and weak if that is."""
    aval = aval_of(x)
    return number_literal(value, aval.dtype, aval.weak_type)


def _convert_all(args: tuple[Any, ...], dtype: Any, weak: bool) -> tuple[Any, ...]:
    return tuple([_convert(x, dtype, weak) for x in args])


def _convert(x: Any, dtype: Any, weak: bool) -> Any:
    if type(x) in _NUMBERS:
        return number_literal(x.value if type(x) is Literal else x, dtype, weak)
    # A dtype that all operands have is weak only if they all are, without a conversion.
    return x if aval_of(x).dtype == dtype else ops.convert_element_type(x, dtype, weak)


def number_literal(value: Any, dtype: Any, weak: bool = False) -> Literal:
    """The Python number `value` in `dtype`, which an int must fit."""
    exact = literal(value, dtype)
    return scalar_literal(exact.value, dtype, True, repr(exact.value)) if weak else exact


def broadcast(*args: Any) -> tuple[Any, ...]:
    """`args` in the one shape that NumPy's rule gives them; scalars stay scalars beside arrays."""
    spreads = _broadcasts(*[aval_of(x).shape for x in args])
    return tuple([x if p is None else p(x) for x, p in zip(args, spreads, strict=True)])


@lru_cache(maxsize=4096)
def _broadcasts(*shapes: Shape) -> tuple[ops.BroadcastInDim | None, ...]:
    """What gives arrays of `shapes` their common shape; None where nothing is to be done."""
    shape = broadcast_shapes(*shapes)
    return tuple(
        [
            None
            if not s or s == shape
            else ops.BroadcastInDim(shape, _trailing_dims(len(s), len(shape)))
            for s in shapes
        ]
    )


def _trailing_dims(count: int, ndim: int) -> tuple[int, ...]:
    return tuple(range(ndim - count, ndim))


def broadcast_to(x: Any, shape: Shape) -> Any:
    """`x` repeated along new leading dimensions and those of length 1."""
    own = aval_of(x).shape
    if own == shape:
        return x
    lead = len(shape) - len(own)
    if lead < 0 or any(n not in (1, m) for n, m in zip(own, shape[lead:], strict=True)):
        raise ShapeError(f"broadcast_to: {aval_of(x)!r} must broadcast to the shape; got {shape}")
    return ops.broadcast_in_dim(x, shape, _trailing_dims(len(own), len(shape)))


@lru_cache(maxsize=4096)
def broadcast_shapes(*shapes: Shape) -> Shape:
    """The shape that arrays of `shapes` have together, by NumPy's rule."""
    first = shapes[0]
    if all(s == first for s in shapes):
        return first
    rank = max(map(len, shapes))
    padded = [(1,) * (rank - len(s)) + s for s in shapes]
    result = []
    for sizes in zip(*padded, strict=True):
        distinct = {n for n in sizes if n != 1}
        if len(distinct) > 1:
            raise ShapeError(
                "shapes must broadcast: equal or 1 in each dimension, counted from the last; got "
                + " and ".join(map(str, shapes)),
                fix="Give an operand dimensions of 1 (x[:, None]), or slice or reshape it.",
            )
        result.append(distinct.pop() if distinct else 1)
    return tuple(result)
