"""PyTorch's backward functions by the names, signatures and argument orders of ATen.

The backward functions of layer and batch norm take saved statistics, which do not vary: a derivative
through them would be wrong without an error. Therefore they compute the statistics again from the input and
take only eps from the saved ones, which is implied in them and held constant.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from functx import ops
from functx.core.errors import ArgumentError, ShapeError
from functx.core.primitive import Primitive
from functx.core.tracer import aval_of
from functx.core.types import DType, Shape, accumulation_dtype, canonical_dtype
from functx.core.typing import ArrayLike, Axes, Cotangent, DTypeLike, Flags, Value
from functx.ops.activations import log_sigmoid
from functx.ops.batch_norm import BatchNormBackward, BatchNormInferenceBackward
from functx.ops.classification_losses import NllLossBackward
from functx.ops.losses import (
    REDUCTIONS,
    BinaryCrossEntropyBackward,
    HuberLossBackward,
    L1LossBackward,
    MseLossBackward,
    PointwiseLossBackward,
    SmoothL1LossBackward,
)
from functx.ops.normalizations import LayerNormBackward
from functx.ops.operands import (
    as_bool,
    as_float,
    as_int,
    canonical_axes,
    canonical_shape,
    check_index_range,
    literal,
    tuple_delete,
)
from functx.ops.softmaxes import LogSoftmaxBackward, SoftmaxBackward
from functx.ops.statistics import standardize, working_dtype

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
    grad_out: ArrayLike,
    input: ArrayLike,
    normalized_shape: Sequence[int],
    mean: ArrayLike,
    rstd: ArrayLike,
    weight: ArrayLike | None,
    bias: ArrayLike | None,
    output_mask: Flags,
) -> tuple[Value, Value, Value]:
    """The cotangents of the input, the weight and the bias of a layer norm, given that of its output.

    `mean` and `rstd` are the saved statistics, with unit dimensions in place of `normalized_shape`.
    A result whose entry of `output_mask` is false is zeros; for a weight or a bias that is None it
    is a scalar zero.

    Raises ShapeError for shapes that do not fit.
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
    _check_shapes(name, (*outer, *[1] * len(inner)), mean=mean, rstd=rstd)
    _check_shapes(name, inner, weight=weight, bias=bias)
    if 0 in aval.shape:
        return _zeros(aval.shape, input), _zeros(inner, input), _zeros(inner, input)
    mask = mask[0], mask[1] and weight is not None, mask[2] and bias is not None
    backward = LayerNormBackward(
        eps=None, weighted=weight is not None, normalized_ndim=len(inner), output_mask=mask
    )
    input_ct, weight_ct, bias_ct = _cotangents_by_mask(
        backward, mask, grad_out, input, ops.reshape(rstd, outer), weight
    )
    return (
        _zeros(aval.shape, input) if input_ct is None else input_ct,
        _affine_cotangent(weight_ct, weight, inner, input),
        _affine_cotangent(bias_ct, bias, inner, input),
    )


