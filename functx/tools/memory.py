"""`memory`: the arrays that a function keeps in memory, as a table and as a picture.

A `MemoryUse` describes each array by the operation that computes it and the user's line.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from functx.core.config import format_bytes
from functx.core.errors import ArgumentError, type_name
from functx.core.primitive import Primitive
from functx.core.program import Equation, Program, Var, subprograms
from functx.core.program_calls import call_program_flat
from functx.core.program_editing import replace_program_fields
from functx.core.source_info import BackwardSource, backward_source, describe_source
from functx.core.tracer import current_builder
from functx.core.types import ShapedArray
from functx.core.typing import Function, PyTree, Value, Values
from functx.passes.costs import bytes_of
from functx.passes.memory_planning import MemoryTimeline
from functx.tools.markup import Markup, PictureResult, element, folded, join, svg
from functx.transforms.call_primitive import Call, RematerializedCall
from functx.transforms.make_ir import functionalize, make_ir


class LiveArray(NamedTuple):
    """An array in memory: its type and bytes, the operation that computes it, and the user's line."""

    aval: ShapedArray
    bytes: int
    operation: str
    place: str
    is_backward: bool = False

    def __str__(self) -> str:
        return f"{format_bytes(self.bytes):>10}  {self.aval!r:20} {self.operation:24} {self.place}"


def is_backward_equation(eqn: Equation) -> bool:
    """Whether an equation belongs to a backward computation."""
    return isinstance(eqn.source, BackwardSource) or type(eqn.primitive) is RematerializedCall


def describe_array(eqn: Equation, v: Var) -> LiveArray:
    """The description of the output `v` of `eqn`, by the innermost equation that computes it."""
    innermost = eqn
    inner: tuple[Equation, Var] | None = (eqn, v)
    while inner is not None:
        innermost, inner = inner[0], inner_definition(*inner)
    return LiveArray(
        v.aval,
        bytes_of(v.aval),
        operation_name(innermost.primitive),
        describe_source(innermost.source),
        is_backward_equation(eqn),
    )


def inner_definition(eqn: Equation, v: Var) -> tuple[Equation, Var] | None:
    """The equation of a sub-program of `eqn` that computes `v`, and its variable; None if none does."""
    index = eqn.outputs.index(v)
    for program in subprograms(eqn.primitive):
        if len(program.outputs) == len(eqn.outputs):
            for inner in program:
                for out in inner.outputs:
                    if out is program.outputs[index]:
                        return inner, out
    return None


def describe_scratch(eqn: Equation, count: int) -> LiveArray:
    """The scratch memory of `count` bytes of an operation, as an array."""
    aval = ShapedArray((count,), np.dtype("uint8"))
    return LiveArray(
        aval,
        count,
        f"inside {operation_name(eqn.primitive)}",
        describe_source(eqn.source),
        is_backward_equation(eqn),
    )


def operation_name(primitive: Primitive) -> str:
    """The name of an operation, with that of its program."""
    nested = subprograms(primitive)
    return f"{primitive.name} {nested[0].name}" if nested else primitive.name


def memory(fun: Function) -> Callable[..., MemoryUse]:
    """The function that returns the `MemoryUse` of `fun(*args)`, which prints as a table.

    It lists the arrays that a derivative in `fun` saves of the forward computation, with the lines
    that computed them, the estimated peak, and the arrays in memory at the peak. Arguments may
    be arrays, or have a shape and a dtype; nothing is computed. The compiler's numbers are in
    `jit(fun).lower(*args).compile().memory_analysis()`. A repeated part counts as a call, and a
    loop as one equation.

    >>> import functx, numpy
    >>> loss = lambda w, x: functx.numpy.sin(functx.numpy.sin(x @ w)).sum()
    >>> use = functx.tools.memory(functx.grad(loss))(numpy.ones((4, 4)), numpy.ones((8, 4)))
    >>> use.saved_bytes
    256
    """
    if not callable(fun):
        raise ArgumentError(f"memory: the argument must be a function; got {type_name(fun)}")

    def wrapper(*args: PyTree, **kwargs: PyTree) -> MemoryUse:
        return MemoryUse(inline_memory_calls(make_ir(functionalize(fun))(*args, **kwargs)))

    return wrapper


