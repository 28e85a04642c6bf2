"""Special functions made of elementary functions, and of those that are primitives."""

from __future__ import annotations

import math

from ml_dtypes import finfo

from functx import ops
from functx.core.errors import ArgumentError
from functx.core.tracer import aval_of
from functx.core.types import accumulation_dtype, is_complex, is_integer
from functx.core.typing import ArrayLike, Axes, Value
from functx.lax.gamma_ratios import LOG_TWO_PI, STIRLING_MIN, stirling_remainder
from functx.nn.activations import log_softmax as _log_softmax
from functx.nn.activations import softmax as _softmax
from functx.numpy.promotion import as_inexact, operand
from functx.numpy.ufuncs import broadcast_inexact
from functx.ops import special

__all__ = [
    "beta",
    "betaln",
    "digamma",
    "entr",
    "erf",
    "erfc",
    "erfinv",
    "factorial",
    "gamma",
    "gammaln",
    "gammasgn",
    "i0",
    "i0e",
    "i1",
    "i1e",
    "kl_div",
    "log_ndtr",
    "log_softmax",
    "logit",
    "multigammaln",
    "ndtr",
    "ndtri",
    "polygamma",
    "rel_entr",
    "softmax",
    "spence",
    "xlog1py",
    "xlogy",
]


def softmax(x: ArrayLike, /, *, axis: Axes = None) -> Value:
    """exp(x) / sum(exp(x)) along `axis`, an int, several or None for all."""
    return _softmax(x, axis)


def log_softmax(x: ArrayLike, /, *, axis: Axes = None) -> Value:
    """x - log(sum(exp(x))) along `axis`, an int, several or None for all."""
    return _log_softmax(x, axis)


def logit(x: ArrayLike) -> Value:
    """log(x / (1 - x)), the inverse of `expit`; its derivative is infinite at 0 and at 1."""
    x = as_inexact(x)
    return ops.sub(ops.log(x), ops.log1p(ops.neg(x)))


def xlogy(x: ArrayLike, y: ArrayLike) -> Value:
    """x log(y), and 0 where x is 0; there the derivative in `y` is 0 and that in `x` log(y)."""
    return special.xlogy(*broadcast_inexact(x, y))


def xlog1py(x: ArrayLike, y: ArrayLike) -> Value:
    """x log(1 + y), and 0 where x is 0; there the derivative in `y` is 0."""
    return special.xlog1py(*broadcast_inexact(x, y))


def entr(x: ArrayLike) -> Value:
    """-x log(x), 0 at 0, where its derivative is infinite, and -inf below."""
    x = as_inexact(x)
    return ops.select(ops.lt(x, 0.0), -math.inf, ops.neg(special.xlogy(x, x)))


def rel_entr(p: ArrayLike, q: ArrayLike) -> Value:
    """p log(p / q), 0 where p is 0 and q not negative, and inf where either is negative.

    Where p is 0, the derivative in `q` is 0 and that in `p` -inf.
    """
    p, q = broadcast_inexact(p, q)
    ratio = ops.div(p, ops.select(ops.eq(p, 0.0), 1.0, q))
    out = special.xlogy(p, ratio)
    # The ratio of positive numbers may overflow or underflow where its logarithm does not.
    tiny = float(finfo(aval_of(ratio).dtype).tiny)
    out_of_range = ops.bitwise_or(ops.eq(ratio, math.inf), ops.lt(ratio, tiny))
    positive = ops.bitwise_and(ops.gt(p, 0.0), ops.gt(q, 0.0))
    difference = ops.mul(p, ops.sub(ops.log(p), ops.log(q)))
    out = ops.select(ops.bitwise_and(out_of_range, positive), difference, out)
    out = ops.select(ops.bitwise_or(ops.lt(p, 0.0), ops.lt(q, 0.0)), math.inf, out)
    # A product, whose derivatives are nan too.
    nan = ops.mul(ops.add(p, q), math.nan)
    return ops.select(ops.bitwise_or(ops.ne(p, p), ops.ne(q, q)), nan, out)


def kl_div(p: ArrayLike, q: ArrayLike) -> Value:
    """`rel_entr(p, q) - p + q`, which is never negative."""
    p, q = broadcast_inexact(p, q)
    return ops.add(ops.sub(rel_entr(p, q), p), q)


