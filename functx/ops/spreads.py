"""How far numbers lie from each other and from zero: variances, deviations and norms."""

from __future__ import annotations

import math
from math import prod
from typing import Any, ClassVar

from functx.core.dtypes import is_complex, real_dtype
from functx.core.samples import Sample, c64, f32, sample
from functx.core.tracing import aval_of
from functx.ops import arithmetic
from functx.ops.arithmetic import abs, add, div, integer_pow, mul, pow, sign, square, sub
from functx.ops.comparison import eq
from functx.ops.complexes import conj, imag, real
from functx.ops.conversion import convert_element_type
from functx.ops.exponential import safe_sqrt, sqrt
from functx.ops.families import apply_mask, check_same_dtype
from functx.ops.logical import bitwise_or
from functx.ops.operands import canonical_axes, check_axes, tuple_delete
from functx.ops.reductions import Reduction, reduce_max, reduce_min, reduce_sum, shift_reduced_axes
from functx.ops.selection import select
from functx.ops.statistics import broadcast_along, mean_along


class RealReduction(Reduction, abstract=True):
    """A real number for all elements along `axes`; halves are computed with in single precision.

    A subclass gives `direction(x, out)`: the tangent of the output is the sum over the axes
    of the real part of its conjugate times that of x.
    """

    accepts: ClassVar[str] = "fc"

    def gradient(self, x: Any, out: Any) -> Any:
        raise NotImplementedError

    def compute_upcast(self, x: Any) -> Any:
        """The output, from an x that is not of halves."""
        raise NotImplementedError

    def abstract_eval(self, x):
        check_same_dtype(self, (x,))
        check_axes(self.name, self.axes, x.ndim)
        return x.update(shape=tuple_delete(x.shape, self.axes), dtype=real_dtype(x.dtype))

    def decompose(self, x):
        return convert_element_type(
            self.compute_upcast(upcast_half(x)), real_dtype(x.dtype), x.weak_type
        )

    def jvp(self, primals, tangents):
        (x,), (t,) = primals, tangents
        out = self(x)
        direction = self.upcast_gradient(x, out)
        t = reduce_sum(real_conj_product(direction, upcast_half(t)), self.axes)
        return out, convert_element_type(t, out.dtype, out.weak_type)

    def vjp(self, ct, out, args, active):
        (x,) = args
        direction = self.upcast_gradient(x, out)
        # The transpose of the real part of a product, without conjugation.
        direction = conj(direction) if is_complex(x.dtype) else direction
        ct = broadcast_along(convert_element_type(upcast_half(ct), direction.dtype), x, self.axes)
        return (convert_element_type(mul(ct, direction), x.dtype, x.weak_type),)

    def vjp_where(self, live, ct, out, args, active):
        (found,), (there,) = self.vjp(ct, out, args, active), self.cotangent_masks(live, args)
        return [found if there is None else apply_mask(there, found)]

    def upcast_gradient(self, x: Any, out: Any) -> Any:
        """The direction, not of halves, whose output is too coarse to divide by."""
        wide = upcast_half(x)
        return self.gradient(wide, out if wide is x else self.compute_upcast(wide))

    def batch(self, args, dims):
        (x,), (dim,) = args, dims
        axes, out_dim = shift_reduced_axes(self.axes, dim)
        params = {**{f: getattr(self, f) for f in self.fields}, "axes": axes}
        return type(self)(**params)(x), out_dim


VARIANCE_SAMPLES: tuple[Sample, ...] = (
    sample(f32[3, 4], axes=(0,)),
    sample(f32[4], axes=(0,), ddof=1.0, values={0: [2.0, 0.0, 3.0, 0.5]}),
    sample(c64[3], axes=(0,)),
)


class Variance(RealReduction):
    """The average squared distance from the mean, of n elements as of n - `ddof`."""

    ddof: float = 0.0
    samples = (
        *VARIANCE_SAMPLES,
        sample(f32[3], axes=(0,), values={0: [2.0] * 3}),
    )

    def compute_upcast(self, x):
        # The mean is rounded, so that even equal elements may lie apart from it. The sum of the
        # distances is what it is off by (the corrected two-pass algorithm of Chan, Golub and
        # LeVeque, "Algorithms for computing the sample variance", 1983, equation 1.7).
        apart = self.centered(x)
        off = div(
            abs_squared(reduce_sum(apart, self.axes)), float(prod([x.shape[d] for d in self.axes]))
        )
        total = arithmetic.max(sub(reduce_sum(abs_squared(apart), self.axes), off), 0.0)
        return div(total, self.divisor(x))

    def gradient(self, x, out):
        # d sum |x - m|^2 = 2 sum Re(conj(x - m) dx), since the x - m add up to 0.
        return div(mul(self.centered(x), 2.0), self.divisor(x))

    def centered(self, x: Any) -> Any:
        return sub(x, broadcast_along(mean_along(x, self.axes), x, self.axes))

    def divisor(self, x: Any) -> float:
        # Too few elements have no variance: 0 / 0 of one, and infinity of more.
        return max(prod([x.shape[d] for d in self.axes]) - self.ddof, 0.0)


