"""JAX's names for the primitives."""

from functx.transforms.control.cond import cond, switch
