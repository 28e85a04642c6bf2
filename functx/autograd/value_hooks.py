"""Hooks on the value of a Variable: their registration, and the gradients that walks retain."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from weakref import ref

from functx.autograd.hooks import Hooks, RemovableHandle, next_registration, register
from functx.autograd.modes import check_outside_transforms
from functx.autograd.nodes import Edge, outside_node_error
from functx.autograd.recorded import step_traces
from functx.core.errors import HookTargetError
from functx.transforms.argument_names import check_callable

if TYPE_CHECKING:
    from functx.autograd.variable import Variable


def retain_grad(x: Variable) -> None:
    """Let walks add the gradient of this value to `grad`, which they do for leaves alone.

    It is the gradient that the hooks of the value left. After a write, it is that of the new value.

    Raises HookTargetError for a value without a gradient.
    """
    edge = edge_for(x, "retain_grad")
    if x._leaf is None and not x._retains_grad:
        x._retains_grad = True
        retain(x, edge)


def register_hook(x: Variable, hook: Callable[[Variable], Any]) -> RemovableHandle:
    """Call `hook(gradient)` in each walk, with the whole gradient of this value.

    An array that it returns replaces the gradient; None leaves it. Hooks run in the order of
    registration. A hook belongs to the value that the array has now: after a write, the new value
    has none.

    Raises HookTargetError for a value without a gradient.

    >>> from functx.autograd import Variable
    >>> x = Variable(2.0, requires_grad=True)
    >>> handle = x.register_hook(lambda gradient: gradient * 10)
    >>> (x * x).backward()
    >>> print(x.grad)
    40.0
    """
    check_callable(hook, "register_hook")
    node, output = edge_for(x, "register_hook")
    return register(node.add_hooks().values.setdefault(output, Hooks()), hook)


def register_post_accumulate_grad_hook(
    x: Variable, hook: Callable[[Variable], None]
) -> RemovableHandle:
    """Call `hook(x)`, for this leaf `x`, after each walk's gradient was added to `x.grad`.

    The hook may write to the leaf and to its gradient, and must return None.

    Raises HookTargetError unless this is a leaf that requires a gradient.
    """
    name = "register_post_accumulate_grad_hook"
    check_callable(hook, name)
    node, _ = edge_for(x, name)
    if x._leaf is None:
        raise HookTargetError(
            f"{name}: only a leaf adds up gradients; got the result of `{node.label}`, {x.aval_!r}",
            fix="Register it with register_hook, or on the leaves.",
        )
    return register(node.add_hooks().post_accumulate, hook)


def edge_for(x: Variable, function: str) -> Edge:
    """The edge of this value, for hooks on it; HookTargetError if it has no gradient."""
    check_outside_transforms(function, "Write functx.hook_grad(x, fn), or call it outside.")
    edge = x.edge
    if step_traces.count and edge is not None and x._leaf is None:
        trace = step_traces.of_thread()
        if trace is not None and edge[0].number < trace.first_node:
            raise outside_node_error(edge[0])
    if edge is None:
        raise HookTargetError(
            f"{function}: the array must require a gradient; got {x.aval_!r}, which does not",
            fix="Make a leaf with requires_grad=True before computing it.",
        )
    return edge


def retain(x: Variable, edge: Edge) -> None:
    """Lets walks add the gradient of output `edge` to `x.grad`."""
    node, output = edge
    node.add_hooks().retained[output] = ref(x)
    next_registration()


def move_retained(x: Variable, before: Edge | None, after: Edge | None) -> None:
    """Lets walks add to `x.grad` the gradient of its value after a write, not of that before."""
    if before is not None:
        node, output = before
        table = node.add_hooks().retained
        reference = table.get(output)
        if reference is not None and reference() is x:
            del table[output]
    if after is not None:
        retain(x, after)
