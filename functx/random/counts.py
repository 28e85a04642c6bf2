"""Distributions of counts: geometric, Poisson, binomial and multinomial.

The derivatives of counts in the parameters are zero.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from ml_dtypes import iinfo

from functx import ops
from functx.core.errors import ShapeError
from functx.core.tracer import aval_of
from functx.core.types import DType, Shape
from functx.core.typing import ArrayLike, DTypeLike, ShapeLike, Value, Values
from functx.lowering.jit import jit
from functx.numpy.promotion import broadcast_to, operand, promote_inexact
from functx.numpy.sorting_and_searching import take_from_vector
from functx.ops.operands import canonical_shape, literal
from functx.ops.parallel import OutSharding
from functx.ops.random import subkey
from functx.ops.threefry import random_split
from functx.random.arguments import (
    DrawShapeLike,
    KeyLike,
    ParameterLike,
    check_draw,
    integer_sampler,
    result_shape,
)
from functx.random.samplers import positive_uniform, uniform
from functx.transforms.control.loops import while_loop
from functx.transforms.control.rows import scan

__all__ = ["binomial", "geometric", "multinomial", "poisson"]

FLOAT32 = np.dtype("float32")
MAX_STEPS = iinfo("int32").max


@integer_sampler
def geometric(
    key: KeyLike,
    p: ParameterLike,
    shape: DrawShapeLike = None,
    dtype: DTypeLike = None,
    *,
    out_sharding: OutSharding = None,
) -> Value:
    """Numbers of independent trials, each with probability `p` of success, up to the first success.

    >>> from functx import random
    >>> int(random.geometric(random.key(0), 1.0))
    1
    """
    (p,) = promote_inexact(p)
    log_u = ops.log(positive_uniform(key, shape, p.dtype))
    failures = ops.floor(log_u / broadcast_to(ops.log1p(-p), shape))
    return ops.convert_element_type(failures + 1, dtype)


@integer_sampler
def poisson(
    key: KeyLike,
    lam: ParameterLike,
    shape: DrawShapeLike = None,
    dtype: DTypeLike = None,
    *,
    out_sharding: OutSharding = None,
) -> Value:
    """Counts with the Poisson distribution of the rate `lam`, by default of the shape of `lam`.

    They are -1 where the rate is negative or nan.

    >>> from functx import random
    >>> random.poisson(random.key(0), [0.5, 100.0]).shape
    (2,)
    """
    lam = broadcast_to(ops.convert_element_type(ops.stop_gradient(lam), FLOAT32), shape)
    is_small = (lam != lam) | (lam < 10)
    counts = ops.select(
        is_small,
        _poisson_by_products(key, ops.select(is_small, lam, 0.0), dtype),
        _poisson_by_rejection(key, ops.select(is_small, 1e5, lam), dtype),
    )
    return ops.select(lam == 0, 0, counts)


def _poisson_by_products(key: Value, lam: Value, dtype: Any) -> Value:
    """The number of uniform factors, minus 1, whose product is at most exp(-lam): Knuth's method."""

    def multiply(state: Values) -> Values:
        step, count, key, log_product = state
        count = ops.select(log_product > -lam, count + 1, count)
        u = uniform(subkey(key, 1), lam.shape, lam.dtype)
        return step + 1, count, subkey(key, 0), log_product + ops.log(u)

    def continues(state: Values) -> Value:
        step, _, _, log_product = state
        return (log_product > -lam).any() & (step < iinfo(dtype).max)

    start = 0, ops.full(lam.shape, literal(0, dtype)), key, ops.zeros_like(lam)
    return while_loop(continues, multiply, start)[1] - 1


def _poisson_by_rejection(key: Value, lam: Value, dtype: DTypeLike) -> Value:
    """Counts for large rates by transformed rejection.

    Hoermann, "The transformed rejection method for generating Poisson random variables" (1993).
    """
    b = 0.931 + 2.53 * ops.sqrt(lam)
    a = -0.059 + 0.02483 * b
    inverse_alpha = 1.1239 + 1.1328 / (b - 3.4)
    squeeze = 0.9277 - 3.6224 / (b - 2)
    log_lam = ops.log(lam)

    def propose(u: Value, v: Value, distance: Value) -> tuple[Value, Value]:
        k = ops.floor((2 * a / distance + b) * u + lam + 0.43)
        is_certain = (distance >= 0.07) & (v <= squeeze)
        is_outside = (k < 0) | ((distance < 0.013) & (v > distance))
        log_density = -lam + k * log_lam - ops.lgamma(k + 1)
        is_below = ops.log(v * inverse_alpha / (a / (distance * distance) + b)) <= log_density
        return k, is_certain | (~is_outside & is_below)

    counts = _reject(key, lam, propose, iinfo(dtype).max)
    return ops.convert_element_type(counts, dtype)


