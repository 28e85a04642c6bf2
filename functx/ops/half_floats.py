"""Half floats: sums and exponentials of them are computed in single precision."""

from __future__ import annotations

from typing import Any

from functx.core.avals import ShapedArray
from functx.core.dtypes import accumulation_dtype
from functx.ops.conversion import convert_element_type
from functx.ops.reductions import reduce_sum


def upcast_aval(aval: ShapedArray) -> ShapedArray:
    """`aval`, or single precision in place of half floats."""
    wide = accumulation_dtype(aval.dtype)
    return aval if wide == aval.dtype else aval.update(dtype=wide)


def upcast_half(x: Any) -> Any:
    """`x` in single precision if it holds half floats, else as it is."""
    wide = accumulation_dtype(x.dtype)
    return x if wide == x.dtype else convert_element_type(x, wide)


def cast_like_input(x: Any, like: Any) -> Any:
    """`x` in the dtype of `like`, which it was computed from after `upcast_half`."""
    return x if x.dtype == like.dtype else convert_element_type(x, like.dtype)


def sum_upcast(x: Any, axes: tuple[int, ...]) -> Any:
    """The sum over `axes`, of half floats in single precision."""
    return cast_like_input(reduce_sum(upcast_half(x), axes), x)
