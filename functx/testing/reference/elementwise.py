"""NumPy definitions of elementwise operations, conversions, shapes, slices and views."""

from __future__ import annotations

import jax
import numpy as np
import scipy.special

from functx.core.types import is_inexact
from functx.testing.reference.interpreter import REFERENCE_RULES, exact_dtype_rule, reference_rule

# ruff: noqa: N802 - a rule has the name of the primitive class that it defines


REFERENCE_RULES |= {
    "Abs": np.abs,
    "Acos": np.arccos,
    "Acosh": np.arccosh,
    "Add": np.add,
    "And": np.bitwise_and,
    "Asin": np.arcsin,
    "Asinh": np.arcsinh,
    "Atan": np.arctan,
    "Atan2": np.arctan2,
    "Atanh": np.arctanh,
    "Cbrt": np.cbrt,
    "Ceil": np.ceil,
    "Conj": np.conj,
    "Cos": np.cos,
    "Cosh": np.cosh,
    "BesselI0": lambda x: np.where(np.isinf(x), np.abs(x), scipy.special.i0(x)),
    "BesselI1": lambda x: np.where(np.isinf(x), x, scipy.special.i1(x)),
    "BesselI0e": scipy.special.i0e,
    "BesselI1e": scipy.special.i1e,
    "Eq": np.equal,
    "Erf": scipy.special.erf,
    "ErfInv": scipy.special.erfinv,
    "Erfc": scipy.special.erfc,
    "Exp": np.exp,
    "Exp2": np.exp2,
    "Expm1": np.expm1,
    "Floor": np.floor,
    "Ge": np.greater_equal,
    "Gcd": np.gcd,
    "Gt": np.greater,
    "Hypot": np.hypot,
    "Imag": np.imag,
    "IsFinite": np.isfinite,
    "Le": np.less_equal,
    "Log": np.log,
    "Log1p": np.log1p,
    "Lt": np.less,
    "Max": np.maximum,
    "Min": np.minimum,
    "Mul": np.multiply,
    "Ndtri": scipy.special.ndtri,
    "Ne": np.not_equal,
    "Neg": np.negative,
    "Not": np.invert,
    "Or": np.bitwise_or,
    "PopulationCount": np.bitwise_count,
    "Real": np.real,
    "Rem": np.fmod,
    "SafeSqrt": np.sqrt,
    "Rsqrt": lambda x: 1 / np.sqrt(x),
    "Sign": np.sign,
    "Sin": np.sin,
    "Sinh": np.sinh,
    "Sqrt": np.sqrt,
    "Square": np.square,
    "StopGradient": np.copy,
    "Sub": np.subtract,
    "Tan": np.tan,
    "Tanh": np.tanh,
    "Xlog1py": scipy.special.xlog1py,
    "Xlogy": scipy.special.xlogy,
    "Xor": np.bitwise_xor,
}


@reference_rule
def Div(x, y):
    if x.dtype.kind == "f" or x.dtype.kind == "c":
        return x / y
    quotient = x // y
    quotient = quotient + ((x % y != 0) & ((x < 0) != (y < 0)))
    # XLA has all bits set for a quotient by zero.
    return np.where(y == 0, ~np.zeros_like(x), quotient)


@reference_rule
def Pow(x, y):
    if x.dtype.kind in "fc":
        return x**y
    # Integer powers wrap; a negative exponent gives the reciprocal, rounded towards zero.
    powers = x ** np.maximum(y, 0)
    reciprocal = np.where(x == 1, 1, np.where((x == -1) if x.dtype.kind == "i" else False, 1, 0))
    sign = np.where((y % 2 == 1) & (x != 1), -1, 1)
    return np.where(y >= 0, powers, reciprocal * sign).astype(x.dtype)


@reference_rule
def IntegerPow(x, exponent):
    return x**exponent if exponent >= 0 else 1 / x**-exponent


@reference_rule
def Logistic(x):
    return 1 / (1 + np.exp(-x)) if np.iscomplexobj(x) else scipy.special.expit(x)


@reference_rule
def Complex(real, imag):
    # Not real + 1j * imag, which is nan where imag is infinite.
    out = np.empty(np.broadcast_shapes(real.shape, imag.shape), np.complex128)
    out.real, out.imag = real, imag
    return out


@reference_rule
def Softplus(x):
    return np.logaddexp(x, 0)


@reference_rule
def Silu(x):
    return x * scipy.special.expit(x)


@reference_rule
def LogSigmoid(x):
    return -np.logaddexp(0.0, -x)


@reference_rule
def Mish(x):
    return x * np.tanh(np.logaddexp(0.0, x))


@reference_rule
def Gelu(x, approximate):
    if approximate:
        # (1 + tanh(u)) / 2 cancels for very negative u; it is expit(2 u).
        return x * scipy.special.expit(2 * np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))
    return x * scipy.special.ndtr(x)


@reference_rule
def Logaddexp(x, y):
    return np.log(np.exp(x) + np.exp(y)) if np.iscomplexobj(x) else np.logaddexp(x, y)


@reference_rule
def Lgamma(x):
    return np.where(x == -np.inf, np.inf, scipy.special.gammaln(x))


@reference_rule
def Digamma(x):
    # The value at the pole 0 is nan, as at the other poles.
    return np.where(x == 0, np.nan, scipy.special.digamma(x))


@reference_rule
def CopyZeroSign(x, y):
    return np.where(x == 0, np.copysign(0.0, y), x)


@reference_rule
def Sinc(x, order):
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


def nth_derivative(n, z):
    """The derivative of order n of the sine at z."""
    return (np.cos(z) if n % 2 else np.sin(z)) * (-1 if n % 4 in (2, 3) else 1)


@reference_rule
def Polygamma(m, x):
    return np.where(m == 0, Digamma(x), scipy.special.polygamma(m, x))


