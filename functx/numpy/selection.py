"""What an index selects: one window of an array, or one at each of many places.

A selection is read by a slice, a dynamic slice or a gather, the cheapest that can, and written
by their counterparts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from math import isfinite, prod
from typing import Any, NamedTuple

import numpy as np

from functx.core.avals import Shape
from functx.core.dtypes import is_complex, is_inexact, kind
from functx.core.errors import DTypeError, IndexingError, ShapeError
from functx.core.primitive import Primitive
from functx.core.tracing import aval_of, bind
from functx.numpy.index_entries import (
    ArrayIndex,
    IndexingOptions,
    ScalarIndex,
    SliceIndex,
    index_dtype,
    parse_index,
    parse_index_item,
)
from functx.numpy.promotion import broadcast_shapes, broadcast_to, number_literal, operand
from functx.ops import arithmetic
from functx.ops.conversion import convert_element_type
from functx.ops.gathering import Gather
from functx.ops.indexing import GatherDimensionNumbers
from functx.ops.joining import concatenate
from functx.ops.operands import PYTHON_SCALARS, literal
from functx.ops.scatter_reductions import ScatterMax, ScatterMin, ScatterMul
from functx.ops.scatter_set import ScatterSet
from functx.ops.scattering import Scatter, ScatterAdd
from functx.ops.shaping import Reshape, Rev, broadcast_in_dim, full, reshape, rev
from functx.ops.slicing import Bounds, DynamicSlice, DynamicUpdateSlice, Slice, update_strided_slice
from functx.ops.strided import AsStrided, element_view


class ScatterUpdate(NamedTuple):
    """How values are written: combined with what is there, None to replace it."""

    combine: Callable[[Any, Any], Any] | None
    scatter: type[Scatter]


SET = ScatterUpdate(None, ScatterSet)
ADD = ScatterUpdate(arithmetic.add, ScatterAdd)
MULTIPLY = ScatterUpdate(arithmetic.mul, ScatterMul)
MIN = ScatterUpdate(arithmetic.min, ScatterMin)
MAX = ScatterUpdate(arithmetic.max, ScatterMax)


class Indexer:
    """What an index selects of an array of `shape`, and how that is read and written.

    Along an axis a window begins at `starts` and has the length `sizes`; `strided` holds
    the (start, limit, stride) of axes that are thinned out first. With `Points` there is a
    window at each place of the shape `block`, which is None without.
    """

    def __init__(self, shape: Shape, found: Sequence[Any], mode: IndexingOptions):
        self.shape = shape
        self.entries = found
        self.mode = mode
        self.starts: list[Any] = [0] * len(shape)
        self.sizes = [1] * len(shape)
        self.strided_bounds: dict[int, tuple[int, int, int]] = {}
        self.reversed_axes: list[int] = []
        self.indexed_axes: list[int] = []
        for entry in found:
            if type(entry) is SliceIndex:
                self._add_span(entry)
            elif type(entry) in (ScalarIndex, ArrayIndex) and entry.axis is not None:
                self.starts[entry.axis] = entry.position
                self.indexed_axes.append(entry.axis)
        self.index_shape = _index_array_shape(
            [aval_of(entry.position).shape for entry in found if type(entry) is ArrayIndex]
        )
        self.has_ellipsis = any(entry is Ellipsis for entry in found)
        self.is_static = self.index_shape is None and all(
            type(start) is int and 0 <= start <= n - size
            for start, size, n in zip(self.starts, self.sizes, shape, strict=True)
        )
        self._compute_shapes()

    def _add_span(self, span: SliceIndex) -> None:
        axis, start, size, step = span
        self.sizes[axis] = size
        if step < 0:
            self.reversed_axes.append(axis)
        if abs(step) == 1:
            self.starts[axis] = start
        else:
            self.strided_bounds[axis] = start, start + (size - 1) * abs(step) + 1, abs(step)

    def _compute_shapes(self) -> None:
        """Find the shape of the result, and of the windows, which lack its new axes.

        The block comes where its indices stand if they stand together, else first.
        """
        at = [i for i, entry in enumerate(self.entries) if type(entry) in (ScalarIndex, ArrayIndex)]
        block = self.index_shape or ()
        together = bool(at) and at[-1] - at[0] < len(at)
        result, window = ([], []) if together else (list(block), list(block))
        self.offset_dims: list[int] = []
        self.reversed_window_dims: list[int] = []
        for i, entry in enumerate(self.entries):
            if together and i == at[0]:
                result += block
                window += block
            if entry is None:
                result.append(1)
            elif type(entry) is SliceIndex:
                self.offset_dims.append(len(window))
                if entry.step < 0:
                    self.reversed_window_dims.append(len(window))
                result.append(entry.size)
                window.append(entry.size)
        self.result_shape = tuple(result)
        self.rank = len(result)
        self.window_shape = tuple(window)

    def read(self, x: Any) -> Any:
        """The elements of `x` that are selected."""
        if self.is_static:
            for step in self.static_primitives():
                x = bind(step, (x,))
            return x
        if self.is_empty():
            return full(self.result_shape, literal(0, aval_of(x).dtype))
        if self.strided_bounds:
            return self.after_strides().read(self.apply_strides(x))
        if self.index_shape is None and self.mode.out_of_bounds != "fill":
            window = rev(self.slice_window(x), self.reversed_axes)
        else:
            window = rev(self.gather(x), self.reversed_window_dims)
        return self.to_result_shape(window)

    def to_result_shape(self, window: Any) -> Any:
        """The window in the shape of the result; with Ellipsis one element is a view as well."""
        if self.has_ellipsis and not self.result_shape and aval_of(window).shape:
            return element_view(window, (0,) * aval_of(window).ndim)
        return reshape(window, self.result_shape)

    def write(self, x: Any, value: Any, update: ScatterUpdate) -> Any:
        """`x` with `value` written to what is selected."""
        value = self.broadcast_value(value, aval_of(x).dtype)
        if self.is_empty():
            return x
        if self.strided_bounds and not self.is_static:
            part = self.after_strides().write(self.apply_strides(x), value, update)
            return update_strided_slice(x, part, self.stride_bounds())
        if self.index_shape is None and (
            self.is_static or self.mode.out_of_bounds in IN_BOUNDS_MODES
        ):
            return self.write_window(x, value, update)
        value = self.to_window_order(value, self.window_shape, self.reversed_window_dims)
        places = self.start_indices()
        scatter = update.scatter(
            *self.dimension_numbers(),
            self.mode.indices_are_sorted,
            self.has_unique_indices(places),
            self.mode.out_of_bounds if self.mode.out_of_bounds in IN_BOUNDS_MODES else "drop",
        )
        return scatter(x, places, fill_to_shape(value, self.window_shape))

    def write_window(self, x: Any, value: Any, update: ScatterUpdate) -> Any:
        """`x` with `value` written to its one window, which lies inside it."""
        sizes = tuple(self.sizes)
        value = self.to_window_order(value, sizes, self.reversed_axes)
        if update.combine is not None:
            value = update.combine(self.slice_window(x), value)
        value = fill_to_shape(value, sizes)
        if self.is_static:
            return update_strided_slice(x, value, self.window_bounds())
        return DynamicUpdateSlice()(x, value, *self.scalar_starts())

    def slice_window(self, x: Any) -> Any:
        """The one window of `x`, its elements in the order that `x` has them."""
        if self.is_static:
            return _slice_bounds(x, self.window_bounds())
        return DynamicSlice(tuple(self.sizes))(x, *self.scalar_starts())

    def window_bounds(self) -> list[Bounds]:
        """The (start, limit, stride) of the one window, whose place is known."""
        return [
            self.strided_bounds.get(axis, (start, start + size, 1))
            for axis, (start, size) in enumerate(zip(self.starts, self.sizes, strict=True))
        ]

    def static_primitives(self) -> tuple[Primitive, ...]:
        """The operations that read the one window, whose place is known."""
        if self.has_ellipsis and not self.result_shape and self.shape:
            return (AsStrided((), tuple(self.starts), ()),)
        steps: list[Primitive] = []
        bounds = self.window_bounds()
        if bounds != _full_bounds(self.shape):
            starts, limits, strides = zip(*bounds, strict=True)
            steps.append(Slice(starts, limits, strides if self.strided_bounds else None))
        if self.reversed_axes:
            steps.append(Rev(tuple(self.reversed_axes)))
        if tuple(self.sizes) != self.result_shape:
            steps.append(Reshape(self.result_shape))
        return tuple(steps)

    def is_empty(self) -> bool:
        """Whether nothing is selected. Raises where something is to be, of an axis without any."""
        empty = 0 in self.result_shape
        for axis in self.indexed_axes:
            if not self.shape[axis] and not empty:
                raise IndexingError(
                    "x[...]: an axis of length 0 has no elements to index; got axis "
                    f"{axis} of an array of shape {self.shape}"
                )
        return empty

    def stride_bounds(self) -> list[Bounds]:
        """The (start, limit, stride) of what the strided axes keep of the array."""
        return [self.strided_bounds.get(axis, (0, n, 1)) for axis, n in enumerate(self.shape)]

    def apply_strides(self, x: Any) -> Any:
        """`x` with only the elements that the strided axes keep."""
        return _slice_bounds(x, self.stride_bounds())

    def after_strides(self) -> Indexer:
        """What is selected of the array with only the elements that the strided axes keep."""
        shape = tuple([len(range(*bounds)) for bounds in self.stride_bounds()])
        found = [
            SliceIndex(entry.axis, 0, entry.size, entry.step // abs(entry.step))
            if type(entry) is SliceIndex and entry.axis in self.strided_bounds
            else entry
            for entry in self.entries
        ]
        return Indexer(shape, found, self.mode)

    def gather(self, x: Any) -> Any:
        """The windows of `x`, one at each place."""
        mode = self.mode
        read = _gather(
            *self.dimension_numbers(),
            mode.indices_are_sorted,
            mode.unique_indices,
            mode.out_of_bounds or "clip",
            tuple(self.sizes),
        )
        if mode.fill_value is not None:
            read = read.replace(fill_value=mode.fill_value)
        return read(x, self.start_indices())

    def dimension_numbers(self) -> GatherDimensionNumbers:
        """Which dimensions do what when the windows are gathered."""
        return GatherDimensionNumbers(
            tuple(self.offset_dims), tuple(sorted(self.indexed_axes)), tuple(self.start_index_map())
        )

    def start_index_map(self) -> list[int]:
        """The axes along which windows begin elsewhere than at 0."""
        return [axis for axis, at in enumerate(self.starts) if type(at) is not int or at != 0]

    def start_indices(self) -> Any:
        """Where the windows begin: index vectors, along the last dimension of an array."""
        block = self.index_shape or ()
        columns = [self.starts[axis] for axis in self.start_index_map()]
        if all(isinstance(at, int | np.ndarray) for at in columns):
            vectors = np.zeros((*block, len(columns)), index_dtype(self.shape))
            for k, at in enumerate(columns):
                vectors[..., k] = at
            return vectors
        if len(columns) == 1:
            return _index_column(columns[0], block)
        wide = any(aval_of(at).dtype.itemsize == 8 for at in columns if type(at) is not int)
        dtype = np.dtype("int64" if wide else "int32")
        columns = [self.starts_in_dtype(axis, dtype) for axis in self.start_index_map()]
        return concatenate([_index_column(at, block) for at in columns], len(block))

    def starts_in_dtype(self, axis: int, dtype: Any) -> Any:
        """Where windows begin along `axis`, in the signed `dtype`."""
        at = self.starts[axis]
        if type(at) is int:
            return literal(at, dtype)
        if isinstance(at, np.ndarray):
            return at.astype(dtype)
        if kind(at.dtype) == "u" and at.dtype.itemsize == dtype.itemsize:
            at = arithmetic.min(at, self.shape[axis])
        return convert_element_type(at, dtype)

    def scalar_starts(self) -> list[Any]:
        """Where the one window begins: a scalar an axis, all in one dtype where that is free."""
        dtypes = [at.dtype for at in self.starts if type(at) is not int]
        dtype = dtypes[0] if dtypes else np.dtype("int32")
        return [literal(at, dtype) if type(at) is int else at for at in self.starts]

    def has_unique_indices(self, places: Any) -> bool:
        """Whether it is known that no element is written twice."""
        if self.mode.unique_indices or self.index_shape is None or prod(self.index_shape) <= 1:
            return True
        if not isinstance(places, np.ndarray) or places.size > _MAX_CHECKED_INDICES:
            return False
        sizes = [self.shape[axis] for axis in self.start_index_map()]
        weights = np.cumprod([1, *sizes[:0:-1]])[::-1]
        return np.unique(places.astype(np.int64) @ weights).size == prod(self.index_shape)

    def broadcast_value(self, value: Any, dtype: Any) -> Any:
        """`value` as an array of the shape of the selection, or a scalar, of `dtype`."""
        value = drop_leading_ones(cast_for_assignment(value, dtype), len(self.result_shape))
        shape = aval_of(value).shape
        if not shape:
            return value
        if len(shape) > len(self.result_shape) or any(
            n not in (1, m)
            for n, m in zip(reversed(shape), reversed(self.result_shape), strict=False)
        ):
            raise ShapeError(
                "x.at[...]: the value must broadcast to the shape of what is indexed; got "
                f"{aval_of(value)!r} for shape {self.result_shape}"
            )
        return broadcast_to(value, self.result_shape)

    def to_window_order(self, value: Any, shape: Shape, backwards: Sequence[int]) -> Any:
        """`value` in the shape and order of the windows; a scalar stays one."""
        return rev(reshape(value, shape), backwards) if aval_of(value).shape else value


IN_BOUNDS_MODES = "clip", "promise_in_bounds"
_MAX_CHECKED_INDICES = 1 << 16
"""The largest number of known indices that are searched for repetitions."""


# A primitive with a field of any type is not remembered by its own class.
_gather = lru_cache(maxsize=4096)(Gather)


def drop_leading_ones(value: Any, rank: int) -> Any:
    """`value` without those of its first dimensions, of length 1, that exceed `rank`."""
    shape = aval_of(value).shape
    extra = len(shape) - rank
    return reshape(value, shape[extra:]) if extra > 0 and prod(shape[:extra]) == 1 else value


def _index_array_shape(shapes: Sequence[Shape]) -> Shape | None:
    """The one shape that index arrays of `shapes` have together, None without any."""
    try:
        return broadcast_shapes(*shapes) if shapes else None
    except ShapeError:
        raise IndexingError(
            f"x[...]: index arrays must broadcast; got shapes {' and '.join(map(str, shapes))}"
        ) from None


def _full_bounds(shape: Shape) -> list[Bounds]:
    return [(0, n, 1) for n in shape]


def _slice_bounds(x: Any, bounds: Sequence[Bounds]) -> Any:
    """The elements of `x` within (start, limit, stride) along each axis."""
    if bounds == _full_bounds(aval_of(x).shape):
        return x
    starts, limits, strides = zip(*bounds, strict=True)
    return Slice(starts, limits, strides if any(n != 1 for n in strides) else None)(x)


def _index_column(at: Any, block: Shape) -> Any:
    """`at`, broadcast to `block`, with a last dimension of length 1."""
    shape = aval_of(at).shape
    if shape == block:
        return reshape(at, (*block, 1))
    return broadcast_in_dim(at, (*block, 1), tuple(range(len(block) - len(shape), len(block))))


def fill_to_shape(value: Any, shape: Shape) -> Any:
    return value if aval_of(value).shape == shape else full(shape, value)


def cast_for_assignment(value: Any, dtype: Any) -> Any:
    """`value` in `dtype`, as assignment converts it."""
    value = operand(value)
    aval = aval_of(value)
    if is_complex(aval.dtype) and not is_complex(dtype):
        raise DTypeError(
            f"x.at[...]: a complex value must not be written to an array of {dtype}; got {aval!r}",
            fix="Write its real part, or convert the array with astype.",
        )
    if type(value) in PYTHON_SCALARS:
        if is_inexact(dtype) or type(value) is int:
            return number_literal(value, dtype)
        if isinstance(value, float) and not isfinite(value):
            raise DTypeError(
                f"x.at[...]: nan and infinities must not be written to an array of {dtype}; "
                f"got {value}",
                fix="Convert the array to a float dtype first (x.astype(float)).",
            )
        return literal(int(value), dtype)
    return convert_element_type(value, dtype)


def make_indexer(x: Any, idx: Any, mode: IndexingOptions) -> Indexer:
    """What `idx` selects of `x`."""
    shape = aval_of(x).shape
    items = [parse_index_item(item) for item in (idx if type(idx) is tuple else (idx,))]
    return Indexer(shape, parse_index(shape, items, mode), mode)
