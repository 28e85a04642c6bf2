"""The graph that a walk goes through, read in the order of the walk, and the key of its structure."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from functx.autograd.compiled.keys import SplitKey, split_key
from functx.autograd.compiled.traced_rules import aval_of_saved, rule_state, saved_by_function
from functx.autograd.engine import Walk
from functx.autograd.function_calls import FunctionNode
from functx.autograd.hooks import NodeHooks
from functx.autograd.nodes import (
    AccumulateGrad,
    Edge,
    Node,
    OperationNode,
    SavedValue,
)
from functx.autograd.recorded import operand_of
from functx.autograd.recorded_operations import Operation
from functx.autograd.saved import PackedValue
from functx.core.program import Literal
from functx.core.types import ShapedArray

SCALAR, PACKED = -1, -2
"""Entries of `WalkGraph.canonical` for a number, which differs from walk to walk, and a packed value."""


class WalkGraph:
    """The nodes of a walk in order, the values that they saved, and the key of its structure.

    `values` holds the gradients of the roots, then what each node saved, from number `value_offsets[i]` for
    node i; for a leaf, the value of its `.grad`. `canonical` has for each the number of the first value
    that is the same array. The key, whose part for node i begins at `key_offsets[i]`, holds no values
    and no hooks. `hooks` are the numbers of hooks of nodes that have some, and `traced` the numbers of
    values that the rules of Functions read, for rules that may be traced.
    """

    __slots__ = (
        "canonical",
        "hooks",
        "key",
        "key_offsets",
        "nodes",
        "traced",
        "value_offsets",
        "values",
    )

    def __init__(self, nodes: list[Node]):
        self.nodes = nodes
        self.values: list[Any] = []
        self.canonical: list[int] = []
        self.value_offsets: list[int] = []
        self.key_offsets: list[int] = []
        self.hooks: dict[int, Hashable] = {}
        self.traced: dict[int, int] = {}
        self.key: tuple[tuple[Hashable, ...], tuple[int, ...]] = (), ()


def read_graph(walk: Walk, roots: Sequence[tuple[Edge, Any]]) -> WalkGraph | None:
    """The graph of a walk; None if it cannot be captured.

    Then a saved value was freed or written to, a pullback does not exist, or a differentiated one has
    captured arrays.
    """
    return GraphReader(walk).read(roots)


class GraphReader:
    """Reads the nodes of a walk: `entries` becomes the key, and `values` are those that nodes saved, as they are.

    `captured` holds the identities of arrays that pullbacks have captured, by their numbers among the
    values. The methods for a node return False if the walk cannot be captured.
    """

    __slots__ = (
        "captured",
        "entries",
        "graph",
        "has_recorded_values",
        "number_of",
        "values",
        "walk",
    )

    def __init__(self, walk: Walk):
        self.walk, self.graph = walk, WalkGraph(walk.order)
        self.has_recorded_values = walk.has_recorded_values
        self.number_of = {node: i for i, node in enumerate(walk.order)}.get
        self.entries: list[Hashable] = []
        self.values = self.graph.values
        self.captured: dict[int, int] = {}

    def read(self, roots: Sequence[tuple[Edge, Any]]) -> WalkGraph | None:
        """The graph of the walk from these roots; None if it cannot be captured."""
        graph, entries, values = self.graph, self.entries, self.values
        value_offsets, key_offsets = graph.value_offsets, graph.key_offsets
        self.read_roots(roots)
        for node in graph.nodes:
            value_offsets.append(len(values))
            key_offsets.append(len(entries))
            if node.hooks is not None and (hooks := hook_counts(node.hooks)) is not None:
                graph.hooks[len(value_offsets) - 1] = hooks
                entries.append(hooks)
            if not _READERS.get(type(node), GraphReader.read_other)(self, node):
                return None
        if not self.number_values():
            return None
        graph.key = tuple(entries), tuple(graph.canonical)
        return graph

    def read_roots(self, roots: Sequence[tuple[Edge, Any]]) -> None:
        """Reads where the walk begins, and what is asked for."""
        walk, number_of = self.walk, self.number_of
        for (node, output), value in roots:
            aval = None if value is None else aval_of_saved(value)
            self.entries += (number_of(node, -1), output, aval)
            self.values.append(value)
        if walk.wanted is not None:
            wanted = [(number_of(node, -1), output) for node, output in walk.wanted]
            self.entries.append((walk.accumulate, *wanted))

    def read_operation(self, node: OperationNode) -> bool:
        """Reads an operation: its split, edges and saved values."""
        split, saved, entries, number_of = node.split, node.saved, self.entries, self.number_of
        if saved is None or split.pullbacks is None:
            return False
        key = split.memo.get(SplitKey) or split_key(split)
        entries.append(key)
        for e in node.edges:
            if e is None:
                entries.append(None)
            else:
                entries.append(number_of(e[0], -1))
                entries.append(e[1])
        self.values += saved
        if not self.has_recorded_values:
            self.values += node.operands or ()
        return not key.has_captures or self.add_captured(split.pullbacks)

    def read_leaf(self, node: AccumulateGrad) -> bool:
        """Reads a leaf: its type, and the value of its `.grad`, if any."""
        x = node.variable
        before = x._grad
        self.entries += (AccumulateGrad, x._recorded.aval, before is None)
        if before is not None and self.has_recorded_values:
            self.values.append(before.read())
        return True

    def read_function(self, node: FunctionNode) -> bool:
        """Reads a call of a Function: its rule if that may be traced, and the values that it saved."""
        if not self.has_recorded_values:
            return self.read_other(node)
        state = rule_state(node)
        if state is None:
            self.read_other(node)
            saved = saved_by_function(node)
            self.entries.append(tuple(map(aval_of_saved, saved)))
            self.values += saved
            return True
        graph = self.graph
        graph.traced[len(graph.value_offsets) - 1] = len(state.values)
        self.entries += (FunctionNode, state.key)
        for e in node.edges:
            self.entries.append(e and (self.number_of(e[0], -1), e[1]))
        self.values += state.values
        return True

    def read_other(self, node: Node) -> bool:
        """Reads a node whose rule is called in each walk."""
        self.entries += (type(node), node.structure, tuple(node.out_avals))  # type: ignore[arg-type]
        for e in node.edges:
            self.entries.append(e and (self.number_of(e[0], -1), e[1], edge_aval(e)))
        return True

    def add_captured(self, pullbacks: Sequence[Operation]) -> bool:
        """Adds the arrays that pullbacks have captured; False for ones that are differentiated."""
        if not self.has_recorded_values:
            return False
        for x in [x for pullback in pullbacks for x in pullback.captured]:
            self.captured[len(self.values)] = id(x)
            self.values.append(operand_of(x))
        return True

    def number_values(self) -> bool:
        """Finds the first occurrence of each value; False if a saved one was written to since.

        Puts the array of each saved value in its place, unless the walk is differentiated.
        """
        values, canonical, captured = self.values, self.graph.canonical, self.captured
        recorded = self.has_recorded_values
        first_number: dict[Any, int] = {}
        for number, x in enumerate(values):
            kind = type(x)
            if kind is SavedValue:
                # Its `storage`, `version` and `recorded` by index, in half the time.
                if x[2].version != x[3]:
                    return False
                if recorded:
                    values[number] = x = x[0]
                    same: Any = id(x)
                else:
                    same = identity_with_history(x)
            elif kind is Literal:
                canonical.append(SCALAR)
                continue
            elif kind is PackedValue:
                canonical.append(PACKED)
                continue
            else:
                same = captured.get(number) or id(x)
            canonical.append(first_number.setdefault(same, number))
        return True


_READERS: dict[type[Node], Any] = {
    OperationNode: GraphReader.read_operation,
    AccumulateGrad: GraphReader.read_leaf,
    FunctionNode: GraphReader.read_function,
}
"""The method that reads a kind of node; others are read by `read_other`."""


def edge_aval(edge: Edge) -> ShapedArray:
    """The type of the gradient that an edge takes."""
    node, output = edge
    return node.out_avals[output]


def identity_with_history(x: SavedValue) -> object:
    """The identity of a saved value with its history."""
    if x.dual is not None or x.output is not None:
        return object()
    edge = x.edge
    return id(x.recorded), edge and (id(edge[0]), edge[1])


def hook_counts(hooks: NodeHooks) -> Hashable:
    """The numbers of hooks of each kind; None if there are none."""
    tables = hooks.values.items() if len(hooks.values) < 2 else sorted(hooks.values.items())
    values = tuple([(i, len(table)) for i, table in tables if table])
    retained = tuple(sorted(hooks.retained)) if hooks.retained else ()
    key = values, retained, len(hooks.pre), len(hooks.post), len(hooks.post_accumulate)
    return key if any(key) else None
