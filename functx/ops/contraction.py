"""Contractions: the general dot product, its precision, and the Fourier transform."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import numpy as np
from jax import lax
from jax import numpy as jnp
from jax.extend.mlir.dialects import stablehlo
from jax.lax import FftType
from jax.lax import Precision as Precision

from functx import ops
from functx.core.errors import ArgumentError, DTypeError, ShapeError, ValueRangeError
from functx.core.index_sets import DependentOperand, IndexSets, Sets
from functx.core.program import Atom
from functx.core.samples import c64, f32, sample
from functx.core.strides import MemoryOrder
from functx.core.tracer import aval_of
from functx.core.types import (
    DType,
    ShapedArray,
    canonical_dtype,
    complex_dtype,
    inexact_dtype,
    is_complex,
    promote_types,
    real_dtype,
)
from functx.core.typing import (
    ArrayLike,
    Cotangents,
    Dim,
    DTypeLike,
    IRValue,
    NumPyArray,
    Value,
    Values,
)
from functx.ops.families import Bilinear, Linear, MapsLastDims, check_same_dtype
from functx.ops.operands import (
    Dims,
    Simplified,
    as_int,
    canonical_axis_sequence,
    cast_like,
    check_axes,
    shift_dims,
    tuple_delete,
)

if TYPE_CHECKING:
    from functx.lowering.stablehlo_emitter import LoweringContext


class DotGeneral(Bilinear):
    """The sum of products over `contracting_dims`, for each index of `batch_dims`.

    Both hold dimensions of the left and of the right operand. The result has the batch dimensions, then
    the other dimensions of the left operand, then those of the right one.
    """

    contracting_dims: tuple[Dims, Dims]
    batch_dims: tuple[Dims, Dims] = ((), ())
    precision: tuple[str, str] | None = None
    preferred_element_type: DType | None = None
    accepts: ClassVar[str] = "biufc"
    samples = (
        sample(f32[3, 4], f32[4, 5], contracting_dims=((1,), (0,))),
        sample(f32[2, 3, 4], f32[2, 4, 5], contracting_dims=((2,), (1,)), batch_dims=((0,), (0,))),
        sample(
            f32[3, 4, 2], f32[4, 2, 3], contracting_dims=((1,), (0,)), batch_dims=((2, 0), (1, 2))
        ),
        sample(f32[3], f32[4], contracting_dims=((), ())),
    )

    def abstract_eval(self, x: ShapedArray, y: ShapedArray) -> ShapedArray:
        check_same_dtype(self, (x, y))
        check_axes(self.name, self.contracting_dims[0] + self.batch_dims[0], x.ndim)
        check_axes(self.name, self.contracting_dims[1] + self.batch_dims[1], y.ndim)
        for name, (left, right) in (
            ("contracting", self.contracting_dims),
            ("batch", self.batch_dims),
        ):
            a, b = [x.shape[d] for d in left], [y.shape[d] for d in right]
            if a != b:
                raise ShapeError(
                    f"dot_general: {name} dimensions must have one size; got {x!r} along {left} "
                    f"({a}) and {y!r} along {right} ({b})"
                )
        shape = (
            *[x.shape[d] for d in self.batch_dims[0]],
            *tuple_delete(x.shape, self.contracting_dims[0] + self.batch_dims[0]),
            *tuple_delete(y.shape, self.contracting_dims[1] + self.batch_dims[1]),
        )
        dtype = self.preferred_element_type or x.dtype
        return ShapedArray(shape, dtype, x.weak_type and y.weak_type)

    def index_sets(self, sets: IndexSets, *operands: DependentOperand) -> Sets:
        sides = []
        for k, x in enumerate(operands):
            summed, batch = self.contracting_dims[k], self.batch_dims[k]
            if x.sets is not None:
                free = tuple_delete(range(x.aval.ndim), (*summed, *batch))
                last = np.transpose(x.sets, (*batch, *free, *summed))
                side: Any = sets.union_along(last, range(x.aval.ndim - len(summed), x.aval.ndim))
                others = operands[1 - k].aval.ndim - len(summed) - len(batch)
                lead = len(batch) if k else side.ndim
                ones = [1] * others
                sides.append(side.reshape((*side.shape[:lead], *ones, *side.shape[lead:])))
        return sets.union(*sides)

    def lhs_cotangent(self, ct: Value, x: Value, y: Value) -> Value:
        # ct contracted with y over the dimensions that only y has.
        return self._operand_cotangent(ct, x, y, tuple(range(ct.ndim)))

    def rhs_cotangent(self, ct: Value, x: Value, y: Value) -> Value:
        # That of the left operand of the product with exchanged operands.
        (xc, yc), (xb, yb) = self.contracting_dims, self.batch_dims
        flipped = self._with_dims((yc, xc), (yb, xb))
        nb, nx = len(xb), x.ndim - len(xc) - len(xb)
        position = (*range(nb), *range(nb + nx, ct.ndim), *range(nb, nb + nx))
        return flipped._operand_cotangent(ct, y, x, position)

    def _operand_cotangent(self, ct: Value, x: Value, y: Value, position: Dims) -> Value:
        """The cotangent of x; dimension i of the product is dimension `position[i]` of ct."""
        (xc, yc), (xb, yb) = self.contracting_dims, self.batch_dims
        y_free = tuple_delete(range(y.ndim), yc + yb)
        ct_y = position[len(position) - len(y_free) :]
        # Both products below have the batch dimensions first, then the dimensions that only x has and
        # y's contracted ones, in either order; the better one needs no permutation.
        x_free = tuple_delete(range(x.ndim), xc + xb)
        from_y = tuple([xc[i] for i in _argsort(yc)])
        y = cast_like(y, ct)
        ct_b = position[: len(xb)]
        straight = (*xb, *x_free, *from_y)
        if straight != tuple(range(x.ndim)) == (*xb, *from_y, *x_free):
            return self._with_dtype_of(x, (y_free, ct_y), (yb, ct_b))(y, ct)
        dx = self._with_dtype_of(x, (ct_y, y_free), (ct_b, yb))(ct, y)
        return ops.permute_dims(dx, _inverse_permutation(straight))

    def _with_dtype_of(
        self, x: Value, contract: tuple[Dims, Dims], batched: tuple[Dims, Dims]
    ) -> DotGeneral:
        wide = self.preferred_element_type is not None
        return DotGeneral(contract, batched, self.precision, x.dtype if wide else None)

    def batch(self, args: Values, dims: Sequence[Any]) -> tuple[Value, Dim]:
        (x, y), (dx, dy) = args, dims
        (xc, yc), (xb, yb) = self.contracting_dims, self.batch_dims
        nb = len(xb)
        if dx is not None and dy is not None:
            shift = [shift_dims(group, d) for group, d in ((xc, dx), (yc, dy), (xb, dx), (yb, dy))]
            batched = ((dx, *shift[2]), (dy, *shift[3]))
            return self._with_dims((shift[0], shift[1]), batched)(x, y), 0
        if dx is not None:
            free = tuple_delete(range(x.ndim), (*shift_dims(xc, dx), *shift_dims(xb, dx)))
            product = self._with_dims((shift_dims(xc, dx), yc), (shift_dims(xb, dx), yb))
            return product(x, y), nb + free.index(dx)
        free = tuple_delete(range(y.ndim), (*shift_dims(yc, dy), *shift_dims(yb, dy)))
        if free == (dy,):
            # A product with many vectors: as rows of the result, each is in one piece.
            return self._with_operands_swapped(shift_dims(yc, dy), shift_dims(yb, dy))(y, x), nb
        product = self._with_dims((xc, shift_dims(yc, dy)), (xb, shift_dims(yb, dy)))
        return product(x, y), x.ndim - len(xc) + free.index(dy)

    def _with_operands_swapped(self, contract: Dims, batched: Dims) -> DotGeneral:
        """The product of `y`, with these dimensions, and `x`."""
        precision = None if self.precision is None else self.precision[::-1]
        dims = (contract, self.contracting_dims[0]), (batched, self.batch_dims[0])
        return DotGeneral(*dims, precision, self.preferred_element_type)

    def _with_dims(self, contract: tuple[Dims, Dims], batched: tuple[Dims, Dims]) -> DotGeneral:
        return DotGeneral(contract, batched, self.precision, self.preferred_element_type)

    def transposed_product(self, axes: Dims, x: Atom, y: Atom) -> Simplified:
        """The product with its dimensions permuted by `axes`, as a primitive and its operands.

        None if no order of the operands and of their batch dimensions gives it.
        """
        (xc, yc), (xb, yb) = self.contracting_dims, self.batch_dims
        batch = len(xb)
        x_free = range(batch, batch + x.aval.ndim - len(xc) - batch)
        y_free = range(x_free.stop, len(axes))
        if sorted(axes[:batch]) != list(range(batch)):
            return None
        batched = tuple([xb[i] for i in axes[:batch]]), tuple([yb[i] for i in axes[:batch]])
        if axes[batch:] == (*x_free, *y_free):
            return self._with_dims(self.contracting_dims, batched), [x, y]
        if axes[batch:] == (*y_free, *x_free):
            return self._with_dims((yc, xc), batched[::-1]), [y, x]
        return None

    def lower(self, ctx: LoweringContext, x: IRValue, y: IRValue) -> IRValue:
        (xc, yc), (xb, yb) = self.contracting_dims, self.batch_dims
        if not xc and xb and ctx.platforms == ("cpu",):
            return self.lower_outer(ctx, x, y)
        numbers = stablehlo.DotDimensionNumbers.get(
            lhs_batching_dimensions=xb,
            rhs_batching_dimensions=yb,
            lhs_contracting_dimensions=xc,
            rhs_contracting_dimensions=yc,
        )
        return stablehlo.dot_general(
            ctx.out_types[0], x, y, numbers, precision_config=ctx.precision(self.precision)
        )

    def lower_outer(self, ctx: LoweringContext, x: IRValue, y: IRValue) -> IRValue:
        """The product without contraction, as broadcasts, which are fastest in XLA's CPU loops."""
        out = ctx.avals_out[0]
        batched = len(self.batch_dims[0])
        x_free = ctx.avals_in[0].ndim - batched
        parts = []
        for v, aval, dims, start in zip(
            (x, y), ctx.avals_in, self.batch_dims, (batched, batched + x_free), strict=True
        ):
            free = tuple_delete(range(aval.ndim), dims)
            places = (*range(batched), *range(start, start + len(free)))
            moved = stablehlo.transpose(v, ctx.i64_array((*dims, *free)))
            wide = stablehlo.broadcast_in_dim(
                ctx.type(aval.update(shape=out.shape)), moved, ctx.i64_array(places)
            )
            parts.append(ctx.convert(wide, aval, out))
        return stablehlo.multiply(*parts)


