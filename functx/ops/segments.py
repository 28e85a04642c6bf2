"""Reductions of segments: rows of an array that have the same number are summed, multiplied or compared."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from functx import ops
from functx.core.concretization import concretize
from functx.core.errors import DTypeError, ShapeError, ValueRangeError
from functx.core.tracer import Tracer, aval_of
from functx.core.types import DType, is_integer
from functx.core.typing import ArrayLike, Value
from functx.ops.indexing import ScatterDimensionNumbers
from functx.ops.operands import as_int, literal
from functx.ops.parallel import place_result
from functx.ops.reductions import highest, lowest
from functx.ops.scattering import scatter_add, scatter_max, scatter_min, scatter_mul


def _segment_function(
    name: str,
    scatter: Callable[..., Value],
    reduce: Callable[..., Value],
    neutral: Callable[[DType], Any],
    doc: str,
) -> Callable[..., Value]:
    """The public function that combines the rows of each segment by `scatter`, and buckets by `reduce`."""

    def function(
        data: ArrayLike,
        segment_ids: ArrayLike,
        num_segments: int | None = None,
        indices_are_sorted: bool = False,
        unique_indices: bool = False,
        bucket_size: int | None = None,
        mode: object = None,
        out_sharding: Any = None,
    ) -> Value:
        data_aval, aval = aval_of(data), aval_of(segment_ids)
        if not is_integer(aval.dtype):
            raise DTypeError(f"{name}: segment_ids must be integers; got {aval!r}")
        if not data_aval.ndim or not aval.ndim:
            raise ShapeError(
                f"{name}: data and segment_ids must have a first axis; got {data_aval!r} and {aval!r}"
            )
        rows = _broadcast_rows(name, data, (*aval.shape, *data_aval.shape[1:]))
        count = _segment_count(name, segment_ids, num_segments)
        start = literal(neutral(data_aval.dtype), data_aval.dtype)
        hints = {"indices_are_sorted": indices_are_sorted, "unique_indices": unique_indices}
        combine = partial(scatter, **hints, mode=mode)
        out = _scatter_rows(combine, start, rows, segment_ids, count, bucket_size)
        if bucket_size is not None:
            out = reduce(out, (0,))
        return place_result(out, out_sharding)

    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    return function


def _scatter_rows(
    scatter: Callable[..., Value],
    neutral: ArrayLike,
    rows: Value,
    segment_ids: ArrayLike,
    count: int,
    bucket_size: int | None,
) -> Value:
    """The rows of each of `count` segments, combined by `scatter`.

    With a `bucket_size`, those of each bucket of so many rows apart, along a new first dimension.
    """
    aval = aval_of(segment_ids)
    row_shape = rows.shape[aval.ndim :]
    shape: tuple[int, ...] = (count, *row_shape)
    index_columns = [segment_ids]
    if bucket_size is not None:
        index_columns.insert(0, _buckets(aval.shape, bucket_size, aval.dtype))
        shape = (-(-aval.size // bucket_size), *shape)
    columns = [ops.expand_dims(x, (aval.ndim,)) for x in index_columns]
    indices = ops.concatenate(columns, aval.ndim)
    out = ops.full(shape, neutral)
    if not (out.size and rows.size):
        return out
    window = tuple(range(aval.ndim, aval.ndim + len(row_shape)))
    places = tuple(range(len(index_columns)))
    return scatter(out, indices, rows, ScatterDimensionNumbers(window, places, places))


def _segment_count(name: str, segment_ids: ArrayLike, num_segments: int | None) -> int:
    """The number of segments, by default the smallest one that has all `segment_ids`."""
    if num_segments is None:
        if type(segment_ids) is Tracer:
            segment_ids = concretize(segment_ids, f"{name} without num_segments")
        return int(np.max(np.asarray(segment_ids), initial=-1)) + 1
    count = as_int(f"{name}: num_segments", num_segments)
    if count < 0:
        raise ValueRangeError(f"{name}: num_segments must not be negative; got {count}")
    return count


def _broadcast_rows(name: str, data: ArrayLike, shape: tuple[int, ...]) -> Value:
    given = aval_of(data)
    if given.shape == shape:
        return data  # type: ignore[return-value]
    dims = range(len(shape) - given.ndim, len(shape))
    if given.ndim > len(shape) or any(
        n not in (1, shape[d]) for n, d in zip(given.shape, dims, strict=True)
    ):
        raise ShapeError(
            f"{name}: data must have a row for each of segment_ids, together {shape}; got {given!r}"
        )
    return ops.broadcast_in_dim(data, shape, tuple(dims))


def _buckets(shape: tuple[int, ...], bucket_size: int, dtype: DType) -> Value:
    """The number of the bucket of each index, where `bucket_size` in a row share one."""
    if bucket_size < 1:
        raise ValueRangeError(f"bucket_size must be positive; got {bucket_size}")
    numbers = np.arange(shape[0]) // bucket_size
    return ops.broadcast_in_dim(numbers.astype(dtype), shape, (0,))


_DOC = """The {what} of the rows of `data` with each number in `segment_ids`, an array of `num_segments` rows.

    Rows are along the first axis; a segment without rows is {neutral}. `num_segments` is by default the
    highest number plus 1, which must be known. Numbers that are no segment are dropped, unless `mode`, as
    in `lax.scatter`, says otherwise. With `bucket_size`, so many rows are combined at first, which rounds
    less. `out_sharding` is the sharding of the result.
"""

segment_sum = _segment_function(
    "segment_sum",
    scatter_add,
    ops.reduce_sum,
    lambda dtype: 0,
    _DOC.format(what="sum", neutral="0")
    + """
    >>> import functx, numpy
    >>> functx.ops.segment_sum(numpy.array([1.0, 2.0, 4.0]), numpy.array([0, 2, 0])).tolist()
    [5.0, 0.0, 2.0]
    """,
)
segment_prod = _segment_function(
    "segment_prod",
    scatter_mul,
    ops.reduce_prod,
    lambda dtype: 1,
    _DOC.format(what="product", neutral="1"),
)
segment_max = _segment_function(
    "segment_max",
    scatter_max,
    ops.reduce_max,
    lowest,
    _DOC.format(what="maximum", neutral="the lowest number of the dtype"),
)
segment_min = _segment_function(
    "segment_min",
    scatter_min,
    ops.reduce_min,
    highest,
    _DOC.format(what="minimum", neutral="the highest number of the dtype"),
)
