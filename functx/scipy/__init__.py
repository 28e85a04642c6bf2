"""What SciPy adds to NumPy, by the names and signatures of `jax.scipy`."""

from functx.scipy import special

__all__ = ["special"]
