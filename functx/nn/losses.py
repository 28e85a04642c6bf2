"""Losses with PyTorch's names and arguments, for arrays of any shape; each is one equation.

`reduction` is "mean", "sum", or "none", which returns the terms. Derivatives of any order exist.
"""

from __future__ import annotations

from functx.core.errors import ArgumentError, DTypeError, ShapeError
from functx.core.tracer import aval_of
from functx.core.types import is_inexact
from functx.core.typing import ArrayLike, Value
from functx.numpy.promotion import broadcast_to, is_broadcastable, operand, promote_inexact
from functx.ops.classification_losses import CrossEntropy, NllLoss
from functx.ops.losses import (
    BinaryCrossEntropy,
    BinaryCrossEntropyWithLogits,
    HuberLoss,
    KlDiv,
    L1Loss,
    MseLoss,
    SmoothL1Loss,
)
from functx.ops.operands import as_bool, as_float, as_int, check_index_range
from functx.ops.soft_target_losses import SoftTargetCrossEntropy

__all__ = [
    "binary_cross_entropy",
    "binary_cross_entropy_with_logits",
    "cross_entropy",
    "huber_loss",
    "kl_div",
    "l1_loss",
    "mse_loss",
    "nll_loss",
    "smooth_l1_loss",
]


def mse_loss(input: ArrayLike, target: ArrayLike, reduction: str = "mean") -> Value:
    """(input - target)**2, of arrays of one shape; the target may be a number.

    >>> from functx import nn
    >>> import numpy
    >>> float(nn.mse_loss(numpy.array([1.0, 2.0]), numpy.array([1.0, 4.0])))
    2.0
    """
    return MseLoss(reduction)(*_promote_loss_operands("mse_loss", input, target))


def l1_loss(input: ArrayLike, target: ArrayLike, reduction: str = "mean") -> Value:
    """|input - target|, of arrays of one shape; the target may be a number."""
    return L1Loss(reduction)(*_promote_loss_operands("l1_loss", input, target))


def smooth_l1_loss(
    input: ArrayLike, target: ArrayLike, reduction: str = "mean", beta: float = 1.0
) -> Value:
    """d**2 / (2 beta) for d = input - target with |d| < beta, and |d| - beta / 2 beyond.

    Of arrays of one shape; the target may be a number.
    """
    loss = SmoothL1Loss(reduction, beta=as_float("smooth_l1_loss: beta", beta))
    return loss(*_promote_loss_operands("smooth_l1_loss", input, target))


def huber_loss(
    input: ArrayLike, target: ArrayLike, reduction: str = "mean", delta: float = 1.0
) -> Value:
    """d**2 / 2 for d = input - target with |d| < delta, and delta (|d| - delta / 2) beyond.

    Of arrays of one shape; the target may be a number.
    """
    loss = HuberLoss(reduction, delta=as_float("huber_loss: delta", delta))
    return loss(*_promote_loss_operands("huber_loss", input, target))


def kl_div(
    input: ArrayLike, target: ArrayLike, reduction: str = "mean", log_target: bool = False
) -> Value:
    """target (log(target) - input) for logarithms `input`; 0 where the target is 0.

    With `log_target` the target is a logarithm too. The reduction "batchmean" divides the sum
    by the first length, which gives the divergence of distributions along the other axes.
    """
    loss = KlDiv(reduction, log_target=as_bool("kl_div: log_target", log_target))
    return loss(*_promote_loss_operands("kl_div", input, target))


def binary_cross_entropy(
    input: ArrayLike, target: ArrayLike, weight: ArrayLike | None = None, reduction: str = "mean"
) -> Value:
    """-(target log(input) + (1 - target) log(1 - input)), times `weight`.

    `input` holds probabilities. Their logarithms are clamped to at least -100.
    """
    name = "binary_cross_entropy"
    x, target, *weights = _promote_loss_operands(name, input, target, weight)
    return BinaryCrossEntropy(reduction)(x, target, *_check_weights(name, x, weight=weights))


def binary_cross_entropy_with_logits(
    input: ArrayLike,
    target: ArrayLike,
    weight: ArrayLike | None = None,
    reduction: str = "mean",
    pos_weight: ArrayLike | None = None,
) -> Value:
    """The `binary_cross_entropy` of 1 / (1 + exp(-input)), without overflow or cancellation.

    `pos_weight` multiplies the term of the target, not that of 1 - target. It and `weight` must
    broadcast to the shape of `input`.
    """
    name = "binary_cross_entropy_with_logits"
    if weight is None and pos_weight is not None:
        weight = 1.0
    x, target, *weights = _promote_loss_operands(name, input, target, weight, pos_weight)
    named = {"weight": weights[:1], "pos_weight": weights[1:]}
    return BinaryCrossEntropyWithLogits(reduction)(x, target, *_check_weights(name, x, **named))


