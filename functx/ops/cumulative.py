"""Cumulative operations: at each place, the reduction of everything up to there."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from jax import lax
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo

from functx.core.avals import ShapedArray
from functx.core.dtypes import is_complex, real_dtype
from functx.core.primitive import Primitive
from functx.core.samples import bool_, c64, f32, i32, sample
from functx.core.tracing import aval_of
from functx.ops.families import Linear, check_same_dtype
from functx.ops.operands import canonical_axes, canonical_axis


class Cumulative(Primitive, abstract=True):
    """Along `axis`, each element combined with all before it; with `reverse`, all after it."""

    axis: int
    reverse: bool = False
    accepts: ClassVar[str] = "iufc"

    def abstract_eval(self, x):
        check_same_dtype(self, (x,))
        canonical_axes(self.axis, x.ndim)
        return x

    def batch(self, args, dims):
        (x,), (dim,) = args, dims
        return type(self)(self.axis + (self.axis >= dim), self.reverse)(x), dim

    def first(self, x: Any, distance: int) -> Any:
        """`x` without the last `distance` elements on the way that this operation goes."""
        n = x.shape[self.axis]
        low, high = (distance, n) if self.reverse else (0, n - distance)
        return slice_in_dim(x, low, high, axis=self.axis)

    def rest(self, x: Any, distance: int) -> Any:
        """`x` without the first `distance` elements on the way that this operation goes."""
        n = x.shape[self.axis]
        low, high = (0, n - distance) if self.reverse else (distance, n)
        return slice_in_dim(x, low, high, axis=self.axis)

    def delayed(self, x: Any, distance: int, fill: Any) -> Any:
        """`x` that begins `distance` places later, after as many of the number `fill`."""
        config = [(0, 0, 0)] * x.ndim
        config[self.axis] = (0, distance, 0) if self.reverse else (distance, 0, 0)
        return pad(x, fill, config)

    def recurrence(self, factor: Any, t: Any) -> Any:
        """The y with y[0] = t[0] and y[i] = factor[i - 1] * y[i - 1] + t[i].

        A boolean factor says whether y[i - 1] counts.
        """
        # Of two runs in a row, what the first adds up to goes through the factors of the
        # second. So runs of twice the length are had at once, at every place.
        n, distance = t.shape[self.axis], 1
        while distance < n:
            carried = self.first(t, distance)
            if factor.dtype == bool:
                carried = select(factor, carried, zeros_like(carried))
            else:
                carried = mul(factor, carried)
            t = add(t, self.delayed(carried, distance, 0))
            if 2 * distance < n:
                factor = mul(self.first(factor, distance), self.rest(factor, distance))
            distance *= 2
        return t

    def scan(self, ctx: Any, x: Any, operation: Any, start: Any) -> Any:
        """`x` with a window, open at the front, reduced at each place by an operation class."""
        (aval,) = ctx.avals_in
        if aval.size == 0:
            return x
        scalar = ShapedArray((), aval.dtype)
        n = aval.shape[self.axis]
        window, padding = [1] * aval.ndim, np.zeros((aval.ndim, 2), np.int64)
        window[self.axis] = n
        padding[self.axis, int(self.reverse)] = n - 1
        op = stablehlo.ReduceWindowOp(
            ctx.out_types,
            [x],
            [ctx.constant(start, scalar)],
            ctx.i64s(window),
            padding=ir.DenseIntElementsAttr.get(padding),
        )
        element = ctx.type(scalar)
        block = op.regions[0].blocks.append(element, element)
        with ir.InsertionPoint(block):
            stablehlo.return_([operation(*block.arguments).result])
        return op.results[0]


class CumSum(Cumulative, Linear):
    """The sum along `axis` of each element and all before it."""

    name = "cumsum"
    samples = (
        sample(f32[3, 4], axis=1),
        sample(f32[5], axis=0, reverse=True),
        sample(c64[3], axis=0),
    )

    def transpose(self, ct, x):
        return (CumSum(self.axis, not self.reverse)(ct),)

    def lower(self, ctx, x):
        return self.scan(ctx, x, stablehlo.AddOp, 0)


class CumProd(Cumulative):
    """The product along `axis` of each element and all before it."""

    name = "cumprod"
    samples = (
        sample(f32[3, 4], axis=1),
        sample(f32[5], axis=0, reverse=True, values={0: [2.0, 0.0, 3.0, 0.0, 1.0]}),
        sample(c64[3], axis=0),
    )

    def jvp(self, primals, tangents):
        # dout[i] = x[i] * dout[i - 1] + dx[i] * out[i - 1]: no division, so zeros may be.
        (x,), (t,) = primals, tangents
        out = self(x)
        if x.size == 0:
            return out, t
        earlier = self.delayed(self.first(out, 1), 1, 1)
        return out, self.recurrence(self.rest(x, 1), mul(t, earlier))

    def lower(self, ctx, x):
        return self.scan(ctx, x, stablehlo.MulOp, 1)


class CumExtremum(Cumulative, abstract=True):
    """The largest or smallest element so far; those that tie share the derivative."""

    accepts = "biufc"
    samples = (
        sample(f32[3, 4], axis=1, distinct=True),
        sample(f32[6], axis=0, reverse=True, distinct=True),
        sample(i32[5], axis=0),
        sample(bool_[5], axis=0),
    )

    def jvp(self, primals, tangents):
        (x,), (t,) = primals, tangents
        out = self(x)
        if x.size == 0:
            return out, t
        # The places that have one record lie together: sums over the elements that attain it
        # go on for as long as it stands.
        attains = eq(x, out)
        stands = eq(self.first(out, 1), self.rest(out, 1))
        wide = real_dtype(x.dtype) if x.dtype.itemsize > 2 else np.dtype("float32")
        count = self.recurrence(stands, convert_element_type(attains, wide))
        total = self.recurrence(stands, select(attains, t, zeros_like(t)))
        return out, mul(total, convert_element_type(div(1.0, count), x.dtype))


class CumMax(CumExtremum):
    """The largest along `axis` of each element and all before it; nan from the first nan on."""

    name = "cummax"

    def lower(self, ctx, x):
        if is_complex(ctx.avals_in[0].dtype):
            return ctx.via_jax(lambda x: lax.cummax(x, self.axis, self.reverse), x)
        return self.scan(ctx, x, stablehlo.MaxOp, lowest(ctx.avals_in[0].dtype))


class CumMin(CumExtremum):
    """The smallest along `axis` of each element and all before it; nan from the first nan on."""

    name = "cummin"

    def lower(self, ctx, x):
        if is_complex(ctx.avals_in[0].dtype):
            return ctx.via_jax(lambda x: lax.cummin(x, self.axis, self.reverse), x)
        return self.scan(ctx, x, stablehlo.MinOp, highest(ctx.avals_in[0].dtype))


class CumLogSumExp(Cumulative):
    """The logarithm of the cumulative sum along `axis` of the exponentials."""

    name = "cumlogsumexp"
    accepts = "f"
    samples = (
        sample(f32[3, 4], axis=1),
        sample(f32[5], axis=0, reverse=True),
    )

    def jvp(self, primals, tangents):
        # dout[i] = e^(out[i - 1] - out[i]) * dout[i - 1] + e^(x[i] - out[i]) * dx[i]
        (x,), (t,) = primals, tangents
        out = self(x)
        if x.size == 0:
            return out, t
        # Where out is -inf everything so far is, and all weights are e^-inf.
        finite = select(eq(out, -np.inf), zeros_like(out), out)
        factor = exp(sub(self.first(out, 1), self.rest(finite, 1)))
        return out, self.recurrence(factor, mul(t, exp(sub(x, finite))))

    def lower(self, ctx, x):
        return ctx.via_jax(lambda x: lax.cumlogsumexp(x, self.axis, self.reverse), x)


def cumsum(x: Any, axis: int = 0, reverse: bool = False) -> Any:
    """The sum along `axis` of each element and all before it; with `reverse`, all after it."""
    return CumSum(canonical_axis(axis, aval_of(x).ndim), reverse)(x)


def cumprod(x: Any, axis: int = 0, reverse: bool = False) -> Any:
    """The product along `axis` of each element and all before it; with `reverse`, all after it."""
    return CumProd(canonical_axis(axis, aval_of(x).ndim), reverse)(x)


def cummax(x: Any, axis: int = 0, reverse: bool = False) -> Any:
    """The largest along `axis` of each element and all before it; with `reverse`, all after it.

    From the first nan on everything is nan. Elements that tie share the derivative.
    """
    return CumMax(canonical_axis(axis, aval_of(x).ndim), reverse)(x)


def cummin(x: Any, axis: int = 0, reverse: bool = False) -> Any:
    """The smallest along `axis` of each element and all before it; with `reverse`, all after it.

    From the first nan on everything is nan. Elements that tie share the derivative.
    """
    return CumMin(canonical_axis(axis, aval_of(x).ndim), reverse)(x)


def cumlogsumexp(x: Any, axis: int = 0, reverse: bool = False) -> Any:
    """The logarithm of the cumulative sum along `axis` of the exponentials of `x`.

    With `reverse`, each element is combined with all after it instead of all before it.
    """
    return CumLogSumExp(canonical_axis(axis, aval_of(x).ndim), reverse)(x)


from functx.ops.arithmetic import add, div, mul, sub
from functx.ops.comparison import eq
from functx.ops.conversion import convert_element_type
from functx.ops.exponential import exp
from functx.ops.reductions import highest, lowest
from functx.ops.selection import select
from functx.ops.shaping import pad, zeros_like
from functx.ops.slicing import slice_in_dim
