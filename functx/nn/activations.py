"""Elementwise activation functions; integers are converted to floats."""

from __future__ import annotations

import math

from functx import ops
from functx.core.errors import ShapeError
from functx.core.tracer import aval_of
from functx.core.tracing import bind
from functx.core.typing import ArrayLike, Value
from functx.numpy.promotion import as_inexact, bind_binary, copy_array, operand
from functx.numpy.ufuncs import where
from functx.ops import activations
from functx.ops.operands import as_bool, canonical_axis, literal

__all__ = [
    "celu",
    "elu",
    "gelu",
    "glu",
    "hard_sigmoid",
    "hard_silu",
    "hard_swish",
    "hard_tanh",
    "identity",
    "leaky_relu",
    "log1mexp",
    "log_sigmoid",
    "mish",
    "relu",
    "relu6",
    "selu",
    "sigmoid",
    "silu",
    "soft_sign",
    "softplus",
    "sparse_plus",
    "sparse_sigmoid",
    "squareplus",
    "swish",
    "tanh",
]


def identity(x: ArrayLike) -> Value:
    """A copy of `x`."""
    return copy_array(operand(x))


def relu(x: ArrayLike) -> Value:
    """The larger of `x` and 0; the derivative at 0 is 0."""
    x = operand(x)
    # A comparison rather than a maximum: nan stays nan, and a tie with 0 takes the 0.
    zero = literal(0, aval_of(x).dtype)
    return bind(ops.Select(), (ops.le(x, zero), x, zero))


def relu6(x: ArrayLike) -> Value:
    """`x` between 0 and 6; the derivative at both is 0."""
    return ops.clamp(0.0, as_inexact(x), 6.0)


def sigmoid(x: ArrayLike) -> Value:
    """1 / (1 + exp(-x))."""
    return ops.logistic(as_inexact(x))


def log_sigmoid(x: ArrayLike) -> Value:
    """log(1 / (1 + exp(-x))), without overflow."""
    return activations.log_sigmoid(as_inexact(x))


def softplus(x: ArrayLike) -> Value:
    """log(1 + exp(x)), without overflow."""
    return activations.softplus(as_inexact(x))


def sparse_plus(x: ArrayLike) -> Value:
    """0 up to -1, `x` from 1 on, and (x + 1)**2 / 4 between."""
    x = as_inexact(x)
    root = ops.add(x, 1.0)
    return ops.select(
        ops.le(x, -1.0), 0.0, ops.select(ops.ge(x, 1.0), x, ops.mul(ops.mul(root, root), 0.25))
    )


def sparse_sigmoid(x: ArrayLike) -> Value:
    """(x + 1) / 2 between 0 and 1."""
    return ops.mul(ops.clamp(0.0, ops.add(as_inexact(x), 1.0), 2.0), 0.5)


def soft_sign(x: ArrayLike) -> Value:
    """x / (1 + |x|)."""
    x = as_inexact(x)
    return ops.div(x, ops.add(ops.abs(x), 1.0))


def silu(x: ArrayLike) -> Value:
    """x / (1 + exp(-x))."""
    return activations.silu(as_inexact(x))


swish = silu


def tanh(x: ArrayLike) -> Value:
    """The hyperbolic tangent."""
    return ops.tanh(as_inexact(x))


def mish(x: ArrayLike) -> Value:
    """x tanh(log(1 + exp(x)))."""
    return activations.mish(as_inexact(x))


def gelu(x: ArrayLike, approximate: bool = True) -> Value:
    """x times the normal distribution function at x.

    With `approximate`, that is (1 + tanh(sqrt(2 / pi) (x + 0.044715 x**3))) / 2.
    """
    return activations.gelu(as_inexact(x), as_bool("gelu: approximate", approximate))


def elu(x: ArrayLike, alpha: ArrayLike = 1.0) -> Value:
    """`x` above 0, and alpha (exp(x) - 1) elsewhere."""
    x = as_inexact(x)
    positive = ops.gt(x, 0.0)
    # The branch that is not selected must not overflow: its derivative would be infinite.
    below = ops.expm1(ops.select(positive, 0.0, x))
    is_one = isinstance(alpha, float | int) and alpha == 1
    return where(positive, x, below if is_one else bind_binary(ops.Mul(), alpha, below))


def selu(x: ArrayLike) -> Value:
    """1.05070 elu(x, 1.67326), which keeps mean 0 and variance 1 through layers."""
    return ops.mul(elu(x, 1.6732632423543772), 1.0507009873554805)


def celu(x: ArrayLike, alpha: ArrayLike = 1.0) -> Value:
    """`x` above 0, and alpha (exp(x / alpha) - 1) elsewhere, which is smooth."""
    x = as_inexact(x)
    below = bind_binary(ops.Mul(), alpha, ops.expm1(bind_binary(ops.Div(), ops.min(x, 0.0), alpha)))
    return bind_binary(ops.Add(), ops.max(x, 0.0), below)


def leaky_relu(x: ArrayLike, negative_slope: ArrayLike = 0.01) -> Value:
    """`x` from 0 on, and negative_slope x below."""
    x = as_inexact(x)
    return where(ops.ge(x, 0.0), x, bind_binary(ops.Mul(), negative_slope, x))


def hard_tanh(x: ArrayLike) -> Value:
    """`x` between -1 and 1."""
    x = operand(x)
    return ops.select(ops.gt(x, 1), 1, ops.select(ops.le(x, -1), -1, x))


def hard_sigmoid(x: ArrayLike) -> Value:
    """relu6(x + 3) / 6."""
    return ops.div(relu6(ops.add(as_inexact(x), 3.0)), 6.0)


def hard_silu(x: ArrayLike) -> Value:
    """x relu6(x + 3) / 6."""
    x = as_inexact(x)
    return ops.mul(x, hard_sigmoid(x))


hard_swish = hard_silu


def squareplus(x: ArrayLike, b: ArrayLike = 4) -> Value:
    """(x + sqrt(x**2 + b)) / 2."""
    x = as_inexact(x)
    return ops.mul(
        bind_binary(ops.Add(), x, ops.sqrt(bind_binary(ops.Add(), ops.mul(x, x), b))), 0.5
    )


def glu(x: ArrayLike, axis: int = -1) -> Value:
    """The first half of `x` along `axis` times the sigmoid of the second."""
    x = as_inexact(x)
    shape = aval_of(x).shape
    axis = canonical_axis(axis, len(shape))
    half, odd = divmod(shape[axis], 2)
    if odd:
        raise ShapeError(f"glu: the axis must have an even length; got {shape[axis]}")
    first, second = (
        ops.slice_in_dim(x, 0, half, axis=axis),
        ops.slice_in_dim(x, half, None, axis=axis),
    )
    return ops.mul(first, ops.logistic(second))


def log1mexp(x: ArrayLike) -> Value:
    """log(1 - exp(-x)) for x > 0, accurate near 0 and for large x."""
    x = as_inexact(x)
    small = ops.le(x, math.log(2.0))
    near, far = ops.log(ops.neg(ops.expm1(ops.neg(x)))), ops.log1p(ops.neg(ops.exp(ops.neg(x))))
    return ops.select(small, near, far)
