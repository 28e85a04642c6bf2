"""Slices of arrays at indices known while tracing."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jax.extend.mlir.dialects import stablehlo

from functx import ops
from functx.core.errors import IndexingError
from functx.core.primitive import LinearInput, operand_aval
from functx.core.primitive_families import ReadsPart, View
from functx.core.program import Atom
from functx.core.rewriting import T
from functx.core.samples import f32, sample
from functx.core.tracer import aval_of
from functx.core.types import Shape, ShapedArray
from functx.core.typing import ArrayLike, Dim, IRValue, Mask, Value, Values
from functx.ops.families import Linear, MovesElements
from functx.ops.operands import (
    RewriteContext,
    Simplified,
    canonical_axis,
    identity_result,
    literal,
    tuple_delete,
)

if TYPE_CHECKING:
    from functx.lowering.stablehlo_emitter import LoweringContext

Bounds = tuple[int, int, int]
"""The start, the limit and the stride of a slice along one axis."""


class Slice(MovesElements, Linear, ReadsPart, View):
    """The elements of `x` from `start` to before `limit`, in steps of `strides`."""

    start: Shape
    limit: Shape
    strides: Shape | None = None
    size_fields = ("start", "limit")
    samples = (
        sample(f32[4, 5], start=(1, 0), limit=(3, 5)),
        sample(f32[7, 5], start=(1, 0), limit=(6, 5), strides=(2, 3)),
        sample(f32[3], start=(2,), limit=(2,), strides=(2,)),
    )

    def abstract_eval(self, x: ShapedArray) -> ShapedArray:
        start, limit, strides = self.start, self.limit, self.strides or (1,) * x.ndim
        if not len(start) == len(limit) == len(strides) == x.ndim:
            raise IndexingError(
                "slice: start, limit and strides must have one entry a dimension; "
                f"got {start}, {limit} and {strides} for {x!r}"
            )
        bounds = list(zip(start, limit, x.shape, strict=True))
        if not all(0 <= a <= b <= n for a, b, n in bounds) or min(strides, default=1) < 1:
            raise IndexingError(
                "slice: 0 <= start <= limit <= length and strides >= 1 must hold; "
                f"got {start}, {limit} and {strides} for {x!r}"
            )
        shape = [(b - a + s - 1) // s for a, b, s in zip(start, limit, strides, strict=True)]
        return x.update(shape=tuple(shape))

    def transpose(self, ct: Value, x: Value | LinearInput) -> Values:
        strides = self.full_strides
        if ct.size == 0:
            return (ops.zeros_like(x),)
        config = [
            (a, n - a - (m - 1) * s - 1, s - 1)
            for a, s, m, n in zip(self.start, strides, ct.shape, x.shape, strict=True)
        ]
        return (ops.pad(ct, 0, config),)

    def is_added_in_place(self, ct: Value, x: Value) -> bool:
        # A slice of more than half of an array cannot be one of several disjoint ones.
        return 2 * ct.size <= x.size

    def add_to_cotangent(self, total: Value, ct: Value, args: Values) -> Value:
        return ops.add(total, *self.transpose(ct, *args))

    @staticmethod
    def accumulate_slices(parts: Sequence[Any], aval: ShapedArray) -> Value:
        return ops.sum_tiles(
            [part.cotangent_tile(ct, use) for part, ct, use in parts if ct.size], aval
        )

    def cotangent_tile(self, ct: Value, use: object) -> ops.SliceTile:
        """The tile of the operand's cotangent that `ct` fills, with zeros between strided elements."""
        if self.strides:
            ct = ops.pad(ct, 0, [(0, 0, step - 1) for step in self.strides])
        limit = tuple([a + n for a, n in zip(self.start, ct.shape, strict=True)])
        return ops.SliceTile(self.start, limit, ct, use)

    def tangent_mask(self, masks: Sequence[Mask], args: Values) -> Mask:
        (mask,) = masks
        return mask if mask is None or not mask.shape else self(mask)

    def cotangent_masks(self, mask: Mask, args: Values) -> Sequence[Mask]:
        (x,) = args
        mask = ops.instantiate_mask(mask, self.abstract_eval(operand_aval(x)).shape)
        return self.transpose(mask, LinearInput(operand_aval(x).update(dtype=mask.dtype)))

    def scatter_into_base(self, part: Value, index: Value | int, x: Value) -> Value:
        return update_strided_slice(
            x, part, list(zip(self.start, self.limit, self.full_strides, strict=True))
        )

    def view_strides(self, x: ShapedArray, strides: tuple[int, ...]) -> tuple[int, ...] | None:
        return tuple([n * step for n, step in zip(strides, self.full_strides, strict=True)])

    def view_offset(self, x: ShapedArray, strides: tuple[int, ...], index: int) -> int | None:
        return sum([n * step for n, step in zip(self.start, strides, strict=True)])

    @property
    def full_strides(self) -> Shape:
        """The strides, ones if `strides` is None."""
        return self.strides or (1,) * len(self.start)

    def batch(self, args: Values, dims: Sequence[int]) -> tuple[Value, Dim]:
        (x,), (dim,) = args, dims
        strides = tuple_insert(self.strides, dim, 1) if self.strides else None
        start, limit = tuple_insert(self.start, dim, 0), tuple_insert(self.limit, dim, x.shape[dim])
        return Slice(start, limit, strides)(x), dim

    def simplify(self, context: RewriteContext, x: Atom) -> Simplified:
        shape = x.aval.shape
        strides = self.strides or (1,) * len(shape)
        if self.start == (0,) * len(shape) and self.limit == shape and max(strides, default=1) == 1:
            return x
        if inner := context.defining_equation(x, ops.Full):
            return ops.Full(self.abstract_eval(x.aval).shape), inner.inputs
        if inner := context.defining_equation(x, Slice):
            return inner.primitive.compose(self), inner.inputs
        if inner := context.defining_equation(x, ops.Concatenate):
            return self.slice_of_concatenated(inner.primitive.axis, inner.inputs)
        if inner := context.defining_equation(x, ops.Pad):
            return self.slice_of_padded(inner.primitive.config, inner.inputs[0])
        return None

    def compose(self, then: Slice) -> Slice:
        """The slice that is this slice followed by the slice `then`."""
        strides_of_first, strides_of_second = (
            self.strides or (1,) * len(self.start),
            then.strides or (1,) * len(then.start),
        )
        start = tuple(
            [a + s * b for a, s, b in zip(self.start, strides_of_first, then.start, strict=True)]
        )
        strides = tuple([s * t for s, t in zip(strides_of_first, strides_of_second, strict=True)])
        counts = [
            (b - a + t - 1) // t
            for a, b, t in zip(then.start, then.limit, strides_of_second, strict=True)
        ]
        limit = tuple(
            [
                a + max((n - 1) * s + 1, 0) if n else a
                for a, n, s in zip(start, counts, strides, strict=True)
            ]
        )
        return Slice(start, limit, None if max(strides, default=1) == 1 else strides)

    def slice_of_concatenated(self, axis: int, parts: Sequence[Atom]) -> Simplified:
        """This slice of concatenated `parts` as a slice of one part, if it lies in one; else None."""
        begin = 0
        for part in parts:
            end = begin + part.aval.shape[axis]
            if begin <= self.start[axis] < self.limit[axis] <= end:
                start, limit = list(self.start), list(self.limit)
                start[axis], limit[axis] = start[axis] - begin, limit[axis] - begin
                return Slice(tuple(start), tuple(limit), self.strides), [part]
            begin = end
        return None

    def slice_of_padded(self, config: Sequence[tuple[int, int, int]], x: Atom) -> Simplified:
        """This slice of a padded `x` as a slice of `x`, if it contains no padding; else None."""
        lows = [low for low, _, _ in config]
        start = tuple([a - low for a, low in zip(self.start, lows, strict=True)])
        limit = tuple([b - low for b, low in zip(self.limit, lows, strict=True)])
        inside = all(
            [
                inner == 0 and 0 <= a <= b <= n
                for (_, _, inner), a, b, n in zip(config, start, limit, x.aval.shape, strict=True)
            ]
        )
        return (Slice(start, limit, self.strides), [x]) if inside else None

    def lower(self, ctx: LoweringContext, x: IRValue) -> IRValue:
        return stablehlo.slice(
            x,
            ctx.i64_array(self.start),
            ctx.i64_array(self.limit),
            ctx.i64_array(self.full_strides),
        )


