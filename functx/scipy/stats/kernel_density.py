"""Estimates of densities from samples by Gaussian kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self, TypeAlias

import jax

import functx.numpy as np
from functx.core.errors import ArgumentError, DTypeError, ShapeError
from functx.core.types import is_complex
from functx.core.typing import ArrayLike, ShapeLike, Value
from functx.lax.gamma_ratios import LOG_TWO_PI
from functx.nn.activations import logsumexp
from functx.numpy.promotion import promote_inexact
from functx.ops.operands import canonical_shape
from functx.random.keys import split
from functx.random.samplers import choice, normal
from functx.scipy.special import ndtr
from functx.scipy.stats import multivariate_normal

Bandwidth: TypeAlias = "str | ArrayLike | Callable[[gaussian_kde], ArrayLike] | None"


@jax.tree_util.register_pytree_node_class
class gaussian_kde:  # noqa: N801 - SciPy's name
    """The estimate of a density from the columns of `dataset` (d, n), or n numbers: a Gaussian around each.

    The Gaussians have the `weights` (n,), by default equal ones, and the covariance of the data times
    a factor squared: a power of the effective number of data by the rule of "scott", the default, or
    "silverman", a number, or a function of the estimate. An estimate is a pytree of arrays.

    >>> import numpy
    >>> from functx.scipy.stats import gaussian_kde
    >>> kde = gaussian_kde(numpy.array([-1.0, 0.0, 1.5]))
    >>> kde(numpy.array([0.0, 1.0])).round(4)
    array([0.256 , 0.2157], dtype=float32)
    """

    _fields = ("neff", "dataset", "weights", "covariance", "inv_cov")
    neff: Value
    """The effective number of data, 1 / sum(weights**2)."""
    dataset: Value
    weights: Value
    covariance: Value
    """The covariance of the Gaussians."""
    inv_cov: Value
    """The inverse of `covariance`."""

    def __init__(
        self, dataset: ArrayLike, bw_method: Bandwidth = None, weights: ArrayLike | None = None
    ):
        self.dataset = _as_columns(dataset)
        if self.dataset.size < 2:
            raise ShapeError(
                f"gaussian_kde: dataset must have at least two elements; got the shape {self.dataset.shape}"
            )
        if weights is None:
            (self.dataset,) = promote_inexact(self.dataset)
            self.weights = np.full(self.n, 1.0 / self.n, self.dataset.dtype)
        else:
            self.dataset, given = map(np.asarray, promote_inexact(self.dataset, weights))
            if given.shape != (self.n,):
                raise ShapeError(
                    f"gaussian_kde: weights must have the shape ({self.n},); got {given.shape}"
                )
            self.weights = given / np.sum(given)
        self.neff = 1 / np.sum(self.weights**2)
        self.set_bandwidth(bw_method)

    def tree_flatten(self) -> tuple[list[Any], None]:
        """The arrays of the estimate."""
        return [getattr(self, name) for name in self._fields], None

    @classmethod
    def tree_unflatten(cls, _: None, children: Sequence[Any]) -> Self:
        """The estimate of the arrays."""
        self = object.__new__(cls)
        vars(self).update(zip(cls._fields, children, strict=True))
        return self

    @property
    def d(self) -> int:
        """The number of dimensions."""
        return self.dataset.shape[0]

    @property
    def n(self) -> int:
        """The number of data."""
        return self.dataset.shape[1]

    def set_bandwidth(self, bw_method: Bandwidth = None) -> None:
        """Change the rule for the covariance of the Gaussians, as `gaussian_kde` takes it."""
        square = np.square(self._bandwidth_factor(bw_method))
        covariance = np.reshape(np.cov(self.dataset, aweights=self.weights), (self.d, self.d))
        self.covariance = covariance * square
        self.inv_cov = np.linalg.inv(covariance) / square

    def _bandwidth_factor(self, bw_method: Bandwidth) -> ArrayLike:
        """The factor of the rule, which multiplies standard deviations."""
        if bw_method is None or isinstance(bw_method, str):
            factors = {None: 1.0, "scott": 1.0, "silverman": (self.d + 2) / 4.0}
            if bw_method in factors:
                return (self.neff * factors[bw_method]) ** (-1.0 / (self.d + 4))  # type: ignore[no-any-return]
        elif callable(bw_method):
            return bw_method(self)
        elif not np.ndim(bw_method):
            return bw_method
        raise ArgumentError(
            "gaussian_kde: bw_method must be 'scott', 'silverman', a number or a function; "
            f"got {bw_method!r}"
        )

    def evaluate(self, points: ArrayLike) -> Value:
        """The density at the columns of `points` (d, m), or at m numbers."""
        exponents, log_norm = self._exponents(points)
        return np.sum(self.weights * np.exp(exponents + log_norm), axis=-1)

    __call__ = pdf = evaluate

    def logpdf(self, x: ArrayLike) -> Value:
        """The logarithm of the density at the columns of `x` (d, m), or at m numbers."""
        exponents, log_norm = self._exponents(x)
        total = logsumexp(np.log(self.weights) + exponents, axis=-1)
        return total + log_norm  # type: ignore[operator]

    def integrate_gaussian(self, mean: ArrayLike, cov: ArrayLike) -> Value:
        """The integral of the density times that of a Gaussian with `mean` (d,) and `cov` (d, d)."""
        center, covariance = np.ravel(np.asarray(mean)), np.asarray(cov)
        covariance = covariance if covariance.ndim == 2 else np.reshape(covariance, (-1, 1))
        if center.shape != (self.d,) or covariance.shape != (self.d, self.d):
            raise ShapeError(
                f"integrate_gaussian: mean and cov must have the shapes ({self.d},) and ({self.d}, {self.d}); "
                f"got {np.shape(mean)} and {np.shape(cov)}"
            )
        total = self.covariance + covariance
        return np.sum(multivariate_normal.pdf(self.dataset.T, center, total) * self.weights)

    def integrate_box_1d(self, low: ArrayLike, high: ArrayLike) -> Value:
        """The probability of the interval from `low` to `high`, for one dimension."""
        if self.d != 1 or np.ndim(low) or np.ndim(high):
            raise ShapeError(
                "integrate_box_1d: the estimate must have one dimension, and low and high be numbers; "
                f"got {self.d} dimensions, and the shapes {np.shape(low)} and {np.shape(high)}"
            )
        sigma = np.sqrt(self.covariance[0, 0])
        below = [ndtr((np.asarray(end) - self.dataset[0]) / sigma) for end in (low, high)]
        return np.sum(self.weights * (below[1] - below[0]))

    def integrate_box(
        self, low_bounds: ArrayLike, high_bounds: ArrayLike, maxpts: int | None = None
    ) -> Value:
        """The probability of the interval between two arrays of one number, for one dimension."""
        return self.integrate_box_1d(np.squeeze(low_bounds), np.squeeze(high_bounds))

    def integrate_kde(self, other: gaussian_kde) -> Value:
        """The integral of the product of two estimates of as many dimensions."""
        if other.d != self.d:
            raise ShapeError(
                f"integrate_kde: the estimates must have as many dimensions; got {self.d} and {other.d}"
            )
        centers, means = self.dataset.T[:, None], other.dataset.T
        densities = multivariate_normal.pdf(centers, means, self.covariance + other.covariance)
        return np.sum(densities * self.weights[:, None] * other.weights)

    def resample(self, key: ArrayLike, shape: ShapeLike = ()) -> Value:
        """Points drawn from the density, (d, *shape)."""
        index_key, noise_key = split(key)
        index = choice(index_key, self.n, shape=shape, p=self.weights)
        noise = normal(noise_key, (*canonical_shape(shape), self.d), self.dataset.dtype)
        factor = np.linalg.cholesky(self.covariance)
        return self.dataset[:, index] + np.einsum("ij,...j->i...", factor, noise)

    def _exponents(self, points: ArrayLike) -> tuple[Value, Value]:
        """The exponents (m, n) of the Gaussians at points (d, m), and the logarithm of their factor."""
        columns = _as_columns(points)
        if columns.shape == (1, self.d):
            columns = columns.T
        if columns.shape[0] != self.d:
            raise ShapeError(
                f"gaussian_kde: points must have {self.d} rows; got the shape {columns.shape}"
            )
        factor = np.linalg.cholesky(self.inv_cov)
        # Differences of whitened points keep their digits, other than a quadratic form.
        rows, data = np.matmul(columns.T, factor), np.matmul(self.dataset.T, factor)
        squares = np.sum(np.square(rows[:, None] - data), axis=-1)
        log_determinant = np.sum(np.log(np.diagonal(factor)))
        return squares / -2, log_determinant - self.d * LOG_TWO_PI / 2


def _as_columns(x: ArrayLike) -> Value:
    """`x` with at least two dimensions; DTypeError for complex numbers."""
    x = np.asarray(x)
    if is_complex(x.dtype):
        raise DTypeError(
            f"gaussian_kde: arrays must be real; got {x.dtype}", fix="Take the real part."
        )
    return x if x.ndim > 1 else np.reshape(x, (1, -1))
