"""Index arrays and grids: `meshgrid`, `mgrid`, `ix_`, indices of triangles and diagonals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import jax
import numpy as np

from functx import ops
from functx.core.errors import DTypeError, ShapeError, ValueRangeError
from functx.core.rewriting import T
from functx.core.tracer import as_ndarray, aval_of
from functx.core.types import canonical_dtype
from functx.core.typing import ArrayOrList, DTypeLike, Keys, NumPyArray, ShapeLike, Value
from functx.numpy.array_creation import INT, arange, linspace, zeros
from functx.numpy.promotion import broadcast_to, promote
from functx.numpy.shapes import copy as copy_in_order
from functx.numpy.shapes import ensure_array, static_integers
from functx.ops import shapes
from functx.ops.operands import as_int, canonical_shape

__all__ = [
    "c_",
    "diag_indices",
    "diag_indices_from",
    "fromfunction",
    "indices",
    "ix_",
    "mask_indices",
    "meshgrid",
    "mgrid",
    "ogrid",
    "r_",
    "ravel_multi_index",
    "tril_indices",
    "tril_indices_from",
    "triu_indices",
    "triu_indices_from",
    "unravel_index",
]


def tril_indices(n: int, k: int = 0, m: int | None = None) -> tuple[Value, Value]:
    """The row and column indices of the elements on diagonal `k` and below it."""
    rows, columns = np.tril_indices(*_triangle_sizes("tril_indices", n, k, m))
    return _index_array(rows), _index_array(columns)


def triu_indices(n: int, k: int = 0, m: int | None = None) -> tuple[Value, Value]:
    """The row and column indices of the elements on diagonal `k` and above it."""
    rows, columns = np.triu_indices(*_triangle_sizes("triu_indices", n, k, m))
    return _index_array(rows), _index_array(columns)


def tril_indices_from(arr: ArrayOrList, k: int = 0) -> tuple[Value, Value]:
    """`tril_indices` for the shape of a matrix."""
    rows, columns = _shape_of_matrix("tril_indices_from", arr)
    return tril_indices(rows, k, columns)


def triu_indices_from(arr: ArrayOrList, k: int = 0) -> tuple[Value, Value]:
    """`triu_indices` for the shape of a matrix."""
    rows, columns = _shape_of_matrix("triu_indices_from", arr)
    return triu_indices(rows, k, columns)


def _triangle_sizes(name: str, n: int, k: int, m: int | None) -> tuple[int, int, int | None]:
    rows, diagonal = as_int(f"{name}: n", n), as_int(f"{name}: k", k)
    return rows, diagonal, None if m is None else as_int(f"{name}: m", m)


def _shape_of_matrix(name: str, arr: ArrayOrList) -> tuple[int, ...]:
    aval = aval_of(arr)
    if aval.ndim != 2:
        raise ShapeError(f"{name}: the array must have two dimensions; got {aval!r}")
    return aval.shape


def diag_indices(n: int, ndim: int = 2) -> tuple[Value, ...]:
    """The indices of the main diagonal of an array of `ndim` dimensions of length `n`."""
    indices = np.diag_indices(as_int("diag_indices: n", n), as_int("diag_indices: ndim", ndim))
    return tuple(map(_index_array, indices))


def diag_indices_from(arr: ArrayOrList | Keys) -> tuple[Value, ...]:
    """`diag_indices` for an array whose dimensions have one length."""
    shape = aval_of(arr).shape
    if len(shape) < 2 or len(set(shape)) != 1:
        raise ShapeError(
            f"diag_indices_from: the array must have equal dimensions, at least two; got {shape}"
        )
    return diag_indices(shape[0], len(shape))


def _index_array(indices: NumPyArray) -> Value:
    return as_ndarray(indices.astype(canonical_dtype(INT)))


def meshgrid(
    *xi: ArrayOrList, copy: bool = True, sparse: bool = False, indexing: str = "xy"
) -> tuple[Value, ...]:
    """A tuple of arrays, one for each vector of `xi`, that vary along one dimension each.

    With `indexing="xy"` the first two dimensions are swapped. With `sparse` the other dimensions
    have length 1. Without `copy` the arrays are read-only views.
    """
    if indexing not in ("xy", "ij"):
        raise ValueRangeError(f"meshgrid: indexing must be 'xy' or 'ij'; got {indexing!r}")
    vectors = [ensure_array(x) for x in xi]
    for x in vectors:
        if aval_of(x).ndim > 1:
            raise ShapeError(f"meshgrid: arguments must have one dimension; got {aval_of(x)!r}")
    axes = list(range(len(vectors)))
    if indexing == "xy" and len(vectors) > 1:
        axes[:2] = 1, 0
    sizes = [aval_of(x).size for x in vectors]
    shape = tuple([sizes[axis] for axis in axes])
    grids = []
    for x, axis in zip(vectors, axes, strict=True):
        dims = tuple([aval_of(x).size if d == axis else 1 for d in range(len(shape))])
        grids.append(broadcast_to(ops.reshape(x, dims), dims if sparse else shape))
    return tuple([copy_in_order(grid, "C") for grid in grids] if copy else grids)


def indices(
    dimensions: ShapeLike, dtype: DTypeLike = None, sparse: bool = False
) -> Value | tuple[Value, ...]:
    """The indices of all elements of an array, stacked along a new first dimension.

    With `sparse`, a tuple of arrays, each of which varies along its own dimension only.
    """
    from functx.numpy.joining import stack

    dims = canonical_shape(dimensions)
    index_dtype = INT if dtype is None else dtype
    ranges = [arange(n, dtype=index_dtype) for n in dims]
    grids = meshgrid(*ranges, sparse=sparse, indexing="ij")
    if sparse:
        return tuple(grids)
    return stack(grids) if grids else zeros((0,), index_dtype)


def fromfunction(
    function: Callable[..., T], shape: ShapeLike, *, dtype: DTypeLike = float, **kwargs: object
) -> T:
    """`function` applied to the index arrays of an array of `shape`, one for each dimension."""
    grids = meshgrid(*[arange(n, dtype=dtype) for n in canonical_shape(shape)], indexing="ij")
    return function(*grids, **kwargs)


class _GridIndexer:
    """Grids by slices, as `mgrid[0:3, 0:1:5j]`; an imaginary step is a number of points."""

    def __init__(self, name: str, sparse: bool):
        self.name, self.sparse = name, sparse

    def __getitem__(self, key: slice | tuple[slice, ...]) -> Value | tuple[Value, ...]:
        from functx.numpy.joining import stack

        if not isinstance(key, tuple):
            return _range_from_slice(key)
        if not key:
            return () if self.sparse else zeros((0,), INT)
        with jax.numpy_dtype_promotion("standard"):
            ranges = promote(*[_range_from_slice(item) for item in key])
        grids = meshgrid(*ranges, sparse=self.sparse, indexing="ij")
        return tuple(grids) if self.sparse else stack(grids)

    def __repr__(self) -> str:
        return f"functx.numpy.{self.name}"


def _range_from_slice(key: slice) -> Value:
    start = 0 if key.start is None else key.start
    if isinstance(key.step, complex):
        return linspace(start, key.stop, int(abs(key.step)))
    return arange(start, key.stop, key.step)


mgrid, ogrid = _GridIndexer("mgrid", sparse=False), _GridIndexer("ogrid", sparse=True)


class _JoiningIndexer:
    """Arrays joined by indexing, as `r_[0:3, 5, x]`; a slice stands for a range.

    A text in front gives the axis along which they are joined, the least number of dimensions, and where
    the dimensions of an array of fewer are: `r_["0,2", x, y]` has `x` and `y` as rows. "r" and "c" make a
    row or a column.
    """

    def __init__(self, name: str, axis: int, ndmin: int, start: int):
        self.name, self.axis, self.ndmin, self.start = name, axis, ndmin, start

    def __getitem__(self, key: object) -> Value:
        from functx.numpy.joining import concatenate

        items: list[Any] = list(key) if isinstance(key, tuple) else [key]
        axis, ndmin, start = self.axis, self.ndmin, self.start
        matrix = ""
        if items and isinstance(items[0], str):
            text = items.pop(0)
            if text in ("r", "c"):
                matrix = text
            else:
                axis, ndmin, start = self._directive(text)
        if not items:
            raise ValueRangeError(f"{self.name}[...]: there must be arrays to join; got {key!r}")
        arrays = promote(*[self._array(item, ndmin, start) for item in items])
        joined = concatenate(list(arrays), axis)
        if not matrix or aval_of(joined).ndim > 1:
            return joined
        return shapes.expand_dims(joined, 0 if matrix == "r" else 1)

    def _directive(self, text: str) -> tuple[int, int, int]:
        try:
            numbers = [int(part) for part in text.split(",")]
            axis, ndmin, start, *others = [
                *numbers,
                *(self.axis, self.ndmin, self.start)[len(numbers) :],
            ]
        except ValueError:
            axis, ndmin, start, others = 0, 0, 0, [0]
        if others:
            raise ValueRangeError(
                f"{self.name}[...]: a text must be 'r', 'c', or one to three integers such as '0,2'; got "
                f"{text!r}"
            )
        return axis, ndmin, start

    def _array(self, item: ArrayOrList, ndmin: int, start: int) -> Value:
        x = _range_from_slice(item) if isinstance(item, slice) else ensure_array(item)
        ndim = aval_of(x).ndim
        missing = max(ndmin, 1) - ndim
        if missing <= 0:
            return x
        # The place of the array's own dimensions among the new ones.
        place = start if start >= 0 else start + missing + 1
        return shapes.expand_dims(x, tuple([d if d < place else d + ndim for d in range(missing)]))

    def __len__(self) -> int:
        return 0

    def __repr__(self) -> str:
        return f"functx.numpy.{self.name}"


r_, c_ = _JoiningIndexer("r_", 0, 1, -1), _JoiningIndexer("c_", -1, 2, 0)


def mask_indices(
    n: int,
    mask_func: Callable[[Value, int], Value],
    k: int = 0,
    *,
    size: int | None = None,
) -> tuple[Value, Value]:
    """The row and column indices of the elements that `mask_func(ones((n, n)), k)` keeps.

    `size` fixes the number of indices, as for `nonzero`.
    """
    from functx.numpy.array_creation import ones
    from functx.numpy.sorting_and_searching import nonzero

    rows, columns = nonzero(mask_func(ones((n, n)), k), size=size)
    return rows, columns


def ix_(*args: ArrayOrList) -> tuple[Value, ...]:
    """Vectors in shapes that index all their combinations; a mask gives the indices of its true elements."""
    arrays: list[Any] = [ensure_array(x) for x in args]
    for x in arrays:
        if aval_of(x).ndim != 1:
            raise ShapeError(f"ix_: operands must have one dimension; got {aval_of(x)!r}")
    arrays = [
        np.flatnonzero(static_integers(x, "ix_: a mask")) if aval_of(x).dtype == np.bool_ else x
        for x in arrays
    ]
    arrays = [x if aval_of(x).size else np.zeros(0, canonical_dtype(INT)) for x in arrays]
    rank = len(arrays)
    return tuple(
        [
            shapes.reshape(x, tuple([aval_of(x).size if d == i else 1 for d in range(rank)]))
            for i, x in enumerate(arrays)
        ]
    )


def unravel_index(indices: ArrayOrList, shape: ShapeLike) -> tuple[Value, ...]:
    """The index in each dimension for `indices` into the flattened array.

    Negative indices count from the end; indices out of bounds are clipped.
    """
    from functx.numpy import floating_point, operators, ufuncs

    positions = ensure_array(indices)
    if aval_of(positions).dtype.kind not in "iu":
        raise DTypeError(f"unravel_index: indices must be integers; got {aval_of(positions)!r}")
    sizes = canonical_shape(shape, "unravel_index: shape")
    total = prod(sizes)
    positions = ops.widen_index(positions, total)
    if aval_of(positions).dtype.kind == "i":
        positions = ufuncs.where(operators.less(positions, 0), positions + total, positions)
    remaining = ufuncs.clip(positions, 0, max(total - 1, 0))
    results = []
    for n in reversed(sizes):
        results.append(floating_point.remainder(remaining, n))
        remaining = floating_point.floor_divide(remaining, n)
    return tuple(results[::-1])


def ravel_multi_index(
    multi_index: Sequence[ArrayOrList],
    dims: ShapeLike,
    mode: str | tuple[str, ...] = "raise",
    order: str = "C",
    *,
    dtype: DTypeLike = None,
) -> Value:
    """The index into the flattened array for `multi_index`, one index for each dimension.

    The mode "clip" clips indices out of bounds, "wrap" takes them modulo the length, and "ignore" takes
    them as they are; with "raise" indices must be known while tracing. A tuple gives each dimension its own mode.
    """
    from functx.numpy import floating_point, operators, ufuncs

    sizes = canonical_shape(dims, "ravel_multi_index: dims")
    arrays = [ops.widen_index(x, prod(sizes)) for x in promote(*multi_index)]
    modes = mode if isinstance(mode, tuple) else (mode,) * len(sizes)
    if len(arrays) != len(sizes) or len(modes) != len(sizes):
        raise ShapeError(
            f"ravel_multi_index: there must be one index a dimension; got {len(arrays)} for {sizes}"
        )
    if order not in ("C", "F"):
        raise ValueRangeError(f'ravel_multi_index: order must be "C" or "F"; got {order!r}')
    total: Any = None
    stride = 1
    steps = list(zip(arrays, sizes, modes, strict=True))
    for x, n, axis_mode in reversed(steps) if order == "C" else steps:
        if axis_mode == "raise":
            value = static_integers(x, 'ravel_multi_index with the mode "raise"')
            if ((value < 0) | (value >= n)).any():
                raise ValueRangeError(
                    f"ravel_multi_index: indices must be in [0, {n}); got {value}"
                )
        elif axis_mode == "clip":
            x = ufuncs.clip(x, 0, n - 1)
        elif axis_mode == "wrap":
            x = floating_point.remainder(x, n)
        elif axis_mode != "ignore":
            raise ValueRangeError(
                'ravel_multi_index: mode must be "raise", "clip", "wrap" or "ignore"; got '
                f"{axis_mode!r}"
            )
        term = operators.multiply(x, stride)
        total = term if total is None else operators.add(total, term)
        stride *= n
    return total if dtype is None else ops.convert_element_type(total, dtype)
