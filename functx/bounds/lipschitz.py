"""`lipschitz`: a bound of how fast a function varies over a box of arguments.

An example of a transform whose values are triples: the bounds of each value, and its Lipschitz constant.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from functx import ops
from functx.bounds.boxes import Box, flat, on_boxes, pairs
from functx.bounds.interval import INFINITY, bounds_of, is_nan
from functx.bounds.monotonicity import LOCALLY_CONSTANT, NONEXPANSIVE, PASSING, SMOOTH
from functx.bounds.operator_norms import (
    Varying,
    affine_norm,
    has_known_signs,
    jacobian_sizes,
    largest,
    matrix_norm,
    total,
)
from functx.bounds.relaxations import is_affine, program_of, slope_bounds
from functx.core.errors import ValueRangeError
from functx.core.primitive import Primitive
from functx.core.program import Equation, Program
from functx.core.program_calls import apply_program
from functx.core.rewriting import Rewrite, apply, bind_equation, interpret
from functx.core.tracer import aval_of
from functx.core.tracing import trace_closed
from functx.core.types import is_inexact
from functx.core.typing import Function, Value
from functx.custom.custom_function import CustomDerivativeCall
from functx.numpy import concatenate, linalg, stack


def lipschitz(f: Function, ord: float = 2, *, method: str = "product") -> Function:
    """The function from boxes of arguments to a Lipschitz constant of a continuous `f` in them.

    It takes arguments as `interval` does, perhaps between -inf and inf, and returns a number `c`: the
    results of `f` for two points of the box, all in one vector, are at most `c` times as far apart as
    the points. `ord` is 2, for the Euclidean norm, or inf, for the largest element.

    By "product", the constants of the equations are multiplied: singular values of the matrices of
    products, and the greatest slope of other functions between their bounds. By "jacobian", the norm
    of the bounds of the Jacobian is taken, which is tighter in small boxes. Where `f` jumps, no number
    bounds it; jumps are not noticed. The values of `f` count, not the derivatives that `custom_vjp`,
    `hook_grad` or `stop_gradient` state for them; only those of operators with kernels are trusted.

    >>> import functx, numpy
    >>> from functx.bounds import Interval, lipschitz
    >>> a = numpy.array([[3.0, 0.0], [0.0, 4.0]])
    >>> everywhere = Interval(numpy.full(2, -numpy.inf), numpy.full(2, numpy.inf))
    >>> round(float(lipschitz(lambda x: functx.numpy.tanh(a @ x))(everywhere)), 4)
    4.0
    """
    if ord not in (2, INFINITY) or method not in ("product", "jacobian"):
        raise ValueRangeError(
            'lipschitz: ord must be 2 or inf, and method "product" or "jacobian"; got '
            f"{ord!r} and {method!r}"
        )

    def compute(box: Box) -> Value:
        return apply(BoundVariation(box.varying, ord, method), box.program, box.operands)[0]

    return on_boxes("lipschitz", f, compute)


class BoundVariation(Rewrite[Program]):
    """The rewrite to the Lipschitz constant of a program, with inputs as `PropagateIntervals`."""

    varying: tuple[bool, ...]
    ord: float
    method: str

    def __call__(self, program: Program) -> Program:
        program = program.rewrite(without_stated_derivative)

        def body(*args: Value) -> list[Value]:
            values = [
                Varying(*pair, float(on))
                for pair, on in zip(pairs(args, self.varying), self.varying, strict=True)
            ]
            if self.method == "jacobian" and any([x.varies for x in values]):
                return [self.of_jacobian(lambda *xs: apply(None, program, xs), values)]
            outs = interpret(program, values, self.step, lambda c: Varying(c, c, 0.0))
            constant = ops.add(0.0, self.together([x.constant for x in outs]))
            # An unbounded slope times the constant 0 says nothing.
            return [ops.select(is_nan(constant), INFINITY, constant)]

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
        if type(primitive) in PASSING:
            return [operands[PASSING[type(primitive)]]]
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
        varying = [x for x in operands if x.varies]
        if not varying or isinstance(primitive, LOCALLY_CONSTANT):
            return 0.0
        if isinstance(primitive, NONEXPANSIVE):
            return self.together([self.repeated(primitive, operands, x) for x in varying])
        if type(primitive) in SMOOTH:
            slope = slope_bounds(primitive, *operands[0].bounds)
            return largest(*slope) * operands[0].constant
        if isinstance(primitive, ops.Mul) and len(varying) == 2:
            x, y = operands
            by_x, by_y = [self.repeated(primitive, operands, v) for v in operands]
            return largest(*y.bounds) * by_x + largest(*x.bounds) * by_y
        if is_affine(primitive, operands) and has_known_signs(primitive):
            # An operand that occurs twice varies once.
            unique = {id(x): x for x in varying}.values()
            norms = [affine_norm(primitive, operands, x, self.ord) for x in unique]
            return total([n * x.constant for n, x in zip(norms, unique, strict=True)])
        fun = lambda *xs: primitive.as_list(primitive(*xs))  # noqa: E731
        return self.of_jacobian(fun, operands)

    def repeated(
        self, primitive: Primitive, operands: Sequence[Varying], x: Varying
    ) -> Value | float:
        """The constant of the operand `x`; of a number, as the array that it is broadcast to."""
        avals = tuple([aval_of(y.lower) for y in operands])
        size = primitive.out_avals(avals)[0].size
        is_number = x.lower.ndim == 0 and self.ord == 2
        return x.constant * float(size) ** 0.5 if is_number and size > 1 else x.constant

    def of_jacobian(self, fun: Function, operands: Sequence[Varying]) -> Value:
        """The constant of `fun`, a function of the operands, by bounds of its Jacobian."""
        matrices = jacobian_sizes(fun, operands)
        if self.method == "jacobian":
            return matrix_norm(concatenate(matrices, axis=1), self.ord)
        varying = [x for x in operands if x.varies]
        both = zip(matrices, varying, strict=True)
        return total([matrix_norm(m, self.ord) * x.constant for m, x in both])


def without_stated_derivative(eqn: Equation, *args: Value) -> Any:
    """The value of an equation whose derivative somebody states, by equations that have their own.

    A statement may differ from the slope of the value: a clipped or stopped gradient does.
    """
    primitive = eqn.primitive
    if type(primitive) in PASSING:
        return args[PASSING[type(primitive)]]
    if isinstance(primitive, CustomDerivativeCall):
        primal = primitive.primal.rewrite(without_stated_derivative)
        return tuple(apply_program(primal, args))
    return NotImplemented
