"""The random tests compare bits of programs that XLA has optimised."""

import jax
import pytest


@pytest.fixture(autouse=True)
def optimised():
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", True)
