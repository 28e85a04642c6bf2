"""Solvers and samplers written for JAX, called as they are inside functx's transforms."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as onp
import pytest

import functx as fx

eqx = pytest.importorskip("equinox")


def close(got, want):
    jax.tree.map(partial(onp.testing.assert_allclose, rtol=1e-3, atol=1e-4), got, want)


def test_checks_of_values_are_made_once_for_a_whole_batch():
    def checked(x):
        return jnp.sin(eqx.error_if(x, x < 0, "must not be negative"))

    rows = jnp.linspace(0.1, 1.0, 3)
    close(fx.jit(fx.vmap(fx.grad(checked)))(rows), jnp.cos(rows))
    close(fx.grad(lambda x: fx.vmap(checked)(x).sum())(rows), jnp.cos(rows))
    with pytest.raises(RuntimeError, match="must not be negative"):
        fx.jit(fx.vmap(checked))(-rows).block_until_ready()
