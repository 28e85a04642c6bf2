"""Jacobians as real matrices, by differences and by each mode: a complex number counts as two."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from functx.core.dtypes import is_complex
from functx.core.tracing import Tracer
from functx.numpy.promotion import copied
from functx.transforms.jvp import jvp
from functx.transforms.vjp import vjp
from functx.transforms.vmap import vmap

Array = np.ndarray[Any, Any]
Flat = Callable[..., list[Any]]
"""A function of arrays that returns a list of arrays."""


def parts(x: Any) -> Array:
    """The numbers of `x` in a row, real and imaginary parts one after the other."""
    x = np.asarray(x).ravel()
    wide = x.astype(np.complex128 if is_complex(x.dtype) else np.float64)
    return wide.view(np.float64)


def units(x: Array) -> list[Array]:
    """The directions in which `x` can move: one for each of its `parts`."""
    found = []
    for k in range(x.size):
        for unit in (1.0, 1.0j) if is_complex(x.dtype) else (1.0,):
            direction = np.zeros(x.shape, x.dtype)
            direction.flat[k] = unit
            found.append(direction)
    return found


def unshared(values: Sequence[Any]) -> list[Any]:
    """`values` with arrays copied, so that a function may write to its arguments."""
    return [copied(x) if isinstance(x, Tracer) else _own(x) for x in values]


def _own(x: Any) -> Any:
    return x.copy() if isinstance(x, np.ndarray) else x


def numerical(flat: Flat, xs: Sequence[Array], i: int, eps: float) -> list[Array]:
    """For each output its Jacobian in `xs[i]`, parts of the one by parts of the other."""
    columns = []
    for unit in units(xs[i]):
        near, far = [
            flat(*[x + step * unit if j == i else x for j, x in enumerate(xs)])
            for step in (np.asarray(eps, unit.real.dtype), np.asarray(-eps, unit.real.dtype))
        ]
        columns.append([(parts(a) - parts(b)) / (2 * eps) for a, b in zip(near, far, strict=True)])
    return stacked(columns, [parts(out).size for out in flat(*xs)])


def forward(flat: Flat, xs: Sequence[Array], i: int, batched: bool = False) -> list[Array]:
    """As `numerical`, by forward mode; several directions at once if `batched`."""

    def push(unit: Any) -> Any:
        tangents = [unit if j == i else None for j in range(len(xs))]
        return jvp(flat, xs, tangents)[1]

    outs, directions = flat(*xs), units(xs[i])
    if batched and directions:
        found = vmap(push)(np.stack(directions))
        pushed = [[np.asarray(t)[k] for t in found] for k in range(len(directions))]
    else:
        pushed = [push(unit) for unit in directions]
    columns = [[parts(t) for t in tangents] for tangents in pushed]
    return stacked(columns, [parts(out).size for out in outs])


def reverse(flat: Flat, xs: Sequence[Array]) -> list[list[Array]]:
    """For each output, its Jacobian in each of `xs` as `numerical` gives it, by reverse mode."""
    outs, pullback = vjp(flat, *xs)
    found = []
    for k, out in enumerate(outs):
        rows = []
        for unit in units(np.asarray(out)):
            # The product with the cotangent keeps the real part: that with -i is the imaginary one.
            ct = np.conj(unit)
            cts = [ct if j == k else np.zeros(o.shape, o.dtype) for j, o in enumerate(outs)]
            rows.append([row_of(g) for g in pullback(cts)])
        sizes = [parts(x).size for x in xs]
        found.append(
            [
                np.array([row[i] for row in rows]).reshape(len(rows), size)
                for i, size in enumerate(sizes)
            ]
        )
    return found


def row_of(gradient: Any) -> Array:
    """The derivatives in each part of an input: of Re(g z) they are Re g and -Im g."""
    return parts(np.conj(np.asarray(gradient)))


def stacked(columns: Sequence[Sequence[Array]], sizes: Sequence[int]) -> list[Array]:
    """Matrices with these columns, a column holding one vector for each matrix."""
    return [
        np.array([column[k] for column in columns]).reshape(len(columns), size).T
        for k, size in enumerate(sizes)
    ]
