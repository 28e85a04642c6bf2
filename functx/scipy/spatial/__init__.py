"""Rotations, with the names and signatures of `jax.scipy.spatial`."""

from functx.core.missing_names import suggest_alternatives as _suggest_alternatives
from functx.scipy.spatial import transform

__all__ = ["transform"]

_suggest_alternatives("jax.scipy.spatial", __name__)
