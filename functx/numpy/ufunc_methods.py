"""What NumPy's elementwise functions do besides: `add.at`, `add.reduce`, `add.outer`, ..."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from functx.core.tracing import aval_of
from functx.numpy import choices, operators, reductions, running, shapes, whole_numbers
from functx.numpy.creation import asarray
from functx.numpy.indexing import Place
from functx.numpy.mutation import assign, exactly_into
from functx.numpy.writing import writable
from functx.ops import cumulative
from functx.ops.operands import canonical_axis


def _at(name: str, fun: Callable[..., Any], method: str | None) -> Callable[..., None]:
    def at(a: Any, indices: Any, b: Any) -> None:
        writable(f"{name}.at", a)
        if method is not None:
            values = shapes.astype(asarray(b), aval_of(a).dtype)
            assign(a, getattr(Place(a, indices), method)(values), f"{name}.at")
            return
        indexed = indices if isinstance(indices, tuple) else (indices,)
        assign(a, _one_by_one(fun, a, indexed, b), f"{name}.at")

    at.__doc__ = f"Write {name}(a[indices], b) to a[indices], again wherever an index repeats."
    return at


def _one_by_one(fun: Callable[..., Any], a: Any, indices: tuple[Any, ...], b: Any) -> Any:
    """`a` with `fun` applied at the places of integer indices, one after the other."""
    places = shapes.broadcast_arrays(*[asarray(i) for i in indices])
    places = [shapes.reshape(one, -1) for one in places]
    shape = shapes.broadcast_shapes(*[aval_of(asarray(i)).shape for i in indices])
    values = shapes.reshape(shapes.broadcast_to(asarray(b), shape), -1)
    for i in range(aval_of(values).size):
        at = tuple([one[i] for one in places])
        a = Place(a, at).set(fun(a[at], values[i]))
    return a


def _reduce(name: str, fun: Callable[..., Any]) -> Callable[..., Any]:
    def reduce(
        array: Any,
        axis: Any = 0,
        dtype: Any = None,
        out: Any = None,
        keepdims: bool = False,
        initial: Any = None,
        where: Any = None,
    ) -> Any:
        if dtype is not None:
            array = shapes.astype(asarray(array), dtype)
        given = {} if initial is None else {"initial": initial}
        return fun(array, axis, out=out, keepdims=keepdims, where=where, **given)

    reduce.__doc__ = f"`{name}` applied to the elements along `axis`, the first one by default."
    return reduce


def _accumulate(name: str, fun: Callable[..., Any]) -> Callable[..., Any]:
    def accumulate(array: Any, axis: int = 0, dtype: Any = None, out: Any = None) -> Any:
        array = asarray(array) if dtype is None else shapes.astype(asarray(array), dtype)
        return exactly_into(f"{name}.accumulate", fun(array, canonical_axis(axis, array.ndim)), out)

    accumulate.__doc__ = f"`{name}` applied to each element along `axis` and all before it."
    return accumulate


def _outer(name: str, fun: Callable[..., Any]) -> Callable[..., Any]:
    def outer(a: Any, b: Any, **options: Any) -> Any:
        b = asarray(b)
        a = asarray(a)
        return fun(shapes.reshape(a, (*a.shape, *[1] * b.ndim)), b, **options)

    outer.__doc__ = f"`{name}` of every element of `a` and every one of `b`."
    return outer


_AT: dict[Any, str | None] = {
    operators.add: "add",
    operators.subtract: "subtract",
    operators.multiply: "multiply",
    choices.maximum: "max",
    choices.minimum: "min",
    operators.divide: None,
    whole_numbers.floor_divide: None,
    operators.power: None,
    whole_numbers.remainder: None,
    operators.bitwise_and: None,
    operators.bitwise_or: None,
    operators.bitwise_xor: None,
    operators.logical_and: None,
    operators.logical_or: None,
}
_REDUCE: dict[str, Callable[..., Any]] = {
    "add": reductions.sum,
    "multiply": reductions.prod,
    "maximum": reductions.max,
    "minimum": reductions.min,
    "logical_and": reductions.all,
    "logical_or": reductions.any,
}
_ACCUMULATE: dict[str, Callable[..., Any]] = {
    "add": running.cumsum,
    "multiply": running.cumprod,
    "maximum": cumulative.cummax,
    "minimum": cumulative.cummin,
}
for _function, _way in _AT.items():
    _name = _function.__name__
    _function.at = _at(_name, _function, _way)
    _function.outer = _outer(_name, _function)
    if _name in _REDUCE:
        _function.reduce = _reduce(_name, _REDUCE[_name])
    if _name in _ACCUMULATE:
        _function.accumulate = _accumulate(_name, _ACCUMULATE[_name])
