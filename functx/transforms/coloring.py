"""Colorings of sparsity patterns: groups of columns that one product can compute together.

Gebremedhin, Manne and Pothen 2005, "What color is your Jacobian? Graph coloring for computing
derivatives", SIAM Review 47(4), relate products to colorings. Both algorithms here are greedy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from functx.core.typing import NumPyArray

if TYPE_CHECKING:
    from functx.transforms.sparsity_pattern import SparsityPattern


def color_columns(pattern: SparsityPattern) -> NumPyArray:
    """A color for each column, such that no row has two places in columns of one color.

    This is a coloring of columns at distance 2 (section 3 of the article). The better one of
    two orders is taken: as they are, and largest first. A column without places has color 0.
    """
    by_column = pattern.transpose
    lower_bound = int(np.diff(pattern.starts).max(initial=0))
    used = np.diff(by_column.starts) > 0
    if 2 * lower_bound > int(used.sum()):
        # No coloring has half as many colors as this one.
        return np.where(used, np.cumsum(used) - 1, 0)
    natural = _color_in_order(by_column, range(by_column.shape[0]))
    if natural.max(initial=-1) + 1 <= lower_bound:
        return natural
    degrees = np.add.reduceat(
        np.append(np.diff(pattern.starts)[by_column.columns], 0), by_column.starts[:-1]
    )
    order = np.argsort(-np.where(used, degrees, 0), kind="stable").tolist()
    return min(natural, _color_in_order(by_column, order), key=lambda colors: colors.max())


def _color_in_order(by_column: SparsityPattern, order: Sequence[int]) -> NumPyArray:
    """The first possible color of each column in turn; the colors of each row are bits of an int."""
    colors = [0] * by_column.shape[0]
    seen = [0] * by_column.shape[1]
    starts, rows = by_column.starts.tolist(), by_column.columns.tolist()
    for column in order:
        own = rows[starts[column] : starts[column + 1]]
        forbidden = 0
        for row in own:
            forbidden |= seen[row]
        bit = ~forbidden & (forbidden + 1)
        for row in own:
            seen[row] |= bit
        colors[column] = bit.bit_length() - 1
    return np.array(colors, np.int32)


def color_symmetric(pattern: SparsityPattern) -> NumPyArray:
    """A coloring such that, of products with one vector for each color, (i, j) or (j, i) can be read.

    It is a star coloring, where two neighbors differ and each path of four vertices has three
    colors, or that of `color_columns` if this has no more colors. The algorithm is 4.1 of Gebremedhin,
    Tarafdar, Manne and Pothen 2007, "New acyclic and star coloring algorithms with application to
    computing Hessians", SIAM J. Sci. Comput. 29(3). Vertices are taken as they are, or largest first
    if their degrees differ much.
    """
    by_column = color_columns(pattern)
    if by_column.max(initial=-1) < 3:
        return by_column
    degrees = np.diff(pattern.starts)
    order: Sequence[int] = range(len(degrees))
    if degrees.max() > 2 * degrees.mean():
        order = np.argsort(-degrees, kind="stable").tolist()
    return min(by_column, _StarColoring(pattern).color(order), key=lambda colors: colors.max())


class _StarColoring:
    """A star coloring, made vertex by vertex. Edges of two colors form stars.

    `star` is the star of each edge, `hub` its center, -1 for one edge. `first` holds, for each color, the
    last vertex that was colored beside it, and the first neighbor of that color.
    """

    def __init__(self, pattern: SparsityPattern):
        starts, columns = pattern.starts.tolist(), pattern.columns.tolist()
        size = len(starts) - 1
        self.neighbors = [
            [w for w in columns[starts[v] : starts[v + 1]] if w != v] for v in range(size)
        ]
        self.colors = [-1] * size
        self.star: dict[tuple[int, int], int] = {}
        self.hub: list[int] = []
        self.forbidden, self.treated = [-1] * (size + 1), [-1] * size
        self.first: list[tuple[int, int]] = [(-1, -1)] * (size + 1)

    def color(self, order: Sequence[int]) -> NumPyArray:
        """The colors of the vertices, which are taken in `order`."""
        for v in order:
            colored = [w for w in self.neighbors[v] if self.colors[w] >= 0]
            self.forbid(v, colored)
            color = 0
            while self.forbidden[color] == v:
                color += 1
            self.colors[v] = color
            self.join_stars(v, colored)
        return np.array(self.colors, np.int32)

    def forbid(self, v: int, colored: Sequence[int]) -> None:
        """Marks the colors that `v`, with these colored neighbors, must not have."""
        colors, forbidden, star, hub = self.colors, self.forbidden, self.star, self.hub
        for w in colored:
            color = colors[w]
            forbidden[color] = v
            seen_by, other = self.first[color]
            if seen_by == v:
                # Two neighbors have one color: v would be the middle of a path with their neighbors.
                if self.treated[other] != v:
                    self.forbid_around(v, other)
                self.forbid_around(v, w)
                continue
            self.first[color] = (v, w)
            for x in self.neighbors[w]:
                if x != v and colors[x] >= 0 and x == hub[star[min(w, x), max(w, x)]]:
                    forbidden[colors[x]] = v

    def forbid_around(self, v: int, w: int) -> None:
        """Marks the colors of the neighbors of `w`, which `v` must not have."""
        for x in self.neighbors[w]:
            if self.colors[x] >= 0:
                self.forbidden[self.colors[x]] = v
        self.treated[w] = v

    def join_stars(self, v: int, colored: Sequence[int]) -> None:
        """Puts each edge between `v`, which has a color now, and its colored neighbors in a star."""
        colors, star, hub = self.colors, self.star, self.hub
        color = colors[v]
        for w in colored:
            same = next((x for x in self.neighbors[w] if x != v and colors[x] == color), None)
            seen_by, other = self.first[colors[w]]
            if same is not None:
                number = star[min(w, same), max(w, same)]
                hub[number] = w
            elif seen_by == v and other != w:
                number = star[min(v, other), max(v, other)]
                hub[number] = v
            else:
                number = len(hub)
                hub.append(-1)
            star[min(v, w), max(v, w)] = number