def _argsort(dims: Dims) -> list[int]:
    return sorted(range(len(dims)), key=dims.__getitem__)


def _inverse_permutation(order: Dims) -> Dims:
    return tuple([order.index(i) for i in range(len(order))])


def dot_general(
    lhs: ArrayLike,
    rhs: ArrayLike,
    dimension_numbers: lax.DotDimensionNumbers,
    precision: PrecisionLike = None,
    preferred_element_type: DTypeLike = None,
) -> Value:
    """The sum of products over contracting dimensions, for each index of the batch dimensions.

    `dimension_numbers` is `((lhs_contracting, rhs_contracting), (lhs_batch, rhs_batch))`. The
    result has the batch dimensions, then the other dimensions of `lhs`, then those of `rhs`. Operands
    of two dtypes are promoted to one.
    """
    try:
        (left, right), (left_batch, right_batch) = dimension_numbers
    except (TypeError, ValueError):
        raise ArgumentError(
            "dot_general: dimension_numbers must be ((lhs_contracting, rhs_contracting), "
            f"(lhs_batch, rhs_batch)); got {dimension_numbers!r}"
        ) from None
    n, m = aval_of(lhs).ndim, aval_of(rhs).ndim
    left, left_batch = (
        canonical_axis_sequence(d, n, "dot_general: lhs dimensions") for d in (left, left_batch)
    )
    right, right_batch = (
        canonical_axis_sequence(d, m, "dot_general: rhs dimensions") for d in (right, right_batch)
    )
    dtype = None if preferred_element_type is None else canonical_dtype(preferred_element_type)
    product = DotGeneral(
        (left, right), (left_batch, right_batch), canonical_precision(precision), dtype
    )
    out = product(*promote_operands(lhs, rhs))
    return out if dtype is None else ops.convert_element_type(out, dtype)


