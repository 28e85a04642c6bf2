"""`NestedIOFunction`: a `Function` of pytrees."""

from __future__ import annotations

from collections.abc import Sequence
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
    def apply(cls, *args: object, **kwargs: object) -> Any:
        """The output of `forward`, whose derivatives are those of the class."""
        inputs, keywords = bind_arguments(cls, args, kwargs)
        leaves, in_tree = tree.flatten(inputs)
        flat = memoize(cls, in_tree, lambda: LeavesFunction(cls, in_tree).as_function())
        *outs, out_tree = flat.apply(*leaves, **keywords)
        return tree.unflatten(out_tree, outs)


class LeavesFunction:
    """The methods of a `NestedIOFunction` on the leaves of arguments of one structure.

    Their outputs are the leaves of the output, then the structure of the output.
    """

    def __init__(self, function: type[NestedIOFunction], in_tree: TreeDef):
        self.function, self.in_tree = function, in_tree

    def forward(self, *leaves: object, **keywords: object) -> Any:
        inputs = tree.unflatten(self.in_tree, leaves)
        return flatten_output(self.function.forward(*inputs, **keywords))

    def combined_forward(
        self, context: FunctionContext, *leaves: object, **keywords: object
    ) -> Any:
        inputs = tree.unflatten(self.in_tree, leaves)
        output = flatten_output(self.function.forward(context, *inputs, **keywords))
        state_of(context).out_tree = output[-1]
        return output

    def setup_context(self, context: FunctionContext, inputs: Sequence[Any], output: Any) -> None:
        *outs, out_tree = output
        state_of(context).out_tree = out_tree
        self.function.setup_context(
            context, tree.unflatten(self.in_tree, inputs), tree.unflatten(out_tree, outs)
        )

    def backward(self, context: FunctionContext, *gradients: object) -> tuple[Any, ...]:
        rule = backward_rule(self.function)
        assert rule is not None
        nested = tree.unflatten(state_of(context).out_tree, gradients[:-1])
        results = rule(context, *(nested if isinstance(nested, tuple) else (nested,)))
        if not isinstance(results, tuple) or len(results) != len(self.in_tree.children()):
            results = (results,)
        return tuple(self.flatten_like(rule, self.in_tree, results))

    def jvp(self, context: FunctionContext, *tangents: object) -> tuple[Any, ...]:
        out_tree = state_of(context).out_tree
        results = self.function.jvp(context, *tree.unflatten(self.in_tree, tangents))
        return *self.flatten_like(self.function.jvp, out_tree, results), None

    def vmap(self, info: Any, in_dims: Any, *leaves: object) -> tuple[Any, Any]:
        output, out_dims = self.function.vmap(
            info, tree.unflatten(self.in_tree, in_dims), *tree.unflatten(self.in_tree, leaves)
        )
        *outs, out_tree = flatten_output(output)
        dims = tree.broadcast_prefix(out_dims, out_tree, "out_dims")
        return (*outs, out_tree), (*dims, None)

    def flatten_like(self, rule: Any, structure: TreeDef, results: Any) -> list[Any]:
        """The leaves of the results of a rule; FunctionGradientError for another structure."""
        leaves = tree.flatten_with_nones(structure, results)
        if isinstance(leaves, tree.StructureDifference):
            raise FunctionGradientError(
                f"{self.function.__name__}: the results of `{rule.__name__}` must have the structure "
                f"of the arguments or the output; got {leaves}",
                source=rule_source(rule),
            )
        return leaves

    def as_function(self) -> type[Function]:
        """A `Function` with these methods, of those that the user defined."""
        function = self.function
        members: dict[str, Any] = {"generate_vmap_rule": function.generate_vmap_rule}
        for name in ("setup_context", "jvp", "vmap"):
            if defines(function, name):
                members[name] = staticmethod(getattr(self, name))
        is_split = defines(function, "setup_context")
        members["forward"] = staticmethod(self.forward if is_split else self.combined_forward)
        if backward_rule(function) is not None:
            members["backward"] = staticmethod(self.backward)
        return type(function.__name__, (Function,), members)


def flatten_output(output: object) -> tuple[Any, ...]:
    """The leaves of an output, then its structure."""
    leaves, out_tree = tree.flatten(output)
    return *leaves, out_tree
