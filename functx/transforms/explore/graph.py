"""The graph of a function: its decisions, and the equations on the edges between them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from functx.core.errors import BranchTypeError
from functx.core.program import Atom, Equation, Var
from functx.core.source_info import Source, source_line
from functx.core.tree import TreeDef, describe_difference
from functx.core.types import ShapedArray
from functx.transforms.argument_names import key_path_strings
from functx.transforms.control.body_tracing import common_aval
from functx.transforms.explore.paths import (
    Decision,
    Explorer,
    Merge,
    PathResult,
    Segment,
    captured_key,
)


class FlowEdge:
    """A way from one node to another: `equations`, then the atom of each variable of `target`.

    `values` has the atoms that differ from the variables. `merge` is the arrival of another path.
    """

    def __init__(self, target: FlowNode, values: dict[Var, Atom], segment: Segment | None = None):
        self.target, self.values = target, values
        self.equations: list[Equation] = list(segment.equations) if segment else []
        self.definitions = dict(segment.definitions.values()) if segment else {}
        self.segment = segment
        self.merge: Merge | None = None

    def value(self, var: Var) -> Atom:
        """The atom that the variable `var` of the target stands for, in terms of this edge."""
        if self.merge is not None and var not in self.values:
            self.values[var] = merged_value(self.merge, var)
        return self.values.get(var, var)

    def defines(self, var: Atom) -> bool:
        """Whether an equation of this edge defines `var`."""
        return var in self.definitions or any([var in eqn.outputs for eqn in self.equations])


class FlowNode:
    """A decision, with the edge for each outcome; the join of edges with a common end; or the return.

    A join, and a decision whose outcome the path has decided before, have one edge.
    """

    def __init__(self, decision: Decision | None = None):
        self.decision = decision
        self.edges: dict[bool, FlowEdge] = {}
        # In a fixed order, so that equal functions have equal programs.
        self.live: dict[Var, None] = {}

    @property
    def predicate(self) -> Atom | None:
        """The predicate of a decision; None if there is one edge."""
        decision = self.decision
        one_edge = decision is None or decision.assumed is not None
        return None if one_edge else decision.arrival.predicate  # type: ignore[union-attr]

    @property
    def source(self) -> Source | None:
        """The line of a decision."""
        return None if self.decision is None else self.decision.source


class UnmappedValueError(Exception):
    """A variable that another path has no value for; `args[0]` is the merge."""


def merged_value(merge: Merge, var: Var) -> Atom:
    """The atom of an arriving path that stands for `var` of the decision it merges with."""
    known, new = merge.decision.arrival, merge.arrival
    if var is known.predicate:
        return new.predicate
    for key, atom in known.leaves.items():
        if atom is var and (key in new.leaves or key == captured_key(key[1])):
            found: Any = new.leaves.get(key, key[1])
            return found  # type: ignore[no-any-return]
    if captured_key(var) in new.leaves:
        current: Atom = new.leaves[captured_key(var)]
        return current
    if new.segment.defines(var) or not known.segment.defines(var):
        return var
    raise UnmappedValueError(merge)


class FlowGraph:
    """The decisions of an explored function from `entry` on, an edge without a source.

    All paths end at the node `end`, whose variables `results` are the outputs of the function, then
    the new values of the captured arrays `written`.
    """

    def __init__(self, explorer: Explorer):
        self.explorer, self.findings = explorer, explorer.findings
        self.end = FlowNode()
        self.nodes: dict[Decision, FlowNode] = {}
        segments = all_segments(explorer.root)
        returns = [s for s in segments if isinstance(s.end, PathResult)]
        if not returns:
            for segment in [s for s in segments if isinstance(s.end, Merge)]:
                self.findings.refuse(segment.end)  # type: ignore[arg-type]
        self.out_tree, self.written, avals = unify_returns(explorer, returns)
        self.results = [Var(aval) for aval in avals]
        self.end.live.update(dict.fromkeys(self.results))
        self.entry = self.edge(explorer.root)
        try:
            self.find_live_variables()
        except UnmappedValueError as error:
            self.findings.refuse(error.args[0])

    def all_nodes(self) -> list[FlowNode]:
        """The nodes that can be reached, each before those that only it leads to."""
        found: dict[FlowNode, None] = {}
        pending = [self.entry.target]
        while pending:
            node = pending.pop()
            if node not in found:
                found[node] = None
                pending += [edge.target for edge in node.edges.values()]
        return [*found]

    def all_edges(self) -> Iterator[tuple[FlowNode | None, FlowEdge]]:
        """The edges with the nodes they leave, None for the entry."""
        yield None, self.entry
        for node in self.all_nodes():
            for edge in node.edges.values():
                yield node, edge

    def edge(self, first: Segment) -> FlowEdge:
        """The edge for a segment, after which all edges that follow are made."""
        edges: list[FlowEdge] = []
        pending: list[tuple[Segment, FlowNode | None, bool]] = [(first, None, True)]
        while pending:
            segment, source, outcome = pending.pop()
            edge, new = self.one_edge(segment)
            edges.append(edge)
            if source is not None:
                source.edges[outcome] = edge
            if new is not None:
                after = new.after
                pending += [(after[on], edge.target, on) for on in (False, True) if on in after]
        return edges[0]

    def one_edge(self, segment: Segment) -> tuple[FlowEdge, Decision | None]:
        """The edge for a segment, and the decision at its end if its node is new."""
        end = segment.end
        if isinstance(end, PathResult):
            new = [end.written.get(v, v) for v in self.written]
            values = dict(zip(self.results, [*end.outputs, *new], strict=True))
            return FlowEdge(self.end, values, segment), None
        assert end is not None
        decision = end.decision if isinstance(end, Merge) else end
        is_new = decision not in self.nodes
        node = self.nodes.setdefault(decision, FlowNode(decision))
        edge = FlowEdge(node, {}, segment)
        edge.merge = end if isinstance(end, Merge) else None
        return edge, decision if is_new else None

    def find_live_variables(self) -> None:
        """Set the live variables of each node: those that it and the following equations read."""
        for node in self.all_nodes():
            if type(node.predicate) is Var:
                node.live[node.predicate] = None
        changed = True
        edges = [pair for pair in self.all_edges() if pair[0] is not None]
        while changed:
            changed = False
            for source, edge in reversed(edges):
                assert source is not None
                new = {v: None for v in live_before(edge) if v not in source.live}
                source.live |= new
                changed = changed or bool(new)
        for _, edge in self.all_edges():
            drop_dead_equations(edge)


def reachable(starts: Iterable[FlowNode], stops: Iterable[FlowNode] = ()) -> list[FlowNode]:
    """The nodes that can be reached from `starts`, without going on from `stops`."""
    found: dict[FlowNode, None] = {}
    pending, ends = [*starts], {*stops}
    while pending:
        node = pending.pop()
        if node not in found:
            found[node] = None
            if node not in ends:
                pending += [edge.target for edge in node.edges.values()]
    return [*found]


def all_segments(root: Segment) -> list[Segment]:
    """The segments of all paths."""
    found, pending = [], [root]
    while pending:
        segment = pending.pop()
        found.append(segment)
        if isinstance(segment.end, Decision):
            pending += segment.end.after.values()
    return found


def live_before(edge: FlowEdge) -> dict[Var, None]:
    """The variables that are live at the start of an edge, if those of its target are known."""
    live = variables(map(edge.value, edge.target.live))
    for var, atom in edge.definitions.items():
        if var in live:
            del live[var]
            live |= variables([atom])
    for eqn in reversed(edge.equations):
        if is_needed(eqn, live):
            live = {v: None for v in live if v not in eqn.outputs} | variables(eqn.inputs)
    return live


def variables(atoms: Iterable[Atom]) -> dict[Var, None]:
    """The variables among `atoms`."""
    return {a: None for a in atoms if type(a) is Var}


def is_needed(eqn: Equation, live: Iterable[Var]) -> bool:
    """Whether an equation has effects or defines a live variable."""
    return bool(eqn.primitive.effects) or any([v in live for v in eqn.outputs])


def drop_dead_equations(edge: FlowEdge) -> None:
    """Remove the equations of an edge that nothing needs."""
    live = variables(map(edge.value, edge.target.live))
    edge.definitions = {v: a for v, a in edge.definitions.items() if v in live}
    live |= variables(edge.definitions.values())
    kept = []
    for eqn in reversed(edge.equations):
        if is_needed(eqn, live):
            kept.append(eqn)
            live |= variables(eqn.inputs)
    edge.equations = kept[::-1]


def unify_returns(
    explorer: Explorer, segments: Sequence[Segment]
) -> tuple[TreeDef, list[Var], list[ShapedArray]]:
    """The structure of the result, the arrays that some path writes to, and the types of all.

    Raises BranchTypeError for paths that return other structures or types.
    """
    ends = [s.end for s in segments if isinstance(s.end, PathResult)]
    if not ends:
        raise endless_error(explorer)
    first = ends[0]
    written = [*explorer.findings.written]
    avals = [a.aval for a in first.outputs]
    for segment, end in zip(segments, ends, strict=True):
        if end.out_tree != first.out_tree:
            raise branch_error(
                explorer,
                (segments[0], segment),
                f"{describe_difference(first.out_tree, end.out_tree)}",
            )
        common = [common_aval((a, x.aval)) for a, x in zip(avals, end.outputs, strict=True)]
        if None in common:
            paths = key_path_strings(first.out_tree)
            raise branch_error(
                explorer,
                (segments[0], segment),
                "; ".join(
                    f"output{path}: {a!r} and {x.aval!r}"
                    for path, a, x, found in zip(paths, avals, end.outputs, common, strict=True)
                    if found is None
                ),
            )
        avals = [a for a in common if a is not None]
    return first.out_tree, written, [*avals, *[v.aval for v in written]]


def branch_error(
    explorer: Explorer, segments: tuple[Segment, Segment], difference: str
) -> BranchTypeError:
    """The error for two paths whose results differ in structure or type; it names the lines of both."""
    return BranchTypeError(
        f"explore({explorer.name}): all paths must return values of one structure and type; got {difference}",
        *[describe_path(segment) for segment in segments],
        fix="Convert the result of one branch with astype, or return the same containers.",
    )


def describe_path(segment: Segment) -> str:
    """The last decision before a return, and the line that computes the result."""
    end, before = segment.end, segment.before
    assert isinstance(end, PathResult)
    made = None
    for output in end.outputs:
        made = made or next((e.source for e in segment.equations if output in e.outputs), None)
    text = ""
    if before is not None and isinstance(before.end, Decision):
        outcome = before.end.after[True] is segment
        text = f"if {outcome}: {source_line(before.end.source)}"
    return text + (f", which returns {source_line(made)}" if made else "")


def endless_error(explorer: Explorer) -> Exception:
    """The error for a function none of whose paths returns."""
    from functx.core.errors import IterationLimitError

    return IterationLimitError(
        f"explore({explorer.name}): some path must return; got a loop that no outcome ends",
        fix="Let the loop change the value that its condition reads.",
    )