def native_batch_norm_backward(
    grad_out: ArrayLike,
    input: ArrayLike,
    weight: ArrayLike | None,
    running_mean: ArrayLike | None,
    running_var: ArrayLike | None,
    save_mean: ArrayLike | None,
    save_invstd: ArrayLike | None,
    train: bool,
    eps: float,
    output_mask: Flags,
) -> tuple[Value, Value, Value]:
    """The cotangents of the input, the weight and the bias of a batch norm, given that of its output.

    The channels are axis 1. If `train`, the batch norm used the statistics of the batch, saved as
    `save_mean` and `save_invstd` = 1 / sqrt(variance + eps); otherwise it used the running ones. The
    cotangent of the input is always computed. The others are zeros where `output_mask` is false, and
    that of a weight that is None is a scalar zero.

    Raises ShapeError for shapes that do not fit, ArgumentError for missing statistics.
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
    _, needs_weight, needs_bias = mask
    if train:
        mask = True, needs_weight, needs_bias
        backward = BatchNormBackward(eps=None, weighted=weighted, axes=axes, output_mask=mask)
        cts = _cotangents_by_mask(backward, mask, grad_out, input, save_invstd, weight)
    else:
        inference_mask = True, False, False, needs_weight, needs_bias
        inference = BatchNormInferenceBackward(
            eps=as_float(f"{name}: eps", eps),
            weighted=weighted,
            axes=axes,
            output_mask=inference_mask,
        )
        cts = _cotangents_by_mask(
            inference, inference_mask, grad_out, input, running_mean, running_var, weight
        )
    input_ct, weight_ct, bias_ct = cts[0], *cts[-2:]
    like = input if weight is None else weight
    weight_shape = () if weight is None else channels
    return (
        input_ct,
        _zeros(weight_shape, like) if weight_ct is None else _cast_like(weight_ct, like),
        _zeros(channels, like) if bias_ct is None else _cast_like(bias_ct, like),
    )


def batch_norm_backward(
    grad_out: ArrayLike,
    input: ArrayLike,
    weight: ArrayLike | None,
    running_mean: ArrayLike | None,
    running_var: ArrayLike | None,
    save_mean: ArrayLike | None,
    save_var: ArrayLike | None,
    update: bool,
    eps: float,
    output_mask: Flags,
    reserve: ArrayLike | None,
) -> tuple[Value, Value, Value]:
    """`native_batch_norm_backward` with `update` as `train` and `save_var` as `save_invstd`.

    `save_var` holds 1 / sqrt(variance + eps). `reserve` is not used.
    """
    return native_batch_norm_backward(
        grad_out, input, weight, running_mean, running_var, save_mean, save_var, update, eps,
        output_mask,
    )  # fmt: skip


def cudnn_batch_norm_backward(
    input: ArrayLike,
    grad_output: ArrayLike,
    weight: ArrayLike | None,
    running_mean: ArrayLike | None,
    running_var: ArrayLike | None,
    save_mean: ArrayLike | None,
    save_var: ArrayLike | None,
    epsilon: float,
    reserve: ArrayLike | None = None,
) -> tuple[Value, Value, Value]:
    """`native_batch_norm_backward` in training, with all three cotangents.

    `save_var` holds 1 / sqrt(variance + eps). `reserve` is not used.
    """
    return native_batch_norm_backward(
        grad_output, input, weight, running_mean, running_var, save_mean, save_var, True, epsilon,
        (True, True, True),
    )  # fmt: skip


def miopen_batch_norm_backward(
    input: ArrayLike,
    grad_output: ArrayLike,
    weight: ArrayLike | None,
    running_mean: ArrayLike | None,
    running_var: ArrayLike | None,
    save_mean: ArrayLike | None,
    save_var: ArrayLike | None,
    epsilon: float,
) -> tuple[Value, Value, Value]:
    """`cudnn_batch_norm_backward` without `reserve`."""
    return cudnn_batch_norm_backward(
        input, grad_output, weight, running_mean, running_var, save_mean, save_var, epsilon
    )


def recompute_mean_var(
    x: ArrayLike, rstd: ArrayLike, dims: Axes, keepdim: bool = True
) -> tuple[Value, Value]:
    """The mean of `x` over `dims` and 1 / sqrt(variance + eps), computed from `x` again.

    `rstd` is the saved 1 / sqrt(variance + eps). Both results vary with `x`; the eps is the one that
    `rstd` implies, held constant. `rstd` may have unit dimensions at `dims` or lack them; the results
    have them if `keepdim`. The results have the dtype of `rstd`.
    """
    aval, dtype = aval_of(x), aval_of(rstd).dtype
    axes = canonical_axes(dims, aval.ndim)
    work = working_dtype(aval, aval_of(rstd))
    saved = ops.reshape(ops.convert_element_type(rstd, work), tuple_delete(aval.shape, axes))
    standardized = standardize(ops.convert_element_type(x, work), axes, None, rstd=saved)
    shape = tuple([1 if d in axes else n for d, n in enumerate(aval.shape)])
    mean, new_rstd = [
        ops.convert_element_type(ops.reshape(statistic, shape) if keepdim else statistic, dtype)  # type: ignore[arg-type]
        for statistic in (standardized.mean, standardized.rstd)
    ]
    return mean, new_rstd


def softmax_backward(
    ct: ArrayLike, out: ArrayLike, axes: Axes = -1, dtype: DTypeLike = None
) -> Value:
    """The cotangent of `x` in `out = softmax(x, axes)`, given the cotangent `ct` of `out`.

    The result has the dtype `dtype`, by default that of `ct`. Half floats are computed in single
    precision. Raises ShapeError and DTypeError for operands of different types.
    """
    return SoftmaxBackward(canonical_axes(axes, aval_of(out).ndim), _dtype_or_none(dtype))(ct, out)


def log_softmax_backward(
    ct: ArrayLike, out: ArrayLike, axes: Axes = -1, dtype: DTypeLike = None
) -> Value:
    """The cotangent of `x` in `out = log_softmax(x, axes)`, given the cotangent `ct` of `out`.

    The result has the dtype `dtype`, by default that of `ct`. Half floats are computed in single
    precision. Raises ShapeError and DTypeError for operands of different types.
    """
    return LogSoftmaxBackward(canonical_axes(axes, aval_of(out).ndim), _dtype_or_none(dtype))(
        ct, out
    )


def nll_loss_backward(
    grad_output: ArrayLike,
    input: ArrayLike,
    target: ArrayLike,
    weight: ArrayLike | None,
    reduction: str | int,
    ignore_index: int,
    total_weight: ArrayLike,
) -> Value:
    """The cotangent of `input` in `nll_loss(input, target, ...)`, given that of the loss.

    `input` has the shape (C,) or (N, C). `reduction` is "none", "mean" or "sum", or 0, 1 or 2.
    A mean divides by `total_weight`. The result is 0 if that is 0, and in rows whose class is
    `ignore_index`. Raises ShapeError for shapes that do not fit, and IndexingError for a known class
    out of range.
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
    grad_output: ArrayLike,
    input: ArrayLike,
    target: ArrayLike,
    weight: ArrayLike | None,
    reduction: str | int,
    ignore_index: int,
    total_weight: ArrayLike,
) -> Value:
    """`nll_loss_backward` for an `input` of shape (N, C, H, W) and a `target` of shape (N, H, W)."""
    name, x, classes = "nll_loss2d_backward", aval_of(input), aval_of(target)
    if x.ndim != 4:
        raise ShapeError(f"{name}: input must have 4 dimensions; got {x!r}")
    if classes.ndim != 3:
        raise ShapeError(f"{name}: target must have 3 dimensions; got {classes!r}")
    return _nll_loss_backward(
        name, grad_output, input, target, weight, reduction, ignore_index, total_weight
    )


