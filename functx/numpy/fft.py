"""Discrete Fourier transforms with NumPy's names and signatures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import index
from typing import SupportsIndex

from functx import ops
from functx.core.argument_errors import explain_errors as _explain_errors
from functx.core.errors import ArgumentError, DTypeError, ValueRangeError
from functx.core.missing_names import suggest_alternatives as _suggest_alternatives
from functx.core.tracer import aval_of
from functx.core.types import (
    canonical_dtype,
    complex_dtype,
    inexact_dtype,
    is_complex,
    is_floating,
    real_dtype,
)
from functx.core.typing import ArrayLike, ArrayOrList, Axes, DTypeLike, Value
from functx.numpy import floating_point, rearranging, shapes, ufuncs
from functx.numpy.array_creation import arange
from functx.numpy.devices import on_device
from functx.numpy.promotion import copy_if_shared, operand
from functx.ops.operands import canonical_axes

__all__ = [
    "fft",
    "fft2",
    "fftfreq",
    "fftn",
    "fftshift",
    "hfft",
    "ifft",
    "ifft2",
    "ifftn",
    "ifftshift",
    "ihfft",
    "irfft",
    "irfft2",
    "irfftn",
    "rfft",
    "rfft2",
    "rfftfreq",
    "rfftn",
]

Lengths = Sequence[int] | None


def fft(a: ArrayOrList, n: int | None = None, axis: int = -1, norm: str | None = None) -> Value:
    """The transform along `axis`, truncated or zero-padded to the length `n`."""
    return _transform_axis("fft", a, n, axis, norm)


def ifft(a: ArrayOrList, n: int | None = None, axis: int = -1, norm: str | None = None) -> Value:
    """The inverse of `fft`."""
    return _transform_axis("ifft", a, n, axis, norm)


def rfft(a: ArrayOrList, n: int | None = None, axis: int = -1, norm: str | None = None) -> Value:
    """The first half of the transform of real values; the second half is its conjugate."""
    return _transform_axis("rfft", a, n, axis, norm)


def irfft(a: ArrayOrList, n: int | None = None, axis: int = -1, norm: str | None = None) -> Value:
    """The `n` real values whose `rfft` is `a`, of length m; `n` is 2 (m - 1) by default."""
    return _transform_axis("irfft", a, n, axis, norm)


def hfft(a: ArrayOrList, n: int | None = None, axis: int = -1, norm: str | None = None) -> Value:
    """The `n` real values of the transform of an array whose first half is `a`.

    The second half of that array is the conjugate of the first; `n` is 2 (m - 1) by default, for
    `a` of length m.
    """
    conjugate = floating_point.conj(operand(a))
    return _transform_axis("irfft", conjugate, n, axis, _opposite_norm("hfft", norm))


def ihfft(a: ArrayOrList, n: int | None = None, axis: int = -1, norm: str | None = None) -> Value:
    """The inverse of `hfft`, of real values, truncated or zero-padded to the length `n`."""
    out = _transform_axis("rfft", a, n, axis, _opposite_norm("ihfft", norm))
    return floating_point.conj(out)


def fft2(
    a: ArrayOrList, s: Lengths = None, axes: Sequence[int] = (-2, -1), norm: str | None = None
) -> Value:
    """The transform along two axes, by default the last two."""
    return _transform("fft", "fft2", a, s, axes, norm)


def ifft2(
    a: ArrayOrList, s: Lengths = None, axes: Sequence[int] = (-2, -1), norm: str | None = None
) -> Value:
    """The inverse of `fft2`."""
    return _transform("ifft", "ifft2", a, s, axes, norm)


def rfft2(
    a: ArrayOrList, s: Lengths = None, axes: Sequence[int] = (-2, -1), norm: str | None = None
) -> Value:
    """The transform of real values along two axes, of the last of which it has the first half."""
    return _transform("rfft", "rfft2", a, s, axes, norm)


def irfft2(
    a: ArrayOrList, s: Lengths = None, axes: Sequence[int] = (-2, -1), norm: str | None = None
) -> Value:
    """The inverse of `rfft2`, of the lengths `s`; the last is 2 (m - 1) by default."""
    return _transform("irfft", "irfft2", a, s, axes, norm)


def fftn(
    a: ArrayOrList,
    s: Lengths = None,
    axes: Sequence[int] | None = None,
    norm: str | None = None,
) -> Value:
    """The transform along `axes`, by default all, truncated or zero-padded to the lengths `s`."""
    return _transform("fft", "fftn", a, s, axes, norm)


def ifftn(
    a: ArrayOrList,
    s: Lengths = None,
    axes: Sequence[int] | None = None,
    norm: str | None = None,
) -> Value:
    """The inverse of `fftn`."""
    return _transform("ifft", "ifftn", a, s, axes, norm)


def rfftn(
    a: ArrayOrList,
    s: Lengths = None,
    axes: Sequence[int] | None = None,
    norm: str | None = None,
) -> Value:
    """The transform of real values along `axes`, of the last of which it has the first half."""
    return _transform("rfft", "rfftn", a, s, axes, norm)


def irfftn(
    a: ArrayOrList,
    s: Lengths = None,
    axes: Sequence[int] | None = None,
    norm: str | None = None,
) -> Value:
    """The inverse of `rfftn`, of the lengths `s`; the last is 2 (m - 1) by default."""
    return _transform("irfft", "irfftn", a, s, axes, norm)


def fftfreq(n: int, d: ArrayLike = 1.0, *, dtype: DTypeLike = None, device: object = None) -> Value:
    """The frequencies of an `fft` of `n` samples with spacing `d`, in cycles per unit of `d`."""
    k = arange(n)
    return _frequencies("fftfreq", ufuncs.where(k < (n + 1) // 2, k, k - n), n, d, dtype, device)


def rfftfreq(
    n: int, d: ArrayLike = 1.0, *, dtype: DTypeLike = None, device: object = None
) -> Value:
    """The frequencies of an `rfft` of `n` samples with spacing `d`, in cycles per unit of `d`."""
    return _frequencies("rfftfreq", arange(n // 2 + 1), n, d, dtype, device)


def _frequencies(
    name: str, k: Value, n: int, d: ArrayLike, dtype: DTypeLike, device: object
) -> Value:
    """`k / (n * d)` for the numbers `k` of terms of a transform, in a floating-point `dtype`."""
    dtype = canonical_dtype(float if dtype is None else dtype)
    if not is_floating(dtype):
        raise DTypeError(f"{name}: dtype must be a floating-point dtype; got {dtype}")
    return on_device(shapes.astype(shapes.astype(k, dtype) / (n * d), dtype), device)  # type: ignore[operator]


def fftshift(x: ArrayOrList, axes: Axes = None) -> Value:
    """`x` with the zero-frequency term shifted to the middle of `axes`, by default all."""
    shifted_axes = canonical_axes(axes, aval_of(operand(x)).ndim)
    return rearranging.roll(x, [aval_of(x).shape[a] // 2 for a in shifted_axes], shifted_axes)


def ifftshift(x: ArrayOrList, axes: Axes = None) -> Value:
    """The inverse of `fftshift`."""
    shifted_axes = canonical_axes(axes, aval_of(operand(x)).ndim)
    return rearranging.roll(x, [-(aval_of(x).shape[a] // 2) for a in shifted_axes], shifted_axes)


def _transform_axis(
    kind: str, a: ArrayOrList, n: int | None, axis: SupportsIndex, norm: str | None
) -> Value:
    return _transform(kind, kind, a, None if n is None else (n,), (index(axis),), norm)


def _transform(
    kind: str,
    name: str,
    a: ArrayOrList,
    s: Lengths,
    axes: Sequence[int] | None,
    norm: str | None,
) -> Value:
    """The transform `kind`, one of fft, ifft, rfft and irfft, along `axes`; `name` is in messages."""
    original, a = a, operand(a)
    aval = aval_of(a)
    dtype = complex_dtype(inexact_dtype(aval.dtype))
    if kind == "rfft":
        if is_complex(aval.dtype):
            raise ArgumentError(f"{name}: the array must be real; got {aval!r}", fix="Use fft.")
        dtype = real_dtype(dtype)
    a = ops.convert_element_type(a, dtype)
    if axes is None:
        axes = range(aval.ndim) if s is None else range(aval.ndim - len(s), aval.ndim)
    axes = canonical_axes(tuple(axes), aval.ndim)
    lengths = _transform_lengths(kind, name, a, s, axes)
    if not axes or (s is None and 0 in [a.shape[d] for d in axes]):
        if axes and kind in ("rfft", "irfft"):
            n = a.shape[axes[-1]]
            shape = list(a.shape)
            shape[axes[-1]] = n and (n // 2 + 1 if kind == "rfft" else 2 * (n - 1))
            return ops.full(
                shape, 0, real_dtype(dtype) if kind == "irfft" else complex_dtype(dtype)
            )
        return copy_if_shared(a, operand(original))
    kept = [*lengths[:-1], lengths[-1] // 2 + 1 if kind == "irfft" else lengths[-1]]
    for axis, n in zip(axes, kept, strict=True):
        a = crop_or_pad(a, n, axis)
    last = tuple(range(a.ndim - len(axes), a.ndim))
    out = shapes.moveaxis(_TRANSFORMS[kind](shapes.moveaxis(a, axes, last), lengths), last, axes)
    factor = _norm_factor(name, norm, math.prod(lengths), kind.startswith("i"))
    return out if factor == 1.0 else out * factor


_TRANSFORMS = {
    "fft": lambda a, lengths: ops.Fft(len(lengths))(a),
    "ifft": lambda a, lengths: ops.Fft(len(lengths), True)(a),
    "rfft": lambda a, lengths: ops.RealFft(len(lengths))(a),
    "irfft": lambda a, lengths: ops.InverseRealFft(tuple(lengths))(a),
}


def _transform_lengths(
    kind: str, name: str, a: Value, s: Lengths, axes: Sequence[int]
) -> list[int]:
    """The number of terms along each axis, before the half of a real transform is dropped."""
    if s is None:
        lengths = [a.shape[d] for d in axes]
        if kind == "irfft" and axes:
            lengths[-1] = 2 * (lengths[-1] - 1)
            if lengths[-1] == 0:
                raise ValueRangeError(f"{name}: the number of terms must be positive; got 0")
        return lengths
    lengths = [index(n) for n in s]
    if len(lengths) != len(axes):
        raise ValueRangeError(f"{name}: s and axes must have one length; got {s} and {axes}")
    if any(n < 1 for n in lengths):
        raise ValueRangeError(f"{name}: the number of terms must be positive; got {s}")
    return lengths


def _norm_factor(name: str, norm: str | None, size: int, inverse: bool) -> float:
    """The factor after the primitive, which scales by 1 / size in the inverse only."""
    kind = _canonical_norm(name, norm)
    if kind == "ortho":
        return math.sqrt(size) if inverse else 1 / math.sqrt(size)
    if kind == "forward":
        return float(size) if inverse else 1 / size
    return 1.0


def _canonical_norm(name: str, norm: str | None) -> str:
    if norm not in (None, *_OPPOSITE_NORMS):
        allowed = ", ".join(_OPPOSITE_NORMS)
        raise ValueRangeError(f"{name}: norm must be None or one of {allowed}; got {norm!r}")
    return norm or "backward"


def _opposite_norm(name: str, norm: str | None) -> str:
    return _OPPOSITE_NORMS[_canonical_norm(name, norm)]


_OPPOSITE_NORMS = {"backward": "forward", "ortho": "ortho", "forward": "backward"}
"""For each scaling, the one of the inverse transform that scales as often."""


def crop_or_pad(a: Value, n: int, axis: int) -> Value:
    """`a` truncated or zero-padded to the length `n` along `axis`, which is not negative."""
    size = a.shape[axis]
    if n <= size:
        return a if n == size else ops.slice_in_dim(a, 0, n, axis=axis)
    widths = [(0, n - size if d == axis else 0) for d in range(a.ndim)]
    return rearranging.pad(a, widths)


_suggest_alternatives("jax.numpy.fft", __name__)
_explain_errors(__name__)
