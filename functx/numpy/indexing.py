"""NumPy's indexing: `x[idx]`, `x.at[idx]`, `take` and their like, each in few equations.

An index is read into what it asks of each axis: a `Span`, a `Point`, `Points`, or None for a
new axis. Together they make a `Selection`: one window of an array, or one at each of many
places. It is read by a slice, a dynamic slice or a gather, and written by their counterparts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from math import prod
from operator import index as integer
from typing import Any, NamedTuple

import numpy as np
from ml_dtypes import iinfo

from functx.core.avals import Shape
from functx.core.concrete import concrete
from functx.core.dtypes import is_complex, is_inexact, kind
from functx.core.errors import (
    ArgumentError,
    ConcretizationError,
    DTypeError,
    IndexingError,
    ShapeError,
    type_name,
)
from functx.core.primitive import Primitive
from functx.core.tracing import Tracer, aval_of, bind
from functx.numpy.promotion import broadcast, broadcast_shapes, broadcast_to, operand, promote
from functx.ops import arithmetic
from functx.ops.comparison import lt
from functx.ops.conversion import convert_element_type
from functx.ops.indexing import (
    Gather,
    GatherDimensionNumbers,
    Scatter,
    ScatterAdd,
    ScatterMax,
    ScatterMin,
    ScatterMul,
    ScatterSet,
    canonical_mode,
)
from functx.ops.operands import PYTHON_SCALARS, canonical_axis, literal
from functx.ops.selection import select, select_n
from functx.ops.shaping import (
    Reshape,
    Rev,
    broadcast_in_dim,
    concatenate,
    full,
    full_like,
    pad,
    reshape,
    rev,
)
from functx.ops.slicing import DynamicSlice, DynamicUpdateSlice, Slice


class Span(NamedTuple):
    """`size` elements along an axis, every `step`-th from `start` on, backwards if it is negative.

    `start` is the least of their positions in any case.
    """

    axis: int
    start: int
    size: int
    step: int


class Point(NamedTuple):
    """One element along an axis, which leaves the shape; `at` is an int or a traced integer."""

    axis: int
    at: Any


class Points(NamedTuple):
    """Elements along an axis, at the places that the array `at` holds.

    Without an axis (from a boolean scalar) it only lends its shape to the others.
    """

    axis: int | None
    at: Any


class Mode(NamedTuple):
    """What is said of an index beside it: how to treat what is out of bounds, and promises.

    With `outside` None, known indices must be in bounds, and others are clipped when read
    and dropped when written.
    """

    outside: str | None = None
    indices_are_sorted: bool = False
    unique_indices: bool = False
    fill_value: Any = None
    wrap: bool = True


DEFAULT = Mode()


def index(x: Any, idx: Any) -> Any:
    """`x[idx]`, with the meaning that NumPy gives it.

    An integer out of bounds raises IndexingError where its value is known; a traced one
    counts as the nearest in bounds. The value of a boolean mask must be known, since it
    decides the shape.
    """
    if type(x) is Tracer:
        key = _static_key(idx)
        if key is not None:
            for step in _static_steps(x.aval.shape, key):
                x = bind(step, (x,))
            return x
    x = operand(x)
    return selection(x, idx, DEFAULT).read(x)


def _static_key(idx: Any) -> Any:
    """`idx` as a key, if it is made of ints, slices between ints, None and Ellipsis alone."""
    if type(idx) is int:
        return (idx,)
    key: list[Any] = []
    for item in idx if type(idx) is tuple else (idx,):
        if type(item) is slice:
            bounds = item.start, item.stop, item.step
            if any(bound is not None and type(bound) is not int for bound in bounds):
                return None
            key.append(bounds)
        elif type(item) is int or item is None or item is Ellipsis:
            key.append(item)
        else:
            return None
    return tuple(key)


@lru_cache(maxsize=8192)
def _static_steps(shape: Shape, key: tuple[Any, ...]) -> tuple[Primitive, ...]:
    """The operations that read what `key` selects of an array of `shape`."""
    items = [slice(*item) if type(item) is tuple else item for item in key]
    return Selection(shape, entries(shape, items, DEFAULT), DEFAULT).static_steps()


def selection(x: Any, idx: Any, mode: Mode) -> Selection:
    """What `idx` selects of `x`."""
    shape = aval_of(x).shape
    items = [_item(item) for item in (idx if type(idx) is tuple else (idx,))]
    return Selection(shape, entries(shape, items, mode), mode)


def _item(item: Any) -> Any:
    """One item of an index as an int, a slice, None, Ellipsis, or an array, checked."""
    if type(item) is int or type(item) is slice or item is None or item is Ellipsis:
        return item
    if type(item) is not Tracer:
        item = _as_array(item)
    of = kind(item.dtype) if isinstance(item, Tracer | np.ndarray) or hasattr(item, "aval") else "O"
    if of == "b":
        return _known_mask(item)
    if of not in "iu":
        raise IndexingError(
            "x[...]: an index must be made of integers, slices, integer or boolean arrays, "
            f"None and Ellipsis; got {type_name(item)}",
            fix="Convert an array of whole numbers with .astype(int)." if of in "fc" else "",
        )
    return int(item) if isinstance(item, np.ndarray) and not item.ndim else item


def _as_array(item: Any) -> Any:
    """An item of an index as an array, of NumPy where its value is known."""
    if isinstance(item, (list, tuple)):
        if any(type(one) is Tracer for one in item):
            return operand(item)
        array = np.asarray(item)
        return array if array.size else array.astype(np.int32)
    if hasattr(item, "aval") or isinstance(item, np.ndarray):
        return item
    boolean = isinstance(item, bool | np.bool_)
    return np.asarray(integer(item) if hasattr(item, "__index__") and not boolean else item)


def _known_mask(mask: Any) -> Any:
    """A boolean mask as a NumPy array."""
    if type(mask) is not Tracer:
        return np.asarray(mask)
    try:
        return concrete(mask, "a boolean mask")
    except ConcretizationError as error:
        raise IndexingError(
            "x[mask]: the mask must have a known value, since the number of elements selected "
            f"is the shape of the result; got {mask.aval!r}",
            *error.details,
            fix="Use functx.numpy.where(mask, x, 0), which keeps the shape, "
            "functx.numpy.nonzero(mask, size=...), or x.at[mask].set(value) to write.",
        ) from None


def entries(shape: Shape, items: Sequence[Any], mode: Mode) -> list[Any]:
    """What `items` ask of each axis of an array of `shape`: an entry an axis, None for new ones.

    Ellipsis stands among them even where it selects no axis.
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
    for item in items if ellipses else (*items, Ellipsis):
        if item is None:
            found.append(None)
        elif item is Ellipsis:
            found.append(Ellipsis)
            for _ in range(len(shape) - used):
                found.append(Span(axis, 0, shape[axis], 1))
                axis += 1
        elif type(item) is slice:
            found.append(_span(item, axis, shape[axis]))
            axis += 1
        elif type(item) is int or (not aval_of(item).shape and aval_of(item).dtype != bool):
            found.append(Point(axis, _place(item, axis, shape[axis], mode)))
            axis += 1
        elif aval_of(item).dtype == bool:
            found += _mask_entries(item, axis, shape)
            axis += item.ndim
        else:
            found.append(Points(axis, _place(item, axis, shape[axis], mode)))
            axis += 1
    return found


