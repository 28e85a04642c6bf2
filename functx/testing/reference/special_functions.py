"""NumPy definitions of special functions with derivatives in their parameters."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import scipy.special

from functx.testing.reference.interpreter import Array

# ruff: noqa: N802 - a definition has the name of the primitive class


def parameter_derivative(
    function: Callable[..., Array], orders: Sequence[int], args: Sequence[Array]
) -> Array:
    """The derivative of `function`, analytic in the operands, by Cauchy's integral over circles."""
    i = next((i for i, order in enumerate(orders) if order), None)
    if i is None:
        return function(*args)
    order, rest = orders[i], [0 if j == i else n for j, n in enumerate(orders)]
    total, radius, count = 0.0, 0.25 * args[i].real, 32
    for turn in np.exp(2j * np.pi * np.arange(count) / count):
        moved = [x + radius * turn if j == i else x for j, x in enumerate(args)]
        total = total + parameter_derivative(function, rest, moved) * turn**-order
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
    value = parameter_derivative(lower, orders, [a + 0j, np.where(inside, x, 1.0) + 0j]).real
    return np.where(inside, -value if is_upper else value, 0.0)


def RandomGammaGrad(a: Array, x: Array) -> Array:
    density = np.exp((a - 1) * np.log(x) - x - scipy.special.gammaln(a))
    return -IncompleteGamma(a, x, False, (1,)) / density


def IncompleteBeta(a: Array, b: Array, x: Array, is_upper: bool, orders: Sequence[int]) -> Array:
    if not any(orders):
        return (scipy.special.betaincc if is_upper else scipy.special.betainc)(a, b, x)

    def lower(a: Array, b: Array, x: Array) -> Array:
        gamma = scipy.special.loggamma
        scale = np.exp(a * np.log(x) + gamma(a + b) - gamma(a) - gamma(b))
        return scale * over_half_line(
            lambda s: np.exp(
                -a[..., None] * s + (b[..., None] - 1) * np.log1p(-x[..., None] * np.exp(-s))
            )
        )

    a, b, x = np.broadcast_arrays(a, b, x)
    inside = (x > 0) & (x < 1)
    args = [a + 0j, b + 0j, np.where(inside, x, 0.5) + 0j]
    value = parameter_derivative(lower, orders, args).real
    return np.where(inside, -value if is_upper else value, 0.0)
