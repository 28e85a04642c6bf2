"""Losses of probabilities, element by element: binary cross entropies and divergence."""

from __future__ import annotations

import math
from typing import Any

from functx.core.samples import f32, sample
from functx.ops.activations import softplus
from functx.ops.arithmetic import abs, add, div, max, mul, neg, sub
from functx.ops.comparison import eq
from functx.ops.exponential import exp, log, log1p, logistic
from functx.ops.logical import bitwise_and
from functx.ops.losses import PointwiseLoss, PointwiseLossBackward
from functx.ops.selection import select

MIN_LOG_PROBABILITY = -100.0
"""What logarithms of probabilities are held above, so that a loss stays finite."""
MIN_PROBABILITY = 1e-12
"""What probabilities are held above where they divide."""


class BinaryCrossEntropy(PointwiseLoss):
    """-(target log(x) + (1 - target) log(1 - x)), times a weight if there is one.

    Logarithms are held above -100, and slopes are of probabilities held above 1e-12.
    """

    max_weights = 1
    samples = (
        sample(f32[3], f32[3], f32[3], reduction="sum", domain=(0.1, 0.9)),
        sample(
            f32[3],
            f32[3],
            reduction="sum",
            values={0: [0.0, 1.0, 0.5], 1: [0.0, 1.0, 0.5]},
            gradients={0: [1.0, -1.0, 0.0], 1: [100.0, -100.0, 0.0]},
        ),
    )

    def terms(self, x, target, *weights):
        inside = mul(target, max(log(x), MIN_LOG_PROBABILITY))
        outside = mul(sub(1.0, target), max(log1p(neg(x)), MIN_LOG_PROBABILITY))
        return multiply_by_all(neg(add(inside, outside)), *weights)

    def terms_derivative(self, i, x, target, *weights):
        if i == 0:
            inside = div(target, max(x, MIN_PROBABILITY))
            outside = div(sub(1.0, target), max(sub(1.0, x), MIN_PROBABILITY))
            return multiply_by_all(sub(outside, inside), *weights)
        if i == 1:
            inside = max(log(x), MIN_LOG_PROBABILITY)
            return multiply_by_all(sub(max(log1p(neg(x)), MIN_LOG_PROBABILITY), inside), *weights)
        return self.terms(x, target)


class BinaryCrossEntropyWithLogits(PointwiseLoss):
    """The binary cross entropy of 1 / (1 + exp(-x)), without overflow or lost digits.

    After the target may come a weight of each term, and then one of the targets beside the
    rest: -weight (positive target log(p) + (1 - target) log(1 - p)).
    """

    max_weights = 2
    samples = (
        sample(f32[3], f32[3], f32[()], f32[3], reduction="sum"),
        sample(
            f32[4],
            f32[4],
            reduction="sum",
            values={0: [1000.0, -1000.0, math.inf, -math.inf], 1: [1.0, 0.0, 1.0, 0.0]},
            gradients={0: [0.0, 0.0, 0.0, 0.0]},
        ),
    )

    def terms(self, x, target, *weights):
        inside = multiply_no_nan(target, softplus(neg(x)))
        outside = multiply_no_nan(sub(1.0, target), softplus(x))
        return multiply_by_all(add(multiply_by_all(inside, *weights[1:]), outside), *weights[:1])

    def terms_derivative(self, i, x, target, *weights):
        if i == 3:
            return multiply_by_all(multiply_no_nan(target, softplus(neg(x))), *weights[:1])
        if i == 2:
            return self.terms(x, target, 1.0, *weights[1:])
        if i == 1:
            return multiply_by_all(
                sub(multiply_by_all(softplus(neg(x)), *weights[1:]), softplus(x)), *weights[:1]
            )
        # Not logistic(x) - target, in which a small difference would lose its digits.
        inside = multiply_by_all(mul(target, logistic(neg(x))), *weights[1:])
        return multiply_by_all(sub(mul(sub(1.0, target), logistic(x)), inside), *weights[:1])


class KlDiv(PointwiseLoss):
    """target (log(target) - x) for logarithms `x` of probabilities; 0 where the target is 0.

    With `log_target` the target is a logarithm too. "batchmean" divides by the first length.
    """

    log_target: bool = False
    samples = (
        sample(f32[3, 2], f32[3, 2], reduction="batchmean", domain={1: (0.1, 2.0)}),
        sample(f32[3], f32[3], reduction="sum", log_target=True),
        sample(
            f32[2],
            f32[2],
            reduction="sum",
            values={0: [-math.inf, 2.0], 1: [0.0, 1.0]},
            gradients={0: [0.0, -1.0], 1: [0.0, -1.0]},
        ),
    )

    def check(self):
        self.check_reduction(("none", "mean", "sum", "batchmean"))

    def mean_divisor(self, shape):
        if self.reduction == "batchmean":
            return float(shape[self.batch_ndim]) if len(shape) > self.batch_ndim else 1.0
        return super().mean_divisor(shape)

    def terms(self, x, target):
        if self.log_target:
            return multiply_no_nan(exp(target), sub(target, x))
        entropy = mul(target, log(select(eq(target, 0.0), 1.0, target)))
        return sub(entropy, multiply_no_nan(target, x))

    def terms_derivative(self, i, x, target):
        if i == 0:
            return neg(exp(target) if self.log_target else target)
        if self.log_target:
            return multiply_no_nan(exp(target), add(sub(target, x), 1.0))
        # The slope of t log(t) at 0, which is infinite, counts as 0.
        nothing = eq(target, 0.0)
        slope = add(log(select(nothing, 1.0, target)), 1.0)
        return sub(select(nothing, 0.0, slope), zero_infinities_of_zero_weight(target, x))


class BinaryCrossEntropyBackward(PointwiseLossBackward):
    """(1 - target) / (1 - x) - target / x, times the share of the cotangent."""

    loss = BinaryCrossEntropy
    samples = (sample(f32[()], f32[3], f32[3], f32[3], reduction="mean", domain={1: (0.1, 0.9)}),)


class BinaryCrossEntropyWithLogitsBackward(PointwiseLossBackward):
    """1 / (1 + exp(-x)) - target, times the share of the cotangent, without lost digits."""

    loss = BinaryCrossEntropyWithLogits
    samples = (sample(f32[()], f32[3], f32[3], f32[3], f32[()], reduction="mean"),)


class KlDivBackward(PointwiseLossBackward):
    """-target, or -exp(target) of a logarithm, times the share of the cotangent."""

    log_target: bool = False
    loss = KlDiv
    samples = (sample(f32[()], f32[3, 2], f32[3, 2], reduction="batchmean", log_target=True),)


def multiply_by_all(x: Any, *factors: Any) -> Any:
    """`x` times the factors that there are."""
    for factor in factors:
        x = mul(x, factor)
    return x


def multiply_no_nan(weight: Any, x: Any) -> Any:
    """weight * x, and 0 where the weight is 0, even of infinities."""
    return mul(weight, zero_infinities_of_zero_weight(weight, x))


def zero_infinities_of_zero_weight(weight: Any, x: Any) -> Any:
    """`x`, and 0 where it is infinite and the weight 0."""
    return select(bitwise_and(eq(weight, 0.0), eq(abs(x), math.inf)), 0.0, x)
