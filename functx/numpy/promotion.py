"""Operands of NumPy's functions: conversion to arrays, promotion of dtypes, broadcasting, copies."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from functools import lru_cache
from types import FrameType

import jax
import numpy as np

from functx import ops
from functx.core.binding import bind
from functx.core.errors import DTypeError, ShapeError, TypePromotionError
from functx.core.host_kernels import evaluate_binary_on_host
from functx.core.primitive import Primitive
from functx.core.program import Literal, scalar_literal
from functx.core.tracer import (
    Tracer,
    as_ndarray,
    as_numpy_array,
    aval_of,
    current_builder,
    from_jax_protocol,
    is_variable,
    plain_number,
)
from functx.core.types import (
    DType,
    Shape,
    inexact_dtype,
    is_complex,
    is_inexact,
    kind,
    promote_types,
)
from functx.core.typing import ArrayOrList, Avals, Value
from functx.ops.operands import PYTHON_SCALARS, literal
from functx.ops.views import copy_array as copy_array
from functx.ops.views import copy_if_shared as copy_if_shared
from functx.ops.views import returns_new_array as returns_new_array


def operand(x: ArrayOrList) -> Value:
    """`x`, with a list or a tuple converted to an array, and a NumPy array to an `ndarray` view of it."""
    if isinstance(x, (list, tuple)):
        from functx.numpy.array_creation import asarray

        return asarray(x)
    if type(x) is np.ndarray and current_builder.get() is None:
        return as_ndarray(x)
    return plain_number(from_jax_protocol(x))  # type: ignore[no-any-return]


def copy_if_same_memory(out: Value, x: ArrayOrList) -> Value:
    """`out`, copied if it is `x` or an item of the list `x`, or a view of its memory."""
    for y in x if isinstance(x, (list, tuple)) else (x,):
        if out is y or (type(out) is Tracer is type(y) and out.atom is y.atom):
            return copy_array(out)
        if is_variable(out) and is_variable(y) and out.memory is y.memory:  # type: ignore[attr-defined, union-attr]
            return copy_array(out)
        arrays = isinstance(out, np.ndarray) and isinstance(y, np.ndarray)
        if (
            arrays
            and out.base is not None  # type: ignore[attr-defined]
            and np.may_share_memory(as_numpy_array(out), as_numpy_array(y))
        ):
            return copy_array(out)
    return out


def bind_binary(primitive: Primitive, x: ArrayOrList, y: ArrayOrList) -> Value:
    """`primitive(x, y)` with operands promoted and broadcast."""
    # The frequent cases first: equal types, and a Python number that takes the dtype of the array.
    if type(x) is Tracer:
        aval = x.atom.aval
        if type(y) is Tracer:
            other = y.atom.aval
            if aval is other:
                return bind(primitive, (x, y))
            if aval.dtype == other.dtype:
                if len(aval.shape) != len(other.shape):
                    _check_rank_promotion(x, y)
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
            return out  # type: ignore[return-value]
    return bind(primitive, broadcast(*promote(x, y)))


_NUMBERS = *PYTHON_SCALARS, Literal
_SCALARS_TAKING_KIND: dict[str, tuple[type, ...]] = {"f": (float, int), "i": (int,), "u": (int,)}


def promote(*args: ArrayOrList) -> tuple[Value, ...]:
    """`args` in their common dtype by JAX's promotion rules."""
    if args and type(args[0]) is Tracer:
        # Traced arrays of one dtype, the most frequent operands.
        dtype = args[0].atom.aval.dtype
        for x in args:
            if type(x) is not Tracer or x.atom.aval.dtype != dtype:
                break
        else:
            return args  # type: ignore[return-value]
    operands = tuple([operand(x) for x in args])
    if _common_dtype(operands) is not None:
        return operands
    return _convert_all(operands, *promoted_dtype(*operands))


def promote_inexact(*args: ArrayOrList) -> tuple[Value, ...]:
    """`args` in their common inexact dtype, the default float dtype if all are exact."""
    operands = tuple([operand(x) for x in args])
    common = _common_dtype(operands)
    if common is not None and is_inexact(common):
        return operands
    dtype, weak = promoted_dtype(*operands)
    return _convert_all(operands, inexact_dtype(dtype), weak)