@reference_rule
def Clamp(low, x, high):
    return np.minimum(np.maximum(x, low), high)


@reference_rule
def Select(which, on_false, on_true):
    return np.where(which, on_true, on_false)


@reference_rule
def Round(x, to_even):
    return np.round(x) if to_even else np.trunc(x + np.copysign(np.nextafter(0.5, 0.0), x))


def bits_of(x):
    """The number of bits of an element."""
    return x.dtype.itemsize * 8


@reference_rule
def ShiftLeft(x, y):
    inside = (y >= 0) & (y < bits_of(x))
    return np.where(inside, np.left_shift(x, np.where(inside, y, 0)), 0).astype(x.dtype)


@reference_rule
def ShiftRightLogical(x, y):
    unsigned = np.dtype(f"u{x.dtype.itemsize}")
    inside = (y >= 0) & (y < bits_of(x))
    shifted = np.right_shift(x.astype(unsigned), np.where(inside, y, 0).astype(unsigned))
    return np.where(inside, shifted, 0).astype(x.dtype)


@reference_rule
def ShiftRightArithmetic(x, y):
    signed = np.dtype(f"i{x.dtype.itemsize}")
    steps = np.where((y >= 0) & (y < bits_of(x)), y, bits_of(x) - 1)
    return np.right_shift(x.astype(signed), steps.astype(signed)).astype(x.dtype)


@reference_rule
def CountLeadingZeros(x):
    unsigned = x.astype(f"u{x.dtype.itemsize}")
    count = np.vectorize(lambda n: bits_of(x) - int(n).bit_length(), otypes=[x.dtype])
    return count(unsigned)


@exact_dtype_rule
def NextAfter(x, y):
    return np.nextafter(x, y)


@reference_rule
def ConvertElementType(x, dtype, weak):
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


@exact_dtype_rule
def BitcastConvertType(x, dtype):
    dtype = np.dtype(dtype)
    old, new = x.dtype.itemsize, dtype.itemsize
    if old == new:
        return x.view(dtype)
    if old > new:
        return x[..., np.newaxis].view(dtype)
    return x.view(dtype)[..., 0]


@exact_dtype_rule
def ReducePrecision(x, exponent_bits, mantissa_bits):
    return jax.lax.reduce_precision(x, exponent_bits, mantissa_bits)


@reference_rule
def BroadcastInDim(x, shape, dims):
    unit = [1] * len(shape)
    for n, d in zip(x.shape, dims, strict=True):
        unit[d] = n
    return np.broadcast_to(x.reshape(unit), shape)


@reference_rule
def Full(x, shape):
    return np.full(shape, x)


@reference_rule
def Reshape(x, shape):
    return x.reshape(shape)


@reference_rule
def PermuteDims(x, axes):
    return x.transpose(axes)


@reference_rule
def Concatenate(*parts, axis):
    return np.concatenate(parts, axis)


@reference_rule
def Split(x, sizes, axis):
    return np.split(x, np.cumsum(sizes)[:-1], axis)


@reference_rule
def Pad(x, fill, config):
    dilated = [n + max(0, n - 1) * inner for n, (_, _, inner) in zip(x.shape, config, strict=True)]
    padded = np.full(dilated, fill)
    padded[tuple([slice(None, None, inner + 1) for _, _, inner in config])] = x
    padded = np.pad(
        padded,
        [(max(low, 0), max(high, 0)) for low, high, _ in config],
        constant_values=fill,
    )
    cropped = [
        slice(-min(low, 0), n + min(high, 0))
        for n, (low, high, _) in zip(padded.shape, config, strict=True)
    ]
    return padded[tuple(cropped)]


@reference_rule
def Rev(x, axes):
    return np.flip(x, axes)


@reference_rule
def Iota(dtype, shape, dimension):
    return np.indices(shape, np.int64)[dimension].astype(dtype)


@reference_rule
def Copy(x):
    return x


@reference_rule
def ReadBeforeWrite(x):
    return x, np.zeros_like(x)


@reference_rule
def ViewAsReal(x):
    return np.stack([x.real, x.imag], -1)


@reference_rule
def ViewAsComplex(x):
    return np.ascontiguousarray(x).view(np.result_type(x.dtype, np.complex64))[..., 0]


@reference_rule
def AsStrided(x, shape, start, steps, writable):
    if 0 in shape:
        return np.zeros(shape, x.dtype)
    strides = [sum(k * n for k, n in zip(step, x.strides, strict=True)) for step in steps]
    base = x[tuple([slice(i, None) for i in start])]
    return np.lib.stride_tricks.as_strided(base, shape, strides)


@reference_rule
def Slice(x, start, limit, strides):
    strides = strides or (1,) * x.ndim
    return x[tuple(map(slice, start, limit, strides))]


def clamped_slice(x, sizes, indices):
    """The slices of the given sizes at `indices`, moved into the bounds of `x`."""
    starts = [
        min(max(int(i), 0), n - size) for i, n, size in zip(indices, x.shape, sizes, strict=True)
    ]
    return tuple([slice(i, i + size) for i, size in zip(starts, sizes, strict=True)])


@reference_rule
def DynamicSlice(x, *indices, sizes):
    return x[clamped_slice(x, sizes, indices)]


@reference_rule
def DynamicUpdateSlice(x, update, *indices):
    out = x.copy()
    out[clamped_slice(x, update.shape, indices)] = update
    return out


@reference_rule
def CheckpointName(x, label):
    return x


@exact_dtype_rule
def DenseConstant(aval, data):
    return np.frombuffer(data, aval.dtype).reshape(aval.shape)


@reference_rule
def MaskedOperand(live, x, *, borrow_active):
    return x


@reference_rule
def AnyActive(live):
    return live
