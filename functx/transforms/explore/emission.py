"""The program of a graph of decisions: `cond` where paths part and meet, `while` where they repeat."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from functx import ops
from functx.core.program import Atom, Equation, Literal, Var
from functx.core.rewriting import bind_equation
from functx.core.source_info import Source
from functx.core.tracer import aval_of, current_builder
from functx.core.types import ShapedArray
from functx.core.typing import ArrayLike
from functx.transforms.control.body_tracing import cast_to, cast_to_strong
from functx.transforms.control.cond import cond
from functx.transforms.control.loops import while_loop
from functx.transforms.explore.graph import FlowEdge, FlowGraph, FlowNode, reachable
from functx.transforms.explore.regions import Region

Env = Mapping[Var, Any]


class Layout(NamedTuple):
    """The values that a region of the graph returns for the nodes `stops` that it may end at.

    With several stops, the number of the stop comes first. Then come the values of `variables`, for
    each stop those that differ between the ways to it.
    """

    stops: tuple[FlowNode, ...]
    variables: tuple[tuple[Var, ...], ...]
    region: Region

    def pack(self, node: FlowNode, env: Env) -> list[Any]:
        """The values of a region that ends at `node`."""
        label = [ops.constant_like(_LABEL, self.stops.index(node))] if len(self.stops) > 1 else []
        values = [
            cast_to(env[v], v.aval) if v in env else ops.zeros_like(v.aval)
            for variables in self.variables
            for v in variables
        ]
        return [*label, *values]

    def unpack(self, values: Sequence[Any]) -> dict[Var, Any]:
        """The values of the variables of all stops."""
        rest = values[1:] if len(self.stops) > 1 else values
        return dict(zip([v for each in self.variables for v in each], rest, strict=True))


_LABEL = ShapedArray((), np.dtype("int32"))


class Place(NamedTuple):
    """A node of a graph to go on from, and the values there."""

    node: FlowNode
    env: Env


Emitted = Place | list[Any]
"""The place that has been reached, or the results of a region that has ended."""


class Emitter:
    """Appends the equations of a graph to the current program."""

    def __init__(self, graph: FlowGraph):
        self.graph = graph

    def emit(self, captured: Env) -> list[Any]:
        """The results of the graph, whose captured values are given."""
        stops = (self.graph.end,)
        region = Region([self.graph.entry.target], stops)
        layout = Layout(stops, (tuple(self.graph.results),), region)
        return self.follow(self.graph.entry, captured, layout)

    def follow(self, edge: FlowEdge, env: Env, layout: Layout) -> list[Any]:
        """Append the equations of an edge, and all up to a stop of `layout`."""
        return self.finish(self.cross(edge, env), layout)

    def cross(self, edge: FlowEdge, env: Env) -> Place:
        """Append the equations of an edge; the place at its end."""
        env = emit_equations(edge.equations, env)
        for var, atom in edge.definitions.items():
            env[var] = convert(read(atom, env), var.aval)
        values = {v: read(edge.value(v), env) for v in edge.target.live}
        return Place(edge.target, {**env, **values})

    def finish(self, emitted: Emitted, layout: Layout) -> list[Any]:
        """Append the equations from a place on, up to a stop of `layout`."""
        # A loop, so that branches that follow each other need no deep recursion.
        while isinstance(emitted, Place):
            if emitted.node in layout.stops:
                return layout.pack(*emitted)
            emitted = self.emit_next(*emitted, layout)
        return emitted

    def emit_next(self, node: FlowNode, env: Env, layout: Layout) -> Emitted:
        """Append the equations from a node to one that all ways from it pass."""
        if layout.region.loop(node):
            return self.emit_loop(node, env, layout)
        return self.emit_node(node, env, layout)

    def emit_node(self, node: FlowNode, env: Env, layout: Layout) -> Emitted:
        """As `emit_next`, of a node that is not the first of a loop."""
        if node.predicate is None:
            (edge,) = node.edges.values()
            return self.cross(edge, env)

        def branch(outcome: bool, inner: Layout) -> list[Any]:
            return self.follow(node.edges[outcome], env, inner)

        def both(inner: Layout) -> list[Any]:
            return choose(read(node.predicate, env), lambda on: branch(on, inner), node.source)

        return self.until_join([*node.edges.values()], {}, env, layout, both)

    def until_join(
        self,
        edges: Sequence[FlowEdge],
        varying: dict[FlowNode, list[Var]],
        env: Env,
        layout: Layout,
        emit: Callable[[Layout], list[Any]],
    ) -> Emitted:
        """Append the equations of `emit(layout)`, up to the node where all paths meet if there is one."""
        starts = [edge.target for edge in edges] or [*varying]
        join = layout.region.join(starts, layout.stops)
        if join is None:
            return emit(layout)
        variables = varying_variables(edges, varying, (join,)).get(join, [])
        inner = Layout((join,), (tuple(variables),), layout.region)
        return Place(join, {**env, **inner.unpack(emit(inner))})

    # Loops

    def emit_loop(self, first: FlowNode, env: Env, layout: Layout) -> Emitted:
        """Append a loop that begins with the decision `first`; the place after it."""
        nodes = layout.region.loop(first)
        leaving = [(n, on) for n in nodes for on, e in n.edges.items() if e.target not in nodes]
        exits = [*dict.fromkeys([n.edges[on].target for n, on in leaving])]
        stops = first, *exits
        varying = varying_variables([*first.edges.values()], {}, stops)
        region = Region([edge.target for edge in first.edges.values()], stops)
        inner = Layout(stops, tuple([tuple(varying.get(n, [])) for n in stops]), region)
        if len(leaving) == 1 and leaving[0][0] is first and first.predicate in inner.variables[0]:
            return self.emit_plain_loop(first, not leaving[0][1], inner, env)
        outs = self.emit_labelled_loop(first, inner, env)
        env = {**env, **inner.unpack(outs)}
        return self.emit_exits(outs[0], exits, inner, env, layout)

    def emit_plain_loop(self, first: FlowNode, stay: bool, body_layout: Layout, env: Env) -> Place:
        """A loop that only the outcome other than `stay` of its first decision ends."""
        carry = body_layout.variables[0]
        inner = Layout((first,), (carry,), body_layout.region)

        def condition(values: list[Any]) -> Atom:
            predicate = read(first.predicate, inner.unpack(values))
            return predicate if stay else ops.Not()(predicate)

        def body(values: list[Any]) -> list[Any]:
            return self.follow(first.edges[stay], {**env, **inner.unpack(values)}, inner)

        with source_of_equations(first.source):
            outs = while_loop(condition, body, [cast_to(env[v], v.aval) for v in carry])
        return self.cross(first.edges[not stay], {**env, **inner.unpack(outs)})

    def emit_labelled_loop(self, first: FlowNode, inner: Layout, env: Env) -> list[Any]:
        """A loop that several outcomes end; its last carry begins with the number of the exit."""

        def body(values: list[Any]) -> list[Any]:
            return self.finish(self.emit_node(first, {**env, **inner.unpack(values)}, inner), inner)

        with source_of_equations(first.source):
            outs: list[Any] = while_loop(
                lambda values: ops.eq(values[0], 0), body, inner.pack(first, env)
            )
        return outs

    def emit_exits(
        self, label: Any, exits: Sequence[FlowNode], inner: Layout, env: Env, layout: Layout
    ) -> Emitted:
        """Go on from the node that a loop has ended at."""
        if len(exits) == 1:
            return Place(exits[0], env)
        varying = {
            n: [*variables] for n, variables in zip(inner.stops, inner.variables, strict=True)
        }
        del varying[inner.stops[0]]

        def emit(found: Layout, i: int = 0) -> list[Any]:
            if i + 1 == len(exits):
                return self.finish(Place(exits[i], env), found)
            return choose(
                ops.eq(label, i + 1),
                lambda on: self.finish(Place(exits[i], env), found) if on else emit(found, i + 1),
                None,
            )

        return self.until_join([], varying, env, layout, emit)


def emit_equations(equations: Sequence[Equation], env: Env) -> dict[Var, Any]:
    """Append `equations` on the values `env`; all values."""
    found = dict(env)
    for eqn in equations:
        args = [read(a, found) for a in eqn.inputs]
        with source_of_equations(eqn.source):
            if [aval_of(x) for x in args] == [a.aval for a in eqn.inputs]:
                outs = bind_equation(eqn, *args)
            else:
                outs = eqn.primitive.as_list(eqn.primitive(*args))
        found.update(zip(eqn.outputs, outs, strict=True))
    return found


def read(atom: Atom | None, env: Env) -> Any:
    """The value of an atom."""
    return env[atom] if type(atom) is Var else atom


def convert(value: Any, aval: ShapedArray) -> Any:
    """A number, or an array of a type that is promoted, as a value of the type `aval`."""
    if type(value) is Literal:
        kind = {"b": bool, "i": int, "u": int, "f": float, "c": complex}[aval.dtype.kind]
        return Literal(kind(value.value), aval)
    return cast_to(value, aval) if aval.weak_type else cast_to_strong(value, aval)


def choose(
    predicate: ArrayLike, emit: Callable[[bool], list[Any]], source: Source | None
) -> list[Any]:
    """`emit(True)` or `emit(False)`, chosen by the predicate when the program runs."""

    def when_true() -> list[Any]:
        return emit(True)

    def when_false() -> list[Any]:
        return emit(False)

    with source_of_equations(source):
        outs: list[Any] = cond(predicate, when_true, when_false)
    return outs


@contextmanager
def source_of_equations(source: Source | None) -> Iterator[None]:
    """A context whose equations come from the line `source`."""
    builder = current_builder.require()
    outer = builder.source
    builder.source = source or outer
    try:
        yield
    finally:
        builder.source = outer


def varying_variables(
    edges: Sequence[FlowEdge], initial: dict[FlowNode, list[Var]], stops: Sequence[FlowNode]
) -> dict[FlowNode, list[Var]]:
    """For each node, the live variables that do not have one value on all ways to it.

    The ways begin with `edges`, or at nodes at which those of `initial` vary.
    """
    varying: dict[FlowNode, dict[Var, None]] = {n: dict.fromkeys(v) for n, v in initial.items()}
    starts = [edge.target for edge in edges] or [*initial]
    inside = [n for n in reachable(starts, stops) if n not in stops]
    inner = [(n, edge) for n in inside for edge in n.edges.values()]
    ways: list[tuple[FlowNode | None, FlowEdge]] = [*[(None, edge) for edge in edges], *inner]
    changed = True
    while changed:
        changed = False
        for source, edge in ways:
            before = varying.get(source, {}) if source is not None else {}
            found = varying.setdefault(edge.target, {})
            for v in edge.target.live:
                if v not in found and (edge.value(v) is not v or v in before or edge.defines(v)):
                    found[v] = None
                    changed = True
    return {n: [*found] for n, found in varying.items()}
