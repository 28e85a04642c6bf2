"""Control flow as StableHLO: operations whose regions hold the bodies of programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo
from jax.interpreters import mlir

from functx.core.effects import is_ordered
from functx.core.program import Program
from functx.core.types import ShapedArray
from functx.core.typing import Function, IRValue, IRValues

if TYPE_CHECKING:
    from functx.lowering.stablehlo_emitter import LoweringContext, ModuleEmitter
    from functx.transforms.control.scan import Scan
    from functx.transforms.control.while_loop import While


_COUNTER_AVAL = ShapedArray((), np.dtype("int32"))


def case(
    ctx: LoweringContext, index: IRValue, branches: Sequence[Program], values: IRValues
) -> list[IRValue]:
    """The outputs of `branches[index]`, whose regions read `values` from the enclosing region.

    Of branches with a constant index, such as that of a platform, only one is emitted.
    """
    module, before = ctx.module, ctx.module.token
    if (constant := constant_scalar(index)) is not None:
        return module.emit(branches[constant], values)
    ordered = any([is_ordered(program.effects) for program in branches])
    types = [*ctx.out_types, mlir.token_type()] if ordered else ctx.out_types
    op = stablehlo.CaseOp(types, index, len(branches))
    for region, program in zip(op.regions, branches, strict=True):
        with ir.InsertionPoint(region.blocks.append()):
            module.token = before
            outs = module.emit(program, values)
            stablehlo.return_([*outs, module.token] if ordered else outs)
    outs = list(op.results)
    module.token = outs.pop() if ordered else before
    return outs


def constant_scalar(x: IRValue) -> int | None:
    """The number that an integer constant holds; None for any other value."""
    owner = x.owner
    if isinstance(owner, ir.Block) or owner.name != "stablehlo.constant":
        return None
    return int(ir.DenseIntElementsAttr(owner.attributes["value"])[0])


def while_loop(ctx: LoweringContext, loop: While, values: IRValues) -> list[IRValue]:
    """The carry of a `While` after its last step."""
    module = ctx.module
    condition_consts = loop.condition_consts
    num_consts = condition_consts + loop.body_consts
    ordered = is_ordered(loop.effects)

    def condition(args: IRValues) -> IRValue:
        return module.emit(loop.condition, [*args[:condition_consts], *args[num_consts:]])[0]

    def body(args: IRValues) -> list[IRValue]:
        return [*args[:num_consts], *module.emit(loop.body, args[condition_consts:])]

    if not loop.condition.effects:
        return _emit_while(module, values, condition, body, ordered)[num_consts:]

    # The region of a condition can have no effects, so the body computes the next condition.
    def holds(args: IRValues) -> IRValue:
        return args[0]

    def next_state(args: IRValues) -> list[IRValue]:
        state = body(args[1:])
        return [condition(state), *state]

    return _emit_while(module, [condition(values), *values], holds, next_state, ordered)[
        num_consts + 1 :
    ]


def scan(ctx: LoweringContext, loop: Scan, values: IRValues) -> list[IRValue]:
    """The last carry of a `Scan`, and its stacked outputs."""
    module, program, length = ctx.module, loop.program, loop.length
    first, last = loop.consts, loop.consts + loop.carries
    consts, xs = values[:first], values[last:]
    x_types = [module.type(a) for a in program.in_avals[last:]]
    state = list(values[first:last])
    state += [module.constant(0, a) for a in ctx.avals_out[loop.carries :]]

    def step(i: IRValue, consts: IRValues, xs: IRValues, state: IRValues) -> list[IRValue]:
        """The carry and the stacks after step `i`."""
        if loop.reverse:
            i = stablehlo.subtract(_counter(length - 1), i)
        rows = [_read_row(ctx, x, i, type_) for x, type_ in zip(xs, x_types, strict=True)]
        outs: list[IRValue] = module.emit(program, [*consts, *state[: loop.carries], *rows])
        stacks = zip(state[loop.carries :], outs[loop.carries :], strict=True)
        return outs[: loop.carries] + [_write_row(ctx, stack, y, i) for stack, y in stacks]

    # A loop of rounds of `unroll` steps, then the remaining steps; one round needs no loop.
    unroll = max(loop.unroll, 1)
    looped = length // unroll * unroll if length > unroll else 0
    if looped:
        a, b = 1 + len(consts), 1 + len(consts) + len(xs)

        def condition(args: IRValues) -> IRValue:
            return ctx.compare(args[0], _counter(looped), "LT", _COUNTER_AVAL)

        def body(args: IRValues) -> list[IRValue]:
            i, consts, xs, state = args[0], args[1:a], args[a:b], args[b:]
            for j in range(unroll):
                index = stablehlo.add(i, _counter(j)) if j else i
                state = step(index, consts, xs, state)
            return [stablehlo.add(i, _counter(unroll)), *consts, *xs, *state]

        ordered = is_ordered(program.effects)
        state = _emit_while(module, [_counter(0), *consts, *xs, *state], condition, body, ordered)[
            b:
        ]
    for j in range(looped, length):
        state = step(_counter(j), consts, xs, state)
    return state


def _emit_while(
    module: ModuleEmitter, values: IRValues, condition: Function, body: Function, ordered: bool
) -> list[IRValue]:
    """The values after the last step of a loop: `body` maps `values` while `condition` holds for them.

    If `ordered`, the token is the last value of the loop.
    """
    start = [*values, module.token] if ordered else list(values)
    types = [x.type for x in start]
    op = stablehlo.WhileOp(types, start)
    for region, emit in zip(op.regions, (lambda args: [condition(args)], body), strict=True):
        block = region.blocks.append(*types)
        with ir.InsertionPoint(block):
            args = list(block.arguments)
            if ordered:
                module.token = args.pop()
            outs = emit(args)
            stablehlo.return_([*outs, module.token] if ordered and emit is body else outs)
    outs = list(op.results)
    if ordered:
        module.token = outs.pop()
    return outs


def _counter(i: int) -> IRValue:
    return mlir.ir_constant(np.asarray(i, np.int32))


def _read_row(
    ctx: LoweringContext, x: IRValue, i: IRValue, row_type: ir.RankedTensorType
) -> IRValue:
    """`x[i]`."""
    sizes = [1, *row_type.shape]
    return stablehlo.reshape(
        row_type, stablehlo.dynamic_slice(x, _row_start(i, len(sizes)), ctx.i64_array(sizes))
    )


def _write_row(ctx: LoweringContext, stack: IRValue, row: IRValue, i: IRValue) -> IRValue:
    """`stack` with `row` at index `i`."""
    wide = ir.RankedTensorType.get([1, *row.type.shape], row.type.element_type)
    position = _row_start(i, len(wide.shape))
    return stablehlo.dynamic_update_slice(stack, stablehlo.reshape(wide, row), position)


def _row_start(i: IRValue, rank: int) -> list[IRValue]:
    return [i, *[_counter(0)] * (rank - 1)]
