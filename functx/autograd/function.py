"""`Function`: an operation with derivatives and a batching rule that the user defines."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import partial, wraps
from typing import Any

from functx.autograd.engine import Walk
from functx.autograd.function_calls import apply_to_variables, call_setup_context, run_forward
from functx.autograd.function_context import FunctionContext, state_of
from functx.autograd.function_methods import FunctionMethods, defines, memoize, once_error
from functx.autograd.function_rules import apply_traced, mark_differentiated_once
from functx.autograd.gradients import Gradient
from functx.autograd.modes import current_modes, grad_mode, no_grad
from functx.autograd.nodes import Node
from functx.autograd.variable import Variable, as_variable, make_variable
from functx.core import tree
from functx.core.errors import AutogradError, FunctionError, KeywordOnlyArrayError
from functx.core.source_info import warn_at_user_line
from functx.core.tracebacks import api_boundary
from functx.core.tracer import Tracer, current_builder
from functx.core.tracing import refuse_in_transform, refuse_of_traced
from functx.custom.custom_function import has_jax_tracers
from functx.custom.rule_tracing import is_array
from functx.transforms.aliasing import call_outside_trace


class Function(FunctionMethods):
    """The base class of operations with derivatives that the user defines, called by `apply`.

    A subclass defines static methods (or class methods) and is not instantiated:

    * `forward(*args)` computes the output, an array or a tuple, and `setup_context(ctx, inputs,
      output)` keeps in `ctx` what the derivatives need. Or `forward(ctx, *args)` does both, which
      transforms (`jit`, `grad`, `vmap`, ...) refuse.
    * `backward(ctx, *gradients)`, or `vjp`, gets the gradient of each output and returns that of each
      argument, with None for an output or argument that is not an array.
    * `jvp(ctx, *tangents)` returns the tangent of each output.
    * `vmap(info, in_dims, *args)` returns the outputs for a batch and their batch dimensions;
      with `generate_vmap_rule = True` the other methods are mapped instead.
    * With `is_opaque = True`, compiled walks call `backward` each time; otherwise they trace it once,
      unless it reads values, has side effects or refers to objects that can change.

    On Variables `forward` runs without gradients. Its outputs are new arrays, except for inputs that
    it marks dirty; an input that it returns as it is, or a view of one, is another view of the same
    memory with the history of the call, which must not be written to in grad mode. Values that
    `setup_context` computes and keeps have a history when `backward` is differentiated, for which it
    is called once more. Values that `forward` computes and keeps in `ctx`, but does not return, have
    neither a history nor a tangent. Gradients of complex values are by PyTorch's convention, also
    under transforms.

    >>> import functx
    >>> from functx.autograd import Function, Variable
    >>> class Square(Function):
    ...     @staticmethod
    ...     def forward(x):
    ...         return x * x
    ...     @staticmethod
    ...     def setup_context(ctx, inputs, output):
    ...         ctx.save_for_backward(*inputs)
    ...     @staticmethod
    ...     def backward(ctx, gradient):
    ...         (x,) = ctx.saved_tensors
    ...         return 2 * x * gradient
    >>> x = Variable(3.0, requires_grad=True)
    >>> Square.apply(x).backward()
    >>> print(x.grad, functx.grad(Square.apply)(3.0))
    6.0 6.0
    """

    def __init__(self, *_: object, **__: object):
        warn_at_user_line(
            f"{type(self).__name__}: a Function is not instantiated; call {type(self).__name__}.apply",
            DeprecationWarning,
        )

    def __call__(self, *_: object, **__: object) -> Any:
        """Raises FunctionError: `apply` of the class is called."""
        name = type(self).__name__
        raise FunctionError(
            f"{name}: a Function is called through its class; got a call of an instance",
            fix=f"Write {name}.apply(...), with static methods forward and backward.",
        )

    @classmethod
    @api_boundary
    def apply(cls, *args: object, **kwargs: object) -> Any:
        """The output of `forward`, whose derivatives are those of the class."""
        inputs, keywords = bind_arguments(cls, args, kwargs)
        if current_builder.get() is not None or has_jax_tracers(
            [x for x in tree.leaves(inputs) if not isinstance(x, Variable)]
        ):
            try:
                return apply_traced(cls, inputs, keywords)
            except AutogradError as error:
                # In a step under jit more is possible.
                for x in inputs:
                    if type(x) is Tracer:
                        refuse_of_traced(error, x)
                    if isinstance(x, Variable):
                        refuse_in_transform(error, current_builder.get())
                raise
        if not any([isinstance(x, Variable) for x in inputs]):
            context = FunctionContext(cls.__name__, (False,) * len(inputs))
            with grad_mode(False):
                output = call_outside_trace(partial(run_forward, cls, context, keywords), *inputs)
                call_setup_context(cls, context, inputs, output)
                return output
        return apply_to_variables(cls, inputs, keywords)


def signature_of(function: type[Function]) -> tuple[inspect.Signature, int | None]:
    """The signature of `forward`, and the number of its arguments if all are positional."""
    signature = inspect.signature(function.forward)
    kinds = [p.kind for p in signature.parameters.values()]
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    count = len(kinds) - (not defines(function, "setup_context"))
    return signature, count if all([kind in positional for kind in kinds]) else None


def bind_arguments(
    function: type[Function], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The positional arguments of `forward` and its keyword-only ones.

    With `setup_context`, defaults are filled in. Raises KeywordOnlyArrayError for a keyword-only
    array, which would have no gradient.
    """
    split = defines(function, "setup_context")
    signature, count = memoize(function, "signature", lambda: signature_of(function))
    if not kwargs and len(args) == count:
        return args, kwargs
    bound = signature.bind(*(() if split else (None,)), *args, **kwargs)
    if split:
        bound.apply_defaults()
    for name, value in bound.kwargs.items():
        if is_array(value):
            raise KeywordOnlyArrayError(
                f"{function.__name__}: derivatives and batches are taken by position; got the array "
                f"`{name}`, which is keyword-only",
                fix="Let forward take it by position.",
            )
    return bound.args if split else bound.args[1:], bound.kwargs


