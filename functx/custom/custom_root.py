"""`custom_root`: roots of functions, differentiated by the implicit function theorem."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from functx import ops
from functx.core import tree
from functx.core.checking import check_operands
from functx.core.errors import LinearityError, MissingRuleError
from functx.core.primitive import Primitive
from functx.core.primitive_families import HasDCE
from functx.core.program import Program
from functx.core.rewriting import cached_rewrite
from functx.core.samples import LazySamples, f64, sample
from functx.core.tracebacks import api_boundary
from functx.core.tracer import current_builder
from functx.core.tracing import trace_closed
from functx.core.types import ShapedArray
from functx.core.typing import Cotangents, Dims, Flags, Function, PyTree, Tangents, Value, Values
from functx.custom.custom_function import has_jax_tracers
from functx.custom.custom_linear_solve import (
    CustomLinearSolve,
    PartialDerivative,
    SolutionTree,
    batch_solver,
    consts_jvp,
    instantiate_cotangents,
    negated_consts_vjp,
)
from functx.custom.rule_tracing import Captures
from functx.transforms.control.body_tracing import (
    body_name,
    cast_outputs,
    check_callables,
)
from functx.transforms.linear_transpose import LinearTranspose
from functx.transforms.tracing_api import TracedFunction, trace_function

if TYPE_CHECKING:
    from functx.core.typing import IRValue
    from functx.lowering.stablehlo_emitter import LoweringContext


@api_boundary
def custom_root(
    f: Function,
    initial_guess: PyTree,
    solve: Callable[[Function, PyTree], PyTree],
    tangent_solve: Callable[[Function, PyTree], PyTree],
    has_aux: bool = False,
) -> PyTree:
    """The `x` with `f(x) == 0`, computed by `solve(f, initial_guess)`.

    `f` maps pytrees like the guess to such pytrees. Derivatives are those of the root in all
    values that `f` closes over, of any order, in both modes; the steps of `solve` are not
    differentiated, and the derivative in the guess is zero. `tangent_solve(g, y)` returns the
    `x` with `g(x) == y`, where `g` is the derivative of `f` at the root. Reverse mode transposes
    it; if it cannot be transposed, since it has a loop of unknown length, it is run on the
    transpose of `g`. With `has_aux`, `solve` returns `(x, aux)` and so does this function; aux
    has no derivative.

    Raises TreeError, ShapeError and DTypeError if a function returns another structure or types
    than the guess.

    >>> import functx
    >>> def root(a):
    ...     newton = lambda f, x: functx.lax.fori_loop(0, 20, lambda _, x: (x + a / x) / 2, x)
    ...     divide = lambda g, y: y / g(1.0)
    ...     return functx.lax.custom_root(lambda x: x * x - a, a, newton, divide)
    >>> float(root(4.0)), float(functx.grad(root)(4.0))
    (2.0, 0.25)
    """
    check_callables("custom_root", f=f, solve=solve, tangent_solve=tangent_solve)

    def solve_tangents(g: Function, y: PyTree, _: PyTree) -> PyTree:
        return tangent_solve(g, y)

    return implicit_root("custom_root", f, initial_guess, solve, solve_tangents, has_aux)


def implicit_root(
    kind: str,
    f: Function,
    initial_guess: PyTree,
    solve: Callable[[Function, PyTree], PyTree],
    tangent_solve: Callable[[Function, PyTree, PyTree], PyTree],
    has_aux: bool = False,
    factorize: Callable[[Function, PyTree], PyTree] | None = None,
) -> PyTree:
    """`custom_root` for the function that messages call `kind`, with factors of the derivative.

    `factorize(g, x)` returns arrays, computed from the derivative `g` of `f` at the root `x`, that
    `tangent_solve(g, y, factors)` gets as its last argument. They are computed once for the
    derivatives of every order, and have no derivative themselves. Without `factorize`, the
    factors are None.
    """
    guess = SolutionTree(body_name(kind, f), kind, "initial_guess", initial_guess, "f", f)
    traced_solve = guess.trace_solver("solve", lambda x: solve(f, x), has_aux)
    solver = TangentSolver(guess, tangent_solve, factorize)
    tangent = solver.trace(solver.derivative)
    captures = Captures()
    for traced in filter(None, (guess.function, traced_solve, tangent, solver.factors)):
        captures.add(traced.captured)
    transpose: TracedFunction | None = None
    if current_builder.get() is not None or has_jax_tracers([*guess.leaves, *captures.values]):
        transpose = solver.trace_transpose(tangent)
    if transpose is not None:
        captures.add(transpose.captured)

    def with_consts(traced: TracedFunction) -> Program:
        return captures.with_capture_inputs(traced.program, traced.captured)

    primitive = CustomRoot(
        with_consts(guess.function),
        with_consts(traced_solve),
        with_consts(tangent),
        transpose and with_consts(transpose),
        solver.factors and with_consts(solver.factors),
    )
    outs = primitive(*guess.leaves, *captures.values)
    return tree.unflatten(traced_solve.out_tree, outs)


class TangentSolver:
    """The solver of the linear equations that give tangents of the root, with traced factors.

    `derivative` is the program of the derivative of `f`, linear in its first inputs.
    """

    def __init__(
        self,
        guess: SolutionTree,
        solve: Callable[[Function, PyTree, PyTree], PyTree],
        factorize: Callable[[Function, PyTree], PyTree] | None,
    ):
        self.guess, self.solve = guess, solve
        self.derivative = cached_rewrite(
            PartialDerivative(len(guess.leaves)), guess.function.program
        )
        self.factors: TracedFunction | None = None
        if factorize is not None:

            def at_root(x: PyTree) -> PyTree:
                return factorize(self.function_at(x, self.derivative), x)

            at_root.__name__ = "factorize"
            self.factors = trace_function(at_root, guess.in_tree, guess.avals, guess.kind)

    def function_at(self, x: PyTree, program: Program) -> Function:
        """`program`, linear in its first inputs, as a function of these, at `x`."""
        consts = [*tree.leaves(x), *self.guess.function.captured]
        role = "the function that tangent_solve is given"
        return lambda v: self.guess.apply(role, program, v, consts)

    def trace(self, program: Program) -> TracedFunction:
        """`tangent_solve` of right-hand side, x and factors; `program` is linear in its first inputs."""
        guess, factors = self.guess, self.factors

        def solve_at(y: PyTree, x: PyTree, factors: PyTree) -> PyTree:
            return self.solve(self.function_at(x, program), y, factors)

        solve_at.__name__ = "tangent_solve"
        factor_avals = [] if factors is None else factors.out_avals
        structure = tree.structure(None) if factors is None else factors.out_tree
        unknown = tree.unflatten(guess.structure, guess.avals)
        example = unknown, unknown, tree.unflatten(structure, factor_avals)
        avals = [*guess.avals, *guess.avals, *factor_avals]
        traced = trace_function(solve_at, tree.structure((example, {})), avals, guess.kind)
        traced.refuse_writes(guess.kind)
        guess.check_result("tangent_solve", traced)
        return traced._replace(program=cast_outputs(traced.program, guess.avals))

    def trace_transpose(self, tangent: TracedFunction) -> TracedFunction | None:
        """The solve with the transpose of `derivative`; None if `f` has no transpose."""
        label, count = self.guess.label, len(self.guess.leaves)
        try:
            transpose = LinearTranspose(f"{label}: tangent_solve", count)
            return tangent._replace(program=cached_rewrite(transpose, tangent.program))
        except (LinearityError, MissingRuleError):
            pass
        try:
            return self.trace(
                cached_rewrite(LinearTranspose(f"{label}: f", count), self.derivative)
            )
        except MissingRuleError:
            return None


def _examples(with_factors: bool) -> dict[str, Any]:
    def function(x: Value, c: Value) -> list[Value]:
        return [ops.sub(ops.mul(x, x), c)]

    def solve(x: Value, c: Value) -> list[Value]:
        return [ops.sqrt(c)]

    def factorize(x: Value, c: Value) -> list[Value]:
        return [ops.mul(x, 2.0)]

    def tangent_solve(y: Value, x: Value, *others: Value) -> list[Value]:
        return [ops.div(y, others[0] if with_factors else ops.mul(x, 2.0))]

    x = f64[3]
    operands = [x] * (4 if with_factors else 3)
    return {
        "function": trace_closed(function, [x, x], name="function"),
        "solve": trace_closed(solve, [x, x], name="solve"),
        "tangent_solve": trace_closed(tangent_solve, operands, name="tangent_solve"),
        "transpose_solve": trace_closed(tangent_solve, operands, name="transpose_solve"),
        "factorize": trace_closed(factorize, [x, x], name="factorize") if with_factors else None,
    }


class CustomRoot(HasDCE):
    """The x with `function(x) = 0`, computed by `solve`, and the aux outputs of `solve`.

    The operands are the guess and then the consts; `function` and `solve` take x or the guess,
    then the consts. `tangent_solve` takes a right-hand side, x, the factors and the consts, and
    solves with the derivative of `function` at x; `transpose_solve` solves with its transpose.
    The factors are the outputs of `factorize`, a function of x and the consts. They are the last
    outputs if `returns_factors`, as they are in derivatives, which share them.
    """

    function: Program
    solve: Program
    tangent_solve: Program
    transpose_solve: Program | None = None
    factorize: Program | None = None
    returns_factors: bool = False
    not_executed = ("function", "tangent_solve", "transpose_solve", "factorize")
    multiple_results = True
    samples = LazySamples(
        lambda: tuple(
            [
                sample(f64[3], f64[3], dtypes=("f64",), domain={1: (0.5, 2.0)}, **_examples(flag))
                for flag in (False, True)
            ]
        )
    )

    def abstract_eval(self, *avals: ShapedArray) -> Sequence[ShapedArray]:
        check_operands(self, avals, self.solve.in_avals)
        if self.factorize is None or not self.returns_factors:
            return self.solve.out_avals
        return [*self.solve.out_avals, *self.factorize.out_avals]

    def split_operands(self, items: Sequence[PyTree]) -> tuple[Sequence[PyTree], Sequence[PyTree]]:
        """`items`, one for each operand, split in those of the guess and those of the consts."""
        n = len(self.function.outputs)
        return items[:n], items[n:]

    def bind_with_factors(self, args: Values) -> tuple[Values, Values, Values]:
        """The outputs of this operation, the root among them, and the factors."""
        full = self.replace(returns_factors=self.factorize is not None)(*args)
        x, factors = full[: len(self.function.outputs)], full[len(self.solve.outputs) :]
        return full if self.returns_factors else full[: len(self.solve.outputs)], x, factors

    def linearized(self) -> CustomLinearSolve:
        """The linear solve with the derivative of the function at x."""
        factors = () if self.factorize is None else tuple(self.factorize.out_avals)
        count = len(self.function.outputs)
        derivative = cached_rewrite(PartialDerivative(count, factors), self.function)
        return CustomLinearSolve(derivative, self.tangent_solve, None, self.transpose_solve)

    def jvp(self, primals: Values, tangents: Tangents) -> tuple[Values, Tangents]:
        # d function / dx dx = -d function / dconsts dconsts
        _, consts = self.split_operands(primals)
        _, dconsts = self.split_operands(tangents)
        outs, x, factors = self.bind_with_factors(primals)
        dfunction = consts_jvp(self.function, x, consts, dconsts)
        if dfunction is None:
            return outs, [None] * len(outs)
        dx = self.linearized()(*[ops.neg(t) for t in dfunction], *x, *factors, *consts)
        return outs, [*dx, *[None] * (len(outs) - len(x))]

    def forward(self, args: Values, active: Flags) -> tuple[Values, tuple[Values, Values]]:
        outs, x, factors = self.bind_with_factors(args)
        return outs, (x, factors)

    def vjp(
        self, cts: Cotangents, saved: tuple[Values, Values], args: Values, active: Flags
    ) -> Cotangents:
        x, factors = saved
        guess, consts = self.split_operands(args)
        _, consts_active = self.split_operands(active)
        x_cts = instantiate_cotangents(cts[: len(guess)], x)
        if x_cts is None:
            return [None] * len(args)
        y = self.linearized().transposed()(*x_cts, *x, *factors, *consts)
        return [None] * len(guess) + negated_consts_vjp(self.function, x, consts, consts_active, y)

    def dce(self, used: Flags) -> tuple[Primitive, Sequence[int], Sequence[int]] | None:
        count = len(self.solve.outputs)
        if not self.returns_factors or any(used[count:]):
            return None
        inputs = range(len(self.solve.inputs))
        return self.replace(returns_factors=False), inputs, range(count)

    def batch(self, args: Values, dims: Dims) -> tuple[Values, Dims]:
        return batch_solver(self, args, dims, len(self.function.outputs))

    def lower(self, ctx: LoweringContext, *values: IRValue) -> Sequence[IRValue]:
        outs = ctx.call(self.solve, values)
        if self.factorize is None or not self.returns_factors:
            return outs
        guess, consts = self.split_operands(values)
        return [*outs, *ctx.call(self.factorize, [*outs[: len(guess)], *consts])]
