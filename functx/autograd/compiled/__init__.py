"""Compiled autograd: the backward walk captured as a program, and found again by its structure."""
