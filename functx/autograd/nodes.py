"""The graph of the derivative: a node for each differentiable operation, and the splits that nodes hold."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias
from weakref import ref

from functx import ops
from functx.autograd.anomaly import Origin, current_anomalies, current_origin
from functx.autograd.hooks import NodeHooks, RemovableHandle, register
from functx.autograd.recorded import Recorded
from functx.autograd.recorded_operations import Operation, operation_of, program_of_operation
from functx.core.caches import Cache
from functx.core.config import option_key
from functx.core.dead_code import dce_equations
from functx.core.errors import AutogradError, FreedValueError, LostDerivativeError, SavedValueError
from functx.core.program import Atom, Equation, Literal, Program, Var, subprograms
from functx.core.program_calls import apply_program
from functx.core.program_editing import replace_program_fields
from functx.core.rewriting import Rewrite, cached_rewrite, user_rule_runs
from functx.core.tracing import trace_closed
from functx.core.types import ShapedArray, is_inexact
from functx.core.typing import Value
from functx.ops.autodiff import Refused
from functx.transforms.argument_names import check_callable
from functx.transforms.call_primitive import SplitMaskedVJP
from functx.transforms.dce import used_variables
from functx.transforms.forward_mode import SumOfSquaresAnalysis
from functx.transforms.symbolic_zeros import nonzero_output_mask

if TYPE_CHECKING:
    from functx.autograd.saved import SavedTensor, SavedTensorHooks
    from functx.autograd.variable import Dual, Variable
    from functx.autograd.views import VersionCounter

_numbers = count()
next_node_number = partial(next, _numbers)
"""The number of a node that is made now."""


class GradientEdge(NamedTuple):
    """Output number `output_nr` of a node: where the gradient of a value goes."""

    node: Node
    output_nr: int


Edge: TypeAlias = "tuple[Node, int]"
"""A node and the number of its output, as GradientEdge, which is made for users alone."""


class Node:
    """An operation that the derivative goes through.

    `edges` are those of the operands, None for an operand without a gradient. Nodes that were made
    later have a larger `number`, so an operation comes after those that it depends on. `origin` is where
    it was made, known if anomalies were detected then.
    """

    hooks: NodeHooks | None = None
    origin: Origin | None = None
    _metadata: dict[Any, Any] | None = None

    def __init__(self, label: str, edges: Sequence[Edge | None], out_avals: Sequence[ShapedArray]):
        self.label = label
        self.edges = edges
        self.out_avals = out_avals
        self.number = next(_numbers)
        if current_anomalies().enabled:
            self.origin = current_origin()

    def name(self) -> str:
        """The name of the operation."""
        return self.label

    @property
    def structure(self) -> object:
        """The rule of the node, by which captured walks know it."""
        return self.label

    @property
    def metadata(self) -> dict[Any, Any]:
        """A dictionary for the user's notes."""
        if self._metadata is None:
            self._metadata = {}
        return self._metadata

    def add_hooks(self) -> NodeHooks:
        """The hooks of the node, of which there may be none yet."""
        if self.hooks is None:
            self.hooks = NodeHooks()
        return self.hooks

    def register_prehook(self, hook: Callable[[tuple[Any, ...]], Any]) -> RemovableHandle:
        """Call `hook(grad_outputs)` before the pullback; a tuple that it returns replaces them.

        There is a gradient, or None, for each output. Each hook gets the tuple that those before left.
        """
        check_callable(hook, "register_prehook")
        return register(self.add_hooks().pre, hook)

    def register_hook(
        self, hook: Callable[[tuple[Any, ...], tuple[Any, ...]], Any]
    ) -> RemovableHandle:
        """Call `hook(grad_inputs, grad_outputs)` after the pullback.

        There is a gradient, or None, for each operand and each output. A tuple that it returns replaces
        `grad_inputs`. Of a leaf, `grad_inputs` is the empty tuple.
        """
        check_callable(hook, "register_hook")
        return register(self.add_hooks().post, hook)

    @property
    def next_functions(self) -> tuple[tuple[Node | None, int], ...]:
        """The node and the number of its output for each operand; `(None, 0)` without a gradient."""
        return tuple([(None, 0) if e is None else e for e in self.edges])

    def __repr__(self) -> str:
        return f"<{self.label} node {self.number}>"


