"""Taylor mode, by the names of `jax.experimental.jet`."""

from functools import partial as _partial

from functx.core.missing_names import suggest_alternatives as _suggest_alternatives
from functx.transforms.jet import jet

jet2 = _partial(jet, factorial_scaled=False)

__all__ = ["jet", "jet2"]

_suggest_alternatives("jax.experimental.jet", __name__)
