"""Linear systems and determinants of batches of matrices, and helpers for rules of matrix functions.

The last two dimensions of an array are matrices, the dimensions before them are a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar

import jax.numpy as jnp
import numpy as np
from jax import lax

from functx import ops
from functx.core.errors import DTypeError, ShapeError
from functx.core.primitive import Primitive
from functx.core.samples import Rounding, c64, f32, sample
from functx.core.types import ShapedArray, is_complex, real_dtype
from functx.core.typing import ArrayLike, Cotangents, Dim, IRValue, NumPyArray, Tangent, Value
from functx.ops.operands import batch_size, literal

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


class MatrixFunction(Primitive, abstract=True):
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

    def batch(
        self, args: Sequence[Value], dims: Sequence[Dim]
    ) -> tuple[Value | Sequence[Value], Dim | Sequence[Dim]]:
        log_abs_det = batch_size(args, dims)
        outs = self(
            *[ops.batch_dim_at(x, d, 0, log_abs_det) for x, d in zip(args, dims, strict=True)]
        )
        return outs, [0] * len(outs) if self.multiple_results else 0


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


def cast_like(x: Value, like: Value) -> Value:
    """The real `x` in the dtype of `like`."""
    return x if x.dtype == like.dtype else ops.convert_element_type(x, like.dtype)


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


class TriangularSolve(MatrixFunction):
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
        _check_right_hand_side(self, a, b)
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


class Solve(MatrixFunction):
    """The x with a @ x == b; with `transposed`, `a` is transposed."""

    transposed: bool = False
    samples = (
        sample(f32[3, 3], f32[3, 2], values={0: well_conditioned((3, 3))}),
        sample(
            f32[2, 3, 3], f32[2, 3, 1], transposed=True, values={0: well_conditioned((2, 3, 3))}
        ),
    )

    def abstract_eval(self, a: ShapedArray, b: ShapedArray) -> ShapedArray:
        self.check(a, b)
        _check_right_hand_side(self, a, b)
        return b

    def jvp(self, primals: Sequence[Value], tangents: Sequence[Tangent]) -> tuple[Value, Tangent]:
        (a, b), (da, db) = primals, tangents
        x = self(a, b)
        if da is not None:
            # a dx = db - da x
            term = matmul_highest(matrix_transpose(da) if self.transposed else da, x)
            db = ops.neg(term) if db is None else ops.sub(db, term)
        return x, self(a, db)

    def vjp(
        self, ct: Value, out: Value, args: Sequence[Value], active: Sequence[bool]
    ) -> Cotangents:
        b_ct = Solve(not self.transposed)(args[0], ct)
        if not active[0]:
            return None, b_ct
        term = ops.neg(matmul_highest(b_ct, matrix_transpose(out)))
        return matrix_transpose(term) if self.transposed else term, b_ct

    def transpose(self, ct: Value, a: Value, b: Value) -> Cotangents:
        return None, Solve(not self.transposed)(a, ct)

    def numpy(self, a: NumPyArray, b: NumPyArray) -> ArrayLike:
        return np.linalg.solve(np.swapaxes(a, -1, -2) if self.transposed else a, b)

    def lower(self, ctx: LoweringContext, a: IRValue, b: IRValue) -> IRValue:
        def solve(a: Value, b: Value) -> Value:
            return jnp.linalg.solve(jnp.swapaxes(a, -1, -2) if self.transposed else a, b)

        return ctx.via_jax(solve, a, b)


def _check_right_hand_side(primitive: Primitive, a: ShapedArray, b: ShapedArray) -> None:
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


def solve(a: ArrayLike, b: ArrayLike) -> Value:
    """The x with a @ x == b for square matrices `a` and matrices `b` with as many rows."""
    return Solve()(a, b)


class Det(MatrixFunction):
    """The determinant."""

    samples = (
        sample(f32[3, 3]),
        sample(f32[2, 2, 2]),
        sample(f32[1, 1]),
        sample(f32[2, 2], values={0: [[1.0, 2.0], [2.0, 4.0]]}, gradients={0: [[4, -2], [-2, 1]]}),
        sample(f32[3, 3], values={0: np.ones((3, 3))}, gradients={0: np.zeros((3, 3))}),
    )

    def abstract_eval(self, x: ShapedArray) -> ShapedArray:
        self.check(x)
        return x.update(shape=x.shape[:-2])

    def jvp(self, primals: Sequence[Value], tangents: Sequence[Value]) -> tuple[Value, Tangent]:
        (x,), (dx,) = primals, tangents
        return self(x), ops.reduce_sum(ops.mul(Cofactors()(x), dx), (x.ndim - 2, x.ndim - 1))

    def vjp(
        self, ct: Value, out: Value, args: Sequence[Value], active: Sequence[bool]
    ) -> Cotangents:
        (x,) = args
        broadcast = ops.broadcast_in_dim(ct, x.shape, tuple(range(x.ndim - 2)))
        return (ops.mul(broadcast, Cofactors()(x)),)

    def numpy(self, x: NumPyArray) -> ArrayLike:
        return np.linalg.det(x)

    def lower(self, ctx: LoweringContext, x: IRValue) -> IRValue:
        return ctx.via_jax(jnp.linalg.det, x)


class Cofactors(MatrixFunction):
    """The matrix of cofactors, the derivative of the determinant, singular or not."""

    rounding = Rounding(is_normwise=True)
    samples = (
        sample(f32[3, 3], values={0: well_conditioned((3, 3))}),
        sample(f32[2, 2, 2], values={0: well_conditioned((2, 2, 2))}, dtypes=("f64", "f32")),
        sample(f32[2, 2], values={0: np.zeros((2, 2))}, gradients={0: [[1, -1], [-1, 1]]}),
    )

    def abstract_eval(self, x: ShapedArray) -> ShapedArray:
        self.check(x)
        return x

    def jvp(self, primals: Sequence[Value], tangents: Sequence[Value]) -> tuple[Value, Tangent]:
        (x,), (dx,) = primals, tangents
        u, s, vh = ops.Svd()(x)
        sign = ops.mul(Det()(u), Det()(vh))
        e = matmul_highest(adjoint(u), matmul_highest(dx, adjoint(vh)))
        # Of s + e: diagonal sum_k p_ik e_kk, elsewhere -p_ij e_ji, p the products of others.
        p = cast_like(_products_of_others(s), u)
        traces = matmul_highest(
            p, insert_matrix_dim(extract_diagonal(e), (*e.shape[:-1], 1), drop=1)
        )
        inner = ops.sub(construct_diagonal(_sum_last_dim(traces)), ops.mul(p, matrix_transpose(e)))
        outer = matmul_highest(conj_if_complex(u), matmul_highest(inner, conj_if_complex(vh)))
        broadcast = ops.broadcast_in_dim(sign, x.shape, tuple(range(x.ndim - 2)))
        return self(x), ops.mul(broadcast, outer)

    def lower(self, ctx: LoweringContext, x: IRValue) -> IRValue:
        return ctx.via_jax(_cofactors, x)


def _cofactors(x: Value) -> Value:
    u, s, vh = jnp.linalg.svd(x)
    other_products = jnp.where(jnp.eye(s.shape[-1], dtype=bool), 1, s[..., None, :]).prod(-1)
    sign = jnp.linalg.det(u) * jnp.linalg.det(vh)
    return sign[..., None, None] * ((u.conj() * other_products[..., None, :]) @ vh.conj())


class Slogdet(MatrixFunction):
    """The sign of the determinant, and the logarithm of its absolute value."""

    multiple_results = True
    samples = (
        sample(f32[3, 3], values={0: well_conditioned((3, 3))}),
        sample(f32[2, 2, 2], values={0: well_conditioned((2, 2, 2))}),
    )

    def abstract_eval(self, x: ShapedArray) -> Sequence[ShapedArray]:
        self.check(x)
        out = x.update(shape=x.shape[:-2])
        return [out, out.update(dtype=real_dtype(x.dtype))]

    def jvp(
        self, primals: Sequence[Value], tangents: Sequence[Tangent]
    ) -> tuple[Sequence[Value], Sequence[Tangent]]:
        (x,), (dx,) = primals, tangents
        sign, log_abs_det = self(x)
        diagonal = extract_diagonal(Solve()(x, dx))
        trace = ops.reduce_sum(diagonal, (diagonal.ndim - 1,))
        sign_tangent = None
        if is_complex(x.dtype):
            # The imaginary part of the trace rotates the sign.
            sign_tangent = ops.mul(
                sign, ops.complex(ops.constant_like(log_abs_det, 0), ops.imag(trace))
            )
        return [sign, log_abs_det], [sign_tangent, real_if_complex(trace)]

    def numpy(self, x: NumPyArray) -> Sequence[NumPyArray]:
        return np.linalg.slogdet(x)

    def lower(self, ctx: LoweringContext, x: IRValue) -> Sequence[IRValue]:
        return ctx.via_jax(lambda x: tuple(jnp.linalg.slogdet(x)), x)


def _sum_last_dim(x: Value) -> Value:
    return ops.reduce_sum(x, (x.ndim - 1,))


def _products_of_others(s: Value) -> Value:
    """The product of all elements of s except those at i and j, in row i and column j; 0 for i = j."""
    shape = (*s.shape[:-1], *s.shape[-1:] * 3)
    n = len(shape)
    i, j, k = [ops.broadcasted_iota(np.int32, shape, axis) for axis in range(n - 3, n)]
    broadcast = ops.broadcast_in_dim(s, shape, (*range(n - 3), n - 1))
    one = literal(1, s.dtype)
    product = ops.reduce_prod(
        ops.select(ops.eq(i, k), one, ops.select(ops.eq(j, k), one, broadcast)), (n - 1,)
    )
    return ops.select(position_mask(product.shape, ops.eq), literal(0, s.dtype), product)


def det(x: ArrayLike) -> Value:
    """The determinant of square matrices; its derivative is right for singular ones too."""
    return Det()(x)


def slogdet(x: Value) -> tuple[Value, Value]:
    """The sign of the determinant, and the logarithm of its absolute value."""
    sign, log_abs_det = Slogdet()(x)
    return sign, log_abs_det
