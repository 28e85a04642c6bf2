"""Masks of sequences: the selection, replacement and scattering of the items that are marked."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import numpy as np

from functx import ops
from functx.core import tree
from functx.core.primitive import is_linear_input
from functx.core.types import ShapedArray, float0, is_inexact
from functx.core.typing import Cotangent, NumPyArray, PyTree, Tangent, Value

T = TypeVar("T")


def split_list(items: Sequence[T], lengths: Sequence[int]) -> list[Sequence[T]]:
    """`items` split into sequences of the given `lengths`, and the remaining items."""
    parts, start = [], 0
    for length in lengths:
        parts.append(items[start : start + length])
        start += length
    return [*parts, items[start:]]


def select_where(items: Iterable[T], mask: Iterable[bool]) -> list[T]:
    """The items that `mask` marks."""
    return [x for x, on in zip(items, mask, strict=True) if on]


def select_where_not(items: Iterable[T], mask: Iterable[bool]) -> list[T]:
    """The items that `mask` does not mark."""
    return [x for x, on in zip(items, mask, strict=True) if not on]


def indices_where(mask: Iterable[bool]) -> tuple[int, ...]:
    """The indices that `mask` marks."""
    return tuple([i for i, on in enumerate(mask) if on])


def scatter_where(items: Iterable[T], mask: Iterable[bool]) -> list[T | None]:
    """`items`, one for each index that `mask` marks, with None at the other indices."""
    remaining = iter(items)
    return [next(remaining) if on else None for on in mask]


def replace_where(items: Iterable[T], mask: Iterable[bool], new: Iterable[T]) -> list[T]:
    """`items` with the items of `new` at the indices that `mask` marks."""
    remaining = iter(new)
    return [next(remaining) if on else x for x, on in zip(items, mask, strict=True)]


def instantiate_zeros(
    values: Sequence[Value | None], like: Sequence[Value | ShapedArray]
) -> list[Value]:
    """`values` with zeros of the types of `like` in place of None."""
    return [ops.zeros_like(a) if x is None else x for x, a in zip(values, like, strict=True)]


def is_float0(x: Any) -> bool:
    """Whether `x` is an array of `float0`, JAX's dtype of the tangents of integers."""
    return getattr(x, "dtype", None) == float0


def tangent_avals(structure: tree.TreeDef, avals: Sequence[ShapedArray]) -> Sequence[ShapedArray]:
    """The avals of the tangents of the leaves of a structure of types `avals`.

    They are `avals`, but for typed keys, whose tangents lack the last dimension, that of the key
    data, as in JAX.
    """
    mask = tree.key_leaves(structure)
    if not any(mask):
        return avals
    return [a.update(shape=a.shape[: a.ndim - on]) for a, on in zip(avals, mask, strict=True)]


def unflatten_tangents(
    structure: tree.TreeDef,
    avals: Sequence[ShapedArray],
    tangents: Sequence[Tangent | NumPyArray],
) -> PyTree:
    """The pytree of tangents or cotangents of values of types `avals`, with None for integers.

    In pytree classes of users, which may take nothing but arrays, zeros of dtype `float0` replace
    None.
    """
    if any([t is None for t in tangents]):
        mask, own = tree.leaves_in_user_nodes(structure), tangent_avals(structure, avals)
        tangents = [
            np.zeros(a.shape, float0) if t is None and on else t
            for t, a, on in zip(tangents, own, mask, strict=True)
        ]
    return tree.unflatten(structure, tangents)


def inexact_mask(avals: Iterable[Value | ShapedArray]) -> list[bool]:
    """The mask of the `avals` of inexact dtype."""
    return [is_inexact(a.dtype) for a in avals]


def inexact_cotangents(cts: Sequence[Cotangent], avals: Sequence[ShapedArray]) -> list[Value]:
    """The cotangents of the inexact outputs, with zeros for None."""
    mask = inexact_mask(avals)
    return instantiate_zeros(select_where(cts, mask), select_where(avals, mask))


def linear_mask(args: Iterable[object]) -> tuple[bool, ...]:
    """The mask of the operands that a `transpose` rule gets as `LinearInput`."""
    return tuple([is_linear_input(x) for x in args])
