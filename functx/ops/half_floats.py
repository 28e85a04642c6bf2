"""Half floats: sums and exponentials of them are computed in single precision."""

from __future__ import annotations

from typing import Any

import numpy as np

from functx.core.dtypes import DType
from functx.ops.conversion import convert_element_type
from functx.ops.reductions import reduce_sum

SINGLE = np.dtype("float32")


def wide_dtype(dtype: DType) -> DType:
    """`dtype`, or single precision in place of half floats."""
    return SINGLE if dtype.itemsize < 4 else dtype


def widened(x: Any) -> Any:
    """`x` in single precision if it holds half floats, else as it is."""
    return convert_element_type(x, SINGLE) if x.dtype.itemsize < 4 else x


def narrowed(x: Any, like: Any) -> Any:
    """`x` in the dtype of `like`, which it was computed from after `widened`."""
    return x if x.dtype == like.dtype else convert_element_type(x, like.dtype)


def sum_over(x: Any, axes: tuple[int, ...]) -> Any:
    """The sum over `axes`, of half floats in single precision."""
    return narrowed(reduce_sum(widened(x), axes), x)
