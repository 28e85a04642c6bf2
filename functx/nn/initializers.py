"""Initializers of parameters, with the names, arguments and numbers of `jax.nn.initializers`.

An initializer is a function of a key, a shape and a dtype, by default the one that it was made with.

>>> from functx import random
>>> from functx.nn import initializers
>>> initializers.he_normal()(random.key(0), (3, 2)).shape
(3, 2)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

from functx import ops, random
from functx.core.argument_errors import explain_errors as _explain_errors
from functx.core.errors import ShapeError, ValueRangeError
from functx.core.missing_names import suggest_alternatives as _suggest_alternatives
from functx.core.types import DType, Shape, canonical_dtype, is_complex, real_dtype
from functx.core.typing import ArrayLike, Axes, DTypeLike, ShapeLike, Value
from functx.numpy import array_creation
from functx.numpy.array_creation import asarray, full
from functx.ops.operands import (
    canonical_axes,
    canonical_axis,
    canonical_shape,
    literal,
    tuple_delete,
)
from functx.ops.parallel import OutSharding, place_result

__all__ = [
    "Initializer",
    "constant",
    "delta_orthogonal",
    "glorot_normal",
    "glorot_uniform",
    "he_normal",
    "he_uniform",
    "kaiming_normal",
    "kaiming_uniform",
    "lecun_normal",
    "lecun_uniform",
    "normal",
    "ones",
    "orthogonal",
    "truncated_normal",
    "uniform",
    "variance_scaling",
    "xavier_normal",
    "xavier_uniform",
    "zeros",
]


@runtime_checkable
class Initializer(Protocol):
    """A function that makes an array of a shape from a random key."""

    def __call__(
        self,
        key: ArrayLike,
        shape: ShapeLike,
        dtype: DTypeLike = None,
        out_sharding: OutSharding = None,
    ) -> Value:
        """An array of `shape` and `dtype`, sharded as `out_sharding` says unless it is None."""
        raise NotImplementedError


def _initializer(draw: Callable[[Any, Shape, DType], Value], dtype: DTypeLike) -> Initializer:
    """The initializer that calls `draw(key, shape, dtype)`, with `dtype` as the default."""
    default = dtype

    def init(
        key: ArrayLike,
        shape: ShapeLike,
        dtype: DTypeLike = default,
        out_sharding: OutSharding = None,
    ) -> Value:
        made = draw(key, canonical_shape(shape), canonical_dtype(float if dtype is None else dtype))
        return place_result(made, out_sharding)

    return init


def zeros(
    key: ArrayLike, shape: ShapeLike, dtype: DTypeLike = None, out_sharding: OutSharding = None
) -> Value:
    """An array of `shape` of zeros; the key is not used."""
    return place_result(array_creation.zeros(shape, dtype), out_sharding)


def ones(
    key: ArrayLike, shape: ShapeLike, dtype: DTypeLike = None, out_sharding: OutSharding = None
) -> Value:
    """An array of `shape` of ones; the key is not used."""
    return place_result(array_creation.ones(shape, dtype), out_sharding)


def constant(value: ArrayLike, dtype: DTypeLike = None) -> Initializer:
    """The initializer whose arrays are filled with `value`, which broadcasts to their shape.

    >>> from functx.nn import initializers
    >>> initializers.constant(-7.0)(None, (2,)).tolist()
    [-7.0, -7.0]
    """
    return _initializer(lambda key, shape, dtype: full(shape, value, dtype), dtype)


def uniform(scale: ArrayLike = 1e-2, dtype: DTypeLike = None) -> Initializer:
    """The initializer of numbers with the uniform distribution on [0, scale)."""
    return _initializer(
        lambda key, shape, dtype: _scaled(random.uniform(key, shape, dtype), scale),
        dtype,
    )


def normal(stddev: ArrayLike = 1e-2, dtype: DTypeLike = None) -> Initializer:
    """The initializer of numbers with the normal distribution of mean 0 and deviation `stddev`."""
    return _initializer(
        lambda key, shape, dtype: _scaled(random.normal(key, shape, dtype), stddev), dtype
    )


def truncated_normal(
    stddev: ArrayLike = 1e-2,
    dtype: DTypeLike = None,
    lower: ArrayLike = -2.0,
    upper: ArrayLike = 2.0,
) -> Initializer:
    """The initializer of `stddev` times standard normal numbers that lie in (lower, upper)."""

    def draw(key: Value, shape: Shape, dtype: DType) -> Value:
        return _scaled(random.truncated_normal(key, lower, upper, shape, dtype), stddev)

    return _initializer(draw, dtype)


def _scaled(x: Value, factor: ArrayLike) -> Value:
    return ops.mul(x, asarray(factor, x.dtype))


def variance_scaling(
    scale: float,
    mode: str,
    distribution: str,
    in_axis: Axes = -2,
    out_axis: Axes = -1,
    batch_axis: Axes = (),
    dtype: DTypeLike = None,
) -> Initializer:
    """The initializer of numbers with mean 0 and variance `scale` / n.

    n is, by `mode`, the number of inputs ("fan_in"), of outputs ("fan_out"), or the arithmetic or
    geometric mean of both ("fan_avg", "fan_geo_avg"). They are counted from the axes of the inputs, of
    the outputs and of the batch; all other axes are those of a convolution's window. `distribution` is
    "normal", "uniform", or "truncated_normal" at 2 deviations. Complex numbers are, in place of the
    latter two, uniform on a disk, or normal on one with a radius of 2 deviations.

    >>> from functx import random
    >>> from functx.nn import initializers
    >>> init = initializers.variance_scaling(2.0, "fan_in", "normal")
    >>> 0.09 < float(init(random.key(0), (200, 10)).std()) < 0.11
    True
    """
    for what, value, choices in (
        ("mode", mode, _FANS),
        ("distribution", distribution, _UNIT_DRAWS),
    ):
        if value not in choices:
            names = ", ".join(map(repr, choices))
            raise ValueRangeError(f"variance_scaling: {what} must be one of {names}; got {value!r}")

    def draw(key: Value, shape: Shape, dtype: DType) -> Value:
        denominator = _FANS[mode](*_fans(shape, in_axis, out_axis, batch_axis))
        variance = asarray(scale / denominator, real_dtype(dtype))
        return _UNIT_DRAWS[distribution](key, shape, dtype, variance)

    return _initializer(draw, dtype)


_FANS: dict[str, Callable[[float, float], float]] = {
    "fan_in": lambda fan_in, fan_out: fan_in,
    "fan_out": lambda fan_in, fan_out: fan_out,
    "fan_avg": lambda fan_in, fan_out: (fan_in + fan_out) / 2,
    "fan_geo_avg": lambda fan_in, fan_out: math.sqrt(fan_in * fan_out),
}
"""By mode, the number to scale by, from the numbers of inputs and of outputs."""


def _fans(shape: Shape, in_axis: Axes, out_axis: Axes, batch_axis: Axes) -> tuple[float, float]:
    """The numbers of inputs and of outputs of a layer with weights of `shape`."""
    if in_axis == -2 and len(shape) < 2:
        raise ShapeError(
            f"variance_scaling: weights must have an axis of inputs and one of outputs; got {shape}",
            fix="Pass in_axis and out_axis for another layout.",
        )
    axes = [canonical_axes(axis, len(shape)) for axis in (in_axis, out_axis, batch_axis)]
    inputs, outputs, batch = [math.prod([shape[i] for i in group]) for group in axes]
    window = math.prod(shape) / inputs / outputs / batch
    return inputs * window, outputs * window


def _scaled_normal(key: Value, shape: Shape, dtype: DType, variance: Value) -> Value:
    return _scaled(random.normal(key, shape, dtype), ops.sqrt(variance))


def _scaled_uniform(key: Value, shape: Shape, dtype: DType, variance: Value) -> Value:
    if not is_complex(dtype):
        return _scaled(random.uniform(key, shape, dtype, -1), ops.sqrt(ops.mul(variance, 3)))
    x = _polar(key, shape, variance.dtype, lambda u: ops.sqrt(ops.mul(u, 2)))
    return _scaled(x, ops.sqrt(variance))


def _scaled_truncated_normal(key: Value, shape: Shape, dtype: DType, variance: Value) -> Value:
    deviation = ops.div(ops.sqrt(variance), _TRUNCATED_DEVIATIONS[is_complex(dtype)])
    if not is_complex(dtype):
        return _scaled(random.truncated_normal(key, -2, 2, shape, dtype), deviation)
    share = -math.expm1(-(2.0**2))
    x = _polar(
        key, shape, variance.dtype, lambda u: ops.sqrt(ops.neg(ops.log1p(ops.mul(u, -share))))
    )
    return _scaled(x, deviation)


_TRUNCATED_DEVIATIONS = 0.87962566103423978, 0.95311164380491208
"""The standard deviations of real and of complex standard normal numbers cut off at the modulus 2."""


def _polar(key: Value, shape: Shape, dtype: DType, radius: Callable[[Value], Value]) -> Value:
    """Complex numbers with random arguments, whose moduli are `radius` of uniform numbers."""
    modulus, turn = [random.uniform(subkey, shape, dtype) for subkey in random.split(key)]
    angle = ops.mul(turn, 2 * math.pi)
    modulus = radius(modulus)
    return ops.complex(ops.mul(modulus, ops.cos(angle)), ops.mul(modulus, ops.sin(angle)))


_UNIT_DRAWS = {
    "truncated_normal": _scaled_truncated_normal,
    "normal": _scaled_normal,
    "uniform": _scaled_uniform,
}
"""By distribution, numbers of mean 0 and a given variance."""


def _scaling(scale: float, mode: str, distribution: str, doc: str) -> Callable[..., Initializer]:
    """The maker of initializers by `variance_scaling` with these three arguments."""

    def make(
        in_axis: Axes = -2, out_axis: Axes = -1, batch_axis: Axes = (), dtype: DTypeLike = None
    ) -> Initializer:
        return variance_scaling(scale, mode, distribution, in_axis, out_axis, batch_axis, dtype)

    make.__doc__ = f"{doc}: `variance_scaling({scale}, {mode!r}, {distribution!r})`."
    return make


glorot_uniform = xavier_uniform = _scaling(
    1.0, "fan_avg", "uniform", "The uniform initializer of Glorot and Bengio (2010)"
)
glorot_normal = xavier_normal = _scaling(
    1.0, "fan_avg", "truncated_normal", "The normal initializer of Glorot and Bengio (2010)"
)
lecun_uniform = _scaling(1.0, "fan_in", "uniform", "The uniform initializer of LeCun et al. (1998)")
lecun_normal = _scaling(
    1.0, "fan_in", "truncated_normal", "The normal initializer of LeCun et al. (1998)"
)
he_uniform = kaiming_uniform = _scaling(
    2.0, "fan_in", "uniform", "The uniform initializer of He et al. (2015)"
)
he_normal = kaiming_normal = _scaling(
    2.0, "fan_in", "truncated_normal", "The normal initializer of He et al. (2015)"
)


def orthogonal(
    scale: ArrayLike = 1.0, column_axis: int = -1, dtype: DTypeLike = None
) -> Initializer:
    """The initializer of `scale` times matrices with orthonormal rows or columns, whichever are fewer.

    `column_axis` is the axis of the columns; all others are that of the rows. The distribution is uniform.
    """

    def draw(key: Value, shape: Shape, dtype: DType) -> Value:
        if len(shape) < 2:
            raise ShapeError(f"orthogonal: a shape must have at least two axes; got {shape}")
        axis = canonical_axis(column_axis, len(shape))
        if not math.prod(shape):
            return array_creation.zeros(shape, dtype)
        rows = tuple_delete(shape, (axis,))
        x = random.orthogonal(key, math.prod(rows), (), dtype, shape[axis])
        return _scaled(ops.moveaxis(ops.reshape(x, (*rows, shape[axis])), len(rows), axis), scale)

    return _initializer(draw, dtype)


def delta_orthogonal(
    scale: ArrayLike = 1.0, column_axis: int = -1, dtype: DTypeLike = None
) -> Initializer:
    """The initializer of convolutions that are zero but for an orthogonal matrix at the center of the window.

    A shape has one to three axes of the window, then that of the inputs and that of the outputs, of which
    there must be no fewer. Xiao et al., "Dynamical isometry and a mean field theory of CNNs" (2018).
    """

    def draw(key: Value, shape: Shape, dtype: DType) -> Value:
        if len(shape) not in (3, 4, 5) or shape[-1] < shape[-2]:
            raise ShapeError(
                "delta_orthogonal: a shape must have one to three axes of the window, then n inputs and at "
                f"least n outputs; got {shape}"
            )
        matrix = orthogonal(scale, column_axis, dtype)(key, shape[-2:])
        around = [((n - 1) // 2, n // 2, 0) for n in shape[:-2]]
        config = [*around, (0, 0, 0), (0, 0, 0)]
        return ops.pad(
            ops.expand_dims(matrix, tuple(range(len(around)))), literal(0, dtype), config
        )

    return _initializer(draw, dtype)


_suggest_alternatives("jax.nn.initializers", __name__)
_explain_errors(__name__)
