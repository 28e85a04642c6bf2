"""JAX functions inside functx: their jaxprs become equations of the program being traced."""
