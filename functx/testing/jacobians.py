"""Jacobians as real matrices, by differences and by each mode: a complex number counts as two."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from functx.core.dtypes import is_complex
from functx.core.tracing import Tracer
from functx.numpy.promotion import copy_array
from functx.transforms.jvp import jvp
from functx.transforms.vjp import vjp
from functx.transforms.vmap import vmap

Array = np.ndarray[Any, Any]
ArrayFunction = Callable[..., list[Any]]
"""A function of arrays that returns a list of arrays."""


def real_vector(x: Any) -> Array:
    """The numbers of `x` in a row, real and imaginary parts one after the other."""
    x = np.asarray(x).ravel()
    wide = x.astype(np.complex128 if is_complex(x.dtype) else np.float64)
    return wide.view(np.float64)


def basis_directions(x: Array) -> list[Array]:
    """The directions in which `x` can move: one for each of its `real_vector`."""
    found = []
    for k in range(x.size):
        for unit in (1.0, 1.0j) if is_complex(x.dtype) else (1.0,):
            direction = np.zeros(x.shape, x.dtype)
            direction.flat[k] = unit
            found.append(direction)
    return found


def copy_arrays(values: Sequence[Any]) -> list[Any]:
    """`values` with arrays copied, so that a function may write to its arguments."""
    return [copy_array(x) if isinstance(x, Tracer) else _copy_if_ndarray(x) for x in values]


def _copy_if_ndarray(x: Any) -> Any:
    return x.copy() if isinstance(x, np.ndarray) else x


def numerical_jacobian(flat: ArrayFunction, xs: Sequence[Array], i: int, eps: float) -> list[Array]:
    """For each output its Jacobian in `xs[i]`, parts of the one by parts of the other."""
    columns = []
    for unit in basis_directions(xs[i]):
        near, far = [
            flat(*[x + step * unit if j == i else x for j, x in enumerate(xs)])
            for step in (np.asarray(eps, unit.real.dtype), np.asarray(-eps, unit.real.dtype))
        ]
        columns.append(
            [(real_vector(a) - real_vector(b)) / (2 * eps) for a, b in zip(near, far, strict=True)]
        )
    return matrices_from_columns(columns, [real_vector(out).size for out in flat(*xs)])


def forward_jacobian(
    flat: ArrayFunction, xs: Sequence[Array], i: int, batched: bool = False
) -> list[Array]:
    """As `numerical_jacobian`, by forward mode; several directions at once if `batched`."""

    def push(unit: Any) -> Any:
        tangents = [unit if j == i else None for j in range(len(xs))]
        return jvp(flat, xs, tangents)[1]

    outs, directions = flat(*xs), basis_directions(xs[i])
    if batched and directions:
        found = vmap(push)(np.stack(directions))
        pushed = [[np.asarray(t)[k] for t in found] for k in range(len(directions))]
    else:
        pushed = [push(unit) for unit in directions]
    columns = [[real_vector(t) for t in tangents] for tangents in pushed]
    return matrices_from_columns(columns, [real_vector(out).size for out in outs])


def reverse_jacobians(flat: ArrayFunction, xs: Sequence[Array]) -> list[list[Array]]:
    """For each output, its Jacobian in each of `xs` as `numerical_jacobian` gives it, by reverse mode."""
    outs, pullback = vjp(flat, *xs)
    found = []
    for k, out in enumerate(outs):
        rows = []
        for unit in basis_directions(np.asarray(out)):
            # The product with the cotangent keeps the real part: that with -i is the imaginary one.
            ct = np.conj(unit)
            cts = [ct if j == k else np.zeros(o.shape, o.dtype) for j, o in enumerate(outs)]
            rows.append([gradient_row(g) for g in pullback(cts)])
        sizes = [real_vector(x).size for x in xs]
        found.append(
            [
                np.array([row[i] for row in rows]).reshape(len(rows), size)
                for i, size in enumerate(sizes)
            ]
        )
    return found


def gradient_row(gradient: Any) -> Array:
    """The derivatives in each part of an input: of Re(g z) they are Re g and -Im g."""
    return real_vector(np.conj(np.asarray(gradient)))


def matrices_from_columns(columns: Sequence[Sequence[Array]], sizes: Sequence[int]) -> list[Array]:
    """Matrices with these columns, a column holding one vector for each matrix."""
    return [
        np.array([column[k] for column in columns]).reshape(len(columns), size).T
        for k, size in enumerate(sizes)
    ]
