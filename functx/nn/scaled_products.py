"""Products of arrays in formats of 8 and 4 bits, whose blocks of elements share scales (OCP MX, NVFP4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import ml_dtypes
import numpy as np
from jax.lax import DotDimensionNumbers

from functx import ops
from functx.core.errors import ShapeError, ValueRangeError
from functx.core.types import canonical_dtype
from functx.core.typing import ArrayLike, DTypeLike, Value
from functx.custom.custom_vjp import custom_vjp
from functx.lax.ragged import scale_blocks
from functx.numpy import asarray, clip, frexp, ldexp, round, where
from functx.transforms.jvp import vjp

__all__ = ["get_scaled_dot_general_config", "scaled_dot_general", "scaled_matmul"]

_LARGEST = {"mxfp8": 448.0, "nvfp4": 6.0}
"""The largest number of each format of elements: e4m3fn, e2m1fn."""
_LARGEST_SCALE = 448.0


def scaled_matmul(
    lhs: ArrayLike,
    rhs: ArrayLike,
    lhs_scales: ArrayLike,
    rhs_scales: ArrayLike,
    preferred_element_type: DTypeLike = np.float32,
) -> Value:
    """The products of rows of `lhs` and rows of `rhs`, whose blocks of elements are scaled.

    `lhs` has the shape (B, M, K), `rhs` (B, N, K), and the scales (B, M, k) and (B, N, k), where each
    scale belongs to K / k elements. The result has the shape (B, M, N).

    >>> import numpy
    >>> from functx import nn
    >>> x, scale = numpy.ones((1, 1, 4), "float32"), numpy.float32([[[1, 10]]])
    >>> nn.scaled_matmul(x, x, scale, scale).item()
    202.0
    """
    arrays = [asarray(x) for x in (lhs, rhs, lhs_scales, rhs_scales)]
    shapes = [x.shape for x in arrays]
    if any(x.ndim != 3 for x in arrays) or (shapes[0][0], shapes[0][2]) != (
        shapes[1][0],
        shapes[1][2],
    ):
        raise ShapeError(
            "scaled_matmul: operands must have the shapes (B, M, K) and (B, N, K), and scales (B, M, k) "
            f"and (B, N, k); got {shapes}"
        )
    wide = canonical_dtype(np.float32)
    left, right = [
        scale_blocks(ops.convert_element_type(x, wide), scale, (2,), "scaled_matmul")
        for x, scale in zip(arrays[:2], arrays[2:], strict=True)
    ]
    product = ops.dot_general(left, right, (((2,), (2,)), ((0,), (0,))))
    return ops.convert_element_type(product, canonical_dtype(preferred_element_type))


@dataclass(frozen=True, eq=False)
class BlockScaleConfig:
    """How an array is rounded: the format `mode`, the elements that share a scale, and the types of both."""

    mode: str
    block_size: int
    data_type: DTypeLike
    scale_type: DTypeLike
    global_scale: ArrayLike | None = None
    infer_only: bool = False


def get_scaled_dot_general_config(
    mode: str, global_scale: ArrayLike | None = None
) -> BlockScaleConfig:
    """The format "mxfp8" or "nvfp4" for `scaled_dot_general`; nvfp4 has a `global_scale`, by default 1."""
    if mode == "mxfp8":
        return BlockScaleConfig(mode, 32, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e8m0fnu)
    if mode != "nvfp4":
        raise ValueRangeError(
            f"get_scaled_dot_general_config: mode must be 'mxfp8' or 'nvfp4'; got {mode!r}"
        )
    scale = np.ones(1, np.float32) if global_scale is None else global_scale
    return BlockScaleConfig(mode, 16, ml_dtypes.float4_e2m1fn, ml_dtypes.float8_e4m3fn, scale)


def scaled_dot_general(
    lhs: ArrayLike,
    rhs: ArrayLike,
    dimension_numbers: DotDimensionNumbers,
    preferred_element_type: DTypeLike = np.float32,
    configs: Sequence[Any] | None = None,
    implementation: str | None = None,
) -> Value:
    """`dot_general` of operands that are rounded to a format with blocks and scales.

    `configs`, of `get_scaled_dot_general_config`, are those of `lhs`, of `rhs` and of the cotangent; without
    them it is `dot_general`. In "mxfp8", derivatives are products of rounded arrays as well; in "nvfp4" they
    are exact products, and zero where an operand exceeds the largest number of the format. The number of
    contracted elements must be a multiple of the block size. `implementation` is ignored.

    Raises ValueRangeError for lengths that do not divide into blocks.
    """
    left, right = asarray(lhs), asarray(rhs)
    dtype = canonical_dtype(preferred_element_type)
    if configs is None:
        return ops.dot_general(left, right, dimension_numbers, preferred_element_type=dtype)
    (left_dims, right_dims), (left_batch, right_batch) = dimension_numbers
    left_free = [d for d in range(left.ndim) if d not in (*left_dims, *left_batch)]
    right_free = [d for d in range(right.ndim) if d not in (*right_dims, *right_batch)]
    of_left, of_right, of_ct = configs

    def product(x: Value, y: Value) -> Value:
        return ops.dot_general(x, y, dimension_numbers, preferred_element_type=dtype)

    @custom_vjp
    def rounded(x: Value, y: Value) -> Value:
        return product(round_blocks(x, left_dims, of_left), round_blocks(y, right_dims, of_right))

    def backward(operands: tuple[Value, Value], ct: Value) -> tuple[Value, Value]:
        x, y = operands
        end = len(left_batch) + len(left_free)
        x_axes, y_axes = range(len(left_batch), end), range(end, ct.ndim)
        if of_ct.mode == "nvfp4":
            cts = vjp(product, x, y)[1](ct)
            pairs = zip(cts, (x, y), (of_left, of_right), strict=True)
            return tuple([where(is_in_range(v, each), d, 0) for d, v, each in pairs])  # type: ignore[return-value]
        x_rounded, y_rounded = (
            round_blocks(x, left_free, of_left),
            round_blocks(y, right_free, of_right),
        )
        (x_ct, _) = vjp(product, x, y_rounded)[1](round_blocks(ct, y_axes, of_ct))
        (_, y_ct) = vjp(product, x_rounded, y)[1](round_blocks(ct, x_axes, of_ct))
        return x_ct, y_ct

    rounded.defvjp(lambda x, y: (rounded(x, y), (x, y)), backward)
    return rounded(left, right)  # type: ignore[no-any-return]


def round_blocks(x: Value, dims: Sequence[int], config: BlockScaleConfig) -> Value:
    """`x` rounded to the numbers of a format, where blocks of elements along `dims`, in order, share scales."""
    count, size = prod(x.shape[d] for d in dims), config.block_size
    if count % size or not count:
        raise ValueRangeError(
            f"scaled_dot_general: there must be a multiple of {size} elements along contracted dimensions, "
            f"in derivatives along the others too; got {count} in {x.shape}"
        )
    dims = sorted(dims)
    order = (*[d for d in range(x.ndim) if d not in dims], *dims)
    moved = ops.permute_dims(x, order)
    blocks = ops.reshape(moved, (x.size // size, size))
    unit = asarray(1.0 if config.global_scale is None else config.global_scale, x.dtype).reshape(-1)
    blocks, largest = blocks / unit, _LARGEST[config.mode]
    highest = abs(blocks).max(axis=1, keepdims=True)
    scale = round_scale(highest / largest, config.mode)
    units = clip(blocks / scale, -largest, largest)
    found = round_elements(units, config.mode) * scale * unit
    back = [order.index(d) for d in range(x.ndim)]
    return ops.permute_dims(ops.reshape(found, moved.shape), tuple(back))


def round_scale(scale: Value, mode: str) -> Value:
    """A scale in its format: the next power of two, or a number of e4m3fn."""
    if mode == "mxfp8":
        # Powers of two from 2 ** -127 on, as e8m0fnu has them.
        fraction, exponent = frexp(ops.convert_element_type(scale, np.float32))
        power = clip(where(fraction > 0.5, exponent, exponent - 1), -127, 127)
        power = where(scale == 0, np.int32(-127), power)
        # In two steps, since 2 ** -127 is subnormal.
        half = ldexp(ops.full((), 1, np.float32), power // 2)
        return ops.convert_element_type(half * ldexp(half, power % 2), scale.dtype)
    narrow = ops.convert_element_type(clip(scale, 0, _LARGEST_SCALE), ml_dtypes.float8_e4m3fn)
    rounded = ops.convert_element_type(narrow, scale.dtype)
    # A block of zeros, or of numbers too small for a scale, is divided by 1.
    return where(rounded == 0, asarray(1, scale.dtype), rounded)


def round_elements(x: Value, mode: str) -> Value:
    """Numbers of a format's range rounded to its numbers, halves to even."""
    if mode == "mxfp8":
        return ops.convert_element_type(
            ops.convert_element_type(x, ml_dtypes.float8_e4m3fn), x.dtype
        )
    # The numbers of e2m1 are 1/2 apart below 2, 1 apart below 4, then 2 apart.
    size = abs(x)
    step = where(size < 2, asarray(0.5, x.dtype), where(size < 4, asarray(1, x.dtype), 2))
    return round(x / step) * step


def is_in_range(x: Value, config: Any) -> Value:
    """Which elements the format has numbers for, with the largest scales."""
    return abs(x) <= config.global_scale * _LARGEST[config.mode] * _LARGEST_SCALE
