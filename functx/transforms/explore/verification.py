"""Runs that go on where paths merge, and compare what the function does with the rest of the graph.

The state of Python code has parts that no local variable shows: values of an expression that is being
computed, attributes of global objects. Two paths whose states differ there must not merge.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from typing import Any

from functx.core.errors import IterationLimitError
from functx.core.program import Atom, Equation, Literal, Var
from functx.core.source_info import Source
from functx.core.tracer import Tracer
from functx.core.tree import TreeDef
from functx.transforms.explore.graph import FlowEdge, FlowGraph, FlowNode, is_needed, reachable
from functx.transforms.explore.paths import PathEnds, Restart, Run
from functx.transforms.explore.python_state import (
    LeafKey,
    Position,
    PythonState,
    iterator_states,
)

LOOP_ROUNDS = 64
"""The number of times that a loop is followed: a Python loop of fixed length ends within these."""
_LONGEST_WALK = 640


def verify_merges(graph: FlowGraph) -> None:
    """Raise Restart where a path that merges with another goes on otherwise than that."""
    for source, edge in [*graph.all_edges()]:
        if edge.merge is not None:
            VerifyingRun(graph, edge, source).execute()


class VerifyingRun(Run):
    """A run that takes the path of a merging edge, then a way from its target to the end.

    A loop is followed `LOOP_ROUNDS` times before.
    """

    def __init__(self, graph: FlowGraph, edge: FlowEdge, source: FlowNode | None):
        assert edge.segment is not None
        super().__init__(graph.explorer, edge.segment.path())
        self.graph, self.merging, self.goal = graph, edge, edge.target
        self.is_following = False
        self.steps = self.rounds = 0
        to_goal = distances(graph, self.goal) if source in reachable([self.goal]) else {}
        self.to_goal, self.to_end = to_goal, distances(graph, graph.end)
        if self.goal not in self.to_end:
            self.refuse()

    def refuse(self) -> None:
        """Raise Restart: the paths do not merge."""
        assert self.merging.merge is not None
        self.graph.refuse_merge(self.merging.merge)

    def handle_error(self, error: BaseException) -> None:
        if isinstance(error, IterationLimitError):
            raise PathEnds from None
        self.refuse()

    # The graph

    def position(self, frames: tuple[Any, ...], repeats: int) -> Position:
        if not self.is_following:
            return super().position(frames, repeats)
        return Position(frames, repeats, iterator_states(self.known_iterators))

    def settle(
        self,
        position: Position,
        source: Source | None,
        state: PythonState,
        predicate: Atom,
        leaves: dict[LeafKey, Any],
        definitions: dict[LeafKey, Any],
    ) -> bool:
        if self.is_following:
            return self.follow(position, predicate, definitions)
        if self.segment is self.merging.segment and self.taken == self.path:
            self.is_following, self.equations = True, list[Equation]()
            self.values: dict[Any, Atom] = {v: self.merging.value(v) for v in self.goal.live}
            return self.leave(self.goal, predicate)
        return super().settle(position, source, state, predicate, leaves, definitions)

    def follow(self, position: Position, predicate: Atom, definitions: dict[LeafKey, Any]) -> bool:
        """Compare an arrival with the target of the edge; the outcome to go on with."""
        self.match_equations()
        self.match_definitions(position, definitions)
        target = self.edge.target
        if target.decision is None or target.decision.position != position:
            self.refuse()
        self.values = {v: self.value(self.edge.value(v)) for v in target.live}
        if target.predicate is not None and self.value(target.predicate) != predicate:
            self.refuse()
        return self.leave(target, predicate)

    def leave(self, node: FlowNode, predicate: Atom) -> bool:
        """Choose the outcome at a node, and its edge."""
        self.steps += 1
        self.rounds += node is self.goal
        if self.steps > _LONGEST_WALK:
            raise PathEnds
        outcome = self.facts.get(self.value_number(predicate))
        if outcome is None:
            in_loop = self.to_goal and self.rounds <= LOOP_ROUNDS
            table = self.to_goal if in_loop and node in self.to_goal else self.to_end
            outcome = min(node.edges, key=lambda on: table.get(node.edges[on].target, 1e9))
            self.facts[self.value_number(predicate)] = outcome
        if outcome not in node.edges:
            self.refuse()
        self.edge = node.edges[outcome]
        return outcome

    def value(self, atom: Atom | None) -> Any:
        """The value in this run of an atom of the graph."""
        return self.values.get(atom, atom)

    def match_equations(self) -> None:
        """Find each equation of the edge among those of the run, in order; refuse if one is absent."""
        run = iter(self.equations)
        for eqn in self.edge.equations:
            inputs = [self.value(a) for a in eqn.inputs]
            for own in run:
                same = own.primitive == eqn.primitive
                if same and [self.canonical(a) for a in own.inputs] == inputs:
                    self.values.update(zip(eqn.outputs, own.outputs, strict=True))
                    break
                if is_needed(own, set()):
                    self.refuse()
            else:
                self.refuse()
        if any([is_needed(own, set()) for own in run]):
            self.refuse()
        self.equations = []

    def match_definitions(self, position: Position, definitions: dict[LeafKey, Any]) -> None:
        """Compare the numbers that become values of the program."""
        segment = self.edge.segment
        for key, (var, source) in segment.definitions.items() if segment else ():
            if var not in self.edge.definitions:
                continue
            own, own_source = definitions.get(key, (None, None))
            if own_source != self.value(source):
                if type(own_source) is Literal and type(source) is Literal:
                    self.findings.constants.add((position.frames, key))
                    raise Restart
                self.refuse()
            self.values[var] = own

    # The run

    def record_equations(self) -> None:
        if not self.is_following:
            super().record_equations()
            return
        for eqn in self.new_equations():
            inputs = [self.canonical(a) for a in eqn.inputs]
            self.canonical_of.update([(v, v) for v in eqn.outputs])
            self.number_values(eqn, inputs, eqn.outputs)
            self.equations.append(eqn)

    def define(self, position: Position, found: dict[LeafKey, Any]) -> dict[LeafKey, Any]:
        if not self.is_following:
            return super().define(position, found)
        sources = self.sources_of(found)
        own: dict[LeafKey, tuple[Var, Atom]] = {}
        for key, (tracer, _) in found.items():
            self.canonical_of[tracer.atom] = tracer.atom
            own[key] = tracer.atom, sources[key]
        return own

    def finish(self, outs: Sequence[Tracer], out_tree: TreeDef) -> None:
        if not self.is_following:
            super().finish(outs, out_tree)
            return
        end = self.make_return(outs, out_tree)
        self.match_equations()
        new = [end.written.get(v, v) for v in self.graph.written]
        expected = [self.value(self.edge.value(v)) for v in self.graph.results]
        if (
            self.edge.target is not self.graph.end
            or [*end.outputs, *new] != expected
            or out_tree != self.graph.out_tree
            or any([v not in self.graph.written for v in end.written])
        ):
            self.refuse()


def distances(graph: FlowGraph, goal: FlowNode) -> dict[FlowNode, int]:
    """The least number of decisions from each node to `goal`, for the nodes that lead to it."""
    sources: defaultdict[FlowNode, list[FlowNode]] = defaultdict(list)
    for node, edge in graph.all_edges():
        if node is not None:
            sources[edge.target].append(node)
    found, pending = {goal: 0}, deque([goal])
    while pending:
        target = pending.popleft()
        for node in sources[target]:
            if node not in found:
                found[node] = found[target] + 1
                pending.append(node)
    return found
