"""Continuous distributions by gamma and beta functions; in their docstrings, z is (x - loc) / scale."""

from __future__ import annotations

import math

from functx.core.typing import Value
from functx.numpy.operators import abs, power
from functx.numpy.ufuncs import exp, log, log1p, where
from functx.scipy.special import (
    betainc,
    betaincc,
    betaln,
    gammainc,
    gammaincc,
    gammaln,
    xlog1py,
    xlogy,
)
from functx.scipy.stats.distribution import ContinuousDistribution, SymmetricDistribution
from functx.scipy.stats.kernels import log_binomial, log_one_plus_square, log_poisson
from functx.scipy.stats.quantiles import Quantile


class GammaDistribution(ContinuousDistribution):
    """The gamma distribution of shape `a`.

    The density is z**(a - 1) exp(-z) / (gamma(a) scale) for z >= 0.
    """

    name = "gamma"
    shapes = ("a",)
    low = 0.0

    def logpdf(self, z: Value, a: Value) -> Value:
        return log_poisson(a - 1, z)

    def cdf(self, z: Value, a: Value) -> Value:
        return gammainc(a, z)

    def sf(self, z: Value, a: Value) -> Value:
        return gammaincc(a, z)

    def ppf(self, q: Value, a: Value) -> Value:
        return Quantile(distribution="gamma")(q, a)

    def isf(self, q: Value, a: Value) -> Value:
        return Quantile(distribution="gamma", is_upper=True)(q, a)


class ChiSquaredDistribution(ContinuousDistribution):
    """The chi-squared distribution with `df` degrees of freedom.

    The density is (z / 2)**(df / 2 - 1) exp(-z / 2) / (2 gamma(df / 2) scale) for z >= 0.
    """

    name = "chi2"
    shapes = ("df",)
    low = 0.0

    def logpdf(self, z: Value, df: Value) -> Value:
        return log_poisson(df / 2 - 1, z / 2) - math.log(2)

    def cdf(self, z: Value, df: Value) -> Value:
        return gammainc(df / 2, z / 2)

    def sf(self, z: Value, df: Value) -> Value:
        return gammaincc(df / 2, z / 2)

    def ppf(self, q: Value, df: Value) -> Value:
        return 2 * Quantile(distribution="gamma")(q, df / 2)

    def isf(self, q: Value, df: Value) -> Value:
        return 2 * Quantile(distribution="gamma", is_upper=True)(q, df / 2)


class BetaDistribution(ContinuousDistribution):
    """The beta distribution of shapes `a` and `b`.

    The density is z**(a - 1) (1 - z)**(b - 1) / (beta(a, b) scale) for z in [0, 1].
    """

    name = "beta"
    shapes = ("a", "b")
    low, high = 0.0, 1.0

    def logpdf(self, z: Value, a: Value, b: Value) -> Value:
        has_mode = (a >= 1) & (b >= 1)
        direct = xlogy(a - 1, z) + xlog1py(b - 1, -z) - betaln(a, b)
        n = where(has_mode, a + b - 2, 0.0)
        return where(has_mode, log1p(n) + log_binomial(where(has_mode, a - 1, 0.0), n, z), direct)

    def cdf(self, z: Value, a: Value, b: Value) -> Value:
        return betainc(a, b, z)

    def sf(self, z: Value, a: Value, b: Value) -> Value:
        return betaincc(a, b, z)

    def ppf(self, q: Value, a: Value, b: Value) -> Value:
        return Quantile(distribution="beta")(q, a, b)

    def isf(self, q: Value, a: Value, b: Value) -> Value:
        return Quantile(distribution="beta", is_upper=True)(q, a, b)


class StudentDistribution(SymmetricDistribution):
    """Student's t distribution with `df` degrees of freedom.

    The density is (1 + z**2 / df)**(-(df + 1) / 2) / (sqrt(df) beta(1 / 2, df / 2) scale).
    """

    name = "t"
    shapes = ("df",)

    def logpdf(self, z: Value, df: Value) -> Value:
        kernel = (df + 1) / 2 * log_one_plus_square(z / df**0.5)
        return -kernel - log(df) / 2 - betaln(0.5, df / 2)

    def cdf(self, z: Value, df: Value) -> Value:
        square = z * z
        is_central = square < df
        # P(T**2 <= z**2) as an incomplete beta function, of the smaller of x and 1 - x.
        x = where(is_central, square, df) / (square + df)
        a, b = where(is_central, 0.5, df / 2), where(is_central, df / 2, 0.5)
        tail = where(is_central, betaincc(a, b, x), betainc(a, b, x)) / 2
        out = where(z < 0, tail, 1 - tail)
        # Near 0, where x has no derivative in z, a power series.
        near = exp(self.logpdf(0 * z, df)) * (z - z * square * ((df + 1) / df) / 6)
        return where(square < 1e-8 * df, near + 0.5, out)

    def ppf(self, q: Value, df: Value) -> Value:
        return Quantile(distribution="t")(q, df)


class GeneralizedNormalDistribution(SymmetricDistribution):
    """The generalized normal distribution of shape `beta`: normal for 2, Laplace's for 1.

    The density is beta exp(-|x|**beta) / (2 gamma(1 / beta)).
    """

    name = "gennorm"
    shapes = ("beta",)
    functions = ("pdf", "logpdf", "cdf")
    parameters = ()

    def logpdf(self, x: Value, beta: Value) -> Value:
        return log(beta / 2) - gammaln(1 / beta) - power(abs(x), beta)

    def cdf(self, x: Value, beta: Value) -> Value:
        tail = gammaincc(1 / beta, power(abs(x), beta)) / 2
        out = where(x < 0, tail, 1 - tail)
        return where(x == 0, x * exp(self.logpdf(0 * x, beta)) + 0.5, out)


GAMMA_AND_BETA_DISTRIBUTIONS = [
    BetaDistribution(),
    ChiSquaredDistribution(),
    GammaDistribution(),
    GeneralizedNormalDistribution(),
    StudentDistribution(),
]
