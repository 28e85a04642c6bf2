"""What there is to tell of an array in memory: what makes it, and whose line asked for that."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from functx.core.config import format_bytes
from functx.core.errors import ArgumentError, type_name
from functx.core.primitive import Primitive
from functx.core.program import Equation, Program, Var, subprograms
from functx.core.program_editing import call_program_flat, replace_program_fields
from functx.core.source_info import BackwardSource, backward_source, describe_source
from functx.core.tracer import current_builder
from functx.core.types import ShapedArray
from functx.passes.memory_cost_model import MemoryTimeline, bytes_of
from functx.transforms.call_primitive import Call, RematerializedCall
from functx.transforms.make_ir import functionalize, make_ir


class LiveArray(NamedTuple):
    """An array in memory: its type and bytes, what makes it, and the user's line that asked for it."""

    aval: ShapedArray
    bytes: int
    operation: str
    place: str
    is_backward: bool = False

    def __str__(self) -> str:
        return f"{format_bytes(self.bytes):>10}  {self.aval!r:20} {self.operation:24} {self.place}"


def is_backward_equation(eqn: Equation) -> bool:
    """Whether an equation is one of a backward computation."""
    return isinstance(eqn.source, BackwardSource) or type(eqn.primitive) is RematerializedCall


def describe_array(eqn: Equation, v: Var) -> LiveArray:
    """What there is to tell of `v`, which `eqn` makes: by a program inside, of what does so there."""
    found, late = (eqn, v), is_backward_equation(eqn)
    inside: tuple[Equation, Var] | None = found
    while inside is not None:
        found, inside = inside, inner_definition(*inside)
    maker = found[0]
    return LiveArray(
        v.aval,
        bytes_of(v.aval),
        operation_name(maker.primitive),
        describe_source(maker.source),
        late,
    )


def inner_definition(eqn: Equation, v: Var) -> tuple[Equation, Var] | None:
    """The equation of a program in `eqn` that makes what `v` is, and its variable; None for none."""
    place = eqn.outputs.index(v)
    for program in subprograms(eqn.primitive):
        if len(program.outputs) == len(eqn.outputs):
            for inner in program:
                for out in inner.outputs:
                    if out is program.outputs[place]:
                        return inner, out
    return None


def describe_scratch(eqn: Equation, count: int) -> LiveArray:
    """The bytes that an operation needs for itself, as a value."""
    aval = ShapedArray((count,), np.dtype("uint8"))
    return LiveArray(
        aval,
        count,
        f"inside {operation_name(eqn.primitive)}",
        describe_source(eqn.source),
        is_backward_equation(eqn),
    )


def operation_name(primitive: Primitive) -> str:
    """The name of an operation, and of the program that it runs."""
    held = subprograms(primitive)
    return f"{primitive.name} {held[0].name}" if held else primitive.name


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


WIDTH, HEIGHT = 960, 440
LEFT, RIGHT, TOP, BOTTOM = 80, 20, 56, 40
MAX_AREAS = 200
"""So many arrays get an area of their own; the smaller ones share one."""
_FORWARD_COLORS = "#4c78a8", "#6f9bc8", "#9ecae9", "#3b6a96", "#88b4d8"
_BACKWARD_COLORS = "#f58518", "#ffbf79", "#e0761a", "#f9a55b", "#d96b0b"
_SCRATCH_COLOR, _OTHERS_COLOR = "#bab0ac", "#d8d3cf"


def render_svg(use: MemoryUse) -> str:
    """The picture of what is in memory over the equations of a program."""
    moments = use.timeline
    most = max(use.peak_bytes, 1)
    areas = stack_areas(use)
    across = (WIDTH - LEFT - RIGHT) / max(len(moments), 1)
    up = (HEIGHT - TOP - BOTTOM) / most

    def x(at: float) -> float:
        return LEFT + at * across

    def y(count: float) -> float:
        return HEIGHT - BOTTOM - count * up

    drawn = [
        f'<g stroke="#ffffff" stroke-width="0.3">{"".join([a.to_svg(x, y) for a in areas])}</g>'
    ]
    parts = [*svg_header(use), *svg_grid(most, y), *drawn, *svg_annotations(use, x, y), "</svg>"]
    return "\n".join(parts) + "\n"


Point = tuple[float, float]


