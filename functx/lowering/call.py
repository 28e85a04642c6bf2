"""`functx_call`: the one JAX primitive, which carries a whole program as its parameter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend.core import Primitive as JaxPrimitive
from jax.interpreters import mlir

from functx.core.program import Program
from functx.core.tracing import collection_paused
from functx.lowering.arrays import jax_aval
from functx.lowering.emitter import ModuleEmitter

functx_call = JaxPrimitive("functx_call")
functx_call.multiple_results = True


class Carried:
    """A program as a parameter of JAX's, compared by identity.

    JAX hashes the parameters of each equation as it traces; the structure of a program is for
    functx's own caches, where it is worth its cost.
    """

    __slots__ = ("__weakref__", "program")

    def __init__(self, program: Program):
        self.program = program

    def __repr__(self) -> str:
        return str(self.program)


@functx_call.def_abstract_eval
def _abstract_eval(*avals: Any, program: Carried) -> list[Any]:
    return [jax_aval(aval) for aval in program.program.out_avals]


@functx_call.def_impl
def _run(*args: Any, program: Carried) -> Sequence[Any]:
    return executable(program.program)(*args)


def _lower(ctx: Any, *values: Any, program: Carried) -> list[Any]:
    with collection_paused():
        return ModuleEmitter(ctx).emit(program.program, values)


mlir.register_lowering(functx_call, _lower, cacheable=False)


def call_in_jax(program: Program, args: Sequence[Any]) -> list[Any]:
    """`program` on JAX's values, as one equation of JAX's; inputs that it does not use are left out."""
    used = {atom for eqn in program.equations for atom in eqn.inputs} | {*program.outputs}
    kept = [i for i, v in enumerate(program.inputs) if v in used]
    if len(kept) < len(args):
        inputs = [program.inputs[i] for i in kept]
        program = Program(program.name, inputs, program.equations, program.outputs)
    outs: list[Any] = functx_call.bind(*[args[i] for i in kept], program=Carried(program))
    return outs


def executable(program: Program, **options: Any) -> Callable[..., list[Any]]:
    """`program` as a compiled JAX function of its inputs, which returns a list of outputs."""

    def call(*args: Any) -> Any:
        return call_in_jax(program, args)

    call.__name__ = call.__qualname__ = program.name
    return jax.jit(call, **options)
