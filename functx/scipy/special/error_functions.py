"""Functions of the family of the error function: Faddeeva's, Dawson's, Fresnel's and Owen's."""

from __future__ import annotations

import math

import numpy as np

from functx import ops
from functx.core.samples import Rounding, c64, f32, sample
from functx.core.tracer import aval_of
from functx.core.types import accumulation_dtype, is_complex
from functx.core.typing import ArrayLike, Tangent, Value
from functx.lax.parametric_functions import KernelFunction, ParametricFunction
from functx.lax.polynomial import polynomial
from functx.numpy.promotion import as_inexact
from functx.numpy.ufuncs import broadcast_inexact

__all__ = ["dawsn", "erfcx", "fresnel", "owens_t", "wofz"]

_NODES = 12
_STEP = math.sqrt(math.pi / _NODES)
"""The step of the trapezoidal rule, whose error is 1e-16 with so many nodes."""


class Wofz(KernelFunction):
    """The Faddeeva function, exp(-z**2) erfc(-i z).

    By the trapezoidal rule with the residue at z: Al Azah and Chandler-Wilde (2021), "Computation of
    the complex error function using modified trapezoidal rules".
    """

    accepts = "c"
    rounding = Rounding(ulps=256.0)
    samples = (
        sample(
            c64[4], values={0: [0.3 + 0.2j, -2.0 + 1.0j, 9.0 + 3.0j, 1.0 - 0.5j]}, dtypes=("c128",)
        ),
    )

    def kernel(self, *args: Value) -> Value:
        (z,) = args
        # w(-conj(z)) = conj(w(z)), and w(-z) = 2 exp(-z**2) - w(z).
        x, y = ops.abs(ops.real(z)), ops.abs(ops.imag(z))
        value = _faddeeva(x, y)
        below = ops.imag(z) < 0.0
        first = ops.complex(x, y)
        exponential = ops.exp(-first * first)
        flipped = 2.0 * exponential - value
        value = ops.select(below, flipped, value)
        mirrored = (ops.real(z) < 0.0) != below
        return ops.select(mirrored, ops.conj(value), value)

    def partial(self, i: int, t: Value, out: Value, z: Value) -> Tangent:
        # -2 z w + 2 i / sqrt(pi); for large z its asymptotic series, without cancellation.
        direct = -2.0 * z * out + 2.0j / math.sqrt(math.pi)
        far = (ops.abs(z) > 8.0) & (ops.imag(z) >= 0.0)
        inverse = 1.0 / ops.select(far, z, 10.0)
        square = inverse * inverse
        total, coefficient = ops.zeros_like(z), [1.0]
        for k in range(1, 16):
            coefficient.append(coefficient[-1] * (2 * k - 1) / 2)
        for k in reversed(range(16)):
            total = total * square + coefficient[k] * (2 * k + 1)
        series = total * square * (-1.0j / math.sqrt(math.pi))
        return t * ops.select(far, series, direct)


def _faddeeva(x: Value, y: Value) -> Value:
    """The function in the first quadrant."""
    z = ops.complex(x, y)
    square = z * z
    # Of the rules with nodes at multiples of the step and between them, one without a node near x.
    turns = x / _STEP
    at_multiples = ops.abs(turns - ops.floor(turns) - 0.5) < 0.25
    far = y >= math.pi / _STEP
    at_multiples = at_multiples & ~far
    total = ops.zeros_like(z)
    for k in reversed(range(_NODES)):
        middle, multiple = (k + 0.5) * _STEP, (k + 1.0) * _STEP
        node = ops.select(at_multiples, multiple * multiple, ops.constant_like(x, middle * middle))
        weight = ops.exp(-node)
        total = total + ops.complex(weight, ops.zeros_like(x)) / (
            square - ops.complex(node, ops.zeros_like(x))
        )
    factor = z * (2.0j * _STEP / math.pi)
    value = factor * total
    safe = ops.select(at_multiples, z, 1.0)
    value = value + ops.select(at_multiples, (1.0j * _STEP / math.pi) / safe, 0.0)
    near = ops.select(far, 0.1, z)
    # exp(-2 pi i z / h) of modulus at least 1; far from the axis the residue vanishes.
    wave = ops.exp(near * (-2.0j * math.pi / _STEP))
    sign = ops.select(at_multiples, -1.0, ops.constant_like(x, 1.0))
    wave = wave * ops.complex(sign, ops.zeros_like(x))
    residue = 2.0 * ops.exp(-near * near) / (1.0 + wave)
    return value + ops.select(far, 0.0, residue)


