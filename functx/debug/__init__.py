"""A look at values while a program runs: printing them, or handing them to a function."""

from functx.debug.callbacks import callback
from functx.debug.printing import print

__all__ = ["callback", "print"]
