"""`Function`: an operation whose derivatives and batches are static methods of a class of the user."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial, wraps
from typing import TYPE_CHECKING, Any
from weakref import ref

from functx.autograd.engine import Gradient, Walk
from functx.autograd.function_context import (
    FunctionContext,
    free_saved,
    is_among,
    keep_saved,
    state_of,
)
from functx.autograd.function_methods import (
    FunctionMethods,
    backward_rule,
    check_gradients,
    defines,
    memoize,
    missing_method,
    once_error,
)
from functx.autograd.function_rules import apply_traced, mark_differentiated_once
from functx.autograd.modes import grad_mode, is_grad_enabled
from functx.autograd.nodes import GradientEdge, Node
from functx.autograd.variable import Variable, as_variable, make_variable
from functx.core.errors import (
    FunctionError,
    KeywordOnlyArrayError,
)
from functx.core.tracebacks import api_boundary
from functx.core.tracer import aval_of, current_builder
from functx.core.types import ShapedArray, is_inexact
from functx.custom.custom_function import has_jax_tracers
from functx.custom.rule_tracing import is_array
from functx.transforms.aliasing import call_outside_trace

if TYPE_CHECKING:
    pass


class Function(FunctionMethods):
    """The base class of operations with derivatives of the user's own, called by `apply`.

    A subclass defines static methods (or class methods) and is not instantiated:

    * `forward(*args)` computes the output, an array or a tuple, and `setup_context(ctx, inputs,
      output)` keeps in `ctx` what the derivatives need. Or `forward(ctx, *args)` does both, which
      transforms (`jit`, `grad`, `vmap`, ...) refuse.
    * `backward(ctx, *gradients)`, or `vjp`, gets the gradient of each output, None for what is no
      array, and returns that of each argument, None for what is no array.
    * `jvp(ctx, *tangents)` returns the tangent of each output.
    * `vmap(info, in_dims, *args)` returns the outputs for a batch and their batch dimensions;
      with `generate_vmap_rule = True` the other methods are mapped instead.

    On Variables `forward` runs without gradients. Its outputs are new arrays, except for inputs that
    it marks dirty. Only inputs and outputs have a history when `backward` is differentiated: what
    `forward` computes in between and keeps has none, so return it as a further output. Gradients of
    complex values are by PyTorch's convention, also under transforms.

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
        warnings.warn(
            f"{type(self).__name__}: a Function is not instantiated; call {type(self).__name__}.apply",
            DeprecationWarning,
            stacklevel=2,
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
    def apply(cls, *args: Any, **kwargs: Any) -> Any:
        """The output of `forward`, whose derivatives are those of the class."""
        inputs, keywords = bind_arguments(cls, args, kwargs)
        if current_builder.get() is not None or has_jax_tracers(
            [x for x in inputs if not isinstance(x, Variable)]
        ):
            return apply_traced(cls, inputs, keywords)
        if not any([isinstance(x, Variable) for x in inputs]):
            context = FunctionContext(cls.__name__, (False,) * len(inputs))
            with grad_mode(False):
                return call_outside_trace(partial(run_forward, cls, context, keywords), *inputs)
        return apply_to_variables(cls, inputs, keywords)


def bind_arguments(
    function: type[Function], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The positional arguments of `forward` and its keyword-only ones.

    With `setup_context`, defaults are filled in. Raises KeywordOnlyArrayError for an array among
    the latter, which would have no gradient.
    """
    split = defines(function, "setup_context")
    signature = memoize(function, "signature", lambda: inspect.signature(function.forward))
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


def run_forward(
    function: type[Function], context: FunctionContext, keywords: dict[str, Any], *inputs: Any
) -> Any:
    """The output of `forward`, after the context is set up."""
    if not defines(function, "setup_context"):
        return function.forward(context, *inputs, **keywords)
    output = function.forward(*inputs, **keywords)
    function.setup_context(context, inputs, output)
    return output


class FunctionNode(Node):
    """The node of a call of a Function.

    `is_array` marks the outputs that are arrays, which are numbered alone. `originals` are the
    arrays that `forward` returned and that have a gradient, with their numbers.
    """

    __slots__ = ("context", "function", "in_avals", "is_array", "originals")

    def __init__(
        self,
        function: type[Function],
        context: FunctionContext,
        edges: Sequence[GradientEdge | None],
        in_avals: Sequence[ShapedArray | None],
        outputs: Sequence[Any],
    ):
        self.is_array = [is_array(x) for x in outputs]
        arrays = [x for x in outputs if is_array(x)]
        super().__init__(f"{function.__name__}Backward", edges, [aval_of(x) for x in arrays])
        self.function, self.context, self.in_avals = function, context, in_avals
        self.originals: list[tuple[ref[Variable], int]] = []

    def pull_back(self, walk: Walk, gradients: list[Gradient | None]) -> list[Gradient | None]:
        """The gradients of the inputs by the rule of the class."""
        name, context = self.function.__name__, self.context
        rule = backward_rule(self.function)
        if rule is None:
            raise missing_method("backward", name)
        with self.history_of_outputs(walk.create_graph):
            results = rule(context, *self.output_gradients(walk, gradients))
        checked = check_gradients(name, rule, results, self.in_avals)
        if not walk.retain_graph:
            free_saved(context)
        if current_builder.get() is None:
            checked = [x if x is None else as_variable(x) for x in checked]
        return [
            None if x is None or edge is None else walk.gradient_of(x)
            for x, edge in zip(checked, self.edges, strict=True)
        ]

    def output_gradients(self, walk: Walk, gradients: list[Gradient | None]) -> list[Any]:
        """The arguments of the rule: the gradient of each output, None for what is no array."""
        materialize = state_of(self.context).materialize
        arrays = []
        for aval, gradient in zip(self.out_avals, gradients, strict=True):
            if gradient is None and materialize:
                gradient = Gradient(walk.filled(aval, 0))
            arrays.append(None if gradient is None else walk.variable_of(gradient))
        remaining = iter(arrays)
        return [next(remaining) if on else None for on in self.is_array]

    @contextmanager
    def history_of_outputs(self, create_graph: bool) -> Iterator[None]:
        """Gives the arrays that `forward` returned, and the user kept, their history meanwhile.

        If they had it always, the context would be part of a cycle.
        """
        originals = [(x(), i) for x, i in self.originals] if create_graph else []
        for x, i in originals:
            if x is not None:
                x._edge = GradientEdge(self, i)
        try:
            yield
        finally:
            for x, _ in originals:
                if x is not None:
                    x._edge = None


def apply_to_variables(
    function: type[Function], inputs: tuple[Any, ...], keywords: dict[str, Any]
) -> Any:
    """The output of a call, at least one of whose arguments is a Variable: one node."""
    needs = tuple([isinstance(x, Variable) and x.requires_grad for x in inputs])
    edges = [x.edge if on else None for x, on in zip(inputs, needs, strict=True)]
    versions = {id(x): x._version if isinstance(x, Variable) else 0 for x in inputs}
    avals = [aval_of(x) if is_array(x) else None for x in inputs]
    context = FunctionContext(function.__name__, needs)
    with grad_mode(False):
        output = run_forward(function, context, keywords, *inputs)
    outputs = output if isinstance(output, tuple) else (output,)
    state = state_of(context)
    state.check_dirty(inputs, outputs)
    node = None
    if is_grad_enabled() and any(needs):
        for x in state.dirty:
            if isinstance(x, Variable):
                x.check_writable(f"{function.__name__}: mark_dirty")
        node = FunctionNode(function, context, edges, avals, outputs)
        state.node = ref(node)
    results: dict[int, Any] = {}
    numbers: dict[int, int] = {}
    for i, x in enumerate([x for x in outputs if is_array(x)]):
        if id(x) in results:
            continue
        numbers[id(x)] = i
        is_differentiable = is_inexact(x.dtype) and not is_among(x, state.non_differentiable)
        edge = GradientEdge(node, i) if node is not None and is_differentiable else None
        if is_among(x, state.dirty):
            results[id(x)] = written_input(x, edge, versions[id(x)])
        else:
            results[id(x)] = new_output(x, edge)
            if node and edge and isinstance(x, Variable) and not is_among(x, inputs):
                node.originals.append((ref(x), i))
    if node is not None:
        keep_saved(context, dict(zip(map(id, inputs), edges, strict=True)), numbers, results)
    state.dirty = state.non_differentiable = ()
    found = [results[id(x)] if is_array(x) else x for x in outputs]
    return tuple(found) if isinstance(output, tuple) else found[0]


def new_output(x: Any, edge: GradientEdge | None) -> Variable:
    """A Variable of the value of an output."""
    if isinstance(x, Variable):
        return make_variable(x.read(), edge)
    out = Variable(x)
    out._edge = edge
    return out


def written_input(x: Any, edge: GradientEdge | None, version: int) -> Any:
    """An input that `forward` wrote to, whose history is now the call; `version` is that before it."""
    if isinstance(x, Variable):
        after = max(x._version, version + 1)
        if edge is not None:
            x.write(make_variable(x.read(), edge), "mark_dirty")
        x._storage.version = after
    return x


class OnceNode(Node):
    """The node of gradients that must not be differentiated again."""

    __slots__ = ()

    def pull_back(self, walk: Walk, gradients: list[Gradient | None]) -> list[Gradient | None]:
        """Raises OnceDifferentiableError."""
        raise once_error(self.label)


def once_differentiable(backward: Callable[..., Any]) -> Callable[..., Any]:
    """A decorator of `backward` of a `Function`: it runs without gradients.

    What it returns looks differentiable, and a derivative of it raises OnceDifferentiableError.

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
        with grad_mode(False):
            results = backward(context, *gradients)
        traced = current_builder.get() is not None
        if not traced and not is_grad_enabled():
            return results
        several = isinstance(results, (tuple, list))
        values = results if several else (results,)
        if traced:
            dependencies = [x for x in (*gradients, *context.saved_tensors) if is_array(x)]
            found = mark_differentiated_once(state_of(context).name, values, dependencies)
        else:
            found = with_once_node(context, values, gradients)
        return tuple(found) if several else found[0]

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
    outs = [make_variable(x.read(), GradientEdge(node, i)) for i, x in enumerate(arrays)]
    remaining = iter(outs)
    return [next(remaining) if is_array(x) else x for x in values]