class StandardDeviation(Variance):
    """The square root of the variance; of equal elements its derivative is 0."""

    samples = (
        *VARIANCE_SAMPLES,
        sample(f32[3], axes=(0,), values={0: [2.0] * 3}, gradients={0: [0.0] * 3}),
    )

    def compute_upcast(self, x):
        return safe_sqrt(super().compute_upcast(x))

    def gradient(self, x, out):
        # d sqrt(v) = dv / (2 sqrt(v))
        return div(
            super().gradient(x, out),
            broadcast_along_as(mul(replace_zero_by_infinity(out), 2.0), x, self.axes),
        )


class VectorNorm(RealReduction):
    """The root of order `ord` of the sum of the magnitudes to that power, over `axes`.

    For infinite orders the largest and the smallest magnitude. Its derivative at zero, and in
    an element that is zero, is the one of least magnitude: 0.
    """

    ord: float
    samples = (
        sample(f32[3, 4], axes=(0,), ord=2.0),
        sample(f32[4], axes=(0,), ord=1.0, nonzero=[0]),
        sample(f32[3, 4], axes=(1,), ord=math.inf, distinct=True, domain=(0.5, 2.0)),
        sample(f32[4], axes=(0,), ord=3.0),
        sample(f32[4], axes=(0,), ord=-1.5, nonzero=[0]),
        sample(c64[4], axes=(0,), ord=2.0),
        sample(f32[3], axes=(0,), ord=1.5, values={0: [0.0] * 3}, gradients={0: [0.0] * 3}),
        sample(f32[3], axes=(0,), ord=2.0, values={0: [0.0] * 3}, gradients={0: [0.0] * 3}),
        sample(
            f32[3],
            axes=(0,),
            ord=math.inf,
            values={0: [-2.0, 2.0, 1.0]},
            gradients={0: [-0.5, 0.5, 0.0]},
        ),
    )

    def compute_upcast(self, x):
        if self.ord == 2:
            return sqrt(reduce_sum(abs_squared(x), self.axes))
        size = abs(x)
        if math.isinf(self.ord):
            return (reduce_max if self.ord > 0 else reduce_min)(size, self.axes)
        if self.ord == 1:
            return reduce_sum(size, self.axes)
        return pow(reduce_sum(self.power(size, self.ord), self.axes), 1 / self.ord)

    def gradient(self, x, out):
        if self.ord == 2:
            return div(x, broadcast_along_as(replace_zero_by_infinity(out), x, self.axes))
        if self.ord == 1:
            return sign(x)
        size = abs(x)
        if math.isinf(self.ord):
            chosen = eq(size, broadcast_along(out, x, self.axes))
            share = reduce_sum(convert_element_type(chosen, out.dtype), self.axes)
            weight = select(chosen, broadcast_along(div(1.0, share), x, self.axes), 0.0)
        else:
            # sign(x) (|x| / out)^(ord - 1)
            beside = broadcast_along(out, x, self.axes)
            nothing = bitwise_or(eq(size, 0.0), eq(beside, 0.0))
            share = div(select(nothing, 1.0, size), select(nothing, 1.0, beside))
            weight = select(nothing, 0.0, self.power(share, self.ord - 1))
        return mul(sign(x), convert_element_type(weight, x.dtype))

    def power(self, x: Any, exponent: float) -> Any:
        return integer_pow(x, int(exponent)) if exponent == int(exponent) else pow(x, exponent)


def upcast_half(x: Any) -> Any:
    """`x`, in single precision if it is of halves."""
    return convert_element_type(x, "float32") if x.dtype.itemsize < 4 else x


def abs_squared(x: Any) -> Any:
    """The squared magnitude."""
    return add(square(real(x)), square(imag(x))) if is_complex(x.dtype) else square(x)


def real_conj_product(x: Any, y: Any) -> Any:
    """The real part of conj(x) y."""
    return real(mul(conj(x), y)) if is_complex(x.dtype) else mul(x, y)


def replace_zero_by_infinity(x: Any) -> Any:
    """`x` to divide by, with infinity in place of 0."""
    return select(eq(x, 0.0), math.inf, x)


def broadcast_along_as(x: Any, like: Any, axes: tuple[int, ...]) -> Any:
    """The real `x` in the dtype of the array `like`, repeated along `axes` of it."""
    return broadcast_along(convert_element_type(x, like.dtype), like, axes)


def variance(x: Any, axes: Any = None, ddof: float = 0.0) -> Any:
    """The average squared distance from the mean over `axes`, or over all.

    The sum of squares is divided by the number of elements less `ddof`.
    """
    return Variance(canonical_axes(axes, aval_of(x).ndim), float(ddof))(x)


def standard_deviation(x: Any, axes: Any = None, ddof: float = 0.0) -> Any:
    """The square root of `variance`; of equal elements its derivative is 0."""
    return StandardDeviation(canonical_axes(axes, aval_of(x).ndim), float(ddof))(x)


def vector_norm(x: Any, ord: float = 2.0, axes: Any = None) -> Any:
    """The norm of order `ord`, which is not 0, over `axes`, or over all; its derivative at 0 is 0."""
    return VectorNorm(canonical_axes(axes, aval_of(x).ndim), float(ord))(x)
