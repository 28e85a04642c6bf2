"""Normalizations: arrays standardized along axes, then scaled and shifted."""

from __future__ import annotations

from math import prod
from typing import Any, ClassVar, NamedTuple

from functx import ops
from functx.core.errors import AxisError, ShapeError
from functx.core.primitive import Primitive
from functx.core.samples import f32, sample
from functx.core.types import Shape, ShapedArray
from functx.ops.families import apply_mask
from functx.ops.operands import batch_size, tuple_delete
from functx.ops.statistics import (
    Standardized,
    broadcast_along,
    check_real,
    standardize,
    standardize_jacobian,
    working_dtype,
)


class NormalizationLayout(NamedTuple):
    """How a normalization looks at an array of shape `whole`.

    In the shape `grouped_shape` it takes statistics over `axes`. The weight and the bias lie along the
    dimensions `dims` of the whole.
    """

    full_shape: Shape
    grouped_shape: Shape
    axes: Shape
    dims: Shape

    @property
    def affine(self) -> Shape:
        """The shape of the weight and of the bias."""
        return tuple([self.full_shape[d] for d in self.dims])

    def broadcast_affine(self, x: Any, dtype: Any) -> Any:
        """A weight or a bias, in `dtype`, repeated to the whole shape."""
        return ops.broadcast_in_dim(ops.convert_element_type(x, dtype), self.full_shape, self.dims)

    def sum_to_affine(self, x: Any, dtype: Any) -> Any:
        """The transpose of `spread`."""
        total = ops.reduce_sum(x, tuple_delete(range(len(self.full_shape)), self.dims))
        return ops.convert_element_type(total, dtype)


class Normalization(Primitive, abstract=True):
    """What a normalization and its backward have in common: the eps and the arrangement.

    Halves are computed with in single precision; a weight and a bias may be wider than x.
    """

    eps: float | None
    weighted: bool
    centered: ClassVar[bool] = True
    can_share_affine: ClassVar[bool] = True
    """Whether the lanes of a batch can share one weight and one bias."""

    def layout_of(self, x: Any) -> NormalizationLayout:
        """How it looks at `x`; raises if it cannot."""
        raise NotImplementedError

    def batched_primitive(self, shared: bool) -> tuple[Any, int]:
        """The primitive for a whole batch, and the dimension that the lanes of x go to.

        If `shared`, the weight and the bias are those of every lane; otherwise theirs go to 0.
        """
        raise NotImplementedError

    def replace(self, **changes: Any) -> Any:
        """The primitive with some of its parameters replaced."""
        return type(self)(**{**{f: getattr(self, f) for f in self.fields}, **changes})

    def check_affine(self, shape: Shape, **affine: ShapedArray) -> None:
        for name, x in affine.items():
            if x.shape != shape:
                raise ShapeError(f"{self.name}: the {name} must have the shape {shape}; got {x!r}")