def _axes_used(item: Any) -> int:
    if item is None or item is Ellipsis:
        return 0
    return item.ndim if isinstance(item, np.ndarray) and item.dtype == bool else 1


def _span(item: slice, axis: int, size: int) -> Span:
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
        return Span(axis, start if count else 0, count, 1)
    return Span(axis, start if step > 0 else start + (count - 1) * step, count, step)


def _mask_entries(mask: np.ndarray[Any, Any], axis: int, shape: Shape) -> list[Points]:
    if not mask.ndim:
        return [Points(None, np.zeros(int(mask), np.int32))]
    if mask.shape != shape[axis : axis + mask.ndim]:
        raise IndexingError(
            f"x[mask]: a mask must have the shape of the axes that it stands for; got "
            f"{mask.shape} for axes {axis} to {axis + mask.ndim - 1} of an array of shape {shape}"
        )
    places = mask.nonzero()
    return [Points(axis + i, place.astype(np.int32)) for i, place in enumerate(places)]


def _place(at: Any, axis: int, size: int, mode: Mode) -> Any:
    """`at` counted from the start of an axis of `size`; known integers are checked."""
    if _is_known(at):
        return _known_place(at, axis, size, mode)
    dtype = at.dtype
    if kind(dtype) == "u" or not mode.wrap:
        return at
    if iinfo(dtype).max < size:
        at = convert_element_type(at, np.int32)
    return select(lt(at, 0), arithmetic.add(at, size), at)


def _known_place(at: Any, axis: int, size: int, mode: Mode) -> Any:
    numbers = np.asarray([at] if type(at) is int else at)
    if numbers.dtype.kind == "u":
        numbers = numbers.astype(np.int64)
    outside = (numbers < -size) | (numbers >= size)
    if mode.outside in (None, "promise_in_bounds") and outside.any():
        raise IndexingError(
            f"x[...]: an index must be in [{-size}, {size}) for axis {axis} of size {size}; "
            f"got {numbers[outside].flat[0]}",
            fix='To read or write outside an array on purpose, use x.at[...] with mode="fill", '
            '"drop" or "clip".',
        )
    if mode.wrap:
        numbers = np.where(numbers < 0, numbers + size, numbers)
    if mode.outside == "clip":
        numbers = np.clip(numbers, 0, size - 1)
    return int(numbers[0]) if type(at) is int else numbers.astype(_index_dtype((size,)))


