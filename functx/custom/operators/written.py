"""An argument that code of JAX may write to, whose own arrays never change."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import jax


class WrittenArray:
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
        return self.value[_plain(idx)]

    def __setitem__(self, idx: Any, new: Any) -> None:
        self.value = self.value.at[_plain(idx)].set(_plain(new))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.value, name)

    def __len__(self) -> int:
        return len(self.value)

    def __repr__(self) -> str:
        return f"WrittenArray({self.value!r})"


def _plain(x: Any) -> Any:
    return x.value if isinstance(x, WrittenArray) else x


def _reading(function: Callable[..., Any], swapped: bool = False) -> Callable[..., Any]:
    def method(self: WrittenArray, *others: Any) -> Any:
        values = [self.value, *map(_plain, others)]
        return function(*(values[::-1] if swapped else values))

    return method


def _writing(function: Callable[..., Any]) -> Callable[..., Any]:
    def method(self: WrittenArray, other: Any) -> WrittenArray:
        new = function(self.value, _plain(other))
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
    setattr(WrittenArray, f"__{_name}__", _reading(_function))
    setattr(WrittenArray, f"__r{_name}__", _reading(_function, swapped=True))
    setattr(WrittenArray, f"__i{_name}__", _writing(_function))
for _name in ("eq", "ne", "lt", "le", "gt", "ge", "neg", "pos", "abs", "invert"):
    setattr(WrittenArray, f"__{_name}__", _reading(getattr(operator, f"__{_name}__")))
for _name, _convert in (("bool", bool), ("int", int), ("float", float), ("complex", complex)):
    setattr(WrittenArray, f"__{_name}__", _reading(_convert))
