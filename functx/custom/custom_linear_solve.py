"""`custom_linear_solve`, and the tracing and derivatives that it shares with `custom_root`.

Both find an x by a user-defined solver; their derivatives come from the implicit function
theorem. The captured values of the user's functions are the consts of the programs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

from functx import ops
from functx.core import tree
from functx.core.checking import check_operands
from functx.core.errors import DTypeError, MissingRuleError, ShapeError, TreeError
from functx.core.masks import scatter_where
from functx.core.primitive import Primitive, is_linear_input
from functx.core.program import Program
from functx.core.program_calls import apply_program
from functx.core.rewriting import Rewrite, apply, cached_rewrite
from functx.core.samples import LazySamples, f64, sample
from functx.core.tracebacks import api_boundary
from functx.core.tracing import trace_closed
from functx.core.types import ShapedArray, is_inexact
from functx.core.typing import (
    Avals,
    Cotangent,
    Cotangents,
    Dims,
    Flags,
    Function,
    PyTree,
    Tangents,
    Value,
    Values,
)
from functx.custom.rule_tracing import Captures
from functx.ops.operands import batch_size
from functx.transforms.batching import Batch
from functx.transforms.control.body_tracing import (
    body_name,
    cast_outputs,
    cast_to,
    cast_to_strong,
    check_callables,
    common_aval,
)
from functx.transforms.dce import active_outputs, take_first_outputs
from functx.transforms.forward_mode import Linearize
from functx.transforms.grad import convert_ints_to_floats
from functx.transforms.linear_transpose import LinearTranspose
from functx.transforms.reverse_mode import SplitVJP
from functx.transforms.tracing_api import TracedFunction, avals_of, trace_function

if TYPE_CHECKING:
    from functx.core.typing import IRValue
    from functx.lowering.stablehlo_emitter import LoweringContext


class SolutionTree:
    """The structure and types of the solution, which is a pytree like `example`.

    `label` begins the messages, which call the example `name`. `fun`, called `role` there, maps
    such pytrees to such pytrees; it is traced until the types of its result are those it takes.
    """

    def __init__(self, label: str, kind: str, name: str, example: PyTree, role: str, fun: Function):
        self.label, self.kind, self.name = label, kind, name
        leaves, self.structure = tree.flatten(example)
        self.in_tree = tree.structure(((example,), {}))
        self.paths = [tree.keystr(path) for path, _ in tree.leaves_with_path(example)]
        leaves = convert_ints_to_floats(leaves, range(len(leaves)))
        self.avals = avals_of(leaves, kind, fun, self.in_tree)
        if not leaves:
            raise TreeError(f"{label}: {name} must hold an array; got {example!r}")
        for path, aval in zip(self.paths, self.avals, strict=True):
            if not is_inexact(aval.dtype):
                raise DTypeError(
                    f"{label}: {name} must be float or complex; got {aval!r} at {name}{path}",
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
        """The common types of the leaves and of the result of the function `role`; none is weak.

        Raises TreeError, ShapeError or DTypeError if the result has another structure or types.
        """
        out_tree = traced.out_tree.children()[0] if aux else traced.out_tree
        tree.check_same_structure(
            self.structure, out_tree, f"{self.label}: what {role} returns", self.name
        )
        avals = []
        for path, aval, out in zip(self.paths, self.avals, traced.program.out_avals, strict=False):
            common = common_aval((aval, out), aval)
            if common is None:
                raise (DTypeError if out.shape == aval.shape else ShapeError)(
                    f"{self.label}: {role} must return arrays of the shapes and dtypes of "
                    f"{self.name}; got {out!r} for {self.name}{path}: {aval!r}"
                )
            avals.append(common.update(weak_type=False))
        return avals

    def trace_solver(self, role: str, solve: Function, has_aux: bool = False) -> TracedFunction:
        """`solve` traced on such a pytree, with its result checked and converted; aux follows."""
        solve.__name__ = role
        traced = trace_function(solve, self.in_tree, self.avals, self.kind, has_aux=has_aux)
        traced.refuse_writes(self.kind)
        self.check_result(role, traced, has_aux)
        return traced._replace(program=cast_outputs(traced.program, self.avals))

    def apply(self, role: str, program: Program, argument: PyTree, consts: Values) -> PyTree:
        """`program`, which `role` stands for, on a pytree of this structure and on `consts`."""
        leaves, structure = tree.flatten(argument)
        tree.check_same_structure(
            self.structure, structure, f"{self.label}: the argument of {role}", self.name
        )
        avals = avals_of(leaves, self.kind, lambda x: x, tree.structure(((argument,), {})))
        for path, aval, expected in zip(self.paths, avals, self.avals, strict=True):
            if common_aval((expected, aval), expected) is not expected:
                raise (DTypeError if aval.shape == expected.shape else ShapeError)(
                    f"{self.label}: the argument of {role} must have the shapes and dtypes of "
                    f"{self.name}; got {aval!r} for {self.name}{path}: {expected!r}"
                )
        leaves = [cast_to(x, a) for x, a in zip(leaves, self.avals, strict=True)]
        return tree.unflatten(self.structure, apply_program(program, [*leaves, *consts]))


def consts_jvp(
    program: Program, xs: Values, consts: Values, tangents: Tangents
) -> list[Value] | None:
    """The output tangents of `program` at `xs` and `consts` for `tangents` of the consts.

    None if no output depends on a const with a tangent.
    """
    varying = (*[False] * len(xs), *[t is not None for t in tangents])
    if not any(active_outputs(program, varying)):
        return None
    values, linear = cached_rewrite(Linearize(varying), program)
    outs = apply_program(values, [*xs, *consts])
    nonzero = [t for t in tangents if t is not None]
    return apply_program(linear, [*nonzero, *outs[len(program.outputs) :]])


def negated_consts_vjp(
    program: Program, xs: Values, consts: Values, active: Flags, cts: Cotangents
) -> list[Cotangent]:
    """The negated cotangents of the `active` consts, for `cts` of the outputs."""
    varying = (*[False] * len(xs), *active)
    if not any(active_outputs(program, varying)):
        return [None] * len(consts)
    values, backward = cached_rewrite(SplitVJP(varying), program)
    outs = apply_program(values, [*xs, *consts])
    const_cts = apply_program(backward, [*cts, *outs[len(program.outputs) :]])
    return scatter_where([ops.neg(ct) for ct in const_cts], active)


def instantiate_cotangents(cts: Cotangents, like: Values | Avals) -> list[Value] | None:
    """The cotangents of outputs with the types of `like`, zeros for None; None if all are None."""
    if all(ct is None for ct in cts):
        return None
    return ops.instantiate_zeros(cts, like)


class PartialDerivative(Rewrite[Program]):
    """The rewrite to the derivative in the first `count` inputs.

    The result takes the tangents of these, then all inputs, and gives the output tangents. Behind
    the first inputs it takes values of the types `unused`, which it does not read.
    """

    count: int
    unused: tuple[ShapedArray, ...] = ()

    def __call__(self, program: Program) -> Program:
        varying = [i < self.count for i in range(len(program.inputs))]
        values, linear = cached_rewrite(Linearize(tuple(varying)), program)

        end = 2 * self.count

        def body(*args: PyTree) -> list[Value]:
            primals = [*args[self.count : end], *args[end + len(self.unused) :]]
            outs = apply(None, values, primals)
            return apply(None, linear, [*args[: self.count], *outs[len(program.outputs) :]])

        first, others = program.in_avals[: self.count], program.in_avals[self.count :]
        avals = [*first, *first, *self.unused, *others]
        return trace_closed(body, avals, name=f"derivative_{program.name}")


def batch_solver(
    primitive: Primitive, args: Values, dims: Dims, unknowns: int
) -> tuple[list[Value], list[int]]:
    """The batching rule of `primitive`, whose parameters are programs of the same inputs.

    The first `unknowns` operands, and all outputs, are always batched.
    """
    size = batch_size(args, dims)
    batched_args = [
        ops.batch_dim_at(x, d, 0, size) if i < unknowns or d is not None else x
        for i, (x, d) in enumerate(zip(args, dims, strict=True))
    ]
    const_dims = [None if d is None else 0 for d in dims[unknowns:]]

    def batch_program(program: Program | None) -> Program | None:
        if not isinstance(program, Program):
            return program
        # Between the unknowns and the consts, a program may take further values like unknowns.
        leading_dims = (0,) * (len(program.inputs) - len(const_dims))
        batch = Batch(size, (*leading_dims, *const_dims), (0,) * len(program.outputs))
        return cached_rewrite(batch, program)

    programs = [batch_program(getattr(primitive, field)) for field in primitive.fields]
    outs = type(primitive)(*programs)(*batched_args)
    return outs, [0] * len(outs)


@api_boundary
def custom_linear_solve(
    matvec: Function,
    b: PyTree,
    solve: Callable[[Function, PyTree], PyTree],
    transpose_solve: Callable[[Function, PyTree], PyTree] | None = None,
    symmetric: bool = False,
    has_aux: bool = False,
) -> PyTree:
    """The `x` with `matvec(x) == b`, computed by `solve(matvec, b)`.

    `matvec` is a linear function between pytrees like `b`. Derivatives are those of the
    solution, in `b` and in all values that `matvec` closes over, of any order; they are further
    solves, and the steps of `solve` are not differentiated. Reverse mode solves with the
    transpose of `matvec` by `transpose_solve(vecmat, ct)`. `symmetric` promises that `matvec` is
    its own transpose; then `solve` is the default. With `has_aux`, `solve` returns `(x, aux)`
    and so does this function; aux has no derivative.

    Raises TreeError, ShapeError and DTypeError if a function returns another structure or types
    than `b`, LinearityError if the transpose of a `matvec` that is not linear is needed, and
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
    label = body_name("custom_linear_solve", matvec)
    solution = SolutionTree(label, "custom_linear_solve", "b", b, "matvec", matvec)
    count = len(solution.leaves)
    traced_matvec = solution.function
    traced_solve = solution.trace_solver("solve", lambda rhs: solve(matvec, rhs), has_aux)
    captures = Captures()
    captures.add(traced_matvec.captured)
    captures.add(traced_solve.captured)
    vecmat: Program | None = None
    traced_transpose: TracedFunction | None = None
    if symmetric:
        vecmat = traced_matvec.program
    elif transpose_solve is not None:
        vecmat = cached_rewrite(LinearTranspose(f"{label}: matvec", count), traced_matvec.program)
    if transpose_solve is not None:
        solver, program = transpose_solve, cast(Program, vecmat)

        def apply_vecmat(x: PyTree) -> PyTree:
            consts = traced_matvec.captured
            return solution.apply("the transpose of matvec", program, x, consts)

        traced_transpose = solution.trace_solver(
            "transpose_solve", lambda rhs: solver(apply_vecmat, rhs), has_aux
        )
        captures.add(traced_transpose.captured)
    elif symmetric:
        traced_transpose = traced_solve

    def with_consts(program: Program, traced: TracedFunction) -> Program:
        return captures.with_capture_inputs(program, traced.captured)

    primitive = CustomLinearSolve(
        with_consts(traced_matvec.program, traced_matvec),
        with_consts(traced_solve.program, traced_solve),
        None if vecmat is None else with_consts(vecmat, traced_matvec),
        traced_transpose
        and take_first_outputs(with_consts(traced_transpose.program, traced_transpose), count),
    )
    outs = primitive(*solution.leaves, *captures.values)
    return tree.unflatten(traced_solve.out_tree, outs)


