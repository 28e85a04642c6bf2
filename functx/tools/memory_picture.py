"""A timeline of memory as an SVG picture, drawn by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from xml.sax.saxutils import escape

from functx.core.budgets import format_bytes
from functx.tools.memory_values import describe_array

if TYPE_CHECKING:
    from functx.tools.memory import MemoryUse

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
