"""NumPy's protocols for functions called with arrays: `__array_ufunc__` and `__array_function__`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from functx.core.errors import ArgumentError, DTypeError, ForeignCodeError, type_name
from functx.core.ndarray import HOST_ARRAY_TYPES, as_numpy_array, ndarray
from functx.core.tracer import Tracer, aval_of
from functx.core.typing import ArrayOrList, Out
from functx.numpy import array_creation, mutation, shapes
from functx.numpy.scalar_types import can_cast


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
    elif type(self) is Tracer or contains_tracer((inputs, kwargs)):
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
    args: Sequence[Any],
    kwargs: dict[str, Any],
) -> object:
    """Calls the function of functx with the name of a NumPy function, or that one if there is none.

    Raises ForeignCodeError for a function that functx does not have, called with a traced array.
    """
    fun = functx_function(func)
    if fun is not None:
        return fun(*args, **kwargs)
    if type(self) is Tracer or contains_tracer((args, kwargs)):
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
    """Whether `value`, an array or nested lists, tuples and dicts, contains a tracer."""
    if type(value) is dict:
        value = value.values()
    elif type(value) not in (list, tuple):
        return type(value) is Tracer
    return any([contains_tracer(x) for x in value])


def is_foreign_array(x: object) -> bool:
    """Whether `x` is of another subclass of NumPy's array, such as a masked array."""
    return isinstance(x, np.ndarray) and type(x) not in HOST_ARRAY_TYPES


def unwrap_nested(value: Any) -> Any:
    """`value` with each `ndarray` in it as a plain NumPy array."""
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
