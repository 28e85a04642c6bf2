"""Plans of captured walks, by which a walk that comes back finds its program without reading its key."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from functx.autograd.compiled.calls import AccumulationCall, CallbacksCall
from functx.autograd.compiled.graphs import SCALAR, WalkGraph
from functx.autograd.compiled.keys import split_key
from functx.autograd.compiled.stages import CallStep, StageStep
from functx.autograd.nodes import AccumulateGrad, Node, OperationNode
from functx.autograd.recorded import Operand
from functx.autograd.walk_plans import (
    NodeOfPlan,
    NotPlannedError,
    PlannedGraph,
    PlannedLeaf,
    PlannedValue,
    WalkPlan,
)
from functx.core.program import Literal
from functx.core.types import ShapedArray

if TYPE_CHECKING:
    from functx.autograd.compiled.compilers import CompiledWalk


class CapturePlan(NamedTuple):
    """The graph of a captured walk, and what else is in its key: `compiled` is found by both.

    `kinds` are the classes of the values of the graph, Recorded or Literal. Of the arrays among them, which
    `arrays` picks from a list, so many are `distinct`; `same` has the pairs of positions of one array.
    `one_stage` records the program where it is one stage.
    """

    graph: PlannedGraph
    compiled: Any
    kinds: Sequence[type]
    arrays: Callable[[list[int]], Sequence[int]]
    distinct: int
    same: Sequence[tuple[int, int]]
    leaves: Sequence[tuple[int, ShapedArray]]
    one_stage: WalkPlan | None

    @classmethod
    def of(cls, compiled: CompiledWalk, graph: WalkGraph) -> CapturePlan:
        """The plan of a walk that was captured; NotPlannedError if there is none."""
        positions = {node: i for i, node in enumerate(graph.nodes)}
        nodes, leaves = [], []
        for i, node in enumerate(graph.nodes):
            if type(node) is OperationNode and not split_key(node.split).has_captures:
                nodes.append(NodeOfPlan.of(node, positions, reads=True))
            elif type(node) is AccumulateGrad:
                nodes.append(NodeOfPlan(None, (), node.variable._grad is not None))
                leaves.append((i, node.variable._recorded.aval))
            else:
                raise NotPlannedError
        arrays = [i for i, first in enumerate(graph.canonical) if first != SCALAR]
        if graph.hooks or not arrays:
            raise NotPlannedError
        firsts = [graph.canonical[i] for i in arrays]
        planned = PlannedGraph(nodes, len(leaves))
        return cls(
            planned,
            compiled,
            [*map(type, graph.values)],
            # At least two, so that they are a tuple.
            itemgetter(arrays[0], *arrays),
            len({*firsts}),
            [(i, first) for i, first in zip(arrays, firsts, strict=True) if i != first],
            leaves,
            plan_of_stage(planned, compiled, graph.values),
        )

    def match(self, root: Node, gradient: Operand) -> WalkGraph | None:
        """The graph of a walk from `root`; None unless its key is that of the plan."""
        values: list[Any] = [gradient]
        nodes = self.graph.match(root, values)
        if nodes is None or [*map(type, values)] != self.kinds:
            return None
        for i, aval in self.leaves:
            found = nodes[i].variable._recorded.aval
            if found is not aval and found != aval:
                return None
        for i, first in self.same:
            if values[i] is not values[first]:
                return None
        if len({*self.arrays([*map(id, values)])}) != self.distinct:
            return None
        graph = WalkGraph(nodes)
        graph.values = values
        return graph


def plan_of_stage(
    graph: PlannedGraph, compiled: CompiledWalk, values: Sequence[Any]
) -> WalkPlan | None:
    """The plan that records the only stage of a captured walk; None if the walk does more."""
    capture, stages = compiled.capture, compiled.stages
    if stages is None or stages.outputs or capture.movable or len(stages.steps) < 2:
        return None
    stage, accumulations, *others = stages.steps
    if type(stage) is not StageStep or type(accumulations) is not CallStep:
        return None
    for step in others:
        if type(step) is not CallStep:
            return None
        if any([type(capture.calls[n]) is not CallbacksCall for n, _ in step.calls]):
            return None
    operation = stage.operation
    if operation.captured or operation.effects or operation.select is not None:
        return None
    numbers = [*[-1 - n for n in capture.inputs], *range(len(operation.new_avals))]
    leaves = []
    for number, slots in accumulations.calls:
        call = capture.calls[number]
        if type(call) is not AccumulationCall or Literal in map(type, slots):
            return None
        found = [numbers[n] for n in slots if type(n) is int]
        leaf = PlannedLeaf(call.position, found[0])
        if len(found) > 1:
            before, gradient, total = found
            known = PlannedValue(before, values[-1 - before].aval)
            leaf = PlannedLeaf(call.position, gradient, known, total)
        leaves.append(leaf)
    operands = [numbers[n] if type(n) is int else n for n in stage.operands]
    entries = [operation.structure, *operands]
    return WalkPlan.of(graph, leaves, [operation], entries, operation.new_avals)
