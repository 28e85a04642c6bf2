"""Triangular systems of batches of matrices, and functions for rules of matrix functions.

The last two dimensions of an array are matrices, the dimensions before them are a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from jax import lax

from functx import ops
from functx.core.errors import DTypeError, ShapeError
from functx.core.index_sets import DependentOperand, IndexSets, Sets
from functx.core.primitive import Primitive
from functx.core.samples import c64, f32, sample
from functx.core.types import ShapedArray, is_complex
from functx.core.typing import ArrayLike, Cotangents, Dim, IRValue, NumPyArray, Tangent, Value
from functx.ops.families import MapsLastDims
from functx.ops.operands import literal

if TYPE_CHECKING:
    from functx.lowering.stablehlo_emitter import LoweringContext

_LAPACK_DTYPES = tuple([np.dtype(t) for t in ("float32", "float64", "complex64", "complex128")])


def positive_definite(shape: tuple[int, ...]) -> Callable[[np.random.RandomState], NumPyArray]:
    """A sampler of symmetric positive definite matrices."""

    def draw(random: np.random.RandomState) -> NumPyArray:
        x = random.randn(*shape)
        return x @ np.swapaxes(x, -1, -2) + 2 * np.eye(shape[-1])

    return draw


def well_conditioned(shape: tuple[int, ...]) -> Callable[[np.random.RandomState], NumPyArray]:
    """A sampler of well-conditioned matrices with distinct singular values."""

    def draw(random: np.random.RandomState) -> NumPyArray:
        n = min(shape[-2:])
        u = np.linalg.qr(random.randn(*shape[:-2], shape[-2], n))[0]
        v = np.linalg.qr(random.randn(*shape[:-2], shape[-1], n))[0]
        return (u * np.arange(1.0, n + 1)) @ np.swapaxes(v, -1, -2)

    return draw


class MatrixFunction(MapsLastDims, abstract=True):
    """A function of batches of matrices, real or complex, in single or double precision."""

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


def matmul_highest(x: Value, y: Value) -> Value:
    """The matrix products of `x` and `y` in the highest precision."""
    n = x.ndim
    batch = tuple(range(n - 2))
    product = ops.DotGeneral(((n - 1,), (n - 2,)), (batch, batch), ("HIGHEST", "HIGHEST"))
    return product(x, y)


def matrix_transpose(x: Value) -> Value:
    """`x` with its last two dimensions exchanged."""
    n = x.ndim
    return ops.permute_dims(x, (*range(n - 2), n - 1, n - 2))


def conj_if_complex(x: Value) -> Value:
    """The complex conjugate of complex matrices; real ones unchanged."""
    return ops.conj(x) if is_complex(x.dtype) else x


def adjoint(x: Value) -> Value:
    """The conjugate transpose."""
    return conj_if_complex(matrix_transpose(x))


def hermitian_part(x: Value) -> Value:
    """(x + x.H) / 2."""
    return ops.mul(ops.add(x, adjoint(x)), literal(0.5, x.dtype))


def real_if_complex(x: Value) -> Value:
    """The real part of complex matrices; real ones unchanged."""
    return ops.real(x) if is_complex(x.dtype) else x


def position_mask(shape: tuple[int, ...], relation: Callable[[Value, Value], Value]) -> Value:
    """The mask of matrices of `shape` where `relation(row, column)` holds."""
    n = len(shape)
    rows, columns = [ops.broadcasted_iota(np.int32, shape, axis) for axis in (n - 2, n - 1)]
    return relation(rows, columns)


def insert_matrix_dim(x: ArrayLike, shape: tuple[int, ...], drop: int) -> Value:
    """`x` repeated to `shape`, which has a further dimension at `-drop`."""
    n = len(shape)
    return ops.broadcast_in_dim(x, shape, tuple([i for i in range(n) if i != n - drop]))


def scale_columns(x: Value, factor: Value) -> Value:
    """`x` with its columns multiplied by `factor`."""
    return ops.mul(x, insert_matrix_dim(factor, x.shape, drop=2))


def extract_diagonal(x: Value) -> Value:
    """The elements on the diagonals of square matrices."""
    return ops.reduce_sum(
        ops.select(position_mask(x.shape, ops.eq), x, literal(0, x.dtype)), (x.ndim - 1,)
    )


def construct_diagonal(x: Value) -> Value:
    """Matrices with `x` on their diagonals, and zeros elsewhere."""
    shape = (*x.shape, x.shape[-1])
    return ops.select(
        position_mask(shape, ops.eq), insert_matrix_dim(x, shape, drop=1), literal(0, x.dtype)
    )


class LinearSystem(MatrixFunction, abstract=True):
    """A solution that is linear in the last operand, the right side; the others state the matrix."""

    def index_sets(self, sets: IndexSets, *operands: DependentOperand) -> Sets:
        *of_matrices, b = operands
        return sets.union(sets.spread(b.sets, (-2,)), sets.union_of_all(of_matrices))

    def batch(
        self, args: Sequence[Value], dims: Sequence[Dim]
    ) -> tuple[Value | Sequence[Value], Dim | Sequence[Dim]]:
        *of_matrices, dim = dims
        if dim is None or any(d is not None for d in of_matrices):
            return super().batch(args, dims)
        # One matrix for the whole batch, which becomes further columns.
        *matrices, b = args
        b = ops.moveaxis(b, dim, b.ndim - 1)
        x = self(*matrices, ops.collapse(b, b.ndim - 2, b.ndim))
        return ops.reshape(x, b.shape), b.ndim - 1


class TriangularSolve(LinearSystem):
    """The x with a @ x == b, where only the lower or the upper triangle of `a` is used.

    With `transposed`, `a` is transposed, with `conjugated` conjugated, and with `unit_diagonal` its
    diagonal is taken as ones.
    """

    lower_triangle: bool = True
    transposed: bool = False
    conjugated: bool = False
    unit_diagonal: bool = False
    samples = (
        sample(f32[3, 3], f32[3, 2], values={0: well_conditioned((3, 3))}),
        sample(
            f32[2, 3, 3],
            f32[2, 3, 1],
            lower_triangle=False,
            values={0: positive_definite((2, 3, 3))},
        ),
        sample(
            f32[3, 3],
            f32[3, 2],
            transposed=True,
            conjugated=True,
            values={0: positive_definite((3, 3))},
        ),
        sample(f32[3, 3], f32[3, 2], unit_diagonal=True, domain=(-1.0, 1.0)),
        sample(c64[3, 3], c64[3, 2], conjugated=True, values={0: well_conditioned((3, 3))}),
    )

    def abstract_eval(self, a: ShapedArray, b: ShapedArray) -> ShapedArray:
        self.check(a, b)
        check_right_hand_side(self, a, b)
        return b

    def effective_matrix(self, a: Value) -> Value:
        """The matrix that the solve applies the inverse of."""
        relation = ops.ge if self.lower_triangle else ops.le
        mask = position_mask(
            a.shape, _strict_relation(relation) if self.unit_diagonal else relation
        )
        a = ops.select(mask, a, literal(0, a.dtype))
        a = matrix_transpose(a) if self.transposed else a
        return conj_if_complex(a) if self.conjugated else a

    def jvp(self, primals: Sequence[Value], tangents: Sequence[Tangent]) -> tuple[Value, Tangent]:
        (a, b), (da, db) = primals, tangents
        x = self(a, b)
        if da is not None:
            term = matmul_highest(self.effective_matrix(da), x)
            db = ops.neg(term) if db is None else ops.sub(db, term)
        return x, self(a, db)

    def transpose(self, ct: Value, a: Value, b: Value) -> Cotangents:
        return None, self.transposed_solve()(a, ct)

    def transposed_solve(self) -> TriangularSolve:
        return TriangularSolve(
            self.lower_triangle, not self.transposed, self.conjugated, self.unit_diagonal
        )

    def lower(self, ctx: LoweringContext, a: IRValue, b: IRValue) -> IRValue:
        def solve(a: Value, b: Value) -> Value:
            return lax.linalg.triangular_solve(
                a,
                b,
                left_side=True,
                lower=self.lower_triangle,
                transpose_a=self.transposed,
                conjugate_a=self.conjugated,
                unit_diagonal=self.unit_diagonal,
            )

        return ctx.via_jax(solve, a, b)


def check_right_hand_side(primitive: Primitive, a: ShapedArray, b: ShapedArray) -> None:
    """Raise ShapeError unless `b` has the rows and the batch of `a`."""
    if b.ndim != a.ndim or b.shape[:-1] != a.shape[:-1]:
        raise ShapeError(
            f"{primitive.name}: the right side must have as many rows as the matrix, and its "
            f"batch; got {a!r} and {b!r}"
        )


def _strict_relation(relation: Callable[[Value, Value], Value]) -> Callable[[Value, Value], Value]:
    return ops.gt if relation is ops.ge else ops.lt


def triangular_solve(
    a: ArrayLike,
    b: ArrayLike,
    lower: bool = True,
    transposed: bool = False,
    conjugated: bool = False,
    unit_diagonal: bool = False,
) -> Value:
    """The x with a @ x == b, where only the lower or the upper triangle of `a` is used.

    With `transposed`, `a` is transposed, with `conjugated` conjugated, and with `unit_diagonal` its
    diagonal is taken as ones.
    """
    return TriangularSolve(lower, transposed, conjugated, unit_diagonal)(a, b)
