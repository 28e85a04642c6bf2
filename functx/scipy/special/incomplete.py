"""Incomplete gamma and beta functions."""

from __future__ import annotations

from functx.core.typing import ArrayLike, Value
from functx.lax.incomplete_beta import IncompleteBeta
from functx.lax.incomplete_gamma import IncompleteGamma
from functx.numpy.ufuncs import broadcast_inexact


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
