"""Integrals of samples, with the names and signatures of `jax.scipy.integrate`."""

from functx.core.argument_errors import explain_errors as _explain_errors
from functx.core.missing_names import suggest_alternatives as _suggest_alternatives
from functx.numpy.cumulative import trapezoid

__all__ = ["trapezoid"]

_suggest_alternatives("jax.scipy.integrate", __name__)
_explain_errors(__name__)
