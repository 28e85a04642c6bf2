"""How operations and programs run outside a trace: compiled once per structure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np

from functx.core.dtypes import x64_enabled
from functx.core.primitive import Primitive
from functx.core.program import Equation, Literal, Program, ProgramKey, Var, canonical_form
from functx.core.tracing import aval_of, execution, rewritten
from functx.lowering.cache import Cache
from functx.lowering.call import executable

programs = Cache("programs", 2048)
lifted = Cache("lifted", 2048)
operations = Cache("operations", 4096)


Executable = Callable[..., list[Any]]


def run(rewrite: Any, program: Program, args: Sequence[Any]) -> list[Any]:
    """The outputs of `rewrite(program)` on concrete `args`, as JAX arrays.

    Found by the structure of `program`. A program that differs from an earlier one in its
    literals alone is compiled once more, with the literals as inputs, and then never again.
    """
    key = rewrite, program.key
    compiled: Executable | None = programs.get(key)
    if compiled is not None:
        return compiled(*args)
    form = rewrite, ProgramKey(canonical_form(program, literal=_type_of_literal))
    entry: Any = lifted.get(form)
    if entry is None:
        lifted.put(form, _NOT_YET)
        compiled = executable(rewritten(rewrite, program))
        programs.put(key, compiled)
        return compiled(*args)
    if entry is _NOT_YET:
        entry = executable(lift_literals(rewrite, program))
        lifted.put(form, entry)
    outs: list[Any] = entry(*args, *literal_values(program))
    return outs


_NOT_YET = object()


def _type_of_literal(literal: Literal) -> Any:
    return literal.aval


def literal_values(program: Program) -> list[Any]:
    return [
        np.asarray(a.value, a.aval.dtype)[()] if not a.aval.weak_type else a.value
        for eqn in program.equations
        for a in eqn.inputs
        if type(a) is Literal
    ]


def lift_literals(rewrite: Any, program: Program) -> Program:
    """`rewrite(program)` with the literals of the equations of `program` as further inputs."""
    lifted: dict[Literal, Var] = {}

    # A rewrite knows how many inputs its program has, so literals become inputs after it: till
    # then each is told apart by its number.
    def number(atom: Any) -> Any:
        if type(atom) is Var:
            return atom
        literal = Literal(atom.value, atom.aval)
        literal.key = f"literal {len(lifted)}", atom.aval
        lifted[literal] = Var(atom.aval)
        return literal

    def lift(atom: Any) -> Any:
        return atom if type(atom) is Var else lifted.get(atom, atom)

    def changed(equations: Sequence[Equation], change: Any) -> list[Equation]:
        return [eqn.replace(inputs=[change(a) for a in eqn.inputs]) for eqn in equations]

    numbered = changed(program.equations, number)
    result = rewritten(rewrite, Program(program.name, program.inputs, numbered, program.outputs))
    equations, outputs = changed(result.equations, lift), [lift(a) for a in result.outputs]
    return Program(result.name, [*result.inputs, *lifted.values()], equations, outputs)


def evaluate(primitive: Primitive, args: Sequence[Any]) -> Any:
    """`primitive(*args)` at once: NumPy arrays from NumPy arrays and numbers, else JAX arrays."""
    avals = tuple([aval_of(x) for x in args])
    key = primitive, avals
    compiled = operations.get(key)
    if compiled is None:
        compiled = executable(_program_of(primitive, avals))
        operations.put(key, compiled)
    outs = compiled(*[_value(x) for x in args])
    if not any(isinstance(x, jax.Array) for x in args):
        # While JAX traces, even what depends on nothing has no value yet.
        outs = [out if isinstance(out, jax.core.Tracer) else np.array(out) for out in outs]
    return outs if primitive.multiple_results else outs[0]


def _value(x: Any) -> Any:
    if type(x) is Literal:
        return x.value if x.aval.weak_type else np.asarray(x.value, x.aval.dtype)[()]
    return x


def _program_of(primitive: Primitive, avals: tuple[Any, ...]) -> Program:
    inputs = [Var(aval) for aval in avals]
    outputs = [Var(aval) for aval in primitive.types.get(avals) or primitive.out_types(avals)]
    return Program(
        primitive.name, inputs, [Equation(primitive, list(inputs), outputs, None)], outputs
    )


def evaluate_now(primitive: Primitive, args: Sequence[Any]) -> Any:
    """As `evaluate`, also while JAX is tracing: the operands are concrete, and so is the result."""
    out = evaluate(primitive, args)
    if not any(isinstance(x, jax.core.Tracer) for x in (out if type(out) is list else [out])):
        return out
    wide = x64_enabled()

    def aside() -> Any:
        with jax.enable_x64(wide):
            return evaluate(primitive, args)

    # What JAX is tracing belongs to this thread; another one traces nothing.
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(aside).result()


execution.run = run
execution.evaluate = evaluate
execution.evaluate_now = evaluate_now
