"""`functx.tools.picture` and `save_stablehlo`: graphs of programs, as SVG and for viewers."""

import sys
from xml.dom import minidom

import numpy as onp
import pytest

import functx as fx
import functx.numpy as np
from functx.core.errors import ArgumentError, MissingExtraError
from functx.tools import graph_layout, picture, save_stablehlo
from functx.tools.graph_layout import GAP, NodeSize, lay_out, longest_paths

X = onp.ones((3, 4), "float32")


@pytest.fixture
def rows_by_number(monkeypatch):
    """Layouts without igraph: the nodes of a layer in their order."""

    def ordered(layers, links):
        return [[i for i, k in enumerate(layers) if k == row] for row in range(max(layers) + 1)]

    monkeypatch.setattr(graph_layout, "ordered_layers", ordered)


def steps(x):
    def step(c, row):
        return fx.lax.cond(c[0] > 0, np.sin, lambda v: v * 2.0, c) + row, None

    return fx.lax.scan(step, x[0] * 1.0, x)[0].sum()


def test_nodes_keep_apart_and_edges_lead_down_beside_them(rows_by_number):
    sizes = [
        NodeSize(40, 20),
        NodeSize(90, 20),
        NodeSize(30, 120),
        NodeSize(60, 20),
        NodeSize(50, 20),
    ]
    edges = [(0, 2), (1, 2), (0, 3), (2, 4), (3, 4), (0, 4)]
    assert longest_paths(5, edges) == [0, 0, 1, 1, 2]
    layout = lay_out(sizes, edges)
    boxes = [
        (x - s.width / 2, y - s.height / 2, x + s.width / 2, y + s.height / 2)
        for (x, y), s in zip(layout.centers, sizes, strict=True)
    ]
    for a, b in ((0, 1), (2, 3)):
        assert boxes[a][2] + GAP <= boxes[b][0] + 1e-6
    assert min(b[0] for b in boxes) >= 0 and max(b[2] for b in boxes) <= layout.size.width
    assert max(b[3] for b in boxes) == layout.size.height
    for (source, target), points in zip(edges, layout.routes, strict=True):
        assert points[0][1] == boxes[source][3] and points[-1][1] == boxes[target][1]
        assert [y for _, y in points] == sorted([y for _, y in points])
    x = layout.routes[-1][2][0]
    assert not any(left < x < right for left, _, right, _ in (boxes[2], boxes[3]))
    assert lay_out([], []).size == NodeSize(0, 0)


def test_programs_inside_are_boxes_down_to_a_depth(rows_by_number):
    sizes = []
    for depth in range(3):
        shown = picture(steps, depth=depth)(X)
        document = minidom.parseString(shown.svg())
        sizes.append(len(document.getElementsByTagName("rect")))
        minidom.parseString(shown._repr_html_())
        assert "<title>scan" in shown.svg() and "3 steps" in shown.svg()
    assert sizes[0] < sizes[1] < sizes[2]
    assert "step: " in picture(steps, depth=0)(X).svg()


def test_repeats_are_drawn_once_and_texts_are_escaped(rows_by_number):
    def deep(x):
        for _ in range(60):
            x = np.sin(x) * 0.5 + x / 3.0
        return x

    deep.__name__ = "<deep>"
    shown = picture(deep)(X)
    assert len(shown.drawing.nodes) < 10 and "<deep>" not in shown.svg()
    assert "&lt;" in shown.html()
    assert len(picture(lambda: 1.0)().drawing.nodes) == 1


def test_a_picture_needs_igraph(monkeypatch):
    monkeypatch.setitem(sys.modules, "igraph", None)
    with pytest.raises(MissingExtraError, match="pip install igraph") as caught:
        picture(np.sin)(1.0).svg()
    assert isinstance(caught.value, ImportError)
    for wrong in (-1, "all"):
        with pytest.raises(ArgumentError, match="depth must be"):
            picture(np.sin, depth=wrong)


def test_igraph_orders_the_layers_with_few_crossings():
    pytest.importorskip("igraph")
    rows = graph_layout.ordered_layers([0, 0, 1, 1], [(0, 3), (1, 2)])
    assert [rows[0].index(0), rows[0].index(1)] == [rows[1].index(3), rows[1].index(2)]


def test_stablehlo_files_name_the_lines_of_the_user(tmp_path):
    def half(x):
        with fx.named_scope("head"):
            y = np.sin(x) / 2
        return y.sum()

    save_stablehlo(fx.grad(half))(tmp_path / "a.mlir", X)
    text = (tmp_path / "a.mlir").read_text()
    assert "stablehlo.cosine" in text and "head/backward/" in text
    assert "np.sin(x) \\E2\\88\\95 2/" in text
    save_stablehlo(half)(str(tmp_path / "a.mlirbc"), fx.eval_shape(lambda: np.zeros((3, 4))))
    assert (tmp_path / "a.mlirbc").read_bytes()[:4] == b"ML\xefR"
    with pytest.raises(ArgumentError, match=r"end in \.mlir"):
        save_stablehlo(half)(tmp_path / "a.txt", X)
