"""Views by strides, as arrays that share memory see it."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from functx.core.errors import ShapeError
from functx.core.primitive import Primitive
from functx.core.samples import f32, sample
from functx.core.strides import Strides, contiguous
from functx.ops.arithmetic import add, mul
from functx.ops.creation import broadcasted_iota
from functx.ops.indexing import Gather, ScatterDimensionNumbers, scatter
from functx.ops.operands import literal
from functx.ops.shaping import full, reshape
from functx.ops.slicing import put_slice, slice

PLACE = np.dtype("int32")


class Strided(Primitive):
    """An array of `shape` whose elements lie in the vector `x`, from `offset` on, by `strides`."""

    shape: tuple[int, ...]
    offset: int
    steps: Strides
    samples = (
        sample(f32[12], shape=(3, 2), offset=1, steps=(4, -1)),
        sample(f32[6], shape=(2, 3), offset=0, steps=(3, 1)),
    )
    view = True

    def abstract_eval(self, x):
        ends = [(n - 1) * step for n, step in zip(self.shape, self.steps, strict=True)]
        low = self.offset + sum([min(end, 0) for end in ends])
        high = self.offset + sum([max(end, 0) for end in ends])
        if x.ndim != 1 or (prod(self.shape) and not 0 <= low <= high < x.size):
            raise ShapeError(
                f"strided: the places from {low} to {high} must lie in a vector; got {x!r}"
            )
        return x.update(shape=self.shape)

    def places(self) -> Any:
        """Where in the vector each element lies."""
        found = full(self.shape, literal(self.offset, PLACE))
        for d, step in enumerate(self.steps):
            along = broadcasted_iota(PLACE, self.shape, d)
            found = add(found, mul(along, full(self.shape, literal(step, PLACE))))
        return found

    def decompose(self, x):
        if self.steps == contiguous(self.shape):
            return reshape(slice(x, [self.offset], [self.offset + prod(self.shape)]), self.shape)
        read = Gather(
            collapsed_slice_dims=(0,),
            start_index_map=(0,),
            slice_sizes=(1,),
            mode="promise_in_bounds",
        )
        return read(x, reshape(self.places(), (*self.shape, 1)))

    def put_back(self, part, index, x):
        if not part.size:
            return x
        if self.steps == contiguous(self.shape):
            bounds = [(self.offset, self.offset + part.size, 1)]
            return put_slice(x, reshape(part, (part.size,)), bounds)
        numbers = ScatterDimensionNumbers((), (0,), (0,))
        places = reshape(self.places(), (part.size, 1))
        return scatter(x, places, reshape(part, (part.size,)), numbers, mode="promise_in_bounds")

    def read_only(self, x):
        return any(n > 1 and not step for n, step in zip(self.shape, self.steps, strict=True))

    def layout(self, x, strides):
        return tuple([step * strides[0] for step in self.steps])