def _examples() -> dict[str, Any]:
    # A matrix with the diagonal d, and ones below it.
    def matvec(x: Value, d: Value) -> list[Value]:
        return [ops.add(ops.mul(d, x), ops.shift_along(x, 0, False, 0))]

    def vecmat(x: Value, d: Value) -> list[Value]:
        return [ops.add(ops.mul(d, x), ops.shift_along(x, 0, True, 0))]

    def solve(reverse: bool) -> Callable[..., list[Value]]:
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
    """The x with `matvec(x) = b`, computed by `solve`, and the aux outputs of `solve`.

    The operands are b and then the consts. All programs take a value like b, then the consts.
    `vecmat` is the transpose of `matvec`, by default derived from it; `transpose_solve` solves
    with it, and may be absent.
    """

    matvec: Program
    solve: Program
    vecmat: Program | None = None
    transpose_solve: Program | None = None
    not_executed = ("matvec", "vecmat", "transpose_solve")
    multiple_results = True
    samples = LazySamples(
        lambda: (sample(f64[3], f64[3], dtypes=("f64",), domain={1: (1.5, 3.0)}, **_examples()),)
    )

    def abstract_eval(self, *avals: ShapedArray) -> Avals:
        check_operands(self, avals, self.solve.in_avals)
        return self.solve.out_avals

    def split_operands(self, items: Sequence[PyTree]) -> tuple[Sequence[PyTree], Sequence[PyTree]]:
        """`items`, one for each operand, split in those of b and those of the consts."""
        n = len(self.matvec.outputs)
        return items[:n], items[n:]

    def without_aux(self) -> CustomLinearSolve:
        """This solve without aux outputs."""
        solve = take_first_outputs(self.solve, len(self.matvec.outputs))
        return CustomLinearSolve(self.matvec, solve, self.vecmat, self.transpose_solve)

    def transposed(self) -> CustomLinearSolve:
        """The solve with the transpose of `matvec`; MissingRuleError without `transpose_solve`."""
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
            label = f"{self.name}({self.matvec.name})"
            vecmat = cached_rewrite(LinearTranspose(label, n), self.matvec)
        solve = take_first_outputs(self.solve, n)
        return CustomLinearSolve(vecmat, self.transpose_solve, self.matvec, solve)

    def jvp(self, primals: Values, tangents: Tangents) -> tuple[Values, Tangents]:
        # matvec dx = db - dmatvec x
        b, consts = self.split_operands(primals)
        db, dconsts = self.split_operands(tangents)
        outs = self(*primals)
        x = outs[: len(b)]
        dmatvec = consts_jvp(self.matvec, x, consts, dconsts)
        if dmatvec is None and all(t is None for t in db):
            return outs, [None] * len(outs)
        rhs = ops.instantiate_zeros(db, b)
        if dmatvec is not None:
            rhs = [
                ops.neg(dm) if t is None else ops.sub(t, dm)
                for t, dm in zip(db, dmatvec, strict=True)
            ]
        dx = self.without_aux()(*rhs, *consts)
        return outs, [*dx, *[None] * (len(outs) - len(x))]

    def vjp(self, cts: Cotangents, outs: Values, args: Values, active: Flags) -> Cotangents:
        # The cotangent of b is the y with vecmat y = ct; that of consts, the vjp of matvec(x) at -y.
        b, consts = self.split_operands(args)
        x = outs[: len(b)]
        x_cts = instantiate_cotangents(cts[: len(b)], x)
        if x_cts is None:
            return [None] * len(args)
        _, consts_active = self.split_operands(active)
        y = self.transposed()(*x_cts, *consts)
        return [*y, *negated_consts_vjp(self.matvec, x, consts, consts_active, y)]

    def transpose(self, cts: Cotangents, *args: Value) -> Cotangents:
        b, consts = self.split_operands(args)
        x_cts = instantiate_cotangents(cts[: len(b)], self.matvec.out_avals)
        if x_cts is None:
            return [None] * len(args)
        pairs = zip(b, self.transposed()(*x_cts, *consts), strict=True)
        return [ct if is_linear_input(x) else None for x, ct in pairs] + [None] * len(consts)

    def batch(self, args: Values, dims: Dims) -> tuple[Values, Dims]:
        return batch_solver(self, args, dims, len(self.matvec.outputs))

    def lower(self, ctx: LoweringContext, *values: IRValue) -> Sequence[IRValue]:
        return ctx.call(self.solve, values)
