"""Calls of functions that tools evaluate: their programs and operands, and the control flow in them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import singledispatch
from typing import Any

import numpy as np

from functx import ops
from functx.core import tree
from functx.core.captured_state import read_states
from functx.core.concretization import concretize
from functx.core.primitive import Primitive
from functx.core.program import Program
from functx.core.tracer import Tracer, aval_of, is_variable
from functx.core.types import ShapedArray
from functx.core.typing import Function, NumPyArray, PyTree, Value
from functx.custom.checkpoint import Checkpoint
from functx.custom.custom_vmap import CustomVmap
from functx.transforms.call_primitive import Call
from functx.transforms.control.cond import Cond
from functx.transforms.control.scan import Scan
from functx.transforms.control.while_loop import While
from functx.transforms.tracing_api import TracedFunction, avals_of, trace_function

RunProgram = Callable[[Program, Sequence[Any]], list[Any]]
"""Computes, or traces, the outputs of a program."""


def trace_call(
    fun: Function, args: Sequence[PyTree], kwargs: PyTree, transform: str
) -> tuple[TracedFunction, list[Any]]:
    """The trace of `fun(*args, **kwargs)` without writes, and the operands of its program.

    Values of arguments are known in the trace, so that Python control flow may depend on them.
    Raises ConcretizationError for a traced argument whose value is not known.
    """
    leaves, in_tree = tree.flatten((tuple(args), kwargs))
    leaves = [known_operand(x, transform) for x in leaves]
    avals = avals_of(leaves, transform, fun, in_tree)
    traced = trace_function(fun, in_tree, avals, transform, values=leaves)
    captured = [known_operand(x, transform) for x in read_states(traced.captured)]
    return traced, [*leaves, *captured]


def known_operand(x: object, operation: str) -> Any:
    """The array of a traced value or of a Variable; other values as they are."""
    if is_variable(x):
        return x.compute()  # type: ignore[attr-defined]
    return concretize(x, operation) if isinstance(x, Tracer) else x


@singledispatch
def run_control_flow(
    primitive: Primitive, run: RunProgram, args: Sequence[Any]
) -> list[Any] | None:
    """The outputs of an operation that runs programs: `run` for each branch taken and each step.

    `args` are traced values that are known, or arrays. None for an operation without control flow;
    a function with a derivative of the user is one.
    """
    return None


@run_control_flow.register(Call)
@run_control_flow.register(Checkpoint)
@run_control_flow.register(CustomVmap)
def _(primitive: Call | Checkpoint | CustomVmap, run: RunProgram, args: Sequence[Any]) -> list[Any]:
    return run(primitive.program, args)


@run_control_flow.register
def _(primitive: Cond, run: RunProgram, args: Sequence[Any]) -> list[Any]:
    return run(primitive.branches[int(known_value(args[0], "a choice"))], args[1:])


@run_control_flow.register
def _(primitive: While, run: RunProgram, args: Sequence[Any]) -> list[Any]:
    shared, consts, carry = primitive.split_operands(args)
    while known_value(run(primitive.condition, [*shared, *carry])[0], "a condition").all():
        carry = run(primitive.body, [*consts, *carry])
    return list(carry)


@run_control_flow.register
def _(primitive: Scan, run: RunProgram, args: Sequence[Any]) -> list[Any]:
    consts, carry, xs = primitive.split_operands(args)
    count, ys = primitive.carries, []
    steps = range(primitive.length)
    for i in reversed(steps) if primitive.reverse else steps:
        outs = run(primitive.program, [*consts, *carry, *[_row(x, i) for x in xs]])
        carry = outs[:count]
        ys.append(outs[count:])
    if primitive.reverse:
        ys.reverse()
    avals = primitive.out_avals(tuple([aval_of(x) for x in args]))[count:]
    return [*carry, *[_stack_rows([row[i] for row in ys], a) for i, a in enumerate(avals)]]


def known_value(x: object, operation: str) -> NumPyArray:
    """The value of an array, or of a traced value that is known."""
    return concretize(x, operation) if isinstance(x, Tracer) else np.asarray(x)


def _row(x: Value, i: int) -> Value:
    return ops.squeeze(ops.slice_in_dim(x, i, i + 1), (0,)) if isinstance(x, Tracer) else x[i]


def _stack_rows(rows: Sequence[Any], aval: ShapedArray) -> Value | NumPyArray:
    if rows and not isinstance(rows[0], Tracer):
        return np.stack(rows)
    return (
        ops.concatenate([ops.expand_dims(x, 0) for x in rows], 0) if rows else ops.zeros_like(aval)
    )
