"""How alike two arrays of vectors are."""

from __future__ import annotations

from typing import Any

from functx.core.dtypes import is_complex
from functx.core.errors import DTypeError
from functx.core.tracing import aval_of
from functx.numpy.promotion import broadcast_shapes, broadcast_to, promote_inexact
from functx.ops.arithmetic import div, mul
from functx.ops.comparison import gt
from functx.ops.conversion import convert_element_type
from functx.ops.operands import canonical_axis
from functx.ops.reductions import reduce_sum
from functx.ops.selection import select
from functx.ops.spreads import upcast_half, vector_norm
from functx.ops.statistics import broadcast_along


def cosine_similarity(x1: Any, x2: Any, axis: int = 1, eps: float = 1e-8) -> Any:
    """The cosine of the angle between vectors along `axis`, which leaves the shape.

    The arrays are broadcast. A norm less than `eps` counts as `eps`, so that a vector of zeros
    has cosine 0 with any, and its derivative there is finite.

    Raises ShapeError where the arrays do not broadcast, AxisError for an axis they lack.

    >>> import numpy
    >>> from functx import nn
    >>> nn.cosine_similarity(numpy.array([[3.0, 0.0], [0.0, 2.0]]), numpy.array([1.0, 0.0])).tolist()
    [1.0, 0.0]
    """
    x1, x2 = promote_inexact(x1, x2)
    dtype, shape = aval_of(x1).dtype, broadcast_shapes(aval_of(x1).shape, aval_of(x2).shape)
    if is_complex(dtype):
        raise DTypeError(
            f"cosine_similarity: arrays must be real; got {aval_of(x1)!r} and {aval_of(x2)!r}"
        )
    axes = (canonical_axis(axis, len(shape), "cosine_similarity: axis"),)
    units = [_normalize(upcast_half(broadcast_to(x, shape)), axes, eps) for x in (x1, x2)]
    return convert_element_type(reduce_sum(mul(*units), axes), dtype)


def _normalize(x: Any, axes: tuple[int, ...], eps: float) -> Any:
    norm = vector_norm(x, 2.0, axes)
    return div(x, broadcast_along(select(gt(norm, eps), norm, eps), x, axes))
