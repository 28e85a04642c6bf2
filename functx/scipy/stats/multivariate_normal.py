"""The normal distribution of vectors, of given mean and covariance."""

from __future__ import annotations

import math

import functx.numpy as np
from functx.core.argument_errors import explain_errors as _explain_errors
from functx.core.errors import ArgumentError, ShapeError
from functx.core.typing import ArrayLike, Value
from functx.lax.gamma_ratios import LOG_TWO_PI
from functx.numpy.promotion import promote_real
from functx.scipy.linalg import solve_triangular

__all__ = ["logpdf", "pdf"]


def logpdf(x: ArrayLike, mean: ArrayLike, cov: ArrayLike, allow_singular: None = None) -> Value:
    """The logarithm of the density at the vectors `x` (..., n), an array of shape (...).

    `cov` is a positive definite matrix (..., n, n), or a number, the variance of each component. For
    a number `mean`, `x` holds numbers, not vectors. ArgumentError for an `allow_singular` that is not
    None.

    >>> import numpy
    >>> from functx.scipy.stats import multivariate_normal
    >>> round(float(multivariate_normal.logpdf(numpy.zeros(2), numpy.zeros(2), numpy.eye(2))), 4)
    -1.8379
    """
    if allow_singular is not None:
        raise ArgumentError(
            f"multivariate_normal.logpdf: allow_singular must be None; got {allow_singular!r}"
        )
    x, mean, cov = map(np.asarray, promote_real("multivariate_normal.logpdf", x, mean, cov))
    if not mean.ndim and cov.ndim < 2:
        return ((x - mean) ** 2 / cov + np.log(2 * math.pi * cov)) / -2
    y, n = x - mean, mean.shape[-1] if mean.ndim else cov.shape[-1]
    if not cov.ndim:
        squared_norm, log_determinant = np.sum(y * y, axis=-1) / cov, n * np.log(cov)
    elif cov.shape[-2:] != (n, n):
        raise ShapeError(
            f"multivariate_normal.logpdf: cov must have the shape (..., {n}, {n}) for vectors of length {n}; "
            f"got {cov.shape}"
        )
    else:
        factor = np.linalg.cholesky(cov)
        whitened = _solve_lower_triangular(factor, y)
        squared_norm = np.sum(whitened * whitened, axis=-1)
        log_determinant = 2 * np.sum(np.log(np.diagonal(factor, axis1=-2, axis2=-1)), axis=-1)
    return (squared_norm + log_determinant + n * LOG_TWO_PI) / -2


def _solve_lower_triangular(factor: Value, y: Value) -> Value:
    """The solutions of factor @ z = y for matrices (..., n, n) and vectors (..., n)."""
    if factor.ndim == 2:
        # Vectors that share a matrix are its right-hand sides.
        columns = np.moveaxis(np.reshape(y, (-1, y.shape[-1])), 0, -1)
        columns = solve_triangular(factor, columns, lower=True)
        return np.reshape(np.moveaxis(columns, -1, 0), y.shape)
    return solve_triangular(factor, y[..., None], lower=True)[..., 0]


def pdf(x: ArrayLike, mean: ArrayLike, cov: ArrayLike) -> Value:
    """The density at the vectors `x`; the arguments are those of `logpdf`."""
    return np.exp(logpdf(x, mean, cov))


_explain_errors(__name__)
