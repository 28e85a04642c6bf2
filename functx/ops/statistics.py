"""Means, variances, standard deviations and vector norms, and standardization."""

from __future__ import annotations

import math
from collections.abc import Sequence
from math import prod
from typing import ClassVar, NamedTuple

import numpy as np

from functx import ops
from functx.core.errors import DTypeError
from functx.core.masks import mask_of
from functx.core.samples import Sample, c64, f32, sample
from functx.core.tracer import aval_of
from functx.core.types import DType, Shape, ShapedArray, is_complex, kind, real_dtype
from functx.core.typing import ArrayLike, Axes, Cotangents, Dim, Tangent, Value, Values
from functx.ops import arithmetic
from functx.ops.families import apply_mask, check_same_dtype
from functx.ops.operands import (
    broadcast_along,
    canonical_axes,
    check_axes,
    tuple_delete,
    upcast_half,
)
from functx.ops.reductions import Reduction


class Standardized(NamedTuple):
    """The standardized x = (x - mean) / sqrt(variance + eps), and the statistics without the axes.

    The mean is None if the second moment replaces the variance.
    """

    x: Value
    mean: Value | None
    variance: Value
    rstd: Value


def working_dtype(*arrays: Value | ShapedArray) -> DType:
    """The dtype for statistics of `arrays`: double precision if one has it, else single."""
    upcast = np.dtype("float64")
    return upcast if any([x.dtype == upcast for x in arrays]) else np.dtype("float32")


def check_real(op: str, *avals: ShapedArray) -> None:
    """Raise DTypeError unless all avals are real floats."""
    if any([kind(aval.dtype) != "f" for aval in avals]):
        raise DTypeError(
            f"{op}: operands must be float; got " + " and ".join(map(repr, avals)),
            fix="Convert with astype.",
        )


def mean_along(x: Value, axes: Shape) -> Value:
    """The mean of `x` over `axes`; nan without elements."""
    return ops.div(ops.reduce_sum(x, axes), float(prod([x.shape[d] for d in axes])))


def standardize(
    x: Value, axes: Shape, eps: float | None, centered: bool = True, rstd: Value | None = None
) -> Standardized:
    """`x` minus its mean over `axes`, divided by sqrt(variance + eps); without the mean unless `centered`.

    If `eps` is None it is the one that `rstd` = 1 / sqrt(variance + eps) implies, held constant.
    """
    mean = mean_along(x, axes) if centered else None
    centered_x = ops.sub(x, broadcast_along(mean, x, axes)) if mean is not None else x
    variance = mean_along(ops.square(centered_x), axes)
    if eps is None:
        assert rstd is not None
        # Rounding may make it negative; the sum below is accurate nevertheless.
        recovered = ops.stop_gradient(ops.sub(ops.div(1.0, ops.square(rstd)), variance))
        rstd = ops.rsqrt(ops.add(variance, recovered))
    else:
        rstd = ops.rsqrt(ops.add(variance, eps))
    return Standardized(ops.mul(centered_x, broadcast_along(rstd, x, axes)), mean, variance, rstd)


def standardize_jacobian(t: Value, out: Standardized, axes: Shape) -> Value:
    """The Jacobian of `standardize`, with the result `out`, times `t`.

    It is symmetric, so `t` is a tangent of `x` or a cotangent of the standardized x.
    """
    # r (t - mean(t) - out mean(out t))
    projection = broadcast_along(mean_along(ops.mul(out.x, t), axes), t, axes)
    centered_x = (
        t if out.mean is None else ops.sub(t, broadcast_along(mean_along(t, axes), t, axes))
    )
    return ops.mul(
        ops.sub(centered_x, ops.mul(out.x, projection)), broadcast_along(out.rstd, t, axes)
    )


