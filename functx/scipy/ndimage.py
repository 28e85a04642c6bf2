"""Arrays as functions of continuous coordinates, with the names and signatures of `jax.scipy.ndimage`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce
from itertools import product
from operator import and_

import functx.numpy as np
from functx import ops
from functx.core.argument_errors import explain_errors as _explain_errors
from functx.core.errors import ShapeError, ValueRangeError
from functx.core.missing_names import suggest_alternatives as _suggest_alternatives
from functx.core.types import is_inexact, is_integer
from functx.core.typing import ArrayLike, Value

__all__ = ["map_coordinates"]


def _mirror(index: Value, size: int) -> Value:
    last = max(size - 1, 1)
    return np.abs((index + last) % (2 * last) - last) if size > 1 else 0 * index


def _reflect(index: Value, size: int) -> Value:
    period = 2 * size
    index = index % period
    return np.minimum(index, period - 1 - index)


INDEX_IN_ARRAY: dict[str, Callable[[Value, int], Value]] = {
    "constant": lambda index, size: np.clip(index, 0, size - 1),
    "nearest": lambda index, size: np.clip(index, 0, size - 1),
    "wrap": lambda index, size: index % size,
    "mirror": _mirror,
    "reflect": _reflect,
}
"""For each mode, the index of the element that stands for one outside of the array."""


def map_coordinates(
    input: ArrayLike,
    coordinates: Sequence[ArrayLike],
    order: int,
    mode: str = "constant",
    cval: ArrayLike = 0.0,
) -> Value:
    """The values of `input` at `coordinates`, one array for each dimension, in units of indices.

    The order 0 takes the nearest element, and 1 interpolates linearly. Outside of the array, the
    `mode` "constant" takes elements `cval`, "nearest" the last one, "wrap" repeats the array, and
    "mirror" and "reflect" repeat it backwards, "reflect" with the last element twice.

    >>> import numpy
    >>> from functx.scipy.ndimage import map_coordinates
    >>> map_coordinates(numpy.array([0.0, 10.0, 30.0]), [numpy.array([0.5, 1.5, 3.0])], order=1).tolist()
    [5.0, 20.0, 0.0]
    """
    x, points = np.asarray(input), [np.asarray(c) for c in coordinates]
    if len(points) != x.ndim:
        raise ShapeError(
            f"map_coordinates: coordinates must be one array for each of {x.ndim} dimensions; got {len(points)}"
        )
    if mode not in INDEX_IN_ARRAY or order not in (0, 1):
        raise ValueRangeError(
            f"map_coordinates: order must be 0 or 1, and mode one of {tuple(INDEX_IN_ARRAY)}; "
            f"got {order!r} and {mode!r}"
        )
    neighbours = [_nearest(c) if order == 0 else _nearest_two(c) for c in points]
    terms = []
    for corner in product(*neighbours):
        indices = [INDEX_IN_ARRAY[mode](i, n) for (i, _), n in zip(corner, x.shape, strict=True)]
        value = x[tuple(indices)]
        if mode == "constant":
            inside = [(i >= 0) & (i < n) for (i, _), n in zip(corner, x.shape, strict=True)]
            value = np.where(reduce(and_, inside), value, np.asarray(cval, x.dtype))
        terms.append(math.prod([weight for _, weight in corner]) * value)
    out = sum(terms[1:], terms[0])
    if is_integer(x.dtype) and is_inexact(out.dtype):
        out = ops.round(out)
    return out.astype(x.dtype)


def _nearest(coordinate: Value) -> list[tuple[Value, Value | int]]:
    """The index nearest to each coordinate, with the weight 1."""
    if is_inexact(coordinate.dtype):
        coordinate = ops.round(coordinate).astype("int32")
    return [(coordinate, 1)]


def _nearest_two(coordinate: Value) -> list[tuple[Value, Value]]:
    """The indices below and above each coordinate, with their weights."""
    low = np.floor(coordinate)
    index, weight = low.astype("int32"), coordinate - low
    return [(index, 1 - weight), (index + 1, weight)]


_suggest_alternatives("jax.scipy.ndimage", __name__)
_explain_errors(__name__)
