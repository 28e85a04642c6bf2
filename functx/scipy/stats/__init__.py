"""Statistics, with the names and signatures of `jax.scipy.stats`; each distribution is a module.

>>> import numpy
>>> from functx.scipy.stats import norm
>>> norm.cdf(numpy.array([-1.0, 0.0]), scale=2.0).round(4)
array([0.3085, 0.5   ], dtype=float32)
"""

from types import ModuleType as _ModuleType
from typing import TYPE_CHECKING as _TYPE_CHECKING

from functx.core.argument_errors import explain_errors as _explain_errors
from functx.core.missing_names import suggest_alternatives as _suggest_alternatives
from functx.scipy.stats import dirichlet, multinomial, multivariate_normal
from functx.scipy.stats.continuous import ELEMENTARY_DISTRIBUTIONS as _ELEMENTARY
from functx.scipy.stats.discrete import DISCRETE_DISTRIBUTIONS as _DISCRETE
from functx.scipy.stats.distribution import DISTRIBUTIONS as _DISTRIBUTIONS
from functx.scipy.stats.distribution import add_modules as _add_modules
from functx.scipy.stats.gamma_and_beta import GAMMA_AND_BETA_DISTRIBUTIONS as _GAMMA_AND_BETA
from functx.scipy.stats.kernel_density import gaussian_kde
from functx.scipy.stats.order_statistics import mode, rankdata, sem

if _TYPE_CHECKING:

    def __getattr__(name: str) -> _ModuleType:
        raise NotImplementedError


_suggest_alternatives("jax.scipy.stats", __name__)
_explain_errors(__name__)
_add_modules(__name__, [*_ELEMENTARY, *_GAMMA_AND_BETA, *_DISCRETE])

__all__ = [
    *_DISTRIBUTIONS,
    "dirichlet",
    "gaussian_kde",
    "mode",
    "multinomial",
    "multivariate_normal",
    "rankdata",
    "sem",
]
