"""Interpolation on grids, with the names and signatures of `jax.scipy.interpolate`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import Any, Self

import jax

import functx.numpy as np
from functx.core.argument_errors import explain_errors as _explain_errors
from functx.core.errors import ArgumentError, DTypeError, ShapeError, ValueRangeError
from functx.core.missing_names import suggest_alternatives as _suggest_alternatives
from functx.core.types import is_complex
from functx.core.typing import ArrayLike, ArrayOrList, Value
from functx.numpy.promotion import promote_inexact

__all__ = ["RegularGridInterpolator"]


@jax.tree_util.register_pytree_node_class
class RegularGridInterpolator:
    """The function on a grid of points with given values: between points linear, or that of the nearest.

    `points` holds the ascending coordinates along each dimension, and `values` (m1, ..., mn, ...) the
    values at all their combinations; further dimensions are those of the values. Outside of the grid
    the function is `fill_value`, or extrapolates for None. `bounds_error` must be False. An
    interpolator is a pytree of its arrays.

    >>> import numpy
    >>> from functx.scipy.interpolate import RegularGridInterpolator
    >>> x = numpy.array([0.0, 1.0, 3.0])
    >>> RegularGridInterpolator((x,), x**2)(numpy.array([0.5, 2.0])).tolist()
    [0.5, 5.0]
    """

    def __init__(
        self,
        points: Sequence[ArrayLike],
        values: ArrayLike,
        method: str = "linear",
        bounds_error: bool = False,
        fill_value: ArrayLike | None = math.nan,
    ):
        if bounds_error:
            raise ArgumentError(
                "RegularGridInterpolator: bounds_error must be False, since values of traced arrays are "
                "not known; got True"
            )
        self.method, self.bounds_error = _check_method(method), bounds_error
        (self.values,) = map(np.asarray, promote_inexact(values))
        self.grid = tuple([np.asarray(p) for p in points])
        shape, lengths = self.values.shape, tuple([p.size for p in self.grid])
        if shape[: len(lengths)] != lengths or any(p.ndim != 1 for p in self.grid):
            raise ShapeError(
                "RegularGridInterpolator: points must be vectors as long as the first dimensions of values; "
                f"got the shapes {[p.shape for p in self.grid]} and {shape}"
            )
        self.fill_value = None
        if fill_value is not None:
            if is_complex(np.result_type(fill_value)) and not is_complex(self.values.dtype):
                raise DTypeError(
                    f"RegularGridInterpolator: fill_value must be real for real values; got {fill_value}"
                )
            self.fill_value = np.asarray(fill_value, self.values.dtype)

    def tree_flatten(self) -> tuple[Any, Any]:
        """The arrays of the interpolator, and its other arguments."""
        return (self.grid, self.values, self.fill_value), (self.method, self.bounds_error)

    @classmethod
    def tree_unflatten(cls, options: tuple[Any, ...], children: Sequence[Any]) -> Self:
        """The interpolator of the arrays and other arguments."""
        self = object.__new__(cls)
        self.grid, self.values, self.fill_value = children
        self.method, self.bounds_error = options
        return self

    def __call__(self, xi: ArrayOrList, method: str | None = None) -> Value:
        """The values at the points `xi` (..., n), or at those of a tuple of n arrays of coordinates."""
        method = self.method if method is None else _check_method(method)
        n = len(self.grid)
        coordinates = self._coordinates(xi)
        shape = coordinates[0].shape
        cells = [
            self._cell(p.ravel(), grid) for p, grid in zip(coordinates, self.grid, strict=True)
        ]
        if method == "nearest":
            out = self.values[tuple([np.where(t <= 0.5, i, i + 1) for i, t, _ in cells])]
        else:
            corners = product(*[[(i, 1 - t), (i + 1, t)] for i, t, _ in cells])
            terms = [self._weighted_value(corner) for corner in corners]
            out = sum(terms[1:], terms[0])
        if self.fill_value is not None:
            outside = sum([is_outside for *_, is_outside in cells[1:]], cells[0][2])
            outside = outside.reshape(outside.shape + (1,) * (out.ndim - 1))
            out = np.where(outside, self.fill_value, out)
        return out.reshape(shape + self.values.shape[n:])

    def _coordinates(self, xi: ArrayOrList) -> list[Value]:
        """The coordinates of points along each dimension, in one shape."""
        n = len(self.grid)
        if isinstance(xi, tuple):
            xi = xi if len(xi) > 1 or n == 1 else xi[0]
        if isinstance(xi, tuple):
            coordinates = list(np.broadcast_arrays(*xi))
        else:
            xi = np.asarray(xi)
            xi = xi.reshape((-1, n)) if xi.ndim < 2 else xi
            coordinates = [xi[..., i] for i in range(xi.shape[-1])]
        if len(coordinates) != n:
            raise ShapeError(
                f"RegularGridInterpolator: xi must have {n} coordinates; got {len(coordinates)}"
            )
        return coordinates

    def _cell(self, x: Value, grid: Value) -> tuple[Value, Value, Value]:
        """The index of the cell with each coordinate, the place in it from 0 to 1, and whether it is outside."""
        i = np.clip(np.searchsorted(grid, x) - 1, 0, grid.size - 2)
        return i, (x - grid[i]) / (grid[i + 1] - grid[i]), (x < grid[0]) | (x > grid[-1])

    def _weighted_value(self, corner: Sequence[tuple[Value, Value]]) -> Value:
        """The values at corners of cells, times their weights."""
        indices, weights = zip(*corner, strict=True)
        value, weight = self.values[tuple(indices)], math.prod(weights)
        return value * weight.reshape(weight.shape + (1,) * (value.ndim - 1))


def _check_method(method: str) -> str:
    if method not in ("linear", "nearest"):
        raise ValueRangeError(
            f"RegularGridInterpolator: method must be 'linear' or 'nearest'; got {method!r}"
        )
    return method


_suggest_alternatives("jax.scipy.interpolate", __name__)
_explain_errors(__name__)
