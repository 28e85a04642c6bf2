"""The ways to run a program, each of which must give what the reference interpreter gives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from functx.core.program import Program
from functx.core.rewriting import cached_rewrite
from functx.core.storage import Functionalize
from functx.core.tracing import backend
from functx.lowering.call import bind_functx_call
from functx.lowering.passes import ALL_PASSES, OPTIONAL_PASSES, REQUIRED_PASSES, select_passes
from functx.testing.reference.interpreter import interpret_in_numpy
from functx.testing.sections import FAST_COMPILE_OPTIONS
from functx.transforms.literals import collect_literals, lift_literals, pack_literals


class ExecutionPath(NamedTuple):
    """A way to run a program: its name, and `run(program, args)`, which gives the outputs."""

    name: str
    run: Callable[[Program, Sequence[Any]], list[Any]]


class ExecutionPaths:
    """The ways to run one program on one set of arguments; equal lowered text runs once."""

    def __init__(self) -> None:
        self.outputs: dict[Any, list[Any]] = {}

    def all(self) -> list[ExecutionPath]:
        """Every way, those that do least first."""
        alone = [
            ExecutionPath(
                f"lowered with the pass `{name}` alone",
                partial(self.lowered, (*REQUIRED_PASSES, name)),
            )
            for name in OPTIONAL_PASSES
        ]
        return [
            ExecutionPath("lowered without any pass", partial(self.lowered, REQUIRED_PASSES)),
            *alone,
            ExecutionPath(
                "lowered with all passes at full strength", partial(self.lowered, ALL_PASSES)
            ),
            ExecutionPath("compiled as by functx.jit", self.compiled),
            ExecutionPath("called inside jax.jit", self.inside_jax),
            ExecutionPath("compiled with its numbers as inputs", self.with_lifted_literals),
            ExecutionPath("printed and parsed", self.after_print_and_parse),
        ]

    def lowered(self, passes: Sequence[str], program: Program, args: Sequence[Any]) -> list[Any]:
        """The outputs when these passes do all that they can, and XLA little."""
        return self.run(program, args, select_passes(*passes, always=True), FAST_COMPILE_OPTIONS)

    def compiled(self, program: Program, args: Sequence[Any]) -> list[Any]:
        """The outputs as users get them."""
        return self.run(program, args, nullcontext(), {})

    def inside_jax(self, program: Program, args: Sequence[Any]) -> list[Any]:
        """The outputs of the program called in a function of JAX's."""
        return [*jax.jit(lambda *xs: backend.run(None, program, xs))(*args)]

    def with_lifted_literals(self, program: Program, args: Sequence[Any]) -> list[Any]:
        """The outputs of the program that takes its literals as arguments."""
        literals = collect_literals(program)
        lifted = lift_literals(lambda p: p, program, range(len(literals)))
        if lifted is None:
            return self.compiled(program, args)
        return self.run(
            lifted.program, [*args, *pack_literals(literals)], nullcontext(), FAST_COMPILE_OPTIONS
        )

    def after_print_and_parse(self, program: Program, args: Sequence[Any]) -> list[Any]:
        """The outputs of the program that its text stands for."""
        return self.lowered(REQUIRED_PASSES, Program.parse(str(program)), args)

    def run(
        self, program: Program, args: Sequence[Any], passes: Any, options: dict[str, Any]
    ) -> list[Any]:
        """The outputs of `program`, lowered in the context `passes` and compiled with `options`."""

        def f(*xs: Any) -> list[Any]:
            return bind_functx_call(program, xs)

        with passes:
            lowered = jax.jit(f).lower(*args)
        key = lowered.as_text(), *options, *[np.asarray(x).tobytes() for x in args]
        if key not in self.outputs:
            outs = lowered.compile(options)(*args)
            self.outputs[key] = [np.asarray(x) for x in outs]
        return self.outputs[key]


def functionalized_in_numpy(program: Program, args: Sequence[Any]) -> list[Any]:
    """The outputs of `program` without writes, and the new values of the arrays that it writes to."""
    return interpret_in_numpy(cached_rewrite(Functionalize(), program).program, *args)