def tuple_insert(items: Sequence[T], position: int, item: T) -> tuple[T, ...]:
    """`items` with `item` at `position`."""
    return (*items[:position], item, *items[position:])


def update_strided_slice(x: Value, part: Value, bounds: Sequence[Bounds]) -> Value:
    """`x` with the elements at (start, limit, stride) of each axis replaced by `part`."""
    shape = aval_of(x).shape
    if bounds == [(0, n, 1) for n in shape]:
        return part
    if not aval_of(part).size:
        return x
    if all(stride == 1 for _, _, stride in bounds):
        starts = [literal(start, np.dtype("int32")) for start, _, _ in bounds]
        return ops.DynamicUpdateSlice()(x, part, *starts)
    config = [
        (start, n - start - (m - 1) * stride - 1, stride - 1)
        for (start, _, stride), m, n in zip(bounds, aval_of(part).shape, shape, strict=True)
    ]
    replaced = ops.pad(
        ops.full(aval_of(part).shape, literal(True, np.dtype("bool"))), False, config
    )
    return ops.select(replaced, ops.pad(part, zero_scalar_like(part), config), x)


def zero_scalar_like(x: Value) -> Value:
    """Zero of the dtype of `x`, and weak if that is."""
    aval = aval_of(x)
    return ops.convert_element_type(literal(0, aval.dtype), aval.dtype, aval.weak_type)


