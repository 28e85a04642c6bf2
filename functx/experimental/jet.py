"""Taylor mode, by the names of `jax.experimental.jet`."""

from functools import partial as _partial

from functx.core.argument_errors import explain_errors as _explain_errors
from functx.core.missing_names import suggest_alternatives as _suggest_alternatives
from functx.transforms.jet import jet

__all__ = ["jet", "jet2"]

_explain_errors(__name__)
jet2 = _partial(jet, factorial_scaled=False)
_suggest_alternatives("jax.experimental.jet", __name__)
