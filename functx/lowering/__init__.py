"""How a program runs: StableHLO, the executables, jit, and the bridge to JAX."""

from functx.lowering import arrays, execution, in_jax, keys

__all__ = ["arrays", "execution", "in_jax", "keys"]
