"""Norms and products of matrices, by NumPy's names and arguments."""

from __future__ import annotations

from math import inf
from typing import Any

from functx.core.dtypes import is_complex
from functx.core.errors import ValueRangeError
from functx.core.tracing import aval_of
from functx.numpy import elementwise, reductions
from functx.numpy.contraction import matrix_power, multi_dot
from functx.numpy.promotion import promote_inexact
from functx.ops.numerics import root_of_squares
from functx.ops.operands import canonical_axes
from functx.ops.shaping import expand_dims

__all__ = ["matrix_power", "multi_dot", "norm"]


def norm(x: Any, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Any:
    """The norm of the vectors along an axis, or of the matrices along two.

    Without `ord` the root of the sum of squares, over everything without `axis`. For
    vectors `ord` is a number, `inf` or `-inf`; for matrices "fro", 1, -1, `inf` or `-inf`.
    The derivative of the root at zero is zero, the least of its subgradients.

    Raises ValueRangeError for an order that the vectors or matrices do not have.

    >>> import functx, functx.numpy as np
    >>> functx.grad(np.linalg.norm)(np.array([3.0, 4.0])).tolist() == [0.6000000238418579, 0.800000011920929]
    True
    """
    (x,) = promote_inexact(x)
    ndim = aval_of(x).ndim
    whole = axis is None and (ord is None or ndim < 3)
    axes = canonical_axes(axis, ndim) if not (whole and ord is None) else tuple(range(ndim))
    if ord is None or (len(axes) == 2 and ord == "fro"):
        out = _root(x, axes)
    elif len(axes) == 1:
        out = _vector(x, ord, axes)
    elif len(axes) == 2:
        out = _matrix(x, ord, axes)
    else:
        raise ValueRangeError(f"norm: axis must name one or two axes; got {axes} with ord={ord!r}")
    return expand_dims(out, axes) if keepdims and axes else out


def _root(x: Any, axes: tuple[int, ...]) -> Any:
    return root_of_squares(reductions.sum(_square(x), axis=axes))


def _square(x: Any) -> Any:
    if is_complex(aval_of(x).dtype):
        return elementwise.real(x) ** 2 + elementwise.imag(x) ** 2
    return x * x


def _vector(x: Any, ord: Any, axes: tuple[int, ...]) -> Any:
    if ord == 2:
        return _root(x, axes)
    size = elementwise.abs(x)
    if ord in (inf, -inf):
        return (reductions.max if ord > 0 else reductions.min)(size, axis=axes)
    if ord == 0:
        return reductions.sum((size != 0).astype(aval_of(size).dtype), axis=axes)
    if isinstance(ord, str):
        raise ValueRangeError(f"norm: ord of a vector must be a number; got {ord!r}")
    if ord == 1:
        return reductions.sum(size, axis=axes)
    return reductions.sum(size**ord, axis=axes) ** (1.0 / ord)


def _matrix(x: Any, ord: Any, axes: tuple[int, ...]) -> Any:
    if ord not in (1, -1, inf, -inf):
        raise ValueRangeError(
            f"norm: ord of a matrix must be 'fro', 1, -1, inf or -inf; got {ord!r}",
            fix="Orders 2 and 'nuc' need singular values; jax.numpy.linalg.svd has them.",
        )
    rows, columns = axes
    summed, chosen = (rows, columns) if ord in (1, -1) else (columns, rows)
    sums = reductions.sum(elementwise.abs(x), axis=summed)
    return (reductions.max if ord > 0 else reductions.min)(sums, axis=chosen - (chosen > summed))
