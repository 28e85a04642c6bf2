"""`memory`: what a function keeps in memory while it runs, and which of it a derivative asks for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from functx.core.budgets import format_bytes
from functx.core.editing import call_program_flat, replace_program_fields
from functx.core.errors import ArgumentError, type_name
from functx.core.program import Equation, Program
from functx.core.provenance import backward_source, describe_source
from functx.core.tracing import current_builder
from functx.tools.memory_picture import render_svg
from functx.tools.memory_values import (
    LiveArray,
    describe_array,
    describe_scratch,
    is_backward_equation,
    operation_name,
)
from functx.transforms.call import Call, RematerializedCall
from functx.transforms.functionalize import functionalize
from functx.transforms.make_ir import make_ir
from functx.transforms.planning.costs import bytes_of
from functx.transforms.planning.peak import MemoryTimeline


def memory(fun: Callable[..., Any]) -> Callable[..., MemoryUse]:
    """The function that tells what `fun(*args)` keeps in memory, as an object that prints as a table.

    It says what a derivative in `fun` saves of the forward computation and where that was made,
    about how much is in memory at most, and what that is. Arguments may be arrays, or have a
    shape and a dtype; nothing is computed. The numbers are estimates: what the compiler makes of
    a program is in `jit(fun).lower(*args).compile().memory_analysis()`. Repeats count as they are
    differentiated, as calls, and a loop as one equation.

    >>> import functx, numpy
    >>> loss = lambda w, x: functx.numpy.sin(functx.numpy.sin(x @ w)).sum()
    >>> use = functx.tools.memory(functx.grad(loss))(numpy.ones((4, 4)), numpy.ones((8, 4)))
    >>> use.saved_bytes
    256
    """
    if not callable(fun):
        raise ArgumentError(f"memory: the argument must be a function; got {type_name(fun)}")

    def wrapper(*args: Any, **kwargs: Any) -> MemoryUse:
        return MemoryUse(inline_memory_calls(make_ir(functionalize(fun))(*args, **kwargs)))

    return wrapper


class TimelineEntry(NamedTuple):
    """One equation of a program, and the bytes in memory while it is computed.

    `inside` of them are what the operation needs for itself.
    """

    operation: str
    place: str
    bytes: int
    own_bytes: int


@dataclass(frozen=True)
class MemoryUse:
    """What `program` keeps in memory as it runs, besides its arguments."""

    program: Program

    @cached_property
    def _timeline(self) -> MemoryTimeline:
        return MemoryTimeline(self.program, results=True)

    @property
    def argument_bytes(self) -> int:
        """The bytes of the arguments, and of arrays that the function closes over."""
        return sum(map(bytes_of, self.program.in_avals))

    @property
    def result_bytes(self) -> int:
        """The bytes of the results."""
        return sum(map(bytes_of, self.program.out_avals))

    @cached_property
    def saved(self) -> list[LiveArray]:
        """What is saved for backward computations, arguments aside, the largest first."""
        backward = [eqn for eqn in self.program if is_backward_equation(eqn)]
        wanted = {a for eqn in backward for a in eqn.inputs}
        early = [eqn for eqn in self.program if not is_backward_equation(eqn)] if backward else []
        found = [describe_array(eqn, v) for eqn in early for v in eqn.outputs if v in wanted]
        return sorted(found, key=lambda value: -value.bytes)

    @property
    def saved_bytes(self) -> int:
        """The bytes of what is saved for backward computations."""
        return sum([value.bytes for value in self.saved])

    @cached_property
    def timeline(self) -> list[TimelineEntry]:
        """What is in memory at each equation, in order."""
        line = self._timeline
        return [
            TimelineEntry(operation_name(eqn.primitive), describe_source(eqn.source), total, inside)
            for eqn, total, inside in zip(
                self.program, line.total_bytes, line.own_bytes, strict=True
            )
        ]

    @property
    def peak_bytes(self) -> int:
        """About the most that is in memory at once: temporaries and results."""
        return self._timeline.peak_bytes

    @property
    def temporary_bytes(self) -> int:
        """About the most that is in memory at once besides arguments and results."""
        return MemoryTimeline(self.program).peak_bytes

    @cached_property
    def live_at_peak(self) -> list[LiveArray]:
        """What is in memory when it is most, the largest first."""
        line = self._timeline
        if not self.program.equations:
            return []
        at = line.peak
        found = [
            describe_array(self.program.equations[span.start], span.var)
            for span in line.live_ranges
            if span.start <= at <= span.end
        ]
        if line.own_bytes[at]:
            found.append(describe_scratch(self.program.equations[at], line.own_bytes[at]))
        return sorted(found, key=lambda value: -value.bytes)

    def __str__(self) -> str:
        at = f", at {self.timeline[self._timeline.peak].operation}" if self.timeline else ""
        head = [
            f"memory of {self.program.name}: at most about {format_bytes(self.peak_bytes)}{at}",
            f"arguments {format_bytes(self.argument_bytes)}, results {format_bytes(self.result_bytes)}, "
            f"saved for the backward computation {format_bytes(self.saved_bytes)}",
        ]
        lines = [*head, "", "saved:", *format_table(self.saved), "", "in memory at the peak:"]
        return "\n".join([*lines, *format_table(self.live_at_peak)])

    __repr__ = __str__

    def svg(self) -> str:
        """The timeline as a picture: an area for each array, over the equations, the peak marked."""
        return render_svg(self)

    def save(self, path: Any) -> None:
        """Write the picture to a file."""
        Path(path).write_text(self.svg(), encoding="utf-8")

    _repr_svg_ = svg


def format_table(values: Sequence[LiveArray], most: int = 20) -> list[str]:
    """A line for each kind of value, those alike on one line, the largest first."""
    counts: dict[LiveArray, int] = {}
    for value in values:
        counts[value] = counts.get(value, 0) + 1
    rows = sorted(counts.items(), key=lambda item: -item[0].bytes * item[1])
    lines = [f"{count:4} x {value}" if count > 1 else f"{'':7}{value}" for value, count in rows]
    if len(lines) > most:
        rest = sum([value.bytes * count for value, count in rows[most:]])
        lines[most:] = [f"{'':7}{format_bytes(rest):>10}  in {len(rows) - most} others"]
    return lines or ["       nothing"]


def mark_backward(program: Program) -> Program:
    """`program` as one of a backward computation."""
    return replace_program_fields(
        program, equations=[e.replace(source=backward_source(e.source)) for e in program]
    )


def inline_memory_calls(program: Program, again: bool = True) -> Program:
    """`program` with the calls opened up but for its repeats; with `again` those done again too.

    What these do is all late.
    """

    def rule(eqn: Equation, *args: Any) -> Any:
        call: Any = eqn.primitive
        if not (again and type(call) is RematerializedCall) and (
            type(call) is not Call or call.noinline
        ):
            return NotImplemented
        # The equations of the body keep their own lines.
        current_builder.require().source = None
        body = mark_backward(call.program) if type(call) is RematerializedCall else call.program
        return call_program_flat(inline_memory_calls(body, again and type(call) is Call), args)

    return program.rewrite(rule)
