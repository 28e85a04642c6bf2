"""`functx.numpy.ndarray`, a NumPy array with functx's operators, and operations on host arrays."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextvars import copy_context
from typing import TYPE_CHECKING, Any

import numpy as np

from functx.core.program import Literal
from functx.core.types import x64_enabled
from functx.core.typing import ArrayLike

if TYPE_CHECKING:
    from functx.core.primitive import Primitive
    from functx.core.types import DType, ShapedArray


_view, _copy = np.ndarray.view, np.ndarray.copy


class _ArrayType(type):
    def __instancecheck__(cls, x: object) -> bool:
        from functx.core.backend import backend
        from functx.core.tracer import Tracer

        return isinstance(x, (Tracer, np.ndarray)) or backend.aval_of_jax_array(x) is not None


class ndarray(np.ndarray[Any, Any], metaclass=_ArrayType):  # noqa: N801 - NumPy's name
    """A NumPy array whose operators, methods and indexing follow the rules of functx.

    Expressions have the same dtypes and values as under `jit`. An `ndarray` is writable, its views
    share its memory, and it can be passed wherever a `numpy.ndarray` can.

    Outside a transform, functions, methods and operators of functx return

    * a `jax.Array` if an argument is one,
    * else an `ndarray`, also for NumPy arrays, Python numbers and lists.

    Functions that return views (`reshape`, `transpose`, `ravel`, `broadcast_to`, basic indexing,
    ...) keep the memory and the dtype of the argument: the view of a float64 `numpy.ndarray` is
    float64, also without 64-bit mode. All other functions, and `asarray`, use functx's dtypes. An
    element (`x[0]`) is an `ndarray` without dimensions, not a view.

    Inside a transform, a captured `ndarray` is a constant of the traced function. It can be indexed
    with a traced value, and must not be written to.

    `isinstance(x, ndarray)` is True for all arrays: traced ones, NumPy's and JAX's.

    >>> import functx
    >>> import functx.numpy as np
    >>> table = np.arange(4) / 2
    >>> table
    array([0. , 0.5, 1. , 1.5], dtype=float32)
    >>> functx.vmap(lambda i: table[i])(np.array([3, 0]))
    Array([1.5, 0. ], dtype=float32)
    """

    __module__ = "functx.numpy"
    __slots__ = ()

    weak_type = False
    """Whether the dtype is weak in promotion, like that of a Python number."""

    def __repr__(self) -> str:
        return repr(as_numpy_array(self))

    def __str__(self) -> str:
        return str(as_numpy_array(self))

    def __hash__(self) -> int:  # type: ignore[override]
        if self.ndim:
            raise TypeError(f"unhashable type: an array of shape {self.shape}")
        return hash(self.item())


class WeakNdarray(ndarray):
    """An array of a weak dtype, as functions of Python numbers return."""

    __module__ = "functx.numpy"
    __slots__ = ()
    weak_type = True

    def __reduce__(self) -> tuple[Any, ...]:
        return as_ndarray(self).__reduce__()


WeakNdarray.__name__ = WeakNdarray.__qualname__ = "ndarray"


FUNCTX_ARRAY_TYPES: frozenset[type] = frozenset([ndarray, WeakNdarray])
"""The types of arrays whose operators, methods and indexing are functx's."""
HOST_ARRAY_TYPES: frozenset[type] = FUNCTX_ARRAY_TYPES | {np.ndarray}
"""The types of arrays in host memory, without other subclasses of `numpy.ndarray`."""


def as_ndarray(x: object, weak_type: bool = False) -> Any:
    """A NumPy array as an `ndarray` on the same memory; anything else unchanged."""
    return _view(x, WeakNdarray if weak_type else ndarray) if isinstance(x, np.ndarray) else x


def as_numpy_array(x: Any) -> Any:
    """An `ndarray` as a `numpy.ndarray` on the same memory; anything else unchanged."""
    return _view(x, np.ndarray) if type(x) in FUNCTX_ARRAY_TYPES else x


