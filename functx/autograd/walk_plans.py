"""Walks that follow a plan: the calls of a walk that was met before, recorded at once.

A training loop walks through a new graph of the same structure in each step. The plan of a structure
holds what the walk records, so that a walk only compares its graph with that of the plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from functx.autograd.engine import Gradient, Walk, add_to_grad, visiting_order, walk_compiler
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
    """A value of a walk that is planned: operand `-1 - number` of the calls if that is negative, else a new one."""

    number: int
    aval: ShapedArray


class NodeOfPlan(NamedTuple):
    """A node that a walk visits: an operation with this split, or a leaf.

    `edges` has the position of each active operand, then that of its node in the order of the visits and the
    number of the output. `reads` says whether the pullback reads what the node saved.
    """

    split: OperationSplit | None
    edges: Sequence[tuple[int, int, int]]
    reads: bool


class WalkPlan(NamedTuple):
    """The nodes of a walk in the order of its visits, their calls, and the gradients of the leaves.

    `leaves` has the position of each leaf that gets a gradient, in order, and the number of that: of a
    wanted value of the calls, or negative as that of a PlannedValue.
    """

    nodes: Sequence[NodeOfPlan]
    calls: PlannedCalls
    leaves: Sequence[tuple[int, int]]

    def follow(self, walk: Walk, root: Node, gradient: Operand) -> bool:
        """Does what `walk` would do; False, with nothing done, if its graph is another one."""
        recording = current_recording()
        nodes: list[Any] = [None] * len(self.nodes)
        nodes[0] = root
        operands = [gradient]
        if not recording.has_room(self.calls) or not self.match(nodes, operands):
            return False
        new = recording.call_all(self.calls, operands)
        values = [new[n] if n >= 0 else operands[-1 - n] for _, n in self.leaves]
        set_gradients(
            [nodes[i].variable for i, _ in self.leaves],
            [
                make_variable(x, None) if type(x) is Recorded else walk.variable_of(Gradient(x))
                for x in values
            ],
        )
        if not walk.retain_graph:
            for node in nodes:
                if type(node) is OperationNode:
                    free_saved(node)
        return True

    def match(self, nodes: list[Any], operands: list[Any]) -> bool:
        """Whether the graph of the root `nodes[0]` is the one of the plan, and nothing keeps it from its plan.

        Fills in the other nodes, and adds the values that pullbacks read to `operands`. The order of the
        operations is the same where their numbers fall.
        """
        last = nodes[0].number + 1
        leaves = set()
        for node, (split, targets, reads) in zip(nodes, self.nodes, strict=True):
            if node.hooks is not None:
                return False
            if split is None:
                if type(node) is not AccumulateGrad:
                    return False
                x = node.variable
                if x._leaf is None or x._grad is not None:
                    return False
                leaves.add(node)
                continue
            if type(node) is not OperationNode or node.split is not split or node.number >= last:
                return False
            last, saved, edges = node.number, node.saved, node.edges
            if saved is None:
                return False
            for i, position, output in targets:
                operand, number = edges[i]  # type: ignore[misc]
                known = nodes[position]
                if known is None:
                    nodes[position] = operand
                elif known is not operand:
                    return False
                if number != output:
                    return False
            if reads:
                for value in saved:
                    kind = type(value)
                    if kind is SavedValue:
                        # Its `storage`, `version` and `recorded` by index, in half the time.
                        if value[2].version != value[3]:
                            return False
                        operands.append(value[0])
                    elif kind is Recorded or kind is Literal:
                        operands.append(value)
                    else:
                        return False
        # No two leaves of the plan are one leaf here.
        return len(leaves) == len(self.leaves)


def set_gradients(leaves: Sequence[Any], gradients: Sequence[Any]) -> None:
    """Sets `.grad` of leaves that had none; adds to one that another thread has set meanwhile."""
    numbers = [*map(id, leaves)]
    is_outside = running_step.begin_adding(numbers)
    late = []
    try:
        for x, gradient in zip(leaves, gradients, strict=True):
            with x._lock or x.lock:
                if x._grad is None:
                    x._grad = gradient
                else:
                    late.append((x, gradient))
    finally:
        if is_outside:
            running_step.end_adding(numbers)
    for x, gradient in late:
        add_to_grad(x, gradient, create_graph=False)


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
        self.leaves: list[tuple[int, Any]] = []

    def plan(self, edge: GradientEdge, gradient: Operand) -> WalkPlan:
        """The plan of the walk from a root; NotPlannedError if there is none."""
        if any([node.hooks is not None for node in self.order]) or self.order[0] is not edge.node:
            raise NotPlannedError
        self.send(edge, Gradient(PlannedValue(-1, gradient.aval)))
        self.visit_pending()
        if len(self.planned) != len(self.order):
            raise NotPlannedError
        wanted = sorted({n for _, n in self.leaves if n >= 0})
        return WalkPlan(
            [self.planned[i] for i in range(len(self.order))],
            self.planned_calls(wanted),
            [(i, wanted.index(n) if n >= 0 else n) for i, n in self.leaves],
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
        edges = [
            (i, self.positions[e.node], e.output_nr)
            for i, e in enumerate(node.edges)
            if e is not None
        ]
        before = self.operands
        results = super().pull_back(node, gradients)
        reads = self.operands > before
        self.planned[self.positions[node]] = NodeOfPlan(node.split, edges, reads)
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
        position = self.positions[node]
        self.planned[position] = NodeOfPlan(None, (), False)
        self.leaves.append((position, value.number))


class KnownWalks:
    """The walks with one key: the structure of the last one, how often in turn it was met, and its plan."""

    def __init__(self) -> None:
        self.plan: WalkPlan | None = None
        self.structure = self.count = self.misses = 0

    def find_plan(self, walk: Walk, edge: GradientEdge, gradient: Operand) -> WalkPlan | None:
        """The plan, which is made when the structure was met twice in turn and comes again."""
        if self.plan is None and self.count >= _COUNT_BEFORE_PLAN:
            order, _ = visiting_order([edge.node])
            if structure_of(order) == self.structure:
                try:
                    self.plan = PlanningWalk(walk, order).plan(edge, gradient)
                except NotPlannedError:
                    self.count = -_MISSES
        return self.plan

    def note(self, order: Sequence[Node]) -> None:
        """Notes a walk that had no plan. A plan that does not come back is forgotten."""
        if self.plan is not None:
            self.misses += 1
            if self.misses < _MISSES:
                return
            self.plan, self.misses = None, 0
        structure = structure_of(order)
        self.count = self.count + 1 if structure == self.structure else min(self.count + 1, 1)
        self.structure = structure


_COUNT_BEFORE_PLAN = 2
_MISSES = 16
"""How often a plan may not fit before it is forgotten, and how many walks without a plan are not planned again."""


def structure_of(order: Sequence[Node]) -> int:
    """A hash of the kinds of the nodes of a walk."""
    return hash(tuple([id(getattr(node, "split", None)) for node in order]))


def run_walk(walk: Walk, roots: Sequence[tuple[GradientEdge, Any]]) -> None:
    """Runs a walk from its roots, by a plan if there is one."""
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
        or walk_compiler.get() is not None
    ):
        walk.run(roots)
        return
    # Walks of one loop begin at the same place of their recordings.
    key = node.split.values, edge.output_nr, gradient.aval, len(recording.calls)
    known: KnownWalks | None = known_walks.get(key)
    if known is None:
        known_walks.put(key, known := KnownWalks())
    plan = known.find_plan(walk, edge, gradient)
    if plan is None or not plan.follow(walk, node, gradient):
        walk.run(roots)
        known.note(walk.order)


known_walks: Cache = Cache("plans of walks", 256)
