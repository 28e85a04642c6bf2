"""The backward of layer and batch norm as PyTorch signs them, with saved statistics.

What was saved does not vary, so that a derivative taken through it would be wrong without a
word. Therefore the statistics are computed again from `x`; of what was saved only the eps is
used, which is implied in it and held constant.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from functx import ops
from functx.core.errors import ArgumentError, ShapeError
from functx.core.tracing import aval_of
from functx.core.types import Shape, accumulation_dtype
from functx.ops.activations import log_sigmoid, log_softmax_backward, softmax_backward
from functx.ops.batch_norm import BatchNormBackward, BatchNormInferenceBackward
from functx.ops.classification_losses import NllLossBackward
from functx.ops.losses import (
    BinaryCrossEntropyBackward,
    HuberLossBackward,
    L1LossBackward,
    MseLossBackward,
    SmoothL1LossBackward,
)
from functx.ops.normalizations import LayerNormBackward
from functx.ops.operands import (
    as_bool,
    as_float,
    as_int,
    canonical_shape,
    check_index_range,
    literal,
)
from functx.ops.statistics import recompute_mean_var

__all__ = [
    "batch_norm_backward",
    "binary_cross_entropy_backward",
    "cudnn_batch_norm_backward",
    "embedding_backward",
    "huber_loss_backward",
    "l1_loss_backward",
    "log_sigmoid_backward",
    "log_sigmoid_forward",
    "log_softmax_backward",
    "miopen_batch_norm_backward",
    "mse_loss_backward",
    "native_batch_norm_backward",
    "native_layer_norm_backward",
    "nll_loss2d_backward",
    "nll_loss_backward",
    "recompute_mean_var",
    "smooth_l1_loss_backward",
    "softmax_backward",
]


def native_layer_norm_backward(
    grad_out: Any,
    input: Any,
    normalized_shape: Sequence[int],
    mean: Any,
    rstd: Any,
    weight: Any,
    bias: Any,
    output_mask: Sequence[bool],
) -> tuple[Any, Any, Any]:
    """The cotangents of input, weight and bias of a layer norm, given that of its output.

    `mean` and `rstd` are those of the forward computation, with unit dimensions for those of
    `normalized_shape`. Where `output_mask` is false the result is zeros; for a weight or a
    bias that is None it is a scalar zero.

    Raises ShapeError where the shapes do not fit.
    """
    name = "native_layer_norm_backward"
    mask = _canonical_output_mask(name, output_mask)
    inner, aval = canonical_shape(normalized_shape, f"{name}: normalized_shape"), aval_of(input)
    outer = aval.shape[: aval.ndim - len(inner)]
    if not inner or aval.shape[len(outer) :] != inner:
        raise ShapeError(
            f"{name}: normalized_shape must be the last dimensions of input, at least one; got "
            f"{inner} for {aval!r}"
        )
    kept = (*outer, *[1] * len(inner))
    _check_shapes(name, kept, mean=mean, rstd=rstd)
    _check_shapes(name, inner, weight=weight, bias=bias)
    if 0 in aval.shape:
        return _zeros(aval.shape, input), _zeros(inner, input), _zeros(inner, input)
    wanted = mask[0], mask[1] and weight is not None, mask[2] and bias is not None
    pull = LayerNormBackward(
        eps=None, weighted=weight is not None, normalized_ndim=len(inner), output_mask=wanted
    )
    found = _cotangents_by_mask(pull, wanted, grad_out, input, ops.reshape(rstd, outer), weight)
    return (
        _zeros(aval.shape, input) if found[0] is None else found[0],
        _affine_cotangent(found[1], weight, inner, input),
        _affine_cotangent(found[2], bias, inner, input),
    )


def native_batch_norm_backward(
    grad_out: Any,
    input: Any,
    weight: Any,
    running_mean: Any,
    running_var: Any,
    save_mean: Any,
    save_invstd: Any,
    train: bool,
    eps: float,
    output_mask: Sequence[bool],
) -> tuple[Any, Any, Any]:
    """The cotangents of input, weight and bias of a batch norm, given that of its output.

    The channels lie along axis 1. If `train`, `save_mean` and `save_invstd` are those of the
    forward computation; otherwise it was normalized by the running statistics. The first
    result is computed whatever `output_mask` says; where that is false the others are zeros,
    the second a scalar zero for a weight that is None.

    Raises ShapeError where the shapes do not fit, ArgumentError where statistics are missing.
    """
    name = "native_batch_norm_backward"
    mask, aval = _canonical_output_mask(name, output_mask), aval_of(input)
    if aval.ndim < 2:
        raise ShapeError(f"{name}: input must have axes for examples and channels; got {aval!r}")
    channels = aval.shape[1:2]
    _check_shapes(name, channels, weight=weight, running_mean=running_mean)
    _check_shapes(name, channels, running_var=running_var)
    _check_shapes(name, channels, save_mean=save_mean, save_invstd=save_invstd)
    train = as_bool(f"{name}: train", train)
    statistics = (save_mean, save_invstd) if train else (running_mean, running_var)
    if any(x is None for x in statistics):
        needed = "save_mean and save_invstd" if train else "running_mean and running_var"
        raise ArgumentError(f"{name}: {needed} must be arrays if train={train}; got None")
    axes, weighted = (0, *range(2, aval.ndim)), weight is not None
    of_weight, of_bias = mask[1:]
    if train:
        wanted = True, of_weight, of_bias
        pull: Any = BatchNormBackward(eps=None, weighted=weighted, axes=axes, output_mask=wanted)
        found = _cotangents_by_mask(pull, wanted, grad_out, input, save_invstd, weight)
    else:
        flags = True, False, False, of_weight, of_bias
        pull = BatchNormInferenceBackward(
            eps=as_float(f"{name}: eps", eps), weighted=weighted, axes=axes, output_mask=flags
        )
        found = _cotangents_by_mask(pull, flags, grad_out, input, running_mean, running_var, weight)
        found = [found[0], *found[3:]]
    like = input if weight is None else weight
    absent = () if weight is None else channels
    return (
        found[0],
        _zeros(absent, like) if found[1] is None else _cast_like(found[1], like),
        _zeros(channels, like) if found[2] is None else _cast_like(found[2], like),
    )


def batch_norm_backward(
    grad_out: Any,
    input: Any,
    weight: Any,
    running_mean: Any,
    running_var: Any,
    save_mean: Any,
    save_var: Any,
    update: bool,
    eps: float,
    output_mask: Sequence[bool],
    reserve: Any,
) -> tuple[Any, Any, Any]:
    """`native_batch_norm_backward`, with `update` for `train`; `reserve` is not used.

    `save_var` is what that calls `save_invstd`, 1 / sqrt(variance + eps).
    """
    return native_batch_norm_backward(
        grad_out,
        input,
        weight,
        running_mean,
        running_var,
        save_mean,
        save_var,
        update,
        eps,
        output_mask,
    )


def cudnn_batch_norm_backward(
    input: Any,
    grad_output: Any,
    weight: Any,
    running_mean: Any,
    running_var: Any,
    save_mean: Any,
    save_var: Any,
    epsilon: float,
    reserve: Any = None,
) -> tuple[Any, Any, Any]:
    """`native_batch_norm_backward` in training, of everything; `reserve` is not used.

    `save_var` is what that calls `save_invstd`, 1 / sqrt(variance + eps).
    """
    return native_batch_norm_backward(
        grad_output,
        input,
        weight,
        running_mean,
        running_var,
        save_mean,
        save_var,
        True,
        epsilon,
        (True, True, True),
    )


def miopen_batch_norm_backward(
    input: Any,
    grad_output: Any,
    weight: Any,
    running_mean: Any,
    running_var: Any,
    save_mean: Any,
    save_var: Any,
    epsilon: float,
) -> tuple[Any, Any, Any]:
    """`cudnn_batch_norm_backward` without its last argument."""
    return cudnn_batch_norm_backward(
        input, grad_output, weight, running_mean, running_var, save_mean, save_var, epsilon
    )


def _canonical_output_mask(name: str, mask: Any) -> tuple[bool, ...]:
    try:
        given = tuple(mask)
    except TypeError:
        given = ()
    if len(given) != 3:
        raise ArgumentError(
            f"{name}: output_mask must have one flag for each of input, weight and bias; got {mask}"
        )
    return tuple([as_bool(f"{name}: output_mask", on) for on in given])


def _check_shapes(name: str, shape: Shape, **arrays: Any) -> None:
    for what, x in arrays.items():
        if x is not None and aval_of(x).shape != shape:
            raise ShapeError(f"{name}: {what} must have the shape {shape}; got {aval_of(x)!r}")


def _cotangents_by_mask(pull: Any, wanted: Sequence[bool], *operands: Any) -> list[Any]:
    """One entry for each of `wanted`: the cotangent, or None where it is not wanted."""
    if not any(wanted):
        return [None] * len(wanted)
    rest = iter(pull(*[x for x in operands if x is not None]))
    return [next(rest) if on else None for on in wanted]


def _affine_cotangent(found: Any, x: Any, shape: Shape, like: Any) -> Any:
    if x is None:
        return _zeros((), like)
    return _zeros(shape, x) if found is None else _cast_like(found, x)


def _cast_like(found: Any, like: Any) -> Any:
    return ops.convert_element_type(found, aval_of(like).dtype)


def _zeros(shape: Shape, like: Any) -> Any:
    return ops.full(shape, literal(0, aval_of(like).dtype))


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
        return log_sigmoid(x), ops.exp(ops.neg(ops.abs(x)))
    return log_sigmoid(x), ops.full((0,), literal(0, aval_of(x).dtype))


def log_sigmoid_backward(grad_output: Any, x: Any, buffer: Any = None) -> Any:
    """The cotangent of `x` in `log_sigmoid(x)`, given that of the value.

    The second output of `log_sigmoid_forward` is taken for form's sake: the derivative is
    1 / (1 + exp(x)), which is right in all places and its own derivatives too.
    """
    return ops.mul(grad_output, ops.logistic(ops.neg(x)))


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
    out = ops.EmbeddingBackward(rows, padding)(grad_output, indices)
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
        ops.convert_element_type(y, wide) for y in ([ct] if weight is None else [ct, weight])
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
        total = ops.reshape(ops.convert_element_type(total_weight, wide), ())
        nothing = ops.eq(total, 0.0)
        ct = ops.select(nothing, 0.0, ops.div(ct, ops.select(nothing, 1.0, total)))
        reduction = "sum"
    ignored = as_int(f"{name}: ignore_index", ignore_index)
    backward = NllLossBackward(reduction, axis=axis, ignore_index=ignored, classes=x.shape[axis])
    out = ops.convert_element_type(backward(ct, target, *weights), x.dtype)
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
    return ops.reshape(ct, ())


def _canonical_reduction(name: str, reduction: Any) -> str:
    """A reduction by its name, or by PyTorch's number for it."""
    if isinstance(reduction, str) and reduction in REDUCTIONS:
        return reduction
    if type(reduction) is int and 0 <= reduction < len(REDUCTIONS):
        return REDUCTIONS[reduction]
    raise ArgumentError(
        f"{name}: reduction must be 'none', 'mean' or 'sum', or 0, 1 or 2; got {reduction!r}"
    )
