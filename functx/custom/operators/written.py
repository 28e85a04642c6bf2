"""An argument that code of JAX may write to, whose own arrays never change."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import jax


class ArrayRef:
    """A place for an array: reads as the array, and takes another value by `x[...] = v` or `x += v`.

    `x[...]` is the value now, which functions of JAX take. Unlike NumPy's, parts are no views.
    """

    __slots__ = ("value",)
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, value: Any):
        self.value = value

    def __jax_array__(self) -> Any:
        return self.value

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return self.value.__array__(dtype)

    def __getitem__(self, idx: Any) -> Any:
        return self.value[_read_ref(idx)]

    def __setitem__(self, idx: Any, new: Any) -> None:
        self.value = self.value.at[_read_ref(idx)].set(_read_ref(new))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.value, name)

    def __len__(self) -> int:
        return len(self.value)

    def __repr__(self) -> str:
        return f"ArrayRef({self.value!r})"


def _read_ref(x: Any) -> Any:
    return x.value if isinstance(x, ArrayRef) else x


def _read_method(function: Callable[..., Any], swapped: bool = False) -> Callable[..., Any]:
    def method(self: ArrayRef, *others: Any) -> Any:
        values = [self.value, *map(_read_ref, others)]
        return function(*(values[::-1] if swapped else values))

    return method


def _in_place_method(function: Callable[..., Any]) -> Callable[..., Any]:
    def method(self: ArrayRef, other: Any) -> ArrayRef:
        new = function(self.value, _read_ref(other))
        self.value = jax.numpy.broadcast_to(new, self.value.shape).astype(self.value.dtype)
        return self

    return method


for _name in (
    "add",
    "sub",
    "mul",
    "truediv",
    "floordiv",
    "mod",
    "pow",
    "matmul",
    "and",
    "or",
    "xor",
):
    _function = getattr(operator, f"__{_name}__")
    setattr(ArrayRef, f"__{_name}__", _read_method(_function))
    setattr(ArrayRef, f"__r{_name}__", _read_method(_function, swapped=True))
    setattr(ArrayRef, f"__i{_name}__", _in_place_method(_function))
for _name in ("eq", "ne", "lt", "le", "gt", "ge", "neg", "pos", "abs", "invert"):
    setattr(ArrayRef, f"__{_name}__", _read_method(getattr(operator, f"__{_name}__")))
for _name, _convert in (("bool", bool), ("int", int), ("float", float), ("complex", complex)):
    setattr(ArrayRef, f"__{_name}__", _read_method(_convert))
