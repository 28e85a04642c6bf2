"""NumPy's indexing: `x[idx]`, `x.at[idx]`, `take` and their like, each in few equations."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from functx import ops
from functx.core.errors import ArgumentError, IndexingError, ShapeError, type_name
from functx.core.primitive import Primitive
from functx.core.tracer import Tracer, aval_of
from functx.core.tracing import bind
from functx.core.types import Shape
from functx.numpy.boolean_masks import masked_elements, parse_mask_index
from functx.numpy.indexer import (
    ADD,
    IN_BOUNDS_MODES,
    MAX,
    MIN,
    MULTIPLY,
    SET,
    Indexer,
    IndexingOptions,
    ScatterUpdate,
    cast_for_assignment,
    fill_to_shape,
    is_static_index,
    make_indexer,
    normalize_index,
    parse_index,
    parse_index_item,
)
from functx.numpy.promotion import broadcast, broadcast_to, copy_if_shared, operand, promote
from functx.ops import arithmetic
from functx.ops.operands import PYTHON_SCALARS, canonical_axis, literal
from functx.transforms.control.loops import fori_loop

COUNT_DTYPE = np.dtype("int32")


def getitem(x: Any, idx: Any) -> Any:
    """`x[idx]`, with the meaning that NumPy gives it.

    An integer out of bounds raises IndexingError where its value is known; a traced one
    counts as the nearest in bounds. The value of a boolean mask must be known, since it
    decides the shape; of another, the elements can only be updated (`x[mask] += y`).

    Ints, slices, None and Ellipsis give a view, and so does an integer that is traced: it counts
    as a number, not as an array. NumPy's own array of no dimensions is an array: it gives a copy.
    """
    if type(x) is Tracer:
        key = static_index_key(idx)
        if key is not None:
            for step in static_index_primitives(x.atom.aval.shape, key):
                x = bind(step, (x,))
            return x
    x = operand(x)
    try:
        found = make_indexer(x, idx, IndexingOptions()).read(x)
        items = idx if type(idx) is tuple else (idx,)
        return copy_if_shared(found, x) if np.ndarray in map(type, items) else found
    except IndexingError as error:
        found = masked_elements(x, idx, error)
        if found is None:
            raise
        return found


def static_index_key(idx: Any) -> Any:
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
def static_index_primitives(shape: Shape, key: tuple[Any, ...]) -> tuple[Primitive, ...]:
    """The operations that read what `key` selects of an array of `shape`."""
    items = [slice(*item) if type(item) is tuple else item for item in key]
    return Indexer(
        shape, parse_index(shape, items, IndexingOptions()), IndexingOptions()
    ).static_primitives()


class At:
    """The property `x.at`: index it to say what of `x` to read or to write.

    `x.at[idx].set(v)` is the array that `x` would be after `x[idx] = v`, and `add`,
    `multiply` and the others after the in-place operation of that name.
    """

    __slots__ = ("x",)

    def __init__(self, x: Any):
        self.x = x

    def __getitem__(self, idx: Any) -> IndexUpdateRef:
        return IndexUpdateRef(self.x, idx)

    def __repr__(self) -> str:
        return f"At({self.x!r})"


class IndexUpdateRef:
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
        **keywords: Any,
    ) -> Any:
        """`x[idx]`, with a choice of what is read out of bounds."""
        if mode is None and fill_value is not None:
            mode = "fill"
        flags = indices_are_sorted, unique_indices, static_fill_value(fill_value)
        chosen = _indexing_options(mode, *flags, **keywords)
        return copy_if_shared(make_indexer(self.x, self.idx, chosen).read(self.x), self.x)

    def set(self, values: Any, **keywords: Any) -> Any:
        """`x` after `x[idx] = values`, converted to its dtype; the last one to a place stays."""
        return self._write(values, SET, **keywords)

    def add(self, values: Any, **keywords: Any) -> Any:
        """`x` after `x[idx] += values`, repeated indices adding up."""
        return self._write(values, ADD, **keywords)

    def subtract(self, values: Any, **keywords: Any) -> Any:
        """`x` after `x[idx] -= values`, repeated indices adding up."""
        return self._write(
            arithmetic.neg(cast_for_assignment(values, aval_of(self.x).dtype)), ADD, **keywords
        )

    def multiply(self, values: Any, **keywords: Any) -> Any:
        """`x` after `x[idx] *= values`, repeated indices multiplying up."""
        return self._write(values, MULTIPLY, **keywords)

    mul = multiply

    def divide(self, values: Any, **keywords: Any) -> Any:
        """`x` after `x[idx] /= values`, repeated indices dividing again; a float array."""
        from functx.numpy.operators import true_divide

        return true_divide(self.x, self._factors(values, **keywords))

    def power(self, values: Any, **keywords: Any) -> Any:
        """`x` after `x[idx] **= values`, repeated indices raising again."""
        from functx.numpy.operators import power

        return power(self.x, self._factors(values, **keywords))

    def min(self, values: Any, **keywords: Any) -> Any:
        """`x` after `x[idx] = minimum(x[idx], values)`, the least where indices repeat."""
        return self._write(values, MIN, **keywords)

    def max(self, values: Any, **keywords: Any) -> Any:
        """`x` after `x[idx] = maximum(x[idx], values)`, the greatest where indices repeat."""
        return self._write(values, MAX, **keywords)

    def apply(self, fun: Callable[[Any], Any], **keywords: Any) -> Any:
        """`x` after `x[idx] = fun(x[idx])`, `fun` applied again wherever an index repeats."""
        mode = _indexing_options(**keywords)
        shape, dtype = aval_of(self.x).shape, aval_of(self.x).dtype
        masked = parse_mask_index(self.idx, shape)
        if masked is not None:
            return ops.select(
                masked.broadcast_mask(shape), cast_for_assignment(fun(self.x), dtype), self.x
            )
        found = make_indexer(self.x, self.idx, mode)
        # What is read for places that are then dropped does not matter.
        reading = mode._replace(
            out_of_bounds="clip" if mode.out_of_bounds == "fill" else mode.out_of_bounds
        )
        reads = Indexer(shape, found.entries, reading)
        old = reads.read(self.x)
        if found.index_shape is None or found.has_unique_indices(found.start_indices()):
            return copy_if_shared(found.write(self.x, fun(old), SET), self.x)
        counts = reads.read(found.write(ops.full(shape, literal(0, COUNT_DTYPE)), 1, ADD))

        def again(i: Any, value: Any) -> Any:
            return ops.select(ops.lt(i, counts), cast_for_assignment(fun(value), dtype), value)

        last = fori_loop(0, ops.reduce_max(counts, tuple(range(aval_of(counts).ndim))), again, old)
        return found.write(self.x, last, SET)

    def _factors(self, values: Any, **keywords: Any) -> Any:
        """Ones in the shape of `x`, multiplied at the index by `values`."""
        return IndexUpdateRef(ops.constant_like(self.x, 1), self.idx).multiply(values, **keywords)

    def _write(self, values: Any, update: ScatterUpdate, **keywords: Any) -> Any:
        return copy_if_shared(
            scatter_update(self.x, self.idx, values, update, **keywords), self.x, values
        )


def scatter_update(
    x: Any, idx: Any, values: Any, update: ScatterUpdate = SET, **keywords: Any
) -> Any:
    """`x` with `values` written to the elements at `idx`; `x` or `values` itself if all are selected."""
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
    mode: Any = None,
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    fill_value: Any = None,
    out_sharding: Any = None,
    wrap_negative_indices: bool = True,
) -> IndexingOptions:
    if out_sharding is not None or not wrap_negative_indices:
        raise ArgumentError(
            "x.at[...]: out_sharding must be None, and negative indices count from the end; got "
            f"{out_sharding!r} and wrap_negative_indices={wrap_negative_indices!r}",
            fix="Give the result a sharding with functx.lax.with_sharding_constraint; to drop negative "
            "indices, replace them by the size of the axis.",
        )
    outside = None if mode is None else ops.canonical_index_mode(mode, "fill")
    return IndexingOptions(outside, indices_are_sorted, unique_indices, fill_value)


def static_fill_value(value: Any) -> Any:
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
    out: Any = None,
    mode: Any = None,
    fill_value: Any = None,
    *,
    unique_indices: bool = False,
    indices_are_sorted: bool = False,
) -> Any:
    """The elements of `x` at `indices` along `axis`, or of the flattened array without one.

    The shape of `indices` takes the place of the axis. By default a known index out of
    bounds raises IndexingError, unless there is a `fill_value`, and a traced one reads that
    (None: nan, or the least integer). With the mode "wrap" indices count modulo the length; with "clip" they
    are moved into bounds, negative ones to 0.
    """
    x, indices = operand(x), _integer_indices("take", indices)
    if axis is None:
        x, axis = ops.reshape(x, (aval_of(x).size,)), 0
    shape = aval_of(x).shape
    axis = canonical_axis(axis, len(shape))
    if mode == "wrap":
        size = shape[axis] or 1
        indices = ops.widen_index(indices, size)
        indices, mode = (
            (indices % size if is_static_index(indices) else arithmetic.rem(indices, size)),
            "clip",
        )
        settings = _indexing_options(mode)
    else:
        settings = _take_options(
            "fill" if mode is None and fill_value is not None else mode, indices
        )
    settings = settings._replace(
        fill_value=static_fill_value(fill_value),
        unique_indices=unique_indices,
        indices_are_sorted=indices_are_sorted,
    )
    taken = make_indexer(x, (*[slice(None)] * axis, indices), settings).read(x)
    return write_out_late("take", copy_if_shared(taken, x), out)


def write_out_late(name: str, result: Any, out: Any) -> Any:
    """`result`, or `out` with it written to that."""
    if out is None:
        return result
    # Writing is made of what this module has.
    from functx.numpy.mutation import write_out_exact

    return write_out_exact(name, result, out)


def _take_options(mode: Any, indices: Any) -> IndexingOptions:
    if mode in (None, "raise"):
        return IndexingOptions() if is_static_index(indices) else IndexingOptions("fill")
    found = _indexing_options(mode)
    return found._replace(wrap_negative=found.out_of_bounds != "clip")


def take_along_axis(
    x: Any, indices: Any, axis: int | None = -1, mode: Any = None, fill_value: Any = None
) -> Any:
    """For each index, the element of `x` there along `axis`, at the index's own place beside it.

    `x` and `indices` have as many dimensions, and broadcast but for `axis`; without an axis
    both are flattened. `mode` is as in `take`.
    """
    x, indices, axis = _along_axis_operands("take_along_axis", x, indices, axis)
    settings = _take_options(mode, indices)
    numbers, places, shape = _along_axis_gather(aval_of(x).shape, indices, axis, settings)
    if 0 in shape:
        return ops.full(shape, literal(0, aval_of(x).dtype))
    sizes = tuple([n if d in numbers.offset_dims else 1 for d, n in enumerate(aval_of(x).shape)])
    outside, fill_value = settings.out_of_bounds or "clip", static_fill_value(fill_value)
    return ops.Gather(*numbers, False, False, outside, sizes, fill_value)(x, places)


def scatter_along_axis(
    x: Any, indices: Any, values: Any, axis: int | None, mode: Any = None
) -> Any:
    """`x` with `values` where `take_along_axis(x, indices, axis)` reads.

    A traced index out of bounds writes nothing.
    """
    whole = aval_of(operand(x)).shape
    x, indices, axis = _along_axis_operands("put_along_axis", x, indices, axis)
    settings = _take_options(mode, indices)
    numbers, places, shape = _along_axis_gather(aval_of(x).shape, indices, axis, settings)
    values = cast_for_assignment(values, aval_of(x).dtype)
    if 0 in shape:
        return ops.reshape(x, whole)
    outside = settings.out_of_bounds if settings.out_of_bounds in IN_BOUNDS_MODES else "drop"
    values = fill_to_shape(broadcast_to(values, shape), shape)
    return ops.reshape(ops.ScatterSet(*numbers, mode=outside)(x, places, values), whole)


def _along_axis_operands(name: str, x: Any, indices: Any, axis: int | None) -> tuple[Any, Any, int]:
    x, indices = operand(x), _integer_indices(name, indices)
    if axis is None:
        flat = [ops.reshape(a, (aval_of(a).size,)) for a in (x, indices)]
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


def _along_axis_gather(
    shape: Shape, indices: Any, axis: int, settings: IndexingOptions
) -> tuple[ops.GatherDimensionNumbers, Any, Shape]:
    """The gather that reads one element along `axis` for each index beside it.

    Its dimension numbers, the index vectors, and the shape of the result.
    """
    own = aval_of(indices).shape
    others = [d for d in range(len(shape)) if d != axis]
    whole = [d for d in others if own[d] == 1 != shape[d]]
    paired = [d for d in others if own[d] == shape[d] != 1]
    kept = [d for d in range(len(own)) if d not in whole]
    places = normalize_index(indices, axis, shape[axis], settings)
    numbers = ops.GatherDimensionNumbers(
        offset_dims=tuple(whole),
        collapsed_slice_dims=tuple([d for d in range(len(shape)) if d not in whole + paired]),
        start_index_map=(axis,),
        operand_batching_dims=tuple(paired),
        start_indices_batching_dims=tuple([kept.index(d) for d in paired]),
    )
    result = tuple([shape[d] if d in whole else n for d, n in enumerate(own)])
    if 0 not in result and not shape[axis]:
        raise IndexingError(f"an axis of length 0 has no elements to index; got axis {axis}")
    return numbers, ops.reshape(places, (*[own[d] for d in kept], 1)), result


def _integer_indices(name: str, indices: Any) -> Any:
    """`indices` as an int, a NumPy array if all is known, or a traced array; checked."""
    found = parse_index_item(indices)
    if (not is_static_index(found) and not hasattr(found, "dtype")) or (
        type(found) is not int and found.dtype == bool
    ):
        raise IndexingError(f"{name}: indices must be integers; got {type_name(indices)}")
    return found


def choose(a: Any, choices: Any, out: Any = None, mode: str = "raise") -> Any:
    """For each element of `a`, that one of `choices` of which it is the number.

    With the mode "raise" a known number out of bounds is an IndexingError, and a traced one
    counts as the nearest, as with "clip"; with "wrap" numbers count modulo their count.
    """
    places, cases = _integer_indices("choose", a), promote(*choices)
    count = len(cases)
    places = ops.widen_index(places, count)
    if is_static_index(places):
        places = np.asarray(places)
        if mode == "raise" and np.any((places < 0) | (places >= count)):
            raise IndexingError(f"choose: numbers must be in [0, {count}); got {a}")
        places = places % count if mode == "wrap" else places
    elif mode == "wrap":
        places = normalize_index(arithmetic.rem(places, count), 0, count, IndexingOptions())
    operands = broadcast(places, *cases)
    return write_out_late("choose", copy_if_shared(ops.select_n(*operands), *operands), out)
