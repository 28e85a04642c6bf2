"""The primitive `while`: a body that runs as long as a condition on the carry holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from functx import ops
from functx.core.errors import CollectiveError
from functx.core.named_axes import batched_axis_names
from functx.core.primitive import Primitive
from functx.core.program import BATCHED_EFFECTS, Program
from functx.core.records import Rewrite
from functx.core.rewriting import apply, cached_rewrite
from functx.core.samples import f64, i32, sample
from functx.core.tracing import aval_of, trace_closed
from functx.core.types import ShapedArray
from functx.ops.operands import batch_size, literal
from functx.transforms.control.body_tracing import (
    carry_dependence,
    check_operands,
    is_linearizing,
)
from functx.transforms.control.bounded_while import (
    LinearizedWhileBody,
    PartialEvalWhile,
    SplitWhileTranspose,
    SplitWhileVJP,
    WithUnusedInputs,
    run_with_stacks,
)
from functx.transforms.control.checkpoint_schedule import STEP_DTYPE
from functx.transforms.control.checkpointed_while import while_backward, while_forward
from functx.transforms.control.predication import (
    PredicatedLoop,
    batch_sequentially,
    must_borrow_active,
)
from functx.transforms.control.scan_partial_eval import DCEScanBody
from functx.transforms.dce import RemoveEffects, Subprogram, UsedInputs, take_first_outputs, with_io
from functx.transforms.forward_mode import JVPRewrite, Linearize
from functx.transforms.operand_masks import (
    indices_where,
    inexact_mask,
    instantiate_zeros,
    linear_mask,
    scatter_where,
    select_where,
)
from functx.transforms.vmap import Batch, BatchWithInferredOutDims

# So up to comb(66, 64) = 2,145 blocks of steps are computed once more, and none twice.
DEFAULT_CHECKPOINTS = 64


def _sample_programs(x: ShapedArray) -> tuple[Program, Program]:
    def condition(limit: Any, n: Any, x: Any) -> list[Any]:
        return [ops.lt(n, limit)]

    def body(factor: Any, n: Any, x: Any) -> list[Any]:
        return [ops.add(n, 1), ops.mul(x, factor)]

    return (
        trace_closed(condition, [i32[()], i32[()], x], name="condition"),
        trace_closed(body, [x.update(shape=()), i32[()], x], name="body"),
    )


class While(Primitive):
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
    multiple_results = True
    unbounded = True
    samples = tuple(
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
    )  # fmt: skip

    def abstract_eval(self, *avals):
        m, n = self.condition_consts, self.condition_consts + self.body_consts
        carry = self.body.in_avals[self.body_consts :]
        check_operands(self, avals[:m] + avals[n:], self.condition.in_avals)
        check_operands(self, avals[m:], self.body.in_avals)
        check_operands(self, self.body.out_avals, carry)
        return carry

    def split_operands(self, items: Sequence[Any]) -> tuple[Any, Any, Any]:
        """Split `items`, one an operand, into those of the condition, body and carry."""
        m, n = self.condition_consts, self.condition_consts + self.body_consts
        return items[:m], items[m:n], items[n:]

    def with_program(self, condition: Program, body: Program, shared: int, consts: int) -> While:
        """A loop of other programs with the reverse-mode options of this one."""
        return While(condition, body, shared, consts, self.checkpoints, self.max_steps)

    def hoist_constants(self, programs, extras, operands):
        m, n = self.condition_consts, self.body_consts
        condition, body = programs
        again = self.with_program(condition, body, m + len(extras[0]), n + len(extras[1]))
        return again, [*extras[0], *operands[:m], *extras[1], *operands[m:]]

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

    def varying(self, flags: Sequence[bool]) -> tuple[tuple[bool, ...], list[bool]]:
        """The inputs of the body that vary if the operands of `mask` do; the outputs."""
        count = self.body_consts
        body_flags = flags[self.condition_consts :]
        return carry_dependence(self.body, count, len(self.body.outputs), body_flags)

    def varying_outputs(self, avals, active):
        return self.varying(active)[1]

    def dce(self, used):
        m, n = self.condition_consts, self.body_consts
        tested = cached_rewrite(UsedInputs(), self.condition)
        wanted = tuple([on or m + i in tested for i, on in enumerate(used)])
        found = cached_rewrite(DCEScanBody(n, len(used), wanted), self.body)
        if found is None:
            return None
        body, inputs, outputs = found
        places = (*range(m), *[m + i for i in outputs])
        condition = cached_rewrite(Subprogram(inputs=places), self.condition)
        again = self.with_program(condition, body, m, sum([i < n for i in inputs]))
        return again, [*range(m), *[m + i for i in inputs]], outputs

    def jvp(self, primals, tangents):
        shared, consts, carry = self.split_operands(primals)
        _, dconsts, dcarry = self.split_operands(tangents)
        flags, out_flags = self.varying([t is not None for t in tangents])
        if not any(flags):
            return self(*primals), [None] * len(carry)
        moving = instantiate_zeros(select_where(dcarry, out_flags), select_where(carry, out_flags))
        moved_consts = [t for t in dconsts if t is not None]
        if is_linearizing() and self.max_steps is not None:
            outs, found = self.run_linearized(flags, primals, moved_consts, moving)
            return outs, scatter_where(found, out_flags)
        program, condition, outs = self.body, self.condition, []
        push: Any = JVPRewrite(flags)
        if is_linearizing():
            # The loop on tangents is not where values may come from, nor effects again.
            outs = self(*primals)
            program = cached_rewrite(RemoveEffects(), program)
            condition = cached_rewrite(RemoveEffects(), condition)
            push = SeparateJVP(flags)
        condition = cached_rewrite(WithUnusedInputs(tuple([aval_of(x) for x in moving])), condition)
        body = cached_rewrite(JVPWhileBody(len(consts), push), program)
        both = self.with_program(condition, body, len(shared), len(consts) + len(moved_consts))
        found = both(*shared, *consts, *moved_consts, *carry, *moving)
        return outs or found[: len(carry)], scatter_where(found[len(carry) :], out_flags)

    def run_linearized(
        self, flags: tuple[bool, ...], primals: Any, dconsts: Sequence[Any], dcarry: Sequence[Any]
    ) -> tuple[list[Any], list[Any]]:
        """The outputs, and their tangents by a loop over the stacked residuals of the steps."""
        shared, consts, carry = self.split_operands(primals)
        assert self.max_steps is not None
        halves = cached_rewrite(PartialEvalWhile(Linearize(flags), len(consts)), self.body)
        outs, (steps, *stacks) = run_with_stacks(self, halves.known, shared, consts, carry)
        fixed = apply(None, halves.invariant, consts)
        kept = tuple(select_where(flags[len(consts) :], inexact_mask(self.body.out_avals)))
        step = LinearizedWhileBody(len(dconsts), len(dcarry), len(fixed), self.max_steps, kept)
        body = cached_rewrite(step, halves.unknown)
        held = len(dconsts) + len(fixed) + len(stacks)
        condition = cached_rewrite(StepBelowLimit(held), body)
        loop = self.with_program(condition, body, 1, held)
        found = loop(steps, *dconsts, *fixed, *stacks, literal(0, STEP_DTYPE), *dcarry)
        return outs, found[1:]

    def carry_cotangents(self, cts: Sequence[Any], flags: Sequence[bool]) -> list[Any]:
        """The cotangents of the carries that vary, None replaced by zeros."""
        avals, on = self.body.out_avals, flags[self.body_consts :]
        return instantiate_zeros(select_where(cts, on), select_where(avals, on))

    def forward(self, args, active):
        flags, _ = self.varying(active)
        if not any(flags):
            return self(*args), None
        halves = cached_rewrite(SplitWhileVJP(flags, self.body_consts), self.body)
        return while_forward(self, halves, *self.split_operands(args))

    def vjp(self, cts, known, args, active):
        flags, _ = self.varying(active)
        if not any(flags):
            return [None] * len(args)
        halves = cached_rewrite(SplitWhileVJP(flags, self.body_consts), self.body)
        shared, consts, _ = self.split_operands(args)
        given = self.carry_cotangents(cts, flags)
        found = while_backward(self, halves, given, shared, consts, known)
        return [*[None] * self.condition_consts, *scatter_where(found, flags)]

    def transpose(self, cts, *args):
        linear = linear_mask(args)
        flags, _ = self.varying(linear)
        m, n = self.condition_consts, self.body_consts
        fixed = [not on for on in flags]
        halves = cached_rewrite(SplitWhileTranspose(flags, n), self.body)
        # The values in the loop are known ones, computed by a loop of their own.
        body = take_first_outputs(halves.known, len(self.body.outputs) - sum(flags[n:]))
        by_condition = indices_where([*[True] * m, *fixed[n:]])
        condition = cached_rewrite(Subprogram(inputs=by_condition), self.condition)
        known = self.with_program(condition, body, m, sum(fixed[:n]))
        shared, consts, carry = self.split_operands(args)
        consts, carry = select_where(consts, fixed[:n]), select_where(carry, fixed[n:])
        _, states = while_forward(known, halves, shared, consts, carry)
        given = self.carry_cotangents(cts, flags)
        found = while_backward(known, halves, given, shared, consts, states)
        pulled = [*[None] * m, *scatter_where(found, flags)]
        return [ct if on else None for ct, on in zip(pulled, linear, strict=True)]

    def batch(self, args, dims):
        size = batch_size(args, dims)
        shared_on, consts_on, carry_on = self.split_operands([d is not None for d in dims])
        while True:
            in_dims = tuple([0 if on else None for on in (*shared_on, *carry_on)])
            runs, (stops,) = cached_rewrite(BatchWithInferredOutDims(size, in_dims), self.condition)
            if stops is not None:
                return self.batch_predicated(size, args, dims)
            in_dims = tuple([0 if on else None for on in (*consts_on, *carry_on)])
            _, natural = cached_rewrite(BatchWithInferredOutDims(size, in_dims), self.body)
            grown = [on or d is not None for on, d in zip(carry_on, natural, strict=True)]
            if grown == carry_on:
                break
            carry_on = grown
        out_dims = tuple([0 if on else None for on in carry_on])
        body = cached_rewrite(Batch(size, in_dims, out_dims), self.body)
        args = [
            ops.batch_dim_at(x, d, 0, size) if on else x
            for x, d, on in zip(args, dims, (*shared_on, *consts_on, *carry_on), strict=True)
        ]
        return self.with_program(runs, body, len(shared_on), len(consts_on))(*args), out_dims

    def batch_predicated(self, size: int, args: Sequence[Any], dims: Sequence[int | None]) -> Any:
        """The batched outputs and their dimensions if each element stops on its own."""
        if (name := batched_axis_names().name) in self.named_axes:
            raise CollectiveError(
                "while: a condition must be the same in all places of an axis that the loop works "
                f"across; got one that differs along {name!r}",
                fix=f"Let all go on while any must: functx.lax.pmax(condition, {name!r}).",
            )
        if self.effects & BATCHED_EFFECTS:
            return batch_sequentially(self, args, dims)
        (shared, consts, carry), (shared_dims, consts_dims, carry_dims) = (
            self.split_operands(items) for items in (args, dims)
        )
        n = len(consts)
        kept = [a is v for a, v in zip(self.body.outputs, self.body.inputs[n:], strict=True)]
        same = [*[True] * n, *kept]
        given = zip((*consts_dims, *carry_dims), same, strict=True)
        along = must_borrow_active(self.body, [d is None and on for d, on in given])
        any_active, body = cached_rewrite(
            PredicatedLoop(self.condition, len(shared), along), self.body
        )
        runs = cached_rewrite(Batch(size, (*shared_dims, *carry_dims), (0,)), self.condition)
        (live,) = apply(None, runs, [*shared, *carry])
        outs, out_dims = self.with_program(any_active, body, 0, len(shared) + n).batch(
            [*shared, *consts, live, *carry], [*shared_dims, *consts_dims, 0, *carry_dims]
        )
        return outs[1:], out_dims[1:]

    def lower(self, ctx, *values):
        return ctx.while_loop(self, values)


class JVPWhileBody(Rewrite[Program]):
    """Rewrites a body to one with tangents: consts, their tangents, carry, its tangents."""

    consts: int
    jvp_rewrite: Any

    def __call__(self, program: Program) -> Program:
        pushed, flags = cached_rewrite(self.jvp_rewrite, program), self.jvp_rewrite.varying
        count, n = len(program.inputs), self.consts
        tangents = scatter_where(pushed.inputs[count:], flags)
        dconsts = [t for t in tangents[:n] if t is not None]
        dcarry = [t for t in tangents[n:] if t is not None]
        outs = pushed.outputs[: len(program.outputs)]
        found = scatter_where(pushed.outputs[len(outs) :], inexact_mask(program.out_avals))
        moved = select_where(found, flags[n:])
        inputs = [*pushed.inputs[:n], *dconsts, *pushed.inputs[n:count], *dcarry]
        return with_io(pushed, inputs, [*outs, *moved])


class SeparateJVP(Rewrite[Program]):
    """Like `JVPRewrite`, but computes primals and tangents by separate equations.

    So the equations on tangents are linear and can be transposed.
    """

    varying: tuple[bool, ...]

    def __call__(self, program: Program) -> Program:
        values, linear = cached_rewrite(Linearize(self.varying), program)
        n, count = len(program.inputs), len(program.outputs)

        def body(*args: Any) -> list[Any]:
            found = apply(None, values, args[:n])
            return [*found[:count], *apply(None, linear, [*args[n:], *found[count:]])]

        tangents = select_where(program.in_avals, self.varying)
        return trace_closed(body, [*program.in_avals, *tangents], name=linear.name)


class StepBelowLimit(Rewrite[Program]):
    """Builds the condition that the first carry of a body, after its `consts`, is below a limit.

    The limit is the only const of the condition.
    """

    consts: int

    def __call__(self, body: Program) -> Program:
        avals = [body.in_avals[self.consts], *body.in_avals[self.consts :]]
        return trace_closed(lambda limit, step, *_: [ops.lt(step, limit)], avals, name="before")
