"""The table of formulas that overflow or cancel, and the stable ones that take their place.

A row is two functions: the formula as users write it, and one with the same value wherever the first
is accurate. Rows are applied in order, also to the formulas of later rows: what is found after
`log(1 + x)` is `log1p(exp(x))`, and stands for `log(1 + exp(x))` too.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from math import prod
from typing import NamedTuple

from ml_dtypes import finfo

from functx import ops
from functx.core.program import Atom, Literal
from functx.core.types import Shape
from functx.core.typing import Value
from functx.ops import activations, special, statistics
from functx.ops.operands import broadcast_along, cast_like, upcast_half
from functx.ops.softmaxes import log_softmax, logsumexp, softmax
from functx.passes.formula_matching import Match, Notation

lgamma, erfc = special.lgamma, special.erfc
exp, log, log1p, expm1, sqrt = ops.exp, ops.log, ops.log1p, ops.expm1, ops.sqrt
total, logistic = ops.reduce_sum, ops.logistic


class Formula(NamedTuple):
    """A formula as users write it, `plain`, and a `stable` one, which also takes `axes` if it sums.

    It stays where `unless` holds. `accepts_complex` says whether operands may be complex.
    """

    text: str
    plain: Callable[..., Value]
    stable: Callable[..., Value]
    unless: Callable[[Notation, Match], bool] = lambda notation, match: False
    accepts_complex: bool = False


def is_shifted(notation: Notation, match: Match) -> bool:
    """Whether a maximum has been subtracted from the operand of the exponentials, the last one."""
    *_, binding = match.bindings.values()
    eqn = notation.producers.get(binding.core.atom)
    if eqn is None or type(eqn.primitive) is not ops.Sub:
        return False
    pending: list[Atom] = [eqn.inputs[1]]
    for _ in range(8):
        eqn = None if not pending else notation.producers.get(pending.pop())
        if eqn is not None:
            if type(eqn.primitive) is ops.ReduceMax:
                return True
            if type(eqn.primitive) in _AFTER_A_MAXIMUM:
                pending += [a for a in eqn.inputs if type(a) is not Literal]
    return False


_AFTER_A_MAXIMUM = (
    ops.BroadcastInDim,
    ops.ConvertElementType,
    ops.Reshape,
    ops.Select,
    ops.StopGradient,
)


def mean(x: Value) -> Value:
    """The mean of all elements."""
    return ops.div(total(x), float(x.size))


def tanh(x: Value) -> Value:
    """tanh(x), with derivatives that keep their digits for large x, where 1 - tanh(x)^2 cancels."""
    return ops.WithValue()(2.0 * logistic(2.0 * x) - 1.0, ops.tanh(x))


def relative_entropy(x: Value, y: Value) -> Value:
    """x (log(x) - log(y)), where x is 0 with 0 in place of log(x)."""
    log_x = log(ops.select(ops.eq(x, 0.0), 1.0, x))
    return ops.WithValue()(special.xlogy(x, x) - x * log(y), x * (log_x - log(y)))


def log_one_minus_exp(x: Value) -> Value:
    """log(1 - exp(x)) for x < 0, by one formula near 0 and another far from it (Maechler, 2012)."""
    near = ops.gt(x, -math.log(2.0))
    of_near = log(ops.neg(expm1(ops.select(near, x, -1.0))))
    return ops.select(near, of_near, log1p(ops.neg(exp(ops.select(near, -1.0, x)))))


def log_mean_exp(x: Value, axes: Shape) -> Value:
    """log(mean(exp(x))) over `axes`."""
    return logsumexp(x, axes) - math.log(prod([x.shape[d] for d in axes]))


def weighted_logsumexp(y: Value, x: Value, axes: Shape) -> Value:
    """log(sum(y exp(x))) over `axes`; nan for negative sums, and where 0 is multiplied by infinity.

    The shift is near the largest x with a weight, and not so small that exponentials of others overflow.
    """
    y, wide = upcast_half(y), upcast_half(x)
    of_all = ops.shift_of_exponentials(wide, axes)
    largest = ops.shift_of_exponentials(ops.select(ops.eq(y, 0.0), -math.inf, wide), axes)
    reach = 2.0 - math.log(float(finfo(wide.dtype).tiny))
    no_weight = ops.eq(largest, -math.inf)
    shift = ops.select(no_weight, of_all, ops.min(of_all, largest + reach))
    shift = ops.stop_gradient(ops.select(ops.eq(ops.abs(shift), math.inf), 0.0, shift))
    powers = exp(wide - broadcast_along(shift, wide, axes))
    return cast_like(log(total(y * powers, axes)) + shift, x)


def factorial(n: Value) -> Value:
    """n!, as `functx.scipy.special` computes it."""
    return ops.select(ops.lt(n, 0.0), 0.0, gamma(n + 1.0))


def log_factorial(n: Value) -> Value:
    """log(n!) for n >= 0, else 0."""
    return lgamma(ops.select(ops.lt(n, 0.0), 0.0, n) + 1.0)


def zero_if_negative(n: Value, value: Value) -> Value:
    """`value`, 0 for negative n."""
    return ops.select(ops.lt(n, 0.0), 0.0, value)


def binomial(n: Value, k: Value, m: Value) -> Value:
    """n! / (k! m!)."""
    quotient = exp(log_factorial(n) - log_factorial(k) - log_factorial(m))
    return zero_if_negative(n, quotient) / zero_if_negative(
        ops.min(k, m), ops.constant_like(k, 1.0)
    )


def permutations(n: Value, k: Value) -> Value:
    """n! / k!."""
    quotient = exp(log_factorial(n) - log_factorial(k))
    return zero_if_negative(n, quotient) / zero_if_negative(k, ops.constant_like(k, 1.0))


def gamma(x: Value) -> Value:
    """|gamma(x)|, of which `functx.scipy.special` makes gamma functions."""
    return exp(lgamma(x))


def covariance(x: Value, y: Value, axes: Shape) -> Value:
    """The mean over `axes` of the products of distances from the means."""
    of_x, of_y = [x - broadcast_along(statistics.mean_along(x, axes), x, axes) for x in (x, y)]
    return statistics.mean_along(of_x * of_y, axes)


def norm(x: Value) -> Value:
    """The Euclidean norm of all elements."""
    return statistics.VectorNorm(tuple(range(x.ndim)), 2.0)(x)


def squared_norm(x: Value, axes: Shape) -> Value:
    """The sum of the squared magnitudes over `axes`."""
    return total(statistics.abs_squared(upcast_half(x)), axes)


def squared_sqrt(x: Value) -> Value:
    """x, nan for negative x, and 0 for -0."""
    mask = ops.select(ops.ge(x, 0.0), 1.0, math.nan)
    return ops.WithValue()(x * mask, ops.abs(x) * mask)


def deviation(x: Value, ddof: float) -> Value:
    """The standard deviation of all elements."""
    return statistics.StandardDeviation(tuple(range(x.ndim)), ddof)(x)


FORMULAS = [
    # exponentials that cancel
    Formula("exp(x) - 1", lambda x: exp(x) - 1.0, expm1),
    Formula("1 - erf(x)", lambda x: 1.0 - special.erf(x), special.erfc),
    Formula("1 + erf(x)", lambda x: 1.0 + special.erf(x), lambda x: special.erfc(-x)),
    Formula("1 - cos(x)", lambda x: 1.0 - ops.cos(x), lambda x: 2.0 * ops.square(ops.sin(0.5 * x))),
    # quotients of exponentials
    Formula(
        "(exp(x) - exp(-x)) / (exp(x) + exp(-x))",
        lambda x: (exp(x) - exp(-x)) / (exp(x) + exp(-x)),
        tanh,
    ),
    Formula(
        "(exp(2 x) - 1) / (exp(2 x) + 1)",
        lambda x: (exp(2.0 * x) - 1.0) / (exp(2.0 * x) + 1.0),
        tanh,
    ),
    Formula("exp(x) / (1 + exp(x))", lambda x: exp(x) / (1.0 + exp(x)), logistic),
    Formula("1 / (1 + exp(-x))", lambda x: 1.0 / (1.0 + exp(-x)), logistic),
    Formula(
        "exp(x) / (exp(x) + exp(y))",
        lambda x, y: exp(x) / (exp(x) + exp(y)),
        lambda x, y: logistic(x - y),
    ),
    Formula("1 - sigmoid(x)", lambda x: 1.0 - logistic(x), lambda x: logistic(-x)),
    Formula("2 sigmoid(2 x) - 1", lambda x: 2.0 * logistic(2.0 * x) - 1.0, tanh),
    Formula("exp(x) / sum(exp(x))", lambda x: exp(x) / total(exp(x)), softmax, is_shifted),
    # quotients of gamma functions
    Formula(
        "gamma(x) / (gamma(y) gamma(z))",
        lambda x, y, z: gamma(x) / (gamma(y) * gamma(z)),
        lambda x, y, z: exp(lgamma(x) - lgamma(y) - lgamma(z)),
    ),
    Formula(
        "gamma(x) gamma(y) / gamma(z)",
        lambda x, y, z: gamma(x) * gamma(y) / gamma(z),
        lambda x, y, z: exp(lgamma(x) + lgamma(y) - lgamma(z)),
    ),
    Formula(
        "gamma(x) / gamma(y)",
        lambda x, y: gamma(x) / gamma(y),
        lambda x, y: exp(lgamma(x) - lgamma(y)),
    ),
    Formula(
        "n! / (k! m!)",
        lambda n, k, m: factorial(n) / (factorial(k) * factorial(m)),
        binomial,
    ),
    Formula("n! / k!", lambda n, k: factorial(n) / factorial(k), permutations),
    # logarithms of exponentials
    Formula("log(exp(x))", lambda x: log(exp(x)), lambda x: x),
    Formula("sqrt(exp(x))", lambda x: sqrt(exp(x)), lambda x: exp(0.5 * x)),
    Formula("log(sum(exp(x)))", lambda x: log(total(exp(x))), logsumexp, is_shifted),
    Formula(
        "log(sum(y exp(x)))", lambda y, x: log(total(y * exp(x))), weighted_logsumexp, is_shifted
    ),
    Formula("log(mean(exp(x)))", lambda x: log(mean(exp(x))), log_mean_exp, is_shifted),
    Formula("log(exp(x) + exp(y))", lambda x, y: log(exp(x) + exp(y)), special.logaddexp),
    Formula("x - logsumexp(x)", lambda x: x - logsumexp(x), log_softmax),
    Formula("log(softmax(x))", lambda x: log(softmax(x)), log_softmax),
    Formula("exp(log_softmax(x))", lambda x: exp(log_softmax(x)), softmax),
    Formula("log(sigmoid(x))", lambda x: log(logistic(x)), activations.log_sigmoid),
    Formula("log(1 - exp(x))", lambda x: log(1.0 - exp(x)), log_one_minus_exp),
    Formula("log(exp(x) - 1)", lambda x: log(exp(x) - 1.0), lambda x: x + log_one_minus_exp(-x)),
    Formula("log(cosh(x))", lambda x: log(ops.cosh(x)), activations.log_cosh),
    # logarithms near 1
    Formula(
        "log((1 + x) / (1 - x))",
        lambda x: log((1.0 + x) / (1.0 - x)),
        lambda x: log1p(x) - log1p(-x),
    ),
    Formula("log(1 + x)", lambda x: log(1.0 + x), log1p),
    Formula("log1p(exp(x))", lambda x: log1p(exp(x)), activations.softplus),
    Formula("log1p(-exp(x))", lambda x: log1p(-exp(x)), log_one_minus_exp),
    Formula("log(x + sqrt(x^2 + 1))", lambda x: log(x + sqrt(x * x + 1.0)), ops.asinh),
    # products with logarithms, at 0
    Formula("x log(x)", lambda x: x * log(x), lambda x: special.xlogy(x, x)),
    Formula(
        "(1 + x) log1p(x)", lambda x: (1.0 + x) * log1p(x), lambda x: special.xlog1py(1.0 + x, x)
    ),
    Formula("x log(x / y)", lambda x, y: x * log(x / y), lambda x, y: special.xlogy(x, x / y)),
    Formula(
        "x (log(x) - log(y))",
        lambda x, y: x * (log(x) - log(y)),
        relative_entropy,
    ),
    # squares
    Formula("sqrt(x^2)", lambda x: sqrt(x * x), ops.abs),
    Formula("sqrt(x^2 + y^2)", lambda x, y: sqrt(x * x + y * y), special.hypot),
    # squares of roots, whose second derivative is lost where the first one of the root is not defined
    Formula(
        "abs(x)^2", lambda x: ops.square(ops.abs(x)), statistics.abs_squared, accepts_complex=True
    ),
    Formula(
        "hypot(x, y)^2",
        lambda x, y: ops.square(special.hypot(x, y)),
        lambda x, y: ops.square(x) + ops.square(y),
    ),
    Formula("norm(x)^2", lambda x: ops.square(norm(x)), squared_norm, accepts_complex=True),
    Formula("sqrt(x)^2", lambda x: ops.square(sqrt(x)), squared_sqrt),
    Formula(
        "std(x)^2",
        lambda x: ops.square(deviation(x, 0.0)),
        lambda x, axes: statistics.variance(x, axes),
        accepts_complex=True,
    ),
    Formula(
        "std(x, ddof=1)^2",
        lambda x: ops.square(deviation(x, 1.0)),
        lambda x, axes: statistics.variance(x, axes, 1.0),
        accepts_complex=True,
    ),
    Formula(
        "mean(x^2) - mean(x)^2",
        lambda x: mean(x * x) - mean(x) * mean(x),
        lambda x, axes: statistics.variance(x, axes),
    ),
    Formula(
        "mean(x y) - mean(x) mean(y)", lambda x, y: mean(x * y) - mean(x) * mean(y), covariance
    ),
]
"""The rows of functx; `functx.scipy.special` appends those of its functions."""
