"""How walks get plans: which structures come back, and the walk on symbols that makes a plan."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from itertools import count
from typing import Any

from functx import ops
from functx.autograd.engine import Walk, visiting_order, walk_compiler
from functx.autograd.gradients import Gradient
from functx.autograd.nodes import AccumulateGrad, Edge, Node, OperationNode
from functx.autograd.recorded import Operand, Recorded, step_traces
from functx.autograd.recorded_operations import Operation, operation_of_primitive
from functx.autograd.recording import Recording, current_recording
from functx.autograd.walk_plans import (
    NodeOfPlan,
    NotPlannedError,
    PlannedGraph,
    PlannedLeaf,
    PlannedValue,
    WalkPlan,
)
from functx.core.caches import Cache
from functx.core.primitive import Primitive
from functx.core.program import Literal
from functx.core.types import ShapedArray, is_complex


class PlanningWalk(Walk):
    """A walk that records nothing: its values are PlannedValues, and its calls become those of a plan."""

    def __init__(self, order: Sequence[Node]):
        super().__init__(create_graph=False, retain_graph=True)
        self.order, self.nodes = [*order], set(order)
        self.positions = {node: i for i, node in enumerate(order)}
        self.operands = 1
        self.entries: list[Operation | Literal | int] = []
        self.operations: list[Operation] = []
        self.new: list[ShapedArray] = []
        self.planned: dict[int, NodeOfPlan] = {}
        self.leaves: list[PlannedLeaf] = []

    def plan(self, edge: Edge, gradient: Operand) -> WalkPlan:
        """The plan of the walk from a root; NotPlannedError if there is none."""
        if any([node.hooks is not None for node in self.order]) or self.order[0] is not edge[0]:
            raise NotPlannedError
        self.send(edge, Gradient(PlannedValue(-1, gradient.aval)))
        self.visit_pending()
        if len(self.planned) != len(self.order):
            raise NotPlannedError
        nodes = [self.planned[i] for i in range(len(self.order))]
        graph = PlannedGraph(nodes, len(self.leaves))
        return WalkPlan.of(graph, self.leaves, self.operations, self.entries, self.new)

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
        return operation.outputs_of(args, new)

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

    def unpack(self, node: OperationNode, saved: object) -> Any:
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


def split_number(node: object) -> int:
    """The number of the split of an operation, which no other split gets, unlike its `id`; 0 for other nodes."""
    if type(node) is not OperationNode:
        return 0
    memo = node.split.memo
    number: int | None = memo.get(split_number)
    if number is None:
        number = memo[split_number] = next(_split_numbers)
    return number


def plan_key(walk: Walk, roots: Sequence[tuple[Edge, Any]]) -> Hashable:
    """The key under which a walk finds its plan; None for one that has no plan."""
    (node, output), gradient = roots[0]
    recording = current_recording()
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
    return node.split.values, output, gradient.aval, recording.prefix


def known_walks_of(table: Cache, key: Hashable) -> KnownWalks:
    """The walks with a key, of which there may be none yet."""
    known: KnownWalks | None = table.get(key)
    if known is None:
        table.put(key, known := KnownWalks())
    return known


def run_walk(walk: Walk, roots: Sequence[tuple[Edge, Any]]) -> None:
    """Runs a walk from its roots, by a plan if there is one."""
    if walk_compiler.get() is not None or (key := plan_key(walk, roots)) is None:
        walk.run(roots)
        return
    known, (edge, gradient) = known_walks_of(known_walks, key), roots[0]
    if known.awaits_plan:
        order, _ = visiting_order([edge[0]])
        known.make_plan(order, lambda: PlanningWalk(order).plan(edge, gradient))
    if known.plan is None or not known.plan.follow(walk, edge[0], gradient):
        walk.run(roots)
        known.note(walk.order)


_add = ops.Add()
_split_numbers = count(1)
known_walks: Cache = Cache("plans of walks", 256)
