"""Pytrees as vectors, by the name of `jax.flatten_util`."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from functx import ops
from functx.core import tree
from functx.core.argument_errors import explain_errors as _explain_errors
from functx.core.errors import DTypeError, ShapeError
from functx.core.tracer import aval_of
from functx.core.types import DType, is_complex
from functx.core.typing import PyTree, Value
from functx.numpy import ravel, result_type

__all__ = ["ravel_pytree"]


def ravel_pytree(pytree: PyTree) -> tuple[Value, Unravel]:
    """The leaves of a pytree as one vector, and the function from such a vector to the pytree.

    The vector has the dtype that the leaves promote to; without leaves it is empty, of float32.

    >>> import functx
    >>> vector, unravel = functx.flatten_util.ravel_pytree({"w": functx.numpy.ones((2, 2)), "b": 3.0})
    >>> vector.shape, unravel(2 * vector)["b"].item()
    ((5,), 6.0)
    """
    leaves, structure = tree.flatten(pytree)
    avals = [aval_of(x) for x in leaves]
    shapes = tuple([a.shape for a in avals])
    if not leaves:
        return ops.full((0,), 0, np.float32), Unravel(structure, shapes)
    dtype = result_type(*[a.dtype for a in avals])
    vector = ops.concatenate([ravel(ops.convert_element_type(x, dtype)) for x in leaves], 0)
    if all([a.dtype == dtype for a in avals]):
        return vector, Unravel(structure, shapes)
    return vector, Unravel(structure, shapes, tuple([a.dtype for a in avals]), dtype)


@dataclass(frozen=True)
class Unravel:
    """The function from a vector to a pytree, whose leaves have these shapes and lie in it in order.

    Where the leaves have several `dtypes`, it converts them from that of the vector, `dtype`; else they
    keep the dtype of the vector. Functions with equal fields are equal as static arguments.
    """

    structure: tree.TreeDef
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[DType, ...] = ()
    dtype: DType | None = None

    def __call__(self, vector: Value) -> PyTree:
        """The pytree of `vector`; raises ShapeError and DTypeError for one of another length or dtype."""
        sizes, aval = [prod(shape) for shape in self.shapes], aval_of(vector)
        if aval.shape != (sum(sizes),):
            raise ShapeError(
                f"unravel: the vector must have the {sum(sizes)} elements of the pytree; got {aval!r}"
            )
        if self.dtype not in (None, aval.dtype):
            raise DTypeError(
                f"unravel: the vector must have the dtype of the pytree, {self.dtype}; got {aval!r}"
            )
        parts = [
            ops.reshape(part, shape)
            for part, shape in zip(ops.split(vector, sizes), self.shapes, strict=True)
        ]
        if self.dtypes:
            pairs = zip(parts, self.dtypes, strict=True)
            parts = [_convert(part, dtype) for part, dtype in pairs]
        return tree.unflatten(self.structure, parts)


def _convert(x: Value, dtype: DType) -> Value:
    """`x` in `dtype`, without its imaginary part if `dtype` is real."""
    if is_complex(x.dtype) and not is_complex(dtype):
        x = ops.real(x)
    return ops.convert_element_type(x, dtype)


_explain_errors(__name__)
