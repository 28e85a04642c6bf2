"""The calls of Python in a captured walk: hooks, accumulations into `.grad` and opaque backward rules."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from functx.autograd.engine import Gradient, Total, Walk, add_to_grad
from functx.autograd.nodes import AccumulateGrad, Node, OperationNode
from functx.autograd.recorded import Recorded
from functx.autograd.variable import make_variable, variable_of_literal
from functx.core.program import Atom, Literal

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


def values_of(gradients: Sequence[Gradient | None]) -> list[Any]:
    """The values and masks of gradients, in order."""
    return [x for g in gradients if g is not None for x in g if x is not None]


def gradients_of(layout: Layout, values: Iterator[Any]) -> Gradients:
    """The gradients whose values and masks are `values`."""
    return [
        None if not n else Gradient(next(values), next(values) if n == 2 else None) for n in layout
    ]


class LayoutChanged(Exception):
    """A hook or a rule gave None where the captured walk has an array, or the reverse.

    `visit_rest(walk)` finishes the visit of the node.
    """

    def __init__(self, visit_rest: Callable[[Walk], None]):
        super().__init__()
        self.visit_rest = visit_rest


class WalkCall:
    """A call of Python at node number `position` of a walk.

    `pending` holds, for each node that has gradients by then, its position, their layout, and their
    atoms; `captured` does so for each wanted edge whose gradient is known.
    """

    pending: Sequence[Snapshot] = ()
    captured: Sequence[Snapshot] = ()
    kind = ""
    may_change_layout = False
    calls_user = True

    def __init__(self, position: int):
        self.position = position

    def __call__(self, run: WalkRun, values: Sequence[Any]) -> Sequence[Any]:
        """The outputs, values of the walk."""
        raise NotImplementedError

    def describe(self, nodes: Sequence[Node]) -> str:
        """The kind of the call and the node, for readers."""
        return f"{self.kind} of {nodes[self.position].label} ({self.position + 1})"


class CallValueHooks(WalkCall):
    """Calls the hooks of the outputs of a node."""

    kind = "value hooks"

    def __init__(self, position: int, layout: Layout):
        super().__init__(position)
        self.layout = layout

    def __call__(self, run: WalkRun, values: Sequence[Any]) -> Sequence[Any]:
        node, gradients = run.nodes[self.position], gradients_of(self.layout, iter(values))
        assert node.hooks is not None
        return values_of(run.walk.run_value_hooks(node, node.hooks, gradients))


class CallPrehooks(CallValueHooks):
    """Calls the prehooks of a node."""

    kind = "prehooks"
    may_change_layout = True

    def __call__(self, run: WalkRun, values: Sequence[Any]) -> Sequence[Any]:
        node, gradients = run.nodes[self.position], gradients_of(self.layout, iter(values))
        assert node.hooks is not None
        new = run.walk.run_prehooks(node, node.hooks, gradients)
        if layout_of(new) != self.layout:
            raise LayoutChanged(lambda walk: walk.run_rule(node, new))
        return values_of(new)


class CallPosthooks(WalkCall):
    """Calls the posthooks of a node, on the gradients of its operands and of its outputs."""

    kind = "posthooks"
    may_change_layout = True

    def __init__(self, position: int, results: Layout, layout: Layout):
        super().__init__(position)
        self.results, self.layout = results, layout

    def __call__(self, run: WalkRun, values: Sequence[Any]) -> Sequence[Any]:
        node, remaining = run.nodes[self.position], iter(values)
        results = gradients_of(self.results, remaining)
        gradients = gradients_of(self.layout, remaining)
        assert node.hooks is not None
        new = run.walk.run_posthooks(node, node.hooks, results, gradients)
        if layout_of(new) != self.results:
            raise LayoutChanged(lambda walk: walk.send_results(node, new))
        return values_of(new)


class CallRule(WalkCall):
    """Calls the backward rule of a node that is not an operation."""

    kind = "rule"
    may_change_layout = True

    def __init__(self, position: int, layout: Layout, results: Layout):
        super().__init__(position)
        self.layout, self.results = layout, results

    def __call__(self, run: WalkRun, values: Sequence[Any]) -> Sequence[Any]:
        node, gradients = run.nodes[self.position], gradients_of(self.layout, iter(values))
        results = run.walk.pull_back(node, gradients)
        if layout_of(results) != self.results:
            raise LayoutChanged(lambda walk: walk.finish_visit(node, results, gradients))
        return values_of(results)


class CallAccumulatedHooks(WalkCall):
    """Calls the post-accumulate hooks of a leaf."""

    kind = "post-accumulate hooks"

    def __call__(self, run: WalkRun, values: Sequence[Any]) -> Sequence[Any]:
        node = leaf_node(run.nodes[self.position])
        if node.hooks is not None:
            run.walk.run_accumulated_hooks(node, node.hooks)
        return ()


class CallAccumulate(WalkCall):
    """Adds a gradient to `.grad` of a leaf.

    The values are `.grad` before, the gradient and their sum; or the gradient alone.
    """

    kind = "accumulation"
    calls_user = False

    def __call__(self, run: WalkRun, values: Sequence[Any]) -> Sequence[Any]:
        node: Any = run.nodes[self.position]
        gradient, total = values[0], None
        if len(values) == 3:
            before, gradient, value = values
            total = Total(before, value)
        add_to_grad(node.variable, array_of(gradient), run.walk.create_graph, total)
        return ()


class CallUnpack(WalkCall):
    """Loads value number `number`, which hooks of saved values have packed."""

    kind = "unpack"

    def __init__(self, position: int, number: int):
        super().__init__(position)
        self.number = number

    def __call__(self, run: WalkRun, values: Sequence[Any]) -> Sequence[Any]:
        node = run.nodes[self.position]
        assert isinstance(node, OperationNode)
        return [run.walk.unpack(node, run.packed[self.number])]


class CallCallbacks(WalkCall):
    """Calls what `queue_callback` has queued."""

    kind = "callbacks"
    calls_user = False

    def describe(self, nodes: Sequence[Node]) -> str:
        return self.kind

    def __call__(self, run: WalkRun, values: Sequence[Any]) -> Sequence[Any]:
        run.walk.run_callbacks()
        return ()


def leaf_node(node: Node) -> AccumulateGrad:
    """A node that is known to be that of a leaf."""
    assert isinstance(node, AccumulateGrad)
    return node


def array_of(x: Any) -> Any:
    """A value of a walk as a Variable."""
    if type(x) is Recorded:
        return make_variable(x, None)
    return variable_of_literal(x) if type(x) is Literal else x
