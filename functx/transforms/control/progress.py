"""Loops that show how far they are: a counter beside the carry, and an equation that shows it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from functx.core.avals import ShapedArray
from functx.core.errors import ArgumentError, type_name
from functx.core.program import Program
from functx.core.records import Rewrite
from functx.core.rewriting import apply
from functx.core.tracing import aval_of, trace_closed
from functx.ops.arithmetic import add
from functx.ops.progress import ShowProgress
from functx.ops.shaping import reshape
from functx.ops.slicing import slice_in_dim

COUNTER_AVAL = ShapedArray((), np.dtype("int32"))


class WithProgress(Rewrite[Program]):
    """The rewrite of the body of a loop to one that shows the steps done before it.

    They are a further carry, behind the `carries` that follow `consts`.
    """

    label: str
    total: int | None
    consts: int
    carries: int

    def __call__(self, program: Program) -> Program:
        n = self.consts + self.carries

        def body(*args: Any) -> list[Any]:
            ShowProgress(self.label, self.total)(args[n])
            outs = apply(None, program, [*args[:n], *args[n + 1 :]])
            return [*outs[: self.carries], add(args[n], 1), *outs[self.carries :]]

        avals = [*program.in_avals[:n], COUNTER_AVAL, *program.in_avals[n:]]
        names = program.in_names

        def with_counter() -> list[str]:
            given = names()
            return [*given[:n], "step", *given[n:]] if len(given) >= n else given

        in_names = None if names is None else with_counter
        return trace_closed(body, avals, name=program.name, in_names=in_names)


def show_completion(label: str, total: int | None, step: Any, outs: Sequence[Any]) -> None:
    """Show that the loop is done after `step` steps, when its results `outs` are there."""
    after = [x for x in outs if aval_of(x).size][:4]
    # The compiler may know the number of steps, so an element of the results tells the time.
    elements = [reshape(slice_in_dim(reshape(x, (aval_of(x).size,)), 0, 1), ()) for x in after]
    ShowProgress(label, total, True)(step, *elements)


def check_progress(what: str, progress: Any) -> None:
    """Raise ArgumentError unless `progress` is a name or None."""
    if progress is not None and not (isinstance(progress, str) and progress):
        raise ArgumentError(
            f"{what}: progress must be a name for the line that shows it, or None; got "
            f"{type_name(progress)} {progress!r}",
            fix='Pass progress="train", for instance.',
        )
