"""The multinomial distribution of the numbers of outcomes of each kind in n trials."""

from __future__ import annotations

import math

import functx.numpy as np
from functx import ops
from functx.core.errors import DTypeError
from functx.core.tracer import aval_of
from functx.core.types import is_integer
from functx.core.typing import ArrayLike, Value
from functx.numpy.promotion import operand, promote, promote_real
from functx.scipy.special import gammaln, xlogy
from functx.scipy.stats.kernels import exp_of_log

__all__ = ["logpmf", "pmf"]


def logpmf(x: ArrayLike, n: ArrayLike, p: ArrayLike) -> Value:
    """The logarithm of the probability, n! prod(p**x / x!), of the numbers `x` (..., k), of shape (...).

    The outcomes have the probabilities `p` (..., k). The integers `x` have the sum `n`, or the
    probability is 0. DTypeError if they are not of an integer type.

    >>> import numpy
    >>> from functx.scipy.stats import multinomial
    >>> round(float(multinomial.logpmf(numpy.array([1, 2]), 3, numpy.array([0.4, 0.6]))), 4)
    -0.8393
    """
    (p,) = promote_real("multinomial.logpmf", p)
    x, n = promote(operand(x), operand(n))
    if not is_integer(aval_of(x).dtype):
        raise DTypeError(
            f"multinomial.logpmf: x and n must be integers; got {aval_of(x)!r}",
            fix="Convert them with astype.",
        )
    dtype = aval_of(p).dtype
    is_whole = np.sum(x, axis=-1) == n
    x, n = ops.convert_element_type(x, dtype), ops.convert_element_type(n, dtype)
    log_probability = gammaln(n + 1) + np.sum(xlogy(x, p) - gammaln(x + 1), axis=-1)
    return np.where(is_whole, log_probability, -math.inf)


def pmf(x: ArrayLike, n: ArrayLike, p: ArrayLike) -> Value:
    """The probability of the numbers `x`; the arguments are those of `logpmf`."""
    log = logpmf(x, n, p)
    x, n, p = map(np.asarray, (x, n, p))
    counts = gammaln(n + 1) - np.sum(gammaln(x + 1), axis=-1)
    product = np.prod(np.power(p, x), axis=-1) * np.exp(counts)
    return exp_of_log(log, np.where(np.sum(x, axis=-1) == n, product, 0.0))
