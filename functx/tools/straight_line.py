"""One run of a program as a program without control flow: what was taken, in the order it ran."""

from __future__ import annotations

from collections.abc import Sequence
from functools import singledispatch
from typing import Any

import numpy as np

from functx.core.concrete import concretize
from functx.core.interpret import bind_equation, interpret
from functx.core.primitive import Primitive
from functx.core.program import Equation, Program, Var
from functx.core.tracing import Tracer, aval_of, backend, eval_context, trace_closed
from functx.custom.checkpoint import Checkpoint
from functx.custom.custom_vmap import CustomVmap
from functx.ops.joining import concatenate
from functx.ops.shaping import expand_dims, squeeze, zeros_like
from functx.ops.slicing import slice_in_dim
from functx.transforms.call import Call
from functx.transforms.control.cond import Cond
from functx.transforms.control.scan import Scan
from functx.transforms.control.while_loop import While


def unroll_control_flow(program: Program, args: Sequence[Any]) -> Program:
    """What `program` does on `args`: the branches that it takes, each step of its loops.

    A function with a rule of its own stays one equation, since its derivative is the rule's.
    """

    def body(*tracers: Tracer) -> list[Any]:
        return inline_control_flow(program, tracers)

    avals, names = program.in_avals, program.in_names
    return trace_closed(body, avals, name=program.name, values=args, in_names=names)


def evaluate_variables(program: Program, args: Sequence[Any]) -> dict[Var, np.ndarray[Any, Any]]:
    """The values of all variables of `program` on `args`, found equation by equation."""
    env: dict[Any, Any] = dict(zip(program.inputs, map(np.asarray, args), strict=True))
    with eval_context():
        for eqn in program.equations:
            operands = [env[a] if type(a) is Var else a for a in eqn.inputs]
            outs = backend.evaluate_eagerly(eqn.primitive, operands)
            outs = outs if eqn.primitive.multiple_results else [outs]
            env.update(zip(eqn.outputs, map(np.asarray, outs), strict=True))
    return env


def inline_control_flow(program: Program, args: Sequence[Tracer]) -> list[Tracer]:
    """The outputs of `program`, its control flow followed as the values of `args` have it."""

    def step(eqn: Equation, *operands: Tracer) -> Sequence[Tracer]:
        outs = unroll_equation(eqn.primitive, *operands)
        return bind_equation(eqn, *operands) if outs is None else outs

    return interpret(program, args, step, constant=lambda c: c)


@singledispatch
def unroll_equation(primitive: Primitive, *args: Tracer) -> list[Tracer] | None:
    """What an equation that holds programs does, in the open; None for all others."""
    return None


@unroll_equation.register(Call)
@unroll_equation.register(Checkpoint)
@unroll_equation.register(CustomVmap)
def _(primitive: Any, *args: Tracer) -> list[Tracer]:
    return inline_control_flow(primitive.program, args)


@unroll_equation.register
def _(primitive: Cond, index: Tracer, *args: Tracer) -> list[Tracer]:
    return inline_control_flow(primitive.branches[int(concretize(index, "a choice"))], args)


@unroll_equation.register
def _(primitive: While, *args: Tracer) -> list[Tracer]:
    shared, consts, carry = primitive.split_operands(args)
    while concretize(
        inline_control_flow(primitive.condition, [*shared, *carry])[0], "a condition"
    ).all():
        carry = inline_control_flow(primitive.body, [*consts, *carry])
    return list(carry)


@unroll_equation.register
def _(primitive: Scan, *args: Tracer) -> list[Tracer]:
    consts, carry, columns = primitive.split_operands(args)
    count, found = primitive.carries, []
    steps = range(primitive.length)
    for i in reversed(steps) if primitive.reverse else steps:
        rows = [squeeze(slice_in_dim(x, i, i + 1), (0,)) for x in columns]
        outs = inline_control_flow(primitive.program, [*consts, *carry, *rows])
        carry = outs[:count]
        found.append(outs[count:])
    if primitive.reverse:
        found.reverse()
    avals = primitive.infer_out_avals(tuple([aval_of(x) for x in args]))[count:]
    return [*carry, *[_stack_rows([rows[i] for rows in found], a) for i, a in enumerate(avals)]]


def _stack_rows(rows: Sequence[Tracer], aval: Any) -> Any:
    return concatenate([expand_dims(x, 0) for x in rows]) if rows else zeros_like(aval)
