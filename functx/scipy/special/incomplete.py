"""Incomplete gamma and beta functions, their inverses, and the zeta function."""

from __future__ import annotations

import math

from functx import ops
from functx.core.typing import ArrayLike, Value
from functx.lax.gamma_ratios import LOG_TWO_PI
from functx.lax.hurwitz_zeta import Zeta
from functx.lax.incomplete_beta import IncompleteBeta
from functx.lax.incomplete_gamma import IncompleteGamma
from functx.lax.inverse_functions import (
    InverseIncompleteBeta,
    InverseIncompleteGamma,
    StudentCdf,
    StudentQuantile,
)
from functx.numpy.promotion import as_inexact
from functx.numpy.ufuncs import broadcast_inexact

__all__ = [
    "betainc",
    "betaincc",
    "betainccinv",
    "betaincinv",
    "gammainc",
    "gammaincc",
    "gammainccinv",
    "gammaincinv",
    "stdtr",
    "stdtrit",
    "zeta",
]


def gammainc(a: ArrayLike, x: ArrayLike) -> Value:
    """The regularized lower incomplete gamma function: the distribution function of gamma variates.

    It is the integral of t**(a - 1) exp(-t) / gamma(a) over t from 0 to x, differentiable any number
    of times in both operands; nan for negative operands.

    >>> import functx
    >>> round(float(functx.scipy.special.gammainc(1.0, 2.0)), 4)
    0.8647
    """
    return IncompleteGamma()(*broadcast_inexact(a, x))


def gammaincc(a: ArrayLike, x: ArrayLike) -> Value:
    """1 - `gammainc(a, x)`, with all digits where it is small.

    >>> import functx
    >>> round(float(functx.scipy.special.gammaincc(1.0, 2.0)), 4)
    0.1353
    """
    return IncompleteGamma(is_upper=True)(*broadcast_inexact(a, x))


def betainc(a: ArrayLike, b: ArrayLike, x: ArrayLike) -> Value:
    """The regularized incomplete beta function: the distribution function of beta variates.

    It is the integral of t**(a - 1) (1 - t)**(b - 1) / beta(a, b) over t from 0 to x, differentiable
    any number of times in all operands; nan for negative parameters, and for x outside [0, 1].

    >>> import functx
    >>> round(float(functx.scipy.special.betainc(2.0, 1.0, 0.5)), 4)
    0.25
    """
    return IncompleteBeta()(*broadcast_inexact(a, b, x))


def betaincc(a: ArrayLike, b: ArrayLike, x: ArrayLike) -> Value:
    """1 - `betainc(a, b, x)`, with all digits where it is small.

    >>> import functx
    >>> round(float(functx.scipy.special.betaincc(2.0, 1.0, 0.5)), 4)
    0.75
    """
    return IncompleteBeta(is_upper=True)(*broadcast_inexact(a, b, x))


def gammaincinv(a: ArrayLike, y: ArrayLike) -> Value:
    """The x at which `gammainc(a, x)` is y: the quantile of gamma variates.

    It is differentiable any number of times in both operands; nan for a parameter that is not
    positive, and for y outside [0, 1].

    >>> import functx
    >>> round(float(functx.scipy.special.gammaincinv(1.0, 0.5)), 4)
    0.6931
    """
    return InverseIncompleteGamma()(*broadcast_inexact(a, y))


def gammainccinv(a: ArrayLike, y: ArrayLike) -> Value:
    """The x at which `gammaincc(a, x)` is y; as `gammaincinv`.

    >>> import functx
    >>> round(float(functx.scipy.special.gammainccinv(1.0, 0.1)), 4)
    2.3026
    """
    return InverseIncompleteGamma(is_upper=True)(*broadcast_inexact(a, y))


def betaincinv(a: ArrayLike, b: ArrayLike, y: ArrayLike) -> Value:
    """The x at which `betainc(a, b, x)` is y: the quantile of beta variates.

    It is differentiable any number of times in all operands; nan for parameters that are not
    positive, and for y outside [0, 1].

    >>> import functx
    >>> round(float(functx.scipy.special.betaincinv(2.0, 1.0, 0.25)), 4)
    0.5
    """
    return InverseIncompleteBeta()(*broadcast_inexact(a, b, y))


def betainccinv(a: ArrayLike, b: ArrayLike, y: ArrayLike) -> Value:
    """The x at which `betaincc(a, b, x)` is y; as `betaincinv`.

    >>> import functx
    >>> round(float(functx.scipy.special.betainccinv(2.0, 1.0, 0.75)), 4)
    0.5
    """
    return InverseIncompleteBeta(is_upper=True)(*broadcast_inexact(a, b, y))


def stdtr(df: ArrayLike, t: ArrayLike) -> Value:
    """The distribution function of Student's t with `df` degrees of freedom.

    It is differentiable any number of times in both operands.

    >>> import functx
    >>> round(float(functx.scipy.special.stdtr(1.0, 1.0)), 4)
    0.75
    """
    return StudentCdf()(*broadcast_inexact(df, t))


def stdtrit(df: ArrayLike, p: ArrayLike) -> Value:
    """The t at which `stdtr(df, t)` is p: the quantile of Student's t.

    It is differentiable any number of times in both operands.

    >>> import functx
    >>> round(float(functx.scipy.special.stdtrit(1.0, 0.75)), 4)
    1.0
    """
    return StudentQuantile()(*broadcast_inexact(df, p))


def zeta(x: ArrayLike, q: ArrayLike | None = None) -> Value:
    """The Hurwitz zeta function, the sum of (q + n)**-x over n >= 0, or with no q the Riemann zeta function.

    The Hurwitz zeta function is nan for x < 1; the Riemann one is analytically continued. Both are
    differentiable any number of times in all operands.

    >>> import functx
    >>> round(float(functx.scipy.special.zeta(2.0, 1.0)), 4)
    1.6449
    """
    if q is not None:
        x, q = broadcast_inexact(x, q)
        return ops.select(ops.lt(x, 1.0), math.nan, Zeta()(x, q))
    x = as_inexact(x)
    # zeta(x) = 2 (2 pi)**(x - 1) sin(pi x / 2) gamma(1 - x) zeta(1 - x)
    negative = ops.lt(x, 0.0)
    mirrored = ops.select(negative, ops.sub(1.0, x), 2.0)
    value = Zeta()(ops.select(negative, mirrored, x), ops.constant_like(x, 1.0))
    log = ops.sub(ops.lgamma(mirrored), ops.mul(mirrored, LOG_TWO_PI))
    half = ops.mul(ops.select(negative, ops.neg(x), 0.0), 0.5)
    whole = ops.floor(ops.add(half, 0.5))
    sine = ops.sin(ops.mul(ops.sub(half, whole), math.pi))
    sine = ops.select(ops.eq(ops.rem(whole, 2.0), 1.0), ops.neg(sine), sine)
    # The square of a root, which does not overflow where the product is finite.
    root = ops.exp(ops.mul(log, 0.5))
    product = ops.mul(ops.mul(ops.mul(ops.mul(-2.0, sine), root), value), root)
    product = ops.select(ops.eq(sine, 0.0) & ops.eq(root, math.inf), 0.0, product)
    return ops.select(negative, product, value)
