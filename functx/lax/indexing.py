"""Elements at vectors of indices, read and changed by a function."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from functx import ops
from functx.core.tracer import aval_of
from functx.core.typing import ArrayLike, Value
from functx.numpy import asarray, remainder, stack, where
from functx.ops import GatherDimensionNumbers, ScatterDimensionNumbers
from functx.transforms.control.loops import while_loop
from functx.transforms.vmap import vmap


def index_take(src: ArrayLike, idxs: Sequence[ArrayLike], axes: Sequence[int]) -> Value:
    """The parts of `src` at the vectors of indices `idxs` along `axes`, stacked along a first dimension.

    Indices are taken modulo the lengths of the axes.
    """
    shape = aval_of(src).shape
    lengths = np.array([shape[axis] for axis in axes], np.int32)
    indices = remainder(stack([asarray(i) for i in idxs], 1), lengths)
    sizes = tuple([1 if axis in axes else n for axis, n in enumerate(shape)])
    offsets = tuple(range(1, len(shape) - len(axes) + 1))
    numbers = GatherDimensionNumbers(offsets, tuple(axes), tuple(axes))
    return ops.gather(src, indices, numbers, sizes)


def scatter_apply(
    operand: ArrayLike,
    scatter_indices: ArrayLike,
    func: Callable[[Value], Value],
    dimension_numbers: ScatterDimensionNumbers,
    *,
    update_shape: Sequence[int] = (),
    indices_are_sorted: bool = False,
    unique_indices: bool = False,
    mode: object = None,
) -> Value:
    """`operand` with `func` applied to the elements of the windows at `scatter_indices`.

    It is applied to an element as often as windows contain it. The arguments are those of `scatter`, with
    `update_shape` in place of updates of that shape. Unlike JAX's, it has derivatives.
    """
    operand = asarray(operand)
    elementwise = vmap(func)

    def applied(x: Value) -> Value:
        y = ops.reshape(elementwise(ops.reshape(x, (x.size,))), x.shape)
        return ops.convert_element_type(y, x.dtype)

    counts = ops.scatter_add(
        ops.full(operand.shape, 0, np.int32),
        scatter_indices,
        ops.full(tuple(update_shape), 1, np.int32),
        dimension_numbers,
        indices_are_sorted=indices_are_sorted,
        unique_indices=unique_indices,
        mode=mode,
    )
    if unique_indices or not operand.size:
        return where(counts > 0, applied(operand), operand) if operand.size else operand

    def step(state: tuple[Value, Value]) -> tuple[Value, Value]:
        i, x = state
        return i + 1, where(counts > i, applied(x), x)

    most = ops.reduce_max(counts, tuple(range(counts.ndim)))
    return while_loop(lambda state: state[0] < most, step, (np.int32(0), operand))[1]  # type: ignore[no-any-return]
