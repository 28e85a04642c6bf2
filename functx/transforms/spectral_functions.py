"""Functions of the eigenvalues of a Hermitian matrix, with derivatives at equal eigenvalues.

With the eigenvalues w and eigenvectors v of a matrix a, f(a) = v f(w) v^H. Its derivatives are sums
over divided differences: f[x] = f(x), f[x, y] = (f(x) - f(y)) / (x - y), f[x, y, z] = (f[x, y] -
f[y, z]) / (x - z), which are derivatives of f where the points are equal. Along e, with
E = v^H e v, that of f(a) is v (f[w_i, w_j] E_ij) v^H.
"""

from __future__ import annotations

from functools import reduce
from math import nan
from typing import Any, NamedTuple

import numpy as np

from functx import ops
from functx.core.checking import check_operands
from functx.core.errors import DTypeError
from functx.core.primitive import Primitive, is_linear_input
from functx.core.program import Program
from functx.core.rewriting import Rewrite, cached_rewrite
from functx.core.samples import Rounding, f64, sample
from functx.core.tracer import aval_of, current_builder
from functx.core.tracing import trace
from functx.core.types import ShapedArray, is_complex, real_dtype
from functx.core.typing import Avals, Cotangents, Dim, Dims, Tangent, Tangents, Value, Values
from functx.ops.operands import batch_size, cast_like, literal
from functx.transforms.batching import Batch
from functx.transforms.decompose import builtin_decomposition, decompose_missing_rules
from functx.transforms.forward_mode import jvp_program


class ElementwiseDerivative(Rewrite[Program]):
    """The rewrite of an elementwise program to its derivative with respect to one input."""

    place: int = 0

    def __call__(self, program: Program) -> Program:
        def body(*args: Value) -> list[Value]:
            tangents = [
                ops.constant_like(x, 1) if i == self.place else None for i, x in enumerate(args)
            ]
            ((out, t, _),) = jvp_program(program, args, tangents)
            return [ops.zeros_like(out) if t is None else t]

        return trace(body, program.in_avals, name=f"slope_of_{program.name}")[0]


def elementwise_derivative(program: Program, place: int = 0) -> Program:
    """The derivative of an elementwise program in the input at index `place`."""
    return cached_rewrite(ElementwiseDerivative(place), program)


def inline_single_output(program: Program, args: Values) -> Value:
    """The single output of `program` on `args`, inlined into the current trace."""
    return current_builder.require().inline(program, args)[0]


def _example(parameters: int = 0) -> Program:
    def body(w: Value, *scale: Value) -> list[Value]:
        return [ops.exp(ops.mul(w, *scale) if scale else w)]

    return trace(body, [f64[3], f64[()]][: 1 + parameters], name="example")[0]


