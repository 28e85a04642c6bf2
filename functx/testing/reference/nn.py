"""NumPy definitions of losses, softmax and normalizations, and of their backward operations."""

from __future__ import annotations

import numpy as np
import scipy.special

# ruff: noqa: N802 - a definition has the name of the primitive class


def SoftmaxBackward(ct, out, axes, dtype):
    weight = out.sum(axes, keepdims=True)
    mean = (out * ct).sum(axes, keepdims=True) / np.where(weight == 0, 1, weight)
    return out * (ct - mean)


def LogSoftmaxBackward(ct, out, axes, dtype):
    weights = np.exp(out - out.max(axes, keepdims=True, initial=-np.inf))
    p = weights / weights.sum(axes, keepdims=True)
    return ct - p * ct.sum(axes, keepdims=True)


def reduce_terms(terms, reduction, batch_ndim):
    """The reduction of the terms of a loss, for each batch element."""
    rows = terms.reshape((*terms.shape[:batch_ndim], -1))
    if reduction == "batchmean":
        return rows.sum(-1) / terms.shape[batch_ndim]
    return {"none": terms, "sum": rows.sum(-1), "mean": rows.mean(-1)}[reduction]


def distribute_cotangent(ct, x, reduction, batch_ndim):
    """The cotangent of each term of a loss from that of the reduced loss."""
    count = {"mean": x[(0,) * batch_ndim].size, "batchmean": x.shape[min(batch_ndim, x.ndim - 1)]}
    reduced_ndim = x.ndim - ct.ndim if reduction != "none" else 0
    return (ct / count.get(reduction, 1)).reshape(ct.shape + (1,) * reduced_ndim)


def softplus(x):
    return np.logaddexp(0.0, x)


def clamp_log(log):
    """A logarithm of at least -100, as in PyTorch."""
    return np.maximum(log, -100.0)


def zero_safe_product(weight, x):
    """weight * x, and 0 for a weight of 0 whatever `x` is."""
    return np.where(weight == 0, 0.0, weight * x)


def loss(terms):
    """The definition of a loss with the terms `terms(*operands, **parameters)`."""

    def reduced(*args, reduction, batch_ndim, **params):
        return reduce_terms(terms(*args, **params), reduction, batch_ndim)

    return reduced


def loss_backward(derivative):
    """The definition of the backward operation of a loss with the derivative `derivative` of its terms."""

    def backward(ct, *args, reduction, batch_ndim, **params):
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


def one_hot_rows(target, weights, classes, axis, batch_ndim, ignore_index):
    """Along the last axis, true at the class of each row; the class weights; and the weight of each row."""
    counts = target != ignore_index
    one_hot = counts[..., None] & (target[..., None] == np.arange(classes))
    weight = np.ones(classes) if not weights else weights[0]
    weight = weight.reshape(weight.shape[:-1] + (1,) * (target.ndim - weight.ndim + 1) + (classes,))
    row_weight = zero_safe_product(one_hot, weight).sum(-1) if weights else 1.0
    return one_hot, weight, np.where(counts, row_weight, 0.0)


def nan_for_unknown_class(terms, target, classes, ignore_index):
    """The terms of a loss, with nan for a class out of range."""
    is_unknown = (target != ignore_index) & ((target < 0) | (target >= classes))
    return np.where(is_unknown, np.nan, terms)


def weighted_mean(total, weight, batch_ndim, empty_value):
    """total / sum of weights for each batch element, and `empty_value` for a sum of 0."""
    weight = weight.reshape((*weight.shape[:batch_ndim], -1)).sum(-1)
    return np.where(weight == 0, empty_value, total / np.where(weight == 0, 1, weight))


def reduce_weighted_terms(terms, weight, reduction, batch_ndim):
    """The reduction of weighted terms; a mean divides by the sum of the weights."""
    if reduction != "mean":
        return reduce_terms(terms, reduction, batch_ndim)
    return weighted_mean(reduce_terms(terms, "sum", batch_ndim), weight, batch_ndim, np.nan)


def distribute_weighted_cotangent(ct, weight, reduction, batch_ndim):
    """The cotangent of each weighted term from that of the reduced loss."""
    ct = weighted_mean(ct, weight, batch_ndim, 0.0) if reduction == "mean" else ct
    return ct.reshape(ct.shape + (1,) * (weight.ndim - ct.ndim)) * weight


def NllLoss(x, target, *weights, reduction, batch_ndim, axis, ignore_index):
    one_hot, _, weight = one_hot_rows(
        target, weights, x.shape[axis], axis, batch_ndim, ignore_index
    )
    terms = -zero_safe_product(weight, np.where(one_hot, np.moveaxis(x, axis, -1), 0).sum(-1))
    terms = nan_for_unknown_class(terms, target, x.shape[axis], ignore_index)
    return reduce_weighted_terms(terms, weight, reduction, batch_ndim)


