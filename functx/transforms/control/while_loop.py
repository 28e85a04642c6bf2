"""`while`: a program run on what it returned the time before, until a condition fails."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from functx.core.avals import ShapedArray
from functx.core.axes import batched_names
from functx.core.effects import OF_LANES
from functx.core.errors import CollectiveError
from functx.core.primitive import Primitive
from functx.core.program import Program
from functx.core.records import Rewrite
from functx.core.rewriting import apply, rewritten
from functx.core.samples import f64, i32, sample
from functx.core.tracing import aval_of, trace_closed
from functx.ops.arithmetic import add, mul
from functx.ops.comparison import lt
from functx.ops.operands import batch_size, literal
from functx.ops.shaping import batch_at
from functx.transforms.batching import Batch, NaturalBatch
from functx.transforms.control.checkpointing import keep, pull_back
from functx.transforms.control.lanes import GatedLoop, must_go_along, one_by_one
from functx.transforms.control.loop_split import Trim
from functx.transforms.control.schedule import INT
from functx.transforms.control.stacking import (
    Ignoring,
    PullHalves,
    SplitBody,
    SteppingForward,
    TransposeHalves,
    keep_all,
)
from functx.transforms.control.tracing import (
    carried_dependence,
    check_operands,
    linearizing,
)
from functx.transforms.effects import WithoutEffects
from functx.transforms.forward_mode import Linearize, PushForward
from functx.transforms.marks import (
    chosen,
    inexact_marks,
    linear_marks,
    places_of,
    spread,
    zeros_for_none,
)
from functx.transforms.parts import Between, Needed, first_outputs, rewired

# So up to comb(66, 64) = 2,145 blocks of steps are computed once more, and none twice.
CHECKPOINTS = 64


def _examples(x: ShapedArray) -> tuple[Program, Program]:
    def condition(limit: Any, n: Any, x: Any) -> list[Any]:
        return [lt(n, limit)]

    def body(factor: Any, n: Any, x: Any) -> list[Any]:
        return [add(n, 1), mul(x, factor)]

    return (
        trace_closed(condition, [i32[()], i32[()], x], name="condition"),
        trace_closed(body, [x.update(shape=()), i32[()], x], name="body"),
    )


class While(Primitive):
    """`body` run on what it returned the time before, as long as `condition` of that holds.

    Operands: the consts of the condition, the consts of the body, the carry at first. Both
    programs take their consts, then the carry. Reverse mode keeps as many states as
    `checkpoints` says, or what each step leaves behind if there are at most `max_steps`.
    """

    condition: Program
    body: Program
    condition_consts: int
    body_consts: int
    checkpoints: int = CHECKPOINTS
    max_steps: int | None = None
    multiple_results = True
    unbounded = True
    samples = tuple(
        sample(
            i32[()], x.update(shape=()), i32[()], x, values={0: limit, 2: 1}, dtypes=(dtype,),
            condition=_examples(x)[0], body=_examples(x)[1], condition_consts=1, body_consts=1,
            checkpoints=checkpoints, max_steps=max_steps,
        )
        for x, dtype, limit, checkpoints, max_steps in (
            (i32[3], "i32", 4, CHECKPOINTS, None),
            (f64[3], "f64", 5, 2, None),
            (f64[3], "f64", 3, CHECKPOINTS, 2),
            (f64[3], "f64", 1, CHECKPOINTS, None),
        )
    )  # fmt: skip

    def abstract_eval(self, *avals):
        m, n = self.condition_consts, self.condition_consts + self.body_consts
        carry = self.body.in_avals[self.body_consts :]
        check_operands(self, avals[:m] + avals[n:], self.condition.in_avals)
        check_operands(self, avals[m:], self.body.in_avals)
        check_operands(self, self.body.out_avals, carry)
        return carry

    def groups(self, items: Sequence[Any]) -> tuple[Any, Any, Any]:
        """`items`, one an operand: those of the condition, of the body, and of the carry."""
        m, n = self.condition_consts, self.condition_consts + self.body_consts
        return items[:m], items[m:n], items[n:]

    def again(self, condition: Program, body: Program, shared: int, consts: int) -> While:
        """A loop of other programs with the means of this one for reverse mode."""
        return While(condition, body, shared, consts, self.checkpoints, self.max_steps)

    def hoist(self, programs, extras, operands):
        m, n = self.condition_consts, self.body_consts
        condition, body = programs
        again = self.again(condition, body, m + len(extras[0]), n + len(extras[1]))
        return again, [*extras[0], *operands[:m], *extras[1], *operands[m:]]

    def bounded(self, steps: int) -> While:
        """This loop, known to run at most so many steps."""
        return While(
            self.condition,
            self.body,
            self.condition_consts,
            self.body_consts,
            self.checkpoints,
            steps,
        )

    def varying(self, flags: Sequence[bool]) -> tuple[tuple[bool, ...], list[bool]]:
        """The consts and carries of the body that vary when operands do; the outputs."""
        count = self.body_consts
        body_flags = flags[self.condition_consts :]
        return carried_dependence(self.body, count, len(self.body.outputs), body_flags)

    def varying_outputs(self, avals, active):
        return self.varying(active)[1]

    def trim(self, used):
        m, n = self.condition_consts, self.body_consts
        tested = rewritten(Needed(), self.condition)
        wanted = tuple([on or m + i in tested for i, on in enumerate(used)])
        found = rewritten(Trim(n, len(used), wanted), self.body)
        if found is None:
            return None
        body, inputs, outputs = found
        places = (*range(m), *[m + i for i in outputs])
        condition = rewritten(Between(inputs=places), self.condition)
        again = self.again(condition, body, m, sum([i < n for i in inputs]))
        return again, [*range(m), *[m + i for i in inputs]], outputs

    def jvp(self, primals, tangents):
        shared, consts, carry = self.groups(primals)
        _, dconsts, dcarry = self.groups(tangents)
        flags, out_flags = self.varying([t is not None for t in tangents])
        if not any(flags):
            return self(*primals), [None] * len(carry)
        moving = zeros_for_none(chosen(dcarry, out_flags), chosen(carry, out_flags))
        moved_consts = [t for t in dconsts if t is not None]
        if linearizing() and self.max_steps is not None:
            outs, found = self.linear_loop(flags, primals, moved_consts, moving)
            return outs, spread(found, out_flags)
        program, condition, outs = self.body, self.condition, []
        push: Any = PushForward(flags)
        if linearizing():
            # The loop on tangents is not where values may come from, nor effects again.
            outs = self(*primals)
            program = rewritten(WithoutEffects(), program)
            condition = rewritten(WithoutEffects(), condition)
            push = PushApart(flags)
        condition = rewritten(Ignoring(tuple([aval_of(x) for x in moving])), condition)
        body = rewritten(PushedBody(len(consts), push), program)
        both = self.again(condition, body, len(shared), len(consts) + len(moved_consts))
        found = both(*shared, *consts, *moved_consts, *carry, *moving)
        return outs or found[: len(carry)], spread(found[len(carry) :], out_flags)

    def linear_loop(
        self, flags: tuple[bool, ...], primals: Any, dconsts: Sequence[Any], dcarry: Sequence[Any]
    ) -> tuple[list[Any], list[Any]]:
        """The outputs, and the tangents by a loop over what the steps to those left behind."""
        shared, consts, carry = self.groups(primals)
        assert self.max_steps is not None
        halves = rewritten(SplitBody(Linearize(flags), len(consts)), self.body)
        outs, (steps, *stacks) = keep_all(self, halves.values, shared, consts, carry)
        fixed = apply(None, halves.invariant, consts)
        kept = tuple(chosen(flags[len(consts) :], inexact_marks(self.body.out_avals)))
        step = SteppingForward(len(dconsts), len(dcarry), len(fixed), self.max_steps, kept)
        body = rewritten(step, halves.rest)
        held = len(dconsts) + len(fixed) + len(stacks)
        condition = rewritten(Before(held), body)
        loop = self.again(condition, body, 1, held)
        found = loop(steps, *dconsts, *fixed, *stacks, literal(0, INT), *dcarry)
        return outs, found[1:]

    def carry_cotangents(self, cts: Sequence[Any], flags: Sequence[bool]) -> list[Any]:
        """The cotangents of the carries that vary, zeros for None."""
        avals, on = self.body.out_avals, flags[self.body_consts :]
        return zeros_for_none(chosen(cts, on), chosen(avals, on))

    def forward(self, args, active):
        flags, _ = self.varying(active)
        if not any(flags):
            return self(*args), None
        halves = rewritten(PullHalves(flags, self.body_consts), self.body)
        return keep(self, halves, *self.groups(args))

    def vjp(self, cts, known, args, active):
        flags, _ = self.varying(active)
        if not any(flags):
            return [None] * len(args)
        halves = rewritten(PullHalves(flags, self.body_consts), self.body)
        shared, consts, _ = self.groups(args)
        given = self.carry_cotangents(cts, flags)
        found = pull_back(self, halves, given, shared, consts, known)
        return [*[None] * self.condition_consts, *spread(found, flags)]

    def transpose(self, cts, *args):
        linear = linear_marks(args)
        flags, _ = self.varying(linear)
        m, n = self.condition_consts, self.body_consts
        fixed = [not on for on in flags]
        halves = rewritten(TransposeHalves(flags, n), self.body)
        # The values in the loop are known ones, computed by a loop of their own.
        body = first_outputs(halves.values, len(self.body.outputs) - sum(flags[n:]))
        by_condition = places_of([*[True] * m, *fixed[n:]])
        condition = rewritten(Between(inputs=by_condition), self.condition)
        known = self.again(condition, body, m, sum(fixed[:n]))
        shared, consts, carry = self.groups(args)
        consts, carry = chosen(consts, fixed[:n]), chosen(carry, fixed[n:])
        _, states = keep(known, halves, shared, consts, carry)
        given = self.carry_cotangents(cts, flags)
        found = pull_back(known, halves, given, shared, consts, states)
        pulled = [*[None] * m, *spread(found, flags)]
        return [ct if on else None for ct, on in zip(pulled, linear, strict=True)]

    def batch(self, args, dims):
        size = batch_size(args, dims)
        shared_on, consts_on, carry_on = self.groups([d is not None for d in dims])
        while True:
            in_dims = tuple([0 if on else None for on in (*shared_on, *carry_on)])
            runs, (stops,) = rewritten(NaturalBatch(size, in_dims), self.condition)
            if stops is not None:
                return self.batch_each(size, args, dims)
            in_dims = tuple([0 if on else None for on in (*consts_on, *carry_on)])
            _, natural = rewritten(NaturalBatch(size, in_dims), self.body)
            grown = [on or d is not None for on, d in zip(carry_on, natural, strict=True)]
            if grown == carry_on:
                break
            carry_on = grown
        out_dims = tuple([0 if on else None for on in carry_on])
        body = rewritten(Batch(size, in_dims, out_dims), self.body)
        args = [
            batch_at(x, d, 0, size) if on else x
            for x, d, on in zip(args, dims, (*shared_on, *consts_on, *carry_on), strict=True)
        ]
        return self.again(runs, body, len(shared_on), len(consts_on))(*args), out_dims

    def batch_each(self, size: int, args: Sequence[Any], dims: Sequence[int | None]) -> Any:
        """The outputs for a batch whose lanes stop each for itself, with their dimensions."""
        if (name := batched_names().name) in self.named_axes:
            raise CollectiveError(
                "while: a condition must be the same in all places of an axis that the loop works "
                f"across; got one that differs along {name!r}",
                fix=f"Let all go on while any must: functx.lax.pmax(condition, {name!r}).",
            )
        if self.effects & OF_LANES:
            return one_by_one(self, args, dims)
        (shared, consts, carry), (shared_dims, consts_dims, carry_dims) = (
            self.groups(items) for items in (args, dims)
        )
        n = len(consts)
        kept = [a is v for a, v in zip(self.body.outputs, self.body.inputs[n:], strict=True)]
        same = [*[True] * n, *kept]
        given = zip((*consts_dims, *carry_dims), same, strict=True)
        along = must_go_along(self.body, [d is None and on for d, on in given])
        any_lane, body = rewritten(GatedLoop(self.condition, len(shared), along), self.body)
        runs = rewritten(Batch(size, (*shared_dims, *carry_dims), (0,)), self.condition)
        (live,) = apply(None, runs, [*shared, *carry])
        outs, out_dims = self.again(any_lane, body, 0, len(shared) + n).batch(
            [*shared, *consts, live, *carry], [*shared_dims, *consts_dims, 0, *carry_dims]
        )
        return outs[1:], out_dims[1:]

    def lower(self, ctx, *values):
        return ctx.while_loop(self, values)


class PushedBody(Rewrite[Program]):
    """The rewrite of a body to one of values and tangents: consts, theirs, carry, theirs."""

    consts: int
    push: Any

    def __call__(self, program: Program) -> Program:
        pushed, flags = rewritten(self.push, program), self.push.varying
        count, n = len(program.inputs), self.consts
        tangents = spread(pushed.inputs[count:], flags)
        dconsts = [t for t in tangents[:n] if t is not None]
        dcarry = [t for t in tangents[n:] if t is not None]
        outs = pushed.outputs[: len(program.outputs)]
        found = spread(pushed.outputs[len(outs) :], inexact_marks(program.out_avals))
        moved = chosen(found, flags[n:])
        inputs = [*pushed.inputs[:n], *dconsts, *pushed.inputs[n:count], *dcarry]
        return rewired(pushed, inputs, [*outs, *moved])


class PushApart(Rewrite[Program]):
    """As `PushForward`, with no equation for values and tangents both: it will be transposed."""

    varying: tuple[bool, ...]

    def __call__(self, program: Program) -> Program:
        values, linear = rewritten(Linearize(self.varying), program)
        n, count = len(program.inputs), len(program.outputs)

        def body(*args: Any) -> list[Any]:
            found = apply(None, values, args[:n])
            return [*found[:count], *apply(None, linear, [*args[n:], *found[count:]])]

        tangents = chosen(program.in_avals, self.varying)
        return trace_closed(body, [*program.in_avals, *tangents], name=linear.name)


class Before(Rewrite[Program]):
    """The condition that the first of the carry of a body, behind `consts`, is below a const."""

    consts: int

    def __call__(self, body: Program) -> Program:
        avals = [body.in_avals[self.consts], *body.in_avals[self.consts :]]
        return trace_closed(lambda limit, step, *_: [lt(step, limit)], avals, name="before")
