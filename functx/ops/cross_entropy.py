"""Cross entropies of scores: with one right class a row, and with probabilities of classes."""

from __future__ import annotations

from math import prod
from typing import Any

from functx.core.avals import ShapedArray
from functx.core.errors import ShapeError, ValueRangeError
from functx.core.samples import f32, i32, sample
from functx.ops.arithmetic import add, div, mul, neg, sub
from functx.ops.class_losses import (
    ClassIndexLoss,
    ClassIndexLossBackward,
    TargetRows,
    batched_weights,
    check_class_weights,
    one_hot_mask,
    take_class_scores,
)
from functx.ops.exponential import exp, log
from functx.ops.families import check_same_dtype
from functx.ops.gradients import stop_gradient
from functx.ops.half_floats import cast_like_input, upcast_half
from functx.ops.losses import Loss
from functx.ops.operands import batch_size, check_axes, tuple_delete
from functx.ops.probability_losses import multiply_no_nan, zero_infinities_of_zero_weight
from functx.ops.reductions import reduce_max, reduce_sum
from functx.ops.selection import select
from functx.ops.shaping import batch_dim_at, broadcast_in_dim
from functx.ops.softmax import broadcast_along, log_softmax, softmax


class CrossEntropy(ClassIndexLoss):
    """-log(softmax(x)) at the class of each row.

    With `label_smoothing` s and C classes, the right one has the probability 1 - s + s / C, and
    the others s / C.
    """

    label_smoothing: float = 0.0
    samples = (
        sample(f32[3, 4], i32[3], reduction="mean", values={1: [2, 0, -100]}),
        sample(
            f32[4, 2],
            i32[2],
            f32[4],
            reduction="mean",
            axis=0,
            ignore_index=1,
            label_smoothing=0.2,
            values={1: [3, 1]},
            domain={2: (0.5, 2.0)},
        ),
    )

    def abstract_eval(self, x, target, *weights):
        check_smoothing(self)
        return super().abstract_eval(x, target, *weights)

    def terms(self, x, rows, weights):
        alone, shifted, total = self.log_softmax_parts(x, rows)
        terms = rows.apply_weights(mul(alone, 1.0 - self.label_smoothing))
        if not self.label_smoothing:
            return terms
        logs = sub(shifted, broadcast_along(total, x, (self.axis,)))
        spread, _ = smoothing_terms(self, x, weights)
        return sub(terms, rows.zero_ignored(reduce_sum(mul(logs, spread), (self.axis,))))

    def unweighted_terms(self, x, rows):
        return mul(self.log_softmax_parts(x, rows)[0], 1.0 - self.label_smoothing)

    def log_softmax_parts(self, x: Any, rows: TargetRows) -> tuple[Any, Any, Any]:
        """-log(softmax(x)) at the class of each row; x less its largest; the log of its sum."""
        # Picked from x, which is there, not from log(softmax(x)), which would have to be made.
        largest = stop_gradient(reduce_max(x, (self.axis,)))
        shifted = sub(x, broadcast_along(largest, x, (self.axis,)))
        total = log(reduce_sum(exp(shifted), (self.axis,)))
        return (
            sub(total, sub(take_class_scores(x, rows.classes, self.axis), largest)),
            shifted,
            total,
        )

    def backward(self, ct, x, target, *weights):
        fields = [getattr(self, name) for name in self.fields]
        return CrossEntropyBackward(*fields)(ct, x, target, *weights)

    def weight_cotangent(self, ct, x, rows, weight):
        found = super().weight_cotangent(ct, x, rows, weight)
        if not self.label_smoothing:
            return found
        share = broadcast_along(rows.zero_ignored(self.term_cotangents(ct, rows)), x, (self.axis,))
        logs = mul(log_softmax(x, self.axis), -self.label_smoothing / x.shape[self.axis])
        kept = (*range(weight.ndim - 1), self.axis)
        return add(found, reduce_sum(mul(share, logs), tuple_delete(range(x.ndim), kept)))


