"""The operators, methods and indexing of `ArrayWrapper`, and writes to arrays made of arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

from functx import ops
from functx.core.context import ContextValue
from functx.core.errors import (
    CapturedWriteError,
    ImmutableArrayError,
    WrapperConversionError,
    WrapperWriteError,
    type_name,
)
from functx.core.memory_layouts import is_contiguous, storage_base
from functx.core.tracer import Tracer, aval_of, current_builder, is_variable
from functx.core.typing import ArrayOrList, Index, Value
from functx.core.wrapper_dispatch import eager_writes
from functx.core.wrappers import ArrayWrapper, inner_arrays
from functx.numpy import indexing, mutating_functions, mutation  # noqa: F401 - defines methods
from functx.numpy.boolean_masks import OPERATOR_SYMBOLS
from functx.numpy.promotion import broadcast_to, operand
from functx.numpy.tracer_methods import (
    FUNCTIONS_AS_METHODS,
    OPERATORS,
    OTHER_OPERATORS,
    define_method,
    make_operator_pair,
)
from functx.ops.views import Write


def set_item(x: ArrayWrapper, idx: Index, value: ArrayOrList) -> None:
    """Write `value` to `x[idx]`: the handler gets the update, and then the write of the whole."""
    operation = "x[...] ="
    check_wrapper_writable(x, operation)
    if is_own_part(x, idx, value):
        return
    write_wrapper(x, indexing.scatter_update(x, idx, value), operation)  # type: ignore[arg-type]


def is_own_part(x: ArrayWrapper, idx: Index, value: object) -> bool:
    """Whether `value` is the view `x[idx]`, to which `x[idx] += y` has already written."""
    if type(value) is not type(x):
        return False
    whole, part = inner_arrays(x), inner_arrays(value)
    return len(whole) == len(part) and all(
        [
            type(a) is Tracer and a.shape == x.shape and mutation.is_own_view(a, idx, b)
            for a, b in zip(whole, part, strict=True)
        ]
    )


def write_wrapper(x: ArrayWrapper, value: ArrayOrList, operation: str) -> None:
    """Write `value` to the whole of `x`, broadcast to its shape and cast to its dtype.

    Raises WrapperWriteError if `x` is from outside the trace, not contiguous, or if its handler
    writes to none of its inner arrays.
    """
    check_wrapper_writable(x, operation)
    value = operand(value)
    dtype = aval_of(x).dtype
    mutation.check_same_kind_cast(aval_of(value), dtype, operation)
    value = broadcast_to(ops.convert_element_type(value, dtype), x.shape)
    builder = current_builder.get()
    if builder is None:
        targets: list[Any] = []
        with ContextValue(eager_writes, targets):
            Write()(x, value)
        inner = inner_arrays(x)
        if not targets or any([_overlap(t, a) for t in targets for a in inner]):
            return
    else:
        bases = [storage_base(a) for a in inner_arrays(x)]
        count = len(builder.equations)
        Write()(x, value)
        for eqn in builder.equations[count:]:
            if type(eqn.primitive) is Write:
                base = storage_base(Tracer(eqn.inputs[0], builder))
                if any([base.atom is each.atom for each in bases]):
                    return
    raise WrapperWriteError(
        f"{operation}: the handler of {type(x).__name__} must write to its inner arrays; it wrote to none",
        fix='Handle op.name == "write" in __functx_dispatch__: op(inner, value) writes to an inner array.',
    )


def _overlap(target: object, inner: object) -> bool:
    if isinstance(target, np.ndarray) and isinstance(inner, np.ndarray):
        return np.may_share_memory(target, inner)
    return target is inner


def check_wrapper_writable(x: ArrayWrapper, operation: str) -> None:
    """Raise unless all inner arrays can be written to.

    WrapperWriteError for those from outside the trace and those that are not contiguous;
    ImmutableArrayError for a `jax.Array`.
    """
    tracing = current_builder.get() is not None
    label = f"{operation}: an array made of arrays must"
    for inner in inner_arrays(x):
        if type(inner) is Tracer:
            try:
                mutation.check_writable(inner, operation)
            except CapturedWriteError as error:
                raise _outside_error(x, label) from error
        elif tracing:
            raise _outside_error(x, label)
        elif not isinstance(inner, np.ndarray) and not is_variable(inner):
            raise ImmutableArrayError(
                f"{label} be made of NumPy arrays or traced ones to be written to; got "
                f"{type(x).__name__} of a {type_name(inner)}",
                fix="Convert the inner arrays with numpy.array before.",
            )
        if not is_contiguous(inner):
            raise WrapperWriteError(
                f"{label} be contiguous to be written to; got {type(x).__name__}, of which an inner "
                f"array, {type_name(inner)}, is a strided view",
                fix="Write to the whole array by an index, w[:, 1] = w[:, 1] + 1, or compute a new one.",
            )


def _outside_error(x: ArrayWrapper, label: str) -> WrapperWriteError:
    return WrapperWriteError(
        f"{label} be an argument, or be made in the function, to be written to while it is traced; got "
        f"{type_name(x)} from outside",
        fix="Pass it as an argument, or write to a copy (w.copy()).",
    )


def _in_place_operator(symbol: str, fun: Callable[..., Any]) -> Callable[..., Any]:
    operation = f"x {symbol}= y"

    def method(self: ArrayWrapper, other: ArrayOrList) -> Value | ArrayWrapper:
        result: Value = fun(self, other)
        if result is NotImplemented or not self.shape or _is_immutable(self):
            return result
        write_wrapper(self, result, operation)
        return self

    return method


def _is_immutable(x: ArrayWrapper) -> bool:
    """Whether inner arrays are arrays of JAX, so that `x += y` binds the name to a new array."""
    for inner in inner_arrays(x):
        if type(inner) is Tracer:
            base = storage_base(inner)
            if base.builder.depends_on_jax(base.atom):
                return True
        elif not isinstance(inner, np.ndarray) and not is_variable(inner):
            return True
    return False


def _refuse_conversion(name: str) -> Callable[..., NoReturn]:
    def refuse(self: ArrayWrapper, *args: object, **kwargs: object) -> NoReturn:
        raise WrapperConversionError(
            f"{name}: an array made of arrays must not be converted; got {type_name(self)}",
            fix="Convert an inner array, or the array that it stands for.",
        )

    return refuse


def _repr(self: ArrayWrapper) -> str:
    names, _ = self.__functx_flatten__()  # type: ignore[attr-defined]
    inner = ", ".join([f"{name}={getattr(self, name)!r}" for name in names])
    return f"{type(self).__name__}({inner})"


for _name, _fun in OPERATORS.items():
    _method, _reflection = make_operator_pair(_fun, f"__r{_name}__")
    setattr(ArrayWrapper, f"__{_name}__", _method)
    setattr(ArrayWrapper, f"__r{_name}__", _reflection)
    if _name in OPERATOR_SYMBOLS:
        setattr(ArrayWrapper, f"__i{_name}__", _in_place_operator(OPERATOR_SYMBOLS[_name], _method))
for _name, _fun in OTHER_OPERATORS.items():
    setattr(ArrayWrapper, _name, _fun)
for _name, _fun in FUNCTIONS_AS_METHODS.items():
    define_method(ArrayWrapper, _name, _fun)
for _name in (
    *("reshape", "transpose", "compress", "copy", "conj", "conjugate", "at", "T", "mT", "view"),
    *("real", "imag", "itemsize", "nbytes", "flat", "__len__", "__iter__"),
    *("sort", "partition", "fill", "itemset", "put"),
    *("__array_ufunc__", "__array_function__"),
):
    setattr(ArrayWrapper, _name, vars(Tracer)[_name])
for _name, _shown in {
    "__bool__": "bool(x)",
    "__int__": "int(x)",
    "__float__": "float(x)",
    "__complex__": "complex(x)",
    "__index__": "an index or a length",
    "__array__": "numpy.asarray(x)",
    "item": "x.item()",
    "tolist": "x.tolist()",
}.items():
    setattr(ArrayWrapper, _name, _refuse_conversion(_shown))
for _name, _special in {"__setitem__": set_item, "__repr__": _repr}.items():
    setattr(ArrayWrapper, _name, _special)
