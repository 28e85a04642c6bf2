"""Continuous distributions with parameters, as functions of uniform, exponential and normal numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import SupportsIndex

import numpy as np

from functx import ops
from functx.core.errors import DTypeError, ShapeError, ValueRangeError
from functx.core.tracer import aval_of
from functx.core.types import DType, Shape, canonical_dtype, is_inexact
from functx.core.typing import ArrayLike, DTypeLike, ShapeLike, Value
from functx.custom.custom_jvp import custom_jvp
from functx.lowering.jit import jit
from functx.numpy import linalg
from functx.numpy.einstein_summation import einsum
from functx.numpy.matrices import diagonal
from functx.numpy.promotion import broadcast_shapes, broadcast_to, operand, promote_inexact
from functx.ops.operands import as_int, canonical_shape
from functx.ops.parallel import OutSharding, place_result
from functx.ops.random import subkey
from functx.random.arguments import (
    DrawShapeLike,
    KeyLike,
    ParameterLike,
    as_parameter,
    check_draw,
    check_dtype,
    result_shape,
    sampler,
)
from functx.random.keys import check_single_key
from functx.random.samplers import exponential, normal, positive_uniform, rademacher, uniform

__all__ = [
    "double_sided_maxwell",
    "lognormal",
    "maxwell",
    "multivariate_normal",
    "orthogonal",
    "pareto",
    "rayleigh",
    "triangular",
    "wald",
    "weibull_min",
]


@sampler
def pareto(
    key: KeyLike,
    b: ParameterLike,
    shape: DrawShapeLike = None,
    dtype: DTypeLike = None,
    *,
    out_sharding: OutSharding = None,
) -> Value:
    """Numbers with the density b / x^(b+1) for x >= 1, by default of the shape of `b`.

    >>> from functx import random
    >>> random.pareto(random.key(0), [1.0, 2.0]).shape
    (2,)
    """
    return ops.exp(exponential(key, shape, dtype) / b)


@sampler
def rayleigh(
    key: KeyLike,
    scale: ParameterLike,
    shape: DrawShapeLike = None,
    dtype: DTypeLike = None,
    *,
    out_sharding: OutSharding = None,
) -> Value:
    """Lengths of vectors of two normal numbers with the standard deviation `scale`.

    >>> from functx import random
    >>> bool(random.rayleigh(random.key(0), 2.0) > 0.0)
    True
    """
    return scale * ops.sqrt(ops.log(positive_uniform(key, shape, dtype)) * -2)


@sampler
def triangular(
    key: KeyLike,
    left: ParameterLike,
    mode: ParameterLike,
    right: ParameterLike,
    shape: DrawShapeLike = None,
    dtype: DTypeLike = None,
    *,
    out_sharding: OutSharding = None,
) -> Value:
    """Numbers on [left, right] whose density rises linearly up to `mode` and falls behind it.

    >>> from functx import random
    >>> random.triangular(random.key(0), -1.0, 0.0, 2.0, (3,)).shape
    (3,)
    """
    u, width = uniform(key, shape, dtype), right - left
    rising = left + ops.sqrt(u * width * (mode - left))
    falling = right - ops.sqrt((1 - u) * width * (right - mode))
    return ops.select(u < (mode - left) / width, rising, falling)


@sampler
def wald(
    key: KeyLike,
    mean: ParameterLike,
    shape: DrawShapeLike = None,
    dtype: DTypeLike = None,
    *,
    out_sharding: OutSharding = None,
) -> Value:
    """Numbers with the inverse Gaussian distribution of the given `mean` and the scale 1.

    They are differentiable in `mean` along the quantiles, unlike those of JAX. Michael, Schucany and
    Haas, "Generating random variates using transformations with multiple roots" (1976).

    >>> from functx import random
    >>> bool(random.wald(random.key(0), 2.0) > 0.0)
    True
    """
    fixed = broadcast_to(ops.stop_gradient(mean), shape)
    half = fixed * normal(subkey(key, 0), shape, dtype) ** 2 / 2
    # The roots are mean * factor and mean / factor; their sum in the denominator does not cancel.
    factor = 1 / (1 + half + ops.sqrt(half * (half + 2)))
    is_smaller = uniform(subkey(key, 1), shape, dtype) <= 1 / (1 + factor)
    drawn = ops.select(is_smaller, fixed * factor, fixed / factor)
    return _wald_quantile(drawn, broadcast_to(mean, shape))


@custom_jvp
def _wald_quantile(x: Value, mean: ArrayLike) -> Value:
    """The variate `x`, as the quantile that it is for this mean."""
    return x


def _wald_quantile_slope(x: Value, mean: Value) -> Value:
    """-(dF/dmean) / (dF/dx) with the distribution function F, at the variate `x`."""
    root = ops.sqrt(x)
    return 2 / mean**2 * (x * root) * mills_ratio((x / mean + 1) / root)


_wald_quantile.defjvps(None, lambda t, out, x, mean: t * _wald_quantile_slope(out, mean))


def mills_ratio(x: Value) -> Value:
    """The probability that a standard normal number exceeds `x` > 0, divided by the density at `x`."""
    is_large = x > 8
    small, large = ops.select(is_large, 8.0, x), ops.select(is_large, x, 8.0)
    direct = ops.erfc(small / math.sqrt(2)) * ops.exp(small * small / 2) * math.sqrt(math.pi / 2)
    # The continued fraction of Laplace.
    fraction = large
    for k in reversed(range(1, 20)):
        fraction = large + k / fraction
    return ops.select(is_large, 1 / fraction, direct)


def lognormal(
    key: ArrayLike,
    sigma: ArrayLike = np.float32(1.0),  # noqa: B008 - the default of JAX
    shape: ShapeLike | None = None,
    dtype: DTypeLike = None,
    *,
    out_sharding: OutSharding = None,
) -> Value:
    """exp(sigma x) for numbers x with the standard normal distribution, which may be complex.

    >>> from functx import random
    >>> bool(random.lognormal(random.key(0)) > 0.0)
    True
    """
    key, sigma = check_single_key("lognormal", key), operand(sigma)
    dtype = canonical_dtype(float if dtype is None else dtype)
    if not is_inexact(dtype):
        raise DTypeError(f"lognormal: dtype must be a float or complex type; got {dtype}")
    shape = result_shape("lognormal", shape, sigma)
    return place_result(_lognormal(key, sigma, shape=shape, dtype=dtype), out_sharding)


@partial(jit, static_argnames=("shape", "dtype"))
def _lognormal(key: Value, sigma: Value, shape: Shape, dtype: DType) -> Value:
    return ops.exp(normal(key, shape, dtype) * as_parameter("lognormal", sigma, shape, dtype))


@sampler
def maxwell(
    key: KeyLike,
    shape: DrawShapeLike = (),
    dtype: DTypeLike = None,
    *,
    out_sharding: OutSharding = None,
) -> Value:
    """Lengths of vectors of three numbers with the standard normal distribution.

    >>> from functx import random
    >>> random.maxwell(random.key(0), (2,)).shape
    (2,)
    """
    x = normal(key, (*shape, 3), dtype)
    return ops.sqrt(ops.reduce_sum(x * x, (x.ndim - 1,)))


def double_sided_maxwell(
    key: ArrayLike,
    loc: ArrayLike,
    scale: ArrayLike,
    shape: ShapeLike = (),
    dtype: DTypeLike = None,
) -> Value:
    """`loc` plus or minus, equally likely, `scale` times numbers of `maxwell`.

    The shape of the result is `shape`, or if it is () the one that `loc` and `scale` have together,
    followed by the latter.

    >>> from functx import random
    >>> random.double_sided_maxwell(random.key(0), 1.0, [1.0, 2.0], (3,)).shape
    (3, 2)
    """
    key, shape, dtype = check_draw("double_sided_maxwell", key, shape, dtype)
    loc, scale = operand(loc), operand(scale)
    together = result_shape("double_sided_maxwell", None, loc, scale)
    shape = (*(shape or together), *together)
    return _double_sided_maxwell(key, loc, scale, shape=shape, dtype=dtype)


@partial(jit, static_argnames=("shape", "dtype"))
def _double_sided_maxwell(
    key: Value, loc: Value, scale: Value, shape: Shape, dtype: DType
) -> Value:
    magnitude, sign = (
        maxwell(subkey(key, 0), shape, dtype),
        rademacher(subkey(key, 1), shape, dtype),
    )
    return sign * magnitude * scale + loc


def weibull_min(
    key: ArrayLike,
    scale: ArrayLike,
    concentration: ArrayLike,
    shape: ShapeLike = (),
    dtype: DTypeLike = None,
) -> Value:
    """Numbers with the Weibull distribution: `scale` times exponential ones to the power 1 / concentration.

    One number is drawn for each index of `shape`; it broadcasts with the parameters.

    >>> from functx import random
    >>> random.weibull_min(random.key(0), 2.0, 1.5, (3,)).shape
    (3,)
    """
    key, shape, dtype = check_draw("weibull_min", key, shape, dtype)
    return _weibull_min(key, operand(scale), operand(concentration), shape=shape, dtype=dtype)


@partial(jit, static_argnames=("shape", "dtype"))
def _weibull_min(
    key: Value, scale: Value, concentration: Value, shape: Shape, dtype: DType
) -> Value:
    return exponential(key, shape, dtype) ** (1.0 / concentration) * scale


def orthogonal(
    key: ArrayLike,
    n: SupportsIndex,
    shape: ShapeLike = (),
    dtype: DTypeLike = None,
    m: SupportsIndex | None = None,
    *,
    out_sharding: OutSharding = None,
) -> Value:
    """Matrices of the shape (n, m) with orthonormal rows or columns, whichever are fewer.

    They have the uniform distribution, the Haar measure; unitary ones for a complex `dtype`. `m` is by
    default `n`; `shape` is that of the batch. Mezzadri, "How to generate random matrices from the
    classical compact groups" (2007).

    >>> from functx import random
    >>> random.orthogonal(random.key(0), 3, (2,)).shape
    (2, 3, 3)
    """
    key, shape = check_single_key("orthogonal", key), canonical_shape(shape)
    dtype = canonical_dtype(float if dtype is None else dtype)
    if not is_inexact(dtype):
        raise DTypeError(f"orthogonal: dtype must be a float or complex type; got {dtype}")
    rows = as_int("orthogonal: n", n)
    columns = rows if m is None else as_int("orthogonal: m", m)
    return place_result(_orthogonal(key, rows, columns, shape=shape, dtype=dtype), out_sharding)


@partial(jit, static_argnames=("rows", "columns", "shape", "dtype"))
def _orthogonal(key: Value, rows: int, columns: int, shape: Shape, dtype: DType) -> Value:
    longer, shorter = max(rows, columns), min(rows, columns)
    q, r = linalg.qr(normal(key, (*shape, longer, shorter), dtype))
    x = q * ops.expand_dims(ops.sign(diagonal(r, axis1=-2, axis2=-1)), (-2,))
    return x.mT if rows < columns else x


def multivariate_normal(
    key: ArrayLike,
    mean: ArrayLike,
    cov: ArrayLike,
    shape: ShapeLike | None = None,
    dtype: DTypeLike = None,
    method: str = "cholesky",
    *,
    out_sharding: OutSharding = None,
) -> Value:
    """Normal vectors with the means `mean` and the covariance matrices `cov`.

    `shape` is that of the draws, by default the one of the batches of `mean` and `cov` together; the result
    has the axis of the vector behind it. `method` says how a root of the matrix is computed: "cholesky",
    or for singular ones "eigh" or "svd".

    >>> from functx import random
    >>> random.multivariate_normal(random.key(0), [0.0, 1.0], [[2.0, 1.0], [1.0, 2.0]], (4,)).shape
    (4, 2)
    """
    name = "multivariate_normal"
    if method not in _ROOTS:
        choices = ", ".join(map(repr, _ROOTS))
        raise ValueRangeError(f"{name}: method must be one of {choices}; got {method!r}")
    mean, cov = promote_inexact(mean, cov)
    mean_aval, cov_aval = aval_of(mean), aval_of(cov)
    size = mean_aval.shape[-1:]
    if not size or cov_aval.ndim < 2 or cov_aval.shape[-2:] != size * 2:
        raise ShapeError(
            f"{name}: mean must have the shape (..., n) and cov the shape (..., n, n); got "
            f"{mean_aval!r} and {cov_aval!r}"
        )
    dtype = check_dtype(name, mean_aval.dtype if dtype is None else dtype)
    batches = mean_aval.shape[:-1], cov_aval.shape[:-2]
    shape = broadcast_shapes(*batches) if shape is None else canonical_shape(shape)
    if broadcast_shapes(shape, *batches) != shape:
        raise ShapeError(
            f"{name}: the batches of mean and cov must broadcast to the shape {shape}; got {mean_aval!r} "
            f"and {cov_aval!r}"
        )
    key = check_single_key(name, key)
    drawn = _multivariate_normal(key, mean, cov, shape=shape, dtype=dtype, method=method)
    return place_result(drawn, out_sharding)


@partial(jit, static_argnames=("shape", "dtype", "method"))
def _multivariate_normal(
    key: Value, mean: Value, cov: Value, shape: Shape, dtype: DType, method: str
) -> Value:
    z = normal(key, (*shape, mean.shape[-1]), dtype)
    return mean + einsum("...ij,...j->...i", _ROOTS[method](cov), z)


def _root_by_eigenvalues(cov: Value) -> Value:
    w, v = linalg.eigh(cov)
    return v * ops.expand_dims(ops.sqrt(w), (-2,))


def _root_by_singular_values(cov: Value) -> Value:
    u, s, _ = linalg.svd(cov)  # type: ignore[misc]
    return u * ops.expand_dims(ops.sqrt(s), (-2,))


_ROOTS: dict[str, Callable[[Value], Value]] = {
    "cholesky": linalg.cholesky,
    "eigh": _root_by_eigenvalues,
    "svd": _root_by_singular_values,
}