class AccumulateGrad(Node):
    """The node of a leaf, where its gradient is added to `.grad`."""

    label, edges = "AccumulateGrad", ()

    def __init__(self, variable: Variable):
        self.number, self.variable = next(_numbers), variable
        if variable._hooks is not None:
            self.hooks = variable._hooks

    @property
    def out_avals(self) -> Sequence[ShapedArray]:  # type: ignore[override]
        """The type of the leaf."""
        return [self.variable.aval_]

    def add_hooks(self) -> NodeHooks:
        """The hooks of the leaf, which outlive the node."""
        self.variable._hooks = super().add_hooks()
        return self.variable._hooks


class OverwrittenNode(Node):
    """The node of a view that a call of `Function` returned, after a write to the memory of the view."""

    __slots__ = ()

    def __init__(self, label: str, out_avals: Sequence[ShapedArray]):
        super().__init__(label, (), out_avals)

    def pull_back(self, walk: object, gradients: Sequence[object]) -> list[object]:
        """Raises AutogradError: the rule of the class is for the value before the write."""
        raise AutogradError(
            f"backward: the memory of a view that {self.label} returned must not be written to before "
            f"the walk, since its rule is for the value before; got a write to {self.out_avals[0]!r}",
            fix="Return a copy from forward (x.copy()), or write to a copy.",
        )


class SavedValue(NamedTuple):
    """A residual that is the value of a Variable, with the version of its storage.

    `edge` is that of an operand; of a result of the node itself, which `output` numbers, it is not
    kept, since it would be a cycle. `dual` is the tangent of an operand, `variable` the operand itself.
    """

    recorded: Recorded
    edge: Edge | None
    storage: VersionCounter
    version: int
    output: int | None = None
    dual: Dual | None = None
    variable: ref[Variable] | None = None

    def load(self, label: str) -> Recorded:
        """The value, for the node `label`; SavedValueError if it was written to since."""
        if self.storage.version != self.version:
            raise SavedValueError(
                f"backward: a value that the gradient of `{label}` needs was written to; got "
                f"{self.recorded.aval!r} at version {self.storage.version}, expected version "
                f"{self.version}",
                fix="Write to a copy (x = x + y in place of x += y), or after backward().",
            )
        return self.recorded


make_saved_value = partial(tuple.__new__, SavedValue)
"""`SavedValue(*fields)` in half the time."""

saving_hooks: ContextVar[SavedTensorHooks | None] = ContextVar("saving_hooks", default=None)
"""The pair that packs the values that nodes save in this context."""
operand_watch: ContextVar[Callable[[Sequence[Any]], None] | None] = ContextVar(
    "operand_watch", default=None
)
"""The function that gets the operands of each operation on Variables in this context."""


class OperationNode(Node):
    """The node of an operation, or of a program.

    `saved` holds the residuals that its pullback reads: each Recorded, a SavedValue where it
    is the value of a Variable, or a PackedValue under `saved_tensors_hooks`. It is None once they are freed.
    """

    operands: Sequence[Any] | None = None
    saved: list[Any] | None

    def __init__(self, split: OperationSplit, edges: Sequence[Edge | None], saved: list[Any]):
        # As the base class, without a call.
        self.label, self.edges, self.out_avals = split.name, edges, split.out_avals
        self.number = next(_numbers)
        if current_anomalies().enabled:
            self.origin = current_origin()
        self.split, self.saved = split, saved

    @property
    def recomputes(self) -> bool:
        """Whether a derivative of its pullback computes the residuals again, from the operands."""
        return self.operands is not None

    @property
    def saved_literals(self) -> dict[int, Literal]:
        """The operands that are literals, by their positions, as far as the pullback reads them."""
        saved = self.saved or []
        pairs = [(i, x) for x, i in zip(saved, self.split.operand_residuals, strict=False)]
        return {i: x for i, x in pairs if i is not None and type(x) is Literal}

    @property
    def saved_values(self) -> tuple[SavedTensor, ...]:
        """The values that the pullback reads; FreedValueError if they were freed."""
        from functx.autograd.saved import SavedTensor

        if self.saved is None:
            raise freed_error(self.label)
        return tuple([SavedTensor(self, k) for k in range(len(self.saved))])


def free_saved(node: Any) -> None:
    """Frees the values that a node saved; a node that saved only literals keeps them, and can run again."""
    for x in node.saved or ():
        if type(x) is not Literal:
            node.saved = node.operands = None
            return


def freed_error(label: str) -> FreedValueError:
    return FreedValueError(
        f"backward: the values that the gradient of `{label}` needs were freed by the walk "
        "before; got a second walk",
        fix="Pass retain_graph=True to the first walk.",
    )


