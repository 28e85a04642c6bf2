"""The operators, methods and indexing of `ndarray`, which call the functions of traced arrays.

Outside a trace, methods that return views are NumPy's own. Inside a trace, a captured array is
converted to a tracer when it is used.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from functx import ops
from functx.core.backend import backend
from functx.core.builder import Builder
from functx.core.rewriting import apply
from functx.core.tracer import (
    FUNCTX_ARRAY_TYPES,
    Tracer,
    as_numpy_array,
    aval_of,
    check_gradient_kept,
    current_builder,
    memory_owner,
    ndarray,
)
from functx.core.tracing import trace, trace_closed
from functx.core.types import SHORT_NAMES, canonical_dtype
from functx.core.typing import DTypeLike, Index, NumPyArray, Value
from functx.core.wrappers import is_wrapper
from functx.lowering.execution import has_other_bytes
from functx.numpy import indexing, mutation
from functx.numpy.boolean_masks import OPERATOR_SYMBOLS
from functx.numpy.indexer import cast_for_assignment
from functx.numpy.tracer_methods import OPERATORS, make_operator_pair, missing_attribute_of_array

__all__ = ["ndarray"]


def tracer_in(x: NumPyArray, builder: Builder) -> Tracer:
    """The tracer of the captured array `x` in the program of `builder`."""
    return Tracer(builder.atom(x), builder)


def _define_ndarray_operator(name: str, fun: Callable[..., Any], reflected: str) -> None:
    """Define the operator `__name__` of ndarray, and its reflected form if it has one."""
    method, reflection = make_operator_pair(fun, reflected)
    setattr(ndarray, f"__{name}__", method)
    if name in OPERATORS:
        setattr(ndarray, reflected, reflection)


def _define_in_place_operator(name: str, symbol: str) -> None:
    operation, general = f"x {symbol}= y", getattr(Tracer, f"__i{name}__")
    compute = getattr(ndarray, f"__{name}__")

    def method(self: ndarray, other: object) -> Value:
        builder = current_builder.get()
        if builder is not None:
            return general(tracer_in(self, builder), other)
        result = compute(self, other)
        if result is NotImplemented or (not self.ndim and not memory_owner(self).ndim):
            return result
        return mutation.assign_array(self, result, operation)

    setattr(ndarray, f"__i{name}__", method)


def _define_numpy_method(name: str) -> None:
    """Define the method `name` of ndarray: NumPy's method outside a trace, with functx's errors."""
    numpy_method, general = getattr(np.ndarray, name), getattr(Tracer, name)

    def method(self: ndarray, *args: object, **kwargs: object) -> Value:
        builder = current_builder.get()
        if builder is not None:
            return general(tracer_in(self, builder), *args, **kwargs)
        for x in args:
            check_gradient_kept(x, f"x.{name}()")
        try:
            result = numpy_method(self, *args, **kwargs)
        except (TypeError, ValueError, IndexError) as error:
            raise_traced_error(general, self, *args, **kwargs)
            if "read-only" in str(error):
                mutation.check_writable_array(self, f"x.{name}()")
            raise
        return (
            result
            if result is None or result.base is not None
            else ops.convert_element_type(result, aval_of(self).dtype, self.weak_type)
        )

    method.__name__, method.__doc__ = name, general.__doc__
    setattr(ndarray, name, method)


def _define_numpy_property(name: str) -> None:
    numpy_property, general = getattr(np.ndarray, name), getattr(Tracer, name)

    def read(self: ndarray) -> Value:
        builder = current_builder.get()
        if builder is not None:
            return general.__get__(tracer_in(self, builder))
        try:
            return numpy_property.__get__(self)
        except ValueError:
            raise_traced_error(general.__get__, self)
            raise

    def write(self: ndarray, value: Value) -> None:
        builder = current_builder.get()
        if builder is None:
            check_gradient_kept(value, f"x.{name} =")
            numpy_property.__set__(self, as_numpy_array(value))
        else:
            general.__set__(tracer_in(self, builder), value)

    setattr(ndarray, name, property(read, write, doc=general.__doc__))


def raise_traced_error(
    fun: Callable[..., Any], x: ndarray, *args: object, **kwargs: object
) -> None:
    """Trace `fun` on the type of `x`, to raise the error that it raises under `jit`, if any."""

    def body(tracer: Tracer) -> list[Value]:
        fun(tracer, *args, **kwargs)
        return []

    trace(body, [aval_of(x)])


_get: Callable[..., Any] = np.ndarray.__getitem__
_set: Callable[..., None] = np.ndarray.__setitem__
_STATIC_INDEX_TYPES = frozenset([int, slice, type(None), type(Ellipsis)])


def _getitem(self: ndarray, idx: Index) -> ndarray | Value:
    """`x[idx]` by NumPy, whose views it keeps; an element is an array without dimensions."""
    if current_builder.get() is not None:
        return indexing.getitem(self, idx)
    basic = type(idx) in _STATIC_INDEX_TYPES or (
        type(idx) is tuple and _STATIC_INDEX_TYPES.issuperset(map(type, idx))
    )
    if not basic:
        items = idx if type(idx) is tuple else (idx,)
        if any([isinstance(item, jax.Array) or is_wrapper(item) for item in items]):
            return indexing.getitem(self, idx)
        # An integer `ndarray` without dimensions becomes an int, since NumPy would copy.
        idx = tuple(
            [
                int(item)
                if type(item) in FUNCTX_ARRAY_TYPES and not item.ndim and item.dtype.kind in "iu"
                else item
                for item in items
            ]
        )
        basic = _STATIC_INDEX_TYPES.issuperset(map(type, idx))
    try:
        result = _get(self, idx)
    except IndexError:
        return indexing.getitem(self, idx)
    if type(result) in FUNCTX_ARRAY_TYPES:
        return result
    return np.ndarray.view(np.asarray(result), type(self))


def _setitem(self: ndarray, idx: Index, value: Value) -> None:
    builder = current_builder.get()
    if builder is not None:
        mutation.set_item(tracer_in(self, builder), idx, value)
        return
    if getattr(value, "dtype", None) != self.dtype and type(value) not in _NUMBERS:
        value = cast_for_assignment(value, aval_of(self).dtype)
    if isinstance(value, Tracer):
        check_gradient_kept(value, "x[...] =")
    try:
        _set(self, idx, value)
    except (TypeError, ValueError, IndexError, OverflowError):
        raise_traced_error(mutation.set_item, self, idx, value)
        mutation.check_writable_array(self, "x[...] =")
        raise


_NUMBERS = frozenset([bool, int, float, complex])


def _is_foreign(dtype: DTypeLike) -> bool:
    """Whether `dtype` is one of NumPy, such as that of texts of a length, that functx does not have."""
    try:
        known = np.dtype(dtype)
    except (TypeError, ValueError):
        return False
    return known not in SHORT_NAMES and known.kind != "O" and known.itemsize > 0


def _astype(self: ndarray, dtype: DTypeLike = None, *args: object, **options: object) -> Value:
    """The elements in `dtype`; a NumPy array for a dtype that functx does not have."""
    is_foreign = _is_foreign(dtype)
    if current_builder.get() is None and (is_foreign or args or not options.keys() <= {"copy"}):
        result = as_numpy_array(self).astype(dtype, *args, **options)
        return result if is_foreign else Tracer.astype(result, dtype)  # type: ignore[attr-defined]
    return Tracer.astype(self, dtype, *args, **options)  # type: ignore[arg-type]


def _view(
    self: ndarray, dtype: DTypeLike = None, type: type[NumPyArray] | None = None
) -> Value | NumPyArray:
    """The memory of the array as another dtype, or as another class of arrays."""
    requested = dtype if type is None else type
    builder = current_builder.get()
    if isinstance(requested, _builtin_type) and issubclass(requested, np.ndarray):
        return np.ndarray.view(self, *[x for x in (dtype, type) if x is not None])
    if builder is not None:
        return Tracer.view(tracer_in(self, builder), dtype)  # type: ignore[attr-defined]
    wanted = np.dtype(dtype) if dtype is None or _is_foreign(dtype) else canonical_dtype(dtype)
    if dtype is None or np.dtype(dtype) == self.dtype:
        return np.ndarray.view(self)
    # NumPy gives a byte to each integer of less bits.
    is_packed = min(ops.bit_width(wanted), ops.bit_width(self.dtype)) < 8
    try:
        view = None if is_packed else np.ndarray.view(self, wanted)
    except (TypeError, ValueError):
        raise_traced_error(Tracer.view, self, dtype)  # type: ignore[attr-defined]
        raise
    if view is None or (wanted == ops.BOOL and has_other_bytes(view)):
        program = trace_closed(lambda x: [Tracer.view(x, wanted)], [aval_of(self)])  # type: ignore[attr-defined]
        return apply(None, program, [self])[0]
    return view


_builtin_type = type


def _block_until_ready(self: ndarray) -> ndarray:
    """The array itself, whose value is known."""
    return self


def _define_device_attribute(name: str) -> None:
    """Define the attribute `name` of ndarray: that of the `jax.Array` that JAX's functions make of it."""

    def read(self: ndarray) -> Any:
        return getattr(jax.device_put(as_numpy_array(self)), name)

    setattr(ndarray, name, property(read, doc=f"`{name}` of the array on the default device."))


