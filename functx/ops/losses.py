"""Pointwise losses of an input and a target: of differences and of probabilities."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from math import prod
from typing import ClassVar

from functx import ops
from functx.core.errors import ShapeError, ValueRangeError
from functx.core.primitive import Primitive, rule
from functx.core.samples import f32, sample
from functx.core.types import Shape, ShapedArray
from functx.core.typing import ArrayLike, Cotangent, Cotangents, Dim, Tangent, Value, Values
from functx.ops.activations import softplus
from functx.ops.families import check_same_dtype, unbroadcast_scalar
from functx.ops.operands import batch_size, cast_like, upcast_half

REDUCTIONS = ("none", "mean", "sum")


class Loss(Primitive, abstract=True):
    """Base class of losses: terms, returned as they are, summed or averaged.

    `reduction` is "none", "sum" or "mean". The first `batch_ndim` dimensions are batch dimensions
    that `vmap` adds; each batch element has a loss of its own.
    """

    reduction: str
    batch_ndim: int = 0
    accepts: ClassVar[str] = "f"

    def check_reduction(self, allowed: Sequence[str] = REDUCTIONS) -> None:
        """Raise ValueRangeError for a reduction of another name."""
        if self.reduction not in allowed:
            names = ", ".join(map(repr, allowed[:-1])) + f" or {allowed[-1]!r}"
            raise ValueRangeError(f"{self.name}: reduction must be {names}; got {self.reduction!r}")

    def loss_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of the loss, given that of the terms."""
        return shape if self.reduction == "none" else shape[: self.batch_ndim]

    def broadcast_over_batch(self, x: Value, shape: tuple[int, ...]) -> Value:
        """`x`, one value for each batch element, broadcast to `shape`; a scalar stays a scalar."""
        return ops.broadcast_leading(x, shape) if x.ndim else x

    def sum_terms(self, terms: Value) -> Value:
        """The sum of the terms of each batch element."""
        return ops.reduce_sum(terms, tuple(range(self.batch_ndim, terms.ndim)))


class PointwiseLoss(Loss, abstract=True):
    """A loss of `x`, `target` and optional weights, with one term for each element.

    A subclass defines `terms` and their derivative in an operand, `terms_derivative`, for operands
    that are no half floats. Weights are arrays of the shape of `x`, or scalars.
    """

    backward: ClassVar[type[PointwiseLossBackward]]
    max_weights: ClassVar[int] = 0
    """The number of weights that may follow the target."""

    @rule
    def terms(self, *args: Value) -> Value:
        raise NotImplementedError

    @rule
    def terms_derivative(self, i: int, *args: Value) -> Value:
        """The derivative of the terms in operand `i`."""
        raise NotImplementedError

    def check(self) -> None:
        """Raise ValueRangeError for parameters out of range."""
        self.check_reduction()

    def abstract_eval(
        self, x: ShapedArray, target: ShapedArray, *weights: ShapedArray
    ) -> ShapedArray:
        self.check()
        check_same_dtype(self, (x, target, *weights))
        others = [weight for weight in weights if weight.shape != ()]
        if any([y.shape != x.shape for y in (target, *others)]) or len(weights) > self.max_weights:
            operands = " and ".join(map(repr, (x, target, *weights)))
            raise ShapeError(
                f"{self.name}: the input, the target and weights must have one shape; got {operands}",
                fix="Reshape, or broadcast with functx.numpy.broadcast_to.",
            )
        return ShapedArray(self.loss_shape(x.shape), x.dtype)

    def decompose(self, *args: Value) -> Value:
        return cast_like(self.reduce_terms(self.terms(*map(upcast_half, args))), args[0])

    def jvp(self, primals: Values, tangents: Sequence[Tangent]) -> tuple[Value, Tangent]:
        upcast = [upcast_half(x) for x in primals]
        terms = [
            ops.mul(upcast_half(t), self.terms_derivative(i, *upcast))
            for i, t in enumerate(tangents)
            if t is not None
        ]
        tangent = self.reduce_terms(reduce(ops.add, terms))
        return self(*primals), cast_like(tangent, primals[0])

    def vjp(self, ct: Value, out: Value, args: Values, active: Sequence[bool]) -> Cotangents:
        cts: list[Cotangent] = [None] * len(args)
        if active[0]:
            fields = [getattr(self, name) for name in self.fields]
            cts[0] = self.backward(*fields)(ct, *args)
        if any(active[1:]):
            upcast = [upcast_half(x) for x in args]
            term_ct = self.term_cotangents(upcast_half(ct), args[0].shape)
            for i, is_active in enumerate(active):
                if is_active and i:
                    pulled = unbroadcast_scalar(
                        ops.mul(term_ct, self.terms_derivative(i, *upcast)), args[i]
                    )
                    cts[i] = cast_like(pulled, args[i])
        return cts

    def mean_divisor(self, shape: tuple[int, ...]) -> float:
        """The divisor of the sum of the terms of a batch element in a mean."""
        return float(prod(shape[self.batch_ndim :]))

    def reduce_terms(self, terms: Value) -> Value:
        """The loss, given its terms."""
        if self.reduction == "none":
            return terms
        total = self.sum_terms(terms)
        return total if self.reduction == "sum" else ops.div(total, self.mean_divisor(terms.shape))

    def term_cotangents(self, ct: Value, shape: tuple[int, ...]) -> Value:
        """The cotangent of each term, given that of the loss."""
        if self.reduction == "none":
            return ct
        ct = ct if self.reduction == "sum" else ops.div(ct, self.mean_divisor(shape))
        return self.broadcast_over_batch(ct, shape)

    def batch(self, args: Values, dims: Sequence[Dim]) -> tuple[Value, Dim]:
        size = batch_size(args, dims)
        return self.replace(batch_ndim=self.batch_ndim + 1)(
            *batch_loss_operands(args, dims, size)
        ), 0


