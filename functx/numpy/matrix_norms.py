"""Norms of vectors and matrices, and what follows from singular values: conditions and ranks."""

from __future__ import annotations

from math import inf
from typing import Any

import numpy as np

from functx import ops
from functx.core.errors import ShapeError, ValueRangeError
from functx.core.tracer import aval_of
from functx.core.types import real_dtype
from functx.core.typing import ArrayLike, ArrayOrList, Axes, Value
from functx.numpy import floating_point, operators, reductions, shapes
from functx.numpy.promotion import as_inexact
from functx.ops import factorizations, linear_systems, statistics
from functx.ops.operands import canonical_axes, literal


def norm(
    x: ArrayOrList, ord: ArrayLike | str | None = None, axis: Axes = None, keepdims: bool = False
) -> Value:
    """The norm of the vectors along an axis, or of the matrices along two.

    With `ord=None` it is the root of the sum of squares, of all elements if `axis` is None. For
    vectors `ord` is a number, `inf` or `-inf`; for matrices "fro", "nuc", 1, -1, 2, -2, `inf` or
    `-inf`. The derivative of the root at zero is zero, the subgradient of least norm.

    Raises ValueRangeError for other orders.

    >>> import functx, functx.numpy as np
    >>> functx.grad(np.linalg.norm)(np.array([3.0, 4.0])).tolist() == [0.6000000238418579, 0.800000011920929]
    True
    """
    x = as_inexact(x)
    ndim = aval_of(x).ndim
    all_axes = axis is None and (ord is None or ndim < 3)
    axes = canonical_axes(axis, ndim) if not (all_axes and ord is None) else tuple(range(ndim))
    if ord is None or (len(axes) == 2 and ord == "fro"):
        out = statistics.vector_norm(x, 2.0, axes)
    elif len(axes) == 1:
        out = _vector_norm(x, ord, axes)
    elif len(axes) == 2:
        out = _matrix_norm(x, ord, axes)
    else:
        raise ValueRangeError(f"norm: axis must name one or two axes; got {axes} with ord={ord!r}")
    return ops.expand_dims(out, axes) if keepdims and axes else out


def vector_norm(
    x: ArrayOrList, /, *, axis: Axes = None, keepdims: bool = False, ord: ArrayLike = 2
) -> Value:
    """The norm, by default the root of the sum of squares, of the vectors along `axis`, one or several.

    Without `axis` all elements are one vector. `ord` is a number, `inf` or `-inf`.
    """
    x = as_inexact(x)
    axes = canonical_axes(axis, aval_of(x).ndim)
    out = _vector_norm(x, ord, axes)
    return ops.expand_dims(out, axes) if keepdims and axes else out


def _vector_norm(x: Value, ord: Any, axes: tuple[int, ...]) -> Value:
    if isinstance(ord, str):
        raise ValueRangeError(f"norm: ord of a vector must be a number; got {ord!r}")
    aval = aval_of(x)
    if not isinstance(ord, (int, float, np.number)):
        return reductions.sum(operators.abs(x) ** ord, axis=axes) ** (1.0 / ord)
    if ord == 0:
        return reductions.sum(ops.ne(x, 0), axis=axes, dtype=real_dtype(aval.dtype))
    if ord in (inf, -inf) and 0 in [aval.shape[d] for d in axes]:
        raise ValueRangeError(f"norm: with ord={ord} there must be elements; got {aval!r}")
    return statistics.vector_norm(x, float(ord), axes)


def _matrix_norm(x: Value, ord: object, axes: tuple[int, ...]) -> Value:
    rows, columns = axes
    if ord in (2, -2, "nuc"):
        values = singular_values(shapes.moveaxis(x, axes, (-2, -1)))
        # The derivative of the absolute value at 0 is 0.
        reduction: Any = {2: reductions.max, -2: reductions.min, "nuc": reductions.sum}[ord]
        return reduction(operators.abs(values), axis=-1)
    if ord not in (1, -1, inf, -inf):
        raise ValueRangeError(
            f"norm: ord of a matrix must be 'fro', 'nuc', 1, -1, 2, -2, inf or -inf; got {ord!r}"
        )
    summed, remaining = (rows, columns) if ord in (1, -1) else (columns, rows)
    sums = reductions.sum(operators.abs(x), axis=summed)
    return (reductions.max if ord > 0 else reductions.min)(
        sums, axis=remaining - (remaining > summed)
    )


