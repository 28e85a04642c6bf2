"""Joins of a graph: equations at the ends of several edges, which come from one place, become one edge."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from functx.core.program import Atom, Equation, Literal, Var
from functx.transforms.explore.emission import convert
from functx.transforms.explore.graph import FlowEdge, FlowGraph, FlowNode, live_before, reachable
from functx.transforms.explore.python_state import text_position

Row = tuple[Atom, ...]
"""The atoms that stand for one value in each of several edges."""


def join_common_ends(graph: FlowGraph) -> None:
    """Give edges to one node that end with the same equations a node before these.

    The equations come from the same places of the user's code: what follows an `if` runs after its
    branches have met, and not in each. Edges into a loop are apart from those within it.
    """
    for _, edge in graph.all_edges():
        resolve_definitions(edge)
    pending = [*graph.all_nodes()]
    while pending:
        target = pending.pop()
        incoming = [(source, e) for source, e in graph.all_edges() if e.target is target]
        within = {*reachable([e.target for e in target.edges.values()])}
        groups: dict[Any, list[FlowEdge]] = {}
        for source, edge in incoming:
            if edge.equations:
                key = last_equation_key(edge), target in within and source in within
                groups.setdefault(key, []).append(edge)
        for edges in groups.values():
            if len(edges) > 1 and (node := CommonEnd(target, edges).split()):
                pending.append(node)


def resolve_definitions(edge: FlowEdge) -> None:
    """Put numbers, and arrays of the same type, in place of the variables that an edge defines by them."""
    for var in edge.target.live:
        atom = edge.value(var)
        source = edge.definitions.get(atom) if type(atom) is Var else None
        if type(source) is Literal:
            edge.values[var] = convert(source, atom.aval)
        elif source is not None and source.aval == atom.aval:
            edge.values[var] = source
    used = {edge.value(v) for v in edge.target.live}
    edge.definitions = {v: a for v, a in edge.definitions.items() if v in used}


def last_equation_key(edge: FlowEdge) -> Hashable:
    """A key that edges share whose last equations may be one."""
    eqn = edge.equations[-1]
    place = None if eqn.source is None else (eqn.source[0], *text_position(*eqn.source))
    return place, eqn.primitive, tuple([v.aval for v in eqn.outputs])


class CommonEnd:
    """The equations that `edges` to `target` end with.

    `rows` are the values that these equations and `target` read, each with its variable in the join.
    """

    def __init__(self, target: FlowNode, edges: Sequence[FlowEdge]):
        self.target, self.edges = target, edges
        self.rows: dict[Row, None] = {}
        self.equations: list[list[Equation]] = []
        for var in target.live:
            self.rows[self.row(var)] = None

    def row(self, var: Var) -> Row:
        """The atoms of the edges for a variable of the target."""
        return tuple([edge.value(var) for edge in self.edges])

    def split(self) -> FlowNode | None:
        """The new node before the common end; None if there is no common end."""
        if any([edge.definitions for edge in self.edges]):
            return None
        while self.take_equation():
            pass
        return self.make_node() if self.equations else None

    def take_equation(self) -> bool:
        """Take the last equation of each edge that is not taken; False unless they are the same."""
        taken = len(self.equations)
        if any([len(edge.equations) <= taken for edge in self.edges]):
            return False
        eqns = [edge.equations[-1 - taken] for edge in self.edges]
        if any([not is_same_step(eqns[0], eqn) for eqn in eqns]):
            return False
        outputs = [*zip(*[eqn.outputs for eqn in eqns], strict=True)]
        for row in self.rows:
            defined = [a in eqn.outputs for a, eqn in zip(row, eqns, strict=True)]
            if any(defined) and row not in outputs:
                return False
        for row in outputs:
            self.rows.pop(row, None)
        for row in zip(*[eqn.inputs for eqn in eqns], strict=True):
            self.rows[row] = None
        self.equations.append(eqns)
        return True

    def make_node(self) -> FlowNode:
        """The node, with the common equations on its one edge, and the edges that now lead to it."""
        node, atom_of = FlowNode(), dict[Row, Atom]()
        for row in self.rows:
            is_one = all([a == row[0] for a in row])
            atom_of[row] = row[0] if is_one else Var(row[0].aval)
        rows = [(row, a) for row, a in atom_of.items() if type(a) is Var and a is not row[0]]
        after = FlowEdge(self.target, {})
        for eqns in reversed(self.equations):
            inputs = [atom_of[row] for row in zip(*[eqn.inputs for eqn in eqns], strict=True)]
            outputs = [Var(v.aval) for v in eqns[0].outputs]
            after.equations.append(eqns[0].replace(inputs=inputs, outputs=outputs))
            results = zip(*[eqn.outputs for eqn in eqns], strict=True)
            atom_of.update(zip(results, outputs, strict=True))
        after.values = {v: atom_of[self.row(v)] for v in self.target.live}
        node.edges[True] = after
        node.live = live_before(after)
        for i, edge in enumerate(self.edges):
            del edge.equations[len(edge.equations) - len(self.equations) :]
            edge.target, edge.merge = node, None
            edge.values = {a: row[i] for row, a in rows}  # type: ignore[misc]
        return node


def is_same_step(x: Equation, y: Equation) -> bool:
    """Whether two equations of different paths come from one place and compute the same of their inputs."""
    return (
        x.primitive == y.primitive
        and [a.aval for a in x.inputs] == [a.aval for a in y.inputs]
        and [v.aval for v in x.outputs] == [v.aval for v in y.outputs]
        and x.source is not None
        and y.source is not None
        and x.source[0] is y.source[0]
        and text_position(*x.source) == text_position(*y.source)
    )