class CrossEntropyBackward(ClassIndexLossBackward):
    """The cotangent of the scores of a `cross_entropy`, given that of the loss.

    softmax(x) less 1 at the class of each row, times its weight and its share of the cotangent.
    """

    label_smoothing: float = 0.0
    samples = (
        sample(f32[()], f32[3, 4], i32[3], reduction="mean", values={2: [2, 0, -100]}),
        sample(
            f32[2],
            f32[4, 2],
            i32[2],
            f32[4],
            reduction="none",
            axis=0,
            label_smoothing=0.2,
            values={2: [3, 1]},
        ),
    )

    def abstract_eval(self, ct, x, target, *weights):
        check_smoothing(self)
        self.check(x, target, *weights)
        self.check_cotangent(ct, x, target)
        return ShapedArray(x.shape, x.dtype)

    def decompose(self, ct, x, target, *weights):
        wide = upcast_half(x)
        rows = self.target_rows(target, weights, wide.dtype)
        share = self.term_cotangents(upcast_half(ct), rows)
        right = rows.apply_weights(mul(share, 1.0 - self.label_smoothing))
        there = one_hot_mask(rows.classes, x.shape, self.axis)
        if not self.label_smoothing:
            # 1 - p, of the class, is the sum of the others, and 1 that of all.
            largest = stop_gradient(reduce_max(wide, (self.axis,)))
            powers = exp(sub(wide, broadcast_along(largest, x, (self.axis,))))
            others = reduce_sum(select(there, 0.0, powers), (self.axis,))
            total = add(others, exp(sub(take_class_scores(wide, rows.classes, self.axis), largest)))
            found = select(there, broadcast_along(neg(others), x, (self.axis,)), powers)
            found = mul(found, broadcast_along(div(right, total), x, (self.axis,)))
        else:
            spread, total = smoothing_terms(self, wide, weights)
            beside = mul(broadcast_along(share, x, (self.axis,)), spread)
            found = mul(
                softmax(wide, self.axis),
                broadcast_along(add(right, mul(share, total)), x, (self.axis,)),
            )
            found = sub(
                sub(found, beside), select(there, broadcast_along(right, x, (self.axis,)), 0.0)
            )
        return cast_like_input(rows.zero_ignored_along(found, self.axis), x)

    def batch(self, args, dims):
        size = batch_size(args, dims)
        ct = batch_dim_at(args[0], dims[0], 0, size)
        batched = self.batch_operands(args[1:], dims[1:], size)
        return self.replace(batch_ndim=self.batch_ndim + 1, axis=self.axis + 1)(ct, *batched), 0


class ClassProbabilityPrimitive(Loss, abstract=True):
    """A cross entropy with a probability of each class along `axis` at each row.

    The classes may be weighed by a third operand. A mean is over the rows. `label_smoothing`
    mixes the probabilities with equal ones.
    """

    axis: int = 1
    label_smoothing: float = 0.0

    def check(self, x: ShapedArray, target: ShapedArray, *weights: ShapedArray) -> tuple[int, ...]:
        """The shape of the loss of operands of these types, which must fit each other."""
        self.check_reduction()
        check_smoothing(self)
        check_same_dtype(self, (x, target, *weights))
        check_axes(self.name, self.axis, x.ndim)
        if target.shape != x.shape:
            raise ShapeError(
                f"{self.name}: the target must give each class a probability; got {target!r} for "
                f"{x!r}"
            )
        check_class_weights(self, x, weights)
        return self.loss_shape(tuple_delete(x.shape, (self.axis,)))

    def smooth_target(self, target: Any) -> Any:
        """The target, smoothed."""
        if not self.label_smoothing:
            return target
        share = self.label_smoothing / target.shape[self.axis]
        return add(mul(target, 1.0 - self.label_smoothing), share)

    def weighted_target(self, target: Any, weights: Any) -> Any:
        """The target, smoothed and times the weights of the classes."""
        return self.apply_weights(
            self.smooth_target(upcast_half(target)), [upcast_half(w) for w in weights]
        )

    def apply_weights(self, x: Any, weights: Any) -> Any:
        """`x`, which has a value for each class of a row, times the weights of the classes."""
        return mul(x, broadcast_class_weights(weights[0], x.shape, self.axis)) if weights else x

    def term_cotangents(self, ct: Any, shape: tuple[int, ...]) -> Any:
        """The cotangent of each row, at each class."""
        rows = tuple_delete(shape, (self.axis,))
        if self.reduction == "mean":
            ct = div(ct, float(prod(rows[self.batch_ndim :])))
        ct = broadcast_in_dim(ct, rows, tuple(range(ct.ndim)))
        return broadcast_in_dim(ct, shape, tuple_delete(range(len(shape)), (self.axis,)))

    def batch_operands(self, args: Any, dims: Any, size: int) -> list[Any]:
        """Scores, target and weights with their batch dimension first."""
        x, target = [batch_dim_at(y, d, 0, size) for y, d in zip(args[:2], dims, strict=False)]
        return [x, target, *batched_weights(args[2:], dims[2:], x.shape, self.batch_ndim)]


