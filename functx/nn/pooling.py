"""Pooling: windows that slide over the middle axes of channels-last arrays."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from functx.core.dtypes import DType, is_complex
from functx.core.errors import ArgumentError, DTypeError, ShapeError
from functx.core.tracing import aval_of
from functx.numpy.promotion import operand, promote_inexact
from functx.ops.arithmetic import div
from functx.ops.conversion import convert_element_type
from functx.ops.operands import literal
from functx.ops.shaping import broadcast_in_dim, full
from functx.ops.window_shapes import Window, check_window, make_window
from functx.ops.windows import ReduceWindowMax, ReduceWindowMin, ReduceWindowSum


def max_pool(
    inputs: Any,
    window_shape: Sequence[int],
    strides: Sequence[int] | None = None,
    padding: Any = "VALID",
) -> Any:
    """The largest element in each window.

    `inputs` has axes for batches, any number of them, then one for each entry of
    `window_shape`, then one for channels. `strides` are ones by default. `padding` is "VALID",
    "SAME", "SAME_LOWER" or a pair `(low, high)` for each axis of the window; it lies below all
    numbers. A derivative goes through the first element of those that tie.

    >>> import numpy
    >>> from functx import nn
    >>> nn.max_pool(numpy.arange(6.0).reshape(1, 6, 1), (2,), strides=(2,)).ravel().tolist()
    [1.0, 3.0, 5.0]
    """
    inputs = _check_real("max_pool", inputs)
    return ReduceWindowMax(*_make_pool_window("max_pool", inputs, window_shape, strides, padding))(
        inputs
    )


def min_pool(
    inputs: Any,
    window_shape: Sequence[int],
    strides: Sequence[int] | None = None,
    padding: Any = "VALID",
) -> Any:
    """The smallest element in each window; see `max_pool` for the arguments.

    >>> import numpy
    >>> from functx import nn
    >>> nn.min_pool(numpy.arange(6.0).reshape(1, 6, 1), (2,), strides=(2,)).ravel().tolist()
    [0.0, 2.0, 4.0]
    """
    inputs = _check_real("min_pool", inputs)
    return ReduceWindowMin(*_make_pool_window("min_pool", inputs, window_shape, strides, padding))(
        inputs
    )


def avg_pool(
    inputs: Any,
    window_shape: Sequence[int],
    strides: Sequence[int] | None = None,
    padding: Any = "VALID",
    count_include_pad: bool = True,
) -> Any:
    """The average of the elements in each window; see `max_pool` for the arguments.

    Padding consists of zeros. With `count_include_pad` false it does not count, and a window on
    nothing else averages to nan.

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
    # A half float would stop to grow at a few hundred ones.
    wide = np.dtype("float32") if aval.dtype.itemsize < 4 else aval.dtype
    total = ReduceWindowSum(*window)(convert_element_type(inputs, wide))
    count = literal(prod(window.sizes), wide)
    if not count_include_pad:
        count = _window_counts(aval.shape, wide, window)
    return convert_element_type(div(total, count), aval.dtype)


def _window_counts(shape: tuple[int, ...], dtype: DType, window: Window) -> Any:
    """How many elements of an array of `shape` there are in each window."""
    slides = tuple([d for d, size in enumerate(window.sizes) if size > 1 or any(window.padding[d])])
    cut = Window(*[tuple([field[d] for d in slides]) for field in window])  # type: ignore[arg-type]
    ones = full(tuple([shape[d] for d in slides]), literal(1, dtype))
    return broadcast_in_dim(ReduceWindowSum(*cut)(ones), window.result_shape(shape), slides)


def _check_real(what: str, inputs: Any) -> Any:
    x = operand(inputs)
    if is_complex(aval_of(x).dtype):
        raise DTypeError(f"{what}: inputs must be real; got {aval_of(x)!r}")
    return x


def _make_pool_window(
    what: str, inputs: Any, window_shape: Any, strides: Any, padding: Any
) -> Window:
    """The windows on all axes of `inputs`, which lie on those before the last."""
    aval = aval_of(inputs)
    if not isinstance(window_shape, (tuple, list, np.ndarray)):
        raise ArgumentError(
            f"{what}: window_shape must be integers, one an axis; got {window_shape!r}"
        )
    count = np.size(window_shape)
    lead = aval.ndim - count - 1
    if lead < 0:
        raise ShapeError(
            f"{what}: inputs must have an axis for each entry of window_shape, then one for "
            f"channels; got {aval!r} for window_shape {tuple(window_shape)}"
        )
    middle = make_window(what, aval.shape[lead:-1], window_shape, strides, padding)
    check_window(what, aval.shape[lead:-1], middle)
    for d in [*range(lead), aval.ndim - 1]:
        middle = middle.with_batch_dim(d)
    return middle
