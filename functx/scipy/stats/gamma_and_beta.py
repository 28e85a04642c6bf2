"""Continuous distributions by gamma and beta functions; in their docstrings, z is (x - loc) / scale."""

from __future__ import annotations

import math

from functx.core.typing import Value
from functx.lax.gamma_ratios import STIRLING_MIN
from functx.numpy.operators import abs, power
from functx.numpy.ufuncs import exp, log, log1p, where
from functx.scipy.special import (
    betainc,
    betaincc,
    betainccinv,
    betaincinv,
    betaln,
    gammainc,
    gammaincc,
    gammainccinv,
    gammaincinv,
    gammaln,
    stdtr,
    stdtrit,
    xlog1py,
    xlogy,
)
from functx.scipy.stats.distribution import ContinuousDistribution, SymmetricDistribution
from functx.scipy.stats.kernels import (
    log_binomial,
    log_one_plus_square,
    log_poisson,
    poisson_product,
)


class GammaDistribution(ContinuousDistribution):
    """The gamma distribution of shape `a`.

    The density is z**(a - 1) exp(-z) / (gamma(a) scale) for z >= 0.
    """

    name = "gamma"
    shapes = ("a",)
    low = 0.0

    def logpdf(self, z: Value, a: Value) -> Value:
        return log_poisson(a - 1, z)

    def product(self, z: Value, a: Value) -> Value:
        return poisson_product(a - 1, z)

    def cdf(self, z: Value, a: Value) -> Value:
        return gammainc(a, z)

    def sf(self, z: Value, a: Value) -> Value:
        return gammaincc(a, z)

    def ppf(self, q: Value, a: Value) -> Value:
        return gammaincinv(a, q)

    def isf(self, q: Value, a: Value) -> Value:
        return gammainccinv(a, q)


class ChiSquaredDistribution(ContinuousDistribution):
    """The chi-squared distribution with `df` degrees of freedom.

    The density is (z / 2)**(df / 2 - 1) exp(-z / 2) / (2 gamma(df / 2) scale) for z >= 0.
    """

    name = "chi2"
    shapes = ("df",)
    low = 0.0

    def logpdf(self, z: Value, df: Value) -> Value:
        return log_poisson(df / 2 - 1, z / 2) - math.log(2)

    def product(self, z: Value, df: Value) -> Value:
        return poisson_product(df / 2 - 1, z / 2) / 2

    def cdf(self, z: Value, df: Value) -> Value:
        return gammainc(df / 2, z / 2)

    def sf(self, z: Value, df: Value) -> Value:
        return gammaincc(df / 2, z / 2)

    def ppf(self, q: Value, df: Value) -> Value:
        return 2 * gammaincinv(df / 2, q)

    def isf(self, q: Value, df: Value) -> Value:
        return 2 * gammainccinv(df / 2, q)


class BetaDistribution(ContinuousDistribution):
    """The beta distribution of shapes `a` and `b`.

    The density is z**(a - 1) (1 - z)**(b - 1) / (beta(a, b) scale) for z in [0, 1].
    """

    name = "beta"
    shapes = ("a", "b")
    low, high = 0.0, 1.0

    def logpdf(self, z: Value, a: Value, b: Value) -> Value:
        # For large shapes, whose terms cancel, from the probability of a - 1 successes in a + b - 2 trials.
        is_large = (a >= 1) & (b >= 1) & (a + b > 2 * STIRLING_MIN)
        direct = xlogy(a - 1, z) + xlog1py(b - 1, -z) - betaln(a, b)
        n = where(is_large, a + b - 2, 0.0)
        return where(is_large, log1p(n) + log_binomial(where(is_large, a - 1, 0.0), n, z), direct)

    def product(self, z: Value, a: Value, b: Value) -> Value:
        return power(z, a - 1) * power(1 - z, b - 1) * exp(-betaln(a, b))

    def cdf(self, z: Value, a: Value, b: Value) -> Value:
        return betainc(a, b, z)

    def sf(self, z: Value, a: Value, b: Value) -> Value:
        return betaincc(a, b, z)

    def ppf(self, q: Value, a: Value, b: Value) -> Value:
        return betaincinv(a, b, q)

    def isf(self, q: Value, a: Value, b: Value) -> Value:
        return betainccinv(a, b, q)


class StudentDistribution(SymmetricDistribution):
    """Student's t distribution with `df` degrees of freedom.

    The density is (1 + z**2 / df)**(-(df + 1) / 2) / (sqrt(df) beta(1 / 2, df / 2) scale).
    """

    name = "t"
    formulas_at_infinity = ("logpdf",)
    shapes = ("df",)

    def logpdf(self, z: Value, df: Value) -> Value:
        kernel = (df + 1) / 2 * log_one_plus_square(z / df**0.5)
        return -kernel - log(df) / 2 - betaln(0.5, df / 2)

    def cdf(self, z: Value, df: Value) -> Value:
        return stdtr(df, z)

    def ppf(self, q: Value, df: Value) -> Value:
        return stdtrit(df, q)


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
