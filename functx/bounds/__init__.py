"""Bounds of the values of functions over boxes of arguments, by transforms of their programs."""

from functx.bounds import interval_rules as _interval_rules  # noqa: F401 - registers rules
from functx.bounds.boxes import Interval
from functx.bounds.crown import crown
from functx.bounds.interval import interval, interval_rule
from functx.bounds.lipschitz import lipschitz
from functx.core.argument_errors import explain_errors as _explain_errors

__all__ = ["Interval", "crown", "interval", "interval_rule", "lipschitz"]

_explain_errors(__name__)