def outside_node_error(node: Node) -> LostDerivativeError:
    return LostDerivativeError(
        "backward: in a jitted function, values are differentiated that are computed in it; got the "
        f"result of `{node.label}`, which is computed from an input outside",
        fix="Compute it inside, or differentiate outside of jit.",
    )


class OperationSplit(NamedTuple):
    """How an operation is recorded, and differentiated in its active operands.

    `values` returns the outputs, then the residuals that `pullbacks` take, which are None if a
    derivative rule raises; `refusal` is the error of a user's rule. `differentiable` are the
    positions of the outputs that have a gradient. `operand_residuals` holds, for each residual, the
    position of the operand that it is, else None. `saved_operands` are the pairs of positions of the
    residuals that are operands, and of these operands; `saved_outputs` those of outputs, which may be
    written to before a walk unless `checks_outputs`. `recomputes` says
    whether there are other residuals, so that a derivative of the pullback computes them again.
    `zeros` are the positions, among the active operands, of those whose gradient is always zero.
    `memo` holds what is computed from the split when it is first needed.
    """

    program: Program
    values: Operation
    pullbacks: tuple[Operation, Operation] | None
    name: str
    out_avals: list[ShapedArray]
    active: tuple[bool, ...]
    active_positions: tuple[int, ...]
    is_active: bool
    differentiable: tuple[int, ...]
    operand_residuals: tuple[int | None, ...]
    saved_operands: tuple[tuple[int, int], ...]
    saved_outputs: tuple[tuple[int, int], ...]
    checks_outputs: bool
    recomputes: bool
    zeros: tuple[int, ...]
    refusal: Exception | None
    memo: dict[Hashable, Any]


_splits: Cache = Cache("splits", 4096)


class SplitOperation(Rewrite[OperationSplit]):
    """The rewrite of a program to its split for the operands marked `active`."""

    active: tuple[bool, ...]

    def __call__(self, program: Program) -> OperationSplit:
        return _split_program(program, self.active)


def split_program(program: Program, active: tuple[bool, ...]) -> OperationSplit:
    """The split of a program for the operands marked `active`."""
    return cached_rewrite(SplitOperation(active), program)


def _split_program(program: Program, active: tuple[bool, ...]) -> OperationSplit:
    avals, values = program.out_avals, program
    pullbacks = refusal = None
    zeros: tuple[int, ...] = ()
    if any(active):
        # A rule that raises does so when a walk needs it.
        with suppress(Exception):
            values, *backward = cached_rewrite(SplitMaskedVJP(active), program)
            pullbacks = operation_of(backward[0]), operation_of(backward[1])
            zeros = zero_outputs(backward[0], sum(active))
            refusal = refusal_in(backward[0])
    residuals = values.outputs[len(avals) :]
    inputs: dict[Atom, int] = {v: i for i, v in enumerate(values.inputs)}
    outputs = {a: i for i, a in reversed([*enumerate(values.outputs[: len(avals)])])}
    numbered = [*enumerate(residuals)]
    saved_operands = [(k, inputs[a]) for k, a in numbered if a in inputs]
    saved_outputs = [(k, outputs[a]) for k, a in numbered if a in outputs and a not in inputs]
    return OperationSplit(
        # A copy, since the memo of `program` holds the split, and a cycle would keep both.
        replace_program_fields(program),
        operation_of(values),
        pullbacks,
        program.name,
        avals,
        active,
        tuple([i for i, on in enumerate(active) if on]),
        any(active),
        tuple([i for i, aval in enumerate(avals) if is_inexact(aval.dtype)]),
        tuple([inputs.get(a) for a in residuals]),
        tuple(saved_operands),
        tuple(saved_outputs),
        # As in PyTorch, the value of a quotient may be written to.
        not any([isinstance(eqn.primitive, ops.Div) for eqn in program.equations[-1:]]),
        any(active)
        and (pullbacks is None or len(saved_operands) + len(saved_outputs) < len(residuals)),
        zeros,
        refusal,
        {},
    )


def zero_outputs(program: Program, count: int) -> tuple[int, ...]:
    """The positions, among the first `count` outputs, of those that are known to be zero."""
    return tuple([i for i, on in enumerate(nonzero_output_mask(program)[:count]) if not on])


