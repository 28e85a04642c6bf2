"""Sorting along an axis, the largest elements, and binary search."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.mlir.dialects import stablehlo

from functx import ops
from functx.core.errors import ShapeError, ValueRangeError
from functx.core.primitive import Primitive
from functx.core.samples import EXACT, bool_, f32, i32, sample
from functx.core.strides import MemoryOrder
from functx.core.tracer import aval_of
from functx.core.types import DType, ShapedArray, canonical_dtype
from functx.core.typing import ArrayLike, Cotangents, Dim, IRValue, Tangents, Value, Values
from functx.ops.families import MapsLastDims, ShiftsAxis, check_same_dtype
from functx.ops.operands import canonical_axis, check_axes, literal, tuple_delete

if TYPE_CHECKING:
    from functx.lowering.stablehlo_emitter import LoweringContext


class Sort(ShiftsAxis):
    """The operands in ascending order of the first `num_keys` of them, along `axis`.

    Later keys decide between elements that tie in earlier ones; nan comes last. With
    `permutation` a last output holds the original index along `axis` of each element.
    """

    axis: int
    num_keys: int = 1
    stable: bool = True
    permutation: bool = False
    multiple_results = True
    rounding = EXACT
    samples = (
        sample(f32[3, 4], axis=0, distinct=True),
        sample(f32[2, 5], axis=1, distinct=True, permutation=True),
        sample(i32[7], f32[7], f32[7], axis=0, num_keys=2, distinct=True),
        sample(f32[3], axis=0, values={0: [2.0, 2.0, 1.0]}, gradients={0: [1.0, 1.0, 1.0]}),
        sample(bool_[2, 3], i32[2, 3], axis=0),
        sample(f32[0], axis=0),
    )

    @property
    def memory_order(self) -> MemoryOrder:  # type: ignore[override]
        return MemoryOrder.ROW_MAJOR if self.permutation else MemoryOrder.OPERANDS

    @classmethod
    def from_jax_params(cls, dimension: int, num_keys: int, is_stable: bool) -> Sort:
        return cls(int(dimension), int(num_keys), bool(is_stable))

    def abstract_eval(self, *operands: ShapedArray) -> Sequence[ShapedArray]:
        if not 1 <= self.num_keys <= len(operands):
            raise ValueRangeError(
                f"sort: num_keys must be in [1, {len(operands)}]; got {self.num_keys}"
            )
        first = operands[0]
        check_axes(self.name, self.axis, first.ndim)
        if any(x.shape != first.shape for x in operands):
            raise ShapeError(
                f"sort: operands must have one shape; got {' and '.join(map(repr, operands))}"
            )
        indices = (
            [ShapedArray(first.shape, self.permutation_dtype(first))] if self.permutation else []
        )
        return [*operands, *indices]

    def permutation_dtype(self, x: ShapedArray) -> DType:
        is_long = x.shape[self.axis] > np.iinfo(np.int32).max
        return canonical_dtype(np.int64 if is_long else np.int32)

    def with_permutation(self) -> Sort:
        return Sort(self.axis, self.num_keys, self.stable, True)

    def jvp(self, primals: Values, tangents: Tangents) -> tuple[Values, Tangents]:
        outs = self.with_permutation()(*primals)
        indices = outs[-1]
        out_tangents = [
            None if t is None else take_along_axis(t, indices, self.axis) for t in tangents
        ]
        return (outs, [*out_tangents, None]) if self.permutation else (outs[:-1], out_tangents)

    def forward(self, args: Values, active: Sequence[bool]) -> tuple[Values, Values]:
        outs = self.with_permutation()(*args)
        return outs[: len(args) + self.permutation], outs

    def vjp(
        self, cts: Cotangents, saved: Values, args: Values, active: Sequence[bool]
    ) -> Cotangents:
        indices = saved[-1]
        return [
            None if ct is None or not on else put_along_axis(ct, indices, self.axis)
            for ct, on in zip(cts, active, strict=False)
        ]

    def lower(self, ctx: LoweringContext, *operands: IRValue) -> Sequence[IRValue]:
        if self.permutation:
            indices = ctx.avals_out[-1]
            operands = (*operands, stablehlo.iota(ctx.type(indices), self.axis))
            ctx.avals_in = [*ctx.avals_in, indices]

        def sort(*operands: Value) -> Value | Values:
            outs = lax.sort(operands, self.axis, self.stable, self.num_keys)
            return outs if len(outs) > 1 else outs[0]

        outs = ctx.via_jax(sort, *operands)
        return outs if len(operands) > 1 else [outs]


class TopK(MapsLastDims):
    """The `k` largest elements along the last axis, in descending order, and their indices."""

    k: int
    name = "top_k"
    multiple_results = True
    accepts: ClassVar[str] = "iuf"
    rounding = EXACT
    samples = (
        sample(f32[6], k=2, distinct=True),
        sample(f32[3, 4], k=4, distinct=True),
        sample(i32[2, 3], k=1),
        sample(f32[2, 3], k=0),
    )

    def abstract_eval(self, x: ShapedArray) -> Sequence[ShapedArray]:
        check_same_dtype(self, (x,))
        if x.ndim == 0 or not 0 <= self.k <= x.shape[-1]:
            raise ValueRangeError(
                f"top_k: k must be between 0 and the length of the last axis; got {self.k} for {x!r}"
            )
        shape = (*x.shape[:-1], self.k)
        return [x.update(shape=shape), ShapedArray(shape, np.dtype("int32"))]

    def jvp(self, primals: Values, tangents: Values) -> tuple[Values, Tangents]:
        (x,), (t,) = primals, tangents
        values, indices = self(x)
        return [values, indices], [take_along_axis(t, indices, x.ndim - 1), None]

    def vjp(
        self, cts: Cotangents, outs: Values, args: Values, active: Sequence[bool]
    ) -> Cotangents:
        (x,) = args
        axis = x.ndim - 1
        return (None if cts[0] is None else put_along_axis(cts[0], outs[1], axis, x.shape[axis]),)

    def lower(self, ctx: LoweringContext, x: IRValue) -> Sequence[IRValue]:
        return ctx.via_jax(lambda x: lax.top_k(x, self.k), x)


def take_along_axis(x: Value, indices: Value, axis: int) -> Value:
    """The elements of `x` at `indices` along `axis`, which must be distinct and in range."""
    if indices.size == 0:
        return ops.full(indices.shape, literal(0, x.dtype))
    other_dims = tuple_delete(range(x.ndim), (axis,))
    numbers = ops.GatherDimensionNumbers((), (axis,), (axis,), other_dims, other_dims)
    return ops.gather(
        x,
        ops.expand_dims(indices, indices.ndim),
        numbers,
        (1,) * x.ndim,
        unique_indices=True,
        mode="promise_in_bounds",
    )


def put_along_axis(updates: Value, indices: Value, axis: int, size: int | None = None) -> Value:
    """Zeros, `size` along `axis`, with `updates` at `indices`: the transpose of `take_along_axis`."""
    shape = list(indices.shape)
    shape[axis] = shape[axis] if size is None else size
    zeros = ops.full(tuple(shape), literal(0, updates.dtype))
    if indices.size == 0:
        return zeros
    other_dims = tuple_delete(range(indices.ndim), (axis,))
    numbers = ops.ScatterDimensionNumbers((), (axis,), (axis,), other_dims, other_dims)
    return ops.scatter_add(
        zeros,
        ops.expand_dims(indices, indices.ndim),
        updates,
        numbers,
        unique_indices=True,
        mode="promise_in_bounds",
    )


def sort(operand: Any, dimension: int = -1, is_stable: bool = True, num_keys: int = 1) -> Any:
    """`operand`, an array or a sequence of arrays, in ascending order along `dimension`.

    The first `num_keys` arrays of a sequence decide the order, later keys between elements that tie
    in earlier ones, and all arrays take it. nan comes last. A sequence gives a tuple.
    """
    several = isinstance(operand, (tuple, list))
    arrays = list(operand) if several else [operand]
    if not arrays:
        raise ShapeError("sort: there must be at least one operand; got none")
    axis = canonical_axis(dimension, aval_of(arrays[0]).ndim)
    outs = Sort(axis, num_keys, is_stable)(*arrays)
    return tuple(outs) if several else outs[0]


def sort_key_val(
    keys: ArrayLike, values: Value, dimension: int = -1, is_stable: bool = True
) -> tuple[Value, Value]:
    """`keys` in ascending order along `dimension`, and `values` in the order of the keys."""
    return sort((keys, values), dimension, is_stable)


def argsort(x: ArrayLike, axis: int = -1, stable: bool = True) -> Value:
    """The indices along `axis` that put `x` in ascending order; nan comes last."""
    return Sort(canonical_axis(axis, aval_of(x).ndim), 1, stable, True)(x)[-1]


def top_k(operand: Value, k: int, *, axis: int = -1) -> tuple[Value, Value]:
    """The `k` largest elements along `axis` in descending order, and their indices.

    Of elements that tie, the first comes first.
    """
    ndim = aval_of(operand).ndim
    axis = canonical_axis(axis, ndim, "top_k: axis")
    rows = ops.moveaxis(operand, axis, ndim - 1)
    boolean = aval_of(operand).dtype == np.bool_
    values, indices = TopK(k)(ops.convert_element_type(rows, np.uint8) if boolean else rows)
    values = ops.convert_element_type(values, np.bool_) if boolean else values
    return ops.moveaxis(values, ndim - 1, axis), ops.moveaxis(indices, ndim - 1, axis)


class SearchSorted(Primitive):
    """The number of elements of a sorted vector that come before each of the values.

    With the `side` "right" equal elements come before, with "left" they do not. The first
    `batch_ndim` dimensions of both operands are batch dimensions.
    """

    side: str = "left"
    method: str = "scan"
    batch_ndim: int = 0
    differentiable = False
    accepts: ClassVar[str] = "biufc"
    samples = (
        sample(f32[4], f32[2, 3], values={0: [-1.0, 0.0, 0.0, 1.0]}),
        sample(
            i32[4],
            i32[5],
            values={0: [1, 2, 2, 5], 1: [0, 2, 5, 7, 3]},
            side="right",
            method="sort",
        ),
        sample(f32[2, 3], f32[2, 4], values={0: [[-1.0, 0.0, 1.0], [0.5, 0.5, 0.5]]}, batch_ndim=1),
        sample(f32[0], f32[3], method="compare_all"),
    )

    def abstract_eval(self, x: ShapedArray, values: ShapedArray) -> ShapedArray:
        check_same_dtype(self, (x, values))
        batch_shape = x.shape[: self.batch_ndim]
        if x.ndim != self.batch_ndim + 1 or values.shape[: self.batch_ndim] != batch_shape:
            raise ShapeError(
                f"searchsorted: the first operand must be a vector; got {x!r} for {values!r}"
            )
        is_long = x.shape[-1] > np.iinfo(np.int32).max
        return ShapedArray(values.shape, canonical_dtype(np.int64 if is_long else np.int32))

    def batch(self, args: Values, dims: Sequence[Dim]) -> tuple[Value, Dim]:
        (x, values), (dx, dv) = args, dims
        if dx is None and not self.batch_ndim:
            return self(x, values), dv
        size = next(a.shape[d] for a, d in zip(args, dims, strict=True) if d is not None)
        x, values = ops.batch_dim_at(x, dx, 0, size), ops.batch_dim_at(values, dv, 0, size)
        return SearchSorted(self.side, self.method, self.batch_ndim + 1)(x, values), 0

    def lower(self, ctx: LoweringContext, x: IRValue, values: IRValue) -> IRValue:
        def search(x: Value, values: Value) -> Value:
            return jnp.searchsorted(x, values, side=self.side, method=self.method)

        for _ in range(self.batch_ndim):
            search = jax.vmap(search)
        return ctx.via_jax(search, x, values)


def searchsorted(x: ArrayLike, values: Value, side: str = "left", method: str = "scan") -> Value:
    """The index in the sorted vector `x` at which each of `values` would be inserted.

    It is after elements equal to the value with the side "right", before them with "left". `method` is one of
    "scan" and "scan_unrolled", a binary search, "sort", and "compare_all".
    """
    if aval_of(x).ndim != 1:
        raise ShapeError(f"searchsorted: the first operand must be a vector; got {aval_of(x)!r}")
    return SearchSorted(side, method)(x, values)
