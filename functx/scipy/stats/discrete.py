"""The distributions of integers; in their docstrings, k stands for k - loc."""

from __future__ import annotations

import math
from typing import ClassVar

from functx.core.primitive import rule
from functx.core.typing import Value
from functx.lax.gamma_ratios import LOG_TWO_PI
from functx.numpy.array_creation import arange
from functx.numpy.floating_point import floor, isnan, round
from functx.numpy.operators import power
from functx.numpy.reductions import sum
from functx.numpy.ufuncs import exp, log, where
from functx.scipy.special import betaln, entr, gammaincc, xlog1py, xlogy
from functx.scipy.stats.distribution import INF, Distribution
from functx.scipy.stats.kernels import (
    binomial_product,
    log_binomial,
    log_combinations,
    log_poisson,
    poisson_product,
)


class DiscreteDistribution(Distribution):
    """A distribution of integers; it defines `logpmf`, a function of k - loc and of the shapes."""

    functions: ClassVar[tuple[str, ...]] = ("pmf", "logpmf")

    @rule
    def logpmf(self, k: Value, *shapes: Value) -> Value:
        raise NotImplementedError

    @rule
    def is_impossible(self, k: Value, *shapes: Value) -> Value:
        """Where the probability is zero."""
        return k < 0

    def evaluate(self, function: str, k: Value, *args: Value) -> Value:
        shapes, loc = args[:-1], args[-1]
        out = self.logpmf(k - loc, *shapes)
        is_impossible = self.is_impossible(k - loc, *shapes)
        if function == "pmf":
            out = where(is_impossible, 0.0, self.density(out, k - loc, *shapes))
        else:
            out = where(is_impossible, -INF, out)
        return where(self.is_valid(*shapes), out, math.nan)


class BernoulliDistribution(DiscreteDistribution):
    """The Bernoulli distribution of one trial of probability `p`.

    The probability of 1 is p, and that of 0 is 1 - p.
    """

    name = "bernoulli"
    shapes = ("p",)
    functions = ("pmf", "logpmf", "cdf", "ppf")

    def arguments(self, function: str) -> dict[str, int | None]:
        arguments = super().arguments(function)
        return {name: x for name, x in arguments.items() if name != "loc" or "pmf" in function}

    def is_valid(self, p: Value) -> Value:
        return (p >= 0) & (p <= 1)

    def is_impossible(self, k: Value, p: Value) -> Value:
        return (k < 0) | (k > 1)

    def logpmf(self, k: Value, p: Value) -> Value:
        return xlogy(k, p) + xlog1py(1 - k, -p)

    def product(self, k: Value, p: Value) -> Value:
        return power(p, k) * power(1 - p, 1 - k)

    def evaluate(self, function: str, k: Value, *args: Value) -> Value:
        if len(args) > 1:
            return super().evaluate(function, k, *args)
        (p,) = args
        valid = self.is_valid(p)
        if function == "ppf":
            valid, out = valid & (k >= 0) & (k <= 1), where(k <= 1 - p, 0.0, 1.0)
        else:
            valid, out = valid & ~isnan(k), where(k < 0, 0.0, where(k < 1, 1 - p, 1.0))
        return where(valid, out, math.nan)


class BinomialDistribution(DiscreteDistribution):
    """The binomial distribution of the number of successes in `n` trials, each of probability `p`.

    The probability of k is comb(n, k) p**k (1 - p)**(n - k).
    """

    name = "binom"
    shapes = ("n", "p")

    def is_valid(self, n: Value, p: Value) -> Value:
        return (n >= 0) & (p >= 0) & (p <= 1)

    def is_impossible(self, k: Value, n: Value, p: Value) -> Value:
        return (k < 0) | (k >= n + 1)

    def logpmf(self, k: Value, n: Value, p: Value) -> Value:
        return log_binomial(k, n, p)

    def product(self, k: Value, n: Value, p: Value) -> Value:
        return binomial_product(k, n, p)