class SoftTargetCrossEntropy(ClassProbabilityPrimitive):
    """-sum(target log(softmax(x))) of each row."""

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

    def abstract_eval(self, x, target, *weights):
        return ShapedArray(self.check(x, target, *weights), x.dtype)

    def decompose(self, x, target, *weights):
        terms = multiply_no_nan(
            self.weighted_target(target, weights), log_softmax(upcast_half(x), self.axis)
        )
        terms = neg(reduce_sum(terms, (self.axis,)))
        if self.reduction != "none":
            terms = self.sum_terms(terms)
        if self.reduction == "mean":
            terms = div(terms, float(prod(tuple_delete(x.shape, (self.axis,))[self.batch_ndim :])))
        return cast_like_input(terms, x)

    def vjp(self, ct, out, args, active):
        found: list[Any] = [None] * len(args)
        if active[0]:
            fields = [getattr(self, name) for name in self.fields]
            found[0] = SoftTargetCrossEntropyBackward(*fields)(ct, *args)
        if any(active[1:]):
            x, target, *weights = [upcast_half(y) for y in args]
            target, share = (
                self.smooth_target(target),
                neg(self.term_cotangents(upcast_half(ct), x.shape)),
            )
            share = mul(
                share,
                zero_infinities_of_zero_weight(
                    self.apply_weights(target, weights), log_softmax(x, self.axis)
                ),
            )
            if active[1]:
                slope = mul(self.apply_weights(share, weights), 1.0 - self.label_smoothing)
                found[1] = cast_like_input(slope, args[1])
            if weights and active[2]:
                kept = (*range(weights[0].ndim - 1), self.axis)
                slope = reduce_sum(mul(share, target), tuple_delete(range(x.ndim), kept))
                found[2] = cast_like_input(slope, args[2])
        return found

    def batch(self, args, dims):
        batched = self.batch_operands(args, dims, batch_size(args, dims))
        return self.replace(batch_ndim=self.batch_ndim + 1, axis=self.axis + 1)(*batched), 0


class SoftTargetCrossEntropyBackward(ClassProbabilityPrimitive):
    """softmax(x) sum(target) - target, times the share of the cotangent."""

    samples = (
        sample(f32[()], f32[3, 2], f32[3, 2], f32[2], reduction="mean", label_smoothing=0.2),
    )

    def abstract_eval(self, ct, x, target, *weights):
        shape = self.check(x, target, *weights)
        check_same_dtype(self, (ct, x))
        if ct.shape != shape:
            raise ShapeError(
                f"{self.name}: the cotangent must have the shape of the loss, {shape}; got {ct!r}"
            )
        return ShapedArray(x.shape, x.dtype)

    def decompose(self, ct, x, target, *weights):
        shares = self.weighted_target(target, weights)
        total = broadcast_along(reduce_sum(shares, (self.axis,)), x, (self.axis,))
        slope = sub(mul(softmax(upcast_half(x), self.axis), total), shares)
        return cast_like_input(mul(slope, self.term_cotangents(upcast_half(ct), x.shape)), x)

    def batch(self, args, dims):
        size = batch_size(args, dims)
        ct = batch_dim_at(args[0], dims[0], 0, size)
        batched = self.batch_operands(args[1:], dims[1:], size)
        return self.replace(batch_ndim=self.batch_ndim + 1, axis=self.axis + 1)(ct, *batched), 0


def check_smoothing(primitive: Any) -> None:
    """Raise unless `label_smoothing` is a probability."""
    if not 0 <= primitive.label_smoothing <= 1:
        raise ValueRangeError(
            f"{primitive.name}: label_smoothing must be between 0 and 1; got "
            f"{primitive.label_smoothing}"
        )


def smoothing_terms(primitive: Any, x: Any, weights: Any) -> tuple[Any, Any]:
    """What smoothing puts on each class, and on all together, a value a row if that differs."""
    share, axis = primitive.label_smoothing / x.shape[primitive.axis], primitive.axis
    if not weights:
        return share, primitive.label_smoothing
    each = broadcast_class_weights(mul(upcast_half(weights[0]), share), x.shape, axis)
    return each, reduce_sum(each, (axis,))


def broadcast_class_weights(weight: Any, shape: tuple[int, ...], axis: int) -> Any:
    """One value a class, perhaps of each lane, at each place of `shape`."""
    return broadcast_in_dim(weight, shape, (*range(weight.ndim - 1), axis))
