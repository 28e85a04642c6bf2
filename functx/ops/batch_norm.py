"""Batch normalization of each channel, by the statistics of the batch or by running ones."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from math import prod
from typing import Any

from functx import ops
from functx.core.errors import ShapeError
from functx.core.masks import mask_of, select_where
from functx.core.primitive import Primitive
from functx.core.primitive_families import HasDCE
from functx.core.samples import f32, sample
from functx.core.types import ShapedArray
from functx.core.typing import Cotangent, Cotangents, Dim, Mask, Tangent, Tangents, Value, Values
from functx.ops.families import apply_mask
from functx.ops.normalizations import (
    BackwardNormalization,
    ForwardNormalization,
    Normalization,
    NormalizationLayout,
)
from functx.ops.operands import broadcast_along, check_axes, tuple_delete
from functx.ops.statistics import check_real, mean_along, working_dtype


class BatchNormBackward(BackwardNormalization):
    """The cotangents of the operands of `batch_norm`, given that of its output."""

    axes: tuple[int, ...]
    can_share_affine = False
    samples = (
        sample(
            f32[3, 2, 2],
            f32[3, 2, 2],
            eps=1e-2,
            weighted=False,
            output_mask=(True, False, True),
            axes=(0, 2),
        ),
        sample(
            f32[4, 3],
            f32[4, 3],
            f32[3],
            eps=None,
            weighted=False,
            output_mask=(True, True, True),
            axes=(0,),
            domain={2: (0.5, 1.0)},
            gradients={2: [0.0, 0.0, 0.0]},
        ),
    )

    def layout_of(self, x: Value | ShapedArray) -> NormalizationLayout:
        return channel_layout(self, x)

    def batched_primitive(self, shared: bool) -> tuple[Primitive, int]:
        return self.replace(axes=tuple([d + 1 for d in self.axes])), 0


class BatchNorm(ForwardNormalization, HasDCE):
    """x normalized to mean 0 and variance 1 over `axes` in each channel, then scaled and shifted.

    The operands are x, the weight if `weighted`, the bias if `biased`, and if `tracked` a running
    mean and a running variance, all of the dimensions of x other than `axes`. If `tracked`, the
    outputs include the running statistics, moved by `momentum` towards the mean and the unbiased
    variance of x.
    """

    backward = BatchNormBackward
    axes: tuple[int, ...]
    momentum: float = 0.1
    tracked: bool = False
    can_share_affine = False
    multiple_results = True
    samples = (
        sample(f32[4, 3], f32[3], eps=1e-2, weighted=True, biased=False, axes=(0,)),
        sample(
            f32[3, 2, 2],
            f32[2],
            f32[2],
            eps=1e-2,
            weighted=False,
            biased=False,
            axes=(0, 2),
            tracked=True,
        ),
    )

    def layout_of(self, x: Value | ShapedArray) -> NormalizationLayout:
        return channel_layout(self, x)

    def batched_primitive(self, shared: bool) -> tuple[Primitive, int]:
        return self.replace(axes=tuple([d + 1 for d in self.axes])), 0

    def abstract_eval(self, x: ShapedArray, *centered_x: ShapedArray) -> Sequence[ShapedArray]:
        count = len(centered_x) - 2 * self.tracked
        running = centered_x[count:]
        check_real(self.name, x, *centered_x)
        self.check_affine(
            self.layout_of(x).affine,
            **dict(zip(("running mean", "running variance"), running, strict=False)),
        )
        out = super().abstract_eval(x, *centered_x[:count])
        return [out, *[aval.update(weak_type=False) for aval in running]]

    def decompose(self, *args: Value) -> Values:
        cts = self.standardized_input(args)
        means, variances = self.running_statistics(args)
        outs: list[Any] = [self.apply_affine(cts, args)]
        if self.tracked:
            correction = self.bessel_correction(args[0])
            outs.append(self.update_running(means, cts.mean, args[0], means))
            outs.append(
                self.update_running(
                    variances, ops.mul(cts.variance, correction), args[0], variances
                )
            )
        return outs

    def jvp(self, primals: Values, tangents: Tangents) -> tuple[Values, Tangents]:
        out_tangents = [self.output_tangent(primals, tangents)]
        if self.tracked:
            x, (t, *_) = primals[0], tangents
            t_mean, t_variance = self.running_statistics(tangents)
            mean_tangent = variance_tangent = None
            if t is not None:
                dtype = working_dtype(*primals)
                t, upcast_x = ops.convert_element_type(t, dtype), ops.convert_element_type(x, dtype)
                # d mean((x - m)^2) = 2 mean((x - m) dx)
                centered_x = ops.sub(
                    upcast_x, broadcast_along(mean_along(upcast_x, self.axes), x, self.axes)
                )
                mean_tangent = mean_along(t, self.axes)
                variance_tangent = ops.mul(
                    mean_along(ops.mul(centered_x, t), self.axes), 2 * self.bessel_correction(x)
                )
            running = self.running_statistics(primals)
            out_tangents.append(self.update_running(t_mean, mean_tangent, x, running[0]))
            out_tangents.append(self.update_running(t_variance, variance_tangent, x, running[1]))
        return self(*primals), out_tangents

    def vjp(self, cts: Cotangents, out: Value, args: Values, active: Sequence[bool]) -> Cotangents:
        ct, *running_out_cts = cts
        found: list[Cotangent] = [None] * (1 + self.weighted + self.biased)
        if ct is not None:
            found = self.input_cotangents(ct, args, active)
        if not self.tracked:
            return found
        x = args[0]
        if not x.size:
            return [*found, *running_out_cts]
        running_cts = [
            None if ct is None else ops.mul(ct, 1 - self.momentum) for ct in running_out_cts
        ]
        if active[0]:
            found[0] = self.add_running_cotangents(found[0], running_out_cts, x, args)
        return [*found, *running_cts]

    def add_running_cotangents(
        self, found: Cotangent, cts: Cotangents, x: Value, args: Values
    ) -> Cotangent:
        """The cotangent of x plus the contributions of the running statistics' cotangents `cts`."""
        dtype = working_dtype(*args)
        count = prod([x.shape[d] for d in self.axes])
        terms = []
        if cts[0] is not None:
            mean_ct = ops.mul(ops.convert_element_type(cts[0], dtype), self.momentum / count)
            terms.append(broadcast_along(mean_ct, x, self.axes))
        if cts[1] is not None:
            upcast_x = ops.convert_element_type(x, dtype)
            centered_x = ops.sub(
                upcast_x, broadcast_along(mean_along(upcast_x, self.axes), x, self.axes)
            )
            factor = 2 * self.momentum * self.bessel_correction(x) / count
            mean_ct = ops.mul(ops.convert_element_type(cts[1], dtype), factor)
            terms.append(ops.mul(centered_x, broadcast_along(mean_ct, x, self.axes)))
        for term in terms:
            narrowed = ops.convert_element_type(term, x.dtype)
            found = narrowed if found is None else ops.add(found, narrowed)
        return found

    def running_statistics(self, values: Tangents) -> Sequence[Any]:
        """The entries of `values` for the running mean and variance."""
        return values[-2:] if self.tracked else (None, None)

    def bessel_correction(self, x: Value) -> float:
        """The factor from the mean square to the unbiased variance; 1 for one element."""
        count = prod([x.shape[d] for d in self.axes])
        return count / max(count - 1, 1)

    def update_running(self, old: Tangent, new: Tangent, x: Value, like: Value) -> Tangent:
        """The running statistic `old` moved towards `new`; None stands for 0."""
        if not x.size:
            return old
        terms = [
            ops.mul(ops.convert_element_type(value, like.dtype), factor)
            for value, factor in ((old, 1 - self.momentum), (new, self.momentum))
            if value is not None
        ]
        return reduce(ops.add, terms) if terms else None

    def batch(self, args: Values, dims: Sequence[Dim]) -> tuple[Values, Sequence[Dim]]:
        outs, _ = super().batch(args, dims)
        return outs, [0] * len(outs)

    def dce(self, used: Sequence[bool]) -> tuple[Primitive, Sequence[int], Sequence[int]] | None:
        if not self.tracked or any(used[1:]):
            return None
        return self.replace(tracked=False), range(1 + self.weighted + self.biased), [0]


