"""Discrete cosine transforms, with the names and signatures of `jax.scipy.fft`.

All four types of SciPy are there; JAX has type 2 alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import index

import numpy as np

from functx import ops
from functx.core.argument_errors import explain_errors as _explain_errors
from functx.core.errors import ArgumentError, ValueRangeError
from functx.core.missing_names import suggest_alternatives as _suggest_alternatives
from functx.core.tracer import aval_of
from functx.core.types import complex_dtype, is_complex
from functx.core.typing import ArrayOrList, Axes, ShapeLike, Value
from functx.numpy import fft, joining, rearranging
from functx.numpy.promotion import as_inexact
from functx.numpy.shapes import moveaxis
from functx.ops.operands import canonical_axes

__all__ = ["dct", "dctn", "idct", "idctn"]


def dct(
    x: ArrayOrList,
    type: int = 2,
    n: int | None = None,
    axis: int = -1,
    norm: str | None = None,
) -> Value:
    """The cosine transform of `type` 1 to 4 along `axis`, truncated or zero-padded to the length `n`.

    `norm` is "backward" (None), "ortho", with which types 2 to 4 are orthogonal matrices, or "forward",
    with which the transform and not its inverse is divided by its length. A complex array is transformed
    by its parts. Type 2 is 2 sum(x[j] cos(pi k (2 j + 1) / (2 n))).

    >>> from functx.scipy.fft import dct, idct
    >>> dct([1.0, 2.0, 3.0]).tolist()[0], idct(dct([1.0, 2.0, 3.0])).round(5).tolist()
    (12.0, [1.0, 2.0, 3.0])
    """
    return _transform("dct", x, type, None if n is None else (n,), (index(axis),), norm)


def idct(
    x: ArrayOrList,
    type: int = 2,
    n: int | None = None,
    axis: int = -1,
    norm: str | None = None,
) -> Value:
    """The inverse of `dct`."""
    return _transform("idct", x, type, None if n is None else (n,), (index(axis),), norm)


def dctn(
    x: ArrayOrList,
    type: int = 2,
    s: ShapeLike | None = None,
    axes: Axes = None,
    norm: str | None = None,
) -> Value:
    """The cosine transform along `axes`, truncated or zero-padded to the lengths `s`.

    The axes are by default all, or as many of the last as `s` has lengths.
    """
    return _transform("dctn", x, type, s, axes, norm)


def idctn(
    x: ArrayOrList,
    type: int = 2,
    s: ShapeLike | None = None,
    axes: Axes = None,
    norm: str | None = None,
) -> Value:
    """The inverse of `dctn`."""
    return _transform("idctn", x, type, s, axes, norm)


_INVERSE_TYPES = {1: 1, 2: 3, 3: 2, 4: 4}


def _transform(
    name: str, x: ArrayOrList, type: int, s: ShapeLike | None, axes: Axes, norm: str | None
) -> Value:
    if type not in _INVERSE_TYPES:
        raise ValueRangeError(f"{name}: type must be 1, 2, 3 or 4; got {type!r}")
    if norm not in (None, "backward", "ortho", "forward"):
        raise ValueRangeError(
            f'{name}: norm must be None, "backward", "ortho" or "forward"; got {norm!r}'
        )
    x = as_inexact(x)
    aval = aval_of(x)
    if is_complex(aval.dtype):
        parts = [_transform(name, part(x), type, s, axes, norm) for part in (ops.real, ops.imag)]
        return ops.complex(*parts)
    lengths = None if s is None else [index(n) for n in (s if isinstance(s, Sequence) else (s,))]  # type: ignore[arg-type]
    if lengths is not None and len(lengths) > aval.ndim:
        raise ArgumentError(
            f"{name}: s must have at most x.ndim ({aval.ndim}) elements, got {len(lengths)}"
        )
    if axes is None and lengths is not None:
        axes = range(aval.ndim - len(lengths), aval.ndim)
    axes = canonical_axes(axes, aval.ndim)
    if lengths is None:
        lengths = [aval.shape[axis] for axis in axes]
    if len(lengths) != len(axes):
        raise ArgumentError(f"{name}: s must have a length for each axis; got {s!r} for {axes}")
    inverse = name.startswith("i")
    for axis, n in zip(axes, lengths, strict=True):
        if n < 1 + (type == 1):
            raise ValueRangeError(
                f"{name}: the number of terms must be at least {1 + (type == 1)}; got {n}"
            )
        last = moveaxis(fft.crop_or_pad(x, n, axis), axis, -1)
        x = moveaxis(_transform_last(last, type, inverse, norm), -1, axis)
    return x


def _transform_last(x: Value, type: int, inverse: bool, norm: str | None) -> Value:
    """The transform along the last axis.

    The inverse of each type is the transform of another, divided by twice the period: 2 n, and
    2 (n - 1) for type 1.
    """
    n = x.shape[-1]
    period = 2.0 * (n - 1 if type == 1 else n)
    if inverse:
        type = _INVERSE_TYPES[type]
    if norm == "ortho":
        # The terms without a partner weigh less by the root of 2, on both sides for type 1.
        ends = [0, n - 1] if type == 1 else [0]
        factors = np.ones(n)
        factors[ends] = math.sqrt(2.0)
        weights = ops.convert_element_type(factors, x.dtype)
        weights = ops.broadcast_in_dim(weights, x.shape, (x.ndim - 1,))
        if type in (1, 3):
            x = ops.mul(x, weights)
        x = ops.mul(_UNSCALED[type](x), 1 / math.sqrt(period))
        if type in (1, 2):
            x = ops.div(x, weights)
        return x
    out = _UNSCALED[type](x)
    is_divided = inverse != (norm == "forward")
    return ops.mul(out, 1 / period) if is_divided else out


def _first(x: Value) -> Value:
    """Type 1, x[0] + (-1)^k x[n-1] + 2 sum(x[j] cos(pi j k / (n - 1))): the values mirrored at both ends."""
    return ops.real(fft.rfft(joining.concatenate([x, rearranging.flip(x[..., 1:-1], -1)], -1)))


def _second(x: Value) -> Value:
    """Type 2, by a real transform of the even values and then the odd ones backwards.

    J. Makhoul, "A fast cosine transform in one and two dimensions" (1980).
    """
    n = x.shape[-1]
    order = joining.concatenate([x[..., ::2], rearranging.flip(x[..., 1::2], -1)], -1)
    half = ops.mul(fft.rfft(order), _twiddle(n, x, -1.0))
    # Term n - k is minus the imaginary part of what has term k as its real part.
    mirrored = rearranging.flip(ops.imag(half[..., 1 : (n + 1) // 2]), -1)
    return ops.mul(joining.concatenate([ops.real(half), ops.neg(mirrored)], -1), 2.0)


def _third(x: Value) -> Value:
    """Type 3, x[0] + 2 sum(x[j] cos(pi (2 k + 1) j / (2 n))): the steps of type 2 backwards."""
    n = x.shape[-1]
    count = n // 2 + 1
    # x[n - k], and 0 for k = 0
    mirrored = rearranging.flip(x[..., n - count + 1 :], -1)
    mirrored = joining.concatenate([ops.zeros_like(x[..., :1]), mirrored], -1)
    half = ops.mul(ops.complex(x[..., :count], ops.neg(mirrored)), _twiddle(n, x, 1.0))
    order = ops.mul(fft.irfft(half, n), float(n))
    even, odd = order[..., : (n + 1) // 2], rearranging.flip(order[..., (n + 1) // 2 :], -1)
    if n % 2:
        odd = fft.crop_or_pad(odd, n // 2 + 1, odd.ndim - 1)
    pairs = joining.stack([even, odd], -1)
    return ops.reshape(pairs, (*x.shape[:-1], 2 * even.shape[-1]))[..., :n]


def _fourth(x: Value) -> Value:
    """Type 4, 2 sum(x[j] cos(pi (2 j + 1) (2 k + 1) / (4 n))): the odd terms of a type 2 of length 2 n."""
    return _second(fft.crop_or_pad(x, 2 * x.shape[-1], x.ndim - 1))[..., 1::2]


_UNSCALED = {1: _first, 2: _second, 3: _third, 4: _fourth}


def _twiddle(n: int, x: Value, sign: float) -> Value:
    """exp(sign i pi k / (2 n)) for the terms k of half a transform of `x`."""
    count = n // 2 + 1
    factors = np.exp(sign * 0.5j * math.pi * np.arange(count) / n)
    factors = ops.convert_element_type(factors, complex_dtype(x.dtype))
    return ops.broadcast_in_dim(factors, (*x.shape[:-1], count), (x.ndim - 1,))


_suggest_alternatives("jax.scipy.fft", __name__)
_explain_errors(__name__)
