"""Reductions over axes: sums, products, extrema, bitwise reductions, and indices of extrema."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import TYPE_CHECKING, ClassVar

import ml_dtypes
import numpy as np
from jax import lax
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo

from functx import ops
from functx.core.errors import DTypeError, ShapeError
from functx.core.index_sets import DependentOperand, IndexSets, Sets
from functx.core.primitive import Primitive
from functx.core.primitive_families import HasHostKernel, HasNewStrides
from functx.core.program import Atom
from functx.core.samples import EXACT, Rounding, bool_, c64, f32, i32, sample, u32
from functx.core.strides import MemoryOrder, Strides, strides_in_order
from functx.core.tracer import aval_of
from functx.core.types import (
    DType,
    Shape,
    ShapedArray,
    accumulation_dtype,
    canonical_dtype,
    is_complex,
    is_floating,
    is_integer,
    kind,
    real_dtype,
)
from functx.core.typing import (
    ArrayLike,
    Axes,
    Cotangents,
    Dim,
    DTypeLike,
    IRValue,
    IRValues,
    Mask,
    NumPyArray,
    Tangent,
    Value,
    Values,
)
from functx.ops.arithmetic import complex_max, complex_min
from functx.ops.families import Linear, check_same_dtype
from functx.ops.operands import (
    RewriteContext,
    Simplified,
    canonical_axes,
    canonical_axis,
    check_axes,
    has_exact_arithmetic,
    identity_result,
    tuple_delete,
)

if TYPE_CHECKING:
    from functx.lowering.stablehlo_emitter import LoweringContext


class Reduction(HasNewStrides, abstract=True):
    """The combination of the elements of one operand over `axes`, which leave the shape."""

    axes: tuple[int, ...]
    memory_order = MemoryOrder.OPERANDS
    accepts: ClassVar[str] = "iufc"

    @classmethod
    def from_jax_params(cls, axes: Sequence[int], **_: object) -> Reduction:
        return cls(tuple(map(int, axes)))

    def abstract_eval(self, x: ShapedArray) -> ShapedArray:
        check_same_dtype(self, (x,))
        check_axes(self.name, self.axes, x.ndim)
        return x.update(shape=tuple_delete(x.shape, self.axes))

    def new_strides(
        self, avals: Sequence[ShapedArray], strides: Sequence[Strides], shape: tuple[int, ...]
    ) -> Strides:
        return strides_in_order(shape, [tuple_delete(strides[0], self.axes)])

    def index_sets(self, sets: IndexSets, *operands: DependentOperand) -> Sets:
        return sets.union_along(operands[0].sets, self.axes)

    def as_reshape(self, x: Atom) -> Simplified:
        """A reshape of `x` to the output, if all reduced dimensions have length 1; else None."""
        if any([x.aval.shape[a] != 1 for a in self.axes]):
            return None
        return ops.Reshape(tuple_delete(x.aval.shape, self.axes)), [x]

    def batch(self, args: Values, dims: Sequence[int]) -> tuple[Value, Dim]:
        (x,), (dim,) = args, dims
        axes, out_dim = shift_reduced_axes(self.axes, dim)
        return self.replace(axes=axes)(x), out_dim

    def cotangent_masks(self, mask: Mask, args: Values) -> Sequence[Mask]:
        (x,) = args
        out_shape = tuple_delete(x.shape, self.axes)
        return [mask if mask is None or mask.shape != out_shape else self.broadcast_back(mask, x)]

    def broadcast_back(self, out: Value, x: Value) -> Value:
        """`out`, of the reduced shape, repeated along the reduced axes of `x`."""
        return ops.broadcast_in_dim(out, x.shape, tuple_delete(range(x.ndim), self.axes))


class ReduceSum(Reduction, Linear):
    """Sum over `axes`; the summed axes leave the shape."""

    is_element_mapping = True
    rounding = Rounding(is_componentwise=True)
    samples = (
        sample(f32[3, 4], axes=(0,)),
        sample(f32[2, 3, 4], axes=(0, 2)),
        sample(c64[3], axes=(0,)),
    )

    def transpose(self, ct: Value, x: Value) -> Cotangents:
        return (self.broadcast_back(ct, x),)

    def tangent_mask(self, masks: Sequence[Mask], args: Values) -> Mask:
        (mask,) = masks
        return mask if mask is None or not mask.shape else reduce_or(mask, self.axes)

    def simplify(self, context: RewriteContext, x: Atom) -> Simplified:
        # The sum of one float starts from +0, so -0 becomes +0.
        return self.as_reshape(x) if has_exact_arithmetic(x) else None

    def numpy(self, x: NumPyArray) -> ArrayLike:
        return np.sum(x, self.axes, x.dtype)

    def lower(self, ctx: LoweringContext, x: IRValue) -> IRValue:
        return ctx.reduce(
            stablehlo.AddOp, x, self.axes, 0, accumulation_dtype(ctx.avals_in[0].dtype)
        )


class ReduceProd(Reduction):
    """Product over `axes`; the multiplied axes leave the shape."""

    samples = (
        sample(f32[3, 4], axes=(0,)),
        sample(f32[2, 3, 4], axes=(0, 2)),
        sample(f32[4], axes=(0,), values={0: [2.0, 0.0, 3.0, 0.0]}),
        sample(c64[3], axes=(0,)),
    )

    def jvp(self, primals: Values, tangents: Values) -> tuple[Value, Tangent]:
        (x,), (t,) = primals, tangents
        return self(x), reduce_sum(ops.mul(t, self.products_of_others(x)), self.axes)

    def vjp(self, ct: Value, out: Value, args: Values, active: Sequence[bool]) -> Cotangents:
        (x,) = args
        return (ops.mul(self.broadcast_back(ct, x), self.products_of_others(x)),)

    def products_of_others(self, x: Value) -> Value:
        """The product of the other elements, for each element; without division, right for zeros too."""
        kept_dims = tuple_delete(range(x.ndim), self.axes)
        order = (*kept_dims, *self.axes)
        lead = tuple([x.shape[d] for d in kept_dims])
        n = prod([x.shape[d] for d in self.axes])
        if x.size == 0 or n == 1:
            return ops.constant_like(x, 1)
        rows = ops.reshape(ops.permute_dims(x, order), (*lead, n))
        no_padding = [(0, 0, 0)] * len(lead)
        before = ops.pad(ops.cumprod(rows, len(lead)), 1, [*no_padding, (1, -1, 0)])
        after = ops.pad(ops.cumprod(rows, len(lead), reverse=True), 1, [*no_padding, (-1, 1, 0)])
        broadcast_mask = ops.reshape(ops.mul(before, after), tuple([x.shape[d] for d in order]))
        return ops.permute_dims(broadcast_mask, tuple([order.index(d) for d in range(x.ndim)]))

    def simplify(self, context: RewriteContext, x: Atom) -> Simplified:
        return self.as_reshape(x)

    def numpy(self, x: NumPyArray) -> ArrayLike:
        return np.prod(x, self.axes, x.dtype)

    def lower(self, ctx: LoweringContext, x: IRValue) -> IRValue:
        return ctx.reduce(
            stablehlo.MulOp, x, self.axes, 1, accumulation_dtype(ctx.avals_in[0].dtype)
        )


class ReduceExtremum(Reduction, abstract=True):
    """The largest or smallest element over `axes`; elements that tie share the derivative.

    Without `keeps_nan`, it may ignore elements that are nan, which is faster on a CPU.
    """

    keeps_nan: bool = True
    rounding = EXACT
    has_finite_derivative = True
    accepts = "biufc"
    samples = (
        sample(f32[3, 4], axes=(0,), distinct=True),
        sample(f32[2, 3, 4], axes=(0, 2), distinct=True),
        sample(f32[4], axes=(0,), values={0: [2.0] * 4}, gradients={0: [0.25] * 4}),
        sample(i32[3, 4], axes=(1,)),
        sample(bool_[3, 4], axes=(1,)),
    )

    def jvp(self, primals: Values, tangents: Values) -> tuple[Value, Tangent]:
        (x,), (t,) = primals, tangents
        out = self(x)
        if out.size == 0 or x.size == 0:
            return out, None
        is_extremum = ops.eq(x, self.broadcast_back(out, x))
        total = reduce_sum(ops.select(is_extremum, t, ops.zeros_like(t)), self.axes)
        return out, ops.mul(total, self.tie_weight(is_extremum, x.dtype))

    def vjp(self, ct: Value, out: Value, args: Values, active: Sequence[bool]) -> Cotangents:
        (x,) = args
        if x.size == 0:
            return (ops.zeros_like(x),)
        is_extremum = ops.eq(x, self.broadcast_back(out, x))
        ct = self.broadcast_back(ops.mul(ct, self.tie_weight(is_extremum, x.dtype)), x)
        return (ops.select(is_extremum, ct, ops.zeros_like(ct)),)

    def tangent_mask(self, masks: Sequence[Mask], args: Values) -> Mask:
        (x,), (mask,) = args, masks
        if mask is None or x.size == 0:
            return None
        is_extremum = ops.eq(x, self.broadcast_back(self(x), x))
        return reduce_or(ops.bitwise_and(is_extremum, mask), self.axes)

    def cotangent_masks(self, mask: Mask, args: Values) -> Sequence[Mask]:
        (x,) = args
        if x.size == 0:
            return [None]
        is_extremum = ops.eq(x, self.broadcast_back(self(x), x))
        (broadcast_mask,) = super().cotangent_masks(mask, args)
        return [
            is_extremum
            if broadcast_mask is None
            else ops.bitwise_and(is_extremum, ops.instantiate_mask(broadcast_mask, x.shape))
        ]

    def tie_weight(self, is_extremum: Value, dtype: DType) -> Value:
        """One over the number of elements that tie, counted in single precision for half floats."""
        count_dtype = real_dtype(dtype) if dtype.itemsize > 2 else np.dtype("float32")
        count = reduce_sum(ops.convert_element_type(is_extremum, count_dtype), self.axes)
        return ops.convert_element_type(ops.div(1.0, count), dtype)

    def simplify(self, context: RewriteContext, x: Atom) -> Simplified:
        return self.as_reshape(x)

    def lower_extremum(
        self,
        ctx: LoweringContext,
        x: IRValue,
        operation: Callable[..., ir.OpView],
        fallback: Callable[[Value, Value], Value],
        start: complex,
    ) -> IRValue:
        # StableHLO does not order complex numbers, and JAX starts from an infinity without imaginary part.
        if is_complex(dtype := ctx.avals_in[0].dtype):
            first = np.asarray(start, dtype)
            return ctx.via_jax(lambda x: lax.reduce(x, first, fallback, self.axes), x)
        extremum = ctx.reduce(operation, x, self.axes, start)
        if not self.keeps_nan or not may_leave_out_nans(ctx):
            return extremum
        return self.with_nans(ctx, x, extremum)

    def with_nans(self, ctx: LoweringContext, x: IRValue, extremum: IRValue) -> IRValue:
        """`extremum`, but nan where one of its elements is nan."""
        (operand,), (out,) = ctx.avals_in, ctx.avals_out
        is_nan = ctx.compare(x, x, "NE", operand)
        nans = stablehlo.select(is_nan, x, ctx.constant(0, operand))
        total = ctx.reduce(stablehlo.AddOp, nans, self.axes, 0)
        return stablehlo.select(ctx.compare(total, total, "NE", out), total, extremum)


def may_leave_out_nans(ctx: LoweringContext) -> bool:
    """Whether XLA may compute an extremum of the operand by a library for CPUs that leaves out nans."""
    (operand,) = ctx.avals_in
    # It takes no floats of one byte, some of which have no zero.
    is_taken = is_floating(operand.dtype) and operand.dtype.itemsize > 1
    return is_taken and operand.size >= 1024 and "cpu" in ctx.platforms


class ReduceMax(ReduceExtremum):
    """The largest element over `axes`, which leave the shape; nan if there is one and `keeps_nan`."""

    def lower(self, ctx: LoweringContext, x: IRValue) -> IRValue:
        start = lowest(ctx.avals_in[0].dtype)
        return self.lower_extremum(ctx, x, stablehlo.MaxOp, complex_max, start)


class ReduceMin(ReduceExtremum):
    """The smallest element over `axes`, which leave the shape; nan if there is one and `keeps_nan`."""

    def lower(self, ctx: LoweringContext, x: IRValue) -> IRValue:
        start = highest(ctx.avals_in[0].dtype)
        return self.lower_extremum(ctx, x, stablehlo.MinOp, complex_min, start)


class BitwiseReduction(Reduction, abstract=True):
    """A bitwise operation over `axes` of booleans or integers."""

    differentiable = False
    accepts = "biu"
    samples = (
        sample(bool_[3, 4], axes=(0,)),
        sample(i32[2, 3, 4], axes=(0, 2)),
        sample(u32[3], axes=(0,)),
    )

    def simplify(self, context: RewriteContext, x: Atom) -> Simplified:
        return self.as_reshape(x)


class ReduceAnd(BitwiseReduction, HasHostKernel):
    """Bitwise and over `axes`, which leave the shape."""

    def numpy(self, x: NumPyArray) -> ArrayLike:
        return np.bitwise_and.reduce(x, self.axes)

    host_kernel = numpy

    def lower(self, ctx: LoweringContext, x: IRValue) -> IRValue:
        dtype = ctx.avals_in[0].dtype
        ones = -1 if kind(dtype) == "i" else highest(dtype)
        return ctx.reduce(stablehlo.AndOp, x, self.axes, ones)


class ReduceOr(BitwiseReduction, HasHostKernel):
    """Bitwise or over `axes`, which leave the shape."""

    def numpy(self, x: NumPyArray) -> ArrayLike:
        return np.bitwise_or.reduce(x, self.axes)

    host_kernel = numpy

    def lower(self, ctx: LoweringContext, x: IRValue) -> IRValue:
        return ctx.reduce(stablehlo.OrOp, x, self.axes, 0)


class ReduceXor(BitwiseReduction):
    """Bitwise exclusive or over `axes`, which leave the shape."""

    def numpy(self, x: NumPyArray) -> ArrayLike:
        return np.bitwise_xor.reduce(x, self.axes)

    def lower(self, ctx: LoweringContext, x: IRValue) -> IRValue:
        return ctx.reduce(stablehlo.XorOp, x, self.axes, 0)


_MIN_VECTORIZED = 1 << 14
"""The fewest elements for which two vectorized reductions are faster than one of pairs of value and position."""


class ArgExtremum(Primitive, abstract=True):
    """The position along `axis` of the first extremum, or of the first nan."""

    axis: int
    index_dtype: DType
    differentiable = False
    accepts: ClassVar[str] = "biuf"
    direction: ClassVar[str]
    """The comparison by which an element replaces another."""
    samples = (
        sample(f32[3, 4], axis=0, index_dtype=np.dtype("int32")),
        sample(i32[2, 3, 4], axis=2, index_dtype=np.dtype("int32")),
        sample(bool_[5], axis=0, index_dtype=np.dtype("uint32")),
        sample(
            f32[3],
            axis=0,
            index_dtype=np.dtype("int32"),
            values={0: [1.0, np.nan, 2.0]},
            dtypes=("f32", "bf16", "f16"),
        ),
    )

    @classmethod
    def from_jax_params(cls, axes: Sequence[int], index_dtype: DType) -> ArgExtremum:
        (axis,) = axes
        return cls(int(axis), np.dtype(index_dtype))

    def abstract_eval(self, x: ShapedArray) -> ShapedArray:
        check_same_dtype(self, (x,))
        check_axes(self.name, self.axis, x.ndim)
        size, dtype = x.shape[self.axis], canonical_dtype(self.index_dtype)
        if size == 0:
            raise ShapeError(
                f"{self.name}: the axis must not be empty; got {x!r}, axis {self.axis}"
            )
        if not is_integer(dtype) or size - 1 > ml_dtypes.iinfo(dtype).max:
            raise DTypeError(f"{self.name}: the index dtype must hold {size - 1}; got {dtype}")
        return ShapedArray(tuple_delete(x.shape, (self.axis,)), dtype)

    def batch(self, args: Values, dims: Sequence[int]) -> tuple[Value, Dim]:
        (x,), (dim,) = args, dims
        (axis,), out_dim = shift_reduced_axes((self.axis,), dim)
        return type(self)(axis, self.index_dtype)(x), out_dim

    def lower(self, ctx: LoweringContext, x: IRValue) -> IRValue:
        (operand,), (out,) = ctx.avals_in, ctx.avals_out
        is_large = _MIN_VECTORIZED <= operand.size < 1 << 31
        if is_large and tuple(ctx.platforms) == ("cpu",):
            return ctx.via_jax(self.first_extremum, x)
        value, index = ShapedArray((), operand.dtype), ShapedArray((), out.dtype)
        worst = lowest(operand.dtype) if self.direction == "GT" else highest(operand.dtype)
        positions = stablehlo.iota(ctx.type(operand.update(dtype=out.dtype)), self.axis)
        starts = [ctx.constant(worst, value), ctx.constant(0, index)]
        result_types = [ctx.type(out.update(dtype=operand.dtype)), ctx.type(out)]
        op = stablehlo.ReduceOp(result_types, [x, positions], starts, ctx.i64_array((self.axis,)))
        types = [ctx.type(value), ctx.type(index)]
        block = op.regions[0].blocks.append(*types, *types)
        with ir.InsertionPoint(block):
            stablehlo.return_(
                select_first_extremum(ctx, self.direction, block.arguments, value, index)
            )
        return op.results[1]

    def first_extremum(self, x: Value) -> Value:
        """The first position of the extremum of an array of JAX, by reductions that XLA vectorizes."""
        better, start = (lax.max, lowest) if self.direction == "GT" else (lax.min, highest)
        extremum = lax.reduce(x, np.asarray(start(x.dtype), x.dtype), better, (self.axis,))
        extremum = lax.expand_dims(extremum, (self.axis,))
        size, dtype = x.shape[self.axis], canonical_dtype(self.index_dtype)
        # Positions of nans are negative and come first: the extremum may be that of the other elements.
        positions = lax.broadcasted_iota(np.int32, x.shape, self.axis)
        found = lax.select(x == extremum, positions, lax.full_like(positions, size))
        first = lax.reduce_min(lax.select(x != x, positions - size, found), (self.axis,))
        return lax.convert_element_type(lax.select(first < 0, first + size, first), dtype)


class ArgMax(ArgExtremum):
    """The position of the first largest element along `axis`, or of the first nan."""

    name = "argmax"
    direction = "GT"

    def numpy(self, x: NumPyArray) -> ArrayLike:
        return np.argmax(x, self.axis).astype(self.index_dtype)


class ArgMin(ArgExtremum):
    """The position of the first smallest element along `axis`, or of the first nan."""

    name = "argmin"
    direction = "LT"

    def numpy(self, x: NumPyArray) -> ArrayLike:
        return np.argmin(x, self.axis).astype(self.index_dtype)


def select_first_extremum(
    ctx: LoweringContext, direction: str, pairs: IRValues, value: ShapedArray, index: ShapedArray
) -> list[IRValue]:
    """The better of two pairs (value, index): nan is best, and the first of equal values.

    `direction` is the comparison by which a value is better.
    """
    a, i, b, j = pairs
    is_left = ctx.compare(a, b, direction, value)
    is_decided: IRValue
    if is_floating(value.dtype):
        opposite = "LT" if direction == "GT" else "GT"
        is_right = stablehlo.or_(ctx.compare(a, b, opposite, value), ctx.compare(b, b, "NE", value))
        is_left = stablehlo.or_(is_left, ctx.compare(a, a, "NE", value))
        is_decided = stablehlo.xor(is_left, is_right)
    else:
        is_decided = ctx.compare(a, b, "NE", value)
    first = stablehlo.select(is_decided, is_left, ctx.compare(i, j, "LT", index))
    return [stablehlo.select(is_left, a, b), stablehlo.select(first, i, j)]


def lowest(dtype: DType) -> complex:
    """The lowest number of `dtype`: minus infinity if it has one, as in `highest`."""
    if kind(dtype) == "b":
        return False
    if is_integer(dtype):
        return int(ml_dtypes.iinfo(dtype).min)
    most = highest(dtype)
    return -most if is_complex(dtype) or most == np.inf else float(ml_dtypes.finfo(dtype).min)


def highest(dtype: DType) -> complex:
    """The highest number of `dtype`: infinity if it has one, of complex ones with both parts infinite."""
    if kind(dtype) == "b":
        return True
    if is_complex(dtype):
        return complex(np.inf, np.inf)
    if is_integer(dtype):
        return int(ml_dtypes.iinfo(dtype).max)
    infinite = np.isinf(np.asarray(np.inf).astype(dtype))
    return np.inf if infinite else float(ml_dtypes.finfo(dtype).max)


def shift_reduced_axes(axes: tuple[int, ...], dim: int) -> tuple[tuple[int, ...], int]:
    """The axes of a reduction after a batch dimension `dim` is inserted, and its position in the result."""
    axes = tuple([a + (a >= dim) for a in axes])
    return axes, dim - sum([a < dim for a in axes])


def _bind_reduction(reduction: type[Reduction], x: ArrayLike, axes: Axes) -> Value:
    axes = canonical_axes(axes, aval_of(x).ndim)
    return reduction(axes)(x) if axes else identity_result(x)


def reduce_sum(operand: ArrayLike, axes: Axes = None) -> Value:
    """The sum over `axes`, by default all, which leave the shape."""
    return _bind_reduction(ReduceSum, operand, axes)


def reduce_prod(operand: ArrayLike, axes: Axes = None) -> Value:
    """The product over `axes`, by default all, which leave the shape."""
    return _bind_reduction(ReduceProd, operand, axes)


def reduce_max(operand: ArrayLike, axes: Axes = None) -> Value:
    """The largest element over `axes`, by default all, which leave the shape.

    Complex numbers are ordered by their real, then their imaginary parts.
    """
    return _bind_reduction(ReduceMax, operand, axes)


def shift_of_exponentials(x: Value, axes: Shape) -> Value:
    """The largest element over `axes`, to be subtracted before `exp`.

    It may ignore elements that are nan: their exponentials are nan anyway.
    """
    return ReduceMax(axes, keeps_nan=False)(x) if axes else x


def reduce_min(operand: ArrayLike, axes: Axes = None) -> Value:
    """The smallest element over `axes`, by default all, which leave the shape.

    Complex numbers are ordered by their real, then their imaginary parts.
    """
    return _bind_reduction(ReduceMin, operand, axes)


def reduce_and(operand: ArrayLike, axes: Axes = None) -> Value:
    """Bitwise and of booleans or integers over `axes`, by default all."""
    return _bind_reduction(ReduceAnd, operand, axes)


def reduce_or(operand: ArrayLike, axes: Axes = None) -> Value:
    """Bitwise or of booleans or integers over `axes`, by default all."""
    return _bind_reduction(ReduceOr, operand, axes)


def reduce_xor(operand: ArrayLike, axes: Axes = None) -> Value:
    """Bitwise exclusive or of booleans or integers over `axes`, by default all."""
    return _bind_reduction(ReduceXor, operand, axes)


def argmax(operand: ArrayLike, axis: int, index_dtype: DTypeLike) -> Value:
    """The index along `axis` of the first largest element, or of the first nan, in `index_dtype`."""
    return ArgMax(canonical_axis(axis, aval_of(operand).ndim), canonical_dtype(index_dtype))(
        operand
    )


def argmin(operand: ArrayLike, axis: int, index_dtype: DTypeLike) -> Value:
    """The index along `axis` of the first smallest element, or of the first nan, in `index_dtype`."""
    return ArgMin(canonical_axis(axis, aval_of(operand).ndim), canonical_dtype(index_dtype))(
        operand
    )