class PointwiseLossBackward(Loss, abstract=True):
    """The cotangent of the input of a loss, given that of the loss and the operands."""

    loss: ClassVar[type[PointwiseLoss]]

    def __init_subclass__(cls, **kwargs: bool):
        super().__init_subclass__(**kwargs)
        cls.loss.backward = cls

    def forward_loss(self) -> PointwiseLoss:
        """The loss with these parameters."""
        return self.loss(*[getattr(self, name) for name in self.fields])

    def abstract_eval(self, ct: ShapedArray, x: ShapedArray, *others: ShapedArray) -> ShapedArray:
        value = self.forward_loss().abstract_eval(x, *others)
        check_same_dtype(self, (ct, x))
        if ct.shape != value.shape:
            raise ShapeError(
                f"{self.name}: the cotangent must have the shape of the loss, {value.shape}; got "
                f"{ct!r} for {x!r}"
            )
        return ShapedArray(x.shape, x.dtype)

    def decompose(self, ct: Value, *args: Value) -> Value:
        loss = self.forward_loss()
        term_ct = loss.term_cotangents(upcast_half(ct), args[0].shape)
        return cast_like(
            ops.mul(term_ct, loss.terms_derivative(0, *map(upcast_half, args))), args[0]
        )

    def batch(self, args: Values, dims: Sequence[Dim]) -> tuple[Value, Dim]:
        size = batch_size(args, dims)
        ct = ops.batch_dim_at(args[0], dims[0], 0, size)
        operands = batch_loss_operands(args[1:], dims[1:], size)
        return self.replace(batch_ndim=self.batch_ndim + 1)(ct, *operands), 0


class L1Loss(PointwiseLoss):
    """|x - target|; the derivative at 0 is 0."""

    samples = (sample(f32[2, 3], f32[2, 3], reduction="sum", batch_ndim=1),)

    def terms(self, x: Value, target: Value) -> Value:
        return ops.abs(ops.sub(x, target))

    def terms_derivative(self, i: int, x: Value, target: Value) -> Value:
        return ops.sign(ops.sub(x, target) if i == 0 else ops.sub(target, x))


class MseLoss(PointwiseLoss):
    """(x - target)**2."""

    samples = (sample(f32[3, 2], f32[3, 2], reduction="mean"),)

    def terms(self, x: Value, target: Value) -> Value:
        return ops.square(ops.sub(x, target))

    def terms_derivative(self, i: int, x: Value, target: Value) -> Value:
        return ops.mul(ops.sub(x, target) if i == 0 else ops.sub(target, x), 2.0)


class SmoothL1Loss(PointwiseLoss):
    """d**2 / (2 beta) for d = x - target with |d| < beta, and |d| - beta / 2 beyond."""

    beta: float = 1.0
    samples = (sample(f32[3, 2], f32[3, 2], reduction="mean", beta=0.8),)

    def check(self) -> None:
        super().check()
        if not self.beta >= 0:
            raise ValueRangeError(f"{self.name}: beta must not be negative; got {self.beta}")

    def terms(self, x: Value, target: Value) -> Value:
        d = ops.sub(x, target)
        linear_part = ops.sub(ops.abs(d), 0.5 * self.beta)
        if not self.beta:
            return linear_part
        return ops.select(
            ops.le(ops.abs(d), self.beta), ops.mul(ops.square(d), 0.5 / self.beta), linear_part
        )

    def terms_derivative(self, i: int, x: Value, target: Value) -> Value:
        d = ops.sub(x, target) if i == 0 else ops.sub(target, x)
        return ops.clamp(-1.0, ops.div(d, self.beta), 1.0) if self.beta else ops.sign(d)


