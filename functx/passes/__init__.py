"""Optimizations of programs; importing them installs those that derivatives use."""

from functx.passes import rematerialized_gradients, spectral

__all__ = ["rematerialized_gradients", "spectral"]
