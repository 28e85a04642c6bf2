"""Python functions as parameters of a program: what they are called with, and what they give."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from types import FunctionType
from typing import Any

import numpy as np

from functx.core import tree
from functx.core.avals import ShapedArray
from functx.core.dtypes import kind, narrow_dtype, x64_enabled
from functx.core.errors import CallbackResultError, type_name
from functx.core.records import Record

Array = np.ndarray[Any, Any]


class FlatCallback:
    """A Python function that takes and gives pytrees, called with the leaves that are arrays.

    `static` are the other leaves and their places among all. Equal instances call the same
    function alike, so that what was compiled for one serves the other.
    """

    def __init__(
        self,
        fun: Callable[..., Any],
        in_tree: Any,
        static: Sequence[tuple[int, Any]] = (),
        out_tree: Any = None,
    ):
        self.fun, self.in_tree, self.static, self.out_tree = fun, in_tree, tuple(static), out_tree
        # Wide results are narrowed only where nothing is wide.
        self.narrow = not x64_enabled()
        self.__name__ = callback_name(fun)
        parts = tuple([(i, type(x), _hashable_key(x)) for i, x in self.static])
        self.key = _hashable_key(fun), in_tree, parts, out_tree, self.narrow

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, FlatCallback) and self.key == other.key)

    def __hash__(self) -> int:
        return hash(self.key)

    def __repr__(self) -> str:
        return f"<{self.__name__}>"

    def arguments(self, arrays: Sequence[Any]) -> tuple[Any, Any]:
        """The positional and keyword arguments of the call for the leaves that are arrays."""
        leaves = list(arrays)
        for i, x in self.static:
            leaves.insert(i, x)
        args, kwargs = tree.unflatten(self.in_tree, leaves)
        return args, kwargs

    def __call__(self, arrays: Sequence[Array], results: Sequence[ShapedArray]) -> list[Array]:
        """The leaves of the result, which must be of the types `results`."""
        args, kwargs = self.arguments(arrays)
        out = self.fun(*args, **kwargs)
        if self.out_tree is None:
            return []
        leaves, structure = tree.flatten(out)
        if structure != self.out_tree and _list_tuple_agnostic(structure) != _list_tuple_agnostic(
            self.out_tree
        ):
            raise CallbackResultError(
                f"{self.__name__}: the callback must return the structure of "
                f"result_shape_dtypes; got {tree.describe_difference(self.out_tree, structure)}",
                *tree.full_structures(self.out_tree, structure),
            )
        return [
            self.check_leaf(x, aval, out, i)
            for i, (x, aval) in enumerate(zip(leaves, results, strict=True))
        ]

    def check_leaf(self, x: Any, aval: ShapedArray, out: Any, place: int) -> Array:
        """The leaf `x` of the result `out` as an array of `aval`."""
        array = np.asarray(x)
        dtype = narrow_dtype(array.dtype) if self.narrow else array.dtype
        number = (
            type(x) in _KIND_OF_PYTHON_TYPE
            and _KIND_OF_PYTHON_TYPE[type(x)] in _ACCEPTED_KINDS[kind(aval.dtype)]
        )
        if array.shape != aval.shape or (dtype != aval.dtype and not number):
            paths = tree.leaves_with_path(out)
            raise CallbackResultError(
                f"{self.__name__}: the callback must return what result_shape_dtypes says; "
                f"got {type_name(x)} for result{tree.keystr(paths[place][0])}: {aval!r}",
                fix="Convert it in the callback (numpy.asarray(x, dtype)), or state its type.",
            )
        return np.asarray(array, aval.dtype)


_KIND_OF_PYTHON_TYPE = {bool: "b", int: "i", float: "f", complex: "c"}
_ACCEPTED_KINDS = {"b": "b", "u": "bi", "i": "bi", "f": "bif", "c": "bifc"}


class SequentialCallback(Record):
    """A host function called for each of `size` lanes, one after the other.

    `dims[i]` is the dimension of array i that runs over the lanes, None for one they share.
    The results are stacked.
    """

    callback: Any
    size: int
    dims: tuple[int | None, ...]

    @property
    def __name__(self) -> str:
        return str(self.callback.__name__)

    def __call__(self, arrays: Sequence[Array], results: Sequence[ShapedArray]) -> list[Array]:
        lanes = [
            x if dim is None else np.moveaxis(x, dim, 0)
            for x, dim in zip(arrays, self.dims, strict=True)
        ]
        avals = [a.update(shape=a.shape[1:]) for a in results]
        outs = [np.empty(a.shape, a.dtype) for a in results]
        for i in range(self.size):
            args = [
                x if dim is None else np.asarray(x[i])
                for x, dim in zip(lanes, self.dims, strict=True)
            ]
            for out, found in zip(outs, self.callback(args, avals), strict=True):
                out[i] = found
        return outs


def callback_name(fun: Any) -> str:
    """The name of a function, or of what a partial application applies."""
    while isinstance(fun, partial):
        fun = fun.func
    name = getattr(fun, "__name__", None) or type(fun).__name__
    return "lambda" if name == "<lambda>" else str(name)


class _IdentityKey:
    """A value that equals only itself."""

    __slots__ = ("value",)

    def __init__(self, value: Any):
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _IdentityKey) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


def _hashable_key(value: Any) -> Any:
    """What stands for `value` in a key: functions of one text are equal if they share all else."""
    if type(value) is FunctionType:
        defaults, named = value.__defaults__ or (), value.__kwdefaults__ or {}
        shared = (value.__globals__, *(value.__closure__ or ()), *defaults, *named.values())
        return value.__code__, len(defaults), tuple(named), *map(_IdentityKey, shared)
    try:
        hash(value)
    except TypeError:
        return _IdentityKey(value)
    return value


def _list_tuple_agnostic(structure: Any) -> str:
    """The text of a structure in which lists and tuples look alike."""
    return str(structure).replace("[", "(").replace("]", ")").replace(",)", ")")
