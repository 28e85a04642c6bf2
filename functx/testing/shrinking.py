"""Shrinking: a failing program reduced to a small one that still fails."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from functx.core.dead_code import dce_equations
from functx.core.errors import FunctxError
from functx.core.program import Atom, Equation, Program, Var
from functx.core.program_editing import replace_program_fields
from functx.core.types import is_inexact
from functx.testing.reference.interpreter import (
    Array,
    NumpyInterpreter,
    copy_arguments,
    narrow_array,
    widen_array,
)

MAX_ATTEMPTS = 150
"""The number of smaller programs to try."""


class ProgramCase(NamedTuple):
    """A program and its arguments."""

    program: Program
    args: list[Array]


Fails = Callable[[ProgramCase], bool]


def shrink(case: ProgramCase, fails: Fails) -> ProgramCase:
    """The smallest case found for which `fails` still holds.

    Outputs, equations and inputs are dropped, calls inlined, dimensions shortened, and arguments
    replaced by simple numbers, as long as the case fails.
    """
    attempts = MAX_ATTEMPTS

    def still_fails(smaller: ProgramCase) -> bool:
        nonlocal attempts
        attempts -= 1
        try:
            return attempts >= 0 and fails(smaller)
        except FunctxError:
            return False

    for candidates in (
        drop_outputs,
        inline_calls,
        drop_equations,
        drop_outputs,
        shorten_dimensions,
        simplify_arguments,
    ):
        case = shrink_greedily(case, candidates, still_fails)
    return case


def shrink_greedily(
    case: ProgramCase, candidates: Callable[[ProgramCase], Iterator[ProgramCase]], fails: Fails
) -> ProgramCase:
    """Replace `case` by its first failing candidate until no candidate fails."""
    while True:
        smaller = next((c for c in candidates(case) if fails(c)), None)
        if smaller is None:
            return case
        case = smaller


def drop_outputs(case: ProgramCase) -> Iterator[ProgramCase]:
    """The case with one of its outputs, or without one of them."""
    outputs = case.program.outputs
    if len(outputs) > 1:
        choices = [[atom] for atom in outputs]
        choices += [[*outputs[:k], *outputs[k + 1 :]] for k in range(len(outputs))]
        for outs in choices:
            yield remove_unused(
                replace_program_fields(case.program, outputs=outs, trees=None), case.args
            )


def inline_calls(case: ProgramCase) -> Iterator[ProgramCase]:
    """The case with the programs that it calls inlined."""
    names = {eqn.primitive.name for eqn in case.program if hasattr(eqn.primitive, "program")} & {
        "call",
        "checkpoint",
        "rematerialized_call",
    }
    if names:
        yield ProgramCase(case.program.inline(*names), case.args)


def drop_equations(case: ProgramCase) -> Iterator[ProgramCase]:
    """The case without some of its equations; their results become arguments."""
    count = len(case.program.equations)
    size = (count + 1) // 2
    while size:
        for start in range(0, count, size):
            yield without_equations(case, range(start, min(start + size, count)))
        size //= 2


def without_equations(case: ProgramCase, positions: Iterable[int]) -> ProgramCase:
    """The case without the equations at `positions`; their results become arguments."""
    program, removed = case.program, {*positions}
    values = NumpyInterpreter().values(program, copy_arguments(program, case.args))
    new_inputs = [v for i in sorted(removed) for v in program.equations[i].outputs]
    equations = [eqn for i, eqn in enumerate(program.equations) if i not in removed]
    smaller = replace_program_fields(
        program, inputs=[*program.inputs, *new_inputs], equations=equations, in_names=None
    )
    return remove_unused(
        smaller, [*case.args, *[narrow_array(values[v], v.aval.dtype) for v in new_inputs]]
    )


def remove_unused(program: Program, args: Sequence[Any]) -> ProgramCase:
    """The case without equations and inputs that no output needs."""
    equations = dce_equations(program.equations, program.outputs)
    used = {a for eqn in equations for a in eqn.inputs} | {*program.outputs}
    positions = [i for i, v in enumerate(program.inputs) if v in used]
    inputs = [program.inputs[i] for i in positions]
    smaller = Program(program.name, inputs, equations, program.outputs)
    return ProgramCase(smaller, [args[i] for i in positions])


def shorten_dimensions(case: ProgramCase) -> Iterator[ProgramCase]:
    """The case with all dimensions of one size shortened, where its operations accept that."""
    shapes = [v.aval.shape for eqn in case.program for v in (*eqn.inputs, *eqn.outputs)]
    for size in sorted({n for shape in shapes for n in shape if n > 2}, reverse=True):
        for new in (1, 2, size // 2):
            smaller = replace_dimension(case, size, new)
            if smaller is not None:
                yield smaller


def replace_dimension(case: ProgramCase, size: int, new: int) -> ProgramCase | None:
    """The case with `size` replaced by `new` in every shape, or None if that is not a valid program."""

    def change(shape: tuple[int, ...]) -> tuple[int, ...]:
        return tuple([new if n == size else n for n in shape])

    inputs = [Var(v.aval.update(shape=change(v.aval.shape))) for v in case.program.inputs]
    env: dict[Atom, Atom] = dict(zip(case.program.inputs, inputs, strict=True))
    equations = []
    try:
        for eqn in case.program:
            primitive = eqn.primitive
            params = {f: getattr(primitive, f) for f in primitive.fields}
            if "shape" in params:
                params["shape"] = change(params["shape"])
            operands = [env.get(a, a) for a in eqn.inputs]
            equation = Equation.of(type(primitive)(**params), operands)
            expected = [v.aval.update(shape=change(v.aval.shape)) for v in eqn.outputs]
            if [v.aval for v in equation.outputs] != expected:
                return None
            equations.append(equation)
            env.update(zip(eqn.outputs, equation.outputs, strict=True))
    except Exception:
        # A rule refuses these shapes.
        return None
    outputs = [env.get(a, a) for a in case.program.outputs]
    args = [
        np.asarray(x)[tuple([slice(n) for n in v.aval.shape])]
        for x, v in zip(case.args, inputs, strict=True)
    ]
    return ProgramCase(Program(case.program.name, inputs, equations, outputs), args)


def simplify_arguments(case: ProgramCase) -> Iterator[ProgramCase]:
    """The case with one argument replaced by simpler numbers."""
    for i, x in enumerate(case.args):
        for simpler in simplify_values(np.asarray(x)):
            if not np.array_equal(simpler, x):
                yield ProgramCase(case.program, [*case.args[:i], simpler, *case.args[i + 1 :]])


def simplify_values(x: Array) -> Iterator[Array]:
    """Simpler arrays like `x`, the simplest first, up to the first that equals `x`."""
    candidates = [np.zeros_like(x), np.ones_like(x)]
    candidates.append(np.arange(1, x.size + 1).reshape(x.shape).astype(x.dtype))
    if is_inexact(x.dtype):
        candidates.append(narrow_array(np.round(widen_array(x)), x.dtype))
    for candidate in candidates:
        if np.array_equal(candidate, x):
            return
        yield candidate