class ForwardNormalization(Normalization, abstract=True):
    """x standardized, times the weight if `weighted`, plus the bias if `biased`."""

    biased: bool
    backward: ClassVar[type[BackwardNormalization]]

    def abstract_eval(self, x, *affine):
        check_real(self.name, x, *affine)
        names = [name for name, on in (("weight", self.weighted), ("bias", self.biased)) if on]
        self.check_affine(self.layout_of(x).affine, **dict(zip(names, affine, strict=True)))
        return x.update(weak_type=False)

    def affine(self, values: Any, absent: Any = None) -> tuple[Any, Any]:
        """The entries of `values` for the weight and for the bias."""
        values = iter(values)
        next(values)
        return (
            next(values) if self.weighted else absent,
            next(values) if self.biased else absent,
        )

    def decompose(self, *args):
        return self.apply_affine(self.standardized_input(args), args)

    def jvp(self, primals, tangents):
        return self(*primals), self.output_tangent(primals, tangents)

    def vjp(self, ct, out, args, active):
        return self.input_cotangents(ct, args, active)

    def vjp_where(self, live, ct, out, args, active):
        x, *affine = args
        there = self.group_mask(live, x)
        return self.vjp(ct, out, (x if there is None else apply_mask(there, x), *affine), active)

    def cotangent_masks(self, live, args):
        there = None if live is None else self.group_mask(live, args[0])
        return [there] + [None] * (len(args) - 1)

    def group_mask(self, live: Any, x: Any) -> Any:
        """Where an element is standardized together with one that is `live`; None for anywhere."""
        seen = self.layout_of(x)
        if live.shape != x.shape:
            return None
        some = ops.reduce_or(ops.reshape(live, seen.grouped_shape), seen.axes)
        return ops.reshape(
            broadcast_along(some, ShapedArray(seen.grouped_shape, live.dtype), seen.axes), x.shape
        )

    def standardized_input(self, args: Any) -> Standardized:
        """The standardized x, split."""
        seen = self.layout_of(args[0])
        x = ops.convert_element_type(args[0], working_dtype(*args))
        return standardize(ops.reshape(x, seen.grouped_shape), seen.axes, self.eps, self.centered)

    def apply_affine(self, found: Standardized, args: Any) -> Any:
        """The output, of the standardized x."""
        x, seen, dtype = args[0], self.layout_of(args[0]), working_dtype(*args)
        weight, bias = self.affine(args)
        out = ops.reshape(found.x, x.shape)
        out = out if weight is None else ops.mul(out, seen.broadcast_affine(weight, dtype))
        out = out if bias is None else ops.add(out, seen.broadcast_affine(bias, dtype))
        return ops.convert_element_type(out, x.dtype)

    def output_tangent(self, primals: Any, tangents: Any) -> Any:
        """The tangent of the output; None if it does not vary."""
        x, seen, dtype = primals[0], self.layout_of(primals[0]), working_dtype(*primals)
        weight, _ = self.affine(primals)
        t_weight, t_bias = self.affine(tangents)
        found = self.standardized_input(primals)
        terms = []
        if tangents[0] is not None:
            t = ops.reshape(ops.convert_element_type(tangents[0], dtype), seen.grouped_shape)
            t = ops.reshape(standardize_jacobian(t, found, seen.axes), x.shape)
            terms.append(t if weight is None else ops.mul(t, seen.broadcast_affine(weight, dtype)))
        if t_weight is not None:
            terms.append(
                ops.mul(ops.reshape(found.x, x.shape), seen.broadcast_affine(t_weight, dtype))
            )
        if t_bias is not None:
            terms.append(seen.broadcast_affine(t_bias, dtype))
        if not terms:
            return None
        total = terms[0]
        for term in terms[1:]:
            total = ops.add(total, term)
        return ops.convert_element_type(total, x.dtype)

    def input_cotangents(self, ct: Any, args: Any, active: Any) -> list[Any]:
        """The cotangents of x, weight and bias, given that of the output."""
        x, seen = args[0], self.layout_of(args[0])
        weight, bias = self.affine(args)
        of_weight, of_bias = self.affine(active, absent=False)
        if not active[0] and not of_weight:
            # x does not matter, so that nothing keeps it.
            wide = ops.convert_element_type(ct, working_dtype(*args))
            alone = [seen.sum_to_affine(wide, bias.dtype)] if of_bias else [None] * self.biased
            return [None, *[None] * self.weighted, *alone]
        pull = self.backward_primitive((active[0], of_weight, of_bias))
        found = iter(pull(ct, x, *[weight] * self.weighted))
        cts = [next(found) if on else None for on in (active[0], of_weight, of_bias)]
        if of_bias:
            cts[2] = ops.convert_element_type(cts[2], bias.dtype)
        return [cts[0], *cts[1:2] * self.weighted, *cts[2:] * self.biased]

    def backward_primitive(self, wanted: tuple[bool, bool, bool]) -> BackwardNormalization:
        """The primitive of the cotangents of x, weight and bias that are `wanted`."""
        shared = {f: getattr(self, f) for f in self.backward.fields if f != "output_mask"}
        return self.backward(**shared, output_mask=wanted)

    def batch(self, args, dims):
        size = batch_size(args, dims)
        shared = self.can_share_affine and all([d is None for d in dims[1:]])
        primitive, place = self.batched_primitive(shared)
        args = [
            x if shared and i else ops.batch_dim_at(x, d, 0 if i else place, size)
            for i, (x, d) in enumerate(zip(args, dims, strict=True))
        ]
        return primitive(*args), place


