"""SciPy's functions, with the names and signatures of `jax.scipy`."""

from functx.core.missing_names import suggest_alternatives as _suggest_alternatives
from functx.scipy import special

__all__ = ["special"]

_suggest_alternatives("jax.scipy", __name__)
