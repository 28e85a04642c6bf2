"""Masks of tangents and cotangents, which ride beside them while a derivative rule runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from functx.core.tracer import current_builder
from functx.core.typing import Cotangent, Mask

Result = TypeVar("Result")


class RuleMasks:
    """The masks of the tangents or cotangents that a rule is given, and of those that it returns."""

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
    """State the masks of the results of the running rule, instead of those that the primitive derives.

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