class TimelineEntry(NamedTuple):
    """One equation of a program, and the bytes in memory while it is computed.

    They include `own_bytes`, the scratch memory of the operation.
    """

    operation: str
    place: str
    bytes: int
    own_bytes: int


@dataclass(frozen=True)
class MemoryUse(PictureResult):
    """The arrays that `program` keeps in memory while it runs, without its arguments."""

    program: Program

    @cached_property
    def _timeline(self) -> MemoryTimeline:
        return MemoryTimeline(self.program, results=True)

    @property
    def argument_bytes(self) -> int:
        """The bytes of the arguments and the captured arrays."""
        return sum(map(bytes_of, self.program.in_avals))

    @property
    def result_bytes(self) -> int:
        """The bytes of the results."""
        return sum(map(bytes_of, self.program.out_avals))

    @cached_property
    def saved(self) -> list[LiveArray]:
        """The arrays that are saved for backward computations, without arguments, the largest first."""
        backward = [eqn for eqn in self.program if is_backward_equation(eqn)]
        used = {a for eqn in backward for a in eqn.inputs}
        forward = [eqn for eqn in self.program if not is_backward_equation(eqn)]
        saved = [describe_array(eqn, v) for eqn in forward for v in eqn.outputs if v in used]
        return sorted(saved, key=lambda array: -array.bytes)

    @property
    def saved_bytes(self) -> int:
        """The bytes of the arrays that are saved for backward computations."""
        return sum([array.bytes for array in self.saved])

    @cached_property
    def timeline(self) -> list[TimelineEntry]:
        """The memory at each equation, in order."""
        line = self._timeline
        return [
            TimelineEntry(operation_name(eqn.primitive), describe_source(eqn.source), total, inside)
            for eqn, total, inside in zip(
                self.program, line.total_bytes, line.own_bytes, strict=True
            )
        ]

    @property
    def peak_bytes(self) -> int:
        """The estimated peak: the most bytes of temporaries and results at one time."""
        return self._timeline.peak_bytes

    @property
    def temporary_bytes(self) -> int:
        """The estimated peak without arguments and results."""
        return MemoryTimeline(self.program).peak_bytes

    @cached_property
    def live_at_peak(self) -> list[LiveArray]:
        """The arrays in memory at the peak, the largest first."""
        line, equations = self._timeline, self.program.equations
        if not equations:
            return []
        peak = line.peak
        live = [
            describe_array(equations[span.start], span.var)
            for span in line.live_ranges
            if span.start <= peak <= span.end
        ]
        if line.own_bytes[peak]:
            live.append(describe_scratch(equations[peak], line.own_bytes[peak]))
        return sorted(live, key=lambda array: -array.bytes)

    def __str__(self) -> str:
        peak = f", at {self.timeline[self._timeline.peak].operation}" if self.timeline else ""
        header = [
            f"memory of {self.program.name}: at most about {format_bytes(self.peak_bytes)}{peak}",
            f"arguments {format_bytes(self.argument_bytes)}, results {format_bytes(self.result_bytes)}, "
            f"saved for the backward computation {format_bytes(self.saved_bytes)}",
        ]
        lines = [*header, "", "saved:", *format_table(self.saved), "", "in memory at the peak:"]
        return "\n".join([*lines, *format_table(self.live_at_peak)])

    __repr__ = __str__

    def svg(self) -> str:
        """The timeline as an SVG picture: an area for each array over the equations, and the peak."""
        return render_svg(self)

    def title(self) -> str:
        return f"memory of {self.program.name}"

    def content(self) -> Markup:
        """The picture, the arrays that are saved, and those in memory at the peak."""
        picture = Markup(self.svg())
        tables = [
            folded(label, element("div", self._rows(arrays), class_="code"))
            for label, arrays in (("saved", self.saved), ("at the peak", self.live_at_peak))
        ]
        return join([picture, tables])

    @staticmethod
    def _rows(arrays: Sequence[LiveArray]) -> list[Markup]:
        return [element("div", text, class_="row") for text in format_table(arrays)]