class Erfcx(ParametricFunction):
    """exp(x**2) erfc(x), which is about 1 / (sqrt(pi) x) for large x."""

    rounding = Rounding(ulps=128.0)
    samples = (sample(f32[4], values={0: [-0.8, 0.3, 2.0, 30.0]}, dtypes=("f64",)),)

    def value(self, *args: Value) -> Value:
        (x,) = args
        # Not the modulus, whose derivative at 0 is 0.
        size = ops.select(x < 0.0, -x, x)
        total, square = ops.zeros_like(x), size * size
        for k in reversed(range(_NODES)):
            node = ((k + 0.5) * _STEP) ** 2
            total = total + math.exp(-node) / (square + node)
        total = total * size * (2.0 * _STEP / math.pi)
        limit = math.pi / _STEP
        near = ops.min(size, limit)
        residue = 2.0 * ops.exp(near * near) / (1.0 + ops.exp(near * (2.0 * math.pi / _STEP)))
        positive = total + ops.select(size < limit, residue, 0.0)
        positive = ops.select(size > 1e8, (1.0 / math.sqrt(math.pi)) / ops.max(size, 1.0), positive)
        return ops.select(x < 0.0, 2.0 * ops.exp(x * x) - positive, positive)


class Dawsn(ParametricFunction):
    """Dawson's integral, exp(-x**2) times the integral of exp(t**2) over t from 0 to x."""

    rounding = Rounding(ulps=128.0)
    samples = (sample(f32[4], values={0: [-0.8, 0.3, 2.0, 30.0]}, dtypes=("f64",)),)

    def value(self, *args: Value) -> Value:
        (x,) = args
        size = ops.abs(x)
        near, tiny = ops.select(size < 1e8, x, 1.0), size < 0.3
        square = near * near
        turns = ops.abs(near) / _STEP
        at_multiples = ops.abs(turns - ops.floor(turns) - 0.5) < 0.25
        total = ops.zeros_like(x)
        for k in reversed(range(_NODES)):
            middle, multiple = (k + 0.5) * _STEP, (k + 1.0) * _STEP
            node = ops.select(at_multiples, multiple**2, ops.constant_like(x, middle**2))
            weight = ops.select(
                at_multiples, math.exp(-(multiple**2)), ops.constant_like(x, math.exp(-(middle**2)))
            )
            total = total + weight / (square - node)
        total = total * near * (2.0 * _STEP / math.pi)
        safe = ops.select(at_multiples, near, 1.0)
        total = total + ops.select(at_multiples, (_STEP / math.pi) / safe, 0.0)
        angle = near * (math.pi / _STEP)
        sine, cosine = ops.sin(angle), ops.cos(angle)
        tangent = ops.select(at_multiples, -cosine, sine) / ops.select(at_multiples, sine, cosine)
        value = (total + ops.exp(-square) * tangent) * (0.5 * math.sqrt(math.pi))
        # x (1 - 2/3 x**2 (1 - 2/5 x**2 (...)))
        z, series = ops.select(tiny, x, 0.1), ops.constant_like(x, 1.0)
        for k in reversed(range(1, 12)):
            series = 1.0 - series * (z * z) * (2.0 / (2 * k + 1))
        far = 0.5 / ops.select(size < 1e8, 1.0, x)
        return ops.select(tiny, z * series, ops.select(size < 1e8, value, far))


class FresnelSine(KernelFunction):
    """The integral of sin(pi t**2 / 2) over t from 0 to x."""

    rounding = Rounding(ulps=256.0, is_absolute=True)
    samples = (sample(f32[4], values={0: [-0.8, 0.3, 2.0, 5.0]}, dtypes=("f64",)),)

    def kernel(self, *args: Value) -> Value:
        return _fresnel(args[0], 1)

    def partial(self, i: int, t: Value, out: Value, x: Value) -> Tangent:
        return t * ops.sin(x * x * (0.5 * math.pi))


class FresnelCosine(KernelFunction):
    """The integral of cos(pi t**2 / 2) over t from 0 to x."""

    rounding = Rounding(ulps=256.0, is_absolute=True)
    samples = (sample(f32[4], values={0: [-0.8, 0.3, 2.0, 5.0]}, dtypes=("f64",)),)

    def kernel(self, *args: Value) -> Value:
        return _fresnel(args[0], 0)

    def partial(self, i: int, t: Value, out: Value, x: Value) -> Tangent:
        return t * ops.cos(x * x * (0.5 * math.pi))


def _fresnel(x: Value, odd: int) -> Value:
    """The integral of the cosine, or for `odd` = 1 of the sine."""
    size = ops.abs(x)
    near = size < 1.5
    z = ops.select(near, x, 0.5)
    phase = z * z * (0.5 * math.pi)
    square = phase * phase
    terms = [(-1.0) ** k / (math.factorial(2 * k + odd) * (4 * k + 2 * odd + 1)) for k in range(14)]
    series = z * polynomial(square, terms) * (phase if odd else 1.0)
    # (1 + i) / 2 erf(sqrt(pi) / 2 (1 - i) x), by Faddeeva's function.
    far = ops.select(near | (size == math.inf), 2.0, size)
    scaled = far * (0.5 * math.sqrt(math.pi))
    # The remainder of x**2 by 4 from that of x, whose square has more digits than the dtype.
    angle = ops.rem(far * far, 4.0) * (0.5 * math.pi)
    wave = ops.complex(ops.cos(angle), ops.sin(angle))
    rest = (
        0.5
        * wave
        * _faddeeva(scaled, scaled)
        * ops.complex(ops.constant_like(x, 1.0), ops.constant_like(x, 1.0))
    )
    value = 0.5 - (ops.imag(rest) if odd else ops.real(rest))
    value = ops.select(size == math.inf, 0.5, value)
    return ops.select(near, series, ops.select(x < 0.0, -value, value))


