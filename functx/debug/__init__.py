"""A look at values while a program runs: printed, handed to a function, or at a prompt."""

from functx.debug.breakpoints import breakpoint
from functx.debug.callbacks import callback, print

__all__ = ["breakpoint", "callback", "print"]
