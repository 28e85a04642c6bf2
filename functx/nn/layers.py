"""Pooling over windows of channels-last arrays, embeddings, dropout and cosine similarity."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TypeAlias

import numpy as np

from functx import ops
from functx.core.errors import ArgumentError, DTypeError, ShapeError, ValueRangeError
from functx.core.program import Literal
from functx.core.tracer import aval_of
from functx.core.types import DType, is_complex
from functx.core.typing import ArrayLike, Value
from functx.numpy.promotion import (
    broadcast_shapes,
    broadcast_to,
    copy_array,
    operand,
    promote_inexact,
    promote_real,
)
from functx.ops.operands import (
    as_bool,
    as_float,
    as_int,
    broadcast_along,
    canonical_axis,
    check_index_range,
    literal,
    upcast_half,
)
from functx.ops.random import Dropout
from functx.ops.statistics import vector_norm
from functx.ops.threefry import draw
from functx.random.generator import Generator
from functx.random.generator import dropout as random_dropout
from functx.random.keys import check_single_key

__all__ = ["avg_pool", "cosine_similarity", "dropout", "embedding", "max_pool", "min_pool"]

Padding: TypeAlias = str | Sequence[tuple[int, int]]
"""The padding of windows: "VALID", "SAME", "SAME_LOWER", or a pair for each axis."""


def max_pool(
    inputs: ArrayLike,
    window_shape: Sequence[int],
    strides: Sequence[int] | None = None,
    padding: Padding = "VALID",
) -> Value:
    """The largest element in each window.

    `inputs` has any number of batch axes, then one axis for each entry of `window_shape`, then
    one for channels. `strides` are ones by default. `padding` is "VALID", "SAME", "SAME_LOWER"
    or a pair `(low, high)` for each axis of the window; padding is smaller than all numbers. Of
    equal elements, the first has the derivative.

    >>> import numpy
    >>> from functx import nn
    >>> nn.max_pool(numpy.arange(6.0).reshape(1, 6, 1), (2,), strides=(2,)).ravel().tolist()
    [1.0, 3.0, 5.0]
    """
    inputs = _check_real("max_pool", inputs)
    return ops.ReduceWindowMax(
        *_make_pool_window("max_pool", inputs, window_shape, strides, padding)
    )(inputs)


def min_pool(
    inputs: ArrayLike,
    window_shape: Sequence[int],
    strides: Sequence[int] | None = None,
    padding: Padding = "VALID",
) -> Value:
    """The smallest element in each window; see `max_pool` for the arguments.

    >>> import numpy
    >>> from functx import nn
    >>> nn.min_pool(numpy.arange(6.0).reshape(1, 6, 1), (2,), strides=(2,)).ravel().tolist()
    [0.0, 2.0, 4.0]
    """
    inputs = _check_real("min_pool", inputs)
    return ops.ReduceWindowMin(
        *_make_pool_window("min_pool", inputs, window_shape, strides, padding)
    )(inputs)


def avg_pool(
    inputs: ArrayLike,
    window_shape: Sequence[int],
    strides: Sequence[int] | None = None,
    padding: Padding = "VALID",
    count_include_pad: bool = True,
) -> Value:
    """The average of the elements in each window; see `max_pool` for the arguments.

    Padding consists of zeros. With `count_include_pad=False` it does not count, and the average
    of a window of padding only is nan.

    >>> import numpy
    >>> from functx import nn
    >>> x = numpy.ones((1, 3, 1))
    >>> nn.avg_pool(x, (2,), padding="SAME").ravel().tolist()
    [1.0, 1.0, 0.5]
    >>> nn.avg_pool(x, (2,), padding="SAME", count_include_pad=False).ravel().tolist()
    [1.0, 1.0, 1.0]
    """
    (inputs,) = promote_inexact(inputs)
    aval = aval_of(inputs)
    window = _make_pool_window("avg_pool", inputs, window_shape, strides, padding)
    # A sum in half precision would saturate after a few hundred ones.
    sum_dtype = np.dtype("float32") if aval.dtype.itemsize < 4 else aval.dtype
    total = ops.ReduceWindowSum(*window)(ops.convert_element_type(inputs, sum_dtype))
    count: Value | Literal = literal(prod(window.sizes), sum_dtype)
    if not count_include_pad:
        count = _window_counts(aval.shape, sum_dtype, window)
    return ops.convert_element_type(ops.div(total, count), aval.dtype)


def _window_counts(shape: tuple[int, ...], dtype: DType, window: ops.Window) -> Value:
    """The number of elements of an array of `shape` in each window."""
    dims = tuple([d for d, size in enumerate(window.sizes) if size > 1 or any(window.padding[d])])
    sliding = ops.Window(*[tuple([field[d] for d in dims]) for field in window])  # type: ignore[arg-type]
    ones = ops.full(tuple([shape[d] for d in dims]), literal(1, dtype))
    counts = ops.ReduceWindowSum(*sliding)(ones)
    return ops.broadcast_in_dim(counts, window.result_shape(shape), dims)


def _check_real(name: str, inputs: ArrayLike) -> Value:
    x = operand(inputs)
    if is_complex(aval_of(x).dtype):
        raise DTypeError(f"{name}: inputs must be real; got {aval_of(x)!r}")
    return x


def _make_pool_window(
    name: str,
    inputs: Value,
    window_shape: Sequence[int],
    strides: Sequence[int] | None,
    padding: Padding,
) -> ops.Window:
    """The window on all axes of `inputs`; it slides along those between batches and channels."""
    aval = aval_of(inputs)
    if not isinstance(window_shape, (tuple, list, np.ndarray)):
        raise ArgumentError(
            f"{name}: window_shape must be integers, one for each axis; got {window_shape!r}"
        )
    num_batch_axes = aval.ndim - np.size(window_shape) - 1
    if num_batch_axes < 0:
        raise ShapeError(
            f"{name}: inputs must have an axis for each entry of window_shape, then one for "
            f"channels; got {aval!r} for window_shape {tuple(window_shape)}"
        )
    shape = aval.shape[num_batch_axes:-1]
    window = ops.make_window(name, shape, window_shape, strides, padding)
    ops.check_window(name, shape, window)
    for d in [*range(num_batch_axes), aval.ndim - 1]:
        window = window.with_batch_dim(d)
    return window


def embedding(indices: ArrayLike, weight: ArrayLike, padding_idx: int | None = None) -> Value:
    """The row of the matrix `weight` for each of `indices`, an array of any shape.

    The row `padding_idx`, counted from the end if negative, has no derivative. For an index out
    of bounds it raises IndexingError if `indices` are known; if they are traced, the row is nan.

    >>> from functx import nn
    >>> import numpy
    >>> nn.embedding(numpy.array([2, 0]), numpy.arange(6.0).reshape(3, 2)).tolist()
    [[4.0, 5.0], [0.0, 1.0]]
    """
    indices, weight = operand(indices), operand(weight)
    padding = None if padding_idx is None else as_int("embedding: padding_idx", padding_idx)
    shape = aval_of(weight).shape
    if padding is not None and len(shape) == 2:
        if not -shape[0] <= padding < shape[0]:
            raise ValueRangeError(
                f"embedding: padding_idx must be the number of a row of {aval_of(weight)!r}; got "
                f"{padding}"
            )
        padding %= shape[0]
    out = ops.Embedding(padding)(indices, weight)
    check_index_range("embedding", "indices", indices, shape[0])
    return out


def dropout(
    x: ArrayLike,
    rate: float = 0.5,
    key: ArrayLike | None = None,
    *,
    deterministic: bool = False,
    generator: Generator | None = None,
) -> Value:
    """`x / (1 - rate)` with each element set to 0 with probability `rate`.

    The same `key` drops the same elements; in place of a key, a `generator` gives other numbers each
    time. With `deterministic` or a rate of 0 it is a copy of `x`, and needs neither.

    Raises ValueRangeError unless `rate` is a probability, and ArgumentError without a key and a generator
    or with both.

    >>> from functx import nn, random
    >>> import numpy
    >>> out = nn.dropout(numpy.ones(1000), 0.2, random.key(0))
    >>> sorted(set(out.tolist())), round(float(out.mean()), 1)
    ([0.0, 1.25], 1.0)
    """
    rate = as_float("dropout: rate", rate)
    if not 0 <= rate <= 1:
        raise ValueRangeError(f"dropout: rate must be a probability, from 0 to 1; got {rate}")
    (x,) = promote_inexact(x)
    if as_bool("dropout: deterministic", deterministic) or rate == 0:
        return copy_array(x)
    if generator is not None and key is None:
        return random_dropout(x, rate, generator=generator)
    if key is None or generator is not None:
        raise ArgumentError(
            "dropout: a key or a generator must be given, unless deterministic; got "
            f"{'neither' if key is None else 'both'}",
            fix="Make a key with functx.random.key(seed), and split it for each use; or pass "
            "generator=functx.random.default_generator.",
        )
    return draw(Dropout(rate), x, check_single_key("dropout", key))


def cosine_similarity(x1: ArrayLike, x2: ArrayLike, axis: int = 1, eps: float = 1e-8) -> Value:
    """The cosine of the angle between vectors along `axis`, which is removed from the shape.

    The arrays are broadcast. A norm less than `eps` counts as `eps`, so that the cosine of a
    vector of zeros is 0, with a finite derivative.

    Raises ShapeError if the arrays do not broadcast, AxisError for an axis out of bounds,
    DTypeError for complex arrays.

    >>> import numpy
    >>> from functx import nn
    >>> nn.cosine_similarity(numpy.array([[3.0, 0.0], [0.0, 2.0]]), numpy.array([1.0, 0.0])).tolist()
    [1.0, 0.0]
    """
    x1, x2 = promote_real("cosine_similarity", x1, x2)
    dtype, shape = aval_of(x1).dtype, broadcast_shapes(aval_of(x1).shape, aval_of(x2).shape)
    axes = (canonical_axis(axis, len(shape), "cosine_similarity: axis"),)
    units = [_normalize(upcast_half(broadcast_to(x, shape)), axes, eps) for x in (x1, x2)]
    return ops.convert_element_type(ops.reduce_sum(ops.mul(*units), axes), dtype)


def _normalize(x: Value, axes: tuple[int, ...], eps: float) -> Value:
    norm = vector_norm(x, 2.0, axes)
    return ops.div(x, broadcast_along(ops.select(ops.gt(norm, eps), norm, eps), x, axes))
