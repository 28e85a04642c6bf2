"""Walks that follow a plan: the calls of a walk that was met before, recorded at once.

A training loop walks through a new graph of the same structure in each step. The plan of a structure
holds what the walk records, so that a walk only compares its graph with that of the plan.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from itertools import count
from operator import itemgetter
from typing import Any, NamedTuple

from functx import ops
from functx.autograd.engine import Gradient, Total, Walk, add_to_grad, visiting_order, walk_compiler
from functx.autograd.nodes import (
    AccumulateGrad,
    GradientEdge,
    Node,
    OperationNode,
    OperationSplit,
    SavedValue,
    free_saved,
)
from functx.autograd.recorded import Operand, Recorded, running_step, step_traces
from functx.autograd.recorded_operations import Operation, operation_of_primitive
from functx.autograd.recording import PlannedCalls, Recording, current_recording
from functx.autograd.variable import make_variable
from functx.core.caches import Cache
from functx.core.primitive import Primitive
from functx.core.program import Literal
from functx.core.types import ShapedArray, is_complex


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
        edges = [
            (i, positions[e.node], e.output_nr) for i, e in enumerate(node.edges) if e is not None
        ]
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

    def follow(self, walk: Walk, root: Node, gradient: Operand) -> bool:
        """Does what `walk` would do; False, with nothing done, if its graph is another one."""
        recording = current_recording()
        operands: list[Any] = [gradient]
        if (
            not recording.has_room(self.calls)
            or (nodes := self.graph.match(root, operands)) is None
            or not self.may_add(nodes, operands)
        ):
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
        set_gradients(leaves, gradients, totals)
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


class PlanningWalk(Walk):
    """A walk that records nothing: its values are PlannedValues, and its calls become those of a plan."""

    def __init__(self, walk: Walk, order: Sequence[Node]):
        super().__init__(create_graph=False, retain_graph=True)
        self.order, self.nodes = [*order], set(order)
        self.positions = {node: i for i, node in enumerate(order)}
        self.operands = 1
        self.entries: list[Operation | Literal | int] = []
        self.operations: list[Operation] = []
        self.new: list[ShapedArray] = []
        self.planned: dict[int, NodeOfPlan] = {}
        self.leaves: list[PlannedLeaf] = []

    def plan(self, edge: GradientEdge, gradient: Operand) -> WalkPlan:
        """The plan of the walk from a root; NotPlannedError if there is none."""
        if any([node.hooks is not None for node in self.order]) or self.order[0] is not edge.node:
            raise NotPlannedError
        self.send(edge, Gradient(PlannedValue(-1, gradient.aval)))
        self.visit_pending()
        if len(self.planned) != len(self.order):
            raise NotPlannedError
        wanted = sorted({n for leaf in self.leaves for n in (leaf.gradient, leaf.total) if n >= 0})
        index = {n: i for i, n in enumerate(wanted)}
        nodes = [self.planned[i] for i in range(len(self.order))]
        return WalkPlan(
            PlannedGraph(nodes, len(self.leaves)),
            self.planned_calls(wanted),
            [
                leaf._replace(
                    gradient=index.get(leaf.gradient, leaf.gradient),
                    total=index.get(leaf.total, -1),
                )
                for leaf in self.leaves
            ],
        )

    def planned_calls(self, wanted: Sequence[int]) -> PlannedCalls:
        """The calls as entries of a table."""
        constants: list[Any] = [x for x in self.entries if type(x) is not int]
        count, numbers, positions = len(self.new), iter(range(len(constants))), []
        for x in self.entries:
            positions.append(x if type(x) is int else count + next(numbers))
        if not positions:
            raise NotPlannedError
        return PlannedCalls(
            itemgetter(*positions),
            count,
            constants,
            [(n, self.new[n]) for n in wanted],
            sum([x.size for x in self.operations]),
            sum([x.bytes for x in self.operations]),
            any([x.wide for x in self.operations]),
        )

    def bind(self, primitive: Primitive, args: Sequence[Any]) -> Any:
        return self.apply(operation_of_primitive(primitive, tuple([x.aval for x in args])), args)[0]

    def apply(self, operation: Operation, args: Sequence[Any]) -> Sequence[Any]:
        if operation.captured or operation.effects:
            raise NotPlannedError
        self.operations.append(operation)
        self.entries.append(operation.structure)
        self.entries += [x if type(x) is Literal else x.number for x in args]
        first = len(self.new)
        self.new += operation.new_avals
        new: list[Any] = [PlannedValue(first + i, a) for i, a in enumerate(operation.new_avals)]
        return new if operation.outputs is None else operation.outputs_of(args, new)

    def pull_back(self, node: Node, gradients: list[Gradient | None]) -> list[Gradient | None]:
        if type(node) is not OperationNode or node.saved is None or node.split.refusal is not None:
            raise NotPlannedError
        before = self.operands
        results = super().pull_back(node, gradients)
        reads = self.operands > before
        self.planned[self.positions[node]] = NodeOfPlan.of(node, self.positions, reads)
        return results

    def pullback_of(
        self, node: OperationNode, saved: Sequence[Any], masked: bool
    ) -> tuple[Operation, Sequence[Any]]:
        if node.split.pullbacks is None:
            raise NotPlannedError
        pullback = node.split.pullbacks[masked]
        first, count = self.operands, len(saved)
        self.operands += count
        avals = pullback.program.in_avals[len(pullback.program.inputs) - count :]
        return pullback, [PlannedValue(-1 - first - i, aval) for i, aval in enumerate(avals)]

    def unpack(self, node: OperationNode, saved: Any) -> Any:
        return saved

    def accumulate_grad(self, node: AccumulateGrad, gradient: Gradient) -> None:
        value = gradient.value
        if type(value) is Literal or is_complex(value.aval.dtype):
            raise NotPlannedError
        position, x = self.positions[node], node.variable
        before, total = None, -1
        if x._grad is not None:
            aval = x._grad.read().aval
            if (aval.shape, aval.dtype) != (value.aval.shape, value.aval.dtype):
                raise NotPlannedError
            before = PlannedValue(-1 - self.operands, aval)
            self.operands += 1
            total = self.bind(_add, (before, value)).number
        self.planned[position] = NodeOfPlan(None, (), before is not None)
        self.leaves.append(PlannedLeaf(position, value.number, before, total))


class KnownWalks:
    """The walks with one key: the structure of the last one, how often in turn it was met, and its plan.

    `misses` counts the walks that did not fit the plan. After a walk that cannot be planned, `count` is
    negative until so many walks have passed.
    """

    def __init__(self) -> None:
        self.plan: Any = None
        self.structure = self.count = self.misses = 0

    @property
    def awaits_plan(self) -> bool:
        """Whether the structure was met twice in turn, and has no plan."""
        return self.plan is None and self.count >= _COUNT_BEFORE_PLAN

    def make_plan(self, order: Sequence[Node], make: Callable[[], object]) -> None:
        """Sets the plan to the result of `make`, which may raise NotPlannedError, if the structure is met again."""
        if structure_of(order) == self.structure:
            try:
                self.plan = make()
            except NotPlannedError:
                self.count = -_MISSES

    def note(self, order: Sequence[Node]) -> None:
        """Notes a walk that had no plan. A plan that does not come back is forgotten."""
        if self.plan is not None:
            self.misses += 1
            if self.misses < _MISSES:
                return
            self.plan, self.misses = None, 0
        if self.count < 0:
            self.count += 1
            return
        structure = structure_of(order)
        self.count = self.count + 1 if structure == self.structure else min(self.count + 1, 1)
        self.structure = structure


_COUNT_BEFORE_PLAN = 2
_MISSES = 16
"""How often a plan may not fit before it is forgotten, and how many walks without a plan are not planned again."""


def structure_of(order: Sequence[Node]) -> int:
    """A hash of the kinds of the nodes of a walk."""
    return hash(tuple([split_number(node) for node in order]))


def split_number(node: Any) -> int:
    """The number of the split of an operation, which no other split gets, unlike its `id`; 0 for other nodes."""
    if type(node) is not OperationNode:
        return 0
    memo = node.split.memo
    number: int | None = memo.get(split_number)
    if number is None:
        number = memo[split_number] = next(_split_numbers)
    return number


def plan_key(walk: Walk, roots: Sequence[tuple[GradientEdge, Any]]) -> Hashable:
    """The key under which a walk finds its plan; None for one that has no plan."""
    edge, gradient = roots[0]
    node, recording = edge.node, current_recording()
    if (
        not walk.has_recorded_values
        or walk.wanted is not None
        or walk.detects_anomalies
        or len(roots) > 1
        or type(node) is not OperationNode
        or (type(gradient) is not Recorded and type(gradient) is not Literal)
        or type(recording) is not Recording
        or step_traces.count
    ):
        return None
    # Walks of one loop begin at the same place of their recordings.
    return node.split.values, edge.output_nr, gradient.aval, len(recording.calls)


def known_walks_of(table: Cache, key: Hashable) -> KnownWalks:
    """The walks with a key, of which there may be none yet."""
    known: KnownWalks | None = table.get(key)
    if known is None:
        table.put(key, known := KnownWalks())
    return known


def run_walk(walk: Walk, roots: Sequence[tuple[GradientEdge, Any]]) -> None:
    """Runs a walk from its roots, by a plan if there is one."""
    if walk_compiler.get() is not None or (key := plan_key(walk, roots)) is None:
        walk.run(roots)
        return
    known, (edge, gradient) = known_walks_of(known_walks, key), roots[0]
    if known.awaits_plan:
        order, _ = visiting_order([edge.node])
        known.make_plan(order, lambda: PlanningWalk(walk, order).plan(edge, gradient))
    if known.plan is None or not known.plan.follow(walk, edge.node, gradient):
        walk.run(roots)
        known.note(walk.order)


_add = ops.Add()
_split_numbers = count(1)
known_walks: Cache = Cache("plans of walks", 256)