def erf(x: ArrayLike) -> Value:
    """The error function."""
    return special.erf(as_inexact(x))


def erfc(x: ArrayLike) -> Value:
    """1 - erf(x), accurate for large x."""
    return special.erfc(as_inexact(x))


def erfinv(x: ArrayLike) -> Value:
    """The inverse of `erf`, on [-1, 1]; its derivative is infinite at both ends."""
    return special.erf_inv(as_inexact(x))


def ndtr(x: ArrayLike) -> Value:
    """The normal distribution function, the integral of its density up to x."""
    return ops.mul(special.erfc(ops.mul(as_inexact(x), -math.sqrt(0.5))), 0.5)


def ndtri(p: ArrayLike) -> Value:
    """The inverse of `ndtr`, on [0, 1]; its derivative is infinite at both ends."""
    return special.ndtri(as_inexact(p))


def log_ndtr(x: ArrayLike, series_order: int = 3) -> Value:
    """log(ndtr(x)), also where `ndtr` rounds to 0 or 1.

    Far below 0 it is a series of `series_order` terms, at most 30: later ones grow.
    """
    if not isinstance(series_order, int) or not 0 <= series_order <= 30:
        raise ArgumentError(
            f"log_ndtr: series_order must be an integer from 0 to 30; got {series_order!r}"
        )
    x = as_inexact(x)
    low = -20.0 if aval_of(x).dtype.itemsize > 4 else -10.0
    near = ops.log(ndtr(ops.max(x, low)))
    # log(1 - ndtr(-x)) for x > 0, -x^2 / 2 - log(-x sqrt(2 pi)) + log(1 - 1 / x^2 + 3 / x^4 ...) far below
    far = ops.min(x, low)
    tail = ops.sub(ops.sub(ops.mul(ops.square(far), -0.5), ops.log(ops.neg(far))), 0.5 * LOG_TWO_PI)
    series = ops.zeros_like(far)
    for n in reversed(range(1, series_order + 1)):
        series = ops.div(ops.mul(ops.add(series, 1.0), -(2.0 * n - 1.0)), ops.square(far))
    tail = ops.add(tail, ops.log1p(series))
    below = ops.select(ops.gt(x, low), near, tail)
    return ops.select(ops.gt(x, 0.0), ops.log1p(ops.neg(ndtr(ops.neg(x)))), below)


def spence(x: ArrayLike) -> Value:
    """The integral of log(t) / (1 - t) from 1 to x, the dilogarithm of 1 - x; nan for negative x."""
    return special.spence(as_inexact(x))


def gammaln(x: ArrayLike) -> Value:
    """log(|gamma(x)|)."""
    return special.lgamma(as_inexact(x))


def gammasgn(x: ArrayLike) -> Value:
    """The sign of gamma(x), with derivative 0; nan at negative integers."""
    x = as_inexact(x)
    whole = ops.floor(x)
    odd = ops.eq(ops.abs(ops.rem(whole, 2.0)), 1.0)
    below = ops.select(ops.eq(x, whole), math.nan, ops.select(odd, -1.0, ops.constant_like(x, 1.0)))
    at_zero = ops.select(ops.lt(ops.div(1.0, x), 0.0), -1.0, ops.constant_like(x, 1.0))
    positive = ops.select(ops.gt(x, 0.0), 1.0, ops.stop_gradient(x))
    return ops.select(ops.lt(x, 0.0), below, ops.select(ops.eq(x, 0.0), at_zero, positive))


def gamma(x: ArrayLike) -> Value:
    """The gamma function, real or complex; for positive integers the factorial of x - 1.

    At 0 and the negative integers a complex result is nan, as in SciPy.
    """
    x = as_inexact(x)
    if is_complex(aval_of(x).dtype):
        from functx.scipy.special.combinatorics import loggamma

        real = ops.real(x)
        integer = ops.convert_element_type(ops.floor(real), aval_of(x).dtype)
        is_pole = ops.bitwise_and(ops.eq(x, integer), ops.le(real, 0.0))
        # The sum makes the derivatives nan as well.
        return ops.exp(loggamma(ops.add(x, ops.select(is_pole, complex(math.nan, math.nan), 0j))))
    return ops.mul(gammasgn(x), ops.exp(gammaln(x)))


