"""Arrays that stand in a program by value."""

from __future__ import annotations

from typing import Any

import numpy as np
from jax.interpreters import mlir

from functx.core.avals import ShapedArray
from functx.core.samples import f32, i32, sample
from functx.core.tracing import aval_of
from functx.ops.families import Constant


class DenseConstant(Constant):
    """The array of type `aval` whose elements have the bytes `data`, row by row."""

    aval: ShapedArray
    data: bytes
    samples = (
        sample(aval=f32[2, 2], data=np.arange(4, dtype=np.float32).tobytes()),
        sample(aval=i32[3], data=np.arange(3, dtype=np.int32).tobytes()),
    )

    def abstract_eval(self):
        return self.aval

    def array(self) -> np.ndarray[Any, Any]:
        """The value."""
        return np.frombuffer(self.data, self.aval.dtype).reshape(self.aval.shape)

    def lower(self, ctx):
        return mlir.ir_constant(self.array())


def embed_constant(x: Any) -> Any:
    """The concrete array `x` as part of the program, for values that cannot be operands."""
    aval = aval_of(x)
    return DenseConstant(aval, np.ascontiguousarray(np.asarray(x, aval.dtype)).tobytes())()
