"""Factorizations of matrices, and what is solved or measured with them.

Matrices are the last two dimensions; the dimensions before them are those of a batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jax import lax

from functx.core.avals import ShapedArray
from functx.core.dtypes import is_complex, real_dtype
from functx.core.errors import DTypeError, ShapeError
from functx.core.primitive import Primitive
from functx.core.samples import f32, sample
from functx.ops.arithmetic import abs, add, div, mul, neg, sub
from functx.ops.comparison import eq, ge, gt, le, lt
from functx.ops.complexes import complex, conj, imag, real
from functx.ops.contraction import dot_general
from functx.ops.conversion import convert_element_type
from functx.ops.creation import broadcasted_iota
from functx.ops.operands import literal
from functx.ops.reductions import reduce_max, reduce_prod, reduce_sum
from functx.ops.selection import select
from functx.ops.shaping import batch_at, broadcast_in_dim, full_like, permute_dims

_DTYPES = tuple([np.dtype(t) for t in ("float32", "float64", "complex64", "complex128")])


def _positive(shape: tuple[int, ...]) -> Callable[[Any], Any]:
    """What draws symmetric positive definite matrices."""

    def draw(random: Any) -> Any:
        x = random.randn(*shape)
        return x @ np.swapaxes(x, -1, -2) + 2 * np.eye(shape[-1])

    return draw


def _regular(shape: tuple[int, ...]) -> Callable[[Any], Any]:
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
        if any(x.dtype != first.dtype or x.dtype not in _DTYPES for x in operands):
            raise DTypeError(
                f"{self.name}: operands must be of one dtype, float32, float64, complex64 or "
                f"complex128; got {' and '.join(map(repr, operands))}",
                fix="Convert with astype.",
            )
        if first.ndim < 2 or (self.square and first.shape[-1] != first.shape[-2]):
            kind = "square matrices" if self.square else "matrices"
            raise ShapeError(f"{self.name}: the operand must hold {kind}; got {first!r}")

    def batch(self, args, dims):
        size = next(x.shape[d] for x, d in zip(args, dims, strict=True) if d is not None)
        outs = self(*[batch_at(x, d, 0, size) for x, d in zip(args, dims, strict=True)])
        return outs, [0] * len(outs) if self.multiple_results else 0


class TriangularSolve(MatrixFunction):
    """The x with a @ x == b, where one triangle of `a` counts, the lower or the upper.

    With `transposed` it is that of the transpose of `a`, with `conjugated` that of the
    conjugate, and with `unit` the diagonal counts as ones.
    """

    lower_triangle: bool = True
    transposed: bool = False
    conjugated: bool = False
    unit: bool = False
    samples = (
        sample(f32[3, 3], f32[3, 2], values={0: _regular((3, 3))}),
        sample(f32[2, 3, 3], f32[2, 3, 1], lower_triangle=False, values={0: _positive((2, 3, 3))}),
        sample(
            f32[3, 3], f32[3, 2], transposed=True, conjugated=True, values={0: _positive((3, 3))}
        ),
        sample(f32[3, 3], f32[3, 2], unit=True, domain=(-1.0, 1.0)),
    )

    def abstract_eval(self, a, b):
        self.check(a, b)
        _check_sides(self, a, b)
        return b

    def applied(self, a: Any) -> Any:
        """The matrix that is solved with."""
        relation = ge if self.lower_triangle else le
        mask = _places(a.shape, _strict(relation) if self.unit else relation)
        a = select(mask, a, literal(0, a.dtype))
        a = _transpose(a) if self.transposed else a
        return _conj(a) if self.conjugated else a

    def jvp(self, primals, tangents):
        (a, b), (da, db) = primals, tangents
        x = self(a, b)
        if da is not None:
            term = _matmul(self.applied(da), x)
            db = neg(term) if db is None else sub(db, term)
        return x, self(a, db)

    def transpose(self, ct, a, b):
        return None, self.turned()(a, ct)

    def turned(self) -> TriangularSolve:
        return TriangularSolve(self.lower_triangle, not self.transposed, self.conjugated, self.unit)

    def lower(self, ctx, a, b):
        def solve(a: Any, b: Any) -> Any:
            return lax.linalg.triangular_solve(
                a,
                b,
                left_side=True,
                lower=self.lower_triangle,
                transpose_a=self.transposed,
                conjugate_a=self.conjugated,
                unit_diagonal=self.unit,
            )

        return ctx.via_jax(solve, a, b)


class Solve(MatrixFunction):
    """The x with a @ x == b; with `transposed`, that of the transpose of `a`."""

    transposed: bool = False
    samples = (
        sample(f32[3, 3], f32[3, 2], values={0: _regular((3, 3))}),
        sample(f32[2, 3, 3], f32[2, 3, 1], transposed=True, values={0: _regular((2, 3, 3))}),
    )

    def abstract_eval(self, a, b):
        self.check(a, b)
        _check_sides(self, a, b)
        return b

    def jvp(self, primals, tangents):
        (a, b), (da, db) = primals, tangents
        x = self(a, b)
        if da is not None:
            # a dx = db - da x
            term = _matmul(_transpose(da) if self.transposed else da, x)
            db = neg(term) if db is None else sub(db, term)
        return x, self(a, db)

    def vjp(self, ct, out, args, active):
        pulled = Solve(not self.transposed)(args[0], ct)
        if not active[0]:
            return None, pulled
        term = neg(_matmul(pulled, _transpose(out)))
        return _transpose(term) if self.transposed else term, pulled

    def transpose(self, ct, a, b):
        return None, Solve(not self.transposed)(a, ct)

    def lower(self, ctx, a, b):
        def solve(a: Any, b: Any) -> Any:
            return jnp.linalg.solve(jnp.swapaxes(a, -1, -2) if self.transposed else a, b)

        return ctx.via_jax(solve, a, b)


class Cholesky(MatrixFunction):
    """The lower triangular l with l @ l.H the Hermitian part of `x`; nan if there is none."""

    samples = (
        sample(f32[3, 3], values={0: _positive((3, 3))}),
        sample(f32[2, 2, 2], values={0: _positive((2, 2, 2))}),
    )

    def abstract_eval(self, x):
        self.check(x)
        return x

    def jvp(self, primals, tangents):
        out = self(*primals)
        # l^-1 dx l^-H = l^-1 dl + (l^-1 dl)^H, and l^-1 dl is lower triangular.
        left = TriangularSolve()(out, _hermitian(tangents[0]))
        both = _transpose(TriangularSolve(conjugated=True)(out, _transpose(left)))
        zero = literal(0, out.dtype)
        diagonal = select(_places(both.shape, eq), mul(both, literal(0.5, out.dtype)), zero)
        lower = add(select(_places(both.shape, gt), both, zero), diagonal)
        return out, _matmul(out, lower)

    def lower(self, ctx, x):
        return ctx.via_jax(lambda x: lax.linalg.cholesky(x, symmetrize_input=True), x)


class Eigh(MatrixFunction):
    """The eigenvalues, ascending, and eigenvectors, as columns, of the Hermitian part of `x`.

    Where eigenvalues are equal, the eigenvectors do not turn into each other.
    """

    multiple_results = True
    samples = (
        sample(f32[3, 3], values={0: _positive((3, 3))}, dtypes=("f64", "f32")),
        sample(f32[2, 2, 2], values={0: _positive((2, 2, 2))}, dtypes=("f64", "f32")),
    )

    def abstract_eval(self, x):
        self.check(x)
        return [x.update(shape=x.shape[:-1], dtype=real_dtype(x.dtype)), x]

    def jvp(self, primals, tangents):
        w, v = outs = self(*primals)
        turned = _matmul(_adjoint(v), _matmul(_hermitian(tangents[0]), v))
        dv = _matmul(v, mul(_cast(_inverse_gaps(w, w), v), turned))
        return outs, [_real(_diagonal(turned)), dv]

    def vjp(self, cts, outs, args, active):
        (dw, dv), (w, v) = cts, outs
        total = None if dw is None else _diagonal_matrix(_cast(dw, v))
        if dv is not None:
            term = mul(_cast(_inverse_gaps(w, w), v), _matmul(_transpose(v), dv))
            total = term if total is None else add(total, term)
        return (_hermitian(_matmul(_conj(v), _matmul(total, _transpose(v)))),)

    def lower(self, ctx, x):
        def eigh(x: Any) -> Any:
            v, w = lax.linalg.eigh(x, symmetrize_input=True)
            return w, v

        return ctx.via_jax(eigh, x)


class Svd(MatrixFunction):
    """The u, s, vh with `x` == (u * s) @ vh: orthonormal columns, singular values, rows.

    The singular values descend, as many as the smaller dimension. Where they are equal,
    singular vectors do not turn into each other.
    """

    square = False
    multiple_results = True
    samples = (
        sample(f32[3, 3], values={0: _regular((3, 3))}, dtypes=("f64", "f32")),
        sample(f32[4, 2], values={0: _regular((4, 2))}, dtypes=("f64", "f32")),
        sample(f32[2, 2, 3], values={0: _regular((2, 2, 3))}, dtypes=("f64", "f32")),
    )

    def abstract_eval(self, x):
        self.check(x)
        *batch, m, n = x.shape
        k = min(m, n)
        s = x.update(shape=(*batch, k), dtype=real_dtype(x.dtype))
        return [x.update(shape=(*batch, m, k)), s, x.update(shape=(*batch, k, n))]

    def jvp(self, primals, tangents):
        (x,), (dx,) = primals, tangents
        u, s, vh = outs = self(x)
        v = _adjoint(vh)
        # With du = u p, dv = v q: u^H dx v = p s + ds - s q, p and q antihermitian.
        dp = _matmul(_adjoint(u), _matmul(dx, v))
        half = literal(0.5, x.dtype)
        even, odd = mul(add(dp, _adjoint(dp)), half), mul(sub(dp, _adjoint(dp)), half)
        turn = mul(_cast(_inverse_gaps(s, s), u), even)
        apart = mul(_cast(_inverse_gaps(s, neg(s)), u), odd)
        du = _matmul(u, add(turn, apart))
        dv = _matmul(v, sub(turn, apart))
        *_, m, n = x.shape
        inverse = _cast(_inverse(s, s), u)
        if m > n:
            rest = _columns(_matmul(dx, v), inverse)
            du = add(du, sub(rest, _matmul(u, _matmul(_adjoint(u), rest))))
        if n > m:
            rest = _columns(_matmul(_adjoint(dx), u), inverse)
            dv = add(dv, sub(rest, _matmul(v, _matmul(vh, rest))))
        return outs, [du, _real(_diagonal(even)), _adjoint(dv)]

    def lower(self, ctx, x):
        return ctx.via_jax(lambda x: tuple(jnp.linalg.svd(x, full_matrices=False)), x)


class Det(MatrixFunction):
    """The determinant."""

    samples = (
        sample(f32[3, 3]),
        sample(f32[2, 2, 2]),
        sample(f32[1, 1]),
        sample(f32[2, 2], values={0: [[1.0, 2.0], [2.0, 4.0]]}, gradients={0: [[4, -2], [-2, 1]]}),
        sample(f32[3, 3], values={0: np.ones((3, 3))}, gradients={0: np.zeros((3, 3))}),
    )

    def abstract_eval(self, x):
        self.check(x)
        return x.update(shape=x.shape[:-2])

    def jvp(self, primals, tangents):
        (x,), (dx,) = primals, tangents
        return self(x), reduce_sum(mul(Cofactors()(x), dx), (x.ndim - 2, x.ndim - 1))

    def vjp(self, ct, out, args, active):
        (x,) = args
        wide = broadcast_in_dim(ct, x.shape, tuple(range(x.ndim - 2)))
        return (mul(wide, Cofactors()(x)),)

    def lower(self, ctx, x):
        return ctx.via_jax(jnp.linalg.det, x)


class Cofactors(MatrixFunction):
    """The matrix of cofactors, the derivative of the determinant, singular or not."""

    samples = (
        sample(f32[3, 3], values={0: _regular((3, 3))}),
        sample(f32[2, 2, 2], values={0: _regular((2, 2, 2))}, dtypes=("f64", "f32")),
        sample(f32[2, 2], values={0: np.zeros((2, 2))}, gradients={0: [[1, -1], [-1, 1]]}),
    )

    def abstract_eval(self, x):
        self.check(x)
        return x

    def jvp(self, primals, tangents):
        (x,), (dx,) = primals, tangents
        u, s, vh = Svd()(x)
        sign = mul(Det()(u), Det()(vh))
        e = _matmul(_adjoint(u), _matmul(dx, _adjoint(vh)))
        # Of s + e: diagonal sum_k p_ik e_kk, elsewhere -p_ij e_ji, p the products of others.
        p = _cast(_products_of_others(s), u)
        traces = _matmul(p, _wide(_diagonal(e), (*e.shape[:-1], 1), drop=1))
        inner = sub(_diagonal_matrix(_squeezed(traces)), mul(p, _transpose(e)))
        outer = _matmul(_conj(u), _matmul(inner, _conj(vh)))
        wide = broadcast_in_dim(sign, x.shape, tuple(range(x.ndim - 2)))
        return self(x), mul(wide, outer)

    def lower(self, ctx, x):
        return ctx.via_jax(_cofactors, x)


def _cofactors(x: Any) -> Any:
    u, s, vh = jnp.linalg.svd(x)
    others = jnp.where(jnp.eye(s.shape[-1], dtype=bool), 1, s[..., None, :]).prod(-1)
    sign = jnp.linalg.det(u) * jnp.linalg.det(vh)
    return sign[..., None, None] * ((u.conj() * others[..., None, :]) @ vh.conj())


class Slogdet(MatrixFunction):
    """The sign of the determinant, and the logarithm of its absolute value."""

    multiple_results = True
    samples = (
        sample(f32[3, 3], values={0: _regular((3, 3))}),
        sample(f32[2, 2, 2], values={0: _regular((2, 2, 2))}),
    )

    def abstract_eval(self, x):
        self.check(x)
        out = x.update(shape=x.shape[:-2])
        return [out, out.update(dtype=real_dtype(x.dtype))]

    def jvp(self, primals, tangents):
        (x,), (dx,) = primals, tangents
        sign, size = self(x)
        part = _diagonal(Solve()(x, dx))
        trace = reduce_sum(part, (part.ndim - 1,))
        turn = None
        if is_complex(x.dtype):
            # The sign turns by the imaginary part.
            turn = mul(sign, complex(full_like(size, 0), imag(trace)))
        return [sign, size], [turn, _real(trace)]

    def lower(self, ctx, x):
        return ctx.via_jax(lambda x: tuple(jnp.linalg.slogdet(x)), x)


def _check_sides(primitive: Any, a: ShapedArray, b: ShapedArray) -> None:
    if b.ndim != a.ndim or b.shape[:-1] != a.shape[:-1]:
        raise ShapeError(
            f"{primitive.name}: the right side must have as many rows as the matrix, and its "
            f"batch; got {a!r} and {b!r}"
        )


def _matmul(x: Any, y: Any) -> Any:
    """The products of the matrices of `x` and `y`."""
    n = x.ndim
    batch = tuple(range(n - 2))
    return dot_general(x, y, ((n - 1,), (n - 2,)), (batch, batch), ("HIGHEST", "HIGHEST"))


def _transpose(x: Any) -> Any:
    n = x.ndim
    return permute_dims(x, (*range(n - 2), n - 1, n - 2))


def _conj(x: Any) -> Any:
    return conj(x) if is_complex(x.dtype) else x


def _adjoint(x: Any) -> Any:
    return _conj(_transpose(x))


def _hermitian(x: Any) -> Any:
    return mul(add(x, _adjoint(x)), literal(0.5, x.dtype))


def _real(x: Any) -> Any:
    return real(x) if is_complex(x.dtype) else x


def _cast(x: Any, like: Any) -> Any:
    """The real `x` in the dtype of `like`."""
    return x if x.dtype == like.dtype else convert_element_type(x, like.dtype)


def _places(shape: tuple[int, ...], relation: Callable[[Any, Any], Any]) -> Any:
    """Where `relation(row, column)` holds in matrices of `shape`."""
    n = len(shape)
    rows, columns = [broadcasted_iota(np.int32, shape, axis) for axis in (n - 2, n - 1)]
    return relation(rows, columns)


def _strict(relation: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return gt if relation is ge else lt


def _wide(x: Any, shape: tuple[int, ...], drop: int) -> Any:
    """`x` repeated to `shape`, which has one more dimension, `drop` before its end."""
    n = len(shape)
    return broadcast_in_dim(x, shape, tuple([i for i in range(n) if i != n - drop]))


def _squeezed(x: Any) -> Any:
    return reduce_sum(x, (x.ndim - 1,))


def _columns(x: Any, factor: Any) -> Any:
    """`x` with its columns multiplied by `factor`."""
    return mul(x, _wide(factor, x.shape, drop=2))


def _diagonal(x: Any) -> Any:
    return reduce_sum(select(_places(x.shape, eq), x, literal(0, x.dtype)), (x.ndim - 1,))


def _diagonal_matrix(x: Any) -> Any:
    shape = (*x.shape, x.shape[-1])
    return select(_places(shape, eq), _wide(x, shape, drop=1), literal(0, x.dtype))


def _inverse(x: Any, scale: Any) -> Any:
    """1 / x, and 0 where `x` is nothing beside the largest of `scale` along its last axis."""
    largest = reduce_max(abs(scale), (scale.ndim - 1,))
    small = mul(largest, literal(8.0 * float(np.finfo(x.dtype).eps), x.dtype))
    small = broadcast_in_dim(small, x.shape, tuple(range(largest.ndim)))
    nothing = le(abs(x), small)
    return select(
        nothing,
        literal(0, x.dtype),
        div(literal(1, x.dtype), select(nothing, literal(1, x.dtype), x)),
    )


def _inverse_gaps(x: Any, y: Any) -> Any:
    """1 / (x_j - y_i) in row i and column j; 0 where the two are as good as equal."""
    shape = (*x.shape, x.shape[-1])
    return _inverse(sub(_wide(x, shape, drop=2), _wide(y, shape, drop=1)), x)


def _products_of_others(s: Any) -> Any:
    """The product of all s but those at i and at j, in row i and column j; 0 for i = j."""
    shape = (*s.shape[:-1], *s.shape[-1:] * 3)
    n = len(shape)
    i, j, k = [broadcasted_iota(np.int32, shape, axis) for axis in range(n - 3, n)]
    wide = broadcast_in_dim(s, shape, (*range(n - 3), n - 1))
    one = literal(1, s.dtype)
    product = reduce_prod(select(eq(i, k), one, select(eq(j, k), one, wide)), (n - 1,))
    return select(_places(product.shape, eq), literal(0, s.dtype), product)


def triangular_solve(
    a: Any,
    b: Any,
    lower: bool = True,
    transposed: bool = False,
    conjugated: bool = False,
    unit_diagonal: bool = False,
) -> Any:
    """The x with a @ x == b, where one triangle of `a` counts, the lower or the upper.

    With `transposed` it is that of the transpose of `a`, with `conjugated` that of the
    conjugate, and with `unit_diagonal` the diagonal counts as ones.
    """
    return TriangularSolve(lower, transposed, conjugated, unit_diagonal)(a, b)


def solve(a: Any, b: Any) -> Any:
    """The x with a @ x == b, for square matrices `a`, and matrices `b` of as many rows."""
    return Solve()(a, b)


def cholesky(x: Any) -> Any:
    """The lower triangular l with l @ l.H the Hermitian part of `x`.

    It is nan where that is not positive definite.
    """
    return Cholesky()(x)


def eigh(x: Any) -> tuple[Any, Any]:
    """The eigenvalues, ascending, and eigenvectors, as columns, of the Hermitian part of `x`."""
    values, vectors = Eigh()(x)
    return values, vectors


def svd(x: Any) -> tuple[Any, Any, Any]:
    """The u, s, vh with `x` == (u * s) @ vh, with as many columns of u as the smaller dimension.

    The singular values s descend.
    """
    u, s, vh = Svd()(x)
    return u, s, vh


def det(x: Any) -> Any:
    """The determinant, whose derivative is right for singular matrices too."""
    return Det()(x)


def slogdet(x: Any) -> tuple[Any, Any]:
    """The sign of the determinant, and the logarithm of its absolute value."""
    sign, size = Slogdet()(x)
    return sign, size
