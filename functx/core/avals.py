"""Abstract values: what is known of an array before it has a value."""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from functx.core.dtypes import SHORT_NAMES, DType

Shape = tuple[int, ...]


class _InternedAvalType(type):
    """Equal avals are one object, so that comparing and hashing them is free."""

    def __call__(cls, shape: Any, dtype: Any, weak_type: bool = False) -> Any:
        return _interned_aval(shape, dtype, weak_type)


class ShapedArray(metaclass=_InternedAvalType):
    """The abstract value of an array: its shape, its dtype, and whether its dtype is weak.

    A weak dtype is that of a Python scalar: it gives way to any dtype of the same kind.
    Equal avals are identical, so `is` compares them.
    """

    __slots__ = ("__weakref__", "dtype", "ndim", "shape", "size", "weak_type")
    shape: Shape
    dtype: DType
    weak_type: bool
    ndim: int
    size: int

    if TYPE_CHECKING:

        def __init__(self, shape: Shape, dtype: DType, weak_type: bool = False): ...

    def update(self, **changes: Any) -> ShapedArray:
        """This aval with some of `shape`, `dtype` and `weak_type` replaced."""
        return ShapedArray(
            changes.get("shape", self.shape),
            changes.get("dtype", self.dtype),
            changes.get("weak_type", self.weak_type),
        )

    def __repr__(self) -> str:
        dims = ",".join(map(str, self.shape))
        return f"{'~' if self.weak_type else ''}{SHORT_NAMES[self.dtype]}[{dims}]"

    def __reduce__(self) -> Any:
        return ShapedArray, (self.shape, self.dtype, self.weak_type)


class HasAval:
    """A mixin for values with an abstract value `aval`: their shape and dtype."""

    __slots__ = ()
    aval: ShapedArray

    @property
    def shape(self) -> Shape:
        return self.aval.shape

    @property
    def dtype(self) -> DType:
        return self.aval.dtype

    @property
    def ndim(self) -> int:
        return self.aval.ndim

    @property
    def size(self) -> int:
        return self.aval.size


_avals: WeakValueDictionary[Any, ShapedArray] = WeakValueDictionary()


@lru_cache(maxsize=16384)
def _interned_aval(shape: Shape, dtype: DType, weak_type: bool) -> ShapedArray:
    key = (shape, dtype, weak_type)
    aval = _avals.get(key)
    if aval is None:
        aval = object.__new__(ShapedArray)
        aval.shape, aval.dtype, aval.weak_type = tuple(map(int, shape)), dtype, weak_type
        aval.ndim, aval.size = len(shape), prod(aval.shape)
        aval = _avals.setdefault(key, aval)
    return aval
