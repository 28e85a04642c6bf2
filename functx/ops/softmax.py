"""Sums of exponentials and what is normalized by them, without overflow."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from functx.core.primitive import Primitive
from functx.core.samples import Sample, f32, sample
from functx.core.tracing import aval_of
from functx.ops.arithmetic import add, div, mul, sub
from functx.ops.comparison import eq
from functx.ops.conversion import convert_element_type
from functx.ops.exponential import exp, log
from functx.ops.families import check_same_dtype
from functx.ops.gradients import stop_gradient
from functx.ops.operands import canonical_axes, check_axes, without
from functx.ops.reductions import Reduction, batched_axes, reduce_max, reduce_sum
from functx.ops.rounding import is_finite
from functx.ops.selection import select
from functx.ops.shaping import broadcast_in_dim

SINGLE = np.dtype("float32")
INF = float("inf")


class LogSumExp(Reduction):
    """log(sum(exp(x))) over `axes`; -inf of nothing and of infinities alone."""

    accepts = "f"
    samples = (
        sample(f32[3, 4], axes=(0,)),
        sample(f32[2, 3, 4], axes=(0, 2)),
        sample(f32[2], axes=(0,), values={0: [-INF, -INF]}, gradients={0: [0.0, 0.0]}),
        sample(f32[3], axes=(0,), values={0: [-INF, 100.0, 100.0]}, gradients={0: [0.0, 0.5, 0.5]}),
    )

    def decompose(self, x):
        _, total, largest = self.parts(x)
        return add(log(total), largest)

    def jvp(self, primals, tangents):
        (x,), (t,) = primals, tangents
        return self(x), sum_over(mul(self.weights(x), t), self.axes)

    def vjp(self, ct, out, args, active):
        (x,) = args
        return (mul(self.broadcast_back(ct, x), self.weights(x)),)

    def parts(self, x: Any) -> tuple[Any, Any, Any]:
        """exp(x - largest), the sum of that, and the largest element, 0 if that is infinite."""
        largest = stop_gradient(reduce_max(x, self.axes))
        largest = select(is_finite(largest), largest, 0)
        powers = exp(sub(x, self.broadcast_back(largest, x)))
        return powers, sum_over(powers, self.axes), largest

    def weights(self, x: Any) -> Any:
        # d out / dx = exp(x) / sum(exp(x)), and 0 where all are -inf. Compiling finds that the
        # parts are those of `out`; exp(x - out) would lose the digits that log cuts off.
        powers, total, _ = self.parts(x)
        return div(powers, self.broadcast_back(select(eq(total, 0), 1, total), x))


class Normalization(Primitive, abstract=True):
    """One operand, normalized along `axes` together, which stay."""

    axes: tuple[int, ...]
    accepts: ClassVar[str] = "f"
    samples: ClassVar[tuple[Sample, ...]] = (
        sample(f32[3, 4], axes=(1,)),
        sample(f32[2, 3, 4], axes=(0, 2)),
        sample(f32[0, 4], axes=(0,)),
    )

    def abstract_eval(self, x):
        check_same_dtype(self, (x,))
        check_axes(self.name, self.axes, x.ndim)
        return x

    def batch(self, args, dims):
        (x,), (dim,) = args, dims
        return type(self)(batched_axes(self.axes, dim)[0])(x), dim

    def total(self, x: Any) -> Any:
        """The sum over the axes, repeated along them."""
        return self.repeated(sum_over(x, self.axes), x)

    def shifted(self, x: Any) -> Any:
        """`x` less the largest along the axes, so that its exponentials do not overflow."""
        return sub(x, self.repeated(reduce_max(x, self.axes), x))

    def repeated(self, out: Any, x: Any) -> Any:
        return broadcast_in_dim(out, x.shape, without(range(x.ndim), self.axes))


class Softmax(Normalization):
    """exp(x) / sum(exp(x)) along `axes`."""

    samples = (
        *Normalization.samples,
        sample(
            f32[3],
            axes=(0,),
            values={0: [-INF, 100.0, 100.0]},
            gradients={0: [0.0, 0.0, 0.0]},
        ),
    )

    def decompose(self, x):
        powers = exp(self.shifted(x))
        return div(powers, self.total(powers))

    def jvp(self, primals, tangents):
        out = self(*primals)
        return out, self.pushed(out, tangents[0])

    def vjp(self, ct, out, args, active):
        # The Jacobian is symmetric.
        return (self.pushed(out, ct),)

    def pushed(self, out: Any, t: Any) -> Any:
        # out (t - sum(out t))
        return mul(out, sub(t, self.total(mul(out, t))))


class LogSoftmax(Normalization):
    """x - log(sum(exp(x))) along `axes`."""

    samples = (
        *Normalization.samples,
        sample(
            f32[3],
            axes=(0,),
            values={0: [-INF, 100.0, 100.0]},
            gradients={0: [1.0, -0.5, -0.5]},
        ),
    )

    def decompose(self, x):
        shifted = self.shifted(x)
        return sub(shifted, self.repeated(log(sum_over(exp(shifted), self.axes)), x))

    def jvp(self, primals, tangents):
        (x,), (t,) = primals, tangents
        out = self(x)
        return out, sub(t, self.total(mul(exp(out), t)))

    def vjp(self, ct, out, args, active):
        return (sub(ct, mul(exp(out), self.total(ct))),)


def sum_over(x: Any, axes: tuple[int, ...]) -> Any:
    """The sum over `axes`, of half floats in single precision."""
    if x.dtype.itemsize >= 4:
        return reduce_sum(x, axes)
    return convert_element_type(reduce_sum(convert_element_type(x, SINGLE), axes), x.dtype)


def logsumexp(x: Any, axes: Any = None) -> Any:
    """log(sum(exp(x))) over `axes`, or over all; -inf of nothing and of infinities alone."""
    axes = canonical_axes(axes, aval_of(x).ndim)
    return LogSumExp(axes)(x) if axes else x


def softmax(x: Any, axes: Any = -1) -> Any:
    """exp(x) / sum(exp(x)) along `axes`."""
    return Softmax(canonical_axes(axes, aval_of(x).ndim))(x)


def log_softmax(x: Any, axes: Any = -1) -> Any:
    """x - log(sum(exp(x))) along `axes`."""
    return LogSoftmax(canonical_axes(axes, aval_of(x).ndim))(x)
