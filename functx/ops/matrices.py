"""Batches of matrices: the family of their functions, and what their rules are written with.

Matrices are the last two dimensions; the dimensions before them are those of a batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from functx.core.avals import ShapedArray
from functx.core.dtypes import is_complex
from functx.core.errors import DTypeError, ShapeError
from functx.core.primitive import Primitive
from functx.ops.arithmetic import add, mul
from functx.ops.comparison import eq
from functx.ops.complexes import conj, real
from functx.ops.contraction import dot_general
from functx.ops.conversion import convert_element_type
from functx.ops.creation import broadcasted_iota
from functx.ops.operands import batch_size, literal
from functx.ops.reductions import reduce_sum
from functx.ops.selection import select
from functx.ops.shaping import batch_dim_at, broadcast_in_dim, permute_dims

_LAPACK_DTYPES = tuple([np.dtype(t) for t in ("float32", "float64", "complex64", "complex128")])


def positive_definite(shape: tuple[int, ...]) -> Callable[[Any], Any]:
    """What draws symmetric positive definite matrices."""

    def draw(random: Any) -> Any:
        x = random.randn(*shape)
        return x @ np.swapaxes(x, -1, -2) + 2 * np.eye(shape[-1])

    return draw


def well_conditioned(shape: tuple[int, ...]) -> Callable[[Any], Any]:
    """What draws matrices far from singular, with singular values that differ."""

    def draw(random: Any) -> Any:
        n = min(shape[-2:])
        u = np.linalg.qr(random.randn(*shape[:-2], shape[-2], n))[0]
        v = np.linalg.qr(random.randn(*shape[:-2], shape[-1], n))[0]
        return (u * np.arange(1.0, n + 1)) @ np.swapaxes(v, -1, -2)

    return draw


class MatrixFunction(Primitive, abstract=True):
    """A function of matrices, in floating point of 32 or 64 bits, real or complex."""

    square: ClassVar[bool] = True

    def check(self, *operands: ShapedArray) -> None:
        first = operands[0]
        if any(x.dtype != first.dtype or x.dtype not in _LAPACK_DTYPES for x in operands):
            raise DTypeError(
                f"{self.name}: operands must be of one dtype, float32, float64, complex64 or "
                f"complex128; got {' and '.join(map(repr, operands))}",
                fix="Convert with astype.",
            )
        if first.ndim < 2 or (self.square and first.shape[-1] != first.shape[-2]):
            kind = "square matrices" if self.square else "matrices"
            raise ShapeError(f"{self.name}: the operand must hold {kind}; got {first!r}")

    def batch(self, args, dims):
        size = batch_size(args, dims)
        outs = self(*[batch_dim_at(x, d, 0, size) for x, d in zip(args, dims, strict=True)])
        return outs, [0] * len(outs) if self.multiple_results else 0


def matmul_highest(x: Any, y: Any) -> Any:
    """The products of the matrices of `x` and `y`."""
    n = x.ndim
    batch = tuple(range(n - 2))
    return dot_general(x, y, ((n - 1,), (n - 2,)), (batch, batch), ("HIGHEST", "HIGHEST"))


def matrix_transpose(x: Any) -> Any:
    """`x` with its last two dimensions exchanged."""
    n = x.ndim
    return permute_dims(x, (*range(n - 2), n - 1, n - 2))


def conj_if_complex(x: Any) -> Any:
    """The complex conjugate; real matrices themselves."""
    return conj(x) if is_complex(x.dtype) else x


def adjoint(x: Any) -> Any:
    """The conjugate transpose."""
    return conj_if_complex(matrix_transpose(x))


def hermitian_part(x: Any) -> Any:
    """(x + x.H) / 2."""
    return mul(add(x, adjoint(x)), literal(0.5, x.dtype))


def real_if_complex(x: Any) -> Any:
    """The real part; real matrices themselves."""
    return real(x) if is_complex(x.dtype) else x


def cast_like(x: Any, like: Any) -> Any:
    """The real `x` in the dtype of `like`."""
    return x if x.dtype == like.dtype else convert_element_type(x, like.dtype)


def position_mask(shape: tuple[int, ...], relation: Callable[[Any, Any], Any]) -> Any:
    """Where `relation(row, column)` holds in matrices of `shape`."""
    n = len(shape)
    rows, columns = [broadcasted_iota(np.int32, shape, axis) for axis in (n - 2, n - 1)]
    return relation(rows, columns)


def insert_matrix_dim(x: Any, shape: tuple[int, ...], drop: int) -> Any:
    """`x` repeated to `shape`, which has one more dimension, `drop` before its end."""
    n = len(shape)
    return broadcast_in_dim(x, shape, tuple([i for i in range(n) if i != n - drop]))


def scale_columns(x: Any, factor: Any) -> Any:
    """`x` with its columns multiplied by `factor`."""
    return mul(x, insert_matrix_dim(factor, x.shape, drop=2))


def extract_diagonal(x: Any) -> Any:
    """The elements on the diagonals of square matrices."""
    return reduce_sum(select(position_mask(x.shape, eq), x, literal(0, x.dtype)), (x.ndim - 1,))


def construct_diagonal(x: Any) -> Any:
    """Matrices with `x` on their diagonals, and zeros elsewhere."""
    shape = (*x.shape, x.shape[-1])
    return select(
        position_mask(shape, eq), insert_matrix_dim(x, shape, drop=1), literal(0, x.dtype)
    )
