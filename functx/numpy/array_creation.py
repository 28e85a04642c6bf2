"""New arrays: from values, and of a shape full of one value. Inside a trace they are part of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from functx import ops
from functx.core.concretization import check_not_differentiated, concretize
from functx.core.errors import ArgumentError, DTypeError, ShapeError, ValueRangeError, short_repr
from functx.core.functionalization import is_contiguous
from functx.core.ndarray import (
    FUNCTX_ARRAY_TYPES,
    HOST_ARRAY_TYPES,
    as_ndarray,
    copy_as_ndarray,
    filled_ndarray,
    ndarray,
)
from functx.core.program import Literal
from functx.core.rewriting import apply
from functx.core.tracer import Tracer, aval_of, current_builder, literal_of
from functx.core.tracing import bind, trace
from functx.core.types import (
    DType,
    accumulation_dtype,
    canonical_dtype,
    inexact_dtype,
    is_complex,
    kind,
    real_dtype,
)
from functx.numpy.promotion import (
    broadcast,
    broadcast_to,
    copy_array,
    copy_if_same_memory,
    promote,
    promote_inexact,
    promoted_dtype,
)
from functx.ops.operands import PYTHON_SCALARS, as_int, canonical_axis, canonical_shape, literal

__all__ = [
    "arange",
    "array",
    "asanyarray",
    "asarray",
    "ascontiguousarray",
    "empty",
    "empty_like",
    "full",
    "full_like",
    "geomspace",
    "linspace",
    "logspace",
    "ones",
    "ones_like",
    "zeros",
    "zeros_like",
]


FLOAT, INT = np.dtype("float64"), np.dtype("int64")


def asarray(
    a: Any, dtype: Any = None, order: Any = None, *, copy: bool | None = None, device: Any = None
) -> Any:
    """`a` as an array: numbers, nested lists of numbers and of arrays, or an array itself."""
    if type(a) is Tracer:
        made = a if dtype is None else ops.convert_element_type(a, dtype)
        return copy_if_same_memory(made, a) if copy else made
    if isinstance(a, (list, tuple)):
        made = _array_from_list(a, dtype)
        return copy_array(made) if type(made) is Tracer else made
    builder = current_builder.get()
    if type(a) in PYTHON_SCALARS or isinstance(a, (np.generic, Literal)):
        found = literal_of(a)
        if found is None:
            raise DTypeError(f"asarray: a must hold numbers; got {a!r}")
        if dtype is not None:
            found = cast_literal(a, canonical_dtype(dtype))
        elif kind(found.aval.dtype) in "iu":
            literal(found.value, found.aval.dtype)
        if builder is None:
            return copy_as_ndarray(np.array(found.value, found.aval.dtype), found.aval.weak_type)
        return Tracer(found, builder)
    if isinstance(a, np.ndarray):
        if isinstance(a, np.ma.MaskedArray) and not np.ma.is_masked(a):
            a = np.asarray(a)
        wanted = aval_of(a).dtype if dtype is None else canonical_dtype(dtype)
        if copy or type(a) not in HOST_ARRAY_TYPES or a.dtype != wanted:
            a = np.array(a, wanted, copy=copy)
        if builder is None:
            return (
                a
                if type(a) is ndarray or (type(a) in FUNCTX_ARRAY_TYPES and dtype is None)
                else as_ndarray(a)
            )
        return Tracer(builder.atom(a), builder)
    aval_of(a)
    if builder is not None:
        a = Tracer(builder.atom(a), builder)
    return a if dtype is None else ops.convert_element_type(a, dtype)


def array(
    object: Any, dtype: Any = None, copy: bool = True, order: Any = None, ndmin: int = 0
) -> Any:
    """`object` as an array of its own, with at least `ndmin` dimensions, new ones in front."""
    made = asarray(object, dtype)
    # Outside a trace, an array made from a list is new already.
    if copy and (not isinstance(object, (list, tuple)) or current_builder.get() is not None):
        made = copy_array(made)
    missing = ndmin - aval_of(made).ndim
    return ops.reshape(made, (1,) * missing + aval_of(made).shape) if missing > 0 else made


def asanyarray(a: Any, dtype: Any = None, order: Any = None) -> Any:
    """`a` as an array, as `asarray` makes it."""
    return asarray(a, dtype)


def ascontiguousarray(a: Any, dtype: Any = None) -> Any:
    """`a` as an array of at least one dimension that lies in row-major order, copied if need be."""
    a = asarray(a, dtype)
    if not is_contiguous(a):
        return copy_array(a)
    return a if aval_of(a).shape else ops.reshape(a, (1,))


def _array_from_list(items: Any, dtype: Any) -> Any:
    """The array of nested lists: at once where all is NumPy's, else the leaves joined."""
    leaves: list[Any] = []
    shape = _collect_leaves(items, leaves)
    if all(type(x) in PYTHON_SCALARS or isinstance(x, (np.ndarray, np.generic)) for x in leaves):
        wanted = _list_dtype(leaves, dtype)
        try:
            return asarray(np.array(items, wanted))
        except OverflowError:
            raise ValueRangeError(
                f"array: the numbers must fit {wanted}; got {short_repr(items)}"
            ) from None
    if dtype is None:
        leaves = list(promote(*leaves))
    rows = [_raveled_leaf(x, dtype) for x in leaves]
    joined = rows[0] if len(rows) == 1 else ops.concatenate(rows, 0)
    joined = ops.convert_element_type(joined, aval_of(joined).dtype)
    return ops.reshape(joined, shape)