def nll_loss(
    input: ArrayLike,
    target: ArrayLike,
    weight: ArrayLike | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> Value:
    """-input at the class of each row, for logarithms of probabilities `input`.

    `input` has the shape (C,), (N, C) or (N, C, d1, ...), and `target`, integers from 0 to
    below C, the same shape without C. Rows of class `ignore_index` are ignored; if there are no
    other rows, the mean is nan and the derivatives are 0. `weight` has an entry for each class;
    a mean is weighted by the weights of the rows. For a class outside 0 to C it raises
    IndexingError if `target` is known; if it is traced, the loss of the row is nan.
    """
    x, target, *weights = _promote_class_operands(input, target, weight)
    ignored = as_int("nll_loss: ignore_index", ignore_index)
    loss = NllLoss(reduction, axis=_class_axis("nll_loss", x), ignore_index=ignored)
    out = loss(x, target, *weights)
    check_index_range("nll_loss", "classes", target, aval_of(x).shape[loss.axis], ignored)
    return out


def cross_entropy(
    input: ArrayLike,
    target: ArrayLike,
    weight: ArrayLike | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Value:
    """-log(softmax(input)) at the class of each row, or its mean by a target of probabilities.

    If `target` holds integers, it is `nll_loss` of `log_softmax(input)`. Floats, in the shape of
    `input`, are probabilities of the classes; then a mean is over the rows, and `ignore_index`
    is not supported. `label_smoothing` mixes the target with equal probabilities.

    >>> from functx import nn
    >>> import numpy
    >>> scores, classes = numpy.array([[0.0, 9.0], [0.0, 1000.0]]), numpy.array([0, 1])
    >>> nn.cross_entropy(scores, classes, reduction="none").round().tolist()
    [9.0, 0.0]
    """
    name, target = "cross_entropy", operand(target)
    smoothing = as_float(f"{name}: label_smoothing", label_smoothing)
    ignored = as_int(f"{name}: ignore_index", ignore_index)
    if is_inexact(aval_of(target).dtype):
        if ignored >= 0:
            raise ArgumentError(
                f"{name}: ignore_index must be left out beside probabilities of classes; got "
                f"{ignored}"
            )
        _check_no_class_numbers(name, operand(input), target)
        x, target, *weights = _promote_loss_operands(name, input, target, weight)
        loss = SoftTargetCrossEntropy(
            reduction, axis=_class_axis(name, x), label_smoothing=smoothing
        )
        return loss(x, target, *weights)
    x, target, *weights = _promote_class_operands(input, target, weight)
    classes = CrossEntropy(
        reduction, axis=_class_axis(name, x), ignore_index=ignored, label_smoothing=smoothing
    )
    out = classes(x, target, *weights)
    check_index_range(name, "classes", target, aval_of(x).shape[classes.axis], ignored)
    return out


def _promote_loss_operands(
    name: str, x: ArrayLike, target: ArrayLike, *weights: ArrayLike | None
) -> list[Value]:
    """Input, target and the weights that are not None, as floats of one dtype."""
    first, second, *present = promote_inexact(x, target, *[w for w in weights if w is not None])
    shape = aval_of(first).shape
    if shape and not aval_of(second).shape:
        second = broadcast_to(second, shape)
    return [first, second, *present]


def _promote_class_operands(
    x: ArrayLike, target: ArrayLike, weight: ArrayLike | None
) -> list[Value]:
    """Input and weight, if it is not None, as floats of one dtype; the target holds classes."""
    first, *weights = promote_inexact(x, *([] if weight is None else [weight]))
    return [first, operand(target), *weights]


def _class_axis(name: str, x: Value) -> int:
    """The axis of the classes: the only one, or the second."""
    ndim = aval_of(x).ndim
    if not ndim:
        raise ShapeError(f"{name}: the input must have an axis of classes; got {aval_of(x)!r}")
    return min(ndim - 1, 1)


def _check_no_class_numbers(name: str, x: Value, target: Value) -> None:
    """Raises DTypeError for floats in the shape of the numbers of classes."""
    axis, shape = _class_axis(name, x), aval_of(x).shape
    if aval_of(target).shape == shape[:axis] + shape[axis + 1 :]:
        raise DTypeError(
            f"{name}: the target must hold the numbers of classes, integers, or probabilities in the "
            f"shape of the input; got {aval_of(target)!r} for {aval_of(x)!r}",
            fix="Convert the numbers of classes with astype(int).",
        )


def _check_weights(name: str, x: Value, **weights: list[Value]) -> list[Value]:
    """The weights, at most one by each name, broadcast to the shape of `x`, or scalars."""
    shape, checked = aval_of(x).shape, []
    for label, values in weights.items():
        for weight in values:
            weight_shape = aval_of(weight).shape
            if not is_broadcastable(weight_shape, shape):
                raise ShapeError(
                    f"{name}: {label} must broadcast to the input; got {aval_of(weight)!r} for "
                    f"{aval_of(x)!r}"
                )
            checked.append(broadcast_to(weight, shape) if weight_shape else weight)
    return checked
