"""NumPy definitions of elementwise operations, conversions, shapes, slices and views."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import numpy as np
import scipy.special
import scipy.stats

from functx.core.types import DType, Shape, ShapedArray, is_inexact
from functx.testing.reference.interpreter import Array, exact_dtypes

# ruff: noqa: N802 - a definition has the name of the primitive class


def BesselI0(x: Array) -> Array:
    return np.where(np.isinf(x), np.abs(x), scipy.special.i0(x))


def BesselI1(x: Array) -> Array:
    return np.where(np.isinf(x), x, scipy.special.i1(x))


BesselI0e = scipy.special.i0e
BesselI1e = scipy.special.i1e
Erf = scipy.special.erf
ErfInv = scipy.special.erfinv
Erfc = scipy.special.erfc
Ndtri = scipy.special.ndtri
Spence = scipy.special.spence
Xlog1py = scipy.special.xlog1py
Xlogy = scipy.special.xlogy


# The formulas of masses, which SciPy has 0 between integers.
_MASSES: dict[str, Callable[..., Array]] = {
    "bernoulli": lambda k, p: np.where(k <= 1, p**k * (1 - p) ** (1 - k), 0),
    "binom": lambda k, n, p: np.where(
        k < n + 1, scipy.special.binom(n, k) * p**k * (1 - p) ** (n - k), 0
    ),
    "nbinom": lambda k, n, p: scipy.special.binom(n + k - 1, k) * p**n * (1 - p) ** k,
    "geom": lambda k, p: p * (1 - p) ** (k - 1),
    "betabinom": lambda k, n, a, b: scipy.stats.betabinom.pmf(np.floor(k), n, a, b),
}


def DistributionFunction(*args: Array, function: str) -> Array:
    name, _, method = function.partition(".")
    out = getattr(getattr(scipy.stats, name), method)(*args)
    if name not in _MASSES or method not in ("pmf", "logpmf"):
        return out
    k = args[0] - args[-1]
    mass = _MASSES[name](k, *args[1:-1])
    is_between = (k != np.floor(k)) & (k > 0) & ~np.isnan(out)
    return np.where(is_between, mass if method == "pmf" else np.log(mass), out)


def LogNormalMass(a: Array, b: Array) -> Array:
    a, b = np.where(a > 0, -b, a), np.where(a > 0, -a, b)
    larger, smaller = scipy.special.log_ndtr(b), scipy.special.log_ndtr(a)
    return np.where(a >= b, -np.inf, larger + np.log(-np.expm1(smaller - larger)))


def Div(x: Array, y: Array) -> Array:
    if x.dtype.kind == "f" or x.dtype.kind == "c":
        return x / y
    quotient = x // y
    quotient = quotient + ((x % y != 0) & ((x < 0) != (y < 0)))
    # XLA has all bits set for a quotient by zero.
    return np.where(y == 0, ~np.zeros_like(x), quotient)


def Pow(x: Array, y: Array) -> Array:
    if x.dtype.kind in "fc":
        return x**y
    # Integer powers wrap; a negative exponent gives the reciprocal, rounded towards zero.
    powers = x ** np.maximum(y, 0)
    reciprocal = np.where(x == 1, 1, np.where((x == -1) if x.dtype.kind == "i" else False, 1, 0))
    sign = np.where((y % 2 == 1) & (x != 1), -1, 1)
    return np.where(y >= 0, powers, reciprocal * sign).astype(x.dtype)


def Logistic(x: Array) -> Array:
    return 1 / (1 + np.exp(-x)) if np.iscomplexobj(x) else scipy.special.expit(x)


def Complex(real: Array, imag: Array) -> Array:
    # Not real + 1j * imag, which is nan where imag is infinite.
    out = np.empty(np.broadcast_shapes(real.shape, imag.shape), np.complex128)
    out.real, out.imag = real, imag
    return out


def Silu(x: Array) -> Array:
    return x * scipy.special.expit(x)


def Gelu(x: Array, approximate: bool) -> Array:
    if approximate:
        # (1 + tanh(u)) / 2 cancels for very negative u; it is expit(2 u).
        return x * scipy.special.expit(2 * np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))
    return x * scipy.special.ndtr(x)


def Logaddexp(x: Array, y: Array) -> Array:
    if not np.iscomplexobj(x):
        return np.logaddexp(x, y)
    larger = np.where(x.real >= y.real, x, y)
    shift = np.where(np.isfinite(larger.real), larger.real, 0.0)
    return np.log(np.exp(x - shift) + np.exp(y - shift)) + shift


def Lgamma(x: Array) -> Array:
    return np.where(x == -np.inf, np.inf, scipy.special.gammaln(x))


def Digamma(x: Array) -> Array:
    # The value at the pole 0 is nan, as at the other poles.
    return np.where(x == 0, np.nan, scipy.special.digamma(x))


def Sinc(x: Array, order: int) -> Array:
    # The derivatives of s(z) = sin(z) / z, which is the integral of cos(z t) over t in [0, 1]:
    # by quadrature, or far out by s^(k) z + k s^(k-1) = sin^(k).
    nodes, weights = np.polynomial.legendre.leggauss(48)
    t, weights = (nodes + 1) / 2, weights / 2
    near = np.abs(x) < 8
    z = np.pi * np.where(near, x, 0)[..., np.newaxis] * t
    inside = (nth_derivative(order + 1, z) * t**order) @ weights
    far = np.pi * np.where(near, 8, x)
    outside = np.sin(far) / far
    for k in range(1, order + 1):
        outside = (nth_derivative(k, far) - k * outside) / far
    return np.pi**order * np.where(near, inside, outside)


def nth_derivative(n: int, z: Array) -> Array:
    """The derivative of order n of the sine at z."""
    return (np.cos(z) if n % 2 else np.sin(z)) * (-1 if n % 4 in (2, 3) else 1)


def Polygamma(m: Array, x: Array) -> Array:
    return np.where(m == 0, Digamma(x), scipy.special.polygamma(m, x))


def Round(x: Array, to_even: bool) -> Array:
    return np.round(x) if to_even else np.trunc(x + np.copysign(np.nextafter(0.5, 0.0), x))


def bits_of(x: Array) -> int:
    """The number of bits of an element."""
    return x.dtype.itemsize * 8


def ShiftLeft(x: Array, y: Array) -> Array:
    inside = (y >= 0) & (y < bits_of(x))
    return np.where(inside, np.left_shift(x, np.where(inside, y, 0)), 0).astype(x.dtype)


def ShiftRightLogical(x: Array, y: Array) -> Array:
    unsigned = np.dtype(f"u{x.dtype.itemsize}")
    inside = (y >= 0) & (y < bits_of(x))
    shifted = np.right_shift(x.astype(unsigned), np.where(inside, y, 0).astype(unsigned))
    return np.where(inside, shifted, 0).astype(x.dtype)


def ShiftRightArithmetic(x: Array, y: Array) -> Array:
    signed = np.dtype(f"i{x.dtype.itemsize}")
    steps = np.where((y >= 0) & (y < bits_of(x)), y, bits_of(x) - 1)
    return np.right_shift(x.astype(signed), steps.astype(signed)).astype(x.dtype)


def CountLeadingZeros(x: Array) -> Array:
    unsigned = x.astype(f"u{x.dtype.itemsize}")
    count = np.vectorize(lambda n: bits_of(x) - int(n).bit_length(), otypes=[x.dtype])
    return count(unsigned)


NextAfter = exact_dtypes(np.nextafter)


def ConvertElementType(x: Array, dtype: DType, weak: bool) -> Array:
    dtype = np.dtype(dtype)
    if np.iscomplexobj(x) and dtype.kind not in "cb":
        x = x.real
    if is_inexact(dtype):
        # Not rounded: inexact values here are wider than their dtype.
        return x + 0j if dtype.kind == "c" else x.astype(np.float64)
    if dtype.kind == "b":
        return x != 0
    if dtype.kind in "iu" and x.dtype.kind == "f":
        # Out of range the nearest integer of the dtype; 0 for nan.
        info = np.iinfo(dtype)
        inside = np.where(np.isnan(x) | (x < info.min) | (x > info.max), 0, x).astype(dtype)
        return np.where(x < info.min, info.min, np.where(x > info.max, info.max, inside))
    return x.astype(dtype)


@exact_dtypes
def BitcastConvertType(x: Array, dtype: DType) -> Array:
    dtype = np.dtype(dtype)
    old, new = x.dtype.itemsize, dtype.itemsize
    if old == new:
        return x.view(dtype)
    if old > new:
        return x[..., np.newaxis].view(dtype)
    return np.ascontiguousarray(x).view(dtype)[..., 0]


@exact_dtypes
def ReducePrecision(x: Array, exponent_bits: int, mantissa_bits: int) -> Array:
    return np.asarray(jax.lax.reduce_precision(x, exponent_bits, mantissa_bits))


def BroadcastInDim(x: Array, shape: Shape, dims: Shape) -> Array:
    unit = [1] * len(shape)
    for n, d in zip(x.shape, dims, strict=True):
        unit[d] = n
    return np.broadcast_to(x.reshape(unit), shape)


def ViewAsComplex(x: Array) -> Array:
    return np.ascontiguousarray(x).view(np.result_type(x.dtype, np.complex64))[..., 0]


def AsStrided(
    x: Array, shape: Shape, start: Shape, steps: Sequence[Shape], writable: bool
) -> Array:
    if 0 in shape:
        return np.zeros(shape, x.dtype)
    strides = [sum(k * n for k, n in zip(step, x.strides, strict=True)) for step in steps]
    base = x[tuple([slice(i, None) for i in start])]
    return np.lib.stride_tricks.as_strided(base, shape, strides)


def Slice(x: Array, start: Shape, limit: Shape, strides: Shape | None) -> Array:
    return x[tuple(map(slice, start, limit, strides or (1,) * x.ndim))]


def clamped_slice(x: Array, sizes: Shape, indices: Sequence[Array]) -> tuple[slice, ...]:
    """The slices of the given sizes at `indices`, moved into the bounds of `x`."""
    starts = [
        min(max(int(i), 0), n - size) for i, n, size in zip(indices, x.shape, sizes, strict=True)
    ]
    return tuple([slice(i, i + size) for i, size in zip(starts, sizes, strict=True)])


def DynamicSlice(x: Array, *indices: Array, sizes: Shape) -> Array:
    return x[clamped_slice(x, sizes, indices)]


def DynamicUpdateSlice(x: Array, update: Array, *indices: Array) -> Array:
    out = x.copy()
    out[clamped_slice(x, update.shape, indices)] = update
    return out


@exact_dtypes
def DenseConstant(aval: ShapedArray, data: bytes) -> Array:
    return np.frombuffer(data, aval.dtype).reshape(aval.shape)
