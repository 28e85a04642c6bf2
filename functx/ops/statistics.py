"""Means and variances, what they standardize, and the derivative of that."""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

import numpy as np

from functx.core.avals import Shape, ShapedArray
from functx.core.dtypes import DType, kind
from functx.core.errors import DTypeError
from functx.core.tracing import aval_of
from functx.ops.arithmetic import add, div, mul, square, sub
from functx.ops.conversion import convert_element_type
from functx.ops.exponential import rsqrt
from functx.ops.gradients import stop_gradient
from functx.ops.operands import canonical_axes, tuple_delete
from functx.ops.reductions import reduce_sum
from functx.ops.shaping import broadcast_in_dim, reshape


class Standardized(NamedTuple):
    """(x - mean) / sqrt(variance + eps), and what it was made with, of the axes kept.

    The mean is None where the second moment takes the place of the variance.
    """

    x: Any
    mean: Any
    variance: Any
    rstd: Any


def working_dtype(*arrays: Any) -> DType:
    """The dtype to compute statistics of `arrays` in: single precision, or double beside any."""
    wide = np.dtype("float64")
    return wide if any([x.dtype == wide for x in arrays]) else np.dtype("float32")


def check_real(op: str, *avals: ShapedArray) -> None:
    """Raise DTypeError unless all are of real floats."""
    if any([kind(aval.dtype) != "f" for aval in avals]):
        raise DTypeError(
            f"{op}: operands must be float; got " + " and ".join(map(repr, avals)),
            fix="Convert with astype.",
        )


def broadcast_along(x: Any, like: Any, axes: Shape) -> Any:
    """`x`, which lacks `axes` of the array `like`, repeated along them."""
    return broadcast_in_dim(x, like.shape, tuple_delete(range(like.ndim), axes))


def mean_along(x: Any, axes: Shape) -> Any:
    """The mean of `x` over `axes`; nan of nothing."""
    return div(reduce_sum(x, axes), float(prod([x.shape[d] for d in axes])))


def standardize(
    x: Any, axes: Shape, eps: float | None, centered: bool = True, rstd: Any = None
) -> Standardized:
    """`x` less its mean over `axes` (if `centered`), over the root of its variance plus `eps`.

    Without `eps` it is the one that gave `rstd` before, held constant.
    """
    mean = mean_along(x, axes) if centered else None
    rest = sub(x, broadcast_along(mean, x, axes)) if centered else x
    variance = mean_along(square(rest), axes)
    if eps is None:
        # Rounding may leave it negative, and yet the sum below is right to the last digits.
        recovered = stop_gradient(sub(div(1.0, square(rstd)), variance))
        rstd = rsqrt(add(variance, recovered))
    else:
        rstd = rsqrt(add(variance, eps))
    return Standardized(mul(rest, broadcast_along(rstd, x, axes)), mean, variance, rstd)


def standardize_jacobian(t: Any, out: Standardized, axes: Shape) -> Any:
    """What a tangent `t` of `x` makes of `standardize(x)`, or a cotangent `t` of that of `x`.

    The Jacobian is symmetric.
    """
    # r (t - mean(t) - out mean(out t))
    along = broadcast_along(mean_along(mul(out.x, t), axes), t, axes)
    rest = t if out.mean is None else sub(t, broadcast_along(mean_along(t, axes), t, axes))
    return mul(sub(rest, mul(out.x, along)), broadcast_along(out.rstd, t, axes))


def recompute_mean_var(x: Any, rstd: Any, dims: Any, keepdim: bool = True) -> tuple[Any, Any]:
    """The mean of `x` over `dims`, and `rstd`, which was 1 / sqrt(variance + eps), made anew.

    Both vary with `x`, which saved statistics do not. The eps is what `rstd` implies, held
    constant. `rstd` may have the axes `dims` as unit dimensions, or lack them; the results
    have them if `keepdim`.
    """
    aval, dtype = aval_of(x), aval_of(rstd).dtype
    axes = canonical_axes(dims, aval.ndim)
    work = working_dtype(aval, aval_of(rstd))
    saved = reshape(convert_element_type(rstd, work), tuple_delete(aval.shape, axes))
    found = standardize(convert_element_type(x, work), axes, None, rstd=saved)
    shape = tuple([1 if d in axes else n for d, n in enumerate(aval.shape)])
    mean, rstd = [
        convert_element_type(reshape(part, shape) if keepdim else part, dtype)
        for part in (found.mean, found.rstd)
    ]
    return mean, rstd
