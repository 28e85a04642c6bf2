"""Products of matrices whose rows lie in groups of given lengths, and of matrices with scales."""

from __future__ import annotations

from collections.abc import Sequence

from jax.lax import DotDimensionNumbers, RaggedDotDimensionNumbers

from functx import ops
from functx.core.errors import ShapeError, ValueRangeError
from functx.core.tracer import aval_of
from functx.core.types import canonical_dtype
from functx.core.typing import ArrayLike, DTypeLike, Value
from functx.numpy import asarray, cumsum, repeat
from functx.ops.contraction import PrecisionLike


def ragged_dot(
    lhs: ArrayLike,
    rhs: ArrayLike,
    group_sizes: ArrayLike,
    precision: PrecisionLike = None,
    preferred_element_type: DTypeLike = None,
    group_offset: ArrayLike | None = None,
    out_sharding: object = None,
) -> Value:
    """The product of each group of rows of `lhs` with its matrix of `rhs`.

    `lhs` has the shape (m, k), `rhs` (groups, k, n), and `group_sizes` the numbers of rows of the groups,
    in order. Rows after the last group are zero in the result, of shape (m, n). See `ragged_dot_general`
    for the other arguments.

    >>> import numpy
    >>> from functx import lax
    >>> rhs = numpy.array([[[1.0]], [[10.0]]])
    >>> lax.ragged_dot(numpy.ones((3, 1)), rhs, numpy.array([2, 1])).tolist()
    [[1.0], [1.0], [10.0]]
    """
    numbers = RaggedDotDimensionNumbers((([1], [1]), ([], [])), [0], [0])
    return ragged_dot_general(
        lhs,
        rhs,
        group_sizes,
        numbers,
        precision,
        preferred_element_type,
        group_offset,
        out_sharding,
    )


def ragged_dot_general(
    lhs: ArrayLike,
    rhs: ArrayLike,
    group_sizes: ArrayLike,
    ragged_dot_dimension_numbers: RaggedDotDimensionNumbers,
    precision: PrecisionLike = None,
    preferred_element_type: DTypeLike = None,
    group_offset: ArrayLike | None = None,
    out_sharding: object = None,
) -> Value:
    """`dot_general` where one dimension of `lhs`, the ragged one, lies in groups of `group_sizes`.

    A ragged dimension that is not contracted has its own matrix in each group, along the group dimension
    of `rhs`. If it is contracted, the product is that of each group, along a new first dimension. A
    ragged batch dimension changes nothing. `group_sizes` has the shape (groups,), or in front the
    lengths of the batch dimensions and of those before the ragged one. With `group_offset`, of shape (1,),
    the first matrix of `rhs` is that of this group.

    Raises ShapeError for dimensions and shapes that do not fit.
    """
    numbers = ragged_dot_dimension_numbers
    (left, right), (left_batch, right_batch) = numbers.dot_dimension_numbers
    lhs, rhs, sizes = asarray(lhs), asarray(rhs), asarray(group_sizes)
    (ragged,), groups = _one_ragged_dimension(numbers, lhs.ndim), numbers.rhs_group_dimensions
    if ragged in left_batch:
        _check_groups(groups, 0)
        operands = lhs, rhs
        contract, batch = (left, right), (left_batch, right_batch)
    elif ragged in left:
        _check_groups(groups, 0)
        i = left.index(ragged)
        masks = _group_masks(sizes, lhs.shape[ragged], group_offset, None)
        operands = (
            _by_group(lhs, masks, ragged, (*left_batch, *left[:i])),
            _by_group(rhs, masks, right[i], (*right_batch, *right[:i])),
        )
        contract = _after_groups(left), _after_groups(right)
        batch = (0, *_after_groups(left_batch)), (0, *_after_groups(right_batch))
    else:
        _check_groups(groups, 1)
        masks = _group_masks(sizes, lhs.shape[ragged], group_offset, rhs.shape[groups[0]])
        free = [d for d in range(ragged) if d not in (*left, *left_batch)]
        operands = _by_group(lhs, masks, ragged, (*left_batch, *free)), rhs
        contract = (*_after_groups(left), 0), (*right, groups[0])
        batch = _after_groups(left_batch), right_batch
    out = ops.dot_general(*operands, (contract, batch), precision, preferred_element_type)
    return ops.with_sharding_constraint(out, out_sharding)


def _one_ragged_dimension(numbers: RaggedDotDimensionNumbers, ndim: int) -> Sequence[int]:
    found = numbers.lhs_ragged_dimensions
    if len(found) != 1 or not 0 <= found[0] < ndim:
        raise ShapeError(
            "ragged_dot_general: there must be one ragged dimension of lhs, from 0 to "
            f"{ndim - 1}; got {found}"
        )
    return found


def _check_groups(dimensions: Sequence[int], count: int) -> None:
    """Raise ShapeError unless `rhs` has `count` group dimensions."""
    if len(dimensions) != count:
        raise ShapeError(
            f"ragged_dot_general: rhs must have {count} group dimensions, since the ragged one is "
            f"{'not ' if count else ''}contracted or a batch dimension; got {dimensions}"
        )


