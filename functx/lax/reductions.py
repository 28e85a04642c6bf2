"""Reductions, cumulative operations and sorting, by JAX's names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from functx import ops
from functx.core.tracing import aval_of
from functx.ops import cumulative, reductions, sorting
from functx.ops.operands import canonical_axis

__all__ = [
    "argmax",
    "argmin",
    "cumlogsumexp",
    "cummax",
    "cummin",
    "cumprod",
    "cumsum",
    "reduce_and",
    "reduce_max",
    "reduce_min",
    "reduce_or",
    "reduce_prod",
    "reduce_sum",
    "reduce_xor",
    "sort",
    "sort_key_val",
    "top_k",
]


def reduce_sum(operand: Any, axes: Sequence[int]) -> Any:
    """The sum over `axes`, which leave the shape."""
    return reductions.reduce_sum(operand, tuple(axes))


def reduce_prod(operand: Any, axes: Sequence[int]) -> Any:
    """The product over `axes`, which leave the shape."""
    return reductions.reduce_prod(operand, tuple(axes))


def reduce_max(operand: Any, axes: Sequence[int]) -> Any:
    """The largest element over `axes`, which leave the shape."""
    return reductions.reduce_max(operand, tuple(axes))


def reduce_min(operand: Any, axes: Sequence[int]) -> Any:
    """The smallest element over `axes`, which leave the shape."""
    return reductions.reduce_min(operand, tuple(axes))


def reduce_and(operand: Any, axes: Sequence[int]) -> Any:
    """Bitwise and of booleans or integers over `axes`, which leave the shape."""
    return reductions.reduce_and(operand, tuple(axes))


def reduce_or(operand: Any, axes: Sequence[int]) -> Any:
    """Bitwise or of booleans or integers over `axes`, which leave the shape."""
    return reductions.reduce_or(operand, tuple(axes))


def reduce_xor(operand: Any, axes: Sequence[int]) -> Any:
    """Bitwise exclusive or over `axes`, which leave the shape."""
    return reductions.reduce_xor(operand, tuple(axes))


def argmax(operand: Any, axis: int, index_dtype: Any) -> Any:
    """The place of the first largest element along `axis`; of the first nan if there is one."""
    return reductions.argmax(operand, axis, index_dtype)


def argmin(operand: Any, axis: int, index_dtype: Any) -> Any:
    """The place of the first smallest element along `axis`; of the first nan if there is one."""
    return reductions.argmin(operand, axis, index_dtype)


def cumsum(operand: Any, axis: int = 0, reverse: bool = False) -> Any:
    """The sum along `axis` of each element and all before it; with `reverse`, all after it."""
    return cumulative.cumsum(operand, axis, reverse)


def cumprod(operand: Any, axis: int = 0, reverse: bool = False) -> Any:
    """The product along `axis` of each element and all before it; with `reverse`, all after it."""
    return cumulative.cumprod(operand, axis, reverse)


def cummax(operand: Any, axis: int = 0, reverse: bool = False) -> Any:
    """The largest along `axis` of each element and all before it; with `reverse`, all after it."""
    return cumulative.cummax(operand, axis, reverse)


def cummin(operand: Any, axis: int = 0, reverse: bool = False) -> Any:
    """The smallest along `axis` of each element and all before it; with `reverse`, all after it."""
    return cumulative.cummin(operand, axis, reverse)


def cumlogsumexp(operand: Any, axis: int = 0, reverse: bool = False) -> Any:
    """The logarithm of the cumulative sum along `axis` of exponentials; see `cumsum`."""
    return cumulative.cumlogsumexp(operand, axis, reverse)


def sort(operand: Any, dimension: int = -1, is_stable: bool = True, num_keys: int = 1) -> Any:
    """`operand`, an array or several, in ascending order along `dimension`.

    The first `num_keys` of several decide the order, which all then take. nan comes last.
    """
    return sorting.sort(operand, dimension, is_stable, num_keys)


def sort_key_val(
    keys: Any, values: Any, dimension: int = -1, is_stable: bool = True
) -> tuple[Any, Any]:
    """`keys` in ascending order along `dimension`, and `values` in the order of the keys."""
    keys, values = sorting.sort((keys, values), dimension, is_stable, 1)
    return keys, values


def top_k(operand: Any, k: int, *, axis: int = -1) -> tuple[Any, Any]:
    """The `k` largest elements along `axis`, in descending order, and their places."""
    ndim = aval_of(operand).ndim
    place = canonical_axis(axis, ndim, "top_k: axis")
    rows = ops.moveaxis(operand, place, ndim - 1)
    boolean = aval_of(operand).dtype == np.bool_
    values, places = sorting.top_k(ops.convert_element_type(rows, np.uint8) if boolean else rows, k)
    values = ops.convert_element_type(values, np.bool_) if boolean else values
    return ops.moveaxis(values, ndim - 1, place), ops.moveaxis(places, ndim - 1, place)
