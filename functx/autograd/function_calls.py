"""Calls of a `Function` on Variables: one node, and tangents of duals."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any
from weakref import ref

from functx import ops
from functx.autograd.engine import Walk
from functx.autograd.forward_ad import alias, keep_until_exit
from functx.autograd.function_context import (
    CallState,
    FunctionContext,
    free_saved,
    is_among,
    keeps_computed_values,
    load_values,
    saved_values,
    state_of,
)
from functx.autograd.function_methods import (
    FunctionMethods,
    backward_rule,
    check_gradients,
    defines,
    missing_method,
    output_tangents,
)
from functx.autograd.gradients import Gradient
from functx.autograd.modes import current_modes, grad_mode
from functx.autograd.nodes import Edge, Node, freed_error
from functx.autograd.variable import (
    Dual,
    Variable,
    as_variable,
    closed_level,
    make_variable,
    open_level,
)
from functx.autograd.views import ViewOf
from functx.core.errors import FunctionContextError
from functx.core.tracer import aval_of, current_builder
from functx.core.types import ShapedArray, is_inexact
from functx.core.typing import Value
from functx.custom.rule_tracing import is_array


def run_forward(
    function: type[FunctionMethods],
    context: FunctionContext,
    keywords: dict[str, Any],
    *inputs: object,
) -> Any:
    """The output of `forward`."""
    if defines(function, "setup_context"):
        return function.forward(*inputs, **keywords)
    return function.forward(context, *inputs, **keywords)


def call_setup_context(
    function: type[FunctionMethods],
    context: FunctionContext,
    inputs: tuple[Any, ...],
    output: object,
) -> None:
    """Calls `setup_context`, unless `forward` takes the context."""
    if defines(function, "setup_context"):
        function.setup_context(context, inputs, output)


class FunctionNode(Node):
    """The node of a call of a Function.

    `is_array` marks the outputs that are arrays, which alone have numbers, and `differentiable` the
    arrays that have a gradient. `originals` are the Variables that `forward` made or wrote to, and
    returned, with their numbers; `results` are the Variables that the caller got. `operands` are the
    saved inputs and outputs, empty once freed, if values that `setup_context` computes need a history;
    None otherwise.
    """

    __slots__ = (
        "context",
        "differentiable",
        "function",
        "in_avals",
        "is_array",
        "operands",
        "originals",
        "results",
        "returns_tuple",
    )

    def __init__(
        self,
        function: type[FunctionMethods],
        context: FunctionContext,
        edges: Sequence[Edge | None],
        in_avals: Sequence[ShapedArray | None],
        outputs: Sequence[Any],
        originals: list[tuple[ref[Variable], int]],
    ):
        self.is_array = [is_array(x) for x in outputs]
        arrays = [x for x in outputs if is_array(x)]
        super().__init__(f"{function.__name__}Backward", edges, [aval_of(x) for x in arrays])
        self.function, self.context, self.in_avals = function, context, in_avals
        self.differentiable = [is_inexact(x.dtype) for x in arrays]
        self.originals = originals
        self.results: list[ref[Variable]] = []
        self.operands: list[Any] | None = None
        self.returns_tuple = False

    @property
    def structure(self) -> object:
        return ref(self.function)

    @property
    def saved(self) -> Any:
        """The values that the context saved; None once they are freed."""
        return self.context.__dict__["_functx_saved"]

    @saved.setter
    def saved(self, saved: object) -> None:
        self.context.__dict__["_functx_saved"] = saved

    @property
    def saved_tensors(self) -> tuple[Value, ...]:
        """The arrays that the call saved, as `backward` reads them from its `ctx`."""
        return self.context.saved_tensors

    def pull_back(self, walk: Walk, gradients: list[Gradient | None]) -> list[Gradient | None]:
        """The gradients of the inputs by the rule of the class."""
        context = self.context
        if self.operands is not None and walk.is_differentiated:
            context = self.recompute_context(self.operands)
        with history_of(self if walk.is_differentiated else None):
            results = self.apply_rule(context, walk, gradients)
        if not walk.retain_graph:
            free_saved(self.context)
            self.operands = self.operands and []
        return results

    def apply_rule(
        self, context: FunctionContext, walk: Walk, gradients: list[Gradient | None]
    ) -> list[Gradient | None]:
        """The gradients of the inputs by the rule of the class, with this context."""
        name, rule = self.function.__name__, backward_rule(self.function)
        if rule is None:
            raise missing_method("backward", name)
        results = rule(context, *self.output_gradients(walk, gradients))
        checked = check_gradients(name, rule, results, self.in_avals)
        if current_builder.get() is None:
            checked = [x if x is None else as_variable(x) for x in checked]
        return [
            None if x is None or edge is None else walk.gradient_of(x)
            for x, edge in zip(checked, self.edges, strict=True)
        ]

    def recompute_context(self, operands: list[Any]) -> FunctionContext:
        """The context with values that have a history, and tangents at the open dual level."""
        name = self.function.__name__
        if not operands:
            raise freed_error(name)
        loaded = load_values(operands, self, name)
        inputs, outputs = tuple(loaded[: len(self.edges)]), tuple(loaded[len(self.edges) :])
        context = FunctionContext(name, tuple([edge is not None for edge in self.edges]))
        self.function.setup_context(context, inputs, outputs if self.returns_tuple else outputs[0])
        return context

    def output_gradients(self, walk: Walk, gradients: list[Gradient | None]) -> list[Any]:
        """The arguments of the rule: the gradient of each output, None if it is not an array."""
        materialize = state_of(self.context).materialize
        arrays = []
        for aval, gradient, on in zip(self.out_avals, gradients, self.differentiable, strict=True):
            if not on:
                gradient = None
            if gradient is None and materialize:
                gradient = Gradient(walk.filled(aval, 0))
            arrays.append(None if gradient is None else walk.variable_of(gradient))
        remaining = iter(arrays)
        return [next(remaining) if on else None for on in self.is_array]

    def set_differentiable(self, inputs: Sequence[Any], arrays: Sequence[Any]) -> None:
        """Marks the differentiable outputs; only new ones among them remain originals."""
        marked = state_of(self.context).non_differentiable
        self.differentiable = [is_inexact(x.dtype) and not is_among(x, marked) for x in arrays]
        self.originals = [
            (x, i)
            for x, i in self.originals
            if self.differentiable[i] and not is_among(x(), inputs)
        ]

    def save(self, inputs: Sequence[Any], output: Any, results: dict[int, tuple[Any, int]]) -> None:
        """Saves the arrays of the context, and the operands if its other values need a history."""
        self.returns_tuple = isinstance(output, tuple)
        edges = dict(zip(map(id, inputs), self.edges, strict=True))
        operands = (*inputs, *(output if self.returns_tuple else (output,)))
        if defines(self.function, "setup_context") and keeps_computed_values(
            self.context, operands
        ):
            self.operands = saved_values(operands, edges, results)
        attributes = self.context.__dict__
        attributes["_functx_saved"] = saved_values(attributes["_functx_saved"], edges, results)

    @contextmanager
    def history_of_outputs(self) -> Iterator[None]:
        """A context in which the arrays that `forward` returned have their history and tangents.

        Outside it they have none, since a context object that keeps them would be part of a cycle.
        """
        before = []
        for reference, i in self.originals:
            if (x := reference()) is not None:
                before.append((x, x.edge, x._dual))
                x._edge = self, i
                if self.results and (result := self.results[i]()) is not None:
                    x._dual = result._dual
        try:
            yield
        finally:
            for x, edge, dual in reversed(before):
                x._edge, x._dual = edge, dual


def history_of(node: FunctionNode | None) -> AbstractContextManager[None]:
    """`history_of_outputs` of a node, if there is one."""
    return nullcontext() if node is None else node.history_of_outputs()


def apply_to_variables(
    function: type[FunctionMethods], inputs: tuple[Any, ...], keywords: dict[str, Any]
) -> Any:
    """The output of a call with a Variable among its arguments, as one node."""
    needs = tuple([isinstance(x, Variable) and x.requires_grad for x in inputs])
    versions = {id(x): x.version_counter.version if isinstance(x, Variable) else 0 for x in inputs}
    tangents = [x.tangent if isinstance(x, Variable) else None for x in inputs]
    context = FunctionContext(function.__name__, needs)
    output, node = call_forward(function, context, inputs, keywords)
    outputs, state = output if isinstance(output, tuple) else (output,), state_of(context)
    arrays = [x for x in outputs if is_array(x)]
    new_arrays, by_id = results_of_call(arrays, inputs, versions, state, node)
    remaining = iter(new_arrays)
    results = [next(remaining) if is_array(x) else x for x in outputs]
    if any([t is not None for t in tangents]):
        with history_of(node):
            dual_context = context
            if defines(function, "setup_context"):
                dual_context = FunctionContext(function.__name__, needs)
                with closed_level(), grad_mode(node is not None):
                    call_setup_context(function, dual_context, inputs, output)
            set_tangents(function, dual_context, inputs, tangents, outputs, results)
    if node is not None:
        node.save(inputs, output, by_id)
    state.dirty = state.non_differentiable = ()
    return tuple(results) if isinstance(output, tuple) else results[0]


def call_forward(
    function: type[FunctionMethods],
    context: FunctionContext,
    inputs: tuple[Any, ...],
    keywords: dict[str, Any],
) -> tuple[Any, FunctionNode | None]:
    """The output of `forward`, and the node of the call, whose context is set up."""
    writes = {id(x): x.version_counter.writes for x in inputs if isinstance(x, Variable)}
    edges = [x.edge if on else None for x, on in zip(inputs, context.needs_input_grad, strict=True)]
    avals = [aval_of(x) if is_array(x) else None for x in inputs]
    with grad_mode(False), closed_level():
        output = run_forward(function, context, keywords, *inputs)
    outputs = output if isinstance(output, tuple) else (output,)
    arrays = [x for x in outputs if is_array(x)]
    state, node = state_of(context), None
    if current_modes().records_gradients and any(edges):
        originals = [(ref(x), i) for i, x in enumerate(arrays) if is_made_by_call(x, writes)]
        node = FunctionNode(function, context, edges, avals, outputs, originals)
        state.node = ref(node)
    with closed_level(), grad_mode(False):
        call_setup_context(function, context, inputs, output)
    state.check_dirty(inputs, outputs)
    if node is not None:
        for x in state.dirty:
            if isinstance(x, Variable):
                x.check_writable(f"{function.__name__}: mark_dirty")
        node.set_differentiable(inputs, arrays)
    return output, node


def results_of_call(
    arrays: Sequence[Any],
    inputs: Sequence[Any],
    versions: dict[int, int],
    state: CallState,
    node: FunctionNode | None,
) -> tuple[list[Any], dict[int, tuple[Any, int]]]:
    """The result for each array that `forward` returned; results and numbers by the array's `id`.

    `versions` are those of the inputs before the call.
    """
    results: list[Any] = []
    by_id: dict[int, tuple[Any, int]] = {}
    for i, x in enumerate(arrays):
        is_dirty = is_among(x, state.dirty)
        if id(x) not in by_id or (not is_dirty and is_among(x, inputs)):
            edge = (node, i) if node is not None and node.differentiable[i] else None
            if is_dirty:
                by_id[id(x)] = written_input(x, edge, versions[id(x)]), i
            else:
                by_id[id(x)] = new_output(state.name, x, edge, inputs), i
        results.append(by_id[id(x)][0])
    if node is not None:
        node.results = [ref(x) for x in results]
    return results, by_id


def is_made_by_call(x: object, writes: dict[int, int]) -> bool:
    """Whether `forward` made the output `x`, or wrote to it.

    `writes` has the number of writes to each input before the call.
    """
    if not isinstance(x, Variable) or not is_inexact(x.dtype):
        return False
    return x.version_counter.writes != writes[id(x)] if id(x) in writes else not x.requires_grad


def new_output(function: str, x: Any, edge: Edge | None, inputs: Sequence[Any]) -> Variable:
    """A Variable of an output; a view if the output is an input, or shares memory with one."""
    if not isinstance(x, Variable):
        out = Variable(x)
        out._edge = edge
        return out
    base = base_among(x, inputs)
    if base is None:
        return make_variable(x.read(), edge)
    if edge is None and not base.requires_grad:
        return alias(x)
    out = x.detach()
    if edge is not None:
        out._edge, out._view = edge, ViewOf(x, None, function=function)
    return out


def base_among(x: Variable, inputs: Sequence[Any]) -> Variable | None:
    """The input whose memory `x` shares."""
    for y in inputs:
        if isinstance(y, Variable) and y.version_counter is x.version_counter:
            return y
    return None


def written_input(x: object, edge: Edge | None, version: int) -> Any:
    """An input that `forward` wrote to, with the history of the call.

    `version` is its version before the call.
    """
    if isinstance(x, Variable):
        after = max(x.version_counter.version, version + 1)
        if edge is not None:
            x.write(make_variable(x.read(), edge))
        x.version_counter.add(after - x.version_counter.version, writes=0)
    return x


def set_tangents(
    function: type[FunctionMethods],
    context: FunctionContext,
    inputs: Sequence[Any],
    tangents: Sequence[Variable | None],
    outputs: Sequence[Any],
    results: Sequence[Any],
) -> None:
    """Gives the results of a call the tangents by `jvp`, at the open level of `forward_ad`.

    The tangent of a dirty input must be the object that was its tangent, which `jvp` writes to, and
    that of a view of an input must share the memory of the tangent of the input.
    """
    name, state, level = function.__name__, state_of(context), open_level.get()
    assert level is not None
    if not defines(function, "jvp"):
        raise missing_method("jvp", name)
    avals = [
        aval_of(x)
        if is_array(x) and is_inexact(x.dtype) and not is_among(x, state.non_differentiable)
        else None
        for x in outputs
    ]
    saved = context.__dict__["_functx_saved"]
    with closed_level():
        in_tangents = [
            as_variable(ops.zeros_like(aval_of(x)))
            if t is None and state.materialize and is_array(x) and is_inexact(x.dtype)
            else t
            for x, t in zip(inputs, tangents, strict=True)
        ]
        out_tangents = output_tangents(function, context, in_tangents, avals)
    context.__dict__["_functx_saved"] = saved
    by_input = {id(x): t for x, t in zip(inputs, in_tangents, strict=True)}
    for x, out, t in zip(outputs, results, out_tangents, strict=True):
        if t is None or not isinstance(out, Variable):
            continue
        if is_among(x, state.dirty):
            check_dirty_tangent(name, out, t, by_input[id(x)])
        base = base_among(x, inputs) if isinstance(x, Variable) else None
        tangent = as_variable(t)
        check_view_tangent(name, tangent, None if base is None else by_input[id(base)])
        out._dual = Dual(level, tangent)
        keep_until_exit(out)


def check_dirty_tangent(name: str, x: Variable, tangent: object, before: object) -> None:
    """Raise FunctionContextError unless the tangent of a dirty input is the one that it had."""
    if tangent is not before or x.is_view:
        raise FunctionContextError(
            f"{name}: the tangent of an input that is marked dirty must be its tangent, which "
            "jvp writes to, and the input must not be a view; got "
            + ("another tangent" if tangent is not before else f"a view, {x.aval_!r}"),
            fix="Write to the tangent (t *= 2) and return it, or do not write to the input.",
        )


def check_view_tangent(name: str, tangent: Variable, base: Variable | None) -> None:
    """Raise FunctionContextError unless the tangent shares the memory of `base`, the input's tangent."""
    if base is not None and tangent.version_counter is not base.version_counter:
        raise FunctionContextError(
            f"{name}: the tangent of an input that is returned, or of a view of it, must be "
            f"that view of its tangent; got a tangent with memory of its own, {tangent.aval_!r}",
            fix="Take the same view of the tangent in jvp, or return a copy from forward.",
        )
