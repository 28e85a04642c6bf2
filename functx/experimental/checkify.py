"""Checks of values, by the names of `jax.experimental.checkify`: those of `functx.checkify`."""

from functx.checkify import Error as Error
from functx.checkify import all_checks as all_checks
from functx.checkify import automatic_checks as automatic_checks
from functx.checkify import check as check
from functx.checkify import check_error as check_error
from functx.checkify import checkify as checkify
from functx.checkify import debug_check as debug_check
from functx.checkify import div_checks as div_checks
from functx.checkify import float_checks as float_checks
from functx.checkify import index_checks as index_checks
from functx.checkify import nan_checks as nan_checks
from functx.checkify import user_checks as user_checks
from functx.core.argument_errors import explain_errors as _explain_errors
from functx.core.missing_names import suggest_alternatives as _suggest_alternatives

__all__ = _explain_errors(__name__)
_suggest_alternatives("jax.experimental.checkify", __name__)
