"""The ways to run a program, each of which must give what the reference interpreter gives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from functx.core.program import Program
from functx.core.rewriting import rewritten
from functx.core.storage import Purify
from functx.core.tracing import execution
from functx.lowering.call import call_in_jax
from functx.lowering.passes import NEEDED, OPTIONAL, PASSES, only
from functx.testing.reference.interpreter import interpret
from functx.testing.sections import QUICKLY
from functx.transforms.literals import literals_of, packed, with_literals_as_inputs


class Way(NamedTuple):
    """A way to run a program: its name, and `run(program, args)`, which gives the outputs."""

    name: str
    run: Callable[[Program, Sequence[Any]], list[Any]]


class Ways:
    """The ways to run one program on one set of arguments; equal lowered text runs once."""

    def __init__(self) -> None:
        self.outputs: dict[Any, list[Any]] = {}

    def all(self) -> list[Way]:
        """Every way, those that do least first."""
        alone = [
            Way(f"lowered with the pass `{name}` alone", partial(self.lowered, (*NEEDED, name)))
            for name in OPTIONAL
        ]
        return [
            Way("lowered without any pass", partial(self.lowered, NEEDED)),
            *alone,
            Way("lowered with all passes at full strength", partial(self.lowered, PASSES)),
            Way("compiled as by functx.jit", self.compiled),
            Way("called inside jax.jit", self.inside_jax),
            Way("compiled with its numbers as inputs", self.with_numbers_as_inputs),
            Way("printed and parsed", self.printed_and_parsed),
        ]

    def lowered(self, passes: Sequence[str], program: Program, args: Sequence[Any]) -> list[Any]:
        """The outputs when these passes do all that they can, and XLA little."""
        return self.run(program, args, only(*passes, always=True), QUICKLY)

    def compiled(self, program: Program, args: Sequence[Any]) -> list[Any]:
        """The outputs as users get them."""
        return self.run(program, args, nullcontext(), {})

    def inside_jax(self, program: Program, args: Sequence[Any]) -> list[Any]:
        """The outputs of the program called in a function of JAX's."""
        return [*jax.jit(lambda *xs: execution.run(None, program, xs))(*args)]

    def with_numbers_as_inputs(self, program: Program, args: Sequence[Any]) -> list[Any]:
        """The outputs of the program that takes its literals as arguments."""
        literals = literals_of(program)
        lifted = with_literals_as_inputs(lambda p: p, program, range(len(literals)))
        if lifted is None:
            return self.compiled(program, args)
        return self.run(lifted.program, [*args, *packed(literals)], nullcontext(), QUICKLY)

    def printed_and_parsed(self, program: Program, args: Sequence[Any]) -> list[Any]:
        """The outputs of the program that its text stands for."""
        return self.lowered(NEEDED, Program.parse(str(program)), args)

    def run(
        self, program: Program, args: Sequence[Any], passes: Any, options: dict[str, Any]
    ) -> list[Any]:
        """The outputs of `program`, lowered in the context `passes` and compiled with `options`."""

        def f(*xs: Any) -> list[Any]:
            return call_in_jax(program, xs)

        with passes:
            lowered = jax.jit(f).lower(*args)
        key = lowered.as_text(), *options, *[np.asarray(x).tobytes() for x in args]
        if key not in self.outputs:
            outs = lowered.compile(options)(*args)
            self.outputs[key] = [np.asarray(x) for x in outs]
        return self.outputs[key]


def pure_in_reference(program: Program, args: Sequence[Any]) -> list[Any]:
    """The outputs of `program` without writes, and the new values of the arrays that it writes to."""
    return interpret(rewritten(Purify(), program).program, *args)
