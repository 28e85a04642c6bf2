"""Inspection of values while a program runs: prints, callbacks and breakpoints."""

from functx.debug.callbacks import breakpoint, callback, print

__all__ = ["breakpoint", "callback", "print"]