class Area:
    """A value over some equations, each time on top of those drawn before it."""

    def __init__(self, title: str, colour: str):
        self.title, self.colour = title, colour
        self.steps: list[tuple[int, int, int]] = []

    def to_svg(self, x: Any, y: Any) -> str:
        """The area as a polygon that tells what it is."""
        if not any([high > low for _, low, high in self.steps]):
            return ""
        upper = [p for i, _, high in self.steps for p in ((x(i), y(high)), (x(i + 1), y(high)))]
        lower = [p for i, low, _ in self.steps for p in ((x(i), y(low)), (x(i + 1), y(low)))]
        points = [
            f"{a:.1f},{b:.1f}"
            for a, b in (*simplify_polyline(upper), *simplify_polyline(lower)[::-1])
        ]
        return (
            f'<polygon points="{" ".join(points)}" fill="{self.colour}">'
            f"<title>{escape(self.title)}</title></polygon>"
        )


def simplify_polyline(points: list[Point]) -> list[Point]:
    """The points of a line without those on the way between two others of the same height."""
    inner = zip(points, points[1:], points[2:], strict=False)
    turns = [b for a, b, c in inner if not a[1] == b[1] == c[1]]
    return [points[0], *turns, points[-1]]


def stack_areas(use: MemoryUse) -> list[Area]:
    """The areas of all values, one on top of the other at each equation."""
    line, equations = use._timeline, use.program.equations
    heights = [0] * len(equations)
    large = {s.var for s in sorted(line.live_ranges, key=lambda span: -span.bytes)[:MAX_AREAS]}
    rest = [0] * len(equations)
    areas: list[Area] = []
    for span in line.live_ranges:
        if span.var not in large:
            for i in range(span.start, span.end + 1):
                rest[i] += span.bytes
            continue
        value = describe_array(equations[span.start], span.var)
        palette = _BACKWARD_COLORS if value.is_backward else _FORWARD_COLORS
        colour = palette[len(areas) % len(palette)]
        areas.append(Area(" ".join(str(value).split()), colour))
        add_layer(
            areas[-1], heights, range(span.start, span.end + 1), [span.bytes] * len(equations)
        )
    for title, colour, counts in (
        ("smaller arrays", _OTHERS_COLOR, rest),
        ("what the operation needs for itself", _SCRATCH_COLOR, line.own_bytes),
    ):
        areas.append(Area(title, colour))
        add_layer(areas[-1], heights, range(len(equations)), counts)
    return areas


def add_layer(area: Area, heights: list[int], steps: range, counts: list[int]) -> None:
    """Lay `area` on what is there at `steps`, so many bytes high at each."""
    for i in steps:
        area.steps.append((i, heights[i], heights[i] + counts[i]))
        heights[i] += counts[i]


def svg_header(use: MemoryUse) -> list[str]:
    """The frame of the picture, its title, and what the colours mean."""
    text = f"memory of {use.program.name}: at most about {format_bytes(use.peak_bytes)}"
    legend = [
        ("forward", _FORWARD_COLORS[0]),
        ("backward", _BACKWARD_COLORS[0]),
        ("inside an operation", _SCRATCH_COLOR),
    ]
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        f'<text x="{LEFT}" y="22" font-size="15">{escape(text)}</text>',
    ]
    for i, (word, colour) in enumerate(legend):
        at = LEFT + 130 * i
        lines.append(f'<rect x="{at}" y="32" width="12" height="12" fill="{colour}"/>')
        lines.append(f'<text x="{at + 18}" y="42" fill="#555555">{word}</text>')
    return lines


def svg_grid(most: int, y: Any) -> list[str]:
    """Lines at quarters of the most, with the bytes."""
    lines = []
    for quarter in range(5):
        count = most * quarter / 4
        at = y(count)
        lines.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at:.1f}" y2="{at:.1f}" stroke="#e4e4e4"/>'
            f'<text x="{LEFT - 8}" y="{at + 4:.1f}" text-anchor="end" fill="#555555">'
            f"{format_bytes(count)}</text>"
        )
    return lines


def svg_annotations(use: MemoryUse, x: Any, y: Any) -> list[str]:
    """The peak, and what the horizontal axis counts."""
    moments, bottom = use.timeline, HEIGHT - BOTTOM
    lines = [
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 12}" text-anchor="middle" '
        f'fill="#555555">{len(moments)} equations, in order</text>'
    ]
    if moments:
        peak = use._timeline.peak
        at, moment = x(peak + 0.5), moments[peak]
        end = at > WIDTH * 0.6
        label = escape(f"peak: {moment.operation}, {moment.place}")
        lines.append(
            f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{TOP - 4}" y2="{bottom}" stroke="#222222" '
            f'stroke-dasharray="4 3"/><text x="{at + (-6 if end else 6):.1f}" y="{TOP + 8}" '
            f'text-anchor="{"end" if end else "start"}">{label}</text>'
        )
    return lines
