"""The primitive `while`: a body that runs as long as a condition on the carry holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from functx import ops
from functx.core.backend import Split, backend
from functx.core.checking import check_operands
from functx.core.effects import is_per_element
from functx.core.errors import CollectiveError
from functx.core.index_sets import DependentOperand
from functx.core.masks import (
    T,
    indices_where,
    inexact_mask,
    linear_mask,
    scatter_where,
    select_where,
    split_list,
)
from functx.core.named_axes import batched_axis_names
from functx.core.primitive import Primitive
from functx.core.primitive_families import HasDCE, HasJet, HasPrograms
from functx.core.program import Program
from functx.core.rewriting import Rewrite, apply, cached_rewrite
from functx.core.samples import LazySamples, f64, i32, sample
from functx.core.tracer import aval_of
from functx.core.tracing import trace_closed
from functx.core.types import ShapedArray
from functx.core.typing import Avals, Cotangents, Dims, Flags, IRValue, Tangents, Value, Values
from functx.ops.operands import batch_size, literal
from functx.transforms.batching import Batch, BatchWithInferredOutDims
from functx.transforms.coefficients import Series
from functx.transforms.control.body_tracing import carry_dependence, is_linearizing
from functx.transforms.control.bounded_while import (
    CarryBelowLimit,
    LinearizedWhileBody,
    SplitForCarries,
    WithUnusedInputs,
    run_with_stacks,
)
from functx.transforms.control.checkpoint_schedule import STEP_DTYPE
from functx.transforms.control.checkpointed_while import while_backward, while_forward
from functx.transforms.control.partial_eval import (
    DCEScanBody,
    LoopPartialEval,
    PartialEvalWhile,
    SplitTranspose,
)
from functx.transforms.control.predication import (
    PredicatedLoop,
    batch_sequentially,
    must_borrow_active,
    with_index_operands,
)
from functx.transforms.dce import (
    RemoveEffects,
    Subprogram,
    UsedInputs,
    fixed_point,
    take_first_outputs,
    with_io,
)
from functx.transforms.forward_mode import JVPRewrite, Linearize
from functx.transforms.jet_rewrite import JetRewrite, ProgramSeries, groups_where
from functx.transforms.reverse_mode import SplitVJP
from functx.transforms.series import SeriesEvaluator
from functx.transforms.symbolic_zeros import continued_state, state_operand

if TYPE_CHECKING:
    from functx.lowering.stablehlo_emitter import LoweringContext
    from functx.transforms.sparsity import SparsityAnalysis

# With 64, up to comb(66, 64) = 2,145 blocks of steps are recomputed at most once.
DEFAULT_CHECKPOINTS = 64


def _sample_programs(x: ShapedArray) -> tuple[Program, Program]:
    def condition(limit: Value, n: Value, x: Value) -> list[Value]:
        return [ops.lt(n, limit)]

    def body(factor: Value, n: Value, x: Value) -> list[Value]:
        return [ops.add(n, 1), ops.mul(x, factor)]

    return (
        trace_closed(condition, [i32[()], i32[()], x], name="condition"),
        trace_closed(body, [x.update(shape=()), i32[()], x], name="body"),
    )


class While(HasPrograms, HasDCE, HasJet):
    """A loop that runs `body` on the carry as long as `condition` of the carry holds.

    Operands: the consts of the condition, the consts of the body, the initial carry. Both
    programs take their consts, then the carry. Reverse mode saves `checkpoints` carries and
    recomputes the others, or stacks the residuals of each step if there are at most `max_steps`.
    """

    condition: Program
    body: Program
    condition_consts: int
    body_consts: int
    checkpoints: int = DEFAULT_CHECKPOINTS
    max_steps: int | None = None
    unbounded = True
    samples = LazySamples(lambda: tuple(
        sample(
            i32[()], x.update(shape=()), i32[()], x, values={0: limit, 2: 1}, dtypes=(dtype,),
            condition=_sample_programs(x)[0], body=_sample_programs(x)[1], condition_consts=1, body_consts=1,
            checkpoints=checkpoints, max_steps=max_steps,
        )
        for x, dtype, limit, checkpoints, max_steps in (
            (i32[3], "i32", 4, DEFAULT_CHECKPOINTS, None),
            (f64[3], "f64", 5, 2, None),
            (f64[3], "f64", 3, DEFAULT_CHECKPOINTS, 2),
            (f64[3], "f64", 1, DEFAULT_CHECKPOINTS, None),
        )
    ))  # fmt: skip

    def abstract_eval(self, *avals: ShapedArray) -> Avals:
        m, n = self.condition_consts, self.condition_consts + self.body_consts
        carry = self.body.in_avals[self.body_consts :]
        check_operands(self, avals[:m] + avals[n:], self.condition.in_avals)
        check_operands(self, avals[m:], self.body.in_avals)
        check_operands(self, self.body.out_avals, carry)
        return carry

    def split_operands(self, items: Sequence[T]) -> tuple[Sequence[T], Sequence[T], Sequence[T]]:
        """Split `items`, one an operand, into those of the condition, body and carry."""
        condition, body, carry = split_list(items, [self.condition_consts, self.body_consts])
        return condition, body, carry

    def with_program(
        self, condition: Program, body: Program, condition_consts: int, body_consts: int
    ) -> While:
        """A loop of other programs with the reverse-mode options of this one."""
        return While(
            condition, body, condition_consts, body_consts, self.checkpoints, self.max_steps
        )

    def hoist_constants(
        self, programs: Sequence[Program], extras: Sequence[Sequence[T]], operands: Sequence[T]
    ) -> tuple[Primitive, Sequence[T]]:
        m, n = self.condition_consts, self.body_consts
        condition, body = programs
        loop = self.with_program(condition, body, m + len(extras[0]), n + len(extras[1]))
        return loop, [*extras[0], *operands[:m], *extras[1], *operands[m:]]

    def with_max_steps(self, steps: int) -> While:
        """This loop, with the promise that it runs at most `steps` steps."""
        return While(
            self.condition,
            self.body,
            self.condition_consts,
            self.body_consts,
            self.checkpoints,
            steps,
        )

    def varying(self, mask: Flags) -> tuple[tuple[bool, ...], list[bool]]:
        """The inputs of the body that vary if the operands of `mask` do; the outputs."""
        count = self.body_consts
        body_mask = mask[self.condition_consts :]
        return carry_dependence(self.body, count, len(self.body.outputs), body_mask)

    def varying_outputs(self, avals: Avals, active: Flags) -> Flags:
        return self.varying(active)[1]

    def dce(self, used: Flags) -> tuple[Primitive, Sequence[int], Sequence[int]] | None:
        m, n = self.condition_consts, self.body_consts
        read_by_condition = cached_rewrite(UsedInputs(), self.condition)
        needed = tuple([on or m + i in read_by_condition for i, on in enumerate(used)])
        rewritten = cached_rewrite(DCEScanBody(n, len(used), needed), self.body)
        if rewritten is None:
            return None
        body, inputs, outputs = rewritten
        condition_inputs = (*range(m), *[m + i for i in outputs])
        condition = cached_rewrite(Subprogram(inputs=condition_inputs), self.condition)
        loop = self.with_program(condition, body, m, sum([i < n for i in inputs]))
        return loop, [*range(m), *[m + i for i in inputs]], outputs

    def jvp(self, primals: Values, tangents: Tangents) -> tuple[Values, Tangents]:
        condition_consts, consts, carry = self.split_operands(primals)
        _, dconsts, dcarry = self.split_operands(tangents)
        varying, out_varying = self.varying([t is not None for t in tangents])
        if not any(varying):
            return self(*primals), [None] * len(carry)
        like = select_where(carry, out_varying)
        dcarry = ops.instantiate_zeros(select_where(dcarry, out_varying), like)
        dconsts = [t for t in dconsts if t is not None]
        if is_linearizing() and self.max_steps is not None:
            outs, results = self.run_linearized(varying, primals, dconsts, dcarry)
            return outs, scatter_where(results, out_varying)
        program, condition, outs = self.body, self.condition, []
        jvp_rewrite: JVPRewrite | SeparateJVP = JVPRewrite(varying)
        if is_linearizing():
            # The loop on tangents will be transposed: outputs and effects come from another loop.
            outs = self(*primals)
            program = cached_rewrite(RemoveEffects(), program)
            condition = cached_rewrite(RemoveEffects(), condition)
            jvp_rewrite = SeparateJVP(varying)
        condition = cached_rewrite(WithUnusedInputs(tuple([aval_of(x) for x in dcarry])), condition)
        body = cached_rewrite(JVPWhileBody(len(consts), jvp_rewrite), program)
        both = self.with_program(condition, body, len(condition_consts), len(consts) + len(dconsts))
        results = both(*condition_consts, *consts, *dconsts, *carry, *dcarry)
        return outs or results[: len(carry)], scatter_where(results[len(carry) :], out_varying)

    def jet(self, evaluator: SeriesEvaluator, *args: Series) -> list[Series] | None:
        if any(x.is_shifted for x in args):
            return None
        varying, out_varying = self.varying([not x.is_constant for x in args])
        condition_consts, consts, carry = self.split_operands([x.first.value for x in args])

        def results(terms: int) -> tuple[Values, list[list[Value | None]]]:
            given = tuple([(True,) * terms if on else () for on in varying])
            rewrite = JetRewrite(evaluator.curves, terms, given)
            body = cached_rewrite(JVPWhileBody(len(consts), rewrite), self.body)
            orders = [
                evaluator.instantiated(x, terms) if on else []
                for x, on in zip(args[len(condition_consts) :], varying, strict=True)
            ]
            dconsts = [c for x in orders[: len(consts)] for c in x]
            dcarry = [c for x in orders[len(consts) :] for c in x]
            unused = WithUnusedInputs(tuple([aval_of(c) for c in dcarry]))
            condition = cached_rewrite(unused, self.condition)
            loop = self.with_program(
                condition, body, len(condition_consts), len(consts) + len(dconsts)
            )
            outs = loop(*condition_consts, *consts, *dconsts, *carry, *dcarry)
            return outs[: len(carry)], groups_where(outs[len(carry) :], terms, out_varying)

        return ProgramSeries(results).outputs(self.body.out_avals, out_varying)

    def run_linearized(
        self, varying: tuple[bool, ...], primals: Values, dconsts: Tangents, dcarry: Tangents
    ) -> tuple[list[Value], list[Value]]:
        """The outputs, and their tangents by a loop over the stacked residuals of the steps."""
        condition_consts, consts, carry = self.split_operands(primals)
        assert self.max_steps is not None
        split = cached_rewrite(
            PartialEvalWhile(Linearize(varying), len(consts), len(carry)), self.body
        )
        outs, (steps, *stacks) = run_with_stacks(self, split.known, condition_consts, consts, carry)
        invariants = apply(None, split.invariant, consts)
        kept = tuple(select_where(varying[len(consts) :], inexact_mask(self.body.out_avals)))
        step = LinearizedWhileBody(len(dconsts), len(dcarry), len(invariants), self.max_steps, kept)
        body = cached_rewrite(step, split.unknown)
        num_consts = len(dconsts) + len(invariants) + len(stacks)
        condition = cached_rewrite(CarryBelowLimit(num_consts, 0, "before"), body)
        loop = self.with_program(condition, body, 1, num_consts)
        results = loop(steps, *dconsts, *invariants, *stacks, literal(0, STEP_DTYPE), *dcarry)
        return outs, results[1:]

    def carry_cotangents(self, cts: Cotangents, varying: Flags) -> list[Value]:
        """The cotangents of the carries that vary, None replaced by zeros."""
        avals, carry_mask = self.body.out_avals, varying[self.body_consts :]
        return ops.instantiate_zeros(select_where(cts, carry_mask), select_where(avals, carry_mask))

    def backward_partial_eval(
        self, rewrite: Split[tuple[Program, Program]], varying: Flags, consts: int, carries: int
    ) -> LoopPartialEval:
        """The body split by `rewrite`, whose known program takes `consts` and `carries`.

        The unknown program takes the cotangents of the carries in `varying`.
        """
        split = SplitForCarries(rewrite, tuple(varying[self.body_consts :]))
        return cached_rewrite(PartialEvalWhile(split, consts, carries), self.body)

    def vjp_partial_eval(self, varying: tuple[bool, ...]) -> LoopPartialEval:
        """The split for reverse mode."""
        n = self.body_consts
        rewrite = backend.limit_residuals(SplitVJP(varying), consts=n)
        return self.backward_partial_eval(rewrite, varying, n, len(self.body.outputs))

    def forward(self, args: Values, active: Flags) -> tuple[Values, Any]:
        varying, _ = self.varying(active)
        if not any(varying):
            return self(*args), None
        split = self.vjp_partial_eval(varying)
        return while_forward(self, split, *self.split_operands(args))

    def vjp(self, cts: Cotangents, residuals: Values, args: Values, active: Flags) -> Cotangents:
        varying, _ = self.varying(active)
        if not any(varying):
            return [None] * len(args)
        split = self.vjp_partial_eval(varying)
        condition_consts, consts, _ = self.split_operands(args)
        carry_cts = self.carry_cotangents(cts, varying)
        in_cts = while_backward(self, split, carry_cts, condition_consts, consts, residuals)
        return [*[None] * self.condition_consts, *scatter_where(in_cts, varying)]

    def index_sets(
        self, sets: SparsityAnalysis, *operands: DependentOperand
    ) -> Sequence[DependentOperand]:
        condition_operands, consts, carry = self.split_operands(operands)
        while sets.can_follow(self.body):
            (runs,) = sets.run(self.condition, [*condition_operands, *carry])
            known = runs.value()
            if known is None:
                break
            if not known:
                return carry
            carry = sets.run(self.body, [*consts, *carry])

        def step(carry: Sequence[DependentOperand]) -> Sequence[DependentOperand]:
            return sets.run(self.body, [*consts, *carry])

        return sets.fixed_point(step, carry, operands)

    def transpose(self, cts: Cotangents, *args: Value) -> Cotangents:
        linear = linear_mask(args)
        varying, _ = self.varying(linear)
        m, n = self.condition_consts, self.body_consts
        known_mask = [not on for on in varying]
        num_consts, carries = sum(known_mask[:n]), sum(known_mask[n:])
        rewrite = SplitTranspose(varying, n, len(self.body.outputs))
        split = self.backward_partial_eval(rewrite, varying, num_consts, carries)
        # The carries that do not vary are computed by a loop of their own.
        body = take_first_outputs(split.known, carries)
        condition_inputs = indices_where([*[True] * m, *known_mask[n:]])
        condition = cached_rewrite(Subprogram(inputs=condition_inputs), self.condition)
        known = self.with_program(condition, body, m, num_consts)
        condition_consts, consts, carry = self.split_operands(args)
        consts, carry = select_where(consts, known_mask[:n]), select_where(carry, known_mask[n:])
        _, residuals = while_forward(known, split, condition_consts, consts, carry)
        carry_cts = self.carry_cotangents(cts, varying)
        body_cts = while_backward(known, split, carry_cts, condition_consts, consts, residuals)
        in_cts = [*[None] * m, *scatter_where(body_cts, varying)]
        return [ct if on else None for ct, on in zip(in_cts, linear, strict=True)]

    def batch(self, args: Values, dims: Dims) -> tuple[Values, Dims]:
        size = batch_size(args, dims)
        is_batched = [d is not None for d in dims]
        condition_mask, consts_mask, initially_batched = self.split_operands(is_batched)

        def step(carry_mask: list[bool]) -> tuple[list[bool], Program | None]:
            in_dims = tuple([0 if on else None for on in (*condition_mask, *carry_mask)])
            condition, (stops,) = cached_rewrite(
                BatchWithInferredOutDims(size, in_dims), self.condition
            )
            if stops is not None:
                return carry_mask, None
            in_dims = tuple([0 if on else None for on in (*consts_mask, *carry_mask)])
            _, body_dims = cached_rewrite(BatchWithInferredOutDims(size, in_dims), self.body)
            both = zip(carry_mask, body_dims, strict=True)
            return [on or d is not None for on, d in both], condition

        carry_mask, condition = fixed_point(list(initially_batched), step)
        if condition is None:
            return self.batch_predicated(size, args, dims)
        in_dims = tuple([0 if on else None for on in (*consts_mask, *carry_mask)])
        out_dims = tuple([0 if on else None for on in carry_mask])
        body = cached_rewrite(Batch(size, in_dims, out_dims), self.body)
        mask = (*condition_mask, *consts_mask, *carry_mask)
        args = [
            ops.batch_dim_at(x, d, 0, size) if on else x
            for x, d, on in zip(args, dims, mask, strict=True)
        ]
        loop = self.with_program(condition, body, len(condition_mask), len(consts_mask))
        return loop(*args), out_dims

    def batch_predicated(
        self, size: int, args: Values, dims: Sequence[int | None]
    ) -> tuple[Values, Dims]:
        """The batched outputs and their dimensions if each element stops on its own."""
        if (name := batched_axis_names().name) in self.named_axes:
            with_indices = with_index_operands(self, args, dims, name)
            if with_indices is None:
                raise CollectiveError(
                    "while: the condition must be the same along a named axis that the loop "
                    f"communicates over; got one that differs along {name!r}",
                    fix=f"Let all run while any must: functx.lax.pmax(condition, {name!r}).",
                )
            primitive, args, dims = with_indices
            if primitive is not self:
                return primitive.batch(args, dims)
        if is_per_element(self.effects):
            return batch_sequentially(self, args, dims)
        condition_consts, consts, carry = self.split_operands(args)
        condition_dims, consts_dims, carry_dims = self.split_operands(dims)
        n = len(consts)
        unchanged = [a is v for a, v in zip(self.body.outputs, self.body.inputs[n:], strict=True)]
        invariant = [*[True] * n, *unchanged]
        dims_and_invariant = zip((*consts_dims, *carry_dims), invariant, strict=True)
        borrow_active = must_borrow_active(
            self.body, [d is None and on for d, on in dims_and_invariant]
        )
        any_active, body = cached_rewrite(
            PredicatedLoop(self.condition, len(condition_consts), borrow_active), self.body
        )
        condition = cached_rewrite(
            Batch(size, (*condition_dims, *carry_dims), (0,)), self.condition
        )
        (mask,) = apply(None, condition, [*condition_consts, *carry])
        outs, out_dims = self.with_program(any_active, body, 0, len(condition_consts) + n).batch(
            [*condition_consts, *consts, mask, *carry],
            [*condition_dims, *consts_dims, 0, *carry_dims],
        )
        return outs[1:], out_dims[1:]

    def lower(self, ctx: LoweringContext, *values: IRValue) -> Sequence[IRValue]:
        return ctx.while_loop(self, values)


class JVPWhileBody(Rewrite[Program]):
    """Rewrites a body to one with tangents: consts, their tangents, carry, its tangents."""

    consts: int
    jvp_rewrite: JVPRewrite | SeparateJVP | JetRewrite

    def __call__(self, program: Program) -> Program:
        rewrite, count, n = self.jvp_rewrite, len(program.inputs), self.consts
        jvp_program, varying = cached_rewrite(rewrite, program), rewrite.varying
        tangents = groups_where(jvp_program.inputs[count:], rewrite.terms, varying)
        dconsts, dcarry = (
            [t for group in groups for t in group if t is not None]
            for groups in (tangents[:n], tangents[n:])
        )
        out_primals = jvp_program.outputs[: len(program.outputs)]
        inexact = inexact_mask(program.out_avals)
        out_tangents = groups_where(jvp_program.outputs[len(out_primals) :], rewrite.terms, inexact)
        carry_tangents = [
            t for group in select_where(out_tangents, varying[n:]) for t in group if t is not None
        ]
        inputs = [*jvp_program.inputs[:n], *dconsts, *jvp_program.inputs[n:count], *dcarry]
        return with_io(jvp_program, inputs, [*out_primals, *carry_tangents])


class SeparateJVP(Rewrite[Program]):
    """Like `JVPRewrite`, but computes primals and tangents by separate equations.

    So the equations on tangents are linear and can be transposed.
    """

    varying: tuple[bool, ...]
    terms: ClassVar[int] = 1

    def __call__(self, program: Program) -> Program:
        known, linear = cached_rewrite(Linearize(self.varying), program)
        n, count = len(program.inputs), len(program.outputs)

        def body(*args: Value) -> list[Value]:
            results = apply(None, known, args[:n])
            return [*results[:count], *apply(None, linear, [*args[n:], *results[count:]])]

        tangents = select_where(program.in_avals, self.varying)
        return trace_closed(body, [*program.in_avals, *tangents], name=linear.name)


@state_operand.register
def _state_of_while(primitive: While, output: int) -> int | None:
    carry = primitive.body_consts + output
    is_carried = continued_state(primitive.body, output) == carry
    return primitive.condition_consts + carry if is_carried else None