class OwensT(KernelFunction):
    """Owen's T: the integral of exp(-h**2 (1 + t**2) / 2) / (2 pi (1 + t**2)) over t from 0 to a."""

    rounding = Rounding(ulps=128.0)
    samples = (
        sample(
            f32[4],
            f32[4],
            values={0: [0.5, -2.0, 1.0, 3.0], 1: [0.7, 0.4, -3.0, 1.0]},
            dtypes=("f64",),
        ),
    )

    def kernel(self, *args: Value) -> Value:
        h, a = ops.abs(args[0]), ops.abs(args[1])
        swapped = a > 1.0
        scaled = ops.select(a == math.inf, math.inf, h * a)
        first = ops.select(swapped, scaled, h)
        second = ops.select(swapped, 1.0 / ops.select(swapped, a, 1.0), a)
        inner = _owens_t_quadrature(ops.min(first, 40.0), second)
        # T(h, a) + T(a h, 1 / a) for a > 1, by upper tails of the normal distribution.
        tail, other = [0.5 * ops.erfc(v * math.sqrt(0.5)) for v in (h, scaled)]
        value = ops.select(swapped, 0.5 * (tail + other) - tail * other - inner, inner)
        value = ops.select(args[1] < 0.0, -value, value)
        return ops.select((args[0] == args[0]) & (args[1] == args[1]), value, math.nan)

    def partial(self, i: int, t: Value, out: Value, h: Value, a: Value) -> Tangent:
        square = h * h * -0.5
        if i == 0:
            density = ops.exp(square) * (-0.5 / math.sqrt(2.0 * math.pi))
            return t * (density * ops.erf(a * h * math.sqrt(0.5)))
        return t * (ops.exp(square * (1.0 + a * a)) / ((1.0 + a * a) * (2.0 * math.pi)))


def _owens_t_quadrature(h: Value, a: Value) -> Value:
    nodes, weights = np.polynomial.legendre.leggauss(40)
    end = ops.min(a, 8.7 / ops.max(h, 1.0))
    total = ops.zeros_like(h)
    for node, weight in zip(nodes.tolist(), weights.tolist(), strict=True):
        t = end * (0.5 * (1.0 + node))
        one = 1.0 + t * t
        total = total + ops.exp(h * h * t * t * -0.5) / one * (0.5 * weight)
    return total * end * ops.exp(h * h * -0.5) * (0.5 / math.pi)


def wofz(z: ArrayLike) -> Value:
    """The Faddeeva function, exp(-z**2) erfc(-i z), complex.

    >>> import functx
    >>> complex(functx.scipy.special.wofz(0.0))
    (1+0j)
    """
    z = as_inexact(z)
    if not is_complex(aval_of(z).dtype):
        real = ops.convert_element_type(z, accumulation_dtype(aval_of(z).dtype))
        z = ops.complex(real, ops.zeros_like(real))
    return Wofz()(z)


def erfcx(x: ArrayLike) -> Value:
    """exp(x**2) erfc(x) of real or complex x, without overflow for large x.

    >>> import functx
    >>> round(float(functx.scipy.special.erfcx(10.0)), 4)
    0.0561
    """
    x = as_inexact(x)
    return Wofz()(ops.mul(x, 1j)) if is_complex(aval_of(x).dtype) else Erfcx()(x)


def dawsn(x: ArrayLike) -> Value:
    """Dawson's integral, exp(-x**2) times the integral of exp(t**2) over t from 0 to x.

    >>> import functx
    >>> round(float(functx.scipy.special.dawsn(1.0)), 4)
    0.5381
    """
    return Dawsn()(as_inexact(x))


def fresnel(x: ArrayLike) -> tuple[Value, Value]:
    """The integrals of sin(pi t**2 / 2) and cos(pi t**2 / 2) over t from 0 to x.

    >>> import functx
    >>> [round(float(y), 4) for y in functx.scipy.special.fresnel(1.0)]
    [0.4383, 0.7799]
    """
    x = as_inexact(x)
    return FresnelSine()(x), FresnelCosine()(x)


def owens_t(h: ArrayLike, a: ArrayLike) -> Value:
    """Owen's T: the probability that X > h and 0 < Y < a X for independent normal X and Y.

    >>> import functx
    >>> round(float(functx.scipy.special.owens_t(0.0, 1.0)), 4)
    0.125
    """
    return OwensT()(*broadcast_inexact(h, a))