class BetaBinomialDistribution(DiscreteDistribution):
    """The binomial distribution of `n` trials, whose probability has a beta distribution of shapes `a`, `b`.

    The probability of k is comb(n, k) beta(k + a, n - k + b) / beta(a, b) for integers k.
    """

    name = "betabinom"
    shapes = ("n", "a", "b")

    def is_valid(self, n: Value, a: Value, b: Value) -> Value:
        return (n >= 0) & (a > 0) & (b > 0)

    def is_impossible(self, k: Value, n: Value, a: Value, b: Value) -> Value:
        return (k < 0) | (k >= n + 1)

    def logpmf(self, k: Value, n: Value, a: Value, b: Value) -> Value:
        k = floor(k)
        return log_combinations(n, k) + betaln(k + a, n - k + b) - betaln(a, b)


class GeometricDistribution(DiscreteDistribution):
    """The geometric distribution of the number of trials, each of probability `p`, up to a success.

    The probability of k is (1 - p)**(k - 1) p for k >= 1.
    """

    name = "geom"
    shapes = ("p",)

    def is_valid(self, p: Value) -> Value:
        return (p >= 0) & (p <= 1)

    def is_impossible(self, k: Value, p: Value) -> Value:
        return k <= 0

    def logpmf(self, k: Value, p: Value) -> Value:
        return xlog1py(k - 1, -p) + log(p)

    def product(self, k: Value, p: Value) -> Value:
        return power(1 - p, k - 1) * p


class NegativeBinomialDistribution(DiscreteDistribution):
    """The negative binomial distribution of the number of failures before `n` successes.

    The probability of k is comb(n + k - 1, k) p**n (1 - p)**k.
    """

    name = "nbinom"
    shapes = ("n", "p")

    def is_valid(self, n: Value, p: Value) -> Value:
        return (n > 0) & (p >= 0) & (p <= 1)

    def logpmf(self, k: Value, n: Value, p: Value) -> Value:
        return log_binomial(n, n + k, p) + log(n / (n + k))

    def product(self, k: Value, n: Value, p: Value) -> Value:
        return binomial_product(n, n + k, p) * (n / (n + k))


class PoissonDistribution(DiscreteDistribution):
    """The Poisson distribution of mean `mu`.

    The probability of k is mu**k exp(-mu) / k! for integers k.
    """

    name = "poisson"
    shapes = ("mu",)
    functions = ("pmf", "logpmf", "cdf", "entropy")

    def arguments(self, function: str) -> dict[str, int | None]:
        arguments = super().arguments(function)
        return {name: x for name, x in arguments.items() if name != "k" or function != "entropy"}

    def is_valid(self, mu: Value) -> Value:
        return mu >= 0

    def is_impossible(self, k: Value, mu: Value) -> Value:
        return (k < 0) | (k != round(k))

    def logpmf(self, k: Value, mu: Value) -> Value:
        return log_poisson(k, mu)

    def product(self, k: Value, mu: Value) -> Value:
        return poisson_product(k, mu)

    def evaluate(self, function: str, k: Value, *args: Value) -> Value:
        if function == "entropy":
            return self.entropy(k)
        if function == "cdf":
            mu, loc = args
            k = floor(k - loc)
            return where(self.is_valid(mu), where(k < 0, 0.0, gammaincc(k + 1, mu)), math.nan)
        return super().evaluate(function, k, *args)

    def entropy(self, mu: Value) -> Value:
        """The sum of -p log(p), by an asymptotic series for large mu."""
        is_large = mu > MAX_SUMMED_MEAN
        k = arange(2 * MAX_SUMMED_MEAN + 50, dtype=mu.dtype)
        log_p = log_poisson(k, where(is_large | (mu == 0), 1.0, mu)[..., None])
        total = -sum(exp(log_p) * log_p, axis=-1)
        x = 1 / where(is_large, mu, 1.0)
        series = (LOG_TWO_PI + 1 - log(x)) / 2 - x / 12 - x**2 / 24 - 19 * x**3 / 360
        return where(is_large, series, where(mu == 0, entr(mu), total))


MAX_SUMMED_MEAN = 100
"""The largest mean of a Poisson distribution whose entropy is summed."""

DISCRETE_DISTRIBUTIONS = [
    BernoulliDistribution(),
    BetaBinomialDistribution(),
    BinomialDistribution(),
    GeometricDistribution(),
    NegativeBinomialDistribution(),
    PoissonDistribution(),
]
