"""The reads and writes of the elements of an array that an index selects."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from math import isfinite, prod
from typing import Any, NamedTuple

import numpy as np

from functx import ops
from functx.core.binding import bind
from functx.core.errors import DTypeError, IndexingError, ShapeError
from functx.core.primitive import Primitive
from functx.core.program import Literal
from functx.core.tracer import aval_of
from functx.core.types import DType, Shape, is_complex, is_inexact, kind
from functx.core.typing import ArrayLike, ArrayOrList, Index, NumPyArray, Value
from functx.numpy.index_parsing import (
    ArrayIndex,
    IndexEntry,
    IndexingOptions,
    ScalarIndex,
    SliceIndex,
    index_dtype,
    parse_index,
    parse_index_item,
)
from functx.numpy.promotion import broadcast_shapes, broadcast_to, number_literal, operand
from functx.ops import arithmetic
from functx.ops.operands import PYTHON_SCALARS, literal
from functx.ops.views import AsStrided, element_view


class ScatterUpdate(NamedTuple):
    """A kind of write: `combine` computes the new value from the old one; None replaces it."""

    combine: Callable[[Any, Any], Any] | None
    scatter: type[ops.Scatter]


SET = ScatterUpdate(None, ops.ScatterSet)
ADD = ScatterUpdate(arithmetic.add, ops.ScatterAdd)
MULTIPLY = ScatterUpdate(arithmetic.mul, ops.ScatterMul)
MIN = ScatterUpdate(arithmetic.min, ops.ScatterMin)
MAX = ScatterUpdate(arithmetic.max, ops.ScatterMax)


class Indexer:
    """The reads and writes of the elements of an array of `shape` that an index selects.

    The elements form windows that begin at `starts` and have the lengths `sizes`.
    `strided_bounds` holds (start, limit, stride) of axes that are sliced with a stride first.
    Index arrays of the common shape `index_shape` select one window for each of their elements;
    `index_shape` is None without index arrays.
    """

    def __init__(self, shape: Shape, entries: Sequence[IndexEntry], mode: IndexingOptions):
        self.shape = shape
        self.entries = entries
        self.mode = mode
        self.starts: list[Any] = [0] * len(shape)
        self.sizes = [1] * len(shape)
        self.strided_bounds: dict[int, tuple[int, int, int]] = {}
        self.reversed_axes: list[int] = []
        self.indexed_axes: list[int] = []
        for entry in entries:
            if type(entry) is SliceIndex:
                self._add_slice(entry)
            elif isinstance(entry, (ScalarIndex, ArrayIndex)) and entry.axis is not None:
                self.starts[entry.axis] = entry.position
                self.indexed_axes.append(entry.axis)
        self.index_shape = _index_array_shape(
            [aval_of(entry.position).shape for entry in entries if type(entry) is ArrayIndex]
        )
        if self.index_shape is not None:
            self._slice_at_known_scalars()
        self.has_ellipsis = any(entry is Ellipsis for entry in entries)
        self.is_static = self.index_shape is None and all(
            type(start) is int and 0 <= start <= n - size
            for start, size, n in zip(self.starts, self.sizes, shape, strict=True)
        )
        self._compute_shapes()

    def _add_slice(self, index: SliceIndex) -> None:
        axis, start, size, step = index
        self.sizes[axis] = size
        if step < 0:
            self.reversed_axes.append(axis)
        if abs(step) == 1:
            self.starts[axis] = start
        else:
            self.strided_bounds[axis] = start, start + (size - 1) * abs(step) + 1, abs(step)

    def _slice_at_known_scalars(self) -> None:
        """Take known scalars beside index arrays as slices: steps of a loop then differ in a number only."""
        for entry in self.entries:
            if type(entry) is not ScalarIndex or type(start := entry.position) is not int:
                continue
            if 0 <= start < self.shape[entry.axis] > 1:
                self.strided_bounds[entry.axis] = start, start + 1, 1
                self.starts[entry.axis] = 0

    def _compute_shapes(self) -> None:
        """Compute the shape of the result, and of the windows, which lack its new axes.

        The dimensions of index arrays stand at the position of adjacent indices, else first.
        """
        positions = [
            i for i, entry in enumerate(self.entries) if type(entry) in (ScalarIndex, ArrayIndex)
        ]
        index_shape = self.index_shape or ()
        adjacent = bool(positions) and positions[-1] - positions[0] < len(positions)
        result, window = ([], []) if adjacent else (list(index_shape), list(index_shape))
        self.offset_dims: list[int] = []
        self.reversed_window_dims: list[int] = []
        for i, entry in enumerate(self.entries):
            if adjacent and i == positions[0]:
                result += index_shape
                window += index_shape
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

    def read(self, x: Value) -> Value:
        """The selected elements of `x`."""
        if self.is_static:
            for step in self.static_primitives():
                x = bind(step, (x,))
            return x
        if self.is_empty():
            return ops.full(self.result_shape, literal(0, aval_of(x).dtype))
        if self.strided_bounds:
            return self.after_strides().read(self.apply_strides(x))
        if self.index_shape is None and self.mode.out_of_bounds != "fill":
            window = ops.rev(self.slice_window(x), self.reversed_axes)
        else:
            window = ops.rev(self.gather(x), self.reversed_window_dims)
        return self.to_result_shape(window)

    def to_result_shape(self, window: Value) -> Value:
        """The window in the shape of the result; with an Ellipsis a single element is a view too."""
        if self.has_ellipsis and not self.result_shape and aval_of(window).shape:
            return element_view(window, (0,) * aval_of(window).ndim)
        return ops.reshape(window, self.result_shape)

    def write(self, x: Value, value: ArrayOrList, update: ScatterUpdate) -> Value:
        """`x` with `value` written to the selected elements."""
        value = self.broadcast_value(value, aval_of(x).dtype)
        if self.is_empty():
            return x
        if self.strided_bounds and not self.is_static:
            part = self.after_strides().write(self.apply_strides(x), value, update)
            return ops.update_strided_slice(x, part, self.stride_bounds())
        if self.index_shape is None and (
            self.is_static or self.mode.out_of_bounds in IN_BOUNDS_MODES
        ):
            return self.write_window(x, value, update)
        value = self.to_window_order(value, self.window_shape, self.reversed_window_dims)
        indices = self.start_indices()
        scatter = update.scatter(
            *self.dimension_numbers(),
            self.mode.indices_are_sorted,
            self.has_unique_indices(indices),
            self.mode.out_of_bounds if self.mode.out_of_bounds in IN_BOUNDS_MODES else "drop",
        )
        return scatter(x, indices, fill_to_shape(value, self.window_shape))

    def write_window(self, x: Value, value: Value, update: ScatterUpdate) -> Value:
        """`x` with `value` written to the only window, which is in bounds."""
        sizes = tuple(self.sizes)
        value = self.to_window_order(value, sizes, self.reversed_axes)
        if update.combine is not None:
            value = update.combine(self.slice_window(x), value)
        value = fill_to_shape(value, sizes)
        if self.is_static:
            return ops.update_strided_slice(x, value, self.window_bounds())
        return ops.DynamicUpdateSlice()(x, value, *self.scalar_starts())

    def slice_window(self, x: Value) -> Value:
        """The only window of `x`, in the order of the elements of `x`."""
        if self.is_static:
            return _slice_bounds(x, self.window_bounds())
        return ops.DynamicSlice(tuple(self.sizes))(x, *self.scalar_starts())

    def window_bounds(self) -> list[ops.Bounds]:
        """(start, limit, stride) of each axis of the only window, whose position is known."""
        return [
            self.strided_bounds.get(axis, (start, start + size, 1))
            for axis, (start, size) in enumerate(zip(self.starts, self.sizes, strict=True))
        ]

    def static_primitives(self) -> tuple[Primitive, ...]:
        """The primitives that read the only window, whose position is known."""
        if self.has_ellipsis and not self.result_shape and self.shape:
            return (AsStrided((), tuple(self.starts), ()),)
        steps: list[Primitive] = []
        bounds = self.window_bounds()
        if bounds != _full_bounds(self.shape):
            starts, limits, strides = zip(*bounds, strict=True)
            steps.append(ops.Slice(starts, limits, strides if self.strided_bounds else None))
        if self.reversed_axes:
            steps.append(ops.Rev(tuple(self.reversed_axes)))
        if tuple(self.sizes) != self.result_shape:
            steps.append(ops.Reshape(self.result_shape))
        return tuple(steps)

    def is_empty(self) -> bool:
        """Whether no element is selected; raises IndexingError for an element of an empty axis."""
        empty = 0 in self.result_shape
        for axis in self.indexed_axes:
            if not self.shape[axis] and not empty:
                raise IndexingError(
                    "x[...]: an axis of length 0 has no elements to index; got axis "
                    f"{axis} of an array of shape {self.shape}"
                )
        return empty

    def stride_bounds(self) -> list[ops.Bounds]:
        """(start, limit, stride) of each axis, for the slice along the strided axes."""
        return [self.strided_bounds.get(axis, (0, n, 1)) for axis, n in enumerate(self.shape)]

    def apply_strides(self, x: Value) -> Value:
        """`x` sliced along the strided axes."""
        return _slice_bounds(x, self.stride_bounds())

    def after_strides(self) -> Indexer:
        """The indexer of the array that is already sliced along the strided axes."""
        shape = tuple([len(range(*bounds)) for bounds in self.stride_bounds()])
        entries = [self._entry_of_slice(entry) for entry in self.entries]
        return Indexer(shape, entries, self.mode)

    def _entry_of_slice(self, entry: IndexEntry) -> IndexEntry:
        """The entry for the array that is already sliced along the strided axes."""
        if not isinstance(entry, SliceIndex | ScalarIndex) or entry.axis not in self.strided_bounds:
            return entry
        if isinstance(entry, ScalarIndex):
            return ScalarIndex(entry.axis, 0)
        return SliceIndex(entry.axis, 0, entry.size, entry.step // abs(entry.step))

    def gather(self, x: Value) -> Value:
        """The windows of `x`, one for each element of the index arrays."""
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
        offsets = self.offset_dims
        if self.index_shape and offsets and offsets != [len(self.window_shape) - 1]:
            read = read.replace(order=mode.order)
        return read(x, self.start_indices())

    def dimension_numbers(self) -> ops.GatherDimensionNumbers:
        """The dimension numbers of the gather of the windows."""
        return ops.GatherDimensionNumbers(
            tuple(self.offset_dims), tuple(sorted(self.indexed_axes)), tuple(self.start_index_map())
        )

    def start_index_map(self) -> list[int]:
        """The axes along which a window does not begin at 0."""
        return [
            axis for axis, start in enumerate(self.starts) if type(start) is not int or start != 0
        ]

    def start_indices(self) -> ArrayLike:
        """The starts of the windows: index vectors along the last dimension of an array."""
        index_shape = self.index_shape or ()
        columns = [self.starts[axis] for axis in self.start_index_map()]
        if all(isinstance(start, int | np.ndarray) for start in columns):
            vectors = np.zeros((*index_shape, len(columns)), index_dtype(self.shape))
            for k, start in enumerate(columns):
                vectors[..., k] = start
            return _shared_array(vectors)
        if len(columns) == 1:
            return _index_column(columns[0], index_shape)
        wide = any(
            aval_of(start).dtype.itemsize == 8 for start in columns if type(start) is not int
        )
        dtype = np.dtype("int64" if wide else "int32")
        columns = [self.starts_in_dtype(axis, dtype) for axis in self.start_index_map()]
        return ops.concatenate(
            [_index_column(start, index_shape) for start in columns], len(index_shape)
        )

    def starts_in_dtype(self, axis: int, dtype: DType) -> ArrayLike:
        """The starts of the windows along `axis`, in the signed `dtype`."""
        start = self.starts[axis]
        if type(start) is int:
            return literal(start, dtype)
        if isinstance(start, np.ndarray):
            return start.astype(dtype)
        if kind(start.dtype) == "u" and start.dtype.itemsize == dtype.itemsize:
            start = arithmetic.min(start, self.shape[axis])
        return ops.convert_element_type(start, dtype)

    def scalar_starts(self) -> list[Value | Literal]:
        """The start of the only window: a scalar for each axis, known ones in the dtype of a traced one."""
        dtypes = [start.dtype for start in self.starts if type(start) is not int]
        dtype = dtypes[0] if dtypes else np.dtype("int32")
        return [literal(start, dtype) if type(start) is int else start for start in self.starts]

    def has_unique_indices(self, indices: ArrayLike) -> bool:
        """Whether no element is written twice, as far as is known."""
        if self.mode.unique_indices or self.index_shape is None or prod(self.index_shape) <= 1:
            return True
        if not isinstance(indices, np.ndarray) or indices.size > _MAX_CHECKED_INDICES:
            return False
        sizes = [self.shape[axis] for axis in self.start_index_map()]
        weights = np.cumprod([1, *sizes[:0:-1]])[::-1]
        return np.unique(indices.astype(np.int64) @ weights).size == prod(self.index_shape)

    def broadcast_value(self, value: ArrayOrList, dtype: DType) -> Value:
        """`value` in `dtype`, broadcast to the shape of the selection; a scalar stays a scalar."""
        value = drop_leading_ones(cast_for_assignment(value, dtype), len(self.result_shape))
        shape = aval_of(value).shape
        if not shape:
            return value
        if len(shape) > len(self.result_shape) or any(
            n not in (1, m)
            for n, m in zip(reversed(shape), reversed(self.result_shape), strict=False)
        ):
            raise ShapeError(
                "x.at[...]: the value must broadcast to the shape of the indexed elements; got "
                f"{aval_of(value)!r} for shape {self.result_shape}"
            )
        return broadcast_to(value, self.result_shape)

    def to_window_order(self, value: Value, shape: Shape, reversed_dims: Sequence[int]) -> Value:
        """`value` in the shape and order of the windows; a scalar stays a scalar."""
        return ops.rev(ops.reshape(value, shape), reversed_dims) if aval_of(value).shape else value


IN_BOUNDS_MODES = "clip", "promise_in_bounds"
_MAX_CHECKED_INDICES = 1 << 16
"""The largest number of known indices that are searched for duplicates."""


# A primitive with a field of any type is not memoised by its class.
_gather = lru_cache(maxsize=4096)(ops.Gather)


def drop_leading_ones(value: Value, rank: int) -> Value:
    """`value` without its leading dimensions of length 1 beyond `rank`."""
    shape = aval_of(value).shape
    extra = len(shape) - rank
    return ops.reshape(value, shape[extra:]) if extra > 0 and prod(shape[:extra]) == 1 else value


def _index_array_shape(shapes: Sequence[Shape]) -> Shape | None:
    """The common shape of index arrays of `shapes`; None without index arrays."""
    try:
        return broadcast_shapes(*shapes) if shapes else None
    except ShapeError:
        raise IndexingError(
            f"x[...]: index arrays must broadcast; got shapes {' and '.join(map(str, shapes))}"
        ) from None


def _full_bounds(shape: Shape) -> list[ops.Bounds]:
    return [(0, n, 1) for n in shape]


def _slice_bounds(x: Value, bounds: Sequence[ops.Bounds]) -> Value:
    """The elements of `x` within (start, limit, stride) along each axis."""
    if bounds == _full_bounds(aval_of(x).shape):
        return x
    starts, limits, strides = zip(*bounds, strict=True)
    return ops.Slice(starts, limits, strides if any(n != 1 for n in strides) else None)(x)


def _shared_array(array: NumPyArray) -> NumPyArray:
    """A small array with the elements of `array`, the same one for equal elements: one constant."""
    if array.nbytes > _MOST_SHARED_BYTES:
        return array
    return _array_of(array.tobytes(), array.shape, array.dtype)


_MOST_SHARED_BYTES = 1 << 16


@lru_cache(maxsize=256)
def _array_of(data: bytes, shape: Shape, dtype: DType) -> NumPyArray:
    return np.frombuffer(data, dtype).reshape(shape)


def _index_column(index: ArrayLike, shape: Shape) -> Value:
    """`index` broadcast to `shape`, with a last dimension of length 1."""
    ndim = aval_of(index).ndim
    if aval_of(index).shape == shape:
        return ops.reshape(index, (*shape, 1))
    dims = tuple(range(len(shape) - ndim, len(shape)))
    return ops.broadcast_in_dim(index, (*shape, 1), dims)


def fill_to_shape(value: Value, shape: Shape) -> Value:
    return value if aval_of(value).shape == shape else ops.full(shape, value)


def cast_for_assignment(value: ArrayOrList, dtype: DType) -> Value:
    """`value` converted to `dtype` by the rules of assignment."""
    value = operand(value)
    aval = aval_of(value)
    if is_complex(aval.dtype) and not is_complex(dtype):
        raise DTypeError(
            f"x.at[...]: a complex value must not be written to an array of {dtype}; got {aval!r}",
            fix="Write its real part, or convert the array with astype.",
        )
    if type(value) in PYTHON_SCALARS:
        if is_inexact(dtype) or isinstance(value, int):
            return number_literal(value, dtype)
        if isinstance(value, float) and not isfinite(value):
            raise DTypeError(
                f"x.at[...]: nan and infinities must not be written to an array of {dtype}; "
                f"got {value}",
                fix="Convert the array to a float dtype first (x.astype(float)).",
            )
        return number_literal(int(value), dtype)
    return ops.convert_element_type(value, dtype)


def make_indexer(x: ArrayLike, idx: Index, mode: IndexingOptions) -> Indexer:
    """The indexer of `x[idx]`."""
    shape = aval_of(x).shape
    items = [parse_index_item(item) for item in (idx if type(idx) is tuple else (idx,))]
    return Indexer(shape, parse_index(shape, items, mode), mode)
