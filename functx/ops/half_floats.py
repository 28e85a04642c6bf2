"""Half floats: sums and exponentials of them are computed in single precision."""

from __future__ import annotations

from typing import Any

from functx.core.avals import ShapedArray
from functx.core.dtypes import wide_dtype
from functx.ops.conversion import convert_element_type
from functx.ops.reductions import reduce_sum


def wide_aval(aval: ShapedArray) -> ShapedArray:
    """`aval`, or single precision in place of half floats."""
    wide = wide_dtype(aval.dtype)
    return aval if wide == aval.dtype else aval.update(dtype=wide)


def widened(x: Any) -> Any:
    """`x` in single precision if it holds half floats, else as it is."""
    wide = wide_dtype(x.dtype)
    return x if wide == x.dtype else convert_element_type(x, wide)


def narrowed(x: Any, like: Any) -> Any:
    """`x` in the dtype of `like`, which it was computed from after `widened`."""
    return x if x.dtype == like.dtype else convert_element_type(x, like.dtype)


def sum_over(x: Any, axes: tuple[int, ...]) -> Any:
    """The sum over `axes`, of half floats in single precision."""
    return narrowed(reduce_sum(widened(x), axes), x)