def promote_operands(lhs: ArrayLike, rhs: ArrayLike) -> tuple[ArrayLike, ArrayLike]:
    """The operands, converted to one dtype if they have two that promote to one."""
    x, y = aval_of(lhs), aval_of(rhs)
    promoted = None
    if x.dtype != y.dtype:
        promoted = promote_types(((x.dtype, x.weak_type), (y.dtype, y.weak_type)))
    if promoted is None:
        return lhs, rhs
    dtype, _ = promoted
    return ops.convert_element_type(lhs, dtype), ops.convert_element_type(rhs, dtype)


def dot(
    lhs: ArrayLike,
    rhs: ArrayLike,
    *,
    dimension_numbers: lax.DotDimensionNumbers | None = None,
    precision: PrecisionLike = None,
    preferred_element_type: DTypeLike = None,
) -> Value:
    """The product of two vectors or matrices, or `dot_general` with `dimension_numbers`.

    Raises ShapeError for operands of other ranks without `dimension_numbers`.
    """
    if dimension_numbers is None:
        n, m = aval_of(lhs).ndim, aval_of(rhs).ndim
        if n not in (1, 2) or m not in (1, 2):
            raise ShapeError(
                "dot: operands must be vectors or matrices where no dimension_numbers are given; "
                f"got {aval_of(lhs)!r} and {aval_of(rhs)!r}"
            )
        dimension_numbers = (((n - 1,), (0,)), ((), ()))
    return dot_general(lhs, rhs, dimension_numbers, precision, preferred_element_type)


