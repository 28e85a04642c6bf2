"""Layered drawings of graphs: the layers, the order in each, and coordinates without overlaps."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from itertools import pairwise
from typing import NamedTuple

from functx.core.errors import MissingExtraError

GAP, LAYER_GAP, SWEEPS = 24.0, 34.0, 12
_BEND_WIDTH = 6.0


class NodeSize(NamedTuple):
    """The width and the height of a node."""

    width: float
    height: float


class GraphLayout(NamedTuple):
    """The centers of the nodes, the points of each edge from its source to its target, and the size."""

    centers: list[tuple[float, float]]
    routes: list[list[tuple[float, float]]]
    size: NodeSize


def lay_out(sizes: Sequence[NodeSize], edges: Sequence[tuple[int, int]]) -> GraphLayout:
    """The layout of an acyclic graph, whose edges lead downward; `edges` are pairs of node numbers.

    An edge across several layers goes through a bend in each. `igraph` finds the order in the layers
    that has few crossings, by the method of Sugiyama, Tagawa and Toda (1981). Raises
    MissingExtraError without igraph.
    """
    layers = longest_paths(len(sizes), edges)
    places, chains = list(sizes), []
    links: list[tuple[int, int]] = []
    for source, target in edges:
        chain = [source]
        for layer in range(layers[source] + 1, layers[target]):
            chain.append(len(places))
            places.append(NodeSize(_BEND_WIDTH, 0))
            layers.append(layer)
        chain.append(target)
        links += pairwise(chain)
        chains.append(chain)
    if not places:
        return GraphLayout([], [], NodeSize(0, 0))
    rows = ordered_layers(layers, links)
    x = horizontal_positions(rows, [s.width for s in places], links)
    bands = vertical_bands(rows, [s.height for s in places])
    width = max([x[i] + s.width / 2 for i, s in enumerate(places)])
    centers = [(x[i], (bands[layer][0] + bands[layer][1]) / 2) for i, layer in enumerate(layers)]
    routes = [route(chain, centers, [bands[layers[i]] for i in chain], places) for chain in chains]
    return GraphLayout(centers[: len(sizes)], routes, NodeSize(width, bands[-1][1]))


def longest_paths(count: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    """The layer of each node, one below the lowest of those that it depends on; sources lie close to their users."""
    layers = [0] * count
    for source, target in sorted(edges, key=lambda edge: edge[1]):
        layers[target] = max(layers[target], layers[source] + 1)
    has_inputs = {target for _, target in edges}
    nearest: dict[int, int] = {}
    for source, target in edges:
        nearest[source] = min(layers[target], nearest.get(source, layers[target]))
    return [
        layer if node in has_inputs else nearest.get(node, layer + 1) - 1
        for node, layer in enumerate(layers)
    ]


def ordered_layers(layers: Sequence[int], links: Sequence[tuple[int, int]]) -> list[list[int]]:
    """The nodes of each layer from left to right."""
    try:
        graph = import_module("igraph").Graph(len(layers), list(links), directed=True)
    except ImportError:
        raise MissingExtraError(
            "picture: the package igraph must be installed, which lays graphs out; got none",
            fix="pip install igraph",
        ) from None
    found = graph.layout_sugiyama(layers=list(layers), hgap=1, vgap=1)
    rows: list[list[int]] = [[] for _ in range(max(layers) + 1)]
    for node, layer in enumerate(layers):
        rows[layer].append(node)
    return [sorted(row, key=lambda node: found[node][0]) for row in rows]


def horizontal_positions(
    rows: Sequence[Sequence[int]], widths: Sequence[float], links: Sequence[tuple[int, int]]
) -> list[float]:
    """The centers of nodes: near the mean of their neighbours, in order, without overlaps."""
    above: list[list[int]] = [[] for _ in widths]
    below: list[list[int]] = [[] for _ in widths]
    for source, target in links:
        below[source].append(target)
        above[target].append(source)
    x = [0.0] * len(widths)
    for row in rows:
        _spread(row, [0.0] * len(row), widths, x)
    for sweep in range(SWEEPS):
        down = sweep % 2 == 0
        for row in rows if down else rows[::-1]:
            wanted = []
            for node in row:
                near = (above if down else below)[node] or (below if down else above)[node]
                wanted.append(sum([x[n] for n in near]) / len(near) if near else x[node])
            _spread(row, wanted, widths, x)
    left = min([x[n] - widths[n] / 2 for n in range(len(widths))])
    return [value - left for value in x]


def _spread(
    row: Sequence[int], wanted: Sequence[float], widths: Sequence[float], x: list[float]
) -> None:
    """Set `x` of the nodes of a row to the values nearest to `wanted` that keep them apart.

    By pooling of adjacent violators, the least squares fit of an increasing sequence.
    """
    offsets, total = [], 0.0
    for i, node in enumerate(row):
        total += (widths[row[i - 1]] + widths[node]) / 2 + GAP if i else 0.0
        offsets.append(total)
    blocks: list[tuple[float, int]] = []
    for want, offset in zip(wanted, offsets, strict=True):
        mean, count = want - offset, 1
        while blocks and blocks[-1][0] > mean:
            other, size = blocks.pop()
            mean, count = (mean * count + other * size) / (count + size), count + size
        blocks.append((mean, count))
    means = [mean for mean, count in blocks for _ in range(count)]
    for node, mean, offset in zip(row, means, offsets, strict=True):
        x[node] = mean + offset


def vertical_bands(
    rows: Sequence[Sequence[int]], heights: Sequence[float]
) -> list[tuple[float, float]]:
    """The top and the bottom of each layer, as high as its tallest node."""
    bands, top = [], 0.0
    for row in rows:
        bottom = top + max([heights[node] for node in row], default=0.0)
        bands.append((top, bottom))
        top = bottom + LAYER_GAP
    return bands


def route(
    chain: Sequence[int],
    centers: Sequence[tuple[float, float]],
    bands: Sequence[tuple[float, float]],
    sizes: Sequence[NodeSize],
) -> list[tuple[float, float]]:
    """The points of an edge, which is vertical beside the nodes of each layer; `bands` are those of `chain`."""
    (first, *bends, last), (start, *middle, end) = chain, bands
    (x, y), (last_x, last_y) = centers[first], centers[last]
    points = [(x, y + sizes[first].height / 2), (x, start[1])]
    for node, band in zip(bends, middle, strict=True):
        points += [(centers[node][0], edge) for edge in band]
    return [*points, (last_x, end[0]), (last_x, last_y - sizes[last].height / 2)]