class BackwardNormalization(Normalization, abstract=True):
    """The cotangents of x, weight and bias that are `wanted`, given that of the output.

    The operands are the cotangent, x, and the weight if `weighted`. Statistics are those of
    x, so that every derivative is right. Without `eps` there is an operand 1 / sqrt(variance +
    eps) before the weight; the eps is what that implies, held constant. The cotangent of a
    bias has the dtype of the weight, or a wide one without weight.
    """

    output_mask: tuple[bool, bool, bool]
    multiple_results = True

    def abstract_eval(self, ct, x, *rest):
        check_real(self.name, ct, x, *rest)
        seen = self.layout_of(x)
        *rstd, weight = rest if self.weighted else (*rest, None)
        if ct.shape != x.shape:
            raise ShapeError(
                f"{self.name}: the cotangent must have the shape of x; got {ct!r} and {x!r}"
            )
        if weight is not None:
            self.check_affine(seen.affine, weight=weight)
        for saved in rstd:
            kept = tuple_delete(seen.grouped_shape, seen.axes)
            if saved.shape != kept:
                raise ShapeError(
                    f"{self.name}: the saved 1 / sqrt(variance + eps) must have the shape "
                    f"{kept}; got {saved!r}"
                )
        dtype = working_dtype(ct, x) if weight is None else weight.dtype
        affine = ShapedArray(seen.affine, dtype)
        return self.select_outputs((x.update(weak_type=False), affine, affine))

    def select_outputs(self, values: Any) -> list[Any]:
        return [x for x, on in zip(values, self.output_mask, strict=True) if on]

    def decompose(self, ct, x, *rest):
        seen, dtype = self.layout_of(x), working_dtype(ct, x, *rest)
        *rstd, weight = rest if self.weighted else (*rest, None)
        affine = working_dtype(ct, x) if weight is None else weight.dtype
        wide = ops.convert_element_type(ct, dtype)
        split = ops.reshape(ops.convert_element_type(x, dtype), seen.grouped_shape)
        saved = ops.convert_element_type(rstd[0], dtype) if rstd else None
        found = standardize(split, seen.axes, self.eps, self.centered, saved)
        outs: list[Any] = [None] * 3
        if self.output_mask[0]:
            scaled = wide if weight is None else ops.mul(wide, seen.broadcast_affine(weight, dtype))
            pulled = standardize_jacobian(ops.reshape(scaled, seen.grouped_shape), found, seen.axes)
            outs[0] = ops.convert_element_type(ops.reshape(pulled, x.shape), x.dtype)
        if self.output_mask[1]:
            outs[1] = seen.sum_to_affine(ops.mul(wide, ops.reshape(found.x, x.shape)), affine)
        if self.output_mask[2]:
            outs[2] = seen.sum_to_affine(wide, affine)
        return self.select_outputs(outs)

    def batch(self, args, dims):
        size = batch_size(args, dims)
        shared = self.can_share_affine and not any(self.output_mask[1:])
        shared = shared and (not self.weighted or dims[-1] is None)
        primitive, place = self.batched_primitive(shared)
        last = len(args) - 1
        args = [
            x if shared and self.weighted and i == last else ops.batch_dim_at(x, d, place, size)
            for i, (x, d) in enumerate(zip(args, dims, strict=True))
        ]
        return primitive(*args), self.select_outputs([place, 0, 0])

    def dce(self, used):
        if all(used):
            return None
        places = self.select_outputs(range(3))
        kept = [p for p, on in zip(places, used, strict=True) if on]
        smaller = self.replace(output_mask=tuple([p in kept for p in range(3)]))
        operands = range(2 + (self.eps is None) + self.weighted)
        return smaller, operands, [i for i, on in enumerate(used) if on]


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
