"""`backward` and `grad`: the gradients of Variables."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from functx import ops
from functx.autograd.engine import Walk, add_to_grad, array_of_gradient, filled
from functx.autograd.nodes import GradientEdge
from functx.autograd.variable import Variable, make_variable, record_outputs
from functx.core.errors import AutogradError, EmptyInputsError
from functx.core.tracebacks import api_boundary
from functx.core.types import is_complex

Arrays = Variable | Sequence[Variable]


@api_boundary
def backward(
    tensors: Arrays,
    grad_tensors: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    grad_variables: Any = None,
    inputs: Any = None,
) -> None:
    """Adds the gradients of `tensors` to `.grad` of the leaves that they depend on."""
    if grad_variables is not None:
        warnings.warn("grad_variables is now grad_tensors", FutureWarning, stacklevel=2)
        if grad_tensors is not None:
            raise AutogradError("backward: pass grad_tensors alone; got grad_variables too")
        grad_tensors = grad_variables
    roots = as_list(tensors)
    wanted = None
    if inputs is not None:
        wanted = as_list(inputs)
        if not wanted:
            raise EmptyInputsError("backward: inputs must not be empty; got none")
    walk_backward(roots, grad_tensors, retain_graph, create_graph, wanted, accumulate=True)


@api_boundary
def grad(
    outputs: Arrays,
    inputs: Any,
    grad_outputs: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    only_inputs: bool = True,
    allow_unused: bool | None = None,
    is_grads_batched: bool = False,
    materialize_grads: bool = False,
) -> tuple[Variable | None, ...]:
    """The gradients of `outputs` in `inputs`, as a tuple; no `.grad` changes."""
    roots = as_list(outputs)
    wanted = as_list(inputs)
    if not roots:
        raise AutogradError("grad: outputs must not be empty; got none")
    if not wanted:
        raise EmptyInputsError("grad: inputs must not be empty; got none")
    if allow_unused is None:
        allow_unused = materialize_grads
    found = walk_backward(roots, grad_outputs, retain_graph, create_graph, wanted, False)
    results: list[Variable | None] = []
    for i, (x, gradient) in enumerate(zip(wanted, found, strict=True)):
        if gradient is None and not allow_unused:
            raise AutogradError(
                f"grad: each input must be used by the outputs; got input number {i}, which is not",
                fix="Pass allow_unused=True, which gives None for it.",
            )
        if gradient is None and materialize_grads:
            gradient = Variable(jnp.zeros(x.shape, x.dtype), requires_grad=True)
        results.append(gradient)
    return tuple(results)


def walk_backward(
    roots: Sequence[Variable],
    grad_outputs: Any,
    retain_graph: bool | None,
    create_graph: bool,
    wanted: Sequence[Any] | None,
    accumulate: bool,
) -> list[Variable | None]:
    """Walks from `roots`; the gradients of `wanted`."""
    given = [None] * len(roots) if grad_outputs is None else as_list(grad_outputs)
    if len(given) != len(roots):
        raise AutogradError(
            f"backward: there must be a gradient or None for each output; got {len(given)} for "
            f"{len(roots)}"
        )
    starts = []
    for i, (root, value) in enumerate(zip(roots, given, strict=True)):
        edge = root.edge
        if edge is None:
            raise AutogradError(
                f"backward: an output must require a gradient; got number {i}, {root.aval_!r}, "
                "without history",
                fix="Make a leaf with requires_grad=True before computing it.",
            )
        starts.append((edge, root_gradient(root, value, i, create_graph)))
    edges = None if wanted is None else [edge_of_input(x, i) for i, x in enumerate(wanted)]
    walk = Walk(
        create_graph, create_graph if retain_graph is None else retain_graph, edges, accumulate
    )
    walk.run(starts)
    if edges is None:
        return []
    found = [walk.captured[edge] for edge in edges]
    gradients = [None if g is None else walk.variable_of(g) for g in found]
    if accumulate:
        for x, gradient in zip(wanted or (), gradients, strict=True):
            if gradient is not None and isinstance(x, Variable) and not x.is_leaf:
                add_to_grad(x, gradient, create_graph)
    return gradients


def edge_of_input(x: Any, i: int) -> GradientEdge:
    if isinstance(x, GradientEdge):
        return x
    edge = x.edge
    if edge is None:
        raise AutogradError(
            f"grad: an input must require a gradient; got number {i}, {x.aval_!r}, which does not",
            fix="Make it with requires_grad=True before computing the outputs.",
        )
    return edge  # type: ignore[no-any-return]


def root_gradient(root: Variable, value: Any, i: int, create_graph: bool) -> Any:
    """The gradient of a root: one for a single real element, unless given."""
    aval = root.aval_
    if value is None:
        if aval.size != 1 or is_complex(aval.dtype):
            raise AutogradError(
                "backward: the gradient can be left out only for an output of one real element; "
                f"got number {i}, {aval!r}",
                fix="Reduce it to a real number (y.sum()), or pass its gradient.",
            )
        gradient = make_variable(filled(aval, 1), None)
    else:
        gradient = array_of_gradient(value, f"backward: gradient number {i}")
        if gradient.shape != aval.shape:
            raise AutogradError(
                f"backward: a gradient must have the shape of its output; got {gradient.aval_!r} for "
                f"output number {i}, {aval!r}"
            )
        if is_complex(gradient.dtype) != is_complex(aval.dtype):
            raise AutogradError(
                "backward: a gradient must be complex exactly if its output is; got "
                f"{gradient.aval_!r} for output number {i}, {aval!r}"
            )
        if gradient.dtype != aval.dtype:
            gradient = record_outputs(ops.ConvertElementType(aval.dtype), [gradient])[0]
    return gradient if create_graph else gradient.read()


def as_list(x: Any) -> list[Any]:
    """One array or several, as a list."""
    several = isinstance(x, (list, tuple)) and not isinstance(x, GradientEdge)
    return list(x) if several else [x]
