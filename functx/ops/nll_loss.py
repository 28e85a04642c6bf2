"""The loss of logarithms of probabilities, and its backward equation."""

from __future__ import annotations

from functx.core.avals import Shape, ShapedArray
from functx.core.samples import f32, i32, sample
from functx.ops.arithmetic import neg
from functx.ops.class_losses import (
    ClassIndexLoss,
    ClassIndexLossBackward,
    batched_weights,
    one_hot_mask,
    take_class_scores,
)
from functx.ops.half_floats import cast_like_input, upcast_half
from functx.ops.operands import batch_size, tuple_delete
from functx.ops.selection import select
from functx.ops.shaping import batch_dim_at, broadcast_in_dim


class NllLoss(ClassIndexLoss):
    """-x at the class of each row, for logarithms `x` of probabilities."""

    samples = (
        sample(f32[3, 4], i32[3], reduction="mean", values={1: [2, 0, -100]}),
        sample(
            f32[4, 2],
            i32[2],
            f32[4],
            reduction="mean",
            axis=0,
            ignore_index=1,
            values={1: [3, 1]},
            domain={2: (0.5, 2.0)},
        ),
        sample(f32[3], i32[()], reduction="none", axis=0, values={1: 2}),
    )

    def terms(self, x, rows, weights):
        return rows.apply_weights(self.unweighted_terms(x, rows))

    def unweighted_terms(self, x, rows):
        return neg(take_class_scores(x, rows.classes, self.axis))

    def backward(self, ct, x, target, *weights):
        backward = NllLossBackward(
            self.reduction, self.batch_ndim, self.axis, self.ignore_index, x.shape[self.axis]
        )
        return backward(ct, target, *weights)


class NllLossBackward(ClassIndexLossBackward):
    """The cotangent of the scores of an `nll_loss` of so many classes, given that of the loss.

    -1 at the class of each row, times its weight and its share of the cotangent.
    """

    classes: int = 0
    samples = (
        sample(
            f32[()],
            i32[3],
            f32[4],
            reduction="mean",
            classes=4,
            values={1: [2, 0, -100]},
            domain={2: (0.5, 2.0)},
        ),
        sample(
            f32[2, 2],
            i32[2, 2],
            reduction="none",
            classes=3,
            ignore_index=1,
            values={1: [[2, 0], [1, 1]]},
        ),
    )

    def abstract_eval(self, ct, target, *weights):
        x = ShapedArray(self.scores_shape(target.shape), ct.dtype)
        self.check(x, target, *weights)
        self.check_cotangent(ct, x, target)
        return x

    def scores_shape(self, shape: Shape) -> Shape:
        """The shape of the scores, given that of the target."""
        return (*shape[: self.axis], self.classes, *shape[self.axis :])

    def decompose(self, ct, target, *weights):
        wide = upcast_half(ct)
        rows = self.target_rows(target, weights, wide.dtype)
        found = rows.apply_weights(neg(self.term_cotangents(wide, rows)))
        shape = self.scores_shape(target.shape)
        found = broadcast_in_dim(found, shape, tuple_delete(range(len(shape)), (self.axis,)))
        return cast_like_input(select(one_hot_mask(rows.classes, shape, self.axis), found, 0.0), ct)

    def batch(self, args, dims):
        size = batch_size(args, dims)
        ct, target = [batch_dim_at(y, d, 0, size) for y, d in zip(args[:2], dims, strict=False)]
        weights = batched_weights(args[2:], dims[2:], target.shape, self.batch_ndim)
        return self.replace(batch_ndim=self.batch_ndim + 1, axis=self.axis + 1)(
            ct, target, *weights
        ), 0
