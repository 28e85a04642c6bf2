"""Views that repeat elements of an array."""

from __future__ import annotations

from operator import index

from functx.core.errors import ShapeError, type_name
from functx.core.tracer import aval_of
from functx.core.typing import ArrayOrList, Axes, ShapeLike, Value
from functx.numpy.shapes import broadcast_arrays as broadcast_arrays
from functx.numpy.shapes import broadcast_shapes as broadcast_shapes
from functx.numpy.shapes import broadcast_to as broadcast_to
from functx.numpy.shapes import ensure_array
from functx.ops.operands import canonical_axis, is_sequence_of_ints, shape_entries
from functx.ops.views import AsStrided

__all__ = ["broadcast_arrays", "broadcast_shapes", "broadcast_to", "sliding_window_view"]


def sliding_window_view(
    x: ArrayOrList,
    window_shape: ShapeLike,
    axis: Axes = None,
    *,
    subok: bool = False,
    writeable: bool = False,
) -> Value:
    """A read-only view of all windows of `window_shape` in `x`, along new last dimensions.

    `axis` names the axis of each length of a window; by default there is a length for every
    axis. The length of an axis becomes the number of windows along it.

    Raises ShapeError unless there is one length for each axis, for windows that do not fit, and
    for `writeable`.
    """
    x = ensure_array(x)
    shape = aval_of(x).shape
    sizes = [index(n) for n in shape_entries(window_shape)]
    axes = range(len(shape)) if axis is None else axis if is_sequence_of_ints(axis) else (axis,)
    axes = [canonical_axis(a, len(shape), "sliding_window_view: axis") for a in axes]
    if len(sizes) != len(axes):
        raise ShapeError(
            "sliding_window_view: there must be a length of the window for each axis; got "
            f"{window_shape} for the axes {tuple(axes)} of {type_name(x)}"
        )
    lengths = list(shape)
    for n, a in zip(sizes, axes, strict=True):
        lengths[a] -= n - 1
        if n < 0 or lengths[a] < 0:
            raise ShapeError(
                f"sliding_window_view: windows must fit; got {window_shape} for {type_name(x)}"
            )
    if writeable:
        raise ShapeError(
            "sliding_window_view: the view must be read-only, since its windows overlap; got "
            "writeable=True"
        )
    steps = [tuple([int(d == a) for d in range(len(shape))]) for a in (*range(len(shape)), *axes)]
    return AsStrided((*lengths, *sizes), (0,) * len(shape), tuple(steps), writable=False)(x)