def batch_matmul(lhs: ArrayLike, rhs: ArrayLike, precision: PrecisionLike = None) -> Value:
    """The matrix products of the last two dimensions, for each index of the others."""
    x, y = aval_of(lhs), aval_of(rhs)
    if x.ndim != y.ndim or x.ndim < 2 or x.shape[:-2] != y.shape[:-2]:
        raise ShapeError(
            "batch_matmul: operands must be matrices, or stacks of them of one shape; "
            f"got {x!r} and {y!r}"
        )
    batch = tuple(range(x.ndim - 2))
    numbers = ((x.ndim - 1,), (x.ndim - 2,)), (batch, batch)
    return dot_general(lhs, rhs, numbers, precision)


def matmul(x: ArrayLike, y: ArrayLike) -> Value:
    """The matrix product of two matrices."""
    return DotGeneral(((1,), (0,)))(x, y)


_PRECISION_NAMES = {
    "default": "DEFAULT",
    "fastest": "DEFAULT",
    "bfloat16": "DEFAULT",
    "high": "HIGH",
    "tensorfloat32": "HIGH",
    "bfloat16_3x": "HIGH",
    "highest": "HIGHEST",
    "float32": "HIGHEST",
}


PrecisionLike: TypeAlias = str | Precision | tuple[Any, Any] | None
"""A precision of products as users give it: one for both operands, or a pair."""


def canonical_precision(precision: PrecisionLike) -> tuple[str, str] | None:
    """`precision`, one for both operands or a pair, as `DotGeneral` takes it.

    Each is None, a member of `Precision`, or its name.
    """
    if precision is None:
        return None
    if isinstance(precision, (tuple, list)) and len(precision) == 2:
        left, right = (_precision_name(p) for p in precision)
        return left, right
    return _precision_name(precision), _precision_name(precision)


def _precision_name(precision: PrecisionLike) -> str:
    if precision is None:
        return "DEFAULT"
    name = getattr(precision, "name", precision)
    found = _PRECISION_NAMES.get(name.lower()) if isinstance(name, str) else None
    if found is None:
        raise ValueRangeError(
            "precision must be None, 'default', 'high' or 'highest', a member of "
            f"functx.lax.Precision, or a pair of those; got {precision!r}"
        )
    return found


_MAX_XLA_NDIM = 3