def NllLossBackward(ct, target, *weights, reduction, batch_ndim, axis, ignore_index, classes):
    one_hot, _, weight = one_hot_rows(target, weights, classes, axis, batch_ndim, ignore_index)
    cotangent = -zero_safe_product(
        one_hot, distribute_weighted_cotangent(ct, weight, reduction, batch_ndim)[..., None]
    )
    return np.moveaxis(cotangent, -1, axis)


def class_distribution(target, weights, x, axis, batch_ndim, ignore_index, label_smoothing):
    """Along the last axis, the smoothed and weighted target of each class; and the weight of each row."""
    classes = x.shape[axis]
    one_hot, class_weight, weight = one_hot_rows(
        target, weights, classes, axis, batch_ndim, ignore_index
    )
    counts = (target != ignore_index)[..., None]
    smooth = label_smoothing / classes * class_weight
    return counts * ((1 - label_smoothing) * one_hot * weight[..., None] + smooth), weight


def softmax_minus_target(x, target, axis):
    """The derivative of the cross entropy in the logits, with classes along the last axis."""
    weight = target.sum(-1, keepdims=True)
    return zero_safe_product(weight, np.moveaxis(scipy.special.softmax(x, axis), axis, -1)) - target


def CrossEntropy(x, target, *weights, reduction, batch_ndim, axis, ignore_index, label_smoothing):
    distribution, weight = class_distribution(
        target, weights, x, axis, batch_ndim, ignore_index, label_smoothing
    )
    logs = np.moveaxis(scipy.special.log_softmax(x, axis), axis, -1)
    terms = nan_for_unknown_class(
        -zero_safe_product(distribution, logs).sum(-1), target, x.shape[axis], ignore_index
    )
    return reduce_weighted_terms(terms, weight, reduction, batch_ndim)


def CrossEntropyBackward(ct, x, target, *weights, reduction, batch_ndim, axis, **others):
    distribution, weight = class_distribution(target, weights, x, axis, batch_ndim, **others)
    ct = weighted_mean(ct, weight, batch_ndim, 0.0) if reduction == "mean" else ct
    ct = ct.reshape(ct.shape + (1,) * (x.ndim - ct.ndim))
    return np.moveaxis(ct * softmax_minus_target(x, distribution, axis), -1, axis)


def smoothed_target(target, weights, axis, label_smoothing):
    """The class probabilities, smoothed and weighted, along the last axis."""
    weight = weights[0] if weights else np.ones(())
    target = np.moveaxis(target, axis, -1)
    weight = weight.reshape(
        weight.shape[:-1] + (1,) * (target.ndim - weight.ndim) + weight.shape[-1:]
    )
    return weight * (target * (1 - label_smoothing) + label_smoothing / target.shape[-1])


def SoftTargetCrossEntropy(x, target, *weights, reduction, batch_ndim, axis, label_smoothing):
    distribution = smoothed_target(target, weights, axis, label_smoothing)
    logs = np.moveaxis(scipy.special.log_softmax(x, axis), axis, -1)
    return reduce_terms(-(distribution * logs).sum(-1), reduction, batch_ndim)


def SoftTargetCrossEntropyBackward(
    ct, x, target, *weights, reduction, batch_ndim, axis, label_smoothing
):
    cotangent = softmax_minus_target(
        x, smoothed_target(target, weights, axis, label_smoothing), axis
    )
    ct = distribute_cotangent(ct, cotangent[..., 0], reduction, batch_ndim)[..., None]
    return np.moveaxis(ct * cotangent, -1, axis)


def normalize(x, shape, axes, eps, centered=True, rstd=None):
    """`x` in `shape`, standardized over `axes`, and the reciprocal of the standard deviation."""
    x = x.reshape(shape)
    count = max(int(np.prod([shape[d] for d in axes])), 1)
    mean = x.sum(axes, keepdims=True) / count if centered else 0.0
    variance = ((x - mean) ** 2).sum(axes, keepdims=True) / count
    rstd = 1 / np.sqrt(variance + eps) if rstd is None else rstd.reshape(variance.shape)
    return (x - mean) * rstd, rstd


def normalization(layout, centered=True):
    """The rule of a normalization; `layout` gives the shape, the normalized axes and the affine shape."""

    def norm(x, *affine, eps, weighted=False, biased=False, **params):
        shape, axes, affine_shape = layout(x, **params)
        out = normalize(x, shape, axes, eps, centered)[0].reshape(x.shape)
        affine = [a.reshape(affine_shape) for a in affine]
        out = out * affine[0] if weighted else out
        return out + affine[-1] if biased else out

    return norm


