"""Sequences with a mark for each place: what is marked taken out, and put back in its place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from functx import ops
from functx.core import tree
from functx.core.primitive import LinearInput
from functx.core.types import ShapedArray, float0, is_inexact


def select_where(items: Sequence[Any], marks: Sequence[bool]) -> list[Any]:
    """The items that are marked."""
    return [x for x, on in zip(items, marks, strict=True) if on]


def select_where_not(items: Sequence[Any], marks: Sequence[bool]) -> list[Any]:
    """The items that are not marked."""
    return [x for x, on in zip(items, marks, strict=True) if not on]


def indices_where(marks: Sequence[bool]) -> tuple[int, ...]:
    """The places that are marked."""
    return tuple([i for i, on in enumerate(marks) if on])


def scatter_where(items: Sequence[Any], marks: Sequence[bool]) -> list[Any]:
    """The next of `items` for each place that is marked, None for the others."""
    rest = iter(items)
    return [next(rest) if on else None for on in marks]


def replace_where(items: Sequence[Any], marks: Sequence[bool], new: Sequence[Any]) -> list[Any]:
    """`items` with the next of `new` in each place that is marked."""
    rest = iter(new)
    return [next(rest) if on else x for x, on in zip(items, marks, strict=True)]


def instantiate_zeros(values: Sequence[Any], like: Sequence[Any]) -> list[Any]:
    """`values` with zeros, of the types of `like`, in place of None."""
    return [ops.zeros_like(a) if x is None else x for x, a in zip(values, like, strict=True)]


def is_float0(x: Any) -> bool:
    """Whether `x` is an array of JAX's dtype for the tangents of integers, which have no values."""
    return getattr(x, "dtype", None) == float0


def tangent_avals(structure: Any, avals: Sequence[ShapedArray]) -> Sequence[ShapedArray]:
    """The types `avals` of the leaves of a structure, where typed keys have no dimension of words.

    So the tangent of keys has their shape, as in JAX.
    """
    marks = tree.key_leaves(structure)
    if not any(marks):
        return avals
    return [a.update(shape=a.shape[: a.ndim - on]) for a, on in zip(avals, marks, strict=True)]


def unflatten_tangents(
    structure: Any, avals: Sequence[ShapedArray], tangents: Sequence[Any]
) -> Any:
    """The pytree of tangents or cotangents of values of types `avals`, None for integers.

    A class of the user's is made of arrays only: of zeros of dtype `float0` in place of None.
    """
    if any(t is None for t in tangents):
        marks, own = tree.leaves_in_user_nodes(structure), tangent_avals(structure, avals)
        tangents = [
            np.zeros(a.shape, float0) if t is None and on else t
            for t, a, on in zip(tangents, own, marks, strict=True)
        ]
    return tree.unflatten(structure, tangents)


def inexact_mask(avals: Sequence[Any]) -> list[bool]:
    """Which of `avals` are inexact."""
    return [is_inexact(a.dtype) for a in avals]


def inexact_cotangents(cts: Sequence[Any], avals: Sequence[Any]) -> list[Any]:
    """The cotangents of the inexact outputs, zeros for None."""
    marks = inexact_mask(avals)
    return instantiate_zeros(select_where(cts, marks), select_where(avals, marks))


def linear_mask(args: Sequence[Any]) -> tuple[bool, ...]:
    """Which operands, as a `transpose` rule gets them, an equation is linear in."""
    return tuple([type(x) is LinearInput for x in args])
