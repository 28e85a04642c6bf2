"""JAX's names for the primitives."""
