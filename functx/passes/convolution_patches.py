"""The windows of a convolution as an array: a factor of the product that the convolution sums."""

from __future__ import annotations

from typing import Any, NamedTuple

from functx import ops
from functx.core.program import Equation
from functx.core.typing import Value
from functx.ops.convolution import Convolution, permuted_shape
from functx.ops.operands import literal
from functx.ops.windows import Window

_MAX_SLICES = 64
"""The most slices per dimension that are joined to windows."""


class Patches(NamedTuple):
    """The windows of `array`, whose dimensions are (batch, channels, space) in the order `layout`.

    As an array, they have the batch, the channels, and for each dimension of space the positions of
    the windows and the positions within a window.
    """

    array: Any
    window: Window
    layout: tuple[int, ...]

    def emit(self, x: Value) -> Value:
        """Emit the equations that cut the windows out of `x`, the value of `array`."""
        window = self.window
        x = ops.permute_dims(x, self.layout)
        edges = [(low, high, dilation - 1) for (low, high), dilation in self._edges()]
        x = ops.pad(x, literal(0, x.dtype), [(0, 0, 0), (0, 0, 0), *edges])
        count = window.result_shape(permuted_shape(self.array.aval, self.layout)[2:])
        for d, n in enumerate(count):
            axis = 2 + 2 * d
            size, stride, dilation = window.sizes[d], window.strides[d], window.window_dilation[d]
            # The shorter of the two new axes is a stack of slices along the other.
            if n <= size:
                starts, length, step, new_axis = range(0, n * stride, stride), size, dilation, axis
            else:
                starts = range(0, size * dilation, dilation)
                length, step, new_axis = n, stride, axis + 1
            rows = [_strided_slice(x, axis, start, length, step) for start in starts]
            x = ops.concatenate([ops.expand_dims(row, new_axis) for row in rows], new_axis)
        return x

    def _edges(self) -> zip[tuple[tuple[int, int], int]]:
        return zip(self.window.padding, self.window.base_dilation, strict=True)


def _strided_slice(x: Value, axis: int, start: int, length: int, step: int) -> Value:
    starts, limits, strides = [0] * x.ndim, [*x.shape], [1] * x.ndim
    starts[axis], limits[axis], strides[axis] = start, start + (length - 1) * step + 1, step
    return ops.Slice(tuple(starts), tuple(limits), tuple(strides))(x)


def is_batch_of_convolutions(eqn: Equation) -> bool:
    """Whether a convolution has a kernel for each group, as the derivative of each example has."""
    primitive = eqn.primitive
    if type(primitive) is not Convolution or sorted(primitive.groups)[0] > 1:
        return False
    space = permuted_shape(eqn.outputs[0].aval, primitive.layouts.out)[2:]
    slices = map(min, zip(space, primitive.window.sizes, strict=True))
    return max(primitive.groups) > 1 and max(slices, default=1) <= _MAX_SLICES
