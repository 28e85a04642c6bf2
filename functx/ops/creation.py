"""Arrays made of nothing but their shape."""

from __future__ import annotations

from typing import Any

from jax.extend.mlir.dialects import stablehlo

from functx.core.avals import ShapedArray
from functx.core.dtypes import canonical_dtype, kind
from functx.core.errors import AxisError, DTypeError
from functx.core.samples import sample
from functx.ops.families import Constant
from functx.ops.operands import canonical_axis


class Iota(Constant):
    """An array of `shape` that holds at each place its index along `dimension`."""

    dtype: Any
    shape: tuple[int, ...]
    dimension: int = 0
    samples = sample(dtype="int32", shape=(3, 4), dimension=1), sample(dtype="float32", shape=(0,))

    def abstract_eval(self):
        dtype = canonical_dtype(self.dtype)
        if kind(dtype) == "b":
            raise DTypeError("iota: the dtype must be a number's; got bool")
        if not 0 <= self.dimension < len(self.shape):
            raise AxisError(
                f"iota: dimension must be one of the shape {self.shape}; got {self.dimension}"
            )
        return ShapedArray(self.shape, dtype)

    def lower(self, ctx):
        return stablehlo.iota(ctx.out_types[0], self.dimension)


def iota(dtype: Any, size: int) -> Any:
    """The numbers 0, 1, ..., size - 1 in `dtype`."""
    return Iota(canonical_dtype(dtype), (size,), 0)()


def broadcasted_iota(dtype: Any, shape: tuple[int, ...], dimension: int) -> Any:
    """An array of `shape` that holds at each place its index along `dimension`."""
    return Iota(canonical_dtype(dtype), tuple(shape), canonical_axis(dimension, len(shape)))()
