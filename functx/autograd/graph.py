"""Gradient edges, and hooks on the gradients of several values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary, ref

from functx.autograd.engine import Walk, running_walk
from functx.autograd.hooks import RemovableHandle, joined
from functx.autograd.nodes import Edge, GradientEdge, Node
from functx.autograd.value_hooks import edge_for
from functx.autograd.variable import Variable
from functx.core.errors import ArgumentError, HookModeError, HookTargetError, type_name
from functx.core.tracer import Tracer
from functx.core.tracing import refuse_of_traced


def get_gradient_edge(x: Variable) -> GradientEdge:
    """The node that gets the gradient of `x`, and the number of its output.

    `functx.autograd.grad` takes it as an input, also after `x` was written to.

    Raises HookTargetError for a value without a gradient.
    """
    return GradientEdge(*edge_of(x, "get_gradient_edge"))


def register_multi_grad_hook(
    tensors: Variable | Sequence[Variable], fn: Callable[[Any], object], mode: str = "all"
) -> RemovableHandle:
    """Call `fn` once in each walk, with the gradients of several values.

    With the mode "all", `fn` gets a list of all gradients that the walk computes, with None for the
    others. With "any", `fn` gets the first one. The result of `fn` is ignored.

    Raises HookModeError for another mode, HookTargetError for a value without a gradient.
    """
    if mode not in ("all", "any"):
        raise HookModeError(
            f'register_multi_grad_hook: mode must be "all" or "any"; got {mode!r}',
            fix='Pass "all" for one call with all gradients, "any" for one with the first.',
        )
    if not callable(fn):
        raise ArgumentError(f"register_multi_grad_hook: fn must be a function; got {type_name(fn)}")
    if isinstance(tensors, Variable):
        tensors = [tensors]
    for x in tensors:
        edge_of(x, "register_multi_grad_hook")
    hook = MultiGradHook(tensors, fn, mode == "any")
    return joined([x.register_hook(hook.of_value(i)) for i, x in enumerate(tensors)])


def edge_of(x: object, function: str) -> Edge:
    """The edge of a Variable; HookTargetError if it has none."""
    if not isinstance(x, Variable):
        error = HookTargetError(
            f"{function}: the array must be a Variable; got {type_name(x)}",
            fix="Inside a transform, write functx.hook_grad(x, fn).",
        )
        if type(x) is Tracer:
            refuse_of_traced(error, x)
        raise error
    return edge_for(x, function)


class MultiGradHook:
    """A hook that calls `fn` once in each walk, with the gradients of several values.

    Its references are weak, since the hooks of the values keep it alive.
    """

    def __init__(self, tensors: Sequence[Variable], fn: Callable[[Any], object], first: bool):
        self.fn, self.first = fn, first
        # A leaf outlives its node.
        self.values: list[Callable[[], Variable | Node | None]] = [
            ref(x if x.is_leaf else get_gradient_edge(x).node) for x in tensors
        ]
        self.pending: WeakKeyDictionary[Walk, PendingGradients] = WeakKeyDictionary()

    def of_value(self, i: int) -> Callable[[Variable], None]:
        """The hook of value `i`."""
        return lambda gradient: self.receive(i, gradient)

    def receive(self, i: int, gradient: Variable) -> None:
        walk = running_walk.get()
        assert walk is not None
        pending = self.pending.get(walk)
        if pending is None:
            pending = PendingGradients(self.indices_in(walk), [None] * len(self.values))
            self.pending[walk] = pending
            # A value that the walk reaches may turn out to have no gradient.
            walk.callbacks.append(lambda: self.call(pending))
        pending.gradients[i] = gradient
        pending.missing.discard(i)
        if self.first or not pending.missing:
            self.call(pending, gradient)

    def indices_in(self, walk: Walk) -> set[int]:
        """The indices of the values whose nodes the walk visits."""
        values = [reference() for reference in self.values]
        edges = [x.edge if isinstance(x, Variable) else x and (x, 0) for x in values]
        return {i for i, e in enumerate(edges) if e and e[0] in walk.nodes}

    def call(self, pending: PendingGradients, gradient: Variable | None = None) -> None:
        if not pending.called:
            pending.called = True
            self.fn(gradient if self.first else pending.gradients)


class PendingGradients:
    """The gradients of several values in one walk so far, and the indices of the missing ones."""

    def __init__(self, missing: set[int], gradients: list[Variable | None]):
        self.missing, self.gradients = missing, gradients
        self.called = False