class OnceNode(Node):
    """The node of gradients that must not be differentiated again."""

    __slots__ = ()

    def pull_back(self, walk: Walk, gradients: list[Gradient | None]) -> list[Gradient | None]:
        """Raises OnceDifferentiableError."""
        raise once_error(self.label)


def once_differentiable(backward: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator of `backward` of a `Function`, which then runs without gradients.

    Its results require gradients, but a derivative of them raises OnceDifferentiableError.

    >>> from functx.autograd import Function, Variable, grad, once_differentiable
    >>> class Double(Function):
    ...     @staticmethod
    ...     def forward(ctx, x):
    ...         return x + x
    ...     @staticmethod
    ...     @once_differentiable
    ...     def backward(ctx, gradient):
    ...         return 2 * gradient
    >>> x = Variable(3.0, requires_grad=True)
    >>> print(grad(Double.apply(x), x)[0])
    2.0
    """

    @wraps(backward)
    def rule(context: FunctionContext, *gradients: Any) -> Any:
        traced = current_builder.get() is not None
        with no_grad() if traced else grad_mode(False):
            results = backward(context, *gradients)
        if not traced and not current_modes().records_gradients:
            return results
        is_sequence = isinstance(results, (tuple, list))
        values = results if is_sequence else (results,)
        if traced:
            dependencies = [x for x in (*gradients, *context.saved_tensors) if is_array(x)]
            marked = mark_differentiated_once(state_of(context).name, values, dependencies)
        else:
            marked = with_once_node(context, values, gradients)
        return tuple(marked) if is_sequence else marked[0]

    return rule


def with_once_node(
    context: FunctionContext, values: Sequence[Any], gradients: Sequence[Any]
) -> list[Any]:
    """The results of a backward rule with a node that refuses a further derivative."""
    state = state_of(context)
    call = state.node()
    edges = [*(() if call is None else call.edges)]
    edges += [g.edge for g in gradients if isinstance(g, Variable)]
    arrays = [as_variable(x) for x in values if is_array(x)]
    node = OnceNode(state.name, edges, [x.aval_ for x in arrays])
    outs = [make_variable(x.read(), (node, i)) for i, x in enumerate(arrays)]
    remaining = iter(outs)
    return [next(remaining) if is_array(x) else x for x in values]
