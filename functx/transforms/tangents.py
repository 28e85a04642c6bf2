"""Pytrees of tangents and cotangents, taken apart and put together like those of their values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from functx import ops
from functx.core import tree
from functx.core.errors import WrapperTangentError, type_name
from functx.core.masks import tangent_avals
from functx.core.tracer import as_known_array, current_builder
from functx.core.types import ShapedArray, float0
from functx.core.typing import NumPyArray, PyTree, Tangent, Value
from functx.core.wrapper_axes import leaves_in_wrappers, replace_wrappers, wrapper_spans


def flatten_tangents(expected: tree.TreeDef, given: PyTree, what: str, like: str) -> list[Any]:
    """The tangents at the leaves of `expected`; None for an array made of arrays is None for each.

    Raises TreeError, and WrapperTangentError for a tangent of another class than its value.
    """
    spans = wrapper_spans(expected)
    if not spans:
        return [as_known_array(t) for t in tree.flatten_up_to(expected, given, what, like)]
    one = tree.structure(0)
    outer = replace_wrappers(expected, {span.start: one for span in spans})
    by_start = {span.start: span for span in spans}
    leaves: list[Any] = []
    for part in tree.flatten_up_to(outer, given, what, like):
        span = by_start.get(len(leaves))
        if span is None:
            leaves.append(part)
        elif part is None:
            leaves += [None] * span.node.num_leaves
        elif type(part) is not span.cls:
            raise WrapperTangentError(
                f"{what} must be of the classes of {like}; got {type_name(part)} for {span.name}",
                fix=f"Pass a {span.name}, made of the tangents of its inner arrays, or None for zero.",
            )
        else:
            leaves += tree.flatten_up_to(span.node, part, what, like)
    return leaves


def unflatten_tangents(
    structure: tree.TreeDef,
    avals: Sequence[ShapedArray],
    tangents: Sequence[Tangent | NumPyArray],
) -> PyTree:
    """The pytree of tangents or cotangents of values of types `avals`, with None for integers.

    In pytree classes of users, which may take nothing but arrays, zeros of dtype `float0` replace
    None; in arrays made of arrays, zeros of the dtype of the integers.
    """
    if any([t is None for t in tangents]):
        mask, own = tree.leaves_in_user_nodes(structure), tangent_avals(structure, avals)
        in_wrappers = leaves_in_wrappers(structure)
        tangents = [
            t if t is not None or not on else _zeros(a) if wrapped else np.zeros(a.shape, float0)
            for t, a, on, wrapped in zip(tangents, own, mask, in_wrappers, strict=True)
        ]
    return tree.unflatten(structure, tangents)


def _zeros(aval: ShapedArray) -> Value | NumPyArray:
    """Zeros of type `aval`, which take no memory outside of a trace."""
    if current_builder.get() is None:
        return np.broadcast_to(np.zeros((), aval.dtype), aval.shape)
    return ops.zeros_like(aval)
