"""Backward rules of softmax, losses and embeddings, with PyTorch's names and arguments.

Nothing is promoted, and half floats are computed with in single precision.
"""

from __future__ import annotations

from typing import Any

import jax

from functx.core.dtypes import accumulation_dtype
from functx.core.errors import ArgumentError, ShapeError
from functx.core.tracing import aval_of
from functx.ops.activations import log_sigmoid
from functx.ops.arithmetic import abs, div, mul, neg
from functx.ops.comparison import eq
from functx.ops.conversion import convert_element_type
from functx.ops.embedding import EmbeddingBackward
from functx.ops.exponential import exp, logistic
from functx.ops.known import check_index_range
from functx.ops.losses import (
    HuberLossBackward,
    L1LossBackward,
    MseLossBackward,
    SmoothL1LossBackward,
)
from functx.ops.nll_loss import NllLossBackward
from functx.ops.operands import canonical_shape, literal
from functx.ops.parameters import as_float, as_int
from functx.ops.probability_losses import BinaryCrossEntropyBackward
from functx.ops.selection import select
from functx.ops.shaping import full, reshape
from functx.ops.softmax import log_softmax_backward, softmax_backward

__all__ = [
    "binary_cross_entropy_backward",
    "embedding_backward",
    "huber_loss_backward",
    "l1_loss_backward",
    "log_sigmoid_backward",
    "log_sigmoid_forward",
    "log_softmax_backward",
    "mse_loss_backward",
    "nll_loss2d_backward",
    "nll_loss_backward",
    "smooth_l1_loss_backward",
    "softmax_backward",
]

REDUCTIONS = ("none", "mean", "sum")


def nll_loss_backward(
    grad_output: Any,
    input: Any,
    target: Any,
    weight: Any,
    reduction: Any,
    ignore_index: int,
    total_weight: Any,
) -> Any:
    """The cotangent of `input` in `nll_loss(input, target, ...)`, given that of the loss.

    `input` has the shape (C,) or (N, C). `reduction` is "none", "mean" or "sum", or 0, 1 or 2.
    A mean is over `total_weight`; where that is 0, and in rows of `ignore_index`, the result
    is 0. Raises ShapeError with the shapes that do not fit, and IndexingError for a class that
    there is not, where `target` is known.
    """
    name, x, classes = "nll_loss_backward", aval_of(input), aval_of(target)
    if x.ndim not in (1, 2):
        raise ShapeError(f"{name}: input must have 1 or 2 dimensions; got {x!r}")
    if classes.ndim > 1:
        raise ShapeError(f"{name}: target must have at most 1 dimension; got {classes!r}")
    return _nll_loss_backward(
        name, grad_output, input, target, weight, reduction, ignore_index, total_weight
    )


def nll_loss2d_backward(
    grad_output: Any,
    input: Any,
    target: Any,
    weight: Any,
    reduction: Any,
    ignore_index: int,
    total_weight: Any,
) -> Any:
    """As `nll_loss_backward`, for an `input` of shape (N, C, H, W) and a `target` (N, H, W)."""
    name, x, classes = "nll_loss2d_backward", aval_of(input), aval_of(target)
    if x.ndim != 4:
        raise ShapeError(f"{name}: input must have 4 dimensions; got {x!r}")
    if classes.ndim != 3:
        raise ShapeError(f"{name}: target must have 3 dimensions; got {classes!r}")
    return _nll_loss_backward(
        name, grad_output, input, target, weight, reduction, ignore_index, total_weight
    )


def mse_loss_backward(grad_output: Any, input: Any, target: Any, reduction: Any) -> Any:
    """The cotangent of `input` in `mse_loss(input, target, reduction)`, given that of the loss."""
    backward = MseLossBackward(_canonical_reduction("mse_loss_backward", reduction))
    return backward(_loss_cotangent(backward, grad_output), input, target)


def l1_loss_backward(grad_output: Any, input: Any, target: Any, reduction: Any) -> Any:
    """The cotangent of `input` in `l1_loss(input, target, reduction)`, given that of the loss."""
    backward = L1LossBackward(_canonical_reduction("l1_loss_backward", reduction))
    return backward(_loss_cotangent(backward, grad_output), input, target)


def smooth_l1_loss_backward(
    grad_output: Any, input: Any, target: Any, reduction: Any, beta: float
) -> Any:
    """The cotangent of `input` in a `smooth_l1_loss` with `beta`, given that of the loss."""
    name = "smooth_l1_loss_backward"
    backward = SmoothL1LossBackward(
        _canonical_reduction(name, reduction), beta=as_float(f"{name}: beta", beta)
    )
    return backward(_loss_cotangent(backward, grad_output), input, target)


def huber_loss_backward(
    grad_output: Any, input: Any, target: Any, reduction: Any, delta: float
) -> Any:
    """The cotangent of `input` in a `huber_loss` with `delta`, given that of the loss."""
    name = "huber_loss_backward"
    backward = HuberLossBackward(
        _canonical_reduction(name, reduction), delta=as_float(f"{name}: delta", delta)
    )
    return backward(_loss_cotangent(backward, grad_output), input, target)


