"""Normalizations with a weight and a bias, with PyTorch's names and order of arguments."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from numbers import Integral, Real
from typing import Any

import numpy as np
from ml_dtypes import finfo

from functx import ops
from functx.core.errors import ArgumentError, ShapeError, ValueRangeError, type_name
from functx.core.tracer import aval_of
from functx.core.types import Shape
from functx.core.typing import ArrayLike, Axes, ShapeLike, Value
from functx.numpy.promotion import promote_real
from functx.numpy.reductions import mean as mean_over
from functx.numpy.reductions import var as variance_over
from functx.ops.batch_norm import BatchNorm, BatchNormInference
from functx.ops.normalizations import GroupNorm, LayerNorm, RMSNorm
from functx.ops.operands import as_bool, canonical_shape
from functx.ops.statistics import mean_along

__all__ = ["batch_norm", "group_norm", "instance_norm", "layer_norm", "rms_norm", "var_mean"]


def layer_norm(
    x: ArrayLike,
    normalized_shape: int | Sequence[int],
    weight: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    eps: float = 1e-5,
) -> Value:
    """`x` with mean 0 and variance 1 over its last dimensions, times `weight`, plus `bias`.

    The last dimensions of `x` are `normalized_shape`, the shape of `weight` and `bias`. The
    variance is the mean square distance from the mean; `eps` is added to it. The result has
    the dtype of `x`; half precision is computed in single precision.

    Raises ShapeError if these shapes do not agree, DTypeError for complex numbers.

    >>> import numpy
    >>> from functx import nn
    >>> nn.layer_norm(numpy.array([1.0, 3.0]), 2, eps=0.0).tolist()
    [-1.0, 1.0]
    """
    x, affine, flags = _promote_norm_operands("layer_norm", x, weight, bias)
    rank = _normalized_rank("layer_norm", x, normalized_shape)
    return LayerNorm(eps=_eps("layer_norm", eps), normalized_ndim=rank, **flags)(x, *affine)


def rms_norm(
    x: ArrayLike,
    normalized_shape: int | Sequence[int],
    weight: ArrayLike | None = None,
    eps: float | None = None,
) -> Value:
    """`x` with mean square 1 over its last dimensions, times `weight`.

    The last dimensions of `x` are `normalized_shape`, the shape of `weight`. `eps` is added to
    the mean square; by default it is the machine epsilon of the dtype of `x`.

    Raises ShapeError if these shapes do not agree, DTypeError for complex numbers.

    >>> import numpy
    >>> from functx import nn
    >>> nn.rms_norm(numpy.array([2.0, -2.0]), 2, eps=0.0).tolist()
    [1.0, -1.0]
    """
    x, affine, flags = _promote_norm_operands("rms_norm", x, weight, None)
    rank = _normalized_rank("rms_norm", x, normalized_shape)
    eps = float(finfo(aval_of(x).dtype).eps) if eps is None else _eps("rms_norm", eps)
    return RMSNorm(eps=eps, normalized_ndim=rank, **flags)(x, *affine)


def group_norm(
    x: ArrayLike,
    num_groups: int,
    weight: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    eps: float = 1e-5,
) -> Value:
    """`x` with mean 0 and variance 1 over each group of channels and all later axes.

    The axes of `x` are those of examples, channels, and any others. `weight` and `bias`
    scale and shift each channel.

    Raises ShapeError if the number of channels is not a multiple of `num_groups`, or not that of
    `weight`.

    >>> import numpy
    >>> from functx import nn
    >>> nn.group_norm(numpy.array([[1.0, 3.0, 5.0, 9.0]]), 2, eps=0.0).tolist()
    [[-1.0, 1.0, -1.0, 1.0]]
    """
    x, affine, flags = _promote_norm_operands("group_norm", x, weight, bias)
    _check_rank("group_norm", x)
    groups = _count("group_norm: num_groups", num_groups)
    return GroupNorm(eps=_eps("group_norm", eps), groups=groups, **flags)(x, *affine)


def batch_norm(
    x: ArrayLike,
    running_mean: ArrayLike,
    running_var: ArrayLike,
    weight: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> tuple[Value, ArrayLike | None, ArrayLike | None]:
    """`x` with mean 0 and variance 1 in each channel, and the running mean and variance after.

    The axes of `x` are those of examples, channels, and any others. With `training`, each channel
    is normalized by its own statistics, and the running ones, which may both be None, move by
    the fraction `momentum` towards its mean and its unbiased variance. Otherwise it is normalized
    by the running ones, which do not change. `weight` and `bias` scale and shift each channel.

    Nothing is changed in place: `out, mean, var = batch_norm(x, mean, var, training=True)`.

    Raises ShapeError for a channel of one element in training, ArgumentError for missing running
    statistics.

    >>> import numpy
    >>> from functx import nn
    >>> x, zeros, ones = numpy.array([[1.0], [3.0]]), numpy.zeros(1), numpy.ones(1)
    >>> out, mean, var = nn.batch_norm(x, zeros, ones, training=True, momentum=0.5, eps=0.0)
    >>> out.tolist(), mean.tolist(), var.tolist()
    ([[-1.0], [1.0]], [1.0], [1.5])
    """
    x, affine, flags = _promote_norm_operands("batch_norm", x, weight, bias)
    training = as_bool("batch_norm: training", training)
    _check_rank("batch_norm", x)
    axes = (0, *range(2, aval_of(x).ndim))
    running = _check_running_stats("batch_norm", running_mean, running_var, required=not training)
    eps = _eps("batch_norm", eps)
    if not training:
        out = BatchNormInference(eps=eps, axes=axes, **flags)(x, *running, *affine)
        return out, running_mean, running_var
    _check_multiple_elements("batch_norm", x, axes)
    norm = BatchNorm(
        eps=eps,
        axes=axes,
        momentum=_number("batch_norm: momentum", momentum),
        tracked=bool(running),
        **flags,
    )
    out, *updated = norm(x, *affine, *running)
    return (out, *updated) if updated else (out, None, None)


def instance_norm(
    x: ArrayLike,
    running_mean: ArrayLike | None = None,
    running_var: ArrayLike | None = None,
    weight: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> tuple[Value, ArrayLike | None, ArrayLike | None]:
    """`x` with mean 0 and variance 1 in each channel of each example, and running statistics.

    The axes of `x` are those of examples, channels, and at least one other. With
    `use_input_stats`, the running mean and variance, which may both be None, move by the fraction
    `momentum` towards the average over the examples of their means and unbiased variances.
    Otherwise the result is that of `batch_norm` with the running statistics.

    Raises ShapeError for a channel of one element, ArgumentError for missing running statistics.

    >>> import numpy
    >>> from functx import nn
    >>> nn.instance_norm(numpy.array([[[1.0, 3.0], [5.0, 9.0]]]), eps=0.0)[0].tolist()
    [[[-1.0, 1.0], [-1.0, 1.0]]]
    """
    x, affine, flags = _promote_norm_operands("instance_norm", x, weight, bias)
    use_input_stats = as_bool("instance_norm: use_input_stats", use_input_stats)
    _check_rank("instance_norm", x, 3)
    running = _check_running_stats(
        "instance_norm", running_mean, running_var, required=not use_input_stats
    )
    if not use_input_stats:
        return batch_norm(x, running[0], running[1], weight, bias, eps=eps)
    aval, eps = aval_of(x), _eps("instance_norm", eps)
    axes = tuple(range(2, aval.ndim))
    _check_multiple_elements("instance_norm", x, axes)
    if not running:
        out = GroupNorm(eps=eps, groups=aval.shape[1], **flags)(x, *affine)
        return out, None, None
    momentum = _number("instance_norm: momentum", momentum)
    norm = BatchNorm(eps=eps, axes=axes, momentum=momentum, tracked=True, **flags)
    # Each channel of each example is one channel of a batch of one.
    tiled = [_tile_over_examples(value, aval.shape[:2]) for value in (*affine, *running)]
    out, *updated = norm(x, *tiled)
    if aval.shape[0]:
        running = [mean_along(value, (0,)) for value in updated]
    return (out, *running)


def var_mean(
    x: ArrayLike, axis: Axes = None, correction: float = 1, keepdims: bool = False
) -> tuple[Value, Value]:
    """The variance and the mean of `x` over `axis`, an int, several or None for all.

    The sum of squares is divided by the number of elements minus `correction`; the variance is
    nan if that is not positive.

    >>> import numpy
    >>> from functx import nn
    >>> [float(value) for value in nn.var_mean(numpy.array([1.0, 2.0, 3.0]))]
    [1.0, 2.0]
    """
    mean = mean_over(x, axis, keepdims=keepdims)
    return variance_over(x, axis, ddof=correction, keepdims=keepdims), mean


def _promote_norm_operands(
    name: str, x: ArrayLike, weight: ArrayLike | None, bias: ArrayLike | None
) -> tuple[Value, list[Value], dict[str, Any]]:
    """x, the weight and the bias that are not None, as floats, and flags of the primitive."""
    present = [value for value in (weight, bias) if value is not None]
    x, *affine = _promote_each(name, [x, *present])
    return x, affine, {"weighted": weight is not None, "biased": bias is not None}


def _promote_each(name: str, values: Sequence[Any]) -> list[Value]:
    """The values as floats, each in a dtype of its own; DTypeError for complex ones."""
    return [promote_real(name, value)[0] for value in values]


def _check_running_stats(
    name: str, mean: ArrayLike | None, variance: ArrayLike | None, required: bool
) -> list[Value]:
    """Both running statistics; none if both are None and not `required`."""
    present = [value for value in (mean, variance) if value is not None]
    if len(present) == 1 or (required and not present):
        missing = " and ".join(
            [label for label, value in (("mean", mean), ("var", variance)) if value is None]
        )
        raise ArgumentError(
            f"{name}: running_mean and running_var must both be arrays"
            f"{'' if required else ', or both None'}; got None for {missing}",
            fix="Pass both, or normalize by the statistics of x (training=True)."
            if name == "batch_norm"
            else "Pass both, or normalize by the statistics of x (use_input_stats=True).",
        )
    return _promote_each(name, present)


def _normalized_rank(name: str, x: Value, normalized_shape: ShapeLike) -> int:
    shape, aval = canonical_shape(normalized_shape, f"{name}: normalized_shape"), aval_of(x)
    if not shape or aval.shape[-len(shape) :] != shape:
        raise ShapeError(
            f"{name}: normalized_shape must be the last dimensions of x, at least one; got "
            f"{shape} for x: {aval!r}"
        )
    return len(shape)


def _check_rank(name: str, x: Value, least: int = 2) -> None:
    aval = aval_of(x)
    if aval.ndim < least:
        axes = "examples and channels" if least == 2 else "examples, channels and at least one more"
        raise ShapeError(
            f"{name}: x must have axes for {axes}; got {aval!r}",
            fix="Put the axes that are missing in with x[None] or reshape.",
        )


def _check_multiple_elements(name: str, x: Value, axes: Shape) -> None:
    aval = aval_of(x)
    if prod([aval.shape[d] for d in axes]) == 1:
        raise ShapeError(
            f"{name}: there must be more than one element to a channel to normalize it by its own "
            f"statistics; got {aval!r}"
        )


def _tile_over_examples(x: Value, shape: Shape) -> Value:
    return ops.broadcast_in_dim(x, shape, (1,))


def _count(label: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
        raise ValueRangeError(f"{label} must be a positive integer; got {value!r}")
    return int(value)


def _eps(name: str, eps: object) -> float:
    value = _number(f"{name}: eps", eps)
    if not value >= 0:
        raise ValueRangeError(f"{name}: eps must not be negative; got {value}")
    return value


def _number(label: str, value: object) -> float:
    """`value`, a parameter of the program, as a Python float; ArgumentError if it is traced."""
    if isinstance(value, bool) or not isinstance(value, (Real, np.number)):
        raise ArgumentError(
            f"{label} must be a number, known while tracing; got {type_name(value)}",
            fix="Pass a Python float, or make the argument static (static_argnums, a closure).",
        )
    return float(value)