def as_inexact(x: ArrayOrList) -> Value:
    """`x` in an inexact dtype: its own, or the default float type if it is exact."""
    if type(x) is Tracer and x.atom.aval.dtype.kind == "f":
        return x
    return promote_inexact(x)[0]


def promote_real(name: str, *args: ArrayOrList) -> tuple[Value, ...]:
    """`args` in one floating-point dtype; DTypeError, with the function's `name`, for complex ones."""
    args = (as_inexact(args[0]),) if len(args) == 1 else promote_inexact(*args)
    if is_complex(aval_of(args[0]).dtype):
        avals = " and ".join([repr(aval_of(x)) for x in args])
        raise DTypeError(f"{name}: arrays must be real; got {avals}")
    return args


def _common_dtype(args: Sequence[Value]) -> DType | None:
    """The dtype of `args` if all are arrays of one dtype, else None."""
    dtype = None
    for x in args:
        if type(x) in _NUMBERS:
            return None
        x_dtype = aval_of(x).dtype
        if dtype is not None and x_dtype != dtype:
            return None
        dtype = x_dtype
    return dtype


def promoted_dtype(*args: ArrayOrList) -> tuple[DType, bool]:
    """The dtype to which operands promote, and whether it is weak."""
    avals = tuple([aval_of(x) for x in args])
    promoted = promote_types(tuple([(a.dtype, a.weak_type) for a in avals]))
    if promoted is None:
        raise TypePromotionError(
            "operands must have dtypes that promote to one; got " + " and ".join(map(repr, avals)),
            fix="Convert one of them with astype.",
        )
    if len({a.dtype for a in avals}) > 1:
        _check_dtype_promotion(avals)
    return promoted


def promotion_modes() -> tuple[str, str]:
    """JAX's settings of the promotion of dtypes and of ranks, which decide what operations refuse."""
    config = jax.config
    return config.jax_numpy_dtype_promotion, config.jax_numpy_rank_promotion  # type: ignore[attr-defined]


def _check_dtype_promotion(avals: Avals) -> None:
    """Raise TypePromotionError for operands of several dtypes in `numpy_dtype_promotion("strict")`.

    A Python number goes with an array of its kind of numbers or a wider one.
    """
    if jax.config.jax_numpy_dtype_promotion != "strict" or _is_within_functx():  # type: ignore[attr-defined]
        return
    strong = {a.dtype for a in avals if not a.weak_type}
    [own, *others] = [kind(dtype) for dtype in strong] or ["c"]
    weak = {kind(a.dtype) for a in avals if a.weak_type}
    if others or not weak <= {"b": set(), "f": {*"if"}, "c": {*"ifc"}}.get(own, {"i"}):
        raise TypePromotionError(
            'operands must have one dtype, since numpy_dtype_promotion is "strict"; got '
            + " and ".join(map(repr, avals)),
            fix="Convert one of them with astype.",
        )


def _is_within_functx() -> bool:
    """Whether a function on arrays of functx, rather than the user, calls the one that promotes."""
    frame: FrameType | None = sys._getframe(1)
    for modules in [__name__], [], _MODULES_OF_WRAPPERS:
        frame = _frame_outside(frame, modules)
    return frame is not None and frame.f_globals.get("__name__", "").startswith(_ARRAY_MODULES)


def _frame_outside(frame: FrameType | None, modules: Sequence[str]) -> FrameType | None:
    """The innermost frame, from `frame` outwards, outside `modules`; by default that of `frame`."""
    modules = modules or [frame.f_globals["__name__"] if frame else ""]
    while frame is not None and frame.f_globals.get("__name__") in modules:
        frame = frame.f_back
    return frame