def _group_masks(sizes: Value, length: int, offset: ArrayLike | None, count: int | None) -> Value:
    """Which of `length` rows each group has: the shape of `sizes`, then the rows.

    The groups are the `count` ones from `offset` on.
    """
    if not sizes.ndim:
        raise ShapeError(
            f"ragged_dot_general: group_sizes must be a vector; got {aval_of(sizes)!r}"
        )
    groups = sizes.shape[-1]
    if count not in (None, groups) and (offset is None or count > groups):
        raise ShapeError(
            f"ragged_dot_general: rhs must have a matrix for each of {groups} groups; got {count}"
        )
    ends = cumsum(sizes, axis=-1, dtype=sizes.dtype)
    starts = ops.sub(ends, sizes)
    if offset is not None:
        first, last = ops.reshape(offset, ()), sizes.ndim - 1
        starts, ends = (
            ops.dynamic_slice_in_dim(x, first, groups if count is None else count, last)
            for x in (starts, ends)
        )
    dims, shape = tuple(range(sizes.ndim)), (*aval_of(ends).shape, length)
    starts, ends = (ops.broadcast_in_dim(x, shape, dims) for x in (starts, ends))
    rows = ops.broadcasted_iota(sizes.dtype, shape, sizes.ndim)
    return ops.bitwise_and(ops.le(starts, rows), ops.lt(rows, ends))


def _by_group(x: Value, masks: Value, ragged: int, prefix: Sequence[int]) -> Value:
    """`x` along a new first dimension, once for each group, with zeros outside of the group.

    The masks have the dimensions `prefix` of `x` or none of them, then the groups, then the rows.
    """
    outer = tuple(prefix) if masks.ndim > 2 else ()
    if masks.shape[:-2] != tuple([x.shape[d] for d in outer]) or masks.shape[-1] != x.shape[ragged]:
        raise ShapeError(
            "ragged_dot_general: group_sizes must have the lengths of the dimensions before the groups, "
            f"{tuple([x.shape[d] for d in prefix])}; got {masks.shape[:-2]}"
        )
    shape = (masks.shape[-2], *x.shape)
    places = (*[d + 1 for d in outer], 0, ragged + 1)
    order = sorted(range(masks.ndim), key=places.__getitem__)
    masks = ops.permute_dims(masks, tuple(order))
    wide = ops.broadcast_in_dim(masks, shape, tuple(sorted(places)))
    copies = ops.broadcast_in_dim(x, shape, tuple(range(1, len(shape))))
    return ops.select(wide, copies, ops.zeros_like(copies))


def _after_groups(dims: Sequence[int]) -> tuple[int, ...]:
    return tuple([d + 1 for d in dims])


def scaled_dot(
    lhs: ArrayLike,
    rhs: ArrayLike,
    *,
    lhs_scale: ArrayLike | None = None,
    rhs_scale: ArrayLike | None = None,
    dimension_numbers: DotDimensionNumbers | None = None,
    preferred_element_type: DTypeLike = None,
) -> Value:
    """The `dot_general` of `lhs * lhs_scale` and `rhs * rhs_scale`, in bfloat16 if not stated otherwise.

    Along contracting dimensions a scale may be shorter than its operand; then each element belongs to a
    block of elements. The default dimensions are those of a product of matrices, or of stacks of them.
    """
    lhs, rhs = asarray(lhs), asarray(rhs)
    dtype = canonical_dtype(
        "bfloat16" if preferred_element_type is None else preferred_element_type
    )
    if dimension_numbers is None:
        n = lhs.ndim
        if n < 2:
            raise ShapeError(
                f"scaled_dot: operands must have 2 dimensions or more; got {aval_of(lhs)!r}"
            )
        batch = tuple(range(n - 2))
        dimension_numbers = ((n - 1,), (n - 2,)), (batch, batch)
    left, right = [
        scale_blocks(ops.convert_element_type(x, dtype), scale, dims, "scaled_dot")
        for x, scale, dims in zip(
            (lhs, rhs), (lhs_scale, rhs_scale), dimension_numbers[0], strict=True
        )
    ]
    return ops.dot_general(left, right, dimension_numbers, preferred_element_type=dtype)


def scale_blocks(x: Value, scale: ArrayLike | None, dims: Sequence[int], label: str) -> Value:
    """`x` times `scale`, whose elements along `dims` stand for blocks of elements of `x`."""
    if scale is None:
        return x
    scale = ops.convert_element_type(asarray(scale), x.dtype)
    expected = list(x.shape)
    for d in dims:
        count = scale.shape[d] if d < scale.ndim else 0
        if not count or x.shape[d] % count:
            raise ValueRangeError(
                f"{label}: the length of an operand must be a multiple of that of its scale; got "
                f"{aval_of(x)!r} and {aval_of(scale)!r} along dimension {d}"
            )
        expected[d] = count
    if scale.shape != tuple(expected):
        raise ShapeError(
            f"{label}: a scale must have the shape of its operand apart from contracting dimensions; "
            f"got {aval_of(x)!r} and {aval_of(scale)!r}"
        )
    for d in dims:
        scale = repeat(scale, x.shape[d] // scale.shape[d], axis=d)
    return ops.mul(x, scale)
