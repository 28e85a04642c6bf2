"""The backward walk: from the newest node to the oldest, with the pullback of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from heapq import heappop, heappush
from typing import Any, NamedTuple

from functx import ops
from functx.autograd.hooks import NodeHooks
from functx.autograd.modes import grad_mode
from functx.autograd.nodes import (
    AccumulateGrad,
    GradientEdge,
    Node,
    OperationNode,
    Pullback,
    SavedValue,
)
from functx.autograd.recording import Recorded, current_recording
from functx.autograd.variable import (
    Variable,
    make_variable,
    record_outputs,
    record_program,
)
from functx.core.errors import AutogradError, GradientTypeError, SavedValueError, type_name
from functx.core.program import Program
from functx.core.rewriting import cached_rewrite
from functx.core.types import ShapedArray
from functx.ops.operands import literal

_add = ops.Add()
_or = ops.Or()


class Gradient(NamedTuple):
    """The gradient of a value during a walk: Recorded, or a Variable if the walk is differentiable.

    It is zero where `mask` is false, also if the pullback is infinite there.
    """

    value: Any
    mask: Any = None


class Walk:
    """One walk from roots to leaves.

    With `create_graph` the pullbacks are operations with nodes themselves. `wanted` are the edges
    whose gradients are returned; only nodes that lead to them run, and leaves are left alone. With
    `accumulate` gradients are added to `.grad` of the leaves, only of those wanted if there are any.
    """

    def __init__(
        self,
        create_graph: bool,
        retain_graph: bool,
        wanted: Sequence[GradientEdge] | None = None,
        accumulate: bool = True,
    ):
        self.create_graph, self.retain_graph = create_graph, retain_graph
        self.accumulate = accumulate
        self.wanted = wanted
        self.captured: dict[GradientEdge, Gradient | None] = dict.fromkeys(wanted or ())
        self.pending: dict[Node, list[Gradient | None]] = {}
        self.queue: list[tuple[int, Node]] = []
        self.needed: set[Node] | None = None
        self.capturing: dict[Node, list[int]] = {}
        for edge in self.captured:
            self.capturing.setdefault(edge.node, []).append(edge.output_nr)
        self.callbacks: list[Callable[[], object]] = []

    def run(self, roots: Sequence[tuple[GradientEdge, Any]]) -> None:
        """Walks from roots with their gradients."""
        if self.wanted is not None:
            self.needed = nodes_leading_to(set(self.capturing), [edge.node for edge, _ in roots])
        token = running_walk.set(self)
        try:
            with grad_mode(self.create_graph):
                for edge, value in roots:
                    self.send(edge, Gradient(value))
                while self.queue:
                    _, node = heappop(self.queue)
                    self.visit(node, self.pending.pop(node))
                while self.callbacks:
                    self.callbacks.pop(0)()
        finally:
            running_walk.reset(token)

    def send(self, edge: GradientEdge, gradient: Gradient) -> None:
        """Adds to the gradient of output `edge.output_nr` of a node, which will be visited."""
        node, index = edge
        if self.needed is not None and node not in self.needed:
            return
        buffer = self.pending.get(node)
        if buffer is None:
            buffer = self.pending[node] = [None] * len(node.out_avals)
            heappush(self.queue, (-node.number, node))
        before = buffer[index]
        if before is None:
            buffer[index] = gradient
            return
        mask = None
        if before.mask is not None and gradient.mask is not None:
            mask = record(_or, (before.mask, gradient.mask))
        buffer[index] = Gradient(self.bind(_add, (before.value, gradient.value)), mask)

    def bind(self, primitive: Any, args: Sequence[Any]) -> Any:
        if self.create_graph:
            return record_outputs(primitive, args)[0]
        return record(primitive, args)

    def visit(self, node: Node, gradients: list[Gradient | None]) -> None:
        """Runs the hooks and the pullback of a node, and sends the results on."""
        hooks = node.hooks
        if hooks is not None:
            gradients = self.run_value_hooks(node, hooks, gradients)
        for index in self.capturing.get(node, ()):
            gradient = gradients[index]
            self.captured[GradientEdge(node, index)] = gradient
        if self.wanted is not None and not self.continues(node):
            return
        if hooks is not None and hooks.pre:
            gradients = self.run_prehooks(node, hooks, gradients)
        if isinstance(node, AccumulateGrad):
            self.accumulate_grad(node.variable, gradients[0])
            results: list[Gradient | None] = []
        else:
            results = self.pull_back(node, gradients)
        if hooks is not None:
            if hooks.accumulated and isinstance(node, AccumulateGrad):
                self.run_accumulated_hooks(node, hooks)
            if hooks.post:
                results = self.run_posthooks(node, hooks, results, gradients)
        for edge, gradient in zip(node.edges, results, strict=True):
            if edge is not None and gradient is not None:
                self.send(edge, gradient)

    def continues(self, node: Node) -> bool:
        """Whether a walk for wanted edges goes through a node."""
        if isinstance(node, AccumulateGrad):
            return self.accumulate and node in self.capturing
        return any([e is not None and e.node in self.needed for e in node.edges])  # type: ignore[operator]

    def accumulate_grad(self, leaf: Variable, gradient: Gradient | None) -> None:
        if gradient is not None:
            add_to_grad(leaf, self.variable_of(gradient), self.create_graph)

    def variable_of(self, gradient: Gradient) -> Variable:
        """A gradient as the Variable that hooks and users see."""
        value = gradient.value
        return value if isinstance(value, Variable) else make_variable(value, None)

    def gradient_of(self, value: Variable) -> Gradient:
        return Gradient(value if self.create_graph else value.read())

    def pull_back(self, node: Node, gradients: list[Gradient | None]) -> list[Gradient | None]:
        """The gradients of the operands of a node."""
        if not isinstance(node, OperationNode):
            return node.pull_back(self, gradients)  # type: ignore[attr-defined, no-any-return]
        split, saved = node.split, node.saved
        if saved is None or (self.create_graph and split.recomputes and node.operands is None):
            raise freed_error(node)
        given = [gradients[i] for i in split.differentiable]
        avals = [split.out_avals[i] for i in split.differentiable]
        values = [
            filled(aval, 0) if g is None else g.value for g, aval in zip(given, avals, strict=True)
        ]
        masks: list[Any] = []
        if any([g is not None and g.mask is not None for g in given]):
            masks = [
                filled(aval.update(dtype=ops.BOOL), g is not None)
                if g is None or g.mask is None
                else g.mask
                for g, aval in zip(given, avals, strict=True)
            ]
        residuals = [self.unpack(node, x) for x in saved]
        outs: Sequence[Any]
        if not self.create_graph:
            program = split.masked if masks else split.unmasked
            outs = current_recording().record_program(program, [*values, *masks, *residuals])
        elif split.recomputes:
            program = cached_rewrite(Pullback(split.active, bool(masks)), split.program)
            operands = [self.unpack(node, x) for x in node.operands or ()]
            outs = self.record_pullback(program, [*values, *masks, *operands])
        else:
            for k, j in enumerate(split.output_residuals):
                if j is not None and split.operand_residuals[k] is None:
                    residuals[k] = make_variable(residuals[k].read(), GradientEdge(node, j))
            program = split.masked if masks else split.unmasked
            outs = self.record_pullback(program, [*values, *masks, *residuals])
        if not self.retain_graph and saved:
            node.saved = node.operands = None
        count = sum(split.active)
        known = split.knows_mask if masks else (False,) * count
        found: Sequence[Any] = outs[count:] or [None] * count
        return [
            Gradient(value, (m.read() if isinstance(m, Variable) else m) if on else None)
            for value, m, on in zip(outs[:count], found, known, strict=True)
        ]

    def record_pullback(self, program: Program, args: Sequence[Any]) -> list[Variable]:
        """The outputs of a pullback as an operation with a node of its own."""
        args = [make_variable(x, None) if type(x) is Recorded else x for x in args]
        return record_program(program, args)

    def unpack(self, node: OperationNode, saved: Any) -> Any:
        """A residual; SavedValueError if it was written to since."""
        if type(saved) is not SavedValue:
            return saved
        storage = saved.storage
        if storage is not None and storage.version != saved.version:
            raise SavedValueError(
                f"backward: a value that the gradient of `{node.label}` needs was written to; got "
                f"{saved.recorded.aval!r} at version {storage.version}, expected version "
                f"{saved.version}",
                fix="Write to a copy (x = x + y in place of x += y), or after backward().",
            )
        if self.create_graph:
            return make_variable(saved.recorded, saved.edge)
        return saved.recorded

    def run_value_hooks(
        self, node: Node, hooks: NodeHooks, gradients: list[Gradient | None]
    ) -> list[Gradient | None]:
        gradients = list(gradients)
        for index, table in hooks.values.items():
            for hook in list(table.values()):
                gradient = gradients[index]
                if gradient is None:
                    continue
                before = self.variable_of(gradient)
                after = hook(before)
                if after is not None:
                    gradients[index] = self.replacement(hook, after, node.out_avals[index])
        for index, reference in hooks.retained.items():
            x, gradient = reference(), gradients[index]
            if x is not None and gradient is not None:
                add_to_grad(x, self.variable_of(gradient), self.create_graph)
        return gradients

    def replacement(self, hook: Any, value: Any, aval: ShapedArray) -> Gradient:
        """The gradient that a hook returned."""
        name = getattr(hook, "__name__", type(hook).__name__)
        x = array_of_gradient(value, f"hook `{name}`")
        if x.shape != aval.shape or x.dtype != aval.dtype:
            raise AutogradError(
                f"hook `{name}`: a gradient must have the shape and dtype of its value; got "
                f"{x.aval_!r} for {aval!r}"
            )
        return self.gradient_of(x)

    def run_prehooks(
        self, node: Node, hooks: NodeHooks, gradients: list[Gradient | None]
    ) -> list[Gradient | None]:
        for hook in list(hooks.pre.values()):
            given = tuple([None if g is None else self.variable_of(g) for g in gradients])
            found = hook(given)
            if found is not None:
                gradients = self.replaced(hook, "prehook", found, node.out_avals, gradients, given)
        return gradients

    def run_posthooks(
        self,
        node: Node,
        hooks: NodeHooks,
        results: list[Gradient | None],
        gradients: list[Gradient | None],
    ) -> list[Gradient | None]:
        outputs = tuple([None if g is None else self.variable_of(g) for g in gradients])
        for hook in list(hooks.post.values()):
            given = tuple([None if g is None else self.variable_of(g) for g in results])
            found = hook(given, outputs)
            if found is not None:
                avals = [None if e is None else e.node.out_avals[e.output_nr] for e in node.edges]
                results = self.replaced(hook, "posthook", found, avals, results, given)
        return results

    def replaced(
        self,
        hook: Any,
        kind: str,
        found: Any,
        avals: Sequence[ShapedArray | None],
        before: list[Gradient | None],
        given: Sequence[Any],
    ) -> list[Gradient | None]:
        """The gradients that a hook of a node returned."""
        name = getattr(hook, "__name__", type(hook).__name__)
        if not isinstance(found, tuple):
            if kind == "posthook" and len(before) == 1:
                found = (found,)
            else:
                raise GradientTypeError(
                    f"{kind} `{name}`: the result must be a tuple of gradients or None; got "
                    f"{type_name(found)}"
                )
        if len(found) != len(before):
            raise AutogradError(
                f"{kind} `{name}`: there must be a gradient or None for each of "
                f"{len(before)}; got {len(found)}"
            )
        new: list[Gradient | None] = []
        for value, aval, old, shown in zip(found, avals, before, given, strict=True):
            if value is None or aval is None:
                new.append(None)
            else:
                new.append(old if value is shown else self.replacement(hook, value, aval))
        return new

    def run_accumulated_hooks(self, node: AccumulateGrad, hooks: NodeHooks) -> None:
        for hook in list(hooks.accumulated.values()):
            result = hook(node.variable)
            if result is not None:
                name = getattr(hook, "__name__", type(hook).__name__)
                raise AutogradError(
                    f"post-accumulate hook `{name}`: it must return None; got {type_name(result)}"
                )


def record(primitive: Any, args: Sequence[Any]) -> Recorded:
    """The output of an operation on recorded values."""
    return current_recording().record(primitive, args)[0]


def filled(aval: ShapedArray, value: float) -> Recorded:
    """An array of the type `aval`, filled with a number."""
    return record(ops.Full(aval.shape), (literal(value, aval.dtype),))


running_walk: ContextVar[Walk | None] = ContextVar("running_walk", default=None)
"""The walk that runs in this context."""


def add_to_grad(x: Variable, gradient: Variable, create_graph: bool) -> None:
    """Adds to `.grad`: into the same object, but for a differentiable walk."""
    before = x._grad
    if before is None:
        x._grad = make_variable(gradient.read(), gradient.edge if create_graph else None)
    elif create_graph:
        x._grad = record_outputs(_add, (before, gradient))[0]
    else:
        total = make_variable(record(_add, (before.read(), gradient.read())), None)
        before.write(total, "backward")


def nodes_leading_to(targets: set[Node], roots: Sequence[Node]) -> set[Node]:
    """The nodes, among those that `roots` depend on, from which a walk reaches one of `targets`."""
    reached: set[Node] = set()
    pending = list(roots)
    while pending:
        node = pending.pop()
        if node not in reached:
            reached.add(node)
            pending += [e.node for e in node.edges if e is not None]
    needed = targets & reached
    for node in sorted(reached, key=lambda node: node.number):
        if any([e is not None and e.node in needed for e in node.edges]):
            needed.add(node)
    return needed


def freed_error(node: Node) -> SavedValueError:
    return SavedValueError(
        f"backward: the values that the gradient of `{node.label}` needs were freed by the walk "
        "before; got a second walk",
        fix="Pass retain_graph=True to the first walk.",
    )


def array_of_gradient(x: Any, label: str) -> Variable:
    """A gradient that a user gave; GradientTypeError if it is no array."""
    if isinstance(x, Variable):
        return x
    try:
        return Variable(x)
    except Exception:
        raise GradientTypeError(
            f"{label}: a gradient must be an array or None; got {type_name(x)}"
        ) from None
