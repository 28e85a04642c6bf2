"""Runs of captured walks."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any

from functx import ops
from functx.autograd.compiled.calls import (
    CallAccumulate,
    CallUnpack,
    Layout,
    LeaveProgram,
    WalkCall,
    array_of,
    gradients_of,
)
from functx.autograd.compiled.capture import Capture
from functx.autograd.compiled.graphs import WalkGraph, hooks_key
from functx.autograd.compiled.programs import values_of
from functx.autograd.compiled.stages import Accumulations, CallStep, Slot, Stage, Stages
from functx.autograd.engine import Gradient, Walk
from functx.autograd.hooks import registrations
from functx.autograd.variable import Variable, as_variable, variable_of_literal
from functx.core.errors import CapturedWalkError, WalkResultError, type_name
from functx.core.program import Literal
from functx.core.types import ShapedArray


class WalkRun:
    """One run of a captured walk: its nodes, and the values that saved-tensor hooks packed, by number."""

    def __init__(self, walk: Walk, graph: WalkGraph, capture: Capture):
        self.walk, self.nodes, self.capture = walk, graph.nodes, capture
        self.freed = 0
        self.hooks, self.registrations = graph.hooks, registrations.last
        values = graph.values
        self.packed = {
            call.number: values[call.number]
            for call in capture.calls
            if isinstance(call, CallUnpack)
        }

    def has_other_hooks(self, position: int) -> bool:
        """Whether nodes from `position` on have other numbers of hooks than when the walk began."""
        if self.registrations == registrations.last:
            return False
        self.registrations = registrations.last
        nodes = enumerate(self.nodes[position:], position)
        return any([n.hooks and hooks_key(n.hooks) != self.hooks.get(i) for i, n in nodes])

    def inputs(self, graph: WalkGraph) -> list[Any]:
        """The values that the program takes, as those of the walk; `graph` keeps none."""
        values, graph.values = graph.values, []
        if self.walk.plain:
            return [values[n] for n in self.capture.inputs]
        return [self.with_history(values[n], n, graph.firsts) for n in self.capture.inputs]

    def with_history(self, x: Any, number: int, firsts: Sequence[int]) -> Any:
        """Value number `number`, as one of a walk that is differentiable."""
        position = bisect_right(firsts, number) - 1
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
            if type(step) is Stage:
                outs: Sequence[Any] = walk.apply(step.operation, values_of(step.operands, env))
            elif type(step) is Accumulations:
                outs = ()
                for number, slots in zip(step.numbers, step.operands, strict=True):
                    calls[number](self, values_of(slots, env))
            else:
                assert type(step) is CallStep
                call = calls[step.number]
                # A walk in a hook may go through the nodes that this one has still to visit.
                self.free_before(call.position + call.is_after_rule)
                try:
                    outs = call(self, values_of(step.operands, env))
                except LeaveProgram as change:
                    self.leave(step, env)
                    change.visit_rest(walk)
                    walk.visit_pending(call.position + 1)
                    return
            for n in step.last:
                env[n] = None
            env += outs
        self.free_before(None)
        self.finish(values_of(stages.outputs, env))

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
        hooks = [HookOfList(self, call) for call in capture.calls]
        packed = list(self.packed.values())
        outputs = function(inputs, list(groups.sizes), scalars, hooks, packed)
        inputs.clear()
        self.free_before(None)
        arrays = check_results(outputs, capture.program.out_avals)
        self.finish([x.read() if self.walk.plain else x for x in arrays])

    def finish(self, outputs: Sequence[Any]) -> None:
        """Gives the walk the gradients of the wanted edges."""
        edges = list(self.walk.captured)
        for i, value in zip(self.capture.outputs, outputs, strict=True):
            self.walk.captured[edges[i]] = Gradient(value)

    def leave(self, step: CallStep, env: Sequence[Any]) -> None:
        """Gives the walk the gradients that nodes have by then, so that it goes on without the program."""
        walk = self.walk

        def gradients(layout: Layout, slots: Sequence[Slot]) -> list[Gradient | None]:
            return gradients_of(layout, iter(values_of(slots, env)))

        for position, layout, slots in step.pending:
            walk.pending[self.nodes[position]] = gradients(layout, slots)
        edges = list(walk.captured)
        for i, layout, slots in step.captured:
            (walk.captured[edges[i]],) = gradients(layout, slots)


class HookOfList:
    """A call of Python, as an entry of the list of hooks of a run: a function of arrays, to Variables."""

    def __init__(self, run: WalkRun, call: WalkCall):
        self.run, self.call = run, call

    def __call__(self, *arrays: Any) -> list[Variable]:
        values = [self.value_of(x) for x in arrays]
        if self.call.calls_user:
            self.run.free_before(self.call.position + self.call.is_after_rule)
        if isinstance(self.call, CallAccumulate) and len(values) == 2:
            values.append(self.run.walk.bind(ops.Add(), values))
        try:
            outs = self.call(self.run, values)
        except LeaveProgram:
            raise CapturedWalkError(
                "compiled_autograd: with a compiler function, hooks and rules must give gradients and None "
                "for the same values in each walk, and register no hooks on nodes that the walk has not visited; "
                f"got a change by the {self.call.describe(self.run.nodes)}",
                fix="Use the default compiler, or functx.compiled_autograd.disable() around the walk.",
            ) from None
        return [*map(array_of, outs)]

    def value_of(self, x: Any) -> Any:
        """An array as a value of the walk."""
        array = variable_of_literal(x) if type(x) is Literal else as_variable(x)
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
