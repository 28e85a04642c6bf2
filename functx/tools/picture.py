"""`picture`: the graph of a program in SVG, with programs inside as boxes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

from functx.core.errors import ArgumentError, type_name
from functx.core.printing import atom_text, primitive_text, variable_names
from functx.core.program import Atom, Equation, Program, Var, subprograms
from functx.core.typing import Function, PyTree
from functx.ops.convolution import Convolution
from functx.ops.families import Elementwise
from functx.passes.costs import contraction_flops
from functx.tools.graph_layout import GraphLayout, NodeSize, lay_out
from functx.tools.markup import Markup, PictureResult, element, svg
from functx.tools.passes import outlined
from functx.tools.program_html import equation_note
from functx.transforms.argument_names import check_callable, wrap_transform
from functx.transforms.make_ir import functionalize, make_ir

_CHARACTER, _ROW, _MARGIN = 6.7, 15.0, 14.0
_COLORS = {
    **{"contraction": "#f58518", "elementwise": "#4c78a8", "program": "#b279a2"},
    **{"other": "#54a24b", "input": "#9d9d9d", "output": "#9d9d9d"},
}


class DrawnNode(NamedTuple):
    """A drawn node: its size, its lines of text, its kind, its note, and what is drawn inside."""

    size: NodeSize
    texts: tuple[str, ...]
    kind: str
    note: str
    inner: tuple[Drawing, ...] = ()


class Drawing(NamedTuple):
    """The nodes of a program, their edges and their layout."""

    title: str
    nodes: tuple[DrawnNode, ...]
    layout: GraphLayout


@dataclass(frozen=True)
class ProgramPicture(PictureResult):
    """The graph of `program`; programs inside are drawn down to `depth`, and boxes below."""

    program: Program
    depth: int

    @cached_property
    def drawing(self) -> Drawing:
        """The nodes and their places."""
        return draw_program(self.program, self.depth)

    def title(self) -> str:
        return f"graph of {self.program.name}"

    def __repr__(self) -> str:
        return f"<{self.title()}: {len(self.drawing.nodes)} nodes>"

    def svg(self) -> str:
        """The graph as a document of SVG."""
        size = self.drawing.layout.size
        shown = render_drawing(self.drawing, _MARGIN, _MARGIN)
        return svg(size.width + 2 * _MARGIN, size.height + 2 * _MARGIN, shown)


def picture(fun: Function, depth: int = 1) -> Callable[..., ProgramPicture]:
    """The function that draws the program of `fun(*args)` as a graph in SVG.

    Each equation is a node, with the type of its result; the pointer on one shows the line of the user,
    bytes and flops. Repeats are one program with several calls, as they are lowered. Programs inside
    are drawn in their boxes down to `depth`; deeper ones are closed boxes. The layout needs the
    package igraph (`pip install igraph`).

    Raises MissingExtraError without igraph, ArgumentError for what is no function, and whatever
    `fun` raises.

    >>> import functx
    >>> shown = functx.tools.picture(lambda x: functx.numpy.sin(x) * 2.0)(1.0)
    >>> shown.program.name, shown.depth
    ('lambda', 1)
    """
    check_callable(fun, "picture")
    if type(depth) is not int or depth < 0:
        got = depth if type(depth) is int else type_name(depth)
        raise ArgumentError(f"picture: depth must be a number of programs, at least 0; got {got}")

    def wrapper(*args: PyTree, **kwargs: PyTree) -> ProgramPicture:
        return ProgramPicture(outlined(make_ir(functionalize(fun))(*args, **kwargs)), depth)

    return wrap_transform(wrapper, fun, "picture")


def draw_program(program: Program, depth: int) -> Drawing:
    """The drawing of a program whose inner programs are drawn down to `depth`."""
    names = variable_names(program)
    used = {a for eqn in program for a in eqn.inputs} | {*program.outputs}
    nodes: list[DrawnNode] = []
    makers: dict[Var, int] = {}
    for v in program.inputs:
        if v in used:
            makers[v] = len(nodes)
            nodes.append(_text_node([names[v], repr(v.aval)], "input", f"{names[v]}: {v.aval!r}"))
    edges: list[tuple[int, int]] = []
    for eqn in program:
        edges += _edges(eqn.inputs, makers, len(nodes))
        makers.update((v, len(nodes)) for v in eqn.outputs)
        nodes.append(equation_node(eqn, names, depth))
    edges += _edges(program.outputs, makers, len(nodes))
    results = ", ".join([atom_text(a, names) for a in program.outputs])
    nodes.append(_text_node(["return", _shortened(results)], "output", results))
    layout = lay_out([node.size for node in nodes], list(dict.fromkeys(edges)))
    return Drawing(program.name, tuple(nodes), layout)


def _edges(atoms: Sequence[Atom], makers: dict[Var, int], target: int) -> list[tuple[int, int]]:
    return [(makers[a], target) for a in atoms if type(a) is Var]


def equation_node(eqn: Equation, names: dict[Var, str], depth: int) -> DrawnNode:
    """The node of an equation; its programs are inside if `depth` is not 0."""
    literals = [atom_text(a, names) for a in eqn.inputs if type(a) is not Var]
    label = " ".join([eqn.primitive.name, *literals])
    types = ", ".join([repr(v.aval) for v in eqn.outputs]) or "no result"
    note = f"{primitive_text(eqn.primitive)}\n{equation_note(eqn)}"
    programs = list(dict.fromkeys(subprograms(eqn.primitive)))
    if not programs:
        return _text_node([label, types], equation_kind(eqn), note)
    steps = getattr(eqn.primitive, "length", None)
    heading = label if steps is None else f"{label}, {steps} steps"
    if not depth:
        closed = [f"{p.name}: {len(p)} equations" for p in programs]
        return _text_node([heading, *closed, types], "program", note)
    inner = tuple([draw_program(p, depth - 1) for p in programs])
    texts = _text_node([heading, types], "program", note)
    widths = [drawing.layout.size.width + _MARGIN for drawing in inner]
    heights = [drawing.layout.size.height for drawing in inner]
    width = max(sum(widths) + _MARGIN, texts.size.width)
    height = texts.size.height + _ROW + max(heights) + _MARGIN
    return texts._replace(size=NodeSize(width, height), inner=inner)


def equation_kind(eqn: Equation) -> str:
    """The kind of an operation, which decides its color."""
    if contraction_flops(eqn) is not None or isinstance(eqn.primitive, Convolution):
        return "contraction"
    return "elementwise" if isinstance(eqn.primitive, Elementwise) else "other"


def _text_node(texts: Sequence[str], kind: str, note: str) -> DrawnNode:
    shown = tuple(map(_shortened, texts))
    width = max(map(len, shown)) * _CHARACTER + 16
    return DrawnNode(NodeSize(width, len(shown) * _ROW + 8), shown, kind, note)


def _shortened(text: str) -> str:
    return text if len(text) <= 36 else text[:35] + "…"


def render_drawing(drawing: Drawing, left: float, top: float) -> Markup:
    """The edges and nodes of a drawing, whose corner is at (`left`, `top`)."""
    layout = drawing.layout
    edges = [
        element("path", d=curve([(left + x, top + y) for x, y in points]), class_="edge")
        for points in layout.routes
    ]
    nodes = [
        render_node(node, left + x - node.size.width / 2, top + y - node.size.height / 2)
        for node, (x, y) in zip(drawing.nodes, layout.centers, strict=True)
    ]
    return element("g", edges, nodes)


def curve(points: Sequence[tuple[float, float]]) -> str:
    """A smooth path through points, vertical in each of them."""
    parts = [f"M{points[0][0]:.1f} {points[0][1]:.1f}"]
    for (x, y), (nx, ny) in pairwise(points):
        middle = (y + ny) / 2
        if x != nx:
            parts.append(f"C{x:.1f} {middle:.1f} {nx:.1f} {middle:.1f} {nx:.1f} {ny:.1f}")
        elif y != ny:
            parts.append(f"V{ny:.1f}")
    return "".join(parts)


def render_node(node: DrawnNode, left: float, top: float) -> Markup:
    """The box of a node, its texts, and the drawings inside."""
    size = node.size
    frame = {"x": round(left, 1), "y": round(top, 1), "rx": 5, "fill": _COLORS[node.kind]}
    box = element(
        "rect",
        **frame,
        width=round(size.width, 1),
        height=round(size.height, 1),
        fill_opacity=0.1 if node.inner else 0.22,
        stroke=_COLORS[node.kind],
    )
    texts = []
    for i, text in enumerate(node.texts):
        faint = "code faint" if i == len(node.texts) - 1 and i else "code"
        x, y = round(left + 8, 1), round(top + 15 + i * _ROW, 1)
        texts.append(element("text", text, x=x, y=y, class_=faint))
    inner, x = [], left + _MARGIN
    y = top + len(node.texts) * _ROW + 8
    for drawing in node.inner:
        place = {"x": round(x, 1), "y": round(y + 9, 1)}
        inner.append(element("text", drawing.title, **place, class_="code faint"))
        inner.append(render_drawing(drawing, x, y + _ROW))
        x += drawing.layout.size.width + _MARGIN
    return element("g", element("title", node.note), box, texts, inner)