def _reject(
    key: Value,
    like: Value,
    propose: Callable[[Value, Value, Value], tuple[Value, Value]],
    max_steps: int = MAX_STEPS,
) -> Value:
    """The first proposal of each element that is accepted, of the shape and dtype of `like`.

    `propose(u, v, distance)` returns proposals and which of them are accepted, for uniform numbers u
    in [-1/2, 1/2) and v in [0, 1), and the distance of u from the ends of its interval. The result is -1
    where none of `max_steps` proposals is accepted.
    """

    def step(state: Values) -> Values:
        number, out, is_done, key = state
        u, v = [uniform(subkey(key, i, 3), like.shape, like.dtype) for i in (1, 2)]
        u = u - 0.5
        proposed, is_accepted = propose(u, v, 0.5 - ops.abs(u))
        out = ops.select(is_accepted, proposed, out)
        return number + 1, out, is_done | is_accepted, subkey(key, 0, 3)

    def continues(state: Values) -> Value:
        number, _, is_done, _ = state
        return (~is_done).any() & (number < max_steps)

    start = 0, ops.full_like(like, -1), ops.full(like.shape, False), key
    return while_loop(continues, step, start)[1]


def binomial(
    key: ArrayLike,
    n: ArrayLike,
    p: ArrayLike,
    shape: ShapeLike | None = None,
    dtype: DTypeLike = None,
) -> Value:
    """Numbers of successes in `n` independent trials, each with probability `p`, as floats.

    They are nan where `n` is negative or nan or `p` is below 0 or nan, and infinite where `n` is.

    >>> from functx import random
    >>> random.binomial(random.key(0), 10, [0.1, 0.5]).shape
    (2,)
    """
    key, _, dtype = check_draw("binomial", key, (), dtype)
    n, p = operand(n), operand(p)
    shape = result_shape("binomial", shape, n, p)
    return _binomial(key, n, p, shape=shape, dtype=dtype)


@partial(jit, static_argnames=("shape", "dtype"))
def _binomial(key: Value, n: ArrayLike, p: ArrayLike, shape: Shape, dtype: DType) -> Value:
    (p,) = promote_inexact(ops.stop_gradient(p))
    n = ops.convert_element_type(ops.stop_gradient(n), p.dtype)
    n, p = broadcast_to(n, shape), broadcast_to(p, shape)
    is_below_half = p < 0.5
    # Successes of the less likely kind are counted.
    q = ops.select(is_below_half, p, 1.0 - p)
    has_no_count = (n != n) | (n < 0.0)
    has_no_chance = (q != q) | (q < 0.0)
    q = ops.select(has_no_chance, 0.01, q)
    is_small = has_no_count | (n * q <= 10.0)
    n = ops.floor(n)
    counts = ops.select(
        is_small,
        _binomial_by_gaps(key, ops.select(is_small, n, 0.0), q),
        _binomial_by_rejection(key, ops.select(is_small, 1e4, n), ops.select(is_small, 0.5, q)),
    )
    is_infinite, is_undefined = ops.abs(n) == np.inf, has_no_count | has_no_chance
    counts = ops.select(is_infinite, np.inf, ops.select(is_below_half, counts, n - counts))
    return ops.convert_element_type(ops.select(is_undefined, np.nan, counts), dtype)


def _binomial_by_gaps(key: Value, n: Value, p: Value) -> Value:
    """The number of gaps between successes, which are geometric, that fit into `n` trials."""
    log_failure = ops.log1p(-p)

    def add_gap(state: Values) -> Values:
        count, position, key = state
        count = ops.select(position <= n, count + 1, count)
        u = uniform(subkey(key, 0), p.shape, p.dtype)
        return count, position + ops.ceil(ops.log(u) / log_failure), subkey(key, 1)

    start = ops.zeros_like(p), ops.zeros_like(p), key
    return while_loop(lambda state: (state[1] <= n).any(), add_gap, start)[0] - 1


