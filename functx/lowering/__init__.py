"""How a program runs: StableHLO, the executables, jit, and the bridge to JAX."""

from functx.lowering import execution, functx_call, jax_bridge

__all__ = ["execution", "functx_call", "jax_bridge"]