def _index_dtype(shape: Shape) -> Any:
    return np.int32 if all(n < 2**31 for n in shape) else np.int64


class Update(NamedTuple):
    """How values are written: combined with what is there, None to replace it."""

    combine: Callable[[Any, Any], Any] | None
    scatter: type[Scatter]


SET = Update(None, ScatterSet)
ADD = Update(arithmetic.add, ScatterAdd)
MULTIPLY = Update(arithmetic.mul, ScatterMul)
MIN = Update(arithmetic.min, ScatterMin)
MAX = Update(arithmetic.max, ScatterMax)


class Selection:
    """What an index selects of an array of `shape`, and how that is read and written.

    Along an axis a window begins at `starts` and has the length `sizes`; `strided` holds
    the (start, limit, stride) of axes that are thinned out first. With `Points` there is a
    window at each place of the shape `block`, which is None without.
    """

    def __init__(self, shape: Shape, found: Sequence[Any], mode: Mode):
        self.shape = shape
        self.found = found
        self.mode = mode
        self.starts: list[Any] = [0] * len(shape)
        self.sizes = [1] * len(shape)
        self.strided: dict[int, tuple[int, int, int]] = {}
        self.backwards: list[int] = []
        self.pointed: list[int] = []
        for entry in found:
            if type(entry) is Span:
                self._add_span(entry)
            elif type(entry) in (Point, Points) and entry.axis is not None:
                self.starts[entry.axis] = entry.at
                self.pointed.append(entry.axis)
        blocks = [aval_of(entry.at).shape for entry in found if type(entry) is Points]
        self.block: Shape | None = broadcast_shapes(*blocks) if blocks else None
        self.static = self.block is None and all(
            type(start) is int and 0 <= start <= n - size
            for start, size, n in zip(self.starts, self.sizes, shape, strict=True)
        )
        self._lay_out()

    def _add_span(self, span: Span) -> None:
        axis, start, size, step = span
        self.sizes[axis] = size
        if step < 0:
            self.backwards.append(axis)
        if abs(step) == 1:
            self.starts[axis] = start
        else:
            self.strided[axis] = start, start + (size - 1) * abs(step) + 1, abs(step)

    def _lay_out(self) -> None:
        """Find the shape of the result, and of the windows, which lack its new axes.

        The block comes where its indices stand if they stand together, else first.
        """
        at = [i for i, entry in enumerate(self.found) if type(entry) in (Point, Points)]
        block = self.block or ()
        together = bool(at) and at[-1] - at[0] < len(at)
        result, window = ([], []) if together else (list(block), list(block))
        self.offset_dims: list[int] = []
        self.window_backwards: list[int] = []
        for i, entry in enumerate(self.found):
            if together and i == at[0]:
                result += block
                window += block
            if entry is None:
                result.append(1)
            elif type(entry) is Span:
                self.offset_dims.append(len(window))
                if entry.step < 0:
                    self.window_backwards.append(len(window))
                result.append(entry.size)
                window.append(entry.size)
        self.result_shape = tuple(result)
        self.window_shape = tuple(window)

    def read(self, x: Any) -> Any:
        """The elements of `x` that are selected."""
        if self.static:
            for step in self.static_steps():
                x = bind(step, (x,))
            return x
        if self.is_empty():
            return full(self.result_shape, literal(0, aval_of(x).dtype))
        if self.strided:
            return self.thinned().read(self.thin(x))
        if self.block is None and self.mode.outside != "fill":
            window = rev(self.one_window(x), self.backwards)
        else:
            window = rev(self.gather(x), self.window_backwards)
        return reshape(window, self.result_shape)

    def write(self, x: Any, value: Any, update: Update) -> Any:
        """`x` with `value` written to what is selected."""
        value = self.fitted(value, aval_of(x).dtype)
        if self.is_empty():
            return x
        if self.strided and not self.static:
            part = self.thinned().write(self.thin(x), value, update)
            return _put(x, part, self.thinning())
        if self.block is None and (self.static or self.mode.outside in _TRUSTED):
            return self.write_window(x, value, update)
        value = self.arranged(value, self.window_shape, self.window_backwards)
        places = self.places()
        scatter = update.scatter(
            *self.numbers(),
            self.mode.indices_are_sorted,
            self.writes_once(places),
            self.mode.outside if self.mode.outside in _TRUSTED else "drop",
        )
        return scatter(x, places, _filled(value, self.window_shape))

    def write_window(self, x: Any, value: Any, update: Update) -> Any:
        """`x` with `value` written to its one window, which lies inside it."""
        sizes = tuple(self.sizes)
        value = self.arranged(value, sizes, self.backwards)
        if update.combine is not None:
            value = update.combine(self.one_window(x), value)
        value = _filled(value, sizes)
        if self.static:
            return _put(x, value, self.bounds())
        return DynamicUpdateSlice()(x, value, *self.scalar_starts())

    def one_window(self, x: Any) -> Any:
        """The one window of `x`, its elements in the order that `x` has them."""
        if self.static:
            return _cut(x, self.bounds())
        return DynamicSlice(tuple(self.sizes))(x, *self.scalar_starts())

    def bounds(self) -> list[Bounds]:
        """The (start, limit, stride) of the one window, whose place is known."""
        return [
            self.strided.get(axis, (start, start + size, 1))
            for axis, (start, size) in enumerate(zip(self.starts, self.sizes, strict=True))
        ]

    def static_steps(self) -> tuple[Primitive, ...]:
        """The operations that read the one window, whose place is known."""
        steps: list[Primitive] = []
        bounds = self.bounds()
        if bounds != _whole(self.shape):
            starts, limits, strides = zip(*bounds, strict=True)
            steps.append(Slice(starts, limits, strides if self.strided else None))
        if self.backwards:
            steps.append(Rev(tuple(self.backwards)))
        if tuple(self.sizes) != self.result_shape:
            steps.append(Reshape(self.result_shape))
        return tuple(steps)

    def is_empty(self) -> bool:
        """Whether nothing is selected. Raises where something is to be, of an axis without any."""
        empty = 0 in self.result_shape
        for axis in self.pointed:
            if not self.shape[axis] and not empty:
                raise IndexingError(
                    "x[...]: an axis of length 0 has no elements to index; got axis "
                    f"{axis} of an array of shape {self.shape}"
                )
        return empty

    def thinning(self) -> list[Bounds]:
        """The (start, limit, stride) of what the strided axes keep of the array."""
        return [self.strided.get(axis, (0, n, 1)) for axis, n in enumerate(self.shape)]

    def thin(self, x: Any) -> Any:
        """`x` with only the elements that the strided axes keep."""
        return _cut(x, self.thinning())

    def thinned(self) -> Selection:
        """What is selected of the array with only the elements that the strided axes keep."""
        shape = tuple([len(range(*bounds)) for bounds in self.thinning()])
        found = [
            Span(entry.axis, 0, entry.size, entry.step // abs(entry.step))
            if type(entry) is Span and entry.axis in self.strided
            else entry
            for entry in self.found
        ]
        return Selection(shape, found, self.mode)

    def gather(self, x: Any) -> Any:
        """The windows of `x`, one at each place."""
        mode = self.mode
        read = Gather(
            *self.numbers(),
            mode.indices_are_sorted,
            mode.unique_indices,
            mode.outside or "clip",
            tuple(self.sizes),
            mode.fill_value,
        )
        return read(x, self.places())

    def numbers(self) -> GatherDimensionNumbers:
        """Which dimensions do what when the windows are gathered."""
        return GatherDimensionNumbers(
            tuple(self.offset_dims), tuple(sorted(self.pointed)), tuple(self.indexed())
        )

    def indexed(self) -> list[int]:
        """The axes along which windows begin elsewhere than at 0."""
        return [axis for axis, at in enumerate(self.starts) if type(at) is not int or at != 0]

    def places(self) -> Any:
        """Where the windows begin: index vectors, along the last dimension of an array."""
        block = self.block or ()
        columns = [self.starts[axis] for axis in self.indexed()]
        if all(isinstance(at, int | np.ndarray) for at in columns):
            vectors = np.zeros((*block, len(columns)), _index_dtype(self.shape))
            for k, at in enumerate(columns):
                vectors[..., k] = at
            return vectors
        if len(columns) == 1:
            return _column(columns[0], block)
        wide = any(aval_of(at).dtype.itemsize == 8 for at in columns if type(at) is not int)
        dtype = np.dtype("int64" if wide else "int32")
        columns = [self.in_dtype(axis, dtype) for axis in self.indexed()]
        return concatenate([_column(at, block) for at in columns], len(block))

    def in_dtype(self, axis: int, dtype: Any) -> Any:
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
        """Where the one window begins: a scalar an axis, those that are known in the dtype of
        the others."""
        dtypes = [at.dtype for at in self.starts if type(at) is not int]
        dtype = dtypes[0] if dtypes else np.dtype("int32")
        return [literal(at, dtype) if type(at) is int else at for at in self.starts]

    def writes_once(self, places: Any) -> bool:
        """Whether it is known that no element is written twice."""
        if self.mode.unique_indices or self.block is None or prod(self.block) <= 1:
            return True
        if not isinstance(places, np.ndarray) or places.size > _EXAMINED:
            return False
        sizes = [self.shape[axis] for axis in self.indexed()]
        weights = np.cumprod([1, *sizes[:0:-1]])[::-1]
        return np.unique(places.astype(np.int64) @ weights).size == prod(self.block)

    def fitted(self, value: Any, dtype: Any) -> Any:
        """`value` as an array of the shape of the selection, or a scalar, of `dtype`."""
        value = cast(value, dtype)
        shape = aval_of(value).shape
        if not shape:
            return value
        extra = len(shape) - len(self.result_shape)
        if extra > 0 and prod(shape[:extra]) == 1:
            value, shape = reshape(value, shape[extra:]), shape[extra:]
        if len(shape) > len(self.result_shape) or any(
            n not in (1, m)
            for n, m in zip(reversed(shape), reversed(self.result_shape), strict=False)
        ):
            raise ShapeError(
                "x.at[...]: the value must broadcast to the shape of what is indexed; got "
                f"{aval_of(value)!r} for shape {self.result_shape}"
            )
        return broadcast_to(value, self.result_shape)

    def arranged(self, value: Any, shape: Shape, backwards: Sequence[int]) -> Any:
        """`value` in the shape and order of the windows; a scalar stays one."""
        return rev(reshape(value, shape), backwards) if aval_of(value).shape else value


_TRUSTED = "clip", "promise_in_bounds"
_EXAMINED = 1 << 16
"""The largest number of known indices that are searched for repetitions."""

Bounds = tuple[int, int, int]


def _whole(shape: Shape) -> list[Bounds]:
    return [(0, n, 1) for n in shape]


def _cut(x: Any, bounds: Sequence[Bounds]) -> Any:
    """The elements of `x` within (start, limit, stride) along each axis."""
    if bounds == _whole(aval_of(x).shape):
        return x
    starts, limits, strides = zip(*bounds, strict=True)
    return Slice(starts, limits, strides if any(n != 1 for n in strides) else None)(x)


def _put(x: Any, part: Any, bounds: Sequence[Bounds]) -> Any:
    """`x` with `part` in place of the elements within (start, limit, stride) along each axis."""
    shape = aval_of(x).shape
    if bounds == _whole(shape):
        return part
    if all(stride == 1 for _, _, stride in bounds):
        starts = [literal(start, np.dtype("int32")) for start, _, _ in bounds]
        return DynamicUpdateSlice()(x, part, *starts)
    config = [
        (start, n - limit, stride - 1)
        for (start, limit, stride), n in zip(bounds, shape, strict=True)
    ]
    replaced = pad(full(aval_of(part).shape, literal(True, np.dtype("bool"))), False, config)
    return select(replaced, pad(part, 0, config), x)


def _column(at: Any, block: Shape) -> Any:
    """`at`, broadcast to `block`, with a last dimension of length 1."""
    shape = aval_of(at).shape
    if shape == block:
        return reshape(at, (*block, 1))
    return broadcast_in_dim(at, (*block, 1), tuple(range(len(block) - len(shape), len(block))))


def _filled(value: Any, shape: Shape) -> Any:
    return value if aval_of(value).shape == shape else full(shape, value)


def cast(value: Any, dtype: Any) -> Any:
    """`value` in `dtype`, as assignment converts it."""
    value = operand(value)
    aval = aval_of(value)
    if is_complex(aval.dtype) and not is_complex(dtype):
        raise DTypeError(
            f"x.at[...]: a complex value must not be written to an array of {dtype}; got {aval!r}",
            fix="Write its real part, or convert the array with astype.",
        )
    if type(value) in PYTHON_SCALARS:
        return literal(value if is_inexact(dtype) else int(value), dtype)
    return convert_element_type(value, dtype)


class At:
    """The property `x.at`: index it to say what of `x` to read or to write.

    `x.at[idx].set(v)` is the array that `x` would be after `x[idx] = v`, and `add`,
    `multiply` and the others after the in-place operation of that name.
    """

    __slots__ = ("x",)

    def __init__(self, x: Any):
        self.x = x

    def __getitem__(self, idx: Any) -> Place:
        return Place(self.x, idx)

    def __repr__(self) -> str:
        return f"At({self.x!r})"


class Place:
    """What an index selects of an array, to be read or written: `x.at[idx]`.

    The keywords of all methods: `mode` says what to do where an index is out of bounds. By
    default that is an IndexingError for a known index, while a traced one is clipped when
    read and dropped when written; "clip" moves any into bounds, "fill" reads `fill_value`
    (None: nan, or the least integer), "drop" does not write, "promise_in_bounds" says that
    there are none. `indices_are_sorted` and `unique_indices` are promises too.
    """

    __slots__ = ("idx", "x")

    def __init__(self, x: Any, idx: Any):
        self.x = operand(x)
        self.idx = idx

    def __repr__(self) -> str:
        return f"Place({self.x!r}, {self.idx!r})"

    def get(
        self,
        *,
        indices_are_sorted: bool = False,
        unique_indices: bool = False,
        mode: Any = None,
        fill_value: Any = None,
    ) -> Any:
        """`x[idx]`, with a choice of what is read out of bounds."""
        if mode is None and fill_value is not None:
            mode = "fill"
        flags = indices_are_sorted, unique_indices, known_number(fill_value)
        return selection(self.x, self.idx, _mode(mode, *flags)).read(self.x)

    def set(self, values: Any, **keywords: Any) -> Any:
        """`x` after `x[idx] = values`, which are converted to its dtype; the last one to a
        place stays."""
        return self._write(values, SET, **keywords)

    def add(self, values: Any, **keywords: Any) -> Any:
        """`x` after `x[idx] += values`, repeated indices adding up."""
        return self._write(values, ADD, **keywords)

    def subtract(self, values: Any, **keywords: Any) -> Any:
        """`x` after `x[idx] -= values`, repeated indices adding up."""
        return self._write(arithmetic.neg(cast(values, aval_of(self.x).dtype)), ADD, **keywords)

    def multiply(self, values: Any, **keywords: Any) -> Any:
        """`x` after `x[idx] *= values`, repeated indices multiplying up."""
        return self._write(values, MULTIPLY, **keywords)

    mul = multiply

    def divide(self, values: Any, **keywords: Any) -> Any:
        """`x` after `x[idx] /= values`, repeated indices dividing again; a float array."""
        from functx.numpy.elementwise import true_divide

        return true_divide(self.x, self._factors(values, **keywords))

    def power(self, values: Any, **keywords: Any) -> Any:
        """`x` after `x[idx] **= values`, repeated indices raising again."""
        from functx.numpy.elementwise import power

        return power(self.x, self._factors(values, **keywords))

    def min(self, values: Any, **keywords: Any) -> Any:
        """`x` after `x[idx] = minimum(x[idx], values)`, the least where indices repeat."""
        return self._write(values, MIN, **keywords)

    def max(self, values: Any, **keywords: Any) -> Any:
        """`x` after `x[idx] = maximum(x[idx], values)`, the greatest where indices repeat."""
        return self._write(values, MAX, **keywords)

    def apply(self, fun: Callable[[Any], Any], **keywords: Any) -> Any:
        """`x` after `x[idx] = fun(x[idx])`: `fun` is applied once, also where indices repeat."""
        mode = _mode(**keywords)
        shape, dtype = aval_of(self.x).shape, aval_of(self.x).dtype
        masked = masked_axes(self.idx, shape)
        if masked is not None:
            return select(masked.spread(shape), cast(fun(self.x), dtype), self.x)
        found = selection(self.x, self.idx, mode)
        # What is read for places that are then dropped does not matter.
        reading = mode._replace(outside="clip" if mode.outside == "fill" else mode.outside)
        return found.write(self.x, fun(selection(self.x, self.idx, reading).read(self.x)), SET)

    def _factors(self, values: Any, **keywords: Any) -> Any:
        """Ones in the shape of `x`, multiplied at the index by `values`."""
        return Place(full_like(self.x, 1), self.idx).multiply(values, **keywords)

    def _write(self, values: Any, update: Update, **keywords: Any) -> Any:
        mode = _mode(**keywords)
        aval = aval_of(self.x)
        values = cast(values, aval.dtype)
        masked = masked_axes(self.idx, aval.shape)
        if masked is not None and masked.shares(values, aval.shape):
            new = masked.fitted(values, aval.shape)
            if update.combine is not None:
                new = update.combine(self.x, new)
            return select(masked.spread(aval.shape), new, self.x)
        return selection(self.x, self.idx, mode).write(self.x, values, update)


class MaskedAxes(NamedTuple):
    """An index that is a boolean mask of the axes from `axis` on, and all of the others."""

    mask: Any
    axis: int

    def spread(self, shape: Shape) -> Any:
        """The mask of each element of an array of `shape`; a scalar stays one."""
        own = aval_of(self.mask).shape
        if own != shape[self.axis : self.axis + len(own)]:
            raise IndexingError(
                "x.at[mask]: a mask must have the shape of the axes that it stands for; got "
                f"{own} from axis {self.axis} on of an array of shape {shape}"
            )
        if not own or own == shape:
            return self.mask
        return broadcast_in_dim(self.mask, shape, tuple(range(self.axis, self.axis + len(own))))

    def shares(self, values: Any, shape: Shape) -> bool:
        """Whether all elements that the mask selects get the same of `values`.

        Then their number need not be known.
        """
        after = len(shape) - self.axis - aval_of(self.mask).ndim
        own = aval_of(values).shape
        return len(own) <= after or own[-1 - after] == 1

    def fitted(self, values: Any, shape: Shape) -> Any:
        """`values` for each element of an array of `shape`; a scalar stays one."""
        own = aval_of(values).shape
        if not own:
            return values
        after = len(shape) - self.axis - aval_of(self.mask).ndim
        lead = own[: -1 - after] if len(own) > after else ()
        if len(own) > after:
            masked = aval_of(self.mask).ndim
            values = reshape(values, (*lead, *[1] * masked, *own[len(own) - after :]))
        return broadcast_to(values, shape)


def masked_axes(idx: Any, shape: Shape) -> MaskedAxes | None:
    """`idx` as a mask, if it has one and otherwise only full slices and Ellipsis."""
    items = idx if type(idx) is tuple else (idx,)
    masks = [i for i, item in enumerate(items) if _is_mask(item)]
    if len(masks) != 1:
        return None
    (at,) = masks
    before, after = items[:at], items[at + 1 :]
    if not all(item is Ellipsis or _is_full(item) for item in (*before, *after)):
        return None
    axis = at
    if any(item is Ellipsis for item in before):
        axis = len(shape) - items[at].ndim - len(after)
    return MaskedAxes(items[at], axis) if 0 <= axis <= len(shape) - items[at].ndim else None


def _is_mask(item: Any) -> bool:
    if type(item) is Tracer:
        return item.dtype == bool
    return getattr(item, "ndim", 0) > 0 and item.dtype == bool


def _is_full(item: Any) -> bool:
    return type(item) is slice and item.start is item.stop is item.step is None


def _mode(
    mode: Any = None,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    fill_value: Any = None,
) -> Mode:
    outside = None if mode is None else canonical_mode(mode, "fill")
    return Mode(outside, indices_are_sorted, unique_indices, fill_value)


def known_number(value: Any) -> Any:
    """`value` as a Python number, or None."""
    if value is None or type(value) in PYTHON_SCALARS:
        return value
    if type(value) is Tracer or aval_of(value).shape:
        raise ArgumentError(
            f"fill_value must be a number that is known while tracing; got {type_name(value)}"
        )
    return np.asarray(value).item()


def take(
    x: Any,
    indices: Any,
    axis: int | None = None,
    mode: Any = None,
    fill_value: Any = None,
    *,
    unique_indices: bool = False,
    indices_are_sorted: bool = False,
) -> Any:
    """The elements of `x` at `indices` along `axis`, or of the flattened array without one.

    The shape of `indices` takes the place of the axis. By default a known index out of
    bounds raises IndexingError, and a traced one reads `fill_value` (None: nan, or the
    least integer). With the mode "wrap" indices count modulo the length; with "clip" they
    are moved into bounds, negative ones to 0.
    """
    x, indices = operand(x), _integers("take", indices)
    if axis is None:
        x, axis = reshape(x, (aval_of(x).size,)), 0
    shape = aval_of(x).shape
    axis = canonical_axis(axis, len(shape))
    if mode == "wrap":
        size = shape[axis] or 1
        indices, mode = (
            (indices % size if _is_known(indices) else arithmetic.rem(indices, size)),
            "clip",
        )
        settings = _mode(mode)
    else:
        settings = _mode_of_take(mode, indices)
    settings = settings._replace(
        fill_value=known_number(fill_value),
        unique_indices=unique_indices,
        indices_are_sorted=indices_are_sorted,
    )
    return selection(x, (*[slice(None)] * axis, indices), settings).read(x)


def _mode_of_take(mode: Any, indices: Any) -> Mode:
    if mode in (None, "raise"):
        return Mode() if _is_known(indices) else Mode("fill")
    found = _mode(mode)
    return found._replace(wrap=found.outside != "clip")


def take_along_axis(
    x: Any, indices: Any, axis: int | None = -1, mode: Any = None, fill_value: Any = None
) -> Any:
    """For each index, the element of `x` there along `axis`, at the index's own place beside it.

    `x` and `indices` have as many dimensions, and broadcast but for `axis`; without an axis
    both are flattened. `mode` is as in `take`.
    """
    x, indices, axis = _along_axis("take_along_axis", x, indices, axis)
    settings = _mode_of_take(mode, indices)
    fields, places, shape = _lanes(aval_of(x).shape, indices, axis, settings)
    if 0 in shape:
        return full(shape, literal(0, aval_of(x).dtype))
    sizes = tuple([n if d in fields["offset_dims"] else 1 for d, n in enumerate(aval_of(x).shape)])
    outside, fill_value = settings.outside or "clip", known_number(fill_value)
    return Gather(**fields, mode=outside, slice_sizes=sizes, fill_value=fill_value)(x, places)


def put_along_axis(x: Any, indices: Any, values: Any, axis: int | None, mode: Any = None) -> Any:
    """`x` with `values` where `take_along_axis(x, indices, axis)` reads; a new array.

    A traced index out of bounds writes nothing.
    """
    whole = aval_of(operand(x)).shape
    x, indices, axis = _along_axis("put_along_axis", x, indices, axis)
    settings = _mode_of_take(mode, indices)
    fields, places, shape = _lanes(aval_of(x).shape, indices, axis, settings)
    values = cast(values, aval_of(x).dtype)
    if 0 in shape:
        return reshape(x, whole)
    outside = settings.outside if settings.outside in _TRUSTED else "drop"
    values = _filled(broadcast_to(values, shape), shape)
    return reshape(ScatterSet(**fields, mode=outside)(x, places, values), whole)


def _along_axis(name: str, x: Any, indices: Any, axis: int | None) -> tuple[Any, Any, int]:
    x, indices = operand(x), _integers(name, indices)
    if axis is None:
        flat = [reshape(a, (aval_of(a).size,)) for a in (x, indices)]
        return flat[0], flat[1], 0
    shape, own = aval_of(x).shape, aval_of(indices).shape
    axis = canonical_axis(axis, len(shape))
    if len(own) != len(shape) or any(
        n != m and 1 not in (n, m) and d != axis
        for d, (n, m) in enumerate(zip(shape, own, strict=False))
    ):
        raise ShapeError(
            f"{name}: array and indices must have as many dimensions, which broadcast but for "
            f"axis {axis}; got {shape} and {own}"
        )
    return x, indices, axis


def _lanes(
    shape: Shape, indices: Any, axis: int, settings: Mode
) -> tuple[dict[str, Shape], Any, Shape]:
    """The gather that reads one element along `axis` for each index beside it.

    Its dimension numbers, the index vectors, and the shape of the result.
    """
    own = aval_of(indices).shape
    others = [d for d in range(len(shape)) if d != axis]
    whole = [d for d in others if own[d] == 1 != shape[d]]
    paired = [d for d in others if own[d] == shape[d] != 1]
    kept = [d for d in range(len(own)) if d not in whole]
    places = _place(indices, axis, shape[axis], settings)
    fields = {
        "offset_dims": tuple(whole),
        "collapsed_slice_dims": tuple([d for d in range(len(shape)) if d not in whole + paired]),
        "start_index_map": (axis,),
        "operand_batching_dims": tuple(paired),
        "start_indices_batching_dims": tuple([kept.index(d) for d in paired]),
    }
    result = tuple([shape[d] if d in whole else n for d, n in enumerate(own)])
    if 0 not in result and not shape[axis]:
        raise IndexingError(f"an axis of length 0 has no elements to index; got axis {axis}")
    return fields, reshape(places, (*[own[d] for d in kept], 1)), result


def _is_known(indices: Any) -> bool:
    return type(indices) is int or isinstance(indices, np.ndarray)


def _integers(name: str, indices: Any) -> Any:
    """`indices` as an int, a NumPy array if all is known, or a traced array; checked."""
    found = _item(indices)
    if (not _is_known(found) and not hasattr(found, "dtype")) or (
        type(found) is not int and found.dtype == bool
    ):
        raise IndexingError(f"{name}: indices must be integers; got {type_name(indices)}")
    return found


def compress(condition: Any, x: Any, axis: int | None = None) -> Any:
    """The elements of `x` along `axis` (flattened without one) where `condition` holds.

    The value of `condition` must be known, since it decides the shape.
    """
    (places,) = np.asarray(_known_mask(condition)).nonzero()
    return take(x, places, axis)


def choose(a: Any, choices: Any, mode: str = "raise") -> Any:
    """For each element of `a`, that one of `choices` of which it is the number.

    With the mode "raise" a known number out of bounds is an IndexingError, and a traced one
    counts as the nearest, as with "clip"; with "wrap" numbers count modulo their count.
    """
    a, cases = _integers("choose", a), promote(*choices)
    count = len(cases)
    if mode == "wrap":
        a = (
            a % count
            if _is_known(a)
            else arithmetic.rem(arithmetic.add(arithmetic.rem(a, count), count), count)
        )
    elif (
        mode == "raise" and _is_known(a) and np.any((np.asarray(a) < 0) | (np.asarray(a) >= count))
    ):
        raise IndexingError(f"choose: numbers must be in [0, {count}); got {a}")
    if type(a) is int:
        a = np.asarray(a)
    a, *cases = broadcast(a, *cases)
    chosen = select_n(a, *cases)
    return chosen
