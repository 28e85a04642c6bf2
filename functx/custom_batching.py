"""Functions with batching rules of their own, by the names of `jax.custom_batching`."""

from functx.core.argument_errors import explain_errors as _explain_errors
from functx.custom.custom_vmap import custom_vmap, sequential_vmap

__all__ = ["custom_vmap", "sequential_vmap"]

_explain_errors(__name__)
