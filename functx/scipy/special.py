"""Special functions, by the names and signatures of `jax.scipy.special`."""

from __future__ import annotations

import math
from typing import Any

from ml_dtypes import finfo

from functx.core.errors import ArgumentError
from functx.core.tracing import aval_of
from functx.core.types import accumulation_dtype, is_integer
from functx.nn.activations import sigmoid as expit
from functx.nn.softmax import log_softmax as _log_softmax
from functx.nn.softmax import logsumexp
from functx.nn.softmax import softmax as _softmax
from functx.numpy.promotion import broadcast, operand, promote_inexact
from functx.ops import special
from functx.ops.arithmetic import abs, add, div, max, min, mul, neg, rem, square, sub
from functx.ops.autodiff import stop_gradient
from functx.ops.conversion import convert_element_type, floor
from functx.ops.logic import bitwise_and, bitwise_or, eq, ge, gt, lt, select
from functx.ops.shapes import full_like
from functx.ops.transcendental import exp, log, log1p

__all__ = [
    "beta",
    "betaln",
    "digamma",
    "entr",
    "erf",
    "erfc",
    "erfinv",
    "expit",
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
    "logsumexp",
    "multigammaln",
    "ndtr",
    "ndtri",
    "polygamma",
    "rel_entr",
    "softmax",
    "xlog1py",
    "xlogy",
]

HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)


def softmax(x: Any, /, *, axis: Any = None) -> Any:
    """exp(x) / sum(exp(x)) along `axis`, an int, several or None for all."""
    return _softmax(x, axis)


def log_softmax(x: Any, /, *, axis: Any = None) -> Any:
    """x - log(sum(exp(x))) along `axis`, an int, several or None for all."""
    return _log_softmax(x, axis)


def logit(x: Any) -> Any:
    """log(x / (1 - x)), the inverse of `expit`; infinitely steep at 0 and at 1."""
    x = _float(x)
    return sub(log(x), log1p(neg(x)))


def xlogy(x: Any, y: Any) -> Any:
    """x log(y), and 0 where x is 0; there the derivative in `y` is 0 and that in `x` log(y)."""
    return special.xlogy(*_floats(x, y))


def xlog1py(x: Any, y: Any) -> Any:
    """x log(1 + y), and 0 where x is 0; there the derivative in `y` is 0."""
    return special.xlog1py(*_floats(x, y))


def entr(x: Any) -> Any:
    """-x log(x), 0 at 0, where it is infinitely steep, and -inf below."""
    x = _float(x)
    return select(lt(x, 0.0), -math.inf, neg(special.xlogy(x, x)))


def rel_entr(p: Any, q: Any) -> Any:
    """p log(p / q), 0 where p is 0 and q not negative, and inf where one is negative.

    Where p is 0, the derivative in `q` is 0 and that in `p` -inf.
    """
    p, q = _floats(p, q)
    ratio = div(p, select(eq(p, 0.0), 1.0, q))
    out = special.xlogy(p, ratio)
    # Where the ratio of positive numbers is beyond all numbers, its logarithm is not.
    tiny = float(finfo(aval_of(ratio).dtype).tiny)
    beyond = bitwise_or(eq(ratio, math.inf), lt(ratio, tiny))
    beyond = bitwise_and(beyond, bitwise_and(gt(p, 0.0), gt(q, 0.0)))
    out = select(beyond, mul(p, sub(log(p), log(q))), out)
    return select(bitwise_or(lt(p, 0.0), lt(q, 0.0)), math.inf, out)


def kl_div(p: Any, q: Any) -> Any:
    """`rel_entr(p, q) - p + q`, which is never negative."""
    p, q = _floats(p, q)
    return add(sub(rel_entr(p, q), p), q)


def erf(x: Any) -> Any:
    """The error function."""
    return special.erf(_float(x))


def erfc(x: Any) -> Any:
    """1 - erf(x), accurate for large x."""
    return special.erfc(_float(x))


def erfinv(x: Any) -> Any:
    """The inverse of `erf`, on [-1, 1]; infinitely steep at both ends."""
    return special.erf_inv(_float(x))


def ndtr(x: Any) -> Any:
    """The normal distribution function, the integral of its density up to x."""
    return mul(special.erfc(mul(_float(x), -math.sqrt(0.5))), 0.5)


def ndtri(p: Any) -> Any:
    """The inverse of `ndtr`, on [0, 1]; infinitely steep at both ends."""
    return special.ndtri(_float(p))


def log_ndtr(x: Any, series_order: int = 3) -> Any:
    """log(ndtr(x)), also where `ndtr` is 0 or 1 to all digits.

    Far below 0 it is summed from a series of `series_order` terms.
    """
    if not isinstance(series_order, int) or series_order < 0:
        raise ArgumentError(
            f"log_ndtr: series_order must be an integer that is not negative; got {series_order!r}"
        )
    x = _float(x)
    low, high = (-20.0, 8.0) if x.dtype.itemsize > 4 else (-10.0, 5.0)
    # log(1 - ndtr(-x)) for large x, -x^2 / 2 - log(-x sqrt(2 pi)) + log(1 - 1 / x^2 + 3 / x^4 ...)
    near = log(ndtr(max(x, low)))
    far = min(x, low)
    tail = sub(sub(mul(square(far), -0.5), log(neg(far))), HALF_LOG_TWO_PI)
    series: Any = 0.0
    for n in reversed(range(1, series_order + 1)):
        series = div(mul(add(series, 1.0), -(2.0 * n - 1.0)), square(far))
    if series_order:
        tail = add(tail, log1p(series))
    return select(gt(x, high), neg(ndtr(neg(x))), select(gt(x, low), near, tail))


