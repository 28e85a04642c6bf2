"""Cumulative reductions along an axis, and linear recurrences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from jax import lax
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo

from functx import ops
from functx.core.errors import ShapeError
from functx.core.index_sets import DependentOperand, IndexSets, Sets
from functx.core.samples import EXACT, Rounding, bool_, c64, f32, i32, sample
from functx.core.strides import MemoryOrder
from functx.core.tracer import aval_of
from functx.core.types import DType, ShapedArray, accumulation_dtype, is_complex, kind, real_dtype
from functx.core.typing import ArrayLike, Cotangents, IRValue, Mask, Tangent, Value, Values
from functx.ops.arithmetic import complex_max, complex_min
from functx.ops.families import Linear, ShiftsAxis, check_same_dtype
from functx.ops.operands import canonical_axis, check_axes

if TYPE_CHECKING:
    from functx.lowering.stablehlo_emitter import LoweringContext


class Cumulative(ShiftsAxis, abstract=True):
    """The combination along `axis` of each element and all before it; if `reverse`, all after it."""

    axis: int
    reverse: bool = False
    memory_order = MemoryOrder.OPERANDS
    accepts: ClassVar[str] = "iufc"

    @classmethod
    def from_jax_params(cls, axis: int, reverse: bool) -> Cumulative:
        return cls(int(axis), bool(reverse))

    def cotangent_masks(self, mask: Mask, args: Values) -> Sequence[Mask]:
        if mask is None or not mask.shape:
            return [mask]
        return [cummax(mask, self.axis, not self.reverse)]

    def index_sets(self, sets: IndexSets, *operands: DependentOperand) -> Sets:
        return sets.union_before(operands[0].sets, self.axis, self.reverse)

    def abstract_eval(self, x: ShapedArray) -> ShapedArray:
        check_same_dtype(self, (x,))
        check_axes(self.name, self.axis, x.ndim)
        return x

    def scan(
        self,
        ctx: LoweringContext,
        x: IRValue,
        operation: Callable[..., ir.OpView],
        start: complex,
        dtype: DType | None = None,
    ) -> IRValue:
        """The cumulative reduction of `x` by an operation class, computed in `dtype`.

        It is lowered as a window reduction.
        """
        (operand_aval,) = ctx.avals_in
        if operand_aval.size == 0:
            return x
        aval = operand_aval if dtype is None else operand_aval.update(dtype=dtype)
        x = x if aval.dtype == operand_aval.dtype else ctx.convert(x, operand_aval, aval)
        scalar = ShapedArray((), aval.dtype)
        n = aval.shape[self.axis]
        window, padding = [1] * aval.ndim, np.zeros((aval.ndim, 2), np.int64)
        window[self.axis] = n
        padding[self.axis, int(self.reverse)] = n - 1
        op = stablehlo.ReduceWindowOp(
            [ctx.type(aval)],
            [x],
            [ctx.constant(start, scalar)],
            ctx.i64_array(window),
            padding=ir.DenseIntElementsAttr.get(padding.data),
        )
        element = ctx.type(scalar)
        block = op.regions[0].blocks.append(element, element)
        with ir.InsertionPoint(block):
            stablehlo.return_([operation(*block.arguments).result])
        out = op.results[0]
        return out if aval.dtype == operand_aval.dtype else ctx.convert(out, aval, operand_aval)


class CumSum(Cumulative, Linear):
    """The sum along `axis` of each element and all before it."""

    name = "cumsum"
    rounding = Rounding(is_componentwise=True)
    samples = (
        sample(f32[3, 4], axis=1),
        sample(f32[5], axis=0, reverse=True),
        sample(c64[3], axis=0),
    )

    def transpose(self, ct: Value, x: Value) -> Cotangents:
        return (CumSum(self.axis, not self.reverse)(ct),)

    def tangent_mask(self, masks: Sequence[Mask], args: Values) -> Mask:
        (mask,) = masks
        return mask if mask is None or not mask.shape else cummax(mask, self.axis, self.reverse)

    def lower(self, ctx: LoweringContext, x: IRValue) -> IRValue:
        return self.scan(ctx, x, stablehlo.AddOp, 0, accumulation_dtype(ctx.avals_in[0].dtype))


class CumProd(Cumulative):
    """The product along `axis` of each element and all before it."""

    name = "cumprod"
    samples = (
        sample(f32[3, 4], axis=1),
        sample(f32[5], axis=0, reverse=True, values={0: [2.0, 0.0, 3.0, 0.0, 1.0]}),
        sample(c64[3], axis=0),
    )

    def jvp(self, primals: Values, tangents: Values) -> tuple[Value, Tangent]:
        # dout[i] = x[i] * dout[i - 1] + dx[i] * out[i - 1], without division, right for zeros too
        (x,), (t,) = primals, tangents
        out = self(x)
        earlier = shift_along(out, self.axis, self.reverse, 1)
        return out, linear_recurrence(x, ops.mul(t, earlier), self.axis, self.reverse)

    def lower(self, ctx: LoweringContext, x: IRValue) -> IRValue:
        return self.scan(ctx, x, stablehlo.MulOp, 1, accumulation_dtype(ctx.avals_in[0].dtype))


class CumExtremum(Cumulative, abstract=True):
    """The largest or smallest element so far; elements that tie share the derivative."""

    rounding = EXACT
    accepts = "biufc"
    samples = (
        sample(f32[3, 4], axis=1, distinct=True),
        sample(f32[6], axis=0, reverse=True, distinct=True),
        sample(f32[2], axis=0, values={0: [2.0, 2.0]}, gradients={0: [1.5, 0.5]}),
        sample(i32[5], axis=0),
        sample(bool_[5], axis=0),
    )

    def jvp(self, primals: Values, tangents: Values) -> tuple[Value, Tangent]:
        (x,), (t,) = primals, tangents
        out = self(x)
        # Positions with one extremum are adjacent: the tangents and the count of the elements that
        # attain it are summed as long as it stays.
        is_extremum = ops.eq(x, out)
        continues = ops.eq(out, shift_along(out, self.axis, self.reverse, 0))
        count_dtype = real_dtype(x.dtype) if x.dtype.itemsize > 2 else np.dtype("float32")
        terms = (
            ops.convert_element_type(is_extremum, count_dtype),
            ops.select(is_extremum, t, ops.zeros_like(t)),
        )
        count, total = [linear_recurrence(continues, y, self.axis, self.reverse) for y in terms]
        return out, ops.mul(total, ops.convert_element_type(ops.div(1.0, count), x.dtype))

    def scan_complex(
        self, ctx: LoweringContext, x: IRValue, operation: Callable[[Value, Value], Value]
    ) -> IRValue:
        """The scan of complex numbers, which StableHLO does not order."""

        def scan(x: Value) -> Value:
            return lax.associative_scan(operation, x, self.reverse, self.axis)

        return ctx.via_jax(scan, x)


class CumMax(CumExtremum):
    """The largest along `axis` of each element and all before it; nan from the first nan on."""

    name = "cummax"

    def lower(self, ctx: LoweringContext, x: IRValue) -> IRValue:
        if is_complex(ctx.avals_in[0].dtype):
            return self.scan_complex(ctx, x, complex_max)
        return self.scan(ctx, x, stablehlo.MaxOp, ops.lowest(ctx.avals_in[0].dtype))


class CumMin(CumExtremum):
    """The smallest along `axis` of each element and all before it; nan from the first nan on."""

    name = "cummin"

    def lower(self, ctx: LoweringContext, x: IRValue) -> IRValue:
        if is_complex(ctx.avals_in[0].dtype):
            return self.scan_complex(ctx, x, complex_min)
        return self.scan(ctx, x, stablehlo.MinOp, ops.highest(ctx.avals_in[0].dtype))


class CumLogSumExp(Cumulative):
    """The logarithm of the cumulative sum along `axis` of the exponentials."""

    name = "cumlogsumexp"
    accepts = "f"
    rounding = Rounding(is_absolute=True)
    samples = (
        sample(f32[3, 4], axis=1),
        sample(f32[5], axis=0, reverse=True),
        sample(
            f32[3],
            axis=0,
            values={0: [-np.inf, -np.inf, 0.0]},
            gradients={0: [0.0, 0.0, 1.0]},
        ),
    )

    def jvp(self, primals: Values, tangents: Values) -> tuple[Value, Tangent]:
        # dout[i] = e^(out[i - 1] - out[i]) * dout[i - 1] + e^(x[i] - out[i]) * dx[i]
        (x,), (t,) = primals, tangents
        out = self(x)
        # Where out is -inf, all elements so far are, and all weights are e^-inf.
        finite = ops.select(ops.eq(out, -np.inf), 0.0, out)
        factor = ops.exp(ops.sub(shift_along(out, self.axis, self.reverse, 0), finite))
        return out, linear_recurrence(
            factor, ops.mul(t, ops.exp(ops.sub(x, finite))), self.axis, self.reverse
        )

    def decompose(self, x: Value) -> Value:
        # With the maximum m so far, s[i] = e^(m[i - 1] - m[i]) * s[i - 1] + e^(x[i] - m[i]).
        upcast = ops.convert_element_type(x, np.float32) if x.dtype.itemsize < 4 else x
        maxima = cummax(upcast, self.axis, self.reverse)
        finite = ops.select(ops.is_finite(maxima), maxima, 0.0)
        factor = ops.exp(ops.sub(shift_along(maxima, self.axis, self.reverse, 0), finite))
        sums = linear_recurrence(factor, ops.exp(ops.sub(upcast, finite)), self.axis, self.reverse)
        out = ops.add(finite, ops.log(sums))
        return ops.convert_element_type(out, x.dtype) if upcast is not x else out


class LinearRecurrence(ShiftsAxis):
    """The y with y[i] = factor[i] * y[i - 1] + x[i] along `axis`, y[-1] being 0.

    If `reverse`, y[i] comes from y[i + 1]. A boolean factor is 0 where false and 1 where true.
    """

    axis: int
    reverse: bool = False
    accepts: ClassVar[str] = "fc"
    linear: ClassVar[tuple[int, ...]] = (1,)
    samples = (
        sample(f32[3, 7], f32[3, 7], axis=1),
        sample(f32[6, 2], f32[6, 2], axis=0, reverse=True),
        sample(bool_[9], f32[9], axis=0),
        sample(c64[5], c64[5], axis=0),
    )

    def abstract_eval(self, factor: ShapedArray, x: ShapedArray) -> ShapedArray:
        check_same_dtype(self, (x, x if kind(factor.dtype) == "b" else factor))
        if factor.shape != x.shape:
            raise ShapeError(
                f"linear_recurrence: operands must have one shape; got {factor!r} and {x!r}"
            )
        check_axes(self.name, self.axis, x.ndim)
        return x

    def index_sets(self, sets: IndexSets, *operands: DependentOperand) -> Sets:
        terms = sets.union(*[x.sets for x in operands])
        return sets.union_before(terms, self.axis, self.reverse)

    def jvp(self, primals: Values, tangents: Sequence[Tangent]) -> tuple[Value, Tangent]:
        (factor, x), (dfactor, dx) = primals, tangents
        out = self(factor, x)
        if dfactor is not None:
            term = ops.mul(dfactor, shift_along(out, self.axis, self.reverse, 0))
            dx = term if dx is None else ops.add(dx, term)
        return out, self(factor, dx)

    def transpose(self, ct: Value, factor: Value, x: Value) -> Cotangents:
        return None, self.term_cotangent(ct, factor)

    def vjp(self, ct: Value, out: Value, args: Values, active: Sequence[bool]) -> Cotangents:
        dx = self.term_cotangent(ct, args[0])
        if not active[0]:
            return None, dx
        return ops.mul(dx, shift_along(out, self.axis, self.reverse, 0)), dx

    def term_cotangent(self, ct: Value, factor: Value) -> Value:
        """The cotangent of x: the recurrence in the other direction."""
        reverse = not self.reverse
        return LinearRecurrence(self.axis, reverse)(shift_along(factor, self.axis, reverse, 0), ct)

    def lower(self, ctx: LoweringContext, factor: IRValue, x: IRValue) -> IRValue:
        return ctx.via_jax(self.as_jax, factor, x)

    def as_jax(self, factor: Value, x: Value) -> Value:
        """The recurrence as a JAX function."""
        axis = self.axis
        if x.shape[axis] < 2:
            return x
        if self.reverse:
            return lax.rev(
                _blocked_recurrence(lax.rev(factor, [axis]), lax.rev(x, [axis]), axis), [axis]
            )
        return _blocked_recurrence(factor, x, axis)


_BLOCK_LENGTH = 4
"""The number of elements computed one after another; more are slower, above all to compile."""


def _blocked_recurrence(factor: Value, x: Value, axis: int) -> Value:
    """The recurrence by blocks: within each block, then across blocks, then with the carries added."""
    n = x.shape[axis]
    length = n if n <= _BLOCK_LENGTH else _BLOCK_LENGTH
    blocks = -(-n // length)
    config = [(0, 0, 0)] * x.ndim
    config[axis] = (0, blocks * length - n, 0)
    shape = (*x.shape[:axis], blocks, length, *x.shape[axis + 1 :])

    def places(x: Value) -> list[Value]:
        x = lax.pad(x, np.zeros((), x.dtype), config).reshape(shape)
        return [lax.index_in_dim(x, i, axis + 1, keepdims=False) for i in range(length)]

    def times(f: Value, y: Value) -> Value:
        if f.dtype != bool:
            return f * y
        return f & y if y.dtype == bool else lax.select(f, y, lax.full_like(y, 0))

    factors, terms = places(factor), places(x)
    products, sums = [factors[0]], [terms[0]]
    for f, t in zip(factors[1:], terms[1:], strict=True):
        products.append(times(f, products[-1]))
        sums.append(times(f, sums[-1]) + t)
    if blocks > 1:
        config[axis] = (1, 0, 0)
        carried = lax.slice_in_dim(
            _blocked_recurrence(products[-1], sums[-1], axis), 0, -1, axis=axis
        )
        for i, product in enumerate(products):
            carry = times(lax.slice_in_dim(product, 1, None, axis=axis), carried)
            sums[i] += lax.pad(carry, np.zeros((), x.dtype), config)
    out = lax.concatenate([lax.expand_dims(s, [axis + 1]) for s in sums], axis + 1)
    return lax.slice_in_dim(lax.collapse(out, axis, axis + 2), 0, n, axis=axis)


def shift_along(x: Value, axis: int, reverse: bool, fill: complex) -> Value:
    """`x` shifted by one along `axis`, backwards if `reverse`, with `fill` in the free position."""
    config = [(0, 0, 0)] * x.ndim
    config[axis] = (-1, 1, 0) if reverse else (1, -1, 0)
    return ops.pad(x, fill, config)


def cumsum(operand: ArrayLike, axis: int = 0, reverse: bool = False) -> Value:
    """The sum along `axis` of each element and all before it; if `reverse`, all after it."""
    return CumSum(canonical_axis(axis, aval_of(operand).ndim), reverse)(operand)


def cumprod(operand: ArrayLike, axis: int = 0, reverse: bool = False) -> Value:
    """The product along `axis` of each element and all before it; if `reverse`, all after it."""
    return CumProd(canonical_axis(axis, aval_of(operand).ndim), reverse)(operand)


def cummax(operand: ArrayLike, axis: int = 0, reverse: bool = False) -> Value:
    """The largest along `axis` of each element and all before it; if `reverse`, all after it.

    From the first nan on all results are nan. Elements that tie share the derivative.
    """
    return CumMax(canonical_axis(axis, aval_of(operand).ndim), reverse)(operand)


def cummin(operand: ArrayLike, axis: int = 0, reverse: bool = False) -> Value:
    """The smallest along `axis` of each element and all before it; if `reverse`, all after it.

    From the first nan on all results are nan. Elements that tie share the derivative.
    """
    return CumMin(canonical_axis(axis, aval_of(operand).ndim), reverse)(operand)


def cumlogsumexp(operand: ArrayLike, axis: int = 0, reverse: bool = False) -> Value:
    """The logarithm of the cumulative sum along `axis` of the exponentials of `operand`.

    If `reverse`, each element is combined with all after it.
    """
    return CumLogSumExp(canonical_axis(axis, aval_of(operand).ndim), reverse)(operand)


def linear_recurrence(factor: Value, x: ArrayLike, axis: int = 0, reverse: bool = False) -> Value:
    """The y with y[i] = factor[i] * y[i - 1] + x[i] along `axis`, where y[-1] is 0.

    If `reverse`, y[i] comes from y[i + 1]. `factor` may be boolean: false counts as 0, true as 1.
    """
    return LinearRecurrence(canonical_axis(axis, aval_of(x).ndim), reverse)(factor, x)