def matrix_norm(
    x: ArrayOrList, /, *, keepdims: bool = False, ord: ArrayLike | str = "fro"
) -> Value:
    """The norm of the matrices in the last two dimensions; see `norm`."""
    return norm(x, ord, (-2, -1), keepdims)


def singular_values(x: Value, hermitian: bool = False) -> Value:
    """The singular values of matrices, in descending order; of Hermitian ones by eigenvalues."""
    if not hermitian:
        return factorizations.svd(x)[1]
    sizes = ops.abs(factorizations.eigh(x)[0])
    return ops.rev(ops.sort(sizes, sizes.ndim - 1), (sizes.ndim - 1,))


def cond(x: ArrayOrList, p: ArrayLike | str | None = None) -> Value:
    """The condition number of matrices: their norm times that of the inverse.

    `p` is the order of the norm. By default, and for 2, the condition number is the largest singular
    value over the smallest; for other orders but -2 the matrices must be square. It is infinite for
    singular matrices.

    >>> import functx.numpy as np
    >>> float(np.linalg.cond(np.array([[2.0, 0.0], [0.0, 4.0]])))
    2.0
    """
    x = as_inexact(x)
    aval = aval_of(x)
    if aval.ndim < 2 or 0 in aval.shape[-2:]:
        raise ShapeError(f"cond: the operand must hold matrices with elements; got {aval!r}")
    if p is None or p in (2, -2):
        values = singular_values(x)
        largest, least = values[..., 0], values[..., -1]
        ratio: Value = ops.div(least, largest) if p == -2 else ops.div(largest, least)
    else:
        if aval.shape[-1] != aval.shape[-2]:
            raise ShapeError(f"cond: with p={p!r} matrices must be square; got {aval!r}")
        unit = ops.position_mask(aval.shape, ops.eq)
        inverse = linear_systems.solve(x, ops.convert_element_type(unit, aval.dtype))
        ratio = ops.mul(norm(x, p, (-2, -1)), norm(inverse, p, (-2, -1)))
    is_known = reductions.any(floating_point.isnan(x), axis=(-2, -1)) == np.False_
    return ops.select(
        ops.bitwise_and(floating_point.isnan(ratio), is_known),
        literal(inf, aval_of(ratio).dtype),
        ratio,
    )


def matrix_rank(
    M: ArrayOrList,  # noqa: N803 - NumPy's name
    rtol: ArrayLike | None = None,
    *,
    hermitian: bool = False,
    tol: ArrayLike | None = None,
) -> Value:
    """The rank of matrices: the number of their singular values above a tolerance.

    The tolerance is `tol`, or `rtol` times the largest singular value; by default the larger dimension
    times the unit of rounding is taken for `rtol`. Of less than two dimensions the rank is 1, or 0 if
    all elements are 0. With `hermitian`, the matrices are taken to be Hermitian.

    >>> import functx.numpy as np
    >>> int(np.linalg.matrix_rank(np.array([[1.0, 2.0], [2.0, 4.0]])))
    1
    """
    if rtol is not None and tol is not None:
        raise ValueRangeError("matrix_rank: at most one of rtol and tol can be given; got both")
    x = as_inexact(M)
    aval = aval_of(x)
    if aval.ndim < 2:
        return shapes.astype(reductions.any(ops.ne(x, 0)), np.int32)
    values = singular_values(x, hermitian)
    if tol is not None:
        least: Any = tol
    else:
        eps = float(np.finfo(aval.dtype).eps)
        scale: Any = max(aval.shape[-2:]) * eps if rtol is None else rtol
        least = reductions.max(values, axis=-1, initial=0) * scale
    least = shapes.expand_dims(least, -1)
    return reductions.sum(values > least, axis=-1)
