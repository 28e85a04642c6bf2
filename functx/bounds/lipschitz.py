"""`lipschitz`: a bound of how fast a function varies over a box of arguments.

An example of a transform whose values are triples: the bounds of each value, and its Lipschitz constant.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from functx import ops
from functx.bounds.crown import is_affine, program_of, slope_bounds
from functx.bounds.interval import (
    Flags,
    Interval,
    Pair,
    bounds_of,
    flat,
    interval,
    pairs,
    read_box,
    results,
)
from functx.bounds.monotonicity import (
    LOCALLY_CONSTANT,
    NONEXPANSIVE,
    SMOOTH,
    signs,
)
from functx.core.errors import ValueRangeError
from functx.core.primitive import Primitive
from functx.core.program import Equation, Program
from functx.core.rewriting import Rewrite, apply, bind_equation, interpret
from functx.core.tracer import aval_of
from functx.core.tracing import trace_closed
from functx.core.types import is_inexact
from functx.core.typing import Function, PyTree, Value
from functx.numpy import concatenate, linalg, ravel, reshape, stack
from functx.ops.convolution import Convolution
from functx.transforms.argument_names import check_callable, wrap_transform
from functx.transforms.jacobian import jacrev
from functx.transforms.jvp import vjp

INFINITY = float("inf")


def lipschitz(f: Function, ord: float = 2, *, method: str = "product") -> Function:
    """The function from boxes of arguments to a Lipschitz constant of a continuous `f` in them.

    It takes arguments as `interval` does, perhaps between -inf and inf, and returns a number `c`: the
    results of `f` for two points of the box, all in one vector, are at most `c` times as far apart as
    the points. `ord` is 2, for the Euclidean norm, or inf, for the largest element.

    By "product", the constants of the equations are multiplied: singular values of the matrices of
    products, and the greatest slope of other functions between their bounds. By "jacobian", the norm
    of the bounds of the Jacobian is taken, which is tighter in small boxes. Where `f` jumps, no number
    bounds it; jumps are not noticed.

    >>> import functx, numpy
    >>> from functx.bounds import Interval, lipschitz
    >>> a = numpy.array([[3.0, 0.0], [0.0, 4.0]])
    >>> everywhere = Interval(numpy.full(2, -numpy.inf), numpy.full(2, numpy.inf))
    >>> round(float(lipschitz(lambda x: functx.numpy.tanh(a @ x))(everywhere)), 4)
    4.0
    """
    check_callable(f, "lipschitz")
    if ord not in (2, INFINITY) or method not in ("product", "jacobian"):
        raise ValueRangeError(
            'lipschitz: ord must be 2 or inf, and method "product" or "jacobian"; got '
            f"{ord!r} and {method!r}"
        )

    def wrapper(*args: PyTree, **kwargs: PyTree) -> Value:
        box = read_box("lipschitz", f, args, kwargs)
        return apply(BoundVariation(box.varying, ord, method), box.program, box.operands)[0]

    return wrap_transform(wrapper, f, "lipschitz")


class Varying(NamedTuple):
    """The bounds of a value, and its Lipschitz constant as a function of all arguments."""

    lower: Value
    upper: Value
    constant: Value | float

    @property
    def bounds(self) -> Pair:
        """The bounds alone."""
        return self.lower, self.upper


class BoundVariation(Rewrite[Program]):
    """The rewrite to the Lipschitz constant of a program, with inputs as `PropagateIntervals`."""

    varying: Flags
    ord: float
    method: str

    def __call__(self, program: Program) -> Program:
        def body(*args: Value) -> list[Value]:
            values = [
                Varying(*pair, float(on))
                for pair, on in zip(pairs(args, self.varying), self.varying, strict=True)
            ]
            if self.method == "jacobian":
                return [self.of_jacobian(lambda *xs: apply(None, program, xs), values)]
            outs = interpret(program, values, self.step, lambda c: Varying(c, c, 0.0))
            return [ops.add(0.0, self.together([x.constant for x in outs]))]

        avals = flat([(a, a) for a in program.in_avals], self.varying)
        return trace_closed(body, avals, name=f"lipschitz_{program.name}")

    def together(self, constants: Sequence[Value | float]) -> Value:
        """The constant of several values as one vector."""
        return linalg.norm(stack(constants), self.ord)

    def step(self, eqn: Equation, *operands: Varying) -> Sequence[Varying]:
        """The outputs of an equation."""
        if all([x.lower is x.upper for x in operands]):
            outs = bind_equation(eqn, *[x.lower for x in operands])
            return [Varying(x, x, 0.0) for x in outs]
        return self.apply(eqn.primitive, *operands)

    def apply(self, primitive: Primitive, *operands: Varying) -> Sequence[Varying]:
        """The outputs of `primitive`."""
        if isinstance(primitive, ops.Mul) and operands[0] is operands[1]:
            return self.apply(ops.Square(), operands[0])
        known = type(primitive) in SMOOTH or isinstance(primitive, (*NONEXPANSIVE, ops.Mul))
        if not known and not is_affine(primitive, operands):
            program = program_of(primitive, [aval_of(x.lower) for x in operands])
            if program is not None:
                return interpret(program, operands, self.step, lambda c: Varying(c, c, 0.0))
        bounds = bounds_of(primitive, *[x.bounds for x in operands])
        has_floats = any([is_inexact(low.dtype) for low, _ in bounds])
        constant = self.constant_of(primitive, operands) if has_floats else 0.0
        return [Varying(*pair, constant) for pair in bounds]

    def constant_of(self, primitive: Primitive, operands: Sequence[Varying]) -> Value | float:
        """The Lipschitz constant of the outputs of `primitive`."""
        varying = [x for x in operands if is_varying(x)]
        if not varying or isinstance(primitive, LOCALLY_CONSTANT):
            return 0.0
        if isinstance(primitive, NONEXPANSIVE):
            return self.together([x.constant for x in varying])
        if type(primitive) in SMOOTH:
            slope = slope_bounds(primitive, *operands[0].bounds)
            return ops.mul(largest(*slope), operands[0].constant)
        if isinstance(primitive, ops.Mul) and len(varying) == 2:
            x, y = operands
            return ops.add(
                ops.mul(largest(*y.bounds), x.constant), ops.mul(largest(*x.bounds), y.constant)
            )
        if is_affine(primitive, operands) and has_known_signs(primitive):
            terms = [ops.mul(self.norm(primitive, operands, x), x.constant) for x in varying]
            return sum(terms[1:], terms[0])
        fun = lambda *xs: results(primitive, xs)  # noqa: E731
        return self.of_jacobian(fun, operands)

    def norm(self, primitive: Primitive, operands: Sequence[Varying], x: Varying) -> Value:
        """The norm of an affine `primitive` as a function of the operand `x`."""

        def sizes(v: Value) -> list[Value]:
            return results(primitive, [v if y is x else size_of(y) for y in operands])

        zeros = ops.zeros_like(x.lower)
        # The entries of the matrix have one sign, so that those of its sums are sums of their sizes.
        outs, pull = vjp(sizes, zeros)
        by_rows = [
            ops.abs(ops.sub(a, b)) for a, b in zip(sizes(ops.add(zeros, 1.0)), outs, strict=True)
        ]
        row_sum = largest(*by_rows)
        if self.ord != 2:
            return row_sum
        column_sum = largest(*pull([ops.full_like(v, 1.0) for v in outs]))
        bound = ops.sqrt(ops.mul(row_sum, column_sum))
        if isinstance(primitive, ops.DotGeneral):
            side = 1 - [y is x for y in operands].index(True)
            matrices = matricize(primitive, operands[side].lower, side)
            bound = ops.min(bound, largest(ops.svd(matrices)[1]))
        return bound

    def of_jacobian(self, fun: Function, operands: Sequence[Varying]) -> Value:
        """The constant of `fun`, a function of the operands, by bounds of its Jacobian."""
        matrices = jacobian_sizes(fun, operands)
        varying = [x for x in operands if is_varying(x)]
        if self.method == "jacobian":
            return self.matrix_norm(concatenate(matrices, axis=1))
        both = zip(matrices, varying, strict=True)
        terms = [ops.mul(self.matrix_norm(m), x.constant) for m, x in both]
        return sum(terms[1:], terms[0])

    def matrix_norm(self, matrix: Value) -> Value:
        """The operator norm of a matrix of elements that are at least zero."""
        total = ops.reduce_max(ops.reduce_sum(matrix, (1,)), (0,))
        if self.ord != 2:
            return total
        is_finite = ops.is_finite(total)
        matrix = ops.select(is_finite, matrix, ops.zeros_like(matrix))
        return ops.select(is_finite, linalg.norm(matrix, 2), INFINITY)


def jacobian_sizes(fun: Function, operands: Sequence[Varying]) -> list[Value]:
    """For each operand that varies, the greatest sizes of the entries of the Jacobian, as a matrix."""
    varying = [x for x in operands if is_varying(x)]

    def of_varying(*values: Value) -> Value:
        given = iter(values)
        outs = fun(*[next(given) if is_varying(x) else x.lower for x in operands])
        return concatenate([ravel(v) for v in outs if is_inexact(v.dtype)])

    jacobian = jacrev(of_varying, tuple(range(len(varying))))
    bounds = interval(jacobian)(*[Interval(*x.bounds) for x in varying])
    sizes = [ops.max(ops.abs(b.lower), ops.abs(b.upper)) for b in bounds]
    return [reshape(x, (x.shape[0], -1)) for x in sizes]


def is_varying(x: Varying) -> bool:
    """Whether a value is a float that is not known exactly."""
    return x.lower is not x.upper and is_inexact(x.lower.dtype)


def size_of(x: Varying) -> Value:
    """The sizes of a factor that is known exactly, and zero for another operand that varies."""
    if not is_inexact(x.lower.dtype):
        return x.lower
    return ops.zeros_like(x.lower) if is_varying(x) else ops.abs(x.lower)


def has_known_signs(primitive: Primitive) -> bool:
    """Whether the matrix of an affine operation has entries of one sign if its factors do."""
    products = (ops.DotGeneral, Convolution, ops.Mul, ops.Div, ops.Select)
    return isinstance(primitive, products) or signs(primitive, 1) is not None


def largest(*arrays: Value) -> Value:
    """The size of the largest element."""
    values = [ops.reduce_max(ops.abs(x), tuple(range(x.ndim))) for x in arrays]
    return stack(values).max()


def matricize(primitive: ops.DotGeneral, factor: Value, side: int) -> Value:
    """The matrices, one for each batch index, that a product with `factor` multiplies by."""
    contracting, batch = primitive.contracting_dims[side], primitive.batch_dims[side]
    free = [i for i in range(factor.ndim) if i not in (*contracting, *batch)]
    shape = [math.prod([factor.shape[i] for i in dims]) for dims in (batch, contracting, free)]
    return ops.reshape(ops.permute_dims(factor, (*batch, *contracting, *free)), tuple(shape))