def _raveled_leaf(x: Any, dtype: Any) -> Any:
    """`x` as a vector of its elements, in `dtype` where it is given."""
    if dtype is not None:
        x = asarray(x, dtype)
    aval = aval_of(x)
    if aval.ndim:
        return ops.reshape(x, (aval.size,))
    return bind(ops.Full((1,)), (literal(x.value, aval.dtype) if type(x) is Literal else x,))


def _collect_leaves(items: Any, leaves: list[Any]) -> tuple[int, ...]:
    """Append what nested lists hold to `leaves`; the shape of the whole."""
    if not isinstance(items, (list, tuple)):
        leaves.append(items)
        return aval_of(items).shape
    shapes = [_collect_leaves(x, leaves) for x in items]
    if any(s != shapes[0] for s in shapes):
        raise ShapeError(
            f"array: the items of a list must have one shape; got {_describe_shapes(shapes)}"
        )
    return (len(items), *(shapes[0] if shapes else ()))


def _describe_shapes(shapes: Sequence[Any]) -> str:
    return " and ".join(map(str, dict.fromkeys(shapes)))


def _list_dtype(leaves: Sequence[Any], dtype: Any) -> DType:
    if dtype is not None:
        return canonical_dtype(dtype)
    return promoted_dtype(*leaves)[0] if leaves else canonical_dtype(FLOAT)


def _full(shape: Any, value: Any, dtype: DType, weak: bool = False) -> Any:
    """A new array of `shape` with the number `value` everywhere."""
    shape = canonical_shape(shape)
    builder = current_builder.get()
    if builder is None:
        return filled_ndarray(value, shape, dtype, weak)
    fill = literal_of(value) if weak else literal(value, dtype)
    return builder.append(ops.Full(shape), (fill,))


def zeros(shape: Any, dtype: Any = None, order: Any = "C", *, device: Any = None) -> Any:
    """An array of zeros, floating point unless `dtype` says otherwise."""
    return _full(shape, 0, canonical_dtype(FLOAT if dtype is None else dtype))


def ones(shape: Any, dtype: Any = None, order: Any = "C", *, device: Any = None) -> Any:
    """An array of ones, floating point unless `dtype` says otherwise."""
    return _full(shape, 1, canonical_dtype(FLOAT if dtype is None else dtype))


def empty(shape: Any, dtype: Any = None, order: Any = "C", *, device: Any = None) -> Any:
    """An array to be written into; here, of zeros."""
    return zeros(shape, dtype)


def full(
    shape: Any, fill_value: Any, dtype: Any = None, order: Any = "C", *, device: Any = None
) -> Any:
    """An array of `shape` with `fill_value`, a number or an array to broadcast, everywhere."""
    if type(fill_value) in PYTHON_SCALARS:
        found = canonical_dtype(type(fill_value) if dtype is None else dtype)
        weak = dtype is None and type(fill_value) is not bool
        return _full(shape, literal(_cast_number(fill_value, found), found).value, found, weak)
    return copy_array(broadcast_to(asarray(fill_value, dtype), canonical_shape(shape)))


def _cast_number(value: Any, dtype: DType) -> Any:
    """The number `value` as an array of `dtype` would hold it, fractions cut off for integers."""
    if kind(dtype) in "iu" and isinstance(value, float) and math.isfinite(value):
        return int(value)
    return value


