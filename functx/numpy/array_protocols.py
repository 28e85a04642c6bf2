"""NumPy's protocols: its ufuncs and functions called with arrays of functx."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import numpy as np

from functx.core.errors import ArgumentError, DTypeError, ForeignCodeError, type_name
from functx.core.tracer import HOST_ARRAY_TYPES, Tracer, as_numpy_array, aval_of, ndarray
from functx.core.typing import ArrayOrList, Out
from functx.core.wrappers import is_wrapper
from functx.numpy import array_creation, mutation, numpy_functions, shapes
from functx.numpy.inspection import can_cast

_SCIPY_NAMES = {"psi": "digamma", "_zeta": "zeta"}
"""The functions of `scipy.special` whose ufuncs have other names."""


def functx_ufunc(ufunc: np.ufunc, method: str) -> Callable[..., Any] | None:
    """The function of functx for a method of a ufunc of NumPy or of `scipy.special`, or None."""
    import functx.numpy as namespace

    name = ufunc.__name__
    if getattr(np, name, None) is not ufunc and _is_of_scipy(ufunc):
        special = import_module("functx.scipy.special")
        fun = vars(special).get(_SCIPY_NAMES.get(name, name))
        return _with_out(name, fun) if fun is not None and method == "__call__" else None
    fun = getattr(namespace, name, None)
    return fun if method == "__call__" else getattr(fun, method, None)


def _is_of_scipy(ufunc: np.ufunc) -> bool:
    """Whether a ufunc is one of `scipy.special`, also one that is a part of a function there."""
    special = sys.modules.get("scipy.special")
    modules = [special, sys.modules.get("scipy.special._ufuncs")]
    return any([vars(m).get(ufunc.__name__) is ufunc for m in modules if m is not None])


def _with_out(name: str, fun: Callable[..., Any]) -> Callable[..., Any]:
    """`fun`, which takes arrays alone, with the arguments `out` and `where` of ufuncs."""

    def call(*inputs: object, out: Out = None, where: ArrayOrList = True) -> object:
        return mutation.write_out(name, fun(*inputs), out, where)

    call.__name__ = name
    return call


def _ufunc_path(ufunc: np.ufunc, method: str) -> str:
    module = "numpy." if getattr(np, ufunc.__name__, None) is ufunc else ""
    module = "scipy.special." if not module and _is_of_scipy(ufunc) else module
    return module + ufunc.__name__ + ("" if method == "__call__" else f".{method}")


def functx_function(func: Callable[..., Any]) -> Callable[..., Any] | None:
    """The function of functx with the name of a NumPy function, or None."""
    import functx.numpy as namespace

    scope: object = namespace
    for part in func.__module__.split(".")[1:]:
        scope = getattr(scope, part, None)
    found = getattr(scope, func.__name__, None)
    return found or vars(numpy_functions).get(func.__name__)


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
        path = _ufunc_path(ufunc, method)
        raise ForeignCodeError(
            f"{path} cannot be traced; got {aval_of(self)!r}", fix=_alternative(path)
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
        if kwargs.get("casting") == "same_kind":
            # The default, which functions of NumPy pass on to others: `row_stack` calls `vstack`.
            kwargs = {name: value for name, value in kwargs.items() if name != "casting"}
        return fun(*args, **kwargs)
    if type(self) is Tracer or is_wrapper(self) or contains_tracer((args, kwargs)):
        path = f"{func.__module__}.{func.__name__}"
        raise ForeignCodeError(
            f"{path} cannot be traced; got {aval_of(self)!r}", fix=_alternative(path)
        )
    return func(*unwrap_nested(args), **unwrap_nested(kwargs))


def _alternative(path: str) -> str:
    """The cure in the error about the function `path` of NumPy or SciPy, which functx lacks."""
    if _resolves(sys.modules.get("jax"), path):
        return f"Write jax.{path}, which takes arrays that are traced."
    module = f"functx.{path.rpartition('.')[0] or 'numpy'}"
    return (
        f"Write it with the functions of {module}, or call it on the values through "
        "functx.pure_callback."
    )


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
