"""`NestedIOFunction`: a `Function` of pytrees."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from functx.autograd.function import Function, bind_arguments
from functx.autograd.function_context import FunctionContext, state_of
from functx.autograd.function_methods import backward_rule, defines, memoize
from functx.core import tree
from functx.core.errors import FunctionGradientError
from functx.core.tracebacks import api_boundary
from functx.core.tree import TreeDef
from functx.custom.rule_results import rule_source


class NestedIOFunction(Function):
    """A `Function` whose arguments and output are pytrees: nested tuples, lists and dictionaries.

    Its methods get and return pytrees of gradients and tangents, in which None stands for zeros of a
    whole subtree.

    >>> from functx.autograd import NestedIOFunction, Variable
    >>> class Products(NestedIOFunction):
    ...     @staticmethod
    ...     def forward(ctx, pair):
    ...         ctx.save_for_backward(*pair)
    ...         return {"product": pair[0] * pair[1]}
    ...     @staticmethod
    ...     def backward(ctx, gradients):
    ...         x, y = ctx.saved_tensors
    ...         return [gradients["product"] * y, gradients["product"] * x]
    >>> x = Variable(3.0, requires_grad=True)
    >>> Products.apply([x, Variable(5.0)])["product"].backward()
    >>> print(x.grad)
    5.0
    """

    @classmethod
    @api_boundary
    def apply(cls, *args: Any, **kwargs: Any) -> Any:
        """The output of `forward`, whose derivatives are those of the class."""
        inputs, keywords = bind_arguments(cls, args, kwargs)
        leaves, in_tree = tree.flatten(inputs)
        *outs, out_tree = memoize(cls, in_tree, lambda: flat_function(cls, in_tree)).apply(
            *leaves, **keywords
        )
        return tree.unflatten(out_tree, outs)


def flat_function(function: type[NestedIOFunction], in_tree: TreeDef) -> type[Function]:
    """The Function of the leaves of arguments of one structure.

    Its outputs are the leaves of the output, then the structure of the output.
    """

    def flatten_output(output: Any) -> tuple[Any, ...]:
        leaves, out_tree = tree.flatten(output)
        return *leaves, out_tree

    def forward(*leaves: Any, **keywords: Any) -> Any:
        return flatten_output(function.forward(*tree.unflatten(in_tree, leaves), **keywords))

    def combined_forward(context: FunctionContext, *leaves: Any, **keywords: Any) -> Any:
        inputs = tree.unflatten(in_tree, leaves)
        output = flatten_output(function.forward(context, *inputs, **keywords))
        state_of(context).out_tree = output[-1]
        return output

    def setup_context(context: FunctionContext, inputs: Sequence[Any], output: Any) -> None:
        *outs, out_tree = output
        state_of(context).out_tree = out_tree
        function.setup_context(
            context, tree.unflatten(in_tree, inputs), tree.unflatten(out_tree, outs)
        )

    def backward(context: FunctionContext, *gradients: Any) -> tuple[Any, ...]:
        rule = backward_rule(function)
        assert rule is not None
        nested = tree.unflatten(state_of(context).out_tree, gradients[:-1])
        results = rule(context, *(nested if isinstance(nested, tuple) else (nested,)))
        if not isinstance(results, tuple) or len(results) != len(in_tree.children()):
            results = (results,)
        return tuple(flatten_like(rule, in_tree, results))

    def jvp(context: FunctionContext, *tangents: Any) -> tuple[Any, ...]:
        out_tree = state_of(context).out_tree
        results = function.jvp(context, *tree.unflatten(in_tree, tangents))
        return *flatten_like(function.jvp, out_tree, results), None

    def vmap(info: Any, in_dims: Any, *leaves: Any) -> tuple[Any, Any]:
        output, out_dims = function.vmap(
            info, tree.unflatten(in_tree, in_dims), *tree.unflatten(in_tree, leaves)
        )
        *outs, out_tree = flatten_output(output)
        dims = tree.broadcast_prefix(out_dims, out_tree, "out_dims")
        return (*outs, out_tree), (*dims, None)

    def flatten_like(rule: Any, structure: TreeDef, results: Any) -> list[Any]:
        leaves = tree.flatten_with_nones(structure, results)
        if isinstance(leaves, tree.StructureDifference):
            raise FunctionGradientError(
                f"{function.__name__}: the results of `{rule.__name__}` must have the structure of "
                f"the arguments or the output; got {leaves}",
                source=rule_source(rule),
            )
        return leaves

    members: dict[str, Any] = {"generate_vmap_rule": function.generate_vmap_rule}
    optional: dict[str, Callable[..., Any]]
    optional = {"setup_context": setup_context, "jvp": jvp, "vmap": vmap}
    members |= {k: staticmethod(f) for k, f in optional.items() if defines(function, k)}
    members["forward"] = staticmethod(combined_forward)
    if defines(function, "setup_context"):
        members["forward"] = staticmethod(forward)
    if backward_rule(function) is not None:
        members["backward"] = staticmethod(backward)
    return type(function.__name__, (Function,), members)