class Fft(MapsLastDims, Linear):
    """The discrete Fourier transform over the last `ndim` dimensions, or its inverse."""

    ndim: int = 1
    inverse: bool = False
    memory_order = MemoryOrder.OPERANDS
    samples = (
        sample(c64[3, 4]),
        sample(c64[5], inverse=True),
        sample(c64[2, 3, 4], ndim=2),
        sample(c64[2, 3, 2, 2, 3], ndim=5),
    )

    def abstract_eval(self, x: ShapedArray) -> ShapedArray:
        if not is_complex(x.dtype):
            raise DTypeError(f"fft: the operand must be complex; got {x!r}", fix="Convert it.")
        check_fft_shape(self.name, x, self.ndim)
        return x

    def index_sets(self, sets: IndexSets, *operands: DependentOperand) -> Sets:
        return sets.union_along(operands[0].sets, range(-self.ndim, 0), keepdims=True)

    def transpose(self, ct: Value, x: Value) -> Cotangents:
        # The matrix of the transform is symmetric.
        return (self(ct),)

    def numpy(self, x: NumPyArray) -> ArrayLike:
        return (np.fft.ifftn if self.inverse else np.fft.fftn)(x, axes=range(-self.ndim, 0))

    def lower(self, ctx: LoweringContext, x: IRValue) -> IRValue:
        kind = FftType.IFFT if self.inverse else FftType.FFT
        lengths = ctx.avals_in[0].shape[-self.ndim :] if self.ndim else ()
        return ctx.via_jax(lambda v: separable_fft(v, kind, lengths), x)


