"""Cross entropy with target probabilities of the classes."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from functx import ops
from functx.core.errors import ShapeError
from functx.core.samples import Rounding, f32, sample
from functx.core.types import ShapedArray
from functx.core.typing import Cotangent, Cotangents, Value, Values
from functx.ops.classification_losses import (
    ClassLoss,
    broadcast_class_weights,
    check_class_weights,
    check_smoothing,
)
from functx.ops.families import check_same_dtype
from functx.ops.losses import multiply_no_nan, zero_infinities_of_zero_weight
from functx.ops.operands import (
    broadcast_along,
    cast_like,
    check_axes,
    tuple_delete,
    upcast_half,
)
from functx.ops.softmaxes import log_softmax, softmax


class ClassProbabilityPrimitive(ClassLoss, abstract=True):
    """Base class of cross entropies whose target is a probability of each class along `axis`.

    A third operand may give a weight to each class. A mean divides by the number of rows.
    `label_smoothing` mixes the probabilities with equal ones.
    """

    label_smoothing: float = 0.0

    def check(self, x: ShapedArray, target: ShapedArray, *weights: ShapedArray) -> tuple[int, ...]:
        """The shape of the loss for operands of these types; raises if they do not fit."""
        self.check_reduction()
        check_smoothing(self, self.label_smoothing)
        check_same_dtype(self, (x, target, *weights))
        check_axes(self.name, self.axis, x.ndim)
        if target.shape != x.shape:
            raise ShapeError(
                f"{self.name}: the target must give each class a probability; got {target!r} for "
                f"{x!r}"
            )
        check_class_weights(self, x, weights)
        return self.loss_shape(tuple_delete(x.shape, (self.axis,)))

    def smooth_target(self, target: Value) -> Value:
        """The target with label smoothing."""
        if not self.label_smoothing:
            return target
        term_ct = self.label_smoothing / target.shape[self.axis]
        return ops.add(ops.mul(target, 1.0 - self.label_smoothing), term_ct)

    def weighted_target(self, target: Value, weights: Values) -> Value:
        """The target with label smoothing, times the weights of the classes."""
        return self.apply_weights(
            self.smooth_target(upcast_half(target)), [upcast_half(w) for w in weights]
        )

    def apply_weights(self, x: Value, weights: Values) -> Value:
        """`x`, which has a value for each class, times the weights of the classes."""
        return ops.mul(x, broadcast_class_weights(weights[0], x.shape, self.axis)) if weights else x

    def term_cotangents(self, ct: Value, shape: tuple[int, ...]) -> Value:
        """The cotangent of the terms, given that of the loss, broadcast to the classes."""
        rows = tuple_delete(shape, (self.axis,))
        if self.reduction == "mean":
            ct = ops.div(ct, float(prod(rows[self.batch_ndim :])))
        ct = ops.broadcast_leading(ct, rows)
        return ops.broadcast_in_dim(ct, shape, tuple_delete(range(len(shape)), (self.axis,)))


class SoftTargetCrossEntropy(ClassProbabilityPrimitive):
    """-sum(target log(softmax(x))) of each row."""

    rounding = Rounding(is_absolute=True)
    samples = (
        sample(
            f32[2, 3],
            f32[2, 3],
            f32[3],
            reduction="sum",
            label_smoothing=0.2,
            batch_ndim=1,
            domain={1: (0.1, 0.9)},
        ),
    )

    def abstract_eval(
        self, x: ShapedArray, target: ShapedArray, *weights: ShapedArray
    ) -> ShapedArray:
        return ShapedArray(self.check(x, target, *weights), x.dtype)

    def decompose(self, x: Value, target: Value, *weights: Value) -> Value:
        terms = multiply_no_nan(
            self.weighted_target(target, weights), log_softmax(upcast_half(x), self.axis)
        )
        terms = ops.neg(ops.reduce_sum(terms, (self.axis,)))
        if self.reduction != "none":
            terms = self.sum_terms(terms)
        if self.reduction == "mean":
            terms = ops.div(
                terms, float(prod(tuple_delete(x.shape, (self.axis,))[self.batch_ndim :]))
            )
        return cast_like(terms, x)

    def vjp(self, ct: Value, out: Value, args: Values, active: Sequence[bool]) -> Cotangents:
        result: list[Cotangent] = [None] * len(args)
        if active[0]:
            fields = [getattr(self, name) for name in self.fields]
            result[0] = SoftTargetCrossEntropyBackward(*fields)(ct, *args)
        if any(active[1:]):
            x, target, *weights = [upcast_half(y) for y in args]
            target, term_ct = (
                self.smooth_target(target),
                ops.neg(self.term_cotangents(upcast_half(ct), x.shape)),
            )
            term_ct = ops.mul(
                term_ct,
                zero_infinities_of_zero_weight(
                    self.apply_weights(target, weights), log_softmax(x, self.axis)
                ),
            )
            if active[1]:
                slope = ops.mul(self.apply_weights(term_ct, weights), 1.0 - self.label_smoothing)
                result[1] = cast_like(slope, args[1])
            if weights and active[2]:
                weight_dims = (*range(weights[0].ndim - 1), self.axis)
                slope = ops.reduce_sum(
                    ops.mul(term_ct, target), tuple_delete(range(x.ndim), weight_dims)
                )
                result[2] = cast_like(slope, args[2])
        return result


class SoftTargetCrossEntropyBackward(ClassProbabilityPrimitive):
    """softmax(x) sum(target) - target, times the cotangent of the terms."""

    operands_before_weights = 3
    samples = (
        sample(f32[()], f32[3, 2], f32[3, 2], f32[2], reduction="mean", label_smoothing=0.2),
    )

    def abstract_eval(
        self, ct: ShapedArray, x: ShapedArray, target: ShapedArray, *weights: ShapedArray
    ) -> ShapedArray:
        shape = self.check(x, target, *weights)
        check_same_dtype(self, (ct, x))
        if ct.shape != shape:
            raise ShapeError(
                f"{self.name}: the cotangent must have the shape of the loss, {shape}; got {ct!r}"
            )
        return ShapedArray(x.shape, x.dtype)

    def decompose(self, ct: Value, x: Value, target: Value, *weights: Value) -> Value:
        shares = self.weighted_target(target, weights)
        total = broadcast_along(ops.reduce_sum(shares, (self.axis,)), x, (self.axis,))
        slope = ops.sub(ops.mul(softmax(upcast_half(x), self.axis), total), shares)
        return cast_like(ops.mul(slope, self.term_cotangents(upcast_half(ct), x.shape)), x)