class SpectralPrimitive(ops.MatrixFunction, abstract=True):
    """A function f of the eigenvalues of a Hermitian matrix, the first operand.

    `program` computes f elementwise, from the eigenvalues and from parameters, which have the shape
    of the batch and are the last operands. With `rows`, the matrix is [[0, x], [x^H, 0]] with a
    block x of that many rows, and only x is read; its eigenvalues are the singular values of x,
    their negatives, and zeros.
    """

    program: Program
    rows: int = 0

    def check(self, *operands: ShapedArray, parameters: Avals = ()) -> None:
        super().check(*operands)
        eigenvalues, dtype = self.program.in_avals[0], real_dtype(operands[0].dtype)
        if eigenvalues.dtype != dtype:
            raise DTypeError(
                f"{self.name}: the program must take eigenvalues of {dtype}, those of the operand; "
                f"got one for {eigenvalues!r} and {operands[0]!r}",
                fix="Make the program for eigenvalues of this dtype, or convert with astype.",
            )
        taken = eigenvalues.update(shape=operands[0].shape[:-1])
        check_operands(self, [taken, *parameters], self.program.in_avals)

    def hermitian_direction(self, e: Value) -> Value:
        """The part of a direction that the derivative depends on."""
        return hermitian_dilation(upper_block(e, self.rows)) if self.rows else ops.hermitian_part(e)

    def spectrum(self, a: Value) -> tuple[Any, Any]:
        """The eigenvalues and eigenvectors of `a`."""
        if not self.rows:
            w, v = ops.Eigh()(a)
            return w, v
        m, last = self.rows, a.ndim - 1
        n = a.shape[-1] - m
        u, s, vh = ops.Svd(m != n)(upper_block(a, m))
        v, k = ops.adjoint(vh), s.shape[-1]
        root = literal(0.5**0.5, a.dtype)
        one, other = [ops.mul(slice_columns(x, 0, k), root) for x in (u, v)]
        sides = [ops.concatenate(pair, last - 1) for pair in ((one, other), (one, ops.neg(other)))]
        values = [s, ops.neg(s)]
        if m != n:
            # Vectors without a singular value are eigenvectors for 0.
            longer, low, high = (u, 0, n) if m > n else (v, m, 0)
            config = [(0, 0, 0)] * (last - 1) + [(low, high, 0), (0, 0, 0)]
            rest = slice_columns(longer, k, None)
            sides.append(ops.pad(rest, literal(0, a.dtype), config))
            values.append(ops.zeros_like(aval_of(s).update(shape=(*s.shape[:-1], rest.shape[-1]))))
        return ops.concatenate(values, last - 1), ops.concatenate(sides, last)

    def parameter_tangents(self, args: Values, tangents: Tangents) -> list[Value]:
        """The terms of the tangent that come from those of the parameters."""
        first = len(args) - len(self.program.inputs)
        terms = []
        for place in range(1, len(self.program.inputs)):
            t = tangents[first + place]
            if t is not None:
                part = self.with_program(elementwise_derivative(self.program, place))(*args)
                wide = ops.broadcast_leading(t, part.shape)
                terms.append(ops.mul(part, cast_like(wide, part)))
        return terms

    def with_program(self, program: Program) -> Primitive:
        """The same operation for another function."""
        raise NotImplementedError

    def batch(self, args: Values, dims: Dims) -> tuple[Value, Dim]:
        size = batch_size(args, dims)
        fields = Batch(size, (0,) * len(self.program.inputs), (0,))
        batched = self.with_program(cached_rewrite(fields, self.program))
        return batched(*ops.batch_dims_at(args, dims)), 0


class SpectralFunction(SpectralPrimitive):
    """f(a) of Hermitian matrices a, or with `order` n one term of its n-th derivative.

    The operands are a, directions e_1 ... e_n, and the parameters of f. In the basis of the
    eigenvectors, row i and column j of the result is the sum over k, l ... of
    f[w_i, w_k, w_l ... w_j] (e_1)_ik (e_2)_kl ...; the n-th derivative is the sum over all orders
    of the directions. `order` is at most 2: higher derivatives are nan where eigenvalues are equal.
    """

    order: int = 0
    rounding = Rounding(is_normwise=True)
    samples = (
        sample(
            f64[3, 3],
            program=_example(),
            values={0: ops.positive_definite((3, 3))},
            dtypes=("f64",),
        ),
        sample(
            f64[3, 3],
            f64[3, 3],
            f64[()],
            program=_example(1),
            order=1,
            values={0: np.diag([1.0, 2.0, 3.0])},
            dtypes=("f64",),
        ),
        sample(
            f64[3, 3],
            f64[3, 3],
            f64[3, 3],
            program=_example(),
            order=2,
            values={0: np.diag([1.0, 2.0, 3.0])},
            dtypes=("f64",),
        ),
    )

    def abstract_eval(self, a: ShapedArray, *others: ShapedArray) -> ShapedArray:
        directions, parameters = others[: self.order], others[self.order :]
        self.check(a, *directions, parameters=parameters)
        check_operands(self, directions, [a] * self.order)
        return a

    def with_program(self, program: Program, order: int | None = None) -> Primitive:
        return SpectralFunction(program, self.rows, self.order if order is None else order)

    def jvp(self, primals: Values, tangents: Tangents) -> tuple[Value, Tangent]:
        if self.order == 2:
            return self.jvp_by_decomposition(primals, tangents)
        terms = self.parameter_tangents(primals, tangents)
        a, rest = primals[0], primals[1:]
        if tangents[0] is not None:
            more, e = (
                self.with_program(self.program, self.order + 1),
                self.hermitian_direction(tangents[0]),
            )
            terms += [more(a, *rest[:k], e, *rest[k:]) for k in range(self.order + 1)]
        for k in range(self.order):
            t = tangents[1 + k]
            if t is not None:
                terms.append(self(a, *rest[:k], t, *rest[k + 1 :]))
        return self(*primals), reduce(ops.add, terms)

    def jvp_by_decomposition(self, primals: Values, tangents: Tangents) -> tuple[Value, Tangent]:
        program = decompose_missing_rules(
            builtin_decomposition(self, tuple([aval_of(x) for x in primals])), "jvp"
        )
        ((out, t, _),) = jvp_program(program, primals, tangents)
        return out, t

    def transpose(self, ct: Value, a: Value, *others: Value) -> Cotangents:
        (k,) = [i for i, x in enumerate(others) if is_linear_input(x)]
        # The trace of a product is invariant under cyclic permutation.
        given = [*others[k + 1 : self.order], ops.matrix_transpose(ct), *others[:k]]
        found = ops.matrix_transpose(self(a, *given, *others[self.order :]))
        return [None, *[found if i == k else None for i in range(len(others))]]

    def decompose(self, a: Value, *others: Value) -> Value:
        w, v = self.spectrum(a)
        args = w, *others[self.order :]
        f = inline_single_output(self.program, args)
        if self.order == 0:
            return ops.matmul_highest(ops.scale_columns(v, cast_like(f, v)), ops.adjoint(v))
        programs = [elementwise_derivative(self.program)]
        for _ in range(self.order):
            programs.append(elementwise_derivative(programs[-1]))
        derivatives = [inline_single_output(p, args) for p in programs]
        differences = DividedDifferences.of(w, f, derivatives)
        turned = [
            ops.matmul_highest(ops.adjoint(v), ops.matmul_highest(e, v))
            for e in others[: self.order]
        ]
        found = (
            differences.first_order(*turned)
            if self.order == 1
            else differences.second_order(*turned)
        )
        return ops.matmul_highest(v, ops.matmul_highest(found, ops.adjoint(v)))