def mse_loss_backward(
    grad_output: ArrayLike, input: ArrayLike, target: ArrayLike, reduction: str | int
) -> Value:
    """The cotangent of `input` in `mse_loss(input, target, reduction)`, given that of the loss."""
    return _loss_backward(MseLossBackward, reduction, grad_output, input, target)


def l1_loss_backward(
    grad_output: ArrayLike, input: ArrayLike, target: ArrayLike, reduction: str | int
) -> Value:
    """The cotangent of `input` in `l1_loss(input, target, reduction)`, given that of the loss."""
    return _loss_backward(L1LossBackward, reduction, grad_output, input, target)


def smooth_l1_loss_backward(
    grad_output: ArrayLike, input: ArrayLike, target: ArrayLike, reduction: str | int, beta: float
) -> Value:
    """The cotangent of `input` in a smooth L1 loss with `beta`, given that of the loss."""
    return _loss_backward(SmoothL1LossBackward, reduction, grad_output, input, target, beta=beta)


def huber_loss_backward(
    grad_output: ArrayLike, input: ArrayLike, target: ArrayLike, reduction: str | int, delta: float
) -> Value:
    """The cotangent of `input` in a Huber loss with `delta`, given that of the loss."""
    return _loss_backward(HuberLossBackward, reduction, grad_output, input, target, delta=delta)


def binary_cross_entropy_backward(
    grad_output: ArrayLike,
    input: ArrayLike,
    target: ArrayLike,
    weight: ArrayLike | None = None,
    reduction: str | int = "mean",
) -> Value:
    """The cotangent of `input` in a binary cross entropy, given that of the loss."""
    operands = [input, target] if weight is None else [input, target, weight]
    return _loss_backward(BinaryCrossEntropyBackward, reduction, grad_output, *operands)


def log_sigmoid_forward(x: ArrayLike, platform: str | None = None) -> tuple[Value, Value]:
    """log(1 / (1 + exp(-x))), and a buffer: exp(-|x|) on the platform "cpu", empty on others.

    `platform` is by default JAX's default backend.
    """
    if (jax.default_backend() if platform is None else platform) == "cpu":
        return log_sigmoid(x), ops.exp(ops.neg(ops.abs(x)))
    return log_sigmoid(x), ops.full((0,), literal(0, aval_of(x).dtype))


def log_sigmoid_backward(
    grad_output: ArrayLike, x: ArrayLike, buffer: ArrayLike | None = None
) -> Value:
    """The cotangent of `x` in `log_sigmoid(x)`, given that of the output.

    `buffer`, the second output of `log_sigmoid_forward`, is not used: the derivative is computed
    from `x` as 1 / (1 + exp(x)), so that it has the right derivatives itself.
    """
    return ops.mul(grad_output, ops.logistic(ops.neg(x)))


def embedding_backward(
    grad_output: ArrayLike, indices: ArrayLike, num_weights: int, padding_idx: int | None = None
) -> Value:
    """The cotangent of an embedding table of `num_weights` rows, given that of the rows read from it.

    The row `padding_idx` gets zeros; a negative `padding_idx` counts as None. Raises IndexingError
    for a known index out of range.
    """
    name = "embedding_backward"
    (rows,) = canonical_shape(as_int(f"{name}: num_weights", num_weights), f"{name}: num_weights")
    padding = None if padding_idx is None else as_int(f"{name}: padding_idx", padding_idx)
    if padding is not None and not 0 <= padding < rows:
        padding = None
    out = ops.EmbeddingBackward(rows, padding)(grad_output, indices)
    check_index_range(name, "indices", indices, rows)
    return out


