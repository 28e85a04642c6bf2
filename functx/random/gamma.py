"""Gamma variates by rejection, and distributions that are functions of them.

The derivative of a variate x in the shape parameter a is that of the quantile at a fixed probability,
dx/da = -(dF/da) / (dF/dx) with the distribution function F: Figurnov, Mohamed and Mnih, "Implicit
reparameterization gradients" (2018). Those of the other distributions follow from it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from math import prod
from typing import SupportsIndex

from ml_dtypes import finfo

from functx import lax, ops
from functx.core.errors import ShapeError
from functx.core.tracer import aval_of
from functx.core.types import DType, Shape
from functx.core.typing import ArrayLike, DTypeLike, ShapeLike, Value, Values
from functx.custom.custom_jvp import custom_jvp
from functx.lowering.jit import jit
from functx.numpy.joining import stack, unstack
from functx.numpy.promotion import broadcast_to, operand
from functx.ops.operands import as_int, canonical_shape
from functx.ops.parallel import OutSharding, place_result
from functx.ops.random import subkey
from functx.ops.softmaxes import Softmax
from functx.ops.threefry import random_split
from functx.random.arguments import (
    DrawShapeLike,
    KeyLike,
    ParameterLike,
    as_parameter,
    check_draw,
    result_shape,
    sampler,
)
from functx.random.samplers import exponential, normal, rademacher, uniform
from functx.transforms.control.loops import while_loop
from functx.transforms.vmap import vmap

__all__ = [
    "ball",
    "beta",
    "chisquare",
    "dirichlet",
    "f",
    "gamma",
    "generalized_normal",
    "loggamma",
    "t",
]


@sampler
def gamma(
    key: KeyLike,
    a: ParameterLike,
    shape: DrawShapeLike = None,
    dtype: DTypeLike = None,
    *,
    out_sharding: OutSharding = None,
) -> Value:
    """Numbers with the density x^(a-1) exp(-x) / gamma(a) for x > 0, by default of the shape of `a`.

    They are differentiable in `a`.

    >>> from functx import random
    >>> random.gamma(random.key(0), 3.0, (2,)).shape
    (2,)
    """
    return gamma_variates(key, broadcast_to(a, shape), is_logarithmic=False)


@sampler
def loggamma(
    key: KeyLike,
    a: ParameterLike,
    shape: DrawShapeLike = None,
    dtype: DTypeLike = None,
    *,
    out_sharding: OutSharding = None,
) -> Value:
    """The logarithms of the numbers of `gamma`, which do not underflow for small `a`.

    >>> from functx import random
    >>> bool(random.loggamma(random.key(0), 1e-3) < 0.0)
    True
    """
    return gamma_variates(key, broadcast_to(a, shape), is_logarithmic=True)


def gamma_variates(key: Value, a: Value, is_logarithmic: bool) -> Value:
    """Gamma variates or their logarithms for an array `a`, each drawn with a key of its own.

    With a batch of keys, the shape of `a` begins with that of the batch.
    """
    shape = a.shape[key.ndim - 1 :]
    keys = ops.reshape(random_split(key, (prod(shape),)), (a.size, 2))
    draw = vmap(partial(gamma_variate, is_logarithmic=is_logarithmic))
    drawn = ops.reshape(draw(keys, ops.reshape(ops.stop_gradient(a), (a.size,))), a.shape)
    return (_log_quantile if is_logarithmic else _quantile)(drawn, a)


@custom_jvp
def _quantile(x: Value, a: ArrayLike) -> Value:
    """The gamma variate `x`, as the quantile that it is for shape `a`."""
    return x


@custom_jvp
def _log_quantile(x: Value, a: ArrayLike) -> Value:
    """The logarithm `x` of a gamma variate, as that of the quantile that it is for shape `a`."""
    return x


def _log_quantile_slope(a: Value, x: Value) -> Value:
    """The derivative of the logarithm `x` of a quantile in the shape `a`."""
    # F = exp(a x) / gamma(a + 1) for small exp(x), which may underflow.
    is_small = x < math.log(float(finfo(x.dtype).eps))
    variate = ops.exp(ops.select(is_small, 0.0, x))
    return ops.select(
        is_small, (ops.digamma(a + 1) - x) / a, lax.random_gamma_grad(a, variate) / variate
    )


_quantile.defjvps(None, lambda t, out, x, a: t * lax.random_gamma_grad(a, out))
_log_quantile.defjvps(None, lambda t, out, x, a: t * _log_quantile_slope(a, out))


def gamma_variate(key: Value, a: Value, is_logarithmic: bool) -> Value:
    """One gamma variate, or its logarithm, by Marsaglia and Tsang.

    "A simple method for generating gamma variables" (2000). For a < 1, a variate for a + 1 is
    multiplied by u^(1/a) with a uniform u.
    """
    is_large = a >= 1
    d = ops.select(is_large, a, a + 1) - 1 / 3
    c = (1 / 3) / ops.sqrt(d)

    def is_rejected(state: Values) -> Value:
        _, square, cube, u = state
        may_be_above = u >= 1 - 0.0331 * (square * square)
        is_above = ops.log(u) >= square * 0.5 + d * ((1 - cube) + ops.log(cube))
        return may_be_above & is_above

    def propose(state: Values) -> Values:
        key = state[0]
        _, x, v = while_loop(
            lambda state: state[2] <= 0, draw_normal, (subkey(key, 1, 3), zero, -one)
        )
        u = uniform(subkey(key, 2, 3), (), a.dtype)
        return subkey(key, 0, 3), x * x, (v * v) * v, u

    def draw_normal(state: Values) -> Values:
        key = state[0]
        x = normal(subkey(key, 1), (), a.dtype)
        return subkey(key, 0), x, 1 + x * c

    zero, one = ops.zeros_like(a), ops.full_like(a, 1)
    key, boost_key = subkey(key, 0), subkey(key, 1)
    _, _, cube, _ = while_loop(is_rejected, propose, (key, zero, one, 2 * one))
    if is_logarithmic:
        log_u = -exponential(boost_key, (), a.dtype)
        boost = ops.select(is_large | (log_u == 0), zero, log_u * (1 / a))
        return (ops.log(d) + ops.log(cube)) + boost
    boost = ops.select(is_large, one, ops.pow(1 - uniform(boost_key, (), a.dtype), 1 / a))
    return d * cube * boost


@sampler
def beta(
    key: KeyLike,
    a: ParameterLike,
    b: ParameterLike,
    shape: DrawShapeLike = None,
    dtype: DTypeLike = None,
    *,
    out_sharding: OutSharding = None,
) -> Value:
    """Numbers in (0, 1) with a density proportional to x^(a-1) (1-x)^(b-1).

    They are differentiable in `a` and `b`.

    >>> from functx import random
    >>> random.beta(random.key(0), 2.0, [1.0, 3.0]).shape
    (2,)
    """
    first, second = two_loggammas(key, a, b, shape)
    largest = ops.max(first, second)
    first, second = ops.exp(first - largest), ops.exp(second - largest)
    return first / (first + second)


def two_loggammas(
    key: KeyLike, a: ParameterLike, b: ParameterLike, shape: DrawShapeLike
) -> Sequence[Value]:
    """Two independent arrays of logarithms of gamma variates, drawn in one loop."""
    both = stack([broadcast_to(x, shape) for x in (a, b)])
    return unstack(gamma_variates(random_split(key, (2,)), both, is_logarithmic=True))


@sampler
def chisquare(
    key: KeyLike,
    df: ParameterLike,
    shape: DrawShapeLike = None,
    dtype: DTypeLike = None,
    *,
    out_sharding: OutSharding = None,
) -> Value:
    """Numbers with the chi-square distribution with `df` degrees of freedom, differentiable in `df`.

    >>> from functx import random
    >>> random.chisquare(random.key(0), 5, (3,)).shape
    (3,)
    """
    return ops.exp(loggamma(key, df / 2, shape, dtype)) * 2


@sampler
def f(
    key: KeyLike,
    dfnum: ParameterLike,
    dfden: ParameterLike,
    shape: DrawShapeLike = None,
    dtype: DTypeLike = None,
    *,
    out_sharding: OutSharding = None,
) -> Value:
    """Numbers with the F distribution with `dfnum` and `dfden` degrees of freedom, differentiable in both.

    >>> from functx import random
    >>> random.f(random.key(0), 5, 8, (3,)).shape
    (3,)
    """
    denominator, numerator = two_loggammas(key, dfden / 2, dfnum / 2, shape)
    return (ops.exp(numerator) * 2 / dfnum) / (ops.exp(denominator) * 2 / dfden)


@sampler
def t(
    key: KeyLike,
    df: ParameterLike,
    shape: DrawShapeLike = None,
    dtype: DTypeLike = None,
    *,
    out_sharding: OutSharding = None,
) -> Value:
    """Numbers with Student's t distribution with `df` degrees of freedom, differentiable in `df`.

    >>> from functx import random
    >>> random.t(random.key(0), 3, (2,)).shape
    (2,)
    """
    half = df / 2
    return normal(subkey(key, 0), shape, dtype) * ops.sqrt(
        half / gamma(subkey(key, 1), half, shape, dtype)
    )


def dirichlet(
    key: ArrayLike,
    alpha: ArrayLike,
    shape: ShapeLike | None = None,
    dtype: DTypeLike = None,
    *,
    out_sharding: OutSharding = None,
) -> Value:
    """Positive numbers with sum 1 and a density proportional to the product of x_i^(alpha_i - 1).

    The last axis of `alpha` is that of the numbers; `shape` is that of the draws, by default the other
    axes of `alpha`. They are differentiable in `alpha`.

    >>> from functx import random
    >>> random.dirichlet(random.key(0), [1.0, 2.0, 3.0], (4,)).shape
    (4, 3)
    """
    key, _, dtype = check_draw("dirichlet", key, (), dtype)
    alpha = operand(alpha)
    aval = aval_of(alpha)
    if not aval.ndim:
        raise ShapeError(f"dirichlet: alpha must have at least one axis; got {aval!r}")
    batch_shape = aval.shape[:-1] if shape is None else canonical_shape(shape)
    shape = result_shape("dirichlet", (*batch_shape, aval.shape[-1]), alpha)
    return place_result(_dirichlet(key, alpha, shape=shape, dtype=dtype), out_sharding)


@partial(jit, static_argnames=("shape", "dtype"))
def _dirichlet(key: Value, alpha: Value, shape: Shape, dtype: DType) -> Value:
    alpha = as_parameter("dirichlet", alpha, shape, dtype)
    return Softmax((len(shape) - 1,))(loggamma(key, alpha, shape, dtype))


@sampler
def generalized_normal(
    key: KeyLike,
    p: ParameterLike,
    shape: DrawShapeLike = (),
    dtype: DTypeLike = None,
    *,
    out_sharding: OutSharding = None,
) -> Value:
    """Numbers with a density proportional to exp(-|x|^p), differentiable in the number `p`.

    >>> from functx import random
    >>> random.generalized_normal(random.key(0), 3.0, (2,)).shape
    (2,)
    """
    magnitude = gamma(subkey(key, 0), 1 / p, shape, dtype) ** (1 / p)
    return rademacher(subkey(key, 1), shape, dtype) * magnitude


def ball(
    key: ArrayLike,
    d: SupportsIndex,
    p: ArrayLike = 2,
    shape: ShapeLike = (),
    dtype: DTypeLike = None,
    *,
    out_sharding: OutSharding = None,
) -> Value:
    """Vectors of `d` numbers with the uniform distribution on the unit ball of the norm of order `p`.

    The result has `d` as a last axis after `shape`. Barthe et al., "A probabilistic approach to the
    geometry of the l_p^n-ball" (2005).

    >>> from functx import random
    >>> random.ball(random.key(0), 3, shape=(2,)).shape
    (2, 3)
    """
    key, shape, dtype = check_draw("ball", key, shape, dtype)
    length = as_int("ball: d", d)
    return place_result(_ball(key, p, length, shape=shape, dtype=dtype), out_sharding)


@partial(jit, static_argnames=("d", "shape", "dtype"))
def _ball(key: Value, p: Value, d: int, shape: Shape, dtype: DType) -> Value:
    p = as_parameter("ball", p, (), dtype)
    x = generalized_normal(subkey(key, 0), p, (*shape, d), dtype)
    total = ops.reduce_sum(ops.abs(x) ** p, (len(shape),)) + exponential(
        subkey(key, 1), shape, dtype
    )
    return x / ops.expand_dims(total ** (1 / p), (len(shape),))
