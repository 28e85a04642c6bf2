"""Normalizations of each example by itself: over its last dimensions, or over groups of channels."""

from __future__ import annotations

from math import prod
from typing import Any

from functx.core.errors import AxisError, ShapeError
from functx.core.samples import f32, sample
from functx.ops.normalizations import (
    BackwardNormalization,
    ForwardNormalization,
    NormalizationLayout,
)


class LastDimsLayout:
    """The last `rank` dimensions together; weight and bias have them, and the first `lead`."""

    def layout_of(self: Any, x: Any) -> NormalizationLayout:
        rank, lead, ndim = self.normalized_ndim, self.affine_batch_ndim, x.ndim
        if not 1 <= rank <= ndim - lead:
            raise AxisError(
                f"{self.name}: the operand must have at least the {rank} dimensions to normalize "
                f"over, and at least one; got {x!r}"
            )
        axes = tuple(range(ndim - rank, ndim))
        return NormalizationLayout(x.shape, x.shape, axes, (*range(lead), *axes))

    def batched_primitive(self: Any, shared: bool) -> tuple[Any, int]:
        return self.replace(
            affine_batch_ndim=self.affine_batch_ndim + (not shared)
        ), self.affine_batch_ndim * shared


class ChannelGroupsLayout:
    """Each of `groups` groups of the channels along `axis`, and what follows, together.

    Weight and bias have the dimension of the channels, and the first `lead`.
    """

    def layout_of(self: Any, x: Any) -> NormalizationLayout:
        groups, axis, lead = self.groups, self.axis, self.affine_batch_ndim
        if not lead <= axis < x.ndim or groups < 1 or x.shape[axis] % groups:
            raise ShapeError(
                f"{self.name}: the channels, along axis {axis}, must be a multiple of {groups} "
                f"groups; got {x!r}"
            )
        # One dimension for a whole group, which XLA sums up faster than several.
        split = (*x.shape[:axis], groups, prod(x.shape[axis:]) // groups)
        return NormalizationLayout(x.shape, split, (axis + 1,), (*range(lead), axis))

    def batched_primitive(self: Any, shared: bool) -> tuple[Any, int]:
        changed = self.replace(
            axis=self.axis + 1, affine_batch_ndim=self.affine_batch_ndim + (not shared)
        )
        return changed, self.affine_batch_ndim * shared


class LayerNorm(LastDimsLayout, ForwardNormalization):
    """Over the last `rank` dimensions together: mean 0 and variance 1, scaled and shifted.

    The weight and the bias have those dimensions, and the first `lead` of x.
    """

    normalized_ndim: int
    affine_batch_ndim: int = 0
    samples = (
        sample(f32[3, 4], f32[4], f32[4], eps=1e-2, weighted=True, biased=True, normalized_ndim=1),
        sample(f32[0, 2, 2], eps=1e-2, weighted=False, biased=False, normalized_ndim=2),
    )


class LayerNormBackward(LastDimsLayout, BackwardNormalization):
    """The cotangents that `layer_norm` makes of that of its output."""

    normalized_ndim: int
    affine_batch_ndim: int = 0
    samples = (
        sample(
            f32[3, 4],
            f32[3, 4],
            f32[4],
            eps=1e-2,
            weighted=True,
            output_mask=(True, True, True),
            normalized_ndim=1,
        ),
        sample(
            f32[3, 4],
            f32[3, 4],
            f32[3],
            eps=None,
            weighted=False,
            output_mask=(True, True, True),
            normalized_ndim=1,
            domain={2: (0.5, 1.0)},
            gradients={2: [0.0, 0.0, 0.0]},
        ),
    )


class RMSNorm(LastDimsLayout, ForwardNormalization):
    """Over the last `rank` dimensions together: mean square 1, scaled and shifted.

    The weight and the bias have those dimensions, and the first `lead` of x.
    """

    normalized_ndim: int
    affine_batch_ndim: int = 0
    centered = False
    name = "rms_norm"
    samples = (sample(f32[3, 4], f32[4], eps=1e-2, weighted=True, biased=False, normalized_ndim=1),)


class RMSNormBackward(LastDimsLayout, BackwardNormalization):
    """The cotangents that `rms_norm` makes of that of its output."""

    normalized_ndim: int
    affine_batch_ndim: int = 0
    centered = False
    name = "rms_norm_backward"
    samples = (
        sample(
            f32[3, 4],
            f32[3, 4],
            eps=1e-2,
            weighted=False,
            output_mask=(True, False, True),
            normalized_ndim=1,
        ),
    )


class GroupNorm(ChannelGroupsLayout, ForwardNormalization):
    """Over each of `groups` groups of channels and what follows: mean 0 and variance 1.

    The channels lie along `axis`, and are scaled and shifted each: the weight and the bias
    have that dimension, and the first `lead` of x.
    """

    groups: int
    axis: int = 1
    affine_batch_ndim: int = 0
    samples = (sample(f32[2, 4, 3], f32[4], eps=1e-2, weighted=False, biased=True, groups=2),)


class GroupNormBackward(ChannelGroupsLayout, BackwardNormalization):
    """The cotangents that `group_norm` makes of that of its output."""

    groups: int
    axis: int = 1
    affine_batch_ndim: int = 0
    samples = (
        sample(
            f32[2, 4, 3],
            f32[2, 4, 3],
            eps=1e-2,
            weighted=False,
            output_mask=(True, False, True),
            groups=2,
        ),
    )


LayerNorm.backward = LayerNormBackward
RMSNorm.backward = RMSNormBackward
GroupNorm.backward = GroupNormBackward
