"""Reverse mode of loops with a bound on the number of steps: residuals of each step are stacked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from functx import ops
from functx.core.backend import Split
from functx.core.masks import inexact_mask, scatter_where, select_where, split_list
from functx.core.program import Program, Var
from functx.core.rewriting import Rewrite, apply, cached_rewrite
from functx.core.tracing import trace_closed
from functx.core.types import ShapedArray
from functx.core.typing import ArrayLike, Avals, Cotangents, Value, Values
from functx.ops.operands import cast_like, literal, upcast_aval, upcast_half
from functx.transforms.control.checkpoint_schedule import STEP_DTYPE
from functx.transforms.dce import with_io

if TYPE_CHECKING:
    from functx.transforms.control.while_loop import While

STEP_AVAL = ShapedArray((), STEP_DTYPE)


def write_rows(stacks: Values, rows: Values, position: Value) -> list[Value]:
    """Each of `stacks` with the next of `rows` written at `position`."""
    return [
        ops.DynamicUpdateSlice()(
            stack, ops.reshape(row, (1, *row.shape)), *_row_indices(position, row.ndim)
        )
        for stack, row in zip(stacks, rows, strict=True)
    ]


def read_rows(stacks: Values, position: Value) -> list[Value]:
    """The row of each of `stacks` at `position`."""
    return [
        ops.reshape(
            ops.DynamicSlice((1, *stack.shape[1:]))(stack, *_row_indices(position, stack.ndim - 1)),
            stack.shape[1:],
        )
        for stack in stacks
    ]


def _row_indices(position: Value, ndim: int) -> list[Any]:
    """The start of the slice that is the row at `position`."""
    return [position, *[literal(0, STEP_DTYPE)] * ndim]


def stacked_avals(avals: Avals, size: int) -> list[ShapedArray]:
    """The types of stacks of `size` rows of types `avals`."""
    return [a.update(shape=(size, *a.shape)) for a in avals]


class WithUnusedInputs(Rewrite[Program]):
    """Rewrites a program to one with more inputs, of types `avals`, which it does not use."""

    avals: tuple[ShapedArray, ...]

    def __call__(self, program: Program) -> Program:
        unused = [Var(aval) for aval in self.avals]
        return with_io(program, [*program.inputs, *unused], program.outputs)


class WithTripLimit(Rewrite[Program]):
    """Rewrites a condition to one with more inputs, of types `avals`.

    With a `limit`, it also fails when the first of them, the number of steps, reaches that.
    """

    limit: int | None
    avals: tuple[ShapedArray, ...]

    def __call__(self, condition: Program) -> Program:
        limit, count = self.limit, len(condition.inputs)
        if limit is None:
            return WithUnusedInputs(self.avals)(condition)

        def limited(*args: Value) -> list[Value]:
            (goes_on,) = apply(None, condition, args[:count])
            return [ops.bitwise_and(goes_on, ops.lt(args[count], limit))]

        return trace_closed(limited, [*condition.in_avals, *self.avals], name=condition.name)


class CounterPositive(Rewrite[Program]):
    """Builds the condition that the first carry of a body, after its `consts`, is positive."""

    consts: int

    def __call__(self, body: Program) -> Program:
        carry = body.in_avals[self.consts :]
        return trace_closed(lambda todo, *_: [ops.gt(todo, 0)], carry, name="remaining")


class CarryBelowLimit(Rewrite[Program]):
    """Builds the condition that a carry of a body with `consts` is below a limit.

    That is the carry at `position`; the limit is the only const of the condition, named `name`.
    """

    consts: int
    position: int
    name: str

    def __call__(self, body: Program) -> Program:
        carry = body.in_avals[self.consts :]

        def condition(limit: Value, *carry: Value) -> list[Value]:
            return [ops.lt(carry[self.position], limit)]

        return trace_closed(condition, [carry[self.position], *carry], name=self.name)


class SplitForCarries(Rewrite[tuple[Program, Program]]):
    """The split of a body by `rewrite`, whose unknown program takes cotangents of some carries.

    These are the ones in `mask`. The unknown program of `rewrite` takes those of all inexact
    outputs first; the others are zero.
    """

    rewrite: Split[tuple[Program, Program]]
    mask: tuple[bool, ...]

    def __call__(self, program: Program) -> tuple[Program, Program]:
        known, unknown = cached_rewrite(self.rewrite, program)
        avals = program.out_avals
        inexact = inexact_mask(avals)
        if inexact == list(self.mask):
            return known, unknown
        ct_avals = select_where(avals, self.mask)

        def body(*args: Value) -> list[Value]:
            cts, residuals = split_list(args, [len(ct_avals)])
            out_cts = ops.inexact_cotangents(scatter_where(cts, self.mask), avals)
            return apply(None, unknown, [*out_cts, *residuals])

        in_avals = [*ct_avals, *unknown.in_avals[sum(inexact) :]]
        return known, trace_closed(body, in_avals, name=unknown.name)


class StackResiduals(Rewrite[Program]):
    """Rewrites a body that returns rows after its `carries` to one that stacks them.

    Its carry ends with the number of steps done and the stacks of `size` rows each.
    """

    carries: int
    size: int

    def __call__(self, known: Program) -> Program:
        count = len(known.inputs)

        def body(*args: Value) -> list[Value]:
            step, *stacks = args[count:]
            outs = apply(None, known, args[:count])
            new_stacks = write_rows(stacks, outs[self.carries :], step)
            return [*outs[: self.carries], ops.add(step, 1), *new_stacks]

        stacks = stacked_avals(known.out_avals[self.carries :], self.size)
        return trace_closed(body, [*known.in_avals, STEP_AVAL, *stacks], name=known.name)


def zero_sums(backward: Program, carries: int) -> list[Value]:
    """The sums, before the first step, of the results of `backward` but the last `carries`."""
    avals = backward.out_avals[: len(backward.outputs) - carries]
    return [ops.zeros_like(upcast_aval(a)) for a in avals]


def add_to_sums(sums: Values, terms: Values) -> list[Value]:
    """The `sums` with the first of `terms` added to each."""
    return [ops.add(x, upcast_half(t)) for x, t in zip(sums, terms, strict=False)]


class BackwardWhileBody(Rewrite[Program]):
    """Rewrites a backward program to the body of a loop over the steps, from last to first.

    The program takes the cotangents of `count` carries, `consts`, and residuals. It returns terms
    of sums, and the cotangents of the carries before the step.
    """

    count: int
    consts: int
    size: int

    def __call__(self, backward: Program) -> Program:
        num_sums = len(backward.outputs) - self.count
        ct_avals, const_avals, residual_avals = split_list(
            backward.in_avals, [self.count, self.consts]
        )
        stack_avals = stacked_avals(residual_avals, self.size)
        sum_avals = map(upcast_aval, backward.out_avals[:num_sums])

        def body(*args: Value) -> list[Value]:
            consts, stacks, (todo,), sums, cts = split_list(
                args, [self.consts, len(stack_avals), 1, num_sums]
            )
            step = ops.sub(todo, 1)
            results = apply(None, backward, [*cts, *consts, *read_rows(stacks, step)])
            return [step, *add_to_sums(sums, results), *results[num_sums:]]

        avals = [*const_avals, *stack_avals, STEP_AVAL, *sum_avals, *ct_avals]
        return trace_closed(body, avals, name=backward.name)


class LinearizedWhileBody(Rewrite[Program]):
    """Rewrites the tangent program of a step to the body of a loop over stacked residuals.

    The program takes the tangents of `consts` and of `carries`, loop-invariant residuals, as
    many as `invariants`, and others. It returns the tangents of the inexact outputs, of which
    those in `kept` are carried.
    """

    consts: int
    carries: int
    invariants: int
    size: int
    kept: tuple[bool, ...]

    def __call__(self, tangent_program: Program) -> Program:
        dconst_avals, dcarry_avals, invariant_avals, residual_avals = split_list(
            tangent_program.in_avals, [self.consts, self.carries, self.invariants]
        )
        stack_avals = stacked_avals(residual_avals, self.size)

        def body(*args: Value) -> list[Value]:
            dconsts, invariants, stacks, (step,), dcarry = split_list(
                args, [self.consts, self.invariants, len(stack_avals), 1]
            )
            rows = read_rows(stacks, step)
            out_tangents = apply(None, tangent_program, [*dconsts, *dcarry, *invariants, *rows])
            return [ops.add(step, 1), *select_where(out_tangents, self.kept)]

        avals = [*dconst_avals, *invariant_avals, *stack_avals, STEP_AVAL, *dcarry_avals]
        return trace_closed(body, avals, name=tangent_program.name)


def run_with_stacks(
    loop: While,
    known: Program,
    condition_consts: Values,
    consts: Values,
    carry: Sequence[ArrayLike],
    limited: bool = False,
) -> tuple[list[Value], list[Value]]:
    """The outputs of `loop`; then the number of steps it ran, and the stacked rows.

    `known` is the body of `loop`, with the rows after its outputs. A loop that is `limited` stops
    after `max_steps`; otherwise it is known to run no more.
    """
    body = cached_rewrite(StackResiduals(len(carry), loop.max_steps or 0), known)
    added_avals = body.in_avals[len(known.inputs) :]
    limit = loop.max_steps if limited else None
    condition = cached_rewrite(WithTripLimit(limit, tuple(added_avals)), loop.condition)
    init = [literal(0, STEP_DTYPE), *[ops.zeros_like(a) for a in added_avals[1:]]]
    results = loop.with_program(condition, body, len(condition_consts), len(consts))(
        *condition_consts, *consts, *carry, *init
    )
    return results[: len(carry)], results[len(carry) :]


def backward_from_stacks(
    loop: While, backward: Program, cts: Cotangents, consts: Values, residuals: Values
) -> list[Value]:
    """The sums over the steps of results of `backward`, then the cotangents of the initial carry.

    `backward` takes the cotangents of a carry, `consts`, and rows of the stacks in `residuals`.
    """
    steps, *stacks = residuals
    body = cached_rewrite(BackwardWhileBody(len(cts), len(consts), loop.max_steps or 0), backward)
    num_held = len(consts) + len(stacks)
    condition = cached_rewrite(CounterPositive(num_held), body)
    sums = zero_sums(backward, len(cts))
    results = loop.with_program(condition, body, 0, num_held)(*consts, *stacks, steps, *sums, *cts)[
        1:
    ]
    return [cast_like(x, a) for x, a in zip(results, backward.out_avals, strict=True)]
