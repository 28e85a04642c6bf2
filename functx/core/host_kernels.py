"""Operations on host arrays that NumPy computes outside a trace, by the `host_kernel` of the primitive."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextvars import copy_context
from typing import TYPE_CHECKING, Any

import numpy as np

from functx.core.primitive_families import HasHostKernel
from functx.core.program import Literal
from functx.core.strides import MemoryOrder
from functx.core.tracer import HOST_ARRAY_TYPES, WeakNdarray, ndarray
from functx.core.types import ShapedArray, checks_ranks, x64_enabled

if TYPE_CHECKING:
    from functx.core.primitive import Primitive

_view = np.ndarray.view

_SCALAR_TYPES_BY_KIND: dict[str, tuple[type, ...]] = {"f": (float, int), "i": (int,), "u": (int,)}


class _IgnoredFloatErrors(threading.local):
    """Calls NumPy functions without floating-point warnings (overflow, division by zero, ...).

    Each thread has its own context, since entering one is faster than changing the settings.
    """

    def __init__(self) -> None:
        context = copy_context()
        context.run(np.seterr, all="ignore")
        self.run: Callable[..., Any] = context.run


_ignored_float_errors = _IgnoredFloatErrors()


def evaluate_binary_on_host(primitive: Primitive, x: object, y: object) -> ndarray | None:
    """`primitive.host_kernel(x, y)` of two `ndarray`s of one dtype, or of one and a Python number.

    None for all other operands, for shapes that do not broadcast, and for numbers that do not fit.
    """
    if not isinstance(primitive, HasHostKernel):
        return None
    if type(x) is ndarray:
        dtype = x.dtype
        if type(y) is ndarray:
            if y.dtype != dtype or (x.ndim != y.ndim and x.ndim and y.ndim and checks_ranks()):
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
        out = _ignored_float_errors.run(primitive.host_kernel, x, y)
    except (ValueError, OverflowError):
        return None
    return _view(out if type(out) is np.ndarray else np.asarray(out), ndarray)


def evaluate_unary_on_host(primitive: HasHostKernel, x: object) -> ndarray | None:
    """`primitive.host_kernel(x)`, a NumPy ufunc, of an `ndarray`; None for all other operands."""
    fun: Any = primitive.host_kernel
    if type(x) is not ndarray or type(fun) is not np.ufunc:
        return None
    dtype = x.dtype
    if dtype.kind not in primitive.host_kernel_kinds or (dtype.itemsize == 8 and not x64_enabled()):
        return None
    out = _ignored_float_errors.run(fun, _view(x, np.ndarray))
    return _view(out if type(out) is np.ndarray else np.asarray(out), ndarray)


def evaluate_on_host(
    primitive: HasHostKernel, args: Sequence[Any], avals: tuple[ShapedArray, ...]
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
    result = _ignored_float_errors.run(primitive.host_kernel, *operands)
    if result is None:
        return None
    is_row_major = primitive.memory_order is MemoryOrder.ROW_MAJOR
    array = np.asarray(result, order="C" if is_row_major else None)
    return _view(array, WeakNdarray if out.weak_type else ndarray)
