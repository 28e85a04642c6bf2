"""What `custom_root` and `custom_linear_solve` share: traced functions, derivatives in consts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from functx import ops
from functx.core import tree
from functx.core.errors import DTypeError, MissingRuleError, ShapeError, TreeError
from functx.core.primitive import LinearInput, Primitive
from functx.core.program import Program
from functx.core.program_editing import apply_program
from functx.core.records import Rewrite
from functx.core.rewriting import apply, cached_rewrite
from functx.core.samples import f64, sample
from functx.core.tracebacks import api_boundary
from functx.core.tracing import trace_closed
from functx.core.types import ShapedArray, is_inexact
from functx.custom.rule_tracing import Captures
from functx.ops.operands import batch_size
from functx.transforms.control.body_tracing import (
    body_name,
    cast_outputs,
    cast_to,
    cast_to_strong,
    check_callables,
    check_operands,
    common_aval,
)
from functx.transforms.dce import active_outputs, take_first_outputs
from functx.transforms.forward_mode import Linearize
from functx.transforms.grad import convert_ints_to_floats
from functx.transforms.linear_transpose import LinearTranspose
from functx.transforms.operand_masks import instantiate_zeros, scatter_where
from functx.transforms.reverse_mode import SplitVJP
from functx.transforms.tracing_api import TracedFunction, avals_of, trace_function
from functx.transforms.vmap import Batch


class SolutionTree:
    """The leaves of what is solved for: their structure, and the types that they settle on.

    `what` begins the messages, `name` is what they call the pytree, `role` and `fun` the
    function that maps such pytrees to such pytrees.
    """

    def __init__(self, what: str, kind: str, name: str, given: Any, role: str, fun: Any):
        self.label, self.kind, self.name = what, kind, name
        leaves, self.structure = tree.flatten(given)
        self.in_tree = tree.structure(((given,), {}))
        self.paths = [tree.keystr(path) for path, _ in tree.leaves_with_path(given)]
        leaves = convert_ints_to_floats(leaves, range(len(leaves)))
        self.avals = avals_of(leaves, kind, fun, self.in_tree)
        if not leaves:
            raise TreeError(f"{what}: {name} must hold an array; got {given!r}")
        for path, aval in zip(self.paths, self.avals, strict=True):
            if not is_inexact(aval.dtype):
                raise DTypeError(
                    f"{what}: {name} must be float or complex; got {aval!r} at {name}{path}",
                    fix="Convert it with astype.",
                )
        while True:
            self.function = trace_function(fun, self.in_tree, self.avals, kind)
            self.function.refuse_writes(kind)
            outs = self.check_result(role, self.function)
            if outs == self.avals:
                break
            self.avals = outs
        self.leaves = [cast_to_strong(x, a) for x, a in zip(leaves, self.avals, strict=True)]

    def check_result(
        self, role: str, traced: TracedFunction, aux: bool = False
    ) -> list[ShapedArray]:
        """The types that what the function `role` returns and these take on, none of them weak.

        Raises TreeError, ShapeError or DTypeError unless it returns something like these.
        """
        out_tree = traced.out_tree.children()[0] if aux else traced.out_tree
        tree.check_same_structure(
            self.structure, out_tree, f"{self.label}: what {role} returns", self.name
        )
        found = []
        for path, aval, out in zip(self.paths, self.avals, traced.program.out_avals, strict=False):
            common = common_aval((aval, out), aval)
            if common is None:
                raise (DTypeError if out.shape == aval.shape else ShapeError)(
                    f"{self.label}: {role} must return arrays of the shapes and dtypes of "
                    f"{self.name}; got {out!r} for {self.name}{path}: {aval!r}"
                )
            found.append(common.update(weak_type=False))
        return found

    def trace_solver(
        self, role: str, solve: Callable[..., Any], has_aux: bool = False
    ) -> TracedFunction:
        """`solve` of such a pytree traced, the result checked to be like it, and aux behind."""
        solve.__name__ = role
        traced = trace_function(solve, self.in_tree, self.avals, self.kind, has_aux=has_aux)
        traced.refuse_writes(self.kind)
        self.check_result(role, traced, has_aux)
        return traced._replace(program=cast_outputs(traced.program, self.avals))

    def apply(self, role: str, program: Program, given: Any, rest: Sequence[Any]) -> Any:
        """`program` on a pytree like these, which `role` was given, and on `rest`."""
        leaves, structure = tree.flatten(given)
        tree.check_same_structure(
            self.structure, structure, f"{self.label}: the argument of {role}", self.name
        )
        avals = avals_of(leaves, self.kind, lambda x: x, tree.structure(((given,), {})))
        for path, aval, wanted in zip(self.paths, avals, self.avals, strict=True):
            if common_aval((wanted, aval), wanted) is not wanted:
                raise (DTypeError if aval.shape == wanted.shape else ShapeError)(
                    f"{self.label}: the argument of {role} must have the shapes and dtypes of "
                    f"{self.name}; got {aval!r} for {self.name}{path}: {wanted!r}"
                )
        leaves = [cast_to(x, a) for x, a in zip(leaves, self.avals, strict=True)]
        return tree.unflatten(self.structure, apply_program(program, [*leaves, *rest]))


def consts_jvp(
    program: Program, xs: Sequence[Any], consts: Sequence[Any], tangents: Sequence[Any]
) -> list[Any] | None:
    """The tangents of what `program` gives on `xs` and `consts` when the consts alone vary.

    None where nothing varies with those that have tangents.
    """
    varying = (*[False] * len(xs), *[t is not None for t in tangents])
    if not any(active_outputs(program, varying)):
        return None
    values, linear = cached_rewrite(Linearize(varying), program)
    outs = apply_program(values, [*xs, *consts])
    given = [t for t in tangents if t is not None]
    return apply_program(linear, [*given, *outs[len(program.outputs) :]])


def negated_consts_vjp(
    program: Program,
    xs: Sequence[Any],
    consts: Sequence[Any],
    active: Sequence[bool],
    cts: Sequence[Any],
) -> list[Any]:
    """The cotangents of the consts marked in `active`, negated, for `cts` of what comes out."""
    varying = (*[False] * len(xs), *active)
    if not any(active_outputs(program, varying)):
        return [None] * len(consts)
    values, backward = cached_rewrite(SplitVJP(varying), program)
    outs = apply_program(values, [*xs, *consts])
    found = apply_program(backward, [*cts, *outs[len(program.outputs) :]])
    return scatter_where([ops.neg(ct) for ct in found], active)


def instantiate_cotangents(cts: Sequence[Any], like: Sequence[Any]) -> list[Any] | None:
    """The cotangents of the outputs `like`, zeros for None; None when all are."""
    if all(ct is None for ct in cts):
        return None
    return instantiate_zeros(cts, like)


class PartialDerivative(Rewrite[Program]):
    """The rewrite to the derivative in the first `count` inputs.

    The result takes tangents of those, then all inputs, and gives the tangents of the outputs.
    """

    count: int

    def __call__(self, program: Program) -> Program:
        varying = [i < self.count for i in range(len(program.inputs))]
        values, linear = cached_rewrite(Linearize(tuple(varying)), program)

        def body(*args: Any) -> list[Any]:
            outs = apply(None, values, args[self.count :])
            return apply(None, linear, [*args[: self.count], *outs[len(program.outputs) :]])

        avals = [*program.in_avals[: self.count], *program.in_avals]
        return trace_closed(body, avals, name=f"derivative_{program.name}")


def batch_solver(
    primitive: Primitive, args: Sequence[Any], dims: Sequence[int | None], unknowns: int
) -> tuple[list[Any], list[int]]:
    """`primitive`, whose parameters are programs of the same inputs, on batches.

    The first `unknowns` operands, and all outputs, are batched whether they must or not.
    """
    size = batch_size(args, dims)
    moved = [
        ops.batch_dim_at(x, d, 0, size) if i < unknowns or d is not None else x
        for i, (x, d) in enumerate(zip(args, dims, strict=True))
    ]
    rest = [None if d is None else 0 for d in dims[unknowns:]]

    def on_batches(program: Program | None) -> Program | None:
        if program is None:
            return None
        # Between the unknowns and the consts, a program may take further values like unknowns.
        lead = (0,) * (len(program.inputs) - len(rest))
        batch = Batch(size, (*lead, *rest), (0,) * len(program.outputs))
        return cached_rewrite(batch, program)  # type: ignore[no-any-return]

    programs = [on_batches(getattr(primitive, field)) for field in primitive.fields]
    outs = type(primitive)(*programs)(*moved)
    return outs, [0] * len(outs)


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
        return [ops.add(ops.mul(d, x), ops.shift_along(x, 0, False, 0))]

    def vecmat(x: Any, d: Any) -> list[Any]:
        return [ops.add(ops.mul(d, x), ops.shift_along(x, 0, True, 0))]

    def solve(reverse: bool) -> Callable[..., list[Any]]:
        return lambda b, d: [
            ops.linear_recurrence(ops.neg(ops.div(1.0, d)), ops.div(b, d), 0, reverse)
        ]

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
                ops.neg(change) if t is None else ops.sub(t, change)
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
