"""Capture: the walk of a graph as one program, by the same walk on traced values."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn

from functx import ops
from functx.autograd.compiled.calls import (
    AccumulationCall,
    CallbacksCall,
    Gradients,
    KnownGradients,
    PostAccumulateHooksCall,
    PosthooksCall,
    PrehooksCall,
    RuleCall,
    UnpackCall,
    UserCall,
    ValueHooksCall,
    WalkCall,
    array_counts,
    flatten_gradients,
    unflatten_gradients,
)
from functx.autograd.compiled.devices import movable_inputs
from functx.autograd.compiled.graphs import SCALAR, WalkGraph, edge_aval
from functx.autograd.compiled.primitives import (
    AddToGrad,
    CallBackward,
    CallHook,
    PythonCall,
    RunCallbacks,
)
from functx.autograd.compiled.programs import CapturedProgram, Groups, RuleOrigin
from functx.autograd.compiled.stages import is_call
from functx.autograd.compiled.traced_rules import (
    TracedContext,
    aval_of_saved,
    has_effects,
    saved_by_function,
)
from functx.autograd.engine import Walk
from functx.autograd.function_calls import FunctionNode
from functx.autograd.function_methods import backward_rule
from functx.autograd.gradients import Gradient
from functx.autograd.hooks import NodeHooks
from functx.autograd.nodes import AccumulateGrad, Edge, Node, OperationNode
from functx.autograd.recorded import Recorded
from functx.autograd.recorded_operations import Operation
from functx.autograd.recording import continue_recording, current_recording
from functx.autograd.saved import PackedValue
from functx.autograd.traced_recording import TracedRecording
from functx.core.builder import Builder
from functx.core.captures import close_over
from functx.core.dead_code import dce_equations
from functx.core.program import Atom, Literal, Program, Var
from functx.core.source_info import unwrap_function
from functx.core.tracer import Tracer
from functx.core.types import ShapedArray, is_complex
from functx.transforms.call_primitive import Call


class Capture(NamedTuple):
    """A captured walk.

    `inputs` are the numbers of the values of the graph that the program takes, and `movable` those of
    0-d arrays that may lie on any device. `calls` are the calls of Python by their index, `outputs` the
    positions of the wanted gradients that the walk reaches, and `freed` those of the nodes whose saved
    values are read.
    """

    program: CapturedProgram
    inputs: list[int]
    movable: list[int]
    calls: list[WalkCall]
    outputs: list[int]
    freed: list[int]


class NotCapturedError(Exception):
    """A walk reads an array that is not among the values of its graph, so it is not captured."""


class WalkTrace(TracedRecording):
    """The recording of a walk while it is captured.

    `constants` are the traced values of the arrays that pullbacks have captured, by identity. With
    `takes_constants`, other arrays are constants of the program.
    """

    def __init__(self, builder: Builder):
        super().__init__(builder)
        self.constants: dict[int, Tracer] = {}
        self.takes_constants = False

    def traced_from_outside(self, x: Recorded) -> Tracer:
        if x.recording is not None or not self.takes_constants:
            raise NotCapturedError
        return self.builder.tracer(x.value)

    def traced_constant(self, x: object) -> Tracer:
        if id(x) not in self.constants:
            raise NotCapturedError
        return self.constants[id(x)]

    def run(self) -> NoReturn:
        """Raises NotCapturedError: the values are not known."""
        raise NotCapturedError


def called_function(node: Node) -> str | None:
    """The name of the jitted function whose call a node is; None for any other node."""
    if not isinstance(node, OperationNode):
        return None
    names = [
        eqn.primitive.program.name
        for eqn in node.split.program.equations
        if isinstance(eqn.primitive, Call)
    ]
    return names[0] if names else None


class CapturingWalk(Walk):
    """A walk on traced values, whose program is the captured walk.

    Hooks, and rules that are not traced, become equations that call Python, and entries of `calls`.
    `roots_joined` has the root for each node that stands for a power and its root.
    """

    def __init__(self, walk: Walk, graph: WalkGraph):
        super().__init__(
            walk.create_graph, retain_graph=True, wanted=walk.wanted, accumulate=walk.accumulate
        )
        # Values are recorded ones, also where the walk is differentiated.
        self.has_recorded_values, self.is_differentiated = True, walk.is_differentiated
        self.records_history = not walk.has_recorded_values
        self.nodes, self.order, self.roots = walk.nodes, walk.order, walk.roots
        self.graph = graph
        self.position = {node: i for i, node in enumerate(graph.nodes)}
        self.builder = Builder("CompiledAutograd", "autograd")
        self.recording = WalkTrace(self.builder)
        self.inputs: dict[int, Tracer] = {}
        self.calls: list[WalkCall] = []
        self.freed: list[int] = []
        self.roots_joined: dict[Node, OperationNode] = {}
        self.functions = 0
        self.origins: dict[Var | int, RuleOrigin] = {}

    def capture(self, edges: Sequence[Edge], sizes: tuple[int, ...]) -> Capture:
        """Captures the walk from roots with these edges; `sizes` are those that are dynamic."""
        outer = current_recording()
        continue_recording(self.recording)
        try:
            for number, edge in enumerate(edges):
                is_known = self.graph.values[number] is not None
                self.send(edge, Gradient(self.input(number)) if is_known else None)
            self.set_origins(0, RuleOrigin("root", 0))
            self.visit_pending()
            self.append_call(RunCallbacks, CallbacksCall(0), [])
        finally:
            continue_recording(outer)
        reached = [(i, g) for i, g in enumerate(self.wanted_gradients.values()) if g is not None]
        outputs = [self.atom(g.value) for _, g in reached]
        numbers = sorted(self.inputs, key=lambda n: (self.is_scalar(n), n))
        variables = [self.inputs[n].atom for n in numbers]
        names = [self.input_name(n) for n in numbers]
        kept = [a for call in self.calls if call.known is not None for a in call.known.arrays]
        equations = dce_equations(self.builder.equations, [*outputs, *kept])
        given = [a for eqn in equations if is_call(eqn) for a in eqn.inputs]
        movable = movable_inputs(numbers, variables, {*given, *outputs, *kept}, self.graph)
        arrays = len(numbers) - sum(map(self.is_scalar, numbers))
        captured = self.builder.captures.values()
        program = Program(
            "CompiledAutograd",
            [*variables, *[v for v, _ in captured]],  # type: ignore[list-item]
            equations,
            outputs,
            in_names=lambda: names,
        )
        program = close_over(program, [x for _, x in captured])
        groups = Groups(
            tuple(names[:arrays]),
            sizes,
            tuple(names[arrays:]),
            tuple([call.describe(self.graph.nodes) for call in self.calls]),
            tuple([call.number for call in self.calls if isinstance(call, UnpackCall)]),
        )
        return Capture(
            CapturedProgram(program, groups, self.origins),
            numbers,
            movable,
            self.calls,
            [i for i, _ in reached],
            self.freed,
        )

    def is_scalar(self, number: int) -> bool:
        """Whether a value of the graph is a number."""
        return self.graph.canonical[number] == SCALAR

    def input_name(self, number: int) -> str:
        """The name of an input: `root0`, `saved3`, `grad1`, `scalar2`."""
        position = bisect_right(self.graph.value_offsets, number) - 1
        if self.is_scalar(number):
            kind = "scalar"
        elif position < 0:
            kind = "root"
        else:
            is_leaf = isinstance(self.graph.nodes[position], AccumulateGrad)
            kind = "grad" if is_leaf else "saved"
        return f"{kind}{number}"

    def input(self, number: int) -> Recorded:
        """Value number `number` of the graph, as one of the walk."""
        return self.recording.recorded(self.traced_input(number))

    def traced_input(self, number: int) -> Tracer:
        """The input for value number `number` of the graph."""
        same = self.graph.canonical[number]
        number = number if same < 0 else same
        if number not in self.inputs:
            self.inputs[number] = self.builder.add_input(aval_of_saved(self.graph.values[number]))
        return self.inputs[number]

    def atom(self, x: Any) -> Atom:
        """The atom of a value of the walk."""
        traced = self.recording.traced(x)
        return traced if type(traced) is Literal else traced.atom  # type: ignore[union-attr]

    def append_call(
        self,
        primitive: type[PythonCall],
        call: WalkCall,
        operands: Sequence[Any],
        types: Sequence[ShapedArray] = (),
        **params: object,
    ) -> list[Any]:
        """The outputs of a call of Python: an equation."""
        index = len(self.calls)
        self.calls.append(call)
        if isinstance(call, UserCall):
            known = KnownGradients.of(self, self.position.__getitem__)
            call.known = known.replaced(lambda arrays: [*map(self.atom, arrays)])
        equation = primitive(index=index, types=tuple(types), **params)
        args = [Tracer(self.atom(x), self.builder) for x in operands]
        return [*map(self.recording.recorded, self.builder.append(equation, args))]

    def set_origins(self, start: int, origin: RuleOrigin) -> None:
        """Notes where the equations from number `start` on come from."""
        for eqn in self.builder.equations[start:]:
            called = isinstance(eqn.primitive, PythonCall)
            for key in [eqn.primitive.index] if called else eqn.outputs:  # type: ignore[attr-defined]
                self.origins.setdefault(key, origin)

    def visit(self, node: Node, gradients: Gradients) -> None:
        start = len(self.builder.equations)
        super().visit(node, gradients)
        self.set_origins(start, RuleOrigin(node.label, self.position[node] + 1))
        equations = self.builder.equations[start:]
        function = called_function(node)
        if function is not None:
            name = f"{function}{self.functions}"
            self.functions += 1
            for v in [v for eqn in equations for v in eqn.outputs]:
                v.name = name
            return
        # The program of an operation is that of its first call, which may be on another line.
        line = None if node.origin is None else node.origin.lines[-1]
        for eqn in equations:
            if not isinstance(eqn.primitive, PythonCall):
                eqn.source = line

    def pullback_of(
        self, node: OperationNode, saved: Sequence[Any], masked: bool
    ) -> tuple[Operation, Sequence[Any]]:
        pullback, residuals = super().pullback_of(node, saved, masked)
        if (root := self.roots_joined.get(node)) is not None:
            # The residuals are the operands of the root.
            first = self.graph.value_offsets[self.position[root]]
            numbers = {i: first + k for k, i in root.split.saved_operands}
            return pullback, [self.residual(root, x, numbers[i]) for i, x in enumerate(residuals)]
        position = self.position[node]
        self.freed.append(position)
        first = self.graph.value_offsets[position]
        if residuals is not saved:
            first += len(saved)
        constants = [x for each in node.split.pullbacks or () for x in each.captured]
        for number, x in enumerate(constants, first + len(saved)):
            self.recording.constants[id(x)] = self.traced_input(number)
        return pullback, [self.residual(node, x, first + k) for k, x in enumerate(residuals)]

    def pull_back_joined(
        self, node: OperationNode, whole: OperationNode, gradients: Gradients
    ) -> None:
        # The power may itself stand for a power and its root, which is no node of the graph.
        if node not in self.roots_joined:
            self.freed.append(self.position[node])
        self.roots_joined[whole] = node.edges[0][0]  # type: ignore[assignment, index]
        super().pull_back_joined(node, whole, gradients)

    def residual(self, node: OperationNode, x: object, number: int) -> Any:
        """A value that a node saved: an input, or the result of unpacking it."""
        if type(x) is not PackedValue:
            return self.input(number)
        call = UnpackCall(self.position[node], number)
        (value,) = self.append_call(CallHook, call, [], [x.aval], kind="unpack")
        return value

    def traced_rule(self, node: Node, gradients: Gradients) -> Gradients | None:
        """The gradients by the rule of a Function, as equations; None if it is not traced."""
        position = self.position[node]
        count = self.graph.traced.get(position)
        if (
            count is None
            or type(node) is not FunctionNode
            or has_effects(unwrap_function(backward_rule(node.function)))
        ):
            return None
        first, start = self.graph.value_offsets[position], len(self.builder.equations)
        inputs = dict(self.inputs)
        values = [self.input(number) for number in range(first, first + count)]
        self.recording.takes_constants = True
        try:
            traced = TracedContext(node, iter(values))
            results = node.apply_rule(traced.context, self, gradients)
            if traced.was_changed:
                raise NotCapturedError
        except Exception:
            # It reads values, or raises: it is called in each walk, where it may do both.
            self.builder.replace_equations(start, [])
            self.inputs = inputs
            return None
        finally:
            self.recording.takes_constants = False
        self.freed.append(position)
        return results

    def accumulate_grad(self, node: AccumulateGrad, gradient: Gradient) -> None:
        x, position = node.variable, self.position[node]
        value = gradient.value
        if is_complex(x.dtype):
            value = self.bind(ops.Conj(), (value,))
        operands = [value]
        if x._grad is not None and not self.records_history:
            operands = [self.input(self.graph.value_offsets[position]), value]
        self.append_call(AddToGrad, AccumulationCall(position), operands)
        if node.hooks is not None and node.hooks.post_accumulate:
            self.call_hooks(PostAccumulateHooksCall, "post_accumulate", node, [[gradient]], [])

    def call_hooks(
        self,
        call: type[UserCall],
        kind: str,
        node: Node,
        operands: Sequence[Gradients],
        results: Gradients,
    ) -> Gradients:
        """Appends a call of the hooks of a node on operands; the gradients that replace `results`."""
        counts = [array_counts(gradients) for gradients in operands]
        values = [x for gradients in operands for x in flatten_gradients(gradients)]
        # Without types, the outputs have the types of the operands.
        types = [] if len(operands) == 1 else [x.aval for x in flatten_gradients(results)]
        equation = call(self.position[node], counts, array_counts(results))
        outs = self.append_call(CallHook, equation, values, types, kind=kind)
        return unflatten_gradients(array_counts(results), iter(outs))

    def run_value_hooks(self, node: Node, hooks: NodeHooks, gradients: Gradients) -> Gradients:
        if not any(hooks.values.values()) and not hooks.retained:
            return gradients
        return self.call_hooks(ValueHooksCall, "value", node, [gradients], gradients)

    def run_prehooks(self, node: Node, hooks: NodeHooks, gradients: Gradients) -> Gradients:
        return self.call_hooks(PrehooksCall, "pre", node, [gradients], gradients)

    def run_posthooks(
        self, node: Node, hooks: NodeHooks, results: Gradients, gradients: Gradients
    ) -> Gradients:
        return self.call_hooks(PosthooksCall, "post", node, [results, gradients], results)

    def pull_back(self, node: Node, gradients: Gradients) -> Gradients:
        if isinstance(node, OperationNode):
            if not any(gradients):
                self.freed.append(self.position[node])
            return super().pull_back(node, gradients)
        if (results := self.traced_rule(node, gradients)) is not None:
            return results
        types = [None if edge is None else edge_aval(edge) for edge in node.edges]
        expected = tuple([int(aval is not None) for aval in types])
        position = self.position[node]
        saved: list[Recorded] = []
        if type(node) is FunctionNode and not self.records_history:
            first = self.graph.value_offsets[position]
            saved = [self.input(first + k) for k in range(len(saved_by_function(node)))]
        call = RuleCall(position, [array_counts(gradients)], expected)
        outs = self.append_call(
            CallBackward,
            call,
            [*flatten_gradients(gradients), *saved],
            [aval for aval in types if aval is not None],
        )
        return unflatten_gradients(expected, iter(outs))