def gammaln(x: Any) -> Any:
    """log(|gamma(x)|)."""
    return special.lgamma(_float(x))


def gammasgn(x: Any) -> Any:
    """The sign of gamma(x), which does not vary; nan at negative whole numbers."""
    x = _float(x)
    whole = floor(x)
    odd = eq(abs(rem(whole, 2.0)), 1.0)
    below = select(eq(x, whole), math.nan, select(odd, -1.0, full_like(x, 1.0)))
    at_zero = select(lt(div(1.0, x), 0.0), -1.0, full_like(x, 1.0))
    positive = select(gt(x, 0.0), 1.0, stop_gradient(x))
    return select(lt(x, 0.0), below, select(eq(x, 0.0), at_zero, positive))


def gamma(x: Any) -> Any:
    """The gamma function, of whole numbers the factorial of x - 1."""
    return mul(gammasgn(x), exp(gammaln(x)))


def factorial(n: Any, exact: bool = False) -> Any:
    """The product of the numbers from 1 to n as a float, gamma(n + 1); 0 for negative n.

    Raises ArgumentError for `exact`.
    """
    if exact:
        raise ArgumentError("factorial: exact must be False; got True")
    n = _float(n)
    return select(lt(n, 0.0), 0.0, exp(special.lgamma(add(n, 1.0))))


def betaln(a: Any, b: Any) -> Any:
    """log(|beta(a, b)|), without the loss of digits of its three terms where an argument is large."""
    a, b = _floats(a, b)
    own = aval_of(a).dtype
    if accumulation_dtype(own) != own:
        wide = [convert_element_type(x, accumulation_dtype(own)) for x in (a, b)]
        return convert_element_type(betaln(*wide), own)
    plain = sub(add(special.lgamma(a), special.lgamma(b)), special.lgamma(add(a, b)))
    # Not by min and max, whose second derivatives are wrong where a is b.
    swapped = gt(a, b)
    a, b = select(swapped, b, a), select(swapped, a, b)
    total, ratio = add(a, b), div(a, b)
    rest = sub(_stirling_remainder(b), _stirling_remainder(total))
    # log gamma(b) - log gamma(a + b), by Stirling's formula for both
    change = add(sub(a, mul(sub(total, 0.5), log1p(ratio))), sub(rest, mul(a, log(b))))
    of_one = add(special.lgamma(a), change)
    terms = add(mul(sub(a, 0.5), log1p(div(b, a))), mul(b, log1p(ratio)))
    half = mul(0.5, sub(math.log(2 * math.pi), log(b)))
    of_both = add(sub(half, terms), add(_stirling_remainder(a), rest))
    large = bitwise_and(ge(b, _STIRLING_MIN), ge(total, _STIRLING_MIN))
    return select(large, select(ge(a, _STIRLING_MIN), of_both, of_one), plain)


_STIRLING_MIN = 10.0
"""From where on Stirling's series has all digits of double precision."""
_STIRLING_COEFFICIENTS = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188, -691 / 360360, 1 / 156)


def _stirling_remainder(z: Any) -> Any:
    """log gamma(z) - ((z - 1/2) log(z) - z + log(2 pi) / 2) for large z."""
    inverse = div(1.0, z)
    square = mul(inverse, inverse)
    total = mul(square, _STIRLING_COEFFICIENTS[-1])
    for term in reversed(_STIRLING_COEFFICIENTS[1:-1]):
        total = mul(square, add(term, total))
    return mul(inverse, add(_STIRLING_COEFFICIENTS[0], total))


def beta(a: Any, b: Any) -> Any:
    """gamma(a) gamma(b) / gamma(a + b)."""
    a, b = _floats(a, b)
    sign = mul(mul(gammasgn(a), gammasgn(b)), gammasgn(add(a, b)))
    return mul(sign, exp(betaln(a, b)))


def multigammaln(a: Any, d: int) -> Any:
    """The logarithm of the gamma function of `d` variables at a.

    Raises ArgumentError for a `d` that is not a positive Python integer.
    """
    if not isinstance(d, int) or d < 1:
        raise ArgumentError(f"multigammaln: d must be a positive integer; got {d!r}")
    a = _float(a)
    total = special.lgamma(a)
    for i in range(1, d):
        total = add(total, special.lgamma(sub(a, i / 2)))
    return add(total, d * (d - 1) / 4 * math.log(math.pi))


def digamma(x: Any) -> Any:
    """The derivative of `gammaln`."""
    return special.digamma(_float(x))


def polygamma(n: Any, x: Any) -> Any:
    """Derivative number n of `digamma`; in n itself it cannot be differentiated."""
    whole = is_integer(aval_of(operand(n)).dtype)
    n, x = _floats(n, x)
    return special.polygamma(convert_element_type(n, "int32") if whole else n, x)


def i0e(x: Any) -> Any:
    """exp(-|x|) times the modified Bessel function of the first kind of order 0."""
    return special.bessel_i0e(_float(x))


def i0(x: Any) -> Any:
    """The modified Bessel function of the first kind of order 0."""
    return special.bessel_i0(_float(x))


def i1e(x: Any) -> Any:
    """exp(-|x|) times the modified Bessel function of the first kind of order 1."""
    return special.bessel_i1e(_float(x))


def i1(x: Any) -> Any:
    """The modified Bessel function of the first kind of order 1."""
    return special.bessel_i1(_float(x))


def _float(x: Any) -> Any:
    """`x` as an array of floats."""
    return promote_inexact(x)[0]


def _floats(*args: Any) -> tuple[Any, ...]:
    """`args` as arrays of floats of one dtype and shape."""
    return broadcast(*promote_inexact(*args))