_NUMPY_METHODS = "reshape transpose ravel flatten squeeze swapaxes diagonal copy fill resize"
"""Methods that are NumPy's own outside a trace, since their results are views or of its memory."""
_TRACER_METHODS = (
    "__neg__ __pos__ __abs__ __invert__ __round__ all any argmax argmin argpartition argsort "
    "at choose clip compress conj conjugate cumprod cumsum dot flat max mean min nonzero "
    "partition prod ptp put repeat round searchsorted sort std sum take trace var"
)
"""Methods that are those of traced arrays."""
_DEVICE_ATTRIBUTES = (
    "addressable_data addressable_shards committed copy_to_host_async devices format global_shards "
    "is_deleted is_fully_addressable is_fully_replicated is_ready on_device_size_in_bytes sharding"
)
"""Attributes of a `jax.Array` that say where it lies."""
_fun: Any
for _name, _fun in OPERATORS.items():
    _define_ndarray_operator(_name, _fun, f"__r{_name}__")
for _name, _reflected in zip(
    ["eq", "ne", "lt", "le", "gt", "ge"], ["eq", "ne", "gt", "ge", "lt", "le"], strict=True
):
    _define_ndarray_operator(_name, getattr(Tracer, f"__{_name}__"), f"__{_reflected}__")
for _name, _symbol in OPERATOR_SYMBOLS.items():
    _define_in_place_operator(_name, _symbol)
for _name in _NUMPY_METHODS.split():
    _define_numpy_method(_name)
for _name in ("T", "mT", "real", "imag"):
    _define_numpy_property(_name)
for _name in _DEVICE_ATTRIBUTES.split():
    _define_device_attribute(_name)
# JAX takes an array with a sharding for one that the user has put on its device, unless this says no.
ndarray._committed = False  # type: ignore[attr-defined]
for _name in _TRACER_METHODS.split():
    setattr(ndarray, _name, getattr(Tracer, _name))
for _name, _fun in {
    "__getitem__": _getitem,
    "__setitem__": _setitem,
    "astype": _astype,
    "view": _view,
    "__getattr__": missing_attribute_of_array,
    "aval": property(lambda self: backend.jax_aval(aval_of(self)), doc="JAX's aval of the array."),
    "block_until_ready": _block_until_ready,
}.items():
    setattr(ndarray, _name, _fun)
