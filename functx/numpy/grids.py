"""Grids: the positions of arrays of several dimensions, and functions of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from functx.core.dtypes import canonical_dtype
from functx.core.errors import ShapeError, ValueRangeError
from functx.core.tracing import aval_of
from functx.numpy.creation import INT, asarray, zeros
from functx.numpy.promotion import broadcast_to, copied, promote
from functx.numpy.ranges import arange, linspace
from functx.ops.operands import canonical_shape
from functx.ops.shaping import reshape

__all__ = [
    "diag_indices",
    "diag_indices_from",
    "fromfunction",
    "indices",
    "meshgrid",
    "mgrid",
    "ogrid",
    "tril_indices",
    "tril_indices_from",
    "triu_indices",
    "triu_indices_from",
]


def tril_indices(n: int, k: int = 0, m: int | None = None) -> tuple[Any, Any]:
    """The rows and the columns of the places on diagonal `k` and below it, as NumPy arrays."""
    return _places(np.tril_indices(n, k, m))


def triu_indices(n: int, k: int = 0, m: int | None = None) -> tuple[Any, Any]:
    """The rows and the columns of the places on diagonal `k` and above it, as NumPy arrays."""
    return _places(np.triu_indices(n, k, m))


def tril_indices_from(arr: Any, k: int = 0) -> tuple[Any, Any]:
    """`tril_indices` for a matrix."""
    rows, columns = aval_of(arr).shape
    return tril_indices(rows, k, columns)


def triu_indices_from(arr: Any, k: int = 0) -> tuple[Any, Any]:
    """`triu_indices` for a matrix."""
    rows, columns = aval_of(arr).shape
    return triu_indices(rows, k, columns)


def diag_indices(n: int, ndim: int = 2) -> tuple[Any, ...]:
    """The places on the main diagonal of a cube of `ndim` dimensions, as NumPy arrays."""
    return _places(np.diag_indices(n, ndim))


def diag_indices_from(arr: Any) -> tuple[Any, ...]:
    """`diag_indices` for an array whose dimensions are equal."""
    shape = aval_of(arr).shape
    if len(shape) < 2 or len(set(shape)) != 1:
        raise ShapeError(
            f"diag_indices_from: the array must have equal dimensions, at least two; got {shape}"
        )
    return diag_indices(shape[0], len(shape))


def _places(found: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple([x.astype(canonical_dtype(INT)) for x in found])


def meshgrid(*xi: Any, copy: bool = True, sparse: bool = False, indexing: str = "xy") -> list[Any]:
    """Arrays that vary along one dimension each, with the values of `xi`.

    The first two trade places for `indexing="xy"`. With `sparse`, the other dimensions have
    length 1.
    """
    if indexing not in ("xy", "ij"):
        raise ValueRangeError(f"meshgrid: indexing must be 'xy' or 'ij'; got {indexing!r}")
    vectors = [asarray(x) for x in xi]
    for x in vectors:
        if aval_of(x).ndim > 1:
            raise ShapeError(f"meshgrid: arguments must have one dimension; got {aval_of(x)!r}")
    places = list(range(len(vectors)))
    if indexing == "xy" and len(vectors) > 1:
        places[:2] = 1, 0
    sizes = [aval_of(x).size for x in vectors]
    shape = tuple([sizes[p] for p in places])
    grids = []
    for x, place in zip(vectors, places, strict=True):
        dims = tuple([aval_of(x).size if d == place else 1 for d in range(len(shape))])
        grids.append(broadcast_to(reshape(x, dims), dims if sparse else shape))
    return [copied(grid) for grid in grids] if copy else grids


def indices(dimensions: Any, dtype: Any = None, sparse: bool = False) -> Any:
    """The index along each dimension at every place, stacked along a first one.

    With `sparse` a tuple of arrays, of which each varies along its own dimension alone.
    """
    from functx.numpy.manipulation import stack

    dims = canonical_shape(dimensions)
    found = INT if dtype is None else dtype
    ranges = [arange(n, dtype=found) for n in dims]
    grids = meshgrid(*ranges, sparse=sparse, indexing="ij")
    if sparse:
        return tuple(grids)
    return stack(grids) if grids else zeros((0,), found)


def fromfunction(
    function: Callable[..., Any], shape: Any, *, dtype: Any = float, **kwargs: Any
) -> Any:
    """`function` of the arrays of indices of an array of `shape`."""
    grids = meshgrid(*[arange(n, dtype=dtype) for n in canonical_shape(shape)], indexing="ij")
    return function(*grids, **kwargs)


class _Grid:
    """Grids by slices: `mgrid[0:3, 0:1:5j]`, where an imaginary step counts the points."""

    def __init__(self, name: str, sparse: bool):
        self.name, self.sparse = name, sparse

    def __getitem__(self, key: Any) -> Any:
        from functx.numpy.manipulation import stack

        if not isinstance(key, tuple):
            return _range(key)
        ranges = promote(*[_range(one) for one in key])
        grids = meshgrid(*ranges, sparse=self.sparse, indexing="ij")
        return tuple(grids) if self.sparse else stack(grids)

    def __repr__(self) -> str:
        return f"functx.numpy.{self.name}"


def _range(key: slice) -> Any:
    start = 0 if key.start is None else key.start
    if isinstance(key.step, complex):
        return linspace(start, key.stop, int(abs(key.step)))
    return arange(start, key.stop, key.step)


mgrid, ogrid = _Grid("mgrid", sparse=False), _Grid("ogrid", sparse=True)