class SpectralTrace(SpectralPrimitive):
    """The sum of f over the eigenvalues of Hermitian matrices."""

    samples = (
        sample(
            f64[3, 3],
            program=_example(),
            values={0: ops.positive_definite((3, 3))},
            dtypes=("f64",),
        ),
        sample(f64[3, 3], f64[()], program=_example(1), values={0: np.eye(3)}, dtypes=("f64",)),
    )

    def abstract_eval(self, a: ShapedArray, *parameters: ShapedArray) -> ShapedArray:
        self.check(a, parameters=parameters)
        return self.program.out_avals[0].update(shape=a.shape[:-2])

    def with_program(self, program: Program) -> Primitive:
        return SpectralTrace(program, self.rows)

    def jvp(self, primals: Values, tangents: Tangents) -> tuple[Value, Tangent]:
        out, terms = self(*primals), self.parameter_tangents(primals, tangents)
        if tangents[0] is not None:
            function = SpectralFunction(elementwise_derivative(self.program), self.rows)(*primals)
            products = ops.mul(
                function, ops.matrix_transpose(self.hermitian_direction(tangents[0]))
            )
            total = ops.reduce_sum(products, (products.ndim - 2, products.ndim - 1))
            terms.append(total if is_complex(out.dtype) else ops.real_if_complex(total))
        return out, reduce(ops.add, terms)

    def decompose(self, a: Value, *parameters: Value) -> Value:
        f = inline_single_output(self.program, [self.spectrum(a)[0], *parameters])
        return ops.reduce_sum(f, (f.ndim - 1,))


