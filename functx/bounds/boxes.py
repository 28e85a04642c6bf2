"""Boxes of arguments, in which the transforms of this package bound functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np

from functx.core import tree
from functx.core.backend import backend
from functx.core.errors import ShapeError, ValueRangeError
from functx.core.program import Program
from functx.core.tracer import Tracer
from functx.core.typing import Function, PyTree, Value
from functx.transforms.argument_names import check_callable, wrap_transform
from functx.transforms.tracing_api import avals_of, trace_function

Pair: TypeAlias = tuple[Value, Value]
"""The lower and the upper bound of a value; one array twice for a value that is known exactly."""

T = TypeVar("T")


class Interval(NamedTuple):
    """All arrays between `lower` and `upper`, elementwise; `lower` must not exceed `upper`."""

    lower: Any
    upper: Any


class Box(NamedTuple):
    """A traced function, and its operands: two bounds for each that varies."""

    program: Program
    varying: tuple[bool, ...]
    operands: list[Value]
    out_tree: tree.TreeDef

    def unflatten(self, outs: Iterable[Value]) -> PyTree:
        """The result with an `Interval` for each array, from two bounds for each."""
        given = iter(outs)
        return tree.unflatten(self.out_tree, [Interval(*x) for x in zip(given, given, strict=True)])


def on_boxes(kind: str, f: Function, compute: Callable[[Box], PyTree]) -> Function:
    """The function of arguments of `f`, with an `Interval` for some arrays, that `compute` gives."""
    check_callable(f, kind)

    def wrapper(*args: PyTree, **kwargs: PyTree) -> PyTree:
        leaves, in_tree = tree.flatten((args, kwargs), lambda x: isinstance(x, Interval))
        varying = [isinstance(x, Interval) for x in leaves]
        operands = flat(
            [x if on else (x, x) for x, on in zip(leaves, varying, strict=True)], varying
        )
        two_each = tree.structure(tuple(operands))
        avals = pairs(avals_of(operands, kind, lambda *_: None, two_each), varying)
        for low, high in avals:
            if (low.shape, low.dtype) != (high.shape, high.dtype):
                raise ShapeError(
                    f"{kind}: the bounds of an Interval must have one shape and dtype; got {low!r} and "
                    f"{high!r}"
                )
        for x in leaves:
            if isinstance(x, Interval):
                _check_order(kind, x)
        traced = trace_function(f, in_tree, [low for low, _ in avals], kind).refuse_writes(kind)
        varying += [False] * len(traced.captured)
        box = Box(traced.program, tuple(varying), [*operands, *traced.captured], traced.out_tree)
        return compute(box)

    return wrap_transform(wrapper, f, kind)


def _check_order(kind: str, x: Interval) -> None:
    """Raise ValueRangeError if bounds that are known are in the wrong order."""
    lower, upper = [None if isinstance(v, Tracer) else backend.concrete_or_none(v) for v in x]
    if lower is not None and upper is not None and bool((np.asarray(lower) > upper).any()):
        raise ValueRangeError(
            f"{kind}: lower must not exceed upper in an Interval; got {lower!r} and {upper!r}",
            fix="Write Interval(lower, upper).",
        )


def pairs(values: Iterable[T], varying: Sequence[bool]) -> list[tuple[T, T]]:
    """The bounds of values, of which those that vary are given by two arrays."""
    given = iter(values)
    return [(x, next(given) if on else x) for on in varying for x in (next(given),)]


def flat(bounds: Iterable[tuple[T, T]], varying: Sequence[bool]) -> list[T]:
    """The arrays from which `pairs` makes `bounds`."""
    return [x for pair, on in zip(bounds, varying, strict=True) for x in pair[: 1 + on]]
