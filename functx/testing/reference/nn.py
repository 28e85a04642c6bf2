"""NumPy definitions of losses, softmax and normalizations, and of their backward operations."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import scipy.special

from functx.core.masks import select_where
from functx.core.types import Shape
from functx.core.typing import Function
from functx.ops import batch_norm, normalizations, soft_target_losses
from functx.ops import classification_losses as losses
from functx.testing.reference.interpreter import Array, Definition, takes_primitive

# ruff: noqa: N802 - a definition has the name of the primitive class


def SoftmaxBackward(
    ct: Array, out: Array, axes: Shape, dtype: object, is_normalized: bool
) -> Array:
    weight = out.sum(axes, keepdims=True)
    mean = (out * ct).sum(axes, keepdims=True) / np.where(weight == 0, 1, weight)
    return out * (ct - mean)


def LogSoftmaxBackward(
    ct: Array, out: Array, axes: Shape, dtype: object, is_normalized: bool
) -> Array:
    weights = np.exp(out - out.max(axes, keepdims=True, initial=-np.inf))
    p = weights / weights.sum(axes, keepdims=True)
    return ct - p * ct.sum(axes, keepdims=True)


def reduce_terms(terms: Array, reduction: str, batch_ndim: int) -> Array:
    """The reduction of the terms of a loss, for each batch element."""
    rows = terms.reshape((*terms.shape[:batch_ndim], -1))
    if reduction == "batchmean":
        return rows.sum(-1) / terms.shape[batch_ndim]
    return {"none": terms, "sum": rows.sum(-1), "mean": rows.mean(-1)}[reduction]


def distribute_cotangent(ct: Array, x: Array, reduction: str, batch_ndim: int) -> Array:
    """The cotangent of each term of a loss from that of the reduced loss."""
    count = {"mean": x[(0,) * batch_ndim].size, "batchmean": x.shape[min(batch_ndim, x.ndim - 1)]}
    reduced_ndim = x.ndim - ct.ndim if reduction != "none" else 0
    return (ct / count.get(reduction, 1)).reshape(ct.shape + (1,) * reduced_ndim)


def softplus(x: Array) -> Array:
    return np.logaddexp(0.0, x)


def clamp_log(log: Array) -> Array:
    """A logarithm of at least -100, as in PyTorch."""
    return np.maximum(log, -100.0)


def zero_safe_product(weight: Array, x: Array) -> Array:
    """weight * x, and 0 for a weight of 0 whatever `x` is."""
    return np.where(weight == 0, 0.0, weight * x)


def loss(terms: Function) -> Definition:
    """The definition of a loss with the terms `terms(*operands, **parameters)`."""

    def reduced(*args: Array, reduction: str, batch_ndim: int, **params: object) -> Array:
        return reduce_terms(terms(*args, **params), reduction, batch_ndim)

    return reduced


def loss_backward(derivative: Function) -> Definition:
    """The definition of the backward operation of a loss with the derivative `derivative` of its terms."""

    def backward(
        ct: Array, *args: Array, reduction: str, batch_ndim: int, **params: object
    ) -> Array:
        ct = distribute_cotangent(ct, args[0], reduction, batch_ndim)
        return ct * derivative(*args, **params)

    return backward


L1Loss = loss(lambda x, y: abs(x - y))
L1LossBackward = loss_backward(lambda x, y: np.sign(x - y))
MseLoss = loss(lambda x, y: (x - y) ** 2)
MseLossBackward = loss_backward(lambda x, y: 2 * (x - y))
SmoothL1Loss = loss(
    lambda x, y, beta: scipy.special.huber(beta, x - y) / beta if beta else abs(x - y)
)
SmoothL1LossBackward = loss_backward(lambda x, y, beta: np.clip((x - y) / beta, -1, 1))
HuberLoss = loss(lambda x, y, delta: scipy.special.huber(delta, x - y))
HuberLossBackward = loss_backward(lambda x, y, delta: np.clip(x - y, -delta, delta))
BinaryCrossEntropy = loss(
    lambda x, y, w=1.0: -w * (y * clamp_log(np.log(x)) + (1 - y) * clamp_log(np.log1p(-x)))
)
BinaryCrossEntropyBackward = loss_backward(
    lambda x, y, w=1.0: w * ((1 - y) / np.maximum(1 - x, 1e-12) - y / np.maximum(x, 1e-12))
)
BinaryCrossEntropyWithLogits = loss(
    lambda x, y, w=1.0, p=1.0: (
        w * (p * zero_safe_product(y, softplus(-x)) + zero_safe_product(1 - y, softplus(x)))
    )
)
BinaryCrossEntropyWithLogitsBackward = loss_backward(
    lambda x, y, w=1.0, p=1.0: (
        w * ((1 - y) * scipy.special.expit(x) - p * y * scipy.special.expit(-x))
    )
)
KlDiv = loss(
    lambda x, y, log_target: (
        zero_safe_product(np.exp(y), y - x)
        if log_target
        else scipy.special.xlogy(y, y) - zero_safe_product(y, np.nan_to_num(x))
    )
)
KlDivBackward = loss_backward(lambda x, y, log_target: -np.exp(y) if log_target else -y)


def one_hot_rows(
    op: losses.ClassIndexPrimitive, target: Array, weights: Sequence[Array], classes: int
) -> tuple[Array, Array, Array]:
    """Along the last axis, true at the class of each row; the class weights; and the weight of each row."""
    counts = target != op.ignore_index
    one_hot = counts[..., None] & (target[..., None] == np.arange(classes))
    weight = np.ones(classes) if not weights else weights[0]
    weight = weight.reshape(weight.shape[:-1] + (1,) * (target.ndim - weight.ndim + 1) + (classes,))
    row_weight = zero_safe_product(one_hot, weight).sum(-1) if weights else 1.0
    return one_hot, weight, np.where(counts, row_weight, 0.0)


def nan_for_unknown_class(
    op: losses.ClassIndexPrimitive, terms: Array, target: Array, x: Array
) -> Array:
    """The terms of a loss of `x`, with nan for a class out of range."""
    is_unknown = (target != op.ignore_index) & ((target < 0) | (target >= x.shape[op.axis]))
    return np.where(is_unknown, np.nan, terms)


def weighted_mean(total: Array, weight: Array, batch_ndim: int, empty_value: float) -> Array:
    """total / sum of weights for each batch element, and `empty_value` for a sum of 0."""
    weight = weight.reshape((*weight.shape[:batch_ndim], -1)).sum(-1)
    return np.where(weight == 0, empty_value, total / np.where(weight == 0, 1, weight))


def reduce_weighted_terms(op: losses.ClassIndexPrimitive, terms: Array, weight: Array) -> Array:
    """The reduction of weighted terms; a mean divides by the sum of the weights."""
    if op.reduction != "mean":
        return reduce_terms(terms, op.reduction, op.batch_ndim)
    return weighted_mean(reduce_terms(terms, "sum", op.batch_ndim), weight, op.batch_ndim, np.nan)


def distribute_weighted_cotangent(
    op: losses.ClassIndexPrimitive, ct: Array, weight: Array, ndim: int
) -> Array:
    """The cotangent of each weighted term, of rank `ndim`, from that of the reduced loss."""
    ct = weighted_mean(ct, weight, op.batch_ndim, 0.0) if op.reduction == "mean" else ct
    return ct.reshape(ct.shape + (1,) * (ndim - ct.ndim))


@takes_primitive
def NllLoss(op: losses.ClassIndexPrimitive, x: Array, target: Array, *weights: Array) -> Array:
    one_hot, _, weight = one_hot_rows(op, target, weights, x.shape[op.axis])
    terms = -zero_safe_product(weight, np.where(one_hot, np.moveaxis(x, op.axis, -1), 0).sum(-1))
    return reduce_weighted_terms(op, nan_for_unknown_class(op, terms, target, x), weight)


@takes_primitive
def NllLossBackward(op: losses.NllLossBackward, ct: Array, target: Array, *weights: Array) -> Array:
    one_hot, _, weight = one_hot_rows(op, target, weights, op.classes)
    ct = distribute_weighted_cotangent(op, ct, weight, weight.ndim) * weight
    return np.moveaxis(-zero_safe_product(one_hot, ct[..., None]), -1, op.axis)


def class_distribution(
    op: losses.CrossEntropy | losses.CrossEntropyBackward,
    x: Array,
    target: Array,
    weights: Sequence[Array],
) -> tuple[Array, Array]:
    """Along the last axis, the smoothed and weighted target of each class; and the weight of each row."""
    classes = x.shape[op.axis]
    one_hot, class_weight, weight = one_hot_rows(op, target, weights, classes)
    counts = (target != op.ignore_index)[..., None]
    smooth = op.label_smoothing / classes * class_weight
    return counts * ((1 - op.label_smoothing) * one_hot * weight[..., None] + smooth), weight


def softmax_minus_target(x: Array, target: Array, axis: int) -> Array:
    """The derivative of the cross entropy in the logits, with classes along the last axis."""
    weight = target.sum(-1, keepdims=True)
    return zero_safe_product(weight, np.moveaxis(scipy.special.softmax(x, axis), axis, -1)) - target


@takes_primitive
def CrossEntropy(op: losses.CrossEntropy, x: Array, target: Array, *weights: Array) -> Array:
    distribution, weight = class_distribution(op, x, target, weights)
    logs = np.moveaxis(scipy.special.log_softmax(x, op.axis), op.axis, -1)
    terms = -zero_safe_product(distribution, logs).sum(-1)
    return reduce_weighted_terms(op, nan_for_unknown_class(op, terms, target, x), weight)


@takes_primitive
def CrossEntropyBackward(
    op: losses.CrossEntropyBackward, ct: Array, x: Array, target: Array, *weights: Array
) -> Array:
    distribution, weight = class_distribution(op, x, target, weights)
    ct = distribute_weighted_cotangent(op, ct, weight, x.ndim)
    return np.moveaxis(ct * softmax_minus_target(x, distribution, op.axis), -1, op.axis)


def smoothed_target(
    op: soft_target_losses.ClassProbabilityPrimitive, target: Array, weights: Sequence[Array]
) -> Array:
    """The class probabilities, smoothed and weighted, along the last axis."""
    weight, label_smoothing = weights[0] if weights else np.ones(()), op.label_smoothing
    target = np.moveaxis(target, op.axis, -1)
    weight = weight.reshape(
        weight.shape[:-1] + (1,) * (target.ndim - weight.ndim) + weight.shape[-1:]
    )
    return weight * (target * (1 - label_smoothing) + label_smoothing / target.shape[-1])


@takes_primitive
def SoftTargetCrossEntropy(
    op: soft_target_losses.SoftTargetCrossEntropy, x: Array, target: Array, *weights: Array
) -> Array:
    distribution = smoothed_target(op, target, weights)
    logs = np.moveaxis(scipy.special.log_softmax(x, op.axis), op.axis, -1)
    return reduce_terms(-(distribution * logs).sum(-1), op.reduction, op.batch_ndim)


@takes_primitive
def SoftTargetCrossEntropyBackward(
    op: soft_target_losses.ClassProbabilityPrimitive,
    ct: Array,
    x: Array,
    target: Array,
    *weights: Array,
) -> Array:
    cotangent = softmax_minus_target(x, smoothed_target(op, target, weights), op.axis)
    ct = distribute_cotangent(ct, cotangent[..., 0], op.reduction, op.batch_ndim)[..., None]
    return np.moveaxis(ct * cotangent, -1, op.axis)


Layout = tuple[Shape, Shape, Shape]
"""The shape and axes in which a normalization computes, and the shape of weight and bias."""


def layer_layout(op: normalizations.LayerNorm, x: Array) -> Layout:
    """The layout of layer norm: the last dimensions are normalized."""
    first = x.ndim - op.normalized_ndim
    affine_shape = [
        n if d < op.affine_batch_ndim or d >= first else 1 for d, n in enumerate(x.shape)
    ]
    return x.shape, tuple(range(first, x.ndim)), tuple(affine_shape)


def group_layout(op: normalizations.GroupNorm, x: Array) -> Layout:
    """The layout of group norm: channels in groups, normalized with the dimensions after them."""
    axis, channels = op.axis, x.shape[op.axis]
    shape = (*x.shape[:axis], op.groups, channels // op.groups, *x.shape[axis + 1 :])
    affine_shape = [
        n if d < op.affine_batch_ndim or d == axis else 1 for d, n in enumerate(x.shape)
    ]
    return shape, tuple(range(axis + 1, len(shape))), tuple(affine_shape)


def batch_layout(
    op: batch_norm.BatchNorm | batch_norm.FixedStatisticsNormalization, x: Array
) -> Layout:
    """The layout of batch norm: `axes` are normalized."""
    return x.shape, op.axes, tuple([1 if d in op.axes else n for d, n in enumerate(x.shape)])


def normalize(
    op: normalizations.Normalization, x: Array, layout: Layout, rstd: Array | None = None
) -> tuple[Array, Array]:
    """`x` in the shape of `layout`, standardized, and the reciprocal of the standard deviation."""
    shape, axes, _ = layout
    x, count = x.reshape(shape), max(int(np.prod([shape[d] for d in axes])), 1)
    mean = x.sum(axes, keepdims=True) / count if op.centered else 0.0
    variance = ((x - mean) ** 2).sum(axes, keepdims=True) / count
    rstd = 1 / np.sqrt(variance + op.eps) if rstd is None else rstd.reshape(variance.shape)
    return (x - mean) * rstd, rstd


def scale_and_shift(
    op: normalizations.ForwardNormalization | batch_norm.BatchNormInference,
    out: Array, affine_shape: Shape, affine: Sequence[Array],
) -> Array:  # fmt: skip
    """The standardized array times the weight, plus the bias."""
    out = out * affine[0].reshape(affine_shape) if op.weighted else out
    return out + affine[-1].reshape(affine_shape) if op.biased else out


def normalization(layout_of: Function) -> Definition:
    """The definition of a normalization with the layout `layout_of(op, x)`."""

    def norm(op: normalizations.ForwardNormalization, x: Array, *affine: Array) -> Array:
        layout = layout_of(op, x)
        out = normalize(op, x, layout)[0].reshape(x.shape)
        return scale_and_shift(op, out, layout[2], affine)

    return takes_primitive(norm)


def normalization_backward(layout_of: Function) -> Definition:
    """The definition of the backward operation of a normalization."""

    def backward(
        op: normalizations.BackwardNormalization, ct: Array, x: Array, *operands: Array
    ) -> list[Array]:
        layout = shape, axes, affine_shape = layout_of(op, x)
        out, rstd = normalize(op, x, layout, None if op.eps is not None else operands[0])
        ones = np.ones([n for n in affine_shape if n != 1] or 1, x.dtype)
        weight = operands[-1] if op.weighted else ones
        g = (ct * weight.reshape(affine_shape)).reshape(shape)
        count = max(int(np.prod([shape[d] for d in axes])), 1)
        mean = g.sum(axes, keepdims=True) / count if op.centered else 0.0
        x_cotangent = rstd * (g - mean - out * (g * out).sum(axes, keepdims=True) / count)
        summed = tuple(d for d, n in enumerate(affine_shape) if n == 1)
        sizes = [n for d, n in enumerate(x.shape) if d not in summed]
        sums = [t.sum(summed).reshape(sizes) for t in (ct * out.reshape(x.shape), ct)]
        cotangents = x_cotangent.reshape(x.shape), *sums
        return select_where(cotangents, op.output_mask)

    return takes_primitive(backward)


LayerNorm = RMSNorm = normalization(layer_layout)
LayerNormBackward = RMSNormBackward = normalization_backward(layer_layout)
GroupNorm = normalization(group_layout)
GroupNormBackward = normalization_backward(group_layout)
BatchNormBackward = normalization_backward(batch_layout)
normalize_batch = normalization(batch_layout)


@takes_primitive
def BatchNorm(op: batch_norm.BatchNorm, x: Array, *operands: Array) -> list[Array]:
    affine = operands[: len(operands) - 2 * op.tracked]
    out = normalize_batch(op, x, *affine)
    if not op.tracked:
        return [out]
    if not x.size:
        return [out, *operands[-2:]]
    statistics = x.mean(op.axes), x.var(op.axes, ddof=1)
    running = [
        (1 - op.momentum) * old + op.momentum * new
        for old, new in zip(operands[-2:], statistics, strict=True)
    ]
    return [out, *running]


@takes_primitive
def BatchNormInference(
    op: batch_norm.BatchNormInference, x: Array, mean: Array, variance: Array, *affine: Array
) -> Array:
    shape = batch_layout(op, x)[2]
    out = (x - mean.reshape(shape)) / np.sqrt(variance.reshape(shape) + op.eps)
    return scale_and_shift(op, out, shape, affine)


@takes_primitive
def BatchNormInferenceBackward(
    op: batch_norm.BatchNormInferenceBackward, ct: Array, x: Array, mean: Array, variance: Array,
    *weight: Array,
) -> list[Array]:  # fmt: skip
    affine_shape, axes = batch_layout(op, x)[2], op.axes
    rstd = 1 / np.sqrt(variance + op.eps)
    scale = rstd * weight[0] if weight else rstd
    ct_sum, product_sum = ct.sum(axes), (ct * (x - mean.reshape(affine_shape))).sum(axes)
    cotangents = (
        ct * scale.reshape(affine_shape),
        -scale * ct_sum,
        -0.5 * product_sum * scale * rstd**2,
        product_sum * rstd,
        ct_sum,
    )
    return select_where(cotangents, op.output_mask)