def slice(
    operand: ArrayLike,
    start_indices: Sequence[int],
    limit_indices: Sequence[int],
    strides: Sequence[int] | None = None,
) -> Value:
    """The elements of `operand` from `start_indices` to before `limit_indices`, in steps of `strides`."""
    start, limit = (
        tuple(map(operator.index, start_indices)),
        tuple(map(operator.index, limit_indices)),
    )
    steps = None if strides is None else tuple(map(operator.index, strides))
    if steps == (1,) * len(start):
        steps = None
    if steps is None and limit == aval_of(operand).shape and not any(start):
        return identity_result(operand)
    return Slice(start, limit, steps)(operand)


def slice_in_dim(
    operand: ArrayLike,
    start_index: int | None,
    limit_index: int | None,
    stride: int = 1,
    axis: int = 0,
) -> Value:
    """The elements of `operand` from `start_index` to before `limit_index` along `axis`, by `stride`.

    None stands for the beginning and the end; negative indices count from the end.
    """
    shape = aval_of(operand).shape
    axis = canonical_axis(axis, len(shape))
    n = shape[axis]
    start = 0 if start_index is None else start_index
    limit = n if limit_index is None else limit_index
    starts, limits, strides = [0] * len(shape), list(shape), [1] * len(shape)
    starts[axis] = start + n if start < 0 else start
    limits[axis] = limit + n if limit < 0 else limit
    strides[axis] = stride
    return slice(operand, starts, limits, strides)


def index_in_dim(operand: ArrayLike, index: int, axis: int = 0, keepdims: bool = True) -> Value:
    """The part of `operand` at the static `index` along `axis`, which stays if `keepdims`.

    Raises IndexingError for an index out of range.
    """
    shape = aval_of(operand).shape
    axis = canonical_axis(axis, len(shape), "index_in_dim: axis")
    n, position = shape[axis], operator.index(index)
    if not -n <= position < n:
        raise IndexingError(
            f"index_in_dim: the index must be in [{-n}, {n}); got {index} for axis {axis} of "
            f"{aval_of(operand)!r}"
        )
    position %= n
    part = slice_in_dim(operand, position, position + 1, 1, axis)
    return part if keepdims else ops.reshape(part, tuple_delete(shape, (axis,)))