class FixedStatisticsNormalization(Normalization, abstract=True):
    """Base class of normalization by given statistics and of its backward primitive."""

    axes: tuple[int, ...]

    def layout_of(self, x: Value | ShapedArray) -> NormalizationLayout:
        return channel_layout(self, x)

    def batch(
        self, args: Values, dims: Sequence[Dim]
    ) -> tuple[Value | Values, Dim | Sequence[Dim]]:
        outs = self.replace(axes=tuple([d + 1 for d in self.axes]))(*ops.batch_dims_at(args, dims))
        return outs, [0] * len(outs) if self.multiple_results else 0


class BatchNormInference(FixedStatisticsNormalization):
    """(x - mean) / sqrt(variance + eps) in each channel, scaled and shifted.

    The operands are x, mean, variance, the weight if `weighted`, and the bias if `biased`. All but x
    have its dimensions other than `axes`.
    """

    biased: bool
    samples = (
        sample(
            f32[3, 2],
            f32[2],
            f32[2],
            f32[2],
            f32[2],
            eps=1e-2,
            weighted=True,
            biased=True,
            axes=(0,),
            domain={2: (0.5, 2.0)},
        ),
    )

    def abstract_eval(
        self, x: ShapedArray, mean: ShapedArray, variance: ShapedArray, *affine: ShapedArray
    ) -> ShapedArray:
        check_real(self.name, x, mean, variance, *affine)
        names = [name for name, on in (("weight", self.weighted), ("bias", self.biased)) if on]
        self.check_affine(
            self.layout_of(x).affine,
            mean=mean,
            variance=variance,
            **dict(zip(names, affine, strict=True)),
        )
        return x.update(weak_type=False)

    def decompose(self, x: Value, mean: Value, variance: Value, *affine: Value) -> Value:
        assert self.eps is not None
        layout, dtype = self.layout_of(x), working_dtype(x, mean, variance, *affine)
        centered_x = ops.sub(
            ops.convert_element_type(x, dtype), layout.broadcast_affine(mean, dtype)
        )
        scale = ops.rsqrt(ops.add(ops.convert_element_type(variance, dtype), self.eps))
        if self.weighted:
            scale = ops.mul(scale, ops.convert_element_type(affine[0], dtype))
        out = ops.mul(centered_x, layout.broadcast_affine(scale, dtype))
        if self.biased:
            out = ops.add(out, layout.broadcast_affine(affine[-1], dtype))
        return ops.convert_element_type(out, x.dtype)

    def vjp(self, ct: Value, out: Value, args: Values, active: Sequence[bool]) -> Cotangents:
        flags = [*active[:3], self.weighted and active[3], self.biased and active[-1]]
        x_mask, *_ = self.cotangent_masks(mask_of(ct), args)
        x, bias = args[0], args[-1]
        backward = BatchNormInferenceBackward(
            eps=self.eps,
            weighted=self.weighted,
            axes=self.axes,
            output_mask=(flags[0], flags[1], flags[2], flags[3], flags[4]),
        )
        found = iter(backward(ct, apply_mask(x_mask, x), *args[1 : 3 + self.weighted]))
        cts: list[Any] = [next(found) if on else None for on in flags]
        if flags[4]:
            cts[4] = ops.convert_element_type(cts[4], bias.dtype)
        return [*cts[:3], *cts[3:4] * self.weighted, *cts[4:] * self.biased]

    def cotangent_masks(self, mask: Mask, args: Values) -> Sequence[Mask]:
        x_mask = mask if mask is not None and mask.shape == args[0].shape else None
        return [x_mask] + [None] * (len(args) - 1)


