"""What an index asks of each axis: the first half of indexing, known while tracing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from math import isfinite, prod
from operator import index as integer
from typing import Any, NamedTuple

import numpy as np

from functx import ops
from functx.core.concretization import concretize
from functx.core.errors import ConcretizationError, DTypeError, IndexingError, ShapeError, type_name
from functx.core.ndarray import as_numpy_array
from functx.core.primitive import Primitive
from functx.core.tracer import Tracer, aval_of
from functx.core.tracing import bind
from functx.core.types import Shape, is_complex, is_inexact, kind
from functx.numpy.promotion import broadcast_shapes, broadcast_to, number_literal, operand
from functx.ops import arithmetic
from functx.ops.operands import PYTHON_SCALARS, literal
from functx.ops.views import AsStrided, element_view


class SliceIndex(NamedTuple):
    """`size` elements along an axis, every `step`-th from `start` on, backwards if it is negative.

    `start` is the least of their positions in any case.
    """

    axis: int
    start: int
    size: int
    step: int


class ScalarIndex(NamedTuple):
    """One element along an axis, which leaves the shape; `at` is an int or a traced integer."""

    axis: int
    position: Any


class ArrayIndex(NamedTuple):
    """Elements along an axis, at the places that the array `at` holds.

    Without an axis (from a boolean scalar) it only lends its shape to the others.
    """

    axis: int | None
    position: Any


class IndexingOptions(NamedTuple):
    """What is said of an index beside it: how to treat what is out of bounds, and promises.

    With `outside` None, known indices must be in bounds, and others are clipped when read
    and dropped when written.
    """

    out_of_bounds: str | None = None
    indices_are_sorted: bool = False
    unique_indices: bool = False
    fill_value: Any = None
    wrap_negative: bool = True


def parse_index_item(item: Any) -> Any:
    """One item of an index as an int, a slice, None, Ellipsis, or an array, checked."""
    if type(item) is int or type(item) is slice or item is None or item is Ellipsis:
        return item
    if type(item) is not Tracer:
        item = _index_array(item)
    of = kind(item.dtype) if isinstance(item, Tracer | np.ndarray) or hasattr(item, "aval") else "O"
    if of == "b":
        return concrete_index_mask(item)
    if of not in "iu":
        raise IndexingError(
            "x[...]: an index must be made of integers, slices, integer or boolean arrays, "
            f"None and Ellipsis; got {type_name(item)}",
            fix="Convert an array of whole numbers with .astype(int)." if of in "fc" else "",
        )
    return int(item) if isinstance(item, np.ndarray) and not item.ndim else item


def _index_array(item: Any) -> Any:
    """An item of an index as an array, of NumPy where its value is known."""
    if isinstance(item, (list, tuple)):
        if any(type(one) is Tracer for one in item):
            return operand(item)
        array = np.asarray(item)
        return array if array.size else array.astype(np.int32)
    if hasattr(item, "aval") or isinstance(item, np.ndarray):
        return as_numpy_array(item)
    boolean = isinstance(item, bool | np.bool_)
    return np.asarray(integer(item) if hasattr(item, "__index__") and not boolean else item)


def concrete_index_mask(mask: Any) -> Any:
    """A boolean mask as a NumPy array."""
    if type(mask) is not Tracer:
        return np.asarray(mask)
    try:
        return concretize(mask, "a boolean mask")
    except ConcretizationError as error:
        raise IndexingError(
            "x[mask]: the mask must have a known value, since the number of elements selected "
            f"is the shape of the result; got {mask.atom.aval!r}",
            *error.details,
            fix="Use functx.numpy.where(mask, x, 0), which keeps the shape, "
            "functx.numpy.nonzero(mask, size=...), or x.at[mask].set(value) to write.",
        ) from None


def parse_index(shape: Shape, items: Sequence[Any], mode: IndexingOptions) -> list[Any]:
    """What `items` ask of each axis of an array of `shape`: an entry an axis, None for new ones.

    Ellipsis stands among them where it is given, even if it selects no axis.
    """
    used = sum([_axes_used(item) for item in items])
    ellipses = sum([item is Ellipsis for item in items])
    if used > len(shape) or ellipses > 1:
        raise IndexingError(
            f"x[...]: an array of {len(shape)} dimensions takes at most {len(shape)} indices and "
            f"one Ellipsis; got {used} and {ellipses}"
        )
    found: list[Any] = []
    axis = 0
    for item in items if ellipses else (*items, _IMPLICIT_ELLIPSIS):
        if item is None:
            found.append(None)
        elif item is Ellipsis or item is _IMPLICIT_ELLIPSIS:
            if item is Ellipsis:
                found.append(Ellipsis)
            for _ in range(len(shape) - used):
                found.append(SliceIndex(axis, 0, shape[axis], 1))
                axis += 1
        elif type(item) is slice:
            found.append(_slice_index(item, axis, shape[axis]))
            axis += 1
        elif type(item) is int or (not aval_of(item).shape and aval_of(item).dtype != bool):
            found.append(ScalarIndex(axis, normalize_index(item, axis, shape[axis], mode)))
            axis += 1
        elif aval_of(item).dtype == bool:
            found += _mask_indices(item, axis, shape)
            axis += item.ndim
        else:
            found.append(ArrayIndex(axis, normalize_index(item, axis, shape[axis], mode)))
            axis += 1
    return found


_IMPLICIT_ELLIPSIS = object()
"""All axes behind the items of an index that has no Ellipsis."""


def _axes_used(item: Any) -> int:
    if item is None or item is Ellipsis:
        return 0
    return item.ndim if isinstance(item, np.ndarray) and item.dtype == bool else 1


def _slice_index(item: slice, axis: int, size: int) -> SliceIndex:
    try:
        start, stop, step = item.indices(size)
    except ConcretizationError as error:
        error.fix = (
            "A slice has a length known while tracing: use functx.lax.dynamic_slice_in_dim, "
            "or x[start + functx.numpy.arange(length)]."
        )
        raise
    except (TypeError, ValueError):
        raise IndexingError(
            f"x[...]: a slice must have integer bounds and a step that is not 0; got {item}"
        ) from None
    count = len(range(start, stop, step))
    if count < 2:
        return SliceIndex(axis, start if count else 0, count, 1)
    return SliceIndex(axis, start if step > 0 else start + (count - 1) * step, count, step)


def _mask_indices(mask: np.ndarray[Any, Any], axis: int, shape: Shape) -> list[ArrayIndex]:
    if not mask.ndim:
        return [ArrayIndex(None, np.zeros(int(mask), np.int32))]
    if mask.shape != shape[axis : axis + mask.ndim]:
        raise IndexingError(
            f"x[mask]: a mask must have the shape of the axes that it stands for; got "
            f"{mask.shape} for axes {axis} to {axis + mask.ndim - 1} of an array of shape {shape}"
        )
    places = mask.nonzero()
    return [ArrayIndex(axis + i, place.astype(np.int32)) for i, place in enumerate(places)]


def normalize_index(at: Any, axis: int, size: int, mode: IndexingOptions) -> Any:
    """`at` counted from the start of an axis of `size`; known integers are checked."""
    if is_static_index(at):
        return _normalize_static_index(at, axis, size, mode)
    return ops.normalize_start_index(at, size) if mode.wrap_negative else at


def _normalize_static_index(at: Any, axis: int, size: int, mode: IndexingOptions) -> Any:
    numbers = np.asarray([at] if type(at) is int else at)
    if numbers.dtype != np.int64:
        numbers = numbers.astype(np.int64)
    outside = (numbers < -size) | (numbers >= size)
    if mode.out_of_bounds in (None, "promise_in_bounds") and outside.any():
        raise IndexingError(
            f"x[...]: an index must be in [{-size}, {size}) for axis {axis} of size {size}; "
            f"got {numbers[outside].flat[0]}",
            fix='To read or write outside an array on purpose, use x.at[...] with mode="fill", '
            '"drop" or "clip".',
        )
    if mode.wrap_negative:
        numbers = np.where(numbers < 0, numbers + size, numbers)
    if mode.out_of_bounds == "clip":
        numbers = np.clip(numbers, 0, size - 1)
    return int(numbers[0]) if type(at) is int else numbers.astype(index_dtype((size,)))


def index_dtype(shape: Shape) -> Any:
    return np.int32 if all(n < 2**31 for n in shape) else np.int64


def is_static_index(indices: Any) -> bool:
    return type(indices) is int or isinstance(indices, np.ndarray)


class ScatterUpdate(NamedTuple):
    """How values are written: combined with what is there, None to replace it."""

    combine: Callable[[Any, Any], Any] | None
    scatter: type[ops.Scatter]


SET = ScatterUpdate(None, ops.ScatterSet)
ADD = ScatterUpdate(arithmetic.add, ops.ScatterAdd)
MULTIPLY = ScatterUpdate(arithmetic.mul, ops.ScatterMul)
MIN = ScatterUpdate(arithmetic.min, ops.ScatterMin)
MAX = ScatterUpdate(arithmetic.max, ops.ScatterMax)


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
            return ops.full(self.result_shape, literal(0, aval_of(x).dtype))
        if self.strided_bounds:
            return self.after_strides().read(self.apply_strides(x))
        if self.index_shape is None and self.mode.out_of_bounds != "fill":
            window = ops.rev(self.slice_window(x), self.reversed_axes)
        else:
            window = ops.rev(self.gather(x), self.reversed_window_dims)
        return self.to_result_shape(window)

    def to_result_shape(self, window: Any) -> Any:
        """The window in the shape of the result; with Ellipsis one element is a view as well."""
        if self.has_ellipsis and not self.result_shape and aval_of(window).shape:
            return element_view(window, (0,) * aval_of(window).ndim)
        return ops.reshape(window, self.result_shape)

    def write(self, x: Any, value: Any, update: ScatterUpdate) -> Any:
        """`x` with `value` written to what is selected."""
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
            return ops.update_strided_slice(x, value, self.window_bounds())
        return ops.DynamicUpdateSlice()(x, value, *self.scalar_starts())

    def slice_window(self, x: Any) -> Any:
        """The one window of `x`, its elements in the order that `x` has them."""
        if self.is_static:
            return _slice_bounds(x, self.window_bounds())
        return ops.DynamicSlice(tuple(self.sizes))(x, *self.scalar_starts())

    def window_bounds(self) -> list[ops.Bounds]:
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
            steps.append(ops.Slice(starts, limits, strides if self.strided_bounds else None))
        if self.reversed_axes:
            steps.append(ops.Rev(tuple(self.reversed_axes)))
        if tuple(self.sizes) != self.result_shape:
            steps.append(ops.Reshape(self.result_shape))
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

    def stride_bounds(self) -> list[ops.Bounds]:
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

    def dimension_numbers(self) -> ops.GatherDimensionNumbers:
        """Which dimensions do what when the windows are gathered."""
        return ops.GatherDimensionNumbers(
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
        return ops.concatenate([_index_column(at, block) for at in columns], len(block))

    def starts_in_dtype(self, axis: int, dtype: Any) -> Any:
        """Where windows begin along `axis`, in the signed `dtype`."""
        at = self.starts[axis]
        if type(at) is int:
            return literal(at, dtype)
        if isinstance(at, np.ndarray):
            return at.astype(dtype)
        if kind(at.dtype) == "u" and at.dtype.itemsize == dtype.itemsize:
            at = arithmetic.min(at, self.shape[axis])
        return ops.convert_element_type(at, dtype)

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
        return ops.rev(ops.reshape(value, shape), backwards) if aval_of(value).shape else value


IN_BOUNDS_MODES = "clip", "promise_in_bounds"
_MAX_CHECKED_INDICES = 1 << 16
"""The largest number of known indices that are searched for repetitions."""


# A primitive with a field of any type is not remembered by its own class.
_gather = lru_cache(maxsize=4096)(ops.Gather)


def drop_leading_ones(value: Any, rank: int) -> Any:
    """`value` without those of its first dimensions, of length 1, that exceed `rank`."""
    shape = aval_of(value).shape
    extra = len(shape) - rank
    return ops.reshape(value, shape[extra:]) if extra > 0 and prod(shape[:extra]) == 1 else value


def _index_array_shape(shapes: Sequence[Shape]) -> Shape | None:
    """The one shape that index arrays of `shapes` have together, None without any."""
    try:
        return broadcast_shapes(*shapes) if shapes else None
    except ShapeError:
        raise IndexingError(
            f"x[...]: index arrays must broadcast; got shapes {' and '.join(map(str, shapes))}"
        ) from None


def _full_bounds(shape: Shape) -> list[ops.Bounds]:
    return [(0, n, 1) for n in shape]


def _slice_bounds(x: Any, bounds: Sequence[ops.Bounds]) -> Any:
    """The elements of `x` within (start, limit, stride) along each axis."""
    if bounds == _full_bounds(aval_of(x).shape):
        return x
    starts, limits, strides = zip(*bounds, strict=True)
    return ops.Slice(starts, limits, strides if any(n != 1 for n in strides) else None)(x)


def _index_column(at: Any, block: Shape) -> Any:
    """`at`, broadcast to `block`, with a last dimension of length 1."""
    shape = aval_of(at).shape
    if shape == block:
        return ops.reshape(at, (*block, 1))
    return ops.broadcast_in_dim(at, (*block, 1), tuple(range(len(block) - len(shape), len(block))))


def fill_to_shape(value: Any, shape: Shape) -> Any:
    return value if aval_of(value).shape == shape else ops.full(shape, value)


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
    return ops.convert_element_type(value, dtype)


def make_indexer(x: Any, idx: Any, mode: IndexingOptions) -> Indexer:
    """What `idx` selects of `x`."""
    shape = aval_of(x).shape
    items = [parse_index_item(item) for item in (idx if type(idx) is tuple else (idx,))]
    return Indexer(shape, parse_index(shape, items, mode), mode)