def format_table(arrays: Sequence[LiveArray], max_rows: int = 20) -> list[str]:
    """The lines of a table of at most `max_rows` arrays, the largest first; equal arrays share a line."""
    rows = sorted(Counter(arrays).items(), key=lambda item: -item[0].bytes * item[1])
    lines = [f"{count:4} x {array}" if count > 1 else f"{'':7}{array}" for array, count in rows]
    if len(lines) > max_rows:
        other_bytes = sum([array.bytes * count for array, count in rows[max_rows:]])
        other_rows = f"{format_bytes(other_bytes):>10}  in {len(rows) - max_rows} others"
        lines[max_rows:] = [f"{'':7}{other_rows}"]
    return lines or ["       nothing"]


def mark_backward(program: Program) -> Program:
    """`program` with its equations marked as those of a backward computation."""
    return replace_program_fields(
        program, equations=[e.replace(source=backward_source(e.source)) for e in program]
    )


def inline_memory_calls(program: Program, *, rematerialized: bool = True) -> Program:
    """`program` with its calls inlined, except those of repeats (`noinline`).

    With `rematerialized`, also the outermost calls that recompute values are inlined; their
    equations are backward computations.
    """

    def rule(eqn: Equation, *args: Value) -> Values:
        call: Any = eqn.primitive
        is_call = type(call) is Call
        if not (is_call and not call.noinline) and not (
            rematerialized and type(call) is RematerializedCall
        ):
            return NotImplemented
        # The equations of the body keep their own lines.
        current_builder.require().source = None
        body = call.program if is_call else mark_backward(call.program)
        return call_program_flat(
            inline_memory_calls(body, rematerialized=rematerialized and is_call), args
        )

    return program.rewrite(rule)


WIDTH, HEIGHT = 960, 440
LEFT, RIGHT, TOP, BOTTOM = 80, 20, 56, 40
MAX_AREAS = 200
"""The number of arrays with an area of their own; smaller arrays share one."""
_FORWARD_COLORS = "#4c78a8", "#6f9bc8", "#9ecae9", "#3b6a96", "#88b4d8"
_BACKWARD_COLORS = "#f58518", "#ffbf79", "#e0761a", "#f9a55b", "#d96b0b"
_SCRATCH_COLOR, _OTHERS_COLOR = "#bab0ac", "#d8d3cf"


def render_svg(use: MemoryUse) -> str:
    """The picture of the memory over the equations of a program."""
    max_bytes = max(use.peak_bytes, 1)
    x_scale = (WIDTH - LEFT - RIGHT) / max(len(use.timeline), 1)
    y_scale = (HEIGHT - TOP - BOTTOM) / max_bytes

    def x(step: float) -> float:
        return LEFT + step * x_scale

    def y(count: float) -> float:
        return HEIGHT - BOTTOM - count * y_scale

    areas = element(
        "g", [a.to_svg(x, y) for a in stack_areas(use)], stroke="#ffffff", stroke_width="0.3"
    )
    parts = svg_header(use), svg_grid(max_bytes, y), areas, svg_annotations(use, x, y)
    return svg(WIDTH, HEIGHT, *parts)


Point = tuple[float, float]


class Area:
    """The area of an array over the equations of its life; `steps` are (equation, low, high)."""

    def __init__(self, title: str, color: str):
        self.title, self.color = title, color
        self.steps: list[tuple[int, int, int]] = []

    def to_svg(self, x: Callable[[float], float], y: Callable[[float], float]) -> Markup | None:
        """The area as a polygon with a title; None if it is empty."""
        if not any([high > low for _, low, high in self.steps]):
            return None
        upper = [p for i, _, high in self.steps for p in ((x(i), y(high)), (x(i + 1), y(high)))]
        lower = [p for i, low, _ in self.steps for p in ((x(i), y(low)), (x(i + 1), y(low)))]
        points = [
            f"{a:.1f},{b:.1f}"
            for a, b in (*simplify_polyline(upper), *simplify_polyline(lower)[::-1])
        ]
        title = element("title", self.title)
        return element("polygon", title, points=" ".join(points), fill=self.color)


