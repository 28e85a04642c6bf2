"""Reduction: the smallest program found that still fails in the same way."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from functx.core.dtypes import is_inexact
from functx.core.editing import like
from functx.core.errors import FunctxError
from functx.core.program import Equation, Program, Var, remove_dead
from functx.testing.reference.interpreter import Interpreter, narrowed, own_copies, widened

TRIALS = 150
"""How many smaller programs are tried."""


class Case(NamedTuple):
    """A program and its arguments."""

    program: Program
    args: list[Any]


Fails = Callable[[Case], bool]


def reduced(case: Case, fails: Fails) -> Case:
    """The smallest case found that `fails` as `case` does.

    Outputs, equations and inputs are left out, calls opened up, dimensions shortened, and
    arguments made simple numbers, for as long as the failure stays.
    """
    trials = TRIALS

    def still_fails(smaller: Case) -> bool:
        nonlocal trials
        trials -= 1
        try:
            return trials >= 0 and fails(smaller)
        except FunctxError:
            return False

    for candidates in (
        fewer_outputs,
        opened,
        fewer_equations,
        fewer_outputs,
        shorter,
        simpler_arguments,
    ):
        case = descended(case, candidates, still_fails)
    return case


def descended(case: Case, candidates: Callable[[Case], Iterator[Case]], fails: Fails) -> Case:
    """`case` replaced by the first of its candidates that fails, until none does."""
    while True:
        found = next((each for each in candidates(case) if fails(each)), None)
        if found is None:
            return case
        case = found


def fewer_outputs(case: Case) -> Iterator[Case]:
    """The case with one of its outputs alone, or without one."""
    outputs = case.program.outputs
    if len(outputs) > 1:
        choices = [[atom] for atom in outputs]
        choices += [[*outputs[:k], *outputs[k + 1 :]] for k in range(len(outputs))]
        for chosen in choices:
            yield trimmed(like(case.program, outputs=chosen, trees=None), case.args)


def opened(case: Case) -> Iterator[Case]:
    """The case with the programs that it calls inlined."""
    names = {eqn.primitive.name for eqn in case.program if hasattr(eqn.primitive, "program")} & {
        "call",
        "checkpoint",
        "rerun",
    }
    if names:
        yield Case(case.program.inline(*names), case.args)


def fewer_equations(case: Case) -> Iterator[Case]:
    """The case without some of its equations; their results become arguments."""
    count = len(case.program.equations)
    size = (count + 1) // 2
    while size:
        for start in range(0, count, size):
            yield without(case, range(start, min(start + size, count)))
        size //= 2


def without(case: Case, positions: Iterable[int]) -> Case:
    program, removed = case.program, {*positions}
    values = Interpreter().values(program, own_copies(program, case.args))
    gone = [v for i in sorted(removed) for v in program.equations[i].outputs]
    kept = [eqn for i, eqn in enumerate(program.equations) if i not in removed]
    smaller = like(program, inputs=[*program.inputs, *gone], equations=kept, in_names=None)
    return trimmed(smaller, [*case.args, *[narrowed(values[v], v.aval.dtype) for v in gone]])


def trimmed(program: Program, args: Sequence[Any]) -> Case:
    """The case without equations and inputs that no output needs."""
    equations = remove_dead(program.equations, program.outputs)
    used = {a for eqn in equations for a in eqn.inputs} | {*program.outputs}
    kept = [i for i, v in enumerate(program.inputs) if v in used]
    inputs = [program.inputs[i] for i in kept]
    smaller = Program(program.name, inputs, equations, program.outputs)
    return Case(smaller, [args[i] for i in kept])


def shorter(case: Case) -> Iterator[Case]:
    """The case with dimensions of one length shortened, where its operations let that be."""
    shapes = [v.aval.shape for eqn in case.program for v in (*eqn.inputs, *eqn.outputs)]
    for length in sorted({n for shape in shapes for n in shape if n > 2}, reverse=True):
        for new in (1, 2, length // 2):
            found = resized(case, length, new)
            if found is not None:
                yield found


def resized(case: Case, length: int, new: int) -> Case | None:
    """The case with `length` replaced by `new` in every shape; None if that is no valid program."""

    def change(shape: Any) -> Any:
        return tuple([new if n == length else n for n in shape])

    env: dict[Any, Any] = {}
    for v in case.program.inputs:
        env[v] = Var(v.aval.update(shape=change(v.aval.shape)))
    inputs, equations = [*env.values()], []
    try:
        for eqn in case.program:
            primitive = eqn.primitive
            params = {f: getattr(primitive, f) for f in primitive.fields}
            if "shape" in params:
                params["shape"] = change(params["shape"])
            operands = [env.get(a, a) for a in eqn.inputs]
            made = Equation.of(type(primitive)(**params), operands)
            wanted = [v.aval.update(shape=change(v.aval.shape)) for v in eqn.outputs]
            if [v.aval for v in made.outputs] != wanted:
                return None
            equations.append(made)
            env.update(zip(eqn.outputs, made.outputs, strict=True))
    except Exception:
        # A rule of an operation that does not take these shapes.
        return None
    outputs = [env.get(a, a) for a in case.program.outputs]
    args = [
        np.asarray(x)[tuple([slice(n) for n in v.aval.shape])]
        for x, v in zip(case.args, inputs, strict=True)
    ]
    return Case(Program(case.program.name, inputs, equations, outputs), args)


def simpler_arguments(case: Case) -> Iterator[Case]:
    """The case with one argument made of simpler numbers."""
    for i, x in enumerate(case.args):
        for simpler in simpler_values(np.asarray(x)):
            if not np.array_equal(simpler, x):
                yield Case(case.program, [*case.args[:i], simpler, *case.args[i + 1 :]])


def simpler_values(x: Any) -> Iterator[Any]:
    """Arrays like `x` of simpler numbers, the simplest first; none that is simpler than those."""
    candidates = [np.zeros_like(x), np.ones_like(x)]
    candidates.append(np.arange(1, x.size + 1).reshape(x.shape).astype(x.dtype))
    if is_inexact(x.dtype):
        candidates.append(narrowed(np.round(widened(x)), x.dtype))
    for candidate in candidates:
        if np.array_equal(candidate, x):
            return
        yield candidate
