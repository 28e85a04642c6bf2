"""The exponential, the logarithm, roots and other functions of square matrices, and Sylvester's equation."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Any

import numpy as np

from functx import numpy as fnp
from functx.core.errors import ArgumentError, ShapeError, ValueRangeError
from functx.core.tracer import aval_of
from functx.core.tracing import trace
from functx.core.types import ShapedArray, complex_dtype
from functx.core.typing import ArrayOrList, Value
from functx.lax.schur import SolveSylvester
from functx.numpy.promotion import broadcast_shapes, promote_inexact
from functx.scipy.linalg.analytic_functions import Expm, FrechetDerivative, Logm, Sqrtm
from functx.scipy.linalg.decompositions import square_matrices
from functx.scipy.linalg.schur_parlett import Funm

__all__ = ["expm", "expm_frechet", "funm", "logm", "solve_sylvester", "sqrtm"]


def expm(
    A: ArrayOrList,  # noqa: N803 - SciPy's names
    *,
    upper_triangular: bool = False,
    max_squarings: int = 16,
) -> Value:
    """The exponential of square matrices, by scaling and squaring.

    With `upper_triangular`, the matrices must be so. It is nan if more than `max_squarings` are needed.

    >>> from functx.scipy import linalg
    >>> linalg.expm([[0.0, 1.0], [0.0, 0.0]]).tolist()
    [[1.0, 1.0], [0.0, 1.0]]
    """
    return Expm(bool(upper_triangular), max_squarings)(square_matrices("expm", A))


def expm_frechet(
    A: ArrayOrList,  # noqa: N803
    E: ArrayOrList,  # noqa: N803
    *,
    method: str | None = None,
    compute_expm: bool = True,
) -> Value | tuple[Value, Value]:
    """The exponential of `A`, with `compute_expm`, and its derivative along `E`.

    `method` has no effect.
    """
    a, e = promote_inexact(square_matrices("expm_frechet", A), square_matrices("expm_frechet", E))
    if aval_of(a).shape != aval_of(e).shape:
        raise ShapeError(
            f"expm_frechet: A and E must have one shape; got {aval_of(a)!r} and {aval_of(e)!r}"
        )
    derivative = FrechetDerivative(Expm())(a, e)
    return (Expm()(a), derivative) if compute_expm else derivative


def _complex_matrices(name: str, a: ArrayOrList) -> Value:
    a = square_matrices(name, a)
    return fnp.astype(a, complex_dtype(aval_of(a).dtype))


def sqrtm(A: ArrayOrList, blocksize: int = 1) -> Value:  # noqa: N803
    """The principal square root of square matrices, which is complex; `blocksize` must be 1.

    Its derivative solves Sylvester's equation, so it exists also where eigenvalues are equal.

    >>> from functx.scipy import linalg
    >>> linalg.sqrtm([[4.0, 1.0], [0.0, 4.0]]).real.tolist()
    [[2.0, 0.25], [0.0, 2.0]]
    """
    if blocksize != 1:
        raise ValueRangeError(f"sqrtm: blocksize must be 1; got {blocksize!r}")
    return Sqrtm()(_complex_matrices("sqrtm", A))


def logm(A: ArrayOrList, disp: bool = True) -> Value | tuple[Value, Value]:  # noqa: N803
    """The principal logarithm of square matrices, which is complex.

    With `disp=False` it comes with an estimate of its relative error. The derivatives exist also where
    eigenvalues are equal.
    """
    a = _complex_matrices("logm", A)
    out: Value = Logm()(a)
    if disp:
        return out
    apart = fnp.sum(fnp.abs(Expm()(out) - a), axis=(-2, -1))
    return out, apart / fnp.sum(fnp.abs(a), axis=(-2, -1))


def funm(
    A: ArrayOrList,  # noqa: N803
    func: Callable[[Any], Any],
    disp: bool = True,
) -> Value | tuple[Value, Value]:
    """The function of square matrices that `func` is for numbers, which is complex.

    `func` takes and returns a complex number; it must be analytic at the eigenvalues. It may close over
    traced scalars. With `disp=False` the result comes with an estimate of its relative error. Where
    eigenvalues are close, derivatives of `func` are used, so results and their derivatives are right
    there too, also for matrices without enough eigenvectors. They are nan if one cluster of close
    eigenvalues needs more than seven derivatives, or for short functions twelve.

    >>> from functx import numpy as np
    >>> from functx.scipy import linalg
    >>> np.round(linalg.funm([[0.0, 1.0], [0.0, 0.0]], np.sin).real, 5).tolist()
    [[0.0, 1.0], [0.0, 0.0]]
    """
    a = _complex_matrices("funm", A)
    dtype = aval_of(a).dtype

    def body(w: Value) -> list[Value]:
        return [fnp.astype(func(w), dtype)]

    program, captured = trace(body, [ShapedArray((), dtype)], name=getattr(func, "__name__", "f"))
    if program.out_avals[0].shape != ():
        raise ShapeError(
            f"funm: func must return a number for a number; got {program.out_avals[0]!r}"
        )
    for x in captured:
        if aval_of(x).shape != () or aval_of(x).dtype.kind not in "fc":
            raise ArgumentError(
                f"funm: func may close over traced floating point scalars only; got {aval_of(x)!r}",
                fix="Make it a function of numbers.",
            )
    batch = aval_of(a).shape[:-2]
    out: Value = Funm(program)(a, *[fnp.broadcast_to(x, batch) for x in captured])
    if disp:
        return out
    t = fnp.abs(a)
    eps = float(np.finfo(dtype).eps)
    size = fnp.max(fnp.sum(t, axis=-2), axis=-1)
    error = fnp.where(
        fnp.isfinite(fnp.sum(fnp.abs(out), axis=(-2, -1))), eps * fnp.maximum(1, size), inf
    )
    return out, error


def solve_sylvester(
    A: ArrayOrList,  # noqa: N803
    B: ArrayOrList,  # noqa: N803
    C: ArrayOrList,  # noqa: N803
    *,
    method: str = "schur",
    tol: float = 1e-8,
) -> Value:
    """The x with A @ x + x @ B == C, by Schur forms; nan if a sum of eigenvalues is below `tol`.

    The `method` "eigen" gives the same result.
    """
    if method not in ("schur", "eigen"):
        raise ValueRangeError(f"solve_sylvester: method must be 'schur' or 'eigen'; got {method!r}")
    a, b = square_matrices("solve_sylvester", A), square_matrices("solve_sylvester", B)
    a, b, c = promote_inexact(a, b, C)
    shapes = [aval_of(x).shape for x in (a, b, c)]
    if len(shapes[2]) < 2 or shapes[2][-2:] != (shapes[0][-1], shapes[1][-1]):
        raise ShapeError(
            "solve_sylvester: C must have the rows of A and the columns of B; got "
            f"{aval_of(a)!r}, {aval_of(b)!r} and {aval_of(c)!r}"
        )
    batch = broadcast_shapes(*[s[:-2] for s in shapes])
    wide = [fnp.broadcast_to(x, (*batch, *s[-2:])) for x, s in zip((a, b, c), shapes, strict=True)]
    return SolveSylvester(float(tol))(*wide)
