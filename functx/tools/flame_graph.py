"""Flame graphs in SVG: nested entries, each as wide as its share of the time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple
from zlib import crc32

from functx.tools.markup import Markup, element, svg

WIDTH, ROW, TOP = 960, 22, 30
_COLORS = "#f7c873", "#f2a65a", "#eec584", "#f4b183", "#e9d8a6", "#f6bd60", "#ee964b", "#f9dcc4"


class FlameGraphEntry:
    """An entry of a flame graph: its own seconds, and the entries inside."""

    def __init__(self, name: str):
        self.name = name
        self.own = 0.0
        self.inner: dict[str, FlameGraphEntry] = {}

    def add(self, path: Sequence[str], seconds: float) -> None:
        """Add seconds to the entry at `path` below this one."""
        entry = self
        for name in path:
            entry = entry.inner.setdefault(name, FlameGraphEntry(name))
        entry.own += seconds

    @property
    def seconds(self) -> float:
        """The seconds of this entry and of those inside."""
        return self.own + sum([entry.seconds for entry in self.inner.values()])

    @property
    def height(self) -> int:
        """The number of rows."""
        return 1 + max([entry.height for entry in self.inner.values()], default=0)


class PlacedEntry(NamedTuple):
    """An entry with its row and its left and right ends, from 0 to 1."""

    entry: FlameGraphEntry
    row: int
    left: float
    right: float


def place_entries(
    entry: FlameGraphEntry, row: int, left: float, scale: float
) -> Iterator[PlacedEntry]:
    """The entries from the outermost on; those inside one lie side by side, the longest first."""
    yield PlacedEntry(entry, row, left, left + entry.seconds * scale)
    for inner in sorted(entry.inner.values(), key=lambda f: -f.seconds):
        yield from place_entries(inner, row + 1, left, scale)
        left += inner.seconds * scale


def render_flame_graph(root: FlameGraphEntry, text_of: Callable[[float], str]) -> str:
    """The picture of `root`; `text_of` writes a number of seconds."""
    height = TOP + ROW * root.height + 8
    total = max(root.seconds, 1e-12)
    entries = [
        _rectangle(placed, total, text_of)
        for placed in place_entries(root, 0, 0.0, 1 / total)
        if (placed.right - placed.left) * WIDTH >= 0.5
    ]
    heading = element("text", f"{root.name}: {text_of(root.seconds)}", x=4, y=20, font_size=15)
    return svg(WIDTH, height, heading, entries)


def _rectangle(placed: PlacedEntry, total: float, text_of: Callable[[float], str]) -> Markup:
    entry, left = placed.entry, placed.left * WIDTH
    width, top = (placed.right - placed.left) * WIDTH, TOP + ROW * placed.row
    color = _COLORS[crc32(entry.name.encode()) % len(_COLORS)]
    share = f"{entry.name}: {text_of(entry.seconds)}, {100 * entry.seconds / total:.1f}%"
    fits = int((width - 6) / 6.7)
    label = entry.name if len(entry.name) <= fits else entry.name[: max(fits - 1, 0)] + "…"
    text = element("text", label, x=round(left + 4, 1), y=top + 15, class_="code", style=_DARK)
    return element(
        "g",
        element("title", share),
        element(
            "rect",
            x=round(left, 1),
            y=top,
            width=round(max(width - 1, 0.5), 1),
            height=ROW - 1,
            rx=2,
            fill=color,
        ),
        text if fits > 3 else None,
    )


_DARK = "fill: #2b2108"
"""The color of labels, whose background is light in all surroundings."""
