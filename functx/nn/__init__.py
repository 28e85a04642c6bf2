"""Activations and other functions of neural networks."""
