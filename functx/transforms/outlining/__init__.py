"""Repeats in programs: found, made programs of their own, and rolled into loops."""
