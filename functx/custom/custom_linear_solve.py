"""`custom_linear_solve`: the solution of a linear system, differentiated as such."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from functx.core import tree
from functx.core.errors import MissingRuleError
from functx.core.primitive import LinearInput, Primitive
from functx.core.program import Program
from functx.core.rewriting import cached_rewrite
from functx.core.samples import f64, sample
from functx.core.tracebacks import api_boundary
from functx.core.tracing import trace_closed
from functx.custom.captures import Captures
from functx.custom.implicit import (
    SolutionTree,
    batch_solver,
    consts_jvp,
    instantiate_cotangents,
    negated_consts_vjp,
)
from functx.ops.arithmetic import add, div, mul, neg, sub
from functx.ops.cumulative import linear_recurrence, shift_along
from functx.transforms.control.tracing import (
    body_name,
    check_callables,
    check_operands,
)
from functx.transforms.linear_transpose import LinearTranspose
from functx.transforms.marks import instantiate_zeros
from functx.transforms.parts import take_first_outputs


@api_boundary
def custom_linear_solve(
    matvec: Callable[[Any], Any],
    b: Any,
    solve: Callable[[Callable[[Any], Any], Any], Any],
    transpose_solve: Callable[[Callable[[Any], Any], Any], Any] | None = None,
    symmetric: bool = False,
    has_aux: bool = False,
) -> Any:
    """The `x` with `matvec(x) == b`, as `solve(matvec, b)` finds it.

    `matvec` is a linear function between pytrees like `b`. Derivatives are those of the
    solution, in `b` and in all values that `matvec` closes over, of any order; they take
    further solves, and nothing goes through the steps of `solve`. In reverse mode
    `transpose_solve(vecmat, ct)` solves with the transpose of `matvec`; with `symmetric`, which
    promises that this is `matvec` itself, `solve` does where it is not given. With `has_aux`,
    `solve` returns `(x, aux)` and so does this; aux has no derivative.

    Raises TreeError, ShapeError and DTypeError where a function returns something unlike `b`,
    LinearityError when the transpose of a `matvec` that is not linear is needed, and
    MissingRuleError in reverse mode without `transpose_solve`.

    >>> import functx, numpy
    >>> def halve(b, scale):
    ...     solve = lambda matvec, b: b / scale
    ...     return functx.lax.custom_linear_solve(lambda x: scale * x, b, solve, symmetric=True)
    >>> [float(ct) for ct in functx.grad(halve, (0, 1))(6.0, 2.0)]
    [0.5, -1.5]
    """
    check_callables("custom_linear_solve", matvec=matvec, solve=solve)
    if transpose_solve is not None:
        check_callables("custom_linear_solve", transpose_solve=transpose_solve)
    what = body_name("custom_linear_solve", matvec)
    b_like = SolutionTree(what, "custom_linear_solve", "b", b, "matvec", matvec)
    count = len(b_like.leaves)
    forward = b_like.function
    solved = b_like.trace_solver("solve", lambda rhs: solve(matvec, rhs), has_aux)
    captures = Captures()
    captures.add(forward.captured)
    captures.add(solved.captured)
    vecmat: Program | None = None
    turned: Any = None
    if symmetric:
        vecmat = forward.program
    elif transpose_solve is not None:
        vecmat = cached_rewrite(LinearTranspose(f"{what}: matvec", count), forward.program)
    if transpose_solve is not None:
        given, program = transpose_solve, cast(Program, vecmat)

        def transposed(x: Any) -> Any:
            return b_like.apply("the transpose of matvec", program, x, forward.captured)

        turned = b_like.trace_solver("transpose_solve", lambda rhs: given(transposed, rhs), has_aux)
        captures.add(turned.captured)
    elif symmetric:
        turned = solved
    primitive = CustomLinearSolve(
        captures.with_capture_inputs(forward.program, forward.captured),
        captures.with_capture_inputs(solved.program, solved.captured),
        None if vecmat is None else captures.with_capture_inputs(vecmat, forward.captured),
        turned
        and take_first_outputs(
            captures.with_capture_inputs(turned.program, turned.captured), count
        ),
    )
    outs = primitive(*b_like.leaves, *captures.values)
    return tree.unflatten(solved.out_tree, outs)


def _examples() -> dict[str, Any]:
    # A matrix with the diagonal d, and ones below it.
    def matvec(x: Any, d: Any) -> list[Any]:
        return [add(mul(d, x), shift_along(x, 0, False, 0))]

    def vecmat(x: Any, d: Any) -> list[Any]:
        return [add(mul(d, x), shift_along(x, 0, True, 0))]

    def solve(reverse: bool) -> Callable[..., list[Any]]:
        return lambda b, d: [linear_recurrence(neg(div(1.0, d)), div(b, d), 0, reverse)]

    avals = [f64[3], f64[3]]
    return {
        "matvec": trace_closed(matvec, avals, name="matvec"),
        "solve": trace_closed(solve(False), avals, name="solve"),
        "vecmat": trace_closed(vecmat, avals, name="vecmat"),
        "transpose_solve": trace_closed(solve(True), avals, name="transpose_solve"),
    }


class CustomLinearSolve(Primitive):
    """The x with `matvec(x) = b`, which `solve` finds, and what `solve` gives besides.

    All programs take what they are applied to, b for instance, and then the consts, which are
    the last operands. `vecmat` is the transpose of `matvec`, `transpose_solve` solves with it;
    None stands for the derived one, and for none.
    """

    matvec: Program
    solve: Program
    vecmat: Program | None = None
    transpose_solve: Program | None = None
    not_executed = ("matvec", "vecmat", "transpose_solve")
    multiple_results = True
    samples = (sample(f64[3], f64[3], dtypes=("f64",), domain={1: (1.5, 3.0)}, **_examples()),)

    def abstract_eval(self, *avals):
        check_operands(self, avals, self.solve.in_avals)
        return self.solve.out_avals

    def split_operands(self, items: Sequence[Any]) -> tuple[Any, Any]:
        """`items`, one an operand: those of b, and of the consts."""
        n = len(self.matvec.outputs)
        return items[:n], items[n:]

    def without_aux(self) -> CustomLinearSolve:
        """The same without what `solve` gives besides."""
        solve = take_first_outputs(self.solve, len(self.matvec.outputs))
        return CustomLinearSolve(self.matvec, solve, self.vecmat, self.transpose_solve)

    def transposed(self) -> CustomLinearSolve:
        """The same with the transpose of `matvec`."""
        if self.transpose_solve is None:
            raise MissingRuleError(
                f"{self.name}({self.matvec.name}): reverse mode must have a way to solve with the "
                "transpose of matvec; got no transpose_solve",
                fix="Pass transpose_solve, or symmetric=True for a matvec that is its transpose; "
                "or differentiate in forward mode (jvp, jacfwd).",
            )
        n = len(self.matvec.outputs)
        vecmat = self.vecmat
        if vecmat is None:
            what = f"{self.name}({self.matvec.name})"
            vecmat = cached_rewrite(LinearTranspose(what, n), self.matvec)
        solve = take_first_outputs(self.solve, n)
        return CustomLinearSolve(vecmat, self.transpose_solve, self.matvec, solve)

    def jvp(self, primals, tangents):
        # matvec dx = db - dmatvec x
        b, consts = self.split_operands(primals)
        db, dconsts = self.split_operands(tangents)
        outs = self(*primals)
        x = outs[: len(b)]
        moved = consts_jvp(self.matvec, x, consts, dconsts)
        if moved is None and all(t is None for t in db):
            return outs, [None] * len(outs)
        rhs = instantiate_zeros(db, b)
        if moved is not None:
            rhs = [
                neg(change) if t is None else sub(t, change)
                for t, change in zip(db, moved, strict=True)
            ]
        found = self.without_aux()(*rhs, *consts)
        return outs, [*found, *[None] * (len(outs) - len(x))]

    def vjp(self, cts, outs, args, active):
        # b gets the y with vecmat y = ct, and the consts what dmatvec x pulls -y back to.
        b, consts = self.split_operands(args)
        x = outs[: len(b)]
        given = instantiate_cotangents(cts[: len(b)], x)
        if given is None:
            return [None] * len(args)
        _, consts_active = self.split_operands(active)
        found = self.transposed()(*given, *consts)
        return [*found, *negated_consts_vjp(self.matvec, x, consts, consts_active, found)]

    def transpose(self, cts, *args):
        b, consts = self.split_operands(args)
        given = instantiate_cotangents(cts[: len(b)], self.matvec.out_avals)
        if given is None:
            return [None] * len(args)
        found = self.transposed()(*given, *consts)
        pairs = zip(b, found, strict=True)
        return [ct if type(x) is LinearInput else None for x, ct in pairs] + [None] * len(consts)

    def batch(self, args, dims):
        return batch_solver(self, args, dims, len(self.matvec.outputs))

    def lower(self, ctx, *values):
        return ctx.call(self.solve, values)
