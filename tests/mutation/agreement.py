"""Comparison of random programs under NumPy and under each transform of functx."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import functx
import functx.numpy
from tests.mutation.programs import Flow, Program


class TracedFlow:
    """Control flow of random programs as traced loops and branches."""

    @staticmethod
    def loop(start: int, stop: int, step: Callable[[Any], None]) -> None:
        def body(i: Any, carry: Any) -> Any:
            step(i)
            return carry

        functx.lax.fori_loop(start, stop, body, 0)

    @staticmethod
    def either(holds: Any, then: Callable[[], None], otherwise: Callable[[], None]) -> None:
        functx.lax.cond(holds, then, otherwise)


class Outcome:
    """The results of a run, and the arguments after it."""

    def __init__(self, results: Sequence[Any], arguments: Sequence[Any]):
        self.results = [np.array(x) for x in results]
        self.arguments = [np.array(x) for x in arguments]


def with_numpy(program: Program, args: Sequence[Any]) -> Outcome:
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Outcome(program.function()(np, Flow, *args), args)


def compare(program: Program, got: Outcome, wanted: Outcome, what: str) -> None:
    """Raise AssertionError, with the name of the array, if two runs differ."""
    names = [f"{name} afterwards" for name, _ in program.arguments]
    pairs = zip(
        [*program.results, *names],
        [*got.results, *got.arguments],
        [*wanted.results, *wanted.arguments],
        strict=True,
    )
    for name, x, y in pairs:
        assert x.shape == y.shape, f"{what}: {name} has the shape {x.shape} for {y.shape}"
        assert x.dtype == y.dtype, f"{what}: {name} has the dtype {x.dtype} for {y.dtype}"
        close = np.allclose(x, y, rtol=1e-8, atol=1e-8, equal_nan=True)
        assert close, f"{what}: {name} is\n{x}\nfor\n{y}"


def traced(program: Program) -> Callable[..., Any]:
    function = program.function()
    return lambda *args: function(functx.numpy, TracedFlow, *args)


def loss_of(xp: Any, results: Sequence[Any]) -> Any:
    """A sum of all elements of all results, each with a weight of its own."""
    total = 0.0
    for i, x in enumerate(results):
        weights = np.exp(1j * (np.arange(x.size) + i)).reshape(x.shape)
        total = total + (xp.real(x) * weights.real + xp.imag(x) * weights.imag).sum()
    return total


def check_values(program: Program) -> None:
    """`functionalize`, which every transform begins with."""
    args = program.inputs()
    results = functx.functionalize(traced(program))(*args)
    compare(program, Outcome(results, args), with_numpy(program, program.inputs()), "functionalize")


def check_jit(programs: Sequence[Program]) -> None:
    """Several programs compiled as one, and what they write to their arguments."""
    args = [program.inputs() for program in programs]
    functions = [traced(program) for program in programs]

    def together(args: Any) -> Any:
        return [f(*own) for f, own in zip(functions, args, strict=True)]

    results = functx.jit(together)(args)
    for program, own, found in zip(programs, args, results, strict=True):
        compare(program, Outcome(found, own), with_numpy(program, program.inputs()), "jit")


def check_vmap(program: Program, lanes: int = 2, axis: int = 0) -> None:
    """A batch against a loop over its lanes."""
    each = zip(*[program.inputs(lane) for lane in range(lanes)], strict=True)
    stacked = [np.stack(column, axis) for column in each]
    loop = [np.array(x) for x in stacked]
    results = functx.vmap(traced(program), axis)(*stacked)
    for lane in range(lanes):
        args = [np.moveaxis(x, axis, 0)[lane, ...] for x in loop]
        got = Outcome([x[lane] for x in results], [np.moveaxis(x, axis, 0)[lane] for x in stacked])
        compare(program, got, with_numpy(program, args), f"lane {lane} of vmap")


def check_grad(program: Program, wrap: Callable[..., Any] = lambda f: f) -> None:
    """The derivative in a direction of all float arguments against central differences."""
    function = wrap(traced(program))
    args = program.inputs()
    chosen = tuple([i for i, x in enumerate(args) if x.dtype.kind == "f"])

    def loss(*args: Any) -> Any:
        results = function(*args)
        return loss_of(functx.numpy, results), results

    (_, results), gradients = functx.value_and_grad(loss, chosen, has_aux=True)(*args)
    wanted = with_numpy(program, program.inputs())
    compare(program, Outcome(results, args), wanted, "value_and_grad")
    directions = [
        np.sin(3.0 * np.arange(args[i].size) + i + 1).reshape(args[i].shape) for i in chosen
    ]
    found = sum([(g * d).sum() for g, d in zip(gradients, directions, strict=True)])

    def shifted(step: float) -> Any:
        moved = program.inputs()
        for i, d in zip(chosen, directions, strict=True):
            moved[i] += step * d
        return loss_of(np, with_numpy(program, moved).results)

    difference = (shifted(1e-5) - shifted(-1e-5)) / 2e-5
    scale = max(1.0, abs(difference), *[abs(x).max(initial=0) for x in wanted.results])
    assert abs(found - difference) < 1e-5 * scale, f"grad: {found} for a slope of {difference}"