def normalization_backward(layout, centered=True):
    """The rule of the backward operation of a normalization."""

    def backward(ct, x, *operands, eps, weighted=False, output_mask=(True, True, True), **params):
        shape, axes, affine_shape = layout(x, **params)
        stated_rstd = None if eps is not None else operands[0]
        out, rstd = normalize(x, shape, axes, eps, centered, stated_rstd)
        ones = np.ones([n for n in affine_shape if n != 1] or 1, x.dtype)
        weight = operands[-1] if weighted else ones
        g = (ct * weight.reshape(affine_shape)).reshape(shape)
        count = max(int(np.prod([shape[d] for d in axes])), 1)
        mean = g.sum(axes, keepdims=True) / count if centered else 0.0
        x_cotangent = rstd * (g - mean - out * (g * out).sum(axes, keepdims=True) / count)
        summed = tuple(d for d, n in enumerate(affine_shape) if n == 1)
        sizes = [n for d, n in enumerate(x.shape) if d not in summed]
        sums = [t.sum(summed).reshape(sizes) for t in (ct * out.reshape(x.shape), ct)]
        cotangents = x_cotangent.reshape(x.shape), *sums
        return [c for c, is_output in zip(cotangents, output_mask, strict=True) if is_output]

    return backward


def layer_layout(x, normalized_ndim, affine_batch_ndim=0):
    """The layout of layer norm: the last dimensions are normalized."""
    affine_shape = [
        n if d < affine_batch_ndim or d >= x.ndim - normalized_ndim else 1
        for d, n in enumerate(x.shape)
    ]
    return x.shape, tuple(range(x.ndim - normalized_ndim, x.ndim)), affine_shape


def group_layout(x, groups, axis=1, affine_batch_ndim=0):
    """The layout of group norm: channels in groups, normalized with the dimensions after them."""
    channels = x.shape[axis]
    shape = (*x.shape[:axis], groups, channels // groups, *x.shape[axis + 1 :])
    affine_shape = [n if d < affine_batch_ndim or d == axis else 1 for d, n in enumerate(x.shape)]
    return shape, tuple(range(axis + 1, len(shape))), affine_shape


def batch_layout(x, axes):
    """The layout of batch norm: `axes` are normalized."""
    return x.shape, axes, [1 if d in axes else n for d, n in enumerate(x.shape)]


LayerNorm = normalization(layer_layout)
LayerNormBackward = normalization_backward(layer_layout)
RMSNorm = normalization(layer_layout, centered=False)
RMSNormBackward = normalization_backward(layer_layout, centered=False)
GroupNorm = normalization(group_layout)
GroupNormBackward = normalization_backward(group_layout)
BatchNormBackward = normalization_backward(batch_layout)


def BatchNorm(x, *operands, axes, momentum=0.1, tracked=False, **params):
    affine = operands[: len(operands) - 2 * tracked]
    out = normalization(batch_layout)(x, *affine, axes=axes, **params)
    if not tracked:
        return [out]
    if not x.size:
        return [out, *operands[-2:]]
    statistics = x.mean(axes), x.var(axes, ddof=1)
    running = [
        (1 - momentum) * old + momentum * new
        for old, new in zip(operands[-2:], statistics, strict=True)
    ]
    return [out, *running]


def BatchNormInference(x, mean, variance, *affine, eps, axes, weighted=False, biased=False):
    affine_shape = batch_layout(x, axes)[2]
    out = (x - mean.reshape(affine_shape)) / np.sqrt(variance.reshape(affine_shape) + eps)
    out = out * affine[0].reshape(affine_shape) if weighted else out
    return out + affine[-1].reshape(affine_shape) if biased else out


def BatchNormInferenceBackward(
    ct, x, mean, variance, *weight, eps, axes, output_mask=(True,) * 5, **_
):
    affine_shape = batch_layout(x, axes)[2]
    rstd = 1 / np.sqrt(variance + eps)
    scale = rstd * weight[0] if weight else rstd
    ct_sum, product_sum = ct.sum(axes), (ct * (x - mean.reshape(affine_shape))).sum(axes)
    cotangents = (
        ct * scale.reshape(affine_shape),
        -scale * ct_sum,
        -0.5 * product_sum * scale * rstd**2,
        product_sum * rstd,
        ct_sum,
    )
    return [c for c, is_output in zip(cotangents, output_mask, strict=True) if is_output]
