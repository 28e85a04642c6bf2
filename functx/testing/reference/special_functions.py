"""NumPy definitions of special functions with derivatives in their parameters."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import scipy.special

from functx.testing.reference.interpreter import Array

# ruff: noqa: N802 - a definition has the name of the primitive class


def parameter_derivative(
    function: Callable[..., Array],
    orders: Sequence[int],
    args: Sequence[Array],
    least_radius: float = 0.0,
) -> Array:
    """The derivative of `function`, analytic in the operands, by Cauchy's integral over circles.

    Their radius is a quarter of the operand, so that they leave out 0, or `least_radius` if that is larger.
    """
    i = next((i for i, order in enumerate(orders) if order), None)
    if i is None:
        return function(*args)
    order, rest = orders[i], [0 if j == i else n for j, n in enumerate(orders)]
    shape = np.broadcast_shapes(*[x.shape for x in args])
    total, radius, count = 0.0, np.maximum(0.25 * np.abs(args[i].real), least_radius), 32
    turns = np.exp(2j * np.pi * np.arange(count) / count).reshape(count, *[1] * len(shape))
    # The points around small operands are evaluated in one call.
    for some in [turns] if math.prod(shape) < 1000 else np.split(turns, count):
        moved = [x + radius * some if j == i else x for j, x in enumerate(args)]
        values = parameter_derivative(function, rest, moved, least_radius) * some**-order
        total = total + values.sum(axis=0)
    return total * math.factorial(order) / (count * radius**order)


def over_half_line(function: Callable[[Array], Array]) -> Array:
    """The integral of `function`, which decays, over s > 0, its values along a new last axis."""
    u = np.linspace(-4.2, 3.6, 521)
    s = np.exp(np.pi / 2 * np.sinh(u))
    weights = (u[1] - u[0]) * np.pi / 2 * np.cosh(u) * s
    with np.errstate(all="ignore"):
        return np.nan_to_num(function(s) * weights).sum(-1)


def IncompleteGamma(a: Array, x: Array, is_upper: bool, orders: Sequence[int]) -> Array:
    if not any(orders):
        return (scipy.special.gammaincc if is_upper else scipy.special.gammainc)(a, x)

    def lower(a: Array, x: Array) -> Array:
        # t = x exp(-s)
        scale = np.exp(a * np.log(x) - scipy.special.loggamma(a))
        return scale * over_half_line(
            lambda s: np.exp(-a[..., None] * s - x[..., None] * np.exp(-s))
        )

    a, x = np.broadcast_arrays(a, x)
    inside = (x > 0) & (x < np.inf)
    value = parameter_derivative(lower, orders, [a, np.where(inside, x, 1.0)]).real
    return np.where(inside, -value if is_upper else value, 0.0)


def RandomGammaGrad(a: Array, x: Array) -> Array:
    return -IncompleteGamma(a, x, False, (1,)) / gamma_density(a, x)


def lower_beta(a: Array, b: Array, x: Array) -> Array:
    """The incomplete beta function of complex operands."""
    gamma = scipy.special.loggamma
    scale = np.exp(a * np.log(x) + gamma(a + b) - gamma(a) - gamma(b))
    return scale * over_half_line(
        lambda s: (
            np.exp(-a[..., None] * s)
            * np.exp((b[..., None] - 1) * np.log1p(-x[..., None] * np.exp(-s)))
        )
    )


def IncompleteBeta(a: Array, b: Array, x: Array, is_upper: bool, orders: Sequence[int]) -> Array:
    if not any(orders):
        return (scipy.special.betaincc if is_upper else scipy.special.betainc)(a, b, x)

    a, b, x = np.broadcast_arrays(a, b, x)
    inside = (x > 0) & (x < 1)
    args = [a, b, np.where(inside, x, 0.5)]
    value = parameter_derivative(lower_beta, orders, args).real
    return np.where(inside, -value if is_upper else value, 0.0)


def gamma_density(a: Array, x: Array) -> Array:
    """The density of gamma variates."""
    return np.exp((a - 1) * np.log(x) - x - scipy.special.gammaln(a))


def GammaDensity(a: Array, x: Array, orders: Sequence[int], power_order: int) -> Array:
    def value(a: Array, x: Array) -> Array:
        powers = scipy.special.xlogy(a - 1 - power_order, x) - x - scipy.special.loggamma(a)
        return times_unless_zero(falling_product(a, power_order), np.exp(powers))

    return density_derivative(value, orders, [a, x], x == np.inf)


def BetaDensity(
    a: Array, b: Array, x: Array, orders: Sequence[int], power_orders: Sequence[int]
) -> Array:
    m, n = power_orders

    def value(a: Array, b: Array, x: Array) -> Array:
        gamma = scipy.special.loggamma
        powers = scipy.special.xlogy(a - 1 - m, x) + scipy.special.xlog1py(b - 1 - n, -x)
        powers = np.exp(powers + gamma(a + b) - gamma(a) - gamma(b))
        found = times_unless_zero(falling_product(a, m) * falling_product(b, n), powers)
        # In the derivatives of densities another term grows faster than these.
        is_dominated = ((x == 0.0) & (n > 0)) | ((x == 1.0) & (m > 0))
        return np.where(is_dominated & np.isinf(found), 0.0, found)

    return density_derivative(value, orders, [a, b, x], x == 1.0)


def density_derivative(
    value: Callable[..., Array], orders: Sequence[int], args: Sequence[Array], is_end: Array
) -> Array:
    """A density, or its derivative, which is 0 at the ends of the last operand."""
    if not any(orders):
        return np.where(args[-1] == np.inf, 0.0, value(*args).real)
    *args, x = np.broadcast_arrays(*args)
    inside = (x > 0) & ~is_end
    found = parameter_derivative(
        value, orders, [*[y + 0j for y in args], np.where(inside, x, 0.5) + 0j]
    )
    return np.where(inside, found.real, 0.0)


def times_unless_zero(factor: Array, x: Array) -> Array:
    """factor x, 0 where the factor is."""
    return np.where(factor == 0.0, 0.0, factor * x)


def falling_product(a: Array, n: int) -> Array:
    """(a - 1) ... (a - n)."""
    return np.prod([a - k for k in range(1, n + 1)], axis=0)


def InverseIncompleteGamma(a: Array, p: Array, is_upper: bool) -> Array:
    return (scipy.special.gammainccinv if is_upper else scipy.special.gammaincinv)(a, p)


def InverseIncompleteBeta(a: Array, b: Array, p: Array, is_upper: bool) -> Array:
    return (scipy.special.betainccinv if is_upper else scipy.special.betaincinv)(a, b, p)


def StudentCdf(df: Array, t: Array, orders: Sequence[int]) -> Array:
    if not any(orders):
        return scipy.special.stdtr(df, t)
    df, t = np.broadcast_arrays(df, t)

    def tail(df: Array) -> Array:
        x = df / (df + t * t)
        return 0.5 * lower_beta(0.5 * df, np.full_like(df, 0.5), x)

    return -np.sign(t) * parameter_derivative(tail, orders[:1], [df + 0j]).real


def StudentQuantile(df: Array, p: Array) -> Array:
    return np.where((p == 0) & (df > 0), -np.inf, scipy.special.stdtrit(df, p))


def Zeta(x: Array, q: Array, orders: Sequence[int]) -> Array:
    def value(x: Array, q: Array) -> Array:
        count = 24
        total = sum((q + n) ** -x for n in range(count))
        end, rising = q + count, x
        total = total + end ** (1 - x) / (x - 1) + 0.5 * end**-x
        numbers = scipy.special.bernoulli(16)
        for k in range(1, 9):
            total = total + numbers[2 * k] / math.factorial(2 * k) * rising * end ** (1 - x - 2 * k)
            rising = rising * (x + 2 * k - 1) * (x + 2 * k)
        return total

    x, q = np.broadcast_arrays(x, q)
    # Inside the circle around x, away from the pole at 1.
    return parameter_derivative(value, orders, [x + 0j, q + 0j]).real


Expn = scipy.special.expn
Expi = scipy.special.expi
Wofz = scipy.special.wofz
OwensT = scipy.special.owens_t
Jv = scipy.special.jv
Yv = scipy.special.yv
Ive = scipy.special.ive
Kve = scipy.special.kve


def SineIntegral(x: Array) -> Array:
    return scipy.special.sici(x)[0]


def CosineIntegral(x: Array) -> Array:
    return scipy.special.sici(x)[1]


def FresnelSine(x: Array) -> Array:
    return scipy.special.fresnel(x)[0]


def FresnelCosine(x: Array) -> Array:
    return scipy.special.fresnel(x)[1]


def Erfcx(x: Array, orders: Sequence[int]) -> Array:
    return parameter_derivative(scipy.special.erfcx, orders, [x + 0j], 0.5).real


def Dawsn(x: Array, orders: Sequence[int]) -> Array:
    return parameter_derivative(scipy.special.dawsn, orders, [x + 0j], 0.5).real


def hypergeometric_series(upper: Sequence[Array], lower: Sequence[Array], x: Array) -> Array:
    """The sum of the hypergeometric series, in the complex plane."""
    term = total = np.ones(
        np.broadcast_shapes(*[np.shape(v) for v in (*upper, *lower, x)]), complex
    )
    for k in range(400):
        for a in upper:
            term = term * (a + k)
        for b in lower:
            term = term / (b + k)
        term = term * x / (k + 1)
        total = total + term
        if k % 16 == 15 and np.all(np.abs(term) <= 1e-20 * np.abs(total)):
            break
    return total


def Hyp1F1(a: Array, b: Array, x: Array, orders: Sequence[int]) -> Array:
    def value(a: Array, b: Array, x: Array) -> Array:
        return hypergeometric_series([a], [b], x)

    args = [v + 0j for v in np.broadcast_arrays(a, b, x)]
    return parameter_derivative(value, orders, args).real


def Hyp2F1(a: Array, b: Array, c: Array, x: Array, orders: Sequence[int]) -> Array:
    def value(a: Array, b: Array, c: Array, x: Array) -> Array:
        flipped = x.real < 0
        z = np.where(flipped, x / (x - 1), x)
        scale = np.where(flipped, (1 - np.where(flipped, x, 0)) ** -a, 1)
        return scale * hypergeometric_series([a, np.where(flipped, c - b, b)], [c], z)

    args = [v + 0j for v in np.broadcast_arrays(a, b, c, x)]
    return parameter_derivative(value, orders, args).real


def LogGammaRatio(a: Array, b: Array) -> Array:
    difference = scipy.special.gammaln(a + b) - scipy.special.gammaln(b)
    # Of large b, the difference has no digits.
    ratio = np.where((b > 1e20) & (np.abs(a) < 1e10) & (b < np.inf), a * np.log(b), difference)
    return np.where((a >= 0) & (a < np.inf) & (b > 0), ratio, np.nan)


def SphericalLegendre(n: Array, m: Array, theta: Array) -> Array:
    degree, order = np.asarray(n).astype(int), np.asarray(m).astype(int)
    value = scipy.special.sph_harm_y(degree, order, theta, 0.0).real
    return np.where(np.abs(order) > degree, 0.0, value)