def binary_cross_entropy_backward(
    grad_output: Any, input: Any, target: Any, weight: Any = None, reduction: Any = "mean"
) -> Any:
    """The cotangent of `input` in a `binary_cross_entropy`, given that of the loss."""
    name = "binary_cross_entropy_backward"
    backward = BinaryCrossEntropyBackward(_canonical_reduction(name, reduction))
    weights = [] if weight is None else [weight]
    return backward(_loss_cotangent(backward, grad_output), input, target, *weights)


def log_sigmoid_forward(x: Any, platform: str | None = None) -> tuple[Any, Any]:
    """log(1 / (1 + exp(-x))), and exp(-|x|), which other platforms than "cpu" leave empty.

    `platform` is JAX's default one if none is given.
    """
    if (jax.default_backend() if platform is None else platform) == "cpu":
        return log_sigmoid(x), exp(neg(abs(x)))
    return log_sigmoid(x), full((0,), literal(0, aval_of(x).dtype))


def log_sigmoid_backward(grad_output: Any, x: Any, buffer: Any = None) -> Any:
    """The cotangent of `x` in `log_sigmoid(x)`, given that of the value.

    The second output of `log_sigmoid_forward` is taken for form's sake: the derivative is
    1 / (1 + exp(x)), which is right in all places and its own derivatives too.
    """
    return mul(grad_output, logistic(neg(x)))


def embedding_backward(
    grad_output: Any, indices: Any, num_weights: int, padding_idx: int | None = None
) -> Any:
    """The cotangent of the table of `num_weights` rows in an `embedding`, given that of the rows.

    None goes to the row `padding_idx`, nor to any if that is negative.
    """
    name = "embedding_backward"
    (rows,) = canonical_shape(as_int(f"{name}: num_weights", num_weights), f"{name}: num_weights")
    padding = None if padding_idx is None else as_int(f"{name}: padding_idx", padding_idx)
    padding = None if padding is not None and not 0 <= padding < rows else padding
    out = EmbeddingBackward(rows, padding)(grad_output, indices)
    check_index_range(name, "indices", indices, rows)
    return out


def _nll_loss_backward(
    name: str,
    ct: Any,
    input: Any,
    target: Any,
    weight: Any,
    reduction: Any,
    ignore_index: int,
    total_weight: Any,
) -> Any:
    x, classes, reduction = aval_of(input), aval_of(target), _canonical_reduction(name, reduction)
    axis = min(x.ndim - 1, 1)
    rows = (*x.shape[:axis], *x.shape[axis + 1 :])
    if classes.shape != rows:
        raise ShapeError(
            f"{name}: target must have the shape of input without axis {axis}, {rows}; got "
            f"{classes!r} for {x!r}"
        )
    if weight is not None and aval_of(weight).shape != (x.shape[axis],):
        raise ShapeError(
            f"{name}: weight must have one number for each of the {x.shape[axis]} classes; got "
            f"{aval_of(weight)!r}"
        )
    if aval_of(total_weight).size != 1:
        raise ShapeError(f"{name}: total_weight must be one number; got {aval_of(total_weight)!r}")
    wide = accumulation_dtype(x.dtype)
    ct, *weights = [
        convert_element_type(y, wide) for y in ([ct] if weight is None else [ct, weight])
    ]
    if reduction == "none":
        if aval_of(ct).shape != rows:
            raise ShapeError(
                f"{name}: grad_output must have the shape of target, {rows}, with the reduction "
                f"'none'; got {aval_of(ct)!r}"
            )
    else:
        ct = _as_scalar(name, ct, reduction)
    if reduction == "mean":
        total = reshape(convert_element_type(total_weight, wide), ())
        nothing = eq(total, 0.0)
        ct = select(nothing, 0.0, div(ct, select(nothing, 1.0, total)))
        reduction = "sum"
    ignored = as_int(f"{name}: ignore_index", ignore_index)
    backward = NllLossBackward(reduction, axis=axis, ignore_index=ignored, classes=x.shape[axis])
    out = convert_element_type(backward(ct, target, *weights), x.dtype)
    check_index_range(name, "classes", target, x.shape[axis], ignored)
    return out


def _loss_cotangent(backward: Any, ct: Any) -> Any:
    """The cotangent of a loss, one number unless the loss is not reduced."""
    return ct if backward.reduction == "none" else _as_scalar(backward.name, ct, backward.reduction)


def _as_scalar(name: str, ct: Any, reduction: str) -> Any:
    if aval_of(ct).size != 1:
        raise ShapeError(
            f"{name}: grad_output must be one number with the reduction {reduction!r}; got "
            f"{aval_of(ct)!r}"
        )
    return reshape(ct, ())


def _canonical_reduction(name: str, reduction: Any) -> str:
    """A reduction by its name, or by PyTorch's number for it."""
    if isinstance(reduction, str) and reduction in REDUCTIONS:
        return reduction
    if type(reduction) is int and 0 <= reduction < len(REDUCTIONS):
        return REDUCTIONS[reduction]
    raise ArgumentError(
        f"{name}: reduction must be 'none', 'mean' or 'sum', or 0, 1 or 2; got {reduction!r}"
    )