class DividedDifferences(NamedTuple):
    """Divided differences of a function at all pairs of some points.

    They are quotients of differences where cancellation leaves these accurate. For close points,
    where rounding errors alone could explain the difference of the values, they are means of
    derivatives: so no length scale of the function is needed. They are nan where points are equal
    up to rounding but values differ.
    """

    points: Value
    gaps: Value
    quotients: Value
    derivatives: Values
    """f', f'' and, for second differences, f''' at the points."""
    tied: Value
    """The mask of pairs of points that are equal within rounding error of the largest."""
    unknown: Value
    """The mask of pairs of points that are equal though the values differ."""
    errors: Value
    """The errors of the quotients, in units of rounding."""

    @staticmethod
    def of(w: Value, f: Value, derivatives: Values) -> DividedDifferences:
        """The divided differences of a function at `w`, from its values `f` and its derivatives."""
        slopes, curvatures, *thirds = derivatives
        gaps, changes = pairwise_differences(w), pairwise_differences(f)
        tied = ops.MaskedReciprocal.from_gaps(w, w).undefined
        wide = cast_like(gaps, f)
        # The integral of f' from w_i to w_j over the gap, if f' were cubic; with f''', if it were quintic.
        bend = ops.mul(pairwise_differences(curvatures), 1 / 10 if thirds else 1 / 12)
        for third in thirds:
            turn = ops.mul(wide, ops.mul(pairwise_sums(third), 1 / 120))
            # It may be infinite where f'' is not.
            bend = ops.sub(bend, ops.select(tied, literal(0, turn.dtype), turn))
        bend = ops.select(ops.eq(gaps, 0.0), literal(0, bend.dtype), ops.mul(wide, bend))
        means = ops.sub(ops.mul(pairwise_sums(slopes), 0.5), bend)
        noise = pairwise_sums(ops.add(ops.abs(f), ops.abs(ops.mul(cast_like(w, f), slopes))))
        close = is_close(changes, gaps, means, noise)
        apart = ops.select(close, literal(1, gaps.dtype), gaps)
        quotients = ops.div(changes, cast_like(apart, changes))
        unknown = ops.bitwise_and(tied, ops.bitwise_not(close))
        quotients = ops.select(unknown, literal(nan, f.dtype), ops.select(close, means, quotients))
        errors = ops.div(ops.select(close, literal(0, noise.dtype), noise), ops.abs(apart))
        errors = ops.add(errors, ops.abs(quotients))
        return DividedDifferences(w, gaps, quotients, derivatives, tied, unknown, errors)

    def first_order(self, e: Value) -> Value:
        """f[w_i, w_j] e_ij."""
        return ops.mul(cast_like(self.quotients, e), e)

    def second_order(self, e: Value, g: Value) -> Value:
        """The sum over k of f[w_i, w_k, w_j] e_ik g_kj."""
        # (f[w_k, w_j] - f[w_i, w_k]) / (w_j - w_i) where these differ; else the mean of
        # f[w_i, w_i, w_k] and f[w_j, w_j, w_k], less their next derivatives times the gap / 6.
        double, errors = self.at_double_points()
        triple = self.at_triple_points(double, errors)

        def products(differences: Value) -> tuple[Value, Value]:
            wide = cast_like(differences, e)
            left = ops.matmul_highest(ops.mul(wide, e), g)
            return left, ops.matmul_highest(e, ops.mul(ops.matrix_transpose(wide), g))

        changes = ops.sub(*reversed(products(self.quotients)))
        bend = self.times_gaps(ops.mul(ops.sub(*reversed(products(triple))), 1 / 6))
        means = ops.sub(ops.mul(ops.add(*products(double)), 0.5), bend)
        noise = products_of_norms(ops.mul(self.errors, ops.abs(e)), ops.abs(g))
        noise = ops.add(noise, products_of_norms(ops.abs(e), ops.mul(self.errors, ops.abs(g))))
        return self.divide_by_gaps(changes, means, noise)[0]

    def at_double_points(self) -> tuple[Value, Value]:
        """f[w_i, w_i, w_k] in row i and column k, and its errors in units of rounding."""
        slopes, curvatures, thirds = self.derivatives
        # The integral of (1 - t) f''(w_i + t (w_k - w_i)) for t from 0 to 1, if f'' were cubic.
        bend = self.times_gaps(self.weighted_sums(thirds, 1 / 20, -1 / 30))
        means = ops.add(self.weighted_sums(curvatures, 7 / 20, 3 / 20), bend)
        means = ops.select(self.unknown, literal(nan, means.dtype), means)
        bent = ops.mul(cast_like(self.points, curvatures), curvatures)
        noise = ops.add(self.errors, pairwise_sums(ops.add(ops.abs(slopes), ops.abs(bent))))
        changes = ops.sub(self.quotients, ops.broadcast_rows(slopes, self.gaps.shape))
        return self.divide_by_gaps(changes, means, noise)

    def at_triple_points(self, double: Value, errors: Value) -> Value:
        """f[w_i, w_i, w_i, w_k] in row i and column k, from those at double points and their errors."""
        _, curvatures, thirds = self.derivatives
        half = ops.broadcast_rows(ops.mul(curvatures, 0.5), self.gaps.shape)
        means = self.weighted_sums(thirds, 1 / 8, 1 / 24)
        noise = ops.add(errors, ops.abs(half))
        return self.divide_by_gaps(ops.sub(double, half), means, noise)[0]

    def weighted_sums(self, x: Value, first: float, second: float) -> Value:
        """`first` times x_i plus `second` times x_k, in row i and column k."""
        shape = self.gaps.shape
        return ops.add(
            ops.mul(ops.broadcast_rows(x, shape), first),
            ops.mul(ops.broadcast_columns(x, shape), second),
        )

    def times_gaps(self, x: Value) -> Value:
        """`x` times the gaps, and zero where points are tied, where `x` may be infinite."""
        product = ops.mul(cast_like(self.gaps, x), x)
        return ops.select(self.tied, literal(0, product.dtype), product)

    def divide_by_gaps(self, changes: Value, means: Value, noise: Value) -> tuple[Value, Value]:
        """`changes` over the gaps, or `means` where both agree within rounding errors; and the errors."""
        close = ops.bitwise_or(self.tied, is_close(changes, self.gaps, means, noise))
        apart = ops.select(close, literal(1, self.gaps.dtype), self.gaps)
        quotients = ops.select(close, means, ops.div(changes, cast_like(apart, changes)))
        errors = ops.div(ops.select(close, literal(0, noise.dtype), noise), ops.abs(apart))
        return quotients, ops.add(errors, ops.abs(quotients))


