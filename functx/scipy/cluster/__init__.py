"""Clustering, with the names and signatures of `jax.scipy.cluster`."""

from functx.core.missing_names import suggest_alternatives as _suggest_alternatives
from functx.scipy.cluster import vq

__all__ = ["vq"]

_suggest_alternatives("jax.scipy.cluster", __name__)
