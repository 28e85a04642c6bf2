"""The axes of arrays made of arrays: where an axis that is mapped or stacked lies in inner arrays.

An axis of the whole is that of each inner array, which has the dimensions of the whole, with length 1
where all elements along an axis share a value. An inner array without dimensions is shared by all
elements.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, NoReturn

from jax import tree_util

from functx.core import tree
from functx.core.errors import AxisError, WrapperShapeError
from functx.core.tree import TreeDef
from functx.core.types import Shape, ShapedArray, is_inexact
from functx.core.wrappers import WrapperStructure, wrapper_types


class WrapperSpan(NamedTuple):
    """An array made of arrays in a structure: the positions of its leaves, and its own structure."""

    start: int
    end: int
    node: TreeDef

    @property
    def cls(self) -> type:
        """The class."""
        return self.node.node_data()[0]  # type: ignore[no-any-return]

    @property
    def name(self) -> str:
        """The name of the class."""
        return self.cls.__name__

    def raise_shape_error(
        self, label: str, what: str, i: int, shape: Shape, whole: Shape
    ) -> NoReturn:
        """Raise WrapperShapeError for the leaf `i`, whose shape does not have the axes of the whole."""
        raise WrapperShapeError(
            f"{label}: an inner array must have the dimensions of the whole, each of its length or 1, "
            f"to be {what}; got inner array {i} of shape {shape} in {self.name} of shape {whole}",
            fix="Keep the dimensions that a reduction removes (keepdims=True) in the inner array, or "
            "work on the inner arrays themselves.",
        )


def wrapper_spans(structure: TreeDef) -> tuple[WrapperSpan, ...]:
    """The arrays made of arrays in a structure, without those that others contain."""
    return _wrapper_spans(structure, 0) if wrapper_types else ()


@lru_cache(4096)
def _wrapper_spans(structure: TreeDef, start: int) -> tuple[WrapperSpan, ...]:
    node = structure.node_data()
    if node is None:
        return ()
    if type(node[1]) is WrapperStructure:
        return (WrapperSpan(start, start + structure.num_leaves, structure),)
    spans: list[WrapperSpan] = []
    for child in structure.children():
        spans += _wrapper_spans(child, start)
        start += child.num_leaves
    return tuple(spans)


def whole_shape(node: TreeDef, shapes: Sequence[Shape]) -> Shape:
    """The shape of an array made of arrays, whose leaves have these shapes."""
    data = node.node_data()
    if data is None:
        return shapes[0]
    static = data[1]
    if type(static) is not WrapperStructure or static.like is None:
        assert type(static) is WrapperStructure and static.shapes is not None
        return static.shapes[0]
    children = node.children()
    start = sum([child.num_leaves for child in children[: static.like]])
    child = children[static.like]
    return whole_shape(child, shapes[start : start + child.num_leaves])


def canonical_wrapper_axis(label: str, span: WrapperSpan, axis: int, whole: Shape, new: int) -> int:
    """An axis of the whole counted from 0; with `new` 1, of the result with one axis more."""
    rank = len(whole) + new
    if not -rank <= axis < rank:
        raise AxisError(
            f"{label}: {span.name} of shape {whole} must have an axis in [{-rank}, {rank}); got {axis}"
        )
    return axis % rank


class MappedWrappers(NamedTuple):
    """Arguments of which one element is taken: the structure of an element, and each leaf's axis.

    `squeezed` holds, for the leaves with length 1 along the axis, that axis; all elements share them.
    """

    structure: TreeDef
    axes: list[int | None]
    squeezed: dict[int, int]


def map_wrappers(
    label: str, structure: TreeDef, shapes: Sequence[Shape], axes: Sequence[int | None]
) -> MappedWrappers:
    """The axes of the leaves where arrays made of arrays are mapped along an axis of the whole.

    `axes` has an axis for each leaf. Those of an array made of arrays that differ are axes of the
    leaves. Raises AxisError and WrapperShapeError.
    """
    found, squeezed, elements = [*axes], {}, {}
    for span in wrapper_spans(structure):
        given, own = {*axes[span.start : span.end]}, shapes[span.start : span.end]
        axis = given.pop() if len(given) == 1 else None
        if axis is None:
            continue
        whole = whole_shape(span.node, own)
        axis = canonical_wrapper_axis(label, span, axis, whole, 0)
        for i, shape in enumerate(own):
            at = span.start + i
            if shape == ():
                found[at] = None
            elif len(shape) != len(whole) or shape[axis] not in (1, whole[axis]):
                span.raise_shape_error(label, f"mapped along axis {axis}", i, shape, whole)
            elif shape[axis] == whole[axis]:
                found[at] = axis
            else:
                found[at], squeezed[at] = None, axis
        elements[span.start] = _with_shapes(span.node, _without_axis(axis, len(whole)))
    return MappedWrappers(replace_wrappers(structure, elements), found, squeezed)


def stack_wrappers(
    label: str,
    structure: TreeDef,
    shapes: Sequence[Shape],
    axes: Sequence[int | None],
    size: int,
) -> tuple[TreeDef, list[int | None], dict[int, str]]:
    """The structure of stacked results, and the axis of each leaf, where elements have these shapes.

    The last result gives, for each leaf that all elements must share, the class that it belongs to.
    """
    found, shared, stacked = [*axes], {}, {}
    for span in wrapper_spans(structure):
        given, own = {*axes[span.start : span.end]}, shapes[span.start : span.end]
        axis = given.pop() if len(given) == 1 else None
        if axis is None:
            continue
        whole = whole_shape(span.node, own)
        axis = canonical_wrapper_axis(label, span, axis, whole, 1)
        for i, shape in enumerate(own):
            at = span.start + i
            if shape == () != whole:
                found[at], shared[at] = None, span.name
            elif len(shape) != len(whole):
                span.raise_shape_error(label, f"stacked along axis {axis}", i, shape, whole)
            else:
                found[at] = axis
        stacked[span.start] = _with_shapes(span.node, _with_axis(axis, len(whole), size))
    return replace_wrappers(structure, stacked), found, shared


def check_leading_axes(
    label: str, structure: TreeDef, avals: Sequence[ShapedArray], what: str
) -> None:
    """Raise WrapperShapeError unless a leading axis of all leaves, of types `avals`, is one of the whole."""
    for span in wrapper_spans(structure):
        own = [aval.shape for aval in avals[span.start : span.end]]
        whole = whole_shape(span.node, own)
        for i, shape in enumerate(own):
            if len(shape) != len(whole):
                span.raise_shape_error(label, what, i, shape, whole)


def integers_beside_inexact(
    structure: TreeDef | tree.TreeDefWithStatic, avals: Sequence[ShapedArray]
) -> list[bool]:
    """The mask of the integers in arrays made of arrays that have inexact inner arrays as well.

    `avals` are the types of the leaves that are not static.
    """
    is_static = isinstance(structure, tree.TreeDefWithStatic)
    static = structure.static_leaves if is_static else {}
    whole = structure.structure if is_static else structure
    remaining = iter(avals)
    inexact = [
        i not in static and is_inexact(next(remaining).dtype) for i in range(whole.num_leaves)
    ]
    found = [False] * len(inexact)
    for span in wrapper_spans(whole):
        own = inexact[span.start : span.end]
        found[span.start : span.end] = [any(own) and not on for on in own]
    return [on for i, on in enumerate(found) if i not in static]


def leaves_in_wrappers(structure: TreeDef | tree.TreeDefWithStatic) -> tuple[bool, ...]:
    """For each leaf that is not static, whether it is in an array made of arrays."""
    if isinstance(structure, tree.TreeDefWithStatic):
        return structure.without_static(leaves_in_wrappers(structure.structure))
    inside = [False] * structure.num_leaves
    for span in wrapper_spans(structure):
        inside[span.start : span.end] = [True] * (span.end - span.start)
    return tuple(inside)


def _without_axis(axis: int, ndim: int) -> Callable[[Shape], Shape]:
    return lambda shape: shape[:axis] + shape[axis + 1 :] if len(shape) == ndim else shape


def _with_axis(axis: int, ndim: int, size: int) -> Callable[[Shape], Shape]:
    return lambda shape: (*shape[:axis], size, *shape[axis:]) if len(shape) == ndim else shape


def _with_shapes(node: TreeDef, change: Callable[[Shape], Shape]) -> TreeDef:
    """The structure of an array made of arrays with `change` applied to the shapes that it holds."""
    data = node.node_data()
    if data is None:
        return node
    kind, static = data
    if type(static) is WrapperStructure and static.shapes is not None:
        whole, inner = static.shapes
        static = static._replace(shapes=(change(whole), tuple(map(change, inner))))
    return _node(kind, static, [_with_shapes(child, change) for child in node.children()])


def replace_wrappers(structure: TreeDef, nodes: dict[int, TreeDef], start: int = 0) -> TreeDef:
    """`structure` with other nodes for the arrays made of arrays, by the positions of their first leaf."""
    data = structure.node_data()
    if data is None or not nodes:
        return structure
    kind, static = data
    if type(static) is WrapperStructure:
        return nodes.get(start, structure)
    children = []
    for child in structure.children():
        children.append(replace_wrappers(child, nodes, start))
        start += child.num_leaves
    return _node(kind, static, children)


def _node(kind: type, static: Any, children: Sequence[TreeDef]) -> TreeDef:
    registry = tree_util.default_registry
    return tree_util.PyTreeDef.from_node_data_and_children(registry, (kind, static), children)
