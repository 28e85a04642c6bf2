"""`functx_call`: the one JAX primitive, which carries a whole program as its parameter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend.core import Primitive as JaxPrimitive
from jax.interpreters import mlir

from functx.core.config import outline_mode
from functx.core.effects import Effect
from functx.core.program import Program
from functx.core.rewriting import pause_gc
from functx.core.tracing import hoist_captures_into_args
from functx.lowering.arrays import jax_aval
from functx.lowering.callbacks import jax_effects, ordered_effect
from functx.lowering.emitter import ModuleEmitter
from functx.lowering.meshes import bind_on_mesh, constrain_to_devices, meshes_in, out_jax_avals
from functx.transforms.parts import dce_program

functx_call = JaxPrimitive("functx_call")
functx_call.multiple_results = True


class ProgramParam:
    """A program as a parameter of JAX's: equal when it is the same object, whatever it holds.

    `outline` says whether its repeats are outlined where `functx.config` is not to say it, and
    `checked` whether JAX keeps account of what varies over the axes of a mesh.

    JAX hashes the parameters of each equation as it traces; the structure of a program is for
    functx's own caches, where it is worth its cost.
    """

    __slots__ = ("__weakref__", "outline", "program", "tracks_varying")

    def __init__(self, program: Program, outline: str | None = None):
        self.program = program
        self.outline = outline
        self.tracks_varying = False

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, ProgramParam)
            and self.program is other.program
            and self.outline == other.outline
        )

    def __hash__(self) -> int:
        return id(self.program)

    def __repr__(self) -> str:
        return str(self.program)


@functx_call.def_effectful_abstract_eval
def _abstract_eval_functx_call(*avals: Any, program: ProgramParam) -> tuple[list[Any], Any]:
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty:
        outs = [jax_aval(aval) for aval in program.program.out_avals]
    else:
        outs = out_jax_avals(program, mesh, avals)
    return outs, jax_effects(program.program)


def _lower_functx_call(ctx: Any, *values: Any, program: ProgramParam) -> list[Any]:
    emitter = ModuleEmitter(ctx, program.outline or outline_mode())
    ordered = Effect.ORDERED in program.program.effects
    if ordered:
        emitter.token = ctx.tokens_in.get(ordered_effect())
    with pause_gc():
        outs = emitter.emit(emitter.fix_overlapping_updates(program.program), values)
    if ordered:
        after = mlir.TokenSet({ordered_effect(): emitter.token})
        ctx.set_tokens_out(ctx.tokens_in.update_tokens(after))
    return outs


mlir.register_lowering(functx_call, _lower_functx_call, cacheable=False)


def bind_functx_call(
    program: Program, args: Sequence[Any], outline: str | None = None
) -> list[Any]:
    """`program` on JAX's values, as one equation of JAX's; inputs that it does not use are left out."""
    if program.has_captures:
        program, args = hoist_captures_into_args(program, args)
    program, kept = dce_program(program)
    operands = [args[i] for i in kept]
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty:
        if operands and meshes_in(program):
            operands = constrain_to_devices(program, operands)
        outs: list[Any] = functx_call.bind(*operands, program=ProgramParam(program, outline))
        return outs if operands or not outs else constrain_to_devices(program, outs)
    return bind_on_mesh(functx_call, mesh, operands, ProgramParam(program, outline))


def jit_program(program: Program, **options: Any) -> Callable[..., list[Any]]:
    """`program` as a compiled JAX function of its inputs, which returns a list of outputs."""

    def call(*args: Any) -> Any:
        return bind_functx_call(program, args)

    call.__name__ = call.__qualname__ = program.name
    return jax.jit(call, **options)
