"""Loops of at most so many steps in reverse mode: what each step leaves behind lies in stacks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from functx import ops
from functx.core.program import Program, Var
from functx.core.records import Rewrite
from functx.core.rewriting import apply, cached_rewrite
from functx.core.tracing import trace_closed
from functx.core.types import ShapedArray
from functx.ops.operands import cast_like_input, literal, upcast_aval, upcast_half
from functx.transforms.call_primitive import TransposeLinearInputs
from functx.transforms.control.checkpoint_schedule import STEP_DTYPE
from functx.transforms.control.scan_partial_eval import (
    drop_effectful_equations,
    loop_invariant_variables,
)
from functx.transforms.dce import RemoveEffects, keep_effects_depending_on, used_inputs, with_io
from functx.transforms.decompose import decompose_missing_rules
from functx.transforms.operand_masks import (
    inexact_cotangents,
    inexact_mask,
    scatter_where,
    select_where,
)
from functx.transforms.partial_evaluation_policy import policy
from functx.transforms.reverse_mode import SplitVJP

STEP_AVAL = ShapedArray((), STEP_DTYPE)


def write_rows(stacks: Sequence[Any], rows: Sequence[Any], at: Any) -> list[Any]:
    """Each of `stacks` with the row of `rows` at the place `at`."""
    return [
        ops.DynamicUpdateSlice()(
            stack, ops.reshape(row, (1, *row.shape)), *_row_indices(at, row.ndim)
        )
        for stack, row in zip(stacks, rows, strict=True)
    ]


def read_rows(stacks: Sequence[Any], at: Any) -> list[Any]:
    """The row of each of `stacks` at the place `at`."""
    return [
        ops.reshape(
            ops.DynamicSlice((1, *stack.shape[1:]))(stack, *_row_indices(at, stack.ndim - 1)),
            stack.shape[1:],
        )
        for stack in stacks
    ]


def _row_indices(at: Any, ndim: int) -> list[Any]:
    return [at, *[literal(0, STEP_DTYPE)] * ndim]


def stacked_avals(avals: Sequence[ShapedArray], size: int) -> list[ShapedArray]:
    """The types of stacks of `size` rows of types `avals`."""
    return [a.update(shape=(size, *a.shape)) for a in avals]


class WithUnusedInputs(Rewrite[Program]):
    """The rewrite to a program with further inputs, of types `avals`, that it does not use.

    They stand behind all others, or behind the first `at`.
    """

    avals: tuple[ShapedArray, ...]
    at: int | None = None

    def __call__(self, program: Program) -> Program:
        at = len(program.inputs) if self.at is None else self.at
        more = [Var(aval) for aval in self.avals]
        inputs = [*program.inputs[:at], *more, *program.inputs[at:]]
        return with_io(program, inputs, program.outputs)


class WithTripLimit(Rewrite[Program]):
    """The rewrite of a condition that ignores what is of types `avals` but for a limit.

    With a `limit`, it holds no longer when the first of them, a number of steps, reaches that.
    """

    limit: int | None
    avals: tuple[ShapedArray, ...]

    def __call__(self, condition: Program) -> Program:
        if self.limit is None:
            return WithUnusedInputs(self.avals)(condition)
        count = len(condition.inputs)

        def limited(*args: Any) -> list[Any]:
            (goes_on,) = apply(None, condition, args[:count])
            return [ops.bitwise_and(goes_on, ops.lt(args[count], self.limit))]

        return trace_closed(limited, [*condition.in_avals, *self.avals], name=condition.name)


class CounterPositive(Rewrite[Program]):
    """The condition that the first of the carry of a body, behind its `consts`, is positive."""

    consts: int

    def __call__(self, body: Program) -> Program:
        carry = body.in_avals[self.consts :]
        return trace_closed(lambda todo, *_: [ops.gt(todo, 0)], carry, name="remaining")


class InstantiateCotangents(Rewrite[Program]):
    """The rewrite of a backward program to one that takes cotangents for `flags` alone.

    It takes those of outputs of types `avals` first, of the inexact ones. The others are zero.
    """

    avals: tuple[ShapedArray, ...]
    flags: tuple[bool, ...]

    def __call__(self, pull: Program) -> Program:
        inexact = inexact_mask(self.avals)
        if inexact == list(self.flags):
            return pull
        cts = select_where(self.avals, self.flags)
        count = sum(inexact)

        def body(*args: Any) -> list[Any]:
            given = scatter_where(args[: len(cts)], self.flags)
            return apply(None, pull, [*inexact_cotangents(given, self.avals), *args[len(cts) :]])

        return trace_closed(body, [*cts, *pull.in_avals[count:]], name=pull.name)


class WhileSplit(NamedTuple):
    """A body split in two: its values, and the rest, which needs something of the values.

    The rest takes that last: first what is the same in every step, which `invariant` computes
    from the consts, then what `values` returns behind its outputs.
    """

    known: Program
    unknown: Program
    invariant: Program


class PartialEvalWhile(Rewrite[WhileSplit]):
    """The rewrite of a body with `consts` to the halves that `rewrite` splits it into."""

    rewrite: Any
    consts: int

    def __call__(self, program: Program) -> WhileSplit:
        values, rest = cached_rewrite(self.rewrite, program)
        count = len(program.outputs)
        consts = values.inputs[: self.consts]
        same = loop_invariant_variables(values, set(consts))
        saved = values.outputs[count:]
        lead, needs = (
            rest.inputs[: -len(saved) or None],
            rest.inputs[len(rest.inputs) - len(saved) :],
        )
        pairs = list(zip(saved, needs, strict=True))
        fixed = [(a, v) for a, v in pairs if a in same]
        moving = [(a, v) for a, v in pairs if a not in same]
        return WhileSplit(
            with_io(values, values.inputs, [*values.outputs[:count], *[a for a, _ in moving]]),
            with_io(rest, [*lead, *[v for _, v in [*fixed, *moving]]], rest.outputs),
            with_io(drop_effectful_equations(values), consts, [a for a, _ in fixed]),
        )


class SplitWhileVJP(Rewrite[WhileSplit]):
    """The rewrite of a body with `consts` to its halves in reverse mode, for inputs in `flags`.

    The rest takes the cotangents of the carries in `flags`, and returns those of all inputs
    that are.
    """

    flags: tuple[bool, ...]
    consts: int

    def __call__(self, body: Program) -> WhileSplit:
        halves: WhileSplit = cached_rewrite(
            PartialEvalWhile(
                policy.limit_residuals(SplitVJP(self.flags), consts=self.consts), self.consts
            ),
            body,
        )
        carries = InstantiateCotangents(tuple(body.out_avals), self.flags[self.consts :])
        return halves._replace(unknown=carries(halves.unknown))


class SplitWhileTranspose(Rewrite[WhileSplit]):
    """As `SplitWhileVJP`, for a body that is linear in the inputs in `flags`.

    The values are those of the other consts and carries.
    """

    flags: tuple[bool, ...]
    consts: int

    def __call__(self, body: Program) -> WhileSplit:
        fixed = [not on for on in self.flags]
        quiet = decompose_missing_rules(cached_rewrite(RemoveEffects(), body), "transpose")
        carries = InstantiateCotangents(tuple(body.out_avals), self.flags[self.consts :])
        pull = carries(cached_rewrite(TransposeLinearInputs(self.flags), quiet))
        lead = sum(self.flags[self.consts :]) + sum(fixed[: self.consts])
        needed = used_inputs(pull)[lead:]
        inputs = select_where(body.inputs, fixed)
        outputs = select_where(body.outputs, fixed[self.consts :])
        rows = select_where(inputs[sum(fixed[: self.consts]) :], needed)
        consts = inputs[: sum(fixed[: self.consts])]
        values = with_io(keep_effects_depending_on(body, inputs), inputs, [*outputs, *rows])
        rest = with_io(
            pull, [*pull.inputs[:lead], *select_where(pull.inputs[lead:], needed)], pull.outputs
        )
        return WhileSplit(values, rest, with_io(drop_effectful_equations(body), consts, consts))


class StackResiduals(Rewrite[Program]):
    """The rewrite of a body that returns rows behind its `carries` to one that stacks them.

    Its carry ends with the number of steps so far and the stacks, each of `size` rows.
    """

    carries: int
    size: int

    def __call__(self, values: Program) -> Program:
        count = len(values.inputs)

        def body(*args: Any) -> list[Any]:
            step, *stacks = args[count:]
            outs = apply(None, values, args[:count])
            now = write_rows(stacks, outs[self.carries :], step)
            return [*outs[: self.carries], ops.add(step, 1), *now]

        stacks = stacked_avals(values.out_avals[self.carries :], self.size)
        return trace_closed(body, [*values.in_avals, STEP_AVAL, *stacks], name=values.name)


class BackwardWhileBody(Rewrite[Program]):
    """The rewrite of a backward program to the body of a loop over the steps, last to first.

    It takes the cotangents of `count` carries, `consts`, and rows of stacks, and returns
    `sums` to add up and the cotangents of the carries before.
    """

    count: int
    consts: int
    size: int

    def __call__(self, pull: Program) -> Program:
        sums = len(pull.outputs) - self.count
        fixed = pull.in_avals[self.count :][: self.consts]
        stacks = stacked_avals(pull.in_avals[self.count + self.consts :], self.size)
        found = [*map(upcast_aval, pull.out_avals[:sums]), *pull.in_avals[: self.count]]
        held = self.consts + len(stacks)

        def body(*args: Any) -> list[Any]:
            todo, found = ops.sub(args[held], 1), args[held + 1 :]
            rows = read_rows(args[self.consts : held], todo)
            pulled = apply(None, pull, [*found[sums:], *args[: self.consts], *rows])
            added = [
                ops.add(x, upcast_half(ct)) for x, ct in zip(found[:sums], pulled, strict=False)
            ]
            return [todo, *added, *pulled[sums:]]

        return trace_closed(body, [*fixed, *stacks, STEP_AVAL, *found], name=pull.name)


class LinearizedWhileBody(Rewrite[Program]):
    """The rewrite of the tangents of a step to the body of a loop over stacks of what they need.

    It takes `consts` tangents of consts, `carries` of carries, `fixed` things that stay, and
    rows; it returns the tangents of the inexact outputs, of which the `kept` are carried.
    """

    consts: int
    carries: int
    fixed: int
    size: int
    kept: tuple[bool, ...]

    def __call__(self, rest: Program) -> Program:
        n = self.consts + self.carries
        dconsts, dcarry = rest.in_avals[: self.consts], rest.in_avals[self.consts : n]
        fixed = rest.in_avals[n : n + self.fixed]
        stacks = stacked_avals(rest.in_avals[n + self.fixed :], self.size)
        a, b, c = self.consts, self.consts + self.fixed, self.consts + self.fixed + len(stacks)

        def body(*args: Any) -> list[Any]:
            step = args[c]
            rows = read_rows(args[b:c], step)
            found = apply(None, rest, [*args[:a], *args[c + 1 :], *args[a:b], *rows])
            return [ops.add(step, 1), *select_where(found, self.kept)]

        return trace_closed(body, [*dconsts, *fixed, *stacks, STEP_AVAL, *dcarry], name=rest.name)


def run_with_stacks(
    loop: Any,
    values: Program,
    shared: Sequence[Any],
    consts: Sequence[Any],
    carry: Sequence[Any],
    limited: bool = False,
) -> tuple[list[Any], list[Any]]:
    """The outputs of `loop`, and how many steps it ran, with the stacks of the rows of `values`.

    `values` is the body of `loop` with rows behind its outputs. A loop that is `limited` stops
    after its `max_steps`, the others are known to.
    """
    body = cached_rewrite(StackResiduals(len(carry), loop.max_steps or 0), values)
    more = body.in_avals[len(values.inputs) :]
    limit = loop.max_steps if limited else None
    condition = cached_rewrite(WithTripLimit(limit, tuple(more)), loop.condition)
    start = [literal(0, STEP_DTYPE), *[ops.zeros_like(a) for a in more[1:]]]
    found = loop.with_program(condition, body, len(shared), len(consts))(
        *shared, *consts, *carry, *start
    )
    return found[: len(carry)], found[len(carry) :]


def backward_from_stacks(
    loop: Any, pull: Program, cts: Sequence[Any], consts: Sequence[Any], known: Sequence[Any]
) -> list[Any]:
    """The sums over the steps of what `pull` returns, then the cotangents of the first carry.

    `pull` takes the cotangents of a carry, `consts`, and rows of what `known` holds.
    """
    steps, *stacks = known
    body = cached_rewrite(BackwardWhileBody(len(cts), len(consts), loop.max_steps or 0), pull)
    held = len(consts) + len(stacks)
    condition = cached_rewrite(CounterPositive(held), body)
    sums = [ops.zeros_like(upcast_aval(a)) for a in pull.out_avals[: len(pull.outputs) - len(cts)]]
    found = loop.with_program(condition, body, 0, held)(*consts, *stacks, steps, *sums, *cts)[1:]
    return [cast_like_input(x, a) for x, a in zip(found, pull.out_avals, strict=True)]