def _nll_loss_backward(
    name: str,
    ct: ArrayLike,
    input: ArrayLike,
    target: ArrayLike,
    weight: ArrayLike | None,
    reduction: str | int,
    ignore_index: int,
    total_weight: ArrayLike,
) -> Value:
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
    dtype = accumulation_dtype(x.dtype)
    ct, *weights = [
        ops.convert_element_type(y, dtype) for y in ([ct] if weight is None else [ct, weight])
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
        total = ops.reshape(ops.convert_element_type(total_weight, dtype), ())
        is_zero = ops.eq(total, 0.0)
        ct = ops.select(is_zero, 0.0, ops.div(ct, ops.select(is_zero, 1.0, total)))
        reduction = "sum"
    ignored = as_int(f"{name}: ignore_index", ignore_index)
    backward = NllLossBackward(reduction, axis=axis, ignore_index=ignored, classes=x.shape[axis])
    out = ops.convert_element_type(backward(ct, target, *weights), x.dtype)
    check_index_range(name, "classes", target, x.shape[axis], ignored)
    return out


def _loss_backward(
    kind: type[PointwiseLossBackward],
    reduction: str | int,
    ct: ArrayLike,
    *operands: ArrayLike,
    **parameters: float,
) -> Value:
    """The result of the operation `kind` for `ct`, a scalar unless the reduction is "none"."""
    name, reduction = kind.name, _canonical_reduction(kind.name, reduction)
    numbers: dict[str, Any] = {key: as_float(f"{name}: {key}", x) for key, x in parameters.items()}
    ct = ct if reduction == "none" else _as_scalar(name, ct, reduction)
    return kind(reduction, **numbers)(ct, *operands)


def _as_scalar(name: str, ct: ArrayLike, reduction: str) -> Value:
    if aval_of(ct).size != 1:
        raise ShapeError(
            f"{name}: grad_output must be one number with the reduction {reduction!r}; got "
            f"{aval_of(ct)!r}"
        )
    return ops.reshape(ct, ())


def _canonical_reduction(name: str, reduction: str | int) -> str:
    """The name of `reduction`, which is that name or PyTorch's number for it."""
    if isinstance(reduction, str) and reduction in REDUCTIONS:
        return reduction
    if type(reduction) is int and 0 <= reduction < len(REDUCTIONS):
        return REDUCTIONS[reduction]
    raise ArgumentError(
        f"{name}: reduction must be 'none', 'mean' or 'sum', or 0, 1 or 2; got {reduction!r}"
    )


def _dtype_or_none(dtype: DTypeLike) -> DType | None:
    """The canonical form of `dtype`; None stays None."""
    return None if dtype is None else canonical_dtype(dtype)


def _canonical_output_mask(name: str, mask: Flags) -> tuple[bool, bool, bool]:
    try:
        flags = tuple(mask)
    except TypeError:
        flags = ()
    if len(flags) != 3:
        raise ArgumentError(
            f"{name}: output_mask must have one flag for each of input, weight and bias; got {mask}"
        )
    of_input, of_weight, of_bias = [as_bool(f"{name}: output_mask", flag) for flag in flags]
    return of_input, of_weight, of_bias


def _check_shapes(name: str, shape: Shape, **arrays: ArrayLike | None) -> None:
    for argument, x in arrays.items():
        if x is not None and aval_of(x).shape != shape:
            raise ShapeError(f"{name}: {argument} must have the shape {shape}; got {aval_of(x)!r}")


def _cotangents_by_mask(backward: Primitive, mask: Flags, *operands: ArrayLike | None) -> list[Any]:
    """The outputs of `backward` at the true entries of `mask`, None at the others."""
    if not any(mask):
        return [None] * len(mask)
    cts = iter(backward(*[x for x in operands if x is not None]))
    return [next(cts) if on else None for on in mask]


def _affine_cotangent(ct: Cotangent, x: ArrayLike | None, shape: Shape, like: ArrayLike) -> Value:
    """The cotangent `ct` of the weight or bias `x`, zeros where one of them is None."""
    if x is None:
        return _zeros((), like)
    return _zeros(shape, x) if ct is None else _cast_like(ct, x)


def _cast_like(x: ArrayLike, like: ArrayLike) -> Value:
    return ops.convert_element_type(x, aval_of(like).dtype)


def _zeros(shape: Shape, like: ArrayLike) -> Value:
    return ops.full(shape, literal(0, aval_of(like).dtype))
