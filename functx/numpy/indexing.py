"""Indexing: `x[idx]`, `x.at[idx]`, `take`, `take_along_axis` and `choose`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, TypeAlias, TypedDict, Unpack

import jax
import numpy as np

from functx import ops
from functx.core.binding import bind
from functx.core.errors import ArgumentError, IndexingError, ShapeError, type_name
from functx.core.primitive import Primitive
from functx.core.tracer import Tracer, aval_of
from functx.core.types import Shape
from functx.core.typing import ArrayLike, ArrayOrList, Index, Out, Value
from functx.core.wrappers import is_wrapper
from functx.numpy.boolean_masks import masked_elements, parse_mask_index
from functx.numpy.index_parsing import (
    IndexingOptions,
    Position,
    is_static_index,
    normalize_index,
    parse_index,
    parse_index_item,
)
from functx.numpy.indexer import (
    ADD,
    IN_BOUNDS_MODES,
    MAX,
    MIN,
    MULTIPLY,
    SET,
    Indexer,
    ScatterUpdate,
    cast_for_assignment,
    fill_to_shape,
    make_indexer,
)
from functx.numpy.promotion import broadcast, broadcast_to, copy_if_shared, operand, promote
from functx.numpy.shapes import in_order
from functx.ops import arithmetic
from functx.ops.operands import PYTHON_SCALARS, canonical_axis, literal
from functx.transforms.control.loops import fori_loop

COUNT_DTYPE = np.dtype("int32")


def getitem(x: ArrayLike, idx: Index) -> Any:
    """`x[idx]` by NumPy's rules.

    A known integer out of bounds raises IndexingError; a traced one is clipped. A boolean mask
    decides the shape of the result, so its value must be known; with an unknown mask the
    elements can only be updated (`x[mask] += y`).

    Ints, slices, None and Ellipsis give a view, and so does a traced integer, which counts as a
    number. A NumPy array without dimensions counts as an index array: the result is a copy.
    """
    if type(x) is Tracer:
        key = static_index_key(idx)
        if key is not None:
            for step in static_index_primitives(x.atom.aval.shape, key):
                x = bind(step, (x,))
            return x
    x = operand(x)
    try:
        result = make_indexer(x, idx, IndexingOptions()).read(x)
        items = idx if type(idx) is tuple else (idx,)
        return copy_if_shared(result, x) if np.ndarray in map(type, items) else result
    except IndexingError as error:
        masked = masked_elements(x, idx, error)
        if masked is None:
            raise
        return masked


def static_index_key(idx: Index) -> tuple[Any, ...] | None:
    """A hashable key of `idx`, if it has only ints, slices of ints, None and Ellipsis; else None."""
    if type(idx) is int:
        return (idx,)
    key: list[object] = []
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
def static_index_primitives(shape: Shape, key: tuple[object, ...]) -> tuple[Primitive, ...]:
    """The primitives that read the elements that `key` selects from an array of `shape`."""
    items = [slice(*item) if type(item) is tuple else item for item in key]
    return Indexer(
        shape, parse_index(shape, items, IndexingOptions()), IndexingOptions()
    ).static_primitives()


IndexMode: TypeAlias = str | jax.lax.GatherScatterMode | None
"""The mode of a gather or scatter for indices out of bounds; None for the default."""


class IndexKeywords(TypedDict, total=False):
    """The keywords of the methods of `x.at[idx]`."""

    mode: IndexMode
    indices_are_sorted: bool
    unique_indices: bool
    fill_value: complex | None
    out_sharding: object
    wrap_negative_indices: bool


class At:
    """The property `x.at`, as in JAX: `x.at[idx]` selects elements to read or to write.

    `x.at[idx].set(v)` returns `x` as it is after `x[idx] = v`; `add`, `multiply` and the other
    methods return `x` as it is after the in-place operation of that name.
    """

    __slots__ = ("x",)

    def __init__(self, x: ArrayOrList):
        self.x = x

    def __getitem__(self, idx: Index) -> IndexUpdateRef:
        return IndexUpdateRef(self.x, idx)

    def __repr__(self) -> str:
        return f"At({self.x!r})"


class IndexUpdateRef:
    """The elements of an array that an index selects, to read or to write: `x.at[idx]`.

    All methods take these keywords. `mode` says what happens with an index out of bounds: by
    default a known one raises IndexingError, and a traced one is clipped when read and dropped
    when written; "clip" moves it into bounds, "fill" reads `fill_value` (None: nan, or the least
    integer), "drop" writes nothing, "promise_in_bounds" promises that there is none.
    `indices_are_sorted` and `unique_indices` are promises too. With `wrap_negative_indices=False`
    negative indices are out of bounds, instead of counting from the end.
    """

    __slots__ = ("idx", "x")

    def __init__(self, x: ArrayOrList, idx: Index):
        self.x = operand(x)
        self.idx = idx

    def __repr__(self) -> str:
        return f"IndexUpdateRef({self.x!r}, {self.idx!r})"

    def get(
        self,
        *,
        indices_are_sorted: bool = False,
        unique_indices: bool = False,
        mode: IndexMode = None,
        fill_value: ArrayLike | None = None,
        **keywords: Any,
    ) -> Value:
        """A copy of `x[idx]`; `mode` and `fill_value` decide the elements out of bounds."""
        if mode is None and fill_value is not None:
            mode = "fill"
        flags = indices_are_sorted, unique_indices, static_fill_value(fill_value)
        options = _indexing_options(mode, *flags, **keywords)
        return copy_if_shared(make_indexer(self.x, self.idx, options).read(self.x), self.x)

    def set(self, values: ArrayOrList, **keywords: Unpack[IndexKeywords]) -> Value:
        """`x` after `x[idx] = values`, in the dtype of `x`; of repeated indices the last write remains."""
        return self._write(values, SET, **keywords)

    def add(self, values: ArrayOrList, **keywords: Unpack[IndexKeywords]) -> Value:
        """`x` after `x[idx] += values`; repeated indices accumulate."""
        return self._write(values, ADD, **keywords)

    def subtract(self, values: ArrayOrList, **keywords: Unpack[IndexKeywords]) -> Value:
        """`x` after `x[idx] -= values`; repeated indices accumulate."""
        return self._write(
            arithmetic.neg(cast_for_assignment(values, aval_of(self.x).dtype)), ADD, **keywords
        )

    def multiply(self, values: ArrayOrList, **keywords: Unpack[IndexKeywords]) -> Value:
        """`x` after `x[idx] *= values`; repeated indices accumulate."""
        return self._write(values, MULTIPLY, **keywords)

    mul = multiply

    def divide(self, values: ArrayOrList, **keywords: Unpack[IndexKeywords]) -> Value:
        """`x` after `x[idx] /= values`, as a float array; repeated indices divide again."""
        from functx.numpy.operators import true_divide

        return true_divide(self.x, self._factors(values, **keywords))

    def power(self, values: ArrayOrList, **keywords: Unpack[IndexKeywords]) -> Value:
        """`x` after `x[idx] **= values`; repeated indices raise to the power again."""
        from functx.numpy.operators import power

        return power(self.x, self._factors(values, **keywords))

    def min(self, values: ArrayOrList, **keywords: Unpack[IndexKeywords]) -> Value:
        """`x` after `x[idx] = minimum(x[idx], values)`, the least for repeated indices."""
        return self._write(values, MIN, **keywords)

    def max(self, values: ArrayOrList, **keywords: Unpack[IndexKeywords]) -> Value:
        """`x` after `x[idx] = maximum(x[idx], values)`, the largest for repeated indices."""
        return self._write(values, MAX, **keywords)

    def apply(
        self, fun: Callable[[Value], ArrayOrList], **keywords: Unpack[IndexKeywords]
    ) -> Value:
        """`x` after `x[idx] = fun(x[idx])`; repeated indices apply `fun` again."""
        mode = _indexing_options(**keywords)
        shape, dtype = aval_of(self.x).shape, aval_of(self.x).dtype
        masked = parse_mask_index(self.idx, shape)
        if masked is not None:
            return ops.select(
                masked.broadcast_mask(shape), cast_for_assignment(fun(self.x), dtype), self.x
            )
        indexer = make_indexer(self.x, self.idx, mode)
        # Elements read out of bounds are not written.
        read_mode = mode._replace(
            out_of_bounds="clip" if mode.out_of_bounds == "fill" else mode.out_of_bounds
        )
        reader = Indexer(shape, indexer.entries, read_mode)
        elements = reader.read(self.x)
        if indexer.index_shape is None or indexer.has_unique_indices(indexer.start_indices()):
            return copy_if_shared(indexer.write(self.x, fun(elements), SET), self.x)
        counts = reader.read(indexer.write(ops.full(shape, literal(0, COUNT_DTYPE)), 1, ADD))

        def apply_again(i: Value, value: Value) -> Value:
            return ops.select(ops.lt(i, counts), cast_for_assignment(fun(value), dtype), value)

        updated = fori_loop(
            0, ops.reduce_max(counts, tuple(range(aval_of(counts).ndim))), apply_again, elements
        )
        return indexer.write(self.x, updated, SET)

    def _factors(self, values: ArrayOrList, **keywords: Unpack[IndexKeywords]) -> Value:
        """Ones in the shape of `x`, multiplied by `values` at the index."""
        return IndexUpdateRef(ops.constant_like(self.x, 1), self.idx).multiply(values, **keywords)

    def _write(
        self, values: ArrayOrList, update: ScatterUpdate, **keywords: Unpack[IndexKeywords]
    ) -> Value:
        return copy_if_shared(
            scatter_update(self.x, self.idx, values, update, **keywords), self.x, values
        )


def scatter_update(
    x: Value,
    idx: Index,
    values: ArrayOrList,
    update: ScatterUpdate = SET,
    **keywords: Unpack[IndexKeywords],
) -> Value:
    """`x` with `values` written to `x[idx]`; may return `x` or `values` itself."""
    mode = _indexing_options(**keywords)
    aval = aval_of(x)
    values = cast_for_assignment(values, aval.dtype)
    masked = parse_mask_index(idx, aval.shape)
    if masked is not None and masked.is_uniform(values, aval.shape):
        new = masked.broadcast_values(values, aval.shape)
        if update.combine is not None:
            new = update.combine(x, new)
        return ops.select(masked.broadcast_mask(aval.shape), new, x)
    return make_indexer(x, idx, mode).write(x, values, update)


def _indexing_options(
    mode: IndexMode = None,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    fill_value: complex | None = None,
    out_sharding: object = None,
    wrap_negative_indices: bool = True,
) -> IndexingOptions:
    if out_sharding is not None:
        raise ArgumentError(
            f"x.at[...]: out_sharding must be None; got {out_sharding!r}",
            fix="Give the result a sharding with functx.lax.with_sharding_constraint.",
        )
    out_of_bounds = None if mode is None else ops.canonical_index_mode(mode, "fill")
    flags = indices_are_sorted, unique_indices, fill_value, wrap_negative_indices
    return IndexingOptions(out_of_bounds, *flags)


def static_fill_value(value: ArrayLike | None) -> complex | None:
    """`value` as a Python number, or None; raises ArgumentError for a traced value."""
    if value is None or type(value) in PYTHON_SCALARS:
        return value  # type: ignore[return-value]
    if type(value) is Tracer or aval_of(value).shape:
        raise ArgumentError(
            f"fill_value must be a number that is known while tracing; got {type_name(value)}"
        )
    return np.asarray(value).item()


def take(
    a: ArrayOrList,
    indices: ArrayOrList,
    axis: int | None = None,
    out: Out = None,
    mode: IndexMode = None,
    unique_indices: bool = False,
    indices_are_sorted: bool = False,
    fill_value: ArrayLike | None = None,
) -> Value:
    """The elements of `a` at `indices` along `axis`, or of the flattened array for None.

    The shape of `indices` replaces the axis. By default a known index out of bounds raises
    IndexingError, unless `fill_value` is given, and a traced one reads `fill_value` (None: nan,
    or the least integer). The mode "wrap" takes indices modulo the length; "clip" moves them
    into bounds, negative ones to 0.
    """
    array, positions = operand(a), _integer_indices("take", indices)
    if axis is None:
        array, axis = ops.reshape(array, (aval_of(array).size,)), 0
    shape = aval_of(array).shape
    axis = canonical_axis(axis, len(shape))
    if mode == "wrap":
        size = shape[axis] or 1
        wide = ops.widen_index(positions, size)
        positions = wide % size if is_static_index(wide) else arithmetic.rem(wide, size)
        options = _indexing_options("clip")
    else:
        mode = "fill" if mode is None and fill_value is not None else mode
        options = _take_options(mode, positions)
    options = options._replace(
        fill_value=static_fill_value(fill_value),
        unique_indices=unique_indices,
        indices_are_sorted=indices_are_sorted,
        order="C",
    )
    taken = make_indexer(array, (*[slice(None)] * axis, positions), options).read(array)
    return write_out_late("take", copy_if_shared(taken, array), out)


def write_out_late(name: str, result: Value, out: Out) -> Value:
    """`write_out_exact` of the module `mutation`, which imports this one."""
    if out is None:
        return result
    from functx.numpy.mutation import write_out_exact

    return write_out_exact(name, result, out)


def _take_options(mode: IndexMode, indices: Position) -> IndexingOptions:
    if mode in (None, "raise"):
        return IndexingOptions() if is_static_index(indices) else IndexingOptions("fill")
    options = _indexing_options(mode)
    return options._replace(wrap_negative=options.out_of_bounds != "clip")


def take_along_axis(
    arr: ArrayOrList,
    indices: ArrayOrList,
    axis: int | None = -1,
    mode: IndexMode = None,
    fill_value: ArrayLike | None = None,
    *,
    wrap_negative_indices: bool | None = None,
) -> Value:
    """The elements of `arr` at `indices` along `axis`, matched along the other axes.

    `arr` and `indices` have the same number of dimensions, and broadcast along all axes but
    `axis`; both are flattened if it is None. `mode` is as in `take`. With `wrap_negative_indices`, as by
    default, negative indices count from the end. The mode "one_hot" gives zero for a traced index out of
    bounds.
    """
    if mode == "one_hot":
        mode, fill_value = "fill", 0
    x, indices, axis = _along_axis_operands("take_along_axis", arr, indices, axis)
    options = _take_options(mode, indices)
    if wrap_negative_indices is not None:
        options = options._replace(wrap_negative=bool(wrap_negative_indices))
    numbers, starts, shape = _along_axis_gather(aval_of(x).shape, indices, axis, options)
    if 0 in shape:
        return ops.full(shape, literal(0, aval_of(x).dtype))
    sizes = tuple([n if d in numbers.offset_dims else 1 for d, n in enumerate(aval_of(x).shape)])
    out_of_bounds, fill_value = options.out_of_bounds or "clip", static_fill_value(fill_value)
    return ops.Gather(*numbers, False, False, out_of_bounds, sizes, fill_value)(x, starts)


def scatter_along_axis(
    x: ArrayOrList,
    indices: ArrayOrList,
    values: ArrayOrList,
    axis: int | None,
    mode: IndexMode = None,
) -> Value:
    """`x` with `values` written to the elements that `take_along_axis(x, indices, axis)` reads.

    A traced index out of bounds writes nothing.
    """
    full_shape = aval_of(operand(x)).shape
    x, indices, axis = _along_axis_operands("put_along_axis", x, indices, axis)
    options = _take_options(mode, indices)
    numbers, starts, shape = _along_axis_gather(aval_of(x).shape, indices, axis, options)
    values = cast_for_assignment(values, aval_of(x).dtype)
    if 0 in shape:
        return ops.reshape(x, full_shape)
    out_of_bounds = options.out_of_bounds if options.out_of_bounds in IN_BOUNDS_MODES else "drop"
    values = fill_to_shape(broadcast_to(values, shape), shape)
    return ops.reshape(ops.ScatterSet(*numbers, mode=out_of_bounds)(x, starts, values), full_shape)


def _along_axis_operands(
    name: str, x: ArrayOrList, indices: ArrayOrList, axis: int | None
) -> tuple[Value, Position, int]:
    x, indices = operand(x), _integer_indices(name, indices)
    if axis is None:
        flat = [ops.reshape(a, (aval_of(a).size,)) for a in (x, indices)]
        return flat[0], flat[1], 0
    shape, index_shape = aval_of(x).shape, aval_of(indices).shape
    axis = canonical_axis(axis, len(shape))
    if len(index_shape) != len(shape) or any(
        n != m and 1 not in (n, m) and d != axis
        for d, (n, m) in enumerate(zip(shape, index_shape, strict=False))
    ):
        raise ShapeError(
            f"{name}: array and indices must have as many dimensions, which broadcast but for "
            f"axis {axis}; got {shape} and {index_shape}"
        )
    return x, indices, axis


def _along_axis_gather(
    shape: Shape, indices: Position, axis: int, options: IndexingOptions
) -> tuple[ops.GatherDimensionNumbers, Any, Shape]:
    """The gather of one element along `axis` for each index.

    Returns its dimension numbers, the index vectors, and the shape of the result.
    """
    index_shape = aval_of(indices).shape
    others = [d for d in range(len(shape)) if d != axis]
    offset = [d for d in others if index_shape[d] == 1 != shape[d]]
    paired = [d for d in others if index_shape[d] == shape[d] != 1]
    indexed = [d for d in range(len(index_shape)) if d not in offset]
    starts = normalize_index(indices, axis, shape[axis], options)
    numbers = ops.GatherDimensionNumbers(
        offset_dims=tuple(offset),
        collapsed_slice_dims=tuple([d for d in range(len(shape)) if d not in offset + paired]),
        start_index_map=(axis,),
        operand_batching_dims=tuple(paired),
        start_indices_batching_dims=tuple([indexed.index(d) for d in paired]),
    )
    result = tuple([shape[d] if d in offset else n for d, n in enumerate(index_shape)])
    if 0 not in result and not shape[axis]:
        raise IndexingError(f"an axis of length 0 has no elements to index; got axis {axis}")
    return numbers, ops.reshape(starts, (*[index_shape[d] for d in indexed], 1)), result


def _integer_indices(name: str, indices: ArrayOrList) -> Position:
    """`indices`, checked: an int, a NumPy array of known integers, or a traced array."""
    parsed = parse_index_item(indices)
    is_array = isinstance(parsed, (np.ndarray, jax.Array)) or is_wrapper(parsed)
    if not isinstance(parsed, int) and not (is_array and parsed.dtype != bool):  # type: ignore[union-attr]
        raise IndexingError(f"{name}: indices must be integers; got {type_name(indices)}")
    return parsed  # type: ignore[return-value]


def choose(
    a: ArrayOrList, choices: Sequence[ArrayOrList], out: Out = None, mode: str = "raise"
) -> Value:
    """For each element of `a`, the element of the choice with that number.

    With the mode "raise" a known number out of bounds raises IndexingError, and a traced one is
    clipped, as with "clip"; "wrap" takes numbers modulo the number of choices.
    """
    arrays = promote(*choices)
    numbers: Any = _integer_indices("choose", a)
    count = len(arrays)
    numbers = ops.widen_index(numbers, count)
    if is_static_index(numbers):
        numbers = np.asarray(numbers)
        if mode == "raise" and np.any((numbers < 0) | (numbers >= count)):
            raise IndexingError(f"choose: numbers must be in [0, {count}); got {a}")
        numbers = numbers % count if mode == "wrap" else numbers
    elif mode == "wrap":
        numbers = normalize_index(arithmetic.rem(numbers, count), 0, count, IndexingOptions())
    operands = broadcast(numbers, *arrays)
    return write_out_late(
        "choose", copy_if_shared(in_order(ops.select_n(*operands), "C"), *operands), out
    )
