"""The backward of layer and batch norm as PyTorch signs them, with saved statistics.

What was saved does not vary, so that a derivative taken through it would be wrong without a
word. Therefore the statistics are computed again from `x`; of what was saved only the eps is
used, which is implied in it and held constant.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from functx.core.avals import Shape
from functx.core.errors import ArgumentError, ShapeError
from functx.core.tracing import aval_of
from functx.ops.batch_norm import BatchNormBackward, BatchNormInferenceBackward
from functx.ops.conversion import convert_element_type
from functx.ops.layer_norms import LayerNormBackward
from functx.ops.operands import canonical_shape, literal
from functx.ops.parameters import as_bool, as_float
from functx.ops.shaping import full, reshape
from functx.ops.statistics import recompute_mean_var

__all__ = [
    "batch_norm_backward",
    "cudnn_batch_norm_backward",
    "miopen_batch_norm_backward",
    "native_batch_norm_backward",
    "native_layer_norm_backward",
    "recompute_mean_var",
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
    found = _cotangents_by_mask(pull, wanted, grad_out, input, reshape(rstd, outer), weight)
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
    return convert_element_type(found, aval_of(like).dtype)


def _zeros(shape: Shape, like: Any) -> Any:
    return full(shape, literal(0, aval_of(like).dtype))
