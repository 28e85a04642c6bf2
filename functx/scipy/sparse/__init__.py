"""Iterative solvers of linear systems, with the names and signatures of `jax.scipy.sparse`."""

from functx.core.missing_names import suggest_alternatives as _suggest_alternatives
from functx.scipy.sparse import linalg

__all__ = ["linalg"]

_suggest_alternatives("jax.scipy.sparse", __name__)