def factorial(n: ArrayLike, exact: bool = False) -> Value:
    """The product of the numbers from 1 to n as a float, gamma(n + 1); 0 for negative n.

    Raises ArgumentError for `exact=True`.
    """
    if exact:
        raise ArgumentError("factorial: exact must be False; got True")
    n = as_inexact(n)
    return ops.select(ops.lt(n, 0.0), 0.0, ops.exp(special.lgamma(ops.add(n, 1.0))))


def betaln(a: ArrayLike, b: ArrayLike) -> Value:
    """log(|beta(a, b)|), without cancellation between its three terms for large arguments."""
    a, b = broadcast_inexact(a, b)
    dtype = aval_of(a).dtype
    if accumulation_dtype(dtype) != dtype:
        widened = [ops.convert_element_type(x, accumulation_dtype(dtype)) for x in (a, b)]
        return ops.convert_element_type(betaln(*widened), dtype)
    direct = ops.sub(ops.add(special.lgamma(a), special.lgamma(b)), special.lgamma(ops.add(a, b)))
    # The second derivatives of min and max are wrong where a equals b.
    swapped = ops.gt(a, b)
    a, b = ops.select(swapped, b, a), ops.select(swapped, a, b)
    total, ratio = ops.add(a, b), ops.div(a, b)
    remainder = ops.sub(stirling_remainder(b), stirling_remainder(total))
    # log gamma(b) - log gamma(a + b), by Stirling's formula for both
    difference = ops.add(
        ops.sub(a, ops.mul(ops.sub(total, 0.5), ops.log1p(ratio))),
        ops.sub(remainder, ops.mul(a, ops.log(b))),
    )
    for_large_b = ops.add(special.lgamma(a), difference)
    terms = ops.add(
        ops.mul(ops.sub(a, 0.5), ops.log1p(ops.div(b, a))), ops.mul(b, ops.log1p(ratio))
    )
    half = ops.mul(0.5, ops.sub(LOG_TWO_PI, ops.log(b)))
    for_large_both = ops.add(ops.sub(half, terms), ops.add(stirling_remainder(a), remainder))
    large = ops.bitwise_and(ops.ge(b, STIRLING_MIN), ops.ge(total, STIRLING_MIN))
    by_stirling = ops.select(ops.ge(a, STIRLING_MIN), for_large_both, for_large_b)
    return ops.select(large, by_stirling, direct)


def beta(a: ArrayLike, b: ArrayLike) -> Value:
    """gamma(a) gamma(b) / gamma(a + b)."""
    a, b = broadcast_inexact(a, b)
    sign = ops.mul(ops.mul(gammasgn(a), gammasgn(b)), gammasgn(ops.add(a, b)))
    return ops.mul(sign, ops.exp(betaln(a, b)))


def multigammaln(a: ArrayLike, d: int) -> Value:
    """The logarithm of the gamma function of `d` variables at a.

    Raises ArgumentError for a `d` that is not a positive Python integer.
    """
    if not isinstance(d, int) or d < 1:
        raise ArgumentError(f"multigammaln: d must be a positive integer; got {d!r}")
    a = as_inexact(a)
    total = special.lgamma(a)
    for i in range(1, d):
        total = ops.add(total, special.lgamma(ops.sub(a, i / 2)))
    return ops.add(total, d * (d - 1) / 4 * math.log(math.pi))


def digamma(x: ArrayLike) -> Value:
    """The derivative of `gammaln`."""
    return special.digamma(as_inexact(x))


def polygamma(n: ArrayLike, x: ArrayLike) -> Value:
    """The n-th derivative of `digamma` at x; it has no derivative in n."""
    integral = is_integer(aval_of(operand(n)).dtype)
    n, x = broadcast_inexact(n, x)
    return special.polygamma(ops.convert_element_type(n, "int32") if integral else n, x)


def i0e(x: ArrayLike) -> Value:
    """exp(-|x|) times the modified Bessel function of the first kind of order 0."""
    return special.bessel_i0e(as_inexact(x))


def i0(x: ArrayLike) -> Value:
    """The modified Bessel function of the first kind of order 0."""
    return special.bessel_i0(as_inexact(x))


def i1e(x: ArrayLike) -> Value:
    """exp(-|x|) times the modified Bessel function of the first kind of order 1."""
    return special.bessel_i1e(as_inexact(x))


def i1(x: ArrayLike) -> Value:
    """The modified Bessel function of the first kind of order 1."""
    return special.bessel_i1(as_inexact(x))
