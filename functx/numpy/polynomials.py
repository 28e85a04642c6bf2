"""Polynomials as vectors of coefficients, the highest power first."""

from __future__ import annotations

from collections.abc import Callable
from math import perm
from typing import Any

import ml_dtypes
import numpy as np

from functx import ops
from functx.core.errors import ShapeError, ValueRangeError
from functx.core.tracer import aval_of
from functx.core.types import complex_dtype, real_dtype
from functx.core.typing import ArrayLike, ArrayOrList, Value
from functx.numpy import linalg, operators, ufuncs
from functx.numpy.array_creation import arange, asarray, ones, zeros
from functx.numpy.eager_programs import as_one_program
from functx.numpy.floating_point import real
from functx.numpy.joining import concatenate
from functx.numpy.matrices import eye, outer, vander
from functx.numpy.promotion import broadcast_shapes, broadcast_to, promote, promote_inexact
from functx.numpy.rearranging import roll
from functx.numpy.reductions import argmax, sum
from functx.numpy.sorting_and_searching import argsort, flatnonzero
from functx.numpy.statistics import convolve
from functx.numpy.tensor_contractions import dot
from functx.ops.operands import as_int
from functx.transforms.control.rows import scan

__all__ = [
    "poly",
    "polyadd",
    "polyder",
    "polydiv",
    "polyfit",
    "polyint",
    "polymul",
    "polysub",
    "polyval",
    "roots",
]


def _coefficients(name: str, *polynomials: ArrayOrList) -> list[Value]:
    """The coefficients as vectors of one inexact dtype."""
    return [_vector(name, p) for p in promote_inexact(*map(asarray, polynomials))]


def _vector(name: str, p: ArrayOrList) -> Value:
    p = asarray(p)
    if p.ndim > 1:
        raise ShapeError(f"{name}: coefficients must have one dimension; got {aval_of(p)!r}")
    return p if p.ndim else p[None]


@as_one_program
def polyval(p: ArrayOrList, x: ArrayOrList, *, unroll: int = 16) -> Value:
    """The polynomial with coefficients `p` along the first axis at `x`, by Horner's scheme.

    Of more coefficients than `unroll` it is a loop, of that many coefficients a step.

    >>> import functx.numpy as np
    >>> np.polyval([1.0, 0.0, -2.0], 3.0)
    array(7., dtype=float32)
    """
    p, x = promote(asarray(p), asarray(x))
    if not aval_of(p).ndim:
        raise ShapeError(f"polyval: p must have a dimension; got {aval_of(p)!r}")
    shape = broadcast_shapes(p.shape[1:], x.shape)
    start = ops.convert_element_type(zeros(shape, x.dtype), x.dtype)

    def step(y: Value, c: Value) -> tuple[Value, None]:
        return operators.add(operators.multiply(y, x), c), None

    if len(p) > unroll:
        return scan(step, start, p, unroll=unroll)[0]
    y = start if not len(p) else broadcast_to(p[0], shape)
    for i in range(1, len(p)):
        y, _ = step(y, p[i])
    return y


@as_one_program
def polyadd(a1: ArrayOrList, a2: ArrayOrList) -> Value:
    """The coefficients of the sum of two polynomials."""
    return _combine("polyadd", operators.add, a1, a2)


@as_one_program
def polysub(a1: ArrayOrList, a2: ArrayOrList) -> Value:
    """The coefficients of the difference of two polynomials."""
    return _combine("polysub", operators.subtract, a1, a2)


def _combine(name: str, fun: Callable[..., Value], a1: ArrayOrList, a2: ArrayOrList) -> Value:
    x, y = [_vector(name, a) for a in promote(asarray(a1), asarray(a2))]
    length = max(len(x), len(y))
    return fun(*[concatenate([zeros(length - len(a), a.dtype), a]) for a in (x, y)])


def polymul(a1: ArrayOrList, a2: ArrayOrList, *, trim_leading_zeros: bool = False) -> Value:
    """The coefficients of the product of two polynomials.

    With `trim_leading_zeros` they begin with the first that is not 0, which must be known while tracing.
    """
    x, y = _coefficients("polymul", a1, a2)
    if trim_leading_zeros and len(x) > 1 and len(y) > 1:
        x, y = [_trim_leading_zeros(a, float(ml_dtypes.finfo(a.dtype).eps)) for a in (x, y)]
    return convolve(x, y) if len(x) and len(y) else ones(1, x.dtype)