def simplify_polyline(points: list[Point]) -> list[Point]:
    """The points of a line without inner points of horizontal segments."""
    inner = zip(points, points[1:], points[2:], strict=False)
    turns = [b for a, b, c in inner if not a[1] == b[1] == c[1]]
    return [points[0], *turns, points[-1]]


def stack_areas(use: MemoryUse) -> list[Area]:
    """The areas of all arrays, stacked at each equation."""
    line, equations = use._timeline, use.program.equations
    heights = [0] * len(equations)
    large = {s.var for s in sorted(line.live_ranges, key=lambda span: -span.bytes)[:MAX_AREAS]}
    other_bytes = [0] * len(equations)
    areas: list[Area] = []
    for span in line.live_ranges:
        steps = range(span.start, span.end + 1)
        if span.var not in large:
            for i in steps:
                other_bytes[i] += span.bytes
            continue
        array = describe_array(equations[span.start], span.var)
        palette = _BACKWARD_COLORS if array.is_backward else _FORWARD_COLORS
        color = palette[len(areas) % len(palette)]
        areas.append(Area(" ".join(str(array).split()), color))
        add_layer(areas[-1], heights, steps, [span.bytes] * len(equations))
    for title, color, counts in (
        ("smaller arrays", _OTHERS_COLOR, other_bytes),
        ("scratch memory of the operation", _SCRATCH_COLOR, line.own_bytes),
    ):
        areas.append(Area(title, color))
        add_layer(areas[-1], heights, range(len(equations)), counts)
    return areas


def add_layer(area: Area, heights: list[int], steps: range, counts: list[int]) -> None:
    """Stack `area` on the `heights` at `steps`, `counts[i]` bytes high at step i."""
    for i in steps:
        area.steps.append((i, heights[i], heights[i] + counts[i]))
        heights[i] += counts[i]


def svg_header(use: MemoryUse) -> list[Markup]:
    """The title of the picture and the legend of the colors."""
    text = f"memory of {use.program.name}: at most about {format_bytes(use.peak_bytes)}"
    legend = [
        ("forward", _FORWARD_COLORS[0]),
        ("backward", _BACKWARD_COLORS[0]),
        ("inside an operation", _SCRATCH_COLOR),
    ]
    parts = [element("text", text, x=LEFT, y=22, font_size=15)]
    for i, (label, color) in enumerate(legend):
        left = LEFT + 130 * i
        parts.append(element("rect", x=left, y=32, width=12, height=12, fill=color))
        parts.append(element("text", label, x=left + 18, y=42, class_="faint"))
    return parts


def svg_grid(max_bytes: int, y: Callable[[float], float]) -> list[Markup]:
    """Lines at quarters of `max_bytes`, with their labels."""
    parts = []
    for quarter in range(5):
        count = max_bytes * quarter / 4
        height = round(y(count), 1)
        label = format_bytes(count)
        parts.append(
            element("line", x1=LEFT, x2=WIDTH - RIGHT, y1=height, y2=height, class_="rule")
        )
        parts.append(
            element("text", label, x=LEFT - 8, y=height + 4, text_anchor="end", class_="faint")
        )
    return parts


def svg_annotations(
    use: MemoryUse, x: Callable[[float], float], y: Callable[[float], float]
) -> list[Markup]:
    """The mark of the peak, and the label of the horizontal axis."""
    timeline, middle = use.timeline, (LEFT + WIDTH - RIGHT) / 2
    axis = f"{len(timeline)} equations, in order"
    parts = [element("text", axis, x=middle, y=HEIGHT - 12, text_anchor="middle", class_="faint")]
    if timeline:
        peak = use._timeline.peak
        position, entry = round(x(peak + 0.5), 1), timeline[peak]
        align_end = position > WIDTH * 0.6
        label = f"peak: {entry.operation}, {entry.place}"
        span = {"x1": position, "x2": position, "y1": TOP - 4, "y2": HEIGHT - BOTTOM}
        parts.append(element("line", **span, class_="mark", stroke_dasharray="4 3"))
        place = {"x": position + (-6 if align_end else 6), "y": TOP + 8}
        anchor = "end" if align_end else "start"
        parts.append(element("text", label, **place, text_anchor=anchor))
    return parts