class HuberLoss(PointwiseLoss):
    """d**2 / 2 for d = x - target with |d| < delta, and delta (|d| - delta / 2) beyond."""

    delta: float = 1.0
    samples = (sample(f32[3, 2], f32[3, 2], reduction="none", delta=0.8),)

    def check(self) -> None:
        super().check()
        if not self.delta > 0:
            raise ValueRangeError(f"{self.name}: delta must be positive; got {self.delta}")

    def terms(self, x: Value, target: Value) -> Value:
        d = ops.sub(x, target)
        linear_part = ops.mul(ops.sub(ops.abs(d), 0.5 * self.delta), self.delta)
        return ops.select(ops.le(ops.abs(d), self.delta), ops.mul(ops.square(d), 0.5), linear_part)

    def terms_derivative(self, i: int, x: Value, target: Value) -> Value:
        return ops.clamp(
            -self.delta, ops.sub(x, target) if i == 0 else ops.sub(target, x), self.delta
        )


class L1LossBackward(PointwiseLossBackward):
    """sign(x - target), times the cotangent of the terms."""

    loss = L1Loss
    samples = (sample(f32[()], f32[3, 2], f32[3, 2], reduction="mean"),)


class MseLossBackward(PointwiseLossBackward):
    """2 (x - target), times the cotangent of the terms."""

    loss = MseLoss
    samples = (sample(f32[2], f32[2, 3], f32[2, 3], reduction="mean", batch_ndim=1),)


class SmoothL1LossBackward(PointwiseLossBackward):
    """(x - target) / beta clamped to [-1, 1], times the cotangent of the terms."""

    beta: float = 1.0
    loss = SmoothL1Loss
    samples = (sample(f32[()], f32[3, 2], f32[3, 2], reduction="mean", beta=0.8),)


class HuberLossBackward(PointwiseLossBackward):
    """x - target clamped to [-delta, delta], times the cotangent of the terms."""

    delta: float = 1.0
    loss = HuberLoss
    samples = (sample(f32[3, 2], f32[3, 2], f32[3, 2], reduction="none", delta=0.8),)


def batch_loss_operands(args: Values, dims: Sequence[int | None], size: int) -> list[Value]:
    """The operands of a loss with the batch dimension, of length `size`, first.

    Scalars stay scalars if they are not batched.
    """
    first = ops.batch_dim_at(args[0], dims[0], 0, size)
    batched = [first]
    for x, d in zip(args[1:], dims[1:], strict=True):
        if x.ndim - (d is not None) == first.ndim - 1:
            batched.append(ops.batch_dim_at(x, d, 0, size))
        else:
            batched.append(x if d is None else ops.broadcast_in_dim(x, first.shape, (0,)))
    return batched


MIN_LOG_PROBABILITY = -100.0
"""The lower bound of logarithms of probabilities, so that a loss stays finite."""
MIN_PROBABILITY = 1e-12
"""The lower bound of probabilities in divisors."""


