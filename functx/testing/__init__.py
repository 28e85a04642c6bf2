"""Checks for rules and derivatives, the same for functx's own primitives and for yours."""
