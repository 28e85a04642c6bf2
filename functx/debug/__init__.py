"""Inspection of values while a program runs: prints, callbacks and breakpoints."""

from functx.debug.breakpoints import breakpoint
from functx.debug.callbacks import callback, print

__all__ = ["breakpoint", "callback", "print"]