class BinaryCrossEntropy(PointwiseLoss):
    """-(target log(x) + (1 - target) log(1 - x)), times a weight if there is one.

    Logarithms are at least -100, and probabilities in derivatives at least 1e-12.
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

    def terms(self, x: Value, target: Value, *weights: Value) -> Value:
        target_term = ops.mul(target, ops.max(ops.log(x), MIN_LOG_PROBABILITY))
        other_term = ops.mul(
            ops.sub(1.0, target), ops.max(ops.log1p(ops.neg(x)), MIN_LOG_PROBABILITY)
        )
        return multiply_by_all(ops.neg(ops.add(target_term, other_term)), *weights)

    def terms_derivative(self, i: int, x: Value, target: Value, *weights: Value) -> Value:
        if i == 0:
            target_term = ops.div(target, ops.max(x, MIN_PROBABILITY))
            other_term = ops.div(ops.sub(1.0, target), ops.max(ops.sub(1.0, x), MIN_PROBABILITY))
            return multiply_by_all(ops.sub(other_term, target_term), *weights)
        if i == 1:
            target_term = ops.max(ops.log(x), MIN_LOG_PROBABILITY)
            return multiply_by_all(
                ops.sub(ops.max(ops.log1p(ops.neg(x)), MIN_LOG_PROBABILITY), target_term), *weights
            )
        return self.terms(x, target)


class BinaryCrossEntropyWithLogits(PointwiseLoss):
    """The binary cross entropy of 1 / (1 + exp(-x)), without overflow or lost digits.

    The target may be followed by a weight of each term and a weight of the positive class:
    -weight (positive target log(p) + (1 - target) log(1 - p)).
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

    def terms(self, x: Value, target: Value, *weights: Value | float) -> Value:
        target_term = multiply_no_nan(target, softplus(ops.neg(x)))
        other_term = multiply_no_nan(ops.sub(1.0, target), softplus(x))
        return multiply_by_all(
            ops.add(multiply_by_all(target_term, *weights[1:]), other_term), *weights[:1]
        )

    def terms_derivative(self, i: int, x: Value, target: Value, *weights: Value) -> Value:
        if i == 3:
            return multiply_by_all(multiply_no_nan(target, softplus(ops.neg(x))), *weights[:1])
        if i == 2:
            return self.terms(x, target, 1.0, *weights[1:])
        if i == 1:
            return multiply_by_all(
                ops.sub(multiply_by_all(softplus(ops.neg(x)), *weights[1:]), softplus(x)),
                *weights[:1],
            )
        # Not logistic(x) - target, in which a small difference would lose its digits.
        target_term = multiply_by_all(ops.mul(target, ops.logistic(ops.neg(x))), *weights[1:])
        return multiply_by_all(
            ops.sub(ops.mul(ops.sub(1.0, target), ops.logistic(x)), target_term), *weights[:1]
        )


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

    def check(self) -> None:
        self.check_reduction(("none", "mean", "sum", "batchmean"))

    def mean_divisor(self, shape: Shape) -> float:
        if self.reduction == "batchmean":
            return float(shape[self.batch_ndim]) if len(shape) > self.batch_ndim else 1.0
        return super().mean_divisor(shape)

    def terms(self, x: Value, target: Value) -> Value:
        if self.log_target:
            return multiply_no_nan(ops.exp(target), ops.sub(target, x))
        entropy = ops.mul(target, ops.log(ops.select(ops.eq(target, 0.0), 1.0, target)))
        return ops.sub(entropy, multiply_no_nan(target, x))

    def terms_derivative(self, i: int, x: Value, target: Value) -> Value:
        if i == 0:
            return ops.neg(ops.exp(target) if self.log_target else target)
        if self.log_target:
            return multiply_no_nan(ops.exp(target), ops.add(ops.sub(target, x), 1.0))
        # The derivative of t log(t) at 0 is infinite and taken as 0.
        is_zero = ops.eq(target, 0.0)
        slope = ops.add(ops.log(ops.select(is_zero, 1.0, target)), 1.0)
        return ops.sub(ops.select(is_zero, 0.0, slope), zero_infinities_of_zero_weight(target, x))


class BinaryCrossEntropyBackward(PointwiseLossBackward):
    """(1 - target) / (1 - x) - target / x, times the cotangent of the terms."""

    loss = BinaryCrossEntropy
    samples = (sample(f32[()], f32[3], f32[3], f32[3], reduction="mean", domain={1: (0.1, 0.9)}),)


class BinaryCrossEntropyWithLogitsBackward(PointwiseLossBackward):
    """1 / (1 + exp(-x)) - target, times the cotangent of the terms, without lost digits."""

    loss = BinaryCrossEntropyWithLogits
    samples = (sample(f32[()], f32[3], f32[3], f32[3], f32[()], reduction="mean"),)


class KlDivBackward(PointwiseLossBackward):
    """-target, or -exp(target) of a logarithm, times the cotangent of the terms."""

    log_target: bool = False
    loss = KlDiv
    samples = (sample(f32[()], f32[3, 2], f32[3, 2], reduction="batchmean", log_target=True),)


def multiply_by_all(x: Value, *factors: ArrayLike) -> Value:
    """`x` times all `factors`."""
    for factor in factors:
        x = ops.mul(x, factor)
    return x


def multiply_no_nan(weight: Value, x: Value) -> Value:
    """weight * x, and 0 where the weight is 0 and x infinite."""
    return ops.mul(weight, zero_infinities_of_zero_weight(weight, x))


def zero_infinities_of_zero_weight(weight: Value, x: Value) -> Value:
    """`x` with 0 where it is infinite and the weight is 0."""
    return ops.select(ops.bitwise_and(ops.eq(weight, 0.0), ops.eq(ops.abs(x), math.inf)), 0.0, x)
