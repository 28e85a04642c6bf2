"""The discrete Fourier transform."""

from __future__ import annotations

from typing import Any

from jax import lax
from jax import numpy as jnp

from functx.core.dtypes import is_complex
from functx.core.errors import DTypeError, ShapeError
from functx.core.samples import c64, sample
from functx.ops.families import Linear
from functx.ops.shaping import moveaxis

_MAX_XLA_NDIM = 3


class Fft(Linear):
    """The discrete Fourier transform over the last `ndim` dimensions, or its inverse."""

    ndim: int = 1
    inverse: bool = False
    samples = (
        sample(c64[3, 4]),
        sample(c64[5], inverse=True),
        sample(c64[2, 3, 4], ndim=2),
        sample(c64[2, 3, 2, 2, 3], ndim=5),
    )

    def abstract_eval(self, x):
        if not is_complex(x.dtype):
            raise DTypeError(f"fft: the operand must be complex; got {x!r}", fix="Convert it.")
        if x.ndim < self.ndim or 0 in x.shape[x.ndim - self.ndim :]:
            raise ShapeError(f"fft: there must be {self.ndim} dimensions with elements; got {x!r}")
        return x

    def transpose(self, ct, x):
        # The matrix of the transform is symmetric.
        return (self(ct),)

    def batch(self, args, dims):
        return self(moveaxis(args[0], dims[0], 0)), 0

    def lower(self, ctx, x):
        shape = ctx.avals_in[0].shape
        kind = lax.FftType.IFFT if self.inverse else lax.FftType.FFT

        def transform(v):
            # The transform is separable, and XLA's is over three dimensions at most.
            for end in range(self.ndim, 0, -_MAX_XLA_NDIM):
                count = min(end, _MAX_XLA_NDIM)
                axes = [len(shape) - self.ndim + i for i in range(end - count, end)]
                last = range(-count, 0)
                moved = jnp.moveaxis(v, axes, last)
                v = jnp.moveaxis(lax.fft(moved, kind, moved.shape[-count:]), last, axes)
            return v

        return ctx.via_jax(transform, x)


def fft(x: Any, ndim: int = 1, inverse: bool = False) -> Any:
    """The discrete Fourier transform of the complex `x` over its last `ndim` dimensions."""
    return Fft(ndim, inverse)(x)