class RealReduction(Reduction, abstract=True):
    """A reduction over `axes` to real numbers, in single precision for half floats.

    A subclass defines `gradient(x, out)`: the tangent of the output is the sum over the axes of
    real(conj(gradient) t) for a tangent t of x.
    """

    accepts: ClassVar[str] = "fc"

    def gradient(self, x: Value, out: Value) -> Value:
        raise NotImplementedError

    def compute_upcast(self, x: Value) -> Value:
        """The output for an x that holds no half floats."""
        raise NotImplementedError

    def abstract_eval(self, x: ShapedArray) -> ShapedArray:
        check_same_dtype(self, (x,))
        check_axes(self.name, self.axes, x.ndim)
        return x.update(shape=tuple_delete(x.shape, self.axes), dtype=real_dtype(x.dtype))

    def decompose(self, x: Value) -> Value:
        return ops.convert_element_type(
            self.compute_upcast(upcast_half(x)), real_dtype(x.dtype), x.weak_type
        )

    def jvp(self, primals: Values, tangents: Values) -> tuple[Value, Tangent]:
        (x,), (t,) = primals, tangents
        out = self(x)
        direction = self.upcast_gradient(x, out)
        t = ops.reduce_sum(real_conj_product(direction, upcast_half(t)), self.axes)
        return out, ops.convert_element_type(t, out.dtype, out.weak_type)

    def vjp(self, ct: Value, out: Value, args: Values, active: Sequence[bool]) -> Cotangents:
        (x,) = args
        mask = mask_of(ct)
        direction = self.upcast_gradient(x, out)
        # The transpose of the real part of a product, without conjugation.
        direction = ops.conj(direction) if is_complex(x.dtype) else direction
        ct = broadcast_along(
            ops.convert_element_type(upcast_half(ct), direction.dtype), x, self.axes
        )
        ct = ops.convert_element_type(ops.mul(ct, direction), x.dtype, x.weak_type)
        return [apply_mask(self.cotangent_masks(mask, args)[0], ct)]

    def upcast_gradient(self, x: Value, out: Value) -> Value:
        """`gradient` in single precision for half floats, whose output is too coarse to divide by."""
        upcast = upcast_half(x)
        return self.gradient(upcast, out if upcast is x else self.compute_upcast(upcast))

    def batch(self, args: Values, dims: Sequence[int]) -> tuple[Value, Dim]:
        (x,), (dim,) = args, dims
        axes, out_dim = ops.shift_reduced_axes(self.axes, dim)
        return self.replace(axes=axes)(x), out_dim


VARIANCE_SAMPLES: tuple[Sample, ...] = (
    sample(f32[3, 4], axes=(0,)),
    sample(f32[4], axes=(0,), ddof=1.0, values={0: [2.0, 0.0, 3.0, 0.5]}),
    sample(c64[3], axes=(0,)),
)


class Variance(RealReduction):
    """The sum of squared distances from the mean, divided by n - `ddof` for n elements."""

    ddof: float = 0.0
    samples = (
        *VARIANCE_SAMPLES,
        sample(f32[3], axes=(0,), values={0: [2.0] * 3}),
    )

    def compute_upcast(self, x: Value) -> Value:
        # The mean is rounded, so even equal elements may differ from it. The sum of the
        # differences corrects for that (the corrected two-pass algorithm of Chan, Golub and
        # LeVeque, "Algorithms for computing the sample variance", 1983, equation 1.7).
        deviations = self.centered(x)
        mean_error = ops.div(
            abs_squared(ops.reduce_sum(deviations, self.axes)),
            float(prod([x.shape[d] for d in self.axes])),
        )
        total = arithmetic.max(
            ops.sub(ops.reduce_sum(abs_squared(deviations), self.axes), mean_error), 0.0
        )
        return ops.div(total, self.divisor(x))

    def gradient(self, x: Value, out: Value) -> Value:
        # d sum |x - m|^2 = 2 sum Re(conj(x - m) dx), since the x - m add up to 0.
        return ops.div(ops.mul(self.centered(x), 2.0), self.divisor(x))

    def centered(self, x: Value) -> Value:
        return ops.sub(x, broadcast_along(mean_along(x, self.axes), x, self.axes))

    def divisor(self, x: Value) -> float:
        # With ddof >= n the divisor is 0: nan for equal elements, else infinity.
        return max(prod([x.shape[d] for d in self.axes]) - self.ddof, 0.0)


class StandardDeviation(Variance):
    """The square root of the variance; its derivative at equal elements is 0."""

    samples = (
        *VARIANCE_SAMPLES,
        sample(f32[3], axes=(0,), values={0: [2.0] * 3}, gradients={0: [0.0] * 3}),
    )

    def compute_upcast(self, x: Value) -> Value:
        return ops.safe_sqrt(super().compute_upcast(x))

    def gradient(self, x: Value, out: Value) -> Value:
        # d sqrt(v) = dv / (2 sqrt(v))
        return ops.div(
            super().gradient(x, out),
            broadcast_along_as(ops.mul(replace_zero_by_infinity(out), 2.0), x, self.axes),
        )


