"""`Meta`: the writes of a function to its inputs, and the memory that its outputs share."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import NamedTuple

from functx.core.effects import Effect, Effects
from functx.core.primitive_families import View
from functx.core.printing import effects_text
from functx.core.program import Literal
from functx.core.strides import Strides
from functx.core.tracer import is_variable
from functx.core.types import ShapedArray
from functx.core.typing import Value
from functx.ops.autodiff import Detach


class MutationKind(Enum):
    """The place of the writes to an input: none, the program itself, or its caller."""

    NOT_MUTATED = "not mutated"
    IN_GRAPH = "in graph"
    """The program itself copies the new value into the input."""
    OUT_OF_GRAPH = "out of graph"
    """The program returns the new value, which the caller copies into the input."""


class OutputKind(Enum):
    """How an output shares memory."""

    PLAIN = "plain"
    """It has memory of its own, or memory whose sharing nobody can observe."""
    ALIAS_OF_INPUT = "alias of input"
    """It is a view of an input."""
    IS_INPUT = "is input"
    """It is an input itself."""
    ALIAS_OF_INTERMEDIATE = "alias of intermediate"
    """It is a view of an array that the function computes, as another output is."""


class BaseKind(Enum):
    """Where the base of an alias of an intermediate is returned."""

    NEW = "new"
    """As an extra output, because of this output."""
    SAVED = "saved"
    """As an extra output, because of an output before this one."""
    USER_OUTPUT = "user output"
    """As an output of the function."""


class ReplayableView(NamedTuple):
    """A view that can be taken again: output `output` of `view` on an array and literals."""

    view: View
    operands: tuple[Literal, ...]
    output: int

    def __call__(self, base: Value) -> Value:
        """The view of `base`, an array, a Variable or a traced array."""
        if isinstance(self.view, Detach) and is_variable(base):
            return base.detach()  # type: ignore[attr-defined]
        outs = self.view(base, *[operand.value for operand in self.operands])
        return outs[self.output] if self.view.multiple_results else outs


@dataclass(frozen=True)
class InputInfo:
    """The writes of a function to one input, and whether that needs a gradient.

    `requires_grad` says that a gradient in the input is computed. `is_hidden` says that all writes
    go through a detached alias, `is_under_no_grad` that all are made where no derivative is
    recorded; `gets_history` that the array requires a gradient after the writes: it did before, or
    the new value depends on an input that does.
    `strides` are those of an array that is not in row-major order.
    """

    name: str
    aval: ShapedArray
    requires_grad: bool
    is_leaf: bool = True
    mutates_data: bool = False
    is_hidden: bool = False
    is_under_no_grad: bool = False
    gets_history: bool = False
    kind: MutationKind = MutationKind.NOT_MUTATED
    strides: Strides | None = None

    @property
    def mutates_metadata(self) -> bool:
        """False: an array keeps its shape, dtype and memory; to change them in a trace is an error."""
        return False


@dataclass(frozen=True)
class OutputInfo:
    """How one output shares memory, and whether it has a derivative.

    `base` is the number of the input, of the extra output or of the output that it is a view of, and
    `view` holds the views that lead from there to the output. Outputs with equal `storage` share
    memory in the plain call; a storage below the number of inputs is that of the input.
    """

    aval: ShapedArray
    kind: OutputKind
    requires_grad: bool
    storage: int
    base: int | None = None
    base_kind: BaseKind | None = None
    view: tuple[ReplayableView, ...] = ()

    def replay(self, base: Value) -> Value:
        """The output as a view of `base`."""
        for step in self.view:
            base = step(base)
        return base


@dataclass(frozen=True)
class Meta:
    """The writes of a function to its inputs, and the memory that its outputs share; prints as a table.

    `inputs` are the leaves of the arguments, then the captured values. `bases` are the types of the
    extra outputs: the bases of outputs that are views of an intermediate, of which those with a
    derivative are marked in `bases_need_grad`. `effects` are those of the function besides its writes.
    `draws` says whether it draws random numbers from the state of a generator, which is a captured
    value that it writes to.
    """

    name: str
    inputs: tuple[InputInfo, ...]
    outputs: tuple[OutputInfo, ...]
    bases: tuple[ShapedArray, ...]
    bases_need_grad: tuple[bool, ...]
    keep_input_mutations: bool
    effects: Effects
    draws: bool = False

    @property
    def tokens(self) -> list[Effect]:
        """The kinds of ordered effects, each of which needs an effect token."""
        return sorted([e for e in self.effects if e.is_ordered], key=lambda effect: effect.name)

    @cached_property
    def mutated(self) -> list[int]:
        """The numbers of the inputs whose new values are returned first."""
        return self._of_kind(MutationKind.OUT_OF_GRAPH)

    @cached_property
    def in_graph(self) -> list[int]:
        """The numbers of the inputs that the program itself writes to."""
        return self._of_kind(MutationKind.IN_GRAPH)

    def _of_kind(self, kind: MutationKind) -> list[int]:
        return [i for i, info in enumerate(self.inputs) if info.kind is kind]

    @cached_property
    def needs_grad(self) -> list[bool]:
        """The mask of the inputs in which a gradient is computed."""
        return [info.requires_grad for info in self.inputs]

    @cached_property
    def mask(self) -> list[bool]:
        """The mask of the values `(*mutated, *outputs, *bases)` that take a tangent."""
        return [
            *[self.inputs[i].gets_history for i in self.mutated],
            *[o.kind is OutputKind.PLAIN and o.requires_grad for o in self.outputs],
            *self.bases_need_grad,
        ]

    @property
    def is_training(self) -> bool:
        """Whether an output or a new value of an input depends on an input that requires a gradient."""
        return any(o.requires_grad for o in self.outputs) or any(
            info.gets_history for info in self.inputs
        )

    def __str__(self) -> str:
        rows = [("", "type", "grad", "memory")]
        for info in self.inputs:
            rows.append((info.name, repr(info.aval), _yes(info.requires_grad), _mutation(info)))
        for i, out in enumerate(self.outputs):
            rows.append((f"-> {i}", repr(out.aval), _yes(out.requires_grad), self._sharing(out)))
        for i, aval in enumerate(self.bases):
            rows.append(
                (
                    f"-> base {i}",
                    repr(aval),
                    _yes(self.bases_need_grad[i]),
                    "base of aliased outputs",
                )
            )
        widths = [max([len(row[i]) for row in rows]) for i in range(3)]
        lines = [
            "  ".join([*[c.ljust(n) for c, n in zip(row, widths, strict=False)], row[3]]).rstrip()
            for row in rows
        ]
        effects = effects_text(self.effects)
        if self.draws:
            effects = f"{effects}, random draws" if effects else "random draws"
        title = f"{self.name}{f' with {effects}' if effects else ''}"
        return "\n".join([title, *[f"  {line}" for line in lines]])

    def _sharing(self, out: OutputInfo) -> str:
        """The text of how an output shares memory."""
        if out.base is None:
            return out.kind.value
        if out.base_kind is None:
            name = self.inputs[out.base].name
            return f"is {name}" if out.kind is OutputKind.IS_INPUT else f"view of {name}"
        if out.base_kind is BaseKind.USER_OUTPUT:
            return f"view of output {out.base}"
        return f"view of base {out.base}"


def _yes(flag: bool) -> str:
    return "yes" if flag else "no"


def _mutation(info: InputInfo) -> str:
    """The text of what happens to an input."""
    if not info.mutates_data:
        return info.kind.value
    how = ", hidden" if info.is_hidden else ", under no_grad" if info.is_under_no_grad else ""
    return f"written to {info.kind.value}{how}"
