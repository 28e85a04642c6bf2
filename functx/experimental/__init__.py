"""Functions with the names and signatures of `jax.experimental`."""

from functx.core.argument_errors import explain_errors as _explain_errors
from functx.core.missing_names import suggest_alternatives as _suggest_alternatives
from functx.experimental import checkify, jet, ode
from functx.ops.callbacks import io_callback

__all__ = ["checkify", "io_callback", "jet", "ode"]

_explain_errors(__name__)
_suggest_alternatives("jax.experimental", __name__)
