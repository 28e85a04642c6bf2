"""Continuous distributions with elementary densities; in their docstrings, z is (x - loc) / scale."""

from __future__ import annotations

import math

from functx.core.typing import Value
from functx.lax.gamma_ratios import LOG_TWO_PI
from functx.nn.activations import log1mexp, log_sigmoid, sigmoid
from functx.numpy.operators import abs, square
from functx.numpy.ufuncs import arctan2, exp, expm1, log, log1p, maximum, sin, tan, where
from functx.scipy.special import i0e, log_ndtr, logit, ndtr, ndtri
from functx.scipy.stats.distribution import ContinuousDistribution, SymmetricDistribution
from functx.scipy.stats.kernels import (
    log_normal_mass,
    log_one_plus_square,
    log_share,
)


class NormalDistribution(SymmetricDistribution):
    """The normal distribution of mean `loc` and standard deviation `scale`.

    The density is exp(-z**2 / 2) / (sqrt(2 pi) scale).
    """

    name = "norm"
    formulas_at_infinity = ("logpdf",)

    def logpdf(self, z: Value) -> Value:
        return (square(z) + LOG_TWO_PI) / -2

    def cdf(self, z: Value) -> Value:
        return ndtr(z)

    def logcdf(self, z: Value) -> Value:
        return log_ndtr(z)

    def ppf(self, q: Value) -> Value:
        return ndtri(q)


class CauchyDistribution(SymmetricDistribution):
    """The Cauchy distribution of median `loc`.

    The density is 1 / (pi (1 + z**2) scale).
    """

    name = "cauchy"
    formulas_at_infinity = ("logpdf",)

    def logpdf(self, z: Value) -> Value:
        return -log_one_plus_square(z) - math.log(math.pi)

    def cdf(self, z: Value) -> Value:
        return arctan2(1.0, -z) / math.pi

    def ppf(self, q: Value) -> Value:
        is_low = q < 0.5
        cotangent = 1 / tan(where(is_low, q, 1 - q) * math.pi)
        return where(is_low, -cotangent, cotangent)


class LaplaceDistribution(SymmetricDistribution):
    """The Laplace distribution of mean `loc`.

    The density is exp(-|z|) / (2 scale).
    """

    name = "laplace"
    formulas_at_infinity = ("logpdf",)

    def logpdf(self, z: Value) -> Value:
        return -abs(z) - math.log(2)

    def cdf(self, z: Value) -> Value:
        return where(z <= 0, exp(z) / 2, 1 - exp(-z) / 2)

    def logcdf(self, z: Value) -> Value:
        return where(z <= 0, z - math.log(2), log1p(exp(-z) / -2))

    def ppf(self, q: Value) -> Value:
        return where(q <= 0.5, log(2 * q), -log(2 * (1 - q)))


class LogisticDistribution(SymmetricDistribution):
    """The logistic distribution of mean `loc`.

    The density is exp(-z) / ((1 + exp(-z))**2 scale).
    """

    name = "logistic"
    formulas_at_infinity = ("logpdf",)
    quantile_variable = "x"

    def logpdf(self, z: Value) -> Value:
        return log_sigmoid(z) + log_sigmoid(-z)

    def cdf(self, z: Value) -> Value:
        return sigmoid(z)

    def logcdf(self, z: Value) -> Value:
        return log_sigmoid(z)

    def ppf(self, q: Value) -> Value:
        return logit(q)


class GumbelDistribution(ContinuousDistribution):
    """The Gumbel distribution of maxima, of mode `loc`.

    The density is exp(-z - exp(-z)) / scale.
    """

    name = "gumbel_r"
    quantile_variable = "p"

    def logpdf(self, z: Value) -> Value:
        return -z - exp(-z)

    def decay(self, z: Value) -> Value:
        """exp(-z), with z of at least -7, where exp(-exp(-z)) and its derivatives are already 0."""
        return exp(-maximum(z, -7.0))

    def cdf(self, z: Value) -> Value:
        return exp(-self.decay(z))

    def logcdf(self, z: Value) -> Value:
        return -exp(-z)

    def sf(self, z: Value) -> Value:
        return -expm1(-self.decay(z))

    def logsf(self, z: Value) -> Value:
        # For large z, log((1 - exp(-y)) / y) - z with y = exp(-z), which underflows.
        y = self.decay(z)
        return where(y < 1e-4, -z - y / 2 + y * y / 24, log1mexp(y))

    def ppf(self, q: Value) -> Value:
        return -log(-log(q))

    def isf(self, q: Value) -> Value:
        return -log(-log1p(-q))


class ReversedGumbelDistribution(ContinuousDistribution):
    """The Gumbel distribution of minima, of mode `loc`: that of -z for z of `gumbel_r`.

    The density is exp(z - exp(z)) / scale.
    """

    name = "gumbel_l"
    quantile_variable = "p"
    reversed = GumbelDistribution()

    def logpdf(self, z: Value) -> Value:
        return self.reversed.logpdf(-z)

    def cdf(self, z: Value) -> Value:
        return self.reversed.sf(-z)

    def logcdf(self, z: Value) -> Value:
        return self.reversed.logsf(-z)

    def sf(self, z: Value) -> Value:
        return self.reversed.cdf(-z)

    def logsf(self, z: Value) -> Value:
        return self.reversed.logcdf(-z)

    def ppf(self, q: Value) -> Value:
        return -self.reversed.isf(q)

    def isf(self, q: Value) -> Value:
        return -self.reversed.ppf(q)


