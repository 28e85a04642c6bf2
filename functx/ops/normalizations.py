"""Layer, RMS and group normalization: arrays standardized along axes, then scaled and shifted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce
from math import prod
from typing import Any, ClassVar, NamedTuple

from functx import ops
from functx.core.errors import AxisError, ShapeError
from functx.core.masks import indices_where, mask_of, select_where
from functx.core.primitive import Primitive, rule
from functx.core.primitive_families import HasDCE
from functx.core.samples import f32, sample
from functx.core.types import DType, Shape, ShapedArray
from functx.core.typing import Cotangent, Cotangents, Dim, Mask, Tangent, Tangents, Value, Values
from functx.ops.families import apply_mask
from functx.ops.operands import batch_size, broadcast_along, tuple_delete
from functx.ops.statistics import (
    Standardized,
    check_real,
    standardize,
    standardize_jacobian,
    working_dtype,
)


class NormalizationLayout(NamedTuple):
    """The shapes and axes of a normalization of an array of shape `full_shape`.

    Statistics are over `axes` of the array in the shape `grouped_shape`. The weight and the bias have
    the dimensions `dims` of the full shape.
    """

    full_shape: Shape
    grouped_shape: Shape
    axes: Shape
    dims: Shape

    @property
    def affine(self) -> Shape:
        """The shape of the weight and of the bias."""
        return tuple([self.full_shape[d] for d in self.dims])

    def broadcast_affine(self, x: Value, dtype: DType) -> Value:
        """A weight or a bias, in `dtype`, repeated to the whole shape."""
        return ops.broadcast_in_dim(ops.convert_element_type(x, dtype), self.full_shape, self.dims)

    def sum_to_affine(self, x: Value, dtype: DType) -> Value:
        """The transpose of `broadcast_affine`."""
        total = ops.reduce_sum(x, tuple_delete(range(len(self.full_shape)), self.dims))
        return ops.convert_element_type(total, dtype)


class Normalization(Primitive, abstract=True):
    """Base class of normalizations and of their backward primitives.

    Half floats are computed in single precision. A weight and a bias may have a wider dtype than x.
    """

    eps: float | None
    weighted: bool
    centered: ClassVar[bool] = True
    can_share_affine: ClassVar[bool] = True
    """Whether the elements of a batch can share one weight and one bias."""

    def layout_of(self, x: Value | ShapedArray) -> NormalizationLayout:
        """The layout of `x`; raises AxisError or ShapeError if there is none."""
        raise NotImplementedError

    def batched_primitive(self, shared: bool) -> tuple[Primitive, int]:
        """The primitive for a batch, and the batch dimension of x.

        If `shared`, the batch shares the weight and the bias; otherwise their batch dimension is 0.
        """
        raise NotImplementedError

    def check_affine(self, shape: Shape, **affine: ShapedArray) -> None:
        for name, x in affine.items():
            if x.shape != shape:
                raise ShapeError(f"{self.name}: the {name} must have the shape {shape}; got {x!r}")


class ForwardNormalization(Normalization, abstract=True):
    """x standardized, times the weight if `weighted`, plus the bias if `biased`.

    The NumPy definitions are the functions named as the classes in `functx/testing/reference/nn.py`.
    """

    biased: bool
    backward: ClassVar[type[BackwardNormalization]]

    @rule
    def abstract_eval(self, x: ShapedArray, *affine: ShapedArray) -> ShapedArray:
        check_real(self.name, x, *affine)
        names = [
            name
            for name, is_needed in (("weight", self.weighted), ("bias", self.biased))
            if is_needed
        ]
        self.check_affine(self.layout_of(x).affine, **dict(zip(names, affine, strict=True)))
        return x.update(weak_type=False)

    def affine(self, values: Iterable[Any], absent: object = None) -> tuple[Any, Any]:
        """The entries of `values`, one for each operand, for the weight and for the bias."""
        values = iter(values)
        next(values)
        return (
            next(values) if self.weighted else absent,
            next(values) if self.biased else absent,
        )

    @rule
    def decompose(self, *args: Value) -> Value:
        return self.apply_affine(self.standardized_input(args), args)

    @rule
    def jvp(self, primals: Values, tangents: Tangents) -> tuple[Value, Tangent]:
        return self(*primals), self.output_tangent(primals, tangents)

    @rule
    def vjp(self, ct: Value, out: Value, args: Values, active: Sequence[bool]) -> Cotangents:
        x, *affine = args
        x = apply_mask(self.group_mask(mask_of(ct), x), x)
        return self.input_cotangents(ct, (x, *affine), active)

    def cotangent_masks(self, mask: Mask, args: Values) -> Sequence[Mask]:
        return [self.group_mask(mask, args[0])] + [None] * (len(args) - 1)

    def group_mask(self, mask: Mask, x: Value | ShapedArray) -> Value | None:
        """The mask of elements standardized together with one where `mask` holds; None stands for all."""
        layout = self.layout_of(x)
        if mask is None or mask.shape != x.shape:
            return None
        some = ops.reduce_or(ops.reshape(mask, layout.grouped_shape), layout.axes)
        return ops.reshape(
            broadcast_along(some, ShapedArray(layout.grouped_shape, mask.dtype), layout.axes),
            x.shape,
        )

    def standardized_input(self, args: Values) -> Standardized:
        """The standardized x in the grouped shape."""
        layout = self.layout_of(args[0])
        x = ops.convert_element_type(args[0], working_dtype(*args))
        return standardize(
            ops.reshape(x, layout.grouped_shape), layout.axes, self.eps, self.centered
        )

    def apply_affine(self, standardized: Standardized, args: Values) -> Value:
        """The output, given the standardized x."""
        x, layout, dtype = args[0], self.layout_of(args[0]), working_dtype(*args)
        weight, bias = self.affine(args)
        out = ops.reshape(standardized.x, x.shape)
        out = out if weight is None else ops.mul(out, layout.broadcast_affine(weight, dtype))
        out = out if bias is None else ops.add(out, layout.broadcast_affine(bias, dtype))
        return ops.convert_element_type(out, x.dtype)

    def output_tangent(self, primals: Values, tangents: Tangents) -> Tangent:
        """The tangent of the output; None if no operand varies."""
        x, layout, dtype = primals[0], self.layout_of(primals[0]), working_dtype(*primals)
        weight, _ = self.affine(primals)
        t_weight, t_bias = self.affine(tangents)
        standardized = self.standardized_input(primals)
        terms = []
        if tangents[0] is not None:
            t = ops.reshape(ops.convert_element_type(tangents[0], dtype), layout.grouped_shape)
            t = ops.reshape(standardize_jacobian(t, standardized, layout.axes), x.shape)
            terms.append(
                t if weight is None else ops.mul(t, layout.broadcast_affine(weight, dtype))
            )
        if t_weight is not None:
            terms.append(
                ops.mul(
                    ops.reshape(standardized.x, x.shape), layout.broadcast_affine(t_weight, dtype)
                )
            )
        if t_bias is not None:
            terms.append(layout.broadcast_affine(t_bias, dtype))
        return ops.convert_element_type(reduce(ops.add, terms), x.dtype) if terms else None

    def input_cotangents(self, ct: Value, args: Values, active: Sequence[bool]) -> list[Cotangent]:
        """The cotangents of x, weight and bias, given that of the output."""
        x, layout = args[0], self.layout_of(args[0])
        weight, bias = self.affine(args)
        needs_weight, needs_bias = self.affine(active, absent=False)
        if not active[0] and not needs_weight:
            # x is not needed, so it is no residual.
            upcast_ct = ops.convert_element_type(ct, working_dtype(*args))
            bias_only = (
                [layout.sum_to_affine(upcast_ct, bias.dtype)]
                if needs_bias
                else [None] * self.biased
            )
            return [None, *[None] * self.weighted, *bias_only]
        backward = self.backward_primitive((active[0], needs_weight, needs_bias))
        standardized = iter(backward(ct, x, *[weight] * self.weighted))
        cts: list[Any] = [
            next(standardized) if is_needed else None
            for is_needed in (active[0], needs_weight, needs_bias)
        ]
        if needs_bias:
            cts[2] = ops.convert_element_type(cts[2], bias.dtype)
        return [cts[0], *cts[1:2] * self.weighted, *cts[2:] * self.biased]

    def backward_primitive(self, mask: tuple[bool, bool, bool]) -> BackwardNormalization:
        """The backward primitive of the cotangents of x, weight and bias selected by `mask`."""
        shared = {f: getattr(self, f) for f in self.backward.fields if f != "output_mask"}
        return self.backward(**shared, output_mask=mask)

    @rule
    def batch(self, args: Values, dims: Sequence[Dim]) -> tuple[Value, Dim]:
        size = batch_size(args, dims)
        shared = self.can_share_affine and all([d is None for d in dims[1:]])
        primitive, batch_dim = self.batched_primitive(shared)
        args = [
            x if shared and i else ops.batch_dim_at(x, d, 0 if i else batch_dim, size)
            for i, (x, d) in enumerate(zip(args, dims, strict=True))
        ]
        return primitive(*args), batch_dim


class BackwardNormalization(Normalization, HasDCE, abstract=True):
    """The cotangents of x, weight and bias selected by `output_mask`, given that of the output.

    The operands are the cotangent, x, and the weight if `weighted`. The statistics are computed from
    x, so that derivatives of any order are right. If `eps` is None there is an operand
    1 / sqrt(variance + eps) before the weight; the eps that it implies is held constant. The cotangent
    of a bias has the dtype of the weight, or the dtype of the computation without a weight.
    """

    output_mask: tuple[bool, bool, bool]
    multiple_results = True

    def abstract_eval(
        self, ct: ShapedArray, x: ShapedArray, *rest: ShapedArray
    ) -> Sequence[ShapedArray]:
        check_real(self.name, ct, x, *rest)
        layout = self.layout_of(x)
        rstd, weight = (rest[:-1], rest[-1]) if self.weighted else (rest, None)
        if ct.shape != x.shape:
            raise ShapeError(
                f"{self.name}: the cotangent must have the shape of x; got {ct!r} and {x!r}"
            )
        if weight is not None:
            self.check_affine(layout.affine, weight=weight)
        for saved in rstd:
            statistics_shape = tuple_delete(layout.grouped_shape, layout.axes)
            if saved.shape != statistics_shape:
                raise ShapeError(
                    f"{self.name}: the saved 1 / sqrt(variance + eps) must have the shape "
                    f"{statistics_shape}; got {saved!r}"
                )
        dtype = working_dtype(ct, x) if weight is None else weight.dtype
        affine = ShapedArray(layout.affine, dtype)
        return self.select_outputs((x.update(weak_type=False), affine, affine))

    def select_outputs(self, values: Sequence[Any]) -> list[Any]:
        return select_where(values, self.output_mask)

    def decompose(self, ct: Value, x: Value, *rest: Value) -> Values:
        layout, dtype = self.layout_of(x), working_dtype(ct, x, *rest)
        rstd, weight = (rest[:-1], rest[-1]) if self.weighted else (rest, None)
        affine = working_dtype(ct, x) if weight is None else weight.dtype
        upcast_ct = ops.convert_element_type(ct, dtype)
        split = ops.reshape(ops.convert_element_type(x, dtype), layout.grouped_shape)
        saved = ops.convert_element_type(rstd[0], dtype) if rstd else None
        standardized = standardize(split, layout.axes, self.eps, self.centered, saved)
        outs: list[Any] = [None] * 3
        if self.output_mask[0]:
            scaled = (
                upcast_ct
                if weight is None
                else ops.mul(upcast_ct, layout.broadcast_affine(weight, dtype))
            )
            x_ct = standardize_jacobian(
                ops.reshape(scaled, layout.grouped_shape), standardized, layout.axes
            )
            outs[0] = ops.convert_element_type(ops.reshape(x_ct, x.shape), x.dtype)
        if self.output_mask[1]:
            outs[1] = layout.sum_to_affine(
                ops.mul(upcast_ct, ops.reshape(standardized.x, x.shape)), affine
            )
        if self.output_mask[2]:
            outs[2] = layout.sum_to_affine(upcast_ct, affine)
        return self.select_outputs(outs)

    def batch(self, args: Values, dims: Sequence[Dim]) -> tuple[Values, Sequence[Dim]]:
        size = batch_size(args, dims)
        shared = self.can_share_affine and not any(self.output_mask[1:])
        shared = shared and (not self.weighted or dims[-1] is None)
        primitive, batch_dim = self.batched_primitive(shared)
        last = len(args) - 1
        args = [
            x if shared and self.weighted and i == last else ops.batch_dim_at(x, d, batch_dim, size)
            for i, (x, d) in enumerate(zip(args, dims, strict=True))
        ]
        return primitive(*args), self.select_outputs([batch_dim, 0, 0])

    def dce(self, used: Sequence[bool]) -> tuple[Primitive, Sequence[int], Sequence[int]] | None:
        if all(used):
            return None
        places = self.select_outputs(range(3))
        remaining = select_where(places, used)
        smaller = self.replace(output_mask=tuple([p in remaining for p in range(3)]))
        operands = range(2 + (self.eps is None) + self.weighted)
        return smaller, operands, indices_where(used)


class LastDimsNormalization(Normalization, abstract=True):
    """Normalizes over the last `normalized_ndim` dimensions together.

    The weight and the bias have those dimensions, and the first `affine_batch_ndim` of x.
    """

    normalized_ndim: int
    affine_batch_ndim: int = 0

    def layout_of(self, x: Value | ShapedArray) -> NormalizationLayout:
        normalized_ndim, batch_ndim, ndim = self.normalized_ndim, self.affine_batch_ndim, x.ndim
        if not 1 <= normalized_ndim <= ndim - batch_ndim:
            raise AxisError(
                f"{self.name}: the operand must have at least the {normalized_ndim} dimensions to "
                f"normalize over, and at least one; got {x!r}"
            )
        axes = tuple(range(ndim - normalized_ndim, ndim))
        return NormalizationLayout(x.shape, x.shape, axes, (*range(batch_ndim), *axes))

    def batched_primitive(self, shared: bool) -> tuple[Primitive, int]:
        batch_ndim = self.affine_batch_ndim
        return self.replace(affine_batch_ndim=batch_ndim + (not shared)), batch_ndim * shared


class ChannelGroupsNormalization(Normalization, abstract=True):
    """Normalizes each of `groups` groups of the channels along `axis`, with what follows `axis`.

    The weight and the bias have the dimension of the channels, and the first `affine_batch_ndim`
    of x.
    """

    groups: int
    axis: int = 1
    affine_batch_ndim: int = 0

    def layout_of(self, x: Value | ShapedArray) -> NormalizationLayout:
        groups, axis, batch_ndim = self.groups, self.axis, self.affine_batch_ndim
        if not batch_ndim <= axis < x.ndim or groups < 1 or x.shape[axis] % groups:
            raise ShapeError(
                f"{self.name}: the channels, along axis {axis}, must be a multiple of {groups} "
                f"groups; got {x!r}"
            )
        # One dimension for a whole group: XLA sums it faster than several.
        split = (*x.shape[:axis], groups, prod(x.shape[axis:]) // groups)
        return NormalizationLayout(x.shape, split, (axis + 1,), (*range(batch_ndim), axis))

    def batched_primitive(self, shared: bool) -> tuple[Primitive, int]:
        batch_ndim = self.affine_batch_ndim
        batched = self.replace(axis=self.axis + 1, affine_batch_ndim=batch_ndim + (not shared))
        return batched, batch_ndim * shared


class LayerNormBackward(LastDimsNormalization, BackwardNormalization):
    """The cotangents of the operands of `layer_norm`, given that of its output."""

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


class LayerNorm(LastDimsNormalization, ForwardNormalization):
    """Mean 0 and variance 1 over the last `normalized_ndim` dimensions, then scaled and shifted."""

    backward = LayerNormBackward
    samples = (
        sample(f32[3, 4], f32[4], f32[4], eps=1e-2, weighted=True, biased=True, normalized_ndim=1),
        sample(f32[0, 2, 2], eps=1e-2, weighted=False, biased=False, normalized_ndim=2),
    )


class RMSNormBackward(LastDimsNormalization, BackwardNormalization):
    """The cotangents of the operands of `rms_norm`, given that of its output."""

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


class RMSNorm(LastDimsNormalization, ForwardNormalization):
    """Mean square 1 over the last `normalized_ndim` dimensions, then scaled and shifted."""

    backward = RMSNormBackward
    centered = False
    name = "rms_norm"
    samples = (sample(f32[3, 4], f32[4], eps=1e-2, weighted=True, biased=False, normalized_ndim=1),)


class GroupNormBackward(ChannelGroupsNormalization, BackwardNormalization):
    """The cotangents of the operands of `group_norm`, given that of its output."""

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


class GroupNorm(ChannelGroupsNormalization, ForwardNormalization):
    """Mean 0 and variance 1 over each of `groups` groups of channels; each channel scaled and shifted."""

    backward = GroupNormBackward
    samples = (sample(f32[2, 4, 3], f32[4], eps=1e-2, weighted=False, biased=True, groups=2),)