def refusal_in(program: Program) -> Exception | None:
    """The error of a rule that a program would raise."""
    for eqn in program.equations:
        if isinstance(eqn.primitive, Refused):
            return eqn.primitive.error
        for inner in subprograms(eqn.primitive):
            if (error := refusal_in(inner)) is not None:
                return error
    return None


def split_operation(key: tuple[Any, ...]) -> tuple[OperationSplit, bool]:
    """The split of an operation, and whether it lasts; it does not if rules of users ran.

    `key` is the primitive, then the type of each operand and whether it is active.
    """
    with_options = option_key(key)
    found: OperationSplit | None = _splits.get(with_options)
    if found is None:
        program = program_of_operation(key[0], key[1::2])
        count = user_rule_runs.count
        found = split_program(program, key[2::2])
        if user_rule_runs.count != count:
            return found, False
        _splits.put(with_options, found)
    return found, True


class Pullback(Rewrite[Program]):
    """The rewrite to the program from cotangents of the outputs, and the operands, to the gradients.

    With `masked`, the masks of the cotangents follow them. The residuals are computed again.
    """

    active: tuple[bool, ...]
    masked: bool

    def __call__(self, program: Program) -> Program:
        values, unmasked, masked = cached_rewrite(SplitMaskedVJP(self.active), program)
        backward = masked if self.masked else unmasked
        own = len(values.outputs) - len(program.outputs)
        count = len(backward.inputs) - own

        def body(*args: Value) -> list[Value]:
            outs = apply_program(values, args[count:])
            return apply_program(backward, [*args[:count], *outs[len(program.outputs) :]])

        avals = [*backward.in_avals[:count], *program.in_avals]
        return trace_closed(body, avals, name=backward.name)


class InputsRead(Rewrite[frozenset[int]]):
    """The rewrite to the positions of the inputs that the outputs of a program depend on."""

    def __call__(self, program: Program) -> frozenset[int]:
        equations = dce_equations(program.equations, program.outputs)
        read = used_variables(equations, program.outputs)
        return frozenset([i for i, v in enumerate(program.inputs) if v in read])


def operands_read(pullback: Program, operands: Sequence[Any]) -> list[Any]:
    """The saved operands, the last inputs of `pullback`; one that is not read may be written to."""
    read = cached_rewrite(InputsRead(), pullback)
    first = len(pullback.inputs) - len(operands)
    return [
        x.recorded if type(x) is SavedValue and i not in read else x
        for i, x in enumerate(operands, first)
    ]


class CotangentsUsed(Rewrite[tuple[frozenset[int], ...]]):
    """For each output of a pullback, the positions of those of its `count` cotangents that it depends on."""

    count: int

    def __call__(self, program: Program) -> tuple[frozenset[int], ...]:
        used: dict[Atom, frozenset[int]] = {
            v: frozenset([i]) for i, v in enumerate(program.inputs[: self.count])
        }
        for eqn in program.equations:
            found = frozenset[int]().union(*[used.get(a, ()) for a in eqn.inputs])
            used.update(dict.fromkeys(eqn.outputs, found))
        return tuple([used.get(a, frozenset()) for a in program.outputs])


def is_sum_of_squares(edge: Edge | None) -> bool:
    """Whether the value of `edge` is a sum of squares, so that its root is a norm."""
    if edge is None or not isinstance(edge[0], OperationNode):
        return False
    variables: dict[Edge, Var] = {}
    equations: list[Equation] = []
    pending, seen = [edge[0]], {edge[0]}
    while pending and len(equations) < _LONGEST_SUM_OF_SQUARES:
        node = pending.pop()
        literals = node.saved_literals
        inputs = [
            literals.get(i) or Var(v.aval) if e is None else variables.setdefault(e, Var(v.aval))
            for i, (e, v) in enumerate(zip(node.edges, node.split.program.inputs, strict=True))
        ]
        outputs = [
            variables.setdefault((node, i), Var(aval)) for i, aval in enumerate(node.out_avals)
        ]
        if len(node.split.program.equations) == 1:
            (eqn,) = node.split.program.equations
            equations.append(eqn.replace(inputs=inputs, outputs=outputs))
        for operand, _ in filter(None, node.edges):
            if isinstance(operand, OperationNode) and operand not in seen:
                seen.add(operand)
                pending.append(operand)
    x = variables[edge]
    root = Equation(ops.Sqrt(), [x], [Var(x.aval)], None)
    return SumOfSquaresAnalysis(Program("squares", [], equations, [x])).is_norm(root)


_LONGEST_SUM_OF_SQUARES = 64
"""The number of operations before a root that are searched."""
