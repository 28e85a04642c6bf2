"""Discrete Fourier transforms with NumPy's names and signatures."""

from __future__ import annotations

from collections.abc import Sequence

from functx import ops
from functx.core.errors import ArgumentError, ValueRangeError
from functx.core.missing_names import suggest_alternatives as _suggest_alternatives
from functx.core.tracer import aval_of
from functx.core.types import complex_dtype, inexact_dtype, is_complex
from functx.core.typing import ArrayOrList, Value
from functx.numpy import floating_point, joining, rearranging, shapes, ufuncs
from functx.numpy.array_creation import arange
from functx.numpy.promotion import copy_if_shared, operand
from functx.ops import contraction
from functx.ops.operands import canonical_axes, canonical_axis

__all__ = [
    "fft",
    "fft2",
    "fftfreq",
    "fftn",
    "fftshift",
    "ifft",
    "ifft2",
    "ifftn",
    "ifftshift",
    "irfft",
    "rfft",
    "rfftfreq",
]


def fftn(
    a: ArrayOrList,
    s: Sequence[int] | None = None,
    axes: Sequence[int] | None = None,
    norm: str | None = None,
) -> Value:
    """The transform along `axes`, by default all, truncated or zero-padded to the lengths `s`."""
    return _transform("fftn", a, s, axes, norm, inverse=False)


def ifftn(
    a: ArrayOrList,
    s: Sequence[int] | None = None,
    axes: Sequence[int] | None = None,
    norm: str | None = None,
) -> Value:
    """The inverse of `fftn`."""
    return _transform("ifftn", a, s, axes, norm, inverse=True)


def fft2(
    a: ArrayOrList,
    s: Sequence[int] | None = None,
    axes: Sequence[int] | None = (-2, -1),
    norm: str | None = None,
) -> Value:
    """The transform along two axes, by default the last two."""
    return _transform("fft2", a, s, axes, norm, inverse=False)


def ifft2(
    a: ArrayOrList,
    s: Sequence[int] | None = None,
    axes: Sequence[int] | None = (-2, -1),
    norm: str | None = None,
) -> Value:
    """The inverse of `fft2`."""
    return _transform("ifft2", a, s, axes, norm, inverse=True)


def fft(a: ArrayOrList, n: int | None = None, axis: int = -1, norm: str | None = None) -> Value:
    """The transform along `axis`, truncated or zero-padded to the length `n`."""
    return _transform("fft", a, None if n is None else (n,), (axis,), norm, inverse=False)


def ifft(a: ArrayOrList, n: int | None = None, axis: int = -1, norm: str | None = None) -> Value:
    """The inverse of `fft`."""
    return _transform("ifft", a, None if n is None else (n,), (axis,), norm, inverse=True)


