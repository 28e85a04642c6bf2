"""The graph of the derivative: a node for each differentiable operation, and the splits that nodes hold."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

from functx.autograd.recording import Recorded
from functx.core.caches import Cache, clear_on_rule_change
from functx.core.config import contextual_key
from functx.core.primitive import Primitive
from functx.core.program import Atom, Equation, Program, Var
from functx.core.program_editing import apply_program
from functx.core.rewriting import Rewrite, cached_rewrite
from functx.core.source_info import Source
from functx.core.tracing import trace_closed
from functx.core.types import ShapedArray, is_inexact
from functx.core.typing import Value
from functx.transforms.call_primitive import SplitMaskedVJP

if TYPE_CHECKING:
    from functx.autograd.hooks import NodeHooks
    from functx.autograd.variable import Storage, Variable

_numbers = count()


class GradientEdge(NamedTuple):
    """Output number `output_nr` of a node: where the gradient of a value goes."""

    node: Node
    output_nr: int


class Node:
    """An operation that the derivative goes through.

    `edges` are those of the operands, None for an operand without a gradient. Nodes that were made
    later have a larger `number`, so an operation comes after those that it depends on.
    """

    __slots__ = (
        "__weakref__",
        "_metadata",
        "edges",
        "hooks",
        "label",
        "number",
        "out_avals",
        "source",
    )

    def __init__(
        self, label: str, edges: Sequence[GradientEdge | None], out_avals: Sequence[ShapedArray]
    ):
        self.label = label
        self.edges = tuple(edges)
        self.out_avals = out_avals
        self.number = next(_numbers)
        self.source: Source | None = None
        self.hooks: NodeHooks | None = None
        self._metadata: dict[Any, Any] | None = None

    def name(self) -> str:
        """The name of the operation."""
        return self.label

    @property
    def metadata(self) -> dict[Any, Any]:
        """A dictionary for the user's notes."""
        if self._metadata is None:
            self._metadata = {}
        return self._metadata

    @property
    def next_functions(self) -> tuple[tuple[Node | None, int], ...]:
        """The node and the number of its output for each operand; `(None, 0)` without a gradient."""
        return tuple([(None, 0) if e is None else (e.node, e.output_nr) for e in self.edges])

    def __repr__(self) -> str:
        return f"<{self.label} node {self.number}>"


class AccumulateGrad(Node):
    """The node of a leaf, where its gradient is added to `.grad`."""

    __slots__ = ("variable",)

    def __init__(self, variable: Variable):
        super().__init__("AccumulateGrad", (), [variable.aval_])
        self.variable = variable
        self.hooks = variable._hooks


class SavedValue(NamedTuple):
    """A residual that is an operand or a result: its value, its edge, and the version of its storage."""

    recorded: Recorded
    edge: GradientEdge | None
    storage: Storage | None
    version: int


class OperationNode(Node):
    """The node of an operation, or of a program.

    `saved` holds the residuals that its pullback reads: each Recorded, or a SavedValue where it
    is the value of a Variable. It is None once they are freed.
    """

    __slots__ = ("operands", "saved", "split")

    def __init__(
        self,
        split: OperationSplit,
        edges: Sequence[GradientEdge | None],
        saved: list[Any],
        operands: Sequence[Any] | None,
    ):
        super().__init__(split.name, edges, split.out_avals)
        self.split = split
        self.saved: list[Any] | None = saved
        self.operands = operands


class OperationSplit(NamedTuple):
    """How an operation is recorded, and differentiated in its active operands.

    `values` returns the outputs, then the residuals, which the backward programs `unmasked` and
    `masked` take (`SplitMaskedVJP`). `differentiable` are the
    positions of the outputs that have a gradient. `operand_residuals` holds, for each residual, the
    position of the operand that it is, else None; `output_residuals` that of the output. Masks of
    results are known where `knows_mask` is true.
    """

    program: Program
    values: Program
    unmasked: Program
    masked: Program
    out_avals: list[ShapedArray]
    active: tuple[bool, ...]
    differentiable: tuple[int, ...]
    operand_residuals: tuple[int | None, ...]
    output_residuals: tuple[int | None, ...]
    knows_mask: tuple[bool, ...]

    @property
    def name(self) -> str:
        return self.program.name

    @property
    def recomputes(self) -> bool:
        """Whether a residual is neither an operand nor an output, so that a derivative of the pullback
        computes the residuals again."""
        pairs = zip(self.operand_residuals, self.output_residuals, strict=True)
        return any([i is None and j is None for i, j in pairs])


_splits: Cache = Cache("autograd", 4096)
clear_on_rule_change(_splits.clear)


def split_program(program: Program, active: tuple[bool, ...]) -> OperationSplit:
    """The split of a program for the operands marked `active`."""
    values, unmasked, masked = cached_rewrite(SplitMaskedVJP(active), program)
    avals = program.out_avals
    residuals = values.outputs[len(avals) :]
    inputs: dict[Atom, int] = {v: i for i, v in enumerate(values.inputs)}
    outputs = {a: i for i, a in reversed([*enumerate(values.outputs[: len(avals)])])}
    masks = masked.outputs[sum(active) :]
    return OperationSplit(
        program,
        values,
        unmasked,
        masked,
        avals,
        active,
        tuple([i for i, aval in enumerate(avals) if is_inexact(aval.dtype)]),
        tuple([inputs.get(a) for a in residuals]),
        tuple([outputs.get(a) for a in residuals]),
        tuple([type(a) is Var for a in masks]) or (False,) * sum(active),
    )


def split_operation(
    primitive: Primitive, avals: tuple[ShapedArray, ...], active: tuple[bool, ...]
) -> OperationSplit:
    """The split of one operation on operands of these types."""
    key = contextual_key((primitive, avals, active))
    found: OperationSplit | None = _splits.get(key)
    if found is None:
        found = split_program(program_of_operation(primitive, avals), active)
        _splits.put(key, found)
    return found


def program_of_operation(primitive: Primitive, avals: tuple[ShapedArray, ...]) -> Program:
    """The program of one operation on operands of these types."""
    inputs = [Var(aval) for aval in avals]
    found = primitive.out_avals_memo.get(avals) or primitive.infer_out_avals(avals)
    outputs = [Var(aval) for aval in found]
    equation = Equation(primitive, list(inputs), outputs, None)
    return Program(primitive.name, inputs, [equation], outputs)


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