class ExponentialDistribution(ContinuousDistribution):
    """The exponential distribution from `loc` on.

    The density is exp(-z) / scale for z >= 0.
    """

    name = "expon"
    low = 0.0

    def logpdf(self, z: Value) -> Value:
        return -z

    def cdf(self, z: Value) -> Value:
        return -expm1(-z)

    def logcdf(self, z: Value) -> Value:
        return log1mexp(z)

    def sf(self, z: Value) -> Value:
        return exp(-z)

    def logsf(self, z: Value) -> Value:
        return -z

    def ppf(self, q: Value) -> Value:
        return -log1p(-q)

    def isf(self, q: Value) -> Value:
        return -log(q)


class ParetoDistribution(ContinuousDistribution):
    """The Pareto distribution of exponent `b`.

    The density is b / (z**(b + 1) scale) for z >= 1.
    """

    name = "pareto"
    shapes = ("b",)
    low = 1.0

    def logpdf(self, z: Value, b: Value) -> Value:
        return log(b) - (b + 1) * log(z)

    def cdf(self, z: Value, b: Value) -> Value:
        return -expm1(-b * log(z))

    def logcdf(self, z: Value, b: Value) -> Value:
        return log1mexp(b * log(z))

    def sf(self, z: Value, b: Value) -> Value:
        return exp(-b * log(z))

    def logsf(self, z: Value, b: Value) -> Value:
        return -b * log(z)

    def ppf(self, q: Value, b: Value) -> Value:
        return exp(-log1p(-q) / b)

    def isf(self, q: Value, b: Value) -> Value:
        return exp(-log(q) / b)


class UniformDistribution(ContinuousDistribution):
    """The uniform distribution on [loc, loc + scale].

    The density is 1 / scale.
    """

    name = "uniform"
    low, high = 0.0, 1.0

    def logpdf(self, z: Value) -> Value:
        return 0.0 * z

    def cdf(self, z: Value) -> Value:
        return z

    def sf(self, z: Value) -> Value:
        return 1 - z

    def ppf(self, q: Value) -> Value:
        return q

    def isf(self, q: Value) -> Value:
        return 1 - q


class TruncatedNormalDistribution(ContinuousDistribution):
    """The normal distribution of mean `loc` and standard deviation `scale`, given that z is in [a, b].

    The density is the normal one, divided by the probability of [a, b].
    """

    name = "truncnorm"
    shapes = ("a", "b")
    functions = ("pdf", "logpdf", "cdf", "logcdf", "sf", "logsf")

    def support(self, a: Value, b: Value) -> tuple[Value, Value]:
        return a, b

    def is_valid(self, a: Value, b: Value) -> Value:
        return a < b

    def logpdf(self, z: Value, a: Value, b: Value) -> Value:
        return (square(z) + LOG_TWO_PI) / -2 - log_normal_mass(a, b)

    def cdf(self, z: Value, a: Value, b: Value) -> Value:
        return exp(self.logcdf(z, a, b))

    def logcdf(self, z: Value, a: Value, b: Value) -> Value:
        return log_share(log_normal_mass(a, z), log_normal_mass(z, b), log_normal_mass(a, b))

    def sf(self, z: Value, a: Value, b: Value) -> Value:
        return exp(self.logsf(z, a, b))

    def logsf(self, z: Value, a: Value, b: Value) -> Value:
        return log_share(log_normal_mass(z, b), log_normal_mass(a, z), log_normal_mass(a, b))


class VonMisesDistribution(ContinuousDistribution):
    """The von Mises distribution of angles, of mean direction 0 and concentration `kappa`.

    The density is exp(kappa cos(x)) / (2 pi i0(kappa)).
    """

    name = "vonmises"
    shapes = ("kappa",)
    functions = ("pdf", "logpdf")
    parameters = ()

    def is_valid(self, kappa: Value) -> Value:
        return kappa >= 0

    def logpdf(self, x: Value, kappa: Value) -> Value:
        # kappa (cos(x) - 1), without cancellation near 0
        return -2 * kappa * square(sin(x / 2)) - LOG_TWO_PI - log(i0e(kappa))


class WrappedCauchyDistribution(ContinuousDistribution):
    """The wrapped Cauchy distribution of angles in [0, 2 pi], of concentration `c` between 0 and 1.

    The density is (1 - c**2) / (2 pi (1 + c**2 - 2 c cos(x))).
    """

    name = "wrapcauchy"
    shapes = ("c",)
    functions = ("pdf", "logpdf")
    parameters = ()
    low, high = 0.0, 2 * math.pi

    def is_valid(self, c: Value) -> Value:
        return (c > 0) & (c < 1)

    def logpdf(self, x: Value, c: Value) -> Value:
        denominator = square(1 - c) + 4 * c * square(sin(x / 2))
        return log1p(-c) + log1p(c) - LOG_TWO_PI - log(denominator)


ELEMENTARY_DISTRIBUTIONS = [
    CauchyDistribution(),
    ExponentialDistribution(),
    GumbelDistribution(),
    LaplaceDistribution(),
    LogisticDistribution(),
    NormalDistribution(),
    ParetoDistribution(),
    ReversedGumbelDistribution(),
    TruncatedNormalDistribution(),
    UniformDistribution(),
    VonMisesDistribution(),
    WrappedCauchyDistribution(),
]