def rfft(a: ArrayOrList, n: int | None = None, axis: int = -1, norm: str | None = None) -> Value:
    """The first half of the transform of real values; the second half is its conjugate."""
    if is_complex(aval_of(operand(a)).dtype):
        raise ArgumentError(f"rfft: the array must be real; got {aval_of(a)!r}", fix="Use fft.")
    axis = canonical_axis(axis, aval_of(operand(a)).ndim)
    full = fft(a, aval_of(operand(a)).shape[axis] if n is None else n, axis, norm)
    return ops.slice_in_dim(full, 0, full.shape[axis] // 2 + 1, axis=axis)


def irfft(a: ArrayOrList, n: int | None = None, axis: int = -1, norm: str | None = None) -> Value:
    """The `n` real values whose `rfft` is `a`, of length m; `n` is 2 (m - 1) by default."""
    a = _as_complex(a)
    axis = canonical_axis(axis, a.ndim)
    n = 2 * (a.shape[axis] - 1) if n is None else n
    half = _crop_or_pad("irfft", a, n // 2 + 1, axis)
    # The second half: the conjugates of the inner terms in reverse order.
    inner = ops.slice_in_dim(half, 1, (n + 1) // 2, axis=axis)
    mirrored = floating_point.conj(rearranging.flip(inner, axis=axis))
    # The imaginary parts of the first and the middle term are ignored.
    spectrum = joining.concatenate([half, mirrored], axis=axis)
    return ops.real(ifft(spectrum, axis=axis, norm=norm))


def fftfreq(n: int, d: float = 1.0) -> Value:
    """The frequencies of an `fft` of `n` samples with spacing `d`, in cycles per unit of `d`."""
    k = arange(n)
    return ufuncs.where(k < (n + 1) // 2, k, k - n) / (n * d)


def rfftfreq(n: int, d: float = 1.0) -> Value:
    """The frequencies of an `rfft` of `n` samples with spacing `d`, in cycles per unit of `d`."""
    return arange(n // 2 + 1) / (n * d)


def fftshift(x: ArrayOrList, axes: Sequence[int] | None = None) -> Value:
    """`x` with the zero-frequency term shifted to the middle of `axes`, by default all."""
    shifted_axes = canonical_axes(axes, aval_of(operand(x)).ndim)
    return rearranging.roll(x, [aval_of(x).shape[a] // 2 for a in shifted_axes], shifted_axes)


def ifftshift(x: ArrayOrList, axes: Sequence[int] | None = None) -> Value:
    """The inverse of `fftshift`."""
    shifted_axes = canonical_axes(axes, aval_of(operand(x)).ndim)
    return rearranging.roll(x, [-(aval_of(x).shape[a] // 2) for a in shifted_axes], shifted_axes)


def _transform(
    name: str,
    a: ArrayOrList,
    s: Sequence[int] | None,
    axes: Sequence[int] | None,
    norm: str | None,
    inverse: bool,
) -> Value:
    original, a = a, _as_complex(a)
    if axes is None:
        axes = range(a.ndim) if s is None else range(a.ndim - len(s), a.ndim)
    transform_axes = canonical_axes(tuple(axes), a.ndim)
    if s is None and 0 in [a.shape[d] for d in transform_axes]:
        return copy_if_shared(a, operand(original))
    for axis, n in zip(transform_axes, s or [a.shape[d] for d in transform_axes], strict=True):
        a = _crop_or_pad(name, a, n, axis)
    count = len(transform_axes)
    last = tuple(range(a.ndim - count, a.ndim))
    moved = shapes.moveaxis(a, transform_axes, last)
    size = 1
    for d in last:
        size *= moved.shape[d]
    out = shapes.moveaxis(contraction.fft(moved, count, inverse), last, transform_axes)
    factor = _norm_factor(name, norm, size, inverse)
    return out if factor == 1.0 else out * factor


def _norm_factor(name: str, norm: str | None, size: int, inverse: bool) -> float:
    """The factor after the primitive, which scales by 1 / size in the inverse only."""
    factors = {"backward": 1.0 / size if inverse else 1.0, "ortho": size**-0.5}
    factors["forward"] = 1.0 if inverse else 1.0 / size
    kind = norm or "backward"
    if kind not in factors:
        raise ValueRangeError(f"{name}: norm must be one of {sorted(factors)}; got {norm!r}")
    return factors[kind] * (size if inverse else 1.0)


def _as_complex(a: ArrayOrList) -> Value:
    a = operand(a)
    return ops.convert_element_type(a, complex_dtype(inexact_dtype(aval_of(a).dtype)))


def _crop_or_pad(name: str, a: Value, n: int, axis: int) -> Value:
    """`a` truncated or zero-padded to the length `n` along `axis`."""
    if n < 1:
        raise ValueRangeError(f"{name}: the number of terms must be positive; got {n}")
    size = a.shape[axis]
    if n <= size:
        return a if n == size else ops.slice_in_dim(a, 0, n, axis=axis)
    widths = [(0, n - size if d == axis else 0) for d in range(a.ndim)]
    return rearranging.pad(a, widths)


_suggest_alternatives("jax.numpy.fft", __name__)
