"""The backward walk: from the newest node to the oldest, with the pullback of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar, copy_context
from functools import partial
from operator import attrgetter
from typing import Any

import jax

from functx import ops
from functx.autograd.anomaly import current_anomalies, pull_back_with_origin
from functx.autograd.even_powers import join_power_with_root
from functx.autograd.gradients import Gradient, add_to_grad, make_gradient, record
from functx.autograd.modes import set_modes
from functx.autograd.nodes import (
    AccumulateGrad,
    CotangentsUsed,
    Edge,
    Node,
    OperationNode,
    OperationSplit,
    Pullback,
    SavedValue,
    free_saved,
    freed_error,
    operands_read,
    outside_node_error,
)
from functx.autograd.recorded import Recorded, step_traces
from functx.autograd.recorded_operations import Operation, operation_of
from functx.autograd.recording import continue_recording, current_recording
from functx.autograd.saved import PackedValue
from functx.autograd.variable import make_variable, open_level
from functx.autograd.walk_hooks import HookRunner
from functx.core.errors import (
    ArgumentError,
    CallbackError,
    type_name,
)
from functx.core.rewriting import apply, cached_rewrite
from functx.core.tracer import current_builder
from functx.core.types import ShapedArray, threefry_partitionable, x64_enabled
from functx.ops.operands import literal
from functx.transforms.call_primitive import known_masks

_add = ops.Add()
_or = ops.Or()
_DEPTH_OF_A_THREAD = 20
"""The number of walks that run inside one another in one thread, which bounds its stack."""


class Walk(HookRunner):
    """One walk from roots to leaves.

    With `create_graph` the pullbacks are operations with nodes themselves. `wanted` are the edges
    whose gradients are returned; only nodes that lead to them run, and leaves are left alone. With
    `accumulate` gradients are added to `.grad` of the leaves, only of those wanted if there are any.
    """

    def __init__(
        self,
        create_graph: bool,
        retain_graph: bool,
        wanted: Sequence[Edge] | None = None,
        accumulate: bool = True,
    ):
        self.create_graph, self.retain_graph = create_graph, retain_graph
        self.accumulate = accumulate
        self.wanted = wanted
        self.wanted_gradients: dict[Edge, Gradient | None] = dict.fromkeys(wanted or ())
        self.pending: dict[Node, list[Gradient | None]] = {}
        self.nodes: set[Node] = set()
        self.order: list[Node] = []
        self.wanted_outputs: dict[Node, list[int]] = {}
        for node, index in self.wanted_gradients:
            self.wanted_outputs.setdefault(node, []).append(index)
        self.callbacks: list[Callable[[], object]] = []
        self.roots: list[Node] = []
        outer = running_walk.get()
        self.depth: int = 0 if outer is None else outer.depth + 1
        self.allows_checkpoint = wanted is None and is_checkpoint_valid()
        self.detects_anomalies = current_anomalies().enabled
        # Gradients of dual numbers are dual, whether they are recorded for a walk or not.
        self.is_differentiated = create_graph or open_level.get() is not None
        self.has_recorded_values = not self.is_differentiated and current_builder.get() is None
        self.first_node = current_recording().first_node

    def run(self, roots: Sequence[tuple[Edge, Any]]) -> None:
        """Walks from roots with their gradients."""
        if self.depth and self.depth % _DEPTH_OF_A_THREAD == 0:
            run_in_thread(lambda: self.run_here(roots))
        else:
            self.run_here(roots)

    def run_here(self, roots: Sequence[tuple[Edge, Any]]) -> None:
        """As `run`, in this thread."""
        self.roots = [node for (node, _), _ in roots]
        if step_traces.count and (trace := step_traces.of_thread()) is not None:
            trace.has_walk = True
            trace.has_backward |= self.accumulate
        token = running_walk.set(self)
        restore_modes = set_modes(self.create_graph, stops_traced=False)
        try:
            compiler = walk_compiler.get()
            if compiler is None:
                self.find_order()
                self.visit_from(roots)
            else:
                compiler(self, roots)
            self.run_callbacks()
        finally:
            restore_modes()
            running_walk.reset(token)

    def find_order(self) -> None:
        """Finds the nodes that the roots lead to, and the order of their visits."""
        self.order, self.nodes = visiting_order(self.roots)
        if self.wanted is not None:
            self.nodes = nodes_leading_to(set(self.wanted_outputs), self.nodes)
            self.order = [node for node in self.order if node in self.nodes]

    def visit_from(self, roots: Sequence[tuple[Edge, Any]]) -> None:
        """Visits all nodes that roots with their gradients lead to."""
        for edge, value in roots:
            self.send(edge, None if value is None else Gradient(value))
        self.visit_pending()

    def visit_pending(self, first: int = 0) -> None:
        """Visits the nodes that have gradients, from number `first` on, also those that get some meanwhile."""
        for node in self.order[first:]:
            gradients = self.pending.pop(node, None)
            if gradients is not None:
                self.visit(node, gradients)

    def run_callbacks(self) -> None:
        """Calls what `queue_callback` has queued."""
        while self.callbacks:
            self.callbacks.pop(0)()

    def send(self, edge: Edge, gradient: Gradient | None) -> None:
        """Adds to the gradient of the output of a node, which will be visited.

        None, which the rule of a Function may return, adds nothing.
        """
        node, index = edge
        if self.wanted is not None and node not in self.nodes:
            return
        buffer = self.pending.get(node)
        if buffer is None:
            if type(node) is AccumulateGrad:
                self.pending[node] = [gradient]
                return
            buffer = self.pending[node] = [None] * len(node.out_avals)
        before = buffer[index]
        if before is None or gradient is None:
            buffer[index] = before or gradient
            return
        mask = None
        if before.mask is not None and gradient.mask is not None:
            mask = self.bind(_or, (before.mask, gradient.mask))
        buffer[index] = Gradient(self.bind(_add, (before.value, gradient.value)), mask)

    def apply(self, operation: Operation, args: Sequence[Any]) -> Sequence[Any]:
        """The outputs of an operation on values of the walk."""
        if self.has_recorded_values:
            return operation.outputs_of(args, current_recording().call(operation, args))
        return apply(None, operation.program, [*args, *operation.captured])

    def filled(self, aval: ShapedArray, value: float) -> Any:
        """An array of the type `aval`, filled with a number."""
        number = literal(value, aval.dtype)
        if self.has_recorded_values or current_builder.get() is not None:
            return self.bind(ops.Full(aval.shape), (number,))
        return make_variable(record(ops.Full(aval.shape), (number,)), None)

    def visit(self, node: Node, gradients: list[Gradient | None]) -> None:
        """Runs the hooks and the pullback of a node, and sends the results on."""
        hooks = node.hooks
        if hooks is not None:
            gradients = self.run_value_hooks(node, hooks, gradients)
        elif self.wanted is None and not self.detects_anomalies:
            # As below, in fewer calls.
            if type(node) is not AccumulateGrad:
                self.send_results(node, self.pull_back(node, gradients))
            elif gradients[0] is not None:
                self.accumulate_grad(node, gradients[0])
            return
        self.visit_after_value_hooks(node, gradients)

    def visit_after_value_hooks(self, node: Node, gradients: list[Gradient | None]) -> None:
        """Visits a node whose gradients are known."""
        hooks = node.hooks
        if self.wanted_outputs:
            for index in self.wanted_outputs.get(node, ()):
                self.wanted_gradients[node, index] = gradients[index]
        if self.wanted is not None and not self.continues(node):
            return
        if hooks is not None and hooks.pre:
            gradients = self.run_prehooks(node, hooks, gradients)
        self.run_rule(node, gradients)

    def run_rule(self, node: Node, gradients: list[Gradient | None]) -> None:
        """Visits a node after its prehooks."""
        if isinstance(node, AccumulateGrad):
            if gradients[0] is not None:
                self.accumulate_grad(node, gradients[0])
            results: list[Gradient | None] = []
        elif self.detects_anomalies:
            results = pull_back_with_origin(node, partial(self.pull_back, node, gradients))
        else:
            results = self.pull_back(node, gradients)
        self.finish_visit(node, results, gradients)

    def finish_visit(
        self, node: Node, results: list[Gradient | None], gradients: list[Gradient | None]
    ) -> None:
        """Visits a node after its pullback, which gave `results`."""
        hooks = node.hooks
        if hooks is not None and hooks.post:
            results = self.run_posthooks(node, hooks, results, gradients)
        self.send_results(node, results)

    def send_results(self, node: Node, results: list[Gradient | None]) -> None:
        """Sends the gradients of the operands of a node on."""
        send = self.send
        for edge, gradient in zip(node.edges, results, strict=True):
            if edge is not None:
                send(edge, gradient)

    def continues(self, node: Node) -> bool:
        """Whether a walk for wanted edges goes through a node."""
        if isinstance(node, AccumulateGrad):
            return self.accumulate and node in self.wanted_outputs
        return any([e is not None and e[0] in self.nodes for e in node.edges])

    def accumulate_grad(self, node: AccumulateGrad, gradient: Gradient) -> None:
        x = node.variable
        # It may have been made constant meanwhile.
        if x._leaf is None and not x.requires_grad:
            return
        add_to_grad(x, self.variable_of(gradient), self.create_graph)
        if node.hooks is not None:
            self.run_post_accumulate_hooks(node, node.hooks)

    def pull_back(self, node: Node, gradients: list[Gradient | None]) -> list[Gradient | None]:
        """The gradients of the operands of a node."""
        if node.number < self.first_node:
            raise outside_node_error(node)
        if not isinstance(node, OperationNode):
            return node.pull_back(self, gradients)  # type: ignore[attr-defined, no-any-return]
        if not any(gradients):
            # A hook took all gradients away, the rule of a Function gave none, or the gradients went past a
            # root, from its power to its operands.
            if not self.retain_graph:
                free_saved(node)
            return [None] * len(node.edges)
        split, saved = node.split, node.saved
        if saved is None:
            raise freed_error(node.label)
        if self.create_graph:
            whole = join_power_with_root(node)
            if whole is not None and node.edges[0][0] not in self.wanted_outputs:  # type: ignore[index]
                self.pull_back_joined(node, whole, gradients)
                return [None] * len(node.edges)
        if split.refusal is not None:
            raise split.refusal.with_traceback(None)
        args, masked, missing = self.cotangents_of(split, gradients)
        pullback, residuals = self.pullback_of(node, saved, masked)
        for x in residuals:
            args.append(
                x if type(x) is Recorded and self.has_recorded_values else self.unpack(node, x)
            )
        outs = self.apply(pullback, args)
        if not self.retain_graph:
            free_saved(node)
        count = len(split.active_positions)
        masks: list[Any] = [None] * count
        if len(outs) > count:
            masks = known_masks(pullback.program.outputs[count:], outs[count:])
        for k in split.zeros:
            # Whatever the nodes behind multiply the zeros with, as infinity, the gradient is zero.
            aval = pullback.program.outputs[k].aval
            masks[k] = self.filled(aval.update(dtype=ops.BOOL, weak_type=False), False)
        results: list[Gradient | None] = [None] * len(split.active)
        for k, i in enumerate(split.active_positions):
            results[i] = make_gradient((outs[k], masks[k]))
        if missing:
            self.drop_independent(results, split, pullback, gradients)
        return results

    def cotangents_of(
        self, split: OperationSplit, gradients: Sequence[Gradient | None]
    ) -> tuple[list[Any], bool, bool]:
        """The cotangents that a pullback takes: zeros for gradients that are missing, and masks if any.

        Also whether there are masks, and whether gradients are missing.
        """
        cotangents: list[Any] = []
        masked = missing = False
        for i in split.differentiable:
            g = gradients[i]
            if g is None:
                missing = True
                cotangents.append(self.filled(split.out_avals[i], 0))
            else:
                cotangents.append(g.value)
                masked = masked or g.mask is not None
        if masked:
            cotangents += [
                self.filled(split.out_avals[i].update(dtype=ops.BOOL), g is not None)
                if (g := gradients[i]) is None or g.mask is None
                else g.mask
                for i in split.differentiable
            ]
        return cotangents, masked, missing

    def pull_back_joined(
        self, node: OperationNode, whole: OperationNode, gradients: list[Gradient | None]
    ) -> None:
        """Sends on the gradients of a power and its root, which `whole` differentiates together."""
        self.send_results(whole, self.pull_back(whole, gradients))
        # The root is visited without a gradient, which frees what it saved.
        self.send(node.edges[0], None)  # type: ignore[arg-type]
        if not self.retain_graph:
            free_saved(node)

    def pullback_of(
        self, node: OperationNode, saved: Sequence[Any], masked: bool
    ) -> tuple[Operation, Sequence[Any]]:
        """The pullback of a node, and what it saved that the pullback takes after the cotangents."""
        split = node.split
        if split.pullbacks is None or (self.is_differentiated and node.recomputes):
            program = cached_rewrite(Pullback(split.active, masked), split.program)
            return operation_of(program), operands_read(program, node.operands or ())
        return split.pullbacks[masked], saved

    def drop_independent(
        self,
        results: list[Gradient | None],
        split: OperationSplit,
        pullback: Operation,
        gradients: Sequence[Gradient | None],
    ) -> None:
        """Drops the results that depend only on cotangents that are missing."""
        known = {k for k, i in enumerate(split.differentiable) if gradients[i] is not None}
        used = cached_rewrite(CotangentsUsed(len(split.differentiable)), pullback.program)
        for k, i in enumerate(split.active_positions):
            if known.isdisjoint(used[k]):
                results[i] = None

    def unpack(self, node: OperationNode, saved: object) -> Any:
        """A residual as a value of the walk; SavedValueError if it was written to since."""
        if type(saved) is Recorded:
            return saved if self.has_recorded_values else make_variable(saved, None)
        if not isinstance(saved, (SavedValue, PackedValue)):
            return saved
        recorded = saved.load(node.label)
        if self.has_recorded_values:
            return recorded
        edge = saved.edge if saved.output is None else (node, saved.output)
        x = make_variable(recorded, edge if self.create_graph else None)
        x._dual = saved.dual
        return x


running_walk: ContextVar[Walk | None] = ContextVar("running_walk", default=None)
"""The walk that runs in this context."""
walk_compiler: ContextVar[Callable[[Walk, Sequence[tuple[Edge, Any]]], None] | None] = ContextVar(
    "walk_compiler", default=None
)
"""The function that runs walks in this context from their roots."""


def run_in_thread(work: Callable[[], None]) -> None:
    """`work()` in another thread, which has a stack of its own, with the recording of this one."""
    context, recording = copy_context(), current_recording()
    wide, partitionable = x64_enabled(), threefry_partitionable()
    precision = jax.config.jax_default_matmul_precision  # type: ignore[attr-defined]

    def run() -> None:
        continue_recording(recording)
        try:
            # JAX's options belong to a thread.
            with (
                jax.enable_x64(wide),
                jax.default_matmul_precision(precision),
                jax.threefry_partitionable(partitionable),
            ):
                context.run(work)
        finally:
            continue_recording(None)

    with ThreadPoolExecutor(1) as thread:
        thread.submit(run).result()


def queue_callback(callback: Callable[[], object]) -> None:
    """Call `callback()` once at the end of the walk that runs now.

    Raises CallbackError outside a walk.
    """
    walk = running_walk.get()
    if walk is None:
        raise CallbackError(
            "queue_callback: it must be called by a hook or a backward rule; got no walk that runs",
            fix="Call it in a hook, such as that of x.register_hook, or call the function at once.",
        )
    if not callable(callback):
        raise ArgumentError(
            f"queue_callback: callback must be a function; got {type_name(callback)}"
        )
    walk.callbacks.append(callback)


def is_checkpoint_valid() -> bool:
    """Whether neither the walk that runs nor one around it is for chosen inputs.

    In such a walk a re-entrant checkpoint is not valid.
    """
    walk = running_walk.get()
    return walk is None or walk.allows_checkpoint


def visiting_order(roots: Sequence[Node]) -> tuple[list[Node], set[Node]]:
    """The nodes that a walk from roots reaches, in the order of its visits, and as a set.

    Operations come newest first. A leaf comes behind the last operation that gives it a gradient, as in
    PyTorch.
    """
    reached = {node for node in roots if type(node) is not AccumulateGrad}
    pending = operations = list(reached)
    before_leaves = set()
    for node in pending:
        for edge in node.edges:
            if edge is not None:
                operand = edge[0]
                if type(operand) is AccumulateGrad:
                    before_leaves.add(node)
                elif operand not in reached:
                    reached.add(operand)
                    pending.append(operand)
    operations.sort(key=attrgetter("number"))
    order: list[Node] = []
    for node in operations:
        if node in before_leaves:
            for edge in reversed(node.edges):
                if edge is not None and edge[0] not in reached:
                    reached.add(edge[0])
                    order.append(edge[0])
        order.append(node)
    order += [node for node in dict.fromkeys(roots) if node not in reached]
    reached.update(roots)
    order.reverse()
    return order, reached


def nodes_leading_to(targets: set[Node], reached: set[Node]) -> set[Node]:
    """The nodes, among those that a walk reaches, from which it reaches one of `targets`."""
    needed = targets & reached
    for node in sorted(reached, key=lambda node: node.number):
        if any([e is not None and e[0] in needed for e in node.edges]):
            needed.add(node)
    return needed
