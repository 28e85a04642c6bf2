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
    return min(by_column, _star_color(pattern, order), key=lambda colors: colors.max())


def _star_color(pattern: SparsityPattern, order: Sequence[int]) -> NumPyArray:
    """The star coloring that takes the vertices in `order`.

    Edges of two colors form stars. `star` is the star of each edge, `hub` its center, -1 for one edge.
    """
    starts, columns = pattern.starts.tolist(), pattern.columns.tolist()
    size = len(starts) - 1
    neighbors = [[w for w in columns[starts[v] : starts[v + 1]] if w != v] for v in range(size)]
    colors = [-1] * size
    star: dict[tuple[int, int], int] = {}
    hub: list[int] = []
    forbidden, treated = [-1] * (size + 1), [-1] * size
    first: list[tuple[int, int]] = [(-1, -1)] * (size + 1)

    def forbid_around(v: int, w: int) -> None:
        for x in neighbors[w]:
            if colors[x] >= 0:
                forbidden[colors[x]] = v
        treated[w] = v

    for v in order:
        colored = [w for w in neighbors[v] if colors[w] >= 0]
        for w in colored:
            color = colors[w]
            forbidden[color] = v
            seen_by, other = first[color]
            if seen_by == v:
                # Two neighbors have one color: v would be the middle of a path with their neighbors.
                if treated[other] != v:
                    forbid_around(v, other)
                forbid_around(v, w)
                continue
            first[color] = (v, w)
            for x in neighbors[w]:
                if x != v and colors[x] >= 0 and x == hub[star[min(w, x), max(w, x)]]:
                    forbidden[colors[x]] = v
        color = 0
        while forbidden[color] == v:
            color += 1
        colors[v] = color
        for w in colored:
            same = next((x for x in neighbors[w] if x != v and colors[x] == color), None)
            seen_by, other = first[colors[w]]
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
    return np.array(colors, np.int32)
