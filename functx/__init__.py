"""Functional transformations of NumPy-style programs that you can read."""

from functx import ops, lowering
