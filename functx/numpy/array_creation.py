"""New arrays: from values, filled with one value, and ranges. Inside a trace they are traced."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, SupportsIndex, TypeGuard

import jax
import numpy as np

from functx import ops
from functx.core.binding import bind
from functx.core.concretization import check_not_differentiated, concretize
from functx.core.errors import ArgumentError, DTypeError, ShapeError, ValueRangeError, short_repr
from functx.core.memory_layouts import noncontiguous_strides, record_layout_dependence
from functx.core.program import Literal
from functx.core.rewriting import apply
from functx.core.tracer import (
    FUNCTX_ARRAY_TYPES,
    HOST_ARRAY_TYPES,
    Tracer,
    abstractify,
    as_known_array,
    as_ndarray,
    aval_of,
    copy_as_ndarray,
    current_builder,
    filled_ndarray,
    is_variable,
    literal_of,
    ndarray,
)
from functx.core.tracing import trace
from functx.core.types import (
    DType,
    Shape,
    accumulation_dtype,
    canonical_dtype,
    float0,
    inexact_dtype,
    is_complex,
    kind,
    real_dtype,
)
from functx.core.typing import ArrayLike, ArrayOrList, DTypeLike, ShapeLike, Value
from functx.core.wrappers import is_wrapper
from functx.numpy import shapes
from functx.numpy.devices import on_device
from functx.numpy.eager_programs import as_one_program
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
from functx.ops.views import Copy

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
    a: ArrayOrList,
    dtype: DTypeLike = None,
    order: str | None = None,
    *,
    copy: bool | None = None,
    device: object = None,
) -> Value:
    """`a`, a number, an array, or a nested list of numbers and arrays, as an array on `device`."""
    if device is not None:
        return on_device(asarray(a, dtype, order, copy=copy), device)
    if order in ("C", "F"):
        return shapes.in_order(asarray(a, dtype, copy=copy), order)
    if type(a) is Tracer:
        array = a if dtype is None else ops.convert_element_type(a, dtype)
        return copy_if_same_memory(array, a) if copy else array
    if isinstance(a, (list, tuple)):
        array = _array_from_list(a, dtype)
        return copy_array(array) if isinstance(array, Tracer) else array
    builder = current_builder.get()
    if type(a) in PYTHON_SCALARS or isinstance(a, (np.generic, Literal)):
        number = literal_of(a)
        if number is None:
            raise DTypeError(f"asarray: a must hold numbers; got {a!r}")
        if dtype is not None:
            number = cast_literal(a, canonical_dtype(dtype))
        elif kind(number.aval.dtype) in "iu":
            literal(number.value, number.aval.dtype)
        if builder is None:
            return copy_as_ndarray(np.array(number.value, number.aval.dtype), number.aval.weak_type)
        return Tracer(number, builder)
    if isinstance(a, np.ndarray):
        if isinstance(a, np.ma.MaskedArray) and not np.ma.is_masked(a):
            a = np.asarray(a)
        target_dtype = aval_of(a).dtype if dtype is None else canonical_dtype(dtype)
        if copy or type(a) not in HOST_ARRAY_TYPES or a.dtype != target_dtype:
            a = np.array(a, target_dtype, copy=copy)
        if builder is None:
            known = type(a) is ndarray or (type(a) in FUNCTX_ARRAY_TYPES and dtype is None)
            return a if known else as_ndarray(a)  # type: ignore[return-value]
        return Tracer(builder.atom(a), builder)
    known = as_known_array(a)
    if known is not a:
        return asarray(known, dtype, copy=copy)
    aval_of(a)
    if builder is not None and not is_wrapper(a):
        a = Tracer(builder.atom(a), builder)
    array = a if dtype is None else ops.convert_element_type(a, dtype)  # type: ignore[assignment, arg-type]
    return copy_if_same_memory(array, a) if copy else array


def array(
    object: ArrayOrList,
    dtype: DTypeLike = None,
    copy: bool = True,
    order: str | None = None,
    ndmin: int = 0,
) -> Value:
    """A copy of `object` as an array of at least `ndmin` dimensions, new ones in front."""
    result = asarray(object, dtype)
    # Outside a trace, the array of a list is new.
    if copy and not (isinstance(object, (list, tuple)) and isinstance(result, np.ndarray)):
        result = shapes.copy(result, order)
    result = shapes.in_order(result, order)
    missing = ndmin - aval_of(result).ndim
    return ops.reshape(result, (1,) * missing + aval_of(result).shape) if missing > 0 else result


def asanyarray(a: ArrayOrList, dtype: DTypeLike = None, order: str | None = None) -> Value:
    """`a` as an array, as `asarray` makes it."""
    return asarray(a, dtype, order)


def ascontiguousarray(a: ArrayOrList, dtype: DTypeLike = None) -> Value:
    """`a` as an array of at least one dimension in row-major order, copied if it is not contiguous."""
    a = asarray(a, dtype)
    return shapes.in_order(a, "C") if aval_of(a).shape else ops.reshape(a, (1,))


def _array_from_list(items: Sequence[ArrayOrList], dtype: DTypeLike) -> Value:
    """The array of nested lists: by NumPy if all leaves are concrete, else by concatenation."""
    leaves: list[Any] = []
    shape = _collect_leaves(items, leaves)
    if all(type(x) in PYTHON_SCALARS or isinstance(x, (np.ndarray, np.generic)) for x in leaves):
        target_dtype = _list_dtype(leaves, dtype)
        try:
            return asarray(np.array(items, target_dtype))
        except OverflowError:
            raise ValueRangeError(
                f"array: the numbers must fit {target_dtype}; got {short_repr(items)}"
            ) from None
    if dtype is None:
        leaves = list(promote(*leaves))
    vectors = [_raveled_leaf(x, dtype) for x in leaves]
    result = vectors[0] if len(vectors) == 1 else ops.concatenate(vectors, 0)
    result = ops.convert_element_type(result, aval_of(result).dtype)
    return ops.reshape(result, shape)


def _raveled_leaf(x: Value | Literal, dtype: DTypeLike) -> Value:
    """The elements of `x` as a vector, in `dtype` if it is not None."""
    if dtype is not None:
        x = asarray(x, dtype)
    aval = aval_of(x)
    if aval.ndim:
        return ops.reshape(x, (aval.size,))
    return bind(ops.Full((1,)), (literal(x.value, aval.dtype) if type(x) is Literal else x,))


def _collect_leaves(items: ArrayOrList, leaves: list[Any]) -> tuple[int, ...]:
    """Append the leaves of nested lists to `leaves`, and return the shape of the array."""
    if not isinstance(items, (list, tuple)):
        leaves.append(items)
        return aval_of(items).shape
    shapes = [_collect_leaves(x, leaves) for x in items]
    if any(s != shapes[0] for s in shapes):
        raise ShapeError(
            f"array: the items of a list must have one shape; got {_describe_shapes(shapes)}"
        )
    return (len(items), *(shapes[0] if shapes else ()))


def _describe_shapes(shapes: Sequence[Shape]) -> str:
    return " and ".join(map(str, dict.fromkeys(shapes)))


def _list_dtype(leaves: Sequence[ArrayOrList], dtype: DTypeLike) -> DType:
    if dtype is not None:
        return canonical_dtype(dtype)
    return promoted_dtype(*leaves)[0] if leaves else canonical_dtype(FLOAT)


def _memory_axes(shape: Shape, order: str, like: Any = None) -> Shape | None:
    """The axes of an array in `order`, from the outermost in memory; None for row-major order.

    `order` is as for `copy`; `like` is the array whose order "K" and "A" keep.
    """
    if order == "K":
        if type(like) is Tracer:
            record_layout_dependence(like)
        strides = noncontiguous_strides(like) if isinstance(like, (Tracer, np.ndarray)) else None
        if strides is None or len(strides) != len(shape):
            return None
        return tuple(sorted(range(len(shape)), key=lambda d: -abs(strides[d])))
    column_major = order == "F" or (
        order == "A" and like is not None and shapes.is_column_major(like)
    )
    return tuple(range(len(shape)))[::-1] if column_major and len(shape) > 1 else None


def _full(
    shape: ShapeLike,
    value: ArrayLike,
    dtype: DType,
    weak: bool = False,
    order: str = "C",
    like: Any = None,
) -> Value:
    """A new array of `shape` filled with the number `value`, in `order`, that of `like` with "K" and "A"."""
    shape = canonical_shape(shape)
    axes = None if order == "C" else _memory_axes(shape, order, like)
    if axes is not None:
        permuted = _full(tuple([shape[d] for d in axes]), value, dtype, weak)
        return ops.permute_dims(permuted, tuple([axes.index(d) for d in range(len(shape))]))
    builder = current_builder.get()
    if builder is None:
        return filled_ndarray(value, shape, dtype, weak)
    fill = literal_of(value) if weak else literal(value, dtype)
    return builder.append(ops.Full(shape), (fill,))  # type: ignore[arg-type]


def zeros(
    shape: ShapeLike, dtype: DTypeLike = None, order: str = "C", *, device: object = None
) -> Value:
    """An array of `shape` filled with zeros, of the default float dtype if `dtype` is None.

    An array of `jax.dtypes.float0`, the dtype of tangents of integers, is one of NumPy.
    """
    if dtype is float0:
        return np.zeros(shape, float0)  # type: ignore[return-value]
    target_dtype = canonical_dtype(FLOAT if dtype is None else dtype)
    return on_device(_full(shape, 0, target_dtype, order=order), device)


empty = zeros


def ones(
    shape: ShapeLike, dtype: DTypeLike = None, order: str = "C", *, device: object = None
) -> Value:
    """An array of `shape` filled with ones, of the default float dtype if `dtype` is None."""
    target_dtype = canonical_dtype(FLOAT if dtype is None else dtype)
    return on_device(_full(shape, 1, target_dtype, order=order), device)


def full(
    shape: ShapeLike,
    fill_value: ArrayOrList,
    dtype: DTypeLike = None,
    order: str = "C",
    *,
    device: object = None,
) -> Value:
    """An array of `shape` filled with `fill_value`, a number or an array that broadcasts."""
    if type(fill_value) in PYTHON_SCALARS:
        target_dtype = canonical_dtype(type(fill_value) if dtype is None else dtype)
        weak = dtype is None and type(fill_value) is not bool
        value = literal(_cast_number(fill_value, target_dtype), target_dtype).value
        result = _full(shape, value, target_dtype, weak, order)
    else:
        filled = broadcast_to(asarray(fill_value, dtype), canonical_shape(shape))
        result = shapes.copy(filled, order)
    return on_device(result, device)


def _cast_number(value: object, dtype: DType) -> object:
    """The number `value`, truncated to an integer if `dtype` is an integer dtype."""
    if kind(dtype) in "iu" and isinstance(value, float) and math.isfinite(value):
        return int(value)
    return value


def full_like(
    a: ArrayOrList,
    fill_value: ArrayOrList,
    dtype: DTypeLike = None,
    order: str = "K",
    subok: bool = True,
    shape: ShapeLike | None = None,
    *,
    device: object = None,
) -> Value:
    """An array with the shape and dtype of `a`, unless given, filled with `fill_value`.

    For a Variable it is a Variable, without history.
    """
    a = asarray(a) if isinstance(a, (list, tuple)) else a
    aval = abstractify(a)
    target_shape = aval.shape if shape is None else canonical_shape(shape)
    target_dtype = aval.dtype if dtype is None else canonical_dtype(dtype)
    if type(fill_value) in PYTHON_SCALARS:
        weak = dtype is None and aval.weak_type
        number = literal(_cast_number(fill_value, target_dtype), target_dtype)
        if is_recording(a):
            result = a.record(ops.Full(target_shape), (number,))
        else:
            result = _matching_array_type(
                a, lambda: _full(target_shape, number.value, target_dtype, weak, order, a)
            )
    else:
        filled = broadcast_to(asarray(fill_value, target_dtype), target_shape)
        if is_recording(a):
            result = a.record(Copy(), (filled,))
        else:
            axes = _memory_axes(target_shape, order, a)
            result = shapes.copy(filled if axes is None else ops.permute_dims(filled, axes), "C")
            if axes is not None:
                result = ops.permute_dims(result, tuple([axes.index(d) for d in range(len(axes))]))
    return on_device(result, device)


def is_recording(x: object) -> TypeGuard[Any]:
    """Whether operations on `x` are recorded: a Variable outside transforms."""
    return is_variable(x) and current_builder.get() is None


def _matching_array_type(like: ArrayOrList, make: Callable[[], Value]) -> Value:
    """The array that `make` returns, as a JAX array outside a trace if `like` is one."""
    if (
        current_builder.get() is not None
        or isinstance(like, (np.ndarray, np.generic, jax.ShapeDtypeStruct))
        or (type(like) in PYTHON_SCALARS)
    ):
        return make()
    program, captured = trace(lambda: [make()], [])
    return apply(None, program, captured)[0]


def zeros_like(
    a: ArrayOrList,
    dtype: DTypeLike = None,
    order: str = "K",
    subok: bool = True,
    shape: ShapeLike | None = None,
    *,
    device: object = None,
) -> Value:
    """Zeros with the shape and dtype of `a`, unless given."""
    return full_like(a, 0, dtype, order, shape=shape, device=device)


def empty_like(
    prototype: ArrayOrList,
    dtype: DTypeLike = None,
    order: str = "K",
    subok: bool = True,
    shape: ShapeLike | None = None,
    *,
    device: object = None,
) -> Value:
    """Zeros with the shape and dtype of `prototype`, unless given."""
    return full_like(prototype, 0, dtype, order, shape=shape, device=device)


def ones_like(
    a: ArrayOrList,
    dtype: DTypeLike = None,
    order: str = "K",
    subok: bool = True,
    shape: ShapeLike | None = None,
    *,
    device: object = None,
) -> Value:
    """Ones with the shape and dtype of `a`, unless given."""
    return full_like(a, 1, dtype, order, shape=shape, device=device)


def cast_literal(x: ArrayOrList, dtype: DType) -> Literal:
    """The literal of the number `x` in `dtype`. A NumPy scalar is cast; a Python number must fit."""
    if isinstance(x, np.generic):
        return literal(x.astype(dtype).item(), dtype)
    return literal(_cast_number(x.value if type(x) is Literal else x, dtype), dtype)


def arange(
    start: Any,
    stop: Any = None,
    step: Any = None,
    dtype: DTypeLike = None,
    *,
    device: object = None,
) -> Value:
    """The numbers from `start`, by default 0, up to `stop`, which is excluded, in steps of `step`."""
    start, stop, step = [_static_number(x, "arange") for x in (start, stop, step)]
    if stop is None:
        start, stop = 0 if isinstance(start, (int, np.integer)) else type(start)(0), start
    step = 1 if step is None else step
    if any([isinstance(x, (complex, np.complexfloating)) for x in (start, stop, step)]):
        raise DTypeError(f"arange: the bounds must be real; got {start}, {stop} and {step}")
    result_dtype = (
        canonical_dtype(dtype) if dtype is not None else promoted_dtype(start, stop, step)[0]
    )
    if current_builder.get() is None:
        return on_device(as_ndarray(np.arange(start, stop, step).astype(result_dtype)), device)
    if step == 0:
        raise ValueRangeError("arange: the step must not be 0; got 0")
    count = max(0, math.ceil((stop - start) / step))
    # Half floats represent few integers, and bool only two.
    counting_dtype = (
        canonical_dtype(INT) if result_dtype == np.bool_ else accumulation_dtype(result_dtype)
    )
    numbers = ops.iota(counting_dtype, count)
    # NumPy's scalars are cast: a negative step of unsigned integers wraps around.
    if step != 1:
        numbers = ops.mul(numbers, cast_literal(np.asarray(step)[()], counting_dtype))
    if start != 0:
        numbers = ops.add(numbers, cast_literal(np.asarray(start)[()], counting_dtype))
    return on_device(ops.convert_element_type(numbers, result_dtype), device)


def _static_number(x: ArrayOrList | None, requested_by: str) -> Any:
    """The value of the number `x`, which must be known while tracing."""
    if x is None or type(x) in PYTHON_SCALARS:
        return x
    if type(x) is Tracer:
        check_not_differentiated(x, requested_by)
        x = concretize(x, requested_by)
    value = np.asarray(x)
    if value.ndim:
        raise ArgumentError(f"{requested_by}: the bounds must be numbers; got {aval_of(x)!r}")
    return value[()]


@as_one_program
def linspace(
    start: ArrayOrList,
    stop: ArrayOrList,
    num: int = 50,
    endpoint: bool = True,
    retstep: bool = False,
    dtype: DTypeLike = None,
    axis: int = 0,
    *,
    device: object = None,
) -> Any:
    """`num` evenly spaced numbers from `start` to `stop`, which is the last one if `endpoint`.

    With `retstep`, the pair of the numbers and the step between them.
    """
    num = sample_count("linspace", num)
    start, stop = broadcast(*promote_inexact(start, stop))
    shape = max(aval_of(start).shape, aval_of(stop).shape, key=len)
    working_dtype = aval_of(start).dtype
    intervals = num - 1 if endpoint else num
    axis = canonical_axis(axis, len(shape) + 1)
    start, stop = [_with_unit_axis(x, shape, axis) for x in (start, stop)]
    result_dtype = inexact_dtype(working_dtype) if dtype is None else canonical_dtype(dtype)
    out_shape = (*shape[:axis], num, *shape[axis:])
    position = ops.broadcasted_iota(real_dtype(working_dtype), out_shape, axis)
    of_integers = kind(result_dtype) in "iu"
    if is_complex(working_dtype):
        position = ops.convert_element_type(position, working_dtype)
    bounds = [_broadcast_unless_scalar(x, out_shape) for x in (start, stop)]
    if of_integers:
        from functx.numpy.floating_point import floor, floor_divide

        # The quotient is floored from its remainder: the compiler may round a division by a constant.
        rise = ops.mul(position, ops.sub(bounds[1], bounds[0]))
        count = float(intervals or 1)
        numbers = floor_divide(ops.add(ops.mul(bounds[0], count), rise), count)
    else:
        # (1 - t) start + t stop is more accurate than start + t (stop - start).
        t = ops.div(position, float(intervals or 1))
        numbers = ops.add(ops.mul(bounds[0], ops.sub(1.0, t)), ops.mul(bounds[1], t))
    if endpoint and num > 1:
        last = floor(bounds[1]) if of_integers else bounds[1]
        numbers = ops.select(ops.eq(position, float(intervals)), last, numbers)
    numbers = on_device(ops.convert_element_type(numbers, result_dtype), device)
    if not retstep:
        return numbers
    extent = ops.sub(stop, start) if intervals > 0 else full(shape, math.nan, working_dtype)
    step = ops.reshape(ops.div(extent, float(max(intervals, 1))), shape)
    return numbers, ops.convert_element_type(step, inexact_dtype(result_dtype))


def sample_count(name: str, num: SupportsIndex) -> int:
    count = as_int(f"{name}: the number of samples", num)
    if count < 0:
        raise ValueRangeError(f"{name}: the number of samples must not be negative; got {count}")
    return count


def _with_unit_axis(x: Value, shape: tuple[int, ...], axis: int) -> Value:
    """The bound `x` with a dimension of length 1 at `axis`; a scalar stays a scalar."""
    return ops.expand_dims(broadcast_to(x, shape), axis) if shape else x


def _broadcast_unless_scalar(x: Value, shape: tuple[int, ...]) -> Value:
    return broadcast_to(x, shape) if aval_of(x).shape else x


@as_one_program
def logspace(
    start: ArrayOrList,
    stop: ArrayOrList,
    num: int = 50,
    endpoint: bool = True,
    base: ArrayOrList = 10.0,
    dtype: DTypeLike = None,
    axis: int = 0,
) -> Value:
    """`base` to the powers of `linspace(start, stop, num)`."""
    from functx.numpy.operators import power

    numbers = power(base, linspace(start, stop, num, endpoint, axis=axis))
    return numbers if dtype is None else ops.convert_element_type(numbers, dtype)


@as_one_program
def geomspace(
    start: ArrayOrList,
    stop: ArrayOrList,
    num: int = 50,
    endpoint: bool = True,
    dtype: DTypeLike = None,
    axis: int = 0,
) -> Value:
    """`num` numbers from `start` to `stop` with a constant ratio of neighbours."""
    from functx.numpy import operators, ufuncs

    num = sample_count("geomspace", num)
    # A negative ratio has a logarithm in complex numbers: these are asked for by `dtype`.
    given = () if dtype is None else (np.zeros((), canonical_dtype(dtype)),)
    start, stop = broadcast(*promote_inexact(start, stop, *given)[:2])
    working_dtype = aval_of(start).dtype
    ratio = ufuncs.log(ops.div(stop, start))
    exponents = linspace(operators.multiply(ratio, 0.0), ratio, num, endpoint, axis=axis)
    shape = max(aval_of(start).shape, aval_of(stop).shape, key=len)
    axis = canonical_axis(axis, len(shape) + 1)
    out_shape = (*shape[:axis], num, *shape[axis:])
    first, last = [
        _broadcast_unless_scalar(_with_unit_axis(x, shape, axis), out_shape) for x in (start, stop)
    ]
    numbers = ops.mul(first, ufuncs.exp(exponents))
    if endpoint and num > 1:
        position = ops.broadcasted_iota(np.int32, out_shape, axis)
        numbers = ops.select(ops.eq(position, num - 1), last, numbers)
    return ops.convert_element_type(
        numbers, inexact_dtype(working_dtype) if dtype is None else dtype
    )
