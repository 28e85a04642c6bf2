"""The Dirichlet distribution of vectors of probabilities, of given concentrations."""

from __future__ import annotations

import math

from ml_dtypes import finfo

import functx.numpy as np
from functx.core.errors import ShapeError
from functx.core.typing import ArrayLike, Value
from functx.numpy.promotion import promote_real
from functx.scipy.special import gammaln, xlogy

__all__ = ["logpdf", "pdf"]


def logpdf(x: ArrayLike, alpha: ArrayLike) -> Value:
    """The logarithm of the density, gamma(sum(alpha)) prod(x**(alpha - 1) / gamma(alpha)), at the columns of `x`.

    `alpha` has the shape (n,), and `x` (n, ...) or (n - 1, ...), without the last row, which makes the
    sum of each column 1. The density is 0 unless the sum is 1 up to rounding and no element is
    negative.

    >>> import numpy
    >>> from functx.scipy.stats import dirichlet
    >>> round(float(dirichlet.logpdf(numpy.array([0.2, 0.8]), numpy.array([2.0, 2.0]))), 4)
    -0.0408
    """
    x, alpha = map(np.asarray, promote_real("dirichlet.logpdf", x, alpha))
    if alpha.ndim != 1:
        raise ShapeError(f"dirichlet.logpdf: alpha must have one dimension; got {alpha.shape}")
    n = alpha.shape[0]
    if not x.ndim or x.shape[0] not in (n, n - 1):
        raise ShapeError(f"dirichlet.logpdf: x must have {n} or {n - 1} rows; got {x.shape}")
    if x.shape[0] != n:
        x = np.concatenate([x, 1 - np.sum(x, axis=0, keepdims=True)], axis=0)
    log_beta = np.sum(gammaln(alpha)) - gammaln(np.sum(alpha))
    powers = xlogy(np.reshape(alpha - 1, (n,) + (1,) * (x.ndim - 1)), x)
    tolerance = max(1e-6, n * float(finfo(x.dtype).eps))
    in_simplex = np.all(x >= 0, axis=0) & (np.abs(np.sum(x, axis=0) - 1) < tolerance)
    return np.where(in_simplex, np.sum(powers, axis=0) - log_beta, -math.inf)


def pdf(x: ArrayLike, alpha: ArrayLike) -> Value:
    """The density at the columns of `x`; the arguments are those of `logpdf`."""
    return np.exp(logpdf(x, alpha))
