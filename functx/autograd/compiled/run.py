"""Runs of captured walks."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any

from functx import ops
from functx.autograd.compiled.calls import (
    AccumulationCall,
    Fallback,
    Layout,
    UnpackCall,
    WalkCall,
    array_of,
    unflatten_gradients,
)
from functx.autograd.compiled.capture import Capture
from functx.autograd.compiled.graphs import WalkGraph, hook_counts
from functx.autograd.compiled.programs import read_slots
from functx.autograd.compiled.stages import Accumulations, CallStep, Slot, Stages, StageStep
from functx.autograd.engine import Gradient, Walk
from functx.autograd.hooks import registrations
from functx.autograd.variable import Variable, as_variable
from functx.core.errors import CapturedWalkError, WalkResultError, type_name
from functx.core.program import Literal
from functx.core.types import ShapedArray


class WalkRun:
    """One run of a captured walk.

    `packed` holds the values that saved-tensor hooks packed, by number; `hooks` the numbers of hooks of
    the nodes when the walk began.
    """

    def __init__(self, walk: Walk, graph: WalkGraph, capture: Capture):
        self.walk, self.nodes, self.capture = walk, graph.nodes, capture
        self.freed = 0
        self.hooks, self.registrations = graph.hooks, registrations.last
        values = graph.values
        self.packed = {
            call.number: values[call.number]
            for call in capture.calls
            if isinstance(call, UnpackCall)
        }

    def has_other_hooks(self, position: int) -> bool:
        """Whether nodes from `position` on have other numbers of hooks than when the walk began."""
        if self.registrations == registrations.last:
            return False
        self.registrations = registrations.last
        nodes = enumerate(self.nodes[position:], position)
        return any([n.hooks and hook_counts(n.hooks) != self.hooks.get(i) for i, n in nodes])

    def inputs(self, graph: WalkGraph) -> list[Any]:
        """The inputs of the program. Empties `graph.values`, so that each is freed after its last use."""
        values, graph.values = graph.values, []
        if self.walk.plain:
            return [values[n] for n in self.capture.inputs]
        return [self.with_history(values[n], n, graph.value_offsets) for n in self.capture.inputs]

    def with_history(self, x: Any, number: int, value_offsets: Sequence[int]) -> Any:
        """A value with its history, for a walk that is differentiated."""
        position = bisect_right(value_offsets, number) - 1
        return x if position < 0 else self.walk.unpack(self.nodes[position], x)  # type: ignore[arg-type]

    def free_before(self, position: int | None) -> None:
        """Frees what the nodes before a position saved, or all, unless the graph is kept."""
        freed = self.capture.freed
        while self.freed < len(freed) and (position is None or freed[self.freed] < position):
            node: Any = self.nodes[freed[self.freed]]
            if node.saved and not self.walk.retain_graph:
                node.saved = node.operands = None
            self.freed += 1

    def run_stages(self, graph: WalkGraph, stages: Stages) -> None:
        """Runs the walk in stages."""
        env = self.inputs(graph)
        if not stages.calls_users:
            self.free_before(None)
        walk, calls = self.walk, self.capture.calls
        for step in stages.steps:
            if type(step) is StageStep:
                outs: Sequence[Any] = walk.apply(step.operation, read_slots(step.operands, env))
            elif type(step) is Accumulations:
                outs = ()
                for number, slots in zip(step.numbers, step.operands, strict=True):
                    calls[number](self, read_slots(slots, env))
            else:
                assert type(step) is CallStep
                call = calls[step.number]
                # A walk in a hook may go through the nodes that this one has still to visit.
                self.free_before(call.position + call.is_after_rule)
                try:
                    outs = call(self, read_slots(step.operands, env))
                except Fallback as fallback:
                    self.hand_over(step, env)
                    fallback.visit_rest(walk)
                    walk.visit_pending(call.position + 1)
                    return
            for n in step.last:
                env[n] = None
            env += outs
        self.free_before(None)
        self.finish(read_slots(stages.outputs, env))

    def run_function(self, graph: WalkGraph, function: Callable[..., Sequence[Any]]) -> None:
        """Runs the walk by the result of a compiler function, on lists."""
        capture, groups = self.capture, self.capture.program.groups
        values = self.inputs(graph)
        count = len(groups.inputs)
        inputs = [*map(array_of, values[:count])]
        scalars = [x.value if type(x) is Literal else x for x in values[count:]]
        del values
        if not any([call.calls_user for call in capture.calls]):
            self.free_before(None)
        hooks = [ListedCall(self, call) for call in capture.calls]
        packed = list(self.packed.values())
        outputs = function(inputs, list(groups.sizes), scalars, hooks, packed)
        inputs.clear()
        self.free_before(None)
        arrays = check_results(outputs, capture.program.out_avals)
        self.finish([x.read() if self.walk.plain else x for x in arrays])

    def finish(self, outputs: Sequence[Any]) -> None:
        """Gives the walk the gradients of the wanted edges."""
        edges = list(self.walk.wanted_gradients)
        for i, value in zip(self.capture.outputs, outputs, strict=True):
            self.walk.wanted_gradients[edges[i]] = Gradient(value)

    def hand_over(self, step: CallStep, env: Sequence[Any]) -> None:
        """Gives the walk the gradients that are pending, so that it can go on node by node."""
        walk = self.walk

        def gradients(layout: Layout, slots: Sequence[Slot]) -> list[Gradient | None]:
            return unflatten_gradients(layout, iter(read_slots(slots, env)))

        for position, layout, slots in step.pending:
            walk.pending[self.nodes[position]] = gradients(layout, slots)
        edges = list(walk.wanted_gradients)
        for i, layout, slots in step.wanted:
            (walk.wanted_gradients[edges[i]],) = gradients(layout, slots)


class ListedCall:
    """An entry of the list of hooks of a run: a call of Python as a function of arrays, to Variables."""

    def __init__(self, run: WalkRun, call: WalkCall):
        self.run, self.call = run, call

    def __call__(self, *arrays: Any) -> list[Variable]:
        values = [self.value_of(x) for x in arrays]
        if self.call.calls_user:
            self.run.free_before(self.call.position + self.call.is_after_rule)
        if isinstance(self.call, AccumulationCall) and len(values) == 2:
            values.append(self.run.walk.bind(ops.Add(), values))
        try:
            outs = self.call(self.run, values)
        except Fallback:
            raise CapturedWalkError(
                "compiled_autograd: with a compiler function, hooks and rules must give gradients and None "
                "for the same values in each walk, and register no hooks on nodes that the walk has not visited; "
                f"got a change by the {self.call.describe(self.run.nodes)}",
                fix="Use the default compiler, or functx.compiled_autograd.disable() around the walk.",
            ) from None
        return [*map(array_of, outs)]

    def value_of(self, x: Any) -> Any:
        """An array as a value of the walk."""
        array = as_variable(x)
        return array.read() if self.run.walk.plain else array


def check_results(outputs: Any, avals: Sequence[ShapedArray]) -> list[Variable]:
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
