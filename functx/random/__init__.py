"""Random numbers from explicit keys: the names, arguments and numbers of `jax.random`.

A key is a uint32 array of shape (2,); typed keys of JAX are accepted, too.

>>> from functx import random
>>> first, second = random.split(random.key(0))
>>> random.randint(first, (3,), 0, 10).shape
(3,)
"""

from functx.core.missing_names import suggest_alternatives as _suggest_alternatives
from functx.random.keys import (
    PRNGKey,
    bits,
    clone,
    fold_in,
    key,
    key_data,
    key_impl,
    split,
    wrap_key_data,
)
from functx.random.samplers import (
    bernoulli,
    categorical,
    cauchy,
    choice,
    exponential,
    gumbel,
    laplace,
    logistic,
    normal,
    permutation,
    rademacher,
    randint,
    truncated_normal,
    uniform,
)

__all__ = [
    "PRNGKey",
    "bernoulli",
    "bits",
    "categorical",
    "cauchy",
    "choice",
    "clone",
    "exponential",
    "fold_in",
    "gumbel",
    "key",
    "key_data",
    "key_impl",
    "laplace",
    "logistic",
    "normal",
    "permutation",
    "rademacher",
    "randint",
    "split",
    "truncated_normal",
    "uniform",
    "wrap_key_data",
]

_suggest_alternatives("jax.random", __name__)