def full_like(
    a: Any,
    fill_value: Any,
    dtype: Any = None,
    order: Any = "K",
    subok: bool = True,
    shape: Any = None,
    *,
    device: Any = None,
) -> Any:
    """An array of the shape and dtype of `a`, or those given, with `fill_value` everywhere."""
    a = asarray(a) if isinstance(a, (list, tuple)) else a
    aval = aval_of(a)
    dims = aval.shape if shape is None else canonical_shape(shape)
    found = aval.dtype if dtype is None else canonical_dtype(dtype)
    if type(fill_value) in PYTHON_SCALARS:
        weak = dtype is None and aval.weak_type
        value = literal(_cast_number(fill_value, found), found).value
        return _matching_array_type(a, lambda: _full(dims, value, found, weak))
    return copy_array(broadcast_to(asarray(fill_value, found), dims))


def _matching_array_type(like: Any, make: Callable[[], Any]) -> Any:
    """What `make` makes, as a JAX array outside a trace if `like` is one."""
    if (
        current_builder.get() is not None
        or isinstance(like, (np.ndarray, np.generic))
        or (type(like) in PYTHON_SCALARS)
    ):
        return make()
    program, captured = trace(lambda: [make()], [])
    return apply(None, program, captured)[0]


def zeros_like(
    a: Any,
    dtype: Any = None,
    order: Any = "K",
    subok: bool = True,
    shape: Any = None,
    *,
    device: Any = None,
) -> Any:
    """Zeros of the shape and dtype of `a`, or those given."""
    return full_like(a, 0, dtype, shape=shape)


def ones_like(
    a: Any,
    dtype: Any = None,
    order: Any = "K",
    subok: bool = True,
    shape: Any = None,
    *,
    device: Any = None,
) -> Any:
    """Ones of the shape and dtype of `a`, or those given."""
    return full_like(a, 1, dtype, shape=shape)


def empty_like(
    a: Any,
    dtype: Any = None,
    order: Any = "K",
    subok: bool = True,
    shape: Any = None,
    *,
    device: Any = None,
) -> Any:
    """An array to be written into, of the shape and dtype of `a`; here, of zeros."""
    return full_like(a, 0, dtype, shape=shape)


def cast_literal(x: Any, dtype: DType) -> Literal:
    """The number `x` in `dtype`, which a Python number must fit and a NumPy scalar is cast to."""
    if isinstance(x, np.generic):
        return literal(x.astype(dtype).item(), dtype)
    return literal(_cast_number(x.value if type(x) is Literal else x, dtype), dtype)


def arange(
    start: Any, stop: Any = None, step: Any = None, dtype: Any = None, *, device: Any = None
) -> Any:
    """The numbers from `start` (0 if left out) to before `stop`, `step` apart."""
    start, stop, step = [_static_number(x, "arange") for x in (start, stop, step)]
    if stop is None:
        start, stop = 0 if isinstance(start, (int, np.integer)) else type(start)(0), start
    step = 1 if step is None else step
    found = canonical_dtype(dtype) if dtype is not None else promoted_dtype(start, stop, step)[0]
    if current_builder.get() is None:
        return as_ndarray(np.arange(start, stop, step).astype(found))
    if step == 0:
        raise ValueRangeError("arange: the step must not be 0; got 0")
    count = max(0, math.ceil((stop - start) / step))
    # Short floats cannot count far, and bool cannot count.
    wide = canonical_dtype(INT) if found == np.bool_ else accumulation_dtype(found)
    numbers = ops.iota(wide, count)
    # NumPy's scalars are cast: of unsigned integers, a negative step counts round.
    if step != 1:
        numbers = ops.mul(numbers, cast_literal(np.asarray(step)[()], wide))
    if start != 0:
        numbers = ops.add(numbers, cast_literal(np.asarray(start)[()], wide))
    return ops.convert_element_type(numbers, found)


def _static_number(x: Any, asked: str) -> Any:
    """The number that `x` is, which must be known while tracing."""
    if x is None or type(x) in PYTHON_SCALARS:
        return x
    if type(x) is Tracer:
        check_not_differentiated(x, asked)
        x = concretize(x, asked)
    value = np.asarray(x)
    if value.ndim:
        raise ArgumentError(f"{asked}: the bounds must be numbers; got {aval_of(x)!r}")
    return value[()]