class VectorNorm(RealReduction):
    """The vector norm of order `ord` over `axes`: sum(|x|**ord)**(1 / ord).

    Infinite orders give the largest or the smallest magnitude. The derivative at 0, and in an element
    that is 0, is 0, the subgradient of least magnitude.
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

    def compute_upcast(self, x: Value) -> Value:
        if self.ord == 2:
            return ops.sqrt(ops.reduce_sum(abs_squared(x), self.axes))
        size = ops.abs(x)
        if math.isinf(self.ord):
            return (ops.reduce_max if self.ord > 0 else ops.reduce_min)(size, self.axes)
        if self.ord == 1:
            return ops.reduce_sum(size, self.axes)
        return ops.pow(ops.reduce_sum(self.power(size, self.ord), self.axes), 1 / self.ord)

    def gradient(self, x: Value, out: Value) -> Value:
        if self.ord == 2:
            return ops.div(x, broadcast_along_as(replace_zero_by_infinity(out), x, self.axes))
        if self.ord == 1:
            return ops.sign(x)
        size = ops.abs(x)
        if math.isinf(self.ord):
            is_extremum = ops.eq(size, broadcast_along(out, x, self.axes))
            weight_share = ops.reduce_sum(
                ops.convert_element_type(is_extremum, out.dtype), self.axes
            )
            weight = ops.select(
                is_extremum, broadcast_along(ops.div(1.0, weight_share), x, self.axes), 0.0
            )
        else:
            # sign(x) (|x| / out)^(ord - 1)
            norms = broadcast_along(out, x, self.axes)
            is_zero = ops.bitwise_or(ops.eq(size, 0.0), ops.eq(norms, 0.0))
            weight_share = ops.div(ops.select(is_zero, 1.0, size), ops.select(is_zero, 1.0, norms))
            weight = ops.select(is_zero, 0.0, self.power(weight_share, self.ord - 1))
        return ops.mul(ops.sign(x), ops.convert_element_type(weight, x.dtype))

    def power(self, x: Value, exponent: float) -> Value:
        return (
            ops.integer_pow(x, int(exponent)) if exponent == int(exponent) else ops.pow(x, exponent)
        )


def abs_squared(x: Value) -> Value:
    """The squared magnitude."""
    return (
        ops.add(ops.square(ops.real(x)), ops.square(ops.imag(x)))
        if is_complex(x.dtype)
        else ops.square(x)
    )


def real_conj_product(x: Value, y: Value) -> Value:
    """The real part of conj(x) y."""
    return ops.real(ops.mul(ops.conj(x), y)) if is_complex(x.dtype) else ops.mul(x, y)


def replace_zero_by_infinity(x: ArrayLike) -> Value:
    """The divisor `x` with 0 replaced by infinity."""
    return ops.select(ops.eq(x, 0.0), math.inf, x)


def broadcast_along_as(x: ArrayLike, like: Value, axes: tuple[int, ...]) -> Value:
    """The real `x` in the dtype of the array `like`, repeated along `axes` of it."""
    return broadcast_along(ops.convert_element_type(x, like.dtype), like, axes)


def variance(x: ArrayLike, axes: Axes = None, ddof: float = 0.0) -> Value:
    """The average squared distance from the mean over `axes`, by default all.

    The sum of squares is divided by the number of elements less `ddof`.
    """
    return Variance(canonical_axes(axes, aval_of(x).ndim), float(ddof))(x)


def standard_deviation(x: ArrayLike, axes: Axes = None, ddof: float = 0.0) -> Value:
    """The square root of `variance`; its derivative at equal elements is 0."""
    return StandardDeviation(canonical_axes(axes, aval_of(x).ndim), float(ddof))(x)


def vector_norm(x: ArrayLike, ord: float = 2.0, axes: Axes = None) -> Value:
    """The norm of nonzero order `ord` over `axes`, by default all; its derivative at 0 is 0."""
    return VectorNorm(canonical_axes(axes, aval_of(x).ndim), float(ord))(x)
