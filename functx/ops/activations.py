"""Log-sum-exp, softmax and activation functions, computed without overflow."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from functx import ops
from functx.core.errors import DTypeError, ShapeError
from functx.core.primitive import Primitive
from functx.core.samples import Rounding, Sample, f32, i32, sample
from functx.core.tracer import aval_of
from functx.core.types import DType, ShapedArray, canonical_dtype, is_floating
from functx.core.typing import (
    ArrayLike,
    Axes,
    Cotangents,
    Dim,
    Mask,
    NumPyArray,
    Tangent,
    Value,
    Values,
)
from functx.ops.families import Inexact, Unary, check_same_dtype, unary_function
from functx.ops.operands import (
    batch_size,
    broadcast_along,
    canonical_axes,
    cast_like,
    check_axes,
    literal,
    upcast_half,
)
from functx.ops.reductions import Reduction

INFINITY = float("inf")


class LogSumExp(Reduction):
    """log(sum(exp(x))) over `axes`; -inf if there are no elements or all are -inf.

    Elements that are inf share the derivative.
    """

    accepts = "f"
    rounding = Rounding(is_absolute=True)
    samples = (
        sample(f32[3, 4], axes=(0,)),
        sample(f32[2, 3, 4], axes=(0, 2)),
        sample(f32[2], axes=(0,), values={0: [-INFINITY, -INFINITY]}, gradients={0: [0.0, 0.0]}),
        sample(
            f32[3], axes=(0,), values={0: [-INFINITY, 100.0, 100.0]}, gradients={0: [0.0, 0.5, 0.5]}
        ),
        sample(
            f32[3],
            axes=(0,),
            values={0: [INFINITY, 100.0, INFINITY]},
            gradients={0: [0.5, 0.0, 0.5]},
        ),
    )

    def decompose(self, x: Value) -> Value:
        # Infinite elements need no care where only the value is asked for: exp gives it.
        y = upcast_half(x)
        largest = ops.stop_gradient(ops.reduce_max(y, self.axes))
        shift = ops.select(ops.is_finite(largest), largest, 0)
        total = ops.reduce_sum(ops.exp(ops.sub(y, self.broadcast_back(shift, y))), self.axes)
        return cast_like(ops.add(ops.log(total), shift), x)

    def value_and_terms(self, x: Value) -> tuple[Value, tuple[Value, Value]]:
        """The output, and the sum of exp(x - largest) and the largest element that it is made of."""
        _, total, largest = self.exponentials(upcast_half(x))
        return cast_like(ops.add(ops.log(total), largest), x), (total, largest)

    def jvp(self, primals: Values, tangents: Values) -> tuple[Value, Tangent]:
        (x,), (t,) = primals, tangents
        tangent = ops.reduce_sum(
            ops.mul(self.derivative_weights(upcast_half(x)), upcast_half(t)), self.axes
        )
        return self(x), cast_like(tangent, x)

    def forward(self, args: Values, active: Sequence[bool]) -> tuple[Values, Sequence[Values]]:
        # The backward sweep computes the weights again from residuals of the reduced shape.
        out, terms = self.value_and_terms(*args)
        return (out,), (terms,)

    def vjp(self, ct: Value, saved: Values, args: Values, active: Sequence[bool]) -> Cotangents:
        (x,), (total, largest) = args, saved
        # Where all elements are -inf, the total is 0 and the weights are 0.
        scale = ops.div(1, ops.select(ops.eq(total, 0), 1, total))
        weights = ops.mul(self.powers(upcast_half(x), largest), self.broadcast_back(scale, x))
        # With the derivatives of the function of x, which keep the digits of small weights.
        weights = ops.WithValue()(self.derivative_weights(upcast_half(x)), weights)
        return (cast_like(ops.mul(self.broadcast_back(upcast_half(ct), x), weights), x),)

    def exponentials(self, x: Value) -> tuple[Value, Value, Value]:
        """exp(x - largest), its sum, and the largest element, or 0 if that is -inf."""
        largest = ops.stop_gradient(ops.reduce_max(x, self.axes))
        largest = ops.select(ops.eq(largest, -INFINITY), 0, largest)
        powers = self.powers(x, largest)
        return powers, ops.reduce_sum(powers, self.axes), largest

    def powers(self, x: Value, largest: Value) -> Value:
        """exp(x - largest); if there are infinite elements, they give 1 each and the others 0."""
        powers = ops.exp(ops.sub(x, self.broadcast_back(largest, x)))
        return ops.select(ops.eq(x, INFINITY), 1.0, powers)

    def derivative_weights(self, x: Value) -> Value:
        # Its subexpressions are those of the output; XLA computes them once.
        return LogSumExpDerivative(self.axes)(x)


class SoftmaxLike(Primitive, abstract=True):
    """An operation that normalizes its operand jointly along `axes`."""

    axes: tuple[int, ...]
    accepts: ClassVar[str] = "f"
    samples: ClassVar[tuple[Sample, ...]] = (
        sample(f32[3, 4], axes=(1,)),
        sample(f32[2, 3, 4], axes=(0, 2)),
        sample(f32[0, 4], axes=(0,)),
    )

    def abstract_eval(self, x: ShapedArray) -> ShapedArray:
        check_same_dtype(self, (x,))
        check_axes(self.name, self.axes, x.ndim)
        return x

    def batch(self, args: Values, dims: Sequence[int]) -> tuple[Value, Dim]:
        (x,), (dim,) = args, dims
        return type(self)(ops.shift_reduced_axes(self.axes, dim)[0])(x), dim

    def subtract_max(self, x: Value) -> Value:
        """`x` minus its maximum along the axes, whose exponentials do not overflow."""
        return ops.sub(x, broadcast_along(ops.reduce_max(x, self.axes), x, self.axes))


class Softmax(SoftmaxLike):
    """exp(x) / sum(exp(x)) along `axes`."""

    samples = (
        *SoftmaxLike.samples,
        sample(
            f32[3],
            axes=(0,),
            values={0: [-INFINITY, 100.0, 100.0]},
            gradients={0: [0.0, 0.0, 0.0]},
        ),
    )

    def decompose(self, x: Value) -> Value:
        exponentials = ops.exp(self.subtract_max(upcast_half(x)))
        return cast_like(ops.div(exponentials, sum_and_broadcast(exponentials, self.axes)), x)

    def jvp(self, primals: Values, tangents: Sequence[Tangent]) -> tuple[Value, Tangent]:
        # The Jacobian is symmetric, so the backward primitive gives tangents too.
        out = self(*primals)
        return out, SoftmaxBackward(self.axes)(tangents[0], out)

    def vjp(self, ct: Value, out: Value, args: Values, active: Sequence[bool]) -> Cotangents:
        return (SoftmaxBackward(self.axes)(ct, out),)


class LogSumExpDerivative(Softmax):
    """The derivative of `logsumexp`: `softmax`, but 0 if all elements are -inf.

    Elements that are inf share the total of 1 equally.
    """

    samples = (
        *Softmax.samples,
        sample(f32[2], axes=(0,), values={0: [-INFINITY, -INFINITY]}, gradients={0: [0.0, 0.0]}),
        sample(
            f32[3],
            axes=(0,),
            values={0: [INFINITY, 100.0, INFINITY]},
            gradients={0: [0.0, 0.0, 0.0]},
        ),
    )

    def decompose(self, x: Value) -> Value:
        # exp(x - out) with out = logsumexp(x) would lose the digits that log rounds off.
        exponentials, total, _ = LogSumExp(self.axes).exponentials(upcast_half(x))
        weights = ops.div(
            exponentials, broadcast_along(ops.select(ops.eq(total, 0), 1, total), x, self.axes)
        )
        return cast_like(weights, x)


class LogSoftmax(SoftmaxLike):
    """x - log(sum(exp(x))) along `axes`."""

    rounding = Rounding(is_absolute=True)
    samples = (
        *SoftmaxLike.samples,
        sample(
            f32[3],
            axes=(0,),
            values={0: [-INFINITY, 100.0, 100.0]},
            gradients={0: [1.0, -0.5, -0.5]},
        ),
    )

    def decompose(self, x: Value) -> Value:
        shifted = self.subtract_max(upcast_half(x))
        total = ops.log(ops.reduce_sum(ops.exp(shifted), self.axes))
        return cast_like(ops.sub(shifted, broadcast_along(total, x, self.axes)), x)

    def jvp(self, primals: Values, tangents: Values) -> tuple[Value, Tangent]:
        out = self(*primals)
        return out, log_softmax_tangent(tangents[0], out, self.axes)

    def vjp(self, ct: Value, out: Value, args: Values, active: Sequence[bool]) -> Cotangents:
        return (LogSoftmaxBackward(self.axes)(ct, out),)


class SoftmaxLikeBackward(Primitive, abstract=True):
    """The cotangent of the input of a normalization, given that of the output, and the output.

    It has the dtype `dtype`, by default that of the output's cotangent. Linear in the first operand.
    """

    axes: tuple[int, ...]
    dtype: DType | None = None
    accepts: ClassVar[str] = "f"
    samples: ClassVar[tuple[Sample, ...]] = (sample(f32[2, 3, 4], f32[2, 3, 4], axes=(0, 2)),)

    def abstract_eval(self, ct: ShapedArray, out: ShapedArray) -> ShapedArray:
        check_same_dtype(self, (ct, out))
        check_axes(self.name, self.axes, out.ndim)
        if ct.shape != out.shape:
            raise ShapeError(
                f"{self.name}: the cotangent must have the shape of the output; got {ct!r} for "
                f"{out!r}"
            )
        dtype = ct.dtype if self.dtype is None else canonical_dtype(self.dtype)
        if not is_floating(dtype):
            raise DTypeError(f"{self.name}: dtype must be a float type; got {dtype}")
        return ct.update(dtype=dtype)

    def decompose(self, ct: Value, out: Value) -> Value:
        return self.cast_result(self.input_cotangent(upcast_half(ct), upcast_half(out)), ct)

    def jvp(self, primals: Values, tangents: Sequence[Tangent]) -> tuple[Value, Tangent]:
        (ct, out), (dct, dout) = primals, tangents
        result = self(ct, out)
        total = None if dct is None else self(dct, out)
        if dout is not None:
            term = self.cast_result(
                self.cotangent_derivative(*map(upcast_half, (ct, out, dout))), ct
            )
            total = term if total is None else ops.add(total, term)
        return result, total

    def vjp(self, ct: Value, out: Value, args: Values, active: Sequence[bool]) -> Cotangents:
        upcast = upcast_half(ct)
        ct_operand, normalized = map(upcast_half, args)
        return (
            cast_like(self.output_tangent(upcast, normalized), args[0]) if active[0] else None,
            cast_like(self.cotangent_derivative_transpose(upcast, ct_operand, normalized), args[1])
            if active[1]
            else None,
        )

    def transpose(self, ct: Value, ct_operand: Value, normalized: Value) -> Cotangents:
        return cast_like(
            self.output_tangent(upcast_half(ct), upcast_half(normalized)), ct_operand
        ), None

    def batch(self, args: Values, dims: Sequence[Dim]) -> tuple[Value, Dim]:
        dim = next(d for d in dims if d is not None)
        size = batch_size(args, dims)
        args = [ops.batch_dim_at(x, d, dim, size) for x, d in zip(args, dims, strict=True)]
        return type(self)(ops.shift_reduced_axes(self.axes, dim)[0], self.dtype)(*args), dim

    def cast_result(self, x: Value, ct: Value) -> Value:
        return cast_like(x, ct) if self.dtype is None else ops.convert_element_type(x, self.dtype)

    def input_cotangent(self, ct: Value, out: Value) -> Value:
        """The cotangent of the input, given the output and its cotangent."""
        raise NotImplementedError

    def output_tangent(self, t: Value, out: Value) -> Value:
        """The tangent of the output, given that of the input: the transpose of `input_cotangent`."""
        raise NotImplementedError

    def cotangent_derivative(self, ct: Value, out: Value, t: Value) -> Value:
        """The derivative of `input_cotangent` in the output along `t`."""
        raise NotImplementedError

    def cotangent_derivative_transpose(self, t: Value, ct: Value, out: Value) -> Value:
        """The transpose of `cotangent_derivative`, applied to `t`."""
        raise NotImplementedError


class SoftmaxBackward(SoftmaxLikeBackward):
    """out (ct - mean of ct, weighed by out) along `axes`: the cotangent of x for out = softmax(x)."""

    def input_cotangent(self, ct: Value, out: Value) -> Value:
        return ops.mul(out, subtract_weighted_mean(ct, out, self.axes))

    def output_tangent(self, t: Value, out: Value) -> Value:
        return self.input_cotangent(t, out)

    def cotangent_derivative(self, ct: Value, out: Value, t: Value) -> Value:
        # With c = ct - mean: t c - out sum(t c) / sum(out)
        return subtract_weighted_total(
            ops.mul(t, subtract_weighted_mean(ct, out, self.axes)), out, self.axes
        )

    def cotangent_derivative_transpose(self, t: Value, ct: Value, out: Value) -> Value:
        return ops.mul(
            subtract_weighted_mean(t, out, self.axes), subtract_weighted_mean(ct, out, self.axes)
        )


class LogSoftmaxBackward(SoftmaxLikeBackward):
    """ct - p sum(ct) along `axes`, p = softmax(out): the cotangent of x for out = log_softmax(x)."""

    def input_cotangent(self, ct: Value, out: Value) -> Value:
        return subtract_weighted_total(ct, ops.exp(out), self.axes)

    def output_tangent(self, t: Value, out: Value) -> Value:
        return log_softmax_tangent(t, out, self.axes)

    def cotangent_derivative(self, ct: Value, out: Value, t: Value) -> Value:
        p = ops.exp(out)
        p = ops.div(p, nonzero_total(p, self.axes))
        return ops.neg(
            ops.mul(
                ops.mul(p, subtract_weighted_mean(t, p, self.axes)),
                sum_and_broadcast(ct, self.axes),
            )
        )

    def cotangent_derivative_transpose(self, t: Value, ct: Value, out: Value) -> Value:
        return self.cotangent_derivative(ct, out, t)


def log_softmax_tangent(t: Value, out: Value, axes: tuple[int, ...]) -> Value:
    """t - mean(t), weighted by exp(out): the tangent of `out` = log_softmax(x) for a tangent t of x."""
    return cast_like(subtract_weighted_mean(upcast_half(t), ops.exp(upcast_half(out)), axes), t)


def subtract_weighted_mean(x: Value, weights: Value, axes: tuple[int, ...]) -> Value:
    """`x` minus its mean along `axes`, weighted by `weights`, whose sum is about 1.

    The mean is subtracted twice. Where one weight is almost 1, its element almost equals the mean and
    the first difference is rounded; the mean of the differences is almost 0, so the second is exact.
    """
    weight = nonzero_total(weights, axes)
    x = ops.sub(x, ops.div(sum_and_broadcast(ops.mul(weights, x), axes), weight))
    return ops.sub(x, ops.div(sum_and_broadcast(ops.mul(weights, x), axes), weight))


def subtract_weighted_total(x: Value, weights: Value, axes: tuple[int, ...]) -> Value:
    """`x` minus its total along `axes`, distributed by `weights`, whose sum is about 1.

    The total is subtracted twice, which keeps the digits as in `subtract_weighted_mean`.
    """
    weight = nonzero_total(weights, axes)
    x = ops.sub(x, ops.mul(weights, ops.div(sum_and_broadcast(x, axes), weight)))
    return ops.sub(x, ops.mul(weights, ops.div(sum_and_broadcast(x, axes), weight)))


def nonzero_total(weights: Value, axes: tuple[int, ...]) -> Value:
    """The sum of `weights` along `axes`; 1 where it is 0."""
    total = sum_and_broadcast(weights, axes)
    return ops.select(ops.eq(total, 0.0), 1.0, total)


def sum_and_broadcast(x: Value, axes: tuple[int, ...]) -> Value:
    """The sum over `axes`, repeated along them."""
    return broadcast_along(ops.reduce_sum(x, axes), x, axes)


def logsumexp(x: ArrayLike, axes: Axes = None) -> Value:
    """log(sum(exp(x))) over `axes`, by default all; -inf if there are no elements or all are -inf."""
    axes = canonical_axes(axes, aval_of(x).ndim)
    return LogSumExp(axes)(x) if axes else x  # type: ignore[return-value]


def softmax(x: ArrayLike, axes: Axes = -1) -> Value:
    """exp(x) / sum(exp(x)) along `axes`."""
    return Softmax(canonical_axes(axes, aval_of(x).ndim))(x)


def log_softmax(x: ArrayLike, axes: Axes = -1) -> Value:
    """x - log(sum(exp(x))) along `axes`."""
    return LogSoftmax(canonical_axes(axes, aval_of(x).ndim))(x)


GELU_CUBIC = 0.044715
GELU_SCALE = math.sqrt(2 / math.pi)


class Relu(Unary):
    """The larger of x and 0; the derivative at 0 is 0."""

    has_finite_derivative = True
    accepts = "biuf"
    samples = (
        sample(f32[3, 4]),
        sample(f32[3], values={0: [-1.0, 0.0, 2.0]}, gradients={0: [0.0, 0.0, 1.0]}),
        sample(i32[3]),
    )

    def partial(self, i: int, t: Value, out: Value, *args: Value) -> Tangent:
        # The output is zero where the operand is at most zero; it is needed anyway, as a residual.
        return ops.select(ops.le(out, literal(0, out.dtype)), literal(0, t.dtype), t)

    def nonzero_derivative_mask(self, i: int, *args: Value) -> Mask:
        return ops.bitwise_not(ops.le(args[0], literal(0, args[0].dtype)))

    def preserves_zero(self, i: int, *args: Value) -> bool:
        return True

    def numpy(self, x: NumPyArray) -> ArrayLike:
        return np.where(x <= 0, 0, x)

    def decompose(self, x: Value) -> Value:
        # A comparison rather than a maximum: nan stays nan, and a tie with 0 takes the 0.
        zero = literal(0, x.dtype)
        return ops.select(ops.le(x, zero), zero, x)


class Softplus(Inexact):
    """log(1 + exp(x)), without overflow."""

    has_finite_derivative = True
    accepts = "f"
    samples = (
        sample(f32[3, 4]),
        sample(f32[3], values={0: [0.0, 100.0, -100.0]}, gradients={0: [0.5, 1.0, 0.0]}),
    )

    def derivative(self, out: Value, x: Value) -> Value:
        return ops.logistic(x)

    def numpy(self, x: NumPyArray) -> ArrayLike:
        return np.logaddexp(x, 0)

    def decompose(self, x: Value) -> Value:
        return ops.add(ops.max(x, 0), ops.log1p(ops.exp(ops.neg(ops.abs(x)))))


class LogSigmoid(Inexact):
    """-log(1 + exp(-x)), without overflow."""

    has_finite_derivative = True
    accepts = "f"
    samples = (
        sample(f32[3, 4]),
        sample(f32[3], values={0: [0.0, 1000.0, -1000.0]}, gradients={0: [0.5, 0.0, 1.0]}),
    )

    def derivative(self, out: Value, x: Value) -> Value:
        return ops.logistic(ops.neg(x))

    def numpy(self, x: NumPyArray) -> ArrayLike:
        return -np.logaddexp(0.0, -x)

    def decompose(self, x: Value) -> Value:
        return ops.sub(ops.min(x, 0), ops.log1p(ops.exp(ops.neg(ops.abs(x)))))


class LogCosh(Inexact):
    """log(cosh(x)), without overflow, and without cancellation near 0."""

    has_finite_derivative = True
    accepts = "f"
    rounding = Rounding(is_absolute=True)
    samples = (
        sample(f32[3, 4]),
        sample(f32[3], values={0: [0.0, 1000.0, -1000.0]}, gradients={0: [0.0, 1.0, -1.0]}),
    )

    def derivative(self, out: Value, x: Value) -> Value:
        return ops.tanh(x)

    def numpy(self, x: NumPyArray) -> ArrayLike:
        return np.abs(x) + np.log1p(0.5 * np.expm1(-2.0 * np.abs(x)))

    def decompose(self, x: Value) -> Value:
        # Far from 0 the sum of exponentials is 2 exp(|x|) (1 + (exp(-2 |x|) - 1) / 2), and near 0
        # cosh(x)**-2 is 1 - tanh(x)**2.
        size = ops.abs(x)
        near = ops.lt(size, 1.0)
        tail = ops.mul(ops.expm1(ops.mul(size, -2.0)), 0.5)
        logarithm = ops.log1p(ops.select(near, ops.neg(ops.square(ops.tanh(x))), tail))
        return ops.select(near, ops.mul(logarithm, -0.5), ops.add(size, logarithm))


class Silu(Inexact):
    """x / (1 + exp(-x))."""

    has_finite_derivative = True
    accepts = "f"
    samples = (
        sample(f32[3, 4]),
        sample(
            f32[4],
            values={0: [-INFINITY, 0.0, 1000.0, INFINITY]},
            gradients={0: [0.0, 0.5, 1.0, 1.0]},
        ),
    )

    def derivative(self, out: Value, x: Value) -> Value:
        # s (1 + x (1 - s)) for the sigmoid s
        s = ops.logistic(x)
        return ops.mul(s, ops.add(ops.mul(ops.clamp(-1000.0, x, 1000.0), ops.sub(1.0, s)), 1.0))

    def decompose(self, x: Value) -> Value:
        return ops.mul(x, ops.logistic(x))


class Mish(Inexact):
    """x tanh(log(1 + exp(x)))."""

    has_finite_derivative = True
    accepts = "f"
    samples = (
        sample(f32[3, 4]),
        sample(
            f32[4],
            values={0: [-INFINITY, 0.0, 1000.0, INFINITY]},
            gradients={0: [0.0, 0.6, 1.0, 1.0]},
        ),
    )

    def derivative(self, out: Value, x: Value) -> Value:
        # t + x s (1 - t^2) for the sigmoid s and t = tanh(log(1 + exp(x)))
        t = ops.tanh(softplus(x))
        x = ops.clamp(-1000.0, x, 1000.0)
        return ops.add(t, ops.mul(ops.mul(x, ops.logistic(x)), ops.sub(1.0, ops.mul(t, t))))

    def numpy(self, x: NumPyArray) -> ArrayLike:
        return x * np.tanh(np.logaddexp(0.0, x))

    def decompose(self, x: Value) -> Value:
        return ops.mul(x, ops.tanh(softplus(x)))


class Gelu(Inexact):
    """x times the normal distribution function at x, or its tanh approximation if `approximate`."""

    has_finite_derivative = True
    approximate: bool
    accepts = "f"
    samples = (
        sample(f32[3, 4], approximate=True),
        sample(f32[3, 4], approximate=False),
        *[
            sample(
                f32[5],
                approximate=approximate,
                values={0: [-INFINITY, -1e30, 0.0, 1e30, INFINITY]},
                gradients={0: [0.0, 0.0, 0.5, 1.0, 1.0]},
                dtypes=("f64", "f32", "bf16"),
            )
            for approximate in (True, False)
        ],
    )

    def derivative(self, out: Value, x: Value) -> Value:
        # d(x F(x)) = F(x) + x F'(x), which is 0 or 1 beyond 100, where powers may overflow.
        x = ops.clamp(-100.0, x, 100.0)
        if not self.approximate:
            density = ops.mul(ops.exp(ops.mul(ops.mul(x, x), -0.5)), 1 / math.sqrt(2 * math.pi))
            return ops.add(self.normal_cdf(x), ops.mul(x, density))
        cdf = self.normal_cdf(x)
        slope = ops.mul(ops.add(ops.mul(ops.mul(x, x), 3 * GELU_CUBIC), 1.0), 2 * GELU_SCALE)
        return ops.add(cdf, ops.mul(x, ops.mul(ops.mul(cdf, ops.sub(1.0, cdf)), slope)))

    def decompose(self, x: Value) -> Value:
        return ops.mul(x, self.normal_cdf(x))

    def normal_cdf(self, x: Value) -> Value:
        if self.approximate:
            # (1 + tanh(u)) / 2 is logistic(2 u), which keeps its digits for very negative u.
            return ops.logistic(self.sigmoid_argument(x))
        return ops.mul(ops.erfc(ops.mul(x, -math.sqrt(0.5))), 0.5)

    def sigmoid_argument(self, x: Value) -> Value:
        # 2 sqrt(2 / pi) (x + 0.044715 x^3)
        return ops.mul(ops.add(x, ops.mul(ops.mul(ops.mul(x, x), x), GELU_CUBIC)), 2 * GELU_SCALE)


def gelu(x: ArrayLike, approximate: bool = True) -> Value:
    """x times the normal distribution function at x, or its tanh approximation if `approximate`."""
    return Gelu(approximate)(x)


relu = unary_function(Relu)
softplus = unary_function(Softplus)
log_sigmoid = unary_function(LogSigmoid)
log_cosh = unary_function(LogCosh)
silu = unary_function(Silu)
mish = unary_function(Mish)
