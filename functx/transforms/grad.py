"""`grad` and `value_and_grad`: the derivatives of scalar functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import index
from typing import Any

from functx.core import tree
from functx.core.errors import ArgnumsError, GradientError
from functx.core.rewriting import apply
from functx.core.types import is_complex, is_inexact
from functx.transforms.aliasing import copy_transform_results
from functx.transforms.argument_names import (
    argument_names,
    as_decorator,
    check_callable,
    function_name,
    wrap_transform,
)
from functx.transforms.operand_masks import unflatten_tangents
from functx.transforms.partial_evaluation_policy import policy
from functx.transforms.tracing_api import partition_static_arguments, trace_function

Argnums = int | Sequence[int]


def grad(
    fun: Callable[..., Any] | None = None,
    argnums: Argnums = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
) -> Any:
    """The function that computes the gradient of `fun`, which returns a real scalar.

    The gradient has the structure, shapes and dtypes of the argument at `argnums`; for a tuple of
    `argnums`, it is a tuple of such gradients. With `has_aux`, `fun` returns `(value, aux)`, and
    the result is `(gradient, aux)`. `holomorphic` declares that `fun` is complex-differentiable in
    complex arguments. With `allow_int`, integer arguments are accepted, with a gradient of None.
    Keyword arguments are passed on and not differentiated. A Python int counts as a float.

    Raises GradientError if the output is no scalar or an argument is not inexact, and ArgnumsError
    if `argnums` names no argument.

    >>> import functx
    >>> float(functx.grad(lambda x: x ** 3)(2.0))
    12.0
    """
    if fun is None:
        return as_decorator(grad, locals())
    check_callable(fun, "grad")
    return make_gradient_function(fun, argnums, has_aux, holomorphic, allow_int)


def value_and_grad(
    fun: Callable[..., Any] | None = None,
    argnums: Argnums = 0,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
) -> Any:
    """The function that computes `(fun(...), gradient)`; see `grad` for the arguments.

    With `has_aux`, the result is `((value, aux), gradient)`.

    >>> import functx
    >>> value, slope = functx.value_and_grad(lambda x: x ** 3)(2.0)
    >>> float(value), float(slope)
    (8.0, 12.0)
    """
    if fun is None:
        return as_decorator(value_and_grad, locals())
    check_callable(fun, "value_and_grad")
    return make_gradient_function(
        fun, argnums, has_aux, holomorphic, allow_int, kind="value_and_grad"
    )


def make_gradient_function(
    fun: Callable[..., Any],
    argnums: Argnums,
    has_aux: bool = False,
    holomorphic: bool = False,
    allow_int: bool = False,
    kind: str = "grad",
) -> Any:
    """The result of `grad` or `value_and_grad` of `fun`; messages name the transform `kind`."""
    argnums = canonical_argnums(argnums, kind)
    with_value = kind == "value_and_grad"

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        leaves, in_tree = tree.flatten_with_key_data((args, kwargs))
        positions: Sequence[int]
        positions, grad_trees = argnums_leaves(args, argnums, kind, fun)
        if not allow_int:
            convert_ints_to_floats(leaves, positions)
        leaves, in_tree, avals, positions = partition_static_arguments(
            leaves, in_tree, kind, fun, positions
        )
        for i in positions:
            if not is_inexact(avals[i].dtype) or is_complex(avals[i].dtype) != holomorphic:
                _check_input(avals, i, kind, fun, in_tree, holomorphic, allow_int)
        differentiated_leaves = [i for i in positions if is_inexact(avals[i].dtype)]
        traced = trace_function(
            fun,
            in_tree,
            avals,
            kind,
            values=leaves,
            differentiated=differentiated_leaves,
            has_aux=has_aux,
        )
        _check_scalar(traced, kind, fun, has_aux, holomorphic)
        is_differentiated = set(differentiated_leaves)
        active = tuple([i in is_differentiated for i in range(len(traced.program.inputs))])
        operands = [*leaves, *traced.captured]
        outs = apply(policy.gradient_rewrite(active, with_value), traced.program, operands)
        split = len(outs) - len(differentiated_leaves)
        # Copied before the arguments are written to: a gradient may be one of them.
        gradients = copy_transform_results(outs[split:], operands)
        outs = traced.finish_call(operands, outs[:split]) + gradients
        split = len(outs) - len(differentiated_leaves)
        # Gradients come in the order of the inputs; argnums may have another.
        grad_of = dict(zip(sorted(differentiated_leaves), outs[split:], strict=True))
        grads = _unflatten_grads(
            [grad_of.get(i) for i in positions], [avals[i] for i in positions], grad_trees, argnums
        )
        if has_aux:
            primal = tree.unflatten(
                traced.out_tree, outs[:split] if with_value else [None, *outs[:split]]
            )
            return (primal, grads) if with_value else (grads, primal[1])
        return (outs[0], grads) if with_value else grads

    return wrap_transform(wrapper, fun, kind)


def canonical_argnums(argnums: Any, kind: str) -> int | tuple[int, ...]:
    """`argnums`, an integer or a sequence of integers, as an int or a tuple of ints.

    Raises ArgnumsError for other values.
    """
    several = isinstance(argnums, (tuple, list))
    numbers = argnums if several else (argnums,)
    if not numbers or any(isinstance(n, bool) or not hasattr(n, "__index__") for n in numbers):
        raise ArgnumsError(
            f"{kind}: argnums must be an int or a non-empty tuple of ints; got {argnums!r}",
            fix="Give the position of the argument, which counts from 0.",
        )
    found = tuple([index(n) for n in numbers])
    return found if several else found[0]


def argnums_leaves(
    args: Sequence[Any], argnums: Any, kind: str, fun: Callable[..., Any]
) -> tuple[list[int], list[Any]]:
    """The positions of the leaves of the arguments at `argnums`, and the structures of these.

    Raises ArgnumsError if `argnums` names no positional argument, or one twice.
    """
    numbers = argnums if isinstance(argnums, tuple) else (argnums,)
    if any(not -len(args) <= n < len(args) for n in numbers):
        raise ArgnumsError(
            f"{kind}({function_name(fun)}): argnums must name positional arguments of the call; "
            f"got {argnums} for {len(args)} positional arguments",
            fix="Pass the argument by position; positions count from 0.",
        )
    numbers = tuple([n % len(args) for n in numbers])
    if len(set(numbers)) != len(numbers):
        raise ArgnumsError(f"{kind}({function_name(fun)}): argnums must be distinct; got {argnums}")
    trees = [tree.structure(args[n]) for n in range(max(numbers) + 1)]
    starts = [0]
    for each in trees:
        starts.append(starts[-1] + each.num_leaves)
    positions = [i for n in numbers for i in range(starts[n], starts[n + 1])]
    return positions, [trees[n] for n in numbers]


def convert_ints_to_floats(leaves: list[Any], positions: Sequence[int]) -> list[Any]:
    """`leaves`, with Python ints at `positions` converted to floats, in place."""
    for i in positions:
        if type(leaves[i]) is int:
            leaves[i] = float(leaves[i])
    return leaves


def _unflatten_grads(grads: list[Any], avals: Sequence[Any], trees: list[Any], argnums: Any) -> Any:
    if not isinstance(argnums, tuple):
        return unflatten_tangents(trees[0], avals, grads)
    return unflatten_tangents(tree.treedef_tuple(trees), avals, grads)


def _check_input(
    avals: Sequence[Any],
    i: int,
    kind: str,
    fun: Callable[..., Any],
    in_tree: Any,
    holomorphic: bool,
    allow_int: bool,
) -> None:
    aval = avals[i]
    if (not is_inexact(aval.dtype) and allow_int) or (is_complex(aval.dtype) and not holomorphic):
        return
    name = argument_names(fun, in_tree, avals)()[i]
    wanted = "complex (holomorphic=True)" if holomorphic else "of a floating point dtype"
    raise GradientError(
        f"{kind}({function_name(fun)}): differentiated arguments must be {wanted}; "
        f"got {aval!r} for `{name}`",
        fix=f"Convert it (`functx.numpy.asarray({name}, float)`), choose other argnums, or pass "
        "allow_int=True.",
    )


def _check_scalar(
    traced: Any, kind: str, fun: Callable[..., Any], has_aux: bool, holomorphic: bool
) -> None:
    out_tree = traced.out_tree.children()[0] if has_aux else traced.out_tree
    label = f"{kind}({function_name(fun)}): the function must return a"
    if out_tree.num_leaves != 1 or out_tree.num_nodes != 1:
        raise GradientError(
            f"{label} single scalar; got a pytree {out_tree}",
            fix="Return the loss alone, or (loss, aux) with has_aux=True.",
        )
    aval = traced.program.outputs[0].aval
    if aval.shape != ():
        raise GradientError(
            f"{label} scalar; got {aval!r}, of {aval.ndim} dimensions",
            fix="Reduce it (`.sum()`, `.mean()`), or use jacrev, jacfwd or vjp.",
        )
    if not is_inexact(aval.dtype) or is_complex(aval.dtype) != holomorphic:
        requirement = (
            "complex scalar (holomorphic=True)" if holomorphic else "real floating point scalar"
        )
        raise GradientError(
            f"{label} {requirement}; got {aval!r}",
            fix="Return a real part or a modulus, or pass holomorphic=True for complex functions."
            if is_complex(aval.dtype)
            else "Return a float: integers and booleans (argmax, comparisons) have no derivative.",
        )
