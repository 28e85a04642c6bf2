"""Continuous distributions by gamma and beta functions; in their docstrings, z is (x - loc) / scale."""

from __future__ import annotations

import math

from functx.core.typing import Value
from functx.numpy.operators import abs, power
from functx.numpy.ufuncs import log, log1p, where
from functx.scipy.special import betaln, gammaln, xlog1py, xlogy
from functx.scipy.stats.distribution import ContinuousDistribution, SymmetricDistribution
from functx.scipy.stats.kernels import log_binomial, log_one_plus_square, log_poisson


class GammaDistribution(ContinuousDistribution):
    """The gamma distribution of shape `a`.

    The density is z**(a - 1) exp(-z) / (gamma(a) scale) for z >= 0.
    """

    name = "gamma"
    shapes = ("a",)
    functions = ("pdf", "logpdf")
    low = 0.0

    def logpdf(self, z: Value, a: Value) -> Value:
        return log_poisson(a - 1, z)


class ChiSquaredDistribution(ContinuousDistribution):
    """The chi-squared distribution with `df` degrees of freedom.

    The density is (z / 2)**(df / 2 - 1) exp(-z / 2) / (2 gamma(df / 2) scale) for z >= 0.
    """

    name = "chi2"
    shapes = ("df",)
    functions = ("pdf", "logpdf")
    low = 0.0

    def logpdf(self, z: Value, df: Value) -> Value:
        return log_poisson(df / 2 - 1, z / 2) - math.log(2)


class BetaDistribution(ContinuousDistribution):
    """The beta distribution of shapes `a` and `b`.

    The density is z**(a - 1) (1 - z)**(b - 1) / (beta(a, b) scale) for z in [0, 1].
    """

    name = "beta"
    shapes = ("a", "b")
    functions = ("pdf", "logpdf")
    low, high = 0.0, 1.0

    def logpdf(self, z: Value, a: Value, b: Value) -> Value:
        has_mode = (a >= 1) & (b >= 1)
        direct = xlogy(a - 1, z) + xlog1py(b - 1, -z) - betaln(a, b)
        n = where(has_mode, a + b - 2, 0.0)
        return where(has_mode, log1p(n) + log_binomial(where(has_mode, a - 1, 0.0), n, z), direct)


class StudentDistribution(SymmetricDistribution):
    """Student's t distribution with `df` degrees of freedom.

    The density is (1 + z**2 / df)**(-(df + 1) / 2) / (sqrt(df) beta(1 / 2, df / 2) scale).
    """

    name = "t"
    shapes = ("df",)
    functions = ("pdf", "logpdf")

    def logpdf(self, z: Value, df: Value) -> Value:
        kernel = (df + 1) / 2 * log_one_plus_square(z / df**0.5)
        return -kernel - log(df) / 2 - betaln(0.5, df / 2)


class GeneralizedNormalDistribution(SymmetricDistribution):
    """The generalized normal distribution of shape `beta`: normal for 2, Laplace's for 1.

    The density is beta exp(-|x|**beta) / (2 gamma(1 / beta)).
    """

    name = "gennorm"
    shapes = ("beta",)
    functions = ("pdf", "logpdf")
    parameters = ()

    def logpdf(self, x: Value, beta: Value) -> Value:
        return log(beta / 2) - gammaln(1 / beta) - power(abs(x), beta)


GAMMA_AND_BETA_DISTRIBUTIONS = [
    BetaDistribution(),
    ChiSquaredDistribution(),
    GammaDistribution(),
    GeneralizedNormalDistribution(),
    StudentDistribution(),
]
