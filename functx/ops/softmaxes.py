"""Log-sum-exp and softmax, their derivatives, and weighted sums over axes, without overflow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

import numpy as np

from functx import ops
from functx.core.errors import DTypeError, ShapeError
from functx.core.primitive import Primitive
from functx.core.samples import Rounding, Sample, f32, sample
from functx.core.tracer import aval_of
from functx.core.types import DType, ShapedArray, canonical_dtype, is_floating
from functx.core.typing import ArrayLike, Axes, Cotangents, Dim, NumPyArray, Tangent, Value, Values
from functx.ops.families import check_same_dtype
from functx.ops.operands import (
    broadcast_along,
    canonical_axes,
    cast_like,
    check_axes,
    upcast_half,
)
from functx.ops.reductions import Reduction

INFINITY = float("inf")


class LogSumExp(Reduction):
    """log(sum(exp(x))) over `axes`; -inf if there are no elements or all are -inf.

    Elements that are inf share the derivative.
    """

    accepts = "f"
    has_finite_derivative = True
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
        largest = ops.stop_gradient(ops.shift_of_exponentials(y, self.axes))
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
        """exp(x - largest), its sum, and the largest element."""
        largest = ops.stop_gradient(ops.shift_of_exponentials(x, self.axes))
        powers = self.powers(x, largest)
        return powers, ops.reduce_sum(powers, self.axes), largest

    def powers(self, x: Value, largest: Value) -> Value:
        """exp(x - largest), at most 1; infinite elements give exp(69) each, about 1e30."""
        greatest = float(np.finfo(x.dtype).max)
        shift = ops.clamp(-greatest, largest, greatest)
        # `min` bounds infinite elements. XLA fuses it better than a selection, and only before `exp`.
        return ops.exp(ops.min(ops.sub(x, self.broadcast_back(shift, x)), 69.0))

    def derivative_weights(self, x: Value) -> Value:
        # Its subexpressions are those of the output; XLA computes them once.
        return LogSumExpDerivative(self.axes)(x)


class SoftmaxLike(Primitive, abstract=True):
    """An operation that normalizes its operand jointly along `axes`."""

    axes: tuple[int, ...]
    accepts: ClassVar[str] = "f"
    has_finite_derivative = True
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
        return ops.sub(x, broadcast_along(ops.shift_of_exponentials(x, self.axes), x, self.axes))


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
        return out, SoftmaxBackward(self.axes, is_normalized=True)(tangents[0], out)

    def vjp(self, ct: Value, out: Value, args: Values, active: Sequence[bool]) -> Cotangents:
        return (SoftmaxBackward(self.axes, is_normalized=True)(ct, out),)


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
        return out, LogSoftmaxBackward(self.axes, is_normalized=True).tangent(tangents[0], out)

    def vjp(self, ct: Value, out: Value, args: Values, active: Sequence[bool]) -> Cotangents:
        return (LogSoftmaxBackward(self.axes, is_normalized=True)(ct, out),)


def softmax_outcome(random: np.random.RandomState) -> NumPyArray:
    """Weights of the shape (2, 3, 4) that sum to 1 along the axes 0 and 2."""
    powers = np.exp(random.uniform(-2, 2, (2, 3, 4)))
    weights: NumPyArray = powers / powers.sum((0, 2), keepdims=True)
    return weights


def backward_samples(
    draw: Callable[[np.random.RandomState], NumPyArray],
) -> tuple[Sample, Sample]:
    """Samples of a `SoftmaxLikeBackward`: outputs of any sum, and outputs from `draw`, normalized."""
    operands = f32[2, 3, 4], f32[2, 3, 4]
    return (
        sample(*operands, axes=(0, 2)),
        sample(*operands, axes=(0, 2), is_normalized=True, values={1: draw}),
    )


class SoftmaxLikeBackward(Primitive, abstract=True):
    """The cotangent of the input of a normalization, given that of the output, and the output.

    It has the dtype `dtype`, by default that of the output's cotangent. Linear in the first operand.
    If the output `is_normalized`, its weights sum to 1 but for rounding, and are not summed.
    """

    axes: tuple[int, ...]
    dtype: DType | None = None
    is_normalized: bool = False
    accepts: ClassVar[str] = "f"

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
        args = ops.batch_dims_at(args, dims, dim)
        axes, _ = ops.shift_reduced_axes(self.axes, dim)
        return type(self)(axes, self.dtype, self.is_normalized)(*args), dim

    def subtract_mean(self, x: Value, weights: Value) -> Value:
        """`x` minus its mean along the axes, weighted by `weights`.

        The mean is subtracted twice. Where one weight is almost 1, its element almost equals the mean
        and the first difference is rounded; the mean of the differences is almost 0, so the second is
        exact. For weights that sum to 1 + d, both together subtract the mean times 1 - d d.
        """
        divide = self.divider(weights)
        for _ in range(2):
            x = ops.sub(x, divide(sum_and_broadcast(ops.mul(weights, x), self.axes)))
        return x

    def subtract_total(self, x: Value, weights: Value) -> Value:
        """`x` minus its total along the axes, distributed by `weights`.

        The total is subtracted twice, which keeps the digits as in `subtract_mean`.
        """
        divide = self.divider(weights)
        for _ in range(2):
            x = ops.sub(x, ops.mul(weights, divide(sum_and_broadcast(x, self.axes))))
        return x

    def divider(self, weights: Value) -> Callable[[Value], Value]:
        """A function that divides by the sum of `weights`, or by 1 where that is 0."""
        if self.is_normalized:
            return lambda x: x
        total = sum_and_broadcast(weights, self.axes)
        total = ops.select(ops.eq(total, 0.0), 1.0, total)
        return lambda x: ops.div(x, total)

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

    samples = backward_samples(softmax_outcome)

    def input_cotangent(self, ct: Value, out: Value) -> Value:
        return ops.mul(out, self.subtract_mean(ct, out))

    def output_tangent(self, t: Value, out: Value) -> Value:
        return self.input_cotangent(t, out)

    def cotangent_derivative(self, ct: Value, out: Value, t: Value) -> Value:
        # With c = ct - mean: t c - out sum(t c) / sum(out)
        return self.subtract_total(ops.mul(t, self.subtract_mean(ct, out)), out)

    def cotangent_derivative_transpose(self, t: Value, ct: Value, out: Value) -> Value:
        return ops.mul(self.subtract_mean(t, out), self.subtract_mean(ct, out))


class LogSoftmaxBackward(SoftmaxLikeBackward):
    """ct - p sum(ct) along `axes`, p = softmax(out): the cotangent of x for out = log_softmax(x)."""

    samples = backward_samples(lambda random: np.log(softmax_outcome(random)))

    def input_cotangent(self, ct: Value, out: Value) -> Value:
        return self.subtract_total(ct, ops.exp(out))

    def output_tangent(self, t: Value, out: Value) -> Value:
        return self.tangent(t, out)

    def cotangent_derivative(self, ct: Value, out: Value, t: Value) -> Value:
        powers = ops.exp(out)
        p = self.divider(powers)(powers)
        return ops.neg(
            ops.mul(ops.mul(p, self.subtract_mean(t, p)), sum_and_broadcast(ct, self.axes))
        )

    def cotangent_derivative_transpose(self, t: Value, ct: Value, out: Value) -> Value:
        return self.cotangent_derivative(ct, out, t)

    def tangent(self, t: Value, out: Value) -> Value:
        """t - mean(t), weighted by exp(out): the tangent of `out` = log_softmax(x) for that of x."""
        return cast_like(self.subtract_mean(upcast_half(t), ops.exp(upcast_half(out))), t)


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