def is_close(changes: Value, gaps: Value, means: Value, noise: Value) -> Value:
    """Where `changes` and `means` times `gaps` differ by a few units of rounding of `noise`."""
    zero = literal(0, gaps.dtype)
    apart = ops.abs(ops.sub(changes, ops.mul(cast_like(gaps, changes), means)))
    close = ops.le(apart, ops.mul(noise, 8 * float(np.finfo(gaps.dtype).eps)))
    # Equal points are close even if the mean is infinite.
    equal = ops.bitwise_and(ops.eq(gaps, zero), ops.eq(changes, literal(0, changes.dtype)))
    return ops.bitwise_or(close, equal)


def pairwise_differences(x: Value) -> Value:
    """x_j - x_i, in row i and column j."""
    shape = (*x.shape, x.shape[-1])
    return ops.sub(ops.broadcast_columns(x, shape), ops.broadcast_rows(x, shape))


def pairwise_sums(x: Value) -> Value:
    """x_i + x_j, in row i and column j."""
    shape = (*x.shape, x.shape[-1])
    return ops.add(ops.broadcast_columns(x, shape), ops.broadcast_rows(x, shape))


def products_of_norms(x: Value, y: Value) -> Value:
    """The norm of row i of `x` times that of column j of `y`, in row i and column j."""
    by_row = ops.sqrt(ops.reduce_sum(ops.mul(x, x), (x.ndim - 1,)))
    by_column = ops.sqrt(ops.reduce_sum(ops.mul(y, y), (y.ndim - 2,)))
    return ops.mul(ops.broadcast_rows(by_row, x.shape), ops.broadcast_columns(by_column, y.shape))


def slice_columns(x: Value, first: int, last: int | None) -> Value:
    """The columns from `first` to before `last` of matrices."""
    return ops.slice_in_dim(x, first, last, axis=x.ndim - 1)


def upper_block(a: Value, m: int) -> Value:
    """The block x, of `m` rows, of the matrix [[0, x], [x^H, 0]]."""
    return ops.slice_in_dim(slice_columns(a, m, None), 0, m, axis=a.ndim - 2)


def hermitian_dilation(x: Value) -> Value:
    """The Hermitian dilation [[0, x], [x^H, 0]] of x."""
    *batch, m, n = x.shape
    above, below = [ops.zeros_like(aval_of(x).update(shape=(*batch, k, k))) for k in (m, n)]
    sides = (
        ops.concatenate([above, x], x.ndim - 1),
        ops.concatenate([ops.adjoint(x), below], x.ndim - 1),
    )
    return ops.concatenate(sides, x.ndim - 2)
