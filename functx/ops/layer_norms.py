"""Normalizations of each example by itself: over its last dimensions, or over groups of channels."""

from __future__ import annotations

from typing import Any

from functx.core.errors import AxisError, ShapeError
from functx.core.samples import f32, sample
from functx.ops.normalizations import Backward, Forward, Layout


class LayerNorm(Forward):
    """Over the last `rank` dimensions together: mean 0 and variance 1, scaled and shifted.

    The weight and the bias have those dimensions, and the first `lead` of x.
    """

    rank: int
    lead: int = 0
    samples = (
        sample(f32[3, 4], f32[4], f32[4], eps=1e-2, weighted=True, biased=True, rank=1),
        sample(f32[0, 2, 2], eps=1e-2, rank=2),
    )

    def layout(self, x):
        return trailing(self, x)

    def batched(self, shared):
        return self.changed(lead=self.lead + (not shared))


class LayerNormBackward(Backward):
    """The cotangents that `layer_norm` makes of that of its output."""

    rank: int
    lead: int = 0
    samples = (
        sample(f32[3, 4], f32[3, 4], f32[4], eps=1e-2, weighted=True, rank=1),
        sample(
            f32[3, 4],
            f32[3, 4],
            f32[3],
            eps=None,
            rank=1,
            domain={2: (0.5, 1.0)},
            gradients={2: [0.0, 0.0, 0.0]},
        ),
    )

    def layout(self, x):
        return trailing(self, x)

    def batched(self, shared):
        return self.changed(lead=self.lead + (not shared))


class RMSNorm(Forward):
    """Over the last `rank` dimensions together: mean square 1, scaled and shifted.

    The weight and the bias have those dimensions, and the first `lead` of x.
    """

    rank: int
    lead: int = 0
    centered = False
    name = "rms_norm"
    samples = (sample(f32[3, 4], f32[4], eps=1e-2, weighted=True, rank=1),)

    def layout(self, x):
        return trailing(self, x)

    def batched(self, shared):
        return self.changed(lead=self.lead + (not shared))


class RMSNormBackward(Backward):
    """The cotangents that `rms_norm` makes of that of its output."""

    rank: int
    lead: int = 0
    centered = False
    name = "rms_norm_backward"
    samples = (sample(f32[3, 4], f32[3, 4], eps=1e-2, rank=1, wanted=(True, False, True)),)

    def layout(self, x):
        return trailing(self, x)

    def batched(self, shared):
        return self.changed(lead=self.lead + (not shared))


class GroupNorm(Forward):
    """Over each of `groups` groups of channels and what follows: mean 0 and variance 1.

    The channels lie along `axis`, and are scaled and shifted each: the weight and the bias
    have that dimension, and the first `lead` of x.
    """

    groups: int
    axis: int = 1
    lead: int = 0
    samples = (sample(f32[2, 4, 3], f32[4], eps=1e-2, biased=True, groups=2),)

    def layout(self, x):
        return in_groups(self, x)

    def batched(self, shared):
        return self.changed(axis=self.axis + 1, lead=self.lead + (not shared))


class GroupNormBackward(Backward):
    """The cotangents that `group_norm` makes of that of its output."""

    groups: int
    axis: int = 1
    lead: int = 0
    samples = (sample(f32[2, 4, 3], f32[2, 4, 3], eps=1e-2, groups=2, wanted=(True, False, True)),)

    def layout(self, x):
        return in_groups(self, x)

    def batched(self, shared):
        return self.changed(axis=self.axis + 1, lead=self.lead + (not shared))


def trailing(primitive: Any, x: Any) -> Layout:
    """The layout of a normalization over the last `rank` dimensions."""
    rank, lead, ndim = primitive.rank, primitive.lead, x.ndim
    if not 1 <= rank <= ndim - lead:
        raise AxisError(
            f"{primitive.name}: the operand must have at least the {rank} dimensions to normalize "
            f"over, and at least one; got {x!r}"
        )
    axes = tuple(range(ndim - rank, ndim))
    return Layout(x.shape, x.shape, axes, (*range(lead), *axes))


def in_groups(primitive: Any, x: Any) -> Layout:
    """The layout of a normalization over groups of channels."""
    groups, axis, lead = primitive.groups, primitive.axis, primitive.lead
    if not lead <= axis < x.ndim or groups < 1 or x.shape[axis] % groups:
        raise ShapeError(
            f"{primitive.name}: the channels, along axis {axis}, must be a multiple of {groups} "
            f"groups; got {x!r}"
        )
    split = (*x.shape[:axis], groups, x.shape[axis] // groups, *x.shape[axis + 1 :])
    return Layout(x.shape, split, tuple(range(axis + 1, len(split))), (*range(lead), axis))


LayerNorm.backward = LayerNormBackward
RMSNorm.backward = RMSNormBackward
GroupNorm.backward = GroupNormBackward
