"""Checks of values, by the names of `jax.experimental.checkify`: those of `functx.checkify`."""

from functx.checkify import (
    Error,
    all_checks,
    automatic_checks,
    check,
    check_error,
    checkify,
    debug_check,
    div_checks,
    float_checks,
    index_checks,
    nan_checks,
    user_checks,
)
from functx.core.missing_names import suggest_alternatives as _suggest_alternatives

__all__ = [
    "Error",
    "all_checks",
    "automatic_checks",
    "check",
    "check_error",
    "checkify",
    "debug_check",
    "div_checks",
    "float_checks",
    "index_checks",
    "nan_checks",
    "user_checks",
]

_suggest_alternatives("jax.experimental.checkify", __name__)