def _trim_leading_zeros(p: Value, tolerance: float) -> Value:
    kept = flatnonzero(operators.greater(operators.absolute(p), tolerance))
    return p[int(kept[0]) :] if len(kept) else p[:0]


def polydiv(
    u: ArrayOrList, v: ArrayOrList, *, trim_leading_zeros: bool = False
) -> tuple[Value, Value]:
    """The quotient and the remainder of the division of two polynomials.

    The remainder is as long as `u`, or begins with `trim_leading_zeros` with its first coefficient that
    is not 0, which must be known while tracing.
    """
    u, v = _coefficients("polydiv", u, v)
    degree, steps = len(v) - 1, len(u) - len(v) + 1
    if degree < 0:
        raise ShapeError("polydiv: v must have coefficients; got none")
    if steps > 0:

        def step(rest: Value, _: None) -> tuple[Value, Value]:
            q = operators.divide(rest[0], v[0])
            reduced = operators.subtract(rest[1 : degree + 1], operators.multiply(q, v[1:]))
            return concatenate([reduced, rest[degree + 1 :], zeros(1, rest.dtype)]), q

        rest, quotient = scan(step, u, None, length=steps)
        remainder = concatenate([zeros(steps, u.dtype), rest[:degree]])
    else:
        quotient, remainder = zeros(1, u.dtype), u
    if trim_leading_zeros:
        tolerance = float(ml_dtypes.finfo(u.dtype).eps) ** 0.5
        remainder = _trim_leading_zeros(remainder, tolerance)
    return quotient, remainder


@as_one_program
def polyder(p: ArrayOrList, m: int = 1) -> Value:
    """The coefficients of the derivative of order `m`."""
    order, (p,) = _order("polyder", m), _coefficients("polyder", p)
    factors = [float(perm(len(p) - 1 - i, order)) for i in range(len(p) - order)]
    return operators.multiply(p[: len(factors)], np.array(factors, real_dtype(p.dtype)))


@as_one_program
def polyint(p: ArrayOrList, m: int = 1, k: ArrayOrList | None = None) -> Value:
    """The coefficients of the integral of order `m`, with the constants `k`, by default 0.

    `k` holds a constant for each integration in their order, or one for all.
    """
    order = _order("polyint", m)
    p, k = _coefficients("polyint", p, 0 if k is None else k)
    if len(k) not in (1, order):
        raise ShapeError(f"polyint: k must hold 1 or {order} constants; got {aval_of(k)!r}")
    p = concatenate([p, broadcast_to(k, (order,))])
    powers = [len(p) - 1 - i for i in range(len(p))]
    factors = [1.0 / perm(n, min(order, n)) for n in powers]
    return operators.multiply(p, np.array(factors, real_dtype(p.dtype)))


def _order(name: str, m: int) -> int:
    order = as_int(f"{name}: m", m)
    if order < 0:
        raise ValueRangeError(f"{name}: m must not be negative; got {order}")
    return order


def poly(seq_of_zeros: ArrayOrList) -> Value:
    """The coefficients of the monic polynomial with these zeros, or the characteristic one of a matrix."""
    (x,) = promote_inexact(asarray(seq_of_zeros))
    x = x if x.ndim else x[None]
    if x.ndim == 2 and x.shape[0] == x.shape[1] and x.size:
        x = linalg.eigvals(x)
    elif x.ndim != 1:
        raise ShapeError(
            f"poly: zeros must have one dimension, or be a square matrix; got {aval_of(x)!r}"
        )
    if not len(x):
        return ones((), x.dtype)
    product = ones(1, x.dtype)
    for i in range(len(x)):
        product = convolve(
            product, concatenate([ones(1, x.dtype), operators.negative(x[i : i + 1])])
        )
    return product