class RealFft(MapsLastDims, Linear):
    """The transform of real values over the last `ndim` dimensions, without its redundant half.

    The last dimension, of length n, becomes n // 2 + 1: the other terms are conjugates of these.
    """

    ndim: int = 1
    samples = (
        sample(f32[2, 5], dtypes=("f32", "f64")),
        sample(f32[3, 4], ndim=2, dtypes=("f32", "f64")),
        sample(f32[2, 2, 1, 3], ndim=4, dtypes=("f32", "f64")),
    )

    def abstract_eval(self, x: ShapedArray) -> ShapedArray:
        if x.dtype not in (np.float32, np.float64):
            raise DTypeError(
                f"real_fft: the operand must be float32 or float64; got {x!r}", fix="Convert it."
            )
        check_fft_shape(self.name, x, self.ndim)
        shape = (*x.shape[:-1], x.shape[-1] // 2 + 1)
        return x.update(shape=shape, dtype=complex_dtype(x.dtype))

    def index_sets(self, sets: IndexSets, *operands: DependentOperand) -> Sets:
        return sets.union_along(operands[0].sets, range(-self.ndim, 0), keepdims=True)

    def transpose(self, ct: Value, x: Value) -> Cotangents:
        # The inverse counts each term twice but those that are their own conjugates.
        lengths = x.shape[-self.ndim :]
        size = math.prod(lengths)
        weighted = _scale_terms(ops.conj(ct), lengths[-1], size, size / 2)
        return (InverseRealFft(lengths)(weighted),)

    def numpy(self, x: NumPyArray) -> ArrayLike:
        return np.fft.rfftn(x, axes=range(-self.ndim, 0))

    def lower(self, ctx: LoweringContext, x: IRValue) -> IRValue:
        lengths = ctx.avals_in[0].shape[-self.ndim :]
        return ctx.via_jax(lambda v: separable_fft(v, FftType.RFFT, lengths), x)


class InverseRealFft(MapsLastDims, Linear):
    """The real values of shape `lengths`, over the last dimensions, whose `real_fft` is the operand.

    The imaginary parts of terms that are their own conjugates are ignored.
    """

    lengths: Dims
    samples = (
        sample(c64[2, 3], lengths=(5,)),
        sample(c64[3, 3], lengths=(3, 4)),
        sample(c64[2, 2, 1, 1], lengths=(2, 2, 1, 1)),
    )

    def abstract_eval(self, x: ShapedArray) -> ShapedArray:
        if not is_complex(x.dtype):
            raise DTypeError(
                f"inverse_real_fft: the operand must be complex; got {x!r}", fix="Convert it."
            )
        ndim = len(self.lengths)
        check_fft_shape(self.name, x, ndim)
        expected = (*self.lengths[:-1], self.lengths[-1] // 2 + 1)
        if not ndim or x.shape[x.ndim - ndim :] != expected or self.lengths[-1] < 1:
            raise ShapeError(
                f"inverse_real_fft: for lengths {self.lengths} the operand must end with the "
                f"dimensions {expected}; got {x!r}"
            )
        return x.update(shape=(*x.shape[: x.ndim - ndim], *self.lengths), dtype=real_dtype(x.dtype))

    def index_sets(self, sets: IndexSets, *operands: DependentOperand) -> Sets:
        return sets.union_along(operands[0].sets, range(-len(self.lengths), 0), keepdims=True)

    def transpose(self, ct: Value, x: Value) -> Cotangents:
        out = ops.conj(RealFft(len(self.lengths))(ct))
        size = math.prod(self.lengths)
        return (_scale_terms(out, self.lengths[-1], 1 / size, 2 / size),)

    def numpy(self, x: NumPyArray) -> ArrayLike:
        return np.fft.irfftn(x, self.lengths, axes=range(-len(self.lengths), 0))

    def lower(self, ctx: LoweringContext, x: IRValue) -> IRValue:
        return ctx.via_jax(lambda v: separable_fft(v, FftType.IRFFT, self.lengths), x)


def check_fft_shape(name: str, x: ShapedArray, ndim: int) -> None:
    """Raise ShapeError unless `x` has `ndim` last dimensions with elements."""
    if x.ndim < ndim or 0 in x.shape[x.ndim - ndim :]:
        raise ShapeError(f"{name}: there must be {ndim} dimensions with elements; got {x!r}")


def _scale_terms(x: Value, n: int, scale: float, for_pairs: float) -> Value:
    """The half `x` of the transform of `n` values, scaled; terms that stand for two by `for_pairs`."""
    k = ops.broadcasted_iota(np.int32, x.shape, x.ndim - 1)
    is_pair = ops.bitwise_and(ops.gt(k, 0), ops.lt(ops.mul(k, 2), n))
    return ops.select(is_pair, ops.mul(x, for_pairs), ops.mul(x, scale))


def separable_fft(x: Value, kind: FftType, lengths: Dims) -> Value:
    """JAX's transform over any number of dimensions, as transforms over at most three, XLA's limit."""
    if len(lengths) <= _MAX_XLA_NDIM:
        return lax.fft(x, kind, lengths) if lengths else x
    outer = lengths[:-_MAX_XLA_NDIM]
    inverse = kind in (FftType.IFFT, FftType.IRFFT)
    outer_kind = FftType.IFFT if inverse else FftType.FFT
    first = x.ndim - len(lengths)
    sources = range(first, first + len(outer))

    def over_outer(v: Value) -> Value:
        moved = jnp.moveaxis(v, sources, range(-len(outer), 0))
        return jnp.moveaxis(separable_fft(moved, outer_kind, outer), range(-len(outer), 0), sources)

    # The transform between real and complex values is the first or, inverted, the last.
    inner = lengths[-_MAX_XLA_NDIM:]
    return lax.fft(over_outer(x), kind, inner) if inverse else over_outer(lax.fft(x, kind, inner))


def fft(x: ArrayLike, fft_type: FftType | str, fft_lengths: Sequence[int]) -> Value:
    """The discrete Fourier transform of `x` over its last dimensions, of the lengths `fft_lengths`.

    `fft_type` is "fft", "ifft", or, between real values and the first half of their transform, "rfft"
    or "irfft"; or it is a `FftType`. Without lengths the result is `x`, converted.

    >>> import numpy
    >>> from functx import lax
    >>> lax.fft(numpy.array([1.0, 2.0, 3.0]), lax.FftType.RFFT, (3,)).real.tolist()
    [6.0, -1.5]
    """
    kind = fft_type.upper() if isinstance(fft_type, str) else getattr(fft_type, "name", None)
    if kind not in FftType.__members__:
        raise ArgumentError(
            f"fft: fft_type must be one of {', '.join(FftType.__members__)}; got {fft_type!r}"
        )
    aval = aval_of(x)
    if kind == "RFFT" and is_complex(aval.dtype):
        raise ArgumentError(f"fft: the operand of RFFT must be real; got {aval!r}")
    dtype = inexact_dtype(aval.dtype)
    x = ops.convert_element_type(x, dtype if kind == "RFFT" else complex_dtype(dtype))
    lengths = tuple([as_int("fft: fft_lengths", n) for n in fft_lengths])
    if not lengths:
        return x
    if kind == "IRFFT":
        return InverseRealFft(lengths)(x)
    if aval.shape[-len(lengths) :] != lengths:
        raise ShapeError(f"fft: the last dimensions must have the lengths {lengths}; got {aval!r}")
    return RealFft(len(lengths))(x) if kind == "RFFT" else Fft(len(lengths), kind == "IFFT")(x)
