"""Samplers: random arrays of many distributions, permutations and choices.

The same key, shape and dtype give the same numbers, those of `jax.random`. The samples are
differentiable in the parameters, as `mean + std * normal(key)` is.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod
from operator import index
from typing import Any

import jax
import numpy as np

from functx import ops
from functx.core.errors import DTypeError, ShapeError, ValueRangeError
from functx.core.tracer import aval_of
from functx.core.types import DType, Shape, canonical_dtype, is_floating, is_inexact, is_integer
from functx.core.typing import ArrayLike, DTypeLike, ShapeLike, Value
from functx.numpy.indexing import take
from functx.numpy.promotion import broadcast_to, is_broadcastable, operand, promote_inexact
from functx.numpy.sorting_and_searching import searchsorted
from functx.ops.operands import PYTHON_SCALARS, canonical_axis, canonical_shape, literal
from functx.ops.parallel import OutSharding, place_result
from functx.ops.random import (
    RandomBernoulli,
    RandomCauchy,
    RandomExponential,
    RandomGumbel,
    RandomIntegers,
    RandomLaplace,
    RandomLogistic,
    RandomNormal,
    RandomShuffle,
    RandomTruncatedNormal,
    random_uniform,
)
from functx.ops.threefry import draw, random_bits
from functx.random.arguments import (
    as_parameter,
    broadcast_parameter,
    check_draw,
    result_shape,
)
from functx.random.keys import check_single_key, wrapping_literal

__all__ = [
    "bernoulli",
    "bits",
    "categorical",
    "cauchy",
    "choice",
    "exponential",
    "gumbel",
    "laplace",
    "logistic",
    "normal",
    "permutation",
    "rademacher",
    "randint",
    "truncated_normal",
    "uniform",
]


def bits(
    key: ArrayLike,
    shape: ShapeLike = (),
    dtype: DTypeLike = None,
    *,
    out_sharding: OutSharding = None,
) -> Value:
    """An array of `shape` of random unsigned integers of `dtype`, by default the widest."""
    dtype = canonical_dtype(np.uint64 if dtype is None else dtype)
    if dtype.kind != "u":
        raise DTypeError(f"bits: dtype must be an unsigned integer type; got {dtype}")
    drawn = random_bits(check_single_key("bits", key), canonical_shape(shape), dtype)
    return place_result(drawn, out_sharding)


def uniform(
    key: ArrayLike,
    shape: ShapeLike = (),
    dtype: DTypeLike = None,
    minval: ArrayLike = 0.0,
    maxval: ArrayLike = 1.0,
    *,
    out_sharding: OutSharding = None,
) -> Value:
    """Floating-point numbers with the uniform distribution on [minval, maxval).

    `minval` and `maxval` may be arrays that broadcast to `shape`.
    """
    key, shape, dtype = check_draw("uniform", key, shape, dtype)
    if type(minval) not in PYTHON_SCALARS or type(maxval) not in PYTHON_SCALARS:
        minval, maxval = [as_parameter("uniform", x, shape, dtype) for x in (minval, maxval)]
        return place_result(random_uniform(key, shape, dtype, minval, maxval), out_sharding)
    out = random_uniform(key, shape, dtype, float(minval), float(maxval))  # type: ignore[arg-type]
    return place_result(out, out_sharding)


def positive_uniform(key: ArrayLike, shape: ShapeLike, dtype: DTypeLike) -> Value:
    """Numbers of `uniform` in (0, 1], where 1 replaces 0, whose logarithms are finite."""
    u = uniform(key, shape, dtype)
    return ops.select(ops.eq(u, 0.0), 1.0, u)


def normal(
    key: ArrayLike,
    shape: ShapeLike = (),
    dtype: DTypeLike = None,
    *,
    out_sharding: OutSharding = None,
) -> Value:
    """Numbers with the standard normal distribution.

    With a complex `dtype`, real and imaginary part have half the variance each.
    """
    key = check_single_key("normal", key)
    dtype = canonical_dtype(float if dtype is None else dtype)
    if not is_inexact(dtype):
        raise DTypeError(f"normal: dtype must be a float or complex type; got {dtype}")
    return place_result(draw(RandomNormal(canonical_shape(shape), dtype), key), out_sharding)


def truncated_normal(
    key: ArrayLike,
    lower: ArrayLike,
    upper: ArrayLike,
    shape: ShapeLike | None = None,
    dtype: DTypeLike = None,
    *,
    out_sharding: OutSharding = None,
) -> Value:
    """Numbers with the standard normal distribution, given that they lie in (lower, upper)."""
    lower, upper = operand(lower), operand(upper)
    shape = result_shape("truncated_normal", shape, lower, upper)
    key, shape, dtype = check_draw("truncated_normal", key, shape, dtype)
    bounds = [as_parameter("truncated_normal", x, shape, dtype) for x in (lower, upper)]
    return place_result(draw(RandomTruncatedNormal(shape), key, *bounds), out_sharding)


def exponential(
    key: ArrayLike,
    shape: ShapeLike = (),
    dtype: DTypeLike = None,
    *,
    out_sharding: OutSharding = None,
) -> Value:
    """Numbers with the density exp(-x) for x >= 0."""
    key, shape, dtype = check_draw("exponential", key, shape, dtype)
    return place_result(draw(RandomExponential(shape, dtype), key), out_sharding)


def laplace(
    key: ArrayLike,
    shape: ShapeLike = (),
    dtype: DTypeLike = None,
    *,
    out_sharding: OutSharding = None,
) -> Value:
    """Numbers with the density exp(-|x|) / 2."""
    key, shape, dtype = check_draw("laplace", key, shape, dtype)
    return place_result(draw(RandomLaplace(shape, dtype), key), out_sharding)


def logistic(
    key: ArrayLike,
    shape: ShapeLike = (),
    dtype: DTypeLike = None,
    *,
    out_sharding: OutSharding = None,
) -> Value:
    """Numbers whose distribution function is the logistic sigmoid."""
    key, shape, dtype = check_draw("logistic", key, shape, dtype)
    return place_result(draw(RandomLogistic(shape, dtype), key), out_sharding)


def cauchy(
    key: ArrayLike,
    shape: ShapeLike = (),
    dtype: DTypeLike = None,
    *,
    out_sharding: OutSharding = None,
) -> Value:
    """Numbers with the density 1 / (pi (1 + x^2))."""
    key, shape, dtype = check_draw("cauchy", key, shape, dtype)
    return place_result(draw(RandomCauchy(shape, dtype), key), out_sharding)


def gumbel(
    key: ArrayLike,
    shape: ShapeLike = (),
    dtype: DTypeLike = None,
    mode: str | None = None,
    *,
    out_sharding: OutSharding = None,
) -> Value:
    """Numbers with the distribution function exp(-exp(-x)).

    With `mode="high"` each takes two draws, so that large numbers have full resolution, and with "highest"
    in single precision also those whose probability is below 2^-46. By default it is "low", or "high"
    with the setting `jax_high_dynamic_range_gumbel` of JAX.
    """
    key, shape, dtype = check_draw("gumbel", key, shape, dtype)
    mode = _check_mode("gumbel", mode, ("low", "high", "highest"))
    return place_result(draw(RandomGumbel(shape, dtype, mode=mode), key), out_sharding)


def bernoulli(
    key: ArrayLike,
    p: ArrayLike = 0.5,
    shape: ShapeLike | None = None,
    mode: str = "low",
    *,
    out_sharding: OutSharding = None,
) -> Value:
    """Booleans that are true with probability `p`, by default of the shape of `p`.

    With `mode="high"` each takes two draws, so that small probabilities have full resolution.
    """
    p = operand(p)
    aval = aval_of(p)
    if not is_floating(aval.dtype):
        raise DTypeError(f"bernoulli: the probability p must be a float; got {aval!r}")
    shape = result_shape("bernoulli", shape, p)
    p = as_parameter("bernoulli", p, shape, aval.dtype)
    fine = _check_mode("bernoulli", mode, ("low", "high")) == "high"
    drawn = draw(RandomBernoulli(shape, fine=fine), check_single_key("bernoulli", key), p)
    return place_result(drawn, out_sharding)


def rademacher(
    key: ArrayLike,
    shape: ShapeLike = (),
    dtype: DTypeLike = None,
    *,
    out_sharding: OutSharding = None,
) -> Value:
    """Numbers that are -1 or 1, equally likely."""
    dtype = canonical_dtype(int if dtype is None else dtype)
    heads = ops.convert_element_type(bernoulli(key, shape=shape), dtype)
    return place_result(ops.sub(ops.add(heads, heads), 1), out_sharding)


def randint(
    key: ArrayLike,
    shape: ShapeLike,
    minval: ArrayLike,
    maxval: ArrayLike,
    dtype: DTypeLike = None,
    *,
    out_sharding: OutSharding = None,
) -> Value:
    """Integers with the uniform distribution on [minval, maxval); minval where that is empty.

    The bounds may be arrays that broadcast to `shape`; they are clipped to the range of `dtype`.
    """
    shape, dtype = canonical_shape(shape), canonical_dtype(int if dtype is None else dtype)
    if not is_integer(dtype):
        raise DTypeError(f"randint: dtype must be an integer type; got {dtype}")
    drawn = dtype if dtype.itemsize >= 4 else np.dtype("int32")
    if type(minval) is int and type(maxval) is int:
        low, count = _static_integer_range(minval, maxval, dtype, drawn)
    else:
        minval, maxval = [
            broadcast_parameter("randint", operand(x), shape) for x in (minval, maxval)
        ]
        low, count = _traced_integer_range(minval, maxval, dtype, drawn)
    integers = draw(RandomIntegers(shape), check_single_key("randint", key), low, count)
    return place_result(ops.convert_element_type(integers, dtype), out_sharding)


@lru_cache(maxsize=1024)
def _static_integer_range(
    minval: int, maxval: int, dtype: DType, drawn: DType
) -> tuple[Value, Value]:
    """The smallest integer and their number, modulo the range of `drawn`."""
    info = np.iinfo(dtype)
    low = min(max(minval, info.min), info.max)
    count = max(min(maxval, info.max + 1) - low, 1)
    return wrapping_literal(low, drawn), wrapping_literal(count, drawn)


def _traced_integer_range(
    minval: Value, maxval: Value, dtype: DType, drawn: DType
) -> tuple[Value, Value]:
    """The smallest integer and their number, on arrays, without overflow of `drawn`."""
    (low, _), (high, beyond) = [_clip_bound(x, np.iinfo(dtype), drawn) for x in (minval, maxval)]
    span = ops.add(ops.sub(high, low), ops.convert_element_type(beyond, drawn))
    return low, ops.select(ops.gt(high, low), span, 1)


def _clip_bound(x: Value, info: np.iinfo[Any], drawn: DType) -> tuple[Value, Value]:
    """A bound in the dtype `drawn`, clipped to the range `info`, and whether it was above it."""
    if type(x) in PYTHON_SCALARS or not is_integer(aval_of(x).dtype):
        x = ops.convert_element_type(x, np.int64)
    x_info = np.iinfo(aval_of(x).dtype)
    lowest, highest = max(x_info.min, info.min), min(x_info.max, info.max)
    clipped = ops.convert_element_type(ops.clamp(lowest, x, highest), drawn)
    return clipped, ops.gt(x, highest)


def _check_mode(name: str, mode: str | None, modes: Sequence[str]) -> str:
    if mode is None:
        return "high" if jax.config.jax_high_dynamic_range_gumbel else "low"  # type: ignore[attr-defined]
    if mode not in modes:
        choices = " or ".join(map(repr, modes))
        raise ValueRangeError(f"{name}: mode must be {choices}; got {mode!r}")
    return mode


def permutation(
    key: ArrayLike,
    x: ArrayLike,
    axis: int = 0,
    independent: bool = False,
    *,
    out_sharding: OutSharding = None,
) -> Value:
    """The slices of `x` along `axis` in random order; for an int the integers below it.

    With `independent`, each vector along `axis` has its own order.
    """
    key, x = check_single_key("permutation", key), operand(x)
    aval = aval_of(x)
    axis = canonical_axis(axis, aval.ndim or 1)
    if not aval.ndim:
        return place_result(
            draw(RandomShuffle(0), key, _iota(_check_bound("permutation", x))), out_sharding
        )
    if independent or aval.ndim == 1:
        return place_result(draw(RandomShuffle(axis), key, x), out_sharding)
    order = draw(RandomShuffle(0), key, _iota(aval.shape[axis]))
    return place_result(take(x, order, axis, mode="clip", unique_indices=True), out_sharding)


def choice(
    key: ArrayLike,
    a: ArrayLike,
    shape: ShapeLike = (),
    replace: bool = True,
    p: ArrayLike | None = None,
    axis: int = 0,
    mode: str | None = None,
) -> Value:
    """A sample of `shape` from the slices of `a` along `axis`; for an int from the integers below it.

    `p` gives the probability of each. With `replace=False` no slice is taken twice; then there
    must be enough slices, with `p` enough of nonzero probability.
    """
    key, a, shape = check_single_key("choice", key), operand(a), canonical_shape(shape)
    aval = aval_of(a)
    if aval.ndim:
        axis = canonical_axis(axis, aval.ndim)
        count = aval.shape[axis]
        out_shape = (*aval.shape[:axis], *shape, *aval.shape[axis + 1 :])
    else:
        count, out_shape = _check_bound("choice", a), shape
    num_draws = prod(shape)
    if not num_draws:
        dtype = aval.dtype if aval.ndim else canonical_dtype(int)
        return ops.full(shape, literal(0, dtype))
    if count <= 0 or (not replace and num_draws > count):
        raise ValueRangeError(
            f"choice: there must be enough to choose from; got {count} for {num_draws} "
            f"{'or more ' if replace else ''}draws with replace={replace}"
        )
    if p is not None:
        indices = _weighted_indices(key, p, shape, count, replace, mode)
    elif replace:
        indices = randint(key, shape, 0, count)
    else:
        permuted = permutation(key, a if aval.ndim else count, axis)
        return ops.reshape(
            ops.slice_in_dim(permuted, 0, num_draws, axis=axis if aval.ndim else 0), out_shape
        )
    return ops.reshape(take(a, indices, axis, mode="clip") if aval.ndim else indices, out_shape)


def _weighted_indices(
    key: Value, p: ArrayLike, shape: Shape, count: int, replace: bool, mode: str | None
) -> Value:
    """Random indices, where index i has the probability `p[i]`."""
    (p,) = promote_inexact(p)
    aval = aval_of(p)
    if aval.shape != (count,):
        raise ShapeError(
            f"choice: p must have one number for each of the {count} to choose from; got {aval!r}"
        )
    if replace:
        total = ops.cumsum(p, 0)
        last = ops.reshape(ops.slice_in_dim(total, count - 1, count), ())
        indices = searchsorted(total, ops.mul(ops.sub(1.0, uniform(key, shape, aval.dtype)), last))
    else:
        # The largest of log p + gumbel are a weighted sample without replacement.
        noise = gumbel(key, (count,), aval.dtype, mode)
        _, indices = ops.top_k(ops.add(noise, ops.log(p)), prod(shape))
    return ops.convert_element_type(indices, canonical_dtype(int))


def categorical(
    key: ArrayLike,
    logits: ArrayLike,
    axis: int = -1,
    shape: ShapeLike | None = None,
    replace: bool = True,
    mode: str | None = None,
    *,
    out_sharding: OutSharding = None,
) -> Value:
    """Random indices along `axis`, with probabilities proportional to exp(logits).

    `shape` ends in the batch shape, that of `logits` without `axis`; the leading dimensions are
    those of the draws. With `replace=False` the draws of one batch element are distinct.
    """
    logits = operand(logits)
    aval = aval_of(logits)
    axis = canonical_axis(axis, aval.ndim)
    if not is_floating(aval.dtype):
        raise DTypeError(f"categorical: logits must be floats; got {aval!r}")
    batch_shape = (*aval.shape[:axis], *aval.shape[axis + 1 :])
    shape = batch_shape if shape is None else canonical_shape(shape)
    num_leading = len(shape) - len(batch_shape)
    trailing = shape[max(num_leading, 0) :]
    if num_leading < 0 or not is_broadcastable(batch_shape, trailing):
        raise ShapeError(
            f"categorical: shape must end in the shape {batch_shape} of the logits without the "
            f"axis; got {shape}"
        )
    if replace:
        noise_axis = num_leading + axis
        noise_shape = (*shape[:noise_axis], aval.shape[axis], *shape[noise_axis:])
        noise = gumbel(key, noise_shape, aval.dtype, mode)
        noisy = ops.add(noise, broadcast_to(logits, noise_shape))
        return place_result(ops.argmax(noisy, noise_axis, canonical_dtype(int)), out_sharding)
    count = prod(shape[:num_leading])
    if trailing != batch_shape or count > aval.shape[axis]:
        raise ValueRangeError(
            f"categorical: without replacement at most {aval.shape[axis]} can be drawn, for "
            f"logits of the shape {batch_shape} beside the axis; got the shape {shape}"
        )
    noisy = ops.add(logits, gumbel(key, aval.shape, aval.dtype, mode))
    _, indices = ops.top_k(ops.moveaxis(noisy, axis, aval.ndim - 1), count)
    return place_result(ops.reshape(ops.moveaxis(indices, aval.ndim - 1, 0), shape), out_sharding)


def _iota(count: int) -> Value:
    return ops.iota(canonical_dtype(int), count)


def _check_bound(name: str, x: Value) -> int:
    aval = aval_of(x)
    if is_inexact(aval.dtype):
        raise DTypeError(f"{name}: a number to choose below must be an integer; got {aval!r}")
    bound = index(x)
    if bound < 0:
        raise ValueRangeError(f"{name}: a number to choose below must not be negative; got {bound}")
    return bound