class BatchNormInferenceBackward(FixedStatisticsNormalization):
    """The cotangents of the operands of `batch_norm_inference`, given that of its output.

    `output_mask` selects them among those of x, mean, variance, weight and bias. The operands are
    the cotangent, x, mean, variance, and the weight if `weighted`. The cotangent of a bias has the
    dtype of the weight, or that of the mean without one.
    """

    output_mask: tuple[bool, bool, bool, bool, bool]
    multiple_results = True
    samples = (
        sample(
            f32[3, 2],
            f32[3, 2],
            f32[2],
            f32[2],
            f32[2],
            eps=1e-2,
            weighted=True,
            output_mask=(True,) * 5,
            axes=(0,),
            domain={3: (0.5, 2.0)},
        ),
    )

    def abstract_eval(
        self,
        ct: ShapedArray,
        x: ShapedArray,
        mean: ShapedArray,
        variance: ShapedArray,
        *weight: ShapedArray,
    ) -> Sequence[ShapedArray]:
        check_real(self.name, ct, x, mean, variance, *weight)
        if ct.shape != x.shape:
            raise ShapeError(
                f"{self.name}: the cotangent must have the shape of x; got {ct!r} and {x!r}"
            )
        affine = self.layout_of(x).affine
        self.check_affine(
            affine, mean=mean, variance=variance, **dict(zip(["weight"], weight, strict=False))
        )
        last = ShapedArray(affine, (*weight, mean)[0].dtype)
        every = [aval.update(weak_type=False) for aval in (x, mean, variance)] + [last, last]
        return self.select_outputs(every)

    def select_outputs(self, values: Sequence[Any]) -> list[Any]:
        return select_where(values, self.output_mask)

    def decompose(
        self, ct: Value, x: Value, mean: Value, variance: Value, *weight: Value
    ) -> Values:
        assert self.eps is not None
        layout, dtype = self.layout_of(x), working_dtype(ct, x, mean, variance, *weight)
        ct = ops.convert_element_type(ct, dtype)
        rstd = ops.rsqrt(ops.add(ops.convert_element_type(variance, dtype), self.eps))
        scale = ops.mul(rstd, ops.convert_element_type(weight[0], dtype)) if weight else rstd
        outs: list[Any] = [None] * 5
        if self.output_mask[0]:
            outs[0] = ops.convert_element_type(
                ops.mul(ct, layout.broadcast_affine(scale, dtype)), x.dtype
            )
        if self.output_mask[1] or self.output_mask[4]:
            total = layout.sum_to_affine(ct, dtype)
            outs[1] = ops.convert_element_type(ops.mul(total, ops.mul(scale, -1.0)), mean.dtype)
            outs[4] = ops.convert_element_type(total, (*weight, mean)[0].dtype)
        if self.output_mask[2] or self.output_mask[3]:
            centered_x = ops.sub(
                ops.convert_element_type(x, dtype), layout.broadcast_affine(mean, dtype)
            )
            along = ops.mul(layout.sum_to_affine(ops.mul(ct, centered_x), dtype), rstd)
            # d (v + eps)^(-1/2) = -1/2 (v + eps)^(-3/2) dv
            slope = ops.mul(ops.mul(along, ops.mul(rstd, scale)), -0.5)
            outs[2] = ops.convert_element_type(slope, variance.dtype)
            outs[3] = ops.convert_element_type(along, (*weight, mean)[0].dtype)
        return self.select_outputs(outs)


def channel_layout(
    primitive: BatchNorm | BatchNormBackward | FixedStatisticsNormalization, x: Value | ShapedArray
) -> NormalizationLayout:
    """The layout of x for a normalization over `axes`, with the other dimensions as channels."""
    check_axes(primitive.name, primitive.axes, x.ndim)
    return NormalizationLayout(
        x.shape, x.shape, primitive.axes, tuple_delete(range(x.ndim), primitive.axes)
    )