def _binomial_by_rejection(key: Value, n: Value, p: Value) -> Value:
    """Counts for many expected successes by transformed rejection.

    Hoermann, "The generation of binomial random variates" (1993), algorithm BTRS.
    """
    deviation = ops.sqrt(n * p * (1 - p))
    b = 1.15 + 2.53 * deviation
    a = -0.0873 + 0.0248 * b + 0.01 * p
    center = n * p + 0.5
    squeeze = 0.92 - 4.2 / b
    odds = p / (1 - p)
    alpha = (2.83 + 5.1 / b) * deviation
    mode = ops.floor((n + 1) * p)

    def propose(u: Value, v: Value, distance: Value) -> tuple[Value, Value]:
        k = ops.floor((2 * a / distance + b) * u + center)
        is_certain = (distance >= 0.07) & (v <= squeeze)
        is_outside = (k < 0) | (k > n)
        log_density = (
            (mode + 0.5) * ops.log((mode + 1) / (odds * (n - mode + 1)))
            + (n + 1) * ops.log((n - mode + 1) / (n - k + 1))
            + (k + 0.5) * ops.log(odds * (n - k + 1) / (k + 1))
            + stirling_error(mode)
            + stirling_error(n - mode)
            - stirling_error(k)
            - stirling_error(n - k)
        )
        is_below = ops.log(v * alpha / (a / (distance * distance) + b)) <= log_density
        return k, is_certain | (~is_outside & is_below)

    return _reject(key, p, propose)


def stirling_error(k: Value) -> Value:
    """log(k!) minus Stirling's formula for it in k + 1, for integers k >= 0."""
    square = (k + 1) * (k + 1)
    series = (1 / 12 - (1 / 360 - 1 / 1260 / square) / square) / (k + 1)
    place = ops.convert_element_type(ops.clamp(0.0, k, len(_STIRLING_ERRORS) - 1.0), np.int32)
    table = np.array(_STIRLING_ERRORS, k.dtype)
    return ops.select(k < len(_STIRLING_ERRORS), take_from_vector(table, place), series)


_STIRLING_ERRORS = [
    math.lgamma(k + 1) + (k + 1) - (k + 0.5) * math.log(k + 1) - 0.5 * math.log(2 * math.pi)
    for k in range(10)
]


def multinomial(
    key: ArrayLike,
    n: ArrayLike,
    p: ArrayLike,
    *,
    shape: ShapeLike | None = None,
    dtype: DTypeLike = None,
    unroll: int | bool = 1,
) -> Value:
    """Numbers of results of each kind in `n` independent trials, where kind i has the probability `p[..., i]`.

    The last axis of `shape`, by default the shape of `p`, is that of the kinds. `unroll` is that of the
    `scan` over the kinds.

    >>> from functx import random
    >>> int(random.multinomial(random.key(0), 7, [0.2, 0.3, 0.5]).sum())
    7
    """
    key, _, dtype = check_draw("multinomial", key, (), dtype)
    n, p = operand(n), operand(p)
    aval = aval_of(p)
    shape = aval.shape if shape is None else canonical_shape(shape)
    if not shape:
        raise ShapeError(f"multinomial: p must have an axis, that of the kinds; got {aval!r}")
    result_shape("multinomial", shape, p)
    result_shape("multinomial", shape[:-1], n)
    return _multinomial(key, n, p, shape=shape, dtype=dtype, unroll=unroll)


@partial(jit, static_argnames=("shape", "dtype", "unroll"))
def _multinomial(
    key: Value, n: ArrayLike, p: ArrayLike, shape: Shape, dtype: DType, unroll: int | bool
) -> Value:
    n, p = promote_inexact(ops.stop_gradient(n), ops.stop_gradient(p))
    n, p = broadcast_to(n, shape[:-1]), ops.moveaxis(broadcast_to(p, shape), len(shape) - 1, 0)
    rest = ops.cumsum(p, 0, reverse=True)
    shares = p / ops.select(rest == 0, 1.0, rest)

    def draw(left: Value, xs: tuple[Value, Value]) -> tuple[Value, Value]:
        share, key = xs
        count = binomial(key, left, ops.clamp(0.0, share, 1.0), dtype=left.dtype)
        return left - count, count

    keys = random_split(key, (shape[-1],))
    _, counts = scan(draw, n, (shares, keys), unroll=unroll)
    return ops.convert_element_type(ops.moveaxis(counts, 0, len(shape) - 1), dtype)
