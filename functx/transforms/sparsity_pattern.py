"""Patterns of sparse matrices: their places, colorings and pictures."""

from __future__ import annotations

from functools import cached_property
from hashlib import blake2b
from itertools import pairwise

import numpy as np

from functx.core.typing import NumPyArray
from functx.transforms.coloring import color_columns, color_symmetric


class SparsityPattern:
    """The places of a matrix of `shape` that may be nonzero, row by row.

    The columns of row i are `columns[starts[i] : starts[i + 1]]`, in increasing order, as in the index
    arrays of SciPy's `csr_array`. Patterns with the same places are equal. `print` shows the size, the
    number of places and of products, and a picture; `svg()` draws one.
    """

    def __init__(self, shape: tuple[int, int], starts: NumPyArray, columns: NumPyArray):
        self.shape, self.starts, self.columns = shape, starts, columns
        self._blocks: dict[tuple[tuple[int, ...], tuple[int, ...]], list[NumPyArray]] = {}

    @property
    def nnz(self) -> int:
        """The number of places."""
        return len(self.columns)

    @cached_property
    def rows(self) -> NumPyArray:
        """The row of each place."""
        return np.repeat(np.arange(self.shape[0], dtype=np.int32), np.diff(self.starts))

    @cached_property
    def transpose(self) -> SparsityPattern:
        """The pattern of the transpose."""
        order = np.argsort(self.columns, kind="stable")
        starts = np.searchsorted(self.columns[order], np.arange(self.shape[1] + 1))
        return SparsityPattern((self.shape[1], self.shape[0]), starts, self.rows[order])

    @cached_property
    def is_symmetric(self) -> bool:
        """Whether the transpose has the same pattern."""
        return self.shape[0] == self.shape[1] and self == self.transpose

    @cached_property
    def column_colors(self) -> NumPyArray:
        """A color for each column; no row has places in two columns of one color."""
        return color_columns(self)

    @cached_property
    def row_colors(self) -> NumPyArray:
        """A color for each row; no column has places in two rows of one color."""
        return self.transpose.column_colors

    @cached_property
    def symmetric_colors(self) -> NumPyArray:
        """A color for each column, from which a symmetric matrix of a symmetric pattern can be read."""
        return color_symmetric(self)

    @cached_property
    def digest(self) -> bytes:
        """A hash of the places."""
        parts = [np.array(self.shape), self.starts, self.columns]
        return blake2b(b"".join([x.astype(np.int64).tobytes() for x in parts])).digest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SparsityPattern) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def to_dense(self) -> NumPyArray:
        """The pattern as a boolean matrix."""
        dense = np.zeros(self.shape, bool)
        dense[self.rows, self.columns] = True
        return dense

    def blocks(self, rows: tuple[int, ...], columns: tuple[int, ...]) -> list[NumPyArray]:
        """The positions, among all places, of those in each block, along rows of blocks.

        Block row i begins at row `rows[i]` and ends before `rows[i + 1]`; block columns likewise.
        """
        if (rows, columns) not in self._blocks:
            width = len(columns) - 1
            block_rows = np.searchsorted(rows[1:], self.rows, side="right")
            numbers = block_rows * width + np.searchsorted(columns[1:], self.columns, side="right")
            order = np.argsort(numbers, kind="stable")
            limits = np.searchsorted(numbers[order], np.arange((len(rows) - 1) * width + 1))
            self._blocks[rows, columns] = [order[a:b] for a, b in pairwise(limits.tolist())]
        return self._blocks[rows, columns]

    def __repr__(self) -> str:
        return f"SparsityPattern(shape={self.shape}, nnz={self.nnz})"

    def __str__(self) -> str:
        m, n = self.shape
        share = f", {self.nnz / (m * n):.2%} of the elements" if m and n else ""
        colors = [f"{count_colors(self.column_colors)} for columns"]
        colors.append(f"{count_colors(self.row_colors)} for rows")
        if self.is_symmetric:
            colors.append(f"{count_colors(self.symmetric_colors)} for a symmetric matrix")
        head = f"{m} x {n}, {self.nnz} nonzero{share}; products: {', '.join(colors)}"
        return "\n".join([head, *self._picture(24, 48)])

    def _cells(self, height: int, width: int) -> NumPyArray:
        """The share of places in each cell of a grid of at most `height` times `width` cells."""
        m, n = self.shape
        height, width = min(m, height), min(n, width)
        if not (height and width):
            return np.zeros((height, width))
        counts = np.zeros((height, width))
        np.add.at(
            counts, (self.rows.astype(int) * height // m, self.columns.astype(int) * width // n), 1
        )
        sizes = [
            np.bincount(np.arange(k) * cells // k, minlength=cells)
            for k, cells in ((m, height), (n, width))
        ]
        return counts / np.outer(*sizes)

    def _shades(self, height: int, width: int) -> NumPyArray:
        """`_cells` as numbers from 0, for no place, to 4, for a share of at least three quarters."""
        cells = self._cells(height, width)
        return np.where(cells > 0, 1 + np.minimum((cells * 4).astype(int), 3), 0)

    def _picture(self, height: int, width: int) -> list[str]:
        """Lines of characters, darker for cells with a larger share of places."""
        characters = np.array(list(" .:*#"))
        return ["|" + "".join(characters[row]) + "|" for row in self._shades(height, width)]

    def svg(self, size: int = 320) -> str:
        """A picture of the pattern as SVG text, at most `size` pixels wide and high."""
        m, n = self.shape
        shades = self._shades(size // 2, size // 2)
        scale = size / max(*shades.shape, 1)
        height, width = [round(k * scale, 2) for k in shades.shape]
        runs = [
            f'<rect x="{first * scale:.2f}" y="{i * scale:.2f}" width="{(last - first) * scale:.2f}" '
            f'height="{scale:.2f}" fill-opacity="{row[first] / 4}"/>'
            for i, row in enumerate(shades)
            for first, last in _runs(row)
            if row[first]
        ]
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width + 2}" height="{height + 2}" '
            f'viewBox="-1 -1 {width + 2} {height + 2}" fill="#2563eb">'
            f"<title>{m} x {n}, {self.nnz} nonzero</title>"
            f'<rect width="{width}" height="{height}" fill="none" stroke="#888"/>'
            f"{''.join(runs)}</svg>"
        )

    def _repr_html_(self) -> str:
        return self.svg()


def _runs(row: NumPyArray) -> list[tuple[int, int]]:
    """The limits of the runs of equal numbers in a row."""
    limits = [0, *(1 + np.flatnonzero(np.diff(row))).tolist(), len(row)]
    return list(pairwise(limits)) if len(row) else []


def count_colors(colors: NumPyArray) -> int:
    """The number of colors, which count from 0."""
    return int(colors.max(initial=-1)) + 1
