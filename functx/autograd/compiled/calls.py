"""The calls of Python in a captured walk: hooks, accumulations into `.grad` and rules that are not traced."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from functx.autograd.engine import Gradient, Total, Walk, add_to_grad
from functx.autograd.nodes import Node
from functx.autograd.recorded import Recorded
from functx.autograd.variable import as_variable, make_variable
from functx.core.program import Atom

if TYPE_CHECKING:
    from functx.autograd.compiled.run import WalkRun

Gradients = list[Gradient | None]
Snapshot = tuple[int, "Layout", Sequence[Atom]]
"""The number of a node or an edge, the layout of its gradients, and their values and masks."""
Layout = tuple[int, ...]
"""For each of several gradients: 0 for None, 1 for a value, 2 for a value and its mask."""


def layout_of(gradients: Sequence[Gradient | None]) -> Layout:
    """The layout of gradients."""
    return tuple([0 if g is None else 1 if g.mask is None else 2 for g in gradients])


def flatten_gradients(gradients: Sequence[Gradient | None]) -> list[Any]:
    """The values and masks of gradients, in order."""
    return [x for g in gradients if g is not None for x in g if x is not None]


def unflatten_gradients(layout: Layout, values: Iterator[Any]) -> Gradients:
    """The gradients whose values and masks are `values`."""
    return [
        None if not n else Gradient(next(values), next(values) if n == 2 else None) for n in layout
    ]


class Fallback(Exception):
    """A call changed what the rest of the walk does, so that its program is not right any more.

    `visit_rest(walk)` finishes the visit of the node.
    """

    def __init__(self, visit_rest: Callable[[Walk], None]):
        super().__init__()
        self.visit_rest = visit_rest


class WalkCall:
    """A call of Python at node number `position` of a walk.

    `pending` holds, for each node that has gradients by then, its position, their layout, and their
    atoms; `wanted` does so for each wanted edge whose gradient is known.
    """

    pending: Sequence[Snapshot] = ()
    wanted: Sequence[Snapshot] = ()
    kind = ""
    calls_user = False
    is_after_rule = False

    def __init__(self, position: int):
        self.position = position

    def __call__(self, run: WalkRun, values: Sequence[Any]) -> Sequence[Any]:
        """The outputs, values of the walk."""
        raise NotImplementedError

    def describe(self, nodes: Sequence[Node]) -> str:
        """The kind of the call and the node, for readers."""
        return f"{self.kind} of {nodes[self.position].label} ({self.position + 1})"


class UserCall(WalkCall):
    """A call of hooks, or of a rule, on gradients of these layouts, which gives others of layout `results`.

    It leaves the program if the gradients have another layout, as where a hook returned None, or if there
    are other hooks by then.
    """

    calls_user = True

    def __init__(self, position: int, operands: Sequence[Layout], results: Layout):
        super().__init__(position)
        self.operands, self.results = operands, results

    def __call__(self, run: WalkRun, values: Sequence[Any]) -> Sequence[Any]:
        remaining = iter(values)
        gradients = [unflatten_gradients(layout, remaining) for layout in self.operands]
        results, visit_rest = self.call_user(run.walk, run.nodes[self.position], *gradients)
        if layout_of(results) != self.results or run.has_other_hooks(self.position):
            raise Fallback(visit_rest)
        return flatten_gradients(results)

    def call_user(
        self, walk: Walk, node: Any, *gradients: Gradients
    ) -> tuple[Gradients, Callable[[Walk], None]]:
        """The new gradients, and the function that finishes the visit of the node."""
        raise NotImplementedError


class ValueHooksCall(UserCall):
    """Calls the hooks of the outputs of a node."""

    kind = "value hooks"

    def call_user(self, walk: Walk, node: Any, *gradients: Gradients) -> Any:
        new = walk.run_value_hooks(node, node.hooks, gradients[0])
        return new, lambda walk: walk.visit_after_value_hooks(node, new)


class PrehooksCall(UserCall):
    """Calls the prehooks of a node."""

    kind = "prehooks"

    def call_user(self, walk: Walk, node: Any, *gradients: Gradients) -> Any:
        new = walk.run_prehooks(node, node.hooks, gradients[0])
        return new, lambda walk: walk.run_rule(node, new)


class RuleCall(UserCall):
    """Calls the backward rule of a node that is not an operation."""

    kind = "rule"
    is_after_rule = True

    def call_user(self, walk: Walk, node: Any, *gradients: Gradients) -> Any:
        new = walk.pull_back(node, gradients[0])
        return new, lambda walk: walk.finish_visit(node, new, gradients[0])


class PosthooksCall(UserCall):
    """Calls the posthooks of a node, on the gradients of its operands and of its outputs."""

    kind = "posthooks"
    is_after_rule = True

    def call_user(self, walk: Walk, node: Any, *gradients: Gradients) -> Any:
        new = walk.run_posthooks(node, node.hooks, *gradients)
        return new, lambda walk: walk.send_results(node, new)


class PostAccumulateHooksCall(UserCall):
    """Calls the post-accumulate hooks of a leaf."""

    kind = "post-accumulate hooks"

    def call_user(self, walk: Walk, node: Any, *gradients: Gradients) -> Any:
        if node.variable.requires_grad:
            walk.run_post_accumulate_hooks(node, node.hooks)
        return [], lambda walk: walk.finish_visit(node, [], gradients[0])


class AccumulationCall(WalkCall):
    """Adds a gradient to `.grad` of a leaf.

    The values are `.grad` before, the gradient and their sum; or the gradient alone.
    """

    kind = "accumulation"

    def __call__(self, run: WalkRun, values: Sequence[Any]) -> Sequence[Any]:
        node: Any = run.nodes[self.position]
        gradient, total = values[0], None
        if len(values) == 3:
            before, gradient, value = values
            total = Total(before, value)
        # A hook may have switched the leaf off.
        if node.variable.requires_grad:
            add_to_grad(node.variable, array_of(gradient), run.walk.create_graph, total)
        return ()


class UnpackCall(WalkCall):
    """Loads value number `number`, which saved-tensor hooks have packed."""

    kind = "unpack"
    calls_user = True

    def __init__(self, position: int, number: int):
        super().__init__(position)
        self.number = number

    def __call__(self, run: WalkRun, values: Sequence[Any]) -> Sequence[Any]:
        node: Any = run.nodes[self.position]
        return [run.walk.unpack(node, run.packed[self.number])]


class CallbacksCall(WalkCall):
    """Calls what `queue_callback` has queued."""

    kind = "callbacks"

    def describe(self, nodes: Sequence[Node]) -> str:
        return self.kind

    def __call__(self, run: WalkRun, values: Sequence[Any]) -> Sequence[Any]:
        run.walk.run_callbacks()
        return ()


def array_of(x: Any) -> Any:
    """A value of a walk as a Variable."""
    return make_variable(x, None) if type(x) is Recorded else as_variable(x)