def linspace(
    start: Any,
    stop: Any,
    num: int = 50,
    endpoint: bool = True,
    retstep: bool = False,
    dtype: Any = None,
    axis: int = 0,
    *,
    device: Any = None,
) -> Any:
    """`num` numbers evenly from `start` to exactly `stop`, which comes last if `endpoint`.

    With `retstep` a pair, of which the second is the distance between them.
    """
    num = sample_count("linspace", num)
    start, stop = broadcast(*promote_inexact(start, stop))
    shape = max(aval_of(start).shape, aval_of(stop).shape, key=len)
    wide = aval_of(start).dtype
    gaps = num - 1 if endpoint else num
    axis = canonical_axis(axis, len(shape) + 1)
    start, stop = [_with_unit_axis(x, shape, axis) for x in (start, stop)]
    wanted = inexact_dtype(wide) if dtype is None else canonical_dtype(dtype)
    # (1 - t) start + t stop keeps more digits than start + t (stop - start).
    dims = (*shape[:axis], num, *shape[axis:])
    position = ops.broadcasted_iota(real_dtype(wide), dims, axis)
    t = ops.div(position, float(gaps or 1))
    if is_complex(wide):
        t = ops.convert_element_type(t, wide)
    numbers = ops.add(
        ops.mul(_broadcast_unless_scalar(start, dims, axis), ops.sub(1.0, t)),
        ops.mul(_broadcast_unless_scalar(stop, dims, axis), t),
    )
    if endpoint and num > 1:
        numbers = ops.select(
            ops.eq(position, float(gaps)), _broadcast_unless_scalar(stop, dims, axis), numbers
        )
    if kind(wanted) in "iu":
        from functx.numpy.floating_point import floor

        numbers = floor(numbers)
    numbers = ops.convert_element_type(numbers, wanted)
    if not retstep:
        return numbers
    gap = ops.sub(stop, start) if gaps > 0 else full(shape, math.nan, wide)
    step = ops.reshape(ops.div(gap, float(max(gaps, 1))), shape)
    return numbers, ops.convert_element_type(step, inexact_dtype(wanted))


def sample_count(name: str, num: Any) -> int:
    count = as_int(f"{name}: the number of samples", num)
    if count < 0:
        raise ValueRangeError(f"{name}: the number of samples must not be negative; got {count}")
    return count


def _with_unit_axis(x: Any, shape: tuple[int, ...], axis: int) -> Any:
    """A bound with a unit dimension at `axis`; a scalar stays one."""
    return ops.expand_dims(broadcast_to(x, shape), axis) if shape else x


def _broadcast_unless_scalar(x: Any, dims: tuple[int, ...], axis: int) -> Any:
    return broadcast_to(x, dims) if aval_of(x).shape else x


def logspace(
    start: Any,
    stop: Any,
    num: int = 50,
    endpoint: bool = True,
    base: Any = 10.0,
    dtype: Any = None,
    axis: int = 0,
) -> Any:
    """`base` to the powers of `linspace(start, stop, num)`."""
    from functx.numpy.operators import power

    numbers = power(base, linspace(start, stop, num, endpoint, axis=axis))
    return numbers if dtype is None else ops.convert_element_type(numbers, dtype)


def geomspace(
    start: Any, stop: Any, num: int = 50, endpoint: bool = True, dtype: Any = None, axis: int = 0
) -> Any:
    """`num` numbers from exactly `start` to exactly `stop`, in one ratio to each other."""
    from functx.numpy import operators, ufuncs

    num = sample_count("geomspace", num)
    start, stop = broadcast(*promote_inexact(start, stop))
    wide = aval_of(start).dtype
    ratio = ufuncs.log(ops.div(stop, start))
    exponents = linspace(operators.multiply(ratio, 0.0), ratio, num, endpoint, axis=axis)
    shape = max(aval_of(start).shape, aval_of(stop).shape, key=len)
    axis = canonical_axis(axis, len(shape) + 1)
    dims = (*shape[:axis], num, *shape[axis:])
    first, last = [
        _broadcast_unless_scalar(_with_unit_axis(x, shape, axis), dims, axis) for x in (start, stop)
    ]
    numbers = ops.mul(first, ufuncs.exp(exponents))
    if endpoint and num > 1:
        position = ops.broadcasted_iota(np.int32, dims, axis)
        numbers = ops.select(ops.eq(position, num - 1), last, numbers)
    return ops.convert_element_type(numbers, inexact_dtype(wide) if dtype is None else dtype)
