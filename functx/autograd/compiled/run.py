"""Runs of captured walks."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

from functx import ops
from functx.autograd.compiled.calls import (
    AccumulationCall,
    Fallback,
    UnpackCall,
    WalkCall,
    array_of,
)
from functx.autograd.compiled.capture import Capture
from functx.autograd.compiled.graphs import WalkGraph, hook_counts
from functx.autograd.compiled.stages import Stages, read_slots
from functx.autograd.engine import Walk
from functx.autograd.gradients import Gradient
from functx.autograd.hooks import registrations
from functx.autograd.nodes import SavedValue, free_saved
from functx.autograd.variable import Variable, as_variable
from functx.autograd.views import VersionCounter, changed_versions
from functx.autograd.walk_plans import set_gradients
from functx.core.errors import CapturedWalkError, WalkResultError, type_name
from functx.core.program import Literal
from functx.core.types import ShapedArray


class WalkRun:
    """One run of a captured walk.

    `packed` holds the values that saved-tensor hooks packed, by number; `hooks` the numbers of hooks of
    the nodes when the walk began. `changed` are the counters of writes since the last check.
    """

    def __init__(self, walk: Walk, graph: WalkGraph, capture: Capture):
        self.walk, self.nodes, self.capture = walk, graph.nodes, capture
        self.calls, self.unfreed = capture.calls, capture.freed[::-1]
        self.hooks, self.registrations = graph.hooks, registrations.last
        self.changed: list[VersionCounter] = []
        self.saved_versions: dict[VersionCounter, list[tuple[int, int]]] | None = None
        values = graph.values
        self.packed = {
            call.number: values[call.number]
            for call in capture.calls
            if isinstance(call, UnpackCall)
        }

    def is_outdated(self, call: WalkCall) -> bool:
        """Whether a call registered or removed hooks, or wrote to saved values, of nodes that come after it."""
        if self.registrations == registrations.last and not self.changed:
            return False
        return self.has_other_hooks(call.position) or self.has_written(call.first_unread)

    def has_other_hooks(self, position: int) -> bool:
        """Whether nodes from `position` on have other numbers of hooks than when the walk began."""
        if self.registrations == registrations.last:
            return False
        self.registrations = registrations.last
        nodes = enumerate(self.nodes[position:], position)
        return any([n.hooks and hook_counts(n.hooks) != self.hooks.get(i) for i, n in nodes])

    def has_written(self, first: int) -> bool:
        """Whether a value that a node from position `first` on has saved was written to."""
        if not self.changed:
            return False
        if self.saved_versions is None:
            self.saved_versions = {}
            for i, node in enumerate(self.nodes[first:], first):
                for x in saved_values_of(node):
                    self.saved_versions.setdefault(x.storage, []).append((i, x.version))
        changed, self.changed[:] = set(self.changed), []
        return any(
            [
                i >= first and version != counter.version
                for counter in changed
                for i, version in self.saved_versions.get(counter, ())
            ]
        )

    def check_saved(self, first: int) -> None:
        """Raises SavedValueError if a value that a node from position `first` on has saved was written to."""
        for node in self.nodes[first:]:
            for x in saved_values_of(node):
                x.load(node.label)

    def inputs(self, graph: WalkGraph) -> list[Any]:
        """The inputs of the program. Empties `graph.values`, so that each is freed after its last use."""
        values, graph.values = graph.values, []
        if self.walk.has_recorded_values:
            return [values[n] for n in self.capture.inputs]
        return [self.with_history(values[n], n, graph.value_offsets) for n in self.capture.inputs]

    def with_history(self, x: object, number: int, value_offsets: Sequence[int]) -> object:
        """A value with its history, for a walk that is differentiated."""
        position = bisect_right(value_offsets, number) - 1
        return x if position < 0 else self.walk.unpack(self.nodes[position], x)  # type: ignore[arg-type]

    def free_before(self, position: int) -> None:
        """Frees what the nodes before a position saved, unless the graph is kept."""
        if self.walk.retain_graph:
            return
        while self.unfreed and self.unfreed[-1] < position:
            free_saved(self.nodes[self.unfreed.pop()])

    def free_all(self) -> None:
        """Frees what all nodes saved, unless the graph is kept."""
        if not self.walk.retain_graph:
            for position in self.unfreed:
                free_saved(self.nodes[position])
            self.unfreed = []

    def call_each(self, calls: Sequence[tuple[int, Sequence[Any]]]) -> Sequence[Any]:
        """The outputs of a call of Python; makes several accumulations at once, as far as leaves have no `.grad`."""
        if len(calls) == 1:
            return self.call(*calls[0])
        leaves, gradients = [], []
        for number, values in calls:
            x = self.nodes[self.calls[number].position].variable  # type: ignore[attr-defined]
            if len(values) == 1 and x._leaf is not None and x._grad is None:
                leaves.append(x)
                gradients.append(array_of(values[0]))
            else:
                self.call(number, values)
        set_gradients(leaves, gradients, [None] * len(leaves))
        return ()

    def call(self, number: int, values: Sequence[Any]) -> Sequence[Any]:
        """The outputs of a call of Python."""
        call = self.calls[number]
        if call.calls_user:
            # A walk in a hook may go through the nodes that this one has still to visit.
            self.free_before(call.first_unread)
        try:
            return call(self, values)
        except Fallback as fallback:
            fallback.call = number
            raise

    def run_stages(self, graph: WalkGraph, stages: Stages) -> None:
        """Runs the walk in stages."""
        walk, values = self.walk, self.inputs(graph)
        if not stages.calls_users:
            self.free_all()
        try:
            with changed_versions(self.changed) if stages.calls_users else nullcontext():
                outputs = stages.run(values, walk.apply, self.call_each)
        except Fallback as fallback:
            visit_rest, number = fallback.visit_rest, fallback.call
        else:
            self.free_all()
            self.finish(outputs)
            return
        known = stages.snapshots[number].replaced(lambda slots: read_slots(slots, values))
        known.hand_over(walk, self.nodes)
        visit_rest(walk)
        walk.visit_pending(self.calls[number].position + 1)

    def run_function(self, graph: WalkGraph, function: Callable[..., Sequence[Any]]) -> None:
        """Runs the walk by the result of a compiler function, on lists."""
        capture, groups = self.capture, self.capture.program.groups
        values = self.inputs(graph)
        count = len(groups.inputs)
        inputs = [*map(array_of, values[:count])]
        scalars = [x.value if type(x) is Literal else x for x in values[count:]]
        del values
        if not any([call.calls_user for call in self.calls]):
            self.free_all()
        hooks = [ListedCall(self, number) for number in range(len(self.calls))]
        packed = list(self.packed.values())
        with changed_versions(self.changed):
            outputs = function(inputs, list(groups.sizes), scalars, hooks, packed)
        inputs.clear()
        self.free_all()
        arrays = check_results(outputs, capture.program.out_avals)
        self.finish([x.read() if self.walk.has_recorded_values else x for x in arrays])

    def finish(self, outputs: Sequence[Any]) -> None:
        """Gives the walk the gradients of the wanted edges."""
        edges = list(self.walk.wanted_gradients)
        for i, value in zip(self.capture.outputs, outputs, strict=True):
            self.walk.wanted_gradients[edges[i]] = Gradient(value)


class ListedCall:
    """An entry of the list of hooks of a run: call number `number` as a function of arrays, to Variables."""

    def __init__(self, run: WalkRun, number: int):
        self.run, self.number = run, number

    def __call__(self, *arrays: object) -> list[Variable]:
        run, call = self.run, self.run.calls[self.number]
        values = [self.value_of(x) for x in arrays]
        if isinstance(call, AccumulationCall) and len(values) == 2:
            values.append(run.walk.bind(ops.Add(), values))
        try:
            outs = run.call(self.number, values)
        except Fallback:
            run.check_saved(call.first_unread)
            raise CapturedWalkError(
                "compiled_autograd: with a compiler function, hooks and rules must give gradients and None "
                "for the same values in each walk, and register no hooks on nodes that the walk has not visited; "
                f"got a change by the {call.describe(run.nodes)}",
                fix="Use the default compiler, or functx.compiled_autograd.disable() around the walk.",
            ) from None
        return [*map(array_of, outs)]

    def value_of(self, x: object) -> Any:
        """An array as a value of the walk."""
        array = as_variable(x)
        return array.read() if self.run.walk.has_recorded_values else array


def saved_values_of(node: object) -> list[SavedValue]:
    """The values of Variables among those that a node has saved."""
    return [x for x in getattr(node, "saved", None) or () if type(x) is SavedValue]


def check_results(outputs: object, avals: Sequence[ShapedArray]) -> list[Variable]:
    """The results of a compiled walk; WalkResultError unless they are of these types."""
    if not isinstance(outputs, (list, tuple)) or len(outputs) != len(avals):
        count = len(outputs) if isinstance(outputs, (list, tuple)) else type_name(outputs)
        raise WalkResultError(
            f"compiled_autograd: a compiled walk must return a list of {len(avals)} gradients; got "
            f"{count}"
        )
    arrays = []
    for i, (x, aval) in enumerate(zip(outputs, avals, strict=True)):
        array = as_variable(x)
        if (array.shape, array.dtype) != (aval.shape, aval.dtype):
            raise WalkResultError(
                "compiled_autograd: a compiled walk must return gradients of the types of the program; "
                f"got {array.aval_!r} as number {i}, expected {aval!r}"
            )
        arrays.append(array)
    return arrays
