"""Logarithms of probabilities without cancellation between large terms, by Loader's saddle-point expansion.

C. Loader, Fast and Accurate Computation of Binomial Probabilities, 2000.
"""

from __future__ import annotations

import math

from ml_dtypes import finfo

from functx.core.samples import Rounding, f32, sample
from functx.core.typing import Tangent, Value
from functx.lax.gamma_ratios import LOG_TWO_PI, STIRLING_MIN, stirling_remainder
from functx.nn.activations import log1mexp
from functx.numpy.floating_point import isinf
from functx.numpy.operators import abs, power
from functx.numpy.ufuncs import exp, log, log1p, minimum, where
from functx.ops.autodiff import stop_gradient
from functx.ops.families import Binary, binary_function
from functx.ops.operands import cast_like, upcast_half
from functx.scipy.special import betaln, erf, gammaln, log_ndtr, ndtr, xlog1py, xlogy


def exp_of_log(log_density: Value, product: Value) -> Value:
    """exp(log_density), by its `product` of powers where it is 0 or infinite.

    There the derivatives of the logarithm are infinite, but not those of the product.
    """
    return where(isinf(log_density), product, exp(log_density))


def log_poisson(k: Value, mu: Value) -> Value:
    """k log(mu) - mu - log(gamma(k + 1)), the logarithm of the Poisson probability of k."""
    is_large = k > STIRLING_MIN
    large = where(is_large, k, STIRLING_MIN)
    saddle_point = -deviance(large, mu) - log(large * (2 * math.pi)) / 2 - stirling_remainder(large)
    log_factorial = zero_where(k == 0, gammaln(k + 1))
    return where(is_large, saddle_point, xlogy(k, mu) - mu - log_factorial)


def zero_where(condition: Value, x: Value) -> Value:
    """`x` without its rounding error where `condition` says that it is 0; with the derivatives of `x`."""
    return x - where(condition, stop_gradient(x), 0.0)


def poisson_product(k: Value, mu: Value) -> Value:
    """mu**k exp(-mu) / gamma(k + 1), for where mu is 0."""
    return power(mu, k) * exp(-mu - gammaln(k + 1))


def log_binomial(k: Value, n: Value, p: Value) -> Value:
    """The logarithm of the probability of k successes in n trials, each of probability p."""
    by_poisson = log_poisson(k, n * p) + log_poisson(n - k, n * (1 - p)) - log_poisson(n, n)
    # Without trials, the derivatives of the three are infinite; without combinations, they cancel.
    direct = xlogy(k, p) + xlog1py(n - k, -p) + log_combinations(n, k)
    return where((n == 0) | (k == 0) | (k == n), direct, by_poisson)


def log_combinations(n: Value, k: Value) -> Value:
    """log(gamma(n + 1) / (gamma(k + 1) gamma(n - k + 1)))."""
    return zero_where((k == 0) | (k == n), -log1p(n) - betaln(n - k + 1, k + 1))


def binomial_product(k: Value, n: Value, p: Value) -> Value:
    """The probability of k successes in n trials, for where p is 0 or 1."""
    # A factor 0 stays 0, however many combinations there are.
    largest = math.log(float(finfo(p.dtype).max)) - 1
    return power(p, k) * power(1 - p, n - k) * exp(minimum(log_combinations(n, k), largest))


def deviance(k: Value, mu: Value) -> Value:
    """k log(k / mu) + mu - k, which is 0 for equal arguments."""
    # With v = (mu - k) / (mu + k) it is (mu - k) v - 2 k (atanh(v) - v).
    v = (mu - k) / (mu + k)
    is_near = abs(v) < 0.1
    v = where(is_near, v, 0.0)
    square = v * v
    series = sum([square**n / (2 * n + 3) for n in range(8)])
    return where(is_near, (mu - k) * v - 2 * k * v * square * series, mu - k - k * log(mu / k))


def log_one_plus_square(z: Value) -> Value:
    """log(1 + z**2), also where the square overflows."""
    is_large = abs(z) > 1e9
    return where(is_large, 2 * log(abs(z)), log1p(where(is_large, 1.0, z) ** 2))


def log_probability(p: Value, complement: Value) -> Value:
    """log(p), by `complement` = 1 - p where p is near 1."""
    return where(p < 0.5, log(p), log1p(-complement))


def log_share(part: Value, rest: Value, whole: Value) -> Value:
    """part - whole, of the logarithms of a part, of the rest and of their sum, with its digits near 0."""
    is_most = (part > rest) & (rest > -math.inf)
    return where(is_most, log1p(-exp(rest - whole)), part - whole)


class LogNormalMass(Binary):
    """The logarithm of the probability that a standard normal variable is in [a, b], -inf for a >= b."""

    accepts = "f"
    rounding = Rounding(ulps=64.0)
    samples = (
        sample(f32[3, 4], f32[3, 4], domain={0: (-4.0, -0.5), 1: (0.5, 4.0)}),
        sample(f32[()], f32[3], domain={0: (1.0, 2.0), 1: (2.5, 4.0)}),
        sample(
            f32[3],
            f32[3],
            values={0: [-math.inf, 0.0, -math.inf], 1: [0.0, math.inf, math.inf]},
            gradients={
                0: [0.0, -math.sqrt(2 / math.pi), 0.0],
                1: [math.sqrt(2 / math.pi), 0.0, 0.0],
            },
        ),
    )

    def partial(self, i: int, t: Value, out: Value, *ends: Value) -> Tangent:
        density = exp((ends[i] * ends[i] + LOG_TWO_PI) / -2 - out)
        return t * (density if i else -density)

    def decompose(self, a: Value, b: Value) -> Value:
        return cast_like(self.compute_upcast(upcast_half(a), upcast_half(b)), a)

    def compute_upcast(self, a: Value, b: Value) -> Value:
        """The output for operands that are no half floats."""
        # By symmetry, an interval on one side of 0 is taken to be above it.
        is_negative, is_positive = b <= 0, a > 0
        low, high = where(is_negative, -b, a), where(is_negative, -a, b)
        is_central = ~(is_negative | is_positive)
        low, high = where(is_central, 1.0, low), where(is_central, 2.0, high)
        above_low = log_ndtr(-low)
        tail = above_low + log1mexp(above_low - log_ndtr(-high))
        root = math.sqrt(0.5)
        half = (erf(b * root) - erf(a * root)) / 2
        central = log_probability(half, ndtr(a) + ndtr(-b))
        is_zero = (a >= b) | ~is_central & (above_low == -math.inf) & (a < b)
        return where(is_zero, -math.inf, where(is_central, central, tail))


log_normal_mass = binary_function(LogNormalMass)