def copy_as_ndarray(value: ArrayLike, weak_type: bool = False) -> Any:
    """A copy of an array as an `ndarray`."""
    return _copy(_view(np.asarray(value), WeakNdarray if weak_type else ndarray))


def filled_ndarray(
    value: ArrayLike, shape: tuple[int, ...], dtype: DType, weak_type: bool = False
) -> Any:
    """A new `ndarray` filled with the number `value`."""
    array = np.ndarray.__new__(WeakNdarray if weak_type else ndarray, shape, dtype)
    np.ndarray.fill(array, value)
    return array


def memory_owner(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The array that owns the memory of `x`: itself, or the base of the view."""
    while isinstance(x.base, np.ndarray):
        x = x.base
    return x


class _IgnoredFloatErrors(threading.local):
    """Calls NumPy functions without floating-point warnings (overflow, division by zero, ...).

    Each thread has its own context, since entering one is faster than changing the settings.
    """

    def __init__(self) -> None:
        context = copy_context()
        context.run(np.seterr, all="ignore")
        self.run: Callable[..., Any] = context.run


ignored_float_errors = _IgnoredFloatErrors()


def evaluate_binary_on_host(primitive: Primitive, x: object, y: object) -> ndarray | None:
    """`primitive.host_kernel(x, y)` of two `ndarray`s of one dtype, or of one and a Python number.

    None for all other operands, for shapes that do not broadcast, and for numbers that do not fit.
    """
    if primitive.host_kernel is None:
        return None
    if type(x) is ndarray:
        dtype = x.dtype
        if type(y) is ndarray:
            if y.dtype != dtype:
                return None
            y = _view(y, np.ndarray)
        elif type(y) not in _SCALAR_TYPES_BY_KIND.get(dtype.kind, ()):
            return None
        x = _view(x, np.ndarray)
    elif type(y) is ndarray and type(x) in _SCALAR_TYPES_BY_KIND.get(y.dtype.kind, ()):
        dtype, y = y.dtype, _view(y, np.ndarray)
    else:
        return None
    if dtype.kind not in primitive.host_kernel_kinds or (dtype.itemsize == 8 and not x64_enabled()):
        return None
    try:
        out = ignored_float_errors.run(primitive.host_kernel, x, y, order="C")
    except (ValueError, OverflowError):
        return None
    return _view(out if type(out) is np.ndarray else np.asarray(out), ndarray)


_SCALAR_TYPES_BY_KIND: dict[str, tuple[type, ...]] = {"f": (float, int), "i": (int,), "u": (int,)}


def evaluate_unary_on_host(primitive: Primitive, x: object) -> ndarray | None:
    """`primitive.host_kernel(x)`, a NumPy ufunc, of an `ndarray`; None for all other operands."""
    fun = primitive.host_kernel
    if type(x) is not ndarray or type(fun) is not np.ufunc:
        return None
    dtype = x.dtype
    if dtype.kind not in primitive.host_kernel_kinds or (dtype.itemsize == 8 and not x64_enabled()):
        return None
    out = ignored_float_errors.run(fun, _view(x, np.ndarray), order="C")
    return _view(out if type(out) is np.ndarray else np.asarray(out), ndarray)


def evaluate_on_host(
    primitive: Primitive, args: Sequence[Any], avals: tuple[ShapedArray, ...]
) -> ndarray | None:
    """`primitive.host_kernel(*args)` of host arrays and literals; None for all other operands."""
    kinds, operands = primitive.host_kernel_kinds, []
    for x, aval in zip(args, avals, strict=True):
        if aval.dtype.kind not in kinds:
            return None
        if type(x) is Literal:
            operands.append(np.asarray(x.value, aval.dtype))
        elif type(x) in HOST_ARRAY_TYPES and x.dtype == aval.dtype:
            operands.append(_view(x, np.ndarray))
        else:
            return None
    (out,) = primitive.out_avals_memo.get(avals) or primitive.infer_out_avals(avals)
    result = ignored_float_errors.run(primitive.host_kernel, *operands)
    if result is None:
        return None
    return _view(np.asarray(result, order="C"), WeakNdarray if out.weak_type else ndarray)
