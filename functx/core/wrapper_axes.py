"""The axes of arrays made of arrays: where an axis that is mapped or stacked lies in inner arrays.

An axis of the whole is that of each inner array, which has the dimensions of the whole, with length 1
where all elements along an axis share a value. An inner array without dimensions is shared by all
elements. A class with another layout says where its axes lie.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple, NoReturn

from jax import tree_util

from functx.core import tree
from functx.core.errors import AxisError, WrapperProtocolError, WrapperShapeError
from functx.core.tree import TreeDef
from functx.core.types import Shape, ShapedArray, is_inexact
from functx.core.wrappers import WrapperStructure, static_value, wrapper_types


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


def whole_shape(node: TreeDef, shapes: Sequence[Shape]) -> Shape | None:
    """The shape of an array, or of one made of arrays, whose leaves have these shapes.

    None for a node of another kind.
    """
    data = node.node_data()
    if data is None:
        return shapes[0]
    static = data[1]
    if type(static) is not WrapperStructure:
        return None
    if static.shapes is not None:
        return static.shapes[0]
    children = node.children()
    start = sum([child.num_leaves for child in children[: static.like]])
    child = children[static.like]
    return whole_shape(child, shapes[start : start + child.num_leaves])


class LeafAxis(NamedTuple):
    """The axis of a leaf that is an axis of the whole; None if all elements share the leaf.

    A squeezed leaf has length 1 along the axis, and is shared as well. `owner` is the name of the class
    that says that a leaf is shared.
    """

    axis: int | None
    is_squeezed: bool = False
    owner: str = ""


class AxisChange:
    """An axis of arrays made of arrays that is mapped, or with a `size` one that is stacked.

    `label` and `what`, such as "mapped", are for messages.
    """

    def __init__(self, label: str, what: str, size: int | None = None):
        self.label, self.what, self.size = label, what, size
        self.is_new = size is not None

    def canonical(self, span: WrapperSpan, axis: int, whole: Shape) -> int:
        """An axis of the whole counted from 0; AxisError if it has no such axis."""
        rank = len(whole) + self.is_new
        if not -rank <= axis < rank:
            raise AxisError(
                f"{self.label}: {span.name} of shape {whole} must have an axis in [{-rank}, {rank}); "
                f"got {axis}"
            )
        return axis % rank

    def shape_after(self, shape: Shape, axis: int) -> Shape:
        """The shape without the mapped axis, or with the stacked one."""
        if self.size is None:
            return shape[:axis] + shape[axis + 1 :]
        return (*shape[:axis], self.size, *shape[axis:])

    def visit(
        self, node: TreeDef, shapes: Sequence[Shape], axis: int
    ) -> tuple[list[LeafAxis], TreeDef]:
        """The axes of the leaves of an array made of arrays, and its structure after the change."""
        data = node.node_data()
        if data is None:
            return [LeafAxis(axis)], node
        kind, static = data
        whole = whole_shape(node, shapes)
        assert whole is not None
        declared = declared_axes(kind, static, axis, len(whole) + self.is_new)
        leaves: list[LeafAxis] = []
        children, inner, start = [], [], 0
        for i, child in enumerate(node.children()):
            own = shapes[start : start + child.num_leaves]
            start += child.num_leaves
            shape = whole_shape(child, own)
            found: list[LeafAxis] = []
            if own:
                try:
                    at = self.axis_of_inner(shape, whole, axis, declared, i)
                except LookupError:
                    self.raise_shape_error(kind, static.names[i], shape, whole, axis)
                found = [LeafAxis(None, owner=kind.__name__)] * len(own)
            if own and at is not None:
                assert shape is not None
                found, child = self.visit(child, own, at)
                if not self.is_new and shape[at] != whole[axis]:
                    found = [leaf._replace(is_squeezed=True) for leaf in found]
                shape = self.shape_after(shape, at)
            leaves += found
            children.append(child)
            inner.append(shape or ())
        if declared is not None or static.like is None:
            after = self.shape_after(whole, axis)
            static = static._replace(like=None, shapes=(after, tuple(inner)))
        return leaves, _node(kind, static, children)

    def axis_of_inner(
        self,
        shape: Shape | None,
        whole: Shape,
        axis: int,
        declared: Sequence[int | None] | None,
        number: int,
    ) -> int | None:
        """The axis of inner array `number` that is `axis` of the whole; None if all elements share it.

        `declared` are the axes of the inner arrays that the class declares, if it does. Raises
        LookupError for an inner array that lacks the axis.
        """
        if shape is None:
            raise LookupError
        if declared is not None:
            at = declared[number]
        elif not shape and whole:
            at = None
        elif is_broadcast_of(shape, whole):
            at = axis
        else:
            raise LookupError
        if at is None:
            return None
        if at >= len(shape) + self.is_new:
            raise LookupError
        if not self.is_new and shape[at] not in (1, whole[axis]):
            raise LookupError
        return at

    def raise_shape_error(
        self, kind: type, name: str, shape: Shape | None, whole: Shape, axis: int
    ) -> NoReturn:
        """Raise WrapperShapeError for the inner array `name`, which lacks an axis of the whole."""
        raise WrapperShapeError(
            f"{self.label}: an inner array must have the dimensions of the whole, each of its length "
            f"or 1, to be {self.what} along axis {axis}; got `{name}` of shape {shape} in "
            f"{kind.__name__} of shape {whole}",
            fix="Keep the dimensions that a reduction removes (keepdims=True) in the inner array, or "
            f"define {kind.__name__}.__functx_axes__ (see functx.ArrayWrapper).",
        ) from None


def is_broadcast_of(shape: Shape, whole: Shape) -> bool:
    """Whether a shape has the dimensions of `whole`, each of the same length or 1."""
    if len(shape) != len(whole):
        return False
    return all([n in (1, m) for n, m in zip(shape, whole, strict=True)])


def declared_axes(
    kind: type, static: WrapperStructure, axis: int, ndim: int
) -> Sequence[int | None] | None:
    """The axes of inner arrays by the class's `__functx_axes__`; None without such a method.

    Raises WrapperProtocolError for a result that is no sequence with an entry for each inner array.
    """
    method = getattr(kind, "__functx_axes__", None)
    if method is None:
        return None
    axes = method(axis, ndim, static_value(static.meta))
    if axes is NotImplemented:
        raise WrapperShapeError(
            f"{kind.__name__}: an axis must lie in the inner arrays to be mapped or stacked; got axis "
            f"{axis} of {ndim} dimensions, for which __functx_axes__ returns NotImplemented"
        )
    if (
        not isinstance(axes, (tuple, list))
        or len(axes) != len(static.names)
        or not all([a is None or (isinstance(a, int) and a >= 0) for a in axes])
    ):
        raise WrapperProtocolError(
            f"{kind.__name__}.__functx_axes__: it must return an axis from 0, or None, for each of "
            f"{', '.join(static.names)}; got {axes!r}"
        )
    return axes


class ChangedAxes(NamedTuple):
    """The structure of arguments or results after an axis is mapped or stacked, and each leaf's axis.

    `squeezed` holds the axis of the leaves with length 1, which all elements share; `shared` the classes
    of the leaves that lack the axis.
    """

    structure: TreeDef
    axes: list[int | None]
    squeezed: dict[int, int]
    shared: dict[int, str]


def change_axes(
    change: AxisChange,
    structure: TreeDef,
    shapes: Sequence[Shape],
    axes: Sequence[int | None],
) -> ChangedAxes:
    """The axes of the leaves of a structure with arrays made of arrays, and the structure afterwards.

    `axes` has an axis for each leaf. Those of an array made of arrays are one axis of the whole if
    they are equal, else axes of the leaves. Raises AxisError and WrapperShapeError.
    """
    found, squeezed, shared, nodes = [*axes], {}, {}, {}
    for span in wrapper_spans(structure):
        given, own = {*axes[span.start : span.end]}, shapes[span.start : span.end]
        axis = given.pop() if len(given) == 1 else None
        whole = whole_shape(span.node, own)
        if axis is None or whole is None:
            continue
        leaves, nodes[span.start] = change.visit(
            span.node, own, change.canonical(span, axis, whole)
        )
        for i, leaf in enumerate(leaves, span.start):
            found[i] = None if leaf.is_squeezed else leaf.axis
            if leaf.axis is None:
                shared[i] = leaf.owner
            elif leaf.is_squeezed:
                squeezed[i] = leaf.axis
    return ChangedAxes(replace_wrappers(structure, nodes), found, squeezed, shared)


def check_sliced_axis(
    label: str, what: str, structure: TreeDef, avals: Sequence[ShapedArray], axis: int = 0
) -> None:
    """Raise WrapperShapeError unless `axis` of all leaves, of types `avals`, is that of the whole."""
    _check_shared_axis(AxisChange(label, what), structure, avals, axis)


def check_stacked_axis(label: str, structure: TreeDef, avals: Sequence[ShapedArray]) -> None:
    """Raise WrapperShapeError unless results of types `avals` can be stacked along all first axes."""
    _check_shared_axis(AxisChange(label, "stacked", 0), structure, avals, 0)


def _check_shared_axis(
    change: AxisChange, structure: TreeDef, avals: Sequence[ShapedArray], axis: int
) -> None:
    """Raise WrapperShapeError for a leaf in which an axis of the whole is not the same axis of the leaf."""
    spans = wrapper_spans(structure)
    if not spans:
        return
    shapes = [aval.shape for aval in avals]
    changed = change_axes(change, structure, shapes, [axis] * len(shapes))
    for i, found in enumerate(changed.axes):
        if found != axis:
            name = changed.shared.get(i) or next(
                span.name for span in spans if span.start <= i < span.end
            )
            raise WrapperShapeError(
                f"{change.label}: axis {axis} must be that of all inner arrays, to be {change.what}; "
                f"got inner array {i} of shape {shapes[i]} in {name}",
                fix="Give each element its part of it, or use functx.vmap.",
            )


def integers_beside_inexact(
    structure: TreeDef | tree.TreeDefWithStatic, avals: Sequence[ShapedArray]
) -> list[bool]:
    """The mask of the integers in arrays made of arrays that have inexact inner arrays as well.

    `avals` are the types of the leaves that are not static.
    """
    has_static = isinstance(structure, tree.TreeDefWithStatic)
    static = structure.static_leaves if has_static else {}
    whole = structure.structure if has_static else structure
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


def change_sparse_shapes(
    structure: TreeDef, axes: Sequence[int | None], size: int | None = None
) -> TreeDef:
    """`structure` with the shapes of JAX's BCOO arrays without their mapped axes, which are leading ones.

    `axes` has an entry for each leaf. With `size`, an axis of this length is stacked instead.
    """
    sparse = sys.modules.get("jax.experimental.sparse")
    return (
        structure if sparse is None else _change_sparse_shapes(sparse.BCOO, structure, axes, size)
    )


def _change_sparse_shapes(
    cls: type, structure: TreeDef, axes: Sequence[int | None], size: int | None, start: int = 0
) -> TreeDef:
    data = structure.node_data()
    if data is None:
        return structure
    kind, static = data
    children = structure.children()
    if kind is cls:
        axis, shape = axes[start], static["shape"]
        if axis is None:
            return structure
        stacked = () if size is None else (size,)
        shape = shape[:axis] + stacked + shape[axis + (size is None) :]
        return _node(kind, {**static, "shape": shape}, children)
    changed = []
    for child in children:
        changed.append(_change_sparse_shapes(cls, child, axes, size, start))
        start += child.num_leaves
    return structure if changed == children else _node(kind, static, changed)


def _node(kind: type, static: object, children: Sequence[TreeDef]) -> TreeDef:
    registry = tree_util.default_registry
    return tree_util.PyTreeDef.from_node_data_and_children(registry, (kind, static), children)
