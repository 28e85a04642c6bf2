"""The graph that a walk goes through, read in the order of the walk, and the key of its structure."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from functx.autograd.compiled.keys import SplitKey, split_key
from functx.autograd.compiled.traced_rules import aval_of_saved, rule_state
from functx.autograd.engine import Walk
from functx.autograd.function_calls import FunctionNode
from functx.autograd.hooks import NodeHooks
from functx.autograd.nodes import (
    AccumulateGrad,
    GradientEdge,
    Node,
    OperationNode,
    SavedValue,
)
from functx.autograd.recorded import Recorded, operand_of
from functx.autograd.recorded_operations import Operation
from functx.autograd.saved import PackedValue
from functx.core.program import Literal

SCALAR, PACKED = -1, -2
"""Entries of `WalkGraph.canonical` for a number, which differs from walk to walk, and a packed value."""


class WalkGraph:
    """The nodes of a walk in order, the values that they saved, and the key of its structure.

    `values` holds the gradients of the roots, then what each node saved, from number `value_offsets[i]` for
    node i; for a leaf, the value of its `.grad`. `canonical` has for each the number of the first value
    that is the same array. The key, whose part for node i begins at `key_offsets[i]`, holds no values
    and no hooks.
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


def read_graph(walk: Walk, roots: Sequence[tuple[GradientEdge, Any]]) -> WalkGraph | None:
    """The graph of a walk; None if it cannot be captured.

    Then a saved value was freed or written to, a pullback does not exist, or a differentiated one has
    captured arrays.
    """
    nodes = walk.order
    graph = WalkGraph(nodes)
    position = {node: i for i, node in enumerate(nodes)}
    structure: list[Hashable] = []
    reader = _Values(graph, walk.plain)
    for edge, value in roots:
        structure += (
            position.get(edge.node, -1),
            edge.output_nr,
            None if value is None else aval_of_saved(value),
        )
        reader.add(value)
    if walk.wanted is not None:
        wanted = [(position.get(e.node, -1), e.output_nr) for e in walk.wanted]
        structure.append((walk.accumulate, *wanted))
    plain, number_of, add = walk.plain, position.get, reader.add
    for node in nodes:
        graph.value_offsets.append(len(graph.values))
        graph.key_offsets.append(len(structure))
        if node.hooks is not None and (hooks := hook_counts(node.hooks)) is not None:
            graph.hooks[len(graph.value_offsets) - 1] = hooks
            structure.append(hooks)
        if type(node) is OperationNode:
            split, saved = node.split, node.saved
            if saved is None or split.pullbacks is None:
                return None
            key = split.memo.get(SplitKey) or split_key(split)
            structure.append(key)
            for e in node.edges:
                if e is None:
                    structure.append(None)
                else:
                    structure.append(number_of(e[0], -1))
                    structure.append(e[1])
            for x in saved:
                if not add(x):
                    return None
            if not plain and not all(map(add, node.operands or ())):
                return None
            if key.has_captures and not reader.add_captured(split.pullbacks):
                return None
        elif type(node) is AccumulateGrad:
            x = node.variable
            before = x._grad
            structure += (AccumulateGrad, x._recorded.aval, before is None)
            if before is not None and plain:
                add(before.read())
        elif type(node) is FunctionNode and plain and (state := rule_state(node)) is not None:
            graph.traced[len(graph.value_offsets) - 1] = len(state.values)
            structure += (FunctionNode, state.key)
            for e in node.edges:
                structure.append(e and (number_of(e.node, -1), e.output_nr))
            if not all(map(add, state.values)):
                return None
        else:
            structure += (type(node), node.structure, tuple(node.out_avals))  # type: ignore[arg-type]
            for e in node.edges:
                structure.append(e and (number_of(e.node, -1), e.output_nr, edge_aval(e)))
    graph.key = tuple(structure), tuple(graph.canonical)
    return graph


def edge_aval(edge: GradientEdge) -> Any:
    """The type of the gradient that an edge takes."""
    return edge.node.out_avals[edge.output_nr]


class _Values:
    """Collects the values of a graph, each array with the number of its first occurrence."""

    def __init__(self, graph: WalkGraph, plain: bool):
        self.values, self.canonical, self.plain = graph.values, graph.canonical, plain
        self.known: dict[Any, int] = {}

    def add(self, x: Any) -> bool:
        """Adds a value; False if it is a saved one that was written to since."""
        kind = type(x)
        same: Any
        if kind is SavedValue:
            if x.storage.version != x.version:
                return False
            if self.plain:
                x = x.recorded
                same = id(x)
            else:
                same = self.with_history(x)
        elif kind is Literal:
            same = None
            self.canonical.append(SCALAR)
        elif kind is PackedValue:
            same = None
            self.canonical.append(PACKED)
        else:
            same = id(x)
        if same is not None:
            self.canonical.append(self.known.setdefault(same, len(self.values)))
        self.values.append(x)
        return True

    def with_history(self, x: SavedValue) -> object:
        """The identity of a saved value with its history."""
        if x.dual is not None or x.output is not None:
            return object()
        edge = x.edge
        return id(x.recorded), edge and (id(edge.node), edge.output_nr)

    def add_captured(self, pullbacks: Sequence[Operation]) -> bool:
        """Adds the arrays that pullbacks have captured; False for ones that are differentiated."""
        if not self.plain:
            return False
        for x in [x for pullback in pullbacks for x in pullback.captured]:
            operand = operand_of(x)
            is_array = type(operand) is Recorded
            number = self.known.setdefault(id(x), len(self.values)) if is_array else SCALAR
            self.canonical.append(number)
            self.values.append(operand)
        return True


def hook_counts(hooks: NodeHooks) -> Hashable:
    """The numbers of hooks of each kind; None if there are none."""
    values = tuple([(i, len(table)) for i, table in sorted(hooks.values.items()) if table])
    retained = tuple(sorted(hooks.retained))
    key = values, retained, len(hooks.pre), len(hooks.post), len(hooks.post_accumulate)
    return key if any(key) else None
