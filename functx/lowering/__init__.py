"""How a program runs: StableHLO, the executables, jit, and the bridge to JAX."""

from functx.lowering import arrays, disk, execution, in_jax, keys

__all__ = ["arrays", "disk", "execution", "in_jax", "keys"]
