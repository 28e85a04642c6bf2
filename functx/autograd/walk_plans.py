"""Walks that follow a plan: the calls of a walk that was met before, recorded at once.

A training loop walks through a new graph of the same structure in each step. The plan of a structure
holds what the walk records, so that a walk only compares its graph with that of the plan.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from functx.autograd.engine import Walk
from functx.autograd.gradients import Gradient, Total, add_to_grad
from functx.autograd.modes import set_modes
from functx.autograd.nodes import (
    AccumulateGrad,
    Node,
    OperationNode,
    OperationSplit,
    SavedValue,
    free_saved,
)
from functx.autograd.recorded import Operand, Recorded, running_step
from functx.autograd.recorded_operations import Operation
from functx.autograd.recording import PlannedCalls, current_recording
from functx.autograd.variable import make_variable
from functx.core.program import Literal
from functx.core.types import ShapedArray


class NotPlannedError(Exception):
    """A walk does more than to record calls and to set `.grad`."""


class PlannedValue(NamedTuple):
    """A value of a planned walk: a new value of the calls with this number, or operand `-1 - number` of them."""

    number: int
    aval: ShapedArray


class NodeOfPlan(NamedTuple):
    """A node that a walk visits: an operation with this split, or a leaf.

    `edges` has for each active operand its position, the position of its node in the order of the visits, and
    which output of that node it is. `reads` says whether the pullback of an operation reads what the node
    saved, and whether a leaf has a `.grad`, which is added to.
    """

    split: OperationSplit | None
    edges: Sequence[tuple[int, int, int]]
    reads: bool

    @classmethod
    def of(cls, node: OperationNode, positions: Mapping[Node, int], reads: bool) -> NodeOfPlan:
        """An operation, in a walk that visits nodes at `positions`."""
        edges = [(i, positions[e[0]], e[1]) for i, e in enumerate(node.edges) if e is not None]
        return cls(node.split, edges, reads)


class PlannedGraph(NamedTuple):
    """The nodes of a walk from one root, in the order of its visits, and how many of them are leaves."""

    nodes: Sequence[NodeOfPlan]
    leaves: int

    def match(self, root: Node, values: list[Any]) -> list[Any] | None:
        """The nodes of the graph of `root`; None unless it is this one, and all that a walk does is planned.

        Adds the values that the walk reads to `values`. The order of the operations is the same where
        their numbers fall.
        """
        nodes: list[Any] = [None] * len(self.nodes)
        nodes[0] = root
        last = root.number + 1
        leaves = set()
        for node, (split, targets, reads) in zip(nodes, self.nodes, strict=True):
            if node.hooks is not None:
                return None
            if split is None:
                if type(node) is not AccumulateGrad:
                    return None
                before: Any = node.variable._grad
                if node.variable._leaf is None or (before is None) is reads:
                    return None
                if reads:
                    values.append(before.read())
                leaves.add(node)
                continue
            if type(node) is not OperationNode or node.split is not split or node.number >= last:
                return None
            last, saved, edges = node.number, node.saved, node.edges
            if saved is None:
                return None
            for i, position, output in targets:
                operand, number = edges[i]  # type: ignore[misc]
                known = nodes[position]
                if known is None:
                    nodes[position] = operand
                elif known is not operand:
                    return None
                if number != output:
                    return None
            if reads:
                for value in saved:
                    kind = type(value)
                    if kind is SavedValue:
                        # Its `storage`, `version` and `recorded` by index, in half the time.
                        if value[2].version != value[3]:
                            return None
                        values.append(value[0])
                    elif kind is Recorded or kind is Literal:
                        values.append(value)
                    else:
                        return None
        # No two leaves of the plan are one leaf here.
        return nodes if len(leaves) == self.leaves else None


class PlannedLeaf(NamedTuple):
    """The leaf at `position` and its gradient; the `.grad` that it has `before`, and the `total` of both.

    `gradient` is the index of a wanted value of the calls, or negative as the number of a PlannedValue.
    `total` is such an index, -1 without a `.grad`.
    """

    position: int
    gradient: int
    before: PlannedValue | None = None
    total: int = -1


class WalkPlan(NamedTuple):
    """The graph of a walk, its calls, and the leaves that get a gradient, in order."""

    graph: PlannedGraph
    calls: PlannedCalls
    leaves: Sequence[PlannedLeaf]

    @classmethod
    def of(
        cls,
        graph: PlannedGraph,
        leaves: Sequence[PlannedLeaf],
        operations: Sequence[Operation],
        entries: Sequence[Any],
        new: Sequence[ShapedArray],
    ) -> WalkPlan:
        """The plan that records `operations`, with `new` values, and then gives `leaves` gradients.

        `entries` are the operations, each with its operands: literals and the numbers of PlannedValues. In
        `leaves` too, values have these numbers.
        """
        constants: list[Any] = [x for x in entries if type(x) is not int]
        numbers, positions = iter(range(len(new), len(new) + len(constants))), []
        for x in entries:
            positions.append(x if type(x) is int else next(numbers))
        if not positions:
            raise NotPlannedError
        wanted = sorted({n for leaf in leaves for n in (leaf.gradient, leaf.total) if n >= 0})
        index = {n: i for i, n in enumerate(wanted)}
        calls = PlannedCalls(
            itemgetter(*positions),
            len(new),
            constants,
            [(n, new[n]) for n in wanted],
            sum([x.size for x in operations]),
            sum([x.bytes for x in operations]),
            any([x.wide for x in operations]),
        )
        found = [
            leaf._replace(
                gradient=index.get(leaf.gradient, leaf.gradient), total=index.get(leaf.total, -1)
            )
            for leaf in leaves
        ]
        return cls(graph, calls, found)

    def follow(self, walk: Walk, root: Node, gradient: Operand) -> bool:
        """Does what `walk` would do; False, with nothing done, if its graph is another one."""
        operands: list[Any] = [gradient]
        nodes = self.graph.match(root, operands)
        return nodes is not None and self.record(walk, nodes, operands)

    def record(self, walk: Walk, nodes: Sequence[Any], operands: Sequence[Any]) -> bool:
        """As `follow`, through the nodes of its graph; False also if it may not be followed now."""
        recording = current_recording()
        if not recording.has_room(self.calls) or not self.may_add(nodes, operands):
            return False
        new = recording.call_all(self.calls, operands)
        leaves, gradients, totals = [], [], []
        for position, number, before, total in self.leaves:
            x = new[number] if number >= 0 else operands[-1 - number]
            leaves.append(nodes[position].variable)
            gradients.append(
                make_variable(x, None) if type(x) is Recorded else walk.variable_of(Gradient(x))
            )
            totals.append(before and Total(operands[-1 - before.number], new[total]))
        # As in a walk, a sum leaves the history of a `.grad` as it is.
        restore_modes = set_modes(False, stops_traced=False)
        try:
            set_gradients(leaves, gradients, totals)
        finally:
            restore_modes()
        if not walk.retain_graph:
            for node in nodes:
                if type(node) is OperationNode:
                    free_saved(node)
        return True

    def may_add(self, nodes: Sequence[Any], operands: Sequence[Operand]) -> bool:
        """Whether `.grad` of leaves may be added to after all calls.

        It may not be a view, that of two leaves, or memory that a node saved, which the walk must find changed.
        """
        adding = [leaf for leaf in self.leaves if leaf.before is not None]
        if not adding:
            return True
        saved = {
            id(x.storage)
            for node in nodes
            if type(node) is OperationNode
            for x in node.saved or ()
            if type(x) is SavedValue
        }
        known: set[int] = set()
        for position, _, before, _ in adding:
            gradient = nodes[position].variable._grad
            if (
                gradient is None
                or gradient._view is not None
                or gradient.is_inference()
                or id(gradient._counter) in saved
                or id(gradient) in known
                or operands[-1 - before.number].aval != before.aval  # type: ignore[union-attr]
            ):
                return False
            known.add(id(gradient))
        return True


def set_gradients(
    leaves: Sequence[Any], gradients: Sequence[Any], totals: Sequence[Total | None]
) -> None:
    """Sets `.grad` of leaves that have none, and adds to those of others.

    `totals` are sums that were recorded, None for none; one is of no use if another thread has added since.
    """
    numbers = [*map(id, leaves)]
    is_outside = running_step.begin_adding(numbers)
    late = []
    try:
        for x, gradient, total in zip(leaves, gradients, totals, strict=True):
            with x._lock or x.lock:
                if x._grad is None:
                    x._grad = gradient
                else:
                    late.append((x, gradient, total))
    finally:
        if is_outside:
            running_step.end_adding(numbers)
    for x, gradient, total in late:
        add_to_grad(x, gradient, create_graph=False, total=total)
