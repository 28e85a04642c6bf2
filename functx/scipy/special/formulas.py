"""Formulas with functions of this package that underflow or overflow, and the stable ones in their place."""

from __future__ import annotations

import math

from functx import ops
from functx.core.typing import Value
from functx.ops.special import erfc, lgamma
from functx.passes.stable_formulas import FORMULAS, Formula
from functx.scipy.special.elementary import factorial, gamma, gammasgn, log_ndtr


def log_gamma(x: Value) -> Value:
    """log(gamma(x)), nan where gamma(x) is negative."""
    return ops.select(ops.lt(gammasgn(x), 0.0), math.nan, lgamma(x))


FORMULAS += [
    Formula("log(gamma(x))", lambda x: ops.log(gamma(x)), log_gamma),
    Formula(
        "log(n!)",
        lambda n: ops.log(factorial(n)),
        lambda n: ops.select(ops.lt(n, 0.0), -math.inf, lgamma(n + 1.0)),
    ),
    Formula(
        "log(erfc(x))",
        lambda x: ops.log(erfc(x)),
        lambda x: log_ndtr(-math.sqrt(2.0) * x) + math.log(2.0),
    ),
    Formula(
        "log(erfc(x) / 2)",
        lambda x: ops.log(0.5 * erfc(x)),
        lambda x: log_ndtr(-math.sqrt(2.0) * x),
    ),
]
