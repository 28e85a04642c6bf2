"""Products of arrays, by JAX's names."""

from __future__ import annotations

from typing import Any

from functx import ops
from functx.core.errors import ArgumentError, ShapeError
from functx.core.tracing import aval_of
from functx.core.types import canonical_dtype, promote_types
from functx.ops.operands import canonical_axis_sequence

__all__ = ["batch_matmul", "dot", "dot_general"]


def dot_general(
    lhs: Any,
    rhs: Any,
    dimension_numbers: Any,
    precision: Any = None,
    preferred_element_type: Any = None,
) -> Any:
    """The sum of products over contracted dimensions, for each index of the batch dimensions.

    `dimension_numbers` is `((lhs_contracting, rhs_contracting), (lhs_batch, rhs_batch))`. The
    result has the batch dimensions, then what is left of `lhs`, then of `rhs`. Operands of two
    dtypes are promoted to one.
    """
    try:
        (left, right), (left_batch, right_batch) = dimension_numbers
    except (TypeError, ValueError):
        raise ArgumentError(
            "dot_general: dimension_numbers must be ((lhs_contracting, rhs_contracting), "
            f"(lhs_batch, rhs_batch)); got {dimension_numbers!r}"
        ) from None
    n, m = aval_of(lhs).ndim, aval_of(rhs).ndim
    left, left_batch = (
        canonical_axis_sequence(d, n, "dot_general: lhs dimensions") for d in (left, left_batch)
    )
    right, right_batch = (
        canonical_axis_sequence(d, m, "dot_general: rhs dimensions") for d in (right, right_batch)
    )
    dtype = None if preferred_element_type is None else canonical_dtype(preferred_element_type)
    lhs, rhs = _promote_operands(lhs, rhs)
    out = ops.DotGeneral(
        (left, right), (left_batch, right_batch), ops.canonical_precision(precision), dtype
    )(lhs, rhs)
    return out if dtype is None else ops.convert_element_type(out, dtype)


def _promote_operands(lhs: Any, rhs: Any) -> tuple[Any, Any]:
    """The operands, promoted where they have different dtypes."""
    x, y = aval_of(lhs), aval_of(rhs)
    found = None
    if x.dtype != y.dtype:
        found = promote_types(((x.dtype, x.weak_type), (y.dtype, y.weak_type)))
    if found is None:
        return lhs, rhs
    return ops.convert_element_type(lhs, found[0]), ops.convert_element_type(rhs, found[0])


def dot(
    lhs: Any,
    rhs: Any,
    *,
    dimension_numbers: Any = None,
    precision: Any = None,
    preferred_element_type: Any = None,
) -> Any:
    """The product of two vectors or matrices, or what `dimension_numbers` say."""
    n, m = aval_of(lhs).ndim, aval_of(rhs).ndim
    if dimension_numbers is None:
        if n not in (1, 2) or m not in (1, 2):
            raise ShapeError(
                "dot: operands must be vectors or matrices where no dimension_numbers are given; "
                f"got {aval_of(lhs)!r} and {aval_of(rhs)!r}"
            )
        dimension_numbers = (((n - 1,), (0,)), ((), ()))
    return dot_general(lhs, rhs, dimension_numbers, precision, preferred_element_type)


def batch_matmul(lhs: Any, rhs: Any, precision: Any = None) -> Any:
    """The matrix products of the last two dimensions, for each index of the others."""
    x, y = aval_of(lhs), aval_of(rhs)
    if x.ndim != y.ndim or x.ndim < 2 or x.shape[:-2] != y.shape[:-2]:
        raise ShapeError(
            "batch_matmul: operands must be matrices, or stacks of them of one shape; "
            f"got {x!r} and {y!r}"
        )
    lead = tuple(range(x.ndim - 2))
    numbers = ((x.ndim - 1,), (x.ndim - 2,)), (lead, lead)
    return dot_general(lhs, rhs, numbers, precision)
