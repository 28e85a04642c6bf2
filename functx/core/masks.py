"""Masks that select from sequences, and masks of the zeros of tangents and cotangents in a rule."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from functx.core import tree
from functx.core.primitive import is_linear_input
from functx.core.tracer import current_builder
from functx.core.types import ShapedArray, float0, is_inexact
from functx.core.typing import Cotangent, Mask, Value

Result = TypeVar("Result")


class RuleMasks:
    """The masks of the tangents or cotangents that a rule takes, and of its results."""

    __slots__ = ("masked", "result_masks")

    def __init__(self, values: Sequence[Cotangent], masks: Sequence[Mask]):
        self.masked = [pair for pair in zip(values, masks, strict=True) if pair[1] is not None]
        self.result_masks: Sequence[Mask] | None = None


def mask_of(value: Cotangent) -> Mask:
    """A boolean array, False where `value` is zero; None if no element is known to be zero.

    `value` is a tangent or cotangent that the running rule was given. Where the mask is False, the
    results of the rule must be zero, also if the operands are infinite or nan.
    """
    builder = current_builder.innermost()
    if builder is not None and builder.rule_masks is not None and value is not None:
        for x, mask in builder.rule_masks.masked:
            if x is value:
                return mask
    return None


def set_result_masks(masks: Sequence[Mask]) -> None:
    """State the masks of the results of the running rule, in place of the derived ones.

    They are those of the outputs in `jvp`, and those of the operands in `vjp`.
    """
    builder = current_builder.innermost()
    if builder is not None and builder.rule_masks is not None:
        builder.rule_masks.result_masks = masks


def run_rule(
    values: Sequence[Cotangent],
    masks: Sequence[Mask],
    rule: Callable[..., Result],
    *args: object,
) -> tuple[Result, Sequence[Mask] | None]:
    """The result of `rule(*args)`, which is given `values` with `masks`, and the masks that it states.

    The second is None if it states none.
    """
    builder = current_builder.require()
    outer = builder.rule_masks
    builder.rule_masks = own = RuleMasks(values, masks)
    try:
        return rule(*args), own.result_masks
    finally:
        builder.rule_masks = outer


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


def is_float0(x: object) -> bool:
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


def inexact_mask(avals: Iterable[Value | ShapedArray]) -> list[bool]:
    """The mask of the `avals` of inexact dtype."""
    return [is_inexact(a.dtype) for a in avals]


def linear_mask(args: Iterable[object]) -> tuple[bool, ...]:
    """The mask of the operands that a `transpose` rule gets as `LinearInput`."""
    return tuple([is_linear_input(x) for x in args])
