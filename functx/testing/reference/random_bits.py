"""Random numbers: those that JAX draws with the same keys."""

# ruff: noqa: N802 - functions are named as the classes whose meaning they are

from __future__ import annotations

import jax
import numpy as np

from functx.testing.reference.meanings import (
    EXACT_DTYPE_RULES,
    REFERENCE_RULES,
    exact_dtype_rule,
    reference_rule,
)


def vectorize_over_keys(function):
    """`function(key, *operands, **params)`, for each key of a batch."""

    def for_each_key(key, *operands, **params):
        rows = [
            np.asarray(function(jax.random.wrap_key_data(row), *operands, **params))
            for row in key.reshape(-1, 2)
        ]
        return np.stack(rows).reshape(*key.shape[:-1], *rows[0].shape)

    return for_each_key


@exact_dtype_rule
def RandomSeed(seed):
    with jax.enable_x64(seed.dtype.itemsize == 8):
        rows = [np.asarray(jax.random.key_data(jax.random.key(s))) for s in seed.ravel()]
    return np.stack(rows).reshape(*seed.shape, 2)


@exact_dtype_rule
def RandomFoldIn(key, data):
    # `data` has the dimensions of the keys first.
    keys = np.broadcast_to(
        np.expand_dims(key, tuple(range(key.ndim - 1, data.ndim))), (*data.shape, 2)
    )
    rows = [
        np.asarray(jax.random.key_data(jax.random.fold_in(jax.random.wrap_key_data(k), d)))
        for k, d in zip(keys.reshape(-1, 2), data.ravel(), strict=True)
    ]
    return np.stack(rows).reshape(keys.shape)


JAX_SAMPLERS = {
    "RandomSplit": lambda key, shape: jax.random.key_data(jax.random.split(key, shape)),
    "RandomBits": jax.random.bits,
    "RandomUniform": jax.random.uniform,
    "RandomUniformBetween": lambda key, low, high, shape: jax.random.uniform(
        key, shape, low.dtype, low, high
    ),
    "RandomNormal": jax.random.normal,
    "RandomTruncatedNormal": lambda key, low, high, shape: jax.random.truncated_normal(
        key, low, high, shape, low.dtype
    ),
    "RandomExponential": jax.random.exponential,
    "RandomLaplace": jax.random.laplace,
    "RandomLogistic": jax.random.logistic,
    "RandomCauchy": jax.random.cauchy,
    "RandomGumbel": lambda key, shape, dtype, fine: jax.random.gumbel(
        key, shape, dtype, mode="high" if fine else "low"
    ),
    "RandomBernoulli": lambda key, p, shape, fine: jax.random.bernoulli(
        key, p, shape, mode="high" if fine else "low"
    ),
    "RandomIntegers": lambda key, low, count, shape: jax.random.randint(
        key, shape, low, low + count, low.dtype
    ),
    "RandomShuffle": lambda key, x, axis: jax.random.permutation(key, x, axis, independent=True),
}


REFERENCE_RULES |= {name: vectorize_over_keys(function) for name, function in JAX_SAMPLERS.items()}
EXACT_DTYPE_RULES.update(JAX_SAMPLERS)


@reference_rule
def Dropout(x, key, rate):
    wide = np.float64 if jax.config.jax_enable_x64 else np.float32
    kept = jax.random.bernoulli(key, np.asarray(1 - rate, wide), x.shape)
    return np.where(kept, x / max(1 - rate, 0.1), 0)
