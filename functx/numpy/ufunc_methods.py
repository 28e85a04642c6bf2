"""The methods of ufuncs: `at`, `reduce`, `accumulate` and `outer`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from functx import ops
from functx.core.errors import ShapeError, type_name
from functx.core.tracer import aval_of
from functx.core.typing import ArrayLike, ArrayOrList, Axes, DTypeLike, Index, Out, Value
from functx.numpy import cumulative, floating_point, operators, reductions, shapes, ufuncs
from functx.numpy.array_creation import asarray
from functx.numpy.indexing import IndexUpdateRef
from functx.numpy.mutating_functions import Assignable, check_assignable
from functx.numpy.mutation import assign_array, check_same_kind_cast, write_out_exact
from functx.ops.operands import canonical_axis
from functx.transforms.control.scan import scan


def _at(name: str, fun: Callable[..., Any], method: str | None) -> Callable[..., None]:
    def at(a: Assignable, indices: Index, b: ArrayOrList) -> None:
        operation = f"{name}.at"
        check_assignable(operation, a)
        dtype = aval_of(a).dtype
        if method is None:
            assign_array(a, _sequential_update(operation, fun, a, indices, asarray(b)), operation)
            return
        assign_array(
            a,
            getattr(IndexUpdateRef(a, indices), method)(shapes.astype(asarray(b), dtype)),
            operation,
        )

    at.__doc__ = f"Write {name}(a[indices], b) to a[indices], again for repeated indices."
    return at


def _unary_at(name: str, fun: Callable[..., Any]) -> Callable[..., None]:
    def at(a: Assignable, indices: Index) -> None:
        check_assignable(f"{name}.at", a)
        assign_array(a, _sequential_update(f"{name}.at", fun, a, indices), f"{name}.at")

    at.__doc__ = f"Write {name}(a[indices]) to a[indices], again for repeated indices."
    return at


def _sequential_update(
    operation: str, fun: Callable[..., Any], a: Assignable, indices: Index, *args: Value
) -> Assignable:
    """`a` with `fun` applied to the elements at `indices`, one after the other, in a scan."""
    aval = aval_of(a)
    positions = np.arange(aval.size, dtype=np.int32).reshape(aval.shape)
    selected = IndexUpdateRef(positions, indices).get()
    shape = aval_of(selected).shape
    if 0 in shape:
        return a
    operands = tuple([shapes.reshape(shapes.broadcast_to(x, shape), -1) for x in args])

    def step(x: Value, inputs: Sequence[Value]) -> tuple[Value, None]:
        i, *values = inputs
        value = fun(x[i], *values)
        check_same_kind_cast(aval_of(value), aval.dtype, operation)
        return IndexUpdateRef(x, i).set(value, mode="promise_in_bounds"), None

    flat = shapes.reshape(asarray(a), -1)
    updated, _ = scan(step, flat, (shapes.reshape(selected, -1), *operands))
    return shapes.reshape(updated, aval.shape)


def _reduce(name: str, fun: Callable[..., Any]) -> Callable[..., Any]:
    def reduce(
        array: ArrayOrList,
        axis: Axes = 0,
        dtype: DTypeLike = None,
        out: Out = None,
        keepdims: bool = False,
        initial: ArrayLike | None = None,
        where: ArrayOrList | None = None,
    ) -> Value:
        if dtype is not None:
            array = shapes.astype(asarray(array), dtype)
        options = {} if initial is None else {"initial": initial}
        return fun(array, axis, out=out, keepdims=keepdims, where=where, **options)

    reduce.__doc__ = f"`{name}` applied to the elements along `axis`, the first one by default."
    return reduce


def _accumulate(name: str, fun: Callable[..., Any]) -> Callable[..., Any]:
    def accumulate(
        array: ArrayOrList, axis: int = 0, dtype: DTypeLike = None, out: Out = None
    ) -> Value:
        array = asarray(array) if dtype is None else shapes.astype(asarray(array), dtype)
        return write_out_exact(
            f"{name}.accumulate", fun(array, canonical_axis(axis, array.ndim)), out
        )

    accumulate.__doc__ = f"`{name}` applied to each element along `axis` and all before it."
    return accumulate


def _reduce_in_order(name: str, fun: Callable[..., Any]) -> Callable[..., Any]:
    def reduce(
        array: ArrayOrList,
        axis: int = 0,
        dtype: DTypeLike = None,
        out: Out = None,
        keepdims: bool = False,
    ) -> Value:
        array = asarray(array) if dtype is None else shapes.astype(asarray(array), dtype)
        axis = canonical_axis(axis, array.ndim, f"{name}.reduce: axis")
        rows = shapes.moveaxis(array, axis, 0)
        if not len(rows):
            raise ShapeError(f"{name}.reduce: there must be elements; got {type_name(array)}")

        def step(x: Value, y: Value) -> tuple[Value, None]:
            return fun(x, y), None

        result, _ = (
            scan(step, fun(rows[0], rows[1]), rows[2:]) if len(rows) > 1 else (rows[0], None)
        )
        result = shapes.expand_dims(result, axis) if keepdims else result
        return write_out_exact(f"{name}.reduce", result, out)

    reduce.__doc__ = f"`{name}` applied to the elements along `axis`, from the first to the last."
    return reduce


def _outer(name: str, fun: Callable[..., Any]) -> Callable[..., Any]:
    def outer(a: ArrayOrList, b: ArrayOrList, **options: object) -> Value:
        b = asarray(b)
        a = asarray(a)
        return fun(shapes.reshape(a, (*a.shape, *[1] * b.ndim)), b, **options)

    outer.__doc__ = f"`{name}` applied to all pairs of an element of `a` and an element of `b`."
    return outer


_SCATTER_METHODS = {
    "add": "add",
    "subtract": "subtract",
    "multiply": "multiply",
    "maximum": "max",
    "minimum": "min",
}
_REDUCE_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "add": reductions.sum,
    "multiply": reductions.prod,
    "maximum": reductions.max,
    "minimum": reductions.min,
    "logical_and": reductions.all,
    "logical_or": reductions.any,
}
_ACCUMULATE_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "add": cumulative.cumsum,
    "multiply": cumulative.cumprod,
    "maximum": ops.cummax,
    "minimum": ops.cummin,
}
for _module in (ufuncs, floating_point, operators):
    for _name, _function in list(vars(_module).items()):
        _known = getattr(np, _name, None)
        if not isinstance(_known, np.ufunc) or _known.nout > 1 or hasattr(_function, "at"):
            continue
        if _known.nin == 1:
            _function.at = _unary_at(_name, _function)
            continue
        _function.at = _at(_name, _function, _SCATTER_METHODS.get(_name))
        _function.outer = _outer(_name, _function)
        if _name in _REDUCE_FUNCTIONS:
            _function.reduce = _reduce(_name, _REDUCE_FUNCTIONS[_name])
        else:
            _function.reduce = _reduce_in_order(_name, _function)
        if _name in _ACCUMULATE_FUNCTIONS:
            _function.accumulate = _accumulate(_name, _ACCUMULATE_FUNCTIONS[_name])
