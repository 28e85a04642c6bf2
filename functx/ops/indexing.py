"""What gathers and scatters share: windows of an array at positions that indices hold."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo

from functx.core.avals import ShapedArray
from functx.core.dtypes import is_inexact, is_integer, kind
from functx.core.errors import ArgumentError, DTypeError, ShapeError
from functx.core.primitive import Primitive
from functx.ops.operands import tuple_delete

Dims = tuple[int, ...]


class GatherDimensionNumbers(NamedTuple):
    """Which dimensions of a gather do what, by the names that JAX and StableHLO give them."""

    offset_dims: Dims
    collapsed_slice_dims: Dims
    start_index_map: Dims
    operand_batching_dims: Dims = ()
    start_indices_batching_dims: Dims = ()


class ScatterDimensionNumbers(NamedTuple):
    """Which dimensions of a scatter do what: those of the gather that reads what it writes."""

    update_window_dims: Dims
    inserted_window_dims: Dims
    scatter_dims_to_operand_dims: Dims
    operand_batching_dims: Dims = ()
    scatter_indices_batching_dims: Dims = ()


class GatherScatter(Primitive, abstract=True):
    """What gathers and scatters share: windows of an operand, and where they begin.

    The last dimension of the indices holds vectors, one a window; their component k counts
    along dimension `start_index_map[k]` of the operand, and windows begin at 0 along the
    others. The windows lie in the result of a gather, and in the updates of a scatter:
    there, `offset_dims` run inside a window, and the other dimensions are those of the
    indices. Along `collapsed_slice_dims` a window has length 1, and leaves the dimension
    out; so it does along `operand_batching_dims`, each of which runs together with the
    dimension of the indices in the same place of `start_indices_batching_dims`.

    Windows that do not lie inside the operand are moved inside with the mode "clip"; they
    are read as `fill_value` with "fill", and not written with "drop"; with
    "promise_in_bounds" there must be none.
    """

    offset_dims: Dims = ()
    collapsed_slice_dims: Dims = ()
    start_index_map: Dims = ()
    operand_batching_dims: Dims = ()
    start_indices_batching_dims: Dims = ()
    indices_are_sorted: bool = False
    unique_indices: bool = False
    mode: str = "clip"

    @property
    def dimension_numbers(self) -> GatherDimensionNumbers:
        return GatherDimensionNumbers(
            self.offset_dims,
            self.collapsed_slice_dims,
            self.start_index_map,
            self.operand_batching_dims,
            self.start_indices_batching_dims,
        )

    def replace(self, **fields: Any) -> Any:
        """This primitive with some of its fields replaced."""
        return type(self)(**{name: getattr(self, name) for name in self.fields} | fields)

    def dropped_window_dims(self) -> Dims:
        """The dimensions of the operand that windows leave out."""
        return self.collapsed_slice_dims + self.operand_batching_dims

    def with_window_dim(self, dim: int, ndim: int) -> tuple[GatherDimensionNumbers, int]:
        """The numbers for an operand with one dimension more, whole in every window.

        `dim` is its place in the operand, now of `ndim` dimensions. Its place among the
        windows' dimensions follows.
        """
        offset, collapsed, index_map, batching, indices_batching = self.dimension_numbers
        collapsed, index_map, batching = [
            shift_dims(d, dim) for d in (collapsed, index_map, batching)
        ]
        k = tuple_delete(range(ndim), collapsed + batching).index(dim)
        at = offset[k] if k < len(offset) else offset[-1] + 1 if offset else 0
        offset = shift_dims(offset, at)
        offset = (*offset[:k], at, *offset[k:])
        return GatherDimensionNumbers(offset, collapsed, index_map, batching, indices_batching), at

    def with_batch_dim(self, dim: int | None) -> GatherDimensionNumbers:
        """The numbers for indices with one dimension more, the first.

        It is also the first of what holds the windows. `dim` is the dimension of the
        operand that runs together with it, None if there is none.
        """
        offset, collapsed, index_map, batching, indices_batching = self.dimension_numbers
        offset, indices_batching = shift_dims(offset, 0), shift_dims(indices_batching, 0)
        if dim is not None:
            collapsed, index_map, batching = [
                shift_dims(d, dim) for d in (collapsed, index_map, batching)
            ]
            at = sum([d < dim for d in batching])
            batching = (*batching[:at], dim, *batching[at:])
            indices_batching = (*indices_batching[:at], 0, *indices_batching[at:])
        return GatherDimensionNumbers(offset, collapsed, index_map, batching, indices_batching)

    def window_dims(self, ndim: int) -> Dims:
        """The dimensions of the operand that windows keep, in order."""
        return tuple_delete(range(ndim), self.dropped_window_dims())

    def check(self, x: ShapedArray, indices: ShapedArray, sizes: Dims, rank: int) -> None:
        """Raise unless the numbers fit the operands, windows of `sizes`, and a result of `rank`."""

        def require(holds: bool, what: str) -> None:
            if not holds:
                raise ShapeError(f"{self.name}: {what}; got {x!r} at {indices!r} with {self!r}")

        offset, collapsed, index_map, batching, indices_batching = self.dimension_numbers
        if not is_integer(indices.dtype):
            raise DTypeError(f"{self.name}: indices must be integers; got {indices!r}")
        require(indices.ndim > 0, "indices must have a last dimension that holds index vectors")
        require(
            indices.shape[-1] == len(index_map),
            "index vectors must have a component for each dimension in start_index_map",
        )
        within = all(0 <= d < x.ndim for d in (*collapsed, *index_map, *batching))
        require(within, "dimension numbers must be dimensions of the operand")
        require(
            _increasing(collapsed) and _increasing(batching) and _increasing(offset),
            "offset, collapsed and batching dimensions must be in increasing order",
        )
        require(
            len({*collapsed, *batching}) == len(collapsed) + len(batching)
            and len({*index_map, *batching}) == len(index_map) + len(batching),
            "a dimension must be indexed once, and a batching dimension nothing else",
        )
        require(
            len(batching) == len(indices_batching)
            and all(0 <= d < indices.ndim - 1 for d in indices_batching)
            and [x.shape[d] for d in batching] == [indices.shape[d] for d in indices_batching],
            "batching dimensions must come in pairs of one size",
        )
        require(
            len(sizes) == x.ndim and all(0 <= n <= m for n, m in zip(sizes, x.shape, strict=True)),
            f"windows of {sizes} must fit inside the operand",
        )
        require(all(sizes[d] == 1 for d in collapsed), "collapsed dimensions must have length 1")
        require(
            len(offset) == x.ndim - len(self.dropped_window_dims())
            and all(0 <= d < rank for d in offset),
            "offset_dims must give a place to every dimension that windows keep",
        )

    def start_limits(self, x: ShapedArray, sizes: Dims, dtype: Any) -> np.ndarray[Any, Any]:
        """The last place where a window can begin, along each indexed dimension."""
        largest = np.iinfo(dtype).max
        return np.array([min(x.shape[d] - sizes[d], largest) for d in self.start_index_map], dtype)

    def clamp_indices(self, ctx: Any, indices: Any, sizes: Dims) -> Any:
        """The indices with every window moved inside the operand."""
        x, aval = ctx.avals_in[:2]
        limits = self.start_limits(x, sizes, aval.dtype)
        element = ctx.type(aval).element_type
        limit = stablehlo.constant(
            ir.DenseElementsAttr.get(limits.data, type=element, shape=limits.shape)
        )
        limit = stablehlo.broadcast_in_dim(ctx.type(aval), limit, ctx.i64_array([aval.ndim - 1]))
        return stablehlo.clamp(ctx.constant(0, aval), indices, limit)


def canonical_index_mode(mode: Any, outside: str) -> str:
    """`mode`, by name or as JAX's enumeration; "fill", "drop" and None mean `outside`."""
    if mode is None:
        return outside
    name = str(getattr(mode, "name", mode)).lower()
    if name in ("fill", "drop", "fill_or_drop"):
        return outside
    if name not in ("clip", "promise_in_bounds"):
        raise ArgumentError(
            f'mode must be "clip", "fill", "drop" or "promise_in_bounds"; got {mode!r}'
        )
    return name


def default_fill_value(dtype: Any) -> Any:
    """What reading outside an array gives: nan, the least signed or largest unsigned integer."""
    if is_inexact(dtype):
        return np.nan
    if kind(dtype) == "b":
        return True
    limits = np.iinfo(dtype)
    return limits.max if kind(dtype) == "u" else limits.min


def shift_dims(dims: Dims, dim: int) -> Dims:
    """`dims` after a new dimension has come in at `dim`."""
    return tuple([d + (d >= dim) for d in dims])


def _increasing(dims: Dims) -> bool:
    return all(a < b for a, b in pairwise(dims))
