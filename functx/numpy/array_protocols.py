"""NumPy's protocols for functions called with arrays, and the methods of ufuncs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from functx import ops
from functx.core.errors import ArgumentError, DTypeError, ForeignCodeError, ShapeError, type_name
from functx.core.tracer import HOST_ARRAY_TYPES, Tracer, as_numpy_array, aval_of, ndarray
from functx.core.typing import ArrayLike, ArrayOrList, Axes, DTypeLike, Index, Out, Value
from functx.core.wrappers import is_wrapper
from functx.numpy import (
    array_creation,
    cumulative,
    floating_point,
    mutation,
    operators,
    reductions,
    shapes,
    ufuncs,
)
from functx.numpy.array_creation import asarray
from functx.numpy.indexing import IndexUpdateRef
from functx.numpy.mutating_functions import Assignable, check_assignable
from functx.numpy.mutation import assign_array, check_same_kind_cast, write_out_exact
from functx.numpy.scalar_types import can_cast
from functx.ops.operands import canonical_axis
from functx.transforms.control.scan import scan


def functx_ufunc(ufunc: np.ufunc, method: str) -> Callable[..., Any] | None:
    """The function of functx for a method of a NumPy ufunc, or None."""
    import functx.numpy as namespace

    fun = getattr(namespace, ufunc.__name__, None)
    return fun if method == "__call__" else getattr(fun, method, None)


def functx_function(func: Callable[..., Any]) -> Callable[..., Any] | None:
    """The function of functx with the name of a NumPy function, or None."""
    import functx.numpy as namespace

    scope: object = namespace
    for part in func.__module__.split(".")[1:]:
        scope = getattr(scope, part, None)
    return getattr(scope, func.__name__, None)


def _array_ufunc(
    self: Tracer | ndarray, ufunc: np.ufunc, method: str, *inputs: object, **kwargs: object
) -> object:
    """Calls the function of functx with the name of a NumPy ufunc, or the ufunc if there is none.

    Raises ForeignCodeError for a ufunc that functx does not have, called with a traced array.
    """
    fun = functx_ufunc(ufunc, method)
    if fun is not None:
        options = dict(kwargs)
        out = options.get("out")
        if isinstance(out, tuple) and len(out) == 1:
            options["out"] = out[0]
        if method == "__call__":
            fun = _with_dtype_and_casting(ufunc, fun, options)
        try:
            return fun(*inputs, **options)
        except ArgumentError:
            if type(self) is Tracer or not any([is_foreign_array(x) for x in inputs]):
                raise
    elif type(self) is Tracer or is_wrapper(self) or contains_tracer((inputs, kwargs)):
        raise ForeignCodeError(
            f"numpy.{ufunc.__name__}.{method} cannot be traced; got {aval_of(self)!r}",
            fix="Use the functions of functx.numpy.",
        )
    return getattr(ufunc, method)(*unwrap_nested(inputs), **unwrap_nested(kwargs))


def _with_dtype_and_casting(
    ufunc: np.ufunc, fun: Callable[..., Any], options: dict[str, Any]
) -> Callable[..., Any]:
    """`fun` with the options `dtype` and `casting` of a NumPy call, which are removed from `options`."""
    dtype, casting = options.pop("dtype", None), options.pop("casting", "same_kind")
    for name in ("order", "subok"):
        options.pop(name, None)
    out = options.get("out")
    unsafe = casting == "unsafe" and out is not None and not isinstance(out, tuple)
    if dtype is None and not unsafe:
        return fun

    def call(*inputs: ArrayOrList, out: Out = None, **others: Any) -> object:
        if dtype is not None and np.dtype(dtype) != bool:
            for x in inputs:
                if casting != "unsafe" and not can_cast(x, dtype, casting):
                    raise DTypeError(
                        f"{ufunc.__name__}: operands must be castable to dtype= by the rule "
                        f"{casting!r}; got {type_name(x)} for {np.dtype(dtype)}"
                    )
            inputs = tuple([shapes.astype(array_creation.asarray(x), dtype) for x in inputs])
        if not unsafe:
            return fun(*inputs, out=out, **others)
        where = others.pop("where", True)
        result = shapes.astype(fun(*inputs, **others), aval_of(out).dtype)
        return mutation.write_out(ufunc.__name__, result, out, where)

    return call


def _array_function(
    self: Tracer | ndarray,
    func: Callable[..., Any],
    types: object,
    args: Sequence[object],
    kwargs: dict[str, Any],
) -> object:
    """Calls the function of functx with the name of a NumPy function, or that one if there is none.

    Raises ForeignCodeError for a function that functx does not have, called with a traced array.
    """
    fun = functx_function(func)
    if fun is not None:
        return fun(*args, **kwargs)
    if type(self) is Tracer or is_wrapper(self) or contains_tracer((args, kwargs)):
        path = f"{func.__module__}.{func.__name__}"
        raise ForeignCodeError(
            f"{path} cannot be traced; got {aval_of(self)!r}",
            fix=f"Write jax.{path}, which takes arrays that are traced."
            if _resolves(sys.modules.get("jax"), path)
            else "Write it with the functions of functx.numpy.",
        )
    return func(*unwrap_nested(args), **unwrap_nested(kwargs))


def _resolves(scope: object, path: str) -> bool:
    """Whether the dotted name `path` resolves from `scope`."""
    for part in path.split("."):
        scope = getattr(scope, part, None)
    return scope is not None


def contains_tracer(value: Any) -> bool:
    """Whether `value`, an array or nested lists, tuples and dicts, contains a tracer or an array of a wrapper type."""
    if type(value) is dict:
        value = value.values()
    elif type(value) not in (list, tuple):
        return type(value) is Tracer or is_wrapper(value)
    return any([contains_tracer(x) for x in value])


def is_foreign_array(x: object) -> bool:
    """Whether `x` is of another subclass of NumPy's array, such as a masked array."""
    return isinstance(x, np.ndarray) and type(x) not in HOST_ARRAY_TYPES


def unwrap_nested(value: Any) -> Any:
    """`value` with each `ndarray` and Variable in it as a plain NumPy array."""
    if isinstance(value, Tracer):
        if value.requires_grad:
            raise ForeignCodeError(
                "functions of NumPy that functx lacks give no gradient; got a Variable that requires "
                f"one, {value.atom.aval!r}",
                fix="Pass x.detach(), or write it with the functions of functx.numpy.",
            )
        return np.asarray(value)
    if type(value) in (list, tuple):
        return type(value)(map(unwrap_nested, value))
    if type(value) is dict:
        return {key: unwrap_nested(x) for key, x in value.items()}
    return as_numpy_array(value)


for _name, _fun in {
    "__array_ufunc__": _array_ufunc,
    "__array_function__": _array_function,
}.items():
    setattr(Tracer, _name, _fun)
    setattr(ndarray, _name, _fun)


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
