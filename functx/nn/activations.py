"""Activation functions, softmax and logarithms of sums of exponentials; integers become floats."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from functx import ops
from functx.core.errors import DTypeError, ShapeError, ValueRangeError
from functx.core.tracer import aval_of
from functx.core.types import Shape, is_complex, is_floating, is_inexact
from functx.core.typing import ArrayLike, Axes, DTypeLike, Value
from functx.numpy import ufuncs
from functx.numpy.promotion import (
    as_inexact,
    bind_binary,
    broadcast,
    copy_array,
    operand,
    promote,
    promote_inexact,
    promote_real,
)
from functx.numpy.reductions import mean as average
from functx.numpy.reductions import sum
from functx.numpy.shapes import broadcast_to, ensure_array
from functx.ops import activations
from functx.ops.operands import (
    as_bool,
    as_int,
    canonical_axes,
    canonical_axis,
    canonical_shape,
    sum_upcast,
    tuple_delete,
)
from functx.ops.softmaxes import LogSoftmax, LogSumExp, Softmax

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
    "log_softmax",
    "logmeanexp",
    "logsumexp",
    "mish",
    "one_hot",
    "relu",
    "relu6",
    "selu",
    "sigmoid",
    "silu",
    "soft_sign",
    "softmax",
    "softplus",
    "sparse_plus",
    "sparse_sigmoid",
    "squareplus",
    "standardize",
    "swish",
    "tanh",
]


def _as_float(x: ArrayLike) -> Value:
    """`x` in the dtype of `x * 1.0`, to which integers and booleans promote."""
    return promote(x, 1.0)[0]


def _beside_integers(x: ArrayLike) -> Value:
    """`x` in the inexact dtype of `x + 0`, to which booleans promote."""
    return as_inexact(promote(x, 0)[0])


def identity(x: ArrayLike) -> Value:
    """A copy of `x`."""
    return copy_array(operand(x))


def relu(x: ArrayLike) -> Value:
    """The larger of `x` and 0; the derivative at 0 is 0."""
    return activations.relu(promote(x, 0)[0])


def relu6(x: ArrayLike) -> Value:
    """`x` between 0 and 6; the derivative at both is 0."""
    return ops.clamp(0.0, _as_float(x), 6.0)


def sigmoid(x: ArrayLike) -> Value:
    """1 / (1 + exp(-x))."""
    return ops.logistic(as_inexact(x))


def log_sigmoid(x: ArrayLike) -> Value:
    """log(1 / (1 + exp(-x))), without overflow."""
    return activations.log_sigmoid(as_inexact(x))


def softplus(x: ArrayLike) -> Value:
    """log(1 + exp(x)), without overflow."""
    return activations.softplus(_beside_integers(x))


def sparse_plus(x: ArrayLike) -> Value:
    """0 up to -1, `x` from 1 on, and (x + 1)**2 / 4 between."""
    x = _as_float(x)
    root = ops.add(x, 1.0)
    return ops.select(
        ops.le(x, -1.0), 0.0, ops.select(ops.ge(x, 1.0), x, ops.mul(ops.mul(root, root), 0.25))
    )


def sparse_sigmoid(x: ArrayLike) -> Value:
    """(x + 1) / 2 between 0 and 1."""
    return ops.mul(ops.clamp(0.0, ops.add(_as_float(x), 1.0), 2.0), 0.5)


def soft_sign(x: ArrayLike) -> Value:
    """x / (1 + |x|)."""
    x = _beside_integers(x)
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
    return activations.mish(_beside_integers(x))


def gelu(x: ArrayLike, approximate: bool = True) -> Value:
    """x times the normal distribution function at x.

    With `approximate`, that is (1 + tanh(sqrt(2 / pi) (x + 0.044715 x**3))) / 2.
    """
    return activations.gelu(as_inexact(x), as_bool("gelu: approximate", approximate))


def elu(x: ArrayLike, alpha: ArrayLike = 1.0) -> Value:
    """`x` above 0, and alpha (exp(x) - 1) elsewhere."""
    x = _as_float(x)
    positive = ops.gt(x, 0.0)
    # The branch that is not selected must not overflow: its derivative would be infinite.
    below = ops.expm1(ops.select(positive, 0.0, x))
    is_one = isinstance(alpha, float | int) and alpha == 1
    return ufuncs.where(positive, x, below if is_one else bind_binary(ops.Mul(), alpha, below))


def selu(x: ArrayLike) -> Value:
    """1.05070 elu(x, 1.67326), which keeps mean 0 and variance 1 through layers."""
    return ops.mul(elu(x, 1.6732632423543772), 1.0507009873554805)


def celu(x: ArrayLike, alpha: ArrayLike = 1.0) -> Value:
    """`x` above 0, and alpha (exp(x / alpha) - 1) elsewhere, which is smooth."""
    x = _as_float(x)
    below = bind_binary(ops.Mul(), alpha, ops.expm1(bind_binary(ops.Div(), ops.min(x, 0.0), alpha)))
    return bind_binary(ops.Add(), ops.max(x, 0.0), below)


def leaky_relu(x: ArrayLike, negative_slope: ArrayLike = 0.01) -> Value:
    """`x` from 0 on, and negative_slope x below."""
    x = _as_float(x)
    return ufuncs.where(ops.ge(x, 0.0), x, bind_binary(ops.Mul(), negative_slope, x))


def hard_tanh(x: ArrayLike) -> Value:
    """`x` between -1 and 1."""
    x = operand(x)
    if aval_of(x).dtype.kind == "u":
        return ops.min(x, 1)
    return ufuncs.where(x > 1, 1, ufuncs.where(x <= -1, -1, x))


def hard_sigmoid(x: ArrayLike) -> Value:
    """relu6(x + 3) / 6."""
    return ops.div(relu6(ops.add(_as_float(x), 3.0)), 6.0)


def hard_silu(x: ArrayLike) -> Value:
    """x relu6(x + 3) / 6."""
    x = _as_float(x)
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


INF = float("inf")
NAN = float("nan")


def softmax(x: ArrayLike, axis: Axes = -1, where: ArrayLike | None = None) -> Value:
    """exp(x) / sum(exp(x)) along `axis`, an int, several or None for all.

    With a mask `where`, over the elements where it is True; the others are 0.
    """
    x = _masked(promote_real("softmax", x)[0], where, -INF)
    return _masked(Softmax(canonical_axes(axis, aval_of(x).ndim))(x), where, 0)


def log_softmax(x: ArrayLike, axis: Axes = -1, where: ArrayLike | None = None) -> Value:
    """x - log(sum(exp(x))) along `axis`, an int, several or None for all.

    With a mask `where`, over the elements where it is True; the others are -inf.
    """
    x = _masked(promote_real("log_softmax", x)[0], where, -INF)
    return _masked(LogSoftmax(canonical_axes(axis, aval_of(x).ndim))(x), where, -INF)


def logsumexp(
    a: ArrayLike,
    axis: Axes = None,
    b: ArrayLike | None = None,
    keepdims: bool = False,
    return_sign: bool = False,
    where: ArrayLike | None = None,
) -> Value | tuple[Value, Value]:
    """log(sum(b exp(a))) over `axis`, an int, several or None for all, without overflow.

    For a negative sum it is nan; with `return_sign` it is the pair (log(|sum|), sign). With a
    mask `where`, over the elements where it is True. An empty sum, and a sum of elements that
    are all -inf, gives -inf with zero derivatives.
    """
    if b is None:
        (a,) = promote_inexact(a)
    else:
        a, b = broadcast(*promote_inexact(a, b))
        a = ufuncs.where(ops.ne(b, 0), a, -INF)
    a = _masked(a, where, -INF)
    aval = aval_of(a)
    axes = canonical_axes(axis, aval.ndim)
    signs: Any = None
    if not axes and b is None and not return_sign:
        out = ensure_array(a)
    elif b is None and is_floating(aval.dtype) and not return_sign:
        out = LogSumExp(axes)(a)
    else:
        out, signs = _signed_logsumexp(a, b, axes, return_sign)
    if keepdims:
        shape = tuple([1 if i in axes else n for i, n in enumerate(aval.shape)])
        out = ops.reshape(out, shape)
        signs = ops.reshape(signs, shape) if return_sign else None
    return (out, signs) if return_sign else out


def _signed_logsumexp(
    a: Value, b: Value | None, axes: Shape, return_sign: bool
) -> tuple[Value, Value]:
    """log(|sum(b exp(a))|) and the sign of the sum; nan for a negative one without `return_sign`."""
    aval = aval_of(a)
    largest = ops.shift_of_exponentials(ops.real(a) if is_complex(aval.dtype) else a, axes)
    largest = ops.stop_gradient(ops.select(ops.is_finite(largest), largest, 0))
    largest = ops.convert_element_type(largest, aval.dtype)
    powers = ops.exp(
        ops.sub(a, ops.broadcast_in_dim(largest, aval.shape, tuple_delete(range(aval.ndim), axes)))
    )
    total = sum_upcast(powers if b is None else ops.mul(powers, b), axes)
    signs = ops.sign(total)
    real_valued = return_sign or not is_complex(aval.dtype)
    if real_valued:
        total, largest = ops.abs(total), ops.real(largest) if is_complex(aval.dtype) else largest
    # The derivative of log at 0 is infinite, and times a zero cotangent nan.
    is_zero = ops.eq(total, 0)
    out = ops.add(ops.select(is_zero, -INF, ops.log(ops.select(is_zero, 1, total))), largest)
    if real_valued and not return_sign:
        out = ops.select(ops.lt(signs, 0), NAN, out)
    return out, signs


def logmeanexp(
    x: ArrayLike, axis: Axes = None, where: ArrayLike | None = None, keepdims: bool = False
) -> Value:
    """log(mean(exp(x))) over `axis`, an int, several or None for all, without overflow.

    With a mask `where`, over the elements where it is True.
    """
    total = logsumexp(x, axis, keepdims=keepdims, where=where)
    shape, dtype = aval_of(operand(x)).shape, aval_of(total).dtype
    mask = broadcast_to(True if where is None else where, shape)
    count = sum(mask, axis=axis, keepdims=keepdims, dtype=dtype)
    return ops.sub(total, ops.log(count))  # type: ignore[arg-type]


def standardize(
    x: ArrayLike,
    axis: Axes = -1,
    mean: ArrayLike | None = None,
    variance: ArrayLike | None = None,
    epsilon: ArrayLike = 1e-5,
    where: ArrayLike | None = None,
    *,
    algorithm: str = "fast",
) -> Value:
    """(x - mean) / sqrt(variance + epsilon), by default with mean and variance along `axis`.

    With a mask `where`, they are of the elements where it is True. The algorithm "fast" computes
    the variance as mean(x**2) - mean**2; "stable" as mean((x - mean)**2), which is more exact.
    """
    if algorithm not in ("fast", "stable"):
        raise ValueRangeError(
            f"standardize: algorithm must be 'fast' or 'stable'; got {algorithm!r}"
        )
    (x,) = promote_inexact(x)
    if mean is None:
        mean = average(x, axis, keepdims=True, where=where)
    centered = bind_binary(ops.Sub(), x, mean)
    if variance is None and algorithm == "stable":
        variance = average(ops.square(centered), axis, keepdims=True, where=where)
    elif variance is None:
        squares = average(ops.square(x), axis, keepdims=True, where=where)
        variance = ops.max(bind_binary(ops.Sub(), squares, ops.square(mean)), 0)
    return bind_binary(
        ops.Mul(), centered, ops.rsqrt(*promote_inexact(bind_binary(ops.Add(), variance, epsilon)))
    )


def one_hot(x: ArrayLike, num_classes: int, *, dtype: DTypeLike = None, axis: int = -1) -> Value:
    """For each integer of `x` a vector along `axis` with 1 at that index and 0 elsewhere.

    An integer outside `0 <= x < num_classes` gives zeros.
    """
    x = operand(x)
    aval = aval_of(x)
    if is_inexact(aval.dtype):
        raise DTypeError(
            f"one_hot: x must hold integers; got {aval!r}", fix="Convert it with astype(int)."
        )
    if aval.dtype.itemsize < 4:
        x = ops.convert_element_type(x, np.int32)
    axis = canonical_axis(axis, aval.ndim + 1)
    label = "one_hot: num_classes"
    count = canonical_shape(as_int(label, num_classes), label)
    shape = (*aval.shape[:axis], *count, *aval.shape[axis:])
    repeated = ops.broadcast_in_dim(x, shape, tuple_delete(range(len(shape)), (axis,)))
    indices = ops.broadcasted_iota(aval_of(x).dtype, shape, axis)
    return ops.convert_element_type(ops.eq(repeated, indices), float if dtype is None else dtype)


def _masked(x: Value, where: ArrayLike | None, fill: float) -> Value:
    return x if where is None else ufuncs.where(where, x, fill)