def roots(p: ArrayOrList, *, strip_zeros: bool = True) -> Value:
    """The zeros of a polynomial: the eigenvalues of its companion matrix, complex and in no order.

    `strip_zeros` removes leading and trailing coefficients of 0, which must be known while tracing.
    Without it, leading coefficients of 0 make that many zeros nan, the last ones.

    >>> import functx.numpy as np
    >>> np.sort(np.roots(np.array([1.0, -3.0, 2.0])).real)
    array([1., 2.], dtype=float32)
    """
    (p,) = _coefficients("roots", p)
    dtype = complex_dtype(p.dtype)
    if not strip_zeros:
        return _roots_of_any(p) if len(p) > 1 else zeros(0, dtype)
    kept = np.asarray(flatnonzero(p))
    if not len(kept):
        return zeros(0, dtype)
    first, last = int(kept[0]), int(kept[-1])
    found = _companion_eigenvalues(p[first : last + 1])
    return concatenate([found, zeros(len(p) - 1 - last, dtype)])


def _companion_eigenvalues(p: Value) -> Value:
    """The zeros of a polynomial whose first coefficient is not 0."""
    if len(p) < 2:
        return zeros(0, complex_dtype(p.dtype))
    first = operators.negative(operators.divide(p[1:], p[0]))
    below = eye(len(p) - 2, len(p) - 1, dtype=p.dtype)
    return linalg.eigvals(concatenate([first[None], below]))


def _roots_of_any(p: Value) -> Value:
    """The zeros of a polynomial of which any coefficients are 0; the last are nan for leading zeros."""
    is_nonzero = operators.not_equal(p, 0)
    missing = ufuncs.where(is_nonzero.any(), argmax(is_nonzero), len(p))
    p = ufuncs.where(operators.equal(missing, len(p)), ops.convert_element_type(1.0, p.dtype), p)
    found = _companion_eigenvalues(roll(p, operators.negative(missing)))
    found = found[argsort(operators.equal(found, 0))]
    is_zero = operators.less(arange(len(found)), operators.subtract(len(found), missing))
    return ufuncs.where(is_zero, found, complex(np.nan, np.nan))


def polyfit(
    x: ArrayOrList,
    y: ArrayOrList,
    deg: int,
    rcond: float | None = None,
    full: bool = False,
    w: ArrayOrList | None = None,
    cov: bool | str = False,
) -> Any:
    """The coefficients of the polynomial of degree `deg` with the least squared distance to points.

    `y` holds the values at `x`, for several polynomials one in a column; `w` holds weights of the
    distances. Singular values below `rcond` times the largest count as 0. With `full`, the coefficients,
    the sums of squares, the rank, the singular values and `rcond`; with `cov`, the coefficients and
    their covariance, which `cov="unscaled"` does not scale by the sum of squares.
    """
    order = _order("polyfit", deg) + 1
    x, y = promote_inexact(asarray(x), asarray(y))
    if x.ndim != 1 or not len(x) or y.ndim not in (1, 2) or len(y) != len(x):
        raise ShapeError(
            "polyfit: x must be a vector, and y hold a value or a row for each of its elements; got "
            f"{aval_of(x)!r} and {aval_of(y)!r}"
        )
    dtype = real_dtype(x.dtype)
    tolerance: ArrayLike = len(x) * float(ml_dtypes.finfo(dtype).eps) if rcond is None else rcond
    matrix, values = vander(x, order), y
    if w is not None:
        (w,) = promote_inexact(asarray(w))
        if w.shape != x.shape:
            raise ShapeError(f"polyfit: w must have the shape of x, {x.shape}; got {aval_of(w)!r}")
        matrix = operators.multiply(matrix, w[:, None])
        values = operators.multiply(values, w[:, None] if y.ndim == 2 else w)
    scale = ufuncs.sqrt(sum(real(operators.multiply(matrix, matrix.conj())), 0))
    solution, residuals, rank, singular = linalg.lstsq(
        operators.divide(matrix, scale), values, tolerance
    )
    solution = operators.divide(solution.T, scale).T
    if full:
        return solution, residuals, rank, singular, asarray(tolerance)
    if not cov:
        return solution
    inverse = linalg.inv(dot(matrix.T.conj(), matrix) / outer(scale, scale))
    covariance = operators.divide(inverse, outer(scale, scale))
    if cov == "unscaled":
        return solution, covariance
    if len(x) <= order:
        raise ValueRangeError(
            f"polyfit: there must be more points than coefficients for cov=; got {len(x)} for {order}"
        )
    factor = operators.divide(residuals, len(x) - order)
    return solution, covariance * factor[0] if y.ndim == 1 else covariance[:, :, None] * factor