_MODULES_OF_WRAPPERS = [
    "functx.core.argument_errors",
    *[
        f"functx.numpy.{name}"
        for name in (
            *("array_protocols", "eager_programs", "floating_point", "mutation", "ndarray_methods"),
            *("operators", "tracer_methods", "ufunc_methods", "ufuncs"),
        )
    ],
]
"""Modules whose functions call others in the name of the user: `x + y` calls `add`."""
_ARRAY_MODULES = tuple(
    f"functx.{name}"
    for name in (
        *("experimental.", "image", "implicit", "lax.", "nn.", "numpy.", "ops.", "random."),
        *("scipy.", "sparse."),
    )
)


def _check_rank_promotion(*args: Value) -> None:
    """Raise ShapeError, or warn, for arrays of several ranks as `numpy_rank_promotion` says."""
    setting = jax.config.jax_numpy_rank_promotion  # type: ignore[attr-defined]
    avals = [aval_of(x) for x in args]
    if setting == "allow" or len({a.ndim for a in avals if a.ndim}) < 2 or _is_within_functx():
        return
    problem = (
        f"operands must have one rank, since numpy_rank_promotion is {setting!r}; got "
        + " and ".join(map(repr, avals))
    )
    if setting == "raise":
        raise ShapeError(problem, fix="Reshape one of them, as in x[None, :].")
    warnings.warn(problem, stacklevel=2)


def number_literal_like(value: object, x: Value | Literal) -> Value:
    """The Python number `value` in the dtype of `x`, weak if `x` is."""
    aval = aval_of(x)
    return number_literal(value, aval.dtype, aval.weak_type)


def _convert_all(args: Sequence[Value], dtype: DType, weak: bool) -> tuple[Value, ...]:
    return tuple([_convert(x, dtype, weak) for x in args])


def _convert(x: Value | Literal, dtype: DType, weak: bool) -> Value:
    if type(x) in _NUMBERS:
        return number_literal(x.value if type(x) is Literal else x, dtype, weak)
    # Of operands of one dtype the result is weak only if all are: no conversion is needed.
    return x if aval_of(x).dtype == dtype else ops.convert_element_type(x, dtype, weak)  # type: ignore[return-value]


def number_literal(value: object, dtype: DType, weak: bool = False) -> Value:
    """The Python number `value` as a literal of `dtype`; raises ValueRangeError for an int out of range."""
    exact = literal(value, dtype)
    return scalar_literal(exact.value, dtype, True, repr(exact.value)) if weak else exact  # type: ignore[return-value]


def broadcast(*args: Value, check_ranks: bool = True) -> tuple[Value, ...]:
    """`args` in their common shape by NumPy's rule; scalars beside arrays stay scalars.

    With `check_ranks`, `numpy_rank_promotion` may refuse different ranks.
    """
    shapes = [aval_of(x).shape for x in args]
    if check_ranks and len({*map(len, shapes)}) > 1:
        _check_rank_promotion(*args)
    primitives = _broadcasts(*shapes)
    return tuple(
        [
            x if primitive is None else primitive(x)
            for x, primitive in zip(args, primitives, strict=True)
        ]
    )


@lru_cache(maxsize=4096)
def _broadcasts(*shapes: Shape) -> tuple[ops.BroadcastInDim | None, ...]:
    """The primitives that broadcast arrays of `shapes`; None for those that need none."""
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


def broadcast_to(x: Value, shape: Shape) -> Value:
    """`x` broadcast to `shape`: repeated along new leading dimensions and those of length 1."""
    given = aval_of(x).shape
    if given == shape:
        return x
    if not is_broadcastable(given, shape):
        raise ShapeError(f"broadcast_to: {aval_of(x)!r} must broadcast to the shape; got {shape}")
    return ops.broadcast_in_dim(x, shape, _trailing_dims(len(given), len(shape)))


def is_broadcastable(shape: Shape, target: Shape) -> bool:
    """Whether an array of `shape` broadcasts to the shape `target`."""
    num_new = len(target) - len(shape)
    return num_new >= 0 and all(n in (1, m) for n, m in zip(shape, target[num_new:], strict=True))


@lru_cache(maxsize=4096)
def broadcast_shapes(*shapes: Shape) -> Shape:
    """The common shape of arrays of `shapes` by NumPy's rule; raises ShapeError without one."""
    if len({*shapes}) < 2:
        return shapes[0] if shapes else ()
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
