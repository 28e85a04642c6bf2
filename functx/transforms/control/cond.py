"""`cond` and `switch`: one of several functions, chosen when the program runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from functx import ops
from functx.core import tree
from functx.core.backend import Split, backend
from functx.core.checking import check_operands
from functx.core.effects import is_per_element
from functx.core.errors import ArgumentError, CollectiveError, DTypeError, ShapeError, type_name
from functx.core.index_sets import DependentOperand
from functx.core.masks import (
    T,
    indices_where,
    inexact_mask,
    linear_mask,
    scatter_where,
    select_where,
    select_where_not,
)
from functx.core.named_axes import batched_axis_names
from functx.core.primitive import Primitive
from functx.core.primitive_families import HasDCE, HasJet, HasPrograms, UpdatesInPlace
from functx.core.program import Atom, Literal, Program, Var
from functx.core.rewriting import Rewrite, apply, cached_rewrite
from functx.core.samples import LazySamples, f64, i32, sample
from functx.core.tracebacks import api_boundary
from functx.core.tracer import Tracer, aval_of, current_builder
from functx.core.tracing import trace_closed
from functx.core.types import ShapedArray, is_complex, is_integer
from functx.core.typing import (
    ArrayLike,
    Avals,
    Cotangents,
    Dims,
    Flags,
    Function,
    IRValue,
    PyTree,
    Tangents,
    Value,
    Values,
)
from functx.ops.operands import RewriteContext, batch_size
from functx.transforms.aliasing import copy_if_aliased, write_back_arguments
from functx.transforms.argument_names import copy_function_metadata
from functx.transforms.batching import Batch, BatchWithInferredOutDims, interpret_batched
from functx.transforms.call_primitive import Call
from functx.transforms.coefficients import Series
from functx.transforms.control.body_tracing import (
    TracedBranches,
    check_callables,
    inline_or_run,
    is_linearizing,
    to_numpy,
    trace_branches,
)
from functx.transforms.control.partial_eval import PartialEval, PartialEvalBranches, ResidualKind
from functx.transforms.control.predication import (
    AnyActive,
    Predicated,
    batch_sequentially,
    has_unbounded_loop,
    in_place_input,
    must_borrow_active,
    with_index_operands,
)
from functx.transforms.dce import Subprogram, UsedInputs, active_outputs
from functx.transforms.forward_mode import JVPRewrite, Linearize
from functx.transforms.jet_rewrite import run_jet_programs
from functx.transforms.linear_transpose import Transpose
from functx.transforms.reverse_mode import SplitVJP
from functx.transforms.series import SeriesEvaluator
from functx.transforms.symbolic_zeros import (
    DropZeroInputs,
    continued_state,
    nonzero_output_mask,
    programs_run,
    state_operand,
    with_programs,
)

if TYPE_CHECKING:
    from functx.lowering.stablehlo_emitter import LoweringContext
    from functx.transforms.sparsity import SparsityAnalysis


def _sample_branches() -> tuple[Program, ...]:
    def product(x: Value, y: Value, n: Value) -> list[Value]:
        return [ops.sin(ops.mul(x, y)), n]

    def first(x: Value, y: Value, n: Value) -> list[Value]:
        return [ops.mul(x, 2.0), ops.mul(n, 3)]

    avals = [f64[3], f64[3], i32[()]]
    return tuple(trace_closed(f, avals, name=f.__name__) for f in (product, first))


class Cond(HasPrograms, UpdatesInPlace, HasDCE, HasJet):
    """The outputs of `branches[index]` on the operands that follow the int32 scalar `index`.

    The index must be in range.
    """

    branches: tuple[Program, ...]
    samples = LazySamples(lambda: (
        sample(
            i32[()], f64[3], f64[3], i32[()],
            branches=_sample_branches(), values={0: 0}, dtypes=("f64",),
        ),
        sample(
            i32[()], f64[3], f64[3], i32[()],
            branches=_sample_branches()[::-1] * 2, values={0: 3}, dtypes=("f64",),
        ),
    ))  # fmt: skip

    def abstract_eval(self, index: ShapedArray, *avals: ShapedArray) -> Avals:
        if index.shape != () or index.dtype != np.int32:
            raise ShapeError(f"cond: the index must be an int32 scalar; got {index!r}")
        for branch in self.branches:
            check_operands(self, avals, branch.in_avals)
        return [
            outs[0].update(weak_type=all(a.weak_type for a in outs))
            for outs in zip(*[branch.out_avals for branch in self.branches], strict=True)
        ]

    def hoist_constants(
        self, programs: Sequence[Program], extras: Sequence[Sequence[T]], operands: Sequence[T]
    ) -> tuple[Primitive, Sequence[T]]:
        # Each branch takes the constants of all.
        branches = []
        for program, own_constants in zip(programs, extras, strict=True):
            inputs_of_branch = iter(program.inputs)
            constant_inputs = [
                [
                    next(inputs_of_branch) if constants is own_constants else Var(v.aval)
                    for v in each.inputs[: len(constants)]
                ]
                for each, constants in zip(programs, extras, strict=True)
            ]
            inputs = [*chain(*constant_inputs), *inputs_of_branch]
            branches.append(Program(program.name, inputs, program.equations, program.outputs))
        return Cond(tuple(branches)), [operands[0], *chain(*extras), *operands[1:]]

    def simplify(
        self, context: RewriteContext, index: Atom, *operands: Atom
    ) -> tuple[Primitive, Sequence[Atom]] | None:
        if type(index) is not Literal:
            return None
        return Call(self.branches[index.value]), operands

    def jvp(self, primals: Values, tangents: Tangents) -> tuple[Values, Tangents]:
        index, *operands = primals
        varying = tuple([t is not None for t in tangents[1:]])
        operand_tangents = [t for t in tangents if t is not None]
        avals = self.branches[0].out_avals
        count = len(avals)
        if is_linearizing():
            split = self.partial_eval(Linearize(varying))
            outs, residuals = self.run_known(split, primals)
            out_tangents = Cond(split.unknown)(index, *operand_tangents, *residuals)
        else:
            branches = tuple([cached_rewrite(JVPRewrite(varying), b) for b in self.branches])
            results = Cond(branches)(index, *operands, *operand_tangents)
            outs, out_tangents = results[:count], results[count:]
        return outs, scatter_where(out_tangents, inexact_mask(avals))

    def jet(self, evaluator: SeriesEvaluator, index: Series, *args: Series) -> list[Series] | None:
        if any(x.is_shifted for x in args):
            return None

        def run(branches: Sequence[Program], operands: list[Value]) -> Values:
            outs: Values = Cond(tuple(branches))(index.first.value, *operands)
            return outs

        return run_jet_programs(evaluator, self.branches, args, run)

    def varying_outputs(self, avals: Avals, active: Flags) -> Flags:
        masks = [active_outputs(b, active[1:]) for b in self.branches]
        return [any(on) for on in zip(*masks, strict=True)]

    def dce(self, used: Flags) -> tuple[Primitive, Sequence[int], Sequence[int]] | None:
        if all(used):
            return None
        outputs = indices_where(used)
        needed = {i for b in self.branches for i in cached_rewrite(UsedInputs(outputs), b)}
        inputs = tuple(sorted(needed))
        branches = tuple([cached_rewrite(Subprogram(inputs, outputs), b) for b in self.branches])
        return Cond(branches), [0, *[1 + i for i in inputs]], outputs

    def partial_eval(
        self, rewrite: Split[tuple[Program, Program]]
    ) -> PartialEval[tuple[Program, ...]]:
        """The branches split by `rewrite`, with residuals of common types."""
        return cached_rewrite(PartialEvalBranches(rewrite), *self.branches)

    def run_known(
        self, split: PartialEval[tuple[Program, ...]], args: Values
    ) -> tuple[list[Value], list[Value]]:
        """The outputs and the residuals."""
        results, count = Cond(split.known)(*args), len(self.branches[0].outputs)
        operands, saved = args[1:], results[count:]
        residuals = [
            operands[r.position] if r.kind is ResidualKind.OPERAND else saved[r.position]
            for r in split.residuals
        ]
        return results[:count], residuals

    def vjp_partial_eval(self, active: Flags) -> PartialEval[tuple[Program, ...]]:
        """The split for reverse mode."""
        return self.partial_eval(backend.limit_residuals(SplitVJP(tuple(active[1:]))))

    def forward(self, args: Values, active: Flags) -> tuple[Values, Any]:
        return self.run_known(self.vjp_partial_eval(active), args)

    def vjp(self, cts: Cotangents, residuals: Values, args: Values, active: Flags) -> Cotangents:
        split = self.vjp_partial_eval(active)
        cts = select_where(cts, inexact_mask(self.branches[0].out_avals))
        mask = tuple([ct is not None for ct in cts])
        branches = tuple([cached_rewrite(DropZeroInputs(mask), b) for b in split.unknown])
        in_cts = Cond(branches)(args[0], *select_where(cts, mask), *residuals)
        nonzero = map(any, zip(*map(nonzero_output_mask, branches), strict=True))
        return scatter_where(
            [ct if on else None for ct, on in zip(in_cts, nonzero, strict=True)], active
        )

    def index_sets(
        self, sets: SparsityAnalysis, *operands: DependentOperand
    ) -> Sequence[DependentOperand]:
        index, *rest = operands
        known = index.value()
        branches = self.branches if known is None else [self.branches[int(known)]]
        return sets.union_operands([sets.run(branch, rest) for branch in branches])

    def transpose(self, cts: Cotangents, *args: Value) -> Cotangents:
        linear = linear_mask(args)
        transposed = tuple([cached_rewrite(Transpose(linear[1:]), b) for b in self.branches])
        out_cts = ops.inexact_cotangents(cts, self.branches[0].out_avals)
        known_operands = select_where_not(args[1:], linear[1:])
        return scatter_where(Cond(transposed)(args[0], *out_cts, *known_operands), linear)

    def batch(self, args: Values, dims: Dims) -> tuple[Values, Dims]:
        size = batch_size(args, dims)
        (index, *operands), (index_dim, *in_dims) = args, dims
        if index_dim is not None and (name := batched_axis_names().name) in self.named_axes:
            with_indices = with_index_operands(self, args, dims, name)
            if with_indices is None:
                raise CollectiveError(
                    "cond: the predicate must be the same along a named axis that a branch "
                    f"communicates over; got one that differs along {name!r}",
                    fix="Take the collective out of the branches, or choose with "
                    "functx.numpy.where.",
                )
            primitive, args, dims = with_indices
            if primitive is not self:
                return primitive.batch(args, dims)
        if index_dim is not None and is_per_element(self.effects):
            return batch_sequentially(self, args, dims)
        if index_dim is not None:
            borrow_active = [
                must_borrow_active(b, [d is None for d in in_dims]) for b in self.branches
            ]
            program = cached_rewrite(CondToSelect(tuple(borrow_active)), *self.branches)
            outs = interpret_batched(program, args, dims)
            return [x for x, _ in outs], [d for _, d in outs]
        body_dims = [
            cached_rewrite(BatchWithInferredOutDims(size, tuple(in_dims)), b)[1]
            for b in self.branches
        ]
        batched = [
            any(d is not None for d in branch_dims) for branch_dims in zip(*body_dims, strict=True)
        ]
        out_dims = tuple([0 if on else None for on in batched])
        branches = tuple(
            [cached_rewrite(Batch(size, tuple(in_dims), out_dims), b) for b in self.branches]
        )
        return Cond(branches)(index, *operands), out_dims

    def in_place_operand(self, output: int) -> int | None:
        root = common_in_place_inputs(self.branches)[output]
        return None if root is None else 1 + root

    def self_masked_operands(self, count: int) -> Sequence[int]:
        return range(1, count)

    def masked_update(
        self, mask: Value, changed: Flags, borrow_active: bool, args: Values
    ) -> Values:
        roots = common_in_place_inputs(self.branches)
        updated = tuple([root if on else None for root, on in zip(roots, changed, strict=True)])
        predicated = Predicated(updated, borrow_active)
        branches = tuple([cached_rewrite(predicated, branch) for branch in self.branches])
        return Cond(branches)(args[0], mask, *args[1:])

    def lower(self, ctx: LoweringContext, index: IRValue, *operands: IRValue) -> Sequence[IRValue]:
        return ctx.case(index, self.branches, operands)


class CondToSelect(Rewrite[Program]):
    """Rewrites the branches of a conditional to a program that runs all and selects from the outputs.

    The program takes the index and the operands, and is batched along the index. Batch elements
    that do not take a branch are masked in it (`Predicated`); `borrow_active` says for which
    branches they borrow operands. A branch with loops is skipped if no element takes it.
    """

    borrow_active: tuple[bool, ...]

    def __call__(self, *branches: Program) -> Program:
        in_place_inputs = common_in_place_inputs(branches)

        def body(index: Value, *operands: Value) -> list[Value]:
            # Arrays that every branch updates pass from one to the next; inactive ones leave them.
            state = list(operands)
            outs: list[Any] = []
            for i, (branch, borrows) in enumerate(zip(branches, self.borrow_active, strict=True)):
                mask = ops.eq(index, i)
                predicated = cached_rewrite(Predicated(in_place_inputs, borrows), branch)
                if has_unbounded_loop(branch):
                    skip_if_inactive = Cond(
                        (cached_rewrite(InactiveBranch(in_place_inputs), predicated), predicated)
                    )
                    branch_outs = skip_if_inactive(
                        ops.convert_element_type(AnyActive()(mask), np.int32), mask, *state
                    )
                else:
                    branch_outs = apply(None, predicated, [mask, *state])
                for j, input_index in enumerate(in_place_inputs):
                    if input_index is not None:
                        state[input_index] = branch_outs[j]
                    elif i:
                        branch_outs[j] = ops.select(mask, branch_outs[j], outs[j])
                outs = branch_outs
            return outs

        avals = [i32[()], *branches[0].in_avals]
        return trace_closed(body, avals, name=f"chosen_{branches[0].name}")


class InactiveBranch(Rewrite[Program]):
    """Rewrites a predicated branch to the skipped one: returns `in_place_inputs` or zeros."""

    in_place_inputs: tuple[int | None, ...]

    def __call__(self, predicated: Program) -> Program:
        def body(mask: Value, *operands: Value) -> list[Value]:
            return [
                ops.zeros_like(aval) if input_index is None else operands[input_index]
                for aval, input_index in zip(
                    predicated.out_avals, self.in_place_inputs, strict=True
                )
            ]

        return trace_closed(body, predicated.in_avals, name="inactive")


def common_in_place_inputs(branches: Sequence[Program]) -> tuple[int | None, ...]:
    """For each output, the input that all branches return, updated in place or not.

    None if there is none, or if two outputs would be the same input.
    """
    common = [
        inputs_of_output[0] if len(set(inputs_of_output)) == 1 else None
        for inputs_of_output in [
            [in_place_input(branch, j) for branch in branches]
            for j in range(len(branches[0].outputs))
        ]
    ]
    return tuple(
        [input_index if common.count(input_index) == 1 else None for input_index in common]
    )


@programs_run.register
def _branches_of_cond(primitive: Cond) -> Sequence[Program]:
    return primitive.branches


@with_programs.register
def _cond_of_branches(primitive: Cond, programs: Sequence[Program]) -> Cond:
    return Cond(tuple(programs))


class _NotGiven:
    """The type of the default of an argument that was not given."""

    def __repr__(self) -> str:
        return "<none>"


_NOT_GIVEN: Any = _NotGiven()


@api_boundary
def cond(
    pred: PyTree,
    true_fun: Function,
    false_fun: Function,
    *operands: PyTree,
    operand: PyTree = _NOT_GIVEN,
) -> PyTree:
    """Return `true_fun(*operands)` if the scalar `pred` holds, else `false_fun(*operands)`.

    Only the selected function runs, unless `vmap` maps over `pred`. Then both run, each batch
    element gets the results of its own branch, and the other branch affects neither its values
    nor its derivatives; loops and callbacks in a branch run only for the elements that take it.
    A number counts as true unless it is zero. Both functions are traced, may close over values,
    and must return pytrees of the same structure, with leaves of the same types.

    `operand=x` is an older way to pass a single operand.

    Raises ShapeError unless `pred` is a scalar, BranchTypeError if the results differ.

    >>> import functx
    >>> float(functx.lax.cond(True, lambda x: x + 1.0, lambda x: x * 10.0, 3.0))
    4.0
    """
    is_older = callable(false_fun) and not callable(true_fun)
    if len(operands) == 2 and is_older and callable(operands[1]):
        # The older order of arguments: pred, operand, function, operand, function.
        first, second = false_fun, operands[1]
        operands = true_fun, operands[0]
        true_fun = copy_function_metadata(lambda x, y: first(x), first, "cond")
        false_fun = copy_function_metadata(lambda x, y: second(y), second, "cond")
    operands = _resolve_operands(operands, operand, "cond")
    check_callables("cond", true_fun=true_fun, false_fun=false_fun)
    aval = _scalar_aval(pred, "cond", "predicate")
    if is_complex(aval.dtype):
        raise DTypeError(
            f"cond: the predicate must be a boolean or a real number; got {aval!r}",
            fix="Compare it with something, as in `x != 0`.",
        )
    traced = trace_branches({"true_fun": true_fun, "false_fun": false_fun}, operands, "cond")
    on_true, on_false = traced.programs
    traced = traced._replace(programs=(on_false, on_true))
    static_pred = _static_value(pred)
    if static_pred is not None:
        return run_branch(traced, operands, pred, int(bool(static_pred)))
    return run_branch(traced, operands, pred if aval.dtype == np.bool_ else ops.ne(pred, 0))


@api_boundary
def switch(
    index: ArrayLike,
    branches: Sequence[Callable[..., Any]],
    *operands: PyTree,
    operand: PyTree = _NOT_GIVEN,
) -> PyTree:
    """Return `branches[index](*operands)`, with the integer `index` clamped to the range.

    Like `cond`, for any number of functions.

    Raises as `cond`, and ArgumentError unless `branches` is a sequence of at least one function.

    >>> import functx
    >>> float(functx.lax.switch(2, [lambda x: x, lambda x: x * x, lambda x: -x], 3.0))
    -3.0
    """
    if isinstance(branches, Mapping) or not isinstance(branches, Iterable):
        raise ArgumentError(
            f"switch: the branches must be a sequence of functions; got {type_name(branches)}"
        )
    functions = {f"branches[{i}]": f for i, f in enumerate(branches)}
    if not functions:
        raise ArgumentError("switch: there must be at least one branch; got none")
    operands = _resolve_operands(operands, operand, "switch")
    check_callables("switch", **functions)
    aval = _scalar_aval(index, "switch", "index")
    if not is_integer(aval.dtype):
        raise DTypeError(
            f"switch: the index must be an integer; got {aval!r}",
            fix="Convert it with astype, or use cond for a condition.",
        )
    traced = trace_branches(functions, operands, "switch")
    last = len(functions) - 1
    static_index = _static_value(index) if last else 0
    if static_index is not None:
        return run_branch(traced, operands, index, min(max(int(static_index), 0), last))
    return run_branch(traced, operands, ops.clamp(0, ops.widen_index(index, last), last))


def run_branch(
    traced: TracedBranches, operands: PyTree, index: ArrayLike, known: int | None = None
) -> PyTree:
    """The result of the branch at `index`, of that at `known` if it is known while tracing."""
    programs, captured, out_tree, written = traced
    args = [*tree.flatten_with_key_data(operands)[0], *captured]
    if known is not None:
        outs = inline_or_run(programs[known], args, index)
    else:
        outs = Cond(programs)(ops.convert_element_type(index, np.int32), *args)
    num_results = len(outs) - len(written)
    # The results of an inlined branch may be views of the written arguments.
    results = copy_if_aliased(outs[:num_results], args)
    write_back_arguments(args, dict(zip(written, outs[num_results:], strict=True)))
    return tree.unflatten(out_tree, results)


def _resolve_operands(operands: tuple[Any, ...], operand: PyTree, caller: str) -> tuple[Any, ...]:
    """The operands, given by position or one as the keyword `operand`."""
    if operand is _NOT_GIVEN:
        return operands
    if operands:
        raise ArgumentError(
            f"{caller}: operands must be given by position or one as `operand`; got both",
            fix="Give all of them by position.",
        )
    return (operand,)


def _scalar_aval(x: object, caller: str, role: str) -> ShapedArray:
    """The type of an argument; raises unless it is a scalar."""
    try:
        aval = aval_of(x)
    except ArgumentError:
        raise ArgumentError(f"{caller}: the {role} must be a scalar; got {type_name(x)}") from None
    if aval.shape:
        raise ShapeError(
            f"{caller}: the {role} must be a scalar; got {aval!r}",
            fix="Reduce it with .any() or .all(), map with vmap, or choose by element with "
            "functx.numpy.where.",
        )
    return aval


def _static_value(x: ArrayLike) -> Any:
    """The value of a scalar that is known now, else None.

    While tracing these are Python and NumPy scalars and literals, otherwise all scalars.
    """
    if type(x) is Tracer:
        return x.atom.value if type(x.atom) is Literal else None
    if isinstance(x, (bool, int, float, complex, np.generic)):
        return x
    if current_builder.get() is not None:
        return None
    value = to_numpy(x)
    return value[()] if isinstance(value, np.ndarray) else None


@state_operand.register
def _state_of_cond(primitive: Cond, output: int) -> int | None:
    inputs = {continued_state(branch, output) for branch in primitive.branches}
    common = inputs.pop()
    return None if inputs or common is None else 1 + common
