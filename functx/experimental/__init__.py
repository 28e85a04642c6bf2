"""Functions with the names and signatures of `jax.experimental`."""

from functx.core.missing_names import suggest_alternatives as _suggest_alternatives
from functx.experimental import jet, ode

__all__ = ["jet", "ode"]

_suggest_alternatives("jax.experimental", __name__)
