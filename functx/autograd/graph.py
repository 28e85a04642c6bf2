"""Edges of the graph of the derivative, and hooks on several values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary, ref

from functx.autograd.engine import Walk, running_walk
from functx.autograd.hooks import RemovableHandle, joined
from functx.autograd.nodes import GradientEdge, Node
from functx.autograd.variable import Variable
from functx.core.errors import ArgumentError, HookModeError, HookTargetError, type_name


def get_gradient_edge(x: Variable) -> GradientEdge:
    """The node and the output number that the gradient of `x` goes to.

    `functx.autograd.grad` takes it as an input, also after `x` was written to.

    Raises HookTargetError for a value without a gradient.
    """
    return edge_of(x, "get_gradient_edge")


def register_multi_grad_hook(
    tensors: Sequence[Variable], fn: Callable[[Any], object], mode: str = "all"
) -> RemovableHandle:
    """Call `fn` once in each walk, for the gradients of several values.

    With the mode "all", `fn` gets a list of them, once all have come that the walk computes; the
    others are None. With "any", `fn` gets the first one. The result of `fn` is ignored.

    Raises HookModeError for another mode, HookTargetError for a value without a gradient.
    """
    if mode not in ("all", "any"):
        raise HookModeError(
            f'register_multi_grad_hook: mode must be "all" or "any"; got {mode!r}',
            fix='Pass "all" for one call with all gradients, "any" for one with the first.',
        )
    if not callable(fn):
        raise ArgumentError(f"register_multi_grad_hook: fn must be a function; got {type_name(fn)}")
    for x in tensors:
        edge_of(x, "register_multi_grad_hook")
    several = SeveralGradients(tensors, fn, mode == "any")
    return joined([x.register_hook(several.hook(i)) for i, x in enumerate(tensors)])


def edge_of(x: Any, function: str) -> GradientEdge:
    """The edge of a Variable; HookTargetError if it has none."""
    if not isinstance(x, Variable):
        raise HookTargetError(
            f"{function}: the array must be a Variable; got {type_name(x)}",
            fix="Inside a transform, write functx.hook_grad(x, fn).",
        )
    return x.edge_for(function)


class SeveralGradients:
    """The gradients of several values in each walk, for one call of `fn`.

    Its references are weak, since the hooks of the values keep it alive.
    """

    def __init__(self, tensors: Sequence[Variable], fn: Callable[[Any], object], first: bool):
        self.fn, self.first = fn, first
        # A leaf outlives its node.
        self.values: list[Callable[[], Variable | Node | None]] = [
            ref(x if x.is_leaf else get_gradient_edge(x).node) for x in tensors
        ]
        self.arrived: WeakKeyDictionary[Walk, Arrived] = WeakKeyDictionary()

    def hook(self, i: int) -> Callable[[Variable], None]:
        """The hook of value `i`."""
        return lambda gradient: self.receive(i, gradient)

    def receive(self, i: int, gradient: Variable) -> None:
        walk = running_walk.get()
        assert walk is not None
        arrived = self.arrived.get(walk)
        if arrived is None:
            arrived = self.arrived[walk] = Arrived(self.indices_in(walk), [None] * len(self.values))
            # A value that the walk reaches may turn out to have no gradient.
            walk.callbacks.append(lambda: self.call(arrived))
        arrived.gradients[i] = gradient
        arrived.missing.discard(i)
        if self.first or not arrived.missing:
            self.call(arrived, gradient)

    def indices_in(self, walk: Walk) -> set[int]:
        """The indices of the values whose nodes the walk visits."""
        found = [reference() for reference in self.values]
        edges = [x.edge if isinstance(x, Variable) else x and GradientEdge(x, 0) for x in found]
        return {i for i, e in enumerate(edges) if e and e.node in walk.visited_nodes()}

    def call(self, arrived: Arrived, gradient: Variable | None = None) -> None:
        if not arrived.called:
            arrived.called = True
            self.fn(gradient if self.first else arrived.gradients)


class Arrived:
    """The gradients of several values that came in one walk, and the indices of those to wait for."""

    def __init__(self, missing: set[int], gradients: list[Variable | None]):
        self.missing, self.gradients = missing, gradients
        self.called = False
